"""What programs that walk long columns leave of planes, and how it is brought together.

Of planes each element is a column of its own, and some rows are one (`analysis.folds`). A program
has so many neighbouring columns: those of a plane in one of these rows are a segment, and what it
leaves is one total for each. So parts are few, however long planes are, and one program has all of
a plane at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nearhint_compiler.analysis.folds import blocks_of_plane
from nearhint_compiler.codegen.triton.text import index_text
from nearhint_compiler.codegen.triton.totals import Total
from nearhint_rules import expr as ex

PLACE, THERE = "place", "there"
"""What the last stage calls where parts are in the workspace, and which there are."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Planes of so many elements, of which blocks of `width` long columns have segments.

    `by` rows are one; there are so many `blocks`, each of which so many `splits` share (texts).
    """

    plane: ex.Expr
    width: int
    by: int
    blocks: str
    splits: str

    @property
    def most(self) -> ex.Expr:
        """Segments that a block has at most: it begins and ends within one."""
        return ex.add(ex.floordiv(ex.add(self.plane, self.width - 2), self.plane), 1)

    @property
    def lines(self) -> list[str]:
        """What both stages need: `segments` of a block, and `parts` of a plane in a long row."""
        return [
            f"plane, segments = {index_text(self.plane)}, {index_text(self.most)}",
            f"parts = (plane + {self.width - 2}) // {self.width} + 1",
        ]

    def left(self, totals: Sequence[Total], places: Mapping[str, int]) -> list[str]:
        """A block's totals, one for each of its segments, into the workspace."""
        parts = [part for total in totals for part in total.parts]
        number = f"(chunk * {self.blocks} + pid) * segments + segment - start"
        inside = [
            "inside = x // plane == segment",
            *(f"{p.name} = tl.where(inside, all{p.name}, {p.neutral})" for p in parts),
            *(line for total in totals for line in total.across("0")),
            f"number = {number} + tl.arange(0, 1)[:, None]",
            *(
                f"tl.store(w{places[p.name]} + number, tl.broadcast_to({p.name}, [1, 1]))"
                for p in parts
            ),
            # The next segment's are made of all again.
            *(f"{p.name} = all{p.name}" for p in parts),
        ]
        return [
            *(f"all{p.name} = tl.broadcast_to({p.name}, [X, 1])" for p in parts),
            *(f"{p.name} = all{p.name}" for p in parts),
            "start = pid * X // plane",
            "end = tl.minimum((pid * X + X - 1) // plane + 1, rows // plane)",
            "for segment in range(start, end):",
            *(f"    {line}" for line in inside),
        ]

    def brought(self, lanes: str) -> list[str]:
        """The places, in the workspace, of all parts of the plane number `slice`, a lane each."""
        return [
            f"lane = tl.arange(0, {lanes})",
            f"segment = lane // parts % {self.by} * columns + slice",
            "block = segment * plane // X + lane % parts",
            f"chunks = lane // ({self.by} * parts) * {self.blocks}",
            f"{PLACE} = (chunks + block) * segments + segment - block * X // plane",
            f"{THERE} = block * X < (segment + 1) * plane",
        ]

    @property
    def lanes(self) -> str:
        """How many lanes have a part, or none where a segment meets fewer blocks."""
        return f"({self.splits} * {self.by} * parts)"

    def lanes_of(self, longest: int, most: int) -> int:
        """A power of two that holds all parts of planes up to so long, of so many programs each."""
        parts = most * self.by * blocks_of_plane(longest, self.width)
        return 1 << (parts - 1).bit_length()
