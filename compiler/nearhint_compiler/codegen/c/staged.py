"""Tiles of `cpu.tiles` whose rows crowd the sets of a cache: what is turned is copied first.

Lines at a multiple of a page from each other share a set and a bank of each cache, so that they are
read and written one after the other, and few of them stay. Neighbouring lines do not. So inputs
that are turned are read in runs of several lines a row into a buffer, whose rows are an odd number
of lines apart, and what is there is turned as it is elsewhere (`squares.py`): a few rows at a time,
each written for as many lines. A tile is as long as a run both ways. Runs of the next one are asked
for meanwhile, where they are likely to come from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.codegen.c.body import Body
from nearhint_compiler.codegen.c.crowding import near_rows, pitches_of
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.primitive import ELEMENTS, LINE_BYTES
from nearhint_compiler.codegen.c.squares import write_steps
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.turn import prefetch
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES

RUN_LINES = 8
"""Lines of a row that are moved one after the other: they lie in different banks."""
_CROWDED_ELEMENTS = 1024
"""Rows of what is turned are crowded at a multiple of this distance: of as many rows as a line has
elements, then more share a set of a first cache of 64 than it has ways."""
_WIDEST = 4
"""Bytes of an element: of wider ones a line has no more elements than a set has ways."""

_STAGES_BYTES = 1 << 19
"""Of all buffers, which lie on the stack: half of a second cache."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Tiles of `side` elements both ways where `is_loose`, an expression, is 0; it is 1 else.

    Each element that is turned has `size` bytes.
    """

    side: int
    size: int
    is_loose: Expr

    @property
    def pitch(self) -> int:
        """Elements from row to row of a buffer."""
        return _pitch(self.side, self.size)

    def or_else(self, side: int) -> Expr:
        """The side of a tile that is `side` where tiles are not staged."""
        return ex.sub(self.side, ex.mul(self.side - side, self.is_loose))


def stage_of(body: Body, across: str, turned: Sequence[int], *, when: Expr) -> Stage | None:
    """How crowded tiles are staged where `when`, 0 or 1, is 1; None where they never are."""
    sizes = {DTYPES[body.dtypes[position]] for position in turned}
    pitches = pitches_of(body, across, turned, stores=False)
    is_known = all(set(body.kernel.symbols).issuperset(ex.symbols_of(each)) for each in pitches)
    if len(sizes) > 1 or max(sizes) > _WIDEST or not is_known:
        return None
    (size,) = sizes
    side = RUN_LINES * LINE_BYTES // size
    if len(turned) * side * _pitch(side, size) * size > _STAGES_BYTES:
        return None
    multiple = _CROWDED_ELEMENTS * size
    is_loose = ex.product(ex.minimum(1, ex.mod(pitch, multiple)) for pitch in pitches)
    never = ex.sub(1, ex.mul(when, ex.sub(1, is_loose)))
    return Stage(side, size, never)


def declare_stages(body: Body, turned: Sequence[int], stage: Stage) -> list[str]:
    """The buffers, in C."""
    return [
        f"{ELEMENTS[body.dtypes[position]]} stage{position}"
        f"[{stage.side * stage.pitch}] __attribute__((aligned({LINE_BYTES})));"
        for position in turned
    ]


def write_staged(
    writer: Writer,
    body: Body,
    *,
    across: str,
    turned: Sequence[int],
    done: Sequence[int],
    stage: Stage,
) -> None:
    """The tile between the C variables `begin_{v}` and `end_{v}`; `done` is written already.

    The next one begins at `next_{v}`; `is_large` is whether to ask for it.
    """
    # Strips that do not fit are moved back, to before where their tile begins.
    for name, least in ((across, near_rows(body, turned)), (body.lane, LINE_BYTES)):
        begin, end = ex.symbol(f"begin_{name}"), ex.symbol(f"end_{name}")
        base = ex.maximum(0, ex.minimum(begin, ex.sub(end, least)))
        writer.line(f"const int64_t base_{name} = {to_c(base)};")
    params, nodes = list(body.kernel.params), list(body.kernel.body)
    for position in turned:
        node = nodes[position]
        assert isinstance(node, ir.Load)
        _write_copy(writer, body, position, node, across, stage)
        param = params[node.param]
        writer.line(f"const {ELEMENTS[param.dtype]} *const in{len(params)} = stage{position};")
        row = ex.mul(stage.pitch, _from_base(body.lane))
        nodes[position] = replace(node, param=len(params), index=ex.add(row, _from_base(across)))
        params.append(param)
    kernel = replace(body.kernel, params=tuple(params), body=tuple(nodes))
    write_steps(
        writer,
        Body(kernel, body.prelude, body.lane),
        across=across,
        turned=turned,
        done=done,
        along=stage.side,
        meanwhile=partial(_ask_for_next, body=body, across=across, turned=turned, stage=stage),
    )


def _from_base(variable: str) -> Expr:
    return ex.sub(ex.symbol(variable), ex.symbol(f"base_{variable}"))


def _pitch(side: int, size: int) -> int:
    """Elements from row to row: one line more than a run, an odd number of them."""
    return side + LINE_BYTES // size


def _write_copy(
    writer: Writer, body: Body, position: int, node: ir.Load, across: str, stage: Stage
) -> None:
    """Copies the rows of a tile into its buffer, line after line of each."""
    lane, element = body.lane, ELEMENTS[body.kernel.params[node.param].dtype]
    line = LINE_BYTES // stage.size
    step = access(node.index, lane).stride
    assert step is not None
    first = ex.substitute(node.index, {name: ex.symbol(f"base_{name}") for name in (lane, across)})
    with writer.block():
        writer.line(f"const {element} *from = in{node.param} + {to_c(first)};")
        writer.line(f"{element} *to = stage{position};")
        writer.line(f"const int64_t length = end_{across} - base_{across};")
        with writer.block(f"for (int64_t i = base_{lane}; i < end_{lane}; i++)"):
            writer.line("int64_t k = 0;")
            writer.line(f"for (; k + {line} <= length; k += {line})")
            writer.line(f"    memcpy(to + k, from + k, {LINE_BYTES});")
            writer.line("memcpy(to + k, from + k, (size_t)(length - k) * sizeof *to);")
            writer.line(f"from += {to_c(step)};")
            writer.line(f"to += {stage.pitch};")


def _ask_for_next(
    writer: Writer, *, body: Body, across: str, turned: Sequence[int], stage: Stage
) -> None:
    """Asks for as many runs of the next tile as rows are written, from `at` to `bottom`."""
    lane = body.lane
    row = ex.add(ex.symbol(f"next_{lane}"), ex.sub(ex.symbol("i"), ex.symbol(f"begin_{across}")))
    there = {across: ex.symbol(f"next_{across}"), lane: row}
    with writer.block("if (is_large)"), writer.block("for (int64_t i = at; i < bottom; i++)"):
        for position in turned:
            node = body.kernel.body[position]
            assert isinstance(node, ir.Load)
            line = LINE_BYTES // stage.size
            element = ELEMENTS[body.kernel.params[node.param].dtype]
            first = to_c(ex.substitute(node.index, there))
            writer.line(f"const {element} *next{position} = in{node.param} + {first};")
            writer.line(f"#pragma GCC unroll {RUN_LINES}")
            writer.line(f"for (int k = {line - 1}; k < {stage.side}; k += {line})")
            writer.line(f"    {prefetch(f'next{position} + k')}")
