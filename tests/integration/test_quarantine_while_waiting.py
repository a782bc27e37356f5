"""Variants that are quarantined while work on them waits for a device: nobody touches them then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.daemon_in_process import Running
from tests.integration.fake_workers import chain
from tests.integration.operated import FAST, Tuned, go
from tests.integration.waiting import until

from nearhint_daemon.store.rows import VariantRow
from nearhint_proto.v1 import worker_pb2


@pytest.mark.parametrize("hints", [(), (64,)], ids=["to be verified", "to be timed"])
def test_what_was_quarantined_while_it_waited_is_left_alone(
    tmp_path: Path, hints: tuple[int, ...]
) -> None:
    """It is verified at the first hint, and timed at each."""
    policies: list[asyncio.Task[None]] = []
    touched: list[str] = []

    async def scenario(daemon: Running) -> None:
        def watch(job: str, request: worker_pb2.WorkerRequest) -> None:
            if job == "measure_hint" and not policies:  # T1: the search that follows waits
                never = daemon.core.devices.set_policy("cpu", "never", actor="ann")
                policies.append(asyncio.ensure_future(never))
            if FAST.encode() in request.SerializeToString():
                touched.append(job)

        registered = await daemon.client.register(chain(1))
        if hints:
            assert (await daemon.client.tuned(registered, *hints)).failed == 0
            await daemon.at_rest()
        daemon.bench.faults = watch
        operation = await daemon.client.ensure(registered, 256)
        store = daemon.core.store
        await until(
            lambda: (
                policies
                and policies[0].done()
                and store.read_now(lambda r: list(r.where(VariantRow, schedule=FAST)))
                and daemon.core.jobs.is_idle()
            )
        )
        touched.clear()
        await Tuned(daemon, registered).quarantine(FAST)
        await daemon.core.devices.set_policy("cpu", "always", actor="ann")
        assert (await daemon.client.finished(operation.id)).failed == 0
        await daemon.at_rest()
        assert touched == []

    go(tmp_path, scenario)
