"""Blocks that share a target by the scores of their axes."""

from __future__ import annotations

import pytest

from nearhint_compiler.schedule.blocks import BOUNDS, block_sizes, warps_for

LARGE = 1 << 20


@pytest.mark.parametrize(
    ("hints", "scores", "target", "blocks"),
    [
        ((64, 128, 32), (1000, 0, 500), 1024, (32, 1, 32)),
        ((4096, 4096, 32), (1000, 1000, 500), 2048, (16, 8, 16)),
        ((4096, 4096, 32), (0, 0, 0), 2048, (8, 8, 32)),
        # a dim leaves when it covers its extent; the rest goes to the others
        ((64, 5, LARGE), (1, 1000, 1), 4096, (16, 8, 32)),
        # a reduction without a score keeps its least block until it alone is left
        ((LARGE, LARGE, LARGE), (10, 0, 0), 256, (64, 1, 4)),
        ((16, LARGE, LARGE), (10, 0, 0), 256, (16, 1, 16)),
        # a reduction shorter than its least block
        ((LARGE, LARGE, 2), (1, 0, 1), 64, (32, 1, 2)),
        # nothing left to grow
        ((4, 1, 3), (1, 1, 1), 2048, (4, 1, 4)),
    ],
)
def test_blocks_follow_the_scores(
    hints: tuple[int, ...], scores: tuple[int, ...], target: int, blocks: tuple[int, ...]
) -> None:
    axes = ("x", "y", "r")
    found = block_sizes(
        dict(zip(axes, scores, strict=True)),
        hints=dict(zip(axes, hints, strict=True)),
        target=target,
    )
    assert found == dict(zip(axes, blocks, strict=True))


@pytest.mark.parametrize("axis", sorted(BOUNDS))
def test_no_block_is_longer_than_its_axis_allows(axis: str) -> None:
    found = block_sizes({axis: 1}, hints={axis: LARGE}, target=LARGE)
    assert found == {axis: BOUNDS[axis].greatest}


@pytest.mark.parametrize(
    ("blocks", "warps"),
    [({"x": 1}, 1), ({"x": 256}, 1), ({"x": 32, "y": 32}, 4), ({"x": 64, "r": 2048}, 16)],
)
def test_warps_follow_the_block(blocks: dict[str, int], warps: int) -> None:
    assert warps_for(blocks) == warps
