"""Rows that lie beside one another, as groups of channels that are last, have programs together."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.compiler.kernels import TARGET

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import Schedule, candidates
from nearhint_compiler.schedule.cuda_columns import SPLIT_LIMIT
from nearhint_compiler.schedule.cuda_facts import facts_of
from nearhint_compiler.schedule.cuda_strips import PROGRAMS, WIDTH, rows_beside, strips
from nearhint_compiler.schedule.firsts import firsts
from nearhint_daemon.workers.cubin import compile_cubin
from nearhint_rules.guard import ALWAYS

LAST = "(+ (* 8 k1 k2 p0) (* k2 p1) (* 8 k2 r0) r1)"
FIRST = "(+ (* 8 k1 k2 p0) (* k1 k2 p1) (* k1 r1) r0)"
PLANES = "(+ (* 8 k1 k2 p0) (* k1 k2 p1) (* k2 r0) r1)"
NORM = """(kernel (symbols k0 k1 k2) (pointwise k0 8) (reduction k1 k2)
  (params (in f16) (out f16))
  (body (load 0 {index}) (cast f32 0) (reduce sum f32 1) (sub f32 1 2) (mul f32 3 3)
    (reduce sum f32 4) (div f32 3 5) (cast f16 6) (store 1 {index} 7)))"""
SUM = """(kernel (symbols k0 k1 k2) (pointwise k0 8) (reduction k1 k2) (params (in f16) (out f32))
  (body (load 0 {index}) (cast f32 0) (reduce sum f32 1) (store 1 (+ (* 8 p0) p1) 2)))"""


ALL = """(kernel (symbols k0 k1 k2) (pointwise) (reduction k0 k1) (params (in f32) (out f32))
  (body (load 0 (+ (* k2 r0) r1)) (reduce sum f32 0) (store 1 0 1)))"""


def offered(text: str, *dims: int) -> tuple[Schedule, ...]:
    kernel = parse_kernel(text)
    return tuple(strips(facts_of(kernel, TARGET, dict(zip(kernel.symbols, dims, strict=True)))))


@pytest.mark.parametrize(("index", "count"), [(LAST, 8), (FIRST, 1), (PLANES, 1)])
def test_rows_are_beside_one_another_where_each_run_follows_the_other(
    index: str, count: int
) -> None:
    kernel = parse_kernel(NORM.format(index=index))
    sizes = dict(zip(kernel.symbols, (90, 3192, 25), strict=True))
    assert rows_beside(facts_of(kernel, TARGET, sizes)) == count
    assert bool(tuple(strips(facts_of(kernel, TARGET, sizes)))) == (count > 1)


@pytest.mark.parametrize("dims", [(90, 3192, 25), (7, 89_999, 12), (2, 4096, 32), (3, 250, 10)])
@pytest.mark.parametrize("text", [NORM, SUM])
def test_strips_are_whole_lines_that_programs_share_while_they_are_few(
    text: str, dims: tuple[int, int, int]
) -> None:
    found = offered(text.format(index=LAST), *dims)
    assert found
    for each in found:
        assert each["x"] in (2, 8)
        assert each["x"] * each["r1"] <= WIDTH
        assert each["r1"] >= dims[2]
        if each.family == "cuda.split":
            assert each["splits"] * each["r"] <= dims[1] * dims[2]
    images, places, run = dims
    steps = places * run // found[0]["r"]
    assert found[0].family == "cuda.split"
    assert found[0]["splits"] == SPLIT_LIMIT or (
        found[0]["splits"] >= min(steps, PROGRAMS * 132 // images)
    )


def test_all_of_a_part_of_a_matrix_is_one_row_and_has_none_beside_it() -> None:
    assert not offered(ALL, 64, 500, 1000)
    assert candidates(parse_kernel(ALL), TARGET, {"k0": 64, "k1": 500, "k2": 1000})


def test_strips_of_many_images_are_walked() -> None:
    assert {each.family for each in offered(NORM.format(index=LAST), 900, 300, 25)} == {
        "cuda.looped"
    }


@pytest.mark.parametrize("dims", [(9, 300, 200), (9, 3000, 33), (9, 100, 10)])
def test_long_runs_are_whole_lines_and_short_rows_are_held_without_neighbours(
    dims: tuple[int, int, int],
) -> None:
    assert not offered(NORM.format(index=LAST), *dims)


def test_a_strip_comes_first_and_compiles(tmp_path: Path) -> None:
    kernel = parse_kernel(NORM.format(index=LAST))
    sizes = {"k0": 7, "k1": 8999, "k2": 12}
    first, *_ = firsts(kernel, TARGET, sizes)
    assert (first.family, first["x"], first["r1"]) == ("cuda.split", 8, 16)
    assert generate(kernel, candidates(kernel, TARGET, sizes)[-1], TARGET).guard == ALWAYS
    assert compile_cubin(generate(kernel, first, TARGET), TARGET, scratch=tmp_path).binary
