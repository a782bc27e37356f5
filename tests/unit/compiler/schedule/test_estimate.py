"""Estimates rank what is far off behind what is near, and what is chosen keeps the winners.

`recorded_h100.json` has medians of an H100 SXM (80 GB, triton 3.6.0, 2026-11-21), taken by
tests/benchmarks/gpu_kernels.py: IR, sizes in the order of its symbols, µs by Schedule.
`recorded_epyc.json` has the winners of an AMD EPYC (Zen 4, 2 threads, 2026-11-21), found by
tests/benchmarks/cpu_kernels.py over every candidate.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates, cuda, parse_schedule
from nearhint_compiler.schedule.choice import FAR_OFF, MAX_LIMIT, QUICK_LIMIT, choose
from nearhint_compiler.schedule.estimate import Estimate, estimate, far_off
from nearhint_rules.target import CpuDevice, CudaDevice, Target

KERNELS = Path(__file__).parents[3] / "kernels"
NAMES = sorted(path.stem for path in KERNELS.glob("*.ir"))
H100 = Target(CudaDevice("H100", 90, 132, 80 << 30, "550", 700), ("triton 3.6.0",))
AVX512 = Target(
    CpuDevice("EPYC", ("avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl", "f16c", "fma"), ""),
    ("cc 12.2.0",),
)
RECORDED: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("recorded_h100.json").read_text()
)
WON_ON_CPU: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("recorded_epyc.json").read_text()
)


def kernel(name: str) -> ir.Kernel:
    return parse_kernel((KERNELS / f"{name}.ir").read_text())


def seconds(name: str, schedule: str, size: int, *, threads: int = 1) -> float:
    given = kernel(name)
    target = AVX512 if schedule.startswith("cpu") else H100
    dims = dict.fromkeys(given.symbols, size)
    return estimate(given, parse_schedule(schedule), target, dims, threads=threads).seconds


@pytest.mark.parametrize("target", [AVX512, H100], ids=["cpu", "cuda"])
@pytest.mark.parametrize("name", NAMES)
def test_every_candidate_has_an_estimate_and_the_default_is_never_left_out(
    name: str, target: Target
) -> None:
    given = kernel(name)
    for size in (2, 1024):
        dims = dict.fromkeys(given.symbols, size)
        known = candidates(given, target, dims)
        for each in known:
            found = estimate(given, each, target, dims)
            assert found.seconds > 0
            assert 0 <= found.occupancy <= 1
        for effort in ("quick", "full", "max"):
            chosen = choose(given, target, dims, effort=effort)
            assert chosen.schedules[0] == known[0]
            if target is H100:
                assert chosen.schedules[-1] == known[-1]
            left_out = {each.schedule for each in chosen.pruned}
            assert not left_out & set(chosen.schedules)
            assert all(each.reason for each in chosen.pruned)
            if effort == "full":
                assert left_out | set(chosen.schedules) == set(known)
            if effort == "max":
                assert len(left_out | set(chosen.schedules)) <= MAX_LIMIT
                assert left_out | set(chosen.schedules) >= set(known)
            if effort == "quick":
                assert len(chosen.schedules) <= QUICK_LIMIT[target.kind]


@pytest.mark.parametrize("row", RECORDED, ids=[str(n) for n in range(len(RECORDED))])
def test_nothing_recorded_within_a_fifth_of_the_winner_is_left_out(row: dict[str, Any]) -> None:
    given = parse_kernel(row["ir"])
    dims = dict(zip(given.symbols, row["dims"], strict=True))
    medians: dict[str, float] = row["median_us"]
    names = list(medians)
    estimates = [estimate(given, parse_schedule(name), H100, dims) for name in names]
    gone = far_off(estimates, ratio=FAR_OFF)
    assert all(medians[names[number]] > 1.2 * min(medians.values()) for number in gone)


def test_every_winner_that_was_recorded_on_a_cpu_is_kept_and_estimated_near_the_best() -> None:
    assert len(WON_ON_CPU) > 50
    for row in WON_ON_CPU:
        given = parse_kernel(row["ir"])
        dims = dict(zip(given.symbols, row["dims"], strict=True))
        winner = parse_schedule(row["winner"])
        for effort in ("full", "max"):
            chosen = choose(given, AVX512, dims, effort=effort, threads=2)
            assert winner in map(_as_recorded, chosen.schedules)
        found = [estimate(given, each, AVX512, dims, threads=2) for each in chosen.schedules]
        taken = estimate(given, winner, AVX512, dims, threads=2)
        assert taken.seconds <= FAR_OFF / 2 * min(each.seconds for each in found)


def _as_recorded(schedule: Schedule) -> Schedule:
    """Tiles of as many rows as columns, and rows of which none were side by side."""
    options = dict(schedule.options)
    if schedule.family == "cpu.tiles":
        del options["rows"]
    if options.pop("beside", 0):
        options["short"] = 4
    return Schedule(schedule.family, tuple(options.items()))


def test_quick_keeps_a_winner_of_what_was_recorded_with_fewer_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is offered by now: the space is what was recorded."""
    shares: list[float] = []
    for row in RECORDED:
        given = parse_kernel(row["ir"])
        dims = dict(zip(given.symbols, row["dims"], strict=True))
        medians: dict[str, float] = row["median_us"]
        space = tuple(map(parse_schedule, medians))
        monkeypatch.setattr(cuda, "candidates", lambda *_, space=space, **__: space)
        quick = [str(each) for each in choose(given, H100, dims, effort="quick").schedules]
        if len(quick) < len(space):
            shares.append(min(medians.values()) / min(medians[name] for name in quick))
    assert len(shares) >= 8
    assert math.exp(sum(map(math.log, shares)) / len(shares)) >= 0.97
    assert min(shares) >= 0.8


@pytest.mark.parametrize(
    ("name", "better", "worse", "size"),
    [
        # programs that leave most of the device idle, against rows by several programs
        (
            "column_sum_f32",
            "cuda.looped x=16 r=128 warps=8 index=32 aligned=0 divisible=0",
            "cuda.looped x=1024 r=2 warps=8 index=32 aligned=0 divisible=0",
            4096,
        ),
        # a transpose by single elements against a tile
        (
            "transpose_add_f32",
            "cuda.tiled z=1 y=32 x=32 cuts=1 warps=4 index=32 aligned=0 divisible=0",
            "cuda.pointwise x=1024 warps=4 index=32 aligned=0 divisible=0",
            4096,
        ),
        # more than a thread's registers hold
        (
            "softmax_f32",
            "cuda.persistent x=1 r=8192 warps=8 index=32 aligned=0 divisible=0",
            "cuda.persistent x=16 r=8192 warps=1 index=32 aligned=0 divisible=0",
            8192,
        ),
        # the same on a CPU: lanes along the row, or across it
        (
            "row_sum_f32",
            "cpu.rows axis=0 lanes=16 unroll=4 short=4 stash=0 split=1",
            "cpu.columns axis=0 lanes=16 unroll=4 split=1",
            8192,
        ),
        (
            "transpose_add_f32",
            "cpu.tiles axis=1 lanes=8 unroll=2 across=0 tile=64",
            "cpu.pointwise axis=0 lanes=8 unroll=4 block=1024",
            32_768,
        ),
    ],
)
def test_what_is_far_off_is_estimated_so(name: str, better: str, worse: str, size: int) -> None:
    assert seconds(name, worse, size) > 1.5 * seconds(name, better, size)


def test_estimates_grow_with_the_work_and_shrink_with_threads() -> None:
    rows = "cpu.rows axis=0 lanes=16 unroll=4 short=4 stash=0 split=0"
    looped = "cuda.looped x=1 r=2048 warps=8 index=32 aligned=0 divisible=0"
    for schedule in (rows, looped):
        times = [seconds("softmax_f32", schedule, size) for size in (64, 256, 1024, 4096)]
        assert times == sorted(times)
        assert times[0] < times[-1]
    assert seconds("softmax_f32", rows, 512, threads=4) <= seconds("softmax_f32", rows, 512)


def test_single_elements_are_slower_than_vectors() -> None:
    wide, single = (
        f"cpu.rows axis=0 lanes={lanes} unroll=1 short=4 stash=0 split=1" for lanes in (16, 1)
    )
    assert seconds("softmax_f32", wide, 1024) < seconds("softmax_f32", single, 1024)


def test_programs_for_some_multiprocessors_leave_the_others_bandwidth() -> None:
    """Of 132, 80 blocks of 8 columns keep 80 at most, however many bytes each asks for."""
    given = kernel("column_mean_bf16")
    walk = parse_schedule("cuda.looped x=8 r=1024 warps=16 index=32 aligned=0 divisible=0")
    few, all_of_them = (
        estimate(given, walk, H100, {"k0": columns, "k1": 54_600}) for columns in (640, 132 * 8)
    )
    assert few.moved_bytes < all_of_them.moved_bytes
    assert few.seconds == pytest.approx(all_of_them.seconds, rel=0.02)


def test_what_cannot_run_is_infinitely_slow_and_says_so() -> None:
    blocks = "z=1 y=128 x=128 r=256 cuts=1 warps=4 index=32 aligned=0 divisible=0"
    given = kernel("transposed_block_scale_f8e4m3fn")
    dims = dict.fromkeys(given.symbols, 64)
    found = estimate(given, parse_schedule(f"cuda.tiled_persistent {blocks}"), H100, dims)
    assert found.seconds == math.inf
    assert found.reason(Estimate(1e-5, 1.0, 1.0)) == "its blocks do not fit the device"


def test_quick_tries_what_won_elsewhere_instead_of_another_of_its_kind() -> None:
    given = kernel("column_sum_f32")
    dims = dict.fromkeys(given.symbols, 4096)
    usual = choose(given, H100, dims, effort="quick").schedules
    wide = choose(given, H100, dims, effort="full").schedules
    left_out = [each for each in wide if each not in usual]
    assert len(left_out) >= 3
    for come in left_out:
        chosen = choose(given, H100, dims, effort="quick", transferred=[come]).schedules
        assert come in chosen
        assert len(chosen) == len(usual)
        assert (chosen[0], chosen[-1]) == (usual[0], usual[-1])


def test_a_transferred_schedule_is_considered_after_the_default() -> None:
    given = kernel("softmax_f32")
    dims = dict.fromkeys(given.symbols, 1024)
    come = Schedule(
        "cpu.rows",
        (("axis", 0), ("lanes", 16), ("unroll", 8), ("short", 4), ("stash", 0), ("split", 1)),
    )
    plain = choose(given, AVX512, dims, effort="full").schedules
    chosen = choose(given, AVX512, dims, effort="full", transferred=[come, plain[0]]).schedules
    assert chosen == (plain[0], come, *plain[1:])


def test_rows_that_are_walked_again_are_moved_again_where_no_cache_keeps_them() -> None:
    given, read = kernel("softmax_f32"), 300 * 128_256 * 4
    rest = "warps=32 index=32 aligned=1 divisible=2"
    walked = parse_schedule(f"cuda.looped x=1 r=8192 {rest}")
    held = parse_schedule(f"cuda.cooperative x=1 r=8192 splits=16 teams=16 {rest}")
    shared = parse_schedule(f"cuda.split x=1 r=8192 splits=4 {rest}")

    def moved(schedule: Schedule, rows: int, columns: int) -> float:
        return estimate(given, schedule, H100, {"k0": rows, "k1": columns}).moved_bytes

    assert moved(walked, 300, 128_256) == moved(shared, 300, 128_256) == 3 * read
    assert moved(held, 300, 128_256) == 2 * read
    # 132 rows of 40 KB are kept, and so are 32 of half a megabyte.
    assert moved(walked, 3000, 10_240) == 2 * 3000 * 10_240 * 4
    assert moved(shared, 32, 128_256) == 2 * 32 * 128_256 * 4


def test_a_kernel_that_cannot_be_tiled_has_the_default_tiling_and_the_reason() -> None:
    """Of a prime number of elements none is a run of 64, and no Guard would hold."""
    turned = """
        (kernel (symbols) (pointwise EXTENT) (reduction) (params (in f32) (out f32))
          (body (load 0 (+ (* 4099 (% p0 64)) (// p0 64))) (exp f32 0) (store 1 p0 1)))
    """
    prime, even = (parse_kernel(turned.replace("EXTENT", each)) for each in ("262147", "262144"))
    chosen = choose(prime, H100, {}, effort="full")
    assert {each.family for each in chosen.schedules} == {"cuda.pointwise"}
    assert "neither of 4096 and 262147 provably divides the other" in chosen.untiled
    cut = choose(even, H100, {}, effort="full")
    assert "cuda.tiled" in {each.family for each in cut.schedules}
    assert cut.untiled == ""


def test_rows_read_as_one_move_no_more_of_what_all_columns_share() -> None:
    given, dims = kernel("weighted_column_sum_bf16"), {"k0": 2048, "k1": 8192}
    moved = {
        bool(each.get("fold", 0)): estimate(given, each, H100, dims).moved_bytes
        for each in candidates(given, H100, dims)
        if each.family == "cuda.split"
    }
    assert moved[True] < 1.01 * moved[False]
