"""Verifying a Variant: its binary against the f64 interpreter of its Kernel's IR.

Each case draws fresh random inputs, runs the binary into outputs full of NaN (or a pattern) in
memory that notices strays (`memory`), and compares every element that has a reference within the
policy of `tolerance`; elements that no store covers must be untouched. Cases differ in sizes (the
hints, and awkward ones), in layout, in threads, and one strews NaN and infinities into the inputs;
where a row's largest element is subtracted, as in a softmax, some have numbers far apart.

References are kept, with the tolerances: the Variants of one Kernel come one after the other, with
the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from nearhint_compiler.analysis.jumps import may_go_either_way
from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.recent import Recent
from nearhint_daemon.workers.cases import CASE_POINTS, Sizes, awkward_sizes, hinted_sizes
from nearhint_daemon.workers.elements import FLOATS, Array, Draw, Elements, decode
from nearhint_daemon.workers.errors import MemoryLimitExceeded
from nearhint_daemon.workers.interpreter import is_float_sum
from nearhint_daemon.workers.memory import Buffer, close_all, poison_byte
from nearhint_daemon.workers.reference import (
    SLAB_POINTS,
    Expected,
    Reference,
    as_devices_truncate,
    make_reference,
    out_of_range,
    readable,
    rounded_each,
    sensitivity,
    sensitivity_to_sums,
    slab,
)
from nearhint_daemon.workers.reference_ops import is_truncation
from nearhint_daemon.workers.ties import is_as_good, rounded_arg
from nearhint_daemon.workers.tolerance import (
    EXCUSED_SHARE,
    GAIN,
    PRECISIONS,
    arithmetic_of,
    errors_in_tolerances,
)
from nearhint_rules.guard import Guard, pointer_facts, size_facts_hold

MANY_THREADS = 5
"""At sizes with fewer rows than this, so many threads are tried as well: they must share rows. And
at the largest awkward sizes: there they must share blocks of columns."""
FAR_APART_TERMS = 16
"""Terms of a reduction from which on its largest is looked for in more than one step."""
BYTES_LIMIT = 2 << 30
"""Bytes that the parameters may take at a hint, where nothing else is said."""
CACHE_BYTES = 512 << 20
"""Room for all cases of a Kernel, of which a large one takes 20 MB an output: three slabs."""
ONE_BYTE_FLOATS = frozenset({"f8e4m3fn", "f8e5m2"})
"""Dtypes with too few NaN for one that no result has."""
POISON_SHARE = 0.01
"""Elements outside the slabs that may, by chance, be equal to an integer's pattern."""


class Subject(Protocol):
    """A loaded binary on its device."""

    def allocate(self, dtype: str, count: int, *, layout: str, content: Elements | None) -> Buffer:
        """Memory for one parameter."""
        ...

    def run(self, dims: Sequence[int], buffers: Sequence[Buffer], *, threads: int) -> bool | None:
        """Runs once, to the end; says whether a place was outside, None where none tells."""
        ...


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    sizes: Sizes
    layout: str
    threads: int
    draw: Draw = "normal"

    def __str__(self) -> str:
        dims = ", ".join(f"{name}={size}" for name, size in self.sizes.dims.items())
        drawn = _DRAWN[self.draw]
        return f"at {dims or 'no sizes'} ({self.layout}, {self.threads} threads{drawn})"


_DRAWN: Mapping[Draw, str] = {
    "normal": "",
    "special": ", NaN and infinities",
    "far apart": ", numbers far apart",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`problem` is empty if all went well; `worst_error` is in units of its tolerance.

    `is_damaging`: the binary wrote where it must not, so nothing in this process can be trusted.
    """

    problem: str
    worst_error: float
    cases: int
    is_damaging: bool


@dataclass(frozen=True, slots=True)
class Ran:
    """A case after its run: the memory of its parameters, which is there until the next is asked
    for; or, where it was compared on its device and all of it was right, the worst error that was
    found in it, or in what was compared with it.
    """

    case: Case
    reference: Reference
    worst_error: float = 0.0
    buffers: Sequence[Buffer] = ()
    is_outside: bool | None = None
    """What the binary said of the places that data names."""


class Runs(Protocol):
    """Runs cases, in any grouping, and tells of them in their order."""

    def __call__(
        self, kernel: ir.Kernel, wanted: Iterable[tuple[Case, Reference]]
    ) -> Generator[Ran, None, None]:
        """Runs these."""
        ...


class References:
    """References by (Kernel, sizes, seed, draw), the least recently used dropped first."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._kept = Recent[tuple[object, ...], Reference](
            limit_bytes, weigh=lambda reference: reference.size_bytes
        )
        self._begun: dict[tuple[object, ...], Future[Reference]] = {}
        self._last: _Hashed | None = None

    def get(self, kernel: ir.Kernel, sizes: Sizes, *, seed: int, draw: Draw) -> Reference:
        """The reference of a case, computed if it is not kept."""
        key = (self._hashed(kernel), tuple(sizes.dims.items()), seed, draw)
        found = self._kept.get(key)
        if found is not None:
            return found
        begun = self._begun.pop(key, None)
        return self._kept.keep(
            key,
            _reference(kernel, sizes, seed, draw=draw) if begun is None else begun.result(),
        )

    @contextmanager
    def beginning(
        self, kernel: ir.Kernel, later: Iterable[Sizes], *, seed: int
    ) -> Generator[None, None, None]:
        """Has references of large sizes, of normal numbers, computed while others are asked for.

        None of that goes on afterwards.
        """
        hashed = self._hashed(kernel)
        keys = {(hashed, tuple(sizes.dims.items()), seed, "normal"): sizes for sizes in later}
        wanted = {key: sizes for key, sizes in keys.items() if key not in self._kept}
        if not wanted:
            yield
            return
        with ThreadPoolExecutor(1) as pool:
            for key, sizes in wanted.items():
                self._begun[key] = pool.submit(_reference, kernel, sizes, seed, draw="normal")
            try:
                yield
            finally:
                for begun in self._begun.values():
                    begun.cancel()
                self._begun.clear()

    def _hashed(self, kernel: ir.Kernel) -> _Hashed:
        if self._last is None or self._last.kernel is not kernel:
            self._last = _Hashed(kernel)
        return self._last


class _Hashed:
    """A Kernel whose hash is known: a Variant has a hundred cases, and each asks for it."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        self._hash = hash(kernel)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Hashed):
            return NotImplemented
        return self.kernel is other.kernel or self.kernel == other.kernel

    def __hash__(self) -> int:
        return self._hash


def _reference(kernel: ir.Kernel, sizes: Sizes, seed: int, *, draw: Draw) -> Reference:
    return make_reference(kernel, sizes, seed=(seed, *sizes.dims.values()), draw=draw)


def cases(
    kernel: ir.Kernel,
    guard: Guard,
    hints: Sequence[Mapping[str, int]],
    *,
    threads: int,
    can_shift: bool,
    limit_bytes: int = BYTES_LIMIT,
) -> Iterator[Case]:
    """The runs that a Variant must pass, the cheapest first.

    Raises `MemoryLimitExceeded` where the parameters take more bytes at a hint.
    """
    awkward = awkward_sizes(kernel, guard)
    many = max(threads, MANY_THREADS)
    for turn, sizes in enumerate(sorted(awkward, key=lambda found: found.points)):
        yield Case(sizes, "aligned", threads)
        is_shared = math.prod(sizes.pointwise) < many or 2 * sizes.points > CASE_POINTS
        if threads < many and is_shared:
            yield Case(sizes, "aligned", many)
        if can_shift:
            # After "aligned", whose pattern tells of a stray that a guard page makes a fault.
            yield Case(sizes, ("shifted", "flush")[turn % 2], 1)
    for sizes in awkward[:1]:
        yield Case(sizes, "aligned", 1, draw="special")
    if _shifts_by_extreme(kernel):
        for sizes in awkward:
            if math.prod(sizes.reduction) >= FAR_APART_TERMS:
                # Few rows are shared by many threads, and walked by one each where there are few.
                counts = (many, threads) if math.prod(sizes.pointwise) < many else (threads,)
                for count in dict.fromkeys(counts):
                    yield Case(sizes, "aligned", count, draw="far apart")
    for number, hint in enumerate(hints):
        if not size_facts_hold(guard, hint):
            continue
        sizes = hinted_sizes(kernel, tuple(hint.items()))
        if sizes.size_bytes(kernel) > limit_bytes:
            raise MemoryLimitExceeded(
                f"{sizes.size_bytes(kernel)} bytes at {dict(hint)}, at most {limit_bytes}"
            )
        yield Case(sizes, "aligned", threads)
        if can_shift and number == 0:
            yield Case(sizes, "flush", 1)


def _shifts_by_extreme(kernel: ir.Kernel) -> bool:
    """Whether something is computed from the largest or smallest of a row, as in a softmax.

    That may cancel: of normal numbers a softmax is right whatever is taken for their largest.
    """
    extremes = {
        position
        for position, node in enumerate(kernel.body)
        if isinstance(node, ir.Reduce) and node.kind in ("max", "min")
    }
    return any(
        extremes.intersection(ir.operands_of(node))
        for node in kernel.body
        if not isinstance(node, ir.Store)
    )


def verify(
    kernel: ir.Kernel,
    subject: Subject,
    guard: Guard,
    hints: Sequence[Mapping[str, int]],
    *,
    threads: int,
    seed: int,
    references: References,
    runs: Runs | None = None,
    limit_bytes: int = BYTES_LIMIT,
) -> Verdict:
    """Runs all cases, up to the first that fails; `runs` says how (None: one by one).

    Raises `MemoryLimitExceeded`, as `cases` does.
    """
    worst, count = 0.0, 0
    can_shift = not pointer_facts(guard)
    wanted = (
        (case, references.get(kernel, case.sizes, seed=seed, draw=case.draw))
        for case in cases(
            kernel, guard, hints, threads=threads, can_shift=can_shift, limit_bytes=limit_bytes
        )
    )
    with (
        references.beginning(kernel, _large(kernel, guard, hints, limit_bytes), seed=seed),
        closing((runs or partial(one_by_one, subject))(kernel, wanted)) as each,
    ):
        for ran in each:
            outcome = judged(kernel, ran, seed=seed)
            worst, count = max(worst, outcome.worst_error), count + 1
            if outcome.problem:
                problem = f"{outcome.problem}, {ran.case}"
                return Verdict(problem, worst, count, outcome.is_damaging)
    if count == 0:
        return Verdict("the Guard allows none of the sizes to run at", worst, count, False)
    return Verdict("", worst, count, False)


def _large(
    kernel: ir.Kernel, guard: Guard, hints: Sequence[Mapping[str, int]], limit_bytes: int
) -> Iterator[Sizes]:
    """The sizes of hints whose references take numpy longer than the interpreter."""
    for hint in hints:
        if size_facts_hold(guard, hint):
            sizes = hinted_sizes(kernel, tuple(hint.items()))
            if sizes.points > SLAB_POINTS and sizes.size_bytes(kernel) <= limit_bytes:
                yield sizes


def one_by_one(
    subject: Subject, kernel: ir.Kernel, wanted: Iterable[tuple[Case, Reference]]
) -> Generator[Ran, None, None]:
    """Each case in memory of its own, until the next is asked for."""
    for case, reference in wanted:
        buffers: list[Buffer] = []
        try:
            for param, count, content in zip(
                kernel.params, case.sizes.elements, reference.inputs, strict=True
            ):
                buffers.append(
                    subject.allocate(param.dtype, count, layout=case.layout, content=content)
                )
            dims = tuple(case.sizes.dims.values())
            is_outside = subject.run(dims, buffers, threads=case.threads)
            yield Ran(case, reference, buffers=buffers, is_outside=is_outside)
        finally:
            close_all(buffers)


def judged(kernel: ir.Kernel, ran: Ran, *, seed: int) -> Verdict:
    """What a run was like, by what is in its memory if it was not compared where it ran."""
    if not ran.buffers:
        return Verdict("", ran.worst_error, 1, False)
    strays = [place for place, buffer in enumerate(ran.buffers) if not buffer.is_intact()]
    if strays:
        return Verdict(f"writes beside parameter {strays[0]}", math.inf, 1, True)
    if None not in (ran.is_outside, ran.reference.is_outside):
        if ran.is_outside and not ran.reference.is_outside:
            return Verdict("tells of a place outside where there is none", math.inf, 1, False)
        if ran.reference.is_outside and not ran.is_outside:
            return Verdict("does not tell of a place outside", math.inf, 1, False)
    outputs = {
        place: buffer
        for place, (param, buffer) in enumerate(zip(kernel.params, ran.buffers, strict=True))
        if param.role == "out"
    }
    wholes, slabs = _read(ran.reference, outputs)
    worst = 0.0
    for number, found in enumerate(slabs):
        outcome = _compare(kernel, ran.case, ran.reference, number, found, seed=seed)
        worst = max(worst, outcome.worst_error)
        if outcome.problem:
            return outcome
    return Verdict(_coverage(kernel, ran.reference, wholes), worst, 1, False)


def _read(
    reference: Reference, outputs: Mapping[int, Buffer]
) -> tuple[Mapping[int, Array], Sequence[Mapping[int, Array]]]:
    """The outputs whole, if their coverage is known; and what is compared, for each slab."""
    wholes = {place: buffer.read() for place, buffer in outputs.items() if reference.covered}
    slabs = [
        {
            place: wholes[place][expected.indices]
            if place in wholes
            else buffer.read_at(expected.indices)
            for (place, buffer), expected in zip(outputs.items(), slab, strict=True)
        }
        for slab in reference.slabs
    ]
    return wholes, slabs


def _compare(
    kernel: ir.Kernel,
    case: Case,
    reference: Reference,
    number: int,
    outputs: Mapping[int, Array],
    *,
    seed: int,
) -> Verdict:
    """What was read of all outputs against slab `number` of the reference.

    What is too large for f32 on the way is no mistake of a Variant, nor, where inputs are not just
    normal numbers, what it cannot hold; nor is, where something jumps, or is compared, or is NaN on
    one side alone, what eager makes operation by operation, or what another order of sums may make;
    nor what follows from an integer that a device makes of NaN, or of what no integer is.
    """
    sizes = case.sizes
    arithmetic = arithmetic_of(kernel, terms=math.prod(sizes.reduction))
    worst = 0.0
    for position, (place, found) in enumerate(outputs.items()):
        expected = reference.slabs[number][position]
        dtype = kernel.params[place].dtype
        errors = element_errors(dtype, found, expected)
        arg = rounded_arg(kernel, place)
        if arg is not None and errors.any():
            good = is_as_good(
                slab(kernel, reference.windows[number]),
                sizes.dims,
                readable(kernel, reference.inputs),
                arg,
                found,
                output=PRECISIONS[arg.dtype],
                arithmetic=arithmetic,
            )
            errors[good] = 0.0
        bad = np.flatnonzero(errors > 1)
        if bad.size:
            beyond = out_of_range(kernel, sizes, reference, number, is_any=case.draw != "normal")
            errors[bad[beyond[position][bad]]] = 0.0
            bad = np.flatnonzero(errors > 1)
        if bad.size and (may_go_either_way(kernel) or _differ_in_nan(dtype, found, expected)):
            each = rounded_each(kernel, sizes, reference, number)[position]
            errors[bad[element_errors(dtype, found, each)[bad] <= 1]] = 0.0
            bad = np.flatnonzero(errors > 1)
        if bad.size and has_truncations(kernel):
            for made in as_devices_truncate(kernel, sizes, reference, number):
                errors[bad[element_errors(dtype, found, made[position])[bad] <= 1]] = 0.0
            bad = np.flatnonzero(errors > 1)
        if bad.size and may_go_either_way(kernel) and any(map(is_float_sum, kernel.body)):
            random = np.random.default_rng(seed)
            moved = sensitivity_to_sums(kernel, sizes, reference, number, random)[position]
            with np.errstate(invalid="ignore"):
                distance = np.abs(_as_float(dtype, found) - np.asarray(expected.values, float))
                is_between = np.where(np.isinf(moved), 0.0, moved) + expected.allowed >= distance
            errors[bad[is_between[bad]]] = 0.0
            bad = np.flatnonzero(errors > 1)
        if bad.size:
            moves = sensitivity(kernel, sizes, reference, number, np.random.default_rng(seed))
            with np.errstate(invalid="ignore"):
                distance = np.abs(_as_float(dtype, found) - np.asarray(expected.values, float))
                is_jump = (moves[position] > 0) & (GAIN * moves[position] >= distance)
            excused = bad[is_jump[bad]]
            if excused.size > max(1, EXCUSED_SHARE * errors.size) or excused.size < bad.size:
                guilty = np.setdiff1d(bad, excused)
                first = int(guilty[0] if guilty.size else bad[0])
                return Verdict(
                    f"output {place}, element {expected.indices[first]} is "
                    f"{_as_float(dtype, found)[first]:.9g}, not {expected.values[first]:.9g} "
                    f"({bad.size} of {errors.size} elements are wrong)",
                    float(errors.max()),
                    1,
                    False,
                )
            errors[bad] = 0.0
        worst = max(worst, float(errors.max(initial=0.0)))
    return Verdict("", worst, 1, False)


def element_errors(dtype: str, found: Array, expected: Expected) -> Array:
    """Errors in units of the tolerance; integers and booleans are right (0) or wrong, but for
    integers that may be anything, which are not defined.
    """
    if dtype not in FLOATS:
        same = _raw(found) == _raw(np.asarray(expected.values, found.dtype))
        same |= np.isinf(expected.allowed)
        return np.where(same, 0.0, math.inf)
    return errors_in_tolerances(
        decode(dtype, found),
        expected.values,
        expected.allowed,
        largest=PRECISIONS[dtype].largest,
    )


def has_truncations(kernel: ir.Kernel) -> bool:
    """Whether integers are made of floats: of NaN, and of what none is, as a device likes."""
    dtypes = ir.dtypes_of(kernel)
    return any(
        isinstance(node, ir.Op)
        and node.name == "cast"
        and is_truncation(dtypes[node.operands[0]], node.dtype)
        for node in kernel.body
    )


def _differ_in_nan(dtype: str, found: Array, expected: Expected) -> bool:
    """Whether some element is NaN on one side alone, as a root of what is zero but for rounding."""
    is_nan = np.isnan(_as_float(dtype, found))
    return bool((is_nan != np.isnan(np.asarray(expected.values, float))).any())


def unwritten_limit(dtype: str, count: int) -> float:
    """How many of so many elements of an output may look as if they were not written."""
    return 0 if dtype in FLOATS else POISON_SHARE * count


def _has_nan(reference: Reference, position: int) -> bool:
    return any(bool(np.isnan(slab[position].values).any()) for slab in reference.slabs)


def _raw(values: Array) -> Array:
    """Booleans as bytes: a byte that is neither 0 nor 1 is not True."""
    return values.view(np.uint8) if values.dtype == np.bool_ else values


def _as_float(dtype: str, values: Array) -> Array:
    return np.asarray(_raw(decode(dtype, values)), np.float64)


def _coverage(kernel: ir.Kernel, reference: Reference, outputs: Mapping[int, Array]) -> str:
    """What is wrong with the elements that were not compared: unwritten, or wrongly written."""
    for position, (place, actual) in enumerate(outputs.items()):
        dtype = kernel.params[place].dtype
        covered = reference.covered[position]
        width = actual.dtype.itemsize
        poison = int.from_bytes(bytes([poison_byte(dtype)] * width), "little")
        is_poison = actual.view(f"u{width}") == poison
        if not (is_poison | covered).all():
            return f"output {place} is written where no store is"
        if dtype in ONE_BYTE_FLOATS and _has_nan(reference, position):
            continue
        if not reference.is_whole and np.count_nonzero(is_poison & covered) > unwritten_limit(
            dtype, actual.size
        ):
            return f"output {place} is not written everywhere"
    return ""
