"""Checks a lowering: a Kernel's IR against the ATen ops that it replaces, both in f64.

Verification compares a binary with the IR; without this check an error in lowering would verify
itself. It runs at small sizes within the Program's assumed ranges, 1 and primes among them (each
symbol another prime, so that exchanged dimensions show) and multiples of what sizes are divided by
(blocks need them), once with small inputs, where an epsilon that was left out is large. Where sizes
that are no symbols make even the smallest space large, slabs of it are compared (`reference`) with
their part of what the ops make. Tables that are large have fewer places (`small_tables`). What is
made on the way is freed, so that a batch of one may be as large as what is measured.

A Kernel's constants may be rounded to f32, as eager's are: that moves a remainder by as much as it
moves the whole, and half floats are so few that some lie just where it makes a quotient's floor
another (1.5 // 0.3). What is computed in several steps may jump, as floor does, where such steps in
another order do not. Nor need sums be equal to their last digit: those of a softmax are 1 or a
digit less, and as integers 1 or 0. So an element may also lie between what it is with constants, or
with what jumps, moved a unit up and a unit down, or of sums that are moved by some digits of f64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch

from nearhint_compiler.analysis.jumps import computed_before_jumps
from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers.aten import AtenProgram
from nearhint_daemon.workers.cases import sizes_at
from nearhint_daemon.workers.elements import FLOATS, Array
from nearhint_daemon.workers.errors import FallbackInvalid
from nearhint_daemon.workers.inputs import (
    TensorSpec,
    as_tensor,
    flat_storage,
    peak_bytes,
    random_values,
    size_bytes,
    tensor_spec,
    within_ranges,
)
from nearhint_daemon.workers.interpreter import (
    Output,
    SpaceTooLargeError,
    interpret,
    interpret_with_sums_moved,
    is_float_sum,
)
from nearhint_daemon.workers.reference import slab, slab_windows
from nearhint_daemon.workers.small_tables import with_small_tables
from nearhint_daemon.workers.ties import is_as_good, rounded_arg
from nearhint_daemon.workers.tolerance import (
    EXACT,
    LOWERING,
    errors_in_tolerances,
    tolerances,
)
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.plan import Fallback
from nearhint_rules.program import TensorType, ValueType, value_types

PATTERNS: tuple[tuple[tuple[int, ...], ...], ...] = (
    # For each row: the largest that fits.
    ((1,),),
    ((2, 3, 5, 7), (2, 3)),
    ((13, 11, 7, 5), (5, 3, 2, 7), (3, 2)),
    ((1, 17, 1, 13), (1, 5)),
    ((17, 1, 13, 1), (5, 1)),
    ((16, 32, 8), (8, 4, 2), (4, 2)),
)
CASE_BYTES, WIDENED = 256 << 20, 4
"""What all values of a case may take, and how many times what they take as they are: f16 in f64."""
CASE_POINTS = 1 << 20
"""Points that are interpreted at once, of a case; beyond them its slabs are."""
BEYOND_LEAST = 8
"""Sizes that are tried where none of those ran."""
SMALL_SCALE = 2.0**-7
SHIFT, SHIFTS = 2.0**-44, 16
"""By how much of its size a sum moves, up or down, and how often that is tried."""
ONE = 0x3F800000
"""The bits of 1 in f32."""
LARGEST = 0x7F7FFFFF
"""The bits of the largest finite f32."""
SHORT_BITS = 8
"""Trailing zeros of a constant's bits from which on it is taken as written so, and not rounded."""


@dataclass(frozen=True, slots=True)
class LoweringVerdict:
    """`problem` is empty if Kernel and Fallback agree."""

    problem: str
    worst_error: float
    cases: int


def check_lowering(
    kernel: ir.Kernel,
    fallback: Fallback,
    *,
    seed: int,
    device: str = "cpu",
    limit_bytes: int = CASE_BYTES,
) -> LoweringVerdict:
    """Compares at several sizes, up to the first that differs.

    Where sizes that are no symbols leave none whose values take `CASE_BYTES` or less, it is at the
    least ones, if what is alive there at once takes `limit_bytes` or less.

    Sizes at which the ops themselves refuse to run, or make other shapes than the Program says, are
    left out: its ranges do not hold all that was assumed. If none is left, just beyond the least
    sizes some are looked for: so few may be what is split into as many parts as were captured; then
    among sizes that are alike. If there are none, that is a problem. Raises `OpNotAllowed`.
    """
    worst, count = 0.0, 0
    if CASE_BYTES < _f64_bytes(fallback, within_ranges(fallback.program, (1,))) < math.inf:
        kernel, fallback = with_small_tables(kernel, fallback)
    refusal = f"its values take more than {limit_bytes} bytes in f64 at any sizes"
    generator = torch.Generator().manual_seed(seed)
    for cases in (
        _cases(fallback),
        _beyond_least(fallback),
        _alike(fallback),
        _least(fallback, limit_bytes),
    ):
        if count:
            break
        for sizes, scale in cases:
            try:
                outcome = _compare(kernel, fallback, sizes, generator, scale=scale, device=device)
            except (FallbackInvalid, InvalidExpression, SpaceTooLargeError) as error:
                refusal = f"{error} at {sizes}"
                continue
            worst, count = max(worst, outcome.worst_error), count + 1
            if outcome.problem:
                return LoweringVerdict(f"{outcome.problem}, at {sizes}", worst, count)
    return LoweringVerdict("" if count else f"it could not be run: {refusal}", worst, count)


def _beyond_least(fallback: Fallback) -> Iterator[tuple[dict[str, int], float]]:
    """Where no other sizes could be run: all of them so many more than their least."""
    least = [max(symbol.low, 1) for symbol in fallback.program.symbols]
    for more in range(1, BEYOND_LEAST + 1) if least else ():
        sizes = within_ranges(fallback.program, [size + more for size in least])
        if _f64_bytes(fallback, sizes) <= CASE_BYTES:
            yield sizes, 1.0


def _alike(fallback: Fallback) -> Iterator[tuple[dict[str, int], float]]:
    """Where those are none, either: multiples of the largest least size, for all that divide none.

    What is cut into blocks, less some of these, has none left where blocks are long, and another
    size may be cut into as many as there are.
    """
    symbols = fallback.program.symbols
    divisors = {by.name for _, by in _divisions(fallback) if isinstance(by, ex.Sym)}
    largest = max((symbol.low for symbol in symbols), default=0)
    for times in range(1, BEYOND_LEAST + 1) if largest else ():
        wanted = [1 if symbol.name in divisors else times * largest for symbol in symbols]
        sizes = within_ranges(fallback.program, wanted)
        if _f64_bytes(fallback, sizes) <= CASE_BYTES:
            yield sizes, 1.0


def _least(fallback: Fallback, limit_bytes: int) -> Iterator[tuple[dict[str, int], float]]:
    """Where all that was tried is too large: the least sizes, in as little memory as they take."""
    sizes = within_ranges(fallback.program, (1,), steps=_steps(fallback))
    if CASE_BYTES < _f64_bytes(fallback, sizes) < math.inf:
        alive = peak_bytes(fallback.program, sizes, precision="f64", beside=_compared(fallback))
        if alive <= limit_bytes:
            yield sizes, 1.0
            yield sizes, SMALL_SCALE


def _compared(fallback: Fallback) -> frozenset[int]:
    """The values that the Kernel reads and makes."""
    return frozenset((*fallback.inputs, *fallback.outputs))


def _cases(fallback: Fallback) -> Iterator[tuple[dict[str, int], float]]:
    seen: set[tuple[int, ...]] = set()
    for steps, row in product(({}, _steps(fallback)), PATTERNS):
        for pattern in row:
            sizes = within_ranges(fallback.program, pattern, steps=steps)
            if _f64_bytes(fallback, sizes) > CASE_BYTES:
                continue
            if tuple(sizes.values()) not in seen:
                yield sizes, 1.0 if len(seen) != 1 else SMALL_SCALE
            seen.add(tuple(sizes.values()))
            break
    if len(seen) == 1:  # no symbols: the one case again, on small inputs
        yield within_ranges(fallback.program, (1,)), SMALL_SCALE


def _steps(fallback: Fallback) -> dict[str, int]:
    """By symbol the number of which it may have to be a multiple: what sizes divide it by."""
    steps: dict[str, int] = {}
    for top, by in _divisions(fallback):
        if isinstance(by, ex.Int):
            for name in ex.symbols_of(top):
                steps[name] = math.lcm(steps.get(name, 1), by.value)
    return steps


def _divisions(fallback: Fallback) -> Iterator[tuple[ex.Expr, ex.Expr]]:
    """What sizes divide, and by what."""
    types = (kind for kind in value_types(fallback.program) if isinstance(kind, TensorType))
    stack = [*fallback.dims, *(size for kind in types for size in (*kind.shape, *kind.stride))]
    while stack:
        size = stack.pop()
        stack.extend(ex.children(size))
        match size:
            case ex.FloorDiv(top, by) | ex.Mod(top, by):
                yield top, by
            case _:
                continue


def _f64_bytes(fallback: Fallback, sizes: Mapping[str, int]) -> float:
    """What all values take at most; infinite at sizes at which there are none."""
    try:
        return WIDENED * size_bytes(fallback.program, sizes)
    except (FallbackInvalid, InvalidExpression):
        return math.inf


def kernel_dims(kernel: ir.Kernel, fallback: Fallback, sizes: Mapping[str, int]) -> dict[str, int]:
    """The Kernel's symbols at the Fallback's sizes; raises `FallbackInvalid` if they do not fit."""
    if len(fallback.dims) != len(kernel.symbols):
        raise FallbackInvalid(f"{len(fallback.dims)} dims for {len(kernel.symbols)} symbols")
    return {
        name: ex.evaluate(expr, sizes)
        for name, expr in zip(kernel.symbols, fallback.dims, strict=True)
    }


def _compare(
    kernel: ir.Kernel,
    fallback: Fallback,
    sizes: Mapping[str, int],
    generator: torch.Generator,
    *,
    scale: float,
    device: str,
) -> LoweringVerdict:
    dims = kernel_dims(kernel, fallback, sizes)
    slabs = _slabs(kernel, dims, generator.initial_seed())
    program = AtenProgram(fallback.program, sizes, precision="f64", device=device)
    inputs = random_values(
        fallback.program, sizes, precision="f64", device=device, generator=generator, scale=scale
    )
    values = program.values(inputs, kept=_compared(fallback))
    types = value_types(fallback.program)
    for number in fallback.outputs:
        _require_shape(types[number], sizes, values[number])
    arguments = [
        flat_storage(as_tensor(values[number]))[: 1 if param.role == "scalar" else None]
        .cpu()
        .numpy()
        for number, param in zip(fallback.inputs, kernel.params, strict=False)
    ]
    worst = 0.0
    for part in slabs:
        try:
            outputs = interpret(part, dims, arguments, arithmetic=LOWERING)
        except IndexError as error:
            return LoweringVerdict(str(error), np.inf, 1)
        for place, (number, output) in enumerate(zip(fallback.outputs, outputs, strict=True)):
            value_type = types[number]
            assert isinstance(value_type, TensorType)
            is_whole = len(slabs) == 1
            outcome = _compare_output(value_type, sizes, output, values[number], is_whole=is_whole)
            if outcome.problem and _is_tie(part, dims, arguments, place, output, values[number]):
                continue
            if outcome.problem:
                others = [
                    made[place]
                    for made in _moved(part, dims, arguments, seed=generator.initial_seed())
                ]
                outcome = _compare_output(
                    value_type, sizes, output, values[number], is_whole=is_whole, others=others
                )
            worst = max(worst, outcome.worst_error)
            if outcome.problem:
                return LoweringVerdict(f"output {place}: {outcome.problem}", worst, 1)
    return LoweringVerdict("", worst, 1)


def _require_shape(value_type: ValueType, sizes: Mapping[str, int], made: torch.Tensor) -> None:
    """Raises `FallbackInvalid` where the ops make something else than the Program says."""
    if not isinstance(value_type, TensorType):
        raise FallbackInvalid("an output is no tensor")
    shape = tensor_spec(value_type, sizes).shape
    if tuple(made.shape) != shape:
        raise FallbackInvalid(f"ATen makes {tuple(made.shape)}, not {shape}")


def _slabs(kernel: ir.Kernel, dims: Mapping[str, int], seed: int) -> list[ir.Kernel]:
    """The Kernel, or the first, the last and a random slab; raises `FallbackInvalid`."""
    sizes = sizes_at(kernel, dims)
    if sizes.points <= CASE_POINTS:
        return [kernel]
    windows = slab_windows(sizes, np.random.default_rng(seed))
    if not windows:
        raise FallbackInvalid("a row is too long to be interpreted")
    return [slab(kernel, window) for window in windows]


def _moved(
    kernel: ir.Kernel, dims: Mapping[str, int], arguments: Sequence[Array], *, seed: int
) -> Iterator[tuple[Output, ...]]:
    """What the Kernel makes with its constants, what jumps, and again and again its sums moved."""
    for each in (*_constants_moved(kernel), *_jumps_moved(kernel)):
        yield interpret(each, dims, arguments, arithmetic=LOWERING)
    random = np.random.default_rng(seed)
    for _ in range(SHIFTS if any(map(is_float_sum, kernel.body)) else 0):
        yield interpret_with_sums_moved(
            kernel, dims, arguments, arithmetic=LOWERING, shift=SHIFT, random=random
        )


def _constants_moved(kernel: ir.Kernel) -> Iterator[ir.Kernel]:
    """The Kernel with all constants that were rounded to f32 a unit up, and a unit down."""
    rounded = [isinstance(node, ir.Const) and _is_rounded(node) for node in kernel.body]
    for step in (1, -1) if any(rounded) else ():
        yield replace(
            kernel,
            body=tuple(
                replace(node, bits=node.bits + step)
                if isinstance(node, ir.Const) and is_it
                else node
                for node, is_it in zip(kernel.body, rounded, strict=True)
            ),
        )


def _jumps_moved(kernel: ir.Kernel) -> Iterator[ir.Kernel]:
    """The Kernel with all that jumps of computed floats are taken of a unit of f32 up, and down."""
    moved = computed_before_jumps(kernel)
    for bits in (ONE + 1, ONE - 1) if moved else ():
        body: list[ir.BodyNode] = []
        places: dict[int, int] = {}
        for position, node in enumerate(kernel.body):
            places[position] = len(body)
            body.append(ir.with_operands(node, places))
            if position in moved:
                unit = ir.Const("f32", bits)
                body += (unit, ir.Op("mul", "f32", (len(body) - 1, len(body))))
                places[position] = len(body) - 1
        yield replace(kernel, body=tuple(body))


def _is_rounded(constant: ir.Const) -> bool:
    """Whether a constant may be another one that f32 does not hold; the largest of f32 is none."""
    is_short = constant.bits % (1 << SHORT_BITS) == 0
    return constant.dtype == "f32" and not is_short and constant.bits & LARGEST != LARGEST


def _is_tie(
    kernel: ir.Kernel,
    dims: Mapping[str, int],
    arguments: Sequence[Array],
    place: int,
    output: Output,
    wanted: torch.Tensor,
) -> bool:
    """Whether ATen found other elements of computed values, each as extreme as the Kernel's."""
    inputs = sum(param.role != "out" for param in kernel.params)
    arg = rounded_arg(kernel, inputs + place)
    stored = flat_storage(wanted).cpu().numpy()
    if arg is None or output.indices.max() >= stored.size:
        return False
    found = stored[output.indices]
    good = is_as_good(kernel, dims, arguments, arg, found, output=EXACT, arithmetic=LOWERING)
    return bool((good | (found == output.values)).all())


def _compare_output(
    value_type: TensorType,
    sizes: Mapping[str, int],
    output: Output,
    wanted: torch.Tensor,
    *,
    is_whole: bool,
    others: Sequence[Output] = (),
) -> LoweringVerdict:
    """One output, laid out as the Plan declares it, element by element; of a slab, its own.

    Elements may be between those of `others`.
    """
    spec = tensor_spec(value_type, sizes)
    if output.indices.size and not 0 <= output.indices.min() <= output.indices.max() < max(
        1, spec.elements
    ):
        return LoweringVerdict("stores outside its storage", np.inf, 1)
    reference = wanted.to(torch.float64).cpu().numpy()
    lay = _laid_out if is_whole else _as_written
    found, magnitudes = lay(spec, output)
    if not is_whole:
        reference = _flat(spec, reference)[output.indices]
    errors = _errors(value_type.dtype, found, reference, magnitudes)
    if others:
        made = [found, *(lay(spec, other)[0] for other in others)]
        nearest = np.clip(reference, np.min(made, axis=0), np.max(made, axis=0))
        again = _errors(value_type.dtype, nearest, reference, magnitudes)
        errors = np.where(np.isnan(reference), errors, np.minimum(errors, again))
    if errors.size and errors.max() > 1:
        at = np.unravel_index(int(errors.argmax()), errors.shape)
        where = [int(position) for position in at]
        element = f"element {where}" if is_whole else f"at {output.indices[at]} of its storage it"
        return LoweringVerdict(
            f"{element} is {found[at]:.12g}, ATen says {reference[at]:.12g} "
            f"({np.count_nonzero(errors > 1)} of {errors.size} differ)",
            float(errors.max()),
            1,
        )
    return LoweringVerdict("", float(errors.max(initial=0.0)), 1)


def _laid_out(spec: TensorSpec, output: Output) -> tuple[Array, Array]:
    """An output's elements and magnitudes as it lies; NaN is what it leaves out."""
    storage, scales = np.full(max(1, spec.elements), np.nan), np.zeros(max(1, spec.elements))
    storage[output.indices] = output.values.astype(np.float64)
    scales[output.indices] = output.magnitudes
    return _strided(spec, storage), _strided(spec, scales)


def _as_written(_: TensorSpec, output: Output) -> tuple[Array, Array]:
    """The elements and magnitudes that a slab writes, one after the other."""
    return output.values.astype(np.float64), np.asarray(output.magnitudes)


def _flat(spec: TensorSpec, elements: Array) -> Array:
    """The storage in which `elements` lie."""
    storage = np.full(max(1, spec.elements), np.nan)
    _strided(spec, storage)[...] = elements
    return storage


def _strided(spec: TensorSpec, storage: Array) -> Array:
    steps = [8 * stride for stride in spec.stride]
    return np.lib.stride_tricks.as_strided(storage, spec.shape, steps)


def _errors(dtype: str, found: Array, reference: Array, magnitudes: Array) -> Array:
    """In units of their tolerances."""
    if dtype in FLOATS:
        allowed = tolerances(reference, magnitudes, output=EXACT, arithmetic=LOWERING)
        return errors_in_tolerances(found, reference, allowed, largest=EXACT.largest)
    # Of infinite magnitude: cast from what no integer can hold, so anything is right.
    return np.where((found == reference) | np.isinf(magnitudes), 0.0, np.inf)
