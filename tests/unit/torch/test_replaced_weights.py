"""Weights that are replaced under a compiled model leave their memory, at whatever sizes it ran."""

from __future__ import annotations

import gc
from typing import Any

import torch
from tests.unit.torch.conftest import Install
from tests.unit.torch.fake_session import FakeSnapshot
from torch.multiprocessing.reductions import StorageWeakRef

from nearhint_compiler.pipeline import lower
from nearhint_rules.plan import MakeView
from nearhint_torch.backend import nearhint


def test_weights_that_were_replaced_between_sizes_leave_their_memory(session: Install) -> None:
    fake = session(lambda program: FakeSnapshot(lower(program, target_kind="cpu").plan))
    layer = torch.nn.Linear(5, 7)
    compiled = torch.compile(layer, backend=nearhint, dynamic=True)
    reference: Any = StorageWeakRef
    replaced: list[Any] = []
    with torch.no_grad():
        for rows in (3, 4, 6, 4, 9):
            x = torch.randn(rows, 5)
            torch.testing.assert_close(compiled(x), layer(x))
            replaced.append(reference(layer.weight.untyped_storage()))
            layer.weight.data = torch.randn(7, 5)
        assert torch.equal(compiled(x), layer(x))
    (handle,) = fake.handles
    assert handle.snapshot is not None
    assert any(isinstance(step, MakeView) for step in handle.snapshot.plan.steps)
    gc.collect()
    assert [each.expired() for each in replaced] == [True] * 5


def test_a_part_of_a_table_is_another_view_at_each_size(session: Install) -> None:
    session(lambda program: FakeSnapshot(lower(program, target_kind="cpu").plan))
    table = torch.nn.Embedding(16, 5)

    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ table.weight[: x.shape[0]].t()

    compiled = torch.compile(product, backend=nearhint, dynamic=True)
    with torch.no_grad():
        for rows in (3, 4, 6, 4, 3):
            x = torch.randn(rows, 5)
            torch.testing.assert_close(compiled(x), product(x))
