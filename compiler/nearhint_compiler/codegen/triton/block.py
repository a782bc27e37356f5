"""How the values of one Triton program are shaped and masked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from nearhint_compiler.analysis.affine import Loops, affine
from nearhint_compiler.analysis.members import Members
from nearhint_compiler.codegen.triton.text import index_text
from nearhint_compiler.codegen.triton.units import Units
from nearhint_rules import expr as ex

REDUCED = "R"
"""The axis of the reduction, the last one or the first."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where a block lies along an axis: the text of its start, and the loops of the axis."""

    start: str
    loops: Loops


@dataclass(frozen=True, slots=True)
class NextRow:
    """The texts of a loop's first row, of the row after the one at hand, and of where rows end; and
    the lines that say where the words of row `nx` begin."""

    first: str
    next: str
    end: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """A loop over rows: its first line, and the lines that say which row it is.

    With `ahead` the next row is loaded before the one at hand is computed.
    """

    header: str
    lines: tuple[str, ...]
    ahead: NextRow | None = None


@dataclass(frozen=True, slots=True)
class Together:
    """`lanes` neighbours along the row, for which what several of them share is read once.

    The loops' variables of the first of them have the prefix `first`, those of the last `last`, and
    `first_mask` and `last_mask` say which are there. Sizes in `promised` are multiples of lanes.
    """

    lanes: int
    first: str
    last: str
    first_mask: str
    last_mask: str
    promised: frozenset[str]


@dataclass(frozen=True, slots=True)
class Block:
    """A tile: its tensor axes from the outermost, each named as its block size is.

    `axis_of` has the axis of each loop variable that varies inside the tile, `masks` the mask of
    each axis that the tile may overhang. `element_header` are the lines that make the reduction
    variables and their mask from `rbase` and, in a walk, `roffset`, or where it `is_tiled` what
    says which tile it is (`row.TILE`). A walk goes from `start` to `end`; without `end` there is
    none, and the tile holds whole rows. `counted` and `counted_first`
    are the numbers of elements in a walk and in its first block, if not those of its lanes. With
    `spans`, one for each axis, accesses that can are written as pointers to a block. An accumulator
    is stepped by `group` neighbours along the row at once; `unroll` steps of a walk are written
    out, so that what they load is under way together, or `ahead` steps are loaded into shared
    memory while one is computed, in walks that store nothing, or read again what was so read. Where
    the number of steps is given as `step_count`, a walk may take as many, also beyond its end,
    under the mask. `place` is the dtype of places along it, until they are results. A tile that
    `is_single` has one row.
    What `is_streamed` is read once, and takes no place in a cache from what is there. Terms
    that were summed and are kept are used again, if it `is_reused`, for what are shares of the sum.
    Of elements that are held each thread has so many along the row, its `share`; where it has so
    many that a sum one by one loses digits, it is `is_deep`.
    Where it `is_anew`, places are computed again for what is stored, and quotients by what is there
    once a row are products: what a thread holds is then little beside the elements.
    Where it `keeps_shared`, what all rows read alike stays in a cache from one row to the next.
    Where it `has_own_pivots`, each lane of a variance is shifted by a mean of its own elements.

    Where rows, or steps of a walk, take several tiles in registers, one behind the other, `pieces`
    are the others. What neighbours share is read once for those that are `together`.
    Where a tile has the whole words of rows alone, `edges` is the tile with the rest of them, one
    lane for each word of `word` elements. Values of elements are named `prefix` and a number, and
    an index is written as `texts` has it, or with its variables `renamed`. What rows share is read
    in words at the lanes of a row's words, the texts of which `phased` has, as many elements on as
    the row has before them, its `head`. Along the reduction a tile has `lanes`; `group_start` is
    the text of the place of each group's first element. A flat block in `units` has an axis of
    units and one of their points in place of its own. What lies beside one another is loaded at
    once for each of its `members`.
    """

    axes: tuple[str, ...]
    axis_of: Mapping[str, str]
    masks: Mapping[str, str]
    element_header: tuple[str, ...] = ()
    is_tiled: bool = False
    start: str = "0"
    end: str = ""
    counted: str = ""
    counted_first: str = ""
    spans: tuple[Span, ...] = ()
    group: int = 1
    unroll: int = 1
    ahead: int = 1
    step_count: str = ""
    place: str = "i64"
    is_single: bool = False
    is_early: bool = False
    is_streamed: bool = False
    is_reused: bool = False
    is_anew: bool = False
    keeps_shared: bool = False
    has_own_pivots: bool = False
    share: int = 1
    is_deep: bool = False
    turn: Turn | None = None
    edges: Block | None = None
    pieces: tuple[Block, ...] = ()
    together: Together | None = None
    word: int = 1
    prefix: str = "v"
    texts: Mapping[ex.Expr, str] = field(default_factory=dict)
    phased: Mapping[ex.Expr, str] = field(default_factory=dict)
    head: str = "rhead"
    renamed: Mapping[str, ex.Expr] = field(default_factory=dict)
    lanes: str = REDUCED
    group_start: str = ""
    runs: Mapping[str, Loops] = field(default_factory=dict)
    units: Units | None = None
    members: tuple[Members, ...] = ()

    def text(self, index: ex.Expr) -> str:
        """An index of the kernel as Triton source."""
        if found := self.texts.get(index):
            return found
        if self.units is not None:
            return self.units.text(index)
        return index_text(ex.substitute(self._flat(index), self.renamed))

    def at(self, base: str, index: ex.Expr) -> str:
        """Pointers to what is at an index of the kernel from `base` on, as Triton source."""
        if self.units is not None and self.has_rows(index):
            return self.units.pointer(base, index)
        return f"{base} + {self.text(index)}"

    def once(self, param: int, index: ex.Expr) -> str:
        """What the rows of a unit have once at an index, loaded; nothing if they have more."""
        if self.units is None or self.masks or index in self.texts:
            return ""
        return self.units.once(param, index)

    def has_rows(self, index: ex.Expr) -> bool:
        """Whether what is loaded at an index chooses between pointers to the rows of a unit."""
        return self.units is not None and self.units.has_pointers and index not in self.texts

    def _flat(self, index: ex.Expr) -> ex.Expr:
        """`index` at the positions along `runs`, where it is affine in them."""
        found = affine(index, list(self.runs.values())) if self.runs else None
        if found is None:
            return index
        steps = zip(self.runs, found.strides, strict=True)
        return ex.add(found.offset, *(ex.mul(by, ex.symbol(name)) for name, by in steps))

    def steps(self, *, copies: bool) -> str:
        """Where the blocks of a walk start, as something to loop over; `copies`: where steps may be
        copied ahead."""
        if self.ahead > 1 and copies:
            return f"tl.range({self.start}, {self.end}, R, num_stages={self.ahead})"
        if self.unroll == 1:
            return f"range({self.start}, {self.end}, R)"
        return f"tl.range({self.start}, {self.end}, R, loop_unroll_factor={self.unroll})"

    @property
    def first_end(self) -> str:
        """Where the first block of a walk ends."""
        return f"tl.minimum({self.end}, {self.start} + R)"

    @property
    def elements(self) -> str:
        """The number of elements in a walk; no more than 0 if it is empty."""
        return f"({self.counted or f'{self.end} - {self.start}'})"

    @property
    def first_elements(self) -> str:
        """The number of elements in the first block of a walk."""
        return self.counted_first or f"{self.first_end} - {self.start}"

    @property
    def reduced_axis(self) -> int:
        """The position of the reduction's axis."""
        return self.axes.index(REDUCED)

    @property
    def row_shape(self) -> str:
        """The shape of what is there once a row."""
        return self._along("1")

    @property
    def element_shape(self) -> str:
        """The shape of what varies along the reduction; the row's where there is none."""
        return self._along(self.lanes)

    @property
    def group_shape(self) -> str:
        """The shape of what is there once for each `group` of elements."""
        return self._along(f"{REDUCED} // {self.group}")

    def lanes_shape(self, lanes: int) -> str:
        """The shape of elements in groups of so many neighbours, that of groups before it."""
        return self._along(f"{REDUCED} // {lanes}, {lanes}")

    @property
    def shares_shape(self) -> str:
        """The shape of what is there once for all that a thread has along the row."""
        return self._along(f"{REDUCED} // {self.share}")

    def words_shape(self, lanes: int) -> str:
        """The shape of elements word by word, where each has so many lanes."""
        return self._along(f"{REDUCED} // {self.word}, {lanes}")

    @property
    def unit_shape(self) -> str:
        """One element, with the tile's rank."""
        return _shape(["1"] * (len(self.axes) if self.units is None else 2))

    @property
    def column_mask(self) -> str:
        """The mask along the reduction, empty if always true."""
        return self.masks.get(REDUCED, "")

    def again(self, position: int) -> Block:
        """The group of elements that the arg at `position` found, with places `place{position}`."""
        return replace(
            self,
            masks={**self.masks, REDUCED: f"within{position}"},
            prefix="g",
            lanes=str(self.group),
            renamed={"r0": ex.symbol(f"place{position}")},
            texts={},
            phased={},
            spans=(),
            edges=None,
            together=None,
            word=1,
        )

    @property
    def spread(self) -> str:
        """The subscript that lays lanes along the reduction."""
        return f"[{', '.join(':' if axis == REDUCED else 'None' for axis in self.axes)}]"

    @property
    def row_mask(self) -> str:
        """The mask of what is there once a row."""
        return self._all(axis for axis in self.axes if axis != REDUCED)

    @property
    def element_mask(self) -> str:
        """The mask of what varies along all axes."""
        return self._all(self.axes)

    def mask_of(self, *indices: ex.Expr) -> str:
        """The mask under which a load of these indices stays in its storage."""
        used = {self.axis_of[name] for name in ex.symbols_of(*indices) if name in self.axis_of}
        return self._all(axis for axis in self.axes if axis in used)

    def rows_mask_of(self, index: ex.Expr) -> str:
        """The same of what is there once for neighbours along the reduction."""
        used = {self.axis_of[name] for name in ex.symbols_of(index) if name in self.axis_of}
        return self._all(axis for axis in self.axes if axis in used and axis != REDUCED)

    def pointer(self, base: str, index: ex.Expr) -> str:
        """A pointer to the whole block, for an `index` that is affine in it; else nothing."""
        found = affine(index, [span.loops for span in self.spans]) if self.spans else None
        if found is None or not found.is_block:
            return ""
        start = base if found.offset == ex.ZERO else f"{base} + {index_text(found.offset)}"
        shape, strides = (
            ", ".join(map(index_text, sizes))
            for sizes in ([ex.product(span.loops.values()) for span in self.spans], found.strides)
        )
        offsets = ", ".join(span.start for span in self.spans)
        order = ", ".join(str(place) for place in reversed(range(len(self.axes))))
        return (
            f"tl.make_block_ptr({start}, ({shape}), ({strides}), ({offsets}), "
            f"{self.element_shape}, ({order}))"
        )

    @property
    def bounds_checked(self) -> str:
        """The axes that a block pointer is checked along, as an argument; nothing if none."""
        places = [str(place) for place, axis in enumerate(self.axes) if axis in self.masks]
        return f", boundary_check=[{', '.join(places)}]" if places else ""

    def _along(self, reduced: str) -> str:
        if self.units is not None:
            return _shape([f"X // {self.units.lanes}", str(self.units.lanes)])
        return _shape([(reduced if axis == REDUCED else axis) for axis in self.axes])

    def _all(self, axes: Iterable[str]) -> str:
        return " & ".join(self.masks[axis] for axis in axes if axis in self.masks)


def _shape(sizes: Iterable[str]) -> str:
    return f"[{', '.join(sizes)}]"
