"""How far embeddings are from a reference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Closeness:
    """The largest difference of an element, and the least cosine of a sentence."""

    max_abs_diff: float
    cosine: float


NOTHING = Closeness(math.inf, -1.0)
"""Of a call that returned nothing."""


def closeness(found: torch.Tensor, reference: torch.Tensor) -> Closeness:
    """Of embeddings, (batch, ...), to those of the reference, sentence by sentence.

    >>> closeness(torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 4.5]])).max_abs_diff
    0.5
    """
    got, wanted = found.flatten(1).double(), reference.flatten(1).double()
    return Closeness(
        float((got - wanted).abs().max()),
        float(torch.nn.functional.cosine_similarity(got, wanted).min()),
    )
