"""Asking: what the daemon is asked for and when, with a clock and pauses that the test makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from tests.unit.client import doubling

from nearhint._tuning import AGAIN_S
from nearhint.connection import Connection
from nearhint.counters import Counters
from nearhint.errors import DaemonUnreachable, DaemonUnready, Rejected
from nearhint.testing import TARGET_ID, FakeDaemon
from nearhint.warmup import asking
from nearhint.warmup.asking import (
    AGAIN_ATTEMPTS,
    CALLS_IN_FLIGHT,
    EFFORTS,
    LOST_LIMIT_S,
    PLANS_S,
    POINTS_A_CALL,
    PROBLEMS_S,
    Asking,
    Outcome,
)
from nearhint.warmup.survey import BUDGET_ENDED, Goal, Wish
from nearhint_proto.v1 import admin_service_pb2, kernel_service_pb2, operation_service_pb2
from nearhint_rules.companions import odd_below
from nearhint_rules.hints import bucket, bucket_size
from nearhint_rules.table import HINT_LIMIT

FAR_S = 1e9


class Stage:
    """A clock that moves while somebody pauses, and what happens then."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self.now_s = 0.0
        self.then: Callable[[], None] = lambda: None
        self.progress: list[tuple[int, int, int]] = []
        self.asking = Asking(
            lambda: connection(daemon), client_id="test", clock=self.clock, wait=self.wait
        )

    def clock(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.then()

    def bring(self, *wishes: Wish, deadline_s: float = FAR_S) -> Outcome:
        return self.asking.bring(
            wishes,
            deadline_s=deadline_s,
            progress=lambda *counts: self.progress.append(counts),
        )


def connection(daemon: FakeDaemon) -> Connection:
    made = Connection(daemon.address, trusted_uids=frozenset(), counters=Counters(), version="test")
    made.hello()
    return made


def wish(*sizes: int, effort: str = "full") -> Wish:
    return Wish(
        model="m",
        place="cpu",
        program=doubling.program(),
        device=doubling.DEVICE,
        threads=3,
        sizes=tuple((size,) for size in sizes),
        effort=effort,
    )


def goal(size: int) -> Goal:
    return Goal(TARGET_ID, doubling.KERNEL, doubling.FALLBACK, bucket((size,)))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path) as fake:
        fake.plan(doubling.program(), doubling.plan())
        yield fake


@pytest.fixture
def stage(daemon: FakeDaemon) -> Stage:
    return Stage(daemon)


def asked_sizes(request: kernel_service_pb2.EnsureKernelsRequest) -> list[int]:
    return [hint.dims[0].value for hint in request.hints]


def finish(daemon: FakeDaemon, *, error: str = "") -> None:
    for name in list(daemon.store.operations):
        daemon.finish(name, error=error)


def test_what_is_met_counts_as_done_before_anything_is_asked(
    daemon: FakeDaemon, stage: Stage
) -> None:
    daemon.publish(doubling.table(4, 64))
    stage.then = lambda: finish(daemon)
    outcome = stage.bring(wish(4, 5, 64))
    assert stage.progress[0] == (2, 2, 0)
    assert outcome.problems == {}
    assert outcome.met == {goal(4), goal(64)}


def test_each_bucket_is_asked_for_once(daemon: FakeDaemon, stage: Stage) -> None:
    stage.then = lambda: finish(daemon)
    stage.bring(wish(4, 5, 64))
    (request,) = daemon.asked("EnsureKernels")
    assert asked_sizes(request) == [4, 64]


@pytest.mark.parametrize("efforts", [("none", "full"), ("max", "quick"), ("full", "full")])
def test_a_bucket_of_several_models_is_asked_for_with_the_most_effort_of_them(
    daemon: FakeDaemon, stage: Stage, efforts: tuple[str, str]
) -> None:
    stage.then = lambda: finish(daemon)
    first, second = efforts
    stage.bring(wish(4, 64, effort=first), wish(5, 1024, effort=second))
    asked = {
        size: request.effort
        for request in daemon.asked("EnsureKernels")
        for size in asked_sizes(request)
    }
    most = max(EFFORTS[first], EFFORTS[second])
    assert sorted(map(bucket_size, asked)) == [4, 64, 1024]
    assert {bucket_size(size): effort for size, effort in asked.items()} == {
        4: most,
        64: EFFORTS[first],
        1024: EFFORTS[second],
    }


@pytest.mark.parametrize(("effort", "done"), [("none", 1), ("quick", 0), ("full", 0)])
def test_a_table_at_t1_meets_no_effort_but_none(
    daemon: FakeDaemon, stage: Stage, effort: str, done: int
) -> None:
    daemon.publish(doubling.table(4, tier=1))
    stage.then = lambda: finish(daemon)
    outcome = stage.bring(wish(4, effort=effort))
    assert stage.progress[0] == (done, 1, 0)
    assert len(outcome.met) == done


def test_a_request_says_priority_effort_budget_and_threads(
    daemon: FakeDaemon, stage: Stage
) -> None:
    stage.then = lambda: finish(daemon)
    stage.bring(wish(4, effort="max"), deadline_s=90.0)
    (request,) = daemon.asked("EnsureKernels")
    assert request.priority == kernel_service_pb2.PRIORITY_WARM_UP
    assert request.effort == kernel_service_pb2.EFFORT_MAX
    assert request.budget_s == pytest.approx(90.0)
    assert (request.threads, request.client_id, request.compile_only) == (3, "test", False)


def test_the_most_wanted_points_come_first_and_few_at_a_time(
    daemon: FakeDaemon, stage: Stage
) -> None:
    sizes = [2**power for power in range(1, 30)][::-1]
    stage.then = lambda: setattr(stage, "then", lambda: finish(daemon))
    stage.bring(wish(*sizes))
    requests = daemon.asked("EnsureKernels")
    assert [size for request in requests for size in asked_sizes(request)] == sizes
    assert max(len(request.hints) for request in requests) == POINTS_A_CALL
    # Before anything had ended, no more than these were under way.
    polls = [name for name, _ in daemon.store.asked]
    assert polls[: polls.index("GetOperation")].count("EnsureKernels") == CALLS_IN_FLIGHT


def test_a_kernel_whose_candidates_all_failed_is_listed_with_the_reason(
    daemon: FakeDaemon, stage: Stage
) -> None:
    def fail() -> None:
        daemon.publish(doubling.table(variants=(), reason="wrong: all of it"))
        finish(daemon, error="no candidate passed")

    stage.then = fail
    outcome = stage.bring(wish(4, 64))
    assert outcome.problems == dict.fromkeys((goal(4), goal(64)), "wrong: all of it")
    assert stage.progress[-1] == (2, 2, 2)


def test_a_bucket_that_an_operation_did_not_bring_has_its_error(
    daemon: FakeDaemon, stage: Stage
) -> None:
    def fail() -> None:
        daemon.publish(doubling.table(4))
        finish(daemon, error="the hint is too large")

    stage.then = fail
    outcome = stage.bring(wish(4, 64))
    assert outcome.problems == {goal(64): "the hint is too large"}
    assert outcome.met == {goal(4)}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("the hint is too large", "1 of 4 jobs failed: the hint is too large"),
        ("", "1 of 4 jobs failed"),
    ],
)
def test_a_bucket_that_failed_beside_others_has_its_error(
    daemon: FakeDaemon, stage: Stage, error: str, reason: str
) -> None:
    def end() -> None:
        daemon.publish(doubling.table(4))
        finish(daemon)
        for operation in daemon.store.operations.values():
            operation.total, operation.failed, operation.error.message = 4, 1, error

    stage.then = end
    assert stage.bring(wish(4, 64)).problems == {goal(64): reason}


def failing(daemon: FakeDaemon) -> None:
    """What is under way fails for a reason that may pass."""
    finish(daemon, error="the device is full")
    for operation in daemon.store.operations.values():
        operation.passing = 1


def test_what_failed_for_a_reason_that_may_pass_is_asked_for_again(
    daemon: FakeDaemon, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    def pass_over() -> None:
        if len(daemon.asked("EnsureKernels")) == 1:
            failing(daemon)
            return
        daemon.publish(doubling.table(4, 64))
        finish(daemon)

    stage.then = pass_over
    outcome = stage.bring(wish(4, 64))
    assert outcome.problems == {}
    first, second = daemon.asked("EnsureKernels")
    assert asked_sizes(first) == asked_sizes(second) == [4, 64]
    assert stage.now_s >= AGAIN_S[0]
    assert "the device is full: this is asked for again in 40 s" in capsys.readouterr().err
    assert all(failed == 0 for _, _, failed in stage.progress)


def test_what_fails_for_that_reason_each_time_is_given_up_by_and_by(
    daemon: FakeDaemon, stage: Stage
) -> None:
    stage.then = lambda: failing(daemon)
    outcome = stage.bring(wish(4))
    assert outcome.problems == {goal(4): "the device is full"}
    assert len(daemon.asked("EnsureKernels")) == 1 + AGAIN_ATTEMPTS


def test_a_budget_that_ends_before_it_is_asked_for_again_leaves_the_reason(
    daemon: FakeDaemon, stage: Stage
) -> None:
    stage.then = lambda: failing(daemon)
    outcome = stage.bring(wish(4), deadline_s=AGAIN_S[0] / 2)
    assert outcome.problems == {goal(4): "the device is full"}
    assert len(daemon.asked("EnsureKernels")) == 1


def test_others_are_asked_for_while_it_is_waited(daemon: FakeDaemon, stage: Stage) -> None:
    def pass_over() -> None:
        if len(daemon.asked("EnsureKernels")) <= CALLS_IN_FLIGHT:
            failing(daemon)
        else:
            finish(daemon)

    sizes = [2**power for power in range(1, 2 + POINTS_A_CALL * CALLS_IN_FLIGHT)]
    stage.then = pass_over
    stage.bring(wish(*sizes))
    asked = [asked_sizes(request)[0] for request in daemon.asked("EnsureKernels")]
    first, second = sizes[0], sizes[POINTS_A_CALL]
    assert asked == [first, second, sizes[-1], first, second]


HINTS = tuple(number << 20 for number in range(1, HINT_LIMIT + 1))


@pytest.mark.parametrize("error", ["", "the hint is too large"])
def test_a_full_table_is_the_reason_where_nothing_else_is(
    daemon: FakeDaemon, stage: Stage, error: str
) -> None:
    def end() -> None:
        daemon.publish(doubling.table(*HINTS))
        finish(daemon, error=error)

    stage.then = end
    full = f"not kept: a Table has at most {HINT_LIMIT} hints"
    assert stage.bring(wish(4)).problems == {goal(4): error or full}


def test_rows_beside_hints_are_no_reason(daemon: FakeDaemon, stage: Stage) -> None:
    """They have the places that hints leave."""

    def end() -> None:
        hints = HINTS[: HINT_LIMIT // 2]
        daemon.publish(doubling.table(*hints, *(odd_below(hint) for hint in hints)))
        finish(daemon)

    stage.then = end
    assert stage.bring(wish(4)).problems == {goal(4): "not tuned"}


def test_a_budget_that_ends_cancels_what_is_under_way(daemon: FakeDaemon, stage: Stage) -> None:
    outcome = stage.bring(wish(4, 64), deadline_s=1.0)
    (request,) = daemon.asked("CancelOperation")
    assert request.id in daemon.store.operations
    assert set(outcome.problems.values()) == {BUDGET_ENDED}


@pytest.mark.parametrize("is_there", [True, False])
def test_whoever_interrupts_it_wants_nothing_more_of_what_is_under_way(
    daemon: FakeDaemon, stage: Stage, is_there: bool
) -> None:
    def interrupt() -> None:
        if not is_there:
            daemon.store.operations.clear()
        raise KeyboardInterrupt

    stage.then = interrupt
    with pytest.raises(KeyboardInterrupt):
        stage.bring(wish(4), replace(wish(1 << 20), effort="max"))
    asked = [request.id for request in daemon.asked("CancelOperation")]
    assert len(set(asked)) == len(daemon.asked("EnsureKernels")) == 2
    assert set(daemon.store.operations) == (set(asked) if is_there else set())


def test_a_budget_that_ends_leaves_nothing_of_what_is_met(daemon: FakeDaemon, stage: Stage) -> None:
    """Though more was being tried there, or beside it in the same call."""
    daemon.publish(doubling.table(4))
    outcome = stage.bring(wish(4, 64), deadline_s=1.0)
    assert outcome.problems == {goal(64): BUDGET_ENDED}
    assert outcome.met == {goal(4)}
    assert stage.progress[-1] == (1, 2, 1)


def test_what_the_daemon_skipped_is_left_by_the_budget(daemon: FakeDaemon, stage: Stage) -> None:
    def skip() -> None:
        for operation in daemon.store.operations.values():
            operation.skipped = 2
        finish(daemon)

    stage.then = skip
    assert set(stage.bring(wish(4)).problems.values()) == {BUDGET_ENDED}


@pytest.mark.parametrize("target", [TARGET_ID, "9f" * 32])
def test_a_policy_that_held_it_up_is_said_at_once_and_in_the_reason(
    daemon: FakeDaemon, stage: Stage, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    daemon.store.status.devices.add(
        name="cpu", target_id=target, policy=admin_service_pb2.DEVICE_POLICY_NEVER
    )
    said: list[str] = []
    stage.then = lambda: said.append(capsys.readouterr().err)
    problems = stage.bring(wish(4), deadline_s=1.0).problems
    is_held = target == TARGET_ID
    why = ": the policy of cpu is never" if is_held else ""
    assert set(problems.values()) == {BUDGET_ENDED + why}
    assert ("the policy of cpu is never: this waits" in said[0]) == is_held


@pytest.mark.parametrize("waiting", [0, 2])
def test_a_device_that_was_never_idle_is_in_the_reason(
    daemon: FakeDaemon, stage: Stage, waiting: int
) -> None:
    daemon.store.status.devices.add(
        name="cpu", target_id=TARGET_ID, policy=admin_service_pb2.DEVICE_POLICY_IDLE
    )
    daemon.store.status.waiting_jobs = waiting
    why = ": the policy of cpu is idle, and it was in use" if waiting else ""
    problems = stage.bring(wish(4), deadline_s=1.0).problems
    assert set(problems.values()) == {BUDGET_ENDED + why}


def test_what_is_wrong_with_the_daemon_is_told_once_and_in_the_reason(
    daemon: FakeDaemon, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a disk that is full: its work waits for that, and the budget is not the cause."""
    problem = "the disk takes no writes now"
    daemon.store.status.problems.append(problem)
    problems = stage.bring(wish(4), deadline_s=3 * PROBLEMS_S).problems
    assert set(problems.values()) == {f"{BUDGET_ENDED}: {problem}"}
    assert capsys.readouterr().err.count(f"nearhintd: {problem}\n") == 1


def test_a_policy_holds_up_nothing_that_is_only_compiled(
    daemon: FakeDaemon, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.store.status.devices.add(
        name="cpu", target_id=TARGET_ID, policy=admin_service_pb2.DEVICE_POLICY_NEVER
    )
    compiled = replace(wish(4), is_compiled_only=True)
    assert set(stage.bring(compiled, deadline_s=1.0).problems.values()) == {BUDGET_ENDED}
    assert "policy" not in capsys.readouterr().err


def test_no_room_in_the_queue_is_waited_for(daemon: FakeDaemon, stage: Stage) -> None:
    daemon.fail("EnsureKernels", grpc.StatusCode.RESOURCE_EXHAUSTED)
    refused: list[float] = []

    def later() -> None:
        refused.append(stage.now_s)
        if len(refused) == 3:
            daemon.fail("EnsureKernels", None)
        finish(daemon)

    stage.then = later
    outcome = stage.bring(wish(4))
    assert len(daemon.asked("EnsureKernels")) == 4
    assert set(outcome.problems.values()) == {"not tuned"}


def test_a_refusal_is_the_points_reason(daemon: FakeDaemon, stage: Stage) -> None:
    daemon.fail("EnsureKernels", grpc.StatusCode.FAILED_PRECONDITION)
    outcome = stage.bring(wish(4))
    assert "refused by the test" in outcome.problems[goal(4)]


def test_an_operation_that_was_forgotten_is_asked_for_again(
    daemon: FakeDaemon, stage: Stage
) -> None:
    def forget() -> None:
        daemon.store.operations.clear()
        stage.then = lambda: finish(daemon)

    stage.then = forget
    stage.bring(wish(4))
    assert len(daemon.asked("EnsureKernels")) == 2


def test_a_daemon_that_comes_back_is_asked_again(daemon: FakeDaemon, stage: Stage) -> None:
    def restart() -> None:
        daemon.stop()
        daemon.start()
        daemon.publish(doubling.table(4))
        stage.then = lambda: finish(daemon)

    stage.then = restart
    outcome = stage.bring(wish(4))
    assert outcome.met == {goal(4)}
    assert len(daemon.asked("RegisterProgram")) == 2


def test_a_daemon_that_goes_away_between_two_talks_is_waited_for(
    daemon: FakeDaemon, stage: Stage
) -> None:
    """The points of a warm-up are timed between what it asks for and what it tells of it."""
    stage.asking.talk(lambda connection: connection.hello())
    daemon.stop()
    stage.then = daemon.start
    stage.asking.talk(lambda connection: connection.hello())
    assert 0 < stage.now_s < LOST_LIMIT_S


def test_a_daemon_that_goes_away_while_models_are_captured_is_waited_for(
    daemon: FakeDaemon, stage: Stage
) -> None:
    stage.asking.greet()
    daemon.stop()
    daemon.publish(doubling.table(4))

    def come_back() -> None:
        daemon.start()
        stage.then = lambda: finish(daemon)

    stage.then = come_back
    assert stage.bring(wish(4)).met == {goal(4)}


def test_a_daemon_that_stays_away_is_given_up(
    daemon: FakeDaemon, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.then = daemon.stop
    with pytest.raises(DaemonUnreachable):
        stage.bring(wish(4))
    assert LOST_LIMIT_S <= stage.now_s < 2 * LOST_LIMIT_S
    assert capsys.readouterr().err.count(": this is waited for\n") == 1


def test_a_daemon_whose_disk_is_full_is_not_waited_for_beyond_the_budget_again_and_again(
    daemon: FakeDaemon,
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What was registered before is never planned, and nothing else can be registered."""
    before = doubling.program(high=99)
    daemon.lowering(before, "lower")
    register = Connection.register_program

    def full(
        self: Connection, request: kernel_service_pb2.RegisterProgramRequest
    ) -> kernel_service_pb2.RegisterProgramResponse:
        if request.program.symbols[0].high:
            return register(self, request)
        told = {"rpc": "RegisterProgram", "reason_code": "STORE_READ_ONLY", "problem": "full"}
        raise DaemonUnready(**told)

    monkeypatch.setattr(Connection, "register_program", full)
    unplanned = Wish("n", "cpu", before, doubling.DEVICE, 1, ((4,),), "full")
    with pytest.raises(DaemonUnready):
        stage.bring(unplanned, wish(4), deadline_s=5.0)
    assert stage.now_s < 2 * PLANS_S
    assert capsys.readouterr().err.count("STORE_READ_ONLY") == 1


def test_a_daemon_that_never_was_there_is_not_waited_for(daemon: FakeDaemon, stage: Stage) -> None:
    daemon.stop()
    with pytest.raises(DaemonUnreachable):
        stage.bring(wish(4))
    assert stage.now_s == 0


def test_a_program_without_a_plan_has_its_reason_and_the_others_go_on(
    daemon: FakeDaemon, stage: Stage
) -> None:
    daemon.publish(doubling.table(4))
    stage.then = lambda: finish(daemon)
    other = doubling.program(high=99)
    unplanned = Wish("n", "cpu", other, doubling.DEVICE, 1, ((4,),), "full")
    outcome = stage.bring(unplanned, wish(4))
    reasons = [each.reason for each in outcome.survey.programs]
    assert reasons == ["no plan for this program", ""]
    assert outcome.met == {goal(4)}


@pytest.mark.parametrize(("deadline_s", "until_s"), [(5.0, PLANS_S), (90.0, 90.0)])
def test_a_plan_is_waited_for_no_longer_than_the_budget_or_a_while(
    daemon: FakeDaemon, stage: Stage, deadline_s: float, until_s: float
) -> None:
    daemon.publish(doubling.table(4))
    other = doubling.program(high=99)
    daemon.lowering(other, "lower")
    unplanned = Wish("n", "cpu", other, doubling.DEVICE, 1, ((4,),), "full")
    outcome = stage.bring(unplanned, wish(4), deadline_s=deadline_s)
    assert [each.reason for each in outcome.survey.programs] == [f"{BUDGET_ENDED}: no Plan yet", ""]
    assert outcome.met == {goal(4)}
    assert not outcome.is_settled
    assert until_s <= stage.now_s < until_s + 1.0


def test_a_daemon_that_lacks_a_feature_is_refused(daemon: FakeDaemon, stage: Stage) -> None:
    with pytest.raises(Rejected, match=r"too old: it lacks kernels\.compile_only"):
        stage.asking.require("kernels.compile_only")
    daemon.store.info.features.append("kernels.compile_only")
    stage.asking.require("kernels.compile_only")


def test_what_is_only_compiled_is_done_when_its_jobs_are(daemon: FakeDaemon, stage: Stage) -> None:
    daemon.publish(doubling.table(4))
    stage.then = lambda: finish(daemon)
    only = Wish(
        "m", "cpu", doubling.program(), doubling.DEVICE, 1, ((4,),), "full", is_compiled_only=True
    )
    outcome = stage.bring(only)
    (request,) = daemon.asked("EnsureKernels")
    assert request.compile_only
    assert outcome.problems == {}


@pytest.mark.parametrize("compiled", [3, 1, 0])
def test_a_budget_that_is_over_leaves_nothing_of_what_was_compiled_before(
    daemon: FakeDaemon, stage: Stage, monkeypatch: pytest.MonkeyPatch, compiled: int
) -> None:
    """No Table has it: it is asked for, and what is not done at once ends the asking."""
    monkeypatch.setattr(asking, "POINTS_A_CALL", 1)
    done = operation_service_pb2.OPERATION_STATE_DONE
    get_operation = Connection.get_operation

    def get(self: Connection, name: str) -> operation_service_pb2.Operation:
        if len(daemon.asked("EnsureKernels")) <= compiled:
            return operation_service_pb2.Operation(id=name, state=done)
        return get_operation(self, name)

    monkeypatch.setattr(Connection, "get_operation", get)
    only = replace(wish(4, 64, 1024), is_compiled_only=True)
    outcome = stage.bring(only, deadline_s=0.0)
    left = [4, 64, 1024][compiled:]
    assert outcome.problems == dict.fromkeys(map(goal, left), BUDGET_ENDED)
    assert len(daemon.asked("EnsureKernels")) == min(3, compiled + 1)
    assert len(daemon.asked("CancelOperation")) == bool(left)
    assert outcome.is_settled == (not left)
