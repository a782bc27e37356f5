"""The state directory and the socket's directory: made, checked, locked.

The locks are taken before the socket or the database are touched: two gRPC servers on one `unix:`
path steal it from each other silently, and SQLite alone would let two daemons interleave.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from nearhint_daemon.errors import (
    DaemonError,
    DirectoryUnsafe,
    SocketInUse,
    StateDirectoryLocked,
    StoreError,
)

STATE_MODE = 0o700
SOCKET_DIRECTORY_MODE = 0o750
SOCKET_MODE = 0o660
WAY_MODE = 0o755
"""Of folders that are made on the way to one of these: whoever may write there may replace it."""
LOCK_NAME = "LOCK"
SOCKET_LOCK_SUFFIX = ".lock"


def prepare(path: Path, *, mode: int) -> None:
    """Makes `path` with `mode`, or checks the one that is there.

    Raises `DirectoryUnsafe` if it belongs to somebody else, if others may write to it, or if it is
    no directory. A state directory (mode 0700) is tightened to its mode.
    """
    try:
        for folder in reversed([folder for folder in path.parents if not folder.exists()]):
            _make(folder, WAY_MODE)
        _make(path, mode)
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
        _set_mode(path, mode)


def give_to_owner(path: Path) -> None:
    """Gives what root has just made to whom its folder belongs to, as SQLite does with its files.

    Else a check that root runs leaves what the daemon may not write.
    """
    if os.geteuid() == 0:
        folder = path.parent.stat()
        with suppress(PermissionError):  # a root without that capability
            os.chown(path, folder.st_uid, folder.st_gid, follow_symlinks=False)


def is_read_only(path: Path) -> bool:
    """Whether the file system of this path is mounted read-only, as after errors of its disk."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def own(folder: Path, patterns: Iterable[str]) -> None:
    """Sees that what earlier daemons left in a folder is this one's to read and write.

    As `patterns` find it, a folder before what is in it. Modes are mended. Raises `DirectoryUnsafe`
    for what belongs to somebody else, as where another user brought back a copy: work would fail
    on it, one piece after another.
    """
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            found = path.lstat()
            if stat.S_ISLNK(found.st_mode):
                continue
            if found.st_uid != os.geteuid():
                told = f"{path} belongs to uid {found.st_uid}, not to {os.geteuid()}"
                raise DirectoryUnsafe(f"{told}: chown -R {os.geteuid()} {folder}")
            needed = stat.S_IRWXU if stat.S_ISDIR(found.st_mode) else stat.S_IRUSR | stat.S_IWUSR
            if found.st_mode & needed != needed:
                _set_mode(path, stat.S_IMODE(found.st_mode) | needed)


def _set_mode(path: Path, mode: int) -> None:
    try:
        path.chmod(mode)
    except OSError as error:
        raise DirectoryUnsafe(f"{path} is not of mode {mode:o}: {error.strerror}") from None


def _make(path: Path, mode: int) -> None:
    """Makes a folder of this mode, whatever the process's umask is, unless it is there by now."""
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        return
    path.chmod(mode)


class Lock:
    """An exclusive lock for as long as the process lives: on a file that is of nothing but this.

    `of` is what it is the lock of. Who finds it taken is told by a `taken` that names the holder's
    pid, and who cannot write the file by an `unusable`.
    """

    def __init__(
        self, path: Path, *, of: Path, taken: type[DaemonError], unusable: type[DaemonError]
    ) -> None:
        self._path, self._of = path, of
        self._taken, self._unusable = taken, unusable
        self._descriptor = -1

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *raised: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Takes the lock; raises the errors that it was made with."""
        try:
            self._acquire()
        except OSError as error:
            self.release()
            raise self._unusable(f"{self._path} cannot be written: {error.strerror}") from error

    def _acquire(self) -> None:
        descriptor, is_writable = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            first_line = os.read(descriptor, 32).decode("ascii", "replace").partition("\n")[0]
            holder = first_line.strip() or "unknown"
            os.close(descriptor)
            raise self._taken(f"{self._of} is in use by the nearhintd with pid {holder}") from None
        self._descriptor = descriptor
        if not is_writable:
            return
        line = f"{os.getpid()}\n".encode()
        # In this order: of a full disk nobody else takes the room that the last pid had.
        os.pwrite(descriptor, line, 0)
        os.ftruncate(descriptor, len(line))

    def _open(self) -> tuple[int, bool]:
        """A descriptor, and whether it is for writing.

        Who only looks at what is mounted read-only holds the lock like others.
        """
        flags = os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags | os.O_RDWR | os.O_CREAT, 0o600)
            give_to_owner(self._path)
            return descriptor, True
        except OSError as error:
            if error.errno != errno.EROFS or not self._path.exists():
                raise
        return os.open(self._path, flags | os.O_RDONLY), False

    def release(self) -> None:
        """Gives the lock back; the file stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def state_lock(state_dir: Path) -> Lock:
    """The lock of a state directory: raises `StateDirectoryLocked` or `StoreError`."""
    path = state_dir / LOCK_NAME
    return Lock(path, of=state_dir, taken=StateDirectoryLocked, unusable=StoreError)


def socket_lock(path: Path) -> Lock:
    """The lock of a socket's path, beside it: raises `SocketInUse`.

    A daemon has its socket seconds after it has looked whether another answers there.
    """
    beside = path.with_name(path.name + SOCKET_LOCK_SUFFIX)
    return Lock(beside, of=path, taken=SocketInUse, unusable=SocketInUse)


def clear_stale_socket(path: Path) -> None:
    """Removes the socket that a dead daemon left; call only with its lock held.

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
