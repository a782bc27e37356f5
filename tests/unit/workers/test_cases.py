"""Which elements stores cover, without enumerating them; and references, part by part."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import parse_kernel
from nearhint_daemon.workers import reference
from nearhint_daemon.workers.cases import (
    CASE_BYTES,
    CASE_POINTS,
    FEW,
    FULL_BYTES,
    LONG_SUM,
    PLACES_OF_LONG,
    Sizes,
    awkward_sizes,
    dense_count,
    named_places,
    sizes_at,
    stored_indices,
    table_bytes,
)
from nearhint_daemon.workers.verify import MANY_THREADS
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.guard import ALWAYS

KERNELS = sorted((Path(__file__).parents[2] / "kernels").glob("*.ir"))
K0, P0, P1 = ex.symbol("k0"), ex.symbol("p0"), ex.symbol("p1")


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_what_is_said_to_be_dense_is(path: Path) -> None:
    kernel = parse_kernel(path.read_text())
    for sizes in awkward_sizes(kernel, ALWAYS)[:8]:
        for node in kernel.body:
            if isinstance(node, ir.Store) and (count := dense_count(sizes, node)):
                stored = np.sort(stored_indices(sizes, node))
                np.testing.assert_array_equal(stored, np.arange(count))


def test_rows_of_what_is_turned_are_crowded_at_some_sizes() -> None:
    """Generated text decides by how far rows are apart: each way has sizes that go through it."""
    path = Path(__file__).parents[2] / "kernels" / "transpose_add_f32.ir"
    every = [sizes.dims for sizes in awkward_sizes(parse_kernel(path.read_text()), ALWAYS)]
    for size in (4, 2):
        turned = [dims for dims in every if dims["k0"] * size % 512 == 0]
        assert any(dims["k1"] * size % 4096 == 0 for dims in turned) or size == 2
        assert any(dims["k1"] % 16 for dims in turned)
    assert any(dims["k0"] % 1024 == 0 for dims in every)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("place", [0, 1])
def test_a_part_of_a_block_of_columns_has_each_number_of_vectors(lanes: int, place: int) -> None:
    """Generated text has a copy for each, of which another number of columns tells nothing."""
    path = Path(__file__).parents[2] / "kernels" / "column_sum_f32.ir"
    every = awkward_sizes(parse_kernel(path.read_text()), ALWAYS)
    parts = {-(-((size - 1) % (8 * lanes) + 1) // lanes) for size in sizes_of(every, place)}
    for least, most in pairwise((0, 1, 2, 3, 4, 6, 8)):
        assert parts & {*range(least + 1, most + 1)}


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_several_short_rows_have_each_number_of_vectors(lanes: int) -> None:
    """Generated text has a copy for each, too; and of one row nothing tells where the next is."""
    path = Path(__file__).parents[2] / "kernels" / "row_sum_f32.ir"
    every = awkward_sizes(parse_kernel(path.read_text()), ALWAYS)
    rows = zip(sizes_of(every, 1), sizes_of(every, 0), strict=True)
    assert {1, 2, 3, 4} <= {-(-length // lanes) for length, count in rows if count > 1}


@pytest.mark.parametrize(
    "name",
    ["middle_softmax_bf16", "pooled_two_by_two_f16", "transposed_block_scale_f8e4m3fn"],
)
def test_some_rows_but_fewer_than_threads_have_them_share_each(name: str) -> None:
    """Also where several loops number them, and what is along them is fixed."""
    path = Path(__file__).parents[2] / "kernels" / f"{name}.ir"
    every = awkward_sizes(parse_kernel(path.read_text()), ALWAYS)
    assert {math.prod(sizes.pointwise) for sizes in every} & {*range(2, MANY_THREADS)}


def sizes_of(every: Sequence[Sizes], place: int) -> list[int]:
    return [[*each.dims.values()][place] for each in every]


STRIDED = """
(kernel (symbols k0 k1) (pointwise k0) (reduction) (params (in f32) (out f32))
  (body (load 0 (* k1 p0)) (store 1 p0 0)))
"""
ROWS = """
(kernel (symbols k0) (pointwise k0) (reduction LENGTH) (params (in f32) (out f32))
  (body (load 0 (+ (* LENGTH p0) r0)) (reduce sum f32 0) (store 1 p0 1)))
"""


def test_strides_are_not_the_larger_for_a_size_of_many_points() -> None:
    kernel = parse_kernel(STRIDED)
    every = awkward_sizes(kernel, ALWAYS)
    assert max(sizes.points for sizes in every) <= CASE_POINTS
    assert max(sizes.size_bytes(kernel) for sizes in every) <= FULL_BYTES


@pytest.mark.parametrize("length", [1, 330, 5000])
def test_some_size_has_nearly_as_many_points_as_any_may_have(length: int) -> None:
    kernel = parse_kernel(ROWS.replace("LENGTH", str(length)))
    full = max(sizes.points for sizes in awkward_sizes(kernel, ALWAYS))
    assert CASE_POINTS - length < full <= CASE_POINTS


def test_all_of_an_awkward_size_has_a_reference_and_parts_of_a_larger_one() -> None:
    kernel = next(parse_kernel(path.read_text()) for path in KERNELS if path.stem == "row_sum_f32")
    sizes = [sizes_at(kernel, {"k0": rows, "k1": 128}) for rows in (CASE_POINTS // 128, 4096)]
    rows = [
        [length for ((_, length),) in reference.slab_windows(each, np.random.default_rng(1))]
        for each in sizes
    ]
    assert rows == [[CASE_POINTS // 128], [reference.SLAB_POINTS // 128] * 3]


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_a_reference_is_the_same_in_however_many_parts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = parse_kernel(path.read_text())
    sizes = awkward_sizes(kernel, ALWAYS)[0]
    monkeypatch.setattr(reference, "SLAB_POINTS", max(1, sizes.points // 4))
    made = []
    for points, cpus in ((sizes.points, 1), (max(1, sizes.points // 40), 12)):
        monkeypatch.setattr(reference, "PART_POINTS", points)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, cpus=cpus: set(range(cpus)))
        made.append(reference.make_reference(kernel, sizes, seed=(1,)))
    first, second = made
    assert first.windows == second.windows
    for whole, joined in zip(first.slabs, second.slabs, strict=True):
        for one, other in zip(whole, joined, strict=True):
            np.testing.assert_array_equal(one.indices, other.indices)
            np.testing.assert_array_equal(one.values, other.values)
            np.testing.assert_array_equal(one.allowed, other.allowed)


@pytest.mark.parametrize(
    ("index", "count"),
    [
        (ex.add(ex.mul(4, P0), P1), 12),
        (ex.add(P0, ex.mul(3, P1)), 12),  # turned round
        (ex.add(ex.mul(K0, P0), P1), 12),
        (ex.add(ex.mul(5, P0), P1), 0),  # between rows there is something else
        (ex.add(ex.mul(3, P0), P1), 0),  # rows overlap
        (ex.add(ex.mul(4, P0), P1, 1), 0),
        (ex.add(ex.mul(4, P0), ex.sub(3, P1)), 0),
        (ex.mul(P0, P1), 0),
        (ex.add(ex.mul(4, P0), ex.mod(P1, 4)), 0),  # dense, but not linear
    ],
)
def test_rows_that_lie_one_after_the_other_are_dense(index: ex.Expr, count: int) -> None:
    kernel = parse_kernel("""
        (kernel (symbols k0) (pointwise 3 4) (reduction) (params (in f32) (out f32))
          (body (load 0 p1) (store 1 (+ (* 4 p0) p1) 0)))
    """)
    sizes = sizes_at(kernel, {"k0": 4})
    assert dense_count(sizes, ir.Store(1, index, 0)) == count


def test_places_are_those_that_there_are_and_one_more_on_each_side() -> None:
    path = Path(__file__).parents[2] / "kernels" / "embedded_layer_norm_f16.ir"
    kernel = parse_kernel(path.read_text())
    sizes = sizes_at(kernel, dict(zip(kernel.symbols, (400, 8, 50, 9), strict=True)))
    assert sizes.elements[1] == 50 * 8
    assert named_places(kernel, sizes) == {0: (-1, 50), 2: (-1, 9)}
    words, *_ = reference.random_inputs(kernel, sizes, np.random.default_rng(1), draw="normal")
    assert isinstance(words, np.ndarray)
    assert {*words.tolist()} == {*range(-1, 51)}


def test_a_table_of_places_has_those_that_there_are_in_the_next_one() -> None:
    kernel = parse_kernel(
        "(kernel (symbols k0 k1) (pointwise k0) (reduction)"
        " (params (in i64) (in i64) (in f32) (out f32))"
        " (body (load 0 p0) (gather 1 0 1 k1 0) (gather 2 0 1 2 1) (store 3 p0 2)))"
    )
    found = named_places(kernel, sizes_at(kernel, {"k0": 5, "k1": 40}))
    assert found == {0: (-1, 40), 1: (-1, 2)}


@pytest.mark.parametrize("size", ["(+ k1 -1)", "(+ k1 (* -1 k2))"])
def test_where_there_are_no_places_a_lookup_has_no_meaning(size: str) -> None:
    """As in rows that may be none, and in what another size leaves of a table."""
    kernel = parse_kernel(
        "(kernel (symbols k0 k1 k2) (pointwise k0 k2) (reduction)"
        " (params (in i64) (in f32) (out f32))"
        f" (body (load 0 p0) (gather 1 p1 k2 {size} 0) (store 2 (+ (* k2 p0) p1) 1)))"
    )
    with pytest.raises(InvalidExpression, match="places"):
        sizes_at(kernel, {"k0": 3, "k1": 1, "k2": 1})
    every = awkward_sizes(kernel, ALWAYS)
    assert len(every) >= 3
    for sizes in every[:FEW]:
        made = reference.make_reference(kernel, sizes, seed=(1,))
        assert made.slabs


def test_long_rows_whose_positions_are_numbers_have_awkward_sizes() -> None:
    """Rows from which one element is left out: they are compared with where it is."""
    kernel = parse_kernel(
        "(kernel (symbols k0) (pointwise) (reduction k0) (params (in i64) (in f32) (out f32))"
        " (body (load 0 0) (iota r0) (eq bool 0 1) (load 1 r0) (reduce sum f32 3)"
        " (where f32 2 4 3) (store 2 r0 5)))"
    )
    assert max(sizes.dims["k0"] for sizes in awkward_sizes(kernel, ALWAYS)) >= LONG_SUM


def test_long_sums_of_rows_that_data_names_are_of_several() -> None:
    """A thousand of one number are rounded one way; but tables of one place are tried, too."""
    kernel = parse_kernel(
        "(kernel (symbols k0 k1 k2) (pointwise k0) (reduction k1)"
        " (params (in i64) (in f32) (out f32)) (body (load 0 r0) (gather 1 p0 k0 k2 0)"
        " (reduce sum f32 1) (store 2 p0 2)))"
    )
    found = [sizes.dims for sizes in awkward_sizes(kernel, ALWAYS)]
    assert min(dims["k2"] for dims in found) == 1
    assert min(dims["k2"] for dims in found if dims["k1"] >= LONG_SUM) >= PLACES_OF_LONG


def test_sizes_whose_points_lie_far_apart_are_no_larger_in_memory() -> None:
    kernel = parse_kernel(
        "(kernel (symbols k0 k1) (pointwise k0 k1) (reduction) (params (in f64) (out f64))"
        " (body (load 0 p0) (store 1 (+ (* 2 k0 p0) p1) 0)))"
    )
    every = awkward_sizes(kernel, ALWAYS)
    assert max(sizes.size_bytes(kernel) for sizes in every) <= CASE_BYTES
    assert max(sizes.dims["k0"] for sizes in every) >= 1301
    assert max(sizes.dims["k1"] for sizes in every) >= 20_011


def test_a_table_that_is_large_at_all_sizes_has_a_few_awkward_ones_beside_it() -> None:
    kernel = parse_kernel(
        "(kernel (symbols k0) (pointwise k0 4096) (reduction)"
        " (params (in i64) (in bf16) (out bf16))"
        " (body (load 0 p0) (gather 1 p1 4096 128256 0) (store 2 (+ (* 4096 p0) p1) 1)))"
    )
    table = table_bytes(kernel)
    assert table == 2 * 128_256 * 4096
    every = awkward_sizes(kernel, ALWAYS)
    assert 3 <= len(every) <= FEW
    assert all(table <= sizes.size_bytes(kernel) <= table + CASE_BYTES for sizes in every)
