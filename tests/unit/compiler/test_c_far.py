"""Generated C, element by element, of more than caches keep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.kernels import KERNELS
from tests.unit.compiler.native import MACHINE, check, compile_kernel, target

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, parse_schedule

GELU = parse_kernel((KERNELS / "gelu_erf_f32.ir").read_text())
AVX512 = target(("avx2", "avx512f", "f16c", "fma"))
FAR = "cpu.pointwise axis=0 lanes=16 unroll=4 block=1024 far=2"


@pytest.mark.parametrize("elements", [1, 37, 1000, (1 << 20) + 1])
def test_as_many_elements_are_right_near_and_far(elements: int, tmp_path: Path) -> None:
    native = compile_kernel(GELU, parse_schedule(FAR), tmp_path)
    values = np.random.default_rng(elements).normal(size=elements).astype(np.float32)
    check(native, (elements,), [values])


def test_steps_are_shorter_where_memory_has_what_is_moved() -> None:
    source = generate(GELU, parse_schedule(FAR), MACHINE).source
    assert "const int is_far = k0 > 1048576;" in source
    near, far = source.index("p0 += 64"), source.index("p0 += 32")
    assert source.index("if (is_far)") < far < near
    assert "is_far" not in generate(GELU, parse_schedule(FAR[: -len(" far=2")]), MACHINE).source


@pytest.mark.parametrize(("name", "far"), [("gelu_erf_f32", 2), ("add_f32", 0)])
def test_much_arithmetic_alone_has_shorter_steps(name: str, far: int) -> None:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    assert candidates(kernel, AVX512)[0].get("far", 0) == far
