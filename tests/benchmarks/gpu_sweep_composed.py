"""The tenth set of sweeps on a GPU: where one result is needed by the next, or two are joined.

As in the sets before, no size is a hint, and what is compiled is so at other sizes.
"""

from __future__ import annotations

import torch
from tests.benchmarks import composed_functions as of
from tests.benchmarks import strided_functions as strided
from tests.benchmarks import sweep_functions as first
from tests.benchmarks import trained_functions as trained
from tests.benchmarks.sweeps import Sweep

_BF16, _F16 = torch.bfloat16, torch.float16
_MIDDLE = (2040, 1984)
_ROWS = ((6007, 4096), (70_001, 257), (50, 5120))

COMPOSED_SWEEPS: tuple[Sweep, ...] = (
    Sweep("gated_norm_of_groups", of.gated_norm_of_groups, first.matrix_and_rows(1, matrices=2),
          _MIDDLE, ((6007, 4096), (70_001, 264), (50, 5120)), _BF16),
    Sweep("mixed_with_before", of.mixed_with_before, of.tokens_changes_and_base, (20, 600, 800),
          ((13, 509, 1152), (3, 2731, 1024), (250, 50, 768)), _BF16,
          beside=lambda *_: (of.MIXTURES,)),
    Sweep("joined_streams", of.joined_streams, of.two_streams, (20, 600, 160, 800),
          ((16, 1024, 154, 1536), (3, 4096, 77, 1153), (64, 256, 333, 768)), _BF16,
          beside=lambda *sizes: (2 * sizes[-1],)),
    Sweep("fourier_features", of.fourier_features, of.points_and_bands, (2040, 24, 12),
          ((300_011, 3, 10), (70_001, 6, 4), (4001, 2, 16)), prepare=of.octaves),
    Sweep("straight_through", of.straight_through, of.rows_codes_and_places, (2040, 500, 72),
          ((30_011, 1021, 256), (70_001, 8191, 64), (301, 16, 1027)), _BF16,
          prepare=of.codes_of_rows, read_in_part=True),
    Sweep("timed_group_norm", of.timed_group_norm, of.images_times_and_two, (20, 160, 60, 48),
          ((60, 208, 57, 56), (5, 96, 301, 299), (2, 640, 64, 66)), _F16,
          prepare=strided.channels_last),
    Sweep("lamb", of.lamb, first.matrix_and_rows(0, matrices=4), _MIDDLE,
          _ROWS, _BF16, prepare=of.wide_moments),
    Sweep("clipped_together", of.clipped_together, of.three_gradients, _MIDDLE,
          _ROWS, prepare=of.one_narrow_gradient),
    Sweep("policy_loss", of.policy_loss, of.logits_of_answers, (12, 60, 1984),
          ((4, 500, 50_257), (61, 127, 8191), (7, 10, 128_256)), _BF16, prepare=of.answers),
    Sweep("box_losses", of.box_losses, of.two_of_boxes, _MIDDLE,
          ((64, 8400), (4001, 300), (1021, 17)), prepare=of.corners, beside=lambda *_: (4,)),
    Sweep("packed_alibi", of.packed_alibi, of.square_scores_and_texts, (12, 160),
          ((16, 1021), (200, 129), (8, 4097)), _BF16, prepare=of.texts),
    Sweep("page_scores", of.page_scores, of.keys_and_query, (2048, 12, 72),
          ((8192, 32, 128), (50_000, 3, 80), (144, 40, 128)), _F16,
          magnitudes=of.page_magnitudes),
    Sweep("keys_of_two_bits", of.keys_of_two_bits, first.planes, (12, 2016, 72),
          ((32, 8160, 128), (3, 50_016, 80), (40, 96, 129)), _BF16, rounding=85),
    Sweep("two_of_four", of.two_of_four, first.matrix, _MIDDLE,
          ((6007, 4096), (70_001, 260), (50, 5120)), _BF16),
    Sweep("turned_rows_i8", of.turned_rows_i8, first.matrix, _MIDDLE,
          ((6007, 4096), (70_001, 272), (50, 5120)), _BF16, rounding=1),
    Sweep("overlap_added", of.overlap_added, of.frames_and_window, (20, 600, 480),
          ((61, 509, 512), (5, 4001, 400), (300, 100, 1024)), prepare=of.hann),
    Sweep("rgb_of_nv12", of.rgb_of_nv12, of.light_and_colours, (20, 136, 150),
          ((64, 180, 320), (3, 540, 960), (301, 57, 56)), prepare=of.frame_bytes,
          beside=lambda _, height, width: (2 * height, 2 * width, 2)),
    Sweep("similarity_of_windows", of.similarity_of_windows, trained.two_planes,
          (20, 136, 152),
          ((61, 512, 520), (3, 2048, 2040), (1000, 64, 96)), _F16, prepare=of.shares_of_white),
    Sweep("radial_basis", of.radial_basis, of.atoms_and_centres, (2040, 24, 40),
          ((4001, 32, 50), (30_011, 12, 20), (509, 64, 128)), prepare=of.neighbours_of_atoms,
          beside=lambda *_: (3,)),
    Sweep("attended_neighbours", of.attended_neighbours, of.nodes_and_neighbours,
          (2040, 12, 6, 40), ((10_007, 16, 8, 32), (30_011, 7, 4, 64), (1021, 50, 3, 130)), _BF16,
          prepare=of.some_neighbours, magnitudes=of.attended_magnitudes, read_in_part=True),
    Sweep("harmonics", of.harmonics, of.directions, (2040, 24),
          ((30_011, 32), (4001, 12), (509, 64)), beside=lambda *_: (3,)),
    Sweep("rolling", of.rolling, first.matrix, _MIDDLE,
          _ROWS, magnitudes=of.rolling_magnitudes),
    Sweep("batch_hard", of.batch_hard, of.products_and_labels, _MIDDLE,
          ((4096, 8191), (513, 32_768), (50, 5120)), _BF16, prepare=of.labelled),
    Sweep("ctc_step", of.ctc_step, of.logits_and_states, (40, 1984, 120),
          ((64, 32_003, 201), (1021, 1031, 61), (7, 4099, 1001)), _F16,
          prepare=of.states_of_texts),
)  # fmt: skip
