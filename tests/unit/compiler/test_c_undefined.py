"""Generated C does nothing that C leaves undefined, whatever numbers it is given.

The compiler's own checks (gcc manual, "Program Instrumentation Options") are built into it: shifts
and indices that are too large, quotients by zero, casts of floats that no integer holds.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from tests.unit.compiler.native import LEVELS, STORAGE, Array, compile_kernel, encode

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.choice import MAX, choose
from nearhint_daemon.workers.cases import sizes_at
from nearhint_rules.guard import size_facts_hold

KERNELS = Path(__file__).parents[2] / "kernels"
CHECKS = ("-O0", "-fsanitize=undefined,float-cast-overflow", "-fno-sanitize=alignment")
"""Vectors are read at any address, by types that say so."""
NAMES = (
    "clamp_int", "column_cumprod_i64", "float_division", "int_division", "looked_up_rms_norm_bf16",
    "narrow_mix", "normalised_cumsum_bf16", "padded_bf16", "paged_rows_f32",
    "quotients_by_size_i64", "row_argmax_f32", "row_sum_i64", "to_u8",
    "transposed_block_scale_f8e4m3fn",
)  # fmt: skip
FOUND = "runtime error"
SIZES = (1, 2, 3, 5, 8, 17, 33)


def can_check(folder: Path, capfd: pytest.CaptureFixture[str]) -> bool:
    """Whether the compiler here has these checks, and what they find comes out at stderr."""
    source, shared = folder / "checked.c", folder / "checked.so"
    source.write_text("int shifted(int by) { return 1 << by; }\n")
    command = ["cc", "-shared", "-fPIC", *CHECKS, str(source), "-o", str(shared)]
    if subprocess.run(command, check=False, capture_output=True, timeout=100).returncode:
        return False
    ctypes.CDLL(str(shared)).shifted(77)
    return FOUND in capfd.readouterr().err


def extremes(dtype: str, count: int, random: np.random.Generator) -> Array:
    """Numbers of all magnitudes, with those among them that are no numbers."""
    if dtype == "bool":
        return random.integers(0, 2, count).astype(np.uint8)
    if np.issubdtype(STORAGE[dtype], np.integer) and dtype[0] in "iu":
        limits = np.iinfo(STORAGE[dtype])
        return random.integers(limits.min, limits.max, count, STORAGE[dtype], endpoint=True)
    values = random.normal(size=count) * 10.0 ** random.uniform(-40, 40, count)
    special = random.choice([np.inf, -np.inf, np.nan, -0.0], count)
    with np.errstate(all="ignore"):
        return encode(dtype, np.where(random.random(count) < 0.2, special, values))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_undefined_is_done_to_any_numbers(
    name: str, level: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if not can_check(tmp_path, capfd):
        pytest.skip("not run: the C compiler has no checks of undefined behaviour")
    kernel, at = parse_kernel((KERNELS / f"{name}.ir").read_text()), LEVELS[level]
    random = np.random.default_rng(crc32(name.encode()))
    dims = {symbol: int(random.choice(SIZES)) for symbol in kernel.symbols}
    schedules = choose(kernel, at, dims, effort=MAX).schedules
    schedule = next(
        each
        for each in (schedules[int(place)] for place in random.permutation(len(schedules)))
        if size_facts_hold(generate(kernel, each, at).guard, dims)
    )
    native = compile_kernel(kernel, schedule, tmp_path, at=at, options=CHECKS)
    elements = sizes_at(kernel, dims).elements
    arrays = [
        np.zeros(count, STORAGE[param.dtype])
        if param.role == "out"
        else extremes(param.dtype, count, random)
        for param, count in zip(kernel.params, elements, strict=True)
    ]
    native.run(tuple(dims.values()), arrays, threads=2)
    assert FOUND not in capfd.readouterr().err
