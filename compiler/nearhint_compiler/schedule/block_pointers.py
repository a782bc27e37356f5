"""Block pointers: the same layouts, with accesses that say their whole tile. Never a default.

A load or store that is affine in the axes of a block, moves along each and by one element along the
last, may be written as a pointer to a block of a tensor (`tl.make_block_ptr`), whose bounds are
checked against the tensor's extents; the others stay as they are. Offsets have 32 bits. On an H200
(tests/benchmarks/gpu_forms.py, 2026-11-22) they took 1.00 to 1.42 times as long as the same
Schedules without them, in 10 pairs, so only the largest search tries some.

Tensor descriptors (`tl.make_tensor_descriptor`) want 256 bytes of scratch memory a program, which a
launch does not give, and strides that are whole multiples of 16 bytes. Triton 3.6 and 3.7 compile
block pointers alike; 3.7 calls them deprecated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from nearhint_compiler.analysis.affine import Loops, affine
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule

OPTION = "block_pointers"
FAMILIES = (
    "cuda.tiled",
    "cuda.persistent",
    "cuda.looped",
    "cuda.split",
    "cuda.tiled_persistent",
    "cuda.tiled_looped",
)
TWINS = 2
"""How many Schedules of a kernel are offered with block pointers."""


def twins(kernel: ir.Kernel, schedules: Iterable[Schedule]) -> Iterator[Schedule]:
    """Of each family the first with block pointers, one that promises the most if any promises."""
    first: dict[str, Schedule] = {}
    for schedule in schedules:
        if any(schedule.get(name, 0) for name in ("words", "pieces", "held")):
            continue
        known = first.setdefault(schedule.family, schedule)
        if schedule["divisible"] and not known["divisible"]:
            first[schedule.family] = schedule
    found = (replace(each, options=(*each.options, (OPTION, 1))) for each in first.values())
    for _, each in zip(
        range(TWINS), (each for each in found if applies(kernel, each)), strict=False
    ):
        yield each


def applies(kernel: ir.Kernel, schedule: Schedule) -> bool:
    """Whether some access of `kernel` as it is laid out may have a block pointer."""
    if schedule.family not in FAMILIES or schedule["index"] != 32:
        return False
    if any(schedule.get(name, 0) for name in ("r1", "words", "spread", "pieces", "held")):
        return False
    axes = axes_of(kernel, schedule)
    return any(
        (found := affine(node.index, axes)) is not None and found.is_block
        for node in kernel.body
        if isinstance(node, ir.Load | ir.Store) and is_pointed(kernel, node.param)
    )


def is_pointed(kernel: ir.Kernel, param: int) -> bool:
    """Whether block pointers have the element type of a parameter: booleans are none of them."""
    return kernel.params[param].dtype != ir.BOOL


def axes_of(kernel: ir.Kernel, schedule: Schedule) -> list[Loops]:
    """The loops of each axis of a block, the reduction's last."""
    loops = [(f"p{number}", extent) for number, extent in enumerate(kernel.pointwise)]
    cuts = schedule.get("cuts", 0)
    ends = [place + 1 for place in range(len(loops)) if cuts >> place & 1]
    runs: list[Loops] = [
        dict(loops[a:b]) for a, b in zip([0, *ends], [*ends, len(loops)], strict=True)
    ]
    rows = {f"r{number}": extent for number, extent in enumerate(kernel.reduction)}
    return [*runs, rows] if rows else runs
