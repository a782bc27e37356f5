"""Where programs and tiles lie: the lines before a body, which declare loops, masks and starts.

Programs are counted along the grid's first axis, the innermost tile axis fastest; those that share
rows of any number along the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nearhint_compiler.analysis.affine import Loops
from nearhint_compiler.analysis.row_words import RowWords
from nearhint_compiler.codegen.triton.block import REDUCED, Span
from nearhint_compiler.codegen.triton.row import (
    ceil_div,
    unflatten,
)
from nearhint_compiler.codegen.triton.text import index_text
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule import block_pointers
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex


@dataclass(slots=True)
class Header:
    """The lines before a body, as they are made."""

    wide: bool
    axes: tuple[str, ...]
    lines: list[str] = field(default_factory=list)
    axis_of: dict[str, str] = field(default_factory=dict)
    masks: dict[str, str] = field(default_factory=dict)
    starts: dict[str, str] = field(default_factory=dict)
    runs: dict[str, Loops] = field(default_factory=dict)

    @property
    def widened(self) -> str:
        """What makes an index 64 bits wide, where it must be."""
        return ".to(tl.int64)" if self.wide else ""

    def program(self) -> None:
        """Declares `pid`."""
        self.lines.append(f"pid = tl.program_id(0){self.widened}")

    def next_of(self, name: str, count: ex.Expr) -> None:
        """Splits the fastest of `count` parts off `pid`."""
        if count == ex.ONE:
            self.lines.append(f"{name} = pid * 0")
            return
        self.lines.append(f"{name} = pid % {index_text(count)}")
        self.lines.append(f"pid = pid // {index_text(count)}")

    def ordered(self, counts: Mapping[str, ex.Expr], order: int) -> None:
        """Splits `pid` into the parts of a tile's axes, the last fastest but for `order`.

        With 1 the shorter of the last two axes comes first, all of it. With n > 1 programs go
        through bands of n of the axis before the last, with -n through bands of n of the last:
        first across the band, then along it. Neighbours along both axes run while what they share
        is in a cache; along one, that is read as it lies.
        """
        slowest, *others = names = list(counts)
        if not order:
            for name in reversed(others):
                self.next_of(name, counts[name])
            self.lines.append(f"{slowest} = pid")
            return
        rows, columns = (index_text(counts[name]) for name in names[-2:])
        place = "pid"
        if len(names) > 2:
            place = "inplane"
            self.lines.append(f"inplane = pid % ({rows} * {columns})")
            self.lines.append(f"pid = pid // ({rows} * {columns})")
        if order == 1:
            self._shorter_first(place, (names[-2], names[-1]), (rows, columns))
        elif order > 0:
            self._banded(place, (names[-2], names[-1]), (rows, columns), order)
        else:
            self._banded(place, (names[-1], names[-2]), (columns, rows), -order)
        for name in names[:-2]:
            self.lines.append(f"{name} = pid")

    def _shorter_first(self, place: str, names: tuple[str, str], counts: tuple[str, str]) -> None:
        (first, second), (rows, columns) = names, counts
        self.lines += [
            f"fewest = tl.minimum({rows}, {columns})",
            f"fast = {place} % fewest",
            f"slow = {place} // fewest",
            f"{first} = tl.where({rows} < {columns}, fast, slow)",
            f"{second} = tl.where({rows} < {columns}, slow, fast)",
        ]

    def _banded(
        self, place: str, names: tuple[str, str], counts: tuple[str, str], band: int
    ) -> None:
        """Bands of `band` of the first axis, for each of which all of the second come in turn."""
        (first, second), (across, down) = names, counts
        if band == 1:
            self.lines += [f"{first} = {place} // {down}", f"{second} = {place} % {down}"]
            return
        self.lines += [
            f"band = {band} * {down}",
            f"bandstart = {place} // band * {band}",
            f"bandwidth = tl.minimum({across} - bandstart, {band})",
            f"inband = {place} % band",
            f"{first} = bandstart + inband % bandwidth",
            f"{second} = inband // bandwidth",
        ]

    def spread(self, axis: str) -> str:
        """The subscript that lays lanes along `axis`."""
        return f"[{', '.join(':' if other == axis else 'None' for other in self.axes)}]"

    def axis(self, name: str, axis: str, program: str, size: ex.Expr, block: int) -> None:
        """Declares `name`, the positions along `axis` of program `program`, and their mask."""
        lanes = f"tl.arange(0, {axis})" + (self.spread(axis) if len(self.axes) > 1 else "")
        self.starts[axis] = f"{program} * {axis}"
        self.lines.append(f"{name} = {self.starts[axis]} + {lanes}")
        mask = mask_of(name, size, block, self.lines)
        if mask:
            self.masks[axis] = mask

    def shifted(self, name: str, axis: str, program: str, size: ex.Expr, words: RowWords) -> None:
        """As `axis`, with the lanes of each row where its words begin; all lanes have a mask."""
        self.starts[axis] = f"{program} * {axis}"
        zero = index_text(words.base)
        self.lines += [
            f"{name}lane = {self.starts[axis]} + tl.arange(0, {axis})[None, :]",
            f"{name}word = {zero} // {words.lanes} * {words.lanes}",
            f"{name} = {name}lane - ({zero} - {name}word)",
            f"{name}mask = ({name} >= 0) & ({name} < {index_text(size)})",
        ]
        self.masks[axis] = f"{name}mask"

    def loops(self, flat: str, axis: str, loops: Mapping[str, ex.Expr]) -> None:
        """Declares the loop variables whose flat index is `flat`, the last one innermost."""
        self.lines += unflatten(flat, loops)
        if axis:
            self.axis_of.update(dict.fromkeys(loops, axis))


def header_of(schedule: Schedule, axes: tuple[str, ...]) -> Header:
    """A header that has declared `pid`."""
    header = Header(schedule["index"] == 64, axes)
    header.program()
    return header


def pointwise_loops(kernel: ir.Kernel) -> dict[str, ex.Expr]:
    """The extents of the pointwise loops by their variables, the outermost first."""
    return {f"p{number}": extent for number, extent in enumerate(kernel.pointwise)}


def flat_rows(kernel: ir.Kernel, x: int, header: Header) -> ex.Expr:
    """Declares the pointwise loops as one axis of rows, `x` a program; returns the programs."""
    rows = ex.product(kernel.pointwise)
    header.axis("x", "X", "pid", rows, x)
    header.loops("x", "X", pointwise_loops(kernel))
    return ceil_div(rows, x)


def tile(
    kernel: ir.Kernel, schedule: Schedule, header: Header, words: RowWords | None = None
) -> ex.Expr:
    """Declares the pointwise loops of a tile; returns the number of programs.

    A bit of `cuts` is set for each loop that ends an axis; the innermost always does. With `words`
    the lanes of the last one are those of whole words.
    """
    cuts, rank = schedule["cuts"], len(kernel.pointwise)
    if not 0 < cuts < 1 << max(0, rank - 1):
        raise InvalidSchedule(f"{schedule.family} with cuts={cuts} of {rank} pointwise loops")
    loops = list(pointwise_loops(kernel).items())
    starts = [0, *(place + 1 for place in range(rank) if cuts >> place & 1)]
    runs = [dict(loops[start:end]) for start, end in zip(starts, [*starts[1:], rank], strict=True)]
    axes = [axis for axis in header.axes if axis != REDUCED]
    if len(runs) != len(axes):
        raise InvalidSchedule(f"{schedule.family}: {len(runs)} axes, not {len(axes)}")
    sizes = [ex.product(run.values()) for run in runs]
    beside = [words.lanes - 1 if words and axis == axes[-1] else 0 for axis in axes]
    counts = {
        f"{axis.lower()}block": ceil_div(ex.add(size, more), schedule[axis.lower()])
        for axis, size, more in zip(axes, sizes, beside, strict=True)
    }
    header.ordered(counts, schedule.get("order", 0))
    for axis, run, size in zip(axes, runs, sizes, strict=True):
        name = axis.lower()
        if words and axis == axes[-1]:
            header.shifted(name, axis, f"{name}block", size, words)
        else:
            header.axis(name, axis, f"{name}block", size, schedule[name])
        header.loops(name, axis, run)
    if words or any(len(run) > 1 for run in runs):
        header.runs = {axis.lower(): run for axis, run in zip(axes, runs, strict=True)}
    return ex.product(counts.values())


def tile_axes(schedule: Schedule) -> tuple[str, ...]:
    """The pointwise axes of a tiled schedule: one more than it has cuts."""
    return ("Z", "Y", "X")[2 - min(2, schedule["cuts"].bit_count()) :]


def blocks_of(schedule: Schedule, axes: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """The block sizes of `axes`, as constants of the kernel."""
    return tuple((axis, schedule[axis.lower()]) for axis in axes)


def spans_of(kernel: ir.Kernel, schedule: Schedule, header: Header) -> tuple[Span, ...]:
    """The spans of the block's axes, where `schedule` wants block pointers."""
    if not schedule.get(block_pointers.OPTION, 0):
        return ()
    if not block_pointers.applies(kernel, schedule):
        raise InvalidSchedule(f"no access for a block pointer: {schedule}")
    loops = block_pointers.axes_of(kernel, schedule)
    return tuple(
        Span(header.starts[axis], each) for axis, each in zip(header.axes, loops, strict=True)
    )


def mask_of(name: str, size: ex.Expr, block: int, lines: list[str]) -> str:
    """The mask of a flat index against `size`: none if the blocks fill it exactly."""
    if block == 1 or (isinstance(size, ex.Int) and size.value % block == 0):
        return ""
    lines.append(f"{name}mask = {name} < {index_text(size)}")
    return f"{name}mask"
