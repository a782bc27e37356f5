"""Frames between the daemon and its workers: a length (4 bytes, big endian), then a message.

Both sides are here: `read_frame` on asyncio streams for the daemon, `receive` on a blocking socket
for a worker.
"""

from __future__ import annotations

import asyncio
import socket
import struct

from nearhint_daemon.workers.errors import FrameInvalid, JobFailed, MessageTooLarge
from nearhint_proto.v1 import worker_pb2 as pb

MAX_FRAME_BYTES = 64 << 20
"""More than any Artifact or Program that the daemon accepts."""
_LENGTH = struct.Struct(">I")


def frame(payload: bytes) -> bytes:
    """`payload` with its length before it; raises `MessageTooLarge` if it is too long."""
    if len(payload) > MAX_FRAME_BYTES:
        raise MessageTooLarge(f"a message of {len(payload)} bytes, at most {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(payload)) + payload


def _checked_length(header: bytes) -> int:
    (length,) = _LENGTH.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise FrameInvalid(f"announces {length} bytes, at most {MAX_FRAME_BYTES}")
    return int(length)


def refused(request: pb.WorkerRequest, error: JobFailed) -> pb.WorkerResponse:
    """The answer to a request that no worker was asked, or whose own cannot be sent."""
    problem = pb.WorkerError(code=error.code, message=str(error))
    return pb.WorkerResponse(id=request.id, error=problem)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The next payload; raises `FrameInvalid`, also where the stream ends."""
    try:
        length = _checked_length(await reader.readexactly(_LENGTH.size))
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise FrameInvalid("the stream ended") from error


def receive(connection: socket.socket) -> bytes | None:
    """The next payload, or None where the stream ends between frames; raises `FrameInvalid`."""
    header = _receive_exactly(connection, _LENGTH.size)
    if header is None:
        return None
    payload = _receive_exactly(connection, _checked_length(header))
    if payload is None:
        raise FrameInvalid("the stream ended inside a frame")
    return payload


def send(connection: socket.socket, payload: bytes) -> None:
    """Sends one payload; raises `MessageTooLarge`, and nothing is sent, if it is too long."""
    connection.sendall(frame(payload))


def _receive_exactly(connection: socket.socket, count: int) -> bytes | None:
    """`count` bytes; None if the stream ends before the first of them."""
    buffer = bytearray(count)
    view = memoryview(buffer)
    done = 0
    while done < count:
        received = connection.recv_into(view[done:])
        if received == 0:
            if done == 0:
                return None
            raise FrameInvalid("the stream ended inside a frame")
        done += received
    return bytes(buffer)
