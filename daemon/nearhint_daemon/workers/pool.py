"""Pools of workers: the face of this package for the daemon's process.

    compile_pool = CompilePool(2, on_restart=...)
    compile_pool.start()
    response = await compile_pool.run(request, timeout_s=60.0)
    await compile_pool.stop()

A job that kills its worker, or outlives its deadline, fails alone: the worker is replaced and the
jobs behind it run. `WorkerResponse.error` is an answer, not an exception: the worker lives on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from nearhint_daemon.workers.errors import PoolStopped
from nearhint_daemon.workers.process import WorkerCommand
from nearhint_daemon.workers.slot import OnRestart, Restarts, Slot
from nearhint_proto.v1 import worker_pb2 as pb

COMPILE_MODULE = "nearhint_daemon.workers.compile_worker"
BENCH_MODULE = "nearhint_daemon.workers.bench_worker"
DEFAULT_RESTARTS = Restarts()


def _ignore(kind: str, reason: str) -> None:
    """The `on_restart` of a pool that nobody watches."""


class CompilePool:
    """`count` workers that lower and compile; first come, first served."""

    def __init__(
        self,
        count: int,
        *,
        on_restart: OnRestart = _ignore,
        idle_stop_s: float | None = 60.0,
        restarts: Restarts = DEFAULT_RESTARTS,
        command: WorkerCommand | None = None,
        scratch_root: Path | None = None,
    ) -> None:
        chosen = command or WorkerCommand(
            kind="compile", module=COMPILE_MODULE, scratch_root=scratch_root
        )
        self._slots = tuple(
            Slot(chosen, on_restart=on_restart, idle_stop_s=idle_stop_s, restarts=restarts)
            for _ in range(count)
        )
        self._free = deque(self._slots)
        self._turn = asyncio.Semaphore(count)
        self._is_stopped = False

    def start(self) -> None:
        """Starts one worker in the background; the others start with the first jobs."""
        self._slots[0].warm_up()

    async def toolchain(self) -> tuple[str, ...]:
        """What the workers compile with, e.g. ("cc 12.2.0", "triton 3.7.1").

        Waits for the first worker; raises `WorkerStartFailed`.
        """
        return tuple((await self._slots[0].hello()).toolchain)

    async def run(self, request: pb.WorkerRequest, *, timeout_s: float) -> pb.WorkerResponse:
        """Runs one job on the next free worker. `timeout_s` counts from when it is its turn.

        Raises `WorkerDied`, `WorkerHung` (both with a reproducer), `WorkerStartFailed` or
        `PoolStopped`. A cancelled job's worker is killed.
        """
        async with self._turn:
            if self._is_stopped:
                raise PoolStopped("the pool is stopped")
            slot = self._take()
            try:
                return await slot.run(request, timeout_s=timeout_s)
            finally:
                self._free.append(slot)

    def _take(self) -> Slot:
        """A free slot; one that has a worker before one that would have to start it."""
        warm = next((slot for slot in self._free if slot.pid is not None), self._free[0])
        self._free.remove(warm)
        return warm

    def pids(self) -> tuple[int, ...]:
        """The processes of the workers."""
        return tuple(slot.pid for slot in self._slots if slot.pid is not None)

    async def stop(self) -> None:
        """Kills all workers with their children; jobs that run or wait raise `PoolStopped`."""
        self._is_stopped = True
        await asyncio.gather(*(slot.stop() for slot in self._slots))


class BenchPool:
    """One worker for each device ("cpu", "cuda:0", ...), so that no two jobs share a device."""

    def __init__(
        self,
        devices: Sequence[str],
        *,
        on_restart: OnRestart = _ignore,
        idle_stop_s: float | None = None,
        restarts: Restarts = DEFAULT_RESTARTS,
        commands: Mapping[str, WorkerCommand] | None = None,
        scratch_root: Path | None = None,
    ) -> None:
        self._slots = {
            device: Slot(
                (commands or {}).get(device)
                or WorkerCommand(
                    kind="bench",
                    module=BENCH_MODULE,
                    arguments=("--device", device),
                    scratch_root=scratch_root,
                ),
                on_restart=on_restart,
                idle_stop_s=idle_stop_s,
                restarts=restarts,
            )
            for device in devices
        }

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that have a worker."""
        return tuple(self._slots)

    def start(self) -> None:
        """Starts all workers in the background."""
        for slot in self._slots.values():
            slot.warm_up()

    async def hello(self, device: str | None = None) -> pb.Pong:
        """What the worker of `device` (default: the first) runs on; raises `WorkerStartFailed`."""
        return await self._slot(device).hello()

    async def look(self, device: str) -> pb.Pong:
        """What the worker of `device` runs on now: it is asked, after the jobs that came before.

        Raises as `CompilePool.run` does.
        """
        return await self._slot(device).look()

    async def run(
        self, request: pb.WorkerRequest, *, timeout_s: float, device: str | None = None
    ) -> pb.WorkerResponse:
        """Runs one job on `device` (default: the first), after those that came before it.

        Raises as `CompilePool.run` does. `timeout_s` counts from when it is the job's turn.
        """
        return await self._slot(device).run(request, timeout_s=timeout_s)

    def interrupt(self, device: str) -> None:
        """Asks the job that runs on `device` to give way; one that cannot goes on."""
        self._slot(device).interrupt()

    def _slot(self, device: str | None) -> Slot:
        return self._slots[self.devices[0] if device is None else device]

    def pids(self) -> tuple[int, ...]:
        """The processes of the workers."""
        return tuple(slot.pid for slot in self._slots.values() if slot.pid is not None)

    async def stop(self) -> None:
        """Kills all workers with their children; jobs that run or wait raise `PoolStopped`."""
        await asyncio.gather(*(slot.stop() for slot in self._slots.values()))
