"""Targets of machines that are elsewhere: a device half as JSON, and Programs as if captured there.

`nearhint policy DEVICE --json` prints a device's half under `device`, and `nearhint status --json`
each of them; a file with that object, with the entry around it, or with the whole answer where it
has one device, names the Target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import cast

from nearhint.errors import InvalidManifest
from nearhint.warmup.files import read_file
from nearhint_proto import convert
from nearhint_proto.v1 import types_pb2
from nearhint_rules.errors import RulesError
from nearhint_rules.program import Arg, Keyword, Program, TensorType, ValueType
from nearhint_rules.target import CpuDevice, CudaDevice, Device, Target, capability_problem

KINDS: Mapping[str, type[CpuDevice] | type[CudaDevice]] = {"cpu": CpuDevice, "cuda": CudaDevice}


def device_json(message: types_pb2.Device) -> dict[str, object] | None:
    """A device half as JSON, with its kind; None where it is not known yet."""
    try:
        device = convert.device_from_proto(message)
    except RulesError:
        return None
    return {"kind": Target(device, ()).kind, **asdict(device)}


def read_device(path: Path) -> Device:
    """The device half in a JSON file; raises `FileMissing` or `InvalidManifest`."""
    try:
        content: object = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise InvalidManifest(path=path, key="not JSON", problem=error) from error
    given = _half(path, content)
    kind = given.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidManifest(path=path, key="kind", problem=f"must be cpu or cuda, not {kind!r}")
    known = {each.name for each in fields(KINDS[kind])}
    for name in sorted(known ^ given.keys()):
        problem = "missing" if name in known else "no such key"
        raise InvalidManifest(path=path, key=name, problem=problem)
    for name, value in given.items():
        if name == "features":
            listed = cast("list[object]", value) if isinstance(value, list) else [0]
            if not all(isinstance(item, str) for item in listed):
                raise InvalidManifest(path=path, key=name, problem="must be a list of texts")
    maker = types_pb2.CpuDevice if kind == "cpu" else types_pb2.CudaDevice
    try:
        half = maker(**given)  # type: ignore[arg-type]
        message = (
            types_pb2.Device(cpu=half)
            if isinstance(half, types_pb2.CpuDevice)
            else types_pb2.Device(cuda=half)
        )
        device = convert.device_from_proto(message)
    except (TypeError, ValueError, RulesError) as error:
        raise InvalidManifest(path=path, key="device", problem=error) from error
    if isinstance(device, CudaDevice) and (problem := capability_problem(device.capability)):
        raise InvalidManifest(path=path, key="capability", problem=problem)
    return device


def _half(path: Path, content: object) -> dict[str, object]:
    """The object with the device's facts, out of whatever of the status it is in."""
    for key in ("devices", "device"):
        if isinstance(content, dict) and key in content:
            content = cast("dict[str, object]", content)[key]
        if key == "devices" and isinstance(content, list):
            entries = cast("list[object]", content)
            if len(entries) != 1:
                problem = f"{len(entries)} devices: `nearhint policy DEVICE --json` prints one"
                raise InvalidManifest(path=path, key=key, problem=problem)
            content = entries[0]
    if content is None:
        problem = "not known yet: the daemon's worker had not answered"
        raise InvalidManifest(path=path, key="device", problem=problem)
    if not isinstance(content, dict):
        raise InvalidManifest(path=path, key="device", problem="must be an object")
    return dict(cast("dict[str, object]", content))


def as_on(program: Program, device: Device) -> Program:
    """The Program as if its tensors were on a device of that kind.

    Captured on a CPU, a scalar tensor of 64-bit floats stays there: it is a number of Python's.
    """
    kind = Target(device, ()).kind

    def value(given: ValueType) -> ValueType:
        if not isinstance(given, TensorType) or (not given.shape and given.dtype == "f64"):
            return given
        return replace(given, device=kind)

    def argument(given: Arg) -> Arg:
        is_device = isinstance(given, Keyword) and given.kind == "device"
        return Keyword("device", kind) if is_device else given

    return replace(
        program,
        inputs=tuple(map(value, program.inputs)),
        nodes=tuple(
            replace(
                node,
                outputs=tuple(map(value, node.outputs)),
                kwargs=tuple((name, argument(each)) for name, each in node.kwargs),
            )
            for node in program.nodes
        ),
    )
