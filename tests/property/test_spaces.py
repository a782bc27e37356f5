"""Loops that are cut and shared visit the same elements as before, in the same linear order."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from nearhint_compiler.analysis.common_space import (
    Dependence,
    Member,
    common_space,
    merged_accesses,
)
from nearhint_compiler.analysis.digits import Digit, complete_digits
from nearhint_compiler.analysis.split import split
from nearhint_compiler.analysis.unit_stride import unit_stride_factor
from nearhint_compiler.errors import CannotSplit
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
def regrouped(draw: st.DrawFn, factors: Sequence[Expr]) -> tuple[Expr, ...]:
    """Runs of the factors, each multiplied; sometimes shuffled first, which rarely fits."""
    is_shuffled: bool = draw(st.booleans())
    found: list[Expr] = []
    for factor in draw(st.permutations(factors)) if is_shuffled else factors:
        joins: bool = draw(st.booleans())
        if found and joins:
            found[-1] = ex.mul(found[-1], factor)
        else:
            found.append(factor)
    return tuple(found)


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


@st.composite
def members_of(draw: st.DrawFn, rows: list[Expr], columns: list[Expr]) -> Member:
    """A reduction, a pointwise member over both spaces, or one beside the reduction."""
    match draw(st.sampled_from(("reduction", "elements", "rows"))):
        case "reduction":
            return Member(draw(regrouped(rows)), draw(regrouped(columns)))
        case "elements":
            return Member(draw(regrouped([*rows, *columns])))
        case _:
            return Member(draw(regrouped(rows)))


STRIDES = st.sampled_from([Int(0), Int(1), Int(7), S0, ex.mul(3, S1)])


@st.composite
def index_over(draw: st.DrawFn, count: int) -> Expr:
    loops = [ex.mul(draw(STRIDES), Sym(f"d{place}")) for place in range(count)]
    index = ex.add(*loops, draw(st.integers(0, 3)))
    if draw(st.booleans()):
        index = ex.add(ex.mul(5, ex.mod(index, 4)), ex.floordiv(index, draw(st.integers(2, 6))))
    return index


@given(FACTORS, FACTORS, st.data())
def test_members_touch_the_same_addresses_over_the_common_loops(
    rows: list[Expr], columns: list[Expr], data: st.DataObject
) -> None:
    members = data.draw(st.lists(members_of(rows, columns), min_size=1, max_size=3))
    numel, length = ex.product(rows), ex.product(columns)
    space = common_space(members, numel=numel, reduction_numel=length, ranges=RANGES)
    if space is None:
        return
    assert ex.product(space.pointwise) == numel
    assert ex.product(space.reduction) == length
    shared = space.ranges(RANGES).extents
    for place, member in enumerate(members):
        own = (*member.pointwise, *member.reduction)
        index = data.draw(index_over(len(own)))
        dependences = [[Dependence(0, index)] if n == place else [] for n in range(len(members))]
        (rewritten,) = merged_accesses(space, dependences, ranges=RANGES)
        is_beside = ex.product(own) == numel
        walked = [name for name in shared if not is_beside or name[0] == "p"]
        for sizes in VALUES:
            if math.prod(ex.evaluate(each, sizes) for each in (numel, length)) > 2000:
                continue
            names = [f"d{number}" for number in range(len(own))]
            before = [ex.evaluate(index, point) for point in points(names, own, sizes)]
            rest = {name: 0 for name in shared if name not in walked}
            extents = [shared[name] for name in walked]
            after = [
                ex.evaluate(rewritten, {**rest, **point})
                for point in points(walked, extents, sizes)
            ]
            assert Counter(after) == Counter(before)
            assert after == before


@given(FACTORS, FACTORS, st.data())
def test_members_whose_loops_nest_share_a_space_without_divisions(
    rows: list[Expr], columns: list[Expr], data: st.DataObject
) -> None:
    whole = Member((ex.product(rows),), (ex.product(columns),))
    finer = Member(data.draw(regrouped(rows)), data.draw(regrouped(columns)))
    space = common_space(
        [whole, finer],
        numel=ex.product(rows),
        reduction_numel=ex.product(columns),
        ranges=RANGES,
    )
    assert space is not None
    for getter in itertools.chain.from_iterable(space.getters):
        assert "//" not in ex.to_text(getter)
    assert space.pointwise == tuple(size for size in finer.pointwise if size != ex.ONE)
    assert space.reduction == tuple(size for size in finer.reduction if size != ex.ONE)


@given(st.lists(st.integers(1, 4), max_size=5), st.data())
def test_digits_are_complete_whatever_is_missing_and_in_any_order(
    lengths: list[int], data: st.DataObject
) -> None:
    divisors = [math.prod(lengths[:place]) for place in range(len(lengths))]
    numel = Int(math.prod(lengths))
    whole = [Digit(Int(d), Int(n)) for d, n in zip(divisors, lengths, strict=True)]
    kept = [digit for digit in whole if data.draw(st.booleans())]
    shuffled = data.draw(st.permutations(kept))
    found = complete_digits(shuffled, numel, sizes={}, ranges=Ranges())
    assert found == complete_digits(kept, numel, sizes={}, ranges=Ranges())
    assert ex.product(digit.length for digit in found) == numel
    running: Expr = ex.ONE
    for digit in found:
        assert digit.divisor == running
        running = ex.mul(running, digit.length)


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
