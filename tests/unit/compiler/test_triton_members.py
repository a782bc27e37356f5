"""Members of points that lie beside one another are loaded as one, and are what they are alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.kernels import TARGET, kernel_of
from tests.unit.compiler.test_triton_cubin import ptx_of
from tests.unit.compiler.triton_numerics import Case, Results

from nearhint_compiler.analysis.members import members
from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import parse_schedule
from nearhint_compiler.schedule.firsts import firsts

pytestmark = numerics.RUNS_LONG

FLAT = "cuda.pointwise x=64 warps=1 index=32 aligned=1 divisible=0"


def as_one(kernel: str, *dims: tuple[int, ...], unit: str = "") -> list[Case]:
    """In full blocks, in the last one and in one of a few points."""
    return [
        Case(kernel, f"{FLAT}{whole}{unit} members=1", each)
        for each in dims
        for whole in (" whole=1", "")
    ]


CASES = [
    *as_one("areas_of_boxes_f32", (64,), (131,), (3,)),
    *as_one("ends_of_six_f32", (64,), (131,), (3,)),
    *as_one("nibbles_of_rows_bf16", (5, 33), (1, 64), (1, 3)),
    *as_one("nibbles_of_rows_bf16", (5, 33), (2, 64), (1, 4), unit=" unit=4"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(case: Case, results: Results) -> None:
    numerics.assert_agrees(case, results)


@pytest.mark.parametrize(
    ("name", "x", "loads", "vectors"),
    [
        ("areas_of_boxes_f32", 128, 1, ["v4.b32"] * 2),
        ("nibbles_of_rows_bf16", 512, 2, ["v4.b32"]),
        ("ends_of_six_f32", 128, 3, ["v2.b32"] * 4),
    ],
)
def test_a_thread_loads_words_of_members(
    name: str, x: int, loads: int, vectors: list[str], tmp_path: Path
) -> None:
    text = f"cuda.pointwise x={x} warps=4 index=32 aligned=1 divisible=0 whole=1 members=1"
    generated = generate(kernel_of(name), parse_schedule(text), TARGET)
    assert generated.source.partition("else:")[0].count("tl.load(") == loads
    # The last block loads pairs in bf16 under masks, of four bytes each.
    found = re.findall(r"ld\.global\S*\.(v\d\.b\d+)", ptx_of(generated, tmp_path))
    assert found == vectors


def test_members_come_first_where_there_are_some() -> None:
    boxes = firsts(kernel_of("areas_of_boxes_f32"), TARGET, {"k0": 100_000})[0]
    assert (boxes["members"], boxes["x"]) == (1, 128)
    pairs = firsts(kernel_of("nibbles_of_rows_bf16"), TARGET, {"k0": 600, "k1": 2047})[0]
    assert (pairs["members"], pairs["x"]) == (1, 512)


def test_nothing_is_read_behind_the_last_member_that_is_asked_for() -> None:
    first_of_two = """(kernel (symbols k0) (pointwise k0) (reduction) (params (in f32) (out f32))
        (body (load 0 (* 4 p0)) (load 0 (+ (* 4 p0) 1)) (add f32 0 1) (store 1 p0 2)))"""
    kernel = parse_kernel(first_of_two)
    assert not members(kernel)
    with pytest.raises(InvalidSchedule, match="no members"):
        generate(kernel, parse_schedule(f"{FLAT} members=1"), TARGET)
    tile = "cuda.tiled z=1 y=4 x=16 cuts=1 warps=1 index=32 aligned=1 divisible=0 members=1"
    with pytest.raises(InvalidSchedule, match="no flat block"):
        generate(kernel_of("nibbles_of_rows_bf16"), parse_schedule(tile), TARGET)
