"""What the heuristics of CUDA schedules look at: a kernel's space at a hint, and its accesses."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

from nearhint_compiler.analysis.arg_groups import has_arg_groups
from nearhint_compiler.analysis.chains import is_chained
from nearhint_compiler.analysis.flat import flat_params
from nearhint_compiler.analysis.folds import folded, folded_stores
from nearhint_compiler.analysis.index_width import INDEX_LIMIT, index_bounds
from nearhint_compiler.analysis.members import members
from nearhint_compiler.analysis.multiples import row_multiple, size_multiple
from nearhint_compiler.analysis.online import SHARED, depth_of, online_pairs, walks_of
from nearhint_compiler.analysis.row_words import (
    WORD_BYTES,
    RowWords,
    has_whole_rows,
    plane_words,
    row_words,
    tile_words,
)
from nearhint_compiler.analysis.runs import run_of, runs_of
from nearhint_compiler.analysis.scans import scans_come_last, scans_in
from nearhint_compiler.analysis.shares import shares_of_sums
from nearhint_compiler.analysis.strides import Access, accesses, contiguous_bytes, steps_of
from nearhint_compiler.analysis.tilings import REDUCTION_AXIS, choose, has_placed_rows, is_turned
from nearhint_compiler.analysis.units import has_units
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.target import CudaDevice, Target

GENERIC_SIZE = 97
"""What a size is taken for where none is given."""
PROMISED = (2, 4, 8)
"""Multiples below a word's elements which sizes may be promised to be."""
CACHE_KEEPS = (24 << 20, 48 << 20)
"""Bytes under way of which the L2 cache keeps all, and from which on it keeps nothing: each half of
an H100's keeps what its own processors read."""
STREAMED_BYTES = 40 << 20
"""What a kernel that reads once moves at most, for that cache to keep it: more passes it."""
STREAMED = ("cuda.persistent", "cuda.looped", "cuda.split", "cuda.tiled_looped")
"""Families whose rows may pass that cache."""
PERSISTENT_LIMIT = 16_384
"""Elements of the longest row that is kept in registers."""
MIDDLE_ROW = 8192
"""Elements beyond which a row leaves few registers beside it."""
EARLY_BYTES = 32 << 20
"""What a kernel moves at most where its loads come first: so much is in the L2 cache."""
REPEATED_SHARE = 256
"""What is read again is worth a loop of its own from such a part of the largest access on."""
MUCH = 16
"""What moves such a part of the bytes of the largest access is worth vectors."""
UNIT_BYTES = 8
"""Of a unit of a flat block, in its widest elements. What threads read element by element lies so
far apart: of 16 bytes, a load of a warp would touch four lines of the first cache."""
LATE_AXES_SINCE = (3, 7)
"""The first Triton that gives an access's threads to the last axis first, among those along which
it is not contiguous, and not to the first."""
_TRITON = re.compile(r"triton (\d+)\.(\d+).*")
FUNCTIONS = frozenset({
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "sin", "cos", "tan", "tanh",
    "erf", "sigmoid",
})  # fmt: skip
"""Ops of many instructions, which need registers of their own."""
EXTRAS = (
    "registers", "group", "order", "unroll", "ahead", "whole", "words", "turns", "early", "stream",
    "programs", "spread", "walks", "fold", "plane", "pieces", "runs", "reuse", "unit", "multiple",
    "apart", "back", "anew", "packed", "together", "held", "keep",
    "weights", "tiles", "members",
)  # fmt: skip
"""Options that a schedule has behind all others, if it has them."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The pointwise axes of a tiling: where they end, their extents at the hint, their scores."""

    cuts: int
    extents: tuple[int, ...]
    scores: tuple[int, ...]


class Flat(Enum):
    """Which accesses of a pointwise kernel are in the order of its space."""

    NONE = 0
    SOME = 1
    ALL = 2


@dataclass(frozen=True, slots=True)
class Facts:
    """The extents of the pointwise and reduction loops at a hint, and what follows.

    It `has_late` loads if some along the row come after a reduction that they do not need. `word`
    and `plane_word` are the lanes of the words of rows and of planes; 0 if there are none. It
    `has_shared` loads along rows that have no words as these have, and `has_phases` if such are
    read two words at a time.
    `row_loads` run along the rows, `small_loads` of them over little; `own_loads` and `own_bytes`
    are of those that are not of all rows, `shared_bytes` of the others; `walks` over rows that
    nothing holds read or write along them. It `has_pairs` that one walk computes. If it
    `is_foldable`, several rows of its columns, of which no variances are wanted, may be read as
    one, if it `folds_planes` those of planes, whose elements are columns then, and if it
    `folds_stores` those of columns that it stores, too; if it `is_chained`, chunks of its columns
    wait but for those before them. It `has_functions` if elements go through one of
    many instructions, such as exp. With `has_late_axes` the last axes of a block have threads
    before the first ones. If it `is_divisible_in_part`, some of the sizes that vectors need are
    multiples, and others not; with `has_static_vectors` some accesses need pointers alone, and
    where it `has_odd_columns` none has vectors whatever sizes are promised: how far apart its rows
    are is given, and no multiple. Where a kernel `only_reads` rows, it stores nothing along them.
    It `has_groups` if something is stepped by neighbours, `has_arg_groups` if an arg is. Neighbours
    of the shortest `run` along the rows share what `run_loads` of the row's loads bring; both are 0
    if all differ. It `has_shares` of a sum of terms that it may have kept. A walk over columns
    `has_pieces` if a step of it may be several that are loaded at once: it is the only one, without
    scans or stores, and what it carries is stepped element by element. A `unit` is so many points
    of a flat block whose places may be divided at once, or 0, and all its rows are known to be
    multiples of `row_multiple`; `promises` are the bits of all sizes
    that vectors need, by what all of them are multiples of. `divisible` are the bits of those that
    are multiples of `multiple`, or where that is 0, of what is promised without a number. A kernel
    `gathers` what data names. A thread's vector has the members of so many `member_points`, which
    are 0 where no members of points are loaded at once. A kernel has so many `scans`; those that
    come last are not reduced. It `has_placed_rows` if places along rows alone are not affine.
    """

    extents: tuple[int, ...]
    reduced: tuple[int, ...]
    length: int
    has_static_length: bool
    accesses: tuple[Access, ...]
    divisible: int
    is_dividing_useful: bool
    index: int
    processors: int
    is_columns: bool
    scans: int
    scans_come_last: bool
    flat: Flat
    tile: Tile | None
    spaced: bool
    word: int
    plane_word: int
    has_shared: bool
    has_phases: bool
    has_late: bool
    has_groups: bool
    has_arg_groups: bool
    has_teams: bool
    row_loads: int
    small_loads: int
    own_loads: int
    own_bytes: int
    shared_bytes: int
    only_reads: bool
    has_whole_rows: bool
    tile_word: int
    repeated: int
    has_late_axes: bool
    is_divisible_in_part: bool
    has_static_vectors: bool
    has_odd_columns: bool
    walks: int
    is_foldable: bool
    folds_planes: bool
    has_pairs: bool
    folds_stores: bool
    unit: int
    row_multiple: int
    promises: Mapping[int, int]
    multiple: int
    run: int
    run_loads: int
    has_shares: bool
    is_chained: bool
    has_functions: bool
    has_pieces: bool
    gathers: bool
    member_points: int
    has_placed_rows: bool

    @property
    def has_scan(self) -> bool:
        """Whether anything is scanned."""
        return self.scans > 0

    @property
    def itemsize(self) -> int:
        """Bytes of the widest element."""
        return max((access.itemsize for access in self.accesses), default=4)

    @property
    def is_of_bytes(self) -> bool:
        """Whether elements of one byte are a fourth, at least, of what is read and written."""
        sizes = (access.size_bytes for access in self.accesses if access.itemsize == 1)
        return 4 * sum(sizes) >= self.moved_bytes > 0

    @property
    def lanes(self) -> int:
        """Neighbours along a row that one load of a thread brings."""
        sizes = [
            access.itemsize
            for access in self.accesses
            if any(stride == 1 and name[0] == "r" for name, stride in access.strides.items())
        ]
        return max(1, 16 // max(sizes, default=16))

    @property
    def own_lanes(self) -> int:
        """The same of what has an element for each of the row's; 0 if nothing has."""
        sizes = [
            access.itemsize
            for access in self.accesses
            if access.size_bytes >= prod(self.reduced) * access.itemsize
        ]
        return 16 // max(sizes, default=17)

    @property
    def is_weighted(self) -> bool:
        """Whether rows share more loads along them, as weights, than they have of their own."""
        return self.row_loads > 2 * self.own_loads

    @property
    def has_vectors(self) -> bool:
        """Whether what is read as it lies is in vectors: sizes promise it, or need not."""
        return self.divisible > 0 or not (self.is_dividing_useful or self.has_odd_columns)

    @property
    def moved_bytes(self) -> int:
        """What is read and written, once each."""
        return sum(access.size_bytes for access in self.accesses)

    @property
    def step_bytes(self) -> int:
        """What a step of the outer loops moves that read something again each time; else 0."""
        outer = prod(self.extents[: self.repeated.bit_length()])
        if not self.repeated or outer == 1:
            return 0
        names = {f"p{place}" for place in range(self.repeated.bit_length())}
        return sum(
            access.size_bytes // (outer if names & access.strides.keys() else 1)
            for access in self.accesses
        )

    @property
    def has_planes(self) -> bool:
        """Whether neighbouring columns share something along the row that outer loops do not."""
        inner = f"p{len(self.extents) - 1}"
        return any(
            inner not in access.strides and {"p", "r"} <= {name[0] for name in access.strides}
            for access in self.accesses
        )

    def has_words(self, r: int) -> bool:
        """Whether blocks of `r` may hold rows in whole words, and their edges."""
        return self.word > 0 and r >= 2 * self.word**2

    @property
    def has_plane_words(self) -> bool:
        """Whether planes are long enough to be read in whole words, with their edges."""
        return 0 < 2 * self.plane_word**2 <= self.reduced[-1]

    def schedule(self, family: str, *, divisible: int = 0, **options: int) -> Schedule:
        """A schedule with these blocks, with 16-byte pointers where they are all that is needed."""
        is_enough = (
            options.pop("aligned", 0)
            or not self.is_dividing_useful
            or self.has_whole_rows
            or options.get("whole", 0)
            or options.get("words", 0)
        )
        aligned = 1 if divisible or is_enough else 0
        if divisible and self.multiple:
            options.setdefault("multiple", self.multiple)
        extras = {name: options.pop(name) for name in EXTRAS if name in options}
        options |= {"index": self.index, "aligned": aligned, "divisible": divisible}
        if self.spaced:
            options["spaced"] = 1
        options |= extras
        return Schedule(f"cuda.{family}", tuple(options.items()))


def facts_of(
    kernel: ir.Kernel,
    target: Target,
    dims: Mapping[str, int] | None,
    *,
    cut_from: ir.Kernel | None = None,
) -> Facts:
    """The facts of `kernel` at `dims`; `cut_from` is the kernel whose loops were cut for it."""
    sizes = dims or dict.fromkeys(kernel.symbols, GENERIC_SIZE)
    found = accesses(kernel, sizes)
    is_columns = bool(kernel.reduction) and _is_columns(kernel, found)
    is_rows = bool(kernel.reduction) and not is_columns
    useful = _worth_dividing(kernel, found, is_rows=is_rows)
    is_static = any(_has_static_vectors(kernel, each) for each in large_accesses(found))
    device = target.device
    scans = scans_in(kernel)
    has_args = any(has_arg_groups(kernel, place) for place in range(len(kernel.body)))
    words = row_words(kernel)
    planes = None if scans else plane_words(kernel)
    tile = _tile(kernel, sizes, found)
    repeated = _repeated(kernel, found) if tile is None else 0
    tiled = tile_words(kernel, tile.cuts) if tile is not None else None
    promised = size_multiple(kernel)
    multiple = promised if kernel.reduction else _word(kernel, found)
    divisible = sum(
        1 << number
        for number, name in enumerate(kernel.symbols)
        if dims is not None and name in useful and dims[name] % multiple == 0
    )
    fold, pairs = folded(kernel, 2), online_pairs(kernel)
    return Facts(
        extents=tuple(ex.evaluate(extent, sizes) for extent in kernel.pointwise),
        reduced=tuple(ex.evaluate(extent, sizes) for extent in kernel.reduction),
        length=ex.evaluate(ex.product(kernel.reduction), sizes),
        has_static_length=not ex.symbols_of(ex.product(kernel.reduction)),
        accesses=found,
        divisible=divisible,
        is_dividing_useful=bool(useful),
        index=32 if _fits_32_bits(cut_from or kernel, sizes) else 64,
        processors=device.multiprocessors if isinstance(device, CudaDevice) else 1,
        is_columns=is_columns,
        scans=scans,
        scans_come_last=scans_come_last(kernel),
        flat=_flat(kernel),
        tile=tile,
        spaced=cut_from is not None,
        word=words.lanes if words else 0,
        plane_word=planes.lanes if planes else 0,
        has_shared=words is not None and _has_shared(kernel, words),
        has_phases=words is not None and words.is_phased,
        has_late=_has_late(kernel),
        has_groups=has_args or any(isinstance(node, ir.Reduce) for node in kernel.body),
        has_arg_groups=has_args,
        row_loads=len(row_loads(found)),
        small_loads=len(row_loads(found)) - len(_large(row_loads(found))),
        own_loads=sum(map(is_own, row_loads(found))),
        own_bytes=sum(each.size_bytes for each in row_loads(found) if is_own(each)),
        shared_bytes=sum(each.size_bytes for each in row_loads(found) if not is_own(each)),
        only_reads=not _has_row_stores(kernel),
        has_teams=walks_of(kernel, SHARED) == 2 and depth_of(kernel, SHARED) == 1,
        has_whole_rows=not scans and has_whole_rows(kernel),
        tile_word=tiled.lanes if tiled else 0,
        repeated=repeated,
        has_late_axes=_has_late_axes(target),
        is_divisible_in_part=bool(divisible or is_static) and divisible.bit_count() < len(useful),
        has_static_vectors=is_static,
        has_odd_columns=is_columns and _are_odd(large_accesses(found)),
        walks=walks_of(kernel, SHARED),
        is_chained=is_chained(kernel),
        has_functions=_has_functions(kernel),
        has_pieces=is_columns
        and not (scans or _has_row_stores(kernel))
        and not pairs
        and walks_of(kernel, SHARED) == 1,
        is_foldable=is_columns and fold is not None and fold.plane == ex.ONE and not pairs,
        folds_planes=len(kernel.reduction) > 1 and fold is not None,
        has_pairs=bool(pairs),
        folds_stores=is_columns and folded_stores(kernel, 2) is not None,
        unit=_unit(kernel, found, sizes),
        row_multiple=row_multiple(kernel, WORD_BYTES),
        promises=_promises(kernel, dims, useful),
        multiple=multiple if multiple != promised else 0,
        run=min((ex.evaluate(run, sizes) for run in runs_of(kernel)), default=0),
        has_shares=bool(shares_of_sums(kernel)),
        gathers=_gathers(kernel),
        has_placed_rows=not kernel.reduction and has_placed_rows(kernel),
        member_points=min((each.points(kernel) for each in members(kernel)), default=0),
        run_loads=sum(
            isinstance(node, ir.Load) and run_of(kernel, node.index) is not None
            for node in kernel.body
        ),
    )


def _gathers(kernel: ir.Kernel) -> bool:
    return any(isinstance(node, ir.Gather) for node in kernel.body)


def _word(kernel: ir.Kernel, found: Sequence[Access]) -> int:
    """The most elements that a word holds of what moves much."""
    narrowest = min((access.itemsize for access in large_accesses(found)), default=1)
    return WORD_BYTES // narrowest


def _unit(kernel: ir.Kernel, found: Sequence[Access], sizes: Mapping[str, int]) -> int:
    """The points of a unit of a flat block, where some access is not at the flat index."""
    if not has_units(kernel) or _flat(kernel) == Flat.ALL:
        return 0
    widest = max((access.itemsize for access in large_accesses(found)), default=UNIT_BYTES)
    lanes = max(2, UNIT_BYTES // widest)
    return lanes if lanes <= ex.evaluate(kernel.pointwise[-1], sizes) else 0


def _promises(
    kernel: ir.Kernel, dims: Mapping[str, int] | None, useful: Collection[str]
) -> Mapping[int, int]:
    if dims is None or not useful:
        return {}
    bits = sum(1 << number for number, name in enumerate(kernel.symbols) if name in useful)
    least = [dims[name] & -dims[name] for name in useful]
    return {multiple: bits for multiple in PROMISED if all(each >= multiple for each in least)}


def _has_functions(kernel: ir.Kernel) -> bool:
    elements = ir.per_element(kernel)
    return any(
        isinstance(node, ir.Op) and node.name in FUNCTIONS and elements[place]
        for place, node in enumerate(kernel.body)
    )


def _has_late_axes(target: Target) -> bool:
    """Whether the target's Triton gives threads to the last axis first, of those that are alike."""
    found = (_TRITON.fullmatch(tool) for tool in target.toolchain)
    return any(each and (int(each[1]), int(each[2])) >= LATE_AXES_SINCE for each in found)


def row_loads(found: Sequence[Access]) -> list[Access]:
    """The loads along the rows among the accesses of a kernel."""
    return [
        access
        for access in found
        if not access.is_store and any(name[0] == "r" for name in access.strides)
    ]


def _large(found: Sequence[Access]) -> list[Access]:
    largest = max((access.size_bytes for access in found), default=0)
    return [access for access in found if MUCH * access.size_bytes >= largest]


def is_own(access: Access) -> bool:
    """Whether each row has elements of its own there, as it has of no weights."""
    return any(name[0] == "p" for name in access.strides)


def _repeated(kernel: ir.Kernel, found: Sequence[Access]) -> int:
    """The cut behind the outer loops that read the same again each time, if that is much.

    It is a schedule's `cuts`; 0 where there is none.
    """
    if kernel.reduction:
        return 0
    largest = max((access.size_bytes for access in found), default=0)
    shares: dict[int, int] = {}
    for access in found:
        place = min((int(name[1:]) for name in access.strides), default=0)
        if place > 0:
            shares[place] = shares.get(place, 0) + access.size_bytes
    place = max(shares, key=lambda place: shares[place], default=0)
    return 1 << (place - 1) if place and REPEATED_SHARE * shares[place] > largest else 0


def _has_shared(kernel: ir.Kernel, words: RowWords) -> bool:
    """Whether rows share what is read along them, such as weights: that has no whole words."""
    return any(
        node.index not in words.indices
        and any(map(ir.is_reduction_variable, ex.symbols_of(node.index)))
        for node in kernel.body
        if isinstance(node, ir.Load | ir.Gather)
    )


def _has_late(kernel: ir.Kernel) -> bool:
    """Whether loads along the row come after a reduction: what they wait for is not that."""
    kinds = [isinstance(node, ir.Reduce | ir.Arg) for node in kernel.body]
    after = kernel.body[kinds.index(True) :] if any(kinds) else ()
    return any(
        isinstance(node, ir.Load | ir.Gather)
        and any(map(ir.is_reduction_variable, ex.symbols_of(node.index)))
        for node in after
    )


def _has_row_stores(kernel: ir.Kernel) -> bool:
    elements = ir.per_element(kernel)
    return any(isinstance(node, ir.Store) and elements[p] for p, node in enumerate(kernel.body))


def _flat(kernel: ir.Kernel) -> Flat:
    params = frozenset(node.param for node in kernel.body if isinstance(node, ir.Access))
    found = frozenset[int]() if kernel.reduction else flat_params(kernel)
    return Flat.NONE if not found else Flat.ALL if found == params else Flat.SOME


def _tile(kernel: ir.Kernel, sizes: Mapping[str, int], found: Sequence[Access]) -> Tile | None:
    """The best tiling with more than one pointwise axis, where that is the best of all."""
    axes = [axis for axis in choose(kernel, sizes, limit=4).axes if axis.name != REDUCTION_AXIS]
    if not 2 <= len(axes) <= 3:
        return None
    cuts, place = 0, 0
    for axis in axes[:-1]:
        size: ex.Expr = ex.ONE
        while size != axis.extent:
            if place == len(kernel.pointwise):
                return None  # an axis that ends within a loop
            size = ex.mul(size, kernel.pointwise[place])
            place += 1
        cuts |= 1 << (place - 1)
    inner = [f"p{each}" for each in range(place, len(kernel.pointwise))]
    if not (kernel.reduction or any(is_turned(access, inner) for access in found)):
        return None
    extents = tuple(ex.evaluate(axis.extent, sizes) for axis in axes)
    return Tile(cuts, extents, tuple(axis.score for axis in axes))


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


def _worth_dividing(kernel: ir.Kernel, moved: Sequence[Access], *, is_rows: bool) -> set[str]:
    """Symbols that make strides and limits multiples if they are: as few as will do.

    Each that is promised is a size that the Variant is not for, such as 7000 rows. So they are
    those of accesses that move much alone, and not of a scale for every 32 elements.
    """
    much, multiple = large_accesses(moved), size_multiple(kernel)
    if _gathers(kernel):
        # Lists of places are read one by one, however long they are.
        loops = "r" if is_rows else "p"
        much = [each for each in much if (loops, 1) in {(n[0], s) for n, s in each.strides.items()}]
    along = kernel.reduction if is_rows else kernel.pointwise
    found = [*along[-1:], ex.product(along)]
    if kernel.reduction and not is_rows:
        found = [
            extent
            for number, extent in enumerate(along)
            if any(access.is_contiguous(f"p{number}") for access in much)
        ] or found
    found += [stride for access in much for stride in steps_of(access.index)]
    chosen: set[str] = set()
    for size in sorted(dict.fromkeys(found), key=lambda size: len(ex.symbols_of(size))):
        names = [name for name in ex.symbols_of(size) if name in kernel.symbols]
        if _is_multiple(size, chosen, multiple):
            continue
        one = next(
            (name for name in reversed(names) if _is_multiple(size, {*chosen, name}, multiple)),
            None,
        )
        chosen |= set(names) if one is None else {one}
    return chosen


def large_accesses(moved: Sequence[Access]) -> list[Access]:
    """The accesses that are worth vectors."""
    largest = max((access.size_bytes for access in moved), default=0)
    return [access for access in moved if MUCH * access.size_bytes >= largest]


def _has_static_vectors(kernel: ir.Kernel, access: Access) -> bool:
    """Whether an access has vectors along a pointwise loop wherever pointers are aligned."""
    limits = [
        extent
        for number, extent in enumerate(kernel.pointwise)
        if access.is_contiguous(f"p{number}")
    ]
    sizes = (*limits, *(stride for stride in steps_of(access.index) if stride != ex.ONE))
    return bool(limits) and all(_is_multiple(size, set(), size_multiple(kernel)) for size in sizes)


def _are_odd(much: Sequence[Access]) -> bool:
    """Whether no access has vectors along a pointwise loop, because rows are so many elements."""
    return not any(
        all(
            ex.symbols_of(stride) or _is_multiple(stride, set(), 16 // access.itemsize)
            for stride in steps_of(access.index)
            if stride != ex.ONE
        )
        for access in much
        if any(stride == 1 and name[0] == "p" for name, stride in access.strides.items())
    )


def _is_multiple(size: ex.Expr, names: set[str], multiple: int) -> bool:
    """Whether `size` is a multiple of that where the sizes of these names are."""
    multiples = {name: ex.mul(multiple, ex.symbol(name)) for name in names}
    return ex.mod(ex.substitute(size, multiples), multiple) == ex.ZERO
