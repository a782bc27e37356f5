"""Frames are bounded, whole or refused, on both sides."""

from __future__ import annotations

import asyncio
import socket

import pytest

from nearhint_daemon.workers import wire
from nearhint_daemon.workers.errors import FrameInvalid, MessageTooLarge


def read_all(data: bytes) -> bytes:
    async def run() -> bytes:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await wire.read_frame(reader)

    return asyncio.run(run())


@pytest.mark.parametrize("payload", [b"", b"x", b"many bytes" * 1000])
def test_what_is_sent_is_received(payload: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(ours, payload)
        ours.shutdown(socket.SHUT_WR)
        assert wire.receive(theirs) == payload
        assert wire.receive(theirs) is None
    assert read_all(wire.frame(payload)) == payload


@pytest.mark.parametrize(
    "data", [b"\0\0", b"\0\0\0\5four", (wire.MAX_FRAME_BYTES + 1).to_bytes(4, "big")]
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(FrameInvalid):
        read_all(data)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(FrameInvalid):
            wire.receive(theirs)


def test_a_payload_that_is_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 8)
    with pytest.raises(MessageTooLarge, match="9 bytes"):
        wire.frame(b"123456789")
