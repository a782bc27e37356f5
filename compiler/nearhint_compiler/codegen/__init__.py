"""From a Kernel and a Schedule to source and launch metadata, one module a target.

May import: nearhint_rules, nearhint_compiler.ir, .analysis, .schedule. Triton itself is imported
by the worker that compiles, never here.
"""

from __future__ import annotations

from nearhint_compiler.codegen.generated import Generated
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir.nodes import Kernel
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules.target import Target

__all__ = ["Generated", "generate"]


def generate(kernel: Kernel, schedule: Schedule, target: Target) -> Generated:
    """Source for `kernel` laid out as `schedule` says, and how it is launched on `target`.

    Raises `InvalidSchedule` if the schedule does not fit the kernel or the target, and
    `Unsupported` if this target's emitter cannot express the kernel.
    """
    if schedule.target_kind != target.kind:
        raise InvalidSchedule(f"{schedule.family} is no schedule for {target.kind}")
    if target.kind == "cpu":
        from nearhint_compiler.codegen.c import kernel as c

        return c.generate(kernel, schedule, target)
    from nearhint_compiler.codegen.triton import kernel as triton

    return triton.generate(kernel, schedule, target)
