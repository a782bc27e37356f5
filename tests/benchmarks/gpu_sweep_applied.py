"""The eleventh set of sweeps on a GPU: what programs outside language models run.

As in the sets before, no size is a hint, and what is compiled is so at other sizes.
"""

from __future__ import annotations

import torch
from tests.benchmarks import applied_functions as of
from tests.benchmarks import sweep_functions as first
from tests.benchmarks.sweeps import Sweep

_BF16, _F16 = torch.bfloat16, torch.float16
_MIDDLE = (2040, 1984)
_IMAGES = (20, 136, 152)

APPLIED_SWEEPS: tuple[Sweep, ...] = (
    Sweep("pair_interactions", of.pair_interactions, of.fields_and_alone, (2040, 24, 72),
          ((30_011, 39, 16), (8191, 26, 128), (301, 203, 64)), _BF16, prepare=of.small_fields),
    Sweep("sampled_softmax", of.sampled_softmax, of.products_and_items, _MIDDLE,
          ((4096, 8191), (513, 32_768), (50, 5120)), _BF16, prepare=of.drawn_items,
          read_in_part=True),
    Sweep("symmetric_contrast", of.symmetric_contrast, of.squares_and_scales, (12, 160),
          ((8, 1021), (61, 256), (2, 4099)), _F16),
    Sweep("normed_features", of.normed_features, of.clips_and_lengths, (20, 80, 480),
          ((61, 80, 3001), (300, 128, 509), (4, 64, 30_011)), _F16, prepare=of.powers_of_clips),
    Sweep("deltas_of_features", of.deltas_of_features, first.planes, (20, 80, 480),
          ((61, 80, 2003), (300, 128, 509), (5, 40, 30_011)),
          beside=lambda _, bands, __: (3 * bands,)),
    Sweep("seasonal_residuals", of.seasonal_residuals, first.planes, (20, 336, 160),
          ((64, 336, 321), (7, 720, 862), (1021, 96, 7)), _BF16,
          beside=lambda _, times, __: (of.HOURS, times // of.HOURS)),
    Sweep("balanced_colours", of.balanced_colours, of.colours_and_matrix, _IMAGES,
          ((64, 224, 225), (3, 1080, 1913), (301, 57, 56)), prepare=of.image_and_matrix,
          rounding=1, beside=lambda *_: (3,)),
    Sweep("edges", of.edges, first.planes, _IMAGES,
          ((61, 480, 641), (5, 2160, 2003), (1000, 64, 97)), prepare=of.bytes_alone),
    Sweep("box_means", of.box_means, first.planes, _IMAGES,
          ((16, 720, 1283), (61, 257, 320), (301, 64, 97)), magnitudes=of.box_magnitudes),
    Sweep("suppressed", of.suppressed, of.boxes_of_images, (12, 160),
          ((16, 1000), (5, 1501), (61, 300)), prepare=of.boxes_and_classes,
          beside=lambda *_: (4,)),
    Sweep("points_and_normals", of.points_and_normals, of.images_and_lenses, _IMAGES,
          ((61, 480, 641), (5, 1080, 1913), (301, 64, 97)), prepare=of.depths_and_lenses,
          beside=lambda *_: (4,)),
    Sweep("rays_composed", of.rays_composed, of.samples_of_rays, (2040, 72),
          ((8191, 192), (30_011, 64), (301, 1031)), _F16, prepare=of.positive_lengths,
          beside=lambda *_: (3,)),
    Sweep("chamfer", of.chamfer, of.two_clouds, (12, 160, 200),
          ((16, 1024, 1021), (2, 4096, 2003), (301, 64, 61)), beside=lambda *_: (3,)),
    Sweep("lennard_jones", of.lennard_jones, of.atoms_in_boxes, (12, 160),
          ((64, 256), (5, 1000), (1021, 29)), prepare=of.places_in_boxes,
          magnitudes=of.lennard_jones_magnitudes, beside=lambda *_: (3,)),
    Sweep("ising_step", of.ising_step, of.lattices_and_temperatures, _IMAGES,
          ((61, 512, 520), (3, 2048, 2050), (1000, 64, 96)), prepare=of.spins_and_bytes),
    Sweep("mixture_shares", of.mixture_shares, of.rows_and_gaussians, (2040, 24, 40),
          ((30_011, 16, 32), (4001, 64, 10), (509, 128, 61)), prepare=of.near_centres),
    Sweep("count_losses", of.count_losses, of.cells_and_genes, _MIDDLE,
          ((4001, 2000), (509, 20_011), (30_011, 257)), _BF16, prepare=of.counted_cells),
    Sweep("ensemble_scores", of.ensemble_scores, of.members_and_truth, (12, 136, 152),
          ((20, 181, 360), (50, 64, 129), (8, 721, 501)), magnitudes=of.ensemble_magnitudes),
    Sweep("filled_forward", of.filled_forward, first.two_matrices, _MIDDLE,
          ((6007, 4096), (70_001, 257), (50, 51_200)), prepare=of.some_seen, read_in_part=True),
    Sweep("advantages", of.advantages, of.times_of_environments, (160, 200),
          ((128, 8191), (509, 1021), (1000, 64), (24, 70_001)),
          magnitudes=of.advantage_magnitudes),
    Sweep("survival_losses", of.survival_losses, first.two_matrices, _MIDDLE,
          ((61, 30_011), (4001, 509), (509, 4099)), prepare=of.some_seen),
    Sweep("triangle_sides", of.triangle_sides, of.pairs_and_gates, (136, 160, 72),
          ((256, 255, 128), (509, 500, 64), (12, 2003, 130)), _BF16, prepare=of.pairs_there),
    Sweep("zero_points_i4", of.zero_points_i4, first.two_matrices, _MIDDLE,
          ((6007, 4096), (70_001, 320), (50, 5120)), _BF16, prepare=of.weight_and_error,
          rounding=17, unit=of.GROUP),
    Sweep("aligned_step", of.aligned_step, of.diagonals_and_table, (2040, 160),
          ((30_011, 150), (4001, 1021), (61, 30_011)), prepare=of.letters_and_scores,
          read_in_part=True, beside=lambda *_: (of.LETTERS,)),
)  # fmt: skip
