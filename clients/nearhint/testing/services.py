"""The services of nearhint.v1, answered from `FakeAnswers`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from nearhint.testing.answers import TARGET_ID, FakeAnswers
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
from nearhint_rules.selectors import select

CHUNK_BYTES = 4096
Found = TypeVar("Found")


def add_services(answers: FakeAnswers, server: grpc.Server) -> None:
    """Lets `server` answer every call of the protocol."""
    kernel_service_pb2_grpc.add_KernelServiceServicer_to_server(_Kernels(answers), server)
    table_service_pb2_grpc.add_TableServiceServicer_to_server(_Tables(answers), server)
    artifact_service_pb2_grpc.add_ArtifactServiceServicer_to_server(_Artifacts(answers), server)
    operation_service_pb2_grpc.add_OperationServiceServicer_to_server(_Operations(answers), server)
    admin_service_pb2_grpc.add_AdminServiceServicer_to_server(_Admin(answers), server)


class _Service:
    def __init__(self, answers: FakeAnswers) -> None:
        self.answers = answers
        self.store = answers.store


class _Kernels(_Service, kernel_service_pb2_grpc.KernelServiceServicer):
    def RegisterProgram(  # noqa: N802 - gRPC's names
        self,
        request: kernel_service_pb2.RegisterProgramRequest,
        context: grpc.ServicerContext,
    ) -> kernel_service_pb2.RegisterProgramResponse:
        self.answers.enter("RegisterProgram", request, context)
        program_id = convert.program_from_proto(request.program).id
        unknown = kernel_service_pb2.RegisterProgramResponse(
            program_id=program_id, target_id=TARGET_ID, reason="no plan for this program"
        )
        return self.store.plans.get(program_id, unknown)

    def EnsureKernels(  # noqa: N802
        self, request: kernel_service_pb2.EnsureKernelsRequest, context: grpc.ServicerContext
    ) -> kernel_service_pb2.EnsureKernelsResponse:
        self.answers.enter("EnsureKernels", request, context)
        operation = operation_service_pb2.Operation(
            id=f"ensure-{len(self.store.operations)}",
            state=operation_service_pb2.OPERATION_STATE_RUNNING,
        )
        self.store.operations[operation.id] = operation
        return kernel_service_pb2.EnsureKernelsResponse(operation=operation)

    def Select(  # noqa: N802
        self, request: kernel_service_pb2.SelectRequest, context: grpc.ServicerContext
    ) -> kernel_service_pb2.SelectResponse:
        self.answers.enter("Select", request, context)
        answer = kernel_service_pb2.SelectResponse()
        for question in request.questions:
            _, table = self.store.tables.get(question.kernel, (0, None))
            selection = select(table, tuple(question.dims), fallback=question.fallback)
            answer.selections.append(convert.selection_to_proto(selection, table))
        return answer

    def ReportUsage(  # noqa: N802
        self, request: kernel_service_pb2.ReportUsageRequest, context: grpc.ServicerContext
    ) -> kernel_service_pb2.ReportUsageResponse:
        self.answers.enter("ReportUsage", request, context)
        named = {usage.program_id for usage in request.usages}
        return kernel_service_pb2.ReportUsageResponse(
            accepted=len(request.usages), unknown_programs=sorted(named & self.store.forgotten)
        )


class _Tables(_Service, table_service_pb2_grpc.TableServiceServicer):
    def GetTables(  # noqa: N802
        self, request: table_service_pb2.GetTablesRequest, context: grpc.ServicerContext
    ) -> table_service_pb2.GetTablesResponse:
        self.answers.enter("GetTables", request, context)
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
        self.answers.enter("WatchTables", request, context)
        for cursor, tables in self.answers.changes(request.since_change_seq, context):
            yield table_service_pb2.WatchTablesResponse(
                tables=map(convert.table_to_proto, tables), change_seq=cursor
            )


class _Artifacts(_Service, artifact_service_pb2_grpc.ArtifactServiceServicer):
    def FetchArtifact(  # noqa: N802
        self, request: artifact_service_pb2.FetchArtifactRequest, context: grpc.ServicerContext
    ) -> Iterator[artifact_service_pb2.FetchArtifactResponse]:
        self.answers.enter("FetchArtifact", request, context)
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
        self.answers.enter("GetOperation", request, context)
        if request.id not in self.store.operations:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such operation")
        return operation_service_pb2.GetOperationResponse(
            operation=self.store.operations[request.id]
        )

    def WatchOperation(  # noqa: N802
        self, request: operation_service_pb2.WatchOperationRequest, context: grpc.ServicerContext
    ) -> Iterator[operation_service_pb2.WatchOperationResponse]:
        self.answers.enter("WatchOperation", request, context)
        if request.id in self.store.operations:
            operation = self.store.operations[request.id]
            yield operation_service_pb2.WatchOperationResponse(operation=operation)

    def CancelOperation(  # noqa: N802
        self, request: operation_service_pb2.CancelOperationRequest, context: grpc.ServicerContext
    ) -> operation_service_pb2.CancelOperationResponse:
        self.answers.enter("CancelOperation", request, context)
        return operation_service_pb2.CancelOperationResponse()


def _named(kernels: Mapping[str, Found], name: str, context: grpc.ServicerContext) -> Found:
    """What is kept for the first Kernel whose identity begins with `name`; aborts without one."""
    for kernel, found in kernels.items():
        if kernel.startswith(name):
            return found
    context.abort(grpc.StatusCode.NOT_FOUND, "no such kernel")
    raise AssertionError("abort raises")


def _canned(rpc: str) -> Any:
    """A call that is answered with what a test gave for it."""

    def called(self: _Service, request: Message, context: grpc.ServicerContext) -> Any:
        return self.answers.canned(rpc, request, context)

    return called


class _Admin(_Service, admin_service_pb2_grpc.AdminServiceServicer):
    def GetServerInfo(  # noqa: N802
        self, request: admin_service_pb2.GetServerInfoRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.GetServerInfoResponse:
        self.answers.enter("GetServerInfo", request, context)
        return self.store.info

    def GetStatus(  # noqa: N802
        self, request: admin_service_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.GetStatusResponse:
        self.answers.enter("GetStatus", request, context)
        return self.store.status

    def SetDevicePolicy(  # noqa: N802
        self, request: admin_service_pb2.SetDevicePolicyRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.SetDevicePolicyResponse:
        self.answers.enter("SetDevicePolicy", request, context)
        devices = [each for each in self.store.status.devices if each.name == request.device]
        if not devices:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no device of that name here")
        for device in devices:
            device.policy = request.policy
        return admin_service_pb2.SetDevicePolicyResponse(devices=self.store.status.devices)

    def ListKernels(  # noqa: N802
        self, request: admin_service_pb2.ListKernelsRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.ListKernelsResponse:
        self.answers.enter("ListKernels", request, context)
        start = int(request.page_token or 0)
        end = start + (request.page_size or 100)
        kernels = [each.kernel for each in self.store.explained.values()]
        return admin_service_pb2.ListKernelsResponse(
            kernels=kernels[start:end], next_page_token=str(end) if end < len(kernels) else ""
        )

    def ExplainKernel(  # noqa: N802
        self, request: admin_service_pb2.ExplainKernelRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.ExplainKernelResponse:
        self.answers.enter("ExplainKernel", request, context)
        return _named(self.store.explained, request.kernel, context)

    PinVariant = _canned("PinVariant")
    UnpinVariant = _canned("UnpinVariant")
    RollBackTable = _canned("RollBackTable")
    ListGenerations = _canned("ListGenerations")
    QuarantineVariant = _canned("QuarantineVariant")
    ReleaseVariant = _canned("ReleaseVariant")
    ListQuarantine = _canned("ListQuarantine")

    def MeasureRegret(  # noqa: N802
        self, request: admin_service_pb2.MeasureRegretRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.MeasureRegretResponse:
        self.answers.enter("MeasureRegret", request, context)
        return _named(self.store.regret_plans, request.kernel, context)

    def GetRegret(  # noqa: N802
        self, request: admin_service_pb2.GetRegretRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.GetRegretResponse:
        self.answers.enter("GetRegret", request, context)
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
