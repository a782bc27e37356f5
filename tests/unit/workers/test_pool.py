"""The pools replace workers that die, hang or lie, and lose no job but the guilty one."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.bars import NEXT_JOB_S, NOTICED_S, SLACK
from tests.descriptors import descriptors

from nearhint_daemon.workers.errors import (
    PoolStopped,
    WorkerDied,
    WorkerHung,
    WorkerStartFailed,
)
from nearhint_daemon.workers.pool import BenchPool, CompilePool
from nearhint_daemon.workers.process import WorkerCommand
from nearhint_daemon.workers.slot import REASONS, Restarts
from nearhint_daemon.workers.wire import MAX_FRAME_BYTES
from nearhint_proto.v1 import worker_pb2 as pb

DEADLINE_S = 20.0
NUMBERED = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}
"""Which device is called cuda:0."""


def command(folder: Path, *, device: str = "cpu") -> WorkerCommand:
    here = str(Path(__file__).parent)
    paths = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    return WorkerCommand(
        kind="compile",
        module="scripted_worker",
        arguments=("--device", device),
        scratch_root=folder,
        variables={**os.environ, "PYTHONPATH": paths, "SECRET_TOKEN": "x", **NUMBERED},
    )


def job(script: str, number: int = 1) -> pb.WorkerRequest:
    return pb.WorkerRequest(id=number, compile_variant=pb.CompileVariant(schedule=script))


class Watched:
    """A pool with what its callback was told."""

    def __init__(self, folder: Path, count: int, idle_stop_s: float | None, device: str) -> None:
        self.lost: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.pool = CompilePool(
            count,
            on_restart=lambda kind, reason: self.lost.put_nowait((kind, reason)),
            idle_stop_s=idle_stop_s,
            restarts=Restarts(start_pause_s=60.0),
            command=command(folder, device=device),
        )

    async def run(self, script: str, number: int = 1, timeout_s: float = DEADLINE_S) -> list[str]:
        response = await self.pool.run(job(script, number), timeout_s=timeout_s)
        assert response.id == number
        assert response.WhichOneof("result") == "schedules", response
        return list(response.schedules.schedules)


@asynccontextmanager
async def pool(
    folder: Path, *, count: int = 1, idle_stop_s: float | None = None, device: str = "cpu"
) -> AsyncGenerator[Watched]:
    watched = Watched(folder, count, idle_stop_s, device)
    try:
        yield watched
    finally:
        pids, losses = watched.pool.pids(), watched.lost.qsize()
        await watched.pool.stop()
        assert watched.lost.qsize() == losses
        assert [pid for pid in pids if psutil.pid_exists(pid)] == []
        assert list(folder.iterdir()) == []


async def until(check: Callable[[], bool]) -> None:
    """Lets the loop turn until `check` holds: for what announces itself to nobody."""
    end = time.monotonic() + DEADLINE_S
    while not check():
        assert time.monotonic() < end, "the deadline passed"
        await asyncio.sleep(0)


async def until_gone(processes: Sequence[psutil.Process]) -> None:
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, timeout=DEADLINE_S)
    assert alive == []


def scenario(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        asyncio.run(asyncio.wait_for(test(tmp_path), 60.0))

    run.__name__ = test.__name__
    return run


@scenario
async def test_jobs_run_in_a_clean_process(folder: Path) -> None:
    async with pool(folder) as watched:
        word, pid, cwd, *variables = await watched.run("hello")
        assert word == "hello"
        assert int(pid) != os.getpid()
        assert Path(cwd).parent == folder
        assert "SECRET_TOKEN" not in variables
        assert NUMBERED.keys() <= set(variables)
        assert os.stat(cwd).st_mode & 0o777 == 0o700
        assert await watched.pool.toolchain() == ("cc 1.2.3",)
        assert (await watched.run("hello"))[1] == pid


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ("signal SIGSEGV", "killed by SIGSEGV"),
        ("signal SIGABRT", "killed by SIGABRT"),
        ("exit 0", "exited with status 0"),
        ("exit 7", "exited with status 7"),
        ("close", "stream ended"),
        ("shut", "killed by SIGSEGV"),
        ("garbage", "announces 4294967295 bytes"),
    ],
)
def test_a_dead_worker_is_noticed_and_the_next_job_served(
    tmp_path: Path, script: str, detail: str
) -> None:
    async def test(folder: Path) -> None:
        async with pool(folder) as watched:
            await watched.run("hello")
            started = time.monotonic()
            with pytest.raises(WorkerDied, match=detail) as caught:
                await watched.run(script)
            noticed = time.monotonic()
            assert noticed - started < NOTICED_S
            assert caught.value.code == "WORKER_DIED"
            assert script in caught.value.reproducer["schedule.txt"]
            assert await watched.lost.get() == ("compile", "died")
            assert (await watched.run("hello", 2))[0] == "hello"
            assert time.monotonic() - noticed < NEXT_JOB_S

    asyncio.run(asyncio.wait_for(test(tmp_path), 60.0))


@scenario
async def test_a_hanging_worker_is_killed_at_its_deadline(folder: Path) -> None:
    async with pool(folder) as watched:
        await watched.run("hello")
        started = time.monotonic()
        with pytest.raises(
            WorkerHung, match=r"no answer to compile_variant within 0.1 s"
        ) as caught:
            await watched.run("hang", timeout_s=0.1)
        assert "; it was in answer (scripted_worker.py:" in caught.value.detail
        assert 'scripted_worker.py", line' in caught.value.reproducer["stderr.txt"]
        assert time.monotonic() - started < 0.1 + NOTICED_S
        assert await watched.lost.get() == ("compile", "hung")
        assert (await watched.run("hello"))[0] == "hello"


@scenario
async def test_children_of_a_worker_die_with_it(folder: Path) -> None:
    async with pool(folder) as watched:
        pid = int((await watched.run("hello"))[1])
        running = asyncio.create_task(watched.run("children 4242", timeout_s=DEADLINE_S))
        worker = psutil.Process(pid)
        await until(lambda: sum("4242" in p.cmdline() for p in worker.children(True)) >= 2)
        children = worker.children(recursive=True)
        await watched.pool.stop()
        with pytest.raises(PoolStopped):
            await running
        await until_gone(children)


@scenario
async def test_no_other_job_is_lost(folder: Path) -> None:
    async with pool(folder, count=2) as watched:
        scripts = ["signal SIGKILL" if number % 4 == 1 else "hello" for number in range(12)]
        answers = await asyncio.gather(
            *(watched.run(script, number) for number, script in enumerate(scripts)),
            return_exceptions=True,
        )
        for script, answer in zip(scripts, answers, strict=True):
            if script == "hello":
                assert isinstance(answer, list), answer
            else:
                assert isinstance(answer, WorkerDied)


@scenario
async def test_a_failed_job_is_an_answer_and_the_worker_lives_on(folder: Path) -> None:
    async with pool(folder) as watched:
        pid = (await watched.run("hello"))[1]
        response = await watched.pool.run(job("raise oh no"), timeout_s=DEADLINE_S)
        assert response.error.code == "INTERNAL"
        assert "oh no" in response.error.message
        assert "answer" in response.error.reproducer["traceback.txt"]
        assert (await watched.run("hello"))[1] == pid


@pytest.mark.parametrize("script", ["x" * MAX_FRAME_BYTES, f"long {MAX_FRAME_BYTES}"])
def test_a_message_that_is_too_long_fails_its_job_and_the_worker_lives_on(
    tmp_path: Path, script: str
) -> None:
    async def test(folder: Path) -> None:
        async with pool(folder) as watched:
            pid = (await watched.run("hello"))[1]
            response = await watched.pool.run(job(script, 7), timeout_s=DEADLINE_S)
            assert (response.id, response.error.code) == (7, "MESSAGE_TOO_LARGE")
            assert f"at most {MAX_FRAME_BYTES}" in response.error.message
            assert (await watched.run("hello"))[1] == pid
            assert watched.lost.empty()

    scenario(test)(tmp_path)


@scenario
async def test_a_worker_that_the_system_killed_is_told_from_one_that_its_job_ended(
    folder: Path,
) -> None:
    async with pool(folder) as watched:
        for script, code in (("signal SIGKILL", "WORKER_KILLED"), ("close", "WORKER_DIED")):
            with pytest.raises(WorkerDied) as caught:
                await watched.run(script)
            assert caught.value.code == code
            assert await watched.lost.get() == ("compile", "died")


@scenario
async def test_a_reproducer_holds_the_last_words(folder: Path) -> None:
    async with pool(folder) as watched:
        with pytest.raises(WorkerDied) as caught:
            await watched.run("say corrupted double-linked list")
        assert "corrupted double-linked list" in caught.value.reproducer["stderr.txt"]
        assert "python" in caught.value.reproducer["versions.txt"]


@scenario
async def test_a_damaged_worker_is_replaced_after_its_answer(folder: Path) -> None:
    async with pool(folder) as watched:
        pid = (await watched.run("damage"))[1]
        assert await watched.lost.get() == ("compile", "recycled")
        assert (await watched.run("hello"))[1] != pid


@scenario
async def test_a_cancelled_job_frees_its_worker(folder: Path) -> None:
    async with pool(folder) as watched:
        await watched.run("hello")
        running = asyncio.create_task(watched.run("hang"))
        await until(lambda: watched.pool._slots[0].is_busy)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await watched.lost.get() == ("compile", "cancelled")
        assert (await watched.run("hello"))[0] == "hello"


@scenario
async def test_an_idle_worker_stops_and_comes_back(folder: Path) -> None:
    async with pool(folder, idle_stop_s=0.05) as watched:
        worker = psutil.Process(int((await watched.run("hello"))[1]))
        await until_gone([worker])
        await until(lambda: watched.pool.pids() == ())
        assert watched.lost.empty()
        assert (await watched.run("hello"))[0] == "hello"


@scenario
async def test_a_worker_that_never_starts_fails_jobs_at_once(folder: Path) -> None:
    async with pool(folder, device="broken") as watched:
        with pytest.raises(WorkerStartFailed, match=r"status 1: .*never starts") as caught:
            await watched.run("hello")
        assert "never starts" in caught.value.reproducer["stderr.txt"]
        assert watched.lost.get_nowait() == ("compile", "start_failed")
        started = time.monotonic()
        with pytest.raises(WorkerStartFailed):
            await watched.run("hello")
        assert time.monotonic() - started < 0.05 * SLACK


@scenario
async def test_a_stopped_pool_refuses_jobs(folder: Path) -> None:
    async with pool(folder) as watched:
        running = asyncio.create_task(watched.run("hang"))
        waiting = asyncio.create_task(watched.run("hello"))
        await until(lambda: watched.pool._slots[0].is_busy)
        await watched.pool.stop()
        for task in (running, waiting):
            with pytest.raises(PoolStopped):
                await task
        with pytest.raises(PoolStopped):
            await watched.run("hello")


@scenario
async def test_a_crash_loop_is_slowed_down_but_never_past_the_bar(folder: Path) -> None:
    restarts = Restarts()
    delays = [restarts.delay_s(losses) for losses in range(1000)]
    assert delays[:3] == [0.0, 0.0, 0.0]
    assert delays == sorted(delays)
    assert delays[-1] == restarts.delay_limit_s < NEXT_JOB_S / 2
    assert {"died", "hung", "start_failed", "cancelled", "recycled"} == set(REASONS)


@scenario
async def test_each_device_has_a_worker_of_its_own(folder: Path) -> None:
    commands = {name: command(folder, device=name) for name in ("cpu", "cuda:0")}
    bench = BenchPool(("cpu", "cuda:0"), commands=commands)
    try:
        bench.start()
        pids = [
            (await bench.run(job("hello"), timeout_s=DEADLINE_S, device=device)).schedules.schedules
            for device in bench.devices
        ]
        assert len({pid for _, pid, *_ in pids}) == 2
        assert (await bench.hello()).toolchain == ["cc 1.2.3"]
        looks = [(await bench.look("cpu")).ready_s for _ in range(2)]
        assert looks == [2.0, 3.0]  # it is asked anew each time
        assert (await bench.hello()).ready_s == 3.0
    finally:
        await bench.stop()


@pytest.mark.parametrize("is_warmed_up", [False, True])
def test_who_wants_a_device_whose_worker_is_starting_is_heard(
    tmp_path: Path, is_warmed_up: bool
) -> None:
    """For this job, or in the background."""

    async def test(folder: Path) -> None:
        fifo = folder / "fifo"
        os.mkfifo(fifo)
        bench = BenchPool(("cpu",), commands={"cpu": command(folder, device=f"late {fifo}")})
        gives_way = pb.WorkerRequest(id=3, measure_hint=pb.MeasureHint(gives_way=True))
        try:
            if is_warmed_up:
                bench.start()
                await until(lambda: bench.pids() != ())
            asked = asyncio.ensure_future(bench.run(gives_way, timeout_s=DEADLINE_S))
            await until(lambda: bench.pids() != ())
            await asyncio.sleep(0)
            bench.interrupt("cpu")
            await asyncio.to_thread(fifo.write_bytes, b"now")
            assert ((await asked).id, asked.result().error.code) == (3, "DEVICE_WANTED")
            again = await bench.run(gives_way, timeout_s=DEADLINE_S)
            assert "no job" in again.error.message  # this worker was asked
        finally:
            await bench.stop()

    scenario(test)(tmp_path)


@scenario
async def test_descriptors_do_not_grow_with_crashes(folder: Path) -> None:
    async with pool(folder) as watched:
        await watched.run("hello")
        before = descriptors()
        for _ in range(5):
            with pytest.raises(WorkerDied):
                await watched.run("exit 1")
        await watched.run("hello")
        assert descriptors() <= before


@pytest.mark.parametrize("lacks", ["folder", "process"])
def test_a_worker_that_the_system_cannot_start_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    scratch = tmp_path / "absent" if lacks == "folder" else tmp_path
    if lacks == "process":
        monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))

    async def scenario() -> None:
        few = CompilePool(1, command=command(scratch))
        before = descriptors()
        with pytest.raises(WorkerStartFailed, match="No such file"):
            await few.toolchain()
        assert descriptors() <= before
        await few.stop()

    asyncio.run(scenario())
    assert list(tmp_path.iterdir()) == []
