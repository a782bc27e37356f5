"""What operators name: a Kernel's Table, one of its Variants, sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nearhint_daemon.errors import (
    DaemonError,
    InvalidRequest,
    TableUnknown,
    VariantRejected,
    VariantUnknown,
)
from nearhint_daemon.operating.quarantine import Quarantine
from nearhint_daemon.store import Reading, Store, queries
from nearhint_daemon.store.rows import ArtifactRow, KernelRow, QuarantinedVariantRow, VariantRow
from nearhint_daemon.tables import TableIndex, TableKey
from nearhint_rules.table import Variant

Sizes = Mapping[str, int]
DIGITS = 12
"""Of identities in messages, as many as commands show."""


class Named:
    """Finds what a request names."""

    def __init__(self, store: Store, tables: TableIndex, quarantine: Quarantine) -> None:
        self._store = store
        self._tables = tables
        self._quarantine = quarantine

    def table_key(self, kernel: KernelRow, target: str) -> TableKey:
        """The Kernel's Table on the Target that starts so, or its only one.

        Raises `TableUnknown`, or `InvalidRequest` if there are several.
        """
        every = self._tables.of_kernel(kernel.namespace, kernel.id)
        keys = [key for key in every if key[2].startswith(target)]
        match keys:
            case [key]:
                return key
            case []:
                raise no_table(every)
            case _:
                problem = f"several Targets have a Table; say which: {_targets(keys)}"
                raise InvalidRequest(problem, field="target_id")

    def variant(self, kernel: KernelRow, name: str, *, target: str) -> VariantRow:
        """The one Variant of that identity or Schedule: the one in a Table, if several are.

        Raises `VariantUnknown`, or `InvalidRequest` if there are several.
        """
        every = self._store.read_now(
            lambda reading: queries.variants_named(reading, kernel.namespace, kernel.id, name)
        )
        rows = [row for row in every if row.target.startswith(target)]
        if len({row.id for row in rows}) > 1:
            keys = self._tables.of_kernel(kernel.namespace, kernel.id)
            tables = [table for key in keys if (table := self._tables.newest(key)) is not None]
            listed = {variant.id for table in tables for variant in table.variants}
            rows = [row for row in rows if row.id in listed] or rows
        if not rows:
            raise _unknown("the Kernel has no such Variant", every)
        if len({row.id for row in rows}) > 1:
            raise _ambiguous({row.id: row.target for row in rows})
        return max(rows, key=lambda row: row.created_at_s)

    def barred(self, kernel: KernelRow, name: str, *, target: str) -> QuarantinedVariantRow:
        """The one Variant of that identity or Schedule that an operator quarantined.

        Raises `VariantUnknown`, or `InvalidRequest` if there are several.
        """

        def bars(reading: Reading) -> list[QuarantinedVariantRow]:
            namespace, kernel_id = kernel.namespace, kernel.id
            return list(reading.where(QuarantinedVariantRow, namespace=namespace, kernel=kernel_id))

        every = [
            row
            for row in self._store.read_now(bars)
            if row.variant.startswith(name) or row.schedule == name
        ]
        rows = [row for row in every if row.target.startswith(target)]
        match rows:
            case []:
                raise _unknown("no such Variant is quarantined", every)
            case [row]:
                return row
            case _:
                raise _ambiguous({row.variant: row.target for row in rows})

    def check_servable(self, row: VariantRow) -> None:
        """Raises `VariantRejected` unless a Variant is verified, measured, there and not barred."""
        bar = self._quarantine.bar_on(row)
        if bar is not None:
            raise VariantRejected(f"it is quarantined: {bar.reason}", field="variant")
        if row.state != "verified":
            problem = row.problem or "it is not verified yet"
            raise VariantRejected(f"it may not serve: {problem}", field="variant")

        def is_usable(reading: Reading) -> bool:
            key = (row.namespace, row.kernel, row.target, row.id)
            has_binary = reading.get(ArtifactRow, row.artifact) is not None
            return has_binary and queries.is_measured(reading, *key)

        if not self._store.read_now(is_usable):
            raise VariantRejected("it was never measured, or its binary is gone", field="variant")

    def bars_at(self, key: TableKey) -> Callable[[Variant], str]:
        """Says why a Variant of an earlier Table may not serve now; empty: it may."""
        states = self._store.read_now(lambda reading: queries.states_of_variants(reading, *key))
        bars = self._quarantine.barred(*key)
        problems = {"verified": "", "": "its binary is no longer kept"}

        def why(variant: Variant) -> str:
            sha256 = variant.artifact.sha256
            for bar in bars:
                if variant.schedule == bar.schedule or sha256 == bar.artifact:
                    return f"quarantined by {bar.actor}: {bar.reason}"
            state = states.get(variant.id, "")
            if self._store.read_now(lambda reading: reading.get(ArtifactRow, sha256)) is None:
                state = state if state == "rejected" else ""
            return problems.get(state, "rejected since")

        return why


def no_table(every: Sequence[TableKey]) -> TableUnknown:
    """A Kernel that has `every` of these Tables has none on the Target that was named."""
    if not every:
        return TableUnknown("no Table of this Kernel yet", field="kernel")
    problem = f"no Table on such a Target; the Kernel's are on {_targets(every)}"
    return TableUnknown(problem, field="target_id", hint="name one of these Targets")


def _targets(keys: Sequence[TableKey]) -> str:
    return ", ".join(sorted(key[2][:DIGITS] for key in keys))


def _unknown(problem: str, elsewhere: Sequence[VariantRow | QuarantinedVariantRow]) -> DaemonError:
    """What was named is not there; where it is `elsewhere`, the Target is at fault."""
    if not elsewhere:
        return VariantUnknown(problem, field="variant")
    targets = ", ".join(sorted({row.target[:DIGITS] for row in elsewhere}))
    return VariantUnknown(f"{problem} on such a Target, but on {targets}", field="target_id")


def _ambiguous(target_of: Mapping[str, str]) -> DaemonError:
    """By identity of each Variant that was named, its Target."""
    listed = (f"{each[:DIGITS]} on Target {on[:DIGITS]}" for each, on in sorted(target_of.items()))
    return InvalidRequest(f"several Variants are named so: {', '.join(listed)}", field="variant")


def dims_of(kernel: KernelRow, sizes: Sizes) -> tuple[int, ...]:
    """Sizes in the order of the Kernel's symbols; raises `InvalidRequest` unless they are its."""
    symbols = kernel.symbols.split()
    if set(sizes) != set(symbols):
        wanted = ", ".join(symbols) or "none"
        raise InvalidRequest(f"must give a size for each of: {wanted}", field="at")
    if any(size < 1 for size in sizes.values()):
        raise InvalidRequest("nothing is launched for a size of zero", field="at")
    return tuple(sizes[name] for name in symbols)
