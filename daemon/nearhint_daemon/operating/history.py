"""History: what is different between two generations of a Table, in one line."""

from __future__ import annotations

from collections.abc import Iterable

from nearhint_rules.beyond import own_hints, rows_beyond
from nearhint_rules.metrics import Dims
from nearhint_rules.table import HintRow, Table, Timing, Variant

SHOWN = 3
"""Differences of one kind that are told in full; the rest are counted."""


def change(before: Table | None, after: Table) -> str:
    """What `after` has that `before` had not; None: the Table before it is not kept.

    >>> change(None, Table("k", "t", (), (), -1, (), 3))
    'the oldest that is kept: 0 variants, 0 hints, 0 pins'
    """
    if before is None:
        parts = {"variant": after.variants, "hint": own_hints(after), "pin": after.pins}
        counts = (f"{len(had)} {name}{'' if len(had) == 1 else 's'}" for name, had in parts.items())
        return f"the oldest that is kept: {', '.join(counts)}"
    lines = [
        *_defaults(before, after),
        *_hints(before, after),
        *_probes(before, after),
        *_pins(before, after),
        *_variants(before, after),
    ]
    return "; ".join(lines) or "nothing"


def _defaults(before: Table, after: Table) -> Iterable[str]:
    old, new = _default(before), _default(after)
    if old != new:
        yield f"default {_name(old)} -> {_name(new)}"
    if before.reason != after.reason:
        yield f"no variant: {after.reason}" if after.reason else f"no longer: {before.reason}"


def _hints(before: Table, after: Table) -> Iterable[str]:
    old = {row.dims: row for row in before.hints}
    new = {row.dims: row for row in after.hints}
    had, has = _kinds(before), _kinds(after)
    came = [
        f"{has[dims]} {_dims(dims)} T{row.tier}" for dims, row in new.items() if dims not in old
    ]
    went = [f"{had[dims]} {_dims(dims)} gone" for dims in old if dims not in new]
    moved = [
        f"{_dims(dims)}: {', '.join(told)}"
        for dims, row in new.items()
        if dims in old and (told := list(_row(before, old[dims], after, row)))
    ]
    for told in (came, went, moved):
        yield from _some(told)


def _kinds(table: Table) -> dict[Dims, str]:
    """What each row is: a hint, or what was timed beside one or beyond."""
    own = {row.dims for row in own_hints(table)}
    farther = rows_beyond(table)
    return {
        row.dims: "hint" if row.dims in own else "beyond" if row.dims in farther else "companion"
        for row in table.hints
    }


def _row(before: Table, old: HintRow, after: Table, new: HintRow) -> Iterable[str]:
    if old.tier != new.tier:
        yield f"T{old.tier} -> T{new.tier}"
    first, then = _leader(before, old), _leader(after, new)
    if first != then:
        yield f"{_name(first)} -> {_name(then)}"
    elif old.tier == new.tier and _timings(before, old) != _timings(after, new):
        yield "timed again"


def _probes(before: Table, after: Table) -> Iterable[str]:
    old = {row.dims: row for row in before.probes}
    new = {row.dims: row for row in after.probes}
    came = [f"probe {_dims(dims)}" for dims in new if dims not in old]
    went = [f"probe {_dims(dims)} gone" for dims in old if dims not in new]
    again = [
        f"probe {_dims(dims)}: timed again"
        for dims, row in new.items()
        if dims in old and _timings(before, old[dims]) != _timings(after, row)
    ]
    for told in (came, went, again):
        yield from _some(told)


def _pins(before: Table, after: Table) -> Iterable[str]:
    schedules = {each.id: each.schedule for each in (*before.variants, *after.variants)}
    for verb, pins in (
        ("pinned", [pin for pin in after.pins if pin not in before.pins]),
        ("unpinned", [pin for pin in before.pins if pin not in after.pins]),
    ):
        yield from _some(
            f"{verb} {schedules.get(pin.variant, 'the original ops')}"
            f" {f'at {_dims(pin.dims)}' if pin.dims else 'everywhere'}"
            for pin in pins
        )


def _variants(before: Table, after: Table) -> Iterable[str]:
    old = {each.id: each.schedule for each in before.variants}
    new = {each.id: each.schedule for each in after.variants}
    yield from _some(f"without {name}" for each, name in old.items() if each not in new)


def _some(told: Iterable[str]) -> Iterable[str]:
    told = list(told)
    yield from told[:SHOWN]
    if len(told) > SHOWN:
        yield f"{len(told) - SHOWN} more such"


def _default(table: Table) -> Variant | None:
    return table.variants[table.default] if table.default >= 0 else None


def _leader(table: Table, row: HintRow) -> Variant | None:
    return table.variants[row.ranked[0][0]] if row.ranked else None


def _timings(table: Table, row: HintRow) -> dict[str, Timing]:
    ranked = {table.variants[position].id: timing for position, timing in row.ranked}
    return ranked | dict(row.fallbacks)


def _name(variant: Variant | None) -> str:
    return "none" if variant is None else variant.schedule


def _dims(dims: tuple[int, ...]) -> str:
    return "x".join(map(str, dims)) or "the only sizes"
