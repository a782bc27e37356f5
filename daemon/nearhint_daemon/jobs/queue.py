"""The job queue: all jobs that are not ended, made durable, run and kept alive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from nearhint_daemon import logs
from nearhint_daemon.errors import (
    DaemonError,
    JobCancelled,
    QueueFull,
    StoreError,
    TableChanged,
)
from nearhint_daemon.jobs import hands
from nearhint_daemon.jobs.hands import Hands, Worked
from nearhint_daemon.jobs.lanes import SUSPECTS, Heat, Lanes
from nearhint_daemon.jobs.open_job import OpenJob, asked_for
from nearhint_daemon.jobs.passing import PASSING_CODES, TOLD_CODES
from nearhint_daemon.jobs.spec import Handler, JobSpec, Listener, Observer, Priority
from nearhint_daemon.store import Store, Writing, queries
from nearhint_daemon.store.rows import JobRow
from nearhint_daemon.unbroken import on_its_own
from nearhint_daemon.workers.errors import WorkerLost

LEASE_S = 300.0
ATTEMPTS = 2
"""So often may a daemon try a job whose worker is lost; ends of daemons are counted apart."""
RESTARTS = 5
"""So often may the daemon end while a worker has a job before it is suspected."""
SUSPECTED_RESTARTS = 10
"""So often may it end while a suspected job runs alone in its lane, before that is given up.

A warm-up outlives ten kills in a row, whichever job they find at work: what they interrupt is no
reason to give one up.
"""
HEAL_S = 1.0
PUT_OFF_S = 3.0
RETRY_S = 30.0
WAITING_S = 5.0
"""A job that no worker has had for so long waits, and is not why the daemon ends."""


class JobQueue:
    """All jobs that are not ended, and the way back to those that are."""

    def __init__(
        self,
        store: Store,
        *,
        owner: str,
        clock: Callable[[], float],
        observer: Observer,
        limit: int,
        lane_limit: int = 16,
    ) -> None:
        self._store = store
        self._owner = owner
        self._clock = clock
        self._observer = observer
        self._limit = limit
        self._handlers: dict[str, Handler] = {}
        self._open: dict[str, OpenJob] = {}
        self._blocked: dict[str, list[str]] = {}
        self._lanes = Lanes(limit=lane_limit)
        self._told: set[tuple[str, str]] = set()
        self._is_running = False
        self._keeper: asyncio.Task[None] | None = None
        self.on_left: Listener = lambda row: None
        """Hears of each job that an earlier daemon left, before anybody can ask for it."""
        self.on_end: Listener = lambda row: None
        self.is_held_up: Callable[[JobRow], bool] = lambda row: False
        """Whether what a job needs is not to be used now, as a device by its policy."""

    def order_by(self, heat: Heat) -> None:
        """Says how hot a job is."""
        self._lanes.heat = heat

    def handle(self, kind: str, handler: Handler) -> None:
        """Says who does jobs of `kind`."""
        self._handlers[kind] = handler

    async def start(self) -> None:
        """Takes up what an earlier daemon left, and starts."""
        left = await self._store.read(lambda reading: tuple(queries.open_jobs(reading)))
        # All are there before any is placed: one may need what comes after it.
        for job in [self._take_over(row) for row in left]:
            if not job.ended.is_set():
                await self._place(job)
        self._is_running = True
        self._keeper = asyncio.create_task(self._keep(), name="jobs-keeper")
        for lane in self._lanes:
            self._pump(lane)

    async def stop(self) -> None:
        """Stops running jobs; they stay durable and are taken up by the next start."""
        self._is_running = False
        taken_up = [job for job in self._open.values() if job.task is not None]
        tasks = [job.task for job in taken_up if job.task is not None]
        if self._keeper is not None:
            tasks.append(self._keeper)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # What was ending before, or has ended meanwhile, keeps its outcome.
        running = [job for job in taken_up if job.row.state == "running"]

        def give_back(tx: Writing) -> None:
            for job in running:
                tx.put(replace(job.uncounted(), lease_owner=""))

        await self._store.write(give_back)

    async def ensure(self, specs: Sequence[JobSpec]) -> tuple[JobRow, ...]:
        """The jobs of these keys, made durable where there are none yet.

        A job that was cancelled, or failed for a reason that may have passed, is queued again; one
        that is done or has failed for good is left as it is. Raises `QueueFull`, `StoreReadOnly`.
        """
        specs = tuple({spec.key: spec for spec in specs}.values())
        await self._none_is_ending(specs)
        # Meanwhile some may end, and be forgotten with what they brought.
        found = {spec.key: self._open[spec.key] for spec in specs if spec.key in self._open}
        unknown = [spec.key for spec in specs if spec.key not in found]
        ended = self._store.read_now(lambda reading: queries.jobs_by_key(reading, unknown))
        fresh = [
            spec
            for spec in specs
            if spec.key not in found
            and (spec.key not in ended or spec.is_repeatable or self._may_retry(ended[spec.key]))
        ]
        self._check_room(fresh)
        with asked_for(tuple(found.values())):
            if fresh:
                found |= await self._create(fresh)
            for job in found.values():
                await asyncio.shield(job.stored)
        raised = [each for spec in specs if (each := self._raise_priority(spec)) is not None]
        for spec in specs:
            if spec.is_own and spec.key in self._open:
                self._open[spec.key].is_own = True
        if raised:
            with asked_for(tuple(found.values())):
                await self._store_priorities(raised)
        return tuple(
            found[spec.key].row if spec.key in found else ended[spec.key] for spec in specs
        )

    async def _none_is_ending(self, specs: Sequence[JobSpec]) -> None:
        """Waits until the outcome of none is decided and not written: to join it is too late.

        While one ends another may begin to.
        """
        is_any = True
        while is_any:
            is_any = False
            for spec in specs:
                job = self._open.get(spec.key)
                if job is not None and job.is_ending:
                    is_any = True
                    await job.ended.wait()

    def listen(self, key: str, listener: Listener) -> Worked | None:
        """Calls `listener` once when the job has ended; None: it has ended or is unknown."""
        job = self._open.get(key)
        if job is None:
            return None
        job.listeners.append(listener)
        return job.worked

    def leave(self, key: str, listener: Listener) -> None:
        """`listener` no longer waits; that is no reason to cancel a job."""
        job = self._open.get(key)
        if job is not None and listener in job.listeners:
            job.listeners.remove(listener)

    async def ended_under(self, prefixes: tuple[str, ...], *, priority: int) -> None:
        """Waits until no job is open whose key starts so and that is at least so urgent.

        Keeps none of them alive. A handler that calls this must be in another lane than they are.
        """
        while True:
            found = (
                job
                for key, job in self._open.items()
                if key.startswith(prefixes) and job.row.priority <= priority
            )
            job = next(found, None)
            if job is None:
                return
            await job.ended.wait()

    async def cancel(self, key: str, listener: Listener) -> None:
        """`listener` no longer waits; a job that nobody waits for or wants is cancelled.

        Raises `StoreReadOnly` where that could not be kept; the listener then waits still.
        """
        job = self._open.get(key)
        if job is None or listener not in job.listeners or job.is_ending:
            return  # its end is told, unless it cannot be written: then this may be asked again
        job.listeners.remove(listener)
        if job.listeners or job.asking or job.is_own:
            return
        if job.task is not None:
            job.is_ending = True
            if job.hands is not None:  # else it takes its first step, and sees that
                job.task.cancel()
            return
        try:
            await self._end(job, JobCancelled("nobody waits for it any more"))
        except StoreError:
            job.listeners.append(listener)
            raise

    def reheat(self) -> None:
        """Orders what waits by what is hot now."""
        self._lanes.reheat({key: job.row for key, job in self._open.items()})

    def reached(self, keys: Sequence[str]) -> frozenset[str]:
        """Those of these keys whose jobs are open or done."""
        ended = self._store.read_now(lambda reading: queries.jobs_by_key(reading, keys))
        return frozenset(
            key
            for key in keys
            if key in self._open or (key in ended and ended[key].state == "done")
        )

    def may_come(self, prefixes: Iterable[str]) -> tuple[JobRow, ...]:
        """Jobs whose keys start so that have failed for what may pass: they may be done yet."""
        rows = self._store.read_now(lambda reading: queries.ended_jobs_under(reading, prefixes))
        return tuple(row for row in rows if row.state == "failed" and row.code in PASSING_CODES)

    def open_under(self, prefixes: Iterable[str]) -> tuple[JobRow, ...]:
        """Jobs whose keys start so that are open; one is "running" once it was taken up."""
        heads = tuple(prefixes)
        return tuple(job.row for key, job in self._open.items() if key.startswith(heads))

    def open_among(self, keys: Iterable[str]) -> frozenset[str]:
        """Those of these keys whose jobs are open."""
        return frozenset(key for key in keys if key in self._open)

    def depth(self) -> dict[int, int]:
        """Queued jobs by priority."""
        counts = dict.fromkeys(Priority, 0)
        for job in self._open.values():
            if job.row.state == "queued":
                counts[Priority(job.row.priority)] += 1
        return {int(priority): count for priority, count in counts.items()}

    def running(self) -> int:
        """Jobs that have been taken up: they are worked on, or wait in their handlers."""
        return self._lanes.running()

    def waiting(self) -> int:
        """Those of them that no worker has, or will have next, and that something holds up."""
        return sum(
            job.task is not None and job.hands is not None and self._waits(job)
            for job in self._open.values()
        )

    def is_idle(self) -> bool:
        """Whether nothing is worked on, and nothing waits but for what holds it up."""
        return all(map(self._waits, self._open.values()))

    def _waits(self, job: OpenJob) -> bool:
        is_at_work = job.hands is not None and (job.hands.held or job.hands.next_up)
        return not is_at_work and self.is_held_up(job.row)

    def _check_room(self, fresh: Sequence[JobSpec]) -> None:
        if len(self._open) + len(fresh) > self._limit:
            raise QueueFull(f"{len(self._open)} jobs are waiting")
        client = fresh[0].client if fresh else ""
        if not client:
            return
        mine = sum(job.client == client for job in self._open.values())
        if mine + len(fresh) > self._limit // 2:
            raise QueueFull(f"{mine} jobs of this client are waiting", field="client_id")

    def _may_retry(self, row: JobRow) -> bool:
        if row.state != "failed":
            return row.state == "cancelled"
        # A clock that was set back says nothing about how long ago that was.
        is_fresh = 0.0 <= self._clock() - row.finished_at_s < RETRY_S
        return row.code in PASSING_CODES and not is_fresh

    def _take_over(self, row: JobRow) -> OpenJob:
        # The daemon may have ended for any of the jobs that were running, or for none of them.
        # Whoever was there too often runs one at a time, apart from the others.
        is_suspect = row.attempts >= RESTARTS
        lane = row.lane if row.lane.startswith(SUSPECTS) or not is_suspect else SUSPECTS + row.lane
        job = self._admit(replace(row, state="queued", lease_owner="", lane=lane))
        job.stored.set_result(None)
        self.on_left(job.row)
        return job

    async def _place(self, job: OpenJob) -> None:
        """One that was left is taken up in its turn, or given up."""
        if job.row.attempts >= RESTARTS + SUSPECTED_RESTARTS:
            with suppress(StoreError):  # the disk is full: it has its turn, and the next start
                await self._end(job, DaemonError("the daemon ended during it, again and again"))
            return
        self._enqueue(job)

    async def _create(self, specs: Sequence[JobSpec]) -> dict[str, OpenJob]:
        now = self._clock()
        made = [
            self._admit(
                JobRow(
                    key=spec.key,
                    kind=spec.kind,
                    namespace=spec.namespace,
                    lane=spec.lane,
                    payload=json.dumps(spec.payload, sort_keys=True),
                    requires=spec.requires,
                    priority=spec.priority,
                    stage=spec.stage,
                    state="queued",
                    lease_owner="",
                    lease_expires_s=0.0,
                    attempts=0,
                    code="",
                    message="",
                    created_at_s=now,
                    finished_at_s=0.0,
                ),
                client=spec.client,
            )
            for spec in specs
        ]
        # The commit goes on if whoever asked first goes away: others wait for the same rows.
        await asyncio.shield(on_its_own(self._store_new(made)))
        return {job.row.key: job for job in made}

    async def _store_new(self, made: Sequence[OpenJob]) -> None:
        rows = [job.row for job in made]
        try:
            await self._store.write(lambda tx: tx.put_all(rows))
        except Exception as error:
            for job in made:
                del self._open[job.row.key]
                job.ended.set()
                job.stored.set_exception(error)
                job.stored.exception()  # whoever waits gets it; nobody may be waiting
                self._let_go_on(job)
            raise
        for job in made:
            job.stored.set_result(None)
            self._enqueue(job)
        for lane in {job.row.lane for job in made}:
            self._pump(lane)

    def _admit(self, row: JobRow, *, client: str = "") -> OpenJob:
        job = OpenJob(row, asyncio.get_running_loop().create_future(), client)
        self._open[row.key] = job
        return job

    def _enqueue(self, job: OpenJob) -> None:
        row = job.row
        if row.requires in self._open:
            self._blocked.setdefault(row.requires, []).append(row.key)
            return
        self._lanes.add(row)

    def _raise_priority(self, spec: JobSpec) -> OpenJob | None:
        """The job, if it is more urgent now."""
        job = self._open.get(spec.key)
        if job is None or spec.priority >= job.row.priority:
            return None
        job.row = replace(job.row, priority=spec.priority)
        # Where it waits by its former priority it is not found any more, whatever it requires now.
        if job.row.state == "queued":
            self._enqueue(job)
        return job

    async def _store_priorities(self, jobs: Sequence[OpenJob]) -> None:
        """For the next start. Their rows may be written otherwise meanwhile, and stay so."""
        priorities = {job.row.key: job.row.priority for job in jobs}
        with suppress(StoreError):  # a full disk keeps nobody from being more urgent now
            await self._store.write(lambda tx: queries.raise_priorities(tx, priorities))

    def _pump(self, name: str) -> None:
        if not self._is_running or self._store.is_read_only:
            return
        while (key := self._lanes.take(name, self._is_waiting)) is not None:
            job = self._open[key]
            job.row = replace(
                job.row,
                state="running",
                lease_owner=self._owner,
                lease_expires_s=self._clock() + LEASE_S,
            )
            job.counted = job.hands = None
            job.task = asyncio.create_task(self._run(job), name=f"job {key[:40]}")

    def _is_waiting(self, key: str, lane: str, priority: int) -> bool:
        # An entry may be from before the priority was raised, or of a job that was taken up since,
        # as one of its key may wait in another lane now, or whose end is being written: if that
        # fails it is put here again.
        job = self._open.get(key)
        if job is None or job.is_ending:
            return False
        row = job.row
        return (row.state, row.lane, row.priority) == ("queued", lane, priority)

    async def _run(self, job: OpenJob) -> None:
        waited_s = max(0.0, self._clock() - job.row.created_at_s)
        self._observer.job_started(job.row, waited_s)
        failure: BaseException | None = None
        try:
            row = job.row
            if job.is_ending or (job.is_unwanted and not job.listeners):
                raise JobCancelled("nobody waits for it any more")
            with hands.of_job(self._hands_of(job)):
                await self._handlers[row.kind](row, json.loads(row.payload))
        except asyncio.CancelledError:
            if not self._is_running:
                raise
            failure = JobCancelled("nobody waits for it any more")
        except Exception as error:
            failure = error
        finally:
            self._lanes.leave(job.row.lane)
            job.task = None
        await self._settle(job, failure)
        self._pump(job.row.lane)

    def _hands_of(self, job: OpenJob) -> Hands:
        job.hands = Hands(partial(self._count, job), self._clock, job.worked)
        return job.hands

    async def _count(self, job: OpenJob) -> None:
        """A worker is about to have it: from here on the daemon may end because of it."""
        if job.row.state != "running" or job.is_ending:
            return  # what a job began for others, too, may go on without it
        if job.counted is None:
            row = job.row = replace(job.row, attempts=job.row.attempts + 1)
            job.counted = on_its_own(self._store.write(lambda tx: tx.put_all([row])))
        await asyncio.shield(job.counted)

    async def _settle(self, job: OpenJob, failure: BaseException | None) -> None:
        row = job.row
        if isinstance(failure, StoreError):
            self._put_off(job)
            return
        job.is_unwanted = isinstance(failure, JobCancelled)
        is_transient = isinstance(failure, WorkerLost | TableChanged) or not isinstance(
            failure, DaemonError | None
        )
        job.losses += is_transient
        if is_transient and job.losses < ATTEMPTS:
            logs.warning("job_retried", kind=row.kind, key=row.key, problem=repr(failure))
            job.go_on()
            job.row = replace(row, state="queued", lease_owner="")
            self._enqueue(job)
            return
        try:
            await self._end(job, failure)
        except StoreError:
            self._put_off(job)

    def _put_off(self, job: OpenJob) -> None:
        """The store took nothing: the job is tried again after a while, at no attempt's cost."""
        job.go_on()
        job.row = job.uncounted()
        asyncio.get_running_loop().call_later(PUT_OFF_S, self._take_up, job)

    def _take_up(self, job: OpenJob) -> None:
        if self._is_running and self._open.get(job.row.key) is job:
            self._enqueue(job)
            self._pump(job.row.lane)

    async def _end(self, job: OpenJob, failure: BaseException | None) -> None:
        """Keeps the outcome, then tells whoever waits, then lets go what was blocked.

        What waits for a job that is not done ends with it, in the same transaction.
        """
        state, code, message = "done", "", ""
        if failure is not None:
            state = "cancelled" if isinstance(failure, JobCancelled) else "failed"
            code = getattr(failure, "code", "INTERNAL")
            message = str(failure) if isinstance(failure, DaemonError | WorkerLost) else "see logs"
            if state == "failed":
                self._tell_why(job.row, code, failure)
        ending = [job] if failure is None else self._with_what_needs(job)
        ended = [
            replace(
                each.row,
                state=state,
                code=code,
                message=message[:1000],
                lease_owner="",
                finished_at_s=self._clock(),
            )
            for each in ending
        ]
        for each in ending:
            each.is_ending = True
        try:
            await self._store.write(lambda tx: tx.put_all(ended))
        except StoreError:
            for each in ending:
                self._go_on(each)
            raise
        for each, row in zip(ending, ended, strict=True):
            self._tell(each, row)

    def _tell_why(self, row: JobRow, code: str, failure: BaseException) -> None:
        if code in TOLD_CODES or (row.kind, code) not in self._told:
            self._told.add((row.kind, code))
            logs.warning("job_failed", kind=row.kind, key=row.key, code=code, problem=repr(failure))

    def _with_what_needs(self, job: OpenJob) -> list[OpenJob]:
        """A job, and all that waits for it to be done."""
        found = [job]
        for needed in found:
            keys = dict.fromkeys(self._blocked.get(needed.row.key, ()))
            waiting = (self._open[key] for key in keys if key in self._open)
            found += (each for each in waiting if each.waits_for(needed))
        return found

    def _go_on(self, job: OpenJob) -> None:
        """What was to end did not; what it waited for may have ended meanwhile."""
        job.go_on()
        if job.row.state == "queued":
            self._enqueue(job)
            self._pump(job.row.lane)

    def _tell(self, job: OpenJob, row: JobRow) -> None:
        """Whoever waits for a job that has ended goes on."""
        job.row = row
        self._open.pop(row.key, None)
        job.ended.set()
        self._observer.job_ended(row)
        self.on_end(row)
        for listener in job.listeners:
            listener(row)
        self._let_go_on(job)

    def _let_go_on(self, job: OpenJob) -> None:
        """A job is open no more: what was blocked by it waits for its turn."""
        for key in self._blocked.pop(job.row.key, ()):
            waiting = self._open.get(key)
            if waiting is not None and waiting.waits_for(job):
                self._enqueue(waiting)
                self._pump(waiting.row.lane)

    async def _keep(self) -> None:
        """Renews the leases of running jobs, and tries whether a full disk takes writes again."""
        renewed = self._clock()
        while True:
            await asyncio.sleep(HEAL_S)
            if self._store.is_read_only and not await self._store.heal():
                continue
            for lane in self._lanes:  # whoever wrote first after a full disk took none up
                self._pump(lane)
            await self._uncount_waiting()
            if self._clock() - renewed < LEASE_S / 3:
                continue
            renewed = self._clock()
            await self._renew(renewed + LEASE_S)

    async def _uncount_waiting(self) -> None:
        """Jobs whose workers are done, and that wait since, have their attempts back."""
        latest_s = self._clock() - WAITING_S
        rows: list[JobRow] = []
        for job in self._open.values():
            own, counted = job.hands, job.counted
            if own is None or counted is None or not counted.done() or job.is_ending:
                continue
            if job.row.state == "running" and not own.held and own.empty_since_s <= latest_s:
                job.row = replace(job.row, attempts=job.row.attempts - 1)
                job.counted = None
                rows.append(job.row)
        if rows:
            with suppress(StoreError):  # a count too many is harmless
                await self._store.write(lambda tx: tx.put_all(rows))

    async def _renew(self, expires_s: float) -> None:
        rows: list[JobRow] = []
        for job in self._open.values():
            if job.row.state == "running" and not job.is_ending:
                job.row = replace(job.row, lease_expires_s=expires_s)
                rows.append(job.row)
        try:
            await self._store.write(lambda tx: tx.put_all(rows))
        except StoreError:
            logs.warning("leases_not_renewed", jobs=len(rows))
