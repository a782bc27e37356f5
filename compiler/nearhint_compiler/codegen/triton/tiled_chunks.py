"""Chunks of rows in several tiles, which a program of a team holds in registers.

They are loaded together. What stores need beside them, such as weights, comes a tile at a time
after the meeting, in registers that earlier tiles have left. So that this is little, places are
computed anew then; a compiler that saw that they are the same in all rows would hold those of all
tiles. Where it is one load, there is room for that of the next tile before this one is stored: no
compiler moves loads before stores.

A row takes as long as what its program waits for one after the other. So lanes of a variance are
shifted by means of their own elements, and all lanes are brought together but once.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.codegen.triton.kept import Kept
from nearhint_compiler.codegen.triton.text import TRITON_TYPES
from nearhint_compiler.codegen.triton.totals import Total
from nearhint_compiler.codegen.triton.walks import WalkPlan, started


def held_in_tiles(
    plan: WalkPlan,
    totals: Sequence[Total],
    tiles: Sequence[WalkPlan],
    *,
    anew: Sequence[str],
    kept: Kept | None,
) -> tuple[list[str], list[str], list[str], list[str]]:
    """The lines that hold a chunk in several blocks, of which the last may be beyond the row, and
    its totals; the loads beside it, of which there are none; what comes after the meeting, behind
    the lines `anew`; and all of what another program gave up. What is `kept` is in registers.
    """
    known = [*plan.needed(totals), *(kept.places if kept else ())]
    held = [*_loaded(plan, tiles, plan.needed(totals))]
    held += [line for total in totals for line in _summed(plan, total, tiles)]
    stores = [each.stored(known) for each in tiles]
    loads = [
        [*each.body.block.element_header, *first, *(kept.taken(number) if kept else ())]
        for number, (each, (first, _)) in enumerate(zip(tiles, stores, strict=True))
    ]
    ahead = 1 if all(len(first) == 1 for first, _ in stores) else 0
    then = [*anew, *(line for lines in loads[:ahead] for line in lines)]
    for (_, rest), others in zip(stores, [*loads[ahead:], *[[]] * ahead], strict=True):
        then += [*others, *rest]
    again = [
        line
        for each in tiles
        for line in (
            *each.body.block.element_header,
            *(line for lines in each.stored(()) for line in lines),
        )
    ]
    return held, [], then, again


def _loaded(plan: WalkPlan, tiles: Sequence[WalkPlan], known: Sequence[int]) -> list[str]:
    """All loads first: they are under way together."""
    bodies = [each.body for each in tiles]
    loads = [place for place in known if plan.body.is_independent(place)]
    rest = [place for place in known if place not in loads]
    return [
        *(line for body in bodies for line in body.block.element_header),
        *(line for body in bodies for place in loads for line in body.lines(place)),
        *(line for body in bodies for place in rest for line in body.lines(place)),
    ]


def _summed(plan: WalkPlan, total: Total, tiles: Sequence[WalkPlan]) -> list[str]:
    block = plan.body.block
    shape = block.group_shape if plan.group_of(total) > 1 else block.element_shape
    lines = [started(part, shape) for part in total.walked]
    if total.pivot:
        assert total.grouped is not None
        groups = [_with_masks(each, total) for each in tiles]
        names = ", ".join(part.name for part in total.walked)
        lines.append(f"{total.pivot.name} = _own_pivot({groups[0]})")
        lines += [f"{names} = {total.grouped(each, '')}" for each in groups]
    else:
        lines += [line for each in tiles for line in each.stepped(total)]
    return [*lines, *plan.closed(total)]


def _with_masks(plan: WalkPlan, total: Total) -> str:
    """The elements of a total by groups, and 1 for each of them, and 0 beyond the row."""
    block, dtype = plan.body.block, total.walked[0].dtype
    shape, ones = block.lanes_shape(plan.group_of(total)), TRITON_TYPES[dtype].name
    there = f"tl.full({block.element_shape}, 1, {ones})"
    if mask := block.column_mask:
        there = f"tl.broadcast_to({mask}, {block.element_shape}).to({ones})"
    elements = plan.body.operand(total.operand, "0.0", dtype)
    return f"tl.reshape({elements}, {shape}), tl.reshape({there}, {shape})"
