"""A float64 interpreter of the loop IR: the reference that every Variant is compared with.

It shares no code with the emitters. Every float is computed in f64 and rounded nowhere, so a
Variant's error is its distance from the mathematically faithful answer, not from another
approximation; casts between floats are therefore the identity, but for what is too large for
f8e4m3fn, which has no infinity: it becomes NaN. Integers and booleans are exact, in their own
dtype, with wrap-around.

It materialises the whole iteration space, so it is for small sizes (`POINT_LIMIT`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers.elements import STORAGE, Stored, decode
from nearhint_rules import expr as ex
from nearhint_rules.program import DTYPES

Array: TypeAlias = npt.NDArray[Any]
POINT_LIMIT = 1 << 24
F8E4M3FN_LIMIT = 464.0
"""Halfway from f8e4m3fn's largest number to what would be the next: all beyond it becomes NaN."""
NUMPY_DTYPES: Mapping[str, Any] = {
    "f64": np.float64, "f32": np.float64, "f16": np.float64, "bf16": np.float64,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "u8": np.uint8,
    "bool": np.bool_, "f8e4m3fn": np.float64, "f8e5m2": np.float64,
}  # fmt: skip
"""What each IR dtype is computed in here: every float in f64."""


@dataclass(frozen=True, slots=True)
class Output:
    """One output parameter: where it was written (flat element indices) and what.

    `magnitudes` bounds the terms that went into each value (the sum of |term| over every sum on
    the way): the scale against which a rounding error is judged. An integer's is infinite where
    it was cast from what no such integer can hold: any value is right there.
    """

    indices: npt.NDArray[np.int64]
    values: Array
    magnitudes: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidates:
    """What an `arg` chooses from: the operand, the terms behind it, and the index, each by row."""

    values: Array
    magnitudes: Array
    indices: Array


class SpaceTooLargeError(ValueError):
    """The iteration space exceeds `POINT_LIMIT` points."""


def interpret(
    kernel: ir.Kernel,
    dims: Mapping[str, int],
    inputs: Sequence[Stored | Array | float | int | bool],
) -> tuple[Output, ...]:
    """Runs `kernel` at `dims` on flat input storages; one `Output` for each output parameter.

    `inputs[i]` is parameter i: a flat array of the storage that it points at (floats of any
    width, or as stored), or a scalar. Raises `IndexError` if an index leaves its storage, and
    `SpaceTooLargeError`.
    """
    with np.errstate(all="ignore"):
        return _Run(kernel, dims, inputs).outputs()


def candidates(
    kernel: ir.Kernel,
    dims: Mapping[str, int],
    inputs: Sequence[Stored | Array | float | int | bool],
    arg: ir.Arg,
) -> Candidates:
    """What `arg`, a node of `kernel`, chooses from: arrays of pointwise points x reduced points."""
    with np.errstate(all="ignore"):
        run = _Run(kernel, dims, inputs)
        values, scales = run.evaluated()
        index = np.asarray(evaluate_index(arg.index, run.variables))
        rows = math.prod(run.extents[: run.rank - len(run.reduction_axes)])
        return Candidates(
            *(
                np.broadcast_to(array, run.extents).reshape(rows, -1)
                for array in (values[arg.operand], scales[arg.operand], index)
            )
        )


class _Run:
    def __init__(
        self, kernel: ir.Kernel, dims: Mapping[str, int], inputs: Sequence[Stored | Array | float]
    ) -> None:
        self.kernel = kernel
        self.dtypes = ir.dtypes_of(kernel)
        pointwise = [ex.evaluate(extent, dims) for extent in kernel.pointwise]
        reduction = [ex.evaluate(extent, dims) for extent in kernel.reduction]
        if math.prod(pointwise) * math.prod(reduction) > POINT_LIMIT:
            raise SpaceTooLargeError(f"{pointwise} x {reduction} points")
        self.rank = len(pointwise) + len(reduction)
        self.reduction_axes = tuple(range(len(pointwise), self.rank))
        self.extents = (*pointwise, *reduction)
        self.variables: dict[str, Array | int] = dict(dims)
        names = [f"p{i}" for i in range(len(pointwise))] + [f"r{i}" for i in range(len(reduction))]
        for axis, (name, extent) in enumerate(zip(names, self.extents, strict=True)):
            shape = [1] * self.rank
            shape[axis] = extent
            self.variables[name] = np.arange(extent, dtype=np.int64).reshape(shape)
        self.inputs = inputs

    def evaluated(self) -> tuple[list[Array], list[Array]]:
        """Every node's value and magnitude; a store has none."""
        values: list[Array] = []
        scales: list[Array] = []
        for position, node in enumerate(self.kernel.body):
            value = scale = np.zeros(())
            if not isinstance(node, ir.Store):
                value = self._value(position, node, values)
                scale = _magnitude(node, value, values, scales, self.reduction_axes, self.extents)
            values.append(value)
            scales.append(scale)
        return values, scales

    def outputs(self) -> tuple[Output, ...]:
        values, scales = self.evaluated()
        written: dict[int, list[tuple[Array, Array, Array]]] = {}
        for node in self.kernel.body:
            if not isinstance(node, ir.Store):
                continue
            index = np.asarray(evaluate_index(node.index, self.variables))
            shape = np.broadcast_shapes(index.shape, self._store_shape(node))
            parts = (index, values[node.value], scales[node.value])
            index, value, scale = (np.broadcast_to(part, shape).ravel() for part in parts)
            written.setdefault(node.param, []).append((index, value, scale))
        return tuple(
            Output(*(np.concatenate(parts) for parts in zip(*written[place], strict=True)))
            for place, param in enumerate(self.kernel.params)
            if param.role == "out"
        )

    def _store_shape(self, node: ir.Store) -> tuple[int, ...]:
        """Every pointwise point; and every reduction point if the index names one."""
        along = any(map(ir.is_reduction_variable, ex.symbols_of(node.index)))
        first_reduction = self.rank - len(self.reduction_axes)
        return tuple(
            extent if axis < first_reduction or along else 1
            for axis, extent in enumerate(self.extents)
        )

    def _value(self, position: int, node: ir.BodyNode, values: list[Array]) -> Array:
        dtype = NUMPY_DTYPES[self.dtypes[position]]
        match node:
            case ir.Load(param, index):
                given = self.inputs[param]
                storage = given if isinstance(given, Stored) else np.asarray(given)
                where = np.asarray(evaluate_index(index, self.variables))
                if where.size and (where.min() < 0 or where.max() >= storage.size):
                    raise IndexError(f"node {position} loads outside parameter {param}")
                return np.asarray(storage[where], dtype)
            case ir.Scalar(param):
                return np.asarray(self.inputs[param]).astype(dtype).reshape((1,) * self.rank)
            case ir.Const(const_dtype, bits):
                return np.asarray(constant_value(const_dtype, bits), dtype)
            case ir.Iota(index):
                return np.asarray(evaluate_index(index, self.variables), np.int64)
            case ir.Op(name, _, operands):
                args = [values[operand] for operand in operands]
                if name == "cast":
                    return cast(args[0], self.dtypes[operands[0]], self.dtypes[position])
                return np.asarray(OPERATIONS[name](*args)).astype(dtype)
            case ir.Reduce(kind, _, operand):
                whole = self._along_reduction(values[operand])
                return _reduce(kind, whole, self.reduction_axes).astype(dtype)
            case ir.Arg(kind, _, operand, index):
                where = np.asarray(evaluate_index(index, self.variables))
                return self._extremal(kind, self._along_reduction(values[operand]), where)
            case ir.Scan(kind, _, operand):
                whole = self._along_reduction(values[operand])
                (axis,) = self.reduction_axes
                running = np.cumsum if kind == "sum" else np.cumprod
                return np.asarray(running(whole, axis=axis, dtype=dtype))
            case _:
                raise AssertionError(node)

    def _along_reduction(self, value: Array) -> Array:
        """`value` with all its elements along the reduction axes."""
        shape = tuple(
            extent if axis in self.reduction_axes else (value.shape or (1,) * self.rank)[axis]
            for axis, extent in enumerate(self.extents)
        )
        return np.broadcast_to(value, shape)

    def _extremal(self, kind: str, value: Array, index: Array) -> Array:
        """The least `index` among the extremal elements; NaN is the most extreme."""
        is_best = value == _reduce(kind, value, self.reduction_axes)
        if value.dtype.kind == "f":
            is_nan = np.isnan(value)
            is_best = np.where(_reduce("any", is_nan, self.reduction_axes), is_nan, is_best)
        places = np.where(is_best, index, np.iinfo(np.int64).max)
        return _reduce("min", places, self.reduction_axes)


def evaluate_index(index: ex.Expr, variables: Mapping[str, Array | int]) -> Array | int:
    """An index expression over integer arrays, with Python's floor division and modulus."""
    match index:
        case ex.Int(value):
            return value
        case ex.Sym(name):
            return variables[name]
        case ex.Add(terms):
            total: Array | int = 0
            for term in terms:
                total = total + evaluate_index(term, variables)
            return total
        case ex.Mul(factors):
            product: Array | int = 1
            for factor in factors:
                product = product * evaluate_index(factor, variables)
            return product
        case ex.Pow(base, exponent):
            return evaluate_index(base, variables) ** exponent
        case ex.FloorDiv(top, bottom):
            return evaluate_index(top, variables) // evaluate_index(bottom, variables)
        case ex.Mod(top, bottom):
            return evaluate_index(top, variables) % evaluate_index(bottom, variables)
        case ex.Min(args):
            return _fold(np.minimum, [evaluate_index(arg, variables) for arg in args])
        case ex.Max(args):
            return _fold(np.maximum, [evaluate_index(arg, variables) for arg in args])


def _fold(function: Callable[[Any, Any], Any], items: list[Array | int]) -> Array | int:
    result: Array | int = items[0]
    for item in items[1:]:
        result = function(result, item)
    return result


def constant_value(dtype: str, bits: int) -> float | int | bool:
    """The value whose bit pattern is `bits`."""
    if dtype == "bool":
        return bool(bits)
    stored = np.asarray(bits, np.dtype(f"u{DTYPES[dtype]}")).view(STORAGE[dtype])
    value = decode(dtype, stored)
    return float(value) if value.dtype.kind == "f" else int(value)


def cast(value: Array, source: str, target: str) -> Array:
    """A cast as torch does it: floats to integers truncate, to bool compare with zero."""
    if target == "bool":
        return np.asarray(value != 0)
    if source[0] in "fb" and source != "bool" and target[0] in "iu":
        wide = np.trunc(np.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0))
        return np.asarray(wide.astype(np.int64), NUMPY_DTYPES[target])
    if target == "f8e4m3fn":
        return np.where(np.abs(value) > F8E4M3FN_LIMIT, np.nan, value).astype(np.float64)
    return np.asarray(value, NUMPY_DTYPES[target])


_erf = np.frompyfunc(math.erf, 1, 1)


def _truncdiv(left: Array, right: Array) -> Array:
    if left.dtype.kind == "f":
        return np.trunc(left / right)
    quotient = np.abs(left.astype(np.int64)) // np.maximum(np.abs(right.astype(np.int64)), 1)
    return np.where((left < 0) != (right < 0), -quotient, quotient)


def _floordiv(left: Array, right: Array) -> Array:
    """torch's floor division: floor(a / b) corrected as in C's fmod for floats."""
    if left.dtype.kind != "f":
        return np.floor_divide(left, np.where(right == 0, 1, right))
    return np.floor_divide(left, right)


def _fold_arrays(items: list[Array]) -> Array:
    largest = items[0]
    for item in items[1:]:
        largest = np.asarray(np.maximum(largest, item))
    return largest


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": _floordiv,
    "truncdiv": _truncdiv,
    "mod": np.remainder,
    "fmod": np.fmod,
    "pow": np.power,
    "neg": np.negative,
    "abs": np.abs,
    "sign": lambda x: np.where(np.isnan(x), 0, np.sign(x)) if x.dtype.kind == "f" else np.sign(x),
    "reciprocal": lambda x: 1.0 / x,
    "fma": lambda a, b, c: a * b + c,
    "max": np.maximum,
    "min": np.minimum,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "erf": lambda x: np.asarray(_erf(x), np.float64),
    "sigmoid": lambda x: np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x))),
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "where": np.where,
}
"""One row an op of `ir.OPS` but `cast`; a test checks that none is missing."""


def _reduce(kind: str, value: Array, axes: tuple[int, ...]) -> Array:
    if not axes:
        return value
    match kind:
        case "sum":
            return np.asarray(value.sum(axis=axes, keepdims=True, dtype=value.dtype))
        case "prod":
            return np.asarray(value.prod(axis=axes, keepdims=True, dtype=value.dtype))
        case "max":
            return np.asarray(value.max(axis=axes, keepdims=True))
        case "min":
            return np.asarray(value.min(axis=axes, keepdims=True))
        case "any":
            return np.asarray(value.any(axis=axes, keepdims=True))
        case "all":
            return np.asarray(value.all(axis=axes, keepdims=True))
        case _:
            raise AssertionError(kind)


def _magnitude(
    node: ir.BodyNode,
    value: Array,
    values: list[Array],
    scales: list[Array],
    axes: tuple[int, ...],
    extents: tuple[int, ...],
) -> Array:
    """The size of the terms behind `value`: what rounding errors are relative to."""
    own = np.abs(value).astype(np.float64)
    match node:
        case ir.Op("add" | "sub" | "fma" | "max" | "min", _, operands):
            return _fold_arrays([own, *(scales[operand] for operand in operands)])
        case ir.Op("mul", _, (left, right)):
            return np.asarray(np.maximum(own, scales[left] * scales[right]))
        case ir.Op("div", _, (left, right)):
            relative = scales[left] / np.abs(values[right])
            return np.maximum(own, np.where(np.isfinite(relative), relative, own))
        case ir.Op("tanh" | "erf", _, (operand,)):
            # Near zero they pass on what they are given, with the errors of the sum that made it.
            slope = own / np.abs(values[operand])
            passed = np.where(np.isfinite(slope), slope, 1.0) * scales[operand]
            return np.asarray(np.maximum(own, np.where(np.isnan(passed), own, passed)))
        case ir.Op("where", _, (condition, left, right)):
            # What is not chosen has no part in it, and may be NaN where no element lies.
            return np.maximum(own, np.where(values[condition], scales[left], scales[right]))
        case ir.Op("cast", dtype, (operand,)) if _truncates(values[operand], value):
            # Devices differ in what becomes of NaN and of what no such integer can hold.
            limit = 2.0**63 if dtype == "i64" else 2.0**31
            is_defined = np.abs(values[operand]) < limit
            return np.asarray(np.where(is_defined, _finite_or(scales[operand], own), math.inf))
        case ir.Op("neg" | "abs" | "cast", _, operands):
            return np.maximum(own, scales[operands[0]])
        case ir.Scan("sum", _, operand):
            (axis,) = axes
            wide = np.broadcast_to(
                scales[operand], np.broadcast_shapes(scales[operand].shape, own.shape)
            )
            return np.asarray(np.maximum(own, np.cumsum(wide, axis=axis)))
        case ir.Reduce("sum", _, operand):
            shape = tuple(extent if axis in axes else 1 for axis, extent in enumerate(extents))
            wide = np.broadcast_to(
                scales[operand], np.broadcast_shapes(scales[operand].shape, shape)
            )
            return np.maximum(own, _reduce("sum", wide, axes))
        case ir.Op(_, _, operands) if value.dtype.kind in "iu":
            integers = [scales[each] for each in operands if _is_integer(values[each])]
            return np.asarray(np.where(np.isinf(_fold_arrays([own, *integers])), math.inf, own))
        case _:
            return own


def _truncates(source: Array, result: Array) -> bool:
    return source.dtype.kind == "f" and _is_integer(result)


def _is_integer(value: Array) -> bool:
    return value.dtype.kind in "iu"


def _finite_or(scale: Array, own: Array) -> Array:
    return np.asarray(np.maximum(own, np.where(np.isfinite(scale), scale, 0.0)))
