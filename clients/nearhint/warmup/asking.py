"""Asking: brings what was surveyed to its tier, a few points at a time, within a budget.

The daemon's jobs are durable and asked for by what they are, so asking again, after the loss of
the daemon or of this process, adds nothing to what is done or under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from nearhint._registration import doubled_s
from nearhint._tuning import AGAIN_S, failure, first_error, may_pass
from nearhint.cli_output import talk
from nearhint.connection import Connection
from nearhint.errors import LOST, NearhintError, NotFound, Rejected
from nearhint.warmup.survey import (
    BUDGET_ENDED,
    Goal,
    Sizes,
    Survey,
    Surveyed,
    Wait,
    Wish,
    is_met,
    survey,
    tables_of,
)
from nearhint_proto import convert
from nearhint_proto.v1 import admin_service_pb2, kernel_service_pb2, operation_service_pb2
from nearhint_rules.beyond import own_hints
from nearhint_rules.table import HINT_LIMIT, Table

POINTS_A_CALL = 8
CALLS_IN_FLIGHT = 2
"""So few are under way at once that the most wanted points are finished first."""
POLL_S = 0.2
PROBLEMS_S = 5.0
"""Between two looks at what the daemon says is wrong with it."""
RECONNECT_S = 0.5
LOST_LIMIT_S = 60.0
"""A daemon that was there is waited for so long."""
LOSSES_LIMIT = 20
AGAIN_ATTEMPTS = 3
"""So often is asked again for what failed for a reason that may pass: pauses double from
`AGAIN_S` on, so that is given up after some minutes."""
PLANS_S = 30.0
"""Models are called and Plans waited for so long, whatever the budget: without them nothing says
what it left."""
BUDGET_LIMIT_S = 7 * 86_400.0
"""What the daemon takes for the budget of one request."""

EFFORTS: Mapping[str, kernel_service_pb2.Effort.ValueType] = {
    "none": kernel_service_pb2.EFFORT_NONE,
    "quick": kernel_service_pb2.EFFORT_QUICK,
    "full": kernel_service_pb2.EFFORT_FULL,
    "max": kernel_service_pb2.EFFORT_MAX,
}

Progress = Callable[[int, int, int], None]
"""Takes goals that are done (met or failed), all goals, and how many failed."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a warm-up ended: its survey with the newest Tables, and why goals are not met."""

    survey: Survey
    problems: Mapping[Goal, str] = field(default_factory=dict[Goal, str])

    @property
    def met(self) -> frozenset[Goal]:
        """The goals that were reached."""
        return frozenset(self.survey.goals()) - self.problems.keys()

    @property
    def is_settled(self) -> bool:
        """Whether the budget left nothing undone."""
        reasons = (*self.problems.values(), *(each.reason for each in self.survey.programs))
        return not any(why.startswith(BUDGET_ENDED) for why in reasons)


class Asking:
    """What one warm-up says to the daemon, over as many connections as it takes.

    `connect` opens a connection whose versions were compared. `clock` gives seconds, `wait`
    pauses for some.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        client_id: str,
        clock: Callable[[], float],
        wait: Wait,
    ) -> None:
        self._connect = connect
        self._client_id = client_id
        self._clock = clock
        self._wait = wait
        self._was_there = False

    def greet(self) -> None:
        """Raises `DaemonUnreachable` or `DeadlineMissed` without a daemon.

        One that was there is waited for from here on.
        """
        self.talk(lambda connection: None)

    def look(self, wishes: Sequence[Wish]) -> Survey:
        """The survey of `wishes`; measures and compiles nothing."""
        return self.talk(
            lambda connection: survey(
                connection, wishes, client_id=self._client_id, wait=self._wait
            )
        )

    def bring(self, wishes: Sequence[Wish], *, deadline_s: float, progress: Progress) -> Outcome:
        """Brings all goals of `wishes` to their tiers, or as far as `deadline_s` allows.

        A daemon that goes away is waited for and asked again. Raises `DaemonUnreachable` or
        `DeadlineMissed` if it was never there or does not come back.
        """

        plans_until_s = max(deadline_s, self._clock() + PLANS_S)

        def work(connection: Connection) -> Outcome:
            found = survey(
                connection,
                wishes,
                client_id=self._client_id,
                wait=self._wait,
                is_late=lambda: self._clock() >= plans_until_s,
            )
            return _Round(
                connection,
                found,
                deadline_s=deadline_s,
                progress=progress,
                client_id=self._client_id,
                clock=self._clock,
                wait=self._wait,
            ).run()

        return self.talk(work)

    def require(self, feature: str) -> None:
        """Raises `Rejected` where the daemon is too old for something."""
        if feature not in self.talk(lambda connection: connection.hello()).features:
            raise Rejected(
                rpc="GetServerInfo",
                status="UNIMPLEMENTED",
                reason_code="UNKNOWN",
                problem=f"this daemon is too old: it lacks {feature}",
            )

    def talk(self, say: Callable[[Connection], T]) -> T:
        """What `say` returns; said again where the daemon was lost meanwhile, or since before."""
        lost_at_s: float | None = None
        losses, told = 0, ""
        while True:
            try:
                with closing(self._connect()) as connection:
                    self._was_there, lost_at_s = True, None
                    return say(connection)
            except LOST as error:
                if lost_at_s is None:
                    lost_at_s, losses = self._clock(), losses + 1
                is_late = self._clock() - lost_at_s >= LOST_LIMIT_S
                if not self._was_there or is_late or losses > LOSSES_LIMIT:
                    raise
                if told != str(error):
                    told = str(error)
                    talk(f"{error}: this is waited for")
            self._wait(RECONNECT_S)


@dataclass(frozen=True, slots=True)
class _Call:
    program: Surveyed
    sizes: tuple[Sizes, ...]
    goals: tuple[Goal, ...]
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class _Later:
    """A call that failed for a reason that may pass, and when it is made again."""

    call: _Call
    due_s: float
    reason: str


class _Round:
    """All that is asked over one connection."""

    def __init__(
        self,
        connection: Connection,
        found: Survey,
        *,
        deadline_s: float,
        progress: Progress,
        client_id: str,
        clock: Callable[[], float],
        wait: Wait,
    ) -> None:
        self._connection = connection
        self._survey = found
        self._deadline_s = deadline_s
        self._progress = progress
        self._client_id = client_id
        self._clock = clock
        self._wait = wait
        self._tiers = found.goals()
        self._tables: dict[tuple[str, str], Table] = dict(found.tables)
        self._open = dict.fromkeys(self._tiers)
        self._problems: dict[Goal, str] = {}
        # Met goals too: less effort may have met them. What is done is not done again.
        self._calls = deque(_calls(found))
        self._flying: dict[str, _Call] = {}
        self._later: list[_Later] = []
        self._told: set[str] = set()
        self._look_s = clock()

    def run(self) -> Outcome:
        """Until every goal is met or given up, or the deadline has come.

        Whoever interrupts it wants nothing more of what is under way.
        """
        for policy in sorted(set(self._held().values())):
            talk(f"{policy}: this waits until it may be measured on")
        self._report()
        try:
            self._ask_and_look()
        except KeyboardInterrupt:
            with suppress(NearhintError):
                self._cancel()
            raise
        return Outcome(Survey(self._survey.programs, self._tables), self._problems)

    def _ask_and_look(self) -> None:
        while self._calls or self._flying or self._later:
            if self._clock() >= self._deadline_s:
                self._end_budget()
                break
            self._calls.extend(each.call for each in self._later if each.due_s <= self._clock())
            self._later = [each for each in self._later if each.due_s > self._clock()]
            self._ask_more()
            self._tell_problems()
            self._wait(POLL_S)
            self._connection.check_socket()
            self._tables.update(tables_of(self._connection, self._unmet(self._open)))
            for operation_id in list(self._flying):
                self._look_at(operation_id)
            self._report()

    def _tell_problems(self) -> None:
        """What keeps the daemon from its work, such as a full disk, each once."""
        if self._clock() < self._look_s:
            return
        self._look_s = self._clock() + PROBLEMS_S
        for problem in self._connection.get_status().problems:
            if problem not in self._told:
                self._told.add(problem)
                talk(f"nearhintd: {problem}")

    def _ask_more(self) -> None:
        while self._calls and len(self._flying) < CALLS_IN_FLIGHT and self._ask(self._calls[0]):
            self._calls.popleft()

    def _ask(self, call: _Call) -> bool:
        """Asks for one call's points; False: the daemon has no room for it now."""
        program = call.program
        symbols = [symbol.name for symbol in program.wish.program.symbols]
        try:
            answer = self._connection.ensure_kernels(
                kernel_service_pb2.EnsureKernelsRequest(
                    program_id=program.program_id,
                    kernels=sorted({goal.kernel for goal in call.goals}),
                    hints=[
                        convert.size_hint_to_proto(dict(zip(symbols, sizes, strict=True)))
                        for sizes in call.sizes
                    ],
                    target_id=program.target,
                    priority=kernel_service_pb2.PRIORITY_WARM_UP,
                    threads=program.wish.threads,
                    client_id=self._client_id,
                    effort=EFFORTS[program.wish.effort],
                    budget_s=max(POLL_S, min(BUDGET_LIMIT_S, self._deadline_s - self._clock())),
                    compile_only=program.wish.is_compiled_only,
                )
            )
        except LOST:
            raise
        except NearhintError as error:
            if isinstance(error, Rejected) and error.is_for_lack_of_room:
                return False
            self._close(call, str(error))
            return True
        self._flying[answer.operation.id] = call
        return True

    def _look_at(self, operation_id: str) -> None:
        call = self._flying[operation_id]
        try:
            operation = self._connection.get_operation(operation_id)
        except NotFound:
            # The daemon has forgotten it, as it may: the jobs go on, and are asked for again.
            del self._flying[operation_id]
            self._calls.appendleft(call)
            return
        if operation.state == operation_service_pb2.OPERATION_STATE_RUNNING:
            return
        del self._flying[operation_id]
        self._tables.update(tables_of(self._connection, call.goals))
        if operation.skipped:
            reason = _unfinished(self._held().get(call.program.target))
        elif operation.state != operation_service_pb2.OPERATION_STATE_DONE:
            reason = failure(operation)
        elif operation.failed:
            why = first_error(operation)
            reason = f"{operation.failed} of {operation.total} jobs failed" + (why and f": {why}")
        else:
            reason = ""
        if may_pass(operation) and not operation.skipped and call.attempts < AGAIN_ATTEMPTS:
            self._put_off(call, reason)
        else:
            self._close(call, reason)

    def _put_off(self, call: _Call, reason: str) -> None:
        """What failed says nothing about the work: it is asked for again after a while."""
        pause_s = doubled_s(*AGAIN_S, call.attempts)
        talk(f"{reason}: this is asked for again in {pause_s:g} s")
        again = replace(call, attempts=call.attempts + 1)
        self._later.append(_Later(again, self._clock() + pause_s, reason))

    def _unmet(self, goals: Iterable[Goal]) -> list[Goal]:
        return [
            goal
            for goal in goals
            if not is_met(
                self._tables.get((goal.target, goal.kernel)), goal, tier=self._tiers[goal]
            )
        ]

    def _close(self, call: _Call, reason: str) -> None:
        """Nothing more will come of a call; what its goals lack is a problem, for this reason."""
        unmet = set(self._unmet(call.goals))
        is_compiled = call.program.wish.is_compiled_only and not reason
        for goal in call.goals:
            self._open.pop(goal, None)
            if goal in unmet and not is_compiled:
                table = self._tables.get((goal.target, goal.kernel))
                self._problems[goal] = _why_none(table) or reason or _why(table) or "not tuned"

    def _end_budget(self) -> None:
        """What is done stays done."""
        held = self._held()  # before nothing waits any more
        problems = "; ".join(self._connection.get_status().problems)
        self._find_compiled()
        self._cancel()
        for each in self._later:
            self._close(each.call, each.reason)
        for goal in self._unmet(self._open):
            self._problems[goal] = _unfinished(held.get(goal.target) or problems)
        self._report()

    def _find_compiled(self) -> None:
        """What was compiled before is in no Table: being asked for, it is done at once.

        So far as nothing is under way, and no further than the first that is not done.
        """
        while self._calls and not self._flying and self._calls[0].program.wish.is_compiled_only:
            if not self._ask(self._calls.popleft()):
                break
            for operation_id in list(self._flying):
                self._look_at(operation_id)

    def _cancel(self) -> None:
        """Stops what nobody else waits for."""
        for operation_id in self._flying:
            with suppress(NotFound):
                self._connection.cancel_operation(operation_id)

    def _held(self) -> dict[str, str]:
        """By Target of goals that lack a measurement: the policy that is against it."""
        targets = {goal.target for goal in self._unmet(self._open) if self._tiers[goal]}
        status = self._connection.get_status()
        against = {admin_service_pb2.DEVICE_POLICY_NEVER: "is never"}
        if status.waiting_jobs:
            against[admin_service_pb2.DEVICE_POLICY_IDLE] = "is idle, and it was in use"
        return {
            device.target_id: f"the policy of {device.name} {against[device.policy]}"
            for device in status.devices
            if device.policy in against and device.target_id in targets
        }

    def _report(self) -> None:
        """Met goals count as done, though more may be tried there."""
        left = len(self._unmet(self._open))
        self._progress(len(self._tiers) - left, len(self._tiers), len(self._problems))


def _unfinished(held: str | None) -> str:
    """Why a budget did not do; `held` is the policy, or what else was against it."""
    return f"{BUDGET_ENDED}: {held}" if held else BUDGET_ENDED


def _why_none(table: Table | None) -> str:
    """Why a Kernel has no Variant at all; empty where it has, or where nothing says."""
    return "" if table is None or table.variants else table.reason


def _why(table: Table | None) -> str:
    """Why a Table lacks a bucket whose jobs are done; empty where it does not say.

    Rows beside hints and beyond them keep no hint out of a Table: theirs is what is left.
    """
    full = f"not kept: a Table has at most {HINT_LIMIT} hints"
    return full if table is not None and len(own_hints(table)) >= HINT_LIMIT else ""


def _calls(found: Survey) -> list[_Call]:
    """What to ask for, a few points each, the most wanted points of every Program first.

    Each goal is in one call, of a Program for which the most effort is wanted there.
    """
    most: dict[Goal, int] = {}
    for program in found.programs:
        for goal in (goal for goals in program.goals.values() for goal in goals):
            most[goal] = max(EFFORTS[program.wish.effort], most.get(goal, 0))
    left = set(most)
    rounds: list[list[_Call]] = []
    for program in found.programs:
        chosen: list[tuple[Sizes, tuple[Goal, ...]]] = []
        for sizes, goals in program.goals.items():
            wanted = (goal for goal in goals if most[goal] == EFFORTS[program.wish.effort])
            new = tuple(goal for goal in wanted if goal in left)
            left.difference_update(new)
            if new:
                chosen.append((sizes, new))
        for number, start in enumerate(range(0, len(chosen), POINTS_A_CALL)):
            some = chosen[start : start + POINTS_A_CALL]
            if number == len(rounds):
                rounds.append([])
            rounds[number].append(
                _Call(
                    program,
                    tuple(sizes for sizes, _ in some),
                    tuple(goal for _, new in some for goal in new),
                )
            )
    return [call for each in rounds for call in each]
