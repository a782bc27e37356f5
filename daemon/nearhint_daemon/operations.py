"""Operations: what one caller asked for, as a number of jobs, until they have ended.

They live in memory: the jobs are what is durable. A caller whose operation is gone asks again, and
what is done is not done twice. Whoever goes away tells nobody, and jobs may wait for long, as under
the policy never: of more than `OPERATIONS_LIMIT` those go that nobody has asked about for longest,
and where all of them are followed, one more is refused.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from nearhint_daemon.errors import BudgetSpent, OperationUnknown, QueueFull
from nearhint_daemon.jobs import OPEN_STATES, PASSING_CODES, JobQueue
from nearhint_daemon.store.rows import JobRow
from nearhint_daemon.unbroken import to_its_end

OPERATIONS_LIMIT = 10_000


class OperationState(Enum):
    """Where an operation stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass
class Operation:
    """One caller's work; `code` and `message` are of the first part that failed.

    `skipped` parts have ended undone, as the budget was spent, and have not failed. `passing` ones
    have failed for what says nothing about the work. So many streams as `watched` follow it.
    """

    id: str
    created_at_s: float
    total: int
    done: int = 0
    failed: int = 0
    skipped: int = 0
    passing: int = 0
    watched: int = 0
    state: OperationState = OperationState.RUNNING
    code: str = ""
    message: str = ""
    open_keys: set[str] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def job_ended(self, row: JobRow) -> None:
        """Counts one part; the operation has failed only if all of it has."""
        self.open_keys.discard(row.key)
        self.done += 1
        if row.code == BudgetSpent.code:
            self.skipped += 1
        elif row.state != "done":
            self.failed += 1
            self.passing += row.code in PASSING_CODES
            if not self.code:
                self.code, self.message = row.code, row.message
        if self.done >= self.total and self.state is OperationState.RUNNING:
            is_failed = self.total > 0 and self.failed == self.total
            self.state = OperationState.FAILED if is_failed else OperationState.DONE
        self.announce()

    def announce(self) -> None:
        """Wakes whoever watches."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class Operations:
    """The operations of this daemon's life, in the order in which they were asked about last."""

    def __init__(self, jobs: JobQueue, *, clock: Callable[[], float]) -> None:
        self._jobs = jobs
        self._clock = clock
        self._all: dict[str, Operation] = {}

    def create(self, rows: Sequence[JobRow]) -> Operation:
        """An operation over these jobs; done at once where all have ended. Raises `QueueFull`."""
        self._make_room()
        operation = Operation(str(uuid.uuid4()), self._clock(), total=len(rows))
        if not rows:
            operation.state = OperationState.DONE
        for row in rows:
            # A job may have ended between its row's reading and now; its row is then stale.
            if row.state in OPEN_STATES and self._jobs.listen(row.key, operation.job_ended):
                operation.open_keys.add(row.key)
            else:
                operation.job_ended(row)
        self._all[operation.id] = operation
        return operation

    def get(self, operation_id: str) -> Operation:
        """The operation; raises `OperationUnknown`."""
        operation = self._all.pop(operation_id, None)
        if operation is None:
            raise OperationUnknown("no operation of that name", field="id")
        self._all[operation_id] = operation
        return operation

    async def watch(self, operation_id: str) -> AsyncGenerator[Operation]:
        """The operation now and at each change, until it has ended."""
        operation = self.get(operation_id)
        operation.watched += 1
        try:
            while True:
                # Taken before it is handed out: what changes meanwhile is one more answer.
                changed, state = operation.changed, operation.state
                yield operation
                if state is not OperationState.RUNNING:
                    return
                await changed.wait()
        finally:
            operation.watched -= 1

    async def cancel(self, operation_id: str) -> Operation:
        """Stops waiting; work that nobody else waits for is cancelled.

        Raises `StoreReadOnly` where some of it could not be: it may be cancelled again.
        """
        operation = self.get(operation_id)
        if operation.state in (OperationState.RUNNING, OperationState.CANCELLED):
            operation.state = OperationState.CANCELLED
            operation.announce()
            await to_its_end(self._let_go(operation))
        return operation

    async def _let_go(self, operation: Operation) -> None:
        """All at once: what is written together takes one commit."""
        keys = tuple(operation.open_keys)
        ends = await asyncio.gather(
            *(self._jobs.cancel(key, operation.job_ended) for key in keys), return_exceptions=True
        )
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    def running(self) -> int:
        """Operations that have not ended."""
        return sum(op.state is OperationState.RUNNING for op in self._all.values())

    def _make_room(self) -> None:
        if len(self._all) < OPERATIONS_LIMIT:
            return
        gone = next((each for each in self._all.values() if not each.watched), None)
        if gone is None:
            raise QueueFull(f"{len(self._all)} operations are followed")
        del self._all[gone.id]
        for key in gone.open_keys:
            self._jobs.leave(key, gone.job_ended)
