"""Programs captured from torch models as a client captures them, with no daemon; and the models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from nearhint_rules.program import Arg, Keyword, Program, TensorType, ValueType
from nearhint_torch.adapter import aot_inference
from nearhint_torch.capture import capture

WORDS = 1000
PLACES = 512


def programs_of(function: Callable[..., Any], *arguments: Tensor) -> list[Program]:
    """The Programs of one call, captured with symbolic sizes; nothing is compiled."""
    found: list[Program] = []

    def compiler(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append(capture(graph, inputs).program)
        forward: Callable[..., Any] = graph.forward
        return forward

    torch._dynamo.reset()
    backend: Any = lambda graph, inputs: aot_inference(graph, inputs, compiler=compiler)  # noqa: E731
    with torch.no_grad():
        torch.compile(function, backend=backend, dynamic=True)(*arguments)
    return found


def on_cuda(program: Program) -> Program:
    """The same Program as if its tensors were on a CUDA device, which capture does not need."""
    nodes = tuple(
        replace(
            node,
            outputs=tuple(map(_on_cuda, node.outputs)),
            kwargs=tuple((name, _device_of(arg)) for name, arg in node.kwargs),
        )
        for node in program.nodes
    )
    return replace(program, inputs=tuple(map(_on_cuda, program.inputs)), nodes=nodes)


def _on_cuda(value: ValueType) -> ValueType:
    return replace(value, device="cuda") if isinstance(value, TensorType) else value


def _device_of(arg: Arg) -> Arg:
    return Keyword("device", "cuda") if arg == Keyword("device", "cpu") else arg


class Layer(nn.Module):
    """One of BERT's: attention and two products with GELU, each with its residual and its norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-12) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x: (batch, tokens, width); mask: (batch, 1, 1, tokens), added to the scores."""
        batch, tokens, width = x.shape
        query, key, value = (
            project(x).view(batch, tokens, self.heads, -1).transpose(1, 2)
            for project in self.project[:3]
        )
        scores = query @ key.transpose(-1, -2) * (width // self.heads) ** -0.5 + mask
        context = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(batch, tokens, width)
        x = self.norms[0](self.project[3](context) + x)
        narrowed: Tensor = self.narrow(functional.gelu(self.widen(x)))
        result: Tensor = self.norms[1](narrowed + x)
        return result


class MiniLm(nn.Module):
    """all-MiniLM-L6-v2 in shape, with random weights: token ids to a normalised embedding."""

    def __init__(self, *, layers: int = 6, width: int = 384, heads: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(PLACES, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """ids: (batch, tokens), int64; mask: the same, 1.0 where there is a token."""
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))
        added = (1.0 - mask[:, None, None, :]) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, added)
        kept = mask[:, :, None]
        pooled = (x * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
        return functional.normalize(pooled, dim=1)


class Stack(nn.Module):
    """`blocks` products, each followed by a fused chain with constants of its own: no two alike."""

    WIDTH = 64

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.products = nn.ModuleList(nn.Linear(self.WIDTH, self.WIDTH) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, tokens, WIDTH)."""
        for number, product in enumerate(self.products):
            shift = (number + 1) / 1024
            made = product(x)
            match number % 4:
                case 0:
                    x = functional.layer_norm(made + x * shift, (self.WIDTH,), eps=shift)
                case 1:
                    x = functional.gelu(made * shift) + x
                case 2:
                    x = torch.softmax(made * shift, -1) * x
                case _:
                    x = (made + x) * torch.rsqrt(made.square().mean(-1, keepdim=True) + shift)
        return x
