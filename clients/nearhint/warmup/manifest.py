"""Manifests: which models to warm up, at which sizes, how hard and for how long.

    effort = "full"                    # none | quick | full | max
    budget = "10m"                     # or seconds
    devices = ["cpu"]                  # cpu | cuda | cuda:N
    labels = { team = "search" }
    targets = ["h100.json"]            # devices elsewhere, for --compile-only

    [[model]]
    entry = "my_model:warm_up"         # a function that returns a nearhint_torch.WarmUp
    dims = { batch = [1, 8], tokens = { min = 1, max = 512 } }

    [[model]]
    name = "ranker"
    exported = "ranker.pt2"            # torch.export.save
    sizes = "traffic.csv"              # observed sizes and their counts
    dynamic = { x = { 0 = "rows" } }   # argument -> dimension -> name
    points = 16                        # at most so many

Paths start at the manifest's folder. What a model does not say, the top level says for it.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TypeAlias, TypeGuard, cast

from nearhint.errors import InvalidManifest
from nearhint.warmup.files import read_file
from nearhint.warmup.observed import Observed, read_observed
from nearhint.warmup.targets import read_device
from nearhint_rules.program import SIZE_LIMIT
from nearhint_rules.target import Device

EFFORTS = ("none", "quick", "full", "max")
DEFAULT_EFFORT = "full"
DEFAULT_BUDGET_S = 1800.0
DEFAULT_POINTS = 24
POINTS_LIMIT = 256
NAME_LIMIT = 64

_SHARED = ("effort", "devices", "labels", "points")
TOP_KEYS = (*_SHARED, "budget", "targets", "model")
MODEL_KEYS = (*_SHARED, "name", "entry", "exported", "dims", "sizes", "dynamic")

_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")
_DIMENSION = re.compile(r"0|[1-9][0-9]{0,3}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9}(?:\.\d{1,9})?)s)?")
LONGEST_S = 1e9
"""Thirty years: whoever gives a budget beyond means something else."""


@dataclass(frozen=True, slots=True)
class Range:
    """Every size from `low` to `high`, both included."""

    low: int
    high: int

    def __contains__(self, size: int) -> bool:
        return self.low <= size <= self.high

    def __str__(self) -> str:
        return f"{self.low} .. {self.high}"


Axis: TypeAlias = Range | tuple[int, ...]
"""The sizes of one dimension: a range, or the very sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model to warm up; exactly one of `entry` (MODULE:ENTRY) and `exported` is set.

    `path` and `place` say which table of which manifest it is, as in `model[0]`.
    `axes` and `observed` are over the same names; `listed` are points that stand for themselves.
    `dynamic` names an exported program's dimensions: argument -> dimension -> name. `points` is
    how many points it may have at most.
    """

    name: str
    entry: str = ""
    exported: Path | None = None
    path: Path | None = None
    place: str = ""
    axes: Mapping[str, Axis] = field(default_factory=dict[str, Axis])
    observed: tuple[Observed, ...] = ()
    listed: tuple[Mapping[str, int], ...] = ()
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict[str, Mapping[int, str]])
    devices: tuple[str, ...] = ("cpu",)
    effort: str = DEFAULT_EFFORT
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    points: int = DEFAULT_POINTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What one warm-up does; `source` is the manifest's path, or the entry that it stands for."""

    source: str
    models: tuple[ModelSpec, ...]
    budget_s: float = DEFAULT_BUDGET_S
    targets: tuple[Device, ...] = ()
    """Devices that `--compile-only` compiles for."""


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file; raises `FileMissing` or `InvalidManifest`, which names the key."""
    try:
        content = tomllib.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise InvalidManifest(path=path, key="not TOML", problem=error) from error
    return _Reader(path).manifest(content)


def read_duration(value: object) -> float | None:
    """Seconds: a positive number of them, or text such as "90s", "10m", "1h30m"; else None.

    >>> read_duration("1h30m"), read_duration(2.5), read_duration("soon"), read_duration(0)
    (5400.0, 2.5, None, None)
    """
    seconds: float = 0.0
    if isinstance(value, str):
        found = _DURATION.fullmatch(value.strip())
        if found is not None:
            hours, minutes, rest = found.groups(default="0")
            seconds = 3600 * int(hours) + 60 * int(minutes) + float(rest)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    return float(seconds) if 0 < seconds <= LONGEST_S else None


def is_device(name: str) -> bool:
    """Whether a device may be named so, here or elsewhere."""
    return _DEVICE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class _Reader:
    path: Path

    def error(self, key: str, problem: str) -> InvalidManifest:
        return InvalidManifest(path=self.path, key=key, problem=problem)

    def manifest(self, content: Mapping[str, object]) -> Manifest:
        self.check_keys(content, TOP_KEYS, "")
        budget_s = read_duration(content.get("budget", DEFAULT_BUDGET_S))
        if budget_s is None:
            problem = f'must be seconds above 0, or text like "10m", not {content["budget"]!r}'
            raise self.error("budget", problem)
        listed = content.get("model")
        if not isinstance(listed, list) or not listed:
            raise self.error("model", "there must be at least one [[model]]")
        models = tuple(
            self.model(f"model[{number}]", each, content)
            for number, each in enumerate(cast("list[object]", listed))
        )
        names = [model.name for model in models]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise self.error(f"model[{number}].name", f"a second model {name!r}")
        return Manifest(
            source=str(self.path),
            models=models,
            budget_s=budget_s,
            targets=self.targets("targets", content.get("targets", [])),
        )

    def model(self, place: str, given: object, shared: Mapping[str, object]) -> ModelSpec:
        own = self.mapping(place, given)
        self.check_keys(own, MODEL_KEYS, f"{place}.")

        def either(key: str, default: object) -> tuple[str, object]:
            return (f"{place}.{key}", own[key]) if key in own else (key, shared.get(key, default))

        has = [key for key in ("entry", "exported") if key in own]
        if len(has) != 1:
            raise self.error(place, "needs one of entry and exported")
        source = self.text(f"{place}.{has[0]}", own[has[0]])
        called = source if has == ["entry"] else Path(source).stem
        axes = self.axes(f"{place}.dims", own.get("dims", {}))
        where, most = either("points", DEFAULT_POINTS)
        points = self.points(where, most)
        listed = prod(len(axis) for axis in axes.values() if isinstance(axis, tuple))
        if listed > points:
            problem = f"{listed} combinations of listed sizes, more than points = {points}"
            raise self.error(f"{place}.dims", problem)
        observed = self.observed(f"{place}.sizes", own.get("sizes"), axes)
        dynamic = self.dynamic(f"{place}.dynamic", own.get("dynamic", {}))
        if dynamic and has == ["entry"]:
            problem = "is of exported programs: an entry's WarmUp names its own"
            raise self.error(f"{place}.dynamic", problem)
        labels = {
            **self.labels("labels", shared.get("labels", {})),
            **self.labels(f"{place}.labels", own.get("labels", {})),
        }

        return ModelSpec(
            name=self.name(f"{place}.name", own.get("name", called), place),
            entry=source if has == ["entry"] else "",
            exported=self.path.parent / source if has == ["exported"] else None,
            path=self.path,
            place=place,
            axes=axes,
            observed=observed,
            dynamic=dynamic,
            devices=self.devices(*either("devices", ["cpu"])),
            effort=self.effort(*either("effort", DEFAULT_EFFORT)),
            labels=labels,
            points=points,
        )

    # --------------------------------------------------------------------------- single values

    def check_keys(self, given: Iterable[str], known: Collection[str], prefix: str) -> None:
        for key in given:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                meant = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
                raise self.error(f"{prefix}{key}", f"no such key{meant}")

    def mapping(self, place: str, given: object) -> Mapping[str, object]:
        if not isinstance(given, dict):
            raise self.error(place, f"must be a table, not {given!r}")
        return cast("dict[str, object]", given)

    def text(self, place: str, given: object) -> str:
        if not isinstance(given, str) or not given.strip():
            raise self.error(place, f"must be text, not {given!r}")
        return given

    def name(self, place: str, given: object, otherwise: str) -> str:
        text = self.text(place, given)[:NAME_LIMIT] or otherwise
        if not text.isprintable():
            raise self.error(place, "must be printable")
        return text

    def effort(self, place: str, given: object) -> str:
        if not isinstance(given, str) or given not in EFFORTS:
            raise self.error(place, f"must be one of {', '.join(EFFORTS)}, not {given!r}")
        return given

    def points(self, place: str, given: object) -> int:
        if not _is_size(given) or given > POINTS_LIMIT:
            raise self.error(place, f"must be 1 to {POINTS_LIMIT}, not {given!r}")
        return given

    def devices(self, place: str, given: object) -> tuple[str, ...]:
        names = cast("list[object]", given) if isinstance(given, list) else []
        if not names:
            raise self.error(place, 'must be a list like ["cpu", "cuda:0"]')
        for number, name in enumerate(names):
            if not isinstance(name, str) or not is_device(name):
                raise self.error(f"{place}[{number}]", f"must be cpu, cuda or cuda:N, not {name!r}")
        return tuple(dict.fromkeys(map(str, names)))

    def targets(self, place: str, given: object) -> tuple[Device, ...]:
        if not isinstance(given, list):
            raise self.error(place, 'must be a list of files like ["h100.json"]')
        return tuple(
            read_device(self.path.parent / self.text(f"{place}[{number}]", name))
            for number, name in enumerate(cast("list[object]", given))
        )

    def labels(self, place: str, given: object) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, value in self.mapping(place, given).items():
            found[key] = self.text(f"{place}.{key}", value)
            if not (key + found[key]).isprintable():
                raise self.error(f"{place}.{key!r}", "must be printable")
        return found

    def dynamic(self, place: str, given: object) -> dict[str, dict[int, str]]:
        found: dict[str, dict[int, str]] = {}
        for argument, dimensions in self.mapping(place, given).items():
            for key, name in self.mapping(f"{place}.{argument}", dimensions).items():
                if not _DIMENSION.fullmatch(key):
                    raise self.error(f"{place}.{argument}.{key}", "must be a dimension's number")
                axis = self.text(f"{place}.{argument}.{key}", name)
                self.check_axis(f"{place}.{argument}.{key}", axis)
                found.setdefault(argument, {})[int(key)] = axis
        return found

    # ----------------------------------------------------------------------------------- sizes

    def check_axis(self, place: str, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise self.error(place, f"{name!r} is no name")

    def axes(self, place: str, given: object) -> dict[str, Axis]:
        found: dict[str, Axis] = {}
        for name, value in self.mapping(place, given).items():
            self.check_axis(f"{place}.{name}", name)
            found[name] = self.axis(f"{place}.{name}", value)
        return found

    def axis(self, place: str, given: object) -> Axis:
        if _is_size(given):
            return (given,)
        if isinstance(given, list):
            sizes = cast("list[object]", given)
            if not sizes:
                raise self.error(place, "the list is empty")
            for number, size in enumerate(sizes):
                if not _is_size(size):
                    raise self.error(f"{place}[{number}]", f"must be a size, not {size!r}")
            return tuple(dict.fromkeys(cast("list[int]", sizes)))
        if not isinstance(given, dict):
            raise self.error(place, "must be {min=…, max=…}, a list of sizes, or a size")
        bounds = cast("dict[str, object]", given)
        self.check_keys(bounds, ("min", "max"), f"{place}.")
        for key in ("min", "max"):
            if key not in bounds:
                raise self.error(place, f"a range needs {key}")
        low, high = bounds["min"], bounds["max"]
        for key, size in (("min", low), ("max", high)):
            if not _is_size(size):
                raise self.error(f"{place}.{key}", f"must be a size, not {size!r}")
        if cast("int", low) > cast("int", high):
            raise self.error(place, f"the range is empty: min {low} is above max {high}")
        return Range(cast("int", low), cast("int", high))

    def observed(self, place: str, given: object, axes: Mapping[str, Axis]) -> tuple[Observed, ...]:
        if given is None:
            return ()
        path = self.path.parent / self.text(place, given)
        rows = read_observed(path)
        for row in rows:
            if axes and row.sizes.keys() != axes.keys():
                differ = ", ".join(sorted(row.sizes.keys() ^ axes.keys()))
                problem = f"its names and those of {place.rpartition('.')[0]}.dims differ: {differ}"
                raise InvalidManifest(path=path, key=f"line {row.line}", problem=problem)
            for name, axis in axes.items():
                if row.sizes[name] not in axis:
                    outside = f"{name} = {row.sizes[name]} is outside {_text(axis)}"
                    raise InvalidManifest(path=path, key=f"line {row.line}", problem=outside)
        return rows


def _text(axis: Axis) -> str:
    return str(axis) if isinstance(axis, Range) else f"[{', '.join(map(str, axis))}]"


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < SIZE_LIMIT
