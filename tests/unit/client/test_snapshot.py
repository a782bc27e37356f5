"""What of a Table a session can serve: its own binaries decide, also for what is pinned."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from tests.unit.client import doubling

from nearhint.launchers import LoadedKernel
from nearhint.snapshot import needed, servable
from nearhint_rules import expr as ex
from nearhint_rules.artifact import ArtifactRef
from nearhint_rules.guard import AtMost, Guard
from nearhint_rules.selectors import select
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
