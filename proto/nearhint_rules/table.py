"""Tables: for one Kernel and Target, which Variants there are and how they ranked at each hint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearhint_rules.artifact import (
    ArtifactRef,
    CpuLaunch,
    CudaLaunch,
    LaunchMetadata,
    SizeArgument,
    WorkspaceArgument,
)
from nearhint_rules.errors import InvalidTable
from nearhint_rules.expr import Expr, symbols_of
from nearhint_rules.guard import Aligned, Divisible, Guard

DEFAULT_CUTOFF = 4
HINT_LIMIT = 32
ROW_LIMIT = 48
"""Of a Table: its hints, and what is beside and beyond them, where their Variants are timed too."""
PIN_LIMIT = 64
PROBE_LIMIT = 32


@dataclass(frozen=True, slots=True)
class Timing:
    """One Measurement as selection sees it: median in ns, spread relative to the median.

    `disturbed` of its samples were taken while something else ran there, or heat slowed the device:
    it had no others within its time.
    """

    median_ns: int
    spread: float
    samples: int = 0
    disturbed: int = 0

    @property
    def is_disturbed(self) -> bool:
        """Whether most of its samples were."""
        return 2 * self.disturbed > self.samples


@dataclass(frozen=True, slots=True)
class Variant:
    """A verified Variant: its identity, printed Schedule, Guard and Artifact."""

    id: str
    schedule: str
    guard: Guard
    artifact: ArtifactRef


@dataclass(frozen=True, slots=True)
class HintRow:
    """One hint: `dims` in the Kernel's symbol order.

    `ranked` lists (position in `Table.variants`, timing) in serving order, as `ranking.rank` makes
    it: the winner first (which inside the tie band is the incumbent). `fallbacks` lists
    (Fallback identity, timing) for every Fallback measured here. `tier` is 1 while only the
    default Variant and what the compiler holds best here were timed, 2 once the search at this hint
    has ended, 3 when refined.
    """

    dims: tuple[int, ...]
    ranked: tuple[tuple[int, Timing], ...]
    fallbacks: tuple[tuple[str, Timing], ...]
    tier: int = 1

    @property
    def is_disturbed(self) -> bool:
        """Whether what serves here was timed in a disturbed moment, and with it its contest."""
        return bool(self.ranked) and self.ranked[0][1].is_disturbed


@dataclass(frozen=True, slots=True)
class Pin:
    """What an operator fixed: at the bucket of `dims`, or everywhere where that is empty.

    `variant` is the identity of one of the Table's Variants; empty means the Fallback.
    """

    dims: tuple[int, ...]
    variant: str


@dataclass(frozen=True, slots=True)
class Table:
    """Replaced as a whole; `generation` is the store's number when it was written.

    `default` is the position of the default Variant (-1: none verified). `cutoff` is a ratio per
    symbol. `reason` says why there is no Variant, if there is none and there will be none. `pins`
    win over every rule of selection; see `pins.Pins`. `selector` names the rule that serves
    (`selectors.SELECTORS`); empty for "nearest". `probes` are sizes that calls have, at which what
    might serve was timed: each answers for itself, and nothing is known from it of others.
    """

    kernel: str
    target: str
    symbols: tuple[str, ...]
    variants: tuple[Variant, ...]
    default: int
    hints: tuple[HintRow, ...]
    generation: int
    cutoff: int = DEFAULT_CUTOFF
    reason: str = ""
    namespace: str = ""
    signature: bytes = b""
    key_id: str = ""
    pins: tuple[Pin, ...] = ()
    selector: str = ""
    probes: tuple[HintRow, ...] = ()


def is_complete(row: HintRow, default: int, fallback: str) -> bool:
    """Whether the default Variant and this Fallback are both measured at a hint.

    Only such a hint counts for a step whose Fallback it is.
    """
    return any(position == default for position, _ in row.ranked) and any(
        name == fallback for name, _ in row.fallbacks
    )


def is_for_cpu(table: Table) -> bool:
    """Whether its Variants run on a CPU."""
    return any(isinstance(each.artifact.launch, CpuLaunch) for each in table.variants)


def answering(table: Table, fallback: str) -> tuple[HintRow, ...]:
    """The hints that count for steps with a Fallback."""
    return tuple(row for row in table.hints if is_complete(row, table.default, fallback))


def check(table: Table) -> None:
    """Raises `InvalidTable` naming the first field that contradicts the rest."""
    count = len(table.variants)
    if not -1 <= table.default < count:
        raise InvalidTable("default_variant", f"{table.default} of {count} variants")
    if table.cutoff < 1:
        raise InvalidTable("cutoff", f"{table.cutoff} is no ratio of 1 or more")
    if len(set(table.symbols)) != len(table.symbols):
        raise InvalidTable("symbols", "named twice")
    if len(table.hints) > ROW_LIMIT:
        raise InvalidTable("hints", f"{len(table.hints)} hints, at most {ROW_LIMIT}")
    for position, variant in enumerate(table.variants):
        _check_variant(variant, frozenset(table.symbols), f"variants[{position}]")
    if len(table.probes) > PROBE_LIMIT:
        raise InvalidTable("probes", f"{len(table.probes)} probes, at most {PROBE_LIMIT}")
    _check_rows(table, table.hints, "hints")
    _check_rows(table, table.probes, "probes")
    _check_pins(table)


def _check_rows(table: Table, rows: Sequence[HintRow], field: str) -> None:
    count = len(table.variants)
    seen: set[tuple[int, ...]] = set()
    for number, row in enumerate(rows):
        place = f"{field}[{number}]"
        if len(row.dims) != len(table.symbols) or any(dim < 1 for dim in row.dims):
            raise InvalidTable(f"{place}.dims", f"{row.dims} for symbols {table.symbols}")
        if row.dims in seen:
            raise InvalidTable(f"{place}.dims", f"{row.dims} twice")
        seen.add(row.dims)
        ranked = [position for position, _ in row.ranked]
        if any(not 0 <= position < count for position in ranked):
            raise InvalidTable(f"{place}.ranked", "ranks an unknown variant")
        if len(set(ranked)) != len(ranked):
            raise InvalidTable(f"{place}.ranked", "ranks a variant twice")


def _check_pins(table: Table) -> None:
    if len(table.pins) > PIN_LIMIT:
        raise InvalidTable("pins", f"{len(table.pins)} pins, at most {PIN_LIMIT}")
    known = {"", *(variant.id for variant in table.variants)}
    seen: set[tuple[int, ...]] = set()
    for number, pin in enumerate(table.pins):
        place = f"pins[{number}]"
        if pin.dims and (len(pin.dims) != len(table.symbols) or any(dim < 1 for dim in pin.dims)):
            raise InvalidTable(f"{place}.dims", f"{pin.dims} for symbols {table.symbols}")
        if pin.dims in seen:
            raise InvalidTable(f"{place}.dims", f"{pin.dims} twice")
        seen.add(pin.dims)
        if pin.variant not in known:
            raise InvalidTable(f"{place}.variant", "pins an unknown variant")


def _check_variant(variant: Variant, symbols: frozenset[str], place: str) -> None:
    for number, fact in enumerate(variant.guard.facts):
        if isinstance(fact, Aligned):
            if fact.parameter < 0 or fact.to_bytes < 1:
                raise InvalidTable(f"{place}.guard.facts[{number}]", "no alignment of a parameter")
            continue
        if isinstance(fact, Divisible) and fact.by < 1:
            raise InvalidTable(f"{place}.guard.facts[{number}].by", "not positive")
        if not symbols.issuperset(symbols_of(fact.expr)):
            raise InvalidTable(f"{place}.guard.facts[{number}].expr", "uses an unknown symbol")
    if not symbols.issuperset(symbols_of(*_launch_exprs(variant.artifact.launch))):
        raise InvalidTable(f"{place}.artifact.launch", "uses an unknown symbol")


def _launch_exprs(launch: LaunchMetadata) -> tuple[Expr, ...]:
    match launch:
        case CpuLaunch(_, work, _, _):
            return (work,)
        case CudaLaunch(arguments=arguments, grid=grid):
            sizes = [argument.expr for argument in arguments if isinstance(argument, SizeArgument)]
            offsets = [each.offset for each in arguments if isinstance(each, WorkspaceArgument)]
            return (*grid, *sizes, *offsets, launch.workspace_bytes, launch.inner)
