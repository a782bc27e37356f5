"""What lanes beyond a row hold: the neutral value of what is reduced, where a load can bring it.

A masked load says what its lanes without an element are. Where nothing but casts lies between it
and a reduce, that is the reduce's neutral value, and accumulators need no mask of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from nearhint_compiler.codegen.triton.text import neutral_text
from nearhint_compiler.ir import nodes as ir

ZEROS = frozenset({"0", "0.0"})
"""Neutral values that a load brings if it is asked for nothing else."""
_WITH_INFINITY = frozenset({"f64", "f32", "f16", "bf16"})
_NUMBERS = _WITH_INFINITY | {"i64", "i32", "i16", "i8", "u8"}


def loaded(kernel: ir.Kernel, position: int) -> int | None:
    """The load whose value a node is, casts between numbers aside."""
    node = kernel.body[position]
    while isinstance(node, ir.Op) and node.name == "cast" and node.dtype in _NUMBERS:
        (position,) = node.operands
        node = kernel.body[position]
    is_number = isinstance(node, ir.Load) and kernel.params[node.param].dtype in _NUMBERS
    return position if is_number else None


def neutrals(kernel: ir.Kernel) -> Mapping[int, str]:
    """What loads of a largest or least element bring beyond the row, by their positions.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> neutrals(parse_kernel('''(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
    ...     (params (in bf16) (out f32)) (body (load 0 (+ (* k1 p0) r0)) (cast f32 0)
    ...     (reduce max f32 1) (store 1 p0 2)))'''))
    {0: 'float("-inf")'}
    """
    dtypes = ir.dtypes_of(kernel)
    found: dict[int, str] = {}
    for node in kernel.body:
        if not isinstance(node, ir.Reduce | ir.Arg) or node.kind not in ("max", "min"):
            continue
        position, place = loaded(kernel, node.operand), node.operand
        if position is None or not {node.dtype, dtypes[position]} <= _WITH_INFINITY:
            continue
        kinds = {dtypes[place]}
        while place != position:
            (place,) = ir.operands_of(kernel.body[place])
            kinds.add(dtypes[place])
        if kinds <= _WITH_INFINITY:
            found.setdefault(position, neutral_text(node.kind, node.dtype))
    return found
