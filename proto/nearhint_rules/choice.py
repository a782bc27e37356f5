"""Choices: what was selected at given sizes, a Variant or the Fallback, and why.

A Choice is what sizes alone decide; `Choice.pick(addresses)` decides the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from nearhint_rules.guard import Aligned
from nearhint_rules.metrics import Dims

FALLBACK = -1
"""`Selection.variant` where the Fallback is the answer."""

REASONS: Mapping[str, str] = {
    "winner": "the best-ranked eligible Variant at the nearest hint",
    "predicted": "the eligible Variant that is predicted to be fastest at these sizes",
    "predicted_fallback": "no eligible Variant is predicted to beat the Fallback beyond noise",
    "fallback_wins": "the best-ranked eligible Variant does not beat the Fallback beyond noise",
    "beyond_cutoff_default": "no hint is near enough; the default Variant won at the nearest",
    "beyond_cutoff_fallback": "no hint is near enough; the default Variant did not win there",
    "no_eligible_variant": "no Variant's Guard holds for these sizes and addresses",
    "no_complete_hint": "the default Variant and this Fallback are measured at no hint yet",
    "no_variant": "the Table has no verified default Variant",
    "no_table": "there is no Table for this Kernel yet",
    "zero_elements": "a size is zero: there is nothing to launch",
    "pinned": "an operator pinned it at these sizes, or everywhere",
}
"""Every reason that a Selection may give, and what it means. Stable across releases."""


class Selection(NamedTuple):
    """The answer to "what runs at these sizes". A tuple, since calls make it: a third of the time.

    `variant` is a position in `Table.variants`, or `FALLBACK`. `hint` is where the answer came
    from, empty if from none; `distance` is the log2 distance to it. `expected_regret` is the
    relative loss against the fastest that may run, known where the search has ended at these very
    sizes, and estimated where times are predicted. `tier` is the tier that serves: 0 for a
    Fallback by lack of anything better.
    """

    variant: int
    hint: Dims
    distance: float
    expected_regret: float | None
    reason: str
    generation: int
    tier: int


Alternative: TypeAlias = tuple[tuple[Aligned, ...], Selection]
Alternatives: TypeAlias = tuple[Alternative, ...]


class Choice(NamedTuple):
    """What sizes alone decide: Selections in order, each with the pointer facts that it needs.

    The last one needs none. `is_covered` says whether the sizes' bucket is tuned for this step;
    where it is not, ask for it.
    """

    alternatives: Alternatives
    is_covered: bool

    def pick(self, addresses: Sequence[int]) -> Selection:
        """The first Selection whose pointer facts hold for the parameters' addresses.

        An alignment may stand for an address. An address that is missing meets no fact.
        """
        for facts, selection in self.alternatives:
            for fact in facts:
                if fact.parameter >= len(addresses) or addresses[fact.parameter] % fact.to_bytes:
                    break
            else:
                return selection
        return self.alternatives[-1][1]
