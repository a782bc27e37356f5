"""Messages of the daemon's own values: operations, devices, Plans, Selections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf import timestamp_pb2

from nearhint_daemon.devices import DeviceState
from nearhint_daemon.operations import Operation, OperationState
from nearhint_daemon.services.boundary import status_of
from nearhint_daemon.store.rows import LaunchRow
from nearhint_proto import convert
from nearhint_proto.v1 import (
    admin_service_pb2,
    kernel_service_pb2,
    operation_service_pb2,
)

STATES: Mapping[OperationState, operation_service_pb2.OperationState.ValueType] = {
    OperationState.RUNNING: operation_service_pb2.OPERATION_STATE_RUNNING,
    OperationState.DONE: operation_service_pb2.OPERATION_STATE_DONE,
    OperationState.FAILED: operation_service_pb2.OPERATION_STATE_FAILED,
    OperationState.CANCELLED: operation_service_pb2.OPERATION_STATE_CANCELLED,
}
POLICIES: Mapping[str, admin_service_pb2.DevicePolicy.ValueType] = {
    "always": admin_service_pb2.DEVICE_POLICY_ALWAYS,
    "idle": admin_service_pb2.DEVICE_POLICY_IDLE,
    "never": admin_service_pb2.DEVICE_POLICY_NEVER,
}


def operation_message(operation: Operation) -> operation_service_pb2.Operation:
    """The operation as it is now."""
    created = timestamp_pb2.Timestamp()
    created.FromMilliseconds(int(operation.created_at_s * 1000))
    return operation_service_pb2.Operation(
        id=operation.id,
        state=STATES[operation.state],
        done=operation.done,
        total=operation.total,
        failed=operation.failed,
        error=status_of(operation.code, operation.message) if operation.code else None,
        create_time=created,
        skipped=operation.skipped,
        passing=operation.passing,
    )


def provenance_messages(rows: Iterable[LaunchRow]) -> list[kernel_service_pb2.StepProvenance]:
    """Where launch steps came from."""
    return [
        kernel_service_pb2.StepProvenance(
            step=row.step,
            nodes=map(int, row.nodes.split()),
            sources=row.sources.splitlines(),
        )
        for row in rows
    ]


def device_message(state: DeviceState, *, target_id: str = "") -> admin_service_pb2.DeviceStatus:
    """A device as it is now."""
    return admin_service_pb2.DeviceStatus(
        name=state.name,
        device=None if state.device is None else convert.device_to_proto(state.device),
        target_id=target_id,
        policy=POLICIES[state.policy],
        is_worker_ready=state.device is not None and not state.problem,
        problem=state.problem,
    )
