"""The GPU sweep as far as it needs no GPU: captures, marks, resuming, and the dry run."""

from __future__ import annotations

import argparse
import json
import time
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
from tests.benchmarks.gpu_sweep import (
    Bench,
    batches,
    chosen_sweeps,
    plan_of,
    resumed,
)
from tests.benchmarks.gpu_sweep_cases import MIDDLE, SWEEPS, sweeps_of
from tests.benchmarks.phases import Phases
from tests.benchmarks.serving import Serving
from tests.benchmarks.sweep_budget import estimate_of, points_s
from tests.benchmarks.sweeps import Sweep, marked, rows_alone, starts_of
from tests.benchmarks.warm_pool import units_of

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


def test_a_resumed_report_keeps_its_points_but_those_that_failed_or_were_not_tuned(
    tmp_path: Path,
) -> None:
    file = tmp_path / "report.json"
    points = [
        {"name": "one", "sweep": "softmax bf16", "sizes": [1, 2]},
        {"name": "two", "error": "lost"},
        {"name": "three", "sweep": "argmax bf16"},
    ]
    sweeps_of_report = [
        {"name": "softmax bf16", "is_settled": True},
        {"name": "argmax bf16", "is_settled": False},
    ]
    report = {"mode": "a", "points": points, "sweeps": sweeps_of_report}
    file.write_text(json.dumps(report), encoding="utf-8")
    found, sweeps = resumed(file, "a")
    assert list(found) == ["one"]
    assert list(sweeps) == ["softmax bf16", "argmax bf16"]
    with pytest.raises(SystemExit, match="mode a"):
        resumed(file, "b")
    assert resumed(tmp_path / "none.json", "a") == ({}, {})


def bench_of(*, end_s: float = 1e9, tune_s: float = 0.0) -> Bench:
    options = argparse.Namespace(mode="a", tune_s=tune_s, attempts=2, json=None)
    return Bench(options, Serving(), end_s, 3000.0, {"mode": "a"}, Phases(lambda: 0.0))


def test_what_was_measured_is_not_measured_again_but_what_failed_is() -> None:
    bench = bench_of()
    bench.points["softmax bf16 700x50"] = {"name": "softmax bf16 700x50"}
    bench.points["softmax bf16 1x50"] = {"name": "softmax bf16 1x50", "error": "lost"}
    assert bench.sizes_left(SOFTMAX) == [(1, 50)]


def test_batches_have_every_sweep_once_in_order() -> None:
    sweeps = SWEEPS[:5]
    assert [len(batch) for batch in batches(sweeps, 2)] == [2, 2, 1]
    assert tuple(each for batch in batches(sweeps, 2) for each in batch) == sweeps
    assert batches(sweeps, 0) == [list(sweeps)]
    assert batches([], 0) == []


def test_an_exact_title_chooses_one_sweep_and_all_its_kinds() -> None:
    options = argparse.Namespace(
        mode="a", functions="pinned", draw=None, sizes=0, cases=["=softmax bf16", "=argmax f32"]
    )
    assert [each.title for each in chosen_sweeps(options)] == ["softmax bf16", "argmax f32"]
    options.mode = "b"
    kinds = chosen_sweeps(options)
    assert {each.title.partition(" [")[0] for each in kinds} == {"softmax bf16", "argmax f32"}
    assert len(kinds) > 4


def test_tuning_leaves_time_to_measure() -> None:
    end_s = time.monotonic() + 1000.0
    assert bench_of(end_s=end_s).tune_s(1000) == 0.0
    assert bench_of(end_s=end_s).tune_s(100) <= 1000.0 - points_s(100, 2)
    assert bench_of(end_s=end_s, tune_s=30.0).tune_s(100) == 30.0


def test_a_budget_that_leaves_next_to_nothing_for_tuning_is_refused_with_one_that_would_do() -> (
    None
):
    left = {sweep: sweep.sizes for sweep in SWEEPS}
    wide = estimate_of(left, mode="a", attempts=3, budget_s=1000.0)
    wide.check()
    narrow = estimate_of(left, mode="a", attempts=3, budget_s=wide.before_s + wide.points_s + 9.0)
    with pytest.raises(SystemExit, match=r"9 s are left .*--budget-s \d+ would do"):
        narrow.check()
    few = estimate_of({SOFTMAX: SOFTMAX.sizes}, mode="a", attempts=3, budget_s=1000.0)
    assert (few.hints, few.wanted_s < wide.wanted_s) == (2, True)
    replace(few, tune_s=few.wanted_s).check()


def test_so_many_sizes_of_each_function_of_a_set_are_chosen() -> None:
    options = argparse.Namespace(
        mode="a", functions="others", draw=None, sizes=2, cases=["group_norm"]
    )
    (sweep,) = chosen_sweeps(options)
    (whole,) = (each for each in sweeps_of("a", "others") if each.title == sweep.title)
    assert sweep.sizes == whole.sizes[:2]
    assert units_of({sweep: sweep.sizes}, "a")[0].title == whole.title


@pytest.mark.parametrize("mode", ["a", "b"])
def test_drawn_sizes_are_compiled_by_the_pool_as_they_were_drawn(mode: str) -> None:
    options = argparse.Namespace(mode=mode, functions="all", draw=3, sizes=0, cases=[])
    sweeps = chosen_sweeps(options)
    assert sweeps == chosen_sweeps(options)
    listed = {name for each in sweeps_of("a", "all") for name in each.cases()}
    assert not listed & {name for each in sweeps for name in each.cases()}
    for unit in units_of({sweep: sweep.sizes for sweep in sweeps}, mode):
        assert unit.sweep().sizes == unit.sizes
        assert unit.sweep().title == unit.title


def test_a_dry_run_says_what_each_batch_would_do() -> None:
    options = argparse.Namespace(
        mode="a",
        functions="pinned",
        draw=None,
        sizes=0,
        cases=["=softmax bf16", "=argmax bf16"],
        batch=1,
    )
    first, second = plan_of(options)
    assert first == {"sweeps": ["softmax bf16"], "units": 7, "points": 6}
    assert second["sweeps"] == ["argmax bf16"]


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
