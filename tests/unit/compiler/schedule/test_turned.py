"""Rows of what partly lies across them have programs so many together that lines are read whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.compiler.kernels import TARGET

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates
from nearhint_compiler.schedule.cuda_facts import facts_of
from nearhint_compiler.schedule.cuda_turned import HELD_ELEMENTS, turned_rows
from nearhint_compiler.schedule.firsts import firsts
from nearhint_daemon.workers.cubin import compile_cubin
from nearhint_rules.guard import ALWAYS

STRAIGHT, ACROSS = "(+ (* k1 k2 p0) (* k2 p1) r0)", "(+ (* k1 k2 p0) (* k1 r0) p1)"
BRANCH = """(kernel (symbols k0 k1 k2) (pointwise k0 k1) (reduction k2)
  (params (in bf16) (in bf16) (out bf16) (out f32))
  (body (load 0 {first}) (cast f32 0) (load 1 {second}) (cast f32 2) (add f32 1 3) (cast bf16 4)
    (store 2 {first} 5) (reduce sum f32 4) {more} (store 3 (+ (* k1 p0) p1) {last})))"""
SPREAD = "(sub f32 4 7) (mul f32 8 8) (reduce sum f32 9)"


def kernel_of(second: str, *, first: str = STRAIGHT, walks: int = 1) -> ir.Kernel:
    more, last = ("", 7) if walks == 1 else (SPREAD, 10)
    return parse_kernel(BRANCH.format(first=first, second=second, more=more, last=last))


def sizes_of(kernel: ir.Kernel, dims: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(kernel.symbols, dims, strict=True))


@pytest.mark.parametrize(
    ("second", "first", "is_turned"),
    [(ACROSS, STRAIGHT, True), (STRAIGHT, STRAIGHT, False), ("r0", STRAIGHT, False),
     (ACROSS, ACROSS, False), ("p1", STRAIGHT, False)],
)  # fmt: skip
def test_rows_are_together_where_something_lies_across_and_not_all(
    second: str, first: str, is_turned: bool
) -> None:
    kernel = kernel_of(second, first=first)
    found = tuple(turned_rows(facts_of(kernel, TARGET, sizes_of(kernel, (60, 208, 3192)))))
    assert bool(found) == is_turned
    assert all(each["x"] >= 8 for each in found)


@pytest.mark.parametrize(
    ("dims", "walks", "family"),
    [
        ((60, 208, 3192), 1, "cuda.looped"),
        ((5, 96, 89_999), 1, "cuda.split"),
        ((301, 768, 56), 1, "cuda.persistent"),
        ((301, 768, 900), 2, "cuda.persistent"),
        ((60, 208, 30_000), 2, "cuda.looped"),
    ],
)
def test_they_are_walked_shared_or_held_by_how_many_and_how_long_they_are(
    dims: tuple[int, ...], walks: int, family: str
) -> None:
    kernel = kernel_of(ACROSS, walks=walks)
    sizes = sizes_of(kernel, dims)
    (first, *_) = firsts(kernel, TARGET, sizes)
    assert first.family == family
    assert first["x"] >= 16
    offered = candidates(kernel, TARGET, sizes)
    assert first in offered
    for each in offered:
        if each.family == "cuda.persistent" and each["x"] >= 8:
            assert each["x"] * each["r"] <= HELD_ELEMENTS * 32 * each["warps"]
    assert generate(kernel, offered[-1], TARGET).guard == ALWAYS


@pytest.mark.parametrize("dims", [(60, 208, 3192), (5, 96, 89_999), (301, 768, 56)])
def test_what_comes_first_compiles(dims: tuple[int, ...], tmp_path: Path) -> None:
    kernel = kernel_of(ACROSS)
    (first, *_) = firsts(kernel, TARGET, sizes_of(kernel, dims))
    assert compile_cubin(generate(kernel, first, TARGET), TARGET, scratch=tmp_path).binary
