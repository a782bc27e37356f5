"""Counts, and other sums in 64 bits of few bits, are in 32 where no row has too many terms."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.compiler.kernels import TARGET

from nearhint_compiler.analysis.narrow_sums import with_narrow_sums
from nearhint_compiler.codegen import generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_daemon.workers.interpreter import interpret


def sums_of(dtype: str, *, row: str = "k1", kind: str = "reduce") -> ir.Kernel:
    place, out = ("p0", "p0") if kind == "reduce" else (f"(+ (* {row} p0) r0)",) * 2
    return parse_kernel(
        f"(kernel (symbols k0{' k1' if row == 'k1' else ''}) (pointwise k0) (reduction {row})"
        f" (params (in {dtype}) (out i64)) (body (load 0 (+ (* {row} p0) r0)) (cast i64 0)"
        f" ({kind} sum i64 1) (store 1 {out if kind == 'scan' else place} 2)))"
    )


def dtypes_of_sums(kernel: ir.Kernel) -> list[str]:
    return [node.dtype for node in kernel.body if isinstance(node, ir.Reduce | ir.Scan)]


@pytest.mark.parametrize(
    ("dtype", "row", "expected"),
    [
        ("bool", "k1", "i32"),
        ("u8", "k1", "i64"),
        ("i32", "64", "i64"),
        ("u8", str((1 << 31) // 255), "i32"),
        ("u8", str((1 << 31) // 255 + 1), "i64"),
        ("i8", str((1 << 24) - 1), "i32"),
        ("i8", str(1 << 24), "i64"),
        ("i16", "65535", "i32"),
        ("i16", "65536", "i64"),
    ],
)
@pytest.mark.parametrize("kind", ["reduce", "scan"])
def test_all_terms_of_a_row_together_fit_or_it_stays(
    dtype: str, row: str, expected: str, kind: str
) -> None:
    kernel = sums_of(dtype, row=row, kind=kind)
    narrow = with_narrow_sums(kernel)
    assert dtypes_of_sums(narrow) == [expected]
    assert (narrow is kernel) == (expected == "i64")


@pytest.mark.parametrize("kind", ["reduce", "scan"])
@pytest.mark.parametrize(("dtype", "value"), [("bool", True), ("u8", 255), ("i8", -128)])
def test_they_say_the_same(kind: str, dtype: str, value: int) -> None:
    kernel = sums_of(dtype, row="300", kind=kind)
    x = np.full(900, value, {"u8": np.uint8, "i8": np.int8}.get(dtype, np.bool_))
    (wide,) = interpret(kernel, {"k0": 3}, [x])
    (found,) = interpret(with_narrow_sums(kernel), {"k0": 3}, [x])
    assert found.values.tolist() == wide.values.tolist()
    assert int(wide.values.ravel()[-1]) == 300 * value


def test_what_else_is_made_of_a_term_stays_as_wide_as_it_is() -> None:
    kernel = parse_kernel(
        "(kernel (symbols k0 k1) (pointwise k0) (reduction k1) (params (in bool) (out i64)"
        " (out i64)) (body (load 0 (+ (* k1 p0) r0)) (cast i64 0) (reduce sum i64 1) (store 1 p0 2)"
        " (reduce max i64 1) (store 2 p0 4)))"
    )
    narrow = with_narrow_sums(kernel)
    assert dtypes_of_sums(narrow) == ["i32", "i64"]
    assert [ir.dtypes_of(narrow)[n.value] for n in narrow.body if isinstance(n, ir.Store)] == [
        "i64",
        "i64",
    ]


@pytest.mark.parametrize(("index", "dtype"), [(32, "tl.int32"), (64, "tl.int64")])
def test_a_walk_carries_them_where_indices_have_32_bits(index: int, dtype: str) -> None:
    text = f"cuda.looped x=4 r=64 warps=4 index={index} aligned=0 divisible=0"
    lines = generate(sums_of("bool"), parse_schedule(text), TARGET).source.splitlines()
    (started,) = [line for line in lines if "acc" in line and "tl.full" in line]
    assert dtype in started
