"""What limits points of the GPU sweep, as far as it needs no GPU."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.benchmarks import gpu_contest, gpu_limits, gpu_runs
from tests.benchmarks import sweep_functions as of
from tests.benchmarks.drawn_sizes import drawn
from tests.benchmarks.gpu_movers import MOVERS
from tests.benchmarks.gpu_sweep_cases import FUNCTIONS, SWEEPS
from tests.benchmarks.gpu_variants import Variant
from tests.benchmarks.phases import Phases
from tests.benchmarks.sweeps import Sweep

from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import parse_schedule
from nearhint_daemon.workers.clock import Sample
from nearhint_rules import expr as ex
from nearhint_rules.artifact import ArtifactRef, CpuLaunch
from nearhint_rules.guard import AtMost, Guard

SERVED = "cuda.tiled z=1 y=32 x=32 cuts=1 warps=4 index=32 aligned=0 divisible=0"


def point(
    name: str, *, share: float, moved: int = 100_000_000, columns: int = 33
) -> dict[str, Any]:
    times = {"warm": {"nearhint": 8.0}, "cold": {"nearhint": 10.0}}
    launches = [{"aten": ["mm"]}, {"schedule": SERVED}]
    return {
        "name": name,
        "sizes": [61, columns],
        "bytes": moved,
        "copy_share": share,
        "times_us": times,
        "launches": launches,
    }


def row(role: str, by: str, *, warm: float, cold: float, clean: float) -> dict[str, Any]:
    share = {"warm": warm, "cold": cold, "clean": clean}
    us = {cache: 10.0 / each for cache, each in share.items()}
    return {"role": role, "by": by, "bytes": 1000, "us": us, "share": share}


ROWS = [
    row("ours", "a", warm=0.9, cold=0.80, clean=0.88),
    row("ours", "b", warm=0.8, cold=0.81, clean=0.87),
    row("ours, as served", "b", warm=0.8, cold=0.75, clean=0.87),
    row("permuted copy", "a", warm=0.9, cold=0.9, clean=0.9),
    row("add, straight", "a", warm=1.0, cold=1.0, clean=1.0),
    row("copy", "torch", warm=1.0, cold=0.95, clean=0.97),
]


def test_points_that_miss_their_share_are_found_with_what_served_them() -> None:
    points = [
        point("short", share=0.8),
        point("long rows", share=0.8, columns=20_000),
        point("small", share=0.1, moved=1000),
        {"name": "lost", "error": "out of memory"},
    ]
    found = gpu_limits.short_points({"points": points})
    assert found == {"short": {"schedule": SERVED, "share": {"cold": 0.8, "warm": 1.0}}}


def test_what_two_launches_served_is_no_one_schedule() -> None:
    made = point("two", share=0.8)
    made["launches"] = made["launches"] * 2
    assert gpu_limits.short_points({"points": [made]})["two"]["schedule"] == ""


def test_of_a_point_that_is_short_in_several_reports_the_first_counts(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("all dims", "rows")]
    for file, points in zip(
        files,
        ([point("both", share=0.8)], [point("both", share=0.7), point("rows", share=0.6)]),
        strict=True,
    ):
        file.write_text(json.dumps({"points": points}), encoding="utf-8")
    shares = {name: each["share"]["cold"] for name, each in gpu_limits.short_of(files).items()}
    assert shares == {"both": 0.8, "rows": 0.6}


def test_what_misses_its_share_in_any_report_of_a_sweep_is_timed_unless_others_are_asked_for() -> (
    None
):
    chosen = gpu_limits.short_of(gpu_limits.REPORTS)
    for file in gpu_limits.REPORTS:
        short = gpu_limits.short_points(json.loads(file.read_text(encoding="utf-8")))
        assert short.keys() <= chosen.keys()
    titles = {each.title for each in FUNCTIONS["all"]}
    assert {name.rpartition(" ")[0] for name in chosen} <= titles


@pytest.mark.parametrize("seed", [None, 5])
def test_a_report_of_drawn_sizes_is_read_with_the_seed_that_drew_them(
    seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = next(each for each in SWEEPS if each.title == "softmax bf16")
    sizes = (listed if seed is None else drawn(listed, seed)).sizes[0]
    report = tmp_path / "report.json"
    short = [point(listed.case(sizes).name, share=0.5)]
    report.write_text(json.dumps({"points": short}), encoding="utf-8")
    asked: list[Sweep] = []

    def noted(sweep: Sweep, *_: object) -> Iterator[dict[str, Any]]:
        asked.append(sweep)
        return iter(())

    monkeypatch.setattr(gpu_limits, "points_of_sweep", noted)
    options = argparse.Namespace(
        every=False, report=[report], functions="pinned", cases=["=softmax bf16"], draw=seed, most=1
    )
    assert list(gpu_limits.points_of(options, gpu_runs.target_of(compile_only=True))) == []
    assert [each.sizes for each in asked] == [(sizes,)]
    options.draw = 6
    assert list(gpu_limits.points_of(options, gpu_runs.target_of(compile_only=True))) == []
    assert len(asked) == 1


@pytest.mark.parametrize(("rows", "is_large"), [(16_000, True), (15_999, False)])
def test_outputs_count_as_much_as_inputs_before_they_are_known(rows: int, is_large: bool) -> None:
    sweep = Sweep("softmax", of.softmax, of.matrix, (40, 96), ((rows, 1000),), torch.bfloat16)
    assert gpu_limits.may_be_large(sweep, (rows, 1000)) is is_large


def test_the_best_of_a_role_counts_in_each_state_of_the_cache() -> None:
    shares = gpu_limits.shares_of(ROWS)
    assert {cache: shares[cache]["ours"] for cache in shares} == {
        "warm": 0.9,
        "cold": 0.81,
        "clean": 0.88,
    }


def test_ours_are_held_against_the_first_mover_and_else_against_the_copy() -> None:
    shares = gpu_limits.shares_of(ROWS)
    assert gpu_limits.over_mover(shares)["cold"] == {
        "ours, as served": pytest.approx(0.9 / 0.75),
        "ours": pytest.approx(0.9 / 0.81, abs=1e-3),
    }
    without = [each for each in ROWS if each["role"] in ("ours", "copy")]
    shares = gpu_limits.shares_of(without)
    assert gpu_limits.over_mover(shares)["cold"] == {"ours": pytest.approx(0.95 / 0.81, abs=1e-3)}


def test_what_serves_is_timed_however_few_are() -> None:
    found = {"kernel": "", "dims": [3], "first": "a", "schedules": ["b", "a", "c"]}
    assert gpu_limits.kernel_facts("ours", found, 2, "")["schedules"] == ["a", "b"]
    served = gpu_limits.kernel_facts("ours", found, 2, "z")
    assert (served["first"], served["schedules"]) == ("z", ["z", "b"])


def test_a_copy_moves_as_many_bytes() -> None:
    target = gpu_runs.target_of(compile_only=True)
    found = gpu_limits.copied(80_000_000, 2, target)
    assert gpu_limits.bytes_of(found) == 80_000_000
    assert len(found["schedules"]) == 2


def test_a_point_is_timed_beside_its_movers_and_a_copy() -> None:
    (sweep,) = (each for each in SWEEPS if each.title == "permute_add bf16")
    sizes = (61, 509, 1021)
    chosen = replace(sweep, sizes=((1, 50, 33), sizes))
    reported = {f"permute_add bf16 {'x'.join(map(str, sizes))}": {"schedule": SERVED}}
    target = gpu_runs.target_of(compile_only=True)
    (found,) = gpu_limits.points_of_sweep(chosen, reported, 3, target)
    ours, permuted, straight, copy = found["kernels"]
    assert (found["bytes"], found["bar"]) == (3 * 2 * 61 * 509 * 1021, 0.9)
    assert ours["first"] == ours["schedules"][0] == SERVED
    assert gpu_limits.bytes_of(permuted) == 2 * 2 * 61 * 509 * 1021
    assert gpu_limits.bytes_of(straight) == gpu_limits.bytes_of(ours) == found["bytes"]
    assert len(parse_kernel(straight["kernel"]).pointwise) == 1
    assert copy["role"] == "copy"


def test_every_mover_takes_the_arguments_of_its_function() -> None:
    sweeps = {each.name: each for each in FUNCTIONS["all"]}
    for name, movers in MOVERS.items():
        sweep = sweeps[name]
        assert len({each.name for each in movers}) == len(movers)
        for each in movers:
            sizes = tuple(min(32 * (place + 1), 64) for place in range(len(sweep.compiled_at)))
            case = each.of(sweep).case(sizes)
            assert case.function(*case.arguments()) is not None, (name, each.name)


def test_lines_say_the_nearest_first() -> None:
    made = {
        "name": "permute_add bf16 61x509x1021",
        "bytes": 190_000_000,
        "bar": 0.9,
        "entrants": ROWS,
        "over_mover": {"cold": {"ours": 1.111}},
    }
    first, *lines, last = gpu_limits.lines_of(made)
    assert "190.0 MB, 0.9 of a copy wanted" in first
    assert [line.rpartition("  ")[2] for line in lines][:2] == ["add, straight: a", "copy: torch"]
    assert "1.111" in last
    assert gpu_limits.lines_of({"name": "x", "error": "lost"}) == ["x: lost"]


def test_the_table_has_a_line_for_each_role_of_each_point() -> None:
    made: dict[str, Any] = {"name": "argmax", "bytes": 71_700_000, "bar": 0.9}
    made["shares"] = {
        cache: {"ours": 0.87, "copy": 0.92, "largest": cold}
        for cache, cold in (("warm", 0.99), ("cold", 0.9), ("clean", 0.98))
    }
    lines = gpu_limits.table_of([made, {"name": "x", "error": "lost"}])
    assert [line.rpartition("  ")[2] for line in lines] == ["copy", "largest", "ours"]
    assert "0.990 0.900 0.980  (bar 0.9)" in lines[1]


class Ledger:
    """A clock for calls that say themselves how long they take."""

    conditions = "none"

    def __init__(self) -> None:
        self.ns = 0.0

    def takes(self, ns: float) -> Callable[[], None]:
        def call() -> None:
            self.ns += ns

        return call

    def calls_for(self, call: Callable[[], object]) -> int:
        return 1

    def sample(self, call: Callable[[], object], calls: int) -> Sample:
        self.ns = 0.0
        call()
        return Sample(max(self.ns, 1000.0), is_disturbed=False)


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """In place of a device."""
    made = Ledger()
    emptied = {
        "cold": ("write", lambda: made.takes(3000)),
        "clean": ("read", lambda: made.takes(4000)),
    }
    monkeypatch.setattr(gpu_contest, "device_clock", lambda: made)
    monkeypatch.setattr(gpu_contest, "EMPTIED_BY", emptied)
    monkeypatch.setattr(gpu_contest, "POINT_S", 0.0)
    monkeypatch.setattr(gpu_contest, "DEVICE", "cpu")
    return made


def test_a_point_is_measured_by_the_best_of_what_may_run_there(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sweep,) = (each for each in SWEEPS if each.title == "permute_add bf16")
    chosen = replace(sweep, sizes=((61, 509, 1021),))
    target = gpu_runs.target_of(compile_only=True)
    (made,) = gpu_limits.points_of_sweep(chosen, {}, 4, target)
    # Tensors as small as may be.
    made |= {"sizes": [2, 3, 5], "bytes": 96}
    variants: list[list[Variant]] = [
        [variant(text, never=place == 0) for place, text in enumerate(each["schedules"])]
        for each in made["kernels"]
    ]
    monkeypatch.setattr(
        gpu_limits,
        "timed",
        lambda kernel, sizes, found: ({str(v.schedule): 9.0 - at for at, v in enumerate(found)}, 1),
    )
    monkeypatch.setattr(gpu_limits, "storages", lambda kernel, sizes: [])
    monkeypatch.setattr(gpu_limits, "caller", lambda *_: ledger.takes(95_000))
    row = gpu_limits.measured_or_error(made, variants, Phases(lambda: 0.0), gb_s=4000.0)
    ours = [each["by"] for each in row["entrants"] if each["role"] == "ours"]
    assert ours == made["kernels"][0]["schedules"][:1:-1]
    assert not any(each["role"] == "ours, as served" for each in row["entrants"])
    assert {each["role"] for each in row["entrants"] if each["by"] == "torch"} == {
        "copy", "permuted copy", "add, straight",
    }  # fmt: skip
    assert row["shares"]["clean"]["ours"] == pytest.approx(
        3 * 2 * 31_701_029 / 95e3 / 4e3, abs=1e-3
    )


def variant(text: str, *, never: bool) -> Variant:
    """A Variant that nothing is known of, but for the first, which runs nowhere."""
    guard = Guard((AtMost(ex.ONE, 0),)) if never else Guard(())
    launch = CpuLaunch("entry", ex.ONE, 1)
    return Variant(parse_schedule(text), guard, ArtifactRef("a" * 64, 1, launch), b"")


def test_what_empties_the_cache_is_taken_off(ledger: Ledger) -> None:
    calls = {"a": ledger.takes(7000), "b": ledger.takes(9000)}
    found = gpu_contest.times_of(calls, Phases(lambda: 0.0), caches=("warm", "cold", "clean"))
    both = {"a": 7.0, "b": 9.0}
    assert found["times_us"] == {"warm": both, "cold": both, "clean": both}
    assert (found["write_us"], found["read_us"]) == (3.0, 4.0)
    assert set(found["spreads"]) == {
        "a", "b", "write", "cold a", "cold b", "read", "clean a", "clean b",
    }  # fmt: skip
    assert "read_us" not in gpu_contest.times_of(calls, Phases(lambda: 0.0))
