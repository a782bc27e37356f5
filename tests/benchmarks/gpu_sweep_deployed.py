"""The ninth set of sweeps on a GPU: what models do between their products, as deployed.

As in the sets before, no size is a hint, and what is compiled is so at other sizes.
"""

from __future__ import annotations

import torch
from tests.benchmarks import deployed_functions as of
from tests.benchmarks import mixed_functions as mixed
from tests.benchmarks import other_functions as others
from tests.benchmarks import sweep_functions as first
from tests.benchmarks.sweeps import Sweep

_BF16, _F16 = torch.bfloat16, torch.float16
_MIDDLE = (2040, 1984)
_ROWS = ((6007, 4096), (70_001, 257), (50, 5120))
_TOKENS = (20, 600, 800)
_PLANES = ((61, 509, 1152), (3, 8191, 1024), (1000, 50, 768))

DEPLOYED_SWEEPS: tuple[Sweep, ...] = (
    Sweep("chunk_decays", of.chunk_decays, of.tokens_and_heads, (12, 40, 1984),
          ((9, 80, 4032), (101, 24, 576), (1, 112, 8128)), _BF16, unit=of.CHUNK,
          magnitudes=of.chunk_magnitudes),
    Sweep("decays_and_keys", of.decays_and_keys, of.three_and_four, (2040, 1984),
          ((6007, 4096), (30_011, 320), (50, 5120)), _BF16, unit=of.HEAD),
    Sweep("latent_keys", of.latent_keys, of.latent_and_pairs, (2040, 480, 24),
          ((30_011, 512, 32), (70_001, 257, 16), (17, 1536, 64)), _BF16,
          beside=lambda tokens, latent, pairs: (latent + 2 * pairs,)),
    Sweep("limited_routing", of.limited_routing, first.matrix_and_rows(1), (2040, 240),
          ((4001, 256), (30_011, 72), (50, 160))),
    Sweep("normed_twice", of.normed_twice, first.matrix_and_rows(2, matrices=2), _MIDDLE,
          ((6007, 2560), (70_001, 257), (50, 5376)), _BF16),
    Sweep("gated_modulated", of.gated_modulated, of.two_and_three_rows, _TOKENS, _PLANES, _BF16,
          beside=lambda rows, tokens, columns: (3 * columns,)),
    Sweep("rotary_by_sections", of.rotary_by_sections, of.heads_and_axes, (12, 2040),
          ((28, 8001), (5, 30_011), (16, 1021)), _BF16),
    Sweep("rotary_of_places", of.rotary_of_places, of.heads_and_places, (2040, 12, 24),
          ((4001, 16, 16), (30_011, 3, 20), (1021, 25, 32)), _BF16, prepare=of.places_of_patches),
    Sweep("joined_windows", of.joined_windows, of.windows_and_images, (20, 10, 12, 72),
          ((64, 9, 11, 96), (3, 37, 38, 192), (301, 2, 3, 768)), _F16),
    Sweep("biased_by_distance", of.biased_by_distance, of.scores_and_table, (12, 160, 180),
          ((16, 1021, 1031), (64, 129, 131), (6, 2048, 4097)), _BF16,
          beside=lambda *_: (of.BUCKETS,)),
    Sweep("response_norm", of.response_norm, mixed.images_last, (20, 60, 48, 160),
          ((60, 57, 56, 200), (5, 301, 299, 96), (300, 14, 13, 640)), _F16),
    Sweep("merged_patches", of.merged_patches, of.images_last_and_four, (20, 60, 48, 72),
          ((60, 58, 56, 96), (3, 302, 298, 129), (64, 14, 18, 384)), _F16),
    Sweep("accepted_drafts", of.accepted_drafts, of.two_shares_and_drafts, (40, 6, 1984),
          ((64, 5, 32_003), (301, 3, 4099), (7, 4, 128_256)), prepare=of.drafts),
    Sweep("nvfp4", of.nvfp4, others.matrix_and_scalar, (2040, 1984),
          ((6007, 4096), (70_001, 272), (50, 5120)), _BF16, rounding=17, unit=of.NV_BLOCK),
    Sweep("quantised_squares", of.quantised_squares, first.matrix, (2048, 1920),
          ((7168, 4224), (640, 18_432), (30_080, 384)), _BF16, unit=of.SQUARE),
    Sweep("dequantised_mxfp4", of.dequantised_mxfp4, of.bytes_of_blocks, (2040, 976),
          ((5760, 1440), (70_001, 144), (50, 4112)), prepare=of.nibbles_and_exponents,
          unit=of.MX_BYTES),
    Sweep("dequantised_gptq", of.dequantised_gptq, of.groups_and_words, (20, 248),
          ((33, 1376), (112, 509), (5, 2051)), _F16, prepare=of.words_of_nibbles,
          beside=lambda groups, words: (groups * of.GROUP // of.WORD,)),
    Sweep("logit_gradient", of.logit_gradient, of.logits_and_two, _MIDDLE,
          ((3001, 32_003), (70_001, 257), (50, 128_256)), _BF16, prepare=of.labels_that_count),
    Sweep("jensen_shannon", of.jensen_shannon, first.two_matrices, _MIDDLE,
          ((3001, 32_003), (70_001, 257), (50, 128_256)), _BF16,
          magnitudes=of.jensen_shannon_magnitudes),
    Sweep("factored_step", of.factored_step, of.two_and_averages, _MIDDLE, _ROWS, _BF16),
    Sweep("decoded_boxes", of.decoded_boxes, of.bins_and_anchors, (12, 1984),
          ((16, 8400), (300, 1021), (5, 33_600)), _F16),
    Sweep("last_tokens", of.last_tokens, others.tokens_and_mask, _TOKENS,
          ((61, 509, 1021), (5, 8191, 1024), (1000, 50, 768)), _BF16, prepare=of.beginnings,
          read_in_part=True),
    Sweep("moved_codes", of.moved_codes, of.codes_and_rows, (2040, 500, 72),
          ((30_011, 1021, 256), (70_001, 8191, 64), (301, 16, 1027)), prepare=of.chosen_codes,
          magnitudes=of.moved_code_magnitudes),
    Sweep("nearest", of.nearest, others.rows_of_two, (200, 136, 24),
          ((8191, 1021, 3), (509, 2047, 16), (30_011, 130, 8))),
)  # fmt: skip
