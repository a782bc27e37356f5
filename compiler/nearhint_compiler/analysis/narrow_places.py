"""Places that data names in 32 bits, where indices have no more: a GPU computes in 32 at a time.

A table then has fewer than 2^31 elements, so that a place in it fits. What is outside is moved
inside whatever its upper half was: no value leads out of the table (`ir.nodes`).
"""

from __future__ import annotations

from nearhint_compiler.ir import nodes as ir

_NARROW = frozenset({"add", "sub", "mul", "neg", "min", "max", "where"})
_COMPARED = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


def places_alone(kernel: ir.Kernel) -> frozenset[int]:
    """The positions of what nothing but places is computed from.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> sorted(places_alone(parse_kernel('''(kernel (symbols k0 k1) (pointwise k0) (reduction)
    ...     (params (in i64) (in f32) (out f32)) (body (load 0 p0) (const i64 0x1) (add i64 0 1)
    ...     (gather 1 0 1 k1 2) (store 2 p0 3)))''')))
    [0, 1, 2]
    """
    found, others = set[int](), set[int]()
    for position in reversed(range(len(kernel.body))):
        node = kernel.body[position]
        is_place = isinstance(node, ir.Gather) or position in found - others
        (found if is_place else others).update(ir.operands_of(node))
    return frozenset(found - others)


def with_narrow_places(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with places in i32, which is no legal IR; the same where data names none."""
    if not any(isinstance(node, ir.Gather) for node in kernel.body):
        return kernel
    alone = places_alone(kernel)
    dtypes = ir.dtypes_of(kernel)
    body: list[ir.BodyNode] = []
    moved: dict[int, int] = {}
    narrow: dict[int, int] = {}

    def in_32_bits(position: int) -> int:
        """The node in i32, cast where it is not computed so."""
        if position not in narrow:
            body.append(ir.Op("cast", "i32", (moved[position],)))
            narrow[position] = len(body) - 1
        return narrow[position]

    for position, node in enumerate(kernel.body):
        match node:
            case ir.Op(name, "i64", operands) if position in alone and name in _NARROW:
                given = tuple(
                    moved[each] if dtypes[each] == ir.BOOL else in_32_bits(each)
                    for each in operands
                )
                body.append(ir.Op(name, "i32", given))
                narrow[position] = len(body) - 1
            case ir.Op(name, _, operands) if (
                position in alone and name in _COMPARED and dtypes[operands[0]] == "i64"
            ):
                body.append(ir.Op(name, ir.BOOL, tuple(map(in_32_bits, operands))))
            case ir.Op("cast", "i64", (operand,)) if position in alone and (
                dtypes[operand] == "i32"
            ):
                narrow[position] = moved[operand]
            case ir.Const("i64", bits) if position in alone and bits in (0, (1 << 64) - 1):
                body.append(ir.Const("i32", bits & 0xFFFFFFFF))
                narrow[position] = len(body) - 1
            case ir.Gather(param, index, stride, size, place):
                body.append(ir.Gather(param, index, stride, size, in_32_bits(place)))
            case _:
                body.append(ir.with_operands(node, moved))
        moved[position] = narrow.get(position, len(body) - 1)
    return ir.Kernel(kernel.symbols, kernel.pointwise, kernel.reduction, kernel.params, tuple(body))
