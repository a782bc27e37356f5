"""A place for one worker: starts it when needed, replaces it when lost, stops it when idle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias

from nearhint_daemon.workers import wire
from nearhint_daemon.workers.errors import (
    DeviceWanted,
    PoolStopped,
    WorkerLost,
    WorkerStartFailed,
)
from nearhint_daemon.workers.process import WorkerCommand, WorkerProcess
from nearhint_proto.v1 import worker_pb2 as pb

OnRestart: TypeAlias = Callable[[str, str], None]
"""Called with the worker's kind and a reason (`REASONS`) whenever a worker was lost."""
REASONS = ("died", "hung", "start_failed", "cancelled", "recycled")
"""Why a worker was lost: `recycled` is one that left between jobs, as after an overrun."""
LAST_WORDS = 200
"""Characters of a worker's last line that its failure to start tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """How fast lost workers are replaced.

    A loss is made good at once; from the third in a row on with a growing delay, so that a crash
    loop does not eat a core. A worker that does not even start is retried `start_attempts` times,
    and then jobs fail at once until `start_pause_s` have passed.
    """

    free_losses: int = 2
    first_delay_s: float = 0.1
    delay_limit_s: float = 1.0
    start_attempts: int = 2
    start_pause_s: float = 10.0

    def delay_s(self, losses: int) -> float:
        """The delay before a start, after `losses` in a row."""
        if losses <= self.free_losses:
            return 0.0
        return float(
            min(self.delay_limit_s, self.first_delay_s * 2 ** min(30, losses - self.free_losses))
        )


class _LeftBefore(Exception):
    """A worker that left after its last answer, before it could see this job."""

    def __init__(self, loss: WorkerLost) -> None:
        super().__init__()
        self.loss = loss


class Slot:
    """Runs one job at a time on its worker."""

    def __init__(
        self,
        command: WorkerCommand,
        *,
        on_restart: OnRestart,
        idle_stop_s: float | None,
        restarts: Restarts,
    ) -> None:
        self.command = command
        self.pong: pb.Pong | None = None
        self._on_restart = on_restart
        self._idle_stop_s = idle_stop_s
        self._restarts = restarts
        self._lock = asyncio.Lock()
        self._process: WorkerProcess | None = None
        self._losses = 0
        self._start_failure: tuple[float, WorkerLost] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self._is_wanted = False
        """By somebody else, while a job waits for its worker to start."""

    @property
    def is_busy(self) -> bool:
        """Whether a job, or the start of a worker, is under way."""
        return self._lock.locked()

    @property
    def pid(self) -> int | None:
        """The worker's process, if there is one."""
        return None if self._process is None else self._process.pid

    def interrupt(self) -> None:
        """Asks the job of now to give way, if there is one and it can."""
        if self.is_busy:
            self._is_wanted = True
            if self._process is not None:
                self._process.interrupt()

    def warm_up(self) -> None:
        """Starts the worker in the background, if there is none."""
        if not self._is_stopped:
            self._spawn_task(self._warm_up())

    async def hello(self) -> pb.Pong:
        """What the worker said of itself when it was ready; starts one if there never was any."""
        if self.pong is None:
            async with self._lock:
                await self._ready()
        assert self.pong is not None
        return self.pong

    async def look(self) -> pb.Pong:
        """What the worker says of itself now, once it has done what it is doing.

        Raises `WorkerDied`, `WorkerHung`, `WorkerStartFailed` or `PoolStopped`.
        """
        ping = pb.WorkerRequest(ping=pb.Ping())
        answer = await self.run(ping, timeout_s=self.command.start_timeout_s)
        self.pong = answer.pong
        return answer.pong

    async def run(self, request: pb.WorkerRequest, *, timeout_s: float) -> pb.WorkerResponse:
        """Runs one job; the deadline counts from when the worker is ready for it.

        Raises `WorkerDied`, `WorkerHung`, `WorkerStartFailed` or `PoolStopped`.
        """
        self._is_wanted = False
        async with self._lock:
            try:
                try:
                    response = await self._attempt(request, timeout_s)
                except _LeftBefore:
                    response = await self._attempt(request, timeout_s)
            except _LeftBefore as left:  # twice: it is the job that makes them leave
                raise left.loss from None
            finally:
                self._arm_idle_timer()
                if self._process is None:
                    self.warm_up()
            self._losses = 0
            return response

    async def _attempt(self, request: pb.WorkerRequest, timeout_s: float) -> pb.WorkerResponse:
        process = await self._ready()
        if self._is_wanted and request.measure_hint.gives_way:
            return wire.refused(request, DeviceWanted())
        try:
            return await process.exchange(request, timeout_s=timeout_s)
        except WorkerLost as loss:
            self._raise_if_stopped()
            self._losses += 1
            await self._discard(process, "recycled" if process.has_left else loss.reason)
            if process.has_left:
                raise _LeftBefore(loss) from None
            raise
        except asyncio.CancelledError:
            # The job may run on for long, and its answer would be taken for the next one's.
            await asyncio.shield(self._discard(process, "cancelled"))
            raise

    async def stop(self) -> None:
        """Kills the worker, whatever it does, and frees everything."""
        self._is_stopped = True
        self._disarm_idle_timer()
        for task in tuple(self._background):
            task.cancel()
        if self._process is not None:
            await self._process.kill()
        await asyncio.gather(*self._background, return_exceptions=True)
        async with self._lock:  # a job that ran has seen its worker die
            process, self._process = self._process, None
            if process is not None:
                await process.close()

    async def _warm_up(self) -> None:
        with contextlib.suppress(WorkerStartFailed, PoolStopped):  # the next job will see them
            async with self._lock:
                await self._ready()
            self._arm_idle_timer()

    async def _ready(self) -> WorkerProcess:
        """A living worker that has answered a Ping; the lock is held."""
        self._disarm_idle_timer()
        self._raise_if_stopped()
        loop = asyncio.get_running_loop()
        if self._process is not None and self._process.is_alive:
            return self._process
        if self._process is not None:
            await self._discard(self._process, "recycled")
        if self._start_failure is not None and loop.time() < self._start_failure[0]:
            raise _start_failed(self._start_failure[1])
        await asyncio.sleep(self._restarts.delay_s(self._losses))
        for attempt in range(self._restarts.start_attempts):
            try:
                return await self._start()
            except WorkerLost as loss:
                self._on_restart(self.command.kind, WorkerStartFailed.reason)
                if attempt + 1 == self._restarts.start_attempts:
                    self._start_failure = (loop.time() + self._restarts.start_pause_s, loss)
                    raise _start_failed(loss) from loss
        raise AssertionError("start_attempts is at least 1")

    async def _start(self) -> WorkerProcess:
        self._raise_if_stopped()
        self._process = process = WorkerProcess(self.command)
        try:
            answer = await process.exchange(
                pb.WorkerRequest(ping=pb.Ping()), timeout_s=self.command.start_timeout_s
            )
        except BaseException:
            self._process = None
            await asyncio.shield(process.close())
            self._raise_if_stopped()
            raise
        self._start_failure = None
        self.pong = answer.pong
        process.ended.add_done_callback(lambda _: self._on_end(process))
        return process

    def _raise_if_stopped(self) -> None:
        if self._is_stopped:
            raise PoolStopped("the pool is stopped")

    def _on_end(self, process: WorkerProcess) -> None:
        """The worker ended. If no job loses it, nobody else would notice until the next one."""
        if process is self._process and not self._is_stopped:
            self._spawn_task(self._replace(process))

    async def _replace(self, process: WorkerProcess) -> None:
        async with self._lock:
            if process is not self._process:
                return
            await self._discard(process, "recycled")
        await self._warm_up()

    async def _discard(self, process: WorkerProcess, reason: str) -> None:
        if process is self._process:
            self._process = None
            self._on_restart(self.command.kind, reason)
        await process.close()

    def _arm_idle_timer(self) -> None:
        self._disarm_idle_timer()
        if self._idle_stop_s is not None and not self._is_stopped:
            self._idle_timer = asyncio.get_running_loop().call_later(
                self._idle_stop_s, lambda: self._spawn_task(self._stop_if_idle())
            )

    def _disarm_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    async def _stop_if_idle(self) -> None:
        if self.is_busy:
            return
        async with self._lock:
            process, self._process = self._process, None
            if process is not None:
                await process.close()

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _start_failed(loss: WorkerLost) -> WorkerStartFailed:
    """With the last that the worker said: a device or a module that is not there."""
    said = loss.reproducer.get("stderr.txt", "").strip().rpartition("\n")[2].strip()
    detail = f"{loss.detail}: {said[:LAST_WORDS]}" if said else loss.detail
    return WorkerStartFailed(kind=loss.kind, detail=detail, reproducer=loss.reproducer)
