"""Where the time of a run goes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager


class Phases:
    """Seconds by phase. A phase within another is taken off it, so that the sum is the run's."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._open: list[str] = []
        self._since_s = now()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Generator[None, None, None]:
        """What is done within counts for a phase."""
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def seconds(self) -> Mapping[str, float]:
        """So far, in the order of first use; what is in no phase is "other"."""
        self._turn()
        return {name: round(spent_s, 2) for name, spent_s in self._seconds.items()}

    def line(self) -> str:
        """For people."""
        return ", ".join(f"{name} {spent_s:.1f} s" for name, spent_s in self.seconds().items())

    def _turn(self) -> None:
        now_s = self._now()
        name = self._open[-1] if self._open else "other"
        self._seconds[name] = self._seconds.get(name, 0.0) + now_s - self._since_s
        self._since_s = now_s
