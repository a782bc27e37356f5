"""Real Kernels without a daemon: lowered, generated and compiled here, selected as ever."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.unit.workers.building import compiled, default_source, target

from nearhint import launchers
from nearhint.launchers import LoadedKernel
from nearhint.session import Snapshot
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import LoweredKernel, lower
from nearhint_rules.artifact import ArtifactRef
from nearhint_rules.guard import Guard
from nearhint_rules.plan import Launch
from nearhint_rules.program import Program
from nearhint_rules.selection import StepSelector
from nearhint_rules.table import HintRow, Table, Timing, Variant

ANY_RATIO = 2**62
HINT = 64
FAST, SLOW = Timing(100, 0.001, 21), Timing(1000, 0.001, 21)

Binary = tuple[ArtifactRef, Guard, LoadedKernel]


class Compiled:
    """Makes Snapshots that serve each Kernel's default Variant, at T2, at any sizes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._binary = cache(self._compile)

    def snapshot(self, program: Program) -> Snapshot:
        """What a session would hand out once everything is tuned."""
        lowered = lower(program, target_kind="cpu")
        kernels = {kernel.id: kernel for kernel in lowered.kernels}
        launches = {
            number: step
            for number, step in enumerate(lowered.plan.steps)
            if isinstance(step, Launch)
        }
        tables: dict[str, Table] = {}
        loaded: dict[ArtifactRef, LoadedKernel] = {}
        for name, kernel in kernels.items():
            artifact, guard, binary = self._binary(kernel.kernel)
            loaded[artifact] = binary
            fallbacks = [step.fallback for step in launches.values() if step.kernel == name]
            tables[name] = _table(kernel, Variant("v", "default", guard, artifact), fallbacks)
        selectors = {
            number: StepSelector(tables[step.kernel], step.fallback)
            for number, step in launches.items()
        }
        return Snapshot(lowered.plan, 1, tables, loaded, selectors)

    def _compile(self, kernel: ir.Kernel) -> Binary:
        generated = default_source(kernel)
        binary, artifact = compiled(generated, self._folder)
        loaded = launchers.load(binary, artifact.launch, sha256=artifact.sha256)
        return artifact, generated.guard, loaded


def _table(kernel: LoweredKernel, variant: Variant, fallbacks: list[str]) -> Table:
    row = HintRow(
        dims=(HINT,) * len(kernel.kernel.symbols),
        ranked=((0, FAST),),
        fallbacks=tuple((fallback, SLOW) for fallback in dict.fromkeys(fallbacks)),
        tier=2,
    )
    return Table(
        kernel.id, target().id, kernel.kernel.symbols, (variant,), 0, (row,), 1, cutoff=ANY_RATIO
    )
