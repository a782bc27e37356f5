"""What a new process pays for its first call, where others before it have compiled the same model.

    python -m tests.benchmarks.second_process [--device cuda] [--rounds N] [--settle-s S] [--json]

A model shaped as all-MiniLM-L6-v2, in processes of its own that call it once, compiled with
`dynamic=True`: by nearhint, of which a daemon has all Kernels, by Inductor, whose caches on disk
are full, both also with their captures kept (`nearhint_torch.compile_ahead`; torch's
`aot_compile`), and by torch's own capture with nothing compiled (`aot_eager`), by turns. Seconds,
and those of CPU time, from the call to its result, by the clock of the process; imports are not in
them, what a kept capture is read by is. What the first process of each paid is printed as `cold`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks import captures
from tests.benchmarks.captures import WORDS, MiniLm
from tests.benchmarks.serving import Serving, conditions_of
from torch._dynamo import config
from torch._dynamo.exc import RestartAnalysis

from nearhint import settle
from nearhint.cli_output import print_json, progress, table
from nearhint_torch import compile_ahead
from nearhint_torch.runner import watch

ROOT = Path(__file__).parents[2]
BACKENDS = ("nearhint", "nearhint ahead", "inductor", "inductor ahead", "aot_eager")
CAPTURES = "NEARHINT_BENCH_CAPTURES"
"""The variable that tells a process where captures are kept."""
PLACES = {"cpu": "cpu", "cuda": "cuda:0"}
"""What a model is moved to, and the device as its policy names it."""
ROUNDS = 5
SETTLE_S = 240.0


@dataclass(frozen=True, slots=True)
class First:
    """A process's first call; `tiers` are its launches at T0, T1 and T2, of nearhint alone."""

    seconds: float
    cpu_seconds: float
    tiers: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One backend: the first process, and the medians of those after it."""

    backend: str
    cold: First
    seconds: float
    cpu_seconds: float
    tiers: tuple[int, int, int] | None


def first_call(backend: str, *, device: str, settle_s: float) -> First:
    """In this process; afterwards, up to `settle_s`, it waits until the daemon has all Kernels."""
    torch.manual_seed(0)
    model = MiniLm().eval().to(device)
    ids, mask = torch.randint(0, WORDS, (3, 7), device=device), torch.ones(3, 7, device=device)
    begun, begun_cpu = time.perf_counter(), time.process_time()
    with torch.no_grad(), watch() as reports:
        _compiled(model, backend, (ids, mask))(ids, mask).cpu()
    found = First(
        time.perf_counter() - begun,
        time.process_time() - begun_cpu,
        reports[0].tiers if reports else None,
    )
    if settle_s:
        settle(timeout_s=settle_s)
    return found


def _compiled(model: MiniLm, backend: str, args: tuple[Any, ...]) -> Callable[..., Any]:
    match backend:
        case "nearhint ahead":
            return compile_ahead(model, Path(os.environ[CAPTURES]))
        case "inductor ahead":
            return _inductor_ahead(model, args, Path(os.environ[CAPTURES]) / "inductor")
        case _:
            compiled: Callable[..., Any] = torch.compile(model, backend=backend, dynamic=True)
            return compiled


def _inductor_ahead(model: MiniLm, args: tuple[Any, ...], file: Path) -> Callable[..., Any]:
    """What is in the file, or the model compiled into it."""
    if file.exists():
        with file.open("rb") as opened:
            function: Any = torch.compiler.load_compiled_function(
                opened, f_globals=captures.__dict__
            )
        return partial(function, model)
    while True:
        try:
            with config.patch(enable_aot_compile=True):
                compiled: Any = torch.compile(model.forward, fullgraph=True, dynamic=True)
                function = compiled.aot_compile((args, {}))
        except RestartAnalysis:  # torch knows now what is to be a constant
            continue
        function.save_compiled_function(str(file))
        return partial(function, model)


def in_a_process(
    backend: str, environment: dict[str, str], *, device: str, settle_s: float = 0.0
) -> First:
    """The same in a new process."""
    child = ("-m", "tests.benchmarks.second_process", "--child", backend)
    answer = subprocess.run(
        [sys.executable, *child, "--device", device, "--settle-s", str(settle_s)],
        cwd=ROOT,
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return First(**json.loads(answer.stdout.splitlines()[-1]))


def measured(rounds: int, settle_s: float, device: str) -> list[Row]:
    """Each backend's first process, and `rounds` more of each, by turns."""
    with (
        tempfile.TemporaryDirectory(prefix="nearhint-bench-") as name,
        Serving(PLACES[device]) as daemon,
    ):
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": name,
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            CAPTURES: name,
        }
        cold = {each: in_a_process(each, environment, device=device) for each in BACKENDS[1:]}
        daemon.tune()
        cold["nearhint"] = in_a_process("nearhint", environment, device=device, settle_s=settle_s)
        daemon.leave_alone()
        later: dict[str, list[First]] = {each: [] for each in BACKENDS}
        with progress("processes") as advance:
            for done in range(rounds):
                advance(done, rounds)
                for each in BACKENDS:
                    later[each].append(in_a_process(each, environment, device=device))
    return [
        Row(
            each,
            cold[each],
            statistics.median(found.seconds for found in later[each]),
            statistics.median(found.cpu_seconds for found in later[each]),
            later[each][-1].tiers,
        )
        for each in BACKENDS
    ]


def print_rows(rows: Sequence[Row]) -> None:
    """A table for people."""
    table(
        ["backend", "cold s #", "cold CPU s #", "s #", "CPU s #", "T0 T1 T2"],
        [
            (
                row.backend,
                *(
                    f"{each:.1f}"
                    for each in (
                        row.cold.seconds,
                        row.cold.cpu_seconds,
                        row.seconds,
                        row.cpu_seconds,
                    )
                ),
                "" if row.tiers is None else " ".join(map(str, row.tiers)),
            )
            for row in rows
        ],
    )


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="what a new process pays for its first call")
    parser.add_argument("--device", choices=PLACES, default="cpu", help="where the model is")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="later processes of each")
    parser.add_argument("--settle-s", type=float, default=SETTLE_S, help="for tuning, at most")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--child", choices=BACKENDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(
            json.dumps(
                asdict(first_call(options.child, device=options.device, settle_s=options.settle_s))
            )
        )
        return
    rows = measured(options.rounds, options.settle_s, options.device)
    if not options.json:
        print_rows(rows)
        return
    report: dict[str, Any] = {
        "conditions": conditions_of(
            "python -m tests.benchmarks.second_process --json", device=options.device
        ),
        "rounds": options.rounds,
        "rows": [asdict(row) for row in rows],
    }
    print_json(report)


if __name__ == "__main__":
    main()
