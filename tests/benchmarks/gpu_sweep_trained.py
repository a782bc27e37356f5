"""The eighth set of sweeps on a GPU: losses, optimisers, diffusion, groups, and windows.

As in the sets before, no size is a hint, and what is compiled is so at other sizes.
"""

from __future__ import annotations

import torch
from tests.benchmarks import other_functions as others
from tests.benchmarks import sweep_functions as first
from tests.benchmarks import trained_functions as of
from tests.benchmarks.sweeps import Sweep

_BF16, _F16 = torch.bfloat16, torch.float16
_MIDDLE = (2040, 1984)
_ROWS = ((6007, 4096), (70_001, 257), (50, 5120))
_TOKENS = (20, 600, 800)
_PLANES = ((61, 509, 1152), (3, 8191, 1024), (1000, 50, 768))
_IMAGES = ((60, 200, 57, 56), (5, 96, 301, 299), (1, 512, 64, 64))

TRAINED_SWEEPS: tuple[Sweep, ...] = (
    Sweep("adaptive_norm", of.adaptive_norm, of.images_tokens_and_two, _TOKENS, _PLANES, _BF16),
    Sweep("gated_residual", of.gated_residual, of.two_and_gates, _TOKENS, _PLANES, _BF16),
    Sweep("upsampled", of.upsampled, others.images_alone, (20, 160, 60, 48), _IMAGES, _F16),
    Sweep("merged_attention", of.merged_attention, of.two_heads_and_sums, (2040, 12, 72),
          ((8001, 32, 128), (50_001, 3, 80), (17, 40, 128)), _BF16),
    Sweep("smoothed_rows_i8", of.smoothed_rows_i8, first.matrix_and_rows(1), _MIDDLE, _ROWS,
          _BF16, rounding=1),
    Sweep("decays", of.decays, first.matrix, (200, 300),
          ((512, 256), (40, 1021), (3001, 64))),
    Sweep("lion", of.lion, of.three_matrices, _MIDDLE, _ROWS, _BF16),
    Sweep("focal_loss", of.focal_loss, first.two_matrices, _MIDDLE, _ROWS, _BF16,
          prepare=of.zero_or_one),
    Sweep("dice", of.dice, of.two_planes, (200, 136, 150),
          ((61, 509, 1021), (3, 2048, 2047), (1000, 128, 96)), _F16, prepare=of.zero_or_one),
    Sweep("contrastive", of.contrastive, of.matrix_and_one, _MIDDLE,
          ((4096, 8191), (513, 32_768), (50, 5120)), _F16),
    Sweep("gumbel_best", of.gumbel_best, first.two_matrices, _MIDDLE,
          ((300, 32_003), (2001, 50_257), (7, 128_256)), _BF16),
    Sweep("nucleus", of.nucleus, first.matrix, _MIDDLE,
          ((300, 32_003), (6007, 4096), (7, 128_256))),
    Sweep("softmax_of_near", of.softmax_of_near, first.planes, (20, 160, 180),
          ((64, 1024, 1031), (300, 129, 131), (8, 2048, 4097)), _BF16),
    Sweep("softmax_by_buckets", of.softmax_by_buckets, of.scores_table_and_buckets,
          (6, 12, 160, 180), ((9, 16, 512, 530), (300, 6, 129, 131), (2, 8, 1024, 1031)), _BF16,
          prepare=of.bucketed),
    Sweep("patches", of.patches, others.images_alone, (20, 160, 60, 48),
          ((256, 3, 224, 240), (60, 200, 60, 56), (5, 96, 304, 300)), _F16),
    Sweep("shifted_windows", of.shifted_windows, of.images_last, (20, 96, 80, 72),
          ((64, 64, 72, 192), (3, 256, 264, 96), (256, 16, 24, 768)), _F16),
    Sweep("batch_norm_backward", of.batch_norm_backward, of.two_images_and_channels,
          (20, 160, 60, 48), _IMAGES, _F16, magnitudes=of.batch_norm_backward_magnitudes),
    Sweep("magnitudes_of_pairs", of.magnitudes_of_pairs, first.matrix, _MIDDLE,
          ((6007, 4096), (70_001, 258), (50, 5120))),
    Sweep("nibbles_of_groups", of.nibbles_of_groups, first.matrix, (2040, 1920),
          ((6007, 4096), (70_001, 384), (17, 7168)), _BF16, rounding=17, unit=of.GROUP),
    Sweep("swiglu_backward", of.swiglu_backward, of.three_matrices, _MIDDLE, _ROWS, _BF16),
    Sweep("row_dots", of.row_dots, of.two_heads, (2040, 12, 72),
          ((8001, 32, 128), (50_001, 3, 80), (17, 40, 128)), _BF16,
          magnitudes=of.row_dot_magnitudes),
    Sweep("unpacked", of.unpacked, of.values_and_rows, (2040, 12, 160, 72),
          ((30_000, 64, 600, 1024), (70_000, 1000, 130, 256), (600, 8, 128, 4096)), _BF16,
          prepare=of.packed_rows, read_in_part=True),
    Sweep("token_shift", of.token_shift, of.tokens_and_three, _TOKENS, _PLANES, _BF16),
    Sweep("pair_norm", of.pair_norm, of.two_sides_and_weight, (200, 136, 72),
          ((384, 385, 128), (1021, 509, 64), (40, 50, 768)), _BF16),
)  # fmt: skip
