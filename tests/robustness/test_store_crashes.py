"""P1: the store is killed at its every write, sync and rename; what it acknowledged is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.integration.daemon_process import ROOT, SOURCES

from nearhint_daemon.store import Reading, database
from nearhint_daemon.store.artifacts import ArtifactFiles
from nearhint_daemon.store.rows import ArtifactRow, MeasurementRow

SYSCALLS = "pwrite64,fdatasync,fsync,rename,renameat,renameat2,ftruncate"
POINTS_LIMIT = 200


def run_until(point: int, state_dir: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(ROOT / source) for source in SOURCES)
    command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={SYSCALLS}"]
    inject = ["-e", f"inject={SYSCALLS}:signal=KILL:when={point}"]
    writer = [sys.executable, "-m", "tests.robustness.store_writer", str(state_dir)]
    return subprocess.run(
        [*command, *inject, *writer],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def can_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    tried = subprocess.run(
        ["strace", "-f", "-qq", "-o", os.devnull, "true"], capture_output=True, check=False
    )
    return tried.returncode == 0


def check(state_dir: Path, acknowledged: list[str], point: int) -> None:
    """Everything acknowledged is there, nothing is damaged, no row names a missing file."""
    path = state_dir / database.FILE_NAME
    wanted = {
        kind: {line.split()[1] for line in acknowledged if line.startswith(kind)}
        for kind in ("artifact", "measurement")
    }
    if not path.exists():
        assert not acknowledged
        return
    # As a daemon would: the writer first, which recovers the log and finishes a migration.
    database.open_writer(path).close()
    files = ArtifactFiles(state_dir / "artifacts")
    with closing(database.open_reader(path)) as connection:
        assert database.integrity_check(connection) == (), f"point {point}"
        reading = Reading(connection, on_corrupt=lambda table, key: pytest.fail(f"{table} {key}"))
        artifacts = {row.sha256 for row in reading.where(ArtifactRow)}
        measurements = {str(row.id) for row in reading.where(MeasurementRow)}
    assert wanted["artifact"] <= artifacts, f"point {point}"
    assert wanted["measurement"] <= measurements, f"point {point}"
    for sha256 in artifacts:
        files.get(sha256)
    assert not list((state_dir / "artifacts").glob("??/*.part"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("is_migrated", "stride"),
    [pytest.param(True, 1, id="writing"), pytest.param(False, 6, id="migrating")],
)
def test_nothing_acknowledged_is_lost_wherever_the_store_is_killed(
    tmp_path: Path, is_migrated: bool, stride: int
) -> None:
    if not can_trace():
        pytest.skip("not run: strace cannot trace here")
    for kills, point in enumerate(range(1, POINTS_LIMIT, stride)):
        state_dir = tmp_path / str(point)
        state_dir.mkdir(mode=0o700)
        if is_migrated:
            database.open_writer(state_dir / database.FILE_NAME).close()
        result = run_until(point, state_dir)
        check(state_dir, result.stdout.splitlines(), point)
        if result.returncode == 0:
            assert len(result.stdout.splitlines()) == 2
            assert kills >= 8, "too few points: the injection does not work"
            return
    pytest.fail(f"more than {POINTS_LIMIT} points")
