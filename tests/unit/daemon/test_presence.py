"""Which clients serve where: what they say holds for a while, and no list of theirs grows."""

from __future__ import annotations

from dataclasses import replace

from tests.integration.fake_workers import CPU

from nearhint_daemon.traffic.presence import CLIENTS_LIMIT, HELD_S, Presence
from nearhint_rules.target import Device


class Clock:
    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def test_a_device_is_served_on_until_the_last_client_is_quiet() -> None:
    presence = Presence(monotonic=Clock())
    changes: list[Device] = []
    presence.on_change = changes.append
    presence.note("ann", CPU, is_serving=True)
    presence.note("bob", CPU, is_serving=True)
    presence.note("ann", CPU, is_serving=False)
    assert presence.is_serving(CPU)
    assert not presence.is_serving(replace(CPU, model="another"))
    presence.note("bob", CPU, is_serving=False)
    assert not presence.is_serving(CPU)
    assert changes == [CPU, CPU]


def test_a_client_that_is_gone_does_not_hold_a_device_for_ever() -> None:
    clock = Clock()
    presence = Presence(monotonic=clock)
    presence.note("ann", CPU, is_serving=True)
    clock.now_s += HELD_S - 1
    presence.note("bob", CPU, is_serving=True)
    clock.now_s += 2
    assert presence.is_serving(CPU)
    clock.now_s += HELD_S
    assert not presence.is_serving(CPU)


def test_no_more_clients_are_remembered_than_a_limit() -> None:
    presence = Presence(monotonic=Clock())
    for number in range(CLIENTS_LIMIT + 1):
        presence.note(f"client {number}", CPU, is_serving=True)
    for number in range(1, CLIENTS_LIMIT + 1):
        presence.note(f"client {number}", CPU, is_serving=False)
    assert not presence.is_serving(CPU)
