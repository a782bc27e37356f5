"""The commands of operators: pins, rollbacks, quarantine."""

from __future__ import annotations

import json
from dataclasses import replace

import grpc
import pytest
from tests.unit.client import doubling
from tests.unit.client.cli_cases import run

from nearhint.cli_output import SCHEMA_VERSION
from nearhint.exit_codes import ExitCode
from nearhint.testing import TARGET_ID, FakeDaemon
from nearhint_proto import convert
from nearhint_proto.v1 import (
    admin_service_pb2,
)
from nearhint_rules.table import Pin

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


def test_rollback_counts_hints_and_not_what_was_timed_beside_them(operated: FakeDaemon) -> None:
    restored = doubling.table(64, 63, generation=13)
    answer = admin_service_pb2.RollBackTableResponse(table=convert.table_to_proto(restored))
    operated.answer("RollBackTable", answer)
    arguments = ("rollback", "abab", "--to", "7", "--address", operated.address)
    (numbers,) = (line.split() for line in run(*arguments).stdout.splitlines() if " 13 " in line)
    assert [each for each in numbers if each.isdecimal()] == ["7", "13", "1", "1", "0"], (
        "restored, now, variants, hints, pins"
    )
    content = json.loads(run(*arguments, "--json").stdout)
    assert content["hints"] == [{"k0": 64}]


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
    assert barred.stdout.startswith("quarantined")
    assert "2 jobs" in barred.stderr
    listed = run("quarantine", "--list", "--json", "--address", operated.address)
    assert json.loads(listed.stdout)["quarantined"][0]["actor"] == "ann"
    for target, count in ((TARGET_ID[:8], 1), (TARGET_ID[::-1], 0)):
        chosen = ("--list", "--target", target, "--json", "--address", operated.address)
        some = run("quarantine", *chosen)
        assert len(json.loads(some.stdout)["quarantined"]) == count
    asked = [request.target_id for request in operated.asked("ListQuarantine")]
    assert asked == ["", TARGET_ID[:8], TARGET_ID[::-1]]
    released = run("release", "abab", "--variant", "77c0", "--json", "--address", operated.address)
    assert json.loads(released.stdout)["retuning_jobs"] == 3
    again = run("release", "abab", "--variant", "77c0", "--address", operated.address)
    assert again.stdout.startswith("released")
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


def test_a_daemon_that_lacks_a_call_is_said_to_be_older(operated: FakeDaemon) -> None:
    operated.fail("PinVariant", grpc.StatusCode.UNIMPLEMENTED)
    result = run("pin", "abab", "--fallback", "--address", operated.address)
    assert "The daemon is of an earlier version than this client" in result.stderr


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
