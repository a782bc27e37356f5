"""What one release gave up, another tries again: once, and with what it makes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.daemon_in_process import running
from tests.integration.fake_workers import FakeBenchPool, chain

from nearhint_daemon import core as core_module
from nearhint_daemon.store.rows import FallbackRow
from nearhint_proto.v1 import types_pb2
from nearhint_proto.v1 import worker_pb2 as pb

PROBLEM = "an error of ours"


class Failing(FakeBenchPool):
    """Says that what it is to check is wrong."""

    def __init__(self, check: str) -> None:
        super().__init__(faults=self.refuse)
        self.check = check

    def refuse(self, job: str, request: pb.WorkerRequest) -> pb.WorkerResponse | None:
        if job != self.check:
            return None
        return pb.WorkerResponse(id=request.id, verdict=pb.Verdict(is_ok=False, problem=PROBLEM))


async def table_of(folder: Path, bench: FakeBenchPool, *, asks: bool) -> types_pb2.Table:
    """The Table of the only Kernel of a Program, in a daemon that is started for it."""
    async with running(folder, bench=bench) as daemon:
        registered = await daemon.client.register(chain(1))
        if asks:
            await daemon.client.tuned(registered, 64)
        (table,) = await daemon.client.tables_of(registered)
        return table


@pytest.mark.parametrize("check", ["verify_variant", "check_lowering"])
def test_another_release_tries_again_what_was_given_up(
    check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        given_up = await table_of(tmp_path, Failing(check), asks=True)
        assert PROBLEM in given_up.reason
        # The same release does not.
        same = FakeBenchPool()
        assert await table_of(tmp_path, same, asks=True) == given_up
        assert same.asked[check] == 0

        monkeypatch.setattr(core_module, "COMPILER_VERSION", "next")
        # Before anybody asks, clients are told that they may.
        taken_back = await table_of(tmp_path, FakeBenchPool(), asks=False)
        assert taken_back.reason == ""
        assert taken_back.generation > given_up.generation
        tuned = await table_of(tmp_path, FakeBenchPool(), asks=True)
        assert [list(row.dims) for row in tuned.hints] == [[64]]

    asyncio.run(scenario())


@pytest.mark.parametrize("check", ["verify_variant", "check_lowering"])
def test_what_fails_again_is_given_up_again(
    check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        await table_of(tmp_path, Failing(check), asks=True)
        monkeypatch.setattr(core_module, "COMPILER_VERSION", "next")
        bench = Failing(check)
        again = await table_of(tmp_path, bench, asks=True)
        assert PROBLEM in again.reason
        assert bench.asked[check] > 0
        once_more = Failing(check)
        assert await table_of(tmp_path, once_more, asks=True) == again
        assert once_more.asked[check] == 0

    asyncio.run(scenario())


def test_what_was_found_right_is_not_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        before = await table_of(tmp_path, FakeBenchPool(), asks=True)
        monkeypatch.setattr(core_module, "COMPILER_VERSION", "next")
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            assert await daemon.client.tables_of(registered) == [before]
            rows = daemon.core.store.read_now(lambda reading: list(reading.where(FallbackRow)))
            assert [row.verdict for row in rows] == ["ok"]

    asyncio.run(scenario())
