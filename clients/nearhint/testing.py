"""A daemon for tests: in this process, over a real socket, from canned data.

    with FakeDaemon(directory) as daemon:
        daemon.plan(program, plan)
        daemon.publish(table)
        session = session_for(daemon.address, device)

It compiles and measures nothing; it keeps what it was asked, so that a test can look. `fail` and
`hold` make it refuse or delay single calls, `corrupt` makes it lie about an Artifact.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import grpc
from google.protobuf.message import Message

from nearhint_proto import convert
from nearhint_proto.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    artifact_service_pb2,
    artifact_service_pb2_grpc,
    kernel_service_pb2,
    kernel_service_pb2_grpc,
    operation_service_pb2,
    operation_service_pb2_grpc,
    table_service_pb2,
    table_service_pb2_grpc,
)
from nearhint_rules.canonical import content_hash
from nearhint_rules.plan import Plan
from nearhint_rules.program import Program
from nearhint_rules.selectors import select
from nearhint_rules.table import Table

TARGET_ID = "7a" * 32
CHUNK_BYTES = 4096


@dataclass(slots=True)
class FakeStore:
    """What the fake daemon answers from, and what it was asked."""

    plans: dict[str, kernel_service_pb2.RegisterProgramResponse] = field(
        default_factory=dict[str, kernel_service_pb2.RegisterProgramResponse]
    )
    operations: dict[str, operation_service_pb2.Operation] = field(
        default_factory=dict[str, operation_service_pb2.Operation]
    )
    tables: dict[str, tuple[int, Table]] = field(default_factory=dict[str, tuple[int, Table]])
    artifacts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    asked: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    change_seq: int = 0
    info: admin_service_pb2.GetServerInfoResponse = field(
        default_factory=lambda: admin_service_pb2.GetServerInfoResponse(
            version="0.0.0", protocol_min=1, protocol_max=1, daemon_id="fake"
        )
    )
    status: admin_service_pb2.GetStatusResponse = field(
        default_factory=lambda: admin_service_pb2.GetStatusResponse(state="serving")
    )
    explained: dict[str, admin_service_pb2.ExplainKernelResponse] = field(
        default_factory=dict[str, admin_service_pb2.ExplainKernelResponse]
    )
    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    regret_plans: dict[str, admin_service_pb2.MeasureRegretResponse] = field(
        default_factory=dict[str, admin_service_pb2.MeasureRegretResponse]
    )
    regrets: dict[str, admin_service_pb2.GetRegretResponse] = field(
        default_factory=dict[str, admin_service_pb2.GetRegretResponse]
    )


class FakeDaemon:
    """The services of nearhint.v1 on `directory`/fake.sock, from a `FakeStore`.

    Two of them on one store, one after the other, are a daemon that was restarted.
    """

    def __init__(self, directory: Path, *, store: FakeStore | None = None) -> None:
        self.socket = directory / "fake.sock"
        self.address = f"unix:{self.socket}"
        self.store = store or FakeStore()
        self.changed = threading.Condition()
        self._failures: dict[str, grpc.StatusCode] = {}
        self._gates: dict[str, threading.Event] = {}
        self._is_running = False
        self._server: grpc.Server | None = None

    def __enter__(self) -> FakeDaemon:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Listens; a socket that a killed daemon left is replaced."""
        self.socket.unlink(missing_ok=True)
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
        kernel_service_pb2_grpc.add_KernelServiceServicer_to_server(_Kernels(self), server)
        table_service_pb2_grpc.add_TableServiceServicer_to_server(_Tables(self), server)
        artifact_service_pb2_grpc.add_ArtifactServiceServicer_to_server(_Artifacts(self), server)
        operation_service_pb2_grpc.add_OperationServiceServicer_to_server(_Operations(self), server)
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(_Admin(self), server)
        server.add_insecure_port(self.address)
        self._is_running = True
        server.start()
        # gRPC leaves the mode to the umask; a client refuses a socket that others may write to.
        self.socket.chmod(0o660)
        self._server = server

    def stop(self) -> None:
        """Ends every call at once, as a killed daemon does."""
        self._is_running = False
        with self.changed:
            self.changed.notify_all()
        for gate in self._gates.values():
            gate.set()
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None

    def plan(self, program: Program, plan: Plan) -> None:
        """RegisterProgram answers with this Plan."""
        self.store.plans[program.id] = kernel_service_pb2.RegisterProgramResponse(
            program_id=program.id, target_id=TARGET_ID, plan=convert.plan_to_proto(plan)
        )

    def lowering(self, program: Program, operation_id: str) -> None:
        """RegisterProgram answers that the Plan is still being made."""
        operation = operation_service_pb2.Operation(
            id=operation_id, state=operation_service_pb2.OPERATION_STATE_RUNNING
        )
        self.store.operations[operation_id] = operation
        self.store.plans[program.id] = kernel_service_pb2.RegisterProgramResponse(
            program_id=program.id, target_id=TARGET_ID, operation=operation
        )

    def finish(self, operation_id: str, *, error: str = "") -> None:
        """An operation ends, well or with an error."""
        operation = self.store.operations[operation_id]
        operation.state = (
            operation_service_pb2.OPERATION_STATE_FAILED
            if error
            else operation_service_pb2.OPERATION_STATE_DONE
        )
        operation.error.message = error

    def artifact(self, binary: bytes) -> str:
        """Keeps a binary; its sha256."""
        sha256 = content_hash(binary)
        self.store.artifacts[sha256] = binary
        return sha256

    def corrupt(self, sha256: str) -> None:
        """From now on sends the Artifact with its last byte changed."""
        binary = self.store.artifacts[sha256]
        self.store.artifacts[sha256] = binary[:-1] + bytes([binary[-1] ^ 1])

    def publish(self, *tables: Table) -> None:
        """Stores Tables and pushes them to every watcher."""
        with self.changed:
            for table in tables:
                self.store.change_seq += 1
                self.store.tables[table.kernel] = (self.store.change_seq, table)
            self.changed.notify_all()

    def answer(self, rpc: str, message: Message) -> None:
        """From now on gives this answer to a call by which an operator decides, by its name."""
        self.store.answers[rpc] = message

    def canned(self, rpc: str, request: Message, context: grpc.ServicerContext) -> Any:
        """The answer that was given for a call; NOT_FOUND without one."""
        self.enter(rpc, request, context)
        if rpc not in self.store.answers:
            context.abort(grpc.StatusCode.NOT_FOUND, "no answer was given")
        return self.store.answers[rpc]

    def fail(self, rpc: str, status: grpc.StatusCode | None) -> None:
        """From now on refuses a call, by its name, or (None) no longer."""
        if status is None:
            self._failures.pop(rpc, None)
        else:
            self._failures[rpc] = status

    def hold(self, rpc: str) -> threading.Event:
        """From now on keeps a call waiting until the event is set."""
        gate = self._gates[rpc] = threading.Event()
        return gate

    def asked(self, rpc: str) -> list[Any]:
        """The requests of one kind so far."""
        return [request for name, request in list(self.store.asked) if name == rpc]

    def wait_asked(self, rpc: str, *, times: int = 1, timeout_s: float = 10.0) -> list[Any]:
        """Waits until a call came `times` times; the requests, or `TimeoutError`."""
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.asked(rpc)) >= times, timeout_s):
                raise TimeoutError(f"{rpc} came {len(self.asked(rpc))} times, not {times}")
        return self.asked(rpc)

    def enter(self, rpc: str, request: Message, context: grpc.ServicerContext) -> None:
        """What every call begins with: kept, held, refused."""
        with self.changed:
            self.store.asked.append((rpc, request))
            self.changed.notify_all()
        gate = self._gates.get(rpc)
        if gate is not None:
            gate.wait(30)
        status = self._failures.get(rpc)
        if status is not None:
            context.abort(status, "refused by the test")

    def changes(
        self, since: int, context: grpc.ServicerContext
    ) -> Iterator[tuple[int, list[Table]]]:
        """Tables newer than a cursor, as they come, with the cursor after them."""
        cursor = since
        while context.is_active() and self._is_running:
            new = self._newer(cursor)
            if new:
                cursor = new[-1][0]
                yield cursor, [table for _, table in new]

    def _newer(self, cursor: int) -> list[tuple[int, Table]]:
        with self.changed:
            self.changed.wait_for(
                lambda: self.store.change_seq > cursor or not self._is_running, 0.5
            )
            new = [each for each in self.store.tables.values() if each[0] > cursor]
        return sorted(new, key=lambda each: each[0])


class _Service:
    def __init__(self, daemon: FakeDaemon) -> None:
        self.daemon = daemon
        self.store = daemon.store


class _Kernels(_Service, kernel_service_pb2_grpc.KernelServiceServicer):
    def RegisterProgram(  # noqa: N802 - gRPC's names
        self,
        request: kernel_service_pb2.RegisterProgramRequest,
        context: grpc.ServicerContext,
    ) -> kernel_service_pb2.RegisterProgramResponse:
        self.daemon.enter("RegisterProgram", request, context)
        program_id = convert.program_from_proto(request.program).id
        unknown = kernel_service_pb2.RegisterProgramResponse(
            program_id=program_id, target_id=TARGET_ID, reason="no plan for this program"
        )
        return self.store.plans.get(program_id, unknown)

    def EnsureKernels(  # noqa: N802
        self, request: kernel_service_pb2.EnsureKernelsRequest, context: grpc.ServicerContext
    ) -> kernel_service_pb2.EnsureKernelsResponse:
        self.daemon.enter("EnsureKernels", request, context)
        operation = operation_service_pb2.Operation(
            id=f"ensure-{len(self.store.operations)}",
            state=operation_service_pb2.OPERATION_STATE_RUNNING,
        )
        self.store.operations[operation.id] = operation
        return kernel_service_pb2.EnsureKernelsResponse(operation=operation)

    def Select(  # noqa: N802
        self, request: kernel_service_pb2.SelectRequest, context: grpc.ServicerContext
    ) -> kernel_service_pb2.SelectResponse:
        self.daemon.enter("Select", request, context)
        answer = kernel_service_pb2.SelectResponse()
        for question in request.questions:
            _, table = self.store.tables.get(question.kernel, (0, None))
            selection = select(table, tuple(question.dims), fallback=question.fallback)
            answer.selections.append(convert.selection_to_proto(selection, table))
        return answer

    def ReportUsage(  # noqa: N802
        self, request: kernel_service_pb2.ReportUsageRequest, context: grpc.ServicerContext
    ) -> kernel_service_pb2.ReportUsageResponse:
        self.daemon.enter("ReportUsage", request, context)
        return kernel_service_pb2.ReportUsageResponse(accepted=len(request.usages))


class _Tables(_Service, table_service_pb2_grpc.TableServiceServicer):
    def GetTables(  # noqa: N802
        self, request: table_service_pb2.GetTablesRequest, context: grpc.ServicerContext
    ) -> table_service_pb2.GetTablesResponse:
        self.daemon.enter("GetTables", request, context)
        found = [
            self.store.tables[kernel] for kernel in request.kernels if kernel in self.store.tables
        ]
        return table_service_pb2.GetTablesResponse(
            tables=[convert.table_to_proto(table) for _, table in found],
            change_seq=self.store.change_seq,
        )

    def WatchTables(  # noqa: N802
        self, request: table_service_pb2.WatchTablesRequest, context: grpc.ServicerContext
    ) -> Iterator[table_service_pb2.WatchTablesResponse]:
        self.daemon.enter("WatchTables", request, context)
        for cursor, tables in self.daemon.changes(request.since_change_seq, context):
            yield table_service_pb2.WatchTablesResponse(
                tables=map(convert.table_to_proto, tables), change_seq=cursor
            )


class _Artifacts(_Service, artifact_service_pb2_grpc.ArtifactServiceServicer):
    def FetchArtifact(  # noqa: N802
        self, request: artifact_service_pb2.FetchArtifactRequest, context: grpc.ServicerContext
    ) -> Iterator[artifact_service_pb2.FetchArtifactResponse]:
        self.daemon.enter("FetchArtifact", request, context)
        binary = self.store.artifacts.get(request.sha256)
        if binary is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such artifact")
        for start in range(request.offset, len(binary), CHUNK_BYTES):
            yield artifact_service_pb2.FetchArtifactResponse(
                size_bytes=len(binary), chunk=binary[start : start + CHUNK_BYTES]
            )


class _Operations(_Service, operation_service_pb2_grpc.OperationServiceServicer):
    def GetOperation(  # noqa: N802
        self, request: operation_service_pb2.GetOperationRequest, context: grpc.ServicerContext
    ) -> operation_service_pb2.GetOperationResponse:
        self.daemon.enter("GetOperation", request, context)
        if request.id not in self.store.operations:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such operation")
        return operation_service_pb2.GetOperationResponse(
            operation=self.store.operations[request.id]
        )

    def WatchOperation(  # noqa: N802
        self, request: operation_service_pb2.WatchOperationRequest, context: grpc.ServicerContext
    ) -> Iterator[operation_service_pb2.WatchOperationResponse]:
        self.daemon.enter("WatchOperation", request, context)
        if request.id in self.store.operations:
            operation = self.store.operations[request.id]
            yield operation_service_pb2.WatchOperationResponse(operation=operation)

    def CancelOperation(  # noqa: N802
        self, request: operation_service_pb2.CancelOperationRequest, context: grpc.ServicerContext
    ) -> operation_service_pb2.CancelOperationResponse:
        self.daemon.enter("CancelOperation", request, context)
        return operation_service_pb2.CancelOperationResponse()


class _Admin(_Service, admin_service_pb2_grpc.AdminServiceServicer):
    def GetServerInfo(  # noqa: N802
        self, request: admin_service_pb2.GetServerInfoRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.GetServerInfoResponse:
        self.daemon.enter("GetServerInfo", request, context)
        return self.store.info

    def GetStatus(  # noqa: N802
        self, request: admin_service_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.GetStatusResponse:
        self.daemon.enter("GetStatus", request, context)
        return self.store.status

    def SetDevicePolicy(  # noqa: N802
        self, request: admin_service_pb2.SetDevicePolicyRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.SetDevicePolicyResponse:
        self.daemon.enter("SetDevicePolicy", request, context)
        devices = [each for each in self.store.status.devices if each.name == request.device]
        if not devices:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such device")
        for device in devices:
            device.policy = request.policy
        return admin_service_pb2.SetDevicePolicyResponse(devices=devices)

    def ListKernels(  # noqa: N802
        self, request: admin_service_pb2.ListKernelsRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.ListKernelsResponse:
        self.daemon.enter("ListKernels", request, context)
        start = int(request.page_token or 0)
        end = start + (request.page_size or 100)
        kernels = [each.kernel for each in self.store.explained.values()]
        return admin_service_pb2.ListKernelsResponse(
            kernels=kernels[start:end], next_page_token=str(end) if end < len(kernels) else ""
        )

    def ExplainKernel(  # noqa: N802
        self, request: admin_service_pb2.ExplainKernelRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.ExplainKernelResponse:
        self.daemon.enter("ExplainKernel", request, context)
        for kernel, explained in self.store.explained.items():
            if kernel.startswith(request.kernel):
                return explained
        context.abort(grpc.StatusCode.NOT_FOUND, "no such kernel")
        raise AssertionError("abort raises")

    def PinVariant(  # noqa: N802
        self, request: admin_service_pb2.PinVariantRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.PinVariantResponse:
        return cast(
            "admin_service_pb2.PinVariantResponse",
            self.daemon.canned("PinVariant", request, context),
        )

    def UnpinVariant(  # noqa: N802
        self, request: admin_service_pb2.UnpinVariantRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.UnpinVariantResponse:
        return cast(
            "admin_service_pb2.UnpinVariantResponse",
            self.daemon.canned("UnpinVariant", request, context),
        )

    def RollBackTable(  # noqa: N802
        self, request: admin_service_pb2.RollBackTableRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.RollBackTableResponse:
        return cast(
            "admin_service_pb2.RollBackTableResponse",
            self.daemon.canned("RollBackTable", request, context),
        )

    def ListGenerations(  # noqa: N802
        self, request: admin_service_pb2.ListGenerationsRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.ListGenerationsResponse:
        return cast(
            "admin_service_pb2.ListGenerationsResponse",
            self.daemon.canned("ListGenerations", request, context),
        )

    def QuarantineVariant(  # noqa: N802
        self, request: admin_service_pb2.QuarantineVariantRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.QuarantineVariantResponse:
        return cast(
            "admin_service_pb2.QuarantineVariantResponse",
            self.daemon.canned("QuarantineVariant", request, context),
        )

    def ReleaseVariant(  # noqa: N802
        self, request: admin_service_pb2.ReleaseVariantRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.ReleaseVariantResponse:
        return cast(
            "admin_service_pb2.ReleaseVariantResponse",
            self.daemon.canned("ReleaseVariant", request, context),
        )

    def ListQuarantine(  # noqa: N802
        self, request: admin_service_pb2.ListQuarantineRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.ListQuarantineResponse:
        return cast(
            "admin_service_pb2.ListQuarantineResponse",
            self.daemon.canned("ListQuarantine", request, context),
        )

    def MeasureRegret(  # noqa: N802
        self, request: admin_service_pb2.MeasureRegretRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.MeasureRegretResponse:
        self.daemon.enter("MeasureRegret", request, context)
        for kernel, planned in self.store.regret_plans.items():
            if kernel.startswith(request.kernel):
                return planned
        context.abort(grpc.StatusCode.NOT_FOUND, "no such kernel")
        raise AssertionError("abort raises")

    def GetRegret(  # noqa: N802
        self, request: admin_service_pb2.GetRegretRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.GetRegretResponse:
        self.daemon.enter("GetRegret", request, context)
        known = self.store.regrets[request.kernel]
        start = int(request.page_token or 0)
        records = [
            record
            for record in known.records
            if not request.selectors or record.selector in request.selectors
        ]
        end = start + (request.page_size or 100)
        return admin_service_pb2.GetRegretResponse(
            kernel=known.kernel,
            symbols=known.symbols,
            records=records[start:end],
            next_page_token=str(end) if end < len(records) else "",
        )
