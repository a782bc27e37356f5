"""Reductions of every kind, over elements that lie and behave in every way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from tests.unit.compiler.frontend.drawing import awkward, drawn
from tests.unit.compiler.frontend.running import Recorded, checked, launched_nodes, record_each
from torch.nn import functional

F16, F64 = torch.float16, torch.float64
INF = float("inf")

Function = Callable[..., Any]
REDUCTIONS: dict[str, Function] = {
    "sum": lambda x: x.sum(1),
    "sum all": torch.sum,
    "sum first": lambda x: x.sum(0),
    "sum outer and inner": lambda x: x.sum((0, 2), keepdim=True),
    "mean": lambda x: x.mean(-1),
    "mean keepdim": lambda x: x.mean((1, 2), keepdim=True),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin((0, 1)),
    "max all": torch.max,
    "prod": lambda x: x.prod(2),
    "any": lambda x: (x > 1).any(1),
    "all": lambda x: (x > -1).all(-1, keepdim=True),
    "any of floats": lambda x: x.any(2),
    "var": lambda x: x.var(1),
    "var 0": lambda x: x.var(-1, correction=0),
    "std": lambda x: x.std((0, 2)),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, (0, 2), correction=0),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "aminmax all": torch.aminmax,
    "nansum": lambda x: x.nansum((0, 2)),
    "count_nonzero": lambda x: torch.count_nonzero(x, (1, 2)),
    "count_nonzero all": torch.count_nonzero,
    "vector norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "vector norm 1": lambda x: torch.linalg.vector_norm(x, 1, dim=(0, 1)),
    "vector norm inf": lambda x: torch.linalg.vector_norm(x, INF, dim=1, keepdim=True),
    "vector norm -inf": lambda x: torch.linalg.vector_norm(x, -INF, dim=1),
    "vector norm 0": lambda x: torch.linalg.vector_norm(x, 0, dim=2),
    "vector norm 3": lambda x: torch.linalg.vector_norm(x, 3, dim=2),
    "distances": lambda x: functional.pairwise_distance(x, x[:1]),
    "distances of order 1": lambda x: functional.pairwise_distance(x, x[:1], p=1, keepdim=True),
    "vector norm all f64": lambda x: torch.linalg.vector_norm(x, dtype=F64),
    "normalised": lambda x: functional.normalize(x, dim=-1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "softmax": lambda x: x.softmax(-1),
    "softmax middle": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "sum f64": lambda x: x.sum(1, dtype=F64),
    "count": lambda x: (x > 0).sum(1),
    "norm": lambda x: (x * x).sum(-1).sqrt(),
    "centre": lambda x: x - x.mean(1, keepdim=True),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "layer_norm 2": lambda x: functional.layer_norm(x, x.shape[-2:]),
    "rms_norm": lambda x: functional.rms_norm(x, x.shape[-1:], eps=1e-6),
    "reduced rows": lambda x: x.exp().sum(-1, keepdim=True) * x,
    "sums": lambda x: (x.sum(-1), (x * x).sum(-1)),
}


@cache
def captured(kind: str) -> Mapping[str, Recorded]:
    """Of each of `REDUCTIONS`, over elements of a kind."""
    made = {
        "plain": drawn(5, 7, 12),
        "awkward": awkward(5, 7, 12),
        "half": drawn(5, 7, 12, dtype=F16),
        "transposed": drawn(12, 7, 5).transpose(0, 2),
        "one row": drawn(1, 7, 12),
    }[kind]
    if kind != "awkward":
        return record_each(REDUCTIONS, made)
    finite = {name for name in REDUCTIONS if name.startswith(("std", "var"))}
    return {
        **record_each({name: REDUCTIONS[name] for name in REDUCTIONS if name not in finite}, made),
        **record_each(
            {name: REDUCTIONS[name] for name in REDUCTIONS if name in finite},
            made.nan_to_num(1.0, 2.0, -2.0),
        ),
    }


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("kind", ["plain", "awkward", "transposed", "half", "one row"])
def test_reductions(name: str, kind: str) -> None:
    lowered = checked(captured(kind)[name])
    # A sum over one element is no loop.
    assert launched_nodes(lowered) or (name, kind) == ("sum first", "one row")
