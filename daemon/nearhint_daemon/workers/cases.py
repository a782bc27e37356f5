"""At which sizes a Variant is verified, and how much memory each parameter has there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.index import coefficient_of
from nearhint_daemon.workers.elements import Array
from nearhint_daemon.workers.interpreter import evaluate_index
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.guard import AtMost, Divisible, Equals, Guard, size_facts_hold
from nearhint_rules.program import DTYPES

CASE_POINTS = 180_000
"""Points of the iteration space that an awkward size may have."""
CASE_BYTES = 1 << 28
"""Of all parameters at such a size, tables that are the same at all sizes left out: where strides
are symbols, few points may lie far apart."""
PLACES = ("i64", "i32")
"""Dtypes of integers that hold any place."""
LONG_SUM, PLACES_OF_LONG = 100, 61
"""Terms from which on a sum is of so many different ones at least: hundreds of one value, which a
table of one place gives, are all rounded the same way."""
FULL_SHARE = 0.95
"""Of those: one size has at least so many, where any does. More than a cache holds may be walked
otherwise than less."""
FULL_BYTES = 1 << 26
"""Of these parameters at that size: strides are symbols, too, and add none of its points."""
EXACT_POINTS = 1 << 22
"""Points up to which an index that is not monotone is evaluated everywhere."""

TOGETHER: tuple[tuple[tuple[int, ...], ...], ...] = (
    # For each row: the first that fits CASE_POINTS; symbol i takes entry i, cyclically.
    ((257, 65, 33), (129, 17, 9), (65, 9, 5), (17, 5, 3), (9, 3, 2)),  # just above a block
    ((241, 61, 31), (61, 31, 13), (31, 13, 7), (13, 7, 5), (5, 3, 7)),  # primes
    ((67, 251),),  # more than a tile the other way, of what a first and a second cache hold
    ((7, 9, 15), (3, 5, 1)),  # odd and small
    ((3, 67, 3, 67), (3, 5)),  # fewer rows than threads
    # More than a second cache keeps; wide blocks of columns, and parts.
    ((643, 275), (2, 331, 267), (3, 5)),
    ((275, 643), (3, 89, 661), (5, 3)),
    ((128, 1024), (1, 128, 1024)),  # rows that lie crowded in caches: a power of two apart
    ((1024, 128), (1, 1024, 128)),
    ((256, 666), (1, 256, 666)),  # ... those of narrow elements, too, and a part of a tile
    ((1,),),
)
FEW = 6
"""Rows of these where tables take more than `CASE_BYTES`: each run has them anew."""
ALONE: tuple[tuple[int, ...], ...] = (
    # For each row and symbol: that size, with all others the first later number that fits.
    (3, 1),  # fewer rows than threads, in whatever loops
    (19, 2), (37, 2), (53, 2), (64, 2),  # rows of one, two, three, four vectors
    # With the others, of all numbers of narrower vectors; so are several rows beside them.
    (27, 13, 2), (47, 6, 2),
    (107, 2),  # some more, of which the last is not full
    (331, 2),  # whole steps and a tail
    (339, 2),  # whole steps, a vector and a tail
    (1301, 3),  # longer than a table of what rows have in common
    (20_011, 1),  # longer than what is kept of a row
    (20_011, 2, 1),  # the same of several rows
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sizes:
    """A Kernel at fixed sizes: extents, and the elements of each parameter's storage."""

    dims: Mapping[str, int]
    pointwise: tuple[int, ...]
    reduction: tuple[int, ...]
    elements: tuple[int, ...]

    @property
    def points(self) -> int:
        """Points of the iteration space."""
        return math.prod(self.pointwise) * math.prod(self.reduction)

    def size_bytes(self, kernel: ir.Kernel) -> int:
        """Bytes of all parameters together."""
        return sum(
            count * DTYPES[param.dtype]
            for count, param in zip(self.elements, kernel.params, strict=True)
        )


def sizes_at(kernel: ir.Kernel, dims: Mapping[str, int]) -> Sizes:
    """The Kernel at `dims`; raises `InvalidExpression` if it has no meaning there."""
    pointwise = tuple(ex.evaluate(extent, dims) for extent in kernel.pointwise)
    reduction = tuple(ex.evaluate(extent, dims) for extent in kernel.reduction)
    if min((*pointwise, *reduction, *dims.values(), 1)) < 1:
        raise InvalidExpression(f"an extent below 1 at {dict(dims)}")
    elements = [1] * len(kernel.params)
    for node in kernel.body:
        if isinstance(node, ir.Access):
            low, high = index_range(node.index, dims, pointwise, reduction)
            if isinstance(node, ir.Placed):
                stride, size = (ex.evaluate(each, dims) for each in (node.stride, node.size))
                if size < 1:
                    found = f"{size} places of parameter {node.param}"
                    raise InvalidExpression(f"{found} at {dict(dims)}")
                low, high = low + min(stride, 0) * (size - 1), high + stride * (size - 1)
            if low < 0:
                raise InvalidExpression(f"index {low} of parameter {node.param} at {dict(dims)}")
            elements[node.param] = max(elements[node.param], high + 1)
    for node in kernel.body:
        if isinstance(node, ir.Former):
            elements[node.param] = max(elements[node.param], elements[-1])
    return Sizes(dict(dims), pointwise, reduction, tuple(elements))


def named_places(kernel: ir.Kernel, sizes: Sizes) -> Mapping[int, tuple[int, int]]:
    """By integer parameter that names places: those that there are, and one more on each side."""
    found: dict[int, tuple[int, int]] = {}
    for node in kernel.body:
        stack = [node.place] if isinstance(node, ir.Placed) else []
        while stack:
            source = kernel.body[stack.pop()]
            if not isinstance(source, ir.Gather):  # what that one is read by names other places
                stack += ir.operands_of(source)
            if isinstance(node, ir.Placed) and isinstance(source, ir.Load | ir.Gather | ir.Scalar):
                most = ex.evaluate(node.size, sizes.dims)
                found[source.param] = (-1, min(most, found.get(source.param, (0, most))[1]))
    return {place: each for place, each in found.items() if kernel.params[place].dtype in PLACES}


@lru_cache(maxsize=64)
def hinted_sizes(kernel: ir.Kernel, dims: tuple[tuple[str, int], ...]) -> Sizes:
    """`sizes_at`, kept: the Variants of one Kernel share its hints."""
    return sizes_at(kernel, dict(dims))


def index_range(
    index: ex.Expr, dims: Mapping[str, int], pointwise: Sequence[int], reduction: Sequence[int]
) -> tuple[int, int]:
    """The least and the greatest value of an index over the whole space.

    Exact for polynomials with coefficients >= 0, which nearly all are, and for small spaces; else
    sound and perhaps too wide.
    """
    ranges: dict[str, tuple[int, int | None]] = {name: (size, size) for name, size in dims.items()}
    for prefix, extents in (("p", pointwise), ("r", reduction)):
        for number, extent in enumerate(extents):
            ranges[f"{prefix}{number}"] = (0, extent - 1)
    low, high = ex.bounds(index, ranges)
    if _is_monotone(index):
        assert low is not None
        assert high is not None
        return low, high
    used = [name for name in ex.symbols_of(index) if name not in dims]
    counts = {name: (ranges[name][1] or 0) + 1 for name in used}
    if low is None or high is None or math.prod(counts.values()) <= EXACT_POINTS:
        variables: dict[str, Array | int] = dict(dims)
        for axis, name in enumerate(used):
            shape = [1] * len(used)
            shape[axis] = counts[name]
            variables[name] = np.arange(counts[name], dtype=np.int64).reshape(shape)
        values = np.asarray(evaluate_index(index, variables))
        return int(values.min()), int(values.max())
    return low, high


def _is_monotone(index: ex.Expr) -> bool:
    """Whether interval bounds are met: sums and products of symbols, no negative coefficient."""
    match index:
        case ex.Int(value):
            return value >= 0
        case ex.Sym():
            return True
        case ex.Add(items) | ex.Mul(items):
            return all(map(_is_monotone, items))
        case ex.Pow(base, _):
            return _is_monotone(base)
        case _:
            return False


@lru_cache(maxsize=64)
def awkward_sizes(kernel: ir.Kernel, guard: Guard) -> tuple[Sizes, ...]:
    """Sizes that break careless code: 1, odd, prime, just above a block; where the Guard holds.

    A size at which two stores meet is left out: strides are symbols too, and outputs never overlap
    where the Kernel is used.
    """
    return tuple(_awkward_sizes(kernel, guard))


def _awkward_sizes(kernel: ir.Kernel, guard: Guard) -> Iterator[Sizes]:
    seen: set[tuple[int, ...]] = set()
    most = 0
    count = len(kernel.symbols)
    alone = (
        tuple((other,) * place + (size,) + (other,) * (count - place - 1) for other in others)
        for size, *others in ALONE
        for place in range(count)
    )
    tables = table_bytes(kernel)
    for row in (*TOGETHER, *alone) if tables <= CASE_BYTES else TOGETHER[:FEW]:
        for pattern in row:
            found = _fit(kernel, guard, pattern)
            if found is None:
                continue
            key = tuple(found.dims.values())
            if key not in seen and not _overlaps_at(kernel, tuple(found.dims.items())):
                seen.add(key)
                most = max(most, found.points)
                yield found
            break
    if kernel.symbols and most < FULL_SHARE * CASE_POINTS and tables <= CASE_BYTES:
        found = _fullest(kernel, guard)
        if (
            found is not None
            and found.points > most
            and not _overlaps_at(kernel, tuple(found.dims.items()))
        ):
            yield found


@lru_cache(maxsize=1024)
def _overlaps_at(kernel: ir.Kernel, dims: tuple[tuple[str, int], ...]) -> bool:
    """`stores_overlap`, kept: the Guards of a Kernel's Variants have most of their sizes alike."""
    return stores_overlap(kernel, sizes_at(kernel, dict(dims)))


def _fullest(kernel: ir.Kernel, guard: Guard) -> Sizes | None:
    """The Kernel at the largest size of all symbols that fits, and then at the largest of each."""
    found: Sizes | None = None
    tables = table_bytes(kernel)
    pattern = [0] * len(kernel.symbols)
    for places in (range(len(pattern)), *((place,) for place in range(len(pattern)))):
        low, high = pattern[places[0]], CASE_POINTS + 1
        while high - low > 1:
            middle = (low + high) // 2
            wanted = [middle if place in places else size for place, size in enumerate(pattern)]
            fitting = _fit(kernel, guard, wanted)
            if fitting is None or fitting.size_bytes(kernel) > FULL_BYTES + tables:
                high = middle
            else:
                found, low = fitting, middle
        pattern = [low if place in places else size for place, size in enumerate(pattern)]
    return found


def _fit(kernel: ir.Kernel, guard: Guard, pattern: Sequence[int]) -> Sizes | None:
    dims = {name: pattern[number % len(pattern)] for number, name in enumerate(kernel.symbols)}
    for fact in guard.facts:
        match fact:
            case Divisible(ex.Sym(name), by):
                dims[name] = -(-dims[name] // by) * by
            case Equals(ex.Sym(name), value):
                dims[name] = value
            case Equals(ex.Mod(ex.Sym(name), divisor), 0):
                step = _size_at(divisor, dims)
                dims[name] = -(-dims[name] // step) * step
            case AtMost(ex.Sym(name), bound):
                dims[name] = min(dims[name], bound)
            case _:
                continue
    for name in _tables(kernel):
        if math.prod(_size_at(extent, dims) for extent in kernel.reduction) >= LONG_SUM:
            dims[name] = max(dims[name], PLACES_OF_LONG)
    try:
        if not size_facts_hold(guard, dims):
            return None
        # Before indices are looked at, everywhere where nothing else tells their range.
        if math.prod(ex.evaluate(each, dims) for each in _extents(kernel)) > CASE_POINTS:
            return None
        found = sizes_at(kernel, dims)
    except InvalidExpression:
        return None
    return found if found.size_bytes(kernel) <= CASE_BYTES + table_bytes(kernel) else None


@lru_cache(maxsize=64)
def table_bytes(kernel: ir.Kernel) -> int:
    """Bytes of the tables that are the same at all sizes, as that of a vocabulary is."""
    elements: dict[int, int] = {}
    for node in kernel.body:
        match node:
            case ir.Gather(param, _, ex.Int(stride), ex.Int(size)) | ir.Scatter(
                _, _, param, _, ex.Int(stride), ex.Int(size)
            ):
                elements[param] = max(elements.get(param, 0), stride * size)
            case _:
                continue
    return sum(count * DTYPES[kernel.params[param].dtype] for param, count in elements.items())


def _extents(kernel: ir.Kernel) -> tuple[ex.Expr, ...]:
    return (*kernel.pointwise, *kernel.reduction)


def _tables(kernel: ir.Kernel) -> list[str]:
    """The symbols that say how many places there are, and nothing else."""
    gathers = [node for node in kernel.body if isinstance(node, ir.Placed)]
    sizes = [node.size for node in gathers]
    sizes += [node.index for node in kernel.body if isinstance(node, ir.Iota)]
    others = [node.stride for node in gathers]
    others += [node.index for node in kernel.body if isinstance(node, ir.Indexed)]
    others = [*kernel.pointwise, *kernel.reduction, *(each for each in others if each not in sizes)]
    counts = ex.symbols_of(*sizes)
    return [
        name for name in kernel.symbols if name in counts and name not in ex.symbols_of(*others)
    ]


def _size_at(size: ex.Expr, dims: Mapping[str, int]) -> int:
    """A size, or 1 where it has no meaning or is none."""
    try:
        return max(1, ex.evaluate(size, dims))
    except InvalidExpression:
        return 1


def stores_overlap(kernel: ir.Kernel, sizes: Sizes) -> bool:
    """Whether two points of the space store to the same element of one output, or two rows and
    places are the same one.
    """
    stored: dict[int, list[Array]] = {}
    for node in kernel.body:
        if isinstance(node, ir.Scatter):
            stored[node.param] = [scattered_indices(sizes, node)]
        if isinstance(node, ir.Store):
            stored.setdefault(node.param, []).append(stored_indices(sizes, node))
    return any(np.bincount(np.concatenate(parts)).max() > 1 for parts in stored.values())


def dense_count(sizes: Sizes, node: ir.Store) -> int:
    """How many elements a store writes, if these are the first ones, each once; 0: not proved."""
    rest, steps = node.index, list[tuple[int, int]]()
    try:
        for name, extent in _stored_axes(sizes, node):
            found = coefficient_of(rest, name)
            if found is None:
                return 0
            coefficient, rest = found
            if extent > 1:
                steps.append((ex.evaluate(coefficient, sizes.dims), extent))
        if ex.evaluate(rest, sizes.dims) != 0:
            return 0
    except InvalidExpression:
        return 0  # a coefficient has another axis in it
    count = 1
    for step, extent in sorted(steps):
        if step != count:
            return 0
        count *= extent
    return count


def _stored_axes(sizes: Sizes, node: ir.Store) -> list[tuple[str, int]]:
    """The axes along which a store runs, with their extents."""
    along = any(map(ir.is_reduction_variable, ex.symbols_of(node.index)))
    axes = [(f"p{number}", extent) for number, extent in enumerate(sizes.pointwise)]
    if along:
        axes += [(f"r{number}", extent) for number, extent in enumerate(sizes.reduction)]
    return axes


def stored_indices(sizes: Sizes, node: ir.Store) -> Array:
    """The elements that a store writes, one for each point at which it runs."""
    axes = _stored_axes(sizes, node)
    variables: dict[str, Array | int] = dict(sizes.dims)
    for axis, (name, extent) in enumerate(axes):
        shape = [1] * len(axes)
        shape[axis] = extent
        variables[name] = np.arange(extent, dtype=np.int64).reshape(shape)
    indices = np.asarray(evaluate_index(node.index, variables), np.int64)
    return np.broadcast_to(indices, tuple(extent for _, extent in axes)).ravel()


def scattered_indices(sizes: Sizes, node: ir.Scatter) -> Array:
    """The elements that a scatter writes, one for each row and place."""
    stride, size = (ex.evaluate(each, sizes.dims) for each in (node.stride, node.size))
    rows = stored_indices(sizes, ir.Store(node.param, node.index, node.value))
    return (rows[:, None] + stride * np.arange(size, dtype=np.int64)).ravel()
