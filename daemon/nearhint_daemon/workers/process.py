"""One worker's process, seen from the daemon: spawned, talked to, watched, killed.

Spawned, never forked (SQLite and gRPC do not survive a fork), in a session of its own so that it
can be killed with its children; it inherits one end of a socket pair and nothing else. Its death
is noticed through a pidfd, whoever else holds the socket.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearhint_daemon.workers import scratch, wire
from nearhint_daemon.workers.errors import (
    FrameInvalid,
    MessageTooLarge,
    WorkerDied,
    WorkerHung,
    WorkerKilled,
)
from nearhint_daemon.workers.exits import GIVE_WAY, RECYCLED, TELL
from nearhint_daemon.workers.reproducer import for_lost_worker
from nearhint_daemon.workers.stacks import innermost
from nearhint_daemon.workers.starvation import Deadline
from nearhint_proto.v1 import worker_pb2 as pb

KEPT_VARIABLES = (
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "PATH",
    "PYTHONHASHSEED",
    "PYTHONPATH",
    "TZ",
)
"""What a worker sees of the daemon's environment."""
_LOG_TAIL_BYTES = 8192
_REAP_S = 5.0
_LAST_WORDS_S = 0.1
"""How long a process whose stream ended may take to end, where it may run, or the reverse."""
_STACKS_S = 1.0
"""How long a worker that hangs, at the lowest priority, may take to say where."""
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand:
    """How a kind of worker is started. `module` is run with `--fd N --parent PID` and `arguments`.

    `scratch_root` is where its private folder is made (None: the system's temporary folder);
    never the state directory.
    """

    kind: str
    module: str
    arguments: tuple[str, ...] = ()
    start_timeout_s: float = 60.0
    scratch_root: Path | None = None
    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


class WorkerProcess:
    """A running worker. It serves one request at a time; the caller sees to that."""

    def __init__(self, command: WorkerCommand) -> None:
        """Spawns the process, on the running event loop; it may not be ready yet.

        Raises `WorkerDied` where the system has no room, descriptor or process for it.
        """
        self.kind = command.kind
        with ExitStack() as undo:
            try:
                self._spawn(command, undo)
            except OSError as error:
                detail = f"the system has nothing to start it with: {error}"
                raise WorkerDied(kind=command.kind, detail=detail, reproducer={}) from error
            undo.pop_all()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(self._popen.pid)
        self._has_answered = False
        self.ended: asyncio.Future[int] = loop.create_future()
        """Done, with the exit status, as soon as the process has ended."""
        loop.add_reader(self._pidfd, self._on_end)

    def _spawn(self, command: WorkerCommand, undo: ExitStack) -> None:
        """The process with its folder, log and socket, which `undo` gives back."""
        self._scratch = scratch.make(command.kind, command.scratch_root)
        undo.callback(shutil.rmtree, self._scratch, ignore_errors=True)
        self._socket, theirs = socket.socketpair()
        undo.callback(self._socket.close)
        with theirs:
            self._log = scratch.open_log(self._scratch)
            undo.callback(os.close, self._log)
            self._popen = subprocess.Popen(
                _arguments(command, theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                cwd=self._scratch,
                env=_environment(command.variables, self._scratch),
            )
        self._socket.setblocking(False)

    @property
    def pid(self) -> int:
        """The process's id, which is also its group's and session's."""
        return self._popen.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process runs, asked of the kernel now."""
        return not self.ended.done() and self._popen.poll() is None

    @property
    def has_left(self) -> bool:
        """Whether it ended of its own accord, after an answer, because it may be damaged."""
        return self.ended.done() and self.ended.result() == RECYCLED

    async def exchange(self, request: pb.WorkerRequest, *, timeout_s: float) -> pb.WorkerResponse:
        """Sends `request` and returns its answer, which for one that is too long is an error.

        Raises `WorkerDied`, `WorkerKilled` or `WorkerHung`; the process is gone then, with all its
        group. Time in which it was ready to run and other processes ran does not count towards
        `timeout_s`.
        """
        try:
            frame = wire.frame(request.SerializeToString())
        except MessageTooLarge as long:
            return wire.refused(request, long)
        talk = asyncio.ensure_future(self._talk(request, frame))
        try:
            either: set[asyncio.Future[Any]] = {talk, self.ended}
            await self._wait(either, timeout_s)
            if not talk.done() and self.ended.done():
                # It may have answered and ended; what it wrote is still in the socket.
                await self._wait({talk}, _LAST_WORDS_S)
            if talk.done() and talk.exception() is None:
                os.ftruncate(self._log, 0)
                self._has_answered = True
                return talk.result()
            if talk.done() and not self.ended.done():
                await self._wait({self.ended}, _LAST_WORDS_S)
            hung = not talk.done() and not self.ended.done()
            problem = (
                str(talk.exception()) if talk.done() else await self._where(request, timeout_s)
            )
            detail = _status_text(self.ended.result()) if self.ended.done() else problem
            is_killed = self.ended.done() and self.ended.result() == -signal.SIGKILL
        finally:
            talk.cancel()
        await self.kill()
        error = WorkerHung if hung else WorkerKilled if is_killed else WorkerDied
        log = self.log_tail()
        raise error(
            kind=self.kind,
            detail=detail,
            reproducer=for_lost_worker(request, detail=detail, log=log),
        )

    async def _where(self, request: pb.WorkerRequest, timeout_s: float) -> str:
        """What it has not answered, and where it is. One that never answered does not heed this."""
        problem = f"no answer to {request.WhichOneof('job')} within {timeout_s:g} s"
        if not self._has_answered or not self.is_alive:
            return problem
        self._popen.send_signal(TELL)
        before, size = -1, os.fstat(self._log).st_size
        end = time.monotonic() + _STACKS_S
        while time.monotonic() < end and (before != size or not innermost(self.log_tail())):
            await asyncio.wait({self.ended}, timeout=_LOOK_S)
            before, size = size, os.fstat(self._log).st_size
        place = innermost(self.log_tail())
        return f"{problem}; it was in {place}" if place else problem

    def interrupt(self) -> None:
        """Asks the job of now to give way. Before its first answer a worker would die of it."""
        if self._has_answered and self.is_alive:
            self._popen.send_signal(GIVE_WAY)

    async def _wait(self, either: set[asyncio.Future[Any]], timeout_s: float) -> None:
        """Waits for the first, or until the worker had `timeout_s` in which it could run."""
        deadline = Deadline(self.pid, timeout_s)
        while step_s := deadline.step_s():
            done, _ = await asyncio.wait(
                either, timeout=step_s, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return

    async def _talk(self, request: pb.WorkerRequest, frame: bytes) -> pb.WorkerResponse:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(sock=self._socket)
        reader, writer = self._streams
        writer.write(frame)
        await writer.drain()
        payload = await wire.read_frame(reader)
        try:
            response = pb.WorkerResponse.FromString(payload)
        except ValueError as error:  # protobuf's DecodeError is one
            raise FrameInvalid("not a WorkerResponse") from error
        if response.id != request.id or response.WhichOneof("result") is None:
            raise FrameInvalid("answers another request")
        return response

    def log_tail(self) -> str:
        """The end of what the process wrote to stdout and stderr since its last answer."""
        size = os.fstat(self._log).st_size
        start = max(0, size - _LOG_TAIL_BYTES)
        return os.pread(self._log, _LOG_TAIL_BYTES, start).decode(errors="replace")

    async def kill(self) -> None:
        """Kills the process and its group, and waits until it is reaped. May be called twice."""
        self._kill_group()
        if not self.ended.done():
            await asyncio.wait({self.ended}, timeout=_REAP_S)

    async def close(self) -> None:
        """Kills the process if need be and frees all that belonged to it."""
        await self.kill()
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._streams is not None:
            self._streams[1].close()
        else:
            self._socket.close()
        os.close(self._log)
        await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    def _kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _on_end(self) -> None:
        """The pidfd is readable: reap, and take the worker's own children along."""
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._kill_group()
        status = self._popen.wait()
        if not self.ended.done():
            self.ended.set_result(status)


def _arguments(command: WorkerCommand, descriptor: int) -> Sequence[str]:
    # -P: the scratch folder is the current one, and must not be a place to import from.
    interpreter = (sys.executable, "-P", "-m", command.module)
    return (
        *interpreter,
        *("--fd", str(descriptor), "--parent", str(os.getpid())),
        *command.arguments,
    )


def _environment(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    kept = {name: variables[name] for name in KEPT_VARIABLES if name in variables}
    return {
        **kept,
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "TMPDIR": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def _status_text(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
