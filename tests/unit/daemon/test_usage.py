"""Usage in memory: bounded, also while none of it can be written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from nearhint_daemon.errors import StoreReadOnly
from nearhint_daemon.programs import Programs
from nearhint_daemon.sightings import Sightings
from nearhint_daemon.store import Store
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
