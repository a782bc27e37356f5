"""Rows in whole words: what is before a row's first word, and behind its last.

A program's tile of words goes through memory at multiples of 16 bytes, under a mask that holds or
fails for a word at a time: so Triton makes vectors of its loads and stores, for every length of a
row and none promised. Each word has one lane in a second tile, that of the edges; its first lanes
have the elements before a row's words, the next ones those behind them, one by one. As that tile is
laid out as the words of the first are, what is reduced within words there meets the edges in the
same threads, and all else goes on as without them. Nothing outside a row is read or written. Where
what rows share is read in words (`phases`), up to a word more is behind a row's.

Planes have edges each: their tile has as many planes as it has twice the lanes of a word, and a
walk over a row's planes goes over its edges once more, in such tiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nearhint_compiler.analysis.chains import is_chained
from nearhint_compiler.analysis.loops import reduction_loops
from nearhint_compiler.analysis.row_words import (
    RowWords,
    base_of,
    plane_words,
    row_words,
    tile_words,
)
from nearhint_compiler.analysis.scans import has_scans, scans_come_last
from nearhint_compiler.codegen.triton.block import REDUCED, Block
from nearhint_compiler.codegen.triton.body import Body
from nearhint_compiler.codegen.triton.ops import combine_name
from nearhint_compiler.codegen.triton.phases import has_phases, word_ends
from nearhint_compiler.codegen.triton.row import (
    CHAINS,
    TEAMS,
    Planes,
    plane_loops,
    unflatten,
    word_lines,
)
from nearhint_compiler.codegen.triton.text import TRITON_TYPES, index_text, neutral_text
from nearhint_compiler.codegen.triton.totals import Part, Total
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex

MASK = "emask"
WARP = 32
ALONE = ("cuda.persistent", "cuda.looped")
"""Families whose programs share no row."""


def words_of(kernel: ir.Kernel, schedule: Schedule) -> RowWords:
    """The words of the rows; raises `InvalidSchedule` where `schedule` cannot have them."""
    r1 = schedule.get("r1", 0)
    words = plane_words(kernel) if r1 else row_words(kernel)
    if words is None:
        raise InvalidSchedule(f"no row has edges beside its words: {schedule}")
    words = words.parted(schedule["words"])
    if not schedule["aligned"]:
        raise InvalidSchedule(f"words of pointers that are not aligned: {schedule}")
    if schedule.get("block_pointers", 0) or (r1 and "tiled" in schedule.family):
        raise InvalidSchedule(f"words in tiles: {schedule}")
    if r1 > schedule["r"] or (r1 and schedule.family == TEAMS):
        raise InvalidSchedule(f"words of planes that are no whole tiles: {schedule}")
    is_walked = not schedule.family.endswith("persistent")
    are_last = {
        "cuda.looped": scans_come_last,
        "cuda.split": is_chained,
        CHAINS: is_chained,
    }.get(schedule.family)
    if is_walked and has_scans(kernel) and not (are_last and are_last(kernel)):
        raise InvalidSchedule(f"words of scans that others wait for: {schedule}")
    if words.lanes < 2 or (r1 or schedule["r"]) < 2 * words.lanes**2:
        raise InvalidSchedule(f"a block with fewer words than edges have lanes: {schedule}")
    if schedule.get("group", 1) > words.lanes:
        raise InvalidSchedule(f"a group longer than a word: {schedule}")
    if schedule.family == CHAINS or not has_phases(words, schedule):
        return replace(words, shared=frozenset())
    if schedule.get("turns", 1) > 1:
        # The words of rows in turn lie as the first one's do, whatever of an image it shares.
        by_all = (index for index in words.shared if base_of(kernel, index) == ex.ZERO)
        return replace(words, shared=frozenset(by_all))
    return words


def tile_words_of(kernel: ir.Kernel, schedule: Schedule) -> RowWords:
    """The words of a tile's rows; raises `InvalidSchedule` where `schedule` cannot have them."""
    words = tile_words(kernel, schedule["cuts"])
    if words is None:
        raise InvalidSchedule(f"no row of a tile has edges beside its words: {schedule}")
    if not schedule["aligned"]:
        raise InvalidSchedule(f"words of pointers that are not aligned: {schedule}")
    if schedule.get("block_pointers", 0):
        raise InvalidSchedule(f"words of tiles with block pointers: {schedule}")
    if schedule["words"] > 1:
        raise InvalidSchedule(f"a tile in parts of words: {schedule}")
    if schedule["x"] < words.lanes:
        raise InvalidSchedule(f"a tile with rows shorter than a word: {schedule}")
    return words


def begun(words: RowWords, shape: str, *, prefix: str = "r") -> list[str]:
    """Where the words of a row begin, `shape` being that of rows."""
    return word_lines(prefix, _base(words.base, shape), "0", lanes=words.lanes)[:2]


def _base(index: ex.Expr, shape: str) -> str:
    return f"tl.full({shape}, 0, tl.int32) + {index_text(index)}"


def row_lines(
    kernel: ir.Kernel,
    words: RowWords,
    shape: str,
    *,
    chunk: str,
    last: str,
    first: Sequence[str] = (),
) -> list[str]:
    """Where the words of a row begin, how long its parts are, and the lanes of its edges.

    `chunk` is the condition under which this program has the edge before the words, `last` that
    under which it has the one behind them, if another program may have either; `first` are the
    loops of a program's first row, if the words of all begin as that one's do.
    """
    lanes, length = words.lanes, index_text(ex.product(kernel.reduction))
    rest = f"{length} - rbody"
    base = ex.substitute(words.base, {name: ex.symbol(f"f{name}") for name in first})
    return [
        *word_lines("r", _base(base, shape), length, lanes=lanes, ends=word_ends(kernel, words)),
        f"redges = {f'tl.where({chunk}, {rest}, 0)' if chunk else rest}",
        *edge_lines(
            kernel, words, owner=chunk if chunk == last else f"tl.where(ebefore, {chunk}, {last})"
        ),
    ]


def edge_lines(kernel: ir.Kernel, words: RowWords, *, owner: str = "") -> list[str]:
    """The lanes of a row's edges, those before its words first."""
    lanes, length = words.lanes, index_text(ex.product(kernel.reduction))
    return [
        f"ebefore = ebase < {lanes}",
        f"er = tl.where(ebefore, ebase, ebase + (rhead + rbody - {lanes}))",
        f"{MASK} = (er < tl.where(ebefore, rhead, {length})){f' & ({owner})' if owner else ''}",
        *unflatten("er", {f"e{name}": extent for name, extent in reduction_loops(kernel).items()}),
    ]


def plane_lines(kernel: ir.Kernel, words: RowWords, end: str) -> list[str]:
    """The lanes of the edges of the planes from number `eoffset` on, and before number `end`."""
    lanes, loops, short = words.lanes, plane_loops(kernel), index_text(kernel.reduction[-1])
    flat = "er0" if len(loops) == 1 else "erouter"
    base = ex.substitute(words.base, {name: ex.symbol(f"e{name}") for name in loops})
    beyond = f"ehead + ebody - {lanes}"
    return [
        f"{flat} = eoffset + ebase // {2 * lanes}",
        f"eplane = {flat}",
        *unflatten(flat, {f"e{name}": extent for name, extent in loops.items()}),
        *word_lines("e", index_text(base), short, lanes=lanes),
        f"elane = ebase % {2 * lanes}",
        f"ebefore = elane < {lanes}",
        f"er{len(loops)} = tl.where(ebefore, elane, elane + ({beyond}))",
        f"{MASK} = (er{len(loops)} < tl.where(ebefore, ehead, {short})) & (eplane < {end})",
    ]


def with_edges(
    block: Block, kernel: ir.Kernel, words: RowWords, *, lanes: str, planes: Planes | None = None
) -> Block:
    """`block` for the words of rows, or of their `planes`, with the block of their edges."""
    edges = replace(edges_of(block, kernel, words, lanes=lanes), word=words.lanes)
    if planes is not None:
        lines = tuple(plane_lines(kernel, words, planes.end))
        end = planes.end if block.end else ""
        edges = replace(edges, element_header=lines, start=planes.start, end=end)
    return replace(in_words(block, words), edges=edges)


def in_words(block: Block, words: RowWords) -> Block:
    """`block` for the words of rows alone."""
    return replace(
        block,
        word=words.lanes,
        texts=dict.fromkeys(words.indices, "(rword + rlane)"),
        phased=dict.fromkeys(words.shared, "rlane"),
    )


def edge_lanes(kernel: ir.Kernel, schedule: Schedule, words: RowWords) -> str:
    """The lanes of the edges' tile: one for each word, where words are reduced as they lie.

    Scans bring the edges in apart, and one a thread is little to hold. Of fewer lanes than threads
    Triton would load all in each thread, and again where they are used.
    """
    each, threads = schedule["r"] // words.lanes, WARP * schedule["warps"]
    is_apart = schedule.family in ALONE and not schedule.get("r1", 0) and is_chained(kernel)
    least = max(2 * words.lanes, threads)
    is_less = schedule.family == CHAINS or (is_apart and least < each)
    return str(least) if is_less else f"{REDUCED} // {words.lanes}"


def edges_of(block: Block, kernel: ir.Kernel, words: RowWords, *, lanes: str) -> Block:
    """The block of the edges of a row, in as many `lanes`, beside a `block` of its words."""
    return replace(
        block,
        axis_of={**block.axis_of, **{f"e{name}": REDUCED for name in reduction_loops(kernel)}},
        masks={**block.masks, REDUCED: MASK},
        element_header=(),
        start="0",
        end="",
        prefix="e",
        texts={},
        phased={},
        renamed={name: ex.symbol(f"e{name}") for name in reduction_loops(kernel)},
        lanes=lanes,
        group=1,
        word=1,
        together=None,
    )


class Edges:
    """What is computed of the edges of rows, beside the lines for their words."""

    def __init__(self, kernel: ir.Kernel, block: Block) -> None:
        assert block.edges is not None
        self.body = Body(kernel, block.edges)
        self._block = block

    @property
    def is_walked(self) -> bool:
        """Whether a walk over a row goes over its edges in a loop of their own."""
        return bool(self.body.block.end)

    def first(self) -> list[str]:
        """The lines that say where the edges lie, in the first tile of them if there are more."""
        header = self.body.block.element_header
        return [f"eoffset = {self.body.block.start}", *header] if header else []

    def walk(self, lines: Sequence[str], *, is_begun: bool) -> list[str]:
        """`lines` for all tiles of edges; for all but the first, if that was `is_begun`."""
        block = self.body.block
        inside = [*block.element_header, *lines]
        step = f"{REDUCED} // {2 * block.word**2}"
        first = step if block.start == "0" else f"{block.start} + {step}"
        start = first if is_begun else block.start
        header = f"for eoffset in range({start}, {block.end}, {step}):"
        return [header, *(f"    {line}" for line in inside)]

    def loads(self, needed: Iterable[int], policy: str = "") -> list[str]:
        """The lines of `needed` that wait for nothing: they come before all else."""
        return self._lines([p for p in needed if self.body.is_independent(p)], policy)

    def rest(self, needed: Iterable[int], policy: str = "") -> list[str]:
        """The other lines of `needed`, stores included."""
        return self._lines([p for p in needed if not self.body.is_independent(p)], policy)

    def _lines(self, places: Sequence[int], policy: str) -> list[str]:
        return [line for place in places for line in self.body.lines(place, policy=policy)]

    def folded(self, total: Total, *, group: int) -> list[str]:
        """The lines that reduce lanes of `group` elements word by word."""
        names, lanes = [part.name for part in total.walked], self._block.word // group
        lines: list[str] = []
        if lanes > 1:
            assert total.fold is not None
            words = self._block.words_shape(lanes)
            lines += [f"{name} = tl.reshape({name}, {words})" for name in names]
            lines += total.fold(str(len(self._block.axes)))
        return lines

    def accumulated(self, total: Total, *, group: int) -> list[str]:
        """The same, and the lines that step the edges in."""
        return [*self.folded(total, group=group), *stepped(self.body, total)]

    def before_scans(self, needed: Sequence[int], policy: str, *, is_shared: bool) -> list[str]:
        """The lines before a walk that scans: its scans start from what is before a row's words.

        Where programs share the row they start from what is before their own, which is there: of
        the first of them that is nothing, and it has the edge before the words.
        """
        scans = self._scans(needed)
        places = self._before_scans(needed)
        lines = self.loads(needed, policy)
        lines += [line for place in places for line in self.rest([place], policy)]
        for position, node in scans.items():
            combine = combine_name(node.kind, node.dtype)
            neutral, dtype = neutral_text(node.kind, node.dtype), TRITON_TYPES[node.dtype].name
            axis, outer = self.body.block.reduced_axis, self.body.name(position)
            head, whole = f"head{position}", f"tl.full({self._block.row_shape}, {neutral}, {dtype})"
            both = f"{combine}({head}, carry{position})"
            lines += [
                f"{outer} = {self.body.operand(node.operand, neutral, node.dtype)}",
                f"{head} = tl.where(ebefore, {outer}, {neutral})",
                f"{head} = tl.reduce({head}, {axis}, {combine}, keep_dims=True)",
                f"whole{position} = {f'carry{position}' if is_shared else whole}",
                f"carry{position} = {both if is_shared else head}",
            ]
        return lines

    def within_scans(self, needed: Sequence[int]) -> list[str]:
        """The lines of each step of such a walk that keep what the words so far come to."""
        return [
            f"whole{p} = {combine_name(node.kind, node.dtype)}(whole{p}, last{p})"
            for p, node in self._scans(needed).items()
        ]

    def after_scans(self, needed: Sequence[int], policy: str) -> list[str]:
        """The lines behind such a walk: the edges' scans, and what is made of them."""
        known, lines = {*self._before_scans(needed)}, list[str]()
        scans = self._scans(needed)
        for position in needed:
            if position in scans:
                node, outer = scans[position], self.body.name(position)
                combine, axis = combine_name(node.kind, node.dtype), self.body.block.reduced_axis
                lines += [
                    f"{outer} = tl.associative_scan({outer}, {axis}, {combine})",
                    f"{outer} = tl.where(ebefore, {outer}, {combine}({outer}, whole{position}))",
                ]
            elif position not in known:
                lines += self.rest([position], policy)
        return lines

    def _scans(self, needed: Sequence[int]) -> dict[int, ir.Scan]:
        body = self.body.kernel.body
        return {p: node for p in needed if isinstance(node := body[p], ir.Scan)}

    def _before_scans(self, needed: Sequence[int]) -> list[int]:
        return self.body.needed([node.operand for node in self._scans(needed).values()])

    def scanned(self, position: int, node: ir.Scan, *, before: str) -> list[str]:
        """The lines that scan edges as one row, and leave what is before its words as `before`."""
        combine, neutral = combine_name(node.kind, node.dtype), neutral_text(node.kind, node.dtype)
        axis, name = self.body.block.reduced_axis, self.body.name(position)
        return [
            f"{name} = {self.body.operand(node.operand, neutral, node.dtype)}",
            f"{before} = tl.where(ebefore, {name}, {neutral})",
            f"{before} = tl.reduce({before}, {axis}, {combine}, keep_dims=True)",
            f"{name} = tl.associative_scan({name}, {axis}, {combine})",
        ]

    def behind(self, position: int, node: ir.Scan, *, whole: str) -> str:
        """The line that adds what the words come to, `whole`, to what is behind them."""
        combine, name = combine_name(node.kind, node.dtype), self.body.name(position)
        return f"{name} = tl.where(ebefore, {name}, {combine}({whole}, {name}))"

    def summed(self, pivot: Part, operand: int) -> list[str]:
        """The lines that make one sum of those of words, in lanes, and the edges."""
        name, axis = pivot.name, self.body.block.reduced_axis
        element = self.body.operand(operand, "0.0", pivot.dtype)
        both = f"{name} + {element}"
        return [f"{name} = tl.reduce({both}, {axis}, _combine_sum, keep_dims=True)"]

    def counted(self, pivot: Part, element: str) -> list[str]:
        """The lines that add a block to the sum of words, in lanes, and to how many there are.

        Both at once: of a mask alone Triton would compute all elements in each thread.
        """
        block, name = self._block, pivot.name
        one = f"tl.full({block.element_shape}, 1.0, {TRITON_TYPES[pivot.dtype].name})"
        there = f"tl.where(tl.broadcast_to({block.column_mask}, {block.element_shape}), {one}, 0.0)"
        shape = block.words_shape(block.word)
        both = f"(tl.reshape({element}, {shape}), tl.reshape({there}, {shape}))"
        return [
            f"some, many = tl.reduce({both}, {len(block.axes)}, _two_sums)",
            f"{name} = {name} + some",
            f"many{name} = many{name} + many",
        ]

    def mean(self, pivot: Part, operand: int) -> list[str]:
        """The lines that make one sum, and one count, of those in lanes and of the edges."""
        block, name = self.body.block, pivot.name
        element = self.body.operand(operand, "0.0", pivot.dtype)
        mask = f"tl.broadcast_to({block.column_mask}, {block.element_shape})"
        both = f"({name} + {element}, tl.where({mask}, many{name} + 1.0, many{name}))"
        made = f"tl.reduce({both}, {block.reduced_axis}, _two_sums, keep_dims=True)"
        return [f"{name}, many{name} = {made}"]


def stepped(body: Body, total: Total, *, is_onward: bool = False) -> list[str]:
    """The lines that step the accumulators of a total with one block of elements.

    `is_onward` is whether all that was stepped before lies before it in the row.
    """
    names = [part.name for part in total.walked]
    step = total.onward if is_onward and total.onward else total.step
    call = step(body.full(total.operand), body.block.text)
    mask = body.block.column_mask
    if not mask or (total.idle and body.is_neutral_beyond(total.operand, total.idle)):
        return [f"{', '.join(names)} = {call}"]
    fresh = [f"{name}_" for name in names]
    kept = [
        f"{name} = tl.where({mask}, {new}, {name})" for name, new in zip(names, fresh, strict=True)
    ]
    return [f"{', '.join(fresh)} = {call}", *kept]
