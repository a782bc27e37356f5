"""Ladders of a Program's Kernels: hints over its ranges, for whoever asks without sizes.

On a GPU as many sizes again are searched between and beyond a ladder's hints, where these leave
most room: predictions reach as far as there are timings on either side.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_daemon.jobs import JobSpec
from nearhint_daemon.programs import ProgramKey, Programs
from nearhint_daemon.store.rows import KernelRow
from nearhint_daemon.tables import TableKey
from nearhint_daemon.tuning.efforts import Effort
from nearhint_daemon.tuning.lowered import Step
from nearhint_daemon.tuning.tasks import needed_bytes
from nearhint_daemon.tuning.tuning_jobs import Wish, cross_job, further_job, hint_jobs
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr
from nearhint_rules.ladder import Ranges, Rung, further_rungs, reachable_ladder
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
        further: dict[tuple[str, tuple[Expr, ...]], tuple[Rung, ...]] = {}
        is_further = target.kind in FURTHER_KINDS and effort >= Effort.FULL
        specs: dict[str, JobSpec] = {}
        wishes: dict[tuple[TableKey, str], list[Wish]] = {}

        def wished(step: Step, rung: Rung) -> Wish:
            return Wish(
                table_key=(key[0], step.kernel, target.id),
                fallback=step.fallback,
                dims=rung.dims,
                near={new: rung.sizes[old] for new, old in step.renamed.items()},
                threads=threads or self._threads,
                effort=effort,
            )

        for step in lowered.steps:
            if kernels and step.kernel not in kernels:
                continue
            if step.dims not in found:
                found[step.dims] = reachable_ladder(step.dims, lowered.ranges, self._budget)
            together = [wished(step, rung) for rung in found[step.dims]]
            for wish in together:
                wishes.setdefault((wish.table_key, wish.fallback), []).append(wish)
                for spec in hint_jobs(
                    wish, version=self._compiler_version, priority=priority, client=client
                ):
                    specs[spec.key] = spec
            at = (step.kernel, step.dims)
            if is_further and at not in further:
                kernel = self._programs.kernel(key[0], step.kernel)
                further[at] = _further(step.dims, lowered.ranges, found[step.dims], kernel)
            for rung in further.get(at, ()):
                spec = further_job(
                    wished(step, rung),
                    requires=together[0],
                    version=self._compiler_version,
                    priority=priority,
                    client=client,
                )
                specs.setdefault(spec.key, spec)
        for known in wishes.values():
            crossing = cross_job(
                known[0],
                [wish.dims for wish in known],
                version=self._compiler_version,
                priority=priority,
                client=client,
            )
            if crossing is not None:
                specs[crossing.key] = crossing
        return list(specs.values())


def _further(
    exprs: Sequence[Expr], ranges: Ranges, rungs: Sequence[Rung], kernel: KernelRow
) -> tuple[Rung, ...]:
    """As many sizes again as a Kernel's ladder has hints, where these leave most room."""
    if len(rungs) < 2:
        return ()
    names = kernel.symbols.split()

    def fits(dims: Dims) -> bool:
        try:
            return needed_bytes(kernel, dict(zip(names, dims, strict=True))) <= FURTHER_BYTES
        except InvalidExpression:
            return False

    return further_rungs(exprs, ranges, [rung.dims for rung in rungs], len(rungs), fits=fits)
