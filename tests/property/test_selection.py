"""Selection against a reference written from the rules alone, slowly and with fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.property.examples import examples
from tests.property.strategies import FALLBACKS, TIMINGS, tables, tuned_tables

from nearhint_rules import expr as ex
from nearhint_rules.choice import FALLBACK, REASONS, Selection
from nearhint_rules.guard import Aligned, AtMost, Divisible, Equals, Guard, pointer_facts
from nearhint_rules.hints import bucket, covered
from nearhint_rules.metrics import SIZE_RATIO
from nearhint_rules.ranking import beats, rank
from nearhint_rules.selectors import Selector, prepare, select
from nearhint_rules.table import HintRow, Table, Timing

STEP = FALLBACKS[0]
ANY_TABLE = st.one_of(tuned_tables(), tuned_tables(), tables())
SIZES = st.one_of(
    st.sampled_from((1, 2, 3, 4, 6, 8, 16, 64, 100)),
    st.integers(1, 20),
    st.integers(20, 400),
    st.integers(0, 2**40),
)
ADDRESSES = st.lists(st.sampled_from((0, 4, 16, 64, 72)), min_size=4, max_size=4)


def fraction_beats(challenger: Timing, holder: Timing) -> bool:
    gain = Fraction(holder.median_ns - challenger.median_ns, holder.median_ns)
    spread_squared = Fraction(challenger.spread) ** 2 + Fraction(holder.spread) ** 2
    return gain > Fraction(2, 100) and gain > 0 and gain**2 > 4 * spread_squared


def guard_holds(guard: Guard, sizes: dict[str, int], addresses: Sequence[int]) -> bool:
    for fact in guard.facts:
        if isinstance(fact, Aligned):
            if addresses[fact.parameter] % fact.to_bytes:
                return False
            continue
        try:
            size = ex.evaluate(fact.expr, sizes)
        except ValueError:
            return False
        match fact:
            case Divisible(_, by):
                holds = size % by == 0
            case AtMost(_, bound):
                holds = size <= bound
            case Equals(_, value):
                holds = size == value
        if not holds:
            return False
    return True


def ratio(dims: tuple[int, ...], hint: tuple[int, ...]) -> Fraction:
    total = Fraction(1)
    for size, near in zip(dims, hint, strict=True):
        total *= Fraction(max(size, near), min(size, near))
    return total


def elements(hint: tuple[int, ...]) -> int:
    total = 1
    for size in hint:
        total *= size
    return total


def pinned(table: Table, dims: tuple[int, ...], addresses: Sequence[int]) -> int | None:
    """What is pinned at sizes, where it may run: a position, or FALLBACK."""
    places = [pin for pin in table.pins if pin.dims and bucket(pin.dims) == bucket(dims)]
    places += [pin for pin in table.pins if not pin.dims]
    sizes = dict(zip(table.symbols, dims, strict=True))
    is_checked = any(STEP in dict(row.fallbacks) for row in table.hints)
    for pin in places:
        if not pin.variant:
            return FALLBACK
        position = [variant.id for variant in table.variants].index(pin.variant)
        if is_checked and guard_holds(table.variants[position].guard, sizes, addresses):
            return position
    return None


def reference(
    table: Table, dims: tuple[int, ...], addresses: Sequence[int]
) -> tuple[int, str, object]:
    """Variant, reason and hint, by the rules of the design read one after the other."""
    if any(size == 0 for size in dims):
        return FALLBACK, "zero_elements", ()
    position = pinned(table, dims, addresses)
    if position is not None:
        return position, "pinned", None
    return unpinned(table, dims, addresses)


def unpinned(
    table: Table, dims: tuple[int, ...], addresses: Sequence[int]
) -> tuple[int, str, object]:
    """The answer without pins."""
    if table.default < 0:
        return FALLBACK, "no_variant", ()
    complete = [
        row
        for row in table.hints
        if table.default in dict(row.ranked) and STEP in dict(row.fallbacks)
    ]
    if not complete:
        return FALLBACK, "no_complete_hint", ()
    complete.sort(key=lambda row: row.dims, reverse=True)
    complete.sort(key=lambda row: elements(row.dims), reverse=True)
    complete.sort(key=lambda row: ratio(dims, row.dims))
    sizes = dict(zip(table.symbols, dims, strict=True))
    able = {
        position
        for position, variant in enumerate(table.variants)
        if guard_holds(variant.guard, sizes, addresses)
    }
    for row in complete:
        candidates = [(position, timing) for position, timing in row.ranked if position in able]
        if not candidates:
            continue
        timed = dict(row.fallbacks)[STEP]
        if any(
            ratio((size,), (near,)) > table.cutoff
            for size, near in zip(dims, row.dims, strict=True)
        ):
            nearest = complete[0]
            won = fraction_beats(dict(nearest.ranked)[table.default], dict(nearest.fallbacks)[STEP])
            if table.default in able and won:
                return table.default, "beyond_cutoff_default", nearest.dims
            return FALLBACK, "beyond_cutoff_fallback", row.dims
        position, timing = candidates[0]
        if fraction_beats(timing, timed):
            return position, "winner", row.dims
        return FALLBACK, "fallback_wins", row.dims
    return FALLBACK, "no_eligible_variant", ()


def answer(selection: Selection) -> tuple[int, str, object]:
    hint = None if selection.reason == "pinned" else selection.hint
    return selection.variant, selection.reason, hint


@examples(400)
@given(ANY_TABLE, st.data())
def test_selection_follows_the_rules(table: Table, data: st.DataObject) -> None:
    dims = tuple(data.draw(SIZES) for _ in table.symbols)
    addresses = data.draw(ADDRESSES)
    chosen = select(table, dims, fallback=STEP, alignments=addresses)
    assert answer(chosen) == reference(table, dims, addresses)
    assert chosen.reason in REASONS
    assert chosen.generation == table.generation
    assert chosen.distance >= 0


@given(ANY_TABLE, st.data())
def test_one_choice_serves_all_addresses(table: Table, data: st.DataObject) -> None:
    dims = tuple(data.draw(SIZES) for _ in table.symbols)
    choice = prepare(table, dims, STEP)
    assert choice.alternatives[-1][0] == ()
    for _ in range(5):
        addresses = data.draw(ADDRESSES)
        assert answer(choice.pick(addresses)) == reference(table, dims, addresses)


@given(ANY_TABLE, st.data())
def test_remembered_answers_are_the_same(table: Table, data: st.DataObject) -> None:
    step = Selector(table).step(STEP)
    asked = [tuple(data.draw(SIZES) for _ in table.symbols) for _ in range(4)]
    first = [step.choice(dims) for dims in asked]
    assert [step.choice(dims) for dims in asked] == first
    assert first == [prepare(table, dims, STEP) for dims in asked]


@given(ANY_TABLE, st.data())
def test_the_order_of_hints_in_a_table_does_not_matter(table: Table, data: st.DataObject) -> None:
    dims = tuple(data.draw(SIZES) for _ in table.symbols)
    shuffled = data.draw(st.permutations(table.hints))
    other = Table(
        kernel=table.kernel,
        target=table.target,
        symbols=table.symbols,
        variants=table.variants,
        default=table.default,
        hints=tuple(shuffled),
        generation=table.generation,
        cutoff=table.cutoff,
        pins=table.pins,
        probes=table.probes,
    )
    assert prepare(table, dims, STEP).alternatives == prepare(other, dims, STEP).alternatives


def implies(facts: Sequence[Aligned], guard: Guard) -> bool:
    """Whether a Guard's pointer facts hold wherever these do."""
    return all(
        any(
            fact.parameter == wanted.parameter and fact.to_bytes % wanted.to_bytes == 0
            for fact in facts
        )
        for wanted in pointer_facts(guard)
    )


@given(ANY_TABLE, st.data())
def test_regret_is_known_at_measured_sizes_only_and_is_never_negative(
    table: Table, data: st.DataObject
) -> None:
    assume(table.hints)
    row: HintRow = data.draw(st.sampled_from(table.hints))
    chosen = select(table, row.dims, fallback=STEP, alignments=[64] * 4)
    if chosen.hint != row.dims or row.tier < 2:
        assert chosen.expected_regret is None
        return
    if chosen.reason in ("winner", "fallback_wins"):
        regret = chosen.expected_regret
        medians = [dict(row.fallbacks)[STEP].median_ns]
        sizes = dict(zip(table.symbols, row.dims, strict=True))
        able = {
            position: timing.median_ns
            for position, timing in row.ranked
            if guard_holds(table.variants[position].guard, sizes, [64] * 4)
        }
        medians += able.values()
        if regret is None:  # whether the fastest may run is not known from sizes alone
            fastest = [at for at, median_ns in able.items() if median_ns == min(medians)]
            known = pointer_facts(table.variants[next(iter(able))].guard)
            assert fastest
            assert not any(implies(known, table.variants[at].guard) for at in fastest)
            return
        served = dict(row.ranked).get(chosen.variant, dict(row.fallbacks)[STEP]).median_ns
        assert regret == (served - min(medians)) / min(medians)


@examples(300)
@given(
    st.lists(
        st.tuples(*[st.integers(1, 300) | st.sampled_from((2**40, 2**61, 2**62 - 1))] * 3),
        unique=True,
        min_size=1,
        max_size=32,
    ),
    st.tuples(*[st.integers(1, 400) | st.sampled_from((2**41 - 1, 2**61 + 1))] * 3),
)
def test_the_nearest_hint_is_exact(hints: list[tuple[int, ...]], dims: tuple[int, ...]) -> None:
    order = SIZE_RATIO.preferred(hints)
    preferred = [hints[at] for at in order]
    bound = SIZE_RATIO.bind(("a", "b", "c"), preferred)
    wanted = sorted(range(len(hints)), key=lambda at: ratio(dims, preferred[at]))
    assert list(bound.order(dims)) == wanted
    assert bound.nearest(dims) == wanted[0]


@given(ANY_TABLE, st.data())
def test_covered_means_a_complete_hint_in_the_bucket(table: Table, data: st.DataObject) -> None:
    dims = tuple(data.draw(SIZES) for _ in table.symbols)
    expected = (
        0 in dims
        or (not table.variants and table.reason != "")
        or any(
            bucket(row.dims) == bucket(dims)
            and table.default in dict(row.ranked)
            and STEP in dict(row.fallbacks)
            for row in table.hints
        )
    )
    assert covered(table, dims, STEP) == expected
    assert prepare(table, dims, STEP).is_covered == expected


@given(TIMINGS, TIMINGS)
def test_beating_is_exact_and_one_sided(first: Timing, second: Timing) -> None:
    assert beats(first, second) == fraction_beats(first, second)
    assert not (beats(first, second) and beats(second, first))


@examples(300)
@given(st.dictionaries(st.integers(0, 5), TIMINGS, min_size=1), st.data())
def test_the_leader_of_a_ranking_displaced_the_incumbent_or_is_it(
    timings: dict[int, Timing], data: st.DataObject
) -> None:
    default = data.draw(st.sampled_from(sorted(timings)))
    incumbent = data.draw(st.none() | st.sampled_from(sorted(timings)))
    order = rank(timings, default=default, incumbent=incumbent)
    assert dict(order) == timings
    leader, timing = order[0]
    held = default if incumbent is None else incumbent
    faster = {
        position for position, other in timings.items() if fraction_beats(other, timings[held])
    }
    sound = {
        position
        for position, other in timings.items()
        if position == default or fraction_beats(other, timings[default])
    }
    assert (leader == held) == (not faster)
    if faster & sound:
        assert leader in faster & sound
        assert timing.median_ns == min(timings[position].median_ns for position in faster & sound)
    elif faster and sound == {default}:
        assert leader == default
    # Whoever is asked before the default, other than the incumbent, beats it beyond noise.
    for position, other in order:
        if position == default:
            break
        assert position == held or fraction_beats(other, timings[default])


@examples(300)
@given(st.dictionaries(st.integers(0, 5), TIMINGS, min_size=1), st.data())
def test_nothing_beats_the_leader_of_a_ranking_beyond_noise(
    timings: dict[int, Timing], data: st.DataObject
) -> None:
    default = data.draw(st.sampled_from(sorted(timings)))
    incumbent = data.draw(st.none() | st.sampled_from(sorted(timings)))
    fallback = data.draw(st.none() | TIMINGS)
    _, leader = rank(timings, default=default, incumbent=incumbent, fallback=fallback)[0]
    assert not any(fraction_beats(other, leader) for other in timings.values())


@examples(300)
@given(st.dictionaries(st.integers(0, 5), TIMINGS, min_size=1), st.data())
def test_a_ranking_does_not_depend_on_positions_or_on_who_was_timed_first(
    timings: dict[int, Timing], data: st.DataObject
) -> None:
    default = data.draw(st.sampled_from(sorted(timings)))
    incumbent = data.draw(st.none() | st.sampled_from(sorted(timings)))
    names = {position: f"schedule {position}" for position in timings}
    order = rank(timings, default=default, incumbent=incumbent, names=names)
    moved = dict(zip(timings, data.draw(st.permutations(range(len(timings)))), strict=True))
    shuffled = data.draw(st.permutations(list(timings)))
    other = rank(
        {moved[position]: timings[position] for position in shuffled},
        default=moved[default],
        incumbent=None if incumbent is None else moved[incumbent],
        names={moved[position]: names[position] for position in shuffled},
    )
    assert [(moved[position], timing) for position, timing in order] == list(other)
