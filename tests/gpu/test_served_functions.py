"""Functions that CPUs test one by one, served by a real daemon on a real device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.gpu.served import FIRST, ROWS, Tensor, client_of, serving, settled
from tests.unit.compiler.frontend.test_comparisons import BOUNDARIES, SEARCHES
from tests.unit.compiler.frontend.test_comparisons import special as beside_boundaries
from tests.unit.compiler.frontend.test_ops import GRADIENTS
from tests.unit.compiler.frontend.test_pools import POOLS
from tests.unit.compiler.frontend.test_scatters import PUT
from tests.unit.torch.test_special_functions import BINARY, UNARY, special

import nearhint
from nearhint.demo.daemon import DemoDaemon
from nearhint_torch.backend import nearhint as backend
from nearhint_torch.runner import watch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

Function = Callable[..., Any]
MORE_UNARY: dict[str, Function] = {"log10": torch.log10}
CANCELLING = ("logaddexp2",)
"""Of which neither eager's nor ours has a bound in ulp of the result."""
COLUMNS = 12


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoDaemon]:
    with serving(tmp_path_factory.mktemp("functions")) as found:
        yield found


@pytest.fixture(autouse=True)
def client(daemon: DemoDaemon, tmp_path: Path) -> Iterator[None]:
    with client_of(daemon, tmp_path / "cache"):
        yield


def served(function: Function, dynamic: tuple[str, ...], *arguments: Tensor) -> Any:
    """What `function` gives as a kernel at T2, in one launch."""
    kernel: Function = nearhint.kernel(function, dynamic={name: {0: "rows"} for name in dynamic})
    kernel(*arguments)
    settled()
    with watch() as reports:
        found = kernel(*arguments)
    assert [report.tiers for report in reports] == [(0, 0, 1)]
    return found


def kept_from_ops(function: Function, *arguments: Tensor) -> Any:
    """What `function` gives where each step is a Kernel at T2."""
    compiled = torch.compile(function, backend=backend, dynamic=True)
    compiled(*arguments)
    settled()
    with watch() as reports:
        found = compiled(*arguments)
    assert [(t0, t1) for report in reports for t0, t1, _ in [report.tiers]] == [(0, 0)]
    return found


def ulps(found: Tensor, exact: Tensor) -> Tensor:
    """|found - exact| in units in the last place of `exact`; where both are the same, none."""
    rounded, found = exact.to(found.dtype), found.double()
    unit = torch.nextafter(rounded.abs(), torch.full_like(rounded, math.inf)) - rounded.abs()
    error = (found - exact).abs() / unit.double()
    same = (found == rounded.double()) | (found.isnan() & rounded.isnan())
    return torch.where(same, 0.0, error.nan_to_num(math.inf, math.inf))


def assert_as_exact_as_eager(name: str, found: Tensor, expected: Tensor, exact: Tensor) -> None:
    if not expected.is_floating_point():
        assert torch.equal(found, expected), name
        return
    assert torch.equal(found.isnan(), expected.isnan()), name
    ours, eagers = ulps(found, exact), ulps(expected, exact)
    worst = int((ours - eagers).argmax())
    told = (name, float(ours.flatten()[worst]), float(eagers.flatten()[worst]))
    assert float(ours.max()) <= float(eagers.max()) + 1, told


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_special_functions_are_as_exact_as_eager_s(dtype: torch.dtype) -> None:
    functions = UNARY | MORE_UNARY

    def every(x: Tensor) -> list[Tensor]:
        return [function(x) for function in functions.values()]

    x = special(dtype).to(FIRST)
    found = served(every, ("x",), x)
    for name, ours, eager, exact in zip(functions, found, every(x), every(x.double()), strict=True):
        assert_as_exact_as_eager(name, ours, eager, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_special_functions_of_two_are_as_exact_as_eager_s(dtype: torch.dtype) -> None:
    functions = {name: function for name, function in BINARY.items() if name not in CANCELLING}

    def every(x: Tensor, y: Tensor) -> list[Tensor]:
        return [function(x, y) for function in functions.values()]

    x = special(dtype)
    # The sign of a NaN is the one that its maker left, which copysign shows.
    x = x[~x.isnan()].to(FIRST)
    pair = [each.contiguous() for each in torch.meshgrid(x, x, indexing="ij")]
    found = served(every, ("x", "y"), *pair)
    exact = every(*(each.double() for each in pair))
    for name, ours, eager, truth in zip(functions, found, every(*pair), exact, strict=True):
        if name in ("fmax", "fmin"):  # of zeros of both signs, eager gives either
            ours, eager = ours + 0, eager + 0
        assert_as_exact_as_eager(name, ours, eager, truth)


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_pools_are_eager_s(name: str, last: bool) -> None:
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(3, 5, 7, 9, device=FIRST).to(memory_format=layout)
    compiled = torch.compile(POOLS[name], backend=backend, dynamic=True)
    compiled(x)
    settled()
    found, expected = compiled(x), POOLS[name](x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()


@pytest.mark.parametrize("function", PUT, ids=lambda function: function.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_places_that_are_put_are_eager_s(function: Function, dtype: torch.dtype) -> None:
    compiled = torch.compile(function, backend=backend, dynamic=True)
    # No number twice in a row, so that the best are the same ones, and few digits for bf16.
    inputs = [
        (torch.stack([torch.randperm(COLUMNS) for _ in range(rows)]) * 8 - 50).to(FIRST, dtype)
        for rows in ROWS
    ]
    for x in inputs:
        compiled(x)
    settled()
    for x in inputs:
        # Which of two numbers for one place stays is not defined on GPUs; the last one on CPUs.
        torch.testing.assert_close(compiled(x).cpu(), function(x.cpu()))


@pytest.mark.parametrize("dim", [0, 2])
def test_norms_of_weights_are_eager_s(dim: int) -> None:
    """Of which eager takes a kernel of its own; in f32 each is a Kernel of ours."""

    def normed(v: Tensor, g: Tensor) -> Tensor:
        made, _ = torch.ops.aten._weight_norm_interface(v * 2, g, dim)
        return cast(Tensor, made)

    v = torch.randn(37, 24, 5, device=FIRST)
    g = torch.rand([size if at == dim else 1 for at, size in enumerate(v.shape)], device=FIRST)
    torch.testing.assert_close(kept_from_ops(normed, v, g), normed(v, g))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16], ids=str)
def test_what_is_laid_both_ways_is_eager_s(dtype: torch.dtype) -> None:
    """Tiles of one Kernel store a result and its transpose, at sizes that fill them or do not."""

    def both_ways(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        found = (x * scale).to(dtype)
        return found, found.mT.contiguous()

    compiled = torch.compile(both_ways, backend=backend, dynamic=True)
    for rows, columns in ((512, 1024), (509, 1021), (130, 4096)):
        x = torch.randn(rows, columns, device=FIRST, dtype=torch.bfloat16)
        scale = torch.rand(columns, device=FIRST)
        compiled(x, scale)
        settled()
        with watch() as reports:
            found = compiled(x, scale)
        assert [report.tiers for report in reports] == [(0, 0, 1)]
        for ours, eagers in zip(found, both_ways(x, scale), strict=True):
            assert ours.stride() == eagers.stride()
            assert torch.equal(ours.float(), eagers.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_elements_among_a_few_others_are_eager_s(dtype: torch.dtype) -> None:
    def every(x: Tensor, boundaries: Tensor) -> list[Tensor]:
        few = boundaries[: len(BOUNDARIES)]
        return [search(x * 1, few) for search in SEARCHES.values()]

    x = beside_boundaries(dtype).to(FIRST)
    boundaries = torch.tensor(BOUNDARIES, dtype=dtype, device=FIRST)
    found = kept_from_ops(every, x, boundaries)
    for name, ours, expected in zip(SEARCHES, found, every(x, boundaries), strict=True):
        assert torch.equal(ours, expected), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_are_eager_s(dtype: torch.dtype) -> None:
    """But for sums in another order, of terms as large as the largest of them."""

    def every(g: Tensor, x: Tensor) -> list[Tensor]:
        return [gradient(g * 2, x) for gradient in GRADIENTS.values()]

    # as many columns as one of the gradients halves
    pair = [torch.randn(33, 70, device=FIRST).to(dtype) for _ in range(2)]
    for name, ours, expected in zip(
        GRADIENTS, kept_from_ops(every, *pair), every(*pair), strict=True
    ):
        largest = 8 * torch.finfo(dtype).eps * float(expected.abs().max())
        error = float((ours - expected).abs().max())
        assert error <= largest, (name, error, largest)
