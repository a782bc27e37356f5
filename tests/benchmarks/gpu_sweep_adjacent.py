"""The fourteenth set of sweeps on a GPU: other ops of the same classes as the pinned functions.

As in the sets before, no size is a hint, and what is compiled is so at other sizes. Most sizes are
those of the thirteenth set.
"""

from __future__ import annotations

import torch
from tests.benchmarks import adjacent_functions as of
from tests.benchmarks import sweep_functions as first
from tests.benchmarks.gpu_sweep_kindred import FEW, MIDDLE, ROWS, SCANNED, WORDS
from tests.benchmarks.sweeps import Sweep

_BF16, _F16 = torch.bfloat16, torch.float16
_TALL = ((6007, 4096), (70_001, 257), (513, 32_003))

ADJACENT_SWEEPS: tuple[Sweep, ...] = (
    Sweep("masked_logsumexp", of.masked_logsumexp, first.two_matrices, MIDDLE, ROWS, _BF16,
          prepare=of.mostly_seen),
    Sweep("shares_dropped", of.shares_dropped, first.two_matrices, MIDDLE, ROWS, _F16,
          prepare=of.mostly_seen),
    Sweep("mean_cross_entropy", of.mean_cross_entropy, of.logits_and_rows, MIDDLE, WORDS, _BF16,
          prepare=of.labels_and_ignored),
    Sweep("cross_entropy_of_pixels", of.cross_entropy_of_pixels, of.logits_and_pixels,
          (20, 160, 60, 48), ((60, 19, 257, 255), (5, 150, 301, 299), (300, 21, 33, 31)),
          prepare=of.labels_and_ignored),
    Sweep("dropped_rms_norm", of.dropped_rms_norm, first.matrix_and_rows(1, matrices=3), MIDDLE,
          FEW, _BF16, prepare=of.row_kept),
    Sweep("rms_norm_to_f8", of.rms_norm_to_f8, of.two_weight_and_scalar, MIDDLE,
          ((6007, 4096), (100_003, 257), (1, 5120)), _BF16, prepare=of.scale_last),
    Sweep("layer_norm_gradients", of.layer_norm_gradients, of.two_weight_and_moments, MIDDLE,
          FEW, _BF16, prepare=of.moments_kept, magnitudes=of.layer_norm_gradient_magnitudes),
    Sweep("layer_norm_and_moments", of.layer_norm_and_moments, first.matrix_and_rows(2), MIDDLE,
          ROWS, _F16, magnitudes=of.layer_norm_and_moment_magnitudes),
    Sweep("packed_geglu", of.packed_geglu, of.halves_and_bias, MIDDLE,
          ((6007, 2880), (70_001, 257), (1, 14_336)), _BF16,
          beside=lambda _, size: (2 * size,)),
    Sweep("packed_swiglu_again", of.packed_swiglu_again, of.gradient_and_halves, MIDDLE,
          ((6007, 2880), (70_001, 257), (50, 13_824)), _BF16,
          beside=lambda _, size: (2 * size,)),
    Sweep("column_logsumexp", of.column_logsumexp, first.matrix, MIDDLE, _TALL, _BF16),
    Sweep("column_moments", of.column_moments, first.matrix, MIDDLE, _TALL,
          magnitudes=of.column_moment_magnitudes),
    Sweep("mx_both_ways", of.mx_both_ways, first.matrix, (2048, 1984),
          ((6016, 4096), (30_016, 384), (96, 13_824)), _BF16, unit=first.BLOCK),
    Sweep("columns_i8_transposed", of.columns_i8_transposed, first.transposed_matrix,
          (1984, 2040), ((4099, 5120), (30_011, 384), (128, 60_001)), _F16, rounding=1),
    Sweep("moments_of_groups", of.moments_of_groups, of.places_of_images, (20, 3000, 24),
          ((61, 3136, 16), (5, 90_001, 12), (300, 196, 80)), _BF16,
          magnitudes=of.moments_of_groups_magnitudes,
          beside=lambda _, places, group: (of.GROUPS * group,)),
    Sweep("standardised_series", of.standardised_series, of.series_and_two, (120, 136, 150),
          ((61, 509, 1021), (3, 8191, 1024), (1000, 50, 768)), _F16),
    Sweep("experts_counted", of.experts_counted, first.matrix, (2040, 96),
          ((8191, 64), (30_011, 160), (50, 256)), _BF16),
    Sweep("largest_of_columns", of.largest_of_columns, first.matrix, MIDDLE, _TALL, _BF16),
    Sweep("exclusive_cumsum", of.exclusive_cumsum, first.two_matrices, MIDDLE, SCANNED,
          prepare=of.mostly_seen, magnitudes=of.exclusive_cumsum_magnitudes),
    Sweep("drawdowns", of.drawdowns, first.matrix, MIDDLE,
          ((4099, 3001), (129, 70_001), (32_003, 50)), prepare=of.positive_prices),
    Sweep("channels_last_biased", of.channels_last_biased, of.images_and_bias, (20, 160, 60, 48),
          ((60, 200, 57, 56), (5, 96, 301, 299), (300, 640, 14, 13)), _F16),
    Sweep("heads_first_f8", of.heads_first_f8, of.tokens_and_scales, (20, 160, 12, 72),
          ((9, 3001, 32, 128), (50, 700, 7, 66), (1, 4099, 40, 96)), _BF16,
          prepare=of.scale_of_heads),
    Sweep("neighbours_rotated_at_places", of.neighbours_rotated_at_places, of.heads_and_tables,
          (2040, 12, 5, 3000, 36),
          ((8191, 32, 8, 9001, 64), (30_011, 9, 3, 4099, 33), (1, 40, 10, 8191, 48)), _BF16,
          prepare=of.places_last, read_in_part=True,
          beside=lambda *sizes: (2 * sizes[-1],)),
    Sweep("rotary_backward", of.rotary_backward, first.heads, (2040, 12, 72),
          ((4001, 32, 128), (30_011, 7, 66), (1, 40, 96)), _F16),
    Sweep("dequantise_squares", of.dequantise_squares, of.codes_and_squares, (2048, 1920),
          ((7168, 4096), (512, 14_336), (32_000, 384)), _BF16, prepare=of.codes_f8,
          unit=of.SQUARE),
    Sweep("dequantise_transposed", of.dequantise_transposed, of.transposed_and_two_columns,
          (1984, 2040), ((11_008, 4099), (509, 14_336), (30_011, 384)), _BF16,
          prepare=of.codes_i8),
    Sweep("three_norms", of.three_norms, first.matrix, MIDDLE, ROWS, _F16),
    Sweep("weighted_bag", of.weighted_bag, of.table_and_weighted, (1000, 5000, 16, 224),
          ((9001, 100_003, 20, 256), (70_001, 3001, 7, 33), (16, 100_003, 100, 768)), _BF16,
          prepare=of.weighted_lists, read_in_part=True, magnitudes=of.weighted_bag_magnitudes),
)  # fmt: skip
