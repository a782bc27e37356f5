"""Jumps: what leaps by a whole number where its operand moves by a digit, as floor does.

Of half floats a good part lies just where that happens: a tenth of each fifth multiple of 1/2 is
whole. So whoever computes what jumps has to round what it jumps from as eager does, in f32, where
that is determined: one operation on what a Kernel is given.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.ir import nodes as ir

_JUMPS = frozenset({"floor", "ceil", "trunc", "round"})
_DIVISIONS = frozenset({"floordiv", "truncdiv", "fmod", "mod"})
"""They jump where the quotient of their two operands is whole."""
_COMPARED = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_ROUNDED = frozenset({"add", "sub", "mul", "div"})
_SETTLED = frozenset({*_ROUNDED, *_JUMPS, "abs", "neg", "max", "min", "cast", "where"})
"""Each of which has one right answer in f32."""


def before_jumps(kernel: ir.Kernel) -> frozenset[int]:
    """The positions of operations in f32 on what is given, whose results jumps are taken of."""
    found: set[int] = set()
    for node in kernel.body:
        match node:
            case ir.Op(_, _, (operand,)) if _is_jump(node):
                source = kernel.body[operand]
                if (
                    isinstance(source, ir.Op)
                    and (source.name in _ROUNDED and source.dtype == "f32")
                    and all(is_given(kernel.body, each) for each in source.operands)
                ):
                    found.add(operand)
            case _:
                continue
    return frozenset(found)


def leading_to_jumps(kernel: ir.Kernel) -> frozenset[int]:
    """The positions of operations from whose results, by others point by point, a jump is taken.

    The largest of what is divided by its own maximum is 1, and 255 times that is no 254.
    """
    found: set[int] = set()
    for position in reversed(range(len(kernel.body))):
        node = kernel.body[position]
        if isinstance(node, ir.Op) and (position in found or _is_jump(node) or _divides(node)):
            found.update(node.operands)
    return frozenset(found)


def may_go_either_way(kernel: ir.Kernel) -> bool:
    """Whether a jump is taken of something, or floats are compared that were computed: rounded at
    another place, they may fall on the other side.
    """
    dtypes = ir.dtypes_of(kernel)
    return bool(leading_to_jumps(kernel)) or any(
        isinstance(node, ir.Op)
        and node.name in _COMPARED
        and any(
            dtypes[operand] in ir.FLOATS and not is_given(kernel.body, operand)
            for operand in node.operands
        )
        for node in kernel.body
    )


def computed_before_jumps(kernel: ir.Kernel) -> frozenset[int]:
    """The positions of floats from which a jump is taken, and which more than one operation on what
    is given has made: in another order these lead to another last digit.
    """
    known = before_jumps(kernel)
    return frozenset(
        operand
        for node in kernel.body
        if isinstance(node, ir.Op) and _is_jump(node)
        for operand in node.operands
        if operand not in known and not is_given(kernel.body, operand)
    )


def quotients_before_jumps(kernel: ir.Kernel) -> frozenset[int]:
    """The positions of f32 quotients that lead to jumps, and whose digits eager's are, if rounded.

    They are of what is given, its extremes, and single operations: no sum, whose order is anyone's,
    and no function that is approximated.
    """
    leading, settled = leading_to_jumps(kernel), set[int]()
    for position, node in enumerate(kernel.body):
        is_settled = is_given(kernel.body, position) or (
            (isinstance(node, ir.Op) and node.name in _SETTLED)
            or (isinstance(node, ir.Reduce) and node.kind in ("max", "min"))
        )
        if is_settled and settled.issuperset(ir.operands_of(node)):
            settled.add(position)
    return frozenset(
        position
        for position in leading & settled
        if isinstance(node := kernel.body[position], ir.Op)
        and (node.name, node.dtype) == ("div", "f32")
    )


def _is_jump(node: ir.Op) -> bool:
    return node.name in _JUMPS or (node.name == "cast" and node.dtype in ir.INTEGERS)


def _divides(node: ir.Op) -> bool:
    return node.name in _DIVISIONS and node.dtype in ir.FLOATS


def is_given(body: Sequence[ir.BodyNode], position: int) -> bool:
    """Whether a node is what was loaded, of its size, or made of such integers: not yet rounded."""
    match body[position]:
        case ir.Op(name, dtype, operands) if dtype in ir.INTEGERS and name != "cast":
            return all(is_given(body, operand) for operand in operands)
        case ir.Op("cast" | "neg" | "abs", _, (operand,)):
            return is_given(body, operand)
        case node:
            return isinstance(node, ir.Load | ir.Gather | ir.Scalar | ir.Const | ir.Iota)
