"""The gRPC server: a unix socket, the services, health; nothing listens on the network."""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from nearhint_daemon.core import Core
from nearhint_daemon.directories import SOCKET_MODE
from nearhint_daemon.errors import SocketInUse
from nearhint_daemon.services.admin import AdminService
from nearhint_daemon.services.artifacts import ArtifactService
from nearhint_daemon.services.boundary import Boundary
from nearhint_daemon.services.kernels import KernelService
from nearhint_daemon.services.operations import OperationService
from nearhint_daemon.services.tables import TableService
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

REQUEST_LIMIT_BYTES = 16 * 2**20
RESPONSE_LIMIT_BYTES = 64 * 2**20
CONCURRENT_LIMIT = 4096
MODULES = (
    admin_service_pb2,
    artifact_service_pb2,
    kernel_service_pb2,
    operation_service_pb2,
    table_service_pb2,
)
OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", REQUEST_LIMIT_BYTES),
    ("grpc.max_send_message_length", RESPONSE_LIMIT_BYTES),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_concurrent_streams", CONCURRENT_LIMIT),
)


def service_methods() -> tuple[tuple[str, str], ...]:
    """Every (service, method) of the protocol."""
    return tuple(
        (service.name, method.name)
        for module in MODULES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    )


def _is_news(record: logging.LogRecord) -> bool:
    """Whether it is not that an answer found nobody any more, as where a client was killed."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, grpc.aio.InternalError)


class Server:
    """Serves the core on a unix socket."""

    def __init__(self, core: Core, socket_path: Path) -> None:
        self._socket_path = socket_path
        self._inode = 0
        core.metrics.add_methods(service_methods())
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_news)
        self._server = grpc.aio.server(
            interceptors=[Boundary(core.metrics)],
            options=OPTIONS,
            maximum_concurrent_rpcs=CONCURRENT_LIMIT,
        )
        kernel_service_pb2_grpc.add_KernelServiceServicer_to_server(
            KernelService(core), self._server
        )
        operation_service_pb2_grpc.add_OperationServiceServicer_to_server(
            OperationService(core), self._server
        )
        table_service_pb2_grpc.add_TableServiceServicer_to_server(TableService(core), self._server)
        artifact_service_pb2_grpc.add_ArtifactServiceServicer_to_server(
            ArtifactService(core), self._server
        )
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(core), self._server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self) -> None:
        """Binds the socket, mode 0660, and reports SERVING; raises `SocketInUse`."""
        try:
            # gRPC reads a URI: what means something else there has to be quoted.
            self._server.add_insecure_port(f"unix:{quote(os.fsencode(self._socket_path))}")
            await self._server.start()
        except RuntimeError as error:
            raise SocketInUse(f"cannot listen on {self._socket_path}: {error}") from None
        self._socket_path.chmod(SOCKET_MODE)
        self._inode = self._socket_path.stat().st_ino
        names = {service for service, _ in service_methods()}
        for name in ("", *sorted(f"nearhint.v1.{name}" for name in names)):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def has_socket(self) -> bool:
        """Whether what is at the socket's path is still ours; where it cannot be seen, it is."""
        try:
            return self._socket_path.lstat().st_ino == self._inode
        except OSError as error:
            return error.errno != errno.ENOENT

    def remove_socket(self) -> None:
        """Removes the socket, if what is at its path is still ours and can be removed."""
        with suppress(OSError):
            if self.has_socket():
                self._socket_path.unlink()

    async def announce_shutdown(self) -> None:
        """Reports NOT_SERVING for everything, for good."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls, and gives those in flight `grace_s` seconds."""
        await self._server.stop(grace_s)
