from __future__ import annotations

import asyncio
import os
import resource
import socket
from http import HTTPStatus

from nearhint_daemon.endpoint import CONNECTIONS_LIMIT, Endpoint, text


async def get(port: str, path: str) -> bytes:
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer


def test_connections_that_ask_nothing_keep_nobody_from_an_answer() -> None:
    async def scenario() -> None:
        endpoint = Endpoint({"/livez": lambda: text(HTTPStatus.OK, "alive")})
        port = (await endpoint.start(0)).rpartition(":")[2]
        idle = [
            await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_LIMIT + 3)
        ]
        assert b"alive" in await get(port, "/livez")
        # Those that waited longest went for it, and as many as were too many.
        async with asyncio.timeout(20):
            for reader, _ in idle[:4]:
                assert await reader.read() == b""
        assert not any(reader.at_eof() for reader, _ in idle[4:])
        for _, writer in idle:
            writer.close()
        await endpoint.stop()

    asyncio.run(scenario())


def test_a_connection_for_which_there_is_no_descriptor_is_tried_again_once_at_a_time() -> None:
    async def scenario() -> None:
        problems: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: problems.put_nowait(context))
        endpoint = Endpoint({"/livez": lambda: text(HTTPStatus.OK, "alive")})
        port = (await endpoint.start(0)).rpartition(":")[2]
        with socket.socket() as client:
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            lowest_free = os.dup(0)
            os.close(lowest_free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
            try:
                client.connect(("127.0.0.1", int(port)))
                async with asyncio.timeout(20):
                    await problems.get()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            assert b"alive" in await get(port, "/livez")
        await endpoint.stop()
        assert problems.empty()

    asyncio.run(scenario())
