"""Bytes by the loop along which they are contiguous, and cuts that would make more so."""

from __future__ import annotations

import pytest

from nearhint_compiler.analysis.coalescing import (
    Buffer,
    Suggestion,
    Touch,
    broadcast_variable,
    coalescing,
    coalescing_of,
    coalescing_variable,
)
from nearhint_compiler.ir.text import parse_kernel
from nearhint_rules import expr as ex

F32 = Buffer(1 << 30, 4)


def touch(index: str, *, is_written: bool = False, buffer: Buffer = F32) -> Touch:
    return Touch(ex.parse(index), (buffer,), is_written)


@pytest.mark.parametrize(
    ("index", "variable"),
    [
        ("(+ n0 (* 64 n1))", "n0"),
        ("(+ (% n0 32) (* 64 n1))", "n0"),
        ("(// n0 2)", None),
        ("(* 64 n0)", None),
        ("(+ n0 (* 5 n1))", "n0"),
        ("(+ n0 (// n1 2))", "n0"),
        ("(+ (* 10 n0) (% n1 3))", "n1"),
        ("(+ (* 2 n0) (* 3 n1))", None),
        ("(% (+ n0 3) 6)", "n0"),
        # a term of its own, but not the only one
        ("(+ n0 (% n0 5))", None),
        ("(+ n0 (* 64 (// n0 64)))", "n0"),
        # a divisor that is zero at the first point proves nothing
        ("(// 8 n0)", None),
    ],
)
def test_an_access_is_coalesced_by_the_loop_of_stride_one(index: str, variable: str | None) -> None:
    assert coalescing_variable(ex.parse(index), ("n0", "n1")) == variable


def test_a_term_of_its_own_comes_before_a_stride_that_happens_to_be_one() -> None:
    index = ex.parse("(+ (* k0 n0) n1)")
    assert coalescing_variable(index, ("n0", "n1"), {"k0": 1}) == "n1"


@pytest.mark.parametrize(
    ("index", "variable"),
    [("(// n0 2)", "n0"), ("(* 64 n0)", None), ("(+ (* 4 n0) (// n1 10))", "n1")],
)
def test_a_loop_that_an_access_repeats_along_is_a_broadcast(
    index: str, variable: str | None
) -> None:
    assert broadcast_variable(ex.parse(index), ("n0", "n1")) == variable


@pytest.mark.parametrize(("itemsize", "ratio"), [(4, 3), (8, 3 / 2)])
def test_a_transposed_read_counts_a_third_of_a_contiguous_read_and_write(
    itemsize: int, ratio: float
) -> None:
    contiguous, transposed = "(+ (* 256 n0) n1)", "(+ n0 (* 256 n1))"
    found = coalescing_of(
        [
            touch(contiguous),
            touch(transposed, buffer=Buffer(1 << 16, itemsize)),
            touch(contiguous, is_written=True),
        ],
        {"n0": 256, "n1": 256},
        {},
    )
    assert found.by_variable["n1"] == ratio * found.by_variable["n0"]
    assert found.by_variable["n1"] == 3 * 4 * 256 * 256
    assert not found.uncoalesced


@pytest.mark.parametrize(("dtype", "ratio"), [("f32", 3), ("f64", 3 / 2)])
def test_a_kernel_is_counted_as_its_accesses_are(dtype: str, ratio: float) -> None:
    cast = "(load 1 (+ p0 (* k1 p1))) (cast f32 1)"
    kernel = parse_kernel(f"""
    (kernel (symbols k0 k1) (pointwise k0 k1) (reduction)
      (params (in f32) (in {dtype}) (out f32))
      (body (load 0 (+ (* k1 p0) p1)) {cast} (add f32 0 2) (store 2 (+ (* k1 p0) p1) 3)))
    """)
    found = coalescing(kernel, {"k0": 256, "k1": 256})
    assert found.by_variable["p1"] == ratio * found.by_variable["p0"]


def test_a_buffer_counts_once_however_often_its_elements_are_read() -> None:
    kernel = parse_kernel("""
    (kernel (symbols k0) (pointwise k0 64) (reduction) (params (in f32) (out f32))
      (body (load 0 (// p1 16)) (store 1 (+ (* 64 p0) p1) 0)))
    """)
    found = coalescing(kernel, {"k0": 100})
    assert found.by_variable == {"p1": 4 * 4 + 2 * 4 * 6400}


def test_a_buffer_is_as_large_as_its_largest_index_says() -> None:
    kernel = parse_kernel("""
    (kernel (symbols k0) (pointwise k0) (reduction) (params (in f32) (out f32))
      (body (load 0 p0) (load 0 (// p0 2)) (add f32 0 1) (store 1 p0 2)))
    """)
    found = coalescing(kernel, {"k0": 100})
    assert found.by_variable == {"p0": 4 * 100 + 4 * 100 + 2 * 4 * 100}


def test_two_buffers_at_one_index_both_count() -> None:
    each = Touch(ex.parse("n0"), (Buffer(1000, 2), Buffer(10, 8)))
    assert coalescing_of([each], {"n0": 100}, {}).by_variable == {"n0": 200 + 80}


def test_a_pointwise_broadcast_is_credited_to_the_innermost_loop() -> None:
    extents = {"p0": 2000, "p1": 4}
    touched = [touch("p0"), touch("p1"), touch("(+ (* 4 p0) p1)", is_written=True)]
    assert set(coalescing_of(touched, extents, {}).by_variable) == {"p1"}


def test_beside_a_reduction_nothing_is_credited_to_another_loop() -> None:
    found = coalescing_of([touch("p0"), touch("r0")], {"p0": 64, "r0": 32}, {})
    assert found.by_variable == {"p0": 4 * 64, "r0": 4 * 32}


def test_an_access_that_depends_on_data_is_uncoalesced_and_suggests_nothing() -> None:
    indirect = ex.parse("(+ (// p0 64) (* 100 row))")
    found = coalescing_of([Touch(indirect, (F32,))], {"p0": 4096}, {})
    assert found.by_variable == {}
    assert found.uncoalesced == {indirect: 4 * 4096}
    assert found.suggestions == ()


def test_a_scatter_by_an_expanded_index_is_no_reason_for_tiles() -> None:
    touched = [touch("p0"), touch("(+ (* 64 p0) p1)"), touch("(+ (* 64 row) p1)", is_written=True)]
    found = coalescing_of(touched, {"p0": 4096, "p1": 64}, {})
    assert set(found.by_variable) == {"p1"}
    assert found.suggestions == ()


def test_accesses_without_a_loop_and_empty_loops_count_nothing() -> None:
    touched = [touch("7"), touch("p1"), touch("(* 9 p0)")]
    found = coalescing_of(touched, {"p0": 0, "p1": 1}, {})
    assert (found.by_variable, found.uncoalesced, found.suggestions) == ({}, {}, ())


def test_a_loop_of_extent_one_coalesces_nothing() -> None:
    found = coalescing_of([touch("(+ (* k0 p1) p0)")], {"p0": 1, "p1": 64}, {"k0": 1})
    assert found.by_variable == {"p1": 4 * 64}


def test_cuts_are_suggested_for_what_no_loop_coalesces() -> None:
    index = "(+ (* 4096 (% (+ (* 32 p0) r0) 2048)) (// p0 64))"
    found = coalescing_of([touch(index)], {"p0": 262144, "r0": 32}, {})
    assert found.suggestions == (Suggestion("p0", 64, 4 * 262144 * 32),)
    assert list(found.uncoalesced) == [ex.parse(index)]


def test_suggestions_add_up_and_the_best_comes_first() -> None:
    by_64, by_16 = "(+ (* 99 (% p0 64)) (// p0 64))", "(+ (* 99 (% p0 16)) (// p0 16))"
    touched = [
        touch(by_16),
        touch(by_64),
        touch(f"(+ 1 {by_64})", is_written=True),
    ]
    found = coalescing_of(touched, {"p0": 4096}, {})
    assert found.suggestions == (
        Suggestion("p0", 64, 3 * 4 * 4096),
        Suggestion("p0", 16, 4 * 4096),
    )


@pytest.mark.parametrize(("extent", "factor"), [(4096, 8), (64, 8), (512, 64), (32, 64)])
def test_a_cut_that_leaves_a_short_part_is_not_suggested(extent: int, factor: int) -> None:
    index = f"(+ (* 99 (% p0 {factor})) (// p0 {factor}))"
    assert coalescing_of([touch(index)], {"p0": extent}, {}).suggestions == ()
