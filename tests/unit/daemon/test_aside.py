"""What is moved aside because its bytes are wrong does not fill the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.daemon.stores import Seen, with_store

from nearhint_daemon.errors import ArtifactCorrupt
from nearhint_daemon.store import Store, artifacts, database
from nearhint_daemon.store.artifacts import ArtifactFiles


def test_of_damaged_databases_the_newest_stay(tmp_path: Path) -> None:
    """Each start on a disk that fails may leave one, as large as the store was."""

    async def scenario(store: Store, seen: Seen) -> None:
        assert store.moved_aside is not None
        moved.append(store.moved_aside)

    moved: list[Path] = []
    own = tmp_path / "corrupt-by-hand"
    ahead = tmp_path / f"corrupt-{2**62}"  # of a clock that was ahead
    for folder in (own, ahead):
        folder.mkdir()
    for _ in range(database.CORRUPT_KEPT + 1):
        (tmp_path / database.FILE_NAME).write_bytes(b"x" * 8192)
        with_store(tmp_path, scenario)
    # The last of those that stay is the one that was moved last, whatever the clock says.
    newest = moved[-database.CORRUPT_KEPT + 1 :]
    assert set(tmp_path.glob("corrupt-*")) == {own, ahead, *newest}
    assert (moved[-1] / database.FILE_NAME).exists()


def test_of_corrupt_binaries_the_newest_stay(tmp_path: Path) -> None:
    files = ArtifactFiles(tmp_path / "artifacts")
    found: list[str] = []
    for number in range(artifacts.CORRUPT_KEPT + 3):
        sha256 = files.put(b"%d" % number)
        (tmp_path / "artifacts" / sha256[:2] / sha256).write_bytes(b"binarz")
        with pytest.raises(ArtifactCorrupt):
            files.get(sha256)
        found.append(sha256)
    kept = {path.stem for path in (tmp_path / "artifacts" / "corrupt").iterdir()}
    assert kept == set(found[-artifacts.CORRUPT_KEPT :])
