"""Errors of the launchers; `ArtifactCorrupt` is shared with the artifact cache."""

from __future__ import annotations

from nearhint.errors import ArtifactCorrupt, NearhintError

__all__ = [
    "ArtifactCorrupt",
    "CapabilityMismatch",
    "CudaUnavailable",
    "DeviceOutOfMemory",
    "FeaturesMissing",
    "GridTooLarge",
    "LaunchFailed",
    "LoadFailed",
    "OpenMPMissing",
    "PlaceOutside",
    "WrongSizes",
]


class FeaturesMissing(NearhintError):
    """The Artifact uses instructions that this CPU lacks."""

    code = "CPU_FEATURES_MISSING"
    template = "artifact {sha256} needs {missing}, which this CPU lacks"
    hint = "Run a daemon on a machine like this one."


class OpenMPMissing(NearhintError):
    """No OpenMP runtime is in the process, and none is installed."""

    code = "OPENMP_MISSING"
    template = "no OpenMP runtime: {problem}"
    hint = "Import torch first, or install the system's libgomp1."


class LoadFailed(NearhintError):
    """The system's loader refused an Artifact whose hash is right."""

    code = "ARTIFACT_LOAD_FAILED"
    template = "artifact {sha256}: {problem}"


class DeviceOutOfMemory(NearhintError):
    """The device has no memory left for an Artifact: others have it."""

    code = "DEVICE_OUT_OF_MEMORY"
    template = "artifact {sha256}: the device has no memory left for it"
    hint = "See what else uses its memory; it is loaded once there is some."


class WrongSizes(NearhintError):
    """A kernel was bound to another number of sizes than it has symbols for."""

    code = "SIZES_WRONG"
    template = "{given} sizes for a work estimate that uses {wanted}"


class PlaceOutside(NearhintError, IndexError):
    """An index names a row or an element that its table does not have; eager's IndexError."""

    code = "PLACE_OUTSIDE"
    template = "an index is out of range of the tensor that it reads from"
    hint = "Run the model without torch.compile to see which op it is."


class CudaUnavailable(NearhintError):
    """There is no CUDA driver, no such device, or cuda.bindings is not installed."""

    code = "CUDA_UNAVAILABLE"
    template = "CUDA cannot be used: {problem}"
    hint = "It needs NVIDIA's driver and `pip install 'nearhint[cuda]'`."


class CapabilityMismatch(NearhintError):
    """A cubin is for another compute capability than the device has."""

    code = "CUDA_CAPABILITY_MISMATCH"
    template = "artifact {sha256} is for compute capability {wanted}, the device has {given}"
    hint = "Run a daemon with a device like this one."


class GridTooLarge(NearhintError):
    """A launch at these sizes would need more blocks than CUDA allows."""

    code = "GRID_TOO_LARGE"
    template = "{entry} would need a grid of {grid}"


class LaunchFailed(NearhintError):
    """The driver refused a launch, or an earlier kernel left the device in error."""

    code = "LAUNCH_FAILED"
    template = "{entry}: {problem}"
