"""Commands in processes of their own, forked from one that has imported what they need.

A process that imports torch and the client spends seconds on it. What is forked from one that has
is as much on its own: its folder, environment, pipes and exit code; and it may be killed.

    python -m tests.integration.forking FD    the process that forks; commands come by the socket
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, TextIO

from tests.integration.daemon_process import ROOT, SOURCES

IMPORTS = ("torch", "nearhint.cli", "nearhint_torch.warmup")
REQUEST_BYTES = 1 << 20
END_S = 10.0


@dataclass
class Forked:
    """A command that runs; as `subprocess.Popen`, as far as tests need it."""

    pid: int
    stderr: TextIO
    _status: BinaryIO
    _stdout: Path
    returncode: int | None = field(default=None, init=False)

    def wait(self, timeout_s: float) -> int:
        """Its exit code, negative for a signal; raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout_s)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout_s)
            self.returncode = int(self._status.readline())
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """Waits for its end; stdout, and what of stderr was not read yet."""
        talk = self.stderr.read()
        self.wait(END_S)
        self.stderr.close()
        self._status.close()
        return self._stdout.read_text(), talk

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)


def fork(
    arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], stdout: Path
) -> Forked:
    """Starts `python *arguments`, which are `-m MODULE …` or `SCRIPT …`, in `folder`.

    `environment` is added to that of the process that forks; its stdout goes to a file.
    """
    request = {"arguments": arguments, "folder": str(folder), "environment": environment}
    talk, talk_of_it = os.pipe()
    status, status_of_it = os.pipe()
    with stdout.open("wb") as out:
        fds = [out.fileno(), talk_of_it, status_of_it]
        socket.send_fds(_server(), [json.dumps(request).encode()], fds)
    os.close(talk_of_it)
    os.close(status_of_it)
    lines = os.fdopen(status, "rb", buffering=0)
    return Forked(int(lines.readline()), os.fdopen(talk, encoding="utf-8"), lines, stdout)


@cache
def _server() -> socket.socket:
    """The socket to the process that forks; one for all tests of this process."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / source) for source in SOURCES),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.forking", str(there.fileno())],
        env=environment,
        pass_fds=[there.fileno()],
    )
    there.close()

    def end() -> None:
        here.close()
        process.wait(END_S)

    atexit.register(end)
    return here


@dataclass(frozen=True)
class _Request:
    arguments: list[str]
    folder: str
    environment: Mapping[str, str]

    def run(self) -> None:
        os.chdir(self.folder)
        os.environ.update(self.environment)
        sys.path.insert(0, self.folder)
        first, *rest = self.arguments
        if first == "-m":
            module, *rest = rest
            sys.argv = [module, *rest]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            sys.argv = [first, *rest]
            runpy.run_path(first, run_name="__main__")


def _serve(requests: socket.socket) -> _Request | None:
    """Forks for each request. Returns in what was forked, and None where nobody asks any more."""
    # A keeper is of no interest once its command has ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, fds, _, _ = socket.recv_fds(requests, REQUEST_BYTES, maxfds=3)
        if not message:
            return None
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _keep(_Request(**json.loads(message)), *fds)
        for fd in fds:
            os.close(fd)


def _keep(request: _Request, stdout: int, stderr: int, status: int) -> _Request:
    """Forks the command, which returns; says its process and its exit code, and leaves."""
    process = os.fork()
    if process == 0:
        os.close(status)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.close(stdout)
        os.close(stderr)
        return request
    os.close(stdout)
    os.close(stderr)
    os.write(status, b"%d\n" % process)
    _, ended = os.waitpid(process, 0)
    os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
    os._exit(0)


def main() -> None:
    """Imports, and forks until the socket is closed; in what was forked, runs the command."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    for module in IMPORTS:
        import_module(module)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"what has {threads} threads cannot be forked")
    request = _serve(requests)
    if request is not None:
        request.run()


if __name__ == "__main__":
    main()
