"""Exported programs whose sizes are tied, or lie within lists, dicts and keywords."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

from nearhint.errors import InvalidManifest
from nearhint.warmup.manifest import ModelSpec, Range
from nearhint_torch.errors import InvalidDynamic
from nearhint_torch.exported import load_exported
from nearhint_torch.units import Unit
from nearhint_torch.workload import WarmUp, arguments_at

Tensor = torch.Tensor
ROWS = Dim("rows", min=2, max=40)
CPU = torch.device("cpu")


class Within(torch.nn.Module):
    """Its sizes are those of a list, a dict, an argument in capitals, and one given by name."""

    def forward(
        self,
        past: list[Tensor],
        X: Tensor,  # noqa: N803 - models have such names
        *,
        table: dict[str, Tensor],
        y: Tensor,
    ) -> Tensor:
        return torch.softmax(past[0] + y, -1) + table["b"].sum(0) * past[1] + X.sum()


class Halves(torch.nn.Module):
    """Takes even numbers of rows, and as many of `y` as there are in a half, and one."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(x[::2] + y[1:], -1)


def saved(model: torch.nn.Module, folder: Path, *args: Any, shapes: Any, **kwargs: Any) -> Path:
    path = folder / "model.pt2"
    torch.export.save(torch.export.export(model, args, kwargs, dynamic_shapes=shapes), path)
    return path


@pytest.fixture
def within(tmp_path: Path) -> Path:
    return saved(
        Within(),
        tmp_path,
        [torch.randn(4, 8), torch.ones(8)],
        torch.randn(6),
        y=torch.randn(4, 8),
        table={"b": torch.randn(5, 8), "a": torch.ones(1)},
        shapes={
            "past": [{0: ROWS}, None],
            "X": {0: Dim("xs", max=9)},
            "y": {0: ROWS},
            "table": {"b": {0: Dim("entries", min=3, max=7)}, "a": None},
        },
    )


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    half = Dim("half", min=2, max=20)
    shapes = ({0: 2 * half}, {0: half + 1})
    return saved(Halves(), tmp_path, torch.randn(8, 3), torch.randn(5, 3), shapes=shapes)


def test_sizes_within_arguments_vary_too(within: Path) -> None:
    found = load_exported(within, dynamic={})
    assert found.dynamic == {
        "past[0]": {0: "past_0_0"},
        "X": {0: "x_0"},
        "y": {0: "past_0_0"},
        "table['b']": {0: "table_b_0"},
    }
    assert found.ranges == {"past_0_0": (2, 40), "x_0": (1, 9), "table_b_0": (3, 7)}
    args, kwargs = arguments_at(found, {"past_0_0": 7, "x_0": 2, "table_b_0": 3}, CPU)
    (first, second), capital = args
    assert [tuple(each.shape) for each in (first, second, capital)] == [(7, 8), (8,), (2,)]
    assert tuple(kwargs["y"].shape) == (7, 8)
    assert {key: tuple(each.shape) for key, each in kwargs["table"].items()} == {
        "b": (3, 8),
        "a": (1,),
    }
    assert torch.allclose(found.model(*args, **kwargs), Within()(*args, **kwargs))


def test_what_lies_within_arguments_is_warmed_up_under_its_names(within: Path) -> None:
    unit = Unit(ModelSpec(name="m", exported=within, points=4), "cpu")
    unit.capture(lambda: None)
    assert unit.failed == {}
    names = {
        symbol.user_name
        for wish in unit.wishes()
        for symbol in wish.program.symbols
        if symbol.user_name
    }
    assert names == {"past_0_0", "x_0", "table_b_0"}


def test_sizes_that_are_tied_to_a_named_one_follow_it(within: Path) -> None:
    chosen = {"past_0": {0: "rows"}, "X": {0: "columns"}, "table['b']": {0: "entries"}}
    found = load_exported(within, dynamic=chosen)
    assert found.dynamic.keys() == {"past[0]", "X", "table['b']"}
    args, kwargs = arguments_at(found, {"rows": 9, "columns": 2, "entries": 3}, CPU)
    assert args[0][0].shape[0] == kwargs["y"].shape[0] == 9


def test_a_size_that_is_computed_of_another_follows_it(tmp_path: Path) -> None:
    shapes = ({0: 2 * ROWS}, {0: ROWS})

    class Twice(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.softmax(x[::2] + y, -1)

    path = saved(Twice(), tmp_path, torch.randn(8, 3), torch.randn(4, 3), shapes=shapes)
    found = load_exported(path, dynamic={})
    assert found.dynamic == {"y": {0: "y_0"}}
    assert found.ranges == {"y_0": (2, 40)}
    args, _ = arguments_at(found, {"y_0": 5}, CPU)
    assert [tuple(each.shape) for each in args] == [(10, 3), (5, 3)]


def test_a_size_that_is_only_computed_takes_the_sizes_that_it_can_have(halves: Path) -> None:
    found = load_exported(halves, dynamic={})
    assert found.dynamic == {"x": {0: "x_0"}}
    assert (found.ranges, found.steps) == ({"x_0": (4, 40)}, {"x_0": 2})
    args, _ = arguments_at(found, {"x_0": 10}, CPU)
    assert [tuple(each.shape) for each in args] == [(10, 3), (6, 3)]
    with pytest.raises(InvalidDynamic, match=r"x_0 = 11 is none of 4, 6 \.\. 40"):
        arguments_at(found, {"x_0": 11}, CPU)


def test_a_ladder_has_only_sizes_that_can_be(halves: Path) -> None:
    unit = Unit(ModelSpec(name="m", exported=halves, points=5), "cpu")
    sizes = [point["x_0"] for point in unit.points]
    assert len(set(sizes)) == len(sizes) > 2
    unit.capture(lambda: None)
    assert unit.failed == {}


def test_a_range_without_a_size_that_can_be_is_refused(halves: Path) -> None:
    spec = ModelSpec(name="m", exported=halves, axes={"x_0": Range(6, 7)})
    assert [point["x_0"] for point in Unit(spec, "cpu").points] == [6]
    empty = replace(spec, axes={"x_0": Range(7, 7)})
    with pytest.raises(InvalidManifest, match=r"7 \.\. 7 holds none of .*, 4, 6 \.\. 40"):
        Unit(empty, "cpu")


def test_another_size_may_be_named_than_the_first(halves: Path) -> None:
    found = load_exported(halves, dynamic={"y": {0: "rows"}})
    assert found.ranges == {"rows": (3, 21)}
    assert found.steps == {}
    args, _ = arguments_at(found, {"rows": 4}, CPU)
    assert [tuple(each.shape) for each in args] == [(6, 3), (4, 3)]


def test_tensors_within_arguments_may_be_named() -> None:
    made = WarmUp(
        model=lambda first, *rest, **named: first,
        args=((torch.ones(2), {"key": torch.ones(3)}), torch.ones(4), torch.ones(5)),
        kwargs={"more": torch.ones(6)},
        dynamic={"first[1]['key']": {0: "n"}, "rest[1]": {0: "n"}, "more": {0: "n"}},
    )
    ((kept, within), left, right), kwargs = arguments_at(made, {"n": 7}, CPU)
    sizes = [len(each) for each in (kept, within["key"], left, right, kwargs["more"])]
    assert sizes == [2, 7, 4, 7, 7]


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("rest", r"it is no tensor; rest\[0\] is"),
        ("rest[2]", "no such argument is given"),
        ("first[0]", "no such argument is given"),
        ("named", "no such argument is given"),
    ],
)
def test_what_is_no_tensor_is_refused_by_name(argument: str, problem: str) -> None:
    made = WarmUp(
        model=lambda first, *rest, **named: first,
        args=(torch.ones(2), torch.ones(4)),
        dynamic={argument: {0: "n"}},
    )
    with pytest.raises(InvalidDynamic, match=problem):
        arguments_at(made, {"n": 7}, CPU)
