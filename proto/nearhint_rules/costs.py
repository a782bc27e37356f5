"""Costs: a model of what a binary's time depends on, fitted to where a Kernel was measured.

A time is taken as a sum of costs with coefficients >= 0, the same for all Variants of a Kernel:

    1         the launch, and what no size changes
    elements  what memory moves: prod d
    rounds    waves: tasks run in rounds of as many as fit on the device
    alone     the lanes that a warp works through, one round after the other: the elements; where a
              task holds whole rows all that its Guard allows, however short they are; where it
              walks all of its tiles, however little of the last one is left, and where these
              cover two loops, of the last one across
    busiest   the elements of the multiprocessor with the most tasks
    lanes     and its lanes
    tasks     thread blocks, or a CPU's chunks
    tiles     the elements of all tasks, were they full: a tile that hangs over an edge counts whole
    uncached  the elements beyond what a device's last cache keeps from one call to the next; all of
              them where rows pass it

Of the original ops nothing is known but that most give each row to a warp or a block: they are
taken to be tasks of a row each.

The last round, and the multiprocessor with the most tasks, are half way between what tasks would
take that can be divided at will and those that wait for each other: the last tasks are as slow as
any for what they wait for, and have more of the device for what they move.

Who walks over rows without holding them asks for lines again: for all of them in a second pass, or
for those at the edges of a neighbour's columns. A cache has them as long as it holds all that the
tasks which run at once are at. Beyond that all of a walk costs more, up to `AGAIN` of itself.

The costs are fitted by least relative squares: non-negative least squares. Those of one form of
Schedule are near those of all, and a Variant's own near its form's (`own_model`): who walks waits
for other things than who holds rows. What is left is left to the ratios of measured to modelled
times.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import mul, sub, truediv
from typing import NamedTuple, TypeAlias

from nearhint_rules import expr as ex
from nearhint_rules.artifact import CpuLaunch, CudaLaunch
from nearhint_rules.expr import Expr, Sym
from nearhint_rules.guard import AtMost
from nearhint_rules.metrics import Dims
from nearhint_rules.table import Variant

PROCESSORS: Mapping[int, int] = {80: 108, 90: 132, 100: 148, 103: 148}
"""Multiprocessors of a device by compute capability; others are modelled without waves."""
RESIDENT_WARPS, RESIDENT_BLOCKS, RESIDENT_BYTES = 64, 32, 164 << 10
"""What a multiprocessor holds at once (CUDA C++ Programming Guide, compute capabilities)."""
KEPT_NS: Mapping[int, float] = {80: 14e3, 90: 9e3, 100: 9e3, 103: 9e3}
"""How long memory takes for what a last cache keeps, by compute capability: for half of its bytes,
since either half of the device has its own copy of what it reads."""
CPU_KEPT_NS = 6e5
"""The same of a CPU: of an EPYC's, whose last cache has 12 to 20 MB where memory brings 20 to 30 GB
a second. Over five recorded matrices of two cores, three of them without AVX-512, the mean loss was
0.92 times what it is without, with 0.4 and 1.0 ms 0.93 (`tests.benchmarks.selection_regret
--from-matrix`)."""
KEPT_COPIES = 2
"""So many times as much a last cache has for what is asked for again at once."""
AGAIN = 1 / 3
"""What a walk takes more where its rows come from memory again: a third pass, beside the one that
reads and the one that writes."""
LANES_LIMIT = 1 << 17
"""A Guard's bound up to this is that of a row that a task holds, and not of an index."""
POOL = 20.0
"""The measurements that what more Variants have in common counts for, beside what is measured."""
LEAST_GAIN, RIDGE = 1e-7, 1e-9
"""What is nothing, next to columns whose largest value is 1."""
STREAMED = "stream=1"
"""The option of a Schedule whose rows pass the last cache."""
_EXTENTS, _SIDE = re.compile(r"\b[xyzr]=(\d+)"), re.compile(r"\br1=(\d+)")

Counter: TypeAlias = Callable[[Dims], int]
Costs: TypeAlias = tuple[float, float, float, float, float, float, float, float, float]
Model: TypeAlias = tuple[float, ...]
"""A coefficient for each of the costs, in nanoseconds."""
Counted: TypeAlias = tuple[float, float, list[int], list[int]]
"""At some sizes: the elements, those of them that are uncached, the distinct numbers of tasks, the
distinct lengths of rows."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """How a binary cuts up its work: tasks over the Kernel's symbols, `slots` of which run at once.

    There are as many tasks as the product of `counts`, over `grain`. `slots` and `processors` are
    0 if not known. `rows` are lengths that a task holds whole, with the lanes that it has for each;
    `across` is the length that its tiles cover row by row, with theirs, if they cover two loops.
    `tile` are the elements that it works on at once; 0 if not known. `is_streamed`: what it reads
    takes no place in a cache, so that the next call does not find it there.
    """

    counts: tuple[Expr, ...] = ()
    grain: int = 1
    slots: int = 0
    processors: int = 0
    warps: int = 1
    rows: tuple[tuple[Expr, int], ...] = ()
    tile: int = 0
    across: tuple[Expr, int] | None = None
    is_streamed: bool = False

    @staticmethod
    def of(variant: Variant) -> Tasks:
        """A Variant's. Registers are not looked at: more may fit in theory than do."""
        match variant.artifact.launch:
            case CpuLaunch(work=work, grain=grain):
                return Tasks((work,), max(grain, 1))
            case CudaLaunch(grid=grid, warps=warps, shared_bytes=shared_bytes, capability=kind):
                side = side_lanes(variant.schedule)
                inner = variant.artifact.launch.inner
                resident = min(
                    RESIDENT_BLOCKS,
                    RESIDENT_WARPS // max(warps, 1),
                    RESIDENT_BYTES // max(shared_bytes, 1),
                )
                processors = PROCESSORS.get(kind, 0)
                return Tasks(
                    tuple(each for each in grid if each != ex.ONE),
                    1,
                    processors * max(resident, 1),
                    processors,
                    max(warps, 1),
                    tuple(
                        (fact.expr, fact.bound)
                        for fact in variant.guard.facts
                        if isinstance(fact, AtMost) and fact.bound <= LANES_LIMIT
                    ),
                    tile_elements(variant.schedule),
                    (inner, side) if side and inner != ex.ZERO else None,
                    STREAMED in variant.schedule,
                )

    @staticmethod
    def of_original(symbols: Sequence[str], variant: Variant) -> Tasks:
        """The original ops' on the device of a Variant: a warp to each row along the last symbol.

        So a row costs what it is long, however few there are. Known are such tasks where waves are.
        """
        launch = variant.artifact.launch
        processors = PROCESSORS.get(launch.capability, 0) if isinstance(launch, CudaLaunch) else 0
        if not processors or len(symbols) < 2:
            return Tasks()
        rows = tuple(map(Sym, symbols[:-1]))
        return Tasks(rows, slots=processors * RESIDENT_WARPS, processors=processors)


class Cell(NamedTuple):
    """`Tasks`, with places in `Counted` for expressions, and the elements of a whole tile.

    `in_cache` are the elements that a cache holds of what its tasks walk over; infinite if they
    walk over nothing. `step` are the elements of a step of theirs, 0 if they take one, and of these
    it has `side` for each row of the length at `across`; 0 if there are no such rows.
    """

    tasks: int
    slots: int
    processors: int
    warps: int
    rows: tuple[tuple[int, int], ...]
    tile: float
    in_cache: float
    step: int
    across: int
    side: int
    is_streamed: bool


class Cost(NamedTuple):
    """A binary's features times a model's coefficients: what does not depend on sizes, done.

    `at` is the place of its number of tasks in `Counts.counters`; `rows` are places in
    `Counts.lengths`, each with the lanes that are held. `slots` is 0 where rounds cost nothing,
    `walking` is how many tasks run at once where these may have to read more again than is
    `in_cache`. `step`, `across` and `side` are as in `Cell`.
    """

    at: int
    rows: tuple[tuple[int, int], ...]
    slots: int
    processors: int
    fixed: float
    element: float
    task: float
    round: float
    alone: float
    busiest: float
    lane: float
    uncached: float
    walking: int
    in_cache: float
    step: int
    across: int
    side: int


class Counts:
    """What the costs of many binaries are made of, each distinct number worked out once.

    A last cache keeps `kept` elements. `counters` count the tasks of binaries at sizes, `lengths`
    are those of rows that tasks hold.
    """

    __slots__ = ("_kept", "_places", "_symbols", "counters", "lengths")

    def __init__(self, symbols: tuple[str, ...], *, kept: float = math.inf) -> None:
        self._symbols = symbols
        self._kept = kept
        self.counters: list[Counter] = []
        self.lengths: list[Counter] = []
        self._places: dict[object, int] = {}

    def cell(self, tasks: Tasks, hints: Sequence[Dims]) -> Cell:
        """The place of a binary; raises `InvalidExpression` for an unknown symbol.

        The elements of a whole tile are the most that a task has at any of `hints`.
        """
        cut = tasks.counts, tasks.grain
        at = self._places.setdefault(cut, len(self.counters))
        if at == len(self.counters):
            self.counters.append(_counter(tasks, self._symbols))
        rows = tuple((self._length(length), lanes) for length, lanes in tasks.rows)
        counter = self.counters[at]
        tile = max(math.prod(dims) / counter(dims) for dims in hints)
        in_cache = math.inf if rows else KEPT_COPIES * self._kept
        step, across, side = 0 if rows else tasks.tile, 0, 0
        if tasks.across and not rows:
            across, side = self._length(tasks.across[0]), tasks.across[1]
        return Cell(
            at,
            tasks.slots,
            tasks.processors,
            tasks.warps,
            rows,
            tile,
            in_cache,
            step,
            across,
            side,
            tasks.is_streamed,
        )

    def _length(self, length: Expr) -> int:
        """The place of a length."""
        place = self._places.setdefault(length, len(self.lengths))
        if place == len(self.lengths):
            self.lengths.append(ex.compiled_by_position(length, self._symbols))
        return place

    def cost(self, cell: Cell, model: Model) -> Cost:
        """The cost of a binary whose place is `cell`."""
        fixed, element, round_, alone, busiest, lane, task, tile, uncached = model
        is_round_free = not (round_ or alone or busiest or lane)
        if cell.is_streamed:
            element, uncached = element + uncached, 0.0
        return Cost(
            cell.tasks,
            cell.rows,
            0 if is_round_free else cell.slots,
            cell.processors,
            fixed,
            element,
            task + tile * cell.tile,
            round_,
            alone / cell.warps,
            busiest,
            lane,
            uncached,
            cell.slots if cell.in_cache < math.inf else 0,
            cell.in_cache,
            cell.step,
            cell.across,
            cell.side,
        )

    def at(self, dims: Dims) -> Counted:
        """The numbers at sizes by position.

        Raises `ZeroDivisionError` for x // 0 and `OverflowError` beyond what a float holds.
        """
        elements = float(math.prod(dims))
        return (
            elements,
            max(elements - self._kept, 0.0),
            [counter(dims) for counter in self.counters],
            [length(dims) for length in self.lengths],
        )


def features(counted: Counted, cell: Cell) -> Costs:
    """(1, elements, rounds, alone, busiest, lanes, tasks, tiles, uncached) of a binary."""
    elements, uncached, counts, lengths = counted
    at, slots, processors, warps, rows, tile, in_cache, step, across, side, is_streamed = cell
    if is_streamed:
        uncached = elements
    tasks = counts[at]
    if not slots:
        return 1.0, elements, 0.0, 0.0, 0.0, 0.0, float(tasks), tasks * tile, uncached
    share = lanes = elements / tasks
    for place, held in rows:
        lanes *= held / max(lengths[place], 1)
    if side:
        length = max(lengths[across], 1)
        lanes *= math.ceil(length / side) * side / length
    if step:
        lanes = math.ceil(lanes / step) * step
    rounds, most = rounds_of(tasks, slots), rounds_of(tasks, processors)
    more = again(min(tasks, slots) * share, in_cache)
    return (
        more,
        more * elements,
        more * rounds,
        more * rounds * lanes / warps,
        more * most * share,
        more * most * lanes,
        more * tasks,
        more * tasks * tile,
        more * uncached,
    )


def rounds_of(tasks: int, at_once: int) -> float:
    """How long tasks take, of which so many run at once, in times of one.

    >>> rounds_of(132, 132), rounds_of(198, 132), rounds_of(264, 132)
    (1.0, 1.75, 2.0)
    """
    return 1.0 if tasks <= at_once else (tasks / at_once - (-tasks // at_once)) / 2


def tile_elements(schedule: str) -> int:
    """The elements of a tile of a printed Schedule: the product of its extents.

    >>> tile_elements("cuda.looped x=2 r=512 warps=4 index=32"), tile_elements("cuda.copy")
    (1024, 0)
    >>> tile_elements("cuda.looped x=1 r=2048 warps=8 r1=64")  # of which a row has 64
    2048
    """
    extents = _EXTENTS.findall(schedule)
    return math.prod(map(int, extents)) if extents else 0


def side_lanes(schedule: str) -> int:
    """The elements that a tile of two loops has of each row; 0 if it is of one loop.

    >>> side_lanes("cuda.looped x=1 r=2048 warps=8 r1=64"), side_lanes("cuda.looped x=1 r=512")
    (64, 0)
    """
    found = _SIDE.search(schedule)
    return int(found[1]) if found else 0


def again(walked: float, in_cache: float) -> float:
    """The factor by which a walk costs more whose tasks are at `walked` elements at once.

    >>> again(80.0, 100.0), again(300.0, 100.0)
    (1.0, 1.2222222222222223)
    """
    return 1.0 if walked <= in_cache else 1.0 + AGAIN * (1.0 - in_cache / walked)


def kept_elements(variant: Variant, *, elements: float, time_ns: float) -> float:
    """The elements that the last cache of a Variant's device keeps; infinite if not known, or if it
    keeps all of them.

    Bytes are not known either, but that memory takes `time_ns` for `elements`, if that is longer
    than for what the cache keeps.
    """
    match variant.artifact.launch:
        case CudaLaunch(capability=capability):
            kept_ns = KEPT_NS.get(capability, 0.0)
        case CpuLaunch():
            kept_ns = CPU_KEPT_NS
    return elements * kept_ns / time_ns if 0 < kept_ns < time_ns else math.inf


def _counter(tasks: Tasks, symbols: tuple[str, ...]) -> Counter:
    """The number of tasks, at least 1."""
    parts = [ex.compiled_by_position(each, symbols) for each in tasks.counts]
    grain = tasks.grain
    if not parts:
        return lambda _: 1
    whole = _product(parts)
    ranges = dict.fromkeys(symbols, (1, None))
    if grain == 1 and all((ex.bounds(each, ranges)[0] or 0) > 0 for each in tasks.counts):
        return whole

    def count(dims: Dims) -> int:
        tasks = whole(dims) // grain
        return tasks if tasks > 1 else 1

    return count


def _product(parts: Sequence[Counter]) -> Counter:
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:
        first, second = parts
        return lambda dims: first(dims) * second(dims)
    return lambda dims: math.prod([part(dims) for part in parts])


class Fit:
    """Coefficients for what was measured: (hint, features, nanoseconds) each.

    `model` are the coefficients, in nanoseconds.
    """

    __slots__ = ("_gram", "_hints", "_rows", "_scale", "_sums", "model")

    def __init__(self, measured: Sequence[tuple[int, Costs, float]]) -> None:
        self._hints = [hint for hint, _, _ in measured]
        shares = [[cost / time for cost in costs] for _, costs, time in measured]
        # Columns with a largest value of 1: what is nearly nothing in them is so in all.
        self._scale = [max(column) or 1.0 for column in zip(*shares, strict=True)]
        self._rows = [list(map(truediv, row, self._scale)) for row in shares]
        self._gram = _gram(self._rows, len(self._scale))
        self._sums = [sum(column) for column in zip(*self._rows, strict=True)]
        self.model = self._model(nonnegative(self._gram, self._sums))

    def without(self, held_out: Collection[int]) -> Model:
        """Coefficients, had nothing been measured at some hints."""
        rows = [row for hint, row in zip(self._hints, self._rows, strict=True) if hint in held_out]
        if len(rows) == len(self._rows):
            return self.model
        gone = _gram(rows, len(self._scale))
        gram = [list(map(sub, *pair)) for pair in zip(self._gram, gone, strict=True)]
        sums = [total - sum(row[at] for row in rows) for at, total in enumerate(self._sums)]
        return self._model(nonnegative(gram, sums))

    def _model(self, scaled: Sequence[float]) -> Model:
        return tuple(map(truediv, scaled, self._scale))


def own_model(measured: Sequence[tuple[int, Costs, float]], model: Model) -> Model:
    """The coefficients of one Variant, or of some: fitted to their times, and held near `model`.

    Ridge regression towards those of more; columns are scaled by their largest value, as in `Fit`.
    """
    shares = [[cost / time for cost in costs] for _, costs, time in measured]
    scale = [max(column) or 1.0 for column in zip(*shares, strict=True)]
    rows = [list(map(truediv, row, scale)) for row in shares]
    gram = _gram(rows, len(scale))
    sums: list[float] = [sum(column) for column in zip(*rows, strict=True)]
    for at, (coefficient, largest) in enumerate(zip(model, scale, strict=True)):
        gram[at][at] += POOL
        sums[at] += POOL * coefficient * largest
    return tuple(map(truediv, nonnegative(gram, sums), scale))


def _gram(rows: Sequence[Sequence[float]], size: int) -> list[list[float]]:
    """The inner products of the columns."""
    columns = [[row[at] for row in rows] for at in range(size)]
    return [[sum(map(mul, left, right)) for right in columns] for left in columns]


def nonnegative(gram: Sequence[Sequence[float]], sums: Sequence[float]) -> list[float]:
    """The coefficients >= 0 of least squares, from the columns' inner products and sums.

    Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23: columns become free one
    by one, the most wanted first, and are bound again where they would turn negative.
    """
    found = [0.0] * len(sums)
    free: list[int] = []
    for _ in range(2 * len(sums)):
        wanted, gain = -1, LEAST_GAIN * max(sums)
        for at, row in enumerate(gram):
            if at not in free and (left := sums[at] - sum(map(mul, row, found))) > gain:
                wanted, gain = at, left
        if wanted < 0:
            break
        free.append(wanted)
        while True:
            there = solved([[gram[i][j] for j in free] for i in free], [sums[i] for i in free])
            below = [(found[at], to) for at, to in zip(free, there, strict=True) if to <= 0]
            step = min((now / (now - to) for now, to in below if now > to), default=0.0)
            if not below:
                step = 1.0
            for at, to in zip(free, there, strict=True):
                found[at] += step * (to - found[at])
            if not below:
                break
            free = [
                at for at, to in zip(free, there, strict=True) if to > 0 or found[at] > LEAST_GAIN
            ]
            found = [cost if at in free else 0.0 for at, cost in enumerate(found)]
    return found


def solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a symmetric positive definite system, which is used up; by elimination."""
    size = len(right)
    for at in range(size):
        matrix[at][at] += RIDGE
    for at in range(size):
        top = matrix[at]
        for below in range(at + 1, size):
            factor = matrix[below][at] / top[at]
            if factor:
                matrix[below] = [x - factor * y for x, y in zip(matrix[below], top, strict=True)]
                right[below] -= factor * right[at]
    for at in reversed(range(size)):
        right[at] -= sum(matrix[at][other] * right[other] for other in range(at + 1, size))
        right[at] /= matrix[at][at]
    return right
