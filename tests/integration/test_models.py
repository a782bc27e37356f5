"""A torch model on a real daemon: T2, killed and stopped in mid-call, warmed up beforehand."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from tests.integration.daemon_process import DaemonProcess, measuring_in
from tests.unit.client.settling import so_far

import nearhint
from nearhint import config, session
from nearhint.cli import main
from nearhint.cli_output import SCHEMA_VERSION
from nearhint.exit_codes import ExitCode
from nearhint.session import counters
from nearhint_torch import compile_ahead
from nearhint_torch.runner import watch

Tensor = torch.Tensor

ROWS = (5, 40)
SETTLE_S = 240.0
CALL_S = 60.0

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.timeout(300),
]

ENTRY = """
import torch
from nearhint_torch import WarmUp


def activation(x, bias):
    return torch.nn.functional.gelu(x + bias)


def warm_up():
    return WarmUp(
        model=activation,
        args=(torch.randn(2, 96), torch.randn(96)),
        dynamic={"x": {0: "rows"}},
    )


def leave():
    raise SystemExit(3)
"""


READER = """
import json, sys, torch, kept_entry
from torch._dynamo.utils import counters
from nearhint_torch import compile_ahead, watch

torch.set_num_threads(1)
x, bias = torch.randn(33, 96), torch.randn(96)
with torch.no_grad(), watch() as reports:
    result = compile_ahead(kept_entry.activation, sys.argv[1])(x, bias)
print(json.dumps({
    "is_close": torch.allclose(result, kept_entry.activation(x, bias), rtol=2e-5, atol=2e-5),
    "traced": counters["stats"]["calls_captured"],
    "tiers": reports[0].tiers,
}))
"""


def activation(x: Tensor, bias: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x + bias)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with measuring_in(tmp_path_factory.mktemp("models")) as process:
        yield process


@pytest.fixture(autouse=True)
def environment(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is a client of the daemon that comes back quickly after a loss."""
    monkeypatch.setenv("NEARHINT_ADDRESS", daemon.address)
    monkeypatch.setenv("NEARHINT_CACHE_DIR", str(daemon.folder / "cache"))
    read = config.from_environment
    monkeypatch.setattr(
        config, "from_environment", lambda *given: replace(read(*given), retry_spread_s=0.1)
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.compiler.reset()
    yield
    session.shutdown()
    torch.compiler.reset()
    torch.set_num_threads(threads)


def inputs(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 96), torch.randn(96)


def close(got: Tensor, expected: Tensor) -> bool:
    return torch.allclose(got, expected, rtol=2e-5, atol=2e-5)


def tuned() -> Callable[[Tensor, Tensor], Tensor]:
    """The function as a kernel, at T2 or with its final reason for T0 at all of `ROWS`."""
    kernel: Callable[[Tensor, Tensor], Tensor] = nearhint.kernel(
        activation, dynamic={"x": {0: "rows"}}
    )
    for rows in ROWS:
        kernel(*inputs(rows))
    report = nearhint.settle(timeout_s=SETTLE_S)
    assert report.settled, report
    assert report.pending == ()
    assert report.at_t2 or report.at_t0
    return kernel


def test_a_new_process_is_served_by_what_another_has_captured(
    daemon: DaemonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept_entry.py").write_text(ENTRY)
    monkeypatch.syspath_prepend(str(tmp_path))
    activation_of_file = importlib.import_module("kept_entry").activation
    first = compile_ahead(activation_of_file, tmp_path / "kept")
    with torch.no_grad():
        for rows in ROWS:
            given = inputs(rows)
            assert close(first(*given), activation(*given))
    report = nearhint.settle(timeout_s=SETTLE_S)
    assert report.settled, report
    compiles = daemon.status().compiles_run
    answer = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path / "kept")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=CALL_S,
    )
    found = json.loads(answer.stdout)
    assert found["is_close"]
    assert found["traced"] == 0
    tier = 2 if report.at_t2 else 0
    assert found["tiers"][tier] == 1
    assert daemon.status().compiles_run == compiles


def test_numbers_that_are_no_size_are_served_by_one_measured_kernel(daemon: DaemonProcess) -> None:
    def function(x: Tensor, n: int) -> Tensor:
        return torch.sin(x * n) / (n / 2 + 1) + torch.arange(n, n + x.shape[1])

    kernel = torch.compile(function, backend="nearhint", dynamic=True)
    x = torch.randn(40, 96)
    with torch.no_grad():
        kernel(x, 3)
        report = nearhint.settle(timeout_s=SETTLE_S)
        assert report.settled, report
        compiles = daemon.status().compiles_run
        with watch() as reports:
            for number in (3, 7, 0, 1, -5, 2**20):
                torch.testing.assert_close(kernel(x, number), function(x, number))
        assert report.at_t2 or report.at_t0
    assert {len(each.launches) for each in reports} == {1}
    assert not [each.reason for report in reports for each in report.launches if not each.tier]
    assert daemon.status().compiles_run == compiles


def test_a_kernel_is_served_at_t2_and_its_calls_do_nothing_but_compute(
    daemon: DaemonProcess,
) -> None:
    kernel = tuned()
    compiles = daemon.status().compiles_run
    captures = counters.seen()["captures"]
    seen: list[bool] = []
    wrong: list[int] = []

    def serve() -> None:
        before = counters.on_this_thread()
        for rows in (*ROWS, 6, 33, 7, *ROWS):  # measured sizes, and others of their buckets
            x, bias = inputs(rows)
            if not close(kernel(x, bias), activation(x, bias)):
                wrong.append(rows)
        seen.append(counters.on_this_thread() == before)

    with watch() as reports:
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join(CALL_S)
    assert seen == [True]
    assert wrong == []
    assert [report.tiers for report in reports] == [(0, 0, 1)] * 7
    assert counters.seen()["captures"] == captures
    assert daemon.status().compiles_run == compiles


class Serving:
    """A thread that calls a kernel until it is told to end, and keeps what went wrong."""

    def __init__(self, kernel: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.problems: list[str] = []
        self._kernel = kernel
        self._calls = 0
        self._changed = threading.Condition()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        rows = 2
        while not self._is_over.is_set():
            rows = rows % 90 + 2  # sizes that are no hints as well
            x, bias = inputs(rows)
            try:
                if not close(self._kernel(x, bias), activation(x, bias)):
                    self.problems.append(f"wrong at {rows}")
            except BaseException as error:
                self.problems.append(repr(error))
            with self._changed:
                self._calls += 1
                self._changed.notify_all()

    def goes_on(self, calls: int = 100) -> None:
        """Waits for so many more calls."""
        with self._changed:
            goal = self._calls + calls
            assert self._changed.wait_for(lambda: self._calls >= goal, CALL_S), "calls hang"

    def end(self) -> list[str]:
        self._is_over.set()
        self._thread.join(CALL_S)
        return self.problems


def test_a_daemon_stopped_killed_and_restarted_between_calls_changes_no_answer(
    daemon: DaemonProcess,
) -> None:
    serving = Serving(tuned())
    serving.goes_on()
    os.kill(daemon.pid, signal.SIGSTOP)
    serving.goes_on()
    os.kill(daemon.pid, signal.SIGCONT)
    serving.goes_on()
    daemon.kill()
    serving.goes_on()
    daemon.start()
    serving.goes_on()
    assert serving.end() == []


def test_a_model_that_meets_no_daemon_runs_as_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARHINT_ADDRESS", f"unix:{tmp_path}/nobody")
    compiled: Any = torch.compile(activation, backend="nearhint", dynamic=True)
    with torch.no_grad(), watch() as reports:
        for rows in ROWS:
            x, bias = inputs(rows)
            assert torch.equal(compiled(x, bias), activation(x, bias))
    assert [report.reason for report in reports] == ["no_plan"] * len(ROWS)
    # Somebody may yet come to answer: nothing is final, and nothing is raised.
    assert len(so_far().pending) == 1


def warm_up(folder: Path, *arguments: str) -> Result:
    (folder / "warm_entry.py").write_text(ENTRY)
    return CliRunner().invoke(main, ["warmup", "warm_entry:warm_up", *arguments])


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "warm_entry", raising=False)
    return tmp_path


def test_a_warm_up_tunes_the_sizes_of_a_file_before_the_first_call(entry: Path) -> None:
    sizes = entry / "sizes.txt"
    sizes.write_text("# last week's\nrows=1\nrows=5,40\n")
    result = warm_up(entry, "--sizes-file", str(sizes), "--json")
    assert result.exit_code == ExitCode.OK, result.output
    report = json.loads(result.stdout)
    assert report["schema_version"] == SCHEMA_VERSION
    assert report["settled"]
    assert report["pending"] == []
    assert [point["sizes"] for point in report["points"]] == [{"rows": n} for n in (1, 5, 40)]
    for point in report["points"]:
        assert point["tiers"]["T0"] == point["tiers"]["T1"] == 0
        assert point["tiers"]["T2"] == 1
        assert point["problem"] == ""
        assert min(point["original_ms"], point["nearhint_ms"]) > 0


def test_a_warm_up_prints_what_was_gained_on_stdout_and_talks_on_stderr(entry: Path) -> None:
    result = warm_up(entry, "--sizes", "rows=5,40")
    assert result.exit_code == ExitCode.OK, result.output
    assert "rows=5" in result.stdout
    assert "gain %" in result.stdout
    assert "tuned" not in result.stdout


def test_a_warm_up_whose_budget_is_spent_is_partial(entry: Path) -> None:
    result = warm_up(entry, "--sizes", "rows=3000", "--budget-s", "0.001", "--json")
    assert result.exit_code == ExitCode.PARTIAL, result.output
    report = json.loads(result.stdout)
    assert (report["settled"], len(report["pending"])) == (False, 1)


def test_a_warm_up_refuses_an_axis_that_the_model_has_not(entry: Path) -> None:
    result = warm_up(entry, "--sizes", "rows=5;columns=3", "--json")
    assert result.exit_code == ExitCode.USAGE, result.output
    assert "DYNAMIC_INVALID: dynamic['columns']" in result.stderr
    assert "its axes: rows" in result.stderr
    assert result.stdout == ""


def test_a_warm_up_without_a_daemon_cannot_reach_it(entry: Path) -> None:
    result = warm_up(entry, "--sizes", "rows=5", "--address", f"unix:{entry}/nobody")
    assert result.exit_code == ExitCode.UNREACHABLE
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("warm_entry:absent", "ENTRY_INVALID"),
        ("warm_entry", "SETTING_INVALID"),  # nor a manifest
        ("no_such_module:warm_up", "ENTRY_INVALID"),
        ("warm_entry:leave", "ENTRY_INVALID"),
    ],
)
def test_an_entry_that_leads_nowhere_is_a_usage_error(entry: Path, name: str, code: str) -> None:
    (entry / "warm_entry.py").write_text(ENTRY)
    result = CliRunner().invoke(main, ["warmup", name, "--sizes", "rows=5"])
    assert result.exit_code == ExitCode.USAGE
    assert f"nearhint: {code}: " in result.stderr
