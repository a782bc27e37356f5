"""Where the store's rows are kept: one line a row type.

A row may carry a hash of its own: rows that steer what runs do, because SQLite's integrity check
does not see a flipped bit in a value. Of others it may be looked at whether they can be read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from nearhint_daemon.store.rows import (
    ActRow,
    ArtifactRow,
    CopyBandwidthRow,
    DevicePolicyRow,
    EventRow,
    FallbackRow,
    JobRow,
    KernelRow,
    LaunchRow,
    MeasurementRow,
    MetaRow,
    PlanRow,
    ProgramRow,
    QuarantinedVariantRow,
    QuarantineRow,
    RegretRow,
    SightingRow,
    TableRow,
    TargetRow,
    TrafficRow,
    TriedRow,
    UsageRow,
    VariantRow,
)


@dataclass(frozen=True)
class Shape:
    """Where a row type is kept: table, key columns, whether it is hashed, or can be read."""

    row: type
    table: str
    key: tuple[str, ...]
    is_hashed: bool = False
    is_readable: Callable[[Any], bool] = lambda row: True

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The row's columns in order, the hash left out."""
        return tuple(field.name for field in fields(self.row))


def _is_job(row: JobRow) -> bool:
    try:
        payload = json.loads(row.payload)
    except ValueError:
        return False
    return isinstance(payload, dict) and 1 <= row.priority <= 3


def _is_launch(row: LaunchRow) -> bool:
    return all(map(str.isdecimal, row.nodes.split()))


def _has_sizes(row: TriedRow | TrafficRow) -> bool:
    return all(map(str.isdecimal, row.dims.split()))


def _is_measurement(row: MeasurementRow) -> bool:
    counts = (row.threads, row.median_ns, row.samples, row.discarded)
    return min(counts) >= 0 and all(map(str.isdecimal, row.dims.split()))


def _is_bandwidth(row: CopyBandwidthRow) -> bool:
    return min(row.bytes_moved, row.threads, row.median_ns, row.samples, row.discarded) >= 0


def _is_regret(row: RegretRow) -> bool:
    counts = (row.generation, row.served_ns, row.best_ns)
    shares = (row.regret, row.noise)
    return (
        min(counts) >= 0
        and all(0.0 <= share < math.inf for share in shares)
        and all(map(str.isdecimal, row.dims.split()))
    )


_ALL = (
    Shape(ProgramRow, "programs", ("namespace", "id"), is_hashed=True),
    Shape(
        PlanRow,
        "plans",
        ("namespace", "program", "target_kind", "compiler_version"),
        is_hashed=True,
    ),
    Shape(
        LaunchRow,
        "launches",
        ("namespace", "program", "target_kind", "compiler_version", "step"),
        is_readable=_is_launch,
    ),
    Shape(KernelRow, "kernels", ("namespace", "id"), is_hashed=True),
    Shape(FallbackRow, "fallbacks", ("namespace", "id"), is_hashed=True),
    Shape(TargetRow, "targets", ("id",), is_hashed=True),
    Shape(
        VariantRow,
        "variants",
        ("namespace", "kernel", "target", "schedule", "compiler_version"),
        is_hashed=True,
    ),
    Shape(ArtifactRow, "artifacts", ("sha256",)),
    Shape(MeasurementRow, "measurements", ("id",), is_readable=_is_measurement),
    Shape(CopyBandwidthRow, "copy_bandwidths", ("target",), is_readable=_is_bandwidth),
    Shape(
        RegretRow,
        "regrets",
        ("namespace", "kernel", "target", "dims", "selector"),
        is_readable=_is_regret,
    ),
    Shape(
        TriedRow,
        "tried",
        ("namespace", "kernel", "target", "dims", "schedule"),
        is_readable=_has_sizes,
    ),
    Shape(TableRow, "tables", ("namespace", "kernel", "target", "generation"), is_hashed=True),
    Shape(JobRow, "jobs", ("key",), is_readable=_is_job),
    Shape(QuarantineRow, "quarantine", ("key",)),
    Shape(
        QuarantinedVariantRow,
        "quarantined_variants",
        ("namespace", "kernel", "target", "variant"),
    ),
    Shape(ActRow, "acts", ("seq",)),
    Shape(UsageRow, "usage", ("namespace", "client_id", "program", "sizes")),
    Shape(
        TrafficRow, "traffic", ("namespace", "kernel", "fallback", "dims"), is_readable=_has_sizes
    ),
    Shape(SightingRow, "sightings", ("kind", "namespace", "subject")),
    Shape(DevicePolicyRow, "device_policy", ("device",)),
    Shape(EventRow, "events", ("id",)),
    Shape(MetaRow, "meta", ("name",)),
)

SHAPES: Mapping[type, Shape] = {shape.row: shape for shape in _ALL}
"""Row type -> where it is kept."""
