"""The pinned list of CPU benchmark cases: 30 fused chains and 30 single ops.

The list was fixed before the kernels were tuned. Sizes are no powers of two and mostly no hints;
they run from what fits the first cache to what fits none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A torch function and the shapes of its arguments, which are random normal numbers.

    `dtype` is of all arguments; `prepare` may replace the arguments, to make a mask, say.
    """

    name: str
    function: Callable[..., Tensor | tuple[Tensor, ...]]
    shapes: tuple[Shape, ...]
    dtype: torch.dtype = torch.float32
    prepare: Callable[[list[Tensor]], list[Tensor]] = list

    def arguments(self, seed: int = 0, *, device: str = "cpu") -> list[Tensor]:
        """Fresh arguments; the same ones for the same seed on one device."""
        generator = torch.Generator(device).manual_seed(seed)
        drawn = [
            torch.randn(shape, generator=generator, device=device).to(self.dtype)
            for shape in self.shapes
        ]
        return self.prepare(drawn)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def _llama_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * normed.to(x.dtype)


def residual_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return _rms_norm(total, weight), total


def _residual_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x + residual, x.shape[-1:], weight, bias)


def _bias_residual_layer_norm(
    x: Tensor, bias: Tensor, residual: Tensor, weight: Tensor, shift: Tensor
) -> Tensor:
    return functional.layer_norm(x + bias + residual, x.shape[-1:], weight, shift)


def _embedding_layer_norm(
    words: Tensor, places: Tensor, kinds: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    return functional.layer_norm(words + places + kinds, words.shape[-1:], weight, bias, 1e-12)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores * 0.125 + mask, -1)


def additive_mask(arguments: list[Tensor]) -> list[Tensor]:
    scores, mask = arguments
    return [scores, torch.where(mask > 1.0, torch.finfo(mask.dtype).min, 0.0)]


def _causal_softmax(scores: Tensor, keep: Tensor) -> Tensor:
    return torch.softmax(torch.where(keep, scores * 0.125, float("-inf")), -1)


def _causal_mask(arguments: list[Tensor]) -> list[Tensor]:
    scores, _ = arguments
    return [scores, torch.ones(scores.shape[-2:], dtype=torch.bool).tril()]


def _alibi_softmax(scores: Tensor, slopes: Tensor, distance: Tensor) -> Tensor:
    return torch.softmax(scores * 0.125 + slopes * distance, -1)


def _mean_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


def _pool_mask(arguments: list[Tensor]) -> list[Tensor]:
    hidden, mask = arguments
    return [hidden, (mask > -1.0).float()]


def _rotary(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return x * cos - y * sin, y * cos + x * sin


def _batch_norm_relu(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    return torch.relu((x - mean) * torch.rsqrt(variance.abs() + 1e-5) * weight + bias)


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1) / (x.square().sum(-1).sqrt() * y.square().sum(-1).sqrt())


def _standardise(x: Tensor) -> Tensor:
    centred = x - x.mean(0)
    return centred * torch.rsqrt(centred.square().mean(0) + 1e-5)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias)


_BF16 = torch.bfloat16

CHAINS: tuple[Case, ...] = (
    Case("residual_layer_norm 1000x384", _residual_layer_norm,
         ((1000, 384), (1000, 384), (384,), (384,))),
    Case("residual_layer_norm 300x1000", _residual_layer_norm,
         ((300, 1000), (300, 1000), (1000,), (1000,))),
    Case("bias_residual_layer_norm 480x384", _bias_residual_layer_norm,
         ((480, 384), (384,), (480, 384), (384,), (384,))),
    Case("embedding_layer_norm 8x60x384", _embedding_layer_norm,
         ((8, 60, 384), (60, 384), (384,), (384,), (384,))),
    Case("residual_rms_norm 1000x1000", residual_rms_norm,
         ((1000, 1000), (1000, 1000), (1000,))),
    Case("rms_norm 700x3000", _rms_norm, ((700, 3000), (3000,))),
    Case("llama_rms_norm bf16 500x2000", _llama_rms_norm, ((500, 2000), (2000,)), _BF16),
    Case("bias_gelu 480x1536", lambda x, b: functional.gelu(x + b), ((480, 1536), (1536,))),
    Case("bias_gelu 1000x4100", lambda x, b: functional.gelu(x + b), ((1000, 4100), (4100,))),
    Case("bias_gelu_tanh 500x3000", lambda x, b: functional.gelu(x + b, approximate="tanh"),
         ((500, 3000), (3000,))),
    Case("bias_relu_residual 1000x768", lambda x, b, r: torch.relu(x + b) + r,
         ((1000, 768), (768,), (1000, 768))),
    Case("bias_silu 900x1100", lambda x, b: functional.silu(x + b), ((900, 1100), (1100,))),
    Case("bias_dropout_free_residual bf16 700x1500", lambda x, b, r: x + b + r,
         ((700, 1500), (1500,), (700, 1500)), _BF16),
    Case("swiglu 500x2730", lambda a, b: functional.silu(a) * b, ((500, 2730), (500, 2730))),
    Case("geglu 300x3000", lambda a, b: functional.gelu(a) * b, ((300, 3000), (300, 3000))),
    Case("geglu_tanh bf16 300x3000", lambda a, b: functional.gelu(a, approximate="tanh") * b,
         ((300, 3000), (300, 3000)), _BF16),
    Case("glu 1000x1001", lambda a, b: torch.sigmoid(a) * b, ((1000, 1001), (1000, 1001))),
    Case("masked_softmax 8x12x60x60", masked_softmax,
         ((8, 12, 60, 60), (8, 1, 1, 60)), prepare=additive_mask),
    Case("masked_softmax 4x12x200x200", masked_softmax,
         ((4, 12, 200, 200), (4, 1, 1, 200)), prepare=additive_mask),
    Case("causal_softmax 2x12x300x300", _causal_softmax,
         ((2, 12, 300, 300), (1, 1, 1, 1)), prepare=_causal_mask),
    Case("alibi_softmax 2x8x250x250", _alibi_softmax,
         ((2, 8, 250, 250), (8, 1, 1), (250, 250))),
    Case("mean_pool 24x100x384", _mean_pool,
         ((24, 100, 384), (24, 100, 1)), prepare=_pool_mask),
    Case("l2_normalise 1000x384", lambda x: x / x.square().sum(-1, keepdim=True).sqrt(),
         ((1000, 384),)),
    Case("rotary 4x12x100x32", _rotary,
         ((4, 12, 100, 32), (4, 12, 100, 32), (100, 32), (100, 32))),
    Case("logsumexp 4000x250", lambda x: torch.logsumexp(x, -1), ((4000, 250),)),
    Case("batch_norm_relu 8x60x30x30", _batch_norm_relu,
         ((8, 60, 30, 30), (60, 1, 1), (60, 1, 1), (60, 1, 1), (60, 1, 1))),
    Case("standardise_columns 3000x250", _standardise, ((3000, 250),)),
    Case("cosine 2000x384", _cosine, ((2000, 384), (2000, 384))),
    Case("relu_transposed_add 1500x1500", lambda a, b: torch.relu(a + b.T),
         ((1500, 1500), (1500, 1500))),
    Case("fake_quantise 900x1000", lambda x: torch.clamp(torch.round(x * 20.0), -127, 127) * 0.05,
         ((900, 1000),)),
)  # fmt: skip

SINGLES: tuple[Case, ...] = (
    Case("layer_norm 1000x1000", layer_norm, ((1000, 1000), (1000,), (1000,))),
    Case("layer_norm 480x384", layer_norm, ((480, 384), (384,), (384,))),
    Case("softmax 250x8000", lambda x: torch.softmax(x, -1), ((250, 8000),)),
    Case("softmax 2000x500", lambda x: torch.softmax(x, -1), ((2000, 500),)),
    Case("softmax 1152x60", lambda x: torch.softmax(x, -1), ((1152, 60),)),
    Case("softmax 2300x130", lambda x: torch.softmax(x, -1), ((2300, 130),)),
    Case("log_softmax 300x3000", lambda x: torch.log_softmax(x, -1), ((300, 3000),)),
    Case("gelu 1000x4000", functional.gelu, ((1000, 4000),)),
    Case("gelu_tanh 300x1100", lambda x: functional.gelu(x, approximate="tanh"), ((300, 1100),)),
    Case("silu 500x2730", functional.silu, ((500, 2730),)),
    Case("sigmoid 700x900", torch.sigmoid, ((700, 900),)),
    Case("tanh 480x384", torch.tanh, ((480, 384),)),
    Case("exp 1000x1100", torch.exp, ((1000, 1100),)),
    Case("relu 900x1000", torch.relu, ((900, 1000),)),
    Case("add 30x100", lambda a, b: a + b, ((30, 100), (30, 100))),
    Case("add 1000x1100", lambda a, b: a + b, ((1000, 1100), (1000, 1100))),
    Case("mul_broadcast 600x1500", lambda a, b: a * b, ((600, 1500), (1500,))),
    Case("transposed_add 1500x1500", lambda a, b: a + b.T, ((1500, 1500), (1500, 1500))),
    Case("rsqrt 300x1000", torch.rsqrt, ((300, 1000),)),
    Case("cast f32 to bf16 1000x1500", lambda x: x.to(torch.bfloat16), ((1000, 1500),)),
    Case("cast bf16 to f32 1000x1500", lambda x: x.float(), ((1000, 1500),), _BF16),
    Case("where 700x1000", lambda c, a: torch.where(c > 0, a, 0.0), ((700, 1000), (700, 1000))),
    Case("sum all 1000x3000", lambda x: x.sum(), ((1000, 3000),)),
    Case("sum rows 1000x3000", lambda x: x.sum(-1), ((1000, 3000),)),
    Case("sum columns 4000x1000", lambda x: x.sum(0), ((4000, 1000),)),
    Case("sum columns 65000x60", lambda x: x.sum(0), ((65000, 60),)),
    Case("mean rows 3000x384", lambda x: x.mean(-1), ((3000, 384),)),
    Case("amax rows 2000x700", lambda x: x.amax(-1), ((2000, 700),)),
    Case("var rows 1000x1000", lambda x: x.var(-1), ((1000, 1000),)),
    Case("any rows 1000x1500", lambda x: (x > 3.0).any(-1), ((1000, 1500),)),
)  # fmt: skip
