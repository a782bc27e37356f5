"""Rows that several programs share, in stages: bodies, workspaces, and the order of programs.

Each program walks its chunk of a row and leaves its totals in a workspace; in the next stage every
program of the row brings together those of all its chunks. A stage is one more launch of the same
kernel, or a turn.

A scan in stages waits for the totals of its operand, as a reduce does; then each program starts
from those of the chunks before its own, combined in one tree over all chunks, in which its own and
later ones are neutral. Block by block, the prefixes in a block are combined with what came before.
So the order is fixed, and the same input gives the same bits for the same schedule.

In turns all stages are one launch, and a row's next stage comes `lag` rows after the one before:
soon enough to find the row in the L2 cache, which holds few of the rows of a large tensor. A
program draws a ticket when it starts, which says what it does: step by step, one row's first stage,
the second of the row `lag` before, and so on, `splits` chunks each. It waits until its row's chunks
have been through the stages before. All of those have lower tickets, and who has drawn a ticket
runs: so the one that waits with the lowest ticket waits for programs that run and do not wait.
Nothing has to be resident together and no order of dispatch is relied on; other kernels on the
device make it slower, not stuck. Tickets and counts are zeroed by a launch before, since a
workspace begins with any bytes.

Decoupled look-back waits alike, for what was started before (Merrill and Garland, NVR-2016-002).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nearhint_compiler.analysis.online import SHARED, depth_of
from nearhint_compiler.codegen.triton.block import Block
from nearhint_compiler.codegen.triton.totals import Total
from nearhint_compiler.codegen.triton.walks import WalkPlan
from nearhint_compiler.ir import nodes as ir

COUNTS = "w0"
"""The array of tickets and counts: one for each block of rows, and behind them the next ticket."""


def stages_of(kernel: ir.Kernel) -> int:
    """The stages of a kernel whose rows programs share."""
    return depth_of(kernel, SHARED) + 1


def turns(kernel: ir.Kernel, *, blocks: str, splits: int, lag: int, wide: bool) -> list[str]:
    """Lines that make `chunk`, `turn` and the block of rows `pid` of a ticket; `turn` -1 has none.

    `blocks` is the text of the number of blocks of rows.
    """
    count, widened = stages_of(kernel), ".to(tl.int64)" if wide else ""
    return [
        "if stage == 0:",
        f"    tl.store({COUNTS} + pid, 0, pid <= {blocks})",
        "else:",
        f'    pid = tl.atomic_add({COUNTS} + {blocks}, 1, sem="relaxed"){widened}',
        f"chunk = pid % {splits}",
        f"turn = pid // {splits} % {count}",
        f"pid = pid // {splits * count} - turn * {lag}",
        f"turn = tl.where((stage == 1) & (pid >= 0) & (pid < {blocks}), turn, -1)",
    ]


@dataclass(frozen=True, slots=True)
class Staged:
    """The lines of a kernel in stages, the dtypes of its workspace's arrays, and the launches."""

    lines: tuple[str, ...]
    arrays: tuple[str, ...]
    launches: int


def staged(
    kernel: ir.Kernel, block: Block, *, rows: str, splits: str, lanes: str, in_turns: bool
) -> Staged:
    """The body of a kernel whose rows several programs share.

    `rows` is the text of the number of rows, whose flat index is the variable `x`; `chunk` is this
    program's part of the row, one of `splits`; `lanes` is a power of two that holds as many. Array
    number n of the workspace is the argument `w{n}`, with `rows` elements for each part. `in_turns`
    is whether `turns` has said what this program does.
    """
    plan = WalkPlan(kernel, block, SHARED)
    arrays = ["i32"] if in_turns else list[str]()
    places = placed(plan, arrays)

    def at(part: str) -> str:
        return f"({part} * {rows} + x)"

    stages = plan.depth + 1
    lines: list[str] = []
    for stage in range(stages):
        inside: list[str] = [*plan.row_lines(0)]
        for level in range(stage):
            inside += gathered(plan.totals(level), block, places, at, splits=splits, lanes=lanes)
            inside += plan.row_lines(level + 1)
        if stage < plan.depth:
            inside += _left(plan, block, stage, places, at)
        else:
            if plan.last_walk == stage:
                inside += plan.walk(stage, [])
            row_stores = plan.row_stores()
            if row_stores and plan.last_walk == stage:
                inside += ["if chunk == 0:", *(f"    {line}" for line in row_stores)]
            elif row_stores:
                # Nothing is walked: the other programs of the row need not gather either.
                inside = ["if chunk == 0:", *(f"    {line}" for line in [*inside, *row_stores])]
        if in_turns:
            inside = _in_turn(inside, stage, stages=stages, splits=splits)
        name = "turn" if in_turns else "stage"
        lines += [f"if {name} == {stage}:", *(f"    {line}" for line in inside or ["pass"])]
    return Staged(tuple(lines), tuple(arrays), 2 if in_turns else stages)


def _in_turn(lines: list[str], stage: int, *, stages: int, splits: str) -> list[str]:
    """`lines` of a stage once the row's chunks have been through those before; then it counts."""
    waits = [
        f'while tl.atomic_add({COUNTS} + pid, 0, sem="acquire") < {stage} * {splits}:',
        "    pass",
    ]
    # The barrier: what all threads have left is there before one of them says so.
    counts = ["tl.debug_barrier()", f'tl.atomic_add({COUNTS} + pid, 1, sem="release")']
    return [*(waits if stage else []), *lines, *(counts if stage < stages - 1 else [])]


def _left(
    plan: WalkPlan, block: Block, level: int, places: Mapping[str, int], at: Callable[[str], str]
) -> list[str]:
    """A walk over the chunk, and its totals into the workspace."""
    totals = plan.totals(level)
    lines = plan.walk(level, totals)
    for total in totals:
        lines += plan.closed(total)
    return [*lines, *left(totals, block, places, at)]


def placed(plan: WalkPlan, arrays: list[str]) -> Mapping[str, int]:
    """The arrays of all parts by their names, behind those that there are; adds their dtypes."""
    places: dict[str, int] = {}
    for level in range(plan.depth):
        for total in plan.totals(level):
            for part in total.parts:
                places[part.name] = len(arrays)
                arrays.append(part.dtype)
    return places


def left(
    totals: Sequence[Total], block: Block, places: Mapping[str, int], at: Callable[[str], str]
) -> list[str]:
    """The totals of this program's chunk into the workspace, `at` the text of a chunk's place."""
    lines: list[str] = []
    mask = f", {block.row_mask}" if block.row_mask else ""
    for total in totals:
        for part in total.parts:
            value = f"tl.broadcast_to({part.name}, {block.row_shape})"
            lines.append(f"tl.store(w{places[part.name]} + {at('chunk')}, {value}{mask})")
    return lines


def gathered(
    totals: Sequence[Total],
    block: Block,
    places: Mapping[str, int],
    at: Callable[[str], str],
    *,
    splits: str,
    lanes: str,
) -> list[str]:
    """The totals of all chunks of this program's rows, or of those before, brought together."""
    lines = [f"part = tl.arange(0, {lanes})[None, :]"]
    for total in totals:
        wanted = "(part < chunk)" if total.precedes else f"(part < {splits})"
        mask = " & ".join(text for text in (block.row_mask, wanted) if text)
        for part in total.parts:
            where = f"w{places[part.name]} + {at('part')}"
            lines.append(f"{part.name} = tl.load({where}, {mask}, other={part.neutral})")
        lines += [*total.across(str(block.reduced_axis)), *total.results]
    return lines
