"""The daemon's main loop over a real socket, with workers that answer at once."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import grpc
import pytest
from tests.integration.daemon_in_process import (
    Running,
    hints_of,
    kernels_in,
    on_a_full_disk,
    running,
)
from tests.integration.fake_workers import (
    CPU,
    SCHEDULES,
    FakeBenchPool,
    FakeCompilePool,
    chain,
    died,
    refused,
)
from tests.integration.statuses import details
from tests.integration.waiting import until

from nearhint_daemon.traffic.usage import Used
from nearhint_daemon.workshop import WAYS_GIVEN
from nearhint_proto import convert
from nearhint_proto.v1 import (
    kernel_service_pb2,
    operation_service_pb2,
    table_service_pb2,
    types_pb2,
    worker_pb2,
)
from nearhint_rules.companions import companions, odd_below
from nearhint_rules.table import HINT_LIMIT


def test_a_program_becomes_a_plan_and_its_kernels_reach_t2(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(3))
            assert len(kernels_in(registered.plan)) == 3
            assert [list(step.sources) for step in registered.provenance] == [
                ["model.layer0"],
                ["model.layer1"],
                ["model.layer2"],
            ]
            operation = await daemon.client.tuned(registered, 100)
            assert operation.state == operation_service_pb2.OPERATION_STATE_DONE
            assert (operation.done, operation.total, operation.failed) == (6, 6, 0)
            tables = await daemon.client.tables_of(registered)
            assert len(tables) == 3
            for table in tables:
                (row,) = table.hints
                assert (list(row.dims), row.tier) == ([128], 2)
                winner = table.variants[row.ranked[0].variant]
                assert winner.schedule == SCHEDULES[1]
                assert len(row.fallbacks) == 1

    asyncio.run(scenario())


def test_t1_of_all_kernels_comes_before_t2_of_any(tmp_path: Path) -> None:
    async def scenario() -> None:
        timed: list[int] = []

        def note(job: str, request: worker_pb2.WorkerRequest) -> None:
            if job == "measure_hint":
                timed.append(len(request.measure_hint.candidates))

        bench = FakeBenchPool(faults=note)
        async with running(tmp_path, bench=bench) as daemon:
            registered = await daemon.client.register(chain(5))
            await daemon.client.tuned(registered, 64)
            assert timed == [2] * 5 + [4] * 5

    asyncio.run(scenario())


def test_a_variant_is_compiled_and_verified_once_for_all_hints(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 16, 64, 256, 1024)
            assert daemon.compile.asked["compile_variant"] == len(SCHEDULES)
            assert daemon.bench.asked["verify_variant"] == len(SCHEDULES)
            assert daemon.bench.asked["check_lowering"] == 1

    asyncio.run(scenario())


def test_hints_that_come_at_once_get_one_default(tmp_path: Path) -> None:
    """Each hint would choose another default; the first that comes chooses for all."""

    def by_size(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
        if job != "list_schedules":
            return None
        start = next(calls) % len(SCHEDULES)
        turned = [*SCHEDULES[start:], *SCHEDULES[:start]]
        return worker_pb2.WorkerResponse(
            id=request.id, schedules=worker_pb2.Schedules(schedules=turned)
        )

    calls = count()

    async def scenario() -> None:
        pool = FakeCompilePool(faults=by_size, delay_s=0.01)
        async with running(tmp_path, compile=pool) as daemon:
            registered = await daemon.client.register(chain(1))
            operation = await daemon.client.tuned(registered, 16, 64, 256, 1024)
            assert operation.failed == 0
            (table,) = await daemon.client.tables_of(registered)
            assert [row.dims for row in hints_of(table)] == [(16,), (64,), (256,), (1024,)]
            beside = {(odd_below(size),) for size in (16, 64, 256, 1024)}
            assert companions(convert.table_from_proto(table)) == beside
            for row in table.hints:
                assert table.default_variant in [ranked.variant for ranked in row.ranked]

    asyncio.run(scenario())


def test_variants_of_a_kernel_are_verified_on_the_same_inputs_and_no_other_daemon_uses_them(
    tmp_path: Path,
) -> None:
    async def seeds(folder: Path) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}

        def note(job: str, request: worker_pb2.WorkerRequest) -> None:
            if job == "verify_variant":
                verify = request.verify_variant
                found.setdefault(verify.kernel_ir, set()).add(verify.seed)

        async with running(folder, bench=FakeBenchPool(faults=note)) as daemon:
            await daemon.client.tuned(await daemon.client.register(chain(2)), 16, 64)
        return found

    folders = tmp_path / "first", tmp_path / "second"
    for folder in folders:
        folder.mkdir()
    first, second = (asyncio.run(seeds(folder)) for folder in folders)
    assert [len(used) for used in first.values()] == [1, 1]
    assert len(set.union(*first.values(), *second.values())) == 4


def test_work_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(2))
            await daemon.client.tuned(registered, 16)
            await daemon.at_rest()
            asked = daemon.compile.asked.copy(), daemon.bench.asked.copy()
            operation = await daemon.client.ensure(registered, 15, 16, 17)
            assert operation.state == operation_service_pb2.OPERATION_STATE_DONE
            assert (daemon.compile.asked, daemon.bench.asked) == asked

    asyncio.run(scenario())


def test_a_thousand_clients_asking_for_one_cold_kernel_cause_one_compile(tmp_path: Path) -> None:
    async def scenario() -> None:
        compile_pool = FakeCompilePool(delay_s=0.2)
        async with running(tmp_path, compile=compile_pool) as daemon:
            program = convert.program_to_proto(chain(1))
            request = kernel_service_pb2.RegisterProgramRequest(
                program=program, device=convert.device_to_proto(CPU)
            )
            answers = await asyncio.gather(
                *(daemon.client.kernels.RegisterProgram(request, timeout=30) for _ in range(1000))
            )
            await asyncio.gather(
                *(
                    daemon.client.finished(answer.operation.id)
                    for answer in answers
                    if answer.HasField("operation")
                )
            )
            assert compile_pool.asked["lower_program"] == 1
            registered = await daemon.client.register(chain(1))
            operations = await asyncio.gather(
                *(daemon.client.ensure(registered, 64, client_id=str(n)) for n in range(1000))
            )
            await asyncio.gather(*(daemon.client.finished(each.id) for each in operations))
            assert compile_pool.asked["compile_variant"] == len(SCHEDULES)
            assert daemon.bench.asked["measure_hint"] == 2

    asyncio.run(scenario())


def test_tables_are_pushed_to_watchers_as_they_are_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(2))
            watch = daemon.client.tables.WatchTables(
                table_service_pb2.WatchTablesRequest(target_id=registered.target_id), timeout=20
            )
            first = await watch.read()
            assert isinstance(first, table_service_pb2.WatchTablesResponse)
            assert len(first.tables) == 0
            await daemon.client.ensure(registered, 64)
            newest: dict[str, types_pb2.Table] = {}
            cursor = first.change_seq
            while {hint.tier for table in newest.values() for hint in table.hints} != {2} or len(
                newest
            ) < 2:
                response = await watch.read()
                assert isinstance(response, table_service_pb2.WatchTablesResponse)
                assert response.change_seq >= cursor
                cursor = response.change_seq
                for table in response.tables:
                    known = newest.get(table.kernel)
                    assert known is None or known.generation < table.generation
                    newest[table.kernel] = table
            watch.cancel()

    asyncio.run(scenario())


def test_a_watch_goes_on_from_its_cursor(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64)
            seen: list[int] = []
            for since in (0, daemon.core.tables.change_seq):
                watch = daemon.client.tables.WatchTables(
                    table_service_pb2.WatchTablesRequest(
                        target_id=registered.target_id, since_change_seq=since
                    ),
                    timeout=20,
                )
                response = await watch.read()
                assert isinstance(response, table_service_pb2.WatchTablesResponse)
                seen.append(len(response.tables))
                watch.cancel()
            assert seen == [1, 0]

    asyncio.run(scenario())


def test_a_slow_watcher_gets_only_the_newest_table_of_each_kernel(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(2))
            watch = daemon.core.tables.watch("", registered.target_id, 0)
            await anext(watch)
            waiting = asyncio.ensure_future(anext(watch))
            await daemon.client.tuned(registered, 16)
            await waiting
            # Nobody reads while eight more Tables a Kernel are written.
            await daemon.client.tuned(registered, 64, 256, 1024, 4096)
            tables, cursor = await anext(watch)
            assert len(tables) == 2
            assert all(len(hints_of(table)) == 5 for table in tables)
            assert cursor == max(table.generation for table in tables)
            await watch.aclose()

    asyncio.run(scenario())


def test_an_artifact_is_fetched_in_chunks_and_resumed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            data = bytes(range(256)) * 3000
            sha256 = await daemon.core.store.put_artifact(data)
            assert await daemon.client.fetch(sha256) == data
            assert await daemon.client.fetch(sha256, offset=700_000) == data[700_000:]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.fetch("0" * 64)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.fetch("../../LOCK")
            assert details(caught.value) == {"reason": "ARTIFACT_UNKNOWN", "field": "sha256"}

    asyncio.run(scenario())


async def artifact_of(daemon: Running) -> tuple[str, Path]:
    registered = await daemon.client.register(chain(1))
    await daemon.client.tuned(registered, 64)
    (table,) = await daemon.client.tables_of(registered)
    sha256 = table.variants[0].artifact.sha256
    return sha256, daemon.core.config.state_dir / "artifacts" / sha256[:2] / sha256


def test_a_flipped_byte_in_an_artifact_is_found_and_the_binary_made_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            sha256, path = await artifact_of(daemon)
            good = path.read_bytes()
            path.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.fetch(sha256)
            assert caught.value.code() is grpc.StatusCode.DATA_LOSS
            assert details(caught.value)["reason"] == "ARTIFACT_CORRUPT"
            assert b'where="artifact"} 1.0' in daemon.core.metrics.render()
            corrupt = daemon.core.config.state_dir / "artifacts" / "corrupt"
            assert [path.name.partition(".")[0] for path in corrupt.iterdir()] == [sha256]
            await until(lambda: path.exists() and not daemon.core.jobs.running())
            assert await daemon.client.fetch(sha256) == good

    asyncio.run(scenario())


def test_on_a_full_disk_a_lost_binary_is_what_it_is_and_comes_back_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What clients hear of it decides whether they ask again."""

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            sha256, path = await artifact_of(daemon)
            good = path.read_bytes()
            path.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
            with monkeypatch.context() as patched:
                patched.setattr(daemon.core.store, "write", on_a_full_disk)
                for reason in ("ARTIFACT_CORRUPT", "ARTIFACT_UNKNOWN"):
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await daemon.client.fetch(sha256)
                    assert details(caught.value)["reason"] == reason
            with pytest.raises(grpc.aio.AioRpcError):
                await daemon.client.fetch(sha256)
            await until(lambda: path.exists() and not daemon.core.jobs.running())
            assert await daemon.client.fetch(sha256) == good

    asyncio.run(scenario())


def test_a_link_planted_among_the_artifacts_is_not_followed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            sha256, path = await artifact_of(daemon)
            elsewhere = tmp_path / "elsewhere"
            path.rename(elsewhere)
            path.symlink_to(elsewhere)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await daemon.client.fetch(sha256)
            assert caught.value.code() is grpc.StatusCode.DATA_LOSS

    asyncio.run(scenario())


def test_a_worker_death_quarantines_the_variant_and_never_serves_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        def crash(job: str, request: worker_pb2.WorkerRequest) -> None:
            binary = request.verify_variant.candidate.binary.binary
            if job == "verify_variant" and SCHEDULES[1].encode() in binary:
                raise died()

        bench = FakeBenchPool(faults=crash)
        async with running(tmp_path, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            operation = await daemon.client.tuned(registered, 64)
            assert operation.state == operation_service_pb2.OPERATION_STATE_DONE
            (table,) = await daemon.client.tables_of(registered)
            assert SCHEDULES[1] not in [variant.schedule for variant in table.variants]
            assert table.hints[0].tier == 2
            assert daemon.core.quarantine.count() == 1
            folders = list((daemon.core.config.state_dir / "quarantine").iterdir())
            assert (folders[0] / "repro.py").read_text() == "print('boom')\n"
            crashes = bench.asked["verify_variant"]
            await daemon.client.tuned(registered, 128)
            assert bench.asked["verify_variant"] == crashes

    asyncio.run(scenario())


@pytest.mark.parametrize("is_told", [False, True])
def test_a_variant_that_dies_while_timed_is_found_among_the_others(
    tmp_path: Path, is_told: bool
) -> None:
    """On a GPU the worker says what happened before it leaves."""

    async def scenario() -> None:
        def crash(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
            if job != "measure_hint" or not any(
                SCHEDULES[2].encode() in candidate.binary.binary
                for candidate in request.measure_hint.candidates
            ):
                return None
            if not is_told:
                raise died()
            return refused(request, "DEVICE_BROKEN", "an illegal access")

        async with running(tmp_path, bench=FakeBenchPool(faults=crash)) as daemon:
            registered = await daemon.client.register(chain(1))
            operation = await daemon.client.tuned(registered, 64)
            assert operation.failed == 0
            (table,) = await daemon.client.tables_of(registered)
            assert {variant.schedule for variant in table.variants} == set(SCHEDULES[:2])

    asyncio.run(scenario())


def test_a_device_that_breaks_once_proves_no_lowering_wrong(tmp_path: Path) -> None:
    left = 1

    def breaks(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
        nonlocal left
        if job != "check_lowering" or not left:
            return None
        left -= 1
        return refused(request, "DEVICE_BROKEN", "uncorrectable ECC error")

    async def scenario() -> None:
        async with running(tmp_path, bench=FakeBenchPool(faults=breaks)) as daemon:
            registered = await daemon.client.register(chain(1))
            assert (await daemon.client.tuned(registered, 64)).failed == 0
            (table,) = await daemon.client.tables_of(registered)
            assert (len(table.variants), table.reason) == (len(SCHEDULES), "")

    asyncio.run(scenario())


def test_a_measurement_that_gave_way_is_done_again_and_not_for_ever(tmp_path: Path) -> None:
    asked: list[bool] = []

    def give_way(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
        if job != "measure_hint":
            return None
        asked.append(request.measure_hint.gives_way)
        if not asked[-1]:
            return None
        return refused(request, "DEVICE_WANTED", "a client began to serve")

    async def scenario() -> None:
        async with running(tmp_path, bench=FakeBenchPool(faults=give_way)) as daemon:
            registered = await daemon.client.register(chain(1))
            operation = await daemon.client.tuned(registered, 64)
            assert operation.failed == 0
            (table,) = await daemon.client.tables_of(registered)
            assert table.hints[0].tier == 2
            assert asked == [*([True] * WAYS_GIVEN), False] * 2

    asyncio.run(scenario())


def test_no_variant_that_fails_verification_gets_into_a_table(tmp_path: Path) -> None:
    async def scenario() -> None:
        def reject(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
            if job != "verify_variant":
                return None
            verdict = worker_pb2.Verdict(is_ok=False, problem="off by one at 17")
            return worker_pb2.WorkerResponse(id=request.id, verdict=verdict)

        async with running(tmp_path, bench=FakeBenchPool(faults=reject)) as daemon:
            registered = await daemon.client.register(chain(1))
            operation = await daemon.client.tuned(registered, 64)
            assert operation.state == operation_service_pb2.OPERATION_STATE_FAILED
            (table,) = await daemon.client.tables_of(registered)
            assert (len(table.variants), len(table.hints)) == (0, 0)
            assert "off by one at 17" in table.reason
            assert daemon.bench.asked["measure_hint"] == 0

    asyncio.run(scenario())


def test_a_kernel_that_differs_from_its_fallback_is_never_timed_and_says_why(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        def wrong(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
            if job != "check_lowering":
                return None
            verdict = worker_pb2.Verdict(is_ok=False, problem="max error 3")
            return worker_pb2.WorkerResponse(id=request.id, verdict=verdict)

        async with running(tmp_path, bench=FakeBenchPool(faults=wrong)) as daemon:
            registered = await daemon.client.register(chain(1))
            operation = await daemon.client.tuned(registered, 64)
            assert operation.state == operation_service_pb2.OPERATION_STATE_FAILED
            assert "LOWERING_WRONG" in str(operation.error)
            (table,) = await daemon.client.tables_of(registered)
            assert (len(table.variants), len(table.hints)) == (0, 0)
            assert "max error 3" in table.reason
            assert daemon.bench.asked["measure_hint"] == 0

    asyncio.run(scenario())


def test_sizes_that_are_to_be_tuned_as_given_are_not_rounded_to_their_bucket(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(chain(1))
            answer = await daemon.client.kernels.EnsureKernels(
                kernel_service_pb2.EnsureKernelsRequest(
                    program_id=registered.program_id,
                    target_id=registered.target_id,
                    hints=[convert.size_hint_to_proto({"s0": 1000})],
                    as_given=True,
                ),
                timeout=20,
            )
            assert (await daemon.client.finished(answer.operation.id)).failed == 0
            await daemon.client.tuned(registered, 600)
            (table,) = await daemon.client.tables_of(registered)
            # The first has a companion, as it is a multiple of 16.
            assert [(tuple(row.dims), row.tier) for row in table.hints] == [
                ((503,), 2),
                ((512,), 2),
                ((1000,), 2),
            ]
            assert [row.dims for row in hints_of(table)] == [(512,), (1000,)]

    asyncio.run(scenario())


def test_a_table_keeps_the_most_used_hints(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, measure_memory_bytes=2**50) as daemon:
            registered = await daemon.client.register(chain(1, high=None))
            sizes = [2**exponent for exponent in range(1, HINT_LIMIT + 1)]
            await daemon.client.tuned(registered, *sizes)
            used = [size for size in sizes if size != 2**9]
            await daemon.core.usage.report(
                "test",
                [_used(registered.program_id, size) for size in used],
                namespace="",
            )
            await daemon.core.traffic.fold()
            await daemon.client.tuned(registered, 2**40)
            (table,) = await daemon.client.tables_of(registered)
            hints = [row.dims[0] for row in table.hints]
            assert len(hints) == HINT_LIMIT
            assert 2**9 not in hints
            assert 2**40 in hints
            # What was evicted may be asked for again.
            again = await daemon.client.tuned(registered, 2**9)
            assert again.failed == 0
            (table,) = await daemon.client.tables_of(registered)
            assert 2**9 in [row.dims[0] for row in table.hints]

    asyncio.run(scenario())


def _used(program: str, size: int) -> Used:
    return Used(program=program, sizes={"s0": size}, calls=5, launches=(0, 0, 5, 0))


def test_the_newest_generation_is_a_tables_also_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, regret_share=0, refine_share=0) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, 64)
            await daemon.at_rest()
            (table,) = await daemon.client.tables_of(registered)
            await daemon.core.devices.set_policy("cpu", "never", actor="ann")  # a later change
        async with running(tmp_path, regret_share=0, refine_share=0) as daemon:
            shown = daemon.core.metrics.registry.get_sample_value
            await until(lambda: shown("nearhint_store_size_bytes", {"what": "db"}))
            assert shown("nearhint_dispatch_table_version") == table.generation

    asyncio.run(scenario())
