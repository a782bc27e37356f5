"""A warm-up whose daemon is killed again and again, at moments that nobody chose."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.integration import test_warmup as warming
from tests.integration.daemon_process import DaemonProcess, daemon_in

from nearhint.exit_codes import ExitCode
from nearhint_rules.companions import odd_below

KILLS = 10
SEED = 7
BETWEEN = (0.1, 1.5)
"""Of the time that the first hint took: a job that meets too many kills in a row is given up."""
SIZES = [2**power for power in range(14)]
OUTGROWN = (12608, 208)
"""What has 2.5 times the elements of the largest hint."""
MANIFEST = f"""
[[model]]
entry = "warm_entry:warm_up"
dims = {{ rows = {SIZES} }}
"""

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    folder = tmp_path / "daemon"
    folder.mkdir()
    (tmp_path / "warm_entry.py").write_text(warming.ENTRY)
    with daemon_in(
        folder, module="nearhint_daemon", verb=("serve",), flags=warming.FLAGS
    ) as process:
        process.start()
        yield process


def test_ten_kills_lose_and_repeat_no_measurement_and_the_warm_up_ends_well(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    moments = random.Random(SEED)
    process = warming.start(daemon, tmp_path, MANIFEST)
    warming.until_line(process, 1)
    started_s = time.monotonic()
    warming.until_line(process, 1)
    first_s = time.monotonic() - started_s
    seen: warming.Rows = {}
    for _ in range(KILLS):
        with suppress(subprocess.TimeoutExpired):
            process.wait(first_s * moments.uniform(*BETWEEN))
        now = warming.searched(daemon)
        assert warming.is_kept(seen, now)
        seen = now
        daemon.kill()
        daemon.start()
    output, talk = process.communicate()
    assert process.returncode == ExitCode.OK, talk + output
    after = warming.searched(daemon)
    assert warming.is_kept(seen, after)
    assert warming.hints(daemon) == len(SIZES)
    assert warming.farther(daemon) == {OUTGROWN}
    # One row is a Kernel of its own. Of the others each hint has a companion odd in all that is a
    # multiple of 16, and two more where both sizes are.
    many = [(size, 128) for size in SIZES[1:]]
    odd = {tuple(each if each % 16 else odd_below(each) for each in dims) for dims in many}
    beside = warming.beside(daemon)
    assert {dims for dims in beside if not warming.is_one_sided(dims)} == odd
    assert len(beside) == len(odd) + 2 * sum(size % 16 == 0 for size, _ in many)
