"""The rule `interpolated` with its short cuts, against the same rule by their definitions.

Bit for bit: what is worked out in fewer steps is the same number, and not one that is close.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from operator import add
from unittest.mock import patch

from hypothesis import event, given
from hypothesis import strategies as st
from tests.property.examples import examples
from tests.property.test_selection import SIZES, STEP
from tests.property.test_selectors import ANY_TABLE, asked

from nearhint_rules import expr as ex
from nearhint_rules import interpolation
from nearhint_rules.candidates import SizeFacts
from nearhint_rules.choice import Alternative
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr
from nearhint_rules.forecasts import NEAR
from nearhint_rules.guard import Guard, size_facts_hold
from nearhint_rules.interpolation import InterpolatedSelector, is_between, scales_of
from nearhint_rules.metrics import Dims
from nearhint_rules.prediction import LEAST_LANE, Predictor
from nearhint_rules.selection import log2_distance
from nearhint_rules.table import Table


def plain_value(expr: Expr, symbols: Sequence[str]) -> Callable[[Dims], int]:
    """As `ex.compiled_by_position`, by `ex.evaluate`."""

    def value(dims: Dims) -> int:
        try:
            return ex.evaluate(expr, dict(zip(symbols, dims, strict=True)))
        except InvalidExpression:
            raise ZeroDivisionError from None

    if set(ex.symbols_of(expr)).difference(symbols):
        raise InvalidExpression("no value for a symbol")
    return value


def plain_held(self: SizeFacts, dims: Dims) -> int:
    """As `SizeFacts.held`, each fact by itself."""
    sizes = dict(zip(self._symbols, dims, strict=True))
    held = 0
    for fact, bit in self._bits.items():
        try:
            held |= bit if size_facts_hold(Guard((fact,)), sizes) else 0
        except InvalidExpression:
            continue
    return held


def plain_near(self: Predictor, dims: Dims, missing: int) -> tuple[list[int], list[float]]:
    """As `Predictor.near`, key by key."""
    found = self.hints.first(self.keys(dims, missing), dims, NEAR)
    distances = [max(self.hints.distance(key), LEAST_LANE) for key in found]
    pulls = [1.0 / (distance * distance) for distance in distances]
    whole = reduce(add, pulls)  # in this order; `sum` is more exact from Python 3.12 on
    weights = [pull / whole for pull in pulls]
    lacking = NEAR - len(found)
    near = [key & self.hints.mask for key in found + found[:1] * lacking]
    return near, weights + [0.0] * lacking


def plain_between(dims: Dims, scales: Sequence[Sequence[int]], cutoff: int) -> bool:
    """As `is_between`, each size against each."""
    return all(
        any(not log2_distance((size,), (each,), cutoff)[1] for each in scale)
        for size, scale in zip(dims, scales, strict=True)
    )


class Plainly(InterpolatedSelector):
    """The first alternative is the first of all."""

    def _first(self, dims: Dims) -> Alternative:
        return self._alternatives(dims, 1)[0]


@contextmanager
def by_definition() -> Generator[None]:
    with ExitStack() as stack:
        for place, name, plain in (
            (ex, "compiled_by_position", plain_value),
            (SizeFacts, "held", plain_held),
            (Predictor, "near", plain_near),
            (interpolation, "is_between", plain_between),
        ):
            stack.enter_context(patch.object(place, name, plain))
        yield


@examples(300)
@given(ANY_TABLE, st.data())
def test_short_cuts_change_no_answer(table: Table, data: st.DataObject) -> None:
    step = InterpolatedSelector(table, STEP)
    with by_definition():
        plain = Plainly(table, STEP)
        plain.work_through()
    for _ in range(3):
        dims = asked(table, data)
        choice = step.prepare(dims)
        with by_definition():
            expected = plain.prepare(dims)
            whole = expected.alternatives, expected.is_covered
        event(choice.first[1].reason)
        assert (choice.alternatives, choice.is_covered) == whole
        assert [each.distance.hex() for _, each in choice.alternatives] == [
            each.distance.hex() for _, each in whole[0]
        ]


@given(
    st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=6),
    st.tuples(SIZES, SIZES),
    st.sampled_from((1, 2, 4, 16)),
)
def test_sizes_are_between_hints_where_each_is_near_one(
    hints: list[Dims], dims: Dims, cutoff: int
) -> None:
    hints = [tuple(max(size, 1) for size in hint) for hint in hints]
    dims = tuple(max(size, 1) for size in dims)
    scales = scales_of(hints)
    assert is_between(dims, scales, cutoff) == plain_between(dims, scales, cutoff)
