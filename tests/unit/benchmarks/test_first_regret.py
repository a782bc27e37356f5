"""What T1 loses by rule, from what was recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.benchmarks import first_regret
from tests.benchmarks.selection_matrix import Case, Truth
from tests.unit.compiler.kernels import TARGET, kernel_of
from tests.unit.rules.tables import STEP, row, table

from nearhint_compiler.schedule import candidates
from nearhint_compiler.schedule.firsts import firsts
from nearhint_rules.choice import FALLBACK
from nearhint_rules.table import Timing

KERNEL = kernel_of("softmax_f32")
HINT, OTHER = (131_072, 32), (8, 131_072)


def schedules(hint: tuple[int, ...]) -> tuple[str, str]:
    dims = dict(zip(KERNEL.symbols, hint, strict=True))
    return str(candidates(KERNEL, TARGET, dims)[0]), str(firsts(KERNEL, TARGET, dims)[0])


def case() -> Case:
    """The default of the first hint, and what is first there; not what is first at the other."""
    made = table(row(HINT, {0: 400, 1: 100}, fallback=300))
    variants = tuple(
        replace(each, schedule=schedule)
        for each, schedule in zip(made.variants, schedules(HINT), strict=False)
    )
    made = replace(made, variants=variants)

    def truth(dims: tuple[int, ...], times_ns: dict[int, int]) -> Truth:
        return Truth(dims, "hint", {at: Timing(ns, 0.001) for at, ns in times_ns.items()})

    return Case(
        "softmax",
        made,
        STEP,
        (truth(HINT, {0: 400, 1: 100, FALLBACK: 300}),),
        (truth(OTHER, {0: 150, FALLBACK: 100}),),
    )


def test_the_default_alone_gives_way_to_the_original_ops_and_what_is_first_to_nothing() -> None:
    hint, other = first_regret.judged(case(), KERNEL, TARGET)
    assert (hint.part, other.part) == first_regret.PARTS
    assert (hint.default, hint.first) == (3.0, 1.0)
    assert (other.default, other.first) == (1.0, None)


def test_figures_are_the_mean_the_tail_and_the_worst() -> None:
    found = first_regret.figures([1.0] * 19 + [4.0])
    assert found["mean"] == pytest.approx(4 ** (1 / 20))
    assert found["worst"] == 4.0
    assert 1.0 < found["p95"] < 4.0
