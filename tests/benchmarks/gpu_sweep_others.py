"""The second set of sweeps on a GPU: other functions than those that kernels were made with.

The most telling sizes of each come first, so that a short run takes only those. As in the first
set, none is a hint, and what is compiled is so at other sizes.
"""

from __future__ import annotations

import torch
from tests.benchmarks import other_functions as of
from tests.benchmarks import sweep_functions as first
from tests.benchmarks.sweeps import Sweep

_BF16 = torch.bfloat16
_MIDDLE = (2040, 1984)
_PLANES = (120, 136, 150)
_IMAGES = (20, 160, 60, 48)

_ROWS = ((7000, 5120), (100_003, 97), (300, 128_256), (509, 1021))
_HEADS = ((4001, 32, 128), (509, 7, 66), (100_003, 3, 32), (16_411, 8, 96))

OTHER_SWEEPS: tuple[Sweep, ...] = (
    Sweep("group_norm", of.group_norm, of.images_and_channels, _IMAGES,
          ((13, 320, 96, 88), (60, 640, 21, 33), (2, 128, 300, 515)), _BF16),
    Sweep("batch_norm_relu", of.batch_norm_relu, first.images, _IMAGES,
          ((50, 250, 56, 57), (500, 2000, 7, 7), (9, 61, 223, 225)),
          prepare=first.positive_variance),
    Sweep("global_average_pool", of.global_average_pool, of.images_alone, _IMAGES,
          ((300, 1900, 7, 7), (50, 250, 56, 57), (9, 61, 223, 225)), _BF16,
          magnitudes=of.magnitudes_pooled),
    Sweep("softmax_of_middle", of.softmax_of_middle, first.planes, _PLANES,
          ((61, 509, 1021), (300, 21, 5000), (9, 100_003, 19)), _BF16),
    Sweep("logsumexp_of_planes", of.logsumexp_of_planes, first.planes, _PLANES,
          ((9000, 60, 61), (60, 509, 1021), (3, 5000, 3001))),
    Sweep("geglu_bias", of.geglu_bias, first.matrix_and_rows(1, matrices=2), _MIDDLE, _ROWS,
          _BF16),
    Sweep("relu_squared", of.relu_squared, first.matrix, _MIDDLE, _ROWS, _BF16),
    Sweep("cumsum_of_columns", of.cumsum_of_columns, first.matrix, _MIDDLE, _ROWS,
          magnitudes=of.cumsum_of_column_magnitudes),
    Sweep("cumprod", of.cumprod, first.matrix, _MIDDLE, _ROWS, prepare=of.near_one),
    Sweep("argmin_of_columns", of.argmin_of_columns, first.matrix, _MIDDLE, _ROWS),
    Sweep("max_with_place", of.max_with_place, first.matrix, _MIDDLE, _ROWS, _BF16),
    Sweep("any_above", of.any_above, first.matrix, _MIDDLE, _ROWS, _BF16),
    Sweep("mean_of_columns", of.mean_of_columns, first.matrix, _MIDDLE, _ROWS, _BF16,
          magnitudes=of.magnitudes_of_columns),
    Sweep("total", of.total, first.matrix, _MIDDLE, _ROWS, magnitudes=of.total_magnitude),
    Sweep("l2_normalise", of.l2_normalise, first.matrix, _MIDDLE, _ROWS),
    Sweep("cosine_similarity", of.cosine_similarity, first.two_matrices, _MIDDLE, _ROWS,
          magnitudes=of.cosine_magnitudes),
    Sweep("masked_softmax", of.masked_softmax, of.masked_scores, (20, 12, 144, 160),
          ((7, 25, 500, 501), (300, 6, 121, 131), (1, 13, 1000, 2900)), _BF16),
    Sweep("causal_softmax", of.causal_softmax, of.square_scores, (20, 160),
          ((90, 700), (3000, 130), (7, 3001))),
    Sweep("interleaved_rotary", of.interleaved_rotary, of.pairs, (2040, 12, 72), _HEADS, _BF16),
    Sweep("dequantise_nibbles", of.dequantise_nibbles, of.rows_and_two_columns, _MIDDLE, _ROWS,
          _BF16, prepare=of.nibbles),
    Sweep("quantise_rows_i8", of.quantise_rows_i8, first.matrix, _MIDDLE, _ROWS, _BF16,
          rounding=1),
    Sweep("quantise_rows_f8", of.quantise_rows_f8, first.matrix, _MIDDLE, _ROWS, _BF16),
    Sweep("scale_to_f8", of.scale_to_f8, of.matrix_and_scalar, _MIDDLE, _ROWS, _BF16),
    Sweep("clamp_chain", of.clamp_chain, first.matrix_and_rows(1), _MIDDLE, _ROWS),
    Sweep("join", of.join, of.two_lengths, (2040, 1984, 1000),
          ((7000, 5120, 3001), (100_003, 97, 31), (300, 128_256, 50_000)), _BF16),
    Sweep("roll", of.roll, first.matrix, _MIDDLE, _ROWS),
    Sweep("flip", of.flip, first.matrix, _MIDDLE, _ROWS, _BF16),
    Sweep("every_other", of.every_other, first.matrix, _MIDDLE, _ROWS),
    Sweep("outer_add", of.outer_add, of.rows_of_two, _PLANES,
          ((61, 509, 1021), (300, 3001, 33), (5003, 7, 900)), _BF16),
    Sweep("outer_product", of.outer_product, of.two_vectors, _MIDDLE,
          ((7000, 5120), (5003, 9001), (100_003, 97))),
    Sweep("upcast", of.upcast, first.matrix, _MIDDLE, _ROWS, _BF16),
    Sweep("downcast", of.downcast, first.matrix, _MIDDLE, _ROWS),
    Sweep("swapped_heads", of.swapped_heads, of.tokens_and_heads, (20, 160, 12, 72),
          ((9, 3001, 32, 128), (50, 700, 7, 66), (3, 200, 129, 300)), _BF16),
    Sweep("head_norm", of.head_norm, of.heads_and_weight, (2040, 12, 72), _HEADS, _BF16),
    Sweep("scaled_layer_norm", of.scaled_layer_norm, of.tokens_and_modulation, _PLANES,
          ((13, 1025, 1152), (7, 4000, 3000), (300, 77, 640)), _BF16),
    Sweep("entropy", of.entropy, first.matrix, _MIDDLE, _ROWS, _BF16),
    Sweep("standardise_columns", of.standardise_columns, first.matrix, _MIDDLE, _ROWS),
    Sweep("mean_pool", of.mean_pool, of.tokens_and_mask, _PLANES,
          ((250, 509, 384), (3000, 31, 1021), (7, 5003, 1000)),
          prepare=of.pool_mask, magnitudes=of.mean_pool_magnitudes),
)  # fmt: skip
