"""Regret: measured at sizes between hints, kept, read in pages, cancelled, taken up again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.daemon_in_process import Running, on_a_full_disk, running
from tests.integration.fake_workers import CPU, SCHEDULES, FakeBenchPool, chain, died, refused
from tests.integration.statuses import details
from tests.integration.waiting import until

from nearhint_daemon.jobs import Priority
from nearhint_daemon.regret.idle_regret import FIRST_S, SIZES_A_TABLE, IdleRegret
from nearhint_daemon.store.rows import JobRow, MeasurementRow, RegretRow
from nearhint_daemon.workers.errors import WorkerStartFailed
from nearhint_proto import convert
from nearhint_proto.v1 import (
    admin_service_pb2,
    kernel_service_pb2,
    operation_service_pb2,
    types_pb2,
    worker_pb2,
)
from nearhint_rules.companions import odd_below
from nearhint_rules.selectors import SELECTORS
from nearhint_rules.table import Timing

LIMIT_S = 20.0
HINTS = (64, 1024)
BESIDE = tuple(map(odd_below, HINTS))
"""Their companions."""
DONE = operation_service_pb2.OPERATION_STATE_DONE
RULES = len(SELECTORS)
FAST_NS = 500
"""Of the default Schedule at sizes that are no hints: what is served there takes twice as long."""

Request = admin_service_pb2.MeasureRegretRequest


def default_wins_between_hints(
    job: str, request: worker_pb2.WorkerRequest
) -> worker_pb2.WorkerResponse | None:
    if job != "measure_hint":
        return None
    sizes = convert.size_hint_from_proto(request.measure_hint.sizes)
    if sizes["s0"] in {*HINTS, *BESIDE}:
        return None
    answers = []
    for candidate in request.measure_hint.candidates:
        name = candidate.binary.binary.decode().split("\n")
        median = FAST_NS if name[1:] and SCHEDULES[0] in name[1] else 2 * FAST_NS
        timing = convert.timing_to_proto(Timing(median, 0.001, 21))
        answers.append(worker_pb2.MeasuredCandidate(id=candidate.id, timing=timing))
    measured = worker_pb2.Measured(candidates=answers, conditions="warm, 1 thread")
    return worker_pb2.WorkerResponse(id=request.id, measured=measured)


async def tuned(daemon: Running) -> kernel_service_pb2.RegisterProgramResponse:
    registered = await daemon.client.register(chain(1))
    await daemon.client.tuned(registered, *HINTS)
    await daemon.at_rest()
    return registered


def kernel_of(registered: kernel_service_pb2.RegisterProgramResponse) -> str:
    return registered.plan.steps[0].launch.kernel


async def measured(
    daemon: Running, request: admin_service_pb2.MeasureRegretRequest
) -> tuple[admin_service_pb2.MeasureRegretResponse, operation_service_pb2.Operation]:
    answer = await daemon.client.admin.MeasureRegret(request, timeout=LIMIT_S)
    return answer, await daemon.client.finished(answer.operation.id)


async def records(daemon: Running, kernel: str) -> list[admin_service_pb2.RegretRecord]:
    request = admin_service_pb2.GetRegretRequest(kernel=kernel, page_size=1000)
    return list((await daemon.client.admin.GetRegret(request, timeout=LIMIT_S)).records)


def count(daemon: Running, row_type: type) -> int:
    return daemon.core.store.read_now(lambda reading: reading.count(row_type))


async def until_ended(daemon: Running, jobs: int, *, outcome: str = "done") -> None:
    """Waits until so many regret jobs have ended, and whoever waits for them knows."""
    labels = {"kind": "regret", "outcome": outcome}
    registry = daemon.core.metrics.registry
    await until(lambda: (registry.get_sample_value("nearhint_jobs_total", labels) or 0) >= jobs)


def test_every_rule_is_judged_at_sizes_that_are_no_hints(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = FakeBenchPool(faults=default_wins_between_hints)
        async with running(tmp_path, bench=bench) as daemon:
            registered = await tuned(daemon)
            (before,) = await daemon.client.tables_of(registered)
            assert {row.dims[0] for row in before.hints} == {*HINTS, *BESIDE}
            known = count(daemon, MeasurementRow)
            request = Request(kernel=kernel_of(registered)[:10], sizes=12, seed=3)
            answer, operation = await measured(daemon, request)
            assert (operation.state, operation.done, operation.failed) == (DONE, 12, 0)
            (plan,) = answer.plans
            assert (plan.target_id, plan.generation) == (registered.target_id, before.generation)
            dims = [tuple(point.dims) for point in plan.points]
            assert len(set(dims)) == 12
            assert not {(hint,) for hint in (*HINTS, *BESIDE)} & set(dims)
            found = await records(daemon, answer.kernel)
            assert {(tuple(record.dims), record.selector) for record in found} == {
                (point, rule) for point in dims for rule in SELECTORS
            }
            for record in found:
                assert record.best_schedule == SCHEDULES[0]
                assert record.best_ns == FAST_NS
                assert record.generation == before.generation
                assert record.daemon_id == daemon.core.store.daemon_id
            for record in (record for record in found if record.selector == "nearest"):
                assert (record.served_schedule, record.served_ns) == (SCHEDULES[1], 2 * FAST_NS)
                assert record.regret == 1.0
                assert list(record.slower_than) == ["default"]
            # Each Variant and the Fallback are Measurements; no Table changed by them.
            assert count(daemon, MeasurementRow) == known + 12 * (len(before.variants) + 1)
            (after,) = await daemon.client.tables_of(registered)
            assert after == before
            assert _observed(daemon)["nearest"] == (12.0, 12.0)
            assert {samples for samples, _ in _observed(daemon).values()} == {12.0}

    asyncio.run(scenario())


def _observed(daemon: Running) -> dict[str, tuple[float, float]]:
    """Rule -> how many samples, and their sum."""
    families = text_string_to_metric_families(daemon.core.metrics.render().decode())
    samples = {
        (sample.labels["rule"], sample.name.rpartition("_")[2]): sample.value
        for family in families
        if family.name == "nearhint_selection_regret_ratio"
        for sample in family.samples
        if "le" not in sample.labels
    }
    return {rule: (samples[rule, "count"], samples[rule, "sum"]) for rule in SELECTORS}


def test_what_is_known_for_a_table_is_not_measured_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await tuned(daemon)
            request = Request(kernel=kernel_of(registered), sizes=6, seed=3)
            first, _ = await measured(daemon, request)
            asked = daemon.bench.asked["measure_hint"]
            second, operation = await measured(daemon, request)
            assert list(second.plans) == list(first.plans)
            assert (operation.state, operation.done) == (DONE, 6)
            assert daemon.bench.asked["measure_hint"] == asked
            # A Table that changed is judged anew, and nothing is left of the jobs on the old one.
            await daemon.client.tuned(registered, 4096)
            third, operation = await measured(daemon, request)
            assert third.plans[0].generation > first.plans[0].generation
            assert operation.state == DONE
            jobs = daemon.core.store.read_now(
                lambda reading: list(reading.where(JobRow, kind="regret"))
            )
            assert len(jobs) == 6

    asyncio.run(scenario())


def test_given_sizes_are_measured(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await tuned(daemon)
            sizes = [convert.size_hint_to_proto({"k0": size}) for size in (100, 64)]
            answer, operation = await measured(
                daemon, Request(kernel=kernel_of(registered), at=sizes)
            )
            assert operation.state == DONE
            found = await records(daemon, answer.kernel)
            assert {tuple(record.dims) for record in found} == {(100,), (64,)}
            assert {each.regret for each in found if each.selector == "nearest"} == {0.0}

    asyncio.run(scenario())


def test_records_are_read_in_pages_by_rule_and_generation(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await tuned(daemon)
            answer, _ = await measured(daemon, Request(kernel=kernel_of(registered), sizes=7))
            (plan,) = answer.plans
            request = admin_service_pb2.GetRegretRequest(
                kernel=answer.kernel,
                target_id=plan.target_id,
                selectors=["nearest"],
                generation=plan.generation,
                page_size=3,
            )
            pages: list[list[tuple[int, ...]]] = []
            while True:
                page = await daemon.client.admin.GetRegret(request, timeout=LIMIT_S)
                assert list(page.symbols) == ["k0"]
                assert {record.selector for record in page.records} == {"nearest"}
                pages.append([tuple(record.dims) for record in page.records])
                if not page.next_page_token:
                    break
                request.page_token = page.next_page_token
            assert [len(each) for each in pages] == [3, 3, 1]
            assert {dims for each in pages for dims in each} == {
                tuple(point.dims) for point in plan.points
            }
            for field, value in (("generation", plan.generation + 1), ("target_id", "0" * 64)):
                other = admin_service_pb2.GetRegretRequest(kernel=answer.kernel)
                setattr(other, field, value)
                page = await daemon.client.admin.GetRegret(other, timeout=LIMIT_S)
                assert list(page.records) == []

    asyncio.run(scenario())


def test_under_never_nothing_is_measured_and_cancelling_ends_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await tuned(daemon)
            await daemon.core.devices.set_policy("cpu", "never", actor="test")
            asked = daemon.bench.asked["measure_hint"]
            request = Request(kernel=kernel_of(registered), sizes=5)
            answer = await daemon.client.admin.MeasureRegret(request, timeout=LIMIT_S)
            await until(lambda: daemon.core.jobs.running() >= 5)
            cancelled = await daemon.client.operations.CancelOperation(
                operation_service_pb2.CancelOperationRequest(id=answer.operation.id),
                timeout=LIMIT_S,
            )
            assert cancelled.operation.state == operation_service_pb2.OPERATION_STATE_CANCELLED
            await until_ended(daemon, 5, outcome="cancelled")
            await daemon.core.devices.set_policy("cpu", "always", actor="test")
            assert daemon.bench.asked["measure_hint"] == asked
            assert count(daemon, RegretRow) == 0
            # What was cancelled may be asked for again.
            _, operation = await measured(daemon, request)
            assert (operation.state, operation.failed) == (DONE, 0)

    asyncio.run(scenario())


def test_a_restarted_daemon_goes_on_and_repeats_no_finished_size(tmp_path: Path) -> None:
    sizes: list[int] = []

    def note(job: str, request: worker_pb2.WorkerRequest) -> None:
        if job == "measure_hint":
            sizes.append(convert.size_hint_from_proto(request.measure_hint.sizes)["s0"])

    async def scenario() -> None:
        bench = FakeBenchPool(faults=note)
        async with running(tmp_path, bench=bench) as daemon:
            registered = await tuned(daemon)
            sizes.clear()
            bench.delay_s = 0.05
            request = Request(kernel=kernel_of(registered), sizes=8)
            await daemon.client.admin.MeasureRegret(request, timeout=LIMIT_S)
            await until(lambda: count(daemon, RegretRow) >= 3 * RULES)
        async with running(tmp_path, bench=FakeBenchPool(faults=note)) as daemon:
            finished = count(daemon, RegretRow) // RULES
            assert 3 <= finished < 8
            await daemon.at_rest()
            assert count(daemon, RegretRow) == 8 * RULES
            # Only what was in flight when the daemon ended was begun twice.
            assert len(set(sizes)) == 8
            assert len(sizes) <= 9

    asyncio.run(scenario())


def test_a_size_that_fails_costs_only_itself(tmp_path: Path) -> None:
    def refuse(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
        if job != "measure_hint" or not request.measure_hint.sizes.dims[0].value % 2:
            return None
        return refused(request, "MEMORY_LIMIT", "too little memory")

    async def scenario() -> None:
        async with running(tmp_path, bench=FakeBenchPool(faults=refuse)) as daemon:
            registered = await tuned(daemon)
            sizes = [convert.size_hint_to_proto({"k0": size}) for size in (98, 99, 100)]
            answer, operation = await measured(
                daemon, Request(kernel=kernel_of(registered), at=sizes)
            )
            assert (operation.state, operation.done, operation.failed) == (DONE, 3, 1)
            assert "too little memory" in operation.error.message
            found = await records(daemon, answer.kernel)
            assert {tuple(record.dims) for record in found} == {(98,), (100,)}

    asyncio.run(scenario())


def test_a_variant_that_ends_its_worker_is_given_up_and_the_others_are_judged(
    tmp_path: Path,
) -> None:
    def crash(job: str, request: worker_pb2.WorkerRequest) -> None:
        if job != "measure_hint" or convert.size_hint_from_proto(request.measure_hint.sizes) in (
            {"s0": hint} for hint in HINTS
        ):
            return
        if any(
            SCHEDULES[1].encode() in candidate.binary.binary
            for candidate in request.measure_hint.candidates
        ):
            raise died()

    async def scenario() -> None:
        async with running(tmp_path, bench=FakeBenchPool(faults=crash)) as daemon:
            registered = await tuned(daemon)
            request = Request(kernel=kernel_of(registered), at=at({"k0": 98}, {"k0": 99}))
            answer, operation = await measured(daemon, request)
            assert (operation.state, operation.done, operation.failed) == (DONE, 2, 0)
            found = await records(daemon, answer.kernel)
            assert {tuple(record.dims) for record in found} == {(98,), (99,)}
            assert {record.best_schedule for record in found} == {SCHEDULES[0]}
            (table,) = await daemon.client.tables_of(registered)
            assert {variant.schedule for variant in table.variants} == {SCHEDULES[0], SCHEDULES[2]}
            listed = await daemon.client.admin.ListQuarantine(
                admin_service_pb2.ListQuarantineRequest(kernel=answer.kernel), timeout=LIMIT_S
            )
            (row,) = listed.quarantined
            assert row.schedule == SCHEDULES[1]
            assert (daemon.core.config.state_dir / row.reproducer / "repro.py").exists()

    asyncio.run(scenario())


@pytest.mark.parametrize("deaths", [1, 3])
def test_a_worker_that_is_lost_once_or_does_not_start_costs_no_variant(
    tmp_path: Path, deaths: int
) -> None:
    left = deaths

    def crash(job: str, request: worker_pb2.WorkerRequest) -> None:
        nonlocal left
        sizes = convert.size_hint_from_proto(request.measure_hint.sizes)
        if job == "measure_hint" and sizes == {"s0": 99} and left:
            left -= 1
            raise (
                died()
                if deaths == 1
                else WorkerStartFailed(kind="bench", detail="no device", reproducer={})
            )

    async def scenario() -> None:
        async with running(tmp_path, bench=FakeBenchPool(faults=crash)) as daemon:
            registered = await tuned(daemon)
            (before,) = await daemon.client.tables_of(registered)
            request = Request(kernel=kernel_of(registered), at=at({"k0": 99}))
            await measured(daemon, request)
            assert list(await daemon.client.tables_of(registered)) == [before]
            assert daemon.core.quarantine.count() == 0

    asyncio.run(scenario())


def at(*sizes: dict[str, int]) -> list[types_pb2.SizeHint]:
    return [convert.size_hint_to_proto(each) for each in sizes]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (Request(sizes=1025), "sizes"),
        (Request(sizes=1, at=at({"k0": 5})), "sizes"),
        (Request(at=at({"k0": 5}, {"k1": 5})), "at[1]"),
        (Request(at=at({"k0": 5, "k9": 5})), "at[0]"),
        (Request(at=at({"k0": 100_000})), "at[0]"),
        (Request(at=[types_pb2.SizeHint()]), "at[0]"),
        (Request(at=at(*[{"k0": 5}] * 257)), "at"),
        (Request(seed=2**63), "seed"),
        (Request(threads=100_000), "threads"),
        (Request(selectors=["nearest", "farthest"]), "selectors[1]"),
        (Request(selectors=["nearest"] * 65), "selectors"),
        (Request(client_id="x" * 1000), "client_id"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_requests_are_refused_before_anything_is_measured(
    tmp_path: Path, request_: admin_service_pb2.MeasureRegretRequest, field: str
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await tuned(daemon)
            asked = daemon.bench.asked["measure_hint"]
            request = Request(kernel=kernel_of(registered))
            request.MergeFrom(request_)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.admin.MeasureRegret(request, timeout=LIMIT_S)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert details(caught.value)["field"] == field
            assert daemon.bench.asked["measure_hint"] == asked
            assert count(daemon, RegretRow) == 0

    asyncio.run(scenario())


def test_unknown_kernels_targets_and_tokens_have_a_status_of_their_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await tuned(daemon)
            untuned = (await daemon.client.register(chain(2))).plan.steps[1].launch.kernel
            kernel = kernel_of(registered)
            admin = daemon.client.admin
            get = admin_service_pb2.GetRegretRequest
            for call, status, reason in (
                (admin.MeasureRegret(Request(kernel="f" * 64)), "NOT_FOUND", "KERNEL_UNKNOWN"),
                (admin.GetRegret(get(kernel="f" * 64)), "NOT_FOUND", "KERNEL_UNKNOWN"),
                (
                    admin.MeasureRegret(Request(kernel=kernel, target_id="0" * 64)),
                    "NOT_FOUND",
                    "KERNEL_UNKNOWN",
                ),
                (admin.MeasureRegret(Request(kernel="zz")), "INVALID_ARGUMENT", "SPEC_INVALID"),
                (
                    admin.GetRegret(get(kernel=kernel, page_token="-1")),
                    "INVALID_ARGUMENT",
                    "SPEC_INVALID",
                ),
                (admin.MeasureRegret(Request(kernel=untuned)), "FAILED_PRECONDITION", "NO_VARIANT"),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() is grpc.StatusCode[status]
                assert details(caught.value)["reason"] == reason

    asyncio.run(scenario())


class Moments:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def idle_of(daemon: Running, moments: Moments, *, share: float = 0.01) -> IdleRegret:
    core = daemon.core
    return IdleRegret(
        core.store,
        core.regrets,
        core.tables,
        core.jobs,
        core.devices,
        core.programs,
        share=share,
        monotonic=moments,
        chance=Random(1),
    )


def taking_a_second(moments: Moments) -> Callable[[str, worker_pb2.WorkerRequest], None]:
    """Each job of a worker does."""

    def faults(job: str, request: worker_pb2.WorkerRequest) -> None:
        moments.now_s += 1.0

    return faults


def test_an_idle_daemon_takes_a_sample_now_and_then_until_a_table_is_judged(tmp_path: Path) -> None:
    moments = Moments()

    async def scenario() -> None:
        bench = FakeBenchPool()
        async with running(tmp_path, bench=bench, monotonic=moments, regret_share=0) as daemon:
            registered = await tuned(daemon)
            idle = idle_of(daemon, moments)
            assert not await idle.look()
            moments.now_s = FIRST_S
            bench.faults = taking_a_second(moments)
            assert await idle.look()
            await until_ended(daemon, 1)
            # One second of measuring is one percent of the hundred after it.
            moments.now_s += 99.0
            assert not await idle.look()
            moments.now_s += 2.0
            for taken in range(2, SIZES_A_TABLE + 1):
                assert await idle.look()
                await until_ended(daemon, taken)
                assert count(daemon, RegretRow) == taken * RULES
                moments.now_s += 200.0
            assert not await idle.look()
            # A new Table is judged again.
            await daemon.client.tuned(registered, 4096)
            await daemon.at_rest()
            moments.now_s += 200.0
            assert await idle.look()
            await until_ended(daemon, SIZES_A_TABLE + 1)
            (table,) = await daemon.client.tables_of(registered)
            found = await records(daemon, kernel_of(registered))
            assert sum(each.generation == table.generation for each in found) == RULES

    asyncio.run(scenario())


def test_time_in_which_a_sample_waits_for_its_device_is_no_work(tmp_path: Path) -> None:
    moments = Moments()

    async def scenario() -> None:
        bench = FakeBenchPool()
        async with running(tmp_path, bench=bench, monotonic=moments, regret_share=0) as daemon:
            await tuned(daemon)
            idle = idle_of(daemon, moments)
            moments.now_s += FIRST_S
            bench.faults = taking_a_second(moments)
            async with daemon.core.devices.turn(CPU, (Priority.LIVE_MISS,)):
                assert await idle.look()
                await until(lambda: daemon.core.jobs.running() > 0)
                moments.now_s += 3600.0
            await until_ended(daemon, 1)
            moments.now_s += 99.0
            assert not await idle.look()
            moments.now_s += 2.0
            assert await idle.look()

    asyncio.run(scenario())


def test_no_sample_is_taken_where_it_is_not_wanted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, regret_share=0) as daemon:
            registered = await tuned(daemon)
            moments = Moments()
            idle, never = idle_of(daemon, moments), idle_of(daemon, moments, share=0.0)
            moments.now_s = FIRST_S
            assert not await never.look()
            await daemon.core.devices.set_policy("cpu", "never", actor="test")
            assert not await idle.look()
            # Work that waits goes first, whatever it waits for.
            await daemon.client.ensure(registered, 4096)
            assert not await idle.look()
            assert count(daemon, RegretRow) == 0
            await daemon.core.devices.set_policy("cpu", "always", actor="test")
            await daemon.at_rest()
            assert await idle.look()
            await until_ended(daemon, 1)
            assert count(daemon, RegretRow) == RULES

    asyncio.run(scenario())


def test_a_table_that_could_not_be_sampled_on_a_full_disk_is_sampled_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, regret_share=0) as daemon:
            await tuned(daemon)
            moments = Moments()
            idle = idle_of(daemon, moments)
            moments.now_s = FIRST_S
            with monkeypatch.context() as patched:
                patched.setattr(daemon.core.store, "write", on_a_full_disk)
                assert not await idle.look()
            assert await idle.look()
            await until_ended(daemon, 1)
            assert count(daemon, RegretRow) == RULES

    asyncio.run(scenario())
