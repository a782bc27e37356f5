"""Vectors of what is contiguous between bounds: halves of rows, parts of joins, what pads read."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.native import MACHINE, PORTABLE, check, compile_kernel, encode, target

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, parse_schedule

AVX2 = target(("avx2", "f16c", "fma"))
LEVELS = {"machine": MACHINE, "avx2": AVX2, "portable": PORTABLE}
WIDTHS = [
    ("machine", 16), ("machine", 8), ("avx2", 8), ("avx2", 4), ("portable", 4), ("portable", 1),
]  # fmt: skip
HALVES = """
(kernel (symbols k0 k1 k2 k3)
  (pointwise k0 k1 k2)
  (reduction)
  (params (in bf16) (in bf16) (in bf16) (out bf16))
  (body
    (load 0 (+ (* k1 k2 p0) (* k2 p1) p2))
    (cast f32 0)
    (load 1 (+ (* k2 p0) p2))
    (cast f32 2)
    (mul f32 1 3)
    (iota p2)
    (iota (+ k2 (* -1 k3)))
    (lt bool 5 6)
    (load 0 (+ (* k1 k2 p0) (* k2 p1) k3 (min p2 (+ k2 (* -1 k3) -1))))
    (cast f32 8)
    (neg f32 9)
    (load 0 (+ (* k1 k2 p0) (* k2 p1) (max 0 (+ (* -1 k2) k3 p2))))
    (cast f32 11)
    (where f32 7 10 12)
    (load 2 (+ (* k2 p0) p2))
    (cast f32 14)
    (mul f32 13 15)
    (add f32 4 16)
    (cast bf16 17)
    (store 3 (+ (* k1 k2 p0) (* k2 p1) p2) 18)))
"""
"""Each half of a row turned to the other's place, as in a rotary embedding; k2 is twice k3."""
BETWEEN = """
(kernel (symbols k0 k1 k2)
  (pointwise k0 k1)
  (reduction)
  (params (in f32) (in f32) (out f32))
  (body
    (load 0 (+ (* k2 p0) (max 0 (min (+ k2 -1) (+ p1 -3)))))
    (load 1 (+ (* k2 p0) (min (+ k2 -1) (max 0 (+ p1 -3)))))
    (sub f32 0 1)
    (iota p1)
    (const i64 0x3)
    (lt bool 3 4)
    (const i64 0xfffffffffffffffe)
    (ge bool 3 6)
    (const f32 0x40000000)
    (where f32 7 2 8)
    (where f32 5 8 9)
    (store 2 (+ (* k1 p0) p1) 10)))
"""
"""What pads reads, the upper bound first or the lower one, and comparisons with numbers."""
BETWEEN_TWICE = """
(kernel (symbols k0 k1 k2)
  (pointwise k0 k1)
  (reduction)
  (params (in f32) (out f32))
  (body
    (load 0 (+ (* k2 p0) (min (+ k2 -1) (+ (max 0 (min (+ k2 -1) (+ p1 -2))) 1))))
    (load 0 (+ (* k2 p0) (max 0 (min (+ k2 -1) (+ (max 0 (min (+ k2 -1) (+ p1 -2))) -2)))))
    (sub f32 0 1)
    (store 1 (+ (* k1 p0) p1) 2)))
"""
"""What is read of neighbours of what a pad repeats, in one that is repeated itself."""
TRIANGLES = """
(kernel (symbols k0 k1)
  (pointwise k0 k1)
  (reduction)
  (params (in f32) (out f32))
  (body
    (iota (+ p0 -1))
    (iota p1)
    ({comparison} bool 0 1)
    (load 0 (+ (* k1 p0) p1))
    (const f32 0x40000000)
    (where f32 2 3 4)
    (store 1 (+ (* k1 p0) p1) 5)))
"""
"""A mask whose row is compared with its columns, that one on the left."""
LIMITED = """
(kernel (symbols k0 k1)
  (pointwise k0 k1)
  (reduction)
  (params (in i64) (in f32) (out f32))
  (body
    (load 0 p0)
    (iota (+ p1 -2))
    ({comparison} bool 1 0)
    (load 1 (+ (* k1 p0) p1))
    (const f32 0x40000000)
    (where f32 2 3 4)
    (store 2 (+ (* k1 p0) p1) 5)))
"""
"""A mask by a limit that is read for each row, as of sequences of different lengths."""
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
ROLLED = """
(kernel (symbols k0 k1)
  (pointwise k0 k1)
  (reduction)
  (params (in f16) (out f16))
  (body
    (iota p0)
    (iota (+ k0 -2))
    (lt bool 0 1)
    (load 0 (+ (* k1 (min (+ k0 -1) (+ p0 2))) p1))
    (cast f32 3)
    (load 0 (+ (* k1 (max 0 (+ p0 2 (* -1 k0)))) p1))
    (cast f32 5)
    (where f32 2 4 6)
    (cast f16 7)
    (store 1 (+ (* k1 p0) p1) 8)))
"""
"""Rows, two places further: each is one of two, whatever the column."""


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
@pytest.mark.parametrize("dims", [(1, 7, 1), (3, 90, 84), (2, 40, 80), (4, 131, 5)])
def test_bounds_in_either_order_are_loaded_in_vectors(
    level: str, lanes: int, dims: tuple[int, ...], tmp_path: Path
) -> None:
    schedule = parse_schedule(f"cpu.pointwise axis=1 lanes={lanes} unroll=2 block=1024")
    given = parse_kernel(BETWEEN)
    source = generate(given, schedule, LEVELS[level]).source
    assert source.count("= load_within_f32(") == 2 * (2 + 1 + 1)
    assert "vbool v5_0 = lanes_below_bool(" in source
    assert "vbool v7_0 = ~lanes_below_bool(" in source
    native = compile_kernel(given, schedule, tmp_path, at=LEVELS[level])
    random = np.random.default_rng(0)
    count = dims[0] * dims[2]
    check(native, dims, [random.normal(size=count).astype(np.float32) for _ in range(2)])


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
@pytest.mark.parametrize("dims", [(1, 7, 1), (3, 90, 84), (2, 45, 40), (4, 9, 5)])
def test_bounds_within_bounds_are_loaded_in_vectors(
    level: str, lanes: int, dims: tuple[int, ...], tmp_path: Path
) -> None:
    given = parse_kernel(BETWEEN_TWICE)
    schedule = candidates(given, MACHINE, dict(zip(given.symbols, dims, strict=True)))[0]
    assert schedule.get("axis", 0) == 1
    schedule = parse_schedule(f"cpu.pointwise axis=1 lanes={lanes} unroll=2 block=1024")
    source = generate(given, schedule, LEVELS[level]).source
    assert source.count("= load_within_f32(") == 2 * (2 + 1 + 1)
    native = compile_kernel(given, schedule, tmp_path, at=LEVELS[level])
    x = np.random.default_rng(0).normal(size=dims[0] * dims[2]).astype(np.float32)
    check(native, dims, [x])


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
def test_what_is_contiguous_within_bounds_is_loaded_in_vectors(
    level: str, lanes: int, tmp_path: Path
) -> None:
    """Two halves of a row, each read at indices that are clamped into it."""
    schedule = parse_schedule(f"cpu.pointwise axis=2 lanes={lanes} unroll=2 block=1024")
    native = compile_kernel(parse_kernel(HALVES), schedule, tmp_path, at=LEVELS[level])
    for half in (1, 5, 16, 33, 64):
        dims = (2, 3, 2 * half, half)
        random = np.random.default_rng(half)
        shapes = (2 * 3 * 2 * half, 2 * 2 * half, 2 * 2 * half)
        check(native, dims, [encode("bf16", random.normal(size=count)) for count in shapes])


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
def test_a_position_may_be_compared_with_that_of_lanes_on_its_right(
    level: str, lanes: int, comparison: str, tmp_path: Path
) -> None:
    schedule = parse_schedule(f"cpu.pointwise axis=1 lanes={lanes} unroll=2 block=1024")
    given = parse_kernel(TRIANGLES.format(comparison=comparison))
    source = generate(given, schedule, LEVELS[level]).source
    assert re.search(r"vbool v2_0 = ~?lanes?_(below|at)_bool\(", source)
    native = compile_kernel(given, schedule, tmp_path, at=LEVELS[level])
    for dims in ((1, 1), (37, 37), (3, 80), (70, 5)):
        random = np.random.default_rng(0)
        check(native, dims, [random.normal(size=dims[0] * dims[1]).astype(np.float32)])


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
def test_positions_may_be_compared_with_any_number_that_was_read(
    level: str, lanes: int, comparison: str, tmp_path: Path
) -> None:
    schedule = parse_schedule(f"cpu.pointwise axis=1 lanes={lanes} unroll=2 block=1024")
    given = parse_kernel(LIMITED.format(comparison=comparison))
    source = generate(given, schedule, LEVELS[level]).source
    assert re.search(r"vbool v2_0 = ~?lanes?_(below|at)_bool\(bounded_i64\(v0\[0\]\)", source)
    native = compile_kernel(given, schedule, tmp_path, at=LEVELS[level])
    extremes = np.iinfo(np.int64)
    limits = [extremes.min, extremes.min + 1, -3, -2, -1, 0, 1, 15, 16, 17, 38, 39, 40, 41]
    limits += [1 << 32, (1 << 32) + 3, -(1 << 32), extremes.max - 1, extremes.max]
    values = np.random.default_rng(0).normal(size=len(limits) * 43).astype(np.float32)
    check(native, (len(limits), 43), [np.array(limits), values])


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
def test_what_is_one_choice_for_all_lanes_is_no_choice_of_each(
    level: str, lanes: int, tmp_path: Path
) -> None:
    schedule = parse_schedule(f"cpu.pointwise axis=1 lanes={lanes} unroll=2 block=1024")
    given = parse_kernel(ROLLED)
    source = generate(given, schedule, LEVELS[level]).source
    assert "v7_0 = v2[0] ? v4_0 : v6_0;" in source
    assert "sel_f32(v2" not in source
    native = compile_kernel(given, schedule, tmp_path, at=LEVELS[level])
    for dims in ((2, 1), (3, 50), (8, 33)):
        random = np.random.default_rng(0)
        check(native, dims, [encode("f16", random.normal(size=dims[0] * dims[1]))])
