"""Family `cpu.rows`: lanes along a reduction loop; one thread does all walks over a row.

A row of at most `short` vectors is held in registers, in straight-line code for each number of
vectors, with no loop and nothing computed twice. A longer row is walked once for each level of
reduces; what is costly and needed again goes to a stash on the stack if the row fits its `stash`
elements, and is computed again otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nearhint_compiler.codegen.c_body import UNIFORM, Body, Part, parameter_declarations
from nearhint_compiler.codegen.c_entry import RUN, tasks
from nearhint_compiler.codegen.c_index import to_c
from nearhint_compiler.codegen.c_lanes import accumulate, across, declare_totals, lane_loop
from nearhint_compiler.codegen.c_passes import Passes, plan_passes
from nearhint_compiler.codegen.c_primitive import ELEMENTS
from nearhint_compiler.codegen.c_text import Writer
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr


@dataclass(frozen=True, slots=True)
class RowOptions:
    """`copies` vectors unrolled, `short` vectors in registers, `stash` elements a stashed value."""

    copies: int
    short: int
    stash: int


_RowWriter: TypeAlias = Callable[[Writer, Body, RowOptions, int], None]


def write_rows(writer: Writer, body: Body, options: RowOptions) -> Expr:
    """Writes `run`; returns the number of tasks: one a row."""
    kernel = body.kernel
    extent = kernel.reduction[0]
    span = options.short * body.lanes
    chains = len(kernel.reduction) == 1 and options.short > 0
    shortest = extent.value if isinstance(extent, ex.Int) else 1
    longest = extent.value if isinstance(extent, ex.Int) else None
    cases: list[tuple[str, str]] = []
    if chains and shortest <= span:
        for copies in range(1, options.short + 1):
            low, high = (copies - 1) * body.lanes + 1, copies * body.lanes
            if shortest <= high and (longest is None or longest >= low):
                name = f"rows_of_{copies}"
                _write_function(writer, body, name, _short_row, options, copies)
                cases.append((f"length <= {high}", name))
    if not chains or longest is None or longest > span:
        stashed = plan_passes(kernel, stash=True)
        if options.stash and stashed.stashed:
            _write_function(writer, body, "rows_with_stash", _long_row, options, 1)
            cases.append((f"length <= {options.stash}", "rows_with_stash"))
        if longest is None or not cases or longest > options.stash:
            _write_function(writer, body, "rows", _long_row, options, 0)
            cases.append(("", "rows"))
    _write_dispatch(writer, body, cases)
    return ex.product(kernel.pointwise)


def _write_dispatch(writer: Writer, body: Body, cases: Sequence[tuple[str, str]]) -> None:
    kernel = body.kernel
    writer.line()
    writer.line(f"static void run{RUN}")
    with writer.block():
        if len(cases) > 1:
            length = to_c(ex.product(kernel.reduction))
            for place, name in enumerate(kernel.symbols):
                if name in ex.symbols_of(*kernel.reduction):
                    writer.line(f"const int64_t {name} = dims[{place}];")
            writer.line(f"const int64_t length = {length};")
        for condition, name in cases[:-1]:
            writer.line(f"if ({condition}) {{")
            writer.line(f"    {name}(parameters, dims, from, to);")
            writer.line("    return;")
            writer.line("}")
        writer.line(f"{cases[-1][1]}(parameters, dims, from, to);")


def _write_function(
    writer: Writer, body: Body, name: str, row: _RowWriter, options: RowOptions, variant: int
) -> None:
    kernel = body.kernel
    writer.line()
    writer.line(f"static void {name}{RUN}")
    with writer.block():
        for line in parameter_declarations(kernel):
            writer.line(line)
        for prefix, extents in (("p", kernel.pointwise), ("r", kernel.reduction)):
            for number, extent in enumerate(extents):
                writer.line(f"const int64_t n{prefix}{number} = {to_c(extent)};")
        row(writer, body, options, variant)


def _row_tasks(body: Body) -> list[tuple[str, str]]:
    return [(f"p{number}", f"np{number}") for number in range(len(body.kernel.pointwise))]


def _rows_without(body: Body, positions: Sequence[int], done: set[int]) -> list[int]:
    return [position for position in positions if position not in done]


def _short_row(writer: Writer, body: Body, options: RowOptions, copies: int) -> None:
    passes = plan_passes(body.kernel, stash=False)
    invariants = body.invariants()
    done = set(invariants)
    part = Part(copies, ("",) * (copies - 1) + ("count",))
    writer.line(f"const int64_t {body.lane} = 0;")
    writer.line(f"const int count = (int)n{body.lane} - {(copies - 1) * body.lanes};")
    body.write(writer, invariants, UNIFORM)
    with tasks(writer, _row_tasks(body)):
        body.write(writer, _rows_without(body, passes.rows[0], done), UNIFORM)
        done |= set(passes.rows[0])
        for walk in range(passes.count):
            body.write(writer, _rows_without(body, passes.elements[walk], done), part)
            done |= set(passes.elements[walk])
            reduces = passes.reduces[walk]
            declare_totals(writer, body, reduces, copies, prefix="t")
            accumulate(writer, body, reduces, part, prefix="t")
            across(writer, body, reduces, copies, prefix="t")
            body.write(writer, passes.rows[walk + 1], UNIFORM)


def _long_row(writer: Writer, body: Body, options: RowOptions, stash: int) -> None:
    passes = plan_passes(body.kernel, stash=bool(stash))
    invariants = body.invariants()
    done = set(invariants)
    for position in passes.stashed:
        dtype = body.dtypes[position]
        element = "int32_t" if dtype == "bool" else ELEMENTS[dtype]
        padding = options.copies * body.lanes
        writer.line(
            f"{element} stash{position}[{options.stash + padding}] __attribute__((aligned(64)));"
        )
    body.write(writer, invariants, UNIFORM)
    with tasks(writer, _row_tasks(body)):
        body.write(writer, _rows_without(body, passes.rows[0], done), UNIFORM)
        for walk in range(passes.count):
            declare_totals(writer, body, passes.reduces[walk], options.copies, prefix="t")
            _walk(writer, body, passes, walk, options)
            across(writer, body, passes.reduces[walk], options.copies, prefix="t")
            body.write(writer, passes.rows[walk + 1], UNIFORM)


def _walk(writer: Writer, body: Body, passes: Passes, walk: int, options: RowOptions) -> None:
    names = [f"r{number}" for number in range(len(body.kernel.reduction))]
    order = [*(name for name in names if name != body.lane), body.lane]
    _loops(writer, body, passes, walk, options, order, list(passes.elements[walk]))


def _loops(
    writer: Writer,
    body: Body,
    passes: Passes,
    walk: int,
    options: RowOptions,
    order: Sequence[str],
    positions: Sequence[int],
) -> None:
    if len(order) > 1:
        name, *inner = order
        with writer.block(f"for (int64_t {name} = 0; {name} < n{name}; {name}++)"):
            now = [
                p
                for p in positions
                if not body.variables[p] & set(inner)
                and not isinstance(body.kernel.body[p], ir.Store)
            ]
            body.write(writer, now, UNIFORM)
            rest = [p for p in positions if p not in now]
            _loops(writer, body, passes, walk, options, inner, rest)
        return
    with writer.block():
        writer.line(f"int64_t {body.lane} = 0;")
        lane_loop(
            writer,
            body,
            positions,
            passes.reduces[walk],
            copies=options.copies,
            end=f"n{body.lane}",
            before=[(p, _stash_place(body, p)) for p in passes.taken[walk]],
            after=[(p, _stash_place(body, p)) for p in passes.kept[walk]],
        )


def _stash_place(body: Body, position: int) -> str:
    names = [f"r{number}" for number in range(len(body.kernel.reduction))]
    order = [*(name for name in names if name != body.lane), body.lane]
    place = order[0]
    for name in order[1:]:
        place = f"({place}) * n{name} + {name}"
    return f"stash{position} + {place}"
