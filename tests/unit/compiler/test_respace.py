"""Cutting loops where indices divide them: the same elements, fewer divisions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from nearhint_compiler.analysis.respace import respaced
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel, print_kernel
from nearhint_daemon.workers.interpreter import interpret
from nearhint_rules import expr as ex
from nearhint_rules.guard import Divisible, Equals

K0, K1 = ex.symbol("k0"), ex.symbol("k1")
BLOCKS = "(+ (* {stride} (% (+ (* 32 p0) r0) {length})) (// (+ (* 32 p0) r0) {length}))"


def kernel(*, symbols: str, pointwise: str, index: str, reduction: str = "") -> ir.Kernel:
    value = "(reduce max f32 0)" if reduction else "(neg f32 0)"
    return parse_kernel(
        f"(kernel (symbols {symbols}) (pointwise {pointwise}) (reduction {reduction})"
        f" (params (in f32) (out f32)) (body (load 0 {index}) {value} (store 1 p0 1)))"
    )


STATIC = kernel(
    symbols="",
    pointwise="24",
    reduction="32",
    index=BLOCKS.format(stride=6, length=128),
)
DYNAMIC = kernel(
    symbols="k0 k1 k2",
    pointwise="k0",
    reduction="32",
    index=BLOCKS.format(stride="k2", length="k1"),
)
TURNED = kernel(symbols="k0 k1", pointwise="k0", index="(+ (* 7 (% p0 k1)) (// p0 k1))")


@pytest.mark.parametrize(
    ("found", "facts", "sizes"),
    [
        (STATIC, (), {}),
        (
            DYNAMIC,
            (Divisible(K1, 32), Equals(ex.mod(K0, ex.floordiv(K1, 32)), 0)),
            {"k0": 24, "k1": 128, "k2": 6},
        ),
        (TURNED, (Equals(ex.mod(K0, K1), 0),), {"k0": 35, "k1": 5}),
    ],
    ids=["static", "dynamic", "turned"],
)
def test_divisions_go_and_the_elements_stay(
    found: ir.Kernel, facts: tuple[Divisible | Equals, ...], sizes: Mapping[str, int]
) -> None:
    cut = respaced(found)
    assert cut is not None
    assert cut.facts == facts
    (load,) = [node for node in cut.kernel.body if isinstance(node, ir.Load)]
    assert not {"%", "//"} & set(ex.to_text(load.index).replace("(", " ").split())
    assert cut.holds_at(sizes)
    storage = np.arange(24 * 32, dtype=np.float64) * 0.37 % 11
    (before,) = interpret(found, sizes, [storage])
    (after,) = interpret(cut.kernel, sizes, [storage])
    order = np.argsort(after.indices)
    assert after.indices[order].tolist() == before.indices.tolist()
    assert after.values[order].tolist() == before.values.tolist()


def test_sizes_that_are_no_multiples_do_not_meet_the_guard() -> None:
    cut = respaced(DYNAMIC)
    assert cut is not None
    assert not cut.holds_at({"k0": 24, "k1": 130, "k2": 6})
    assert not cut.holds_at({"k0": 25, "k1": 128, "k2": 6})
    assert not cut.holds_at({"k0": 24, "k1": 16, "k2": 6})


@pytest.mark.parametrize(
    "found",
    [
        kernel(symbols="k0 k1", pointwise="k0 k1", index="(+ (* k1 p0) p1)"),
        # 24 is no multiple of 5.
        kernel(symbols="", pointwise="24", index="(+ (* 5 (% p0 5)) (// p0 5))"),
        # What is added may carry.
        kernel(symbols="k0", pointwise="k0", reduction="32", index="(// (+ (* 16 p0) r0) 64)"),
    ],
    ids=["no division", "not a multiple", "a carry"],
)
def test_what_no_cut_makes_simpler_stays(found: ir.Kernel) -> None:
    cut = respaced(found)
    assert cut is None, print_kernel(cut.kernel)
