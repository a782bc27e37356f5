"""Tables built in a line, for tests that are about one rule each."""

from __future__ import annotations

from collections.abc import Mapping

from nearhint_rules import expr as ex
from nearhint_rules.artifact import ArtifactRef, CpuLaunch, CudaLaunch
from nearhint_rules.guard import Fact, Guard
from nearhint_rules.table import HintRow, Table, Timing, Variant

STEP = "f" * 64
OTHER_STEP = "e" * 64
ARTIFACT = ArtifactRef("a" * 64, 1, CpuLaunch("f", ex.ONE, 1))


def timing(median_ns: int, spread: float = 0.001) -> Timing:
    return Timing(median_ns, spread, 21)


def variant(number: int, *facts: Fact) -> Variant:
    return Variant(f"{number:064x}", f"(schedule {number})", Guard(facts), ARTIFACT)


def tiled(number: int, size: int, *facts: Fact) -> Variant:
    """A Variant whose tiles are so many elements of all that there are along k0."""
    grid = ex.floordiv(ex.add(ex.Sym("k0"), size - 1), size)
    launch = CudaLaunch("f", (), (grid, ex.ONE, ex.ONE), 4, 0, 90)
    return Variant(
        f"{number:064x}", f"(schedule {number})", Guard(facts), ArtifactRef("a" * 64, 1, launch)
    )


def row(
    dims: tuple[int, ...],
    medians: Mapping[int, int],
    fallback: int = 2000,
    *,
    tier: int = 2,
    step: str = STEP,
) -> HintRow:
    """A hint: medians by position, in serving order, and the Fallback's median."""
    return HintRow(
        dims=dims,
        ranked=tuple((position, timing(median)) for position, median in medians.items()),
        fallbacks=((step, timing(fallback)),),
        tier=tier,
    )


def table(
    *rows: HintRow,
    variants: tuple[Variant, ...] = (variant(0), variant(1), variant(2)),
    default: int = 0,
    cutoff: int = 4,
    reason: str = "",
) -> Table:
    rank = len(rows[0].dims) if rows else 1
    return Table(
        kernel="1" * 64,
        target="2" * 64,
        symbols=tuple(f"k{number}" for number in range(rank)),
        variants=variants,
        default=default,
        hints=rows,
        generation=7,
        cutoff=cutoff,
        reason=reason,
    )
