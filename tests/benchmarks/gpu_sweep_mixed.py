"""The seventh set of sweeps on a GPU: rows beside other layouts, dtypes and joins.

As in the sets before, no size is a hint, and what is compiled is so at other sizes.
"""

from __future__ import annotations

import torch
from tests.benchmarks import mixed_functions as of
from tests.benchmarks import other_functions as others
from tests.benchmarks import served_functions as served
from tests.benchmarks import sweep_functions as first
from tests.benchmarks.sweeps import Sweep

_BF16, _F16 = torch.bfloat16, torch.float16
_MIDDLE = (2040, 1984)
_ROWS = ((6007, 4096), (70_001, 257), (50, 5120))
_HEADS = ((8001, 32, 128), (50_001, 3, 80), (17, 40, 128))
_PLANES = ((61, 509, 1021), (3, 8191, 1024), (1000, 50, 768))
_TOKENS = (20, 600, 800)

MIXED_SWEEPS: tuple[Sweep, ...] = (
    Sweep("normed_rotary", of.normed_rotary, of.heads_weight_and_angles, (2040, 12, 72), _HEADS,
          _BF16),
    Sweep("rotated_heads_first", of.rotated_heads_first, of.heads_and_angles, (2040, 12, 72),
          _HEADS, _BF16),
    Sweep("quantised_rows_of_swiglu", of.quantised_rows_of_swiglu, first.two_matrices, _MIDDLE,
          _ROWS, _BF16),
    Sweep("packed_nibbles", of.packed_nibbles, served.temperatures, _MIDDLE,
          ((6007, 4096), (70_001, 258), (50, 5120)), _BF16, rounding=17),
    Sweep("softmax_with_sink", of.softmax_with_sink, of.scores_and_sinks, (6, 12, 160, 180),
          ((9, 16, 512, 530), (300, 6, 129, 131), (64, 32, 1, 4097)), _BF16),
    Sweep("normed_columns", of.normed_columns, first.matrix_and_rows(1), _MIDDLE, _ROWS),
    Sweep("reversed_cumsum", of.reversed_cumsum, first.matrix, _MIDDLE, _ROWS,
          magnitudes=of.reversed_cumsum_magnitudes),
    Sweep("cumsum_of_middle", of.cumsum_of_middle, first.planes, _TOKENS, _PLANES,
          magnitudes=of.cumsum_of_middle_magnitudes),
    Sweep("bias_gradient", of.bias_gradient, first.planes, _TOKENS, _PLANES, _BF16,
          magnitudes=of.bias_gradient_magnitudes),
    Sweep("taps_along_time", of.taps_along_time, of.channels_and_taps, (20, 616, 800),
          ((13, 2048, 2047), (301, 515, 99), (1, 5120, 8191)), _BF16),
    Sweep("pixels", of.pixels, of.images_last, (20, 136, 150, 6),
          ((256, 224, 225, 3), (7, 1080, 1919, 4), (1, 480, 640, 3)), prepare=of.image_bytes),
    Sweep("smoothed_targets", of.smoothed_targets, of.two_vectors, _MIDDLE,
          ((6007, 4096), (300, 32_003), (50, 513)), prepare=of.labels_and_prior),
    Sweep("outer_products", of.outer_products, of.rows_of_two, (200, 136, 150),
          ((1000, 128, 255), (60_001, 16, 33), (5, 1000, 1024)), _F16),
    Sweep("embedded_times", of.embedded_times, of.two_vectors, _MIDDLE,
          ((6007, 1024), (300_001, 33), (50, 160))),
    Sweep("dropout_backward", of.dropout_backward, first.two_matrices, _MIDDLE, _ROWS, _BF16,
          prepare=of.kept),
    Sweep("norm_of_planes", of.norm_of_planes, of.plane_and_weight, (200, 136, 150),
          ((600, 57, 1021), (30_001, 7, 96), (3, 512, 1024)), _BF16),
    Sweep("most_of_channels", of.most_of_channels, first.planes, _TOKENS, _PLANES, _BF16),
    Sweep("quantised_columns", of.quantised_columns, first.matrix, _MIDDLE, _ROWS, _BF16,
          rounding=1),
    Sweep("joined_norm", of.joined_norm, of.two_and_weight, _MIDDLE, _ROWS, _BF16),
    Sweep("interleaved", of.interleaved, first.two_matrices, _MIDDLE, _ROWS, _F16),
    Sweep("channels_to_last", of.channels_to_last, others.images_alone, (20, 160, 60, 48),
          ((60, 200, 57, 56), (5, 96, 301, 299)), _F16),
    Sweep("penalised", of.penalised, of.logits_and_counts, _MIDDLE,
          ((3001, 32_003), (70_001, 257), (50, 128_256)), _BF16, prepare=of.counts),
)  # fmt: skip
