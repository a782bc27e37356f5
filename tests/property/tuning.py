"""Tuning as the publisher does it, with timings drawn around true ones instead of measured."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nearhint_daemon.operating.editing import compacted
from nearhint_daemon.store.rows import VariantRow
from nearhint_daemon.tuning.publishing import Timed, with_hint
from nearhint_proto import convert
from nearhint_rules.artifact import ArtifactRef, CpuLaunch
from nearhint_rules.canonical import content_hash
from nearhint_rules.choice import FALLBACK
from nearhint_rules.expr import Sym
from nearhint_rules.guard import Guard
from nearhint_rules.selectors import select
from nearhint_rules.table import Table, Timing, Variant

STEP = "f" * 64
NOISE = 0.005
"""The most by which a drawn median is off the true one, either way."""
SPREAD = 0.004
"""The relative spread that comes with a drawn median: the band is then the least, 2 %."""
BAND = 0.02
MARGIN = BAND + 2 * NOISE
"""True gains above this are always seen as beyond the band; those up to it may not be."""

Dims = tuple[int, ...]
Truth = Mapping[Dims, Mapping[str, int]]
"""True times in ns, by hint and Schedule; the Fallback is the Schedule ""."""


@dataclass(frozen=True)
class Arrival:
    """In which order hints and candidates come, and the noise of their timings."""

    hints: Sequence[Dims]
    schedules: Sequence[str]
    noise: random.Random | None = None

    def draw(self, true_ns: int) -> Timing:
        off = 0.0 if self.noise is None else self.noise.uniform(-NOISE, NOISE)
        return Timing(max(1, round(true_ns * (1 + off))), SPREAD, 21)


def row_of(schedule: str) -> VariantRow:
    """A verified Variant of a Schedule."""
    sha256 = content_hash(schedule.encode())
    ref = ArtifactRef(sha256, 1, CpuLaunch("f", Sym("k0"), 1))
    variant = Variant(sha256, schedule, Guard(), ref)
    message = convert.variant_to_proto(variant).SerializeToString()
    return VariantRow(
        "", "1" * 64, "2" * 64, schedule, "1", sha256, sha256, message, "verified", "", 0.0
    )


def timed(table: Table, truth: Truth, dims: Dims, names: Sequence[str], by: Arrival) -> Table:
    """The Table with these Schedules timed at a hint, beside the Fallback."""
    drawn = tuple((row_of(name), by.draw(truth[dims][name]), 0) for name in names)
    seen = Timed(drawn, (by.draw(truth[dims][""]), 0), "drawn")
    tier = 1 if len(names) == 1 else 2
    return compacted(with_hint(table, dims, STEP, seen, tier=tier))


def tuned(truth: Truth, by: Arrival, *, default: str) -> Table:
    """A full tune from scratch: each hint to T1 as it comes, then each to T2."""
    table = Table("1" * 64, "2" * 64, ("k0",), (), -1, (), 0)
    for dims in by.hints:
        table = timed(table, truth, dims, [default], by)
    for dims in reversed(by.hints):
        names = dict.fromkeys((default, *by.schedules))
        table = timed(table, truth, dims, list(names), by)
    return table


def served(table: Table, dims: Dims) -> str:
    """What a Table answers at sizes: a Schedule, or "" for the Fallback."""
    answer = select(table, dims, fallback=STEP)
    return "" if answer.variant == FALLBACK else table.variants[answer.variant].schedule


def gain(truth: Truth, dims: Dims, of: str, over: str) -> float:
    """How much faster one truly is than another, relative to the other; 0 if it is not."""
    at = truth[dims]
    return max(0.0, (at[over] - at[of]) / at[over])


def drawn_truth(chance: random.Random, *, hints: int, schedules: int) -> Truth:
    """True times with near ties and clear gaps, and a Fallback among them."""
    names = ["", *(f"schedule {number}" for number in range(schedules))]
    ratios = (1.0, 1.005, 1.01, 1.015, 1.018, 1.022, 1.028, 1.035, 1.06, 1.3, 2.0)
    truth: dict[Dims, dict[str, int]] = {}
    for exponent in range(hints):
        at = {name: round((20_000 << exponent) * chance.choice(ratios)) for name in names}
        if chance.random() < 0.3:
            at[chance.choice(names)] = round((20_000 << exponent) * 0.95)
        truth[1 << exponent,] = at
    return truth


def digest(seed: int) -> str:
    """What tunes name, as one hash: the same in every process."""
    chance = random.Random(seed)
    truth = drawn_truth(chance, hints=4, schedules=6)
    names = [name for name in truth[1,] if name]
    by = Arrival(list(truth), names, random.Random(seed))
    table = tuned(truth, by, default=names[0])
    answers = [served(table, dims) for dims in truth]
    message = convert.table_to_proto(table).SerializeToString()
    return hashlib.sha256("\n".join(answers).encode() + message).hexdigest()
