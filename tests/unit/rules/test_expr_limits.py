"""Expressions that would explode are refused before the work is done."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr

SYMBOLS = [ex.Sym(f"s{number}") for number in range(40)]
SUM = ex.Add(tuple(SYMBOLS[:6]))


def nested(levels: int) -> Expr:
    found: Expr = SYMBOLS[0]
    for _ in range(levels):
        found = ex.FloorDiv(found, ex.Int(3))
    return found


def doubling(levels: int) -> Expr:
    """Shared subtrees: small in memory, 2^levels when written out."""
    found: Expr = SYMBOLS[0]
    for level in range(levels):
        found = ex.floordiv(ex.add(found, ex.mod(found, SYMBOLS[1])), level + 3)
    return found


BOMBS: dict[str, Callable[[], Expr]] = {
    "power of a sum": lambda: ex.power(SUM, 60),
    "power of a power": lambda: ex.power(ex.power(SYMBOLS[0], 60), 60),
    "huge exponent": lambda: ex.power(SYMBOLS[0], 10**9),
    "huge constant": lambda: ex.power(7, 64),
    "product of sums": lambda: ex.mul(*(ex.add(symbol, 1) for symbol in SYMBOLS)),
    "product of constants": lambda: ex.mul(*[2**40] * 3),
    "sum of constants": lambda: ex.add(2**62, 2**62),
    "constant": lambda: ex.add(2**63, 0),
    "sum of many terms": lambda: ex.add(*(ex.Sym(f"t{number}") for number in range(300))),
    "deep nesting": lambda: ex.canonical(nested(80)),
    "shared subtrees": lambda: doubling(40),
    "wide minimum": lambda: ex.minimum(*(ex.Sym(f"t{number}") for number in range(2000))),
    "text: deep": lambda: ex.parse("(% " * 5000 + "s0" + " 7)" * 5000),
    "text: power": lambda: ex.parse("(^ (+ s0 s1 s2 s3) 60)"),
    "text: digits": lambda: ex.parse("9" * 10_000),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_an_expression_bomb_is_refused_quickly(bomb: Callable[[], Expr]) -> None:
    started = time.process_time()
    with pytest.raises(InvalidExpression):
        bomb()
    assert time.process_time() - started < 1


def test_the_limits_are_far_from_what_models_need() -> None:
    pages = ex.mul(ex.floordiv(ex.add(SYMBOLS[0], 15), 16), 16)
    flat = ex.mul(pages, SYMBOLS[1], 12, 64)
    inner: Expr = flat
    for size in (7, 64, 12, 3):
        inner = ex.add(ex.floordiv(inner, size), ex.mod(inner, size))
    assert ex.parse(ex.to_text(inner)) == inner
    assert isinstance(ex.power(ex.add(*SYMBOLS[:3]), 4), ex.Add)


def test_constants_reach_to_64_bits() -> None:
    assert ex.add(2**63 - 1, 0) == ex.Int(2**63 - 1)
    assert ex.mul(-(2**62), 2) == ex.Int(-(2**63))


def test_a_boolean_is_an_integer_constant() -> None:
    assert ex.to_text(ex.as_expr(True)) == "1"
    assert type(ex.as_expr(True)) is ex.Int


@pytest.mark.parametrize(
    "name", ["", "1a", "a b", "a-b", "a\n", "a'", 'a"', "é", "a" * 65, "$x", "a.b"]
)
def test_a_symbol_is_an_identifier(name: str) -> None:
    with pytest.raises(InvalidExpression):
        ex.symbol(name)


@pytest.mark.parametrize(
    "text",
    ["", "(", ")", "(+)", "(+ 1)", "(// 1)", "(// 1 0)", "(% s0 0)", "(^ s0 s1)", "(^ 2 -1)", "1 2",
     "(+ 1 2", "(foo 1 2)", "(min 1)", "()", "1.5", "0x10", "--1"],
)  # fmt: skip
def test_text_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(InvalidExpression):
        ex.parse(text)


def test_evaluation_names_the_symbol_without_a_value() -> None:
    with pytest.raises(InvalidExpression, match="no value for symbol 's3'"):
        ex.evaluate(ex.add(ex.Sym("s3"), 1), {"s0": 1})
    with pytest.raises(InvalidExpression, match="no value for symbol 's3'"):
        ex.compiled_by_position(ex.Sym("s3"), ("s0",))


def test_evaluation_refuses_a_division_by_zero() -> None:
    with pytest.raises(InvalidExpression, match="division by zero"):
        ex.evaluate(ex.floordiv(7, ex.Sym("s0")), {"s0": 0})
