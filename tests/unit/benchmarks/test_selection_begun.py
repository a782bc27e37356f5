"""Tables as they began, made of a recorded one."""

from __future__ import annotations

from tests.benchmarks.selection_begun import ALONE, TWO, WITH_BESIDE, begun
from tests.benchmarks.selection_matrix import Case, Truth
from tests.unit.rules.tables import STEP, row, table, tiled

from nearhint_rules.choice import FALLBACK
from nearhint_rules.expr import Sym
from nearhint_rules.guard import Divisible
from nearhint_rules.table import Timing

VARIANTS = (tiled(0, 64), tiled(1, 64, Divisible(Sym("k0"), 16)), tiled(2, 64), tiled(3, 64))


def truth(size: int) -> Truth:
    return Truth((size,), "drawn", {at: Timing(100 + at, 0.001) for at in (0, 2, FALLBACK)})


def test_each_hint_is_there_alone_with_what_is_beside_it_and_with_its_neighbours() -> None:
    recorded = table(
        row((64,), {1: 100, 2: 150, 3: 170, 0: 500}),
        row((63,), {2: 100, 3: 110, 0: 500}),
        row((1024,), {1: 100, 0: 120}),
        variants=VARIANTS,
    )
    held_out = tuple(map(truth, (40, 46, 90, 91, 700, 725, 1448, 1449)))
    found = [
        (kind, [each.dims for each in case.table.hints], [each.dims[0] for each in case.held_out])
        for kind, case in begun(Case("case", recorded, STEP, (), held_out))
    ]
    assert found == [
        (ALONE, [(64,)], [46, 90]),
        (WITH_BESIDE, [(64,), (63,)], [46, 90]),
        (TWO, [(64,), (1024,)], [46, 90, 91, 700, 725, 1448]),
    ]


def test_a_row_has_what_a_search_leaves_near_the_best_and_the_default() -> None:
    recorded = table(
        row((64,), {1: 100, 2: 150, 3: 170, 0: 500}),
        row((63,), {3: 100, 2: 110, 0: 500}),
        variants=VARIANTS,
    )
    both = next(
        case.table.hints
        for kind, case in begun(Case("case", recorded, STEP, (), (truth(64),)))
        if kind == WITH_BESIDE
    )
    assert [[at for at, _ in each.ranked] for each in both] == [[1, 2, 0], [2, 0]]
