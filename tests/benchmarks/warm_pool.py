"""Inductor's caches on disk, filled by several processes at once: what compiles later only loads.

A unit is what one process compiles in one go: a sweep's dynamic code, at the sizes that it is
compiled at and wherever its guards have it compiled again, or its static code at one size. Nothing
of it is run. Of several configurations of a kernel Inductor takes the one that it times fastest at
the first call, and that call is the measuring process's, which has the device to itself.

Run as a program, `--device DEVICE --threads N`, this compiles what it reads on stdin, a unit a line
in JSON, and answers each by a line on stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, NoReturn
from unittest import mock

import torch
from tests.benchmarks.compiled_call import copy_of
from tests.benchmarks.gpu_sweep_cases import FUNCTIONS, parts_of
from tests.benchmarks.sweeps import Sizes, Sweep, marked, starts_of
from torch import Tensor, fx
from torch._inductor import config

ROOT = Path(__file__).parents[2]
PROCESSES = 12
SPARED_CPUS = 3
"""For the daemon and for what captures."""
PROCESS_BYTES = 3 << 30
"""Of a device: its context, and the arguments of one unit."""
LOST = "its process ended"
HIT, MISS = "fxgraph_cache_hit", "fxgraph_cache_miss"


@dataclass(frozen=True, slots=True)
class Unit:
    """A sweep of a mode, by title: its dynamic code for `sizes`, or its static code for the one."""

    title: str
    mode: str
    sizes: tuple[Sizes, ...]
    is_dynamic: bool

    @property
    def name(self) -> str:
        """For people."""
        at = "dynamic" if self.is_dynamic else "x".join(map(str, self.sizes[0]))
        return f"{self.title}, {at}"

    def sweep(self) -> Sweep:
        """The sweep at these sizes, which may be others than are listed.

        Raises `KeyError` where no sweep has the title.
        """
        for listed in FUNCTIONS["all"]:
            for part in parts_of(replace(listed, sizes=self.sizes), self.mode):
                if part.title == self.title:
                    return part
        raise KeyError(self.title)

    @staticmethod
    def from_line(line: str) -> Unit:
        """What `json.dumps(asdict(unit))` was made from."""
        given = json.loads(line)
        return Unit(**given | {"sizes": tuple(map(tuple, given["sizes"]))})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a unit: graphs that the caches had, and had not; why it failed."""

    name: str
    seconds: float
    hits: int = 0
    misses: int = 0
    problem: str = ""


@dataclass
class Warmed:
    """What a pool has done."""

    processes: int
    units: int
    seconds: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list[Outcome])

    def facts(self) -> dict[str, Any]:
        """For a report."""
        return {
            "processes": self.processes,
            "units": self.units,
            "done": len(self.outcomes),
            "seconds": round(self.seconds, 1),
            "busy_s": round(sum(each.seconds for each in self.outcomes), 1),
            "hits": sum(each.hits for each in self.outcomes),
            "misses": sum(each.misses for each in self.outcomes),
            "problems": {each.name: each.problem for each in self.outcomes if each.problem},
        }


class _NotRunError(Exception):
    """In place of a call of what was compiled."""


def units_of(sweeps: Mapping[Sweep, Sequence[Sizes]], mode: str) -> list[Unit]:
    """What is compiled for these sizes of these sweeps, the longest first."""
    wanted = {sweep: sizes for sweep, sizes in sweeps.items() if sizes}
    dynamic = [Unit(each.title, mode, tuple(sizes), True) for each, sizes in wanted.items()]
    static = [
        Unit(each.title, mode, (at,), False) for each, sizes in wanted.items() for at in sizes
    ]
    return [*dynamic, *static]


def processes_for(asked: int, *, units: int, cpus: int, free_bytes: int) -> int:
    """How many processes share units out: what is asked for, as far as there is room; at least 1.

    >>> processes_for(12, units=100, cpus=16, free_bytes=80 << 30)
    12
    >>> processes_for(12, units=100, cpus=2, free_bytes=80 << 30)
    1
    """
    return max(1, min(asked, units, cpus - SPARED_CPUS, free_bytes // PROCESS_BYTES))


@contextmanager
def inductor_cache() -> Generator[None, None, None]:
    """Caches of the run's own, in its environment; nothing is compiled in the background."""
    with (
        tempfile.TemporaryDirectory(prefix="nearhint-inductor-") as folder,
        mock.patch.dict(
            os.environ,
            {"TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        ),
        config.patch(compile_threads=1),
    ):
        yield


def cache_counts() -> tuple[int, int]:
    """Graphs that Inductor's cache had, and had not, in this process so far."""
    counts = torch._dynamo.utils.counters["inductor"]
    return counts[HIT], counts[MISS]


def fresh_state() -> None:
    """Forgets which sizes were met: dynamo keeps them by name and line, for all copies at once."""
    torch._dynamo.pgo.reset_code_state()


def compile_unit(unit: Unit, *, device: str) -> Outcome:
    """Compiles what a unit names, or finds it in the caches."""
    started = time.monotonic()
    torch._dynamo.reset()
    hits, misses = cache_counts()
    try:
        _compile(unit, device)
        problem = ""
    except Exception as error:  # whoever measures compiles it again
        problem = f"{type(error).__name__}: {error}"[:300]
    after = cache_counts()
    if device != "cpu":
        torch.cuda.empty_cache()
    seconds = time.monotonic() - started
    return Outcome(unit.name, seconds, after[0] - hits, after[1] - misses, problem)


def _compile(unit: Unit, device: str) -> None:
    sweep = unit.sweep()
    function: Callable[..., Any] = torch.compile(
        copy_of(sweep.function),
        backend=_compiled_alone,
        dynamic=unit.is_dynamic and unit.mode == "a",
    )
    starts = starts_of(sweep, sweep.compiled_at) if unit.is_dynamic else []
    with torch.no_grad():
        for sizes in (*starts, *unit.sizes):
            arguments = _blank(sweep, sizes, device)
            given = marked(sweep, arguments, unit.mode) if unit.is_dynamic else arguments
            with suppress(_NotRunError):
                function(*given)


def _compiled_alone(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., NoReturn]:
    """A backend: Inductor, whose code is not called."""
    from torch._inductor.compile_fx import compile_fx

    compile_fx(graph, list(inputs))

    def stop(*_: Any) -> NoReturn:
        raise _NotRunError

    return stop


def _blank(sweep: Sweep, sizes: Sizes, device: str) -> list[Tensor]:
    """Arguments whose elements are whatever the memory holds."""
    case = sweep.case(sizes)
    return case.prepare(
        [torch.empty(shape, dtype=case.dtype, device=device) for shape in case.shapes]
    )


class WarmPool:
    """Processes that share units out, from the beginning of the context until `wait`."""

    def __init__(self, units: Sequence[Unit], *, device: str, processes: int) -> None:
        self._warmed = Warmed(processes, len(units))
        self._device = device
        self._left: queue.SimpleQueue[Unit] = queue.SimpleQueue()
        for unit in units:
            self._left.put(unit)

    def __enter__(self) -> WarmPool:
        self._started = time.monotonic()
        threads = torch.get_num_threads()  # on a CPU, code is for so many
        command = [sys.executable, "-m", __spec__.name]
        command += ["--device", self._device, "--threads", str(threads)]
        self._processes = [
            subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(self._warmed.processes)
        ]
        self._feeders = [
            Thread(target=self._feed, args=(process,), daemon=True) for process in self._processes
        ]
        for feeder in self._feeders:
            feeder.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
        for feeder, process in zip(self._feeders, self._processes, strict=True):
            feeder.join()
            process.wait()
            for end in (process.stdin, process.stdout):
                assert end is not None
                with suppress(BrokenPipeError):
                    end.close()

    def wait(self, *, timeout_s: float) -> Warmed:
        """Until all is compiled or the time is up, by when the processes have ended."""
        end_s = time.monotonic() + timeout_s
        for feeder in self._feeders:
            feeder.join(max(0.0, end_s - time.monotonic()))
        for process, feeder in zip(self._processes, self._feeders, strict=True):
            process.kill()
            feeder.join()
        self._warmed.seconds = time.monotonic() - self._started
        return self._warmed

    def _feed(self, process: subprocess.Popen[str]) -> None:
        """Has a process compile one unit after the other; ends with the units, or with it."""
        with suppress(queue.Empty):
            while True:
                outcome = _answer(process, self._left.get_nowait())
                self._warmed.outcomes.append(outcome)
                if outcome.problem == LOST:
                    return


def _answer(process: subprocess.Popen[str], unit: Unit) -> Outcome:
    """What a process makes of a unit."""
    assert process.stdin is not None
    assert process.stdout is not None
    line = ""
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(asdict(unit)) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    return Outcome(**json.loads(line)) if line else Outcome(unit.name, 0.0, problem=LOST)


def main() -> None:
    """One process of a pool; see the module's docstring."""
    parser = argparse.ArgumentParser(description="fills Inductor's caches")
    parser.add_argument("--device", required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    answers = sys.stdout
    with redirect_stdout(sys.stderr):
        for line in sys.stdin:
            outcome = compile_unit(Unit.from_line(line), device=options.device)
            answers.write(json.dumps(asdict(outcome)) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
