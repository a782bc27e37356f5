"""Kernels of functions that are composed of others, against eager, where they are special."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable

import pytest
import torch
from tests.unit.torch.compiled_session import Compiled
from tests.unit.torch.conftest import Install

from nearhint_torch.backend import nearhint
from nearhint_torch.runner import watch

Tensor = torch.Tensor

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

TOLERANCE = {torch.float64: 4e-15, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "deg2rad": torch.deg2rad,
    "rad2deg": torch.rad2deg,
    "isposinf": torch.isposinf,
    "isneginf": torch.isneginf,
    "sinc": torch.sinc,
    "entr": torch.special.entr,
    "tan": torch.tan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "atan": torch.atan,
    "asin": torch.asin,
    "acos": torch.acos,
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logaddexp2": torch.logaddexp2,
    "xlog1py": torch.special.xlog1py,
    "hypot": torch.hypot,
    "heaviside": torch.heaviside,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
}


def special(dtype: torch.dtype) -> Tensor:
    """Zeros, ends, neighbours of 1, and numbers of every size between, of both signs."""
    info = torch.finfo(dtype)
    most = math.log(info.max)
    points = [0.0, info.tiny, info.eps, 0.3, 0.5, 1 - info.eps, 1.0, 1 + info.eps, 1.5, 3.0, 11.0]
    points += [most - 1, most, most + 0.5, most + 2, info.max / 3, info.max, math.inf, math.nan]
    sizes = torch.logspace(
        math.log10(info.tiny), math.log10(info.max) - 0.1, 40, dtype=torch.float64
    )
    made = torch.cat([torch.tensor(points, dtype=torch.float64), sizes, torch.linspace(0, 4, 41)])
    return torch.cat([made, -made]).to(dtype)


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(tmp_path_factory.mktemp("kernels"))


def assert_eagers(found: Tensor, expected: Tensor, *, cancels: bool = False) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if not expected.is_floating_point():
        assert torch.equal(found, expected)
        return
    limit = TOLERANCE[expected.dtype]
    least = limit if cancels else torch.finfo(expected.dtype).tiny
    torch.testing.assert_close(found, expected, rtol=limit, atol=least, equal_nan=True)
    if not cancels:
        zeros = (expected == 0) & (found == 0)
        assert torch.equal(torch.signbit(found)[zeros], torch.signbit(expected)[zeros])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_argument(
    session: Install, binaries: Compiled, name: str, dtype: torch.dtype
) -> None:
    fake, function, x = session(binaries.snapshot), UNARY[name], special(dtype)
    if name == "tan":  # of large angles, all digits are lost in both
        x = x[x.abs() < 1e4]
    if name in ("sinh", "cosh"):  # of which eager's vectors are infinite where exp is
        most = math.log(torch.finfo(dtype).max)
        x = x[(x.abs() < most - 0.6) | (x.abs() > most + 0.9) | x.isnan()]
    with torch.no_grad(), watch() as reports:
        found = torch.compile(function, backend=nearhint, dynamic=True)(x)
    assert_eagers(found, function(x))
    assert [report.tiers for report in reports] == [(0, 0, 1)]
    assert not fake.fallbacks


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_arguments(
    session: Install, binaries: Compiled, name: str, dtype: torch.dtype
) -> None:
    fake, function, x = session(binaries.snapshot), BINARY[name], special(dtype)
    if name == "copysign":  # whose sign of a NaN is the one that its maker left
        x = x[~x.isnan()]
    every = [each.contiguous() for each in torch.meshgrid(x, x, indexing="ij")]
    with torch.no_grad(), watch() as reports:
        found = torch.compile(function, backend=nearhint, dynamic=True)(*every)
    expected = function(*every)
    if name in ("fmax", "fmin"):  # of zeros of both signs, eager gives either
        found, expected = found + 0, expected + 0
    assert_eagers(found, expected, cancels=name == "logaddexp2")
    assert [report.tiers for report in reports] == [(0, 0, 1)]
    assert not fake.fallbacks
