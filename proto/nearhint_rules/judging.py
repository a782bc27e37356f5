"""Judging: what each selector rule would have served at a size where everything was timed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from nearhint_rules import expr as ex
from nearhint_rules.metrics import SIZE_RATIO, ArgumentShapes, Dims, Metric
from nearhint_rules.regret import Contest, Judgement
from nearhint_rules.selection import FALLBACK, Choice, StepSelector
from nearhint_rules.table import Table


class BoundSelector(Protocol):
    """A rule that answers from one Table, for the steps with one Fallback."""

    def prepare(self, dims: Dims) -> Choice:
        """What the sizes decide."""
        ...


class SelectorRule(Protocol):
    """A rule that says what runs at sizes."""

    def bind(self, table: Table, fallback: str) -> BoundSelector:
        """The rule over this Table."""
        ...


@dataclass(frozen=True, slots=True)
class _ByMetric:
    metric_of: Callable[[Table], Metric]

    def bind(self, table: Table, fallback: str) -> BoundSelector:
        return StepSelector(table, fallback, metric=self.metric_of(table))


def selector_rules() -> Mapping[str, SelectorRule]:
    """Every rule that is judged, by its name."""
    return _RULES


def serving_rule(table: Table) -> str:
    """The name of the rule that serves a Table."""
    del table
    return NEAREST


def judge(table: Table, dims: Dims, *, fallback: str, contest: Contest) -> tuple[Judgement, ...]:
    """One judgement for each rule whose answer at these sizes was timed."""
    timed = {name for name, _ in contest.variants}
    found: list[Judgement] = []
    for name, rule in selector_rules().items():
        served = _served(rule.bind(table, fallback).prepare(dims), table, timed)
        judgement = contest.judge(name, served)
        if judgement is not None:
            found.append(judgement)
    return tuple(found)


def _served(choice: Choice, table: Table, timed: Collection[str]) -> str:
    """The identity of the Variant that serves; empty: the Fallback.

    A Variant was timed where its Guard held, so that decides which pointer facts did.
    """
    for facts, selection in choice.alternatives:
        variant = "" if selection.variant == FALLBACK else table.variants[selection.variant].id
        if not facts or not variant or variant in timed:
            return variant
    return ""


def _shapes_of(table: Table) -> Metric:
    """The Kernel's symbols as if they were one tensor's sizes: a Table knows of no tensors."""
    sizes = (tuple(map(ex.symbol, table.symbols)),)
    return ArgumentShapes(sizes, sizes)


NEAREST = "nearest"
_RULES: Mapping[str, SelectorRule] = {
    NEAREST: _ByMetric(lambda table: SIZE_RATIO),
    "argument_shapes": _ByMetric(_shapes_of),
}
