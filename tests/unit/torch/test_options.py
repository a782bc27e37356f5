"""What torch.compile may say to the backend, and what it is told of what means nothing."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.unit.torch.conftest import Install

from nearhint.session import counters, session_for
from nearhint_torch.options import OptionIgnored, read_options


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What is logged for people."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, log = Keep(), logging.getLogger("nearhint")
    log.addHandler(handler)
    yield lines
    log.removeHandler(handler)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"options": {"addr": "unix:/x"}}, r"options\['addr'\]: .*did you mean 'address'"),
        ({"options": {"triton.cudagraphs": True}}, "known: address, names"),
        ({"mode": "max-autotune"}, "mode: the backend has no such argument"),
        ({"options": {"names": ["rows"]}}, "give a mapping"),
        ({"options": {"names": {"L['x'].size()[0]": "a b"}}}, "'a b' is no identifier"),
        ({"options": {"names": {"L['x'].size()[0]": 3}}}, "maps no text to a text"),
    ],
)
def test_what_means_nothing_is_told_with_what_there_is(settings: Any, told: str) -> None:
    with pytest.warns(OptionIgnored, match=f"OPTION_INVALID: .*{told}.*'address': 'unix:PATH'"):
        read_options(settings)


def test_what_means_something_is_read_without_a_word() -> None:
    names = {"L['x'].size()[0]": "rows"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = read_options({"options": {"address": "unix:/run/s", "names": names}})
        assert read_options({}).address is None
    assert (read.address, read.names) == ("unix:/run/s", names)


def test_one_name_that_is_none_leaves_the_others() -> None:
    names = {"L['x'].size()[0]": "a b", "L['x'].size()[1]": "width"}
    with pytest.warns(OptionIgnored):
        assert read_options({"options": {"names": names}}).names == {"L['x'].size()[1]": "width"}


def test_a_model_runs_without_the_option_that_there_is_not(session: Install) -> None:
    fake = session(lambda program: None)
    options: Any = {"max_autotune": True}
    compiled = torch.compile(lambda x: x * 2, backend="nearhint", options=options)
    with pytest.warns(OptionIgnored, match="max_autotune"), torch.no_grad():
        assert compiled(torch.ones(3)).tolist() == [2.0] * 3
    assert len(fake.handles) == 1


@pytest.mark.parametrize(
    ("variable", "value"), [("NEARHINT_ADDRESS", "localhost:80"), ("NEARHINT_DISABLE", "yes")]
)
def test_a_setting_that_means_nothing_is_logged_and_the_session_has_it_as_its_reason(
    monkeypatch: pytest.MonkeyPatch,
    logged: list[str],
    variable: str,
    value: str,
) -> None:
    monkeypatch.setenv(variable, value)
    asked: list[Any] = []

    def keep(*args: Any, **kwargs: Any) -> Any:
        asked.append(session_for(*args, **kwargs))
        return asked[-1]

    monkeypatch.setattr("nearhint_torch.serving.session_for", keep)
    monkeypatch.setattr("nearhint.session._sessions", {})
    compiled = torch.compile(lambda x: x * 2, backend="nearhint", dynamic=True)
    with torch.no_grad():
        assert compiled(torch.ones(3, 4)).sum() == 24
    assert [each.reason for each in asked] == ["setting_invalid"]
    assert repr(value) in " ".join(logged)


def test_why_a_graph_was_left_as_it_is_is_logged(
    session: Install, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    session(lambda program: None)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a graph like no other")

    monkeypatch.setattr("nearhint_torch.backend.capture", fail)
    before = counters.seen().get("original_program_failed", 0)
    with torch.no_grad():
        torch.compile(lambda x: x + 2, backend="nearhint")(torch.ones(3))
    assert counters.seen()["original_program_failed"] == before + 1
    assert "original_program_failed error=RuntimeError: a graph like no other" in " ".join(logged)
