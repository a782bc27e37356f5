"""Held-out sizes: where a Table is asked for what it never measured.

They lie in the hull of a Table's hints, widened by its cut-off, and are drawn log-uniformly. What
traffic is made of comes in turn: any size, odd sizes, primes, multiples of 16 (where Guards hold),
and sizes near the hull's ends. A hint is never one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

from nearhint_rules.metrics import Dims
from nearhint_rules.program import SIZE_LIMIT

Reach: TypeAlias = Callable[[Dims], Dims | None]
"""The sizes that can really be had near the wanted ones; None: none."""
ATTEMPTS = 8
"""Draws for each wanted size, and `SPARE_ATTEMPTS` more."""
SPARE_ATTEMPTS = 64
MULTIPLE = 16
TAIL = 1 / 8
"""The share of the range, in log2, that is an end of it."""
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def hull(hints: Sequence[Dims], cutoff: int) -> tuple[tuple[int, int], ...]:
    """The least and greatest size of each symbol that is within the cut-off of some hint's.

    >>> hull([(8, 64), (32, 64)], 4)
    ((2, 128), (16, 256))
    """
    return tuple(
        (max(1, -(-min(sizes) // cutoff)), min(SIZE_LIMIT - 1, max(sizes) * cutoff))
        for sizes in zip(*hints, strict=True)
    )


def held_out(
    hints: Sequence[Dims], *, cutoff: int, count: int, seed: int, reach: Reach = tuple
) -> tuple[Dims, ...]:
    """At most `count` different sizes of a Table's symbols, in the order drawn.

    Fewer where the hull has no more, and none where nothing is symbolic. `reach` says which sizes
    a caller can really have; those outside the hull are dropped. Same arguments, same sizes.
    """
    ranges = hull(hints, cutoff)
    if not ranges:
        return ()
    draw = Random(seed)
    known = set(hints)
    wanted_before: set[Dims] = set()
    found: list[Dims] = []
    for number in range(ATTEMPTS * count + SPARE_ATTEMPTS):
        if len(found) == count:
            break
        shape = _SHAPES[number % len(_SHAPES)]
        wanted = tuple(shape(draw, low, high) for low, high in ranges)
        if wanted in wanted_before:
            continue
        wanted_before.add(wanted)
        dims = reach(wanted)
        if dims is None or dims in known or not _is_within(dims, ranges):
            continue
        known.add(dims)
        found.append(dims)
    return tuple(found)


def is_prime(number: int) -> bool:
    """Whether a size is prime: Miller and Rabin's test, exact for all sizes below 2^64.

    >>> [number for number in range(20) if is_prime(number)]
    [2, 3, 5, 7, 11, 13, 17, 19]
    """
    if number < 2:
        return False
    for prime in _WITNESSES:
        if number % prime == 0:
            return number == prime
    odd, halvings = number - 1, 0
    while odd % 2 == 0:
        odd, halvings = odd // 2, halvings + 1
    return all(_is_passed(number, odd, halvings, witness) for witness in _WITNESSES)


def _is_passed(number: int, odd: int, halvings: int, witness: int) -> bool:
    power = pow(witness, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(halvings - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False


def _is_within(dims: Dims, ranges: Sequence[tuple[int, int]]) -> bool:
    return all(low <= size <= high for size, (low, high) in zip(dims, ranges, strict=True))


def _anywhere(draw: Random, low: int, high: int) -> int:
    size = round(math.exp(draw.uniform(math.log(low), math.log(high))))
    return max(low, min(size, high))


def _odd(draw: Random, low: int, high: int) -> int:
    size = _anywhere(draw, low, high)
    if size % 2:
        return size
    return size + 1 if size < high else max(low, size - 1)


def _prime(draw: Random, low: int, high: int) -> int:
    """The greatest prime up to a size that is anywhere, else the least above it."""
    size = _anywhere(draw, low, high)
    for candidates in (range(size, low - 1, -1), range(size + 1, high + 1)):
        for candidate in candidates:
            if is_prime(candidate):
                return candidate
    return size


def _multiple(draw: Random, low: int, high: int) -> int:
    size = _anywhere(draw, low, high)
    below, above = size - size % MULTIPLE, size + -size % MULTIPLE
    if below >= low:
        return below
    return above if above <= high else size


def _tail(draw: Random, low: int, high: int) -> int:
    """Near either end."""
    reach = (high / low) ** TAIL
    if draw.random() < 0.5:
        return _anywhere(draw, low, max(low, int(low * reach)))
    return _anywhere(draw, min(high, math.ceil(high / reach)), high)


_SHAPES: tuple[Callable[[Random, int, int], int], ...] = (
    _anywhere,
    _odd,
    _prime,
    _multiple,
    _tail,
)
