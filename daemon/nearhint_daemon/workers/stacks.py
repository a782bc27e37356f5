"""Where a worker was: the innermost calls in what faulthandler wrote into its log."""

from __future__ import annotations

import re
from pathlib import PurePath

_CURRENT = "Current thread "
_FRAME = re.compile(r'  File "([^"]+)", line (\d+) in (\S+)')
CALLS = 4


def innermost(log: str) -> str:
    """The thread that got the signal, its last calls first; empty where the log holds no stack.

    >>> innermost('Current thread 0x1 (most recent call first):\\n  File "/a/b.py", line 3 in f\\n')
    'f (b.py:3)'
    >>> innermost("Killed")
    ''
    """
    _, found, stack = log.rpartition(_CURRENT)
    if not found:
        return ""
    frames = _FRAME.findall(stack)[:CALLS]
    return ", ".join(f"{name} ({PurePath(path).name}:{line})" for path, line, name in frames)
