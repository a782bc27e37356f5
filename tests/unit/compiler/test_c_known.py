"""Generated C for rows that have something in common: scales of channels that lie innermost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.native import (
    LEVELS,
    MACHINE,
    WIDTHS,
    Array,
    check,
    compile_kernel,
    encode,
)

from nearhint_compiler.analysis.known import known_of
from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, parse_schedule
from nearhint_compiler.schedule.estimate import estimate

SCHEDULE = "cpu.pointwise axis={axis} lanes={lanes} unroll={unroll} block={block} known=1"
BATCH_NORM = """
(kernel (symbols k0 k1 k2)
  (pointwise k0 k1 k2)
  (reduction)
  (params (in {dtype}) (in f32) (in f32) (out {dtype}) (out bool))
  (body
    (load 0 (+ (* k1 k2 p0) (* k2 p1) p2))
    (cast f32 0)
    (load 1 (+ (* k2 p0) p2))
    (const f32 0x3f000000)
    (add f32 2 3)
    (sqrt f32 4)
    (reciprocal f32 5)
    (mul f32 1 6)
    (load 2 p0)
    (mul f32 7 8)
    (gt bool 2 3)
    (where f32 10 9 3)
    (cast {dtype} 11)
    (store 3 (+ (* k1 k2 p0) (* k2 p1) p2) 12)
    (lt bool 9 2)
    (store 4 (+ (* k1 k2 p0) (* k2 p1) p2) 14)))
"""
"""Roots for each of the outermost loop, one of which is a mask, and a number that rows share."""
ROW_FACTOR = BATCH_NORM.replace("(load 2 p0)", "(load 2 (+ (* k1 p0) p1))")
"""With a number a row: rows are not walked as one."""
PADDED = BATCH_NORM.replace("(* k1 k2 p0) (* k2 p1) p2", "(* 2 k1 k2 p0) (* 2 k2 p1) p2")
"""With a gap behind each row."""
DIMS = [
    (1, 1, 1), (2, 5, 1), (3, 7, 16), (1, 67, 33), (2, 3, 64), (2, 1, 100), (3, 5, 129),
    (1, 9, 300),
]  # fmt: skip
"""Rows of which 128, several, one and less than one fill a table of 128."""


def drawn(dtype: str, *counts: int) -> list[Array]:
    random = np.random.default_rng(0)
    first, *others = [random.uniform(0.1, 1.9, count) for count in counts]
    return [encode(dtype, first), *(each.astype(np.float32) for each in others)]


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_what_rows_have_in_common_is_right_in_any_number_of_rows(
    level: str, lanes: int, dtype: str, tmp_path: Path
) -> None:
    """Threads begin within a run of rows, and rows that are walked as one are not all there."""
    schedule = parse_schedule(SCHEDULE.format(axis=2, lanes=lanes, unroll=2, block=128))
    for text, gap in ((BATCH_NORM, 1), (ROW_FACTOR, 1), (PADDED, 2)):
        kernel = parse_kernel(text.format(dtype=dtype))
        native = compile_kernel(kernel, schedule, tmp_path, at=LEVELS[level])
        for outer, rows, inner in DIMS:
            scales = outer * rows if text is ROW_FACTOR else outer
            given = drawn(dtype, gap * outer * rows * inner, outer * inner, scales)
            for threads in (1, 3):
                check(native, (outer, rows, inner), given, threads=threads)


def test_roots_are_taken_before_rows_are_walked() -> None:
    """A full vector's and a tail's, and those in no loop over rows."""
    schedule = parse_schedule(SCHEDULE.format(axis=2, lanes=8, unroll=4, block=1024))
    source = generate(parse_kernel(BATCH_NORM.format(dtype="f32")), schedule, MACHINE).source
    before, after = source.split("for (int64_t p1 = first;")
    assert before.count("= sqrt_f32(") == 2
    assert "sqrt_f32(" not in after


def test_rows_are_walked_as_one_where_each_begins_where_another_ends() -> None:
    kernels = [parse_kernel(text.format(dtype="f32")) for text in (BATCH_NORM, ROW_FACTOR, PADDED)]
    found = [known_of(kernel, "p2") for kernel in kernels]
    assert [known is not None and known.are_neighbours for known in found] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "lane"),
    [
        (BATCH_NORM, "p1"),  # lanes along rows, which have no number in common along p2
        (BATCH_NORM.replace("(load 1 (+ (* k2 p0) p2))", "(load 1 (+ (* k2 p1) p2))"), "p2"),
        (BATCH_NORM.replace("sqrt", "neg").replace("reciprocal", "neg"), "p2"),  # little work
    ],
)
def test_other_rows_have_nothing_in_common(text: str, lane: str) -> None:
    kernel = parse_kernel(text.format(dtype="f32"))
    assert known_of(kernel, lane) is None
    schedule = SCHEDULE.format(axis=int(lane[1:]), lanes=8, unroll=2, block=1024)
    with pytest.raises(InvalidSchedule):
        generate(kernel, parse_schedule(schedule), MACHINE)


def test_tables_fit_a_stack() -> None:
    kernel = parse_kernel(BATCH_NORM.format(dtype="f32"))
    for block, fits in ((1 << 14, True), (1 << 16, False)):
        schedule = parse_schedule(SCHEDULE.format(axis=2, lanes=8, unroll=2, block=block))
        if fits:
            generate(kernel, schedule, MACHINE)
            continue
        with pytest.raises(InvalidSchedule):
            generate(kernel, schedule, MACHINE)


def known_options(kernel: ir.Kernel, sizes: Sequence[int]) -> list[int]:
    dims = dict(zip(kernel.symbols, sizes, strict=True))
    return [each.get("known", 0) for each in candidates(kernel, MACHINE, dims)]


def test_several_rows_keep_what_they_have_in_common_first() -> None:
    kernel = parse_kernel(BATCH_NORM.format(dtype="f32"))
    first, second, *others = known_options(kernel, (2, 1000, 64))
    assert (first, second) == (1, 1)
    assert not any(others)
    assert not any(known_options(kernel, (2, 1, 64)))


def test_what_is_computed_once_is_estimated_once() -> None:
    kernel = parse_kernel(BATCH_NORM.format(dtype="f32"))
    known = parse_schedule(SCHEDULE.format(axis=2, lanes=1, unroll=4, block=1024))
    other = parse_schedule(str(known).replace(" known=1", ""))
    dims = {"k0": 2, "k1": 5000, "k2": 9}
    seconds = [estimate(kernel, each, MACHINE, dims).seconds for each in (known, other)]
    assert seconds[0] < seconds[1]
