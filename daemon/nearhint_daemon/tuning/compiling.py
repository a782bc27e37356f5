"""Compiling ahead: candidates for a Target whose device need not be here.

What is built is what `tune1` and `tune2` jobs at the same hint would build, under the same keys, so
a daemon that has the device, and this store, only verifies and measures. Nothing reaches a Table
here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nearhint_daemon.errors import NoVariant
from nearhint_daemon.jobs import JobSpec
from nearhint_daemon.programs import Programs
from nearhint_daemon.store.rows import JobRow
from nearhint_daemon.tuning.efforts import Effort
from nearhint_daemon.tuning.tasks import asked_dims, reach
from nearhint_daemon.tuning.tuner import CANDIDATES_LIMIT
from nearhint_daemon.tuning.tuning_jobs import TUNE, WHY
from nearhint_daemon.tuning.variants import Variants
from nearhint_daemon.workshop import Workshop
from nearhint_proto import convert
from nearhint_proto.v1 import program_pb2
from nearhint_proto.v1 import worker_pb2 as pb

COMPILE = "compile"


def compile_jobs(tuning: Sequence[JobSpec]) -> list[JobSpec]:
    """The jobs that compile what these would measure, one a hint: for the last of its searches."""
    searches = [spec for spec in tuning if spec.kind in TUNE.values()]
    required = {spec.requires for spec in searches}
    return [
        replace(spec, key=f"{COMPILE}/{spec.key.partition('/')[2]}", kind=COMPILE, requires="")
        for spec in searches
        if spec.key not in required
    ]


class Compiling:
    """Does `compile` jobs."""

    def __init__(self, programs: Programs, variants: Variants, workshop: Workshop) -> None:
        self._programs = programs
        self._variants = variants
        self._workshop = workshop

    async def compile(self, row: JobRow, payload: Mapping[str, Any]) -> None:
        """Compiles every candidate at a hint; raises `NoVariant` where none compiles."""
        kernel = self._programs.kernel(row.namespace, payload["kernel"])
        target = self._programs.target(payload["target"])
        stored = self._programs.fallback(row.namespace, payload["fallback"])
        fallback = convert.fallback_from_proto(program_pb2.Fallback.FromString(stored.message))
        order = (row.priority, row.stage)

        names = kernel.symbols.split()

        def named(wanted: Sequence[int]) -> dict[str, int]:
            _, dims = reach(fallback, payload["near"], wanted)
            return dict(zip(names, dims, strict=True))

        async def listed(wanted: Sequence[int]) -> pb.Schedules:
            return await self._workshop.schedules(
                kernel.ir,
                target,
                named(wanted),
                effort=Effort(payload.get("effort", Effort.FULL)),
                threads=payload["threads"],
                order=order,
            )

        found = await listed(payload["dims"])
        wanted = dict.fromkeys(found.schedules[:CANDIDATES_LIMIT])
        if found.schedules:
            asked = asked_dims(fallback, payload["near"])
            first = await self._workshop.first(
                kernel.ir,
                target,
                named(payload["dims"]),
                near=dict(zip(names, asked, strict=False)),
                default=found.schedules[0],
                threads=payload["threads"],
                order=order,
            )
            wanted |= dict.fromkeys(first)
        # Sizes that tuning looks at as well.
        for hint in () if payload.get(WHY) else found.also_at:
            sizes = convert.size_hint_from_proto(hint)
            other = await listed([sizes[name] for name in names])
            wanted |= dict.fromkeys(other.schedules[:CANDIDATES_LIMIT])
        built = await asyncio.gather(
            *(self._variants.built(kernel, each, target, order=order) for each in wanted)
        )
        if not any(variant.artifact for variant in built):
            problems = [variant.problem for variant in built if variant.problem]
            raise NoVariant(problems[0] if problems else "the target has no schedule for it")
