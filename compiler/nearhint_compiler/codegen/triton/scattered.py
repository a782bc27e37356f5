"""The family of kernels with a scatter: flat blocks of points, each added where its place says.

A first stage writes what the output begins with, and the next one adds to it, atomically and in any
order: sums of floats differ in their last digits from run to run. Half floats are added up as f32
in a workspace, which a third stage rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nearhint_compiler.analysis.by_points import ATOMICS, by_points, needed, without_base
from nearhint_compiler.analysis.flat import FLAT, flattened
from nearhint_compiler.codegen.triton.block import Block
from nearhint_compiler.codegen.triton.body import Body
from nearhint_compiler.codegen.triton.header import header_of, pointwise_loops
from nearhint_compiler.codegen.triton.layout import Layout
from nearhint_compiler.codegen.triton.pointwise import whole_or_masked
from nearhint_compiler.codegen.triton.registers import straight
from nearhint_compiler.codegen.triton.row import ceil_div
from nearhint_compiler.codegen.triton.text import TRITON_TYPES, cast_text, index_text
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex


def scattered(kernel: ir.Kernel, schedule: Schedule) -> Layout:
    """cuda.scattered: flat blocks of what there is to begin with, then of points."""
    scatter = ir.scatter_of(kernel)
    if scatter is None or scatter.dtype not in ATOMICS[scatter.kind]:
        raise InvalidSchedule("cuda.scattered of what is not added up atomically")
    points, x = by_points(kernel), schedule["x"]
    total, count = ex.product(points.pointwise), ir.scattered(kernel, scatter)
    output = kernel.params[scatter.param].dtype
    target = f"a{scatter.param}" if output == scatter.dtype else "w0"
    header = header_of(schedule, ("X",))
    start = list(header.lines)
    header.lines += _flat(total)
    header.loops("x", "X", pointwise_loops(points))
    flat, axis_of = flattened(without_base(points)), {**header.axis_of, FLAT: "X"}

    def added(masks: Mapping[str, str]) -> Sequence[str]:
        return straight(flat, Block(("X",), axis_of, masks))

    def begun(masks: Mapping[str, str]) -> Sequence[str]:
        return _begun(kernel, scatter, target, masks)

    def rounded(masks: Mapping[str, str]) -> Sequence[str]:
        options = ", xmask" * bool(masks)
        value = cast_text(f"tl.load(w0 + x{options})", scatter.dtype, output)
        return [f"tl.store(a{scatter.param} + x, {value}{options})"]

    def in_blocks(size: ex.Expr, write: Callable[[Mapping[str, str]], Sequence[str]]) -> list[str]:
        masked = write({"X": "xmask"})
        is_whole = schedule.get("whole", 0)
        return whole_or_masked(size, write({}), masked) if is_whole else [*masked]

    stages = [
        [*_flat(count), *in_blocks(count, begun)],
        [*header.lines[len(start) :], *in_blocks(total, added)],
        *([[*_flat(count), *in_blocks(count, rounded)]] if target == "w0" else []),
    ]
    lines = start
    for stage, inside in enumerate(stages):
        lines += [f"if stage == {stage}:", *(f"    {line}" for line in inside)]
    return Layout(
        lines,
        ceil_div(ex.maximum(total, count), x),
        (("X", x),),
        arrays=(scatter.dtype,) if target == "w0" else (),
        array_length=count if target == "w0" else ex.ZERO,
        stages=len(stages),
    )


def _flat(count: ex.Expr) -> list[str]:
    """The lines that say which of `count` elements a program has."""
    return ["x = pid * X + tl.arange(0, X)", f"xmask = x < {index_text(count)}"]


def _begun(
    kernel: ir.Kernel, scatter: ir.Scatter, target: str, masks: Mapping[str, str]
) -> Sequence[str]:
    """The lines that write what elements `x` of the output are before anything is added."""
    body, options = Body(kernel, Block(("X",), {}, masks)), ", xmask" * bool(masks)
    lines: list[str] = []
    for place in needed(kernel, scatter.base):
        node = kernel.body[place]
        if isinstance(node, ir.Former):
            lines.append(f"{body.name(place)} = tl.load(a{node.param} + x{options})")
        else:
            lines += body.lines(place)
    value = f"tl.broadcast_to({body.name(scatter.base)}, [X])"
    dtype = TRITON_TYPES[scatter.dtype].name
    return [*lines, f"tl.store({target} + x, {value}.to({dtype}){options})"]
