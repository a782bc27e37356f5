"""Rows of several reduction loops: tiles of two axes beside the flat form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.analysis.folds import blocks_of_plane
from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates, parse_schedule
from nearhint_compiler.schedule.cuda_planes import padded
from nearhint_compiler.schedule.estimate import estimate
from nearhint_compiler.schedule.firsts import firsts
from nearhint_compiler.schedule.neighbours import neighbours
from nearhint_daemon.workers.cubin import compile_cubin, read_flags
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CudaLaunch
from nearhint_rules.guard import ALWAYS, AtMost, Divisible, size_facts_hold

REST = "warps=4 index=32 aligned=0 divisible=0"
NARROW = """(kernel (symbols k0 k1 k2) (pointwise k1) (reduction k0 k2)
    (params (in bf16) (out f32)) (body (load 0 (+ (* k1 k2 r0) (* k2 p0) r1)) (cast f32 0)
    (reduce sum f32 1) (store 1 p0 2)))"""
NAMES = ("plane_norm_bf16", "arg_over_two_loops_i32", "arg_min_of_planes_f32")


def offered(name: str, dims: tuple[int, ...]) -> tuple[Schedule, ...]:
    kernel = kernel_of(name)
    return candidates(kernel, TARGET, dict(zip(kernel.symbols, dims, strict=True)))


@pytest.mark.parametrize("name", NAMES)
def test_every_flat_form_is_kept_beside_its_tiles_and_is_the_default(name: str) -> None:
    found = offered(name, (64, 256, 3137, 2)[: len(kernel_of(name).symbols)])
    assert "r1" not in dict(found[0].options)
    assert generate(kernel_of(name), found[-1], TARGET).guard == ALWAYS
    tiles = [each for each in found if each.get("r1", 0)]
    assert len(tiles) >= 3
    for each in tiles:
        # Words are of tiles alone: beside them is the flat form with the same blocks.
        beside = ("r1", "r", *(("group", "unroll", "words") if each.get("words", 0) else ()))
        options = {name: value for name, value in each.options if name not in beside}
        options |= {"aligned": 0} if each.get("words", 0) else {}
        assert each["r"] % each["r1"] == 0
        assert any(
            options == {name: value for name, value in flat.options if name != "r"}
            for flat in found
            if flat.family == each.family and "r1" not in dict(flat.options)
        )


def test_where_a_loop_is_one_long_or_there_is_one_alone_there_are_no_tiles() -> None:
    for name, dims in (("softmax_f32", (64, 4096)), ("plane_norm_bf16", (1, 64, 4096))):
        assert all("r1" not in dict(each.options) for each in offered(name, dims))


@pytest.mark.parametrize(
    ("schedule", "is_tiled"),
    [
        (f"cuda.looped x=1 r=2048 {REST}", False),
        (f"cuda.looped x=1 r=2048 {REST} r1=128", True),
    ],
)
def test_elements_are_divided_by_sizes_in_the_flat_form_alone(
    schedule: str, is_tiled: bool
) -> None:
    """Tiles are counted: a step divides nothing, and one that goes backwards scalars alone."""
    source = generate(kernel_of("plane_norm_bf16"), parse_schedule(schedule), TARGET).source
    walk, _, back = source[source.index("for roffset") :].partition("for rback")
    assert not re.findall(r"rtile (?://|%)", walk.partition("rlast")[0])
    assert len(re.findall(r"rtile (?://|%) racross", back)) == (2 if is_tiled else 0)
    by_sizes = re.findall(r"(?://|%) k\d|_(?:quotient|remainder)\(", walk)
    assert bool(by_sizes) != is_tiled


def test_planes_are_walked_in_words_before_programs_share_them_element_by_element() -> None:
    kernel = kernel_of("sum_outer_inner_f32")
    sizes = dict(zip(kernel.symbols, (64, 256, 3137), strict=True))
    assert firsts(kernel, TARGET, sizes)[0].get("words", 0) == 1
    # Where sizes promise vectors, and where a program a row leaves processors idle, they share.
    for other in ((64, 256, 4096), (256, 64, 3137)):
        sizes = dict(zip(kernel.symbols, other, strict=True))
        assert firsts(kernel, TARGET, sizes)[0].family == "cuda.split"


def test_a_tile_wastes_little_of_an_awkward_row() -> None:
    for dims in ((64, 256, 3137), (7, 16, 1021), (100_003, 3, 32), (8, 3, 128_256)):
        tiles = [each for each in offered("plane_norm_bf16", dims) if each.get("r1", 0)]
        row = (dims[0], dims[2])
        walked = [each for each in tiles if each.family != "cuda.persistent"]
        assert walked
        for each in walked:
            lanes = padded(row, r=each["r"], r1=each["r1"])
            assert lanes <= 1.2 * row[0] * row[1] or lanes == each["r"]


@pytest.mark.parametrize("length", [4096, 4095])
def test_tiles_in_words_suit_planes_of_other_lengths_than_at_the_hint(length: int) -> None:
    found = [e for e in offered("plane_norm_bf16", (64, 256, length)) if e.get("words", 0)]
    walked = {each["r"]: each for each in found if each.family == "cuda.looped"}
    # Planes of 1500 would leave most of a tile of 4096 idle.
    assert padded((64, 1500), r=8192, r1=walked[8192]["r1"]) <= 1.1 * 64 * 1500
    assert all(walked[r].get("unroll", 1) == 2 for r in (4096, 8192))


def test_a_persistent_tile_has_a_guard_on_each_side_and_a_walk_on_its_lanes() -> None:
    kernel = kernel_of("plane_norm_bf16")
    persistent = parse_schedule(f"cuda.persistent x=1 r=2048 {REST} r1=256")
    facts = generate(kernel, persistent, TARGET).guard.facts
    assert AtMost(ex.symbol("k0"), 8) in facts
    assert AtMost(ex.symbol("k2"), 256) in facts
    walked = generate(kernel, parse_schedule(f"cuda.looped x=1 r=2048 {REST} r1=256"), TARGET).guard
    # Few elements, but so many tiles of 8 by 256 lanes that their count needs 64 bits.
    assert size_facts_hold(walked, {"k0": 2**20, "k1": 1, "k2": 256})
    assert not size_facts_hold(walked, {"k0": 2**24, "k1": 1, "k2": 2})


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("softmax_f32", f"cuda.looped x=1 r=64 {REST} r1=16"),
        ("row_cumsum_f32", f"cuda.looped x=1 r=64 {REST} r1=16"),
        ("plane_norm_bf16", f"cuda.looped x=1 r=64 {REST} r1=128"),
        ("plane_norm_bf16", f"cuda.looped x=1 r=64 {REST} r1=24"),
    ],
)
def test_tiles_that_do_not_fit_are_refused(name: str, schedule: str) -> None:
    with pytest.raises(InvalidSchedule):
        generate(kernel_of(name), parse_schedule(schedule), TARGET)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "schedule",
    [
        "cuda.persistent x=1 r=4096 warps=8 index=32 aligned=0 divisible=0 r1=512",
        "cuda.looped x=2 r=1024 warps=4 index=64 aligned=0 divisible=0 r1=128",
        "cuda.split x=1 r=2048 splits=48 warps=4 index=32 aligned=0 divisible=0 r1=2048",
    ],
)
def test_tiles_compile_with_the_signature_of_the_flat_form(
    name: str, schedule: str, tmp_path: Path
) -> None:
    kernel = kernel_of(name)
    generated = generate(kernel, parse_schedule(schedule), TARGET)
    flat = generate(kernel, parse_schedule(schedule.rpartition(" r1=")[0]), TARGET)
    tiled, plain = (dict(read_flags(each.flags).signature) for each in (generated, flat))
    # The flat form alone divides elements, by factors that are arguments.
    assert tiled == {name: plain[name] for name in plain if not name.startswith("by_")}
    assert compile_cubin(generated, TARGET, scratch=tmp_path).binary.startswith(b"\x7fELF")


def test_steps_from_a_tile_stay_tiles_that_hold_the_row() -> None:
    kernel = kernel_of("plane_norm_bf16")
    sizes = {"k0": 7, "k1": 64, "k2": 200}
    tile = parse_schedule(f"cuda.persistent x=1 r=2048 {REST} r1=256")
    found = neighbours(kernel, tile, sizes)
    sides = {(each["r"], each["r1"]) for each in found}
    assert sides == {(2048, 256), (4096, 256)}
    assert all(size_facts_hold(generate(kernel, each, TARGET).guard, sizes) for each in found)
    narrow = parse_schedule(f"cuda.looped x=1 r=256 {REST} r1=256")
    assert (256, 512) not in {(each["r"], each["r1"]) for each in neighbours(kernel, narrow, sizes)}


def test_a_tile_that_mostly_overhangs_is_estimated_to_be_slower() -> None:
    kernel = kernel_of("plane_norm_bf16")
    sizes = {"k0": 4096, "k1": 256, "k2": 33}
    narrow, wide = (
        estimate(kernel, parse_schedule(f"cuda.looped x=1 r=2048 {REST} r1={r1}"), TARGET, sizes)
        for r1 in (64, 1024)
    )
    assert 2 * narrow.seconds < wide.seconds


def test_tiles_promise_what_can_be_promised() -> None:
    for width in (512, 513):
        tiles = [each for each in offered("plane_norm_bf16", (8, 64, width)) if each.get("r1", 0)]
        elements = [each for each in tiles if not each.get("words", 0)]
        assert elements
        assert all(bool(each["divisible"]) == (width == 512) for each in elements)


@pytest.mark.parametrize(
    ("dims", "family"), [((64, 256, 3137), "cuda.looped"), ((7, 509, 1021), "cuda.persistent")]
)
def test_planes_of_odd_lengths_are_read_in_words_first_of_all(
    dims: tuple[int, ...], family: str
) -> None:
    kernel = kernel_of("plane_norm_bf16")
    sizes = dict(zip(kernel.symbols, dims, strict=True))
    first = firsts(kernel, TARGET, sizes)[0]
    assert first.family == family
    assert first.get("words", 0)
    assert first.get("r1", 0)
    facts = generate(kernel, first, TARGET).guard.facts
    assert not [fact for fact in facts if isinstance(fact, Divisible)]
    assert size_facts_hold(generate(kernel, first, TARGET).guard, sizes)


@pytest.mark.parametrize(("width", "family"), [(1024, "cuda.persistent"), (65_536, "cuda.looped")])
def test_words_of_planes_serve_the_sizes_beside_a_hint_that_is_a_multiple(
    width: int, family: str
) -> None:
    kernel = kernel_of("plane_norm_bf16")
    found = [each for each in offered("plane_norm_bf16", (8, 64, width)) if each.get("words", 0)]
    beside = {"k0": 8, "k1": 64, "k2": width - 1}
    # The eight rows are few: programs may share them, too.
    assert {each.family for each in found} == {family, "cuda.split"}
    assert all(size_facts_hold(generate(kernel, each, TARGET).guard, beside) for each in found)


def test_steps_from_a_tile_of_words_hold_the_edges_beside_them() -> None:
    kernel = kernel_of("plane_norm_bf16")
    rest = "warps=4 index=32 aligned=1 divisible=0 words=1"
    tile = parse_schedule(f"cuda.persistent x=1 r=2048 {rest} r1=256")
    for width, sides in ((263, {(2048, 256), (4096, 256)}), (264, set[tuple[int, int]]())):
        found = neighbours(kernel, tile, {"k0": 8, "k1": 64, "k2": width})
        assert {(each["r"], each["r1"]) for each in found} == sides


def test_planes_shorter_than_their_words_need_are_not_offered_in_words() -> None:
    for dims in ((512, 64, 97), (1, 64, 4097)):
        assert not [each for each in offered("plane_norm_bf16", dims) if each.get("words", 0)]


@pytest.mark.parametrize(
    ("rows", "warps"), [(300, 16), (265, 16), (256, 16), (200, 16), (198, 32), (132, 32)]
)
def test_planes_that_are_only_read_have_a_vector_a_thread_first(rows: int, warps: int) -> None:
    """The most threads of a program are for a processor that has one alone."""
    kernel, dims = kernel_of("sum_outer_inner_f32"), {"k0": 64, "k1": rows, "k2": 3137}
    found = [each for each in candidates(kernel, TARGET, dims) if each["x"] == 1]
    first = next(each for each in found if each.family == "cuda.looped")
    assert (first["words"], first["unroll"]) == (1, 2)
    assert (first["warps"], first["r"]) == (warps, warps * 32 * 4)
    assert (found[0] == first) == (rows > 1.25 * 132)


def test_narrow_planes_that_are_only_read_have_the_most_threads_first() -> None:
    first = firsts(parse_kernel(NARROW), TARGET, {"k0": 64, "k1": 256, "k2": 3137})[0]
    assert (first["words"], first["warps"], first["r"]) == (1, 32, 32 * 32 * 8)


def test_the_first_tile_of_planes_that_are_only_read_suits_other_lengths() -> None:
    first = firsts(kernel_of("sum_outer_inner_f32"), TARGET, {"k0": 64, "k1": 256, "k2": 4095})[0]
    assert padded((64, 1500), r=first["r"], r1=first["r1"]) <= 1.1 * 64 * 1500


@pytest.mark.parametrize(
    ("rows", "planes", "length"), [(40, 2639, 113), (13, 2028, 413), (6, 145, 15_222)]
)
def test_programs_that_share_planes_all_fit_at_once(rows: int, planes: int, length: int) -> None:
    """Of one more than fit the device would wait as long again: so half as many rows more do."""
    dims = {"k0": planes, "k1": rows, "k2": length}
    first = firsts(kernel_of("sum_outer_inner_f32"), TARGET, dims)[0]
    assert first.family == "cuda.split"
    assert (first["words"], first["r"]) == (1, first["warps"] * 32 * 4)
    threads = 32 * first["warps"] * rows * first["splits"]
    assert 0.9 * 132 * 2048 <= 1.5 * threads <= 132 * 2048
    # Of few planes most programs have some.
    assert first["r1"] == 512 if planes == 145 else first["r1"] in (128, 256)
    assert padded((planes, length), r=first["r"], r1=first["r1"]) <= 1.25 * planes * length


@pytest.mark.parametrize(("rows", "planes", "length"), [(40, 2639, 113), (13, 8028, 125)])
def test_single_elements_of_shared_planes_are_read_in_tiles_that_divide_none_of_their_places(
    rows: int, planes: int, length: int
) -> None:
    single = first_of_single_elements(rows, planes, length)
    threads = 32 * single["warps"] * rows * single["splits"]
    assert 0.9 * 132 * 1024 <= threads <= 132 * 1024
    assert single["r1"] >= length


@pytest.mark.parametrize(("rows", "planes", "length"), [(5, 38_700, 89), (50, 6000, 101)])
def test_tiles_with_many_lanes_in_vain_come_after_the_flat_form(
    rows: int, planes: int, length: int
) -> None:
    assert first_of_single_elements(rows, planes, length).get("r1", 0) == 0


def first_of_single_elements(rows: int, planes: int, length: int) -> Schedule:
    """The first Schedule of narrow planes that are shared element by element."""
    space = candidates(parse_kernel(NARROW), TARGET, {"k0": planes, "k1": rows, "k2": length})
    return next(
        each
        for each in space
        if each.family == "cuda.split" and not (each.get("words", 0) or each.get("fold", 0))
    )


def folds_of(name: str, planes: int, rows: int, length: int) -> list[Schedule]:
    """The Schedules of planes whose elements are columns."""
    space = candidates(kernel_of(name), TARGET, {"k0": planes, "k1": rows, "k2": length})
    return [each for each in space if each.get("plane", 0)]


@pytest.mark.parametrize("name", ["plane_variances_f32", "plane_variances_bf16"])
@pytest.mark.parametrize(
    ("planes", "rows", "length"), [(41, 25_939, 33), (512, 4096, 49), (59, 4534, 153)]
)
def test_elements_of_short_planes_are_columns(
    name: str, planes: int, rows: int, length: int
) -> None:
    found = folds_of(name, planes, rows, length)
    assert found
    for each in found:
        assert each["plane"] >= 1.41 * length
        assert generate(kernel_of(name), each, TARGET).guard.facts
        # A thread brings few parts together, and holds no more.
        parts = each["fold"] * each["splits"] * blocks_of_plane(each["plane"], each["x"])
        assert parts <= 4 * 32 * each["warps"]
    assert found[0]["x"] * 132 <= 8 * planes * length


@pytest.mark.parametrize(
    ("planes", "rows", "length"),
    # That a cache keeps, long ones, and of few rows.
    [(127, 1009, 60), (64, 8192, 16), (26, 14_860, 923), (300, 700, 200)],
)
def test_elements_of_other_planes_are_no_columns(planes: int, rows: int, length: int) -> None:
    assert not folds_of("plane_variances_bf16", planes, rows, length)


def test_sums_of_planes_are_walked_in_pieces_too() -> None:
    source = """(kernel (symbols k0 k1 k2) (pointwise k0) (reduction k1 k2)
        (params (in bf16) (out f32)) (body (load 0 (+ (* k0 k2 r0) (* k2 p0) r1)) (cast f32 0)
        (reduce sum f32 1) (store 1 p0 2)))"""
    space = candidates(parse_kernel(source), TARGET, {"k0": 59, "k1": 4534, "k2": 153})
    found = [each for each in space if each.get("plane", 0)]
    assert {each.get("pieces", 1) for each in found} == {1, 8}


def test_a_launch_says_which_loop_its_tiles_cover_in_part() -> None:
    kernel = kernel_of("plane_norm_bf16")
    for rest, inner in ((" r1=128", kernel.reduction[-1]), ("", ex.ZERO)):
        made = generate(kernel, parse_schedule(f"cuda.looped x=1 r=2048 {REST}{rest}"), TARGET)
        assert isinstance(made.launch, CudaLaunch)
        assert made.launch.inner == inner
