"""The demo without its daemon: options, conditions, differences, rows and reports."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import nearhint.demo
from nearhint.cli import main
from nearhint.demo import lines
from nearhint.demo.closeness import NOTHING, closeness
from nearhint.demo.conditions import conditions
from nearhint.demo.models import Embeddings
from nearhint.demo.options import GPU_PAIRS, DemoOptions
from nearhint.demo.report import (
    DemoReport,
    FirstCall,
    Restart,
    Row,
    SecondProcess,
    Timing,
    Tuning,
    as_json,
)
from nearhint.demo.rows import Pair, Sides, row
from nearhint.demo.second import first_batch, of_one_capture
from nearhint.demo.text import Batch
from nearhint.demo.tiers import NAMES, Served
from nearhint.exit_codes import ExitCode

ROW = Row(
    batch=4,
    tokens=16,
    repetitions=21,
    eager_ms=2.0,
    nearhint_ms=1.0,
    inductor_ms=None,
    max_abs_diff=1e-4,
    cosine=1.0,
    token_max_abs_diff=5e-3,
    token_cosine=1.0,
    eager_max_abs_diff=2e-4,
    eager_token_max_abs_diff=6e-3,
    tiers={"T0": 0, "T1": 0, "T2": 23},
    hints=3,
)


TUNING = Tuning(
    settled=True,
    settle_s=60.0,
    first_t2_s=None,
    at_t0={"ab" * 32: "winner_fallback"},
    kernels=10,
    variants=90,
    measurements=700,
)


def report() -> DemoReport:
    return DemoReport(
        conditions=conditions(["demo"], device="cpu", now=dt.datetime(2026, 11, 21)),
        precision="float32",
        budget_s=270.0,
        phase_s={"start": 20.0, "second_process": 30.0},
        exceptions=0,
        first_call=FirstCall(capture_s=1.0, first_call_s=1.1),
        tuning=TUNING,
        timing=Timing.of([ROW], captures=2),
        second_process=SecondProcess(
            second_process_capture_s=1.0,
            second_process_first_call_s=1.2,
            second_process_compiles=0,
            second_process_tiers={"T0": 0, "T1": 0, "T2": 23},
        ),
        restart=Restart(
            restart_compiles=0, restart_tiers={"T0": 0, "T1": 0, "T2": 23}, lost_results=0
        ),
        metrics_address="127.0.0.1:1",
        explain="",
    )


KEYS = {
    "schema_version", "conditions", "precision", "rows", "captures", "recompiles", "exceptions",
    "capture_s", "first_call_s", "first_t2_s", "settled", "settle_s", "at_t0", "kernels",
    "variants", "measurements", "second_process_capture_s", "second_process_first_call_s",
    "second_process_compiles", "second_process_tiers", "restart_compiles", "restart_tiers",
    "lost_results", "geomean_vs_eager", "geomean_vs_inductor", "metrics_address", "explain",
    "budget_s", "phase_s",
}  # fmt: skip


def test_a_gpu_computes_in_half_precision_at_pairs_of_its_own() -> None:
    options = DemoOptions(device="cuda")
    assert (options.precision, options.pairs) == ("float16", GPU_PAIRS)
    assert DemoOptions(device="cuda", sizes=((8, 16),)).pairs == ((8, 16),)


def test_options_reach_another_process_whole() -> None:
    options = DemoOptions(device="cuda", model="some/where", sizes=((8, 16), (1, 4)))
    assert DemoOptions.from_text(options.as_text()) == options


def test_the_command_line_passes_its_options_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[DemoOptions] = []

    def run(options: DemoOptions, *, tell: Callable[[str], None]) -> DemoReport:
        seen.append(options)
        tell("what a phase found")
        return report()

    monkeypatch.setattr(nearhint.demo, "run", run)
    arguments = ["demo", "--device", "cuda", "--model", str(tmp_path), "--json"]
    sizes = ["--sizes", "batch=1,8;tokens=16"]
    limits = ["--settle-timeout-s", "9", "--budget-s", "99", "--repetitions", "7"]
    result = CliRunner().invoke(main, [*arguments, *sizes, *limits])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"][0]["tiers"]["T2"] == 23
    assert seen == [
        DemoOptions(
            device="cuda",
            model=str(tmp_path),
            sizes=((1, 16), (8, 16)),
            budget_s=99.0,
            repetitions=7,
            settle_timeout_s=9.0,
        )
    ]


def test_without_json_stdout_is_what_the_phases_told(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[DemoOptions] = []

    def run(options: DemoOptions, *, tell: Callable[[str], None]) -> DemoReport:
        seen.append(options)
        tell("what a phase found")
        tell("what the next found")
        return report()

    monkeypatch.setattr(nearhint.demo, "run", run)
    result = CliRunner().invoke(main, ["demo"])
    assert result.stdout == "what a phase found\nwhat the next found\n"
    assert seen == [DemoOptions()]


def test_sizes_of_other_axes_are_refused() -> None:
    result = CliRunner().invoke(main, ["demo", "--sizes", "batch=1;rows=16"])
    assert result.exit_code == 2
    assert "batch=1,8;tokens=16,64" in result.stderr


def test_a_report_says_what_it_was_made_with() -> None:
    written = json.loads(as_json(report()))
    assert written["schema_version"] == 1
    made = written["conditions"]
    assert made["command"] == "nearhint demo"
    assert made["date"] == "2026-11-21"
    assert made["device"]["model"]
    assert any(version.startswith("torch ") for version in made["versions"])


def test_the_json_has_the_fields_of_all_phases_side_by_side() -> None:
    assert json.loads(as_json(report())).keys() == KEYS


def test_lines_tell_people_what_the_json_tells_scripts() -> None:
    assert "10 Kernels, 90 Variants, 700 Measurements" in lines.tuning(TUNING)
    timing = lines.timing(report().timing)
    assert "1.0e-04" in timing
    assert "medians of 21 interleaved calls" in timing
    assert "geometric mean: 2.000 x eager\n" in timing
    assert "seconds: 50 of 270 (start 20, second process 30)" in lines.closing(report())


def test_inductor_has_a_column_and_a_mean_where_it_was_timed() -> None:
    with_inductor = dataclasses.replace(ROW, inductor_ms=3.0)
    found = lines.timing(Timing.of([with_inductor], captures=3))
    assert "3.000 x Inductor" in found
    assert "captures: 3, recompiles: 1" in found


def test_tuning_that_had_not_ended_is_said_first() -> None:
    found = lines.tuning(dataclasses.replace(TUNING, settled=False))
    assert found.startswith("NOT SETTLED")
    assert "tuned after" not in found


def test_the_first_call_has_more_tokens_than_sentences_where_it_can() -> None:
    batches = [Batch(1, 9, ()), Batch(32, 9, ()), Batch(8, 9, ())]
    assert first_batch(batches).batch == 8
    assert first_batch(batches[:2]).batch == 32


def test_a_capture_serves_one_sentence_or_all_other_numbers() -> None:
    one, some, many = Batch(1, 9, ()), Batch(2, 9, ()), Batch(8, 9, ())
    assert of_one_capture([one, some, many], many) == [some, many]
    assert of_one_capture([one, some, many], one) == [one]


def test_closeness_is_of_the_worst_sentence() -> None:
    reference = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    found = closeness(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), reference)
    assert (found.max_abs_diff, found.cosine) == (1.0, 0.0)


class _Encoder:
    """Embeds as it is told to, or fails."""

    def __init__(self, sentences: torch.Tensor | None) -> None:
        self._sentences = sentences

    def forward(self, features: Any) -> None:
        """Is timed."""

    def embed(self, features: Any) -> Embeddings:
        if self._sentences is None:
            raise RuntimeError("no embeddings")
        return Embeddings(self._sentences.repeat(1, 3), self._sentences)


def found_row(compiled: torch.Tensor | None) -> Row:
    right = torch.eye(2)
    pair = Pair(Batch(2, 3, ("a", "b")), {}, Embeddings(right.repeat(1, 3), right))
    eager: Any = _Encoder(right + 0.25)
    served: Any = _Encoder(compiled)

    def call(embed: Callable[[], object]) -> Served:
        with contextlib.suppress(RuntimeError):
            embed()
        return Served(dict.fromkeys(NAMES, 0), 0, 0)

    sides = Sides(eager, served, None)
    return row(pair, sides, repetitions=3, call=call, synchronise=lambda: None)


def test_a_row_compares_both_sides_with_the_reference() -> None:
    found = found_row(torch.eye(2) + 0.5)
    assert (found.max_abs_diff, found.token_max_abs_diff) == (0.5, 0.5)
    assert (found.eager_max_abs_diff, found.eager_token_max_abs_diff) == (0.25, 0.25)
    assert 0 < found.cosine < 1


def test_a_call_that_fails_is_as_far_as_can_be() -> None:
    found = found_row(None)
    assert (found.max_abs_diff, found.cosine) == (NOTHING.max_abs_diff, NOTHING.cosine)


def test_a_model_or_a_device_that_is_not_there_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for option, value in (("--model", str(tmp_path)), ("--device", "cuda")):
        result = CliRunner().invoke(main, ["demo", option, value])
        assert result.exit_code == ExitCode.USAGE, result.output
        assert f"SETTING_INVALID: {option} must be" in result.stderr
