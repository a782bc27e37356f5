"""Estimates: about how long a Schedule takes at a hint, without compiling it. For ranking only.

A roofline with what a layout does to it. CUDA: bytes moved in whole sectors, over the bandwidth
that the resident threads can ask for, in whole waves over the multiprocessors; what does not fit a
thread's registers is moved twice more, and rows that are walked again are moved again as far as
those under way are more than the L2 cache keeps. CPU: vector or single accesses a point, full or
partial vectors, and bytes moved in whole lines where a walk comes back to a line too late.

The constants are of the order of an H100 and of a Zen 4. They are for telling what is far off from
what is near, not what is near from what is best: that is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from nearhint_compiler.analysis.apart import shuffled
from nearhint_compiler.analysis.by_points import by_points
from nearhint_compiler.analysis.fixed import with_sizes
from nearhint_compiler.analysis.folds import folded, folded_stores
from nearhint_compiler.analysis.known import known_of
from nearhint_compiler.analysis.online import SHARED, WALKED, depth_of, walks_of
from nearhint_compiler.analysis.parted import parted
from nearhint_compiler.analysis.respace import respaced
from nearhint_compiler.analysis.scans import has_scans
from nearhint_compiler.analysis.strides import Access, accesses
from nearhint_compiler.analysis.written_out import written_out
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule import block_pointers
from nearhint_compiler.schedule.cuda_facts import CACHE_KEEPS, is_own, row_loads
from nearhint_compiler.schedule.cuda_planes import padded
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.target import CudaDevice, Target

Sizes = Mapping[str, int]

SECTOR_BYTES = 32
CUDA_BYTES_PER_S = 2e12
CUDA_LAUNCH_S = 2e-6
CUDA_WAVE_S = 5e-7
"""For a program to begin, to wait for its first bytes, and to end."""
CUDA_MEETING_S = 2.5e-6
"""For a team to meet, beside what other teams of a processor hide."""
CUDA_LOOK_S = 1.2e-6
"""For what a program leaves to be seen by another one that looks for it."""
CUDA_SCANNED_STEP_S = 4e-6
"""For a step of a program that scans columns alone: each waits for the one before it."""
THREADS_PER_PROCESSOR = 2048
REGISTERS_PER_PROCESSOR = 65_536
REGISTERS_PER_THREAD = 255
SHARED_PER_PROCESSOR = 228 << 10
SHARED_PER_BLOCK = 227 << 10
BASE_REGISTERS = 24
IN_FLIGHT_BYTES = 16_384
"""What a multiprocessor must have asked for to be served at full bandwidth (Little's law)."""
LEAST_PROCESSORS = 16
"""With fewer, launches and what they wait for count, and not how much each multiprocessor loads."""
AHEAD = 16
"""Elements of a thread that are asked for before the first has come."""
LINE_BYTES = 64
CACHE_BYTES = 1 << 20
CPU_BYTES_PER_S = 2e10
CPU_STEPS_PER_S = 3e9
TURNING = 2.0
"""Steps to turn round a vector that was read along another loop, of squares that are full."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """`seconds` is infinite for what cannot run. `occupancy` is the share of a device in use.

    `moved_bytes` are with what is moved in vain. `waves` are the turns in which all programs run.
    `problem` is why it cannot run, if it cannot.
    """

    seconds: float
    occupancy: float
    moved_bytes: float
    waves: int = 1
    problem: str = "its blocks do not fit the device"

    def reason(self, best: Estimate) -> str:
        """Why it is far from `best`, in words."""
        if self.seconds == float("inf"):
            return self.problem
        times = self.seconds / best.seconds
        parts = [f"estimated at {times:.1f} times the best"]
        if self.moved_bytes > 2 * best.moved_bytes:
            parts.append(f"moves {self.moved_bytes / best.moved_bytes:.1f} times its bytes")
        if 2 * self.occupancy < best.occupancy:
            parts.append(f"uses {100 * self.occupancy:.0f} % of the device")
        if self.waves > 2 * best.waves:
            parts.append(f"takes {self.waves} waves")
        return ", ".join(parts)


def estimate(
    kernel: ir.Kernel, schedule: Schedule, target: Target, dims: Sizes, *, threads: int = 1
) -> Estimate:
    """About how long `schedule` takes at `dims`, by the Kernel's symbols, on `threads` of a CPU."""
    cut = respaced(kernel) if schedule.get("spaced", 0) else None
    if cut is not None:
        kernel = cut.kernel
    if ir.scatter_of(kernel) is not None:
        kernel = by_points(kernel)
    if schedule.get("written", 0):
        kernel = with_sizes(kernel, schedule.sizes)
        kernel = written_out(kernel) or kernel
    device = target.device
    if isinstance(device, CudaDevice):
        return _on_cuda(kernel, schedule, device, dims)
    return _on_cpu(kernel, schedule, dims, threads=threads)


def _extents(kernel: ir.Kernel, dims: Sizes) -> dict[str, int]:
    return {
        f"{prefix}{number}": ex.evaluate(extent, dims)
        for prefix, space in (("p", kernel.pointwise), ("r", kernel.reduction))
        for number, extent in enumerate(space)
    }


# -------------------------------------------------------------------------------------------- CUDA


def _on_cuda(kernel: ir.Kernel, schedule: Schedule, device: CudaDevice, dims: Sizes) -> Estimate:
    if schedule.get(block_pointers.OPTION, 0) and not block_pointers.applies(kernel, schedule):
        return Estimate(float("inf"), 0.0, 0.0, problem="no access can have a block pointer")
    by = schedule.get("fold", 1)
    fold, given = folded(kernel, by) or folded_stores(kernel, by), kernel
    if fold is not None:
        kernel = fold.whole
    extents = _extents(kernel, dims)
    found = accesses(kernel, dims)
    if fold is not None:
        # A column of several rows as one moves no more of what all columns of a row share.
        found = tuple(
            replace(each, size_bytes=min(each.size_bytes, alone.size_bytes))
            for each, alone in zip(found, accesses(given, dims), strict=True)
        )
    axes = _axes(schedule, extents)
    blocks = {name: schedule.get(name, 1) for name in axes}
    tiles = prod(ceil(prod(axes[name].values()) / blocks[name]) for name in axes)
    programs, launches = _programs(given, schedule, tiles)
    threads = 32 * schedule["warps"]
    block = prod(blocks.values()) * schedule.get("r", 1) * schedule.get("pieces", 1)
    chunks, length = 0, prod(extent for name, extent in extents.items() if name[0] == "r")
    if schedule.family == "cuda.chained":
        parts = schedule.get("tiles", 0) or schedule["unroll"]
        block *= parts
        chunks = ceil(length / (schedule["r"] * parts))
        programs, launches = tiles * chunks, 2
    each = block / threads
    loads = sum(isinstance(node, ir.Load | ir.Gather) for node in kernel.body)
    wide = 2 if any(access.itemsize > 4 for access in found) else 1
    itemsize = max((access.itemsize for access in found), default=4)
    # In pieces one is computed at a time, and the others wait as they were loaded.
    waiting = min(2, loads) * itemsize / 4 if schedule.get("pieces", 0) else min(4, loads)
    computed = 0 if schedule.get("packed", 0) else 1
    registers = BASE_REGISTERS + wide * each * (computed + waiting)
    # What a team, a turn or a scan loads ahead stays in registers.
    is_walked = schedule.family in ("cuda.looped", "cuda.split", "cuda.tiled_looped")
    ahead = schedule.get("ahead", 1) - 1 if is_walked else 0
    kept, copied = (ahead, 0) if has_scans(kernel) else (0, ahead)
    registers += kept * each * loads * itemsize / 4
    registers *= 1.25 if schedule["index"] == 64 else 1.0
    registers = min(registers, schedule.get("registers", 0) or registers)
    shared = block * 4 * wide * (copied + ("tiled" in schedule.family))
    if shared > SHARED_PER_BLOCK and kernel.reduction:
        return Estimate(float("inf"), 0.0, 0.0)
    resident = _resident(threads, registers, min(shared, SHARED_PER_BLOCK))
    capacity = device.multiprocessors * resident
    waves = ceil(programs / capacity)
    running = min(programs, capacity) * threads
    in_use = _row_in_use(schedule, extents) * prod(
        min(1.0, prod(axes[name].values()) / blocks[name]) for name in axes
    )
    asked = running * itemsize * max(min(AHEAD, max(1.0, each)), ahead * each) * in_use
    share = min(1.0, asked / (device.multiprocessors * IN_FLIGHT_BYTES))
    share = min(share, max(LEAST_PROCESSORS, programs) / device.multiprocessors)
    moved = sum(
        access.size_bytes * _sectors(access, _run(access, schedule, axes, blocks, extents))
        for access in found
    )
    if registers > REGISTERS_PER_THREAD:
        moved += 2 * 4 * programs * threads * (registers - REGISTERS_PER_THREAD)
    if schedule.family.endswith(("looped", "split")) or schedule.get("walks", 0):
        held = min(1.0, schedule.get("held", 0) * schedule["r"] / length)
        moved += _moved_again(given, schedule, found, tiles=tiles, capacity=capacity, held=held)
    # Points are so soon done with that the programs of two waves overlap; rows are not.
    # Those of a chain do, which are many and small.
    is_uneven = waves > 1 and bool(kernel.reduction) and not chunks
    full = waves * capacity / programs if is_uneven else 1.0
    seconds = moved / (CUDA_BYTES_PER_S * share) * full + waves * CUDA_WAVE_S
    if teams := schedule.get("teams", 0):
        seconds += ceil(tiles / teams) * CUDA_MEETING_S
    if schedule.family == "cuda.looped" and _has_scanned_columns(kernel, found):
        seconds = max(seconds, ceil(length / schedule["r"]) * CUDA_SCANNED_STEP_S)
    if chunks:
        behind = schedule["back"] * schedule.get("together", 1)
        seconds = max(seconds, chunks / behind * CUDA_LOOK_S)
    occupancy = running / (device.multiprocessors * THREADS_PER_PROCESSOR)
    return Estimate(seconds + launches * CUDA_LAUNCH_S, min(1.0, occupancy), moved, waves)


def _programs(kernel: ir.Kernel, schedule: Schedule, tiles: int) -> tuple[int, int]:
    """The programs of a launch over so many tiles, and the launches."""
    splits = schedule.get("splits", 1)
    if splits == 1:
        return tiles, 1
    if teams := schedule.get("teams", 0):
        return ceil(tiles / ceil(tiles / teams)) * splits, 2
    walks = depth_of(kernel, SHARED)
    return tiles * _splits(schedule, tiles), (1 + bool(schedule.get("apart", 0))) * walks + 1


def _moved_again(
    kernel: ir.Kernel,
    schedule: Schedule,
    found: Sequence[Access],
    *,
    tiles: int,
    capacity: int,
    held: float,
) -> float:
    """Bytes of rows that are walked again and come from memory: of those under way, too many. Such
    a part of each is `held` in registers.
    """
    is_shared = schedule.get("splits", 1) > 1
    walks, under_way = walks_of(kernel, SHARED if is_shared else WALKED), capacity
    if is_shared:
        under_way = schedule.get("teams", tiles)
    own = sum(access.size_bytes for access in row_loads(found) if is_own(access))
    read = own * (1.0 - held)
    all_kept, none_kept = CACHE_KEEPS
    waiting = read * min(1.0, under_way / tiles)
    return (walks - 1) * read * min(1.0, max(0.0, (waiting - all_kept) / (none_kept - all_kept)))


def _has_scanned_columns(kernel: ir.Kernel, found: Sequence[Access]) -> bool:
    is_scan = any(isinstance(node, ir.Scan) for node in kernel.body)
    names = [f"p{number}" for number in range(len(kernel.pointwise))]
    return is_scan and any(access.is_contiguous(name) for access in found for name in names)


def _splits(schedule: Schedule, blocks: int) -> int:
    """How many programs share a row, of so many blocks of rows."""
    most, programs = schedule.get("splits", 1), schedule.get("programs", 0)
    return max(1, min(most, programs // blocks)) if programs else most


def _row_in_use(schedule: Schedule, extents: Mapping[str, int]) -> float:
    """The share of a block's lanes along a row that have an element."""
    loops = tuple(extent for name, extent in extents.items() if name[0] == "r")
    r, r1 = schedule.get("r", 1) * schedule.get("pieces", 1), schedule.get("r1", 0)
    return prod(loops) / padded(loops, r=r, r1=r1) if r1 else min(1.0, prod(loops) / r)


def _axes(schedule: Schedule, extents: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The pointwise loops of each axis of a block, outermost first."""
    loops = [(name, extent) for name, extent in extents.items() if name[0] == "p"]
    if "tiled" not in schedule.family:
        return {"x": dict(loops)}
    starts = [0, *(at + 1 for at in range(len(loops)) if schedule["cuts"] >> at & 1)]
    runs = [
        dict(loops[start:end]) for start, end in zip(starts, [*starts[1:], len(loops)], strict=True)
    ]
    return dict(zip(("z", "y", "x")[-len(runs) :], runs, strict=False))


def _resident(threads: int, registers: float, shared: int) -> int:
    """Programs that a multiprocessor holds at a time."""
    by_registers = REGISTERS_PER_PROCESSOR // int(threads * min(registers, REGISTERS_PER_THREAD))
    by_shared = SHARED_PER_PROCESSOR // shared if shared else 32
    return max(1, min(32, THREADS_PER_PROCESSOR // threads, by_registers, by_shared))


def _run(
    access: Access,
    schedule: Schedule,
    axes: Mapping[str, Mapping[str, int]],
    blocks: Mapping[str, int],
    extents: Mapping[str, int],
) -> int:
    """Elements next to each other in memory that one program touches."""
    best = 1
    for variable in access.strides:
        if not access.is_contiguous(variable):
            continue
        if variable[0] == "r":
            inner = prod(
                extent for name, extent in extents.items() if name[0] == "r" and name > variable
            )
            covered = schedule.get("r", 1) // max(1, inner)
            if r1 := schedule.get("r1", 0):
                covered = r1 if inner == 1 else schedule["r"] // r1
        else:
            axis = next(name for name, loops in axes.items() if variable in loops)
            inner = prod(extent for name, extent in axes[axis].items() if name > variable)
            covered = blocks[axis] // max(1, inner)
        best = max(best, min(extents[variable], covered))
    return best


def _sectors(access: Access, run: int) -> float:
    """Bytes moved for each byte wanted."""
    if not access.strides:
        return 1.0
    return max(1.0, SECTOR_BYTES / (run * access.itemsize))


# --------------------------------------------------------------------------------------------- CPU


def _on_cpu(kernel: ir.Kernel, schedule: Schedule, dims: Sizes, *, threads: int) -> Estimate:
    extents = _extents(kernel, dims)
    is_row = schedule.family in ("cpu.rows", "cpu.panels")
    lane = f"{'r' if is_row else 'p'}{schedule['axis']}"
    across = f"p{schedule['across']}" if "across" in dict(schedule.options) else ""
    lanes, extent = schedule["lanes"], extents.get(lane, 1)
    vectors = ceil(extent / lanes) / max(1, extent)
    if schedule.get("interleaved", 0):
        vectors = 1 / lanes
    found = accesses(kernel, dims)
    points = prod(extents.values())
    known = known_of(kernel, lane) if schedule.get("known", 0) else None
    once = known.positions if known else ()
    if known and known.are_neighbours:
        vectors = 1 / lanes
    regions = parted(kernel, lane) if schedule.get("parted", 0) else ()
    computed = [stretch.places for region in regions for stretch in region.along]
    operations = max(
        sum(isinstance(kernel.body[place], ir.Op) for place in places.difference(once))
        for places in computed or [frozenset(range(len(kernel.body)))]
    )
    steps = points * vectors * max(1, operations) / 4
    in_vectors = {
        (isinstance(node, ir.Store), node.index)
        for node in map(kernel.body.__getitem__, shuffled(kernel, lane))
        if isinstance(node, ir.Load | ir.Store)
    }
    moved = 0.0
    for access in found:
        count = access.size_bytes // access.itemsize
        stride = access.strides.get(lane, 0)
        is_turned = bool(across) and access.is_contiguous(across)
        if stride == 1:
            steps += count * vectors
        elif is_turned:
            empty = max(1.0, lanes / extents.get(across, 1))
            steps += count * vectors * TURNING * empty
        elif (access.is_store, access.index) in in_vectors:
            steps += count * vectors * abs(stride)
        else:
            steps += count
        moved += access.size_bytes * _lines(access, lane, extents, is_near=is_turned)
    busy = _busy(schedule, extents, lane, threads)
    seconds = max(steps / CPU_STEPS_PER_S / busy, moved / CPU_BYTES_PER_S)
    return Estimate(seconds, busy / threads, moved)


def _lines(access: Access, lane: str, extents: Mapping[str, int], *, is_near: bool) -> float:
    """Bytes moved for each byte wanted: a line is lost where its next use is a cache away."""
    stride = access.strides.get(lane, 0)
    if is_near or stride * access.itemsize < LINE_BYTES:
        return 1.0
    touched = extents.get(lane, 1) * LINE_BYTES
    return LINE_BYTES / access.itemsize if touched > CACHE_BYTES else 1.0


def _busy(schedule: Schedule, extents: Mapping[str, int], lane: str, threads: int) -> int:
    """Threads that have something to do."""
    outer = prod(extent for name, extent in extents.items() if name[0] == "p" and name != lane)
    width = extents.get(lane, 1) if lane[0] == "p" else 1
    if schedule.get("split", 0):
        return threads
    pieces = outer * ceil(width / max(1, schedule.get("block", schedule["lanes"])))
    return max(1, min(threads, pieces))


def far_off(estimates: Sequence[Estimate], *, ratio: float) -> tuple[int, ...]:
    """The positions of those that take more than `ratio` times the least."""
    least = min(each.seconds for each in estimates)
    return tuple(number for number, each in enumerate(estimates) if each.seconds > ratio * least)
