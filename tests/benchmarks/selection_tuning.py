"""Kernels tuned by a daemon at its own ladder of hints, with nothing running in this process."""

from __future__ import annotations

import hashlib
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tests.benchmarks.gpu_dry_run import Taken, few_sizes, taken
from tests.benchmarks.selection_cases import Ranges, Subject
from tests.benchmarks.serving import Serving
from tests.benchmarks.sweep_report import say
from tests.benchmarks.sweeps import Sizes

from nearhint.connection import Connection
from nearhint.launchers.detect import cpu_device
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import lower
from nearhint_proto import convert
from nearhint_proto.v1 import kernel_service_pb2 as kernels_pb
from nearhint_proto.v1 import operation_service_pb2 as operations_pb
from nearhint_proto.v1 import table_service_pb2 as tables_pb
from nearhint_rules import expr as ex
from nearhint_rules.plan import Fallback, Launch
from nearhint_rules.program import Program, canonicalise, slice_program
from nearhint_rules.table import Table
from nearhint_rules.target import Device

POLL_S = 0.2
CLIENT = "selection_regret"
EFFORTS: Mapping[str, kernels_pb.Effort.ValueType] = {
    "quick": kernels_pb.EFFORT_QUICK,
    "full": kernels_pb.EFFORT_FULL,
    "max": kernels_pb.EFFORT_MAX,
}
PHASES = ("check", "verify", "bench")
"""What workers of a device do: checking lowerings, verifying and timing Variants."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A subject's only Kernel, the Fallback beside it, and its sizes by those of the subject."""

    subject: Subject
    program: Program
    kernel: ir.Kernel
    kernel_id: str
    fallback: Fallback
    at: Callable[[Sizes], dict[str, int]]
    """Sizes of the Fallback's symbols."""

    def dims(self, symbols: Mapping[str, int]) -> tuple[int, ...]:
        """The Kernel's sizes at sizes of the Fallback's symbols."""
        return tuple(ex.evaluate(expr, symbols) for expr in self.fallback.dims)


def capture_subject(subject: Subject, device: str) -> Captured:
    """Captures on the CPU, for "cpu" or "cuda", with the subject's ranges as those of its symbols.

    Raises `ValueError` where there is not one Kernel alone.
    """
    found = taken(subject.sweep, "a", few_sizes(subject.sweep, "a"), device=device)
    program = canonicalise(_with_ranges(found, subject.ranges))
    lowered = lower(program, target_kind=device)
    launches = [step for step in lowered.plan.steps if isinstance(step, Launch)]
    if len(launches) != 1:
        raise ValueError(f"{subject.sweep.title} is {len(launches)} Kernels")
    ((step,), (fallback,), (kernel,)) = launches, lowered.fallbacks, lowered.kernels
    names = slice_program(program, step.nodes, [out.slot for out in step.outputs])[2]

    def at(sizes: Sizes) -> dict[str, int]:
        symbols = found.symbols_at(sizes)
        return {new: symbols[old] for old, new in names.items()}

    return Captured(subject, program, kernel.kernel, kernel.id, fallback, at)


def _with_ranges(found: Taken, ranges: Ranges) -> Program:
    lows = found.symbols_at(tuple(low for low, _ in ranges))
    highs = found.symbols_at(tuple(high for _, high in ranges))
    symbols = tuple(
        replace(symbol, low=max(2, lows[symbol.name]), high=highs[symbol.name])
        for symbol in found.program.symbols
    )
    return replace(found.program, symbols=symbols)


def device_of(kind: str) -> Device:
    """What a client would say of the device here."""
    if kind == "cpu":
        return cpu_device()
    from nearhint.launchers.detect_cuda import cuda_device

    return cuda_device(0)


@dataclass
class Tuning:
    """Programs at a daemon, and the operations that tune them."""

    serving: Serving
    connection: Connection
    device: Device
    threads: int
    target: str = ""

    def begin(self, captured: Captured, effort: str) -> str:
        """Has a Program's ladder tuned; the operation."""
        request = kernels_pb.RegisterProgramRequest(
            program=convert.program_to_proto(captured.program),
            device=convert.device_to_proto(self.device),
            client_id=CLIENT,
        )
        answer = self.connection.register_program(request)
        while not answer.HasField("plan"):
            time.sleep(POLL_S)
            answer = self.connection.register_program(request)
        self.target = answer.target_id
        return self.connection.ensure_kernels(
            kernels_pb.EnsureKernelsRequest(
                program_id=answer.program_id,
                target_id=self.target,
                threads=self.threads,
                client_id=CLIENT,
                effort=EFFORTS[effort],
                priority=kernels_pb.PRIORITY_WARM_UP,
            )
        ).operation.id

    def wait(self, operations: Sequence[str], *, end_s: float) -> bool:
        """Until all have ended; False where the time is up first."""
        last = -1
        while time.monotonic() < end_s:
            states = [self.connection.get_operation(each) for each in operations]
            done, total = sum(each.done for each in states), sum(each.total for each in states)
            if done != last:
                failed = sum(each.failed for each in states)
                say(f"  tuning: {done} of {total} jobs, {failed} failed")
                last = done
            if all(each.state != operations_pb.OPERATION_STATE_RUNNING for each in states):
                return True
            time.sleep(5 * POLL_S)
        return False

    def table(self, kernel: str) -> Table | None:
        """A Kernel's Table as it is served."""
        answer = self.connection.get_tables(
            tables_pb.GetTablesRequest(target_id=self.target, kernels=[kernel])
        )
        return convert.table_from_proto(answer.tables[0]) if answer.tables else None

    def binary(self, sha256: str, size_bytes: int) -> bytes:
        """An Artifact's bytes."""
        chunks = self.connection.fetch_artifact(sha256, 0, size_bytes=size_bytes)
        found = b"".join(chunks)
        if hashlib.sha256(found).hexdigest() != sha256:
            raise ValueError(f"{sha256} came damaged")
        return found

    def spent(self) -> dict[str, float]:
        """Seconds and jobs of the device's workers so far, by phase, and measurements kept."""
        status = self.connection.get_status()
        found: dict[str, float] = {"measurements": float(status.measurements)}
        with urllib.request.urlopen(f"http://{status.metrics_address}/metrics", timeout=5) as page:
            for line in page.read().decode().splitlines():
                for phase in PHASES:
                    for suffix in ("sum", "count"):
                        start = f'nearhint_worker_job_seconds_{suffix}{{phase="{phase}"}} '
                        if line.startswith(start):
                            found[f"{phase}_{suffix}"] = float(line.removeprefix(start))
        return found
