"""Magnitudes: how large the terms behind each value of a Kernel are, beside the value itself.

A rounding error is judged against these (see `tolerance`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from nearhint_compiler.analysis.jumps import is_given
from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers.reference_ops import RUNNING, Array, reduced
from nearhint_daemon.workers.tolerance import FACTOR, PRECISIONS, Arithmetic

LARGEST_ERROR = 600.0
"""Of an exponent: sums and products of what is off by e to that power are finite numbers still."""
_ADDS_UP = frozenset({"add", "sub", "mul", "div", "fma"})
"""What has the errors of all its operands, and not of the one that it chooses or passes on."""


def magnitude(
    body: Sequence[ir.BodyNode],
    position: int,
    value: Array,
    values: list[Array],
    scales: list[Array],
    axes: tuple[int, ...],
    extents: tuple[int, ...],
    arithmetic: Arithmetic,
) -> Array:
    """The size of the terms behind `value`, of node `position`: rounding errors are relative to it.

    That is, `arithmetic.relative` times it is how far off the value may be.

    Below the smallest normal number what is computed may be flushed, as results may: there it is
    the size whose tolerance that number is, so that a product with it is judged by that, too
    (eager's sigmoid of -90 is 0 in f32, and -90 times what it should be is a normal number). What
    is rounded to fewer bits is not flushed there, but has the digits of the smallest normal number.
    """
    own = np.abs(value).astype(np.float64, copy=False)
    found = _terms(_Node(body, position, value, own, values, scales, axes, extents, arithmetic))
    match body[position]:
        case ir.Op(_, dtype, _) | ir.Reduce(_, dtype, _) if dtype in ("f32", "f64"):
            precision = PRECISIONS[dtype]
            is_below = own < precision.least
            if not is_below.any():
                return found
            is_below &= own != 0
            floor = precision.least / (FACTOR * precision.unit)
            return np.asarray(np.where(is_below, np.maximum(found, floor), found))
        case ir.Op(_, dtype, _) if dtype in ir.LOW_PRECISION and not is_given(body, position):
            is_rounded = np.isfinite(value) & (value != 0)
            return np.asarray(
                np.where(is_rounded, np.maximum(found, PRECISIONS[dtype].least), found)
            )
        case _:
            return found


@dataclass(frozen=True, slots=True)
class _Node:
    """A node with its value and the size of that, its `own`, and what is known of those before it:
    see `magnitude`."""

    body: Sequence[ir.BodyNode]
    position: int
    value: Array
    own: Array
    values: Sequence[Array]
    scales: Sequence[Array]
    axes: tuple[int, ...]
    extents: tuple[int, ...]
    arithmetic: Arithmetic

    @property
    def node(self) -> ir.BodyNode:
        """What it is."""
        return self.body[self.position]

    @property
    def op(self) -> ir.Op:
        """The same, if it is an op."""
        assert isinstance(self.node, ir.Op)
        return self.node


def _terms(at: _Node) -> Array:
    match at.node:
        case ir.Op(name):
            return _TERMS.get(name, _of_exact)(at)
        case ir.Gather(place=place):
            return _anything(at.own, at.scales[place])
        case ir.Reduce() | ir.Scan() | ir.Arg():
            return _of_a_row(at)
        case _:
            return at.own


def _of_sum(at: _Node) -> Array:
    return _fold_arrays([at.own, *(at.scales[operand] for operand in at.op.operands)])


def _of_product(at: _Node) -> Array:
    left, right = at.op.operands
    return np.asarray(np.maximum(at.own, at.scales[left] * at.scales[right]))


def _of_quotient(at: _Node) -> Array:
    """A divisor that cancelled has the errors of its terms, and so has the quotient; of what may be
    any number (see "cast"), so may the quotient."""
    own, (left, right) = at.own, at.op.operands
    terms = np.maximum(at.scales[left], own * at.scales[right])
    relative = terms / np.abs(at.values[right])
    is_defined = np.isfinite(at.scales[left]) | ~np.isfinite(at.values[left])
    found = np.where(np.isfinite(relative), relative, own)
    return np.asarray(np.where(is_defined, np.maximum(own, found), math.inf))


def _of_inverse(at: _Node, share: float) -> Array:
    """Of a sum that cancelled they have its relative error, or a share of it."""
    (operand,) = at.op.operands
    return _passed_on(at.own, at.own * (at.scales[operand] / np.abs(at.values[operand])) * share)


def _of_remainder(at: _Node) -> Array:
    """What is given leaves an exact rest. What was computed leaves its error in it, however little
    is left, and that of the divisor as often as it fits."""
    if at.value.dtype.kind != "f":
        return _of_exact(at)
    left, right = at.op.operands
    quotient = np.abs(at.values[left] / at.values[right])
    return _passed_on(at.own, _lost(at, left) + _lost(at, right) * quotient)


def _of_saturated(at: _Node) -> Array:
    """Near zero they pass on what they are given, with the errors of the sum that made it."""
    own, (operand,) = at.own, at.op.operands
    slope = own / np.abs(at.values[operand])
    passed = np.where(np.isfinite(slope), slope, 1.0) * at.scales[operand]
    return np.asarray(np.maximum(own, np.where(np.isnan(passed), own, passed)))


def _of_wave(at: _Node, slope: Callable[[Array], Array]) -> Array:
    """What was computed has errors, of a sum that cancels beside its value: they pass at the slope
    there."""
    (operand,) = at.op.operands
    angle = np.abs(at.values[operand])
    has_error = (at.scales[operand] > angle) | (not is_given(at.body, operand))
    return _passed_on(at.own, np.where(has_error, slope(angle) * at.scales[operand], at.own))


def _of_logarithm(at: _Node) -> Array:
    """Near 1 they are nearly nothing: a few roundings of what they are given are more."""
    (operand,) = at.op.operands
    if is_given(at.body, operand):
        return at.own
    base = np.abs(at.values[operand] + (at.op.name == "log1p"))
    return _passed_on(at.own, at.scales[operand] / base * _few(at, operand))


def _of_power(at: _Node) -> Array:
    """A few roundings of the exponent are an error of so many times its terms, and a power of e is
    what the result is off by: of numbers far apart, in low precision, by many."""
    own, (operand,) = at.own, at.op.operands
    if is_given(at.body, operand):
        return own
    error = at.scales[operand] * (_few(at, operand) * at.arithmetic.relative)
    moved = own * (np.expm1(np.minimum(error, LARGEST_ERROR)) / at.arithmetic.relative)
    # An infinite power is beyond all numbers, and not any of them.
    most = np.minimum(own, np.finfo(np.float64).max)
    return _passed_on(most, moved)


def _of_extreme(at: _Node) -> Array:
    """What is not chosen has no part in it, however large, if its errors reach not so far."""
    own = at.own
    reached = [own]
    for operand in at.op.operands:
        gap = np.abs(at.values[operand] * 1.0 - at.value)
        is_beyond = gap > at.scales[operand] * at.arithmetic.relative
        reached.append(np.asarray(np.where(is_beyond, own, at.scales[operand])))
    return _fold_arrays(reached)


def _of_choice(at: _Node) -> Array:
    """What is not chosen has no part in it, and may be NaN where no element lies."""
    condition, left, right = at.op.operands
    chosen = np.maximum(at.own, np.where(at.values[condition], at.scales[left], at.scales[right]))
    # Of a condition that is not known either is right.
    between = np.abs(at.values[left] * 1.0 - at.values[right]) / at.arithmetic.relative
    either = _fold_arrays([chosen, at.scales[left], at.scales[right], between])
    if _is_exact(at.value):
        either = np.asarray(np.where(at.values[left] == at.values[right], either, math.inf))
    return np.asarray(np.where(np.isinf(at.scales[condition]), either, chosen))


def _of_comparison(at: _Node) -> Array:
    left, right = at.op.operands
    if _is_exact(at.values[left]) or (is_given(at.body, left) and is_given(at.body, right)):
        return _of_exact(at)
    # What is computed may be flushed below the smallest normal number, as said above.
    is_wide = at.arithmetic.unit == PRECISIONS["f64"].unit
    apart = np.abs(at.values[left] - at.values[right])
    is_flushed = (apart > 0) & (apart < PRECISIONS["f64" if is_wide else "f32"].least)
    return np.asarray(np.where(is_flushed, math.inf, at.own))


def _of_cast(at: _Node) -> Array:
    (operand,) = at.op.operands
    if _truncates(at.values[operand], at.value):
        # Devices differ in what becomes of NaN and of what no such integer can hold.
        limit = 2.0**63 if at.op.dtype == "i64" else 2.0**31
        is_defined = np.abs(at.values[operand]) < limit
        return np.asarray(np.where(is_defined, _finite_or(at.scales[operand], at.own), math.inf))
    if at.op.dtype == ir.BOOL and at.values[operand].dtype.kind == "f":
        return at.own  # no infinity is zero
    return _of_kept(at)


def _of_kept(at: _Node) -> Array:
    return np.asarray(np.maximum(at.own, at.scales[at.op.operands[0]]))


def _of_exact(at: _Node) -> Array:
    """What is made of exact values that may be any number may be any, too, if it is exact."""
    if not _is_exact(at.value):
        return at.own
    exact = [at.scales[each] for each in at.op.operands if _is_exact(at.values[each])]
    return _anything(at.own, _fold_arrays([np.zeros(()), *exact]))


_TERMS: Mapping[str, Callable[[_Node], Array]] = {
    **dict.fromkeys(("add", "sub", "fma"), _of_sum),
    "mul": _of_product,
    "div": _of_quotient,
    "reciprocal": partial(_of_inverse, share=1.0),
    **dict.fromkeys(("sqrt", "rsqrt"), partial(_of_inverse, share=0.5)),
    **dict.fromkeys(("fmod", "mod"), _of_remainder),
    **dict.fromkeys(("tanh", "erf"), _of_saturated),
    "sin": partial(_of_wave, slope=lambda angle: np.abs(np.cos(angle))),
    "cos": partial(_of_wave, slope=lambda angle: np.abs(np.sin(angle))),
    "tan": partial(_of_wave, slope=lambda angle: 1 + np.tan(angle) ** 2),
    **dict.fromkeys(("log", "log2", "log10", "log1p"), _of_logarithm),
    **dict.fromkeys(("exp", "exp2", "expm1", "sigmoid"), _of_power),
    **dict.fromkeys(("max", "min"), _of_extreme),
    "where": _of_choice,
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _of_comparison),
    "cast": _of_cast,
    **dict.fromkeys(("neg", "abs"), _of_kept),
}
"""Of each op; of the others `_of_exact`."""


def _of_a_row(at: _Node) -> Array:
    """Of what is reduced or scanned along a row."""
    own = at.own
    match at.node:
        case ir.Scan("sum", _, operand):
            scale = at.scales[operand]
            wide = np.broadcast_to(scale, np.broadcast_shapes(scale.shape, own.shape))
            return np.asarray(np.maximum(own, np.cumsum(wide, axis=at.axes[0])))
        case ir.Reduce("sum", _, operand):
            behind = _along(at.scales[operand], at.axes, at.extents)
            return np.asarray(np.maximum(own, reduced("sum", behind, at.axes)))
        case ir.Reduce(_, _, operand) | ir.Arg(_, _, operand, _) if _is_exact(at.values[operand]):
            behind = _along(at.scales[operand], at.axes, at.extents)
            return _anything(own, reduced("max", behind, at.axes))
        case ir.Scan(_, _, operand) if _is_exact(at.values[operand]):
            behind = _along(at.scales[operand], at.axes, at.extents)
            return _anything(own, np.maximum.accumulate(behind, axis=at.axes[0]))
        case ir.Scan("max" | "min", _, operand):
            scale, gap = at.scales[operand], np.abs(at.values[operand] - at.value)
            reached = np.where(gap > scale * at.arithmetic.relative, 0.0, scale)
            return np.asarray(np.maximum(own, np.maximum.accumulate(reached, axis=at.axes[0])))
        case ir.Scan("logaddexp", _, operand):
            weighted = at.values[operand] + np.log(at.scales[operand])
            weighted = _along(np.asarray(weighted), at.axes, at.extents)
            behind = RUNNING["logaddexp"].accumulate(weighted, axis=at.axes[0])
            # A term moves the logarithm by its share; a logarithm near 0 is of what is near 1.
            return _passed_on(np.maximum(own, 1.0), 1.0 + np.exp(behind - at.value))
        case _:
            return own


def _passed_on(own: Array, passed: Array) -> Array:
    """The larger of both, where what is passed on is a number."""
    return np.asarray(np.maximum(own, np.where(np.isfinite(passed), passed, own)))


def _lost(at: _Node, position: int) -> Array:
    """What a few roundings leave in a value of so many terms; nothing in what is given."""
    few = 0.0 if is_given(at.body, position) else _few(at, position)
    return np.asarray(at.scales[position] * few)


def _few(at: _Node, position: int) -> float:
    """What a few roundings leave in a value, beside all that its Kernel's arithmetic may."""
    return at.arithmetic.few(_roundings(at.body, position)) / at.arithmetic.relative


def _roundings(body: Sequence[ir.BodyNode], position: int) -> int:
    """How many of what was computed and rounded to low precision may add up in a node's error.

    A value that is rounded counts once for each way to the node: with what it is subtracted from.
    """
    counts: list[int] = []
    for at, node in enumerate(body[: position + 1]):
        behind = [counts[operand] for operand in ir.operands_of(node)]
        adds_up = isinstance(node, ir.Op) and node.name in _ADDS_UP
        count = sum(behind) if adds_up else max(behind, default=0)
        is_low = isinstance(node, ir.Op) and node.dtype in ir.LOW_PRECISION
        counts.append(count + (is_low and not is_given(body, at)))
    return counts[position]


def _truncates(source: Array, result: Array) -> bool:
    return source.dtype.kind == "f" and _is_integer(result)


def _along(scale: Array, axes: tuple[int, ...], extents: tuple[int, ...]) -> Array:
    """A scale with all its elements along the axes of the reduction."""
    shape = tuple(extent if axis in axes else 1 for axis, extent in enumerate(extents))
    return np.broadcast_to(scale, np.broadcast_shapes(scale.shape, shape))


def _is_integer(value: Array) -> bool:
    return value.dtype.kind in "iu"


def _is_exact(value: Array) -> bool:
    return value.dtype.kind in "iub"


def _anything(scale: Array, behind: Array) -> Array:
    """`scale`, but infinite where a value is made of one that may be any number (see "cast")."""
    return np.asarray(np.where(np.isinf(behind), math.inf, scale))


def _finite_or(scale: Array, own: Array) -> Array:
    return np.asarray(np.maximum(own, np.where(np.isfinite(scale), scale, 0.0)))


def _fold_arrays(items: list[Array]) -> Array:
    largest = items[0]
    for item in items[1:]:
        largest = np.asarray(np.maximum(largest, item))
    return largest
