"""Quarantine: keys that failed repeatedly, each with the files that reproduce the failure.

A lost worker counts against the key it worked on; at the second loss the key is not tried again,
and where it was killed for its memory, which may have been another's, at a later one.
Their reproducers are folders under `<state>/quarantine`. What is wrong, or was refused, ended no
worker and is no such key: its reproducer is under `<state>/rejected`. Beside them, the Variants
that operators barred: by Schedule, whichever compiler builds it, and by binary, whichever Schedule
gives it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nearhint_daemon import logs
from nearhint_daemon.errors import TableChanged
from nearhint_daemon.operating.reproducers import Reproducers
from nearhint_daemon.store import Store
from nearhint_daemon.store.rows import QuarantinedVariantRow, QuarantineRow, VariantRow
from nearhint_daemon.workers.errors import WorkerKilled, WorkerLost, WorkerStartFailed

FAILURES = 2
KILLED_FAILURES = 10
"""Whoever asks does so ever less often: something else has had the time to give memory back."""
QUARANTINE = "quarantine"
REJECTED = "rejected"


class Quarantine:
    """Counts failures by key, and keeps what is given up."""

    def __init__(self, store: Store, root: Path, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._given_up = Reproducers(root)
        self._rejected = Reproducers(root.with_name(REJECTED))
        self._clock = clock
        self._failures: Counter[str] = Counter()

    def find(self, key: str) -> QuarantineRow | None:
        """Why `key` is not tried again, if it is not."""
        return self._store.read_now(lambda reading: reading.get(QuarantineRow, key))

    async def lost(self, key: str, *, kind: str, loss: WorkerLost) -> QuarantineRow | None:
        """Counts a lost worker against `key`; the row once it is given up.

        Raises the loss where it says nothing about the key, as the worker did not even start, and
        where it may not, as the worker was killed again.
        """
        if isinstance(loss, WorkerStartFailed):
            raise loss
        self._failures[key] += 1
        failures = self._failures[key]
        logs.warning("worker_lost", kind=kind, key=key, failures=failures, problem=str(loss))
        if failures < FAILURES:
            return None
        if isinstance(loss, WorkerKilled) and failures < KILLED_FAILURES:
            raise loss
        row = await self.give_up(key, kind=kind, loss=loss, failures=failures)
        self._failures.pop(key, None)
        return row

    async def give_up(
        self,
        key: str,
        *,
        kind: str,
        loss: WorkerLost,
        failures: int = FAILURES,
        kept: str = "",
    ) -> QuarantineRow:
        """Keeps that `key` is not tried again, and what reproduces why, unless that is `kept`."""
        folder = kept or self.keep(key, loss.reproducer)
        row = QuarantineRow(key, kind, str(loss)[:1000], folder, failures, self._clock())
        await self._store.write(lambda tx: tx.put(row))
        logs.warning("quarantined", kind=kind, key=key, reproducer=folder)
        return row

    def keep(self, key: str, files: Mapping[str, str]) -> str:
        """Writes the reproducer of a key that is about to be given up; its folder, as is told."""
        return self._given_up.keep(key, files)

    def keep_rejected(self, key: str, files: Mapping[str, str]) -> str:
        """Writes the reproducer of what is wrong or was refused; its folder, as is told.

        Whoever rejects it says so where it is kept. Nothing of it is in quarantine.
        """
        return self._rejected.keep(key, files)

    def folder_of(self, row: QuarantineRow) -> str:
        """The folder of what was given up, or that it is not kept any more."""
        return self._given_up.found(row.reproducer)

    def barred(self, namespace: str, kernel: str, target: str) -> tuple[QuarantinedVariantRow, ...]:
        """The Variants of a Kernel on a Target that operators barred."""
        return self._store.read_now(
            lambda reading: tuple(
                reading.where(
                    QuarantinedVariantRow, namespace=namespace, kernel=kernel, target=target
                )
            )
        )

    def check(self, rows: Sequence[VariantRow]) -> None:
        """Raises `TableChanged` where one of these must not be used, which waited to be."""
        for row in rows:
            if self.bar_on(row) is not None:
                raise TableChanged("a Variant was quarantined while it waited for a device")

    def bar_on(self, row: VariantRow) -> QuarantinedVariantRow | None:
        """Why a Variant, built or not yet, must not be used, if an operator said so."""
        key = (row.namespace, row.kernel, row.target)
        return self.bar(*key, schedule=row.schedule, artifact=row.artifact)

    def bar(
        self, namespace: str, kernel: str, target: str, *, schedule: str, artifact: str
    ) -> QuarantinedVariantRow | None:
        """Why a Schedule, or the binary that came of it, must not be used."""
        return next(
            (
                bar
                for bar in self.barred(namespace, kernel, target)
                if bar.schedule == schedule or bar.artifact == artifact
            ),
            None,
        )

    def is_rejected(
        self, namespace: str, kernel: str, target: str, *, schedule: str, variant: str
    ) -> bool:
        """Whether a Variant failed since it was served, as one that ended its worker did."""
        rows = self._store.read_now(
            lambda reading: list(
                reading.where(
                    VariantRow,
                    namespace=namespace,
                    kernel=kernel,
                    target=target,
                    schedule=schedule,
                    state="rejected",
                )
            )
        )
        return any(row.id == variant for row in rows)

    def count(self) -> int:
        """How many keys and Variants are quarantined."""
        return self._store.read_now(
            lambda reading: reading.count(QuarantineRow) + reading.count(QuarantinedVariantRow)
        )
