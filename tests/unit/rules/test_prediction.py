"""What predictions know beside timings near by: caches, what was not timed, a Variant's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.unit.rules.tables import STEP, row, table, tiled, variant

from nearhint_rules import interpolation
from nearhint_rules.artifact import CudaLaunch
from nearhint_rules.candidates import Candidates
from nearhint_rules.choice import FALLBACK
from nearhint_rules.costs import (
    AGAIN,
    CPU_KEPT_NS,
    KEPT_COPIES,
    KEPT_NS,
    Costs,
    Counts,
    Fit,
    Tasks,
    features,
    kept_elements,
    own_model,
)
from nearhint_rules.expr import Sym
from nearhint_rules.guard import AtMost, Divisible, Guard
from nearhint_rules.interpolation import InterpolatedSelector
from nearhint_rules.prediction import Predictor
from nearhint_rules.selectors import NEAREST
from nearhint_rules.table import Table, Variant

KEPT = 9000
"""Elements that a cache keeps where memory takes 1 ns each, on a device of capability 90."""


def once(size: int) -> float:
    """Reads once: half a nanosecond an element from a cache, one from memory."""
    return 1000 + 0.5 * size + 0.5 * max(size - KEPT, 0)


def twice(size: int) -> float:
    """Starts faster, and reads again what a cache does not keep."""
    return 600 + 0.5 * size + 2.0 * max(size - KEPT, 0)


def on(capability: int, number: int) -> Variant:
    """A Variant for a device."""
    made = tiled(number, 1024)
    launch = made.artifact.launch
    assert isinstance(launch, CudaLaunch)
    artifact = replace(made.artifact, launch=replace(launch, capability=capability))
    return replace(made, artifact=artifact)


def measured(
    *times: Callable[[int], float], hints: tuple[int, ...], variants: tuple[Variant, ...]
) -> Table:
    """A Table of one symbol, its Variants' medians functions of the size."""
    rows = []
    for hint in hints:
        medians = {at: round(time(hint)) for at, time in enumerate(times)}
        ranked = dict(sorted(medians.items(), key=lambda timed: timed[1]))
        rows.append(row((hint,), ranked, fallback=10 * max(medians.values())))
    return table(*rows, variants=variants)


def served(found: Table, size: int) -> int:
    """The Variant that `interpolated` takes."""
    return InterpolatedSelector(found, STEP).prepare((size,)).pick((512,)).variant


def test_a_size_beyond_a_cache_is_not_predicted_from_a_hint_within() -> None:
    hints = (64, 256, 1024, 4096, 65536, 262144, 1048576)
    known, unknown = (
        measured(once, twice, hints=hints, variants=(on(kind, 0), on(kind, 1))) for kind in (90, 75)
    )
    # The nearest hint is the one within the cache.
    assert NEAREST.bind(known, STEP).prepare((12000,)).pick((512,)).variant == 1
    assert once(12000) < twice(12000)
    assert served(known, 12000) == 0
    assert served(unknown, 12000) == 1
    assert served(known, 3000) == 1


def test_what_a_cache_keeps_follows_from_what_memory_takes() -> None:
    assert kept_elements(on(90, 0), elements=1e6, time_ns=10 * KEPT_NS[90]) == pytest.approx(1e5)
    within = kept_elements(on(90, 0), elements=1e6, time_ns=0.9 * KEPT_NS[90])
    assert math.inf == within == kept_elements(on(75, 0), elements=1e6, time_ns=1e9)
    on_cpu = kept_elements(variant(0), elements=1e6, time_ns=10 * CPU_KEPT_NS)
    assert on_cpu == pytest.approx(1e5)
    assert kept_elements(variant(0), elements=1e6, time_ns=0.9 * CPU_KEPT_NS) == math.inf


def holding(number: int, bound: int, *, capability: int = 90) -> Variant:
    """A Variant whose tasks hold whole rows of at most so many elements."""
    return replace(on(capability, number), guard=Guard((AtMost(Sym("k0"), bound),)))


def forecasts(found: Table, size: int) -> dict[int, float]:
    """Predicted times by Variant."""
    times = InterpolatedSelector(found, STEP).forecast((size,))
    return {each.variant: each.time_ns for each in times}


@pytest.mark.parametrize(("capability", "costs_more"), [(90, True), (75, False)])
def test_walks_over_more_than_a_cache_holds_read_it_again(
    capability: int, costs_more: bool
) -> None:
    found = measured(
        once,
        once,
        hints=(64, 256, 1024, 4096, 16384),
        variants=(on(capability, 0), holding(1, 1 << 17, capability=capability)),
    )
    within, beyond = forecasts(found, 8192), forecasts(found, 65536)
    assert within[0] == pytest.approx(within[1], rel=0.05)
    assert (beyond[0] > 1.15 * beyond[1]) == costs_more


def test_what_passes_a_cache_is_not_predicted_to_be_found_there() -> None:
    """It is known at hints that no cache keeps, or hardly, and serves where one does not."""

    def passing(size: int) -> float:
        return 1000 + size

    hints = (64, 256, 1024, 4096, 16384, 65536)
    stream = replace(on(90, 1), schedule="cuda.looped x=2 r=512 warps=4 index=32 stream=1")
    full = measured(once, passing, hints=hints, variants=(on(90, 0), stream))
    far = tuple(
        replace(each, ranked=tuple(timed for timed in each.ranked if timed[0] == 0))
        if each.dims < (16384,)
        else each
        for each in full.hints
    )
    for rows in (full.hints, far):
        within = forecasts(replace(full, hints=rows), 8000)
        assert within.get(1, math.inf) > 1.2 * within[0]
    counts = Counts(("k0",), kept=KEPT)
    cells = [counts.cell(Tasks.of(each), [(1000,)]) for each in (on(90, 0), stream)]
    assert [features(counts.at((100,)), cell)[8] for cell in cells] == [0, 100]


def test_the_original_ops_are_tasks_of_a_row_each_where_waves_are_known() -> None:
    assert Tasks.of_original(("k0", "k1", "k2"), on(90, 0)).counts == (Sym("k0"), Sym("k1"))
    for symbols, of in (
        (("k0", "k1"), on(75, 0)),
        (("k0", "k1"), variant(0)),
        (("k0",), on(90, 0)),
    ):
        assert Tasks.of_original(symbols, of) == Tasks()


def test_the_original_ops_take_what_a_row_is_long_however_few_there_are() -> None:
    def ops(rows: int, length: int) -> float:
        return 2000 + 0.002 * rows * length + 3 * length

    hints = [(rows, length) for rows in (64, 1024, 16384) for length in (64, 512, 2048)]

    def off(capability: int) -> float:
        rows = [row(each, {0: 1500}, fallback=round(ops(*each))) for each in hints]
        found = InterpolatedSelector(table(*rows, variants=(on(capability, 0),)), STEP)
        sizes = [(256, 1024), (4096, 200), (128, 128), (8192, 100)]
        times = [(found.forecast(each)[-1], ops(*each)) for each in sizes]
        assert all(each.variant == FALLBACK for each, _ in times)
        return max(abs(each.time_ns / expected - 1) for each, expected in times)

    assert off(90) < 0.05 < 0.1 < off(75)


def test_a_walk_costs_up_to_a_third_more_by_how_much_it_is_over_at_once() -> None:
    counts = Counts(("k0",), kept=KEPT)
    walk, hold = (
        counts.cell(Tasks.of(each), [(1 << 17,)]) for each in (on(90, 0), holding(1, 1 << 17))
    )
    held = KEPT_COPIES * KEPT
    assert features(counts.at((held,)), walk)[:2] == (1.0, held)
    assert features(counts.at((4 * held,)), walk)[0] == pytest.approx(1 + AGAIN * 3 / 4)
    assert features(counts.at((4 * held,)), hold)[0] == 1.0


def test_a_walk_takes_whole_tiles() -> None:
    counts = Counts(("k0", "k1"))
    walk = replace(on(90, 0), schedule="cuda.looped x=1 r=512 warps=4 index=32")
    cell = counts.cell(replace(Tasks.of(walk), counts=(Sym("k0"),)), [(132, 2048)])
    lanes = [features(counts.at((132, columns)), cell)[5] for columns in (40, 512, 513, 1591)]
    assert lanes == [512, 512, 1024, 2048]


def test_a_variant_of_which_little_is_known_is_predicted_like_its_form() -> None:
    # Variant 2 was timed at multiples of 3 alone, which are small: both forms are as fast there.
    def walks(size: int) -> float:
        return 1000 + 3.0 * size

    def splits(size: int) -> float:
        return 1000 + 3.6 * size

    forms = ("cuda.looped x=1", "cuda.looped x=2", "", "cuda.split x=1", "cuda.split x=2")
    times = (walks, walks, walks, splits, splits)
    predicted: list[float] = []
    for form in ("cuda.looped x=4", "cuda.split x=4"):
        variants = tuple(
            replace(variant(at), schedule=schedule or form) for at, schedule in enumerate(forms)
        )
        guarded = replace(variants[2], guard=Guard((Divisible(Sym("k0"), 3),)))
        full = measured(
            *times,
            hints=(24, 48, 64, 96, 256, 1024, 4096, 16384),
            variants=(*variants[:2], guarded, *variants[3:]),
        )
        rows = tuple(
            replace(
                each, ranked=tuple(timed for timed in each.ranked if timed[0] != 2 or size % 3 == 0)
            )
            for each in full.hints
            for size in each.dims
        )
        predicted.append(forecasts(replace(full, hints=rows), 300)[2])
    assert predicted[0] < predicted[1]


def test_what_rows_of_a_size_fill_is_predicted_there_though_slow_at_the_hints_near_by() -> None:
    def whole(size: int) -> float:
        return 600 if size < 100 else 6000

    found = measured(
        once,
        whole,
        hints=(16, 256, 512, 768, 1024),
        variants=(variant(0), holding(1, 2048)),
    )
    assert 1 not in forecasts(found, 1000)
    assert 1 in forecasts(found, 1100)
    assert 1 not in forecasts(found, 2100)


def test_what_could_run_at_a_hint_and_was_not_timed_there_is_not_the_best_there() -> None:
    def slower(size: int) -> float:
        return once(size) * (0.8 if size < 1000 else 1.5)

    hints = tuple(64 << step for step in range(0, 8, 2))
    full = measured(once, slower, hints=hints, variants=(variant(0), variant(1)))
    few = replace(
        full,
        hints=tuple(
            replace(each, ranked=tuple(timed for timed in each.ranked if timed[0] == 0))
            if each.dims > (1000,)
            else each
            for each in full.hints
        ),
    )
    found = InterpolatedSelector(few, STEP)
    assert {each.variant for each in found.forecast((900,))} == {-1, 0, 1}
    times = {each.variant: each.time_ns for each in found.forecast((900,))}
    assert times[1] > times[0]
    assert served(few, 900) == 0
    assert served(few, 200) == 1


def test_what_was_not_timed_at_a_hint_is_slower_than_the_best_of_its_own_divisibility() -> None:
    # At 0.5 of a time, those that need multiples of 16 lead where they may run.
    def vectors(size: int) -> float:
        return 0.5 * once(size)

    def untimed(size: int) -> float:
        return once(size) * (0.7 if size < 1000 else 30)

    hints = tuple(64 << step for step in range(0, 8, 2))
    times = (lambda size: 40 * once(size), once, vectors, untimed)
    sixteen = replace(variant(2), guard=Guard((Divisible(Sym("k0"), 16),)))
    full = measured(*times, hints=hints, variants=(variant(0), variant(1), sixteen, variant(3)))
    few = replace(
        full,
        hints=tuple(
            replace(each, ranked=tuple(timed for timed in each.ranked if timed[0] != 3))
            if each.dims > (1000,)
            else each
            for each in full.hints
        ),
    )
    assert {served(few, size) for size in (2047, 4097, 5001)} == {1}
    assert served(few, 4112) == 2
    assert served(few, 201) == 3


@pytest.mark.parametrize(
    ("cutoff", "tolerated", "cautions", "reason"),
    [
        (4, 0.03, (1.0,), "winner"),
        (3, 0.03, (1.0,), "predicted"),
        (4, 0.055, (1.0,), "predicted"),
        (4, 0.03, (1.0, 4.0), "predicted"),
    ],
)
def test_predictions_are_not_judged_where_none_would_answer_nor_by_one_hint_alone(
    cutoff: int,
    tolerated: float,
    cautions: tuple[float, ...],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """700 is 3.6 times the hint next to it. Left out, it is served what leads by their trend, which
    loses two fifths there and counts for a third; but not where large gains alone are believed."""
    monkeypatch.setattr(interpolation, "CPU_TOLERATED_LOSS", tolerated)
    monkeypatch.setattr(interpolation, "CAUTIONS", cautions)

    def flat(size: int) -> float:
        return 500 + 4.0 * size

    def steep(size: int) -> float:
        return (1000 + 0.5 * size) * (3.45 if size == 700 else 1)

    hints = (64, 96, 128, 140, 192, 700)
    found = measured(flat, steep, hints=hints, variants=(variant(0), variant(1)))
    selector = InterpolatedSelector(replace(found, cutoff=cutoff), STEP)
    assert selector.prepare((110,)).pick((512,)).reason == reason


def test_with_caution_a_small_gain_takes_no_place_of_what_leads_near_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = measured(
        lambda size: 1000 + 4.0 * size,
        lambda size: 1600 + 2.0 * size,
        hints=tuple(64 << step for step in range(0, 12, 2)),
        variants=(variant(0), variant(1)),
    )

    def variants() -> list[int]:
        selector = InterpolatedSelector(found, STEP)
        return [selector.prepare((size,)).pick((512,)).variant for size in range(300, 8000, 100)]

    bold = variants()
    monkeypatch.setattr(interpolation, "CAUTIONS", (1e9,))
    wary = variants()
    assert set(bold) == set(wary) == {0, 1}
    assert bold != wary


def test_a_walk_over_two_loops_takes_whole_tiles_across() -> None:
    counts = Counts(("k0", "k1", "k2"))
    walk = replace(on(90, 0), schedule="cuda.looped x=1 r=2048 warps=4 index=32 r1=64")
    launch = walk.artifact.launch
    assert isinstance(launch, CudaLaunch)
    inner = replace(walk.artifact, launch=replace(launch, inner=Sym("k2")))
    known, unknown = (
        counts.cell(replace(Tasks.of(each), counts=(Sym("k0"),)), [(132, 64, 64)])
        for each in (replace(walk, artifact=inner), walk)
    )
    sizes = [(132, 512, 4), (132, 32, 64), (132, 32, 65), (132, 1, 1)]
    assert [features(counts.at(each), known)[5] for each in sizes] == [32768, 2048, 4096, 2048]
    assert [features(counts.at(each), unknown)[5] for each in sizes] == [2048, 2048, 4096, 2048]


def test_a_variants_own_costs_are_near_those_of_all_until_much_is_measured_of_it() -> None:
    counts = Counts(("k0",))
    sizes = [(64 << step,) for step in range(12)]
    cell = counts.cell(Tasks(), sizes)
    costs = [features(counts.at(size), cell) for size in sizes]

    def timed(element_ns: float) -> list[tuple[int, Costs, float]]:
        return [(at, each, 1000 + element_ns * each[1]) for at, each in enumerate(costs)]

    common = Fit(timed(1.0)).model
    assert common[:2] == pytest.approx((1000, 1.0), rel=1e-3)
    few, many = own_model(timed(2.0)[-1:], common), own_model(timed(2.0) * 100, common)
    assert 1.0 < few[1] < 1.2
    assert many[1] == pytest.approx(2.0, rel=0.05)


CPU, GPU = (variant(0), variant(1)), (tiled(0, 128), tiled(1, 128))


@pytest.mark.parametrize(("variants", "second"), [(CPU, 4031), (GPU, 1024)], ids=["cpu", "gpu"])
def test_on_a_cpu_a_farther_hint_of_the_same_divisibility_is_nearer_than_one_of_another(
    variants: tuple[Variant, ...], second: int
) -> None:
    found = measured(once, twice, hints=(1024, 1007, 4096, 4031), variants=variants)
    predictor = Predictor(found, STEP, found.hints, Candidates(found, STEP))
    near, _ = predictor.near((1501,), ~0)
    assert [found.hints[each].dims[0] for each in near[:2]] == [1007, second]


@pytest.mark.parametrize(
    ("variants", "share", "leads"),
    [(CPU, 0.96, 1), (CPU, 0.985, 0), (GPU, 0.96, 0), (GPU, 0.94, 1)],
    ids=["cpu", "cpu, too little", "gpu, too little", "gpu"],
)
def test_on_a_cpu_the_default_variant_is_left_for_less_of_a_lead(
    variants: tuple[Variant, ...], share: float, leads: int
) -> None:
    found = measured(
        once, lambda size: share * once(size), hints=(64, 256, 1024, 4096), variants=variants
    )
    assert served(found, 700) == leads
    rest = InterpolatedSelector(found, STEP).prepare((700,)).alternatives
    assert rest[0][1].variant == leads
