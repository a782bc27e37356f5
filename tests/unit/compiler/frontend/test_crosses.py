"""Products of vectors that lie along a dim: part of the Kernel around them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.unit.compiler.frontend.drawing import drawn
from tests.unit.compiler.frontend.running import check, launched_nodes
from torch import Tensor
from torch.nn import functional

CROSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: torch.linalg.cross(x[..., :3] * 2, x[..., 3:6]),
    "columns": lambda x: torch.linalg.cross(x[:, :3], x[:, 3:6], dim=1) + 1,
    "with one": lambda x: torch.linalg.cross(x[..., :3], x[:1, :, 6:9]),
    "normalised": lambda x: functional.normalize(torch.linalg.cross(x[..., :3], x[..., 3:6])),
}


@pytest.mark.parametrize("name", CROSSES)
@pytest.mark.parametrize("kind", ["plain", "transposed"])
def test_cross_products_are_part_of_one_kernel(name: str, kind: str) -> None:
    x = drawn(5, 7, 12) if kind == "plain" else drawn(7, 5, 12).transpose(0, 1)
    lowered = check(CROSSES[name], x)
    assert len(launched_nodes(lowered)) == 1


def test_a_cross_product_of_integers_stays_atens() -> None:
    lowered = check(lambda x: torch.linalg.cross(x, x.flip(-1)), drawn(5, 3, dtype=torch.int32))
    assert not launched_nodes(lowered)
