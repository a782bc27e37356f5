"""Usage: bounded, in memory while none of it can be written, and in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
from tests.unit.daemon.stores import Seen, with_store

from nearhint_daemon.errors import StoreReadOnly
from nearhint_daemon.programs import Programs
from nearhint_daemon.sightings import Sightings
from nearhint_daemon.store import Store
from nearhint_daemon.store.rows import UsageRow
from nearhint_daemon.traffic import usage
from nearhint_daemon.traffic.histograms import Traffic
from nearhint_daemon.traffic.usage import Usage, Used


class AnyPrograms:
    """Programs of one symbol, none of which is lowered here."""

    def ranges(self, namespace: str, program: str) -> Mapping[str, tuple[int, int | None]]:
        return {"s0": (2, 4096)}


class FullDisk:
    """A store that takes no writes."""

    async def write(self, work: object) -> None:
        raise StoreReadOnly("the disk takes no writes now")


def test_a_clock_that_was_set_back_makes_nothing_old_that_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "USAGE_ROWS", 2)
    now_s = [1000.0]

    async def scenario(store: Store, seen: Seen) -> None:
        programs = cast(Programs, AnyPrograms())

        def clock() -> float:
            return now_s[0]

        traffic = Traffic(store, programs, clock=clock, half_life_s=60.0)
        sightings = Sightings(store, clock=clock)
        gathering = Usage(store, programs, traffic, sightings, clock=clock, monotonic=lambda: 0.0)
        for size in (2, 3, 4):
            await gathering.report("a", [Used("p" * 64, {"s0": size}, 1, (0,) * 4)], namespace="")
            await gathering.flush()
            now_s[0] -= 100.0
        rows = store.read_now(lambda reading: list(reading.select(UsageRow, " ORDER BY sizes")))
        assert [row.sizes for row in rows] == ["s0=3", "s0=4"]

    with_store(tmp_path, scenario)


def test_while_the_disk_is_full_no_more_clients_are_gathered_than_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage, "CLIENTS_LIMIT", 2)
    store, programs = cast(Store, FullDisk()), cast(Programs, AnyPrograms())
    traffic = Traffic(store, programs, clock=lambda: 0.0, half_life_s=60.0)
    gathering = Usage(
        store,
        programs,
        traffic,
        Sightings(store, clock=lambda: 0.0),
        clock=lambda: 0.0,
        monotonic=lambda: 0.0,
    )
    used = [Used("p" * 64, {"s0": 16}, 3, (0, 0, 3, 0))]

    async def reported(client_id: str) -> int:
        accepted = await gathering.report(client_id, used, namespace="")
        with pytest.raises(StoreReadOnly):
            await gathering.flush()
        return accepted

    async def scenario() -> None:
        assert [await reported(each) for each in ("a", "b", "c", "a")] == [1, 1, 0, 1]

    asyncio.run(scenario())
