"""The demo's phases by name: told on stderr as they start, and timed."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

from nearhint.demo.timing import Clock

STAGES = {
    "start": "starting a daemon and the model, and timing a capture alone in a new process",
    "first_call": "the first call",
    "tuning": "calls of every size, while the daemon compiles and measures",
    "timing": "timing every size against eager",
    "second_process": "a second process",
    "restart": "kill -9 of the daemon, and a restart",
    "explain": "asking for the reasons",
}


class Stages:
    """A bar for each phase on a terminal, which is gone when it ends; elsewhere a line."""

    def __init__(self, console: Console, *, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Generator[Progress]:
        """The phase of that name, in `STAGES`; for bars of its own."""
        start_s = self._clock()
        if not self._console.is_terminal:
            self.say(f"demo: {STAGES[name]}")
        with Progress(
            console=self._console, transient=True, disable=not self._console.is_terminal
        ) as progress:
            progress.add_task(STAGES[name], total=None)
            yield progress
        self.seconds[name] = self._clock() - start_s

    def say(self, line: str) -> None:
        """A line, as it is."""
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)
