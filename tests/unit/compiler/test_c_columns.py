"""Generated C with one column a lane: every number of columns in a block, and what is far ahead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.kernels import KERNELS
from tests.unit.compiler.native import MACHINE, PORTABLE, Native, check, compile_kernel, target

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, parse_schedule

AVX2 = target(("avx2", "f16c", "fma"))
AVX512 = target(("avx2", "avx512f", "f16c", "fma"))
LEVELS = {"machine": MACHINE, "avx2": AVX2, "portable": PORTABLE}
PREFETCH = "__builtin_prefetch("


def kernel(name: str) -> ir.Kernel:
    return parse_kernel((KERNELS / f"{name}.ir").read_text())


def check_at(native: Native, columns: int, rows: int, *, threads: int) -> None:
    values = np.random.default_rng(columns).normal(size=columns * rows).astype(np.float32)
    check(native, (rows, columns), [values], threads=threads)


@pytest.mark.parametrize(("level", "lanes"), [("machine", 16), ("avx2", 8), ("portable", 4)])
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
    schedule = parse_schedule("cpu.columns axis=0 lanes=16 unroll=16 split=1 ahead=4")
    native = compile_kernel(kernel("column_sum_f32"), schedule, tmp_path)
    assert native.generated.source.count(PREFETCH) == 16  # a full block's, one a cache line
    for rows, columns in ((500, 400), (3, 70_000)):  # far; the last rows have none after them
        check_at(native, columns, rows, threads=1)


def test_without_the_option_nothing_is_asked_for_ahead() -> None:
    schedule = parse_schedule("cpu.columns axis=0 lanes=16 unroll=8 split=1")
    assert PREFETCH not in generate(kernel("column_sum_f32"), schedule, MACHINE).source


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
