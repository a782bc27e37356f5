"""The command line: what it prints, what it exits with, and that all of it is documented."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from tests.unit.client import doubling
from tests.unit.client.cli_cases import run

from nearhint.cli import main
from nearhint.commands.searches import print_searches, searches_json
from nearhint.commands.sizes import COMBINATIONS_LIMIT, read_dims, read_sizes, read_sizes_file
from nearhint.connection import Connection
from nearhint.counters import Counters
from nearhint.errors import DaemonUnreachable, DaemonUnready, InvalidSetting
from nearhint.exit_codes import BY_ERROR, ExitCode, exit_code
from nearhint.testing import TARGET_ID, FakeDaemon
from nearhint_proto import convert
from nearhint_proto.v1 import (
    admin_service_pb2,
    kernel_service_pb2,
)

COMMANDS = [command for _, command in sorted(main.commands.items())]


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


@pytest.mark.parametrize("arguments", [("status",), ("warmup", "no_module:f", "--sizes", "n=1")])
def test_an_address_that_is_given_wins_over_one_that_means_nothing(
    explained: FakeDaemon, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("NEARHINT_ADDRESS", "localhost:50051")
    result = run(*arguments, "--address", explained.address)
    assert "SETTING_INVALID" not in result.stderr


def test_a_status_that_nobody_answers_does_not_name_itself_as_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        result = run("status", "--address", f"unix:{path}")
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "DEADLINE_MISSED" in result.stderr
    assert "the process that holds the socket" in result.stderr
    assert "`nearhint status`" not in result.stderr


@pytest.mark.parametrize("what", ["folder", "socket"])
def test_who_may_not_open_the_socket_is_not_told_to_start_a_daemon(
    explained: FakeDaemon, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def refuse(path: Path) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    def refused(path: Path, mode: int, **_: object) -> bool:
        return str(path) != explained.address.removeprefix("unix:") or mode != os.W_OK

    # Root may open everything: the folder, or the socket in a folder that everybody may enter.
    if what == "folder":
        monkeypatch.setattr(Path, "lstat", refuse)
    else:
        monkeypatch.setattr(os, "access", refused)
    result = run("status", "--address", explained.address)
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "Permission denied" in result.stderr
    assert "group" in result.stderr
    assert "nearhintd serve" not in result.stderr


def test_a_socket_whose_path_is_too_long_without_links_is_a_wrong_address(tmp_path: Path) -> None:
    far = tmp_path / ("far" * 36)
    far.mkdir()
    (tmp_path / "link").symlink_to(far)
    with FakeDaemon(tmp_path / "link") as daemon:
        result = run("status", "--address", daemon.address)
    assert result.exit_code == ExitCode.USAGE, result.stderr
    assert "at most 107 bytes, links resolved" in result.stderr


def test_kernels_reads_every_page(explained: FakeDaemon) -> None:
    for number in range(2500):
        name = f"{number:064x}"
        explained.store.explained[name] = admin_service_pb2.ExplainKernelResponse(
            kernel=admin_service_pb2.KernelSummary(id=name)
        )
    result = run("kernels", "--json", "--limit", "9999", "--address", explained.address)
    every = json.loads(result.stdout)
    assert (len(every["kernels"]), every["has_more"]) == (2501, False)
    few = run("kernels", "--json", "--limit", "3", "--address", explained.address)
    some = json.loads(few.stdout)
    assert (len(some["kernels"]), some["has_more"]) == (3, True)
    assert ("more than 3" in few.stderr, result.stderr) == (True, "")


def test_explain_says_why(explained: FakeDaemon) -> None:
    result = run("explain", "abab", "--dims", "k0=100", "--address", explained.address)
    assert result.exit_code == ExitCode.OK
    for text in (
        doubling.KERNEL,
        "reads    4 * k0 = 400 bytes",
        "writes   4 * k0 = 400 bytes",
        "copies at 10.24 GB/s",
        "thrown away #",
        "50.0",  # 8 * 64 bytes in 100 ns are 5.12 GB/s
        "schedule 1 (default)",
        "k0 % 16 == 0 and argument 1 aligned to 32 bytes",
        "0.10",  # 100 ns in µs
        "generation 12",
        "because",
        "[winner]",
        "hint k0=64, ",
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


def test_explain_lists_what_was_timed_at_sizes_that_calls_have(explained: FakeDaemon) -> None:
    message = explained.store.explained[doubling.KERNEL].tables[0]
    message.probes.append(convert.table_to_proto(doubling.table(100, kernel_ns=777)).hints[0])
    printed = run("explain", "abab", "--address", explained.address).stdout
    assert [line.split("│")[2:4] for line in printed.splitlines() if "k0=100 " in line] == [
        [" probe ", "      1 "],
        [" probe ", "        "],
    ]
    content = json.loads(run("explain", "abab", "--json", "--address", explained.address).stdout)
    (probe,) = content["tables"][0]["probes"]
    assert probe["dims"] == {"k0": 100}
    assert [each["median_ns"] for each in probe["ranked"]] == [777]
    assert [each["fallback"] for each in probe["fallbacks"]] == [doubling.FALLBACK]


def test_explain_holds_each_timing_against_a_copy(explained: FakeDaemon) -> None:
    result = run("explain", "abab", "--json", "--address", explained.address)
    (table,) = json.loads(result.stdout)["tables"]
    assert table["copy_bandwidth"]["bytes_per_s"] == 10.24e9
    assert table["copy_bandwidth"]["conditions"] == "two buffers"
    assert [each["discarded"] for each in json.loads(result.stdout)["measurements"]] == [13]
    first = table["hints"][0]
    assert (first["bytes_read"], first["bytes_written"]) == (256, 256)
    assert first["ranked"][0]["achieved_bytes_per_s"] == 5.12e9
    assert first["ranked"][0]["share_of_copy_bandwidth"] == 0.5
    assert first["fallbacks"][0]["achieved_bytes_per_s"] == 2.56e9
    assert first["fallbacks"][0]["share_of_copy_bandwidth"] == 0.25


def test_what_a_copy_reaches_may_not_be_known_yet(explained: FakeDaemon) -> None:
    explained.store.explained[doubling.KERNEL].copy_bandwidths.clear()
    printed = run("explain", "abab", "--address", explained.address)
    assert "how fast a copy is there is not measured yet" in printed.stdout
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


def test_what_is_interrupted_says_so(
    explained: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(connection: Connection) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "get_status", interrupt)
    result = run("status", "--address", explained.address)
    assert result.exit_code == ExitCode.INTERRUPTED
    assert "interrupted" in result.stderr


def test_a_policy_that_is_set_is_shown_of_its_device_alone(explained: FakeDaemon) -> None:
    explained.store.status.devices.add(name="cuda:0")
    changed = run("policy", "cuda:0", "never", "--json", "--address", explained.address)
    (device,) = json.loads(changed.stdout)["devices"]
    assert (device["name"], device["policy"]) == ("cuda:0", "never")


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
        (["policy", "cuda:7"], ExitCode.USAGE),
        (["policy", "cuda"], ExitCode.USAGE),
        (["policy", "cuda:7", "never"], ExitCode.USAGE),
        (["policy", "cpu", "sometimes"], ExitCode.USAGE),
        (["explain", "abab", "--dims", "k0"], ExitCode.USAGE),
        (["status", "--address", "tcp:1"], ExitCode.USAGE),
        (["status", "--address", "unix:/nowhere/at/all.sock"], ExitCode.UNREACHABLE),
        (["nonsense"], ExitCode.USAGE),
        (["regret", "ffff"], ExitCode.NOT_FOUND),
        (["regret", "abab", "--at", "k0"], ExitCode.USAGE),
        (["regret", "abab", "--at", f"k0={2**63}"], ExitCode.USAGE),
        (["pin", "abab", "--fallback", "--at", f"k0={2**63}"], ExitCode.USAGE),
        (["regret", "abab", "--at", "k0=1", "--sizes", "3"], ExitCode.USAGE),
        (["regret", "--at", "k0=1"], ExitCode.USAGE),
        (["regret", "abab", "--sizes", "0"], ExitCode.USAGE),
        (["regret", "abab", "--seed", "-1"], ExitCode.USAGE),
        (["warmup", "m:f"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "batch"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--budget", "0"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--budget", "soon"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--budget", f"{'9' * 400}h"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--budget-s", "nan"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--budget-s", "inf"], ExitCode.USAGE),
        (["demo", "--settle-timeout-s", "nan"], ExitCode.USAGE),
        (["demo", "--budget-s", "0"], ExitCode.USAGE),
        (["demo", "--repetitions", "0"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--budget", "1m", "--budget-s", "3"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--effort", "hard"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--html", "/nowhere/at/all.html"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--json", "/"], ExitCode.USAGE),
        (["warmup", "m:f", "--sizes", "n=1", "--dry-run", "--html", "x.html"], ExitCode.USAGE),
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


class Refusal(grpc.RpcError):
    """What gRPC raises where the daemon says UNAVAILABLE, with its own code or without."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self._reason = reason

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the disk takes no writes now"

    def trailing_metadata(self) -> Any:
        if not self._reason:
            return ()
        status = status_pb2.Status()
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=self._reason))
        return (("grpc-status-details-bin", status.SerializeToString()),)


@pytest.mark.parametrize(
    ("reason", "expected", "code"),
    [
        ("STORE_READ_ONLY", DaemonUnready, ExitCode.REFUSED),
        ("", DaemonUnreachable, ExitCode.UNREACHABLE),
    ],
)
def test_a_daemon_that_answers_is_not_called_unreachable(
    explained: FakeDaemon, reason: str, expected: type[DaemonUnreachable], code: ExitCode
) -> None:
    connection = Connection(
        explained.address, trusted_uids=frozenset(), counters=Counters(), version="1"
    )
    with closing(connection):
        error = connection._typed("GetStatus", Refusal(reason))
    assert type(error) is expected
    assert exit_code(error) == code
    assert "the disk takes no writes now" in str(error)


def test_what_is_wrong_and_what_to_do_is_told_as_the_daemon_says_it(explained: FakeDaemon) -> None:
    class Wrong(Refusal):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.INVALID_ARGUMENT

        def trailing_metadata(self) -> Any:
            status = status_pb2.Status()
            metadata = {"hint": "give more digits"}
            status.details.add().Pack(error_details_pb2.ErrorInfo(reason="X", metadata=metadata))
            wrong = error_details_pb2.BadRequest()
            wrong.field_violations.add(field="kernel", description="must be hex")
            status.details.add().Pack(wrong)
            return (("grpc-status-details-bin", status.SerializeToString()),)

    connection = Connection(
        explained.address, trusted_uids=frozenset(), counters=Counters(), version="1"
    )
    with closing(connection):
        error = connection._typed("ExplainKernel", Wrong(""))
    assert error.report().endswith("(INVALID_ARGUMENT, X): kernel: must be hex. Give more digits.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "\udcff\udcfe"],
        ["explain", "abab", "--dims", "\udcff=3"],
        ["regret", "abab", "--selector", "\udcff"],
        ["pin", "abab", "--variant", "\udcff"],
        ["quarantine", "abab", "--variant", "77c0", "--reason", "\udcff"],
        ["history", "abab", "--target", "\udcff"],
        ["rollback", "abab", "--to", "9" * 30],
        ["warmup", "m:f", "--sizes", "n=1", "--device", "tpu"],
    ],
)
def test_what_no_message_can_carry_is_wrong_usage(
    explained: FakeDaemon, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("NEARHINT_ADDRESS", explained.address)
    result = run(*arguments)
    assert result.exit_code == ExitCode.USAGE, result.exception
    assert not isinstance(result.exception, UnicodeError)


@pytest.mark.parametrize("arguments", [("demo",), ("warmup", "m:f", "--sizes", "n=1")])
def test_what_runs_models_is_refused_where_nearhint_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("NEARHINT_DISABLE", "1")
    result = run(*arguments)
    assert result.exit_code == ExitCode.REFUSED
    assert "DISABLED: switched off by NEARHINT_DISABLE" in result.stderr


def test_whoever_has_no_name_is_a_number(
    explained: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "\udcff")
    assert run("policy", "cpu", "never", "--address", explained.address).exit_code == ExitCode.OK
    (request,) = explained.asked("SetDevicePolicy")
    assert request.actor == f"uid {os.getuid()}"


def test_signs_that_an_encoding_lacks_are_replaced(explained: FakeDaemon) -> None:
    command = [sys.executable, "-m", "nearhint", "explain", "abab", "--address", explained.address]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert ended.returncode == ExitCode.OK, ended.stderr.decode()
    assert b"median \\xb5s" in ended.stdout


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


def test_more_combinations_than_anybody_waits_for_are_refused_before_they_are_made() -> None:
    many = ",".join(map(str, range(1, 65)))
    assert len(read_sizes(f"a={many};b={many}")) == COMBINATIONS_LIMIT
    with pytest.raises(InvalidSetting, match="at most 4096 combinations, not 16777216"):
        read_sizes(f"a={many};b={many};c={many};d={many}")


@pytest.mark.parametrize(
    "text",
    [
        *("batch", "batch=", "batch=0", "batch=-1", "=1", "a=1;a=2", "a=x"),
        *(f"a=1,{10**18}", f"a={'9' * 5000}"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidSetting):
        read_sizes(text)


def test_a_line_of_a_file_of_sizes_is_told_by_its_number(tmp_path: Path) -> None:
    listed = tmp_path / "sizes.txt"
    listed.write_text("# expected\nbatch=1;tokens=16\n\nbatch=1;tokens=0\n")
    with pytest.raises(InvalidSetting, match=r"--sizes-file, line 4, must be like .*tokens=0"):
        read_sizes_file(listed)
    many = f"n={','.join(map(str, range(1, COMBINATIONS_LIMIT + 2)))}"
    listed.write_text(many)
    with pytest.raises(InvalidSetting, match="--sizes-file, line 1, must be at most"):
        read_sizes_file(listed)


def test_a_file_of_sizes_that_is_no_text_is_refused(tmp_path: Path) -> None:
    listed = tmp_path / "sizes.txt"
    listed.write_bytes(b"batch=1\xff")
    with pytest.raises(InvalidSetting, match="--sizes-file"):
        read_sizes_file(listed)


@pytest.mark.parametrize(
    "text",
    [
        *("k0", "k0=", "k0=-1", "k0=1,k0=2", "k0=1e3"),
        *(f"k0=1,k1={10**18}", f"k0={'9' * 5000}"),
    ],
)
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
