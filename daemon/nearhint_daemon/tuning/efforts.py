"""Efforts: how much is tried at each hint; the numbers are the protocol's."""

from __future__ import annotations

from enum import IntEnum


class Effort(IntEnum):
    """More effort includes less. `FULL` is what nobody has to ask for."""

    NONE = 1
    """T1 alone: the default Schedule, and what is held best at the hint."""
    QUICK = 2
    """T2 over a few Schedules of different families, in one contest with those of T1."""
    FULL = 3
    """T2 over what the compiler thinks worth trying, and crossing."""
    MAX = 4
    """T2 over all that the compiler can make, crossing, and descent from the winners."""

    @property
    def text(self) -> str:
        """As workers are told, and as keys have it: "quick"."""
        return self.name.lower()
