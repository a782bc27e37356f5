"""The loop of a worker: one request in, one answer out, until the daemon closes the socket."""

from __future__ import annotations

import argparse
import faulthandler
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from nearhint_daemon.workers import wire
from nearhint_daemon.workers.errors import (
    DiskFull,
    JobFailed,
    MessageTooLarge,
    OutOfMemory,
    RequestInvalid,
    lacks_memory,
)
from nearhint_daemon.workers.exits import RECYCLED, TELL
from nearhint_daemon.workers.scratch import is_full
from nearhint_proto.v1 import worker_pb2 as pb

Handler: TypeAlias = Callable[[pb.WorkerRequest], pb.WorkerResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The command line of a worker."""

    descriptor: int
    parent: int
    device: str


@dataclass(slots=True)
class WorkerState:
    """What a handler can tell the loop: that this process must not run another job."""

    is_damaged: bool = False


def parse_arguments() -> Arguments:
    """Reads `--fd N --parent PID [--device NAME]`."""
    parser = argparse.ArgumentParser(description="A worker process of nearhintd.")
    parser.add_argument("--fd", type=int, required=True, help="the socket to the daemon")
    parser.add_argument("--parent", type=int, required=True, help="the daemon's process")
    parser.add_argument("--device", default="", help="cpu or cuda:N")
    parsed = parser.parse_args()
    return Arguments(descriptor=parsed.fd, parent=parsed.parent, device=parsed.device)


def serve(
    descriptor: int, handlers: Mapping[str, Handler], state: WorkerState, *, ready: Handler
) -> None:
    """Answers requests until the stream ends. `handlers` are by the name of the job's field.

    `ready` answers Ping. A fault, and `TELL`, print the Python stacks to stderr, which is the
    worker's log.
    """
    faulthandler.enable(file=sys.stderr)
    faulthandler.register(TELL, file=sys.stderr)
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    while (payload := wire.receive(connection)) is not None:
        request = pb.WorkerRequest.FromString(payload)
        response = _answer(request, {**handlers, "ping": ready})
        response.id = request.id
        try:
            wire.send(connection, response.SerializeToString())
        except MessageTooLarge as error:
            wire.send(connection, wire.refused(request, error).SerializeToString())
        if state.is_damaged:
            sys.stderr.flush()
            os._exit(RECYCLED)


def _answer(request: pb.WorkerRequest, handlers: Mapping[str, Handler]) -> pb.WorkerResponse:
    job = request.WhichOneof("job")
    try:
        handler = handlers.get(job or "")
        if handler is None:
            raise RequestInvalid(f"this worker has no job {job!r}")
        return handler(request)
    except JobFailed as error:
        return _failure(error.code, str(error), error.reproducer)
    except Exception as error:
        if lacks_memory(error):
            return _failure(OutOfMemory.code, f"{job}: out of memory", {})
        if isinstance(error, OSError) and is_full(str(error)):
            return _failure(DiskFull.code, f"{job}: {error}", {})
        # Errors of the compiler and the rules carry a code of their own; the rest are ours.
        code = getattr(error, "code", "INTERNAL")
        text = f"{type(error).__name__}: {error}"
        stack = {"traceback.txt": traceback.format_exc()}
        return _failure(code if isinstance(code, str) else "INTERNAL", text, stack)


def _failure(code: str, message: str, reproducer: Mapping[str, str]) -> pb.WorkerResponse:
    return pb.WorkerResponse(
        error=pb.WorkerError(code=code, message=message[:4000], reproducer=reproducer)
    )


def seconds_since_spawn() -> float:
    """Seconds since this process was started: now, less its start time in /proc/self/stat."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
