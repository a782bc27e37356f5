"""What commands print: the text of errors and of sources as it is, wherever stdout leads."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.unit.client import doubling
from tests.unit.client.cli_cases import run

from nearhint.cli_output import table
from nearhint.exit_codes import ExitCode
from nearhint.testing import FakeDaemon

COMPILER = "kernel.c:100:5: error: expected ':a:' before ':b:'"


def test_what_a_compiler_said_is_printed_as_it_said_it(
    explained: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    explained.store.explained[doubling.KERNEL].rejected.append(COMPILER)
    assert COMPILER in run("explain", "abab", "--address", explained.address).stdout
    table(["reason"], [[COMPILER]])
    assert COMPILER in capsys.readouterr().out


def test_a_line_is_as_long_as_it_is(explained: FakeDaemon) -> None:
    line = "  y[i] = " + " + ".join(f"x{number}[i]" for number in range(100))
    explained.store.explained[doubling.KERNEL].ir = f"kernel (k0)\n{line}"
    explained.store.explained[doubling.KERNEL].rejected.append(line)
    told = run("explain", "abab", "--address", explained.address).stdout.splitlines()
    assert line in told
    assert f"  {line}" in told


@pytest.mark.parametrize("command", ["status", "kernels", "kernels --json", "explain abab"])
def test_a_process_without_stdout_ends_as_others_do(explained: FakeDaemon, command: str) -> None:
    script = f'"$0" -m nearhint {command} --address "$1" >&-'
    arguments = ["sh", "-c", script, sys.executable, explained.address]
    ended = subprocess.run(arguments, stderr=subprocess.PIPE, timeout=60, check=False)
    assert ended.returncode == ExitCode.OK, ended.stderr.decode()
    assert b"Traceback" not in ended.stderr
