"""The thirteenth set of sweeps on a GPU: two near relatives of each pinned function.

As in the sets before, no size is a hint, and what is compiled is so at other sizes.
"""

from __future__ import annotations

import torch
from tests.benchmarks import kindred_functions as of
from tests.benchmarks import other_functions as others
from tests.benchmarks import sweep_functions as first
from tests.benchmarks.sweeps import Sweep

_BF16, _F16 = torch.bfloat16, torch.float16
MIDDLE = (2040, 1984)
ROWS = ((6007, 4096), (100_003, 257), (1, 5120), (300, 128_256))
FEW = ((6007, 4096), (70_001, 257), (50, 13_824))
WORDS = ((3001, 5120), (513, 32_003), (61, 128_256))
SCANNED = ((3001, 4099), (70_001, 129), (50, 32_003))
_BLOCKS = ((6007, 4096), (30_011, 384), (50, 13_824))
_TURNED = ((4099, 5120), (30_011, 384), (128, 60_032))
_HEADS = ((8191, 32, 128), (30_011, 7, 66), (1, 40, 96))
_PLANES = ((61, 509, 1021), (3, 8191, 1024), (1000, 50, 768))

KINDRED_SWEEPS: tuple[Sweep, ...] = (
    Sweep("softmax_of_classes", of.softmax_of_classes, others.images_alone, (20, 160, 60, 48),
          ((60, 19, 257, 255), (5, 150, 301, 299), (300, 1000, 7, 9)), _BF16),
    Sweep("softmax_of_two", of.softmax_of_two, of.two_and_scalar, MIDDLE, ROWS, _F16,
          prepare=of.positive_temperature),
    Sweep("logs_and_entropy", of.logs_and_entropy, first.matrix, MIDDLE, WORDS, _BF16),
    Sweep("logs_of_choices", of.logs_of_choices, of.logits_and_choices, MIDDLE, WORDS,
          prepare=of.places_of_choices, beside=lambda *_: (of.CHOICES,)),
    Sweep("rms_norm_twice_stored", of.rms_norm_twice_stored, first.matrix_and_rows(1), MIDDLE,
          ROWS, _BF16),
    Sweep("heads_normed_from_one", of.heads_normed_from_one, of.heads_and_weight, (2040, 12, 72),
          _HEADS, _F16),
    Sweep("layer_norm_alone", of.layer_norm_alone, first.matrix, MIDDLE, ROWS, _BF16),
    Sweep("norm_after", of.norm_after, first.matrix_and_rows(3, matrices=2), MIDDLE, FEW, _F16),
    Sweep("clamped_swiglu", of.clamped_swiglu, of.alternating, MIDDLE,
          ((6007, 2880), (70_001, 257), (1, 14_336)), _BF16,
          beside=lambda _, size: (2 * size,)),
    Sweep("reglu_biases", of.reglu_biases, first.matrix_and_rows(2, matrices=2), MIDDLE, FEW),
    Sweep("column_norms", of.column_norms, first.matrix, MIDDLE, ROWS, _BF16),
    Sweep("column_range", of.column_range, first.matrix, MIDDLE, ROWS, _F16),
    Sweep("blocks_f8_by_powers", of.blocks_f8_by_powers, first.matrix, (2040, 1920), _BLOCKS,
          _BF16, unit=of.LARGE_BLOCK),
    Sweep("mxfp4", of.mxfp4, first.matrix, (2040, 1984),
          ((6007, 4096), (70_001, 288), (50, 13_824)), _BF16, rounding=17, unit=first.BLOCK),
    Sweep("mx_of_biased_transposed", of.mx_of_biased_transposed, of.transposed_and_bias,
          (1984, 2048), ((4099, 5120), (70_001, 288), (32, 60_032)), _F16, unit=first.BLOCK),
    Sweep("blocks_f8_of_columns", of.blocks_f8_of_columns, first.transposed_matrix, (1984, 2048),
          _TURNED, _BF16, unit=of.LARGE_BLOCK),
    Sweep("std_mean_of_planes", of.std_mean_of_planes, first.planes, (120, 136, 150), _PLANES,
          _BF16, magnitudes=of.std_mean_magnitudes),
    Sweep("moments_of_last", of.moments_of_last, of.images_last, (20, 60, 48, 160),
          ((60, 57, 56, 200), (5, 301, 299, 96), (300, 14, 13, 640)),
          magnitudes=of.moments_of_last_magnitudes),
    Sweep("nearest_codes", of.nearest_codes, first.matrix_and_rows(1), MIDDLE,
          ((8191, 1024), (70_001, 509), (300, 16_411)), _BF16),
    Sweep("best_and_logsumexp", of.best_and_logsumexp, first.matrix, MIDDLE, WORDS, _BF16),
    Sweep("logcumsumexp", of.logcumsumexp, first.matrix, MIDDLE, SCANNED),
    Sweep("cummax", of.cummax, first.matrix, MIDDLE, SCANNED, _BF16),
    Sweep("permuted_scaled", of.permuted_scaled, of.planes_and_two, (120, 136, 150),
          ((61, 509, 1021), (1009, 127, 515), (100_003, 3, 32)), _F16),
    Sweep("merged_heads_residual", of.merged_heads_residual, of.heads_and_residual,
          (20, 12, 160, 72), ((9, 32, 3001, 128), (50, 7, 700, 66), (1, 40, 4099, 96)), _BF16,
          beside=lambda _, heads, tokens, size: (heads * size,)),
    Sweep("partial_rotary", of.partial_rotary, of.heads_in_part, (2040, 12, 24, 40),
          ((8191, 32, 32, 96), (30_011, 7, 18, 48), (301, 40, 64, 64)), _BF16,
          beside=lambda _, heads, part, passed: (part + passed,)),
    Sweep("rotary_of_both", of.rotary_of_both, of.queries_and_keys, (2040, 12, 72),
          ((8191, 8, 128), (30_011, 3, 66), (301, 5, 96)), _F16,
          beside=lambda _, heads, size: (of.QUERIES * heads,)),
    Sweep("dequantise_groups_of_rows", of.dequantise_groups_of_rows, of.groups_and_two,
          (1984, 2048), ((11_008, 4096), (509, 14_336), (30_011, 384)), _F16,
          prepare=of.codes_and_zeros, unit=of.LARGE_BLOCK),
    Sweep("dequantise_u8_relu", of.dequantise_u8_relu, of.matrix_and_two_columns, MIDDLE,
          ((6007, 4096), (100_003, 257), (50, 13_824)), _BF16, prepare=of.bytes_and_zeros),
)  # fmt: skip
