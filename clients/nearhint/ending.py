"""A command's end by a signal: what it began ends as it does when somebody presses Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""What `timeout`, a scheduler and a terminal that closes send."""


@contextmanager
def interrupted_when_told_to_end() -> Generator[None]:
    """Makes a `KeyboardInterrupt` of `ENDING`, which would end the process with nothing put right.

    Only in the main thread, which alone may say what signals do; one that is ignored stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = {number: signal.getsignal(number) for number in ENDING}
    before = {number: then for number, then in found.items() if then != signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, _interrupt)
        yield
    finally:
        for number, then in before.items():
            signal.signal(number, then)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
