"""Rows in whole words: what is before a row's first word, and behind its last.

A program's tile of words goes through memory at multiples of 16 bytes, under a mask that holds or
fails for a word at a time: so Triton makes vectors of its loads and stores, for every length of a
row and none promised. Each word has one lane in a second tile, that of the edges; its first lanes
have the elements before a row's words, the next ones those behind them, one by one. As that tile is
laid out as the words of the first are, what is reduced within words there meets the edges in the
same threads, and all else goes on as without them. Nothing outside a row is read or written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nearhint_compiler.analysis.row_words import RowWords, row_words, tile_words
from nearhint_compiler.codegen.triton.block import REDUCED, Block
from nearhint_compiler.codegen.triton.body import Body
from nearhint_compiler.codegen.triton.row import unflatten
from nearhint_compiler.codegen.triton.text import index_text
from nearhint_compiler.codegen.triton.totals import Part, Total
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex

MASK = "emask"


def words_of(kernel: ir.Kernel, schedule: Schedule) -> RowWords:
    """The words of the rows; raises `InvalidSchedule` where `schedule` cannot have them."""
    words = row_words(kernel)
    if words is None:
        raise InvalidSchedule(f"no row has edges beside its words: {schedule}")
    if not schedule["aligned"]:
        raise InvalidSchedule(f"words of pointers that are not aligned: {schedule}")
    if schedule.get("r1", 0) or schedule.get("block_pointers", 0):
        raise InvalidSchedule(f"words in tiles: {schedule}")
    if any(isinstance(node, ir.Scan) for node in kernel.body):
        raise InvalidSchedule("words of a scan")
    if schedule["r"] < 2 * words.lanes**2:
        raise InvalidSchedule(f"a block with fewer words than edges have lanes: {schedule}")
    if schedule.get("group", 1) > words.lanes:
        raise InvalidSchedule(f"a group longer than a word: {schedule}")
    return words


def tile_words_of(kernel: ir.Kernel, schedule: Schedule) -> RowWords:
    """The words of a tile's rows; raises `InvalidSchedule` where `schedule` cannot have them."""
    words = tile_words(kernel, schedule["cuts"])
    if words is None:
        raise InvalidSchedule(f"no row of a tile has edges beside its words: {schedule}")
    if not schedule["aligned"]:
        raise InvalidSchedule(f"words of pointers that are not aligned: {schedule}")
    if not schedule.get("near", 0) or schedule.get("block_pointers", 0):
        raise InvalidSchedule(
            f"words of tiles in another order, or with block pointers: {schedule}"
        )
    if schedule["x"] < words.lanes:
        raise InvalidSchedule(f"a tile with rows shorter than a word: {schedule}")
    return words


def row_lines(kernel: ir.Kernel, words: RowWords, shape: str, *, chunk: str) -> list[str]:
    """Where the words of a row begin, how long its parts are, and the lanes of its edges.

    `chunk` is the condition under which this program has the edges, if another may have them.
    """
    lanes, length = words.lanes, index_text(ex.product(kernel.reduction))
    rest = f"{length} - rbody"
    return [
        f"rzero = tl.full({shape}, 0, tl.int32) + {index_text(words.base)}",
        f"rword = (rzero + {lanes - 1}) // {lanes} * {lanes}",
        f"rhead = tl.minimum(rword - rzero, {length})",
        f"rbody = ({length} - rhead) // {lanes} * {lanes}",
        f"redges = {f'tl.where({chunk}, {rest}, 0)' if chunk else rest}",
        f"ebefore = ebase < {lanes}",
        f"er = tl.where(ebefore, ebase, ebase + (rhead + rbody - {lanes}))",
        f"{MASK} = (er < tl.where(ebefore, rhead, {length})){f' & ({chunk})' if chunk else ''}",
        *unflatten("er", {f"e{name}": extent for name, extent in _loops(kernel).items()}),
    ]


def with_edges(block: Block, kernel: ir.Kernel, words: RowWords) -> Block:
    """`block` for the words of rows, with the block of their edges."""
    axis_of = {**block.axis_of, **{f"e{name}": REDUCED for name in _loops(kernel)}}
    edges = replace(
        block,
        axis_of=axis_of,
        masks={**block.masks, REDUCED: MASK},
        element_header=(),
        word=words.lanes,
        prefix="e",
        renamed={name: ex.symbol(f"e{name}") for name in _loops(kernel)},
        group=1,
    )
    texts = dict.fromkeys(words.indices, "(rword + rlane)")
    return replace(block, edges=edges, word=words.lanes, texts=texts)


def _loops(kernel: ir.Kernel) -> Mapping[str, ex.Expr]:
    return {f"r{number}": extent for number, extent in enumerate(kernel.reduction)}


class Edges:
    """What is computed of the edges of rows, beside the lines for their words."""

    def __init__(self, kernel: ir.Kernel, block: Block) -> None:
        assert block.edges is not None
        self.body = Body(kernel, block.edges)
        self._block = block

    def loads(self, needed: Iterable[int], policy: str = "") -> list[str]:
        """The lines of `needed` that wait for nothing: they come before all else."""
        return self._lines([p for p in needed if self.body.is_independent(p)], policy)

    def rest(self, needed: Iterable[int], policy: str = "") -> list[str]:
        """The other lines of `needed`, stores included."""
        return self._lines([p for p in needed if not self.body.is_independent(p)], policy)

    def _lines(self, places: Sequence[int], policy: str) -> list[str]:
        return [line for place in places for line in self.body.lines(place, policy=policy)]

    def accumulated(self, total: Total, *, group: int) -> list[str]:
        """The lines that reduce lanes of `group` elements word by word, and step the edges in."""
        names, lanes = [part.name for part in total.walked], self._block.word // group
        lines: list[str] = []
        if lanes > 1:
            assert total.fold is not None
            words = self._block.words_shape(lanes)
            lines += [f"{name} = tl.reshape({name}, {words})" for name in names]
            lines += total.fold(str(len(self._block.axes)))
        return [*lines, *stepped(self.body, total)]

    def summed(self, pivot: Part, operand: int) -> list[str]:
        """The lines that make one sum of those of words, in lanes, and the edges."""
        name, axis = pivot.name, self.body.block.reduced_axis
        element = self.body.operand(operand, "0.0", pivot.dtype)
        both = f"{name} + {element}"
        return [f"{name} = tl.reduce({both}, {axis}, _combine_sum, keep_dims=True)"]


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
