"""What inference functions become: few Kernels, and no division left in an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.unit.compiler.frontend.building import S0, Builder, tensor
from tests.unit.compiler.frontend.drawing import drawn
from tests.unit.compiler.frontend.running import assert_lowering_is_right, check
from torch import Tensor
from torch.nn import functional

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import lower
from nearhint_rules import expr as ex
from nearhint_rules.plan import Launch, RunNodes

BF16, F8 = torch.bfloat16, torch.float8_e4m3fn


def residual_rms_norm(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return total, total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def packed_swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return functional.silu(gate) * up


def quantised(blocks: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """Blocks in f8 with a power of two for each, as OCP's Microscaling Formats 1.0 have them."""
    largest = blocks.abs().amax(-1, keepdim=True)
    exponent = torch.floor(torch.log2(largest)) - 8
    scale = torch.exp2(exponent)
    narrow = (blocks / scale).clamp(-448, 448).to(F8)
    return narrow.view(shape), scale.squeeze(-1), (exponent.squeeze(-1) + 127).to(torch.uint8)


def rows_in_blocks(x: Tensor) -> Any:
    return quantised(x.reshape(x.shape[0], x.shape[1] // 32, 32), x.shape)


def all_in_blocks(x: Tensor) -> Any:
    return quantised(x.view(-1, 32), x.shape)


def rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return q * cos + rotated(q) * sin, k * cos + rotated(k) * sin


def chunked_rotary(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = q.chunk(2, -1)
    return (q.float() * cos + torch.cat((-right, left), -1).float() * sin).to(q.dtype)


def halved_rotary(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = q.shape[-1] // 2
    left, right = q[..., :half], q[..., half:]
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


def interleaved_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def interleaved_rotary_in_f32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., ::2].float(), x[..., 1::2].float()
    cos, sin = cos.float(), sin.float()
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return turned.flatten(-2).to(x.dtype)


def dequantised(w: Tensor, scale: Tensor) -> Tensor:
    return w.to(BF16) * scale[:, None]


def dequantised_from_zero_points(w: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return (w.to(BF16) - zero[:, None].to(BF16)) * scale[:, None]


def dequantised_by_group(w: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    rows, columns = w.shape
    groups = w.view(rows, columns // 128, 128).to(BF16)
    return ((groups - zero[..., None].to(BF16)) * scale[..., None]).view(rows, columns)


WIDE, HEADS = drawn(5, 7, 64, dtype=BF16), drawn(2, 4, 9, 64, dtype=BF16)
ANGLES = drawn(9, 64, dtype=BF16)
WEIGHTS, ZEROS = drawn(33, 256, dtype=torch.int8), drawn(33, 2, dtype=torch.int8)
Function = Callable[..., Any]
FUNCTIONS: dict[str, tuple[int, Function, tuple[Tensor, ...]]] = {
    # name: (reduction loops, function, arguments)
    "softmax": (1, lambda x: x.softmax(-1), (drawn(33, 70),)),
    "log_softmax": (1, lambda x: x.log_softmax(-1), (drawn(33, 70),)),
    "residual RMSNorm": (1, residual_rms_norm, (WIDE, WIDE, drawn(64, dtype=BF16))),
    "LayerNorm": (
        1,
        lambda x, w: functional.layer_norm(x, w.shape, w, w),
        (WIDE, drawn(64, dtype=BF16)),
    ),
    "SwiGLU": (0, lambda x, y: functional.silu(x) * y, (drawn(33, 70), drawn(33, 70, seed=1))),
    "packed SwiGLU": (0, packed_swiglu, (drawn(33, 140, dtype=BF16),)),
    "column sum": (1, lambda x: x.sum(0), (drawn(33, 70),)),
    "MX rows": (1, rows_in_blocks, (drawn(33, 96, dtype=BF16),)),
    "MX view": (1, all_in_blocks, (drawn(33, 96, dtype=BF16),)),
    "MX columns": (1, lambda x: rows_in_blocks(x.t()), (drawn(96, 33, dtype=BF16),)),
    "MX columns, copied": (
        1,
        lambda x: all_in_blocks(x.t().contiguous()),
        (drawn(96, 33, dtype=BF16),),
    ),
    "MX of one block a row": (1, rows_in_blocks, (drawn(33, 32, dtype=BF16),)),
    "sum of one row": (0, lambda x: x.float().sum(0), (drawn(1, 70, dtype=BF16),)),
    "var_mean": (1, lambda x: torch.var_mean(x, (1, 2)), (drawn(5, 33, 70),)),
    "var_mean of channels": (2, lambda x: torch.var_mean(x, (0, 2)), (drawn(5, 33, 70),)),
    "GroupNorm and SiLU": (
        2,
        lambda x, w, b: functional.silu(functional.group_norm(x, 4, w, b)),
        (drawn(5, 12, 7, 9, dtype=BF16), drawn(12, dtype=BF16), drawn(12, seed=1, dtype=BF16)),
    ),
    "normalised": (1, lambda x: functional.normalize(x, dim=-1), (drawn(33, 70),)),
    "normalised columns": (1, lambda x: functional.normalize(x, dim=0), (drawn(33, 70),)),
    "cosine similarity": (
        1,
        lambda x, y: functional.cosine_similarity(x, y, dim=-1),
        (drawn(33, 70), drawn(33, 70, seed=1)),
    ),
    "argmax": (1, lambda x: x.argmax(-1), (drawn(33, 70),)),
    "argmax of all": (1, lambda x: x.argmax(), (drawn(33, 70),)),
    "best of softmax": (1, lambda x: (x * 2).softmax(-1).max(-1), (drawn(33, 70),)),
    "cumsum": (1, lambda x: x.cumsum(-1), (drawn(33, 70),)),
    "cumsum of columns": (1, lambda x: x.cumsum(0), (drawn(33, 70),)),
    "permuted add": (
        0,
        lambda x, y: x.permute(2, 0, 1) + y,
        (drawn(5, 7, 64), drawn(64, 5, 7)),
    ),
    "rotary": (0, rotary, (HEADS, HEADS * 2, ANGLES, ANGLES.cos())),
    "chunked rotary": (0, chunked_rotary, (HEADS, ANGLES.float(), ANGLES.float().cos())),
    "halved rotary": (0, halved_rotary, (HEADS, ANGLES[:, :32], ANGLES[:, 32:])),
    "likely tokens": (1, lambda x: x.softmax(-1).cumsum(-1) > 0.9, (drawn(33, 70),)),
    "interleaved rotary": (0, interleaved_rotary, (HEADS, ANGLES[:, :32], ANGLES[:, 32:])),
    "interleaved rotary in f32": (
        0,
        interleaved_rotary_in_f32,
        (HEADS, ANGLES[:, :32], ANGLES[:, 32:]),
    ),
    "dequantised": (0, dequantised, (WEIGHTS, drawn(33, dtype=BF16))),
    "dequantised from zero points": (
        0,
        dequantised_from_zero_points,
        (WEIGHTS, drawn(33, dtype=BF16), ZEROS[:, 0].contiguous()),
    ),
    "dequantised by group": (0, dequantised_by_group, (WEIGHTS, drawn(33, 2, dtype=BF16), ZEROS)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_each_function_is_one_kernel_without_divisions(name: str, dynamic: bool) -> None:
    loops, function, arguments = FUNCTIONS[name]
    lowered = check(function, *arguments, dynamic=dynamic)
    (kernel,) = [found.kernel for found in lowered.kernels]
    assert [type(step) for step in lowered.plan.steps if isinstance(step, Launch | RunNodes)] == [
        Launch
    ]
    assert len(kernel.reduction) == loops
    assert not [ex.to_text(index) for index in indices(kernel) if divides(index)]
    if name.startswith("MX"):
        assert kernel.reduction == (ex.Int(32),)
    assert_lowering_is_right(lowered)


def indices(kernel: ir.Kernel) -> Iterator[ex.Expr]:
    for node in kernel.body:
        if isinstance(node, ir.Load | ir.Store | ir.Iota | ir.Arg):
            yield node.index


def divides(index: ex.Expr) -> bool:
    return isinstance(index, ex.FloorDiv | ex.Mod) or any(map(divides, ex.children(index)))


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64"])
def test_the_rms_norm_of_a_gpu_has_a_kernel(dtype: str) -> None:
    """There `functional.rms_norm` is one op."""
    b = Builder()
    x, weight = b.input(S0, 64, dtype=dtype), b.input(64, dtype=dtype)
    out = (tensor(S0, 64, dtype=dtype), tensor(S0, 1, dtype="f64" if dtype == "f64" else "f32"))
    normed = b.call("aten._fused_rms_norm.default", x, [64], weight, 1e-6, out=out)
    lowered = lower(b.program(normed), target_kind="cpu")
    assert len(lowered.kernels) == 1
    assert_lowering_is_right(lowered)
