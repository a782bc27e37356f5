"""Errors of the daemon: one class per cause, each with a stable code and a gRPC status.

`STATUS_OF_CODE` is the one table from code to gRPC status name; codes of `nearhint_rules` are in it
as well, because whatever breaks a rule on the wire is the caller's mistake.
"""

from __future__ import annotations

from collections.abc import Mapping

from nearhint_daemon.exit_codes import ExitCode

DOMAIN = "nearhint"


class DaemonError(Exception):
    """Base of all errors of the daemon; `code` is stable across releases.

    `field` names the offending part of a request, `hint` says what to do (the class's own where
    none is given), `retry_after_s` above zero invites a retry. Messages never contain paths of the
    state directory or source text.
    """

    code = "INTERNAL"
    hint = ""
    retry_after_s = 0.0
    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *, field: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.hint = hint or self.hint


class InvalidRequest(DaemonError):
    """A request breaks a rule; `field` says where."""

    code = "SPEC_INVALID"


class KernelUnknown(DaemonError):
    """No Kernel, Program or Target of that name is stored."""

    code = "KERNEL_UNKNOWN"
    hint = "register the Program first; `nearhint kernels` lists what is known"
    exit_code = ExitCode.NOT_FOUND


class TableUnknown(DaemonError):
    """A Kernel has no Table yet, or none for that Target."""

    code = "TABLE_UNKNOWN"
    hint = "tune the Kernel first"
    exit_code = ExitCode.NOT_FOUND


class VariantUnknown(DaemonError):
    """A Kernel has no Variant of that identity or Schedule, or none that is quarantined."""

    code = "VARIANT_UNKNOWN"
    hint = "`nearhint explain` lists a Kernel's Variants, `nearhint quarantine --list` the others"
    exit_code = ExitCode.NOT_FOUND


class VariantRejected(DaemonError):
    """A Variant may not serve: it failed a check, is quarantined, or was never measured."""

    code = "VARIANT_REJECTED"
    hint = "`nearhint release` lifts an operator's quarantine"
    exit_code = ExitCode.REFUSED


class TableChanged(DaemonError):
    """What was timed at a hint no longer fits its Table: a Variant was quarantined meanwhile."""

    code = "TABLE_CHANGED"
    hint = "ask again: the work is done again"


class PinUnknown(DaemonError):
    """Nothing is pinned there."""

    code = "PIN_UNKNOWN"
    hint = "`nearhint explain` lists a Kernel's pins"
    exit_code = ExitCode.NOT_FOUND


class OperationUnknown(DaemonError):
    """No operation of that name; operations do not outlive the daemon."""

    code = "OPERATION_UNKNOWN"
    hint = "ask for the work again: what is done is not done twice"
    exit_code = ExitCode.NOT_FOUND


class ArtifactUnknown(DaemonError):
    """No Artifact of that hash is stored."""

    code = "ARTIFACT_UNKNOWN"
    hint = "fetch the Table again"
    exit_code = ExitCode.NOT_FOUND


class ArtifactCorrupt(DaemonError):
    """An Artifact's bytes do not have its hash; the file was moved aside."""

    code = "ARTIFACT_CORRUPT"
    hint = "it is compiled again; ask for it later"
    exit_code = ExitCode.INTEGRITY


class GenerationGone(DaemonError):
    """The wanted generation of a Table is no longer kept, or not yet written."""

    code = "GENERATION_GONE"
    hint = "ask for the newest; `nearhint history KERNEL` lists those that are kept"


class QueueFull(DaemonError):
    """More work is waiting than the daemon takes on."""

    code = "QUEUE_FULL"
    hint = "ask again later"
    retry_after_s = 5.0


class StoreFull(DaemonError):
    """The store is as big as it may get: nothing new is registered until there is room."""

    code = "STORE_FULL"
    hint = "raise max_store_bytes where the daemon runs"
    retry_after_s = 60.0


class KeyQuarantined(DaemonError):
    """The key failed repeatedly and is not tried again."""

    code = "KEY_QUARANTINED"
    hint = "see the reproducer in the daemon's state directory"


class NoDevice(DaemonError):
    """No device of this daemon matches the Target."""

    code = "NO_DEVICE"
    hint = "run a daemon on a machine with this device"


class ToolchainMissing(DaemonError):
    """Nothing here compiles for this kind of target."""

    code = "TOOLCHAIN_MISSING"
    hint = "install a C compiler (cpu) or Triton (cuda) where the daemon runs"


class CapabilityUnknown(DaemonError):
    """A Target names a compute capability that there is not, or that nothing compiles for."""

    code = "CAPABILITY_UNKNOWN"
    hint = "`nearhint policy DEVICE --json` prints the device where it is"


class NoVariant(DaemonError):
    """Every candidate of a Kernel failed; the Fallback serves."""

    code = "NO_VARIANT"
    hint = "`nearhint explain` says why each failed"


class LoweringWrong(DaemonError):
    """A Kernel's IR and its Fallback give different results."""

    code = "LOWERING_WRONG"


class SearchFailed(DaemonError):
    """A hint's search, on which this work is based, failed for a reason that may pass."""

    code = "SEARCH_FAILED"
    hint = "ask again: the search is done again, and this after it"


class HintTooLarge(DaemonError):
    """The tensors of a hint would take more memory than measuring may use."""

    code = "HINT_TOO_LARGE"
    hint = "raise measure_memory_bytes where the daemon runs"


class DeviceFull(DaemonError):
    """A device had no memory left for a job of its worker; of "cpu" that is the machine's."""

    code = "DEVICE_FULL"
    retry_after_s = 30.0
    hint = "see what else uses its memory; the work is done when it is asked for again"


class ScratchFull(DaemonError):
    """There was no room for the temporary files of a worker."""

    code = "SCRATCH_FULL"
    retry_after_s = 30.0
    hint = "make room where the daemon's TMPDIR is; the work is done when it is asked for again"


class HintUnreachable(DaemonError):
    """No sizes of the Fallback give the wanted hint."""

    code = "HINT_UNREACHABLE"


class WorkerRefused(DaemonError):
    """A worker answered a job with an error of its own: `worker_code` and a reproducer."""

    code = "JOB_FAILED"

    def __init__(
        self, message: str, *, worker_code: str, reproducer: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.worker_code = worker_code
        self.reproducer = dict(reproducer or {})


class JobCancelled(DaemonError):
    """The job was cancelled."""

    code = "CANCELLED"
    hint = "ask for it again if it is wanted"


class BudgetSpent(JobCancelled):
    """The request's budget of devices' time was spent before this part of it was begun."""

    code = "BUDGET_SPENT"
    hint = "ask again with a larger budget: what is done is not done twice"


class StoreError(DaemonError):
    """The store cannot do what was asked."""

    code = "STORE_FAILED"
    hint = "see that its disk has room and takes writes"


class DatabaseMissing(StoreError):
    """There is no database in the state directory."""

    code = "DATABASE_MISSING"
    hint = "name the state directory of a daemon that has run: --state-dir"
    exit_code = ExitCode.NOT_FOUND


class StoreReadOnly(StoreError):
    """The disk is full or failing, or not ours: reads go on, writes do not; heals by itself."""

    code = "STORE_READ_ONLY"
    hint = "free disk space where the state directory is, or see why its disk fails, or whose it is"
    retry_after_s = 5.0


class StoreDamaged(StoreError):
    """The database was damaged or taken away; what the daemon has in memory goes on serving."""

    code = "STORE_DAMAGED"
    hint = "start the daemon again: it moves a damaged database aside, and makes results anew"
    exit_code = ExitCode.INTEGRITY


class SchemaTooNew(StoreError):
    """The database was written by a newer version."""

    code = "SCHEMA_TOO_NEW"
    hint = "run the version that wrote it, or a newer one"
    exit_code = ExitCode.REFUSED


class DatabaseForeign(StoreError):
    """The database in the state directory is another application's."""

    code = "DATABASE_FOREIGN"
    hint = "use another directory: --state-dir"
    exit_code = ExitCode.REFUSED


class StateDirectoryLocked(StoreError):
    """Another daemon holds the state directory."""

    code = "STATE_LOCKED"
    hint = "stop it, or use another directory: --state-dir"
    exit_code = ExitCode.REFUSED


class DirectoryUnsafe(DaemonError):
    """A directory belongs to somebody else, or others may write to it."""

    code = "DIRECTORY_UNSAFE"
    hint = "correct its owner and mode, or use another directory"
    exit_code = ExitCode.REFUSED


class SocketInUse(DaemonError):
    """What is at the socket's path is no stale socket, or another daemon has taken the path."""

    code = "SOCKET_IN_USE"
    hint = "use another path: --address"
    exit_code = ExitCode.REFUSED


class SocketLost(DaemonError):
    """The socket of a daemon that serves was removed or replaced: nobody new can reach it."""

    code = "SOCKET_LOST"
    hint = "start it again, which makes a new one; see what removes it"


class InvalidConfiguration(DaemonError):
    """A setting is unknown or has a value that cannot be used."""

    code = "CONFIG_INVALID"
    exit_code = ExitCode.USAGE


STATUS_OF_CODE: Mapping[str, str] = {
    "SPEC_INVALID": "INVALID_ARGUMENT",
    "RULES": "INVALID_ARGUMENT",
    "EXPRESSION_INVALID": "INVALID_ARGUMENT",
    "PROGRAM_INVALID": "INVALID_ARGUMENT",
    "TABLE_INVALID": "INVALID_ARGUMENT",
    "RANGE_INVALID": "INVALID_ARGUMENT",
    "MESSAGE_INVALID": "INVALID_ARGUMENT",
    "PLAN_INVALID": "INVALID_ARGUMENT",
    "KERNEL_UNKNOWN": "NOT_FOUND",
    "TABLE_UNKNOWN": "NOT_FOUND",
    "VARIANT_UNKNOWN": "NOT_FOUND",
    "VARIANT_REJECTED": "FAILED_PRECONDITION",
    "TABLE_CHANGED": "ABORTED",
    "PIN_UNKNOWN": "NOT_FOUND",
    "OPERATION_UNKNOWN": "NOT_FOUND",
    "ARTIFACT_UNKNOWN": "NOT_FOUND",
    "GENERATION_GONE": "OUT_OF_RANGE",
    "ARTIFACT_CORRUPT": "DATA_LOSS",
    "QUEUE_FULL": "RESOURCE_EXHAUSTED",
    "STORE_FULL": "RESOURCE_EXHAUSTED",
    "KEY_QUARANTINED": "FAILED_PRECONDITION",
    "NO_DEVICE": "FAILED_PRECONDITION",
    "TOOLCHAIN_MISSING": "FAILED_PRECONDITION",
    "CAPABILITY_UNKNOWN": "INVALID_ARGUMENT",
    "NO_VARIANT": "FAILED_PRECONDITION",
    "LOWERING_WRONG": "FAILED_PRECONDITION",
    "SEARCH_FAILED": "ABORTED",
    "HINT_TOO_LARGE": "FAILED_PRECONDITION",
    "HINT_UNREACHABLE": "FAILED_PRECONDITION",
    "DEVICE_FULL": "RESOURCE_EXHAUSTED",
    "SCRATCH_FULL": "RESOURCE_EXHAUSTED",
    "JOB_FAILED": "FAILED_PRECONDITION",
    "WORKERS": "INTERNAL",
    "WORKER_LOST": "ABORTED",
    "WORKER_DIED": "ABORTED",
    "WORKER_KILLED": "ABORTED",
    "WORKER_START_FAILED": "UNAVAILABLE",
    "WORKER_POOL_STOPPED": "UNAVAILABLE",
    "WORKER_HUNG": "DEADLINE_EXCEEDED",
    "CANCELLED": "CANCELLED",
    "BUDGET_SPENT": "CANCELLED",
    "STORE_READ_ONLY": "UNAVAILABLE",
    "STORE_FAILED": "INTERNAL",
    "DATABASE_MISSING": "NOT_FOUND",
    "STORE_DAMAGED": "DATA_LOSS",
    "SCHEMA_TOO_NEW": "FAILED_PRECONDITION",
    "DATABASE_FOREIGN": "FAILED_PRECONDITION",
    "STATE_LOCKED": "FAILED_PRECONDITION",
    "DIRECTORY_UNSAFE": "FAILED_PRECONDITION",
    "SOCKET_IN_USE": "FAILED_PRECONDITION",
    "SOCKET_LOST": "UNAVAILABLE",
    "CONFIG_INVALID": "INVALID_ARGUMENT",
    "INTERNAL": "INTERNAL",
}
"""Stable code -> name of the gRPC status."""
