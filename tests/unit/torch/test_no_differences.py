"""Any graph gives what eager gives: at T0, and when a Plan runs it node by node."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.unit.torch.cases import CASES, Case
from tests.unit.torch.conftest import Install
from tests.unit.torch.fake_session import FakeSnapshot, all_nodes
from torch.utils import _pytree as pytree

from nearhint.session import counters
from nearhint_compiler.pipeline import lower
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_t0_gives_what_eager_gives(case: Case, session: Install) -> None:
    fake = session(lambda program: None)
    compiled = torch.compile(case.function, backend=nearhint, dynamic=True)
    with torch.no_grad():
        for sizes in SIZES:
            assert_same(case, sizes, compiled)
    assert fake.handles, "nothing was captured"
    assert not fake.fallbacks or set(fake.fallbacks) == {"no_plan"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_plan_of_single_nodes_gives_what_eager_gives(case: Case, session: Install) -> None:
    before = counters.seen().get("original_program_failed", 0)
    fake = session(lambda program: FakeSnapshot(all_nodes(program)))
    compiled = torch.compile(case.function, backend=nearhint, dynamic=True)
    with torch.no_grad():
        for sizes in SIZES:
            assert_same(case, sizes, compiled)
    assert fake.handles, "nothing was captured"
    assert not fake.fallbacks
    assert counters.seen().get("original_program_failed", 0) == before


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_plan_whose_kernels_are_not_there_yet_gives_what_eager_gives(
    case: Case, session: Install
) -> None:
    fake = session(lambda program: FakeSnapshot(lower(program, target_kind="cpu").plan))
    compiled = torch.compile(case.function, backend=nearhint, dynamic=True)
    with torch.no_grad():
        for sizes in (*SIZES, *SIZES):
            assert_same(case, sizes, compiled)
    assert fake.handles, "nothing was captured"
    assert not fake.fallbacks


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
