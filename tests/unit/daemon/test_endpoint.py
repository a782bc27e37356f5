from __future__ import annotations

import asyncio
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
