"""TableService: Tables, whole and as they change."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from nearhint_daemon.core import Core
from nearhint_daemon.errors import QueueFull
from nearhint_daemon.services.boundary import Context
from nearhint_daemon.services.requests import read_kernels, read_namespace
from nearhint_daemon.tables import WATCHERS_LIMIT
from nearhint_proto.v1 import table_service_pb2 as pb
from nearhint_proto.v1 import table_service_pb2_grpc, types_pb2


class TableService(table_service_pb2_grpc.TableServiceServicer):
    """Serves `nearhint.v1.TableService`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def GetTables(  # noqa: N802 - the protocol's name
        self, request: pb.GetTablesRequest, context: Context
    ) -> pb.GetTablesResponse:
        """The newest Tables of some Kernels, and the cursor to watch from."""
        namespace = read_namespace(request.namespace)
        entries = (
            self._core.tables.entry((namespace, kernel, request.target_id))
            for kernel in read_kernels(request.kernels)
        )
        return pb.GetTablesResponse(
            tables=[types_pb2.Table.FromString(entry.message) for entry in entries if entry],
            change_seq=self._core.tables.change_seq,
        )

    async def WatchTables(  # noqa: N802 - the protocol's name
        self, request: pb.WatchTablesRequest, context: Context
    ) -> AsyncGenerator[pb.WatchTablesResponse]:
        """Tables written after a cursor, then each new one at once."""
        namespace = read_namespace(request.namespace)
        if self._core.tables.watchers >= WATCHERS_LIMIT:
            raise QueueFull(f"{WATCHERS_LIMIT} streams watch already")
        watch = self._core.tables.watch(namespace, request.target_id, request.since_change_seq)
        async with aclosing(watch):
            async for tables, change_seq in watch:
                yield pb.WatchTablesResponse(tables=tables, change_seq=change_seq)
                del tables  # the next may be long in coming
