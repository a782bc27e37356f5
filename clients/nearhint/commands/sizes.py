"""Sizes as commands take and tell them: in an option, one a symbol or lists; in lines of a file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from nearhint.commands.options import SIZE_DIGITS
from nearhint.errors import FileMissing, InvalidManifest, InvalidSetting
from nearhint.warmup.files import read_file

Sizes = dict[str, int]
SIZES_OPTION = "--sizes"
COMBINATIONS_LIMIT = 4_096
"""Combinations of one option or line: lists multiply, and each is a call of a model."""


def read_sizes(text: str, *, origin: str = SIZES_OPTION) -> list[Sizes]:
    """Every combination of `batch=1,8;tokens=16,64`; raises `InvalidSetting` naming `origin`.

    >>> read_sizes("batch=1,8;tokens=16")
    [{'batch': 1, 'tokens': 16}, {'batch': 8, 'tokens': 16}]
    """
    axes: dict[str, list[int]] = {}
    for part in text.split(";"):
        name, equals, values = part.strip().partition("=")
        numbers = [value.strip() for value in values.split(",")]
        if not name.isidentifier() or not equals or name in axes:
            raise _bad_sizes(text, origin)
        if not all(number.isdecimal() and len(number) <= SIZE_DIGITS for number in numbers):
            raise _bad_sizes(text, origin)
        if not all(map(int, numbers)):
            raise _bad_sizes(text, origin)
        axes[name] = [int(number) for number in numbers]
    count = math.prod(map(len, axes.values()))
    if count > COMBINATIONS_LIMIT:
        expected = f"at most {COMBINATIONS_LIMIT} combinations, not {count}"
        raise InvalidSetting(name=origin, expected=expected, value=text)
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


def read_dims(text: str | None, *, option: str = "--dims") -> Sizes:
    """`k0=128,k1=384` as sizes by symbol; raises `InvalidSetting`.

    >>> read_dims("k0=128,k1=384")
    {'k0': 128, 'k1': 384}
    """
    sizes: dict[str, int] = {}
    for part in (text or "").split(","):
        name, equals, value = part.partition("=")
        if not part.strip():
            continue
        if not equals or not value.strip().isdecimal() or name.strip() in sizes:
            raise InvalidSetting(name=option, expected="like k0=128,k1=384", value=text)
        if len(value.strip()) > SIZE_DIGITS:
            expected = f"sizes of at most {SIZE_DIGITS} digits"
            raise InvalidSetting(name=option, expected=expected, value=text)
        sizes[name.strip()] = int(value)
    return sizes


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Sizes for people.

    >>> sizes_text({"k0": 128, "k1": 384})
    'k0=128, k1=384'
    """
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def dims_text(symbols: Sequence[str], dims: Sequence[int]) -> str:
    """A Kernel's sizes for people, by its symbols.

    >>> dims_text(["k0", "k1"], [128, 384]), dims_text([], [])
    ('k0=128, k1=384', 'its one size')
    """
    if len(symbols) != len(dims):  # of a Kernel that the daemon does not name the symbols of
        return "x".join(map(str, dims))
    return sizes_text(dict(zip(symbols, dims, strict=True))) or "its one size"


def read_pairs(text: str) -> tuple[tuple[int, int], ...]:
    """The (batch, tokens) of `batch=1,8;tokens=16,64`; raises `InvalidSetting`.

    >>> read_pairs("batch=1,8;tokens=16")
    ((1, 16), (8, 16))
    """
    points = read_sizes(text)
    if any(point.keys() != {"batch", "tokens"} for point in points):
        raise _bad_sizes(text, SIZES_OPTION)
    return tuple((point["batch"], point["tokens"]) for point in points)


def read_sizes_file(path: Path) -> list[Sizes]:
    """The combinations of each line of a file; empty lines and lines that start with # are none."""
    try:
        lines = read_file(path).splitlines()
    except (FileMissing, InvalidManifest) as error:
        raise InvalidSetting(name="--sizes-file", expected="a text file", value=path) from error
    return [
        sizes
        for number, line in enumerate(map(str.strip, lines), start=1)
        if line and line[0] != "#"
        for sizes in read_sizes(line, origin=f"--sizes-file, line {number},")
    ]


def _bad_sizes(text: str, origin: str) -> InvalidSetting:
    return InvalidSetting(name=origin, expected="like 'batch=1,8;tokens=16,64'", value=text)
