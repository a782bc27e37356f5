"""Winners: Schedules that won elsewhere, from where a search may start.

Those of the same Kernel on other Targets of its kind, and those of similar Kernels on the same
Target: as many symbols, a default of the same family, sizes that are near. Held in memory, bounded,
and read from the Tables when the daemon starts: they save a search work and decide nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from math import prod

from nearhint_daemon.tuning.matrix import SEARCHED_TIER
from nearhint_rules.companions import without_companions
from nearhint_rules.metrics import Dims
from nearhint_rules.table import HintRow, Table

TRANSFERRED = 2
"""Of similar Kernels; and of other Targets."""
NEAR = 4.0
"""The product of the sizes' ratios up to which extents are similar."""
GROUPS_LIMIT = 256
GROUP_LIMIT = 64

Group = tuple[str, str, int]
"""Target, family of the default Schedule, number of symbols."""


class Winners:
    """The latest of them: by Kernel and hint, which Schedule won."""

    def __init__(self) -> None:
        self._groups: OrderedDict[Group, OrderedDict[tuple[str, Dims], str]] = OrderedDict()

    def note(self, table: Table, dims: Dims | None) -> None:
        """A hint's row was published."""
        row = next((each for each in without_companions(table) if each.dims == dims), None)
        if row is None or not _is_won(table, row):
            return
        self._keep(table, row)

    def recall(self, table: Table) -> None:
        """A Table was there when the daemon started; what was published since counts for more."""
        for row in without_companions(table):
            if _is_won(table, row) and (table.kernel, row.dims) not in self._groups.get(
                _group(table), ()
            ):
                self._keep(table, row)

    def _keep(self, table: Table, row: HintRow) -> None:
        group = _group(table)
        known = self._groups.setdefault(group, OrderedDict())
        self._groups.move_to_end(group)
        if len(self._groups) > GROUPS_LIMIT:
            self._groups.popitem(last=False)
        known[table.kernel, row.dims] = _first(table, row)
        known.move_to_end((table.kernel, row.dims))
        if len(known) > GROUP_LIMIT:
            known.popitem(last=False)

    def similar(self, table: Table, dims: Dims) -> tuple[str, ...]:
        """What won for similar Kernels near these sizes, the nearest first, then the latest."""
        known: Mapping[tuple[str, Dims], str] = self._groups.get(_group(table), {})
        found = sorted(
            (_ratio(dims, near), -number, schedule)
            for number, ((kernel, near), schedule) in enumerate(known.items())
            if kernel != table.kernel and _ratio(dims, near) <= NEAR
        )
        return tuple(dict.fromkeys(schedule for _, _, schedule in found))[:TRANSFERRED]


def elsewhere(tables: Iterable[Table], dims: Dims) -> tuple[str, ...]:
    """What won in a Kernel's Tables of other Targets, at the hint nearest to these sizes."""
    found: dict[str, None] = {}
    for table in tables:
        rows = [
            row for row in without_companions(table) if row.tier >= SEARCHED_TIER and row.ranked
        ]
        if rows:
            nearest = min(rows, key=lambda row: (_ratio(dims, row.dims), row.dims))
            found[_first(table, nearest)] = None
    return tuple(found)[:TRANSFERRED]


def _is_won(table: Table, row: HintRow) -> bool:
    return row.tier >= SEARCHED_TIER and bool(row.ranked) and table.default >= 0


def _group(table: Table) -> Group:
    family = table.variants[table.default].schedule.partition(" ")[0]
    return table.target, family, len(table.symbols)


def _first(table: Table, row: HintRow) -> str:
    return table.variants[row.ranked[0][0]].schedule


def _ratio(first: Dims, second: Dims) -> float:
    return prod(max(a, b) / min(a, b) for a, b in zip(first, second, strict=True))
