"""Size expressions against Python's own arithmetic."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.property.examples import examples
from tests.property.strategies import NAMES, exprs, trees, value_of

from nearhint_rules import expr as ex
from nearhint_rules.canonical import encode
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr

SIZES = st.fixed_dictionaries({name: st.integers(-9, 40) for name in NAMES})
POSITIVE = st.fixed_dictionaries({name: st.integers(1, 40) for name in NAMES})
BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
ONES: dict[str, int] = dict.fromkeys(NAMES, 1)


def canonical(tree: Expr) -> Expr:
    try:
        return ex.canonical(tree)
    except InvalidExpression:
        assert value_of(tree, ONES) is None or ex.size_of(tree) > 20
        assume(False)
        raise


@given(trees(), SIZES)
def test_canonical_form_keeps_the_value(tree: Expr, sizes: dict[str, int]) -> None:
    wanted = value_of(tree, sizes)
    assume(wanted is not None)
    assert ex.evaluate(canonical(tree), sizes) == wanted


@given(trees())
def test_canonical_form_is_a_fixed_point(tree: Expr) -> None:
    once = canonical(tree)
    assert ex.canonical(once) == once
    assert encode(ex.canonical(once)) == encode(once)


@given(trees(), trees(), trees())
def test_equal_polynomials_are_structurally_equal(a: Expr, b: Expr, c: Expr) -> None:
    a, b, c = canonical(a), canonical(b), canonical(c)
    try:
        assert ex.mul(a, ex.add(b, c)) == ex.add(ex.mul(c, a), ex.mul(b, a))
        assert ex.sub(ex.add(a, b), b) == a
    except InvalidExpression:
        assume(False)


@given(trees(), SIZES)
def test_compiled_expressions_agree_with_evaluation(tree: Expr, sizes: dict[str, int]) -> None:
    expr = canonical(tree)
    wanted = value_of(expr, sizes)
    assume(wanted is not None)
    assert ex.compiled(expr)(sizes) == wanted
    assert ex.compiled_by_position(expr, NAMES)(tuple(sizes[name] for name in NAMES)) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "(// (+ s0 63) 64)",
        "(* (// (+ s0 31) 32) (// (+ s1 127) 128))",
        "(* (// (+ s0 31) 32) (// (+ (* s1 s2) 127) 128))",
        "(// (+ (* s0 s1) 1023) 1024)",
        "(* s0 s1)",
        "(* s0 s1 s2)",
        "(* 2 s1)",
        "(* 2 s0 s1)",
        "(* s0 (// (+ s1 127) 128))",
        "(* 2 s0 s1 s2)",
        "(+ (* s0 s1) s2)",
        "(max 1 (min 16 (// 528 (// (+ s0 63) 64))))",
        "(max 2 (min 1 (// 528 s0)))",
    ],
)
def test_what_grids_are_made_of_is_compiled_to_what_it_is(text: str) -> None:
    expr, names = ex.parse(text), ("s2", "s1", "s0")
    for sizes in ((1, 1, 1), (7, 129, 64), (65, 5, 1000)):
        named = dict(zip(names, sizes, strict=True))
        assert ex.to_text(expr) == text
        wanted = ex.evaluate(expr, named)
        assert (ex.compiled(expr)(named), ex.compiled_by_position(expr, names)(sizes)) == (
            wanted,
            wanted,
        )


@given(exprs(), exprs(), SIZES)
def test_floor_division_and_modulus_agree_with_python(
    top: Expr, bottom: Expr, sizes: dict[str, int]
) -> None:
    high, low = value_of(top, sizes), value_of(bottom, sizes)
    assume(high is not None and low)
    assert high is not None
    assert low is not None
    try:
        quotient, rest = ex.floordiv(top, bottom), ex.mod(top, bottom)
    except InvalidExpression:
        assume(False)
        raise
    assert ex.evaluate(quotient, sizes) == high // low
    assert ex.evaluate(rest, sizes) == high % low


@given(exprs(), exprs(), SIZES)
def test_substitution_commutes_with_evaluation(
    expr: Expr, replacement: Expr, sizes: dict[str, int]
) -> None:
    inner = value_of(replacement, sizes)
    assume(inner is not None)
    assert inner is not None
    wanted = value_of(expr, {**sizes, "s0": inner})
    assume(wanted is not None)
    try:
        replaced = ex.substitute(expr, {"s0": replacement})
    except InvalidExpression:
        assume(False)
        raise
    assert ex.evaluate(replaced, sizes) == wanted


@given(exprs(), st.permutations(NAMES))
def test_substitution_is_simultaneous(expr: Expr, order: list[str]) -> None:
    there: dict[str, Expr] = {old: ex.Sym(new) for old, new in zip(NAMES, order, strict=True)}
    back: dict[str, Expr] = {new: ex.Sym(old) for old, new in zip(NAMES, order, strict=True)}
    assert ex.substitute(ex.substitute(expr, there), back) == expr


RANGES = st.fixed_dictionaries(
    {
        name: st.tuples(st.integers(-5, 12), st.none() | st.integers(0, 9)).map(
            lambda pair: (pair[0], None if pair[1] is None else pair[0] + pair[1])
        )
        for name in NAMES
    }
)


@examples(200)
@given(trees(), RANGES, st.data())
def test_bounds_hold_at_every_point_of_the_ranges(
    tree: Expr, ranges: dict[str, tuple[int, int | None]], data: st.DataObject
) -> None:
    expr = canonical(tree)
    sizes = {
        name: data.draw(st.integers(low, low + 50 if high is None else high))
        for name, (low, high) in ranges.items()
    }
    value = value_of(expr, sizes)
    assume(value is not None)
    assert value is not None
    low, high = ex.bounds(expr, ranges)
    assert low is None or low <= value
    assert high is None or value <= high


@examples(200)
@given(trees(), POSITIVE)
def test_a_ceiling_is_not_below_the_value_where_symbols_are_positive(
    tree: Expr, sizes: dict[str, int]
) -> None:
    expr = canonical(tree)
    value = value_of(expr, sizes)
    found = ex.ceiling(expr)
    assume(value is not None and found is not None)
    assert value is not None
    assert found is not None
    most, names = found
    assert value <= most * math.prod(sizes[name] for name in names)


def test_what_an_index_reaches_has_a_ceiling() -> None:
    for text, known in {
        "(+ (* 2 k0 k1) -2)": (2, {"k0", "k1"}),
        "(* 16 k0 (max 1 (min 8 (// 132 (// (+ (* 16 k0) 63) 64)))))": (16 * 8, {"k0"}),
        "(+ (* -1 k2) 4)": (4, {"k2"}),
    }.items():
        most, names = known
        assert ex.ceiling(ex.parse(text)) == (most, frozenset(names))
    for text in (
        "(^ k0 2)",
        "(* k0 (min k0 k1))",
        "(// k0 (+ k1 -1))",
        "(min k0 (// k1 (+ k2 -1)))",
        "(% (// k1 (+ k2 -1)) k0)",
        "(// k0 (max 1 (// k1 (+ k2 -1))))",
        "(* (min 1 (+ k0 -9)) (min 1 (+ k1 -9)))",
    ):
        assert ex.ceiling(ex.parse(text)) is None


@given(exprs(leaves=10))
def test_text_round_trips(expr: Expr) -> None:
    assert ex.parse(ex.to_text(expr)) == expr


@given(exprs(leaves=10), SIZES)
def test_a_formula_means_what_the_expression_does(expr: Expr, sizes: dict[str, int]) -> None:
    try:
        wanted = ex.evaluate(expr, sizes)
    except InvalidExpression:
        return
    assert python_value(ast.parse(ex.to_formula(expr), mode="eval").body, sizes) == wanted


def python_value(node: ast.expr, sizes: dict[str, int]) -> int:
    """What Python makes of a formula."""
    match node:
        case ast.Constant(int() as value):
            return value
        case ast.Name(name):
            return sizes[name]
        case ast.UnaryOp(ast.USub(), operand):
            return -python_value(operand, sizes)
        case ast.BinOp(left, op, right):
            return BINARY[type(op)](python_value(left, sizes), python_value(right, sizes))
        case ast.Call(ast.Name(name), arguments):
            return {"min": min, "max": max}[name](python_value(each, sizes) for each in arguments)
        case _:
            raise AssertionError(ast.dump(node))


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("(* 4 k0)", "4 * k0"),
        ("(* 4 (// k0 2) (% k1 3))", "4 * (k0 // 2) * (k1 % 3)"),
        ("(+ k0 (* -2 k1) 3)", "k0 - 2 * k1 + 3"),
        ("(// (+ k0 63) 64)", "(k0 + 63) // 64"),
        ("(% (* 2 k0) (// k1 2))", "2 * k0 % (k1 // 2)"),
        ("(^ (// k0 2) 2)", "(k0 // 2) ** 2"),
        ("(max 1 (min 16 (// 528 k0)))", "max(1, min(16, 528 // k0))"),
    ],
)
def test_a_formula_is_what_people_write(text: str, formula: str) -> None:
    assert ex.to_formula(ex.parse(text)) == formula


@given(st.text(st.sampled_from("()+*/%^ minax0129s-"), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        expr = ex.parse(text)
    except InvalidExpression:
        return
    assert ex.parse(ex.to_text(expr)) == expr


@given(exprs(), exprs())
def test_the_order_of_expressions_is_total(a: Expr, b: Expr) -> None:
    assert (ex.sort_key(a) == ex.sort_key(b)) == (a == b)
    assert (ex.sort_key(a) < ex.sort_key(b)) != (ex.sort_key(b) < ex.sort_key(a)) or a == b


@given(exprs(), exprs())
def test_canonical_bytes_are_equal_only_for_equal_expressions(a: Expr, b: Expr) -> None:
    assert (encode(a) == encode(b)) == (a == b)


@given(exprs(), POSITIVE)
def test_divide_monomials_splits_exactly(expr: Expr, sizes: dict[str, int]) -> None:
    divisor = ex.mul(2, ex.Sym("s0"))
    quotient, rest = ex.divide_monomials(expr, divisor)
    total = ex.add(ex.mul(quotient, divisor), rest)
    wanted = value_of(expr, sizes)
    assume(wanted is not None)
    assert ex.evaluate(total, sizes) == wanted
