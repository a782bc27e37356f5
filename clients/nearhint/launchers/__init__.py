"""Loading Artifacts into this process and calling them; used by the client and the bench worker.

May import: nearhint_rules, nearhint.errors. `cuda.bindings` is loaded with the first cubin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, overload

from nearhint.launchers import cpu
from nearhint_rules.artifact import CpuLaunch, CudaLaunch, LaunchMetadata

if TYPE_CHECKING:
    from nearhint.launchers.cuda import CudaKernel

LoadedKernel: TypeAlias = "cpu.CpuKernel | CudaKernel"


@overload
def load(
    binary: bytes, launch: CpuLaunch, *, sha256: str, device_index: int = 0
) -> cpu.CpuKernel: ...
@overload
def load(
    binary: bytes, launch: CudaLaunch, *, sha256: str, device_index: int = 0
) -> CudaKernel: ...
@overload
def load(
    binary: bytes, launch: LaunchMetadata, *, sha256: str, device_index: int = 0
) -> LoadedKernel: ...
def load(
    binary: bytes, launch: LaunchMetadata, *, sha256: str, device_index: int = 0
) -> LoadedKernel:
    """The Artifact `binary`, ready to be bound to sizes and called.

    `sha256` is the hash that its name promises; it is checked on the bytes that are then executed.
    `device_index` is the CUDA device; a CPU Artifact has no use for it.

    Raises `ArtifactCorrupt`, `FeaturesMissing`, `OpenMPMissing`, `DeviceOutOfMemory` or
    `LoadFailed`.
    """
    if isinstance(launch, CpuLaunch):
        return cpu.load(binary, launch, sha256=sha256)
    from nearhint.launchers import cuda

    return cuda.load(binary, launch, sha256=sha256, device_index=device_index)
