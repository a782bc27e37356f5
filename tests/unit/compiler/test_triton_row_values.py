"""What is computed once a row: with all digits where a result in f32 would show them."""

from __future__ import annotations

import re

import pytest
from tests.unit.compiler.kernels import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.schedule import parse_schedule

REST = "warps=4 index=32 aligned=0 divisible=0"
FORMS = (
    f"cuda.persistent x=2 r=1024 {REST}",
    f"cuda.looped x=1 r=1024 {REST}",
    f"cuda.split x=1 r=512 splits=3 {REST}",
    f"cuda.cooperative x=1 r=512 splits=3 teams=2 {REST}",
)


def source_of(name: str, schedule: str) -> str:
    return generate(kernel_of(name), parse_schedule(schedule), TARGET).source


@pytest.mark.parametrize("schedule", FORMS)
def test_quotients_and_roots_of_rows_are_rounded_where_f32_is_written(schedule: str) -> None:
    body = source_of("layer_norm_dynamic_f32", schedule).partition("def nearhint_")[2]
    # The mean, and the variance under the root.
    assert len(re.findall(r"= tl\.div_rn\(", body)) == 2
    assert len(re.findall(r"= _rsqrt\(", body)) == 1
    assert "tl.rsqrt(" not in body


def test_results_in_two_bytes_need_no_more_digits() -> None:
    source = source_of("residual_layer_norm_f16", f"cuda.persistent x=1 r=1024 {REST}")
    assert "tl.rsqrt(" in source
    assert "_rsqrt(" not in source.replace("tl.rsqrt(", "")
    assert "div_rn" not in source


def test_shares_of_a_row_have_one_division_whose_total_is_one_or_more() -> None:
    """Each product is as near as a division by an approximation, and less to compute."""
    body = source_of("softmax_f32", f"cuda.persistent x=1 r=1024 {REST}").partition("def near")[2]
    assert re.findall(r"= _row_share\(v\d+, v\d+\)", body)
    assert " / " not in body


def test_other_quotients_by_what_a_row_has_once_keep_their_division() -> None:
    source = source_of("normalise_f32", f"cuda.persistent x=1 r=1024 {REST}")
    assert re.search(r"= v\d+ / v\d+", source)
    assert "_row_share" not in source


@pytest.mark.parametrize("written", ["f32", "bf16"])
def test_a_pointwise_kernel_has_no_values_of_rows_but_roots_with_their_digits(written: str) -> None:
    # As batch norm in inference has them, where each root is in all elements of a channel.
    result = "2" if written == "f32" else "3"
    rounded = "" if written == "f32" else "(cast bf16 2) "
    kernel = parse_kernel(
        f"(kernel (symbols k0) (pointwise k0) (reduction) (params (in f32) (out {written}))"
        f" (body (load 0 p0) (rsqrt f32 0) (div f32 0 1) {rounded}(store 1 p0 {result})))"
    )
    text = "cuda.pointwise x=128 warps=4 index=32 aligned=0 divisible=0"
    source = generate(kernel, parse_schedule(text), TARGET).source
    assert bool(re.search(r"= _rsqrt\(", source)) == (written == "f32")
    assert bool(re.search(r"= tl\.rsqrt\(\w+\)\n.*/", source)) == (written == "bf16")
    assert "div_rn" not in source


@pytest.mark.parametrize("written", ["f32", "bf16"])
def test_square_roots_of_elements_are_rounded_where_f32_shows_it(written: str) -> None:
    result, rounded = ("1", "") if written == "f32" else ("2", "(cast bf16 1) ")
    kernel = parse_kernel(
        f"(kernel (symbols k0) (pointwise k0) (reduction) (params (in f32) (out {written}))"
        f" (body (load 0 p0) (sqrt f32 0) {rounded}(store 1 p0 {result})))"
    )
    text = "cuda.pointwise x=128 warps=4 index=32 aligned=0 divisible=0"
    source = generate(kernel, parse_schedule(text), TARGET).source
    assert ("tl.sqrt_rn(" in source) == (written == "f32")


@pytest.mark.parametrize("schedule", FORMS[1:3])
def test_one_element_of_a_walk_does_not_vary(schedule: str) -> None:
    """Over one less than their number it is 0 / 0, however its quotient is subtracted from it."""
    body = source_of("layer_norm_dynamic_f32", schedule).partition("def nearhint_")[2]
    assert re.search(r"(square\d+) = tl\.where\(count\d+ > 1\.0, \1, \1 \* 0\.0\)", body)
