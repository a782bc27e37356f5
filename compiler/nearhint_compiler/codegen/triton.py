"""Triton source for a Kernel and a Schedule: what the worker compiles to a cubin ahead of time.

Families (options in order; every block size is a power of two):

    cuda.pointwise  x warps index aligned divisible        one flat block of x points
    cuda.tiled      y x dim warps index aligned divisible  a y-by-x tile: x along the innermost
                                                           pointwise dim, y along dim `dim`
    cuda.persistent x r warps index aligned divisible      x rows a program, whole in registers
    cuda.looped     x r warps index aligned divisible      x rows a program, r elements a step

`index` is 32 or 64: the width of index arithmetic; 32 brings Guards. `aligned` 1 promises 16-byte
pointers, and bit i of `divisible` promises that symbol i is a multiple of 16: both bring Guards,
and make Triton load vectors.

A looped reduction walks the row once for each level of nested reduces and recomputes the elements
it needs; a persistent one reads each row once. Low precision is computed in f32, as the IR says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from nearhint_compiler.codegen.generated import Generated
from nearhint_compiler.codegen.triton_body import Block, BodyEmitter
from nearhint_compiler.codegen.triton_guard import index_facts, promised_facts
from nearhint_compiler.codegen.triton_ops import prelude
from nearhint_compiler.codegen.triton_text import TRITON_TYPES, index_text
from nearhint_compiler.errors import InvalidSchedule, Unsupported
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import kernel_id
from nearhint_compiler.schedule.cuda import GRID_YZ_LIMIT
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.artifact import (
    Argument,
    CudaLaunch,
    PointerArgument,
    ScalarArgument,
    SizeArgument,
)
from nearhint_rules.guard import AtMost, Fact, Guard
from nearhint_rules.target import CudaDevice, Target

BLOCK_LIMIT = 1 << 20
"""Triton's largest block, in elements."""
WARPS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class _Layout:
    """What a family contributes: header lines, how values are shaped, the grid, size Guards."""

    header: tuple[str, ...]
    block: Block
    grid: tuple[ex.Expr, ex.Expr, ex.Expr]
    constants: tuple[tuple[str, int], ...]
    facts: tuple[Fact, ...] = ()


def generate(kernel: ir.Kernel, schedule: Schedule, target: Target) -> Generated:
    """Source, launch metadata and Guard; raises `InvalidSchedule` if the family does not fit."""
    if schedule.family not in _FAMILIES or not isinstance(target.device, CudaDevice):
        raise InvalidSchedule(f"{schedule.family} is no CUDA family")
    if any(isinstance(node, ir.Arg | ir.Scan) for node in kernel.body):
        raise Unsupported("an arg or a scan in Triton")
    _check(schedule)
    layout = _FAMILIES[schedule.family](kernel, schedule)
    entry = f"nearhint_{kernel_id(kernel)[:12]}"
    width = f"i{schedule['index']}"
    parameters = _parameters(kernel, width)
    promised, divisible = promised_facts(
        kernel, aligned=schedule["aligned"] == 1, divisible=schedule["divisible"]
    )
    facts = (*layout.facts, *(index_facts(kernel) if width == "i32" else ()), *promised)
    constants = dict(layout.constants)
    names = [*parameters, *(f"{name}: tl.constexpr" for name in constants)]
    lines = [*layout.header, *BodyEmitter(kernel, layout.block).lines()]
    source = [*prelude(lines), "@triton.jit", f"def {entry}({', '.join(names)}):"]
    launch = CudaLaunch(
        entry=entry,
        arguments=tuple(argument for argument, _ in parameters.values()),
        grid=layout.grid,
        warps=schedule["warps"],
        shared_bytes=0,
        capability=target.device.capability,
    )
    flags = (
        *(f"signature:{name}={kind}" for name, (_, kind) in parameters.items()),
        *(f"constexpr:{name}={value}" for name, value in constants.items()),
        *(f"divisible:{place}" for place in divisible),
        f"num_warps={schedule['warps']}",
    )
    text = "\n".join((*source, *(f"    {line}" for line in lines), ""))
    return Generated("triton", text, launch, Guard(facts), flags)


def _check(schedule: Schedule) -> None:
    for name, value in schedule.options:
        if name in ("x", "y", "r") and (value < 1 or value & (value - 1) or value > BLOCK_LIMIT):
            raise InvalidSchedule(f"{name}={value} is no block size")
    if schedule["index"] not in (32, 64) or schedule["warps"] not in WARPS:
        raise InvalidSchedule(f"index or warps of {schedule}")


def _parameters(kernel: ir.Kernel, width: str) -> Mapping[str, tuple[Argument, str]]:
    """The parameters of the source: name -> how it is passed, and its type in the signature."""
    found: dict[str, tuple[Argument, str]] = {}
    for place, param in enumerate(kernel.params):
        kind = TRITON_TYPES[param.dtype]
        if param.role == "scalar":
            argument = ScalarArgument(place, kind.scalar)
            found[f"a{place}"] = argument, TRITON_TYPES[kind.scalar].signature
        else:
            found[f"a{place}"] = PointerArgument(place), f"*{kind.signature}"
    for name in kernel.symbols:
        found[name] = SizeArgument(ex.symbol(name), width), width
    return found


def _ceil_div(size: ex.Expr, block: int) -> ex.Expr:
    return ex.floordiv(ex.add(size, block - 1), block)


def _unflatten(flat: str, names: list[str], extents: tuple[ex.Expr, ...]) -> list[str]:
    """Lines that split a flat index into loop variables, the last one innermost."""
    lines: list[str] = []
    rest = flat
    for position in range(len(names) - 1, 0, -1):
        extent = index_text(extents[position])
        lines.append(f"{names[position]} = {rest} % {extent}")
        lines.append(f"{flat}_{position} = {rest} // {extent}")
        rest = f"{flat}_{position}"
    return [*lines, *(f"{name} = {rest}" for name in names[:1])]


def _program(axis: int, schedule: Schedule) -> str:
    wide = ".to(tl.int64)" if schedule["index"] == 64 else ""
    return f"tl.program_id({axis}){wide}"


def _pointwise(kernel: ir.Kernel, schedule: Schedule) -> _Layout:
    if kernel.reduction:
        raise InvalidSchedule("cuda.pointwise of a reduction")
    total, x = ex.product(kernel.pointwise), schedule["x"]
    names = [f"p{number}" for number in range(len(kernel.pointwise))]
    header = [
        f"x = {_program(0, schedule)} * X + tl.arange(0, X)",
        *_unflatten("x", names, kernel.pointwise),
    ]
    mask = _mask("x", total, x, header)
    block = Block("[X]", "[X]", mask)
    return _Layout(tuple(header), block, (_ceil_div(total, x), ex.ONE, ex.ONE), (("X", x),))


def _mask(name: str, size: ex.Expr, block: int, header: list[str]) -> str:
    """The mask of a flat index against `size`: none if the blocks fill it exactly."""
    if block == 1 or (isinstance(size, ex.Int) and size.value % block == 0):
        return ""
    header.append(f"{name}mask = {name} < {index_text(size)}")
    return f"{name}mask"


def _tiled(kernel: ir.Kernel, schedule: Schedule) -> _Layout:
    rank, outer = len(kernel.pointwise), schedule["dim"]
    if kernel.reduction or not 0 <= outer < rank - 1:
        raise InvalidSchedule("cuda.tiled wants two pointwise dims and no reduction")
    inner, x, y = rank - 1, schedule["x"], schedule["y"]
    rest = [place for place in range(rank) if place not in (outer, inner)]
    extents = tuple(kernel.pointwise[place] for place in rest)
    header = [
        f"p{inner} = ({_program(0, schedule)} * X + tl.arange(0, X))[None, :]",
        f"p{outer} = ({_program(1, schedule)} * Y + tl.arange(0, Y))[:, None]",
    ]
    if rest:
        header.append(f"z = {_program(2, schedule)}")
        header += _unflatten("z", [f"p{place}" for place in rest], extents)
    masks = [
        _mask(f"p{place}", kernel.pointwise[place], block, header)
        for place, block in ((inner, x), (outer, y))
    ]
    columns = _ceil_div(kernel.pointwise[inner], x)
    grid = (columns, _ceil_div(kernel.pointwise[outer], y), ex.product(extents))
    facts = tuple(
        AtMost(size, GRID_YZ_LIMIT)
        for size in grid[1:]
        if not (isinstance(size, ex.Int) and size.value <= GRID_YZ_LIMIT)
    )
    block = Block("[Y, X]", "[Y, X]", " & ".join(mask for mask in masks if mask))
    return _Layout(tuple(header), block, grid, (("X", x), ("Y", y)), facts)


def _rows(kernel: ir.Kernel, schedule: Schedule, *, step: str) -> _Layout:
    if not kernel.reduction:
        raise InvalidSchedule(f"{schedule.family} of a pointwise kernel")
    rows, length = ex.product(kernel.pointwise), ex.product(kernel.reduction)
    x, r = schedule["x"], schedule["r"]
    if x * r > BLOCK_LIMIT:
        raise InvalidSchedule(f"{x} rows of {r} elements are no block")
    wide = ".to(tl.int64)" if schedule["index"] == 64 else ""
    header = [
        f"x = ({_program(0, schedule)} * X + tl.arange(0, X))[:, None]",
        *_unflatten("x", [f"p{i}" for i in range(len(kernel.pointwise))], kernel.pointwise),
    ]
    row_mask = _mask("x", rows, x, header)
    header.append(f"rbase = tl.arange(0, R)[None, :]{wide}")
    if step:
        header.append(f"rlength = {index_text(length)}")
    element = [
        f"r = {'rbase + roffset' if step else 'rbase'}",
        *_unflatten("r", [f"r{i}" for i in range(len(kernel.reduction))], kernel.reduction),
    ]
    column_mask = _column_mask(length, r, element)
    block = Block("[X, 1]", "[X, R]", row_mask, column_mask, tuple(element), step)
    facts = () if step else _row_fits(length, r)
    grid = (_ceil_div(rows, x), ex.ONE, ex.ONE)
    return _Layout(tuple(header), block, grid, (("X", x), ("R", r)), facts)


def _column_mask(length: ex.Expr, r: int, element: list[str]) -> str:
    if isinstance(length, ex.Int) and length.value % r == 0:
        return ""
    element.append(f"rmask = r < {index_text(length)}")
    return "rmask"


def _row_fits(length: ex.Expr, r: int) -> tuple[Fact, ...]:
    if not isinstance(length, ex.Int):
        return (AtMost(length, r),)
    if length.value > r:
        raise InvalidSchedule("cuda.persistent: the row is longer than the block")
    return ()


def _persistent(kernel: ir.Kernel, schedule: Schedule) -> _Layout:
    return _rows(kernel, schedule, step="")


def _looped(kernel: ir.Kernel, schedule: Schedule) -> _Layout:
    return _rows(kernel, schedule, step="R")


_Family: TypeAlias = Callable[[ir.Kernel, Schedule], _Layout]
_FAMILIES: Mapping[str, _Family] = {
    "cuda.pointwise": _pointwise,
    "cuda.tiled": _tiled,
    "cuda.persistent": _persistent,
    "cuda.looped": _looped,
}
