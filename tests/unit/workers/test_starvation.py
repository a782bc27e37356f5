from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import psutil

from nearhint_daemon.workers.pool import CompilePool
from nearhint_daemon.workers.process import WorkerCommand
from nearhint_daemon.workers.starvation import Starvation
from nearhint_proto.v1 import worker_pb2 as pb

SCRIPTED = "tests.unit.workers.scripted_worker"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
SPIN = "while True: pass"


def until_it_sleeps(pid: int) -> None:
    """Returns once the process is on no CPU, and wants none."""
    end = time.monotonic() + 30
    while psutil.Process(pid).status() != psutil.STATUS_SLEEPING:
        assert time.monotonic() < end, "the deadline passed"
        time.sleep(0.01)  # the kernel tells nobody


def test_waiting_for_a_cpu_is_counted_and_sleeping_is_not() -> None:
    cpu = min(os.sched_getaffinity(0))
    pin = f"import os; os.sched_setaffinity(0, {{{cpu}}})\n"
    spinners = [subprocess.Popen([sys.executable, "-c", pin + SPIN]) for _ in range(2)]
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert sleeper.stdout is not None
        sleeper.stdout.readline()
        until_it_sleeps(sleeper.pid)
        starved, asleep = Starvation(spinners[0].pid), Starvation(sleeper.pid)
        total_s = idle_s = 0.0
        end = time.monotonic() + 30
        while total_s < 0.2 and time.monotonic() < end:
            time.sleep(0.05)  # only the kernel can say when another process got the CPU
            total_s += starved.since_last_s()
            idle_s += asleep.since_last_s()
        assert total_s >= 0.2
        assert idle_s == 0.0
    finally:
        for process in (*spinners, sleeper):
            process.kill()
            process.communicate()


def test_a_process_that_is_gone_starved_for_no_time() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert Starvation(process.pid).since_last_s() == 0.0


def test_a_job_on_a_busy_machine_is_not_taken_for_a_hang() -> None:
    """The worker shares one CPU with others and needs more than its deadline."""
    cpu = min(os.sched_getaffinity(0))
    pin = f"import os; os.sched_setaffinity(0, {{{cpu}}})\n"

    async def scenario() -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, *sys.path])}
        pool = CompilePool(
            1, command=WorkerCommand(kind="compile", module=SCRIPTED, variables=environment)
        )
        spin = pb.WorkerRequest(id=1, compile_variant=pb.CompileVariant(schedule="spin 0.01"))
        await pool.run(spin, timeout_s=30)
        (pid,) = pool.pids()
        os.sched_setaffinity(pid, {cpu})
        spinners = [subprocess.Popen([sys.executable, "-c", pin + SPIN]) for _ in range(3)]
        try:
            spin = pb.WorkerRequest(id=2, compile_variant=pb.CompileVariant(schedule="spin 1.5"))
            await pool.run(spin, timeout_s=1)
        finally:
            for process in spinners:
                process.kill()
                process.wait()
            await pool.stop()

    asyncio.run(scenario())
