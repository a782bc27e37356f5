"""Multiples: how many elements make vectors where sizes are promised to be multiples of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.program import DTYPES

VECTOR_BYTES, SIZE_MULTIPLE = 16, 16


def size_multiple(kernel: ir.Kernel) -> int:
    """What promised sizes are multiples of: 16, or as many as fill vectors of what is reduced.

    Rows of 3000 elements of two bytes are whole vectors of eight, and so begin where vectors may.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> size_multiple(parse_kernel('''(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
    ...     (params (in bf16) (out f32)) (body (load 0 (+ (* k1 p0) r0)) (cast f32 0)
    ...     (reduce sum f32 1) (store 1 p0 2)))'''))
    8
    """
    if not kernel.reduction:
        return SIZE_MULTIPLE
    sizes = [
        DTYPES[kernel.params[node.param].dtype]
        for node in kernel.body
        if isinstance(node, ir.Access)
        and any(map(ir.is_reduction_variable, ex.symbols_of(node.index)))
    ]
    return min(SIZE_MULTIPLE, max(1, VECTOR_BYTES // min(sizes, default=1)))


def row_multiple(
    kernel: ir.Kernel, most: int, promised: Mapping[str, int] = MappingProxyType({})
) -> int:
    """The power of two, up to `most`, that the innermost pointwise extent is a multiple of at all
    sizes, where those `promised` are multiples of such numbers.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> kernel = parse_kernel('''(kernel (symbols k0) (pointwise 7 (* 12 k0)) (reduction)
    ...     (params (in f32) (out f32)) (body (load 0 p1) (store 1 (+ (* 12 k0 p0) p1) 0)))''')
    >>> row_multiple(kernel, 16), row_multiple(kernel, 16, {"k0": 2})
    (4, 8)
    """
    whole = {name: ex.mul(multiple, ex.symbol(name)) for name, multiple in promised.items()}
    length = ex.substitute(kernel.pointwise[-1], whole) if kernel.pointwise else ex.ONE
    while most > 1 and ex.mod(length, most) != ex.ZERO:
        most //= 2
    return most
