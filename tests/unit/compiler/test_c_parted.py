"""Generated C for joins: where parts meet, loops are parted, and each part is computed alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.kernels import kernel_of
from tests.unit.compiler.native import (
    LEVELS,
    MACHINE,
    WIDTHS,
    Array,
    check,
    compile_kernel,
    encode,
)

from nearhint_compiler.analysis.parted import parted
from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, parse_schedule
from nearhint_compiler.schedule.choice import QUICK, choose
from nearhint_compiler.schedule.estimate import estimate

SCHEDULE = "cpu.pointwise axis={axis} lanes={lanes} unroll={unroll} block={block} parted=1"
WAVES = """
(kernel (symbols k0 k1)
  (pointwise k0 (* 2 k1))
  (reduction)
  (params (in f32) (in f32) (out f32))
  (body
    (iota p1)
    (iota k1)
    (lt bool 0 1)
    (load 0 p0)
    (load 1 (min p1 (+ k1 -1)))
    (mul f32 3 4)
    (cos f32 5)
    (load 1 (max 0 (+ p1 (* -1 k1))))
    (mul f32 3 7)
    (sin f32 8)
    (where f32 2 6 9)
    (store 2 (+ (* 2 k1 p0) p1) 10)))
"""
"""Cosines beside sines."""
PADDED = """
(kernel (symbols k0 k1 k2 k3 k4)
  (pointwise (+ k0 k1 k2 -2) k4)
  (reduction)
  (params (in bf16) (in bool) (out f32) (out i64))
  (body
    (iota p0)
    (iota (+ k0 -1))
    (ge bool 0 1)
    (iota (+ k0 k1 -1))
    (lt bool 0 3)
    (and bool 2 4)
    (load 0 (+ (* k4 (max 0 (min (+ k1 -1) (+ p0 (* -1 k0) 1)))) p1))
    (cast f32 6)
    (load 1 k3)
    (not bool 5)
    (const f32 0x7fc00000)
    (where f32 9 10 7)
    (iota p1)
    (const i64 0x7)
    (gt bool 13 12)
    (where f32 14 11 7)
    (where f32 5 15 11)
    (store 2 (+ (* k4 p0) p1) 16)
    (cast i64 5)
    (where i64 8 18 13)
    (store 3 (+ (* k4 p0) p1) 19)))
"""
"""Rows before and behind, of which there may be none, and a join of seven columns and others."""
ROLLED = """
(kernel (symbols k0 k1 k2)
  (pointwise (+ k0 3) (+ k1 k2))
  (reduction)
  (params (in i32) (out i32))
  (body
    (iota p1)
    (iota k1)
    (lt bool 0 1)
    (iota p0)
    (const i64 0x3)
    (le bool 4 3)
    (load 0 (+ (* (+ k1 k2) (+ k0 (min 2 p0))) k2 (min p1 (+ k1 -1))))
    (load 0 (+ (* (+ k1 k2) (+ k0 (min 2 p0))) (max 0 (+ p1 (* -1 k1)))))
    (where i32 2 6 7)
    (load 0 (+ (* (+ k1 k2) (max 0 (+ p0 -3))) k2 (min p1 (+ k1 -1))))
    (load 0 (+ (* (+ k1 k2) (max 0 (+ p0 -3))) (max 0 (+ p1 (* -1 k1)))))
    (where i32 2 9 10)
    (where i32 5 11 8)
    (store 1 (+ (* (+ k1 k2) p0) p1) 12)))
"""
"""Both loops are parted, one of them by its lanes."""
TRIANGLE = """
(kernel (symbols k0 k1)
  (pointwise k0 k1)
  (reduction)
  (params (in f32) (out f32))
  (body
    (iota p1)
    (iota (+ p0 -2))
    (le bool 0 1)
    (load 0 (+ (* k1 p0) p1))
    (const f32 0x0)
    (where f32 2 3 4)
    (store 1 (+ (* k1 p0) p1) 5)))
"""
"""Each row is parted elsewhere, the first two before they begin and some behind their end."""
BOTH = """
(kernel (symbols k0 k1)
  (pointwise k0 (* 2 k1))
  (reduction)
  (params (in f32) (in f32) (out f32))
  (body
    (iota p1)
    (iota k1)
    (lt bool 0 1)
    (iota k0)
    (lt bool 0 3)
    (load 0 p0)
    (load 1 (min p1 (+ k1 -1)))
    (where f32 2 5 6)
    (where f32 4 7 5)
    (store 2 (+ (* 2 k1 p0) p1) 8)))
"""
"""A place is compared with two sizes, either of which may be the larger."""
OCTAVES = """
(kernel (symbols k0)
  (pointwise k0 74)
  (reduction)
  (params (in f32) (in f32) (out f32))
  (body
    (iota p1)
    (const i64 0x2)
    (lt bool 0 1)
    (load 0 (+ (* 2 p0) (min 1 p1)))
    (const i64 0x26)
    (lt bool 0 4)
    (load 0 (+ (* 2 p0) (// (max 0 (min 35 (+ p1 -2))) 18)))
    (load 1 (% (max 0 (min 35 (+ p1 -2))) 18))
    (mul f32 6 7)
    (sin f32 8)
    (load 0 (+ (* 2 p0) (// (max 0 (+ p1 -38)) 18)))
    (load 1 (% (max 0 (+ p1 -38)) 18))
    (mul f32 10 11)
    (cos f32 12)
    (where f32 5 9 13)
    (where f32 2 3 14)
    (store 2 (+ (* 74 p0) p1) 15)))
"""
"""Two coordinates, and sines and cosines of them in 18 octaves."""
SIZES: dict[str, Sequence[tuple[int, ...]]] = {
    WAVES: [(1, 1), (5, 7), (2, 16), (3, 33), (2, 64), (1, 150)],
    PADDED: [(1, 1, 1, 1, 1), (2, 1, 3, 1, 7), (1, 4, 2, 1, 8), (4, 3, 1, 1, 40), (2, 2, 2, 1, 9)],
    ROLLED: [(1, 1, 1), (2, 5, 1), (1, 16, 16), (3, 1, 70), (4, 33, 31)],
    BOTH: [(1, 1), (5, 40), (40, 5)],
    TRIANGLE: [(1, 1), (2, 9), (40, 5), (7, 40), (70, 67)],
    OCTAVES: [(1,), (5,), (33,)],
}
"""The ends of parts before, within and behind vectors, steps and blocks."""


def drawn(text: str, dims: Sequence[int]) -> list[Array]:
    random = np.random.default_rng(0)
    if text in (WAVES, BOTH):
        return [random.uniform(-9, 9, count).astype(np.float32) for count in dims]
    if text is OCTAVES:
        return [random.uniform(-9, 9, count).astype(np.float32) for count in (2 * dims[0], 18)]
    if text is PADDED:
        return [encode("bf16", random.uniform(-9, 9, dims[1] * dims[4])), np.ones(2, np.uint8)]
    if text is ROLLED:
        return [random.integers(-99, 99, (dims[0] + 3) * (dims[1] + dims[2]), np.int32)]
    return [random.uniform(-9, 9, dims[0] * dims[1]).astype(np.float32)]


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
@pytest.mark.parametrize("text", SIZES)
def test_each_element_is_of_its_part(level: str, lanes: int, text: str, tmp_path: Path) -> None:
    kernel = parse_kernel(text)
    for axis, unroll, block in ((1, 2, 48), (0, 1, 1024)):
        schedule = parse_schedule(
            SCHEDULE.format(axis=axis, lanes=lanes, unroll=unroll, block=block)
        )
        if not parted(kernel, f"p{axis}"):
            continue
        native = compile_kernel(kernel, schedule, tmp_path, at=LEVELS[level])
        for dims in SIZES[text]:
            for threads in (1, 3):
                check(native, dims, drawn(text, dims), threads=threads)


def generated(text: str, *, axis: int = 1) -> str:
    schedule = parse_schedule(SCHEDULE.format(axis=axis, lanes=8, unroll=1, block=1024))
    source = generate(parse_kernel(text), schedule, MACHINE).source
    return source[source.index("static void run(") :]


def test_a_part_is_computed_where_it_is_taken_and_read_in_full_vectors() -> None:
    """A full vector's and a tail's."""
    source = generated(WAVES)
    before, after = source.split("p1 = stop;", 1)
    assert before.count("= cos_f32(") == after.count("= sin_f32(") == 2
    assert "sin_f32(" not in before
    assert "cos_f32(" not in after
    assert not any(name in source for name in ("least(k1 + -1", "load_within", "sel_f32"))


def test_parts_of_a_loop_that_lanes_do_not_run_along_are_branches() -> None:
    source = generated(WAVES, axis=0)
    assert source.count("if (p1 < k1)") == source.count("if (p1 >= k1)") == 1
    assert source.count("= cos_f32(") == source.count("= sin_f32(") == 2


LOOKED_UP = """
(kernel (symbols k0)
  (pointwise k0 {columns})
  (reduction)
  (params (in i64) (in f32) (in f32) (out f32))
  (body
    (iota p1)
    (iota {end})
    (lt bool 0 1)
    (load 0 {place})
    (gather 1 p1 32 9 3)
    (load 2 (max 0 (+ p1 (* -1 k0))))
    (where f32 2 4 5)
    (store 3 (+ (* {columns} p0) p1) 6)))
"""


@pytest.mark.parametrize(
    ("place", "end", "columns", "counts"),
    [
        ("(+ (* k0 p0) p1)", "p0", "k0", (1, 1)),  # a triangle: eager looks all of them up
        ("p0", "k0", "(* 2 k0)", (1, 1)),  # of a row, whether its part has elements or not
        ("(min p1 (+ k0 -1))", "k0", "(* 2 k0)", (1, 0)),  # a part of a join
    ],
)
def test_what_is_looked_up_is_told_where_it_is_not_taken(
    place: str, end: str, columns: str, counts: tuple[int, int]
) -> None:
    kernel = parse_kernel(LOOKED_UP.format(place=place, end=end, columns=columns))
    (region,) = parted(kernel, "p1")
    assert tuple(int(4 in each.places) for each in region.along) == counts


def test_a_comparison_whose_place_among_others_is_not_proved_stays() -> None:
    """Of two, the second may be before or behind the first."""
    kernel = parse_kernel(BOTH)
    (region,) = parted(kernel, "p1")
    assert len(region.along) == 2
    assert all(4 in each.places for each in region.along)


def test_of_too_many_stretches_lanes_have_none_of_their_own() -> None:
    """Nine parts along each of two loops: those of one are a stretch each."""
    ends = [f"(iota p{loop}) (const i64 {end:#x})" for loop in (0, 1) for end in range(1, 9)]
    body = ["(load 0 0)", *ends]
    for count in range(16):
        place = 1 + 2 * count
        body.append(f"(lt bool {place} {place + 1})")
    body += [f"(where f32 {33 + count} 0 {48 + count if count else 0})" for count in range(16)]
    kernel = parse_kernel(
        f"(kernel (symbols k0) (pointwise k0 k0) (reduction) (params (in f32) (out f32))"
        f" (body {' '.join(body)} (store 1 (+ (* k0 p0) p1) 64)))"
    )
    regions = parted(kernel, "p1")
    assert [len(region.along) for region in regions] == [1] * 9


def test_between_two_multiples_of_a_divisor_nothing_is_divided() -> None:
    """Each coordinate is one number for all lanes, and octaves are a vector."""
    source = generated(OCTAVES)
    assert "floor_" not in source
    assert source.count("= splat_f32(in0[") == 4
    assert source.count("= load_f32(in1 + ") == 4


def test_pieces_of_few_elements_are_one_stretch() -> None:
    """Of twice as many coordinates in a few octaves vectors would be mostly empty."""
    few = OCTAVES.replace(" 18)", " 6)")
    assert [len(region.along) for region in parted(parse_kernel(few), "p1")] == [3]
    assert [len(region.along) for region in parted(parse_kernel(OCTAVES), "p1")] == [5]


@pytest.mark.parametrize("octaves", [18, 6])
def test_lanes_are_along_what_is_stored_as_one_where_each_part_has_few_loads(octaves: int) -> None:
    """No part reads what the others do, so all of them together do not count against the store."""
    kernel = parse_kernel(OCTAVES.replace(" 18)", f" {octaves})"))
    first = candidates(kernel, MACHINE, {"k0": 4096})[0]
    assert (first["axis"], first["parted"]) == (1, 1)


def test_a_join_is_parted_first() -> None:
    kernel = parse_kernel(WAVES)
    found = candidates(kernel, MACHINE, {"k0": 1000, "k1": 100})
    assert found[0]["parted"] == 1
    assert any("parted" not in dict(each.options) for each in found)


def test_what_is_parted_is_expected_to_take_less_and_is_another_kind() -> None:
    """A quick search tries both."""
    kernel, dims = parse_kernel(WAVES), {"k0": 1000, "k1": 100}
    of_part = parse_schedule(SCHEDULE.format(axis=1, lanes=1, unroll=2, block=1024))
    of_all = parse_schedule(str(of_part).replace(" parted=1", ""))
    taken = [estimate(kernel, each, MACHINE, dims).seconds for each in (of_part, of_all)]
    assert taken[0] < taken[1]
    quick = choose(kernel, MACHINE, dims, effort=QUICK).schedules
    assert {each.get("parted", 0) for each in quick} == {0, 1}


@pytest.mark.parametrize(
    "text",
    [
        WAVES.replace("(lt bool 0 1)", "(eq bool 0 1)"),
        WAVES.replace("(iota p1)", "(iota (* 2 p1))"),
        WAVES.replace("(iota p1)", "(iota (% p1 2))"),
        WAVES.replace("(iota p1)", "(const i64 0x1)"),
    ],
)
def test_what_is_compared_otherwise_parts_no_loop(text: str) -> None:
    assert parted(parse_kernel(text), "p1") == ()
    with pytest.raises(InvalidSchedule):
        generated(text)


@pytest.mark.parametrize("level", LEVELS)
def test_pieces_of_a_join_are_stored_in_their_places(level: str, tmp_path: Path) -> None:
    given, random = kernel_of("halves_and_product_bf16"), np.random.default_rng(3)
    for schedule in candidates(given, LEVELS[level]):
        native = compile_kernel(given, schedule, tmp_path, at=LEVELS[level])
        for rows, columns in ((3, 37), (1, 64), (40, 5)):
            inputs = [
                encode("bf16", random.standard_normal(rows * each))
                for each in (columns, 2 * columns)
            ]
            check(native, (rows, columns), inputs, threads=2)
