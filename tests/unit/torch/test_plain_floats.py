"""Floats that an op takes as plain numbers: torch traces a graph once, not twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional

from nearhint_torch import adapter
from nearhint_torch.adapter.floats import TAKE_PLAIN_FLOATS

WIDTH = 8
ZEROS, ONES = torch.zeros(WIDTH), torch.ones(WIDTH)
CALLS: dict[Callable[..., Any], Callable[[Tensor, float], Tensor]] = {
    functional.batch_norm: lambda x, value: functional.batch_norm(x, ZEROS, ONES, eps=value),
    functional.celu: functional.celu,
    functional.dropout: lambda x, value: functional.dropout(x, value, training=False),
    functional.elu: functional.elu,
    functional.embedding: lambda x, value: functional.embedding(x.long() % 2, x, norm_type=value),
    functional.group_norm: lambda x, value: functional.group_norm(x, 2, eps=value),
    functional.hardtanh: lambda x, value: functional.hardtanh(x, -value, value),
    functional.instance_norm: lambda x, value: functional.instance_norm(x[None], eps=value),
    functional.layer_norm: lambda x, value: functional.layer_norm(x, (WIDTH,), eps=value),
    functional.leaky_relu: functional.leaky_relu,
    functional.scaled_dot_product_attention: lambda x, value: (
        functional.scaled_dot_product_attention(x[None], x[None], x[None], scale=value)
    ),
    functional.softplus: functional.softplus,
    torch.threshold: lambda x, value: functional.threshold(x, value, 0.0),
}


class Holder(nn.Module):
    """Calls a function with a float that it keeps, as modules keep an epsilon."""

    def __init__(self, call: Callable[[Tensor, float], Tensor], value: float = 0.25) -> None:
        super().__init__()
        self.call = call
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x, self.value)


def _captured(module: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], list[None]]:
    """The module as it is captured, and an entry for each capture."""
    captures: list[None] = []

    def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        captures.append(None)
        return graph.forward

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        return adapter.aot_inference(graph, inputs, compiler=compiler)

    torch._dynamo.reset()
    compiled: Callable[..., Tensor] = torch.compile(module, backend=backend, dynamic=True)
    return compiled, captures


def _traces(compiled: Callable[..., Tensor], x: Tensor) -> int:
    """How often torch begins to trace a graph in a call."""
    counters.clear()
    with torch.no_grad():
        compiled(x)
    return int(counters["aot_autograd"]["total"])


def test_each_function_is_tried_here() -> None:
    assert set(CALLS) == TAKE_PLAIN_FLOATS


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_a_float_that_torch_would_make_constant_is_so_from_the_start(
    function: Callable[..., Any],
) -> None:
    module = Holder(CALLS[function]).eval()
    x = torch.randn(5, WIDTH)
    torch._dynamo.reset()
    assert _traces(torch.compile(module, backend="aot_eager", dynamic=True), x) == 2
    compiled, captures = _captured(module)
    assert _traces(compiled, x) == 1
    assert len(captures) == 1
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
        torch.testing.assert_close(compiled(x[:3]), module(x[:3]))
        assert len(captures) == 1
        module.value = 0.5
        torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.parametrize(
    "call",
    [
        lambda x, value: x * value,
        lambda x, value: x / x.pow(2).mean(-1, keepdim=True).add(value).sqrt(),
    ],
)
def test_a_float_that_is_a_tensor_to_torch_stays_one(
    call: Callable[[Tensor, float], Tensor],
) -> None:
    module = Holder(call).eval()
    x = torch.randn(5, WIDTH)
    compiled, captures = _captured(module)
    assert _traces(compiled, x) == 1
    with torch.no_grad():
        for value in (0.5, 2.0):
            module.value = value
            torch.testing.assert_close(compiled(x), module(x))
    assert len(captures) == 1


def test_a_float_that_is_both_is_constant_too() -> None:
    module = Holder(lambda x, value: functional.layer_norm(x, (WIDTH,), eps=value) * value).eval()
    x = torch.randn(5, WIDTH)
    compiled, captures = _captured(module)
    assert _traces(compiled, x) == 1
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    assert len(captures) == 1


def test_an_item_of_the_users_is_none() -> None:
    def scaled(x: Tensor, scale: Tensor) -> Tensor:
        return functional.leaky_relu(x, scale.item())

    x, scale = torch.randn(5, WIDTH), torch.tensor(0.5, dtype=torch.float64)
    compiled, _ = _captured(scaled)
    with torch.no_grad(), torch._dynamo.config.patch(capture_scalar_outputs=True):
        torch.testing.assert_close(compiled(x, scale), scaled(x, scale))
