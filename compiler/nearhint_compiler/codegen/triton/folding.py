"""Columns that programs share, several rows of them as one (`analysis.folds`), in two stages.

In the first each program walks its chunk of the long columns; the first one has the rest of the
rows, too, at once. What it leaves are the totals of long columns, `by` for each column: the last
stage brings together those of all chunks and of the rows that were one, in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nearhint_compiler.analysis.folds import Fold
from nearhint_compiler.analysis.online import SHARED
from nearhint_compiler.codegen.triton.block import REDUCED, Block
from nearhint_compiler.codegen.triton.body import Body
from nearhint_compiler.codegen.triton.ops import combine_name
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
    kernel: ir.Kernel, fold: Fold, block: Block, *, by: int, splits: str, lanes: str
) -> Staged:
    """The body of `kernel`, of which `block` walks long columns; the rest as in `stages.staged`.

    `lanes` is a power of two that holds the parts of a column, `by` of each program that shares it.
    """
    plan = WalkPlan(fold.whole, block, SHARED)
    arrays: list[str] = []
    places = placed(plan, arrays)
    totals = plan.totals(0)
    (columns,) = kernel.pointwise
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
        *(_combined(kernel, total, f"rest{_place(total)}") for total in totals),
        *left(totals, block, places, lambda part: f"({part} * rows + x)"),
    ]
    few = replace(
        block,
        axes=(COLUMNS, REDUCED),
        axis_of={**block.axis_of, "p0": COLUMNS},
        masks={COLUMNS: COLUMN_MASK},
        renamed={"p0": ex.symbol("column")},
    )
    ends = WalkPlan(kernel, few, SHARED)
    last = [
        *ends.row_lines(0),
        *gathered(
            ends.totals(0),
            few,
            places,
            lambda part: f"({part} * columns + column)",
            splits=f"{splits} * {by}",
            lanes=lanes,
        ),
        *ends.row_lines(1),
        *ends.row_stores(),
    ]
    lines = [
        "if stage == 0:",
        *(f"    {line}" for line in first),
        "if stage == 1:",
        "    if chunk == 0:",
        f"        columns = {index_text(columns)}",
        f"        column = pid * {COLUMNS} + tl.arange(0, {COLUMNS})[:, None]",
        f"        {COLUMN_MASK} = column < columns",
        *(f"        {line}" for line in last),
    ]
    return Staged(tuple(lines), tuple(arrays), 2)


def _rest(
    kernel: ir.Kernel, fold: Fold, block: Block, totals: Sequence[Total], *, by: int
) -> list[str]:
    """The rows that are no whole long one, for the first chunk; neutral for the others."""
    (columns,), (length,) = kernel.pointwise, kernel.reduction
    rest = replace(
        block,
        masks={"X": REST},
        prefix="t",
        renamed={"r0": fold.rest},
    )
    body = Body(fold.whole, rest)
    count = index_text(ex.mul(ex.mod(length, by), columns))
    lines = [f"{REST} = (x < {count}) & (chunk == 0)"]
    lines += [line for place in fold.needed if body.varies[place] for line in body.lines(place)]
    for total in totals:
        (part,) = total.parts
        neutral = f"tl.full({block.row_shape}, {part.neutral}, {TRITON_TYPES[part.dtype].name})"
        value = f"tl.broadcast_to({body.name(total.operand)}, {block.row_shape})"
        lines.append(f"rest{_place(total)} = tl.where({REST}, {value}, {neutral})")
    return lines


def _place(total: Total) -> str:
    return total.parts[0].name.removeprefix("acc")


def _combined(kernel: ir.Kernel, total: Total, other: str) -> str:
    name = total.parts[0].name
    node = kernel.body[int(_place(total))]
    assert isinstance(node, ir.Reduce)
    return f"{name} = {combine_name(node.kind, node.dtype)}({name}, {other})"
