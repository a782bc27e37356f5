"""Tuning: asking for the buckets that calls have met, once each, and what became of it.

A bucket is asked for when no Table has it at tier 2. The operation that the daemon answers with is
looked at now and then; when it has ended and the bucket is still not there, that is final, unless
the reason may pass, as a full device does: then it is asked for again by and by. Where a Table says
why its Kernel has no Variants, nobody is asked until another Table comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from nearhint._chance import Chance
from nearhint._handles import ProgramHandle
from nearhint._registration import Demand, Phase, Registration, is_first
from nearhint._state import SessionState
from nearhint.connection import Connection
from nearhint.counters import Counters
from nearhint.errors import LOST, NearhintError, NotFound, Rejected
from nearhint_proto import convert
from nearhint_proto.v1 import kernel_service_pb2, operation_service_pb2
from nearhint_proto.v1.operation_service_pb2 import OperationState

HINTS_A_CALL = 32
POLL_S = (0.05, 2.0)
"""The first and the longest pause between two looks at an operation."""
RETRY_S = (1.0, 30.0)
"""The first and the longest pause before something that the daemon refused is tried again."""
AGAIN_S = (40.0, 600.0)
"""The first and the longest pause before work that failed for a reason that may pass is asked for
again; for half a minute the daemon answers with the failure that it has."""
ASK_ATTEMPTS = 3


class Tuning:
    """The demands of one session, over one connection."""

    def __init__(
        self,
        connection: Connection,
        state: SessionState,
        *,
        client_id: str,
        counters: Counters,
        chance: Chance,
        get_tables: Callable[[set[str]], None],
    ) -> None:
        self._connection = connection
        self._state = state
        self._client_id = client_id
        self._counters = counters
        self._clock = chance.clock
        self._uniform = chance.uniform
        self._get_tables = get_tables
        self._polls: dict[str, tuple[float, float]] = {}
        self._ask_due_s = 0.0

    def next_due_s(self) -> float:
        """When there is something to ask or to look at."""
        dues = [due for due, _ in self._polls.values()]
        if any(self._open_demands(each) for each in self._state.registrations.values()):
            dues.append(self._ask_due_s)
        dues += [demand.again_s for demand in self._unanswered()]
        return min(dues, default=float("inf"))

    def _open_demands(self, registration: Registration) -> list[Demand]:
        if registration.phase is not Phase.PLANNED:
            return []
        copies = self._state.copies
        return [
            demand
            for demand in registration.demands.values()
            if demand.is_open
            and not copies.is_met(demand)
            and not copies.refusal(demand.site.kernel)
        ]

    def ask(self) -> None:
        """Asks for every open demand."""
        now = self._clock()
        if self._state.is_awaited:
            self._want_what_traffic_has_searched()
        for demand in self._unanswered():
            if demand.again_s <= now:
                demand.reopen()
        if self._ask_due_s > now:
            return
        for registration, handle in self._state.alive():
            for together in _calls(self._askable(registration)):
                try:
                    self._ensure(registration, handle, together)
                except LOST:
                    raise
                except NotFound:
                    registration.restart()
                    registration.delay(self._clock(), *RETRY_S)
                    return
                except NearhintError as error:
                    self._counters.event(error.reason)
                    self._ask_due_s = self._clock() + self._uniform(*RETRY_S)
                    if not (isinstance(error, Rejected) and error.is_for_lack_of_room):
                        for demand in together:
                            demand.attempts += 1
                    return

    def _want_what_traffic_has_searched(self) -> None:
        """Nobody here asked for it: who waits for its end has to be told if it has failed."""
        for registration, handle in self._state.alive():
            snapshot = handle.snapshot
            if registration.phase is not Phase.PLANNED or snapshot is None:
                continue
            for demand in list(registration.demands.values()):
                if demand.is_named or not self._state.copies.is_met(demand):
                    continue
                if is_first(snapshot.choose(demand.site.step, demand.dims).selection):
                    registration.want_beside(demand)

    def _askable(self, registration: Registration) -> list[Demand]:
        wanted: list[Demand] = []
        for demand in self._open_demands(registration):
            if demand.attempts >= ASK_ATTEMPTS:
                demand.final = "refused_repeatedly"
            else:
                wanted.append(demand)
        return wanted

    def _ensure(
        self, registration: Registration, handle: ProgramHandle, demands: list[Demand]
    ) -> None:
        hints = dict.fromkeys(demand.sizes for demand in demands)
        answer = self._connection.ensure_kernels(
            kernel_service_pb2.EnsureKernelsRequest(
                program_id=registration.program_id,
                kernels=sorted({demand.site.kernel for demand in demands}),
                hints=[
                    convert.size_hint_to_proto(dict(zip(registration.symbols, sizes, strict=True)))
                    for sizes in hints
                ],
                target_id=self._state.target_id,
                priority=kernel_service_pb2.PRIORITY_LIVE_MISS,
                threads=handle.threads,
                client_id=self._client_id,
                as_given=demands[0].is_named,
            )
        )
        for demand in demands:
            demand.operation = answer.operation.id
            demand.attempts += 1
        self._polls[answer.operation.id] = (self._clock() + POLL_S[0], POLL_S[0])

    def poll(self) -> None:
        """Looks at the operations that are due."""
        now = self._clock()
        for name, (due_s, pause_s) in list(self._polls.items()):
            if due_s > now:
                continue
            unmet = [demand for demand in self._unanswered() if demand.operation == name]
            if not unmet:
                del self._polls[name]
                continue
            try:
                operation = self._connection.get_operation(name)
            except NotFound:
                del self._polls[name]
                for demand in unmet:
                    demand.operation = ""  # asked again at the next turn
                continue
            except LOST:
                raise
            except NearhintError as error:
                self._counters.event(error.reason)
                self._polls[name] = (now + RETRY_S[0], POLL_S[1])
                continue
            if operation.state == operation_service_pb2.OPERATION_STATE_RUNNING:
                self._polls[name] = (now + pause_s, min(POLL_S[1], pause_s * 2))
                continue
            del self._polls[name]
            self._conclude(operation, unmet)

    def _unanswered(self) -> Iterator[Demand]:
        """What was not brought, unless it is known that it will not come."""
        copies = self._state.copies
        for registration in self._state.registrations.values():
            for demand in registration.demands.values():
                may_come = not demand.final or demand.again_s < math.inf
                if may_come and not copies.is_met(demand):
                    yield demand

    def _conclude(self, operation: operation_service_pb2.Operation, demands: list[Demand]) -> None:
        """An operation has ended: what it did not bring will not come, or not for now."""
        self._get_tables({demand.site.kernel for demand in demands})
        self._state.refresh(self._clock)
        copies = self._state.copies
        for demand in demands:
            if copies.is_met(demand):
                continue
            demand.operation = ""
            if not copies.refusal(demand.site.kernel):
                demand.final = (
                    "not_tuned"
                    if operation.state == operation_service_pb2.OPERATION_STATE_DONE
                    else failure(operation)
                )
                if may_pass(operation):
                    demand.put_off(self._clock(), *AGAIN_S)


def _calls(wanted: Sequence[Demand]) -> Iterator[list[Demand]]:
    """Demands that are asked for in one call: of a few sizes, all of them named or none."""
    for is_named in (True, False):
        alike = [demand for demand in wanted if demand.is_named is is_named]
        sizes = list(dict.fromkeys(demand.sizes for demand in alike))
        for start in range(0, len(sizes), HINTS_A_CALL):
            some = set(sizes[start : start + HINTS_A_CALL])
            yield [demand for demand in alike if demand.sizes in some]


def failure(operation: operation_service_pb2.Operation) -> str:
    """Why an operation did not end well, in one line."""
    state = operation.state
    name = OperationState.Name(state) if _is_known(state) else f"state_{state}"
    return first_error(operation) or name.removeprefix("OPERATION_STATE_").lower()


def may_pass(operation: operation_service_pb2.Operation) -> bool:
    """Whether what an operation has not done may be done when it is asked for again.

    As for a full device; and for a state that only newer daemons know.
    """
    return operation.passing > 0 or not _is_known(operation.state)


def _is_known(state: int) -> bool:
    return state in OperationState.values()


def first_error(operation: operation_service_pb2.Operation) -> str:
    """What the first part of an operation that failed said, in one line; empty: nothing."""
    return str(operation.error.message).split("\n")[0][:200]
