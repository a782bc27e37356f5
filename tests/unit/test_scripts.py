"""The commands that an installation has, before they have loaded what they need."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "scripts"
]
INTERRUPTED = 130
INTERRUPT = """import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("as_module", [False, True], ids=["script", "module"])
def test_a_command_that_is_interrupted_while_it_loads_says_so(
    script: str, as_module: bool, tmp_path: Path
) -> None:
    (tmp_path / "click.py").write_text(INTERRUPT)
    module, _, name = SCRIPTS[script].partition(":")
    code = f"import sys; from {module} import {name}; sys.exit({name}())"
    package = module.split(".")[0]
    ended = subprocess.run(
        [sys.executable, *(("-m", package) if as_module else ("-c", code)), "--help"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.stderr.decode() == f"{script}: interrupted\n"
    assert ended.returncode == INTERRUPTED
