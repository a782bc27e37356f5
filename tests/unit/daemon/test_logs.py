"""What a line of the log looks like, whatever is in it."""

from __future__ import annotations

import json
import logging

import pytest

from nearhint_daemon import logs


def logged(capsys: pytest.CaptureFixture[str], log_format: str, **fields: object) -> str:
    logs.configure(log_format=log_format, level="info")
    logs.info("event", **fields)
    return capsys.readouterr().err


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_no_value_makes_a_second_line(capsys: pytest.CaptureFixture[str], log_format: str) -> None:
    text = "a\r\n2026-11-22T00:00:00.000+00:00 error   forged actor=root\x1b[31m"
    line = logged(capsys, log_format, problem=text)
    assert line.count("\n") == 1
    assert "\r" not in line
    assert "\x1b" not in line


def test_values_of_several_words_are_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    line = logged(capsys, "console", device="cpu", problem="no C compiler", count=3, actor="")
    assert line.rstrip().endswith('event device=cpu problem="no C compiler" count=3 actor=""')


def test_json_has_the_event_and_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(logged(capsys, "json", device="cpu", count=3))
    assert (content["level"], content["event"]) == ("info", "event")
    assert (content["device"], content["count"]) == ("cpu", 3)


def test_a_traceback_goes_along_with_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="json", level="info")
    try:
        raise ValueError("what happened")
    except ValueError:
        logs.error("rpc_failed", method="Select")
    content = json.loads(capsys.readouterr().err)
    assert "what happened" in content["traceback"]


def test_what_a_library_logs_is_a_line_of_the_same_format(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logs.configure(log_format="json", level="info")
    logging.getLogger("asyncio").error("socket.accept() out of system resource\nsocket: 7")
    content = json.loads(capsys.readouterr().err)
    assert (content["level"], content["event"]) == ("error", "library_log")
    assert content["logger"] == "asyncio"
    assert content["message"] == "socket.accept() out of system resource\nsocket: 7"
