"""What `quick` reaches of what `max` does, and in how much of its device time.

A few Kernels together, so that some are compiled while others are measured, and a run that ends
early has compared some to the end: tuned at both efforts, each by a daemon of its own, and what the
two Tables serve at each hint timed in one contest. Device time is that of the daemons' own jobs for
these Kernels, for as long as they have the device, whatever the host does meanwhile: `timed_s` of
measuring, `device_s` of checks and of verifying as well.

--resume keeps what the matrix file has of Kernels that were compared before and does the others, so
that 14 Kernels need not fit into one run: of those that are tuned together, three took half a
minute at two hints each.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any

import torch
from tests.benchmarks import selection_matrix
from tests.benchmarks.cpu_kernels import geometric_mean
from tests.benchmarks.selection_bench import (
    STORAGE_BYTES,
    Bench,
    captures,
    open_tuning,
    symbols_near,
    tuned,
)
from tests.benchmarks.selection_timing import (
    Arena,
    Prepared,
    Screen,
    Storage,
    arena,
    originals,
    screen_on,
)
from tests.benchmarks.selection_tuning import PHASES, Captured, Tuning
from tests.benchmarks.sweep_report import Bar, say

from nearhint_rules.choice import FALLBACK
from nearhint_rules.metrics import Dims
from nearhint_rules.selectors import select

QUICK, MOST = "quick", "max"
QUICK_SHARE, QUICK_TIME = 0.95, 0.10
ROUNDS = 3
OURS, THEIRS = 0, 1


def compare(bench: Bench) -> None:
    """Compares as many Kernels as the time allows; the report goes to the matrix file."""
    done = compared_before(bench)
    known = {title for entry in done for title in entry["shares"]}
    longest_s = 0.0
    with torch.no_grad(), ExitStack() as stack:
        servings = {effort: stack.enter_context(bench.serving()) for effort in (QUICK, MOST)}
        tunings = {effort: open_tuning(bench, serving) for effort, serving in servings.items()}
        storage = Storage(bench.options.device, STORAGE_BYTES[bench.kind])
        screen = screen_on(bench.options.device)
        coming = captures(bench, [], without=known)
        while together := tuple(islice(coming, bench.options.together)):
            started = time.monotonic()
            if started + longest_s > bench.end_s:
                bench.report["left_out"] |= dict.fromkeys(map(title_of, together), "no time")
                continue
            entry = _compared(bench, together, tunings, storage, screen)
            longest_s = max(longest_s, time.monotonic() - started)
            if entry is not None:
                done.append(entry)
                bench.report["efforts"] = {"by_kernels": done, **summary(done)}
            bench.write()
        for tuning in tunings.values():
            tuning.connection.close()
    say(f"compared {summary(done)['kernels']} Kernels; left out: {bench.report['left_out']}")
    for phase, spent in summary(done)["phases"].items():
        say(f"  {phase}: " + ", ".join(f"{effort} {each:.2f} s" for effort, each in spent.items()))
    for bar in bars(done):
        say(bar.line())


def compared_before(bench: Bench) -> list[dict[str, Any]]:
    """What the matrix file has of an earlier run that this one goes on with."""
    path = bench.options.matrix
    if not bench.options.resume or path is None or not path.exists():
        return []
    before = selection_matrix.read(path)
    bench.report["before"] = [*before.get("before", ()), before["conditions"]]
    bench.report["efforts"] = before.get("efforts", {"by_kernels": []})
    return list(bench.report["efforts"]["by_kernels"])


def title_of(captured: Captured) -> str:
    """What a Kernel is called."""
    return captured.subject.sweep.title


def _compared(
    bench: Bench,
    together: Sequence[Captured],
    tunings: Mapping[str, Tuning],
    storage: Storage,
    screen: Screen,
) -> dict[str, Any] | None:
    """Some Kernels at both efforts; None where one of these did not end in time."""
    spent: dict[str, dict[str, Any]] = {}
    for effort, tuning in tunings.items():
        spent[effort] = tuned(bench, tuning, together, effort)
        if not spent[effort]["is_done"]:
            bench.report["left_out"] |= dict.fromkeys(map(title_of, together), "not tuned in time")
            return None
    found: dict[str, dict[str, float]] = {}
    for captured in together:
        try:
            quick, most = (
                _arena(bench, captured, tuning, storage, screen) for tuning in tunings.values()
            )
            found[title_of(captured)] = shares(quick, most)
        except Exception as error:  # the other Kernels are worth having
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}"[:500]
            bench.report["left_out"][title_of(captured)] = reason
    entry = {
        "shares": found,
        "timed_s": {effort: facts.get("bench_sum", 0.0) for effort, facts in spent.items()},
        "device_s": {
            effort: sum(facts.get(f"{phase}_sum", 0.0) for phase in PHASES)
            for effort, facts in spent.items()
        },
        "spent": spent,
    }
    say(f"{', '.join(found)}: {line_of([entry])}")
    return entry


def _arena(
    bench: Bench, captured: Captured, tuning: Tuning, storage: Storage, screen: Screen
) -> Arena:
    table = tuning.table(captured.kernel_id)
    if table is None or table.default < 0:
        raise ValueError("no Variant")
    return arena(captured, table, tuning, storage, screen, bench.options.device)


def shares(quick: Arena, most: Arena) -> dict[str, float]:
    """At each hint that both have, the time of what `max` serves over that of `quick`."""
    found: dict[str, float] = {}
    common = {row.dims for row in quick.table.hints}
    for row in most.table.hints:
        symbols = symbols_near(most.captured, row.dims)
        if row.dims in common and most.captured.dims(symbols) == row.dims:
            found["x".join(map(str, row.dims))] = _share(quick, most, row.dims, symbols)
    return found


def _share(quick: Arena, most: Arena, dims: Dims, symbols: Mapping[str, int]) -> float:
    ours, theirs = served(quick, dims), served(most, dims)
    if binary_of(quick, ours) == binary_of(most, theirs):
        return 1.0
    # The same sizes are laid out alike in the storage: both are called on the same inputs.
    first, second = quick.prepared(symbols), most.prepared(symbols)
    both = Prepared({OURS: first.calls[ours], THEIRS: second.calls[theirs]}, second.moved)
    ratios: list[float] = []
    for _ in range(ROUNDS):
        times = most.race(both.calls, both, protected=tuple(both.calls))
        ratios.append(times[THEIRS].median_ns / times[OURS].median_ns)
    return sorted(ratios)[ROUNDS // 2]


def served(where: Arena, dims: Dims) -> int:
    """What a Table serves: the position of the binary that is loaded for it, or the Fallback's."""
    selection = select(
        where.table,
        dims,
        fallback=where.captured.fallback.id,
        alignments=selection_matrix.ALIGNED,
    )
    return dict(originals(where.table)).get(selection.variant, FALLBACK)


def binary_of(where: Arena, position: int) -> str:
    """What tells binaries apart; empty: the original ops."""
    return "" if position == FALLBACK else where.table.variants[position].artifact.sha256


def summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    """The geometric mean of the shares, and what part of the time `quick` took."""
    kernels = [shares for entry in done for shares in entry["shares"].values()]
    ratios = [ratio for shares in kernels for ratio in shares.values()]
    return {
        "kernels": len(kernels),
        "points": len(ratios),
        "share": geometric_mean(ratios) if ratios else 0.0,
        "timed_share": _time_share(done, "timed_s"),
        "device_share": _time_share(done, "device_s"),
        "phases": {
            phase: {effort: _spent(done, effort, phase) for effort in (QUICK, MOST)}
            for phase in PHASES
        },
    }


def _spent(done: list[dict[str, Any]], effort: str, phase: str) -> float:
    """Seconds that one phase of an effort had the device for."""
    return float(sum(entry["spent"][effort].get(f"{phase}_sum", 0.0) for entry in done))


def _time_share(done: list[dict[str, Any]], field: str) -> float:
    most = sum(entry[field][MOST] for entry in done)
    return sum(entry[field][QUICK] for entry in done) / most if most else 0.0


def bars(done: list[dict[str, Any]]) -> list[Bar]:
    """What `quick` must reach; nothing where nothing was compared."""
    if not done:
        return []
    facts = summary(done)
    points, count = facts["points"], facts["kernels"]
    return [
        Bar("quick's share of max", facts["share"], QUICK_SHARE, points=points),
        Bar("quick's share of the time", facts["timed_share"], QUICK_TIME, True, count),
        Bar("with verifying", facts["device_share"], QUICK_TIME, True, count),
    ]


def line_of(done: list[dict[str, Any]]) -> str:
    """For people."""
    facts = summary(done)
    return (
        f"quick reaches {100 * facts['share']:.1f} % of max at {facts['points']} hints in"
        f" {100 * facts['timed_share']:.1f} % of the time that max measures,"
        f" {100 * facts['device_share']:.1f} % of its device time"
    )
