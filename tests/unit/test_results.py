"""Reports that are checked in say where they come from, and meet the bars that they are for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
REPORTS = sorted(RESULTS.glob("*.json"))
OF_H100 = sorted(RESULTS.glob("*-h100-*.json"))


def read(name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return report


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.name)
def test_a_report_names_command_date_device_and_versions(path: Path) -> None:
    report = read(path.name)
    origin = report.get("conditions", report)
    assert origin["command"]
    assert len(origin["date"].split("-")) == 3
    assert origin["device"]["model"]
    assert any(version.startswith("torch ") for version in origin["versions"])
    assert path.name in (RESULTS / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", OF_H100, ids=lambda path: path.name)
def test_a_report_named_for_an_h100_is_of_one(path: Path) -> None:
    report = read(path.name)
    assert "H100" in report.get("conditions", report)["device"]["model"]


def test_the_demo_in_half_precision_is_as_close_to_eager_as_it_must_be() -> None:
    report = read("2026-11-h100-demo.json")
    assert report["precision"] == "float16"
    assert len(report["rows"]) >= 6
    assert all(row["cosine"] >= 0.9999 for row in report["rows"])
    assert all(row["max_abs_diff"] <= 1e-3 for row in report["rows"])
    assert (report["exceptions"], report["recompiles"], report["lost_results"]) == (0, 0, 0)


def test_lowering_a_large_model_takes_as_little_memory_as_it_must() -> None:
    report = read("2026-11-epyc-compiler-memory.json")
    assert {row["target"] for row in report["rows"]} == {"cpu", "cuda"}
    for row in report["rows"]:
        assert row["launches"] >= 500
        assert row["sources"] > row["kernels"] >= 500
        assert row["peak_bytes"] <= 600_000_000


def test_the_sweep_on_a_cpu_is_faster_than_eager_and_inductor() -> None:
    summary = read("2026-11-epyc-sweep.json")["summary"]
    means = {bar["name"]: bar for bar in summary["bars"]}
    assert summary["cases"] >= 46
    assert not summary["errors"]
    assert not summary["left_out"]
    assert means["geometric mean against eager"]["passes"]
    assert means["geometric mean against Inductor"]["passes"]


def test_the_demo_on_a_cpu_meets_its_bars() -> None:
    report = read("2026-11-epyc-demo.json")
    rows = report["rows"]
    assert len({(row["batch"], row["tokens"]) for row in rows}) >= 24
    assert sum(row["batch"] == 1 for row in rows) >= 4
    assert (report["exceptions"], report["recompiles"], report["lost_results"]) == (0, 0, 0)
    assert (report["second_process_compiles"], report["restart_compiles"]) == (0, 0)
    assert report["second_process_tiers"]["T0"] == report["second_process_tiers"]["T1"] == 0
    assert all(row["token_max_abs_diff"] <= 1e-4 for row in rows)
    assert all(row["token_cosine"] >= 0.9999 for row in rows)
    assert report["geomean_vs_eager"] >= 1.05
    assert report["geomean_vs_inductor"] >= 0.98
    assert min(row["eager_ms"] / row["nearhint_ms"] for row in rows) >= 0.97
    limit_s = 1.15 * report["second_process_capture_s"] + 0.5
    assert report["second_process_first_call_s"] <= limit_s


def test_kernels_on_a_cpu_meet_their_bars() -> None:
    report = read("2026-11-epyc-kernels.json")
    assert len(report["chains"]["rows"]) == len(report["singles"]["rows"]) == 30
    assert report["chains"]["served_geomean"] >= 1.3
    assert report["singles"]["served_least"] >= 0.97


def test_at_least_thirty_kernels_were_verified_and_measured() -> None:
    report = read("2026-11-h100-kernels.json")
    steps = [step for case in report["chains"] + report["singles"] for step in case["steps"]]
    assert not any(step["problems"] for step in steps)
    measured = {step["kernel"] for step in steps if step["best_us"] > 0}
    assert len(measured) >= 30
