"""How commands speak: tables and JSON on stdout, talk and progress bars on stderr."""

from __future__ import annotations

import errno
import io
import json
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from nearhint.errors import OutputFailed
from nearhint.exit_codes import ExitCode

SCHEMA_VERSION = 1
"""Of every `--json` output. Fields are added without a new number; unknown ones are ignored."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
PIPE_WIDTH = 200
"""Columns where stdout is no terminal: nothing is cut off for a file."""

IDENTITIES = frozenset({"kernel", "variant", "target"})
"""Columns of what is named in the next command."""
WORD_COLUMNS = 16
"""Longer words may be folded in a table."""
BETWEEN_COLUMNS = 3
"""A line and a blank on either side."""


def replace_what_no_terminal_shows() -> None:
    """Signs that the encoding of stdout or stderr lacks are replaced, not a reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):  # what cannot be asked where it is stays as it is
                stream.reconfigure(errors="backslashreplace")


class Commands(click.Group):
    """A group whose commands end as other programs do where nobody reads on: as after SIGPIPE.

    click, like rich, ends them with 1, as if they had failed. Where what they print has no room,
    they have failed, and say so in a line.
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
        if error.filename is not None or error.errno not in _FULL:
            raise
        sys.stdout = io.StringIO()  # else the interpreter tries again when it ends, and says so
        try:
            talk(f"nearhint: {OutputFailed(path='stdout', problem=error.strerror).report()}")
        except OSError:
            sys.stderr = io.StringIO()
        sys.exit(ExitCode.FAILED)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raises it again: how a command ends is for `Commands` to say."""
        raise BrokenPipeError


def print_json(content: Mapping[str, object]) -> None:
    """One JSON object on stdout, with `schema_version`."""
    click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **content}, indent=2))


def stdout() -> Console:
    """The console for data; what is printed is nowhere where a process has no stdout."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return _Console(width=None if is_terminal else PIPE_WIDTH, highlight=False, emoji=False)


def tell(text: str) -> None:
    """Text for people on stdout; a line is as long as it is, and no terminal's width folds it."""
    click.echo(text)


def stderr() -> Console:
    """The console for talk."""
    return _Console(stderr=True, highlight=False, emoji=False)


def talk(line: str) -> None:
    """One line for people, on stderr."""
    click.echo(line, err=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """A table on stdout; a column whose name ends in a unit or a number sign is right-aligned.

    `IDENTITIES` stay on one line. On a terminal that is too narrow for the words of a row, each row
    is a group of lines instead, one for each cell that says something.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    console = stdout()
    widths = _widths(columns, cells, console.width - BETWEEN_COLUMNS * len(columns) - 1)
    if not widths and console.is_terminal:
        _print_groups(columns, cells, title=title)
        return
    drawn = Table(title=title or None, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        is_number = column.endswith(("#", "%", "µs", "ms", "log2"))
        drawn.add_column(
            column,
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=column in IDENTITIES,
            width=widths[number] if widths else None,
        )
    for row in cells:
        drawn.add_row(*map(escape, row))
    console.print(drawn)


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """How wide each column is, so that no word is folded but a long one; empty without the room.

    What is left is given to the narrowest of those that have more to say than a word a line.
    """
    widths: list[int] = []
    wanted: list[int] = []
    for name, *cells in zip(columns, *rows, strict=True):
        longest = max(map(cell_len, " ".join((name, *cells)).split()), default=0)
        wanted.append(max(map(cell_len, (name, *cells))))
        widths.append(wanted[-1] if name in IDENTITIES else min(longest, WORD_COLUMNS))
    left = room - sum(widths)
    while left > 0:
        open_ones = [number for number, width in enumerate(widths) if width < wanted[number]]
        if not open_ones:
            break
        widths[min(open_ones, key=widths.__getitem__)] += 1
        left -= 1
    return widths if left >= 0 else []


def _print_groups(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str) -> None:
    if title:
        tell(title)
    if not rows:
        tell(f"none ({', '.join(columns)})")
    widest = max(map(len, columns))
    for number, row in enumerate(rows):
        if number:
            tell("")
        for name, cell in zip(columns, row, strict=True):
            if cell:
                tell(f"{name:{widest}}  {cell}")


def counted(count: int, noun: str) -> str:
    """How many of something, for people.

    >>> counted(1, "job"), counted(2, "job")
    ('1 job', '2 jobs')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def when(seconds: float) -> str:
    """Seconds since the epoch, for people; a question mark where no calendar has them.

    >>> when(0.0), when(1e300), when(float("nan"))
    ('1970-01-01 00:00:00Z', '?', '?')
    """
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OSError, OverflowError, ValueError):
        return "?"


@contextmanager
def progress(title: str) -> Generator[Callable[[int, int], None]]:
    """A progress bar on stderr, where that is a terminal; call what it gives with (done, total)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = stderr()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(title, total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield advance
