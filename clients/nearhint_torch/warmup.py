"""Warming up: models, the sizes they will see, and a daemon that tunes before the first user comes.

    def warm_up() -> WarmUp:                                   # in my_model.py
        model = load()
        return WarmUp(
            model=model,
            kwargs={"input_ids": torch.ones(2, 16, dtype=torch.int64)},
            dynamic={"input_ids": {0: "batch", 1: "tokens"}},
        )

    nearhint warmup my_model:warm_up --sizes 'batch=1,8;tokens=16,64'
    nearhint warmup manifest.toml --html report.html

Capture happens here, in a process like the server's, and never in the daemon. The models' calls
run as captured until everything is tuned; nothing but what the daemon keeps is needed to resume.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from nearhint.connection import Connection
from nearhint.errors import NearhintError, NotFound
from nearhint.exit_codes import ExitCode
from nearhint.version import VERSION
from nearhint.warmup.asking import PLANS_S, Asking, Outcome
from nearhint.warmup.manifest import Manifest, ModelSpec
from nearhint.warmup.output import Outputs
from nearhint.warmup.progress import showing
from nearhint.warmup.report import (
    Gain,
    ModelReport,
    Report,
    device_facts,
    kernel_reports,
    standing,
)
from nearhint.warmup.survey import Survey
from nearhint.warmup.targets import as_on
from nearhint_proto.v1 import admin_service_pb2
from nearhint_rules.program import canonicalise
from nearhint_rules.target import Device
from nearhint_torch.errors import InvalidEntry
from nearhint_torch.units import NOT_CALLED, Unit, failure, source_of


def run(manifest: Manifest, asking: Asking, outputs: Outputs) -> ExitCode:
    """Warms up every model of a manifest, and reports to `outputs`.

    Returns `PARTIAL` if something failed, stays at T0 or is left when the budget is spent. Raises
    `DaemonUnreachable`, or what is wrong with the first model where all of them fail.
    """
    deadline_s = time.monotonic() + manifest.budget_s
    asking.greet()  # loading models may take minutes
    captured = _capture(manifest, until_s=max(deadline_s, time.monotonic() + PLANS_S))
    wishes = [wish for unit in captured.units for wish in unit.wishes()]
    outcome, facts = Outcome(Survey(())), _Facts()
    if wishes:
        with showing("tuned", clock=time.monotonic) as progress:
            outcome = asking.bring(wishes, deadline_s=deadline_s, progress=progress)
    gains = _gains(captured.units, deadline_s)
    if wishes:  # last: how fast the device copies is measured after the first winner
        kernels = sorted({goal.kernel for goal in outcome.survey.goals()})
        facts = asking.talk(lambda connection: _ask(connection, kernels))
    report = _report(manifest, captured, outcome, facts, gains)
    outputs.report(report)
    return ExitCode.OK if report.is_whole else ExitCode.PARTIAL


def dry_run(manifest: Manifest, asking: Asking, outputs: Outputs) -> ExitCode:
    """Captures, and lists what a run would ask for; nothing is compiled or measured.

    The daemon makes the Programs' Plans. Returns `PARTIAL` if a model or a point failed; raises as
    `run` does.
    """
    asking.greet()
    captured = _capture(manifest)
    wishes = [wish for unit in captured.units for wish in unit.wishes()]
    survey = asking.look(wishes) if wishes else Survey(())
    models = _models(captured, survey)
    outputs.survey(survey, models)
    failed = any(model.problem for model in models) or any(unit.failed for unit in captured.units)
    return ExitCode.PARTIAL if failed else ExitCode.OK


def compile_only(
    manifest: Manifest, asking: Asking, outputs: Outputs, *, targets: Sequence[Device]
) -> ExitCode:
    """Has every candidate of a manifest compiled for devices that may be elsewhere.

    Models are captured on the CPU; nothing is measured. Returns `PARTIAL` if something failed or
    is left when the budget is spent; raises as `run` does, and `Rejected` by an older daemon.
    """
    deadline_s = time.monotonic() + manifest.budget_s
    asking.require("kernels.compile_only")
    models = tuple(replace(spec, devices=("cpu",)) for spec in manifest.models)
    until_s = max(deadline_s, time.monotonic() + PLANS_S)
    captured = _capture(replace(manifest, models=models), until_s=until_s)
    wishes = [
        replace(
            wish,
            program=canonicalise(as_on(wish.program, device)),
            device=device,
            is_compiled_only=True,
        )
        for unit in captured.units
        for wish in unit.wishes()
        for device in targets
    ]
    with showing("compiled", clock=time.monotonic) as progress:
        outcome = asking.bring(wishes, deadline_s=deadline_s, progress=progress)
    reports = _models(captured, outcome.survey)
    outputs.compiled(outcome, reports)
    failed = any(model.problem for model in reports) or any(unit.failed for unit in captured.units)
    return ExitCode.PARTIAL if failed or outcome.problems else ExitCode.OK


@dataclass(frozen=True, slots=True)
class _Captured:
    units: tuple[Unit, ...]
    failed: tuple[ModelReport, ...]


@dataclass(frozen=True, slots=True)
class _Facts:
    info: admin_service_pb2.GetServerInfoResponse | None = None
    devices: Sequence[admin_service_pb2.DeviceStatus] = ()
    explained: Sequence[admin_service_pb2.ExplainKernelResponse] = ()


@contextmanager
def _models_talk() -> Generator[None]:
    """What models print goes to stderr: stdout is for what the warm-up found."""
    with redirect_stdout(sys.stderr):
        yield


@_models_talk()
def _capture(manifest: Manifest, *, until_s: float = math.inf) -> _Captured:
    """Loads and calls every model; one that fails is listed, unless all do.

    Of several each is released before the next one is loaded: together they may fill the memory.
    Once it is `until_s`, on the monotonic clock, no further one is loaded, or called at a point.
    """
    units: list[Unit] = []
    failed: list[ModelReport] = []
    unloaded: list[NearhintError] = []
    asked = [(spec, device) for spec in manifest.models for device in spec.devices]
    for spec, device in asked:
        if units and time.monotonic() >= until_s:
            failed.append(failure(spec, device, NOT_CALLED))
            continue
        try:
            unit = Unit(spec, device)
        except (Exception, SystemExit) as error:  # a model's own code may raise anything
            wrong = _typed(spec, error)
            unloaded.append(wrong.with_traceback(None))  # which would keep the model
            failed.append(failure(spec, device, f"{wrong.code}: {wrong}"))
            continue
        try:
            title = "captured" if len(asked) == 1 else f"captured {spec.name}"
            _capture_one(unit, title, until_s=until_s)
            units.append(unit)
        except Exception as error:  # e.g. the device is not there
            failed.append(failure(spec, device, f"{type(error).__name__}: {error}"))
        if len(asked) > 1:
            unit.release()
    if len(unloaded) == len(asked):
        raise unloaded[0]
    return _Captured(tuple(units), tuple(failed))


def _capture_one(unit: Unit, title: str, *, until_s: float) -> None:
    done = 0
    with showing(title, clock=time.monotonic) as progress:

        def on_point() -> None:
            nonlocal done
            done += 1
            progress(done, len(unit.points), len(unit.failed))

        unit.capture(on_point, until_s=until_s)


def _typed(spec: ModelSpec, error: BaseException) -> NearhintError:
    if isinstance(error, NearhintError):
        return error
    return InvalidEntry(entry=source_of(spec), problem=f"{type(error).__name__}: {error}")


def _ask(connection: Connection, kernels: Sequence[str]) -> _Facts:
    explained: list[admin_service_pb2.ExplainKernelResponse] = []
    for kernel in kernels:
        try:
            explained.append(
                connection.explain_kernel(admin_service_pb2.ExplainKernelRequest(kernel=kernel))
            )
        except NotFound:
            continue
    return _Facts(connection.hello(), connection.get_status().devices, explained)


@_models_talk()
def _gains(units: Sequence[Unit], deadline_s: float) -> list[Gain]:
    gains: list[Gain] = []
    total = sum(len(unit.points) for unit in units)
    with showing("timed", clock=time.monotonic) as progress:
        done = 0

        def on_point() -> None:
            nonlocal done
            done += 1
            progress(done, total, 0)

        for unit in units:
            gains += unit.gains(deadline_s=deadline_s, on_point=on_point)
            if len(units) > 1:
                unit.release()
    return gains


def _models(captured: _Captured, survey: Survey) -> tuple[ModelReport, ...]:
    return (*(unit.report(survey) for unit in captured.units), *captured.failed)


def _report(
    manifest: Manifest,
    captured: _Captured,
    outcome: Outcome,
    facts: _Facts,
    gains: Sequence[Gain],
) -> Report:
    at_t2, at_t0, pending = standing(outcome)
    versions = {"client": VERSION}
    if facts.info is not None:
        versions |= {"daemon": facts.info.version, "compiler": facts.info.compiler_version}
    return Report(
        source=manifest.source,
        created_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
        versions=versions,
        devices=device_facts(facts.devices),
        models=_models(captured, outcome.survey),
        kernels=kernel_reports(outcome, {each.kernel.id: each for each in facts.explained}),
        points=tuple(gains),
        settled=outcome.is_settled,
        at_t2=at_t2,
        at_t0=at_t0,
        pending=pending,
    )
