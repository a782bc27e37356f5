"""Random small functions of torch, traced with symbolic sizes: their Plans give what eager gives.

`test_lowering` builds its Programs by hand, of few ops in floats. Here torch itself says what a
call gives, so any op of the tables below may be drawn, with any dtype, layout and option that eager
accepts; and the Plan is run at other sizes than those of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest
import torch
import torch.nn.functional as nn
from hypothesis import given
from hypothesis import strategies as st
from tests.property.examples import examples
from tests.unit.compiler.frontend.running import Recorded, close, run_captured
from torch._dynamo.source import LocalSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from nearhint_compiler.pipeline import lower
from nearhint_torch.capture import capture

Tensor: TypeAlias = torch.Tensor
Step: TypeAlias = Callable[[Tensor, Tensor, int, bool], Any]

SIZES = ({"a": 7, "b": 5}, {"a": 3, "b": 11}, {"a": 16, "b": 2})
"""The first are traced; all are at least 2, and no two of one set are equal."""
DIMS: tuple[str | int, ...] = ("a", "b", "a", "b", 1, 6)
DTYPES = (
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
)
LAYOUTS = ("contiguous", "transposed", "strided", "expanded", "offset")

STEPS: dict[str, Step] = {
    "add": lambda x, y, d, k: x + y,
    "multiply": lambda x, y, d, k: x * y,
    "difference": lambda x, y, d, k: torch.sub(x, y, alpha=2),
    "scaled": lambda x, y, d, k: x * 3 - 1,
    "by a size": lambda x, y, d, k: x * x.shape[d] + x.shape[0],
    "compare": lambda x, y, d, k: x > y,
    "equal to a number": lambda x, y, d, k: x == 2,
    "where": lambda x, y, d, k: torch.where(x > 0, x, y),
    "clamp": lambda x, y, d, k: x.clamp(-1, 2),
    "maximum": lambda x, y, d, k: torch.maximum(x, y),
    "xor": lambda x, y, d, k: torch.logical_xor(x, y),
    "bits": lambda x, y, d, k: (x & y) | 3,
    "floor by a number": lambda x, y, d, k: x // 4,
    "remainder": lambda x, y, d, k: x % 4,
    "magnitude": lambda x, y, d, k: x.abs(),
    "to float": lambda x, y, d, k: x.to(torch.float32),
    "to double": lambda x, y, d, k: x.to(torch.float64),
    "to bytes": lambda x, y, d, k: (x > 0).to(torch.uint8),
    "tanh": lambda x, y, d, k: torch.tanh(x),
    "sum": lambda x, y, d, k: x.sum(d, keepdim=k),
    "sum of all": lambda x, y, d, k: x.sum(),
    "sum of two": lambda x, y, d, k: x.sum((0, -1), keepdim=k),
    "mean": lambda x, y, d, k: x.mean(d, keepdim=k),
    "product": lambda x, y, d, k: x.prod(d, keepdim=k),
    "largest": lambda x, y, d, k: x.amax(d, keepdim=k),
    "least and its place": lambda x, y, d, k: x.min(d, keepdim=k),
    "place": lambda x, y, d, k: x.argmax(d, keepdim=k),
    "any": lambda x, y, d, k: x.any(d, keepdim=k),
    "all": lambda x, y, d, k: (x > -2).all(d, keepdim=k),
    "variance": lambda x, y, d, k: x.var(d, correction=int(k), keepdim=k),
    "norm": lambda x, y, d, k: torch.linalg.vector_norm(x, 1, d, keepdim=k),
    "logsumexp": lambda x, y, d, k: x.logsumexp(d, keepdim=k),
    "counted": lambda x, y, d, k: torch.count_nonzero(x, d),
    "softmax": lambda x, y, d, k: x.softmax(d),
    "cumsum": lambda x, y, d, k: x.cumsum(d),
    "layer norm": lambda x, y, d, k: nn.layer_norm(x, x.shape[-1:]),
    "transpose": lambda x, y, d, k: x.transpose(0, d),
    "flat": lambda x, y, d, k: x.reshape(-1),
    "merged": lambda x, y, d, k: x.reshape(x.shape[0], -1),
    "without the first": lambda x, y, d, k: x[1:],
    "every other": lambda x, y, d, k: x[..., ::2],
    "last": lambda x, y, d, k: x.select(d, -1),
    "unsqueezed": lambda x, y, d, k: x.unsqueeze(d),
    "expanded": lambda x, y, d, k: x.unsqueeze(0).expand(3, *x.shape),
    "flipped": lambda x, y, d, k: x.flip(d),
    "rolled": lambda x, y, d, k: x.roll(1, d),
    "diagonal": lambda x, y, d, k: x.diagonal(),
    "windows": lambda x, y, d, k: x.unfold(d, 2, 1),
    "padded": lambda x, y, d, k: nn.pad(x, (1, 2)),
    "joined": lambda x, y, d, k: torch.cat([x, x * 2], d),
    "stacked": lambda x, y, d, k: torch.stack([x, y], d),
    "triangle": lambda x, y, d, k: x.tril(int(k)),
    "counting": lambda x, y, d, k: torch.arange(x.shape[d]),
    "filled": lambda x, y, d, k: torch.full(x.shape, x.shape[d]),
    "opaque": lambda x, y, d, k: x.sort(d),
}  # fmt: skip


Given: TypeAlias = tuple[tuple[str | int, ...], torch.dtype, str]
"""An input: its dims, by name where they vary, its dtype, and how it lies."""


@st.composite
def inputs_given(draw: st.DrawFn) -> list[Given]:
    """One to three inputs that mostly can be broadcast together."""
    dims = draw(st.lists(st.sampled_from(DIMS), min_size=1, max_size=3))
    kinds = st.sampled_from((draw(st.sampled_from(DTYPES)), *DTYPES[:3]))
    found: list[Given] = []
    for _ in range(draw(st.integers(1, 3))):
        own = tuple(dims[draw(st.sampled_from((0, 0, 1, len(dims)))) :])
        found.append((own, draw(kinds), draw(st.sampled_from(LAYOUTS))))
    return found


def made(given_as: Given, sizes: dict[str, int], seed: int) -> Tensor:
    """An input at these sizes: small whole numbers, which all dtypes hold and sums keep exact."""
    dims, dtype, layout = given_as
    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in dims]
    generator = torch.Generator().manual_seed(seed)

    def numbers(*size: int) -> Tensor:
        low = 0 if dtype in (torch.uint8, torch.bool) else -3
        return torch.randint(low, 4, size, generator=generator).to(dtype)

    match layout:
        case "transposed" if len(shape) > 1:
            return numbers(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)
        case "strided" if shape:
            return numbers(*(2 * size for size in shape))[
                tuple([slice(None, None, 2)] * len(shape))
            ]
        case "expanded" if shape:
            return numbers(*shape[:-1], 1).expand(shape)
        case "offset" if shape:
            return numbers(*shape[:-1], shape[-1] + 3)[..., 2 : 2 + shape[-1]]
        case _:
            return numbers(*shape)


Line: TypeAlias = tuple[Step, int, int, int, bool]


def run_lines(lines: Sequence[Line], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Everything that the steps make; each takes two of the values before it."""
    values = list(inputs)
    for step, left, right, dim, keep in lines:
        result = step(values[left], values[right], dim, keep)
        values.extend(result if isinstance(result, tuple) else (result,))
    return values[len(inputs) :]


@st.composite
def functions(draw: st.DrawFn, inputs: Sequence[Tensor]) -> tuple[Line, ...]:
    """Steps that eager accepts on these inputs."""
    lines: list[Line] = []
    values = list(inputs)
    for name in draw(st.lists(st.sampled_from(sorted(STEPS)), min_size=4, max_size=10)):
        left, right = (draw(st.integers(0, len(values) - 1)) for _ in range(2))
        rank = values[left].dim()
        line = (STEPS[name], left, right, draw(st.integers(-max(rank, 1), max(rank, 1) - 1)),
                draw(st.booleans()))  # fmt: skip
        try:
            results = run_lines([line], values)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            continue
        lines.append(line)
        values.extend(results)
    return tuple(lines)


@pytest.mark.timeout(600)  # NEARHINT_EXPLORE draws many
@examples(30)
@given(inputs_given(), st.data())
def test_the_plan_of_a_function_gives_what_eager_gives(
    given_as: list[Given], data: st.DataObject
) -> None:
    traced = [made(each, SIZES[0], place) for place, each in enumerate(given_as)]
    lines = data.draw(functions(traced))

    def function(*inputs: Tensor) -> list[Tensor]:
        return run_lines(lines, inputs)

    if not lines:
        return
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    fakes = [mode.from_tensor(x, source=LocalSource(f"x{n}")) for n, x in enumerate(traced)]
    try:
        with torch.no_grad(), mode:
            graph = make_fx(function, tracing_mode="symbolic")(*fakes)
    except (RuntimeError, NotImplementedError):
        return  # what torch itself cannot trace
    captured = capture(graph, fakes)
    lowered = lower(captured.program, target_kind="cpu")
    for seed, sizes in enumerate(SIZES):
        inputs = [made(each, sizes, 7 * seed + place) for place, each in enumerate(given_as)]
        if not environment.evaluate_guards_for_args(fakes, inputs, ignore_static=False):
            continue  # torch would capture again
        ran = run_captured(lowered, Recorded(captured, [*inputs]))
        for result, expected, eager in zip(
            ran.results, ran.expected, function(*inputs), strict=True
        ):
            assert torch.equal(expected.isnan(), eager.isnan())
            # An f64 result may come through f32, which a Kernel rounds to as eager does.
            # Strides are those of the trace, which are not always the ones that an op gives.
            close(result.contiguous(), expected.contiguous(), at_least=2e-5)
