"""What a call tells of its launches: to whoever watches, and to the daemon."""

from __future__ import annotations

import pytest
import torch
from tests.unit.torch.conftest import Install
from tests.unit.torch.fake_session import (
    FakeKernel,
    FakeSnapshot,
    chosen,
    one_launch,
    plan_of,
    twice_plus_one,
)

from nearhint_torch.backend import nearhint
from nearhint_torch.runner import watch


@pytest.mark.parametrize(
    ("tier", "counted", "reported"),
    [(1, (0, 1, 0, 0), (0, 1, 0)), (2, (0, 0, 1, 0), (0, 0, 1)), (3, (0, 0, 0, 1), (0, 0, 1))],
)
def test_a_launch_is_counted_at_the_tier_that_serves(
    session: Install, tier: int, counted: tuple[int, ...], reported: tuple[int, ...]
) -> None:
    fake = session(
        lambda program: FakeSnapshot(
            plan_of(program, one_launch(program)),
            {0: lambda dims: chosen(FakeKernel(), dims, tier=tier)},
        )
    )
    compiled = torch.no_grad()(torch.compile(twice_plus_one, backend=nearhint, dynamic=True))
    with watch() as reports:
        compiled(torch.randn(3, 5))
    assert [tiers for _, tiers in fake.handles[0].counted] == [counted]
    assert [report.tiers for report in reports] == [reported]
