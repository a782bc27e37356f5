"""Tables: for one Kernel and Target, which Variants there are and how they ranked at each hint."""

from __future__ import annotations

from dataclasses import dataclass

from nearhint_rules.artifact import ArtifactRef
from nearhint_rules.errors import InvalidTable
from nearhint_rules.guard import Guard

DEFAULT_CUTOFF = 4
HINT_LIMIT = 32


@dataclass(frozen=True, slots=True)
class Timing:
    """One Measurement as selection sees it: median in ns, spread relative to the median."""

    median_ns: int
    spread: float
    samples: int = 0


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

    `ranked` lists (position in `Table.variants`, timing) in serving order: the winner first
    (which inside the tie band is the incumbent), the rest by median. `fallbacks` lists
    (Fallback identity, timing) for every Fallback measured here. `tier` is 1 while only the
    default Variant was timed, 2 once the search at this hint has ended, 3 when refined.
    """

    dims: tuple[int, ...]
    ranked: tuple[tuple[int, Timing], ...]
    fallbacks: tuple[tuple[str, Timing], ...]
    tier: int = 1


@dataclass(frozen=True, slots=True)
class Table:
    """Replaced as a whole; `generation` is the store's number when it was written.

    `default` is the position of the default Variant (-1: none verified). `cutoff` is a ratio per
    symbol. `reason` says why there is no Variant, if there is none and there will be none.
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


def check(table: Table) -> None:
    """Raises `InvalidTable` if a row refers to nothing, or a hint has the wrong rank."""
    count = len(table.variants)
    if not -1 <= table.default < count:
        raise InvalidTable(f"default {table.default} of {count} variants")
    if len(table.hints) > HINT_LIMIT:
        raise InvalidTable(f"{len(table.hints)} hints, at most {HINT_LIMIT}")
    for row in table.hints:
        if len(row.dims) != len(table.symbols) or any(dim < 1 for dim in row.dims):
            raise InvalidTable(f"hint {row.dims} for symbols {table.symbols}")
        if any(not 0 <= position < count for position, _ in row.ranked):
            raise InvalidTable(f"hint {row.dims} ranks an unknown variant")
