"""Rows that a team of programs holds: what is computed, launched and waited for, and given up."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.kernels import TARGET, kernel_of
from tests.unit.compiler.triton_numerics import Case, Results

from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates
from nearhint_compiler.schedule.firsts import firsts
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_daemon.workers import cubin
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CudaLaunch
from nearhint_rules.guard import Divisible, size_facts_hold

TEAMS = "cuda.cooperative"

pytestmark = numerics.RUNS_LONG

pytest.importorskip("triton")
pytestmark = pytest.mark.timeout(600)  # all cases are interpreted in one go

PROMISES = "index=32 aligned=1 divisible=0"


def teams(kernel: str, *dims: tuple[int, ...], special: bool = False, more: str = "") -> list[Case]:
    """Programs run one after another there: all but the last of a team give up."""
    narrow = f"cuda.cooperative x=1 r=64 splits=3 teams=2 warps=1 {PROMISES} polls=2{more}"
    wide = narrow.replace("r=64 splits=3", "r=32 splits=7").replace("index=32", "index=64")
    return [Case(kernel, schedule, each, special) for each in dims for schedule in (narrow, wide)]


def of_two_bytes(kernel: str, *dims: tuple[int, ...], more: str = "") -> list[Case]:
    """The same with blocks that hold as many words as edges of eight lanes want."""
    found = teams(kernel, *dims, more=more)
    return [
        replace(case, schedule=case.schedule.replace("r=64", "r=128").replace("r=32", "r=128"))
        for case in found
    ]


def walking(
    kernel: str, *dims: tuple[int, ...], special: bool = False, more: str = ""
) -> list[Case]:
    """The same where parts are walked twice, in any number of steps."""
    found = teams(kernel, *dims, special=special, more=f"{more} walks=1")
    return [replace(case, schedule=case.schedule.replace("r=64", "r=32")) for case in found]


def of_columns(kernel: str, *dims: tuple[int, ...], special: bool = False) -> list[Case]:
    """Teams of blocks of columns, whole and in part, held and walked."""
    held = f"cuda.cooperative x=4 r=16 splits=3 teams=2 warps=1 {PROMISES} polls=2"
    wide = held.replace("x=4 r=16 splits=3", "x=2 r=8 splits=7").replace("index=32", "index=64")
    walked = held.replace("r=16", "r=8") + " walks=1"
    # Several rows a thread, which are added before they are widened.
    many = held.replace("x=4 r=16", "x=8 r=64")
    texts = (held, wide, walked, many)
    return [Case(kernel, text, each, special) for each in dims for text in texts]


CASES = [
    *of_columns("standardised_columns_f32", (5, 37), (9, 3), (1, 1)),
    *of_columns("standardised_columns_f32", (3, 40), special=True),
    *of_columns("middle_softmax_bf16", (2, 3, 37), (1, 9, 1)),
    *of_columns("middle_softmax_bf16", (2, 3, 40), special=True),
    *of_columns("scaled_columns_bf16", (5, 37), (9, 3), (1, 1)),
    *of_columns("column_cumsum_f32", (5, 41)),
    *of_columns("column_cumsum_f32", (3, 40), special=True),
    *teams("softmax_f32", (5, 37), (3, 130), (1, 192)),
    *teams("softmax_f32", (3, 64), special=True, more=" group=4"),
    *teams("softmax_f32", (5, 3), (5, 37), (3, 131), more=" group=4 words=1"),
    *teams("log_softmax_f32", (2, 161)),
    *teams("layer_norm_dynamic_f32", (3, 153), more=" group=4"),
    *teams("layer_norm_dynamic_f32", (3, 2), (3, 133), more=" group=4 words=1"),
    *walking("softmax_f32", (5, 37), (3, 530), (1, 1)),
    *walking("softmax_f32", (3, 64), special=True),
    *walking("softmax_f32", (5, 3), (3, 531), more=" group=4 words=1"),
    *walking("layer_norm_dynamic_f32", (3, 153), (2, 700), more=" group=4"),
    *walking("layer_norm_dynamic_f32", (3, 2), (3, 733), more=" group=4 words=1"),
    *walking("row_cumsum_f32", (5, 761), (1, 1)),
    *teams("row_cumsum_f32", (5, 161), (1, 1)),
    *teams("row_cumsum_f32", (3, 64), special=True),
    *teams("row_cumprod_f64", (3, 141)),
    *teams("softmax_f32", (5, 37), (3, 130), (1, 192), more=" ahead=2"),
    *teams("softmax_f32", (3, 64), special=True, more=" group=4 ahead=2"),
    *teams("layer_norm_dynamic_f32", (3, 153), (5, 7), more=" group=4 ahead=2"),
    *teams("row_cumsum_f32", (5, 161), (1, 1), more=" ahead=2"),
    *teams("softmax_f32", (5, 37), (3, 130), (1, 384), more=" pieces=2"),
    *teams("softmax_f32", (3, 64), special=True, more=" group=4 pieces=3"),
    *teams("layer_norm_dynamic_f32", (3, 401), (5, 7), (2, 384), more=" group=4 pieces=3"),
    *teams("layer_norm_dynamic_f32", (3, 401), more=" pieces=3"),
    *teams("layer_norm_dynamic_f32", (3, 401), special=True, more=" group=4 pieces=3"),
    *teams("softmax_f32", (5, 1), (5, 37), (3, 131), (2, 195), more=" group=4 words=1 ahead=2"),
    *teams("softmax_f32", (3, 133), special=True, more=" group=4 words=1 ahead=2"),
    *teams("layer_norm_dynamic_f32", (3, 2), (5, 133), more=" group=4 words=1 ahead=2"),
    *teams("layer_norm_dynamic_f32", (3, 133), special=True, more=" group=4 words=1"),
    *teams("softmax_f32", (5, 3), (3, 133), (3, 383), more=" group=4 words=1 pieces=2"),
    *teams("softmax_f32", (3, 133), special=True, more=" words=1 pieces=3"),
    *teams("layer_norm_dynamic_f32", (3, 2), (5, 401), (2, 579), more=" group=4 words=1 pieces=3"),
    *teams("layer_norm_dynamic_f32", (3, 401), special=True, more=" group=4 words=1 pieces=3"),
    *of_two_bytes("softmax_mask_f16", (3, 9), (3, 261), more=" group=8 words=1 ahead=2"),
    *of_two_bytes("softmax_mask_f16", (3, 261), more=" group=8 words=1"),
    *of_two_bytes("group_norm_bf16", (2, 3, 43), (1, 3, 3), more=" group=8 words=1 ahead=2"),
    *of_two_bytes("group_norm_bf16", (2, 3, 131), more=" group=8 words=1 pieces=2"),
    *of_two_bytes("argmax_mask_f16", (3, 3), (3, 261), more=" group=8 words=1"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(case: Case, results: Results) -> None:
    numerics.assert_agrees(case, results)


def of_a_large_mean(name: str, folder: Path) -> None:
    """Makes the rows of a case 1000 and what they were."""
    stored = dict(np.load(folder / f"{name}.npz"))
    stored["i0"] = (stored["i0"].view(np.float32) + np.float32(1000)).view(np.uint8)
    np.savez(folder / f"{name}.npz", allow_pickle=False, **stored)


def test_rows_of_a_large_mean_keep_their_variance_in_tiles(tmp_path: Path) -> None:
    """Lanes are shifted by means of their own, and added where a square of the mean has room."""
    cases = [
        *teams("layer_norm_dynamic_f32", (3, 401), (2, 384), more=" group=4 pieces=3"),
        *teams("layer_norm_dynamic_f32", (3, 401), (5, 3), more=" group=4 words=1 pieces=3"),
        *teams("layer_norm_dynamic_f32", (5, 133), (5, 3), more=" group=4 words=1"),
    ]
    folder, prepared = numerics.run(cases, tmp_path, change=of_a_large_mean)
    for case in cases:
        rows, _ = case.dims
        stored, written = (np.load(folder / f"{case.name}.{end}") for end in ("npz", "out.npz"))
        _, weight, bias = (numerics.as_numpy(each) for each in prepared[case.name]["inputs"])
        x = stored["i0"].view(np.float32).reshape(rows, -1).astype(np.float64)
        scale = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        expected = (x - x.mean(-1, keepdims=True)) / scale * weight + bias
        made = written["o3"].view(np.float32)[: x.size].reshape(x.shape)
        # What a mean of 1000 is rounded by, and nothing like what squares of it are.
        np.testing.assert_allclose(made, expected, rtol=0, atol=3e-4)


def test_rows_in_words_may_be_stored_where_they_were_read(tmp_path: Path) -> None:
    """All programs have read a row's edges before one of them stores these."""
    cases = [
        *teams("softmax_f32", (5, 133), more=" group=4 words=1 ahead=2"),
        *teams("layer_norm_dynamic_f32", (5, 133), more=" group=4 words=1 pieces=2"),
    ]
    results = numerics.run(cases, tmp_path, change=numerics.share_storage)
    for case in cases:
        numerics.assert_agrees(case, results)


HELD = f"cuda.cooperative x=1 r=1024 splits=5 teams=33 warps=4 {PROMISES} words=1"


@pytest.mark.parametrize(("rows", "busy"), [(1, 1), (32, 32), (33, 33), (34, 17), (300, 30)])
def test_all_teams_have_as_many_rows_to_do(rows: int, busy: int) -> None:
    """Of 33 teams: ten rounds of 300 rows are work for thirty."""
    launch = generate(kernel_of("softmax_f32"), parse_schedule(HELD), TARGET).launch
    assert isinstance(launch, CudaLaunch)
    assert launch.stages == 2  # the first zeroes words
    sizes = {"k0": rows, "k1": 5000}
    assert [ex.evaluate(size, sizes) for size in launch.grid] == [5 * busy, 1, 1]
    assert ex.evaluate(launch.workspace_bytes, sizes) == (8 + 4 + 4) * -(-5 * rows // 16) * 16


def test_a_team_serves_rows_that_its_blocks_hold() -> None:
    guard = generate(kernel_of("softmax_f32"), parse_schedule(HELD), TARGET).guard
    assert not [fact for fact in guard.facts if isinstance(fact, Divisible)]
    # Words of four: what is beside the last one needs no room.
    assert size_facts_hold(guard, {"k0": 7, "k1": 5 * 1024 + 3})
    assert not size_facts_hold(guard, {"k0": 7, "k1": 5 * 1024 + 4})


OF_COLUMNS = f"cuda.cooperative x=32 r=512 splits=16 teams=16 warps=8 {PROMISES} registers=128"


@pytest.mark.parametrize(
    ("columns", "rows", "splits", "teams"),
    [(4096, 8192, 16, 16), (5120, 7000, 14, 18), (5120, 7169, 15, 16), (5120, 512, 1, 160)],
)
def test_as_many_programs_share_columns_as_hold_them(
    columns: int, rows: int, splits: int, teams: int
) -> None:
    """Of 256 at most: places that would be idle are those of more teams."""
    generated = generate(kernel_of("standardised_columns_f32"), parse_schedule(OF_COLUMNS), TARGET)
    sizes = {"k0": columns, "k1": rows}
    assert size_facts_hold(generated.guard, sizes)
    assert isinstance(generated.launch, CudaLaunch)
    assert [ex.evaluate(size, sizes) for size in generated.launch.grid] == [splits * teams, 1, 1]
    assert not size_facts_hold(generated.guard, {"k0": columns, "k1": 8193})
    # Who comes last asks for the marks of as many as there may be.
    assert "for other in range(0, 16)" in generated.source


def test_what_a_thread_holds_of_a_column_is_one_lane() -> None:
    """8 rows of eight bf16 that it loads at once."""
    source = generate(kernel_of("middle_softmax_bf16"), parse_schedule(OF_COLUMNS), TARGET).source
    before, _, _ = source.partition("tl.atomic_add")
    assert "[X, R // 8], " in before
    assert "[X, 8, R // 8]), [0, 2, 1])" in before
    # As many f32 as are a vector of what they become.
    source = generate(kernel_of("scaled_columns_bf16"), parse_schedule(OF_COLUMNS), TARGET).source
    assert "[X, 8, R // 8]), [0, 2, 1])" in source.partition("tl.atomic_add")[0]
    # What several rows of a column become stays in order in a scan.
    scanned = generate(kernel_of("column_cumsum_f32"), parse_schedule(OF_COLUMNS), TARGET).source
    assert "tl.reshape" not in scanned


def test_threads_that_hold_columns_wait_for_each_other_once_for_a_variance() -> None:
    """Each starts from the mean of its 16 rows of four f32, not from one of all."""
    generated = generate(kernel_of("standardised_columns_f32"), parse_schedule(OF_COLUMNS), TARGET)
    _, _, entry = generated.source.rpartition("@triton.jit")
    before, _, _ = entry.partition("tl.atomic_add")
    assert before.count("[X, 16, R // 16]), [0, 2, 1])") == 2  # elements, and which are there
    assert before.count("tl.reduce(") == 1
    assert ", 1, _met, keep_dims=True)" in before
    assert "pivot" not in before


def test_places_of_columns_that_are_held_are_computed_again_for_what_is_stored() -> None:
    source = generate(kernel_of("middle_softmax_bf16"), parse_schedule(OF_COLUMNS), TARGET).source
    _, _, met = source.partition("while (seen")
    stored, _, _ = met.partition("tl.store(")
    assert "chunk = own + tl.minimum(k2 - 1, 0)" in stored
    assert "rmask = r < k2" in stored


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("row_argmax_f32", HELD),  # nothing that was held is stored
        ("normalised_cumsum_bf16", HELD.replace(" words=1", "")),  # meets more than once
        ("softmax_f32", HELD.replace("splits=5", "splits=33")),
        ("softmax_f32", HELD.replace("teams=33", "teams=0")),
        ("softmax_f32", HELD.replace("x=1", "x=2")),
        ("plane_norm_bf16", f"{HELD.replace(' words=1', '')} r1=32"),
        ("softmax_f32", f"{HELD.replace(' words=1', '')} ahead=3"),
        ("softmax_f32", f"{HELD.replace(' words=1', '')} walks=1 ahead=2"),
        ("softmax_f32", f"{HELD.replace(' words=1', '')} walks=1 pieces=2"),
        ("softmax_f32", f"{HELD.replace(' words=1', '')} ahead=2 pieces=2"),
        ("row_cumsum_f32", f"{HELD.replace(' words=1', '')} pieces=2"),
        ("standardised_columns_f32", f"{OF_COLUMNS} pieces=2"),
    ],
)
def test_what_no_team_can_hold_is_refused(name: str, schedule: str) -> None:
    with pytest.raises(InvalidSchedule):
        generate(kernel_of(name), parse_schedule(schedule), TARGET)


@pytest.mark.parametrize("words", ["", " words=1"])
def test_the_next_row_is_under_way_while_a_team_meets(words: str) -> None:
    text = HELD.replace(" words=1", f" group=4 ahead=2{words}")
    source = generate(kernel_of("layer_norm_dynamic_f32"), parse_schedule(text), TARGET).source
    _, row, inside = source.partition("for pid in range")
    assert row
    counted, polled, met = (inside.index(each) for each in ("atomic_add", "while", "tl.atomic_or"))
    assert counted < inside.index("n0 = tl.load(a0") < polled
    # Weights come when the registers of what has met are free.
    assert "tl.load(a1" not in inside[:met]


def test_a_team_serves_rows_that_the_tiles_of_its_parts_hold() -> None:
    text = f"{HELD.replace(' words=1', '')} pieces=3"
    guard = generate(kernel_of("softmax_f32"), parse_schedule(text), TARGET).guard
    assert size_facts_hold(guard, {"k0": 7, "k1": 3 * 5 * 1024})
    assert not size_facts_hold(guard, {"k0": 7, "k1": 3 * 5 * 1024 + 1})


def test_all_tiles_of_a_part_are_under_way_together_and_weights_come_one_by_one() -> None:
    text = f"{HELD.replace(' words=1', ' group=4')} pieces=3"
    source = generate(kernel_of("layer_norm_dynamic_f32"), parse_schedule(text), TARGET).source
    before, _, after = source.partition("tl.atomic_or")
    met, _, given_up = after.partition("for other in")

    def moved(text: str) -> str:
        return "".join(re.findall(r"tl\.(?:load|store)\((a\d) \+", text))

    assert moved(before) == 3 * "a0"
    assert moved(met) == 3 * "a1a2a3"
    assert moved(given_up) == 3 * "a0a1a2a3"
    # Where they lie is not kept in registers until then.
    assert met.index("_anew_i32(own)") < met.index("rstart = ") < met.index("tl.load(a1")


SCALED = parse_kernel(
    """(kernel (symbols k0 k1) (pointwise k0) (reduction k1) (params (in f32) (in f32) (out f32))
    (body (load 0 (+ (* k1 p0) r0)) (reduce sum f32 0) (sub f32 0 1) (load 1 r0) (mul f32 2 3)
    (store 2 (+ (* k1 p0) r0) 4)))"""
)


def test_a_single_weight_comes_before_the_tile_before_is_stored() -> None:
    text = f"{HELD.replace(' words=1', ' group=4')} pieces=3"
    source = generate(SCALED, parse_schedule(text), TARGET).source
    met, _, _ = source.partition("for other in")
    moved = "".join(re.findall(r"tl\.(?:load|store)\((a[12]) \+", met))
    assert moved == "a1" + "a1a2" * 2 + "a2"


def test_no_thread_waits_for_others_before_it_sums_what_it_holds(tmp_path: Path) -> None:
    """Its own mean shifts a lane; sums of all lanes are brought together once."""
    text = HELD.replace("r=1024", "r=512").replace("divisible=0 words=1", "divisible=2 group=4")
    generated = generate(
        kernel_of("layer_norm_dynamic_f32"), parse_schedule(f"{text} pieces=3"), TARGET
    )
    ptx = str(cubin._compile(generated, 90, tmp_path).asm["ptx"])
    loaded, _, rest = ptx.partition("shfl.sync")
    assert len(re.findall(r"ld\.global\S*\.v4\.b32", loaded)) == 3
    before, _, _ = rest.partition("atom.global")
    assert "ld.global" not in before
    assert before.count("shfl.sync") < 2 * 2 * (5 + 2)  # two f64, over 32 lanes and 4 warps


def test_a_team_that_walks_serves_rows_of_any_length() -> None:
    walking = f"{HELD.replace(' words=1', '')} walks=1"
    guard = generate(kernel_of("softmax_f32"), parse_schedule(walking), TARGET).guard
    assert all(size_facts_hold(guard, {"k0": 7, "k1": each}) for each in (1, 5 * 1024, 1_000_003))


def test_a_team_that_walks_keeps_nothing_in_registers_until_it_met() -> None:
    text = f"{HELD.replace(' words=1', ' group=4')} walks=1"
    source = generate(kernel_of("layer_norm_dynamic_f32"), parse_schedule(text), TARGET).source
    before, _, after = source.partition("tl.atomic_or")
    # The first block, for the pivot, and the walk; then the walk that stores, and that of others.
    assert before.count("tl.load(a0") == 2
    assert "tl.load(a1" not in before
    assert after.count("tl.load(a0") == after.count("tl.load(a1") == 2


def test_a_team_that_walks_leaves_weights_in_the_cache() -> None:
    text = f"{HELD.replace(' words=1', ' group=4')} walks=1"
    source = generate(kernel_of("layer_norm_dynamic_f32"), parse_schedule(text), TARGET).source
    loads = [line for line in source.splitlines() if "tl.load(a" in line]
    assert all(("eviction_policy" in line) == ("a0" in line) for line in loads)


@pytest.mark.parametrize(
    ("name", "ahead"),
    [
        ("softmax_f32", 2),
        ("layer_norm_dynamic_f32", 2),
        ("softmax_f16", 2),
        ("layer_norm_dynamic_bf16", 1),
    ],
)
def test_teams_load_rows_ahead_but_for_narrow_ones_beside_weights(name: str, ahead: int) -> None:
    kernel = kernel_of(name)
    offered = candidates(kernel, TARGET, {"k0": 300, "k1": 131_072})
    held = [e for e in offered if e.family == TEAMS and not e.get("walks", 0)]
    assert max((each.get("ahead", 1) for each in held), default=1) == ahead


def test_wide_rows_beside_weights_are_held_in_tiles_of_a_vector_a_thread() -> None:
    kernel = kernel_of("layer_norm_dynamic_f32")
    sizes: dict[str, int] = {"k0": 300, "k1": 128_256}
    tiled, *worded = (e for e in candidates(kernel, TARGET, sizes) if e.get("pieces", 0))
    assert {(each["divisible"], each["words"]) for each in worded} == {(0, 1)}
    # The last has room for the longer half of the bucket.
    assert [each["r"] for each in worded] == [2048, 1024, tiled["r"], 2048]
    assert tiled["r"] == 32 * tiled["warps"] * 4
    assert size_facts_hold(generate(kernel, tiled, TARGET).guard, sizes)
    # Five programs a processor; and they come first.
    assert 4 * 132 < tiled["teams"] * tiled["splits"] <= 5 * 132
    assert firsts(kernel, TARGET, sizes)[0] == tiled
    assert firsts(SCALED, TARGET, sizes)[0].get("pieces", 0)
    # As few programs as hold a row, and first from rows on that a cache does not keep.
    for dims, splits, is_first in (((300, 65_536), 16, True), ((2000, 24_576), 6, False)):
        sizes = dict(zip(kernel.symbols, dims, strict=True))
        offered = candidates(kernel, TARGET, sizes)
        tiled = next(e for e in offered if e.family == TEAMS and e.get("pieces", 0))
        assert (tiled["splits"], tiled["pieces"]) == (splits, 4)
        assert (firsts(kernel, TARGET, sizes)[0] == tiled) == is_first
    for name, dims in (("softmax_f32", (300, 128_256)), ("layer_norm_dynamic_f32", (300, 300_000))):
        offered = candidates(kernel_of(name), TARGET, dict(zip(("k0", "k1"), dims, strict=True)))
        assert not [e for e in offered if e.family == TEAMS and e.get("pieces", 0)]


NARROW_NORM = parse_kernel(
    """(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
    (params (in bf16) (in bf16) (in bf16) (out bf16)) (body (load 0 (+ (* k1 p0) r0)) (cast f32 0)
    (reduce sum f32 1) (sub f32 1 2) (load 1 r0) (cast f32 4) (mul f32 3 5) (load 2 r0)
    (cast f32 7) (add f32 6 8) (cast bf16 9) (store 3 (+ (* k1 p0) r0) 10)))"""
)


def test_few_rows_are_held_by_teams_where_each_team_has_several() -> None:
    kernel = kernel_of("softmax_f32")
    first, *_ = firsts(kernel, TARGET, {"k0": 63, "k1": 121_297})
    assert first.family == "cuda.cooperative"
    assert 2 * first["teams"] <= 63
    for rows in (8, 30):
        offered = candidates(kernel, TARGET, {"k0": rows, "k1": 121_297})
        assert "cuda.cooperative" not in {each.family for each in offered}


def test_narrow_rows_beside_weights_are_held_in_tiles_of_words_too() -> None:
    dims = {"k0": 300, "k1": 128_255}
    offered = candidates(NARROW_NORM, TARGET, dims)
    tiled = [each for each in offered if each.get("pieces", 0)]
    found = [(each["r"], each["words"], each.get("weights", 0)) for each in tiled]
    # Those that keep the weights first, at rows of which a cache keeps none.
    assert found == [(1024, 1, 1), (2048, 1, 0), (1024, 1, 0)]
    assert all(each["teams"] * each["splits"] <= 4 * 132 for each in tiled)


def test_long_rows_of_any_length_are_held_as_those_of_whole_vectors_are() -> None:
    kernel = kernel_of("softmax_f32")

    def offered(columns: int) -> list[str]:
        dims = {"k0": 300, "k1": columns}
        found = [e for e in candidates(kernel, TARGET, dims) if e.family == TEAMS]
        wanted = [each for each in found if each["divisible"] or columns % 4]
        return [re.sub(r" words=1|divisible=\d+ ", "", str(each)) for each in wanted]

    *held, roomy = offered(131_071)
    assert held == offered(131_072) != []
    assert " splits=23 " in roomy
    sizes = {"k0": 300, "k1": 128_255}
    first, *_ = firsts(kernel_of("layer_norm_dynamic_f32"), TARGET, sizes)
    assert first["pieces"] > 1
    assert first["words"] == 1


def test_what_is_read_beside_words_leaves_fewer_programs_a_processor() -> None:
    """Weights have no words where rows have them: they come an element at a time."""
    sizes = {"k0": 300, "k1": 128_255}
    for name, held in (("softmax_f32", 4), ("layer_norm_dynamic_f32", 3)):
        offered = candidates(kernel_of(name), TARGET, sizes)
        teams = (each for each in offered if each.get("teams", 0) and each["r"] == 4096)
        (found,) = (each for each in teams if each["warps"] == 8)
        assert (
            found["teams"] * found["splits"] <= held * 132 < (found["teams"] + 1) * found["splits"]
        )
        assert found["registers"] == 65_536 // (32 * 8 * held) // 8 * 8


def test_long_norms_of_wide_elements_beside_weights_are_offered_to_teams_that_walk() -> None:
    for rows, columns, row_bytes in ((300, 131_072, 4 * 131_072), (300, 128_255, 4 * 128_255)):
        kernel = kernel_of("layer_norm_dynamic_f32")
        found = [
            each
            for each in candidates(kernel, TARGET, {"k0": rows, "k1": columns})
            if each.get("walks", 0)
        ]
        assert found
        # The cache keeps most of their rows.
        assert all(each["teams"] * row_bytes <= 48 << 20 for each in found)
        # Programs of one processor have the same part of all rows.
        assert any(132 % each["splits"] == 0 for each in found)
    for name, dims in (("softmax_f32", (300, 131_072)), ("layer_norm_dynamic_f32", (1500, 40_000))):
        kernel = kernel_of(name)
        offered = candidates(kernel, TARGET, dict(zip(kernel.symbols, dims, strict=True)))
        assert not [each for each in offered if each.get("walks", 0)]


def test_a_row_is_read_once_but_for_what_is_given_up() -> None:
    lines = generate(kernel_of("softmax_f32"), parse_schedule(HELD), TARGET).source.splitlines()
    loads = [number for number, line in enumerate(lines) if "tl.load(a0" in line]
    given_up = next(number for number, line in enumerate(lines) if "for other in" in line)
    # Words and edges, each once; of edges nothing is given up.
    assert [number > given_up for number in loads] == [False, False, True]
    counted = next(number for number, line in enumerate(lines) if "atomic_add" in line)
    assert "tl.debug_barrier()" in lines[counted - 1]


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("softmax_f32", HELD.replace("r=1024", "r=8192").replace("warps=4", "warps=16")),
        ("layer_norm_dynamic_f32", f"{HELD} group=4"),
        ("softmax_f16", f"{HELD} group=8"),
        ("row_cumsum_f32", HELD.replace("divisible=0 words=1", "divisible=2")),
    ],
)
def test_a_waiting_program_reads_its_word_with_one_thread_and_acquires(
    name: str, schedule: str, tmp_path: Path
) -> None:
    generated = generate(kernel_of(name), parse_schedule(schedule), TARGET)
    ptx = str(cubin._compile(generated, 90, tmp_path).asm["ptx"])
    assert len(re.findall(r"@%p\d+ ld\.global\.gpu\.acquire\.b64", ptx)) == 1
    assert len(re.findall(r"@%p\d+ atom\.global\.gpu\.acq_rel\.add\.u64", ptx)) == 1
    assert len(re.findall(r"@%p\d+ atom\.global\.gpu\.acq_rel\.or\.b64", ptx)) == 1
    assert len(re.findall(r"ld\.global\S*\.v[24]\.b32", ptx)) >= 2
    assert len(re.findall(r"st\.global\S*\.v4\.b32", ptx)) >= 2


def test_each_warp_brings_the_parts_of_a_row_together_alone(tmp_path: Path) -> None:
    """Between the meeting and the stores no thread waits for those of other warps."""
    promised = HELD.replace("divisible=0 words=1", "divisible=2")
    generated = generate(kernel_of("softmax_f32"), parse_schedule(promised), TARGET)
    ptx = str(cubin._compile(generated, 90, tmp_path).asm["ptx"])
    _, _, met = ptx.partition("or.b64")
    before, _, _ = met.partition("st.global")
    assert "shfl.sync" in before
    assert before.count("bar.sync") <= 1  # that of the word itself


LONG = HELD.replace("r=1024", "r=4096").replace("warps=4", "warps=8")


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("softmax_f32", f"{LONG} registers=64 group=4 ahead=2"),
        ("softmax_f32", f"{LONG.replace('r=4096', 'r=8192')} registers=64 group=4"),
        ("layer_norm_dynamic_f32", f"{HELD.replace('warps=4', 'warps=8')} registers=48 pieces=4"),
    ],
)
def test_edges_are_held_beside_a_chunk_in_registers(
    name: str, schedule: str, tmp_path: Path
) -> None:
    generated = generate(kernel_of(name), parse_schedule(schedule), TARGET)
    cubin.compile_cubin(generated, TARGET, scratch=tmp_path)  # refuses what spills


def test_a_bound_on_registers_is_kept(tmp_path: Path) -> None:
    bounded = parse_schedule(f"{HELD.replace('r=1024', 'r=4096')} registers=72")
    generated = generate(kernel_of("softmax_f32"), bounded, TARGET)
    ptx = str(cubin._compile(generated, 90, tmp_path).asm["ptx"])
    assert ".maxnreg 72" in ptx
