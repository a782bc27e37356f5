"""Sizes that calls have often are timed, and answer for themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integration.daemon_in_process import running
from tests.integration.fake_workers import SCHEDULES, FakeBenchPool, answer, schedule_of
from tests.integration.test_traffic import HALF_LIFE_S, measured_size, replayed

from nearhint_daemon.store.rows import TableRow
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.companions import odd_below

ASKED = (64, 256, 1024)


def off_between_hints(job: str, request: pb.WorkerRequest) -> pb.WorkerResponse | None:
    """One Schedule is the best at hints and their companions, and far from it at others."""
    if job != "measure_hint":
        return None
    response = answer(request)
    size = measured_size(request)
    is_hint = size in {*ASKED, *map(odd_below, ASKED)}
    binaries = [each for each in request.measure_hint.candidates if not each.fallback]
    for measured in response.measured.candidates:
        place = next((at for at, each in enumerate(binaries) if each.id == measured.id), None)
        if place is None:
            measured.timing.median_ns = 5000
        else:
            schedule = binaries[place].binary.binary.decode().split("\n")[1].split("kernel ")[0]
            is_odd_one = schedule == SCHEDULES[1]
            measured.timing.median_ns = 1000 if is_odd_one == is_hint else 3000
    return response


def test_what_calls_have_often_is_served_by_what_was_timed_there(tmp_path: Path) -> None:
    """Predicted is what wins at hints; at the sizes of the calls that is three times slower."""

    async def scenario() -> None:
        bench = FakeBenchPool(faults=off_between_hints)
        async with running(tmp_path, bench=bench, traffic_half_life_s=HALF_LIFE_S) as daemon:
            replay = await replayed(daemon, *ASKED)
            (key,) = daemon.core.tables.of_kernel("", replay.kernel)

            def served(size: int) -> tuple[str, tuple[int, ...]]:
                selector = daemon.core.tables.selector(key)
                assert selector.table is not None
                ((fallback, _),) = selector.table.hints[0].fallbacks
                selection = selector.select((size,), fallback=fallback)
                return selector.table.variants[selection.variant].schedule, selection.hint

            before = served(300)[0]
            assert before == SCHEDULES[1]
            earlier = daemon.core.tables.newest(key)
            timed = daemon.bench.asked["measure_hint"]
            await replay.run([300, 500], reports=3)
            after, hint = served(300)
            assert after != before
            assert hint == (300,)
            table = daemon.core.tables.newest(key)
            assert earlier is not None
            assert table is not None
            assert [row.dims for row in table.probes] == [(300,), (500,)]
            assert table.hints == earlier.hints
            # Both came with one generation, and nothing is timed twice.
            kept = daemon.core.store.read_now(
                lambda reading: [row.generation for row in reading.where(TableRow)]
            )
            assert sum(generation > earlier.generation for generation in kept) == 1
            assert daemon.bench.asked["measure_hint"] == timed + 2
            # Of other sizes nothing is known by it.
            assert served(310)[0] == before

        # What was learnt is there after a restart.
        async with running(
            tmp_path, bench=FakeBenchPool(), traffic_half_life_s=HALF_LIFE_S
        ) as daemon:
            assert daemon.core.tables.newest(key) == table

    asyncio.run(scenario())


def test_sizes_at_which_the_default_cannot_be_timed_keep_no_others_from_being_probed(
    tmp_path: Path,
) -> None:
    def faults(job: str, request: pb.WorkerRequest) -> pb.WorkerResponse | None:
        response = off_between_hints(job, request)
        if response is not None and measured_size(request) == 500:
            names = {each.id: schedule_of(each) for each in request.measure_hint.candidates}
            for candidate in response.measured.candidates:
                if names[candidate.id] == SCHEDULES[0]:
                    candidate.ClearField("timing")
                    candidate.problem = "never quiet"
        return response

    async def scenario() -> None:
        bench = FakeBenchPool(faults=faults)
        async with running(tmp_path, bench=bench, traffic_half_life_s=HALF_LIFE_S) as daemon:
            replay = await replayed(daemon, *ASKED)
            timed = daemon.bench.asked["measure_hint"]
            await replay.run([300, 500], reports=1)
            assert [row.dims for row in replay.table().probes] == [(300,)]
            assert daemon.bench.asked["measure_hint"] == timed + 2

    asyncio.run(scenario())
