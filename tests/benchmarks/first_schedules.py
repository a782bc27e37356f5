"""What the compiler holds best at the hints of a Program's Kernels: what T1 times there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import lower
from nearhint_compiler.schedule.firsts import firsts
from nearhint_rules.metrics import Dims
from nearhint_rules.program import Program
from nearhint_rules.target import Device, Target


@lru_cache(maxsize=64)
def _kernels(program: Program, target_kind: str) -> Mapping[str, ir.Kernel]:
    return {each.id: each.kernel for each in lower(program, target_kind=target_kind).kernels}


def first_of(program: Program, kernel: str, device: Device, hint: Dims) -> str:
    """The printed Schedule; "" where no hint answered, or the Program has no such Kernel."""
    target = Target(device, ())
    found = _kernels(program, target.kind).get(kernel)
    if found is None or len(hint) != len(found.symbols):
        return ""
    return str(firsts(found, target, dict(zip(found.symbols, hint, strict=True)))[0])
