"""Generated C for elements a few apart in memory: vectors of neighbours, shuffled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.compiler.native import (
    AVX2,
    LEVELS,
    MACHINE,
    STORAGE,
    WIDTHS,
    WORDS,
    check,
    compile_kernel,
)

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates, parse_schedule
from nearhint_rules.program import DTYPES
from nearhint_rules.target import Target

ROWS = (1, 7, 16, 33, 101)


def read(stride: int, dtype: str) -> str:
    """The last of every `stride` elements."""
    index = f"(+ (* {stride} p0) {stride - 1})"
    return f"""(kernel (symbols k0) (pointwise k0) (reduction)
        (params (in {dtype}) (out {dtype})) (body (load 0 {index}) (store 1 p0 0)))"""


def written(stride: int, dtype: str) -> str:
    """As many inputs as `stride` says, beside each other, the last one first in the body."""
    numbers = range(stride)
    params = " ".join(f"(in {dtype})" for _ in numbers)
    loads = " ".join(f"(load {number} p0)" for number in numbers)
    stores = " ".join(
        f"(store {stride} (+ (* {stride} p0) {number}) {number})" for number in reversed(numbers)
    )
    return f"""(kernel (symbols k0) (pointwise k0) (reduction)
        (params {params} (out {dtype})) (body {loads} {stores}))"""


BACKWARDS = """
(kernel (symbols k0 k1)
  (pointwise k0 k1)
  (reduction)
  (params (in f32) (out f32))
  (body (load 0 (+ (* k1 p0) k1 -1 (* -1 p1))) (store 1 (+ (* k1 p0) p1) 0)))
"""
TURNS = """
(kernel (symbols k0)
  (pointwise k0 2)
  (reduction)
  (params (in f32) (in f32) (out f32))
  (body
    (iota p1)
    (const i64 0x1)
    (lt bool 0 1)
    (load 0 p0)
    (load 1 p0)
    (where f32 2 3 4)
    (store 2 (+ (* 2 p0) p1) 5)))
"""
"""Elements of two inputs in turns."""
PARTLY = """
(kernel (symbols k0)
  (pointwise k0)
  (reduction)
  (params (in f32) (out f32) (out f32))
  (body (load 0 p0) (store 1 (* 2 p0) 0) (store 2 (+ (* 2 p0) 1) 0)))
"""
"""What lies between is of the other output's memory, or of nobody."""


def elements(dtype: str, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """As many bit patterns, all of which are numbers."""
    made = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 48, count)
    return made.astype(STORAGE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [2, 3, 4])
def test_what_is_a_few_apart_is_moved_right(stride: int, dtype: str, tmp_path: Path) -> None:
    for text in (read(stride, dtype), written(stride, dtype)):
        kernel = parse_kernel(text)
        inputs = sum(param.role == "in" for param in kernel.params)
        schedule = parse_schedule(f"cpu.pointwise axis=0 lanes={WORDS} unroll=2 block=64")
        native = compile_kernel(kernel, schedule, tmp_path)
        for rows in ROWS:
            count = stride * rows if inputs == 1 else rows
            check(native, (rows,), [elements(dtype, count)] * inputs, threads=2)


@pytest.mark.parametrize(("level", "lanes"), WIDTHS)
def test_what_is_a_few_apart_is_right_at_each_width(level: str, lanes: int, tmp_path: Path) -> None:
    schedule = parse_schedule(f"cpu.pointwise axis=0 lanes={lanes} unroll=2 block=64")
    for text in (read(3, "f32"), written(4, "i16"), written(2, "bool"), read(2, "f64")):
        kernel = parse_kernel(text)
        native = compile_kernel(kernel, schedule, tmp_path, at=LEVELS[level])
        *inputs, last = kernel.params
        for rows in ROWS:
            count = 3 * rows if len(inputs) == 1 else rows
            check(native, (rows,), [elements(last.dtype, count)] * len(inputs))
    backwards = parse_schedule(f"cpu.pointwise axis=1 lanes={lanes} unroll=1 block=64")
    native = compile_kernel(parse_kernel(BACKWARDS), backwards, tmp_path, at=LEVELS[level])
    for rows, columns in ((1, 5), (3, 16), (4, 41)):
        check(native, (rows, columns), [np.arange(rows * columns, dtype=np.float32)])


@pytest.mark.parametrize(("text", "axis", "primitive"), [
    (read(2, "bf16"), 0, "apart2_bf16("), (read(4, "f32"), 0, "apart4_f32("),
    (BACKWARDS, 1, "backwards_f32("), (written(3, "f32"), 0, "together3_f32("),
])  # fmt: skip
@pytest.mark.parametrize("at", [MACHINE, AVX2], ids=["machine", "avx2"])
def test_full_vectors_move_no_element_alone(
    text: str, axis: int, primitive: str, at: Target
) -> None:
    schedule = parse_schedule(f"cpu.pointwise axis={axis} lanes=8 unroll=2 block=64")
    source = generate(parse_kernel(text), schedule, at).source
    run = source[source.index("static void run(") :]
    full, _ = run.split("const int count", 1)
    assert primitive in full
    assert "gather_n_" not in full
    assert "scatter_n_" not in full
    assert "SHUFFLE" in source[: source.index("static void run(")].split("#endif", 1)[1]


def test_what_lies_between_and_is_not_written_stays(tmp_path: Path) -> None:
    native = compile_kernel(
        parse_kernel(PARTLY),
        parse_schedule(f"cpu.pointwise axis=0 lanes={WORDS} unroll=2 block=64"),
        tmp_path,
    )
    assert "together" not in native.generated.source
    for rows in ROWS:
        check(native, (rows,), [np.arange(rows, dtype=np.float32)])


def test_turns_are_written_out_before_anything_else() -> None:
    first, *others = candidates(parse_kernel(TURNS), MACHINE, {"k0": 1000})
    assert first.get("written", 0)
    assert any(not each.get("written", 0) for each in others)
    run = generate(parse_kernel(TURNS), first, MACHINE).source.partition("static void run(")[2]
    assert run.count("scatter_n_") == 2  # where rows end
