"""Generated C with one column a lane: every number of columns in a block, and what is far ahead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.kernels import KERNELS
from tests.unit.compiler.native import (
    MACHINE,
    PORTABLE,
    WORDS,
    Native,
    check,
    compile_kernel,
    target,
)

from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, cpu, parse_schedule
from nearhint_compiler.schedule.choice import MAX_LIMIT
from nearhint_rules.target import Target

AVX2 = target(("avx2", "f16c", "fma"))
AVX512 = target(("avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl", "f16c", "fma"))
LEVELS = {"machine": MACHINE, "avx2": AVX2, "portable": PORTABLE}
PREFETCH = "__builtin_prefetch("
OF_POSITIONS = """
(kernel (symbols k0 k1)
  (pointwise k0 k1)
  (reduction k1)
  (params (in f32) (out f32))
  (body
    (load 0 p0)
    (iota (+ p1 (* -1 r0)))
    (const i64 0x0)
    (le bool 1 2)
    (const f32 0x0)
    (where f32 3 4 0)
    (scan sum f32 5)
    (store 1 (+ (* (^ k1 2) p0) p1 (* k1 r0)) 6)))
"""
"""Mamba's sums of segments: of one number a chunk, where a triangle of positions lets it be."""
APART = """
(kernel (symbols k0 k1)
  (pointwise k0 k1)
  (reduction k1)
  (params (in i64) (in f32) (in f32) (in f32) (out f32))
  (body
    (load 0 (+ (* k1 p1) r0))
    (gather 1 (+ (* 32 k1 p0) (* 32 p1)) 1 32 0)
    (load 2 (+ (* (^ k1 2) p0) (* k1 p1) r0))
    (load 3 (+ p1 (* k1 r0)))
    (add f32 1 2)
    (add f32 4 3)
    (reduce max f32 5)
    (sub f32 5 6)
    (exp f32 7)
    (reduce sum f32 8)
    (div f32 8 9)
    (store 4 (+ (* (^ k1 2) p0) (* k1 p1) r0) 10)))
"""
"""Attention by content and by distance: of four inputs, one has neighbouring columns."""
EXTREMES = """
(kernel (symbols k0 k1)
  (pointwise k0)
  (reduction k1)
  (params (in DTYPE) (out i64) (out i64))
  (body
    (load 0 (+ (* k0 r0) p0))
    (arg min DTYPE 0 r0)
    (arg max DTYPE 0 r0)
    (store 1 p0 1)
    (store 2 p0 2)))
"""
"""Where a column is least, and where it is greatest."""


def kernel(name: str) -> ir.Kernel:
    return parse_kernel((KERNELS / f"{name}.ir").read_text())


def check_at(native: Native, columns: int, rows: int, *, threads: int) -> None:
    values = np.random.default_rng(columns).normal(size=columns * rows).astype(np.float32)
    check(native, (rows, columns), [values], threads=threads)


@pytest.mark.parametrize(("level", "lanes"), [("machine", WORDS), ("avx2", 8), ("portable", 4)])
@pytest.mark.parametrize("name", ["column_sum_f32", "standardised_columns_f32"])
def test_any_number_of_columns_may_be_left_for_the_last_block(
    level: str, lanes: int, name: str, tmp_path: Path
) -> None:
    schedule = parse_schedule(f"cpu.columns axis=0 lanes={lanes} unroll=16 split=1 ahead=4")
    native = compile_kernel(kernel(name), schedule, tmp_path, at=LEVELS[level])
    for vectors in (*range(1, 17), 19, 33):
        for columns in {vectors * lanes - lanes // 2, vectors * lanes, vectors * lanes + 1}:
            for threads in (1, 3):
                check_at(native, columns, 67, threads=threads)


def test_what_a_cache_does_not_keep_is_asked_for_ahead(tmp_path: Path) -> None:
    schedule = parse_schedule(f"cpu.columns axis=0 lanes={WORDS} unroll=16 split=1 ahead=4")
    native = compile_kernel(kernel("column_sum_f32"), schedule, tmp_path)
    assert native.generated.source.count(PREFETCH) == WORDS  # a full block's, one a cache line
    for rows, columns in ((500, 400), (3, 70_000)):  # far; the last rows have none after them
        check_at(native, columns, rows, threads=1)


def test_threads_share_vectors_and_not_blocks(tmp_path: Path) -> None:
    """Of five blocks one of two threads would have three; fewer blocks than threads share rows."""
    schedule = parse_schedule(f"cpu.columns axis=0 lanes={WORDS} unroll=4 split=1")
    native = compile_kernel(kernel("column_sum_f32"), schedule, tmp_path)
    source = native.generated.source
    assert f"struct call call = {{parameters, dims, ((k1 + {WORDS - 1}) / {WORDS})}};" in source
    blocks = f"((k1 + {4 * WORDS - 1}) / {4 * WORDS})"
    assert f"if (threads > 1 && {blocks} < threads)\n        cooperate" in source
    for vectors in (4, 9, 18, 20):
        for threads in (2, 3, 5):
            check_at(native, vectors * WORDS - 3, 21, threads=threads)


@pytest.mark.parametrize(
    ("name", "columns", "narrow"),
    [
        ("column_sum_f32", 1024, set[tuple[int, int]]()),
        ("column_sum_f32", 60, {(8, 8)}),  # where they are as few
        ("column_mean_bf16", 1024, set[tuple[int, int]]()),
        ("standardised_columns_f32", 1024, {(16, 4)}),  # what is walked again
    ],
)
def test_blocks_are_narrow_where_columns_are_few_or_walked_again(
    name: str, columns: int, narrow: set[tuple[int, int]]
) -> None:
    given = kernel(name)
    dims = dict(zip(given.symbols, (589, columns), strict=False))
    space = cpu.candidates(given, AVX512, dims, limit=MAX_LIMIT)
    found = {(each["lanes"], each["unroll"]) for each in space if each.family == "cpu.columns"}
    assert {(lanes, unroll) for lanes, unroll in found if lanes * unroll < 128} == narrow


def test_without_the_option_nothing_is_asked_for_ahead() -> None:
    schedule = parse_schedule(f"cpu.columns axis=0 lanes={WORDS} unroll=8 split=1")
    assert PREFETCH not in generate(kernel("column_sum_f32"), schedule, MACHINE).source


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_made_of_positions_is_not_asked_for_ahead(level: str, tmp_path: Path) -> None:
    given = parse_kernel(OF_POSITIONS)
    for schedule in candidates(given, LEVELS[level], {"k0": 24, "k1": 8}):
        native = compile_kernel(given, schedule, tmp_path, at=LEVELS[level])
        values = np.random.default_rng(1).normal(size=24).astype(np.float32)
        check(native, (24, 8), [values])
    with pytest.raises(InvalidSchedule):
        generate(given, parse_schedule("cpu.columns axis=1 lanes=8 unroll=4 split=0 ahead=4"), AVX2)


def test_a_step_moves_no_more_elements_one_by_one_than_compilers_take() -> None:
    """What won for a plain sum is tried for similar Kernels: of this one, cc took two minutes."""
    given = parse_kernel(APART)
    won = "cpu.columns axis=1 lanes=16 unroll={} split=1 ahead=4"
    generate(given, parse_schedule(won.format(8)), AVX512)
    with pytest.raises(InvalidSchedule):
        generate(given, parse_schedule(won.format(16)), AVX512)
    for schedule in candidates(given, AVX512, {"k0": 8, "k1": 256}):
        generate(given, schedule, AVX512)


def test_a_step_compares_no_more_totals_wider_than_registers_than_compilers_take() -> None:
    """Of the first, cc took three minutes: an AVX2's registers hold a sixth of what it keeps."""
    columns = "cpu.columns axis=0 lanes={} unroll={} split=1"
    one, two = kernel("column_argmin_bf16"), parse_kernel(EXTREMES.replace("DTYPE", "f32"))
    for given, at, lanes, unroll in (
        (one, AVX2, 16, 16), (two, AVX2, 8, 16), (two, PORTABLE, 4, 16)
    ):  # fmt: skip
        with pytest.raises(InvalidSchedule):
            generate(given, parse_schedule(columns.format(lanes, unroll)), at)
    for given, at, lanes, unroll in (
        (one, AVX512, 16, 16), (two, AVX512, 16, 16), (one, AVX2, 8, 16), (two, AVX2, 8, 8),
        (one, PORTABLE, 4, 16), (two, PORTABLE, 4, 8),
    ):  # fmt: skip
        generate(given, parse_schedule(columns.format(lanes, unroll)), at)


@pytest.mark.parametrize("at", [AVX512, AVX2, PORTABLE], ids=["avx512", "avx2", "portable"])
@pytest.mark.parametrize("dtype", ["f64", "f32", "i64", "i8", "bool"])
def test_the_space_has_as_many_totals_as_compilers_take(dtype: str, at: Target) -> None:
    columns = EXTREMES.replace("DTYPE", dtype)
    for text in (columns, columns.replace("(+ (* k0 r0) p0)", "(+ (* k1 p0) r0)")):
        given = parse_kernel(text)
        space = cpu.candidates(given, at, limit=MAX_LIMIT)
        assert "cpu.columns" in {each.family for each in space}
        for schedule in space:
            generate(given, schedule, at)


@pytest.mark.parametrize(
    ("name", "vectors", "ahead"),
    [
        ("column_sum_f32", 16, 4),  # one total a column fills half of the registers
        ("standardised_columns_f32", 16, 4),  # one at a time
        ("column_cumsum_f32", 8, 4),  # every element is written
        ("column_mean_bf16", 8, 0),
        ("column_argmin_bf16", 8, 0),
    ],
)
def test_the_first_schedule_has_as_wide_blocks_as_registers_allow(
    name: str, vectors: int, ahead: int
) -> None:
    first = candidates(kernel(name), AVX512)[0]
    assert (first.family, first["lanes"]) == ("cpu.columns", 16)
    assert (first["unroll"], first.get("ahead", 0)) == (vectors, ahead)
