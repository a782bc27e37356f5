"""What operators decide: pins, rollbacks, and that each act is recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.daemon_in_process import Running
from tests.integration.fake_workers import (
    MEDIAN_NS,
    SCHEDULES,
    Faults,
    Refusal,
    chain,
)
from tests.integration.operated import FAST, REASON, SLOW, Tuned, go, schedules
from tests.integration.statuses import details, what_to_do

from nearhint_daemon.store.rows import ActRow, JobRow, QuarantinedVariantRow, VariantRow
from nearhint_daemon.tuning.publishing import RANKED_LIMIT, VARIANTS_LIMIT
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2 as pb
from nearhint_proto.v1 import types_pb2, worker_pb2
from nearhint_rules.companions import companions, without_companions
from nearhint_rules.metrics import Dims
from nearhint_rules.table import HINT_LIMIT

# ------------------------------------------------------------------------------------------- pins


def test_a_pin_is_a_new_generation_and_answers_everywhere(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64, 1024)
        before = await kernel.table()
        assert await kernel.runs(64) == (FAST, "winner")
        after = await kernel.pin(SLOW)
        assert after.generation > before.generation
        assert await kernel.runs(64) == await kernel.runs(1000) == (SLOW, "pinned")
        assert await kernel.runs(64, generation=before.generation) == (FAST, "winner")
        assert (await kernel.unpin()).pins == ()
        assert await kernel.runs(64) == (FAST, "winner")
        assert await kernel.acts() == [("unpin", "bob"), ("pin", "ann")]

    go(tmp_path, scenario)


def test_a_pin_at_sizes_holds_in_their_bucket(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        await kernel.pin(None, at=70)
        assert await kernel.runs(64) == ("", "pinned")
        assert await kernel.runs(100) == (FAST, "winner")
        # Another pin in the bucket takes its place; the one everywhere stays.
        await kernel.pin(SLOW)
        assert [pin.dims for pin in (await kernel.pin(SLOW, at=60)).pins] == [(), (60,)]
        assert [pin.dims for pin in (await kernel.unpin(at=64)).pins] == [()]

    go(tmp_path, scenario)


def test_a_variant_is_named_by_its_identity_too(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        slow = next(v for v in (await kernel.table()).variants if v.schedule == SLOW)
        await kernel.pin(slow.id[:10])
        assert await kernel.runs(64) == (SLOW, "pinned")

    go(tmp_path, scenario)


def test_a_pin_outlives_tuning_and_restarts(tmp_path: Path) -> None:
    async def first(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        await kernel.pin(SLOW)
        await kernel.tune(256)
        assert await kernel.runs(256) == (SLOW, "pinned")

    async def second(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        await kernel.tune(1024)
        assert await kernel.runs(1024) == await kernel.runs(64) == (SLOW, "pinned")

    go(tmp_path, first)
    go(tmp_path, second)


def test_a_pin_outlives_the_eviction_of_hints_and_keeps_its_binary(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        registered = await daemon.client.register(chain(1, high=None))
        assert (await daemon.client.tuned(registered, 2)).failed == 0
        kernel = Tuned(daemon, registered)
        await kernel.pin(SLOW, at=2)
        await kernel.tune(*(2**exponent for exponent in range(2, HINT_LIMIT + 2)))
        table = await kernel.table()
        assert len(table.hints) == HINT_LIMIT
        assert (2,) not in [row.dims for row in table.hints]
        assert await kernel.runs(2) == (SLOW, "pinned")
        slow = next(each for each in table.variants if each.schedule == SLOW)
        assert slow.artifact.sha256 in await daemon.core.tables.artifacts()

    go(tmp_path, scenario, measure_memory_bytes=2**50)


def test_a_pin_in_a_table_of_as_many_variants_as_clients_take_leaves_one_out(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        table = await kernel.table()
        (hint,) = table.hints
        timing, first = hint.ranked[0][1], table.variants[0]
        others = [replace(first, id=f"{at:064x}") for at in range(1, VARIANTS_LIMIT)]
        beside = RANKED_LIMIT - 1
        rows = [
            replace(hint, dims=(start,), ranked=tuple((at, timing) for at in (0, *ranked)))
            for start in range(1, VARIANTS_LIMIT, beside)
            if (ranked := range(start, min(start + beside, VARIANTS_LIMIT)))
        ]
        full = replace(table, variants=(first, *others), default=0, hints=tuple(rows))
        await daemon.core.tables.publish(full)
        assert len((await kernel.table()).variants) == VARIANTS_LIMIT
        await kernel.pin(SLOW)
        assert len((await kernel.table()).variants) <= VARIANTS_LIMIT
        assert await kernel.runs(64) == (SLOW, "pinned")

    go(tmp_path, scenario)


def test_with_tables_for_several_targets_the_request_says_which(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        other = "9" * 64
        await daemon.core.tables.publish(replace(await kernel.table(), target=other))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kernel.pin(None)
        assert details(caught.value)["field"] == "target_id"
        told = caught.value.details() or ""
        assert all(target[:12] in told for target in (other, kernel.registered.target_id))
        request = pb.PinVariantRequest(kernel=kernel.kernel, fallback=True, target_id="999")
        response = await kernel.client.admin.PinVariant(request, timeout=20)
        assert response.table.target == other
        assert (await kernel.table()).pins == ()

    go(tmp_path, scenario)


def test_of_a_target_without_a_table_those_that_have_one_are_told(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        request = pb.UnpinVariantRequest(kernel=kernel.kernel, target_id="ffffffff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kernel.client.admin.UnpinVariant(request, timeout=20)
        assert what_to_do(caught.value) == "name one of these Targets"
        assert kernel.registered.target_id[:12] in (caught.value.details() or "")

    go(tmp_path, scenario)


def test_a_variant_on_other_targets_is_told_with_them(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        await kernel.quarantine(FAST)
        admin, own = kernel.client.admin, kernel.registered.target_id
        elsewhere = pb.QuarantineVariantRequest(
            kernel=kernel.kernel, variant=SLOW, reason=REASON, target_id="ffff"
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin.QuarantineVariant(elsewhere, timeout=20)
        assert details(caught.value) == {"reason": "VARIANT_UNKNOWN", "field": "target_id"}
        assert own[:12] in (caught.value.details() or "")
        release = pb.ReleaseVariantRequest(kernel=kernel.kernel, variant=FAST, target_id="ffff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin.ReleaseVariant(release, timeout=20)
        assert details(caught.value) == {"reason": "VARIANT_UNKNOWN", "field": "target_id"}
        assert own[:12] in (caught.value.details() or "")

    go(tmp_path, scenario)


def test_variants_of_one_name_are_told_apart(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        row = (await kernel.quarantine(FAST)).quarantined
        store = daemon.core.store
        (barred,) = store.read_now(lambda reading: list(reading.where(QuarantinedVariantRow)))
        twin = replace(barred, target="9" * 64, variant="8" * 64)
        await store.write(lambda tx: tx.put(twin))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kernel.release(FAST)
        assert details(caught.value) == {"reason": "SPEC_INVALID", "field": "variant"}
        told = caught.value.details() or ""
        assert f"{row.variant[:12]} on Target {row.target_id[:12]}" in told
        assert f"{twin.variant[:12]} on Target {twin.target[:12]}" in told

    go(tmp_path, scenario)


def test_the_same_pin_again_is_no_new_generation_but_recorded(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        first = await kernel.pin(SLOW)
        assert (await kernel.pin(SLOW)).generation == first.generation
        assert await kernel.acts() == [("pin", "ann")] * 2

    go(tmp_path, scenario)


def other_bytes(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
    if job != "compile_variant":
        return None
    compiled = worker_pb2.Compiled(binary=b"other bytes")
    return worker_pb2.WorkerResponse(id=request.id, compiled=compiled)


@pytest.mark.parametrize(
    "faults", [other_bytes, Refusal("compile_variant", "SCHEDULE_INVALID", "no such option")]
)
def test_a_pin_goes_with_a_binary_that_is_lost_for_good_and_that_is_recorded(
    tmp_path: Path, faults: Faults
) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        table = await kernel.pin(SLOW)
        slow = next(v for v in table.variants if v.schedule == SLOW)
        sha256 = slow.artifact.sha256
        path = daemon.core.config.state_dir / "artifacts" / sha256[:2] / sha256
        path.unlink()
        daemon.compile.faults = faults
        with pytest.raises(grpc.aio.AioRpcError):
            await kernel.client.fetch(sha256)
        await daemon.at_rest()
        after = await kernel.table()
        assert after.pins == ()
        assert SLOW not in schedules(after)
        assert await kernel.runs(64) == (FAST, "winner")
        assert await kernel.acts() == [("unpin", "nearhintd"), ("pin", "ann")]

    go(tmp_path, scenario)


# --------------------------------------------------------------------------------------- rollback


def test_a_rollback_publishes_an_earlier_table_again(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        earlier = await kernel.table()
        await kernel.tune(1024)
        await kernel.pin(None)
        response = await kernel.roll_back(earlier.generation)
        now = await kernel.table()
        assert now.generation > earlier.generation
        assert (now.hints, now.variants, now.pins) == (earlier.hints, earlier.variants, ())
        assert list(response.left_out) == []
        # Tuning goes on from it: what it does not have may be asked for again.
        await kernel.tune(1024)
        assert [row.dims for row in without_companions(await kernel.table())] == [(64,), (1024,)]
        assert companions(await kernel.table()) == {(63,), (1007,)}

    go(tmp_path, scenario)


def test_a_hint_that_a_rollback_takes_away_before_its_search_has_ended_is_searched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would count as done, and nobody who asks could have it."""

    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        earlier = await kernel.table()
        beside = daemon.core.crossing.beside

        async def after_a_rollback(row: JobRow, payload: Mapping[str, Any], dims: Dims) -> None:
            monkeypatch.setattr(daemon.core.crossing, "beside", beside)
            await kernel.roll_back(earlier.generation)
            await beside(row, payload, dims)

        monkeypatch.setattr(daemon.core.crossing, "beside", after_a_rollback)
        await kernel.tune(1024)
        hints = {row.dims: row.tier for row in without_companions(await kernel.table())}
        assert hints == {(64,): 2, (1024,): 2}

    go(tmp_path, scenario)


def test_the_generations_are_listed_with_what_changed(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        table = await kernel.pin(SLOW, at=64)
        listed = await kernel.listed()
        assert listed.generations[0].generation == table.generation
        changes = [each.change for each in listed.generations]
        assert changes[0] == f"pinned {SLOW} at 64"
        assert changes[1] == f"64: T1 -> T2, {SCHEDULES[0]} -> {FAST}"
        assert changes[2] == "the oldest that is kept: 1 variant, 1 hint, 0 pins"
        assert listed.acts[0].seq == table.generation

    go(tmp_path, scenario)


def test_a_rollback_to_what_is_not_kept_says_what_is(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        oldest = min(each.generation for each in (await kernel.listed()).generations)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kernel.roll_back(oldest - 1)
        assert f"the oldest is {oldest}" in str(caught.value.details())

    go(tmp_path, scenario)


def test_what_was_quarantined_since_does_not_come_back(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        earlier = await kernel.pin(FAST)
        await kernel.quarantine(FAST)
        response = await kernel.roll_back(earlier.generation)
        now = await kernel.table()
        assert schedules(now) == {SCHEDULES[0], SLOW}
        assert now.pins == ()
        assert list(response.left_out) == [f"{FAST}: quarantined by ann: {REASON}"]
        assert (await kernel.acts())[:2] == [("unpin", "ann"), ("rollback", "ann")]

    go(tmp_path, scenario)


def test_why_there_was_no_variant_once_does_not_come_back(tmp_path: Path) -> None:
    """Clients would ask for nothing any more, though what was barred then is released."""

    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        for schedule in SCHEDULES:
            await kernel.quarantine(schedule)
        await daemon.at_rest()
        barren = await kernel.table()
        assert barren.variants == ()
        assert barren.reason == f"quarantined by ann: {REASON}"
        for schedule in SCHEDULES:
            await kernel.release(schedule)
            await daemon.at_rest()
        assert schedules(await kernel.table()) == set(SCHEDULES)
        await kernel.roll_back(barren.generation)
        after = await kernel.table()
        assert (after.variants, after.reason) == ((), "")
        await kernel.tune(64)
        assert schedules(await kernel.table()) == set(SCHEDULES)

    go(tmp_path, scenario)


def test_what_was_rejected_since_does_not_come_back(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        earlier = await kernel.table()
        await kernel.tune(256)
        rows = daemon.core.store.read_now(lambda r: list(r.where(VariantRow, schedule=FAST)))
        await daemon.core.variants.reject(rows[0], "found wrong")
        response = await kernel.roll_back(earlier.generation)
        assert list(response.left_out) == [f"{FAST}: rejected since"]
        assert FAST not in schedules(await kernel.table())

    go(tmp_path, scenario)


# ----------------------------------------------------------------------------------------- errors

Act = Callable[[Tuned], Awaitable[object]]


async def _reject_and_pin(kernel: Tuned) -> object:
    store = kernel.daemon.core.store
    (row,) = store.read_now(lambda reading: list(reading.where(VariantRow, schedule=FAST)))
    await kernel.daemon.core.variants.reject(row, "found wrong")
    return await kernel.pin(FAST)


async def _quarantine_and_pin(kernel: Tuned) -> object:
    await kernel.quarantine(FAST)
    return await kernel.pin(FAST)


def _admin(method: str, request: object) -> Act:
    return lambda kernel: getattr(kernel.client.admin, method)(request, timeout=20)


@pytest.mark.parametrize(
    ("act", "reason", "field"),
    [
        (_admin("PinVariant", pb.PinVariantRequest(kernel="ffff", fallback=True)),
         "KERNEL_UNKNOWN", "kernel"),
        (_admin("PinVariant", pb.PinVariantRequest(kernel="x", fallback=True)),
         "SPEC_INVALID", "kernel"),
        (lambda kernel: kernel.client.admin.PinVariant(
            pb.PinVariantRequest(kernel=kernel.kernel), timeout=20), "SPEC_INVALID", "variant"),
        (lambda kernel: kernel.pin("cpu.rows vector=7"), "VARIANT_UNKNOWN", "variant"),
        (lambda kernel: kernel.pin("0" * 64), "VARIANT_UNKNOWN", "variant"),
        (lambda kernel: kernel.pin("ab"), "SPEC_INVALID", "variant"),
        (_reject_and_pin, "VARIANT_REJECTED", "variant"),
        (_quarantine_and_pin, "VARIANT_REJECTED", "variant"),
        (lambda kernel: kernel.pin(FAST, at=0), "SPEC_INVALID", "at"),
        (lambda kernel: kernel.client.admin.PinVariant(
            pb.PinVariantRequest(kernel=kernel.kernel, fallback=True,
                                 at=convert.size_hint_to_proto({"k0": 8, "k1": 8})),
            timeout=20), "SPEC_INVALID", "at"),
        (lambda kernel: kernel.client.admin.PinVariant(
            pb.PinVariantRequest(kernel=kernel.kernel, fallback=True, at=types_pb2.SizeHint()),
            timeout=20), "SPEC_INVALID", "at"),
        (lambda kernel: kernel.client.admin.PinVariant(
            pb.PinVariantRequest(kernel=kernel.kernel, fallback=True, target_id="ffffffff"),
            timeout=20), "TABLE_UNKNOWN", "target_id"),
        (lambda kernel: kernel.client.admin.PinVariant(
            pb.PinVariantRequest(kernel=kernel.kernel, fallback=True, target_id="cpu"),
            timeout=20), "SPEC_INVALID", "target_id"),
        (lambda kernel: kernel.client.admin.PinVariant(
            pb.PinVariantRequest(kernel=kernel.kernel, fallback=True, actor="a\nb"),
            timeout=20), "SPEC_INVALID", "actor"),
        (lambda kernel: kernel.unpin(), "PIN_UNKNOWN", None),
        (lambda kernel: kernel.unpin(at=64), "PIN_UNKNOWN", "at"),
        (lambda kernel: kernel.roll_back(0), "SPEC_INVALID", "generation"),
        (lambda kernel: kernel.roll_back(1), "GENERATION_GONE", "generation"),
        (lambda kernel: kernel.roll_back(2**40), "GENERATION_GONE", "generation"),
        (lambda kernel: kernel.quarantine("cpu.rows vector=7"), "VARIANT_UNKNOWN", "variant"),
        (lambda kernel: kernel.client.admin.QuarantineVariant(
            pb.QuarantineVariantRequest(kernel=kernel.kernel, variant=FAST, reason=" "),
            timeout=20), "SPEC_INVALID", "reason"),
        (lambda kernel: kernel.release(FAST), "VARIANT_UNKNOWN", "variant"),
        (_admin("ListGenerations", pb.ListGenerationsRequest(kernel="ffff")),
         "KERNEL_UNKNOWN", "kernel"),
        (_admin("ListQuarantine", pb.ListQuarantineRequest(kernel="ffff")),
         "KERNEL_UNKNOWN", "kernel"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_the_field_and_changes_nothing(
    tmp_path: Path, act: Act, reason: str, field: str | None
) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await act(kernel)
        found = details(caught.value)
        assert (found["reason"], found.get("field")) == (reason, field)
        assert (await kernel.table()).pins == ()

    go(tmp_path, scenario)


def test_of_a_generation_that_is_gone_it_is_told_where_those_that_are_kept_are_listed(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kernel.roll_back(1)
        assert "nearhint history" in what_to_do(caught.value)

    go(tmp_path, scenario)


def test_a_kernel_without_a_table_cannot_be_pinned(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        registered = await daemon.client.register(chain(1))
        kernel = Tuned(daemon, registered)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kernel.pin(None)
        assert details(caught.value)["reason"] == "TABLE_UNKNOWN"
        assert daemon.core.store.read_now(lambda reading: reading.count(ActRow)) == 0

    go(tmp_path, scenario)


def test_a_rollback_of_a_table_that_goes_at_that_moment_says_that_there_is_none(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        (key,) = daemon.core.tables.every_key()
        daemon.core.tables.withdraw(*key[:2])
        daemon.core.interventions._named.table_key = lambda *_: key  # type: ignore[method-assign]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kernel.roll_back(1)
        assert details(caught.value) == {"reason": "TABLE_UNKNOWN", "field": "kernel"}

    go(tmp_path, scenario)


def test_the_workers_timings_are_what_these_tests_take_them_for() -> None:
    assert MEDIAN_NS[FAST] < MEDIAN_NS[SCHEDULES[0]] < MEDIAN_NS[SLOW] < MEDIAN_NS["fallback"]
