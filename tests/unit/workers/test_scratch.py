"""The folders of workers that are gone go when a daemon starts, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from nearhint_daemon.workers import scratch

OLD_S = 2 * scratch.LEFT_ALONE_S


def aged(folder: Path) -> Path:
    """The folder of a worker, as if its log had not been written for a while."""
    (log,) = folder.iterdir()
    then_s = time.time() - OLD_S
    os.utime(log, (then_s, then_s))
    return folder


def abandoned(root: Path, kind: str = "compile") -> Path:
    root.mkdir(exist_ok=True)
    folder = scratch.make(kind, root)
    os.close(scratch.open_log(folder))
    aged(folder)
    (folder / "triton").mkdir()
    (folder / "triton" / "kernel.cubin").write_bytes(b"x")
    return folder


def test_where_no_folder_takes_a_temporary_file_what_fills_the_disk_is_removed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that was killed may have left it; the next one starts, and finds room."""

    def full() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    folders = [abandoned(tmp_path / name) for name in ("named", "usual")]
    monkeypatch.setattr(tempfile, "gettempdir", full)
    monkeypatch.setattr(scratch, "USUAL_ROOTS", (str(tmp_path / "usual"), str(tmp_path / "none")))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "named"))
    assert scratch.remove_abandoned() == 2
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize("kind", scratch.KINDS)
def test_what_nobody_holds_is_removed_with_all_that_is_in_it(tmp_path: Path, kind: str) -> None:
    folder = abandoned(tmp_path, kind)
    assert scratch.remove_abandoned(tmp_path) == 1
    assert not folder.exists()
    assert scratch.remove_abandoned(tmp_path) == 0


def test_a_folder_is_held_while_either_the_daemon_or_its_worker_lives(tmp_path: Path) -> None:
    folder = scratch.make("bench", tmp_path)
    log = scratch.open_log(folder)
    worker = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, stdout=log
    )
    aged(folder)
    assert scratch.remove_abandoned(tmp_path) == 0
    os.close(log)  # the daemon is gone
    assert scratch.remove_abandoned(tmp_path) == 0
    worker.communicate()
    assert scratch.remove_abandoned(tmp_path) == 1


def test_what_was_just_made_or_is_no_workers_is_left_alone(tmp_path: Path) -> None:
    young = scratch.make("compile", tmp_path)
    os.close(scratch.open_log(young))
    empty = scratch.make("compile", tmp_path)
    other = tmp_path / "nearhint-demo-1"
    other.mkdir()
    (other / "worker.log").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = abandoned(elsewhere)
    link = tmp_path / "nearhint-compile-link"
    link.symlink_to(target)
    assert scratch.remove_abandoned(tmp_path) == 0
    assert all(each.exists() for each in (young, empty, other, link, target))
