"""OperationService: long work, watched and cancelled."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from nearhint_daemon.core import Core
from nearhint_daemon.services.boundary import Context
from nearhint_daemon.services.messages import operation_message
from nearhint_proto.v1 import operation_service_pb2 as pb
from nearhint_proto.v1 import operation_service_pb2_grpc


class OperationService(operation_service_pb2_grpc.OperationServiceServicer):
    """Serves `nearhint.v1.OperationService`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def GetOperation(  # noqa: N802 - the protocol's name
        self, request: pb.GetOperationRequest, context: Context
    ) -> pb.GetOperationResponse:
        """The operation as it is now."""
        operation = self._core.operations.get(request.id)
        return pb.GetOperationResponse(operation=operation_message(operation))

    async def WatchOperation(  # noqa: N802 - the protocol's name
        self, request: pb.WatchOperationRequest, context: Context
    ) -> AsyncGenerator[pb.WatchOperationResponse]:
        """The operation now and at each change, until it has ended."""
        async with aclosing(self._core.operations.watch(request.id)) as watch:
            async for operation in watch:
                yield pb.WatchOperationResponse(operation=operation_message(operation))

    async def CancelOperation(  # noqa: N802 - the protocol's name
        self, request: pb.CancelOperationRequest, context: Context
    ) -> pb.CancelOperationResponse:
        """Stops what nobody else waits for."""
        operation = await self._core.operations.cancel(request.id)
        return pb.CancelOperationResponse(operation=operation_message(operation))
