"""What limits transposed reads: which points, movers that move, and ratios."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.benchmarks import cpu_limits
from tests.benchmarks.cpu_limits import COPY, MOVER, OURS, SERVED, STRAIGHT, STRAIGHT_SERVED, TORCH
from tests.benchmarks.cpu_sweep_cases import TRANSPOSED

from nearhint.launchers.detect import cpu_device

US = {STRAIGHT_SERVED: 120.0, SERVED: 180.0, STRAIGHT: 100.0, OURS: 150.0, TORCH: 1000.0}


def row(name: str, ratio: float) -> dict[str, object]:
    return {"name": name, "ratio": ratio}


def test_points_over_the_bar_are_found_in_a_report() -> None:
    report = {"transposed": [row("a", 1.6), row("b", 1.61), row("c", 0.9)]}
    assert cpu_limits.short_points(report) == {"b": 1.61}


def test_sweeps_keep_the_sizes_that_are_wanted() -> None:
    wanted = {"transposed copy bf16 509x6007": 1.64, "transposed add f16 2048x2048": 1.7}
    found = cpu_limits.chosen(TRANSPOSED, wanted, [])
    assert [(each.sweep.title, each.sweep.sizes) for each in found] == [
        ("copy bf16", ((509, 6007),)),
        ("add f16", ((2048, 2048),)),
    ]
    assert [each.sweep.title for each in cpu_limits.chosen(TRANSPOSED, wanted, ["f16 2"])] == [
        "add f16"
    ]
    everything = cpu_limits.chosen(TRANSPOSED, None, ["softmax"])
    assert sum(len(each.sweep.sizes) for each in everything) == 8


def test_ratios_are_over_what_has_as_much_around_it() -> None:
    assert cpu_limits.ratios_of(US) == {SERVED: 1.5, OURS: 1.5, TORCH: 10.0}


@pytest.mark.parametrize(
    ("mover", "limit", "verdict"),
    [(120.0, 1.4, "within reach"), (150.0, 1.7, "out of reach"), (70.0, 1.0, "within reach")],
)
def test_the_limit_is_the_price_of_the_order_on_top(
    mover: float, limit: float, verdict: str
) -> None:
    """A function that computes has time that the order does not take from it."""
    ratios = cpu_limits.ratios_of({**US, COPY: 80.0, MOVER: mover})
    assert (ratios[MOVER], ratios["limit"]) == (mover / 100, limit)
    assert verdict in cpu_limits.line_of({"name": "x", "ratios": ratios})


def test_what_has_no_mover_has_no_verdict() -> None:
    line = cpu_limits.line_of({"name": "x", "ratios": cpu_limits.ratios_of(US)})
    assert "reach" not in line


@pytest.mark.skipif(
    not set(cpu_limits.NEEDS) <= set(cpu_device().features), reason="movers are for AVX-512"
)
@pytest.mark.parametrize("way", [cpu_limits.WAYS[0], cpu_limits.WAYS[-2], cpu_limits.WAYS[-1]])
def test_movers_move(way: tuple[str, ...], tmp_path: Path) -> None:
    """Blocks of 32 x 32, of which the last are moved back, and tiles of several."""
    for shape in ((32, 32), (33, 70), (600, 161)):
        other, straight = torch.randint(-30000, 30000, (2, *shape), dtype=torch.int16)
        turned = other.t().contiguous().t()
        assert torch.equal(cpu_limits.mover(way, [turned, turned], tmp_path)(), other)
        both = cpu_limits.mover((*way, "-DADDED"), [straight, turned], tmp_path)
        assert torch.equal(both(), straight ^ other)


def test_there_are_no_movers_of_words_or_of_short_sides(tmp_path: Path) -> None:
    assert not cpu_limits.movers(torch.ones(64, 64), None, tmp_path)
    assert not cpu_limits.movers(torch.ones(31, 64, dtype=torch.bfloat16), None, tmp_path)


def test_a_copy_moves_as_many_bytes() -> None:
    first, second = torch.ones(2, 3, dtype=torch.bfloat16), torch.zeros(2, 3, dtype=torch.bfloat16)
    assert torch.equal(cpu_limits.copied([first])(), first)
    assert torch.equal(cpu_limits.copied([first, second])().view(torch.bfloat16), first)
