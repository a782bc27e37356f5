"""What every call passes through: answers that find nobody any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from nearhint_daemon.metrics import Metrics
from nearhint_daemon.services.boundary import Boundary


class Gone:
    """The context of a call whose connection broke."""

    async def write(self, response: bytes) -> None:
        raise grpc.aio.InternalError("Failed grpc_call_start_batch")


def test_a_stream_whose_reader_was_killed_ends_as_a_call_given_up() -> None:
    """gRPC logs a traceback of any other end, for each process that is killed."""
    closed: list[bool] = []

    async def behave(request: bytes, context: object) -> AsyncGenerator[bytes]:
        try:
            yield request
        finally:
            closed.append(True)

    async def look_up(details: object) -> Any:
        return grpc.unary_stream_rpc_method_handler(behave, request_deserializer=bytes)

    async def scenario() -> None:
        metrics = Metrics(version="1", compiler_version="1")
        called: Any = SimpleNamespace(method="/nearhint.v1.TableService/WatchTables")
        handler = await Boundary(metrics).intercept_service(look_up, called)
        with pytest.raises(asyncio.CancelledError):
            await handler.unary_stream(b"", Gone())
        assert closed
        counted = metrics.rpcs.labels("TableService", "WatchTables", "CANCELLED")
        assert counted._value.get() == 1

    asyncio.run(scenario())
