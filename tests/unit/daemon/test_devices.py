from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.fake_workers import CPU, FakeBenchPool, FakeCompilePool
from tests.unit.daemon.stores import Seen

from nearhint_daemon import devices
from nearhint_daemon.devices import HELLO_RETRY_S, SPELL_S, Devices, default_names
from nearhint_daemon.errors import InvalidRequest, NoDevice
from nearhint_daemon.jobs import Priority
from nearhint_daemon.metrics import Metrics
from nearhint_daemon.services.messages import device_message
from nearhint_daemon.store import Store
from nearhint_daemon.traffic.presence import Presence
from nearhint_daemon.turns import Turns
from nearhint_daemon.workers.errors import WorkerStartFailed
from nearhint_daemon.workshop import Care, Limits, Workshop
from nearhint_proto import convert
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_proto.v1.program_pb2 import Fallback
from nearhint_rules.target import CpuDevice, CudaDevice

GPU = CudaDevice("H100", 90, 132, 80 << 30, "550", 700)


def with_devices(
    folder: Path,
    scenario: Callable[[Devices], Awaitable[None]],
    *,
    is_idle: Callable[[str], Awaitable[bool]] | None = None,
    presence: Presence | None = None,
    bench: FakeBenchPool | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    async def run() -> None:
        store = Store(folder, observer=Seen(), clock=time.time)
        await store.start()
        devices = Devices(
            bench or FakeBenchPool(),
            store,
            default_policy="always",
            clock=time.time,
            presence=presence or Presence(monotonic=monotonic),
            monotonic=monotonic,
            is_idle=is_idle,
        )
        devices.start()
        try:
            await scenario(devices)
        finally:
            await devices.stop()
            await store.close()

    asyncio.run(run())


def test_under_idle_a_device_is_used_only_while_it_is_idle(tmp_path: Path) -> None:
    asked = asyncio.Event()
    answers = [False, True]

    async def is_idle(name: str) -> bool:
        asked.set()
        return answers.pop(0)

    async def scenario(devices: Devices) -> None:
        await devices.set_policy("cpu", "idle", actor="ann")

        async def use() -> None:
            async with devices.turn(CPU, (1,)):
                pass

        using = asyncio.create_task(use())
        await asked.wait()
        assert not using.done()
        async with asyncio.timeout(10):
            await using
        assert answers == []

    with_devices(tmp_path, scenario, is_idle=is_idle)


def test_what_holds_work_up_is_known_without_asking_the_device(tmp_path: Path) -> None:
    presence = Presence(monotonic=time.monotonic)
    asked = asyncio.Event()

    async def is_idle(name: str) -> bool:
        asked.set()
        return False

    async def scenario(devices: Devices) -> None:
        await devices.wait_for(CPU)
        held_up = {"at first": devices.is_held_up(CPU)}
        await devices.set_policy("cpu", "never", actor="ann")
        held_up["never"] = devices.is_held_up(CPU)
        await devices.set_policy("cpu", "idle", actor="ann")
        held_up["idle"] = devices.is_held_up(CPU)
        presence.note("ann", CPU, is_serving=True)
        held_up["serving"] = devices.is_held_up(CPU)
        presence.note("ann", CPU, is_serving=False)
        held_up["quiet"] = devices.is_held_up(CPU)
        assert not asked.is_set()
        assert not await devices.may_use(CPU)
        held_up["busy"] = devices.is_held_up(CPU)
        await devices.set_policy("cpu", "always", actor="ann")
        held_up["always"] = devices.is_held_up(CPU)
        other = CpuDevice("another", CPU.features, CPU.libc)
        held_up["another device"] = devices.is_held_up(other)
        assert {name for name, is_so in held_up.items() if is_so} == {"never", "serving", "busy"}

    with_devices(tmp_path, scenario, is_idle=is_idle, presence=presence)


def test_what_says_that_a_device_is_idle_holds_for_a_spell(tmp_path: Path) -> None:
    now_s = 100.0
    asked = 0

    async def is_idle(name: str) -> bool:
        nonlocal asked
        asked += 1
        return True

    async def scenario(devices: Devices) -> None:
        nonlocal now_s
        await devices.set_policy("cpu", "idle", actor="ann")
        for _ in range(5):
            async with devices.turn(CPU, (1,)):
                pass
        assert asked == 1
        now_s += SPELL_S
        async with devices.turn(CPU, (1,)):
            pass
        assert asked == 2

    with_devices(tmp_path, scenario, is_idle=is_idle, monotonic=lambda: now_s)


def test_under_idle_a_client_that_serves_is_given_way_to_until_it_is_quiet(tmp_path: Path) -> None:
    presence, bench = Presence(monotonic=time.monotonic), FakeBenchPool()

    async def is_idle(name: str) -> bool:
        return True

    async def scenario(devices: Devices) -> None:
        await devices.wait_for(CPU)
        presence.note("ann", CPU, is_serving=True)
        assert bench.interrupted == []  # under `always` nobody gives way
        await devices.set_policy("cpu", "idle", actor="ann")
        ran = asyncio.Event()

        async def use() -> None:
            async with devices.turn(CPU, (1,)):
                ran.set()

        using = asyncio.create_task(use())
        presence.note("bob", CPU, is_serving=True)
        presence.note("ann", CPU, is_serving=False)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not ran.is_set()
        presence.note("bob", CPU, is_serving=False)
        await asyncio.wait_for(using, 10)
        presence.note("bob", CPU, is_serving=True)
        assert bench.interrupted == ["cpu"]

    with_devices(tmp_path, scenario, is_idle=is_idle, presence=presence, bench=bench)


@pytest.mark.parametrize(
    ("holder", "comer", "interrupted"),
    [
        (Priority.REFINEMENT, Priority.LIVE_MISS, ["cpu"]),
        (Priority.REFINEMENT, Priority.WARM_UP, ["cpu"]),
        (Priority.REFINEMENT, Priority.REFINEMENT, []),
        (Priority.WARM_UP, Priority.LIVE_MISS, []),
    ],
)
def test_a_refinement_gives_way_to_what_is_more_urgent(
    tmp_path: Path, holder: Priority, comer: Priority, interrupted: list[str]
) -> None:
    bench = FakeBenchPool()

    async def scenario(devices: Devices) -> None:
        async def come() -> None:
            async with devices.turn(CPU, (comer, 0)):
                pass

        async with devices.turn(CPU, (holder, 4, 1)):
            coming = asyncio.create_task(come())
            for _ in range(20):
                await asyncio.sleep(0)
            assert not coming.done()
            assert bench.interrupted == interrupted
        await coming
        await come()
        assert bench.interrupted == interrupted  # nobody held it

    with_devices(tmp_path, scenario, bench=bench)


def test_who_wants_a_device_before_the_job_that_holds_it_has_begun_is_heard(
    tmp_path: Path,
) -> None:
    """What is timed on the CPU holds it while it waits for compilers to end."""
    bench = FakeBenchPool(faults=lambda job, request: pb.WorkerResponse())
    gives_way = pb.WorkerRequest(id=3, measure_hint=pb.MeasureHint(gives_way=True))
    goes_on = pb.WorkerRequest(measure_hint=pb.MeasureHint())

    async def scenario(devices: Devices) -> None:
        async def come() -> None:
            async with devices.turn(CPU, (Priority.LIVE_MISS,)) as name:
                await devices.run(name, gives_way, timeout_s=1)

        async with devices.turn(CPU, (Priority.REFINEMENT,)) as name:
            coming = asyncio.create_task(come())
            while not bench.interrupted:
                await asyncio.sleep(0)
            gave_way = await devices.run(name, gives_way, timeout_s=1)
            assert (gave_way.id, gave_way.error.code) == (3, "DEVICE_WANTED")
            assert bench.asked.total() == 0
            await devices.run(name, goes_on, timeout_s=1)
            assert bench.asked.total() == 1
        await coming
        assert bench.asked.total() == 2

    with_devices(tmp_path, scenario, bench=bench)


def test_a_policy_that_changes_while_a_job_waits_its_turn_holds_it_back(tmp_path: Path) -> None:
    async def scenario(devices: Devices) -> None:
        held = asyncio.Event()
        release = asyncio.Event()
        ran = asyncio.Event()

        async def first() -> None:
            async with devices.turn(CPU, (1,)):
                held.set()
                await release.wait()

        async def second() -> None:
            async with devices.turn(CPU, (1,)):
                ran.set()

        tasks = [asyncio.create_task(first()), asyncio.create_task(second())]
        await held.wait()
        await devices.set_policy("cpu", "never", actor="ann")
        release.set()
        await tasks[0]
        await asyncio.sleep(0)
        assert not ran.is_set()
        await devices.set_policy("cpu", "always", actor="ann")
        async with asyncio.timeout(10):
            await tasks[1]

    with_devices(tmp_path, scenario)


@pytest.mark.parametrize(
    ("policy", "is_serving", "interrupted"),
    [("never", False, ["cpu"]), ("idle", True, ["cpu"]), ("idle", False, []), ("always", True, [])],
)
def test_what_is_under_way_gives_way_to_a_policy_that_forbids_it(
    tmp_path: Path, policy: str, is_serving: bool, interrupted: list[str]
) -> None:
    presence, bench = Presence(monotonic=time.monotonic), FakeBenchPool()

    async def scenario(devices: Devices) -> None:
        await devices.wait_for(CPU)
        presence.note("ann", CPU, is_serving=is_serving)
        async with devices.turn(CPU, (1,)):
            await devices.set_policy("cpu", policy, actor="ann")
            assert bench.interrupted == interrupted
        await devices.set_policy("cpu", policy, actor="ann")
        assert bench.interrupted == interrupted  # nothing is under way

    with_devices(tmp_path, scenario, presence=presence, bench=bench)


def test_only_a_device_of_exactly_this_kind_is_used(tmp_path: Path) -> None:
    async def scenario(devices: Devices) -> None:
        assert await devices.wait_for(CPU) == ("cpu",)
        with pytest.raises(NoDevice):
            await devices.wait_for(CpuDevice(CPU.model, (), CPU.libc))
        with pytest.raises(NoDevice):
            devices.require(GPU)

    with_devices(tmp_path, scenario)


def test_a_gpu_whose_power_limit_changes_is_found_by_those_who_see_the_new_one(
    tmp_path: Path,
) -> None:
    now_s = 100.0

    class Limited(FakeBenchPool):
        device = GPU
        looks = 0

        async def hello(self, device: str | None = None) -> pb.Pong:
            is_cpu = device == "cpu"
            return await super().hello() if is_cpu else self.as_pong(GPU)

        async def look(self, device: str) -> pb.Pong:
            self.looks += 1
            return self.as_pong(self.device)

        def as_pong(self, device: CudaDevice) -> pb.Pong:
            return pb.Pong(device=convert.device_to_proto(device))

    bench = Limited(devices=("cpu", "cuda:0"))
    limited, other = replace(GPU, power_limit_w=500), replace(GPU, model="B200")

    async def scenario(devices: Devices) -> None:
        nonlocal now_s
        assert await devices.wait_for(GPU) == ("cuda:0",)
        bench.device = limited
        now_s += HELLO_RETRY_S
        devices.require(limited)
        assert await devices.wait_for(limited) == ("cuda:0",)
        assert bench.looks == 1
        # Whoever sees another device does not have it looked at over and over.
        for device in (GPU, other):
            with pytest.raises(NoDevice):
                devices.require(device)
        now_s += HELLO_RETRY_S
        with pytest.raises(NoDevice):
            await devices.wait_for(other)
        assert bench.looks == 2
        assert await devices.wait_for(limited) == ("cuda:0",)

    with_devices(tmp_path, scenario, bench=bench, monotonic=lambda: now_s)


def test_a_device_that_disappears_is_told_until_it_works_again(tmp_path: Path) -> None:
    class Lost(FakeBenchPool):
        is_there = False

        async def run(
            self, request: pb.WorkerRequest, *, timeout_s: float, device: str | None = None
        ) -> pb.WorkerResponse:
            if self.is_there:
                return pb.WorkerResponse()
            raise WorkerStartFailed(kind="bench", detail="no such device", reproducer={})

    bench = Lost()

    async def scenario(devices: Devices) -> None:
        await devices.wait_for(CPU)
        with pytest.raises(WorkerStartFailed):
            await devices.run("cpu", pb.WorkerRequest(), timeout_s=1)
        (lost,) = devices.states()
        assert "no such device" in lost.problem
        assert not device_message(lost).is_worker_ready
        bench.is_there = True
        await devices.run("cpu", pb.WorkerRequest(), timeout_s=1)
        (found,) = devices.states()
        assert found.problem == ""
        assert device_message(found).is_worker_ready

    with_devices(tmp_path, scenario, bench=bench)


def test_an_unknown_policy_is_refused(tmp_path: Path) -> None:
    async def scenario(devices: Devices) -> None:
        with pytest.raises(InvalidRequest):
            await devices.set_policy("cpu", "sometimes", actor="ann")
        with pytest.raises(InvalidRequest):
            await devices.set_policy("cuda", "never", actor="ann")

    with_devices(tmp_path, scenario)


@pytest.mark.parametrize(
    ("script", "idle"),
    [("echo 3", True), ("echo 97", False), ("echo '[N/A]'", False), ("exec sleep 600", False)],
)
def test_a_gpu_whose_tool_says_nothing_counts_as_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, idle: bool
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if "sleep" in script:
        monkeypatch.setattr(devices, "UTILISATION_LIMIT_S", 0.2)
    assert asyncio.run(devices._is_idle("0000:17:00.0")) is idle


def test_a_gpu_is_asked_for_where_its_worker_found_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only some are visible, the first of those is not the first of the machine."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$1" = --id=0000:17:00.0 ] && echo 97 || echo 0\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    class Elsewhere(FakeBenchPool):
        async def hello(self, device: str | None = None) -> pb.Pong:
            return pb.Pong(device=convert.device_to_proto(GPU), bus_id="0000:17:00.0")

    async def scenario(devices: Devices) -> None:
        await devices.set_policy("cuda", "idle", actor="ann")
        assert await devices.wait_for(GPU) == ("cuda:0",)
        assert not await devices.may_use(GPU)

    with_devices(tmp_path, scenario, bench=Elsewhere(devices=("cuda:0",)))


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 4),
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("3", 1),
        ("2, 0", 2),
        ("1,-1,2", 1),
        ("0,4,1", 1),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,1", 2),
        ("MIG-6f1b6c0e-0b0a-5c6e-9a39-5d1c8f0a7d11", 1),
    ],
)
def test_the_gpus_of_a_daemon_are_those_that_its_environment_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.setattr(devices, "DEVICE_NODES", tmp_path)
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert default_names(environment) == ("cpu", *(f"cuda:{index}" for index in range(count)))


def test_turns_are_given_by_order_then_arrival() -> None:
    served: list[str] = []

    async def scenario() -> None:
        turns = Turns(1)
        release = asyncio.Event()

        async def hold() -> None:
            async with turns.take((0,)):
                await release.wait()

        async def serve(name: str, order: tuple[int, ...]) -> None:
            async with turns.take(order):
                served.append(name)

        tasks = [asyncio.create_task(hold())]
        await asyncio.sleep(0)
        for name, order in (("b", (2,)), ("a", (1,)), ("b later", (2,)), ("gone", (0,))):
            tasks.append(asyncio.create_task(serve(name, order)))
        await asyncio.sleep(0)
        tasks[-1].cancel()
        release.set()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())
    assert served == ["a", "b", "b later"]


TWO = ("cuda:0", "cuda:1")


class TwoGpus(FakeBenchPool):
    """Two of a kind: the second answers when it is let."""

    def __init__(self) -> None:
        super().__init__(devices=TWO)
        self.is_let = asyncio.Event()
        self.is_let.set()

    async def hello(self, device: str | None = None) -> pb.Pong:
        if device == TWO[1]:
            await self.is_let.wait()
        return pb.Pong(device=convert.device_to_proto(GPU))


async def turn_of(devices: Devices) -> str:
    async with asyncio.timeout(10), devices.turn(GPU, (1,)) as name:
        return name


def test_a_device_that_answers_late_does_what_the_first_must_not(tmp_path: Path) -> None:
    bench = TwoGpus()

    async def scenario(devices: Devices) -> None:
        bench.is_let.clear()
        await devices.set_policy("cuda:0", "never", actor="ann")
        using = asyncio.create_task(turn_of(devices))
        assert await devices.wait_for(GPU) == ("cuda:0",)
        assert not using.done()
        bench.is_let.set()
        assert await using == "cuda:1"

    with_devices(tmp_path, scenario, bench=bench)


def test_a_device_that_must_not_be_used_holds_nothing_up_that_another_may_do(
    tmp_path: Path,
) -> None:
    async def scenario(devices: Devices) -> None:
        await devices.set_policy("cuda:0", "never", actor="ann")
        assert await turn_of(devices) == "cuda:1"

    with_devices(tmp_path, scenario, bench=TwoGpus())


def test_of_several_devices_the_first_that_may_be_used_again_is_taken(tmp_path: Path) -> None:
    async def scenario(devices: Devices) -> None:
        await devices.set_policy("cuda", "never", actor="ann")
        using = asyncio.create_task(turn_of(devices))
        await asyncio.sleep(0)
        await devices.set_policy("cuda:1", "always", actor="ann")
        assert await using == "cuda:1"

    with_devices(tmp_path, scenario, bench=TwoGpus())


def test_a_device_that_is_held_is_not_waited_for_where_another_is_free(tmp_path: Path) -> None:
    async def scenario(devices: Devices) -> None:
        while await devices.wait_for(GPU) != TWO:
            await asyncio.sleep(0)
        async with devices.turn(GPU, (1,)) as held:
            assert {held, await turn_of(devices)} == set(TWO)

    with_devices(tmp_path, scenario, bench=TwoGpus())


def test_a_measurement_says_which_of_several_devices_it_was_on(tmp_path: Path) -> None:
    async def scenario(devices: Devices) -> None:
        await devices.set_policy("cuda:0", "never", actor="ann")
        workshop = Workshop(
            FakeCompilePool(),
            devices,
            compile_workers=1,
            limits=Limits(1.0, 1 << 20),
            observer=Metrics(version="1", compiler_version="1"),
            seeds=random.Random(1),
            monotonic=time.monotonic,
        )
        measured = await workshop.measure(
            "", Fallback(), {}, [], threads=1, care=Care(), device=GPU, order=(1,)
        )
        copied = await workshop.measure_copy(threads=1, device=GPU, order=(1,))
        assert measured.device == copied.device == "cuda:1"

    with_devices(tmp_path, scenario, bench=TwoGpus())
