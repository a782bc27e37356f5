"""T1 serves each hint what the compiler holds best there, beside a default for all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.daemon_in_process import Running, running
from tests.integration.fake_workers import (
    FakeBenchPool,
    FakeCompilePool,
    Script,
    chain,
    guarded,
)

from nearhint_proto import convert
from nearhint_proto.v1 import kernel_service_pb2 as pb
from nearhint_proto.v1 import worker_pb2
from nearhint_rules.choice import FALLBACK
from nearhint_rules.expr import Sym
from nearhint_rules.guard import AtMost
from nearhint_rules.selectors import select
from nearhint_rules.table import Table

DEFAULT, SHORT, LONG, SPARE = (f"cpu.rows vector={width}" for width in (4, 8, 16, 32))
FEW, MANY = 64, 65_536


def held_best(size: int, near: int) -> str:
    return SHORT if size < 1024 else LONG


def median_ns(name: str, size: int) -> int:
    """Each hint's own is fast there and slow elsewhere."""
    if name in {"fallback", DEFAULT}:
        return 200_000 if name == "fallback" else 100_000
    return 10_000 if name == held_best(size, size) else 150_000


def scripted() -> tuple[Script, FakeCompilePool, FakeBenchPool]:
    script = Script(lambda size, effort: (DEFAULT, SPARE), median_ns, first=held_best)
    return script, FakeCompilePool(faults=script.faults), FakeBenchPool(faults=script.faults)


async def table_at_t1(daemon: Running, *sizes: int) -> Table:
    """The Table of the only Kernel, once it is at T1 at these sizes, one after the other."""
    registered = await daemon.client.register(chain(1, high=1 << 20))
    for size in sizes:
        operation = await daemon.client.tuned(registered, size, effort=pb.EFFORT_NONE)
        assert operation.failed == 0
    (message,) = await daemon.client.tables_of(registered)
    return convert.table_from_proto(message)


def served(table: Table, size: int) -> str:
    fallback, _ = table.hints[0].fallbacks[0]
    answer = select(table, (size,), fallback=fallback)
    return "" if answer.variant == FALLBACK else table.variants[answer.variant].schedule


def test_a_hint_that_the_default_does_not_reach_is_timed_by_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, _, _ = scripted()
        faults = guarded(script, {DEFAULT: AtMost(Sym("k0"), 1024)})
        pools = FakeCompilePool(faults=faults), FakeBenchPool(faults=faults)
        async with running(tmp_path, compile=pools[0], bench=pools[1]) as daemon:
            registered = await daemon.client.register(chain(1, high=1 << 20))
            assert (await daemon.client.tuned(registered, FEW)).failed == 0
            timed = list(script.timed)
            operation = await daemon.client.tuned(registered, MANY)
            assert (operation.failed > 0, operation.passing) == (True, 0)
            assert "the default Variant may not run" in operation.error.message
            assert script.timed == timed
            assert (await daemon.client.tuned(registered, FEW, MANY)).failed > 0  # asked again
            assert script.timed == timed

    asyncio.run(scenario())


def test_two_hints_are_served_two_first_variants_and_the_table_keeps_its_default(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            table = await table_at_t1(daemon, FEW, MANY)
            assert script.timed == [(FEW, (DEFAULT, SHORT)), (MANY, (DEFAULT, LONG))]
            assert (served(table, FEW), served(table, MANY)) == (SHORT, LONG)
            assert table.variants[table.default].schedule == DEFAULT
            assert table.variants[table.default].guard.facts == ()
            assert [row.tier for row in table.hints] == [1, 1]
            assert compile_pool.asked["compile_variant"] == 3

    asyncio.run(scenario())


def test_hints_with_the_same_first_share_a_binary_and_one_that_suits_needs_no_second(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        script = Script(
            lambda size, effort: (DEFAULT, SPARE),
            median_ns,
            first=lambda size, near: DEFAULT if size == MANY else SHORT,
        )
        pools = FakeCompilePool(faults=script.faults), FakeBenchPool(faults=script.faults)
        async with running(tmp_path, compile=pools[0], bench=pools[1]) as daemon:
            await table_at_t1(daemon, FEW, 2 * FEW, 4 * FEW, MANY)
            assert pools[0].asked["compile_variant"] == 2
            assert pools[1].asked["verify_variant"] == 2
            assert script.timed[-1] == (MANY, (DEFAULT,))

    asyncio.run(scenario())


def test_the_sizes_that_ask_say_what_is_held_best(tmp_path: Path) -> None:
    async def scenario() -> None:
        script = Script(
            lambda size, effort: (DEFAULT, SPARE),
            lambda name, size: 200_000 if name == "fallback" else 100_000,
            first=lambda size, near: SHORT if near % 16 else LONG,
        )
        pools = FakeCompilePool(faults=script.faults), FakeBenchPool(faults=script.faults)
        async with running(tmp_path, compile=pools[0], bench=pools[1]) as daemon:
            await table_at_t1(daemon, 1021, 4096)
            assert script.timed == [(1024, (DEFAULT, SHORT)), (4096, (DEFAULT, LONG))]

    asyncio.run(scenario())


def test_a_first_that_is_slower_than_the_default_or_the_original_ops_does_not_serve(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        script = Script(
            lambda size, effort: (DEFAULT, SPARE),
            lambda name, size: {
                "fallback": 50_000 if size == MANY else 200_000,
                DEFAULT: 100_000,
            }.get(name, 150_000),
            first=held_best,
        )
        pools = FakeCompilePool(faults=script.faults), FakeBenchPool(faults=script.faults)
        async with running(tmp_path, compile=pools[0], bench=pools[1]) as daemon:
            table = await table_at_t1(daemon, FEW, MANY)
            assert (served(table, FEW), served(table, MANY)) == (DEFAULT, "")

    asyncio.run(scenario())


def test_a_first_that_computes_something_else_leaves_the_default_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()

        def wrong(job: str, request: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse | None:
            if job != "verify_variant":
                return script.faults(job, request)
            is_default = DEFAULT.encode() in request.verify_variant.candidate.binary.binary
            verdict = worker_pb2.Verdict(is_ok=is_default, problem="" if is_default else "wrong")
            return worker_pb2.WorkerResponse(id=request.id, verdict=verdict)

        bench.faults = wrong
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            table = await table_at_t1(daemon, FEW)
            assert script.timed == [(FEW, (DEFAULT,))]
            assert [each.schedule for each in table.variants] == [DEFAULT]

    asyncio.run(scenario())


@pytest.mark.parametrize("broken", [DEFAULT, SHORT])
def test_only_what_is_for_all_sizes_becomes_the_default(tmp_path: Path, broken: str) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()

        def unmeasured(
            job: str, request: worker_pb2.WorkerRequest
        ) -> worker_pb2.WorkerResponse | None:
            response = script.faults(job, request)
            if job == "measure_hint" and response is not None:
                asked = request.measure_hint.candidates
                for subject, timed in zip(asked, response.measured.candidates, strict=True):
                    if broken.encode() in subject.binary.binary:
                        timed.ClearField("timing")
                        timed.problem = "its launch failed"
            return response

        bench.faults = unmeasured
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            operation = await daemon.client.tuned(registered, FEW, effort=pb.EFFORT_NONE)
            tables = await daemon.client.tables_of(registered)
            if broken == DEFAULT:
                assert operation.failed == 1
                assert all(not table.variants for table in tables)
            else:
                (table,) = map(convert.table_from_proto, tables)
                assert [each.schedule for each in table.variants] == [DEFAULT]

    asyncio.run(scenario())


def test_the_search_times_again_what_served_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        script, compile_pool, bench = scripted()
        async with running(tmp_path, compile=compile_pool, bench=bench) as daemon:
            registered = await daemon.client.register(chain(1))
            await daemon.client.tuned(registered, FEW)
            assert script.timed[0] == (FEW, (DEFAULT, SHORT))
            assert set(script.timed[1][1]) == {DEFAULT, SHORT, SPARE}
            (message,) = await daemon.client.tables_of(registered)
            table = convert.table_from_proto(message)
            assert served(table, FEW) == SHORT
            assert table.hints[0].tier == 2

    asyncio.run(scenario())
