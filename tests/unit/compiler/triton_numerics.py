"""Generated Triton source run by Triton's own interpreter, beside the f64 interpreter of the IR.

A `Case` is a kernel of tests/kernels, a Schedule and sizes; `run` runs many in one process, and
`assert_agrees` compares what one has written.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from tests.unit.compiler.kernels import KERNELS, TARGET

from nearhint_compiler.codegen.triton.kernel import generate
from nearhint_compiler.codegen.triton.text import TRITON_TYPES
from nearhint_compiler.ir.nodes import Param
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_daemon.workers.cases import sizes_at
from nearhint_daemon.workers.cubin import read_flags
from nearhint_daemon.workers.interpreter import interpret
from nearhint_rules import expr as ex
from nearhint_rules.artifact import (
    CudaLaunch,
    NullArgument,
    PointerArgument,
    ScalarArgument,
    SizeArgument,
    StageArgument,
    WorkspaceArgument,
)

pytest.importorskip("triton")

RUNNER = Path(__file__).with_name("triton_interpreter.py")
GUARD_BAND = 7
TORCH_DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
TOLERANCES = {"f64": 1e-12, "f32": 3e-6, "f16": 1.2e-3, "bf16": 9e-3}
POISON = 0x5A
Results: TypeAlias = tuple[Path, dict[str, dict[str, Any]]]
RUNS_LONG = pytest.mark.timeout(600)
"""Of a module whose first test runs the cases of all: a minute of computing, and several of waiting
where others compute as well."""
SIGNATURES = {f"*{kind.signature}": dtype for dtype, kind in TRITON_TYPES.items()}


@dataclass(frozen=True)
class Case:
    kernel: str
    schedule: str
    dims: tuple[int, ...]
    special: bool = False
    fill: float | None = None

    @property
    def name(self) -> str:
        family = self.schedule.partition(" ")[0].removeprefix("cuda.")
        index = "64" if "index=64" in self.schedule else "32"
        form = "_tile" * ("r1=" in self.schedule) + "_blocks" * ("pointers" in self.schedule)
        more = "".join(
            f"_{name}{value}"
            for name, value in parse_schedule(self.schedule).options
            if name
            in (
                *("polls", "group", "order", "unroll", "ahead", "whole", "words"),
                *("turns", "early", "stream", "walks", "programs", "spread"),
                *("pieces", "runs", "reuse", "unit", "multiple", "held", "tiles", "packed"),
            )
        )
        tail = form + "_special" * self.special
        tail += "" if self.fill is None else f"_{self.fill}"
        return f"{self.kernel}-{family}{index}{more}-{'x'.join(map(str, self.dims))}{tail}"


def pointwise(kernel: str, dims: tuple[int, ...], *, special: bool = False) -> list[Case]:
    narrow = "cuda.pointwise x=64 warps=4 index=32 aligned=1 divisible=0"
    wide = "cuda.pointwise x=32 warps=1 index=64 aligned=0 divisible=0"
    return [Case(kernel, schedule, dims, special) for schedule in (narrow, wide)]


def tiled(kernel: str, dims: tuple[int, ...], *, cuts: int = 1) -> list[Case]:
    text = f"cuda.tiled z=1 y=8 x=16 cuts={cuts} warps=4 index=32 aligned=1 divisible=0"
    return [Case(kernel, text, dims)]


def rows(kernel: str, dims: tuple[int, ...], *, r: int = 64, special: bool = False) -> list[Case]:
    persistent = f"cuda.persistent x=2 r={r} warps=4 index=32 aligned=1 divisible=0"
    looped = "cuda.looped x=4 r=16 warps=4 index=64 aligned=0 divisible=0"
    single = "cuda.looped x=1 r=32 warps=4 index=32 aligned=0 divisible=0"
    return [Case(kernel, schedule, dims, special) for schedule in (persistent, looped, single)]


def split(kernel: str, dims: tuple[int, ...], *, special: bool = False) -> list[Case]:
    few = "cuda.split x=2 r=8 splits=3 warps=4 index=32 aligned=0 divisible=0"
    many = "cuda.split x=1 r=16 splits=8 warps=1 index=64 aligned=0 divisible=0"
    return [Case(kernel, schedule, dims, special) for schedule in (few, many)]


def planes(kernel: str, dims: tuple[int, ...], *, special: bool = False) -> list[Case]:
    """Rows of several loops, the innermost along an axis of its own."""
    rest = "warps=4 index=32 aligned=0 divisible=0"
    texts = (
        f"cuda.persistent x=2 r=512 {rest} r1=64",
        f"cuda.looped x=4 r=64 {rest} r1=16",
        "cuda.looped x=1 r=32 warps=4 index=64 aligned=0 divisible=0 r1=32",
        f"cuda.split x=2 r=32 splits=3 {rest} r1=8",
        f"cuda.split x=2 r=8 splits=3 {rest} programs=9 r1=8",  # more steps than tiles
    )
    return [Case(kernel, text, dims, special) for text in texts]


def filled(fill: float, *cases: Case) -> list[Case]:
    """The same with one value everywhere."""
    return [replace(case, fill=fill) for case in cases]


def unrolled(*cases: Case) -> list[Case]:
    """The same with two steps of a walk written out."""
    walks = [case for case in cases if "persistent" not in case.schedule]
    return [replace(case, schedule=f"{case.schedule} unroll=2") for case in walks]


def pointed(*cases: Case) -> list[Case]:
    """The same with block pointers, where indices have 32 bits."""
    narrow = [case for case in cases if "index=32" in case.schedule]
    return [replace(case, schedule=f"{case.schedule} block_pointers=1") for case in narrow]


def tiled_rows(
    kernel: str, dims: tuple[int, ...], *, r: int = 64, cuts: int = 1, spaced: int = 0
) -> list[Case]:
    rest = f"cuts={cuts} warps=4 index=32 aligned=0 divisible=0{' spaced=1' * spaced}"
    whole = f"cuda.tiled_persistent z=1 y=4 x=2 r={r} {rest}"
    steps = f"cuda.tiled_looped z=1 y=2 x=4 r=16 {rest}"
    return [Case(kernel, schedule, dims) for schedule in (whole, steps)]


def in_planes(kernel: str, dims: tuple[int, ...]) -> list[Case]:
    """Columns of one plane a program, which share what they have along the row."""
    text = "cuda.tiled_looped z=1 y=1 x=128 r=4 cuts=1 warps=4 index=32 aligned=0 divisible=0"
    return [Case(kernel, f"{text}{more}", dims) for more in ("", " unroll=2")]


def cubed(kernel: str, dims: tuple[int, ...], *, z: int = 2) -> list[Case]:
    text = f"cuda.tiled z={z} y=4 x=8 cuts=3 warps=4 index=32 aligned=0 divisible=0"
    return [Case(kernel, text, dims)]


def random_storage(param: Param, size: int, seed: int, case: Case) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    dtype = TORCH_DTYPES[param.dtype]
    if param.dtype == "bool":
        return torch.rand(size, generator=generator) < 0.6
    if param.dtype[0] in "iu":
        low = 0 if param.dtype == "u8" else -9
        values = torch.randint(low, 100, (size,), generator=generator)
        return torch.where(values == 0, 3, values).to(dtype)
    values = torch.randn(size, generator=generator, dtype=torch.float64) * 3
    if case.fill is not None:
        values.fill_(case.fill)
    if case.special:
        for place, value in enumerate(
            (float("nan"), float("inf"), -float("inf"), -0.0, 80.0, 1e-40)
        ):
            values[(place * 7 + 3) % size] = value
    return values.to(dtype)


def prepare(case: Case, folder: Path) -> dict[str, Any]:
    kernel = parse_kernel((KERNELS / f"{case.kernel}.ir").read_text())
    dims = dict(zip(kernel.symbols, case.dims, strict=True))
    generated = generate(kernel, parse_schedule(case.schedule), TARGET)
    launch = generated.launch
    assert isinstance(launch, CudaLaunch)
    inputs: list[torch.Tensor | float] = []
    storages: dict[str, torch.Tensor] = {}
    names: dict[int, str] = {}
    for place, (param, size) in enumerate(
        zip(kernel.params, sizes_at(kernel, dims).elements, strict=True)
    ):
        if param.role == "scalar":
            inputs.append({"f": 1.5, "i": 3, "b": 1}[param.dtype[0]])
            continue
        names[place] = f"{param.role[0]}{place}"
        if param.role == "in":
            storages[names[place]] = random_storage(param, size, place, case)
            inputs.append(storages[names[place]])
        else:
            length = (size + GUARD_BAND) * torch.empty(0, dtype=TORCH_DTYPES[param.dtype]).itemsize
            poisoned = torch.full((length,), POISON, dtype=torch.uint8)
            storages[names[place]] = poisoned
    arguments: list[str | float] = []
    workspace: dict[str, torch.Tensor] = {}
    for argument in launch.arguments:
        match argument:
            case PointerArgument(place):
                arguments.append(names[place])
            case ScalarArgument(place, dtype):
                value = float(inputs[place])
                arguments.append(value if dtype[0] == "f" else int(value))
            case SizeArgument(expr, _):
                arguments.append(ex.evaluate(expr, dims))
            case WorkspaceArgument():
                arguments.append(f"w{len(workspace)}")
                workspace[f"w{len(workspace)}"] = torch.full(
                    (ex.evaluate(launch.workspace_bytes, dims),), POISON, dtype=torch.uint8
                )
            case StageArgument():
                arguments.append("stage")
            case NullArgument():
                raise AssertionError(argument)
    signature = dict(read_flags(generated.flags).signature)
    (folder / f"{case.name}.py").write_text(generated.source)
    (folder / f"{case.name}.json").write_text(
        json.dumps(
            {
                "entry": launch.entry,
                "grid": [ex.evaluate(size, dims) for size in launch.grid],
                "constants": dict(read_flags(generated.flags).constants),
                "arguments": arguments,
                "stages": launch.stages,
                "storages": {
                    **{name: kernel.params[place].dtype for place, name in names.items()},
                    **{name: SIGNATURES[signature[name]] for name in workspace},
                },
            }
        )
    )
    storages |= workspace
    raw = {name: tensor.view(torch.uint8).numpy() for name, tensor in storages.items()}
    np.savez(folder / f"{case.name}.npz", allow_pickle=False, **raw)
    return {"kernel": kernel, "dims": dims, "inputs": inputs, "names": names}


def run(
    cases: Sequence[Case],
    folder: Path,
    *,
    change: Callable[[str, Path], object] = lambda name, folder: None,
) -> Results:
    """Prepares these cases, changes what was prepared, and runs all in one process."""
    prepared = {case.name: prepare(case, folder) for case in cases}
    for name in prepared:
        change(name, folder)
    subprocess.run([sys.executable, RUNNER, folder], check=True)
    return folder, prepared


def share_storage(name: str, folder: Path) -> None:
    """Lets a prepared case read its first input from where its output goes."""
    path, stored = folder / f"{name}.json", dict(np.load(folder / f"{name}.npz"))
    case = json.loads(path.read_text())
    (output,) = (storage for storage in stored if storage[0] == "o")
    stored[output][: len(stored["i0"])] = stored["i0"]
    case["arguments"] = [output if each == "i0" else each for each in case["arguments"]]
    path.write_text(json.dumps(case))
    np.savez(folder / f"{name}.npz", allow_pickle=False, **stored)


def as_numpy(value: torch.Tensor | float) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return (value.double() if value.is_floating_point() else value).numpy()


def assert_agrees(case: Case, results: Results) -> None:
    """What the case's source has written is what the f64 interpreter of its IR says."""
    folder, prepared = results
    facts = prepared[case.name]
    kernel, names = facts["kernel"], facts["names"]
    expected = interpret(kernel, facts["dims"], [as_numpy(value) for value in facts["inputs"]])
    written = np.load(folder / f"{case.name}.out.npz")
    places = [place for place, param in enumerate(kernel.params) if param.role == "out"]
    for place, output in zip(places, expected, strict=True):
        dtype = kernel.params[place].dtype
        raw = torch.from_numpy(written[names[place]])
        actual = raw.view(TORCH_DTYPES[dtype])
        touched = torch.zeros(actual.numel(), dtype=torch.bool)
        touched[torch.from_numpy(output.indices)] = True
        rest = raw.view(actual.numel(), -1)[~touched]
        assert (rest == POISON).all(), "wrote where it must not"
        got = as_numpy(actual[torch.from_numpy(output.indices)])
        if dtype in TOLERANCES:
            with np.errstate(invalid="ignore"):
                distance = np.abs(got - output.values)
            limit = TOLERANCES[dtype] * np.maximum(output.magnitudes, 1)
            same = (distance <= limit) | (got == output.values)
            same |= np.isnan(got) & np.isnan(output.values)
            assert same.all(), (got[~same][:5], output.values[~same][:5])
        else:
            np.testing.assert_array_equal(got, output.values)
