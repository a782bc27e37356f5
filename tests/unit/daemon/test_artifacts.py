"""Binaries in files: named by their content, checked at every read, counted."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from nearhint_daemon.errors import ArtifactCorrupt, ArtifactUnknown, StoreReadOnly
from nearhint_daemon.store.artifacts import ArtifactFiles
from nearhint_rules.canonical import content_hash


def test_an_artifact_is_kept_by_content_and_checked_at_every_read(tmp_path: Path) -> None:
    files = ArtifactFiles(tmp_path / "artifacts")
    sha256 = files.put(b"binary")
    assert sha256 == content_hash(b"binary")
    assert files.get(sha256) == b"binary"
    path = tmp_path / "artifacts" / sha256[:2] / sha256
    path.write_bytes(b"binarz")
    with pytest.raises(ArtifactCorrupt):
        files.get(sha256)
    with pytest.raises(ArtifactUnknown):
        files.get(sha256)
    assert len(list((tmp_path / "artifacts" / "corrupt").iterdir())) == 1


def test_a_pipe_in_place_of_an_artifact_is_not_waited_for(tmp_path: Path) -> None:
    files = ArtifactFiles(tmp_path / "artifacts")
    sha256 = files.put(b"binary")
    path = tmp_path / "artifacts" / sha256[:2] / sha256
    path.unlink()
    os.mkfifo(path)
    found: list[BaseException] = []

    def read() -> None:
        try:
            files.get(sha256)
        except ArtifactCorrupt as error:
            found.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(10.0)
    assert found


def test_artifacts_that_are_not_ours_are_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that may not be read is made again; where none may be written, the disk takes none."""
    files = ArtifactFiles(tmp_path / "artifacts")
    sha256 = files.put(b"binary")
    open_ = os.open

    def refuse(path: str, flags: int, *rest: int, **at: int) -> int:
        if at:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return open_(path, flags, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(StoreReadOnly, match=f"in {tmp_path / 'artifacts'}: Permission denied"):
            files.put(b"another")
        with pytest.raises(ArtifactCorrupt):
            files.get(sha256)
    assert files.put(b"binary") == sha256

    def stay(path: Path, to: Path) -> Path:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(Path, "rename", stay)
    with pytest.raises(ArtifactCorrupt):  # and is made again where it is
        files.get(sha256)


@pytest.mark.parametrize("name", ["", "x" * 64, "../" * 10, "0" * 63, "A" * 64, "0" * 64 + "\n"])
def test_only_a_hash_names_an_artifact(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactUnknown):
        ArtifactFiles(tmp_path / "artifacts").get(name)


def test_what_a_crash_left_of_a_write_is_swept(tmp_path: Path) -> None:
    files = ArtifactFiles(tmp_path / "artifacts")
    sha256 = files.put(b"binary")
    left = tmp_path / "artifacts" / sha256[:2] / f"{sha256}.1.2.part"
    left.write_bytes(b"bin")
    room = tmp_path / "artifacts" / "room.part"  # of a look for room
    room.write_bytes(bytes(4096))
    ArtifactFiles(tmp_path / "artifacts")
    assert not left.exists()
    assert not room.exists()
    assert files.get(sha256) == b"binary"


def test_files_that_go_while_they_are_counted_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished write renames its file, an eviction removes one."""
    files = ArtifactFiles(tmp_path / "artifacts")
    gone, kept = files.put(b"binary"), files.put(b"another")
    lstat = Path.lstat

    def racing(path: Path) -> os.stat_result:
        if path.name == gone:
            files.remove(gone)
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", racing)
    assert files.size_bytes() == len(b"another")
    assert files.get(kept) == b"another"


def test_files_are_counted_again_only_where_some_came_or_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be hundreds of thousands of them, and their size is asked for all the time."""
    root = tmp_path / "artifacts"
    files = ArtifactFiles(root)
    names = [files.put(b"%d" % number) for number in range(10, 40)]
    looked: list[str] = []
    lstat = Path.lstat

    def counting(path: Path) -> os.stat_result:
        looked.append(path.name)
        return lstat(path)

    def sized() -> list[str]:
        looked.clear()
        assert files.size_bytes() == sum(path.stat().st_size for path in root.glob("??/*"))
        return sorted(looked)

    monkeypatch.setattr(Path, "lstat", counting)
    for _ in range(2):
        assert sized() == sorted(names), "what has just changed may change in the same moment"
    for folder in root.glob("??"):
        os.utime(folder, (1.0, 1.0))
    assert sized() == sorted(names)
    assert sized() == []
    files.remove(names[0])
    (root / names[1][:2] / "stray").write_bytes(b"of somebody's")
    touched = {name[:2] for name in names[:2]}
    assert {name[:2] for name in sized() if name != "stray"} <= touched
    for folder in root.glob("??"):
        os.utime(folder, (2.0, 2.0))
    assert len(sized()) == len(names)
    assert sized() == []
