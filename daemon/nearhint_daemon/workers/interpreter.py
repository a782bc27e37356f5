"""A float64 interpreter of the loop IR: the reference that every Variant is compared with.

It shares no code with the emitters. Every float is computed in f64 and rounded nowhere, so a
Variant's error is its distance from the mathematically faithful answer, not from another
approximation; casts between floats are therefore the identity, but for what is too large for
f8e4m3fn, which has no infinity: it becomes NaN. Where binaries are judged (`Casts.ROUND_GIVEN`),
a cast of what was loaded rounds it, since a comparison with it is no approximation then. Integers
and booleans are exact, in their own dtype, with wrap-around.

It materialises the whole iteration space, so it is for small sizes (`POINT_LIMIT`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
import numpy.typing as npt

from nearhint_compiler.analysis.jumps import before_jumps, is_given
from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers.elements import Stored, decode, encode
from nearhint_daemon.workers.magnitudes import magnitude
from nearhint_daemon.workers.reference_ops import (
    NUMPY_DTYPES,
    OPERATIONS,
    RUNNING,
    TRUNCATIONS,
    Array,
    Truncation,
    cast,
    constant_value,
    is_truncation,
    reduced,
)
from nearhint_daemon.workers.tolerance import PRECISIONS, Arithmetic, arithmetic_of
from nearhint_rules import expr as ex

POINT_LIMIT = 1 << 24
MOST_LOST = 0.5
"""Of a value that counts as one: floats with two digits have a tolerance of all that they are."""
SCATTERED: Mapping[str, np.ufunc] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
"""By kind; of floats NaN is the most and the least."""
_MAY_ROUND = frozenset({("f32", "f64"), ("f32", "i64"), ("f32", "i32"), ("f64", "i64")})


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


class Casts(Enum):
    """What casts between floats do: nothing, or round what a Kernel is given, or each value.

    Where they round what is given, so does an f32 operation on that, before what jumps. Where they
    round each value, so does each operation, as eager has it: only sums and products over rows
    are as they are, since their order is anyone's.
    """

    EXACT = auto()
    ROUND_GIVEN = auto()
    ROUND_EACH = auto()


class SpaceTooLargeError(ValueError):
    """The iteration space exceeds `POINT_LIMIT` points."""


def interpret(
    kernel: ir.Kernel,
    dims: Mapping[str, int],
    inputs: Sequence[Stored | Array | float | int | bool],
    *,
    casts: Casts = Casts.EXACT,
    arithmetic: Arithmetic | None = None,
) -> tuple[Output, ...]:
    """Runs `kernel` at `dims` on flat input storages; one `Output` for each output parameter.

    `inputs[i]` is parameter i: a flat array of the storage that it points at (floats of any
    width, or as stored), or a scalar. Magnitudes are for `arithmetic`; None: the Kernel's.
    Raises `IndexError` if an index leaves its storage, and
    `SpaceTooLargeError`.
    """
    return interpret_telling(kernel, dims, inputs, casts=casts, arithmetic=arithmetic)[0]


def interpret_telling(
    kernel: ir.Kernel,
    dims: Mapping[str, int],
    inputs: Sequence[Stored | Array | float | int | bool],
    *,
    casts: Casts = Casts.EXACT,
    arithmetic: Arithmetic | None = None,
) -> tuple[tuple[Output, ...], bool]:
    """As `interpret`, and whether some place that data names is none that there is."""
    with np.errstate(all="ignore"):
        run = _Run(kernel, dims, inputs, casts, arithmetic)
        return run.outputs(), run.is_outside


def interpret_within_range(
    kernel: ir.Kernel,
    dims: Mapping[str, int],
    inputs: Sequence[Stored | Array | float | int | bool],
) -> tuple[Output, ...]:
    """As `interpret` where casts round, but NaN takes the place of what a dtype cannot hold.

    That is a float beyond the largest of its dtype, and a sum or product of such terms that some
    order of them leads beyond it, or a product to zero, on the way; and an infinity times what may
    be zero, by its tolerance. Zero takes the place of what is too small for its dtype.
    """
    with np.errstate(all="ignore"):
        return _WithinRange(kernel, dims, inputs, Casts.ROUND_GIVEN).outputs()


def interpret_as_devices_truncate(
    kernel: ir.Kernel,
    dims: Mapping[str, int],
    inputs: Sequence[Stored | Array | float | int | bool],
    *,
    arithmetic: Arithmetic,
) -> Iterator[tuple[Output, ...]]:
    """As `interpret` where casts round what is given, by each of `TRUNCATIONS`."""
    with np.errstate(all="ignore"):
        for each in TRUNCATIONS:
            run = _Truncating(kernel, dims, inputs, Casts.ROUND_GIVEN, arithmetic)
            run.truncation = each
            yield run.outputs()


def interpret_with_sums_moved(
    kernel: ir.Kernel,
    dims: Mapping[str, int],
    inputs: Sequence[Stored | Array | float | int | bool],
    *,
    casts: Casts = Casts.EXACT,
    arithmetic: Arithmetic,
    shift: float,
    random: np.random.Generator,
) -> tuple[Output, ...]:
    """As `interpret`, but each sum and product of floats moves by `shift` of its size, up or down.

    That is what of it depends on the order of its terms.
    """
    with np.errstate(all="ignore"):
        return _SumsMoved(
            kernel, dims, inputs, casts, arithmetic, shift=shift, random=random
        ).outputs()


def candidates(
    kernel: ir.Kernel,
    dims: Mapping[str, int],
    inputs: Sequence[Stored | Array | float | int | bool],
    arg: ir.Arg,
    *,
    arithmetic: Arithmetic,
) -> Candidates:
    """What `arg`, a node of `kernel`, chooses from: arrays of pointwise points x reduced points."""
    with np.errstate(all="ignore"):
        run = _Run(kernel, dims, inputs, Casts.ROUND_GIVEN, arithmetic)
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
        self,
        kernel: ir.Kernel,
        dims: Mapping[str, int],
        inputs: Sequence[Stored | Array | float],
        casts: Casts,
        arithmetic: Arithmetic | None = None,
    ) -> None:
        self.kernel = kernel
        self.casts = casts
        self.dtypes = ir.dtypes_of(kernel)
        self._before_jumps = before_jumps(kernel)
        pointwise = [ex.evaluate(extent, dims) for extent in kernel.pointwise]
        reduction = [ex.evaluate(extent, dims) for extent in kernel.reduction]
        if math.prod(pointwise) * math.prod(reduction) > POINT_LIMIT:
            raise SpaceTooLargeError(f"{pointwise} x {reduction} points")
        terms = math.prod(reduction)
        self._arithmetic = arithmetic or arithmetic_of(kernel, terms=terms)
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
        self.is_outside = False

    def evaluated(self) -> tuple[list[Array], list[Array]]:
        """Every node's value and magnitude; what writes, and what it begins with, has none."""
        values: list[Array] = []
        scales: list[Array] = []
        for position, node in enumerate(self.kernel.body):
            value = scale = np.zeros(())
            if not isinstance(node, ir.Writing | ir.Former):
                value = self._value(position, node, values)
                scale = magnitude(
                    self.kernel.body,
                    position,
                    value,
                    values,
                    scales,
                    self.reduction_axes,
                    self.extents,
                    self._arithmetic,
                )
                value = self._held(node, value, values, scales)
            values.append(value)
            scales.append(scale)
        return values, scales

    def _held(
        self, node: ir.BodyNode, value: Array, values: list[Array], scales: list[Array]
    ) -> Array:
        """What a node's readers get of its value; `values` and `scales` are of those before it."""
        return value

    def outputs(self) -> tuple[Output, ...]:
        values, scales = self.evaluated()
        written: dict[int, list[tuple[Array, Array, Array]]] = {}
        for position, node in enumerate(self.kernel.body):
            if isinstance(node, ir.Scatter):
                written[node.param] = [self._scattered(position, node, values, scales)]
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

    def _scattered(
        self, position: int, node: ir.Scatter, values: list[Array], scales: list[Array]
    ) -> tuple[Array, Array, Array]:
        """Where rows and places are in an output, what is there, and its magnitudes."""
        index, stride, size = (
            np.asarray(evaluate_index(each, self.variables), np.int64)
            for each in (node.index, node.stride, node.size)
        )
        count, kept = int(size), self.rank - len(self.reduction_axes)
        rows = np.broadcast_to(index, (*self.extents[:kept], *(1,) * len(self.reduction_axes)))
        where = (rows.reshape(-1, 1) + stride * np.arange(count)).ravel()
        dtype = NUMPY_DTYPES[node.dtype]
        found = np.asarray(self._base(node.base, values, where), dtype)
        magnitudes = np.abs(found).astype(np.float64)
        numbers = np.arange(len(rows.ravel())).reshape(rows.shape)
        parts = (values[node.place], numbers, values[node.value], scales[node.value])
        place, row, value, scale = (np.broadcast_to(part, self.extents).ravel() for part in parts)
        is_there = (place >= 0) & (place < count)
        self.is_outside |= not is_there.all()
        target = row[is_there] * count + place[is_there]
        SCATTERED[node.kind].at(found, target, value[is_there].astype(dtype))
        behind = np.add if node.kind == "sum" else np.maximum
        behind.at(magnitudes, target, scale[is_there])
        found = self._gathered_up(position, found, magnitudes)
        return where, found, np.maximum(magnitudes, np.abs(found))

    def _base(self, position: int, values: list[Array], where: Array) -> Array:
        """What a scatter begins with at these positions."""
        match self.kernel.body[position]:
            case ir.Former(param):
                return np.array(self._read(position, param, where))
            case ir.Op("cast", _, (operand,)):
                return self._base(operand, values, where)
            case _:
                return np.broadcast_to(values[position].ravel()[:1], where.shape).copy()

    def _gathered_up(self, position: int, value: Array, magnitudes: Array) -> Array:
        """What is stored of what a scatter has brought together."""
        return value

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
                where = np.asarray(evaluate_index(index, self.variables))
                return np.asarray(self._read(position, param, where), dtype)
            case ir.Gather(param, _, _, _, place):
                first, stride, size = (
                    np.asarray(evaluate_index(each, self.variables), np.int64)
                    for each in (node.index, node.stride, node.size)
                )
                inside = np.clip(values[place], 0, size - 1)
                self.is_outside |= bool(np.any(inside != values[place]))
                where = first + stride * inside
                return np.asarray(self._read(position, param, where), dtype)
            case ir.Scalar(param):
                return np.asarray(self.inputs[param]).astype(dtype).reshape((1,) * self.rank)
            case ir.Const(const_dtype, bits):
                return np.asarray(constant_value(const_dtype, bits), dtype)
            case ir.Iota(index):
                return np.asarray(evaluate_index(index, self.variables), np.int64)
            case ir.Op(name, _, operands):
                args = [values[operand] for operand in operands]
                if name == "cast":
                    return self._cast(position, args[0], self.dtypes[operands[0]])
                if name == "truncdiv" and self._rounds_quotient(position):
                    return np.trunc((args[0] / args[1]).astype(np.float32)).astype(dtype)
                made = np.asarray(OPERATIONS[name](*args))
                if self.casts is Casts.ROUND_EACH and self.dtypes[position] in ir.FLOATS:
                    return _rounded(self.dtypes[position], made)
                if position in self._before_jumps and self.casts is Casts.ROUND_GIVEN:
                    made = made.astype(np.float32)
                return np.asarray(made, dtype)
            case ir.Reduce(kind, _, operand):
                whole = self._along_reduction(values[operand])
                return np.asarray(reduced(kind, whole, self.reduction_axes), dtype)
            case ir.Arg(kind, _, operand, index):
                where = np.asarray(evaluate_index(index, self.variables))
                return self._extremal(kind, self._along_reduction(values[operand]), where)
            case ir.Scan(kind, _, operand):
                whole = self._along_reduction(values[operand])
                (axis,) = self.reduction_axes
                return np.asarray(RUNNING[kind].accumulate(whole, axis=axis, dtype=dtype))
            case _:
                raise AssertionError(node)

    def _read(self, position: int, param: int, where: Array) -> Array:
        given = self.inputs[param]
        storage = given if isinstance(given, Stored) else np.asarray(given)
        if where.size and (where.min() < 0 or where.max() >= storage.size):
            raise IndexError(f"node {position} loads outside parameter {param}")
        return np.asarray(storage[where])

    def _rounds_quotient(self, position: int) -> bool:
        """Whether an f32 quotient of what was given is rounded before it loses its fraction.

        As eager has it, which makes 800 of 80 over a tenth: in f32 that is a little more than one.
        """
        given = all(
            is_given(self.kernel.body, at) for at in ir.operands_of(self.kernel.body[position])
        )
        return self.casts is Casts.ROUND_GIVEN and self.dtypes[position] == "f32" and given

    def _cast(self, position: int, value: Array, source: str) -> Array:
        target = self.dtypes[position]
        found = cast(value, source, target)
        rounds = target in ir.LOW_PRECISION or (target, source) in _MAY_ROUND
        if self.casts is Casts.ROUND_GIVEN:
            rounds = rounds and is_given(self.kernel.body, position)
        return _rounded(target, found) if rounds and self.casts is not Casts.EXACT else found

    def _along_reduction(self, value: Array) -> Array:
        """`value` with all its elements along the reduction axes."""
        shape = tuple(
            extent if axis in self.reduction_axes else (value.shape or (1,) * self.rank)[axis]
            for axis, extent in enumerate(self.extents)
        )
        return np.broadcast_to(value, shape)

    def _extremal(self, kind: str, value: Array, index: Array) -> Array:
        """The least `index` among the extremal elements; NaN is the most extreme."""
        is_best = value == reduced(kind, value, self.reduction_axes)
        if value.dtype.kind == "f":
            is_nan = np.isnan(value)
            is_best = np.where(reduced("any", is_nan, self.reduction_axes), is_nan, is_best)
        places = np.where(is_best, index, np.iinfo(np.int64).max)
        return reduced("min", places, self.reduction_axes)


class _SumsMoved(_Run):
    def __init__(
        self,
        kernel: ir.Kernel,
        dims: Mapping[str, int],
        inputs: Sequence[Stored | Array | float],
        casts: Casts,
        arithmetic: Arithmetic,
        *,
        shift: float,
        random: np.random.Generator,
    ) -> None:
        super().__init__(kernel, dims, inputs, casts, arithmetic)
        self._shift = shift
        self._random = random

    def _held(
        self, node: ir.BodyNode, value: Array, values: list[Array], scales: list[Array]
    ) -> Array:
        if not is_float_sum(node):
            return value
        return self._moved(value)

    def _gathered_up(self, position: int, value: Array, magnitudes: Array) -> Array:
        return self._moved(value) if is_float_sum(self.kernel.body[position]) else value

    def _moved(self, value: Array) -> Array:
        signs = self._random.choice((-self._shift, self._shift), value.shape)
        return np.asarray(value * (1 + signs))


class _Truncating(_Run):
    truncation: Truncation

    def _cast(self, position: int, value: Array, source: str) -> Array:
        found, target = super()._cast(position, value, source), self.dtypes[position]
        if not is_truncation(source, target):
            return found
        return self.truncation.of(value, found)


class _WithinRange(_Run):
    def _value(self, position: int, node: ir.BodyNode, values: list[Array]) -> Array:
        value = super()._value(position, node, values)
        precision = PRECISIONS.get(self.dtypes[position])
        if precision is None or not isinstance(node, ir.Op | ir.Reduce | ir.Scan):
            return value
        value = np.where(np.abs(value) < precision.lost, 0.0, value)
        is_beyond = np.isfinite(value) & (np.abs(value) > precision.largest)
        match node:
            case ir.Reduce("sum", _, operand) | ir.Scan("sum", _, operand):
                most = self._folded(node, np.abs(self._along_reduction(values[operand])))
                is_beyond |= np.isfinite(value) & (most > precision.largest)
            case ir.Reduce("prod", _, operand) | ir.Scan("prod", _, operand):
                factors = np.abs(self._along_reduction(values[operand]))
                most = self._folded(node, np.maximum(factors, 1.0))
                least = self._folded(node, np.minimum(factors, 1.0))
                is_beyond |= np.isfinite(value) & (most > precision.largest)
                is_beyond |= (value != 0) & (least < precision.least)
            case _:
                pass
        return np.where(is_beyond, np.nan, value)

    def _gathered_up(self, position: int, value: Array, magnitudes: Array) -> Array:
        precision = PRECISIONS.get(self.dtypes[position])
        if precision is None:
            return value
        is_beyond = np.isfinite(value) & (magnitudes > precision.largest)
        return np.where(is_beyond, np.nan, value)

    def _held(
        self, node: ir.BodyNode, value: Array, values: list[Array], scales: list[Array]
    ) -> Array:
        match node:
            case ir.Op("mul" | "fma", dtype, (left, right, *_)) if dtype in ir.FLOATS:
                for factor, other in ((left, right), (right, left)):
                    may_be_zero = self._may_be_zero(values[factor], scales[factor])
                    value = np.where(np.isinf(values[other]) & may_be_zero, np.nan, value)
                return value
            case _:
                return value

    def _may_be_zero(self, value: Array, scale: Array) -> Array:
        """By its tolerance."""
        error = min(self._arithmetic.relative, MOST_LOST) * scale
        return np.asarray(np.isfinite(value) & (np.abs(value) <= error))

    def _folded(self, node: ir.Reduce | ir.Scan, terms: Array) -> Array:
        if isinstance(node, ir.Reduce):
            return np.asarray(reduced(node.kind, terms, self.reduction_axes))
        (axis,) = self.reduction_axes
        return np.asarray(RUNNING[node.kind].accumulate(terms, axis=axis))


def is_float_sum(node: ir.BodyNode) -> bool:
    """Whether the order of its terms shows in a node's last digits."""
    return (
        isinstance(node, ir.Reduce | ir.Scan | ir.Scatter)
        and node.kind in ("sum", "prod", "logaddexp")
        and node.dtype in ir.FLOATS
    )


def _rounded(dtype: str, value: Array) -> Array:
    return decode(dtype, encode(dtype, value))


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
