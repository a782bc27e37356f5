"""A worker that does what a request's schedule says; run as a program by the tests of the pools."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from nearhint_daemon.workers.limits import COMPILE_LIMITS, enter
from nearhint_daemon.workers.serve import WorkerState, parse_arguments, serve
from nearhint_proto.v1 import worker_pb2 as pb

STATE = WorkerState()
PINGS = itertools.count(1)


def answer(request: pb.WorkerRequest) -> pb.WorkerResponse:
    word, _, argument = request.compile_variant.schedule.partition(" ")
    match word:
        case "exit":
            os._exit(int(argument))
        case "signal":
            os.kill(os.getpid(), signal.Signals[argument])
        case "hang":
            ctypes.CDLL(None).pause()
        case "say":
            print(argument, file=sys.stderr, flush=True)
            os._exit(1)
        case "raise":
            raise RuntimeError(argument)
        case "damage":
            STATE.is_damaged = True
        case "children":  # a child with a child of its own, both deaf to everything but SIGKILL
            script = f"trap '' TERM HUP; (trap '' TERM HUP; sleep {argument}) & sleep {argument}"
            subprocess.Popen(["sh", "-c", script])
            ctypes.CDLL(None).pause()
        case "close":
            socket.socket(fileno=parse_arguments().descriptor).shutdown(socket.SHUT_RDWR)
            ctypes.CDLL(None).pause()
        case "shut":
            socket.socket(fileno=parse_arguments().descriptor).shutdown(socket.SHUT_RDWR)
            end = time.process_time() + 0.06
            while time.process_time() < end:
                pass
            signal.raise_signal(signal.SIGSEGV)
        case "garbage":
            os.write(parse_arguments().descriptor, b"\xff\xff\xff\xff garbage")
            ctypes.CDLL(None).pause()
        case "spin":
            end = time.monotonic() + float(argument)
            while time.monotonic() < end:
                pass
        case "long":
            return pb.WorkerResponse(schedules=pb.Schedules(schedules=["x" * int(argument)]))
        case _:
            pass
    facts = (word, str(os.getpid()), os.getcwd(), *sorted(os.environ))
    return pb.WorkerResponse(schedules=pb.Schedules(schedules=facts))


def main() -> None:
    arguments = parse_arguments()
    enter(COMPILE_LIMITS, parent=arguments.parent)
    if arguments.device.startswith("late "):  # until somebody writes there
        Path(arguments.device.removeprefix("late ")).read_bytes()
    if arguments.device == "broken":
        sys.exit("this worker never starts")
    serve(
        arguments.descriptor,
        {"compile_variant": answer},
        STATE,
        ready=lambda _: pb.WorkerResponse(
            pong=pb.Pong(toolchain=["cc 1.2.3"], ready_s=next(PINGS))
        ),
    )


if __name__ == "__main__":
    main()
