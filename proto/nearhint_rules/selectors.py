"""Selectors: the rules by which a Table may be answered from, behind one interface.

    select(table, dims, fallback=...)     one question, answered from nothing but the Table
    Selector(table).step(fallback)        the hot path: remembers, and settles sizes once
    SELECTORS[name].bind(table, fallback) the same, by a rule of one's choice

A Table names the rule that serves it (`Table.selector`); clients and the daemon run the same code.
Every rule obeys the Guards, counts only complete hints, lets the Fallback serve where a Variant
does not beat it beyond noise, and keeps to the cut-off. They differ in whose timings they trust:

    nearest              those of the nearest hint, by the Kernel's named symbols
    interpolated         those of all hints near by, carried over to the sizes by a model of each
                         Variant (`interpolation.py`)
    argument_shapes      PyTorch's rule for its multi-kernels (pull request 163090)
    default_only         none: the default Variant, wherever it beat the Fallback
    middle_hint          those of one hint for all sizes
    floor_power_of_two   those of the hint nearest to the sizes floored to powers of two, as
                         FlashInfer's tuner buckets them
    volume               those of the hint nearest in number of elements, as Kernel Launcher does
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

from nearhint_rules.choice import Choice, Selection
from nearhint_rules.errors import InvalidMessage
from nearhint_rules.expr import Sym
from nearhint_rules.interpolation import InterpolatedSelector
from nearhint_rules.metrics import (
    FLOORED,
    MIDDLE,
    SIZE_RATIO,
    VOLUME,
    ArgumentShapes,
    Dims,
    Metric,
)
from nearhint_rules.selection import StepSelector
from nearhint_rules.table import Table

ASSUMED_ALIGNMENT = 16
"""Bytes that every parameter is taken to be aligned to where its address is not given."""


class BoundSelector(Protocol):
    """A rule for the steps that launch one Table's Kernel and have one Fallback."""

    def work_through(self) -> None:
        """Works out now what the first sizes would else, in milliseconds. Safe under threads."""
        ...

    def choice(self, dims: Dims) -> Choice:
        """As `prepare`, from memory where it is known. Safe under threads."""
        ...

    def prepare(self, dims: Dims) -> Choice:
        """What the sizes decide, worked out from the Table."""
        ...


class SelectorRule(Protocol):
    """A rule, before it is bound to a Table."""

    def bind(self, table: Table | None, fallback: str) -> BoundSelector:
        """The rule for one Table and Fallback; what no size changes is worked out here."""
        ...


@dataclass(frozen=True, slots=True)
class ByMetric:
    """The nearest hint answers, by some metric."""

    metric: Metric

    def bind(self, table: Table | None, fallback: str) -> BoundSelector:
        """Binds `StepSelector` with the metric."""
        return StepSelector(table, fallback, metric=self.metric)


@dataclass(frozen=True, slots=True)
class ByArgumentShapes:
    """`ArgumentShapes`, over what a Table knows of the arguments.

    A Table names no tensors, so the sizes count as those of one argument; `ByMetric` takes an
    `ArgumentShapes` with the shapes of a Kernel's real arguments.
    """

    def bind(self, table: Table | None, fallback: str) -> BoundSelector:
        """Binds `StepSelector` with the metric over one argument."""
        shapes = () if table is None else (tuple(map(Sym, table.symbols)),)
        return StepSelector(table, fallback, metric=ArgumentShapes(call=shapes, key=shapes))


@dataclass(frozen=True, slots=True)
class DefaultOnly:
    """The Table as it was when only its default Variant had been timed."""

    def bind(self, table: Table | None, fallback: str) -> BoundSelector:
        """Binds `StepSelector` to what the Table says of its default Variant."""
        if table is None:
            return StepSelector(None, fallback)
        hints = tuple(
            replace(
                row,
                ranked=tuple(each for each in row.ranked if each[0] == table.default),
                tier=min(row.tier, 1),
            )
            for row in table.hints
        )
        return StepSelector(replace(table, hints=hints, probes=()), fallback)


@dataclass(frozen=True, slots=True)
class Interpolated:
    """Predicted times; the nearest hint where there is too little to predict from."""

    def bind(self, table: Table | None, fallback: str) -> BoundSelector:
        """Binds `InterpolatedSelector`."""
        return InterpolatedSelector(table, fallback)


NEAREST = ByMetric(SIZE_RATIO)
DEFAULT_SELECTOR = "interpolated"
"""The rule that new Tables are served by."""

SELECTORS: Mapping[str, SelectorRule] = MappingProxyType(
    {
        "nearest": NEAREST,
        "interpolated": Interpolated(),
        "argument_shapes": ByArgumentShapes(),
        "default_only": DefaultOnly(),
        "middle_hint": ByMetric(MIDDLE),
        "floor_power_of_two": ByMetric(FLOORED),
        "volume": ByMetric(VOLUME),
    }
)
"""Every rule, by the name that a Table gives."""


def rule_of(table: Table | None) -> SelectorRule:
    """The rule that serves a Table: `NEAREST` where it names none, or one that is not known here.

    A name that is not known is that of a rule newer than this code.
    """
    return SELECTORS[rule_name(table)]


def rule_name(table: Table | None) -> str:
    """The name of `rule_of` a Table."""
    return table.selector if table is not None and table.selector in SELECTORS else "nearest"


def select(
    table: Table | None,
    dims: Sequence[int],
    *,
    fallback: str,
    alignments: Sequence[int] | None = None,
    rule: SelectorRule | None = None,
) -> Selection:
    """What runs at `dims` (the Kernel's sizes, in symbol order) for the step with this Fallback.

    `alignments` are the parameters' addresses, or their alignments in bytes (powers of two); where
    it is None, every parameter is taken to be aligned to `ASSUMED_ALIGNMENT`. `rule` is the
    Table's own if it is None. Raises `InvalidMessage` for the wrong number of sizes.
    """
    _check(table, dims)
    return _pick((rule or rule_of(table)).bind(table, fallback).prepare(tuple(dims)), alignments)


def _check(table: Table | None, dims: Sequence[int]) -> None:
    if table is not None and len(dims) != len(table.symbols):
        raise InvalidMessage("dims", f"{len(dims)} sizes for {len(table.symbols)} symbols")


def _pick(choice: Choice, alignments: Sequence[int] | None) -> Selection:
    if alignments is not None:
        return choice.pick(alignments)
    if all(not ASSUMED_ALIGNMENT % fact.to_bytes for fact in choice.first[0]):
        return choice.first[1]
    last = max((fact.parameter for facts, _ in choice.alternatives for fact in facts), default=-1)
    return choice.pick([ASSUMED_ALIGNMENT] * (last + 1))


def prepare(table: Table | None, dims: Sequence[int], fallback: str) -> Choice:
    """What the sizes decide, by the Table's own rule; nothing is remembered."""
    return rule_of(table).bind(table, fallback).prepare(tuple(dims))


class Selector:
    """Selection from one Table by its own rule, for all steps that launch its Kernel.

    Safe under threads.
    """

    __slots__ = ("_rule", "_steps", "table")

    def __init__(self, table: Table | None) -> None:
        self.table = table
        self._rule = rule_of(table)
        self._steps: dict[str, BoundSelector] = {}

    def step(self, fallback: str) -> BoundSelector:
        """The selector of the steps with this Fallback.

        Always the same one, if the Table has timings of it; so what is kept does not grow with
        what is asked.
        """
        found = self._steps.get(fallback)
        if found is not None:
            return found
        bound = self._rule.bind(self.table, fallback)
        if self.table is None or not any(
            name == fallback for row in self.table.hints for name, _ in row.fallbacks
        ):
            return bound
        return self._steps.setdefault(fallback, bound)

    def select(
        self, dims: Sequence[int], *, fallback: str, alignments: Sequence[int] | None = None
    ) -> Selection:
        """As the function `select`, with what was worked out before."""
        _check(self.table, dims)
        return _pick(self.step(fallback).prepare(tuple(dims)), alignments)
