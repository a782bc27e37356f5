"""What a selection allocates is bounded, whatever its Table holds, and what it keeps is little."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from random import Random

import pytest
from tests.unit.rules.tables import STEP, tiled
from tests.unit.rules.test_selectors import Time, matrix

from nearhint_rules.selectors import SELECTORS, BoundSelector
from nearhint_rules.table import ROW_LIMIT, Table

KEPT_BYTES = 1 << 10
MOST_BYTES = 4 << 10


def crossing(at: int) -> Time:
    """Each is best somewhere, and about as good as others near there."""
    return lambda size: 1000 + 40 * at + size / (1 + at)


def found(*, hints: int, variants: int) -> Table:
    """A Table over the sizes from 64 to 2^18."""
    places = sorted({round(64 * 4096 ** (at / (hints - 1))) for at in range(hints)})
    return matrix(
        *map(crossing, range(variants)),
        hints=tuple(places),
        variants=tuple(tiled(at, 64 << at % 8) for at in range(variants)),
    )


@pytest.fixture
def _traced() -> Iterator[None]:
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()


def most_bytes(step: BoundSelector, sizes: list[tuple[int, ...]]) -> int:
    """What a selection allocates beside what the one before it had."""
    found = 0
    for dims in sizes:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        step.prepare(dims)
        found = max(found, tracemalloc.get_traced_memory()[1] - before)
    return found


def kept_bytes(step: BoundSelector, sizes: list[tuple[int, ...]]) -> float:
    """What a Choice keeps, on average."""
    before, _ = tracemalloc.get_traced_memory()
    choices = [step.prepare(dims) for dims in sizes]
    return (tracemalloc.get_traced_memory()[0] - before) / len(choices)


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("name", ["nearest", "interpolated"])
def test_a_selection_allocates_and_keeps_little_whatever_its_table_holds(name: str) -> None:
    rng = Random(5)
    sizes: list[tuple[int, ...]] = [(rng.randint(64, 200_000),) for _ in range(100)]
    kept: list[float] = []
    for hints, variants in ((8, 8), (ROW_LIMIT, 8), (8, 80), (ROW_LIMIT, 80)):
        step = SELECTORS[name].bind(found(hints=hints, variants=variants), STEP)
        step.work_through()
        reasons = {step.prepare(dims).first[1].reason for dims in sizes}
        assert ("predicted" in reasons) == (name == "interpolated")
        assert most_bytes(step, sizes) < MOST_BYTES
        kept.append(kept_bytes(step, sizes))
    assert kept[0] < KEPT_BYTES
    assert max(kept) < kept[0] + 16
