"""The fifth set of sweeps on a GPU: what reads parts of tensors, or tensors in other orders.

As in the sets before, no size is a hint, and what is compiled is so at other sizes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from tests.benchmarks import further_functions as further
from tests.benchmarks import other_functions as others
from tests.benchmarks import strided_functions as of
from tests.benchmarks import sweep_functions as first
from tests.benchmarks.sweeps import Sweep

_BF16, _F16 = torch.bfloat16, torch.float16
_MIDDLE = (2040, 1984)
_ROWS = ((6007, 4096), (70_001, 257), (50, 5120))
_IMAGES = (20, 160, 60, 48)
_LAST = ((90, 200, 57, 56), (7, 96, 301, 299))
_TOKENS = (20, 600, 800)

STRIDED_SWEEPS: tuple[Sweep, ...] = (
    Sweep("packed_swiglu", of.packed_swiglu, first.matrix, _MIDDLE,
          ((6007, 8192), (70_001, 514), (50, 22_016)), _BF16),
    Sweep("packed_head_norm", of.packed_head_norm, of.packed_heads, (2040, 12, 72),
          ((8001, 32, 128), (50_001, 3, 80), (17, 40, 128)), _BF16),
    replace(Sweep("rotated_part", of.rotated_part, of.packed_and_angles, (2040, 12, 72),
                  ((8001, 32, 128), (50_001, 8, 64), (17, 40, 128)), _F16), read_in_part=True),
    Sweep("norm_of_channels", of.norm_of_channels, others.images_and_channels, _IMAGES, _LAST,
          _F16, prepare=of.channels_last),
    Sweep("scaled_channels", of.scaled_channels, others.images_and_channels, _IMAGES, _LAST,
          _F16, prepare=of.channels_last),
    Sweep("groups_of_channels", of.groups_of_channels, others.images_and_channels, _IMAGES,
          _LAST, _F16, prepare=of.channels_last),
    Sweep("groups_of_places", of.groups_of_places, first.planes, _TOKENS,
          ((90, 3192, 200), (7, 89_999, 96)), _BF16),
    Sweep("averaged_channels", of.averaged_channels, others.images_alone, _IMAGES, _LAST,
          _BF16, prepare=of.channels_last, magnitudes=of.averaged_channel_magnitudes),
    Sweep("repeated_heads", of.repeated_heads, of.keys_and_scale, (6, 12, 500, 96),
          ((9, 8, 1023, 128), (64, 2, 301, 80)), _BF16),
    Sweep("capped_softmax", of.capped_softmax, others.masked_scores, (6, 12, 160, 180),
          ((9, 16, 512, 530), (300, 6, 129, 131)), _BF16),
    Sweep("quantised_blocks", of.quantised_blocks, first.matrix, (2040, 1920),
          ((6007, 4096), (70_001, 384), (50, 7168)), _BF16, unit=of.BLOCK),
    Sweep("dequantised_blocks", of.dequantised_blocks, of.matrix_of_blocks, (2040, 1920),
          ((7168, 16_384), (38_401, 896), (50, 7168)), prepare=of.eighths, unit=of.BLOCK),
    Sweep("attention_pool", of.attention_pool, of.tokens_and_logits, _TOKENS,
          ((61, 509, 1021), (3, 8191, 1024), (1000, 50, 768)), _BF16,
          magnitudes=of.attention_pool_magnitudes),
    Sweep("causal_taps", of.causal_taps, of.tokens_and_taps, _TOKENS,
          ((13, 2047, 2048), (301, 99, 515)), _BF16),
    Sweep("gelu_backward", of.gelu_backward, first.two_matrices, _MIDDLE, _ROWS, _BF16),
    Sweep("rms_norm_backward", of.rms_norm_backward, first.matrix_and_rows(1, matrices=2),
          _MIDDLE, _ROWS, _BF16),
    Sweep("smoothed_cross_entropy", of.smoothed_cross_entropy, further.matrix_and_labels, _MIDDLE,
          ((3001, 32_003), (70_001, 257), (50, 5120)), _BF16, prepare=further.classes),
    Sweep("best_expert", of.best_expert, first.matrix, (2040, 56),
          ((100_003, 64), (16_001, 257), (600_011, 8)), _BF16),
    Sweep("doubled", of.doubled, of.images_and_larger, (20, 136, 60, 48),
          ((60, 200, 57, 56), (5, 12, 301, 299)), _F16),
    Sweep("standardised_tokens", of.standardised_tokens, first.planes, _TOKENS,
          ((61, 509, 1021), (3, 8191, 1024), (1000, 50, 768)), _BF16),
    Sweep("divergence", of.divergence, first.two_matrices, _MIDDLE,
          ((3001, 32_003), (70_001, 257), (50, 5120)), _BF16,
          magnitudes=of.divergence_magnitudes),
)  # fmt: skip
