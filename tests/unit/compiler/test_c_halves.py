"""Pairs of bf16 vectors that tiles widen where they lie, and lines that go through a buffer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.native import AVX2, LEVELS, check, compile_kernel, encode, target

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import parse_schedule

SCALED_SUM = """
(kernel (symbols k0 k1)
  (pointwise k0 k1)
  (reduction)
  (params (in bf16) (in bf16) (in f32) (out bf16) (out bf16))
  (body
    (load 0 (+ (* k0 p1) p0))
    (cast f32 0)
    (load 1 (+ (* k1 p0) p1))
    (cast f32 2)
    (add f32 1 3)
    (cast bf16 4)
    (cast f32 5)
    (load 2 p0)
    (mul f32 6 7)
    (cast bf16 8)
    (store 3 (+ (* k1 p0) p1) 5)
    (store 4 (+ (* k1 p0) p1) 9)))
"""
"""A sum of a matrix and a transposed one, and that times a number a row."""
AVX512 = target(("avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl", "f16c", "fma"))
SCHEDULE = "cpu.tiles axis=1 lanes=8 unroll=1 across=0 tile=64 rows=64 squares=1 ahead={ahead}"
SPECIAL = (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3.3e30, -3.3e30)


def values(size: int, seed: int) -> np.ndarray:
    """Numbers as bf16, some of which are special."""
    random = np.random.default_rng(seed)
    found = random.normal(size=size).astype(np.float32)
    found[random.random(size) < 0.1] = random.choice(np.array(SPECIAL, np.float32))
    return encode("bf16", found)


@pytest.mark.parametrize("level", [each for each in LEVELS if each != "portable"])
@pytest.mark.parametrize("ahead", [1, 8])
def test_what_is_widened_in_pairs_is_what_is_widened_one_by_one(
    level: str, ahead: int, tmp_path: Path
) -> None:
    """Some sizes are crowded, and asked for: their last strips and columns are no whole block."""
    given = parse_kernel(SCALED_SUM)
    schedule = parse_schedule(SCHEDULE.format(ahead=ahead))
    native = compile_kernel(given, schedule, tmp_path, at=LEVELS[level])
    sizes = (
        (8, 32),
        (5, 40),
        (33, 31),
        (43, 67),
        (101, 130),
        (256, 77),
        (1543, 1024),
        (1024, 1549),
    )
    for rows, columns in sizes:
        x, y = (values(rows * columns, seed) for seed in (0, 1))
        scale = np.random.default_rng(2).normal(size=rows).astype(np.float32)
        with np.errstate(all="ignore"):
            check(native, (rows, columns), [x, y, scale], threads=2)


OTHERS = {
    "of another dtype": ("bf16", "f16"),
    "along lanes and no pair": ("(load 2 p0)", "(load 2 p1)"),
    "used as it is": ("p1) 5)", "p1) 0)"),
    "not rounded": ("(out bf16))\n", "(out f32))\n"),
}


@pytest.mark.parametrize("other", [None, *OTHERS])
def test_pairs_are_widened_where_nothing_else_is_along_lanes(other: str | None) -> None:
    text = SCALED_SUM.replace(*OTHERS[other]) if other else SCALED_SUM
    if other == "not rounded":
        text = text.replace("p1) 9)", "p1) 8)")
    given = parse_kernel(text)
    source = generate(given, parse_schedule(SCHEDULE.format(ahead=4)), AVX2).source
    for name in ("low_bf16(", "high_bf16(", "packed_bf16(", "read_pair_bf16("):
        assert (name in source) is (other is None)
    # Of each row of a strip: two outputs of 32 elements.
    assert source.count(", packed_bf16(v") == (0 if other else 4)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_lines_of_crowded_rows_that_are_asked_for_go_through_a_buffer(dtype: str) -> None:
    given = parse_kernel(SCALED_SUM.replace("bf16", dtype))
    source = generate(given, parse_schedule(SCHEDULE.format(ahead=4)), AVX2).source
    lines = [line.strip() for line in source.splitlines()]
    assert "uint16_t lines0[1024] __attribute__((aligned(64)));" in lines
    whole = "n % 2 == 0 && at - strip + 32 <= end_p0"
    assert f"const int is_copied = is_large && is_crowded && {whole};" in lines
    assert "const int64_t skip = least(is_crowded ? 64 : 128, rounds);" in lines
    assert lines.count("memcpy(lines0 + l * 32, first0, 64);") == 1


@pytest.mark.parametrize(("lanes", "least"), [(8, 1 << 21), (16, 1 << 23)])
def test_wide_registers_ask_for_lines_that_more_than_a_few_megabytes_have(
    lanes: int, least: int
) -> None:
    schedule = parse_schedule(SCHEDULE.format(ahead=4).replace("lanes=8", f"lanes={lanes}"))
    source = generate(parse_kernel(SCALED_SUM), schedule, AVX512).source
    assert f": {least});" in next(line for line in source.splitlines() if "is_large =" in line)
