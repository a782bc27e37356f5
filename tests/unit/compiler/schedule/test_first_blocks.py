"""What is first where places are divided or doubled, or points lie a few elements apart."""

from __future__ import annotations

import pytest
from tests.unit.compiler.kernels import TARGET

from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates
from nearhint_compiler.schedule.firsts import firsts
from nearhint_rules.target import CpuDevice, Target

CPU = Target(CpuDevice("AMD EPYC", ("avx2",), "glibc 2.36"), ("cc 12.2.0",))

DOUBLED = """(kernel (symbols k0) (pointwise k0 3 360 640) (reduction)
  (params (in u8) (in u8) (out f32))
  (body (load 0 (+ (* 230400 p0) (* 640 p2) p3)) (cast f32 0)
    (load 1 (+ (* 115200 p0) (* 640 (// p2 2)) (* 2 (// p3 2)))) (cast f32 2) (add f32 1 3)
    (store 2 (+ (* 691200 p0) (* 230400 p1) (* 640 p2) p3) 4)))"""
FREQUENCIES = """(kernel (symbols k0) (pointwise k0 {0}) (reduction)
  (params (in f32) (out f32))
  (body (load 0 (+ (* 3 p0) (// (max 0 (+ p1 -3)) 20))) (sin f32 0)
    (store 1 (+ (* {0} p0) p1) 1)))"""


def test_pixels_that_are_doubled_are_no_reason_for_tiles() -> None:
    first = firsts(parse_kernel(DOUBLED), TARGET, {"k0": 64})[0]
    assert first.family == "cuda.pointwise"


@pytest.mark.parametrize(("columns", "family"), [(60, "cuda.tiled"), (40, "cuda.pointwise")])
def test_columns_that_are_divided_are_placed_once_a_tile(columns: int, family: str) -> None:
    first = firsts(parse_kernel(FREQUENCIES.format(columns)), TARGET, {"k0": 300_000})[0]
    assert first.family == family
    assert family == "cuda.pointwise" or (first["y"], first["x"]) == (64, 64)


def test_bytes_that_go_through_functions_are_few_to_a_thread() -> None:
    rows = parse_kernel("""(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
      (params (in u8) (out u8) (out f32))
      (body (load 0 (+ (* k1 p0) r0)) (cast f32 0) (exp f32 1) (cast u8 2)
        (store 1 (+ (* k1 p0) r0) 3) (reduce sum f32 2) (store 2 p0 5)))""")
    offered = candidates(rows, TARGET, {"k0": 61, "k1": 266_240})
    alone = [each for each in offered if each.family == "cuda.split" and not each.get("words", 0)]
    assert alone
    assert (alone[0]["r"], alone[0]["warps"], alone[0]["splits"]) == (1024, 8, 8)


def test_channels_that_come_last_and_go_through_functions_have_narrow_blocks_first() -> None:
    light = parse_kernel("""(kernel (symbols k0 k1 k2) (pointwise k0 k1) (reduction k2)
      (params (in u8) (out f32) (out f32))
      (body (load 0 (+ (* k1 k2 p0) (* k1 r0) p1)) (cast f32 0) (exp f32 1)
        (store 1 (+ (* k1 k2 p0) (* k1 r0) p1) 2) (reduce sum f32 2)
        (store 2 (+ (* k1 p0) p1) 4)))""")
    assert firsts(light, TARGET, {"k0": 64, "k1": 3, "k2": 50_400})[0]["x"] == 32


PIXELS = """
(kernel (symbols k0)
  (pointwise k0 CHANNELS 300)
  (reduction)
  (params (in u8) (in f32) (out f16))
  (body
    (load 0 (+ (* CHANNELS 300 p0) p1 (* CHANNELS p2)))
    (cast f32 0)
    (load 1 p1)
    (sub f32 1 2)
    (cast f16 3)
    (store 2 (+ (* CHANNELS 300 p0) (* 300 p1) p2) 4)))
"""
"""Images whose channels lie innermost, made ones whose planes do."""


@pytest.mark.parametrize(
    ("channels", "family"), [(3, "cpu.pointwise"), (4, "cpu.pointwise"), (64, "cpu.tiles")]
)
def test_tiles_that_are_mostly_empty_are_not_first(channels: int, family: str) -> None:
    given = parse_kernel(PIXELS.replace("CHANNELS", str(channels)))
    first = firsts(given, CPU, {"k0": 9})[0]
    assert first.family == family
    if family == "cpu.pointwise":
        assert (first["axis"], first["lanes"]) == (2, 8)
