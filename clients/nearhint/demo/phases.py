"""The demo's phases: cold, settled, timed, second process, killed and restarted."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from nearhint.demo import lines, second
from nearhint.demo.budget import Budget, Costs
from nearhint.demo.conditions import conditions
from nearhint.demo.daemon import DemoDaemon, environment, explained, lost, results
from nearhint.demo.models import Encoder, check_present, warm_up_capture
from nearhint.demo.options import DemoOptions
from nearhint.demo.report import (
    DemoReport,
    FirstCall,
    Restart,
    Row,
    SecondProcess,
    Timing,
    Tuning,
)
from nearhint.demo.rows import Pair, Sides, row
from nearhint.demo.stages import Stages
from nearhint.demo.tiers import NAMES, Served, served
from nearhint.ending import interrupted_when_told_to_end
from nearhint.readiness import SettleReport, settle, status
from nearhint.session import counters, shutdown

RECONNECT_TIMEOUT_S = 60.0
_POLL_S = 0.1


def run(options: DemoOptions, *, tell: Callable[[str], None]) -> DemoReport:
    """The whole demo, on a daemon in a temporary directory; progress goes to stderr.

    `tell` is given what each phase found, as text, when it ends. Raises `InvalidSetting` before
    anything is started where device or model are not there.
    """
    budget = Budget(options.budget_s)
    check_present(device=options.device, directory=options.model)
    directory = Path(tempfile.mkdtemp(prefix="nearhint-demo-"))
    daemon = DemoDaemon(directory)
    outside = dict(os.environ)
    with interrupted_when_told_to_end():
        try:
            os.environ.update(environment(daemon, directory))
            stages = Stages(Console(stderr=True))
            return _Demo(options, daemon, directory, budget=budget, stages=stages, tell=tell).run()
        finally:
            shutdown()
            daemon.stop()
            os.environ.clear()
            os.environ.update(outside)
            shutil.rmtree(directory, ignore_errors=True)


class _Demo:
    """One run, against a daemon that it starts; `run` is the list of its phases."""

    def __init__(
        self,
        options: DemoOptions,
        daemon: DemoDaemon,
        directory: Path,
        *,
        budget: Budget,
        stages: Stages,
        tell: Callable[[str], None],
    ) -> None:
        self._options = options
        self._daemon = daemon
        self._directory = directory
        self._budget = budget
        self._stages = stages
        self._tell = tell
        self._device = "cpu" if options.device == "cpu" else "cuda:0"
        self._synchronise: Callable[[], object] = (
            torch.cuda.synchronize if self._device != "cpu" else lambda: None
        )
        self._exceptions = 0
        self._first_t2_s: float | None = None

    def run(self) -> DemoReport:
        """All phases; each is told of when it ends."""
        sides, pairs, costs = self._start()
        before = _captures()
        first_call, start = self._first_call(sides.compiled, pairs, costs.capture_s)
        tuning = self._tune(sides.compiled, pairs, costs, start)
        rows = self._time(sides, pairs, costs)
        timing = Timing.of(rows, captures=_captures() - before)
        self._tell(lines.timing(timing))
        second_process = self._second_process(costs.capture_s)
        restart = self._restart(sides.compiled, pairs, settled=tuning.settled)
        with self._stages.stage("explain"):
            explain = explained(self._daemon)
        report = DemoReport(
            conditions=conditions(sys.argv[1:], device=self._options.device, now=_now()),
            precision=self._options.precision,
            budget_s=self._options.budget_s,
            phase_s=self._stages.seconds,
            exceptions=self._exceptions,
            first_call=first_call,
            tuning=tuning,
            timing=timing,
            second_process=second_process,
            restart=restart,
            metrics_address=self._daemon.status().metrics_address,
            explain=explain,
        )
        self._tell(lines.closing(report))
        return report

    def _start(self) -> tuple[Sides, list[Pair], Costs]:
        """Daemon and models, while a new process gets ready, which then captures alone."""
        with self._stages.stage("start"), self._process("capture") as answer:
            start_s = time.perf_counter()
            self._daemon.start()
            daemon_s = time.perf_counter() - start_s
            eager = self._encoder()
            exact = eager if self._options.precision == "float32" else self._encoder("float32")
            inductor = self._encoder() if self._options.compare == "inductor" else None
            sides = Sides(eager, self._encoder(), inductor)
            sides.compiled.compile("nearhint")
            if inductor is not None:
                inductor.compile("inductor")
            warm_up_capture()
            capture_s = answer().first_call_s
            process_s = time.perf_counter() - start_s
            pairs, forwards_s = self._pairs(eager, exact)
        costs = Costs(
            process_s=process_s,
            capture_s=capture_s,
            daemon_s=daemon_s,
            forwards_s=tuple(forwards_s),
            sides=len(sides.by_name),
            has_inductor=inductor is not None,
        )
        return sides, pairs, costs

    def _process(self, role: str) -> AbstractContextManager[Callable[[], second.Answer]]:
        where = environment(self._daemon, self._directory)
        return second.started(role, self._options, environment=where)

    def _encoder(self, precision: str = "") -> Encoder:
        return Encoder(
            device=self._options.device,
            precision=precision or self._options.precision,
            directory=self._options.model,
        )

    def _pairs(self, eager: Encoder, exact: Encoder) -> tuple[list[Pair], list[float]]:
        """The batches, with what eager makes of them in float32, and the seconds that it took."""
        batches = eager.batches(self._options.pairs)
        exact.embed(exact.tokenise(batches[0]))
        pairs: list[Pair] = []
        forwards_s: list[float] = []
        for batch in batches:
            features = exact.tokenise(batch)
            self._synchronise()
            start_s = time.perf_counter()
            reference = exact.embed(features)
            self._synchronise()
            forwards_s.append(time.perf_counter() - start_s)
            pairs.append(Pair(batch, eager.tokenise(batch), reference))
        return pairs, forwards_s

    def _call(self, call: Callable[[], object]) -> Served:
        """A call of the model; an exception is counted, and there must be none."""
        try:
            return served(call)
        except Exception as error:
            self._exceptions += 1
            self._stages.say(f"exception: {error!r}")
            return Served(dict.fromkeys(NAMES, 0), 0, 1)

    def _encode(self, compiled: Encoder, pair: Pair, start: float) -> Served:
        answer = self._call(lambda: compiled.encode(pair.batch.sentences))
        if self._first_t2_s is None and answer.tiers["T2"]:
            self._first_t2_s = time.perf_counter() - start
        return answer

    def _first_call(
        self, compiled: Encoder, pairs: Sequence[Pair], capture_s: float
    ) -> tuple[FirstCall, float]:
        """The first call, and when it began."""
        first = second.first_batch([pair.batch for pair in pairs])
        features = next(pair.features for pair in pairs if pair.batch is first)
        with self._stages.stage("first_call"):
            start = time.perf_counter()
            self._call(lambda: compiled.forward(features))
            first_call_s = time.perf_counter() - start
        found = FirstCall(capture_s=capture_s, first_call_s=first_call_s)
        self._tell(lines.first_call(found))
        return found, start

    def _tune(self, compiled: Encoder, pairs: Sequence[Pair], costs: Costs, start: float) -> Tuning:
        """Calls of all pairs, and the wait for the daemon, which then leaves the device alone."""
        with self._stages.stage("tuning") as progress:
            for pair in progress.track(pairs, description="cold"):
                self._encode(compiled, pair, start)
            report = self._settle(compiled, pairs, costs, start, progress)
            settle_s = time.perf_counter() - start
            tuned = self._daemon.status()
            self._daemon.finish(timeout_s=self._tuning_left_s(costs, start))
            self._daemon.leave_alone(self._device)
        found = Tuning(
            settled=report.settled,
            settle_s=settle_s,
            first_t2_s=self._first_t2_s,
            at_t0=report.at_t0,
            kernels=tuned.kernels,
            variants=tuned.variants,
            measurements=tuned.measurements,
        )
        self._tell(lines.tuning(found))
        return found

    def _tuning_left_s(self, costs: Costs, start: float) -> float:
        left_s = self._budget.left_s(reserved_s=costs.after_tuning_s)
        longest_s = self._options.settle_timeout_s
        if longest_s is None:
            return left_s
        return max(0.0, min(left_s, start + longest_s - time.perf_counter()))

    def _settle(
        self,
        compiled: Encoder,
        pairs: Sequence[Pair],
        costs: Costs,
        start: float,
        progress: Progress,
    ) -> SettleReport:
        """Waits for the tuning; encodes now and then, to see the first launch at T2."""
        task = progress.add_task("tuning", total=None)
        report = settle(timeout_s=0)
        while not report.settled and (left_s := self._tuning_left_s(costs, start)):
            report = settle(timeout_s=min(left_s, 1.0 if self._first_t2_s is None else 5.0))
            known = len(report.at_t2) + len(report.at_t1) + len(report.at_t0)
            progress.update(task, completed=known, total=known + len(report.pending))
            if self._first_t2_s is None:
                self._encode(compiled, pairs[0], start)
        progress.remove_task(task)
        for pair in pairs:
            self._encode(compiled, pair, start)
        return report

    def _time(self, sides: Sides, pairs: Sequence[Pair], costs: Costs) -> list[Row]:
        with self._stages.stage("timing") as progress:
            if sides.inductor is not None:
                for pair in progress.track(pairs, description="inductor compiles"):
                    sides.inductor.forward(pair.features)
            most = self._options.repetitions
            return [
                row(
                    pair,
                    sides,
                    repetitions=costs.repetitions(done, budget=self._budget, most=most),
                    call=self._call,
                    synchronise=self._synchronise,
                )
                for done, pair in enumerate(progress.track(pairs, description="timing"))
            ]

    def _second_process(self, capture_s: float) -> SecondProcess:
        """A process beside this one, which finds all that it needs at the daemon."""
        with self._stages.stage("second_process"), self._process("serve") as answer:
            compiles = self._daemon.status().compiles_run
            other = answer()
            found = SecondProcess(
                second_process_capture_s=capture_s,
                second_process_first_call_s=other.first_call_s,
                second_process_compiles=self._daemon.status().compiles_run - compiles,
                second_process_tiers=other.first_tiers,
            )
        self._tell(lines.second_process(found))
        return found

    def _restart(self, compiled: Encoder, pairs: Sequence[Pair], *, settled: bool) -> Restart:
        """Kills the daemon and starts it again, with calls before, between and after."""
        with self._stages.stage("restart"):
            connection = self._daemon.connect()
            try:
                before = results(connection)
            finally:
                connection.close()
            self._daemon.kill()
            self._call(lambda: compiled.encode(pairs[0].batch.sentences))
            self._daemon.start()
            deadline = time.perf_counter() + RECONNECT_TIMEOUT_S
            while not status().connected and time.perf_counter() < deadline:
                time.sleep(_POLL_S)
            answers = [self._call(partial(compiled.encode, each.batch.sentences)) for each in pairs]
            # What was not tuned before waits for the device, which the policy still keeps free.
            if settled:
                settle(timeout_s=RECONNECT_TIMEOUT_S)
            connection = self._daemon.connect()
            try:
                lost_results = lost(before, connection)
                compiles: int = connection.get_status().compiles_run
            finally:
                connection.close()
        found = Restart(
            restart_compiles=compiles,
            restart_tiers={name: sum(each.tiers[name] for each in answers) for name in NAMES},
            lost_results=lost_results,
        )
        self._tell(lines.restart(found))
        return found


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _captures() -> int:
    """Graphs that the backend was given in this process, whatever became of them."""
    return sum(
        count
        for name, count in counters.seen().items()
        if name == "captures" or name.startswith("original_")
    )
