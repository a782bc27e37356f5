"""Traffic: which sizes of each Kernel clients meet, lately, and beside which Fallback.

A histogram a Kernel, in calls that count half after a half-life: what is hot now weighs most, and
what nobody meets any more fades away. It is gathered from usage reports in memory, folded into
histograms and written in batches; a crash loses what came since the last write, no more.

What Programs have in common is one Kernel, whose hints answer a step only where its own Fallback
was timed; so the same sizes of two steps with two Fallbacks are two things that were met.

Bounded: `KERNELS_LIMIT` histograms of `SIZES_LIMIT` sizes, where the least weight goes first, and
`CLIENT_CALLS` at `GATHERED_LIMIT` sizes a client between two writes, so that none drowns out the
others.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from nearhint_daemon.errors import DaemonError
from nearhint_daemon.programs import TARGET_KINDS, Programs
from nearhint_daemon.recent import Recent
from nearhint_daemon.store import Store, Writing, queries
from nearhint_daemon.store.rows import TrafficRow
from nearhint_daemon.traffic.sizes_text import parse_sizes
from nearhint_daemon.tuning.lowered import Step, dims_at
from nearhint_daemon.unbroken import to_its_end
from nearhint_rules.errors import RulesError
from nearhint_rules.hints import bucket
from nearhint_rules.ladder import distance
from nearhint_rules.metrics import Dims
from nearhint_rules.table import Table, answering

SIZES_LIMIT = 128
KERNELS_LIMIT = 2048
CLIENT_CALLS = 1000.0
FORGOTTEN = 2.0**-10
"""Calls below which a size is as good as never met: one call, ten half-lives ago."""
FOLDED_TOGETHER = 1024
"""Sizes of Programs whose calls are added up before their Kernels' histograms have them."""
GATHERED_LIMIT = 4096
"""Sizes that a client is counted for between two folds."""
PROGRAMS_KEPT = 512
SIZES_KEPT = 4096

KernelKey = tuple[str, str]
"""Namespace, Kernel."""
Site = tuple[str, Dims]
"""A Fallback, and sizes of the Kernel that it is beside."""
Launched = tuple[str, Site]
"""A Kernel and where it was launched."""


@dataclass(frozen=True, slots=True)
class Met:
    """Sizes of a Kernel that were met beside a Fallback, as of `at_s`.

    `weight` is in calls, decayed.
    `program` and `sizes` (`s0=8,s1=16`) are where they were met last, `first_at_s` says when first.
    """

    fallback: str
    dims: Dims
    weight: float
    at_s: float
    first_at_s: float
    program: str
    sizes: str

    @property
    def site(self) -> Site:
        """The Fallback and the sizes."""
        return self.fallback, self.dims


def decayed(weight: float, age_s: float, *, half_life_s: float) -> float:
    """What is left of a weight after a time; a clock that went backwards changes nothing.

    >>> decayed(8.0, 120.0, half_life_s=60.0)
    2.0
    """
    return weight * math.exp2(-max(age_s, 0.0) / half_life_s)


@dataclass(frozen=True, slots=True)
class Called:
    """Calls at sizes of a Kernel, and where they were met last."""

    calls: float
    program: str
    sizes: str


@dataclass(slots=True)
class _Bucket:
    """The calls of all sizes in it together, as of `at_s`, and how many sizes those are."""

    calls: float = 0.0
    at_s: float = 0.0
    sizes: int = 0


class Histogram:
    """The sizes of one Kernel, and which of them are to be written or deleted."""

    def __init__(self, *, half_life_s: float, limit: int = SIZES_LIMIT) -> None:
        self._half_life_s = half_life_s
        self._limit = limit
        self._sizes: dict[Site, Met] = {}
        self._buckets: defaultdict[Dims, _Bucket] = defaultdict(_Bucket)
        self._changed: set[Site] = set()
        self._dropped: set[Site] = set()

    def load(self, met: Met) -> None:
        """Takes what was written before."""
        self._sizes[met.site] = met
        self._count(met.dims, met.weight, met.at_s, sizes=1)

    def add(self, site: Site, calls: float, *, program: str, sizes: str, now_s: float) -> None:
        """Counts calls; where there is no room, what weighs least goes."""
        known = self._sizes.get(site)
        first_at_s, before = now_s, 0.0
        if known is not None:
            first_at_s, before = known.first_at_s, self._now(known, now_s).weight
        self._sizes[site] = Met(*site, before + calls, now_s, first_at_s, program, sizes)
        self._count(site[1], calls, now_s, sizes=known is None)
        self._changed.add(site)
        self._dropped.discard(site)
        if len(self._sizes) > self._limit:
            self._drop(self._lightest(now_s))

    def add_all(self, called: Mapping[Site, Called], *, now_s: float) -> None:
        """Counts calls at many sizes; of the new ones the heaviest that there may be room for."""
        new = [site for site in called if site not in self._sizes]
        order = {site: (-called[site].calls, site[1], site[0]) for site in new}
        known = [site for site in called if site not in order]
        for site in (*known, *heapq.nsmallest(self._limit, new, key=order.__getitem__)):
            each = called[site]
            self.add(site, each.calls, program=each.program, sizes=each.sizes, now_s=now_s)

    def hottest(self, now_s: float) -> list[Met]:
        """All sizes with their weights now, the heaviest first."""
        met = [self._now(each, now_s) for each in self._sizes.values()]
        return sorted(met, key=lambda each: (-each.weight, each.dims, each.fallback))

    def calls_in(self, wanted: Dims, now_s: float) -> float:
        """The weights now of all sizes in a bucket together."""
        found = self._buckets.get(wanted)
        if found is None:
            return 0.0
        return decayed(found.calls, now_s - found.at_s, half_life_s=self._half_life_s)

    def set_back(self, now_s: float) -> None:
        """The clock was set back: nothing was met later, or it would not fade until then."""
        for site, met in self._sizes.items():
            earlier = replace(met, at_s=min(met.at_s, now_s), first_at_s=min(met.first_at_s, now_s))
            if earlier != met:
                self._sizes[site] = earlier
                self._changed.add(site)
        for found in self._buckets.values():
            found.at_s = min(found.at_s, now_s)

    def fade(self, now_s: float) -> None:
        """Lets go of what is as good as never met."""
        for met in list(self._sizes.values()):
            age_s = now_s - met.at_s
            if decayed(met.weight, age_s, half_life_s=self._half_life_s) < FORGOTTEN:
                self._drop(met.site)

    def take(self) -> tuple[list[Met], list[Site]]:
        """What has changed since the last time: sizes to write, and sizes to delete."""
        changed = [self._sizes[site] for site in sorted(self._changed)]
        dropped = sorted(self._dropped)
        self._changed.clear()
        self._dropped.clear()
        return changed, dropped

    def give_back(self, changed: Iterable[Met], dropped: Iterable[Site]) -> None:
        """What was taken could not be written: it is to be taken again."""
        self._changed |= {met.site for met in changed if met.site in self._sizes}
        self._dropped |= {site for site in dropped if site not in self._sizes}

    def __len__(self) -> int:
        return len(self._sizes)

    def _lightest(self, now_s: float) -> Site:
        """The last of `hottest`."""

        def order(met: Met) -> tuple[float, Dims, str]:
            weight = decayed(met.weight, now_s - met.at_s, half_life_s=self._half_life_s)
            return (-weight, met.dims, met.fallback)

        return max(self._sizes.values(), key=order).site

    def _now(self, met: Met, now_s: float) -> Met:
        weight = decayed(met.weight, now_s - met.at_s, half_life_s=self._half_life_s)
        return replace(met, weight=weight, at_s=max(now_s, met.at_s))

    def _count(self, dims: Dims, calls: float, at_s: float, *, sizes: int) -> None:
        """Adds to a bucket's calls, or takes away; all that is in one fades alike."""
        key = bucket(dims)
        found = self._buckets[key]
        now_s = max(found.at_s, at_s)
        before = decayed(found.calls, now_s - found.at_s, half_life_s=self._half_life_s)
        added = decayed(calls, now_s - at_s, half_life_s=self._half_life_s)
        found.calls, found.at_s = max(0.0, before + added), now_s
        found.sizes += sizes
        if not found.sizes:
            del self._buckets[key]

    def _drop(self, site: Site) -> None:
        met = self._sizes.pop(site)
        self._count(met.dims, -met.weight, met.at_s, sizes=-1)
        self._changed.discard(site)
        self._dropped.add(site)


class Traffic:
    """All histograms."""

    def __init__(
        self,
        store: Store,
        programs: Programs,
        *,
        clock: Callable[[], float],
        half_life_s: float,
    ) -> None:
        self._store = store
        self._programs = programs
        self._clock = clock
        self.half_life_s = half_life_s
        self._kernels: OrderedDict[KernelKey, Histogram] = OrderedDict()
        self._gathered: dict[str, dict[tuple[str, str, str], int]] = {}
        self._gone: set[KernelKey] = set()
        self._met = Recent[tuple[str, str, str], tuple[Launched, ...]](SIZES_KEPT)
        self._faded_at_s = self._seen_s = clock()
        self._steps = Recent[tuple[str, str], tuple[Step, ...]](PROGRAMS_KEPT)

    async def load(self) -> None:
        """Takes up what an earlier daemon wrote, and has not faded since.

        No clock of its was ahead of ours.
        """
        rows = await self._store.read(queries.traffic)
        now_s = self._clock()
        for row in rows:
            dims = tuple(map(int, row.dims.split()))
            histogram = self._histogram((row.namespace, row.kernel))
            histogram.load(
                Met(
                    fallback=row.fallback,
                    dims=dims,
                    weight=row.weight,
                    at_s=min(row.at_s, now_s),
                    first_at_s=min(row.first_at_s, now_s),
                    program=row.program,
                    sizes=row.sizes,
                )
            )
        self._faded_at_s = -math.inf
        self._fade()

    def note(self, client_id: str, namespace: str, program: str, sizes: str, calls: int) -> None:
        """Notes calls of a Program at sizes (`s0=8,s1=16`), as a client reported them."""
        used = self._gathered.setdefault(client_id, {})
        key = (namespace, program, sizes)
        if key in used or len(used) < GATHERED_LIMIT:
            used[key] = used.get(key, 0) + calls

    async def fold(self) -> None:
        """Counts what was noted, for each Kernel that those Programs launch."""
        gathered, self._gathered = self._gathered, {}
        now_s = self._clock()
        if now_s < self._seen_s:
            self._faded_at_s = min(self._faded_at_s, now_s)
            for histogram in self._kernels.values():
                histogram.set_back(now_s)
        self._seen_s = now_s
        total: dict[tuple[str, str, str], float] = {}
        for used in gathered.values():
            share = min(1.0, CLIENT_CALLS / max(1, sum(used.values())))
            for key, count in used.items():
                total[key] = total.get(key, 0.0) + count * share
        left = iter(total.items())
        while together := tuple(islice(left, FOLDED_TOGETHER)):
            for kernel, called in (await self._called(together)).items():
                self._histogram(kernel).add_all(called, now_s=now_s)
                await asyncio.sleep(0)

    async def _called(
        self, total: Iterable[tuple[tuple[str, str, str], float]]
    ) -> dict[KernelKey, dict[Site, Called]]:
        """The calls of Kernels, that of the last of these Programs at the end."""
        found: dict[KernelKey, dict[Site, Called]] = {}
        for (namespace, program, text), calls in total:
            for kernel, site in await self._launched(namespace, program, text):
                mine = found[namespace, kernel] = found.pop((namespace, kernel), {})
                before = mine[site].calls if site in mine else 0.0
                mine[site] = Called(before + calls, program, text)
            await asyncio.sleep(0)  # a long report holds up nobody
        return found

    async def flush(self) -> None:
        """Folds, and writes what has changed; on a full disk it stays to be written.

        What was begun is written, though whoever asked for it is stopped meanwhile.
        """
        await to_its_end(self._flush())

    async def _flush(self) -> None:
        await self.fold()
        self._fade()
        taken = [(key, *histogram.take()) for key, histogram in self._kernels.items()]
        puts = [_row(*key, met) for key, changed, _ in taken for met in changed]
        drops = [
            (*key, fallback, _text(dims)) for key, _, dropped in taken for fallback, dims in dropped
        ]
        gone = set(self._gone)
        if not puts and not drops and not gone:
            return

        def write(tx: Writing) -> None:
            queries.forget_traffic(tx, drops, kernels=gone)
            seq = tx.next_seq()
            for row in puts:
                tx.put(row, seq=seq)

        try:
            await self._store.write(write)
        except Exception:
            for key, changed, dropped in taken:
                if key in self._kernels:
                    self._kernels[key].give_back(changed, dropped)
            raise
        self._gone -= gone

    def _fade(self) -> None:
        """Once a half-life, lets go of what nobody meets any more."""
        now_s = self._clock()
        if now_s - self._faded_at_s < self.half_life_s:
            return
        self._faded_at_s = now_s
        for key, histogram in list(self._kernels.items()):
            histogram.fade(now_s)
            if not len(histogram):
                del self._kernels[key]
                self._gone.add(key)

    def kernels(self) -> tuple[KernelKey, ...]:
        """The Kernels with traffic, the one that was met last at the end."""
        return tuple(self._kernels)

    def met(self, namespace: str, kernel: str) -> list[Met]:
        """A Kernel's sizes by Fallback with their weights now, the heaviest first."""
        histogram = self._kernels.get((namespace, kernel))
        return [] if histogram is None else histogram.hottest(self._clock())

    def sizes(self) -> int:
        """How many sizes all histograms hold."""
        return sum(map(len, self._kernels.values()))

    def uses(self, table: Table) -> dict[Dims, float]:
        """How much each hint of a Table is used: the weights of the sizes nearest to it.

        Sizes count where their own Fallback was timed; none in a Table without hints, as it is
        before its first.
        """
        uses = {row.dims: 0.0 for row in table.hints}
        answers: dict[str, list[Dims]] = {}
        for met in self.met(table.namespace, table.kernel):
            hints = answers.get(met.fallback)
            if hints is None:
                hints = [row.dims for row in answering(table, met.fallback)]
                answers[met.fallback] = hints
            if hints:
                uses[min(hints, key=lambda hint: (distance(met.dims, hint), hint))] += met.weight
        return uses

    def heat(self, namespace: str, payload: Mapping[str, object]) -> int:
        """How hot the hint of a tuning job is: whole octaves of calls in its bucket, 0 for none.

        Octaves, so that among equals the first to come stays first.
        """
        dims = payload.get("dims")
        if not isinstance(dims, list | tuple):
            return 0
        histogram = self._kernels.get((namespace, str(payload.get("kernel", ""))))
        if histogram is None:
            return 0
        wanted = bucket([int(size) for size in dims])
        return int(histogram.calls_in(wanted, self._clock())).bit_length()

    async def _launched(self, namespace: str, program: str, text: str) -> tuple[Launched, ...]:
        """The Kernels that a Program launches at sizes, with their own sizes, each once."""
        key = (namespace, program, text)
        found = self._met.get(key)
        if found is not None:
            return found
        steps = await self._steps_of(namespace, program)
        made = tuple(dict.fromkeys(_launched_at(steps, text)))
        # One that is not lowered yet may be next time.
        return self._met.keep(key, made) if steps else made

    async def _steps_of(self, namespace: str, program: str) -> tuple[Step, ...]:
        found = self._steps.get((namespace, program))
        if found is not None:
            return found
        steps: tuple[Step, ...] = ()
        for kind in TARGET_KINDS:
            try:
                steps += (await self._programs.lowered((namespace, program, kind))).steps
            except (DaemonError, RulesError):
                continue  # not lowered for that kind, or not readable any more
        return self._steps.keep((namespace, program), steps) if steps else steps

    def _histogram(self, key: KernelKey) -> Histogram:
        histogram = self._kernels.pop(key, None) or Histogram(half_life_s=self.half_life_s)
        self._kernels[key] = histogram
        if len(self._kernels) > KERNELS_LIMIT:
            coldest, _ = self._kernels.popitem(last=False)
            self._gone.add(coldest)
        return histogram


def _launched_at(steps: Sequence[Step], text: str) -> Iterator[Launched]:
    sizes = parse_sizes(text)
    for step in steps:
        try:
            dims = dims_at(step, sizes)
        except RulesError:
            continue
        if all(size > 0 for size in dims):
            yield step.kernel, (step.fallback, dims)


def _text(dims: Dims) -> str:
    return " ".join(map(str, dims))


def _row(namespace: str, kernel: str, met: Met) -> TrafficRow:
    return TrafficRow(
        namespace=namespace,
        kernel=kernel,
        fallback=met.fallback,
        dims=_text(met.dims),
        program=met.program,
        sizes=met.sizes,
        weight=met.weight,
        first_at_s=met.first_at_s,
        at_s=met.at_s,
    )
