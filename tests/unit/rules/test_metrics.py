"""`argument_shapes`, the rule that this project starts from, with its known ties and asymmetries.

The figures are those of PyTorch's own multi-kernels for A[m, 512] @ B[512, 64], run there.
"""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import pytest
from tests.unit.rules.tables import STEP, row, table

from nearhint_rules import expr as ex
from nearhint_rules.metrics import SIZE_RATIO, ArgumentShapes, Shapes, argument_shapes_distance
from nearhint_rules.selectors import ByMetric, select

HINTS = (64, 256, 4096)
M, N = ex.Sym("k0"), ex.Sym("k1")


def product(rows: int, columns: int = 64) -> Shapes:
    """The shapes of A[m, 512], B[512, n] and out[m, n]."""
    return ((rows, 512), (512, columns), (rows, columns))


@pytest.mark.parametrize(
    ("rows", "distances", "nearest"),
    [
        (1, (12, 16, 24), 64),
        (200, (3.29, 0.71, 8.71), 256),
        (512, (6, 2, 6), 256),
        (3000, (11.1, 7.1, 0.90), 4096),
    ],
)
def test_one_dynamic_size_gives_the_distances_that_pytorch_gives(
    rows: int, distances: tuple[float, ...], nearest: int
) -> None:
    found = [argument_shapes_distance(product(rows), product(hint)) for hint in HINTS]
    assert found == pytest.approx(distances, abs=0.05)
    assert HINTS[found.index(min(found))] == nearest


@pytest.mark.parametrize("call", [(16, 8192), (8192, 16)])
def test_two_dynamic_sizes_are_as_far_from_every_hint(call: tuple[int, int]) -> None:
    # Defect a: every dynamic size takes the same hint, so opposite changes cancel out.
    found = [argument_shapes_distance(product(*call), product(hint, hint)) for hint in HINTS]
    assert found == [18, 18, 18]


def test_named_symbols_tell_what_positions_cannot() -> None:
    hints = [(64, 64), (16, 8192), (8192, 16)]
    bound = SIZE_RATIO.bind(("k0", "k1"), hints)
    assert [bound.nearest(call) for call in ((16, 8192), (8192, 16))] == [1, 2]


def test_a_fused_bias_is_compared_with_the_output() -> None:
    # Defect b: the call's arguments are (A, B, bias, out), the key's (A, B, out).
    call = ((4096, 512), (512, 64), (64,), (4096, 64))
    found = [argument_shapes_distance(call, product(hint)) for hint in HINTS]
    assert found[0] == found[2] == 6
    assert HINTS[found.index(min(found))] == 64


def test_a_symbol_weighs_once_for_each_tensor_it_occurs_in() -> None:
    # Defect c.
    once = argument_shapes_distance([(64,)], [(128,)])
    assert argument_shapes_distance([(64,)] * 3, [(128,)] * 3) == 3 * once


def test_sizes_that_are_not_positive_count_as_a_half() -> None:
    assert argument_shapes_distance([(0,)], [(1,)]) == 1
    assert argument_shapes_distance([(-5,)], [(2,)]) == 2
    assert argument_shapes_distance([(0,)], [(-3,)]) == 0


def test_what_has_no_partner_is_left_out() -> None:
    assert argument_shapes_distance([(4, 4)], [(4,)]) == 0
    assert argument_shapes_distance([(4,), (8,)], [(4,)]) == 0


def test_the_sum_is_taken_tensor_by_tensor() -> None:
    # Bit for bit: floats are summed within a tensor, then over tensors.
    call, key = [(3, 5), (7, 11, 13)], [(4, 6), (9, 10, 12)]

    def inner(at: int) -> float:
        total: float = 0
        for x, y in zip(call[at], key[at], strict=True):
            total += abs(math.log2(x) - math.log2(y))
        return total

    assert argument_shapes_distance(call, key) == 0 + inner(0) + inner(1)


def test_the_metric_can_be_selected_and_ties_go_to_the_first_hint() -> None:
    sizes = ((M, ex.Int(512)), (ex.Int(512), N), (M, N))
    metric = ArgumentShapes(call=sizes, key=sizes)
    rows = [row((hint, hint), {0: 1000}) for hint in HINTS]
    found = table(*rows, cutoff=2**20)
    assert select(found, (16, 8192), fallback=STEP, rule=ByMetric(metric)).hint == (64, 64)
    turned = table(*rows[::-1], cutoff=2**20)
    assert select(turned, (16, 8192), fallback=STEP, rule=ByMetric(metric)).hint == (4096, 4096)
    # The rule of this project breaks the tie by the number of elements.
    assert select(turned, (16, 8192), fallback=STEP).hint == (4096, 4096)
    assert select(found, (16, 8192), fallback=STEP).hint == (4096, 4096)


def test_a_call_may_have_other_arguments_than_the_key() -> None:
    call = ((M, ex.Int(512)), (ex.Int(512), ex.Int(64)), (ex.Int(64),), (M, ex.Int(64)))
    key = ((M, ex.Int(512)), (ex.Int(512), ex.Int(64)), (M, ex.Int(64)))
    metric = ArgumentShapes(call=call, key=key)
    found = table(*(row((hint,), {0: 1000}) for hint in HINTS), cutoff=2**20)
    assert select(found, (4096,), fallback=STEP, rule=ByMetric(metric)).hint == (64,)
    assert select(found, (4096,), fallback=STEP).hint == (4096,)


def test_hints_are_in_order_however_many_there_are() -> None:
    rng = Random(7)
    hints = {tuple(1 << rng.randrange(61) for _ in range(3)) for _ in range(400)}
    for count in (30, 390):
        bound = SIZE_RATIO.bind(("k0", "k1", "k2"), sorted(hints)[:count])
        for _ in range(20):
            dims = tuple(rng.randint(1, 1 << rng.randrange(1, 62)) for _ in range(3))
            ratios = [
                Fraction(math.prod(map(max, dims, hint)), math.prod(map(min, dims, hint)))
                for hint in sorted(hints)[:count]
            ]
            assert [ratios[at] for at in bound.order(dims)] == sorted(ratios)
