"""A worker's private folder: made, held while it or its daemon lives, and what is left of it then.

Whoever is killed takes nothing away. So the log in a folder is locked by those that have it open,
the daemon and its worker, and a daemon that starts removes the folders whose log nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path

KINDS = ("bench", "compile")
LEFT_ALONE_S = 60.0
"""How old a log is at least that nobody holds: one that was just made may not be held yet."""
USUAL_ROOTS = ("/tmp", "/var/tmp")
"""Where temporary files go if no variable says so; Python tells only the one that takes a file."""
_LOG_NAME = "worker.log"
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC


def make(kind: str, root: Path | None) -> Path:
    """A new folder for a worker of a kind in `root`, or the system's temporary folder."""
    return Path(tempfile.mkdtemp(prefix=f"nearhint-{kind}-", dir=root))


def open_log(folder: Path) -> int:
    """A descriptor of a folder's new log: the folder is held until the last copy is closed.

    Where files have no locks nothing is held, and nothing is ever removed.
    """
    descriptor = os.open(folder / _LOG_NAME, _FLAGS | os.O_CREAT)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def is_full(said: str) -> bool:
    """Whether a tool, or Python, said that a disk is full: in English, as a worker's locale is.

    >>> is_full("can't fill 256 bytes in section .data of kernel.o: 'No space left on device'")
    True
    """
    return _FULL.search(said) is not None


def remove_abandoned(root: Path | None = None) -> int:
    """Removes the folders in `root` of workers that are gone, with their daemons; says how many."""
    parents = _roots() if root is None else [root]
    found = [
        folder
        for parent in parents
        for kind in KINDS
        for folder in parent.glob(f"nearhint-{kind}-*")
    ]
    return sum(map(_removed, found))


def _roots() -> list[Path]:
    """The system's temporary folder; where none takes a file, as on a full disk, all it may be.

    What fills the disk may be what is to be removed.
    """
    try:
        return [Path(tempfile.gettempdir())]
    except FileNotFoundError:
        named = (os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP"))
        return [Path(each) for each in dict.fromkeys((*named, *USUAL_ROOTS)) if each]


def _removed(folder: Path) -> bool:
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode) or folder.lstat().st_uid != os.geteuid():
            return False
        descriptor = os.open(folder / _LOG_NAME, _FLAGS | os.O_NOFOLLOW)
    except OSError:
        return False  # no worker's, or another daemon was faster
    try:
        if time.time() - os.fstat(descriptor).st_mtime < LEFT_ALONE_S:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        shutil.rmtree(folder, ignore_errors=True)
        return True
    finally:
        os.close(descriptor)
