"""The store forgets what nothing asks for, and nothing else."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.integration.daemon_in_process import on_a_full_disk
from tests.unit.daemon.stores import MEASUREMENT, Seen, direct, with_store
from tests.unit.rules.tables import row, table

from nearhint_daemon import logs, trimming
from nearhint_daemon.store import Reading, Store, Writing, database, queries
from nearhint_daemon.store.rows import JobRow, MeasurementRow
from nearhint_daemon.tables import TableIndex
from nearhint_daemon.trimming import Trimmer

HELD = replace(table(row((64,), {0: 9}, 9)), probes=(row((48,), {0: 9}, 9),))
KEY = (HELD.namespace, HELD.kernel, HELD.target)
KEPT = 3
JOB = JobRow("key", "probe", "", "lane", "{}", "", 3, 4, "done", "", 0.0, 1, "", "", 1.0, 2.0)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimming, "MEASUREMENTS_KEPT", KEPT)
    monkeypatch.setattr(trimming, "REGRET_JOBS_KEPT", KEPT)


async def timed(store: Store, subject: str, *sizes: object, kernel: str = HELD.kernel) -> None:
    def append(tx: Writing) -> None:
        for size in sizes:
            made = replace(MEASUREMENT, kernel=kernel, target=HELD.target, subject=subject)
            queries.append_measurement(tx, replace(made, dims=str(size)))

    await store.write(append)


def left(store: Store) -> list[MeasurementRow]:
    return store.read_now(lambda reading: list(reading.select(MeasurementRow, " ORDER BY id")))


def subjects(rows: Iterable[MeasurementRow]) -> list[tuple[str, str]]:
    return [(each.subject, each.dims) for each in rows]


def test_of_what_was_timed_again_and_again_the_newest_stay(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        tables = TableIndex(store, clock=time.time)
        await tables.publish(HELD)
        await timed(store, "default", *[64] * 10)
        await timed(store, "default", *[64] * 10, kernel="3" * 64)
        before = left(store)
        await Trimmer(store, tables).turn()
        mine = [each for each in left(store) if each.kernel == HELD.kernel]
        assert [each.id for each in mine] == [each.id for each in before[9 - KEPT : 10]]
        assert [bool(each.superseded_by) for each in mine] == [True] * KEPT + [False]
        assert len(left(store)) == len(mine) + 10, "of another Kernel nothing went"

    with_store(tmp_path, scenario)


def test_what_was_timed_where_the_table_has_no_row_goes_but_for_the_newest(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        tables = TableIndex(store, clock=time.time)
        await tables.publish(HELD)
        await timed(store, "only here", 1000)
        await timed(store, "default", 64, 48, *range(100, 120))
        await timed(store, "other", 64, *range(100, 103))
        await Trimmer(store, tables).turn()
        assert subjects(left(store)) == [
            ("only here", "1000"),  # so that it counts as measured, and may be pinned
            ("default", "64"),
            ("default", "48"),
            ("default", "118"),
            ("default", "119"),
            ("other", "64"),
            ("other", "100"),
            ("other", "101"),
            ("other", "102"),
        ]
        key = (*KEY, "only here")
        assert store.read_now(lambda reading: queries.is_measured(reading, *key))

    with_store(tmp_path, scenario)


def test_every_kernel_has_its_turn_and_none_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "MEASUREMENTS_A_TURN", 4)
    other = replace(HELD, kernel="3" * 64)

    async def scenario(store: Store, seen: Seen) -> None:
        tables = TableIndex(store, clock=time.time)
        for each in (HELD, other):
            await tables.publish(each)
            await timed(store, "default", *[64] * 10, kernel=each.kernel)
        trimmer = Trimmer(store, tables)
        counts: list[int] = []
        for _ in range(5):
            await trimmer.turn()
            counts.append(len(left(store)))
        assert counts == [16, 12, 10, 8, 8]

    with_store(tmp_path, scenario)


def test_ended_jobs_that_nobody_can_ask_for_are_forgotten(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        states = {
            "probe//k/t/a/f/v": "done",
            "probe//k/t/b/f/v": "failed",
            "probe//k/t/c/f/v": "queued",
            "probe//k/t/d/f/v": "running",
            f"restore/{'a' * 64}": "done",
            "tune2//k/t/64/f/v": "done",
            "lower//p/cpu/v": "done",
        }
        rows = [replace(JOB, key=key, state=state) for key, state in states.items()]
        # One after another, by a clock that is set back each time.
        rows += [
            replace(JOB, key=f"regret//k/t/7/f/1/{at}", finished_at_s=9.0 - at) for at in range(6)
        ]
        rows.append(replace(JOB, key="regret//k/t/7/f/1/9", state="queued", finished_at_s=0.0))
        await store.write(lambda tx: tx.put_all(rows))
        await Trimmer(store, TableIndex(store, clock=time.time)).turn()
        found = store.read_now(lambda reading: {each.key for each in reading.where(JobRow)})
        assert {each.key for each in rows} - found == {
            "probe//k/t/a/f/v",
            "probe//k/t/b/f/v",
            f"restore/{'a' * 64}",
            *(f"regret//k/t/7/f/1/{at}" for at in range(6 - KEPT)),
        }

    with_store(tmp_path, scenario)


def test_what_was_forgotten_leaves_the_file_a_few_pages_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a store that its database alone fills is full for good."""
    monkeypatch.setattr(trimming, "PAGES_KEPT", 10)
    monkeypatch.setattr(trimming, "PAGES_A_TURN", 100)

    async def scenario(store: Store, seen: Seen) -> None:
        def sized(connection: sqlite3.Connection) -> tuple[int, int]:
            (free,) = connection.execute("PRAGMA freelist_count").fetchone()
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            return free, pages

        tables = TableIndex(store, clock=time.time)
        await tables.publish(HELD)
        await timed(store, "default", *[64] * 4000)
        trimmer = Trimmer(store, tables)
        sizes: list[tuple[int, int]] = []
        while len(sizes) < 2 or sizes[-1] != sizes[-2]:
            await trimmer.turn()
            sizes.append(store.read_now(lambda reading: sized(reading.connection)))
        assert len(left(store)) == KEPT + 1
        full = [pages for _, pages in sizes]
        assert full[0] > 2 * full[-1]
        # Pages that say where others belong go beside them, one of some 800.
        assert {before - after for before, after in pairwise(full[:-2])} <= {100, 101}
        assert sizes[-1][0] == trimming.PAGES_KEPT
        assert database.quick_check(store._inline.connection) == ()

    with_store(tmp_path, scenario)
    assert (tmp_path / database.FILE_NAME).stat().st_size < 2**20


def test_a_database_of_before_that_gives_no_page_back_is_trimmed_all_the_same(
    tmp_path: Path,
) -> None:
    with closing(direct(tmp_path)) as made:
        made.execute("PRAGMA journal_mode = wal")  # the first page is written

    async def scenario(store: Store, seen: Seen) -> None:
        tables = TableIndex(store, clock=time.time)
        await tables.publish(HELD)
        await timed(store, "default", *[64] * 4000)
        for _ in range(3):
            await Trimmer(store, tables).turn()
        assert len(left(store)) == KEPT + 1

    with_store(tmp_path, scenario)


def a_database_of_before(folder: Path) -> None:
    with closing(direct(folder)) as made:
        made.execute("PRAGMA journal_mode = wal")  # the first page is written


def pages_of(store: Store) -> tuple[int, int, int]:
    """How it gives pages back, how many are free, and how many there are."""

    def read(reading: Reading) -> tuple[int, int, int]:
        names = ("freelist_count", "page_count", "auto_vacuum")
        free, pages, mode = (int(reading.scalar(f"PRAGMA {name}")) for name in names)
        return mode, free, pages

    return store.read_now(read)


async def filled_and_trimmed(store: Store) -> Trimmer:
    tables = TableIndex(store, clock=time.time)
    await tables.publish(HELD)
    await timed(store, "default", *[64] * 4000)
    trimmer = Trimmer(store, tables)
    for _ in range(3):
        await trimmer.turn()
    return trimmer


def test_a_database_of_before_is_written_anew_once_when_much_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "PAGES_KEPT", 10)
    a_database_of_before(tmp_path)

    async def scenario(store: Store, seen: Seen) -> None:
        trimmer = await filled_and_trimmed(store)
        before = left(store)
        await trimmer.shrink()
        mode, free, _ = pages_of(store)
        assert (mode, free > 100) == (0, True), "not worth it"
        monkeypatch.setattr(trimming, "FREE_PAGES_WORTH", 100)
        waiting = asyncio.gather(trimmer.shrink(), timed(store, "other", 64))
        assert left(store) == before, "who reads does not wait"
        await waiting
        mode, free, pages = pages_of(store)
        assert (mode, free) == (database.INCREMENTAL, 0)
        assert pages < 100
        assert left(store)[: len(before)] == before
        assert database.integrity_check(store._inline.connection) == ()
        # From here on pages go by and by, and nothing is written anew.
        monkeypatch.setattr(store, "rewrite", on_a_full_disk)
        await timed(store, "default", *[64] * 4000)
        for _ in range(3):
            await trimmer.turn()
            await trimmer.shrink()
        assert pages_of(store)[1] <= trimming.PAGES_KEPT

    with_store(tmp_path, scenario)
    with closing(direct(tmp_path)) as connection:
        assert database.integrity_check(connection) == ()


def test_a_database_that_takes_too_long_to_write_anew_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "FREE_PAGES_WORTH", 100)
    monkeypatch.setattr(database, "PROGRESS_STEPS", 10)
    a_database_of_before(tmp_path)
    told: list[str] = []
    monkeypatch.setattr(logs, "warning", lambda event, **fields: told.append(event))

    async def scenario(store: Store, seen: Seen) -> None:
        trimmer = await filled_and_trimmed(store)
        trimmer._monotonic = iter(float(second) for second in range(10**6)).__next__
        before, rows = pages_of(store), left(store)
        for _ in range(3):
            await trimmer.shrink()
        assert told == ["database_not_rewritten"], "tried once"
        assert pages_of(store) == before
        await timed(store, "other", 64)
        assert left(store)[: len(rows)] == rows
        assert not seen.read_only
        assert database.integrity_check(store._inline.connection) == ()

    with_store(tmp_path, scenario)


KILLED = """
import os, pathlib, signal, sys
from nearhint_daemon.store import database
database.PROGRESS_STEPS = 10
connection = database.open_writer(pathlib.Path(sys.argv[1]))
looks = iter(range(int(sys.argv[2])))
def is_late():
    if next(looks, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    return False
database.rewrite(connection, is_late=is_late)
"""


@pytest.mark.parametrize("looks", [0, 5, 30])
def test_a_kill_while_a_database_is_written_anew_leaves_it_as_it_was(
    tmp_path: Path, looks: int
) -> None:
    a_database_of_before(tmp_path)
    rows: list[MeasurementRow] = []

    async def before(store: Store, seen: Seen) -> None:
        await filled_and_trimmed(store)
        rows.extend(left(store))

    async def after(store: Store, seen: Seen) -> None:
        assert left(store) == rows
        assert database.integrity_check(store._inline.connection) == ()
        assert pages_of(store)[0] != database.INCREMENTAL
        assert store.moved_aside is None

    with_store(tmp_path, before)
    path = tmp_path / database.FILE_NAME
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), str(looks)], check=False, timeout=60
    )
    assert killed.returncode == -signal.SIGKILL
    with_store(tmp_path, after)


def test_a_disk_that_takes_no_writes_is_trimmed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        tables = TableIndex(store, clock=time.time)
        await tables.publish(HELD)
        await timed(store, "default", *[64] * 10)
        with monkeypatch.context() as patch:
            patch.setattr(store, "write", on_a_full_disk)
            await Trimmer(store, tables).turn()
        assert len(left(store)) == 10
        await Trimmer(store, tables).turn()
        assert len(left(store)) == KEPT + 1

    with_store(tmp_path, scenario)
