"""Schedules on a CPU: the loop that lanes run along, and how many there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.native import MACHINE, check, compile_kernel, target

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates

AVX512 = target(("avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl", "f16c", "fma"))
_WRAPPED = "(const i64 0x0) (lt bool 1 2) (const i64 0x81) (add i64 1 4) (where i64 3 5 1)"


@pytest.mark.parametrize(("computed", "place", "lanes"), [("", 1, 16), (_WRAPPED, 6, 8)])
def test_places_that_are_computed_have_vectors_of_their_own_width(
    computed: str, place: int, lanes: int
) -> None:
    """As negative ones are, that count from the end: of two registers compilers take each number
    apart. What is only read is read one by one in any case."""
    kernel = parse_kernel(f"""
(kernel (symbols k0 k1)
  (pointwise k0)
  (reduction k1)
  (params (in f32) (in i64) (in f32) (out f32))
  (body
    (load 0 (+ (* k1 p0) r0))
    (load 1 r0)
    {computed}
    (gather 2 0 1 129 {place})
    (add f32 0 {place + 1})
    (reduce max f32 {place + 2})
    (store 3 p0 {place + 3})))
""")
    assert candidates(kernel, AVX512)[0]["lanes"] == lanes


@pytest.mark.parametrize(
    ("columns", "op", "first"),
    [
        ("3", "sigmoid", "cpu.rows"), ("5", "exp", "cpu.rows"), ("8", "sigmoid", "cpu.columns"),
        ("3", "neg", "cpu.columns"), ("k1", "sigmoid", "cpu.columns"),
    ],
)  # fmt: skip
def test_functions_of_few_columns_are_computed_along_rows_first(
    columns: str, op: str, first: str, tmp_path: Path
) -> None:
    """Vectors of three colours would be mostly empty. Not so where a size says how many: others are
    served, too."""
    kernel = parse_kernel(f"""
(kernel (symbols k0 k1)
  (pointwise k0 {columns})
  (reduction 40)
  (params (in f32) (in f32) (out f32))
  (body
    (load 0 (+ (* 40 {columns} p0) p1 (* {columns} r0)))
    ({op} f32 0)
    (load 1 k1)
    (mul f32 1 2)
    (reduce sum f32 3)
    (store 2 (+ (* {columns} p0) p1) 4)))
""")
    for dims in (None, {"k0": 4096, "k1": 3}):
        assert candidates(kernel, AVX512, dims)[0].family == first
    count = int(columns) if columns.isdigit() else 3
    random = np.random.default_rng(0)
    inputs = [random.normal(size=size).astype(np.float32) for size in (37 * 40 * count, count + 1)]
    schedule = candidates(kernel, MACHINE)[0]
    check(compile_kernel(kernel, schedule, tmp_path), (37, count), inputs)


@pytest.mark.parametrize(
    ("columns", "word", "is_first"), [("64", 8, True), ("64", 4, False), ("k1", 8, False)]
)
def test_numbers_in_words_come_first_where_words_are_vectors(
    columns: str, word: int, is_first: bool, tmp_path: Path
) -> None:
    """A loop of eight is cut off, and its vectors are full: not of sixteen lanes. Not so where a
    size says how many words there are: the cut has a Guard."""
    kernel = parse_kernel(f"""
(kernel (symbols k0 k1)
  (pointwise k0 {columns})
  (reduction)
  (params (in i32) (in f32) (out f32))
  (body
    (load 0 (// p1 {word}))
    (iota (* 4 (% p1 {word})))
    (cast i32 1)
    (shr i32 0 2)
    (cast f32 3)
    (load 1 (+ (* {columns} p0) p1))
    (mul f32 4 5)
    (load 1 k1)
    (mul f32 6 7)
    (store 2 (+ (* {columns} p0) p1) 8)))
""")
    for dims in (None, {"k0": 4096, "k1": 64}):
        first = candidates(kernel, AVX512, dims)[0]
        assert first.get("spaced", 0) == is_first
        assert not is_first or (first["axis"], first["lanes"]) == (2, 8)
    assert not is_first or not generate(kernel, first, AVX512).guard.facts
    words = np.arange(64 // word, dtype=np.int32) * 123_456_789
    values = np.random.default_rng(0).normal(size=37 * 64 + 1).astype(np.float32)
    schedule = candidates(kernel, MACHINE)[0]
    check(compile_kernel(kernel, schedule, tmp_path), (37, 64), [words, values])


def test_vectors_of_a_short_row_have_no_lanes_that_are_never_used() -> None:
    """Where a size says how short rows are, others are served, too."""
    rows = """
(kernel (symbols k0 k1)
  (pointwise k0 {columns})
  (reduction)
  (params (in f32) (in f32) (out f32))
  (body
    (load 0 p0)
    (load 1 (+ k1 p1))
    (mul f32 0 1)
    (exp f32 2)
    (store 2 (+ (* {columns} p0) p1) 3)))
"""
    along = {
        columns: {
            each["lanes"]
            for each in candidates(parse_kernel(rows.format(columns=columns)), AVX512, {"k1": 8})
            if each["axis"] == 1
        }
        for columns in ("8", "9", "k1")
    }
    assert along == {"8": {8}, "9": {8, 16}, "k1": {8, 16}}
