"""How far two recordings of the same sizes agree, from their matrices; no device is needed.

    python -m tests.benchmarks.selection_repeats --from-matrix FILE --again FILE

Sizes of the same Kernel that both have are compared by the binaries that both timed in contests.
`pairs` says how much the ratio of a Variant's time to the default's differs from one recording to
the other: as a standard deviation (from the median, as few differ much), beside that of which the
spreads within contests would have it, and at how many pairs it is beyond twice the latter. `known`
is what a rule would lose in FILE that knew what the other recording says of each size, and ranked
that as a Table does: noise alone. `slower` counts where the rule that serves is slower in FILE than
the default Variant or the original ops beyond noise; `confirmed` are those that the other recording
has as well, of those of which it says anything; and `worst` has the greatest regrets, in both.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import selection_matrix
from tests.benchmarks.selection_matrix import JUDGED, SCREENED_SPREAD, Account, Case, Judged, Truth

from nearhint_rules.choice import FALLBACK
from nearhint_rules.ranking import beats, rank
from nearhint_rules.regret import ORIGINAL
from nearhint_rules.selectors import SELECTORS
from nearhint_rules.table import Table, Timing

TO_DEVIATION = 1.4826
"""The standard deviation of what is normal, over its median distance from the middle."""
SHOWN = 8


@dataclass(frozen=True, slots=True)
class Repeat:
    """A size in a recording, and what the other one has of the same binaries, by position."""

    case: Case
    truth: Truth
    again: Mapping[int, Timing]


@dataclass(frozen=True, slots=True)
class Pairs:
    """How pairs of times differ between recordings, as logarithms of their ratios."""

    count: int
    deviation: float
    stated: float
    beyond: float


def repeats(first: Iterable[Case], second: Iterable[Case]) -> Iterator[Repeat]:
    """The sizes that both recordings have, of which neither is too wide to judge anything by."""
    others = {case.title: case for case in second}
    for case in first:
        other = others.get(case.title)
        if other is None:
            continue
        truths = {truth.dims: truth for truth in other.held_out if not truth.is_wide}
        places = _by_binary(other.table)
        same = {
            at: places[variant.artifact.sha256]
            for at, variant in enumerate(case.table.variants)
            if variant.artifact.sha256 in places
        }
        same[FALLBACK] = FALLBACK
        for truth in case.held_out:
            if truth.dims in truths and not truth.is_wide:
                there = truths[truth.dims].timings
                again = {
                    at: there[place]
                    for at, place in same.items()
                    if place in there and there[place].spread != SCREENED_SPREAD
                }
                yield Repeat(case, truth, again)


def _by_binary(table: Table) -> dict[str, int]:
    found: dict[str, int] = {}
    for at, variant in enumerate(table.variants):
        found.setdefault(variant.artifact.sha256, at)
    return found


def pairs(found: Iterable[Repeat]) -> Pairs:
    """Of each Variant with the default one; raises `StatisticsError` where there is none."""
    off: list[float] = []
    stated: list[float] = []
    for each in found:
        default = each.case.table.default
        timed = {
            at: (timing, each.again[at])
            for at, timing in each.truth.timings.items()
            if at in each.again and at != FALLBACK and timing.spread != SCREENED_SPREAD
        }
        if default not in timed:
            continue
        base = timed.pop(default)
        for times in timed.values():
            here, there = (
                math.log(time.median_ns / standard.median_ns)
                for time, standard in zip(times, base, strict=True)
            )
            off.append(abs(here - there))
            stated.append(math.hypot(*(timing.spread for timing in (*times, *base))))
    return Pairs(
        len(off),
        TO_DEVIATION * statistics.median(off),
        statistics.median(stated),
        sum(one > 2 * spread for one, spread in zip(off, stated, strict=True)) / len(off),
    )


def known(found: Iterable[Repeat]) -> list[Judged]:
    """What serving by the other recording loses, where that has the default and the ops."""
    judged: list[Judged] = []
    for each in found:
        table = each.case.table
        timings = {at: timing for at, timing in each.again.items() if at in each.truth.timings}
        fallback = timings.pop(FALLBACK, None)
        if fallback is None or table.default not in timings:
            continue
        best, timing = rank(timings, default=table.default, fallback=fallback)[0]
        served = table.variants[best].id if beats(timing, fallback) else ""
        judgement = each.truth.contest(table).judge("known", served)
        if judgement is not None:
            judged.append(
                Judged(each.case.title, each.truth.dims, each.truth.origin, judgement, "", None)
            )
    return judged


def confirmed(each: Repeat, judged: Judged) -> dict[str, bool]:
    """By what the rule was slower than, whether it is in the other recording; if that knows."""
    served, default = _place(each, judged.judgement.served), each.case.table.default
    found: dict[str, bool] = {}
    for name in judged.judgement.slower_than:
        rival = FALLBACK if name == ORIGINAL else default
        if served in each.again and rival in each.again:
            found[name] = beats(each.again[rival], each.again[served])
    return found


def _place(each: Repeat, identity: str) -> int:
    variants = each.case.table.variants
    return next((at for at, variant in enumerate(variants) if variant.id == identity), FALLBACK)


def report_on(first: Sequence[Case], second: Sequence[Case]) -> None:
    """Prints all of it."""
    found = {(each.case.title, each.truth.dims): each for each in repeats(first, second)}
    print(f"{len(found)} sizes in both")
    alike = pairs(found.values())
    print(
        f"pairs {alike.count}: deviation {100 * alike.deviation:.2f} %, by the spreads"
        f" {100 * alike.stated:.2f} %; beyond twice those {100 * alike.beyond:.0f} %"
    )
    print(selection_matrix.HEADER)
    print(Account.of(known(found.values())).line("known"))
    judged = [
        one
        for case in first
        for one in selection_matrix.judge(case, JUDGED, SELECTORS[JUDGED])
        if (case.title, one.dims) in found
    ]
    print(Account.of(judged).line(JUDGED))
    slower = [one for one in judged if one.judgement.slower_than]
    told = [
        any(said.values()) for one in slower if (said := confirmed(found[one.title, one.dims], one))
    ]
    print(f"slower {len(slower)}, confirmed {sum(told)} of {len(told)}")
    for one in sorted(judged, key=lambda one: -one.judgement.regret)[:SHOWN]:
        each = found[one.title, one.dims]
        served, best = (
            each.again.get(_place(each, name))
            for name in (one.judgement.served, one.judgement.best)
        )
        there = f"{100 * (served.median_ns / best.median_ns - 1):.1f} %" if served and best else "-"
        at = "x".join(map(str, one.dims))
        print(f"worst {100 * one.judgement.regret:.1f} %, again {there}: {one.title} at {at}")


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="how far two recordings agree")
    parser.add_argument("--from-matrix", type=Path, required=True, help="what was measured")
    parser.add_argument("--again", type=Path, required=True, help="what was measured once more")
    options = parser.parse_args()
    first, second = (
        list(selection_matrix.cases(selection_matrix.read(file)))
        for file in (options.from_matrix, options.again)
    )
    report_on(first, second)


if __name__ == "__main__":
    main()
