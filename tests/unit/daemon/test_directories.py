from __future__ import annotations

import errno
import os
import re
import socket
import stat
from pathlib import Path

import pytest

from nearhint.errors import UntrustedPath
from nearhint.trust import trusted_directory
from nearhint_daemon import directories
from nearhint_daemon.errors import DirectoryUnsafe, SocketInUse, StateDirectoryLocked
from nearhint_daemon.lifecycle import LEFT_IN_STATE


def test_a_state_directory_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "a" / "state"
    directories.prepare(path, mode=directories.STATE_MODE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o770])
def test_a_state_directory_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "state"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(DirectoryUnsafe, match="may be written by others"):
        directories.prepare(path, mode=directories.STATE_MODE)


@pytest.mark.parametrize("mode", [0o757, 0o775])
def test_a_socket_directory_that_clients_would_not_trust_is_refused(
    tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "run"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(UntrustedPath):
        trusted_directory(path, trusted_uids=frozenset())
    with pytest.raises(DirectoryUnsafe, match=f"chmod 750 {path}"):
        directories.prepare(path, mode=directories.SOCKET_DIRECTORY_MODE)


def test_nobody_is_told_to_change_a_directory_that_all_share(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o1777)
    with pytest.raises(DirectoryUnsafe, match="name one of its own"):
        directories.prepare(path, mode=directories.SOCKET_DIRECTORY_MODE)


def test_a_state_directory_whose_mode_cannot_be_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    path = tmp_path / "state"
    path.mkdir()
    path.chmod(0o755)  # whatever the umask leaves
    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(DirectoryUnsafe, match="not of mode 700: Read-only file system"):
        directories.prepare(path, mode=directories.STATE_MODE)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)
    with pytest.raises(DirectoryUnsafe, match="belongs to uid 12345"):
        directories.prepare(path, mode=directories.STATE_MODE)


def test_what_an_earlier_daemon_left_is_made_ours_to_read_and_write(tmp_path: Path) -> None:
    """As a copy may have been brought back: it was found out by one piece of work after another."""
    (tmp_path / "artifacts" / "0f").mkdir(parents=True)
    left = [tmp_path / name for name in ("nearhint.db", "LOCK", "artifacts", "artifacts/0f")]
    for path in left[:2]:
        path.touch()
    others = [tmp_path / name for name in ("lost+found", "nearhint.db.bak", "artifacts/notes")]
    for path in others:
        path.touch(mode=0o400)
    for path in reversed(left):  # a folder after what is in it
        path.chmod(0o400)
    (tmp_path / "nearhint.db-wal").symlink_to(tmp_path / "nowhere")
    directories.own(tmp_path, LEFT_IN_STATE)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in left]
    assert modes == [0o600, 0o600, 0o700, 0o700]
    assert {stat.S_IMODE(path.stat().st_mode) for path in others} == {0o400}, "none is ours"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("name", ["nearhint.db", "artifacts/0f", "quarantine", "nearhint.db-wal"])
def test_what_somebody_else_left_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch(mode=0o600)
    os.chown(path, 12345, 12345)
    told = f"{path} belongs to uid 12345, not to 0: chown -R 0 {tmp_path}"
    with pytest.raises(DirectoryUnsafe, match=re.escape(told)):
        directories.own(tmp_path, LEFT_IN_STATE)


def test_a_link_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "state").symlink_to(tmp_path / "real")
    with pytest.raises(DirectoryUnsafe, match=f"is a link: name .*{tmp_path / 'real'} itself"):
        directories.prepare(tmp_path / "state", mode=directories.STATE_MODE)


def test_a_file_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(DirectoryUnsafe, match="not a directory"):
        directories.prepare(tmp_path / "state", mode=directories.STATE_MODE)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_folders_on_the_way_are_for_the_owner_to_write_and_for_all_to_pass(
    tmp_path: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        directories.prepare(tmp_path / "a" / "b" / "run", mode=directories.SOCKET_DIRECTORY_MODE)
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "a/b/run")]
    assert modes == [0o755, 0o755, 0o750]


def test_the_lock_names_its_holder(tmp_path: Path) -> None:
    first, second = directories.state_lock(tmp_path), directories.state_lock(tmp_path)
    first.acquire()
    with pytest.raises(StateDirectoryLocked, match=f"pid {os.getpid()}"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_a_sockets_path_has_one_holder(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with directories.socket_lock(path):
        with pytest.raises(SocketInUse, match=f"{path} is in use by .* pid {os.getpid()}"):
            directories.socket_lock(path).acquire()
        with directories.socket_lock(tmp_path / "t"):
            pass
    with directories.socket_lock(path):
        assert not path.exists()


def test_folders_that_another_daemon_makes_meanwhile_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Path.mkdir

    def mkdir(path: Path, mode: int) -> None:
        make(path, mode)
        if path.name == "run":
            raise FileExistsError(path)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    path = tmp_path / "run" / "nearhint"
    directories.prepare(path, mode=directories.SOCKET_DIRECTORY_MODE)
    assert path.is_dir()


def test_the_lock_of_a_full_disk_gives_up_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / directories.LOCK_NAME).write_text("4194304\n")
    write = os.pwrite

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if os.fstat(descriptor).st_size < offset + len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "getpid", lambda: 12)
    lock = directories.state_lock(tmp_path)
    lock.acquire()
    with pytest.raises(StateDirectoryLocked, match=r"with pid 12$"):
        directories.state_lock(tmp_path).acquire()
    lock.release()
    assert (tmp_path / directories.LOCK_NAME).read_text() == "12\n"


def test_a_stale_socket_is_cleared_and_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with pytest.raises(SocketInUse, match="answers"):
            directories.clear_stale_socket(path)
    directories.clear_stale_socket(path)
    assert not path.exists()


def test_a_file_in_place_of_the_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(SocketInUse):
        directories.clear_stale_socket(path)
    assert path.read_text() == "precious"
