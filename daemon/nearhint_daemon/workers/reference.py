"""The f64 reference of one verification case: random inputs, and what the Kernel must make of them.

The interpreter holds the whole iteration space in memory, so at large sizes it runs on *slabs*: the
same Kernel with its pointwise space cut to a window. The first, the last and a random window are
compared; that every other element was written at all is checked without a reference.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers.cases import (
    Sizes,
    dense_count,
    named_places,
    scattered_indices,
    stored_indices,
)
from nearhint_daemon.workers.elements import (
    FLOATS,
    SPECIAL_FACTORS,
    SPECIAL_FLOATS,
    SPREAD,
    Array,
    Draw,
    Elements,
    Stored,
    as_factors,
    decode,
    drawn_of,
    encode,
    random_elements,
    whole_of,
    with_drawn,
)
from nearhint_daemon.workers.interpreter import (
    Casts,
    Output,
    interpret,
    interpret_as_devices_truncate,
    interpret_telling,
    interpret_with_sums_moved,
    interpret_within_range,
)
from nearhint_daemon.workers.tolerance import (
    PRECISIONS,
    SHIFT,
    Arithmetic,
    arithmetic_of,
    tolerances,
)
from nearhint_rules import expr as ex

Window: TypeAlias = tuple[tuple[int, int], ...]
"""For each pointwise dim the start and the length of a slab."""
SLAB_POINTS = 1 << 18
ROW_LIMIT = 1 << 23
"""Elements of a reduction up to which it can be interpreted."""
PART_POINTS = 1 << 16
"""Points of a slab that a thread interprets at once, if its outermost dim can be cut so short."""
THREADS = 6
"""That interpret slabs together, at most, and on half of the CPUs: compilers have the others. On
two, where threads take turns, they take more of the CPUs' time than one thread does."""
COVERAGE_POINTS = 1 << 24
"""Points up to which all stored elements are enumerated, when slabs do not show them all."""
SPECIAL_EVERY = 8
"""Elements that an input must have for each special value in it."""
SHIFTS = 4

_DIVISIONS = frozenset({"floordiv", "truncdiv", "mod", "fmod"})
_SHIFT_OPS = frozenset({"shl", "shr"})


@dataclass(frozen=True, slots=True)
class Expected:
    """What is to be at elements of an output, and how far off each may be.

    Integers may not, but where `allowed` is infinite: any value is right there.
    """

    indices: Array
    values: Array
    allowed: Array


@dataclass(frozen=True, slots=True)
class Reference:
    """Inputs as stored (None for an output), and for each slab the outputs in order."""

    inputs: tuple[Elements | None, ...]
    windows: tuple[Window, ...]
    slabs: tuple[tuple[Expected, ...], ...]
    covered: tuple[Array, ...]
    """For each output which elements are stored to: a flag each, or one for all that says yes.

    Empty where there are more than `COVERAGE_POINTS`, and slabs do not show them all.
    """
    is_outside: bool | None
    """Whether some place that data names is none that there is; None if that is not known."""

    @property
    def is_whole(self) -> bool:
        """Whether every element of the outputs has a reference."""
        return len(self.windows) == 1

    @property
    def size_bytes(self) -> int:
        """What it takes to keep it."""
        kept = [elements.nbytes for elements in self.inputs if elements is not None]
        for output in (output for slab in self.slabs for output in slab):
            kept += [output.indices.nbytes, output.values.nbytes, output.allowed.nbytes]
        return sum(kept) + sum(flags.nbytes for flags in self.covered)


def random_inputs(
    kernel: ir.Kernel, sizes: Sizes, random: np.random.Generator, *, draw: Draw
) -> tuple[Elements | None, ...]:
    """Random elements for each input and scalar; of `draw` for the floats among the inputs.

    Products are of numbers near 1: of others those of many leave the range of f32, and what is
    then 0 times infinity depends on the order in which they are made.
    """
    has_products = any(
        isinstance(node, ir.Reduce | ir.Scan) and node.kind == "prod" for node in kernel.body
    )
    specials = SPECIAL_FACTORS if has_products else SPECIAL_FLOATS
    names = {node.name for node in kernel.body if isinstance(node, ir.Op)}
    whole = "shift" if names & _SHIFT_OPS else "divisor" if names & _DIVISIONS else "any"
    made: list[Elements | None] = []
    named = named_places(kernel, sizes)
    for number, (param, count) in enumerate(zip(kernel.params, sizes.elements, strict=True)):
        if param.role == "out":
            made.append(None)
            continue
        stored = random_elements(param.dtype, count, random, whole=whole, within=named.get(number))
        if has_products and param.dtype in FLOATS:
            near_one = as_factors(decode(param.dtype, drawn_of(stored)))
            stored = with_drawn(stored, encode(param.dtype, near_one))
        is_drawn = param.dtype in FLOATS and param.role == "in"
        if is_drawn and draw == "far apart":
            values = decode(param.dtype, drawn_of(stored)) * SPREAD.get(param.dtype, 1.0)
            stored = with_drawn(stored, encode(param.dtype, values))
        if is_drawn and draw == "special":
            chosen = random.permutation(specials)[: count // SPECIAL_EVERY]
            places = random.choice(count, chosen.size, replace=False)
            stored = whole_of(stored)
            stored[places] = encode(param.dtype, chosen)
        made.append(stored)
    return tuple(made)


def make_reference(
    kernel: ir.Kernel, sizes: Sizes, *, seed: Sequence[int], draw: Draw = "normal"
) -> Reference:
    """Draws inputs and interprets the Kernel on them."""
    random = np.random.default_rng(seed)
    inputs = random_inputs(kernel, sizes, random, draw=draw)
    windows = slab_windows(sizes, random)
    exact = readable(kernel, inputs)
    arithmetic = arithmetic_of(kernel, terms=math.prod(sizes.reduction))
    dtypes = [param.dtype for param in kernel.params if param.role == "out"]

    outside: list[bool] = []

    def expected(window: Window) -> tuple[Expected, ...]:
        outputs, is_outside = interpret_telling(
            slab(kernel, window), sizes.dims, exact, casts=Casts.ROUND_GIVEN
        )
        outside.append(is_outside)
        named = zip(dtypes, outputs, strict=True)
        return tuple(_expected(dtype, output, arithmetic) for dtype, output in named)

    parts = [list(_parts(kernel, window, sizes)) for window in windows]
    flat = [part for each in parts for part in each]
    threads = min(len(flat), THREADS, len(os.sched_getaffinity(0)) // 2)
    if threads > 1:
        # Their arrays are large: numpy leaves the interpreter's lock to the others meanwhile.
        with ThreadPoolExecutor(threads) as pool:
            found = iter(list(pool.map(expected, flat)))
    else:
        found = map(expected, flat)
    slabs = tuple(_joined([next(found) for _ in each]) for each in parts)
    is_known = not _has_rounded_places(kernel) and (len(windows) == 1 or any(outside))
    return Reference(
        inputs,
        windows,
        slabs,
        tuple(_covered(kernel, sizes, slabs)),
        any(outside) if is_known else None,
    )


def _has_rounded_places(kernel: ir.Kernel) -> bool:
    """Whether some place is computed from floats: in other roundings it may be another one."""
    dtypes = ir.dtypes_of(kernel)
    stack = [node.place for node in kernel.body if isinstance(node, ir.Placed)]
    while stack:
        place = stack.pop()
        if dtypes[place] in FLOATS:
            return True
        stack += ir.operands_of(kernel.body[place])
    return False


def _parts(kernel: ir.Kernel, window: Window, sizes: Sizes) -> Iterator[Window]:
    """A window cut along its outermost dim, so that what is computed of a part stays in a cache.

    Elements keep their order. It is whole where an output has several stores, which come in turn.
    """
    axis = next((axis for axis, (_, length) in enumerate(window) if length > 1), None)
    stores = [node for node in kernel.body if isinstance(node, ir.Store)]
    if axis is None or len(stores) > len({node.param for node in stores}):
        yield window
        return
    start, length = window[axis]
    points = math.prod(length for _, length in window) * math.prod(sizes.reduction)
    count = min(-(-points // PART_POINTS), length)
    for number in range(count):
        low, high = (start + length * each // count for each in (number, number + 1))
        yield (*window[:axis], (low, high - low), *window[axis + 1 :])


def _joined(parts: Sequence[tuple[Expected, ...]]) -> tuple[Expected, ...]:
    """The outputs of a window by those of its parts."""
    if len(parts) == 1:
        return parts[0]
    return tuple(
        Expected(
            np.concatenate([each.indices for each in outputs]),
            np.concatenate([each.values for each in outputs]),
            np.concatenate([each.allowed for each in outputs]),
        )
        for outputs in zip(*parts, strict=True)
    )


def _expected(dtype: str, output: Output, arithmetic: Arithmetic) -> Expected:
    if dtype in FLOATS:
        precision = PRECISIONS[dtype]
        allowed = tolerances(
            output.values, output.magnitudes, output=precision, arithmetic=arithmetic
        )
    else:
        allowed = np.where(np.isinf(output.magnitudes), math.inf, 0.0)
    return Expected(output.indices, output.values, allowed)


def _covered(
    kernel: ir.Kernel, sizes: Sizes, slabs: Sequence[tuple[Expected, ...]]
) -> Iterator[Array]:
    is_whole = len(slabs) == 1
    if not is_whole and sizes.points > COVERAGE_POINTS:
        return
    outputs = [place for place, param in enumerate(kernel.params) if param.role == "out"]
    for position, place in enumerate(outputs):
        stores = [
            node for node in kernel.body if isinstance(node, ir.Store) and node.param == place
        ]
        count = sizes.elements[place]
        if not is_whole and any(dense_count(sizes, node) == count for node in stores):
            yield np.ones(1, np.bool_)
            continue
        flags = np.zeros(count, np.bool_)
        if is_whole:
            flags[slabs[0][position].indices] = True
        else:
            for node in kernel.body:
                if isinstance(node, ir.Scatter):
                    flags[scattered_indices(sizes, node)] = True
            for node in stores:
                flags[stored_indices(sizes, node)] = True
        yield np.ones(1, np.bool_) if flags.all() else flags


def slab_windows(sizes: Sizes, random: np.random.Generator) -> tuple[Window, ...]:
    """One window that is all of the pointwise space, or the first, the last and a random one.

    None where a single row is too long to be held: such sizes are run, but have no reference.
    """
    if math.prod(sizes.reduction) > ROW_LIMIT:
        return ()
    lengths = list(sizes.pointwise)
    points = sizes.points
    for axis in sorted(range(len(lengths)), key=lambda axis: -lengths[axis]):
        if points <= SLAB_POINTS:
            break
        others = points // lengths[axis]
        lengths[axis] = max(1, SLAB_POINTS // others)
        points = others * lengths[axis]
    rooms = [extent - length for extent, length in zip(sizes.pointwise, lengths, strict=True)]
    if not any(rooms):
        return (tuple((0, length) for length in lengths),)
    starts = (
        [0] * len(rooms),
        rooms,
        [int(random.integers(0, room + 1)) for room in rooms],
    )
    return tuple(tuple(zip(start, lengths, strict=True)) for start in starts)


def slab(kernel: ir.Kernel, window: Window) -> ir.Kernel:
    """The Kernel on a window of its pointwise space: p_i runs over start .. start + length - 1."""
    moved: Mapping[str, ex.Expr] = {
        f"p{axis}": ex.add(ex.symbol(f"p{axis}"), start)
        for axis, (start, _) in enumerate(window)
        if start
    }
    cut = replace(kernel, pointwise=tuple(ex.Int(length) for _, length in window))
    if not moved:
        return cut
    return replace(
        cut,
        body=tuple(
            replace(node, index=ex.substitute(node.index, moved))
            if isinstance(node, ir.Access | ir.Iota)
            else node
            for node in kernel.body
        ),
    )


def readable(kernel: ir.Kernel, inputs: Sequence[Elements | None]) -> list[Stored | Array]:
    """Stored inputs as the interpreter takes them, decoded where it reads them."""
    return [
        _readable(param.role, param.dtype, stored)
        for param, stored in zip(kernel.params, inputs, strict=True)
    ]


def _readable(role: str, dtype: str, stored: Elements | None) -> Stored | Array:
    if stored is None:
        return np.zeros(0)
    return Stored(dtype, stored) if role == "in" else decode(dtype, whole_of(stored))


def shifted(
    kernel: ir.Kernel,
    inputs: Sequence[Elements | None],
    random: np.random.Generator,
    *,
    shift: float = SHIFT,
) -> list[Stored | Array]:
    """As `readable`, each float moved by `shift` up or down; of a repetition, what is drawn.

    With the opposite of a shift, and a generator in the same state, each is moved the other way.
    """
    made: list[Stored | Array] = []
    for param, stored in zip(kernel.params, inputs, strict=True):
        if stored is None or param.dtype not in FLOATS:
            made.append(_readable(param.role, param.dtype, stored))
            continue
        values = decode(param.dtype, drawn_of(stored))
        values = values * (1 + shift * random.choice((-1.0, 1.0), values.shape))
        made.append(_readable(param.role, "f64", with_drawn(stored, values)))
    return made


def sensitivity(
    kernel: ir.Kernel,
    sizes: Sizes,
    reference: Reference,
    number: int,
    random: np.random.Generator,
) -> tuple[Array, ...]:
    """For slab `number`, how far each output moves when the float inputs shift by up to `SHIFT`."""
    part = slab(kernel, reference.windows[number])

    def moved(shift: float) -> tuple[Output, ...]:
        inputs = shifted(kernel, reference.inputs, random, shift=shift)
        return interpret(part, sizes.dims, inputs, casts=Casts.ROUND_GIVEN)

    return _moves(reference.slabs[number], map(moved, _both_ways(SHIFT, random)))


def sensitivity_to_sums(
    kernel: ir.Kernel,
    sizes: Sizes,
    reference: Reference,
    number: int,
    random: np.random.Generator,
) -> tuple[Array, ...]:
    """For slab `number`, how far each output moves when sums do, by what they may be off by."""
    part = slab(kernel, reference.windows[number])
    inputs = readable(kernel, reference.inputs)
    arithmetic = arithmetic_of(kernel, terms=math.prod(sizes.reduction))

    def moved(shift: float) -> tuple[Output, ...]:
        return interpret_with_sums_moved(
            part,
            sizes.dims,
            inputs,
            casts=Casts.ROUND_GIVEN,
            arithmetic=arithmetic,
            shift=shift,
            random=random,
        )

    return _moves(reference.slabs[number], map(moved, _both_ways(arithmetic.computed, random)))


def _both_ways(shift: float, random: np.random.Generator) -> Iterator[float]:
    """`SHIFTS` shifts, each there and, by the same draws, the other way: else what jumps for one
    input alone may be missed.
    """
    for _ in range(SHIFTS // 2):
        state = random.bit_generator.state
        for each in (shift, -shift):
            random.bit_generator.state = state
            yield each


def _moves(outputs: tuple[Expected, ...], made: Iterable[tuple[Output, ...]]) -> tuple[Array, ...]:
    """How far what was made of each output is from what is expected of it, at most."""
    moves: list[Array] = [np.zeros(output.values.shape) for output in outputs]
    for each in made:
        for place, output in enumerate(each):
            before, after = (np.asarray(o.values, np.float64) for o in (outputs[place], output))
            with np.errstate(invalid="ignore"):
                moved = np.nan_to_num(np.abs(after - before), nan=np.inf)
            moves[place] = np.maximum(moves[place], np.where(_is_same(after, before), 0.0, moved))
    return tuple(moves)


def out_of_range(
    kernel: ir.Kernel, sizes: Sizes, reference: Reference, number: int, *, is_any: bool
) -> tuple[Array, ...]:
    """For slab `number`, which elements of each output would be others within the dtypes' range.

    The reference is made of f64: of 160 it knows `log(1 + exp(x))`, where f32 has infinity. Unless
    `is_any`, only those are meant that would be no number.
    """
    part = slab(kernel, reference.windows[number])
    held = interpret_within_range(part, sizes.dims, readable(kernel, reference.inputs))
    return tuple(
        ~_is_same(output.values, expected.values) & (is_any | ~np.isfinite(output.values))
        for output, expected in zip(held, reference.slabs[number], strict=True)
    )


def rounded_each(
    kernel: ir.Kernel, sizes: Sizes, reference: Reference, number: int
) -> tuple[Expected, ...]:
    """Slab `number` with every operation rounded to its dtype, one by one, as eager does.

    The quotient of two logarithms in f32 is whole where that of the numbers that f32 holds for them
    is a digit less: what jumps from it is right either way. Where f64 has NaN and eager a number,
    the tolerance is of that number.
    """
    part = slab(kernel, reference.windows[number])
    found = interpret(part, sizes.dims, readable(kernel, reference.inputs), casts=Casts.ROUND_EACH)
    arithmetic = arithmetic_of(kernel, terms=math.prod(sizes.reduction))
    dtypes = [param.dtype for param in kernel.params if param.role == "out"]
    own = [_expected(*each, arithmetic) for each in zip(dtypes, found, strict=True)]
    return tuple(
        replace(each, allowed=np.where(np.isnan(known.values), each.allowed, known.allowed))
        for each, known in zip(own, reference.slabs[number], strict=True)
    )


def as_devices_truncate(
    kernel: ir.Kernel, sizes: Sizes, reference: Reference, number: int
) -> Iterator[tuple[Expected, ...]]:
    """Slab `number` by each way in which devices make integers of NaN and of what none is."""
    part = slab(kernel, reference.windows[number])
    arithmetic = arithmetic_of(kernel, terms=math.prod(sizes.reduction))
    dtypes = [param.dtype for param in kernel.params if param.role == "out"]
    inputs = readable(kernel, reference.inputs)
    for found in interpret_as_devices_truncate(part, sizes.dims, inputs, arithmetic=arithmetic):
        yield tuple(_expected(*each, arithmetic) for each in zip(dtypes, found, strict=True))


def _is_same(left: Array, right: Array) -> Array:
    return np.asarray((left == right) | (np.isnan(left) & np.isnan(right)))
