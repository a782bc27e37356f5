"""ArtifactService: binaries by content, in chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from nearhint_daemon.core import Core
from nearhint_daemon.errors import InvalidRequest
from nearhint_daemon.services.boundary import Context
from nearhint_proto.v1 import artifact_service_pb2 as pb
from nearhint_proto.v1 import artifact_service_pb2_grpc

CHUNK_BYTES = 256 * 1024


class ArtifactService(artifact_service_pb2_grpc.ArtifactServiceServicer):
    """Serves `nearhint.v1.ArtifactService`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def FetchArtifact(  # noqa: N802 - the protocol's name
        self, request: pb.FetchArtifactRequest, context: Context
    ) -> AsyncGenerator[pb.FetchArtifactResponse]:
        """The bytes from an offset on; their hash is checked before the first is sent."""
        data = await self._core.restorer.fetch(request.sha256)
        if request.offset > len(data):
            raise InvalidRequest(f"{request.offset} of {len(data)} bytes", field="offset")
        yield pb.FetchArtifactResponse(
            size_bytes=len(data), chunk=data[request.offset : request.offset + CHUNK_BYTES]
        )
        for start in range(request.offset + CHUNK_BYTES, len(data), CHUNK_BYTES):
            yield pb.FetchArtifactResponse(chunk=data[start : start + CHUNK_BYTES])
