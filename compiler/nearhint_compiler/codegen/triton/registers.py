"""Whole bodies of Triton kernels without walks: points, and rows that are whole in registers.

A row is read once, and what comes of its reductions is there for all of its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from nearhint_compiler.codegen.triton.ahead import Ahead
from nearhint_compiler.codegen.triton.block import Block
from nearhint_compiler.codegen.triton.body import Body
from nearhint_compiler.codegen.triton.edges import Edges
from nearhint_compiler.codegen.triton.ops import combine_name
from nearhint_compiler.codegen.triton.text import TRITON_TYPES, index_text, neutral_text
from nearhint_compiler.codegen.triton.totals import LAST_PLACE, Total, total_of
from nearhint_compiler.codegen.triton.walks import found_within
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex


def straight(kernel: ir.Kernel, block: Block) -> list[str]:
    """The body of a pointwise kernel, or of one whose rows are whole in registers."""
    body = Body(kernel, block)
    bodies = [body, *(Body(kernel, piece) for piece in block.pieces)]
    edges = Edges(kernel, block) if block.edges else None
    varying = [p for p, varies in enumerate(body.varies) if varies]
    early = body.early
    header = [line for each in bodies for line in each.block.element_header]
    lines: list[str] = []
    before: list[str] = []
    taken: dict[int, list[str]] = {}
    if edges and block.turn:
        before = [*header, *edges.loads(early), *_lines(bodies, early)]
        if row := block.turn.ahead:
            ahead = Ahead(kernel, block, row.words)
            own = ahead.own(varying)
            before += ahead.loads(own, row=row.first, there=f"{row.first} < {row.end}")
            taken = ahead.taken(own, edges)
            lines += [line for place in own for line in taken[place]]
            lines += ahead.loads(own, row=row.next, there=f"{row.next} < {row.end}")
        lines += edges.loads([p for p in varying if p not in early and p not in taken])
    else:
        lines = [*edges.first(), *edges.loads(varying)] if edges else []
        lines += [*header, *_lines(bodies, early)]
    stores: list[str] = []
    behind = _behind(bodies, {*early, *taken})
    for position, node in enumerate(kernel.body):
        if position in behind:
            continue
        is_beside = edges and body.varies[position] and not isinstance(node, ir.Scan)
        beside = edges.rest([position]) if edges and is_beside else []
        match node:
            case ir.Reduce() | ir.Arg():
                lines += _reduced(bodies, position, node, edges)
            case ir.Store():
                stores += [*_lines(bodies, [position]), *beside]
            case ir.Scan() if edges or block.pieces:
                lines += _scanned(bodies, position, node, edges)
            case _ if position in early or position in taken:
                continue
            case _:
                lines += [*_lines(bodies, [position]), *beside]
    stores = [*_piece_by_piece(bodies, behind, edges), *stores]
    if block.is_anew:
        # Nothing more, as lengths are positive; but a compiler does not see that it is the same.
        length = index_text(ex.product(kernel.reduction))
        anew = [f"rbase = rbase + tl.minimum({length} - 1, 0)", *header]
        stores = [*anew, *stores]
    if block.turn is None:
        return [*lines, *stores]
    inside = [*block.turn.lines, *lines, *stores]
    return [*before, block.turn.header, *(f"    {line}" for line in inside)]


def _lines(bodies: Sequence[Body], places: Sequence[int]) -> list[str]:
    """The lines of nodes, once a piece of the row if they vary along it."""
    return [
        line
        for place in places
        for body in (bodies if bodies[0].varies[place] else bodies[:1])
        for line in body.lines(place)
    ]


def _behind(bodies: Sequence[Body], before: Collection[int]) -> list[int]:
    """What is done with a row in pieces once it is reduced, if what rows share is loaded for that,
    and was not `before`.

    Rows' own loads are no part of it: memory is asked for all pieces of them at once. Nor is
    anything where places are computed anew for all stores together.
    """
    body, *others = bodies
    if not others or body.block.is_anew:
        return []
    done = {*before}
    for position, node in enumerate(body.kernel.body):
        is_own = isinstance(node, ir.Load) and not body.is_shared(position)
        if is_own or isinstance(node, ir.Reduce | ir.Arg | ir.Scan):
            done |= {position, *body.needed(body.named(position))}
    behind = [p for p, varies in enumerate(body.varies) if varies and p not in done]
    return behind if any(isinstance(body.kernel.body[p], ir.Load) for p in behind) else []


def _piece_by_piece(
    bodies: Sequence[Body], places: Sequence[int], edges: Edges | None
) -> list[str]:
    """The lines of nodes, one piece of the row after the other, to its stores, and its edges last.

    What rows share is loaded for a piece only once the one before it is stored, since it may have
    been stored there for all that a compiler knows: loaded for all pieces at once it took twice the
    registers, and as many rows less were under way.
    """
    lines = [line for body in bodies for place in places for line in body.lines(place)]
    return [*lines, *(edges.rest(places) if edges else [])]


def _scanned(
    bodies: Sequence[Body], position: int, node: ir.Scan, edges: Edges | None
) -> list[str]:
    """The lines that scan the pieces of a row one after the other, and its edges about them."""
    combine, neutral = combine_name(node.kind, node.dtype), neutral_text(node.kind, node.dtype)
    axis, lines = bodies[0].block.reduced_axis, list[str]()
    start, whole = "", ""
    if edges:
        start = f"before{position}"
        lines += edges.scanned(position, node, before=start)
    for number, body in enumerate(bodies):
        name = body.name(position)
        scanned = f"tl.associative_scan({name}, {axis}, {combine})"
        lines.append(f"{name} = {body.operand(node.operand, neutral, node.dtype)}")
        total = f"tl.reduce({name}, {axis}, {combine}, keep_dims=True)"
        if whole:
            total = f"{combine}({whole}, {total})"
        start_here = f"{combine}({start}, {whole})" if start and whole else start or whole
        if edges or number < len(bodies) - 1:
            whole = f"whole{position}_{number}"
            lines.append(f"{whole} = {total}")
        lines.append(f"{name} = {scanned}")
        if start_here:
            lines.append(f"{name} = {combine}({start_here}, {name})")
    return [*lines, *([edges.behind(position, node, whole=whole)] if edges else [])]


def _reduced(
    bodies: Sequence[Body], position: int, node: ir.Reducing, edges: Edges | None
) -> list[str]:
    body, neutral = bodies[0], neutral_text(node.kind, node.dtype)
    axis, width = body.block.reduced_axis, body.block.place
    total = total_of(body.kernel, position, place_dtype=width)
    if isinstance(node, ir.Reduce):
        operand = body.operand(node.operand, neutral, node.dtype)
        if not edges and len(bodies) == 1:
            if _is_deep_sum(body, node):
                return [f"v{position} = _sum_of_parts({operand})"]
            combine = combine_name(node.kind, node.dtype)
            return [f"v{position} = tl.reduce({operand}, {axis}, {combine}, keep_dims=True)"]
        name = f"acc{position}"
        steps = [f"{name} = {each.stepped(name, node)}" for each in bodies[1:]]
        return [f"{name} = {operand}", *steps, *brought_together(body, position, node, edges)]
    operand, *others = (each.operand(node.operand, neutral, node.dtype) for each in bodies)
    if total.groups and body.block.group > 1:
        return _grouped_arg(body, total, [operand, *others], edges)

    def place_of(each: Body) -> str:
        place = f"tl.full({each.block.element_shape}, 0, {TRITON_TYPES[width].name})"
        place = f"{place} + {each.block.text(node.index)}"
        if node.index != ex.symbol("r0") or len(each.kernel.reduction) > 1:
            # Beyond the row places are beyond all of it, if they are those of the row itself.
            return each.masked(place, LAST_PLACE[width], width)
        return place

    return [
        f"acc{position} = {operand}",
        f"at{position} = {place_of(body)}",
        *_found_behind(total, others, [place_of(each) for each in bodies[1:]]),
        *(edges.accumulated(total, group=1) if edges else []),
        *total.across(str(axis)),
        *total.results,
    ]


def _is_deep_sum(body: Body, node: ir.Reduce) -> bool:
    """Whether a sum in f32 would lose digits in the chain of a thread's elements."""
    return body.block.is_deep and (node.kind, node.dtype) == ("sum", "f32")


def brought_together(body: Body, position: int, node: ir.Reduce, edges: Edges | None) -> list[str]:
    """The lines that make a reduce's value of what it was stepped with, and of a row's edges."""
    total = total_of(body.kernel, position, place_dtype=body.block.place)
    lines = edges.accumulated(total, group=1) if edges else []
    across = total.across(str(body.block.reduced_axis))
    if _is_deep_sum(body, node):
        across = [f"acc{position} = _sum_of_parts(acc{position})"]
    lines += [*across, *total.results]
    if body.block.is_single:
        # A scalar: else Triton may compute the elements twice, once as the words are laid out.
        value = f"tl.reduce(v{position}, None, {combine_name(node.kind, node.dtype)})"
        dtype = TRITON_TYPES[node.dtype].name
        lines.append(f"v{position} = tl.full({body.block.row_shape}, {value}, {dtype})")
    return lines


def _found_behind(total: Total, values: Sequence[str], places: Sequence[str]) -> list[str]:
    """The lines that step an arg with pieces of the row behind the first, and their places."""
    step, both = total.onward or total.step, ", ".join(part.name for part in total.parts)

    def at(place: str) -> Callable[[ex.Expr], str]:
        return lambda _: place

    pairs = zip(values, places, strict=True)
    return [f"{both} = {step(value, at(place))}" for value, place in pairs]


def _grouped_arg(
    body: Body, total: Total, operands: Sequence[str], edges: Edges | None
) -> list[str]:
    block = body.block
    value, place = (part.name for part in total.parts)
    assert total.groups is not None
    first, *others = (
        total.groups.best(
            f"tl.reshape({operand}, {block.group_shape[:-1]}, {block.group}])",
            str(len(block.axes)),
        )
        for operand in operands
    )
    return [
        f"{value} = {first}",
        f"{place} = tl.broadcast_to({block.group_start}, {block.group_shape})",
        *_found_behind(total, others, [piece.group_start for piece in block.pieces]),
        *(edges.accumulated(total, group=block.group) if edges else []),
        *total.across(str(block.reduced_axis)),
        *found_within(body.kernel, block, total),
        *total.results,
    ]
