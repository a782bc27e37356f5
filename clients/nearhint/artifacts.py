"""The artifact cache: binaries by the sha256 of their bytes, in a directory of this user's own.

    DIR/ab/abcdef...        one file an Artifact, mode 0600, written under another name and renamed
    DIR/ab/abcdef....part   what a broken transfer left: it goes on from there

A file is hashed on every read; what does not match is deleted and reported as `ArtifactCorrupt`,
never returned. Past `limit_bytes` the files that were used longest ago go first.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from nearhint.errors import ArtifactCorrupt, CacheUnusable, NearhintError, UntrustedPath
from nearhint.trust import private_directory
from nearhint_rules.canonical import content_hash

SHA256_PATTERN = re.compile(r"[0-9a-f]{64}")
MAX_ARTIFACT_BYTES = 256 << 20
_OWN_FILE = re.compile(r"[0-9a-f]{64}(\.part)?|\.new-.*")
"""Names of what the cache writes; nothing else is ever deleted."""

Fetch = Callable[[int], Iterator[bytes]]
"""The bytes of an Artifact from an offset on, in chunks."""


def _untold(error: NearhintError) -> None:
    del error


class ArtifactCache:
    """Binaries kept between processes. Threads and processes may use one directory at once.

    `on_problem` hears why the directory was of no use where that costs no more than a transfer.
    """

    def __init__(
        self,
        directory: Path,
        *,
        limit_bytes: int,
        trusted_uids: frozenset[int] = frozenset(),
        on_problem: Callable[[NearhintError], None] = _untold,
    ) -> None:
        self.directory = directory
        self.trusted_uids = trusted_uids
        self.limit_bytes = limit_bytes
        self._on_problem = on_problem
        self._checked: Path | None = None

    def read(self, sha256: str) -> bytes | None:
        """The Artifact's bytes, or None if they are not here.

        Raises `ArtifactCorrupt` (the file is gone by then, where it can be removed),
        `UntrustedPath` or `CacheUnusable`.
        """
        path = self._path(sha256)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CacheUnusable(path=path, problem=error.strerror) from error
        if content_hash(data) != sha256:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise ArtifactCorrupt(sha256=sha256, problem="the cached bytes changed on disk")
        with suppress(OSError):
            os.utime(path)
        return data

    def seems_to_have(self, sha256: str) -> bool:
        """Whether there is a file, or a part of one, by that name; what is in it may be wrong."""
        try:
            return self._path(sha256).exists() or self._path(f"{sha256}.part").exists()
        except (OSError, NearhintError):
            return False

    def obtain(self, sha256: str, size_bytes: int, fetch: Fetch) -> bytes:
        """The Artifact's bytes, from the cache or else from `fetch`, and then cached.

        A transfer that breaks is resumed by the next call. A cache that cannot be used costs a
        transfer, not the Artifact. Raises `ArtifactCorrupt` and whatever `fetch` raises.
        """
        if not SHA256_PATTERN.fullmatch(sha256) or not 0 < size_bytes <= MAX_ARTIFACT_BYTES:
            raise ArtifactCorrupt(sha256=repr(sha256[:80]), problem=f"{size_bytes} bytes")
        try:
            cached = self.read(sha256)
        except NearhintError as error:
            self._on_problem(error)
            cached = None
        if cached is not None:
            return cached
        part = self._read_part(sha256, size_bytes)
        received = bytearray(part)
        try:
            for chunk in fetch(len(part)):
                received += chunk
                if len(received) > size_bytes:
                    break
        except NearhintError:
            self._write(f"{sha256}.part", bytes(received))
            raise
        data = bytes(received)
        self._forget_part(sha256)
        if len(data) != size_bytes or content_hash(data) != sha256:
            raise ArtifactCorrupt(
                sha256=sha256, problem=f"the {len(data)} bytes received have another hash"
            )
        if self._write(sha256, data):
            self._evict(keep=sha256)
        return data

    def size_bytes(self) -> int:
        """What all cached files take, 0 where the directory cannot be used."""
        return sum(size for _, size, _ in self._files())

    def _path(self, name: str) -> Path:
        return self._root() / name[:2] / name

    def _root(self) -> Path:
        if self._checked is None or not os.path.isdir(self._checked):  # somebody may remove it
            try:
                self._checked = private_directory(self.directory, trusted_uids=self.trusted_uids)
            except UntrustedPath:
                raise
            except OSError as error:
                raise CacheUnusable(path=self.directory, problem=error.strerror) from error
        return self._checked

    def _read_part(self, sha256: str, size_bytes: int) -> bytes:
        try:
            data = self._path(f"{sha256}.part").read_bytes()
        except (OSError, NearhintError):
            return b""
        return data if len(data) < size_bytes else b""

    def _forget_part(self, sha256: str) -> None:
        with suppress(OSError, NearhintError):
            self._path(f"{sha256}.part").unlink(missing_ok=True)

    def _write(self, name: str, data: bytes) -> bool:
        if not data:
            return False
        try:
            path = self._path(name)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            # mkstemp creates with mode 0600, whatever the umask.
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                os.replace(temporary, path)
            except OSError:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            self._on_problem(CacheUnusable(path=self.directory, problem=error.strerror))
            return False
        except NearhintError:
            return False  # as it was told when it was read
        return True

    def _files(self) -> list[tuple[float, int, Path]]:
        found: list[tuple[float, int, Path]] = []
        with suppress(OSError, NearhintError):
            for path in self._root().glob("[0-9a-f][0-9a-f]/*"):
                if not _OWN_FILE.fullmatch(path.name):
                    continue
                with suppress(OSError):
                    info = path.stat()
                    found.append((info.st_mtime, info.st_size, path))
        return sorted(found)

    def _evict(self, *, keep: str) -> None:
        files = self._files()
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self.limit_bytes:
                return
            if path.name != keep:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
                    total -= size
