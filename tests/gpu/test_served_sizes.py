"""Functions of two sizes, served where nobody tuned: on other layouts, where indices are wide."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest
import torch
from tests.gpu.served import FIRST, Function, Tensor, client_of, serving, settled

import nearhint
from nearhint_torch.runner import watch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(420)]

HINTS = ((8, 64), (1000, 500), (30_000, 16_000))
WIDE, WIDEST = (50_003, 30_011), (71_603, 30_011)
"""More elements than narrow indices are offered for, near enough to the last hint for it to answer;
and more than 2^31."""
DRAWN = 12
ROUNDINGS = 2
"""Of results, by their largest: eager's own running sums round more."""
CHUNK = 1 << 27
"""Elements that are compared at a time."""


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def standardised(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def column_sum(x: Tensor) -> Tensor:
    return x.sum(0)


def running_sum(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def place_of_largest(x: Tensor) -> Tensor:
    return x.argmax(-1)


def transposed(x: Tensor) -> Tensor:
    return (x.t() * 2).contiguous()


def gated(x: Tensor) -> Tensor:
    return torch.nn.functional.silu(x) * (x + 1)


DTYPES = {
    softmax: torch.bfloat16,
    standardised: torch.float16,
    column_sum: torch.bfloat16,
    running_sum: torch.bfloat16,
    place_of_largest: torch.float32,
    transposed: torch.bfloat16,
    gated: torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class Served:
    """A function, and what serves it."""

    function: Function
    kernel: Function

    def holds_at(self, x: Tensor) -> bool:
        """Whether it has the results of f32 there, but for roundings, or eager's own."""
        got, expected = self.kernel(x).flatten(), self.function(x.float()).flatten()
        if not got.is_floating_point():
            return torch.equal(got, expected)
        assert got.dtype == x.dtype
        allowed = ROUNDINGS * torch.finfo(got.dtype).eps * float(expected.abs().max())
        return most_off(got, expected) <= allowed + most_off(self.function(x).flatten(), expected)


def most_off(got: Tensor, expected: Tensor) -> float:
    """How far results are from those expected."""
    chunks = (slice(start, start + CHUNK) for start in range(0, len(expected), CHUNK))
    return max(float((got[each].float() - expected[each]).abs().max()) for each in chunks)


def matrix(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(rows, columns, device=FIRST, dtype=dtype)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Function, Served]]:
    directory = tmp_path_factory.mktemp("sizes")
    room = {"NEARHINT_MEASURE_MEMORY_BYTES": str(2**34)}
    with serving(directory, **room) as daemon, client_of(daemon, directory / "cache"):
        found = {
            function: Served(
                function, nearhint.kernel(function, dynamic={"x": {0: "rows", 1: "columns"}})
            )
            for function in DTYPES
        }
        for sizes in HINTS:
            for function, dtype in DTYPES.items():
                found[function].kernel(matrix(*sizes, dtype))
        settled()
        yield found


@pytest.fixture(params=DTYPES, ids=lambda function: str(function.__name__))
def each(request: pytest.FixtureRequest, served: dict[Function, Served]) -> Served:
    return served[request.param]


def test_sizes_that_are_no_hints_are_served_on_any_rows(each: Served) -> None:
    rng, dtype = Random(5), DTYPES[each.function]
    for _ in range(DRAWN):
        rows, columns = (int(2 ** rng.uniform(0, 13)) for _ in range(2))
        wider = matrix(rows, columns + 3, dtype)
        shifted = matrix(1, rows * columns + 5, dtype).flatten()[5:].view(rows, columns)
        for x in (shifted, wider[:, 1 : columns + 1], wider[:, :columns].contiguous()):
            assert each.holds_at(x), (rows, columns, x.stride(), x.storage_offset())


def test_what_narrow_indices_do_not_reach_is_served(each: Served) -> None:
    with watch() as reports:
        assert each.holds_at(matrix(*WIDE, DTYPES[each.function]))
    (report,) = reports
    # The original ops run at most where they are faster.
    assert not any(each.reason.startswith("beyond_cutoff") for each in report.launches)
    torch.cuda.empty_cache()


def test_what_32_bits_do_not_count_is_right(each: Served) -> None:
    assert math.prod(WIDEST) > 2**31
    assert each.holds_at(matrix(*WIDEST, DTYPES[each.function]))
    torch.cuda.empty_cache()
