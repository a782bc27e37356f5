"""The choice of what is worth compiling: the space that the compiler offers, less what is far off.

Never left out: the default, which a Table cannot do without, and on CUDA the last candidate, whose
Guard always holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nearhint_compiler.analysis import tilings
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule import cpu, cuda
from nearhint_compiler.schedule.estimate import Estimate, estimate, far_off
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules.target import Target

QUICK, FULL, MAX = "quick", "full", "max"
FAR_OFF = 4.0
"""How many times the least estimate a candidate may take; estimates are no better than that."""
QUICK_LIMIT: Mapping[str, int] = {"cpu": 3, "cuda": 4}
MAX_LIMIT = 64
TILED, TILING_AXES = "cuda.tiled", 4
"""Families of tiles with several pointwise axes begin so; axes of a tiling, the reduction's too."""
KINDS = frozenset({"divisible", "parted", "spaced", "unit", "written"})
"""Options that make Schedules of a family differ in kind, where they are set."""
GRAIN = 2
"""Estimates that are the same in so many parts of the best are equal."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """A Schedule that is left out, and why."""

    schedule: Schedule
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What is worth compiling, the default first, and what is not.

    `untiled` says why tilings that ranked better than the default one were not taken, where the
    kernel has no tiles.
    """

    schedules: tuple[Schedule, ...]
    pruned: tuple[Pruned, ...] = ()
    untiled: str = ""


def choose(
    kernel: ir.Kernel,
    target: Target,
    dims: Mapping[str, int],
    *,
    effort: str,
    transferred: Sequence[Schedule] = (),
    threads: int = 1,
) -> Choice:
    """The Schedules to try at `dims`, by the Kernel's symbols.

    `effort` "quick": a few of different families; "full": the candidates; "max": the whole space.
    `transferred` have won elsewhere, and are considered after the default, but not what needs other
    sizes than `dims`. None where the Target cannot run the Kernel.
    """
    module = cpu if target.kind == "cpu" else cuda
    limit = MAX_LIMIT if effort == MAX else module.CANDIDATE_LIMIT
    offered = module.candidates(kernel, target, dims, limit=limit)
    if not offered:
        return Choice(())
    transferred = [each for each in transferred if each.sizes.items() <= dims.items()]
    space = tuple(dict.fromkeys((offered[0], *transferred, *offered[1:])))
    kept = {space[0], space[-1]} if target.kind == "cuda" else {space[0]}
    estimates = [estimate(kernel, each, target, dims, threads=threads) for each in space]
    best = min(estimates, key=lambda each: each.seconds)
    pruned = {
        space[number]: estimates[number].reason(best)
        for number in far_off(estimates, ratio=FAR_OFF)
        if space[number] not in kept
    }
    if effort == QUICK:
        chosen = _diverse(
            [each for each in space if each not in pruned],
            dict(zip(space, estimates, strict=True)),
            kept=kept,
            transferred=transferred,
            limit=QUICK_LIMIT[target.kind],
        )
        pruned |= {
            each: "not among the few of a quick search"
            for each in space
            if each not in pruned and each not in chosen
        }
    return Choice(
        tuple(each for each in space if each not in pruned),
        tuple(Pruned(each, reason) for each, reason in pruned.items()),
        _untiled(kernel, space, dims) if target.kind == "cuda" else "",
    )


def _untiled(kernel: ir.Kernel, space: Sequence[Schedule], dims: Mapping[str, int]) -> str:
    """Why the analysis' better tilings were refused, if nothing in the space is tiled."""
    if any(each.family.startswith(TILED) for each in space):
        return ""
    return tilings.choose(kernel, dims, limit=TILING_AXES).reason


def _diverse(
    space: Sequence[Schedule],
    estimates: Mapping[Schedule, Estimate],
    *,
    kept: set[Schedule],
    transferred: Sequence[Schedule],
    limit: int,
) -> set[Schedule]:
    """What is kept, the best of each kind, then the best of the rest; equals in the space's order.

    What won elsewhere stands for its kind, whatever it is estimated at. Estimates are told apart
    coarsely: among equals the compiler's own order knows more.
    """
    least = min(estimates[each].seconds for each in space)
    order = sorted(space, key=lambda each: round(GRAIN * estimates[each].seconds / least))
    firsts: dict[tuple[str, frozenset[str]], Schedule] = {}
    for each in (*(each for each in transferred if each in space), *order):
        firsts.setdefault((each.family, _set(each) & KINDS), each)
    wanted = dict.fromkeys((*(each for each in space if each in kept), *firsts.values(), *order))
    return set(list(wanted)[: max(limit, len(kept))])


def _set(schedule: Schedule) -> frozenset[str]:
    return frozenset(name for name, value in schedule.options if value)
