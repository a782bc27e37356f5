"""`nearhintd` on the command line: stdout is data, stderr is talk."""

from __future__ import annotations

import errno
import io
import json
import sqlite3
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import click

from nearhint_daemon import config as settings
from nearhint_daemon import logs
from nearhint_daemon.errors import DaemonError, StoreError
from nearhint_daemon.exit_codes import ExitCode

SCHEMA_VERSION = 1
_STDOUT_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
Arguments = ParamSpec("Arguments")

EPILOG = """\b
Examples:
  nearhintd serve --state-dir /var/lib/nearhint --address unix:/run/nearhint/nearhint.sock
  nearhintd config show --origin
  nearhintd db check --state-dir /var/lib/nearhint --json
"""


def _exits(command: Callable[Arguments, ExitCode]) -> Callable[Arguments, None]:
    """Turns errors into a message on stderr and an exit code."""

    @wraps(command)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        _replace_what_no_terminal_shows()
        try:
            code = command(*args, **kwargs)
        except DaemonError as error:
            click.echo(f"nearhintd: {error.code}: {error}", err=True)
            if error.hint:
                click.echo(f"  {error.hint}", err=True)
            code = error.exit_code
        except KeyboardInterrupt:
            click.echo("nearhintd: interrupted", err=True)
            code = ExitCode.INTERRUPTED
        sys.exit(int(code))

    return run


def _replace_what_no_terminal_shows() -> None:
    """Signs that the encoding of stdout or stderr lacks are replaced, not a reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):
                stream.reconfigure(errors="backslashreplace")


_file_option = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file with settings; also NEARHINT_CONFIG.",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")


class _Commands(click.Group):
    """A group whose commands end as other programs do where nobody reads on: as after SIGPIPE.

    Where what they print has no room, they have failed, and say so in a line.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Reads the arguments; `--help` and `--version` print here."""
        with _output_ends():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        with _output_ends():
            return super().invoke(ctx)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Runs the command line, and prints what was wrong with it."""
        with _output_ends():
            return super().main(*args, **extra)


@contextmanager
def _output_ends() -> Generator[None]:
    try:
        yield
    except BrokenPipeError as error:
        if error.filename is not None:
            raise
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            try:
                if stream is not None:
                    stream.flush()
            except BrokenPipeError:
                setattr(sys, name, io.StringIO())  # else the interpreter tries again at its end
        sys.exit(ExitCode.UNREAD)
    except OSError as error:
        if error.filename is not None or error.errno not in _STDOUT_FULL:
            raise
        sys.stdout = io.StringIO()  # else the interpreter tries again when it ends
        try:
            click.echo(f"nearhintd: stdout takes no more: {error.strerror}", err=True)
        except OSError:
            sys.stderr = io.StringIO()
        sys.exit(ExitCode.FAILED)


@click.group(cls=_Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nearhint", prog_name="nearhintd")
def main() -> None:
    """The nearhint daemon: tunes kernels, keeps the results, serves tables.

    Exit codes: 0 ok, 1 failed, 2 usage or a setting, 4 not found, 5 integrity problem, 6 refused
    (locked, unsafe, a newer database), 130 interrupted, 141 nobody reads on (as after `| head`).
    """


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _setting_options(command: Callable[..., None]) -> Callable[..., None]:
    for name, setting in reversed(settings.SETTINGS.items()):
        facts = ["default: " + ("empty" if setting.default == () else str(setting.default))]
        if setting.metadata["allowed"]:
            facts.append(setting.metadata["allowed"])
        text = f"{setting.metadata['help']} [{'; '.join(facts)}]"
        command = click.option(_flag(name), name, default=None, help=text)(command)
    return command


@main.command(epilog=EPILOG)
@_file_option
@_setting_options
@_exits
def serve(file: Path | None, **flags: str | None) -> ExitCode:
    """Serve until SIGTERM; a second SIGTERM ends it at once.

    Each setting is a flag, a variable (--state-dir: NEARHINT_STATE_DIR) and a key of the file
    (state_dir); a flag wins over a variable, and a variable over the file.
    """
    loaded = settings.load(flags, file=file)
    logs.configure(log_format=loaded.config.log_format, level=loaded.config.log_level)
    for warning in loaded.warnings:
        logs.warning("setting_ignored", problem=warning)
    # gRPC and the rest are loaded only by the command that needs them.
    from nearhint_daemon.lifecycle import serve as live

    return live(loaded.config)


@main.group()
def db() -> None:
    """Look after the database of a stopped daemon."""


@db.command("check")
@click.option("--state-dir", default=None, help="The daemon's state directory.")
@_file_option
@_json_option
@_exits
def db_check(state_dir: str | None, file: Path | None, as_json: bool) -> ExitCode:
    """Check the database, every row and every artifact's hash.

    Of a stopped daemon. Exit code 5 if something is wrong, 4 if there is no database.
    """
    from nearhint_daemon.checking import Report, check

    loaded = settings.load({"state_dir": state_dir}, file=file)
    report: Report
    try:
        report = check(loaded.config.state_dir)
    except sqlite3.DatabaseError as error:
        report = {"problems": [f"the database cannot be read: {error}"], "rows": {}}
    except PermissionError as error:
        raise StoreError(f"{error.filename} cannot be read: {error.strerror}") from error
    except OSError as error:
        report = {"problems": [f"the state directory cannot be used: {error}"], "rows": {}}
    problems, rows = report["problems"], report["rows"]
    if as_json:
        click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **report}))
    else:
        for name, count in rows.items():
            click.echo(f"{name:14} {count}")
        for problem in problems:
            click.echo(f"problem: {problem}")
        told = {0: "no problem found", 1: "1 problem"}
        click.echo(told.get(len(problems), f"{len(problems)} problems"))
    return ExitCode.INTEGRITY if problems else ExitCode.OK


@main.group("config")
def config_group() -> None:
    """Look at the settings."""


@config_group.command("show")
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@_file_option
@_json_option
@_exits
def config_show(origin: bool, file: Path | None, as_json: bool) -> ExitCode:
    """Print every setting as `serve` would see it."""
    loaded = settings.load({}, file=file)
    for warning in loaded.warnings:
        click.echo(f"nearhintd: {warning}", err=True)
    values = {name: _plain(getattr(loaded.config, name)) for name in settings.SETTINGS}
    if as_json:
        shown: dict[str, object] = {"schema_version": SCHEMA_VERSION, "settings": values}
        if origin:
            shown["origins"] = dict(loaded.origins)
        click.echo(json.dumps(shown))
        return ExitCode.OK
    for name, value in values.items():
        where = f"  # {loaded.origins[name]}" if origin else ""
        click.echo(f"{name} = {json.dumps(value)}{where}")
    return ExitCode.OK
