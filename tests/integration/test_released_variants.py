"""Variants that operators release: timed again at every hint, by searches under way as well."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.daemon_in_process import Running, kernels_in
from tests.integration.fake_workers import SCHEDULES, FakeBenchPool, FakeCompilePool, Script, chain
from tests.integration.operated import FAST, REASON, Held, Tuned, go, schedules

from nearhint_proto import convert
from nearhint_proto.v1 import kernel_service_pb2
from nearhint_rules.companions import without_companions


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


@pytest.mark.parametrize("is_crossed", [False, True])
def test_what_is_released_while_a_hint_is_searched_is_timed_there_too(
    tmp_path: Path, is_crossed: bool
) -> None:
    """The search began without it."""

    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        await kernel.quarantine(FAST)
        await daemon.at_rest()
        held = Held(daemon, variants=2)  # and the original ops: T2
        sizes = (256, 1024) if is_crossed else (256,)
        asked = await daemon.client.ensure(kernel.registered, *sizes)
        await held.started.wait()
        assert (await kernel.release(FAST)).retuning > 0
        held.gate.set()
        assert (await daemon.client.finished(asked.id)).failed == 0

        async def is_back() -> bool:
            table = await kernel.table()
            fast = next((at for at, each in enumerate(table.variants) if each.schedule == FAST), -1)
            return all(fast in dict(row.ranked) for row in without_companions(table))

        async with asyncio.timeout(20):
            while not await is_back():
                await asyncio.sleep(0)
        for size in (64, *sizes):
            assert await kernel.runs(size) == (FAST, "winner")

    go(tmp_path, scenario)


def test_what_is_released_is_not_searched_where_the_budget_had_ended(tmp_path: Path) -> None:
    """It would be without a limit, and nobody asks for it."""
    bench = FakeBenchPool()

    async def scenario(daemon: Running) -> None:
        kernel = await Tuned.at(daemon, 64)
        await kernel.quarantine(FAST)
        await daemon.core.devices.set_policy("cpu", "never", actor="ann")
        asked = await daemon.client.ensure(kernel.registered, 256, 1024, budget_s=0.5)
        await daemon.core.devices.set_policy("cpu", "always", actor="ann")
        assert (await daemon.client.finished(asked.id)).skipped > 0
        known = {row.dims for row in (await kernel.table()).hints}
        await kernel.release(FAST)
        await daemon.at_rest()
        assert {row.dims for row in (await kernel.table()).hints} == known

    go(tmp_path, scenario, bench=bench, monotonic=lambda: float(bench.asked.total()))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_is_released_is_measured_again_whatever_budget_its_kernels_were_tuned_within(
    tmp_path: Path, is_restarted: bool
) -> None:
    bench = FakeBenchPool()
    # Each piece of work on a device takes a second.
    flags = {"bench": bench, "monotonic": lambda: float(bench.asked.total())}

    async def released(daemon: Running) -> None:
        core = daemon.core
        await core.devices.set_policy("cpu", "never", actor="ann")
        registered = await daemon.client.register(chain(3))
        await daemon.client.ensure(registered, 64, budget_s=0.5)
        free = await daemon.client.ensure(registered, 64)
        await core.devices.set_policy("cpu", "always", actor="ann")
        assert (await daemon.client.finished(free.id)).skipped == 0
        await core.devices.set_policy("cpu", "never", actor="ann")
        for name in kernels_in(registered.plan):
            kernel = core.programs.kernel("", name)
            await core.interventions.quarantine(kernel, FAST, reason=REASON, target="", actor="ann")
            await core.interventions.release(kernel, FAST, target="", actor="ann")
        if not is_restarted:
            await measured_again(daemon)

    async def measured_again(daemon: Running) -> None:
        await daemon.core.devices.set_policy("cpu", "always", actor="ann")
        await daemon.at_rest()
        registered = await daemon.client.register(chain(3))
        for table in await daemon.client.tables_of(registered):
            assert FAST in schedules(convert.table_from_proto(table))

    go(tmp_path, released, **flags)
    if is_restarted:
        go(tmp_path, measured_again, **flags)


def test_what_is_released_is_timed_where_nothing_was_searched(tmp_path: Path) -> None:
    """There it is what is held best at the hint."""
    script = Script(
        lambda size, effort: SCHEDULES,
        lambda name, size: {FAST: 1000, "fallback": 3000}.get(name, 2000),
        first=lambda size, near: FAST,
    )

    async def scenario(daemon: Running) -> None:
        registered = await daemon.client.register(chain(1))
        none = kernel_service_pb2.EFFORT_NONE
        assert (await daemon.client.tuned(registered, 64, effort=none)).failed == 0
        kernel = Tuned(daemon, registered)
        meanwhile = await served_in_its_absence(daemon, kernel, FAST)
        assert meanwhile == (SCHEDULES[0], "winner")
        assert schedules(await kernel.table()) == {SCHEDULES[0], FAST}

    pools = {
        "compile": FakeCompilePool(faults=script.faults),
        "bench": FakeBenchPool(faults=script.faults),
    }
    go(tmp_path, scenario, **pools)


async def served_in_its_absence(daemon: Running, kernel: Tuned, schedule: str) -> tuple[str, str]:
    """What 64 rows run while a Schedule is quarantined, and why; they run that one before, and
    again."""
    assert await kernel.runs(64) == (schedule, "winner")
    await kernel.quarantine(schedule)
    await daemon.at_rest()
    found = await kernel.runs(64)
    await kernel.release(schedule)
    await daemon.at_rest()
    assert await kernel.runs(64) == (schedule, "winner")
    return found


def test_what_a_walk_has_found_comes_back_as_well(tmp_path: Path) -> None:
    """No search lists it, and a walk goes by what was timed."""
    found = "cpu.rows vector=64"
    medians = {"fallback": 3000, found: 1000}
    script = Script(
        lambda size, effort: SCHEDULES,
        lambda name, size: medians.get(name, 2000),
        neighbours=lambda schedule: (found,),
    )

    async def scenario(daemon: Running) -> None:
        registered = await daemon.client.register(chain(1))
        most = kernel_service_pb2.EFFORT_MAX
        assert (await daemon.client.tuned(registered, 64, effort=most)).failed == 0
        kernel = Tuned(daemon, registered)
        assert (await served_in_its_absence(daemon, kernel, found))[0] in SCHEDULES

    pools = {
        "compile": FakeCompilePool(faults=script.faults),
        "bench": FakeBenchPool(faults=script.faults),
    }
    go(tmp_path, scenario, **pools)
