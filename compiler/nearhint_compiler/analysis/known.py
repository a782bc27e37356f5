"""What neighbouring rows have in common: computed along a row, and the same in the next one.

The scales of channels that lie innermost are such values: each row of channels would take their
roots and quotients again.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.analysis.loops import variables_of
from nearhint_compiler.ir import nodes as ir

_COSTLY = frozenset(
    (
        *("div", "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10"),
        *("log1p", "sigmoid", "tanh", "erf", "sin", "cos", "tan", "pow", "fmod", "mod", "floordiv"),
    )
)
"""What takes longer than to read a result from the first cache."""


@dataclass(frozen=True, slots=True)
class Known:
    """Along the loops `lane`, of a row's elements, and `down`, of rows: the last of the others.

    `positions` are the nodes that vary along a row and are the same for all rows; `kept`, those of
    them that something else uses. Rows `are_neighbours` if one ends where the next begins in all
    memory that varies along rows, and nothing else is one number a row.
    """

    lane: str
    down: str
    positions: tuple[int, ...]
    kept: tuple[int, ...]
    are_neighbours: bool


def known_of(kernel: ir.Kernel, lane: str) -> Known | None:
    """What rows along `lane` have in common; None if that is nothing worth keeping."""
    loops = [f"p{number}" for number in range(len(kernel.pointwise))]
    others = [name for name in loops if name != lane]
    if kernel.reduction or not others:
        return None
    down, variables = others[-1], variables_of(kernel)
    positions = [
        place
        for place, node in enumerate(kernel.body)
        if lane in variables[place]
        and down not in variables[place]
        and not isinstance(node, ir.Store)
    ]
    if not any(_is_costly(kernel.body[place]) for place in positions):
        return None
    rest = [place for place in range(len(kernel.body)) if place not in positions]
    used = {operand for place in rest for operand in ir.operands_of(kernel.body[place])}
    kept = tuple(place for place in positions if place in used)
    if any(isinstance(kernel.body[place], ir.Iota) for place in kept):
        return None
    if any(lane not in variables[place] for place in rest if _is_store(kernel, place)):
        return None
    return Known(lane, down, tuple(positions), kept, _are_neighbours(kernel, lane, down, rest))


def _are_neighbours(kernel: ir.Kernel, lane: str, down: str, rest: list[int]) -> bool:
    variables = variables_of(kernel)
    extent = kernel.pointwise[int(lane[1:])]
    for place in rest:
        node = kernel.body[place]
        if lane not in variables[place]:
            if down in variables[place]:
                return False
            continue
        if isinstance(node, ir.Iota | ir.Gather):
            return False
        if isinstance(node, ir.Load | ir.Store):
            along, across = access(node.index, lane), access(node.index, down)
            if not along.is_contiguous or across.stride != extent:
                return False
    return True


def _is_costly(node: ir.BodyNode) -> bool:
    return isinstance(node, ir.Op) and node.name in _COSTLY


def _is_store(kernel: ir.Kernel, place: int) -> bool:
    return isinstance(kernel.body[place], ir.Store)
