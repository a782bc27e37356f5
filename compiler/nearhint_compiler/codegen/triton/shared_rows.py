"""The families whose programs share rows: in stages, in teams that hold them, and in chains."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nearhint_compiler.analysis.chains import is_chained
from nearhint_compiler.analysis.folds import Fold, folded, folded_stores
from nearhint_compiler.analysis.index_width import INDEX_LIMIT
from nearhint_compiler.analysis.online import SHARED, walks_of
from nearhint_compiler.analysis.scans import has_scans
from nearhint_compiler.codegen.triton.ahead import Ahead, ahead_in_words
from nearhint_compiler.codegen.triton.block import REDUCED, Block
from nearhint_compiler.codegen.triton.cache_facts import cache_facts, has_element_stores
from nearhint_compiler.codegen.triton.chained import chained
from nearhint_compiler.codegen.triton.chained_rows import chained_rows, edge_places
from nearhint_compiler.codegen.triton.cooperative import cooperative
from nearhint_compiler.codegen.triton.edges import edge_lanes, edges_of, words_of
from nearhint_compiler.codegen.triton.folding import folding, folding_stores
from nearhint_compiler.codegen.triton.header import (
    Header,
    blocks_of,
    flat_rows,
    header_of,
)
from nearhint_compiler.codegen.triton.held import tile
from nearhint_compiler.codegen.triton.kept import period
from nearhint_compiler.codegen.triton.layout import Layout
from nearhint_compiler.codegen.triton.links import Links
from nearhint_compiler.codegen.triton.plane_folds import Segments
from nearhint_compiler.codegen.triton.row import (
    Row,
    ceil_div,
    shared_planes,
    within,
)
from nearhint_compiler.codegen.triton.rows import reduced, row_for
from nearhint_compiler.codegen.triton.stages import COLUMNS, Staged, apart_of, staged, stages_of
from nearhint_compiler.codegen.triton.team_edges import TeamEdges
from nearhint_compiler.codegen.triton.text import index_text
from nearhint_compiler.codegen.triton.together import runs_facts
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule import block_pointers
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.guard import AtMost, Fact
from nearhint_rules.program import DTYPES

SPLIT_LIMIT = 1024
WARP = TEAM_LIMIT = 32
BACK_LIMIT, RUN_LIMIT, TOGETHER_LIMIT, TILES_LIMIT = 64, 128, 32, 16
POLLS = 1000
"""Looks at a word before a program gives up, some 0.7 microseconds each."""


def split(kernel: ir.Kernel, schedule: Schedule) -> Layout:
    """Rows in chunks, a whole number of steps each; only the last one may be shorter, or empty."""
    if not kernel.reduction:
        raise InvalidSchedule("cuda.split of a kernel without reductions")
    most, x = schedule["splits"], schedule["x"]
    if not 2 <= most <= SPLIT_LIMIT:
        raise InvalidSchedule(f"{most} programs a row")
    header = header_of(schedule, ("X", REDUCED))
    given, fold = kernel, _fold_of(kernel, schedule)
    if fold is not None:
        kernel = fold.whole
    rows, is_adapted = ex.product(kernel.pointwise), schedule.get("programs", 0) > 0
    splits = _splits(schedule, ceil_div(rows, x))
    if is_adapted:
        # Counted along an axis of their own: what is divided would not be the same for all threads
        # of a program any more, as Triton and ptxas see it, and cost registers in the walk.
        header.lines.append(f"chunk = tl.program_id(1){header.widened}")
    else:
        header.next_of("chunk", splits)
    blocks = flat_rows(kernel, x, header)
    row, sizes = _chunks(kernel, schedule, header, splits)
    block = reduced(row, kernel, schedule, header, span=("rstart", "rend"))
    if is_adapted and row.has_mask:
        block = replace(block, step_count="rsteps")
    _check_apart(schedule, fold)
    shared = _SharedRows(given, kernel, schedule, block, rows, blocks, splits)
    brought = shared.brought() if fold is None else shared.brought_folded(fold)
    lanes = brought.lanes
    if shared.is_single:
        lanes = max(WARP, lanes)
    elif not schedule.get("apart", 0):
        lanes = max(lanes, _least_lanes(kernel, schedule))
    bounds = () if header.wide else tuple(AtMost(each, INDEX_LIMIT) for each in brought.counted)
    facts = (*bounds, *runs_facts(kernel, schedule), *cache_facts(given, schedule), *brought.facts)
    layout = Layout(
        [*header.lines, *brought.body.lines],
        blocks if is_adapted else ex.mul(blocks, splits),
        (
            *blocks_of(schedule, ("X", REDUCED)),
            *(((COLUMNS, brought.columns),) if brought.columns else ()),
            ("LANES", lanes),
            *row.constants,
        ),
        (*facts, *row.walked),
        brought.body.arrays,
        brought.counted[0],
        brought.body.launches,
    )
    if not is_adapted:
        return layout
    return replace(layout, shares=splits, sizes=sizes)


def _chunks(
    kernel: ir.Kernel, schedule: Schedule, header: Header, splits: ex.Expr
) -> tuple[Row, tuple[tuple[str, ex.Expr], ...]]:
    """The row, of which a program has what is from `rstart` to `rend`, and the sizes by name that a
    launch says where shares are adapted to it."""
    r, is_adapted = schedule["r"], schedule.get("programs", 0) > 0
    row = row_for(kernel, schedule, is_walked=True, wide=header.wide)
    sizes: list[tuple[str, ex.Expr]] = [("splits", splits)]
    if row.is_words and has_scans(kernel) and not is_adapted:
        header.lines.append(f"splits = {_splits_text(schedule, splits)}")
    if row.planes:
        # Whole planes, whose edges are whose words are.
        share = ex.floordiv(ex.add(row.planes.groups, splits, -1), splits)
        steps, share = ex.mul(share, row.planes.across), ex.mul(share, row.planes.each)
        row, lines = shared_planes(
            kernel, row, "rplanes" if is_adapted else f"({index_text(share)})"
        )
        header.lines += lines
        sizes.append(("rplanes", share))
    else:
        steps = ex.floordiv(ex.add(row.span, ex.mul(splits, r), -1), ex.mul(splits, r))
    sizes.append(("rsteps", steps))
    chunk = "rchunk" if is_adapted else f"({index_text(ex.mul(steps, r))})"
    header.lines += [
        *row.header,
        *(["rchunk = rsteps * R"] if is_adapted else []),
        f"rows = {index_text(ex.product(kernel.pointwise))}",
        f"rstart = chunk * {chunk}",
        f"rend = tl.minimum(rstart + {chunk}, {index_text(row.span)})",
    ]
    if schedule.get("unroll", 1) > 1 or schedule.get("ahead", 1) > 1:
        # A chunk beyond the row: Triton counts the steps of such walks before it takes them.
        header.lines.append("rend = tl.maximum(rstart, rend)")
    return row, tuple(sizes)


def _splits_text(schedule: Schedule, splits: ex.Expr) -> str:
    return "splits" if schedule.get("programs", 0) > 0 else index_text(splits)


def _check_apart(schedule: Schedule, fold: Fold | None) -> None:
    """Raises `InvalidSchedule` for columns that a program cannot bring together, or must and does
    not."""
    x, few = schedule["x"], schedule.get("apart", 0)
    is_stored = fold is not None and fold.is_stored
    is_odd = few and (not 0 < few <= x or x % few or (fold is not None and not is_stored))
    if is_odd or (is_stored and not few):
        raise InvalidSchedule(f"totals that are not brought together apart: {schedule}")


@dataclass(frozen=True, slots=True)
class _Brought:
    """How totals are brought together: `lanes` at once, of `columns` where they are apart.

    `counted` has how long an array of the workspace is, and what else an index must reach.
    """

    body: Staged
    lanes: int
    columns: int
    counted: tuple[ex.Expr, ...]
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True)
class _SharedRows:
    """The `rows` of a kernel, or of what it is folded to, in `blocks` of which `splits` programs
    have a chunk each."""

    given: ir.Kernel
    kernel: ir.Kernel
    schedule: Schedule
    block: Block
    rows: ex.Expr
    blocks: ex.Expr
    splits: ex.Expr

    @property
    def is_single(self) -> bool:
        """Whether each program has one row."""
        return self.schedule["x"] == 1 and not self.block.row_mask

    def brought(self) -> _Brought:
        """Rows as they are."""
        x, few = self.schedule["x"], self.schedule.get("apart", 0)
        apart = apart_of(self.kernel, self.block, x=x, few=few) if few else None
        body = staged(
            self.kernel,
            self.block,
            rows="rows",
            splits=_splits_text(self.schedule, self.splits),
            lanes="LANES",
            is_single=self.is_single,
            apart=apart,
        )
        lanes = 1 << (self.schedule["splits"] - 1).bit_length()
        length = ex.mul(self.rows, ex.add(self.splits, 1 if apart else 0))
        return _Brought(body, lanes, few, (length,))

    def brought_folded(self, fold: Fold) -> _Brought:
        """Several rows that are one."""
        if fold.plane != ex.ONE:
            return self._brought_planes(fold)
        by, most = self.schedule.get("fold", 1), self.schedule["splits"]
        splits = _splits_text(self.schedule, self.splits)
        if not fold.is_stored:
            body = folding(
                self.given, fold, self.block, by=by, splits=splits, lanes="LANES", of=None
            )
            lanes, columns = by << (most - 1).bit_length(), self.schedule["x"] // by
            return _Brought(body, lanes, columns, (ex.mul(self.rows, self.splits),))
        many = index_text(self.blocks)
        body = folding_stores(
            self.given, fold, self.block, by=by, blocks=many, splits=splits, lanes="LANES"
        )
        # With what is no whole long row, and the totals.
        lanes = 1 << (by * (most + 1) - 1).bit_length()
        length = ex.mul(self.rows, ex.add(self.splits, 2))
        return _Brought(body, lanes, self.schedule["apart"], (length,))

    def _brought_planes(self, fold: Fold) -> _Brought:
        """Planes whose elements are columns of their own first."""
        by, plane = self.schedule.get("fold", 1), self.schedule["plane"]
        splits = _splits_text(self.schedule, self.splits)
        of = Segments(fold.plane, self.schedule["x"], by, index_text(self.blocks), splits)
        # Of few rows long ones may have more columns than there are elements, with what begins
        # before their end.
        counted = (ex.mul(self.splits, self.blocks, of.most), ex.mul(2, self.rows))
        return _Brought(
            folding(self.given, fold, self.block, by=by, splits=splits, lanes="LANES", of=of),
            of.lanes_of(plane, self.schedule["splits"]),
            1,
            counted,
            within(of.plane, plane, "planes have more elements than there is room for"),
        )


def _fold_of(kernel: ir.Kernel, schedule: Schedule) -> Fold | None:
    """How several rows are one, if they are."""
    by, plane = schedule.get("fold", 1), schedule.get("plane", 1)
    if by == plane == 1:
        return None
    fold = folded(kernel, by) or folded_stores(kernel, by)
    is_plain = by <= schedule["x"] and not schedule.get("words", 0) and not schedule.get("r1", 0)
    if fold is None or not is_plain:
        raise InvalidSchedule(f"rows that are no part of longer ones: {schedule}")
    if (plane == 1) != (fold.plane == ex.ONE):
        raise InvalidSchedule(f"planes whose elements are no columns: {schedule}")
    return fold


def held_by_teams(kernel: ir.Kernel, schedule: Schedule) -> Layout:
    """Teams of programs, a row or a block of columns each at a time, whose chunks are blocks in
    registers, or walked."""
    _check_teams(kernel, schedule)
    splits, r, teams, x = schedule["splits"], schedule["r"], schedule["teams"], schedule["x"]
    is_walked, is_ahead = schedule.get("walks", 0) == 1, schedule.get("ahead", 1) > 1
    is_kept, pieces = schedule.get("weights", 0) == 1, schedule.get("pieces", 1)
    header = Header(schedule["index"] == 64, ("X", REDUCED))
    blocks = flat_rows(kernel, x, header)
    row = row_for(kernel, schedule, is_walked=True, wide=header.wide)
    row_lines, header.lines = header.lines, []
    steps = ex.floordiv(ex.add(row.span, splits * r, -1), splits * r)
    steps = steps if is_walked else ex.Int(pieces)
    chunk = index_text(ex.mul(steps, r))
    header.lines += [
        f"rstart = chunk * {chunk}",
        f"rend = tl.maximum(rstart, tl.minimum(rstart + {chunk}, {index_text(row.span)}))",
    ]
    options = tuple(option for option in schedule.options if option[0] != "pieces")
    whole = replace(schedule, options=options)
    block = reduced(row, kernel, whole, header, span=("rstart", "rend"))
    tiles = [tile(kernel, block, number, after="rstart") for number in range(pieces)]
    block = replace(block, ahead=1)
    edges: TeamEdges | None = None
    every = 1
    ahead = Ahead(kernel, block) if is_ahead else None
    if row.is_words:
        words = words_of(kernel, schedule)
        edges = TeamEdges(kernel, block, words, widened=header.widened)
        row_lines += edges.places
        every = period(kernel, words) if is_kept else 1
        if not every or teams % every:
            raise InvalidSchedule(f"weights of rows whose words begin anywhere: {schedule}")
        ahead = ahead_in_words(kernel, block, words) if is_ahead else None
    if x > 1:
        block = replace(block, share=_share(kernel, schedule))
    rows = ex.product(kernel.pointwise)
    is_adapted = x > 1 and not is_walked
    # Columns are shared by as many programs as hold them, and teams are as many more.
    used = ceil_div(row.span, r) if is_adapted else ex.Int(splits)
    most = ex.maximum(1, ex.floordiv(splits * teams, used)) if is_adapted else ex.Int(teams)
    rounds = ex.floordiv(ex.add(blocks, most, -1), most)
    busy = ex.floordiv(ex.add(blocks, rounds, -1), rounds)
    if every > 1:
        busy = ex.mul(every, ceil_div(busy, every))
    # Parts of columns are brought together by all threads, as their elements are.
    lanes = max(1 << (splits - 1).bit_length(), _least_lanes(kernel, schedule)) if x > 1 else WARP
    body = cooperative(
        kernel,
        block,
        rows=index_text(blocks),
        columns=index_text(rows) if x > 1 else "",
        row=row_lines,
        part=header.lines,
        splits=ex.symbol("splits") if is_adapted else used,
        most=splits,
        teams="busy" if is_adapted else index_text(busy),
        polls=schedule.get("polls", POLLS),
        is_walked=is_walked,
        ahead=ahead,
        tiles=tiles if pieces > 1 else (),
        edges=edges,
        is_kept=is_kept,
    )
    array_length = ex.mul(rows, used)
    facts = () if header.wide else (AtMost(array_length, INDEX_LIMIT),)
    facts = (*facts, *runs_facts(kernel, schedule))
    if is_walked:
        facts = (*facts, *row.walked)
    else:
        problem = "the row is longer than a team's blocks"
        facts = (*facts, *within(ceil_div(row.span, splits), r * pieces, problem))
    return Layout(
        [f"program = tl.program_id(0){header.widened}", *body.lines],
        ex.mul(busy, used),
        (*blocks_of(schedule, ("X", REDUCED)), ("LANES", lanes), *row.constants),
        facts,
        body.arrays,
        array_length,
        body.launches,
        sizes=(("splits", used), ("busy", busy)) if is_adapted else (),
    )


def _check_teams(kernel: ir.Kernel, schedule: Schedule) -> None:
    """Raises `InvalidSchedule` for teams that cannot be, or cannot hold what they are to hold."""
    x, pieces, ahead = schedule["x"], schedule.get("pieces", 1), schedule.get("ahead", 1)
    is_walked, has_runs = schedule.get("walks", 0) == 1, schedule.get("runs", 0) > 0
    if not 2 <= schedule["splits"] <= TEAM_LIMIT or schedule["teams"] < 1:
        raise InvalidSchedule(f"teams that cannot be: {schedule}")
    if schedule.get("r1", 0) or schedule.get(block_pointers.OPTION, 0):
        raise InvalidSchedule(f"tiles of rows that teams hold: {schedule}")
    if stages_of(kernel) != 2 or walks_of(kernel, SHARED) != 2:
        raise InvalidSchedule("a team meets once, and stores what it held")
    if x > 1 and (ahead > 1 or schedule.get("words", 0) or schedule.get("group", 1) > 1):
        raise InvalidSchedule(f"what a block of columns cannot be: {schedule}")
    has_order = any(isinstance(node, ir.Scan | ir.Arg) for node in kernel.body)
    if pieces > 1 and (x > 1 or ahead > 1 or is_walked or has_runs or has_order):
        raise InvalidSchedule(f"tiles of what teams have no tiles of: {schedule}")
    if ahead > 1 and (is_walked or ahead > 2):
        raise InvalidSchedule(f"the next row of what no block of registers has: {schedule}")
    if schedule.get("weights", 0) == 1 and (pieces == 1 or has_runs):
        raise InvalidSchedule(f"weights of no tiles: {schedule}")


def in_chains(kernel: ir.Kernel, schedule: Schedule) -> Layout:
    """Chunks of scanned columns, or of rows, in registers, each after those before it."""
    r, back, tiles = schedule["r"], schedule["back"], schedule.get("tiles", 0)
    run, together = schedule.get("unroll", 1), schedule.get("together", 1)
    is_possible = 1 <= back <= BACK_LIMIT and 1 <= together <= TOGETHER_LIMIT
    if not (is_possible and 1 <= run <= RUN_LIMIT and 0 <= tiles <= TILES_LIMIT):
        raise InvalidSchedule(f"chunks that cannot be: {schedule}")
    if schedule.get("r1", 0) or schedule.get("group", 1) > 1 or (tiles and run > 1):
        raise InvalidSchedule(f"tiles or groups of what is chained: {schedule}")
    if schedule.get("words", 0) and not tiles:
        raise InvalidSchedule(f"words of what is chained in runs: {schedule}")
    if not is_chained(kernel):
        raise InvalidSchedule("chunks are chained by nothing but scans of their own")
    header = Header(schedule["index"] == 64, ("X", REDUCED))
    blocks = flat_rows(kernel, schedule["x"], header)
    row = row_for(kernel, schedule, is_walked=True, wide=header.wide)
    block = reduced(row, kernel, schedule, header, span=("rstart", "rlength"))
    rows, elements = ex.product(kernel.pointwise), r * (tiles or run)
    chunks = ceil_div(row.span, elements)
    if row.is_words:
        # Who has no word may have edges.
        words, chunks = words_of(kernel, schedule), ex.maximum(1, chunks)
        lanes = edge_lanes(kernel, schedule, words)
        header.lines += edge_places(kernel, block, words, lanes=lanes, widened=header.widened)
        block = replace(block, edges=edges_of(block, kernel, words, lanes=lanes))
    runs = [] if tiles else [f"rbase = rbase * {run}"]
    links = Links(
        rows=index_text(rows),
        chunks=index_text(chunks),
        blocks=index_text(blocks),
        place=[*header.lines, *runs, f"rstart = chunk * {elements}"],
        back=back,
        lanes=max(WARP * schedule["warps"], schedule["x"]),
        together=together,
    )
    if tiles:
        body = chained_rows(kernel, block, links, tiles=tiles)
    else:
        body = chained(kernel, block, links, run=run, runs=r)
    several = ex.floordiv(chunks, together) if together > 1 else ex.ZERO
    array_length = ex.add(ex.mul(rows, ex.add(chunks, several)), 1)
    facts = () if header.wide else (AtMost(array_length, INDEX_LIMIT),)
    return Layout(
        [f"program = tl.program_id(0){header.widened}", *body.lines],
        ex.mul(blocks, chunks),
        (*blocks_of(schedule, ("X", REDUCED)), *row.constants),
        (*facts, *row.walked),
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


def _share(kernel: ir.Kernel, schedule: Schedule) -> int:
    """The rows of a block of columns that a thread has if it reads vectors; else it has more.

    Triton gives a thread as many columns as are a vector of the narrowest of a block's elements:
    of wider ones that is several vectors. Others than its own rows would be brought together by
    all threads, and not by it alone.
    """
    elements = ir.per_element(kernel)
    sizes = [
        DTYPES[kernel.params[node.param].dtype]
        for place, node in enumerate(kernel.body)
        if isinstance(node, ir.Access) and elements[place]
    ]
    lanes = 16 // min(sizes)
    each = schedule["x"] * schedule["r"] // (32 * schedule["warps"])
    return max(1, min(each // lanes, schedule["r"]))


def _least_lanes(kernel: ir.Kernel, schedule: Schedule) -> int:
    """What spreads parts over all threads, as elements are, if they meet them in the last stage.

    Else Triton may bring their results to the elements' threads through shared memory, broadcast.
    """
    if not has_element_stores(kernel):
        return 1
    return max(1, 32 * schedule["warps"] // schedule["x"])
