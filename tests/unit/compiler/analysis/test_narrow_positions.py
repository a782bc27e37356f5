"""What is computed of positions has 32 bits where it fits, and says the same."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.compiler.kernels import TARGET

from nearhint_compiler.analysis.narrow_positions import with_narrow_positions
from nearhint_compiler.codegen import generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_daemon.workers.interpreter import interpret


def kernel_of(*body: str, out: str = "f32") -> ir.Kernel:
    """Of the positions 0 and 1, and of x in i64, node 2."""
    nodes = " ".join(("(iota p0)", "(iota r0)", "(load 0 r0)", *body))
    return parse_kernel(
        "(kernel (symbols k0 k1) (pointwise k0) (reduction k1)"
        f" (params (in i64) (out {out})) (body {nodes}))"
    )


def in_32_bits(kernel: ir.Kernel) -> list[str]:
    return [
        node.name
        for node in with_narrow_positions(kernel).body
        if isinstance(node, ir.Op) and node.dtype == "i32" and node.name != "cast"
    ]


ROW = "(store 1 p0 {})"
CASES = {
    "a distance": (
        kernel_of("(sub i64 0 1)", "(abs i64 3)", "(cast f32 4)", "(reduce sum f32 5)",
                  ROW.format(6)),
        ["sub", "abs"],
    ),
    "one that is stored": (
        kernel_of("(sub i64 0 1)", "(neg i64 3)", "(reduce max i64 4)", ROW.format(5), out="i64"),
        ["sub", "neg"],
    ),
    "a mask beside data": (
        kernel_of("(sub i64 0 1)", "(const i64 0xfffffffffffffffd)", "(ge bool 3 4)",
                  "(where i64 5 2 3)", "(reduce sum i64 6)", ROW.format(7), out="i64"),
        ["sub"],
    ),
    "a sum of three": (
        kernel_of("(add i64 0 1)", "(add i64 3 1)", "(cast f32 4)", "(reduce sum f32 5)",
                  ROW.format(6)),
        ["add"],
    ),
    "a product": (
        kernel_of("(mul i64 0 1)", "(cast f32 3)", "(reduce sum f32 4)", ROW.format(5)),
        [],
    ),
    "what two by two and seven by seven are": (
        kernel_of("(sub i64 0 1)", "(const i64 0x1)", "(and i64 3 4)", "(shr i64 3 4)",
                  "(const i64 0x7)", "(mod i64 3 7)", "(floordiv i64 3 7)", "(add i64 5 8)",
                  "(add i64 6 9)", "(cast f32 10)", "(cast f32 11)", "(mul f32 12 13)",
                  "(reduce sum f32 14)", ROW.format(15)),
        ["sub", "and", "shr", "mod", "floordiv", "add"],
    ),
    "bits that 32 do not have": (
        kernel_of("(sub i64 0 1)", "(const i64 0x20)", "(shr i64 3 4)", "(cast f32 5)",
                  "(reduce sum f32 6)", ROW.format(7)),
        ["sub"],
    ),
    "of data": (
        kernel_of("(sub i64 0 2)", "(cast f32 3)", "(reduce sum f32 4)", ROW.format(5)),
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_differences_of_positions_alone_are_narrow(name: str) -> None:
    kernel, narrow = CASES[name]
    assert in_32_bits(kernel) == narrow
    x = np.arange(7, dtype=np.int64) << 40
    (wide,) = interpret(kernel, {"k0": 5, "k1": 7}, [x])
    (found,) = interpret(with_narrow_positions(kernel), {"k0": 5, "k1": 7}, [x])
    assert found.values.tolist() == wide.values.tolist()


@pytest.mark.parametrize(("index", "is_narrow"), [(32, True), (64, False)])
def test_they_are_where_indices_have_32_bits(index: int, is_narrow: bool) -> None:
    kernel, _ = CASES["a distance"]
    text = f"cuda.looped x=4 r=64 warps=4 index={index} aligned=0 divisible=0"
    lines = generate(kernel, parse_schedule(text), TARGET).source.splitlines()
    difference = next(line for line in lines if " - " in line and "tl." not in line)
    operands = difference.split(" = ")[1].split(" - ")
    narrow = [f"{each} = " in line and "tl.int32" in line for each in operands for line in lines]
    assert any(narrow) == is_narrow


@pytest.mark.parametrize(("dtype", "in_32"), [("i32", True), ("u8", True), ("i64", False)])
def test_positions_are_compared_with_narrow_numbers_as_these_are(dtype: str, in_32: bool) -> None:
    cast = "" if dtype == "i64" else "(cast i64 0)"
    last = 0 if dtype == "i64" else 1
    kernel = parse_kernel(
        f"(kernel (symbols k0 k1) (pointwise k0) (reduction k1) (params (in {dtype}) (out i64))"
        f" (body (load 0 p0) {cast} (iota r0) (lt bool {last + 1} {last}) (cast i64 {last + 2})"
        f" (reduce sum i64 {last + 3}) (store 1 p0 {last + 4})))"
    )
    narrow = with_narrow_positions(kernel)
    (compared,) = [n for n in narrow.body if isinstance(n, ir.Op) and n.name == "lt"]
    dtypes = ir.dtypes_of(narrow)
    assert {dtypes[each] for each in compared.operands} == {"i32" if in_32 else "i64"}
    lengths = np.array([0, 3, 7, 9], {"i32": np.int32, "u8": np.uint8}.get(dtype, np.int64))
    (wide,) = interpret(kernel, {"k0": 4, "k1": 7}, [lengths])
    (found,) = interpret(narrow, {"k0": 4, "k1": 7}, [lengths])
    assert found.values.tolist() == wide.values.tolist() == [0, 3, 7, 7]
