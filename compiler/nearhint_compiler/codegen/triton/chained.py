"""Scans of columns in chunks that are held in registers: read once, written once.

A program holds a chunk of some columns: `r` runs of neighbouring rows, each run in one thread, so
that what is scanned along a run needs no other thread. A run is scanned in segments, and what is
before one is added as it is stored: a chain of sums is as long as a segment, and loses no more. The
totals of the runs before a run are brought together once a chunk. What the columns come to before
the chunk is looked for behind it (`codegen.triton.links`). Where columns are so few that a chunk of
all of them is little, chunks are many, and several of them in a row look together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nearhint_compiler.analysis.online import SHARED
from nearhint_compiler.codegen.triton.block import Block
from nearhint_compiler.codegen.triton.body import Body
from nearhint_compiler.codegen.triton.links import Links, full, linked
from nearhint_compiler.codegen.triton.ops import combine_name
from nearhint_compiler.codegen.triton.stages import Staged
from nearhint_compiler.codegen.triton.text import index_text, neutral_text
from nearhint_compiler.codegen.triton.walks import WalkPlan
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

SEGMENT = 8
"""Rows of a run that are scanned one after the other. Of 1239 rows in f32 a cumsum in runs of 24
without was wrong by 3.1 ulp of the sum of magnitudes, Inductor's by 1.3
(2026-11-h200-sweep-others-drawn-16.json)."""


def chained(kernel: ir.Kernel, block: Block, links: Links, *, run: int, runs: int) -> Staged:
    """The body of a kernel of scans, whose `block` has one element of each of `runs` runs.

    A program has `run` rows of each run.
    """
    plan = WalkPlan(kernel, block, SHARED)
    body = plan.body
    scans = {p: node for p, node in enumerate(kernel.body) if isinstance(node, ir.Scan)}
    stores = body.element_stores
    length = index_text(ex.product(kernel.reduction))
    first = [p for p in body.needed([node.operand for node in scans.values()]) if p not in scans]
    rest = [p for p in body.needed(stores) if p not in {*first, *scans}]
    steps = [_Step(kernel, block, number) for number in range(run)]
    held = [line for step in steps for line in step.held(first, scans)]
    found = [line for p, node in scans.items() for line in _before(block, p, node, run, runs)]
    stored = [line for step in steps for line in step.stored(rest, scans, stores)]
    return linked(
        block,
        scans,
        links,
        held=[*plan.row_lines(0), *held, *found],
        stored=[
            *(f"start{p} = {_start(p, node, runs)}" for p, node in scans.items()),
            # Nothing more, as lengths are positive: but places need no registers until they are
            # stored.
            f"rstart = rstart + tl.minimum({length} - 1, 0)",
            *stored,
        ],
        row_stores=plan.row_stores(),
    )


class _Step:
    """Row number `number` of each run."""

    def __init__(self, kernel: ir.Kernel, block: Block, number: int) -> None:
        self._number = number
        self._header = [f"roffset = rstart + {number}", *block.element_header]
        self._body = Body(kernel, replace(block, prefix=f"s{number}_"))

    def held(self, first: Sequence[int], scans: Mapping[int, ir.Scan]) -> list[str]:
        """The lines that load what scans need, and scan along the run."""
        body, number = self._body, self._number
        lines = [*self._header]
        lines += [line for p in first for line in body.lines(p, policy="evict_first")]
        for p, node in scans.items():
            value = body.operand(node.operand, neutral_text(node.kind, node.dtype), node.dtype)
            if number % SEGMENT:
                value = f"{combine_name(node.kind, node.dtype)}(along{p}_{number - 1}, {value})"
            lines.append(f"along{p}_{number} = {value}")
        return lines

    def stored(
        self, rest: Sequence[int], scans: Mapping[int, ir.Scan], stores: Sequence[int]
    ) -> list[str]:
        """The lines that make the scans' values of what was scanned, and store what comes of it."""
        body = self._body
        lines = [*self._header]
        for p, node in scans.items():
            combine, number = combine_name(node.kind, node.dtype), self._number
            if number and number % SEGMENT == 0:
                lines.append(f"start{p} = {combine}(start{p}, along{p}_{number - 1})")
            lines.append(f"{body.name(p)} = {combine}(start{p}, along{p}_{number})")
        lines += [line for p in rest if p not in stores for line in body.lines(p)]
        return [*lines, *(line for p in stores for line in body.lines(p, policy="evict_first"))]


def _before(block: Block, p: int, node: ir.Scan, run: int, runs: int) -> list[str]:
    """The total of the chunk, and of the runs before each, of the totals of runs."""
    combine, axis = combine_name(node.kind, node.dtype), block.reduced_axis
    first, *others = (*range(SEGMENT, run, SEGMENT), run)
    last = f"along{p}_{first - 1}"
    for end in others:
        last = f"{combine}({last}, along{p}_{end - 1})"
    if runs == 1:
        return [f"total{p} = {last}"]
    neutral = full(block.element_shape, node)
    return [
        f"run{p} = {last}",
        f"total{p} = tl.reduce(run{p}, {axis}, {combine}, keep_dims=True)",
        f"before{p}, last{p} = tl.associative_scan(({neutral}, run{p}), {axis}, _before{combine})",
    ]


def _start(p: int, node: ir.Scan, runs: int) -> str:
    if runs == 1:
        return f"carry{p}"
    return f"{combine_name(node.kind, node.dtype)}(carry{p}, before{p})"
