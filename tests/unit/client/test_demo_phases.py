"""The demo's phases in order, with a model, a daemon and a second process that do nothing."""

from __future__ import annotations

import contextlib
import io
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from nearhint.demo import phases, second
from nearhint.demo.budget import Budget
from nearhint.demo.models import Embeddings
from nearhint.demo.options import DemoOptions
from nearhint.demo.report import DemoReport
from nearhint.demo.stages import STAGES, Stages
from nearhint.demo.text import Batch
from nearhint.demo.tiers import NAMES, Served
from nearhint.readiness import SettleReport

PAIRS = ((1, 9), (4, 16))


class _Encoder:
    """Makes the same of every batch."""

    def compile(self, backend: str) -> None:
        """Is not compiled."""

    def batches(self, pairs: tuple[tuple[int, int], ...]) -> list[Batch]:
        return [Batch(batch, tokens, ("a",) * batch) for batch, tokens in pairs]

    def tokenise(self, batch: Batch) -> dict[str, int]:
        return {"batch": batch.batch}

    def forward(self, features: dict[str, int]) -> None:
        """Is timed."""

    def encode(self, sentences: tuple[str, ...]) -> None:
        """Is served."""

    def embed(self, features: dict[str, int]) -> Embeddings:
        return Embeddings(torch.ones(features["batch"], 2, 3), torch.ones(features["batch"], 3))


class _Daemon:
    """Writes down what it is asked."""

    def __init__(self, seen: list[str]) -> None:
        self.address = "unix:/nowhere"
        self._seen = seen
        self.finish_timeout_s = -1.0

    def start(self) -> None:
        self._seen.append("daemon starts")

    def kill(self) -> None:
        self._seen.append("daemon is killed")

    def finish(self, *, timeout_s: float) -> bool:
        self.finish_timeout_s = timeout_s
        return True

    def leave_alone(self, device: str) -> None:
        self._seen.append(f"{device} is left alone")

    def status(self) -> Any:
        return SimpleNamespace(
            kernels=1, variants=2, measurements=3, compiles_run=4, metrics_address="here"
        )

    def connect(self) -> Any:
        return SimpleNamespace(close=lambda: None, get_status=self.status)


class Stage:
    """A demo whose every part is a stand-in; `settle_s` are the timeouts that tuning was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, tuned_after: int) -> None:
        self.seen: list[str] = []
        self.settle_s: list[float] = []
        self.now_s = 0.0
        self.daemon = _Daemon(self.seen)
        self._tuned_after = tuned_after
        for name, stand_in in {
            "Encoder": lambda **_: _Encoder(),
            "warm_up_capture": lambda: None,
            "served": self._served,
            "settle": self._settle,
            "status": lambda: SimpleNamespace(connected=True),
            "results": lambda connection: None,
            "lost": lambda before, connection: 0,
            "explained": lambda daemon: "the page of reasons\n",
        }.items():
            monkeypatch.setattr(phases, name, stand_in)
        monkeypatch.setattr(second, "started", self._started)

    def run(self, options: DemoOptions) -> tuple[DemoReport, str]:
        """The report, and what was said on stderr."""
        told = io.StringIO()
        daemon: Any = self.daemon
        demo = phases._Demo(
            options,
            daemon,
            Path("/nowhere"),
            budget=Budget(options.budget_s, clock=lambda: self.now_s),
            stages=Stages(Console(file=told), clock=lambda: self.now_s),
            tell=lambda text: self.seen.append(f"told: {text.splitlines()[-1]}"),
        )
        return demo.run(), told.getvalue()

    def _served(self, call: Callable[[], object]) -> Served:
        call()
        return Served(dict.fromkeys(NAMES, 1), 1, 0)

    def _settle(self, *, timeout_s: float) -> SettleReport:
        self.settle_s.append(timeout_s)
        self.now_s += timeout_s
        return SettleReport(settled=len(self.settle_s) > self._tuned_after)

    @contextlib.contextmanager
    def _started(
        self, role: str, options: DemoOptions, *, environment: dict[str, str]
    ) -> Generator[Callable[[], second.Answer]]:
        def answer() -> second.Answer:
            self.seen.append(f"{role} begins")
            return second.Answer(first_call_s=1.0, first_tiers={"T0": 0, "T1": 0, "T2": 23})

        self.seen.append(f"{role} gets ready")
        yield answer


def test_each_phase_is_told_of_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, tuned_after=1)
    report, stderr = stage.run(DemoOptions(sizes=PAIRS))
    first, *_ = [line for line in stage.seen if line.startswith("told: first call")]
    assert stage.seen == [
        "capture gets ready",
        "daemon starts",
        "capture begins",
        first,
        "cpu is left alone",
        "told: first launch at T2: after 0.0 s",
        "told: captures: 0, recompiles: 0",
        "serve gets ready",
        "serve begins",
        "told: second process, compiles: 0",
        "daemon is killed",
        "daemon starts",
        "told: after kill -9 and restart, lost results: 0",
        "told: the page of reasons",
    ]
    assert report.tuning.settled
    assert [row.repetitions for row in report.timing.rows] == [21, 21]
    assert report.phase_s.keys() == STAGES.keys()
    assert stderr.splitlines() == [f"demo: {text}" for text in STAGES.values()]


def test_tuning_ends_when_the_rest_of_the_budget_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, tuned_after=1000)
    report, _ = stage.run(DemoOptions(sizes=PAIRS, budget_s=60.0))
    assert not report.tuning.settled
    assert 0 < sum(stage.settle_s) < 60.0
    assert stage.daemon.finish_timeout_s == 0.0
    assert all(row.repetitions >= 5 for row in report.timing.rows)


def test_a_budget_that_is_spent_at_once_leaves_no_phase_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, tuned_after=1000)
    report, _ = stage.run(DemoOptions(sizes=PAIRS, budget_s=0.001))
    assert stage.settle_s == [0]
    assert [row.repetitions for row in report.timing.rows] == [5, 5]
    assert report.phase_s.keys() == STAGES.keys()


def test_tuning_is_waited_for_no_longer_than_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, tuned_after=1000)
    report, _ = stage.run(DemoOptions(sizes=PAIRS, budget_s=1e6, settle_timeout_s=1e-9))
    assert not report.tuning.settled
    assert sum(stage.settle_s) < 1e-9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_told_to_end_stops_its_daemon(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    seen: list[str] = []

    class Told(_Daemon):
        def __init__(self, directory: Path) -> None:
            super().__init__(seen)
            self.directory = directory

        def start(self) -> None:
            super().start()
            signal.raise_signal(number)
            raise AssertionError("it went on")

        def stop(self) -> None:
            assert self.directory.is_dir()
            seen.append(str(self.directory))

    Stage(monkeypatch, tuned_after=1)
    monkeypatch.setattr(phases, "DemoDaemon", Told)
    monkeypatch.setattr(phases, "check_present", lambda **_: None)
    before = signal.signal(number, lambda *_: None)
    try:
        with pytest.raises(KeyboardInterrupt):
            phases.run(DemoOptions(sizes=PAIRS), tell=seen.append)
    finally:
        signal.signal(number, before)
    started, directory = seen
    assert started == "daemon starts"
    assert not Path(directory).exists()


def test_on_a_terminal_a_phase_is_a_bar_that_goes_away() -> None:
    told = io.StringIO()
    stages = Stages(Console(file=told, force_terminal=True), clock=lambda: 0.0)
    with stages.stage("restart"):
        pass
    assert "demo: " not in told.getvalue()
    assert stages.seconds == {"restart": 0.0}
