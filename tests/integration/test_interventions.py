"""What operators decide: pins, rollbacks, quarantine, and that each is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from tests.integration.daemon_in_process import Client, Running, kernels_in, running
from tests.integration.fake_workers import (
    MEDIAN_NS,
    SCHEDULES,
    FakeBenchPool,
    FakeCompilePool,
    chain,
    died,
)
from tests.integration.statuses import details

from nearhint_daemon.store.rows import ActRow, VariantRow
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2 as pb
from nearhint_proto.v1 import kernel_service_pb2, types_pb2, worker_pb2
from nearhint_rules.table import HINT_LIMIT, Table

FAST = SCHEDULES[1]
"""The winner by the fake workers' timings; the default is the first, the third is slowest."""
SLOW = SCHEDULES[2]
REASON = "wrong for odd rows"


class Tuned:
    """One Kernel, tuned at sizes, and an operator's calls on it."""

    def __init__(
        self, daemon: Running, registered: kernel_service_pb2.RegisterProgramResponse
    ) -> None:
        self.daemon = daemon
        self.client: Client = daemon.client
        self.registered = registered
        (self.kernel,) = kernels_in(registered.plan)

    @staticmethod
    async def at(daemon: Running, *sizes: int) -> Tuned:
        registered = await daemon.client.register(chain(1))
        assert (await daemon.client.tuned(registered, *sizes)).failed == 0
        return Tuned(daemon, registered)

    async def tune(self, *sizes: int) -> None:
        assert (await self.client.tuned(self.registered, *sizes)).failed == 0

    async def table(self) -> Table:
        (message,) = await self.client.tables_of(self.registered)
        return convert.table_from_proto(message)

    async def runs(self, size: int, *, generation: int = 0) -> tuple[str, str]:
        """What is selected at a size, its Schedule ("" for the original ops), and why."""
        launch = next(step.launch for step in self.registered.plan.steps if step.launch.kernel)
        response = await self.client.kernels.Select(
            kernel_service_pb2.SelectRequest(
                target_id=self.registered.target_id,
                generation=generation,
                questions=[
                    kernel_service_pb2.SelectQuestion(
                        kernel=self.kernel, dims=[size], fallback=launch.fallback
                    )
                ],
            ),
            timeout=20,
        )
        (selection,) = response.selections
        return selection.variant.schedule, selection.reason

    async def pin(self, variant: str | None, *, at: int | None = None) -> Table:
        request = pb.PinVariantRequest(kernel=self.kernel[:8], at=_at(at), actor="ann")
        if variant is None:
            request.fallback = True
        else:
            request.variant = variant
        return convert.table_from_proto(
            (await self.client.admin.PinVariant(request, timeout=20)).table
        )

    async def unpin(self, *, at: int | None = None) -> Table:
        request = pb.UnpinVariantRequest(kernel=self.kernel, at=_at(at), actor="bob")
        return convert.table_from_proto(
            (await self.client.admin.UnpinVariant(request, timeout=20)).table
        )

    async def roll_back(self, generation: int) -> pb.RollBackTableResponse:
        return await self.client.admin.RollBackTable(
            pb.RollBackTableRequest(kernel=self.kernel, generation=generation, actor="ann"),
            timeout=20,
        )

    async def quarantine(self, variant: str) -> pb.QuarantineVariantResponse:
        return await self.client.admin.QuarantineVariant(
            pb.QuarantineVariantRequest(
                kernel=self.kernel, variant=variant, reason=REASON, actor="ann"
            ),
            timeout=20,
        )

    async def release(self, variant: str) -> pb.ReleaseVariantResponse:
        return await self.client.admin.ReleaseVariant(
            pb.ReleaseVariantRequest(kernel=self.kernel, variant=variant, actor="ann"), timeout=20
        )

    async def listed(self) -> pb.ListGenerationsResponse:
        return await self.client.admin.ListGenerations(
            pb.ListGenerationsRequest(kernel=self.kernel), timeout=20
        )

    async def acts(self) -> list[tuple[str, str]]:
        return [(act.kind, act.actor) for act in (await self.listed()).acts]


def _at(size: int | None) -> types_pb2.SizeHint | None:
    return None if size is None else convert.size_hint_to_proto({"k0": size})


def schedules(table: Table) -> set[str]:
    return {variant.schedule for variant in table.variants}


def default(table: Table) -> str:
    return table.variants[table.default].schedule


def go(tmp_path: Path, scenario: Callable[[Running], Awaitable[None]], **flags: object) -> None:
    async def run() -> None:
        async with running(tmp_path, **flags) as daemon:  # type: ignore[arg-type]
            await scenario(daemon)

    asyncio.run(run())


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
        assert slow.artifact.sha256 in daemon.core.tables.artifacts()

    go(tmp_path, scenario, measure_memory_bytes=2**50)


def test_with_tables_for_several_targets_the_request_says_which(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        other = "9" * 64
        await daemon.core.tables.publish(replace(await kernel.table(), target=other))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kernel.pin(None)
        assert details(caught.value)["field"] == "target_id"
        request = pb.PinVariantRequest(kernel=kernel.kernel, fallback=True, target_id="999")
        response = await kernel.client.admin.PinVariant(request, timeout=20)
        assert response.table.target == other
        assert (await kernel.table()).pins == ()

    go(tmp_path, scenario)


def test_the_same_pin_again_is_no_new_generation_but_recorded(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        first = await kernel.pin(SLOW)
        assert (await kernel.pin(SLOW)).generation == first.generation
        assert await kernel.acts() == [("pin", "ann")] * 2

    go(tmp_path, scenario)


def test_a_pin_goes_with_a_binary_that_is_lost_for_good_and_that_is_recorded(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        table = await kernel.pin(SLOW)
        slow = next(v for v in table.variants if v.schedule == SLOW)
        sha256 = slow.artifact.sha256
        path = daemon.core.config.state_dir / "artifacts" / sha256[:2] / sha256
        path.unlink()

        def other_bytes(
            job: str, request: worker_pb2.WorkerRequest
        ) -> worker_pb2.WorkerResponse | None:
            if job != "compile_variant":
                return None
            compiled = worker_pb2.Compiled(binary=b"other bytes")
            return worker_pb2.WorkerResponse(id=request.id, compiled=compiled)

        daemon.compile.faults = other_bytes
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
        assert [row.dims for row in (await kernel.table()).hints] == [(64,), (1024,)]

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
        assert changes[2] == "the oldest that is kept: 1 variants, 1 hints, 0 pins"
        assert listed.acts[0].seq == table.generation

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


# ------------------------------------------------------------------------------------- quarantine


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
        assert len(table.hints) == 2
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

        is_on = True
        daemon.compile.faults = only_the_first_at_1024
        kernel = await Tuned.at(daemon, 1024)
        await kernel.tune(64, 256)
        is_on = False
        response = await kernel.quarantine(SCHEDULES[0])
        assert response.retuning == 2
        await daemon.at_rest()
        table = await kernel.table()
        assert default(table) == FAST
        assert [row.dims for row in table.hints] == [(64,), (256,), (1024,)]
        assert await kernel.runs(1024) == (FAST, "winner")

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


def test_a_released_variant_is_measured_again_and_may_win(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        await kernel.quarantine(FAST)
        assert await kernel.runs(64) == (SCHEDULES[0], "winner")
        await kernel.release(FAST)
        await daemon.at_rest()
        assert await kernel.runs(64) == (FAST, "winner")
        assert await kernel.acts() == [("release", "ann"), ("quarantine", "ann")]
        assert daemon.core.quarantine.count() == 0

    go(tmp_path, scenario)


class Held:
    """Keeps the answer to the first timing of at least so many Variants until it is let go."""

    def __init__(self, daemon: Running, *, variants: int) -> None:
        self.started, self.gate = asyncio.Event(), asyncio.Event()
        self._run, self._variants = daemon.bench.run, variants
        daemon.bench.run = self.run  # type: ignore[method-assign]

    async def run(
        self, request: worker_pb2.WorkerRequest, *, timeout_s: float, device: str | None = None
    ) -> worker_pb2.WorkerResponse:
        response = await self._run(request, timeout_s=timeout_s, device=device)
        if len(request.measure_hint.candidates) > self._variants and not self.started.is_set():
            self.started.set()
            await self.gate.wait()
        return response


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
        assert [(row.dims, row.tier) for row in table.hints] == [((64,), 2), ((256,), 2)]

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
            timeout=20), "TABLE_UNKNOWN", "kernel"),
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


def test_a_kernel_without_a_table_cannot_be_pinned(tmp_path: Path) -> None:
    async def scenario(daemon: Running) -> None:
        registered = await daemon.client.register(chain(1))
        kernel = Tuned(daemon, registered)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kernel.pin(None)
        assert details(caught.value)["reason"] == "TABLE_UNKNOWN"
        assert daemon.core.store.read_now(lambda reading: reading.count(ActRow)) == 0

    go(tmp_path, scenario)


def test_the_workers_timings_are_what_these_tests_take_them_for() -> None:
    assert MEDIAN_NS[FAST] < MEDIAN_NS[SCHEDULES[0]] < MEDIAN_NS[SLOW] < MEDIAN_NS["fallback"]
