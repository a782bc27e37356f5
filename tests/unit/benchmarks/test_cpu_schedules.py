"""Schedules beside each other on a CPU: all are timed and compared, and what is refused is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.benchmarks.cpu_schedules import parser, run
from tests.unit.compiler.kernels import KERNELS

SCHEDULES = [
    "cpu.columns axis=0 lanes=4 unroll=4 split=1",
    "cpu.columns axis=0 lanes=4 unroll=2 split=1",
    "cpu.columns axis=0 lanes=3 unroll=2 split=1",
]


@pytest.fixture(autouse=True)
def threads_as_they_were() -> Iterator[None]:
    """The script sets how many torch has, for the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_schedule_that_can_be_is_timed_and_right(tmp_path: Path) -> None:
    cases = tmp_path / "CASES"
    kernel = str(KERNELS / "column_sum_f32.ir")
    cases.write_text(
        json.dumps(
            [
                {"kernel": kernel, "dims": [[7, 33], [64, 40]], "schedules": SCHEDULES},
                {"kernel": "not asked for.ir", "dims": [[1]], "schedules": []},
            ]
        )
    )
    out = tmp_path / "report.json"
    given = [str(cases), "--pairs", "1", "--only", "column_sum", "--json", str(out)]
    report = run(parser().parse_args(given))
    (case,) = report["cases"]
    assert case["kernel"] == "column_sum_f32"
    assert list(case["refused"]) == SCHEDULES[2:]
    assert [size["dims"] for size in case["sizes"]] == [[7, 33], [64, 40]]
    for size in case["sizes"]:
        assert list(size["us"]) == SCHEDULES[:2]
        assert not size["wrong"]
    assert case["sizes"][0]["bytes"] == 4 * (7 * 33 + 33)
    assert json.loads(out.read_text())["cases"] == report["cases"]
