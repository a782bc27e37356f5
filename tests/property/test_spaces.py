"""Loops that are cut and shared visit the same elements as before, in the same linear order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from nearhint_compiler.analysis.split import split
from nearhint_compiler.analysis.unit_stride import unit_stride_factor
from nearhint_compiler.errors import CannotSplit
from nearhint_compiler.frontend.loops import Loops
from nearhint_compiler.frontend.space import loop_index, space_of, unify
from nearhint_compiler.ir.index import Ranges
from nearhint_compiler.schedule.blocks import BOUNDS, block_sizes
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Int, Sym

S0, S1 = Sym("s0"), Sym("s1")
RANGES = Ranges({"s0": (1, None), "s1": (1, None)})
VALUES = ({"s0": 1, "s1": 1}, {"s0": 3, "s1": 2}, {"s0": 2, "s1": 5})
FACTORS = st.lists(st.sampled_from([S0, S1, Int(2), Int(2), Int(3), Int(1)]), max_size=4)


def points(
    names: Sequence[str], extents: Sequence[Expr], sizes: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """Every point of the loops, in linear order, with the sizes."""
    for values in itertools.product(*(range(ex.evaluate(each, sizes)) for each in extents)):
        yield {**sizes, **dict(zip(names, values, strict=True))}


@st.composite
def regrouped_in_order(draw: st.DrawFn, factors: Sequence[Expr]) -> tuple[Expr, ...]:
    """Runs of the factors, each multiplied."""
    found: list[Expr] = []
    for factor in factors:
        joins: bool = draw(st.booleans())
        if found and joins:
            found[-1] = ex.mul(found[-1], factor)
        else:
            found.append(factor)
    return tuple(found)


@st.composite
def regrouped(draw: st.DrawFn, factors: Sequence[Expr]) -> tuple[Expr, ...]:
    """Runs of the factors, each multiplied; sometimes shuffled first, which rarely fits."""
    is_shuffled: bool = draw(st.booleans())
    return draw(regrouped_in_order(draw(st.permutations(factors)) if is_shuffled else factors))


@given(FACTORS, st.data())
def test_a_split_is_a_bijection_in_linear_order(factors: list[Expr], data: st.DataObject) -> None:
    groups, lengths = data.draw(regrouped(factors)), data.draw(regrouped(factors))
    try:
        found = split(groups, lengths, RANGES)
    except CannotSplit:
        return
    for extent, cut in zip(groups, found.pieces, strict=True):
        assert ex.product(cut) == extent
    pieces = [piece for cut in found.pieces for piece in cut]
    names = [f"v{number}" for number in range(len(pieces))]
    for sizes in VALUES:
        walked = [
            tuple(ex.evaluate(getter, point) for getter in found.getters)
            for point in points(names, pieces, sizes)
        ]
        assert walked == list(
            itertools.product(*(range(ex.evaluate(length, sizes)) for length in lengths))
        )


@given(FACTORS, st.data())
def test_runs_of_the_same_factors_are_split_wherever_they_nest(
    factors: list[Expr], data: st.DataObject
) -> None:
    groups = [ex.product(factors)]
    lengths = data.draw(regrouped(factors))
    assert len(split(groups, lengths, RANGES).getters) == len(lengths)
    assert len(split(lengths, groups, RANGES).getters) == 1


def loops_over(shape: Sequence[Expr], axes: Sequence[int] = ()) -> Loops:
    return Loops(0, tuple(shape), frozenset(axes), (), lambda _: ())


@given(FACTORS, FACTORS, st.data())
def test_members_walk_their_own_elements_in_order_over_the_common_loops(
    rows: list[Expr], columns: list[Expr], data: st.DataObject
) -> None:
    """A reduction with a member over all its elements, or over its rows."""
    kept, reduced = data.draw(regrouped(rows)), data.draw(regrouped(columns))
    is_beside = data.draw(st.booleans(), label="beside the reduction")
    reduction = loops_over((*kept, *reduced), range(len(kept), len(kept) + len(reduced)))
    member = loops_over(data.draw(regrouped(rows if is_beside else [*rows, *columns])))
    space = unify(space_of(reduction), space_of(member))
    if space is None:
        return
    for loops in (reduction, member):
        place = loop_index(loops, space, RANGES)
        assert place is not None
        is_whole = ex.product(loops.shape) == space.numel
        dims = range(len(space.extents)) if is_whole else space.kept_dims
        names = [f"f{dim}" for dim in dims]
        extents = [space.extents[dim] for dim in dims]
        for sizes in VALUES:
            if ex.evaluate(space.numel, sizes) > 2000:
                continue
            walked = [
                tuple(ex.evaluate(index, point) for index in place)
                for point in points(names, extents, sizes)
            ]
            own = (range(ex.evaluate(size, sizes)) for size in loops.shape)
            assert walked == list(itertools.product(*own))


@given(FACTORS, FACTORS, st.data())
def test_dims_that_cut_each_other_into_whole_parts_leave_no_division(
    rows: list[Expr], columns: list[Expr], data: st.DataObject
) -> None:
    whole = loops_over((ex.product(rows), ex.product(columns)), [1])
    kept, reduced = data.draw(regrouped_in_order(rows)), data.draw(regrouped_in_order(columns))
    finer = loops_over((*kept, *reduced), range(len(kept), len(kept) + len(reduced)))
    space = unify(space_of(whole), space_of(finer))
    assert space is not None
    for loops in (whole, finer):
        for index in loop_index(loops, space, RANGES) or ():
            assert "//" not in ex.to_text(index)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(0, 9))
def test_a_factor_gives_stride_one(divisor: int, modulus: int, scale: int, offset: int) -> None:
    x = Sym("x")
    moving = ex.floordiv(ex.add(ex.mul(scale, x), offset), divisor)
    index = ex.add(moving, ex.mul(99, ex.mod(ex.mul(scale, x), modulus)))
    factor = unit_stride_factor(index, "x")
    if factor is not None:
        start, *following = (ex.evaluate(index, {"x": factor * step}) for step in range(3))
        assert [value - start for value in following] == [1, 2]


AXES = st.sampled_from([("x",), ("y", "x"), ("x", "r"), ("z", "y", "x"), ("y", "x", "r")])


@given(AXES, st.integers(0, 14), st.data())
def test_blocks_meet_their_target_within_their_bounds(
    axes: tuple[str, ...], exponent: int, data: st.DataObject
) -> None:
    scores = {axis: data.draw(st.integers(0, 10**9)) for axis in axes}
    hints = {axis: data.draw(st.integers(1, 10**6)) for axis in axes}
    blocks = block_sizes(scores, hints=hints, target=1 << exponent)
    for axis, block in blocks.items():
        assert block & (block - 1) == 0
        assert 1 <= block <= BOUNDS[axis].greatest
        assert block < 2 * hints[axis]
    least = math.prod(BOUNDS[axis].least for axis in axes)
    assert math.prod(blocks.values()) <= max(1 << exponent, least)
    larger = block_sizes(scores, hints=hints, target=2 << exponent)
    assert all(larger[axis] >= block for axis, block in blocks.items())
