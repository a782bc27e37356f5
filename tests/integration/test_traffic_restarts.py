"""What traffic decides after the daemon was started again, by a clock that goes on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.integration.daemon_in_process import Running, running
from tests.integration.fake_workers import chain
from tests.integration.test_traffic import HALF_LIFE_S, REPORT_S, Replay, replayed

A_HALF_LIFE = int(HALF_LIFE_S / REPORT_S)


@pytest.mark.parametrize("is_late", [False, True])
def test_hints_that_were_asked_for_stay_for_a_half_life_though_the_daemon_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """A warm-up for users to come, and a restart: it was for nothing."""
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)

    async def run(replay: Replay, *, reports: int) -> None:
        nonlocal now_s
        replay.now_s = now_s
        await replay.run([16, 64], reports=reports)
        now_s = replay.now_s

    async def warmed_up(daemon: Running) -> None:
        nonlocal now_s
        replay = await replayed(daemon, 16, 64)
        await run(replay, reports=2 * A_HALF_LIFE)
        registered = await daemon.client.register(chain(1, high=100_000))
        await daemon.client.tuned(registered, 4096, 32768)
        await daemon.at_rest()
        now_s += 2 * HALF_LIFE_S if is_late else REPORT_S

    async def scenario() -> None:
        async with running(tmp_path, hint_budget=2, traffic_half_life_s=HALF_LIFE_S) as daemon:
            await warmed_up(daemon)
        async with running(tmp_path, hint_budget=2, traffic_half_life_s=HALF_LIFE_S) as daemon:
            replay = await replayed(daemon, 16)
            await run(replay, reports=2)
            assert replay.hints() == ([16, 64] if is_late else [16, 64, 4096, 32768])
            await run(replay, reports=A_HALF_LIFE)
            assert replay.hints() == [16, 64]

    asyncio.run(scenario())
