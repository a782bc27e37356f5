"""How far apart neighbouring points of the iteration space lie in memory: what coalescing needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from nearhint_compiler.analysis.loops import variables_of
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES

REMEMBERED = 256
"""Indices whose steps are remembered: facts ask for those of each access several times."""


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store: bytes an element, bytes in all, and strides along the loop variables.

    Strides are in elements. `index` is where it is, and for what is gathered a guess (`guessed`).
    """

    itemsize: int
    size_bytes: int
    strides: Mapping[str, int]
    index: Expr
    dtype: str
    is_store: bool = False

    def is_contiguous(self, variable: str) -> bool:
        """Whether neighbours along `variable` are neighbours in memory."""
        return self.strides.get(variable, 0) == 1


def guessed(node: ir.Gather, place_variables: Iterable[str]) -> Expr:
    """Where an element is gathered, as if places were numbers of a point: no two are neighbours.

    `place_variables` are the loop variables that its place depends on.
    """
    apart = ex.Int(2) if node.stride == ex.ONE else node.stride
    place = ex.add(*(ex.symbol(name) for name in sorted(place_variables)), 0)
    return ex.add(node.index, ex.mul(apart, place))


def accesses(kernel: ir.Kernel, sizes: Mapping[str, int]) -> tuple[Access, ...]:
    """Every load and store of `kernel` at `sizes`; strides are taken at the space's first point.

    Behind floor divisions and moduli strides change along the way, so they are for ranking only.
    """
    extents = {
        f"{prefix}{number}": ex.evaluate(extent, sizes)
        for prefix, space in (("p", kernel.pointwise), ("r", kernel.reduction))
        for number, extent in enumerate(space)
    }
    origin = {**sizes, **dict.fromkeys(extents, 0)}
    found: list[Access] = []
    variables = variables_of(kernel)
    for node in kernel.body:
        if isinstance(node, ir.Access):
            index = node.index
            if isinstance(node, ir.Gather):
                index = guessed(node, variables[node.place])
            start = ex.evaluate(index, origin)
            strides = {
                name: ex.evaluate(index, {**origin, name: 1}) - start
                for name in ex.symbols_of(index)
                if name in extents
            }
            dtype = kernel.params[node.param].dtype
            itemsize = DTYPES[dtype]
            points = prod(extents[name] for name in strides)
            is_store = isinstance(node, ir.Store)
            found.append(Access(itemsize, itemsize * points, strides, index, dtype, is_store))
    return tuple(found)


def contiguous_bytes(found: Sequence[Access], variable: str) -> int:
    """How many bytes, summed over the accesses, lie next to each other along `variable`."""
    return sum(access.size_bytes for access in found if access.is_contiguous(variable))


@lru_cache(maxsize=REMEMBERED)
def steps_of(index: Expr) -> tuple[Expr, ...]:
    """How far apart neighbours along each loop are, wherever they are.

    >>> [ex.to_text(step) for step in steps_of(ex.parse("(+ (* k1 p0) p1)"))]
    ['k1', '1']
    """
    names = [name for name in ex.symbols_of(index) if name[0] in "pr"]
    following = [{name: ex.add(ex.symbol(name), 1)} for name in names]
    return tuple(ex.sub(ex.substitute(index, each), index) for each in following)
