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
from tests.benchmarks.captures import on_cuda
from tests.property.examples import examples
from tests.unit.compiler.frontend.running import Recorded, close, run_captured
from torch._dynamo.source import LocalSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from nearhint_compiler.pipeline import lower
from nearhint_daemon.workers.lowering_check import check_lowering
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
    torch.int16,
)
LAYOUTS = ("contiguous", "transposed", "strided", "expanded", "offset")


def set_in_place(x: Tensor, dim: int) -> Tensor:
    made = x.clone()
    made[1:] = 2
    made.select(dim, 0).copy_(x.select(dim, -1))
    return made.mul_(2)


def blocks_of(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Blocks of a row as small integers, with a scale for each."""
    blocks = x.reshape(*x.shape[:-1], -1, width)
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1) / 4
    return (blocks / scale).round().reshape(x.shape), scale.squeeze(-1)


def weighted(x: Tensor, y: Tensor) -> tuple[Tensor, tuple[int, ...], Tensor]:
    """x, its last size, and as many numbers of y."""
    return x, x.shape[-1:], y.reshape(-1)[: x.shape[-1]].type_as(x)


def places(y: Tensor, size: int) -> Tensor:
    """Numbers of y as places among so many."""
    return y.long() % size


def turned(x: Tensor, y: Tensor) -> Tensor:
    """A rotary embedding: halves of x, turned by what y has for the first one."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat(
        [first * y[..., :half] - second, second * y[..., :half] + first], -1
    ).contiguous()


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
    "floor": lambda x, y, d, k: (x * 0.75).floor(),
    "round": lambda x, y, d, k: (x * 0.5).round(),
    "truncated": lambda x, y, d, k: (x * 0.75).trunc(),
    "sign": lambda x, y, d, k: x.sign() + x.sgn(),
    "negative": lambda x, y, d, k: -x,
    "square": lambda x, y, d, k: x.square(),
    "root": lambda x, y, d, k: x.abs().sqrt() + (x.abs() + 1).rsqrt(),
    "exponential": lambda x, y, d, k: x.clamp(-9, 9).exp(),
    "logarithm": lambda x, y, d, k: x.abs().log1p() + (x.abs() + 1).log2(),
    "sigmoid": lambda x, y, d, k: x.sigmoid(),
    "relu": lambda x, y, d, k: x.relu(),
    "gelu": lambda x, y, d, k: nn.gelu(x, approximate="tanh" if k else "none"),
    "silu": lambda x, y, d, k: nn.silu(x),
    "softplus": lambda x, y, d, k: nn.softplus(x),
    "leaky": lambda x, y, d, k: nn.leaky_relu(x, 0.25),
    "elu": lambda x, y, d, k: nn.elu(x),
    "hard": lambda x, y, d, k: nn.hardswish(x) + nn.hardsigmoid(x) + nn.hardtanh(x),
    "erf": lambda x, y, d, k: x.erf(),
    "power": lambda x, y, d, k: x ** (3 if k else 2),
    "power of two": lambda x, y, d, k: 2 ** x.clamp(0, 5),
    "power of both": lambda x, y, d, k: x.abs() ** y.clamp(0, 3),
    "rest": lambda x, y, d, k: torch.fmod(x, 3),
    "rest of both": lambda x, y, d, k: torch.fmod(x, y.abs() + 1),
    "remainder of both": lambda x, y, d, k: x % (y.abs() + 1),
    "quotient": lambda x, y, d, k: x / (y.abs() + 1),
    "whole quotient": lambda x, y, d, k: torch.div(
        x, y.abs() + 1, rounding_mode="floor" if k else "trunc"
    ),
    "shifted": lambda x, y, d, k: ((x & 7) << 2) >> 1,
    "masked": lambda x, y, d, k: x.masked_fill(y > 0, 3),
    "between": lambda x, y, d, k: torch.lerp(x, y, 0.25),
    "with a product": lambda x, y, d, k: torch.addcmul(x, x, y, value=2),
    "with a quotient": lambda x, y, d, k: torch.addcdiv(x, x, y.abs() + 1, value=2),
    "at least": lambda x, y, d, k: x.clamp(min=y),
    "least": lambda x, y, d, k: torch.fmin(x, y) + torch.minimum(x, y),
    "variance and mean": lambda x, y, d, k: torch.var_mean(x, d, keepdim=k),
    "deviation": lambda x, y, d, k: x.std(keepdim=False) if k else x.std((0, -1)),
    "both ends": lambda x, y, d, k: torch.aminmax(x, dim=d, keepdim=k),
    "largest and its place": lambda x, y, d, k: x.max(d, keepdim=k),
    "place of the least": lambda x, y, d, k: x.argmin() if k else x.argmin(d),
    "products so far": lambda x, y, d, k: x.cumprod(d),
    "largest so far": lambda x, y, d, k: x.cummax(d),
    "below the largest so far": lambda x, y, d, k: x.cummin(d).values - x,
    "logarithms of sums": lambda x, y, d, k: x.flip(d).logcumsumexp(d),
    "logarithm of gamma": lambda x, y, d, k: x.abs().lgamma(),
    "crossed": lambda x, y, d, k: torch.linalg.cross(x[..., :3], y[..., -3:]),
    "sum of numbers": lambda x, y, d, k: x.nansum(d, keepdim=k),
    "numbers": lambda x, y, d, k: (x / (x - 1)).nan_to_num(posinf=7, neginf=-7),
    "no numbers": lambda x, y, d, k: (x / (x - 1)).isnan() | (x / (x - 1)).isinf(),
    "not": lambda x, y, d, k: x.logical_not() & ~(y > 1),
    "log softmax": lambda x, y, d, k: x.log_softmax(d),
    "rms norm": lambda x, y, d, k: nn.rms_norm(x, x.shape[-1:]),
    "group norm": lambda x, y, d, k: nn.group_norm(x.unsqueeze(0), 1),
    "normalised": lambda x, y, d, k: nn.normalize(x, dim=d),
    "taken apart": lambda x, y, d, k: x.unbind(d)[-1],
    "split": lambda x, y, d, k: torch.split(x, 2, d)[-1],
    "halved": lambda x, y, d, k: x.chunk(2, d)[int(k)],
    "gated": lambda x, y, d, k: nn.glu(x, d),
    "narrow": lambda x, y, d, k: x.narrow(d, 1, 1),
    "odd ones": lambda x, y, d, k: x[..., 1::2],
    "without the last": lambda x, y, d, k: x[:-1],
    "turned round": lambda x, y, d, k: x.permute(*reversed(range(x.dim()))),
    "moved": lambda x, y, d, k: x.movedim(0, d),
    "repeated": lambda x, y, d, k: x.repeat(2, *([1] * (x.dim() - 1))),
    "each twice": lambda x, y, d, k: (
        x.unsqueeze(-1).expand(*x.shape, 2).reshape(*x.shape[:-1], -1)
    ),
    "pairs": lambda x, y, d, k: x.reshape(*x.shape[:-1], -1, 2).sum(-1),
    "windows summed": lambda x, y, d, k: x.unfold(d, 3, 2).sum(-1),
    "cropped": lambda x, y, d, k: nn.pad(x, (-1, 1), value=4),
    "mirrored": lambda x, y, d, k: nn.pad(x.unsqueeze(0), (1, 1), mode="replicate"),
    "upper triangle": lambda x, y, d, k: x.triu(-int(k)),
    "trace": lambda x, y, d, k: x.diagonal(int(k)).sum(-1),
    "joined with another": lambda x, y, d, k: torch.cat([x, y, x], d),
    "stacked behind": lambda x, y, d, k: torch.stack([x, x + 1, x * 2], -1).flatten(-2),
    "filled as another": lambda x, y, d, k: torch.zeros_like(x) + torch.full_like(y, 2),
    "sum as doubles": lambda x, y, d, k: x.sum(d, dtype=torch.float64, keepdim=k),
    "mean as floats": lambda x, y, d, k: x.mean(d, dtype=torch.float32, keepdim=k),
    "sum as bytes": lambda x, y, d, k: x.sum(d, dtype=torch.int8),
    "to int": lambda x, y, d, k: x.clamp(-100, 100).to(torch.int32),
    "to int8": lambda x, y, d, k: x.clamp(-100, 100).to(torch.int8),
    "to half": lambda x, y, d, k: x.clamp(-100, 100).to(torch.float16 if k else torch.bfloat16),
    "to bool": lambda x, y, d, k: x.to(torch.bool),
    "like another": lambda x, y, d, k: x.type_as(y),
    "copied": lambda x, y, d, k: x.contiguous() if k else x.clone(),
    "added in place": lambda x, y, d, k: x.clone().add_(y if k else 1),
    "set in place": lambda x, y, d, k: set_in_place(x, d),
    "one in a scatter": lambda x, y, d, k: torch.select_scatter(x, x.select(d, 0) * 2, d, -1),
    "part in a scatter": lambda x, y, d, k: torch.slice_scatter(x, x[1:] + 1, 0, 1),
    "product of matrices": lambda x, y, d, k: x @ y.transpose(-1, -2),
    "product of a matrix": lambda x, y, d, k: (x.double() @ x.double().transpose(-1, -2)).relu(),
    "gathered": lambda x, y, d, k: x.gather(d, torch.zeros_like(x, dtype=torch.int64)),
    "chosen": lambda x, y, d, k: x[torch.tensor([1, 0])],
    "chosen by two": lambda x, y, d, k: x[torch.tensor([1, 0]), ..., torch.tensor([0, -1])],
    "chosen by numbers": lambda x, y, d, k: x[
        (x[:2] > 0).sum(-1).clamp(max=1), (y.sum(-1) > 0).long()[:1]
    ],
    "first of all": lambda x, y, d, k: x.topk(2, d)[0],
    "sorted and more": lambda x, y, d, k: x.sort(d)[0] * 2 + 1,
    "outer": lambda x, y, d, k: x.unsqueeze(-1) * y.unsqueeze(-2),
    "distance": lambda x, y, d, k: (x.unsqueeze(0) - x.unsqueeze(1)).abs().sum(d),
    "where less": lambda x, y, d, k: torch.where(x < y, 1.5, 0),
    "mean of a mask": lambda x, y, d, k: ((x > 0) * y).sum(d) / (x > 0).sum(d).clamp(min=1),
    "counted sizes": lambda x, y, d, k: torch.arange(x.shape[d]) * 1.0 * x.shape[0] - x.shape[-1],
    "position": lambda x, y, d, k: x + torch.arange(x.shape[-1]) // 2,
    "cut at a size": lambda x, y, d, k: x[: x.shape[0] // 2],
    "middle": lambda x, y, d, k: x.narrow(d, x.shape[d] // 3, x.shape[d] // 2),
    "rolled by a size": lambda x, y, d, k: x.roll(x.shape[d] // 2, d),
    "flipped both": lambda x, y, d, k: x.flip(0, -1),
    "hypotenuse": lambda x, y, d, k: torch.hypot(x, y) + torch.atan2(x, y.abs() + 1),
    "trigonometry": lambda x, y, d, k: x.sin() + x.cos() * x.atan() + x.sinh().tanh(),
    "xlogy": lambda x, y, d, k: torch.xlogy(x, y.abs()) + torch.logaddexp(x, y),
    "copied sign": lambda x, y, d, k: torch.copysign(x, y) + x.signbit(),
    "scaled by twos": lambda x, y, d, k: torch.ldexp(x, y.clamp(-3, 3)),
    "bits of both": lambda x, y, d, k: (x | y) ^ (x & y),
    "all of two": lambda x, y, d, k: (x > 0).all() | (y > 0).any(d),
    "counted in all": lambda x, y, d, k: x.count_nonzero(),
    "norm of two": lambda x, y, d, k: torch.linalg.vector_norm(x, 2 if k else float("inf"), d),
    "median": lambda x, y, d, k: x.contiguous().median(d)[0],  # torch reads past what is expanded
    "softmax as doubles": lambda x, y, d, k: x.softmax(d, dtype=torch.float64),
    "mish": lambda x, y, d, k: nn.mish(x) + nn.celu(x) + nn.threshold(x, 1, -1),
    "log sigmoid": lambda x, y, d, k: nn.logsigmoid(x),
    "logit": lambda x, y, d, k: x.sigmoid().logit(1e-3) + x.frac(),
    "unsafe split": lambda x, y, d, k: x.unsafe_split(2, d),
    "opaque": lambda x, y, d, k: x.sort(d),
    "softmax of what is not masked": lambda x, y, d, k: x.masked_fill(y > 1, -99.0).softmax(d),
    "softmax of a triangle": lambda x, y, d, k: torch.where(
        torch.arange(x.shape[-1]) <= torch.arange(x.shape[-2])[:, None], x, -99.0
    ).softmax(-1),
    "weighted layer norm": lambda x, y, d, k: nn.layer_norm(*weighted(x, y)),
    "weighted rms norm": lambda x, y, d, k: nn.rms_norm(*weighted(x, y)),
    "layer norm of two": lambda x, y, d, k: nn.layer_norm(x, x.shape[-2:]),
    "standardised": lambda x, y, d, k: (x - x.mean((0, -1), keepdim=True)) * 0.5,
    "blocks": lambda x, y, d, k: blocks_of(x, 2 if k else 4),
    "blocks of columns": lambda x, y, d, k: blocks_of(x.transpose(-1, -2), 2),
    "rows of a table": lambda x, y, d, k: nn.embedding(places(y, x.shape[0]), x.flatten(1)),
    "rows by size": lambda x, y, d, k: x.index_select(d, places(y, x.shape[d]).flatten()),
    "elements by size": lambda x, y, d, k: x.gather(d, places(y, x.shape[d])),
    "of two by size": lambda x, y, d, k: x[places(y, x.shape[0]), places(y + 1, x.shape[1])],
    "elements at the largest": lambda x, y, d, k: x.take_along_dim(x.argmax(d, keepdim=True), d),
    "whole by a size": lambda x, y, d, k: x.long() // x.shape[d] + y.long() % x.shape[0],
    "loss by labels": lambda x, y, d, k: nn.cross_entropy(
        x, places(y.flatten()[: x.shape[0]], x.shape[1]), reduction="none" if k else "mean"
    ),
    "losses": lambda x, y, d, k: (
        nn.mse_loss(x, y.type_as(x), reduction="sum"), nn.smooth_l1_loss(x, y.type_as(x))
    ),
    "one of five": lambda x, y, d, k: nn.one_hot(places(x, 5), 5),
    "turned in halves": lambda x, y, d, k: turned(x, y),
    "gated by a half": lambda x, y, d, k: nn.silu(x[..., 1::2]) * x[..., : x.shape[-1] // 2],
    "sums from behind": lambda x, y, d, k: x.flip(d).cumsum(d).flip(d),
    "scan and sum": lambda x, y, d, k: x.cumsum(d) / (x.abs().sum(d, keepdim=True) + 1),
    "above the mean": lambda x, y, d, k: (x > x.amax(d, keepdim=True) - 1).sum(d),
    "largest of two": lambda x, y, d, k: x.amax((0, -1), keepdim=k),
    "from least to largest": lambda x, y, d, k: (x - x.amin(d, keepdim=True))
    / (x.amax(d, keepdim=True) - x.amin(d, keepdim=True) + 1),
    "padded around": lambda x, y, d, k: nn.pad(
        x.unsqueeze(0), (1, 1), mode="reflect" if k else "circular"
    ),
    "padded and cut": lambda x, y, d, k: nn.pad(x, (0, 3, -1, 2)),
    "every third": lambda x, y, d, k: x[::2, 1::3],
    "sum of differences": lambda x, y, d, k: (x[..., 1:] - x[..., :-1]).abs().sum(d),
    "shared with a sort": lambda x, y, d, k: (
        (x.float() / (x.float().abs().sum(d, keepdim=True) + 1).sort(d)[0]).sum(d)
    ),
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
    target_kind = data.draw(st.sampled_from(("cpu", "cuda")))
    program = captured.program if target_kind == "cpu" else on_cuda(captured.program)
    lowered = lower(program, target_kind=target_kind)
    kernels = {found.id: found.kernel for found in lowered.kernels}
    for fallback in lowered.fallbacks:
        # What a daemon asks first: a right Kernel that it finds wrong is never served.
        assert check_lowering(kernels[fallback.kernel], fallback, seed=1).problem == ""
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
