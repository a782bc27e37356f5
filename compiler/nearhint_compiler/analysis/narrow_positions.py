"""What is computed of positions in 32 bits, where indices have no more.

A position is then at most 2^30 (`index_width` doubles what it bounds), so that a difference of two
fits. A GPU subtracts in 32 bits at a time, and makes a float of 64 at a quarter of the pace: of a
softmax of scores less by how far apart their tokens are, that was a fifth of the time.
"""

from __future__ import annotations

from nearhint_compiler.ir import nodes as ir

LIMIT = 2**30
"""What positions, and constants beside them, are at most."""
_SUMS = frozenset({"add", "sub"})
_KEPT = frozenset({"abs", "neg", "min", "max", "where"})
"""Whose results are no larger than their operands."""
_LEFT = frozenset({"and", "mod"})
_PARTED = _LEFT | {"shr", "floordiv"}
"""Whose results are no larger than their operands, if the second is a number that is not negative:
what is left of a place beside parts of so many, and which part it is in.
"""
_NARROW = frozenset({"i32", "i16", "i8", "u8"})
_COMPARED = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


def with_narrow_positions(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with sums of two positions, and what is no larger, in i32; else the same. So are
    positions compared with what was read in as few bits.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> far = with_narrow_positions(parse_kernel('''(kernel (symbols k0 k1) (pointwise k0 k1)
    ...     (reduction) (params (out f32)) (body (iota p0) (iota p1) (sub i64 0 1) (abs i64 2)
    ...     (cast f32 3) (store 0 (+ (* k1 p0) p1) 4)))'''))
    >>> [node.name for node in far.body if isinstance(node, ir.Op) and node.dtype == "i32"]
    ['cast', 'cast', 'sub', 'abs']
    """
    if not any(isinstance(node, ir.Iota) for node in kernel.body):
        return kernel
    dtypes = ir.dtypes_of(kernel)
    sizes = _in_positions(kernel, dtypes)
    computed = {place for place in sizes if isinstance(kernel.body[place], ir.Op)}
    widened = {
        place: node.operands[0]
        for place, node in enumerate(kernel.body)
        if isinstance(node, ir.Op)
        and (node.name, node.dtype) == ("cast", "i64")
        and dtypes[node.operands[0]] in _NARROW
    }
    body: list[ir.BodyNode] = []
    wide: dict[int, int] = {}
    narrow: dict[int, int] = {}

    def add(node: ir.BodyNode) -> int:
        body.append(node)
        return len(body) - 1

    def in_32_bits(place: int) -> int:
        if dtypes[place] == ir.BOOL:
            return wide[place]
        if place not in narrow:
            node = kernel.body[place]
            given = wide[widened.get(place, place)]
            narrow[place] = add(
                ir.Const("i32", node.bits & 0xFFFFFFFF)
                if isinstance(node, ir.Const)
                else ir.Op("cast", "i32", (given,))
            )
        return narrow[place]

    def in_64_bits(place: int) -> int:
        if place not in wide:
            wide[place] = add(ir.Op("cast", "i64", (narrow[place],)))
        return wide[place]

    for place, node in enumerate(kernel.body):
        match node:
            case ir.Op(name, dtype, operands) if place in computed:
                narrow[place] = add(ir.Op(name, "i32", tuple(map(in_32_bits, operands))))
            case ir.Op(name, dtype, operands) if (
                (name in _COMPARED or (name == "cast" and dtype != "i64"))
                and not sizes.keys().isdisjoint(operands)
                and not (computed | widened.keys()).isdisjoint(operands)
                and sizes.keys() | widened.keys() >= {*operands}
            ):
                wide[place] = add(ir.Op(name, dtype, tuple(map(in_32_bits, operands))))
            case _:
                wanted = {each: in_64_bits(each) for each in ir.operands_of(node)}
                wide[place] = add(ir.with_operands(node, wanted))
    return ir.Kernel(kernel.symbols, kernel.pointwise, kernel.reduction, kernel.params, tuple(body))


def _in_positions(kernel: ir.Kernel, dtypes: tuple[str, ...]) -> dict[int, int]:
    """What is made of positions alone and fits into 32 bits: how many times `LIMIT` it may be."""
    found: dict[int, int] = {}
    for place, node in enumerate(kernel.body):
        match node:
            case ir.Iota():
                found[place] = 1
            case ir.Const("i64", bits) if min(bits, (1 << 64) - bits) <= LIMIT:
                found[place] = 1
            case ir.Op(name, "i64", operands) if name in _SUMS | _KEPT:
                given = [each for each in operands if dtypes[each] != ir.BOOL]
                if found.keys() >= {*given}:
                    parts = [found[each] for each in given]
                    times = sum(parts) if name in _SUMS else max(parts)
                    if times <= 2:
                        found[place] = times
            case ir.Op(name, "i64", (given, by)) if name in _PARTED and given in found:
                match kernel.body[by]:
                    case ir.Const(_, bits) if bits <= (31 if name == "shr" else LIMIT):
                        found[place] = 1 if name in _LEFT else found[given]
                    case _:
                        continue
            case _:
                continue
    return found
