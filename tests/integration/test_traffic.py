"""Live traffic: a request log whose mix changes is replayed, and hints follow it."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.daemon_in_process import Running, hints_of, kernels_in, running
from tests.integration.fake_workers import (
    SCHEDULES,
    SHARED,
    FakeBenchPool,
    FakeCompilePool,
    answer,
    chain,
    one_kernel,
)
from tests.integration.waiting import until

from nearhint_daemon.services.requests import read_sizes
from nearhint_daemon.store import Reading, queries
from nearhint_daemon.store.rows import JobRow, MeasurementRow
from nearhint_daemon.traffic import histograms as traffic_module
from nearhint_daemon.traffic.histograms import SIZES_LIMIT
from nearhint_daemon.traffic.placing import LEAST_CALLS
from nearhint_daemon.traffic.usage import Used
from nearhint_daemon.tuning import publishing
from nearhint_daemon.tuning.tuning_jobs import LADDER
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2, kernel_service_pb2
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.companions import without_companions
from nearhint_rules.hints import bucket
from nearhint_rules.ladder import HINT_BUDGET, distance, ladder
from nearhint_rules.plan import Launch
from nearhint_rules.table import Table

BUDGET = 4
HALF_LIFE_S = 60.0
REPORT_S = 5.0
CALLS = 40
"""Of a client, in one report."""
LOW, HIGH = (16, 64), (2000, 8000)


class Replay:
    """A daemon under a clock of its own, and clients that report what the log says."""

    def __init__(self, daemon: Running, program_id: str, kernel: str) -> None:
        self.daemon = daemon
        self.program_id = program_id
        self.kernel = kernel
        self.now_s = daemon.core.store.now()
        self.sizes: set[int] = set()
        for part in (daemon.core.traffic, daemon.core.placer):
            part._clock = lambda: self.now_s
        daemon.core.traffic._faded_at_s = self.now_s

    async def run(self, sizes: Iterable[int], *, reports: int) -> None:
        """`reports` reports of calls at sizes drawn from `sizes`, then whatever follows."""
        drawn = list(sizes)
        self.sizes |= set(drawn)
        for _ in range(reports):
            self.now_s += REPORT_S
            for client in ("one", "two"):
                self.daemon.core.usage._client(client).tokens = 10.0
                used = [
                    Used(self.program_id, {"s0": size}, CALLS // len(drawn) + 1, (0, 0, 1, 0))
                    for size in drawn
                ]
                await self.daemon.core.usage.report(client, used, namespace="")
            await self.daemon.core.follow_traffic()
            await self.daemon.at_rest()

    def hints(self) -> list[int]:
        """The sizes of the Table's hints, ascending."""
        return sorted(row.dims[0] for row in without_companions(self.table()))

    def table(self) -> Table:
        """The Kernel's only Table."""
        (key,) = self.daemon.core.tables.of_kernel("", self.kernel)
        table = self.daemon.core.tables.newest(key)
        assert table is not None
        return table

    def jobs(self) -> list[JobRow]:
        """All tuning jobs that the store knows of."""

        def read(reading: Reading) -> list[JobRow]:
            return [row for row in reading.where(JobRow) if row.kind.startswith("tune")]

        return self.daemon.core.store.read_now(read)


def log(bounds: tuple[int, int], *, count: int = 12) -> list[int]:
    """Sizes of a request log within bounds, the same in each run."""
    drawn = random.Random(7)
    return sorted({drawn.randint(*bounds) for _ in range(count)})


def measured_size(request: pb.WorkerRequest) -> int:
    """The size at which a worker is to time."""
    (size,) = read_sizes(request.measure_hint.sizes, field="sizes").values()
    return size


def winner_by_size(job: str, request: pb.WorkerRequest) -> pb.WorkerResponse | None:
    """Each Schedule is best at sizes of its own, and slower the farther from there."""
    if job != "measure_hint":
        return None
    response = answer(request)
    octave = math.log2(measured_size(request))
    schedules = {
        candidate.id: candidate.binary.binary.decode().split("\n")[1].split("kernel ")[0]
        for candidate in request.measure_hint.candidates
        if candidate.WhichOneof("subject") == "binary"
    }
    for measured in response.measured.candidates:
        if measured.id in schedules:
            best = 4.0 + 4.0 * SCHEDULES.index(schedules[measured.id])
            measured.timing.median_ns = round(1000 * (1.0 + abs(octave - best) / 4))
    return response


def within(size: int, bounds: tuple[int, int]) -> bool:
    return bounds[0] / 2 <= size <= bounds[1] * 2


def mean_distance(sizes: list[int], hints: list[int]) -> float:
    """From sizes to the nearest hint, in octaves."""
    return sum(min(distance((size,), (hint,)) for hint in hints) for size in sizes) / len(sizes)


async def replayed(daemon: Running, *asked: int) -> Replay:
    registered = await daemon.client.register(chain(1, high=100_000))
    if asked:
        await daemon.client.tuned(registered, *asked)
    (kernel,) = kernels_in(registered.plan)
    return Replay(daemon, registered.program_id, kernel)


def test_hints_follow_a_mix_of_requests_that_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = FakeBenchPool(faults=winner_by_size)
        async with running(
            tmp_path, bench=bench, hint_budget=BUDGET, traffic_half_life_s=HALF_LIFE_S
        ) as daemon:
            replay = await replayed(daemon, *LOW)
            before = len(replay.jobs())
            await replay.run(log(LOW), reports=30)
            low = replay.hints()
            assert all(within(size, LOW) for size in low)
            assert len(low) <= BUDGET
            # The clients move on; nobody asks for anything.
            await replay.run(log(HIGH), reports=60)
            high = replay.hints()
            assert len(high) <= BUDGET
            assert not set(low) & set(high), "old hints are evicted"
            assert sum(within(size, HIGH) for size in high) >= BUDGET - 1
            assert mean_distance(log(HIGH), high) < 0.5
            assert mean_distance(log(HIGH), low) > 5
            # Every hint is one that a client asked for or met.
            assert set(low) | set(high) <= {bucket((size,))[0] for size in LOW} | replay.sizes
            moves = daemon.core.metrics.hint_moves
            tuned = moves.labels("wanted")._value.get()
            assert 0 < tuned <= 4 * BUDGET
            # Each tuned hint is two jobs; jobs of evicted hints are forgotten.
            assert len(replay.jobs()) <= before + 2 * tuned
            assert moves.labels("evicted")._value.get() >= len(low)
            # With a steady mix nothing moves any more.
            jobs = len(replay.jobs())
            await replay.run(log(HIGH), reports=20)
            assert replay.hints() == high
            assert len(replay.jobs()) == jobs
            assert moves.labels("wanted")._value.get() == tuned

    asyncio.run(scenario())


def test_traffic_has_sizes_timed_with_the_threads_of_its_target(tmp_path: Path) -> None:
    """However much was timed on another Target since: rows of one Table are to be compared."""

    async def scenario() -> None:
        async with running(
            tmp_path, threads=2, hint_budget=BUDGET, traffic_half_life_s=HALF_LIFE_S
        ) as daemon:
            store = daemon.core.store
            registered = await daemon.client.register(chain(1, high=100_000))
            request = kernel_service_pb2.EnsureKernelsRequest(
                program_id=registered.program_id,
                target_id=registered.target_id,
                hints=[convert.size_hint_to_proto({"s0": LOW[0]})],
                client_id="test",
                threads=3,
            )
            asked = await daemon.client.kernels.EnsureKernels(request, timeout=20)
            await daemon.client.finished(asked.operation.id)
            (made, *_) = store.read_now(lambda reading: list(reading.where(MeasurementRow)))
            assert made.threads == 3
            elsewhere = [
                replace(made, target="e" * 64, dims=str(size), threads=8, superseded_by=0)
                for size in range(100)
            ]
            await store.write(
                lambda tx: [queries.append_measurement(tx, each) for each in elsewhere]
            )
            replay = Replay(daemon, registered.program_id, *kernels_in(registered.plan))
            await replay.run(log(HIGH), reports=30)
            rows = store.read_now(
                lambda reading: list(reading.where(MeasurementRow, target=registered.target_id))
            )
            assert any(within(int(row.dims), HIGH) for row in rows)
            assert {row.threads for row in rows} == {3}

    asyncio.run(scenario())


def test_the_mix_may_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = FakeBenchPool(faults=winner_by_size)
        async with running(
            tmp_path, bench=bench, hint_budget=BUDGET, traffic_half_life_s=HALF_LIFE_S
        ) as daemon:
            replay = await replayed(daemon, *LOW)
            for bounds in (LOW, HIGH, LOW):
                await replay.run(log(bounds), reports=60)
                hints = replay.hints()
                assert len(hints) <= BUDGET
                assert mean_distance(log(bounds), hints) < 0.5
                assert sum(within(size, bounds) for size in hints) >= 2

    asyncio.run(scenario())


def test_a_program_more_takes_nothing_away_from_those_that_share_its_kernel(tmp_path: Path) -> None:
    """Neither are its own few calls left without the only hint that answers them."""

    async def scenario() -> None:
        async with running(
            tmp_path,
            compile=FakeCompilePool(faults=one_kernel),
            hint_budget=2,
            traffic_half_life_s=HALF_LIFE_S,
        ) as daemon:
            first = await daemon.client.register(chain(1))
            second = await daemon.client.register(chain(1, high=100_000))
            fallbacks = [convert.plan_from_proto(each.plan).steps for each in (first, second)]
            names = [step.fallback for (step,) in fallbacks if isinstance(step, Launch)]
            assert len(set(names)) == 2
            await daemon.client.tuned(first, 16, 64)
            replay = Replay(daemon, first.program_id, SHARED)
            await replay.run([16, 64], reports=2 * int(HALF_LIFE_S / REPORT_S))
            await daemon.client.tuned(second, 4096, 32768)
            used = [
                Used(second.program_id, {"s0": size}, 1, (0, 0, 1, 0)) for size in (4096, 32768)
            ]
            await daemon.core.usage.report("three", used, namespace="")
            for _ in range(3):
                await replay.run([16, 64], reports=int(HALF_LIFE_S / REPORT_S))
                assert replay.hints() == [16, 64, 4096, 32768]
            (key,) = daemon.core.tables.of_kernel("", SHARED)
            selector = daemon.core.tables.selector(key)
            for fallback, sizes in zip(names, ((16, 64), (4096, 32768)), strict=True):
                for size in sizes:
                    answer = selector.select((size,), fallback=fallback)
                    assert (answer.hint, answer.reason) == ((size,), "winner")

    asyncio.run(scenario())


def test_a_hint_answers_a_bounded_number_of_programs_the_most_called_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "FALLBACKS_LIMIT", 2)

    async def scenario() -> None:
        async with running(tmp_path, compile=FakeCompilePool(faults=one_kernel)) as daemon:
            registered = [
                await daemon.client.register(chain(1, high=high)) for high in (4096, 5000, 6000)
            ]
            names = [each.plan.steps[0].launch.fallback for each in registered]

            async def answered(number: int) -> set[int]:
                assert (await daemon.client.tuned(registered[number], 64)).failed == 0
                (table,) = await daemon.client.tables_of(registered[number])
                return {names.index(each.fallback) for each in table.hints[0].fallbacks}

            called = Used(registered[0].program_id, {"s0": 64}, 9, (0, 0, 9, 0))
            await daemon.core.usage.report("one", [called], namespace="")
            assert await answered(0) == {0}
            assert await answered(1) == {0, 1}
            assert await answered(2) == {0, 2}
            assert await answered(1) == {0, 1}  # what went is timed when it is asked for again

            async def probed(number: int) -> set[int]:
                row = daemon.core.store.read_now(
                    lambda reading: next(iter(reading.where(JobRow, kind="tune1")))
                )
                payload = json.loads(row.payload) | {"fallback": names[number]}
                payload["points"] = [{"dims": [100], "near": {"s0": 100}}]
                await daemon.core.probing.probe(row, payload)
                (table,) = await daemon.client.tables_of(registered[number])
                return {names.index(each.fallback) for each in table.probes[0].fallbacks}

            assert [await probed(number) for number in range(3)] == [{0}, {0, 1}, {0, 2}]

    asyncio.run(scenario())


def test_without_traffic_or_request_there_is_no_job(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, traffic_half_life_s=HALF_LIFE_S) as daemon:
            # A Table, but no calls.
            asked = await replayed(daemon, 64)
            jobs = len(asked.jobs())
            for _ in range(3):
                await daemon.core.follow_traffic()
            assert len(asked.jobs()) == jobs
            # A call now and then is not worth a hint.
            rare = Used(asked.program_id, {"s0": 3000}, int(LEAST_CALLS) - 1, (0, 0, 1, 0))
            await daemon.core.usage.report("one", [rare], namespace="")
            await daemon.core.follow_traffic()
            await daemon.at_rest()
            assert len(asked.jobs()) == jobs

    asyncio.run(scenario())


def test_a_kernel_that_nobody_asked_for_is_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, traffic_half_life_s=HALF_LIFE_S) as daemon:
            replay = await replayed(daemon)
            await replay.run([100, 1000], reports=3)
            assert replay.jobs() == []
            assert "measure_hint" not in daemon.bench.asked

    asyncio.run(scenario())


def test_what_cannot_be_tuned_is_not_tried_again_and_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        def faults(job: str, request: pb.WorkerRequest) -> pb.WorkerResponse | None:
            if job != "measure_hint" or measured_size(request) < 1000:
                return None
            response = answer(request)
            for candidate in response.measured.candidates:
                candidate.ClearField("timing")
                candidate.problem = "never quiet"
            return response

        async with running(
            tmp_path,
            bench=FakeBenchPool(faults=faults),
            measure_memory_bytes=2**50,
            traffic_half_life_s=HALF_LIFE_S,
        ) as daemon:
            replay = await replayed(daemon, 16)
            await replay.run([3000], reports=2)
            tried = daemon.bench.asked["measure_hint"]
            await replay.run([3000], reports=20)
            assert daemon.bench.asked["measure_hint"] == tried
            assert replay.hints() == [16]

    asyncio.run(scenario())


def test_what_was_refused_before_the_clock_was_set_back_is_wanted_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            placer, now_s = daemon.core.placer, daemon.core.store.now()
            key, site = ("", "1" * 64, "2" * 64), ("f", (16,))
            placer._clock = lambda: now_s
            placer._refuse(key, site)
            assert placer._refused_of(key) == {site}
            now_s -= 1e8
            assert placer._refused_of(key) == frozenset()

    asyncio.run(scenario())


def test_hints_that_a_full_queue_refused_are_asked_for_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, traffic_half_life_s=HALF_LIFE_S) as daemon:
            replay = await replayed(daemon, 16)
            room, daemon.core.jobs._limit = daemon.core.jobs._limit, 0
            await replay.run([3000], reports=2)
            assert replay.hints() == [16]
            daemon.core.jobs._limit = room
            await replay.run([3000], reports=2)
            assert replay.hints() == [16, 3000]

    asyncio.run(scenario())


def test_hints_that_traffic_wants_are_tuned_though_a_caller_asked_for_them_and_cancelled(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, traffic_half_life_s=HALF_LIFE_S) as daemon:
            replay = await replayed(daemon, 16)
            await daemon.core.devices.set_policy("cpu", "never", actor="test")
            replaying = asyncio.ensure_future(replay.run([4096], reports=2))
            await until(daemon.core.jobs.running)
            registered = await daemon.client.register(chain(1, high=100_000))
            operation = await daemon.client.ensure(registered, 4096)
            await daemon.core.operations.cancel(operation.id)
            await daemon.core.devices.set_policy("cpu", "always", actor="test")
            await replaying
            assert replay.hints() == [16, 4096]

    asyncio.run(scenario())


def test_hints_that_traffic_wants_are_tuned_though_a_callers_budget_is_spent(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        bench = FakeBenchPool()
        async with running(
            tmp_path,
            bench=bench,
            monotonic=lambda: float(bench.asked.total()),
            traffic_half_life_s=HALF_LIFE_S,
        ) as daemon:
            replay = await replayed(daemon, 16)
            await daemon.core.devices.set_policy("cpu", "never", actor="test")
            registered = await daemon.client.register(chain(1, high=100_000))
            # Each piece of work on a device takes a second here: the search is never begun.
            limited = await daemon.client.ensure(registered, 4096, budget_s=0.5)
            replaying = asyncio.ensure_future(replay.run([4096], reports=2))
            await until(lambda: daemon.core.placer._open)
            await daemon.core.devices.set_policy("cpu", "always", actor="test")
            await replaying
            assert (await daemon.client.finished(limited.id)).failed == 0
            assert {row.dims: row.tier for row in replay.table().hints}[4096,] == 2

    asyncio.run(scenario())


def test_hints_that_were_asked_for_stay_for_a_half_life_before_traffic_decides(
    tmp_path: Path,
) -> None:
    """A warm-up for users to come took them for nothing, and tuned them again at each run."""

    async def scenario() -> None:
        async with running(tmp_path, hint_budget=2, traffic_half_life_s=HALF_LIFE_S) as daemon:
            replay = await replayed(daemon, 16, 64)
            a_half_life = int(HALF_LIFE_S / REPORT_S)
            await replay.run([16, 64], reports=2 * a_half_life)
            registered = await daemon.client.register(chain(1, high=100_000))
            await daemon.client.tuned(registered, 4096, 32768)
            await replay.run([16, 64], reports=a_half_life // 2)
            assert replay.hints() == [16, 64, 4096, 32768]
            await replay.run([16, 64], reports=a_half_life)
            assert replay.hints() == [16, 64]

    asyncio.run(scenario())


def test_traffic_survives_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            replay = await replayed(daemon, 16)
            await replay.run([16, 24], reports=2)
            kernel = replay.kernel
            weights = {met.dims: met.weight for met in daemon.core.traffic.met("", kernel)}
        async with running(tmp_path) as daemon:
            again = {met.dims: met.weight for met in daemon.core.traffic.met("", kernel)}
            assert again == pytest.approx(weights, rel=0.1)

    asyncio.run(scenario())


def test_many_sizes_and_clients_stay_within_bounds(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            replay = await replayed(daemon, 16)
            for client in range(5):
                used = [
                    Used(replay.program_id, {"s0": 2 + 100 * client + number}, 1, (0, 0, 1, 0))
                    for number in range(100)
                ]
                await daemon.core.usage.report(f"client {client}", used, namespace="")
            await daemon.core.follow_traffic()
            await daemon.at_rest()
            assert daemon.core.traffic.sizes() == SIZES_LIMIT
            assert traffic_module.KERNELS_LIMIT >= len(daemon.core.traffic.kernels()) == 1

    asyncio.run(scenario())


def test_hot_sizes_are_tuned_first(tmp_path: Path) -> None:
    """Of hints that wait with the same priority, the one with most calls is measured first."""

    async def scenario() -> None:
        order: list[int] = []

        def note(job: str, request: pb.WorkerRequest) -> pb.WorkerResponse | None:
            if job == "measure_hint":
                order.append(measured_size(request))
            return None

        sizes = [2**power for power in range(1, 13)]
        async with running(tmp_path, bench=FakeBenchPool(faults=note)) as daemon:
            registered = await daemon.client.register(chain(1))
            for size in (2048, 512):
                used = Used(registered.program_id, {"s0": size}, 5 * size, (size, 0, 0, 0))
                await daemon.core.usage.report(f"client {size}", [used], namespace="")
            await daemon.core.traffic.flush()
            daemon.core.jobs._lanes.limit = 1
            priority = kernel_service_pb2.PRIORITY_LIVE_MISS
            operation = await daemon.client.ensure(registered, *sizes, priority=priority)
            await daemon.client.finished(operation.id)
            assert set(order[:2]) == {512, 2048}

    asyncio.run(scenario())


def test_whoever_asks_without_sizes_gets_a_ladder_over_the_ranges(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, measure_memory_bytes=2**50, hint_budget=5) as daemon:
            registered = await daemon.client.register(chain(2, high=4096))
            operation = await daemon.client.tuned(registered)
            assert operation.failed == 0
            expected = sorted(ladder({"s0": (2, 4096)}, 5))
            for table in await daemon.client.tables_of(registered):
                assert [row.dims for row in hints_of(table)] == expected
                assert all(row.tier == 2 for row in table.hints)
            asked = dict(daemon.bench.asked)
            # Once more: nothing is left to do.
            await daemon.client.tuned(registered)
            assert dict(daemon.bench.asked) == asked

    asyncio.run(scenario())


def test_reports_say_which_hints_are_a_ladder_s(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, measure_memory_bytes=2**50, hint_budget=4) as daemon:
            registered = await daemon.client.register(chain(1, high=4096))
            assert (await daemon.client.tuned(registered)).failed == 0
            await daemon.client.tuned(registered, 2048)
            (table,) = await daemon.client.tables_of(registered)
            rungs = ladder({"s0": (2, 4096)}, 4)
            assert {row.dims for row in hints_of(table)} == {*rungs, (2048,)}
            report = await daemon.client.admin.ExplainKernel(
                admin_service_pb2.ExplainKernelRequest(kernel=table.kernel), timeout=20
            )
            for each in report.searches:
                found = {
                    tried.reason.partition(";")[0] == LADDER
                    for tried in each.tried
                    if tried.stage == "search"
                }
                assert found <= {tuple(each.dims) in rungs}

    asyncio.run(scenario())


def test_a_ladder_of_some_kernels_leaves_the_others_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, measure_memory_bytes=2**50) as daemon:
            registered = await daemon.client.register(chain(2, high=4096))
            first, second = kernels_in(registered.plan)
            response = await daemon.client.kernels.EnsureKernels(
                kernel_service_pb2.EnsureKernelsRequest(
                    program_id=registered.program_id,
                    target_id=registered.target_id,
                    kernels=[first],
                ),
                timeout=20,
            )
            await daemon.client.finished(response.operation.id)
            tables = {table.kernel: table for table in await daemon.client.tables_of(registered)}
            assert len(hints_of(tables[first])) == HINT_BUDGET
            assert second not in tables

    asyncio.run(scenario())
