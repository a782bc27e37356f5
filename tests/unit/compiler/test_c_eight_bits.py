"""8-bit floats in generated C against torch's casts, at every width and level.

What rounds beyond 448 is NaN in the IR's f8e4m3fn; torch made it NaN up to 2.11 and makes it 448 as
of 2.13, so there the rule itself is the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.compiler.kernels import KERNELS
from tests.unit.compiler.native import LEVELS, WIDTHS, Array, compile_kernel

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import parse_schedule
from nearhint_rules import expr as ex

TORCH: Mapping[str, torch.dtype] = {
    "f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32,
}  # fmt: skip
STORAGE = {"f16": np.uint16, "bf16": np.uint16, "f32": np.float32}
EIGHTS = ("f8e4m3fn", "f8e5m2")


def cast(source: str, result: str, values: Array, width: tuple[str, int], folder: Path) -> Array:
    """`values`, bits of `source`, cast to bits of `result` by generated C."""
    index, level, lanes = ex.symbol("p0"), LEVELS[width[0]], width[1]
    body: list[ir.BodyNode] = [ir.Load(0, index)]
    if source != "f32":
        body.append(ir.Op("cast", "f32", (0,)))
    if result != "f32":
        body.append(ir.Op("cast", result, (len(body) - 1,)))
    body.append(ir.Store(1, index, len(body) - 1))
    params = (ir.Param("in", source), ir.Param("out", result))
    kernel = ir.Kernel(("k0",), (ex.symbol("k0"),), (), params, tuple(body))
    schedule = parse_schedule(f"cpu.pointwise axis=0 lanes={lanes} unroll=2 block=1024")
    got = np.zeros(values.size, STORAGE.get(result, np.uint8))
    compile_kernel(kernel, schedule, folder, at=level).run((values.size,), [values, got])
    return got


def by_torch(source: str, result: str, values: Array) -> Array:
    given = torch.from_numpy(values).view(TORCH[source])
    unsigned = {1: torch.uint8, 2: torch.uint16, 4: torch.float32}[TORCH[result].itemsize]
    return np.asarray(given.to(torch.float32).to(TORCH[result]).view(unsigned).numpy())


def check(source: str, result: str, values: Array, got: Array) -> None:
    want = by_torch(source, result, values)
    given = torch.from_numpy(values).view(TORCH[source]).float().numpy()
    wide = torch.from_numpy(want).view(TORCH[result]).float().numpy()
    if result == "f8e4m3fn":
        wide = np.where(np.abs(given) > 464, np.nan, wide)
    ours = torch.from_numpy(got).view(TORCH[result]).float().numpy()
    assert np.array_equal(np.isnan(ours), np.isnan(wide))
    number = ~np.isnan(wide)
    assert np.array_equal(got[number], want[number])


@pytest.mark.parametrize("width", WIDTHS, ids=str)
@pytest.mark.parametrize("dtype", EIGHTS)
def test_every_pattern_is_its_number(dtype: str, width: tuple[str, int], tmp_path: Path) -> None:
    values = np.arange(256, dtype=np.uint8)
    for result in ("f32", dtype, *(other for other in EIGHTS if other != dtype)):
        check(dtype, result, values, cast(dtype, result, values, width, tmp_path))


@pytest.mark.parametrize("width", WIDTHS, ids=str)
@pytest.mark.parametrize("source", ["f16", "bf16"])
@pytest.mark.parametrize("dtype", EIGHTS)
def test_every_half_float_rounds_to_the_nearest(
    dtype: str, source: str, width: tuple[str, int], tmp_path: Path
) -> None:
    values = np.arange(1 << 16, dtype=np.uint16)
    check(source, dtype, values, cast(source, dtype, values, width, tmp_path))


@pytest.mark.parametrize("width", WIDTHS, ids=str)
@pytest.mark.parametrize("dtype", EIGHTS)
def test_f32_rounds_to_the_nearest(dtype: str, width: tuple[str, int], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    bits = random.integers(0, 1 << 32, 1 << 16, dtype=np.uint64)
    near = random.integers(0x36000000, 0x48000000, 1 << 17, dtype=np.uint64)
    ties = near & 0xFFF80000
    edges = np.array([464, 464.00003, 480, 448, 61440, 61439.996, 57344, 2**-10, 2**-17, 2**-18])
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-40, 1e38])
    named = np.concatenate([edges, -edges, special]).astype(np.float32)
    drawn = np.concatenate([bits, near, near | 1 << 31, ties, ties | 1 << 31, ties + 1, ties - 1])
    values = np.concatenate([drawn.astype(np.uint32).view(np.float32), named])
    check("f32", dtype, values, cast("f32", dtype, values, width, tmp_path))


@pytest.mark.parametrize("width", WIDTHS, ids=str)
@pytest.mark.parametrize("family", ["rows", "columns", "panels"])
def test_blocks_of_a_transposed_tensor_are_scaled(
    family: str, width: tuple[str, int], tmp_path: Path
) -> None:
    kernel = parse_kernel((KERNELS / "transposed_block_scale_f8e4m3fn.ir").read_text())
    options = {
        "rows": "axis=0 lanes={} unroll=2 short=4 stash=0 split=1",
        "columns": "axis=0 lanes={} unroll=2 split=0",
        "panels": "axis=0 lanes={} unroll=2 short=4 stash=0 across=0 rows=16 length=32 split=0",
    }
    schedule = parse_schedule(f"cpu.{family} {options[family].format(width[1])}")
    native = compile_kernel(kernel, schedule, tmp_path, at=LEVELS[width[0]])
    for seed, (rows, blocks) in enumerate([(1, 1), (17, 3), (5, 2), (67, 5)]):
        x = np.random.default_rng(seed).normal(0, 10, (blocks * 32, rows)).astype(np.float32)
        quantised = np.zeros((rows, blocks, 32), np.uint8)
        scales = np.zeros((rows, blocks), np.float32)
        native.run((rows, blocks), [x, quantised, scales], threads=3)
        turned = torch.from_numpy(x).T.reshape(rows, blocks, 32)
        want = turned.abs().amax(-1) / 448
        assert np.allclose(scales, want.numpy(), rtol=1e-6)
        exact = (turned / torch.from_numpy(scales)[..., None]).clamp(-448, 448)
        got = torch.from_numpy(quantised).view(torch.float8_e4m3fn).float()
        step = exact.abs().clamp(min=2.0**-6) * 2.0**-4
        assert ((got - exact).abs() <= step * 1.001).all()
