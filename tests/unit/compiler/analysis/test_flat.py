"""Which accesses run through a pointwise space in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearhint_compiler.analysis.flat import flat_params, flattened, in_order
from nearhint_compiler.ir.nodes import Kernel, Load, Store
from nearhint_compiler.ir.text import parse_kernel
from nearhint_rules import expr as ex

KERNELS = Path(__file__).parents[3] / "kernels"


def kernel_of(name: str) -> Kernel:
    return parse_kernel((KERNELS / f"{name}.ir").read_text())


@pytest.mark.parametrize(
    ("name", "flat"),
    [
        ("add_f32", {0, 1, 2}),
        ("bias_relu_dynamic_f32", {0, 2}),  # not the bias
        ("transpose_add_f32", {1, 2}),  # not what is read across
        ("rotary_joined_f16", {0, 3}),  # not cosines and sines, which heads share
        ("clamped_flip_f32", {1}),
    ],
)
def test_what_lies_in_the_order_of_the_space_is_flat(name: str, flat: set[int]) -> None:
    assert flat_params(kernel_of(name)) == flat


def test_a_flat_access_is_at_the_place_that_its_loops_say() -> None:
    kernel = kernel_of("rotary_joined_f16")
    sizes = {"k0": 3, "k1": 10, "k2": 5}
    for old, new in zip(kernel.body, flattened(kernel).body, strict=True):
        if not isinstance(old, Load | Store):
            continue
        assert isinstance(new, Load | Store)
        for place in range(60):
            p0, rest = divmod(place, 30)
            at = {**sizes, "x": place, "p0": p0, "p1": rest // 10, "p2": rest % 10}
            assert ex.evaluate(new.index, at) == ex.evaluate(old.index, at)


@pytest.mark.parametrize(
    ("index", "wanted"),
    [
        ("(+ (* k1 k2 p0) (* k2 p1) p2)", "x"),
        ("(+ (* k1 k2 p0) (* k2 p1) k0 p2)", "(+ k0 x)"),
        ("(+ (* k2 p1) p2)", "(% x (* k1 k2))"),  # the inner loops, over and over
        ("p2", None),  # one loop has a remainder of its own
        ("(+ (* k2 p0) p2)", None),
        ("(+ (* k1 p2) p1)", None),
    ],
)
def test_inner_loops_in_order_are_one_remainder(index: str, wanted: str | None) -> None:
    space = "(pointwise k0 k1 k2) (reduction) (params (out f32))"
    body = "(body (const f32 0x0) (store 0 (+ (* k1 k2 p0) (* k2 p1) p2) 0))"
    kernel = parse_kernel(f"(kernel (symbols k0 k1 k2) {space} {body})")
    found = in_order(kernel, ex.parse(index))
    assert (found and ex.to_text(found)) == wanted
