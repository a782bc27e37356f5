"""The backend as torch.compile finds it: options, refusals, errors, one function as a kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.unit.torch.conftest import Install
from tests.unit.torch.fake_session import FakeSnapshot, all_nodes
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import nearhint
import nearhint_torch.backend as backend
import nearhint_torch.serving as serving
from nearhint.session import counters
from nearhint_torch.adapter import ControlFlow
from nearhint_torch.errors import InvalidDynamic

Tensor = torch.Tensor


def counted(name: str, act: Callable[[], Any]) -> int:
    before = counters.seen().get(name, 0)
    act()
    return counters.seen().get(name, 0) - before


contexts_saving_products = partial(
    create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default]
)


def test_torch_finds_the_backend_by_its_name() -> None:
    assert "nearhint" in torch.compiler.list_backends()


def test_without_a_daemon_a_model_runs_as_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEARHINT_ADDRESS", raising=False)
    layer = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.GELU())
    compiled = torch.compile(layer, backend="nearhint", dynamic=True)
    with torch.no_grad():
        for rows in (2, 3, 9):
            x = torch.randn(rows, 6)
            assert torch.equal(compiled(x), layer(x))


def test_with_gradients_required_the_original_graph_trains(session: Install) -> None:
    fake = session(lambda program: None)
    layer = torch.nn.Linear(6, 4)
    compiled = torch.compile(layer, backend="nearhint", dynamic=True)
    x = torch.randn(3, 6)
    assert counted("original_gradients", lambda: compiled(x).sum().backward()) == 1
    assert layer.weight.grad is not None
    assert not fake.handles


class Checkpointed(torch.nn.Module):
    """A checkpoint within a checkpoint, with dropout in both."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.settings = settings

    def _inner(self, x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(self.layer(x)).square()

    def _outer(self, x: Tensor) -> Tensor:
        inner: Tensor = checkpoint(self._inner, x, use_reentrant=False)
        return torch.nn.functional.dropout(inner).square()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self._outer, x, use_reentrant=False, **self.settings)
        return result.sum()


@pytest.mark.parametrize("settings", [{}, {"context_fn": contexts_saving_products}])
def test_checkpoints_draw_the_same_masks_again(session: Install, settings: Any) -> None:
    session(lambda program: None)
    model, x = Checkpointed(**settings), torch.randn(8, 64)
    compiled = torch.compile(model, backend="nearhint", dynamic=True)
    gradients: list[Any] = []
    for call in (model, compiled):
        torch.manual_seed(0)
        gradients.append(torch.autograd.grad(call(x), model.layer.weight))
    assert torch.equal(*(gradient for (gradient,) in gradients))


def weighed(x: Tensor, weight: Tensor) -> Tensor:
    return (x * weight).softmax(-1)


region: Any = torch.compiler.nested_compile_region(weighed)
normed = torch.nn.BatchNorm1d(4)
PARTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a region that is compiled once": lambda x, weight: region(region(x, weight), weight),
    "buffers written in a checkpoint": lambda x, weight: checkpoint(
        lambda part: normed(part * weight), x, use_reentrant=False
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_graphs_that_run_as_they_are_have_gradients(session: Install, name: str) -> None:
    session(lambda program: None)
    x, weight = torch.randn(8, 4), torch.randn(4, requires_grad=True)
    compiled = torch.compile(PARTS[name], backend="nearhint", dynamic=True)
    gradients = [
        torch.autograd.grad(call(x, weight).square().sum(), weight)[0]
        for call in (PARTS[name], compiled)
    ]
    torch.testing.assert_close(*gradients)


class WithoutGradients(torch.nn.Module):
    """Asks for none of its own results, whatever mode it is called in."""

    def __init__(self, mode: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 4)
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        with self.mode():
            return torch.nn.functional.gelu(self.layer(x))


INFERENCE_MODE = pytest.param(
    torch.inference_mode,
    marks=pytest.mark.skipif(
        TorchVersion(torch.__version__) < "2.13",
        reason="Dynamo of 2.11 leaves such a model as it is",
    ),
)


@pytest.mark.parametrize("mode", [torch.no_grad, INFERENCE_MODE])
def test_a_model_that_turns_gradients_off_by_itself_is_captured(
    session: Install, mode: Any
) -> None:
    fake = session(lambda program: FakeSnapshot(all_nodes(program)))
    model = WithoutGradients(mode)
    compiled = torch.compile(model, backend="nearhint", dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 6)
        got = compiled(x)
        assert torch.equal(got, model(x))
        assert not got.requires_grad
    assert len(fake.handles) == 1


def test_gradients_that_show_in_a_mutation_alone_leave_the_graph_as_it_is(
    session: Install,
) -> None:
    fake = session(lambda program: None)

    def function(total: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        total.add_((x * weight).sum())
        return x * 2

    weight, total = torch.ones(4, requires_grad=True), torch.zeros(())
    compiled = torch.compile(function, backend="nearhint", dynamic=True)
    assert counted("original_gradients", lambda: compiled(total, torch.ones(3, 4), weight)) == 1
    (gradient,) = torch.autograd.grad(total, weight)
    assert gradient.tolist() == [3.0] * 4
    assert not fake.handles


def test_the_switch_leaves_everything_to_torch(
    session: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = session(lambda program: None)
    monkeypatch.setenv("NEARHINT_DISABLE", "1")
    compiled = torch.compile(lambda x: x + 1, backend="nearhint")
    assert counted("original_disabled", lambda: compiled(torch.ones(3))) == 1
    assert not fake.handles


@pytest.mark.parametrize(
    ("module", "broken"),
    [
        (backend, "capture"),
        (backend, "aot_inference"),
        (serving, "session_for"),
        (serving, "CompiledGraph"),
    ],
)
def test_no_error_of_ours_reaches_the_model(
    session: Install, monkeypatch: pytest.MonkeyPatch, module: ModuleType, broken: str
) -> None:
    session(lambda program: None)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setattr(module, broken, fail)
    compiled = torch.compile(lambda x: x.sin() + 1, backend="nearhint", dynamic=True)
    x = torch.randn(3, 4)
    with torch.no_grad():
        assert torch.equal(compiled(x), x.sin() + 1)


def test_what_dynamo_throws_to_start_over_passes_through(
    session: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(lambda program: None)

    def restart(*args: Any, **kwargs: Any) -> Any:
        raise ControlFlow

    monkeypatch.setattr(backend, "aot_inference", restart)
    with pytest.raises(ControlFlow):
        backend.nearhint(torch.fx.symbolic_trace(torch.nn.Identity()), [torch.ones(2)])


def test_capture_waits_for_what_the_daemon_has_and_calls_never_wait(session: Install) -> None:
    fake = session(lambda program: FakeSnapshot(all_nodes(program)))
    compiled = torch.compile(lambda x: x.sin() + 1, backend="nearhint", dynamic=True)
    with torch.no_grad():
        for rows in (3, 4, 5):
            compiled(torch.randn(rows, 4))
    assert fake.handles[0].waits_s == [serving.READY_TIMEOUT_S]
    assert serving.READY_TIMEOUT_S <= 0.5


def test_a_calling_thread_makes_no_rpc_and_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NEARHINT_ADDRESS", raising=False)
    compiled = torch.compile(lambda x: x.sin() + 1, backend="nearhint", dynamic=True)
    seen: list[bool] = []

    def serve() -> None:
        before = counters.on_this_thread()
        with torch.no_grad():
            compiled(torch.randn(7, 4))
        seen.append(counters.on_this_thread() == before)

    with torch.no_grad():
        compiled(torch.randn(3, 4))
    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    assert seen == [True]


def test_a_name_given_by_option_reaches_the_program(session: Install) -> None:
    fake = session(lambda program: None)
    options: dict[str, Any] = {"names": {"L['x'].size()[1]": "width"}}

    def function(x: Tensor) -> Tensor:
        return x * 2

    compiled = torch.compile(function, backend="nearhint", dynamic=True, options=options)
    compiled(torch.ones(3, 4))
    (handle,) = fake.handles
    assert [symbol.user_name for symbol in handle.program.symbols] == ["x_0", "width"]


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def test_one_function_becomes_a_kernel_with_its_sizes_named(session: Install) -> None:
    fake = session(lambda program: None)
    norm = nearhint.kernel(rms_norm, dynamic={"x": {0: "rows"}})
    weight = torch.randn(8, requires_grad=True)
    for rows in (5, 6, 9):
        x = torch.randn(rows, 8)
        assert torch.equal(norm(x, weight), rms_norm(x, weight))
    assert torch.equal(norm(weight=weight, x=x), rms_norm(x, weight))
    symbols = [[symbol.user_name for symbol in each.program.symbols] for each in fake.handles]
    assert symbols[0] == ["rows"]
    assert not norm(x, weight).requires_grad


def test_a_module_becomes_a_kernel_by_the_arguments_of_its_forward(session: Install) -> None:
    fake = session(lambda program: FakeSnapshot(all_nodes(program)))
    model = WithoutGradients(torch.no_grad)
    kernel = nearhint.kernel(model, dynamic={"x": {0: "rows"}})
    for rows in (3, 9):
        x = torch.randn(rows, 6)
        assert torch.equal(kernel(x), model(x))
    (handle,) = fake.handles
    assert [symbol.user_name for symbol in handle.program.symbols] == ["rows"]


@pytest.mark.parametrize("outer", ["aot_eager", "nearhint"])
def test_a_kernel_is_traced_within_a_function_that_is_compiled(
    outer: str, session: Install
) -> None:
    session(lambda program: None)
    norm = nearhint.kernel(rms_norm, dynamic={"x": {0: "rows"}})

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        scaled: Tensor = norm(x, weight) * 2 + x
        return scaled

    compiled = torch.compile(layer, backend=outer, dynamic=True, fullgraph=True)
    weight = torch.randn(8, requires_grad=True)
    for rows in (5, 9):
        x = torch.randn(rows, 8)
        assert torch.equal(compiled(x, weight), layer(x, weight))
    assert not compiled(x, weight).requires_grad


def test_sizes_of_one_are_captured_on_their_own_and_stay_right(session: Install) -> None:
    fake = session(lambda program: None)
    norm = nearhint.kernel(rms_norm, dynamic={"x": {0: "rows"}})
    weight = torch.randn(8)
    for rows in (1, 5, 1, 7):
        x = torch.randn(rows, 8)
        assert torch.equal(norm(x, weight), rms_norm(x, weight))
    assert len(fake.handles) == 2


def test_a_kernels_numbers_are_fixed_and_its_0_d_tensors_are_not(session: Install) -> None:
    def scaled(x: Tensor, scale: Any) -> Tensor:
        return torch.relu(x * scale)

    fake = session(lambda program: None)
    for make, captures in ((float, 3), (torch.tensor, 1)):
        kernel = nearhint.kernel(scaled, dynamic={"x": {0: "rows"}})
        before = len(fake.handles)
        for value in (2.0, 3.0, 4.0):
            for rows in (5, 9):
                x, scale = torch.randn(rows, 8), make(value)
                assert torch.equal(kernel(x, scale), scaled(x, scale))
        assert len(fake.handles) - before == captures
        torch.compiler.reset()


def test_a_kernel_refuses_dimensions_that_are_not_there() -> None:
    with pytest.raises(InvalidDynamic, match="no such argument"):
        nearhint.kernel(rms_norm, dynamic={"y": {0: "rows"}})
    norm = nearhint.kernel(rms_norm, dynamic={"x": {2: "depth"}})
    with pytest.raises(InvalidDynamic, match="2 dimensions"):
        norm(torch.ones(3, 4), torch.ones(4))
    norm = nearhint.kernel(rms_norm, dynamic={"eps": {0: "rows"}})
    with pytest.raises(InvalidDynamic, match="float"):
        norm(torch.ones(3, 4), torch.ones(4), 1e-5)


@pytest.mark.parametrize("function", [torch.add, 5])
def test_a_kernel_refuses_what_has_no_arguments_by_name(function: Any) -> None:
    with pytest.raises(InvalidDynamic, match="the function's arguments are not known"):
        nearhint.kernel(function, dynamic={"input": {0: "rows"}})


def test_capture_only_returns_the_graph_unchanged() -> None:
    compiled = torch.compile(rms_norm, backend=backend.capture_only, dynamic=True)
    x, weight = torch.randn(3, 4), torch.randn(4)
    with torch.no_grad():
        assert torch.equal(compiled(x, weight), rms_norm(x, weight))
