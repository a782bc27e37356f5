"""Matrices of real costs: Tables as served, and what every Variant takes at sizes beside them.

A file is JSON, compressed where its name ends in `.gz`:

    {"conditions", "kernels": [{"title", "table": hex of a nearhint.v1.Table, "fallback", "ranges",
     "hints": [SIZE], "held_out": [SIZE], ...}], ...}

where a SIZE is `{"dims", "origin", "variants_ns": {position: ns}, "spreads": {position: relative},
"fallback_ns", "fallback_spread"}`. At hints everything was timed as well, so that Tables with other
timings or hints than the served ones can be made of a file.

Sizes that were timed again have `"again": [CONTEST]`, each with the same four names for its times.
What is confirmed there is the median of each contestant's times: of contests that are held on their
own, one may have been disturbed in a way that its samples do not show. It is not a vote on who
fails, since regrets are figures, and the least of medians is less often the luckiest of many times.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.benchmarks.sweep_report import Bar

from nearhint_daemon.workers.contest import WIDE
from nearhint_proto.convert import table_from_proto, table_to_proto
from nearhint_proto.v1 import types_pb2
from nearhint_rules.choice import FALLBACK
from nearhint_rules.companions import sided_companions
from nearhint_rules.metrics import Dims
from nearhint_rules.regret import DEFAULT, ORIGINAL, Contest, Judgement, Summary, summarise
from nearhint_rules.selectors import SELECTORS, SelectorRule
from nearhint_rules.table import Table, Timing

SCREENED_SPREAD = 0.1
"""What stands for the spread of a Variant that was screened alone, by a few cold launches: such a
time is mostly too long."""
ALIGNED = (512,) * 16
"""Addresses that meet every alignment, as those of the contests do."""
EFFICIENCY_BAR: Mapping[str, float] = {"cuda": 0.97, "cpu": 0.95}
P95_BAR, WORST_BAR, MEAN_BAR, RIVAL_BAR = 0.08, 0.20, 0.025, 2.0
JUDGED, RIVAL = "interpolated", "argument_shapes"


@dataclass(frozen=True, slots=True)
class Truth:
    """What was timed at one size, by position in the Table; the Fallback is `FALLBACK`.

    `again` are the contests that were held there later.
    """

    dims: Dims
    origin: str
    timings: Mapping[int, Timing]
    again: tuple[Mapping[int, Timing], ...] = ()

    @property
    def is_wide(self) -> bool:
        """Whether even the fastest is not known well enough to judge anything by."""
        return best_of(self.timings).spread > WIDE

    @property
    def raced(self) -> list[int]:
        """What was timed in the first contest, and not screened alone."""
        return [at for at, timing in self.timings.items() if timing.spread != SCREENED_SPREAD]

    @property
    def confirmed(self) -> Truth:
        """What all contests say whose fastest is known; the first where that decides nothing."""
        if not self.again:
            return self
        contests = [each for each in (self.timings, *self.again) if best_of(each).spread <= WIDE]
        timings = {
            at: _middle([contest[at] for contest in contests if at in contest])
            for at in dict.fromkeys(at for contest in contests for at in contest)
        }
        found = replace(self, timings=timings, again=())
        return self if found.is_wide else found

    def contest(self, table: Table) -> Contest:
        """The same by identity."""
        return Contest(
            tuple(
                (table.variants[position].id, timing)
                for position, timing in self.timings.items()
                if position != FALLBACK
            ),
            self.timings[FALLBACK],
            table.variants[table.default].id,
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A Kernel's Table, and what is true at its hints and at held-out sizes."""

    title: str
    table: Table
    fallback: str
    hints: tuple[Truth, ...]
    held_out: tuple[Truth, ...]


def best_of(timings: Mapping[int, Timing]) -> Timing:
    """The timing of the fastest."""
    return min(timings.values(), key=lambda timing: timing.median_ns)


def _middle(timings: Sequence[Timing]) -> Timing:
    """The median of times, but for what was screened alone where some were not."""
    raced = [each for each in timings if each.spread != SCREENED_SPREAD] or timings
    return Timing(
        round(statistics.median(each.median_ns for each in raced)),
        statistics.median(each.spread for each in raced),
    )


def as_entry(case: Case, **facts: Any) -> dict[str, Any]:
    """A Kernel for a file."""
    return {
        "title": case.title,
        "table": table_to_proto(case.table).SerializeToString().hex(),
        "fallback": case.fallback,
        **facts,
        "hints": [_size(truth) for truth in case.hints],
        "held_out": [_size(truth) for truth in case.held_out],
    }


def _size(truth: Truth) -> dict[str, Any]:
    size = {"dims": truth.dims, "origin": truth.origin, **_contest(truth.timings)}
    return size | {"again": list(map(_contest, truth.again))} if truth.again else size


def _contest(timings: Mapping[int, Timing]) -> dict[str, Any]:
    variants = {at: timing for at, timing in timings.items() if at != FALLBACK}
    fallback = timings[FALLBACK]
    return {
        "variants_ns": {at: timing.median_ns for at, timing in variants.items()},
        "spreads": {at: round(timing.spread, 4) for at, timing in variants.items()},
        "fallback_ns": fallback.median_ns,
        "fallback_spread": round(fallback.spread, 4),
    }


def _truth(size: Mapping[str, Any]) -> Truth:
    again = tuple(map(_timings, size.get("again", ())))
    return Truth(tuple(size["dims"]), size["origin"], _timings(size), again)


def _timings(contest: Mapping[str, Any]) -> dict[int, Timing]:
    spreads = contest["spreads"]
    timings = {int(at): Timing(ns, spreads[at]) for at, ns in contest["variants_ns"].items()}
    timings[FALLBACK] = Timing(contest["fallback_ns"], contest["fallback_spread"])
    return timings


def cases(report: Mapping[str, Any]) -> Iterator[Case]:
    """The Kernels of a file."""
    for entry in report["kernels"]:
        yield Case(
            entry["title"],
            table_from_proto(types_pb2.Table.FromString(bytes.fromhex(entry["table"]))),
            entry["fallback"],
            tuple(map(_truth, entry["hints"])),
            tuple(map(_truth, entry["held_out"])),
        )


def without_sided_rows(report: Mapping[str, Any]) -> dict[str, Any]:
    """A file whose Tables have no companions that are odd in one of several sizes."""
    kernels = []
    for entry, case in zip(report["kernels"], cases(report), strict=True):
        gone = sided_companions(case.table)
        rows = tuple(row for row in case.table.hints if row.dims not in gone)
        kept = table_to_proto(replace(case.table, hints=rows))
        kernels.append({**entry, "table": kept.SerializeToString().hex()})
    return {**report, "kernels": kernels}


def write(report: Mapping[str, Any], file: Path) -> None:
    """Replaces the file at once, so that a kill leaves it as it was last written."""
    text = json.dumps(report, separators=(",", ":")).encode()
    draft = file.with_name(f"{file.name}.part")
    draft.write_bytes(gzip.compress(text, 6) if file.suffix == ".gz" else text)
    os.replace(draft, file)


def read(file: Path) -> dict[str, Any]:
    """A file that `write` wrote."""
    content = file.read_bytes()
    found: dict[str, Any] = json.loads(
        gzip.decompress(content) if file.suffix == ".gz" else content
    )
    return found


@dataclass(frozen=True, slots=True)
class Judged:
    """One rule's answer at one size of one Kernel; `stated` is the regret that it expected.

    `is_raced`: what it serves was timed in a contest, and not screened alone. `confirmed` is the
    judgement by all contests that were held there, if there were several.
    """

    title: str
    dims: Dims
    origin: str
    judgement: Judgement
    reason: str
    stated: float | None
    is_raced: bool = True
    confirmed: Judgement | None = None

    @property
    def fails(self) -> bool:
        """Whether it breaks a bar that holds at each size."""
        return bool(self.judgement.slower_than) or self.judgement.regret > WORST_BAR


def as_confirmed(judged: Iterable[Judged]) -> list[Judged]:
    """The same by all contests that were held at each size."""
    return [
        each if each.confirmed is None else replace(each, judgement=each.confirmed)
        for each in judged
    ]


def too_wide(found: Iterable[Case]) -> list[tuple[str, Dims]]:
    """The held-out sizes of Kernels at which nothing is judged: what is true there is not known."""
    return [(case.title, truth.dims) for case in found for truth in case.held_out if truth.is_wide]


def judge(case: Case, name: str, rule: SelectorRule) -> list[Judged]:
    """A rule at each held-out size of a Kernel whose answer was timed there, none of them wide."""
    bound = rule.bind(case.table, case.fallback)
    found: list[Judged] = []
    for truth in case.held_out:
        if truth.is_wide:
            continue
        selection = bound.prepare(truth.dims).pick(ALIGNED)
        served = "" if selection.variant == FALLBACK else case.table.variants[selection.variant].id
        judgement = truth.contest(case.table).judge(name, served)
        confirmed = truth.confirmed.contest(case.table).judge(name, served) if truth.again else None
        if judgement is not None:
            found.append(
                Judged(
                    case.title,
                    truth.dims,
                    truth.origin,
                    judgement,
                    selection.reason,
                    selection.expected_regret,
                    truth.timings[selection.variant].spread != SCREENED_SPREAD,
                    confirmed,
                )
            )
    return found


@dataclass(frozen=True, slots=True)
class Account:
    """What a rule loses over many sizes, and at how many it was slower than what it stands for."""

    summary: Summary
    slower_than_default: int
    slower_than_original: int
    worst: Judged

    @staticmethod
    def of(judged: Sequence[Judged]) -> Account:
        """Of at least one size."""
        slower = [name for each in judged for name in each.judgement.slower_than]
        return Account(
            summarise([each.judgement.regret for each in judged]),
            slower.count(DEFAULT),
            slower.count(ORIGINAL),
            max(judged, key=lambda each: each.judgement.regret),
        )

    def figures(self) -> dict[str, Any]:
        """For a report."""
        summary = self.summary
        return {
            "sizes": summary.sizes,
            "share": summary.efficiency,
            "mean": summary.mean,
            "p95": summary.p95,
            "worst": summary.worst,
            "worst_at": self.worst.dims,
            "slower_than_default": self.slower_than_default,
            "slower_than_original": self.slower_than_original,
        }

    def line(self, name: str) -> str:
        """For people."""
        summary, worst = self.summary, self.worst
        at = "x".join(map(str, worst.dims))
        return (
            f"{name:20}{100 * summary.efficiency:8.2f}{100 * summary.mean:8.2f}"
            f"{100 * summary.p95:8.1f}{100 * summary.worst:9.1f}"
            f"{self.slower_than_default:10}{self.slower_than_original:7}"
            f"  {worst.title} at {at} ({worst.reason})"
        )


HEADER = (
    f"{'rule':20}{'share %':>8}{'mean %':>8}{'p95 %':>8}{'worst %':>9}{'<default':>10}{'<ops':>7}"
)


def judge_all(found: Sequence[Case]) -> dict[str, list[Judged]]:
    """Every rule at every size of every Kernel."""
    return {
        name: [each for case in found for each in judge(case, name, rule)]
        for name, rule in SELECTORS.items()
    }


def bars(judged: Mapping[str, Sequence[Judged]], device: str) -> list[Bar]:
    """What the rule that serves must meet, by what is confirmed."""
    account, rival = (Account.of(as_confirmed(judged[name])) for name in (JUDGED, RIVAL))
    summary, count = account.summary, account.summary.sizes
    slower = account.slower_than_default + account.slower_than_original
    ratio = rival.summary.mean / max(summary.mean, 1e-9)
    return [
        Bar("share of the oracle", summary.efficiency, EFFICIENCY_BAR[device], points=count),
        Bar("mean regret", summary.mean, MEAN_BAR, is_ceiling=True, points=count),
        Bar("p95 regret", summary.p95, P95_BAR, is_ceiling=True, points=count),
        Bar("worst regret", summary.worst, WORST_BAR, is_ceiling=True, points=count),
        Bar("slower than default or ops", slower, 0, is_ceiling=True, points=count),
        Bar(f"{RIVAL}'s mean regret over it", ratio, RIVAL_BAR, points=count),
    ]
