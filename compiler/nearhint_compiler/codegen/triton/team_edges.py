"""The edges of rows in whole words that teams hold: in each program all of a row's, a lane each.

The edges of a row are no more than two words have lanes, which is at most a warp. So every program
of a team loads all of them, before it is counted, because what is stored after the meeting may be
their memory; and steps them into the parts of the row where it brings these together. They take a
register for each load, where a second tile beside a chunk, with a lane for each word, would spill.
Whoever does the first chunk stores them.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.analysis.row_words import RowWords
from nearhint_compiler.codegen.triton.block import Block
from nearhint_compiler.codegen.triton.body import Body
from nearhint_compiler.codegen.triton.edges import edge_lines, edges_of
from nearhint_compiler.codegen.triton.phases import word_ends
from nearhint_compiler.codegen.triton.row import word_lines
from nearhint_compiler.codegen.triton.text import index_text
from nearhint_compiler.codegen.triton.totals import Total
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

LANES = "LANES"
"""The lanes of a row's edges, and of its parts."""


class TeamEdges:
    """What is computed of the edges of the rows that `block` has the words of."""

    def __init__(self, kernel: ir.Kernel, block: Block, words: RowWords, *, widened: str) -> None:
        self._body = Body(kernel, edges_of(block, kernel, words, lanes=LANES))
        length = index_text(ex.product(kernel.reduction))
        base = f"tl.full({block.row_shape}, 0, tl.int32) + {index_text(words.base)}"
        self.places = (
            *word_lines("r", base, length, lanes=words.lanes, ends=word_ends(kernel, words)),
            f"ebase = tl.arange(0, {LANES}){block.spread}{widened}",
            *edge_lines(kernel, words),
        )
        """Where a row's words and edges lie."""

    def loads(self, needed: Sequence[int]) -> list[str]:
        """The lines of `needed` that wait for nothing."""
        return self._lines(needed, is_independent=True)

    def rest(self, needed: Sequence[int]) -> list[str]:
        """The other lines of `needed`."""
        return self._lines(needed, is_independent=False)

    def _lines(self, needed: Sequence[int], *, is_independent: bool) -> list[str]:
        wanted = [p for p in needed if self._body.is_independent(p) == is_independent]
        return [line for place in wanted for line in self._body.lines(place)]

    def met(self, total: Total) -> list[str]:
        """The lines that step the parts of a row, a lane each, with its edges."""
        shape = self._body.block.element_shape

        def flat(text: str) -> str:
            return f"tl.reshape(tl.broadcast_to({text}, {shape}), [{LANES}])"

        there = f"ethere = {flat(self._body.block.column_mask)}"
        element = flat(self._body.name(total.operand))
        if total.beside is not None:
            return [there, *total.beside(element, "ethere")]
        fresh = {part.name: f"met{part.name}" for part in total.parts}
        step = total.step(element, lambda index: flat(self._body.block.text(index)))
        return [
            there,
            f"{', '.join(fresh.values())} = {step}",
            *(f"{name} = tl.where(ethere, {met}, {name})" for name, met in fresh.items()),
        ]

    def stored(self, known: Sequence[int]) -> list[str]:
        """The lines that store edges along the row, of which some nodes are `known`."""
        stores = self._body.element_stores
        needed = [p for p in self._body.needed(stores) if p not in {*known, *stores}]
        lines = [*self.loads(needed), *self.rest([*needed, *stores])]
        return ["if chunk == 0:", *(f"    {line}" for line in lines)]
