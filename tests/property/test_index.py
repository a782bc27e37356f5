"""Index expressions: every simplification and every proof holds at every point, by brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nearhint_compiler.errors import InvalidKernel
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr, Int, Sym

S0, S1 = Sym("s0"), Sym("s1")
RANGES = ix.Ranges(
    {"s0": (1, None), "s1": (2, 7)},
    {"f0": S0, "f1": S1, "f2": Int(4), "f3": ex.mul(2, S1)},
)
ATOMS: list[Expr] = [S0, S1, *(Sym(name) for name in RANGES.extents), *map(Int, (1, 2, 3, 4, 8))]
SIZES: list[Expr] = [S0, S1, Int(2), Int(3), Int(4), ex.mul(S0, S1), ex.mul(4, S1), ex.mul(2, S1)]


def points() -> Iterator[dict[str, int]]:
    for s0, s1 in itertools.product((1, 2, 5), (2, 3, 7)):
        sizes = {"s0": s0, "s1": s1}
        extents = [ex.evaluate(extent, sizes) for extent in RANGES.extents.values()]
        for values in itertools.product(*map(range, extents)):
            yield sizes | dict(zip(RANGES.extents, values, strict=True))


POINTS = list(points())[::3]


def sums(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.lists(children, min_size=2, max_size=3).map(lambda items: ex.add(*items)),
        st.tuples(children, st.sampled_from(SIZES)).map(lambda pair: ex.mul(*pair)),
        st.tuples(children, st.sampled_from(SIZES)).map(lambda pair: ex.floordiv(*pair)),
        st.tuples(children, st.sampled_from(SIZES)).map(lambda pair: ex.mod(*pair)),
        st.tuples(children, children).map(lambda pair: ex.sub(*pair)),
        st.lists(children, min_size=2, max_size=2).map(lambda items: ex.minimum(*items)),
        st.lists(children, min_size=2, max_size=2).map(lambda items: ex.maximum(*items)),
    )


EXPRESSIONS = st.recursive(st.sampled_from(ATOMS), sums, max_leaves=8)


@given(EXPRESSIONS)
def test_simplifying_changes_no_value(expr: Expr) -> None:
    simple = ix.simplify(expr, RANGES)
    for point in POINTS:
        assert ex.evaluate(simple, point) == ex.evaluate(expr, point)


@given(EXPRESSIONS)
def test_what_is_proved_holds_everywhere(expr: Expr) -> None:
    if ix.is_nonnegative(expr, RANGES):
        assert all(ex.evaluate(expr, point) >= 0 for point in POINTS)
    for size in SIZES:
        if ix.is_within(expr, size, RANGES):
            assert all(0 <= ex.evaluate(expr, point) < ex.evaluate(size, point) for point in POINTS)


OTHER_LOOPS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(RANGES.extents, st.sampled_from(SIZES))
)


@given(st.lists(st.tuples(EXPRESSIONS, OTHER_LOOPS), min_size=2, max_size=4))
def test_what_is_remembered_of_sizes_is_what_is_found_anew(
    asked: list[tuple[Expr, dict[str, Expr]]],
) -> None:
    """Other loops have other extents, and a variable may be a loop's of one and not of another."""
    known = ix.Ranges(RANGES.symbols)
    for expr, extents in (*asked, *reversed(asked)):
        found, anew = known.over(extents), ix.Ranges(RANGES.symbols, extents)
        assert ix.simplify(expr, found) == ix.simplify(expr, anew)
        assert ix.is_nonnegative(expr, found) == ix.is_nonnegative(expr, anew)


SHAPES = st.lists(st.sampled_from([S0, S1, Int(1), Int(2), Int(6), ex.mul(2, S1)]), max_size=4)


@given(SHAPES, st.data())
def test_reindexing_walks_the_target_in_row_major_order(
    shape: list[Expr], data: st.DataObject
) -> None:
    target = data.draw(regrouped(shape))
    extents = {f"f{place}": size for place, size in enumerate(shape)}
    ranges = ix.Ranges(RANGES.symbols, extents)
    index = tuple(Sym(name) for name in extents)
    found = ix.reindex(index, shape, target, ranges)
    for sizes in ({"s0": 1, "s1": 2}, {"s0": 3, "s1": 2}, {"s0": 2, "s1": 7}):
        assume(math.prod(ex.evaluate(size, sizes) for size in shape) < 500)
        places = itertools.product(*(range(ex.evaluate(size, sizes)) for size in target))
        walk = itertools.product(*(range(ex.evaluate(size, sizes)) for size in shape))
        for here, there in zip(walk, places, strict=True):
            point = sizes | dict(zip(extents, here, strict=True))
            assert tuple(ex.evaluate(item, point) for item in found) == there


@st.composite
def regrouped(draw: st.DrawFn, shape: list[Expr]) -> list[Expr]:
    """Another shape of as many elements: runs of dims multiplied, a constant split."""
    target: list[Expr] = []
    for size in shape:
        flip: bool = draw(st.booleans())
        if target and flip:
            target[-1] = ex.mul(target[-1], size)
        elif size == Int(6) and not flip:
            target += [Int(2), Int(3)]
        else:
            target.append(size)
    return target


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("(// (+ (* f0 s1) f1) s1)", "f0"),
        ("(% (+ (* f0 s1) f1) s1)", "f1"),
        ("(// (+ (* 384 f0) f2) 384)", "f0"),
        ("(// (+ (* 4 f1) f2) (* 4 s1))", "0"),
        ("(% (+ (* 4 f0) f2) (* 4 s1))", "(+ f2 (* 4 (% f0 s1)))"),
        ("(+ (* s1 (// f0 s1)) (% f0 s1))", "f0"),
        ("(+ s0 (% s0 2))", "(* 2 (// (+ s0 1) 2))"),
        ("(// (+ s0 (% s0 2) 1) 2)", "(// (+ s0 1) 2)"),
        ("(+ (* s0 s1) (* s1 (% s0 2)))", "(* 2 s1 (// (+ s0 1) 2))"),
        ("(+ s0 (% s0 3))", "(+ s0 (% s0 3))"),
        ("(// (// f0 2) 3)", "(// f0 6)"),
        ("(max 1 s1)", "s1"),
        ("(min f1 s1)", "f1"),
        ("(// (+ f3 s0) s1)", "(// (+ f3 s0) s1)"),
    ],
)
def test_rules(text: str, simple: str) -> None:
    assert ex.to_text(ix.simplify(ex.parse(text), RANGES)) == simple


@pytest.mark.parametrize(
    ("text", "is_proved"),
    [
        ("(+ s0 (* -1 (// s0 2)))", True),
        ("(+ s1 (* -1 (// s1 2)) -1)", True),
        ("(+ s0 (* -1 (// s0 2)) -1)", True),
        ("(+ s0 (* -1 (// s0 2)) -2)", False),
        ("(+ s1 (* -1 (// (+ s1 1) 2)) -1)", True),
        ("(+ (* 2 (// s0 2)) 1 (* -1 s0))", True),
        ("(+ (* 2 (// s0 2)) (* -1 s0))", False),
        ("(+ (* s0 s1) (* -1 s0 (// s1 3)))", True),
        ("(+ (* 3 (// (+ s0 s1) 4)) (* -1 s0))", False),
    ],
)
def test_a_quotient_is_bounded_by_what_it_divides(text: str, is_proved: bool) -> None:
    assert ix.is_nonnegative(ex.parse(text), RANGES) == is_proved


@pytest.mark.parametrize(
    ("text", "is_proved"),
    [
        ("(+ 100 (* -1 (% s0 (* -1 (// (* -1 s0) 3)))))", False),  # below a third, rounded up
        ("(+ 16 (* -1 (% s0 (+ 20 (* -1 (// (+ 10 (* -1 s1)) 3))))))", False),
        ("(+ (% s0 5) (* -1 (% s1 (+ 1 (% (+ s0 -1) 5)))))", False),
        ("(+ (// (+ s0 7) 8) -1 (* -1 (% s1 (// (+ s0 7) 8))))", True),
        ("(+ s1 -1 (* -1 (% s0 s1)))", True),
    ],
)
def test_a_rest_is_bounded_by_its_divisor_whatever_that_is_made_of(
    text: str, is_proved: bool
) -> None:
    assert ix.is_nonnegative(ex.parse(text), RANGES) == is_proved


def test_a_quotient_of_a_rest_by_a_quotient_rounded_up_is_kept() -> None:
    text = "(// (% f0 (* -1 (// (* -1 s0) 3))) 8)"
    assert ex.to_text(ix.simplify(ex.parse(text), RANGES)) == text


@pytest.mark.parametrize(
    ("text", "low", "high", "simple"),
    [
        ("(// s0 2)", 2, 3, "1"),
        ("(// s0 2)", 2, 4, "(// s0 2)"),
        ("(% s0 2)", 2, 3, "(+ s0 -2)"),
        ("(// (* -1 s0) 16)", 17, 32, "-2"),
        ("(% (* -1 s0) 16)", 17, 32, "(+ 32 (* -1 s0))"),
    ],
)
def test_a_quotient_that_ranges_leave_one_value_is_a_number(
    text: str, low: int, high: int, simple: str
) -> None:
    ranges = ix.Ranges({"s0": (low, high)})
    assert ix.simplify(ex.parse(text), ranges) == ex.parse(simple)


def test_a_reshape_of_other_sizes_is_refused() -> None:
    with pytest.raises(InvalidKernel):
        ix.reindex((Sym("f0"),), (S0,), (S1,), RANGES)


def test_a_hint_is_no_proof() -> None:
    sizes: Mapping[str, tuple[int, int | None]] = {"s0": (0, None)}
    assert not ix.is_positive(S0, ix.Ranges(sizes))
    assert not ix.is_within(Sym("f0"), S0, ix.Ranges(sizes, {"f0": S1}))


def test_division_by_zero_is_an_error() -> None:
    with pytest.raises(InvalidExpression):
        ix.floordiv(S0, Int(0), RANGES)


@given(EXPRESSIONS)
def test_what_is_said_to_be_zero_somewhere_is_not_positive(expr: Expr) -> None:
    assume(not set(ex.symbols_of(expr)).intersection(RANGES.extents))
    if ix.is_zero_somewhere(expr, RANGES):
        assert not ix.is_positive(expr, RANGES)
        near = itertools.product(range(1, 258), range(2, 8))
        assert any(_is_zero(expr, {"s0": s0, "s1": s1}) for s0, s1 in near)


def _is_zero(expr: Expr, sizes: Mapping[str, int]) -> bool:
    try:
        return ex.evaluate(expr, sizes) == 0
    except InvalidExpression:
        return False


@pytest.mark.parametrize(
    ("expr", "low", "high", "expected"),
    [
        (S0, 0, None, True),
        (S0, 1, None, False),
        (ex.mod(ex.mul(-1, S0), 7), 8, 14, True),
        (ex.mod(ex.mul(-1, S0), 7), 8, 13, False),
        (ex.floordiv(S0, 4), 1, None, True),
        (ex.floordiv(S0, 4), 4, None, False),
        # Whole sevens, and how many of them there are: the quotient is 7, but nothing proves it.
        (ex.floordiv(ex.mul(7, S0), S0), 1, None, False),
        (Int(0), 1, None, False),
    ],
)
def test_sizes_that_may_be_zero(expr: Expr, low: int, high: int | None, expected: bool) -> None:
    assert ix.is_zero_somewhere(expr, ix.Ranges({"s0": (low, high)})) is expected
