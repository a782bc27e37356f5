"""What an emitter returns: source text and everything needed to build and launch it."""

from __future__ import annotations

from dataclasses import dataclass

from nearhint_rules.artifact import LaunchMetadata
from nearhint_rules.guard import ALWAYS, Guard


@dataclass(frozen=True, slots=True)
class Generated:
    """Generated source for one (Kernel, Schedule, Target).

    `language` is "c" or "triton". `launch` is complete but for what the toolchain decides (a
    cubin's shared memory and hidden arguments), which the worker fills in. `flags` are toolchain
    options: for C the `-m...` options; for Triton the `key=value` options, signature included.
    """

    language: str
    source: str
    launch: LaunchMetadata
    guard: Guard = ALWAYS
    flags: tuple[str, ...] = ()
