"""What of a Table a session can serve: its own binaries decide, also for what is pinned."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any, cast

from tests.unit.client import doubling

from nearhint.launchers import LoadedKernel
from nearhint.snapshot import Snapshot, needed, servable
from nearhint_rules import expr as ex
from nearhint_rules.artifact import ArtifactRef
from nearhint_rules.choice import Alternatives
from nearhint_rules.choice import Choice as Decided
from nearhint_rules.guard import Aligned, AtMost, Guard
from nearhint_rules.selection import StepSelector
from nearhint_rules.selectors import BoundSelector, select
from nearhint_rules.table import Pin, Table, Timing, check

FIRST = doubling.variant(b"first", name="1")
SECOND = doubling.variant(b"second", name="2")
SMALL = doubling.variant(b"small", name="3", guard=Guard((AtMost(ex.symbol("k0"), 99),)))


def pinned(variant: str) -> Table:
    found = doubling.table(64, variants=(FIRST, SECOND, SMALL))
    return replace(found, pins=(Pin((), variant),))


def loaded(*refs: ArtifactRef) -> dict[ArtifactRef, LoadedKernel]:
    kernel = cast("LoadedKernel", object())
    return dict.fromkeys(refs, kernel)


def test_a_pinned_variant_is_needed_though_others_come_before_it() -> None:
    assert needed(doubling.table(64, variants=(FIRST, SECOND))) == (0,)
    assert needed(pinned(SECOND.id)) == (0, 1)
    assert needed(pinned("")) == (0,)


def test_a_pin_waits_for_its_binary() -> None:
    table = pinned(SECOND.id)
    before = servable(table, loaded(FIRST.artifact))
    check(before)
    assert select(before, (64,), fallback=doubling.FALLBACK).reason == "winner"
    after = servable(table, loaded(FIRST.artifact, SECOND.artifact))
    selection = select(after, (64,), fallback=doubling.FALLBACK)
    assert (selection.variant, selection.reason) == (1, "pinned")


def test_a_pinned_fallback_needs_no_binary() -> None:
    now = servable(pinned(""), {})
    assert select(now, (64,), fallback=doubling.FALLBACK).reason == "pinned"


def test_a_probe_answers_with_what_is_loaded() -> None:
    found = doubling.table(64, variants=(FIRST, SECOND))
    (hint,) = found.hints
    fast = ((1, Timing(1, 0.0)), *(each for each in hint.ranked if each[0] == 0))
    probed = replace(found, probes=(replace(hint, dims=(65,), ranked=fast),))
    both = servable(probed, loaded(FIRST.artifact, SECOND.artifact))
    assert select(both, (65,), fallback=doubling.FALLBACK).variant == 1
    one = servable(probed, loaded(FIRST.artifact))
    assert select(one, (65,), fallback=doubling.FALLBACK).variant == 0


class Kernel:
    """Stands for a loaded binary."""


class Asked:
    """A selector that counts how often what comes after the first alternative is worked out."""

    def __init__(self, table: Table) -> None:
        self._step = StepSelector(table, doubling.FALLBACK)
        self.count = 0

    def work_through(self) -> None:
        self._step.work_through()

    def choice(self, dims: tuple[int, ...]) -> Decided:
        return self.prepare(dims)

    def prepare(self, dims: tuple[int, ...]) -> Decided:
        whole = self._step.prepare(dims)

        def rest() -> Alternatives:
            self.count += 1
            return whole.rest

        return Decided(whole.first, whole.is_covered, rest)


VECTORS = doubling.variant(b"vectors", name="4", guard=Guard((Aligned(0, 16),)))


def aligned_first() -> tuple[Snapshot, Asked, dict[ArtifactRef, Any]]:
    """A Snapshot whose Table has a Variant for aligned addresses before one for all."""
    found = doubling.table(64, variants=(VECTORS, FIRST))
    found = replace(found, default=1)
    selector, binaries = Asked(found), {VECTORS.artifact: Kernel(), FIRST.artifact: Kernel()}
    selectors: dict[int, BoundSelector] = {0: selector}
    snapshot = Snapshot(
        doubling.plan(), 1, {doubling.KERNEL: found}, cast("Any", binaries), selectors
    )
    return snapshot, selector, binaries


def test_what_serves_unaligned_addresses_is_worked_out_when_it_is_asked_for_and_kept() -> None:
    snapshot, selector, binaries = aligned_first()
    choice = snapshot.choose(0, (64,))
    assert (choice.kernel, choice.facts) == (binaries[VECTORS.artifact], (Aligned(0, 16),))
    assert snapshot.choose(0, (64,)) is choice
    assert selector.count == 0
    otherwise = choice.otherwise
    assert otherwise is not None
    assert (otherwise.kernel, otherwise.facts) == (binaries[FIRST.artifact], ())
    assert otherwise.otherwise is None
    assert snapshot.choose(0, (64,)).otherwise is otherwise
    assert selector.count == 1


def test_choices_are_equal_and_print_alike_however_much_of_them_was_asked_for() -> None:
    snapshot, _, binaries = aligned_first()
    other = Snapshot(snapshot.plan, 1, snapshot.tables, cast("Any", binaries), snapshot.selectors)
    asked, fresh = snapshot.choose(0, (64,)), other.choose(0, (64,))
    assert asked.otherwise is not None
    assert asked == fresh
    assert repr(snapshot.choose(0, (64,))) == repr(fresh)
    assert hash(asked) == hash(fresh)
    assert asked != asked.otherwise


def test_a_snapshot_that_no_one_holds_lets_its_binaries_go_at_once() -> None:
    snapshot, _, binaries = aligned_first()
    assert snapshot.choose(0, (64,)).facts
    references = [weakref.ref(binary) for binary in binaries.values()]
    gc.disable()
    try:
        del snapshot, binaries
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()
