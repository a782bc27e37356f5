"""The thread that listens for new Tables of one Target and hands them to the engine.

It holds one batch at a time: the next is read from the stream when the engine has taken the last,
so a slow engine slows the daemon's stream down and nothing piles up here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nearhint.connection import Connection
from nearhint.errors import NearhintError
from nearhint_proto.v1 import table_service_pb2, types_pb2


@dataclass(slots=True, eq=False)
class TableBatch:
    """New Tables for the session whose watch this is; `taken` lets the next batch come."""

    watch: Watch
    tables: Sequence[types_pb2.Table]
    change_seq: int
    taken: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True, eq=False)
class WatchEnded:
    """The stream is over: its deadline, or the daemon."""

    watch: Watch
    error: NearhintError | None


class Watch:
    """One WatchTables stream in a thread of its own, until it ends or `stop`."""

    def __init__(
        self,
        connection: Connection,
        request: table_service_pb2.WatchTablesRequest,
        post: Callable[[TableBatch | WatchEnded], None],
    ) -> None:
        self.change_seq = request.since_change_seq
        self._connection = connection
        self._request = request
        self._post = post
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nearhint-watch", daemon=True)
        self._thread.start()

    def stop(self, *, timeout_s: float) -> bool:
        """Ends the thread once its connection is closed; whether it ended in time."""
        self._is_stopped.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        error: NearhintError | None = None
        try:
            for answer in self._connection.watch_tables(self._request):
                batch = TableBatch(self, answer.tables, answer.change_seq)
                self._post(batch)
                taken = batch.taken
                del answer, batch  # the next may be long in coming
                while not taken.wait(0.2):
                    if self._is_stopped.is_set():
                        return
        except NearhintError as problem:
            error = problem
        self._post(WatchEnded(self, error))
