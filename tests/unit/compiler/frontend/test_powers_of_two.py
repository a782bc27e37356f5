"""Numbers that are scaled by integer powers of two, which torch before 2.13 makes first."""

from __future__ import annotations

import math

import pytest
import torch
from tests.unit.compiler.frontend.drawing import drawn
from tests.unit.compiler.frontend.running import check, launched_nodes

from nearhint_torch import powers

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("whole", [torch.int8, torch.int32, torch.int64])
def test_a_number_is_scaled_by_any_power_of_two(dtype: torch.dtype, whole: torch.dtype) -> None:
    """A large power of a small number is finite, and a small one of a large number is not zero."""
    info = torch.finfo(dtype)
    values = torch.tensor([info.tiny, 1e-3, 3.0, info.max, 0.0, torch.inf]).to(dtype)[:, None]
    exponents = torch.tensor([-120, -30, -3, 0, 5, 40, 127]).to(whole)
    if whole != torch.int8:
        widest = 2 * math.ceil(-math.log2(info.tiny))
        exponents = torch.cat((exponents, torch.tensor([-widest, widest, 10**9]).to(whole)))
    assert bool(launched_nodes(check(torch.ldexp, values, exponents))) == powers.IS_EXACT


def test_an_integer_that_is_scaled_by_a_power_of_two_is_left_to_torch() -> None:
    left, right = drawn(30, 5, dtype=torch.int32), drawn(5, dtype=torch.int32)
    assert not launched_nodes(check(torch.ldexp, left, right))


def test_what_torch_does_is_asked_whatever_its_defaults_are() -> None:
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            assert powers.is_exact() == powers.IS_EXACT
    finally:
        torch.set_default_dtype(default)
