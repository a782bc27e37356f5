"""Whole models as they are served, against eager and against Inductor's dynamic code.

    python -m tests.benchmarks.models [--device cpu|cuda] [--only PATTERN,...] [--without-inductor]
        [--budget-s S] [--json FILE]

Each model of `model_cases` is compiled once by each side, with `dynamic=True`, and called at the
sizes that are tuned, by a daemon of the benchmark's own, which then leaves the device alone. Calls
at other sizes are timed from the outside, the device synchronised, in turns. Ratios are the other's
median over ours. `captures` are graphs that the backend was given: a batch of one is a graph of its
own. `tiers` are the launches of a call by the tier that served them. An error is the largest
difference from the model in f64, over the largest number that it makes; eager's stands beside it.
The file is written after each row; models that the budget leaves out are listed.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks import sweep_report
from tests.benchmarks.compiled_call import copy_of
from tests.benchmarks.cpu_kernels import geometric_mean
from tests.benchmarks.model_cases import MODELS, SCALES, Arguments, ModelCase, Scale
from tests.benchmarks.serving import Serving, conditions_of
from tests.benchmarks.sweep_report import say
from tests.benchmarks.sweeps import is_chosen
from torch import Tensor, nn

from nearhint.cli_output import progress
from nearhint.demo.tiers import served
from nearhint.demo.timing import interleaved_ms
from nearhint.session import counters

SETTLE_S = 150.0
TIMED_S = 4.0
LEAST_ROUNDS, MOST_ROUNDS = 7, 101
"""Rounds at a size: as many as `TIMED_S` allow, odd in number."""


@dataclass(frozen=True, slots=True)
class Row:
    """A model at some sizes: medians in milliseconds, and the others' over ours."""

    name: str
    sizes: dict[str, int]
    rounds: int
    eager_ms: float
    inductor_ms: float | None
    nearhint_ms: float
    eager_ratio: float
    inductor_ratio: float | None
    captures: int
    tiers: dict[str, int]
    is_settled: bool
    error: float
    eager_error: float

    def line(self) -> str:
        """For people."""
        sizes = " ".join(f"{name}={size}" for name, size in self.sizes.items())
        inductor = "" if self.inductor_ratio is None else f"  {self.inductor_ratio:5.2f}x inductor"
        tiers = " ".join(f"{tier} {count}" for tier, count in self.tiers.items() if count)
        return (
            f"{self.name:20} {sizes:22} eager {self.eager_ms:8.3f} ms  {self.eager_ratio:5.2f}x"
            f" eager{inductor}  {tiers}  {self.captures} captures"
            f"  error {self.error:.1e} (eager {self.eager_error:.1e})"
        )


def compiled(model: nn.Module, backend: str) -> nn.Module:
    """The same model, weights and all, with captures of its own: torch keeps them by the code."""
    alone = copy.copy(model)
    alone.__class__ = type(
        type(model).__name__, (type(model),), {"forward": copy_of(type(model).forward)}
    )
    alone.compile(backend=backend, dynamic=True)
    return alone


def captures() -> int:
    """Graphs that the backend was given in this process."""
    return counters.seen().get("captures", 0)


def measure(
    case: ModelCase, scale: Scale, serving: Serving, *, with_inductor: bool
) -> Iterator[Row]:
    """Compiles, tunes at some sizes, times others."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = case.model(scale).to(device=scale.device, dtype=scale.dtype).eval()
    sides = {"eager": model, "nearhint": compiled(model, "nearhint")}
    tuned = [case.arguments(scale, sizes) for sizes in case.tuned]
    # The largest first: what comes first is not to be taken for a size that never changes.
    if with_inductor:
        sides["inductor"] = compiled(model, "inductor")
        for arguments in reversed(tuned):
            sides["inductor"](*arguments)
    before = captures()
    serving.tune()
    for arguments in reversed(tuned):
        sides["nearhint"](*arguments)
    is_settled = serving.settle(timeout_s=SETTLE_S).settled and serving.finish(timeout_s=SETTLE_S)
    serving.leave_alone()
    synchronise = torch.cuda.synchronize if scale.device == "cuda" else lambda: None
    for sizes in case.timed:
        arguments = case.arguments(scale, sizes)
        calls: dict[str, Callable[[], object]] = {
            name: partial(side, *copied(arguments)) for name, side in sides.items()
        }
        exact = exactly(model, scale, arguments)
        errors = {name: error_of(calls[name](), exact) for name in ("eager", "nearhint")}
        tiers = served(calls["nearhint"]).tiers
        rounds = rounds_of(calls["eager"], synchronise, len(calls))
        times_ms = interleaved_ms(calls, repetitions=rounds, synchronise=synchronise)
        ours_ms, inductor_ms = times_ms["nearhint"], times_ms.get("inductor")
        yield Row(
            case.name,
            dict(zip(case.symbols, sizes, strict=True)),
            rounds,
            times_ms["eager"],
            inductor_ms,
            ours_ms,
            times_ms["eager"] / ours_ms,
            None if inductor_ms is None else inductor_ms / ours_ms,
            captures() - before,
            tiers,
            is_settled,
            errors["nearhint"],
            errors["eager"],
        )


def copied(arguments: Arguments) -> Arguments:
    """What a model writes into, as a decoder into its caches, is each side's own."""
    return tuple(each.clone() for each in arguments)


def exactly(model: nn.Module, scale: Scale, arguments: Arguments) -> Tensor:
    """What the model makes in f64 of the same weights and arguments."""
    wide = [each.double() if each.dtype == scale.dtype else each for each in copied(arguments)]
    made: Tensor = copy.deepcopy(model).double()(*wide)
    return made


def error_of(found: Any, exact: Tensor) -> float:
    """The largest difference over the largest number; infinite where something is not a number."""
    apart = ((found.double() - exact).abs().max() / exact.abs().max()).item()
    return apart if apart == apart else float("inf")


def rounds_of(call: Callable[[], object], synchronise: Callable[[], object], sides: int) -> int:
    """How many rounds of so many sides there is time for, by a second call of one."""
    call()
    synchronise()
    start_s = time.perf_counter()
    call()
    synchronise()
    fitting = int(TIMED_S / sides / (time.perf_counter() - start_s)) | 1
    return min(max(fitting, LEAST_ROUNDS), MOST_ROUNDS)


def means(rows: list[Row]) -> dict[str, float]:
    """The geometric mean and the least ratio against each of the others."""
    found: dict[str, float] = {}
    for name, ratios in (
        ("eager", [row.eager_ratio for row in rows]),
        ("inductor", [row.inductor_ratio for row in rows if row.inductor_ratio is not None]),
    ):
        if ratios:
            found |= {f"{name}_geomean": geometric_mean(ratios), f"{name}_least": min(ratios)}
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The models that were asked for, as far as the budget goes; writes the report as it grows."""
    end_s = time.monotonic() + options.budget_s
    scale = SCALES[options.device]
    rows: list[Row] = []
    report: dict[str, Any] = {
        "conditions": conditions_of(
            f"python -m tests.benchmarks.models {' '.join(sys.argv[1:])}", device=options.device
        ),
        "threads": torch.get_num_threads(),
        "width": scale.width,
        "layers": scale.layers,
        "dtype": str(scale.dtype).removeprefix("torch."),
        "left_out": {},
    }
    only = options.only.split(",") if options.only else []
    chosen = [case for case in MODELS if is_chosen(case.name, only)]
    device = "cpu" if options.device == "cpu" else "cuda:0"
    with torch.no_grad(), Serving(device) as serving, progress("models") as advance:
        for number, case in enumerate(chosen):
            advance(number, len(chosen))
            if time.monotonic() > end_s:
                report["left_out"][case.name] = "no time"
                continue
            try:
                for row in measure(case, scale, serving, with_inductor=options.with_inductor):
                    rows.append(row)
                    say(row.line())
                    report |= {"summary": means(rows), "rows": [asdict(row) for row in rows]}
                    sweep_report.write(report, options.json)
            except Exception as error:  # the other models are worth having
                report["left_out"][case.name] = f"{type(error).__name__}: {error}"[:500]
                say(f"{case.name}: {report['left_out'][case.name]}")
    sweep_report.write(report, options.json)
    return report


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="whole models, against eager and Inductor")
    parser.add_argument("--device", choices=sorted(SCALES), default="cpu")
    parser.add_argument("--only", default="", help="patterns of names, with commas between")
    parser.add_argument("--without-inductor", dest="with_inductor", action="store_false")
    parser.add_argument("--budget-s", type=float, default=1200.0, help="begin none after so long")
    parser.add_argument("--json", type=Path, help="write the report to this file as it grows")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no CUDA device")
    for name, figure in run(options).get("summary", {}).items():
        say(f"{name}: {figure:.3f}")


if __name__ == "__main__":
    main()
