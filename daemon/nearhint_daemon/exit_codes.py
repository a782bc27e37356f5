"""Exit codes of `nearhintd`; the same numbers as `nearhint`'s."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's exit status says."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    INTEGRITY = 5
    REFUSED = 6
    PARTIAL = 7
    INTERRUPTED = 130
    UNREAD = 141
