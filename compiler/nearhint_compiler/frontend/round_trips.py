"""Round trips: a cast back to the type that an exact cast came from is no operation.

Ops on half floats compute in f32 and round their result, so a chain of them is full of such pairs.
And a small integer reaches f32 by way of a half float as it does without: dequantisation.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.ir import nodes as ir

_EXACT = frozenset(
    {("f32", "f64"), *((low, wide) for low in ir.LOW_PRECISION for wide in ir.FLOATS)}
)
"""(from, to): every value of the first is one of the second."""


_EXACT_INTEGERS = frozenset({("i8", "bf16"), ("i8", "f16"), ("u8", "bf16"), ("u8", "f16")})
"""(from, to): every integer of the first is a number of the second."""


def without_round_trips(
    body: Sequence[ir.BodyNode], params: Sequence[ir.Param]
) -> tuple[ir.BodyNode, ...]:
    """The body with such casts passed by; they stay in it, used by nobody."""
    same = {position: position for position in range(len(body))}
    rewritten: list[ir.BodyNode] = []
    for position, node in enumerate(body):
        node = ir.with_operands(node, same)
        rewritten.append(node)
        if isinstance(node, ir.Op) and node.name == "cast":
            same[position] = _origin(rewritten, position, params)
    return tuple(rewritten)


def _origin(body: Sequence[ir.BodyNode], position: int, params: Sequence[ir.Param]) -> int:
    """Where the value of this cast was first; the cast itself if it changes anything."""
    outer = body[position]
    (operand,) = ir.operands_of(outer)
    inner = body[operand]
    if not isinstance(inner, ir.Op) or inner.name != "cast" or not isinstance(outer, ir.Op):
        return position
    (source,) = inner.operands
    dtype = _dtype(body[source], params)
    if dtype != outer.dtype:
        return position
    is_back = (dtype, inner.dtype) in _EXACT
    return source if is_back or _is_exact_in(body, source, inner.dtype, params) else position


def _is_exact_in(
    body: Sequence[ir.BodyNode], position: int, narrow: str, params: Sequence[ir.Param]
) -> bool:
    """Whether a float was an integer before, and one that the narrower float holds."""
    match body[position]:
        case ir.Op("cast", _, (source,)):
            return (_dtype(body[source], params), narrow) in _EXACT_INTEGERS
        case _:
            return False


def _dtype(node: ir.BodyNode, params: Sequence[ir.Param]) -> str:
    match node:
        case ir.Load() | ir.Gather() | ir.Scalar():
            return params[node.param].dtype
        case ir.Op() | ir.Reduce() | ir.Scan() | ir.Const():
            return node.dtype
        case _:
            return ""
