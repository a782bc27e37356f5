"""A cost model of a device, and Kernels with their schedules: matrices to try selection on.

The device is like an H100: 132 multiprocessors, 64 warps or 32 blocks each, 3.0 TB/s of memory and
6 TB/s of a 50 MB cache. A task (a thread block) waits for memory once, then moves what its warps
keep in flight; tasks run in rounds; a partly filled device does not saturate its memory; tiles
that hang over an edge cost like whole ones; reads that are not coalesced move whole sectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from nearhint_rules import expr as ex
from nearhint_rules.artifact import ArtifactRef, CudaLaunch
from nearhint_rules.expr import Expr
from nearhint_rules.guard import AtMost, Guard
from nearhint_rules.table import Variant

PROCESSORS, WARPS, BLOCKS = 132, 64, 32
MEMORY_NS, CACHE_NS = 1 / 3000, 1 / 6000
"""Nanoseconds a byte."""
CACHE_BYTES = 50e6
LAUNCH_NS, LATENCY_NS, ISSUE_NS = 1500.0, 700.0, 20.0
SECTOR = 32
TYPE = 2

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """What one launch does: tasks, rounds of a loop in each, bytes moved in all and issued a task.

    `issued` counts lanes that are masked off as well; `moved` what memory sees.
    """

    tasks: int
    steps: int
    issued: float
    moved: float
    footprint: float
    launches: int = 1


def time_ns(work: Work, warps: int, registers: int) -> float:
    """The time of `work` by tasks of that many warps, at that many registers a thread."""
    resident = max(1, min(BLOCKS, WARPS // warps, 65536 // (registers * warps * 32)))
    slots = PROCESSORS * resident
    running = min(work.tasks, slots)
    per_processor = math.ceil(running / PROCESSORS)
    # What a task's threads keep on their way, 16 bytes each, against the share of its processor.
    alone = LATENCY_NS * work.steps + work.issued / (warps * 32 * 16) * ISSUE_NS
    share = work.issued * per_processor * PROCESSORS * CACHE_NS
    rounds = math.ceil(work.tasks / slots)
    busy = rounds * (alone**3 + share**3) ** (1 / 3)
    cached = 1 / (1 + (work.footprint / CACHE_BYTES) ** 4)
    memory = work.moved * (cached * CACHE_NS + (1 - cached) * MEMORY_NS)
    return LAUNCH_NS * work.launches + math.sqrt(math.hypot(busy**2, memory**2))


@dataclass(frozen=True, slots=True)
class Choice:
    """One schedule: its Guard, grid and warps, and its time at sizes."""

    name: str
    guard: Guard
    grid: Expr
    warps: int
    time_ns: Callable[[Dims], float]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A Kernel with its schedules, the first being the default; ranges are inclusive."""

    title: str
    ranges: tuple[tuple[int, int], ...]
    choices: tuple[Choice, ...]
    fallback_ns: Callable[[Dims], float]

    @property
    def symbols(self) -> tuple[str, ...]:
        """k0, k1, ..."""
        return tuple(f"k{number}" for number in range(len(self.ranges)))

    def variants(self) -> tuple[Variant, ...]:
        """The schedules as Variants."""
        return tuple(
            Variant(
                id=f"{number:064x}",
                schedule=choice.name,
                guard=choice.guard,
                artifact=ArtifactRef(
                    f"{number:064x}",
                    4096,
                    CudaLaunch("kernel", (), (choice.grid, ex.ONE, ex.ONE), choice.warps, 0, 90),
                ),
            )
            for number, choice in enumerate(self.choices)
        )


def _ceil(size: Expr | int, by: int) -> Expr:
    return ex.floordiv(ex.add(size, by - 1), by)


def _eager(operations: int, bytes_moved: Callable[[Dims], float]) -> Callable[[Dims], float]:
    """Original ops: each moves everything once, well tuned for large sizes."""

    def time(dims: Dims) -> float:
        size = bytes_moved(dims)
        tasks = max(1, math.ceil(size / 8192))
        return operations * time_ns(Work(tasks, 1, 8192, size, size), 4, 32)

    return time


def _sizes(columns: int | None) -> tuple[Callable[[Dims], tuple[int, int]], Expr, Expr | int]:
    """Rows and columns from sizes, and as expressions; columns are fixed, or the second symbol."""
    if columns is None:
        return (lambda dims: (dims[0], dims[1])), ex.Sym("k0"), ex.Sym("k1")
    return (lambda dims: (dims[0], columns)), ex.Sym("k0"), columns


def pointwise(title: str, *, columns: int | None, reads: int, rows: tuple[int, int]) -> Kernel:
    """reads + 1 tensors, walked flat in blocks."""
    sizes, k0, k1 = _sizes(columns)

    def choice(block: int, warps: int) -> Choice:
        def time(dims: Dims) -> float:
            m, n = sizes(dims)
            tasks = math.ceil(m * n / block)
            moved = m * n * TYPE * (reads + 1)
            return time_ns(Work(tasks, 1, block * TYPE * (reads + 1), moved, moved), warps, 32)

        grid = _ceil(ex.mul(k0, k1), block)
        return Choice(f"flat {block} w{warps}", Guard(), grid, warps, time)

    blocks = ((1024, 4), (256, 2), (512, 4), (1024, 8), (2048, 4), (4096, 8), (8192, 16), (512, 1))
    return Kernel(
        title,
        (rows,) if columns else (rows, (64, 16384)),
        tuple(choice(*each) for each in blocks),
        _eager(2, lambda dims: math.prod(sizes(dims)) * TYPE * (reads + 1)),
    )


def row_reduction(
    title: str, *, columns: int | None, passes: int, writes: bool, rows: tuple[int, int]
) -> Kernel:
    """Rows reduced: whole ones held in registers (under a Guard), or walked `passes` times."""
    sizes, k0, k1 = _sizes(columns)

    def moved(m: int, n: int, times: int) -> float:
        return m * n * TYPE * (times + (1 if writes else 0)) + m * TYPE

    def held(block: int, together: int, warps: int) -> Choice:
        def time(dims: Dims) -> float:
            m, n = sizes(dims)
            issued = block * together * TYPE * (2 if writes else 1)
            work = Work(math.ceil(m / together), 2, issued, moved(m, n, 1), moved(m, n, 1))
            return time_ns(work, warps, min(255, 24 + block * together // (warps * 32)))

        facts = () if isinstance(k1, int) else (AtMost(k1, block),)
        name = f"held {together}x{block} w{warps}"
        return Choice(name, Guard(facts), _ceil(k0, together), warps, time)

    def walked(block: int, together: int, warps: int) -> Choice:
        def time(dims: Dims) -> float:
            m, n = sizes(dims)
            steps = math.ceil(n / block) * passes
            issued = steps * block * together * TYPE * (1.5 if writes else 1)
            # A second walk finds the row in the cache, if the rows in flight fit.
            again = 1 + (passes - 1) * min(1.0, n * TYPE * PROCESSORS * 4 / CACHE_BYTES)
            size = m * n * TYPE * (again + (1 if writes else 0)) + m * TYPE
            work = Work(math.ceil(m / together), steps + 1, issued, size, moved(m, n, 1))
            return time_ns(work, warps, 40)

        name = f"walked {together}x{block} w{warps}"
        return Choice(name, Guard(), _ceil(k0, together), warps, time)

    blocks = [256, 512, 1024, 2048, 4096, 8192, 16384]
    if columns is not None:
        blocks = [1 << (columns - 1).bit_length()]
    choices = [walked(1024, 1, 4), walked(2048, 1, 8), walked(4096, 1, 16), walked(256, 4, 4)]
    for block in blocks:
        for together, warps in ((1, 1), (1, 4), (1, 8), (4, 4), (1, 16)):
            if 2 <= block * together // (warps * 32) <= 128:
                choices.append(held(block, together, warps))
    return Kernel(
        title,
        (rows,) if columns else (rows, (64, 16384)),
        tuple(choices),
        _eager(1 + passes, lambda dims: moved(*sizes(dims), 1)),
    )


def column_reduction(title: str, *, columns: int | None, rows: tuple[int, int]) -> Kernel:
    """Columns summed: tiles of columns, the rows shared by several tasks in two launches."""
    sizes, _, k1 = _sizes(columns)

    def choice(width: int, height: int, shared_by: int, warps: int) -> Choice:
        def time(dims: Dims) -> float:
            m, n = sizes(dims)
            steps = math.ceil(math.ceil(m / shared_by) / height)
            issued = steps * height * width * TYPE
            wasted = max(1.0, SECTOR / (width * TYPE))
            moved = m * n * TYPE * wasted + n * shared_by * 8
            tasks = math.ceil(n / width) * shared_by
            launches = 1 if shared_by == 1 else 2
            return time_ns(Work(tasks, steps, issued, moved, moved, launches), warps, 40)

        grid = ex.mul(_ceil(k1, width), shared_by)
        return Choice(f"{height}x{width} by {shared_by}", Guard(), grid, warps, time)

    shapes = [(64, 16, 1, 4), (32, 32, 1, 4), (16, 64, 1, 4), (128, 8, 1, 4), (8, 256, 1, 8)]
    shapes += [
        (width, height, by, 4) for width, height in ((64, 16), (32, 32)) for by in (4, 16, 64, 256)
    ]
    return Kernel(
        title,
        (rows,) if columns else (rows, (64, 16384)),
        tuple(choice(*each) for each in shapes),
        _eager(2, lambda dims: 1.6 * math.prod(sizes(dims)) * TYPE),
    )


def transpose(title: str, *, rows: tuple[int, int]) -> Kernel:
    """b.T + a, in tiles."""
    sizes, k0, k1 = _sizes(None)

    def choice(height: int, width: int, warps: int) -> Choice:
        def time(dims: Dims) -> float:
            m, n = sizes(dims)
            tasks = math.ceil(m / height) * math.ceil(n / width)
            wasted = max(1.0, SECTOR / (height * TYPE)) + 2 * max(1.0, SECTOR / (width * TYPE))
            moved = m * n * TYPE * wasted
            issued = height * width * TYPE * wasted
            return time_ns(Work(tasks, 1, issued, moved, m * n * TYPE * 3), warps, 32)

        grid = ex.mul(_ceil(k0, height), _ceil(k1, width))
        return Choice(f"tile {height}x{width} w{warps}", Guard(), grid, warps, time)

    tiles = [(32, 32, 4), (64, 64, 4), (64, 64, 8), (16, 256, 4), (256, 16, 4), (128, 32, 4)]
    tiles += [(32, 128, 4), (128, 64, 4), (16, 16, 2), (8, 512, 4), (512, 8, 4), (4, 1024, 4)]
    return Kernel(
        title,
        (rows, (64, 16384)),
        tuple(choice(*each) for each in tiles),
        _eager(2, lambda dims: 4.0 * math.prod(dims) * TYPE),
    )


def kernels() -> Iterator[Kernel]:
    """Fourteen Kernels: of one and of two symbols."""
    many, few = (1, 65536), (16, 16384)
    yield pointwise("gelu(x + b), 4096 columns", columns=4096, reads=1, rows=many)
    yield pointwise("silu(x) * y", columns=None, reads=2, rows=few)
    yield pointwise("x * 2, 257 columns", columns=257, reads=1, rows=many)
    yield row_reduction("sum, 1024 columns", columns=1024, passes=1, writes=False, rows=many)
    yield row_reduction("sum", columns=None, passes=1, writes=False, rows=few)
    yield row_reduction("amax", columns=None, passes=1, writes=False, rows=many)
    yield row_reduction("softmax, 2048 columns", columns=2048, passes=2, writes=True, rows=many)
    yield row_reduction("softmax", columns=None, passes=2, writes=True, rows=few)
    yield row_reduction("layer norm, 4096 columns", columns=4096, passes=2, writes=True, rows=many)
    yield row_reduction("layer norm", columns=None, passes=3, writes=True, rows=few)
    yield column_reduction("column sum, 1024 columns", columns=1024, rows=many)
    yield column_reduction("column sum", columns=None, rows=few)
    yield transpose("a + b.T", rows=few)
    yield transpose("b.T, many rows", rows=many)


def ladder(low: int, high: int, count: int) -> Sequence[int]:
    """`count` sizes, a constant ratio apart, that leave half a step at both ends."""
    step = math.log2(high / low) / count
    return sorted({round(low * 2 ** (step * (number + 0.5))) for number in range(count)})
