"""What all rows of a team read alike, as weights, in registers of its programs for all its rows.

A program has the same part of each row, and so of what rows share. Rows in words whose lengths are
no multiple of a word begin elsewhere each, but the words of every so many begin alike, and a team
takes such rows (`period`). Then what rows share is loaded once, element by element, where each row
would load it again, which takes as long as the row itself.

Two elements of two bytes are one register: no compiler keeps what it has loaded as two registers in
one. They are taken apart anew for each row, for a compiler that saw that they are the same in all
rows would hold them apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.analysis.affine import affine
from nearhint_compiler.analysis.row_words import RowWords
from nearhint_compiler.codegen.triton.body import Body
from nearhint_compiler.codegen.triton.text import TRITON_TYPES
from nearhint_compiler.codegen.triton.walks import WalkPlan
from nearhint_compiler.ir import nodes as ir
from nearhint_rules.program import DTYPES

HALF = 2
"""Bytes of an element of which a register has two."""


def period(kernel: ir.Kernel, words: RowWords) -> int:
    """How many rows there are from one to the next whose words begin alike; 0 if nobody knows.

    >>> from nearhint_compiler.analysis.row_words import row_words
    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> kernel = parse_kernel('''(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
    ...     (params (in bf16) (out f32)) (body (load 0 (+ (* k1 p0) r0)) (cast f32 0)
    ...     (reduce sum f32 1) (store 1 p0 2)))''')
    >>> found = row_words(kernel)
    >>> period(kernel, found) if found else None
    8
    """
    rows = {f"p{number}": extent for number, extent in enumerate(kernel.pointwise)}
    return words.lanes if affine(words.base, [rows]) is not None else 0


def kept_of(tiles: Sequence[WalkPlan], held: Sequence[int]) -> Kept:
    """What the tiles of a chunk are stored with, beside what is `held`, of what all rows share."""
    bodies = [tile.body for tile in tiles]
    needed = bodies[0].needed(bodies[0].element_stores)
    return Kept(bodies, [place for place in needed if place not in held])


class Kept:
    """The loads among `places` of some tiles, whose `bodies` these are, that all rows share."""

    def __init__(self, bodies: Sequence[Body], places: Sequence[int]) -> None:
        self.places = [
            place
            for place in places
            if bodies[0].is_independent(place) and bodies[0].is_shared(place)
        ]
        self._bodies = bodies
        self._dtypes = ir.dtypes_of(bodies[0].kernel)
        values = [(body, place) for body in bodies for place in self.places]
        narrow = [each for each in values if DTYPES[self._dtypes[each[1]]] == HALF]
        self._registers: list[tuple[tuple[Body, int], ...]] = [
            (each,) for each in values if each not in narrow
        ]
        self._registers += [tuple(narrow[at : at + HALF]) for at in range(0, len(narrow), HALF)]

    def loads(self) -> list[str]:
        """The lines that load all of them, before the first row."""
        lines = [line for body in self._bodies for line in body.block.element_header]
        lines += [
            line for body in self._bodies for place in self.places for line in body.lines(place)
        ]
        for number, values in enumerate(self._registers):
            names = [body.name(place) for body, place in values]
            if len(names) == 1:
                lines.append(f"kept{number} = {names[0]}")
                continue
            low, high = (f"{name}.to(tl.int16, bitcast=True).to(tl.int32)" for name in names)
            lines.append(f"kept{number} = ({low} & 65535) | ({high} << 16)")
        return lines

    def taken(self, tile: int) -> list[str]:
        """The lines that name those of a tile again, for a row."""
        lines: list[str] = []
        for number, values in enumerate(self._registers):
            for half, (body, place) in enumerate(values):
                if body is not self._bodies[tile]:
                    continue
                name = body.name(place)
                if len(values) == 1:
                    lines.append(f"{name} = kept{number}")
                    continue
                dtype = TRITON_TYPES[self._dtypes[place]].name
                bits = f"_anew_i32(kept{number})"
                bits = f"({bits} >> 16)" if half else bits
                lines.append(f"{name} = {bits}.to(tl.int16).to({dtype}, bitcast=True)")
        return lines
