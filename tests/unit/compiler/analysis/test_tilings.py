"""The tiles that Kernels are walked in: which, why, and when one axis is all there is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from nearhint_compiler.analysis.tilings import RANKINGS, Tiling, choose
from nearhint_compiler.ir.nodes import Kernel
from nearhint_compiler.ir.text import parse_kernel
from nearhint_rules import expr as ex

KERNELS = Path(__file__).parents[3] / "kernels"
SQUARE = {"k0": 256, "k1": 256}


def kernel_of(name: str) -> Kernel:
    return parse_kernel((KERNELS / f"{name}.ir").read_text())


def pointwise(symbols: str, extents: str, *loads: str, store: str) -> Kernel:
    """A kernel that adds up what it loads, each from an input of its own."""
    body = [f"(load {place} {index})" for place, index in enumerate(loads)]
    value = 0
    for place in range(1, len(loads)):
        body.append(f"(add f32 {value} {place})")
        value = len(body) - 1
    params = "(in f32) " * len(loads)
    return parse_kernel(
        f"(kernel (symbols {symbols}) (pointwise {extents}) (reduction) (params {params}(out f32))"
        f"(body {' '.join(body)} (store {len(loads)} {store} {value})))"
    )


def extents(tiling: Tiling) -> dict[str, str]:
    return {axis.name: ex.to_text(axis.extent) for axis in tiling.axes}


def loops(tiling: Tiling) -> dict[str, str]:
    return {name: ex.to_text(index) for name, index in tiling.loops.items()}


TRANSPOSED_MAX = parse_kernel("""
(kernel (symbols) (pointwise 262144) (reduction 32) (params (in bf16) (out bf16))
  (body (load 0 (+ (* 4096 (% (+ (* 32 p0) r0) 2048)) (// p0 64)))
        (cast f32 0) (reduce max f32 1) (cast bf16 2) (store 1 p0 3)))
""")
"""amax(1) over bf16 (2048, 4096), transposed and viewed as (-1, 32)."""

DYNAMIC_MAX = parse_kernel("""
(kernel (symbols k0) (pointwise k0) (reduction 32) (params (in bf16) (out bf16))
  (body (load 0 (+ (* 4096 (% (+ (* 32 p0) r0) 2048)) (// p0 64)))
        (cast f32 0) (reduce max f32 1) (cast bf16 2) (store 1 p0 3)))
""")
"""The same over any number of rows."""

PRODUCT_SUM = parse_kernel("""
(kernel (symbols k0) (pointwise k0 k0) (reduction k0) (params (in f32) (in f32) (out f32))
  (body (load 0 (+ (* (^ k0 2) r0) (* k0 p1) p0)) (load 1 (+ (* (^ k0 2) r0) (* k0 p0) p1))
        (mul f32 0 1) (reduce sum f32 2) (store 2 (+ (* k0 p0) p1) 3)))
""")
"""(a * b).sum(-1) for a permuted by (2, 1, 0) and b by (1, 2, 0)."""


def test_a_transposed_view_is_cut_at_its_factor() -> None:
    tiling = choose(TRANSPOSED_MAX, {})
    assert extents(tiling) == {"y": "4096", "x": "64", "r": "32"}
    assert tiling.scores["y"] == 2048 * 4096 * 2 == 16_777_216
    assert loops(tiling) == {"p0": "(+ x (* 64 y))", "r0": "r"}
    assert tiling.reason == ""


def test_a_contiguous_and_a_transposed_operand_are_two_axes() -> None:
    tiling = choose(kernel_of("transpose_add_f32"), SQUARE)
    assert extents(tiling) == {"y": "k0", "x": "k1"}
    assert loops(tiling) == {"p0": "y", "p1": "x"}
    assert tiling.scores == {"y": 4 * 256**2, "x": 3 * 4 * 256**2}


def test_operands_of_one_layout_are_one_axis() -> None:
    tiling = choose(kernel_of("add_f32"), {"k0": 65536})
    assert extents(tiling) == {"x": "k0"}


def test_three_layouts_are_three_axes() -> None:
    kernel = pointwise(
        "k0 k1 k2", "k0 k1 k2",
        "(+ (* k1 k2 p0) (* k2 p1) p2)",
        "(+ (* k0 k1 p2) (* k0 p1) p0)",
        "(+ (* k1 k2 p0) (* k1 p2) p1)",
        store="(+ (* k1 k2 p0) (* k2 p1) p2)",
    )  # fmt: skip
    sizes = {"k0": 64, "k1": 64, "k2": 64}
    assert extents(choose(kernel, sizes)) == {"z": "k0", "y": "k1", "x": "k2"}
    limited = choose(kernel, sizes, limit=2)
    assert extents(limited) == {"y": "k0", "x": "(* k1 k2)"}
    assert "3 axes, at most 2" in limited.reason


def test_two_small_broadcasts_stay_one_axis() -> None:
    kernel = pointwise("k0", "k0 4", "p0", "p1", store="(+ (* 4 p0) p1)")
    tiling = choose(kernel, {"k0": 2000})
    assert extents(tiling) == {"x": "(* 4 k0)"}
    assert loops(tiling) == {"p0": "(// x 4)", "p1": "(% x 4)"}


def test_a_reduction_is_tiled_beside_its_own_axis() -> None:
    tiling = choose(PRODUCT_SUM, {"k0": 512})
    assert extents(tiling) == {"y": "k0", "x": "k0", "r": "k0"}
    assert loops(tiling) == {"p0": "y", "p1": "x", "r0": "r"}


def test_a_reduction_is_never_cut() -> None:
    for name in ("sum_outer_inner_f32", "column_sum_f32", "row_sum_f32", "mean_variance_f32"):
        kernel = kernel_of(name)
        for axes in RANKINGS["coalescing"](kernel, dict.fromkeys(kernel.symbols, 512)):
            assert [axis.name for axis in axes].count("r") == 1
            assert axes[-1].extent == ex.product(kernel.reduction)


def test_a_full_reduction_has_one_row() -> None:
    tiling = choose(kernel_of("abs_max_all_f32"), {"k0": 4096, "k1": 64})
    assert extents(tiling)["x"] == "1"


def test_a_cut_that_is_not_proved_falls_back_and_says_so() -> None:
    tiling = choose(DYNAMIC_MAX, {"k0": 262144})
    assert extents(tiling) == {"x": "k0", "r": "32"}
    assert tiling.reason == (
        "y=(// k0 64) x=64 r=32: neither of (// k0 64) and k0 provably divides the other"
    )


def test_a_guard_may_be_the_proof_of_a_cut() -> None:
    tiling = choose(DYNAMIC_MAX, {"k0": 262144}, multiples={"k0": 64})
    assert extents(tiling) == {"y": "(// k0 64)", "x": "64", "r": "32"}
    assert loops(tiling) == {"p0": "(+ x (* 64 y))", "r0": "r"}
    assert extents(choose(DYNAMIC_MAX, {"k0": 262144}, multiples={"k0": 32}))["x"] == "k0"


def test_loops_outside_a_guarded_cut_are_digits_of_the_outer_axis() -> None:
    kernel = pointwise(
        "k0", "3 k0",
        "(+ (* 7 k0 p0) (* 9 k0 (% p1 64)) (// p1 64))",
        store="(+ (* 9 p0) (* 100 (% p1 64)) (// p1 64))",
    )  # fmt: skip
    tiling = choose(kernel, {"k0": 4096}, multiples={"k0": 64})
    assert extents(tiling) == {"y": "(* 3 (// k0 64))", "x": "64"}
    assert loops(tiling) == {"p0": "(// y (// k0 64))", "p1": "(+ x (* 64 (% y (// k0 64))))"}


def test_a_tiling_with_too_many_axes_is_passed_over_with_a_reason() -> None:
    tiling = choose(TRANSPOSED_MAX, {}, limit=2)
    assert extents(tiling) == {"x": "262144", "r": "32"}
    assert tiling.reason == "y=4096 x=64 r=32: 3 axes, at most 2"


def test_short_axes_count_for_less() -> None:
    kernel = kernel_of("transpose_add_f32")
    assert extents(choose(kernel, {"k0": 4096, "k1": 4})) == {"x": "(* k0 k1)"}
    assert extents(choose(kernel, {"k0": 4096, "k1": 8})) == {"y": "k0", "x": "k1"}


@pytest.mark.parametrize(
    ("rows", "columns", "other", "axes"),
    [
        # the vector along p0 adds 0.8 % to what is coalesced: more than an axis costs
        (4096, 64, "r0", 3),
        # 0.1 %
        (4096, 512, "r0", 2),
        # an axis of an odd length costs more
        (4095, 64, "r0", 2),
        # next to what is uncoalesced anyway it is nothing
        (4096, 64, "(+ (* 2 k1 k2 p0) (* 2 k2 p1) (* 2 r0))", 2),
    ],
)
def test_an_axis_must_gain_more_than_it_costs(
    rows: int, columns: int, other: str, axes: int
) -> None:
    kernel = parse_kernel(f"""
    (kernel (symbols k0 k1 k2) (pointwise k0 k1) (reduction k2)
      (params (in f32) (in f32) (out f32))
      (body (load 0 p0) (load 1 {other}) (mul f32 0 1) (reduce sum f32 2)
            (store 2 (+ (* k1 p0) p1) 3)))
    """)
    tiling = choose(kernel, {"k0": rows, "k1": columns, "k2": 1024})
    assert len(tiling.axes) == axes
    assert tiling.reason == ""


def test_rankings_agree_where_operands_are_large_and_differ_where_gains_are_small() -> None:
    def found(kernel: Kernel, sizes: Mapping[str, int]) -> list[dict[str, str]]:
        return [extents(choose(kernel, sizes, ranking=name)) for name in RANKINGS]

    transpose = kernel_of("transpose_add_f32")
    assert found(transpose, SQUARE) == [{"y": "k0", "x": "k1"}] * 2
    assert found(kernel_of("add_f32"), {"k0": 65536}) == [{"x": "k0"}] * 2
    # strides take two axes wherever there are any, and see no cut within a loop
    assert found(transpose, {"k0": 4096, "k1": 4}) == [
        {"x": "(* k0 k1)"},
        {"y": "k0", "x": "k1"},
    ]
    assert found(TRANSPOSED_MAX, {}) == [
        {"y": "4096", "x": "64", "r": "32"},
        {"x": "262144", "r": "32"},
    ]


def test_strides_cut_where_most_elements_want_it() -> None:
    kernel = pointwise(
        "k0 k1 k2", "k0 k1 k2",
        "(+ (* k0 k1 p2) (* k0 p1) p0)",
        "(+ p1 (* k1 p2))",
        store="(+ (* k1 k2 p0) (* k2 p1) p2)",
    )  # fmt: skip
    sizes = {"k0": 100, "k1": 100, "k2": 100}
    assert extents(choose(kernel, sizes, ranking="strides")) == {"y": "k0", "x": "(* k1 k2)"}
    assert {axis.score for axis in RANKINGS["strides"](kernel, sizes)[0]} == {0}


def test_a_write_counts_twice_for_strides() -> None:
    read, write = "(+ (* k0 k1 p2) (* k0 p1) p0)", "(+ (* k1 k2 p0) (* k1 p2) p1)"
    kernel = pointwise("k0 k1 k2", "k0 k1 k2", read, store=write)
    sizes = {"k0": 100, "k1": 100, "k2": 100}
    assert extents(choose(kernel, sizes, ranking="strides")) == {"y": "(* k0 k1)", "x": "k2"}


@pytest.mark.parametrize(("lengths", "outer"), [((100, 8, 32), "(* k0 k1)"), ((100, 6, 33), "k0")])
def test_axes_of_good_lengths_count_twice_for_strides(lengths: tuple[int, ...], outer: str) -> None:
    kernel = pointwise(
        "k0 k1 k2", "k0 k1 k2",
        "(+ (* k0 k1 p2) (* k0 p1) p0)",
        "(+ (* k1 k2 p0) (* k1 p2) p1)",
        store="(+ (* k1 k2 p0) (* k2 p1) p2)",
    )  # fmt: skip
    sizes = dict(zip(kernel.symbols, lengths, strict=True))
    assert extents(choose(kernel, sizes, ranking="strides"))["y"] == outer


def test_trailing_broadcasts_are_no_cut_for_strides() -> None:
    kernel = pointwise("k0", "k0 4", "p0", "p1", store="(+ (* 4 p0) p1)")
    assert extents(choose(kernel, {"k0": 2000}, ranking="strides")) == {"x": "(* 4 k0)"}


@pytest.mark.parametrize("name", sorted(path.stem for path in KERNELS.glob("*.ir")))
@pytest.mark.parametrize("ranking", RANKINGS)
def test_every_kernel_has_a_tiling_that_walks_all_its_points(name: str, ranking: str) -> None:
    kernel = kernel_of(name)
    for size in (1, 2, 3):
        sizes = dict.fromkeys(kernel.symbols, size)
        tiling = choose(kernel, sizes, ranking=ranking)
        lengths = [ex.evaluate(axis.extent, sizes) for axis in tiling.axes]
        spaces = (*kernel.pointwise, *kernel.reduction)
        loop_lengths = [ex.evaluate(extent, sizes) for extent in spaces]
        total = ex.evaluate(ex.product(spaces), sizes)
        names = [axis.name for axis in tiling.axes]
        steps = range(0, total, max(1, total // 200))
        for point in steps:
            values = dict(zip(names, _digits(point, lengths), strict=True))
            found = [ex.evaluate(index, {**sizes, **values}) for index in tiling.loops.values()]
            assert found == _digits(point, loop_lengths)


def _digits(point: int, lengths: list[int]) -> list[int]:
    found: list[int] = []
    for length in reversed(lengths):
        point, digit = divmod(point, length)
        found.insert(0, digit)
    return found
