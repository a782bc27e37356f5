"""Traffic whose mix of sizes changes: what tuning for the new mix costs the calls, and brings them.

    python -m tests.benchmarks.traffic_shift [--device cpu|cuda] [--calls N] [--blocks N]
                                             [--seed N] [--budget-s N] [--json FILE]

A model of two layers (norm, gated product, residual) is served from a seeded log: hot sizes and a
tail. Its Kernels are tuned for the first mix; then the second comes, in pairs of blocks of the same
requests, once with tuning forbidden (`never`, and the workers at rest) and once allowed (`always`
on a CPU, `idle` on a GPU). Each call is timed by itself, to the end of the device's work, and so is
the CPU time of the thread that calls, which a busy machine adds little to; what that thread waited
for its core is what other processes took, and says whether the machine was quiet.

On a CPU the model has one thread, and with all of its process one core; the daemon and its workers
have another; blocks beside a process at idle priority there that only counts say what part of it is
the machine's. On a GPU each block is a burst after a gap, since `idle` waits for one, and after a
pair comes a spell without calls in which tuning goes on.

What serves the hot sizes is noted after each pair, with the device's time that the daemon has used
by then, and once more when all that was begun is done. In the end everything that may run at these
sizes is timed in one contest each, and regret is what was served then against the fastest. Where
nothing is left to be learnt before the last pair, further sizes are asked for, so that tuning goes
on in every block in which it is allowed.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from tests.benchmarks import sweep_report
from tests.benchmarks.compiled_call import Call, noting
from tests.benchmarks.cores import Cores
from tests.benchmarks.daemon_view import Daemon
from tests.benchmarks.serving import Serving, conditions_of
from tests.benchmarks.sweep_report import Bar, say
from tests.benchmarks.traffic_log import Log, Mix, log_of
from torch import Tensor
from torch.nn import functional

from nearhint.session import counters
from nearhint_proto.v1 import admin_service_pb2 as admin
from nearhint_rules import expr as ex
from nearhint_rules.choice import FALLBACK
from nearhint_rules.plan import Launch
from nearhint_rules.regret import percentile, regret

REGRET_BAR = 0.025
DEVICE_BAR_S = 120.0
P99_BARS = {"cpu": 1.15, "cuda": 1.1}
WITHOUT, WITH, SPINNER = KINDS = ("without", "with", "spinner")
"""Blocks without tuning, with it, and, on a CPU, beside a process that only counts."""
WARM_CALLS = 20
FIRST_S = 90.0
SETTLE_S = 10.0
FINISH_S = 20.0
"""What is under way when the time is up may take so long to end."""
CONTESTS_S = 40.0
RATIOS = ("p50_ms", "p99_ms", "cpu_p50_ms", "cpu_p99_ms")
NEVER_S = 1e9
"""What stands for a time that did not come."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is served on a device, and how its requests come."""

    device: str
    name: str
    dtype: torch.dtype
    width: int
    inner: int
    first: Mix
    second: Mix
    allowed: admin.DevicePolicy.ValueType
    calls: int
    gap_s: float
    spell_s: float


SETTINGS = {
    "cpu": Setting(
        "cpu",
        "cpu",
        torch.float32,
        256,
        256,
        Mix((24, 40, 56, 31, 48), (8, 96)),
        Mix((200, 300, 136, 264, 180), (96, 400)),
        admin.DEVICE_POLICY_ALWAYS,
        350,
        0.0,
        0.0,
    ),
    "cuda": Setting(
        "cuda",
        "cuda:0",
        torch.bfloat16,
        2048,
        5504,
        Mix((120, 112, 140, 128, 136), (100, 170)),
        Mix((3000, 4096, 3500, 5000, 4500), (2900, 5700)),
        admin.DEVICE_POLICY_IDLE,
        600,
        3.5,
        6.0,
    ),
}


@dataclass(frozen=True, slots=True)
class Weights:
    """One layer's."""

    norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor

    @staticmethod
    def of(setting: Setting, generator: torch.Generator) -> Weights:
        """Small random ones."""

        def made(*shape: int) -> Tensor:
            return (torch.randn(*shape, generator=generator) * 0.05).to(
                setting.device, setting.dtype
            )

        width, inner = setting.width, setting.inner
        return Weights(made(width), made(inner, width), made(inner, width), made(width, inner))


def layer(x: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """A norm, a gated product of two projections, and the residual."""
    wide = x.float()
    scaled = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * norm
    hidden = functional.silu(functional.linear(scaled, gate)) * functional.linear(scaled, up)
    return x + functional.linear(hidden, down)


def model(x: Tensor, *weights: Tensor) -> Tensor:
    """Two layers, and a softmax over the features."""
    for start in range(0, len(weights), 4):
        x = layer(x, *weights[start : start + 4])
    return torch.softmax(x.float(), -1).to(x.dtype)


@dataclass(frozen=True, slots=True)
class Served:
    """What served the hot sizes when the device had been used for so long."""

    after_pair: int
    device_s: float
    wall_s: float
    answers: Mapping[tuple[str, tuple[int, ...]], str]
    """By Kernel and its sizes: a Variant's identity, or the Fallback's."""


@dataclass
class Block:
    """One block of calls, of one of `KINDS`."""

    kind: str
    seconds: list[float] = field(default_factory=list[float])
    cpu_s: list[float] = field(default_factory=list[float])
    kept_waiting_s: float = 0.0
    """Of all of it, what the thread was ready to run and others ran on its core."""
    device_s: float = 0.0
    workers_cpu_s: float = 0.0


class Bench:
    """One run: the model, its capture, the daemon, and what was found."""

    def __init__(
        self, setting: Setting, serving: Serving, cores: Cores | None, *, seed: int, end_s: float
    ) -> None:
        self.setting = setting
        self.cores = cores
        self.serving = serving
        self.daemon = Daemon(serving)
        self.end_s = end_s
        self.blocks: list[Block] = []
        self.served: list[Served] = []
        self.waits = 0
        self.captures = 0
        self.fillers = 0
        self.chance = Random(seed)
        generator = torch.Generator().manual_seed(seed)
        layers = [Weights.of(setting, generator) for _ in range(2)]
        self._weights = [each for one in layers for each in (one.norm, one.gate, one.up, one.down)]
        rows = max(*setting.first.tail, *setting.second.tail)
        self._inputs = torch.randn(rows, setting.width, generator=generator).to(
            setting.device, setting.dtype
        )
        self._calls, self._function = noting(model, dynamic=True)

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.end_s

    def call(self, rows: int) -> tuple[float, float]:
        """One request, to its end: seconds, and those of this thread's CPU time."""
        x = self._inputs[:rows]
        started, used = time.perf_counter(), time.thread_time()
        self._function(x, *self._weights)
        if self.setting.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started, time.thread_time() - used

    def capture(self, sizes: Sequence[int]) -> Call:
        """The capture that serves all of these sizes."""
        for rows in sizes:
            torch._dynamo.mark_dynamic(self._inputs[:rows], 0)
            self.call(rows)
        (call,) = self._calls
        return call

    def settle(self, sizes: Sequence[int]) -> None:
        """Tunes for sizes, and waits for it."""
        self.daemon.allow(self.setting.name, admin.DEVICE_POLICY_ALWAYS)
        for rows in sizes:
            self.call(rows)
        if not self.serving.settle(timeout_s=FIRST_S).settled:
            say(f"the first mix is not settled after {FIRST_S:g} s")
        self.serving.finish(timeout_s=FIRST_S)

    def block(self, requests: Sequence[int], *, kind: str) -> Block:
        """Serves requests, each timed by itself; what they wait for is counted."""
        setting = self.setting
        if kind == WITH:
            self.daemon.allow(setting.name, setting.allowed)
        elif not self.daemon.forbid(setting.name):
            say("the workers did not come to rest")
        for rows in requests[:WARM_CALLS]:
            self.call(rows)
        made = Block(kind)
        device_s, workers_cpu_s = self.daemon.device_s(), self.daemon.workers_cpu_s()
        waits, captures = counters.on_this_thread(), len(self._calls)
        time.sleep(setting.gap_s)
        kept_waiting_s = waited_for_core_s()
        with self.cores.spinning() if kind == SPINNER and self.cores else nullcontext():
            for rows in requests:
                seconds, cpu_s = self.call(rows)
                made.seconds.append(seconds)
                made.cpu_s.append(cpu_s)
        made.kept_waiting_s = waited_for_core_s() - kept_waiting_s
        after = counters.on_this_thread()
        self.waits += sum(after) - sum(waits)
        self.captures += len(self._calls) - captures
        made.device_s = self.daemon.device_s() - device_s
        made.workers_cpu_s = max(0.0, self.daemon.workers_cpu_s() - workers_cpu_s)
        self.blocks.append(made)
        return made

    def note(self, call: Call, pair: int, *, since_s: float) -> None:
        """What serves the hot sizes now."""
        snapshot = call.handle.snapshot
        assert snapshot is not None
        answers: dict[tuple[str, tuple[int, ...]], str] = {}
        for place, step, dims in launches(call, self.setting.second.hot):
            selection = snapshot.choose(place, dims).selection
            table = snapshot.tables.get(step.kernel)
            is_variant = table is not None and selection.variant != FALLBACK
            answers[step.kernel, dims] = (
                table.variants[selection.variant].id
                if table is not None and is_variant
                else step.fallback
            )
        spent_s = self.daemon.device_s()
        self.served.append(Served(pair, spent_s, time.monotonic() - since_s, answers))

    def fill(self, call: Call, pair: int) -> None:
        """Asks for sizes that nobody has asked for yet, where nothing is left to be learnt."""
        if not self.daemon.is_idle():
            return
        low, high = self.setting.second.tail
        sizes = sorted(
            {round(low + (high - low) * (pair * 7 + step * 13 % 97) / 140) for step in range(4)}
        )
        self.fillers += 1
        snapshot = call.handle.snapshot
        assert snapshot is not None
        target = next(iter(snapshot.tables.values())).target
        self.daemon.ask(call, target, [sizes_of(call, rows) for rows in sorted(sizes)])


def sizes_of(call: Call, rows: int) -> dict[str, int]:
    """The Program's sizes at so many rows."""
    return {symbol.name: rows for symbol in call.handle.program.symbols}


def waited_for_core_s() -> float:
    """Seconds that this thread was ready to run and was not let, by the kernel's count."""
    return int(Path("/proc/thread-self/schedstat").read_text("ascii").split()[1]) / 1e9


def launches(call: Call, rows: Iterable[int]) -> list[tuple[int, Launch, tuple[int, ...]]]:
    """Place, step and sizes of each launch of a capture at numbers of rows."""
    snapshot = call.handle.snapshot
    assert snapshot is not None
    return [
        (place, step, tuple(ex.evaluate(dim, sizes_of(call, each)) for dim in step.dims))
        for each in rows
        for place, step in enumerate(snapshot.plan.steps)
        if isinstance(step, Launch)
    ]


def run(setting: Setting, log: Log, *, seed: int, budget_s: float) -> dict[str, Any]:
    """The whole of it; the report."""
    end_s = time.monotonic() + budget_s
    with torch.no_grad(), serving_beside(setting) as (serving, cores):
        bench = Bench(setting, serving, cores, seed=seed, end_s=end_s)
        call = bench.capture(setting.first.hot[:2])
        bench.settle(setting.first.hot)
        # As servers do: what the capture left would be gone through in some call.
        gc.collect()
        gc.freeze()
        say(f"the first mix is tuned, in {bench.daemon.device_s():.1f} s of the device's time")
        for rows in log.before:
            bench.call(rows)
        started_s, spent_s = time.monotonic(), bench.daemon.device_s()
        for pair, requests in enumerate(log.after):
            if bench.is_over:
                say(f"out of time after {pair} pairs")
                break
            if pair == 0:
                bench.daemon.forbid(setting.name)
                bench.note(call, pair, since_s=started_s)
            if pair > 1:
                bench.fill(call, pair)
            kinds = [kind for kind in KINDS if kind != SPINNER or cores]
            # Turned round each time, so that no kind always comes after another.
            turn = pair % len(kinds)
            made = [bench.block(requests, kind=kind) for kind in (*kinds[turn:], *kinds[:turn])]
            if setting.spell_s:
                bench.daemon.allow(setting.name, setting.allowed)
                time.sleep(setting.spell_s)
            bench.note(call, pair + 1, since_s=started_s)
            say(line_of(pair, made))
        if not bench.blocks:
            sys.exit("out of time before the first pair")
        found = judged(bench, call, since_s=started_s)
        report = report_of(bench, found, spent_s=spent_s)
        bench.daemon.close()
    return report


def line_of(pair: int, blocks: Sequence[Block]) -> str:
    """The blocks of the same requests, for people."""
    told = [
        f"{block.kind} {percentile(block.seconds, 0.5) * 1e3:.3f}"
        f" / {percentile(block.seconds, 0.99) * 1e3:.3f} ms"
        for block in sorted(blocks, key=lambda block: KINDS.index(block.kind))
    ]
    beside = next(block for block in blocks if block.kind == WITH)
    return (
        f"pair {pair + 1}: p50 / p99 {', '.join(told)}; {beside.device_s:.2f} s of the device,"
        f" {beside.workers_cpu_s:.2f} s of workers' CPU time"
    )


def judged(bench: Bench, call: Call, *, since_s: float) -> list[dict[str, Any]]:
    """Regret of what served after each pair: against the fastest, in one contest a size."""
    bench.daemon.drop()
    bench.daemon.allow(bench.setting.name, admin.DEVICE_POLICY_ALWAYS)
    if not bench.serving.finish(timeout_s=max(FINISH_S, bench.end_s - time.monotonic())):
        say("tuning has not ended in time: nothing is judged")
        return []
    bench.serving.settle(timeout_s=SETTLE_S)
    bench.note(call, len(bench.served), since_s=since_s)
    shares = bench.setting.second.shares()
    weights: dict[tuple[str, tuple[int, ...]], float] = {}
    fallbacks: dict[str, str] = {}
    for rows, share in shares.items():
        for _, step, dims in launches(call, [rows]):
            weights[step.kernel, dims] = share
            fallbacks[step.kernel] = step.fallback
    snapshot = call.handle.snapshot
    assert snapshot is not None
    timings: dict[tuple[str, tuple[int, ...]], dict[str, float]] = {}
    judged_s = time.monotonic() + CONTESTS_S
    for kernel in fallbacks:
        at = [dims for name, dims in weights if name == kernel]
        try:
            bench.daemon.contest(kernel, snapshot.tables[kernel].symbols, at, end_s=judged_s)
        except TimeoutError as error:
            say(f"{error}: nothing is judged")
            return []
        for (dims, subject), seconds in bench.daemon.timings(kernel).items():
            if (kernel, dims) in weights:
                timings.setdefault((kernel, dims), {})[subject] = seconds
    return [row_of(served, weights, timings) for served in bench.served]


def row_of(
    served: Served,
    weights: Mapping[tuple[str, tuple[int, ...]], float],
    timings: Mapping[tuple[str, tuple[int, ...]], Mapping[str, float]],
) -> dict[str, Any]:
    """The regret of what served at one time, weighted by how often each size is met."""
    regrets: list[tuple[float, float]] = []
    for key, weight in weights.items():
        known = timings.get(key, {})
        answer = known.get(served.answers[key])
        if answer is not None:
            best = min(known.values())
            regrets.append((weight, regret(round(answer * 1e9), round(best * 1e9))))
    total = sum(weight for weight, _ in regrets)
    return {
        "after_pair": served.after_pair,
        "device_s": served.device_s,
        "wall_s": served.wall_s,
        "mean_regret": sum(weight * each for weight, each in regrets) / total if total else None,
        "worst_regret": max((each for _, each in regrets), default=None),
        "points": len(regrets),
        "not_timed": len(weights) - len(regrets),
    }


def report_of(
    bench: Bench, judgements: Sequence[dict[str, Any]], *, spent_s: float
) -> dict[str, Any]:
    """Latencies of both kinds of blocks, regrets, counts, and the bars."""
    kind = bench.setting.device
    calls = {
        kind: [each for block in bench.blocks if block.kind == kind for each in block.seconds]
        for kind in KINDS
    }
    used = {
        kind: [each for block in bench.blocks if block.kind == kind for each in block.cpu_s]
        for kind in KINDS
    }
    waited = {
        kind: sum(block.kept_waiting_s for block in bench.blocks if block.kind == kind)
        for kind in KINDS
    }
    latencies = {
        name: {
            "calls": len(seconds),
            "p50_ms": percentile(seconds, 0.5) * 1e3,
            "p99_ms": percentile(seconds, 0.99) * 1e3,
            "worst_ms": max(seconds) * 1e3,
            "cpu_p50_ms": percentile(used[name], 0.5) * 1e3,
            "cpu_p99_ms": percentile(used[name], 0.99) * 1e3,
            "kept_waiting_ms": 1e3 * waited[name] / len(seconds),
        }
        for name, seconds in calls.items()
        if seconds
    }
    ratios = {
        kind: {name: row[name] / latencies[WITHOUT][name] for name in RATIOS}
        for kind, row in latencies.items()
        if kind != WITHOUT
    }
    back_s = next(
        (
            row["device_s"] - spent_s
            for row in judgements
            if row["mean_regret"] is not None and row["mean_regret"] <= REGRET_BAR
        ),
        NEVER_S,
    )
    last = judgements[-1]["mean_regret"] if judgements else None
    bars = [
        Bar("p99 with tuning over without", ratios[WITH]["p99_ms"], P99_BARS[kind], is_ceiling=True,
            points=len(calls[WITH])),
        Bar("mean regret at the end", 1.0 if last is None else last, REGRET_BAR, is_ceiling=True),
        Bar("device seconds until regret is back", back_s, DEVICE_BAR_S, is_ceiling=True),
        Bar("calls that waited or captured", bench.waits + bench.captures, 0, is_ceiling=True),
    ]  # fmt: skip
    return {
        "device": kind,
        "latencies": latencies,
        "ratios": ratios,
        "regrets": list(judgements),
        "waited": bench.waits,
        "captures": bench.captures,
        "fillers": bench.fillers,
        "blocks": [
            {
                "kind": block.kind,
                "calls": len(block.seconds),
                "p50_ms": percentile(block.seconds, 0.5) * 1e3,
                "p99_ms": percentile(block.seconds, 0.99) * 1e3,
                "device_s": block.device_s,
                "workers_cpu_s": block.workers_cpu_s,
                "kept_waiting_s": block.kept_waiting_s,
            }
            for block in bench.blocks
        ],
        "bars": sweep_report.as_rows(bars),
        "lines": [bar.line() for bar in bars],
    }


@contextmanager
def serving_beside(setting: Setting) -> Generator[tuple[Serving, Cores | None], None, None]:
    """The benchmark's daemon; on a CPU, apart from this process."""
    cores = Cores.chosen() if setting.device == "cpu" else None
    with ExitStack() as stack:
        with cores.of_workers() if cores is not None else nullcontext():
            serving = stack.enter_context(Serving(setting.name))
        if cores is not None:
            cores.pin_here()
        yield serving, cores


def text_of(report: Mapping[str, Any]) -> str:
    """The report for people."""
    names = ("calls", "p50 ms", "p99 ms", "worst ms", "CPU p50", "CPU p99", "waited")
    lines = [" ".join((f"{'':10}", *(f"{name:>9}" for name in names)))]
    for name, row in report["latencies"].items():
        figures = (each for key, each in row.items() if key != "calls")
        lines.append(f"{name:10} {row['calls']:9} " + " ".join(f"{each:9.3f}" for each in figures))
    lines.append(f"{'pair':>4} {'device s':>9} {'wall s':>7} {'mean regret':>12} {'worst':>8}")
    for row in report["regrets"]:
        mean, worst = row["mean_regret"], row["worst_regret"]
        lines.append(
            f"{row['after_pair']:4} {row['device_s']:9.2f} {row['wall_s']:7.1f}"
            f" {100 * mean:10.2f} % {100 * worst:6.1f} %"
            if mean is not None
            else f"{row['after_pair']:4} nothing was timed"
        )
    return "\n".join((*lines, *report["lines"]))


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="what tuning for a new mix costs and brings")
    parser.add_argument("--device", choices=tuple(SETTINGS), default="cpu")
    parser.add_argument("--calls", type=int, help="calls a block; else as the device needs")
    parser.add_argument("--blocks", type=int, default=6, help="pairs of blocks")
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--budget-s", type=float, default=240.0, help="begin nothing after so long")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    options = parser.parse_args()
    setting = SETTINGS[options.device]
    if setting.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no CUDA device")
    calls = options.calls or setting.calls
    log = log_of(
        setting.first,
        setting.second,
        calls=calls,
        blocks=options.blocks,
        seed=options.seed,
    )
    command = (
        f"python -m tests.benchmarks.traffic_shift --device {options.device}"
        f" --calls {calls} --blocks {options.blocks} --seed {options.seed}"
    )
    report = {
        "conditions": conditions_of(command, device=setting.device),
        **run(setting, log, seed=options.seed, budget_s=options.budget_s),
    }
    sweep_report.write(report, options.json)
    sys.stdout.write(text_of(report) + "\n")


if __name__ == "__main__":
    main()
