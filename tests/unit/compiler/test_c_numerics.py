"""Generated C of whole kernels against the float64 interpreter, in all families and widths."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.kernels import KERNELS
from tests.unit.compiler.native import (
    MACHINE,
    PORTABLE,
    WORDS,
    Array,
    Native,
    check,
    compile_kernel,
    encode,
    target,
    words_of,
)

from nearhint_compiler.codegen import generate
from nearhint_compiler.codegen.c import arg as c_arg
from nearhint_compiler.codegen.c.homes import homes_of
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, parse_schedule
from nearhint_rules import expr as ex

AVX2 = target(("avx2", "f16c", "fma"))
LEVELS = {"machine": MACHINE, "avx2": AVX2, "portable": PORTABLE}
WIDTHS = [
    ("machine", WORDS), ("machine", max(4, WORDS // 2)), ("avx2", 8), ("avx2", 4), ("portable", 4),
    ("portable", 1),
]  # fmt: skip
SIZES = (1, 3, 17, 64, 131, 300)
ROWS = "cpu.rows axis={axis} lanes={lanes} unroll=2 short=4 stash=0 split={split}"
PANELS = (
    "cpu.panels axis=0 lanes={lanes} unroll=2 short={short} stash={stash} across={across}"
    " rows={rows} length={length} split=0"
)
COLUMNS = "cpu.columns axis=0 lanes={lanes} unroll=2 split={split}"
READ_AGAIN = """
(kernel (symbols k0 k1)
  (pointwise k0)
  (reduction k1)
  (params (in f32) (in f32) (out f32))
  (body
    (load 0 (+ (* k1 p0) r0))
    (exp f32 0)
    (reduce sum f32 1)
    (div f32 1 2)
    (load 1 (+ (* k1 p0) r0))
    (mul f32 3 4)
    (store 2 (+ (* k1 p0) r0) 5)))
"""
"""The second input, which the output may share its storage with, is read in the last walk."""
OUTER_ALONE = """
(kernel (symbols k0 k1)
  (pointwise)
  (reduction k0 k1)
  (params (in f32) (out f32) (out f32))
  (body
    (load 0 r0)
    (exp f32 0)
    (store 1 (+ (* k1 r0) r1) 1)
    (reduce sum f32 1)
    (sub f32 1 3)
    (store 2 (+ (* k1 r0) r1) 4)))
"""
"""What is read in the last walk is the same along the loop that lanes run along."""
SCALED = """
(kernel (symbols k0 k1 k2)
  (pointwise k0 k1)
  (reduction k2)
  (params (in f32) (in f32) (in f32) (out f32) (out f32) (out i64))
  (body
    (load 0 (+ (* k1 k2 p0) (* k2 p1) r0))
    (load 1 p1)
    (load 2 r0)
    (mul f32 0 1)
    (mul f32 3 2)
    (exp f32 4)
    (reduce sum f32 5)
    (reduce sum f32 2)
    (sqrt f32 6)
    (add f32 8 7)
    (iota p1)
    (mul f32 5 9)
    (reduce max f32 11)
    (store 3 (+ (* k1 k2 p0) (* k2 p1) r0) 11)
    (store 4 (+ (* k1 p0) p1) 12)
    (store 5 (+ (* k1 p0) p1) 10)))
"""
"""A number a row at the start and at the end, a sum that is the same for all rows."""


def kernel(name: str) -> ir.Kernel:
    return parse_kernel((KERNELS / f"{name}.ir").read_text())


def inputs(given: ir.Kernel, dims: Sequence[int], seed: int, *, distinct: int) -> list[Array]:
    """Random inputs of few `distinct` values, so that extremal ones repeat; NaN and infinities."""
    random = np.random.default_rng(seed)
    count = int(np.prod(dims))
    found: list[Array] = []
    for param in given.params:
        if param.role == "out":
            continue
        values = random.integers(0, distinct, count).astype(np.float64)
        if param.dtype not in (*ir.INTEGERS, "bool"):
            values -= distinct // 2
            places = random.random(count)
            values[places < 0.01 * (seed % 3)] = np.nan
            values[places > 1 - 0.02 * (seed % 2)] = np.inf
            values[(places > 0.5) & (places < 0.5 + 0.02 * (seed % 2))] = -np.inf
        found.append(encode(param.dtype, values % 2 if param.dtype == "bool" else values))
    return found


def sizes(rank: int) -> Iterator[tuple[int, ...]]:
    if rank == 2:
        yield from itertools.product((1, 5, 33), SIZES)
    else:
        yield from ((1, 1, 1), (2, 3, 17), (3, 17, 1), (5, 4, 70), (1, 9, 131))


def run_all(native: Native, *, distinct: int, threads: Sequence[int] = (1, 3)) -> None:
    for number, dims in enumerate(sizes(len(native.kernel.symbols))):
        given = inputs(native.kernel, dims, number, distinct=distinct)
        for count in threads:
            check(native, dims, given, threads=count)


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("row_argmax_f32", ROWS),
        ("row_argmax_f32", COLUMNS),
        ("column_argmin_bf16", COLUMNS),
        ("column_argmin_bf16", ROWS),
        ("arg_over_two_loops_i32", ROWS),
        ("arg_over_two_loops_i32", COLUMNS),
        ("argmax_mask_f16", ROWS),
        ("argmax_mask_f16", COLUMNS),
    ],
)
def test_the_first_extremal_element_is_found(
    name: str, family: str, level: str, lanes: int, tmp_path: Path
) -> None:
    given = kernel(name)
    axis = len(given.reduction) - 1
    schedule = parse_schedule(family.format(axis=axis, lanes=lanes, split=1))
    run_all(compile_kernel(given, schedule, tmp_path, at=LEVELS[level]), distinct=4)


@pytest.mark.parametrize("level", ["machine", "portable"])
@pytest.mark.parametrize("kind", ir.ARGS)
@pytest.mark.parametrize("dtype", [*ir.FLOATS, *ir.INTEGERS, "bool"])
def test_every_dtype_is_compared(dtype: str, kind: str, level: str, tmp_path: Path) -> None:
    given = arg_kernel(kind, dtype, ex.symbol("r0"))
    at = LEVELS[level]
    columns = parse_schedule(COLUMNS.format(lanes=min(8, words_of(at)), split=1))
    for schedule in {candidates(given, at)[0], columns}:
        run_all(compile_kernel(given, schedule, tmp_path, at=at), distinct=9)


@pytest.mark.parametrize("family", [ROWS, COLUMNS])
def test_a_long_row_is_walked_in_runs(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c_arg, "RUN_LIMIT", 2)
    for kind in ir.ARGS:
        given = arg_kernel(kind, "f32", ex.add(ex.symbol("r0"), 1 << 40))
        schedule = parse_schedule(family.format(axis=0, lanes=8, split=1))
        run_all(compile_kernel(given, schedule, tmp_path), distinct=4)


def arg_kernel(kind: str, dtype: str, index: ex.Expr) -> ir.Kernel:
    """The place and the value of the extremal element of each row."""
    row, column = ex.symbol("p0"), ex.symbol("r0")
    body = (
        ir.Load(0, ex.add(ex.mul(row, ex.symbol("k1")), column)),
        ir.Arg(kind, dtype, 0, index),
        ir.Store(1, row, 1),
        ir.Reduce(kind, dtype, 0),
        ir.Store(2, row, 3),
    )
    params = (ir.Param("in", dtype), ir.Param("out", "i64"), ir.Param("out", dtype))
    return ir.Kernel(("k0", "k1"), (ex.symbol("k0"),), (ex.symbol("k1"),), params, body)


@pytest.mark.parametrize("family", [ROWS, COLUMNS])
@pytest.mark.parametrize("index", ["from_the_end", "in_turns"])
def test_of_equals_the_least_index_counts_whatever_the_order(
    index: str, family: str, tmp_path: Path
) -> None:
    column, length = ex.symbol("r0"), ex.symbol("k1")
    expressions = {
        "from_the_end": ex.sub(ex.sub(length, column), 1),
        "in_turns": ex.add(ex.mul(ex.mod(column, 4), length), ex.floordiv(column, 4)),
    }
    given = arg_kernel("max", "f32", expressions[index])
    schedule = parse_schedule(family.format(axis=0, lanes=8, split=1))
    run_all(compile_kernel(given, schedule, tmp_path), distinct=3)


INF, NAN = float("inf"), float("nan")
MAX_AND_SUM: dict[tuple[float, ...], tuple[float, float]] = {
    (1, 2, 3): (3, 1.5032147),
    (-INF, 0, -INF): (0, 1),
    # nothing finite: inf - inf is NaN, as eager has it
    (-INF, -INF, -INF): (-INF, NAN),
    (0, INF, 1): (INF, NAN),
    (0, NAN, INF): (NAN, NAN),
}
"""Rows, and the maximum and the sum of exponentials of each."""


@pytest.mark.parametrize("walked", [3, 16, 70, 2**20 + 13])
@pytest.mark.parametrize(
    "schedule",
    [
        ROWS.format(axis=0, lanes=WORDS, split=1),
        ROWS.format(axis=0, lanes=8, split=1).replace("short=4 stash=0", "short=4 stash=256"),
        COLUMNS.format(lanes=8, split=1),
    ],
)
def test_maximum_and_sum_of_exponentials_of_rows_without_finite_scores(
    schedule: str, walked: int, tmp_path: Path
) -> None:
    """Behind each row's three scores there is nothing: what is -inf adds nothing."""
    given = kernel("max_and_sum_f32")
    native = compile_kernel(given, parse_schedule(schedule), tmp_path)
    rows = np.full((len(MAX_AND_SUM), walked), -np.inf, np.float32)
    rows[:, :3] = list(MAX_AND_SUM)
    for threads in (1, 3):
        largest, total = (np.zeros(len(rows), np.float32) for _ in range(2))
        native.run(rows.shape, [rows, largest, total], threads=threads)
        found = np.stack((largest, total), 1)
        np.testing.assert_allclose(found, list(MAX_AND_SUM.values()), rtol=2e-6)


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
@pytest.mark.parametrize("family", [ROWS, COLUMNS])
@pytest.mark.parametrize(
    "name",
    ["row_cumsum_f32", "column_cumprod_i64", "row_cumprod_f64", "normalised_cumsum_bf16"],
)
def test_running_reductions_follow_the_row(
    name: str, family: str, level: str, lanes: int, tmp_path: Path
) -> None:
    given = kernel(name)
    schedule = parse_schedule(family.format(axis=0, lanes=lanes, split=0))
    run_all(compile_kernel(given, schedule, tmp_path, at=LEVELS[level]), distinct=5)


@pytest.mark.parametrize("level", LEVELS)
def test_a_running_sum_is_kept_for_a_later_walk(level: str, tmp_path: Path) -> None:
    at = LEVELS[level]
    lanes = min(8, words_of(at))
    schedule = ROWS.replace("stash=0", "stash=256").format(axis=0, lanes=lanes, split=0)
    given = kernel("normalised_cumsum_bf16")
    native = compile_kernel(given, parse_schedule(schedule), tmp_path, at=at)
    assert "rows_with_stash" in native.generated.source
    run_all(native, distinct=5)


@pytest.mark.parametrize(
    ("kind", "dtype"), [(kind, dtype) for kind, dtypes in ir.SCANS.items() for dtype in dtypes]
)
def test_running_reductions_are_of_every_dtype(kind: str, dtype: str, tmp_path: Path) -> None:
    row = ex.add(ex.mul(ex.symbol("p0"), ex.symbol("k1")), ex.symbol("r0"))
    body = (ir.Load(0, row), ir.Scan(kind, dtype, 0), ir.Store(1, row, 1))
    params = (ir.Param("in", dtype), ir.Param("out", dtype))
    given = ir.Kernel(("k0", "k1"), (ex.symbol("k0"),), (ex.symbol("k1"),), params, body)
    for at in (MACHINE, PORTABLE):
        columns = parse_schedule(COLUMNS.format(axis=0, lanes=4, split=0))
        for schedule in (candidates(given, at)[0], columns):
            native = compile_kernel(given, schedule, tmp_path, at=at)
            run_all(native, distinct=90, threads=(2,))


@pytest.mark.parametrize("family", [ROWS, COLUMNS])
@pytest.mark.parametrize("level", LEVELS)
def test_a_running_sum_of_f32_is_rounded_once(family: str, level: str, tmp_path: Path) -> None:
    at = LEVELS[level]
    schedule = parse_schedule(family.format(axis=0, lanes=min(8, words_of(at)), split=0))
    native = compile_kernel(kernel("row_cumsum_f32"), schedule, tmp_path, at=at)
    random = np.random.default_rng(0)
    x = random.normal(0, 1, (3, 5001)).astype(np.float32)
    got = np.zeros_like(x)
    native.run((3, 5001), [x, got])
    exact = np.cumsum(x.astype(np.float64), axis=1)
    assert (np.abs(got - exact) <= np.spacing(np.abs(exact).astype(np.float32)) * 0.5001).all()


BESIDE = "cpu.rows axis=0 lanes={lanes} unroll=2 short=2 stash=0 split=1 beside={beside}"


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
@pytest.mark.parametrize(
    "name",
    [
        "layer_norm_dynamic_f32",
        "log_softmax_f32",
        "max_and_sum_f32",
        "mean_variance_f32",
        "row_all_f32",
        "row_any_bool",
        "row_max_u8",
        "row_min_i8",
        "row_prod_f64",
        "row_sum_i64",
        "softmax_f32",
        "softmax_mask_f16",
    ],
)
def test_rows_side_by_side_are_those_one_by_one(
    name: str, level: str, lanes: int, tmp_path: Path
) -> None:
    schedule = parse_schedule(BESIDE.format(lanes=lanes, beside=8 * lanes))
    native = compile_kernel(kernel(name), schedule, tmp_path, at=LEVELS[level])
    run_all(native, distinct=7)


def test_a_row_has_side_by_side_what_others_have_before_and_after_the_walks(tmp_path: Path) -> None:
    given = parse_kernel(SCALED)
    schedule = parse_schedule(BESIDE.format(lanes=8, beside=64))
    native = compile_kernel(given, schedule, tmp_path, at=AVX2)
    for number, dims in enumerate(((1, 1, 1), (3, 5, 9), (2, 8, 16), (2, 9, 17), (5, 33, 64))):
        rows, columns = dims[0] * dims[1], dims[2]
        random = np.random.default_rng(number)
        arrays = [random.random(size) for size in (rows * columns, dims[1], columns)]
        values = [encode("f32", array) for array in arrays]
        for count in (1, 2, 3):
            check(native, dims, values, threads=count)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("row_argmax_f32", "beside=64"),
        ("row_cumsum_f32", "beside=64"),
        ("sum_outer_inner_f32", "beside=64"),
        ("row_sum_f32", "beside=4096"),
    ],
)
def test_rows_that_cannot_be_side_by_side_are_refused(name: str, options: str) -> None:
    schedule = parse_schedule(f"cpu.rows axis=0 lanes=8 unroll=2 short=2 stash=0 split=0 {options}")
    with pytest.raises(InvalidSchedule, match="beside each other"):
        generate(kernel(name), schedule, AVX2)


KEPT = "cpu.rows axis=0 lanes={lanes} unroll=2 short={short} stash={stash} split=1"


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
@pytest.mark.parametrize("name", ["softmax_f32", "one_row_softmax_f32"])
def test_what_a_row_keeps_may_be_where_its_input_is(
    name: str, level: str, lanes: int, tmp_path: Path
) -> None:
    """An output may share its storage with an input that is read at the same index."""
    given = kernel(name)
    options = KEPT.format(lanes=lanes, short=1, stash=8192)
    more = f" beside={4 * lanes}" if given.pointwise else ""
    native = compile_kernel(given, parse_schedule(options + more), tmp_path, at=LEVELS[level])
    for columns in (1, 3, 16, 65, 300, 20_001):
        dims = ((3, columns) if given.pointwise else (columns,))[-len(given.symbols) :]
        shape = dims if given.pointwise else (1, columns)
        x = np.random.default_rng(columns).standard_normal(shape).astype(np.float32)
        expected = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
        expected /= expected.sum(-1, keepdims=True)
        for threads in (1, 3):
            both = x.copy()
            native.run(dims, [both, both], threads=threads)
            assert np.abs(both - expected).max() <= 1e-6 * expected.max()


def test_a_row_is_kept_in_an_output_of_its_dtype_that_is_not_read_there_again() -> None:
    given = kernel("softmax_f32")
    ((position, (param, index)),) = homes_of(given, "r0").items()
    assert isinstance(given.body[position], ir.Op)
    assert (param, index) == (1, next(n for n in given.body if isinstance(n, ir.Store)).index)
    assert homes_of(kernel("softmax_f16"), "r0") == {}
    assert homes_of(kernel("layer_norm_dynamic_f32"), "r0") == {}
    assert homes_of(parse_kernel(READ_AGAIN), "r0") == {}


def test_a_value_of_the_outer_of_two_loops_is_worked_out_again(tmp_path: Path) -> None:
    given = parse_kernel(OUTER_ALONE)
    assert homes_of(given, "r1") == {}
    for schedule in candidates(given, MACHINE):
        run_all(compile_kernel(given, schedule, tmp_path), distinct=3)


def test_a_row_with_a_scan_is_not_shared(tmp_path: Path) -> None:
    with pytest.raises(InvalidSchedule):
        compile_kernel(
            kernel("row_cumsum_f32"),
            parse_schedule(ROWS.format(axis=0, lanes=8, split=1)),
            tmp_path,
        )


@pytest.mark.parametrize(("level", "lanes"), [WIDTHS[0], WIDTHS[2], WIDTHS[4]])
@pytest.mark.parametrize(
    ("name", "across"),
    [("transposed_softmax_f32", 0), ("transposed_norm_bf16", 1), ("column_argmin_bf16", 0),
     ("column_cumprod_i64", 0), ("softmax_f32", 0)],
)  # fmt: skip
@pytest.mark.parametrize(("short", "stash", "length"), [(2, 0, 256), (0, 128, 64)])
def test_panels_hold_turned_rows(
    name: str, across: int, short: int, stash: int, length: int, level: str, lanes: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    schedule = PANELS.format(
        lanes=lanes, short=short, stash=stash, across=across, rows=16, length=length
    )
    native = compile_kernel(kernel(name), parse_schedule(schedule), tmp_path, at=LEVELS[level])
    run_all(native, distinct=5)


@pytest.mark.parametrize(("level", "lanes"), [WIDTHS[0], WIDTHS[2], WIDTHS[4]])
@pytest.mark.parametrize(
    ("name", "across"),
    [("transposed_softmax_f32", 0), ("transposed_norm_bf16", 1), ("column_cumprod_i64", 0)],
)
@pytest.mark.parametrize("further", [0, 1])
def test_panels_hold_more_rows_the_shorter_they_are(
    name: str, across: int, further: int, level: str, lanes: int, tmp_path: Path
) -> None:
    schedule = PANELS.format(lanes=lanes, short=2, stash=128, across=across, rows=64, length=256)
    given = parse_schedule(f"{schedule} least=16 next={further}")
    native = compile_kernel(kernel(name), given, tmp_path, at=LEVELS[level])
    assert ("__builtin_prefetch" in native.generated.source) >= bool(further)
    run_all(native, distinct=5)


def test_as_many_rows_fit_a_panel_as_its_length_allows(tmp_path: Path) -> None:
    """Room for 16 rows of 256 holds 64 of up to 48 and 32 of 96; threads share whole blocks."""
    schedule = PANELS.format(lanes=WORDS, short=0, stash=0, across=0, rows=64, length=256)
    given = parse_schedule(f"{schedule} least=16 next=1")
    native = compile_kernel(kernel("transposed_softmax_f32"), given, tmp_path)
    for length in (1, 47, 48, 49, 96, 97, 255, 256, 257):
        for rows in (1, 16, 63, 64, 65, 200):
            x = np.random.default_rng(length).normal(size=rows * length).astype(np.float32)
            check(native, (rows, length), [x], threads=3)


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
def test_pairs_of_squares_and_what_they_leave_fill_a_panel(
    level: str, lanes: int, tmp_path: Path
) -> None:
    """What is left of a side is less than 32 rows of the input or 16 of the panel."""
    schedule = PANELS.format(lanes=lanes, short=0, stash=0, across=0, rows=64, length=256)
    given = kernel("column_argmin_bf16")
    native = compile_kernel(given, parse_schedule(schedule), tmp_path, at=LEVELS[level])
    for length in (16, 31, 32, 33, 63, 65, 256):
        for rows in (15, 16, 17, 31, 64, 79):
            x = inputs(given, (rows, length), length, distinct=5)
            check(native, (rows, length), x, threads=2)


@pytest.mark.parametrize("length", [6007, 8192, 9001])
def test_a_panel_holds_rows_of_half_a_second_cache(length: int, tmp_path: Path) -> None:
    given = kernel("transposed_softmax_f32")
    schedule = candidates(given, MACHINE, {"k0": 20, "k1": length})[0]
    assert schedule.family == "cpu.panels"
    native = compile_kernel(given, schedule, tmp_path)
    x = np.random.default_rng(0).normal(size=20 * length).astype(np.float32)
    check(native, (20, length), [x], threads=2)


@pytest.mark.parametrize(
    ("across", "rows", "length", "more"),
    [(1, 16, 64, ""), (-1, 16, 64, ""), (0, 12, 64, ""), (0, 0, 64, ""), (0, 16, 9999, ""),
     (0, 16, 64, " least=24"), (0, 16, 64, " least=4"), (0, 16, 64, " least=0")],
)  # fmt: skip
def test_panels_that_do_not_fit_are_refused(
    across: int, rows: int, length: int, more: str, tmp_path: Path
) -> None:
    schedule = PANELS.format(lanes=8, short=4, stash=0, across=across, rows=rows, length=length)
    with pytest.raises(InvalidSchedule):
        compile_kernel(kernel("transposed_softmax_f32"), parse_schedule(schedule + more), tmp_path)


@pytest.mark.parametrize("name", ["one_row_softmax_f32", "one_row_layer_norm_f32"])
def test_a_row_that_is_alone_is_a_kernel_like_any_other(name: str, tmp_path: Path) -> None:
    """What follows from its reductions depends on no loop, and yet on the walk before it."""
    given = kernel(name)
    for number, schedule in enumerate(candidates(given, MACHINE)):
        folder = tmp_path / str(number)
        folder.mkdir()
        native = compile_kernel(given, schedule, folder)
        for length in (1, 37, 20_011):
            random = np.random.default_rng(length)
            storages = [
                random.normal(size=length).astype(np.float32)
                for param in given.params
                if param.role == "in"
            ]
            for threads in (1, 3):
                check(native, (length,), storages, threads=threads)
