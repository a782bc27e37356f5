"""Variants that operators bar: out of the Table, not touched again, until they are released."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.daemon_in_process import Running, on_a_full_disk
from tests.integration.fake_workers import (
    SCHEDULES,
    FakeBenchPool,
    FakeCompilePool,
    chain,
    died,
)
from tests.integration.operated import FAST, REASON, SLOW, Held, Tuned, default, go, schedules
from tests.integration.statuses import details

from nearhint_daemon.jobs import queue
from nearhint_daemon.services import operating
from nearhint_daemon.store import Writing
from nearhint_daemon.store.rows import (
    ActRow,
    JobRow,
    QuarantinedVariantRow,
    QuarantineRow,
    VariantRow,
)
from nearhint_daemon.tuning.publishing import Timed
from nearhint_daemon.tuning.tasks import Task
from nearhint_daemon.tuning.tuning_jobs import CROSS
from nearhint_proto.v1 import admin_service_pb2 as pb
from nearhint_proto.v1 import worker_pb2
from nearhint_rules.companions import companions, without_companions
from nearhint_rules.table import Table


def test_a_quarantined_variant_leaves_and_is_not_touched_again(tmp_path: Path) -> None:
    touched: list[str] = []

    def watch(job: str, request: worker_pb2.WorkerRequest) -> None:
        if job in ("compile_variant", "verify_variant", "measure_hint") and (
            FAST.encode() in request.SerializeToString()
        ):
            touched.append(job)

    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        before = await kernel.table()
        response = await kernel.quarantine(FAST)
        assert response.table.generation > before.generation
        assert response.quarantined.reason == REASON
        assert await kernel.runs(64) == (SCHEDULES[0], "winner")
        touched.clear()
        await kernel.tune(256, 1024)
        assert touched == []
        assert schedules(await kernel.table()) == {SCHEDULES[0], SLOW}
        # An answer of an earlier generation would be that Variant: it is gone.
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kernel.runs(64, generation=before.generation)
        assert details(caught.value)["reason"] == "GENERATION_GONE"

    async def after_restart(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        touched.clear()
        await kernel.tune(2048)
        assert touched == []
        assert daemon.core.quarantine.count() == 1

    for each in (scenario, after_restart):
        pools = {"bench": FakeBenchPool(faults=watch), "compile": FakeCompilePool(faults=watch)}
        go(tmp_path, each, **pools)


def test_a_quarantined_default_is_followed_by_one_that_was_measured(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64, 1024)
        assert default(await kernel.table()) == SCHEDULES[0]
        await kernel.quarantine(SCHEDULES[0])
        table = await kernel.table()
        assert default(table) == FAST
        assert [row.dims for row in without_companions(table)] == [(64,), (1024,)]
        assert companions(table) == {(63,), (1007,)}
        assert all(table.default in dict(row.ranked) for row in table.hints)
        assert await kernel.runs(64) == (FAST, "winner")

    go(tmp_path, scenario)


def test_hints_that_lose_their_default_are_tuned_again(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        def only_the_first_at_1024(
            job: str, request: worker_pb2.WorkerRequest
        ) -> worker_pb2.WorkerResponse | None:
            if job != "list_schedules":
                return None
            is_large = any(dim.value == 1024 for dim in request.list_schedules.hint.dims)
            schedules = SCHEDULES[:1] if is_large and is_on else SCHEDULES
            listed = worker_pb2.Schedules(schedules=schedules)
            return worker_pb2.WorkerResponse(id=request.id, schedules=listed)

        async def nothing(row: JobRow, payload: Mapping[str, Any]) -> None:
            """Instead of measuring at 1024 what won elsewhere."""

        is_on = True
        daemon.compile.faults = only_the_first_at_1024
        daemon.core.jobs.handle(CROSS, nothing)
        kernel = await Tuned.at(daemon, 1024)
        await kernel.tune(64, 256)
        is_on = False
        response = await kernel.quarantine(SCHEDULES[0])
        assert response.retuning == 3  # T1, T2, and crossing: the hint has nothing left
        await daemon.at_rest()
        table = await kernel.table()
        assert default(table) == FAST
        assert [row.dims for row in table.hints] == [(64,), (256,), (1024,)]
        assert await kernel.runs(1024) == (FAST, "winner")

    go(tmp_path, scenario)


def test_that_nothing_is_left_is_one_generation_however_many_hints_find_it(tmp_path: Path) -> None:
    """Only so many generations are kept, and the earlier ones are what can be rolled back to."""

    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64, 256, 1024)
        for schedule in SCHEDULES:
            await kernel.quarantine(schedule)
        await daemon.at_rest()
        told = (await kernel.table()).generation
        await daemon.client.tuned(kernel.registered, 128, 512)
        await daemon.at_rest()
        assert (await kernel.table()).generation == told
        changes = [each.change for each in (await kernel.listed()).generations]
        assert "nothing" not in changes
        assert sum(change.startswith("no variant") for change in changes) == 1

    go(tmp_path, scenario)


def test_with_nothing_left_the_kernel_is_tuned_anew(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        for schedule in SCHEDULES:
            await kernel.quarantine(schedule)
        await daemon.at_rest()
        table = await kernel.table()
        assert (table.variants, table.hints, table.default) == ((), (), -1)
        assert REASON in table.reason
        assert (await kernel.runs(64))[0] == ""
        await daemon.core.devices.set_policy("cpu", "never", actor="ann")
        response = await kernel.release(FAST)
        assert response.retuning > 0
        # Clients ask for what has no final reason.
        assert (await kernel.table()).reason == ""
        await daemon.core.devices.set_policy("cpu", "always", actor="ann")
        await daemon.at_rest()
        table = await kernel.table()
        assert schedules(table) == {FAST}
        assert await kernel.runs(64) == (FAST, "winner")

    go(tmp_path, scenario)


@pytest.mark.parametrize("act", ["quarantine", "release"])
def test_what_an_act_leaves_to_be_tuned_is_tuned_though_who_asked_went_away(
    tmp_path: Path, act: str
) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        for schedule in SCHEDULES[: None if act == "release" else -1]:
            await kernel.quarantine(schedule)
        await daemon.at_rest()
        core = daemon.core
        row, publish = core.programs.kernel("", kernel.kernel), core.tables.publish
        acting = asyncio.ensure_future(
            core.interventions.quarantine(row, SLOW, reason=REASON, target="", actor="ann")
            if act == "quarantine"
            else core.interventions.release(row, SLOW, target="", actor="ann")
        )

        async def publish_meanwhile(table: Table, **more: Any) -> Table:
            core.tables.publish = publish  # type: ignore[method-assign]
            asyncio.get_running_loop().call_soon(acting.cancel)
            return await publish(table, **more)

        core.tables.publish = publish_meanwhile  # type: ignore[method-assign,assignment]
        with pytest.raises(asyncio.CancelledError):
            await acting
        await daemon.at_rest()
        if act == "quarantine":
            assert REASON in (await kernel.table()).reason
        else:
            assert schedules(await kernel.table()) == {SLOW}

    go(tmp_path, scenario)


def test_what_an_act_leaves_to_be_tuned_is_tuned_though_a_caller_asked_for_it_and_cancelled(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        await daemon.core.devices.set_policy("cpu", "never", actor="ann")
        for schedule in SCHEDULES:
            await kernel.quarantine(schedule)
        operation = await kernel.client.ensure(kernel.registered, 64)
        await daemon.core.operations.cancel(operation.id)
        await daemon.core.devices.set_policy("cpu", "always", actor="ann")
        await daemon.at_rest()
        assert REASON in (await kernel.table()).reason

    go(tmp_path, scenario)


def test_a_variant_quarantined_while_it_is_timed_is_not_published(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        held = Held(daemon, variants=len(SCHEDULES))
        operation = await kernel.client.ensure(kernel.registered, 256)
        await asyncio.wait_for(held.started.wait(), 10)
        await kernel.quarantine(FAST)
        held.gate.set()
        assert (await kernel.client.finished(operation.id)).failed == 0
        assert FAST not in schedules(await kernel.table())

    go(tmp_path, scenario)


def test_a_default_quarantined_while_it_is_timed_is_timed_again_with_the_next(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        held = Held(daemon, variants=1)
        operation = await kernel.client.ensure(kernel.registered, 256)
        await asyncio.wait_for(held.started.wait(), 10)
        await kernel.quarantine(SCHEDULES[0])
        held.gate.set()
        assert (await kernel.client.finished(operation.id)).failed == 0
        table = await kernel.table()
        assert schedules(table) == {FAST, SLOW}
        assert [(row.dims, row.tier) for row in without_companions(table)] == [
            ((64,), 2),
            ((256,), 2),
        ]
        assert companions(table) == {(63,), (251,)}

    go(tmp_path, scenario)


def test_a_binary_is_barred_whichever_schedule_gives_it(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        await kernel.quarantine(FAST)
        (row,) = daemon.core.store.read_now(lambda r: list(r.where(VariantRow, schedule=FAST)))
        twin = replace(row, schedule="cpu.rows vector=64", id="7" * 64)
        assert daemon.core.variants.is_barred(twin)
        assert not daemon.core.variants.is_barred(replace(twin, artifact="0" * 64))
        core = daemon.core
        target = core.programs.target(row.target)
        await core.store.write(lambda tx: tx.put(twin))
        for schedule in (FAST, twin.schedule):
            built = await core.variants.built(
                core.programs.kernel("", kernel.kernel), schedule, target, order=(1, 1)
            )
            assert (built.state, built.problem) == ("rejected", f"quarantined by ann: {REASON}")

    go(tmp_path, scenario)


def test_the_quarantine_lists_what_operators_barred_and_what_the_daemon_gave_up_on(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        await kernel.quarantine(FAST)
        listed = await kernel.client.admin.ListQuarantine(
            pb.ListQuarantineRequest(kernel=kernel.kernel), timeout=20
        )
        (row,) = listed.quarantined
        assert (row.schedule, row.actor, row.reason) == (FAST, "ann", REASON)
        explained = await kernel.client.admin.ExplainKernel(
            pb.ExplainKernelRequest(kernel=kernel.kernel), timeout=20
        )
        assert f"{FAST}: quarantined by ann: {REASON}" in explained.rejected
        status = await kernel.client.admin.GetStatus(pb.GetStatusRequest(), timeout=20)
        assert status.quarantined == 1

    go(tmp_path, scenario)


def test_a_variant_quarantined_twice_has_the_newer_reason_and_history_has_both(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        barred = (await kernel.quarantine(FAST)).quarantined
        again = pb.QuarantineVariantRequest(
            kernel=kernel.kernel, variant=barred.variant, reason="still wrong", actor="bob"
        )
        await kernel.client.admin.QuarantineVariant(again, timeout=20)
        listed = await kernel.client.admin.ListQuarantine(
            pb.ListQuarantineRequest(kernel=kernel.kernel), timeout=20
        )
        assert [(each.actor, each.reason) for each in listed.quarantined] == [
            ("bob", "still wrong")
        ]
        assert [(act.actor, act.detail) for act in (await kernel.listed()).acts] == [
            ("bob", f"{FAST}: still wrong"),
            ("ann", f"{FAST}: {REASON}"),
        ]

    go(tmp_path, scenario)


def test_a_target_that_nobody_knows_is_refused_and_not_taken_for_one_with_nothing_to_list(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        admin = kernel.client.admin
        mine = kernel.registered.target_id

        async def quarantined(target: str) -> int:
            request = pb.ListQuarantineRequest(target_id=target)
            return len((await admin.ListQuarantine(request, timeout=20)).quarantined)

        async def generations(target: str) -> int:
            request = pb.ListGenerationsRequest(kernel=kernel.kernel, target_id=target)
            return len((await admin.ListGenerations(request, timeout=20)).generations)

        unknown = f"{int(mine[0], 16) ^ 1:x}{mine[1:]}"
        assert await quarantined(mine[:8]) == 0
        assert await generations(mine[:8]) > 0
        await kernel.quarantine(FAST)
        assert await quarantined(mine[:8]) == await quarantined("") == 1
        for listing, code in ((quarantined, "KERNEL_UNKNOWN"), (generations, "TABLE_UNKNOWN")):
            for target, status, reason in (
                (unknown, "NOT_FOUND", code),
                ("typo", "INVALID_ARGUMENT", "SPEC_INVALID"),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await listing(target)
                assert caught.value.code() is grpc.StatusCode[status]
                assert details(caught.value)["reason"] == reason
                assert (mine[:12] in str(caught.value.details())) == (target == unknown)

    go(tmp_path, scenario)


def test_what_the_daemon_gave_up_on_is_listed_with_its_reproducer(tmp_path: Path) -> None:
    def crash(job: str, request: worker_pb2.WorkerRequest) -> None:
        if (
            job == "verify_variant"
            and FAST.encode() in request.verify_variant.candidate.binary.binary
        ):
            raise died()

    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        for request in (pb.ListQuarantineRequest(), pb.ListQuarantineRequest(kernel=kernel.kernel)):
            listed = await kernel.client.admin.ListQuarantine(request, timeout=20)
            (row,) = listed.quarantined
            assert (row.kernel, row.target_id) == (kernel.kernel, kernel.registered.target_id)
            assert (row.schedule, row.actor) == (FAST, "nearhintd")
            assert (daemon.core.config.state_dir / row.reproducer / "repro.py").exists()
        elsewhere = pb.ListQuarantineRequest(namespace="other")
        assert not (await kernel.client.admin.ListQuarantine(elsewhere, timeout=20)).quarantined

    go(tmp_path, scenario, bench=FakeBenchPool(faults=crash))


def test_what_is_listed_of_a_kernel_or_target_does_not_depend_on_how_much_others_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operating, "LISTED_LIMIT", 3)
    monkeypatch.setattr(operating, "ACTS_LIMIT", 3)

    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        await kernel.pin(SLOW)
        await kernel.quarantine(FAST)
        store, mine = daemon.core.store, kernel.registered.target_id
        name = kernel.kernel
        (bar,) = store.read_now(lambda reading: list(reading.where(QuarantinedVariantRow)))
        acts = store.read_now(lambda reading: list(reading.where(ActRow)))
        await daemon.core.quarantine.give_up(
            f"variant//{name}/{mine}/{SLOW}", kind="variant", loss=died()
        )
        (given_up,) = store.read_now(lambda reading: list(reading.where(QuarantineRow)))
        other, later = "e" * 64, 2**32
        rows = [
            row
            for number in range(5)
            for row in (
                replace(bar, target=other, variant=f"{number:064}", at_s=later),
                replace(acts[0], target=other, seq=later + number),
                replace(
                    given_up, key=f"variant//{other}/{mine}/{number}", created_at_s=later + number
                ),
            )
        ]
        await store.write(lambda tx: tx.put_all(rows))
        admin = kernel.client.admin
        request = pb.ListQuarantineRequest(kernel=name, target_id=mine)
        listed = (await admin.ListQuarantine(request, timeout=20)).quarantined
        assert sorted(each.schedule for each in listed) == sorted([FAST, SLOW])
        history = pb.ListGenerationsRequest(kernel=name, target_id=mine)
        found = (await admin.ListGenerations(history, timeout=20)).acts
        assert [each.seq for each in found] == sorted((row.seq for row in acts), reverse=True)

    go(tmp_path, scenario)


def test_a_program_that_the_daemon_gave_up_on_is_listed_with_its_key(tmp_path: Path) -> None:
    def crash(job: str, request: worker_pb2.WorkerRequest) -> None:
        if job == "lower_program":
            raise died("compile")

    async def scenario(daemon: Running) -> None:
        admin = daemon.client.admin
        await daemon.client.register(chain(1))
        status = await admin.GetStatus(pb.GetStatusRequest(), timeout=20)
        (row,) = (await admin.ListQuarantine(pb.ListQuarantineRequest(), timeout=20)).quarantined
        assert status.quarantined == 1
        assert row.schedule.startswith("lower/")
        assert (row.kernel, row.actor) == ("", "nearhintd")
        assert (daemon.core.config.state_dir / row.reproducer / "repro.py").exists()
        elsewhere = pb.ListQuarantineRequest(namespace="other")
        assert not (await admin.ListQuarantine(elsewhere, timeout=20)).quarantined

    go(tmp_path, scenario, compile=FakeCompilePool(faults=crash))


def test_a_variant_is_rejected_and_leaves_its_table_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a disk that fills between the two, or a daemon that is killed, leaves it serving."""
    monkeypatch.setattr(queue, "PUT_OFF_S", 0.01)
    monkeypatch.setattr(queue, "HEAL_S", 0.01)
    refused: list[object] = []

    def crash(job: str, request: worker_pb2.WorkerRequest) -> None:
        binaries = (each.binary.binary for each in request.measure_hint.candidates)
        if job == "measure_hint" and any(SLOW.encode() in binary for binary in binaries):
            raise died()

    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        assert SLOW in schedules(await kernel.table())
        store, write = daemon.core.store, daemon.core.store.write

        def is_rejected() -> bool:
            rows = store.read_now(lambda reading: list(reading.where(VariantRow, schedule=SLOW)))
            return any(row.state == "rejected" for row in rows)

        async def once_on_a_full_disk(work: Callable[[Writing], object]) -> object:
            if not refused and is_rejected():
                refused.append(work)
                await on_a_full_disk(work)
            return await write(work)

        monkeypatch.setattr(store, "write", once_on_a_full_disk)
        daemon.bench.faults = crash
        await kernel.client.tuned(kernel.registered, 1024)
        await daemon.at_rest()
        assert refused
        assert SLOW not in schedules(await kernel.table())

    go(tmp_path, scenario)


def test_an_earlier_generation_answers_with_nothing_that_ended_its_worker_since(
    tmp_path: Path,
) -> None:
    def crash(job: str, request: worker_pb2.WorkerRequest) -> None:
        binaries = (each.binary.binary for each in request.measure_hint.candidates)
        if job == "measure_hint" and any(FAST.encode() in binary for binary in binaries):
            raise died()

    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        before = await kernel.table()
        assert (await kernel.runs(64, generation=before.generation))[0] == FAST
        daemon.bench.faults = crash
        await kernel.tune(1024)
        assert FAST not in schedules(await kernel.table())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kernel.runs(64, generation=before.generation)
        assert details(caught.value)["reason"] == "GENERATION_GONE"

    go(tmp_path, scenario)


@pytest.mark.parametrize("schedule", [SLOW, SCHEDULES[0]])
def test_what_was_rejected_while_it_was_timed_elsewhere_does_not_come_back_with_that(
    schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        publisher = daemon.core.publisher
        publish = publisher.publish
        (row,) = daemon.core.store.read_now(
            lambda reading: list(reading.where(VariantRow, schedule=schedule))
        )

        async def after_a_rejection(task: Task, timed: Timed, *, tier: int) -> Table:
            if task.dims == (1024,) and schedule in {
                each.schedule for each, _, _ in timed.variants
            }:
                await publisher.reject(row, "it ended its worker")
                monkeypatch.setattr(publisher, "publish", publish)
            return await publish(task, timed, tier=tier)

        monkeypatch.setattr(publisher, "publish", after_a_rejection)
        await kernel.client.tuned(kernel.registered, 1024)
        await daemon.at_rest()
        table = await kernel.table()
        assert schedule not in schedules(table)
        assert (1024,) in [hint.dims for hint in table.hints]

    go(tmp_path, scenario)


def ended_at(size: int) -> Callable[[str, worker_pb2.WorkerRequest], None]:
    """Faults of a worker that whatever is timed at a size ends."""

    def crash(job: str, request: worker_pb2.WorkerRequest) -> None:
        dims = request.measure_hint.sizes.dims
        if job == "measure_hint" and any(dim.value == size for dim in dims):
            raise died()

    return crash


def test_no_variant_is_blamed_where_the_original_ops_end_the_worker(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        before = await kernel.table()
        assert (await kernel.client.tuned(kernel.registered, 1024)).failed > 0
        await daemon.at_rest()
        after = await kernel.table()
        assert (after.variants, after.default) == (before.variants, before.default)
        assert [row.dims for row in without_companions(after)] == [(64,)]
        assert await kernel.runs(64) == (FAST, "winner")
        assert daemon.core.quarantine.count() == 0

    go(tmp_path, scenario, bench=FakeBenchPool(faults=ended_at(1024)))


def test_where_the_original_ops_end_the_worker_only_that_size_is_left_out(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64, 256)
        assert [row.dims for row in (await kernel.table()).hints] == [(64,), (251,), (256,)]
        assert daemon.core.quarantine.count() == 0

    go(tmp_path, scenario, bench=FakeBenchPool(faults=ended_at(63)))
