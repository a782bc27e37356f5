"""Units of fusion against a search of the whole graph: who may join, in which order they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from nearhint_compiler.frontend.lower import Graph
from nearhint_compiler.frontend.units import Units

NODES = 12


@dataclass(frozen=True)
class Edges:
    """All of a graph that units look at: what each node comes after, and which are views."""

    before: tuple[frozenset[int], ...]
    views: frozenset[int]


@st.composite
def graphs(draw: st.DrawFn) -> Edges:
    views = draw(st.frozensets(st.integers(0, NODES - 1), max_size=3))
    before: list[frozenset[int]] = []
    for node in range(NODES):
        earlier = [each for each in range(node) if each not in views]
        drawn = draw(st.frozensets(st.sampled_from(earlier), max_size=3)) if earlier else ()
        before.append(frozenset(drawn))
    return Edges(tuple(before), views)


def depends(units: Units, unit: int, on: int) -> bool:
    """Whether there is a way from one unit up to another, through any number of them."""
    stack, seen = [unit], {unit}
    while stack:
        for each in units.direct(stack.pop()) - seen:
            if each == on:
                return True
            seen.add(each)
            stack.append(each)
    return False


def lies_between(units: Units, left: int, right: int) -> bool:
    return any(
        between not in (left, right)
        and (
            (depends(units, between, left) and depends(units, right, between))
            or (depends(units, between, right) and depends(units, left, between))
        )
        for between in units.members
    )


@given(graphs(), st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=20))
def test_units_join_where_no_third_lies_between_and_stay_in_order(
    edges: Edges, pairs: list[tuple[int, int]]
) -> None:
    units = Units(cast(Graph, edges))
    for first, second in pairs:
        there = sorted(units.members)
        left, right = there[first % len(there)], there[second % len(there)]
        if left == right:
            continue
        assert units.can_join(left, right) is not lies_between(units, left, right)
        if not units.can_join(left, right):
            continue
        units.join(left, right)
        assert right not in units.members
        order = units.in_order(units.members)
        for place, unit in enumerate(order):
            assert units.direct(unit) <= set(order[:place])
    nodes = sorted(node for unit in units.members for node in units.members[unit])
    assert nodes == [node for node in range(NODES) if node not in edges.views]
