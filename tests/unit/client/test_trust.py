"""A socket or folder that someone else could have made is not used."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nearhint.errors import UntrustedPath
from nearhint.trust import trusted_directory, trusted_socket

NOBODY = 65534
NONE: frozenset[int] = frozenset()
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "run" / "daemon.sock"
    path.parent.mkdir(mode=0o750)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.chmod(0o660)
        yield path


def test_a_socket_of_our_own_is_trusted(listening: Path) -> None:
    assert trusted_socket(listening, trusted_uids=NONE) == listening


def test_a_group_may_connect_but_everybody_may_not(listening: Path) -> None:
    listening.chmod(0o666)
    with pytest.raises(UntrustedPath, match="others may write to this socket"):
        trusted_socket(listening, trusted_uids=NONE)


@pytest.mark.parametrize("mode", [0o770, 0o757, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(listening: Path, mode: int) -> None:
    listening.parent.chmod(mode)
    with pytest.raises(UntrustedPath, match="others may write to this directory"):
        trusted_socket(listening, trusted_uids=NONE)


def test_a_folder_above_must_be_safe_or_sticky(listening: Path) -> None:
    above = listening.parent.parent
    above.chmod(0o777)
    with pytest.raises(UntrustedPath, match=str(above)):
        trusted_socket(listening, trusted_uids=NONE)
    above.chmod(0o1777)
    assert trusted_socket(listening, trusted_uids=NONE) == listening


@needs_root
def test_another_users_socket_is_refused_unless_configured(listening: Path) -> None:
    os.chown(listening, NOBODY, NOBODY)
    with pytest.raises(UntrustedPath, match=f"belongs to user {NOBODY}"):
        trusted_socket(listening, trusted_uids=NONE)
    assert trusted_socket(listening, trusted_uids=frozenset({NOBODY})) == listening


@needs_root
def test_another_users_folder_is_refused(listening: Path) -> None:
    os.chown(listening.parent, NOBODY, NOBODY)
    with pytest.raises(UntrustedPath, match=f"belongs to user {NOBODY}"):
        trusted_socket(listening, trusted_uids=NONE)


def test_a_link_to_a_socket_or_a_file_is_no_socket(listening: Path) -> None:
    link = listening.parent / "link.sock"
    link.symlink_to(listening)
    with pytest.raises(UntrustedPath, match="is not a socket"):
        trusted_socket(link, trusted_uids=NONE)


def test_a_linked_folder_is_checked_where_it_leads(listening: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(listening.parent)
    assert trusted_directory(tmp_path / "linked", trusted_uids=NONE) == listening.parent
    listening.parent.chmod(0o777)
    with pytest.raises(UntrustedPath):
        trusted_directory(tmp_path / "linked", trusted_uids=NONE)


def test_an_error_can_be_written_whatever_the_path_is(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"no UTF-8 \xff")
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UntrustedPath, match=r"no UTF-8 \\udcff: others may write") as raised:
        trusted_directory(folder, trusted_uids=NONE)
    assert raised.value.report().encode()
    assert raised.value.fields["path"] == folder
