"""The CPU sweep's rows and bars; layouts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import pytest
import torch
from tests.benchmarks import cpu_sweep
from tests.benchmarks.cpu_cases import Case
from tests.benchmarks.cpu_sweep import (
    LayoutRow,
    Row,
    Rows,
    bars_of,
    keep,
    limit_of,
    line_of,
    reasons_of,
    report_of,
    summary_of,
    tiers_of,
    with_other_strides,
)
from tests.benchmarks.cpu_sweep_cases import SWEEPS, TRANSPOSED
from tests.benchmarks.drawn_sizes import drawn, moved_bytes
from tests.benchmarks.gpu_sweep_trained import TRAINED_SWEEPS
from tests.benchmarks.serving import Serving
from tests.benchmarks.sweeps import marked, rows_alone
from torch import fx

from nearhint_torch.report import Report, Served


def row(name: str, eager_ratio: float, inductor_ratio: float, *, tier: int = 2) -> Row:
    return Row(
        name, 100.0, 200.0, 50.0, eager_ratio, inductor_ratio, (tier,), ("winner",), ((64,),),
        is_settled=True, is_anchor=name.startswith("anchor"), max_error=0.0,
    )  # fmt: skip


def layout_row(ratio: float) -> LayoutRow:
    return LayoutRow("transposed add", 10.0, 10.0 * ratio, ratio, 3.0, (2,), ("winner",), 0.0)


def options_of(**given: object) -> argparse.Namespace:
    defaults = {"mode": "a", "functions": "pinned", "draw": 0, "sizes": 1, "pairs": 1, "only": []}
    return argparse.Namespace(**{**defaults, **given})


def test_the_other_strides_hold_the_same_elements() -> None:
    first, second = torch.randn(3, 5), torch.randn(3, 5)
    plain, turned = with_other_strides([first, second], 1)
    assert plain is first
    assert (turned.shape, turned.stride()) == (second.shape, (1, 3))
    assert torch.equal(turned, second)


def test_bars_are_of_means_and_of_the_worst_layout() -> None:
    rows = Rows(cases=[row("a", 1.0, 4.0), row("b", 4.0, 1.0)])
    for ratio in (1.2, 1.7):
        keep(rows, layout_row(ratio))
    assert [(round(bar.figure, 6), bar.passes) for bar in bars_of(rows)] == [
        (2.0, True),
        (2.0, True),
        (1.7, False),
    ]


@pytest.mark.parametrize(
    ("ratios", "counted"),
    [((1.5,), (1.5, 1)), ((1.7, 1.4), (1.4, 2)), ((1.9, 1.7, 1.8), (1.8, 3))],
)
def test_a_layout_that_misses_its_bar_is_timed_again_twice_at_most(
    monkeypatch: pytest.MonkeyPatch, ratios: tuple[float, ...], counted: tuple[float, int]
) -> None:
    left = list(ratios)

    def timed(case: Case, *args: object, attempts: int, **options: object) -> LayoutRow:
        del case, args, options
        return replace(layout_row(left.pop(0)), attempts=attempts)

    monkeypatch.setattr(cpu_sweep, "served_layouts", lambda *args: args)
    monkeypatch.setattr(cpu_sweep, "layout_row", timed)
    first, *_ = TRANSPOSED
    only = replace(first, sweep=replace(first.sweep, sizes=first.sweep.sizes[:1]))
    rows = list(cpu_sweep.measure_layouts(only, cast("Serving", None), 3, "a"))
    assert [(each.ratio, each.attempts) for each in rows] == [counted]
    assert not left


def test_the_summary_names_the_least_and_what_is_not_tuned() -> None:
    rows = Rows(cases=[row("a", 0.9, 1.5), row("anchor b", 2.0, 1.1, tier=0)])
    summary = summary_of(rows)
    assert summary["eager_least"] == {"a": 0.9}
    assert summary["inductor_least"] == {"anchor b": 1.1}
    assert summary["not_at_t2"] == ["anchor b"]
    assert round(summary["anchors_eager_geomean"], 6) == 2.0


def test_a_report_without_rows_is_json_all_the_same() -> None:
    assert json.loads(json.dumps(report_of({"pairs": 3}, Rows())))["rows"] == []


def test_what_served_is_said_for_each_launch_or_for_none() -> None:
    served = Report(
        {}, (1, 0, 1), (Served("k", 2, (64,), "winner"), Served("l", 0, (), "no_table"))
    )
    assert tiers_of(served) == (2, 0)
    assert reasons_of(served) == ("winner", "no_table")
    missing = Report({}, (0, 0, 0), (), "no_plan")
    assert (tiers_of(missing), reasons_of(missing)) == ((0,), ("no_plan",))
    assert reasons_of(Report({}, (0, 0, 0), ())) == ("nothing is lowered",)


def test_lines_say_times_ratios_tiers_and_reasons() -> None:
    assert "2.00x eager" in line_of(row("a", 2.0, 4.0))
    assert "T2 winner" in line_of(layout_row(1.5))
    assert "ratio  1.50" in line_of(layout_row(1.5))


def test_other_sets_are_measured_at_sizes_that_a_cpu_can_move() -> None:
    options = options_of(functions="trained", draw=1, only=["softmax"])
    titles = [title for title, _ in cpu_sweep.jobs_of(options)]
    assert titles == ["softmax_of_near bf16", "softmax_by_buckets bf16"]
    for sweep in TRAINED_SWEEPS:
        limit = limit_of(sweep)
        found = drawn(sweep, 1, limit=limit)
        assert found.sizes != sweep.sizes
        assert max(moved_bytes(sweep, sizes) for sizes in found.sizes) <= limit


def test_only_the_pinned_functions_have_layouts() -> None:
    options = options_of(functions="pinned")
    titles = [title for title, _ in cpu_sweep.jobs_of(options)]
    assert titles[: len(TRANSPOSED)] == [f"transposed {each.sweep.title}" for each in TRANSPOSED]
    assert titles[len(TRANSPOSED) :] == [sweep.title for sweep in SWEEPS]


def test_where_the_rows_alone_are_dynamic_columns_are_captured_apart() -> None:
    pinned = options_of(mode="b", only=["layer_norm f32"])
    assert [title for title, _ in cpu_sweep.jobs_of(pinned)] == [
        "layer_norm f32 [1024]",
        "layer_norm f32 [1009]",
        "layer_norm f32 [383]",
        "layer_norm f32 [33]",
    ]
    of_a_set = options_of(mode="b", functions="trained", only=["softmax_of_near bf16"], sizes=2)
    titles = [title for title, _ in cpu_sweep.jobs_of(of_a_set)]
    listed = next(each for each in TRAINED_SWEEPS if each.title == "softmax_of_near bf16")
    kinds = {"softmax_of_near bf16 " + each.kind for each in rows_alone(listed)}
    assert len(titles) == 2
    assert {*titles} <= kinds


def test_layouts_have_columns_of_their_own_where_the_rows_alone_are_dynamic() -> None:
    titles = [
        title for title, _ in cpu_sweep.jobs_of(options_of(mode="b", only=["transposed add"]))
    ]
    assert titles[:2] == ["transposed add f32 [2003]", "transposed add f32 [509]"]


def test_columns_are_numbers_of_a_capture_of_which_the_rows_alone_are_dynamic() -> None:
    sweep = SWEEPS[1]
    counts: list[int] = []

    def backend(graph: fx.GraphModule, inputs: Sequence[object]) -> Callable[..., object]:
        counts.append(sum(not isinstance(each, torch.Tensor) for each in inputs))
        forward: Callable[..., object] = graph.forward
        return forward

    for mode in ("a", "b"):
        torch._dynamo.reset()
        compiled = cpu_sweep.compiled(sweep, cast("str", backend), mode)
        compiled(*marked(sweep, sweep.case((48, 64)).arguments(), mode))
    assert counts == [2, 1]


def test_a_command_says_which_dimensions_are_dynamic() -> None:
    command = "python -m tests.benchmarks.cpu_sweep"
    assert cpu_sweep.command_of(options_of()) == command
    assert cpu_sweep.command_of(options_of(mode="b")) == f"{command} --mode b"
    given = options_of(mode="b", functions="mixed", draw=3)
    assert cpu_sweep.command_of(given) == f"{command} --mode b --functions mixed --draw 3"
