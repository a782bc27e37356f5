"""What is said to the daemon for one session, over one connection.

    register -> (operation -> register again) -> Plan, checked
    its Kernels' Tables -> their Artifacts, loaded -> a new Snapshot, swapped in
    watch the Target's Tables from there on
    ask for the buckets that calls have met (`nearhint._tuning`); report usage

A lost daemon is the engine's business (`DaemonUnreachable` and `DeadlineMissed` pass through);
everything else that can go wrong is settled here, counted, and costs a Fallback at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from nearhint._chance import Chance
from nearhint._handles import ProgramHandle
from nearhint._registration import Phase, Registration
from nearhint._state import QUIET_S, SessionState
from nearhint._tuning import AGAIN_S, ASK_ATTEMPTS, POLL_S, RETRY_S, Tuning, failure, may_pass
from nearhint._watch import TableBatch, Watch, WatchEnded
from nearhint.connection import Connection
from nearhint.counters import Counters
from nearhint.errors import (
    LOST,
    DaemonFailed,
    DaemonUnreachable,
    DeadlineMissed,
    InvalidAnswer,
    NearhintError,
    NotFound,
    Rejected,
)
from nearhint.plan_check import check_plan
from nearhint_proto import convert
from nearhint_proto.v1 import (
    kernel_service_pb2,
    operation_service_pb2,
    table_service_pb2,
    types_pb2,
)
from nearhint_rules.artifact import ArtifactRef
from nearhint_rules.errors import RulesError

TABLES_A_CALL = 64
USAGE_EVERY_S = 5.0

_RUNNING = operation_service_pb2.OPERATION_STATE_RUNNING
_DONE = operation_service_pb2.OPERATION_STATE_DONE


class Dialogue:
    """One session's side of a connection; lives as long as the connection does."""

    def __init__(
        self,
        connection: Connection,
        state: SessionState,
        *,
        client_id: str,
        counters: Counters,
        chance: Chance,
        post: Callable[[TableBatch | WatchEnded], None],
    ) -> None:
        self._connection = connection
        self._state = state
        state.meet(connection.daemon_id)
        self._client_id = client_id
        self._counters = counters
        self._clock = chance.clock
        self._uniform = chance.uniform
        self._post = post
        self._load_due_s = 0.0
        self._tuning = Tuning(
            connection,
            state,
            client_id=client_id,
            counters=counters,
            chance=chance,
            get_tables=self._get_tables,
        )

    def turn(self) -> None:
        """Says whatever is due now."""
        state = self._state
        planned = [
            registration
            for registration, handle in state.alive()
            if self._advance(registration, handle)
        ]
        if state.change_seq is None:
            self._get_tables(set(state.kernels()))
        elif planned:
            self._get_tables({kernel for each in planned for kernel in each.kernels()})
        self._take_held_back()
        if self._load_due_s <= self._clock():
            self._load_incoming()
        state.refresh(self._clock)
        state.answer_waiters()
        self._watch()
        self._tuning.ask()
        self._tuning.poll()
        self._report()

    def next_due_s(self) -> float:
        """When the next turn has something to say, if nothing happens before."""
        state = self._state
        dues = [
            registration.due_s
            for registration in state.registrations.values()
            if registration.phase in {Phase.NEW, Phase.LOWERING, Phase.PUT_OFF}
        ]
        dues += [self._tuning.next_due_s(), state.refresh_due_s()]
        if state.watch is None and state.change_seq is not None:
            dues.append(state.watch_due_s)
        if state.copies.incoming:
            dues.append(self._load_due_s)
        if state.usage:
            dues.append(state.report_due_s)
        if state.told_serving:
            dues.append(state.called_at_s + QUIET_S)
        return min(dues, default=float("inf"))

    def take_leave(self) -> None:
        """Reports what ran since the last report, and that nothing runs any more."""
        while self._state.usage or self._state.told_serving:
            self._tell_usage(is_serving=False)

    def take_batch(self, batch: TableBatch) -> None:
        """Takes new Tables from the watch."""
        state = self._state
        if batch.watch is state.watch:
            state.change_seq = batch.change_seq
            self._accept(batch.tables)  # the turn that follows makes Snapshots of them
        batch.taken.set()

    def watch_ended(self, ended: WatchEnded) -> None:
        """A stream at its deadline is opened again; one that the daemon ended is a loss."""
        if ended.watch is not self._state.watch:
            return
        self._state.watch = None
        if ended.error is None:
            raise DaemonUnreachable(address=self._connection.address, problem="it is leaving")
        if isinstance(ended.error, DaemonUnreachable):
            raise ended.error
        if not isinstance(ended.error, DeadlineMissed):
            # The cursor may be what the daemon minds: the next GetTables brings another.
            self._counters.event(ended.error.reason)
            self._state.change_seq = None
            self._state.watch_due_s = self._clock() + self._uniform(*RETRY_S)

    # ------------------------------------------------------------------ Programs and Plans

    def _advance(self, registration: Registration, handle: ProgramHandle) -> bool:
        """Takes a registration as far as it goes; whether it has a Plan that is new here."""
        if registration.due_s > self._clock():
            return False
        try:
            if registration.phase is Phase.LOWERING and not self._is_lowered(registration):
                return False
            if registration.phase in {Phase.NEW, Phase.PUT_OFF}:
                return self._register(registration, handle)
        except LOST:
            raise
        except (NearhintError, RulesError) as error:
            reason = (
                error.reason if isinstance(error, NearhintError) else InvalidAnswer.code.lower()
            )
            self._counters.event(reason)
            registration.reason = reason
            if isinstance(error, Rejected):
                registration.reason = str(error.fields["reason_code"])[:64].lower()
            if self._may_pass(registration, error):
                registration.delay(self._clock(), *RETRY_S)
                handle.answer(is_loaded=False)
            else:
                registration.phase = Phase.REFUSED
        return False

    def _may_pass(self, registration: Registration, error: Exception) -> bool:
        """Whether to try again later; a daemon that breaks over a Program may do so each time."""
        if isinstance(error, DaemonFailed):
            registration.attempts += 1
            return registration.attempts < ASK_ATTEMPTS
        return isinstance(error, Rejected) and error.is_for_lack_of_room

    def _register(self, registration: Registration, handle: ProgramHandle) -> bool:
        state = self._state
        answer = self._connection.register_program(
            kernel_service_pb2.RegisterProgramRequest(
                program=convert.program_to_proto(handle.program),
                device=convert.device_to_proto(state.device),
                client_id=self._client_id,
            )
        )
        if answer.program_id != registration.program_id:
            raise InvalidAnswer(what="RegisterProgram", problem="another Program's identity")
        if state.target_id != answer.target_id:
            if state.change_seq is not None:
                # All that was asked and is watched here is another Target's: all is said anew.
                address = self._connection.address
                raise DaemonUnreachable(address=address, problem="its toolchain has changed")
            state.target_id = answer.target_id
            state.mark_stale(state.copies.tables, withdrawn=state.copies.tables)
            state.copies.clear()
        if answer.HasField("plan"):
            plan = convert.plan_from_proto(answer.plan)
            check_plan(
                plan,
                handle.program,
                program_id=registration.program_id,
                target_kind=state.target_kind,
            )
            registration.adopt(plan)
            return True
        if answer.HasField("operation"):
            registration.phase = Phase.LOWERING
            registration.operation = answer.operation.id
            registration.delay(self._clock(), *POLL_S)
            return False
        registration.phase = Phase.REFUSED
        registration.reason = answer.reason[:200] or "no_plan"
        return False

    def _is_lowered(self, registration: Registration) -> bool:
        try:
            operation = self._connection.get_operation(registration.operation)
        except NotFound:  # forgotten: registered again, it is another, or has brought the Plan
            registration.phase = Phase.NEW
            return True
        if operation.state == _RUNNING:
            registration.delay(self._clock(), *POLL_S)
            return False
        if operation.state == _DONE:
            registration.phase = Phase.NEW
            return True
        registration.reason = failure(operation)
        if may_pass(operation):
            registration.put_off(self._clock(), *AGAIN_S)
        else:
            registration.phase = Phase.REFUSED
        return False

    # ------------------------------------------------------------------ Tables and Artifacts

    def _get_tables(self, kernels: set[str]) -> None:
        names = sorted(kernels)
        for start in range(0, len(names), TABLES_A_CALL):
            some = names[start : start + TABLES_A_CALL]
            answer = self._connection.get_tables(
                table_service_pb2.GetTablesRequest(target_id=self._state.target_id, kernels=some)
            )
            self._accept(answer.tables)
            self._state.copies.ask_anew(set(some) - {table.kernel for table in answer.tables})
            if self._state.change_seq is None:
                self._state.change_seq = answer.change_seq

    def _accept(self, tables: Sequence[types_pb2.Table]) -> None:
        state = self._state
        known = state.kernels()
        for message in tables:
            accepted = state.copies.accept(message, target_id=state.target_id, kernels=known)
            if accepted is not None and accepted.is_withdrawn:
                state.mark_stale([accepted.kernel], withdrawn=[accepted.kernel])
            time.sleep(0)  # lets the model's threads have the interpreter
        self._take_held_back()
        self._load_incoming()

    def _take_held_back(self) -> None:
        state = self._state
        demands = (
            demand for each in state.registrations.values() for demand in each.demands.values()
        )
        for accepted in state.copies.take_held_back(demands):
            if accepted.is_withdrawn:
                state.mark_stale([accepted.kernel], withdrawn=[accepted.kernel])

    def _load_incoming(self) -> None:
        """Brings the binaries of Tables that came here, now or before a daemon was lost.

        Those that failed are tried again when it is time, however many Tables come meanwhile.
        """
        state = self._state
        if state.copies.incoming:
            is_due = self._load_due_s <= self._clock()
            if is_due:
                self._load_due_s = self._clock() + self._uniform(*RETRY_S)
            state.mark_stale(state.copies.load_incoming(self._fetch, again=is_due))
            state.copies.prune(state.kernels())

    def _fetch(self, ref: ArtifactRef, offset: int) -> Iterator[bytes]:
        return self._connection.fetch_artifact(ref.sha256, offset, size_bytes=ref.size_bytes)

    def _watch(self) -> None:
        state = self._state
        if state.watch is not None or state.change_seq is None or state.watch_due_s > self._clock():
            return
        request = table_service_pb2.WatchTablesRequest(
            target_id=state.target_id, since_change_seq=state.change_seq
        )
        state.watch = Watch(self._connection, request, self._post)

    def _report(self) -> None:
        state = self._state
        is_serving = bool(state.target_id) and state.is_serving(self._clock())
        is_news = is_serving is not state.told_serving
        if not is_news and (not state.usage or state.report_due_s > self._clock()):
            return
        self._tell_usage(is_serving=is_serving)

    def _tell_usage(self, *, is_serving: bool) -> None:
        state = self._state
        state.told_serving = is_serving
        state.report_due_s = self._clock() + USAGE_EVERY_S * self._uniform(0.8, 1.2)
        usages = [
            kernel_service_pb2.Usage(
                program_id=program_id,
                sizes=convert.size_hint_to_proto(sizes),
                calls=calls,
                launches=launches,
            )
            for program_id, sizes, calls, launches in state.usage.take()
        ]
        try:
            answer = self._connection.report_usage(
                kernel_service_pb2.ReportUsageRequest(
                    client_id=self._client_id,
                    usages=usages,
                    fallback_reasons=state.usage.take_reasons(),
                    target_id=state.target_id,
                    is_serving=is_serving,
                )
            )
        except LOST:
            raise
        except NearhintError as error:
            self._counters.event(error.reason)
            return
        for program_id in answer.unknown_programs:
            registration = state.registrations.get(program_id)
            if registration is not None and registration.phase is Phase.PLANNED:
                registration.restart()  # nobody had run it for long: it was forgotten
