"""Whole tunes by daemons from scratch, with scripted timings: the same winners beyond the band."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.integration.daemon_in_process import Running, kernels_in, running
from tests.integration.fake_workers import SCHEDULES, FakeBenchPool, chain

from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2 as pb
from nearhint_proto.v1 import types_pb2, worker_pb2
from nearhint_rules.choice import FALLBACK
from nearhint_rules.companions import odd_below
from nearhint_rules.selectors import select
from nearhint_rules.table import Table, Timing

NOISE = 0.005
BAND = 0.02
MARGIN = BAND + 2 * NOISE
SIZES = (16, 64, 256, 1024)
TRUE_NS: Mapping[int, Mapping[str, int]] = {
    16: {"": 2000, SCHEDULES[0]: 1500, SCHEDULES[1]: 1000, SCHEDULES[2]: 1300},
    64: {"": 2000, SCHEDULES[0]: 1000, SCHEDULES[1]: 1005, SCHEDULES[2]: 995},
    256: {"": 1000, SCHEDULES[0]: 1003, SCHEDULES[1]: 1010, SCHEDULES[2]: 1400},
    1024: {"": 4000, SCHEDULES[0]: 2000, SCHEDULES[1]: 1800, SCHEDULES[2]: 1750},
}
"""By size and Schedule, "" for the original ops: clear winners, ties, and ties with those."""
BESIDE = {odd_below(size): size for size in SIZES}
"""The hints by their companions, where all is as it is there."""


class Scripted:
    """Timings drawn around the true ones."""

    def __init__(self, seed: int) -> None:
        self._noise = random.Random(seed)
        self.factor: dict[str, float] = {}

    def faults(
        self, job: str, request: worker_pb2.WorkerRequest
    ) -> worker_pb2.WorkerResponse | None:
        if job != "measure_hint":
            return None
        (dim,) = request.measure_hint.sizes.dims
        answers = [
            worker_pb2.MeasuredCandidate(
                id=each.id, timing=self._draw(dim.value, schedule_of(each))
            )
            for each in request.measure_hint.candidates
        ]
        measured = worker_pb2.Measured(candidates=answers, conditions="scripted")
        return worker_pb2.WorkerResponse(id=request.id, measured=measured)

    def _draw(self, size: int, schedule: str) -> types_pb2.Timing:
        true_ns = 1000 * TRUE_NS[BESIDE.get(size, size)][schedule] * self.factor.get(schedule, 1.0)
        median_ns = round(true_ns * (1 + self._noise.uniform(-NOISE, NOISE)))
        return convert.timing_to_proto(Timing(median_ns, 0.004, 21))


def schedule_of(candidate: worker_pb2.Candidate) -> str:
    if candidate.WhichOneof("subject") != "binary":
        return ""
    return candidate.binary.binary.decode().split("\n")[1].split("kernel ")[0]


def served(table: Table, size: int) -> str:
    fallback, _ = table.hints[0].fallbacks[0]
    answer = select(table, (size,), fallback=fallback)
    return "" if answer.variant == FALLBACK else table.variants[answer.variant].schedule


async def tuned(daemon: Running, sizes: Sequence[int]) -> Table:
    registered = await daemon.client.register(chain(1))
    for size in sizes:
        assert (await daemon.client.tuned(registered, size)).failed == 0
    (message,) = await daemon.client.tables_of(registered)
    return convert.table_from_proto(message)


def apart(size: int, first: str, second: str) -> float:
    """How much slower the slower of two truly is, as the faster one's gain."""
    one, other = sorted((TRUE_NS[size][first], TRUE_NS[size][second]))
    return (other - one) / other


@pytest.mark.parametrize("seed", range(4))
def test_two_tunes_from_scratch_agree_beyond_the_band_in_any_order(
    tmp_path: Path, seed: int
) -> None:
    async def tune(number: int) -> Table:
        folder = tmp_path / str(number)
        folder.mkdir()
        sizes = list(SIZES)
        random.Random(10 * seed + number).shuffle(sizes)
        script = Scripted(10 * seed + number)
        async with running(folder, bench=FakeBenchPool(faults=script.faults)) as daemon:
            return await tuned(daemon, sizes)

    async def scenario() -> None:
        first, second = await tune(1), await tune(2)
        for size in SIZES:
            one, other = served(first, size), served(second, size)
            assert apart(size, one, other) <= MARGIN
            best = min(TRUE_NS[size], key=TRUE_NS[size].__getitem__)
            assert apart(size, one, best) <= MARGIN
        assert served(first, 16) == served(second, 16) == SCHEDULES[1]

    asyncio.run(scenario())


def test_a_hint_that_is_timed_again_keeps_its_leader_until_something_is_faster(
    tmp_path: Path,
) -> None:
    script = Scripted(7)

    async def again(daemon: Running) -> Table:
        """What leaves and is released has all candidates timed again."""
        registered = await daemon.client.register(chain(1))
        (kernel,) = kernels_in(registered.plan)
        await daemon.client.admin.QuarantineVariant(
            pb.QuarantineVariantRequest(kernel=kernel, variant=SCHEDULES[2], reason="to retime"),
            timeout=20,
        )
        await daemon.client.admin.ReleaseVariant(
            pb.ReleaseVariantRequest(kernel=kernel, variant=SCHEDULES[2]), timeout=20
        )
        await daemon.at_rest()
        (message,) = await daemon.client.tables_of(registered)
        return convert.table_from_proto(message)

    async def scenario() -> None:
        async with running(tmp_path, bench=FakeBenchPool(faults=script.faults)) as daemon:
            table = await tuned(daemon, [64])
            assert served(table, 64) == SCHEDULES[0]
            for _ in range(5):
                timed = daemon.bench.asked["measure_hint"]
                assert served(await again(daemon), 64) == SCHEDULES[0]
                assert daemon.bench.asked["measure_hint"] > timed
            script.factor[SCHEDULES[1]] = 0.9
            assert served(await again(daemon), 64) == SCHEDULES[1]

    asyncio.run(scenario())
