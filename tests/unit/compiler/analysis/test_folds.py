"""Rows of columns that are read as one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.analysis.folds import folded, folded_stores
from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule import parse_schedule
from nearhint_rules import expr as ex
from nearhint_rules.guard import AtMost, size_facts_hold

K0, K1, K2 = map(ex.symbol, ("k0", "k1", "k2"))
REST = "splits=4 warps=1 index=32 aligned=1 divisible=0"


def test_rows_of_columns_are_one_in_the_same_memory() -> None:
    kernel = kernel_of("column_sum_f32")
    fold = folded(kernel, 8)
    assert fold is not None
    assert fold.whole.pointwise == (ex.mul(8, K1),)
    assert fold.whole.reduction == (ex.floordiv(K0, 8),) == (fold.rest,)
    load = fold.whole.body[0]
    assert isinstance(load, ir.Load)
    assert load.index == ex.add(ex.mul(8, K1, ex.symbol("r0")), ex.symbol("p0"))
    assert fold.needed == (0,)


def test_what_comes_after_the_reduces_stays_as_it_was() -> None:
    kernel = kernel_of("column_sizes_bf16")
    fold = folded(kernel, 2)
    assert fold is not None
    assert fold.needed == (0, 1, 2, 3, 4, 6)
    assert fold.whole.body[1:] == kernel.body[1:]


def test_what_rows_share_is_read_by_the_row_that_a_place_lies_in() -> None:
    fold = folded(kernel_of("weighted_column_sum_bf16"), 8)
    assert fold is not None
    loads = [node.index for node in fold.whole.body if isinstance(node, ir.Load)]
    row, place = ex.symbol("r0"), ex.symbol("p0")
    matrix = ex.add(ex.mul(8, K0, row), place)
    assert loads == [matrix, ex.add(ex.mul(8, row), ex.floordiv(place, K0)), matrix]


def test_what_columns_share_is_not_read_by_the_row() -> None:
    kernel = kernel_of("weighted_column_sum_bf16")
    body = [
        replace(node, index=ex.symbol("p0"))
        if isinstance(node, ir.Load) and node.index == ex.symbol("r0")
        else node
        for node in kernel.body
    ]
    assert folded(replace(kernel, body=tuple(body)), 8) is None


@pytest.mark.parametrize("name", ["plane_variances_f32", "plane_variances_bf16"])
def test_elements_of_planes_are_columns(name: str) -> None:
    kernel = kernel_of(name)
    fold = folded(kernel, 8)
    assert fold is not None
    assert fold.plane == K2
    assert fold.whole.pointwise == (ex.mul(8, K0, K2),)
    assert fold.whole.reduction == (ex.floordiv(K1, 8),)
    load = fold.whole.body[0]
    assert isinstance(load, ir.Load)
    assert load.index == ex.add(ex.mul(8, K0, K2, ex.symbol("r0")), ex.symbol("p0"))
    # Of moments both reduces are of the elements, the second by way of the first's result.
    assert fold.needed == ((0,) if name == "plane_variances_f32" else (0, 1))


def test_planes_are_as_long_as_there_is_room_for() -> None:
    kernel, text = kernel_of("plane_variances_f32"), f"cuda.split x=16 r=8 {REST} fold=8"
    guard = generate(kernel, parse_schedule(f"{text} plane=32"), TARGET).guard
    assert AtMost(K2, 32) in guard.facts
    for wrong in ("", " plane=24", " plane=2048"):
        with pytest.raises(InvalidSchedule):
            generate(kernel, parse_schedule(text + wrong), TARGET)
    # Long columns of one row are more than its elements.
    assert size_facts_hold(guard, {"k0": 2**19, "k1": 64, "k2": 16})
    assert not size_facts_hold(guard, {"k0": 2**23, "k1": 1, "k2": 32})
    columns = kernel_of("column_sum_f32")
    for wrong in (" fold=8 plane=32", " plane=32"):
        with pytest.raises(InvalidSchedule):
            generate(columns, parse_schedule(f"cuda.split x=16 r=8 {REST}{wrong}"), TARGET)


@pytest.mark.parametrize(
    "name",
    [
        "row_sum_f32",  # rows
        "column_argmin_bf16",  # places along a column
        "column_cumprod_i64",  # each step is a result
        "transposed_softmax_f32",  # columns that are read again
        "arg_min_of_planes_f32",  # places along a plane
        "add_f32",
    ],
)
def test_others_are_not_folded(name: str) -> None:
    kernel = kernel_of(name)
    assert folded(kernel, 8) is None
    with pytest.raises(InvalidSchedule):
        generate(kernel, parse_schedule(f"cuda.split x=16 r=8 {REST} fold=8"), TARGET)


def test_columns_that_are_stored_are_walked_as_one_with_what_each_is_a_part_of() -> None:
    kernel = kernel_of("scaled_column_softmax_bf16")
    fold = folded_stores(kernel, 8)
    assert fold is not None
    assert fold.is_stored
    assert folded(kernel, 8) is None
    load, store, weight = (fold.whole.body[place] for place in (0, 11, 7))
    assert isinstance(load, ir.Load)
    assert isinstance(store, ir.Store)
    assert isinstance(weight, ir.Load)
    assert load.index == store.index == ex.add(ex.mul(8, K0, ex.symbol("r0")), ex.symbol("p0"))
    assert weight.index == ex.mod(ex.symbol("p0"), K0)


@pytest.mark.parametrize(
    "name",
    [
        "column_sum_f32",  # nothing is stored along columns
        "column_cumsum_f32",  # each step is a result
        "middle_softmax_bf16",  # matrices of their own
        "softmax_f32",  # rows
        "add_f32",
    ],
)
def test_others_are_not_stored_as_one(name: str) -> None:
    assert folded_stores(kernel_of(name), 8) is None


@pytest.mark.parametrize(
    "schedule",
    [
        f"cuda.split x=4 r=8 {REST} fold=8",  # no column of its own for a program
        f"cuda.split x=16 r=8 {REST} fold=3",
        "cuda.looped x=16 r=8 warps=1 index=32 aligned=1 divisible=0 fold=8",
    ],
)
def test_folds_that_cannot_be_are_refused(schedule: str) -> None:
    with pytest.raises(InvalidSchedule, match=r"fold|rows"):
        generate(kernel_of("column_sum_f32"), parse_schedule(schedule), TARGET)


def test_what_is_stored_is_brought_together_apart() -> None:
    schedule = parse_schedule(f"cuda.split x=16 r=8 {REST} fold=8")
    with pytest.raises(InvalidSchedule, match="apart"):
        generate(kernel_of("standardised_columns_f32"), schedule, TARGET)
