"""Generated C where rows, or the innermost of a row's loops, are shorter than a step of vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.native import (
    LEVELS,
    WIDTHS,
    Array,
    check,
    compile_kernel,
)

from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import parse_schedule

GROUPS = """
(kernel (symbols k0 k1 k2 k3)
  (pointwise k0 k1)
  (reduction k2 k3)
  (params (in f32) (in f32) (in f32) (out f32) (out f32))
  (body
    (load 0 (+ (* k1 k2 k3 p0) (* k3 p1) (* k1 k3 r0) r1))
    (load 2 r0)
    (mul f32 0 1)
    (reduce sum f32 2)
    (add f32 2 3)
    (reduce max f32 4)
    (load 1 (+ (* k3 p1) r1))
    (mul f32 4 6)
    (add f32 7 5)
    (store 3 (+ (* k1 k2 k3 p0) (* k3 p1) (* k1 k3 r0) r1) 8)
    (store 4 (+ (* k1 p0) p1) 5)))
"""
"""Channels lie innermost: one factor is of the outer loop alone, another of the inner one alone."""
THREE_LOOPS = """
(kernel (symbols k0 k1 k2 k3)
  (pointwise k0)
  (reduction k1 k2 k3)
  (params (in f32) (in f32) (out f32))
  (body
    (load 0 (+ (* k0 k2 k3 r0) (* k2 k3 p0) (* k3 r1) r2))
    (load 1 r0)
    (mul f32 0 1)
    (reduce sum f32 2)
    (store 2 p0 3)))
"""
LONG = """
(kernel (symbols k0 k1)
  (pointwise)
  (reduction k0 k1)
  (params (in f32) (out f32))
  (body
    (load 0 (+ (* k1 r0) r1))
    (reduce sum f32 0)
    (store 1 0 1)))
"""

SWAPPED = """
(kernel (symbols k0 k1 k2)
  (pointwise k0 k1 k2)
  (reduction)
  (params (in f32) (out f16))
  (body
    (load 0 (+ (* k0 k2 p1) (* k2 p0) p2))
    (cast f16 0)
    (store 1 (+ (* k1 k2 p0) (* k2 p1) p2) 1)))
"""


def drawn(*shapes: int) -> list[Array]:
    random = np.random.default_rng(0)
    return [random.uniform(0.5, 1.5, count).astype(np.float32) for count in shapes]


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
@pytest.mark.parametrize("unroll", [1, 2, 4])
def test_rows_of_a_short_inner_loop_are_walked_abreast(
    level: str, lanes: int, unroll: int, tmp_path: Path
) -> None:
    """Around a vector, a step of vectors, and the chains of a sum; shared by threads, and not."""
    schedule = f"cpu.rows axis=1 lanes={lanes} unroll={unroll} short=4 stash=0 split=1"
    native = compile_kernel(
        parse_kernel(GROUPS), parse_schedule(schedule), tmp_path, at=LEVELS[level]
    )
    step = lanes * unroll
    for inner in sorted({1, lanes - 1, lanes, lanes + 1, step - 1, step, step + 1} - {0}):
        for outer in (1, 3, unroll, 5, 64 * unroll + 7):
            for rows, groups in ((1, 1), (2, 3)):
                count = rows * groups * outer * inner
                given = drawn(count, groups * inner, outer)
                for threads in (1, 3):
                    check(native, (rows, groups, outer, inner), given, threads=threads)


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
def test_of_three_loops_the_inner_two_are_walked_abreast(
    level: str, lanes: int, tmp_path: Path
) -> None:
    schedule = f"cpu.rows axis=2 lanes={lanes} unroll=2 short=4 stash=0 split=1"
    native = compile_kernel(
        parse_kernel(THREE_LOOPS), parse_schedule(schedule), tmp_path, at=LEVELS[level]
    )
    for dims in ((1, 1, 1, 1), (2, 3, 5, 7), (3, 7, 130, 2), (2, 4, 9, 40)):
        given = drawn(dims[0] * dims[1] * dims[2] * dims[3], dims[1])
        check(native, dims, given, threads=1)
        check(native, dims, given, threads=3)


@pytest.mark.parametrize("inner", [3, 8, 15])
def test_a_sum_over_many_short_rows_has_no_long_chain_of_additions(
    inner: int, tmp_path: Path
) -> None:
    """A lane that added 100 003 numbers near 1 one after another would be off by some 1e-5."""
    schedule = parse_schedule("cpu.rows axis=1 lanes=8 unroll=4 short=4 stash=0 split=1")
    native = compile_kernel(parse_kernel(LONG), schedule, tmp_path)
    values = np.random.default_rng(0).uniform(0.5, 1.5, 100_003 * inner).astype(np.float32)
    got = np.zeros(1, np.float32)
    native.run((100_003, inner), [values, got])
    exact = values.astype(np.float64).sum()
    assert abs(got[0] - exact) / exact < 1e-6


@pytest.mark.parametrize("dims", [(3, 5, 1), (5, 40, 33), (1, 7, 64), (2, 3, 65), (3, 4, 200)])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_runs_of_rows_that_are_moved_begin_and_end_within_rows_and_between_them(
    dims: tuple[int, ...], threads: int, tmp_path: Path
) -> None:
    """Rows of one block of 64 elements, and of several, cut among threads anywhere."""
    schedule = parse_schedule("cpu.pointwise axis=2 lanes=8 unroll=2 block=64")
    native = compile_kernel(parse_kernel(SWAPPED), schedule, tmp_path)
    check(native, dims, drawn(dims[0] * dims[1] * dims[2]), threads=threads)
