"""The thread that listens for Tables: what it holds of them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from nearhint._watch import TableBatch, Watch, WatchEnded
from nearhint_proto.v1 import table_service_pb2, types_pb2


class Answer:
    """One of the stream's, which knows whether somebody still holds it."""

    def __init__(self) -> None:
        self.tables = [types_pb2.Table(kernel="one")]
        self.change_seq = 1


class Stream:
    """A connection that notes, when the next answer is asked for, whether the last is held."""

    def __init__(self) -> None:
        self.held: list[bool] = []

    def watch_tables(self, request: object) -> Iterator[Answer]:
        for _ in range(2):
            answer = Answer()
            told = weakref.ref(answer)
            yield answer
            del answer
            self.held.append(told() is not None)


def test_tables_that_the_engine_has_taken_are_not_held_until_there_are_more() -> None:
    stream: Any = Stream()

    def post(what: TableBatch | WatchEnded) -> None:
        if isinstance(what, TableBatch):
            what.taken.set()

    watch = Watch(stream, table_service_pb2.WatchTablesRequest(), post)
    assert watch.stop(timeout_s=20)
    assert stream.held == [False, False]
