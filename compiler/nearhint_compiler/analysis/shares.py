"""Shares of a sum: exponentials of a log-softmax, which are terms of its sum divided by the sum.

exp(a - log(s)) is exp(a) / s where s is the sum of exp(a). It is so in floats, too, where a is no
more than 0: no term is infinite, and less is lost than in an exponential of what was rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nearhint_compiler.ir import nodes as ir


@dataclass(frozen=True, slots=True)
class Share:
    """The nodes of the term and of the sum that a share is of."""

    term: int
    total: int


def shares_of_sums(kernel: ir.Kernel) -> Mapping[int, Share]:
    """The shares among the nodes of `kernel`, by position.

    >>> from nearhint_compiler.ir.text import parse_kernel
    >>> shares_of_sums(parse_kernel('''(kernel (symbols k0 k1) (pointwise k0) (reduction k1)
    ...     (params (in f32) (out f32)) (body (load 0 (+ (* k1 p0) r0)) (reduce max f32 0)
    ...     (sub f32 0 1) (exp f32 2) (reduce sum f32 3) (log f32 4) (sub f32 2 5) (exp f32 6)
    ...     (store 1 (+ (* k1 p0) r0) 7)))'''))
    {7: Share(term=3, total=4)}
    """
    found: dict[int, Share] = {}
    for place, node in enumerate(kernel.body):
        match node:
            case ir.Op("exp", "f32", (logarithm,)) if share := _share(kernel, logarithm):
                found[place] = share
            case _:
                continue
    return found


def _share(kernel: ir.Kernel, logarithm: int) -> Share | None:
    """What a node is the logarithm of, if it is that of a share."""
    match kernel.body[logarithm]:
        case ir.Op("sub", _, (below, shift)):
            total = _operand(kernel, shift, "log")
        case _:
            return None
    match kernel.body[total] if total is not None else None:
        case ir.Reduce("sum", _, term):
            is_of_it = _operand(kernel, term, "exp") == below and _is_below(kernel, below)
            return Share(term, total) if is_of_it and total is not None else None
        case _:
            return None


def _operand(kernel: ir.Kernel, place: int, name: str) -> int | None:
    """The operand of a node, if it is this op."""
    match kernel.body[place]:
        case ir.Op(found, _, (operand,)) if found == name:
            return operand
        case _:
            return None


def _is_below(kernel: ir.Kernel, place: int) -> bool:
    """Whether a node is what its operand has less than the most along the row."""
    match kernel.body[place]:
        case ir.Op("sub", _, (value, most)):
            return kernel.body[most] == ir.Reduce("max", "f32", value)
        case _:
            return False
