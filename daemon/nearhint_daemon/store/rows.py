"""The store's rows: one frozen dataclass a table, its fields the columns in order.

`shapes.SHAPES` says where each is kept and by which key. Messages are serialised `nearhint.v1`
protobufs. `change_seq` is set by the store.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """A registered Program."""

    namespace: str
    id: str
    message: bytes
    label: str
    client_id: str
    created_at_s: float
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A Plan; `reason` says why it launches nothing, if it does not."""

    namespace: str
    program: str
    target_kind: str
    compiler_version: str
    message: bytes
    reason: str
    created_at_s: float
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """A launch step of a Plan; `nodes` are the Program's, `sources` lines on their origin."""

    namespace: str
    program: str
    target_kind: str
    compiler_version: str
    step: int
    kernel: str
    fallback: str
    nodes: str
    sources: str
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A Kernel: its printed IR; `symbols` are separated by spaces, the bytes are Exprs of them."""

    namespace: str
    id: str
    ir: str
    title: str
    symbols: str
    bytes_read: bytes
    bytes_written: bytes
    created_at_s: float
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class FallbackRow:
    """A Fallback; `verdict` is "", "ok" or "wrong": whether the Kernel's IR computes the same."""

    namespace: str
    id: str
    kernel: str
    message: bytes
    verdict: str
    problem: str
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A Target by its identity."""

    id: str
    message: bytes
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class VariantRow:
    """A Schedule of a Kernel as one compiler version built it for one Target.

    `state` is "compiled", "verified" or "rejected"; `message` is a Variant, empty where nothing
    was built; `problem` says why it was rejected.
    """

    namespace: str
    kernel: str
    target: str
    schedule: str
    compiler_version: str
    id: str
    artifact: str
    message: bytes
    state: str
    problem: str
    created_at_s: float
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """A binary by content; the bytes are in a file of that name."""

    sha256: str
    size_bytes: int
    created_at_s: float
    last_used_at_s: float
    uses: int
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class MeasurementRow:
    """A timing of a Variant or a Fallback; `superseded_by` names the newer row.

    None is overwritten; those that nothing asks for any more go after a while (`trimming.py`).
    """

    id: int
    namespace: str
    kernel: str
    target: str
    subject_kind: str
    subject: str
    artifact: str
    schedule: str
    dims: str
    conditions: str
    threads: int
    median_ns: int
    spread: float
    samples: int
    discarded: int
    measured_at_s: float
    daemon_id: str
    device: str
    origin: str
    superseded_by: int = 0
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class CopyBandwidthRow:
    """How long the device of a Target takes to copy; `bytes_moved` are read and written by it."""

    target: str
    bytes_moved: int
    conditions: str
    threads: int
    median_ns: int
    spread: float
    samples: int
    discarded: int
    measured_at_s: float
    daemon_id: str
    device: str
    origin: str
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class RegretRow:
    """What a selector rule would have served at sizes where all was timed, and the fastest there.

    `dims` are separated by spaces. `served` and `best` are Variants, empty for the Fallback;
    `generation` is of the Table that was judged; `noise` is the tie band of the two timings;
    `slower_than` names, separated by spaces, what beat the served one beyond noise.
    """

    namespace: str
    kernel: str
    target: str
    dims: str
    selector: str
    fallback: str
    generation: int
    served: str
    served_ns: int
    best: str
    best_ns: int
    regret: float
    noise: float
    slower_than: str
    measured_at_s: float
    daemon_id: str
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class TriedRow:
    """What became of a Schedule at a hint, the last time that it was considered there.

    `outcome` is "measured", "eliminated", "pruned", "identical", "rejected" or "not_measured";
    `stage` is "search", "cross" or "refine".
    """

    namespace: str
    kernel: str
    target: str
    dims: str
    schedule: str
    stage: str
    outcome: str
    reason: str
    at_s: float
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class TableRow:
    """A Table at one generation; the newest few of each Kernel and Target are kept.

    `hints` are those of its rows that are neither beside a hint nor beyond one; before version 9 of
    the schema all rows.
    """

    namespace: str
    kernel: str
    target: str
    generation: int
    message: bytes
    tier: int
    hints: int
    created_at_s: float
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class JobRow:
    """Durable work: `key` is its identity, `requires` the key of a job that must be done first.

    `state` is "queued", "running", "done", "failed" or "cancelled"; `payload` is JSON.
    """

    key: str
    kind: str
    namespace: str
    lane: str
    payload: str
    requires: str
    priority: int
    stage: int
    state: str
    lease_owner: str
    lease_expires_s: float
    attempts: int
    code: str
    message: str
    created_at_s: float
    finished_at_s: float
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class QuarantineRow:
    """A key that is not tried again; `reproducer` names a folder under the state directory."""

    key: str
    kind: str
    reason: str
    reproducer: str
    failures: int
    created_at_s: float
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class QuarantinedVariantRow:
    """A Variant that an operator barred: neither its Schedule nor its binary is used.

    It carries no hash: a row that is damaged must not open the door.
    """

    namespace: str
    kernel: str
    target: str
    variant: str
    schedule: str
    artifact: str
    reason: str
    actor: str
    at_s: float
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class ActRow:
    """What an operator did to a Kernel, or the daemon to what an operator did.

    `seq` is the change that it was: the generation of the Table, where the act published one.
    """

    seq: int
    namespace: str
    actor: str
    at_s: float
    kind: str
    kernel: str
    target: str
    subject: str
    detail: str
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class UsageRow:
    """How often a client ran a Program at sizes; `sizes` is `s0=8,s1=16`."""

    namespace: str
    client_id: str
    program: str
    sizes: str
    calls: int
    launches_t0: int
    launches_t1: int
    launches_t2: int
    launches_t3: int
    last_at_s: float
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """Sizes of a Kernel that clients meet beside a Fallback: `weight` in calls, decayed to `at_s`.

    `dims` are separated by spaces; `sizes` are those of `program` where they were met last.
    """

    namespace: str
    kernel: str
    fallback: str
    dims: str
    program: str
    sizes: str
    weight: float
    first_at_s: float
    at_s: float
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class SightingRow:
    """The day on which a Program was last asked for; or a Kernel that no Program has any more.

    Days on which the daemon ran are counted, from the first; `kind` is "program" or "kernel".
    """

    kind: str
    namespace: str
    subject: str
    day: int
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class DevicePolicyRow:
    """Whether a device may be used for verifying and measuring; who said so, and when."""

    device: str
    policy: str
    actor: str
    changed_at_s: float
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class EventRow:
    """Something worth knowing later: a tombstone, a policy change, a corrupt row."""

    id: int
    kind: str
    subject: str
    detail: str
    actor: str
    at_s: float
    change_seq: int = 0


@dataclass(frozen=True, slots=True)
class MetaRow:
    """A fact about the store itself."""

    name: str
    value: str


Row = (
    ProgramRow
    | PlanRow
    | LaunchRow
    | KernelRow
    | FallbackRow
    | TargetRow
    | VariantRow
    | ArtifactRow
    | MeasurementRow
    | CopyBandwidthRow
    | RegretRow
    | TriedRow
    | TableRow
    | JobRow
    | QuarantineRow
    | QuarantinedVariantRow
    | ActRow
    | UsageRow
    | TrafficRow
    | SightingRow
    | DevicePolicyRow
    | EventRow
    | MetaRow
)
"""Any row."""
