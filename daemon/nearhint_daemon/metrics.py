"""Every metric of the daemon, in one place: name, labels, buckets, help.

Labels come from closed sets and every combination is made at start, so that rates see zeros and
the number of series does not grow with Kernels, sizes or clients.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from nearhint_daemon.errors import STATUS_OF_CODE
from nearhint_daemon.jobs import Priority
from nearhint_daemon.store import Batch
from nearhint_daemon.store.rows import JobRow
from nearhint_rules.regret import Judgement
from nearhint_rules.selectors import SELECTORS
from nearhint_rules.table import Table

RPC_BUCKETS = tuple(0.0005 * 2**n for n in range(15))
COMPILE_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
SPREAD_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SPEEDUP_BUCKETS = (0.5, 0.8, 0.95, 1.0, 1.05, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
REGRET_BUCKETS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.08, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
PHASES = ("lower", "schedule", "compile", "check", "verify", "bench", "copy")
WORK_OUTCOMES = ("ok", "error", "timeout", "crash")
JOB_KINDS = (
    "lower",
    "tune1",
    "tune2",
    "cross",
    "refine",
    "probe",
    "compile",
    "restore",
    "bandwidth",
    "regret",
)
JOB_OUTCOMES = ("done", "failed", "cancelled")
WORKER_KINDS = ("compile", "bench")
RESTART_REASONS = ("died", "hung", "start_failed", "cancelled", "recycled")
STORE_PARTS = ("db", "wal", "artifacts")
CORRUPT = ("artifact", "row", "database")
FORGOTTEN = ("program", "kernel", "artifact")
SAMPLE_OUTCOMES = ("used", "discarded")
HINT_MOVES = ("wanted", "evicted")
DISPATCH_TIERS = ("t0", "t1", "t2", "t3")
FALLBACK_REASONS = (
    "no_plan",
    "plan_unusable",
    "strides_differ",
    "unaligned",
    "launch_failed",
    "number_too_large",
    "place_outside",
    "watched",
    "other",
)
STATUSES = ("OK", *sorted({*STATUS_OF_CODE.values(), "UNKNOWN"}))


class Metrics:
    """The daemon's metrics, and the observer that the parts of the daemon report to."""

    def __init__(self, *, version: str, compiler_version: str) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.build = gauge(
            "nearhint_build_info", "What runs; always 1.", ("version", "compiler", "python")
        )
        self.build.labels(version, compiler_version, platform.python_version()).set(1)
        self.rpc_seconds = histogram(
            "nearhint_rpc_server_handling_seconds",
            "Seconds from a call's arrival to its answer; of a stream, to its end.",
            ("service", "method"),
            buckets=RPC_BUCKETS,
        )
        self.rpcs = counter(
            "nearhint_rpc_server_handled",
            "Calls answered, by status code.",
            ("service", "method", "code"),
        )
        self.rpcs_in_flight = gauge("nearhint_rpc_in_flight", "Calls being served.", ("method",))
        self.launches = counter(
            "nearhint_dispatch_launches",
            "Launches that clients reported, by the tier that served.",
            ("tier",),
        )
        self.fallback_reasons = counter(
            "nearhint_dispatch_fallbacks",
            "Fallbacks that clients reported, by reason.",
            ("reason",),
        )
        self.jobs = counter("nearhint_jobs", "Jobs that ended.", ("kind", "outcome"))
        self.job_wait_seconds = histogram(
            "nearhint_job_queue_wait_seconds",
            "Seconds from a job's request to its start.",
            buckets=COMPILE_BUCKETS,
        )
        self.queue_depth = gauge(
            "nearhint_job_queue_depth", "Jobs that wait for their turn.", ("priority",)
        )
        self.work = counter(
            "nearhint_worker_jobs", "Jobs that workers ended, by phase.", ("phase", "outcome")
        )
        self.work_seconds = histogram(
            "nearhint_worker_job_seconds",
            "Seconds a worker took for a job, by phase.",
            ("phase",),
            buckets=COMPILE_BUCKETS,
        )
        self.worker_restarts = counter(
            "nearhint_worker_restarts", "Workers lost.", ("kind", "reason")
        )
        self.samples = counter(
            "nearhint_bench_samples",
            "Samples of timings, and those thrown away because something disturbed them.",
            ("outcome",),
        )
        self.spread = histogram(
            "nearhint_bench_relative_spread",
            "Relative spread of published timings.",
            buckets=SPREAD_BUCKETS,
        )
        self.speedup = histogram(
            "nearhint_speedup_vs_baseline",
            "The fastest Fallback's time over the first-ranked Variant's, at each published hint.",
            buckets=SPEEDUP_BUCKETS,
        )
        self.regret = histogram(
            "nearhint_selection_regret_ratio",
            "What a selector rule lost against the fastest, at each size between hints that was"
            " measured.",
            ("rule",),
            buckets=REGRET_BUCKETS,
        )
        self.quarantined = gauge(
            "nearhint_quarantined_keys",
            "Keys that are not tried again, and Variants that operators barred.",
        )
        self.store_bytes = gauge("nearhint_store_size_bytes", "Bytes on disk.", ("what",))
        self.store_write_seconds = histogram(
            "nearhint_store_write_seconds", "Seconds a commit took.", buckets=RPC_BUCKETS
        )
        self.store_errors = counter("nearhint_store_errors", "Commits that failed.")
        self.store_is_read_only = gauge(
            "nearhint_store_read_only", "1 while the disk takes no writes."
        )
        self.store_is_full = gauge(
            "nearhint_store_full", "1 while the store is too big though what may go has gone."
        )
        self.corrupt = counter(
            "nearhint_artifact_verify_failures",
            "Stored bytes that did not have their hash, and rows that cannot be read.",
            ("where",),
        )
        self.gone = counter(
            "nearhint_forgotten",
            "Programs that nobody asked for in a long time, Kernels that no Program has left, and"
            " their binaries: rows that are gone.",
            ("kind",),
        )
        self.generation = gauge("nearhint_dispatch_table_version", "The newest generation.")
        self.table_age_seconds = gauge(
            "nearhint_dispatch_table_age_seconds",
            "Seconds since the last Table was published, or the daemon started.",
        )
        self.watchers = gauge("nearhint_clients_connected", "Streams that watch Tables.")
        self.traffic_sizes = gauge(
            "nearhint_traffic_sizes", "Sizes of Kernels that clients called lately."
        )
        self.hint_moves = counter(
            "nearhint_hint_moves",
            "Hints tuned because traffic moved there, and let go because it left.",
            ("direction",),
        )
        self.loop_lag_seconds = histogram(
            "nearhint_event_loop_lag_seconds", "How late the event loop wakes.", buckets=RPC_BUCKETS
        )
        self._initialise()

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def add_methods(self, methods: Sequence[tuple[str, str]]) -> None:
        """Makes the series of these (service, method)."""
        for service, method in methods:
            self.rpc_seconds.labels(service, method)
            self.rpcs_in_flight.labels(method)
            for code in STATUSES:
                self.rpcs.labels(service, method, code)

    def store_wrote(self, batch: Batch) -> None:
        """A commit ended."""
        self.store_write_seconds.observe(batch.seconds)
        if batch.error:
            self.store_errors.inc()

    def store_read_only(self, is_read_only: bool, /) -> None:
        """Writes stopped working, or work again."""
        self.store_is_read_only.set(int(is_read_only))

    def store_found_corrupt(self, what: str, key: str) -> None:
        """A row or a file does not have its hash, or cannot be read."""
        del key
        self.corrupt.labels(what if what in CORRUPT else "row").inc()

    def job_started(self, row: JobRow, waited_s: float) -> None:
        """A job was taken up."""
        del row
        self.job_wait_seconds.observe(waited_s)

    def job_ended(self, row: JobRow) -> None:
        """A job ended."""
        self.jobs.labels(row.kind, row.state).inc()

    def work_ended(self, phase: str, outcome: str, seconds: float) -> None:
        """A worker's job ended."""
        self.work.labels(phase, outcome).inc()
        self.work_seconds.labels(phase).observe(seconds)

    def samples_taken(self, used: int, discarded: int, /) -> None:
        """A measurement was made."""
        self.samples.labels("used").inc(used)
        self.samples.labels("discarded").inc(discarded)

    def worker_restarted(self, kind: str, reason: str) -> None:
        """A worker was lost."""
        self.worker_restarts.labels(kind, reason if reason in RESTART_REASONS else "died").inc()

    def table_published(self, table: Table, hint: tuple[int, ...] | None) -> None:
        """A Table was written; `hint` is its new row."""
        self.generation.set(table.generation)
        for row in table.hints:
            if row.dims == hint and row.ranked and row.fallbacks:
                best = row.ranked[0][1]
                self.spread.observe(best.spread)
                fallback_ns = min(timing.median_ns for _, timing in row.fallbacks)
                self.speedup.observe(fallback_ns / best.median_ns)

    def forgotten(self, what: str, count: int, /) -> None:
        """Nobody asked for these in a long time, and they are gone."""
        self.gone.labels(what).inc(count)

    def hints_wanted(self, count: int, /) -> None:
        """Traffic moved to sizes without a hint."""
        self.hint_moves.labels("wanted").inc(count)

    def hints_evicted(self, count: int, /) -> None:
        """Hints that traffic left were let go."""
        self.hint_moves.labels("evicted").inc(count)

    def regret_judged(self, judgement: Judgement) -> None:
        """A rule was judged at a size."""
        self.regret.labels(judgement.selector).observe(judgement.regret)

    def usage_reported(self, launches: Sequence[int], reasons: dict[str, int]) -> None:
        """A client reported launches by tier, and why Fallbacks ran."""
        for tier, count in zip(DISPATCH_TIERS, launches, strict=False):
            self.launches.labels(tier).inc(count)
        for reason, count in reasons.items():
            known = reason if reason in FALLBACK_REASONS else "other"
            self.fallback_reasons.labels(known).inc(count)

    def _initialise(self) -> None:
        for tier in DISPATCH_TIERS:
            self.launches.labels(tier)
        for reason in FALLBACK_REASONS:
            self.fallback_reasons.labels(reason)
        for rule in SELECTORS:
            self.regret.labels(rule)
        for kind in JOB_KINDS:
            for outcome in JOB_OUTCOMES:
                self.jobs.labels(kind, outcome)
        for priority in Priority:
            self.queue_depth.labels(priority.name.lower())
        for phase in PHASES:
            self.work_seconds.labels(phase)
            for outcome in WORK_OUTCOMES:
                self.work.labels(phase, outcome)
        for kind in WORKER_KINDS:
            for reason in RESTART_REASONS:
                self.worker_restarts.labels(kind, reason)
        for outcome in SAMPLE_OUTCOMES:
            self.samples.labels(outcome)
        for part in STORE_PARTS:
            self.store_bytes.labels(part)
        for direction in HINT_MOVES:
            self.hint_moves.labels(direction)
        for what in FORGOTTEN:
            self.gone.labels(what)
        for where in CORRUPT:
            self.corrupt.labels(where)
