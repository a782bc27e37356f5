"""Tables in memory as they were written, the watchers of them, and selection for thin clients.

Only the newest message of each Table is held; what is selected from is decoded when asked for and
kept for the most recent ones.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nearhint_daemon.errors import GenerationGone
from nearhint_daemon.recent import Recent
from nearhint_daemon.store import Reading, Store, Writing, queries
from nearhint_daemon.store.rows import MeasurementRow, TableRow
from nearhint_daemon.unbroken import to_its_end
from nearhint_proto import convert
from nearhint_proto.v1 import types_pb2
from nearhint_rules.beyond import own_hints
from nearhint_rules.selectors import Selector
from nearhint_rules.table import Table

DECODED_LIMIT = 256
WATCHERS_LIMIT = 1024
BATCH_BYTES = 1 << 20

OnPublish = Callable[[Table, tuple[int, ...] | None], None]
TableKey = tuple[str, str, str]
"""Namespace, Kernel, Target."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The newest Table of a Kernel on a Target."""

    message: bytes
    generation: int
    tier: int
    hints: int


class Watcher:
    """What one watcher has not been sent yet: the newest Table of each Kernel, no more."""

    def __init__(self, namespace: str, target: str) -> None:
        self.namespace = namespace
        self.target = target
        self.pending: OrderedDict[TableKey, None] = OrderedDict()
        self.wake = asyncio.Event()

    def offer(self, key: TableKey) -> None:
        """A Table changed."""
        if (key[0], key[2]) != (self.namespace, self.target):
            return
        self.pending[key] = None
        self.pending.move_to_end(key)
        self.wake.set()


class TableIndex:
    """All Tables."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float],
        on_publish: OnPublish = lambda table, hint: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._on_publish = on_publish
        self._entries: dict[TableKey, Entry] = {}
        self._targets: dict[tuple[str, str], tuple[str, ...]] = {}
        self._decoded = Recent[tuple[TableKey, int], Selector](DECODED_LIMIT)
        self._watchers: set[Watcher] = set()
        self._is_over = False
        self.change_seq = 0
        self.published_at = time.monotonic()

    async def load(self) -> None:
        """Reads the newest Table of each Kernel."""

        def newest(reading: Reading) -> tuple[list[TableRow], int]:
            return list(queries.newest_tables(reading)), reading.change_seq()

        rows, self.change_seq = await self._store.read(newest)
        for row in rows:
            self._keep(row)

    @property
    def generation(self) -> int:
        """The newest generation of any Table, 0 where there is none."""
        return max((entry.generation for entry in self._entries.values()), default=0)

    def entry(self, key: TableKey) -> Entry | None:
        """The newest Table as it was written."""
        return self._entries.get(key)

    def of_kernel(self, namespace: str, kernel: str) -> tuple[TableKey, ...]:
        """The keys of a Kernel's Tables, one a Target."""
        targets = self._targets.get((namespace, kernel), ())
        return tuple((namespace, kernel, target) for target in targets)

    def every_key(self) -> tuple[TableKey, ...]:
        """The keys of all Tables."""
        return tuple(self._entries)

    def without_hints(self) -> tuple[TableKey, ...]:
        """The keys of the Tables that have no hints."""
        return tuple(key for key, entry in self._entries.items() if not entry.hints)

    def latest(self, count: int) -> tuple[TableKey, ...]:
        """The keys of the Tables that were written last, the newest at the end."""
        generations = {key: entry.generation for key, entry in self._entries.items()}
        return tuple(sorted(generations, key=lambda key: generations[key])[-count:])

    async def artifacts(self) -> frozenset[str]:
        """The hashes of all binaries that some Table ranks, or has ranked while this was asked.

        There may be thousands of Tables: others go first after each.
        """
        found: set[str] = set()
        seen: dict[TableKey, int] = {}
        while unseen := [
            (key, entry)
            for key, entry in self._entries.items()
            if seen.get(key) != entry.generation
        ]:
            for key, entry in unseen:
                table = types_pb2.Table.FromString(entry.message)
                found.update(variant.artifact.sha256 for variant in table.variants)
                seen[key] = entry.generation
                await asyncio.sleep(0)
        return frozenset(found)

    def withdraw(self, namespace: str, kernel: str) -> Mapping[TableKey, Entry]:
        """Takes a Kernel's Tables out of memory, and returns them: it is about to be forgotten."""
        keys = self.of_kernel(namespace, kernel)
        self._targets.pop((namespace, kernel), None)
        for watcher in self._watchers:
            for key in keys:
                watcher.pending.pop(key, None)
        return {key: self._entries.pop(key) for key in keys}

    def restore(self, entries: Mapping[TableKey, Entry]) -> None:
        """Puts back what was withdrawn and stays, but for what was written anew meanwhile."""
        for key, entry in entries.items():
            if key not in self._entries:
                self._hold(key, entry)

    def newest(self, key: TableKey) -> Table | None:
        """The newest Table."""
        return self.selector(key).table

    def selector(self, key: TableKey, generation: int = 0) -> Selector:
        """Selection from the Table that was the newest at `generation` of the store, or is (0).

        Raises `GenerationGone`, which says what is, if it is not kept, or is yet to come.
        """
        entry = self._entries.get(key)
        if entry is None:
            return _NO_TABLE
        if generation > self.change_seq:
            raise GenerationGone(f"generation {generation} is yet to come", field="generation")
        if not generation or entry.generation <= generation:
            return self._decode(key, entry.generation, entry.message)
        row = self._store.read_now(lambda reading: queries.table_at(reading, *key, generation))
        if row is None:
            oldest = self._store.read_now(lambda reading: queries.oldest_table(reading, *key))
            problem = f"generation {generation} is not kept: of this Table the oldest is {oldest}"
            raise GenerationGone(problem, field="generation")
        return self._decode(key, row.generation, row.message)

    async def publish(
        self,
        table: Table,
        measurements: Sequence[MeasurementRow] = (),
        *,
        hint: tuple[int, ...] | None = None,
        beside: Callable[[Writing, int], None] = lambda tx, generation: None,
    ) -> Table:
        """Writes a Table and the Measurements behind it, at the next generation; tells watchers.

        `hint` is the row that is new, if one is. `beside` writes what belongs to it, in the same
        transaction. What was begun is committed and told, though whoever asked went away.
        """
        key = (table.namespace, table.kernel, table.target)
        now = self._clock()
        tier = min((row.tier for row in table.hints), default=0)

        def write(tx: Writing) -> tuple[TableRow, Table]:
            for measurement in measurements:
                queries.append_measurement(tx, measurement)
            written = replace(table, generation=tx.next_seq())
            row = TableRow(
                namespace=table.namespace,
                kernel=table.kernel,
                target=table.target,
                generation=written.generation,
                message=convert.table_to_proto(written).SerializeToString(),
                tier=tier,
                hints=len(own_hints(table)),
                created_at_s=now,
            )
            tx.put(row, seq=written.generation)
            queries.prune_tables(tx, *key)
            beside(tx, written.generation)
            return row, written

        async def commit_and_tell() -> Table:
            row, written = await self._store.write(write)
            self._keep(row)
            self.change_seq = max(self.change_seq, row.generation)
            self.published_at = time.monotonic()
            for watcher in self._watchers:
                watcher.offer(key)
            self._on_publish(written, hint)
            return written

        return await to_its_end(commit_and_tell())

    async def watch(
        self, namespace: str, target: str, since: int
    ) -> AsyncGenerator[tuple[list[types_pb2.Table], int]]:
        """Tables written after `since`, then each new one; batches with the cursor after them."""
        watcher = Watcher(namespace, target)
        if since > self.change_seq:
            since = 0  # a cursor of a store that is no more
        waiting = sorted(
            (entry.generation, key)
            for key, entry in self._entries.items()
            if key[0] == namespace and key[2] == target and entry.generation > since
        )
        for _, key in waiting:
            watcher.offer(key)
        self._watchers.add(watcher)
        if self._is_over:
            watcher.wake.set()
        try:
            # The first answer comes even if there is nothing new: it says where the watch is.
            yield self._drain(watcher)
            while True:
                await watcher.wake.wait()
                while watcher.pending:
                    yield self._drain(watcher)
                if self._is_over:
                    return
                watcher.wake.clear()
        finally:
            self._watchers.discard(watcher)

    def end_watches(self) -> None:
        """Ends every watch once it has been sent what there is: the daemon is leaving.

        Those that are just beginning, too.
        """
        self._is_over = True
        for watcher in self._watchers:
            watcher.wake.set()

    @property
    def watchers(self) -> int:
        """How many watch."""
        return len(self._watchers)

    def _keep(self, row: TableRow) -> None:
        key = (row.namespace, row.kernel, row.target)
        self._hold(key, Entry(row.message, row.generation, row.tier, row.hints))

    def _hold(self, key: TableKey, entry: Entry) -> None:
        if key not in self._entries:
            known = self._targets.get(key[:2], ())
            self._targets[key[:2]] = (*known, key[2])
        self._entries[key] = entry

    def _drain(self, watcher: Watcher) -> tuple[list[types_pb2.Table], int]:
        batch: list[types_pb2.Table] = []
        size = 0
        cursor = 0
        while watcher.pending and size < BATCH_BYTES:
            key, _ = watcher.pending.popitem(last=False)
            entry = self._entries[key]
            batch.append(types_pb2.Table.FromString(entry.message))
            size += len(entry.message)
            cursor = max(cursor, entry.generation)
        # With more to come the cursor stays behind what is still to be sent.
        if watcher.pending:
            behind = min(self._entries[key].generation for key in watcher.pending) - 1
            return batch, min(cursor, behind) if batch else behind
        return batch, self.change_seq

    def _decode(self, key: TableKey, generation: int, message: bytes) -> Selector:
        found = self._decoded.get((key, generation))
        if found is not None:
            return found
        table = convert.table_from_proto(types_pb2.Table.FromString(message))
        return self._decoded.keep((key, generation), Selector(table))


_NO_TABLE = Selector(None)
