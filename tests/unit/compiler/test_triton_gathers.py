"""What is read where data says: in every family the row that a value names, or the nearest one."""

from __future__ import annotations

import pytest
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.kernels import TARGET, kernel_of
from tests.unit.compiler.triton_numerics import Case, Results, pointwise, rows, split, tiled

from nearhint_compiler.codegen import generate
from nearhint_compiler.schedule import candidates
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_rules import expr as ex
from nearhint_rules.guard import Divisible

pytestmark = numerics.RUNS_LONG

ALIGNED, ANY = "index=32 aligned=1 divisible=0", "index=64 aligned=0 divisible=0"


def worded(kernel: str, *dims: tuple[int, ...]) -> list[Case]:
    """Rows in the words of what is written, in one piece and in walks."""
    texts = (
        f"cuda.persistent x=1 r=256 warps=1 {ALIGNED} words=1",
        f"cuda.looped x=1 r=128 warps=1 {ALIGNED} words=1",
    )
    return [Case(kernel, text, each) for text in texts for each in dims]


def shared(kernel: str, *dims: tuple[int, ...]) -> list[Case]:
    """Rows in pieces, in turns and of teams."""
    texts = (
        f"cuda.persistent x=2 r=64 warps=1 {ANY} pieces=3",
        f"cuda.persistent x=1 r=256 warps=1 {ALIGNED} turns=1 programs=2",
        f"cuda.cooperative x=1 r=64 splits=3 teams=2 warps=1 {ANY}",
    )
    return [Case(kernel, text, each) for text in texts for each in dims]


ROWS = ("embedded_layer_norm_f16", "looked_up_rms_norm_bf16")
CASES = [
    *rows(ROWS[0], (7, 50, 90, 13), r=128),
    *split(ROWS[0], (3, 50, 90, 9)),
    *worded(ROWS[0], (5, 161, 7, 8)),
    *shared(ROWS[0], (5, 161, 7, 8)),
    *rows(ROWS[1], (5, 41), r=128),
    *shared(ROWS[1], (5, 41)),
    *rows("paged_rows_f32", (5, 3, 37, 13, 4)),
    *split("paged_rows_f32", (2, 3, 37, 13, 4)),
    *pointwise("gathered_elements_f32", (9, 11, 53)),
    *tiled("gathered_elements_f32", (9, 21, 53)),
    *pointwise("rotated_at_places_bf16", (2, 3, 5, 8, 31)),
    *tiled("rotated_at_places_bf16", (2, 3, 5, 24, 31), cuts=4),
    Case(
        "rotated_at_places_bf16", f"cuda.pointwise x=64 warps=1 {ALIGNED} unit=4", (2, 3, 5, 9, 7)
    ),
    *rows("cross_entropy_bf16", (5, 41), r=128),
    *split("cross_entropy_bf16", (3, 300)),
    *worded("cross_entropy_bf16", (5, 161)),
    *shared("cross_entropy_bf16", (5, 161))[:2],
    *rows("logs_of_choices_f32", (5, 41), r=128),
    *split("logs_of_choices_f32", (3, 300)),
    *worded("logs_of_choices_f32", (5, 161)),
    *shared("logs_of_choices_f32", (5, 161))[:2],
    *rows("looked_up_columns_f32", (7, 33, 40)),
    *split("looked_up_columns_f32", (7, 33, 40)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rows_that_data_names_are_those_of_the_interpreter(case: Case, results: Results) -> None:
    numerics.assert_agrees(case, results)


@pytest.mark.parametrize(("name", "tables"), [(ROWS[0], 2), (ROWS[1], 1), ("paged_rows_f32", 1)])
def test_a_looked_up_row_is_a_pointer_a_row_and_an_offset_an_element(
    name: str, tables: int
) -> None:
    text = f"cuda.persistent x=2 r=128 warps=4 {ALIGNED}"
    source = generate(kernel_of(name), parse_schedule(text), TARGET).source
    loads = [line for line in source.splitlines() if "tl.load(a" in line and "tl.minimum(" in line]
    assert len(loads) == tables
    for load in loads:
        pointer, offset = load.rsplit(" + ", 1)
        assert "r0" not in pointer
        assert offset.startswith(("r0, ", "r0), "))


def test_rows_of_a_table_are_promised_to_begin_where_vectors_may() -> None:
    kernel = kernel_of("paged_rows_f32")
    dims = dict(zip(kernel.symbols, (64, 8, 128, 100, 16), strict=True))
    guards = [generate(kernel, each, TARGET).guard for each in candidates(kernel, TARGET, dims)]
    facts = {fact for guard in guards for fact in guard.facts if isinstance(fact, Divisible)}
    names = {name for fact in facts for name in ex.symbols_of(fact.expr)}
    assert names == {"k2"}  # and neither how many blocks there are, nor how long they are
