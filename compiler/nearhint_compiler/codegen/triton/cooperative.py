"""Rows that a team of programs holds in registers: read once, though no program can hold a row.

Each program of a team loads its chunk, leaves its totals in a workspace and counts itself; when all
of the team are counted it brings together the totals of all chunks, in one order, and stores its
chunk. A team goes from row to row, as many teams as a device holds; so few rows are under way, and
memory is read once and written once.

A program waits for its team a while and no longer. If the others do not come, because other
kernels have the device, it leaves a mark, forgets its chunk and goes on; whoever of the team is
counted last sees the marks and does what others gave up, reading their chunks again. Count and
marks are one word, so that each chunk is either given up before the last is counted, or done by who
has it. So nothing has to be resident together and no order of dispatch is relied on, and the same
input gives the same bits however long anyone waited.

A chunk may be several tiles (`tiled_chunks`), and in whole words (`team_edges`). What all rows
read alike beside them may stay in registers (`kept`).

Where registers would hold too little beside what else is read, parts are walked instead, and again
after the meeting: teams are so few that a cache has their rows until then.

The words are zeroed by a launch before, since a workspace begins with any bytes.

A row may be a block of columns, too, whose totals lie next to each other.

The barrier is that of cooperative reductions (PyTorch, pull request #137756), which rely on all
programs being resident.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nearhint_compiler.analysis.online import SHARED
from nearhint_compiler.codegen.triton.ahead import Ahead
from nearhint_compiler.codegen.triton.block import Block
from nearhint_compiler.codegen.triton.kept import kept_of
from nearhint_compiler.codegen.triton.stages import Staged, gathered, left, placed
from nearhint_compiler.codegen.triton.team_edges import LANES, TeamEdges
from nearhint_compiler.codegen.triton.text import index_text
from nearhint_compiler.codegen.triton.tiled_chunks import held_in_tiles
from nearhint_compiler.codegen.triton.totals import Total
from nearhint_compiler.codegen.triton.walks import WalkPlan
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

COUNTED = 256
"""The marks of a word begin behind its count."""
ZEROED = 128
"""Words that a program zeroes at once."""


def cooperative(
    kernel: ir.Kernel,
    block: Block,
    *,
    rows: str,
    columns: str,
    row: Sequence[str],
    part: Sequence[str],
    splits: ex.Expr,
    most: int,
    teams: str,
    polls: int,
    is_walked: bool,
    ahead: Ahead | None,
    tiles: Sequence[Block] = (),
    edges: TeamEdges | None = None,
    is_kept: bool = False,
) -> Staged:
    """The body of a kernel whose rows are held by teams of `splits` programs, at `most` so many.

    `rows` and `teams` are the texts of their numbers; `row` are the lines that make the loop
    variables of row `pid`, `part` those that say what `chunk` of it is. Where a row is a block of
    columns, `columns` is the text of the number of all of them; else it is empty. After `polls`
    looks at its word a program gives up. A chunk `is_walked`, or a block in registers, or several,
    its `tiles`; a block of the next row may be loaded `ahead`, before the team meets. Chunks in
    words have the row's `edges` beside them. What rows share `is_kept` in registers by its tiles.
    """
    # A program has the same part of each row, and so reads what all of them read alike again soon.
    block = replace(block, keeps_shared=True, has_own_pivots=bool(tiles))
    plan = WalkPlan(kernel, block, SHARED)
    many = index_text(splits)
    arrays = ["i64"]
    places = placed(plan, arrays)
    totals = plan.totals(0)

    def at(chunk: str) -> str:
        return f"({chunk} * {columns} + x)" if columns else f"(x * {many} + {chunk})"

    def beside(chunk: str) -> str:
        return at(chunk) if columns else f"(pid * {many} + {chunk})"

    own = ahead.own(plan.needed(totals)) if ahead else []
    before: list[str] = []
    if is_walked:
        parts = _walks(plan, totals)
    elif tiles:
        plans = [WalkPlan(kernel, each) for each in tiles]
        anew = [f"chunk = _anew_{block.place}(own)", *part]
        kept = kept_of(plans, plan.needed(totals)) if is_kept else None
        parts = _Parts(*held_in_tiles(plan, totals, plans, anew=anew, kept=kept))
        if kept:
            before = [f"pid = program // {many}", "chunk = own", *row, *part, *kept.loads()]
    else:
        parts = _blocks(plan, totals, block, ahead.taken(own, None) if ahead else {})
        if columns:
            length = index_text(ex.product(kernel.reduction))
            anew = [f"chunk = own + tl.minimum({length} - 1, 0)", *part]
            parts = parts.once_met([*anew, f"roffset = {block.start}", *block.element_header])
    if ahead:
        before += ["chunk = own", *part, *_first_row(ahead, own, block, many)]
        # What all rows share comes from a cache: registers are for the next row meanwhile.
        next_row = ahead.loads(own, row="(pid + teams)", there="pid + teams < rows")
        parts = replace(parts.once_met(parts.first), first=next_row)
    brought = gathered(
        totals,
        block,
        places,
        beside,
        splits=many,
        lanes=LANES,
        is_single=not columns,
        more=edges.met if edges else None,
    )
    row_stores = plan.row_stores()
    stored = ["if chunk == 0:", *_indented(row_stores)] if row_stores else []
    loaded: list[str] = []
    if edges:
        known = plan.needed(totals)
        loaded = edges.loads(known)
        brought = [*edges.rest(known), *brought]
        stored += edges.stored(known)
    is_brought_again = any(total.precedes for total in totals)
    again = [
        "chunk = own * 0 + other",
        *part,
        *([*brought, *plan.row_lines(1)] if is_brought_again else []),
        *parts.again,
        *stored,
    ]
    each = [
        "chunk = own",
        *row,
        *part,
        *plan.row_lines(0),
        *loaded,
        *parts.held,
        *left(totals, block, places, at),
        *_counted(many, parts.first, polls=polls),
        f"if seen % {COUNTED} == {many}:",
        *_indented([*brought, *plan.row_lines(1), *parts.then, *stored]),
        *_indented(_given_up(splits, again, most=most)),
    ]
    lines = [
        f"rows = {rows}",
        f"teams = {teams}",
        f"own = program % {many}",
        "if stage == 0:",
        *_indented(_zeroed(splits)),
        "else:",
        *_indented(before),
        f"    for pid in range(program // {many}, rows, teams):",
        *_indented(each, 2),
    ]
    return Staged(tuple(lines), tuple(arrays), 2)


def _zeroed(splits: ex.Expr) -> list[str]:
    """The words of all rows, by all programs together."""
    stride = index_text(ex.mul(ZEROED, splits))
    return [
        f"for start in range(program * {ZEROED}, rows, teams * {stride}):",
        f"    word = start + tl.arange(0, {ZEROED})",
        f"    tl.store(w0 + word, tl.zeros([{ZEROED}], tl.int64), word < rows)",
    ]


def _counted(many: str, first: Sequence[str], *, polls: int) -> list[str]:
    """The barrier: a program counts itself, loads what comes `first`, and waits for the others, or
    leaves its mark. In `seen` is then whether all are counted, in `old` what was before."""
    return [
        # What all threads have left is there before one of them says so.
        "tl.debug_barrier()",
        'old = tl.atomic_add(w0 + pid, 1, sem="acq_rel")',
        *first,
        "seen = old + 1",
        "polls = 0",
        f"while (seen % {COUNTED} < {many}) & (polls < {polls}):",
        '    seen = tl.atomic_add(w0 + pid, 0, sem="acquire")',
        "    polls += 1",
        f"if seen % {COUNTED} < {many}:",
        f"    mark = tl.full([], {COUNTED}, tl.int64) << chunk",
        '    seen = tl.atomic_or(w0 + pid, mark, sem="acq_rel")',
    ]


def _given_up(splits: ex.Expr, again: Sequence[str], *, most: int) -> list[str]:
    """What the last to be counted does: `again` what each of the others has given up."""
    others = index_text(ex.add(splits, -1))
    return [
        f"if (old % {COUNTED} == {others}) & (old >= {COUNTED}):",
        # As many as there may be: a loop of so many steps as there are would spill registers.
        f"    for other in range(0, {most}):",
        f"        if (old // {COUNTED} >> other) % 2 == 1:",
        *_indented(again, 3),
    ]


def _first_row(ahead: Ahead, own: Sequence[int], block: Block, many: str) -> list[str]:
    """The loads of a program's first row, before any."""
    begin = f"(program // {many})"
    loads = ahead.loads(own, row=begin, there=f"{begin} < rows")
    return [f"roffset = {block.start}", *ahead.header, *loads]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What becomes of a chunk: the lines that have it `held` with its totals, the loads that come
    `first` beside it, what comes `then`, after the meeting, and both of these `again`, of what
    another program gave up."""

    held: Sequence[str]
    first: Sequence[str]
    then: Sequence[str]
    again: Sequence[str]

    def once_met(self, lines: Sequence[str]) -> _Parts:
        """The same with these lines right after the meeting."""
        return replace(self, then=[*lines, *self.then])


def _blocks(
    plan: WalkPlan, totals: Sequence[Total], block: Block, taken: Mapping[int, Sequence[str]]
) -> _Parts:
    """A chunk in registers."""
    held, known = plan.held(totals, taken)
    first, then = plan.stored(known)
    loads, rest = plan.stored(())
    return _Parts(held, first, then, ["roffset = rstart", *block.element_header, *loads, *rest])


def _walks(plan: WalkPlan, totals: Sequence[Total]) -> _Parts:
    """A chunk that is walked, and walked again where a cache has it."""
    walked = plan.walk(0, totals)
    closed = [line for total in totals for line in plan.closed(total)]
    then = plan.walk(1, [])
    return _Parts([*walked, *closed], [], then, then)


def _indented(lines: Sequence[str], depth: int = 1) -> list[str]:
    return [f"{'    ' * depth}{line}" for line in lines]
