"""Rows that a team of programs holds: what is computed, launched and waited for, and given up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.compiler import test_triton_numerics as numerics
from tests.unit.compiler.test_triton_numerics import Case

pytest.importorskip("triton")
pytestmark = pytest.mark.timeout(600)  # all cases are interpreted in one go

PROMISES = "index=32 aligned=1 divisible=0"


def teams(kernel: str, *dims: tuple[int, ...], special: bool = False, more: str = "") -> list[Case]:
    """Programs run one after another there: all but the last of a team give up."""
    narrow = f"cuda.cooperative x=1 r=64 splits=3 teams=2 warps=1 {PROMISES} polls=2{more}"
    wide = narrow.replace("r=64 splits=3", "r=32 splits=7").replace("index=32", "index=64")
    return [Case(kernel, schedule, each, special) for each in dims for schedule in (narrow, wide)]


CASES = [
    *teams("softmax_f32", (5, 37), (3, 130), (1, 192)),
    *teams("softmax_f32", (3, 64), special=True, more=" group=4"),
    *teams("softmax_f32", (5, 3), (5, 37), (3, 131), more=" group=4 words=1"),
    *teams("log_softmax_f32", (2, 161)),
    *teams("layer_norm_dynamic_f32", (3, 153), more=" group=4"),
    *teams("layer_norm_dynamic_f32", (3, 2), (3, 133), more=" group=4 words=1"),
    *teams("row_cumsum_f32", (5, 161), (1, 1)),
    *teams("row_cumsum_f32", (3, 64), special=True),
    *teams("row_cumprod_f64", (3, 141)),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Every case, prepared and run in one process."""
    folder = tmp_path_factory.mktemp("cooperative")
    prepared = {case.name: numerics.prepare(case, folder) for case in CASES}
    subprocess.run([sys.executable, numerics.RUNNER, folder], check=True)
    return folder, prepared


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(
    case: Case, results: tuple[Path, dict[str, dict[str, Any]]]
) -> None:
    numerics.test_source_agrees_with_the_interpreter_of_the_ir(case, results)
