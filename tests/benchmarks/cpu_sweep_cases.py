"""The pinned sizes of the CPU sweep: fixed before anything was tuned by it.

`ANCHORS` are sizes that were measured before; some are powers of two, which are hints. All others
are no hints: odd, prime, from 1 row to 100 000 and from 32 columns to 128 000.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tests.benchmarks import sweep_functions as of
from tests.benchmarks.cpu_cases import additive_mask, layer_norm, masked_softmax
from tests.benchmarks.sweeps import Sweep

MIDDLE = (480, 672)
"""Where what takes a matrix is compiled. A multiple of an MX block, as its columns must be."""
_BF16 = torch.bfloat16

ANCHORS: frozenset[str] = frozenset(
    {
        "layer_norm f32 1024x1024",
        "column_sum f32 65536x64",
        "bias_gelu f32 1024x4096",
        "rms_norm_residual f32 1024x1024",
        "transposed_add f32 2048x2048",
        "logsumexp f32 4096x256",
    }
)

SWEEPS: tuple[Sweep, ...] = (
    Sweep("layer_norm", layer_norm, of.matrix_and_rows(2), MIDDLE,
          ((1024, 1024), (1013, 1009), (479, 383), (90_001, 33))),
    Sweep("column_sum", of.column_sum, of.matrix, MIDDLE,
          ((65536, 64), (65_537, 61), (4001, 997), (31, 100_003))),
    Sweep("bias_gelu", of.bias_gelu, of.matrix_and_rows(1), MIDDLE, ((1024, 4096), (1009, 4093))),
    Sweep("rms_norm_residual", of.rms_norm_residual, of.matrix_and_rows(1, matrices=2), MIDDLE,
          ((1024, 1024), (1009, 1013), (1, 4093), (50_021, 96))),
    Sweep("transposed_add", of.transposed_add,
          lambda rows, columns: ((rows, columns), (columns, rows)), MIDDLE,
          ((2048, 2048), (1999, 2003))),
    Sweep("logsumexp", of.logsumexp, of.matrix, MIDDLE, ((4096, 256), (4099, 251), (61, 100_003))),
    Sweep("softmax", of.softmax, of.matrix, MIDDLE,
          ((997, 1021), (1, 32_003), (100_003, 37), (113, 128_011))),
    Sweep("softmax", of.softmax, of.matrix, MIDDLE, ((499, 2003), (30_011, 101)), _BF16),
    Sweep("log_softmax", of.log_softmax, of.matrix, MIDDLE, ((307, 3001), (20_011, 67))),
    Sweep("rms_norm_residual", of.rms_norm_residual, of.matrix_and_rows(1, matrices=2), MIDDLE,
          ((503, 2039), (2003, 769)), _BF16),
    Sweep("layer_norm", layer_norm, of.matrix_and_rows(2), MIDDLE, ((997, 771),), _BF16),
    Sweep("swiglu", of.swiglu, of.two_matrices, MIDDLE, ((499, 2731), (7, 11_009))),
    Sweep("swiglu", of.swiglu, of.two_matrices, MIDDLE, ((509, 2731),), _BF16),
    Sweep("column_sum", of.column_sum, of.matrix, MIDDLE, ((3001, 1013),), _BF16),
    Sweep("row_sum", of.row_sum, of.matrix, MIDDLE, ((1009, 3001), (100_003, 67))),
    Sweep("mx_quantise", of.mx_quantise, of.matrix, MIDDLE, ((499, 1952), (2003, 992)), _BF16),
    Sweep("mx_quantise_transposed", of.mx_quantise_transposed, of.transposed_matrix, MIDDLE,
          ((499, 1952), (2003, 992)), _BF16),
    Sweep("var_mean", of.var_mean, of.planes, (24, 40, 672), ((33, 61, 997), (7, 131, 4099))),
    Sweep("argmax", of.argmax, of.matrix, MIDDLE, ((1009, 1013), (50_021, 131), (1, 100_003))),
    Sweep("cumsum", of.cumsum, of.matrix, MIDDLE, ((997, 1021), (10_007, 101))),
    Sweep("permute_add", of.permute_add, of.permuted_planes, (24, 40, 672),
          ((61, 67, 509), (129, 255, 33))),
    Sweep("rotary", of.rotary, of.heads, (480, 10, 72), ((499, 12, 66), (1999, 7, 98))),
    Sweep("rotary", of.rotary, of.heads, (480, 10, 72), ((1009, 12, 66),), _BF16),
    Sweep("dequantise", of.dequantise, of.matrix_and_column, MIDDLE,
          ((1009, 4093), (11_003, 1021)), prepare=of.int8_weight),
    Sweep("dequantise", of.dequantise, of.matrix_and_column, MIDDLE,
          ((1009, 4093),), _BF16, of.int8_weight),
    Sweep("transposed_copy", of.transposed_copy, of.matrix, MIDDLE, ((2003, 1999), (30_011, 131))),
    Sweep("transposed_copy", of.transposed_copy, of.matrix, MIDDLE, ((1999, 2003),), _BF16),
    Sweep("batch_norm", of.batch_norm, of.images, (12, 40, 24, 28),
          ((7, 61, 29, 31), (31, 17, 57, 59)), prepare=of.positive_variance),
    Sweep("masked_softmax", masked_softmax, of.scores, (6, 10, 48),
          ((5, 12, 61), (3, 7, 251)), prepare=additive_mask),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layouts:
    """A sweep whose argument at `transposed` is contiguous, or a matrix of the other layout."""

    sweep: Sweep
    transposed: int


_LAYOUT_SIZES = ((1999, 2003), (6007, 509), (509, 6007), (2048, 2048))
"""Odd pitches, of which tiles share cache lines, and one whose rows fall on the same cache sets."""

TRANSPOSED: tuple[Layouts, ...] = (
    Layouts(Sweep("copy", of.copy, of.matrix, MIDDLE, _LAYOUT_SIZES), 0),
    Layouts(Sweep("softmax", of.softmax, of.matrix, MIDDLE, _LAYOUT_SIZES), 0),
    Layouts(Sweep("add", of.add, of.two_matrices, MIDDLE, _LAYOUT_SIZES), 1),
    Layouts(Sweep("copy", of.copy, of.matrix, MIDDLE, _LAYOUT_SIZES, _BF16), 0),
    Layouts(Sweep("softmax", of.softmax, of.matrix, MIDDLE, _LAYOUT_SIZES, _BF16), 0),
    Layouts(Sweep("add", of.add, of.two_matrices, MIDDLE, _LAYOUT_SIZES, _BF16), 1),
    Layouts(Sweep("add", of.add, of.two_matrices, MIDDLE, _LAYOUT_SIZES, torch.float16), 1),
)
