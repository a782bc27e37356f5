"""What one release gave up, another tries again: once, and with what it makes of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest
from tests.integration.daemon_in_process import running
from tests.integration.fake_workers import FakeBenchPool, chain

from nearhint_daemon import core as core_module
from nearhint_daemon.programs import LOWER
from nearhint_daemon.store import Store
from nearhint_daemon.store.rows import (
    FallbackRow,
    JobRow,
    LaunchRow,
    PlanRow,
    VariantRow,
)
from nearhint_proto.v1 import types_pb2
from nearhint_proto.v1 import worker_pb2 as pb

PROBLEM = "an error of ours"
RowT = TypeVar("RowT")


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


def rows(store: Store, row_type: type[RowT], **equal: str) -> list[RowT]:
    return store.read_now(lambda reading: list(reading.where(row_type, **equal)))


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
            assert [row.verdict for row in rows(daemon.core.store, FallbackRow)] == ["ok"]

    asyncio.run(scenario())


def test_of_former_releases_the_last_one_is_kept_and_what_tables_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans and Variants of each release came on top of those of all before it."""

    every = ("first", "second", "third", "fourth")

    async def scenario() -> None:
        monkeypatch.setattr(core_module, "COMPILER_VERSION", every[0])
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64)
            (table,) = await daemon.client.tables_of(registered)
            served = {variant.id for variant in table.variants}
            (made, *_) = rows(daemon.core.store, VariantRow)
            others = [
                replace(made, schedule="unserved", id="1" * 64),
                replace(made, schedule="refused", id="", state="rejected"),
                replace(made, schedule="wrong", id="2" * 64, state="rejected"),
            ]
            await daemon.core.store.write(lambda tx: tx.put_all(others))
        for last, version in pairwise(every):
            monkeypatch.setattr(core_module, "COMPILER_VERSION", version)
            async with running(tmp_path) as daemon:
                store = daemon.core.store
                registered = await daemon.client.register(chain(1))
                await daemon.client.tuned(registered, 64, 128)
                kept = {last, version}
                assert {row.compiler_version for row in rows(store, PlanRow)} == kept
                assert {row.compiler_version for row in rows(store, LaunchRow)} == kept
                lowered = {job.key.split("/")[-1] for job in rows(store, JobRow, kind=LOWER)}
                assert lowered == kept
                searched = {part for job in rows(store, JobRow) for part in job.key.split("/")}
                assert every[0] in searched, "idle time refines what it says was searched"
                variants = rows(store, VariantRow, compiler_version=every[0])
                schedules = {row.schedule for row in variants}
                assert schedules.isdisjoint({"unserved", "refused"}) == (every[0] not in kept)
                assert {row.id for row in variants} >= {*served, "2" * 64}
        # Who goes back farther has its Plans made anew.
        monkeypatch.setattr(core_module, "COMPILER_VERSION", every[0])
        async with running(tmp_path) as daemon:
            assert (await daemon.client.register(chain(1))).plan.steps

    asyncio.run(scenario())
