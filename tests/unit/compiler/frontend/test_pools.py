"""Pools of few elements are loops over their result, as eager's in values and layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.compiler.frontend.building import S0, Builder, tensor
from tests.unit.compiler.frontend.drawing import awkward, drawn
from tests.unit.compiler.frontend.running import (
    assert_lowering_is_right,
    check,
    launched_nodes,
)
from torch import Tensor
from torch.nn import functional

from nearhint_compiler.pipeline import lower

Function = Callable[..., Any]
F16, BF16, F64 = torch.float16, torch.bfloat16, torch.float64

POOLS: dict[str, Function] = {
    "average of two": lambda x: functional.avg_pool2d(x + 1, 2) * 2,
    "average of three": lambda x: functional.avg_pool2d(x + 1, 3, 2, 1) * 2,
    "average of what is inside": lambda x: (
        functional.avg_pool2d(x + 1, 3, 2, 1, count_include_pad=False) * 2
    ),
    "average of three beside one another": lambda x: functional.avg_pool2d(x, 3, 1, 1) - x,
    "average over a number": lambda x: functional.avg_pool2d(x, (1, 2), divisor_override=3) + 1,
    "average in a border": lambda x: functional.avg_pool2d(x + 1, 2, 2, 1) * 2,
    "largest of two": lambda x: functional.max_pool2d(x.relu(), 2) * 2,
    "largest of three": lambda x: functional.max_pool2d(x.relu(), 3, 2, 1) * 2,
    "largest of each second": lambda x: functional.max_pool2d(x + 1, 2, 1, 0, 2) * 2,
    "largest of some rows": lambda x: functional.max_pool2d(x[:, :, 1:], (2, 1), (1, 2)) + 1,
    "of rows": lambda x: functional.max_pool1d(functional.avg_pool1d(x[0], 2) + 1, 3, 1, 1),
    "largest in the border": lambda x: functional.max_pool2d(x.relu(), 2, 2, 1) * 2,
    "of volumes": lambda x: functional.max_pool3d(x[None] + 1, (1, 2, 2)) * 2,
    "average of parts": lambda x: functional.adaptive_avg_pool2d(x[:, :, :4, :6] + 1, (2, 6)) * 2,
    "largest of all": lambda x: functional.adaptive_max_pool2d(x.relu(), 1) * x,
    "largest of each row": lambda x: functional.adaptive_max_pool1d(x[0] + 1, 1) * x,
    "of an image without a batch": lambda x: functional.max_pool2d(x[0] + 1, 2) * 2,
    "as wide with the last window as without": lambda x: (
        functional.avg_pool2d(x[:, :, :4, :6], 2, ceil_mode=True) + 1
    ),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("kind", ["plain", "even", "awkward", "channels last", "half", "bfloat"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_pools_are_part_of_kernels(name: str, kind: str, dynamic: bool) -> None:
    x = {
        "plain": drawn(3, 5, 7, 9),
        "even": drawn(3, 5, 4, 8, dtype=F64),
        "awkward": awkward(3, 5, 7, 9),
        "channels last": drawn(3, 5, 7, 9).to(memory_format=torch.channels_last),
        "half": drawn(3, 5, 7, 9, dtype=F16),
        "bfloat": drawn(3, 5, 7, 9, dtype=BF16),
    }[kind]
    lowered = check(POOLS[name], x, dynamic=dynamic)
    launched = [node for nodes in launched_nodes(lowered) for node in nodes]
    assert len(launched) > 1
    assert not [step for step in lowered.plan.steps if type(step).__name__ == "RunNodes"]
    if kind in ("plain", "even"):
        assert_lowering_is_right(lowered)


LEFT: dict[str, Function] = {
    "places": lambda x: functional.max_pool2d(x, 2, return_indices=True),
    "windows of many": lambda x: functional.avg_pool2d(x, 4),
    "windows with gaps in the border": lambda x: functional.max_pool2d(x, 2, 1, 1, 2),
    "average of parts that overlap": lambda x: functional.adaptive_avg_pool2d(x, (2, 3)),
    "largest of quarters": lambda x: functional.adaptive_max_pool2d(x, 2),
    "a last window that is cut": lambda x: functional.avg_pool2d(x, 2, ceil_mode=True),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_pools_stay_nodes(name: str) -> None:
    lowered = check(LEFT[name], drawn(3, 5, 7, 9), dynamic=False)
    assert not launched_nodes(lowered)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_norm_by_neighbouring_channels_is_one_kernel(dtype: torch.dtype) -> None:
    def normed(x: Tensor) -> Tensor:
        return functional.local_response_norm(x + 1, 2)

    assert len(launched_nodes(check(normed, drawn(3, 5, 7, 9, dtype=dtype)))) == 1


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_an_average_that_eager_refuses_is_left_to_it(dtype: str) -> None:
    build = Builder()
    x = build.input(S0, 3, 8, 8, 8, dtype=dtype)
    out = tensor(S0, 3, 4, 4, 4, dtype=dtype)
    program = build.program(build.call("aten.avg_pool3d.default", x, [2], out=out))
    assert not lower(program, target_kind="cpu").kernels


def test_a_pool_of_integers_is_the_largest_of_them() -> None:
    def pooled(x: Tensor) -> Tensor:
        return functional.max_pool2d(x - 1, 3, 1, 1) * 2

    assert launched_nodes(check(pooled, drawn(3, 5, 7, 9, dtype=torch.int32)))


@pytest.mark.parametrize("size", [(2, 1, 2, 2), (1, 1, 3, 2), (1, 4, 2, 3)])
def test_windows_longer_than_the_image_reach_over_its_border_at_both_ends(
    size: tuple[int, ...],
) -> None:
    for name in ("average of three", "average of what is inside", "largest of three"):
        for dynamic in (False, True):
            check(POOLS[name], drawn(*size), dynamic=dynamic)
