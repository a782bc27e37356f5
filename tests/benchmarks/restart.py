"""How long a daemon takes from its start to ready, and how much memory, with a full store.

    python -m tests.benchmarks.restart [--kernels N] [--measurements N] [--starts N] [--json]

Fills a store with Tables, Measurements, Variants and jobs, starts `nearhintd serve` on it several
times, and waits each time until Tables are answered over the socket. Prints the seconds of each
start, the daemon's resident bytes, those of its whole tree once the workers are up, and the latency
of Select. Device policy `never`: nothing is measured meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import grpc
import psutil
from tests.integration.daemon_process import DaemonProcess, daemon_in
from tests.unit.daemon.stores import Seen

from nearhint_daemon.store import Store, Writing
from nearhint_daemon.store.rows import DevicePolicyRow, JobRow, KernelRow, MeasurementRow, TableRow
from nearhint_proto import convert
from nearhint_proto.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    kernel_service_pb2,
    kernel_service_pb2_grpc,
)
from nearhint_rules.artifact import ArtifactRef, CpuLaunch
from nearhint_rules.canonical import content_hash
from nearhint_rules.expr import Int, Sym
from nearhint_rules.guard import Divisible, Guard
from nearhint_rules.table import HintRow, Table, Timing, Variant

TARGET = content_hash(b"target")
FALLBACK = content_hash(b"fallback")
HINTS = 8
VARIANTS = 4
BATCH = 2000
SELECTS = 2000


def kernel_id(number: int) -> str:
    return content_hash(f"kernel {number}".encode())


def table(number: int) -> Table:
    kernel = kernel_id(number)
    variants = tuple(
        Variant(
            content_hash(f"{kernel} {position}".encode()),
            f"cpu.rows vector={2**position}",
            Guard((Divisible(Sym("k0"), 2**position),) if position else ()),
            ArtifactRef(
                content_hash(f"binary {kernel} {position}".encode()),
                20_000,
                CpuLaunch("entry", Sym("k0"), 4096),
            ),
        )
        for position in range(VARIANTS)
    )
    hints = tuple(
        HintRow(
            (2 ** (4 + exponent),),
            tuple((position, Timing(1000 + position, 0.001, 21)) for position in range(VARIANTS)),
            ((FALLBACK, Timing(2000, 0.001, 21)),),
            2,
        )
        for exponent in range(HINTS)
    )
    return Table(kernel, TARGET, ("k0",), variants, 0, hints, 0)


def measurements(kernels: int, count: int) -> Iterator[MeasurementRow]:
    row = MeasurementRow(
        id=0,
        namespace="",
        kernel="",
        target=TARGET,
        subject_kind="variant",
        subject="",
        artifact=content_hash(b"artifact"),
        schedule="cpu.rows vector=8 unroll=2",
        dims="128",
        conditions="warm, 2 threads, interleaved",
        threads=2,
        median_ns=1000,
        spread=0.001,
        samples=21,
        discarded=0,
        measured_at_s=time.time(),
        daemon_id="benchmark",
        device="cpu",
        origin="measured",
    )
    chance = random.Random(20261121)
    for number in range(count):
        yield replace(
            row,
            kernel=kernel_id(number % kernels),
            subject=content_hash(f"subject {number % 5000}".encode()),
            dims=str(2 ** chance.randint(4, 14)),
            median_ns=chance.randint(1000, 9000),
        )


async def fill(state_dir: Path, *, kernels: int, count: int) -> None:
    """Writes what a busy daemon would have."""
    store = Store(state_dir, observer=Seen(), clock=time.time)
    await store.start()
    now = time.time()

    def write_kernels(tx: Writing) -> None:
        size = convert.expr_to_proto(Int(4096)).SerializeToString()
        for number in range(kernels):
            made = replace(table(number), generation=tx.next_seq())
            tx.put(KernelRow("", made.kernel, "(kernel)", "relu", "k0", size, size, now))
            message = convert.table_to_proto(made).SerializeToString()
            tx.put(
                TableRow("", made.kernel, TARGET, made.generation, message, 2, HINTS, now),
                seq=made.generation,
            )
            for stage in (1, 2):
                tx.put(
                    JobRow(
                        f"tune{stage}/{made.kernel}", f"tune{stage}", "", TARGET, "{}", "", 1,
                        stage, "done", "", 0.0, 1, "", "", now, now,
                    )
                )  # fmt: skip
        tx.put(DevicePolicyRow("cpu", "never", "benchmark", now))

    await store.write(write_kernels)
    rows = measurements(kernels, count)
    while batch := list(islice(rows, BATCH)):

        def write(tx: Writing, batch: list[MeasurementRow] = batch) -> None:
            for row in batch:
                tx.append(row)

        await store.write(write)
    await store.close()


def resident_bytes(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def tree_bytes(pid: int) -> int:
    process = psutil.Process(pid)
    return sum(int(each.memory_info().rss) for each in (process, *process.children(recursive=True)))


def wait_for_workers(daemon: DaemonProcess) -> None:
    with grpc.insecure_channel(daemon.address) as channel:
        stub = admin_service_pb2_grpc.AdminServiceStub(channel)
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            status = stub.GetStatus(admin_service_pb2.GetStatusRequest())
            if all(device.is_worker_ready for device in status.devices):
                return
            time.sleep(0.1)
    raise SystemExit("the workers did not come up")


def select_ns(daemon: DaemonProcess) -> list[int]:
    """Latencies of Select, one question a call, over random Kernels and sizes."""
    chance = random.Random(7)
    spent: list[int] = []
    with grpc.insecure_channel(daemon.address) as channel:
        stub = kernel_service_pb2_grpc.KernelServiceStub(channel)
        for _ in range(SELECTS):
            question = kernel_service_pb2.SelectQuestion(
                kernel=kernel_id(chance.randrange(50)),
                fallback=FALLBACK,
                dims=[chance.randint(16, 4096)],
            )
            request = kernel_service_pb2.SelectRequest(target_id=TARGET, questions=[question])
            started = time.perf_counter_ns()
            answer = stub.Select(request)
            spent.append(time.perf_counter_ns() - started)
            assert answer.selections[0].variant.id
    return sorted(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--kernels", type=int, default=1000)
    parser.add_argument("--measurements", type=int, default=100_000)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        daemon_in(Path(folder), module="nearhint_daemon", verb=("serve",)) as daemon,
    ):
        daemon.state_dir.mkdir(mode=0o700)
        asyncio.run(fill(daemon.state_dir, kernels=options.kernels, count=options.measurements))
        starts = [daemon.start()]
        for _ in range(options.starts - 1):
            daemon.kill()
            starts.append(daemon.start())
        wait_for_workers(daemon)
        latencies = select_ns(daemon)
        report = {
            "schema_version": 1,
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs",
            "kernels": options.kernels,
            "measurements": daemon.status().measurements,
            "store_bytes": daemon.status().store_size_bytes,
            "ready_s": [round(seconds, 3) for seconds in starts],
            "ready_median_s": round(statistics.median(starts), 3),
            "daemon_rss_bytes": resident_bytes(daemon.pid),
            "tree_rss_bytes": tree_bytes(daemon.pid),
            "select_p50_ms": latencies[len(latencies) // 2] / 1e6,
            "select_p99_ms": latencies[len(latencies) * 99 // 100] / 1e6,
        }
    if options.json:
        sys.stdout.write(json.dumps(report) + "\n")
        return
    for name, value in report.items():
        sys.stdout.write(f"{name:18} {value}\n")


if __name__ == "__main__":
    main()
