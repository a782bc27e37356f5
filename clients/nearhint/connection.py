"""The connection to the daemon: the only module of the client that imports gRPC.

Unix sockets only. Before each connect the socket and its folders are checked (`nearhint.trust`).
A channel that reconnects by itself would skip that check, so gRPC retries nothing: who lost a
Connection closes it and makes another, and repeats what is safe to repeat, which is every call but
ReportUsage. `check_socket` finds out that the socket was replaced. Every call has a deadline, and
every failure becomes one of `nearhint.errors`.

A `Connection` belongs to one process and is used by one thread; `close` may come from any thread
and ends what is in flight. gRPC survives a fork only if nothing of it is in use at that moment, so
the engine closes its Connection before a fork (`nearhint._engine`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from nearhint.config import check_length, socket_path
from nearhint.counters import Counters
from nearhint.errors import (
    TOO_LARGE,
    DaemonFailed,
    DaemonUnreachable,
    DaemonUnready,
    DeadlineMissed,
    NearhintError,
    NotFound,
    ProtocolSkew,
    Rejected,
)
from nearhint.trust import trusted_socket
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

PROTOCOL_VERSION = 1
MAX_ANSWER_BYTES = 32 << 20
ARTIFACT_BYTES_PER_S = 10_000_000

DEADLINES_S: Mapping[str, float] = {
    "GetServerInfo": 2,
    "GetStatus": 5,
    "SetDevicePolicy": 5,
    "ListKernels": 5,
    "ExplainKernel": 5,
    "PinVariant": 5,
    "UnpinVariant": 5,
    "RollBackTable": 5,
    "ListGenerations": 10,
    "QuarantineVariant": 5,
    "ReleaseVariant": 5,
    "ListQuarantine": 5,
    "MeasureRegret": 60,
    "GetRegret": 10,
    "RegisterProgram": 10,
    "EnsureKernels": 5,
    "ReportUsage": 5,
    "GetOperation": 2,
    "WatchOperation": 900,
    "CancelOperation": 5,
    "GetTables": 5,
    "WatchTables": 900,
    "FetchArtifact": 30,
}
"""How long each call may take; an Artifact gets more by its size."""

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    # A channel that is made anew must not inherit the backoff of the one before it.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class Connection:
    """One channel to the daemon at `address`, connected on the first call."""

    def __init__(
        self, address: str, *, trusted_uids: frozenset[int], counters: Counters, version: str
    ) -> None:
        self.address = address
        self.daemon_id = ""
        """Of the daemon's store, once it has answered `hello`."""
        self._counters = counters
        self._metadata = (("nearhint-client", f"py/{version}"),)
        path = socket_path(address)
        try:
            real = trusted_socket(path, trusted_uids=trusted_uids)
            check_length(real, value=real)
            if not os.access(real, os.W_OK, effective_ids=True):  # as connecting will find
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(real))
            self._socket = real
            self._identity = _identity(real)
        except PermissionError as error:
            told = {"address": address, "problem": error.strerror, "hint": NOT_IN_GROUP}
            raise DaemonUnreachable(**told) from error
        except OSError as error:
            raise DaemonUnreachable(address=address, problem=error.strerror) from error
        self._channel = grpc.insecure_channel(f"unix:{quote(os.fsencode(real))}", options=_OPTIONS)
        self._admin = admin_service_pb2_grpc.AdminServiceStub(self._channel)
        self._artifacts = artifact_service_pb2_grpc.ArtifactServiceStub(self._channel)
        self._kernels = kernel_service_pb2_grpc.KernelServiceStub(self._channel)
        self._operations = operation_service_pb2_grpc.OperationServiceStub(self._channel)
        self._tables = table_service_pb2_grpc.TableServiceStub(self._channel)

    def close(self) -> None:
        """Ends the channel and every call in flight; they raise `DaemonUnreachable`."""
        self._channel.close()

    def check_socket(self) -> None:
        """Raises `DaemonUnreachable` if the socket is not the one that was checked any more."""
        try:
            is_same = _identity(self._socket) == self._identity
        except OSError as error:
            raise DaemonUnreachable(address=self.address, problem=error.strerror) from error
        if not is_same:
            raise DaemonUnreachable(address=self.address, problem="the socket was replaced")

    def hello(self) -> admin_service_pb2.GetServerInfoResponse:
        """Connects and compares versions; raises `ProtocolSkew` if they are too far apart."""
        info = self._unary(
            "GetServerInfo", self._admin.GetServerInfo, admin_service_pb2.GetServerInfoRequest()
        )
        if not info.protocol_min <= PROTOCOL_VERSION <= info.protocol_max:
            raise ProtocolSkew(low=info.protocol_min, high=info.protocol_max, own=PROTOCOL_VERSION)
        self.daemon_id = info.daemon_id
        return info

    def register_program(
        self, request: kernel_service_pb2.RegisterProgramRequest
    ) -> kernel_service_pb2.RegisterProgramResponse:
        """The Program's Plan, or the operation that makes it."""
        return self._unary("RegisterProgram", self._kernels.RegisterProgram, request)

    def ensure_kernels(
        self, request: kernel_service_pb2.EnsureKernelsRequest
    ) -> kernel_service_pb2.EnsureKernelsResponse:
        """Asks for Kernels to be tuned at sizes."""
        return self._unary("EnsureKernels", self._kernels.EnsureKernels, request)

    def report_usage(
        self, request: kernel_service_pb2.ReportUsageRequest
    ) -> kernel_service_pb2.ReportUsageResponse:
        """Reports counts."""
        return self._unary("ReportUsage", self._kernels.ReportUsage, request)

    def get_operation(self, operation_id: str) -> operation_service_pb2.Operation:
        """The operation as it is now."""
        request = operation_service_pb2.GetOperationRequest(id=operation_id)
        return self._unary("GetOperation", self._operations.GetOperation, request).operation

    def watch_operation(self, operation_id: str) -> Iterator[operation_service_pb2.Operation]:
        """The operation now and at each change; raises `DeadlineMissed` when to ask again."""
        request = operation_service_pb2.WatchOperationRequest(id=operation_id)
        stream = self._stream("WatchOperation", self._operations.WatchOperation, request)
        return (answer.operation for answer in stream)

    def cancel_operation(self, operation_id: str) -> operation_service_pb2.Operation:
        """Stops the part of an operation that nobody else waits for."""
        request = operation_service_pb2.CancelOperationRequest(id=operation_id)
        return self._unary("CancelOperation", self._operations.CancelOperation, request).operation

    def get_tables(
        self, request: table_service_pb2.GetTablesRequest
    ) -> table_service_pb2.GetTablesResponse:
        """The Tables that exist, and the cursor to watch from."""
        return self._unary("GetTables", self._tables.GetTables, request)

    def watch_tables(
        self, request: table_service_pb2.WatchTablesRequest
    ) -> Iterator[table_service_pb2.WatchTablesResponse]:
        """New Tables as they are written; raises `DeadlineMissed` when it is time to ask again."""
        return self._stream("WatchTables", self._tables.WatchTables, request)

    def fetch_artifact(self, sha256: str, offset: int, *, size_bytes: int) -> Iterator[bytes]:
        """The Artifact's bytes from `offset` on; they are on their way when this returns."""
        request = artifact_service_pb2.FetchArtifactRequest(sha256=sha256, offset=offset)
        more_s = size_bytes / ARTIFACT_BYTES_PER_S
        stream = self._stream(
            "FetchArtifact", self._artifacts.FetchArtifact, request, more_s=more_s
        )
        return (answer.chunk for answer in stream)

    def get_status(self) -> admin_service_pb2.GetStatusResponse:
        """Counts, devices, queue."""
        return self._unary("GetStatus", self._admin.GetStatus, admin_service_pb2.GetStatusRequest())

    def set_device_policy(
        self, request: admin_service_pb2.SetDevicePolicyRequest
    ) -> admin_service_pb2.SetDevicePolicyResponse:
        """Says whether a device may be used for verifying and measuring."""
        return self._unary("SetDevicePolicy", self._admin.SetDevicePolicy, request)

    def list_kernels(
        self, request: admin_service_pb2.ListKernelsRequest
    ) -> admin_service_pb2.ListKernelsResponse:
        """One page of Kernels."""
        return self._unary("ListKernels", self._admin.ListKernels, request)

    def explain_kernel(
        self, request: admin_service_pb2.ExplainKernelRequest
    ) -> admin_service_pb2.ExplainKernelResponse:
        """One Kernel, with reasons."""
        return self._unary("ExplainKernel", self._admin.ExplainKernel, request)

    def pin_variant(
        self, request: admin_service_pb2.PinVariantRequest
    ) -> admin_service_pb2.PinVariantResponse:
        """Fixes what runs for a Kernel."""
        return self._unary("PinVariant", self._admin.PinVariant, request)

    def unpin_variant(
        self, request: admin_service_pb2.UnpinVariantRequest
    ) -> admin_service_pb2.UnpinVariantResponse:
        """Takes pins off."""
        return self._unary("UnpinVariant", self._admin.UnpinVariant, request)

    def roll_back_table(
        self, request: admin_service_pb2.RollBackTableRequest
    ) -> admin_service_pb2.RollBackTableResponse:
        """Publishes an earlier Table again."""
        return self._unary("RollBackTable", self._admin.RollBackTable, request)

    def list_generations(
        self, request: admin_service_pb2.ListGenerationsRequest
    ) -> admin_service_pb2.ListGenerationsResponse:
        """The Tables of a Kernel that are kept, and what was done to it."""
        return self._unary("ListGenerations", self._admin.ListGenerations, request)

    def quarantine_variant(
        self, request: admin_service_pb2.QuarantineVariantRequest
    ) -> admin_service_pb2.QuarantineVariantResponse:
        """Bars a Variant."""
        return self._unary("QuarantineVariant", self._admin.QuarantineVariant, request)

    def release_variant(
        self, request: admin_service_pb2.ReleaseVariantRequest
    ) -> admin_service_pb2.ReleaseVariantResponse:
        """Lifts an operator's quarantine."""
        return self._unary("ReleaseVariant", self._admin.ReleaseVariant, request)

    def list_quarantine(
        self, request: admin_service_pb2.ListQuarantineRequest
    ) -> admin_service_pb2.ListQuarantineResponse:
        """What is quarantined."""
        return self._unary("ListQuarantine", self._admin.ListQuarantine, request)

    def measure_regret(
        self, request: admin_service_pb2.MeasureRegretRequest
    ) -> admin_service_pb2.MeasureRegretResponse:
        """Has selector rules judged at sizes between a Kernel's hints."""
        return self._unary("MeasureRegret", self._admin.MeasureRegret, request)

    def get_regret(
        self, request: admin_service_pb2.GetRegretRequest
    ) -> admin_service_pb2.GetRegretResponse:
        """One page of what the rules lose."""
        return self._unary("GetRegret", self._admin.GetRegret, request)

    def _unary(
        self,
        rpc: str,
        method: grpc.UnaryUnaryMultiCallable[_Request, _Response],
        request: _Request,
    ) -> _Response:
        self._counters.rpc()
        try:
            return method(request, timeout=DEADLINES_S[rpc], metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._typed(rpc, error) from error
        except ValueError as error:  # the channel was closed from another thread
            raise DaemonUnreachable(address=self.address, problem=str(error)) from error

    def _stream(
        self,
        rpc: str,
        method: grpc.UnaryStreamMultiCallable[_Request, _Response],
        request: _Request,
        *,
        more_s: float = 0,
    ) -> Iterator[_Response]:
        """The call is sent now; its answers are read when they are asked for."""
        self._counters.rpc()
        try:
            call = method(request, timeout=DEADLINES_S[rpc] + more_s, metadata=self._metadata)
        except ValueError as error:  # the channel was closed from another thread
            raise DaemonUnreachable(address=self.address, problem=str(error)) from error
        return self._answers(rpc, call)

    def _answers(self, rpc: str, call: Iterator[_Response]) -> Generator[_Response, None, None]:
        try:
            yield from call
        except grpc.RpcError as error:
            raise self._typed(rpc, error) from error
        finally:
            cast("grpc.Call", call).cancel()

    def _typed(self, rpc: str, error: grpc.RpcError) -> NearhintError:
        call = cast("grpc.Call", error)  # every RpcError of a call is one as well
        status, said = call.code(), _said(call)
        problem = said.problem
        told = {"rpc": rpc, "reason_code": said.reason_code, "problem": problem}
        if said.hint:
            told["hint"] = f"{said.hint[0].upper()}{said.hint[1:]}."
        if status in _LOST and said.reason_code != NO_REASON:
            return DaemonUnready(**told)
        if status in _LOST:
            return DaemonUnreachable(address=self.address, problem=problem or status.name)
        if status == grpc.StatusCode.DEADLINE_EXCEEDED:
            hint = NO_HELLO if rpc == "GetServerInfo" else ""
            return DeadlineMissed(rpc=rpc, timeout_s=DEADLINES_S[rpc], hint=hint)
        if status == grpc.StatusCode.NOT_FOUND:
            return NotFound(**told)
        if status is grpc.StatusCode.RESOURCE_EXHAUSTED and LARGER_THAN_MAX in problem:
            told |= {"reason_code": TOO_LARGE, "hint": NEVER_FITS}
        if status is grpc.StatusCode.UNIMPLEMENTED:
            told["hint"] = NO_SUCH_CALL
        if status in _REFUSED:
            return Rejected(status=status.name, **told)
        return DaemonFailed(status=status.name, **told)


def _identity(socket: Path) -> tuple[int, int, int]:
    info = socket.lstat()
    return info.st_dev, info.st_ino, info.st_ctime_ns


NO_REASON = "UNKNOWN"
NO_HELLO = (
    "This is answered at once: the process that holds the socket is stopped, has no CPU, "
    "or is no nearhintd."
)
NO_SUCH_CALL = "The daemon is of an earlier version than this client: bring both to one."
LARGER_THAN_MAX = "message larger than max"
"""What gRPC says of a message beyond the limit of either side, in every release so far."""
NEVER_FITS = "It is as large each time, so it is not sent again."
NOT_IN_GROUP = (
    "The socket's group may connect: be in it, as `usermod --append --groups` does it; "
    "who was added just now logs in again."
)
_LOST = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
_REFUSED = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)


@dataclass(frozen=True, slots=True)
class _Said:
    """What the daemon says of a call that failed, the request's field with it where one is wrong.

    `reason_code` is `NO_REASON` where gRPC says it and not the daemon.
    """

    problem: str
    reason_code: str = NO_REASON
    hint: str = ""


def _said(error: grpc.Call) -> _Said:
    """From the status that the daemon attached: google.rpc.ErrorInfo and BadRequest."""
    said = _Said(error.details() or "")
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin" or not isinstance(value, bytes):
            continue
        try:
            status = status_pb2.Status.FromString(value)
            for detail in status.details:
                info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
                if detail.Unpack(info):
                    hint = info.metadata.get("hint", "")
                    said = replace(said, reason_code=str(info.reason), hint=hint)
                elif detail.Unpack(request) and request.field_violations:
                    wrong = request.field_violations[0]
                    said = replace(said, problem=f"{wrong.field}: {wrong.description}")
        except DecodeError:
            break
    return said
