"""The third set of sweeps on a GPU: functions of training, of vision models and of serving.

As in the first two sets, no size is a hint, and what is compiled is so at other sizes.
"""

from __future__ import annotations

import torch
from tests.benchmarks import further_functions as of
from tests.benchmarks import sweep_functions as first
from tests.benchmarks.other_functions import images_alone
from tests.benchmarks.sweeps import Sweep

_BF16, _F16 = torch.bfloat16, torch.float16
_MIDDLE = (2040, 1984)
_IMAGES = (20, 160, 60, 48)
_ROWS = ((6007, 4096), (70_001, 257), (50, 5120))
_PLACES = ((90, 200, 57, 56), (7, 33, 301, 299))

FURTHER_SWEEPS: tuple[Sweep, ...] = (
    Sweep("softmax_backward", of.softmax_backward, first.two_matrices, _MIDDLE, _ROWS, _BF16),
    Sweep("layer_norm_backward", of.layer_norm_backward,
          first.matrix_and_rows(1, matrices=2), _MIDDLE, _ROWS, _BF16),
    Sweep("weight_gradient", of.weight_gradient, first.two_matrices, _MIDDLE, _ROWS, _BF16,
          magnitudes=of.weight_gradient_magnitudes),
    Sweep("adam", of.adam, first.matrix_and_rows(0, matrices=4), _MIDDLE, _ROWS),
    Sweep("cross_entropy", of.cross_entropy, of.matrix_and_labels, _MIDDLE,
          ((3001, 32_003), (70_001, 257), (50, 5120)), _BF16, prepare=of.classes),
    Sweep("binary_cross_entropy", of.binary_cross_entropy, first.two_matrices, _MIDDLE, _ROWS,
          _F16),
    Sweep("embedded_norm", of.embedded_norm, of.table_and_places, (2040, 5000, 1984),
          ((9001, 32_000, 4096), (70_001, 3000, 257)), _BF16, prepare=of.places),
    Sweep("windows", of.windows, images_alone, (20, 48, 40, 160),
          ((61, 56, 120, 192), (7, 128, 248, 97)), _F16),
    Sweep("pixel_shuffle", of.pixel_shuffle, images_alone, (20, 120, 60, 48),
          ((60, 244, 57, 56), (5, 12, 301, 299)), _BF16),
    Sweep("padded", of.padded, images_alone, _IMAGES, _PLACES, _F16),
    Sweep("pooled", of.pooled, images_alone, (20, 160, 60, 48),
          ((90, 200, 114, 58), (7, 33, 302, 298)), _F16),
    Sweep("excited", of.excited, of.images_and_scales, _IMAGES, _PLACES, _BF16),
    Sweep("instance_norm", of.instance_norm, images_alone, _IMAGES, _PLACES),
    Sweep("gated_norm", of.gated_norm, first.matrix_and_rows(1, matrices=2), _MIDDLE, _ROWS,
          _BF16),
    Sweep("combined", of.combined, of.experts, (2040, 6, 1984),
          ((6007, 8, 2048), (70_001, 2, 257)), _BF16, magnitudes=of.combined_magnitudes),
    Sweep("product_epilogue", of.product_epilogue, of.epilogue, _MIDDLE, _ROWS,
          prepare=of.integers),
    Sweep("biased_softmax", of.biased_softmax, of.scores_and_bias, (20, 12, 160),
          ((9, 16, 512), (300, 6, 131)), _BF16),
    Sweep("scaled_by_range", of.scaled_by_range, first.matrix, _MIDDLE, _ROWS, _BF16),
    Sweep("squared_distances", of.squared_distances, first.two_matrices, _MIDDLE, _ROWS, _F16),
    Sweep("channel_shuffle", of.channel_shuffle, images_alone, (20, 120, 60, 48),
          ((60, 244, 57, 56), (5, 12, 301, 299)), _BF16),
)  # fmt: skip
