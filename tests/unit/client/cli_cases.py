"""Runs the command line, and a daemon that knows one Kernel."""

from __future__ import annotations

from click.testing import CliRunner, Result
from tests.unit.client import doubling

from nearhint.cli import main
from nearhint.testing import TARGET_ID, FakeDaemon
from nearhint_proto import convert
from nearhint_proto.v1 import (
    admin_service_pb2,
    types_pb2,
)
from nearhint_rules import expr as ex
from nearhint_rules.guard import Aligned, Divisible, Guard
from nearhint_rules.selectors import select


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def with_a_kernel(daemon: FakeDaemon) -> FakeDaemon:
    guarded = doubling.variant(
        guard=Guard((Divisible(ex.symbol("k0"), 16), Aligned(1, 32))), name="2"
    )
    table = doubling.table(64, 4096, generation=12, variants=(doubling.variant(), guarded))
    selection = select(table, (100,), fallback=doubling.FALLBACK)
    message = admin_service_pb2.ExplainKernelResponse(
        kernel=admin_service_pb2.KernelSummary(
            id=doubling.KERNEL,
            title="add",
            symbols=["k0"],
            tiers={TARGET_ID: 2},
            hints=2,
            programs=3,
        ),
        ir="kernel (k0)\n  [not markup] y[i] = x[i] + x[i]",
        bytes_moved=convert.expr_to_proto(ex.mul(8, ex.symbol("k0"))),
        bytes_read=convert.expr_to_proto(ex.mul(4, ex.symbol("k0"))),
        bytes_written=convert.expr_to_proto(ex.mul(4, ex.symbol("k0"))),
        copy_bandwidths={
            TARGET_ID: admin_service_pb2.CopyBandwidth(
                timing=types_pb2.Timing(median_ns=1000, spread=0.01, samples=42),
                bytes_moved=10_240,
                conditions="two buffers",
                measured_at_s=1_700_000_000,
                daemon_id="d" * 32,
            )
        },
        tables=[convert.table_to_proto(table)],
        selections={TARGET_ID: convert.selection_to_proto(selection, table)},
        measurements=[
            admin_service_pb2.MeasurementRecord(
                kind="variant",
                subject="1" * 64,
                dims=[64],
                timing=convert.timing_to_proto(table.hints[0].ranked[0][1]),
                conditions="warm cache, 2 threads",
                measured_at_s=1_700_000_000,
                daemon_id="d" * 32,
                origin="measured",
                discarded=13,
            )
        ],
        rejected=["looped 8: wrong at k0=7"],
        provenance=["model.layer.0 (model.py:12)"],
    )
    daemon.store.explained[doubling.KERNEL] = message
    daemon.store.status.devices.add(
        name="cpu",
        device=convert.device_to_proto(doubling.DEVICE),
        policy=admin_service_pb2.DEVICE_POLICY_ALWAYS,
        is_worker_ready=True,
    )
    daemon.store.status.kernels = 1
    daemon.store.status.problems.append("no C compiler")
    return daemon
