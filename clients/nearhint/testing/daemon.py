"""The fake daemon: its answers on a real socket."""

from __future__ import annotations

from concurrent import futures
from pathlib import Path
from types import TracebackType

import grpc

from nearhint.testing.answers import FakeAnswers, FakeStore
from nearhint.testing.services import add_services


class FakeDaemon(FakeAnswers):
    """The services of nearhint.v1 on `directory`/fake.sock, from a `FakeStore`.

    Two of them on one store, one after the other, are a daemon that was restarted.
    """

    def __init__(self, directory: Path, *, store: FakeStore | None = None) -> None:
        super().__init__(store or FakeStore())
        self.socket = directory / "fake.sock"
        self.address = f"unix:{self.socket}"
        self._server: grpc.Server | None = None

    def __enter__(self) -> FakeDaemon:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Listens; a socket that a killed daemon left is replaced."""
        self.socket.unlink(missing_ok=True)
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
        add_services(self, server)
        server.add_insecure_port(self.address)
        self.is_running = True
        server.start()
        # gRPC leaves the mode to the umask; a client refuses a socket that others may write to.
        self.socket.chmod(0o660)
        self._server = server

    def stop(self) -> None:
        """Ends every call at once, as a killed daemon does."""
        self.release()
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None
