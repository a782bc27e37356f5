"""What the commands share: options, the connection they open, and how errors end them."""

from __future__ import annotations

import getpass
import math
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec

import click

from nearhint import config, version
from nearhint.cli_output import replace_what_no_terminal_shows, talk
from nearhint.connection import Connection
from nearhint.counters import Counters
from nearhint.ending import interrupted_when_told_to_end
from nearhint.errors import (
    DaemonUnreachable,
    Disabled,
    InvalidSetting,
    NearhintError,
)
from nearhint.exit_codes import ExitCode, exit_code
from nearhint_rules.errors import RulesError

Arguments = ParamSpec("Arguments")
SIZE_DIGITS = 18
"""More than any size of a Program has, and no more than a message can carry."""


class _Seconds(click.FloatRange):
    """Seconds above 0. `FloatRange` alone lets "nan" and "inf" pass, which no clock reaches."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number; fails as a wrong option does."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no number of seconds.", param, ctx)
        return seconds


SECONDS = _Seconds(min=0, min_open=True)

address_option = click.option(
    "--address", metavar="unix:PATH", help="The daemon's socket; also NEARHINT_ADDRESS."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")


def exits(command: Callable[Arguments, ExitCode | None]) -> Callable[Arguments, None]:
    """Ends a command with an exit code; an error of ours becomes a line on stderr.

    One that is told to end, as by `timeout` or a scheduler, ends like one that is interrupted.
    """

    @wraps(command)
    def run(*args: Arguments.args, **options: Arguments.kwargs) -> None:
        replace_what_no_terminal_shows()
        for name, meant in config.misspelt().items():
            talk(f"nearhint: {name} is no setting; did you mean {meant}?")
        try:
            _check_text(options)
            with interrupted_when_told_to_end():
                code = command(*args, **options) or ExitCode.OK
        except NearhintError as error:
            talk(f"nearhint: {error.report()}")
            code = exit_code(error)
        except RulesError as error:
            talk(f"nearhint: the daemon's answer makes no sense: {error.code}: {error}")
            code = ExitCode.INTEGRITY
        except KeyboardInterrupt:
            talk("nearhint: interrupted")
            code = ExitCode.INTERRUPTED
        click.get_current_context().exit(int(code))

    return run


def _check_text(options: Mapping[str, object]) -> None:
    """Raises `InvalidSetting` for bytes that are no UTF-8: no message can carry them."""
    for name, value in options.items():
        for text in value if isinstance(value, tuple) else (value,):
            try:
                (text if isinstance(text, str) else "").encode()
            except UnicodeEncodeError as error:
                raise InvalidSetting(
                    name=name.replace("_", "-"), expected="UTF-8", value=text
                ) from error


@contextmanager
def connected(address: str | None) -> Generator[Connection]:
    """A connection to the daemon at `address`, or at the configured one, versions compared."""
    connection = open_connection(address)
    try:
        yield connection
    finally:
        connection.close()


def open_connection(address: str | None) -> Connection:
    """The same, for whoever closes it themselves."""
    settings = read_settings(address)
    chosen = settings.address
    if chosen is None:
        raise DaemonUnreachable(address="no address", problem="NEARHINT_ADDRESS is not set")
    connection = Connection(
        chosen,
        trusted_uids=settings.trusted_uids,
        counters=Counters(),
        version=version.VERSION,
    )
    try:
        connection.hello()
    except BaseException:
        connection.close()
        raise
    return connection


def read_settings(address: str | None) -> config.Config:
    """The environment's, but for an address that is given; raises `InvalidSetting`."""
    given = {"NEARHINT_ADDRESS": address} if address else {}
    return config.from_environment({**os.environ, **given})


def check_enabled(address: str | None = None) -> None:
    """Raises `Disabled` where models would run as captured, so that there is nothing to show."""
    if read_settings(address).is_disabled:
        raise Disabled(name="NEARHINT_DISABLE")


def actor() -> str:
    """Who runs the command, for the daemon's record."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = ""
    return name if name and name.isprintable() else f"uid {os.getuid()}"


def examples(*lines: str) -> str:
    r"""The end of a command's help, as click wants it: `\b` keeps the lines as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
