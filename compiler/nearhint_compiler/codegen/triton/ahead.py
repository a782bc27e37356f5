"""The row after the one at hand, of programs that take rows in turn; and the step after, of scans.

Its loads are issued before what the row at hand waits for, its totals and its team, and are under
way until the program comes to it. A row's loads wait in registers under names of their own. So do
those of the next step of a walk whose steps wait for each other and store what they come to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nearhint_compiler.analysis.row_words import RowWords
from nearhint_compiler.codegen.triton.block import REDUCED, Block
from nearhint_compiler.codegen.triton.body import Body
from nearhint_compiler.codegen.triton.edges import Edges
from nearhint_compiler.codegen.triton.phases import word_ends
from nearhint_compiler.codegen.triton.row import split_row, unflatten, word_lines
from nearhint_compiler.codegen.triton.text import index_text
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

PREFIX = "n"


class Ahead:
    """The loads of the next row, in `block`'s place, whose number is the variable `nx`.

    `words` are the lines that say where its words begin, if the row is in words, as `nword`.
    """

    def __init__(self, kernel: ir.Kernel, block: Block, words: Sequence[str] = ()) -> None:
        self._loops = {f"p{number}": extent for number, extent in enumerate(kernel.pointwise)}
        self._block, self._words = block, tuple(words)
        renamed = {name: ex.symbol(f"{PREFIX}{name}") for name in self._loops}
        texts = dict.fromkeys(block.texts, "(nword + rlane)")
        found = replace(
            block,
            prefix=PREFIX,
            masks={REDUCED: "nmask"},
            renamed={**block.renamed, **renamed},
            texts=texts,
            head=f"{PREFIX}head",
            edges=None,
            together=None,
        )
        self._body = Body(kernel, found)
        self._edges: Body | None = None
        if block.edges:
            edges = replace(
                block.edges,
                prefix=f"{PREFIX}e",
                masks={REDUCED: "nemask"},
                renamed={**block.edges.renamed, **renamed},
            )
            self._edges = Body(kernel, edges)

    @property
    def header(self) -> tuple[str, ...]:
        """The lines that say where the loads' lanes are, whichever row they are of."""
        return self._block.element_header

    def own(self, positions: Sequence[int]) -> list[int]:
        """The loads among `positions` that are a row's own and wait for nothing."""
        nodes = [(place, self._body.kernel.body[place]) for place in positions]
        return [
            place
            for place, node in nodes
            if isinstance(node, ir.Load)
            and self._body.varies[place]
            and self._body.is_independent(place)
            and self._loops.keys() & {*ex.symbols_of(node.index)}
        ]

    def loads(self, positions: Sequence[int], *, row: str, there: str) -> list[str]:
        """The lines that load row number `row`, if it is `there`."""
        block = self._block
        lines = [
            f"nx = tl.full({block.row_shape}, 0, tl.int32) + {row}",
            *unflatten("nx", {f"{PREFIX}{name}": size for name, size in self._loops.items()}),
            *self._words,
            f"nmask = {block.column_mask or '(rbase >= 0)'} & ({there})",
        ]
        if self._edges and block.edges:
            lines.append(f"nemask = {block.edges.column_mask} & ({there})")
            lines += [line for place in positions for line in self._edges.lines(place)]
        return [*lines, *(line for place in positions for line in self._body.lines(place))]

    def taken(self, positions: Sequence[int], edges: Edges | None) -> dict[int, list[str]]:
        """By position, the lines that make what was loaded the row's at hand."""
        found = {place: [f"v{place} = {self._body.name(place)}"] for place in positions}
        if edges and self._edges:
            for place in positions:
                found[place].insert(0, f"{edges.body.name(place)} = {self._edges.name(place)}")
        return found


class NextStep:
    """The loads among the nodes `needed` of the step after the one at hand of a walk over `block`,
    whose loop has the variable `rnow`."""

    def __init__(self, kernel: ir.Kernel, block: Block, needed: Sequence[int]) -> None:
        there = f"(roffset < {block.end})"
        self._mask = f"nmask = {block.column_mask or '(rbase >= 0)'} & {there}"
        masks = {**block.masks, REDUCED: "nmask"}
        self._header = block.element_header
        self._body = Body(kernel, replace(block, prefix=PREFIX, masks=masks, edges=None))
        body = Body(kernel, block)
        self.loads = [place for place in needed if body.is_independent(place)]
        """The nodes that are loaded a step before."""
        self._names = [(body.name(place), self._body.name(place)) for place in self.loads]

    def first(self, policy: str) -> list[str]:
        """The lines before the walk: its first step."""
        block = self._body.block
        # As wide as the offsets of the loop, whatever the start is.
        return [f"roffset = {block.end} * 0 + {block.start}", *self._loaded(policy)]

    def step(self, policy: str) -> list[str]:
        """The lines that take what is loaded, and load what comes next; then those of the step."""
        taken = [f"{name} = {following}" for name, following in self._names]
        return [*taken, "roffset = rnow + R", *self._loaded(policy), "roffset = rnow"]

    def _loaded(self, policy: str) -> list[str]:
        lines = [line for p in self.loads for line in self._body.lines(p, policy=policy)]
        return [*self._header, self._mask, *lines]


def ahead_in_words(kernel: ir.Kernel, block: Block, words: RowWords) -> Ahead:
    """The loads of the next row's words, which begin elsewhere than those of the row at hand."""
    lane, *_ = block.element_header
    names = [f"r{number}" for number in range(len(kernel.reduction))]
    found = replace(
        block,
        element_header=(lane,),
        masks={REDUCED: f"{PREFIX}rmask"},
        renamed={**block.renamed, **{name: ex.symbol(f"{PREFIX}{name}") for name in names}},
    )
    rows = {f"p{n}": ex.symbol(f"{PREFIX}p{n}") for n in range(len(kernel.pointwise))}
    base = index_text(ex.substitute(words.base, rows))
    length = index_text(ex.product(kernel.reduction))
    lines = [
        *word_lines(PREFIX, base, length, lanes=words.lanes, ends=word_ends(kernel, words, rows)),
        f"{PREFIX}r = {PREFIX}head + rlane",
        *split_row(kernel, PREFIX),
        f"{PREFIX}rmask = rlane < {PREFIX}body",
    ]
    return Ahead(kernel, found, lines)
