"""Artifact files: content-addressed, written once, their hash checked at each read.

Order of a write: temporary file in the same folder, fsync, rename, fsync of the folder; the row
that makes it visible comes after. A file is opened relative to its folder's descriptor, by a name
of 64 hex digits, without following links. One whose bytes do not have that hash is moved aside,
where the newest few of those stay.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from nearhint_daemon.directories import give_to_owner
from nearhint_daemon.errors import ArtifactCorrupt, ArtifactUnknown, StoreError, StoreReadOnly
from nearhint_daemon.store import aside
from nearhint_rules.canonical import content_hash

ARTIFACT_LIMIT_BYTES = 64 * 2**20
ROOM_BYTES = 2**20
"""How much a disk takes that was full and is not any more."""
CORRUPT = "corrupt"
"""The folder beside those of binaries where such are that were moved aside."""
CORRUPT_KEPT = 16
"""Files that are kept of those whose bytes did not have their hash."""
BEFORE_ITS_ROW_S = 60.0
"""How long a file without a row is left alone: it may be about to get one."""
SETTLED_NS = 2 * 10**9
"""Of two changes that are no farther apart a folder may have the same time."""
_NAME = re.compile(r"[0-9a-f]{64}")
_TEMPORARY = ".part"
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
_NOT_OURS = frozenset({errno.EACCES, errno.EPERM})
"""As of what somebody copied back as another user."""
_NO_WRITES = _DISK_FULL | _NOT_OURS
_AS_WRONG = _NOT_OURS | {errno.ELOOP, errno.EISDIR, errno.EIO}


class ArtifactFiles:
    """The folder `artifacts/` of a state directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._corrupt = root / CORRUPT
        self._sizes: dict[str, tuple[int, int]] = {}
        for folder in (root, self._corrupt):
            if not folder.is_dir():
                folder.mkdir(mode=0o700)
                give_to_owner(folder)
        for place in ("", "??/"):
            for left in root.glob(f"{place}*{_TEMPORARY}"):
                with suppress(OSError):  # on a disk that takes no writes it is in nobody's way
                    left.unlink()

    def put(self, data: bytes) -> str:
        """Writes `data` durably and returns its sha256; raises `StoreReadOnly` on a full disk."""
        sha256 = content_hash(data)
        try:
            self._put(sha256, data)
        except OSError as error:
            if error.errno in _NO_WRITES:
                where = f" in {self._root}" if error.errno in _NOT_OURS else ""
                problem = f"the disk takes no writes now{where}: {error.strerror}"
                raise StoreReadOnly(problem) from error
            raise
        return sha256

    def get(self, sha256: str) -> bytes:
        """The bytes of that hash; raises `ArtifactUnknown`, `ArtifactCorrupt` or `StoreError`."""
        if not _NAME.fullmatch(sha256):
            raise ArtifactUnknown("not a sha256", field="sha256")
        try:
            with self._folder(sha256) as folder:
                # Nobody may ever write to what is a pipe: it is not waited for.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptor = os.open(sha256, flags, dir_fd=folder)
                with os.fdopen(descriptor, "rb") as file:
                    data = file.read(ARTIFACT_LIMIT_BYTES + 1)
        except FileNotFoundError:
            raise ArtifactUnknown("no artifact of that hash") from None
        except OSError as error:
            # A link or a folder where a file should be, or what is not ours to read, is as bad as a
            # wrong byte.
            if error.errno not in _AS_WRONG:
                raise StoreError(f"artifact {sha256} cannot be read: {error.strerror}") from error
            data = b""
        if len(data) > ARTIFACT_LIMIT_BYTES or content_hash(data) != sha256:
            with suppress(OSError):  # what is made again takes its place
                self._move_aside(sha256)
            raise ArtifactCorrupt("an artifact's bytes do not have its hash")
        return data

    def has_room(self) -> bool:
        """Whether the disk takes a file of `ROOM_BYTES`, which goes again at once.

        A commit says less: the database's log has room for a small one on a full disk, too.
        """
        path = self._root / f"room{_TEMPORARY}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, ROOM_BYTES)
            finally:
                os.close(descriptor)
                path.unlink()
        except OSError as error:
            return error.errno not in _NO_WRITES
        return True

    def remove(self, sha256: str) -> None:
        """Removes a file whose row is gone."""
        if _NAME.fullmatch(sha256):
            (self._root / sha256[:2] / sha256).unlink(missing_ok=True)

    def remove_unknown(self, known: Collection[str], *, now_s: float) -> int:
        """Removes the files of other hashes, unless they are new; returns their bytes.

        They have no row any more, as after a database was moved aside, or never got one.
        """
        total = 0
        for path in self._root.glob("??/*"):
            if path.name in known or not _NAME.fullmatch(path.name):
                continue
            with suppress(FileNotFoundError):
                found = path.lstat()
                if now_s - found.st_mtime > BEFORE_ITS_ROW_S:
                    path.unlink()
                    total += found.st_size
        return total

    def size_bytes(self) -> int:
        """Bytes of all files; some may come and go meanwhile."""
        return sum(self._size_of(folder) for folder in self._root.glob("??"))

    def _size_of(self, folder: Path) -> int:
        """Bytes of a folder's files: what they were, unless files came or went since.

        None is written twice, and a folder's time is that of the last that came or went.
        """
        total = 0
        with suppress(FileNotFoundError):
            changed_ns = folder.stat().st_mtime_ns
            known = self._sizes.get(folder.name)
            if known is not None and known[0] == changed_ns:
                return known[1]
            is_settled = time.time_ns() - changed_ns > SETTLED_NS
            for path in folder.glob("*"):
                with suppress(FileNotFoundError):
                    total += path.lstat().st_size
            if is_settled:
                self._sizes[folder.name] = (changed_ns, total)
        return total

    @contextmanager
    def _folder(self, sha256: str) -> Generator[int, None, None]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._root / sha256[:2], flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _put(self, sha256: str, data: bytes) -> None:
        path = self._root / sha256[:2]
        if not path.exists():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _fsync_folder(self._root)
        temporary = f"{sha256}.{os.getpid()}.{time.monotonic_ns()}{_TEMPORARY}"
        with self._folder(sha256) as folder:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(temporary, sha256, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            os.fsync(folder)

    def _move_aside(self, sha256: str) -> None:
        moved = self._corrupt / aside.name_now(f"{sha256}.")
        (self._root / sha256[:2] / sha256).rename(moved)
        with suppress(OSError):
            aside.drop_oldest(self._corrupt.iterdir(), stem_end=".", made=moved, keep=CORRUPT_KEPT)


def count_files(root: Path) -> int:
    """How many binaries there are in a folder, which may not be there."""
    return sum(1 for path in root.glob("??/*") if _NAME.fullmatch(path.name))


def _fsync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
