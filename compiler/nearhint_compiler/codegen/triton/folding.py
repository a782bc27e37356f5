"""Columns that programs share, several rows of them as one (`analysis.folds`), in two stages.

In the first each program walks its chunk of the long columns; the first one has the rest of the
rows, too, at once. What it leaves are the totals of long columns, `by` for each column: the last
stage brings together those of all chunks and of the rows that were one, in one order. Of planes
a program leaves one total for each that it has a part of (`plane_folds`).

Where elements are stored there are three: the rest of the rows is a chunk of its own, of one long
row that is not whole, what all leave is brought together in the second, by programs of few columns,
and in the third each program walks its chunk again, with the totals of the columns that its long
ones are parts of.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nearhint_compiler.analysis.folds import Fold
from nearhint_compiler.analysis.online import SHARED
from nearhint_compiler.codegen.triton.block import REDUCED, Block
from nearhint_compiler.codegen.triton.body import Body
from nearhint_compiler.codegen.triton.ops import combine_name
from nearhint_compiler.codegen.triton.plane_folds import PLACE, THERE, Segments
from nearhint_compiler.codegen.triton.stages import (
    COLUMN_MASK,
    COLUMNS,
    Staged,
    gathered,
    left,
    placed,
)
from nearhint_compiler.codegen.triton.text import TRITON_TYPES, index_text
from nearhint_compiler.codegen.triton.totals import Total
from nearhint_compiler.codegen.triton.walks import WalkPlan
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

REST = "restmask"
"""The mask of the columns of the first stage; those of the last one are as many times fewer as rows
were one, so that the same programs have all of them."""


def folding(
    kernel: ir.Kernel,
    fold: Fold,
    block: Block,
    *,
    by: int,
    splits: str,
    lanes: str,
    of: Segments | None = None,
) -> Staged:
    """The body of `kernel`, of which `block` walks long columns; the rest as in `stages.staged`.

    `lanes` is a power of two that holds the parts of a column, `by` of each program that shares it,
    or those of a plane, where columns are parts `of` planes.
    """
    # What counts the rows of a column counts those of all.
    walked = replace(fold.whole, reduction=(ex.product(kernel.reduction),))
    plan = WalkPlan(walked, block, SHARED)
    arrays: list[str] = []
    places = placed(plan, arrays)
    totals = plan.totals(0)
    first = [
        *(
            line
            for place in fold.needed
            if not plan.body.varies[place]
            for line in plan.body.lines(place)
        ),
        *_rest(kernel, fold, block, totals, by=by),
        *plan.walk(0, totals),
        *(line for total in totals for line in plan.closed(total)),
        *(line for total in totals for line in _combined(kernel, total)),
    ]
    lines: list[str] = []
    if of is None:
        first += left(totals, block, places, lambda part: f"({part} * rows + x)")
        last = _ended(kernel, block, places, splits=f"{splits} * {by}", lanes=lanes)
    else:
        lines = [f"columns = {index_text(kernel.pointwise[0])}", *of.lines]
        first += of.left(totals, places)
        last = [
            f"for slice in range(pid * {splits} + chunk, columns, {of.blocks} * {splits}):",
            *(f"    {line}" for line in _ended_plane(kernel, block, places, of, lanes)),
        ]
    lines += [
        "if stage == 0:",
        *(f"    {line}" for line in first),
        "if stage == 1:",
        *(f"    {line}" for line in last),
    ]
    return Staged(tuple(lines), tuple(arrays), 2)


def _ended(
    kernel: ir.Kernel, block: Block, places: Mapping[str, int], *, splits: str, lanes: str
) -> list[str]:
    """The last stage: the first program of a block of long columns has `COLUMNS` of the others."""
    few = _few(block, masks={COLUMNS: COLUMN_MASK})
    ends = WalkPlan(kernel, few, SHARED)

    def at(part: str) -> str:
        return f"({part} * columns + column)"

    last = [
        *ends.row_lines(0),
        *gathered(ends.totals(0), few, places, at, splits=splits, lanes=lanes),
        *ends.row_lines(1),
        *ends.row_stores(),
    ]
    return [
        "if chunk == 0:",
        f"    columns = {index_text(kernel.pointwise[0])}",
        f"    column = pid * {COLUMNS} + tl.arange(0, {COLUMNS})[:, None]",
        f"    {COLUMN_MASK} = column < columns",
        *(f"    {line}" for line in last),
    ]


def _ended_plane(
    kernel: ir.Kernel, block: Block, places: Mapping[str, int], segments: Segments, lanes: str
) -> list[str]:
    """The same of planes, of which a program has number `slice`."""
    few = _few(block, masks={})
    ends = WalkPlan(kernel, few, SHARED)
    brought = gathered(
        ends.totals(0),
        few,
        places,
        lambda _: PLACE,
        splits=segments.lanes,
        lanes=lanes,
        is_single=True,
        there=THERE,
    )
    return [
        f"column = slice + tl.arange(0, {COLUMNS})[:, None]",
        *segments.brought(lanes),
        *ends.row_lines(0),
        *brought,
        *ends.row_lines(1),
        *ends.row_stores(),
    ]


def _few(block: Block, *, masks: Mapping[str, str]) -> Block:
    """A block of the columns that one program brings together."""
    return replace(
        block,
        axes=(COLUMNS, REDUCED),
        axis_of={**block.axis_of, "p0": COLUMNS},
        masks=masks,
        renamed={"p0": ex.symbol("column")},
    )


def folding_stores(
    kernel: ir.Kernel, fold: Fold, block: Block, *, by: int, blocks: str, splits: str, lanes: str
) -> Staged:
    """The same of a kernel that stores along its columns; totals lie behind the parts of all chunks
    and of the rest, and all programs, `splits` for each of the `blocks` of long columns, bring them
    together, `COLUMNS` columns at a time.
    """
    # What counts the rows of a column counts those of all.
    walked = replace(fold.whole, reduction=kernel.reduction)
    whole = WalkPlan(walked, block, SHARED)
    arrays: list[str] = []
    places = placed(whole, arrays)
    totals = whole.totals(0)
    (columns,), (length,) = kernel.pointwise, kernel.reduction
    many = index_text(columns)
    others = index_text(ex.mod(length, by))
    rest = replace(
        block,
        masks={"X": REST, REDUCED: "tmask"},
        element_header=("tmask = rbase < 1", f"r0 = {index_text(fold.rest)} + rbase"),
        # As wide as the offsets of the other chunks.
        start=f"{block.start} * 0",
        end="1",
        counted="",
        counted_first="",
        step_count="",
        unroll=1,
        ahead=1,
        prefix="t",
    )
    few = _few(block, masks={COLUMNS: COLUMN_MASK})
    beside = WalkPlan(walked, rest, SHARED)

    def left_of(plan: WalkPlan, of: Block, chunk: str) -> list[str]:
        closed = [line for total in totals for line in plan.closed(total)]
        found = left(totals, of, places, lambda _: f"({chunk} * rows + x)")
        return [*plan.walk(0, totals), *closed, *found]

    def of_rest(lines: Sequence[str]) -> list[str]:
        """Lines of the last chunk, which may be shorter than the others."""
        lines = [f"{REST} = x < {others} * {many}", *lines]
        return [f"if chunk == {splits} - 1:", *(f"    {line}" for line in lines)]

    def total_at(column: str) -> str:
        return f"(({splits} + 1) * rows + {column})"

    first = [
        *whole.row_lines(0),
        *left_of(whole, block, "chunk"),
        *of_rest(left_of(beside, rest, splits)),
    ]
    brought = [
        f"column = slice * {COLUMNS} + tl.arange(0, {COLUMNS})[:, None]",
        f"{COLUMN_MASK} = column < {many}",
        *gathered(
            totals,
            few,
            places,
            lambda part: f"({part} * {many} + column)",
            splits=f"({splits} * {by} + {others})",
            lanes=lanes,
        ),
        *(
            f"tl.store(w{places[part.name]} + {total_at('column')}, {part.name}, {COLUMN_MASK})"
            for total in totals
            for part in total.parts
        ),
    ]
    slices = f"({many} + {COLUMNS} - 1) // {COLUMNS}"
    turns = f"range(pid * {splits} + chunk, {slices}, {blocks} * {splits})"
    mask = f", {block.row_mask}" if block.row_mask else ""
    last = [
        *whole.row_lines(0),
        *(
            f"{part.name} = tl.load(w{places[part.name]} + {total_at(f'x % {many}')}{mask})"
            for total in totals
            for part in total.parts
        ),
        *(line for total in totals for line in total.results),
        *whole.row_lines(1),
        *whole.walk(1, []),
        *of_rest(beside.walk(1, [])),
    ]
    lines = [
        "if stage == 0:",
        *(f"    {line}" for line in first),
        "if stage == 1:",
        f"    for slice in {turns}:",
        *(f"        {line}" for line in brought),
        "if stage == 2:",
        *(f"    {line}" for line in last),
    ]
    return Staged(tuple(lines), tuple(arrays), 3)


def _rest(
    kernel: ir.Kernel, fold: Fold, block: Block, totals: Sequence[Total], *, by: int
) -> list[str]:
    """The rows that are no whole long one, for the first chunk; neutral for the others."""
    columns, length = ex.product(kernel.pointwise), kernel.reduction[0]
    rest = replace(
        block,
        masks={"X": REST},
        prefix="t",
        renamed={"r0": fold.rest},
    )
    body = Body(fold.whole, rest)
    count = index_text(ex.mul(ex.mod(length, by), columns, fold.plane))
    lines = [f"{REST} = (x < {count}) & (chunk == 0)"]
    lines += [line for place in fold.needed if body.varies[place] for line in body.lines(place)]
    for total in totals:
        part = total.parts[0]
        value = f"tl.broadcast_to({body.name(total.operand)}, {block.row_shape})"
        if total.beside is None:
            neutral = f"tl.full({block.row_shape}, {part.neutral}, {TRITON_TYPES[part.dtype].name})"
            value = f"tl.where({REST}, {value}, {neutral})"
        lines.append(f"rest{_place(total)} = {value}")
    return lines


def _place(total: Total) -> str:
    return total.parts[0].name.lstrip(string.ascii_lowercase)


def _combined(kernel: ir.Kernel, total: Total) -> Sequence[str]:
    """The rest into what the walk left."""
    name, other = total.parts[0].name, f"rest{_place(total)}"
    if total.beside is not None:
        return total.beside(other, REST)
    node = kernel.body[int(_place(total))]
    assert isinstance(node, ir.Reduce)
    return [f"{name} = {combine_name(node.kind, node.dtype)}({name}, {other})"]
