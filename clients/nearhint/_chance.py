"""Time and randomness as arguments: a test replaces them to see pauses and jitter at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chance:
    """A monotonic clock in seconds, and uniform numbers between two bounds."""

    clock: Callable[[], float] = time.monotonic
    uniform: Callable[[float, float], float] = random.uniform


REAL = Chance()
