"""Accesses whose elements are a few apart along a loop, or in reverse: vectors that are shuffled.

Coordinates of points, pairs that are rotated and the two numbers of a byte lie so. Vectors of
neighbours have a lane's element and what lies between; a load leaves that out, and stores are one
where each element between is one of theirs.
"""

from __future__ import annotations

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

FEW = (2, 3, 4)
"""How far apart elements are: a vector takes as many loads, and one shuffle fewer."""
REVERSED = -1


def apart(index: Expr, variable: str) -> int:
    """The stride along a loop, where it is `REVERSED` or one of `FEW`; else 0.

    >>> apart(ex.add(ex.mul(3, ex.symbol("p0")), ex.symbol("p1")), "p0")
    3
    """
    stride = access(index, variable).stride
    is_known = isinstance(stride, ex.Int) and stride.value in (REVERSED, *FEW)
    return stride.value if isinstance(stride, ex.Int) and is_known else 0


def stored_together(kernel: ir.Kernel, variable: str) -> dict[int, tuple[int, ...]]:
    """Stores that have all elements between theirs: the first, by its position -> all, in order.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> stored_together(parse_kernel('''(kernel (symbols k0) (pointwise k0) (reduction)
    ...     (params (in f32) (out f32)) (body (load 0 p0) (neg f32 0)
    ...     (store 0 (+ (* 2 p0) 1) 0) (store 0 (* 2 p0) 1)))'''), "p0")
    {3: (3, 2)}
    """
    stores = {
        (node.param, node.index): position
        for position, node in enumerate(kernel.body)
        if isinstance(node, ir.Store)
    }
    found: dict[int, tuple[int, ...]] = {}
    for (param, index), position in stores.items():
        stride = apart(index, variable)
        wanted = [(param, ex.add(index, step)) for step in range(stride)]
        if wanted and all(stores.keys() >= {each} for each in wanted):
            found[position] = tuple(stores[each] for each in wanted)
    taken = set[int]()
    for first, all_of_them in list(found.items()):
        if taken.isdisjoint(all_of_them):
            taken.update(all_of_them)
        else:
            del found[first]
    return found


def shuffled(kernel: ir.Kernel, variable: str) -> frozenset[int]:
    """The positions of accesses that are vectors of neighbours, shuffled."""
    loads = {
        position
        for position, node in enumerate(kernel.body)
        if isinstance(node, ir.Load) and apart(node.index, variable)
    }
    stores = stored_together(kernel, variable).values()
    return frozenset(loads.union(*stores))
