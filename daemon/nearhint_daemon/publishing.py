"""Publishing: from timings at one hint to the Kernel's next Table and its Measurements."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nearhint_daemon.errors import WorkerRefused
from nearhint_daemon.hint_uses import calls_by_bucket
from nearhint_daemon.matrix import shared
from nearhint_daemon.programs import Programs
from nearhint_daemon.store import Store, queries
from nearhint_daemon.store.rows import MeasurementRow, VariantRow
from nearhint_daemon.tables import TableIndex, TableKey
from nearhint_daemon.tasks import Task
from nearhint_daemon.tuning_jobs import hint_prefixes
from nearhint_proto import convert
from nearhint_proto.v1 import types_pb2
from nearhint_proto.v1 import worker_pb2 as pb
from nearhint_rules.hints import bucket, to_evict
from nearhint_rules.ranking import rank
from nearhint_rules.table import HINT_LIMIT, HintRow, Table, Timing, Variant

RANKED_LIMIT = 24
VARIANTS_LIMIT = 256
"""Of a Table: what a client takes."""
MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Timed:
    """Timings at one hint, each with the samples thrown away: the Variants' and the Fallback's."""

    variants: tuple[tuple[VariantRow, Timing, int], ...]
    fallback: tuple[Timing, int]
    conditions: str

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
        return Timed(timed, found[fallback], measured.conditions)


class Publisher:
    """Writes Tables, one change of a Table at a time."""

    def __init__(
        self,
        store: Store,
        tables: TableIndex,
        programs: Programs,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._tables = tables
        self._programs = programs
        self._clock = clock
        self._locks: defaultdict[TableKey, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def give_up(self, key: TableKey, symbols: Sequence[str], reason: str) -> None:
        """Publishes that a Kernel has no Variant, unless it has one."""
        async with self._locks[key]:
            table = self._tables.newest(key)
            if table is None or not table.variants:
                await self._tables.publish(_empty(key, symbols, reason=reason[:1000]))

    async def publish(self, task: Task, timed: Timed, *, tier: int) -> Table:
        """Adds or replaces the hint's row, and keeps the Measurements, in one transaction."""
        key = task.table_key
        async with self._locks[key]:
            table = self._tables.newest(key) or _empty(key, task.kernel.symbols.split())
            table = _with_hint(table, task.dims, task.fallback.id, timed, tier=tier)
            evicted = await self._evicted(table, task)
            kept = tuple(row for row in table.hints if row.dims not in evicted)
            table = fitted(replace(table, hints=kept, reason=""))
            if evicted:
                await self._forget(key, evicted)
            measurements = self._measurements(task, timed)
            return await self._tables.publish(table, measurements, hint=task.dims)

    async def drop_variant(self, key: TableKey, variant: str) -> None:
        """Takes a Variant whose binary is gone out of a Table; hints that lose their default go."""
        async with self._locks[key]:
            table = self._tables.newest(key)
            gone = _position(table, variant) if table is not None else None
            if table is None or gone is None:
                return
            hints = tuple(
                replace(row, ranked=tuple(entry for entry in row.ranked if entry[0] != gone))
                for row in table.hints
            )
            default = table.default
            if default == gone:
                hints, default = (), -1
            await self._forget(key, {row.dims for row in table.hints})
            await self._tables.publish(_compacted(replace(table, hints=hints, default=default)))

    async def _evicted(self, table: Table, task: Task) -> set[tuple[int, ...]]:
        if len(table.hints) <= HINT_LIMIT:
            return set()
        calls = await calls_by_bucket(
            self._store,
            self._programs,
            namespace=table.namespace,
            kernel=table.kernel,
            target_kind=task.target.kind,
        )
        uses = {row.dims: calls[bucket(row.dims)] for row in table.hints}
        return set(to_evict(uses, keep={task.dims}))

    async def _forget(self, key: TableKey, hints: set[tuple[int, ...]]) -> None:
        """Lets evicted hints be asked for again."""
        prefixes = hint_prefixes(key, hints)
        await self._store.write(lambda tx: queries.delete_jobs_under(tx, prefixes))

    def _measurements(self, task: Task, timed: Timed) -> list[MeasurementRow]:
        now = self._clock()

        def row(
            kind: str, subject: str, artifact: str, schedule: str, timing: Timing, discarded: int
        ) -> MeasurementRow:
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
                conditions=timed.conditions[:1000],
                threads=task.threads,
                median_ns=timing.median_ns,
                spread=timing.spread,
                samples=timing.samples,
                discarded=discarded,
                measured_at_s=now,
                daemon_id=self._store.daemon_id,
                device=task.devices[0],
                origin=MEASURED,
            )

        rows = [
            row("variant", variant.id, variant.artifact, variant.schedule, timing, discarded)
            for variant, timing, discarded in timed.variants
        ]
        timing, discarded = timed.fallback
        rows.append(row("fallback", task.fallback.id, "", "", timing, discarded))
        return rows


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
    )


def _position(table: Table, variant: str) -> int | None:
    return next((i for i, each in enumerate(table.variants) if each.id == variant), None)


def _with_hint(
    table: Table, dims: tuple[int, ...], fallback: str, timed: Timed, *, tier: int
) -> Table:
    variants = list(table.variants)
    positions = {variant.id: position for position, variant in enumerate(variants)}
    timings: dict[int, Timing] = {}
    for built, timing, _ in timed.variants:
        if built.id not in positions:
            positions[built.id] = len(variants)
            variants.append(_variant(built))
        timings[positions[built.id]] = timing
    default = table.default if table.default >= 0 else next(iter(timings))
    if default not in timings:
        raise WorkerRefused("the default Variant was not measured", worker_code="NOT_MEASURED")
    before = next((row for row in table.hints if row.dims == dims), None)
    # What was timed here before and not now keeps its timing.
    timings = {**(dict(before.ranked) if before else {}), **timings}
    fallbacks = {**(dict(before.fallbacks) if before else {}), fallback: timed.fallback[0]}
    ranked = rank(
        timings,
        default=default,
        incumbent=before.ranked[0][0] if before and before.ranked else None,
        fallback=min(fallbacks.values(), key=lambda timing: timing.median_ns),
    )
    row = HintRow(
        dims, ranked, tuple(sorted(fallbacks.items())), max(tier, before.tier if before else 0)
    )
    others = tuple(each for each in table.hints if each.dims != dims)
    made = replace(table, variants=tuple(variants), default=default, hints=(*others, row))
    return replace(made, hints=(*others, shortened(made, row, RANKED_LIMIT)))


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


def fitted(table: Table) -> Table:
    """Compacted, with ever shorter rows while it has more Variants than a client takes."""
    limit = RANKED_LIMIT
    fitted = _compacted(table)
    while len(fitted.variants) > VARIANTS_LIMIT:
        limit -= 1
        hints = tuple(shortened(fitted, row, limit) for row in fitted.hints)
        fitted = _compacted(replace(fitted, hints=hints))
    return fitted


def _compacted(table: Table) -> Table:
    """Without Variants that no hint ranks; positions follow."""
    used = sorted(
        {position for row in table.hints for position, _ in row.ranked}
        | ({table.default} if table.default >= 0 else set())
    )
    moved: Mapping[int, int] = {old: new for new, old in enumerate(used)}
    hints = tuple(
        replace(row, ranked=tuple((moved[position], timing) for position, timing in row.ranked))
        for row in sorted(table.hints, key=lambda row: row.dims)
    )
    return replace(
        table,
        variants=tuple(table.variants[position] for position in used),
        default=moved.get(table.default, -1),
        hints=hints,
    )


def _variant(row: VariantRow) -> Variant:
    return convert.variant_from_proto(types_pb2.Variant.FromString(row.message))
