"""Editing Tables: a Variant leaves, a pin comes or goes, an earlier Table comes back.

Functions from Tables to Tables. `compacted` comes last, before a Table is published.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from nearhint_daemon.errors import InvalidRequest
from nearhint_rules.hints import bucket
from nearhint_rules.table import PIN_LIMIT, HintRow, Pin, Table, Variant

Dims = tuple[int, ...]


def compacted(table: Table) -> Table:
    """Without Variants that no row ranks and nothing pins; positions follow, rows in order."""
    pinned = {pin.variant for pin in table.pins}
    used = sorted(
        {position for row in (*table.hints, *table.probes) for position, _ in row.ranked}
        | {position for position, each in enumerate(table.variants) if each.id in pinned}
        | ({table.default} if table.default >= 0 else set())
    )
    moved: Mapping[int, int] = {old: new for new, old in enumerate(used)}

    def renumbered(rows: Sequence[HintRow]) -> tuple[HintRow, ...]:
        return tuple(
            replace(row, ranked=tuple((moved[position], timing) for position, timing in row.ranked))
            for row in sorted(rows, key=lambda row: row.dims)
        )

    return replace(
        table,
        variants=tuple(table.variants[position] for position in used),
        default=moved.get(table.default, -1),
        hints=renumbered(table.hints),
        probes=renumbered(table.probes),
    )


def position_of(table: Table, variant: str) -> int | None:
    """Where a Variant is in a Table."""
    return next((at for at, each in enumerate(table.variants) if each.id == variant), None)


def without_variants(table: Table, gone: Collection[str]) -> Table:
    """Without these Variants, their ranks and their pins, and without probes that rank them.

    If the default is among them, the next default is one of those that were measured: at the most
    hints, if possible without a Guard, and there the fastest. Hints at which it was not measured
    count again once they are tuned again. With none left there is no default and no hint.
    """
    left_out = {at for at, each in enumerate(table.variants) if each.id in gone}
    ranked = (
        replace(row, ranked=tuple(entry for entry in row.ranked if entry[0] not in left_out))
        for row in table.hints
    )
    hints = tuple(row for row in ranked if row.ranked)
    probes = tuple(
        row for row in table.probes if left_out.isdisjoint(position for position, _ in row.ranked)
    )
    default = table.default
    if default in left_out:
        default = _next_default(table.variants, hints)
    return replace(
        table,
        hints=hints,
        probes=probes,
        default=default,
        pins=tuple(pin for pin in table.pins if pin.variant not in gone),
    )


def _next_default(variants: Sequence[Variant], hints: Sequence[HintRow]) -> int:
    ratios: dict[int, list[float]] = {}
    for row in hints:
        least_ns = min(timing.median_ns for _, timing in row.ranked)
        for position, timing in row.ranked:
            ratios.setdefault(position, []).append(math.log(timing.median_ns / least_ns))

    def worth(position: int) -> tuple[int, bool, float, str, str]:
        found, variant = ratios[position], variants[position]
        mean = math.fsum(found) / len(found)
        return -len(found), bool(variant.guard.facts), mean, variant.schedule, variant.id

    return min(ratios, key=worth, default=-1)


def with_pin(table: Table, dims: Dims, variant: Variant | None) -> Table:
    """With a pin of a Variant (None: of the Fallback) at the bucket of `dims`, or everywhere.

    It takes the place of another one there. Raises `InvalidRequest` above `PIN_LIMIT`.
    """
    kept = without_pins(table, dims).pins
    if len(kept) >= PIN_LIMIT:
        raise InvalidRequest(f"at most {PIN_LIMIT} pins a Table", field="at")
    variants = table.variants
    if variant is not None and position_of(table, variant.id) is None:
        variants = (*variants, variant)
    pin = Pin(dims, "" if variant is None else variant.id)
    pins = sorted((*kept, pin), key=lambda each: each.dims)
    return replace(table, variants=variants, pins=tuple(pins))


def without_pins(table: Table, dims: Dims | None) -> Table:
    """Without the pin at the bucket of `dims`; without any where that is None."""
    if dims is None:
        return replace(table, pins=())
    wanted = bucket(dims)
    return replace(table, pins=tuple(pin for pin in table.pins if bucket(pin.dims) != wanted))


def as_it_was(
    earlier: Table, barred: Callable[[Variant], str]
) -> tuple[Table, tuple[tuple[Variant, str], ...]]:
    """An earlier Table without the Variants that `barred` gives a reason for, and those."""
    left_out = tuple((each, why) for each in earlier.variants if (why := barred(each)))
    return without_variants(earlier, {each.id for each, _ in left_out}), left_out


def lost_hints(before: Table, after: Table) -> set[Dims]:
    """The hints of `before` that `after` has not, or less tuned: their jobs may be asked again."""
    kept = {row.dims: row for row in after.hints}
    return {row.dims for row in before.hints if not _is_as_good(row, kept.get(row.dims), after)}


def lacks_timings(before: Table, after: Table) -> bool:
    """Whether `after` has not all timings that `before` had of the Variants that both have.

    What was measured between hints, beyond and beside them, may then be asked again.
    """
    kept = {row.dims: _ranked(after, row) for row in after.hints}
    known = {variant.id for variant in after.variants}
    return any(
        row.dims not in kept or not (_ranked(before, row) & known) <= kept[row.dims]
        for row in before.hints
    )


def _ranked(table: Table, row: HintRow) -> set[str]:
    return {table.variants[position].id for position, _ in row.ranked}


def _is_as_good(before: HintRow, row: HintRow | None, after: Table) -> bool:
    return (
        row is not None
        and row.tier >= before.tier
        and {name for name, _ in row.fallbacks} >= {name for name, _ in before.fallbacks}
        and any(position == after.default for position, _ in row.ranked)
    )
