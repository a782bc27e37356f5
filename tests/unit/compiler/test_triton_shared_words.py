"""Rows in whole words that several programs share compute what the IR says: planes, scans, and
rows of teams whose weights stay in registers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.kernels import TARGET, kernel_of
from tests.unit.compiler.triton_numerics import Case, Results

from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates
from nearhint_compiler.schedule.firsts import firsts
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_daemon.workers import cubin
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CudaLaunch

pytestmark = numerics.RUNS_LONG

RMS_NORM = """(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
  (params (in bf16) (in bf16) (in bf16) (out bf16) (out bf16))
  (body (load 0 (+ (* k1 p0) r0)) (cast f32 0) (load 1 (+ (* k1 p0) r0)) (cast f32 2) (add f32 1 3)
    (cast bf16 4) (store 3 (+ (* k1 p0) r0) 5) (load 2 r0) (cast f32 7) (mul f32 4 4)
    (reduce sum f32 9) (iota k1) (cast f32 11) (div f32 10 12) (const f32 0x358637bd)
    (add f32 13 14) (rsqrt f32 15) (mul f32 4 16) (cast bf16 17) (cast f32 18) (mul f32 8 19)
    (cast bf16 20) (store 4 (+ (* k1 p0) r0) 21)))"""
LENGTHS = (1, 2, 3, 5, 37, 64, 131, 401)
KEPT = "cuda.cooperative x=1 r={r} splits={splits} teams={teams} warps=1 index=32 aligned=1"


def scans(kernel: str, *dims: tuple[int, ...], r: int, special: bool = False) -> list[Case]:
    """One row a program, and several; as many programs as `splits`, and fewer where rows are."""
    rest = "warps=1 index={} aligned=1 divisible=0{} words=1"
    texts = [
        f"cuda.split x=1 r={r} splits=3 {rest.format(32, '')}",
        f"cuda.split x=4 r={r} splits=5 {rest.format(64, '')}",
        f"cuda.split x=1 r={r} splits=7 {rest.format(32, ' programs=6')}",
    ]
    return [Case(kernel, text, each, special) for text in texts for each in dims]


def planes(
    kernel: str,
    *dims: tuple[int, ...],
    r1: int,
    group: int = 0,
    parts: int = 1,
    special: bool = False,
) -> list[Case]:
    """Tiles of one plane and of two, more programs than planes, and steps written out."""
    groups = f" group={group}" if group else ""
    rest = f"aligned=1 divisible=0{{}}{groups}{{}} words={parts} r1={r1}"
    texts = [
        f"cuda.split x=1 r={r1} splits=3 warps=1 index=32 {rest.format('', '')}",
        f"cuda.split x=1 r={2 * r1} splits=5 warps=1 index=64 {rest.format('', ' unroll=2')}",
        f"cuda.split x=2 r={2 * r1} splits=2 warps=1 index=32 {rest.format('', '')}",
        f"cuda.split x=1 r={r1} splits=9 warps=1 index=32 {rest.format(' programs=8', '')}",
    ]
    return [Case(kernel, text, each, special) for text in texts for each in dims]


def kept(
    kernel: str, *dims: tuple[int, ...], r: int, lanes: int, special: bool = False
) -> list[Case]:
    """Programs run one after another there: all but the last of a team give up."""
    rest = f"divisible=0 polls=2 group={lanes} words=1 pieces=3 weights=1"
    texts = [f"{KEPT.format(r=r, splits=splits, teams=lanes)} {rest}" for splits in (2, 5)]
    return [Case(kernel, text, each, special) for text in texts for each in dims]


CASES = [
    *scans("row_cumsum_f32", *((5, length) for length in LENGTHS), r=32),
    *scans("row_cumsum_f32", (3, 133), r=32, special=True),
    *scans("row_cumprod_f64", (3, 9), (3, 61), r=8),
    *planes("plane_norm_bf16", (1, 3, 1), (5, 2, 129), (9, 2, 389), r1=128, group=8),
    *planes("plane_norm_bf16", (3, 2, 1), (7, 2, 37), (3, 2, 131), r1=32, group=4, parts=2),
    *planes("plane_norm_bf16", (3, 2, 133), r1=128, special=True),
    *planes("arg_over_two_loops_i32", (2, 5, 35), (1, 2, 3), (3, 11, 67), r1=32),
    *planes("sum_outer_inner_f32", (2, 7, 31), (3, 3, 34), (4, 13, 101), r1=32, group=2),
    *kept("layer_norm_dynamic_f32", (3, 2), (11, 37), (5, 401), r=32, lanes=4),
    *kept("layer_norm_dynamic_f32", (3, 133), r=32, lanes=4, special=True),
    *kept("layer_norm_dynamic_bf16", (3, 2), (19, 261), (9, 731), r=128, lanes=8),
    *kept("layer_norm_dynamic_bf16", (3, 261), r=128, lanes=8, special=True),
    # Some of what rows share is of their image alone: in words, and not kept.
    *kept("modulated_layer_norm_bf16", (3, 3, 5), (3, 3, 261), (2, 5, 731), r=256, lanes=8),
]
IN_PLACE = [
    *scans("row_cumsum_f32", (5, 2), (5, 133), r=32),
    *kept("layer_norm_dynamic_f32", (5, 2), (9, 133), r=32, lanes=4),
]


@pytest.fixture(scope="module")
def results_in_place(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("shared_words_in_place")
    return numerics.run(IN_PLACE, folder, change=numerics.share_storage)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(case: Case, results: Results) -> None:
    numerics.assert_agrees(case, results)


@pytest.mark.parametrize("case", IN_PLACE, ids=lambda case: case.name)
def test_an_output_may_have_the_storage_of_its_input(case: Case, results_in_place: Results) -> None:
    numerics.assert_agrees(case, results_in_place)


def source_of(name: str, schedule: str) -> str:
    return generate(kernel_of(name), parse_schedule(schedule), TARGET).source


def test_nobody_reads_the_last_part_of_a_scan_before_its_own_stage() -> None:
    text = "cuda.split x=1 r=32 splits=4 warps=1 index=32 aligned=1 divisible=0 words=1"
    first, _ = source_of("row_cumsum_f32", text).split("if stage == 1:")
    before, walk = first.split("if chunk + 1 < 4:")
    assert "tl.load" not in before
    assert "tl.load" in walk


def test_the_edge_before_the_words_is_the_first_programs_and_that_behind_them_the_last_ones() -> (
    None
):
    text = "cuda.split x=1 r=32 splits=4 warps=1 index=32 aligned=1 divisible=0 words=1"
    assert "tl.where(ebefore, chunk == 0, chunk == splits - 1)" in source_of("row_cumsum_f32", text)


def test_programs_that_share_planes_have_whole_ones() -> None:
    text = "cuda.split x=1 r=64 splits=3 warps=1 index=32 aligned=1 divisible=0 words=1 r1=32"
    source = source_of("sum_outer_inner_f32", text)
    assert "for eoffset in range(estart" in source
    assert "(eplane < eend)" in source


def test_weights_are_loaded_once_for_all_rows_of_a_team_but_for_what_is_given_up() -> None:
    rest = "divisible=0 group=8 words=1 pieces=3 weights=1"
    source = source_of("layer_norm_dynamic_bf16", f"{KEPT.format(r=128, splits=2, teams=8)} {rest}")
    before, rows = source.split("for pid in range(")
    own, given_up = rows.split("for other in range(0, 2):")
    weights = re.compile(r"b\dv\d+ = tl\.load\(a[12] ")
    assert [len(weights.findall(part)) for part in (before, own, given_up)] == [6, 0, 6]
    # One register for a weight and a bias of two bytes each.
    assert len(re.findall(r"kept\d = ", before)) == 3


def test_what_is_kept_leaves_room_for_as_many_programs_as_are_wanted(tmp_path: Path) -> None:
    rest = "divisible=0 registers=64 group=8 words=1 pieces=4 weights=1"
    text = f"cuda.cooperative x=1 r=2048 splits=8 teams=64 warps=8 index=32 aligned=1 {rest}"
    generated = generate(parse_kernel(RMS_NORM), parse_schedule(text), TARGET)
    cubin.compile_cubin(generated, TARGET, scratch=tmp_path)  # refuses what spills


@pytest.mark.parametrize("shape", ["r=1024 splits=100 warps=8", "r=2048 splits=100 warps=16"])
def test_parts_of_a_row_that_are_fewer_than_threads_take_few_registers(
    shape: str, tmp_path: Path
) -> None:
    """Brought together like a block of rows, each thread would have had all parts of its row."""
    schedule = parse_schedule(f"cuda.split x=1 {shape} index=32 aligned=0 divisible=0")
    generated = generate(kernel_of("mean_variance_f32"), schedule, TARGET)
    built = cubin.compile_cubin(generated, TARGET, scratch=tmp_path)
    (registers,) = re.findall(r"Used (\d+) registers", built.log)
    assert int(registers) <= 40


def test_as_many_teams_are_busy_as_begin_alike() -> None:
    rest = "divisible=0 group=8 words=1 pieces=3 weights=1"
    text = f"{KEPT.format(r=128, splits=2, teams=16)} {rest}"
    launch = generate(kernel_of("layer_norm_dynamic_bf16"), parse_schedule(text), TARGET).launch
    assert isinstance(launch, CudaLaunch)
    programs = [ex.evaluate(launch.grid[0], {"k0": rows, "k1": 700}) for rows in (1, 9, 17, 300)]
    assert programs == [16, 32, 32, 32]


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        (
            f"{KEPT.format(r=128, splits=2, teams=12)} divisible=0 words=1 pieces=3",
            "begin anywhere",
        ),
        (f"{KEPT.format(r=128, splits=2, teams=8)} divisible=0 words=1", "no tiles"),
        ("cuda.looped x=1 r=128 warps=1 index=32 aligned=1 divisible=0 words=1", "no team holds"),
    ],
)
def test_weights_that_cannot_be_kept_are_refused(schedule: str, problem: str) -> None:
    with pytest.raises(InvalidSchedule, match=problem):
        source_of("layer_norm_dynamic_bf16", f"{schedule} weights=1")


def first_at(name: str, *dims: int) -> str:
    kernel = kernel_of(name)
    return str(firsts(kernel, TARGET, dict(zip(kernel.symbols, dims, strict=True)))[0])


def shared_scan(*dims: int) -> Schedule:
    """The first scan in words that programs share in stages."""
    kernel = kernel_of("row_cumsum_f32")
    offered = candidates(kernel, TARGET, dict(zip(kernel.symbols, dims, strict=True)))
    return next(e for e in offered if e.family == "cuda.split" and e.get("words", 0))


def test_few_scans_of_any_length_are_shared_in_words() -> None:
    shared = shared_scan(77, 110_041)
    assert (shared["r"], shared["splits"]) == (8192, 6)
    # A chain reads once, and comes first; where all processors have a row, each walks it.
    assert first_at("row_cumsum_f32", 77, 110_041).startswith("cuda.chained x=1 r=8192 ")
    assert " words=1" in first_at("row_cumsum_f32", 13, 1_000_003)
    assert first_at("row_cumsum_f32", 132, 110_041).startswith("cuda.looped ")


def test_as_many_parts_of_a_scan_as_processors_have_programs() -> None:
    shared = shared_scan(64, 131_073)
    launch = generate(kernel_of("row_cumsum_f32"), shared, TARGET).launch
    assert isinstance(launch, CudaLaunch)
    for rows in (64, 77, 90):
        programs = [ex.evaluate(each, {"k0": rows, "k1": 131_073}) for each in launch.grid]
        assert programs[0] * programs[1] == 264 // rows * rows


def test_narrow_norms_of_long_odd_rows_keep_their_weights() -> None:
    assert " weights=1" in first_at("layer_norm_dynamic_bf16", 300, 128_257)
    # A cache has the rows that are under way, and walks find them there.
    assert first_at("layer_norm_dynamic_bf16", 509, 65_537).startswith("cuda.looped ")
    # A processor has room for a whole one.
    assert " pieces=7" in first_at("layer_norm_dynamic_bf16", 1334, 25_911)
    # Vectors of weights need no registers.
    assert " weights=1" not in first_at("layer_norm_dynamic_bf16", 300, 131_072)


def test_weights_of_odd_rows_are_offered_at_hints_that_promise_vectors_too() -> None:
    kernel = kernel_of("layer_norm_dynamic_bf16")
    offered = candidates(kernel, TARGET, {"k0": 512, "k1": 65_536})
    assert any(each.get("weights", 0) for each in offered)
