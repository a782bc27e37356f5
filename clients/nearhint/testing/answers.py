"""What the fake daemon answers, keeps of what it was asked, refuses and delays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message

from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2, kernel_service_pb2, operation_service_pb2
from nearhint_rules.canonical import content_hash
from nearhint_rules.plan import Plan
from nearhint_rules.program import Program
from nearhint_rules.table import Table

TARGET_ID = "7a" * 32


@dataclass(slots=True)
class FakeStore:
    """What the fake daemon answers from, and what it was asked."""

    plans: dict[str, kernel_service_pb2.RegisterProgramResponse] = field(
        default_factory=dict[str, kernel_service_pb2.RegisterProgramResponse]
    )
    operations: dict[str, operation_service_pb2.Operation] = field(
        default_factory=dict[str, operation_service_pb2.Operation]
    )
    tables: dict[str, tuple[int, Table]] = field(default_factory=dict[str, tuple[int, Table]])
    artifacts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    asked: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    forgotten: set[str] = field(default_factory=set[str])
    """Programs that are unknown where usage is reported."""
    change_seq: int = 0
    info: admin_service_pb2.GetServerInfoResponse = field(
        default_factory=lambda: admin_service_pb2.GetServerInfoResponse(
            version="0.0.0", protocol_min=1, protocol_max=1, daemon_id="fake"
        )
    )
    status: admin_service_pb2.GetStatusResponse = field(
        default_factory=lambda: admin_service_pb2.GetStatusResponse(state="serving")
    )
    explained: dict[str, admin_service_pb2.ExplainKernelResponse] = field(
        default_factory=dict[str, admin_service_pb2.ExplainKernelResponse]
    )
    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    regret_plans: dict[str, admin_service_pb2.MeasureRegretResponse] = field(
        default_factory=dict[str, admin_service_pb2.MeasureRegretResponse]
    )
    regrets: dict[str, admin_service_pb2.GetRegretResponse] = field(
        default_factory=dict[str, admin_service_pb2.GetRegretResponse]
    )


class FakeAnswers:
    """Answers from a `FakeStore` to whoever calls, while it is running."""

    def __init__(self, store: FakeStore) -> None:
        self.store = store
        self.changed = threading.Condition()
        self.is_running = False
        self._failures: dict[str, grpc.StatusCode] = {}
        self._gates: dict[str, threading.Event] = {}

    def release(self) -> None:
        """Ends what waits: watchers, and calls that are held."""
        self.is_running = False
        with self.changed:
            self.changed.notify_all()
        for gate in self._gates.values():
            gate.set()

    def plan(self, program: Program, plan: Plan) -> None:
        """RegisterProgram answers with this Plan."""
        self.store.plans[program.id] = kernel_service_pb2.RegisterProgramResponse(
            program_id=program.id, target_id=TARGET_ID, plan=convert.plan_to_proto(plan)
        )

    def lowering(self, program: Program, operation_id: str) -> None:
        """RegisterProgram answers that the Plan is still being made."""
        operation = operation_service_pb2.Operation(
            id=operation_id, state=operation_service_pb2.OPERATION_STATE_RUNNING
        )
        self.store.operations[operation_id] = operation
        self.store.plans[program.id] = kernel_service_pb2.RegisterProgramResponse(
            program_id=program.id, target_id=TARGET_ID, operation=operation
        )

    def finish(self, operation_id: str, *, error: str = "", passing: int = 0) -> None:
        """An operation ends, well or with an error; that of `passing` parts may pass."""
        operation = self.store.operations[operation_id]
        operation.state = (
            operation_service_pb2.OPERATION_STATE_FAILED
            if error
            else operation_service_pb2.OPERATION_STATE_DONE
        )
        operation.error.message = error
        operation.passing = passing

    def artifact(self, binary: bytes) -> str:
        """Keeps a binary; its sha256."""
        sha256 = content_hash(binary)
        self.store.artifacts[sha256] = binary
        return sha256

    def corrupt(self, sha256: str) -> None:
        """From now on sends the Artifact with its last byte changed."""
        binary = self.store.artifacts[sha256]
        self.store.artifacts[sha256] = binary[:-1] + bytes([binary[-1] ^ 1])

    def publish(self, *tables: Table) -> None:
        """Stores Tables and pushes them to every watcher."""
        with self.changed:
            for table in tables:
                self.store.change_seq += 1
                self.store.tables[table.kernel] = (self.store.change_seq, table)
            self.changed.notify_all()

    def answer(self, rpc: str, message: Message) -> None:
        """From now on gives this answer to a call by which an operator decides, by its name."""
        self.store.answers[rpc] = message

    def canned(self, rpc: str, request: Message, context: grpc.ServicerContext) -> Any:
        """The answer that was given for a call; NOT_FOUND without one."""
        self.enter(rpc, request, context)
        if rpc not in self.store.answers:
            context.abort(grpc.StatusCode.NOT_FOUND, "no answer was given")
        return self.store.answers[rpc]

    def fail(self, rpc: str, status: grpc.StatusCode | None) -> None:
        """From now on refuses a call, by its name, or (None) no longer."""
        if status is None:
            self._failures.pop(rpc, None)
        else:
            self._failures[rpc] = status

    def hold(self, rpc: str) -> threading.Event:
        """From now on keeps a call waiting until the event is set."""
        gate = self._gates[rpc] = threading.Event()
        return gate

    def asked(self, rpc: str) -> list[Any]:
        """The requests of one kind so far."""
        return [request for name, request in list(self.store.asked) if name == rpc]

    def wait_asked(self, rpc: str, *, times: int = 1, timeout_s: float = 10.0) -> list[Any]:
        """Waits until a call came `times` times; the requests, or `TimeoutError`."""
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.asked(rpc)) >= times, timeout_s):
                raise TimeoutError(f"{rpc} came {len(self.asked(rpc))} times, not {times}")
        return self.asked(rpc)

    def enter(self, rpc: str, request: Message, context: grpc.ServicerContext) -> None:
        """What every call begins with: kept, held, refused."""
        with self.changed:
            self.store.asked.append((rpc, request))
            self.changed.notify_all()
        gate = self._gates.get(rpc)
        if gate is not None:
            gate.wait(30)
        status = self._failures.get(rpc)
        if status is not None:
            context.abort(status, "refused by the test")

    def changes(
        self, since: int, context: grpc.ServicerContext
    ) -> Iterator[tuple[int, list[Table]]]:
        """Tables newer than a cursor, as they come, with the cursor after them."""
        cursor = since
        while context.is_active() and self.is_running:
            new = self._newer(cursor)
            if new:
                cursor = new[-1][0]
                yield cursor, [table for _, table in new]

    def _newer(self, cursor: int) -> list[tuple[int, Table]]:
        with self.changed:
            self.changed.wait_for(
                lambda: self.store.change_seq > cursor or not self.is_running, 0.5
            )
            new = [each for each in self.store.tables.values() if each[0] > cursor]
        return sorted(new, key=lambda each: each[0])
