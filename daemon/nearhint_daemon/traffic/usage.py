"""Usage: what clients report having run, within caps, so that none drowns out another.

Counts are gathered in memory and written in batches. A report counts for at most `CALLS_LIMIT`
calls; a client has a token bucket of reports, a number of distinct sizes between two writes, and is
one of a bounded number of clients.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nearhint_daemon.errors import KernelUnknown, QueueFull
from nearhint_daemon.programs import Programs
from nearhint_daemon.sightings import Sightings
from nearhint_daemon.store import Store, Writing, queries
from nearhint_daemon.store.rows import UsageRow
from nearhint_daemon.traffic.histograms import Traffic
from nearhint_daemon.traffic.sizes_text import print_sizes
from nearhint_daemon.tuning.lowered import sizes_within
from nearhint_daemon.unbroken import to_its_end

CLIENTS_LIMIT = 1024
SIZES_LIMIT = 512
CALLS_LIMIT = 1_000_000
USAGES_LIMIT = 1024
REPORTS_BURST = 20.0
REPORTS_PER_S = 2.0
TIERS = 4
USAGE_ROWS = 50_000
EVENT_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Used:
    """How often a Program ran at sizes, and its launches by tier T0 … T3, as a client says."""

    program: str
    sizes: Mapping[str, int]
    calls: int
    launches: Sequence[int]

    @property
    def counts(self) -> tuple[int, ...]:
        """Calls, then launches by tier, as far as they count."""
        launches = [*self.launches[:TIERS], *([0] * TIERS)][:TIERS]
        return tuple(min(count, CALLS_LIMIT) for count in (self.calls, *launches))


def launches_by_tier(used: Sequence[Used]) -> list[int]:
    """The launches of all of these, as far as they count."""
    return [sum(each.counts[1 + tier] for each in used) for tier in range(TIERS)]


Sizes = tuple[str, str, str]
"""Namespace, Program, sizes (`s0=8,s1=16`)."""


@dataclass
class _Client:
    tokens: float
    refilled_at_s: float


class Usage:
    """Gathers reports."""

    def __init__(
        self,
        store: Store,
        programs: Programs,
        traffic: Traffic,
        sightings: Sightings,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._programs = programs
        self._traffic = traffic
        self._sightings = sightings
        self._clock = clock
        self._monotonic = monotonic
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._gathered: dict[str, dict[Sizes, list[int]]] = {}

    async def report(self, client_id: str, used: Sequence[Used], *, namespace: str) -> int:
        """Takes what is within the caps; returns how many usages that were.

        Raises `InvalidRequest` for sizes outside a Program's ranges, `QueueFull` above the rate.
        """
        client = self._client(client_id)
        if client.tokens < 1.0:
            raise QueueFull("this client reports too often", field="client_id")
        client.tokens -= 1.0
        accepted = 0
        for position, usage in enumerate(used):
            try:
                ranges = self._programs.ranges(namespace, usage.program)
                self._sightings.note(namespace, usage.program)
            except KernelUnknown:
                continue  # reported to a daemon that lost its store
            sizes_within(usage.sizes, ranges, field=f"usages[{position}].sizes")
            text = print_sizes({name: usage.sizes[name] for name in ranges})
            if client_id not in self._gathered and len(self._gathered) >= CLIENTS_LIMIT:
                continue  # nothing could be written for long
            mine = self._gathered.setdefault(client_id, {})
            sizes = (namespace, usage.program, text)
            if sizes not in mine and len(mine) >= SIZES_LIMIT:
                continue
            _add(mine, sizes, usage.counts)
            self._traffic.note(client_id, namespace, usage.program, text, usage.counts[0])
            accepted += 1
        return accepted

    async def flush(self) -> None:
        """Writes what was gathered; on a full disk it stays gathered.

        What was begun is written, though whoever asked for it is stopped meanwhile.
        """
        await to_its_end(self._flush())

    async def _flush(self) -> None:
        gathered, self._gathered = self._gathered, {}
        if not gathered:
            return
        now = self._clock()

        def add(tx: Writing) -> None:
            for key, added in _by_key(gathered).items():
                before = tx.get(UsageRow, *key)
                known = (0,) * (TIERS + 1)
                if before is not None:
                    known = (
                        before.calls,
                        before.launches_t0,
                        before.launches_t1,
                        before.launches_t2,
                        before.launches_t3,
                    )
                sums = tuple(min(old + new, 2**62) for old, new in zip(known, added, strict=True))
                tx.put(UsageRow(*key, sums[0], sums[1], sums[2], sums[3], sums[4], now))

            queries.prune_log(tx, usage_rows=USAGE_ROWS, event_rows=EVENT_ROWS)

        try:
            await self._store.write(add)
        except Exception:
            for client_id, used in gathered.items():
                for sizes, counts in used.items():
                    _add(self._gathered.setdefault(client_id, {}), sizes, counts)
            raise

    def _client(self, client_id: str) -> _Client:
        now = self._monotonic()
        client = self._clients.pop(client_id, None) or _Client(REPORTS_BURST, now)
        client.tokens = min(
            REPORTS_BURST, client.tokens + (now - client.refilled_at_s) * REPORTS_PER_S
        )
        client.refilled_at_s = now
        self._clients[client_id] = client
        if len(self._clients) > CLIENTS_LIMIT:
            self._clients.popitem(last=False)
        return client


def _add(used: dict[Sizes, list[int]], sizes: Sizes, counts: Sequence[int]) -> None:
    known = used.get(sizes, [0] * (TIERS + 1))
    used[sizes] = [old + new for old, new in zip(known, counts, strict=True)]


def _by_key(
    gathered: Mapping[str, Mapping[Sizes, Sequence[int]]],
) -> dict[tuple[str, str, str, str], Sequence[int]]:
    """Counts by what a row of usage is known by."""
    return {
        (namespace, client_id, program, text): counts
        for client_id, used in gathered.items()
        for (namespace, program, text), counts in used.items()
    }
