"""The CPU emitter: a Kernel and a Schedule to standalone C.

The source holds our own generated names and numbers alone; it includes stdint.h, string.h and
immintrin.h, and what it calls is memcpy, the OpenMP runtime's GOMP_parallel (with more than one
thread) and, for f64's `pow` and its sines and cosines of large numbers, libm. -ffp-contract=off: a
multiplication and an addition of the IR round twice, as eager's do; polynomials and the IR's `fma`
fuse explicitly. -fwrapv: integers wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nearhint_compiler.analysis.beside import LONGEST_BESIDE, can_be_beside
from nearhint_compiler.analysis.by_points import by_points
from nearhint_compiler.analysis.interleaved import is_interleaved
from nearhint_compiler.analysis.known import known_of
from nearhint_compiler.analysis.parted import parted
from nearhint_compiler.codegen.c.apart import APART_ROWS
from nearhint_compiler.codegen.c.arg import ARG_ROWS
from nearhint_compiler.codegen.c.body import Body
from nearhint_compiler.codegen.c.columns import write_columns
from nearhint_compiler.codegen.c.convert import CONVERSION_ROWS
from nearhint_compiler.codegen.c.entry import ENTRY, NAMED, OPENMP, is_checked, write_entry
from nearhint_compiler.codegen.c.halves import HALVES_ROWS
from nearhint_compiler.codegen.c.index import INDEX_FUNCTIONS, to_c
from nearhint_compiler.codegen.c.known import KNOWN_BYTES, known_bytes, write_known
from nearhint_compiler.codegen.c.math import MATH_ROWS
from nearhint_compiler.codegen.c.math_f64 import MATH_F64_ROWS
from nearhint_compiler.codegen.c.narrow import NARROW_ROWS
from nearhint_compiler.codegen.c.ops import OP_ROWS
from nearhint_compiler.codegen.c.panels import PANEL_BYTES, Panels, panel_bytes, write_panels
from nearhint_compiler.codegen.c.pointwise import write_pointwise
from nearhint_compiler.codegen.c.primitive import (
    FEATURES,
    Prelude,
    Row,
    Shape,
    level_of,
    vector_bytes,
)
from nearhint_compiler.codegen.c.rows import RowOptions, write_rows
from nearhint_compiler.codegen.c.scan import SCAN_ROWS, is_scanning
from nearhint_compiler.codegen.c.scattered import write_scattered
from nearhint_compiler.codegen.c.split import write_split
from nearhint_compiler.codegen.c.squares import LARGEST_STEP, can_be_direct
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.tiles import (
    LARGEST_TILE,
    Sides,
    write_direct_tiles,
    write_line_tiles,
    write_tiles,
)
from nearhint_compiler.codegen.c.turn import TURN_ROWS, turned_loads
from nearhint_compiler.codegen.c.vector import VECTOR_ROWS
from nearhint_compiler.codegen.generated import Generated
from nearhint_compiler.codegen.spacing import spaced
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.cpu import SINGLY_IN_COLUMNS, WIDE_IN_COLUMNS
from nearhint_compiler.schedule.cpu_facts import (
    moved_singly,
    register_bits,
    walks_over_memory,
    wide_totals,
)
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CHECKED_ENTRY, CpuLaunch
from nearhint_rules.expr import Expr
from nearhint_rules.guard import Guard
from nearhint_rules.target import CpuDevice, Target

LANES = (1, 4, 8, 16)
FLAGS = (
    "-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fwrapv",
    "-Wno-psabi",  # vectors wider than the machine's registers never leave the file
)  # fmt: skip


def _by_name(rows: Sequence[Row]) -> Mapping[str, Sequence[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.name, []).append(row)
    return found


ROWS = _by_name(
    (
        *VECTOR_ROWS,
        *APART_ROWS,
        *TURN_ROWS,
        *HALVES_ROWS,
        *ARG_ROWS,
        *SCAN_ROWS,
        *NARROW_ROWS,
        *CONVERSION_ROWS,
        *OP_ROWS,
        *MATH_ROWS,
        *MATH_F64_ROWS,
    )
)


def _pointwise(writer: Writer, body: Body, schedule: Schedule) -> Expr:
    if schedule.get("known", 0):
        known = known_of(body.kernel, body.lane)
        if known is None:
            raise InvalidSchedule("rows that have nothing in common")
        if known_bytes(body, known, schedule["block"]) > KNOWN_BYTES:
            raise InvalidSchedule(f"{len(known.kept)} tables of {schedule['block']} elements")
        return write_known(writer, body, known, copies=schedule["unroll"], block=schedule["block"])
    regions = parted(body.kernel, body.lane) if schedule.get("parted", 0) else ()
    if schedule.get("parted", 0) and not regions:
        raise InvalidSchedule("loops in which no parts of a join meet")
    return write_pointwise(
        writer, body, copies=schedule["unroll"], block=schedule["block"], regions=regions
    )


def _rows(writer: Writer, body: Body, schedule: Schedule) -> Expr:
    beside = schedule.get("beside", 0)
    if beside and (beside > LONGEST_BESIDE * body.lanes or not can_be_beside(body.kernel)):
        raise InvalidSchedule(f"rows of {beside} elements beside each other")
    interleaved = schedule.get("interleaved", 0) == 1
    innermost = f"r{len(body.kernel.reduction) - 1}"
    if interleaved and not (is_interleaved(body.kernel) and body.lane == innermost):
        raise InvalidSchedule("rows that do not lie between each other")
    options = RowOptions(
        schedule["unroll"],
        schedule["short"],
        schedule["stash"],
        beside,
        interleaved,
        tasks_are_rows=True,
    )
    return write_rows(writer, body, options)


def _columns(writer: Writer, body: Body, schedule: Schedule) -> Expr:
    copies, ahead = schedule["unroll"], schedule.get("ahead", 0)
    if ahead and not walks_over_memory(body.kernel):
        raise InvalidSchedule(f"{ahead} rows ahead of what is not read from memory")
    moves = moved_singly(body.kernel, body.lane) * body.lanes * copies
    if copies > 1 and moves > SINGLY_IN_COLUMNS:
        raise InvalidSchedule(f"{moves} elements that a step moves one by one")
    return write_columns(writer, body, copies=copies, ahead=ahead)


def _panels(writer: Writer, body: Body, schedule: Schedule) -> Expr:
    rows, across = schedule["rows"], f"p{schedule['across']}"
    least, further = schedule.get("least", rows), schedule.get("next", 0)
    panels = Panels(across, rows, schedule["length"], least, further)
    if not 0 <= schedule["across"] < len(body.kernel.pointwise) or len(body.kernel.reduction) != 1:
        raise InvalidSchedule(f"panels across {panels.across}, {len(body.kernel.reduction)} loops")
    if not 0 < least <= rows or rows % body.lanes or least % body.lanes:
        raise InvalidSchedule(f"{least} to {rows} rows for {body.lanes} lanes")
    (length,) = body.kernel.reduction
    is_long = isinstance(length, ex.Int) and length.value > panels.length
    if panel_bytes(body, panels) > PANEL_BYTES or is_long:
        raise InvalidSchedule(f"{least} rows of {to_c(length)} in a panel")
    options = RowOptions(schedule["unroll"], schedule["short"], schedule["stash"])
    return write_panels(writer, body, options, panels)


def _tiles(writer: Writer, body: Body, schedule: Schedule) -> Expr:
    across, along = f"p{schedule['across']}", schedule["tile"]
    sides = Sides(along, schedule.get("rows", along), schedule.get("staged", 0) == 1)
    if across == body.lane or not 0 <= schedule["across"] < len(body.kernel.pointwise):
        raise InvalidSchedule(f"across {across}, lanes along {body.lane}")
    for side in (sides.along, sides.across):
        if side < 1 or side % body.lanes:
            raise InvalidSchedule(f"a side of {side} for {body.lanes} lanes")
    if ahead := schedule.get("ahead", 0):
        if (schedule["unroll"], schedule.get("squares", 0)) != (1, 1) or sides.staged:
            raise InvalidSchedule("blocks of lines are of single squares, and not staged")
        _check_direct(body, schedule, across)
        return write_line_tiles(writer, body, across=across, sides=sides, ahead=ahead)
    if sides.along * sides.across > LARGEST_TILE:
        raise InvalidSchedule(f"a tile of {sides.along} x {sides.across}")
    if sides.staged and schedule.get("squares", 0) != 1:
        raise InvalidSchedule("tiles that are staged are of single squares where they are not")
    if deep := schedule.get("squares", 0):
        _check_direct(body, schedule, across)
        return write_direct_tiles(
            writer, body, copies=schedule["unroll"], deep=deep, across=across, sides=sides
        )
    return write_tiles(writer, body, copies=schedule["unroll"], across=across, sides=sides)


def _check_direct(body: Body, schedule: Schedule, across: str) -> None:
    """Raises `InvalidSchedule` for more squares than are written out, and rows without a pitch."""
    turned, deep = turned_loads(body, across), schedule["squares"]
    if not 0 < deep * schedule["unroll"] <= LARGEST_STEP or not can_be_direct(body, turned):
        raise InvalidSchedule(f"{deep} x {schedule['unroll']} squares of {len(turned)} inputs")


def _scattered(writer: Writer, body: Body, schedule: Schedule) -> Expr:
    scatter = ir.scatter_of(body.kernel)
    assert scatter is not None
    return write_scattered(
        writer,
        body,
        scatter,
        copies=schedule["unroll"],
        block=schedule["block"],
        parts=schedule["parts"],
    )


SCATTERED = "cpu.scattered"
_POINTWISE = ("cpu.pointwise", "cpu.tiles", SCATTERED)
_ROWS = ("cpu.panels", "cpu.rows")
_FAMILIES: Mapping[str, Callable[[Writer, Body, Schedule], Expr]] = {
    "cpu.columns": _columns,
    "cpu.panels": _panels,
    "cpu.pointwise": _pointwise,
    "cpu.rows": _rows,
    SCATTERED: _scattered,
    "cpu.tiles": _tiles,
}


def generate(kernel: ir.Kernel, schedule: Schedule, target: Target) -> Generated:
    """C for `kernel` laid out as `schedule` says, for the instruction sets of `target`.

    Raises `InvalidSchedule` for a schedule of another target or one that does not fit the kernel,
    and `Unsupported` for a kernel that C cannot express.
    """
    family = _FAMILIES.get(schedule.family)
    if family is None or not isinstance(target.device, CpuDevice):
        raise InvalidSchedule(f"{schedule.family} is no schedule for a CPU")
    laid_out, facts = spaced(kernel, schedule)
    if (ir.scatter_of(kernel) is not None) != (schedule.family == SCATTERED):
        raise InvalidSchedule(f"{schedule.family} and a scatter")
    if schedule.family == SCATTERED:
        laid_out = by_points(kernel)
    kernel = _with_a_loop(laid_out)
    lane = lane_variable(kernel, schedule)
    if schedule["lanes"] not in LANES:
        raise InvalidSchedule(f"{schedule['lanes']} lanes")
    if kernel.reduction:
        _check_registers(kernel, schedule, register_bits(target))
    level = level_of(target.device.features)
    prelude = Prelude(Shape(schedule["lanes"], level), ROWS)
    loops = Writer()
    body = Body(kernel, prelude, lane)
    total = family(loops, body, schedule)
    split = bool(kernel.reduction) and schedule["split"] == 1
    if split and is_scanning(kernel):
        raise InvalidSchedule("a row with a scan is walked by one thread")
    shared = write_split(loops, body, copies=schedule["unroll"]) if split else None
    write_entry(loops, kernel, total, shared=shared)
    entry, named = (CHECKED_ENTRY, NAMED) if is_checked(kernel) else (ENTRY, "")
    source = f"{prelude.text()}\n{INDEX_FUNCTIONS}{named}{OPENMP}{loops.text()}"
    return Generated(
        language="c",
        source=source,
        launch=CpuLaunch(entry, _work(kernel), _grain(kernel), FEATURES[level]),
        guard=Guard(facts),
        flags=(*FLAGS, *(f"-m{feature.replace('_', '')}" for feature in FEATURES[level])),
    )


def _check_registers(kernel: ir.Kernel, schedule: Schedule, bits: int) -> None:
    """Raises `InvalidSchedule` where vectors of a reduction are too wide for registers.

    Compilers keep wider ones in memory, and compare and shuffle them element by element, which is
    slow to compile and to run. Vectors of 64-bit numbers, such as places, may be two registers.
    """
    lanes, copies = schedule["lanes"], schedule["unroll"]
    word = min(4, max(map(vector_bytes, ir.dtypes_of(kernel))))
    if 8 * word * lanes > bits:
        raise InvalidSchedule(f"{lanes} lanes of a reduction in registers of {bits} bits")
    wide = wide_totals(kernel, lanes=lanes, bits=bits) * copies
    if schedule.family == "cpu.columns" and copies > 1 and wide > WIDE_IN_COLUMNS[bits]:
        raise InvalidSchedule(f"{wide} totals that are compared in more than {bits} bits")


def _with_a_loop(kernel: ir.Kernel) -> ir.Kernel:
    """A kernel of a single element gets a loop of one, so that there is something to walk."""
    if kernel.pointwise or kernel.reduction:
        return kernel
    return replace(kernel, pointwise=(ex.ONE,))


def lane_variable(kernel: ir.Kernel, schedule: Schedule) -> str:
    """The loop variable that `schedule` vectorises; raises `InvalidSchedule` if there is none."""
    is_row = schedule.family in _ROWS
    if bool(kernel.reduction) == (schedule.family in _POINTWISE):
        raise InvalidSchedule(f"{schedule.family} for a reduction of {len(kernel.reduction)} dims")
    space = kernel.reduction if is_row else kernel.pointwise
    axis = schedule["axis"]
    if not 0 <= axis < len(space):
        raise InvalidSchedule(f"axis {axis} of {len(space)}")
    return f"{'r' if is_row else 'p'}{axis}"


_WEIGHTS: Mapping[str, int] = {
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p"), 8),
    **dict.fromkeys(("sigmoid", "erf"), 8),
    **dict.fromkeys(("tanh", "sin", "cos", "tan"), 16),
    **dict.fromkeys(("pow", "fmod", "mod", "floordiv"), 32),
    **dict.fromkeys(("div", "sqrt", "rsqrt", "reciprocal"), 4),
}
_OP, _ACCESS = 1, 2
"""Weights of any other operation and of an access, each in some 15 ps an element of 32 bits."""
_THREAD_WORK = 1 << 17
"""2 us: what a team takes to begin and to end, where its threads are awake. So a second thread
begins where it has saved that."""


def _work(kernel: ir.Kernel) -> Expr:
    return ex.product((*kernel.pointwise, *kernel.reduction))


def _grain(kernel: ir.Kernel) -> int:
    """Elements that pay for one more thread: fewer, the more is done with each."""
    elements = ir.per_element(kernel)
    weight = _ACCESS
    for position, node in enumerate(kernel.body):
        if kernel.reduction and not elements[position]:
            continue
        if isinstance(node, ir.Op):
            weight += _WEIGHTS.get(node.name, _OP)
        elif isinstance(node, ir.Access):
            weight += _ACCESS
    return max(1024, _THREAD_WORK // weight)
