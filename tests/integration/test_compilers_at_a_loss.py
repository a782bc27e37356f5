"""Compile workers that can do nothing just now: no Variant is given up for that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.daemon_in_process import hints_of, running
from tests.integration.fake_workers import CPU, FakeCompilePool, Refusal, chain
from tests.integration.waiting import until

from nearhint_daemon import core
from nearhint_daemon.jobs import queue
from nearhint_daemon.store.rows import VariantRow
from nearhint_proto.v1 import operation_service_pb2


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("DISK_FULL", "SCRATCH_FULL"),
        ("TOOLCHAIN_CHANGED", "TOOLCHAIN_MISSING"),
        ("COMPILER_KILLED", "DEVICE_FULL"),
    ],
)
def test_what_could_not_be_compiled_is_compiled_when_it_is_asked_for_again(
    code: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "RETRY_S", 0.0)

    async def scenario() -> None:
        loss = Refusal("compile_variant", code)
        async with running(tmp_path, compile=FakeCompilePool(faults=loss)) as daemon:
            registered = await daemon.client.register(chain(1))
            failed = await daemon.client.tuned(registered, 64)
            assert failed.state == operation_service_pb2.OPERATION_STATE_FAILED
            assert told.encode() in failed.error.details[0].value
            assert daemon.core.store.read_now(lambda reading: reading.count(VariantRow)) == 0
            assert not await daemon.client.tables_of(registered)
            loss.lasts = False
            done = await daemon.client.tuned(registered, 64)
            assert done.state == operation_service_pb2.OPERATION_STATE_DONE
            (table,) = await daemon.client.tables_of(registered)
            assert [row.dims for row in hints_of(table)] == [(64,)]
            assert table.reason == ""

    asyncio.run(scenario())


def test_the_status_names_the_target_of_the_compiler_that_is_here_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts after an upgrade has another; one that is taken away leaves none."""
    monkeypatch.setattr(core, "TOOLCHAIN_RETRY_S", 0.01)

    async def scenario() -> None:
        pool = FakeCompilePool()
        async with running(tmp_path, compile=pool) as daemon:

            def named() -> str:
                return daemon.core.target_id(CPU)

            await until(named)
            before = (await daemon.client.register(chain(1))).target_id
            assert named() == before
            pool.tools = ("cc 13.1.0",)
            await until(lambda: named() != before)
            assert named() == (await daemon.client.register(chain(1))).target_id
            pool.tools = ()
            await until(lambda: not named())
            assert any("no C compiler" in problem for problem in daemon.core.problems())
            pool.tools = ("cc 13.1.0",)
            await until(lambda: not daemon.core.problems())

    asyncio.run(scenario())
