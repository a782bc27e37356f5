"""What the client's session costs: a look-up, a note, and the start of a second process.

    python -m tests.benchmarks.client_session [--kernels N] [--json]

Starts a daemon of its own in a temporary directory, has one Program of N Kernels tuned, and then
times, as a second process would see it: from `register` to everything loaded, with an empty
artifact cache and with a full one. Times are medians on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import nearhint
from nearhint import session
from nearhint.launchers.detect import cpu_device
from nearhint.session import Snapshot, session_for
from nearhint_rules import expr as ex
from nearhint_rules.program import Node, Program, Ref, Symbol, TensorType

ROWS = ex.symbol("s0")
ROUNDS = 21
CALLS = 20_000
HINTS = (64,)
"""Rows that are tuned; more make the tuning longer, and what is timed here hardly slower."""
TUNE_S = 300.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians. `wait_ready_*` run from `register` to the last binary loaded."""

    machine: str
    kernels: int
    artifacts: int
    choose_remembered_us: float
    choose_new_us: float
    want_known_us: float
    count_us: float
    wait_ready_empty_cache_ms: float
    wait_ready_full_cache_ms: float


def program(kernels: int) -> Program:
    """`kernels` additions of different constants, kept apart by nodes that nobody may fuse."""
    matrix = TensorType("f32", (ROWS, ex.Int(384)), (ex.Int(384), ex.ONE))
    nodes: list[Node] = []
    value = 0
    for number in range(kernels):
        nodes.append(
            Node("aten.add.Tensor", (Ref(value), float(number + 1)), (), (value,), (matrix,))
        )
        value += 1
        nodes.append(Node("", (), (), (value,), (matrix,)))
        value += 1
    return Program((Symbol("s0", 2),), (matrix,), tuple(nodes), (value,), "benchmark")


def median_us(call: Callable[[int], object]) -> float:
    rounds: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for number in range(CALLS):
            call(number)
        rounds.append((time.perf_counter() - start) / CALLS * 1e6)
    return statistics.median(rounds)


def start_ms(address: str, of: Program, cache: Path) -> float:
    """A second process's start, without the interpreter's own."""
    session.shutdown()
    os.environ["NEARHINT_CACHE_DIR"] = str(cache)
    start = time.perf_counter()
    handle = session_for(address, cpu_device()).register(of)
    if not handle.wait_ready(10):
        raise SystemExit("the daemon did not have everything")
    return (time.perf_counter() - start) * 1e3


def new_sizes_us(snapshot: Snapshot, step: int) -> float:
    """Sizes never seen: the look-up, the Guards, the hints, and remembering it."""
    start = time.perf_counter()
    for number in range(CALLS):
        snapshot.choose(step, (1_000_000 + number,))
    return (time.perf_counter() - start) / CALLS * 1e6


def measure(address: str, kernels: int, directory: Path) -> Figures:
    of = program(kernels)
    os.environ["NEARHINT_CACHE_DIR"] = str(directory / "first")
    handle = session_for(address, cpu_device()).register(of)
    for rows in HINTS:
        handle.want({"s0": rows})
    # One verified Variant of each Kernel is enough: what is timed here does not know its tier.
    deadline = time.monotonic() + TUNE_S
    while nearhint.status().artifacts < kernels and time.monotonic() < deadline:
        nearhint.settle(timeout_s=1)
    snapshot = handle.snapshot
    if snapshot is None or len(snapshot.loaded) < kernels:
        raise SystemExit(f"not tuned in {TUNE_S:g} s: {nearhint.status()}")
    step = min(snapshot.selectors)
    snapshot.choose(step, (64 * 384,))
    sizes = {"s0": 64}
    figures = Figures(
        machine=f"{cpu_device().model}, {os.cpu_count()} cores, Python {platform.python_version()}",
        kernels=len(snapshot.tables),
        artifacts=len(snapshot.loaded),
        choose_remembered_us=median_us(lambda number: snapshot.choose(step, (24576,))),
        choose_new_us=new_sizes_us(snapshot, step),
        want_known_us=median_us(lambda number: handle.want(sizes)),
        count_us=median_us(lambda number: handle.count((64,), (0, 0, kernels))),
        wait_ready_empty_cache_ms=statistics.median(
            start_ms(address, of, directory / f"cold{number}") for number in range(ROUNDS)
        ),
        wait_ready_full_cache_ms=statistics.median(
            start_ms(address, of, cache) for cache in [directory / "first"] * ROUNDS
        ),
    )
    session.shutdown()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nearhint-bench-") as name:
        directory = Path(name)
        address = f"unix:{directory}/run/nearhint.sock"
        command = [sys.executable, "-m", "nearhint_daemon", "serve", "--address", address]
        command += ["--state-dir", str(directory / "state"), "--metrics-port", "0"]
        daemon = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            figures = measure(address, options.kernels, directory)
        finally:
            daemon.terminate()
            daemon.wait(30)
    if options.json:
        sys.stdout.write(json.dumps(asdict(figures), indent=2) + "\n")
        return
    for key, value in asdict(figures).items():
        text = f"{value:.2f}" if isinstance(value, float) else str(value)
        sys.stdout.write(f"{key:28} {text}\n")


if __name__ == "__main__":
    main()
