"""Whole bodies of Triton kernels in walks over the row; and the plan of walks.

A walk reads a row in blocks, once for each level of nested reduces that one walk does not compute
(`analysis.online`), and once more for stores along the row; what a later walk needs is computed
again. Every other walk goes backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nearhint_compiler.analysis.online import (
    VARIANCE,
    WALKED,
    Completed,
    depth_of,
    online_pairs,
    walk_levels,
    walks_of,
)
from nearhint_compiler.codegen.triton.ahead import NextStep
from nearhint_compiler.codegen.triton.block import REDUCED, Block
from nearhint_compiler.codegen.triton.body import Body
from nearhint_compiler.codegen.triton.edges import Edges, stepped
from nearhint_compiler.codegen.triton.ops import combine_name
from nearhint_compiler.codegen.triton.row import NEXT_TILE, TILE
from nearhint_compiler.codegen.triton.text import TRITON_TYPES, index_text
from nearhint_compiler.codegen.triton.totals import (
    Part,
    Total,
    narrow_dtype,
    online_total,
    total_of,
    variance_of_lanes,
)
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex


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


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a walk needs and what it stores, what of it a pivot has read before, and how long a
    cache should keep what is read and what is written."""

    needed: Sequence[int]
    stores: Sequence[int]
    pivoted: Collection[int]
    policy: str
    rest: str


@dataclass(slots=True)
class _Around:
    """Lines around the loop of a walk, and `beside` it, where edges have a loop of their own."""

    before: list[str]
    inside: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)


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
        self.depth = depth_of(kernel, completed)
        self.last_walk = walks_of(kernel, completed) - 1

    def totals(self, walk: int) -> list[Total]:
        """What walk number `walk` accumulates."""
        found: list[Total] = []
        pairs = {pair.first: pair for pair in self._pairs}
        seconds = {pair.second for pair in self._pairs}
        for position, node in enumerate(self._kernel.body):
            if not isinstance(node, self._completed) or self._levels[position] != walk + 1:
                continue
            if position in pairs:
                pair = pairs[position]
                is_own = self._block.has_own_pivots and pair.kind == VARIANCE
                found.append((variance_of_lanes if is_own else online_total)(self._kernel, pair))
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

    def walk(
        self, number: int, totals: Sequence[Total], *, pivots: WalkPlan | None = None
    ) -> list[str]:
        """One walk over the row, up to where the parts have one accumulator a lane.

        What is read once, and nothing is stored along, has no policy of its own, so that a cache
        that has room for it keeps it for the next kernel. What all rows read alike has none where
        the block keeps it: it is read again soon, and not once or twice. `pivots` has the plan of
        the first tile of rows of any length, where this one's are all whole.
        """
        body, block, edges = self.body, self._block, self._edges
        is_last = number == self.last_walk
        stores = body.element_stores if is_last else []
        needed = self._loaded([*(total.operand for total in totals), *stores])
        has_scan = any(isinstance(self._kernel.body[at], ir.Scan) for at in needed)
        is_backwards = number % 2 == 1 and not has_scan
        policy = "evict_last"
        if is_last:
            policy = "evict_first" if number or stores else ""
        if block.pieces:
            return self._in_pieces(needed, totals, policy, is_plain=not (is_backwards or stores))
        # What is written is not read again, and must not take the place of what is.
        rest = "evict_first" if number else ""
        following = None
        if has_scan and stores and block.ahead > 1:
            following = NextStep(self._kernel, block, needed)
        there = following.loads if following else ()
        inside = [*block.element_header, *self._loads(needed, policy, there)]
        if block.is_tiled and is_backwards:
            inside = [*TILE, *inside]
        # Edges that were read for a pivot are in registers.
        pivoted = {p for t in totals if t.pivot for p in body.needed([t.operand])}
        reading = _Reading(needed, stores, pivoted, policy, rest)
        around = self._around(reading, has_scan=has_scan)
        before, after = around.before, around.after
        inside += around.inside
        for total in totals:
            shape = block.group_shape if self._is_grouped(total) else block.element_shape
            before += [started(part, shape) for part in total.walked]
            before += (pivots or self)._pivot(total, policy)
            inside += self.stepped(total, is_onward=not is_backwards)
            if edges:
                after += edges.folded(total, group=self.group_of(total))
                more = stepped(edges.body, total)
                after += [] if edges.is_walked and not pivoted else more
                around.beside += more
        inside += [line for place in stores for line in body.lines(place, policy=rest)]
        if edges and edges.is_walked:
            after += edges.rest(stores, rest) if pivoted else []
            after += edges.walk(around.beside, is_begun=bool(pivoted))
        # Copies wait for no store of the step before, as loads do, which may be of its memory.
        is_again = is_backwards and self._reads_again(needed, number)
        steps = block.steps(copies=is_again or not stores)
        if is_backwards:
            # Backwards: what the walk before read last is still in a cache.
            before.append(f"rlast = ({block.end} - 1 - {block.start}) // R * R + {block.start}")
            inside = [f"roffset = rlast - (rback - {block.start})", *inside]
            header = f"for rback in {steps}:"
        elif block.step_count and block.ahead == block.unroll == 1:
            # A loop whose count is known: ptxas then loads all of a step before it uses any of it.
            inside = [f"roffset = {block.start} + rstep * R", *inside]
            header = f"for rstep in range({block.step_count}):"
        elif following:
            before += following.first(policy)
            inside = [*following.step(policy), *inside]
            header = f"for rnow in {steps}:"
        else:
            header = f"for roffset in {steps}:"
        if block.is_tiled and not is_backwards:
            # As wide as the offsets of the loop, whatever the start is.
            before += [f"roffset = {block.end} * 0 + {block.start}", *TILE]
            inside += NEXT_TILE
        return [*before, header, *(f"    {line}" for line in inside), *after]

    def _loaded(self, wanted: Sequence[int]) -> list[int]:
        """What has to be there for `wanted`, stores aside."""
        return [
            place
            for place in self.body.needed(wanted)
            if not isinstance(self._kernel.body[place], ir.Store)
        ]

    def _loads(self, needed: Sequence[int], policy: str, there: Collection[int]) -> list[str]:
        """What is `needed` of a step, but for what is `there`."""
        keeps = self._block.keeps_shared
        return [
            line
            for place in needed
            if place not in there
            for line in self.body.lines(
                place, policy="" if keeps and self.body.is_shared(place) else policy
            )
        ]

    def _around(self, reading: _Reading, *, has_scan: bool) -> _Around:
        """What is read beside the words of rows: before the walk, in its steps and after it."""
        edges, needed, stores = self._edges, reading.needed, reading.stores
        policy, rest, pivoted = reading.policy, reading.rest, reading.pivoted
        is_shared = ir.Scan in self._completed
        around = _Around([] if is_shared else self.body.carries(needed))
        if edges is None:
            return around
        others = [place for place in needed if place not in pivoted]
        if edges.is_walked:
            if pivoted:
                around.after += [*edges.loads(others, policy), *edges.rest(others, policy)]
            around.beside += [*edges.loads(needed, policy), *edges.rest(needed, policy)]
            around.beside += edges.rest(stores, rest)
        elif has_scan:
            around.before = edges.before_scans(needed, policy, is_shared=is_shared)
            around.inside += edges.within_scans(needed)
            around.after += edges.after_scans(needed, policy)
            around.after += edges.rest(stores, rest)
        else:
            around.before += edges.loads(needed, policy)
            around.after += [*edges.rest(others, policy), *edges.rest(stores, rest)]
        return around

    def _reads_again(self, needed: Sequence[int], number: int) -> bool:
        """Whether walks before walk number `number` have loaded all that it needs."""
        operands = [total.operand for level in range(number) for total in self.totals(level)]
        known = self.body.needed(operands)
        return all(p in known for p in needed if isinstance(self._kernel.body[p], ir.Load))

    def _in_pieces(
        self, needed: Sequence[int], totals: Sequence[Total], policy: str, *, is_plain: bool
    ) -> list[str]:
        """A walk in steps of several pieces, all of which are loaded before any is used.

        Steps that are written out are loaded one by one, as ptxas schedules them, and those left
        when they are no multiple of how many are written out come one after the other.
        """
        block = self._block
        if not is_plain or any(total.pivot for total in totals):
            raise InvalidSchedule("steps in pieces of what is not only read once")
        bodies = [self.body, *(Body(self._kernel, piece) for piece in block.pieces)]
        loads = [place for place in needed if self.body.is_independent(place)]
        inside = [line for body in bodies for line in body.block.element_header]
        for body in bodies:
            inside += [line for place in loads for line in body.lines(place, policy=policy)]
        rest = [place for place in needed if place not in loads]
        for body in bodies:
            inside += [line for place in rest for line in body.lines(place, policy=policy)]
        inside += [line for total in totals for line in self._stepped_at_once(total, bodies)]
        return [
            *(started(part, block.element_shape) for total in totals for part in total.walked),
            f"for roffset in range({block.start}, {block.end}, R * {len(bodies)}):",
            *(f"    {line}" for line in inside),
        ]

    def _stepped_at_once(self, total: Total, bodies: Sequence[Body]) -> list[str]:
        """The lines that step a total with several pieces: reduced first, so that a long sum is one
        of few sums."""
        part, *others = total.walked
        place = int(part.name.removeprefix("acc"))
        node = self._kernel.body[place]
        if others or not isinstance(node, ir.Reduce):
            return [line for body in bodies for line in stepped(body, total, is_onward=True)]
        combine, name = combine_name(node.kind, node.dtype), f"some{place}"
        first, *rest = (body.operand(total.operand, part.neutral, part.dtype) for body in bodies)
        return [
            f"{name} = {first}",
            *(f"{name} = {combine}({name}, {each})" for each in rest),
            f"{part.name} = {combine}({part.name}, {name})",
        ]

    def closed(self, total: Total) -> Sequence[str]:
        """The lines after a walk that bring its lanes together."""
        block = self._block
        within = found_within(self._kernel, block, total) if self._is_grouped(total) else []
        return [*total.close(str(block.reduced_axis), block.elements), *within]

    def held(
        self, totals: Sequence[Total], taken: Mapping[int, Sequence[str]]
    ) -> tuple[list[str], list[int]]:
        """A block of elements in registers and its totals, as a walk over it alone would leave
        them; and the nodes that are there, of which some are `taken` as these lines have it."""
        body, block, edges = self.body, self._block, self._edges
        needed = self.needed(totals)
        lines = [*(edges.loads(needed) if edges else []), f"roffset = {block.start}"]
        lines += [*(TILE if block.is_tiled else ()), *block.element_header]
        lines += [line for p in needed for line in taken.get(p) or body.lines(p)]
        lines += edges.rest(needed) if edges else []
        for total in totals:
            has_shares = self._has_shares(total)
            if has_shares and total.own:
                lines += self._own(total, total.own)
                continue
            shape = block.group_shape if self._is_grouped(total) else block.element_shape
            if not has_shares:
                lines += [started(part, shape) for part in total.walked]
            if total.pivot:
                summed = edges.summed(total.pivot, total.operand) if edges else []
                lines += [f"{total.pivot.name} = {self._first_sum(total, total.pivot)}", *summed]
                lines += self._mean(total, _counted(total.pivot, block.elements))
            if has_shares:
                lines += self._of_threads(total)
            else:
                lines += self.stepped(total, is_onward=True)
            lines += edges.accumulated(total, group=self.group_of(total)) if edges else []
            lines += self.closed(total)
        return lines, needed

    def _of_threads(self, total: Total) -> list[str]:
        """The lines that make one lane of what each thread has along the row, which is little to
        hold, and few to convert where lanes are widened.
        """
        block = self._block
        assert total.grouped is not None
        names = ", ".join(part.name for part in total.walked)
        elements = self._by_thread(self._masked(total))
        return [
            *(started(part, block.shares_shape) for part in total.walked),
            f"{names} = {total.grouped(elements, '2')}",
        ]

    def _own(self, total: Total, own: Callable[[str, str, str], Sequence[str]]) -> Sequence[str]:
        """The lines that make the parts of a block of what each thread has along the row."""
        block, dtype = self._block, total.parts[0].dtype
        there = f"tl.full({block.element_shape}, 1.0, {TRITON_TYPES[dtype].name})"
        if block.column_mask:
            there = f"{block.column_mask}.to({TRITON_TYPES[dtype].name})"
            there = f"tl.broadcast_to({there}, {block.element_shape})"
        elements = self.body.operand(total.operand, "0.0", dtype)
        axis = str(block.reduced_axis)
        return own(self._by_thread(elements), self._by_thread(there), axis)

    def _by_thread(self, elements: str) -> str:
        """Elements with one axis more, along which they are in one thread.

        What is far apart along the row is in one thread, not what is side by side.
        """
        block, (pointwise, reduced) = self._block, self._block.axes
        assert reduced == REDUCED
        shape = f"[{pointwise}, {block.share}, {REDUCED} // {block.share}]"
        return f"tl.permute(tl.reshape({elements}, {shape}), [0, 2, 1])"

    def _has_shares(self, total: Total) -> bool:
        """Whether a thread has several elements along the row that may go into one lane."""
        is_whole = not (self._edges or self._is_grouped(total))
        return is_whole and self._block.share > 1 and total.grouped is not None

    def needed(self, totals: Sequence[Total]) -> list[int]:
        """What varies along the row of what these totals are made of."""
        return self.body.needed([total.operand for total in totals])

    def stored(self, known: Sequence[int]) -> tuple[list[str], list[str]]:
        """The loads that stores along the row need beside what is `known`, and what comes then."""
        body, edges, stores = self.body, self._edges, self.body.element_stores
        needed = [p for p in body.needed(stores) if p not in {*known, *stores}]
        loads = [p for p in needed if body.is_independent(p)]
        rest = [p for p in needed if p not in loads]
        first = [line for place in loads for line in body.lines(place)]
        then = [line for place in (*rest, *stores) for line in body.lines(place)]
        if edges:
            first += edges.loads(needed)
            then += edges.rest([*rest, *stores])
        return first, then

    def _pivot(self, total: Total, policy: str) -> list[str]:
        """The mean of the first block of elements; 0 where it is no finite number."""
        if total.pivot is None:
            return []
        body, block, pivot, edges = self.body, self._block, total.pivot, self._edges
        needed, made = body.needed([total.operand]), self._first_sum(total, pivot)
        inside = [
            "roffset = rfirst",
            *(TILE if block.is_tiled else ()),
            *block.element_header,
            *(line for place in needed for line in body.lines(place, policy="evict_last")),
        ]
        shape, count = block.row_shape, _counted(pivot, block.first_elements)
        before: list[str] = []
        after: list[str] = []
        if edges and edges.is_walked:
            shape, count = edges.body.block.element_shape, f"tl.maximum(many{pivot.name}, 1.0)"
            before = [*edges.first(), *edges.loads(needed, policy)]
            before.append(started(replace(pivot, name=f"many{pivot.name}"), shape))
            inside += edges.counted(pivot, self._first_element(total, pivot))
            after = [*edges.rest(needed, policy), *edges.mean(pivot, total.operand)]
        elif edges:
            shape = edges.body.block.element_shape
            inside.append(f"{pivot.name} = {pivot.name} + {made}")
            after = [*edges.rest(needed, policy), *edges.summed(pivot, total.operand)]
        else:
            inside.append(f"{pivot.name} = {made}")
        return [
            *before,
            started(pivot, shape),
            f"for rfirst in range({block.start}, {block.first_end}, R):",
            *(f"    {line}" for line in inside),
            *after,
            *self._mean(total, count),
        ]

    def _mean(self, total: Total, count: str) -> list[str]:
        """The lines that make a pivot of a sum, with no more digits than narrow elements have.

        Else their differences from it would all be rounded, and most of them the same way.
        """
        assert total.pivot is not None
        name, kind = total.pivot.name, TRITON_TYPES[total.pivot.dtype].name
        narrow = narrow_dtype(self.body.kernel, total.operand)
        rounded = f".to({TRITON_TYPES[narrow].name}).to({kind})" if narrow else ""
        return [
            f"{name} = ({name} / {count}){rounded}" if rounded else f"{name} = {name} / {count}",
            f"{name} = tl.where(tl.abs({name}) < 1e30, {name}, 0.0)",
        ]

    def _first_element(self, total: Total, pivot: Part) -> str:
        # Masked even where it is 0 beyond the row: Triton 3.6 fails to compile a loop that reduces
        # what it has just loaded and forgets what it had.
        return self.body.masked(self.body.full(total.operand), "0.0", pivot.dtype)

    def _first_sum(self, total: Total, pivot: Part) -> str:
        """The sum of a block of elements; in words, one for each of them."""
        block, element = self._block, self._first_element(total, pivot)
        if not self._edges:
            return f"tl.reduce({element}, {block.reduced_axis}, _combine_sum, keep_dims=True)"
        words = f"tl.reshape({element}, {block.words_shape(block.word)})"
        return f"tl.reduce({words}, {len(block.axes)}, _combine_sum)"

    def _is_grouped(self, total: Total) -> bool:
        return self._block.group > 1 and (total.grouped or total.groups) is not None

    def group_of(self, total: Total) -> int:
        """How many neighbours along the row step one lane of a total at once."""
        return self._block.group if self._is_grouped(total) else 1

    def _is_masked_once(self, total: Total) -> bool:
        """Whether a group's elements are there or not together, and are masked as their sums."""
        return total.pivot is not None and self._block.word > 1

    def _masked(self, total: Total) -> str:
        """The elements of a total, those beyond the row as what changes nothing."""
        body, block = self.body, self._block
        first = total.parts[0]
        if total.pivot is None:
            return body.operand(total.operand, first.neutral, first.dtype)
        element = body.full(total.operand)
        if block.column_mask and not self._is_masked_once(total):
            return f"tl.where({block.column_mask}, {element}, {total.pivot.name})"
        return element

    def _grouped(self, total: Total, *, is_onward: bool) -> str:
        block = self._block
        shape = f"{block.group_shape[:-1]}, {block.group}]"
        elements, axis = f"tl.reshape({self._masked(total)}, {shape})", str(len(block.axes))
        if total.grouped is not None:
            return total.grouped(elements, axis)
        assert total.groups is not None
        step = total.onward if is_onward and total.onward else total.step
        return step(total.groups.best(elements, axis), lambda _: block.group_start)

    def stepped(self, total: Total, *, is_onward: bool = True) -> list[str]:
        """The lines that step a total with one block of elements."""
        if self._is_grouped(total):
            names = [part.name for part in total.walked]
            call = self._grouped(total, is_onward=is_onward)
            if not self._is_masked_once(total):
                return [f"{', '.join(names)} = {call}"]
            block = self._block
            there = f"tl.broadcast_to({block.column_mask}, {block.element_shape}).to(tl.int32)"
            there = f"tl.reshape({there}, {block.group_shape[:-1]}, {block.group}])"
            return [
                f"{', '.join(f'{name}_' for name in names)} = {call}",
                f"there = tl.max({there}, {len(block.axes)}) > 0",
                *(f"{name} = tl.where(there, {name}_, {name})" for name in names),
            ]
        return stepped(self.body, total, is_onward=is_onward)


def found_within(kernel: ir.Kernel, block: Block, total: Total) -> list[str]:
    """The lines that make the place of an arg's group that of the element: it is read again."""
    if total.groups is None:
        return []
    value, place = total.parts
    places = f"place{total.groups.position}"
    again = block.again(total.groups.position)
    body = Body(kernel, again)
    element = body.operand(total.operand, value.neutral, value.dtype)
    return [
        f"{places} = {place.name} + tl.arange(0, {block.group}){block.spread}",
        f"{again.column_mask} = {places} < {index_text(ex.product(kernel.reduction))}",
        *(line for p in body.needed([total.operand]) for line in body.lines(p)),
        *total.groups.within(element, places, str(block.reduced_axis)),
    ]


def started(part: Part, shape: str) -> str:
    """The line that starts an accumulator."""
    return f"{part.name} = tl.full({shape}, {part.neutral}, {TRITON_TYPES[part.dtype].name})"


def _counted(pivot: Part, elements: str) -> str:
    return f"tl.maximum({elements}, 1).to({TRITON_TYPES[pivot.dtype].name})"
