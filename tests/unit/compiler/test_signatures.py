"""What a launch hands over: the same tensors for every form of a Kernel, under bare names."""

from __future__ import annotations

import ast

import pytest
from tests.unit.compiler.kernels import KERNELS, TARGET

from nearhint_compiler.codegen import generate
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule.choice import MAX, choose
from nearhint_daemon.workers.cubin import read_flags
from nearhint_rules.artifact import (
    CudaLaunch,
    PointerArgument,
    ScalarArgument,
    StageArgument,
    WorkspaceArgument,
)

FAMILIES = {
    "softmax_f32": {"cuda.persistent", "cuda.looped"},
    "one_row_softmax_f32": {"cuda.looped", "cuda.split"},
    "residual_layer_norm_f16": {"cuda.persistent", "cuda.looped"},
    "row_cumsum_f32": {"cuda.persistent", "cuda.looped"},
    "mean_variance_f32": {"cuda.persistent", "cuda.looped"},
}
SIZES = ((64, 512), (7, 4096), (3, 100003), (4096, 48))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_form_of_a_kernel_takes_the_same_tensors_in_the_same_order(name: str) -> None:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    seen: set[str] = set()
    handed: set[tuple[int, ...]] = set()
    for sizes in SIZES:
        dims = dict(zip(kernel.symbols, sizes[-len(kernel.symbols) :], strict=True))
        for schedule in choose(kernel, TARGET, dims, effort=MAX).schedules:
            launch = generate(kernel, schedule, TARGET).launch
            assert isinstance(launch, CudaLaunch)
            seen.add(str(schedule).partition(" ")[0])
            handed.add(
                tuple(
                    argument.parameter
                    for argument in launch.arguments
                    if isinstance(argument, PointerArgument | ScalarArgument)
                )
            )
            # what one stage leaves for the next is its own, and nobody else's to keep
            kinds = {type(argument) for argument in launch.arguments}
            assert (launch.stages > 1) <= ({WorkspaceArgument, StageArgument} <= kinds)
    assert seen >= FAMILIES[name]
    assert handed == {tuple(range(len(kernel.params)))}


@pytest.mark.parametrize("name", [*FAMILIES, "column_sum_f32", "transpose_batched_bf16"])
def test_signatures_have_bare_names_and_constants_apart(name: str) -> None:
    kernel = parse_kernel((KERNELS / f"{name}.ir").read_text())
    dims = dict(zip(kernel.symbols, (64, 512, 48), strict=False))
    for schedule in choose(kernel, TARGET, dims, effort=MAX).schedules:
        generated = generate(kernel, schedule, TARGET)
        options = read_flags(generated.flags)
        entry = generated.launch.entry
        (function,) = (
            node
            for node in ast.walk(ast.parse(generated.source))
            if isinstance(node, ast.FunctionDef) and node.name == entry
        )
        marked = {each.arg for each in function.args.args if each.annotation is not None}
        bare = [each.arg for each in function.args.args if each.annotation is None]
        assert set(options.constants) == marked
        assert list(options.signature) == bare
        assert not any(":" in each for each in (*options.signature, *options.constants))
