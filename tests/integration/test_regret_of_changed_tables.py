"""Regret jobs that a Table does not wait for: it changes before their turn comes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.daemon_in_process import running
from tests.integration.fake_workers import FakeBenchPool
from tests.integration.operated import FAST, Tuned
from tests.integration.test_regret import HINTS, LIMIT_S, Request, records

from nearhint_daemon.store.queries import GENERATIONS_KEPT
from nearhint_proto import convert
from nearhint_proto.v1 import worker_pb2


@pytest.mark.parametrize("changes", [1, GENERATIONS_KEPT + 1], ids=["kept", "gone"])
def test_a_table_that_changed_before_its_turn_is_judged_as_it_may_serve(
    tmp_path: Path, changes: int
) -> None:
    """Of the Table that was planned, if it is kept, what was quarantined since is not timed."""
    timed: list[bytes] = []

    def note(job: str, request: worker_pb2.WorkerRequest) -> None:
        if job == "measure_hint":
            timed.append(request.SerializeToString())

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            kernel = await Tuned.at(daemon, *HINTS)
            await daemon.at_rest()
            await daemon.core.devices.set_policy("cpu", "never", actor="test")
            sizes = [convert.size_hint_to_proto({"k0": size}) for size in (98, 99)]
            request = Request(kernel=kernel.kernel, at=sizes)
            await daemon.client.admin.MeasureRegret(request, timeout=LIMIT_S)
            if changes == 1:
                await kernel.quarantine(FAST)
            else:
                for change in range(changes):
                    await (kernel.unpin() if change % 2 else kernel.pin(None))
            newest = (await kernel.table()).generation
        async with running(tmp_path, bench=FakeBenchPool(faults=note)) as daemon:
            await daemon.core.devices.set_policy("cpu", "always", actor="test")
            await daemon.at_rest()
            found = await records(daemon, kernel.kernel)
            assert {tuple(record.dims) for record in found} == {(98,), (99,)}
            assert {record.generation for record in found} == {newest}
            assert any(FAST.encode() in each for each in timed) == (changes > 1)

    asyncio.run(scenario())
