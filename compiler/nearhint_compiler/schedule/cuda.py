"""CUDA schedules: the default by heuristic, and a small space of alternatives.

The families are those of `nearhint_compiler.codegen.triton`. A default serves every size of a
Table, so all that it needs is 32-bit indices (and 16-byte pointers, where they alone are enough
for vector loads); where it needs anything, the last candidate needs nothing at all. The others
have blocks that fit the hint, and promise that sizes are multiples of 16 where they are, without
which Triton does not load vectors along a dynamic row. Pointers are promised together with sizes:
with aligned pointers alone Triton gives each thread neighbouring elements and then loads them one
by one (seen on an H100: 34 instead of 8 microseconds for 8 million elements of fp16).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from nearhint_compiler.analysis.index_width import INDEX_LIMIT, index_bounds
from nearhint_compiler.analysis.strides import Access, accesses, contiguous_bytes
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.target import CudaDevice, Target

CANDIDATE_LIMIT = 12
GENERIC_SIZE = 97
"""What a size is taken for where none is given."""
GRID_YZ_LIMIT = 65_535
"""Blocks along the grid's second and third dim."""
SIZE_MULTIPLE = 16
PERSISTENT_LIMIT = 16_384
"""Elements of the longest row that is kept in registers."""
ELEMENTS_PER_THREAD = 64
"""Beyond this, a block's values no longer fit in a thread's registers."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the heuristics look at: the space at a hint, and its accesses."""

    extents: tuple[int, ...]
    length: int
    has_static_length: bool
    accesses: tuple[Access, ...]
    divisible: int
    is_dividing_useful: bool
    index: int
    processors: int

    @property
    def itemsize(self) -> int:
        """Bytes of the widest element."""
        return max((access.itemsize for access in self.accesses), default=4)


def candidates(
    kernel: ir.Kernel, target: Target, dims: Mapping[str, int] | None = None
) -> tuple[Schedule, ...]:
    """See `nearhint_compiler.schedule.candidates`."""
    facts = _facts(kernel, target, dims)
    found = tuple(dict.fromkeys((_reductions if kernel.reduction else _pointwise)(kernel, facts)))
    last = _without_promises(found[0])
    kept = [schedule for schedule in found if schedule != last]
    kept = kept[: CANDIDATE_LIMIT - 1]
    return (last, *kept) if found[0] == last else (*kept, last)


def _facts(kernel: ir.Kernel, target: Target, dims: Mapping[str, int] | None) -> _Facts:
    sizes = dims or dict.fromkeys(kernel.symbols, GENERIC_SIZE)
    found = accesses(kernel, sizes)
    is_rows = bool(kernel.reduction) and not _is_columns(kernel, found)
    useful, device = _worth_dividing(kernel, is_rows=is_rows), target.device
    divisible = sum(
        1 << number
        for number, name in enumerate(kernel.symbols)
        if dims is not None and name in useful and dims[name] % SIZE_MULTIPLE == 0
    )
    return _Facts(
        extents=tuple(ex.evaluate(extent, sizes) for extent in kernel.pointwise),
        length=ex.evaluate(ex.product(kernel.reduction), sizes),
        has_static_length=not ex.symbols_of(ex.product(kernel.reduction)),
        accesses=found,
        divisible=divisible,
        is_dividing_useful=bool(useful),
        index=32 if _fits_32_bits(kernel, sizes) else 64,
        processors=device.multiprocessors if isinstance(device, CudaDevice) else 1,
    )


def _fits_32_bits(kernel: ir.Kernel, sizes: Mapping[str, int]) -> bool:
    bounds = index_bounds(kernel)
    return bounds is not None and all(ex.evaluate(b, sizes) <= INDEX_LIMIT for b in bounds)


def _is_columns(kernel: ir.Kernel, found: Sequence[Access]) -> bool:
    """Whether most bytes lie along the pointwise space, and the reduction steps over them."""
    rows, columns = (
        max((contiguous_bytes(found, f"{prefix}{n}") for n in range(len(space))), default=0)
        for prefix, space in (("r", kernel.reduction), ("p", kernel.pointwise))
    )
    return columns > rows


def _worth_dividing(kernel: ir.Kernel, *, is_rows: bool) -> set[str]:
    """Symbols in strides and limits that are not multiples of 16 whatever the symbols are."""
    along = kernel.reduction if is_rows else kernel.pointwise
    found = [ex.product(along), *along[-1:]]
    for node in kernel.body:
        if isinstance(node, ir.Load | ir.Store):
            for name in ex.symbols_of(node.index):
                if name[0] in "pr":
                    following = {name: ex.add(ex.symbol(name), 1)}
                    found.append(ex.sub(ex.substitute(node.index, following), node.index))
    return {
        name
        for size in found
        if ex.mod(size, SIZE_MULTIPLE) != ex.ZERO
        for name in ex.symbols_of(size)
        if name in kernel.symbols
    }


def _schedule(family: str, facts: _Facts, *, divisible: int = 0, **blocks: int) -> Schedule:
    aligned = 1 if divisible or not facts.is_dividing_useful else 0
    options = {**blocks, "index": facts.index, "aligned": aligned, "divisible": divisible}
    return Schedule(f"cuda.{family}", tuple(options.items()))


def _without_promises(schedule: Schedule) -> Schedule:
    """The same layout for all sizes and pointers: a persistent row becomes a looped one."""
    options = dict(schedule.options)
    options |= {"index": 64, "aligned": 0, "divisible": 0}
    if schedule.family == "cuda.tiled":
        block = options["x"] * options["y"]
        kept = {"x": block, **{name: options[name] for name in options if name not in "xydim"}}
        return Schedule("cuda.pointwise", tuple(kept.items()))
    family = {"cuda.persistent": "cuda.looped"}.get(schedule.family, schedule.family)
    return Schedule(family, tuple(options.items()))


def _both(family: str, facts: _Facts, **blocks: int) -> Iterator[Schedule]:
    """With what the hint's sizes are divisible by, and without."""
    yield _schedule(family, facts, **blocks)
    if facts.divisible:
        yield _schedule(family, facts, divisible=facts.divisible, **blocks)


def _pointwise(kernel: ir.Kernel, facts: _Facts) -> Iterator[Schedule]:
    """Tiles where a dim other than the innermost is contiguous somewhere, else flat blocks."""
    rank = len(kernel.pointwise)
    outer = [(contiguous_bytes(facts.accesses, f"p{dim}"), dim) for dim in range(rank - 1)]
    crossing, dim = max(outer, default=(0, 0))
    if crossing:
        for y, x, warps in ((32, 32, 4), (64, 32, 8), (32, 64, 8), (16, 64, 4), (64, 64, 8)):
            yield from _tiles(facts, y=y, x=x, dim=dim, warps=warps)
    lanes = max(1, 16 // facts.itemsize)
    for warps, vectors in ((4, 1), (4, 2), (8, 2), (2, 1)):
        yield from _both("pointwise", facts, x=32 * warps * lanes * vectors, warps=warps)
    if rank > 1 and not crossing:
        for y, x, warps in ((4, 256, 4), (1, 1024, 4)):
            yield from _tiles(facts, y=y, x=x, dim=rank - 2, warps=warps)


def _tiles(facts: _Facts, *, y: int, x: int, dim: int, warps: int) -> Iterator[Schedule]:
    others = prod(facts.extents[:-1]) // facts.extents[dim]
    if max(-(-facts.extents[dim] // y), others) <= GRID_YZ_LIMIT:
        yield from _both("tiled", facts, y=y, x=x, dim=dim, warps=warps)


def _reductions(kernel: ir.Kernel, facts: _Facts) -> Iterator[Schedule]:
    return _columns(facts) if _is_columns(kernel, facts.accesses) else _rows(facts)


def _columns(facts: _Facts) -> Iterator[Schedule]:
    """As many columns a program as leave every processor one, and the rest of a block in rows."""
    share = prod(facts.extents) // facts.processors
    x = min(64, max(2, _power_of_two(share + 1) // 2))
    for columns, elements, warps in (
        (x, 2048, 8), (x, 4096, 8), (2 * x, 2048, 8), (max(1, x // 2), 4096, 8), (4 * x, 2048, 8),
    ):  # fmt: skip
        yield from _both("looped", facts, x=columns, r=elements // columns, warps=warps)
    r = _power_of_two(facts.length)
    if r <= 128:
        yield from _both("persistent", facts, x=max(16, 2048 // r), r=r, warps=8)


def _rows(facts: _Facts) -> Iterator[Schedule]:
    """About 16 elements a thread in registers first, then longer and shorter; loops for the rest.

    A dynamic row may outgrow the block of its hint, so the default loops.
    """
    r, rows = _power_of_two(facts.length), prod(facts.extents)
    together = max(1, min(2048 // r, _power_of_two(rows // facts.processors + 1) // 2))
    few = min(4, together)
    shapes = [
        (together, _warps(together * r, 512)),
        (1, _warps(r, 256)),
        (1, _warps(r, 512)),
        (few, _warps(few * r, 256)),
        (1, _warps(r, 128)),
    ]
    block = min(r, 2048)
    looped = _schedule("looped", facts, x=together, r=block, warps=_warps(together * block, 512))
    if not facts.has_static_length:
        yield looped
    if r <= PERSISTENT_LIMIT:
        for x, count in dict.fromkeys(shapes):
            if x * r <= ELEMENTS_PER_THREAD * 32 * count:
                yield from _persistent(facts, x=x, r=r, warps=count)
    yield from _both("looped", facts, x=1, r=min(r, 4096), warps=_warps(r, 256))
    yield looped


def _persistent(facts: _Facts, *, x: int, r: int, warps: int) -> Iterator[Schedule]:
    """Rows up to the block of the hint, and where they are dynamic up to twice that."""
    yield from _both("persistent", facts, x=x, r=r, warps=warps)
    if not facts.has_static_length and 2 * x * r <= ELEMENTS_PER_THREAD * 32 * warps:
        yield _schedule("persistent", facts, x=x, r=2 * r, warps=warps)


def _warps(elements: int, share: int) -> int:
    return min(16, max(1, elements // share))


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
