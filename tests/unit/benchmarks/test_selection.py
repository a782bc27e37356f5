"""How long a selection takes on Tables of a matrix."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.benchmarks import selection, selection_matrix
from tests.unit.benchmarks.test_selection_regret import case


def test_a_matrix_gives_percentiles_by_kernel_and_over_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "matrix.json.gz"
    selection_matrix.write({"kernels": [selection_matrix.as_entry(case())]}, file)
    monkeypatch.setattr(sys, "argv", ["selection", "--from-matrix", str(file), "--json"])
    assert selection.main() == 0
    report = json.loads(capsys.readouterr().out)
    assert report["matrix"] == "matrix.json.gz"
    figures = report["kernels"]["case"]
    assert (figures["variants"], figures["sizes"]) == (3, 2)
    assert 0 < figures["p50_us"] <= figures["p95_us"] <= figures["max_us"]
    assert figures["remembered_us"] > 0
    assert figures["stated_us"] > 0
    assert report["kernels"]["all"]["max_us"] == figures["max_us"]
    monkeypatch.setattr(sys, "argv", ["selection", "--from-matrix", str(file)])
    assert selection.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["kernel", "case", "all"]
