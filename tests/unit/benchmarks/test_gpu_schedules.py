"""Schedules beside each other on a GPU: whose outputs are taken for the same."""

from __future__ import annotations

import pytest
import torch
from tests.benchmarks.gpu_schedules import are_close

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("made", "expected", "is_close"),
    [
        ([1.0, 100.0], [1.5, 100.0], True),
        ([1.0, 100.0], [3.0, 100.0], False),
        ([NAN, 1.0], [NAN, 1.0], True),
        ([NAN, 1.0], [1.0, NAN], False),
        ([INF, 1.0], [INF, 1.0], True),
        ([INF, 1.0], [-INF, 1.0], False),
        ([1.0, 1.0], [INF, 1.0], False),
    ],
)
def test_numbers_are_near_and_what_is_none_is_so_at_the_same_places(
    made: list[float], expected: list[float], is_close: bool
) -> None:
    assert are_close([torch.tensor(made)], [torch.tensor(expected)]) == is_close


def test_places_are_equal() -> None:
    assert are_close([torch.tensor([3, 4])], [torch.tensor([3, 4])])
    assert not are_close([torch.tensor([3, 4])], [torch.tensor([3, 5])])
