"""Rows that programs share in turns: who does what, who waits for whom, what is launched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.compiler.test_online import TARGET, kernel_of

from nearhint_compiler.codegen import generate
from nearhint_compiler.codegen.triton.stages import stages_of, turns
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_daemon.workers import cubin
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CudaLaunch, StageArgument, WorkspaceArgument
from nearhint_rules.guard import AtMost

PROMISES = "index=32 aligned=1 divisible=2"
TURNS = f"cuda.split x=2 r=1024 splits=5 warps=4 {PROMISES} lag=3"
STAGES = {"row_max_f16": 2, "softmax_f32": 2, "row_cumsum_f32": 2, "normalised_cumsum_bf16": 4}


def drawn(name: str, *, blocks: int, splits: int, lag: int) -> Iterator[tuple[int, int, int]]:
    """Turn, block of rows and chunk of each program, in the order in which they start."""
    lines = turns(kernel_of(name), blocks="blocks", splits=splits, lag=lag, wide=False)
    stages = stages_of(kernel_of(name))
    for ticket in range((blocks + (stages - 1) * lag) * stages * splits):
        tl = SimpleNamespace(
            atomic_add=lambda *_, ticket=ticket, **__: ticket,
            where=lambda condition, left, right: left if condition else right,
        )
        # Whatever its number is: the first to start has the first ticket.
        values: dict[str, Any] = {
            "tl": tl,
            "stage": 1,
            "pid": 10**6 - ticket,
            "w0": 0,
            "blocks": blocks,
        }
        exec("\n".join(lines), values)  # noqa: S102 - the emitter's own lines
        yield int(values["turn"]), int(values["pid"]), int(values["chunk"])


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize(("blocks", "splits", "lag"), [(1, 2, 1), (7, 3, 2), (4, 5, 9), (30, 2, 1)])
def test_every_chunk_has_each_turn_once_behind_all_that_it_waits_for(
    name: str, blocks: int, splits: int, lag: int
) -> None:
    stages = stages_of(kernel_of(name))
    assert stages == STAGES[name]
    order = [one for one in drawn(name, blocks=blocks, splits=splits, lag=lag) if one[0] >= 0]
    assert sorted(order) == list(product(range(stages), range(blocks), range(splits)))
    place = {one: number for number, one in enumerate(order)}
    for turn, block, chunk in order:
        before = [place[turn - 1, block, other] for other in range(splits)] if turn else []
        assert all(number < place[turn, block, chunk] for number in before)


def test_turns_of_a_row_are_as_far_apart_as_the_lag_says() -> None:
    order = list(drawn("softmax_f32", blocks=50, splits=4, lag=6))
    place = {one: number for number, one in enumerate(order)}
    assert {place[1, block, 0] - place[0, block, 0] for block in range(50)} == {6 * 8 + 4}


def test_grid_launches_and_workspace_follow_the_rows_and_the_lag() -> None:
    generated = generate(kernel_of("softmax_f32"), parse_schedule(TURNS), TARGET)
    launch, sizes = generated.launch, {"k0": 7, "k1": 8000}
    assert isinstance(launch, CudaLaunch)
    # The first launch zeroes four counts and the next ticket, the second does all else.
    assert launch.stages == 2
    assert [ex.evaluate(size, sizes) for size in launch.grid] == [(4 + 3) * 2 * 5, 1, 1]
    given = [each for each in launch.arguments if isinstance(each, WorkspaceArgument)]
    assert [ex.evaluate(each.offset, sizes) for each in given] == [0, 4 * 48, 8 * 48]
    assert ex.evaluate(launch.workspace_bytes, sizes) == 12 * 48  # 35 of each, whole 16s
    assert launch.arguments[-1] == StageArgument()
    assert AtMost(launch.grid[0], 2**31 - 1) in generated.guard.facts


def test_what_waits_is_told_by_what_comes_after_a_barrier() -> None:
    source = generate(kernel_of("softmax_f32"), parse_schedule(TURNS), TARGET).source
    first, second = source.split("if turn == 1:")
    assert re.search(
        r'w2 \+ .*\n +tl\.debug_barrier\(\)\n +tl\.atomic_add\(w0 \+ pid, 1, sem="release"\)', first
    )
    assert second.index('sem="acquire"') < second.index("tl.load(w1")
    assert "tl.store(a" not in first
    assert second.count("tl.load(a0") == 1


@pytest.mark.parametrize("lag", [0, 5000])
def test_turns_that_never_or_hardly_come_are_refused(lag: int) -> None:
    with pytest.raises(InvalidSchedule, match="rows apart"):
        generate(kernel_of("softmax_f32"), parse_schedule(f"{TURNS[:-1]}{lag}"), TARGET)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("softmax_f32", f"cuda.split x=1 r=8192 splits=16 warps=8 {PROMISES} lag=16 group=4"),
        ("layer_norm_dynamic_f32", f"cuda.split x=1 r=4096 splits=9 warps=8 {PROMISES} lag=8"),
        ("row_cumsum_f32", f"cuda.split x=1 r=4096 splits=32 warps=4 {PROMISES} lag=4"),
    ],
)
def test_a_waiting_program_reads_its_count_with_one_thread_and_acquires(
    name: str, schedule: str, tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    generated = generate(kernel_of(name), parse_schedule(schedule), TARGET)
    ptx = str(cubin._compile(generated, 90, tmp_path).asm["ptx"])
    # Reading instead of adding nothing: those who wait do not keep those from counting who came.
    assert len(re.findall(r"@%p\d+ ld\.global\.gpu\.acquire\.b32", ptx)) == 1
    assert len(re.findall(r"@%p\d+ atom\.global\.gpu\.relaxed\.add", ptx)) == 1
    assert len(re.findall(r"@%p\d+ atom\.global\.gpu\.release\.add", ptx)) == 1
    assert len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)) >= 2
    assert len(re.findall(r"st\.global\S*\.v4\.b32", ptx)) >= 1
