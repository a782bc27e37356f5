"""What `make clean` takes away: the environment that it was told of, and no other."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in (".venv", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (tmp_path / "no-environment").mkdir()
    return tmp_path


@pytest.mark.parametrize("chosen", [[], ["VENV=other"], ["VENV=no-environment"], ["VENV="]])
def test_clean_removes_the_environment_that_is_used_and_no_other(
    checkout: Path, chosen: list[str]
) -> None:
    subprocess.run(["make", "clean", *chosen], cwd=checkout, check=True, timeout=60)
    gone = {"": {".venv"}, "VENV=other": {"other"}}.get("".join(chosen), set())
    left = {path.name for path in checkout.iterdir()}
    assert left == {".venv", "other", "no-environment", "Makefile"} - gone
