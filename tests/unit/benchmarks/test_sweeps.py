"""Sweeps: sizes to shapes, rows told from other sizes, symbols told from each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from tests.benchmarks import cpu_sweep_cases, gpu_sweep_cases
from tests.benchmarks import sweep_functions as of
from tests.benchmarks.deployed_functions import WINDOW
from tests.benchmarks.gpu_numerics import as_tuple
from tests.benchmarks.gpu_sweep_cases import (
    FUNCTIONS,
    MIDDLE,
    hints_of,
    starts_for_tuning,
    sweeps_of,
)
from tests.benchmarks.sweeps import Sweep, axes_of, bound_at, ones_of, rows_alone, starts_of

from nearhint_rules.hints import bucket

SOFTMAX = Sweep(
    "softmax", of.softmax, of.matrix, MIDDLE, ((3, 50), (700, 50), (9, 128)), torch.bfloat16
)
TRANSPOSED = Sweep("mx", of.mx_quantise_transposed, of.transposed_matrix, MIDDLE, ((5, 64),))
CPU_LIMIT_BYTES = 64 << 20
GPU_LIMIT_BYTES = 2.3e9


def is_power_of_two(size: int) -> bool:
    return size & (size - 1) == 0


def test_a_case_is_named_for_function_dtype_and_sizes() -> None:
    assert SOFTMAX.case((3, 50)).name == "softmax bf16 3x50"
    assert TRANSPOSED.case((5, 64)).shapes == ((64, 5),)


def test_row_dimensions_are_those_that_grow_with_the_rows() -> None:
    assert SOFTMAX.row_dimensions() == ((0,),)
    assert TRANSPOSED.row_dimensions() == ((1,),)
    heads = Sweep("rotary", of.rotary, of.heads, (40, 3, 32), ())
    assert heads.row_dimensions() == ((1,), (0,), (0,))


def test_rows_alone_keeps_every_size_once_and_compiles_at_none_of_them() -> None:
    parts = rows_alone(SOFTMAX)
    assert [part.sizes for part in parts] == [((3, 50), (700, 50)), ((9, 128),)]
    assert [part.compiled_at for part in parts] == [(MIDDLE[0], 50), (MIDDLE[0], 128)]
    assert [part.title for part in parts] == ["softmax bf16 [50]", "softmax bf16 [128]"]
    assert [case.name for part in parts for case in part.cases()] == [
        case.name for case in SOFTMAX.cases()
    ]


def test_symbols_follow_the_sizes_that_they_were_captured_with() -> None:
    axes = axes_of([1984, 2040], MIDDLE)
    assert bound_at(axes, (7, 96)) == [96, 7]


def test_a_sum_of_sizes_that_torch_keeps_follows_them() -> None:
    sweep = replace(SOFTMAX, beside=lambda rows, columns: (rows + columns,))
    axes = axes_of([4024, 1984], sweep.bindable(MIDDLE))
    assert MIDDLE == (2040, 1984)
    assert bound_at(axes, sweep.bindable((7, 96))) == [103, 96]


@pytest.mark.parametrize("value", [5, 64])
def test_a_value_that_is_no_size_or_several_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=str(value)):
        axes_of([value], (64, 64))


@pytest.mark.parametrize("mode", ["a", "b"])
def test_no_hint_of_the_gpu_sweep_is_measured_but_of_one_row(mode: str) -> None:
    for sweep in sweeps_of(mode, "all"):
        for hint in hints_of(sweep, mode):
            assert hint not in sweep.sizes or hint[0] == 1
            assert is_power_of_two(hint[0])


@pytest.mark.parametrize("mode", ["a", "b"])
def test_a_sweep_is_captured_for_tuning_in_a_bucket_that_is_tuned_anyhow(mode: str) -> None:
    for sweep in sweeps_of(mode, "all"):
        hints = hints_of(sweep, mode)
        plain = starts_of(sweep, sweep.compiled_at)
        starts = starts_for_tuning(sweep, mode)
        assert [ones_of(sweep, each) for each in starts] == [ones_of(sweep, each) for each in plain]
        for start in starts:
            dynamic = 1 if mode == "b" else len(start)
            assert start.count(start[0]) == 1
            assert mode == "b" or len(set(start)) == len(start)
            rounded = (*bucket(start[:dynamic]), *start[dynamic:])
            alike = [hint for hint in hints if ones_of(sweep, hint) == ones_of(sweep, start)]
            assert rounded in alike or not alike


def test_twice_a_size_is_no_other_size_where_a_sweep_is_captured() -> None:
    (doubled,) = (each for each in sweeps_of("a", "strided") if each.name == "doubled")
    sweep = replace(doubled, sizes=((10, 24, 102, 224),))
    (hint,) = hints_of(sweep, "a")
    assert 2 * hint[2] == hint[3]
    ((_, _, height, width),) = starts_for_tuning(sweep, "a")
    assert 2 * height != width


def test_no_size_is_one_that_stays_the_same_where_a_sweep_is_captured() -> None:
    (windows,) = (each for each in sweeps_of("a", "deployed") if each.name == "joined_windows")
    (start,) = starts_for_tuning(windows.at_most(1), "a")
    assert WINDOW not in start


def test_no_size_that_follows_the_rows_is_one_that_stays_where_the_rows_alone_change() -> None:
    (guided,) = (each for each in sweeps_of("b", "everyday") if each.kind == "[16x129x128]")
    ((rows, *others),) = starts_for_tuning(guided, "b")
    assert 2 * rows not in others  # both of the two predictions of a row are in one tensor
    assert bucket((rows,)) == bucket(guided.sizes[0][:1])


def test_one_row_stays_one_where_other_sizes_are_set_apart() -> None:
    (merged,) = (each for each in sweeps_of("a", "kindred") if each.name == "merged_heads_residual")
    several, (rows, heads, tokens, size) = starts_for_tuning(merged, "a")
    assert several[0] > 1
    assert rows == 1
    assert heads * size != tokens


def test_two_rows_that_are_measured_are_tuned_at_four() -> None:
    """One row is another capture's, which no call of two rows comes to."""
    (part,) = rows_alone(Sweep("softmax", of.softmax, of.matrix, MIDDLE, ((2, 37),)))
    assert hints_of(part, "b") == [(4, 37)]


def test_a_measured_power_of_two_is_tuned_at_half_its_rows() -> None:
    square = Sweep("softmax", of.softmax, of.matrix, MIDDLE, ((8192, 8192), (8100, 4100)))
    assert hints_of(square, "a") == [(4096, 8192), (8192, 4096)]


def test_hints_for_rows_alone_keep_all_other_sizes() -> None:
    (part,) = rows_alone(Sweep("softmax", of.softmax, of.matrix, MIDDLE, ((1, 37), (1000, 37))))
    assert hints_of(part, "b") == [(1, 37), (1024, 37)]


@pytest.mark.parametrize(
    "sweep", [*cpu_sweep_cases.SWEEPS, *sweeps_of("a", "all")], ids=lambda sweep: sweep.title
)
def test_a_sweep_is_compiled_at_sizes_that_all_differ_and_are_not_measured(sweep: Sweep) -> None:
    assert len(set(sweep.compiled_at)) == len(sweep.compiled_at)
    assert min(sweep.compiled_at) > 1
    assert sweep.compiled_at not in sweep.sizes


def test_the_cpu_sweep_has_the_anchors_and_forty_more_at_sizes_that_are_no_hints() -> None:
    cases = [
        (sweep.case(sizes), sizes) for sweep in cpu_sweep_cases.SWEEPS for sizes in sweep.sizes
    ]
    names = {case.name for case, _ in cases}
    assert len(names) == len(cases)
    assert names >= cpu_sweep_cases.ANCHORS
    others = [(case, sizes) for case, sizes in cases if case.name not in cpu_sweep_cases.ANCHORS]
    assert len(others) >= 40
    assert all(not is_power_of_two(sizes[0]) or sizes[0] == 1 for _, sizes in others)
    assert any(sizes[0] == 1 for _, sizes in others)
    assert any(sizes[0] >= 100_000 for _, sizes in others)
    for case, _ in cases:
        elements = max(torch.Size(shape).numel() for shape in case.shapes)
        assert elements * case.dtype.itemsize <= CPU_LIMIT_BYTES


def test_the_gpu_sweep_has_five_shapes_or_more_of_each_function_in_both_dtypes() -> None:
    shapes = Counter(sweep.title for sweep in gpu_sweep_cases.SWEEPS for _ in sweep.sizes)
    assert len(shapes) == 2 * 14
    assert min(shapes.values()) >= 5
    assert gpu_sweep_cases.TRANSPOSED_MX == "mx_quantise_transposed bf16 8192x8192"
    names = {case.name for sweep in gpu_sweep_cases.SWEEPS for case in sweep.cases()}
    assert gpu_sweep_cases.TRANSPOSED_MX in names


@pytest.mark.parametrize("sweep", sweeps_of("a", "all"), ids=lambda sweep: sweep.title)
def test_the_gpu_sweep_moves_about_two_gigabytes_at_most(sweep: Sweep) -> None:
    for case in sweep.cases():
        shapes = [torch.empty(shape, dtype=case.dtype, device="meta") for shape in case.shapes]
        arguments = case.prepare(shapes)
        everything = [*arguments, *as_tuple(case.function(*arguments))]
        assert sum(each.nbytes for each in everything) <= GPU_LIMIT_BYTES, case.name


def test_no_two_sweeps_have_one_title() -> None:
    titles = [sweep.title for sweep in sweeps_of("a", "all")]
    assert len(set(titles)) == len(titles)
    sets = [sweeps_of("a", name) for name in FUNCTIONS if name != "all"]
    assert {*sweeps_of("a", "all")} == set().union(*sets)
