"""Any graph gives what eager gives: at T0, and when a Plan runs it node by node."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.torch.cases import CASES, Case
from tests.unit.torch.conftest import Install
from tests.unit.torch.fake_session import FakeSnapshot, all_nodes
from torch.utils import _pytree as pytree

from nearhint.session import counters
from nearhint_compiler.pipeline import lower
from nearhint_rules.program import Program
from nearhint_torch.backend import nearhint

SIZES = ((3, 5), (4, 7), (2, 9))


def _flat(tree: Any) -> list[Any]:
    return pytree.tree_leaves(tree)


def _sharing(tree: Any) -> list[tuple[int, int]]:
    tensors = [leaf for leaf in _flat(tree) if isinstance(leaf, torch.Tensor)]
    return [
        (i, j)
        for i, left in enumerate(tensors)
        for j, right in enumerate(tensors)
        if i < j
        and left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()
        and left.numel()
    ]


def assert_same(case: Case, sizes: tuple[int, int], compiled: Any) -> None:
    torch.manual_seed(sum(sizes))
    args = case.arguments(*sizes)
    twin = copy.deepcopy(args)
    torch.manual_seed(1)
    expected = case.function(*args)
    after = torch.rand(())
    torch.manual_seed(1)
    got = compiled(*twin)
    assert torch.equal(torch.rand(()), after), "the random state differs"
    for left, right in zip(_flat((expected, args)), _flat((got, twin)), strict=True):
        if isinstance(left, torch.Tensor):
            assert left.dtype == right.dtype
            assert left.stride() == right.stride()
            torch.testing.assert_close(right, left, rtol=0, atol=0, equal_nan=True)
        else:
            assert left == right
            assert type(left) is type(right)
    assert _sharing((expected, args)) == _sharing((got, twin))


PHASES: dict[str, Callable[[Program], Any]] = {
    "T0": lambda program: None,
    "single nodes": lambda program: FakeSnapshot(all_nodes(program)),
    "kernels that are not there yet": lambda program: FakeSnapshot(
        lower(program, target_kind="cpu").plan
    ),
}
"""What a process has of a Program, in the order in which it comes."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_whatever_a_process_has_of_a_graph_gives_what_eager_gives(
    case: Case, session: Install
) -> None:
    """Of one capture: what was worked out for a Snapshot serves no other."""
    before = counters.seen().get("original_program_failed", 0)
    fake = session(PHASES["T0"])
    compiled = torch.compile(case.function, backend=nearhint, dynamic=True)
    for phase, plans in PHASES.items():
        fake.make_snapshot = plans
        for handle in fake.handles:
            handle.snapshot = plans(handle.program)
        fake.fallbacks.clear()
        with torch.no_grad():
            for sizes in (*SIZES, *SIZES):
                assert_same(case, sizes, compiled)
        assert fake.handles, "nothing was captured"
        assert set(fake.fallbacks) <= ({"no_plan"} if phase == "T0" else set()), phase
        assert counters.seen().get("original_program_failed", 0) == before, phase


@pytest.mark.parametrize("sizes", [(1, 5), (0, 5), (5, 0), (1, 1)])
@pytest.mark.parametrize("name", ["chain", "aliased outputs", "one input twice", "bfloat16"])
def test_sizes_of_one_and_zero_give_what_eager_gives(
    name: str, sizes: tuple[int, int], session: Install
) -> None:
    case = next(case for case in CASES if case.name == name)
    session(lambda program: FakeSnapshot(all_nodes(program)))
    compiled = torch.compile(case.function, backend=nearhint, dynamic=True)
    with torch.no_grad():
        assert_same(case, (3, 5), compiled)
        assert_same(case, sizes, compiled)
