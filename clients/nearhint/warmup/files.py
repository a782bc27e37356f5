"""Files that a warm-up reads: text, and no more of it than makes sense."""

from __future__ import annotations

from pathlib import Path

from nearhint.errors import FileMissing, InvalidManifest

SMALL_BYTES = 1 << 20
"""More than any manifest, list of sizes or device half has."""


def read_file(path: Path, *, limit_bytes: int = SMALL_BYTES) -> str:
    """The text of a file; raises `FileMissing`, or `InvalidManifest` where it cannot be meant."""
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise FileMissing(path=path, problem=error.strerror or "cannot be read") from error
    except ValueError as error:  # a path out of a manifest may hold a null byte
        raise FileMissing(path=repr(str(path)), problem=error) from error
    if len(data) > limit_bytes:
        raise InvalidManifest(path=path, key="size", problem=f"more than {limit_bytes:,} bytes")
    try:
        return data.decode("utf-8-sig")  # spreadsheets put a byte order mark before their CSV
    except UnicodeDecodeError as error:
        raise InvalidManifest(path=path, key="not text", problem=error) from error
