"""Servers on a real daemon: threads that call one model, workers forked from a process that has
called it, and workers that start anew.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest
from tests.integration.daemon_process import ROOT, SOURCES, DaemonProcess, daemon_in

WORKERS = 3
LIMIT_S = 240.0
IDLE = ("--refine-share", "0", "--regret-share", "0")
"""Flags for a daemon that does nothing that nobody asked for."""

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.timeout(300),
]

SERVER = """
import asyncio, json, multiprocessing, os, sys
from concurrent.futures import ThreadPoolExecutor

import torch

import nearhint
from nearhint.session import counters
from nearhint_torch.runner import watch

SIZES = (4, 32, 256)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(48)
        self.wide, self.narrow = torch.nn.Linear(48, 96), torch.nn.Linear(96, 48)

    def forward(self, x):
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.norm(x))))


torch.manual_seed(0)
model = Block().eval()
compiled = torch.compile(model, backend="nearhint", dynamic=True)


def call(rows):
    x = torch.randn(rows, 48)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


def serve(_=None):
    with watch() as reports:
        for rows in SIZES:
            call(rows)
    return {
        "captures": counters.events.get("captures", 0),
        "problems": sorted(counters.events.keys() - {"captures", "connects"}),
        "fallbacks": counters.fallbacks,
        "tiers": [list(report.tiers) for report in reports],
    }


async def threads():
    with ThreadPoolExecutor(WORKERS) as pool:
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(pool, call, rows) for rows in SIZES * 4]
        await asyncio.gather(*calls)
    return serve()


def forked():
    found = []
    for _ in range(WORKERS):
        there, here = multiprocessing.Pipe(duplex=False)
        child = os.fork()
        if not child:
            here.send(serve())
            os._exit(0)
        here.close()
        found.append(there.recv())
        os.waitpid(child, 0)
    return found


if __name__ == "__main__":
    WORKERS = int(sys.argv[2])
    for rows in SIZES:
        call(rows)
    assert nearhint.settle(timeout_s=200).settled
    before = nearhint.status().fallbacks
    if sys.argv[1] == "forked":
        found = forked()
    elif sys.argv[1] == "threads":
        found = [asyncio.run(threads())]
        assert found[0].pop("fallbacks") == before, "no call ran at T0"
    else:
        context = multiprocessing.get_context(sys.argv[1])
        with context.Pool(WORKERS) as pool:
            found = pool.map(serve, range(WORKERS), chunksize=1)
            pool.close()
            pool.join()
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("servers")
    flags = ("--devices", "cpu", "--measure-budget-s", "0.2", "--threads", "1", *IDLE)
    with daemon_in(folder, module="nearhint_daemon", verb=("serve",), flags=flags) as process:
        process.start()
        yield process


def served(daemon: DaemonProcess, shape: str) -> tuple[list[dict[str, Any]], int]:
    """What the processes of a server counted, and how many compiles these cost."""
    script = daemon.folder / "server.py"
    script.write_text(SERVER, encoding="utf-8")
    before = daemon.status().compiles_run
    done = subprocess.run(
        [sys.executable, str(script), shape, str(WORKERS)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(ROOT / source) for source in SOURCES),
            "NEARHINT_ADDRESS": daemon.address,
            "NEARHINT_CACHE_DIR": str(daemon.folder / "cache"),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), daemon.status().compiles_run - before


def is_at_t2(worker: dict[str, Any]) -> bool:
    """Whether all that a process launched was measured, and nothing went wrong there."""
    return not worker["problems"] and all(
        t0 == t1 == 0 and t2 > 0 for t0, t1, t2 in worker["tiers"]
    )


def test_threads_and_workers_serve_at_t2_by_what_one_process_had_tuned(
    daemon: DaemonProcess,
) -> None:
    (threads,), compiles = served(daemon, "threads")
    assert compiles > 0
    assert threads["captures"] == 1
    assert is_at_t2(threads)
    for shape, captures in (("forked", 0), ("forkserver", 1)):
        workers, compiles = served(daemon, shape)
        assert (len(workers), compiles) == (WORKERS, 0), shape
        for worker in workers:
            assert worker["captures"] == captures, shape
            assert worker["fallbacks"] == {}, shape
            assert is_at_t2(worker), shape
