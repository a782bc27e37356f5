"""Why a tool made nothing of generated source: the machine had no room, or the source is at fault.

Read from what the tool said: in English, as a worker's locale is.
"""

from __future__ import annotations

import re

from nearhint_daemon.workers.errors import CompileFailed, CompilerKilled, DiskFull, JobFailed
from nearhint_daemon.workers.scratch import is_full

# gcc of its passes, and of its linker (gcc.cc, collect2.cc); ours, of gcc; Triton, of ptxas.
_KILLED = re.compile(
    r"Killed signal terminated program"
    r"|terminated with signal 9 \[Killed\]"
    r"|^(cc ended with status|.*`ptxas` failed with error code) -9$",
    re.MULTILINE,
)


def refusal(said: str) -> JobFailed:
    """The error of a tool that failed.

    SIGKILL is nobody's but the system's, for its memory: what exceeds a worker's limits ends
    otherwise.

    >>> refusal("cc: fatal error: Killed signal terminated program cc1").code
    'COMPILER_KILLED'
    """
    if is_full(said):
        return DiskFull(said)
    return CompilerKilled(said) if _KILLED.search(said) else CompileFailed(said)
