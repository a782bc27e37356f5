"""Generated C for sums in 64 bits of what has 16 bits or less, which runs add in 32 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.native import (
    MACHINE,
    PORTABLE,
    WORDS,
    Array,
    check,
    compile_kernel,
    target,
)

from nearhint_compiler.analysis.narrow_sums import TERM_BITS, widened_terms
from nearhint_compiler.codegen.c.totals import NARROW_RUN
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import parse_schedule
from nearhint_compiler.schedule.neighbours import COORDINATES

AVX2 = target(("avx2", "f16c", "fma"))
LEVELS = {"machine": MACHINE, "avx2": AVX2, "portable": PORTABLE}
WIDTHS = [
    ("machine", WORDS), ("machine", max(4, WORDS // 2)), ("avx2", 8), ("avx2", 4), ("portable", 4)
]  # fmt: skip
EXTREMES = {"i16": -(2**15), "i8": -(2**7), "u8": 255, "bool": 1}
ROWS = """
(kernel (symbols k0 k1)
  (pointwise k0)
  (reduction k1)
  (params (in {dtype}) (out i64))
  (body
    (load 0 (+ (* k1 p0) r0))
    (cast i64 0)
    (reduce sum i64 1)
    (store 1 p0 2)))
"""
COLUMNS = ROWS.replace("(+ (* k1 p0) r0)", "(+ (* k0 r0) p0)")
SHORT_LOOPS = """
(kernel (symbols k0 k1)
  (pointwise)
  (reduction k0 k1)
  (params (in i16) (out i64))
  (body
    (load 0 (+ (* k1 r0) r1))
    (cast i64 0)
    (reduce sum i64 1)
    (store 1 0 2)))
"""
BESIDE_OTHERS = """
(kernel (symbols k0 k1)
  (pointwise k0)
  (reduction k1)
  (params (in u8) (in f32) (in i8) (out i64) (out f32) (out i64) (out i64) (out i64))
  (body
    (load 0 (+ (* k1 p0) r0))
    (cast i64 0)
    (reduce sum i64 1)
    (store 3 p0 2)
    (load 1 (+ (* k1 p0) r0))
    (reduce sum f32 4)
    (store 4 p0 5)
    (arg max f32 4 r0)
    (store 5 p0 7)
    (load 2 p0)
    (cast i64 9)
    (reduce sum i64 10)
    (store 6 p0 11)
    (reduce max i64 1)
    (store 7 p0 13)))
"""
"""In runs of floats and of places; of what is the same along a row; of what is compared, too."""


def extreme(dtype: str, count: int) -> Array:
    """What 32 bits hold the fewest of, but for a few."""
    storage = {"i16": np.int16, "i8": np.int8}.get(dtype, np.uint8)
    values = np.full(count, EXTREMES[dtype], storage)
    values[::7] = 1
    return values


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
@pytest.mark.parametrize("dtype", EXTREMES)
@pytest.mark.parametrize("beside", [0, 64])
def test_sums_of_rows_are_exact(
    level: str, lanes: int, dtype: str, beside: int, tmp_path: Path
) -> None:
    """Around a vector, a step, a run, and two of them; shared by threads, and not."""
    schedule = (
        f"cpu.rows axis=0 lanes={lanes} unroll=2 short=2 stash=0 split=1 beside={beside * lanes}"
    )
    native = compile_kernel(
        parse_kernel(ROWS.format(dtype=dtype)), parse_schedule(schedule), tmp_path, at=LEVELS[level]
    )
    run = NARROW_RUN * 2 * lanes
    for length in (1, lanes - 1, 2 * lanes + 1, 33 * lanes, run - 1, run + 3 * lanes + 1, 2 * run):
        for rows in (1, 5):
            for threads in (1, 3):
                given = [extreme(dtype, rows * length)]
                check(native, (rows, length), given, threads=threads)


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
@pytest.mark.parametrize("dtype", EXTREMES)
def test_sums_of_columns_are_exact(level: str, lanes: int, dtype: str, tmp_path: Path) -> None:
    schedule = f"cpu.columns axis=0 lanes={lanes} unroll=2 split=1"
    native = compile_kernel(
        parse_kernel(COLUMNS.format(dtype=dtype)),
        parse_schedule(schedule),
        tmp_path,
        at=LEVELS[level],
    )
    for columns in (1, 2 * lanes, 3 * lanes + 1):
        for length in (1, NARROW_RUN, 2 * NARROW_RUN + 1):
            for threads in (1, 3):
                check(
                    native, (columns, length), [extreme(dtype, columns * length)], threads=threads
                )


@pytest.mark.parametrize("inner", [1, 7, 15, 16, 63])
def test_a_run_of_steps_with_several_vectors_each_fits_32_bits(inner: int, tmp_path: Path) -> None:
    schedule = parse_schedule("cpu.rows axis=1 lanes=4 unroll=16 short=4 stash=0 split=0")
    native = compile_kernel(parse_kernel(SHORT_LOOPS), schedule, tmp_path)
    check(native, (40_003, inner), [extreme("i16", 40_003 * inner)])


def test_no_run_is_so_long_that_32_bits_overflow() -> None:
    """A step of a run adds at most as many terms to a lane as vectors are unrolled."""
    most = next(each for each in COORDINATES["cpu.rows"] if each.option == "unroll").greatest
    assert NARROW_RUN * most << (TERM_BITS - 1) < 1 << 31


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
@pytest.mark.parametrize("length", [1, 40, 3000])
def test_sums_of_few_bits_go_with_other_reduces(
    level: str, lanes: int, length: int, tmp_path: Path
) -> None:
    schedule = f"cpu.rows axis=0 lanes={lanes} unroll=2 short=2 stash=0 split=1"
    kernel = parse_kernel(BESIDE_OTHERS)
    native = compile_kernel(kernel, parse_schedule(schedule), tmp_path, at=LEVELS[level])
    floats = np.random.default_rng(0).uniform(0.5, 1.5, 5 * length).astype(np.float32)
    given = [extreme("u8", 5 * length), floats, extreme("i8", 5)]
    for threads in (1, 3):
        check(native, (5, length), given, threads=threads)


def test_terms_are_widened_where_they_are_added_if_nothing_else_wants_them() -> None:
    assert widened_terms(parse_kernel(ROWS.format(dtype="i8"))) == {1}
    assert widened_terms(parse_kernel(ROWS.format(dtype="i32"))) == set()
    assert widened_terms(parse_kernel(BESIDE_OTHERS)) == set()
    alone = BESIDE_OTHERS.replace("(reduce max i64 1)", "(reduce max i64 10)")
    assert widened_terms(parse_kernel(alone)) == {1}
