"""Which args may be looked for by groups of neighbours: the best group first, then its element.

What is kept is the best value of each group and where the group begins, so that places are compared
once a group and not once an element. Which element it was is found when a row is done: the best
group is read again, and holds the best value bit for bit, if nothing was rounded on the way there.
"""

from __future__ import annotations

from nearhint_compiler.analysis.branches import branches
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

EXACT = frozenset({"cast", "neg", "abs", "min", "max"})
"""Operations that give the same bits wherever they are compiled: none may become part of another,
as a product does of a sum."""


def has_arg_groups(kernel: ir.Kernel, position: int) -> bool:
    """Whether the node at `position` is an arg over one loop, of elements that can be read again.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> kernel = parse_kernel('''(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
    ...     (params (in f32) (out i64))
    ...     (body (load 0 (+ (* k1 p0) r0)) (arg max f32 0 r0) (store 1 p0 1)))''')
    >>> [has_arg_groups(kernel, place) for place in range(3)]
    [False, True, False]
    """
    node = kernel.body[position]
    if not isinstance(node, ir.Arg) or len(kernel.reduction) > 1 or node.index != ex.symbol("r0"):
        return False
    found, elements, conditional = [node.operand], ir.per_element(kernel), branches(kernel)
    while found:
        place = found.pop()
        match kernel.body[place]:
            case ir.Load():
                if place in conditional:
                    return False
            case ir.Op(name, _, operands) if name in EXACT:
                found += operands
            case _ if elements[place]:
                return False
            case _:
                pass
    return True
