"""A session's copy of the Tables, and the binaries that they name, loaded.

Only the engine's thread touches it. What it hands out (Tables, loaded binaries, selectors) is
immutable or safe under threads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from google.protobuf.message import Message

from nearhint import launchers
from nearhint._registration import Demand, Registration, Tuned
from nearhint.artifacts import ArtifactCache
from nearhint.counters import Counters
from nearhint.errors import DaemonUnreachable, DeadlineMissed, InvalidAnswer, NearhintError
from nearhint.launchers import LoadedKernel
from nearhint.launchers.errors import DeviceOutOfMemory
from nearhint.snapshot import Snapshot, needed, servable
from nearhint_proto.convert import table_from_proto
from nearhint_proto.v1 import types_pb2
from nearhint_rules import expr as ex
from nearhint_rules.artifact import ArtifactRef, CpuLaunch, SizeArgument
from nearhint_rules.errors import RulesError
from nearhint_rules.expr import Expr
from nearhint_rules.guard import Aligned
from nearhint_rules.selectors import BoundSelector, Selector
from nearhint_rules.table import Table, Variant

FETCH_ATTEMPTS = 3
PASSING = frozenset({"artifact_corrupt", "daemon_failed", "not_found", "rejected"})
"""Why an Artifact may fail and not do so again."""
TRANSFERS_AHEAD = 8

Fetch = Callable[[ArtifactRef, int], Iterator[bytes]]
"""Starts a transfer: the bytes of an Artifact from an offset on."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A Kernel whose Table changed; `is_withdrawn`: something that it served is not there now."""

    kernel: str
    is_withdrawn: bool


class TableCopies:
    """Tables by Kernel, the newest of each, and the Artifacts that they can answer with."""

    def __init__(
        self, *, target_kind: str, device_index: int, cache: ArtifactCache, counters: Counters
    ) -> None:
        self.tables: dict[str, Table] = {}
        self.loaded: dict[ArtifactRef, LoadedKernel] = {}
        self.incoming: set[str] = set()
        """Kernels whose Tables came, and not all of the Artifacts that these answer with."""
        self._outlived: set[str] = set()
        """Kernels whose Tables here are of a store that is no more."""
        self._held_back: dict[str, Table] = {}
        """And what the daemon has of them, as long as that is less for calls made here."""
        self._generations: dict[str, int] = {}
        self._tuned: dict[str, Tuned] = {}
        self.unloadable: dict[ArtifactRef, str] = {}
        self._failures: dict[ArtifactRef, int] = {}
        self._selectors: dict[str, tuple[Table, Selector]] = {}
        self._target_kind = target_kind
        self._device_index = device_index
        self._cache = cache
        self._counters = counters

    def accept(
        self, message: Message, *, target_id: str, kernels: Mapping[str, int]
    ) -> Accepted | None:
        """Takes a Table if it is right, newer and wanted; None if nothing changed.

        `kernels` are those of the registered Programs, with the number of their symbols.
        """
        if not isinstance(message, types_pb2.Table) or message.kernel not in kernels:
            return None
        try:
            table = table_from_proto(message)
            _check_table(table, target_id, self._target_kind, kernels[table.kernel])
        except (RulesError, NearhintError):
            self._counters.event("table_invalid")
            return None
        if table.generation < self._generations.get(table.kernel, 0):
            return None
        self._generations[table.kernel] = table.generation
        known = self.tables.get(table.kernel)
        if table != known or table.kernel not in self._tuned:
            self._tuned[table.kernel] = Tuned.of(table)
        if table == known:
            self._outlived.discard(table.kernel)
            return None
        if table.kernel in self._outlived and not self._must_be_taken(table):
            self._held_back[table.kernel] = table
            return None
        return self._take(table)

    def _must_be_taken(self, table: Table) -> bool:
        """Whether it says what people, or a failure, decided, and not just less than is known."""
        held = self._held_back.get(table.kernel)
        is_given_up = bool(table.reason) and not table.variants
        return bool(table.pins) or is_given_up or (held is not None and _is_withdrawn(held, table))

    def _take(self, table: Table) -> Accepted:
        known = self.tables.get(table.kernel)
        self._outlived.discard(table.kernel)
        self._held_back.pop(table.kernel, None)
        self.tables[table.kernel] = table
        self.incoming.add(table.kernel)
        return Accepted(table.kernel, known is not None and _is_withdrawn(known, table))

    def take_held_back(self, demands: Iterable[Demand]) -> list[Accepted]:
        """Takes the Tables that have by now all that calls here had from those before them.

        What the daemon has given up for good is not waited for.
        """
        if not self._held_back:
            return []
        before = {kernel: Tuned.of(self.tables[kernel]) for kernel in self._held_back}
        lacking = {
            demand.site.kernel
            for demand in demands
            if demand.site.kernel in before
            and not (demand.final and demand.again_s == math.inf)
            and not self.is_met(demand)
            and before[demand.site.kernel].meets(demand)
        }
        return [
            self._take(table)
            for kernel, table in list(self._held_back.items())
            if kernel not in lacking
        ]

    def outlive(self) -> None:
        """The daemon that answers has another store: it made none of the Tables that are here."""
        self._outlived |= self.tables.keys()

    def missing(self, kernels: Iterable[str]) -> Iterator[ArtifactRef]:
        """The Artifacts that the Kernels' Tables can answer with and that are not loaded."""
        for kernel in kernels:
            table = self.tables.get(kernel)
            for ref in _artifacts(table):
                if ref not in self.loaded and ref not in self.unloadable:
                    yield ref

    def load_incoming(self, fetch: Fetch, *, again: bool) -> set[str]:
        """Brings the Artifacts of incoming Kernels here, and loads them; which Kernels these were.

        A Kernel that lacks one still, for a reason that may pass, stays incoming; what failed is
        only tried `again` where that is said. A few transfers are on their way ahead of the one
        that is read. Raises `DaemonUnreachable` or `DeadlineMissed`: the daemon is lost, and all
        stay incoming.
        """
        kernels = frozenset(self.incoming)
        refs = [
            ref
            for ref in dict.fromkeys(self.missing(kernels))
            if again or ref not in self._failures
        ]
        absent = iter([ref for ref in refs if not self._cache.seems_to_have(ref.sha256)])
        started: dict[ArtifactRef, Iterator[bytes]] = {}

        def fetch_ahead(ref: ArtifactRef, offset: int) -> Iterator[bytes]:
            for ahead in islice(absent, TRANSFERS_AHEAD - len(started)):
                started[ahead] = fetch(ahead, 0)
            stream = started.pop(ref, None)
            return fetch(ref, offset) if stream is None or offset else stream

        for ref in refs:
            self._load(ref, fetch_ahead)
            time.sleep(0)  # lets the model's threads have the interpreter
        self.incoming = {kernel for kernel in kernels if any(self.missing([kernel]))}
        return set(kernels)

    def _load(self, ref: ArtifactRef, fetch: Fetch) -> None:
        """Brings one Artifact here and loads it; a failure is counted."""
        try:
            binary = self._cache.obtain(
                ref.sha256, ref.size_bytes, lambda offset: fetch(ref, offset)
            )
            self.loaded[ref] = launchers.load(
                binary, ref.launch, sha256=ref.sha256, device_index=self._device_index
            )
            self._failures.pop(ref, None)
        except (DaemonUnreachable, DeadlineMissed):
            raise
        except Exception as error:  # a launcher may fail in ways of its own
            reason = error.reason if isinstance(error, NearhintError) else "artifact_load_failed"
            self._counters.event(reason)
            failures = self._failures[ref] = self._failures.get(ref, 0) + 1
            if _is_final(reason, failures):
                self.unloadable[ref] = reason

    def is_met(self, demand: Demand) -> bool:
        """Whether the search where the demand is has ended, with its Fallback measured.

        What was met stays so where a later Table lets a hint go that traffic left.
        """
        tuned = self._tuned.get(demand.site.kernel)
        if tuned is not None and tuned.meets(demand):
            demand.was_met = True
        return demand.was_met

    def ask_anew(self, kernels: Iterable[str]) -> None:
        """The daemon has no Tables of these Kernels: those that are here are another daemon's.

        They are served until it has some, for which it has to be asked.
        """
        for kernel in kernels:
            self._tuned.pop(kernel, None)
            if kernel in self.tables:
                self._outlived.add(kernel)

    def refusal(self, kernel: str) -> str:
        """Why the Kernel has no Variants, as its Table says now; empty where it may have some."""
        table = self._held_back.get(kernel) or self.tables.get(kernel)
        return table.reason if table is not None and not table.variants else ""

    def clear(self) -> None:
        """Forgets all Tables: the Target has changed."""
        self.tables.clear()
        self.incoming.clear()
        self._generations.clear()
        self._tuned.clear()
        self._outlived.clear()
        self._held_back.clear()

    def forgive(self) -> None:
        """Another daemon may have right what this one had wrong, and count generations anew."""
        self._generations.clear()
        self._held_back.clear()
        for kernel in [kernel for kernel in self.tables if self.refusal(kernel)]:
            del self.tables[kernel]
            self._tuned.pop(kernel, None)
        self.incoming |= {
            kernel
            for kernel, table in self.tables.items()
            if not self.unloadable.keys().isdisjoint(_artifacts(table))
        }
        self.unloadable.clear()
        self._failures.clear()

    def prune(self, kernels: Iterable[str]) -> None:
        """Lets go of CPU binaries that no Table answers with; a Snapshot may still hold them.

        What was loaded on a GPU stays: a captured graph may refer to it without our knowing.
        """
        if self._target_kind == "cuda":
            return
        wanted = set(kernels)
        for kernel in self.tables.keys() - wanted:
            del self.tables[kernel]
            self.incoming.discard(kernel)
            self._generations.pop(kernel, None)
            self._outlived.discard(kernel)
            self._held_back.pop(kernel, None)
            self._tuned.pop(kernel, None)
            self._selectors.pop(kernel, None)
        keep = {ref for table in self.tables.values() for ref in _artifacts(table)}
        for ref in self.loaded.keys() - keep:
            del self.loaded[ref]

    def snapshot(self, registration: Registration, *, is_awaited: bool) -> Snapshot | None:
        """A new Snapshot of a registration's Plan, or None before there is one.

        The Tables are worked through here, beside calls; but where a capture waits for them,
        `is_awaited`, by the first call, so that this is served by them.
        """
        plan = registration.plan
        if plan is None:
            return None
        kernels = registration.kernels()
        selectors = {kernel: self._selector(kernel) for kernel in kernels}
        tables = {kernel: self._selectors[kernel][0] for kernel in kernels if kernel in self.tables}
        artifacts = {ref for table in tables.values() for ref in _artifacts(table)}
        return Snapshot(
            plan=plan,
            generation=max((table.generation for table in tables.values()), default=0),
            tables=tables,
            loaded={ref: self.loaded[ref] for ref in artifacts if ref in self.loaded},
            selectors=dict(_bound(registration, selectors, is_awaited=is_awaited)),
        )

    def _selector(self, kernel: str) -> Selector:
        """The Selector of what can be served now; the same one until that changes."""
        table = self.tables.get(kernel)
        if table is None:
            return _NO_TABLE
        now = servable(table, self.loaded)
        known = self._selectors.get(kernel)
        if known is None or replace(known[0], generation=now.generation) != now:
            known = (now, Selector(now))
        self._selectors[kernel] = (now, known[1])  # of another generation, it answers the same
        return known[1]


_NO_TABLE = Selector(None)


def _bound(
    registration: Registration, selectors: Mapping[str, Selector], *, is_awaited: bool
) -> Iterator[tuple[int, BoundSelector]]:
    """The selection of each launch step."""
    for site in registration.sites:
        bound = selectors[site.kernel].step(site.fallback)
        if not is_awaited:
            bound.work_through()
        yield site.step, bound
        time.sleep(0)  # lets the model's threads have the interpreter


def _is_withdrawn(known: Table, table: Table) -> bool:
    """Whether an operator, or a failure, took away what `known` may answer with."""
    here = {variant.id for variant in table.variants}
    return known.pins != table.pins or any(
        known.variants[position].id not in here for position in needed(known)
    )


def _artifacts(table: Table | None) -> tuple[ArtifactRef, ...]:
    if table is None:
        return ()
    return tuple(table.variants[position].artifact for position in needed(table))


def _is_final(reason: str, failures: int) -> bool:
    """Whether an Artifact that failed so often is given up; one that found no memory never is."""
    if reason == DeviceOutOfMemory.code.lower():
        return False
    return failures >= FETCH_ATTEMPTS or reason not in PASSING


def _check_table(table: Table, target_id: str, target_kind: str, symbols: int) -> None:
    """Raises `InvalidAnswer` for a Table that does not fit the Kernel and device it is for."""
    what = f"table of kernel {table.kernel[:12]}"
    if table.target != target_id:
        raise InvalidAnswer(what=what, problem="it is for another Target")
    if len(table.symbols) != symbols:
        raise InvalidAnswer(what=what, problem=f"{len(table.symbols)} symbols, not {symbols}")
    known = set(table.symbols)
    for variant in table.variants:
        kind = "cpu" if isinstance(variant.artifact.launch, CpuLaunch) else "cuda"
        if kind != target_kind:
            raise InvalidAnswer(what=what, problem=f"an artifact for {kind}")
        if not known.issuperset(ex.symbols_of(*_exprs(variant))):
            raise InvalidAnswer(what=what, problem="a size that is none of its symbols")


def _exprs(variant: Variant) -> Iterator[Expr]:
    for fact in variant.guard.facts:
        if not isinstance(fact, Aligned):
            yield fact.expr
    launch = variant.artifact.launch
    if isinstance(launch, CpuLaunch):
        yield launch.work
        return
    yield from launch.grid
    for argument in launch.arguments:
        if isinstance(argument, SizeArgument):
            yield argument.expr
