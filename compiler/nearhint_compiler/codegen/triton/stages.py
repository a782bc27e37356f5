"""Rows that several programs share, in stages, and what they leave in a workspace.

Each program walks its chunk of a row and leaves its totals in a workspace; in the next stage every
program of the row brings together those of all its chunks. A stage is one more launch of the same
kernel. Where chunks are many, each program would read more totals than is worth while: then they
are brought together once, `apart`, in a stage between, in which the programs of a block of columns
have a few of them each.

A scan in stages waits for the totals of its operand, as a reduce does; then each program starts
from those of the chunks before its own, combined in one tree over all chunks, in which its own and
later ones are neutral. Block by block, the prefixes in a block are combined with what came before.
So the order is fixed, and the same input gives the same bits for the same schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nearhint_compiler.analysis.online import SHARED, depth_of
from nearhint_compiler.codegen.triton.block import REDUCED, Block
from nearhint_compiler.codegen.triton.ops import combine_name
from nearhint_compiler.codegen.triton.row import unflatten
from nearhint_compiler.codegen.triton.text import TRITON_TYPES
from nearhint_compiler.codegen.triton.totals import Total
from nearhint_compiler.codegen.triton.walks import WalkPlan
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

COLUMNS, COLUMN, COLUMN_MASK = "XS", "column", "columnmask"
"""The axis of the few columns of a program that brings totals together apart, their flat index and
their mask."""


def stages_of(kernel: ir.Kernel) -> int:
    """The stages of a kernel whose rows programs share."""
    return depth_of(kernel, SHARED) + 1


@dataclass(frozen=True, slots=True)
class Apart:
    """Few columns at once: a block of them, and the lines that say which they are.

    Of `slices` that a block of columns has, program `chunk` has each `splits`-th from its own on.
    """

    block: Block
    lines: tuple[str, ...]
    slices: int


def apart_of(kernel: ir.Kernel, block: Block, *, x: int, few: int) -> Apart:
    """The slices of `few` columns each of a block of `x`."""
    names = {name: f"few{name}" for name in block.axis_of if name[0] == "p"}
    loops = {f"p{number}": extent for number, extent in enumerate(kernel.pointwise)}
    found = replace(
        block,
        axes=(COLUMNS, REDUCED),
        axis_of={**block.axis_of, **dict.fromkeys(names, COLUMNS)},
        masks={COLUMNS: COLUMN_MASK},
        renamed={name: ex.symbol(renamed) for name, renamed in names.items()},
    )
    lines = (
        f"{COLUMN} = (pid * {x // few} + slice) * {COLUMNS} + tl.arange(0, {COLUMNS})[:, None]",
        f"{COLUMN_MASK} = {COLUMN} < rows",
        *unflatten(COLUMN, {names[name]: extent for name, extent in loops.items()}),
    )
    return Apart(found, lines, x // few)


@dataclass(frozen=True, slots=True)
class Staged:
    """The lines of a kernel in stages, the dtypes of its workspace's arrays, and the launches."""

    lines: tuple[str, ...]
    arrays: tuple[str, ...]
    launches: int


def staged(
    kernel: ir.Kernel,
    block: Block,
    *,
    rows: str,
    splits: str,
    lanes: str,
    is_single: bool = False,
    apart: Apart | None = None,
) -> Staged:
    """The body of a kernel whose rows several programs share.

    `rows` is the text of the number of rows, whose flat index is the variable `x`; `chunk` is this
    program's part of the row, one of `splits`; `lanes` is a power of two that holds as many. Array
    number n of the workspace is the argument `w{n}`, with `rows` elements for each part, and as
    many for the total where they are brought together `apart`. A program that `is_single` has one
    row, `pid`.
    """
    plan = WalkPlan(kernel, block, SHARED)
    arrays: list[str] = []
    places = placed(plan, arrays)
    if apart is not None:
        return _staged_apart(kernel, plan, block, apart, places, arrays, splits, lanes)

    def at(part: str) -> str:
        return f"({part} * {rows} + x)"

    def beside(part: str) -> str:
        return f"({part} * {rows} + pid)" if is_single else at(part)

    stages = plan.depth + 1
    found: list[list[str]] = []
    for stage in range(stages):
        inside: list[str] = [*plan.row_lines(0)]
        for level in range(stage):
            inside += gathered(
                plan.totals(level),
                block,
                places,
                beside,
                splits=splits,
                lanes=lanes,
                is_single=is_single,
            )
            inside += plan.row_lines(level + 1)
        if stage < plan.depth:
            walked = _left(plan, block, stage, places, at)
            if all(total.precedes for total in plan.totals(stage)):
                # What nothing comes behind is no start of anything.
                walked = [f"if chunk + 1 < {splits}:", *(f"    {line}" for line in walked)]
            inside += walked
        else:
            if plan.last_walk == stage:
                inside += plan.walk(stage, [])
            row_stores = plan.row_stores()
            if row_stores and plan.last_walk == stage:
                inside += ["if chunk == 0:", *(f"    {line}" for line in row_stores)]
            elif row_stores:
                # Nothing is walked: the other programs of the row need not gather either.
                inside = ["if chunk == 0:", *(f"    {line}" for line in [*inside, *row_stores])]
        found.append(inside or ["pass"])
    return Staged(_told_apart(found), tuple(arrays), stages)


def _staged_apart(
    kernel: ir.Kernel,
    plan: WalkPlan,
    block: Block,
    apart: Apart,
    places: Mapping[str, int],
    arrays: Sequence[str],
    splits: str,
    lanes: str,
) -> Staged:
    """The same with a stage between for each walk; where nothing is walked then, it is the last."""
    few = WalkPlan(kernel, apart.block, SHARED)

    def at(part: str) -> str:
        return f"({part} * rows + x)"

    def beside(part: str) -> str:
        return f"({part} * rows + {COLUMN})"

    def known(plan: WalkPlan, levels: int, mask: str, total: str) -> list[str]:
        """What is there once a row when so many walks are complete, their totals but the last."""
        lines = plan.row_lines(0)
        for level in range(levels):
            for each in plan.totals(level):
                for part in each.parts:
                    where = f"w{places[part.name]} + {at('chunk') if each.precedes else total}"
                    masked = f", {mask}, other={part.neutral}" if mask else ""
                    lines.append(f"{part.name} = tl.load({where}{masked})")
                lines += each.results
            lines += plan.row_lines(level + 1)
        return lines

    stages: list[list[str]] = []
    for level in range(plan.depth):
        walked = known(plan, level, block.row_mask, at(splits))
        stages.append([*walked, *_left(plan, block, level, places, at)])
        totals = [total for total in few.totals(level) if not total.precedes]
        starts = [total for total in few.totals(level) if total.precedes]
        brought = gathered(totals, apart.block, places, beside, splits=splits, lanes=lanes)
        brought += _before(kernel, starts, apart.block, places, beside, splits=splits, lanes=lanes)
        is_last = level == plan.depth - 1 and plan.last_walk < plan.depth
        if is_last:
            brought = [*known(few, level, COLUMN_MASK, beside(splits)), *brought]
            brought += [*few.row_lines(plan.depth), *few.row_stores()]
        else:
            brought += [
                f"tl.store(w{places[part.name]} + {beside(splits)}, {part.name}, {COLUMN_MASK})"
                for total in totals
                for part in total.parts
            ]
        inside = [*apart.lines, *brought]
        header = f"for slice in range(chunk, {apart.slices}, {splits}):"
        stages.append([header, *(f"    {line}" for line in inside)])
    if plan.last_walk == plan.depth:
        walked = known(plan, plan.depth, block.row_mask, at(splits))
        walked += plan.walk(plan.depth, [])
        if row_stores := plan.row_stores():
            walked += ["if chunk == 0:", *(f"    {line}" for line in row_stores)]
        stages.append(walked)
    return Staged(_told_apart(stages), tuple(arrays), len(stages))


def _told_apart(stages: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The lines of all stages; a single launch has no argument that says which it is."""
    if len(stages) == 1:
        return tuple(stages[0])
    return tuple(
        line
        for stage, inside in enumerate(stages)
        for line in (f"if stage == {stage}:", *(f"    {each}" for each in inside))
    )


def _before(
    kernel: ir.Kernel,
    totals: Sequence[Total],
    block: Block,
    places: Mapping[str, int],
    at: Callable[[str], str],
    *,
    splits: str,
    lanes: str,
) -> list[str]:
    """What comes before each chunk, in the place of its total."""
    lines: list[str] = []
    wide = replace(block, lanes=lanes)
    mask = " & ".join(text for text in (block.row_mask, f"(part < {splits})") if text)
    for total in totals:
        (part,) = total.parts
        node = kernel.body[int(part.name.removeprefix("carry"))]
        assert isinstance(node, ir.Scan)
        where, dtype = f"w{places[part.name]} + {at('part')}", TRITON_TYPES[part.dtype].name
        neutral = f"tl.full({wide.element_shape}, {part.neutral}, {dtype})"
        combine = f"_before{combine_name(node.kind, node.dtype)}"
        both = f"({neutral}, {part.name})"
        lines += [
            f"{part.name} = tl.load({where}, {mask}, other={part.neutral})",
            f"{part.name}, last = tl.associative_scan({both}, {block.reduced_axis}, {combine})",
            # Whoever stores a start has not read the total that it takes the place of.
            "tl.debug_barrier()",
            f"tl.store({where}, {part.name}, {mask})",
        ]
    return lines


def _left(
    plan: WalkPlan, block: Block, level: int, places: Mapping[str, int], at: Callable[[str], str]
) -> list[str]:
    """A walk over the chunk, and its totals into the workspace."""
    totals = plan.totals(level)
    lines = plan.walk(level, totals)
    for total in totals:
        lines += plan.closed(total)
    return [*lines, *left(totals, block, places, at)]


def placed(plan: WalkPlan, arrays: list[str]) -> Mapping[str, int]:
    """The arrays of all parts by their names, behind those that there are; adds their dtypes."""
    places: dict[str, int] = {}
    for level in range(plan.depth):
        for total in plan.totals(level):
            for part in total.parts:
                places[part.name] = len(arrays)
                arrays.append(part.dtype)
    return places


def left(
    totals: Sequence[Total], block: Block, places: Mapping[str, int], at: Callable[[str], str]
) -> list[str]:
    """The totals of this program's chunk into the workspace, `at` the text of a chunk's place."""
    lines: list[str] = []
    mask = f", {block.row_mask}" if block.row_mask else ""
    for total in totals:
        for part in total.parts:
            value = f"tl.broadcast_to({part.name}, {block.row_shape})"
            lines.append(f"tl.store(w{places[part.name]} + {at('chunk')}, {value}{mask})")
    return lines


def gathered(
    totals: Sequence[Total],
    block: Block,
    places: Mapping[str, int],
    at: Callable[[str], str],
    *,
    splits: str,
    lanes: str,
    is_single: bool = False,
    there: str = "",
    more: Callable[[Total], Sequence[str]] | None = None,
) -> list[str]:
    """The totals of all chunks of this program's rows, or of those before, brought together.

    Where `at` is the place of a single row, parts have one axis: then each warp brings together all
    of them, if they are no more than its lanes, and none waits for another. As a row of a block,
    Triton may give all of them to each thread, in hundreds of registers. `there` is a mask of the
    lanes that have a part, where not all have. The lines `more` step the parts of a total with what
    no chunk has.
    """
    lines = [f"part = tl.arange(0, {lanes}){'' if is_single else '[None, :]'}"]
    for total in totals:
        wanted = "(part < chunk)" if total.precedes else f"(part < {splits})"
        mask = " & ".join(text for text in (block.row_mask, there, wanted) if text)
        for part in total.parts:
            where = f"w{places[part.name]} + {at('part')}"
            lines.append(f"{part.name} = tl.load({where}, {mask}, other={part.neutral})")
        lines += more(total) if more is not None else ()
        across = total.across("0" if is_single else str(block.reduced_axis))
        lines += across
        if is_single:
            made = {name for line in across for name in line.split(" = ")[0].split(", ")}
            lines += [f"{name} = tl.expand_dims({name}, 0)" for name in sorted(made)]
        lines += total.results
    return lines
