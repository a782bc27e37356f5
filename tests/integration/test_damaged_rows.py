"""Damaged rows: what they held is made again for who asks."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.integration.daemon_in_process import Running, hints_of, running
from tests.integration.fake_workers import chain

from nearhint_daemon.checking import check
from nearhint_daemon.store import database
from nearhint_daemon.store.shapes import SHAPES
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2 as pb

HASHED = tuple(shape.table for shape in SHAPES.values() if shape.is_hashed)


def damage(tmp_path: Path, table: str, change: str = "row_hash = 'x' || row_hash") -> None:
    """Every row of a table loses its hash, or is changed as said."""
    with closing(sqlite3.connect(tmp_path / "state" / database.FILE_NAME)) as direct:
        changed = direct.execute(f"UPDATE {table} SET {change}")
        assert changed.rowcount > 0
        direct.commit()


async def is_tuned_at(daemon: Running, *sizes: int) -> None:
    """A client that starts now has the Program's Kernel tuned at sizes."""
    registered = await daemon.client.register(chain(1))
    assert registered.HasField("plan")
    assert (await daemon.client.tuned(registered, *sizes)).failed == 0
    (found,) = await daemon.client.tables_of(registered)
    assert {row.dims for row in hints_of(found)} == {(size,) for size in sizes}


@pytest.mark.parametrize(
    "change",
    [
        "nodes = 'x' || nodes",
        "kernel = 'x' || kernel",
        "fallback = 'x' || fallback",
        "step = step + 8",
    ],
)
def test_a_plan_whose_launches_are_damaged_is_made_again(tmp_path: Path, change: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            await is_tuned_at(daemon, 64)
        damage(tmp_path, "launches", change)
        async with running(tmp_path) as daemon:
            await is_tuned_at(daemon, 64, 1024)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "change",
    ["payload = 'x' || payload", "payload = '[' || payload || ']'", "priority = priority + 64"],
)
def test_a_damaged_job_is_told_and_keeps_no_daemon_from_starting(
    tmp_path: Path, change: str
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, device_policy="never") as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.ensure(registered, 64)
        damage(tmp_path, "jobs", f"{change} WHERE state = 'queued'")
        assert any(problem.startswith("jobs ") for problem in check(tmp_path / "state")["problems"])
        async with running(tmp_path) as daemon:
            await is_tuned_at(daemon, 64)
        assert check(tmp_path / "state")["problems"] == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("measurements", "dims = 'x' || dims"),
        ("measurements", "median_ns = -median_ns"),
        ("measurements", "samples = -samples"),
        ("copy_bandwidths", "bytes_moved = -bytes_moved"),
        ("tried", "dims = 'x' || dims"),
        ("regrets", "dims = 'x' || dims"),
        ("regrets", "best_ns = -best_ns"),
        ("regrets", "regret = -1 - regret"),
    ],
)
def test_a_kernel_is_explained_without_what_is_damaged(
    tmp_path: Path, table: str, change: str
) -> None:
    async def explained(daemon: Running, kernel: str) -> dict[str, int]:
        admin = daemon.client.admin
        known = await admin.ExplainKernel(pb.ExplainKernelRequest(kernel=kernel), timeout=20)
        judged = await admin.GetRegret(pb.GetRegretRequest(kernel=kernel), timeout=20)
        return {
            "measurements": len(known.measurements),
            "copy_bandwidths": len(known.copy_bandwidths),
            "tried": len(known.searches),
            "regrets": len(judged.records),
        }

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            await is_tuned_at(daemon, 64)
            ((_, kernel, _),) = daemon.core.tables.every_key()
            at = [convert.size_hint_to_proto({"k0": 33})]
            asked = await daemon.client.admin.MeasureRegret(
                pb.MeasureRegretRequest(kernel=kernel, at=at), timeout=20
            )
            await daemon.client.finished(asked.operation.id)
            whole = await explained(daemon, kernel)
            assert min(whole.values()) > 0
        damage(tmp_path, table, change)
        async with running(tmp_path) as daemon:
            assert await explained(daemon, kernel) == {**whole, table: 0}

    asyncio.run(scenario())


@pytest.mark.parametrize("table", HASHED)
def test_what_was_damaged_is_made_again_for_who_asks(tmp_path: Path, table: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            await is_tuned_at(daemon, 64)
        damage(tmp_path, table)
        async with running(tmp_path) as daemon:
            await is_tuned_at(daemon, 64, 1024)

    asyncio.run(scenario())


def test_work_that_failed_for_a_damaged_kernel_is_done_once_that_is_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            await is_tuned_at(daemon, 64)
            registered = await daemon.client.register(chain(1))
            damage(tmp_path, "kernels")
            assert (await daemon.client.tuned(registered, 1024)).failed > 0
        async with running(tmp_path) as daemon:
            daemon.core.jobs._clock = lambda: time.time() + 60.0
            await is_tuned_at(daemon, 64, 1024)

    asyncio.run(scenario())
