"""Interventions: what operators may do to a Kernel's Tables, each recorded with who and when.

Pins fix what runs; a rollback publishes an earlier Table again; a quarantine bars a Variant from
being built, measured and served until it is released. Each is one edit of a Table, published as a
new generation: nothing is deleted, and tuning goes on from what is newest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from nearhint_daemon import logs
from nearhint_daemon.errors import (
    PinUnknown,
    QueueFull,
    StoreReadOnly,
    TableUnknown,
)
from nearhint_daemon.jobs import JobQueue, Priority
from nearhint_daemon.operating.acts import Act, place, record
from nearhint_daemon.operating.editing import as_it_was, with_pin, without_pins, without_variants
from nearhint_daemon.operating.named import Named, Sizes, dims_of, no_table
from nearhint_daemon.operating.quarantine import Quarantine
from nearhint_daemon.store import Store, Writing
from nearhint_daemon.store.rows import JobRow, KernelRow, QuarantinedVariantRow
from nearhint_daemon.tables import TableIndex, TableKey
from nearhint_daemon.tuning.publishing import Edit, Edited, Publisher
from nearhint_daemon.tuning.tuner import RELEASED
from nearhint_daemon.tuning.tuning_jobs import CROSS, asked_again, cross_prefix, tune_prefixes
from nearhint_daemon.unbroken import on_its_own, to_its_end
from nearhint_proto import convert
from nearhint_proto.v1 import types_pb2
from nearhint_rules.table import Table


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The newest Table after a rollback, and why which Variants did not come back."""

    table: Table
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A Variant that is (or was) barred, the newest Table if there is one, and jobs queued."""

    row: QuarantinedVariantRow
    table: Table | None
    retuning: int


class Interventions:
    """Does what operators ask for."""

    def __init__(
        self,
        store: Store,
        tables: TableIndex,
        publisher: Publisher,
        quarantine: Quarantine,
        jobs: JobQueue,
        *,
        compiler_version: str,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._tables = tables
        self._publisher = publisher
        self._jobs = jobs
        self._compiler_version = compiler_version
        self._clock = clock
        self._named = Named(store, tables, quarantine)
        self._once_more: defaultdict[str, set[str]] = defaultdict(set)

    async def pin(
        self, kernel: KernelRow, variant: str | None, *, at: Sizes | None, target: str, actor: str
    ) -> Table:
        """Pins a Variant, by identity or Schedule, or the Fallback where it is None.

        Raises `TableUnknown`, `VariantUnknown`, `VariantRejected`, or `InvalidRequest` for sizes
        that are not the Kernel's.
        """
        key = self._named.table_key(kernel, target)
        dims = () if at is None else dims_of(kernel, at)
        row = None if variant is None else self._named.variant(kernel, variant, target=key[2])
        subject = "" if row is None else row.id
        act = Act("pin", subject, place(kernel.symbols.split(), dims), actor)

        def change(table: Table) -> Edit:
            if row is None:
                return Edit(with_pin(table, dims, None), (act,))
            self._named.check_servable(row)
            pinned = convert.variant_from_proto(types_pb2.Variant.FromString(row.message))
            return Edit(with_pin(table, dims, pinned), (act,))

        edited = await self._publisher.edit(key, change)
        _log(act, key)
        return edited.table

    async def unpin(self, kernel: KernelRow, *, at: Sizes | None, target: str, actor: str) -> Table:
        """Takes the pin at sizes off, or all of them.

        Raises `TableUnknown`, `PinUnknown`, or `InvalidRequest` for sizes that are not its own.
        """
        key = self._named.table_key(kernel, target)
        dims = None if at is None else dims_of(kernel, at)

        def change(table: Table) -> Edit:
            edited = without_pins(table, dims)
            gone = [pin for pin in table.pins if pin not in edited.pins]
            if not gone:
                raise PinUnknown("nothing is pinned there", field="" if dims is None else "at")
            symbols = kernel.symbols.split()
            acts = (Act("unpin", pin.variant, place(symbols, pin.dims), actor) for pin in gone)
            return Edit(edited, tuple(acts))

        edited = await self._publisher.edit(key, change)
        logs.info("unpin", kernel=key[1], target=key[2], actor=actor)
        return edited.table

    async def roll_back(
        self, kernel: KernelRow, generation: int, *, target: str, actor: str
    ) -> RolledBack:
        """Publishes the Table that was the newest at `generation` again, its pins as well.

        What was rejected or quarantined since, or whose binary is gone, stays away. Raises
        `TableUnknown`, or `GenerationGone` where it is no longer kept.
        """
        key = self._named.table_key(kernel, target)
        earlier = self._tables.selector(key, generation).table
        if earlier is None:
            raise no_table(())
        lines: list[str] = []

        def change(_: Table) -> Edit:
            table, left_out = as_it_was(earlier, self._named.bars_at(key))
            # Why there was no Variant then may be past; who still wants one hears if it is not.
            table = replace(table, reason="")
            lines.extend(f"{variant.schedule}: {why}" for variant, why in left_out)
            detail = "without " + "; ".join(lines) if lines else ""
            act = Act("rollback", str(generation), detail, actor)
            return Edit(table, (act, *_unpinned(earlier, table, "it did not come back", actor)))

        edited = await self._publisher.edit(key, change)
        logs.info("rollback", kernel=key[1], target=key[2], generation=generation, actor=actor)
        return RolledBack(edited.table, tuple(lines))

    async def quarantine(
        self, kernel: KernelRow, variant: str, *, reason: str, target: str, actor: str
    ) -> Quarantined:
        """Bars a Variant: it leaves the Table now, and what the Table loses is tuned again.

        Raises `VariantUnknown`.
        """
        found = self._named.variant(kernel, variant, target=target)
        row = QuarantinedVariantRow(
            namespace=found.namespace,
            kernel=found.kernel,
            target=found.target,
            variant=found.id,
            schedule=found.schedule,
            artifact=found.artifact,
            reason=reason,
            actor=actor,
            at_s=self._clock(),
        )
        key = (row.namespace, row.kernel, row.target)
        act = Act("quarantine", row.variant, f"{row.schedule}: {reason}", actor)

        def bar(tx: Writing) -> None:
            tx.put(row)

        def change(table: Table) -> Edit:
            gone = {
                each.id
                for each in table.variants
                if each.schedule == row.schedule or each.artifact.sha256 == row.artifact
            }
            edited = without_variants(table, gone)
            unpinned = _unpinned(table, edited, "quarantined", actor)
            return Edit(edited, (act, *unpinned), bar)

        async def bar_and_tune() -> Quarantined:
            edited = await self._edit(key, act, change, bar)
            if edited is None:
                return Quarantined(row, None, 0)
            return Quarantined(row, edited.table, await self._retune(edited.lost))

        return await to_its_end(bar_and_tune())

    async def release(
        self, kernel: KernelRow, variant: str, *, target: str, actor: str
    ) -> Quarantined:
        """Lifts a quarantine; the Table's hints are tuned again with the Variant among them.

        What is being tuned meanwhile may have begun without it, and is done once more after that.
        Raises `VariantUnknown` where no operator quarantined it.
        """
        row = self._named.barred(kernel, variant, target=target)
        key = (row.namespace, row.kernel, row.target)
        act = Act("release", row.variant, row.schedule, actor)

        def lift(tx: Writing) -> None:
            tx.delete(
                QuarantinedVariantRow,
                *(*key, row.variant),
                actor=actor,
                reason="released",
                at_s=self._clock(),
            )

        def change(table: Table) -> Edit:
            # Why there was no Variant may have been that this one was barred.
            reason = table.reason if table.variants else ""
            return Edit(replace(table, reason=reason), (act,), lift)

        async def lift_and_tune() -> Quarantined:
            edited = await self._edit(key, act, change, lift)
            ended = [] if edited is None else _tuned(self._publisher.tuning_of(key))
            begun = self._begun(key)
            for name in begun:
                self._once_more[name].add(row.schedule)
            retuning = len(begun) + await self._retune(ended, released=[row.schedule])
            return Quarantined(row, None if edited is None else edited.table, retuning)

        return await to_its_end(lift_and_tune())

    def job_ended(self, row: JobRow) -> None:
        """Hears of each job's end: of some a Variant was released while they were under way."""
        released = self._once_more.pop(row.key, None)
        if released is not None:
            on_its_own(self._retune(_tuned([row]), released=sorted(released)))

    def _begun(self, key: TableKey) -> tuple[str, ...]:
        """The keys of jobs that tune a Table now, and of those that will cross what they find."""
        rows = self._jobs.open_under((*tune_prefixes(key), cross_prefix(key)))
        if all(row.state == "queued" for row in rows):
            return ()
        return tuple(row.key for row in rows if row.state == "running" or row.kind == CROSS)

    async def _edit(
        self,
        key: TableKey,
        act: Act,
        change: Callable[[Table], Edit],
        otherwise: Callable[[Writing], None],
    ) -> Edited | None:
        """An edit of the Table; without one, what is written `otherwise`, and None."""
        try:
            edited = await self._publisher.edit(key, change)
        except TableUnknown:
            edited = None

            def write(tx: Writing) -> None:
                otherwise(tx)
                record(tx, key, [act], seq=tx.next_seq(), at_s=self._clock())

            await self._store.write(write)
        _log(act, key)
        return edited

    async def _retune(self, rows: Sequence[JobRow], *, released: Sequence[str] = ()) -> int:
        """Queues ended jobs anew, where nothing more urgent waits; how many."""
        specs = [
            replace(
                spec,
                payload={**spec.payload, RELEASED: list(released)},
                is_repeatable=True,
                is_own=True,
            )
            for spec in (asked_again(row, priority=Priority.REFINEMENT) for row in rows)
            if self._compiler_version in spec.key.split("/")[-2:]  # an effort may follow
        ]
        try:
            await self._jobs.ensure(specs)
        except (QueueFull, StoreReadOnly):
            return 0
        return len(specs)


def _tuned(rows: Sequence[JobRow]) -> list[JobRow]:
    """Those that were done, or failed: what was cancelled, or had no budget left, nobody wants."""
    return [row for row in rows if row.state != "cancelled"]


def _unpinned(before: Table, after: Table, reason: str, actor: str) -> Iterator[Act]:
    """The acts of pins that went with what they pinned."""
    for pin in before.pins:
        if pin not in after.pins:
            detail = f"{place(before.symbols, pin.dims)}: {reason}"
            yield Act("unpin", pin.variant, detail, actor)


def _log(act: Act, key: TableKey) -> None:
    logs.info(
        act.kind,
        kernel=key[1],
        target=key[2],
        subject=act.subject,
        detail=act.detail,
        actor=act.actor,
    )
