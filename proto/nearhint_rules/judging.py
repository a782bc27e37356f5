"""Judging: what each selector rule would have served at a size where everything was timed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from nearhint_rules.choice import FALLBACK, Choice
from nearhint_rules.metrics import Dims
from nearhint_rules.regret import Contest, Judgement
from nearhint_rules.selectors import SELECTORS
from nearhint_rules.table import Table


def judge(table: Table, dims: Dims, *, fallback: str, contest: Contest) -> tuple[Judgement, ...]:
    """One judgement for each rule whose answer at these sizes was timed.

    By its own answer: what an operator pinned comes before every rule, and is none.
    """
    table = replace(table, pins=())
    timed = {name for name, _ in contest.variants}
    found: list[Judgement] = []
    for name, rule in SELECTORS.items():
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
