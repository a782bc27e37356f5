from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from sqlite_utils import Database
from tests.unit.daemon.stores import KERNEL, Seen

from nearhint_daemon import config as settings
from nearhint_daemon import directories
from nearhint_daemon.cli import main
from nearhint_daemon.config import SETTINGS
from nearhint_daemon.directories import state_lock
from nearhint_daemon.errors import InvalidConfiguration
from nearhint_daemon.exit_codes import ExitCode
from nearhint_daemon.store import Store, database, migrations
from nearhint_daemon.store.schema import APPLICATION_ID, VERSION


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    async def fill() -> None:
        store = Store(tmp_path, observer=Seen(), clock=time.time)
        await store.start()
        await store.put_artifact(b"binary")
        await store.write(lambda tx: tx.put(KERNEL))
        await store.close()

    asyncio.run(fill())
    return tmp_path


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


@pytest.mark.parametrize("path", commands(main), ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == ExitCode.OK
    assert len(result.output.splitlines()) > 3


def test_every_setting_is_a_flag_of_serve() -> None:
    output = CliRunner().invoke(main, ["serve", "--help"]).output
    assert all(f"--{name.replace('_', '-')}" in output for name in SETTINGS)


def test_the_help_says_every_default_as_it_is() -> None:
    shown = " ".join(CliRunner().invoke(main, ["serve", "--help"]).output.split())
    for setting in SETTINGS.values():
        default = "empty" if setting.default == () else setting.default
        allowed = f"; {setting.metadata['allowed']}" if setting.metadata["allowed"] else ""
        told = f"{setting.metadata['help']} [default: {default}{allowed}]"
        assert told in shown, setting.name
        is_number = isinstance(setting.default, int | float)
        assert bool(allowed) == is_number, "what is no number says by itself what it may be"


def test_a_number_is_refused_with_what_the_help_allows() -> None:
    bounded = {name: each for name, each in SETTINGS.items() if each.metadata["allowed"]}
    assert len(bounded) > 8
    for name, setting in bounded.items():
        with pytest.raises(InvalidConfiguration) as caught:
            settings.load({name: "1e300"}, environment={})
        assert str(caught.value).endswith(f" from {setting.metadata['allowed']}"), name


def test_every_exit_code_of_a_command_is_in_the_help() -> None:
    shown = " ".join(CliRunner().invoke(main, ["--help"]).output.split())
    never = {ExitCode.UNREACHABLE, ExitCode.PARTIAL}
    for code in set(ExitCode) - never:
        assert f" {code.value} " in shown, code


def test_a_state_directory_that_is_no_such_thing_is_a_problem(state_dir: Path) -> None:
    artifacts = state_dir / "artifacts"
    artifacts.rename(state_dir / "elsewhere")
    artifacts.write_text("no directory")
    result = CliRunner().invoke(main, ["db", "check", "--state-dir", str(state_dir), "--json"])
    assert result.exit_code == ExitCode.INTEGRITY, result.output
    (problem,) = json.loads(result.stdout)["problems"]
    assert str(artifacts) in problem


def test_whoever_may_not_read_the_state_directory_is_not_told_of_damage(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)  # root may read everything
    result = CliRunner().invoke(main, ["db", "check", "--state-dir", str(state_dir)])
    assert result.exit_code == ExitCode.FAILED, result.output
    assert result.stderr.startswith("nearhintd: STORE_FAILED: ")
    assert "Permission denied" in result.stderr
    assert result.stdout == ""


def test_a_sound_database_passes_the_check(state_dir: Path) -> None:
    result = CliRunner().invoke(main, ["db", "check", "--state-dir", str(state_dir), "--json"])
    assert result.exit_code == ExitCode.OK
    report = json.loads(result.stdout)
    assert report["schema_version"] == 1
    assert report["problems"] == []
    assert report["rows"]["kernels"] == 1


def test_a_changed_artifact_fails_the_check(state_dir: Path) -> None:
    (path,) = (state_dir / "artifacts").glob("??/*")
    path.write_bytes(b"binarz")
    result = CliRunner().invoke(main, ["db", "check", "--state-dir", str(state_dir)])
    assert result.exit_code == ExitCode.INTEGRITY
    assert path.name in result.stdout
    assert result.stdout.endswith("\n1 problem\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_check_that_root_runs_leaves_nothing_that_the_daemon_may_not_write(
    state_dir: Path,
) -> None:
    (path,) = (state_dir / "artifacts").glob("??/*")
    path.write_bytes(b"binarz")
    (state_dir / "artifacts" / "corrupt").rmdir()
    for each in (state_dir, *state_dir.rglob("*")):
        os.chown(each, 12345, 12345)
    CliRunner().invoke(main, ["db", "check", "--state-dir", str(state_dir)])
    left = list(state_dir.rglob("*"))
    assert {"LOCK", "corrupt"} <= {each.name for each in left}
    assert {(each.stat().st_uid, each.stat().st_gid) for each in left} == {(12345, 12345)}


def test_the_check_refuses_a_running_daemons_database(state_dir: Path) -> None:
    lock = state_lock(state_dir)
    lock.acquire()
    result = CliRunner().invoke(main, ["db", "check", "--state-dir", str(state_dir)])
    lock.release()
    assert result.exit_code == ExitCode.REFUSED
    assert "in use" in result.stderr
    assert "stop it" in result.stderr


def test_a_state_directory_without_database_is_not_found(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["db", "check", "--state-dir", str(tmp_path)])
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "DATABASE_MISSING" in result.stderr


def test_a_database_of_an_earlier_version_is_checked_as_it_will_be_brought_up(
    state_dir: Path,
) -> None:
    path = state_dir / database.FILE_NAME
    path.unlink()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrations.migrations.apply(Database(connection), stop_before="m003_acts_of_operators")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 2")
    before = path.read_bytes()
    result = CliRunner().invoke(main, ["db", "check", "--state-dir", str(state_dir)])
    assert result.exit_code == ExitCode.OK, result.output
    assert "acts           0" in result.stdout
    assert path.read_bytes() == before


def test_a_database_of_a_later_version_is_not_called_damaged(state_dir: Path) -> None:
    with closing(sqlite3.connect(state_dir / database.FILE_NAME)) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    result = CliRunner().invoke(main, ["db", "check", "--state-dir", str(state_dir)])
    assert result.exit_code == ExitCode.REFUSED
    assert "SCHEMA_TOO_NEW" in result.stderr


@pytest.mark.parametrize("command", ["db check", "serve"])
def test_a_database_of_another_application_is_refused_for_good(
    state_dir: Path, tmp_path: Path, command: str
) -> None:
    """Exit code 6 keeps systemd from starting the daemon again."""
    with closing(sqlite3.connect(state_dir / database.FILE_NAME)) as connection:
        connection.execute("PRAGMA application_id = 7")
    more = ["--address", f"unix:{tmp_path / 'run' / 's'}"] if command == "serve" else []
    result = CliRunner().invoke(main, [*command.split(), "--state-dir", str(state_dir), *more])
    assert result.exit_code == ExitCode.REFUSED
    assert "DATABASE_FOREIGN" in result.stderr


def test_a_database_that_was_emptied_beside_its_log_is_a_problem_and_stays(
    state_dir: Path,
) -> None:
    path, log = state_dir / database.FILE_NAME, state_dir / f"{database.FILE_NAME}-wal"
    path.write_bytes(b"")
    log.write_bytes(b"what was committed")
    result = CliRunner().invoke(main, ["db", "check", "--state-dir", str(state_dir), "--json"])
    assert result.exit_code == ExitCode.INTEGRITY
    assert "empty" in json.loads(result.stdout)["problems"][0]
    assert log.read_bytes() == b"what was committed"


@pytest.mark.parametrize("name", ["LOCK", "nearhint.db", "artifacts/corrupt"])
def test_a_state_directory_that_takes_no_writes_ends_with_one_message(
    tmp_path: Path, name: str
) -> None:
    """A folder where a file should be, or a file where a folder should, fails like a full disk."""
    state, path = tmp_path / "state", tmp_path / "state" / name
    state.mkdir(mode=0o700)
    if name == "artifacts/corrupt":
        path.parent.mkdir()
        path.write_bytes(b"")
    else:
        path.mkdir()
    address = f"unix:{tmp_path}/run/nearhint.sock"
    arguments = ["serve", "--state-dir", str(state), "--address", address]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == ExitCode.FAILED
    assert result.stderr.startswith("nearhintd: STORE_FAILED: ")
    assert "Traceback" not in result.stderr


@pytest.fixture
def mounted_read_only(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory as a daemon left it that is mounted read-only since."""
    with state_lock(state_dir):
        open_ = os.open

    def refuse(path: str, flags: int, *rest: int, **at: int) -> int:
        if flags & (os.O_CREAT | os.O_RDWR | os.O_WRONLY) and str(path).startswith(str(state_dir)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return open_(path, flags, *rest, **at)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(directories, "is_read_only", lambda path: path == state_dir)
    return state_dir


def test_the_check_reads_what_is_mounted_read_only(mounted_read_only: Path) -> None:
    """As a disk is after errors: that is when it is asked for."""
    before = sorted(mounted_read_only.rglob("*"))
    arguments = ["db", "check", "--state-dir", str(mounted_read_only)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == ExitCode.OK, result.stderr
    assert result.stdout.endswith("\nno problem found\n")
    assert sorted(mounted_read_only.rglob("*")) == before, "SQLite made no index"
    with state_lock(mounted_read_only):
        assert CliRunner().invoke(main, arguments).exit_code == ExitCode.REFUSED
    (mounted_read_only / f"{database.FILE_NAME}-wal").write_bytes(b"committed")
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, "check a copy of both" in result.stderr) == (ExitCode.FAILED, True)


def test_a_daemon_says_that_its_state_is_mounted_read_only(mounted_read_only: Path) -> None:
    address = f"unix:{mounted_read_only}/run/nearhint.sock"
    arguments = ["serve", "--state-dir", str(mounted_read_only), "--address", address]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == ExitCode.FAILED
    assert "is on a file system that is mounted read-only" in result.stderr


def test_config_show_says_where_values_come_from() -> None:
    result = CliRunner(env={"NEARHINT_THREADS": "3"}).invoke(main, ["config", "show", "--origin"])
    assert result.exit_code == ExitCode.OK
    assert "threads = 3  # environment NEARHINT_THREADS" in result.stdout.splitlines()


def test_config_show_as_json() -> None:
    runner = CliRunner(env={"NEARHINT_THREADS": "3"})
    content = json.loads(runner.invoke(main, ["config", "show", "--origin", "--json"]).stdout)
    assert content["schema_version"] == 1
    assert content["settings"].keys() == content["origins"].keys() == SETTINGS.keys()
    assert content["settings"]["threads"] == 3
    assert content["origins"]["threads"] == "environment NEARHINT_THREADS"


def test_what_is_interrupted_says_so(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(directory: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nearhint_daemon.checking.check", interrupt)
    result = CliRunner().invoke(main, ["db", "check", "--state-dir", str(state_dir)])
    assert result.exit_code == ExitCode.INTERRUPTED
    assert "interrupted" in result.stderr


def test_a_bad_setting_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["serve", "--address", "0.0.0.0:50051"])
    assert result.exit_code == ExitCode.USAGE
    assert "unix socket only" in result.stderr


@pytest.mark.parametrize("words", ["config show", "--help", "serve --help", "--version"])
def test_a_stdout_that_is_full_ends_with_one_line(words: str) -> None:
    command = [sys.executable, "-m", "nearhint_daemon", *words.split()]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert ended.returncode == ExitCode.FAILED
    assert ended.stderr.decode() == "nearhintd: stdout takes no more: No space left on device\n"


@pytest.mark.parametrize(
    "command",
    ["config show", "config show --json", "db check", "--help", "serve --help", "db nope"],
)
def test_a_command_whose_reader_went_away_ends_as_sigpipe_ends_others(
    state_dir: Path, command: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "nearhint_daemon", *command.split()],
        env={**os.environ, "NEARHINT_STATE_DIR": str(state_dir)},
        stdout=writer,
        stderr=writer if command == "db nope" else subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert ended.returncode == ExitCode.UNREAD == 128 + signal.SIGPIPE
    assert not ended.stderr


def test_signs_that_an_encoding_lacks_are_replaced(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"no UTF-8 \xff.toml")
    file.write_text("threads = 3\n")
    ended = subprocess.run(
        [sys.executable, "-m", "nearhint_daemon", "config", "show", "--origin", "--config", file],
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == ExitCode.OK, ended.stderr.decode()
    assert b"no UTF-8 \\udcff.toml" in ended.stdout
