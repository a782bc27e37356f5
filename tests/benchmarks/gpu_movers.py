"""What only moves memory as a function of the sweeps does, with next to no arithmetic.

Each takes the arguments of the function that it is for. What all of the function's inputs are read
for, and all of its outputs written by, in the same places, says what the function's arithmetic
costs; what is read and written in a simpler way, what its order does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from tests.benchmarks.cpu_cases import Shape
from tests.benchmarks.other_functions import GROUPS
from tests.benchmarks.strided_functions import GROUPS as GROUPS_LAST
from tests.benchmarks.sweep_functions import wide
from tests.benchmarks.sweeps import Sweep
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Mover:
    """A function that moves what another one does, or nearly.

    `is_one_op`: eager runs it as one kernel, which is worth timing, too. `layout`: the shapes of
    its arguments by the sizes of a sweep, where they are not the other function's.
    """

    name: str
    function: Callable[..., Tensor | tuple[Tensor, ...]]
    is_one_op: bool = False
    layout: Callable[..., tuple[Shape, ...]] | None = None

    def of(self, sweep: Sweep) -> Sweep:
        """The sweep with this function in place of its own."""
        return replace(sweep, function=self.function, layout=self.layout or sweep.layout)


def row_sum_and_walk(x: Tensor) -> Tensor:
    values = wide(x)
    return (values - values.sum(-1, keepdim=True)).to(x.dtype)


def scaled_total(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return weight * total, total


def row_sum_of_total(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return weight * row_sum_and_walk(total), total


def scale_and_shift(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (wide(x) * wide(weight) + wide(bias)).to(x.dtype)


def row_sum_scaled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    values = wide(x)
    less = values - values.sum(-1, keepdim=True)
    return (less * wide(weight) + wide(bias)).to(x.dtype)


def total(x: Tensor) -> Tensor:
    return x.sum(dtype=torch.float32)


def largest_of_columns(x: Tensor) -> Tensor:
    return x.amax(0)


def sums_of_rows(x: Tensor) -> Tensor:
    return x.sum(-1, dtype=torch.float32)


def largest_of_rows(x: Tensor) -> Tensor:
    return x.amax(-1)


def sums_of_planes(x: Tensor) -> Tensor:
    return x.sum((0, 2), dtype=torch.float32)


def largest_of_planes(x: Tensor) -> Tensor:
    return x.amax((0, 2))


def to_f8(x: Tensor) -> Tensor:
    return x.to(torch.float8_e4m3fn)


def to_f8_transposed(x: Tensor) -> Tensor:
    return x.t().to(torch.float8_e4m3fn, memory_format=torch.contiguous_format)


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def permuted(x: Tensor, y: Tensor) -> Tensor:
    return x.permute(2, 0, 1).contiguous()


def two_alike(rows: int, middle: int, columns: int) -> tuple[Shape, ...]:
    return ((rows, middle, columns),) * 2


def rotated_by_nothing(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + sin


def to_scale(weight: Tensor, scale: Tensor) -> Tensor:
    return weight.to(scale.dtype)


def middle_less_largest(x: Tensor) -> Tensor:
    return x - x.amax(1, keepdim=True)


def columns_less_sums(x: Tensor) -> Tensor:
    return x - x.sum(0)


def groups_less_sums(x: Tensor, weight: Tensor, bias: Tensor, count: int = GROUPS) -> Tensor:
    rows, channels, height, width = x.shape
    values = wide(x).reshape(rows, count, channels // count, height, width)
    less = (values - values.sum((2, 3, 4), keepdim=True)).reshape(x.shape)
    return (less * wide(weight)[:, None, None] + wide(bias)[:, None, None]).to(x.dtype)


def scaled_channels(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (wide(x) * wide(weight)[:, None, None] + wide(bias)[:, None, None]).to(x.dtype)


def sums_of_products(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1)


def sums_of_inner_planes(x: Tensor) -> Tensor:
    return x.sum((1, 2), dtype=torch.float32)


def masked_less_sums(scores: Tensor, mask: Tensor) -> Tensor:
    values = wide(scores) + wide(mask)
    return (values - values.sum(-1, keepdim=True)).to(scores.dtype)


def products_less_sums(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    values = wide(x) * wide(y)
    return ((values - values.sum(-1, keepdim=True)) * wide(weight)).to(x.dtype)


def wide_sums_of_products(x: Tensor, y: Tensor) -> Tensor:
    return (wide(x) * wide(y)).sum(-1)


def largest_of_logits(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.amax(-1)


def within_zeros(x: Tensor) -> Tensor:
    return functional.pad(x, (1, 1, 1, 1))


def planes_less_sums(x: Tensor) -> Tensor:
    return x - x.sum((2, 3), keepdim=True)


def largest_of_middle(outputs: Tensor, weights: Tensor) -> Tensor:
    return outputs.amax(1)


def halves_added(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x[..., :half] + x[..., half:]


def turned_groups_less_sums(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """In the order of memory that the sums are in, which is not the images'."""
    return groups_less_sums(x.contiguous(), weight, bias, GROUPS_LAST)


def groups_of_places_less_sums(x: Tensor) -> Tensor:
    groups = torch.unflatten(wide(x), -1, (GROUPS_LAST, -1))
    return (groups - groups.sum((1, 3), keepdim=True)).to(x.dtype).flatten(2)


def largest_of_channels(x: Tensor) -> Tensor:
    return x.amax((2, 3))


def tokens_less_sums(x: Tensor) -> Tensor:
    values = wide(x)
    return (values - values.sum(1, keepdim=True)).to(x.dtype)


def largest_tokens(x: Tensor, logits: Tensor) -> Tensor:
    return x.amax(1)


def added_taps(x: Tensor, bias: Tensor, *weights: Tensor) -> Tensor:
    return x + bias


_ROWS = (Mover("a row's sum, then a walk over it", row_sum_and_walk),)
MOVERS: Mapping[str, tuple[Mover, ...]] = {
    "softmax": _ROWS,
    "log_softmax": _ROWS,
    "cumsum": _ROWS,
    "rms_norm_residual": (
        Mover("a row's sum, then a walk over it", row_sum_of_total),
        Mover("add, and scale", scaled_total),
    ),
    "layer_norm": (
        Mover("a row's sum, then a walk over it", row_sum_scaled),
        Mover("scale and shift", scale_and_shift),
    ),
    "column_sum": (
        Mover("largest of columns", largest_of_columns, is_one_op=True),
        Mover("sum of all", total, is_one_op=True),
    ),
    "mx_quantise": (Mover("conversion", to_f8, is_one_op=True),),
    "mx_quantise_transposed": (
        Mover("conversion, transposed", to_f8_transposed, is_one_op=True),
        Mover("conversion, straight", to_f8, is_one_op=True),
    ),
    "swiglu": (Mover("add", add, is_one_op=True),),
    "dequantise": (Mover("conversion", to_scale, is_one_op=True),),
    "permute_add": (
        Mover("permuted copy", permuted, is_one_op=True),
        Mover("add, straight", add, is_one_op=True, layout=two_alike),
    ),
    "rotary": (Mover("scale and shift", rotated_by_nothing),),
    "var_mean": (
        Mover("sums", sums_of_planes, is_one_op=True),
        Mover("largest", largest_of_planes, is_one_op=True),
        Mover("sum of all", total, is_one_op=True),
    ),
    "argmax": (
        Mover("largest", largest_of_rows, is_one_op=True),
        Mover("sums", sums_of_rows, is_one_op=True),
        Mover("sum of all", total, is_one_op=True),
    ),
    "softmax_of_middle": (Mover("less the largest along it", middle_less_largest),),
    "standardise_columns": (Mover("columns less their sums", columns_less_sums),),
    "cumsum_of_columns": (Mover("columns less their sums", columns_less_sums),),
    "group_norm": (
        Mover("a group's sum, then a walk over it", groups_less_sums),
        Mover("scale and shift", scaled_channels),
    ),
    "masked_softmax": (Mover("a row's sum, then a walk over it", masked_less_sums),),
    "biased_softmax": (Mover("a row's sum, then a walk over it", masked_less_sums),),
    **dict.fromkeys(
        ("layer_norm_backward", "gated_norm"),
        (Mover("sum of products, then a walk over them", products_less_sums),),
    ),
    **dict.fromkeys(
        ("binary_cross_entropy", "squared_distances"),
        (Mover("sums of products", wide_sums_of_products),),
    ),
    "cross_entropy": (Mover("largest", largest_of_logits, is_one_op=True),),
    "packed_swiglu": (Mover("halves added", halves_added),),
    "groups_of_channels": (
        Mover("a group's sum, then a walk over it", turned_groups_less_sums),
        Mover("scale and shift", scaled_channels),
    ),
    "groups_of_places": (Mover("a group's sum, then a walk", groups_of_places_less_sums),),
    "averaged_channels": (Mover("largest", largest_of_channels, is_one_op=True),),
    "capped_softmax": (Mover("a row's sum, then a walk over it", masked_less_sums),),
    "attention_pool": (Mover("largest", largest_tokens, is_one_op=True),),
    "causal_taps": (Mover("one tap, added", added_taps),),
    "rms_norm_backward": (Mover("sum of products, then a walk over them", products_less_sums),),
    "smoothed_cross_entropy": (Mover("largest", largest_of_logits, is_one_op=True),),
    "standardised_tokens": (Mover("tokens less their sums", tokens_less_sums),),
    "divergence": (Mover("sums of products", wide_sums_of_products),),
    "padded": (Mover("padded copy", within_zeros, is_one_op=True),),
    "instance_norm": (Mover("planes less their sums", planes_less_sums),),
    "combined": (Mover("largest", largest_of_middle, is_one_op=True),),
    "logsumexp_of_planes": (Mover("sums", sums_of_inner_planes, is_one_op=True),),
    "cosine_similarity": (Mover("sums of products", sums_of_products),),
    "argmin_of_columns": (Mover("largest of columns", largest_of_columns, is_one_op=True),),
    "mean_of_columns": (Mover("largest of columns", largest_of_columns, is_one_op=True),),
    **dict.fromkeys(
        ("entropy", "max_with_place", "any_above"),
        (
            Mover("largest", largest_of_rows, is_one_op=True),
            Mover("sums", sums_of_rows, is_one_op=True),
        ),
    ),
}
"""By the name of a sweep, the nearest to its accesses first; for others there are copies alone."""
