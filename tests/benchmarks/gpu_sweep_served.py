"""The sixth set of sweeps on a GPU: what servers, samplers and training steps fuse.

As in the sets before, no size is a hint, and what is compiled is so at other sizes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from tests.benchmarks import served_functions as of
from tests.benchmarks import sweep_functions as first
from tests.benchmarks.strided_functions import BLOCK
from tests.benchmarks.sweeps import Sweep

_BF16, _F16 = torch.bfloat16, torch.float16
_MIDDLE = (2040, 1984)
_ROWS = ((6007, 4096), (70_001, 257), (50, 5120))
_LOGITS = ((3001, 32_003), (70_001, 257), (50, 128_256))
_IMAGES = (20, 160, 60, 48)
_PLANES = ((60, 200, 57, 56), (5, 96, 301, 299))
_TOKENS = (20, 600, 800)

SERVED_SWEEPS: tuple[Sweep, ...] = (
    Sweep("quantised_swiglu", of.quantised_swiglu, first.two_matrices, (2040, 1920),
          ((6007, 4096), (70_001, 384), (50, 14_336)), _BF16, unit=BLOCK),
    Sweep("quantised_norm", of.quantised_norm, first.matrix_and_rows(1, matrices=2), _MIDDLE,
          _ROWS, _BF16),
    Sweep("positions", of.positions, first.matrix, _MIDDLE,
          ((6007, 4096), (300, 32_003), (50, 513)), prepare=of.ones_and_zeros),
    Sweep("likely_tokens", of.likely_tokens, of.temperatures, _MIDDLE, _LOGITS, _BF16),
    Sweep("clipped_gradient", of.clipped_gradient, first.matrix, _MIDDLE, _ROWS),
    Sweep("softmax_of_columns", of.softmax_of_columns, first.matrix, _MIDDLE, _ROWS),
    Sweep("batch_norm_of_images", of.batch_norm_of_images, of.images_and_two, _IMAGES, _PLANES,
          _F16, magnitudes=of.batch_norm_magnitudes),
    Sweep("transposed_downcast", of.transposed_downcast, first.matrix, _MIDDLE,
          ((6007, 4096), (70_001, 257), (512, 50_257))),
    Sweep("state_step", of.state_step, of.states, (96, 1000, 24),
          ((255, 5120, 16), (33, 4095, 128), (1000, 500, 20)), _BF16,
          magnitudes=of.state_step_magnitudes),
    Sweep("sloped_softmax", of.sloped_softmax, of.scores_and_slopes, (6, 12, 160, 180),
          ((9, 16, 512, 530), (300, 6, 129, 131), (64, 32, 1, 4097)), _BF16),
    Sweep("norm_weight_gradients", of.norm_weight_gradients, of.matrices_and_moments, _MIDDLE,
          _ROWS, _BF16, magnitudes=of.norm_weight_gradient_magnitudes),
    Sweep("log_softmax_backward", of.log_softmax_backward, first.two_matrices, _MIDDLE, _LOGITS,
          _BF16),
    Sweep("best_of_middle", of.best_of_middle, first.planes, _TOKENS,
          ((61, 509, 1021), (3, 8191, 1024), (1000, 50, 768)), _BF16),
    Sweep("mish", of.mish, first.matrix, _MIDDLE, _ROWS, _F16),
    Sweep("rounded_to_steps", of.rounded_to_steps, of.temperatures, _MIDDLE, _ROWS),
    Sweep("smooth_loss", of.smooth_loss, first.two_matrices, _MIDDLE, _ROWS, _BF16),
    Sweep("cached_keys", of.cached_keys, of.keys_alone, (2040, 12, 72),
          ((8001, 32, 128), (50_001, 3, 80), (17, 40, 128)), _BF16, rounding=1),
    Sweep("balance", of.balance, first.matrix, (2040, 56),
          ((100_003, 64), (16_001, 257), (600_011, 8)), _BF16),
    Sweep("gated_channels", of.gated_channels, first.planes, (20, 616, 800),
          ((61, 1018, 1021), (30, 1536, 1499), (1000, 100, 768)), _F16),
    Sweep("blurred", of.blurred, of.images_and_windows, _IMAGES, _PLANES, _F16,
          magnitudes=of.blurred_magnitudes),
    replace(Sweep("lower_triangle", of.lower_triangle, first.matrix, _MIDDLE,
                  ((6007, 4096), (8191, 8190), (50, 5120))), read_in_part=True),
    Sweep("log_mel", of.log_mel, first.planes, (20, 96, 800),
          ((64, 80, 3000), (300, 128, 1501), (1, 80, 3000))),
)  # fmt: skip
