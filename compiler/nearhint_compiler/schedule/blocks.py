"""Block sizes from the scores of a tiling's axes, and warps from the block.

The method is that of PyTorch's `triton_heuristics.match_target_block_product` (pull request
#153751): an axis along which more bytes are coalesced gets a longer block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

ELEMENTS_PER_WARP = 256
WARPS_LIMIT = 16


@dataclass(frozen=True, slots=True)
class BlockBounds:
    """The least block of an axis that has a share in the target, and the greatest of any."""

    least: int
    greatest: int


BOUNDS: Mapping[str, BlockBounds] = {
    "x": BlockBounds(1, 4096),
    "y": BlockBounds(1, 1024),
    "z": BlockBounds(1, 1024),
    "r": BlockBounds(4, 65_536),
}
"""By the axes of `nearhint_compiler.analysis.tilings`."""


def block_sizes(
    scores: Mapping[str, int], *, hints: Mapping[str, int], target: int
) -> dict[str, int]:
    """A power of two for each axis, about `target` elements in all.

    `hints` are the extents at hand: no block is longer than the power of two that covers its axis.
    The axis with the most score left is doubled, which halves its score. One other than r without
    any score stays at 1, unless none has any: then all share alike. Equal scores go by the order
    of `scores`.

    >>> block_sizes({"x": 1000, "y": 0, "r": 500}, hints={"x": 64, "y": 128, "r": 32}, target=1024)
    {'x': 32, 'y': 1, 'r': 32}
    """
    even = not any(scores.values())
    limits = {name: min(BOUNDS[name].greatest, covering(hints[name])) for name in scores}
    blocks = {name: min(BOUNDS[name].least, limits[name]) for name in scores}
    left = {
        name: 1.0 if even else float(score)
        for name, score in scores.items()
        if even or score or name == "r"
    }
    while prod(blocks.values()) < target:
        growing = [name for name in left if blocks[name] < limits[name]]
        if not growing:
            break
        name = max(growing, key=lambda name: left[name])
        blocks[name] *= 2
        left[name] /= 2
    return blocks


def warps_for(blocks: Mapping[str, int]) -> int:
    """Warps for a block: one for 256 elements, at least one and at most 16.

    >>> warps_for({"x": 32, "y": 1, "r": 32})
    4
    """
    return min(WARPS_LIMIT, max(1, prod(blocks.values()) // ELEMENTS_PER_WARP))


def covering(extent: int) -> int:
    """The least power of two that is no less than `extent`."""
    return 1 << max(extent - 1, 0).bit_length()


def power_of_two(size: int) -> int:
    """The least power of two that is no less than `size`, which is positive."""
    return 1 << (size - 1).bit_length()
