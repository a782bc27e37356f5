"""Ladders of a Program's Kernels: hints over its ranges, for whoever asks without sizes.

On a GPU as many sizes again are searched between and beyond a ladder's hints, where these leave
most room: predictions reach as far as there are timings on either side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nearhint_daemon.jobs import JobSpec
from nearhint_daemon.programs import ProgramKey, Programs
from nearhint_daemon.tables import TableKey
from nearhint_daemon.tuning.efforts import Effort
from nearhint_daemon.tuning.lowered import Lowered
from nearhint_daemon.tuning.tasks import needed_bytes
from nearhint_daemon.tuning.tuning_jobs import Wish, cross_job, further_job, hint_jobs
from nearhint_rules.expr import Expr
from nearhint_rules.ladder import Rung, further_rungs, reachable_ladder
from nearhint_rules.metrics import Dims
from nearhint_rules.target import Target

FURTHER_KINDS = ("cuda",)
"""Where a search takes a second or less. On a CPU it takes several, and crosses nothing."""
FURTHER_BYTES = 256 << 20
"""What a Kernel moves at a further size, at most: beyond, memory decides as it does below."""


class Ladders:
    """Makes the jobs of ladders."""

    def __init__(
        self, programs: Programs, *, compiler_version: str, budget: int, threads: int
    ) -> None:
        self._programs = programs
        self._compiler_version = compiler_version
        self._budget = budget
        self._threads = threads

    async def jobs_for(
        self,
        key: ProgramKey,
        target: Target,
        *,
        kernels: frozenset[str],
        threads: int,
        priority: int,
        client: str,
        effort: Effort = Effort.FULL,
    ) -> list[JobSpec]:
        """The jobs that tune a Program's Kernels (empty: all) at a ladder of hints each, and cross.

        A hint is tuned where it is, and not at its bucket's. Raises `KernelUnknown` without a
        Plan, `InvalidRange` where a range of the Program's holds no size.
        """
        lowered = await self._programs.lowered(key)
        found: dict[tuple[Expr, ...], tuple[Rung, ...]] = {}
        specs: dict[str, JobSpec] = {}
        wishes: dict[tuple[TableKey, str], list[Wish]] = {}
        for step in lowered.steps:
            if kernels and step.kernel not in kernels:
                continue
            if step.dims not in found:
                found[step.dims] = reachable_ladder(step.dims, lowered.ranges, self._budget)
            for rung in found[step.dims]:
                wish = Wish(
                    table_key=(key[0], step.kernel, target.id),
                    fallback=step.fallback,
                    dims=rung.dims,
                    near={new: rung.sizes[old] for new, old in step.renamed.items()},
                    threads=threads or self._threads,
                    effort=effort,
                )
                wishes.setdefault((wish.table_key, wish.fallback), []).append(wish)
                for spec in hint_jobs(
                    wish, version=self._compiler_version, priority=priority, client=client
                ):
                    specs[spec.key] = spec
        for (_, fallback), together in wishes.items():
            for wish in self._further(lowered, fallback, together, target):
                spec = further_job(
                    wish,
                    requires=together[0],
                    version=self._compiler_version,
                    priority=priority,
                    client=client,
                )
                specs.setdefault(spec.key, spec)
            crossing = cross_job(
                together[0],
                [wish.dims for wish in together],
                version=self._compiler_version,
                priority=priority,
                client=client,
            )
            if crossing is not None:
                specs[crossing.key] = crossing
        return list(specs.values())

    def _further(
        self, lowered: Lowered, fallback: str, together: Sequence[Wish], target: Target
    ) -> Iterator[Wish]:
        """As many sizes again as a ladder has hints, where these leave most room."""
        first = together[0]
        if target.kind not in FURTHER_KINDS or first.effort < Effort.FULL or len(together) < 2:
            return
        namespace, kernel, _ = first.table_key
        row = self._programs.kernel(namespace, kernel)
        names = row.symbols.split()

        def fits(dims: Dims) -> bool:
            return needed_bytes(row, dict(zip(names, dims, strict=True))) <= FURTHER_BYTES

        step = next(
            each for each in lowered.steps if each.kernel == kernel and each.fallback == fallback
        )
        known = [wish.dims for wish in together]
        for rung in further_rungs(step.dims, lowered.ranges, known, len(known), fits=fits):
            near = {new: rung.sizes[old] for new, old in step.renamed.items()}
            yield replace(first, dims=rung.dims, near=near)
