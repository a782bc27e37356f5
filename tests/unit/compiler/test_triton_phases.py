"""What rows in words share is read in words as well: each row in its own phase, nothing outside.

The interpreter fails where a case reads outside of its storages, so short rows and lengths beside
multiples of a word are what is looked at here.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.kernels import TARGET, kernel_of
from tests.unit.compiler.triton_numerics import Case, Results

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates
from nearhint_compiler.schedule.schedule import Schedule, parse_schedule
from nearhint_daemon.workers import cubin
from nearhint_daemon.workers.errors import KernelOversized

pytestmark = numerics.RUNS_LONG

KERNEL = "layer_norm_dynamic_bf16"
WORDS = "index=32 aligned=1 divisible=0"
WALKED = f"cuda.looped x=1 r=256 warps=1 {WORDS} group=8 words=1"
HELD = f"cuda.persistent x=1 r=512 warps=2 {WORDS} words=1"
SEVERAL = f"cuda.persistent x=4 r=256 warps=2 {WORDS} words=1"
PIECES = f"cuda.persistent x=1 r=256 warps=1 {WORDS} words=1 early=1 pieces=3"
TURNS = f"cuda.persistent x=1 r=512 warps=2 {WORDS} ahead=2 words=1 turns=2"
TEAM = f"cuda.cooperative x=1 r=256 splits=3 teams=2 warps=1 {WORDS} polls=2 group=8 words=1"
SPLIT = f"cuda.split x=1 r=256 splits=3 warps=1 {WORDS} group=8 words=1"
WIDE_WEIGHTS, WIDE = "layer_norm_wide_weights_bf16", "layer_norm_dynamic_f32"
"""What all rows share in elements of four bytes, beside rows of two and of four."""
LABELLED = "chosen_of_shared_bf16"
"""And beside places in eight bytes, which have no words."""
MODULATED = "modulated_layer_norm_bf16"
"""What all rows share beside what those of an image share, each from a base of its own."""
STRIDED = "strided_softmax_bf16"
"""Rows that begin elsewhere than those that are written, and lie beside or over each other."""
AHEAD = (
    f"cuda.cooperative x=1 r=512 splits=3 teams=2 warps=2 {WORDS} polls=2 group=8 ahead=2 words=1"
)
MIXED = """(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
  (params (in bf16) (in f32) (in f16) (out bf16))
  (body (load 0 (+ (* k1 p0) r0)) (cast f32 0) (load 1 r0) (load 2 r0) (cast f32 3)
    (reduce max f32 1) (sub f32 1 5) (mul f32 6 2) (mul f32 7 4) (cast bf16 8)
    (store 3 (+ (* k1 p0) r0) 9)))"""


NUMBERED = """(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
  (params (in bf16) (in f32) (in i64) (out f32))
  (body (load 0 (+ (* k1 p0) r0)) (cast f32 0) (load 1 r0) (load 2 r0) (cast f32 3)
    (sub f32 1 2) (mul f32 5 4) (reduce sum f32 6) (store 3 p0 7)))"""
"""Columns that share weights in elements of four bytes, and numbers of eight."""


WIDE_PIECES = f"cuda.persistent x=1 r=128 warps=1 {WORDS} words=1 pieces=3"


def cases(
    schedule: str, *lengths: int, rows: int = 9, special: bool = False, kernel: str = KERNEL
) -> list[Case]:
    return [Case(kernel, schedule, (rows, length), special) for length in lengths]


def in_phase(source: str) -> list[tuple[str, str]]:
    """The words' form and the parameter of each load of two words."""
    return re.findall(r"_in_phase_(\dx\d)\(\s*tl\.load\((a\d)", source)


def modulated(schedule: str, *lengths: int, tokens: int = 3) -> list[Case]:
    return [Case(MODULATED, schedule, (3, tokens, length)) for length in lengths]


def strided(schedule: str, *lengths: int) -> list[Case]:
    return [
        Case(STRIDED, schedule, (5, length, stride))
        for length in lengths
        for stride in (length + 3, max(1, length // 2))
    ]


CASES = [
    *cases(WALKED, *range(1, 18), 255, 256, 257, 263, 264, 271, 509, 777),
    *cases(HELD, 1, 7, 8, 9, 15, 17, 121, 503, 512, 513, 519),
    *cases(HELD, 135, special=True),
    *cases(SEVERAL, 3, 8, 129, 255, 263),
    *cases(PIECES, 5, 257, 511, 700, 775),
    *cases(TURNS, 6, 131, 509, rows=37),
    *cases(TEAM, 7, 261, 519, 770),
    *cases(f"{TEAM} pieces=2", 261, 1001),
    *cases(SPLIT, 3, 261, 770),
    *cases(WALKED, *range(1, 18), 255, 256, 263, 509, 777, kernel=WIDE_WEIGHTS),
    *cases(WALKED, 7, 263, 509, kernel=LABELLED),
    *cases(HELD, 9, 503, kernel=LABELLED),
    *cases(HELD, 1, 8, 9, 121, 503, 513, 519, kernel=WIDE_WEIGHTS),
    *cases(HELD, 135, special=True, kernel=WIDE_WEIGHTS),
    *cases(PIECES, 5, 257, 700, 775, kernel=WIDE_WEIGHTS),
    *cases(f"{HELD} pieces=3 packed=1", 5, 521, 1300, kernel=WIDE_WEIGHTS),
    *cases(TURNS, 6, 131, 509, rows=37, kernel=WIDE_WEIGHTS),
    *cases(TEAM, 7, 261, 770, kernel=WIDE_WEIGHTS),
    *cases(SPLIT, 3, 261, 770, kernel=WIDE_WEIGHTS),
    *cases(HELD, *range(1, 10), 121, 503, 513, 515, kernel=WIDE),
    *cases(WIDE_PIECES, 3, 129, 130, 131, 255, 381, 387, kernel=WIDE),
    *cases(WIDE_PIECES, 135, special=True, kernel=WIDE),
    *modulated(WALKED, *range(1, 18), 255, 256, 257, 263, 264, 271, 509, 777),
    *modulated(HELD, 1, 7, 8, 9, 15, 17, 121, 503, 512, 513, 519),
    *modulated(SEVERAL, 3, 8, 129, 255, 263),
    *modulated(PIECES, 5, 257, 511, 700, 775),
    *modulated(TURNS, 6, 131, 509, tokens=13),
    *modulated(TEAM, 7, 261, 519, 770),
    *modulated(AHEAD, 7, 261, 770, 1531),
    *modulated(SPLIT, 3, 261, 770),
    *strided(WALKED, 1, 19, 263),
    *strided(HELD, 1, 8, 19, 503),
    *strided(f"{HELD} pieces=3", 5, 521),
    *strided(TEAM, 7, 261),
    *strided(AHEAD, 7, 261, 1531),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(case: Case, results: Results) -> None:
    numerics.assert_agrees(case, results)


@pytest.mark.parametrize("text", [WALKED, HELD, SEVERAL, PIECES, TURNS, TEAM, SPLIT])
def test_weights_are_loaded_two_words_at_a_time(text: str) -> None:
    """No schedule loads them element by element, but at the edges of rows."""
    source = generate(kernel_of(KERNEL), parse_schedule(text), TARGET).source
    assert "_in_phase_8x2(" in source
    assert not re.search(r"tl\.load\(a[12] \+ b?\d*r0\b", source)


@pytest.mark.parametrize("text", [WALKED, HELD, SEVERAL, PIECES, TEAM, AHEAD, SPLIT])
def test_so_is_what_rows_of_an_image_share(text: str) -> None:
    source = generate(kernel_of(MODULATED), parse_schedule(text), TARGET).source
    assert not re.search(r"tl\.load\(a[12] \+ [^,]*\bb?\d*r0\b", source)


def test_rows_that_take_turns_have_words_as_the_first_one_does() -> None:
    """They share its place in a word, and not what images share: that is loaded by elements."""
    source = generate(kernel_of(MODULATED), parse_schedule(TURNS), TARGET).source
    assert in_phase(source) == [("8x2", "a1")]


@pytest.mark.parametrize(
    "text",
    [
        f"cuda.looped x=1 r=256 warps=2 {WORDS} words=1",  # half a word a thread
        f"cuda.looped x=2 r=128 warps=1 {WORDS} words=1",  # fewer lanes for edges than they need
    ],
)
def test_where_threads_have_no_whole_words_elements_are_loaded_one_by_one(text: str) -> None:
    assert not in_phase(generate(kernel_of(KERNEL), parse_schedule(text), TARGET).source)


def test_elements_of_two_and_of_four_bytes_are_read_so_each_in_words_of_its_own() -> None:
    source = generate(
        parse_kernel(MIXED), parse_schedule(WALKED.replace(" group=8", "")), TARGET
    ).source
    assert in_phase(source) == [("8x4", "a1"), ("8x2", "a2")]


def test_elements_of_eight_bytes_beside_them_are_loaded_one_by_one(tmp_path: Path) -> None:
    schedule = parse_schedule(WALKED.replace(" group=8", ""))
    made = generate(parse_kernel(NUMBERED), schedule, TARGET)
    assert in_phase(made.source) == [("8x4", "a1")]
    cubin.compile_cubin(made, TARGET, scratch=tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WIDE_PIECES, [("4x4", "a1"), ("4x4", "a2")] * 3),
        (WIDE_PIECES.replace("pieces", "early=1 pieces"), []),
        (WALKED.replace("group=8", "group=4"), []),
        (TEAM.replace("group=8", "group=4"), []),
    ],
)
def test_four_lanes_are_read_so_where_rows_are_held_and_nothing_comes_early(
    text: str, expected: list[tuple[str, str]]
) -> None:
    assert in_phase(generate(kernel_of(WIDE), parse_schedule(text), TARGET).source) == expected


@pytest.mark.parametrize(("name", "least"), [(KERNEL, 21), (WIDE_WEIGHTS, 21), (WIDE, 12)])
def test_what_is_packed_lies_together_in_all_that_is_offered(
    tmp_path: Path, name: str, least: int
) -> None:
    """Each candidate at some sizes compiles: none is refused for how Triton lays it out."""
    kernel = kernel_of(name)
    offered: dict[Schedule, None] = {}
    for dims in ((30_011, 1021), (2001, 9973), (509, 65_537)):
        offered |= dict.fromkeys(candidates(kernel, TARGET, {"k0": dims[0], "k1": dims[1]}))
    shifted = [
        made
        for made in (generate(kernel, schedule, TARGET) for schedule in offered)
        if in_phase(made.source)
    ]
    assert len(shifted) >= least
    for made in shifted[::4]:
        with contextlib.suppress(KernelOversized):
            cubin.compile_cubin(made, TARGET, scratch=tmp_path)
