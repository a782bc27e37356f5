"""Presence: which clients are serving on which devices, as they say when they begin and end.

A report holds for `HELD_S`: a client that serves on reports sooner than that, one that is gone does
not. Bounded: of more than `CLIENTS_LIMIT` clients, those that reported longest ago are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from nearhint_rules.target import Device

HELD_S = 10.0
CLIENTS_LIMIT = 1024

Listener = Callable[[Device], None]


class Presence:
    """Who serves where."""

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen_s: OrderedDict[tuple[str, Device], float] = OrderedDict()
        self.on_change: Listener = lambda device: None

    def note(self, client: str, device: Device, *, is_serving: bool) -> None:
        """Takes what a client says of devices of exactly this kind; who listens hears changes."""
        was_serving = self.is_serving(device)
        self._seen_s.pop((client, device), None)
        if is_serving:
            self._seen_s[client, device] = self._monotonic()
            if len(self._seen_s) > CLIENTS_LIMIT:
                self._seen_s.popitem(last=False)
        if self.is_serving(device) is not was_serving:
            self.on_change(device)

    def is_serving(self, device: Device) -> bool:
        """Whether a client serves on such a device."""
        now_s = self._monotonic()
        while self._seen_s and now_s - next(iter(self._seen_s.values())) > HELD_S:
            self._seen_s.popitem(last=False)
        return any(known == device for _, known in self._seen_s)
