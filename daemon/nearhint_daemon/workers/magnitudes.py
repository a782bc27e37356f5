"""Magnitudes: how large the terms behind each value of a Kernel are, beside the value itself.

A rounding error is judged against these (see `tolerance`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nearhint_compiler.analysis.jumps import is_given
from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers.reference_ops import Array, reduced
from nearhint_daemon.workers.tolerance import FACTOR, PRECISIONS, Arithmetic

LARGEST_ERROR = 600.0
"""Of an exponent: sums and products of what is off by e to that power are finite numbers still."""
_ADDS_UP = frozenset({"add", "sub", "mul", "div", "fma"})
"""What has the errors of all its operands, and not of the one that it chooses or passes on."""
_SLOPES: Mapping[str, Callable[[Array], Array]] = {
    "sin": lambda angle: np.abs(np.cos(angle)),
    "cos": lambda angle: np.abs(np.sin(angle)),
    "tan": lambda angle: 1 + np.tan(angle) ** 2,
}


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
    found = _terms(body, body[position], value, values, scales, axes, extents, arithmetic)
    match body[position]:
        case ir.Op(_, dtype, _) | ir.Reduce(_, dtype, _) if dtype in ("f32", "f64"):
            precision = PRECISIONS[dtype]
            is_below = (value != 0) & (np.abs(value) < precision.least)
            if not is_below.any():
                return found
            floor = precision.least / (FACTOR * precision.unit)
            return np.asarray(np.where(is_below, np.maximum(found, floor), found))
        case ir.Op(_, dtype, _) if dtype in ir.LOW_PRECISION and not is_given(body, position):
            is_rounded = np.isfinite(value) & (value != 0)
            return np.asarray(
                np.where(is_rounded, np.maximum(found, PRECISIONS[dtype].least), found)
            )
        case _:
            return found


def _terms(
    body: Sequence[ir.BodyNode],
    node: ir.BodyNode,
    value: Array,
    values: list[Array],
    scales: list[Array],
    axes: tuple[int, ...],
    extents: tuple[int, ...],
    arithmetic: Arithmetic,
) -> Array:
    own = np.abs(value).astype(np.float64)
    match node:
        case ir.Op("add" | "sub" | "fma", _, operands):
            return _fold_arrays([own, *(scales[operand] for operand in operands)])
        case ir.Op("max" | "min", _, operands):
            # What is not chosen has no part in it, however large, if its errors reach not so far.
            reached = [own]
            for operand in operands:
                gap = np.abs(values[operand] * 1.0 - value)
                is_beyond = gap > scales[operand] * arithmetic.relative
                reached.append(np.asarray(np.where(is_beyond, own, scales[operand])))
            return _fold_arrays(reached)
        case ir.Op("mul", _, (left, right)):
            return np.asarray(np.maximum(own, scales[left] * scales[right]))
        case ir.Op("div", _, (left, right)):
            # A divisor that cancelled has the errors of its terms, and so has the quotient; of what
            # may be any number (see "cast"), so may the quotient.
            terms = np.maximum(scales[left], own * scales[right])
            relative = terms / np.abs(values[right])
            is_defined = np.isfinite(scales[left]) | ~np.isfinite(values[left])
            found = np.where(np.isfinite(relative), relative, own)
            return np.asarray(np.where(is_defined, np.maximum(own, found), math.inf))
        case ir.Op("sqrt" | "rsqrt" | "reciprocal" as name, _, (operand,)):
            # Of a sum that cancelled they have its relative error, or half of it.
            relative = scales[operand] / np.abs(values[operand])
            passed = own * relative * (1.0 if name == "reciprocal" else 0.5)
            return np.asarray(np.maximum(own, np.where(np.isfinite(passed), passed, own)))
        case ir.Op("tanh" | "erf", _, (operand,)):
            # Near zero they pass on what they are given, with the errors of the sum that made it.
            slope = own / np.abs(values[operand])
            passed = np.where(np.isfinite(slope), slope, 1.0) * scales[operand]
            return np.asarray(np.maximum(own, np.where(np.isnan(passed), own, passed)))
        case ir.Op("sin" | "cos" | "tan" as name, _, (operand,)):
            # What was computed has errors, of a sum that cancels beside its value: they pass at the
            # slope there.
            angle = np.abs(values[operand])
            slope = _SLOPES[name](angle)
            has_error = (scales[operand] > angle) | (not is_given(body, operand))
            passed = np.where(has_error, slope * scales[operand], own)
            return np.asarray(np.maximum(own, np.where(np.isfinite(passed), passed, own)))
        case ir.Op("log" | "log2" | "log10" | "log1p" as name, _, (operand,)) if not is_given(
            body, operand
        ):
            # Near 1 they are nearly nothing: a few roundings of what they are given are more.
            base = np.abs(values[operand] + (name == "log1p"))
            passed = scales[operand] / base * _few(body, operand, arithmetic)
            return np.asarray(np.maximum(own, np.where(np.isfinite(passed), passed, own)))
        case ir.Op("exp" | "exp2" | "expm1" | "sigmoid", _, (operand,)) if not is_given(
            body, operand
        ):
            # A few roundings of the exponent are an error of so many times its terms, and a power
            # of e is what the result is off by: of numbers far apart, in low precision, by many.
            error = scales[operand] * (_few(body, operand, arithmetic) * arithmetic.relative)
            moved = own * (np.expm1(np.minimum(error, LARGEST_ERROR)) / arithmetic.relative)
            # An infinite power is beyond all numbers, and not any of them.
            most = np.minimum(own, np.finfo(np.float64).max)
            return np.asarray(np.maximum(most, np.where(np.isfinite(moved), moved, most)))
        case ir.Op("fmod" | "mod", _, (left, right)) if value.dtype.kind == "f":
            # What is given leaves an exact rest. What was computed leaves its error in it, however
            # little is left, and that of the divisor as often as it fits.
            quotient = np.abs(values[left] / values[right])
            dividend, divisor = (_lost(body, each, scales, arithmetic) for each in (left, right))
            passed = dividend + divisor * quotient
            return np.asarray(np.maximum(own, np.where(np.isfinite(passed), passed, own)))
        case ir.Op("where", _, (condition, left, right)):
            # What is not chosen has no part in it, and may be NaN where no element lies.
            chosen = np.maximum(own, np.where(values[condition], scales[left], scales[right]))
            # Of a condition that is not known either is right.
            between = np.abs(values[left] * 1.0 - values[right]) / arithmetic.relative
            either = _fold_arrays([chosen, scales[left], scales[right], between])
            if _is_exact(value):
                either = np.asarray(np.where(values[left] == values[right], either, math.inf))
            return np.asarray(np.where(np.isinf(scales[condition]), either, chosen))
        case ir.Op("eq" | "ne" | "lt" | "le" | "gt" | "ge", _, (left, right)) if not (
            _is_exact(values[left]) or (is_given(body, left) and is_given(body, right))
        ):
            # What is computed may be flushed below the smallest normal number, as said above.
            is_wide = arithmetic.unit == PRECISIONS["f64"].unit
            apart = np.abs(values[left] - values[right])
            is_flushed = (apart > 0) & (apart < PRECISIONS["f64" if is_wide else "f32"].least)
            return np.asarray(np.where(is_flushed, math.inf, own))
        case ir.Gather():
            return _anything(own, scales[node.place])
        case ir.Op("cast", dtype, (operand,)) if _truncates(values[operand], value):
            # Devices differ in what becomes of NaN and of what no such integer can hold.
            limit = 2.0**63 if dtype == "i64" else 2.0**31
            is_defined = np.abs(values[operand]) < limit
            return np.asarray(np.where(is_defined, _finite_or(scales[operand], own), math.inf))
        case ir.Op("cast", ir.BOOL, (operand,)) if values[operand].dtype.kind == "f":
            return own  # no infinity is zero
        case ir.Op("neg" | "abs" | "cast", _, operands):
            return np.maximum(own, scales[operands[0]])
        case ir.Scan("sum", _, operand):
            (axis,) = axes
            wide = np.broadcast_to(
                scales[operand], np.broadcast_shapes(scales[operand].shape, own.shape)
            )
            return np.asarray(np.maximum(own, np.cumsum(wide, axis=axis)))
        case ir.Reduce("sum", _, operand):
            return np.maximum(own, reduced("sum", _along(scales[operand], axes, extents), axes))
        case ir.Reduce(_, _, operand) | ir.Arg(_, _, operand, _) if _is_exact(values[operand]):
            behind = _along(scales[operand], axes, extents)
            return _anything(own, reduced("max", behind, axes))
        case ir.Scan(_, _, operand) if _is_exact(values[operand]):
            behind = _along(scales[operand], axes, extents)
            return _anything(own, np.maximum.accumulate(behind, axis=axes[0]))
        case ir.Op(_, _, operands) if _is_exact(value):
            exact = [scales[each] for each in operands if _is_exact(values[each])]
            return _anything(own, _fold_arrays([np.zeros(()), *exact]))
        case _:
            return own


def _lost(
    body: Sequence[ir.BodyNode], position: int, scales: list[Array], arithmetic: Arithmetic
) -> Array:
    """What a few roundings leave in a value of so many terms; nothing in what is given."""
    few = 0.0 if is_given(body, position) else _few(body, position, arithmetic)
    return np.asarray(scales[position] * few)


def _few(body: Sequence[ir.BodyNode], position: int, arithmetic: Arithmetic) -> float:
    """What a few roundings leave in a value, beside all that its Kernel's arithmetic may."""
    return arithmetic.few(_roundings(body, position)) / arithmetic.relative


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
