"""What a lost worker counts for is not forgotten before it is kept."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.unit.daemon.stores import Seen, with_store

from nearhint_daemon import logs
from nearhint_daemon.errors import StoreReadOnly
from nearhint_daemon.operating import reproducers
from nearhint_daemon.operating.quarantine import KILLED_FAILURES, Quarantine
from nearhint_daemon.store import Store
from nearhint_daemon.workers.errors import WorkerDied, WorkerKilled

LOST = WorkerDied(kind="bench", detail="signal 11", reproducer={})


def test_what_a_full_disk_kept_from_quarantine_goes_there_at_the_next_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: Store, seen: Seen) -> None:
        quarantine = Quarantine(store, tmp_path / "quarantine", clock=time.time)

        async def full(work: object) -> None:
            raise StoreReadOnly("the disk takes no writes now")

        assert await quarantine.lost("key", kind="variant", loss=LOST) is None
        with monkeypatch.context() as patch:
            patch.setattr(store, "write", full)
            with pytest.raises(StoreReadOnly):
                await quarantine.lost("key", kind="variant", loss=LOST)
        assert await quarantine.lost("key", kind="variant", loss=LOST) is not None
        assert quarantine.find("key") is not None

    with_store(tmp_path, scenario)


def test_what_a_worker_was_killed_at_is_given_up_late(tmp_path: Path) -> None:
    """The memory may have been another's; what takes all of it itself does not go on for good."""
    killed = WorkerKilled(kind="bench", detail="killed by SIGKILL", reproducer={})

    async def scenario(store: Store, seen: Seen) -> None:
        quarantine = Quarantine(store, tmp_path / "quarantine", clock=time.time)
        assert await quarantine.lost("key", kind="variant", loss=killed) is None
        for _ in range(KILLED_FAILURES - 2):
            with pytest.raises(WorkerKilled):
                await quarantine.lost("key", kind="variant", loss=killed)
            assert quarantine.find("key") is None
        assert await quarantine.lost("key", kind="variant", loss=killed) is not None

    with_store(tmp_path, scenario)


@pytest.mark.parametrize("is_there_again", [True, False])
def test_a_key_is_given_up_where_its_reproducer_finds_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there_again: bool
) -> None:
    """Somebody has removed all that were there; or the disk is full."""
    told: list[str] = []
    monkeypatch.setattr(logs, "warning", lambda event, **fields: told.append(event))
    root = tmp_path / "quarantine"

    async def scenario(store: Store, seen: Seen) -> None:
        quarantine = Quarantine(store, root, clock=time.time)
        root.rmdir()
        if not is_there_again:
            root.write_text("no folder")
        row = await quarantine.give_up("key", kind="variant", loss=LOST)
        assert quarantine.find("key") is not None
        assert (tmp_path / row.reproducer / "key.txt").exists() is is_there_again
        assert ("reproducer_not_kept" in told) is not is_there_again

    with_store(tmp_path, scenario)


def test_a_reproducer_that_is_written_again_is_new_and_of_the_last_failure_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproducers, "FOLDERS_LIMIT", 3)

    async def scenario(store: Store, seen: Seen) -> None:
        quarantine = Quarantine(store, tmp_path / "quarantine", clock=time.time)
        kept = {
            key: tmp_path / quarantine.keep(key, {"stderr.txt": "of the compiler"})
            for key in ("first", "second", "third")
        }
        for long_ago, folder in enumerate(kept.values()):
            os.utime(folder, (long_ago, long_ago))
        quarantine.keep("first", {"schedule.txt": "of the verification"})
        quarantine.keep("fourth", {})
        assert {key for key, folder in kept.items() if folder.exists()} == {"first", "third"}
        names = {path.name for path in kept["first"].iterdir()}
        assert names == {"key.txt", "schedule.txt"}

    with_store(tmp_path, scenario)


def test_what_is_wrong_takes_no_place_from_what_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it counted there: of a compiler's refusals there may be hundreds."""
    monkeypatch.setattr(reproducers, "FOLDERS_LIMIT", 2)

    async def scenario(store: Store, seen: Seen) -> None:
        quarantine = Quarantine(store, tmp_path / "quarantine", clock=time.time)
        row = await quarantine.give_up("key", kind="variant", loss=LOST)
        for number in range(4):
            folder = quarantine.keep_rejected(f"wrong {number}", {"stderr.txt": "refused"})
            assert (tmp_path / folder / "stderr.txt").exists()
        assert len(list((tmp_path / "quarantine").iterdir())) == quarantine.count() == 1
        assert quarantine.folder_of(row) == row.reproducer
        for number in range(2):
            quarantine.keep(f"lost {number}", {})
        assert quarantine.folder_of(row) == reproducers.NOT_KEPT

    with_store(tmp_path, scenario)
