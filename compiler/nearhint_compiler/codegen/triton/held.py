"""Long rows that are walked twice, with the last tiles of the first walk held in registers.

The second walk begins with them, and reads them no more: what it reads again comes from the L2
cache, whose bandwidth is what long rows beside weights wait for. The tiles that are walked are all
whole, and need no mask; those that are held end with the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nearhint_compiler.analysis.online import depth_of, walks_of
from nearhint_compiler.codegen.triton.block import REDUCED, Block
from nearhint_compiler.codegen.triton.body import Body
from nearhint_compiler.codegen.triton.row import PIECE, split_row
from nearhint_compiler.codegen.triton.text import index_text
from nearhint_compiler.codegen.triton.walks import WalkPlan
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex

WALKED_END = "rwalked"
"""Where the tiles end that are walked."""
FIRST, SECOND = 0, 1


def held_walks(kernel: ir.Kernel, block: Block, schedule: Schedule) -> list[str]:
    """The body of a kernel that walks its rows but for so many tiles; raises `InvalidSchedule`
    where rows are not walked twice, or not in flat tiles of whatever length.
    """
    is_flat = not (block.is_tiled or block.edges or block.spans or block.together)
    has_order = any(isinstance(node, ir.Scan | ir.Arg) for node in kernel.body)
    if depth_of(kernel) != SECOND or walks_of(kernel) != SECOND + 1 or has_order or not is_flat:
        raise InvalidSchedule(f"tiles held of rows that are not walked twice: {schedule}")
    count = schedule["held"]
    plan = WalkPlan(kernel, block)
    masks = {axis: mask for axis, mask in block.masks.items() if axis != REDUCED}
    walked = WalkPlan(kernel, replace(block, end=WALKED_END, masks=masks))
    tiles = [tile(kernel, block, number, after=WALKED_END) for number in range(count)]
    plans = [WalkPlan(kernel, tile) for tile in tiles]
    totals = plan.totals(FIRST)
    needed = plan.needed(totals)
    loads = [place for place in needed if plan.body.is_independent(place)]
    lines = [
        f"{WALKED_END} = tl.maximum(({block.end} + (R - 1)) // R - {count}, 0) * R",
        *plan.row_lines(FIRST),
        *walked.walk(FIRST, totals, pivots=plan),
    ]
    # All of them first: they are under way together.
    lines += [line for tile in tiles for line in tile.element_header]
    lines += _lines([each.body for each in plans], loads, "evict_first")
    for each in plans:
        lines += _lines([each.body], [place for place in needed if place not in loads], "")
        lines += [line for total in totals for line in each.stepped(total)]
    for total in totals:
        lines += [*plan.closed(total), *total.results]
    lines += plan.row_lines(SECOND)
    for each in reversed(plans):
        stores = each.body.element_stores
        again = [place for place in each.body.needed(stores) if place not in {*loads, *stores}]
        lines += _lines([each.body], [*again, *stores], "evict_first")
    return [*lines, *walked.walk(SECOND, []), *plan.row_stores()]


def tile(kernel: ir.Kernel, block: Block, number: int, *, after: str) -> Block:
    """Tile `number` of those that are held behind `after`, which a short row may not reach."""
    prefix = f"{PIECE}{number}"
    lane, end, lines = f"{prefix}r", index_text(ex.product(kernel.reduction)), list[str]()
    if block.word > 1:
        lane, end = f"{prefix}rlane", "rbody"
        lines = [f"{prefix}r = rhead + {lane}"]
    lines = [f"{lane} = rbase + ({after} + {number} * R)", *lines, *split_row(kernel, prefix)]
    masks = dict(block.masks)
    if REDUCED in masks:
        masks[REDUCED] = f"{prefix}rmask"
        lines.append(f"{prefix}rmask = {lane} < {end}")
    names = [f"r{place}" for place in range(len(kernel.reduction))]
    return replace(
        block,
        element_header=tuple(lines),
        prefix=f"{prefix}v",
        renamed={name: ex.symbol(f"{prefix}{name}") for name in names},
        texts=dict.fromkeys(block.texts, f"(rword + {lane})"),
        phased=dict.fromkeys(block.phased, lane),
        masks=masks,
    )


def _lines(bodies: Sequence[Body], places: Sequence[int], policy: str) -> list[str]:
    return [
        line for body in bodies for place in places for line in body.lines(place, policy=policy)
    ]
