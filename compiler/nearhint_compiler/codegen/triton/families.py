"""The families of CUDA schedules: how each lays a kernel's loops out over programs and tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from nearhint_compiler.codegen.triton.layout import Layout
from nearhint_compiler.codegen.triton.pointwise import pointwise, tiled
from nearhint_compiler.codegen.triton.rows import rows
from nearhint_compiler.codegen.triton.scattered import scattered
from nearhint_compiler.codegen.triton.shared_rows import held_by_teams, in_chains, split
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.schedule import Schedule

Family: TypeAlias = Callable[[ir.Kernel, Schedule], Layout]
FAMILIES: Mapping[str, Family] = {
    "cuda.pointwise": pointwise,
    "cuda.tiled": tiled,
    "cuda.persistent": rows,
    "cuda.looped": rows,
    "cuda.tiled_persistent": rows,
    "cuda.tiled_looped": rows,
    "cuda.split": split,
    "cuda.cooperative": held_by_teams,
    "cuda.chained": in_chains,
    "cuda.scattered": scattered,
}
