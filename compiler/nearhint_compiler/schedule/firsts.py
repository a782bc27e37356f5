"""First Schedules: what the compiler holds best at a hint that nobody has searched yet.

A default serves all sizes of a Table, and so suits few of them: over many short rows most of its
lanes are idle, over few long ones most of the device. What comes first at a hint may promise what
the hint's sizes meet.

It is found by rule, in the order in which candidates are offered, and not by estimate. Where all
Variants of a Table were timed (tests/benchmarks/first_regret.py) the rule's choice took 1.04 times
as long as the best at a size, in the geometric mean over 1944 of an H100, the Table's default 1.19
times; what was estimated best, 1.3 times when that was tried. So estimates are asked only where
kinds of layout differ in what they move, or leave idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from nearhint_compiler.analysis.fixed import written_at
from nearhint_compiler.analysis.multiples import SIZE_MULTIPLE
from nearhint_compiler.analysis.scans import has_scans
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule import cpu, cuda, cuda_scans
from nearhint_compiler.schedule.blocks import covering
from nearhint_compiler.schedule.cuda_chains import is_long_chain
from nearhint_compiler.schedule.cuda_columns import COLUMN_A_THREAD, preferred_columns
from nearhint_compiler.schedule.cuda_facts import MIDDLE_ROW, Facts, facts_of
from nearhint_compiler.schedule.cuda_plane_columns import first_few_planes
from nearhint_compiler.schedule.cuda_pointwise import preferred
from nearhint_compiler.schedule.cuda_reductions import preferred_tile, streamed
from nearhint_compiler.schedule.cuda_shared import are_folds_beside, are_pieces_timed
from nearhint_compiler.schedule.cuda_steps import column_itemsize, first_single_step
from nearhint_compiler.schedule.cuda_turned import turned_rows
from nearhint_compiler.schedule.estimate import estimate
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules.target import Target

BETTER: Mapping[str, float] = {"cpu": 1.5, "cuda": 1.3}
"""How many times as long as another's an estimate is, for the other to come first."""
CACHED_BYTES = 32 << 20
"""What a step of outer loops may move for the next one to find in a cache what both read."""
MANY_ROWS, NARROW_LANES, SPENT = 4, 8, 1.1
"""Rows a processor, neighbours that one load of a thread brings, and how many times the lanes of a
walk a block must have, for rows to be walked that registers could hold."""
NARROW_BYTES = 2
"""Of elements of so many bytes teams of columns come after programs that share them: though teams
read once, half as much is under way of them."""
LONGEST_HELD_SCAN = 4096
"""Elements of a scan that a program holds better than it walks them, where sizes promise nothing:
of 7001 rows of 5121 in f32 the first block took 219 µs, the best one 117, and the first walk 106;
of 7000 of 5120 in vectors 102, 97 and 103 (tests/benchmarks/gpu_schedules.py, on an H100). Narrow
ones it holds better up to `MIDDLE_ROW`, in no more registers than they need or in pieces: of 2318
of 7434 in bf16 the block took 26.0 µs and the best walk 27.3 (`cuda_scans`)."""
LOOPED, SPLIT, CHAINED = "cuda.looped", "cuda.split", "cuda.chained"
TEAMS = "cuda.cooperative"
PERSISTENT = ("cuda.persistent", "cuda.tiled_persistent")
PROMISES = ("aligned", "divisible", "words", "multiple", "stream", "cached")
"""Options in which Schedules of one layout differ, by what they ask of sizes or do without it, and
by how many bytes there are."""


def firsts(
    kernel: ir.Kernel,
    target: Target,
    dims: Mapping[str, int],
    *,
    default: Schedule | None = None,
    threads: int = 1,
) -> tuple[Schedule, ...]:
    """One Schedule of each kind at `dims`, by the Kernel's symbols: the one held best, the others.

    `default` is that of the Table at hand. On a CPU, where compiling takes longer than most calls
    lose, there is none while it is estimated to be near the best.
    """
    held = _kinds(kernel, target, dims)
    better = BETTER[target.kind]

    def seconds(schedule: Schedule) -> float:
        return estimate(kernel, schedule, target, dims, threads=threads).seconds

    estimates = {each: seconds(each) for each in held}
    least = min(held, key=estimates.__getitem__)
    # Estimates know neither that the steps of a scan wait for each other nor what divisions take,
    # or loads of every n-th element.
    is_cut = any(held[0].get(name, 0) for name in ("spaced", "members", "written"))
    is_known = (target.kind == "cuda" and is_cut) or (has_scans(kernel) and held[0].family == TEAMS)
    best = held[0] if is_known or estimates[held[0]] <= better * estimates[least] else least
    known = default if target.kind == "cpu" else None
    if known is not None and seconds(known) <= better * estimates[best]:
        return ()
    return tuple(dict.fromkeys((best, *held)))


def beside(
    kernel: ir.Kernel,
    target: Target,
    dims: Mapping[str, int],
    *,
    first: Schedule,
    default: Schedule | None = None,
    threads: int = 1,
    less: int = 1,
) -> tuple[Schedule, ...]:
    """One Schedule of each kind for sizes near `dims` that do not meet what `first` promises.

    The sizes of a hint are powers of two, those that it serves mostly not: what promises that sizes
    are multiples serves few of them, and beside it there would be but the default. They are `less`
    than those of the hint: 1 for odd ones, 2 for those that are multiples of two and no more. None
    where `first` promises nothing, or as little.
    """
    promised = first.get("divisible", 0)
    if not promised or first.get("multiple", SIZE_MULTIPLE) <= less:
        return ()
    other = {
        name: max(1, size - less * (promised >> number & 1))
        for number, (name, size) in enumerate((each, dims[each]) for each in kernel.symbols)
    }
    return firsts(kernel, target, other, default=default, threads=threads)


def _kinds(kernel: ir.Kernel, target: Target, dims: Mapping[str, int]) -> tuple[Schedule, ...]:
    """One of each family: what keeps rows in registers, what the default is like, the others.

    A default that walks rows of any length is but a stand-in for what suits those at hand.
    """
    if target.kind == "cpu":
        return _first_of_each(cpu.candidates(kernel, target, dims))
    if ir.scatter_of(kernel) is not None:
        return _first_of_each(cuda.candidates(kernel, target, dims))
    facts = facts_of(kernel, target, dims)
    if (single := first_single_step(facts)) is not None:
        return (streamed(facts, first_few_planes(facts) or single),)
    if turned := _promising(tuple(turned_rows(facts))):
        return (streamed(facts, turned[0]),)
    candidates = cuda.candidates(kernel, target, dims)
    if (whole := _without_reduction(kernel, facts, dims, candidates)) is not None:
        return (whole, *_first_of_each([each for each in candidates if not each.get("written", 0)]))
    if are_pieces_timed(facts) or are_folds_beside(facts):
        # Which of them are faster shows in a contest alone.
        candidates = tuple(each for each in candidates if not each.get("fold", 0))
    offered = _offered(kernel, facts, candidates)
    columns = preferred_columns(facts)
    if columns is not None:
        columns = streamed(facts, columns)
        offered = (columns, *offered)
    found = _first_of_each(_promising(offered))
    # Few values of a column leave few programs; vectors would leave fewer, and took 1.3 times.
    held = tuple(
        each
        for each in (_first_of_each(offered) if facts.is_columns else found)
        if each.family in PERSISTENT
    )
    walked = tuple(each for each in found if each.family not in PERSISTENT)
    if columns is not None and facts.walks < 2:
        # What brings vectors of columns together takes longer than what loads single elements.
        walked = tuple(columns if each.family == LOOPED else each for each in walked)
    if facts.step_bytes > CACHED_BYTES:
        walked = tuple(sorted(walked, key=lambda each: not each.get("order", 0)))
    if facts.is_columns:
        if columns is not None and columns["x"] == COLUMN_A_THREAD[0] and facts.walks < 2:
            return (columns,)
        return (*held, *_shared_first(facts, walked))
    if _is_odd_long_scan(facts):
        return (*walked, *held)
    if held and candidates[0].family == LOOPED:
        shorter = _walked_instead(facts, offered, held[0])
        return (shorter, *held) if shorter is not None else held
    return (*held, *walked)


def _without_reduction(
    kernel: ir.Kernel, facts: Facts, dims: Mapping[str, int], candidates: Sequence[Schedule]
) -> Schedule | None:
    """The first candidate that has all terms of a row written out, and stores none of them.

    Lanes of a row are a power of two, so those of three terms have one in vain, and no vectors:
    lengths of 8 million of them in bf16 took 33 µs, and written out 22; of two or four 16 or 23
    both ways. Where a row's terms are stored, lanes of it store neighbours: 28 µs for 46
    (tests/benchmarks/gpu_schedules.py on an H200).
    """
    is_full = facts.length & (facts.length - 1) == 0
    written = None if is_full or not facts.only_reads else written_at(kernel, dims)
    if written is None or written.kernel.reduction:
        return None
    return next((each for each in candidates if each.get("written", 0)), None)


def _offered(
    kernel: ir.Kernel, facts: Facts, candidates: Sequence[Schedule]
) -> tuple[Schedule, ...]:
    """What may be first: without what is like the default where that is for any length, and what
    the sizes at hand say is best of all before it."""
    default, *others = candidates
    offered = tuple(candidates)
    if default.family == LOOPED or (default.family == SPLIT and facts.is_chained):
        known = _layout(default)
        offered = tuple(each for each in others if _layout(_flat(each)) != known) or offered
    elif not kernel.reduction and (first := preferred(facts)) is not None:
        if facts.tile is not None:
            # How a flat block reads what is transposed depends on caches, which estimates do not
            # know.
            offered = tuple(each for each in offered if each.family == first.family)
        offered = (first, *offered)
    if not kernel.reduction and facts.tile is None:
        offered = (*(each for each in offered if each.get("spaced", 0)), *offered)
    if kernel.reduction and (rows := preferred_tile(facts)) is not None:
        offered = (streamed(facts, rows), *offered)
    return offered


def _shared_first(facts: Facts, walked: Sequence[Schedule]) -> tuple[Schedule, ...]:
    """Where programs may share columns, those that have some alone leave much of a device idle."""
    chains = (CHAINED, SPLIT) if is_long_chain(facts) else (SPLIT, CHAINED)
    # Half as much is under way of teams that compute much, or hold narrow elements.
    is_little = facts.has_functions or column_itemsize(facts) <= NARROW_BYTES
    order = (*chains, TEAMS) if is_little else (TEAMS, *chains)
    shared = [each for each in walked if each.family in order]
    others = [each for each in walked if each.family not in order]
    return (*sorted(shared, key=lambda each: order.index(each.family)), *others)


def _is_odd_long_scan(facts: Facts) -> bool:
    """Whether it scans rows that no vector reads, and of which too much would be held."""
    is_narrow = facts.itemsize <= NARROW_BYTES and cuda_scans.is_plain(facts)
    longest = MIDDLE_ROW if is_narrow else LONGEST_HELD_SCAN
    is_odd_scan = facts.has_scan and not facts.divisible
    return is_odd_scan and facts.length > longest and prod(facts.extents) >= facts.processors


def _walked_instead(facts: Facts, offered: Sequence[Schedule], held: Schedule) -> Schedule | None:
    """The walk over rows that wait for instructions, where blocks of powers of two have more lanes.

    So do many rows of two bytes an element that are only read, once, or that share more than they
    have of their own: a lane beyond the end takes as many as another. What is held in pieces has
    few of them, but bools in registers take longer than walked.
    """
    is_many = prod(facts.extents) >= MANY_ROWS * facts.processors
    is_read_once = facts.only_reads and facts.walks < 2
    has_weights = not facts.divisible and facts.small_loads > facts.row_loads // 2
    walks = [each for each in _promising(offered) if each.family == LOOPED and each["x"] == 1]
    if not walks or facts.lanes < NARROW_LANES or held["x"] > 1:
        return None
    if not (is_many and (is_read_once or (has_weights and not held.get("pieces", 0)))):
        return None
    best = min(walks, key=lambda each: -(-facts.length // each["r"]) * each["r"])
    lanes = -(-facts.length // best["r"]) * best["r"]
    block = covering(held["r"] * held.get("pieces", 1))
    return best if SPENT * lanes <= block else None


def _first_of_each(offered: Sequence[Schedule]) -> tuple[Schedule, ...]:
    """The first of each family."""
    found: dict[str, Schedule] = {}
    for each in offered:
        found.setdefault(each.family, each)
    return tuple(found.values())


def _promising(offered: Sequence[Schedule]) -> list[Schedule]:
    """Each layout once, with the most that the sizes at hand let it promise, in the order given."""
    found: dict[Schedule, Schedule] = {}
    for each in offered:
        known = found.setdefault(_layout(each), each)
        if each["divisible"] > known["divisible"]:
            found[_layout(each)] = each
    return list(found.values())


def _flat(schedule: Schedule) -> Schedule:
    """What a tile of two reduction loops is the twin of, if its block is as large."""
    options = tuple(option for option in schedule.options if option[0] != "r1")
    return Schedule(schedule.family, options)


def _layout(schedule: Schedule) -> Schedule:
    options = tuple(option for option in schedule.options if option[0] not in PROMISES)
    return Schedule(schedule.family, options)
