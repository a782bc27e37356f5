"""Units of a warm-up: what is captured of a model at its points, and exported programs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import nearhint
from nearhint.errors import FileMissing, InvalidManifest, InvalidSetting
from nearhint.warmup.manifest import Axis, ModelSpec, Range, read_manifest
from nearhint.warmup.survey import Goal, Survey, Surveyed
from nearhint_torch import units
from nearhint_torch.adapter import captures_limit
from nearhint_torch.collecting import Collector
from nearhint_torch.errors import InvalidDynamic, InvalidEntry
from nearhint_torch.exported import load_exported
from nearhint_torch.kernel import as_served
from nearhint_torch.report import Report as CallReport
from nearhint_torch.report import Served
from nearhint_torch.runner import watch
from nearhint_torch.units import NOT_CALLED, Unit
from nearhint_torch.workload import INDEX_BYTES, WarmUp, arguments_at, bytes_at

Tensor = torch.Tensor

ENTRY = """
import torch
from nearhint_torch import WarmUp


def doubled(x):
    if x.shape[0] == 13:
        raise RuntimeError("thirteen")
    return x * 2


def warm_up():
    return WarmUp(model=doubled, args=(torch.ones(2, 3),), dynamic={"x": {0: "rows"}})
"""


SIZES: dict[str, Axis] = dict.fromkeys(("a", "b", "c", "d"), (1, 3))
"""Sixteen points that torch captures one by one: sizes of 1 are captured on their own."""

MANY = """
import torch
from nearhint_torch import WarmUp


def warm_up():
    return WarmUp(
        model=lambda x: x * 2,
        args=(torch.ones(2, 2, 2, 2),),
        dynamic={"x": {0: "a", 1: "b", 2: "c", 3: "d"}},
    )
"""


class Scores(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(x + y, -1)


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "unit_entry.py").write_text(ENTRY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "unit_entry", raising=False)
    return "unit_entry:warm_up"


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    path = tmp_path / "scores.pt2"
    rows = torch.export.Dim("rows", min=2, max=40)
    shapes = ({0: rows}, {0: rows})
    examples = (torch.randn(4, 8), torch.randn(4, 8))
    torch.export.save(torch.export.export(Scores(), examples, dynamic_shapes=shapes), path)
    return path


def test_a_unit_captures_each_point_once_without_a_daemon(entry: str) -> None:
    unit = Unit(ModelSpec(name="m", entry=entry, axes={"rows": (1, 4, 9)}), "cpu")
    calls: list[None] = []
    unit.capture(lambda: calls.append(None))
    assert len(calls) == 3
    assert unit.failed == {}
    one, many = unit.wishes()  # torch captures a single row on its own
    assert one.sizes == ((3,),)
    assert [sorted(sizes) for sizes in many.sizes] == [[3, 4], [3, 9]]


KERNELS = """
import nearhint
import torch
from nearhint_torch import WarmUp


def doubled(x, y):
    return x * 2 + y


def function():
    kernel = nearhint.kernel(doubled, dynamic={"x": {0: range(1, 65)}})
    return WarmUp(
        model=kernel, args=(torch.ones(2, 3), torch.ones(3)), dynamic={"x": {0: "rows"}}
    )


def module():
    kernel = nearhint.kernel(torch.nn.LayerNorm(3), dynamic={"input": {0: range(1, 65)}})
    return WarmUp(model=kernel, args=(torch.ones(2, 3),), dynamic={"input": {0: "rows"}})
"""


@pytest.mark.parametrize("made", ["function", "module"])
def test_a_kernel_is_captured_as_a_server_captures_it(
    tmp_path: Path, entry: str, made: str
) -> None:
    """Its own dimensions alone are symbolic, within their ranges, and what is timed beside it is
    the function that it was made of.
    """
    (tmp_path / "unit_entry.py").write_text(KERNELS)
    spec = ModelSpec(name="m", entry=f"unit_entry:{made}", axes={"rows": (1, 4, 9)})
    unit = Unit(spec, "cpu")
    unit.capture(lambda: None)
    assert unit.failed == {}
    one, many = unit.wishes()
    assert (one.sizes, many.sizes) == (((),), ((4,), (9,)))
    (rows,) = many.program.symbols
    assert (rows.user_name, rows.high) == ("rows", 64)
    with watch() as reports, torch.inference_mode():
        unit._call(1, unit._load().warm_up.model)
    assert reports == []


def test_any_object_that_is_called_may_be_a_model() -> None:
    class Doubling:
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, x: Tensor) -> Tensor:
            return x * 2

    model = Doubling()
    original, _ = as_served(model)
    assert original is model


def test_all_points_are_captured_however_often_torch_would_capture_the_model(
    tmp_path: Path, entry: str
) -> None:
    (tmp_path / "unit_entry.py").write_text(MANY)
    unit = Unit(ModelSpec(name="m", entry=entry, axes=SIZES), "cpu")
    unit.capture(lambda: None)
    assert unit.failed == {}
    assert len(unit.wishes()) == len(unit.points) == 16


def test_sizes_that_are_equal_by_chance_are_tuned_for_a_server_that_met_others_first(
    tmp_path: Path, entry: str
) -> None:
    (tmp_path / "unit_entry.py").write_text(MANY)
    axes: dict[str, Axis] = {"a": (2,), "b": (3,), "c": (8,), "d": (8, 16)}
    unit = Unit(ModelSpec(name="m", entry=entry, axes=axes), "cpu")
    unit.capture(lambda: None)
    equal, any_size = unit.wishes()
    assert equal.sizes == ((2, 3, 8),)
    assert sorted(any_size.sizes) == [(2, 3, 8, 8), (2, 3, 8, 16)]


def test_points_that_a_server_would_run_as_written_say_so(
    tmp_path: Path, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARHINT_ADDRESS", f"unix:{tmp_path / 'none.sock'}")
    (tmp_path / "unit_entry.py").write_text(MANY)
    unit = Unit(ModelSpec(name="m", entry=entry, axes=SIZES), "cpu")
    unit.capture(lambda: None)
    monkeypatch.setattr(units, "settle", lambda **_: None)
    gains = unit.gains(deadline_s=time.monotonic() + 60, on_point=lambda: None)
    told = [number for number, gain in enumerate(gains) if "as it was written" in gain.problem]
    assert told == list(range(captures_limit(), 16))


def test_a_point_that_the_model_refuses_is_kept_with_its_reason(entry: str) -> None:
    unit = Unit(ModelSpec(name="m", entry=entry, axes={"rows": (4, 13)}), "cpu")
    unit.capture(lambda: None)
    assert list(unit.failed) == [1]
    assert "thirteen" in unit.failed[1]
    (wish,) = unit.wishes()
    assert [sorted(sizes) for sizes in wish.sizes] == [[3, 4]]


def test_a_point_whose_arguments_take_too_much_memory_is_not_called(
    entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a range up to 10^12 fills the memory, for hours where there is swap."""
    monkeypatch.setattr(units, "free_bytes", lambda device: 8 * 1000 * (12 + INDEX_BYTES))
    unit = Unit(ModelSpec(name="m", entry=entry, axes={"rows": (1000, 1001, 10**12)}), "cpu")
    unit.capture(lambda: None)
    assert set(unit.failed) == {1, 2}
    assert "PointTooLarge: its arguments take 28028 bytes" in unit.failed[1]
    monkeypatch.setattr(units, "free_bytes", lambda device: None)
    unit = Unit(ModelSpec(name="m", entry=entry, axes={"rows": (1001,)}), "cpu")
    unit.capture(lambda: None)
    assert not unit.failed


def test_no_point_but_the_first_is_called_once_the_budget_has_ended(entry: str) -> None:
    unit = Unit(ModelSpec(name="m", entry=entry, axes={"rows": (4, 5, 9)}), "cpu")
    done: list[None] = []
    unit.capture(lambda: done.append(None), until_s=0.0)
    assert unit.failed == dict.fromkeys((1, 2), NOT_CALLED)
    assert len(done) == 3
    (wish,) = unit.wishes()
    assert [sorted(sizes) for sizes in wish.sizes] == [[3, 4]]


def test_bytes_of_arguments_count_what_varies_and_is_stored_once() -> None:
    x, y = torch.ones(2, 1, dtype=torch.float16).expand(2, 3), torch.ones(5)
    given = WarmUp(model=lambda x, y: x, args=(x, y), dynamic={"x": {0: "rows", 1: "columns"}})
    assert bytes_at(given, {"rows": 10, "columns": 7}) == 10 * 2 + 10 * INDEX_BYTES


@pytest.mark.parametrize(
    ("axes", "problem"),
    [
        ({"rosw": (4,)}, "no axis of the model; did you mean rows?"),
        ({"rows": (4,), "depth": (1,)}, "no axis of the model; its axes: rows"),
    ],
)
def test_sizes_of_another_axis_are_refused_before_anything_runs(
    entry: str, axes: dict[str, tuple[int, ...]], problem: str
) -> None:
    with pytest.raises(InvalidDynamic, match=re.escape(problem)):
        Unit(ModelSpec(name="m", entry=entry, axes=axes), "cpu")
    with pytest.raises(InvalidDynamic, match=re.escape(problem)):
        Unit(ModelSpec(name="m", entry=entry, listed=(dict.fromkeys(axes, 4),)), "cpu")


def test_an_axis_without_sizes_is_refused_by_name(exported: Path) -> None:
    names = {"x": {0: "rows", 1: "columns"}, "y": {0: "rows", 1: "columns"}}
    spec = ModelSpec(name="m", exported=exported, dynamic=names, axes={"rows": (4,)})
    with pytest.raises(InvalidDynamic, match=r"dynamic\['columns'\]: no sizes are given"):
        Unit(spec, "cpu")


def test_axes_without_range_need_sizes(entry: str) -> None:
    with pytest.raises(InvalidDynamic, match=r"dynamic\['rows'\]: no sizes are given"):
        Unit(ModelSpec(name="m", entry=entry), "cpu")


def test_a_device_that_is_not_there_is_refused_by_name(entry: str) -> None:
    with pytest.raises(InvalidSetting, match=r"on this machine .*, got 'cuda:99'"):
        Unit(ModelSpec(name="m", entry=entry), "cuda:99")


def test_what_is_timed_with_the_original_ops_says_why(
    entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARHINT_DISABLE", "1")
    served = [
        *(Served("k", 0, (), reason) for reason in ("no_table", "no_variant", "no_table")),
        Served("k", 2, (8,), "winner"),
    ]
    call = CallReport({"s0": 4}, (3, 0, 1), tuple(served))
    monkeypatch.setattr(units, "watch", lambda: nullcontext([call]))
    unit = Unit(ModelSpec(name="m", entry=entry, axes={"rows": (4, 13)}), "cpu")
    unit.capture(lambda: None)
    timed, failed = unit.gains(deadline_s=time.monotonic() + 60, on_point=lambda: None)
    assert timed.original_ms > 0
    assert (timed.tiers, timed.problem) == ((3, 0, 1), "no_table, no_variant")
    assert (failed.original_ms, failed.problem) == (0, "RuntimeError: thirteen")


def test_a_model_that_exits_when_it_is_called_fails_at_that_point(
    tmp_path: Path, entry: str
) -> None:
    text = ENTRY.replace('raise RuntimeError("thirteen")', "raise SystemExit(0)")
    (tmp_path / "unit_entry.py").write_text(text)
    unit = Unit(ModelSpec(name="m", entry=entry, axes={"rows": (4, 13)}), "cpu")
    unit.capture(lambda: None)
    assert unit.failed == {1: "SystemExit: 0"}


@pytest.mark.parametrize("calls", [0, 1])
def test_a_point_that_fails_when_it_is_timed_is_kept_with_its_reason(
    entry: str, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    unit = Unit(ModelSpec(name="m", entry=entry, axes={"rows": (4, 5)}), "cpu")
    unit.capture(lambda: None)
    left = [calls]

    def compile_model(model: Callable[..., Tensor], **_: object) -> Callable[..., Tensor]:
        def call(x: Tensor) -> Tensor:
            if x.shape[0] == 5 and not left[0]:
                raise MemoryError("full")
            left[0] -= x.shape[0] == 5
            return model(x)

        return call

    monkeypatch.setattr(torch, "compile", compile_model)
    monkeypatch.setattr(units, "settle", lambda **_: None)
    timed, failed = unit.gains(deadline_s=time.monotonic() + 60, on_point=lambda: None)
    assert timed.original_ms > 0
    assert (failed.original_ms, failed.problem) == (0, "MemoryError: full")
    assert unit.report(Survey(())).failed == ("rows=5: MemoryError: full",)


def test_a_model_that_cannot_be_loaded_again_to_be_timed_says_why(
    entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = Unit(ModelSpec(name="m", entry=entry, axes={"rows": (4, 13)}), "cpu")
    unit.capture(lambda: None)
    unit.release()

    def full() -> WarmUp:
        raise MemoryError("full")

    monkeypatch.setattr(sys.modules["unit_entry"], "warm_up", full)
    gains = unit.gains(deadline_s=time.monotonic() + 60, on_point=lambda: None)
    assert [gain.problem for gain in gains] == ["MemoryError: full", "RuntimeError: thirteen"]


def test_a_report_has_the_points_that_failed(entry: str) -> None:
    unit = Unit(ModelSpec(name="m", entry=entry, axes={"rows": (4, 13)}), "cpu")
    unit.capture(lambda: None)
    report = unit.report(Survey(()))
    assert report.failed == ("rows=13: RuntimeError: thirteen",)
    assert list(report.problems()) == ["model m on cpu at rows=13: RuntimeError: thirteen"]


def test_a_report_says_why_one_of_a_models_programs_has_no_plan(entry: str) -> None:
    unit = Unit(ModelSpec(name="m", entry=entry, axes={"rows": (1, 4, 9)}), "cpu")
    unit.capture(lambda: None)
    one, many = unit.wishes()
    planned = Surveyed(one, "q", "t", {(3,): (Goal("t", "k", "f", (4,)),)})
    without = Surveyed(many, "", "", {}, "why")
    # Of what runs as captured for good nothing is to be said where the other has Kernels.
    empty = Surveyed(many, "p", "t", {(3, 4): ()}, "no part of the Program can be lowered")
    for other, problem in ((without, "why"), (empty, "")):
        report = unit.report(Survey((planned, other)))
        assert (report.problem, report.kernels) == (problem, 1)


def test_an_exported_program_brings_examples_names_and_ranges(exported: Path) -> None:
    found = load_exported(exported, dynamic={})
    assert found.dynamic == {"x": {0: "x_0"}, "y": {0: "x_0"}}
    assert found.ranges == {"x_0": (2, 40)}
    args, kwargs = arguments_at(found, {"x_0": 7}, torch.device("cpu"))
    assert [tuple(value.shape) for value in args] == [(7, 8), (7, 8)]
    assert kwargs == {}
    assert torch.allclose(found.model(*args), Scores()(*args))


def test_a_server_that_compiles_an_exported_program_has_what_it_was_warmed_up_for(
    exported: Path,
) -> None:
    unit = Unit(ModelSpec(name="m", exported=exported, axes={"x_0": (4, 9)}), "cpu")
    unit.capture(lambda: None)
    (warmed,) = unit.wishes()
    torch.compiler.reset()
    server = Collector({})
    model = torch.export.load(exported).module()
    compiled = torch.compile(model, backend=server.backend, dynamic=True)
    with torch.no_grad():
        compiled(torch.randn(5, 8), torch.randn(5, 8))
    assert [each.program.id for each in server.collected()] == [warmed.program.id]


def test_names_given_for_an_exported_program_keep_its_ranges(exported: Path) -> None:
    found = load_exported(exported, dynamic={"x": {0: "rows"}, "y": {0: "rows"}})
    assert found.ranges == {"rows": (2, 40)}


def test_a_dimension_that_was_exported_as_fixed_takes_its_one_size(exported: Path) -> None:
    found = load_exported(exported, dynamic={"x": {1: "columns"}, "y": {1: "columns"}})
    assert found.ranges == {"columns": (8, 8)}


def test_an_exported_program_without_sizes_is_warmed_up_over_its_ranges(exported: Path) -> None:
    unit = Unit(ModelSpec(name="m", exported=exported, points=3), "cpu")
    sizes = [point["x_0"] for point in unit.points]
    assert all(2 <= size <= 40 for size in sizes)
    assert 1 < len(sizes) <= 3
    unit.capture(lambda: None)
    *_, wish = unit.wishes()  # where there are as many rows as columns, torch captures that first
    assert len(wish.sizes) == len(sizes)


def test_sizes_outside_an_exported_range_are_refused_by_name(exported: Path) -> None:
    found = load_exported(exported, dynamic={})
    with pytest.raises(InvalidDynamic, match=r"x_0 = 41 is outside 2 \.\. 40"):
        arguments_at(found, {"x_0": 41}, torch.device("cpu"))


def test_tensors_within_arguments_are_on_the_device_too() -> None:
    made = WarmUp(
        model=lambda x, past, scale: x,
        args=(torch.ones(2, 3), [torch.ones(2), (torch.ones(1), {"key": torch.ones(4)})]),
        kwargs={"scale": 2},
        dynamic={"x": {0: "rows"}},
    )
    (x, past), kwargs = arguments_at(made, {"rows": 5}, torch.device("meta"))
    assert x.shape == (5, 3)
    assert [each.device.type for each in (x, past[0], past[1][0], past[1][1]["key"])] == [
        "meta"
    ] * 4
    assert kwargs == {"scale": 2}


@pytest.mark.parametrize(
    ("example", "strides"),
    [
        (torch.ones(2, 3, 4, 6).contiguous(memory_format=torch.channels_last), (72, 1, 18, 3)),
        (torch.ones(4, 2).t(), (1, 5)),
        (torch.ones(2, 1).expand(2, 3), (1, 0)),
        (torch.ones(1, 3).expand(2, 3), (0, 1)),
        (torch.ones(1, 1, 3).expand(2, 2, 3), (0, 0, 1)),
        (torch.ones(2, 1, 3), (3, 3, 1)),
    ],
)
def test_arguments_of_other_sizes_lie_in_memory_as_the_examples_do(
    example: torch.Tensor, strides: tuple[int, ...]
) -> None:
    made = WarmUp(model=lambda x: x, args=(example,), dynamic={"x": {0: "n"}})
    (found,), _ = arguments_at(made, {"n": 5}, torch.device("cpu"))
    assert (found.shape, found.stride()) == ((5, *example.shape[1:]), strides)


def test_points_outside_an_exported_range_fail_and_the_others_do_not(exported: Path) -> None:
    spec = ModelSpec(name="m", exported=exported, axes={"x_0": (4, 400)})
    unit = Unit(spec, "cpu")
    unit.capture(lambda: None)
    assert list(unit.failed) == [1]


@pytest.mark.parametrize(
    ("given", "stated"),
    [("min = 1, max = 30", "1 .. 30"), ("min = 4, max = 400", "4 .. 400")],
)
def test_a_range_beyond_the_models_own_is_refused_by_its_key_in_the_manifest(
    exported: Path, given: str, stated: str
) -> None:
    path = exported.with_name("manifest.toml")
    model = f'[[model]]\nexported = "{exported.name}"\n'
    path.write_text(f'{model}{model}name = "other"\ndims = {{ x_0 = {{ {given} }} }}\n')
    with pytest.raises(InvalidManifest) as caught:
        Unit(read_manifest(path).models[1], "cpu")
    told = f"model[1].dims.x_0: {stated} is not within the model's own range, 2 .. 40"
    assert str(caught.value) == f"{path}: {told}"


def test_a_kernels_range_is_the_models_own(tmp_path: Path, entry: str) -> None:
    (tmp_path / "unit_entry.py").write_text(KERNELS)
    spec = ModelSpec(name="m", entry="unit_entry:function", points=5)
    unit = Unit(spec, "cpu")
    assert len(unit.points) > 1
    unit.capture(lambda: None)
    assert unit.failed == {}
    beyond = replace(spec, axes={"rows": Range(8, 512)})
    with pytest.raises(InvalidManifest, match=r"m: dims\.rows: 8 \.\. 512 is .*, 1 \.\. 64"):
        Unit(beyond, "cpu")


def test_a_range_that_a_kernels_own_excludes_is_refused() -> None:
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    kernel = nearhint.kernel(doubled, dynamic={"x": {0: range(2, 11)}})
    example = (torch.ones(4, 3),)
    given = WarmUp(
        model=kernel, args=example, dynamic={"x": {0: "rows"}}, ranges={"rows": (20, 30)}
    )
    with pytest.raises(InvalidDynamic, match=r"'rows'.*no size is within its range, 20 \.\. 30"):
        units._ranges_of(given)


def test_a_range_that_is_the_models_own_is_taken(exported: Path) -> None:
    for within in (Range(2, 40), Range(40, 40)):
        unit = Unit(ModelSpec(name="m", exported=exported, axes={"x_0": within}), "cpu")
        assert all(point["x_0"] in within for point in unit.points)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"ranges": {"rosw": (2, 64)}},
            "dynamic['rosw']: ranges: no such axis; did you mean rows?",
        ),
        ({"ranges": {"rows": (64, 2)}}, "dynamic['rows']: ranges: must be a least and a largest"),
        ({"ranges": {"rows": (2, None)}}, "dynamic['rows']: ranges: must be a least and a largest"),
        ({"steps": {"rows": 4}}, "dynamic['rows']: steps: must be a whole number, of an axis with"),
        ({"ranges": {"rows": (2, 64)}, "steps": {"rows": 0}}, "steps: must be a whole number"),
        ({"dynamic": {"x": ["rows"]}}, "dynamic['x']: give dimensions by number"),
    ],
)
def test_a_workload_that_contradicts_itself_is_refused_by_what_it_says(
    given: dict[str, Any], problem: str
) -> None:
    whole: dict[str, Any] = {"dynamic": {"x": {0: "rows"}}, **given}
    with pytest.raises(InvalidDynamic, match=re.escape(problem)):
        WarmUp(model=torch.relu, args=(torch.ones(2),), **whole)


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileMissing):
        load_exported(tmp_path / "absent.pt2", dynamic={})


def test_a_file_that_is_no_exported_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt2"
    path.write_bytes(b"not an archive")
    with pytest.raises(InvalidEntry, match="not an exported program") as caught:
        load_exported(path, dynamic={})
    assert "MODULE:ENTRY" not in caught.value.report()


def test_a_workloads_own_ranges_bound_its_ladder(
    entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = WarmUp(
        model=torch.relu,
        args=(torch.ones(2),),
        dynamic={"input": {0: "n"}},
        ranges={"n": (2, 32)},
    )
    monkeypatch.setattr("nearhint_torch.units.load", lambda _: made)
    wide = Unit(ModelSpec(name="m", entry=entry), "cpu").points
    assert len(wide) > 3
    assert all(2 <= point["n"] <= 32 for point in wide)
    narrow = Unit(ModelSpec(name="m", entry=entry, axes={"n": Range(4, 8)}), "cpu").points
    assert all(4 <= point["n"] <= 8 for point in narrow)


def test_a_file_that_is_no_exported_program_is_told_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.pt2"
    path.write_text("junk")
    with pytest.raises(InvalidEntry, match="not an exported program"):
        load_exported(path, dynamic={})
    assert capfd.readouterr().err == ""
