"""Loops that are parted: each point is in one stretch, in which the Kernel computes the same."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from nearhint_compiler.analysis.parted import Region, Stretch, parted
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Sym

Found: TypeAlias = int | bool | tuple[int, int]
K0, K1 = Sym("k0"), Sym("k1")
LENGTHS = st.sampled_from([K0, K1, ex.sub(K0, 1), ex.Int(1), ex.Int(3), ex.mul(2, K1)])
"""Of parts, of which there may be none."""
COMPARED = st.sampled_from(["lt", "ge", "gt", "le"])


def below(body: list[ir.BodyNode], place: Expr, end: Expr, name: str) -> int:
    """A node that says whether a place is below an end, by a comparison of this name."""
    start = len(body)
    pair = (place, end) if name in ("lt", "ge") else (end, place)
    body += [*map(ir.Iota, pair), ir.Op(name, ir.BOOL, (start, start + 1))]
    if name in ("ge", "le"):
        body.append(ir.Op("not", ir.BOOL, (start + 2,)))
    return len(body) - 1


def chosen(
    body: list[ir.BodyNode], loop: Expr, lengths: Sequence[Expr], names: Sequence[str], rest: Expr
) -> tuple[int, Expr]:
    """A join of parts of one input, each read backwards, and its length."""
    starts = [ex.add(ex.ZERO, *lengths[:count]) for count in range(len(lengths) + 1)]
    values: list[int] = []
    for start, length in zip(starts, lengths, strict=False):
        inside = ex.maximum(ex.minimum(ex.sub(loop, start), ex.sub(length, 1)), 0)
        body.append(ir.Load(len(values), ex.add(ex.mul(100, rest), ex.mul(3, inside))))
        values.append(len(body) - 1)
    value = values[-1]
    for part, end, name in zip(
        reversed(values[:-1]), reversed(starts[1:-1]), reversed(names[: len(values) - 1]),
        strict=True,
    ):  # fmt: skip
        condition = below(body, loop, end, name)
        body.append(ir.Op("where", "f32", (condition, part, value)))
        value = len(body) - 1
    return value, starts[-1]


@st.composite
def joins(draw: st.DrawFn) -> ir.Kernel:
    """Parts along the innermost loop or the other one, or along both."""
    body: list[ir.BodyNode] = []
    names = draw(st.lists(COMPARED, min_size=3, max_size=3))
    sides: list[tuple[int, Expr]] = []
    for loop, rest in ((Sym("p0"), Sym("p1")), (Sym("p1"), Sym("p0"))):
        lengths = draw(st.lists(LENGTHS, min_size=1, max_size=3))
        sides.append(chosen(body, loop, lengths, names, rest))
    (first, rows), (second, columns) = sides
    condition = below(body, Sym("p1"), ex.add(Sym("p0"), draw(LENGTHS)), draw(COMPARED))
    body.append(ir.Op("where", "f32", (condition, first, second)))
    place = ex.add(ex.mul(columns, Sym("p0")), Sym("p1"))
    body.append(ir.Store(3, place, len(body) - 1))
    params = (*(ir.Param("in", "f32") for _ in range(3)), ir.Param("out", "f32"))
    return ir.Kernel(("k0", "k1"), (rows, columns), (), params, tuple(body))


def stored(kernel: ir.Kernel, point: Mapping[str, int]) -> Found:
    """Which element of which input the kernel stores at a point."""
    found: dict[int, Found] = {}

    def value(place: int) -> Found:
        if place in found:
            return found[place]
        match kernel.body[place]:
            case ir.Iota(index):
                result: Found = ex.evaluate(index, point)
            case ir.Load(param, index):
                result = (param, ex.evaluate(index, point))
            case ir.Op("where", _, (condition, first, second)):
                result = value(first) if value(condition) else value(second)
            case ir.Op("not", _, (operand,)):
                result = not value(operand)
            case ir.Op(name, _, (first, second)):
                result = bool(getattr(operator, name)(value(first), value(second)))
            case _:
                raise AssertionError(place)
        found[place] = result
        return result

    (store,) = (node for node in kernel.body if isinstance(node, ir.Store))
    return value(store.value)


def is_in(stretch: Stretch, point: Mapping[str, int]) -> bool:
    place = point[stretch.variable]
    is_behind = stretch.low is None or ex.evaluate(stretch.low, point) <= place
    return is_behind and (stretch.high is None or place < ex.evaluate(stretch.high, point))


def stretches_at(regions: Sequence[Region], point: Mapping[str, int]) -> list[Stretch]:
    """Those that a point is in."""
    return [
        each
        for region in regions
        if all(is_in(other, point) for other in region.within)
        for each in region.along
        if is_in(each, point)
    ]


@given(joins(), st.integers(1, 4), st.integers(1, 4))
def test_each_point_is_in_one_stretch_which_stores_the_same(
    kernel: ir.Kernel, k0: int, k1: int
) -> None:
    sizes = {"k0": k0, "k1": k1}
    extents = [range(ex.evaluate(extent, sizes)) for extent in kernel.pointwise]
    for lane in ("p0", "p1"):
        regions = parted(kernel, lane)
        for p0, p1 in itertools.product(*extents) if regions else ():
            point = {**sizes, "p0": p0, "p1": p1}
            (stretch,) = stretches_at(regions, point)
            assert stored(stretch.kernel, point) == stored(kernel, point)
