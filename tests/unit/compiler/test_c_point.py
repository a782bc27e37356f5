"""A Kernel of a single point in C: it has no loops, and is offered and computed like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.native import AVX2, MACHINE, PORTABLE, check, compile_kernel

from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates

LEVELS = {"machine": MACHINE, "avx2": AVX2, "portable": PORTABLE}
POINT = """
(kernel (symbols)
  (pointwise)
  (reduction)
  (params (in i64) (out f32))
  (body
    (load 0 0)
    (const i64 0x3)
    (lt bool 0 1)
    (const f32 0x3f800000)
    (const f32 0xff800000)
    (where f32 2 3 4)
    (store 1 0 5)))
"""
"""The mask of a batch of one sequence of one token: there is nothing to loop over."""


@pytest.mark.parametrize("level", LEVELS)
def test_a_single_point_has_candidates(level: str, tmp_path: Path) -> None:
    given = parse_kernel(POINT)
    offered = candidates(given, LEVELS[level], {})
    assert candidates(given, LEVELS[level]) == offered
    for schedule in offered:
        native = compile_kernel(given, schedule, tmp_path, at=LEVELS[level])
        for value in (2, 3):
            check(native, (), [np.array([value])], threads=3)
