"""The command line: what it prints, what it exits with, and that all of it is documented."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
import grpc
import pytest
from click.testing import CliRunner, Result
from tests.unit.client import doubling

from nearhint._cli_explain import read_dims
from nearhint._cli_run import read_sizes, read_sizes_file
from nearhint._cli_searches import print_searches, searches_json
from nearhint.cli import main
from nearhint.cli_output import SCHEMA_VERSION
from nearhint.connection import Connection
from nearhint.errors import InvalidSetting
from nearhint.exit_codes import BY_ERROR, ExitCode
from nearhint.testing import TARGET_ID, FakeDaemon
from nearhint_proto import convert
from nearhint_proto.v1 import (
    admin_service_pb2,
    kernel_service_pb2,
    operation_service_pb2,
    types_pb2,
)
from nearhint_rules import expr as ex
from nearhint_rules.guard import Aligned, Divisible, Guard
from nearhint_rules.selectors import select
from nearhint_rules.table import Pin

COMMANDS = [command for _, command in sorted(main.commands.items())]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def explained(daemon: FakeDaemon) -> FakeDaemon:
    guarded = doubling.variant(
        guard=Guard((Divisible(ex.symbol("k0"), 16), Aligned(1, 32))), name="2"
    )
    table = doubling.table(64, 4096, generation=12, variants=(doubling.variant(), guarded))
    selection = select(table, (100,), fallback=doubling.FALLBACK)
    message = admin_service_pb2.ExplainKernelResponse(
        kernel=admin_service_pb2.KernelSummary(
            id=doubling.KERNEL,
            title="add",
            symbols=["k0"],
            tiers={TARGET_ID: 2},
            hints=2,
            programs=3,
        ),
        ir="kernel (k0)\n  [not markup] y[i] = x[i] + x[i]",
        bytes_moved=convert.expr_to_proto(ex.mul(8, ex.symbol("k0"))),
        bytes_read=convert.expr_to_proto(ex.mul(4, ex.symbol("k0"))),
        bytes_written=convert.expr_to_proto(ex.mul(4, ex.symbol("k0"))),
        copy_bandwidths={
            TARGET_ID: admin_service_pb2.CopyBandwidth(
                timing=types_pb2.Timing(median_ns=1000, spread=0.01, samples=42),
                bytes_moved=10_240,
                conditions="two buffers",
                measured_at_s=1_700_000_000,
                daemon_id="d" * 32,
            )
        },
        tables=[convert.table_to_proto(table)],
        selections={TARGET_ID: convert.selection_to_proto(selection, table)},
        measurements=[
            admin_service_pb2.MeasurementRecord(
                kind="variant",
                subject="1" * 64,
                dims=[64],
                timing=convert.timing_to_proto(table.hints[0].ranked[0][1]),
                conditions="warm cache, 2 threads",
                measured_at_s=1_700_000_000,
                daemon_id="d" * 32,
                origin="measured",
            )
        ],
        rejected=["looped 8: wrong at k0=7"],
        provenance=["model.layer.0 (model.py:12)"],
    )
    daemon.store.explained[doubling.KERNEL] = message
    daemon.store.status.devices.add(
        name="cpu",
        device=convert.device_to_proto(doubling.DEVICE),
        policy=admin_service_pb2.DEVICE_POLICY_ALWAYS,
        is_worker_ready=True,
    )
    daemon.store.status.kernels = 1
    daemon.store.status.problems.append("no C compiler")
    return daemon


def test_status_prints_a_table_and_talks_on_stderr(explained: FakeDaemon) -> None:
    result = run("status", "--address", explained.address)
    assert result.exit_code == ExitCode.OK
    assert "serving" in result.stdout
    assert "test cpu" in result.stdout
    assert "no C compiler" in result.stderr
    assert "no C compiler" not in result.stdout


def test_status_as_json(explained: FakeDaemon) -> None:
    result = run("status", "--json", "--address", explained.address)
    content = json.loads(result.stdout)
    assert content["schema_version"] == 1
    assert content["kernels"] == 1
    assert content["devices"][0]["policy"] == "always"
    assert content["problems"] == ["no C compiler"]


def test_the_address_comes_from_the_environment_too(
    explained: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARHINT_ADDRESS", explained.address)
    assert run("status").exit_code == ExitCode.OK


def test_kernels_reads_every_page(explained: FakeDaemon) -> None:
    for number in range(2500):
        name = f"{number:064x}"
        explained.store.explained[name] = admin_service_pb2.ExplainKernelResponse(
            kernel=admin_service_pb2.KernelSummary(id=name)
        )
    result = run("kernels", "--json", "--limit", "9999", "--address", explained.address)
    assert len(json.loads(result.stdout)["kernels"]) == 2501
    few = run("kernels", "--json", "--limit", "3", "--address", explained.address)
    assert len(json.loads(few.stdout)["kernels"]) == 3


def test_explain_says_why(explained: FakeDaemon) -> None:
    result = run("explain", "abab", "--dims", "k0=100", "--address", explained.address)
    assert result.exit_code == ExitCode.OK
    for text in (
        doubling.KERNEL,
        "reads    (* 4 k0) = 400 bytes",
        "writes   (* 4 k0) = 400 bytes",
        "copies at 10.24 GB/s",
        "50.0",  # 8 * 64 bytes in 100 ns are 5.12 GB/s
        "schedule 1 (default)",
        "k0 % 16 == 0 and argument 1 aligned to 32 bytes",
        "0.10",  # 100 ns in µs
        "generation 12",
        "because",
        "[winner]",
        "away in log2",
        "original ops cdcd",
        "warm cache, 2 threads",
        "measured by",
        "wrong at k0=7",
        "model.py:12",
        "[not markup] y[i] = x[i] + x[i]",
    ):
        assert text in result.stdout, text
    (request,) = explained.asked("ExplainKernel")
    assert convert.size_hint_from_proto(request.dims) == {"k0": 100}


def test_explain_as_json(explained: FakeDaemon) -> None:
    result = run("explain", "abab", "--json", "--address", explained.address)
    content = json.loads(result.stdout)
    assert content["bytes_moved"] == "(* 8 k0)"
    assert content["bytes_read"] == content["bytes_written"] == "(* 4 k0)"
    assert content["selections"][TARGET_ID]["reason"] == "winner"
    first = content["tables"][0]["hints"][0]
    assert first["dims"] == {"k0": 64}
    assert [each["median_ns"] for each in first["ranked"]] == [100, 101]
    assert content["rejected"] == ["looped 8: wrong at k0=7"]


def test_explain_holds_each_timing_against_a_copy(explained: FakeDaemon) -> None:
    result = run("explain", "abab", "--json", "--address", explained.address)
    (table,) = json.loads(result.stdout)["tables"]
    assert table["copy_bandwidth"]["bytes_per_s"] == 10.24e9
    assert table["copy_bandwidth"]["conditions"] == "two buffers"
    first = table["hints"][0]
    assert (first["bytes_read"], first["bytes_written"]) == (256, 256)
    assert first["ranked"][0]["achieved_bytes_per_s"] == 5.12e9
    assert first["ranked"][0]["share_of_copy_bandwidth"] == 0.5
    assert first["fallbacks"][0]["achieved_bytes_per_s"] == 2.56e9
    assert first["fallbacks"][0]["share_of_copy_bandwidth"] == 0.25


def test_what_a_copy_reaches_may_not_be_known_yet(explained: FakeDaemon) -> None:
    explained.store.explained[doubling.KERNEL].copy_bandwidths.clear()
    printed = run("explain", "abab", "--address", explained.address)
    assert "whose device copies at not known yet" in printed.stdout
    result = run("explain", "abab", "--json", "--address", explained.address)
    (table,) = json.loads(result.stdout)["tables"]
    assert table["copy_bandwidth"] is None
    ranked = table["hints"][0]["ranked"][0]
    assert ranked["achieved_bytes_per_s"] == 5.12e9
    assert ranked["share_of_copy_bandwidth"] is None


def test_an_older_daemon_says_only_how_many_bytes_move(explained: FakeDaemon) -> None:
    message = explained.store.explained[doubling.KERNEL]
    for name in ("bytes_read", "bytes_written", "copy_bandwidths"):
        message.ClearField(name)
    result = run("explain", "abab", "--json", "--address", explained.address)
    content = json.loads(result.stdout)
    assert (content["bytes_read"], content["bytes_written"]) == (None, None)
    first = content["tables"][0]["hints"][0]
    assert (first["bytes_read"], first["bytes_written"]) == (None, None)
    assert first["ranked"][0]["achieved_bytes_per_s"] == 5.12e9
    printed = run("explain", "abab", "--address", explained.address)
    assert "reads    not known bytes" in printed.stdout


QUARANTINED = admin_service_pb2.QuarantinedVariant(
    kernel=doubling.KERNEL,
    target_id=TARGET_ID,
    variant="77c0" * 16,
    schedule="schedule 1",
    reason="wrong for odd rows",
    actor="ann",
    at_s=1_700_000_000,
)


@pytest.fixture
def operated(explained: FakeDaemon) -> FakeDaemon:
    """A daemon that answers every call by which an operator decides."""
    found = doubling.table(64, generation=13)
    pins = (Pin((64,), found.variants[0].id), Pin((), ""))
    message = convert.table_to_proto(replace(found, pins=pins))
    explained.answer("PinVariant", admin_service_pb2.PinVariantResponse(table=message))
    explained.answer("UnpinVariant", admin_service_pb2.UnpinVariantResponse(table=message))
    explained.answer(
        "RollBackTable",
        admin_service_pb2.RollBackTableResponse(table=message, left_out=["schedule 2: rejected"]),
    )
    explained.answer(
        "ListGenerations",
        admin_service_pb2.ListGenerationsResponse(
            generations=[
                admin_service_pb2.Generation(
                    target_id=TARGET_ID,
                    generation=13,
                    published_at_s=1_700_000_000,
                    tier=2,
                    hints=1,
                    change="64: T1 -> T2",
                )
            ],
            acts=[
                admin_service_pb2.Act(
                    seq=12, actor="ann", at_s=1_700_000_000, kind="pin", detail="everywhere"
                )
            ],
        ),
    )
    answers = admin_service_pb2
    explained.answer(
        "QuarantineVariant",
        answers.QuarantineVariantResponse(quarantined=QUARANTINED, table=message, retuning=2),
    )
    explained.answer(
        "ReleaseVariant", answers.ReleaseVariantResponse(released=QUARANTINED, retuning=3)
    )
    explained.answer("ListQuarantine", answers.ListQuarantineResponse(quarantined=[QUARANTINED]))
    return explained


def test_pin_names_a_variant_or_the_original_ops(operated: FakeDaemon) -> None:
    arguments = ("pin", "abab", "--variant", "77c0", "--at", "k0=64")
    result = run(*arguments, "--address", operated.address)
    assert result.exit_code == ExitCode.OK
    for text in ("k0=64", "schedule 1", "all sizes", "the original ops", "generation 13"):
        assert text in result.stdout, text
    assert run("pin", "abab", "--fallback", "--address", operated.address).exit_code == ExitCode.OK
    first, second = operated.asked("PinVariant")
    assert (first.kernel, first.variant, first.actor != "") == ("abab", "77c0", True)
    assert convert.size_hint_from_proto(first.at) == {"k0": 64}
    assert second.fallback
    assert not second.HasField("at")


def test_pins_as_json(operated: FakeDaemon) -> None:
    for arguments in (("pin", "abab", "--fallback"), ("unpin", "abab")):
        content = json.loads(run(*arguments, "--json", "--address", operated.address).stdout)
        assert (content["kernel"], content["generation"]) == (doubling.KERNEL, 13)
        assert [(pin["dims"], pin["schedule"]) for pin in content["pins"]] == [
            ({"k0": 64}, "schedule 1"),
            (None, None),
        ]
    (request,) = operated.asked("UnpinVariant")
    assert not request.HasField("at")


def test_explain_lists_pins(operated: FakeDaemon) -> None:
    message = operated.store.explained[doubling.KERNEL]
    message.tables[0].pins.add(dims=[64], variant="")
    result = run("explain", "abab", "--address", operated.address)
    assert "pinned at" in result.stdout
    content = json.loads(run("explain", "abab", "--json", "--address", operated.address).stdout)
    assert content["tables"][0]["pins"][0]["dims"] == {"k0": 64}


def test_rollback_says_what_was_left_out(operated: FakeDaemon) -> None:
    result = run("rollback", "abab", "--to", "7", "--address", operated.address)
    assert result.exit_code == ExitCode.OK
    assert "13" in result.stdout
    assert "schedule 2: rejected" in result.stderr
    (request,) = operated.asked("RollBackTable")
    assert request.generation == 7
    again = run("rollback", "abab", "--to", "7", "--json", "--address", operated.address)
    content = json.loads(again.stdout)
    assert (content["restored"], content["generation"]) == (7, 13)
    assert content["left_out"] == ["schedule 2: rejected"]


def test_history_lists_generations_and_acts(operated: FakeDaemon) -> None:
    result = run("history", "abab", "--address", operated.address)
    for text in ("64: T1 -> T2", "ann", "pin", "everywhere", "original ops", "2023-11-14"):
        assert text in result.stdout, text
    content = json.loads(run("history", "abab", "--json", "--address", operated.address).stdout)
    assert content["generations"][0]["change"] == "64: T1 -> T2"
    assert content["acts"][0] == {
        "seq": 12,
        "actor": "ann",
        "at_s": 1_700_000_000,
        "kind": "pin",
        "kernel": "",
        "target": "",
        "subject": "",
        "detail": "everywhere",
    }


def test_quarantine_bars_lists_and_releases(operated: FakeDaemon) -> None:
    arguments = ("quarantine", "abab", "--variant", "77c0", "--reason", "wrong for odd rows")
    barred = run(*arguments, "--address", operated.address)
    assert "wrong for odd rows" in barred.stdout
    assert "2 jobs" in barred.stderr
    listed = run("quarantine", "--list", "--json", "--address", operated.address)
    assert json.loads(listed.stdout)["quarantined"][0]["actor"] == "ann"
    released = run("release", "abab", "--variant", "77c0", "--json", "--address", operated.address)
    assert json.loads(released.stdout)["retuning_jobs"] == 3
    (request,) = operated.asked("QuarantineVariant")
    assert (request.variant, request.reason) == ("77c0", "wrong for odd rows")


@pytest.mark.parametrize(
    "arguments",
    [
        ["pin", "abab"],
        ["pin", "abab", "--variant", "x", "--fallback"],
        ["pin", "abab", "--fallback", "--at", "k0"],
        ["unpin", "abab", "--at", "k0=x"],
        ["rollback", "abab"],
        ["rollback", "abab", "--to", "0"],
        ["quarantine"],
        ["quarantine", "abab", "--variant", "77c0"],
        ["quarantine", "abab", "--list", "--reason", "x"],
        ["release", "abab"],
    ],
    ids=" ".join,
)
def test_an_operator_who_says_too_little_or_too_much_is_told(
    operated: FakeDaemon, arguments: list[str]
) -> None:
    result = run(*arguments, "--address", operated.address)
    assert result.exit_code == ExitCode.USAGE
    assert (result.stdout, result.stderr != "") == ("", True)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.NOT_FOUND, ExitCode.NOT_FOUND),
        (grpc.StatusCode.OUT_OF_RANGE, ExitCode.REFUSED),
        (grpc.StatusCode.FAILED_PRECONDITION, ExitCode.REFUSED),
        (grpc.StatusCode.INVALID_ARGUMENT, ExitCode.USAGE),
        (grpc.StatusCode.UNIMPLEMENTED, ExitCode.REFUSED),
    ],
)
@pytest.mark.parametrize(
    ("rpc", "arguments"),
    [
        ("PinVariant", ["pin", "abab", "--fallback"]),
        ("RollBackTable", ["rollback", "abab", "--to", "7"]),
    ],
)
def test_a_refused_act_decides_the_exit_code(
    operated: FakeDaemon, rpc: str, arguments: list[str], status: grpc.StatusCode, code: ExitCode
) -> None:
    operated.fail(rpc, status)
    result = run(*arguments, "--address", operated.address)
    assert result.exit_code == code
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["kernels"],
        ["explain", "abab"],
        ["policy", "cpu"],
        ["pin", "abab", "--fallback"],
        ["unpin", "abab"],
        ["rollback", "abab", "--to", "7"],
        ["history", "abab"],
        ["quarantine", "--list"],
        ["release", "abab", "--variant", "77c0"],
    ],
    ids=" ".join,
)
def test_every_table_has_a_json_form_with_a_schema_version(
    operated: FakeDaemon, arguments: list[str]
) -> None:
    result = run(*arguments, "--json", "--address", operated.address)
    assert json.loads(result.stdout)["schema_version"] == SCHEMA_VERSION


def test_what_is_interrupted_says_so(
    explained: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(connection: Connection) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "get_status", interrupt)
    result = run("status", "--address", explained.address)
    assert result.exit_code == ExitCode.INTERRUPTED
    assert "interrupted" in result.stderr


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
    # The sizes shown are those at which the rule that serves loses, of this draw alone.
    assert "k0=101" not in result.stdout
    assert "k0=999" not in result.stdout
    (request,) = judged.asked("MeasureRegret")
    assert (request.kernel, request.sizes, request.seed) == ("abab", 2, 7)
    (request,) = judged.asked("GetRegret")
    assert (request.target_id, request.generation) == (TARGET_ID, 12)


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


def test_regret_that_left_sizes_out_is_partial_and_without_any_failed(judged: FakeDaemon) -> None:
    plan = judged.store.regret_plans[doubling.KERNEL].plans[0]
    plan.points.add(dims=[102])
    ended = judged.store.operations["judging"]
    ended.total, ended.failed, ended.error.message = 3, 1, "too little memory"
    result = run("regret", "abab", "--address", judged.address)
    assert result.exit_code == ExitCode.PARTIAL
    assert "1 sizes were not measured" in result.stderr
    assert "1 sizes failed: too little memory" in result.stderr
    judged.store.regrets[doubling.KERNEL].ClearField("records")
    assert run("regret", "abab", "--address", judged.address).exit_code == ExitCode.FAILED


def test_regret_says_that_a_policy_holds_it_up(judged: FakeDaemon) -> None:
    (device,) = judged.store.status.devices
    device.target_id, device.policy = TARGET_ID, admin_service_pb2.DEVICE_POLICY_NEVER
    result = run("regret", "abab", "--address", judged.address)
    assert "the policy of cpu is never" in result.stderr


def test_regret_that_is_interrupted_stops_the_daemons_work(
    judged: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(connection: Connection, operation_id: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "watch_operation", interrupt)
    result = run("regret", "abab", "--address", judged.address)
    assert result.exit_code == ExitCode.INTERRUPTED
    (request,) = judged.asked("CancelOperation")
    assert request.id == "judging"


def test_policy_is_shown_and_set(explained: FakeDaemon) -> None:
    shown = run("policy", "cpu", "--json", "--address", explained.address)
    assert json.loads(shown.stdout)["devices"][0]["policy"] == "always"
    changed = run("policy", "cpu", "never", "--json", "--address", explained.address)
    assert json.loads(changed.stdout)["devices"][0]["policy"] == "never"
    (request,) = explained.asked("SetDevicePolicy")
    assert request.actor


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["explain", "ffff"], ExitCode.NOT_FOUND),
        (["policy", "cuda:7"], ExitCode.NOT_FOUND),
        (["policy", "cuda:7", "never"], ExitCode.NOT_FOUND),
        (["policy", "cpu", "sometimes"], ExitCode.USAGE),
        (["explain", "abab", "--dims", "k0"], ExitCode.USAGE),
        (["status", "--address", "tcp:1"], ExitCode.USAGE),
        (["status", "--address", "unix:/nowhere/at/all.sock"], ExitCode.UNREACHABLE),
        (["nonsense"], ExitCode.USAGE),
        (["regret", "ffff"], ExitCode.NOT_FOUND),
        (["regret", "abab", "--at", "k0"], ExitCode.USAGE),
        (["regret", "abab", "--at", "k0=1", "--sizes", "3"], ExitCode.USAGE),
        (["regret", "--at", "k0=1"], ExitCode.USAGE),
        (["regret", "abab", "--sizes", "0"], ExitCode.USAGE),
        (["regret", "abab", "--seed", "-1"], ExitCode.USAGE),
        (["warmup", "m:f"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "batch"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--budget", "0"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--budget", "soon"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--budget", "1m", "--budget-s", "3"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--effort", "hard"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--html", "/nowhere/at/all.html"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--compile-only"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--target", "absent.json"], ExitCode.NOT_FOUND),
        (["warmup", "absent.toml"], ExitCode.NOT_FOUND),
        (["warmup", "absent.toml", "--sizes", "n=1"], ExitCode.USAGE),
    ],
)
def test_what_is_wrong_decides_the_exit_code(
    explained: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: ExitCode,
) -> None:
    monkeypatch.setenv("NEARHINT_ADDRESS", explained.address)
    result = run(*arguments)
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr != ""


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, ExitCode.USAGE),
        (grpc.StatusCode.FAILED_PRECONDITION, ExitCode.REFUSED),
        (grpc.StatusCode.UNAVAILABLE, ExitCode.UNREACHABLE),
        (grpc.StatusCode.INTERNAL, ExitCode.FAILED),
    ],
)
def test_a_refusal_decides_the_exit_code(
    explained: FakeDaemon, status: grpc.StatusCode, code: ExitCode
) -> None:
    explained.fail("GetStatus", status)
    assert run("status", "--address", explained.address).exit_code == code


def test_another_protocol_is_refused(explained: FakeDaemon) -> None:
    explained.store.info.protocol_min = 7
    explained.store.info.protocol_max = 9
    result = run("status", "--address", explained.address)
    assert result.exit_code == ExitCode.REFUSED
    assert "protocol 7 to 9" in result.stderr


def test_a_selection_reason_of_a_newer_daemon_is_printed_as_it_is(explained: FakeDaemon) -> None:
    message = explained.store.explained[doubling.KERNEL]
    message.selections[TARGET_ID].CopyFrom(
        kernel_service_pb2.Selection(reason="refined_tomorrow", generation=1)
    )
    result = run("explain", "abab", "--dims", "k0=1", "--address", explained.address)
    assert "refined_tomorrow" in result.stdout


def test_explain_says_which_rule_answered_and_what_it_predicted(explained: FakeDaemon) -> None:
    nearest = run("explain", "abab", "--dims", "k0=100", "--address", explained.address)
    assert "rule nearest" in nearest.stdout
    assert "predicted times" not in nearest.stdout
    message = explained.store.explained[doubling.KERNEL]
    message.selections[TARGET_ID].MergeFrom(
        kernel_service_pb2.Selection(
            selector="interpolated",
            reason="predicted",
            predictions=[
                kernel_service_pb2.Prediction(
                    variant_id="3" * 64, time_ns=12345.6, relative_error=0.031
                ),
                kernel_service_pb2.Prediction(time_ns=23456.7, relative_error=0.2),
            ],
        )
    )
    result = run("explain", "abab", "--dims", "k0=100", "--address", explained.address)
    for text in (
        "rule interpolated",
        "12.35 µs  variant 333333333333, error 3.1 %",
        "original ops",
    ):
        assert text in result.stdout, text
    as_json = run("explain", "abab", "--dims", "k0=100", "--json", "--address", explained.address)
    selection = json.loads(as_json.stdout)["selections"][TARGET_ID]
    assert selection["selector"] == "interpolated"
    assert [each["variant"] for each in selection["predictions"]] == ["3" * 64, None]
    assert selection["predictions"][0]["time_ns"] == 12345.6


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_every_command_is_documented_and_ends_with_examples(command: click.Command) -> None:
    assert command.help
    shown = run(str(command.name), "--help").stdout
    assert shown.count("\n    nearhint " + str(command.name)) >= 2
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_every_exit_code_is_in_the_help() -> None:
    shown = " ".join(run("--help").stdout.split())
    for code in ExitCode:
        assert f"{int(code)} " in shown
    assert set(BY_ERROR.values()) <= set(ExitCode)


def test_sizes_are_all_combinations(tmp_path: Path) -> None:
    assert read_sizes("batch=1,8; tokens=16") == [
        {"batch": 1, "tokens": 16},
        {"batch": 8, "tokens": 16},
    ]
    listed = tmp_path / "sizes.txt"
    listed.write_text("# of last week\nbatch=1;tokens=7\n\nbatch=2;tokens=9,10\n")
    assert read_sizes_file(listed) == [
        {"batch": 1, "tokens": 7},
        {"batch": 2, "tokens": 9},
        {"batch": 2, "tokens": 10},
    ]


@pytest.mark.parametrize("text", ["batch", "batch=", "batch=0", "batch=-1", "=1", "a=1;a=2", "a=x"])
def test_sizes_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidSetting):
        read_sizes(text)


@pytest.mark.parametrize("text", ["k0", "k0=", "k0=-1", "k0=1,k0=2", "k0=1e3"])
def test_dims_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidSetting):
        read_dims(text)


def test_what_was_tried_is_told_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    report = admin_service_pb2.SearchReport(
        target_id="a" * 64,
        dims=[64, 384],
        tried=[
            admin_service_pb2.TriedSchedule(
                schedule="cpu.rows lanes=8", outcome="eliminated", reason="slow", stage="cross"
            )
        ],
        searched_at_s=5.0,
    )
    print_searches([report], ["k0", "k1"])
    told = " ".join(capsys.readouterr().out.split())
    for text in ("k0=64, k1=384", "cpu.rows lanes=8", "eliminated", "cross", "slow"):
        assert text in told
    (found,) = searches_json([report], ["k0", "k1"])
    assert found["dims"] == {"k0": 64, "k1": 384}
    assert found["tried"] == [
        {
            "schedule": "cpu.rows lanes=8",
            "outcome": "eliminated",
            "stage": "cross",
            "reason": "slow",
        }
    ]
    print_searches([], [])
    assert capsys.readouterr().out == ""
