"""Usage: what ran how often, added up between two reports. Counts, never data."""

from __future__ import annotations

from collections.abc import Iterator

from nearhint._handles import Sizes

SIZES_LIMIT = 2_048
"""Distinct (Program, sizes) between two reports; what is over is dropped."""
REPORT_LIMIT = 256
"""Usages in one report."""
REASONS_LIMIT = 64
TIERS = 4


class Usage:
    """Counts since the last report; only the engine's thread touches it."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, Sizes], list[int]] = {}
        self._symbols: dict[str, tuple[str, ...]] = {}
        """Of the Programs called: nobody may hold one any more when its calls are told of."""
        self.reasons: dict[str, int] = {}
        self.dropped = 0

    def call(self, program_id: str, symbols: tuple[str, ...], sizes: Sizes, tiers: Sizes) -> None:
        """One call of a Program at sizes of its symbols, with its launches by tier."""
        if len(symbols) != len(sizes):
            return
        self._symbols[program_id] = symbols
        row = self.calls.get((program_id, sizes))
        if row is None:
            if len(self.calls) >= SIZES_LIMIT:
                self.dropped += 1
                return
            row = self.calls[(program_id, sizes)] = [0] * (1 + TIERS)
        row[0] += 1
        for tier, launches in enumerate(tiers[:TIERS]):
            row[1 + tier] += launches

    def reason(self, name: str) -> None:
        """One Fallback, by reason."""
        if name in self.reasons or len(self.reasons) < REASONS_LIMIT:
            self.reasons[name] = self.reasons.get(name, 0) + 1

    def __bool__(self) -> bool:
        return bool(self.calls or self.reasons)

    def take(self) -> Iterator[tuple[str, dict[str, int], int, list[int]]]:
        """Up to `REPORT_LIMIT` usages: Program, sizes, calls, launches by tier. Taken is gone."""
        for program_id, sizes in list(self.calls)[:REPORT_LIMIT]:
            calls, *launches = self.calls.pop((program_id, sizes))
            symbols = self._symbols[program_id]
            yield program_id, dict(zip(symbols, sizes, strict=True)), calls, launches
        if not self.calls:
            self._symbols.clear()

    def take_reasons(self) -> dict[str, int]:
        """The reasons; taken is gone."""
        reasons, self.reasons = self.reasons, {}
        return reasons
