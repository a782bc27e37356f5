"""Every lowered op against eager: the Plan runs with the float64 interpreter as its binaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from tests.unit.compiler.frontend.building import S0, S1, Builder, tensor
from tests.unit.compiler.frontend.drawing import awkward, drawn
from tests.unit.compiler.frontend.running import (
    Recorded,
    check,
    checked,
    launched_nodes,
    record_each,
)
from torch import Tensor
from torch.nn import functional

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import lower
from nearhint_rules import expr as ex
from nearhint_rules.plan import RunNodes

INF = float("inf")
NAN = float("nan")


@pytest.fixture(autouse=True)
def plain_gelu() -> Iterator[None]:
    """oneDNN's gelu makes NaN of infinity; torch's own does not."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


F16, BF16, F64 = torch.float16, torch.bfloat16, torch.float64
I64, I32, I8, U8, BOOL = torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool

Function = Callable[..., Any]
UNARY: dict[str, Function] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "reciprocal": torch.reciprocal,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "relu": torch.relu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.2),
    "elu": functional.elu,
    "hardtanh": functional.hardtanh,
    "hardsigmoid": functional.hardsigmoid,
    "hardswish": functional.hardswish,
    "softplus": functional.softplus,
    "mish": functional.mish,
    "celu": lambda x: functional.celu(x, 0.7),
    "prelu": lambda x: functional.prelu(x, torch.full((1,), 0.3, dtype=x.dtype)),
    "log10": torch.log10,
    "logit": lambda x: torch.logit(x, 0.1),
    "logit of probabilities": lambda x: torch.logit(torch.sigmoid(x)),
    "sgn": torch.sgn,
    "frac": torch.frac,
    "log_sigmoid": functional.logsigmoid,
    "deg2rad": torch.deg2rad,
    "rad2deg": torch.rad2deg,
    "isposinf": torch.isposinf,
    "isneginf": torch.isneginf,
    "sinc": torch.sinc,
    "entr": torch.special.entr,
    "tan": torch.tan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "atan": lambda x: torch.atan(x * 3),
    "asin": torch.asin,
    "acos": torch.acos,
    "copysign of a number": lambda x: torch.copysign(x, -2.0),
    "threshold": lambda x: functional.threshold(x, 0.1, -2.0),
    "nan_to_num": torch.nan_to_num,
    "nan_to_num of three": lambda x: x.nan_to_num(1.5, 7.0, -7.0),
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "logical_not": torch.logical_not,
    "square": torch.square,
    "pow2": lambda x: x**2,
    "pow3": lambda x: x**3,
    "pow0.5": lambda x: x.relu() ** 0.5,
    "pow-1": lambda x: x**-1,
    "pow1.7": lambda x: x**1.7,
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "clamp_min": lambda x: x.clamp(min=0.1),
    "rsub": lambda x: 1 - x,
    "to_bf16": lambda x: x.to(BF16) * 2,
    "to_int": lambda x: x.nan_to_num(0, 0, 0).to(I32) + 1,
    "zeros_like": lambda x: x + torch.zeros_like(x),
    "masked": lambda x: x.masked_fill(x > 0, -INF),
    "full_like": lambda x: torch.where(x > 0, x, torch.full_like(x, 3)),
}


@cache
def captured_unary(dtype: torch.dtype) -> Mapping[str, Recorded]:
    return record_each(UNARY, awkward(5, 7, 3).to(dtype))


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [torch.float32, F64, F16])
def test_elementwise_ops_of_one_tensor(name: str, dtype: torch.dtype) -> None:
    lowered = checked(captured_unary(dtype)[name])
    assert launched_nodes(lowered) or name == "to_int"


BINARY: dict[str, tuple[Function, Tensor, Tensor]] = {
    "add": (torch.add, drawn(3, 5), drawn(5)),
    "add alpha": (lambda x, y: torch.add(x, y, alpha=2.5), drawn(3, 5), drawn(3, 1)),
    "sub": (torch.sub, drawn(3, 5), drawn(3, 1)),
    "mul": (torch.mul, awkward(30, 5), awkward(30, 5)),
    "div": (torch.div, awkward(30, 5), drawn(5)),
    "div floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), drawn(30, 5), drawn(5)),
    "div trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), drawn(30, 5), drawn(5)),
    "int div": (lambda x, y: torch.div(x, 3) + y, drawn(30, 5, dtype=I64), drawn(5, dtype=I64)),
    "int floor": (lambda x, y: x // 3 + y, drawn(30, 5, dtype=I64), drawn(5, dtype=I64)),
    "int trunc": (
        lambda x, y: torch.div(x, -3, rounding_mode="trunc") + y,
        drawn(30, 5, dtype=I32),
        drawn(5, dtype=I32),
    ),
    "int remainder": (lambda x, y: x % 4 + y % -4, drawn(30, 5, dtype=I64), drawn(5, dtype=I64)),
    "remainder": (torch.remainder, drawn(30, 5), drawn(5)),
    "fmod": (torch.fmod, drawn(30, 5), drawn(5)),
    "pow": (torch.pow, drawn(30, 5).abs(), drawn(5)),
    "maximum": (torch.maximum, awkward(30, 5), awkward(30, 5).flip(0)),
    "logaddexp": (torch.logaddexp, awkward(30, 5), awkward(30, 5).flip(0)),
    "logaddexp2": (torch.logaddexp2, awkward(30, 5), awkward(30, 5).flip(0)),
    "hypot": (torch.hypot, awkward(30, 5), awkward(30, 5).flip(0)),
    "atan2": (torch.atan2, awkward(30, 5), awkward(30, 5).flip(0)),
    "atan2 of integers": (torch.atan2, drawn(30, 5, dtype=I64), drawn(5, dtype=I32)),
    "copysign": (torch.copysign, awkward(30, 5), awkward(30, 5).flip(0)),
    "copysign of integers": (torch.copysign, drawn(30, 5, dtype=I64), drawn(5, dtype=I8)),
    "heaviside": (torch.heaviside, awkward(30, 5), drawn(5)),
    "heaviside of integers": (
        torch.heaviside,
        drawn(30, 5, dtype=I64),
        drawn(5, dtype=I64),
    ),
    "fmax": (torch.fmax, awkward(30, 5), awkward(30, 5).flip(0)),
    "fmin": (torch.fmin, awkward(30, 5), awkward(30, 5).flip(0)),
    "fmax of two types": (torch.fmax, drawn(30, 5, dtype=I32), awkward(30, 5).to(F16)),
    "fmin of integers": (torch.fmin, drawn(30, 5, dtype=I32), drawn(5, dtype=I64)),
    "isinf of integers": (
        lambda x, y: torch.isposinf(x) | torch.isneginf(y) | (x > 0),
        drawn(30, 5, dtype=I32),
        drawn(5, dtype=I64),
    ),
    "degrees of integers": (
        lambda x, y: torch.deg2rad(x) + torch.rad2deg(y),
        drawn(30, 5, dtype=I32),
        drawn(5, dtype=I64),
    ),
    "xlogy": (torch.xlogy, awkward(30, 5), awkward(30, 5).flip(0)),
    "xlogy of a number": (
        lambda x, y: torch.xlogy(0.5, x) + torch.xlogy(y, 2.0),
        drawn(30, 5).abs(),
        drawn(5),
    ),
    "xlog1py of a number": (
        lambda x, y: torch.special.xlog1py(0.5, x) + torch.special.xlog1py(y, 2.0),
        drawn(30, 5).abs(),
        drawn(5),
    ),
    "xlog1py of integers": (torch.special.xlog1py, drawn(30, 5, dtype=I32), awkward(5)),
    "minimum": (torch.minimum, awkward(30, 5), awkward(30, 5).flip(0)),
    "clamp tensor": (lambda x, y: torch.clamp(x, y, y + 1), awkward(30, 5), drawn(5)),
    "compare": (lambda x, y: (x < y) | (x >= 1) & (y != 0.5), awkward(30, 5), drawn(5)),
    "compare mixed": (lambda x, y: (x < y) ^ (x == 2), drawn(30, 5, dtype=I32), drawn(5)),
    "logical": (
        lambda x, y: torch.logical_and(x, y) | torch.logical_xor(x, y),
        awkward(30, 5),
        drawn(5),
    ),
    "bits": (
        lambda x, y: (x & y) | ~(x ^ 3),
        drawn(30, 5, dtype=U8),
        drawn(5, dtype=U8),
    ),
    "bool arithmetic": (lambda x, y: (x + y) * x, drawn(30, 5, dtype=BOOL), drawn(5, dtype=BOOL)),
    "where": (lambda x, y: torch.where(x > y, x, 0.25), drawn(30, 5), drawn(5)),
    "where int": (lambda x, y: torch.where(x > 0, x, y), drawn(30, 5, dtype=I64), drawn(5)),
    "masked fill tensor": (lambda x, y: x.masked_fill(x > 0, y), drawn(30, 5), torch.tensor(2.0)),
    "half and int": (lambda x, y: x * 2.5 + y, drawn(30, 5, dtype=F16), torch.tensor(3)),
    "half and ints": (lambda x, y: x * 2.5 + y, drawn(30, 5, dtype=F16), drawn(5, dtype=I64)),
    "half and float": (lambda x, y: x * y - 0.1, drawn(30, 5, dtype=F16), drawn(5)),
    "half and bfloat": (torch.add, drawn(30, 5, dtype=F16), drawn(5, dtype=BF16)),
    "half compare": (
        lambda x, y: (x > 0.1) & (y < x),
        drawn(99, 5, dtype=F16),
        drawn(5, dtype=F16),
    ),
    "bool and int": (lambda x, y: x + y * 2, drawn(30, 5, dtype=BOOL), drawn(5, dtype=I8)),
    "bytes": (torch.add, drawn(30, 5, dtype=U8), drawn(5, dtype=I8)),
    "int and float": (lambda x, y: x * 0.5 + y, drawn(30, 5, dtype=I64), drawn(5, dtype=I8)),
    "scalar tensor": (lambda x, y: x * y, drawn(30, 5), torch.tensor(2.0, dtype=F64)),
    "ldexp": (torch.ldexp, drawn(30, 5), drawn(5)),
    "addcmul": (lambda x, y: torch.addcmul(x, y, y, value=0.5), drawn(30, 5), drawn(5)),
    "addcdiv": (lambda x, y: torch.addcdiv(x, y, y.exp(), value=0.5), drawn(30, 5), drawn(5)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), drawn(30, 5), drawn(30, 5)),
}


@pytest.mark.parametrize("name", BINARY)
def test_elementwise_ops_of_two_tensors(name: str) -> None:
    function, left, right = BINARY[name]
    assert launched_nodes(check(function, left, right))


COMPARED: dict[str, Function] = {
    "a tenth": lambda x: (x == 0.1, x != 0.1, x > 0.1, x >= 0.1, x < 0.1, x <= 0.1),
    "a third": lambda x: (x == 1 / 3, x > 1 / 3, x >= 1 / 3, x < 1 / 3, x <= 1 / 3),
    "three tenths": lambda x: torch.where(x > 0.3, 0.0, x + 1),
    "integers": lambda x: (x == 2049, x > 257, x <= 2049),
}


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("name", COMPARED)
def test_low_precision_is_compared_with_numbers_as_it_has_them(
    name: str, dtype: torch.dtype
) -> None:
    """A tenth is no half float: what is equal to it is the one that it rounds to."""
    numbers = torch.tensor([0.1, 1 / 3, 0.3, 2049, 257], dtype=dtype)
    x = torch.stack([numbers, numbers * (1 + 1 / 64), numbers * (1 - 1 / 64), -numbers])
    lowered = check(COMPARED[name], x.repeat(3, 2))
    assert launched_nodes(lowered)


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("other", [F64, torch.float32, BF16])
def test_low_precision_is_compared_with_zero_dim_tensors_as_it_has_them(
    dtype: torch.dtype, other: torch.dtype
) -> None:
    numbers = torch.tensor([0.1, 0.3, 2049, 257], dtype=dtype)

    def compared(x: Tensor, tenth: Tensor, size: Tensor) -> Any:
        return x == tenth, x > tenth, x <= tenth, x % tenth, x == size, x < x.shape[0]

    tenth, size = torch.tensor(0.1, dtype=other), torch.tensor(2049)
    x = torch.stack([numbers, numbers * (1 + 1 / 64), -numbers]).repeat(3, 2)
    assert launched_nodes(check(compared, x, tenth, size))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_low_precision_leaves_the_remainder_of_a_number_as_it_has_it(dtype: torch.dtype) -> None:
    """0.5 is no multiple of the half float that a tenth is, and one of 0.1 in f32, almost."""
    x = torch.tensor([0.5, 0.3, 1.1, 7.7, -0.5, 100.0], dtype=dtype)
    assert launched_nodes(check(lambda x: (x % 0.1, torch.fmod(x, 0.1)), x))


LOSSES: dict[str, Function] = {
    "square": functional.mse_loss,
    "smooth": lambda x, y, **how: functional.smooth_l1_loss(x, y, beta=0.5, **how),
    "huber": lambda x, y, **how: functional.huber_loss(x, y, delta=0.7, **how),
    "soft margin": functional.soft_margin_loss,
    "logits": functional.binary_cross_entropy_with_logits,
    "weighted logits": lambda x, y, **how: functional.binary_cross_entropy_with_logits(
        x, y, weight=y[:1] + 0.5, pos_weight=x[0].abs(), **how
    ),
}


@pytest.mark.parametrize("made", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, dtype: torch.dtype, made: str) -> None:
    x, target = drawn(5, 7, 12, dtype=dtype), drawn(5, 7, 12, seed=1, dtype=dtype)
    lowered = check(lambda x, y: LOSSES[name](x * 2, y, reduction=made), x, target)
    assert len(launched_nodes(lowered)) == 1


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_awkward_numbers(name: str) -> None:
    x, target = awkward(30, 5), awkward(30, 5).flip(0)
    assert launched_nodes(check(lambda x, y: LOSSES[name](x, y, reduction="none"), x, target))


@pytest.mark.parametrize("made", ["none", "mean"])
@pytest.mark.parametrize("name", ["huber", "soft margin"])
def test_a_loss_that_torch_promises_in_another_dtype_than_it_gives_is_eager_s(
    name: str, made: str
) -> None:
    x, target = drawn(30, 5, dtype=F16), drawn(30, 5, seed=1)
    lowered = check(lambda x, y: LOSSES[name](x, y, reduction=made), x, target)
    assert not launched_nodes(lowered)
    assert launched_nodes(check(lambda x, y: LOSSES[name](y, x, reduction=made), x, target))


def test_a_loss_beside_a_target_that_is_broadcast() -> None:
    check(lambda x, y: torch.ops.aten.mse_loss(x, y, 0), drawn(30, 5), drawn(5))


_aten = torch.ops.aten
GRADIENTS: dict[str, Function] = {
    "elu": lambda g, x: _aten.elu_backward(g, 1.5, 1.0, 1.0, False, x),
    "gelu": _aten.gelu_backward,
    "gelu of tanh": lambda g, x: _aten.gelu_backward(g, x, approximate="tanh"),
    "glu": lambda g, x: _aten.glu_backward(g[:, :35], x, -1),
    "hardswish": _aten.hardswish_backward,
    "hard ones": lambda g, x: _aten.hardtanh_backward(_aten.hardsigmoid_backward(g, x), x, -1, 1),
    "leaky relu": lambda g, x: _aten.leaky_relu_backward(g, x, 0.2, False),
    "relu": lambda g, x: _aten.threshold_backward(g, x, 0),
    "sigmoid": _aten.sigmoid_backward,
    "silu": _aten.silu_backward,
    "softplus": lambda g, x: _aten.softplus_backward(g, x, 1.0, 20.0),
    "tanh": _aten.tanh_backward,
    "softmax": lambda g, x: _aten._softmax_backward_data(g, x, -1, x.dtype),
    "softmax of columns": lambda g, x: _aten._softmax_backward_data(g, x, 0, x.dtype),
    "log sigmoid": lambda g, x: _aten.log_sigmoid_backward(g, x, (-x.abs()).exp()),
    "huber loss": lambda g, x: _aten.huber_loss_backward(g, x, g, 1, 0.5),
    "mean squares": lambda g, x: _aten.mse_loss_backward(g, x, g, 1),
    "mish": _aten.mish_backward,
    "prelu": lambda g, x: _aten._prelu_kernel_backward(g, x, x.new_full((1,), 0.3))[0],
    "smooth l1 loss": lambda g, x: _aten.smooth_l1_loss_backward(g, x, g, 1, 0.5),
    "log_softmax": lambda g, x: _aten._log_softmax_backward_data(g, x, -1, x.dtype),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("dtype", [torch.float32, F16, BF16])
def test_a_gradient_joins_what_is_around_it(name: str, dtype: torch.dtype) -> None:
    gradient, x = drawn(33, 70, dtype=dtype), drawn(33, 70, seed=1, dtype=dtype)
    lowered = check(lambda g, x: GRADIENTS[name](g * 2, x) + 1, gradient, x)
    assert len(launched_nodes(lowered)) == 1
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)


def test_integer_reductions() -> None:
    check(lambda x: (x.sum(1), x.amax(0), x.prod(1), (x > 2).sum()), drawn(9, 8, dtype=I32))


def test_layer_norm_makes_the_outputs_that_are_used() -> None:
    def both(x: Tensor, w: Tensor, b: Tensor) -> Any:
        return torch.native_layer_norm(x, (12,), w, b, 1e-5)

    lowered = check(both, drawn(5, 7, 12), drawn(12), drawn(12))
    assert [len(outputs) for outputs in launched_nodes(lowered).values()] == [3]
    lowered = check(lambda *args: both(*args)[0], drawn(5, 7, 12), drawn(12), drawn(12))
    assert [len(outputs) for outputs in launched_nodes(lowered).values()] == [1]


VIEWS: dict[str, Function] = {
    "transpose": lambda x: x.transpose(0, 2) + 1,
    "permute": lambda x: x.permute(2, 0, 1) * 2,
    "reshape": lambda x: (x * 2).reshape(x.shape[0], -1) + 1,
    "split dim": lambda x: (x + 1).view(x.shape[0], x.shape[1], 3, 4).transpose(1, 2).exp(),
    "unsqueeze": lambda x: x.unsqueeze(1) + x.unsqueeze(2),
    "expand": lambda x: x[:, :1].expand(x.shape) + x,
    "slice": lambda x: x[:, 1:] + x[:, :-1],
    "select": lambda x: x[:, 0] * x[:, -1],
    "step": lambda x: x[..., ::2] * x[..., 1::2],
    "chunk": lambda x: torch.mul(*x.chunk(2, -1)),
    "split": lambda x: torch.add(*x.split(6, -1)),
    "unbind": lambda x: torch.add(*x[..., :2].unbind(-1)),
    "squeeze": lambda x: x[:, :1].squeeze(1) + 1,
    "broadcast": lambda x: x + x.sum(0) + x[0, 0],
    "flatten": lambda x: x.flatten() + 1,
    "transposed contiguous": lambda x: x.transpose(1, 2).contiguous() + 1,
    "viewed output": lambda x: (x + 1).reshape(-1),
    "two layouts": lambda x: (x + 1, x.transpose(0, 1) + 2),
    "arange": lambda x: x + torch.arange(x.shape[-1]),
    "tril": lambda x: x.tril() + 1,
    "triu": lambda x: x.triu(1) * 2,
    "size": lambda x: x * x.shape[0] + x.shape[1],
    "tensor of a size": lambda x: x / torch.full((), x.shape[1], dtype=F64),
    "filled with a size": lambda x: torch.full_like(x, x.shape[1]) * x,
    "causal": lambda x: torch.where(
        torch.arange(x.shape[1])[:, None] >= torch.arange(x.shape[2]), x, -INF
    ).softmax(-1),
    "gated": lambda x: functional.glu(x, -1),
    "gated 2": lambda x: functional.glu(x[:, : x.shape[1] // 2 * 2], 1) + 1,
    "unfold": lambda x: x.unfold(2, 4, 2).sum(-1),
    "unfold rows": lambda x: x.unfold(-2, 3, 1) * 2,
    "diagonal": lambda x: x.diagonal(0, 1, 2) + 1,
    "diagonal above": lambda x: x.diagonal(2, 1, 2) + 1,
    "diagonal below": lambda x: x.diagonal(-3, 2, 1) + 1,
    "matrices of diagonals": lambda x: torch.diag_embed(x * 2) + 1,
    "matrices of diagonals above": lambda x: torch.diag_embed(x * 2, 1, 0, -1).exp(),
    "turned": lambda x: torch.rot90(x * 2, 1, (1, 2)) + 1,
    "turned back": lambda x: torch.rot90(x * 2, 3, (1, 2)).relu(),
    "padded": lambda x: functional.pad(x, (1, 2), value=0.5) * 2,
    "padded behind": lambda x: functional.pad(x * 2, (0, 0, 0, 3)).exp(),
    "padded before": lambda x: functional.pad(x + 1, (3, 0)).cumsum(-1),
    "heads": lambda x: (x * 2).view(x.shape[0], x.shape[1], 3, 4).transpose(1, 2).contiguous(),
    "rotate": lambda x: x[..., :6] * 2 - x[..., 6:],
    "column mean": lambda x: x - x.mean((0, 1)),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("kind", ["plain", "transposed", "sliced", "batch of one"])
def test_views(name: str, kind: str) -> None:
    x = {
        "plain": drawn(5, 7, 12),
        "transposed": drawn(7, 5, 12).transpose(0, 1),
        "sliced": drawn(6, 9, 13)[1:, 1:8, :12],
        "batch of one": drawn(1, 7, 12),
    }[kind]
    check(VIEWS[name], x)


def test_matrices_of_diagonals_are_made_where_these_are() -> None:
    lowered = check(lambda x: torch.diag_embed(x * 2) + 1, drawn(5, 7))
    assert len(lowered.kernels) == 1
    assert not any(isinstance(step, RunNodes) for step in lowered.plan.steps)


def test_static_shapes_are_lowered_as_well() -> None:
    lowered = check(lambda x: functional.gelu(x + 1).sum(-1), drawn(33, 17), dynamic=False)
    assert not lowered.kernels[0].kernel.symbols


BORDERS: dict[str, tuple[int, tuple[int, ...]]] = {
    "a row": (3, (2, 3)),
    "rows without a batch": (2, (4, 1)),
    "an image": (4, (1, 2, 3, 0)),
    "a volume": (5, (1, 1, 2, 0, 0, 1)),
    "cut at one end": (4, (-1, 2, 1, -1)),
}


@pytest.mark.parametrize("dtype", [torch.float64, F16, torch.uint8], ids=str)
@pytest.mark.parametrize("kind", ["Reflection", "Replication"])
@pytest.mark.parametrize("name", BORDERS)
def test_borders_made_of_what_they_surround_join_the_ops_beside_them(
    name: str, kind: str, dtype: torch.dtype
) -> None:
    rank, sides = BORDERS[name]
    pad: torch.nn.Module = getattr(torch.nn, f"{kind}Pad{len(sides) // 2}d")(sides)
    x = drawn(*(3, 4, 5, 6, 7)[-rank:], dtype=dtype)
    lowered = check(lambda x: pad(x + 1) * 2, x)
    (nodes,) = launched_nodes(lowered)
    assert len(nodes) == len(("add", "pad", "mul"))


@pytest.mark.parametrize("dtype", ["bool", "f8e4m3fn"])
def test_borders_that_eager_refuses_are_not_lowered(dtype: str) -> None:
    build = Builder()
    x = build.input(S0, S1, dtype=dtype)
    out = tensor(S0, ex.add(S1, 3), dtype=dtype)
    border = build.call("aten.replication_pad1d.default", x, (1, 2), out=out)
    program = build.program(build.call("aten.clone.default", border, out=out))
    plan = lower(program, target_kind="cpu").plan
    assert any(isinstance(step, RunNodes) and 0 in step.nodes for step in plan.steps)


def test_what_a_tensor_leaves_of_a_number_is_lowered_unless_zero_is_an_error() -> None:
    assert launched_nodes(check(lambda x: 3.5 % x + 1, drawn(30, 5)))
    whole = check(lambda x: 3 % x + 1, drawn(30, 5, dtype=I64).abs() + 1)
    assert (0,) not in launched_nodes(whole)


@pytest.mark.parametrize("shape", [(0, 7), (4, 0), (1, 1)])
def test_empty_and_single_sizes(shape: tuple[int, ...]) -> None:
    check(lambda x: (x * 2).softmax(-1) + 1, drawn(*shape))
    check(lambda x: (x + 1).sum(0), drawn(*shape))


def test_channels_last_stays_channels_last_and_is_walked_in_one_loop() -> None:
    x = drawn(3, 8, 5, 5).to(memory_format=torch.channels_last)
    lowered = check(lambda x: torch.relu(x * 2), x)
    assert [len(kernel.kernel.pointwise) for kernel in lowered.kernels] == [1]


def group_norm_with_statistics(x: Tensor, w: Tensor, b: Tensor) -> Any:
    batch, channels = x.shape[:2]
    return torch.native_group_norm(x, w, b, batch, channels, x[0, 0].numel(), 4, 1e-5)


@pytest.mark.parametrize("shape", [(3, 8, 5), (1, 8, 5, 7), (2, 4, 3, 5), (2, 8, 3, 5, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, F16])
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_group_norm_makes_the_outputs_that_are_used(
    shape: tuple[int, ...], dtype: torch.dtype, dynamic: bool
) -> None:
    arguments = [drawn(*each, dtype=dtype) for each in (shape, shape[1:2], shape[1:2])]
    lowered = check(group_norm_with_statistics, *arguments, dynamic=dynamic)
    assert len(lowered.kernels) == 1


@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 4, 3, 5), (1, 4, 7)])
def test_an_instance_norm_is_lowered(shape: tuple[int, ...]) -> None:
    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.instance_norm(x, weight=weight, bias=bias)

    assert check(norm, drawn(*shape), drawn(4), drawn(4, seed=1)).kernels


@pytest.mark.parametrize("dim", [0, 2])
def test_the_norm_of_a_weight_is_one_kernel(dim: int) -> None:
    def weights(v: Tensor, g: Tensor) -> Any:
        made, lengths = torch.ops.aten._weight_norm_interface(v * 2, g, dim)
        return made + 1, lengths

    lengths = [1, 1, 1]
    lengths[dim] = (6, 9, 35)[dim]
    lowered = check(weights, drawn(6, 9, 35), drawn(*lengths))
    assert len(lowered.kernels) == 1


def test_what_is_added_before_and_after_a_group_norm_shares_its_kernel() -> None:
    def block(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return functional.group_norm(x + y, 4, w).relu() + x

    lowered = check(block, drawn(3, 8, 5, 7), drawn(3, 8, 5, 7, seed=1), drawn(8))
    (kernel,) = lowered.kernels
    assert [param.role for param in kernel.kernel.params] == ["in", "in", "in", "out"]


def test_batch_norm_in_inference() -> None:
    def norm(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.relu(functional.batch_norm(x, mean, variance, weight, bias))

    channels = [drawn(8, seed=seed).abs() for seed in range(4)]
    lowered = check(norm, drawn(3, 8, 5, 5), *channels)
    (kernel,) = lowered.kernels
    # The roundings of torch's own: 1 / sqrt(variance + eps).
    names = [node.name for node in kernel.kernel.body if isinstance(node, ir.Op)]
    assert [name for name in names if name in ("sqrt", "rsqrt", "reciprocal")] == [
        "sqrt",
        "reciprocal",
    ]
