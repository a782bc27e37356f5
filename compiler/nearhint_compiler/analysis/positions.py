"""What is computed of positions: an index expression, where it is a sum or a difference of them.

Such a number is a position, too, and lanes that are neighbours have neighbours of it, or the same
ones in reverse. Compared with what is one number for all lanes, it says which lanes these are; a
float of it is one of 32 bits where the first lane and the last have no more. So neither takes
vectors of 64 bits.
"""

from __future__ import annotations

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.analysis.loops import variables_of
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

COMPARED = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_STEPS = (ex.ONE, ex.Int(-1))


def positions_of(kernel: ir.Kernel) -> dict[int, Expr]:
    """What is a position, or an integer, by its place in the body.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> found = positions_of(parse_kernel('''(kernel (symbols k0 k1) (pointwise k0 k1)
    ...     (reduction) (params (out f32)) (body (iota p0) (iota p1) (sub i64 0 1)
    ...     (cast f32 2) (store 0 (+ (* k1 p0) p1) 3)))'''))
    >>> ex.to_text(found[2])
    '(+ p0 (* -1 p1))'
    """
    found: dict[int, Expr] = {}
    for place, node in enumerate(kernel.body):
        made = ir.place_of(node)
        if isinstance(node, ir.Op) and node.dtype == "i64":
            made = _made_of(node, [found.get(operand) for operand in node.operands])
        if made is not None:
            found[place] = made
    return found


def _made_of(node: ir.Op, given: list[Expr | None]) -> Expr | None:
    known = [each for each in given if each is not None]
    if len(known) < len(given):
        return None
    match node.name:
        case "add":
            return ex.add(*known)
        case "sub":
            return ex.sub(*known)
        case "neg":
            return ex.mul(-1, *known)
        case _:
            return None


def as_first_and_step(position: Expr, variable: str) -> Expr | None:
    """By how much lanes along `variable` differ: one, or minus one; else None."""
    stride = access(position, variable).stride
    return stride if stride in _STEPS else None


def light_along(kernel: ir.Kernel, variable: str) -> frozenset[int]:
    """Positions along `variable` of which nobody needs vectors of 64 bits."""
    positions, loops = positions_of(kernel), variables_of(kernel)
    light = {
        place
        for place, position in positions.items()
        if variable in loops[place] and as_first_and_step(position, variable) is not None
    }
    for place, node in reversed(list(enumerate(kernel.body))):
        for operand in light.intersection(ir.operands_of(node)):
            is_light = place in light
            if isinstance(node, ir.Op) and node.name in COMPARED:
                is_light = any(variable not in loops[each] for each in node.operands)
            elif isinstance(node, ir.Op) and node.name == "cast":
                is_light = node.dtype == "f32"
            if not is_light:
                light.discard(operand)
    return frozenset(light)
