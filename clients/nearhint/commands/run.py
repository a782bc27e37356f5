"""`nearhint demo`, and what it shares with `warmup`: sizes, and parts loaded on first use."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from types import ModuleType

import click

from nearhint.commands.options import (
    SECONDS,
    SIZE_DIGITS,
    check_enabled,
    examples,
    exits,
    json_option,
)
from nearhint.errors import FileMissing, InvalidManifest, InvalidSetting, MissingExtra
from nearhint.exit_codes import ExitCode
from nearhint.warmup.files import read_file

Sizes = dict[str, int]


def read_sizes(text: str) -> list[Sizes]:
    """Every combination of `batch=1,8;tokens=16,64`; raises `InvalidSetting`.

    >>> read_sizes("batch=1,8;tokens=16")
    [{'batch': 1, 'tokens': 16}, {'batch': 8, 'tokens': 16}]
    """
    axes: dict[str, list[int]] = {}
    for part in text.split(";"):
        name, equals, values = part.strip().partition("=")
        numbers = [value.strip() for value in values.split(",")]
        if not name.isidentifier() or not equals or name in axes:
            raise _bad_sizes(text)
        if not all(number.isdecimal() and len(number) <= SIZE_DIGITS for number in numbers):
            raise _bad_sizes(text)
        if not all(map(int, numbers)):
            raise _bad_sizes(text)
        axes[name] = [int(number) for number in numbers]
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


def read_pairs(text: str) -> tuple[tuple[int, int], ...]:
    """The (batch, tokens) of `batch=1,8;tokens=16,64`; raises `InvalidSetting`.

    >>> read_pairs("batch=1,8;tokens=16")
    ((1, 16), (8, 16))
    """
    points = read_sizes(text)
    if any(point.keys() != {"batch", "tokens"} for point in points):
        raise _bad_sizes(text)
    return tuple((point["batch"], point["tokens"]) for point in points)


def read_sizes_file(path: Path) -> list[Sizes]:
    """The combinations of each line of a file; empty lines and lines that start with # are none."""
    try:
        lines = [line.strip() for line in read_file(path).splitlines()]
    except (FileMissing, InvalidManifest) as error:
        raise InvalidSetting(name="--sizes-file", expected="a text file", value=path) from error
    return [sizes for line in lines if line and line[0] != "#" for sizes in read_sizes(line)]


def _bad_sizes(text: str) -> InvalidSetting:
    return InvalidSetting(name="--sizes", expected="like 'batch=1,8;tokens=16,64'", value=text)


def load_part(module: str, *, what: str, extra: str) -> ModuleType:
    """A module that an extra brings; raises `MissingExtra` in the name of `what`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "nearhint":
            raise
        raise MissingExtra(what=what, module=str(error.name), extra=extra) from error


@click.command(
    epilog=examples(
        "nearhint demo",
        "nearhint demo --compare inductor --json",
        "nearhint demo --device cuda --model ./my-model --sizes 'batch=1,16;tokens=12,60'",
    )
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where."
)
@click.option(
    "--compare", type=click.Choice(["inductor"]), help="Also time torch.compile(dynamic=True)."
)
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False),
    help="A directory as sentence-transformers saves one; else all-MiniLM-L6-v2 from its package.",
)
@click.option(
    "--sizes",
    help="What to encode, all combinations: 'batch=1,8;tokens=16,64'; else a pinned list.",
)
@click.option(
    "--settle-timeout-s",
    type=SECONDS,
    default=600.0,
    show_default=True,
    help="Go on with what is tuned after so many seconds.",
)
@json_option
@exits
def demo(
    device: str,
    compare: str | None,
    model: str | None,
    sizes: str | None,
    settle_timeout_s: float,
    as_json: bool,
) -> ExitCode:
    """Encode real sentences of every length with a real model, through a daemon of its own.

    Cold, then warm, then from a second process, then after the daemon was killed and started
    again. Needs nearhint[daemon,torch,demo].
    """
    check_enabled()
    module = load_part("nearhint.demo", what="nearhint demo", extra="daemon,torch,demo")
    options = module.DemoOptions(
        device=device,
        compare=compare or "",
        model=model or "",
        sizes=read_pairs(sizes) if sizes else (),
        settle_timeout_s=settle_timeout_s,
    )
    report = module.run(options)
    click.echo(module.as_json(report) if as_json else module.as_table(report))
    return ExitCode.OK
