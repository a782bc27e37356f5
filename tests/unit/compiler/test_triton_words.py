"""Rows in whole words, with their edges apart, compute what the IR says, for every length."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.compiler import test_triton_numerics as numerics
from tests.unit.compiler.test_triton_numerics import Case

LENGTHS = (1, 2, 3, 5, 37, 64, 131)
FORMS = ("persistent x=2", "looped x=1", "looped x=4", "split x=1", "split x=2")


def worded(
    kernel: str, *dims: tuple[int, ...], r: int, group: int = 0, special: bool = False
) -> list[Case]:
    """Every family; indices of 64 bits, and groups of neighbours, in turn."""
    found: list[Case] = []
    for number, form in enumerate(FORMS):
        splits = " splits=3" if form.startswith("split") else ""
        held = 8 * r if form.startswith("persistent") else r
        rest = f"{splits} warps=1 index={32 if number % 2 else 64} aligned=1 divisible=0"
        more = f" group={group}" if group and number else ""
        text = f"cuda.{form} r={held}{rest}{more} words=1"
        found += [Case(kernel, text, each, special) for each in dims]
    return found


def lengths(rows: int) -> list[tuple[int, int]]:
    return [(rows, length) for length in LENGTHS]


CASES = [
    *worded("softmax_f32", *lengths(5), r=32),
    *worded("softmax_f32", (3, 70), r=32, group=4, special=True),
    *worded("row_argmax_f32", *lengths(3), (5, 150), r=32, special=True),
    *numerics.filled(-float("inf"), *worded("row_argmax_f32", *lengths(3), r=32)),
    *worded("mean_variance_f32", *lengths(3), r=32, group=4),
    *worded("mean_variance_f32", (9, 7), r=32, group=2, special=True),
    *worded("layer_norm_dynamic_f32", *lengths(3), r=32),
    *worded("logsumexp_f32", (3, 3), (3, 67), r=32, group=4, special=True),
    *worded("one_row_softmax_f32", (2,), (61,), (251,), r=32),
    *worded("softmax_f16", (5, 6), (3, 147), (2, 408), r=128),
    *worded("softmax_mask_f16", (3, 33), (2, 1021), r=512),
    *worded("row_sum_i64", (5, 1), (5, 31), r=32),
    *worded("row_prod_f64", (3, 9), r=8),
    *worded("row_min_i8", (5, 7), (3, 531), r=512),
    *worded("row_max_u8", (5, 31), r=512),
    *worded("row_max_f16", (3, 50), (7, 129), r=128, special=True),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Every case, prepared and run in one process."""
    folder = tmp_path_factory.mktemp("words")
    prepared = {case.name: numerics.prepare(case, folder) for case in CASES}
    subprocess.run([sys.executable, numerics.RUNNER, folder], check=True)
    return folder, prepared


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(
    case: Case, results: tuple[Path, dict[str, dict[str, Any]]]
) -> None:
    numerics.test_source_agrees_with_the_interpreter_of_the_ir(case, results)
