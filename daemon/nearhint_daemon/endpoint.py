"""HTTP on 127.0.0.1 for probes and Prometheus: /metrics, /livez, /readyz, /version. GET only."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

HOST = "127.0.0.1"
HEAD_LIMIT_BYTES = 8 * 1024
READ_LIMIT_S = 5.0
CONNECTIONS_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """What a path answers."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


def text(status: HTTPStatus, body: str) -> Answer:
    """A line of text."""
    return Answer(status, f"{body}\n".encode())


def as_json(value: Mapping[str, object]) -> Answer:
    """A JSON object."""
    return Answer(HTTPStatus.OK, json.dumps(value).encode(), "application/json")


class Endpoint:
    """A small HTTP server with a table of paths."""

    def __init__(self, routes: Mapping[str, Callable[[], Answer]]) -> None:
        self._routes = dict(routes)
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}

    async def start(self, port: int) -> str:
        """Listens on `port`, or a free one for 0; returns `HOST:PORT`. Raises `OSError`."""
        listening = socket.create_server((HOST, port))
        # asyncio accepts up to its backlog at once; without a descriptor it tells of each of them,
        # and tries each again by itself a second later: there would soon be thousands.
        self._server = await asyncio.start_server(
            self._serve, sock=listening, limit=HEAD_LIMIT_BYTES, backlog=1
        )
        listening.listen(CONNECTIONS_LIMIT)
        bound: int = listening.getsockname()[1]
        return f"{HOST}:{bound}"

    async def stop(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= CONNECTIONS_LIMIT:
            # Who asks is answered at once: the oldest has asked nothing yet, or reads no answer.
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(READ_LIMIT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            answer = self._answer(head)
            writer.write(_encode(answer))
            async with asyncio.timeout(READ_LIMIT_S):
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a slow or broken client: nothing to tell it
        finally:
            self._open.pop(writer, None)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _answer(self, head: bytes) -> Answer:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return text(HTTPStatus.BAD_REQUEST, "not HTTP/1")
        if parts[0] != "GET":
            return text(HTTPStatus.METHOD_NOT_ALLOWED, "GET only")
        route = self._routes.get(parts[1].partition("?")[0])
        return text(HTTPStatus.NOT_FOUND, "not found") if route is None else route()


def _encode(answer: Answer) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + answer.body
