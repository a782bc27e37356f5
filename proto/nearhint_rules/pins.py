"""Pins: what an operator fixed comes before what a rule of selection answers.

    Pins(table, fallback).before(choice, dims)    `choice`, with what is pinned there in front of it

A pin at sizes holds for their bucket, and comes before the one that holds everywhere. A pinned
Variant answers where its Guard holds and where this step's Fallback was measured at some hint, for
only then is it known that the Kernel computes what the Fallback does; elsewhere the answer is what
it would be without the pin. Whether the sizes are covered does not change: tuning goes on below a
pin, so that what comes when it is taken off is as good as without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearhint_rules.candidates import SizeFacts
from nearhint_rules.choice import Alternative, Choice, Selection
from nearhint_rules.guard import Aligned
from nearhint_rules.hints import bucket
from nearhint_rules.metrics import Dims
from nearhint_rules.table import HintRow, Pin, Table

REASON = "pinned"
"""`Selection.reason` of a pin's answer."""


@dataclass(frozen=True, slots=True)
class _Pinned:
    """A pin ready to answer. `position` is the Variant's, or -1 for the Fallback."""

    position: int
    needs: int
    pointer_facts: tuple[Aligned, ...]


class Pins:
    """A Table's pins for the steps with one Fallback."""

    __slots__ = ("_at", "_everywhere", "_facts", "_fallback", "_rows")

    def __init__(self, table: Table, fallback: str) -> None:
        self._fallback = fallback
        self._facts = SizeFacts(table.symbols)
        self._rows = {row.dims: row for row in table.hints}
        is_checked = any(name == fallback for row in table.hints for name, _ in row.fallbacks)
        usable = [pin for pin in table.pins if is_checked or not pin.variant]
        self._at = {bucket(pin.dims): self._pinned(table, pin) for pin in usable if pin.dims}
        self._everywhere = next((self._pinned(table, pin) for pin in usable if not pin.dims), None)

    def before(self, choice: Choice, dims: Dims) -> Choice:
        """The answer at `dims`, all of them 1 or more, where a rule of selection gave `choice`."""
        missing = ~self._facts.held(dims)
        found: list[Alternative] = []
        for pinned in (self._at.get(bucket(dims)), self._everywhere):
            if pinned is None or pinned.needs & missing:
                continue
            found.append((pinned.pointer_facts, self._selection(pinned, choice, dims)))
            if not pinned.pointer_facts:
                return Choice(found[0], choice.is_covered, tuple(found[1:]))
        if not found:
            return choice
        first, *others = found
        return Choice(first, choice.is_covered, lambda: (*others, *choice.alternatives))

    def _pinned(self, table: Table, pin: Pin) -> _Pinned:
        if not pin.variant:
            return _Pinned(-1, 0, ())
        position = next(at for at, each in enumerate(table.variants) if each.id == pin.variant)
        needs = 0
        pointer_facts: list[Aligned] = []
        for fact in table.variants[position].guard.facts:
            if isinstance(fact, Aligned):
                pointer_facts.append(fact)
            else:
                needs |= self._facts.bit(fact)
        return _Pinned(position, needs, tuple(pointer_facts))

    def _selection(self, pinned: _Pinned, choice: Choice, dims: Dims) -> Selection:
        """What the rule would have answered, with the pinned Variant or Fallback in its place."""
        _, instead = choice.first
        row = self._rows.get(dims)
        return Selection(
            pinned.position,
            instead.hint,
            instead.distance,
            None if row is None else self._regret(pinned, instead, row),
            REASON,
            instead.generation,
            instead.tier if pinned.position < 0 else max(1, instead.tier),
        )

    def _regret(self, pinned: _Pinned, instead: Selection, row: HintRow) -> float | None:
        """The pin's relative loss against the fastest, where the rule knows its own."""
        ranked, fallbacks = dict(row.ranked), dict(row.fallbacks)
        timing = (
            fallbacks.get(self._fallback) if pinned.position < 0 else ranked.get(pinned.position)
        )
        served = (
            fallbacks.get(self._fallback) if instead.variant < 0 else ranked.get(instead.variant)
        )
        if timing is None or served is None or instead.expected_regret is None:
            return None
        least_ns = served.median_ns / (1 + instead.expected_regret)
        return max(0.0, timing.median_ns / least_ns - 1)
