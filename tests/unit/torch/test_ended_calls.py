"""Calls and captures that a signal's handler ends, as time limits of job queues do."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from tests.unit.torch.conftest import Install
from tests.unit.torch.fake_session import (
    FakeKernel,
    FakeSnapshot,
    chosen,
    one_launch,
    plan_of,
    twice_plus_one,
)

from nearhint_torch import backend
from nearhint_torch.capture import capture as real_capture
from nearhint_torch.errors import is_from_outside


class TooLate(Exception):
    """A time limit's, as job queues have them."""


class Limit:
    """A handler of signals; a method of it is one, too."""

    def __init__(self, raised: type[Exception] = TooLate) -> None:
        self.raised = raised

    def end(self, number: int, frame: object) -> None:
        raise self.raised("the time is up")

    __call__ = end


@pytest.fixture(
    params=[
        Limit(),
        Limit(TimeoutError).end,
        Limit(RuntimeError).end,
        partial(Limit.end, Limit()),
    ],
    ids=["object", "method", "built-in", "partial"],
)
def limit(request: pytest.FixtureRequest) -> Iterator[None]:
    """What SIGUSR1 calls where it finds the main thread."""
    before = signal.signal(signal.SIGUSR1, request.param)
    yield
    signal.signal(signal.SIGUSR1, before)


ENDS = pytest.raises(Exception, match="the time is up")


class Ended(FakeKernel):
    """The time is up while it runs, the first time."""

    def bind(self, dims: tuple[int, ...], *, threads: int) -> Callable[[Sequence[int]], None]:
        bound = super().bind(dims, threads=threads)

        def call(addresses: Sequence[int]) -> None:
            bound(addresses)
            if len(self.calls) == 1:
                signal.raise_signal(signal.SIGUSR1)

        return call


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("when", ["selected", "launched"])
def test_what_ends_a_call_is_no_failure_of_its(session: Install, when: str) -> None:
    """Else a limit that finds a kernel at work ends nothing, and the launch counts as failed."""
    kernel = Ended() if when == "launched" else FakeKernel()
    asked: list[tuple[int, ...]] = []

    def choice(dims: tuple[int, ...]) -> Any:
        asked.append(dims)
        if when == "selected" and len(asked) == 1:
            signal.raise_signal(signal.SIGUSR1)
        return chosen(kernel, dims)

    fake = session(lambda program: FakeSnapshot(plan_of(program, one_launch(program)), {0: choice}))
    compiled = torch.no_grad()(
        torch.compile(twice_plus_one, backend=backend.nearhint, dynamic=True)
    )
    x = torch.randn(3, 4)
    with ENDS:
        compiled(x)
    for _ in range(2):
        assert torch.equal(compiled(x), twice_plus_one(x))
    assert len(kernel.calls) == (3 if when == "launched" else 2)
    assert fake.fallbacks == []


@pytest.mark.usefixtures("limit")
def test_what_ends_a_capture_does_not_end_all_that_would_follow(
    session: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a process whose first call takes too long runs the original ops as long as it lives."""
    captures: list[int] = []

    def capture(*args: Any, **settings: Any) -> Any:
        captures.append(len(captures))
        if len(captures) == 1:
            signal.raise_signal(signal.SIGUSR1)
        return real_capture(*args, **settings)

    monkeypatch.setattr(backend, "capture", capture)
    kernel = FakeKernel()
    session(
        lambda program: FakeSnapshot(
            plan_of(program, one_launch(program)), {0: lambda dims: chosen(kernel, dims)}
        )
    )
    compiled = torch.no_grad()(
        torch.compile(twice_plus_one, backend=backend.nearhint, dynamic=True)
    )
    x = torch.randn(3, 4)
    with ENDS:
        compiled(x)
    assert torch.equal(compiled(x), twice_plus_one(x))
    assert len(kernel.calls) == 1


def test_an_error_in_which_no_signal_had_a_part_is_no_handlers() -> None:
    """Also where there are handlers, and where one has ended something before."""

    def fail_after_the_limit() -> None:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except TooLate:
            signal.Signals(0)

    before = signal.signal(signal.SIGUSR1, Limit())
    try:
        with pytest.raises(ValueError, match="0 is not a valid Signals") as failed:
            fail_after_the_limit()
        assert isinstance(failed.value.__context__, TooLate)
        assert is_from_outside(failed.value.__context__)
        assert not is_from_outside(failed.value)
    finally:
        signal.signal(signal.SIGUSR1, before)
