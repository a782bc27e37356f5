"""Search reports: what was tried at each hint, what was left out, and why. To be read by people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nearhint_daemon.store import Store, queries
from nearhint_daemon.store.rows import TriedRow, VariantRow
from nearhint_daemon.tuning.tasks import Task
from nearhint_proto.v1 import worker_pb2 as pb

TRIED_ROWS = 100_000
REASON_LIMIT = 300
STAGES = {1: "search", 2: "search", 3: "cross", 4: "refine"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a Schedule, and why if that does not say it."""

    name: str
    reason: str = ""


class SearchReports:
    """Keeps them, bounded."""

    def __init__(self, store: Store, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock

    async def keep(self, task: Task, outcomes: Mapping[str, Outcome]) -> None:
        """Keeps what became of Schedules at a task's hint, and why there."""
        if not outcomes:
            return
        namespace, kernel, target = task.table_key
        rows = [
            TriedRow(
                namespace=namespace,
                kernel=kernel,
                target=target,
                dims=" ".join(map(str, task.dims)),
                schedule=schedule,
                stage=STAGES[task.stage],
                outcome=outcome.name,
                reason="; ".join(filter(None, (task.why, outcome.reason)))[:REASON_LIMIT],
                at_s=self._clock(),
            )
            for schedule, outcome in outcomes.items()
        ]
        await self._store.write(lambda tx: queries.keep_tried(tx, rows, limit=TRIED_ROWS))


TILES = "cuda.tiled"
"""What stands for the Schedules that a Kernel has not, where its better tilings were refused."""


def of_pruned(listed: pb.Schedules) -> dict[str, Outcome]:
    """Of what was not worth compiling, and of tiles where there are none."""
    found = {each.schedule: Outcome("pruned", each.reason) for each in listed.pruned}
    if listed.untiled:
        found[TILES] = Outcome("pruned", f"the default tiling: {listed.untiled}")
    return found


def of_built(rows: Sequence[VariantRow], kept: Sequence[VariantRow]) -> dict[str, Outcome]:
    """Of what was built and is not timed: wrong, or the binary of another."""
    by_binary = {row.artifact: row.schedule for row in kept}
    found: dict[str, Outcome] = {}
    for row in rows:
        if row.state != "verified":
            is_rejected = row.state == "rejected"
            found[row.schedule] = Outcome(
                "rejected" if is_rejected else "not_measured", row.problem
            )
        elif by_binary[row.artifact] != row.schedule:
            found[row.schedule] = Outcome("identical", f"the binary of {by_binary[row.artifact]}")
    return found


def of_timed(measured: pb.Measured, rows: Sequence[VariantRow]) -> dict[str, Outcome]:
    """Of what was timed, or could not be."""
    timed = {each.id: each for each in measured.candidates}
    medians = [timed[row.id].timing.median_ns for row in rows if _has_timing(timed.get(row.id))]
    found: dict[str, Outcome] = {}
    for row in rows:
        answer = timed.get(row.id)
        if answer is None or not _has_timing(answer):
            problem = "" if answer is None else answer.problem
            found[row.schedule] = Outcome("not_measured", problem)
            continue
        timing = answer.timing
        reason = f"{timing.median_ns / 1000:.2f} \u00b5s, {timing.samples} samples"
        if answer.is_eliminated:
            reason += f", {timing.median_ns / min(medians):.2f} times the best"
        found[row.schedule] = Outcome("eliminated" if answer.is_eliminated else "measured", reason)
    return found


def _has_timing(answer: pb.MeasuredCandidate | None) -> bool:
    return answer is not None and answer.HasField("timing") and not answer.problem
