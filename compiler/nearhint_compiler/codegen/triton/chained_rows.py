"""Scans of rows in chunks that are held in registers: read once, written once.

A program holds a chunk of some rows: so many tiles of `r` neighbouring elements, whose threads lie
side by side along the row, in vectors. All are loaded before any is scanned, each by all threads;
what the row comes to before the chunk is looked for behind it (`codegen.triton.links`).

In whole words chunks begin and end with a word of the row. What is before a row's words is in its
first chunk and what is behind them in its last: in a tile of their own, of no more lanes than two
words have, so that each warp has all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nearhint_compiler.analysis.online import SHARED
from nearhint_compiler.analysis.row_words import RowWords
from nearhint_compiler.codegen.triton.block import Block
from nearhint_compiler.codegen.triton.body import Body
from nearhint_compiler.codegen.triton.edges import Edges, edge_lines
from nearhint_compiler.codegen.triton.links import Links, linked
from nearhint_compiler.codegen.triton.ops import combine_name
from nearhint_compiler.codegen.triton.row import word_lines
from nearhint_compiler.codegen.triton.stages import Staged
from nearhint_compiler.codegen.triton.text import index_text, neutral_text
from nearhint_compiler.codegen.triton.walks import WalkPlan
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

OWNER = "tl.where(ebefore, chunk == 0, chunk == chunks - 1)"
"""Which chunk has a row's edges."""


def chained_rows(kernel: ir.Kernel, block: Block, links: Links, *, tiles: int) -> Staged:
    """The body of a kernel of scans, whose programs have `tiles` such blocks of their rows."""
    plan = WalkPlan(kernel, block, SHARED)
    body, edges = plan.body, Edges(kernel, block) if block.edges else None
    scans = {p: node for p, node in enumerate(kernel.body) if isinstance(node, ir.Scan)}
    stores = body.element_stores
    first = [p for p in body.needed([node.operand for node in scans.values()]) if p not in scans]
    rest = [p for p in body.needed(stores) if p not in {*first, *scans, *stores}]
    parts = [_Tile(kernel, block, number) for number in range(tiles)]
    loads = [p for p in first if body.is_independent(p)]
    held = [*plan.row_lines(0), *(edges.loads(first, "evict_first") if edges else [])]
    held += [line for part in parts for line in part.lines(loads)]
    held += edges.rest(first) if edges else []
    for p, node in scans.items():
        held += edges.scanned(p, node, before=f"head{p}") if edges else []
    made = [p for p in first if p not in loads]
    held += [line for part in parts for line in part.scanned(made, scans)]
    for p, node in scans.items():
        combine = combine_name(node.kind, node.dtype)
        total = f"sum{p}_{tiles - 1}"
        held.append(f"total{p} = {f'{combine}(head{p}, {total})' if edges else total}")
    length = index_text(ex.product(kernel.reduction))
    # Nothing more, as lengths are positive: but places need no registers until they are stored.
    stored = [f"rstart = rstart + tl.minimum({length} - 1, 0) * R"]
    for p, node in scans.items():
        combine = combine_name(node.kind, node.dtype)
        before = f"{combine}(carry{p}, head{p})" if edges else f"carry{p}"
        stored.append(f"start{p} = {before}")
        if edges:
            name = edges.body.name(p)
            stored += [
                edges.behind(p, node, whole=f"sum{p}_{tiles - 1}"),
                f"{name} = {combine}(carry{p}, {name})",
            ]
    stored += [line for part in parts for line in part.stored(scans, rest, stores)]
    if edges:
        stored += [*edges.loads(rest), *edges.rest(rest), *edges.rest(stores, "evict_first")]
    return linked(block, scans, links, held=held, stored=stored, row_stores=plan.row_stores())


def edge_places(
    kernel: ir.Kernel, block: Block, words: RowWords, *, lanes: str, widened: str
) -> list[str]:
    """The lines that say where a row's words begin, and which chunk has which of its edges."""
    length = index_text(ex.product(kernel.reduction))
    base = f"tl.full({block.row_shape}, 0, tl.int32) + {index_text(words.base)}"
    return [
        *word_lines("r", base, length, lanes=words.lanes),
        f"ebase = tl.arange(0, {lanes}){block.spread}{widened}",
        *edge_lines(kernel, words, owner=OWNER),
    ]


class _Tile:
    """Tile number `number` of a chunk."""

    def __init__(self, kernel: ir.Kernel, block: Block, number: int) -> None:
        self._number = number
        self._header = [f"roffset = rstart + {number} * R", *block.element_header]
        self._body = Body(kernel, replace(block, prefix=f"t{number}_", edges=None))

    def lines(self, places: Sequence[int]) -> list[str]:
        """The lines of nodes that scans need."""
        lines = [line for p in places for line in self._body.lines(p, policy="evict_first")]
        return [*self._header, *lines] if lines else []

    def scanned(self, made: Sequence[int], scans: Mapping[int, ir.Scan]) -> list[str]:
        """The lines that scan what is loaded, and say what comes to it with the tiles before."""
        body, number = self._body, self._number
        lines = [*self._header, *(line for p in made for line in body.lines(p))]
        for p, node in scans.items():
            combine, name = combine_name(node.kind, node.dtype), body.name(p)
            neutral, axis = neutral_text(node.kind, node.dtype), body.block.reduced_axis
            total = f"tl.reduce({name}, {axis}, {combine}, keep_dims=True)"
            if number:
                total = f"{combine}(sum{p}_{number - 1}, {total})"
            lines += [
                f"{name} = {body.operand(node.operand, neutral, node.dtype)}",
                f"sum{p}_{number} = {total}",
                f"{name} = tl.associative_scan({name}, {axis}, {combine})",
            ]
        return lines

    def stored(
        self, scans: Mapping[int, ir.Scan], rest: Sequence[int], stores: Sequence[int]
    ) -> list[str]:
        """The lines that add what is before, and store what comes of it."""
        body, lines = self._body, [*self._header]
        for p, node in scans.items():
            combine, name, start = combine_name(node.kind, node.dtype), body.name(p), f"start{p}"
            if self._number:
                start = f"{combine}({start}, sum{p}_{self._number - 1})"
            lines.append(f"{name} = {combine}({start}, {name})")
        lines += [line for p in rest for line in body.lines(p)]
        return [*lines, *(line for p in stores for line in body.lines(p, policy="evict_first"))]
