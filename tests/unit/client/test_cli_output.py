"""What commands print: the text of errors and of sources as it is, wherever stdout leads."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.client import doubling
from tests.unit.client.cli_cases import run

from nearhint import cli_output
from nearhint.cli_output import progress, table
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


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "kernels --json",
        "kernels",
        "explain abab",
        "--help",
        "pin --help",
        "--version",
    ],
)
def test_a_command_whose_reader_went_away_ends_as_sigpipe_ends_others(
    explained: FakeDaemon, command: str
) -> None:
    ended = _unread(command, explained.address)
    assert ended.returncode == ExitCode.UNREAD == 128 + signal.SIGPIPE
    assert ended.stderr == b""


@pytest.mark.parametrize("command", ["explain", "no-such-command", "explain ffff", "status"])
def test_a_command_of_which_nobody_reads_the_errors_either_ends_so_as_well(
    explained: FakeDaemon, command: str
) -> None:
    assert _unread(command, explained.address, stderr=subprocess.STDOUT).returncode == (
        ExitCode.UNREAD
    )


def _unread(
    command: str, address: str, *, stderr: int = subprocess.PIPE
) -> subprocess.CompletedProcess[bytes]:
    """The end of a command whose stdout is a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-m", "nearhint", *command.split()],
            env={**os.environ, "NEARHINT_ADDRESS": address},
            stdout=writer,
            stderr=stderr,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    "command", ["status", "kernels --json", "--help", "regret --help", "--version"]
)
def test_a_stdout_that_is_full_ends_with_one_line(explained: FakeDaemon, command: str) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "nearhint", *command.split()],
            env={**os.environ, "NEARHINT_ADDRESS": explained.address},
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert ended.returncode == ExitCode.FAILED
    (line,) = [
        line for line in ended.stderr.decode().splitlines() if not line.startswith("problem")
    ]
    assert line.startswith("nearhint: OUTPUT_FAILED: stdout: No space left")


def test_explain_names_the_variant_that_an_operator_is_to_name(explained: FakeDaemon) -> None:
    told = run("explain", "abab", "--address", explained.address).stdout.splitlines()
    (row,) = [line for line in told if "schedule 1 (default)" in line and "k0=64 " in line]
    assert doubling.variant().id[:12] in row


def test_progress_is_nothing_where_no_terminal_shows_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress("3fa9") as advance:
        advance(1, 2)
    assert capsys.readouterr() == ("", "")


def test_what_is_named_in_the_next_command_is_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_output, "PIPE_WIDTH", 80)
    columns = ("kernel", "title", "symbols", "tier", "hints #", "programs #", "why none")
    table(columns, [("a1b2c3d4e5f6", "pow+mean+add+rsqrt+mul", "k0, k1", "T2", 4, 1, "")])
    assert "a1b2c3d4e5f6" in capsys.readouterr().out


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_cell_is_lost_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ("hint", "rank #", "variant", "candidate", "guard", "median µs", "why not")
    first = ("k0=4, k1=128", 1, "db6762ee5bf3", "cpu.rows lanes=16", "always", "1.88", "")
    rows = [first, ("k0=4, k1=128", "", "", "original ops", "", "11.41", "too [bold]slow")]
    for width in ("20", "40", "80", "200"):
        monkeypatch.setenv("COLUMNS", width)
        terminal = _Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        table(columns, rows, title="candidates")
        told = terminal.getvalue()
        words = {word for row in (columns, *rows) for cell in row for word in str(cell).split()}
        assert all(word in told for word in words), (width, told)
