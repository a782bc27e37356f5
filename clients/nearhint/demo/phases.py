"""The demo's phases: cold, settled, timed, second process, killed and restarted."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from nearhint.demo import second
from nearhint.demo.closeness import NOTHING, closeness
from nearhint.demo.conditions import conditions
from nearhint.demo.daemon import DemoDaemon, environment, explained, lost, results
from nearhint.demo.models import (
    Embeddings,
    Encoder,
    Features,
    check_present,
    warm_up_capture,
)
from nearhint.demo.options import DemoOptions
from nearhint.demo.report import DemoReport, Row, geometric_mean
from nearhint.demo.text import Batch
from nearhint.demo.tiers import Served, served
from nearhint.demo.timing import interleaved_ms
from nearhint.readiness import SettleReport, settle, status
from nearhint.session import counters, shutdown

RECONNECT_TIMEOUT_S = 60.0
_POLL_S = 0.1


def run(options: DemoOptions) -> DemoReport:
    """The whole demo, on a daemon in a temporary directory; progress goes to stderr.

    Raises `InvalidSetting` before anything is started where device or model are not there.
    """
    check_present(device=options.device, directory=options.model)
    directory = Path(tempfile.mkdtemp(prefix="nearhint-demo-"))
    daemon = DemoDaemon(directory)
    outside = dict(os.environ)
    try:
        os.environ.update(environment(daemon, directory))
        daemon.start()
        with Progress(console=Console(stderr=True), transient=True) as progress:
            return _Demo(options, daemon, directory, progress).run()
    finally:
        shutdown()
        daemon.stop()
        os.environ.clear()
        os.environ.update(outside)
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(slots=True)
class _Pair:
    batch: Batch
    features: Features
    reference: Embeddings


class _Demo:
    def __init__(
        self, options: DemoOptions, daemon: DemoDaemon, directory: Path, progress: Progress
    ) -> None:
        self._options = options
        self._daemon = daemon
        self._directory = directory
        self._progress = progress
        self._device = "cpu" if options.device == "cpu" else "cuda:0"
        self._exceptions = 0
        self._first_t2_s: float | None = None

    def run(self) -> DemoReport:
        options = self._options
        capture_s = self._ask("capture").first_call_s
        eager, compiled = self._encoder(), self._encoder()
        compiled.compile("nearhint")
        inductor = self._inductor()
        pairs = self._pairs(eager)
        warm_up_capture()
        before = _captures()

        start = time.perf_counter()
        first = second.first_batch([pair.batch for pair in pairs])
        features = next(pair.features for pair in pairs if pair.batch is first)
        self._call(lambda: compiled.forward(features))
        first_call_s = time.perf_counter() - start
        self._cold(compiled, pairs, start)
        settled = self._settle(compiled, pairs, start)
        settle_s = time.perf_counter() - start
        tuned = self._daemon.status()

        self._daemon.finish()
        self._daemon.leave_alone(self._device)
        rows = self._time(eager, compiled, inductor, pairs)
        captures = _captures() - before

        compiles = self._daemon.status().compiles_run
        second_capture_s = self._ask("capture").first_call_s
        other = self._ask("serve")
        second_compiles = self._daemon.status().compiles_run - compiles
        restart_tiers, restart_compiles, lost_results = self._restart(compiled, pairs)
        return DemoReport(
            conditions=conditions(sys.argv[1:], device=options.device, now=dt.datetime.now(dt.UTC)),
            precision=options.precision,
            rows=tuple(rows),
            captures=captures,
            recompiles=max(0, captures - 2),
            exceptions=self._exceptions,
            capture_s=capture_s,
            first_call_s=first_call_s,
            first_t2_s=self._first_t2_s,
            settled=settled.settled,
            settle_s=settle_s,
            at_t0=settled.at_t0,
            kernels=tuned.kernels,
            variants=tuned.variants,
            measurements=tuned.measurements,
            second_process_capture_s=second_capture_s,
            second_process_first_call_s=other.first_call_s,
            second_process_compiles=second_compiles,
            second_process_tiers=other.first_tiers,
            restart_compiles=restart_compiles,
            restart_tiers=restart_tiers,
            lost_results=lost_results,
            geomean_vs_eager=geometric_mean(row.eager_ms / row.nearhint_ms for row in rows),
            geomean_vs_inductor=geometric_mean(
                row.inductor_ms / row.nearhint_ms for row in rows if row.inductor_ms is not None
            )
            if inductor is not None
            else None,
            metrics_address=self._daemon.status().metrics_address,
            explain=explained(self._daemon),
        )

    def _ask(self, role: str) -> second.Answer:
        where = environment(self._daemon, self._directory)
        return second.ask(role, self._options, environment=where)

    def _encoder(self, precision: str = "") -> Encoder:
        return Encoder(
            device=self._options.device,
            precision=precision or self._options.precision,
            directory=self._options.model,
        )

    def _inductor(self) -> Encoder | None:
        if self._options.compare != "inductor":
            return None
        encoder = self._encoder()
        encoder.compile("inductor")
        return encoder

    def _pairs(self, eager: Encoder) -> list[_Pair]:
        """The batches, with what eager makes of them in float32."""
        exact = eager if self._options.precision == "float32" else self._encoder("float32")
        return [
            _Pair(batch, eager.tokenise(batch), exact.embed(exact.tokenise(batch)))
            for batch in eager.batches(self._options.pairs)
        ]

    def _call(self, call: Callable[[], object]) -> Served:
        """A call of the model; an exception is counted, and there must be none."""
        try:
            return served(call)
        except Exception as error:
            self._exceptions += 1
            self._progress.console.print(f"exception: {error!r}")
            return Served(dict.fromkeys(("T0", "T1", "T2"), 0), 0, 1)

    def _encode(self, compiled: Encoder, pair: _Pair, start: float) -> Served:
        answer = self._call(lambda: compiled.encode(pair.batch.sentences))
        if self._first_t2_s is None and answer.tiers["T2"]:
            self._first_t2_s = time.perf_counter() - start
        return answer

    def _cold(self, compiled: Encoder, pairs: Sequence[_Pair], start: float) -> None:
        for pair in self._progress.track(pairs, description="cold"):
            self._encode(compiled, pair, start)

    def _settle(self, compiled: Encoder, pairs: Sequence[_Pair], start: float) -> SettleReport:
        """Waits for the tuning; encodes now and then, to see the first launch at T2."""
        deadline = time.perf_counter() + self._options.settle_timeout_s
        task = self._progress.add_task("tuning", total=None)
        report = settle(timeout_s=0)
        while time.perf_counter() < deadline and not report.settled:
            report = settle(timeout_s=1.0 if self._first_t2_s is None else 5.0)
            known = len(report.at_t2) + len(report.at_t0)
            self._progress.update(task, completed=known, total=known + len(report.pending))
            if self._first_t2_s is None:
                self._encode(compiled, pairs[0], start)
        self._progress.remove_task(task)
        for pair in pairs:
            self._encode(compiled, pair, start)
        return report

    def _time(
        self,
        eager: Encoder,
        compiled: Encoder,
        inductor: Encoder | None,
        pairs: Sequence[_Pair],
    ) -> list[Row]:
        if inductor is not None:
            for pair in self._progress.track(pairs, description="inductor compiles"):
                inductor.forward(pair.features)
        return [
            self._row(eager, compiled, inductor, pair)
            for pair in self._progress.track(pairs, description="timing")
        ]

    def _row(self, eager: Encoder, compiled: Encoder, inductor: Encoder | None, pair: _Pair) -> Row:
        encoders = {"eager": eager, "nearhint": compiled}
        if inductor is not None:
            encoders["inductor"] = inductor
        times_ms = interleaved_ms(
            {name: partial(encoder.forward, pair.features) for name, encoder in encoders.items()},
            repetitions=self._options.repetitions,
            synchronise=torch.cuda.synchronize if self._device != "cpu" else lambda: None,
        )
        found: list[Embeddings] = []
        answer = self._call(lambda: found.append(compiled.embed(pair.features)))
        alone = eager.embed(pair.features)
        by_sentence, by_token = NOTHING, NOTHING
        if found:
            by_sentence = closeness(found[0].sentences, pair.reference.sentences)
            by_token = closeness(found[0].tokens, pair.reference.tokens)
        return Row(
            batch=pair.batch.batch,
            tokens=pair.batch.tokens,
            eager_ms=times_ms["eager"],
            nearhint_ms=times_ms["nearhint"],
            inductor_ms=times_ms.get("inductor"),
            max_abs_diff=by_sentence.max_abs_diff,
            cosine=by_sentence.cosine,
            token_max_abs_diff=by_token.max_abs_diff,
            token_cosine=by_token.cosine,
            eager_max_abs_diff=closeness(alone.sentences, pair.reference.sentences).max_abs_diff,
            eager_token_max_abs_diff=closeness(alone.tokens, pair.reference.tokens).max_abs_diff,
            tiers=answer.tiers,
            hints=answer.hints,
        )

    def _restart(
        self, compiled: Encoder, pairs: Sequence[_Pair]
    ) -> tuple[dict[str, int], int, int]:
        """Kills the daemon and starts it again, with calls before, between and after."""
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
        answers = [self._call(partial(compiled.encode, pair.batch.sentences)) for pair in pairs]
        settle(timeout_s=RECONNECT_TIMEOUT_S)
        connection = self._daemon.connect()
        try:
            lost_results = lost(before, connection)
            compiles: int = connection.get_status().compiles_run
        finally:
            connection.close()
        tiers = {name: sum(each.tiers[name] for each in answers) for name in answers[0].tiers}
        return tiers, compiles, lost_results


def _captures() -> int:
    """Graphs that the backend was given in this process, whatever became of them."""
    return sum(
        count
        for name, count in counters.seen().items()
        if name == "captures" or name.startswith("original_")
    )
