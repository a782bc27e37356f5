"""The core: every part of the daemon but its socket, put together, started and stopped in order."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from nearhint_compiler import COMPILER_VERSION
from nearhint_daemon import logs, releases
from nearhint_daemon.bandwidths import BANDWIDTH, Bandwidths
from nearhint_daemon.config import Config
from nearhint_daemon.devices import Bench, Devices
from nearhint_daemon.errors import (
    DaemonError,
    KernelUnknown,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    ToolchainMissing,
)
from nearhint_daemon.forgetting import Forgetter
from nearhint_daemon.jobs import JobQueue, Priority
from nearhint_daemon.metrics import Metrics
from nearhint_daemon.operating.interventions import Interventions
from nearhint_daemon.operating.quarantine import QUARANTINE, Quarantine
from nearhint_daemon.operations import Operations
from nearhint_daemon.programs import LOWER, Programs
from nearhint_daemon.regret.idle_regret import IdleRegret
from nearhint_daemon.regret.regrets import REGRET, Regrets
from nearhint_daemon.restoring import RESTORE, Restorer
from nearhint_daemon.sightings import Sightings
from nearhint_daemon.store import Store
from nearhint_daemon.store.rows import JobRow
from nearhint_daemon.tables import TableIndex
from nearhint_daemon.traffic.histograms import Traffic
from nearhint_daemon.traffic.ladders import Ladders
from nearhint_daemon.traffic.placing import Placer
from nearhint_daemon.traffic.presence import Presence
from nearhint_daemon.traffic.usage import Usage
from nearhint_daemon.trimming import Trimmer
from nearhint_daemon.tuning.budgets import Budgets
from nearhint_daemon.tuning.compiling import COMPILE, Compiling
from nearhint_daemon.tuning.contests import Contests
from nearhint_daemon.tuning.crossing import Crossing
from nearhint_daemon.tuning.idle_time import IDLE_S, IdleTime
from nearhint_daemon.tuning.lowering_checks import LoweringChecks
from nearhint_daemon.tuning.probing import Probing
from nearhint_daemon.tuning.publishing import Publisher
from nearhint_daemon.tuning.races import Races
from nearhint_daemon.tuning.refining import Refining
from nearhint_daemon.tuning.search_reports import SearchReports
from nearhint_daemon.tuning.tasks import Tasks
from nearhint_daemon.tuning.tuner import Tuner
from nearhint_daemon.tuning.tuning_jobs import CROSS, PROBE, REFINE, TUNE
from nearhint_daemon.tuning.variants import Variants
from nearhint_daemon.tuning.winners import Winners
from nearhint_daemon.workers.errors import WorkersError
from nearhint_daemon.workshop import Compilers, Limits, Workshop
from nearhint_rules.table import Table
from nearhint_rules.target import Device, Target

VERSION = "0.1.0"
COMPILE_WORKERS_LIMIT = 8
USAGE_FLUSH_S = 5.0
GAUGES_S = 5.0
RECALLED_TABLES = 256
"""Tables whose winners are looked up when the daemon starts."""
IDLE_LOOK_S = 15.0
LAG_S = 0.25
TOOLCHAIN_RETRY_S = 15.0


class CompilePool(Compilers, Protocol):
    """The compile workers with their life."""

    def start(self) -> None:
        """Starts in the background."""
        ...

    async def stop(self) -> None:
        """Kills all workers."""
        ...


class BenchPool(Bench, Protocol):
    """The bench workers with their life."""

    def start(self) -> None:
        """Starts in the background."""
        ...

    async def stop(self) -> None:
        """Kills all workers."""
        ...


@dataclass(frozen=True, slots=True)
class Pools:
    """The worker processes; tests bring pools of their own."""

    compile: CompilePool
    bench: BenchPool


MakePools = Callable[[Config, Metrics], Pools]


def compile_workers(config: Config) -> int:
    """How many compile workers there are."""
    cpus = len(os.sched_getaffinity(0))
    return config.compile_workers or min(cpus, COMPILE_WORKERS_LIMIT)


class Core:
    """Everything that the services speak to."""

    def __init__(
        self,
        config: Config,
        *,
        make_pools: MakePools,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.state = "starting"
        self.metrics_address = ""
        self.metrics = Metrics(version=VERSION, compiler_version=COMPILER_VERSION)
        self.store = Store(config.state_dir, observer=self.metrics, clock=time.time)
        self.pools = make_pools(config, self.metrics)
        self.presence = Presence(monotonic=time.monotonic)
        self.devices = Devices(
            self.pools.bench,
            self.store,
            default_policy=config.device_policy,
            clock=time.time,
            presence=self.presence,
        )
        self.workshop = Workshop(
            self.pools.compile,
            self.devices,
            compile_workers=compile_workers(config),
            limits=Limits(config.measure_budget_s, config.measure_memory_bytes),
            observer=self.metrics,
            seeds=random.SystemRandom(),
            monotonic=monotonic,
        )
        self.quarantine = Quarantine(self.store, config.state_dir / QUARANTINE, clock=time.time)
        self.jobs = JobQueue(
            self.store,
            owner=str(uuid.uuid4()),
            clock=time.time,
            observer=self.metrics,
            limit=config.queue_limit,
        )
        self.budgets = Budgets()
        self.jobs.on_left = self.budgets.take_over
        self.jobs.on_end = self._job_ended
        self.jobs.is_held_up = self._is_held_up
        self.operations = Operations(self.jobs, clock=time.time)
        self.winners = Winners()
        self.tables = TableIndex(self.store, clock=time.time, on_publish=self._published)
        self.sightings = Sightings(self.store, clock=time.time)
        self.programs = Programs(
            self.store,
            self.workshop,
            self.quarantine,
            self.sightings,
            compiler_version=COMPILER_VERSION,
            clock=time.time,
        )
        self.variants = Variants(
            self.store,
            self.workshop,
            self.quarantine,
            compiler_version=COMPILER_VERSION,
            clock=time.time,
        )
        self.traffic = Traffic(
            self.store, self.programs, clock=time.time, half_life_s=config.traffic_half_life_s
        )
        self.jobs.order_by(lambda row: self.traffic.heat(row.namespace, json.loads(row.payload)))
        self.publisher = Publisher(
            self.store, self.tables, self.traffic, self.quarantine, clock=time.time
        )
        threads = config.threads or len(os.sched_getaffinity(0))
        self.bandwidths = Bandwidths(
            self.store,
            self.programs,
            self.workshop,
            self.jobs,
            clock=time.time,
            threads=threads,
        )
        tasks = Tasks(self.programs, self.workshop)
        races = Races(self.workshop, self.quarantine, self.publisher)
        contests = Contests(
            self.variants,
            races,
            self.publisher,
            SearchReports(self.store, clock=time.time),
        )
        self.crossing = Crossing(self.tables, self.jobs, tasks, contests)
        self.tuner = Tuner(
            self.store,
            self.jobs,
            self.programs,
            self.tables,
            self.publisher,
            self.workshop,
            tasks,
            LoweringChecks(self.store, self.workshop, self.quarantine),
            contests,
            self.crossing,
            self.bandwidths,
            self.winners,
            compiler_version=COMPILER_VERSION,
            default_threads=threads,
        )
        self.compiling = Compiling(self.programs, self.variants, self.workshop)
        self.probing = Probing(self.tables, tasks, contests, self.publisher)
        self.refining = Refining(self.store, self.tables, self.workshop, tasks, contests)
        self.idle_time = IdleTime(
            self.store,
            self.programs,
            self.tables,
            self.devices,
            self.jobs,
            self.traffic,
            share=config.refine_share,
            compiler_version=COMPILER_VERSION,
        )
        self.restorer = Restorer(
            self.store,
            self.programs,
            self.variants,
            self.tables,
            self.publisher,
            contests,
            self.jobs,
        )
        self.metrics.store_is_full.set_function(lambda: self.restorer.is_stuck)
        self.trimmer = Trimmer(self.store, self.tables)
        self.interventions = Interventions(
            self.store,
            self.tables,
            self.publisher,
            self.quarantine,
            self.jobs,
            compiler_version=COMPILER_VERSION,
            clock=time.time,
        )
        self.ladders = Ladders(
            self.programs,
            compiler_version=COMPILER_VERSION,
            budget=config.hint_budget,
            threads=threads,
        )
        self.placer = Placer(
            self.store,
            self.traffic,
            self.tables,
            self.programs,
            self.publisher,
            self.jobs,
            self.budgets,
            compiler_version=COMPILER_VERSION,
            budget=config.hint_budget,
            threads=threads,
            clock=time.time,
            observer=self.metrics,
        )
        self.regrets = Regrets(
            self.store,
            self.programs,
            self.variants,
            self.tables,
            self.publisher,
            self.quarantine,
            self.workshop,
            races,
            clock=time.time,
            default_threads=threads,
            on_judged=self.metrics.regret_judged,
        )
        self.idle_regret = IdleRegret(
            self.store,
            self.regrets,
            self.tables,
            self.jobs,
            self.devices,
            self.programs,
            share=config.regret_share,
            monotonic=time.monotonic,
            chance=random.SystemRandom(),
        )
        self.usage = Usage(
            self.store,
            self.programs,
            self.traffic,
            self.sightings,
            clock=time.time,
            monotonic=time.monotonic,
        )
        self.forgetter = Forgetter(
            self.store,
            self.sightings,
            self.programs,
            self.tables,
            days=config.forget_after_days,
            clock=time.time,
            monotonic=time.monotonic,
            observer=self.metrics,
        )
        self._problems: dict[str, str] = {}
        self._failing: dict[str, str] = {}
        self._toolchains: dict[str, tuple[str, ...]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Loads the Tables and takes up jobs; workers may still be starting afterwards."""
        await self.store.start()
        await self.tables.load()
        await releases.try_again(self.store, self.tables, compiler_version=COMPILER_VERSION)
        await self.traffic.load()
        if self.store.moved_aside is not None:
            name = self.store.moved_aside.name
            self._problems["store"] = f"the database was damaged; it was moved to {name}"
            logs.error("database_moved_aside", to=name)
        self.pools.compile.start()
        self.pools.bench.start()
        self.devices.start()
        self.jobs.handle(LOWER, self.programs.lower)
        self.jobs.handle(TUNE[1], self.budgets.held(self.tuner.reach_t1))
        self.jobs.handle(TUNE[2], self.budgets.held(self.tuner.reach_t2))
        self.jobs.handle(CROSS, self.budgets.held(self.crossing.cross))
        self.jobs.handle(REFINE, self.budgets.held(self.refining.refine))
        self.jobs.handle(PROBE, self.probing.probe)
        self.jobs.handle(COMPILE, self.compiling.compile)
        self.jobs.handle(RESTORE, self.restorer.restore)
        # Its own account, which is none: it is begun in the context of the job that wants it.
        self.jobs.handle(BANDWIDTH, self.budgets.held(self.bandwidths.measure))
        self.jobs.handle(REGRET, self.regrets.measure)
        await self.jobs.start()
        self._spawn("winners", self._recall_winners())
        self._spawn("usage", self._flush_usage())
        self._spawn("traffic", self._watch_traffic())
        self._spawn("gauges", self._set_gauges())
        self._spawn("idle-time", self._use_idle_time())
        self._spawn("lag", self._watch_lag())
        self._spawn("toolchain", self._check_toolchain())
        self._spawn("regret", self._sample_regret())

    async def stop(self) -> None:
        """Stops work, keeps what was gathered, ends the workers, closes the store."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.devices.stop()
        with suppress(StoreError):
            await self.jobs.stop()
        await asyncio.gather(self.pools.compile.stop(), self.pools.bench.stop())
        with suppress(StoreError):
            await self.usage.flush()
            await self.traffic.flush()
            await self.sightings.turn()
        await self.store.close()

    def problems(self) -> tuple[str, ...]:
        """What an operator should know."""
        found = [*self._problems.values()]
        found += [
            f"{device.name}: {device.problem}" for device in self.devices.states() if device.problem
        ]
        if self.store.is_read_only:
            found.append(f"{self.store.refusal}; results are served, none are made")
        if self.restorer.is_stuck:
            found.append(f"the store is full, no new Program is taken; {StoreFull.hint}")
        if self.store.damage:
            found.append(f"{self.store.damage}; {StoreDamaged.hint}")
        return tuple(found)

    def waiting_jobs(self) -> int:
        """Jobs that were taken up and wait for a device that is not to be used now."""
        return self.jobs.waiting()

    def _is_held_up(self, row: JobRow) -> bool:
        target = json.loads(row.payload).get("target", "")
        try:
            return self.devices.is_held_up(self.programs.target(target).device)
        except KernelUnknown:  # its work is on no device
            return False

    def target_id(self, device: Device) -> str:
        """The Target of a device with the toolchain here; empty until that is known."""
        toolchain = self._toolchains.get(Target(device, ()).kind)
        return Target(device, toolchain).id if toolchain else ""

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=f"core-{name}"))

    def _job_ended(self, row: JobRow) -> None:
        self.budgets.forget(row)
        self.interventions.job_ended(row)

    def _published(self, table: Table, hint: tuple[int, ...] | None) -> None:
        self.metrics.table_published(table, hint)
        self.winners.note(table, hint)

    async def _recall_winners(self) -> None:
        """What won before the daemon was started again, a Table at a time: others go first."""
        for key in self.tables.latest(RECALLED_TABLES):
            table = self.tables.newest(key)
            if table is not None:
                self.winners.recall(table)
            await asyncio.sleep(0)

    async def _use_idle_time(self) -> None:
        while True:
            pause_s = IDLE_S
            async with self._going_on("idle-time"):
                pause_s = await self.idle_time.turn()
            await asyncio.sleep(max(IDLE_S, pause_s))

    async def _check_toolchain(self) -> None:
        """Again and again: what compiles here is what a worker finds when it starts."""
        while True:
            for kind, words in (("cpu", "C compiler"), ("cuda", "Triton")):
                is_needed = kind == "cpu" or any(
                    name.startswith(kind) for name in self.pools.bench.devices
                )
                await self._look_for_toolchain(kind, words, is_needed=is_needed)
            await asyncio.sleep(TOOLCHAIN_RETRY_S)

    async def _look_for_toolchain(self, kind: str, words: str, *, is_needed: bool) -> None:
        try:
            self._toolchains[kind] = await self.workshop.toolchain(kind)
        except (DaemonError, WorkersError) as error:
            is_missing = isinstance(error, ToolchainMissing)
            self._toolchains.pop(kind, None)
            if is_needed and kind not in self._problems:
                what = words if is_missing else "compile worker"
                self._problems[kind] = f"no {what}: {kind} Kernels stay at T0 ({error})"
                logs.warning("toolchain_missing", kind=kind, problem=str(error))
        else:
            self._problems.pop(kind, None)

    async def _flush_usage(self) -> None:
        while True:
            await asyncio.sleep(USAGE_FLUSH_S)
            async with self._going_on("usage"):
                with suppress(StoreReadOnly):
                    await self.usage.flush()
                await self.restorer.make_room(self.config.max_store_bytes)
            async with self._going_on("trimming"):
                await self.trimmer.turn()
                if self.jobs.is_idle():
                    await self.trimmer.shrink()
            async with self._going_on("forgetting"):
                await self.forgetter.catch_up()

    async def _watch_traffic(self) -> None:
        while True:
            await asyncio.sleep(USAGE_FLUSH_S)
            async with self._going_on("traffic"):  # hints stay where they are, until the next time
                await self.follow_traffic()

    async def follow_traffic(self) -> None:
        """Writes what traffic showed; hot work goes first, and hints move to where it is."""
        await self.traffic.flush()
        self.jobs.reheat()
        await self.placer.turn()

    async def _set_gauges(self) -> None:
        while True:
            async with self._going_on("gauges"):
                for priority, count in self.jobs.depth().items():
                    self.metrics.queue_depth.labels(Priority(priority).name.lower()).set(count)
                for part, size in (await asyncio.to_thread(self.store.size_bytes)).items():
                    self.metrics.store_bytes.labels(part).set(size)
                with suppress(StoreDamaged):  # which has a metric of its own
                    self.metrics.quarantined.set(self.quarantine.count())
                self.metrics.watchers.set(self.tables.watchers)
                self.metrics.traffic_sizes.set(self.traffic.sizes())
                self.metrics.generation.set(self.tables.generation)
                self.metrics.table_age_seconds.set(time.monotonic() - self.tables.published_at)
            await asyncio.sleep(GAUGES_S)

    async def _sample_regret(self) -> None:
        while True:
            await asyncio.sleep(IDLE_LOOK_S)
            async with self._going_on("regret"):
                await self.idle_regret.look()

    async def _watch_lag(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(LAG_S)
            lag = time.monotonic() - before - LAG_S
            self.metrics.loop_lag_seconds.observe(max(0.0, lag))

    @asynccontextmanager
    async def _going_on(self, work: str) -> AsyncGenerator[None]:
        """What fails in one turn of a loop is logged, and tried at the next; alike, logged once."""
        try:
            yield
        except Exception as error:
            problem = repr(error)
            if self._failing.get(work) != problem:
                logs.warning("background_work_failed", work=work, problem=problem)
            self._failing[work] = problem
        else:
            self._failing.pop(work, None)
