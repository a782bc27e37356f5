"""What the GPU sweep would compile, on a machine without a GPU: Kernels, candidates, cubins.

Each capture of a sweep is made on the CPU at a few rows and lowered as if its tensors were on a
device of compute capability 9.0. Findings are what is no single Kernel, what fails to compile, and
what spills registers.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from tests.benchmarks.captures import on_cuda
from tests.benchmarks.cpu_kernels import QuietSession
from tests.benchmarks.gpu_sweep_cases import hints_of
from tests.benchmarks.sweep_report import say
from tests.benchmarks.sweeps import Sizes, Sweep, axes_of, bound_at, starts_of
from torch import fx

from nearhint.session import Session
from nearhint_compiler.codegen import generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import Lowered, lower
from nearhint_compiler.schedule import Schedule, candidates
from nearhint_daemon.workers import toolchain
from nearhint_daemon.workers.cubin import compile_cubin
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CudaLaunch
from nearhint_rules.plan import Launch, RunNodes
from nearhint_rules.program import Program
from nearhint_rules.target import CudaDevice, Target
from nearhint_torch.adapter import aot_inference, mark_dynamic
from nearhint_torch.capture import capture
from nearhint_torch.resolve import Resolver
from nearhint_torch.runner import size_reader

FEW = (40, 96, 64, 32, 16)
"""The rows, and the others from the largest on, that a capture on the CPU is made with."""
FEW_ROWS = (40, 64, 96, 160, 256)
"""The rows where the others are fixed: none of these, and whole blocks where there are blocks."""
SMALL: dict[str, Sizes] = {
    "upsampled": (2, 3, 5, 4),
    "doubled": (2, 3, 5, 4),
    "repeated_heads": (2, 3, 5, 8),
    "joined_windows": (2, 3, 5, 8),
    "quantised_squares": (256, 384),
    "page_scores": (48, 96, 64),
    "rgb_of_nv12": (3, 5, 8),
    "attended_neighbours": (12, 7, 3, 8),
    "symmetric_contrast": (5, 32),
    "seasonal_residuals": (5, 72, 9),
    "ensemble_scores": (5, 8, 12),
    "chamfer": (5, 16, 12),
    "lennard_jones": (5, 16),
    "suppressed": (5, 32),
    "mixture_shares": (40, 12, 8),
    "gathered_and_combined": (12, 5, 32),
    "group_norm_gradients": (3, 16, 12, 10),
    "attention_of_channels": (3, 16, 12, 10),
    "guided_step": (5, 3, 12, 9),
    "unshuffled_norm": (3, 5, 7, 8),
    "scaled_branch": (3, 16, 12, 10),
    "chunk_gates": (5, 3),
    "softmax_of_classes": (3, 16, 12, 10),
    "moments_of_last": (3, 12, 10, 16),
    "merged_heads_residual": (3, 5, 12, 8),
    "cross_entropy_of_pixels": (3, 16, 12, 10),
    "mx_both_ways": (96, 160),
    "neighbours_rotated_at_places": (40, 6, 4, 24, 8),
    "dequantise_squares": (256, 384),
    "moments_of_groups": (5, 60, 6),
}
"""Sizes of what is larger than its sizes say, or counts blocks of rows."""
SM_90 = CudaDevice("none", 90, 132, 80 << 30, "none", 0)
_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLED = re.compile(r"(\d+) bytes spill stores")


@dataclass(frozen=True, slots=True)
class Taken:
    """One capture: its Program, how calls bind its symbols, and to which of the sweep's sizes."""

    sweep: Sweep
    program: Program
    resolver: Resolver
    axes: tuple[int, ...]

    def symbols_at(self, sizes: Sizes) -> dict[str, int]:
        """The Program's symbols at some sizes."""
        return self.resolver.sizes(bound_at(self.axes, self.sweep.bindable(sizes)))


def few_sizes(sweep: Sweep, mode: str) -> Sizes:
    """Sizes to capture a sweep at: few rows; others that are dynamic are small, and all differ.

    A row has three blocks at least.
    """
    others = sweep.compiled_at[1:]
    if mode == "b":
        tried = ((rows, *others) for rows in FEW_ROWS if rows % max(sweep.unit, 1) == 0)
        return next(sizes for sizes in tried if sweep.bindable(sizes).count(sizes[0]) == 1)
    if sweep.name in SMALL:
        return SMALL[sweep.name]
    small = sorted(others)
    *found, last = (FEW[len(others) - small.index(size)] for size in others)
    return (FEW[0], *found, max(last, 3 * sweep.unit))


def taken(sweep: Sweep, mode: str, sizes: Sizes, *, device: str = "cuda") -> Taken:
    """Captures as a client does, with all dimensions or with the rows alone dynamic.

    The tensors of the Program are on `device`, "cpu" or "cuda", whatever they are captured on.
    """
    arguments = sweep.case(sizes).arguments()
    if mode == "b":
        for tensor, dimensions in zip(arguments, sweep.row_dimensions(), strict=True):
            for dimension in dimensions:
                mark_dynamic(tensor, dimension)
    found: list[Taken] = []

    def compiler(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        made = capture(graph, inputs)
        resolver = Resolver(made, cast(Session, QuietSession()))

        def remember(*args: Any) -> Any:
            axes = axes_of(size_reader(made.bindings)(args), sweep.bindable(sizes))
            program = on_cuda(made.program) if device == "cuda" else made.program
            found.append(Taken(sweep, program, resolver, axes))
            return graph.forward(*args)

        return remember

    torch._dynamo.reset()
    backend: Any = lambda graph, inputs: aot_inference(graph, inputs, compiler=compiler)  # noqa: E731
    with torch.no_grad():
        torch.compile(sweep.function, backend=backend, dynamic=mode == "a")(*arguments)
    (only,) = found
    return only


def divided(index: ex.Expr) -> Iterator[ex.FloorDiv | ex.Mod]:
    """The floor-divisions and moduli in an index that loops take part in."""
    if isinstance(index, ex.FloorDiv | ex.Mod) and any(
        ir.is_reduction_variable(name) or name[0] == "p" for name in ex.symbols_of(index)
    ):
        yield index
    for child in ex.children(index):
        yield from divided(child)


def kernel_facts(kernel: ir.Kernel) -> dict[str, Any]:
    """Loops, and the indices with divisions left in them."""
    left = {
        ex.to_text(node.index)
        for node in kernel.body
        if isinstance(node, ir.Indexed) and any(True for _ in divided(node.index))
    }
    return {
        "pointwise": [ex.to_text(extent) for extent in kernel.pointwise],
        "reduction": [ex.to_text(extent) for extent in kernel.reduction],
        "divided": sorted(left),
    }


def compiled_facts(
    kernel: ir.Kernel, schedule: Schedule, target: Target, scratch: Path
) -> dict[str, Any]:
    """What a candidate becomes, or why it does not."""
    started = time.perf_counter()
    try:
        built = compile_cubin(generate(kernel, schedule, target), target, scratch=scratch)
    except Exception as error:  # a finding, whatever it is
        facts: dict[str, Any] = {"error": f"{type(error).__name__}: {error}"[:300]}
    else:
        assert isinstance(built.launch, CudaLaunch)
        facts = {
            "registers": max(map(int, _REGISTERS.findall(built.log)), default=0),
            "spilled_bytes": max(map(int, _SPILLED.findall(built.log)), default=0),
            "shared_bytes": built.launch.shared_bytes,
            "warps": built.launch.warps,
        }
    return {"schedule": str(schedule), **facts, "seconds": round(time.perf_counter() - started, 2)}


def first_candidates(listed: Sequence[Schedule], count: int) -> list[Schedule]:
    """The default, and others of as many families as there is room for."""
    default, *others = listed
    families = {each.family: each for each in reversed(others)}
    order = dict.fromkeys([default, *families.values(), *others])
    return list(order)[:count]


def dry_run(mode: str, sweeps: Sequence[Sweep], *, count: int, end_s: float) -> dict[str, Any]:
    """Every one of the sweeps; prints as it goes. `end_s` is a time of the monotonic clock."""
    target = Target(SM_90, toolchain.for_kind("cuda", toolchain.detect()))
    findings: list[str] = []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="nearhint-dry-") as scratch:
        for sweep in sweeps:
            if time.monotonic() > end_s:
                findings.append(f"{sweep.title}: left out")
                continue
            for sizes in starts_of(sweep, few_sizes(sweep, mode)):
                is_one_row = sizes[0] == 1
                hints = [each for each in hints_of(sweep, mode) if (each[0] == 1) == is_one_row]
                try:
                    found = taken(sweep, mode, sizes)
                    row = dry_capture(found, hints, target, count=count, scratch=Path(scratch))
                except Exception as error:  # a finding, whatever it is
                    row = {"error": f"{type(error).__name__}: {error}"[:300]}
                name = f"{sweep.title}, one row" if is_one_row else sweep.title
                row = {"name": name, **row}
                rows.append(row)
                findings += findings_in(row)
                describe(row)
    return {"mode": mode, "rows": rows, "findings": findings}


def dry_capture(
    found: Taken, hints: Sequence[Sizes], target: Target, *, count: int, scratch: Path
) -> dict[str, Any]:
    """One capture: its Plan, its Kernels, and up to `count` candidates of each at each hint."""
    lowered = lower(found.program, target_kind="cuda")
    steps = lowered.plan.steps
    launches = [step for step in steps if isinstance(step, Launch)]
    return {
        "kernels": len(launches),
        "aten": [op_names(found.program, step) for step in steps if isinstance(step, RunNodes)],
        "launches": [
            launch_facts(lowered, step, found, hints, target, count, scratch) for step in launches
        ],
    }


def op_names(program: Program, step: RunNodes) -> list[str]:
    """The ops that run as they were captured."""
    return [program.nodes[node].op or "opaque" for node in step.nodes]


def launch_facts(
    lowered: Lowered,
    step: Launch,
    found: Taken,
    hints: Sequence[Sizes],
    target: Target,
    count: int,
    scratch: Path,
) -> dict[str, Any]:
    """One launch: its Kernel, the candidates at the hints, and what was compiled of them."""
    kernel = next(each.kernel for each in lowered.kernels if each.id == step.kernel)
    listed: dict[str, list[str]] = {}
    wanted: dict[Schedule, None] = {}
    for sizes in hints:
        symbols = found.symbols_at(sizes)
        dims = [ex.evaluate(dim, symbols) for dim in step.dims]
        offered = candidates(kernel, target, dict(zip(kernel.symbols, dims, strict=True)))
        listed["x".join(map(str, sizes))] = [str(schedule) for schedule in offered]
        wanted |= dict.fromkeys(first_candidates(offered, count))
    return {
        "kernel": step.kernel,
        **kernel_facts(kernel),
        "candidates": listed,
        "compiled": [compiled_facts(kernel, each, target, scratch) for each in wanted],
    }


def findings_in(row: dict[str, Any]) -> list[str]:
    """What is wrong with a sweep, a line each."""
    name = row["name"]
    if "error" in row:
        return [f"{name}: {row['error']}"]
    found: list[str] = []
    if row["kernels"] != 1 or row["aten"]:
        found.append(f"{name}: {row['kernels']} Kernels, and {row['aten'] or 'nothing'} as ATen")
    for number, launch in enumerate(row["launches"]):
        if launch["divided"]:
            found.append(f"{name} #{number}: divisions left in {'; '.join(launch['divided'])}")
        for each in launch["compiled"]:
            if "error" in each:
                found.append(f"{name} #{number}: {each['schedule']}: {each['error']}")
            elif each["spilled_bytes"]:
                found.append(
                    f"{name} #{number}: {each['schedule']}: spills {each['spilled_bytes']} bytes"
                )
    return found


def describe(row: dict[str, Any]) -> None:
    """One sweep, for people."""
    say(f"{row['name']}: {row.get('kernels', '?')} kernels, aten {row.get('aten', row)}")
    for launch in row.get("launches", ()):
        loops = f"({', '.join(launch['pointwise'])}; {', '.join(launch['reduction'])})"
        say(f"  loops {loops}  divided {launch['divided'] or 'nothing'}")
        for at, offered in launch["candidates"].items():
            say(f"  {at}: {len(offered)} candidates, default {offered[0]}")
        for each in launch["compiled"]:
            facts = "  ".join(f"{key} {value}" for key, value in each.items())
            say(f"    {facts}")
