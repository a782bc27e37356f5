"""What every selection rule keeps to, whatever the Table."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.examples import examples
from tests.property.strategies import (
    artifacts,
    guards,
    tables,
    tuned_tables,
)
from tests.property.test_selection import ADDRESSES, SIZES, STEP, guard_holds, ratio

from nearhint_rules import expr as ex
from nearhint_rules.choice import FALLBACK, REASONS, Choice
from nearhint_rules.costs import LANES_LIMIT
from nearhint_rules.guard import ALWAYS, AtMost, Guard, pointer_facts_hold
from nearhint_rules.ranking import rank
from nearhint_rules.selectors import NEAREST, SELECTORS
from nearhint_rules.table import HintRow, Table, Timing, Variant, is_complete

NAMES = st.sampled_from(sorted(SELECTORS))


@st.composite
def matrices(draw: st.DrawFn) -> Table:
    """Tables whose times follow their sizes, so that predictions hold: 1 or 2 symbols.

    In some all Variants but one are narrow, and that one is slower than they are anywhere.
    """
    names = ("k0", "k1")[: draw(st.integers(1, 2))]
    count = draw(st.integers(1, 4))
    costs = [
        (draw(st.sampled_from((500, 1000, 2000))), draw(st.sampled_from((0.1, 0.3, 1.0, 2.5))))
        for _ in range(count + 1)
    ]
    held = [draw(guards(names)) for _ in range(count)]
    if draw(st.booleans()):
        narrow = AtMost(ex.symbol("k0"), LANES_LIMIT + 1)
        held = [*(Guard((*guard.facts, narrow)) for guard in held), ALWAYS]
        costs.insert(count, (2000, 25.0))
        count += 1
    size = st.sampled_from((16, 64, 100, 256, 1000, 1024, 4096, 16384))
    dims = draw(st.lists(st.tuples(*(size for _ in names)), unique=True, min_size=3, max_size=10))
    rows: list[HintRow] = []
    for hint in dims:
        elements = 1
        for extent in hint:
            elements *= extent

        def timing(at: int, elements: int = elements) -> Timing:
            launch, each = costs[at]
            return Timing(round(launch + each * elements), 0.001, 21)

        measured = {at: timing(at) for at in range(count) if at == 0 or draw(st.integers(0, 4))}
        fallback = timing(count)
        rows.append(
            HintRow(hint, rank(measured, default=0, fallback=fallback), ((STEP, fallback),), 2)
        )
    return Table(
        kernel="1" * 64,
        target="2" * 64,
        symbols=names,
        variants=tuple(
            Variant(f"{number:064x}", "", guard, draw(artifacts(names)))
            for number, guard in enumerate(held)
        ),
        default=0,
        hints=tuple(rows),
        generation=draw(st.integers(0, 9)),
        cutoff=draw(st.sampled_from((2, 4, 16))),
    )


ANY_TABLE = st.one_of(matrices(), matrices(), tuned_tables(), tables()).map(
    lambda table: replace(table, pins=())  # they come before any rule
)
NEAR_SIZES = SIZES | st.integers(10, 20000) | st.integers(LANES_LIMIT, 10 * LANES_LIMIT)


def asked(table: Table, data: st.DataObject) -> tuple[int, ...]:
    return tuple(data.draw(NEAR_SIZES) for _ in table.symbols)


@examples(200)
@given(ANY_TABLE, NAMES, st.data())
def test_every_rule_keeps_to_guards_completeness_and_the_cutoff(
    table: Table, name: str, data: st.DataObject
) -> None:
    dims, addresses = asked(table, data), data.draw(ADDRESSES)
    chosen = SELECTORS[name].bind(table, STEP).prepare(dims).pick(addresses)
    assert chosen.reason in REASONS
    assert chosen.generation == table.generation
    assert chosen.expected_regret is None or chosen.expected_regret >= 0
    complete = {row.dims for row in table.hints if is_complete(row, table.default, STEP)}
    assert chosen.hint in complete | {()}
    if chosen.variant == FALLBACK:
        return
    # A prediction rests on several hints: each size is near to one of them.
    reached = complete if chosen.reason == "predicted" else {chosen.hint}
    is_near = all(
        any(ratio((size,), (hint[at],)) <= table.cutoff for hint in reached)
        for at, size in enumerate(dims)
    )
    sizes = dict(zip(table.symbols, dims, strict=True))
    assert guard_holds(table.variants[chosen.variant].guard, sizes, addresses)
    if not is_near:
        assert (chosen.variant, chosen.reason) == (table.default, "beyond_cutoff_default")
    if name == "default_only":
        assert chosen.variant == table.default


@given(ANY_TABLE, NAMES, st.data())
def test_what_is_worked_out_when_asked_is_what_all_alternatives_say(
    table: Table, name: str, data: st.DataObject
) -> None:
    dims, addresses = asked(table, data), data.draw(ADDRESSES)
    bound = SELECTORS[name].bind(table, STEP)
    picked = bound.prepare(dims).pick(addresses)
    whole = bound.prepare(dims)
    alternatives = whole.alternatives
    assert whole.first == alternatives[0]
    assert all(facts for facts, _ in alternatives[:-1])
    assert picked == next(
        selection
        for facts, selection in alternatives
        if not facts or pointer_facts_hold(facts, addresses)
    )


@given(ANY_TABLE, NAMES, st.data())
def test_every_rule_agrees_with_the_others_on_what_needs_no_hint(
    table: Table, name: str, data: st.DataObject
) -> None:
    dims = asked(table, data)
    choice = SELECTORS[name].bind(table, STEP).prepare(dims)
    nearest = NEAREST.bind(table, STEP).prepare(dims)
    assert choice.is_covered == nearest.is_covered
    assert choice.alternatives[-1][0] == ()
    if not nearest.alternatives[-1][1].hint and len(nearest.alternatives) == 1:
        assert choice == nearest


@given(ANY_TABLE, NAMES, st.data())
def test_every_rule_remembers_what_it_worked_out(
    table: Table, name: str, data: st.DataObject
) -> None:
    bound = SELECTORS[name].bind(table, STEP)
    sizes = [asked(table, data) for _ in range(3)]
    first = [bound.choice(dims) for dims in sizes]
    assert [bound.choice(dims) for dims in sizes] == first
    assert first == [SELECTORS[name].bind(table, STEP).prepare(dims) for dims in sizes]


@examples(60)
@given(ANY_TABLE, st.sampled_from(sorted(set(SELECTORS) - {"argument_shapes"})), st.data())
def test_the_order_of_rows_does_not_matter(table: Table, name: str, data: st.DataObject) -> None:
    # `argument_shapes` takes the first of equal hints: that is one of its known defects.
    dims = asked(table, data)
    shuffled = replace(table, hints=tuple(data.draw(st.permutations(table.hints))))

    def answer(of: Table) -> Choice:
        return SELECTORS[name].bind(of, STEP).prepare(dims)

    assert answer(shuffled) == answer(table)


@examples(60)
@given(ANY_TABLE, st.data())
def test_measured_beats_predicted(table: Table, data: st.DataObject) -> None:
    complete = [row for row in table.hints if is_complete(row, table.default, STEP)]
    if not complete:
        return
    dims = data.draw(st.sampled_from(complete)).dims
    interpolated = SELECTORS["interpolated"].bind(table, STEP).prepare(dims)
    assert interpolated == NEAREST.bind(table, STEP).prepare(dims)


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_answers_do_not_hang_on_the_hash_seed(seed: str) -> None:
    script = (
        "import random\n"
        "from tests.benchmarks.selection import STEP, build_table\n"
        "from nearhint_rules.selectors import SELECTORS\n"
        "table = build_table(hints=16, symbols=2, rng=random.Random(7))\n"
        "rng = random.Random(8)\n"
        "sizes = [(rng.randint(1, 5000), rng.randint(1, 5000)) for _ in range(40)]\n"
        "for name, rule in sorted(SELECTORS.items()):\n"
        "    print(name, [rule.bind(table, STEP).prepare(each) for each in sizes])\n"
    )

    def answers(hash_seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    reference = answers("99")
    assert "predicted" in reference
    assert answers(seed) == reference
