"""Each element compared with all of a few others: one Kernel, which counts in any order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.unit.compiler.frontend.drawing import INF, NAN, awkward, drawn
from tests.unit.compiler.frontend.running import assert_lowering_is_right, check
from torch import Tensor

from nearhint_compiler.frontend.comparisons import MOST
from nearhint_rules.plan import Launch

BOUNDARIES = (-INF, -1.0, -0.5, -0.0, 0.0, 0.0, 0.7, 3.0, INF)
KINDS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SEARCHES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bucketize": torch.bucketize,
    "bucketize to the right, i32": lambda x, b: torch.bucketize(x, b, right=True, out_int32=True),
    "searchsorted": lambda x, b: torch.searchsorted(b, x),
    "searchsorted to the right": lambda x, b: torch.searchsorted(b, x, side="right"),
    "is one of": torch.isin,
    "is none of a matrix": lambda x, b: torch.isin(x, b.view(3, 3), invert=True),
}


def special(dtype: torch.dtype) -> Tensor:
    """Boundaries, their neighbours, NaN, and denormals."""
    info = torch.finfo(dtype)
    beside = [0.7 * (1 + info.eps), 0.7 * (1 - info.eps), info.tiny, -info.tiny, info.max, NAN]
    return torch.cat([torch.tensor([*BOUNDARIES, *beside]), awkward(45)]).to(dtype).view(5, 12)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("name", SEARCHES)
def test_an_element_is_compared_with_all_of_a_few(name: str, dtype: torch.dtype) -> None:
    boundaries = torch.tensor(BOUNDARIES, dtype=dtype)
    search = SEARCHES[name]
    lowered = check(
        lambda x, b: search(x * 1, torch.as_strided(b, (9,), (1,))), special(dtype), boundaries
    )
    assert_lowering_is_right(lowered)
    (launch,) = [step for step in lowered.plan.steps if isinstance(step, Launch)]
    assert len(launch.inputs) == 2


def test_rows_are_searched_in_their_own() -> None:
    rows, wanted = drawn(4, 6).sort(-1).values, drawn(4, 3, seed=1)
    lowered = check(lambda x, s: torch.searchsorted(s[:, :6], x * 2, right=True), wanted, rows)
    assert_lowering_is_right(lowered)
    assert len(lowered.kernels) == 1


def test_tokens_are_found_among_a_few() -> None:
    ends = torch.tensor([0, 3, 5])
    lowered = check(lambda ids, x: x.masked_fill(torch.isin(ids, ends)[..., None], 0), *tokens())
    assert_lowering_is_right(lowered)
    assert len(lowered.kernels) == 1


def tokens() -> tuple[Tensor, Tensor]:
    """Ids of tokens, and a vector for each."""
    return drawn(3, 7, dtype=torch.int64).abs(), drawn(3, 7, 5)


@pytest.mark.parametrize("count", [1, MOST, MOST + 1])
def test_many_boundaries_are_left_to_what_searches(count: int) -> None:
    lowered = check(
        lambda x: torch.bucketize(x * 2, torch.linspace(-1, 1, count).clone()), drawn(5, 7)
    )
    assert any("bucketize" in kernel.title for kernel in lowered.kernels) == (count <= MOST)


def test_others_of_whom_a_capture_does_not_know_how_many_are_left_alone() -> None:
    lowered = check(lambda x, y: torch.isin(x * 2, y), drawn(5, 7), drawn(4))
    assert not any("isin" in kernel.title for kernel in lowered.kernels)
