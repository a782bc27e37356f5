"""`interpolate` is one op, or copies: never gathers by computed indices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.torch.conftest import Install
from tests.unit.torch.fake_session import FakeSnapshot, all_nodes
from torch.nn import functional

from nearhint.session import counters
from nearhint_torch.backend import nearhint
from nearhint_torch.collecting import Collector
from nearhint_torch.resampling import compositions, repeated

Tensor = torch.Tensor

COPIES = {"aten.unsqueeze.default", "aten.expand.default", "aten.clone.default"}
MODES: dict[str, dict[str, Any]] = {
    "nearest": {"mode": "nearest"},
    "exact": {"mode": "nearest-exact"},
    "bilinear": {"mode": "bilinear"},
    "corners": {"mode": "bilinear", "align_corners": True},
    "bicubic": {"mode": "bicubic"},
    "smoothed": {"mode": "bilinear", "antialias": True},
}
HOW: dict[str, dict[str, Any]] = {
    "twice": {"scale_factor": 2.0},
    "twice and four times": {"scale_factor": (2.0, 4.0)},
    "three times": {"scale_factor": 3.0},
    "by a half": {"scale_factor": 0.5},
    "by one and a half": {"scale_factor": 1.5},
    "to a size": {"size": (9, 13)},
}


def planes(rows: int, columns: int, *, channels: int = 8) -> Tensor:
    return torch.randn(2, channels, rows, columns)


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def same(found: Tensor, expected: Tensor) -> None:
    assert (found.dtype, found.shape, found.stride()) == (
        expected.dtype,
        expected.shape,
        expected.stride(),
    )
    assert torch.equal(found, expected)


def ops(session: Any) -> list[set[str]]:
    return [{node.op for node in handle.program.nodes} for handle in session.handles]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("mode", MODES)
def test_one_op_or_copies_with_eagers_elements(session: Install, mode: str, how: str) -> None:
    fake = session(lambda program: FakeSnapshot(all_nodes(program)))

    def function(x: Tensor) -> Tensor:
        return functional.interpolate(x * 2, **HOW[how], **MODES[mode]) + 1

    given = (planes(16, 12), planes(6, 10), last(planes(6, 10)), planes(5, 7, channels=1))
    compiled = torch.compile(function, backend=nearhint, dynamic=True)
    with torch.no_grad():
        for x in (*given, planes(6, 10).transpose(2, 3)):
            same(compiled(x), function(x))
    is_repeated = mode in {"nearest", "exact"} and how.startswith("twice")
    for found in ops(fake):
        assert not any("index" in op for op in found)
        assert sum("upsample" in op for op in found) == (0 if found >= COPIES else 1)
    assert (ops(fake)[0] >= COPIES) == is_repeated


@pytest.mark.parametrize("shape", [(2, 3, 9), (2, 3, 4, 5, 6)])
@pytest.mark.parametrize("is_nearest", [True, False])
def test_one_and_three_dims(session: Install, shape: tuple[int, ...], is_nearest: bool) -> None:
    session(lambda program: FakeSnapshot(all_nodes(program)))
    smooth = {3: "linear", 5: "trilinear"}[len(shape)]
    mode = "nearest" if is_nearest else smooth

    def function(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2.0, mode=mode) + 1

    compiled = torch.compile(function, backend=nearhint, dynamic=True)
    x = torch.randn(shape)
    with torch.no_grad():
        same(compiled(x), function(x))
        if len(shape) == 5:
            x = x.contiguous(memory_format=torch.channels_last_3d)
            same(compiled(x), function(x))


def test_one_capture_serves_all_sizes(session: Install) -> None:
    fake = session(lambda program: FakeSnapshot(all_nodes(program)))

    def function(x: Tensor) -> Tensor:
        smooth = functional.interpolate(x, scale_factor=1.5, mode="bilinear")
        return functional.interpolate(smooth, scale_factor=2.0) + 1

    compiled = torch.compile(function, backend=nearhint, dynamic=True)
    with torch.no_grad():
        for rows, columns in ((16, 12), (5, 7), (9, 4), (31, 33)):
            x = planes(rows, columns)
            same(compiled(x), function(x))
    assert len(fake.handles) == 1


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 3, 0, 5)])
def test_no_elements_give_what_eager_gives(session: Install, shape: tuple[int, ...]) -> None:
    session(lambda program: FakeSnapshot(all_nodes(program)))
    x = torch.randn(shape)

    def function(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2.0) + 1

    compiled = torch.compile(function, backend=nearhint, dynamic=True)
    with torch.no_grad():
        if x.shape[2]:
            same(compiled(x), function(x))
            return
        for each in (function, compiled):
            with pytest.raises(RuntimeError):
                each(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.uint8])
def test_other_types(session: Install, dtype: torch.dtype) -> None:
    session(lambda program: FakeSnapshot(all_nodes(program)))
    x = (planes(5, 7).abs() * 50).to(dtype)

    def function(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2.0) * 2

    with torch.no_grad():
        same(torch.compile(function, backend=nearhint, dynamic=True)(x), function(x))


def test_gradients_are_eagers() -> None:
    before = counters.seen().get("original_capture_failed", 0)
    for mode in ("nearest", "bilinear"):
        x = planes(5, 7).requires_grad_()

        def function(x: Tensor, mode: str = mode) -> Tensor:
            return functional.interpolate(x, scale_factor=2.0, mode=mode).square().sum()

        compiled = torch.compile(function, backend=nearhint, dynamic=True)
        found, expected = (torch.autograd.grad(each(x), x)[0] for each in (compiled, function))
        torch.testing.assert_close(found, expected)
    assert counters.seen().get("original_capture_failed", 0) == before


def test_torchs_own_rules_are_there_after_a_capture(session: Install) -> None:
    session(lambda program: FakeSnapshot(all_nodes(program)))
    before = {op: dict(op.py_kernels) for op in compositions()}
    assert any(before.values())
    compiled = torch.compile(
        lambda x: functional.interpolate(x, scale_factor=2.0), backend=nearhint, dynamic=True
    )
    with torch.no_grad():
        compiled(planes(5, 7))
    assert before == {op: dict(op.py_kernels) for op in compositions()}


def test_a_warm_up_captures_what_a_server_does(session: Install) -> None:
    fake, collector = session(lambda program: None), Collector({})

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        twice = functional.interpolate(x + 1, scale_factor=2.0)
        return twice.relu(), functional.interpolate(x, scale_factor=1.5, mode="bilinear") * 2

    with torch.inference_mode():
        for backend in (nearhint, collector.backend):
            torch.compile(function, backend=backend, dynamic=True)(planes(5, 7))
            torch.compiler.reset()
    assert [each.program.id for each in collector.collected()] == [fake.handles[0].program.id]


@pytest.mark.parametrize("times", [[1, 1], [2, 1], [1, 4], [3, 5]])
def test_elements_lie_side_by_side(times: list[int]) -> None:
    x = planes(5, 7)
    expected = x.repeat_interleave(times[0], 2).repeat_interleave(times[1], 3)
    same(repeated(x, times), expected)
