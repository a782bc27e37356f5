"""Choices: what was selected at given sizes, a Variant or the Fallback, and why.

A Choice is what sizes alone decide; `Choice.pick(addresses)` decides the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from nearhint_rules.guard import Aligned
from nearhint_rules.metrics import Dims

FALLBACK = -1
"""`Selection.variant` where the Fallback is the answer."""

REASONS: Mapping[str, str] = {
    "winner": "the best-ranked eligible Variant at the nearest hint",
    "predicted": "the eligible Variant that is predicted to be fastest at these sizes",
    "predicted_fallback": "the Fallback is predicted to beat every eligible Variant beyond noise",
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


class Selection:
    """The answer to "what runs at these sizes".

    `variant` is a position in `Table.variants`, or `FALLBACK`. `hint` is where the answer came
    from, empty if from none; `distance` is the log2 distance to it. `tier` is the tier that serves:
    0 for a Fallback by lack of anything better. Instead of the expected regret, what works it out
    may be given.
    """

    __slots__ = ("_regret", "distance", "generation", "hint", "reason", "tier", "variant")

    def __init__(
        self,
        variant: int,
        hint: Dims,
        distance: float,
        expected_regret: float | Callable[[], float | None] | None,
        reason: str,
        generation: int,
        tier: int,
    ) -> None:
        self.variant = variant
        self.hint = hint
        self.distance = distance
        self._regret = expected_regret
        self.reason = reason
        self.generation = generation
        self.tier = tier

    @property
    def expected_regret(self) -> float | None:
        """The relative loss against the fastest that may run: known where the search has ended at
        these very sizes, estimated where times are predicted, else None.

        No call asks what it may lose, so an estimate is worked out when it is first read, and
        remembered.
        """
        regret = self._regret
        if callable(regret):
            regret = self._regret = regret()
        return regret

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Selection):
            return NotImplemented
        return self._known() == other._known() and self.expected_regret == other.expected_regret

    def __hash__(self) -> int:
        return hash(self._known())

    def __repr__(self) -> str:
        names = ("variant", "hint", "distance", "reason", "generation", "tier")
        said = dict(zip(names, self._known(), strict=True), expected_regret=self.expected_regret)
        return f"Selection({', '.join(f'{name}={value!r}' for name, value in said.items())})"

    def _known(self) -> tuple[object, ...]:
        """What is there without being asked for."""
        return self.variant, self.hint, self.distance, self.reason, self.generation, self.tier


Alternative: TypeAlias = tuple[tuple[Aligned, ...], Selection]
Alternatives: TypeAlias = tuple[Alternative, ...]


class Choice:
    """What sizes alone decide: Selections in order, each with the pointer facts that it needs.

    `first` is the first of them, and always there. Hardly any call needs the others, so they are
    worked out when they are first asked for: by `pick`, for an address that does not meet the first
    one's facts, or by `rest` and `alternatives`. They are remembered from then on. No lock is
    taken: two threads that ask at once both work out the same. Until then a Choice keeps, besides
    what it says, no more than where to ask; it compares and prints as if all were there.

    The last alternative needs no facts. `is_covered` says whether the sizes' bucket is tuned for
    this step; where it is not, ask for it.

    >>> of = [Selection(variant, (), 0.0, None, "winner", 1, 2) for variant in range(2)]
    >>> choice = Choice(((Aligned(0, 16),), of[1]), True, lambda: (((), of[0]),))
    >>> [choice.pick([address]).variant for address in (32, 8)]
    [1, 0]
    """

    __slots__ = ("_rest", "first", "is_covered")

    def __init__(
        self,
        first: Alternative,
        is_covered: bool,
        rest: Alternatives | Callable[[], Alternatives] = (),
    ) -> None:
        self.first = first
        self.is_covered = is_covered
        self._rest = rest

    @property
    def rest(self) -> Alternatives:
        """The alternatives after the first: what serves where its pointer facts do not hold."""
        rest = self._rest
        if not isinstance(rest, tuple):
            rest = self._rest = rest()
        return rest

    @property
    def alternatives(self) -> Alternatives:
        """All of them, in order."""
        return (self.first, *self.rest)

    def pick(self, addresses: Sequence[int]) -> Selection:
        """The first Selection whose pointer facts hold for the parameters' addresses.

        An alignment may stand for an address. An address that is missing meets no fact.
        """
        facts, selection = self.first
        for fact in facts:
            if fact.parameter >= len(addresses) or addresses[fact.parameter] % fact.to_bytes:
                break
        else:
            return selection
        for facts, selection in self.rest:
            if all(
                fact.parameter < len(addresses) and not addresses[fact.parameter] % fact.to_bytes
                for fact in facts
            ):
                return selection
        return selection

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Choice):
            return NotImplemented
        return self.is_covered == other.is_covered and self.alternatives == other.alternatives

    def __hash__(self) -> int:
        return hash((self.first, self.is_covered))

    def __repr__(self) -> str:
        return f"Choice(alternatives={self.alternatives!r}, is_covered={self.is_covered!r})"
