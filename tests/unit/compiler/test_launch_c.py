"""A launch's grid and workspace in C are what they are in Python, and cover the space."""

from __future__ import annotations

import ctypes
import random
import subprocess
from math import prod
from pathlib import Path

import pytest
from tests.unit.compiler.kernels import KERNELS, TARGET

from nearhint_compiler.codegen import generate
from nearhint_compiler.codegen.launch_c import launch_source
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CudaLaunch

REST = "warps=4 index=64 aligned=0 divisible=0"


@pytest.mark.parametrize(
    ("name", "schedule", "blocks"),
    [
        ("add_f32", f"cuda.pointwise x=1024 {REST}", (1024,)),
        ("transpose_add_f32", f"cuda.tiled z=1 y=32 x=64 cuts=1 {REST}", (32, 64)),
        ("transpose_batched_bf16", f"cuda.tiled z=2 y=16 x=32 cuts=3 {REST}", (2, 16, 32)),
        ("softmax_f32", f"cuda.looped x=2 r=512 {REST}", (2,)),
        ("softmax_f32", f"cuda.split x=4 r=512 splits=7 {REST}", (4,)),
    ],
)
def test_c_agrees_with_python_and_the_blocks_cover_every_row(
    name: str, schedule: str, blocks: tuple[int, ...], tmp_path: Path
) -> None:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    chosen = parse_schedule(schedule)
    launch = generate(kernel, chosen, TARGET).launch
    assert isinstance(launch, CudaLaunch)
    (tmp_path / "launch.c").write_text(launch_source(launch))
    library = tmp_path / "launch.so"
    subprocess.run(
        ["cc", "-std=c11", "-Wall", "-Werror", "-Wno-unused-function", "-shared", "-fPIC", "-o",
         library, tmp_path / "launch.c"],
        check=True,
    )  # fmt: skip
    compiled = ctypes.CDLL(str(library))
    compiled.nearhint_workspace_bytes.restype = ctypes.c_int64
    rng = random.Random(schedule)
    for _ in range(200):
        dims = [
            rng.randrange(1, 1 << rng.randrange(1, 40 // len(kernel.symbols)))
            for _ in kernel.symbols
        ]
        sizes = dict(zip(kernel.symbols, dims, strict=True))
        passed, grid = (ctypes.c_int64 * len(dims))(*dims), (ctypes.c_int64 * 3)()
        compiled.nearhint_grid(passed, grid)
        assert list(grid) == [ex.evaluate(axis, sizes) for axis in launch.grid]
        assert compiled.nearhint_workspace_bytes(passed) == ex.evaluate(
            launch.workspace_bytes, sizes
        )
        extents = [ex.evaluate(extent, sizes) for extent in kernel.pointwise]
        covered = extents if len(blocks) == len(extents) else [prod(extents)]
        programs = prod(-(-size // block) for size, block in zip(covered, blocks, strict=True))
        assert grid[0] == programs * chosen.get("splits", 1)
        assert list(grid[1:]) == [1, 1]
