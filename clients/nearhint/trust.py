"""Who may have put a file where it is: the check before a socket or the cache is used.

A path is trusted when it and every folder above it belong to root, to this process's user or to a
configured user, and nobody else may write there. A folder that others may write to is tolerated
above it only if it is sticky, as /tmp is: they cannot replace what is not theirs.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from nearhint.errors import UntrustedPath

_GROUP_OR_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def owners(trusted_uids: frozenset[int]) -> frozenset[int]:
    """The users whose files are trusted."""
    return trusted_uids | {0, os.geteuid()}


def trusted_directory(path: Path, *, trusted_uids: frozenset[int]) -> Path:
    """`path` without symbolic links, if it is trusted; raises `UntrustedPath` or `OSError`."""
    real = path.resolve(strict=True)
    allowed = owners(trusted_uids)
    for place in (real, *real.parents):
        info = place.stat()
        if not stat.S_ISDIR(info.st_mode):
            raise UntrustedPath(path=place, problem="is not a directory")
        if info.st_uid not in allowed:
            raise UntrustedPath(path=place, problem=f"belongs to user {info.st_uid}")
        is_shared_parent = place != real and info.st_mode & stat.S_ISVTX
        if info.st_mode & _GROUP_OR_OTHERS_WRITE and not is_shared_parent:
            raise UntrustedPath(path=place, problem="others may write to this directory")
    return real


def trusted_socket(path: Path, *, trusted_uids: frozenset[int]) -> Path:
    """`path` with its folders' symbolic links resolved, if the socket is trusted.

    The group may connect, for which it needs write permission; everybody may not.
    """
    real = trusted_directory(path.parent, trusted_uids=trusted_uids) / path.name
    info = real.lstat()
    if not stat.S_ISSOCK(info.st_mode):
        raise UntrustedPath(path=real, problem="is not a socket")
    if info.st_uid not in owners(trusted_uids):
        raise UntrustedPath(path=real, problem=f"belongs to user {info.st_uid}")
    if info.st_mode & stat.S_IWOTH:
        raise UntrustedPath(path=real, problem="others may write to this socket")
    return real


def private_directory(path: Path, *, trusted_uids: frozenset[int]) -> Path:
    """`path`, made with mode 0700 if it is missing; refused unless it is this user's alone."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    real = trusted_directory(path, trusted_uids=trusted_uids)
    owner = real.stat().st_uid
    if owner != os.geteuid():
        raise UntrustedPath(path=real, problem=f"belongs to user {owner}")
    return real
