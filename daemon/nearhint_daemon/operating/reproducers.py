"""Reproducers: folders of files that show a failure again, a bounded number of them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from nearhint_daemon import logs

FOLDERS_LIMIT = 256
FILE_LIMIT_BYTES = 4 * 2**20
NOT_KEPT = "not kept"
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")


class Reproducers:
    """The newest `FOLDERS_LIMIT` under `root`, one of a key."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(mode=0o700, exist_ok=True)

    def keep(self, key: str, files: Mapping[str, str]) -> str:
        """Writes a reproducer; returns its folder, relative to the state directory.

        Where it cannot be written, what it reproduces is given up all the same.
        """
        folder = self._root / hashlib.sha256(key.encode()).hexdigest()[:16]
        try:
            self._root.mkdir(mode=0o700, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            before = {path.name for path in folder.iterdir() if path.is_file()}
            written = {"key.txt": key + "\n"}
            written |= {name: text for name, text in files.items() if _FILE_NAME.fullmatch(name)}
            for name, content in written.items():
                (folder / name).write_text(content[:FILE_LIMIT_BYTES], encoding="utf-8")
            for name in before.difference(written):
                (folder / name).unlink()  # of another failure of the same key
            os.utime(folder)
            self._drop_oldest()
        except OSError as error:
            logs.warning("reproducer_not_kept", key=key, problem=str(error))
            return NOT_KEPT
        return f"{self._root.name}/{folder.name}"

    def found(self, name: str) -> str:
        """The name of a folder that `keep` has returned, or `NOT_KEPT` where it has gone since."""
        return name if (self._root.parent / name).is_dir() else NOT_KEPT

    def _drop_oldest(self) -> None:
        folders = sorted(self._root.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for folder in folders[: max(0, len(folders) - FOLDERS_LIMIT)]:
            shutil.rmtree(folder, ignore_errors=True)
