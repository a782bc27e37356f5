"""What every call passes through: answers that find nobody any more, or are sent and let go."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from nearhint_daemon.metrics import Metrics
from nearhint_daemon.services.boundary import Boundary
from nearhint_daemon.services.tables import TableService
from nearhint_proto.v1 import table_service_pb2, types_pb2


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


class Sent:
    """The context of a call; knows which of its answers somebody still holds."""

    def __init__(self) -> None:
        self.answers: list[weakref.ref[Any]] = []

    async def write(self, response: Any) -> None:
        self.answers.append(weakref.ref(response))


class Answer:
    """One of a stream's."""


def test_what_was_sent_of_a_stream_is_not_kept_until_there_is_more() -> None:
    """Else each client that only listens costs the daemon what it was told last."""
    sent = Sent()
    kept: list[bool] = []

    async def behave(request: bytes, context: object) -> AsyncGenerator[Answer]:
        for _ in range(2):
            yield Answer()
            kept.append(sent.answers[-1]() is not None)

    async def look_up(details: object) -> Any:
        return grpc.unary_stream_rpc_method_handler(behave, request_deserializer=bytes)

    async def scenario() -> None:
        called: Any = SimpleNamespace(method="/nearhint.v1.TableService/WatchTables")
        metrics = Metrics(version="1", compiler_version="1")
        handler = await Boundary(metrics).intercept_service(look_up, called)
        await handler.unary_stream(b"", sent)

    asyncio.run(scenario())
    assert kept == [False, False]


class Tables(list[types_pb2.Table]):
    """A batch, which knows whether somebody still holds it."""


def test_a_watch_keeps_no_tables_that_it_has_sent() -> None:
    kept: list[bool] = []

    async def watch(*of: object) -> AsyncGenerator[tuple[Tables, int]]:
        batch = Tables([types_pb2.Table(kernel="one")])
        held = weakref.ref(batch)
        yield batch, 7
        del batch
        kept.append(held() is not None)

    async def scenario() -> list[table_service_pb2.WatchTablesResponse]:
        core: Any = SimpleNamespace(tables=SimpleNamespace(watch=watch, watchers=0))
        request = table_service_pb2.WatchTablesRequest(target_id="ab" * 32)
        context: Any = None
        return [each async for each in TableService(core).WatchTables(request, context)]

    (answer,) = asyncio.run(scenario())
    assert [table.kernel for table in answer.tables] == ["one"]
    assert kept == [False]
