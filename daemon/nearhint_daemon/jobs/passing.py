"""Failures that pass: a job that has one may be done when it is asked for again."""

from __future__ import annotations

PASSING_CODES = frozenset(
    {
        "DEVICE_FULL",
        "INTERNAL",
        "KERNEL_UNKNOWN",
        "NO_DEVICE",
        "SCRATCH_FULL",
        "SEARCH_FAILED",
        "STORE_FAILED",
        "TABLE_CHANGED",
        "TOOLCHAIN_MISSING",
        "WORKER_KILLED",
        "WORKER_LOST",
        "WORKER_POOL_STOPPED",
        "WORKER_START_FAILED",
    }
)
"""Codes of failures that say nothing about the work itself."""
TOLD_CODES = frozenset({"DEVICE_FULL", "INTERNAL", "SCRATCH_FULL"})
"""Those of them that no other event tells of: each is in the log, not just the first."""
