"""The demo without its daemon: options, conditions, differences, rows and reports."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from rich.progress import Progress

import nearhint.demo
from nearhint.cli import main
from nearhint.demo import phases
from nearhint.demo.closeness import NOTHING, closeness
from nearhint.demo.conditions import conditions
from nearhint.demo.daemon import DemoDaemon
from nearhint.demo.models import Embeddings
from nearhint.demo.options import GPU_PAIRS, DemoOptions
from nearhint.demo.report import DemoReport, Row, as_json, as_table
from nearhint.demo.second import first_batch
from nearhint.demo.text import Batch
from nearhint.exit_codes import ExitCode

ROW = Row(
    batch=4,
    tokens=16,
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


def report() -> DemoReport:
    return DemoReport(
        conditions=conditions(["demo"], device="cpu", now=dt.datetime(2026, 11, 21)),
        precision="float32",
        rows=(ROW,),
        captures=2,
        recompiles=0,
        exceptions=0,
        capture_s=1.0,
        first_call_s=1.1,
        first_t2_s=None,
        settled=True,
        settle_s=60.0,
        at_t0={"ab" * 32: "winner_fallback"},
        kernels=10,
        variants=90,
        measurements=700,
        second_process_capture_s=1.0,
        second_process_first_call_s=1.2,
        second_process_compiles=0,
        second_process_tiers={"T0": 0, "T1": 0, "T2": 23},
        restart_compiles=0,
        restart_tiers={"T0": 0, "T1": 0, "T2": 23},
        lost_results=0,
        geomean_vs_eager=2.0,
        geomean_vs_inductor=None,
        metrics_address="127.0.0.1:1",
        explain="",
    )


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

    def run(options: DemoOptions) -> DemoReport:
        seen.append(options)
        return report()

    monkeypatch.setattr(nearhint.demo, "run", run)
    arguments = ["demo", "--device", "cuda", "--model", str(tmp_path), "--json"]
    sizes = ["--sizes", "batch=1,8;tokens=16", "--settle-timeout-s", "9"]
    result = CliRunner().invoke(main, [*arguments, *sizes])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"][0]["tiers"]["T2"] == 23
    assert seen == [
        DemoOptions(
            device="cuda", model=str(tmp_path), sizes=((1, 16), (8, 16)), settle_timeout_s=9.0
        )
    ]


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


def test_a_table_tells_people_what_the_json_tells_scripts() -> None:
    text = as_table(report())
    assert "10 Kernels, 90 Variants, 700 Measurements" in text
    assert "1.0e-04" in text


def test_the_first_call_has_more_tokens_than_sentences_where_it_can() -> None:
    batches = [Batch(1, 9, ()), Batch(32, 9, ()), Batch(8, 9, ())]
    assert first_batch(batches).batch == 8
    assert first_batch(batches[:2]).batch == 32


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


def row(compiled: torch.Tensor | None, tmp_path: Path) -> Row:
    right = torch.eye(2)
    pair = phases._Pair(Batch(2, 3, ("a", "b")), {}, Embeddings(right.repeat(1, 3), right))
    with Progress(disable=True) as progress:
        demo = phases._Demo(DemoOptions(repetitions=3), DemoDaemon(tmp_path), tmp_path, progress)
        eager: Any = _Encoder(right + 0.25)
        served: Any = _Encoder(compiled)
        return demo._row(eager, served, None, pair)


def test_a_row_compares_both_sides_with_the_reference(tmp_path: Path) -> None:
    found = row(torch.eye(2) + 0.5, tmp_path)
    assert (found.max_abs_diff, found.token_max_abs_diff) == (0.5, 0.5)
    assert (found.eager_max_abs_diff, found.eager_token_max_abs_diff) == (0.25, 0.25)
    assert 0 < found.cosine < 1


def test_a_call_that_fails_is_as_far_as_can_be(tmp_path: Path) -> None:
    found = row(None, tmp_path)
    assert (found.max_abs_diff, found.cosine) == (NOTHING.max_abs_diff, NOTHING.cosine)


def test_a_model_or_a_device_that_is_not_there_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for option, value in (("--model", str(tmp_path)), ("--device", "cuda")):
        result = CliRunner().invoke(main, ["demo", option, value])
        assert result.exit_code == ExitCode.USAGE, result.output
        assert f"SETTING_INVALID: {option} must be" in result.stderr
