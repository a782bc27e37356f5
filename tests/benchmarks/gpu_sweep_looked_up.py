"""The fourth set of sweeps on a GPU: functions that read where data says.

As in the sets before, no size is a hint, and what is compiled is so at other sizes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from tests.benchmarks import looked_up_functions as of
from tests.benchmarks.sweeps import Sweep

_BF16, _F16 = torch.bfloat16, torch.float16

_SWEEPS: tuple[Sweep, ...] = (
    Sweep("embedded_layer_norm", of.embedded_layer_norm, of.tables, (2040, 5000, 600, 960),
          ((16_384, 30_522, 512, 768), (60_001, 3001, 700, 511), (37, 50_257, 1024, 1600)), _F16,
          prepare=of.words_and_positions),
    Sweep("rotated_at_places", of.rotated_at_places, of.rotation, (6, 12, 500, 3000, 96),
          ((9, 31, 1023, 8192, 128), (64, 32, 7, 4096, 128), (1, 8, 8191, 9001, 80)), _BF16,
          prepare=of.rotations),
    Sweep("paged_dequantised", of.paged_dequantised, of.paged, (12, 40, 1000, 24, 500),
          ((31, 100, 4096, 16, 1024), (7, 301, 3001, 64, 576), (64, 3, 900, 16, 129)), _BF16,
          prepare=of.pages),
    Sweep("routed", of.routed, of.tokens_and_order, (2040, 1000, 1984),
          ((8190, 4095, 4096), (70_001, 9000, 257), (64, 32, 7168)), _BF16, prepare=of.order),
    Sweep("bag", of.bag, of.table_and_lists, (1000, 5000, 16, 224),
          ((9001, 100_003, 20, 256), (70_001, 3001, 7, 33), (16, 100_003, 100, 768)),
          magnitudes=of.bag_magnitudes, prepare=of.lists),
    Sweep("picked", of.picked, of.matrix_and_columns, (2040, 40, 1984),
          ((6007, 64, 4096), (70_001, 8, 257), (50, 1000, 32_003)), _BF16, prepare=of.columns),
)  # fmt: skip
LOOKED_UP_SWEEPS = tuple(replace(each, read_in_part=True) for each in _SWEEPS)
