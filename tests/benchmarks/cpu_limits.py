"""What limits the transposed reads of the CPU sweep: the machine's own copies in the same order.

    python -m tests.benchmarks.cpu_limits [--report FILE] [--only PATTERN] [--pairs N] [--json FILE]

Points are the transposed cases that are over their bar in a report of `cpu_sweep` or, where none is
given, all of them. At each take part, in interleaved rounds, outputs allocated by everyone:

- what is served, on a contiguous tensor and on one of the other strides, torch's guards included;
- the best Variant of the space at these sizes, for each, without anything around it;
- torch's `contiguous()` of the transposed tensor;
- a copy: the same bytes moved straight, by torch;
- movers: the same bytes in the transposed order, moved by C that is written by hand for that alone
  (`cpu_mover.c`) in each of a few ways, of which the fastest counts.

The limit is what the straight function would take with the order's price on top: its time, and what
the mover takes more than the copy, over its time. Movers are for elements of two bytes and AVX-512;
elsewhere there is none, and no limit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks import sweep_report
from tests.benchmarks.cpu_cases import Case
from tests.benchmarks.cpu_kernels import SEARCH_PAIRS, Bench, bare_launch, capture_case, interleaved
from tests.benchmarks.cpu_sweep import TRANSPOSED_BAR, served_layouts, with_other_strides
from tests.benchmarks.cpu_sweep_cases import TRANSPOSED, Layouts
from tests.benchmarks.serving import Serving, cpu_conditions
from tests.benchmarks.sweep_report import say
from tests.benchmarks.sweeps import is_chosen
from torch import Tensor

from nearhint.launchers import load
from nearhint.launchers.detect import cpu_device
from nearhint_compiler.codegen import Generated
from nearhint_daemon.workers.cc import compile_c
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CpuLaunch
from nearhint_rules.plan import Launch

DEFAULT_PAIRS = 31
STRAIGHT_SERVED, SERVED = "straight, served", "transposed, served"
STRAIGHT, OURS = "straight, best", "transposed, best"
TORCH, COPY, MOVER = "torch, contiguous()", "copy", "mover"
SOURCE = Path(__file__).with_name("cpu_mover.c")
MOVED_BYTES, LEAST_SIDE = 2, 32
"""Of the elements that movers are for, and of the sides that they take."""
MOVERS_KEPT = 3
"""Movers that are compared, of those that were fastest on their own."""
NEEDS = ("avx512bw", "avx512dq", "avx512f", "avx512vl")
"""The instruction sets of a mover."""
WAYS: tuple[tuple[str, ...], ...] = tuple(
    (*lines, f"-DTALL={tall}", f"-DWIDE={wide}", f"-DAHEAD={ahead}", *order)
    for lines in ((), ("-DWHOLE",))
    for tall, wide, ahead, order in (
        (4, 2, 8, ()),
        (2, 4, 8, ()),
        (16, 4, 8, ()),
        (16, 4, 0, ("-DALONG",)),
        (16, 4, 8, ("-DALONG",)),
    )
)
"""What movers are compiled with; see the source."""

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Entrant:
    """A contestant at a point, and what it is: a Schedule, a mover's flags, torch."""

    role: str
    by: str
    call: Call


def short_points(report: Mapping[str, Any], *, bar: float = TRANSPOSED_BAR) -> dict[str, float]:
    """By name, the ratio of each transposed case of a sweep's report that is over the bar."""
    return {row["name"]: row["ratio"] for row in report["transposed"] if row["ratio"] > bar}


def chosen(
    sweeps: Sequence[Layouts], wanted: Mapping[str, float] | None, patterns: Sequence[str]
) -> list[Layouts]:
    """The sweeps at those of their sizes that are wanted, `None` for all."""
    found: list[Layouts] = []
    for each in sweeps:
        sizes = tuple(
            size
            for size in each.sweep.sizes
            if is_chosen(name_of(each.sweep.case(size)), patterns)
            and (wanted is None or name_of(each.sweep.case(size)) in wanted)
        )
        if sizes:
            found.append(replace(each, sweep=replace(each.sweep, sizes=sizes)))
    return found


def name_of(case: Case) -> str:
    """As `cpu_sweep` names it."""
    return f"transposed {case.name}"


def best(case: Case, arguments: Sequence[Tensor], bench: Bench) -> tuple[str, Call]:
    """The fastest Variant of the space; the function itself where a Plan is more than a launch."""
    captured = capture_case(case, arguments)
    with torch.no_grad():
        captured.run()
    steps = captured.lowered.plan.steps
    if len(steps) != 1 or not isinstance(steps[0], Launch):
        return "torch", partial(case.function, *arguments)
    step = steps[0]
    variants = bench.variants(captured.lowered, step.kernel, captured.handle.snapshot.seen[0])
    calls = [
        bare_launch(step, each.kernel, captured.sizes(), captured.arguments) for each in variants
    ]
    named = zip((str(each.schedule) for each in variants), calls, strict=True)
    return fastest([*named], count=1)[0]


def fastest(named: Sequence[tuple[str, Call]], *, count: int) -> list[tuple[str, Call]]:
    """The calls that take the least, with their names."""
    medians = interleaved([call for _, call in named], SEARCH_PAIRS)
    ranked = sorted(zip(medians, range(len(named)), strict=True))
    return [named[place] for _, place in ranked[:count]]


def movers(turned: Tensor, straight: Tensor | None, folder: Path) -> list[tuple[str, Call]]:
    """One of each way; none for other elements, sides too short, or another machine."""
    if turned.element_size() != MOVED_BYTES or min(turned.shape) < LEAST_SIDE:
        return []
    if not set(NEEDS) <= set(cpu_device().features):
        return []
    inputs = [turned if straight is None else straight, turned]
    ways = [way if straight is None else (*way, "-DADDED") for way in WAYS]
    return [(" ".join(way), mover(way, inputs, folder)) for way in ways]


def mover(flags: Sequence[str], inputs: Sequence[Tensor], folder: Path) -> Call:
    """A mover of the last of `inputs`, whose bits the first changes if the flags say so."""
    launch = CpuLaunch("move", ex.ONE, 1, NEEDS)
    source = SOURCE.read_text(encoding="utf-8")
    generated = Generated("c", source, launch, flags=(*(f"-m{each}" for each in NEEDS), *flags))
    binary = compile_c(generated, scratch=folder).binary
    kernel = load(binary, launch, sha256=hashlib.sha256(binary).hexdigest())
    shape, dtype = inputs[-1].shape, inputs[-1].dtype
    bound: Any = kernel.bind_exactly(list(shape), threads=torch.get_num_threads())
    addresses = [each.data_ptr() for each in inputs]

    def call(_kept: object = inputs) -> Tensor:
        out = torch.empty(shape, dtype=dtype)
        bound([*addresses, out.data_ptr()])
        return out

    return call


def copied(inputs: Sequence[Tensor]) -> Call:
    """As many bytes, moved straight: of two inputs, their bits combined."""
    straight = [each.contiguous() for each in inputs]
    if len(straight) == 1:
        return straight[0].clone
    bits = [each.view(torch.int16) for each in straight]
    return partial(torch.bitwise_xor, *bits)


def bare_entrants(layouts: Layouts, bench: Bench) -> Iterator[tuple[Case, list[Entrant]]]:
    """At each size, what takes part without a daemon."""
    for case in layouts.sweep.cases():
        arguments = case.arguments()
        turned = with_other_strides(arguments, layouts.transposed)
        other = turned[layouts.transposed]
        beside = [each for place, each in enumerate(turned) if place != layouts.transposed]
        found = [
            Entrant(STRAIGHT, *best(case, arguments, bench)),
            Entrant(OURS, *best(case, turned, bench)),
            Entrant(TORCH, "torch", other.contiguous),
        ]
        moving = movers(other, beside[0] if beside else None, bench.folder)
        if moving:
            found.append(Entrant(COPY, "torch", copied(arguments)))
            found += [Entrant(MOVER, *each) for each in fastest(moving, count=MOVERS_KEPT)]
        yield case, found


def served_entrants(layouts: Layouts, case: Case, plain: Call, other: Call) -> list[Entrant]:
    """What is served of a case on both layouts."""
    arguments = case.arguments()
    turned = with_other_strides(arguments, layouts.transposed)
    return [
        Entrant(STRAIGHT_SERVED, "nearhint", partial(plain, *arguments)),
        Entrant(SERVED, "nearhint", partial(other, *turned)),
    ]


def ratios_of(us: Mapping[str, float]) -> dict[str, float]:
    """Each over the straight one that has as much around it, and the limit where it is known."""
    found = {SERVED: us[SERVED] / us[STRAIGHT_SERVED]}
    found |= {role: us[role] / us[STRAIGHT] for role in (OURS, TORCH, MOVER) if role in us}
    if MOVER in us:
        found["limit"] = 1 + max(0.0, us[MOVER] - us[COPY]) / us[STRAIGHT]
    return {role: round(ratio, 3) for role, ratio in found.items()}


def measured(name: str, entrants: Sequence[Entrant], pairs: int) -> dict[str, Any]:
    """A point: medians in microseconds, by whom, and ratios."""
    times = interleaved([each.call for each in entrants], pairs)
    ranked = sorted(zip(times, entrants, strict=True), key=lambda each: -each[0])
    us = {each.role: round(ns / 1e3, 1) for ns, each in ranked}
    return {
        "name": name,
        "us": us,
        "by": {each.role: each.by for _, each in ranked},
        "ratios": ratios_of(us),
    }


def line_of(point: Mapping[str, Any], *, bar: float = TRANSPOSED_BAR) -> str:
    """One point, for people."""
    ratios = ", ".join(f"{role} {ratio:.2f}" for role, ratio in point["ratios"].items())
    limit = point["ratios"].get("limit")
    verdict = "" if limit is None else "; within reach" if limit <= bar else "; out of reach"
    return f"{point['name']:44} {ratios}{verdict}"


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that was asked for; writes the report as it grows."""
    wanted = None
    if options.report:
        wanted = short_points(json.loads(options.report.read_text(encoding="utf-8")))
    report: dict[str, Any] = {
        "conditions": cpu_conditions("python -m tests.benchmarks.cpu_limits"),
        "threads": torch.get_num_threads(),
        "pairs": options.pairs,
        "bar": TRANSPOSED_BAR,
        "points": [],
    }
    sweeps = chosen(TRANSPOSED, wanted, options.only)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder, Serving() as serving:
        bench = Bench(Path(folder))
        for layouts in sweeps:
            # Captures of their own come first: what serves is compiled once, and reset by them.
            bare = list(bare_entrants(layouts, bench))
            plain, other = served_layouts(layouts, serving, "a")
            for case, found in bare:
                entrants = [*served_entrants(layouts, case, plain, other), *found]
                point = measured(name_of(case), entrants, options.pairs)
                report["points"].append(point)
                say(line_of(point))
                sweep_report.write(report, options.json)
    return report


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="what limits transposed reads on a CPU")
    parser.add_argument("--report", type=Path, help="the points over their bar in this report")
    parser.add_argument("--only", action="append", default=[], help="names that contain this")
    parser.add_argument("--pairs", type=int, default=DEFAULT_PAIRS)
    parser.add_argument("--json", type=Path, help="write the report to this file as it grows")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
