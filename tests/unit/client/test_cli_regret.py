"""`nearhint regret`: what each rule loses, as a table and as JSON."""

from __future__ import annotations

import json
import math
import signal

import pytest
from tests.unit.client import doubling
from tests.unit.client.cli_cases import run

from nearhint.connection import Connection
from nearhint.exit_codes import ExitCode
from nearhint.testing import TARGET_ID, FakeDaemon
from nearhint_proto import convert
from nearhint_proto.v1 import (
    admin_service_pb2,
    operation_service_pb2,
)

REGRETS = (
    ((100,), "nearest", 150, 100),
    ((101,), "nearest", 100, 100),
    ((100,), "volume", 100, 100),
    ((101,), "volume", 300, 100),
    ((999,), "nearest", 900, 100),
)
"""Sizes, rule, what was served and the fastest, in ns; the last is of another draw."""


@pytest.fixture
def judged(explained: FakeDaemon) -> FakeDaemon:
    store = explained.store
    operation = operation_service_pb2.Operation(
        id="judging", state=operation_service_pb2.OPERATION_STATE_RUNNING, total=2
    )
    store.operations["judging"] = operation_service_pb2.Operation(
        id="judging", state=operation_service_pb2.OPERATION_STATE_DONE, done=2, total=2
    )
    store.regret_plans[doubling.KERNEL] = admin_service_pb2.MeasureRegretResponse(
        operation=operation,
        kernel=doubling.KERNEL,
        plans=[
            admin_service_pb2.RegretPlan(
                target_id=TARGET_ID,
                generation=12,
                selector="nearest",
                points=[admin_service_pb2.RegretPoint(dims=[size]) for size in (100, 101)],
            )
        ],
    )
    store.regrets[doubling.KERNEL] = admin_service_pb2.GetRegretResponse(
        kernel=doubling.KERNEL,
        symbols=["k0"],
        records=[
            admin_service_pb2.RegretRecord(
                target_id=TARGET_ID,
                dims=dims,
                selector=selector,
                served="1" * 64,
                served_schedule="schedule 1",
                served_ns=served,
                best_ns=best,
                regret=(served - best) / best,
                noise=0.02,
                slower_than=["original"] if served > best else [],
                generation=12,
                measured_at_s=1_700_000_000,
                daemon_id="d" * 32,
            )
            for dims, selector, served, best in REGRETS
        ],
    )
    return explained


def test_regret_prints_what_each_rule_loses_and_where(judged: FakeDaemon) -> None:
    result = run("regret", "abab", "--sizes", "2", "--seed", "7", "--address", judged.address)
    assert result.exit_code == ExitCode.OK, result.output
    for text in ("nearest (serves)", "volume", "81.6", "50.0", "k0=100", "schedule 1"):
        assert text in result.stdout, text
    assert "original ops" in result.stdout
    assert "1 table" in result.stdout.splitlines()[0].split("  ")
    # The sizes shown are those at which the rule that serves loses, of this draw alone.
    assert "k0=101" not in result.stdout
    assert "k0=999" not in result.stdout
    (request,) = judged.asked("MeasureRegret")
    assert (request.kernel, request.sizes, request.seed) == ("abab", 2, 7)
    (request,) = judged.asked("GetRegret")
    assert (request.target_id, request.generation) == (TARGET_ID, 0)


def test_regret_as_json_has_every_record(judged: FakeDaemon) -> None:
    result = run("regret", "abab", "--json", "--address", judged.address)
    content = json.loads(result.stdout)
    rules = {rule["selector"]: rule for rule in content["rules"]}
    assert rules["nearest"]["sizes"] == 2
    assert rules["nearest"]["regret_mean"] == 0.25
    assert rules["nearest"]["regret_p95"] == rules["nearest"]["regret_worst"] == 0.5
    assert rules["nearest"]["efficiency_geometric_mean"] == pytest.approx(1.5**-0.5)
    assert rules["volume"]["regret_worst"] == 2.0
    assert rules["nearest"]["beyond_noise"] == rules["nearest"]["slower_than_original"] == 1
    assert rules["nearest"]["slower_than_default"] == 0
    (worst,) = content["worst"]
    assert (worst["dims"], worst["regret"]) == ({"k0": 100}, 0.5)
    assert (worst["served"], worst["best"]) == ("1" * 64, None)
    (table,) = content["tables"]
    assert (table["sizes"], table["not_measured"], len(table["records"])) == (2, 0, 4)
    assert {record["generation"] for record in table["records"]} == {12}


def test_sizes_are_judged_by_the_table_that_was_planned_or_a_newer_one(judged: FakeDaemon) -> None:
    """A Table that tuning left far behind is not kept; what an earlier one lost is of no use."""
    for record in judged.store.regrets[doubling.KERNEL].records:
        record.generation = 11 if record.dims[0] == 100 else 40
    result = run("regret", "abab", "--json", "--address", judged.address)
    assert result.exit_code == ExitCode.PARTIAL
    (table,) = json.loads(result.stdout)["tables"]
    assert table["not_measured"] == 1
    assert {record["generation"] for record in table["records"]} == {40}


@pytest.mark.parametrize("name", ["regret", "noise"])
@pytest.mark.parametrize("value", [-2.0, -1.0, -0.5, math.nan, math.inf])
def test_a_loss_that_no_contest_comes_to_is_a_wrong_answer(
    judged: FakeDaemon, name: str, value: float
) -> None:
    setattr(judged.store.regrets[doubling.KERNEL].records[0], name, value)
    result = run("regret", "abab", "--address", judged.address)
    assert result.exit_code == ExitCode.INTEGRITY, result.exception
    assert f"ANSWER_INVALID: GetRegret: a {name} of {value}" in result.stderr


def test_regret_of_chosen_rules_shows_their_sizes(judged: FakeDaemon) -> None:
    arguments = ("regret", "abab", "--selector", "volume", "--json", "--address", judged.address)
    content = json.loads(run(*arguments).stdout)
    assert [rule["selector"] for rule in content["rules"]] == ["volume"]
    assert content["worst"][0]["dims"] == {"k0": 101}
    assert list(judged.asked("MeasureRegret")[0].selectors) == ["volume"]


def test_regret_without_a_kernel_is_of_all_that_have_hints(judged: FakeDaemon) -> None:
    for number, hints in ((1, 0), (2, 3)):
        name = f"{number:064x}"
        judged.store.explained[name] = admin_service_pb2.ExplainKernelResponse(
            kernel=admin_service_pb2.KernelSummary(id=name, hints=hints, symbols=["k0"][:hints])
        )
    known = judged.store.regret_plans[doubling.KERNEL]
    judged.store.regret_plans[f"{2:064x}"] = admin_service_pb2.MeasureRegretResponse(
        operation=operation_service_pb2.Operation(state=operation_service_pb2.OPERATION_STATE_DONE),
        kernel=f"{2:064x}",
    )
    result = run("regret", "--json", "--address", judged.address)
    assert result.exit_code == ExitCode.OK, result.output
    asked = [request.kernel for request in judged.asked("MeasureRegret")]
    assert asked == [doubling.KERNEL, f"{2:064x}"]
    assert len(json.loads(result.stdout)["tables"]) == len(known.plans)
    assert "no sizes but its hints" in result.stderr


def test_regret_reads_sizes_that_are_given(judged: FakeDaemon) -> None:
    arguments = ("--at", "k0=100", "--at", "k0=101", "--address", judged.address)
    assert run("regret", "abab", *arguments).exit_code == ExitCode.OK
    (request,) = judged.asked("MeasureRegret")
    assert [convert.size_hint_from_proto(each) for each in request.at] == [{"k0": 100}, {"k0": 101}]


def test_what_is_named_twice_is_judged_once(judged: FakeDaemon) -> None:
    at = ("--at", "k0=100", "--at", "k0=101", "--at", "k0=100")
    assert run("regret", "abab", *at, "--address", judged.address).exit_code == ExitCode.OK
    (request,) = judged.asked("MeasureRegret")
    assert [convert.size_hint_from_proto(each) for each in request.at] == [{"k0": 100}, {"k0": 101}]
    twice = run("regret", "abab", doubling.KERNEL, "--json", "--address", judged.address)
    assert len(json.loads(twice.stdout)["tables"]) == 1


def test_regret_that_left_sizes_out_is_partial_and_without_any_failed(judged: FakeDaemon) -> None:
    plan = judged.store.regret_plans[doubling.KERNEL].plans[0]
    plan.points.add(dims=[102])
    ended = judged.store.operations["judging"]
    ended.total, ended.failed, ended.error.message = 3, 1, "too little memory"
    result = run("regret", "abab", "--address", judged.address)
    assert result.exit_code == ExitCode.PARTIAL
    assert "not measured: 1 size\n" in result.stderr
    assert "1 size failed: too little memory" in result.stderr
    judged.store.regrets[doubling.KERNEL].ClearField("records")
    assert run("regret", "abab", "--address", judged.address).exit_code == ExitCode.FAILED


def test_regret_says_that_a_policy_holds_it_up(judged: FakeDaemon) -> None:
    (device,) = judged.store.status.devices
    device.target_id, device.policy = TARGET_ID, admin_service_pb2.DEVICE_POLICY_NEVER
    result = run("regret", "abab", "--address", judged.address)
    assert "the policy of cpu is never" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_regret_that_is_told_to_end_stops_the_daemons_work(
    judged: FakeDaemon, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """As by Ctrl-C, `timeout` or a scheduler, a terminal that closes."""

    def interrupt(connection: Connection, operation_id: str) -> None:
        signal.raise_signal(number)
        raise AssertionError("it went on")

    monkeypatch.setattr(Connection, "watch_operation", interrupt)
    usual = signal.default_int_handler if number == signal.SIGINT else lambda *_: None
    before = signal.signal(number, usual)
    try:
        result = run("regret", "abab", "--address", judged.address)
        assert signal.getsignal(number) == usual
    finally:
        signal.signal(number, before)
    assert result.exit_code == ExitCode.INTERRUPTED
    (request,) = judged.asked("CancelOperation")
    assert request.id == "judging"
