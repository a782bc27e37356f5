"""What is moved aside because its bytes are wrong: for people to look at, the newest few.

Its name ends with the time at which it was moved. A disk that fails damages again and again, and
nothing of this counts as the store's size.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def name_now(stem: str) -> str:
    """The name of what is moved aside now."""
    return f"{stem}{time.time_ns()}"


def drop_oldest(found: Iterable[Path], *, stem_end: str, made: Path, keep: int) -> None:
    """Removes all of these but the newest `keep`; `made`, moved just now, is one of those.

    It is the newest also where the clock was set back. What has no time in its name is not ours.
    """
    times: dict[Path, int] = {}
    for path in found:
        moved_at = path.name.rpartition(stem_end)[2]
        if moved_at.isdecimal() and path != made:
            times[path] = int(moved_at)
    for path in sorted(times, key=lambda each: times[each], reverse=True)[keep - 1 :]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
