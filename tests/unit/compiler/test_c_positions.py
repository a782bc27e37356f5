"""Generated C for what is computed of positions: no vectors of 64 bits where 32 are enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.native import LEVELS, MACHINE, WIDTHS, WORDS, check, compile_kernel

from nearhint_compiler.analysis.positions import light_along
from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, parse_schedule

SLOPED = """
(kernel (symbols k0 k1)
  (pointwise k0)
  (reduction k1)
  (params (in f32) (out f32))
  (body
    (iota FIRST)
    (iota SECOND)
    (sub i64 0 1)
    (const i64 0x3)
    (COMPARED bool 2 3)
    (load 0 (+ (* k1 p0) r0))
    (cast f32 2)
    (mul f32 5 6)
    (where f32 4 7 5)
    (reduce max f32 8)
    (store 1 p0 9)))
"""
"""Elements by how far their places in a row are from the row's number."""
FAR = """
(kernel (symbols k0 k1)
  (pointwise k0)
  (reduction)
  (params (out f32))
  (body (iota (+ (* 1073741824 k1) (* -1 p0))) (cast f32 0) (store 0 p0 1)))
"""
"""Positions around which 32 bits end, if k1 is two."""


def sloped(order: tuple[str, str], compared: str) -> str:
    text = SLOPED.replace("FIRST", order[0]).replace("SECOND", order[1])
    return text.replace("COMPARED", compared)


@pytest.mark.parametrize("compared", ["ge", "gt", "le", "lt", "eq", "ne"])
@pytest.mark.parametrize("order", [("p0", "r0"), ("r0", "p0")])
def test_differences_of_positions_are_compared_and_cast_right(
    order: tuple[str, str], compared: str, tmp_path: Path
) -> None:
    kernel = parse_kernel(sloped(order, compared))
    for each in candidates(kernel, MACHINE, {"k0": 40, "k1": 300})[:2]:
        native = compile_kernel(kernel, each, tmp_path)
        for rows, columns in ((1, 1), (9, 33), (40, 7), (3, 200)):
            x = np.random.default_rng(0).uniform(-9, 9, rows * columns).astype(np.float32)
            check(native, (rows, columns), [x])


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
def test_positions_are_floats_beyond_32_bits_too(level: str, lanes: int, tmp_path: Path) -> None:
    schedule = parse_schedule(f"cpu.pointwise axis=0 lanes={lanes} unroll=2 block=64")
    native = compile_kernel(parse_kernel(FAR), schedule, tmp_path, at=LEVELS[level])
    for rows, places in ((1, 1), (70, 2), (101, 8)):
        check(native, (rows, places), [])


def test_differences_of_positions_take_no_vectors_of_64_bits() -> None:
    kernel = parse_kernel(sloped(("p0", "r0"), "ge"))
    first = candidates(kernel, MACHINE, {"k0": 40, "k1": 300})[0]
    assert first["lanes"] == WORDS
    run = generate(kernel, first, MACHINE).source.partition("static void run(")[2]
    assert "position_f32(" in run
    assert "lanes_below_bool(" in run
    assert "__builtin_convertvector" not in run


def test_what_is_stored_or_multiplied_in_64_bits_is_so() -> None:
    wide = parse_kernel("""(kernel (symbols k0 k1) (pointwise k0 k1) (reduction)
        (params (out i64) (out f32)) (body (iota p0) (iota p1) (sub i64 0 1) (mul i64 2 2)
        (store 0 (+ (* k1 p0) p1) 3) (cast f32 2) (store 1 (+ (* k1 p0) p1) 5)))""")
    assert light_along(wide, "p1") == frozenset()
    light = parse_kernel(sloped(("p0", "r0"), "ge"))
    assert light_along(light, "r0") == {1, 2}
    assert light_along(light, "p0") == {0, 2}
