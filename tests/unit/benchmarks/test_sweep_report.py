"""Reports as they grow, and bars."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.benchmarks import sweep_report
from tests.benchmarks.sweep_report import Bar, least_bar, mean_bar, most_bar


def test_a_bar_at_its_figure_is_met_from_either_side() -> None:
    assert Bar("x", 1.25, 1.25).passes
    assert not Bar("x", 1.249, 1.25).passes
    assert Bar("x", 80.0, 80.0, is_ceiling=True).passes
    assert not Bar("x", 80.1, 80.0, is_ceiling=True).passes


def test_bars_without_figures_are_not_printed() -> None:
    assert mean_bar("x", [], 1.0) == least_bar("x", [], 1.0) == most_bar("x", [], 1.0) == []


def test_bars_take_the_mean_the_least_and_the_most() -> None:
    assert mean_bar("x", [1.0, 4.0], 1.0)[0].figure == pytest.approx(2.0)
    assert least_bar("x", [1.0, 4.0], 1.0)[0].figure == 1.0
    assert most_bar("x", [1.0, 4.0], 2.0)[0].figure == 4.0
    assert not most_bar("x", [1.0, 4.0], 2.0)[0].passes


def test_a_missed_bar_says_so() -> None:
    assert Bar("least", 0.5, 0.95).line().startswith("FAIL  least: 0.500, at least 0.95")


def test_a_report_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    sweep_report.write({"rows": [1]}, file)
    sweep_report.write({"rows": [1, 2]}, file)
    assert json.loads(file.read_text(encoding="utf-8")) == {"rows": [1, 2]}
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_what_cannot_be_written_leaves_the_last_report(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    sweep_report.write({"rows": [1]}, file)
    with pytest.raises(TypeError):
        sweep_report.write({"rows": object()}, file)
    assert json.loads(file.read_text(encoding="utf-8")) == {"rows": [1]}
