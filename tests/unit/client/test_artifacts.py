"""The artifact cache keeps what has the right hash, in a directory of this user's own."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from nearhint.artifacts import ArtifactCache
from nearhint.errors import ArtifactCorrupt, DaemonUnreachable, UntrustedPath
from nearhint_rules.canonical import content_hash

BINARY = bytes(range(256)) * 64
SHA256 = content_hash(BINARY)


def cache(tmp_path: Path, *, limit_bytes: int = 1 << 20) -> ArtifactCache:
    return ArtifactCache(tmp_path / "cache", limit_bytes=limit_bytes)


class Source:
    """Bytes in chunks, which can break off; remembers the offsets that were asked for."""

    def __init__(self, binary: bytes, *, breaks_after: int | None = None) -> None:
        self.binary = binary
        self.breaks_after = breaks_after
        self.offsets: list[int] = []

    def __call__(self, offset: int) -> Iterator[bytes]:
        self.offsets.append(offset)
        for number, start in enumerate(range(offset, len(self.binary), 4096)):
            if number == self.breaks_after:
                raise DaemonUnreachable(address="unix:/x", problem="gone")
            yield self.binary[start : start + 4096]


def never(offset: int) -> Iterator[bytes]:
    raise AssertionError(f"fetched from {offset}")


def test_what_was_fetched_once_is_read_from_disk(tmp_path: Path) -> None:
    assert cache(tmp_path).obtain(SHA256, len(BINARY), Source(BINARY)) == BINARY
    assert cache(tmp_path).obtain(SHA256, len(BINARY), never) == BINARY
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    (kept,) = (tmp_path / "cache").glob("??/*")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


@pytest.mark.parametrize("at", [0, len(BINARY) // 2, len(BINARY) - 1])
def test_a_flipped_byte_on_disk_is_found_and_fetched_again(tmp_path: Path, at: int) -> None:
    cache(tmp_path).obtain(SHA256, len(BINARY), Source(BINARY))
    (kept,) = (tmp_path / "cache").glob("??/*")
    changed = bytearray(BINARY)
    changed[at] ^= 1
    kept.write_bytes(changed)
    with pytest.raises(ArtifactCorrupt):
        cache(tmp_path).read(SHA256)
    source = Source(BINARY)
    assert cache(tmp_path).obtain(SHA256, len(BINARY), source) == BINARY
    assert source.offsets == [0]


def test_a_broken_transfer_goes_on_where_it_broke(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnreachable):
        cache(tmp_path).obtain(SHA256, len(BINARY), Source(BINARY, breaks_after=2))
    source = Source(BINARY)
    assert cache(tmp_path).obtain(SHA256, len(BINARY), source) == BINARY
    assert source.offsets == [8192]
    assert len(list((tmp_path / "cache").glob("??/*"))) == 1


@pytest.mark.parametrize("sent", [BINARY[:-1], BINARY + b"x", b"", b"\0" * len(BINARY)])
def test_wrong_bytes_are_neither_returned_nor_kept(tmp_path: Path, sent: bytes) -> None:
    with pytest.raises(ArtifactCorrupt):
        cache(tmp_path).obtain(SHA256, len(BINARY), Source(sent))
    assert list((tmp_path / "cache").glob("??/*")) == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "A" * 64, "", "0" * 63])
def test_a_name_that_is_no_hash_touches_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactCorrupt):
        cache(tmp_path).obtain(name, 10, never)


def test_the_oldest_go_when_it_is_full(tmp_path: Path) -> None:
    kept = cache(tmp_path, limit_bytes=3 * 4096)
    for letter in b"abcde":
        binary = bytes([letter]) * 4096
        kept.obtain(content_hash(binary), len(binary), Source(binary))
    assert kept.size_bytes() == 3 * 4096
    here = [kept.read(content_hash(bytes([letter]) * 4096)) is not None for letter in b"abcde"]
    assert here == [False, False, True, True, True]


def test_only_what_the_cache_wrote_is_counted_and_deleted(tmp_path: Path) -> None:
    kept = cache(tmp_path, limit_bytes=4096)
    others = [tmp_path / "go" / "sum", tmp_path / "cache" / "my" / "notes"]
    others.append(tmp_path / "cache" / "ab" / "readme")
    for other in others:
        other.parent.mkdir(parents=True, mode=0o700)
        other.write_bytes(bytes(4 * 4096))
    (tmp_path / "cache").chmod(0o700)
    for letter in b"abc":
        binary = bytes([letter]) * 4096
        assert kept.obtain(content_hash(binary), len(binary), Source(binary)) == binary
    assert kept.size_bytes() == 4096
    assert all(other.exists() for other in others)


@pytest.mark.parametrize("what", ["corrupt", "shared", "a file", "full"])
def test_a_directory_that_is_of_no_use_is_told_once_for_each_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    directory, told = tmp_path / "cache", list[str]()
    if what == "corrupt":
        cache(tmp_path).obtain(SHA256, len(BINARY), Source(BINARY))
        (kept,) = directory.glob("??/*")
        kept.write_bytes(b"X" + BINARY[1:])
    elif what == "shared":
        directory.mkdir()
        directory.chmod(0o777)
    elif what == "a file":
        directory.touch()
    else:

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
    used = ArtifactCache(
        directory, limit_bytes=1 << 20, on_problem=lambda error: told.append(error.reason)
    )
    assert used.obtain(SHA256, len(BINARY), Source(BINARY)) == BINARY
    expected = {"corrupt": "artifact_corrupt", "shared": "path_untrusted"}
    assert told == [expected.get(what, "cache_unusable")]


def test_a_directory_that_is_removed_is_made_again(tmp_path: Path) -> None:
    kept = cache(tmp_path)
    kept.obtain(SHA256, len(BINARY), Source(BINARY))
    shutil.rmtree(tmp_path / "cache")
    assert kept.obtain(SHA256, len(BINARY), Source(BINARY)) == BINARY
    assert kept.obtain(SHA256, len(BINARY), never) == BINARY
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_a_directory_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(UntrustedPath):
        cache(tmp_path).read(SHA256)
    # It costs a transfer, not the Artifact.
    assert cache(tmp_path).obtain(SHA256, len(BINARY), Source(BINARY)) == BINARY
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("what", ["unlink", "stat", "glob"])
def test_a_disk_that_fails_costs_a_transfer_and_not_the_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    used = cache(tmp_path)
    used.obtain(SHA256, len(BINARY), Source(BINARY))
    (kept,) = (tmp_path / "cache").glob("??/*")
    kept.write_bytes(b"X" + BINARY[1:])

    def fail(*args: object, **options: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, what, fail)
    assert not (what == "stat" and used.seems_to_have(SHA256))
    assert used.obtain(SHA256, len(BINARY), Source(BINARY)) == BINARY
