"""The state directory and the socket's directory: made, checked, locked.

The lock is taken before the socket or the database are touched: two gRPC servers on one `unix:`
path steal it from each other silently, and SQLite alone would let two daemons interleave.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from pathlib import Path

from nearhint_daemon.errors import DirectoryUnsafe, SocketInUse, StateDirectoryLocked, StoreError

STATE_MODE = 0o700
SOCKET_DIRECTORY_MODE = 0o750
SOCKET_MODE = 0o660
WAY_MODE = 0o755
"""Of folders that are made on the way to one of these: whoever may write there may replace it."""
LOCK_NAME = "LOCK"


def prepare(path: Path, *, mode: int) -> None:
    """Makes `path` with `mode`, or checks the one that is there.

    Raises `DirectoryUnsafe` if it belongs to somebody else, if others may write to it, or if it is
    no directory. A state directory (mode 0700) is tightened to its mode.
    """
    try:
        for folder in reversed([folder for folder in path.parents if not folder.exists()]):
            _make(folder, WAY_MODE)
        _make(path, mode)
    except FileExistsError:
        pass
    except OSError as error:
        raise DirectoryUnsafe(f"{path} cannot be made: {error.strerror}") from None
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise DirectoryUnsafe(f"{path} is a link: name {path.resolve()} itself")
    if not stat.S_ISDIR(found.st_mode):
        raise DirectoryUnsafe(f"{path} is not a directory")
    if found.st_uid != os.geteuid():
        raise DirectoryUnsafe(f"{path} belongs to uid {found.st_uid}, not to {os.geteuid()}")
    # Who may write here may replace the socket: clients refuse such a directory as well.
    if found.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        is_shared = found.st_mode & stat.S_ISVTX  # as /tmp is
        advice = "name one of its own" if is_shared else f"chmod {mode:o} {path}"
        raise DirectoryUnsafe(f"{path} may be written by others: {advice}")
    if mode == STATE_MODE and stat.S_IMODE(found.st_mode) != mode:
        try:
            path.chmod(mode)
        except OSError as error:
            raise DirectoryUnsafe(f"{path} is not of mode {mode:o}: {error.strerror}") from None


def _make(path: Path, mode: int) -> None:
    """Makes a folder of this mode, whatever the process's umask is."""
    path.mkdir(mode=mode)
    path.chmod(mode)


class StateLock:
    """The exclusive lock on a state directory, held as long as the process lives."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / LOCK_NAME
        self._descriptor = -1

    def acquire(self) -> None:
        """Takes the lock; raises `StateDirectoryLocked` naming the holder's pid.

        Raises `StoreError` where the lock's file cannot be written.
        """
        try:
            self._acquire()
        except OSError as error:
            self.release()
            raise StoreError(f"{self._path} cannot be written: {error.strerror}") from error

    def _acquire(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            first_line = os.read(descriptor, 32).decode("ascii", "replace").partition("\n")[0]
            holder = first_line.strip() or "unknown"
            os.close(descriptor)
            raise StateDirectoryLocked(
                f"{self._path.parent} is in use by the nearhintd with pid {holder}"
            ) from None
        self._descriptor = descriptor
        line = f"{os.getpid()}\n".encode()
        # In this order: of a full disk nobody else takes the room that the last pid had.
        os.pwrite(descriptor, line, 0)
        os.ftruncate(descriptor, len(line))

    def release(self) -> None:
        """Gives the lock back; the file stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def clear_stale_socket(path: Path) -> None:
    """Removes the socket that a dead daemon left; call only with the lock held.

    Raises `SocketInUse` if something else is at `path`, or if somebody answers there.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketInUse(f"{path} is there and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise SocketInUse(f"{path}: {error.strerror or error}") from None
    raise SocketInUse(f"another process answers at {path}")
