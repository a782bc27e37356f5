"""Nested reductions that one walk over the row can compute.

A reduce of what an earlier reduce went into wants a walk of its own. For two patterns one walk is
enough, with accumulators that follow the result of the first reduce as it changes:

    softmax   m = max x,  s = sum exp(x - m)            Milakov and Gimelshein, arXiv:1805.02867
    variance  t = sum x,  q = sum (x - t / n)^2         Chan et al., Am. Stat. 37(3), 1983

Where m is infinite the sum is what two walks give: NaN, since a term is inf - inf. With the shift
of logsumexp (0 for an infinite m) it is 0 for -inf and inf for +inf.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

SOFTMAX, SHIFTED_SOFTMAX, VARIANCE = "softmax", "shifted_softmax", "variance"

Completed: TypeAlias = tuple[type[ir.Reduce | ir.Arg | ir.Scan], ...]
WALKED: Completed = (ir.Reduce, ir.Arg)
"""The nodes that want a walk over their operand before they are known."""
SHARED: Completed = (*WALKED, ir.Scan)
"""The same where a walk covers a part of a row: scans start from the totals of those before it."""


@dataclass(frozen=True, slots=True)
class Online:
    """The reduces at `first` and `second`, both over the elements of node `operand`."""

    kind: str
    first: int
    second: int
    operand: int


def online_pairs(kernel: ir.Kernel) -> tuple[Online, ...]:
    """The pairs of reduces of `kernel` that one walk computes, in order, no reduce in two."""
    found: list[Online] = []
    used: set[int] = set()
    for pair in _pairs(kernel):
        if not used & {pair.first, pair.second}:
            used |= {pair.first, pair.second}
            found.append(pair)
    return tuple(found)


def walk_levels(
    kernel: ir.Kernel, pairs: tuple[Online, ...], completed: Completed = WALKED
) -> tuple[int, ...]:
    """As `ir.levels`, where the reduces of a pair are complete after the same walk.

    Nodes of the kinds `completed` are known after a walk over their operand.
    """
    first_of: Mapping[int, int] = {pair.second: pair.first for pair in pairs}
    found: list[int] = []
    for position, node in enumerate(kernel.body):
        if position in first_of:
            found.append(found[first_of[position]])
            continue
        below = max((found[operand] for operand in ir.operands_of(node)), default=0)
        found.append(below + 1 if isinstance(node, completed) else below)
    return tuple(found)


def depth_of(kernel: ir.Kernel, completed: Completed = WALKED) -> int:
    """The number of walks that complete something."""
    levels = walk_levels(kernel, online_pairs(kernel), completed)
    reduces = [p for p, node in enumerate(kernel.body) if isinstance(node, completed)]
    return max((levels[p] for p in reduces), default=0)


def walks_of(kernel: ir.Kernel, completed: Completed = WALKED) -> int:
    """The number of walks over a row that is not held in registers, those for stores included."""
    levels, elements = walk_levels(kernel, online_pairs(kernel), completed), ir.per_element(kernel)
    stores = [p for p, node in enumerate(kernel.body) if isinstance(node, ir.Store) and elements[p]]
    return max([depth_of(kernel, completed), *(levels[p] + 1 for p in stores)])


def _pairs(kernel: ir.Kernel) -> Iterator[Online]:
    body = kernel.body
    for position, node in enumerate(body):
        if not isinstance(node, ir.Reduce) or node.kind != "sum" or node.dtype not in ir.FLOATS:
            continue
        match body[node.operand]:
            case ir.Op("exp", _, (difference,)):
                yield from _softmax(kernel, position, body[difference])
            case ir.Op("mul", _, (left, right)) if left == right:
                yield from _variance(kernel, position, body[left])
            case _:
                continue


def _softmax(kernel: ir.Kernel, second: int, difference: ir.BodyNode) -> Iterator[Online]:
    match difference:
        case ir.Op("sub", _, (operand, shift)):
            match kernel.body[shift]:
                case ir.Reduce("max", _, largest) if largest == operand:
                    yield Online(SOFTMAX, shift, second, operand)
                case ir.Op("where", _, (condition, zero, first)) if _is_infinite(
                    kernel, condition, first
                ) and _is_constant(kernel, zero, 0.0):
                    match kernel.body[first]:
                        case ir.Reduce("max", _, largest) if largest == operand:
                            yield Online(SHIFTED_SOFTMAX, first, second, operand)
                        case _:
                            return
                case _:
                    return
        case _:
            return


def _is_infinite(kernel: ir.Kernel, condition: int, value: int) -> bool:
    match kernel.body[condition]:
        case ir.Op("isinf", _, (operand,)):
            return operand == value
        case _:
            return False


def _variance(kernel: ir.Kernel, second: int, deviation: ir.BodyNode) -> Iterator[Online]:
    match deviation:
        case ir.Op("sub", _, (operand, mean)):
            match kernel.body[mean]:
                case ir.Op("div", _, (first, count)) if _counts_the_row(kernel, count):
                    match kernel.body[first]:
                        case ir.Reduce("sum", _, summed) if summed == operand:
                            yield Online(VARIANCE, first, second, operand)
                        case _:
                            return
                case _:
                    return
        case _:
            return


def _counts_the_row(kernel: ir.Kernel, position: int) -> bool:
    """Whether a node is the number of elements of a row."""
    length = ex.product(kernel.reduction)
    match kernel.body[position]:
        case ir.Op("cast", _, (inner,)):
            return kernel.body[inner] == ir.Iota(length)
        case _:
            return isinstance(length, ex.Int) and _is_constant(
                kernel, position, float(length.value)
            )


def _is_constant(kernel: ir.Kernel, position: int, value: float) -> bool:
    match kernel.body[position]:
        case ir.Const("f32", bits):
            return struct.unpack("<f", bits.to_bytes(4, "little")) == (value,)
        case ir.Const("f64", bits):
            return struct.unpack("<d", bits.to_bytes(8, "little")) == (value,)
        case _:
            return False
