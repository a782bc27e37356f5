"""A benchmark's daemon seen from outside: what it has used, may use, and found."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence

import psutil
from prometheus_client.parser import text_string_to_metric_families
from tests.benchmarks.compiled_call import Call
from tests.benchmarks.serving import Serving

from nearhint.connection import Connection
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2 as admin
from nearhint_proto.v1 import kernel_service_pb2, operation_service_pb2

DEVICE_PHASES = ("check", "verify", "bench", "copy")
JOB_SECONDS = "nearhint_worker_job_seconds_"
QUIET_S = 0.3
QUIET_SHARE = 0.05
QUIET_LIMIT_S = 15.0


class Daemon:
    """The benchmark's daemon, seen from outside."""

    def __init__(self, serving: Serving) -> None:
        self._daemon = serving._daemon
        self._connection: Connection = self._daemon.connect()
        self._asked: list[str] = []
        self._metrics = f"http://{self._connection.get_status().metrics_address}/metrics"

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    def device_s(self) -> float:
        """Seconds that jobs have had the device for."""
        return sum(spent_s for _, spent_s in self.device_jobs().values())

    def device_jobs(self) -> dict[str, tuple[int, float]]:
        """How many jobs have had the device, and for how many seconds, by phase."""
        with urllib.request.urlopen(self._metrics, timeout=10) as answer:
            text = answer.read().decode()
        found = {
            (sample.name.removeprefix(JOB_SECONDS), sample.labels["phase"]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in (f"{JOB_SECONDS}count", f"{JOB_SECONDS}sum")
        }
        return {
            phase: (int(found["count", phase]), found["sum", phase])
            for phase in DEVICE_PHASES
            if ("count", phase) in found
        }

    def workers_cpu_s(self) -> float:
        """Seconds of CPU time that the workers of now, and their children, have used."""
        process = self._daemon._process
        assert process is not None
        used = 0.0
        for child in psutil.Process(process.pid).children(recursive=True):
            try:
                times = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            used += times.user + times.system
        return used

    def allow(self, device: str, policy: admin.DevicePolicy.ValueType) -> None:
        """Sets the device's policy."""
        self._daemon.set_policy(device, policy)

    def forbid(self, device: str) -> bool:
        """Forbids the device; whether the workers came to rest."""
        self._daemon.set_policy(device, admin.DEVICE_POLICY_NEVER)
        end_s = time.monotonic() + QUIET_LIMIT_S
        while time.monotonic() < end_s:
            before = self.workers_cpu_s()
            time.sleep(QUIET_S)
            if self.workers_cpu_s() - before < QUIET_SHARE * QUIET_S:
                return True
        return False

    def is_idle(self) -> bool:
        """Whether nothing is queued or running."""
        status = self._connection.get_status()
        open_jobs = status.running_jobs + status.waiting_jobs
        return not open_jobs and not any(status.queued_jobs.values())

    def ask(self, call: Call, target: str, sizes: Iterable[Mapping[str, int]]) -> None:
        """Asks for a Program's Kernels at these very sizes, until `drop`."""
        answer = self._connection.ensure_kernels(
            kernel_service_pb2.EnsureKernelsRequest(
                program_id=call.handle.program_id,
                target_id=target,
                hints=[convert.size_hint_to_proto(each) for each in sizes],
                threads=call.handle.threads,
                priority=kernel_service_pb2.PRIORITY_WARM_UP,
                as_given=True,
            )
        )
        self._asked.append(answer.operation.id)

    def drop(self) -> None:
        """What was asked for is not wanted any more."""
        for operation in self._asked:
            self._connection.cancel_operation(operation)

    def contest(
        self, kernel: str, symbols: Sequence[str], at: Iterable[tuple[int, ...]], *, end_s: float
    ) -> None:
        """Has everything that may run at a Kernel's sizes timed; raises `TimeoutError`."""
        request = admin.MeasureRegretRequest(
            kernel=kernel,
            at=[convert.size_hint_to_proto(dict(zip(symbols, dims, strict=True))) for dims in at],
        )
        operation = self._connection.measure_regret(request).operation
        while operation.state == operation_service_pb2.OPERATION_STATE_RUNNING:
            if time.monotonic() > end_s:
                raise TimeoutError(f"the contests of {kernel[:12]} took too long")
            time.sleep(0.1)
            operation = self._connection.get_operation(operation.id)

    def timings(self, kernel: str) -> dict[tuple[tuple[int, ...], str], float]:
        """The newest median of what was timed of a Kernel, in seconds, by sizes and identity."""
        found = self._connection.explain_kernel(admin.ExplainKernelRequest(kernel=kernel))
        newest = sorted(found.measurements, key=lambda each: each.measured_at_s)
        return {(tuple(each.dims), each.subject): each.timing.median_ns / 1e9 for each in newest}
