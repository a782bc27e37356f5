"""Charts: lines over logarithmic axes as inline SVG, drawn by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 38
TICKS = 7


@dataclass(frozen=True, slots=True)
class Mark:
    """One point: positive coordinates, and what a reader sees when pointing at it."""

    x: float
    y: float
    note: str


@dataclass(frozen=True, slots=True)
class Line:
    """Marks in the order of x; `style` names its colour in the page's style sheet."""

    name: str
    style: str
    marks: tuple[Mark, ...]


def chart(
    lines: Sequence[Line],
    *,
    x_title: str,
    y_title: str,
    y_text: Callable[[float], str],
    level: float | None = None,
) -> str:
    """An SVG element; `level` draws one dashed line across. Empty without marks.

    Both axes are logarithmic, so all coordinates must be above 0.
    """
    marks = [mark for each in lines for mark in each.marks]
    if not marks:
        return ""
    across = _Scale.over([mark.x for mark in marks], LEFT, WIDTH - RIGHT)
    heights = [mark.y for mark in marks] + ([] if level is None else [level])
    up = _Scale.over(heights, HEIGHT - BOTTOM, TOP)
    label = f"{y_title} against {x_title}"
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    for x in across.ticks(_powers_of_two):
        parts.append(_text(across(x), HEIGHT - BOTTOM + 14, _count(x), "middle"))
        parts.append(_rule(across(x), TOP, across(x), HEIGHT - BOTTOM, "grid"))
    for y in up.ticks(_round_numbers):
        parts.append(_text(LEFT - 6, up(y) + 3, y_text(y), "end"))
        parts.append(_rule(LEFT, up(y), WIDTH - RIGHT, up(y), "grid"))
    if level is not None:
        parts.append(_rule(LEFT, up(level), WIDTH - RIGHT, up(level), "level"))
    for each in lines:
        parts += _drawn(each, across, up)
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_title, "middle"))
    parts.append("</svg>")
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps [low, high], logarithmically, to [start, end] in the picture."""

    low: float
    high: float
    start: float
    end: float

    @staticmethod
    def over(values: Sequence[float], start: float, end: float) -> _Scale:
        """A scale with a little room around the values."""
        low, high = min(values), max(values)
        room = max((high / low) ** 0.05, 1.05)
        return _Scale(low / room, high * room, start, end)

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, rungs: Callable[[float, float], list[float]]) -> list[float]:
        """As many rungs between the ends as are readable; the middle where there are none."""
        found = rungs(self.low, self.high)
        step = max(1, math.ceil(len(found) / TICKS))
        return found[::step] or [math.sqrt(self.low * self.high)]


def _powers_of_two(low: float, high: float) -> list[float]:
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    return [2.0**power for power in powers]


def _round_numbers(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... and their tenths, between two numbers."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    numbers = (digit * 10.0**decade for decade in decades for digit in (1, 2, 5))
    return [number for number in numbers if low <= number <= high]


def _drawn(line: Line, across: _Scale, up: _Scale) -> list[str]:
    places = [(across(mark.x), up(mark.y)) for mark in line.marks]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline class="{escape(line.style)}" points="{points}"/>']
    for (x, y), mark in zip(places, line.marks, strict=True):
        parts.append(
            f'<circle class="{escape(line.style)}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
            f"<title>{escape(f'{line.name}: {mark.note}')}</title></circle>"
        )
    return parts


def _rule(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="{style}" {place}/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _count(value: float) -> str:
    for unit, name in ((2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")):
        if value >= unit:
            return f"{value / unit:g} {name}"
    return f"{value:g}"
