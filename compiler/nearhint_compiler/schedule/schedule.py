"""A Schedule: how a Kernel is laid out on a Target. A frozen tuple of values, replayable as text.

Text: `FAMILY option=value option=value ...`, e.g. `cuda.pointwise x=1024 warps=4 index=32 aligned=1
divisible=0`. A family belongs to one kind of target. What families there are, and their options, is
in `codegen.triton.options` and `schedule.cpu`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nearhint_compiler.errors import InvalidSchedule

_RENAMED = {"near": ("order", 1), "band": ("order", -1)}
"""Options that older records have: what they are now, times what. A near tile went through bands of
the axis before the last, a band through those of the last."""
_SYMBOL = re.compile(r"k\d+")
_TEXT = re.compile(r"[a-z]+\.[a-z0-9_]+(?: [a-z0-9_]+=-?\d{1,9}){0,16}")


@dataclass(frozen=True, slots=True, order=True)
class Schedule:
    """A family, e.g. "cuda.persistent", and its options in the family's own order."""

    family: str
    options: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, key: str) -> int:
        """The option `key`; raises `InvalidSchedule` if the family has none of that name."""
        for name, value in self.options:
            if name == key:
                return value
        raise InvalidSchedule(f"{self.family} has no option {key}")

    def get(self, key: str, default: int) -> int:
        """The option `key`, or `default` where the Schedule does not have it."""
        return dict(self.options).get(key, default)

    @property
    def sizes(self) -> dict[str, int]:
        """The options that say what sizes are: by symbols of the Kernel.

        >>> parse_schedule("cuda.pointwise x=64 written=1 k2=3").sizes
        {'k2': 3}
        """
        return {name: value for name, value in self.options if _SYMBOL.fullmatch(name)}

    def and_with(self, **options: int) -> Schedule:
        """The same with more options, behind all others."""
        return Schedule(self.family, (*self.options, *options.items()))

    @property
    def target_kind(self) -> str:
        """`"cpu"` or `"cuda"`: the family's first half."""
        return self.family.partition(".")[0]

    def __str__(self) -> str:
        return " ".join((self.family, *(f"{key}={value}" for key, value in self.options)))


def parse_schedule(text: str) -> Schedule:
    """The Schedule that `str` printed; raises `InvalidSchedule` for anything else.

    What an earlier version printed is read, too, and may be printed otherwise:

    >>> str(parse_schedule("cuda.tiled y=32 x=64 band=2"))
    'cuda.tiled y=32 x=64 order=-2'
    """
    if not _TEXT.fullmatch(text):
        raise InvalidSchedule(f"not a schedule: {text[:80]!r}")
    family, *options = text.split(" ")
    pairs = (option.partition("=") for option in options)
    return Schedule(family, tuple(_current(key, int(value)) for key, _, value in pairs))


def _current(key: str, value: int) -> tuple[str, int]:
    name, times = _RENAMED.get(key, (key, 1))
    return name, times * value
