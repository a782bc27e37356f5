"""Sizes that are drawn: between those listed, multiples of what they are multiples of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.benchmarks import sweep_functions as of
from tests.benchmarks.drawn_sizes import LARGE_SHARE, drawn, moved_bytes, rows_drawn
from tests.benchmarks.gpu_sweep_cases import sweeps_of
from tests.benchmarks.sweeps import Sweep, rows_alone

ROWS = Sweep("softmax", of.softmax, of.matrix, (40, 96), ((1, 32), (5000, 64), (700, 1024)))


@pytest.mark.parametrize("sweep", sweeps_of("a", "all"), ids=lambda sweep: sweep.title)
def test_what_is_drawn_lies_between_what_is_listed(sweep: Sweep) -> None:
    found = drawn(sweep, 7)
    assert len(set(found.sizes)) == len(sweep.sizes)
    assert not {*found.sizes} & {*sweep.sizes, sweep.compiled_at}
    most = max(moved_bytes(sweep, sizes) for sizes in sweep.sizes)
    for place, sizes in enumerate(found.sizes):
        moved = moved_bytes(sweep, sizes)
        assert (0 if place % 2 else LARGE_SHARE * most) <= moved <= most
    for given, listed in zip(
        zip(*found.sizes, strict=True), zip(*sweep.sizes, strict=True), strict=True
    ):
        assert min(listed) <= min(given)
        assert max(given) <= max(listed)


def test_a_seed_gives_the_same_sizes_again_and_another_others() -> None:
    assert drawn(ROWS, 1) == drawn(ROWS, 1)
    assert drawn(ROWS, 1).sizes != drawn(ROWS, 2).sizes
    assert drawn(ROWS, 1).sizes != drawn(replace(ROWS, dtype=torch.bfloat16), 1).sizes


def test_blocks_stay_whole() -> None:
    assert {columns % 32 for _, columns in drawn(ROWS, 1).sizes} == {0}


def test_bytes_are_those_of_arguments_and_outputs() -> None:
    assert moved_bytes(ROWS, (3, 32)) == 2 * 3 * 32 * 4


def test_sizes_that_leave_nothing_to_draw_are_refused() -> None:
    with pytest.raises(ValueError, match=r"softmax f32: .* found 0 sizes"):
        drawn(replace(ROWS, sizes=((3, 32),)), 1)


@pytest.mark.parametrize("sweep", sweeps_of("a", "all"), ids=lambda sweep: sweep.title)
def test_rows_that_are_drawn_move_what_they_may(sweep: Sweep) -> None:
    limit = 16 << 20
    found = rows_drawn(sweep, 7, limit=limit)
    assert {each.kind for each in found} == {each.kind for each in rows_alone(sweep)}
    for part in found:
        ((rows, *kind),) = part.sizes
        assert tuple(kind) == part.compiled_at[1:]
        assert 1 < rows <= max(sizes[0] for sizes in sweep.sizes)
        assert moved_bytes(part, (rows, *kind)) <= limit or rows <= max(2, sweep.compiled_at[0])
    assert found == rows_drawn(sweep, 7, limit=limit)


def test_rows_that_come_in_blocks_are_drawn_in_blocks() -> None:
    blocks = replace(ROWS, compiled_at=(384, 96), sizes=((256, 64), (1024, 64), (640, 100_003)))
    for seed in range(8):
        narrow, wide = sorted(
            (each.sizes[0] for each in rows_drawn(blocks, seed, limit=1 << 20)),
            key=lambda sizes: sizes[1],
        )
        assert (narrow[0] % 128, wide) == (0, (128, 100_003))
