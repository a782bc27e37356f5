"""The twelfth set of sweeps on a GPU: what a profiler shows of models that many people run.

As in the sets before, no size is a hint, and what is compiled is so at other sizes.
"""

from __future__ import annotations

import torch
from tests.benchmarks import everyday_functions as of
from tests.benchmarks import sweep_functions as first
from tests.benchmarks.sweeps import Sweep

_BF16, _F16 = torch.bfloat16, torch.float16
_MIDDLE = (2040, 1984)
_ROWS = ((6007, 4096), (70_001, 257), (50, 5120))
_WORDS = ((513, 32_768), (3001, 5120), (61, 128_256))
_HEADS = ((8191, 32, 128), (30_011, 7, 66), (301, 40, 96))

EVERYDAY_SWEEPS: tuple[Sweep, ...] = (
    Sweep("frequencies_penalised", of.frequencies_penalised, of.logits_counts_and_three, _MIDDLE,
          _WORDS, _BF16, prepare=of.words_counted),
    Sweep("verified_tokens", of.verified_tokens, of.four_of_drafts, (2040, 12),
          ((256, 5), (8191, 7), (300_011, 3)), prepare=of.drafts_and_bonus),
    Sweep("keys_and_values_i8", of.keys_and_values_i8, of.two_of_heads, (2040, 12, 72),
          _HEADS, _BF16, rounding=1),
    Sweep("swiglu_blocks_f8", of.swiglu_blocks_f8, of.two_halves, (2040, 1920),
          ((6007, 4096), (30_011, 384), (50, 14_336)), _BF16, unit=of.BLOCK,
          beside=lambda _, size: (2 * size,)),
    Sweep("additive_masks", of.additive_masks, of.two_lengths_and_segments, (12, 160),
          ((16, 1021), (301, 128), (2, 4099)), prepare=of.lengths_and_segments),
    Sweep("capped_cross_entropy", of.capped_cross_entropy, of.logits_and_labels, _MIDDLE,
          _WORDS, _BF16, prepare=of.some_labels),
    Sweep("normed_queries_and_keys", of.normed_queries_and_keys, of.packed_and_scales,
          (2040, 12, 72), _HEADS, _BF16, beside=lambda *_: (3,)),
    Sweep("gated_heads_normed", of.gated_heads_normed, of.heads_gates_and_weight, (2040, 12, 72),
          _HEADS, _BF16, beside=lambda _, heads, size: (heads * size,)),
    Sweep("router_losses", of.router_losses, of.logits_bias_and_tokens, (2040, 72),
          ((8191, 128), (70_001, 60), (1021, 256)), prepare=of.tokens_there),
    Sweep("gathered_and_combined", of.gathered_and_combined, of.rows_of_experts, (2040, 12, 1984),
          ((4001, 8, 2048), (30_011, 2, 509), (50, 6, 5120)), _BF16,
          prepare=of.sorted_by_experts, read_in_part=True,
          beside=lambda tokens, chosen, _: (tokens * chosen,)),
    Sweep("rms_norm_gradients", of.rms_norm_gradients, first.matrix_and_rows(1, matrices=3),
          _MIDDLE, _ROWS, _BF16, magnitudes=of.rms_norm_gradient_magnitudes),
    Sweep("packed_geglu_backward", of.packed_geglu_backward, of.gradient_halves_and_bias, _MIDDLE,
          ((6007, 4096), (70_001, 257), (50, 13_824)), _BF16,
          magnitudes=of.packed_geglu_magnitudes, beside=lambda _, size: (2 * size,)),
    Sweep("group_norm_gradients", of.group_norm_gradients, of.two_images_and_weight,
          (20, 160, 60, 48), ((60, 208, 57, 56), (5, 96, 301, 299), (300, 640, 9, 8)), _F16,
          magnitudes=of.group_norm_gradient_magnitudes),
    Sweep("scores_and_bias_gradients", of.scores_and_bias_gradients, of.three_of_scores,
          (136, 160, 72), ((64, 512, 509), (301, 197, 196), (12, 1021, 2050)), _BF16,
          prepare=of.shares_and_bytes, magnitudes=of.scores_and_bias_magnitudes),
    Sweep("adamw_and_average", of.adamw_and_average, of.five_and_two_numbers, _MIDDLE,
          _ROWS, prepare=of.narrow_gradient),
    Sweep("distillation_losses", of.distillation_losses, of.two_logits_and_labels, _MIDDLE,
          _WORDS, _BF16, prepare=of.all_labels),
    Sweep("preference_loss", of.preference_loss, of.three_of_pairs, _MIDDLE,
          ((4001, 1021), (61, 8191), (30_011, 129)), prepare=of.answers_of_pairs,
          beside=lambda *_: (2,)),
    Sweep("private_gradient", of.private_gradient, of.samples_and_noise, (136, 160, 72),
          ((64, 1021, 1024), (301, 257, 768), (2003, 60, 61)), _BF16,
          magnitudes=of.private_gradient_magnitudes),
    Sweep("attention_of_channels", of.attention_of_channels, of.images_and_two_gates,
          (20, 160, 60, 48), ((60, 208, 57, 56), (5, 96, 301, 299), (301, 512, 9, 8)), _F16),
    Sweep("guided_step", of.guided_step, of.both_and_sample, (20, 12, 80, 72),
          ((61, 16, 129, 128), (300, 4, 64, 63), (2, 5, 301, 520)), _F16,
          prepare=of.times_of_steps, beside=lambda images, *_: (2 * images,)),
    Sweep("unshuffled_norm", of.unshuffled_norm, of.larger_images, (20, 72, 60, 48),
          ((64, 96, 57, 56), (5, 24, 301, 299), (301, 192, 14, 15)), _BF16,
          beside=lambda _, channels, height, width: (4 * channels, 2 * height, 2 * width)),
    Sweep("attentive_statistics", of.attentive_statistics, of.two_of_clips, (20, 160, 480),
          ((61, 1536, 301), (300, 128, 509), (4, 500, 8191)), _F16, prepare=of.lengths_of_clips),
    Sweep("chunk_gates", of.chunk_gates, of.products_of_chunks, (20, 12),
          ((128, 33), (1021, 3), (24, 129)), _BF16, prepare=of.small_gates,
          magnitudes=of.chunk_gate_magnitudes,
          beside=lambda _, chunks: (of.CHUNK, chunks * of.CHUNK)),
    Sweep("scaled_branch", of.scaled_branch, of.images_and_branch, (20, 160, 60, 48),
          ((60, 208, 57, 56), (5, 96, 301, 299), (301, 768, 7, 8)), _BF16,
          prepare=of.images_kept),
)  # fmt: skip
