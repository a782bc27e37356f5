"""Neighbours: the Schedules one step from another, for coordinate descent from a winner.

A step doubles or halves one option, within what its family takes. Options that say what a Schedule
promises or along which loops it runs are no coordinates: other candidates have those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nearhint_compiler.analysis.row_words import RowWords, plane_words, row_words
from nearhint_compiler.analysis.scans import has_scans
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex


@dataclass(frozen=True, slots=True)
class Coordinate:
    """An option, and the least and the greatest value that it takes."""

    option: str
    least: int
    greatest: int


_LANES = Coordinate("lanes", 4, 16)
_UNROLL = Coordinate("unroll", 1, 16)
_WARPS = Coordinate("warps", 1, 16)
_X, _Y, _Z = (Coordinate(name, 1, 4096) for name in "xyz")
_AHEAD = Coordinate("ahead", 2, 12)
_PROGRAMS = Coordinate("programs", 64, 8192)
_PARTS = Coordinate("parts", 1, 256)
_TILES = Coordinate("tiles", 1, 8)
_R, _R1 = (Coordinate(name, 1, 65_536) for name in ("r", "r1"))

COORDINATES: Mapping[str, tuple[Coordinate, ...]] = {
    "cpu.pointwise": (_LANES, _UNROLL, Coordinate("block", 128, 65_536)),
    "cpu.tiles": (
        _LANES,
        _UNROLL,
        Coordinate("tile", 8, 256),
        Coordinate("rows", 8, 1024),
        Coordinate("squares", 1, 4),
        _AHEAD,
    ),
    "cpu.rows": (_LANES, _UNROLL, Coordinate("short", 1, 16)),
    "cpu.columns": (_LANES, _UNROLL),
    "cpu.panels": (_LANES, _UNROLL, Coordinate("short", 1, 16), Coordinate("rows", 4, 256)),
    "cpu.scattered": (_LANES, _UNROLL, Coordinate("block", 64, 65_536), _PARTS),
    "cuda.pointwise": (_X, _WARPS, Coordinate("unit", 2, 16)),
    "cuda.scattered": (_X, _WARPS),
    "cuda.tiled": (_Z, _Y, _X, _WARPS),
    "cuda.persistent": (_X, _R, _R1, _WARPS),
    "cuda.looped": (_X, _R, _R1, _WARPS, _AHEAD),
    "cuda.split": (_X, _R, _R1, Coordinate("splits", 2, 256), _PROGRAMS, _WARPS, _AHEAD),
    "cuda.cooperative": (_R, Coordinate("splits", 2, 32), Coordinate("teams", 1, 512), _WARPS),
    "cuda.chained": (_X, _R, _UNROLL, _WARPS, Coordinate("back", 1, 32), _TILES),
    "cuda.tiled_persistent": (_Z, _Y, _X, _R, _WARPS),
    "cuda.tiled_looped": (_Z, _Y, _X, _R, _WARPS),
}  # fmt: skip
"""By family, in the order in which they are walked."""
_PERSISTENT = ("cuda.persistent", "cuda.tiled_persistent")


def neighbours(
    kernel: ir.Kernel, schedule: Schedule, dims: Mapping[str, int]
) -> tuple[Schedule, ...]:
    """The Schedules one step from `schedule` that may serve `dims`, by the Kernel's symbols.

    None of them is `schedule`; each differs from it in one option by a factor of two. Whether the
    emitter takes them is its to say.
    """
    found: list[Schedule] = []
    for coordinate in COORDINATES.get(schedule.family, ()):
        value = schedule.get(coordinate.option, 0)
        # Of a walk that scans, no more than the next step is loaded ahead.
        if value <= 0 or (coordinate is _AHEAD and has_scans(kernel)):
            continue
        found += [
            _with(schedule, coordinate.option, stepped)
            for stepped in (2 * value, value // 2)
            if coordinate.least <= stepped <= coordinate.greatest
        ]
    return tuple(each for each in found if _serves(kernel, each, dims))


def _with(schedule: Schedule, option: str, value: int) -> Schedule:
    options = tuple((name, value if name == option else old) for name, old in schedule.options)
    return replace(schedule, options=options)


def _beside(words: RowWords | None, schedule: Schedule) -> int:
    """The elements that a row's edges have at least beside its words, if it is read in these."""
    parts = schedule.get("words", 0)
    return words.parted(parts).lanes - 1 if words is not None and parts else 0


def _serves(kernel: ir.Kernel, schedule: Schedule, dims: Mapping[str, int]) -> bool:
    """Whether a persistent row fits its block, a team's its blocks, a unit a row, and tiles and
    panels hold whole vectors.
    """
    if unit := schedule.get("unit", 0):
        return unit <= min(schedule["x"], ex.evaluate(kernel.pointwise[-1], dims))
    r1 = schedule.get("r1", 0)
    if r1 > schedule.get("r", r1):
        return False
    if schedule.family in _PERSISTENT and r1:
        outer, inner = ex.product(kernel.reduction[:-1]), kernel.reduction[-1]
        holds = r1 + _beside(plane_words(kernel), schedule) >= ex.evaluate(inner, dims)
        return holds and schedule["r"] // r1 >= ex.evaluate(outer, dims)
    if schedule.family in _PERSISTENT:
        held = schedule["r"] * schedule.get("pieces", 1) + _beside(row_words(kernel), schedule)
        return held >= ex.evaluate(ex.product(kernel.reduction), dims)
    if schedule.family == "cuda.cooperative" and not schedule.get("walks", 0):
        held = schedule["r"] * schedule["splits"]
        return held >= ex.evaluate(ex.product(kernel.reduction), dims)
    sides = [schedule.get(name, 0) for name in ("tile", "rows", "least")]
    is_whole = all(side % schedule.get("lanes", 1) == 0 for side in sides)
    return is_whole and schedule.get("least", 0) <= schedule.get("rows", schedule.get("least", 0))
