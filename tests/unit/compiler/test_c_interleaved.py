"""Generated C for rows that lie between each other: groups of channels that are innermost."""

from __future__ import annotations

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

from nearhint_compiler.analysis.interleaved import is_interleaved
from nearhint_compiler.codegen import generate
from nearhint_compiler.codegen.c.interleaved import WIDTH
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, parse_schedule

SCHEDULE = (
    "cpu.rows axis={axis} lanes={lanes} unroll={unroll} short=4 stash=0 split={split} interleaved=1"
)
GROUP_NORM = """
(kernel (symbols k0 k1 k2 k3)
  (pointwise k0 k1)
  (reduction k2 k3)
  (params (in {dtype}) (in f32) (in f32) (out {dtype}) (out f32) (out bool))
  (body
    (load 0 (+ (* k1 k2 k3 p0) (* k3 p1) (* k1 k3 r0) r1))
    (cast f32 0)
    (load 2 (+ (* k1 p0) p1))
    (add f32 1 2)
    (reduce sum f32 3)
    (iota (* k2 k3))
    (cast f32 5)
    (div f32 4 6)
    (sub f32 3 7)
    (mul f32 8 8)
    (reduce sum f32 9)
    (sqrt f32 10)
    (mul f32 8 11)
    (load 1 (+ (* k3 p1) r1))
    (mul f32 12 13)
    (cast {dtype} 14)
    (store 3 (+ (* k1 k2 k3 p0) (* k3 p1) (* k1 k3 r0) r1) 15)
    (add f32 11 7)
    (store 4 (+ (* k1 p0) p1) 17)
    (gt bool 1 2)
    (reduce any bool 19)
    (store 5 (+ (* k1 p0) p1) 20)))
"""
"""With a number a row at the start, and results of both walks at the end."""
THREE_LOOPS = """
(kernel (symbols k0 k1 k2 k3)
  (pointwise k0)
  (reduction k1 k2 k3)
  (params (in i8) (in i8) (out i64) (out i8))
  (body
    (load 0 (+ (* k0 k2 k3 r0) (* k0 k3 r1) (* k3 p0) r2))
    (load 1 r0)
    (max i8 0 1)
    (cast i64 2)
    (reduce sum i64 3)
    (reduce min i8 2)
    (store 2 p0 4)
    (store 3 p0 5)))
"""
"""Of integers, and with a factor of the outermost loop alone."""
LONG = """
(kernel (symbols k0 k1 k2)
  (pointwise k0)
  (reduction k1 k2)
  (params (in f32) (out f32))
  (body
    (load 0 (+ (* k0 k2 r0) (* k2 p0) r1))
    (reduce sum f32 0)
    (store 1 p0 1)))
"""


def drawn(dtype: str, *shapes: int) -> list[Array]:
    random = np.random.default_rng(0)
    first, *others = [random.uniform(0.5, 1.5, count) for count in shapes]
    return [encode(dtype, first), *(each.astype(np.float32) for each in others)]


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_pieces_of_all_rows_are_walked_as_one(
    level: str, lanes: int, dtype: str, tmp_path: Path
) -> None:
    """One row and more than fit a table, by threads that begin within a block, or share a row."""
    native = compile_kernel(
        parse_kernel(GROUP_NORM.format(dtype=dtype)),
        parse_schedule(SCHEDULE.format(axis=1, lanes=lanes, unroll=4, split=1)),
        tmp_path,
        at=LEVELS[level],
    )
    for rows, groups, outer, inner in (
        (1, 1, 1, 1),
        (2, 3, 5, 10),
        (2, 7, 4, lanes),
        (1, 5, 261, lanes + 1),
        (2, 37, 3, 33),
        (1, 2, 9, WIDTH // 2),
        (1, 3, 2, WIDTH),
        (2, 2, 3, WIDTH + 1),
    ):
        count = rows * groups
        given = drawn(dtype, count * outer * inner, groups * inner, count)
        for threads in (1, 3):
            check(native, (rows, groups, outer, inner), given, threads=threads)


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
@pytest.mark.parametrize("unroll", [1, 2])
def test_loops_around_the_pieces_are_opened(
    level: str, lanes: int, unroll: int, tmp_path: Path
) -> None:
    native = compile_kernel(
        parse_kernel(THREE_LOOPS),
        parse_schedule(SCHEDULE.format(axis=2, lanes=lanes, unroll=unroll, split=1)),
        tmp_path,
        at=LEVELS[level],
    )
    random = np.random.default_rng(0)
    for dims in ((1, 1, 1, 1), (5, 2, 3, 7), (40, 3, 131, 5)):
        given = random.integers(-128, 128, int(np.prod(dims))).astype(np.int8)
        factor = random.integers(-128, 128, dims[1]).astype(np.int8)
        for threads in (1, 3):
            check(native, dims, [given, factor], threads=threads)


def test_a_sum_over_many_pieces_has_no_long_chain_of_additions(tmp_path: Path) -> None:
    """A lane that added 100 003 numbers near 1 one after another would be off by some 1e-5."""
    schedule = parse_schedule(SCHEDULE.format(axis=1, lanes=8, unroll=1, split=0))
    native = compile_kernel(parse_kernel(LONG), schedule, tmp_path)
    values = np.random.default_rng(0).uniform(0.5, 1.5, (100_003, 3)).astype(np.float32)
    got = np.zeros(3, np.float32)
    native.run((3, 100_003, 1), [values, got])
    exact = values.astype(np.float64).sum(0)
    assert (np.abs(got - exact) / exact < 1e-6).all()


@pytest.mark.parametrize(
    "change",
    [
        ("(* k0 k2 r0) (* k2 p0)", "(* k1 k2 p0) (* k2 r0)"),
        ("(load 0 (+ (* k0 k2 r0) (* k2 p0) r1))", "(load 0 (+ (* k0 k2 r0) (* k0 r1) p0))"),
        ("(reduce sum f32 0)", "(arg max f32 0 (+ (* k2 r0) r1))"),
    ],
)
def test_other_rows_do_not_lie_between_each_other(change: tuple[str, str]) -> None:
    """Rows one after the other, columns, and reduces that want more than a number."""
    assert is_interleaved(parse_kernel(LONG))
    text = LONG.replace(*change)
    other = parse_kernel(text.replace("(out f32)", "(out i64)") if "arg" in text else text)
    assert not is_interleaved(other)
    with pytest.raises(InvalidSchedule):
        generate(
            other, parse_schedule(SCHEDULE.format(axis=1, lanes=8, unroll=4, split=0)), MACHINE
        )


def test_lanes_run_along_the_pieces_alone() -> None:
    outer = parse_schedule(SCHEDULE.format(axis=0, lanes=8, unroll=4, split=0))
    with pytest.raises(InvalidSchedule):
        generate(parse_kernel(LONG), outer, MACHINE)


def first(kernel: ir.Kernel, *sizes: int) -> int:
    dims = dict(zip(kernel.symbols, sizes, strict=True))
    return candidates(kernel, MACHINE, dims)[0].get("interleaved", 0)


def test_rows_of_many_short_pieces_are_walked_together_first() -> None:
    given = parse_kernel(GROUP_NORM.format(dtype="f32"))
    assert (first(given, 2, 32, 4096, 8), first(given, 2, 32, 49, 8)) == (1, 1)
    assert first(given, 2, 32, 7, 8) == 0
    planes = kernel_of("plane_norm_bf16")
    assert (first(planes, 64, 256, 49), first(planes, 8, 64, 784)) == (1, 0)
    assert any(each.get("interleaved", 0) for each in candidates(planes, MACHINE))
