"""The families of CUDA schedules: how each lays the loops of a kernel out over programs and tiles.

Programs are counted along the grid's first axis, the innermost tile axis fastest; those that share
rows of any number along the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from nearhint_compiler.analysis.affine import Loops, affine
from nearhint_compiler.analysis.flat import FLAT, flattened
from nearhint_compiler.analysis.index_width import INDEX_LIMIT
from nearhint_compiler.analysis.online import SHARED, walks_of
from nearhint_compiler.analysis.row_words import RowWords
from nearhint_compiler.codegen.triton.block import REDUCED, Block, Span, Turn
from nearhint_compiler.codegen.triton.cooperative import cooperative
from nearhint_compiler.codegen.triton.edges import (
    begun,
    row_lines,
    tile_words_of,
    with_edges,
    words_of,
)
from nearhint_compiler.codegen.triton.row import (
    Row,
    ceil_div,
    planes,
    row_of,
    unflatten,
    within,
    worded,
)
from nearhint_compiler.codegen.triton.stages import staged, stages_of
from nearhint_compiler.codegen.triton.text import index_text
from nearhint_compiler.codegen.triton.walks import straight, walked
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule import block_pointers
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.guard import AtMost, Fact

BLOCK_LIMIT = 1 << 20
"""Triton's largest block, in elements."""
SPLIT_LIMIT = 1024
TEAM_LIMIT = 32
POLLS = 1000
"""Looks at a word before a program gives up, some 0.7 microseconds each."""
TILE_WORD = "(xword + xlane)"
"""Where a lane of a tile in words lies, along the rows that the words are of."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A kernel laid out: its lines, the number of programs, constants, size Guards, workspace.

    `arrays` are the dtypes of the workspace's arrays, each of `array_length` elements, for a kernel
    of `stages` launches. `shares` is the number of programs along the grid's second axis, `sizes`
    are more arguments of the kernel, by name.
    """

    lines: Sequence[str]
    programs: ex.Expr
    constants: tuple[tuple[str, int], ...]
    facts: tuple[Fact, ...] = ()
    arrays: tuple[str, ...] = ()
    array_length: ex.Expr = ex.ZERO
    stages: int = 1
    shares: ex.Expr = ex.ONE
    sizes: tuple[tuple[str, ex.Expr], ...] = ()


@dataclass(slots=True)
class _Header:
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

    def banded(self, names: tuple[str, str], counts: tuple[ex.Expr, ex.Expr], band: int) -> None:
        """Splits two off `pid`: `band` of the first, for each of the second, before the next."""
        (first, second), (across, down) = names, map(index_text, counts)
        self.lines += [
            f"inplane = pid % ({across} * {down})",
            f"pid = pid // ({across} * {down})",
            f"bandstart = inplane // ({band} * {down}) * {band}",
            f"bandwidth = tl.minimum({across} - bandstart, {band})",
            f"inband = inplane % ({band} * {down})",
            f"{first} = bandstart + inband % bandwidth",
            f"{second} = inband // bandwidth",
        ]

    def nearer_of(self, counts: Mapping[str, ex.Expr], near: int) -> None:
        """Splits `pid` into the parts of two axes, `near` of the first fastest, then the second:
        neighbours along both run while what they share is in a cache.
        """
        (first, rows), (second, columns) = counts.items()
        if near == 1:
            a, b = index_text(rows), index_text(columns)
            self.lines += [
                f"fewest = tl.minimum({a}, {b})",
                "fast = pid % fewest",
                "slow = pid // fewest",
                f"{first} = tl.where({a} < {b}, fast, slow)",
                f"{second} = tl.where({a} < {b}, slow, fast)",
            ]
            return
        self.lines += [
            f"group = {near} * {index_text(columns)}",
            f"start = pid // group * {near}",
            f"down = tl.minimum({index_text(rows)} - start, {near})",
            "pid = pid % group",
            f"{first} = start + pid % down",
            f"{second} = pid // down",
        ]

    def axis(self, name: str, axis: str, program: str, size: ex.Expr, block: int) -> None:
        """Declares `name`, the positions along `axis` of program `program`, and their mask."""
        spread = ", ".join(":" if other == axis else "None" for other in self.axes)
        lanes = f"tl.arange(0, {axis})" + (f"[{spread}]" if len(self.axes) > 1 else "")
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


def _spans(kernel: ir.Kernel, schedule: Schedule, header: _Header) -> tuple[Span, ...]:
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


def _pointwise_loops(kernel: ir.Kernel) -> dict[str, ex.Expr]:
    return {f"p{number}": extent for number, extent in enumerate(kernel.pointwise)}


def _header(schedule: Schedule, axes: tuple[str, ...]) -> _Header:
    header = _Header(schedule["index"] == 64, axes)
    header.program()
    return header


def _pointwise(kernel: ir.Kernel, schedule: Schedule) -> Layout:
    if kernel.reduction:
        raise InvalidSchedule("cuda.pointwise of a reduction")
    if schedule.get(block_pointers.OPTION, 0):
        raise InvalidSchedule("block pointers of a flat block")
    total, x = ex.product(kernel.pointwise), schedule["x"]
    header = _header(schedule, ("X",))
    header.axis("x", "X", "pid", total, x)
    header.loops("x", "X", _pointwise_loops(kernel))
    flat, axis_of = flattened(kernel), {**header.axis_of, FLAT: "X"}
    body = straight(flat, Block(("X",), axis_of, header.masks))
    if schedule.get("whole", 0) and header.masks:
        # A mask that may end anywhere keeps loads from being vectors: only the last block has one.
        whole = straight(flat, Block(("X",), axis_of, {}))
        body = [
            f"if pid * X + X <= {index_text(total)}:",
            *(f"    {line}" for line in whole),
            "else:",
            *(f"    {line}" for line in body),
        ]
    return Layout([*header.lines, *body], ceil_div(total, x), (("X", x),))


def _tile(
    kernel: ir.Kernel, schedule: Schedule, header: _Header, words: RowWords | None = None
) -> ex.Expr:
    """Declares the pointwise loops of a tile; returns the number of programs.

    A bit of `cuts` is set for each loop that ends an axis; the innermost always does. With `words`
    the lanes of the last one are those of whole words.
    """
    cuts, rank = schedule["cuts"], len(kernel.pointwise)
    if not 0 < cuts < 1 << max(0, rank - 1):
        raise InvalidSchedule(f"{schedule.family} with cuts={cuts} of {rank} pointwise loops")
    loops = list(_pointwise_loops(kernel).items())
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
    near, band = schedule.get("near", 0), schedule.get("band", 0)
    if near and (band or len(axes) != 2):
        raise InvalidSchedule(f"{schedule.family}: the order of {len(axes)} axes: {schedule}")
    if near:
        header.nearer_of(counts, near)
    if band:
        *_, down, across = counts
        header.banded((across, down), (counts[across], counts[down]), band)
    split_off = 2 if near or band else 0
    declared = list(zip(axes, runs, sizes, strict=True))
    for number, (axis, run, size) in enumerate(declared if near else reversed(declared)):
        name = axis.lower()
        if number >= split_off:
            header.next_of(f"{name}block", counts[f"{name}block"])
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


def _blocks(schedule: Schedule, axes: Sequence[str]) -> tuple[tuple[str, int], ...]:
    return tuple((axis, schedule[axis.lower()]) for axis in axes)


def _tiled(kernel: ir.Kernel, schedule: Schedule) -> Layout:
    if kernel.reduction:
        raise InvalidSchedule(f"{schedule.family} of a reduction")
    axes = tile_axes(schedule)
    header = _header(schedule, axes)
    words = tile_words_of(kernel, schedule) if schedule.get("words", 0) else None
    programs = _tile(kernel, schedule, header, words)
    spans = _spans(kernel, schedule, header)
    block = Block(axes, header.axis_of, header.masks, spans=spans, runs=header.runs)
    if words is None:
        body = straight(kernel, block)
    else:
        body = _within_rows(kernel, replace(block, texts=dict.fromkeys(words.indices, TILE_WORD)))
    return Layout([*header.lines, *body], programs, _blocks(schedule, axes))


def _within_rows(kernel: ir.Kernel, block: Block) -> list[str]:
    """The body of a tile in words: where no row begins or ends, none of its words is in part."""
    length = index_text(ex.product(block.runs["x"].values()))
    whole = replace(block, masks={a: m for a, m in block.masks.items() if a != "X"})
    return [
        f"if (xblock > 0) & (xblock * X + X <= {length}):",
        *(f"    {line}" for line in straight(kernel, whole)),
        "else:",
        *(f"    {line}" for line in straight(kernel, block)),
    ]


def _reduced(
    row: Row,
    kernel: ir.Kernel,
    schedule: Schedule,
    header: _Header,
    *,
    span: tuple[str, str] = ("0", ""),
) -> Block:
    """The block of rows whose pointwise loops are declared; `span` is that of a walk."""
    start, end = span
    spread = f"[{', '.join('None' for _ in header.axes[1:])}, :]{header.widened}"
    header.lines.append(f"rbase = tl.arange(0, R){spread}")
    header.axis_of.update({f"r{n}": REDUCED for n in range(len(kernel.reduction))})
    if row.has_mask:
        header.masks[REDUCED] = "rmask"
    header.starts[REDUCED] = "roffset" if end else "0"
    counted, counted_first = row.counts(start, end) if end else ("", "")
    block = Block(
        header.axes,
        header.axis_of,
        header.masks,
        row.element,
        start,
        end,
        counted=counted,
        counted_first=counted_first,
        spans=_spans(kernel, schedule, header),
        group=schedule.get("group", 1),
        unroll=schedule.get("unroll", 1),
        ahead=schedule.get("ahead", 1),
        place=f"i{schedule['index']}",
        is_early=schedule.get("early", 0) == 1,
        is_single=all(schedule[axis.lower()] == 1 for axis in header.axes[:-1]),
    )
    if not row.is_words:
        return block
    words = words_of(kernel, schedule)
    header.lines.append(f"ebase = tl.arange(0, R // {words.lanes}){spread}")
    if row.elements:
        return with_edges(block, kernel, words, planes=ex.product(kernel.reduction[:-1]))
    chunk = "chunk == 0" if "splits" in dict(schedule.options) else ""
    first = _pointwise_loops(kernel) if schedule.get("turns", 1) > 1 else ()
    header.lines += row_lines(kernel, words, block.row_shape, chunk=chunk, first=tuple(first))
    return with_edges(block, kernel, words)


def _row(kernel: ir.Kernel, schedule: Schedule, *, is_walked: bool, wide: bool) -> Row:
    if not schedule.get("words", 0):
        return row_of(kernel, schedule, is_walked=is_walked, wide=wide)
    words = words_of(kernel, schedule)
    if schedule.get("r1", 0):
        return planes(kernel, schedule, words, is_walked=is_walked, wide=wide)
    return worded(kernel, schedule, lanes=words.lanes, is_walked=is_walked)


def _rows(kernel: ir.Kernel, schedule: Schedule) -> Layout:
    """cuda.persistent and cuda.looped, flat or in a tile."""
    if not kernel.reduction:
        raise InvalidSchedule(f"{schedule.family} of a pointwise kernel")
    is_tiled = schedule.family.startswith("cuda.tiled")
    axes = (*tile_axes(schedule), REDUCED) if is_tiled else ("X", REDUCED)
    blocks = _blocks(schedule, axes)
    if math.prod(size for _, size in blocks) > BLOCK_LIMIT:
        raise InvalidSchedule(f"a block too large: {schedule}")
    header = _header(schedule, axes)
    if is_tiled:
        programs = _tile(kernel, schedule, header)
    elif schedule.get("turns", 1) > 1:
        return _in_turns(kernel, schedule, header)
    else:
        programs = _flat_rows(kernel, schedule["x"], header)
    is_walked = not schedule.family.endswith("persistent")
    row = _row(kernel, schedule, is_walked=is_walked, wide=header.wide)
    blocks += row.constants
    if not is_walked:
        block = _reduced(row, kernel, schedule, header)
        return Layout([*header.lines, *straight(kernel, block)], programs, blocks, row.whole)
    header.lines += [*row.header, f"rlength = {index_text(row.span)}"]
    block = _reduced(row, kernel, schedule, header, span=("0", "rlength"))
    return Layout([*header.lines, *walked(kernel, block)], programs, blocks, row.walked)


def _flat_rows(kernel: ir.Kernel, x: int, header: _Header) -> ex.Expr:
    rows = ex.product(kernel.pointwise)
    header.axis("x", "X", "pid", rows, x)
    header.loops("x", "X", _pointwise_loops(kernel))
    return ceil_div(rows, x)


def _in_turns(kernel: ir.Kernel, schedule: Schedule, header: _Header) -> Layout:
    """Rows in whole words, one after the other, whose words begin alike: every so many lanes."""
    words, turns = words_of(kernel, schedule), schedule["turns"]
    loops, rows = _pointwise_loops(kernel), ex.product(kernel.pointwise)
    is_other = schedule["x"] > 1 or schedule.get("r1", 0) or schedule.get("early", 0)
    if is_other or not schedule.get("words", 0):
        raise InvalidSchedule(f"turns of what is no row in registers: {schedule}")
    if affine(words.base, [loops]) is None:
        raise InvalidSchedule(f"rows whose words do not begin alike: {schedule}")
    lanes = words.lanes
    header.lines += [
        f"first = pid // {lanes} * {lanes * turns} + pid % {lanes}",
        *unflatten("first", {f"f{name}": extent for name, extent in loops.items()}),
    ]
    header.axis_of.update(dict.fromkeys(loops, "X"))
    row = worded(kernel, schedule, lanes=lanes, is_walked=False)
    block = _reduced(row, kernel, schedule, header)
    last = f"tl.minimum(first + {lanes * turns}, {index_text(rows)})"
    turn = Turn(
        f"for row in range(first, {last}, {lanes}):",
        (
            f"x = tl.full({block.row_shape}, 0, tl.int32){header.widened} + row",
            *unflatten("x", loops),
            *begun(words, block.row_shape),
        ),
    )
    lines = [*header.lines, *straight(kernel, replace(block, turn=turn))]
    programs = ex.mul(ceil_div(rows, lanes * turns), lanes)
    return Layout(lines, programs, _blocks(schedule, ("X", REDUCED)), row.whole)


def _split(kernel: ir.Kernel, schedule: Schedule) -> Layout:
    """Rows in chunks, a whole number of steps each; only the last one may be shorter, or empty."""
    if not kernel.reduction:
        raise InvalidSchedule("cuda.split of a kernel without reductions")
    most, r = schedule["splits"], schedule["r"]
    if not 2 <= most <= SPLIT_LIMIT:
        raise InvalidSchedule(f"{most} programs a row")
    header = _header(schedule, ("X", REDUCED))
    rows, is_adapted = ex.product(kernel.pointwise), schedule.get("programs", 0) > 0
    splits = _splits(schedule, ceil_div(rows, schedule["x"]))
    if is_adapted:
        # Counted along an axis of their own: what is divided would not be the same for all threads
        # of a program any more, as Triton and ptxas see it, and cost registers in the walk.
        header.lines.append(f"chunk = tl.program_id(1){header.widened}")
    else:
        header.next_of("chunk", splits)
    blocks = _flat_rows(kernel, schedule["x"], header)
    row = _row(kernel, schedule, is_walked=True, wide=header.wide)
    steps = ex.floordiv(ex.add(row.span, ex.mul(splits, r), -1), ex.mul(splits, r))
    chunk = "rchunk" if is_adapted else f"({index_text(ex.mul(steps, r))})"
    header.lines += [
        *row.header,
        *(["rchunk = rsteps * R"] if is_adapted else []),
        f"rows = {index_text(rows)}",
        f"rstart = chunk * {chunk}",
        f"rend = tl.minimum(rstart + {chunk}, {index_text(row.span)})",
    ]
    if schedule.get("unroll", 1) > 1 or schedule.get("ahead", 1) > 1:
        # A chunk beyond the row: Triton counts the steps of such walks before it takes them.
        header.lines.append("rend = tl.maximum(rstart, rend)")
    block = _reduced(row, kernel, schedule, header, span=("rstart", "rend"))
    if is_adapted and row.has_mask:
        block = replace(block, step_count="rsteps")
    splits_text = "splits" if is_adapted else index_text(splits)
    body = staged(kernel, block, rows="rows", splits=splits_text, lanes="LANES")
    lanes = max(1 << (most - 1).bit_length(), _least_lanes(kernel, schedule))
    array_length = ex.mul(rows, splits)
    facts = () if header.wide else (AtMost(array_length, INDEX_LIMIT),)
    layout = Layout(
        [*header.lines, *body.lines],
        blocks if is_adapted else ex.mul(blocks, splits),
        (*_blocks(schedule, ("X", REDUCED)), ("LANES", lanes), *row.constants),
        (*facts, *row.walked),
        body.arrays,
        array_length,
        body.launches,
    )
    if not is_adapted:
        return layout
    return replace(layout, shares=splits, sizes=(("splits", splits), ("rsteps", steps)))


def _cooperative(kernel: ir.Kernel, schedule: Schedule) -> Layout:
    """Teams of programs, a row each at a time, whose chunks are blocks in registers."""
    splits, r, teams = schedule["splits"], schedule["r"], schedule["teams"]
    if not 2 <= splits <= TEAM_LIMIT or teams < 1 or schedule["x"] != 1:
        raise InvalidSchedule(f"teams that cannot be: {schedule}")
    if schedule.get("r1", 0) or schedule.get(block_pointers.OPTION, 0):
        raise InvalidSchedule(f"tiles of rows that teams hold: {schedule}")
    if stages_of(kernel) != 2 or walks_of(kernel, SHARED) != 2:
        raise InvalidSchedule("a team meets once, and stores what it held")
    header = _Header(schedule["index"] == 64, ("X", REDUCED))
    _flat_rows(kernel, 1, header)
    row = _row(kernel, schedule, is_walked=True, wide=header.wide)
    row_lines, header.lines = header.lines, []
    header.lines += [
        "rstart = chunk * R",
        f"rend = tl.minimum(rstart + R, {index_text(row.span)})",
    ]
    block = _reduced(row, kernel, schedule, header, span=("rstart", "rend"))
    rows = ex.product(kernel.pointwise)
    rounds = ceil_div(rows, teams)
    busy = ex.floordiv(ex.add(rows, rounds, -1), rounds)
    body = cooperative(
        kernel,
        block,
        rows=index_text(rows),
        row=row_lines,
        part=header.lines,
        splits=splits,
        teams=index_text(busy),
        polls=schedule.get("polls", POLLS),
    )
    array_length = ex.mul(rows, splits)
    facts = () if header.wide else (AtMost(array_length, INDEX_LIMIT),)
    lanes = max(1 << (splits - 1).bit_length(), 32 * schedule["warps"])
    return Layout(
        [f"program = tl.program_id(0){header.widened}", *body.lines],
        ex.mul(busy, splits),
        (*_blocks(schedule, ("X", REDUCED)), ("LANES", lanes), *row.constants),
        (*facts, *within(ceil_div(row.span, splits), r, "the row is longer than a team's blocks")),
        body.arrays,
        array_length,
        body.launches,
    )


def _splits(schedule: Schedule, blocks: ex.Expr) -> ex.Expr:
    """How many programs share a row: `splits`, or fewer where so many blocks make enough."""
    most, programs = schedule["splits"], schedule.get("programs", 0)
    if not programs:
        return ex.Int(most)
    return ex.maximum(1, ex.minimum(most, ex.floordiv(programs, blocks)))


def _least_lanes(kernel: ir.Kernel, schedule: Schedule) -> int:
    """What spreads parts over all threads, as elements are, if they meet them in the last stage.

    Else Triton may bring their results to the elements' threads through shared memory, broadcast.
    """
    elements = ir.per_element(kernel)
    if not any(isinstance(node, ir.Store) and elements[p] for p, node in enumerate(kernel.body)):
        return 1
    return max(1, 32 * schedule["warps"] // schedule["x"])


Family: TypeAlias = Callable[[ir.Kernel, Schedule], Layout]
FAMILIES: Mapping[str, Family] = {
    "cuda.pointwise": _pointwise,
    "cuda.tiled": _tiled,
    "cuda.persistent": _rows,
    "cuda.looped": _rows,
    "cuda.tiled_persistent": _rows,
    "cuda.tiled_looped": _rows,
    "cuda.split": _split,
    "cuda.cooperative": _cooperative,
}
