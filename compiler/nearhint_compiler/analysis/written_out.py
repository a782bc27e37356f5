"""Last loops of few points that read the same elements, written out: each element is read once.

The nine products of a rotation, the steps of a butterfly or the two numbers in a byte are made of
the same few elements. A loop over them reads and computes these anew for each, and is shorter than
a vector. Written out, which part of a join a point takes is known, and what points share is one
node. Terms of a reduction are brought together before it; where that leaves no reduction, the last
loops of the points are written out as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from nearhint_compiler.ir import index as ix
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.legality import check_kernel
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Int

POINTS = 16
"""Of the loops that are written out, at most."""
TERMS = 4
"""Of a reduction that is written out whatever its points share, at most."""
NODES = 192
"""Of a body that is written out, at most."""
REMEMBERED = 64
"""Kernels whose written form is remembered: each Schedule that wants it asks for it."""
_FOLDS: Mapping[str, str] = {
    "sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and",
}  # fmt: skip
_COMPARISONS: Mapping[str, frozenset[int]] = {
    "lt": frozenset({-1}), "le": frozenset({-1, 0}), "gt": frozenset({1}),
    "ge": frozenset({0, 1}), "eq": frozenset({0}), "ne": frozenset({-1, 1}),
}  # fmt: skip
"""Comparison -> the signs of its operands' difference where it holds."""


@lru_cache(maxsize=REMEMBERED)
def written_out(kernel: ir.Kernel) -> ir.Kernel | None:
    """`kernel` without its last loops; None unless each element is then read half as often.

    A reduction without loops is none; that is so of `TERMS` terms in any case.

    >>> from nearhint_compiler.ir.text import parse_kernel, print_kernel
    >>> print(print_kernel(written_out(parse_kernel('''(kernel (symbols k0)
    ...     (pointwise k0 2) (reduction) (params (in f32) (out f32)) (body (load 0 p0)
    ...     (neg f32 0) (iota p1) (const i64 0x1) (lt bool 2 3) (where f32 4 0 1)
    ...     (store 1 (+ (* 2 p0) p1) 5)))'''))))
    (kernel (symbols k0)
      (pointwise k0)
      (reduction)
      (params (in f32) (out f32))
      (body
        (load 0 p0)
        (neg f32 0)
        (store 1 (* 2 p0) 0)
        (store 1 (+ (* 2 p0) 1) 1)))
    <BLANKLINE>
    """
    if any(isinstance(node, ir.Arg | ir.Scan | ir.Gather) for node in kernel.body):
        return None
    points, written, whole = 1, kernel, None
    for prefix in ("r", "p") if kernel.reduction else ("p",):
        if prefix == "p" and written.reduction:
            break
        count, found = _without_last(written, prefix, most=POINTS // points)
        if found is None:
            break
        points, written = points * count, found
        if prefix == "r" and not found.reduction and points <= TERMS:
            whole = found
    if points == 1 or 2 * _loads(written.body) > points * _loads(kernel.body):
        return None if whole is None else check_kernel(whole)
    return check_kernel(written)


def _without_last(kernel: ir.Kernel, prefix: str, *, most: int) -> tuple[int, ir.Kernel | None]:
    """The points of a space's last loops, `most` at most, and the kernel without them.

    None where there are none, or the body gets too long. One of the other loops has to stay.
    """
    space = kernel.reduction if prefix == "r" else kernel.pointwise
    kept = _kept(space, most)
    if kept == len(space) or (kept == 0 and not (prefix == "r" and kernel.pointwise)):
        return 1, None
    counts = {f"{prefix}{place}": space[place] for place in range(kept, len(space))}
    each = [
        dict(zip(counts, map(Int, at), strict=True))
        for at in itertools.product(
            *(range(count.value) for count in counts.values() if isinstance(count, Int))
        )
    ]
    body = _Writing(kernel, each, is_whole=prefix == "r" and kept == 0).run()
    if body is None:
        return 1, None
    if prefix == "r":
        return len(each), replace(kernel, body=body, reduction=space[:kept])
    return len(each), replace(kernel, body=body, pointwise=space[:kept])


def _kept(space: Sequence[Expr], most: int) -> int:
    """How many loops come before the last ones that have `most` points together, at most."""
    points, kept = 1, len(space)
    while kept > 0:
        extent = space[kept - 1]
        if not isinstance(extent, Int) or points * extent.value > most:
            break
        points, kept = points * extent.value, kept - 1
    return kept


def _loads(body: Sequence[ir.BodyNode]) -> int:
    return sum(isinstance(node, ir.Load) for node in body)


@dataclass
class _Writing:
    """A body as it is written: nodes that are equal are one, and stores come last.

    Where it `is_whole`, no loop of a reduction is left.
    """

    kernel: ir.Kernel
    each: Sequence[Mapping[str, Expr]]
    is_whole: bool
    body: list[ir.BodyNode] = field(default_factory=list[ir.BodyNode])
    stores: list[ir.BodyNode] = field(default_factory=list[ir.BodyNode])
    known: dict[int, bool] = field(default_factory=dict[int, bool])
    _places: dict[ir.BodyNode, int] = field(default_factory=dict[ir.BodyNode, int])

    def run(self) -> tuple[ir.BodyNode, ...] | None:
        """The body; None if it is too long."""
        found: list[list[int]] = []
        for node in self.kernel.body:
            found.append(self._written(node, found))
            if len(self.body) + len(self.stores) > NODES:
                return None
        return _without_unused((*self.body, *self.stores))

    def _written(self, node: ir.BodyNode, found: Sequence[Sequence[int]]) -> list[int]:
        """Where the node's value is at each point."""
        if isinstance(node, ir.Reduce):
            total, *terms = found[node.operand]
            for term in terms:
                total = self._put(ir.Op(_FOLDS[node.kind], node.dtype, (total, term)))
            if not self.is_whole:
                total = self._put(replace(node, operand=total))
            return [total] * len(self.each)
        places: list[int] = []
        for number, at in enumerate(self.each):
            operands = {place: found[place][number] for place in ir.operands_of(node)}
            moved = ir.with_operands(node, operands)
            if isinstance(moved, ir.Indexed):
                index = ix.simplify(ex.substitute(moved.index, at), _ranges(self.kernel))
                moved = replace(moved, index=index)
            places.append(self._place_of(moved))
        return places

    def _place_of(self, node: ir.BodyNode) -> int:
        if isinstance(node, ir.Store):
            if node not in self.stores:
                self.stores.append(node)
            return -1
        if isinstance(node, ir.Op) and node.name == "where" and node.operands[0] in self.known:
            return node.operands[1 if self.known[node.operands[0]] else 2]
        place = self._put(node)
        if isinstance(node, ir.Op) and place not in self.known:
            self._conclude(node, place)
        return place

    def _put(self, node: ir.BodyNode) -> int:
        place = self._places.get(node)
        if place is None:
            place = self._places[node] = len(self.body)
            self.body.append(node)
        return place

    def _conclude(self, node: ir.Op, place: int) -> None:
        """Whether a comparison of places holds, and what follows of it."""
        if node.name in _COMPARISONS:
            first, second = (ir.place_of(self.body[operand]) for operand in node.operands)
            if isinstance(first, Int) and isinstance(second, Int):
                sign = (first.value > second.value) - (first.value < second.value)
                self.known[place] = sign in _COMPARISONS[node.name]
        elif node.dtype == ir.BOOL and all(operand in self.known for operand in node.operands):
            values = [self.known[operand] for operand in node.operands]
            if node.name in ("and", "or"):
                self.known[place] = (all if node.name == "and" else any)(values)
            elif node.name == "not":
                self.known[place] = not values[0]


def _ranges(kernel: ir.Kernel) -> ix.Ranges:
    """What is known of sizes and of loops."""
    spaces = {"p": kernel.pointwise, "r": kernel.reduction}
    extents = {
        f"{prefix}{place}": extent
        for prefix, space in spaces.items()
        for place, extent in enumerate(space)
    }
    return ix.Ranges(dict.fromkeys(kernel.symbols, (1, None)), extents)


def _without_unused(body: Sequence[ir.BodyNode]) -> tuple[ir.BodyNode, ...]:
    """The stores, and what they need."""
    needed: set[int] = set()
    for place in reversed(range(len(body))):
        if isinstance(body[place], ir.Store) or place in needed:
            needed.update((place, *ir.operands_of(body[place])))
    moved = {old: new for new, old in enumerate(sorted(needed))}
    return tuple(ir.with_operands(body[old], moved) for old in moved)
