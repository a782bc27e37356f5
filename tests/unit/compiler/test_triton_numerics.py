"""Generated Triton source computes what the IR says, in Triton's own interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

from nearhint_compiler.codegen.triton.kernel import generate
from nearhint_compiler.codegen.triton.text import TRITON_TYPES
from nearhint_compiler.ir.nodes import Kernel, Load, Param, Store
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.schedule import parse_schedule
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
from nearhint_rules.target import CudaDevice, Target

pytest.importorskip("triton")
pytestmark = pytest.mark.timeout(600)  # all cases are interpreted in one go

KERNELS = Path(__file__).parents[2] / "kernels"
RUNNER = Path(__file__).with_name("triton_interpreter.py")
TARGET = Target(CudaDevice("NVIDIA H100", 90, 132, 80 << 30, "580", 700), ("triton 3.7.1",))
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
pytestmark = RUNS_LONG
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
                *("pieces", "runs", "reuse", "unit", "multiple", "held"),
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


CASES = [
    *pointwise("add_bf16", (101,)),
    *pointwise("add_f32", (1,)),
    *pointwise("gelu_tanh_f16", (130,), special=True),
    *pointwise("gelu_erf_f32", (97,), special=True),
    *pointwise("silu_mul_bf16", (64,)),
    *pointwise("relu_squared_f16", (33,), special=True),
    *pointwise("tanh_f64", (40,), special=True),
    *pointwise("clamp_int", (77,)),
    *pointwise("int_division", (90,)),
    *pointwise("float_division", (90,)),
    *pointwise("nan_guard", (50,), special=True),
    *pointwise("compare_bool", (50,), special=True),
    *pointwise("to_u8", (50,)),
    *pointwise("narrow_mix", (70,)),
    *pointwise("scalars_f16", (31,)),
    *pointwise("bias_relu_dynamic_f32", (5, 13)),
    *tiled("bias_relu_dynamic_f32", (5, 37)),
    *tiled("bias_relu_dynamic_f32", (1, 1)),
    *pointwise("merge_heads_f16", (2, 3))[:1],
    *tiled("merge_heads_f16", (1, 3)),
    *pointwise("transpose_add_f32", (11, 17)),
    *tiled("transpose_add_f32", (11, 17)),
    *pointwise("transpose_batched_bf16", (3, 5, 7)),
    *tiled("transpose_batched_bf16", (3, 5, 17), cuts=2),
    *tiled("transpose_batched_bf16", (9, 2, 3), cuts=1),
    *pointwise("clamped_flip_f32", (23,)),
    *pointwise("rotary_f16", (2, 3)),
    *rows("softmax_f32", (5, 37)),
    *rows("softmax_f32", (3, 64), special=True),
    *rows("softmax_f32", (1, 1)),
    *rows("one_row_softmax_f32", (61,)),
    *split("one_row_layer_norm_f32", (261,)),
    *rows("softmax_f16", (3, 47)),
    *rows("softmax_mask_f16", (3, 33)),
    *rows("log_softmax_f32", (2, 61)),
    *rows("layer_norm_f32", (3,), r=512),
    *rows("layer_norm_dynamic_f32", (3, 53)),
    *rows("residual_layer_norm_f16", (2,), r=512),
    *rows("residual_rms_norm_bf16", (1,), r=4096)[:1],
    *rows("row_sum_f32", (7, 61)),
    *rows("row_max_f16", (3, 50), special=True),
    *rows("row_prod_f64", (3, 9)),
    *rows("row_sum_i64", (5, 31)),
    *rows("row_min_i8", (5, 31)),
    *rows("row_max_u8", (5, 31)),
    *rows("row_any_bool", (5, 3)),
    *rows("row_all_f32", (5, 3)),
    *rows("mean_variance_f32", (3, 41)),
    *rows("mean_variance_f32", (9, 7), special=True),
    *rows("column_sum_f32", (35, 6)),
    *rows("masked_mean_pool_f16", (1, 5)),
    *in_planes("masked_mean_pool_f16", (3, 13)),
    *rows("abs_max_all_f32", (55,)),
    *rows("sum_outer_inner_f32", (3, 4, 7)),
    *rows("logsumexp_f32", (4, 37)),
    *rows("logsumexp_f32", (3, 64), special=True),
    *split("logsumexp_f32", (3, 64), special=True),
    *rows("max_and_sum_f32", (3, 64), special=True),
    *split("max_and_sum_f32", (3, 64), special=True),
    *filled(-float("inf"), *rows("max_and_sum_f32", (3, 37)), *split("max_and_sum_f32", (3, 37))),
    *filled(float("inf"), *rows("max_and_sum_f32", (3, 37)), *split("max_and_sum_f32", (3, 37))),
    *rows("row_argmax_f32", (5, 37)),
    *rows("row_argmax_f32", (5, 61), special=True),
    *rows("column_argmin_bf16", (6, 35)),
    *filled(-float("inf"), *rows("row_argmax_f32", (5, 37)), *split("row_argmax_f32", (5, 137))),
    *filled(float("inf"), *rows("column_argmin_bf16", (6, 35))),
    *filled(-float("inf"), *rows("softmax_f32", (3, 37)), *rows("row_max_f16", (3, 50))),
    *unrolled(*rows("row_argmax_f32", (5, 37)), *split("softmax_f32", (3, 75))),
    *unrolled(*rows("mean_variance_f32", (3, 75))),
    *rows("arg_over_two_loops_i32", (3, 4, 9)),
    *planes("sum_outer_inner_f32", (5, 4, 39)),
    *planes("sum_outer_inner_f32", (1, 1, 1)),
    *planes("sum_outer_inner_f32", (3, 4, 64), special=True),
    *planes("arg_over_two_loops_i32", (3, 7, 29)),
    *planes("arg_min_of_planes_f32", (2, 5, 3)),
    *planes("arg_min_of_planes_f32", (2, 5, 3), special=True),
    *planes("plane_norm_bf16", (3, 5, 41)),
    *planes("plane_norm_bf16", (7, 2, 64), special=True),
    *planes("plane_norm_bf16", (8, 3, 8)),
    *rows("plane_norm_bf16", (3, 5, 17)),
    *rows("row_cumsum_f32", (5, 61)),
    *rows("column_cumprod_i64", (5, 33)),
    *split("softmax_f32", (5, 37)),
    *split("softmax_f32", (3, 64), special=True),
    *split("softmax_f32", (1, 1)),
    *split("log_softmax_f32", (2, 261)),
    *split("layer_norm_dynamic_f32", (3, 153)),
    *split("mean_variance_f32", (3, 341)),
    *split("mean_variance_f32", (9, 7), special=True),
    *split("column_sum_f32", (6, 135)),
    *split("row_argmax_f32", (5, 137), special=True),
    *split("row_sum_i64", (5, 31)),
    *split("abs_max_all_f32", (555,)),
    *split("masked_mean_pool_f16", (1, 5)),
    *split("row_cumsum_f32", (5, 261)),
    *split("row_cumsum_f32", (3, 64), special=True),
    *split("row_cumsum_f32", (1, 1)),
    *split("row_cumprod_f64", (3, 141)),
    *split("column_cumprod_i64", (5, 133)),
    *split("normalised_cumsum_bf16", (3, 141)),
    *split("normalised_cumsum_bf16", (1, 2)),
    *cubed("transpose_batched_bf16", (3, 5, 17)),
    *cubed("transpose_batched_bf16", (9, 2, 3), z=1),
    *tiled_rows("blocks_of_transposed_bf16", (6, 64, 3), r=32, spaced=1),
    *rows("blocks_of_transposed_bf16", (6, 64, 3), r=32),
    *pointed(
        *tiled("bias_relu_dynamic_f32", (5, 37)),
        *tiled("bias_relu_dynamic_f32", (1, 1)),
        *tiled("transpose_add_f32", (11, 17)),
        *tiled("transpose_batched_bf16", (3, 5, 17), cuts=2),
        *cubed("transpose_batched_bf16", (3, 5, 17)),
        *rows("softmax_f32", (5, 37)),
        *rows("softmax_f32", (3, 64), special=True),
        *rows("softmax_mask_f16", (3, 33)),
        *rows("layer_norm_f32", (3,), r=512),
        *rows("row_max_f16", (3, 50), special=True),
        *rows("row_max_u8", (5, 31)),
        *rows("row_argmax_f32", (5, 37)),
        *rows("row_cumsum_f32", (5, 61)),
        *split("row_cumsum_f32", (5, 261)),
        *split("layer_norm_dynamic_f32", (3, 153)),
    ),
]


def storage_sizes(kernel: Kernel, dims: Mapping[str, int]) -> list[int]:
    """How many elements each parameter needs, by running the indices."""
    ranges = {name: (size, size) for name, size in dims.items()}
    for prefix, extents in (("p", kernel.pointwise), ("r", kernel.reduction)):
        for number, extent in enumerate(extents):
            ranges[f"{prefix}{number}"] = (0, ex.evaluate(extent, dims) - 1)
    sizes = [1] * len(kernel.params)
    for node in kernel.body:
        if isinstance(node, Load | Store):
            high = ex.bounds(node.index, ranges)[1]
            assert high is not None
            sizes[node.param] = max(sizes[node.param], high + 1)
    return sizes


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
        for place, value in enumerate((float("nan"), float("inf"), -float("inf"), -0.0, 80.0)):
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
        zip(kernel.params, storage_sizes(kernel, dims), strict=True)
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


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(CASES, tmp_path_factory.mktemp("triton"))


def as_numpy(value: torch.Tensor | float) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return (value.double() if value.is_floating_point() else value).numpy()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(case: Case, results: Results) -> None:
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
