"""The store: what is written lasts, what is damaged is found, and old databases become new ones."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlite_utils import Database
from tests.unit.daemon.stores import (
    KERNEL,
    LIMIT_S,
    MEASUREMENT,
    Seen,
    direct,
    with_patient_commits,
    with_store,
)

from nearhint_compiler.ir.text import kernel_id, parse_kernel
from nearhint_compiler.schedule import parse_schedule
from nearhint_daemon.errors import (
    DatabaseForeign,
    SchemaTooNew,
    StoreReadOnly,
)
from nearhint_daemon.store import Reading, Store, Writing, database, migrations, queries
from nearhint_daemon.store.rows import (
    ActRow,
    ArtifactRow,
    CopyBandwidthRow,
    EventRow,
    JobRow,
    KernelRow,
    MeasurementRow,
    MetaRow,
    QuarantinedVariantRow,
    QuarantineRow,
    RegretRow,
    TableRow,
    TrafficRow,
)
from nearhint_daemon.store.schema import APPLICATION_ID, VERSION
from nearhint_daemon.store.shapes import SHAPES
from nearhint_proto import convert
from nearhint_proto.v1 import types_pb2
from nearhint_rules import expr as ex
from nearhint_rules.canonical import identity

KERNELS = Path(__file__).parents[2] / "kernels"
REGRET = RegretRow(
    "", "k", "t", "8", "nearest", "f", 7, "v", 110, "w", 100, 0.1, 0.02, "", 1.0, "d"
)  # fmt: skip
JOB = JobRow(
    "key", "regret", "", "lane", "{}", "", 3, 4, "done", "", 0.0, 1, "", "", 1.0, 2.0
)  # fmt: skip


def test_columns_of_every_table_are_the_fields_of_its_row(tmp_path: Path) -> None:
    connection = database.open_writer(tmp_path / "db")
    for shape in SHAPES.values():
        described = connection.execute(f"PRAGMA table_info({shape.table})").fetchall()
        names = [row[1] for row in described]
        hashed = ["row_hash"] if shape.is_hashed else []
        assert names == [*shape.columns, *hashed]
    connection.close()


def test_every_table_is_strict(tmp_path: Path) -> None:
    connection = database.open_writer(tmp_path / "db")
    listed = connection.execute("PRAGMA table_list").fetchall()
    ours = {shape.table for shape in SHAPES.values()}
    assert {row[1] for row in listed if row[1] in ours and row[5] == 1} == ours
    connection.close()


def test_the_version_counts_the_migrations() -> None:
    assert len(migrations.migrations.pending(Database(memory=True))) == VERSION


def test_a_store_of_version_1_keeps_its_kernels_with_their_bytes_apart(tmp_path: Path) -> None:
    text = (KERNELS / "column_sum_f32.ir").read_text(encoding="ascii")
    whole = ("", kernel_id(parse_kernel(text)), text, "sum", "k0 k1", b"sum of both", 1.0)
    unreadable = ("", "c" * 64, "(kernel of another grammar)", "sum", "k0", b"", 1.0)
    forged = ("", "d" * 64, text, "sum", "k0 k1", b"", 1.0)
    connection = sqlite3.connect(tmp_path / database.FILE_NAME, isolation_level=None)
    with database.immediate(connection):
        migrations.migrations.apply(Database(connection), stop_before="m002_bytes_read_and_written")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        for number, row in enumerate((whole, unreadable, forged)):
            row_hash = identity("nearhint.row.kernels.v1", row)
            values = (*row, number + 7, "0" * 64 if row is forged else row_hash)
            connection.execute("INSERT INTO kernels VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    connection.close()

    async def scenario(store: Store, seen: Seen) -> None:
        (row,) = store.read_now(lambda reading: list(reading.where(KernelRow)))
        assert (row.id, row.ir, row.title, row.symbols) == whole[1:5]
        assert (row.created_at_s, row.change_seq) == (1.0, 7)
        moved = (types_pb2.Expr.FromString(each) for each in (row.bytes_read, row.bytes_written))
        assert [expr_to_text(each) for each in moved] == ["(* 4 k0 k1)", "(* 4 k1)"]
        assert seen.corrupt == []
        assert store.read_now(lambda reading: list(reading.where(CopyBandwidthRow))) == []

    with_store(tmp_path, scenario)


def test_a_store_of_version_2_gets_the_tables_of_operators_and_keeps_the_rest(
    tmp_path: Path,
) -> None:
    connection = sqlite3.connect(tmp_path / database.FILE_NAME, isolation_level=None)
    with database.immediate(connection):
        migrations.migrations.apply(Database(connection), stop_before="m003_acts_of_operators")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 2")
        connection.execute(
            "INSERT INTO quarantine VALUES ('k', 'variant', 'why', 'q/1', 2, 1.0, 5)"
        )
    connection.close()
    act = ActRow(7, "", "ann", 2.0, "pin", KERNEL.id, "t", "v" * 64, "everywhere")
    barred = QuarantinedVariantRow("", KERNEL.id, "t", "v" * 64, "s", "a" * 64, "why", "ann", 2.0)

    async def scenario(store: Store, seen: Seen) -> None:
        (kept,) = store.read_now(lambda reading: list(reading.where(QuarantineRow)))
        assert (kept.key, kept.reason, kept.change_seq) == ("k", "why", 5)
        await store.write(lambda tx: queries.record_act(tx, act))
        await store.write(lambda tx: tx.put(barred))
        acts = store.read_now(lambda reading: queries.acts_on(reading, "", KERNEL.id, limit=9))
        assert acts == (replace(act, change_seq=7),)
        found = store.read_now(lambda r: queries.quarantined_variants(r, "", KERNEL.id, limit=9))
        assert [row.variant for row in found] == [barred.variant]

    with_store(tmp_path, scenario)


def test_a_store_of_version_6_bars_the_same_schedules_by_their_new_text(tmp_path: Path) -> None:
    near, band = "cuda.tiled y=32 x=64 near=4 words=1", "cuda.tiled_persistent y=64 x=4 r=32 band=1"
    keys = [f"variant//{KERNEL.id}/t/{text}" for text in (near, band)]
    connection = sqlite3.connect(tmp_path / database.FILE_NAME, isolation_level=None)
    with database.immediate(connection):
        stop = "m007_one_option_for_the_order_of_programs"
        migrations.migrations.apply(Database(connection), stop_before=stop)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 6")
        for number, (text, key) in enumerate(zip((near, band), keys, strict=True)):
            bar = ("", KERNEL.id, "t", f"{number}" * 64, text, "a" * 64, "why", "ann", 2.0, 5)
            connection.execute(
                "INSERT INTO quarantined_variants VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", bar
            )
            connection.execute("INSERT INTO quarantine VALUES (?, 'v', '', '', 2, 1.0, 5)", (key,))
    connection.close()

    async def scenario(store: Store, seen: Seen) -> None:
        barred = store.read_now(lambda r: queries.quarantined_variants(r, "", KERNEL.id, limit=9))
        assert {row.schedule for row in barred} == {str(parse_schedule(t)) for t in (near, band)}
        kept = store.read_now(lambda reading: list(reading.where(QuarantineRow)))
        assert {row.key.rpartition("/")[2] for row in kept} == {row.schedule for row in barred}

    with_store(tmp_path, scenario)


def test_a_store_of_version_7_keeps_its_traffic_by_the_fallbacks_that_met_it(
    tmp_path: Path,
) -> None:
    connection = sqlite3.connect(tmp_path / database.FILE_NAME, isolation_level=None)
    with database.immediate(connection):
        migrations.migrations.apply(Database(connection), stop_before="m008_traffic_by_fallback")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 7")
        for version, step, fallback in (("1", 0, "f"), ("2", 0, "f"), ("2", 3, "g")):
            launch = ("", "p", "cpu", version, step, KERNEL.id, fallback, "0", "", 3)
            connection.execute("INSERT INTO launches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", launch)
        for dims, program in (("16", "p"), ("64", "gone")):
            met = ("", KERNEL.id, dims, program, f"s0={dims}", 4.0, 1.0, 2.0, 5)
            connection.execute("INSERT INTO traffic VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", met)
    connection.close()

    async def scenario(store: Store, seen: Seen) -> None:
        rows = store.read_now(queries.traffic)
        assert rows == tuple(
            TrafficRow("", KERNEL.id, name, "16", "p", "s0=16", 4.0, 1.0, 2.0, 5) for name in "fg"
        )

    with_store(tmp_path, scenario)


def test_acts_are_bounded_and_of_a_known_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "ACTS_KEPT", 3)

    async def scenario(store: Store, seen: Seen) -> None:
        def keep(tx: Writing) -> None:
            for number in range(5):
                act = ActRow(tx.next_seq(), "", "ann", 1.0, "pin", "k", "t", str(number), "")
                queries.record_act(tx, act)

        await store.write(keep)
        acts = store.read_now(lambda reading: queries.acts_on(reading, "", "k", limit=9))
        assert [act.subject for act in acts] == ["4", "3", "2"]
        wrong = ActRow(99, "", "ann", 1.0, "guess", "k", "t", "", "")
        with pytest.raises(sqlite3.IntegrityError):
            await store.write(lambda tx: queries.record_act(tx, wrong))

    with_store(tmp_path, scenario)


def expr_to_text(message: types_pb2.Expr) -> str:
    return ex.to_text(convert.expr_from_proto(message))


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "db"
    connection = database.open_writer(path)
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(SchemaTooNew):
        database.open_writer(path)


def test_a_database_of_another_application_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA application_id = 7")
    with pytest.raises(DatabaseForeign):
        database.open_writer(path)


def test_a_transaction_is_immediate(tmp_path: Path) -> None:
    first = database.open_writer(tmp_path / "db")
    second = sqlite3.connect(tmp_path / "db", isolation_level=None, timeout=0)
    with database.immediate(first), pytest.raises(sqlite3.OperationalError, match="locked"):
        second.execute("BEGIN IMMEDIATE")
    first.close()
    second.close()


def test_writes_that_wait_are_committed_together_and_answered_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_patient_commits(monkeypatch)

    async def scenario(store: Store, seen: Seen) -> None:
        are_queued = threading.Event()
        slow = asyncio.create_task(
            store.write(lambda tx: are_queued.wait(LIMIT_S) and tx.put(MetaRow("slow", "1")))
        )
        waiting = [
            asyncio.create_task(store.write(lambda tx, n=n: tx.put(MetaRow(f"m{n}", "1"))))  # type: ignore[misc]
            for n in range(50)
        ]
        before = len(seen.batches)
        await asyncio.sleep(0)
        assert not any(task.done() for task in (slow, *waiting))
        are_queued.set()
        await asyncio.gather(slow, *waiting)
        assert [batch.size for batch in seen.batches[before:]] == [51]
        assert await store.read(lambda reading: reading.count(MetaRow)) >= 51

    with_store(tmp_path, scenario)


def test_a_piece_of_work_that_fails_takes_no_other_with_it(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        def fail(tx: Writing) -> None:
            tx.put(MetaRow("bad", "1"))
            raise ValueError("no")

        results = await asyncio.gather(
            store.write(lambda tx: tx.put(MetaRow("good", "1"))),
            store.write(fail),
            store.write(lambda tx: tx.put(MetaRow("good too", "1"))),
            return_exceptions=True,
        )
        assert [isinstance(result, ValueError) for result in results] == [False, True, False]
        names = {row.name for row in store.read_now(lambda r: list(r.where(MetaRow)))}
        assert {"good", "good too"} <= names
        assert "bad" not in names

    with_store(tmp_path, scenario)


def test_every_row_gets_the_next_change(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        first = await store.write(lambda tx: tx.put(KERNEL))
        second = await store.write(lambda tx: tx.put(replace(KERNEL, id="b" * 64)))
        assert second > first
        row = store.read_now(lambda reading: reading.get(KernelRow, "", "b" * 64))
        assert row is not None
        assert row.change_seq == second == store.read_now(Reading.change_seq)

    with_store(tmp_path, scenario)


def test_a_row_with_a_flipped_bit_is_reported_and_not_returned(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        await store.write(lambda tx: tx.put(KERNEL))

    async def damaged(store: Store, seen: Seen) -> None:
        assert store.read_now(lambda reading: reading.get(KernelRow, "", KERNEL.id)) is None
        assert seen.corrupt == [("kernels", f" {KERNEL.id}")]

    with_store(tmp_path, scenario)
    with direct(tmp_path) as connection:
        connection.execute("UPDATE kernels SET ir = '(kernem)'")
    connection.close()
    with_store(tmp_path, damaged)


def test_a_damaged_database_is_moved_aside_loudly(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        await store.write(lambda tx: tx.put(KERNEL))

    async def again(store: Store, seen: Seen) -> None:
        assert store.moved_aside is not None
        assert (store.moved_aside / database.FILE_NAME).exists()
        assert seen.corrupt[0][0] == "database"
        await store.write(lambda tx: tx.put(KERNEL))

    with_store(tmp_path, scenario)
    path = tmp_path / database.FILE_NAME
    data = bytearray(path.read_bytes())
    data[:4096] = b"x" * 4096
    path.write_bytes(data)
    with_store(tmp_path, again)


def test_measurements_are_superseded_never_overwritten(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        first = await store.write(lambda tx: queries.append_measurement(tx, MEASUREMENT))
        faster = replace(MEASUREMENT, median_ns=90)
        second = await store.write(lambda tx: queries.append_measurement(tx, faster))
        rows = store.read_now(lambda reading: {r.id: r for r in reading.where(MeasurementRow)})
        assert (rows[first].median_ns, rows[first].superseded_by) == (100, second)
        newest = store.read_now(lambda r: queries.newest_measurements(r, "", "k", limit=9))
        assert [row.id for row in newest] == [second]

    with_store(tmp_path, scenario)


def test_a_deleted_row_leaves_a_tombstone(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        await store.write(lambda tx: tx.put(KERNEL))
        await store.write(
            lambda tx: tx.delete(KernelRow, "", KERNEL.id, actor="ann", reason="old", at_s=5.0)
        )
        (event,) = store.read_now(lambda reading: list(reading.where(EventRow)))
        assert (event.kind, event.actor, event.at_s) == ("tombstone", "ann", 5.0)
        assert KERNEL.id in event.subject

    with_store(tmp_path, scenario)


def test_old_generations_of_a_table_are_found_and_pruned(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        def write(tx: Writing) -> int:
            seq = tx.next_seq()
            tx.put(TableRow("", "k", "t", seq, b"x", 2, 1, 1.0), seq=seq)
            queries.prune_tables(tx, "", "k", "t")
            return seq

        written = [await store.write(write) for _ in range(queries.GENERATIONS_KEPT + 5)]
        assert store.read_now(lambda r: r.count(TableRow)) == queries.GENERATIONS_KEPT
        (newest,) = store.read_now(lambda r: list(queries.newest_tables(r)))
        assert newest.generation == written[-1]
        between = store.read_now(lambda r: queries.table_at(r, "", "k", "t", written[-2]))
        assert between is not None
        assert between.generation == written[-2]
        assert store.read_now(lambda r: queries.table_at(r, "", "k", "t", written[0])) is None
        oldest = store.read_now(lambda r: queries.oldest_table(r, "", "k", "t"))
        assert oldest == written[-queries.GENERATIONS_KEPT]

    with_store(tmp_path, scenario)


def test_a_size_has_one_regret_a_rule_and_the_longest_known_go_first(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        def write(*rows: RegretRow) -> Callable[[Writing], None]:
            def put(tx: Writing) -> None:
                tx.put_all(rows)
                queries.prune_regrets(tx, rows=3)

            return put

        def read(**filters: object) -> list[str]:
            chosen = {
                "target": "", "selectors": [], "generation": 0, "after": 0, "limit": 9, **filters
            }  # fmt: skip
            rows = store.read_now(lambda r: queries.regrets_after(r, "", "k", **chosen))  # type: ignore[arg-type]
            return [row.dims for row in rows]

        other = replace(REGRET, selector="volume", target="u", generation=8)
        await store.write(write(*(replace(REGRET, dims=dims) for dims in "12")))
        await store.write(write(replace(REGRET, dims="1", regret=0.5)))
        assert read() == ["2", "1"]
        await store.write(write(replace(other, dims="3")))
        assert read(selectors=["nearest"]) == ["2", "1"]
        assert read(target="u") == read(generation=8) == read(selectors=["volume"]) == ["3"]
        assert read(limit=1) == ["2"]
        (first,) = store.read_now(lambda r: list(r.where(RegretRow, dims="1")))
        assert first.regret == 0.5
        assert read(after=first.change_seq) == ["3"]
        await store.write(write(*(replace(other, dims=dims) for dims in "45")))
        assert read() == ["3", "4", "5"]
        await store.write(write(replace(other, kernel="another")))
        assert read() == ["4", "5"]

    with_store(tmp_path, scenario)


def test_only_ended_jobs_beside_those_to_keep_are_forgotten(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        states = {
            "regret//k/t/7/a": "done",
            "regret//k/t/7/b": "failed",
            "regret//k/t/7/c": "queued",
            "regret//k/t/77/a": "done",
            "regret//k/t/8/a": "done",
            "regret//k/u/7/a": "done",
            "tune1//k/t/7/a": "done",
        }
        rows = [replace(JOB, key=key, state=state) for key, state in states.items()]
        await store.write(lambda tx: tx.put_all(rows))
        await store.write(
            lambda tx: queries.delete_jobs_beside(tx, "regret//k/t/", keep="regret//k/t/8/")
        )
        left = store.read_now(lambda reading: {row.key for row in reading.where(JobRow)})
        assert states.keys() - left == {"regret//k/t/7/a", "regret//k/t/7/b", "regret//k/t/77/a"}

    with_store(tmp_path, scenario)


def test_the_threads_of_a_kernel_are_those_of_its_last_measurement(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        for threads in (4, 2):
            row = replace(MEASUREMENT, threads=threads)
            await store.write(lambda tx, row=row: queries.append_measurement(tx, row))  # type: ignore[misc]
        assert store.read_now(lambda r: queries.last_threads(r, "", "k", "t")) == 2
        assert store.read_now(lambda r: queries.last_threads(r, "", "k", "u")) is None

    with_store(tmp_path, scenario)


def test_a_full_database_refuses_writes_serves_reads_and_heals(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        await store.write(lambda tx: tx.put(KERNEL))

        def limit(tx: Writing) -> None:
            pages = tx.scalar("PRAGMA page_count")
            tx.connection.execute(f"PRAGMA max_page_count = {pages}")

        await store.write(limit)
        big = replace(KERNEL, id="b" * 64, ir="x" * 1_000_000)
        with pytest.raises(StoreReadOnly):
            await store.write(lambda tx: tx.put(big))
        assert store.is_read_only
        assert store.read_now(lambda reading: reading.get(KernelRow, "", KERNEL.id)) is not None
        # The limit is the connection's: lift it as freed space would.
        store._writer._connection.execute("PRAGMA max_page_count = 1000000")
        assert await store.heal()
        await store.write(lambda tx: tx.put(big))
        assert seen.read_only == [True, False]

    with_store(tmp_path, scenario)


def test_the_log_of_a_large_write_does_not_stay_as_large(tmp_path: Path) -> None:
    log = tmp_path / f"{database.FILE_NAME}-wal"

    async def scenario(store: Store, seen: Seen) -> None:
        large = "x" * (2 * database.LOG_BYTES)
        await store.write(lambda tx: tx.put(replace(KERNEL, ir=large)))
        assert log.stat().st_size > database.LOG_BYTES
        # The next to write begins the log anew, since all of it was brought into the database.
        await store.write(lambda tx: tx.put(replace(KERNEL, id="2" * 64)))
        assert log.stat().st_size <= database.LOG_BYTES

    with_store(tmp_path, scenario)


@pytest.mark.parametrize("how", ["emptied", "deleted"])
def test_a_log_without_its_database_is_moved_aside_loudly(tmp_path: Path, how: str) -> None:
    """SQLite would delete it, and with it what was committed last."""
    path = tmp_path / database.FILE_NAME
    log = tmp_path / f"{database.FILE_NAME}-wal"

    async def write(store: Store, seen: Seen) -> None:
        await store.write(lambda tx: tx.put(KERNEL))
        kept.append(log.read_bytes())

    kept: list[bytes] = []
    with_store(tmp_path, write)
    path.write_bytes(b"")
    if how == "deleted":
        path.unlink()
    log.write_bytes(kept[0])

    async def look(store: Store, seen: Seen) -> None:
        assert store.moved_aside is not None
        assert (store.moved_aside / log.name).read_bytes() == kept[0]
        assert store.read_now(lambda reading: reading.get(KernelRow, "", KERNEL.id)) is None
        assert seen.corrupt

    with_store(tmp_path, look)


def test_a_database_that_somebody_else_holds_is_tried_again(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        store._writer._connection.execute("PRAGMA busy_timeout = 0")
        other = sqlite3.connect(tmp_path / database.FILE_NAME, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert not await store.heal()
        other.execute("ROLLBACK")
        assert await store.heal()
        other.close()

    with_store(tmp_path, scenario)


def test_a_row_of_an_artifact_comes_after_its_file(tmp_path: Path) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        sha256 = await store.put_artifact(b"binary")
        assert await store.put_artifact(b"binary") == sha256
        row = store.read_now(lambda reading: reading.get(ArtifactRow, sha256))
        assert row is not None
        assert row.size_bytes == 6
        assert await store.get_artifact(sha256) == b"binary"

    with_store(tmp_path, scenario)


def test_the_daemon_keeps_its_identity(tmp_path: Path) -> None:
    found: list[str] = []

    async def scenario(store: Store, seen: Seen) -> None:
        found.append(store.daemon_id)

    with_store(tmp_path, scenario)
    with_store(tmp_path, scenario)
    assert found[0] == found[1] != ""
