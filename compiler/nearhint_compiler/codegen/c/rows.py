"""Family `cpu.rows`: lanes along a reduction loop; one thread does all walks over a row.

A row of at most `short` vectors is held in registers, in straight-line code for each number of
vectors, with no loop and nothing computed twice. Rows of at most `beside` elements are walked side
by side (`beside.py`), in straight-line code where they have at most `short` vectors. A longer row
is walked once for each level of reduces; what is costly and needed again is kept in the output that
will have its place (`homes.py`). Where there is none, it goes to a stash on the stack if the row
fits its `stash` elements, and is computed again otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

from nearhint_compiler.analysis.passes import plan_passes
from nearhint_compiler.codegen.c.beside import write_beside
from nearhint_compiler.codegen.c.body import UNIFORM, Body, Part, write_declarations
from nearhint_compiler.codegen.c.entry import RUN, tasks
from nearhint_compiler.codegen.c.far import NEAR, Far, far_rows
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.interleaved import WIDTH, write_interleaved
from nearhint_compiler.codegen.c.lanes import stash_element
from nearhint_compiler.codegen.c.scan import declare_carries
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.totals import (
    accumulate,
    across,
    declare_run,
    declare_totals,
    end_run,
    has_places,
    write_here,
)
from nearhint_compiler.codegen.c.walks import walk_rows, whole
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

_BESIDE_COPIES = 2
"""Vectors unrolled in rows side by side, of which each has a chain of its own already."""


@dataclass(frozen=True, slots=True)
class RowOptions:
    """`copies` vectors unrolled, `short` vectors in registers, `stash` elements a stashed value.

    Rows of at most `beside` elements are walked as many side by side as there are lanes. Rows that
    are `interleaved` are walked together, as the row of memory that they are (`interleaved.py`).
    Where `tasks_are_rows`, there are functions for far ones (`far.py`).
    """

    copies: int
    short: int
    stash: int
    beside: int = 0
    interleaved: bool = False
    tasks_are_rows: bool = False


EachRow: TypeAlias = Callable[[Writer, int | None], AbstractContextManager[None]]
"""Opens the loops over the rows of the tasks of `run`, for rows up to a length, None for any."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A function for rows of at most `limit` elements, None for any length.

    `condition` is a C expression that `length` and the tasks have to meet, "" for none.
    """

    limit: int | None
    name: str
    write: Callable[[Writer], None]
    condition: str = ""


def write_rows(writer: Writer, body: Body, options: RowOptions) -> Expr:
    """Writes `run`; returns the number of tasks: one a row."""
    write_row_cases(writer, body, options, lambda w, _: tasks(w, row_counters(body)))
    return ex.product(body.kernel.pointwise)


def write_row_cases(
    writer: Writer, body: Body, options: RowOptions, each: EachRow, *, limits: Sequence[int] = ()
) -> None:
    """Writes `run`, with a function for each length that wants one of its own.

    `limits` are further lengths that `each` makes a difference at.
    """
    cases = _reachable(_cases(body, options, each, limits), ex.product(body.kernel.reduction))
    for case in cases:
        writer.line()
        writer.line(f"static void {case.name}{RUN}")
        with writer.block():
            write_declarations(writer, body)
            case.write(writer)
    _write_dispatch(writer, body, cases)


def _cases(body: Body, options: RowOptions, each: EachRow, limits: Sequence[int]) -> list[_Case]:
    if options.interleaved:
        return [_Case(None, "rows", lambda w: _interleaved_rows(w, body, options, each))]
    cases: list[_Case] = []
    if len(body.kernel.reduction) == 1:
        cases += [
            _straight_case(body, copies)
            if copies * body.lanes <= options.beside
            else _short_case(body, copies, each)
            for copies in range(1, options.short + 1)
        ]
    if options.beside > options.short * body.lanes:
        cases += _beside_cases(body, options)
    has_home = bool(body.homes) and options.stash > 0
    has_stash = bool(plan_passes(body.kernel, stash=True).stashed) and not has_home
    stash = options.stash if has_stash else 0
    for limit in sorted({*limits, *((stash,) if stash else ())}):
        name = "rows_with_stash" if limit == stash else f"rows_up_to_{limit}"
        stashing = has_home or limit <= stash
        cases += _long_cases(body, options, each, limit, name, stash=stashing)
    if has_stash:
        # Rows that no stash holds are computed again, which takes longer than memory does.
        return [*cases, _long_case(body, options, each, None, "rows", stash=False, far=None)]
    return [*cases, *_long_cases(body, options, each, None, "rows", stash=has_home)]


def _short_case(body: Body, copies: int, each: EachRow) -> _Case:
    limit = copies * body.lanes
    return _Case(limit, f"rows_of_{copies}", lambda w: _short_row(w, body, copies, each))


def _interleaved_rows(writer: Writer, body: Body, options: RowOptions, each: EachRow) -> None:
    with writer.block(f"if (n{body.lane} > {WIDTH})"):
        _long_row(writer, body, options, each, None, stash=False, far=None)
    with writer.block("else"):
        write_interleaved(writer, body, copies=options.copies)


def _straight_case(body: Body, copies: int) -> _Case:
    length = copies * body.lanes

    def write(writer: Writer) -> None:
        write_beside(writer, body, copies=copies, length=length, is_straight=True)

    return _Case(length, f"rows_of_{copies}", write)


def _beside_cases(body: Body, options: RowOptions) -> list[_Case]:
    """Functions for far rows, if something is different there, and for others."""
    near = _beside_case(body, options, None)
    far = far_rows(body, plan_passes(body.kernel, stash=True), together=body.lanes)
    return [near] if far is None else [_beside_case(body, options, far), near]


def _beside_case(body: Body, options: RowOptions, far: Far | None) -> _Case:
    copies, length = min(options.copies, _BESIDE_COPIES), options.beside
    name = f"rows_beside_up_to_{length}"

    def write(writer: Writer) -> None:
        write_beside(writer, body, copies=copies, length=length, is_straight=False, far=far)

    return _Case(length, f"far_{name}" if far else name, write, far.condition if far else "")


def _long_cases(
    body: Body, options: RowOptions, each: EachRow, limit: int | None, name: str, *, stash: bool
) -> list[_Case]:
    """Functions for far rows, if something is different there, and for others."""
    far = far_rows(body, plan_passes(body.kernel, stash=stash)) if options.tasks_are_rows else None
    near = _long_case(body, options, each, limit, name, stash=stash, far=None)
    if far is None:
        return [near]
    return [_long_case(body, options, each, limit, f"far_{name}", stash=stash, far=far), near]


def _long_case(
    body: Body,
    options: RowOptions,
    each: EachRow,
    limit: int | None,
    name: str,
    *,
    stash: bool,
    far: Far | None,
) -> _Case:
    def write(writer: Writer) -> None:
        _long_row(writer, body, options, each, limit, stash=stash, far=far)

    return _Case(limit, name, write, far.condition if far else "")


def _reachable(cases: Sequence[_Case], length: Expr) -> list[_Case]:
    """The cases for a length that is known; all of them for one that is not."""
    if not isinstance(length, ex.Int):
        return list(cases)
    fitting = [case for case in cases if case.limit is None or length.value <= case.limit]
    last = next(place for place, case in enumerate(fitting) if not case.condition)
    return fitting[: last + 1]


def _write_dispatch(writer: Writer, body: Body, cases: Sequence[_Case]) -> None:
    kernel = body.kernel
    writer.line()
    writer.line(f"static void run{RUN}")
    with writer.block():
        *limited, last = cases
        if limited:
            for place, name in enumerate(kernel.symbols):
                if name in ex.symbols_of(*kernel.reduction):
                    writer.line(f"const int64_t {name} = dims[{place}];")
            writer.line(f"const int64_t length = {to_c(ex.product(kernel.reduction))};")
        for case in limited:
            conditions = [] if case.limit is None else [f"length <= {case.limit}"]
            conditions += [case.condition] if case.condition else []
            writer.line(f"if ({' && '.join(conditions)}) {{")
            writer.line(f"    {case.name}(parameters, dims, from, to);")
            writer.line("    return;")
            writer.line("}")
        writer.line(f"{last.name}(parameters, dims, from, to);")


def row_counters(body: Body) -> list[tuple[str, str]]:
    """The task counters of rows: every pointwise loop."""
    return [(f"p{number}", f"np{number}") for number in range(len(body.kernel.pointwise))]


def _short_row(writer: Writer, body: Body, copies: int, each: EachRow) -> None:
    passes = plan_passes(body.kernel, stash=False)
    invariants = body.invariants()
    part = Part(copies, ("",) * (copies - 1) + ("count",))
    writer.line(f"const int64_t {body.lane} = 0;")
    writer.line(f"const int count = (int)n{body.lane} - {(copies - 1) * body.lanes};")
    body.write(writer, invariants, UNIFORM)
    done = set(invariants)
    with each(writer, copies * body.lanes):
        body.write(writer, set(passes.rows[0]) - done, UNIFORM)
        for walk in range(passes.count):
            fresh = sorted(set(passes.elements[walk]) - done)
            declare_carries(writer, body, fresh, part)
            body.write(writer, fresh, part)
            done |= set(passes.elements[walk])
            reduces = passes.reduces[walk]
            declare_totals(writer, body, reduces, copies)
            _accumulate_short(writer, body, reduces, part)
            across(writer, body, reduces, copies)
            body.write(writer, passes.rows[walk + 1], UNIFORM)


def _accumulate_short(writer: Writer, body: Body, reduces: Sequence[int], part: Part) -> None:
    if not has_places(body, reduces):
        accumulate(writer, body, reduces, part)
        return
    with writer.block():
        writer.line("const int64_t begin = 0;")
        declare_run(writer, body, reduces, part.copies)
        write_here(writer, body, reduces, body.lane)
        accumulate(writer, body, reduces, part, prefix="s")
        end_run(writer, body, reduces, part.copies)


def _long_row(
    writer: Writer,
    body: Body,
    options: RowOptions,
    each: EachRow,
    limit: int | None,
    *,
    stash: bool,
    far: Far | None,
) -> None:
    passes = plan_passes(body.kernel, stash=stash)
    if far is not None:
        far.declare(writer, body)
    invariants = body.invariants()
    for position in passes.stashed:
        if position in body.homes:
            continue
        element = stash_element(body, position)
        size = options.stash + options.copies * body.lanes
        writer.line(f"{element} stash{position}[{size}] __attribute__((aligned(64)));")
    body.write(writer, invariants, UNIFORM)
    with each(writer, limit):
        body.write(writer, set(passes.rows[0]) - set(invariants), UNIFORM)
        for walk in range(passes.count):
            reading = NEAR if far is None else far.walks[walk]
            span = whole(body)
            walk_rows(writer, body, passes, walk, copies=options.copies, span=span, far=reading)
            across(writer, body, passes.reduces[walk], options.copies)
            body.write(writer, passes.rows[walk + 1], UNIFORM)
