"""Units of a warm-up: one model on one device, captured and called at its points."""

from __future__ import annotations

import difflib
import gc
import math
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from nearhint.errors import InvalidManifest, InvalidSetting
from nearhint.readiness import settle
from nearhint.warmup.asking import LOST_LIMIT_S
from nearhint.warmup.manifest import Axis, ModelSpec, Range
from nearhint.warmup.page import sizes_text
from nearhint.warmup.points import Point, points_of
from nearhint.warmup.report import Gain, ModelReport
from nearhint.warmup.survey import BUDGET_ENDED, Survey, Wish
from nearhint_rules.program import SIZE_LIMIT
from nearhint_torch.adapter import CAPTURES_LIMIT, captures_limit, capturing_all
from nearhint_torch.collecting import Collector
from nearhint_torch.errors import InvalidDynamic, PointTooLarge
from nearhint_torch.exported import load_exported
from nearhint_torch.kernel import Backend, Compile, as_served, source_names, stated_dimensions
from nearhint_torch.report import Report as CallReport
from nearhint_torch.room import free_bytes
from nearhint_torch.runner import watch
from nearhint_torch.workload import WarmUp, arguments_at, bytes_at, load

REPETITIONS = 7
LOAD_TIMEOUT_S = LOST_LIMIT_S + 30.0
"""How long a model's Tables and binaries may take to arrive before it is timed, from a daemon that
may have been lost meanwhile."""

ROOM_SHARE = 8
"""What a model makes of its arguments takes several times their memory: they may take one part in
so many of what is free."""
NOT_CALLED = f"{BUDGET_ENDED} before it was called"


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What a unit calls: the function itself with its arguments, and how a server compiles it."""

    warm_up: WarmUp
    compile: Compile


class Unit:
    """One model of a manifest on one device, in memory until it is released.

    Loading raises what the model's own code raises, `InvalidEntry`, `InvalidDynamic`,
    `FileMissing`, `InvalidManifest` for a range that is not the model's, or, where the device is
    not there, `InvalidSetting`.
    """

    def __init__(self, spec: ModelSpec, device: str) -> None:
        self.spec = spec
        self.device = device
        self._device = _present(device)
        self._loaded: _Loaded | None = None
        warm_up = self._load().warm_up
        self.points: tuple[Point, ...] = _points(spec, warm_up)
        self.failed: dict[int, str] = {}
        """Why a point's call failed, by its number."""
        self._captured: set[int] = set()
        names = source_names(warm_up.model, warm_up.dynamic)
        self._collector = Collector(names)
        self._options: dict[str, Any] = {"names": names}

    def release(self) -> None:
        """Lets the model go, and what was compiled of it; it is loaded again to be timed."""
        self._loaded = None
        torch.compiler.reset()
        gc.collect()  # compiled code and what it is of refer to each other

    def capture(self, on_point: Callable[[], None], *, until_s: float = math.inf) -> None:
        """Calls the model at each point, as captured, and keeps what that was.

        But for the first one no point is called once it is `until_s`, on the monotonic clock.

        A server captures what it meets first, which may be any of the points: here that is all.
        What was captured at sizes that are equal there by chance is for equal ones alone, and not
        what a server runs there that met others before; so they are called once more.
        """
        compiled = self._compiled(self._collector.backend, None)
        made_at: list[int] = []
        for number in range(len(self.points)):
            if number and time.monotonic() >= until_s:
                self.failed[number] = NOT_CALLED
                on_point()
                continue
            captures, calls = self._collector.captures, self._collector.calls
            with self._keeping_failures(number), capturing_all():
                self._call(number, compiled)
            if self._collector.captures > captures:
                made_at.append(number)
            if self._collector.calls > calls:
                self._captured.add(number)
            on_point()
        for number in made_at[:-1]:
            if number not in self.failed and time.monotonic() < until_s:
                with self._keeping_failures(number), capturing_all():
                    self._call(number, compiled)

    def wishes(self) -> list[Wish]:
        """What the daemon is asked for."""
        return [
            Wish(
                model=self.spec.name,
                place=self.device,
                program=each.program,
                device=each.device,
                threads=each.threads if self._device.type == "cpu" else 0,
                sizes=each.sizes,
                effort=self.spec.effort,
            )
            for each in self._collector.collected()
        ]

    def report(self, survey: Survey) -> ModelReport:
        """What became of the model."""
        key = (self.spec.name, self.device)
        mine = [each for each in survey.programs if (each.wish.model, each.wish.place) == key]
        kernels = {goal.kernel for each in mine for some in each.goals.values() for goal in some}
        # Without a Plan nothing could be asked for; with one that launches nothing all is done.
        reasons = [each.reason for each in mine if each.reason and not (kernels and each.goals)]
        problems = list(dict.fromkeys((*self._collector.problems, *reasons)))
        return ModelReport(
            name=self.spec.name,
            source=source_of(self.spec),
            device=self.device,
            effort=self.spec.effort,
            labels=self.spec.labels,
            points=len(self.points),
            programs=len(mine),
            kernels=len(kernels),
            problem="; ".join(problems),
            failed=tuple(
                f"{sizes_text(self.points[number])}: {why}" for number, why in self.failed.items()
            ),
        )

    def gains(self, *, deadline_s: float, on_point: Callable[[], None]) -> list[Gain]:
        """Times the original against what serves now, point by point, until the deadline.

        An effort of "none" asks for no measurement, so its points are not timed either.
        """
        if self.spec.effort == "none" or time.monotonic() >= deadline_s:
            return [self._gain(number) for number in range(len(self.points))]
        try:
            compiled = self._compiled("nearhint", self._options)
        except (Exception, SystemExit) as error:  # as in a call; it may be loaded once more
            self.failed |= dict.fromkeys(self._sound(), f"{type(error).__name__}: {error}")
            return [self._gain(number) for number in range(len(self.points))]
        for number in self._sound():
            with self._keeping_failures(number):
                self._call(number, compiled)
        settle(timeout_s=max(0.0, min(LOAD_TIMEOUT_S, deadline_s - time.monotonic())))
        gains: list[Gain] = []
        for number in range(len(self.points)):
            gain: Gain | None = None
            if number not in self.failed and time.monotonic() < deadline_s:
                with self._keeping_failures(number):
                    gain = self._timed(number, compiled)
            gains.append(gain or self._gain(number))
            on_point()
        return gains

    def _sound(self) -> list[int]:
        return [number for number in range(len(self.points)) if number not in self.failed]

    @contextmanager
    def _keeping_failures(self, number: int) -> Generator[None]:
        """What a point's call raises is kept as the reason why the point failed."""
        try:
            yield
        except (Exception, SystemExit) as error:  # a model's own code may raise anything
            self.failed[number] = f"{type(error).__name__}: {error}"

    def _call(self, number: int, call: Callable[..., Any]) -> None:
        args, kwargs = self._arguments(number)
        with torch.inference_mode():
            call(*args, **kwargs)

    def _arguments(self, number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A point's arguments; raises `PointTooLarge` before there is no memory for the call."""
        warm_up, point = self._load().warm_up, self.points[number]
        needed, free = bytes_at(warm_up, point), free_bytes(self._device)
        if free is not None and needed > free // ROOM_SHARE:
            raise PointTooLarge(needed_bytes=needed, share=ROOM_SHARE, free_bytes=free)
        return arguments_at(warm_up, point, self._device)

    def _gain(self, number: int) -> Gain:
        return Gain(
            self.spec.name,
            self.device,
            dict(self.points[number]),
            problem=self.failed.get(number, ""),
        )

    def _timed(self, number: int, compiled: Callable[..., Any]) -> Gain:
        warm_up = self._load().warm_up
        args, kwargs = self._arguments(number)
        samples: tuple[list[float], list[float]] = ([], [])
        with torch.inference_mode():
            for _ in range(REPETITIONS):
                for call, times in zip((warm_up.model, compiled), samples, strict=True):
                    self._synchronise()
                    start = time.perf_counter()
                    call(*args, **kwargs)
                    self._synchronise()
                    times.append(time.perf_counter() - start)
            with watch() as reports:
                compiled(*args, **kwargs)
        original_ms, nearhint_ms = (sorted(times)[REPETITIONS // 2] * 1e3 for times in samples)
        tiers = [sum(report.tiers[tier] for report in reports) for tier in range(3)]
        return Gain(
            self.spec.name,
            self.device,
            dict(self.points[number]),
            original_ms,
            nearhint_ms,
            (tiers[0], tiers[1], tiers[2]),
            problem=", ".join(_why_original(reports)) or self._why_none(number, reports),
        )

    def _why_none(self, number: int, reports: Sequence[CallReport]) -> str:
        """Why nothing of ours ran at a point, though there is something; empty where it did."""
        if reports or number not in self._captured:
            return ""
        limit = f"{captures_limit()} times at most ({CAPTURES_LIMIT})"
        return f"torch runs it as it was written: it captures a function {limit}"

    def _load(self) -> _Loaded:
        """The model, loaded where it is not in memory."""
        if self._loaded is None:
            given = _given(self.spec)
            original, compile_it = as_served(given.model)
            ranges = _ranges_of(given)
            self._loaded = _Loaded(replace(given, model=original, ranges=ranges), compile_it)
        return self._loaded

    def _compiled(self, backend: Backend, options: Mapping[str, Any] | None) -> Callable[..., Any]:
        """The model on its device, compiled as a server that has met no size yet."""
        torch.compiler.reset()
        loaded = self._load()
        model = loaded.warm_up.model
        if isinstance(model, torch.nn.Module):
            model.to(self._device)
            if self.spec.exported is None:  # an exported program is in the mode it was exported in
                model.eval()
        return loaded.compile(backend, options)

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _why_original(reports: Sequence[CallReport]) -> list[str]:
    """Why launches ran the original ops at T0, each reason once."""
    launches = (launch for report in reports for launch in report.launches)
    return list(dict.fromkeys(launch.reason for launch in launches if launch.tier == 0))


def failure(spec: ModelSpec, device: str, problem: str) -> ModelReport:
    """The report of a model that could not be loaded or called there."""
    return ModelReport(
        spec.name, source_of(spec), device, spec.effort, spec.labels, problem=problem
    )


def source_of(spec: ModelSpec) -> str:
    """Where a model comes from, as its manifest says it."""
    return spec.entry or str(spec.exported)


def _present(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        here = ", ".join(("cpu", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))))
        raise InvalidSetting(name="device", expected=f"on this machine ({here})", value=name)
    return device


def _given(spec: ModelSpec) -> WarmUp:
    if spec.exported is not None:
        return load_exported(spec.exported, dynamic=spec.dynamic)
    return load(spec.entry)


def _ranges_of(warm_up: WarmUp) -> dict[str, tuple[int, int]]:
    """The sizes that a workload says its model takes, by axis, within those of a `kernel`."""
    found = dict(warm_up.ranges)
    for argument, dimensions in stated_dimensions(warm_up.model).items():
        for number, stated in dimensions.items():
            axis = warm_up.dynamic.get(argument, {}).get(number)
            if axis is None or (stated.low is None and stated.high is None):
                continue
            low, high = found.get(axis, (1, SIZE_LIMIT - 1))
            both = (max(low, stated.low or 1), min(high, stated.high or high))
            if both[0] > both[1]:
                problem = f"no size is within its range, {low} .. {high}, and the kernel's"
                raise InvalidDynamic(argument=axis, problem=problem)
            found[axis] = both
    return found


def _points(spec: ModelSpec, warm_up: WarmUp) -> tuple[Point, ...]:
    """A model's points; without any sizes of its own, those of a ladder over the model's ranges."""
    names: Sequence[str] = list(
        dict.fromkeys(axis for each in warm_up.dynamic.values() for axis in each.values())
    )
    for given in (spec.axes, *spec.listed, *(row.sizes for row in spec.observed)):
        _check_names(given, names)
    for name in spec.axes:
        _check_range(spec, name, warm_up)
    if spec.listed:
        return spec.listed
    axes: Mapping[str, Axis] = spec.axes
    bounded = {
        name: Range(*bounds)
        for name, bounds in warm_up.ranges.items()
        if bounds[1] < SIZE_LIMIT - 1
    }
    if not axes and not spec.observed and all(name in bounded for name in names):
        axes = {name: bounded[name] for name in names}
    if not axes and not spec.observed:
        for name in names:
            if name not in bounded:
                raise _without_sizes(name)
        return ({},)
    seen = [row.sizes for row in spec.observed]
    points = [
        point if point in seen else _on_steps(point, axes, warm_up)
        for point in points_of(axes, spec.observed, limit=spec.points)
    ]
    return tuple(point for number, point in enumerate(points) if point not in points[:number])


def _check_range(spec: ModelSpec, name: str, warm_up: WarmUp) -> None:
    """Raises `InvalidManifest` where a range is not within the model's own, or holds no size of it.

    Sizes that are listed fail one by one.
    """
    axis = spec.axes[name]
    if not isinstance(axis, Range) or name not in warm_up.ranges:
        return
    low, high = warm_up.ranges[name]
    step = warm_up.steps.get(name, 1)
    end = "2^62" if high >= SIZE_LIMIT - 1 else str(high)
    if axis.low < low or axis.high > high:
        problem = f"{axis} is not within the model's own range, {low} .. {end}"
    elif axis.high - axis.low < (low - axis.low) % step:
        problem = f"{axis} holds none of the model's sizes, {low}, {low + step} .. {end}"
    else:
        return
    key = ".".join(filter(None, (spec.place, "dims", name)))
    raise InvalidManifest(path=spec.path or spec.name, key=key, problem=problem)


def _on_steps(point: Point, axes: Mapping[str, Axis], warm_up: WarmUp) -> Point:
    """A rung of a ladder where ranges leave sizes out: the next size below that there is."""
    found = dict(point)
    for name, step in warm_up.steps.items():
        axis, (low, _) = axes.get(name), warm_up.ranges[name]
        if isinstance(axis, Range):
            size = found[name] - (found[name] - low) % step
            found[name] = size if size in axis else size + step
    return found


def _check_names(given: Collection[str], names: Sequence[str]) -> None:
    """Raises `InvalidDynamic` unless sizes, where there are any, are of all the model's axes."""
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            known = f"did you mean {near[0]}?" if near else f"its axes: {', '.join(names)}"
            raise InvalidDynamic(argument=name, problem=f"no axis of the model; {known}")
    for name in names:
        if given and name not in given:
            raise _without_sizes(name)


def _without_sizes(name: str) -> InvalidDynamic:
    return InvalidDynamic(argument=name, problem="no sizes are given for it")
