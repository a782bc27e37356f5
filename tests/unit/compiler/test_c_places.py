"""Places that data names, in generated C: those of a table that may have none."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.kernels import kernel_of
from tests.unit.compiler.native import LEVELS, check, compile_kernel

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, parse_schedule
from nearhint_rules.artifact import CHECKED_ENTRY


def looked_up(size: str) -> ir.Kernel:
    """Rows of a table of `size` rows."""
    return parse_kernel(
        "(kernel (symbols k0 k1 k2) (pointwise k0 k2) (reduction)"
        " (params (in i64) (in f32) (out f32))"
        f" (body (load 0 p0) (gather 1 p1 k2 {size} 0) (store 2 (+ (* k2 p0) p1) 1)))"
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", ["(+ k1 -1)", "(+ k1 (* -1 k2))"])
def test_of_a_table_without_rows_nothing_is_read(size: str, level: str, tmp_path: Path) -> None:
    kernel, at = looked_up(size), LEVELS[level]
    native = compile_kernel(kernel, candidates(kernel, at)[0], tmp_path, at=at)
    entry = native.library[CHECKED_ENTRY]
    entry.restype = ctypes.c_int32
    places, found = np.zeros(3, np.int64), np.full(3, 7.0, np.float32)
    pointers = (ctypes.c_void_p * 3)(places.ctypes.data, None, found.ctypes.data)
    for threads in (1, 2):
        assert entry(pointers, (ctypes.c_int64 * 3)(3, 1, 1), threads) == 1
    assert found.tolist() == [7.0] * 3
    table = np.arange(4, dtype=np.float32)
    pointers[1] = table.ctypes.data
    assert entry(pointers, (ctypes.c_int64 * 3)(3, 4, 1), 1) == 0
    assert found.tolist() == [0.0] * 3


def test_a_table_that_has_rows_at_all_sizes_is_not_asked_for_any(tmp_path: Path) -> None:
    for size, is_asked in (("k1", False), ("7", False), ("(* k1 k2)", False), ("(+ k1 -1)", True)):
        kernel, at = looked_up(size), LEVELS["portable"]
        native = compile_kernel(kernel, candidates(kernel, at)[0], tmp_path, at=at)
        assert ("    return 1;\n" in native.generated.source) is is_asked


def test_a_row_is_found_once_for_all_vectors_that_are_read_of_it() -> None:
    schedule = parse_schedule("cpu.pointwise axis=1 lanes=8 unroll=4 block=1024")
    source = generate(looked_up("k1"), schedule, LEVELS["portable"]).source
    loops = source[source.index("static void run(") : source.index("struct call")]
    assert loops.count("load_f32(in1 + p1") == 5  # of a step, and of a vector behind the last
    assert loops.count("named(") == loops.count("for (; p1 ") == 3


def test_a_place_that_is_counted_from_the_end_is_a_number(tmp_path: Path) -> None:
    """Not a vector of as many as there are lanes, of which each is the same."""
    kernel = parse_kernel(
        "(kernel (symbols k0 k1 k2) (pointwise k0 k2) (reduction)"
        " (params (in i64) (in f32) (out f32))"
        " (body (load 0 p0) (const i64 0x0) (lt bool 0 1) (iota k1) (add i64 0 3) (where i64 2 4 0)"
        " (gather 1 p1 k2 k1 5) (store 2 (+ (* k2 p0) p1) 6)))"
    )
    schedule = parse_schedule("cpu.pointwise axis=1 lanes=8 unroll=2 block=1024")
    native = compile_kernel(kernel, schedule, tmp_path, at=LEVELS["machine"])
    calls = [line for line in native.generated.source.splitlines() if " row6 = " in line]
    assert calls
    assert not any("[0], k1" in line for line in calls)
    check(native, (4, 5, 37), [np.array([0, -1, 4, -5]), np.arange(185, dtype=np.float32)])


def test_several_elements_of_a_row_are_those_at_their_places(tmp_path: Path) -> None:
    kernel, at, random = (
        kernel_of("logs_of_choices_f32"),
        LEVELS["machine"],
        np.random.default_rng(0),
    )
    for schedule in candidates(kernel, at, {"k0": 64, "k1": 1024})[:2]:
        native = compile_kernel(kernel, schedule, tmp_path, at=at)
        for rows, columns in ((1, 1), (5, 41), (3, 300)):
            places = random.integers(0, columns, 3 * rows)
            x = random.normal(0, 3, rows * columns).astype(np.float32)
            check(native, (rows, columns), [places, x], threads=2)
