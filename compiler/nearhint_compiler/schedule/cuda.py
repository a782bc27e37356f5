"""CUDA schedules: the default by heuristic, and a small space of alternatives.

The families are those of `nearhint_compiler.codegen.triton.options`. A default serves every size of
a Table, so all that it needs is 32-bit indices (and 16-byte pointers, where they alone are enough
for vector loads); where it needs anything, the last candidate needs nothing at all. The others
have blocks that fit the hint, and promise that sizes are multiples of 16 where they are, without
which Triton loads vectors along a dynamic row only in whole words (`analysis.row_words`). Pointers
are promised together with sizes: with aligned pointers alone Triton gives each thread neighbouring
elements and then loads them one by one (seen on an H100: 34 instead of 8 microseconds for 8 million
elements of fp16).

Where divisions in indices go away once loops are cut (`analysis.respace`) and the hint meets the
Guard for it, the schedules of the kernel that is cut come before the rest of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from nearhint_compiler.analysis.by_points import ATOMICS
from nearhint_compiler.analysis.fixed import written_at
from nearhint_compiler.analysis.multiples import size_multiple
from nearhint_compiler.analysis.respace import respaced
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule import (
    block_pointers,
    cuda_pointwise,
    cuda_reductions,
    cuda_scattered,
)
from nearhint_compiler.schedule.cuda_facts import EXTRAS, GENERIC_SIZE, facts_of
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules.target import CudaDevice, Target

CANDIDATE_LIMIT = 24
SPACED_LIMIT = 10
"""Candidates whose loops are cut, of all."""
WRITTEN_LIMIT = 8
"""Candidates whose last loops are written out, of all."""
E4M3, E4M3_CAPABILITY = "f8e4m3fn", 89
"""A dtype that Triton has from this compute capability on, where there are instructions for it."""


def candidates(
    kernel: ir.Kernel,
    target: Target,
    dims: Mapping[str, int] | None = None,
    *,
    limit: int = CANDIDATE_LIMIT,
) -> tuple[Schedule, ...]:
    """See `nearhint_compiler.schedule.candidates`; at most `limit`.

    Block pointers are tried where there is room for more than `CANDIDATE_LIMIT`.
    """
    if not _is_expressible(kernel, target):
        return ()
    if ir.scatter_of(kernel) is not None:
        return tuple(dict.fromkeys(cuda_scattered.schedules(kernel, target, dims)))
    module = cuda_reductions if kernel.reduction else cuda_pointwise
    default, *others = dict.fromkeys(module.schedules(facts_of(kernel, target, dims)))
    better = _written(kernel, target, dims or {})[: limit * WRITTEN_LIMIT // CANDIDATE_LIMIT]
    cut = respaced(kernel)
    if cut is not None and cut.holds_at(dims or dict.fromkeys(kernel.symbols, GENERIC_SIZE)):
        found = module.schedules(facts_of(cut.kernel, target, dims, cut_from=kernel))
        better += islice(dict.fromkeys(found), limit * SPACED_LIMIT // CANDIDATE_LIMIT)
    last = _without_promises(default)
    pointed = (
        tuple(block_pointers.twins(kernel, (default, *others))) if limit > CANDIDATE_LIMIT else ()
    )
    kept = [each for each in (default, *better, *others) if each != last]
    kept = [*kept[: limit - 1 - len(pointed)], *pointed]
    return (last, *kept) if default == last else (*kept, last)


def _written(kernel: ir.Kernel, target: Target, dims: Mapping[str, int]) -> list[Schedule]:
    """The schedules of a reduction that is written out at `dims`, the one held best first.

    Of points alone, what lies beside each other would be read and stored one by one: of 24 million
    that are put in turns that took 70 microseconds, and tiles 49 (tests/benchmarks/gpu_schedules.py
    on an H200).
    """
    written = written_at(kernel, dims) if kernel.reduction else None
    if written is None:
        return []
    facts = facts_of(written.kernel, target, dims or None)
    if written.kernel.reduction:
        found = list(cuda_reductions.schedules(facts))
    else:
        best = cuda_pointwise.preferred(facts)
        found = [*([best] if best is not None else []), *cuda_pointwise.schedules(facts)]
        # What is a few apart looks as if it were turned, and is not: no tile has it in vectors.
        found.sort(key=lambda each: each.family == "cuda.tiled")
    multiple = size_multiple(written.kernel)
    promised = {} if multiple == size_multiple(kernel) else {"multiple": multiple}
    return [
        each.and_with(
            **(promised if each["divisible"] and not each.get("multiple", 0) else {}),
            **written.options,
        )
        for each in dict.fromkeys(found)
    ]


def _is_expressible(kernel: ir.Kernel, target: Target) -> bool:
    """Whether Triton has all dtypes of a Kernel for the Target, and can scatter them."""
    assert isinstance(target.device, CudaDevice)
    scatter = ir.scatter_of(kernel)
    if scatter is not None and scatter.dtype not in ATOMICS[scatter.kind]:
        return False
    stored = any(param.dtype == E4M3 for param in kernel.params)
    cast = any(isinstance(node, ir.Op) and node.dtype == E4M3 for node in kernel.body)
    return target.device.capability >= E4M3_CAPABILITY or not (stored or cast)


def _without_promises(schedule: Schedule) -> Schedule:
    """The same layout for all sizes and pointers: a persistent row becomes a looped one."""
    options = {name: value for name, value in schedule.options if name not in EXTRAS}
    options |= {"index": 64, "aligned": 0, "divisible": 0}
    family = schedule.family
    if family.startswith("cuda.tiled"):
        block = options["z"] * options["y"] * options["x"]
        kept = {name: options[name] for name in options if name not in TILE_OPTIONS}
        family = family.replace("tiled_", "").replace("tiled", "pointwise")
        options = {"x": block, **kept}
    if family == "cuda.persistent":
        family = "cuda.looped"
    if family in ("cuda.looped", "cuda.split"):
        options["x"] = min(options["x"], WIDE_BLOCK // 16)
        # Half as much in registers: indices take twice as many, and this one must compile.
        options["r"] = min(options["r"], max(1, WIDE_BLOCK // options["x"]))
    if family == "cuda.split" and (few := schedule.get("apart", 0)):
        # What many programs have left would not fit registers otherwise.
        options["apart"] = min(few, options["x"])
    return Schedule(family, tuple(options.items()))


WIDE_BLOCK = 1024
"""Elements of a looped block with 64-bit indices."""
TILE_OPTIONS = ("z", "y", "x", "cuts")
