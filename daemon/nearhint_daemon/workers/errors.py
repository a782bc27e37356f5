"""Errors of the workers: one class per cause, each with a stable code.

`WorkerLost` and its kin are raised in the daemon by the pools. A `JobFailed` is raised in a worker,
which answers with its code, message and reproducer and lives on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

_NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"


def lacks_memory(error: BaseException) -> bool:
    """Whether the host has no memory left: as Python says it, or torch, in a `RuntimeError`."""
    return isinstance(error, MemoryError) or _NO_MEMORY in str(error)


class WorkersError(Exception):
    """Base of all errors of the workers; `code` is stable across releases."""

    code: ClassVar[str] = "WORKERS"


class FrameInvalid(WorkersError):
    """What came over the socket is no frame: too long, cut short, or not the awaited message."""

    code = "FRAME_INVALID"


class PoolStopped(WorkersError):
    """The pool was stopped before the job was done."""

    code = "WORKER_POOL_STOPPED"


class WorkerLost(WorkersError):
    """A worker is gone. `reproducer` maps file names to contents that reproduce its last job.

    `reason` is one of a small set, for metrics; `detail` is for people.
    """

    code = "WORKER_LOST"
    reason: ClassVar[str] = "lost"

    def __init__(self, *, kind: str, detail: str, reproducer: Mapping[str, str]) -> None:
        super().__init__(f"{kind} worker {self.reason}: {detail}")
        self.kind = kind
        self.detail = detail
        self.reproducer = dict(reproducer)


class WorkerDied(WorkerLost):
    """The worker's process ended while it ran this job."""

    code = "WORKER_DIED"
    reason = "died"


class WorkerKilled(WorkerDied):
    """The system killed the worker while it ran this job, for its memory: whosever that was.

    What exceeds a limit of its own ends otherwise, and nothing else sends SIGKILL.
    """

    code = "WORKER_KILLED"


class WorkerHung(WorkerLost):
    """The job was not done by its deadline; its worker was killed."""

    code = "WORKER_HUNG"
    reason = "hung"


class WorkerStartFailed(WorkerLost):
    """A worker's process could not be brought to answer; the next attempt waits a while."""

    code = "WORKER_START_FAILED"
    reason = "start_failed"


class JobFailed(WorkersError):
    """Base of what a job can fail with while its worker lives on."""

    code = "JOB_FAILED"

    def __init__(self, message: str, *, reproducer: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.reproducer = dict(reproducer or {})


class CcMissing(JobFailed):
    """There is no C compiler on the path: CPU Kernels stay at their Fallbacks."""

    code = "CC_MISSING"


class CompileFailed(JobFailed):
    """The toolchain refused generated source, or took too long."""

    code = "COMPILE_FAILED"


class CapabilityUnknown(JobFailed):
    """The Target names a compute capability that there is not, or that nothing compiles for."""

    code = "CAPABILITY_UNKNOWN"


class KernelOversized(CompileFailed):
    """A cubin needs more registers or shared memory than a block has, or spills too much."""

    code = "KERNEL_OVERSIZED"


class ToolchainChanged(JobFailed):
    """The Target names a toolchain that this worker does not have."""

    code = "TOOLCHAIN_CHANGED"


class MemoryLimitExceeded(JobFailed):
    """Inputs and outputs at these sizes would take more bytes than allowed."""

    code = "MEMORY_LIMIT"


class OutOfMemory(JobFailed):
    """The device, or the host, has no memory left for a job: whose fault it is, nobody can say."""

    code = "OUT_OF_MEMORY"


class DiskFull(JobFailed):
    """There is no room for a worker's temporary files: what it works on is not at fault."""

    code = "DISK_FULL"


class CompilerKilled(JobFailed):
    """The system killed a compiler, for its memory: what was to be compiled is not at fault."""

    code = "COMPILER_KILLED"


class DeviceBroken(JobFailed):
    """The device failed under this process, and fails every call from now on; the worker leaves."""

    code = "DEVICE_BROKEN"


class OpNotAllowed(JobFailed):
    """A Fallback holds an op that is not in the table of pure functional ops."""

    code = "OP_NOT_ALLOWED"


class FallbackInvalid(JobFailed):
    """A Fallback cannot be run: its arguments or sizes do not fit its ops."""

    code = "FALLBACK_INVALID"


class RequestInvalid(JobFailed):
    """A request contradicts itself or names what this worker does not do."""

    code = "REQUEST_INVALID"


class MessageTooLarge(JobFailed):
    """A request, or its answer, has more bytes than a frame may: no worker is at fault."""

    code = "MESSAGE_TOO_LARGE"


class DeviceWanted(JobFailed):
    """A client or a more urgent job wants the device: this job gave way, to be done again later."""

    code = "DEVICE_WANTED"

    def __init__(self, message: str = "a client or a more urgent job wants the device") -> None:
        super().__init__(message)
