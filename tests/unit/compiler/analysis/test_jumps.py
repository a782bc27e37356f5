"""What is rounded as eager rounds it, because a whole number hangs on its last digit."""

from __future__ import annotations

import pytest
from tests.unit.compiler.kernels import TARGET
from tests.unit.workers.building import default_source

from nearhint_compiler.analysis.jumps import (
    before_jumps,
    leading_to_jumps,
    may_go_either_way,
    quotients_before_jumps,
)
from nearhint_compiler.codegen import generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.schedule import parse_schedule

TENTH = "(const f32 0x3dcccccd)"


def kernel_of(*body: str, out: str = "bf16") -> ir.Kernel:
    """Of x in bf16, which node 1 has in f32."""
    nodes = " ".join(("(load 0 p0)", "(cast f32 0)", TENTH, *body))
    return parse_kernel(
        f"(kernel (symbols k0) (pointwise k0) (reduction) (params (in bf16) (out {out}))"
        f" (body {nodes}))"
    )


def source_of(kernel: ir.Kernel) -> str:
    text = "cuda.pointwise x=128 warps=4 index=32 aligned=0 divisible=0"
    return generate(kernel, parse_schedule(text), TARGET).source


@pytest.mark.parametrize("jump", ["floor", "ceil", "trunc", "round"])
@pytest.mark.parametrize("operation", ["add", "sub", "mul", "div"])
def test_an_operation_on_what_is_given_is_found_before_a_jump(operation: str, jump: str) -> None:
    kernel = kernel_of(
        f"({operation} f32 1 2)", f"({jump} f32 3)", "(cast bf16 4)", "(store 1 p0 5)"
    )
    assert before_jumps(kernel) == {3}
    assert ("tl.div_rn(" in source_of(kernel)) == (operation == "div")


def test_a_cast_to_an_integer_jumps_as_well() -> None:
    kernel = kernel_of("(div f32 1 2)", "(cast i32 3)", "(store 1 p0 4)", out="i32")
    assert before_jumps(kernel) == {3}
    assert "tl.div_rn(" in source_of(kernel)


@pytest.mark.parametrize(
    "body",
    [
        ("(div f32 1 2)", "(cast bf16 3)", "(store 1 p0 4)"),  # nothing jumps
        # What was computed may be anything within its error: rounding it makes it no surer.
        ("(exp f32 1)", "(div f32 3 2)", "(floor f32 4)", "(cast bf16 5)", "(store 1 p0 6)"),
        ("(floor f32 1)", "(cast bf16 3)", "(store 1 p0 4)"),  # of what is given itself
    ],
)
def test_elsewhere_quotients_are_as_fast_as_before(body: tuple[str, ...]) -> None:
    kernel = kernel_of(*body)
    assert before_jumps(kernel) == frozenset()
    assert "div_rn" not in source_of(kernel)


@pytest.mark.parametrize(
    ("then", "is_found"),
    [
        ("(cast u8 4) (store 1 r0 5)", True),
        ("(exp f32 4) (store 1 r0 5)", False),
    ],
)
def test_what_others_turn_into_a_jump_is_divided_to_the_last_digit(
    then: str, is_found: bool
) -> None:
    """The largest of what is divided by its own maximum is 1, and 255 times that is no 254."""
    kernel = parse_kernel(
        "(kernel (symbols k0) (pointwise) (reduction k0)"
        f" (params (in f32) (out {'u8' if is_found else 'f32'}))"
        " (body (load 0 r0) (reduce max f32 0) (div f32 0 1) (const f32 0x437f0000) (mul f32 2 3)"
        f" {then}))"
    )
    assert (2 in leading_to_jumps(kernel)) == is_found
    assert ("quotient_f32" in default_source(kernel).source) == (not is_found)
    text = "cuda.persistent x=1 r=1024 warps=4 index=32 aligned=0 divisible=0"
    source = generate(kernel, parse_schedule(text), TARGET).source
    assert ("= _row_quotient(v0, v1)" in source) == is_found


@pytest.mark.parametrize(
    ("name", "is_found"),
    [("floordiv", True), ("truncdiv", True), ("fmod", True), ("mod", True), ("pow", False)],
)
def test_what_leads_to_a_division_that_leaves_a_whole_number_is_found(
    name: str, is_found: bool
) -> None:
    kernel = kernel_of(
        "(exp f32 1)", f"({name} f32 3 2)", "(cast bf16 4)", "(store 1 p0 5)", out="bf16"
    )
    assert (3 in leading_to_jumps(kernel)) == is_found


@pytest.mark.parametrize(("compared", "is_found"), [(1, False), (2, True)])
def test_a_comparison_of_what_was_computed_may_go_either_way(compared: int, is_found: bool) -> None:
    kernel = parse_kernel(
        "(kernel (symbols k0) (pointwise k0) (reduction) (params (in bf16) (out f32))"
        " (body (load 0 p0) (cast f32 0) (exp f32 1) (const f32 0x3f800000)"
        f" (gt bool {compared} 3) (where f32 4 2 3) (store 1 p0 5)))"
    )
    assert may_go_either_way(kernel) == is_found


def test_quotients_of_elements_that_lead_to_a_jump_are_rounded_on_a_gpu() -> None:
    kernel = kernel_of(
        "(add f32 1 2)",
        "(div f32 3 1)",
        "(abs f32 4)",
        "(floor f32 5)",
        "(store 1 p0 6)",
        out="f32",
    )
    assert quotients_before_jumps(kernel) == {4}
    assert "= tl.div_rn(v3, v1)" in source_of(kernel)
