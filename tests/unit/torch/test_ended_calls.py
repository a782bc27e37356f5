"""Calls that a signal's handler ends, as time limits of servers and of job queues do."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
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

from nearhint_torch.backend import nearhint


class TooLate(Exception):
    """A time limit's, as job queues have them."""


@pytest.fixture(params=[TooLate, TimeoutError, Exception])
def raised(request: pytest.FixtureRequest) -> Iterator[type[Exception]]:
    """What SIGUSR1 raises where it finds the main thread."""

    def end(number: int, frame: object) -> None:
        raise request.param("the time is up")

    before = signal.signal(signal.SIGUSR1, end)
    yield request.param
    signal.signal(signal.SIGUSR1, before)


class Ended(FakeKernel):
    """The time is up while it runs, the first time."""

    def bind(self, dims: tuple[int, ...], *, threads: int) -> Callable[[Sequence[int]], None]:
        bound = super().bind(dims, threads=threads)

        def call(addresses: Sequence[int]) -> None:
            bound(addresses)
            if len(self.calls) == 1:
                signal.raise_signal(signal.SIGUSR1)

        return call


@pytest.mark.parametrize("when", ["selected", "launched"])
def test_what_ends_a_call_is_no_failure_of_its(
    session: Install, raised: type[Exception], when: str
) -> None:
    """Else a limit that finds a kernel at work ends nothing, and the launch counts as failed."""
    kernel = Ended() if when == "launched" else FakeKernel()
    asked: list[tuple[int, ...]] = []

    def choice(dims: tuple[int, ...]) -> Any:
        asked.append(dims)
        if when == "selected" and len(asked) == 1:
            signal.raise_signal(signal.SIGUSR1)
        return chosen(kernel, dims)

    fake = session(lambda program: FakeSnapshot(plan_of(program, one_launch(program)), {0: choice}))
    compiled = torch.no_grad()(torch.compile(twice_plus_one, backend=nearhint, dynamic=True))
    x = torch.randn(3, 4)
    with pytest.raises(raised):
        compiled(x)
    for _ in range(2):
        assert torch.equal(compiled(x), twice_plus_one(x))
    assert len(kernel.calls) == (3 if when == "launched" else 2)
    assert fake.fallbacks == []
