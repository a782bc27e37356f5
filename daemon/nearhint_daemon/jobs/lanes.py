"""Lanes: what waits, in the order in which it is taken up, so much of each lane at once.

Within a lane jobs come by (priority, stage, heat, arrival). Suspects have lanes of their own, in
which one runs at a time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from nearhint_daemon.store.rows import JobRow

Heat = Callable[[JobRow], int]

SUSPECTS = "suspects/"
"""What the name of a suspects' lane begins with."""
REHEAT_LIMIT = 2048


def _no_heat(row: JobRow) -> int:
    """All work is alike."""
    del row
    return 0


@dataclass
class _Lane:
    limit: int
    heap: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    active: int = 0


class Lanes:
    """Jobs that wait, by their keys; whether one still does is known to whoever takes it up."""

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        self._lanes: dict[str, _Lane] = {}
        self._arrival = itertools.count()
        self.heat: Heat = _no_heat

    def __iter__(self) -> Iterator[str]:
        return iter(self._lanes)

    def add(self, row: JobRow) -> None:
        """A job waits; again, if its priority has been raised."""
        limit = 1 if row.lane.startswith(SUSPECTS) else self.limit
        lane = self._lanes.setdefault(row.lane, _Lane(limit))
        heat = self.heat(row)
        heapq.heappush(lane.heap, (row.priority, row.stage, -heat, next(self._arrival), row.key))

    def take(self, name: str, is_waiting: Callable[[str, str, int], bool]) -> str | None:
        """Takes up the next job of a lane; None where none waits, or as many run as may.

        `is_waiting`: whether the job of a key waits in this lane, with this priority; it may have
        been taken up.
        """
        lane = self._lanes.get(name)
        while lane is not None and lane.heap and lane.active < lane.limit:
            priority, *_, key = heapq.heappop(lane.heap)
            if is_waiting(key, name, priority):
                lane.active += 1
                return key
        return None

    def leave(self, name: str) -> None:
        """A job that was taken up runs no longer."""
        self._lanes[name].active -= 1

    def running(self) -> int:
        """Jobs that have been taken up."""
        return sum(lane.active for lane in self._lanes.values())

    def reheat(self, rows: Mapping[str, JobRow]) -> None:
        """Orders what waits by what is hot now, in lanes of at most `REHEAT_LIMIT` jobs."""
        for lane in self._lanes.values():
            if len(lane.heap) > REHEAT_LIMIT:
                continue
            for place, (priority, stage, _, arrival, key) in enumerate(lane.heap):
                heat = self.heat(rows[key]) if key in rows else 0
                lane.heap[place] = (priority, stage, -heat, arrival, key)
            heapq.heapify(lane.heap)
