"""Whole bodies of Triton kernels: in registers, in walks over the row, and in stages.

In registers a row is read once. A walk reads it in blocks, once for each level of nested reduces
that one walk does not compute (`analysis.online`), and once more for stores along the row; what a
later walk needs is computed again. Every other walk goes backwards. In stages several programs
share a row: each walks its chunk, and leaves its totals in a workspace for the next launch of the
same kernel, where every program brings together those of its row.

A scan in stages waits for the totals of its operand, as a reduce does; then each program starts
from those of the chunks before its own, combined in one tree over all chunks, in which its own and
later ones are neutral. Block by block, the prefixes in a block are combined with what came before.
So the order is fixed, and the same input gives the same bits for the same schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nearhint_compiler.analysis.online import SHARED, WALKED, Completed, online_pairs, walk_levels
from nearhint_compiler.codegen.triton.block import Block
from nearhint_compiler.codegen.triton.body import Body
from nearhint_compiler.codegen.triton.edges import Edges, stepped
from nearhint_compiler.codegen.triton.ops import combine_name
from nearhint_compiler.codegen.triton.text import TRITON_TYPES, neutral_text
from nearhint_compiler.codegen.triton.totals import (
    LAST_PLACE,
    Part,
    Total,
    online_total,
    total_of,
)
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex


def straight(kernel: ir.Kernel, block: Block) -> list[str]:
    """The body of a pointwise kernel, or of one whose rows are whole in registers."""
    body = Body(kernel, block)
    edges = Edges(kernel, block) if block.edges else None
    varying = [p for p, varies in enumerate(body.varies) if varies]
    early = body.early
    lines: list[str] = []
    before: list[str] = []
    if edges and block.turn:
        before = [*block.element_header, *edges.loads(early), *_lines(body, early)]
        lines += edges.loads([p for p in varying if p not in early])
    else:
        lines = [*edges.first(), *edges.loads(varying)] if edges else []
        lines += [*block.element_header, *_lines(body, early)]
    stores: list[str] = []
    for position, node in enumerate(kernel.body):
        is_beside = edges and body.varies[position] and not isinstance(node, ir.Scan)
        beside = edges.rest([position]) if edges and is_beside else []
        match node:
            case ir.Reduce() | ir.Arg():
                lines += _reduced(body, position, node, edges)
            case ir.Store():
                stores += [*body.lines(position), *beside]
            case ir.Scan() if edges:
                lines += edges.scanned(body, position, node)
            case _ if position in early:
                continue
            case _:
                lines += [*body.lines(position), *beside]
    if block.turn is None:
        return [*lines, *stores]
    inside = [*block.turn.lines, *lines, *stores]
    return [*before, block.turn.header, *(f"    {line}" for line in inside)]


def _lines(body: Body, places: Sequence[int]) -> list[str]:
    return [line for place in places for line in body.lines(place)]


def _reduced(body: Body, position: int, node: ir.Reducing, edges: Edges | None) -> list[str]:
    axis = body.block.reduced_axis
    operand = body.operand(node.operand, neutral_text(node.kind, node.dtype), node.dtype)
    width = body.block.place
    total = total_of(body.kernel, position, place_dtype=width)
    within = edges.accumulated(total, group=1) if edges else []
    if isinstance(node, ir.Reduce):
        combine = combine_name(node.kind, node.dtype)
        if not edges:
            return [f"v{position} = tl.reduce({operand}, {axis}, {combine}, keep_dims=True)"]
        lines = [f"acc{position} = {operand}", *within, *total.across(str(axis)), *total.results]
        if body.block.is_single:
            # A scalar: else Triton may compute the elements twice, once as the words are laid out.
            value = f"tl.reduce(v{position}, None, {combine})"
            dtype = TRITON_TYPES[node.dtype].name
            lines.append(f"v{position} = tl.full({body.block.row_shape}, {value}, {dtype})")
        return lines
    place = f"tl.full({body.block.element_shape}, 0, {TRITON_TYPES[width].name})"
    place = f"{place} + {body.block.text(node.index)}"
    if node.index != ex.symbol("r0") or len(body.kernel.reduction) > 1:
        # Beyond the row places are beyond all of it, if they are those of the row itself.
        place = body.masked(place, LAST_PLACE[width], width)
    return [
        f"acc{position} = {operand}",
        f"at{position} = {place}",
        *within,
        *total.across(str(axis)),
        *total.results,
    ]


def walked(kernel: ir.Kernel, block: Block) -> list[str]:
    """The body of a kernel that walks its rows.

    Stores along the row wait for the last walk, because their memory may be that of an input which
    the walks before it read again.
    """
    plan = WalkPlan(kernel, block)
    lines: list[str] = []
    for level in range(plan.depth + 1):
        lines += plan.row_lines(level)
        if level < plan.depth:
            totals = plan.totals(level)
            lines += plan.walk(level, totals)
            for total in totals:
                lines += [*plan.closed(total), *total.results]
        elif plan.last_walk == level:
            lines += plan.walk(level, [])
    return [*lines, *plan.row_stores()]


class WalkPlan:
    """Which reductions each walk completes, and what is computed between walks.

    Walk number i (from 0) completes the reduces of level i + 1; `last_walk` is the one that stores
    along the row, `depth` the number of walks that complete something. What is `completed` by a
    walk is among its totals; scans that are not go along with a walk, from a neutral start.
    """

    def __init__(self, kernel: ir.Kernel, block: Block, completed: Completed = WALKED) -> None:
        self.body = Body(kernel, block)
        self._edges = Edges(kernel, block) if block.edges else None
        self._kernel = kernel
        self._block = block
        self._pairs = online_pairs(kernel)
        self._completed = completed
        self._levels = walk_levels(kernel, self._pairs, completed)
        reduces = [p for p, node in enumerate(kernel.body) if isinstance(node, completed)]
        self.depth = max((self._levels[p] for p in reduces), default=0)
        wanted = [self._levels[p] for p in self.body.element_stores]
        self.last_walk = max([self.depth - 1, *wanted]) if wanted else self.depth - 1

    def totals(self, walk: int) -> list[Total]:
        """What walk number `walk` accumulates."""
        found: list[Total] = []
        pairs = {pair.first: pair for pair in self._pairs}
        seconds = {pair.second for pair in self._pairs}
        for position, node in enumerate(self._kernel.body):
            if not isinstance(node, self._completed) or self._levels[position] != walk + 1:
                continue
            if position in pairs:
                found.append(online_total(self._kernel, pairs[position]))
            elif position not in seconds:
                found.append(total_of(self._kernel, position, place_dtype=self._block.place))
        return found

    def row_lines(self, level: int) -> list[str]:
        """What is there once a row and needs exactly `level` completed walks, stores aside."""
        return [
            line
            for position, node in enumerate(self._kernel.body)
            if self._levels[position] == level
            and not self.body.varies[position]
            and not isinstance(node, ir.Reduce | ir.Arg | ir.Store)
            for line in self.body.lines(position)
        ]

    def row_stores(self) -> list[str]:
        """The stores that run once a row."""
        return [line for position in self.body.row_stores for line in self.body.lines(position)]

    def walk(self, number: int, totals: Sequence[Total]) -> list[str]:
        """One walk over the row, up to where the parts have one accumulator a lane."""
        body, block = self.body, self._block
        is_last = number == self.last_walk
        stores = body.element_stores if is_last else []
        operands = [total.operand for total in totals]
        needed = [
            place
            for place in body.needed([*operands, *stores])
            if not isinstance(self._kernel.body[place], ir.Store)
        ]
        has_scan = any(isinstance(self._kernel.body[at], ir.Scan) for at in needed)
        is_backwards = number % 2 == 1 and not has_scan
        policy = "evict_first" if is_last else "evict_last"
        # What is written is not read again, and must not take the place of what is.
        rest = "evict_first" if number else ""
        inside = [
            *block.element_header,
            *(line for place in needed for line in body.lines(place, policy=policy)),
        ]
        before = [] if ir.Scan in self._completed else body.carries(needed)
        after: list[str] = []
        beside: list[str] = []
        edges = self._edges
        if edges and edges.is_walked:
            beside += [*edges.loads(needed, policy), *edges.rest(needed, policy)]
            beside += edges.rest(stores, rest)
        elif edges:
            pivoted = {p for t in totals if t.pivot for p in body.needed([t.operand])}
            before += edges.loads(needed, policy)
            after += edges.rest([p for p in needed if p not in pivoted], policy)
            after += edges.rest(stores, rest)
        for total in totals:
            shape = block.group_shape if self._is_grouped(total) else block.element_shape
            before += [started(part, shape) for part in total.walked]
            before += self._pivot(total, policy)
            inside += self._stepped(total, is_onward=not is_backwards)
            if edges:
                after += edges.folded(total, group=self._group_of(total))
                (beside if edges.is_walked else after).extend(stepped(edges.body, total))
        inside += [line for place in stores for line in body.lines(place, policy=rest)]
        if is_backwards:
            # Backwards: what the walk before read last is still in a cache.
            before.append(f"rlast = ({block.end} - 1 - {block.start}) // R * R + {block.start}")
            inside = [f"roffset = rlast - (rback - {block.start})", *inside]
            header = f"for rback in {block.steps}:"
        else:
            header = f"for roffset in {block.steps}:"
        if edges and edges.is_walked:
            after += edges.walk(beside)
        return [*before, header, *(f"    {line}" for line in inside), *after]

    def closed(self, total: Total) -> Sequence[str]:
        """The lines after a walk that bring its lanes together."""
        block = self._block
        return total.close(str(block.reduced_axis), block.elements)

    def _pivot(self, total: Total, policy: str) -> list[str]:
        """The mean of the first block of elements; 0 where it is no finite number."""
        if total.pivot is None:
            return []
        body, block, pivot, edges = self.body, self._block, total.pivot, self._edges
        name, dtype, shape = pivot.name, TRITON_TYPES[pivot.dtype].name, block.row_shape
        # Masked even where it is 0 beyond the row: Triton 3.6 fails to compile a loop that reduces
        # what it has just loaded and forgets what it had.
        element = body.masked(body.full(total.operand), "0.0", pivot.dtype)
        needed = body.needed([total.operand])
        inside = [
            "roffset = rfirst",
            *block.element_header,
            *(line for place in needed for line in body.lines(place, policy="evict_last")),
        ]
        before: list[str] = []
        after: list[str] = []
        count = f"tl.maximum({block.first_elements}, 1).to({dtype})"
        if edges and edges.is_walked:
            shape, count = edges.body.block.element_shape, f"tl.maximum(many{name}, 1.0)"
            before = [*edges.first(), *edges.loads(needed, policy)]
            before.append(started(replace(pivot, name=f"many{name}"), shape))
            inside += edges.counted(pivot, element)
            after = [*edges.rest(needed, policy), *edges.mean(pivot, total.operand)]
        elif edges:
            shape = edges.body.block.element_shape
            words = f"tl.reshape({element}, {block.words_shape(block.word)})"
            inside.append(f"{name} = {name} + tl.reduce({words}, {len(block.axes)}, _combine_sum)")
            after = [*edges.rest(needed, policy), *edges.summed(pivot, total.operand)]
        else:
            made = f"tl.reduce({element}, {block.reduced_axis}, _combine_sum, keep_dims=True)"
            inside.append(f"{name} = {made}")
        return [
            *before,
            started(pivot, shape),
            f"for rfirst in range({block.start}, {block.first_end}, R):",
            *(f"    {line}" for line in inside),
            *after,
            f"{name} = {name} / {count}",
            f"{name} = tl.where(tl.abs({name}) < 1e30, {name}, 0.0)",
        ]

    def _is_grouped(self, total: Total) -> bool:
        return self._block.group > 1 and total.grouped is not None

    def _group_of(self, total: Total) -> int:
        return self._block.group if self._is_grouped(total) else 1

    def _grouped(self, total: Total) -> str:
        body, block = self.body, self._block
        assert total.grouped is not None
        first = total.parts[0]
        element = body.full(total.operand)
        if total.pivot is None:
            element = body.operand(total.operand, first.neutral, first.dtype)
        elif block.column_mask:
            element = f"tl.where({block.column_mask}, {element}, {total.pivot.name})"
        shape = f"{block.group_shape[:-1]}, {block.group}]"
        return total.grouped(f"tl.reshape({element}, {shape})", str(len(block.axes)))

    def _stepped(self, total: Total, *, is_onward: bool) -> list[str]:
        if self._is_grouped(total):
            names = ", ".join(part.name for part in total.walked)
            return [f"{names} = {self._grouped(total)}"]
        return stepped(self.body, total, is_onward=is_onward)


def started(part: Part, shape: str) -> str:
    """The line that starts an accumulator."""
    return f"{part.name} = tl.full({shape}, {part.neutral}, {TRITON_TYPES[part.dtype].name})"


@dataclass(frozen=True, slots=True)
class Staged:
    """The lines of a kernel in stages, the dtypes of its workspace's arrays, and the stages."""

    lines: tuple[str, ...]
    arrays: tuple[str, ...]
    stages: int


def staged(kernel: ir.Kernel, block: Block, *, rows: str, splits: str, lanes: str) -> Staged:
    """The body of a kernel whose rows several programs share.

    `rows` is the text of the number of rows, whose flat index is the variable `x`; `chunk` is this
    program's part of the row, one of `splits`; `lanes` is a power of two that holds as many. Array
    number n of the workspace is the argument `w{n}`, with `rows` elements for each part.
    """
    plan = WalkPlan(kernel, block, SHARED)
    arrays: list[str] = []
    places: dict[str, int] = {}
    for level in range(plan.depth):
        for total in plan.totals(level):
            for part in total.parts:
                places[part.name] = len(arrays)
                arrays.append(part.dtype)
    stages = plan.depth + 1
    lines: list[str] = []
    for stage in range(stages):
        inside: list[str] = [*plan.row_lines(0)]
        for level in range(stage):
            inside += _gathered(plan, block, level, places, rows=rows, splits=splits, lanes=lanes)
            inside += plan.row_lines(level + 1)
        if stage < plan.depth:
            inside += _left(plan, block, stage, places, rows=rows)
        else:
            if plan.last_walk == stage:
                inside += plan.walk(stage, [])
            row_stores = plan.row_stores()
            if row_stores and plan.last_walk == stage:
                inside += ["if chunk == 0:", *(f"    {line}" for line in row_stores)]
            elif row_stores:
                # Nothing is walked: the other programs of the row need not gather either.
                inside = ["if chunk == 0:", *(f"    {line}" for line in [*inside, *row_stores])]
        lines += [f"if stage == {stage}:", *(f"    {line}" for line in inside or ["pass"])]
    return Staged(tuple(lines), tuple(arrays), stages)


def _left(
    plan: WalkPlan, block: Block, level: int, places: dict[str, int], *, rows: str
) -> list[str]:
    """A walk over the chunk, and its totals into the workspace."""
    totals = plan.totals(level)
    lines = plan.walk(level, totals)
    mask = f", {block.row_mask}" if block.row_mask else ""
    for total in totals:
        lines += plan.closed(total)
        for part in total.parts:
            where = f"w{places[part.name]} + (chunk * {rows} + x)"
            value = f"tl.broadcast_to({part.name}, {block.row_shape})"
            lines.append(f"tl.store({where}, {value}{mask})")
    return lines


def _gathered(
    plan: WalkPlan,
    block: Block,
    level: int,
    places: dict[str, int],
    *,
    rows: str,
    splits: str,
    lanes: str,
) -> list[str]:
    """The totals of all chunks of this program's rows, or of those before, brought together."""
    lines = [f"part = tl.arange(0, {lanes})[None, :]"]
    for total in plan.totals(level):
        wanted = "(part < chunk)" if total.precedes else f"(part < {splits})"
        mask = " & ".join(text for text in (block.row_mask, wanted) if text)
        for part in total.parts:
            where = f"w{places[part.name]} + (part * {rows} + x)"
            lines.append(f"{part.name} = tl.load({where}, {mask}, other={part.neutral})")
        lines += [*total.across(str(block.reduced_axis)), *total.results]
    return lines
