"""Artifacts: a compiled binary's launch metadata, as data.

CPU: a shared object whose entry is

    void ENTRY(void *const *parameters, const int64_t *dims, int32_t threads);

with one pointer for each Kernel parameter (inputs, then outputs; a scalar parameter points at its
element) and the Kernel's symbols in order. One that is named `CHECKED_ENTRY` returns an int32_t,
which is not 0 where data named a place that there is not. CUDA: a cubin whose entry takes
`arguments` in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from nearhint_rules.expr import ZERO, Expr

CHECKED_ENTRY = "nearhint_checked_kernel"


@dataclass(frozen=True, slots=True)
class PointerArgument:
    """The address of Kernel parameter `parameter`."""

    parameter: int


@dataclass(frozen=True, slots=True)
class ScalarArgument:
    """The value of scalar Kernel parameter `parameter`, passed as `dtype` (f32, f64, i32, i64)."""

    parameter: int
    dtype: str


@dataclass(frozen=True, slots=True)
class SizeArgument:
    """A size over the Kernel's symbols, passed as `dtype` (i32 or i64)."""

    expr: Expr
    dtype: str


@dataclass(frozen=True, slots=True)
class NullArgument:
    """A pointer that the toolchain asks for and this Kernel does not use (Triton's scratch)."""


@dataclass(frozen=True, slots=True)
class WorkspaceArgument:
    """The address of the workspace plus `offset` bytes, over the Kernel's symbols."""

    offset: Expr


@dataclass(frozen=True, slots=True)
class StageArgument:
    """The number of the launch, from 0, as an i32."""


Argument: TypeAlias = (
    PointerArgument
    | ScalarArgument
    | SizeArgument
    | NullArgument
    | WorkspaceArgument
    | StageArgument
)


@dataclass(frozen=True, slots=True)
class CpuLaunch:
    """How to call a CPU Artifact.

    `work` estimates the elements that one call touches; the launcher uses at most
    `work // grain` threads. `features` are the instruction sets that it needs ("avx512f", ...).
    """

    entry: str
    work: Expr
    grain: int
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """How to launch a CUDA Artifact: grid over the Kernel's symbols, 32 x `warps` threads.

    It is launched `stages` times in a row, with `workspace_bytes` (over the Kernel's symbols) of
    scratch memory, aligned to 16 bytes, that keeps what one launch leaves for the next. Where they
    `begin_early`, each launch but the first waits by itself for the one before to have ended, so
    that it may be dispatched already (CUDA: programmatic dependent launch).

    Where tiles cover two loops of what is reduced, `inner` is the length of the inner one, for
    those who predict how full they are; 0 otherwise.
    """

    entry: str
    arguments: tuple[Argument, ...]
    grid: tuple[Expr, Expr, Expr]
    warps: int
    shared_bytes: int
    capability: int
    stages: int = 1
    workspace_bytes: Expr = ZERO
    begin_early: bool = False
    inner: Expr = ZERO


LaunchMetadata: TypeAlias = CpuLaunch | CudaLaunch


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """Names a binary: sha256 of its bytes, its size, and how it is launched.

    `signature` and `key_id` are empty until bundles are signed.
    """

    sha256: str
    size_bytes: int
    launch: LaunchMetadata
    signature: bytes = b""
    key_id: str = ""
