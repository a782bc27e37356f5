"""The GPU sweep as far as it needs no GPU: captures, marks, resuming, and the dry run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.benchmarks import sweep_functions as of
from tests.benchmarks.gpu_contest import less
from tests.benchmarks.gpu_dry_run import (
    SM_90,
    dry_capture,
    few_sizes,
    findings_in,
    first_candidates,
    kernel_facts,
    taken,
)
from tests.benchmarks.gpu_sweep import resumed
from tests.benchmarks.gpu_sweep_cases import MIDDLE, SWEEPS
from tests.benchmarks.sweeps import Sweep, marked, rows_alone, starts_of

from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import parse_schedule
from nearhint_daemon.workers.contest import Contestant
from nearhint_rules.target import Target

SOFTMAX = Sweep("softmax", of.softmax, of.matrix, MIDDLE, ((700, 50), (1, 50)), torch.bfloat16)
(SOFTMAX_ROWS,) = rows_alone(SOFTMAX)
DIVIDING = """
(kernel (symbols k0 k1) (pointwise (* k0 k1)) (reduction)
  (params (in f32) (out f32))
  (body (load 0 (% p0 k1)) (store 1 p0 0)))
"""


def test_one_row_is_captured_apart_at_columns_that_are_not_measured() -> None:
    assert starts_of(SOFTMAX, MIDDLE) == [MIDDLE, (1, MIDDLE[1])]
    assert starts_of(replace(SOFTMAX, sizes=((700, 50),)), MIDDLE) == [MIDDLE]
    blocks = replace(SOFTMAX, sizes=((700, 64), (9, 32)), unit=32)
    assert starts_of(blocks, MIDDLE) == [MIDDLE, (MIDDLE[0], 32)]


def test_marks_of_rows_do_not_reach_the_static_contender() -> None:
    plain = SOFTMAX_ROWS.case((700, 50)).arguments()
    (dynamic,) = marked(SOFTMAX_ROWS, plain, "b")
    assert dynamic.data_ptr() == plain[0].data_ptr()
    assert dynamic._dynamo_dynamic_indices == {0}  # type: ignore[attr-defined]
    assert not hasattr(plain[0], "_dynamo_dynamic_indices")
    (both,) = marked(SOFTMAX, plain, "a")
    assert not hasattr(both, "_dynamo_dynamic_indices")


def test_the_time_of_the_cache_write_is_taken_off_and_nothing_is_free() -> None:
    alone = Contestant("write", lambda: None, samples=[4000.0, 4000.0])
    both = Contestant("both", lambda: None, samples=[6500.0, 6500.0])
    assert less(both, alone) == 2.5
    assert less(alone, both) == 0.001


def test_a_resumed_report_keeps_its_points_but_those_with_errors(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    points = [{"name": "one", "sizes": [1, 2]}, {"name": "two", "error": "lost"}]
    report = {"mode": "a", "points": points, "sweeps": [{"name": "softmax bf16"}]}
    file.write_text(json.dumps(report), encoding="utf-8")
    found, sweeps = resumed(file, "a")
    assert list(found) == ["one"]
    assert list(sweeps) == ["softmax bf16"]
    with pytest.raises(SystemExit, match="mode a"):
        resumed(file, "b")
    assert resumed(tmp_path / "none.json", "a") == ({}, {})


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.title)
def test_a_dry_run_captures_at_few_rows_and_sizes_that_all_differ(sweep: Sweep) -> None:
    sizes = few_sizes(sweep, "a")
    assert len(sizes) == len(sweep.compiled_at)
    assert len(set(sizes)) == len(sizes)
    for part in rows_alone(sweep):
        assert few_sizes(part, "b")[1:] == part.compiled_at[1:]


@pytest.mark.parametrize(("sweep", "mode"), [(SOFTMAX, "a"), (SOFTMAX_ROWS, "b")])
def test_symbols_of_a_capture_are_the_dynamic_sizes(sweep: Sweep, mode: str) -> None:
    found = taken(sweep, mode, few_sizes(sweep, mode))
    assert sorted(found.axes) == ([0, 1] if mode == "a" else [0])


def test_a_symbol_may_be_a_part_of_a_size() -> None:
    sweep = Sweep("mx", of.mx_quantise, of.matrix, MIDDLE, ((7, 128),), torch.bfloat16)
    symbols = taken(sweep, "a", (40, 96)).symbols_at((7, 128))
    assert sorted(symbols.values()) == [4, 7]


def test_a_dry_run_of_one_kernel_has_no_findings(tmp_path: Path) -> None:
    found = taken(SOFTMAX, "a", (40, 96))
    row = dry_capture(found, [(512, 64)], Target(SM_90, ()), count=0, scratch=tmp_path)
    assert findings_in({"name": "softmax", **row}) == []
    assert row["kernels"] == 1
    (launch,) = row["launches"]
    assert launch["reduction"]
    assert set(launch["candidates"]) == {"512x64"}
    assert all(found[0].startswith("cuda.") for found in launch["candidates"].values())


def test_what_is_not_one_clean_kernel_is_a_finding() -> None:
    compiled = [
        {"schedule": "cuda.looped", "error": "CompileFailed: no"},
        {"schedule": "cuda.rows", "spilled_bytes": 8},
        {"schedule": "cuda.pointwise", "spilled_bytes": 0},
    ]
    launch = {"divided": ["(% p0 k1)"], "compiled": compiled}
    row = {"name": "x", "kernels": 2, "aten": [], "launches": [launch]}
    found = findings_in(row)
    assert len(found) == 4
    assert [text for text in found if "spills 8 bytes" in text]
    assert findings_in({"name": "x", "error": "lost"}) == ["x: lost"]


def test_divisions_of_loops_in_indices_are_listed() -> None:
    assert kernel_facts(parse_kernel(DIVIDING))["divided"] == ["(% p0 k1)"]


def test_the_first_candidates_are_the_default_and_one_of_each_family() -> None:
    texts = ("cuda.a x=1", "cuda.a x=2", "cuda.a x=3", "cuda.b x=1", "cuda.b x=2")
    listed = [parse_schedule(text) for text in texts]
    chosen = [str(each) for each in first_candidates(listed, 3)]
    assert chosen == ["cuda.a x=1", "cuda.b x=1", "cuda.a x=2"]
