"""Which Variants a client loads."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.rules.tables import row, table, variant

from nearhint.snapshot import needed
from nearhint_rules.guard import Aligned

VARIANTS = (variant(0), variant(1, Aligned(0, 16)), variant(2), variant(3))


def test_what_the_nearest_hint_can_answer_with_is_loaded() -> None:
    found = table(
        row((16,), {1: 900, 2: 950, 0: 1000, 3: 1010}), row((64,), {0: 900}), variants=VARIANTS
    )
    assert set(needed(found)) == {0, 1, 2}


def test_what_is_nearly_best_somewhere_is_loaded_where_times_are_predicted() -> None:
    found = table(
        row((16,), {1: 900, 2: 950, 3: 1010, 0: 2000}), row((64,), {0: 900}), variants=VARIANTS
    )
    assert set(needed(replace(found, selector="interpolated"))) == {0, 1, 2, 3}
    assert set(needed(replace(found, selector="nearest"))) == {0, 1, 2}
    slow = table(row((16,), {1: 900, 2: 950, 0: 1000, 3: 1200}), variants=VARIANTS)
    assert set(needed(replace(slow, selector="interpolated"))) == {0, 1, 2}


def test_what_a_probe_can_answer_with_is_loaded() -> None:
    found = table(row((16,), {0: 900}), variants=VARIANTS)
    probed = replace(found, probes=(row((17,), {1: 800, 3: 850, 0: 900, 2: 950}),))
    assert set(needed(probed)) == {0, 1, 3}
