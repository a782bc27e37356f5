"""Ladders of a Program's Kernels: hints over its ranges, for whoever asks without sizes.

A ladder's hints are all that is searched. Other sizes of their buckets, at which one that was asked
for is searched as well, are left to the crossing, which times there what was found (`beyond.py`).
"""

from __future__ import annotations

from nearhint_daemon.jobs import JobSpec
from nearhint_daemon.programs import ProgramKey, Programs
from nearhint_daemon.tuning.efforts import Effort
from nearhint_daemon.tuning.lowered import Step
from nearhint_daemon.tuning.tuning_jobs import LADDER, Wish, wished_jobs
from nearhint_rules.expr import Expr
from nearhint_rules.ladder import Rung, reachable_ladder
from nearhint_rules.target import Target


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
        wishes: list[Wish] = []

        def wished(step: Step, rung: Rung) -> Wish:
            return Wish(
                table_key=(key[0], step.kernel, target.id),
                fallback=step.fallback,
                dims=rung.dims,
                near={new: rung.sizes[old] for new, old in step.renamed.items()},
                threads=threads or self._threads,
                effort=effort,
                why=LADDER,
            )

        for step in lowered.steps:
            if kernels and step.kernel not in kernels:
                continue
            if step.dims not in found:
                found[step.dims] = reachable_ladder(step.dims, lowered.ranges, self._budget)
            wishes += (wished(step, rung) for rung in found[step.dims])
        return wished_jobs(wishes, version=self._compiler_version, priority=priority, client=client)
