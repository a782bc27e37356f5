"""Flat blocks in units compute what the IR says, wherever rows begin."""

from __future__ import annotations

import pytest
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.kernels import TARGET, kernel_of
from tests.unit.compiler.triton_numerics import Case, Results

from nearhint_compiler.analysis.units import has_units
from nearhint_compiler.codegen import generate
from nearhint_compiler.codegen.generated import Generated
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_rules.guard import Divisible, size_facts_hold

pytestmark = numerics.RUNS_LONG

FLAT = "cuda.pointwise x=64 warps=1"


def in_units(
    kernel: str, *dims: tuple[int, ...], units: tuple[int, ...] = (2, 8), promised: str = ""
) -> list[Case]:
    """Blocks with a mask and without, with indices of both widths."""
    forms = (
        f"{FLAT} index=32 aligned=1 {promised or 'divisible=0'}",
        f"{FLAT} index=64 aligned=1 {promised or 'divisible=0'}",
    )
    return [
        Case(kernel, f"{form} unit={unit}{' whole=1' * number}", each)
        for number, form in enumerate(forms)
        for unit in units
        for each in dims
    ]


CASES = [
    *in_units("bias_relu_dynamic_f32", (5, 8), (7, 13), (3, 37), (1, 64)),
    *in_units("bias_relu_dynamic_f32", (5, 3), (33, 2), units=(2,)),
    *in_units("transpose_batched_bf16", (3, 5, 17), (2, 1, 8), (1, 9, 11)),
    *in_units("rotary_joined_f16", (3, 10, 5), (5, 16, 8)),
    *in_units("rotary_of_12_bf16", (5,), (1,), (32,), units=(2, 4, 8)),
    *in_units("scaled_rows_of_12_bf16", (5,), (33,), units=(2, 4, 8)),
    *in_units("join_of_three_bf16", (5, 3), (3, 9), (9, 13)),
    *in_units("rolled_f16", (5, 9), (3, 8), (1, 33)),
    *numerics.pointwise("padded_bf16", (5, 3)),
    *numerics.pointwise("rolled_f16", (5, 9)),
    *numerics.tiled("padded_bf16", (5, 13)),
    *numerics.tiled("rolled_f16", (9, 19)),
    *numerics.tiled("join_of_three_bf16", (5, 9)),
    *in_units("scaled_planes_bf16", (3, 5, 9), (2, 1, 8), (1, 7, 13), (4, 8, 8)),
    *in_units("scaled_planes_bf16", (3, 5, 12), promised="divisible=4 multiple=4", units=(8,)),
    *in_units("swapped_heads_bf16", (3, 5, 9), (2, 1, 8), (1, 7, 13)),
    *in_units("swapped_heads_bf16", (3, 5, 10), (1, 2, 12), promised="divisible=4 multiple=2"),
    *in_units("swapped_heads_bf16", (3, 5, 12), promised="divisible=4 multiple=4", units=(8,)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(case: Case, results: Results) -> None:
    numerics.assert_agrees(case, results)


def generated(name: str, options: str) -> Generated:
    return generate(kernel_of(name), parse_schedule(f"{FLAT} index=32 aligned=1 {options}"), TARGET)


def test_no_unit_is_longer_than_a_row() -> None:
    guard = generated("swapped_heads_bf16", "divisible=0 unit=8").guard
    assert size_facts_hold(guard, {"k0": 3, "k1": 5, "k2": 8})
    assert not size_facts_hold(guard, {"k0": 3, "k1": 5, "k2": 7})
    with pytest.raises(InvalidSchedule):
        generated("rotary_f16", "divisible=0 unit=256")


def test_a_units_place_is_divided_and_not_each_points() -> None:
    lines = generated("swapped_heads_bf16", "divisible=0 unit=8").source.splitlines()
    begun = lines.index("    x = pid * X + tl.arange(0, X // 8)[:, None] * 8")
    spread = lines.index("    lane = tl.arange(0, 8)[None, :]")
    divided = [
        at for at, line in enumerate(lines) if "_quotient(x" in line or "_remainder(x" in line
    ]
    assert len(divided) == 6
    assert all(begun < at < spread for at in divided)


def test_points_of_rows_of_any_length_choose_between_pointers_and_add_constants() -> None:
    source = generated("swapped_heads_bf16", "divisible=0 unit=4").source
    (loaded,) = {line.split(", xmask")[0] for line in source.splitlines() if "tl.load(" in line}
    assert "= tl.load(tl.where(beyond, a0 + (" in loaded
    assert loaded.removesuffix(")").endswith(" + lane")
    # Behind a choice of pointers Triton sees no vectors, which units of promised sizes are.
    promised = generated("swapped_heads_bf16", "divisible=4 multiple=4 unit=8").source
    assert "tl.load(a0 + (tl.where(beyond, " in promised


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("swapped_heads_bf16", "divisible=4 multiple=4 unit=4"),
        ("rotary_of_12_bf16", "divisible=0 unit=4"),
        ("scaled_rows_of_12_bf16", "divisible=0 unit=4"),
    ],
)
def test_units_of_rows_that_are_whole_numbers_of_them_choose_between_no_rows(
    name: str, options: str
) -> None:
    assert "beyond" not in generated(name, options).source
    assert "beyond" in generated(name, options.replace("unit=4", "unit=8")).source


def test_the_first_point_of_a_unit_lies_in_its_first_row() -> None:
    source = generated("swapped_heads_bf16", "divisible=0 unit=4").source
    assert "    beyond = (lane > 0) & (lane >= k2 - p3)\n" in source


def test_what_rows_have_once_is_read_once_for_each_row_of_a_unit() -> None:
    source = generated("scaled_planes_bf16", "divisible=0 unit=8 whole=1").source
    whole, masked = source.split("    else:\n")
    once = "tl.where(beyond, tl.load(a1 + ep1, over, other=0), tl.load(a1 + p1))"
    assert once in whole
    assert "    over = p2 > (k2 + (-8))\n" in whole
    # In the last block the second row of a unit may not be there.
    assert "over, " not in masked


def test_what_lies_so_many_beside_the_flat_index_is_in_one_row() -> None:
    source = generated("rolled_f16", "divisible=0 unit=8").source
    assert "a0 + (x + (-1))" in source


def test_sizes_may_be_promised_to_be_multiples_of_less_than_a_word() -> None:
    found = generated("swapped_heads_bf16", "divisible=4 multiple=2 unit=8")
    assert [fact.by for fact in found.guard.facts if isinstance(fact, Divisible)] == [2]
    assert [flag for flag in found.flags if flag.startswith("divisible:")] == [
        "divisible:0=16", "divisible:1=16", "divisible:4=2"
    ]  # fmt: skip


def test_an_index_that_is_divided_along_the_row_has_no_units() -> None:
    assert has_units(kernel_of("join_of_three_bf16"))
    assert not has_units(kernel_of("merge_heads_f16"))
    assert not has_units(kernel_of("padded_bf16"))
    with pytest.raises(InvalidSchedule):
        generated("merge_heads_f16", "divisible=0 unit=8")
