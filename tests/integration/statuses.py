"""What a failed call says beside its code."""

from __future__ import annotations

import grpc
from google.rpc import error_details_pb2, status_pb2

from nearhint_daemon.services.boundary import DETAILS_KEY


def details(error: grpc.aio.AioRpcError) -> dict[str, object]:
    """The reason and the fields that a status names."""
    found: dict[str, object] = {}
    for detail in _status(error).details:
        info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        if detail.Unpack(info):
            found["reason"] = info.reason
            assert info.domain == "nearhint"
        elif detail.Unpack(request):
            found["field"] = request.field_violations[0].field
    return found


def what_to_do(error: grpc.aio.AioRpcError) -> str:
    """The hint that a status gives."""
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in _status(error).details)
    return str(info.metadata["hint"])


def _status(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    metadata = error.trailing_metadata()
    assert metadata is not None
    message = next(value for key, value in metadata if key == DETAILS_KEY)
    assert isinstance(message, bytes)
    return status_pb2.Status.FromString(message)
