"""Publishing: from timings at one hint to the Kernel's next Table and its Measurements."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from nearhint_daemon import logs
from nearhint_daemon.errors import HintUnreachable, TableChanged, TableUnknown, WorkerRefused
from nearhint_daemon.operating import acts
from nearhint_daemon.operating.acts import Act
from nearhint_daemon.operating.editing import (
    compacted,
    lacks_timings,
    lost_hints,
    position_of,
    without_variants,
)
from nearhint_daemon.operating.quarantine import Quarantine
from nearhint_daemon.store import Store, Writing, queries
from nearhint_daemon.store.rows import ArtifactRow, JobRow, MeasurementRow, VariantRow
from nearhint_daemon.store.store import DAEMON
from nearhint_daemon.tables import TableIndex, TableKey
from nearhint_daemon.traffic.histograms import Traffic
from nearhint_daemon.tuning.drift import carried
from nearhint_daemon.tuning.matrix import shared
from nearhint_daemon.tuning.tasks import Task
from nearhint_daemon.tuning.tuning_jobs import (
    cross_prefix,
    fallback_prefixes,
    hint_prefixes,
    tune_prefixes,
    tunes_of,
)
from nearhint_proto import convert
from nearhint_proto.v1 import types_pb2
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.beyond import orphans, own_hints, rows_beyond, without
from nearhint_rules.companions import first_to_go
from nearhint_rules.guard import size_facts_hold
from nearhint_rules.hints import crowded_out, to_evict
from nearhint_rules.metrics import Dims
from nearhint_rules.ranking import rank
from nearhint_rules.selectors import DEFAULT_SELECTOR
from nearhint_rules.table import (
    HINT_LIMIT,
    PROBE_LIMIT,
    ROW_LIMIT,
    HintRow,
    Table,
    Timing,
    Variant,
)

RANKED_LIMIT = 48
VARIANTS_LIMIT = 256
"""Of a Table: what a client takes."""
FALLBACKS_LIMIT = 256
"""Of a hint: each is of a Program that has the Kernel, and a daemon may meet any number of them."""
MEASURED = "measured"
PROBED_TIER = 2
"""What won at a probe is a measured winner, though nothing was searched there."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Timings at one hint, each with the samples thrown away: the Variants' and the Fallback's.

    All are of one `device`.

    A Table that has no default gets the first of the Variants that were to be timed; `is_headless`
    where that one was not.
    """

    variants: tuple[tuple[VariantRow, Timing, int], ...]
    fallback: tuple[Timing, int]
    conditions: str
    is_headless: bool = False
    device: str = ""

    @staticmethod
    def of(measured: pb.Measured, rows: Sequence[VariantRow], fallback: str) -> Timed:
        """Reads a worker's answer; raises `WorkerRefused` without the Fallback or any Variant."""
        found: dict[str, tuple[Timing, int]] = {}
        problems: list[str] = []
        for candidate in measured.candidates:
            if candidate.HasField("timing") and not candidate.problem:
                timing = convert.timing_from_proto(candidate.timing)
                found[candidate.id] = (timing, candidate.discarded)
            else:
                problems.append(candidate.problem)
        timed = tuple((row, *found[row.id]) for row in rows if row.id in found)
        if not timed or fallback not in found:
            problem = next(iter(problems), "a candidate is missing")
            raise WorkerRefused(f"not measured: {problem}", worker_code="NOT_MEASURED")
        is_headless = timed[0][0].id != rows[0].id
        return Timed(timed, found[fallback], measured.conditions, is_headless, measured.device)


@dataclass(frozen=True, slots=True)
class Edit:
    """What becomes of a Table, and the acts and rows that are written in the same transaction."""

    table: Table
    acts: tuple[Act, ...] = ()
    beside: Callable[[Writing], None] = lambda tx: None


@dataclass(frozen=True, slots=True)
class Edited:
    """The newest Table after an edit, and the ended jobs that had tuned what it has lost."""

    table: Table
    lost: tuple[JobRow, ...]


class Publisher:
    """Writes Tables, one change of a Table at a time."""

    def __init__(
        self,
        store: Store,
        tables: TableIndex,
        traffic: Traffic,
        quarantine: Quarantine,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._tables = tables
        self._traffic = traffic
        self._quarantine = quarantine
        self._clock = clock
        self._locks: defaultdict[TableKey, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def give_up(self, key: TableKey, symbols: Sequence[str], reason: str) -> None:
        """Publishes that a Kernel has no Variant, unless it has one, or its Table says so.

        Each hint that is wanted finds it out, and each generation drives out an older one.
        """
        async with self._locks[key]:
            table = self._tables.newest(key)
            empty = _empty(key, symbols, reason=reason[:1000])
            if table is not None:
                empty = replace(empty, pins=table.pins, generation=table.generation)
            if table is None or (not table.variants and empty != table):
                await self._tables.publish(empty)

    def require_default(self, task: Task) -> None:
        """Raises `HintUnreachable` where a Table's default Variant may not run.

        All hints have it, and its narrow indices may not reach these sizes.
        """
        table = self._tables.newest(task.table_key)
        if table is None or table.default < 0:
            return
        if not size_facts_hold(table.variants[table.default].guard, task.named_dims):
            raise HintUnreachable(f"the default Variant may not run at {task.named_dims}")

    async def publish(self, task: Task, timed: Timed, *, tier: int) -> Table:
        """Adds or replaces the hint's row, and keeps the Measurements, in one transaction."""
        key = task.table_key
        async with self._locks[key]:
            table = self._tables.newest(key) or _empty(key, task.kernel.symbols.split())
            timed = self._unbarred(timed, table)
            table = with_hint(table, task.dims, task.fallback.id, timed, tier=tier)
            rows, unanswered = self._answering_few(table.hints, task)
            table = replace(table, hints=rows)
            evicted = self._evicted(table, task)
            kept = tuple(row for row in table.hints if row.dims not in evicted)
            table = replace(table, hints=kept, reason="", selector=DEFAULT_SELECTOR)
            table = fitted(table)
            if evicted:
                await self._forget(key, evicted, staying={row.dims for row in kept})
            if unanswered:
                await self._store.write(lambda tx: queries.delete_jobs_under(tx, unanswered))
            measurements = self.measurements(task, timed)
            return await self._tables.publish(table, measurements, hint=task.dims)

    async def publish_probes(self, contests: Sequence[tuple[Task, Timed]]) -> Table:
        """Adds or replaces probes of one Table, and keeps the Measurements, in one transaction.

        Where there are too many, the least used go. Raises `TableUnknown`, `TableChanged`.
        """
        key = contests[0][0].table_key
        async with self._locks[key]:
            table = self._tables.newest(key)
            if table is None or table.default < 0:
                raise TableUnknown("the Kernel's Table is no more", field="kernel")
            measurements: list[MeasurementRow] = []
            for task, timed in contests:
                kept = self._unbarred(timed, table)
                table = with_probe(table, task.dims, task.fallback.id, kept)
                table = replace(table, probes=self._answering_few(table.probes, task)[0])
                measurements += self.measurements(task, kept)
            calls: defaultdict[tuple[int, ...], float] = defaultdict(float)
            for met in self._traffic.met(*key[:2]):
                calls[met.dims] += met.weight
            uses = {row.dims: calls[row.dims] for row in table.probes}
            gone = to_evict(uses, keep={task.dims for task, _ in contests}, limit=PROBE_LIMIT)
            probes = tuple(row for row in table.probes if row.dims not in gone)
            return await self._tables.publish(fitted(replace(table, probes=probes)), measurements)

    async def edit(self, key: TableKey, change: Callable[[Table], Edit]) -> Edited:
        """Publishes what `change` makes of the newest Table; lost hints may be tuned again.

        Where it makes no difference there is no new generation, but the acts are recorded. Raises
        `TableUnknown`, what `change` raises, and `TableChanged` where a Variant that is to come
        back makes room in this moment.
        """
        async with self._locks[key]:
            before = self._tables.newest(key)
            if before is None:
                raise TableUnknown("no Table of this Kernel yet", field="kernel")
            edit = change(before)
            after = fitted(edit.table)
            at_s = self._clock()
            known = {each.artifact.sha256 for each in before.variants}
            new = {each.artifact.sha256 for each in after.variants} - known

            def beside(tx: Writing, seq: int) -> None:
                if any(tx.get(ArtifactRow, sha256) is None for sha256 in new):
                    raise TableChanged("the binary of a Variant made room meanwhile")
                edit.beside(tx)
                acts.record(tx, key, edit.acts, seq=seq, at_s=at_s)

            if replace(after, generation=before.generation) == before:
                await self._store.write(lambda tx: beside(tx, tx.next_seq()))
                return Edited(before, ())
            lost = tunes_of(key, lost_hints(before, after))
            if lacks_timings(before, after):
                lost.append(cross_prefix(key))
            jobs = self._store.read_now(lambda reading: queries.ended_jobs_under(reading, lost))
            await self._store.write(lambda tx: queries.delete_jobs_under(tx, lost))
            return Edited(await self._tables.publish(after, beside=beside), jobs)

    async def reject(self, row: VariantRow, problem: str) -> None:
        """Keeps that a Variant must not be used, and why, and takes it out of its Table.

        Both are one transaction: nothing that may happen between them leaves it serving. Its pins
        go, too, and are recorded.
        """
        key = (row.namespace, row.kernel, row.target)
        rejected = replace(row, state="rejected", problem=problem[:1000])

        def keep(tx: Writing) -> None:
            tx.put(rejected)

        def change(table: Table) -> Edit:
            pins = [pin for pin in table.pins if pin.variant == row.id]
            unpinned = (
                Act("unpin", row.id, f"{acts.place(table.symbols, pin.dims)}: {problem}", DAEMON)
                for pin in pins
            )
            return Edit(without_variants(table, {row.id}), tuple(unpinned), keep)

        table = self._tables.newest(key)
        if table is None:
            await self._store.write(keep)
        else:
            if position_of(table, row.id) is not None:
                await self._forget(key, {hint.dims for hint in table.hints})
            await self.edit(key, change)
        logs.warning("variant_rejected", kernel=row.kernel, schedule=row.schedule, problem=problem)

    def tuning_of(self, key: TableKey) -> tuple[JobRow, ...]:
        """The ended jobs that tuned a Kernel on a Target, and crossed what they found."""
        prefixes = (*tune_prefixes(key), cross_prefix(key))
        return self._store.read_now(lambda reading: queries.ended_jobs_under(reading, prefixes))

    def _unbarred(self, timed: Timed, table: Table) -> Timed:
        """Without Variants that were quarantined, or rejected elsewhere, while they were timed.

        Raises `TableChanged` where the default Variant is not among what is left, and where one
        made room meanwhile: nobody could have its binary.
        """
        kept = tuple(each for each in timed.variants if self._may_serve(each[0]))
        names = {row.id for row, _, _ in kept}
        default = timed.variants[0][0].id if table.default < 0 else table.variants[table.default].id
        if default not in names:
            raise TableChanged("the default Variant was not timed, or may not serve any more")
        return replace(timed, variants=kept)

    def _may_serve(self, row: VariantRow) -> bool:
        key = (row.namespace, row.kernel, row.target, row.schedule, row.compiler_version)
        now = self._store.read_now(lambda reading: reading.get(VariantRow, *key))
        if now is None:
            raise TableChanged("the binary of a Variant made room while it was timed")
        return now.state != "rejected" and self._quarantine.bar_on(row) is None

    async def drop_hints(self, key: TableKey, hints: Collection[tuple[int, ...]]) -> None:
        """Takes hints out of a Table, which may be asked for again; at least one stays."""
        async with self._locks[key]:
            table = self._tables.newest(key)
            if table is None:
                return
            kept = tuple(row for row in table.hints if row.dims not in hints)
            if not kept or len(kept) == len(table.hints):
                return
            staying = {row.dims for row in kept}
            await self._forget(key, {row.dims for row in table.hints} - staying, staying=staying)
            await self._tables.publish(compacted(replace(table, hints=kept)))

    def _answering_few(
        self, rows: Sequence[HintRow], task: Task
    ) -> tuple[tuple[HintRow, ...], list[str]]:
        """Rows of which the one at a task's sizes answers no more Fallbacks than it may.

        Beside them, how the keys of the jobs start that timed what has to go.
        """
        calls: defaultdict[str, float] = defaultdict(float)
        for met in self._traffic.met(*task.table_key[:2]):
            calls[met.fallback] += met.weight
        row = next(each for each in rows if each.dims == task.dims)
        few = answering_few(row, calls, latest=task.fallback.id, limit=FALLBACKS_LIMIT)
        gone = [name for name, _ in row.fallbacks if name not in dict(few.fallbacks)]
        staying = [each.dims for each in rows if each is not row]
        return (
            tuple(few if each is row else each for each in rows),
            fallback_prefixes(task.table_key, task.dims, gone, staying=staying),
        )

    def _evicted(self, table: Table, task: Task) -> set[tuple[int, ...]]:
        if len(table.hints) <= HINT_LIMIT:
            return set()
        # What somebody asked for is a hint here.
        asked = () if task.why else (task.dims,)
        own = {row.dims for row in own_hints(table)}.union(asked)
        hints = without(table, {row.dims for row in table.hints} - own)
        site = task.dims, task.fallback.id
        gone = set(crowded_out(hints, *site, self._traffic.uses(hints)))
        gone |= orphans(table, gone)
        left = without(table, gone)
        if len(left.hints) <= ROW_LIMIT:
            return gone
        spare, uses = unasked(left, but=asked), self._traffic.uses(left)
        return gone.union(crowded_out(left, *site, uses, spare=spare, limit=ROW_LIMIT))

    async def _forget(
        self,
        key: TableKey,
        hints: set[tuple[int, ...]],
        *,
        staying: Collection[tuple[int, ...]] = (),
    ) -> None:
        """Lets evicted hints be asked for again."""
        prefixes = hint_prefixes(key, hints, staying=staying)
        await self._store.write(lambda tx: queries.delete_jobs_under(tx, prefixes))

    def measurements(self, task: Task, timed: Timed) -> list[MeasurementRow]:
        """What was timed, as rows that are still to be written."""
        now = self._clock()

        def row(
            kind: str, subject: str, artifact: str, schedule: str, timing: Timing, discarded: int
        ) -> MeasurementRow:
            kept = f", {timing.disturbed} of {timing.samples} samples disturbed"
            return MeasurementRow(
                id=0,
                namespace=task.kernel.namespace,
                kernel=task.kernel.id,
                target=task.target.id,
                subject_kind=kind,
                subject=subject,
                artifact=artifact,
                schedule=schedule,
                dims=" ".join(map(str, task.dims)),
                conditions=timed.conditions[:900] + (kept if timing.disturbed else ""),
                threads=task.threads,
                median_ns=timing.median_ns,
                spread=timing.spread,
                samples=timing.samples,
                discarded=discarded,
                measured_at_s=now,
                daemon_id=self._store.daemon_id,
                device=timed.device,
                origin=MEASURED,
            )

        rows = [
            row("variant", variant.id, variant.artifact, variant.schedule, timing, discarded)
            for variant, timing, discarded in timed.variants
        ]
        timing, discarded = timed.fallback
        rows.append(row("fallback", task.fallback.id, "", "", timing, discarded))
        return rows


def unasked(table: Table, *, but: Collection[Dims] = ()) -> frozenset[Dims]:
    """The rows that leave a full Table before any hint, `but` for some.

    Companions have the places that hints leave, and where there are none, rows beyond hints have.
    """
    return first_to_go(table, but=but) or rows_beyond(table).difference(but)


def _empty(key: TableKey, symbols: Sequence[str], *, reason: str = "") -> Table:
    namespace, kernel, target = key
    return Table(
        kernel=kernel,
        target=target,
        symbols=tuple(symbols),
        variants=(),
        default=-1,
        hints=(),
        generation=0,
        reason=reason,
        namespace=namespace,
        selector=DEFAULT_SELECTOR,
    )


def with_hint(
    table: Table, dims: tuple[int, ...], fallback: str, timed: Timed, *, tier: int
) -> Table:
    """The Table with what was timed at a hint; raises `WorkerRefused` without the default.

    What was timed there before and not now stays, at the speed of now (`drift.carried`).
    Probes go where Variants are new: what calls have is timed again with them.
    """
    variants = list(table.variants)
    positions = {variant.id: position for position, variant in enumerate(variants)}
    timings: dict[int, Timing] = {}
    fallbacks = {fallback: timed.fallback[0]}
    for built, timing, _ in timed.variants:
        if built.id not in positions:
            positions[built.id] = len(variants)
            variants.append(_variant(built))
        timings[positions[built.id]] = timing
    default = table.default if table.default >= 0 else next(iter(timings))
    if default not in timings or (table.default < 0 and timed.is_headless):
        raise WorkerRefused("the default Variant was not measured", worker_code="NOT_MEASURED")
    before = next((row for row in table.hints if row.dims == dims), None)
    if before is not None:
        held: dict[int | str, Timing] = {**dict(before.ranked), **dict(before.fallbacks)}
        kept = carried(held, {**timings, **fallbacks})
        timings.update((each, kept[each]) for each, _ in before.ranked if each in kept)
        fallbacks.update((each, kept[each]) for each, _ in before.fallbacks if each in kept)
    ranked = rank(
        timings,
        default=default,
        incumbent=before.ranked[0][0] if before and before.ranked else None,
        fallback=min(fallbacks.values(), key=lambda timing: timing.median_ns),
        names={position: variants[position].schedule for position in timings},
    )
    row = HintRow(
        dims, ranked, tuple(sorted(fallbacks.items())), max(tier, before.tier if before else 0)
    )
    others = tuple(each for each in table.hints if each.dims != dims)
    # What is new may be the best where calls are, and was not timed there.
    is_new = len(variants) > len(table.variants)
    made = replace(
        table,
        variants=tuple(variants),
        default=default,
        hints=(*others, row),
        probes=() if is_new else tuple(each for each in table.probes if each.dims != dims),
    )
    return replace(made, hints=(*others, shortened(made, row, RANKED_LIMIT)))


def with_probe(table: Table, dims: tuple[int, ...], fallback: str, timed: Timed) -> Table:
    """The Table with what was timed at sizes that answer for themselves alone."""
    made = with_hint(replace(table, hints=table.probes), dims, fallback, timed, tier=PROBED_TIER)
    return replace(made, hints=table.hints, probes=made.hints)


def shortened(table: Table, row: HintRow, limit: int) -> HintRow:
    """At most `limit` Variants, from the front, after those that neighbours have among their best.

    The default and the first always stay.
    """
    surplus = len(row.ranked) - limit
    if surplus <= 0:
        return row
    wanted = shared(table, row.dims)
    backwards = [position for position, _ in row.ranked[:0:-1] if position != table.default]
    order = sorted(backwards, key=lambda position: position in wanted)
    gone = frozenset(order[:surplus])
    return replace(row, ranked=tuple(entry for entry in row.ranked if entry[0] not in gone))


def answering_few(row: HintRow, calls: Mapping[str, float], *, latest: str, limit: int) -> HintRow:
    """Of a row's Fallbacks at most `limit`: the latest, and those that are called the most."""
    if len(row.fallbacks) <= limit:
        return row
    names = (name for name, _ in row.fallbacks)
    order = sorted(names, key=lambda name: (name != latest, -calls.get(name, 0.0), name))
    kept = frozenset(order[:limit])
    return replace(row, fallbacks=tuple(each for each in row.fallbacks if each[0] in kept))


def fitted(table: Table) -> Table:
    """Compacted, with ever shorter rows while it has more Variants than a client takes.

    Probes go first: they only save a prediction.
    """
    limit = RANKED_LIMIT
    fitted = compacted(table)
    if len(fitted.variants) > VARIANTS_LIMIT:
        fitted = compacted(replace(table, probes=()))
    while len(fitted.variants) > VARIANTS_LIMIT:
        limit -= 1
        hints = tuple(shortened(fitted, row, limit) for row in fitted.hints)
        fitted = compacted(replace(fitted, hints=hints))
    return fitted


def _variant(row: VariantRow) -> Variant:
    return convert.variant_from_proto(types_pb2.Variant.FromString(row.message))
