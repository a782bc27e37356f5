"""Along which loops the accesses of a Kernel are contiguous, in bytes at given sizes.

An access is coalesced by one loop at most: the one along which neighbours in memory lie, or where
it does not move at all for a step (x // 10), and uncoalesced without one. What it counts is the
bytes that it touches, a write twice. Everything here ranks; nothing here proves.

In a pointwise Kernel an access that moves by at most one element along the innermost loop is
credited to that one: a broadcast or a scatter along another loop is no reason for tiles.

The method is that of PyTorch's `tiling_utils.analyze_memory_coalescing` (pull request #153748).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from nearhint_compiler.analysis.loops import variables_of
from nearhint_compiler.analysis.strides import guessed
from nearhint_compiler.analysis.unit_stride import unit_stride_factor
from nearhint_compiler.ir import index as ix
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES, SIZE_LIMIT

WRITE_WEIGHT = 2
LEAST_PART = 8
"""Both parts of a loop that is cut in two are longer than this."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """What an access touches: its elements in all, and bytes an element."""

    numel: int
    itemsize: int


@dataclass(frozen=True, slots=True)
class Touch:
    """All that is read, or all that is written, at one index.

    An index that mentions anything but loops and sizes depends on data.
    """

    index: Expr
    buffers: tuple[Buffer, ...]
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Loop `variable` cut so that its inner part has `factor` steps coalesces `score` bytes more.

    They are coalesced along the outer part.
    """

    variable: str
    factor: int
    score: int


@dataclass(frozen=True, slots=True)
class Coalescing:
    """Bytes by loop, bytes by index where no loop coalesces, and cuts that would, best first."""

    by_variable: Mapping[str, int]
    uncoalesced: Mapping[Expr, int]
    suggestions: tuple[Suggestion, ...]


def coalescing(kernel: ir.Kernel, sizes: Mapping[str, int]) -> Coalescing:
    """The coalescing of `kernel` at `sizes`, one for each of its symbols."""
    return coalescing_of(touches(kernel, sizes), loop_extents(kernel, sizes), sizes)


def loop_extents(kernel: ir.Kernel, sizes: Mapping[str, int]) -> dict[str, int]:
    """The extents of p0, p1, ..., then of r0, r1, ..., at `sizes`."""
    return {
        f"{prefix}{place}": ex.evaluate(extent, sizes)
        for prefix, space in (("p", kernel.pointwise), ("r", kernel.reduction))
        for place, extent in enumerate(space)
    }


def touches(kernel: ir.Kernel, sizes: Mapping[str, int]) -> tuple[Touch, ...]:
    """What `kernel` reads and writes at each index.

    How many elements a parameter has is taken from the largest index into it.
    """
    known: dict[str, tuple[int, int | None]] = {name: (size, size) for name, size in sizes.items()}
    for name, extent in loop_extents(kernel, sizes).items():
        known[name] = (0, max(extent - 1, 0))
    params: dict[tuple[Expr, bool], dict[int, None]] = {}
    numels: dict[int, int] = {}
    variables = variables_of(kernel)
    for node in kernel.body:
        if isinstance(node, ir.Access):
            index, last = node.index, ex.bounds(node.index, known)[1]
            if isinstance(node, ir.Gather):
                index, last = _gathered_at(node, variables[node.place]), None
            params.setdefault((index, isinstance(node, ir.Store)), {})[node.param] = None
            numel = SIZE_LIMIT if last is None else last + 1
            numels[node.param] = max(numel, numels.get(node.param, 0))
    return tuple(
        Touch(
            index,
            tuple(Buffer(numels[param], DTYPES[kernel.params[param].dtype]) for param in found),
            is_written,
        )
        for (index, is_written), found in params.items()
    )


def _gathered_at(node: ir.Gather, place_variables: frozenset[str]) -> Expr:
    """Where an element is gathered: of a row that data names, the elements are neighbours.

    Where data names each element, the index mentions it.
    """
    if node.stride != ex.ONE and not place_variables.issuperset(
        name for name in ex.symbols_of(node.index) if name[0] in "pr"
    ):
        return guessed(node, place_variables)
    return ex.add(node.index, ex.mul(node.stride, ex.symbol(f"v{node.place}")))


def coalescing_of(
    touched: Iterable[Touch], extents: Mapping[str, int], sizes: Mapping[str, int]
) -> Coalescing:
    """The coalescing of accesses over loops of these extents, the outermost first.

    Names of reduction loops begin with r. A loop of extent 1 is none.
    """
    by_variable: dict[str, int] = {}
    uncoalesced: dict[Expr, int] = {}
    cuts: dict[tuple[str, int], int] = {}
    loops = tuple(name for name, extent in extents.items() if extent != 1)
    absent = {name: ex.ZERO for name in extents if name not in loops}
    is_pointwise = not any(map(ir.is_reduction_variable, loops))
    for touch in touched:
        symbols = ex.symbols_of(touch.index)
        walked = [name for name in loops if name in symbols]
        score = _score(touch, prod(extents[name] for name in walked))
        if not walked or not score:
            continue
        index = ex.substitute(touch.index, absent)
        is_indirect = any(name not in extents and name not in sizes for name in symbols)
        variable = None
        if not is_indirect:
            variable = _credited(index, loops, sizes, is_pointwise=is_pointwise)
        if variable is not None:
            by_variable[variable] = by_variable.get(variable, 0) + score
            continue
        uncoalesced[touch.index] = uncoalesced.get(touch.index, 0) + score
        for cut in () if is_indirect else _cuts(index, loops, extents):
            cuts[cut] = cuts.get(cut, 0) + score
    suggestions = (Suggestion(*cut, score) for cut, score in cuts.items())
    return Coalescing(
        by_variable, uncoalesced, tuple(sorted(suggestions, key=lambda found: -found.score))
    )


def _score(touch: Touch, points: int) -> int:
    weight = WRITE_WEIGHT if touch.is_written else 1
    return weight * sum(min(each.numel, points) * each.itemsize for each in touch.buffers)


def coalescing_variable(
    index: Expr, loops: Sequence[str], sizes: Mapping[str, int] | None = None
) -> str | None:
    """The loop along which `index` has stride 1, at the first point of the space.

    One that is a term of its own comes first, for a stride may be 1 by its size.
    """
    terms = ix.terms_of(index)
    bare = [name for name in loops if ex.Sym(name) in terms]
    for name in dict.fromkeys((*bare, *loops)):
        if _steps(index, name, loops, sizes or {}) == (1, 1):
            return name
    return None


def broadcast_variable(
    index: Expr, loops: Sequence[str], sizes: Mapping[str, int] | None = None
) -> str | None:
    """The first loop that `index` mentions and does not move along at its first step."""
    for name in loops:
        steps = _steps(index, name, loops, sizes or {})
        if ix.mentions(index, name) and steps is not None and steps[0] == 0:
            return name
    return None


def _credited(
    index: Expr, loops: Sequence[str], sizes: Mapping[str, int], *, is_pointwise: bool
) -> str | None:
    found = coalescing_variable(index, loops, sizes) or broadcast_variable(index, loops, sizes)
    if found is None or not is_pointwise:
        return found
    steps = _steps(index, loops[-1], loops, sizes)
    return loops[-1] if steps is not None and set(steps) <= {0, 1} else found


def _steps(
    index: Expr, variable: str, loops: Sequence[str], sizes: Mapping[str, int]
) -> tuple[int, int] | None:
    """How far `index` moves from 0 to 1 and from 1 to 2; None where a divisor is zero."""
    origin = {**sizes, **dict.fromkeys(loops, 0)}
    try:
        first, second, third = (
            ex.evaluate(index, {**origin, variable: value}) for value in range(3)
        )
    except InvalidExpression:
        return None
    return second - first, third - second


def _cuts(
    index: Expr, loops: Sequence[str], extents: Mapping[str, int]
) -> Iterable[tuple[str, int]]:
    for name in loops:
        if ix.mentions(index, name):
            others = {other: ex.ZERO for other in loops if other != name}
            try:
                factor = unit_stride_factor(ex.substitute(index, others), name)
            except InvalidExpression:
                continue
            if factor is not None and min(factor, extents[name] // factor) > LEAST_PART:
                yield name, factor
