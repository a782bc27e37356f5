"""A GPU whose memory others have: nothing is blamed for it, and all is done when it has room."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.gpu.served import (
    FIRST,
    ROWS,
    SETTLE_S,
    WIDTH,
    Function,
    Tensor,
    block,
    client_of,
    close,
    random,
    serving,
    settled,
)
from tests.integration.waiting import until

import nearhint
from nearhint.demo.daemon import DemoDaemon
from nearhint_torch.runner import watch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

ROOM_BYTES = 64 << 20
"""Enough for what this process serves; a worker's context alone takes several times as much."""


@contextmanager
def full(device: str) -> Generator[None, None, None]:
    """A device with little more memory than `ROOM_BYTES`."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    taken = torch.empty(free - ROOM_BYTES, dtype=torch.uint8, device=device)
    try:
        yield
    finally:
        del taken
        torch.cuda.empty_cache()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DemoDaemon]:
    with serving(tmp_path / "daemon") as found, client_of(found, tmp_path / "cache"):
        yield found


def untuned() -> dict[str, Mapping[str, str]]:
    """By tier the Kernels that are not tuned once all is settled, and why."""
    report = nearhint.settle(timeout_s=SETTLE_S)
    return {tier: found for tier, found in (("T0", report.at_t0), ("T1", report.at_t1)) if found}


def served_right(kernel: Function, *others: Tensor) -> list[tuple[int, ...]]:
    """The tiers of calls at all of `ROWS`, whose results are right."""
    with watch() as reports:
        for rows in ROWS:
            x = random(rows, WIDTH)
            assert close(kernel(x, *others), block(x, *others))
    return [report.tiers for report in reports]


@pytest.mark.parametrize("begun", [False, True], ids=["from_the_start", "while_it_tunes"])
def test_a_device_that_was_full_is_tuned_on_when_it_has_room(
    begun: bool, daemon: DemoDaemon
) -> None:
    others = random(WIDTH), random(WIDTH, WIDTH)
    block(random(ROWS[0], WIDTH), *others)  # so that cuBLAS has its workspace
    kernel: Function = nearhint.kernel(block, dynamic={"x": {0: "rows"}})
    if begun:  # the worker has a context
        kernel(random(2 * ROWS[-1], WIDTH), *others)
        settled()
    with full(FIRST):
        served_right(kernel, *others)
        # What was compiled before serves at sizes that were never measured.
        assert ("T1" if begun else "T0") in untuned()
    asyncio.run(until(lambda: not untuned()))
    assert served_right(kernel, *others) == [(0, 0, 2)] * len(ROWS)
    assert daemon.status().quarantined == 0
