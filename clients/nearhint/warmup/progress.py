"""Progress on stderr with the time that is left: a bar on a terminal, else a line a change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from nearhint.cli_output import stderr, talk


@dataclass(slots=True)
class Eta:
    """How long the rest takes at the pace so far; what was done at the first look counts for none.

    >>> now = [0.0]
    >>> eta = Eta(lambda: now[0])
    >>> eta.left_s(2, 10)
    >>> now[0] = 6.0
    >>> eta.left_s(4, 10)
    18.0
    """

    clock: Callable[[], float]
    _start: tuple[float, int] | None = field(default=None, init=False)

    def left_s(self, done: int, total: int) -> float | None:
        """Seconds until `total`, after `done`; None while nothing tells."""
        now = self.clock()
        if self._start is None or done < self._start[1]:
            self._start = (now, done)
        started_s, before = self._start
        if done >= total:
            return 0.0
        if done == before:
            return None
        return (now - started_s) / (done - before) * (total - done)


def duration(seconds: float) -> str:
    """Seconds for people, in at most two units.

    >>> [duration(s) for s in (0.2, 59.6, 61, 3600, 90061)]
    ['0s', '1m 00s', '1m 01s', '1h 00m', '25h 01m']
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    return f"{minutes // 60}h {minutes % 60:02d}m"


def line(title: str, done: int, total: int, failed: int, left_s: float | None) -> str:
    """One line: `tuned 3 of 40, 1 failed, 2m 05s left`."""
    parts = [f"{title} {done} of {total}"]
    if failed:
        parts.append(f"{failed} failed")
    if done < total and left_s is not None:
        parts.append(f"{duration(left_s)} left")
    return ", ".join(parts)


@contextmanager
def showing(
    title: str, *, clock: Callable[[], float]
) -> Generator[Callable[[int, int, int], None]]:
    """Shows progress on stderr; call what it gives with (done, total, failed)."""
    eta = Eta(clock)
    if not sys.stderr.isatty():
        seen: list[tuple[int, int, int]] = []

        def say(done: int, total: int, failed: int) -> None:
            left_s = eta.left_s(done, total)
            if seen[-1:] != [(done, total, failed)]:
                seen.append((done, total, failed))
                talk(line(title, done, total, failed, left_s))

        yield say
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=stderr(), transient=True) as bar:
        task = bar.add_task(title, total=None, note="")

        def advance(done: int, total: int, failed: int) -> None:
            note = line("", done, total, failed, eta.left_s(done, total)).partition(", ")[2]
            bar.update(task, completed=done, total=total, note=note)

        yield advance
