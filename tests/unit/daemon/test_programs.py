"""What a compile worker answers for a Program is taken only where its parts agree."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.daemon_in_process import kernels_in, running
from tests.integration.fake_workers import chain, lowered

from nearhint_daemon import programs
from nearhint_daemon.errors import WorkerRefused
from nearhint_daemon.programs import _agreeing
from nearhint_proto.v1 import worker_pb2 as pb

PROGRAM = chain(2)


def reverse_fallbacks(message: pb.Lowered) -> None:
    first, second = message.fallbacks
    kept = [pb.Lowered(fallbacks=[each]).fallbacks[0] for each in (second, first)]
    del message.fallbacks[:]
    message.fallbacks.extend(kept)


def drop_a_fallback(message: pb.Lowered) -> None:
    del message.fallbacks[-1]


def drop_a_kernel(message: pb.Lowered) -> None:
    del message.kernels[-1]


def take_another_program(message: pb.Lowered) -> None:
    message.plan.CopyFrom(lowered(chain(2, high=2048), "cpu").plan)


def spoil_a_step(message: pb.Lowered) -> None:
    message.plan.steps[0].launch.kernel = "no hash"


def test_launches_come_with_their_fallbacks() -> None:
    launches, fallbacks = _agreeing(lowered(PROGRAM, "cpu"), PROGRAM.id)
    assert [number for number, _ in launches] == [0, 1]
    assert [step.fallback for _, step in launches] == [each.id for each in fallbacks]


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (reverse_fallbacks, "contradicts itself"),
        (drop_a_fallback, "contradicts itself"),
        (drop_a_kernel, "contradicts itself"),
        (take_another_program, "contradicts itself"),
        (spoil_a_step, "kernel"),
    ],
)
def test_what_contradicts_itself_is_refused(
    spoil: Callable[[pb.Lowered], None], problem: str
) -> None:
    message = lowered(PROGRAM, "cpu")
    spoil(message)
    with pytest.raises(WorkerRefused, match=problem) as caught:
        _agreeing(message, PROGRAM.id)
    assert caught.value.worker_code == "LOWERING_INVALID"


def test_what_a_large_program_became_is_read_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of hundreds of Kernels it takes tenths of a second, in which others were not answered."""
    threads: list[int] = []
    agreeing = programs._agreeing

    def reading(*args: Any) -> Any:
        threads.append(threading.get_ident())
        return agreeing(*args)

    monkeypatch.setattr(programs, "_agreeing", reading)

    async def scenario() -> None:
        async with running(tmp_path) as daemon:
            registered = await daemon.client.register(PROGRAM)
            assert len(kernels_in(registered.plan)) == 2
            (thread,) = threads
            assert thread != threading.get_ident()

    asyncio.run(scenario())
