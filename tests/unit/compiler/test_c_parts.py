"""The first elements of a vector: what lies behind them is neither read nor written."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.native import LEVELS, WIDTHS, compile_kernel, encode

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule import parse_schedule
from nearhint_rules import expr as ex

LENGTHS = range(1, 41)
GUARD = 7
NO_ACCESS = 0
"""PROT_NONE."""


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "i64", "i32", "i16", "i8", "u8", "bool"])
@pytest.mark.parametrize(("level", "lanes"), [*WIDTHS, ("avx2", 4)])
def test_a_row_of_any_length_is_copied_and_nothing_behind_it_is_touched(
    level: str, lanes: int, dtype: str, tmp_path: Path
) -> None:
    """The row ends where its page does, and nobody may read the next one."""
    length, place = ex.symbol("k0"), ex.symbol("p0")
    body = (ir.Load(0, place), ir.Store(1, place, 0))
    params = (ir.Param("in", dtype), ir.Param("out", dtype))
    given = ir.Kernel(("k0",), (length,), (), params, body)
    schedule = parse_schedule(f"cpu.pointwise axis=0 lanes={lanes} unroll=2 block=1024")
    native = compile_kernel(given, schedule, tmp_path, at=LEVELS[level])
    kind = encode(dtype, np.zeros(1)).dtype
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    whole = np.frombuffer(pages, kind, mmap.PAGESIZE // kind.itemsize)
    behind = ctypes.c_void_p(whole.ctypes.data + mmap.PAGESIZE)
    assert ctypes.CDLL(None).mprotect(behind, mmap.PAGESIZE, NO_ACCESS) == 0
    for count in LENGTHS:
        x = whole[len(whole) - count :]
        x[:] = encode(dtype, np.random.default_rng(count).integers(0, 2, count).astype(float))
        got = np.full(count + GUARD, GUARD, kind)
        native.run((count,), [x, got[:count]], threads=1)
        assert (got[:count] == x).all()
        assert (got[count:] == GUARD).all()
