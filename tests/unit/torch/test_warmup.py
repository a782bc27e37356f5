"""A warm-up of several models: what is in memory meanwhile, and what of each is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from nearhint.errors import DaemonUnreachable
from nearhint.exit_codes import ExitCode
from nearhint.warmup.asking import Asking
from nearhint.warmup.manifest import Manifest, ModelSpec
from nearhint.warmup.output import Outputs
from nearhint.warmup.report import ModelReport
from nearhint.warmup.survey import Survey, Wish
from nearhint_torch.units import NOT_CALLED
from nearhint_torch.warmup import _capture, dry_run, run

ENTRY = """
import weakref

import torch
from nearhint_torch import WarmUp


class Large(torch.nn.Module):
    held = weakref.WeakSet()

    def __init__(self):
        if len(self.held):
            raise MemoryError("another model is in memory")
        super().__init__()
        self.held.add(self)

    def forward(self, x):
        return torch.tanh(x * 2)


def warm_up():
    return WarmUp(model=Large(), args=(torch.ones(2, 3),), dynamic={"x": {0: "rows"}})
"""


class _Asking:
    """A daemon that plans nothing."""

    def __init__(self) -> None:
        self.wishes: list[str] = []

    def greet(self) -> None:
        pass

    def look(self, wishes: list[Wish]) -> Survey:
        self.wishes = [wish.model for wish in wishes]
        return Survey(())


class _Outputs:
    """Keeps what is wrong with each model."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}

    def survey(self, _: Survey, models: tuple[ModelReport, ...]) -> None:
        self.problems = {model.name: model.problem for model in models}


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that a manifest's models are loaded from."""
    (tmp_path / "large_entry.py").write_text(ENTRY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "large_entry", raising=False)


@pytest.mark.usefixtures("entry")
def test_a_model_is_let_go_before_the_next_one_is_loaded() -> None:
    axes = {"misnamed": {"row": (4,)}, "first": {"rows": (4,)}, "second": {"rows": (4,)}}
    models = tuple(
        ModelSpec(name=name, entry="large_entry:warm_up", axes=dict(given))
        for name, given in axes.items()
    )
    asking, outputs = _Asking(), _Outputs()
    manifest = Manifest(source="m.toml", models=models, budget_s=60.0)
    code = dry_run(manifest, cast("Asking", asking), cast("Outputs", outputs))
    assert code == ExitCode.PARTIAL
    assert "did you mean rows?" in outputs.problems.pop("misnamed")
    assert outputs.problems == {"first": "", "second": ""}
    assert asking.wishes == ["first", "second"]


@pytest.mark.usefixtures("entry")
def test_no_further_model_is_loaded_once_the_budget_has_ended() -> None:
    models = tuple(
        ModelSpec(name=name, entry="large_entry:warm_up", axes={"rows": (4,)})
        for name in ("first", "second")
    )
    captured = _capture(Manifest(source="m.toml", models=models), until_s=0.0)
    assert [unit.spec.name for unit in captured.units] == ["first"]
    assert [(each.name, each.problem) for each in captured.failed] == [("second", NOT_CALLED)]


class _Absent(_Asking):
    """No daemon."""

    def greet(self) -> None:
        raise DaemonUnreachable(address="unix:/none", problem="nobody is there")


@pytest.mark.parametrize("act", [run, dry_run])
def test_no_model_is_loaded_without_a_daemon(act: Callable[..., ExitCode]) -> None:
    absent = ModelSpec(name="m", entry="no_such_module:warm_up")
    manifest = Manifest(source="m.toml", models=(absent,), budget_s=60.0)
    with pytest.raises(DaemonUnreachable):
        act(manifest, cast("Asking", _Absent()), Outputs())
