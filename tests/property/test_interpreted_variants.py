"""Variants for a GPU on a machine without one: random Kernels, Schedules and sizes, interpreted.

What is drawn is run by Triton's interpreter, all in one process of its own, on the inputs that a
daemon would draw, and judged as the daemon judges. Small grids alone: a program takes milliseconds.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from tests.property.examples import unshrunk
from tests.property.kernels import kernels
from tests.property.test_variants import CORPUS, VIEWS, lowered_kernels
from tests.unit.compiler.kernels import TARGET
from tests.unit.compiler.triton_numerics import RUNNER, SIGNATURES

from nearhint_compiler.codegen import Generated, generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import print_kernel
from nearhint_compiler.schedule.choice import MAX_LIMIT
from nearhint_compiler.schedule.cuda import candidates
from nearhint_daemon.workers.cases import Sizes, sizes_at, stores_overlap
from nearhint_daemon.workers.cubin import read_flags
from nearhint_daemon.workers.elements import STORAGE, Array, Draw, whole_of
from nearhint_daemon.workers.memory import poison_byte
from nearhint_daemon.workers.reference import Reference, make_reference
from nearhint_daemon.workers.verify import Case, Ran, judged
from nearhint_rules import expr as ex
from nearhint_rules.artifact import (
    CudaLaunch,
    PointerArgument,
    SizeArgument,
    StageArgument,
    WorkspaceArgument,
)
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.guard import size_facts_hold

pytest.importorskip("triton")

SIZES = st.sampled_from((1, 2, 3, 5, 7, 8, 16, 17, 31, 32, 33, 64, 97, 128, 257))
HINTS = st.sampled_from((1, 8, 64, 1000, 4096, 65_536))
"""Sizes of which some candidates are run at others: where rows are few, or long."""
POINTS, BYTES, PROGRAMS = 1 << 12, 1 << 20, 24
"""At most: of the iteration space, of all parameters, and of the launches of all stages."""
WELL_INTERPRETED = frozenset({*STORAGE} - {"f8e4m3fn", "f8e5m2"})
"""The dtypes that Triton's interpreter rounds as a GPU does."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A Variant at sizes, and what it must make of its inputs there."""

    kernel: ir.Kernel
    generated: Generated
    case: Case
    reference: Reference
    seed: int


@dataclass(frozen=True, slots=True)
class Written:
    """A parameter's memory after a run: the interpreter reads and writes nothing beside it."""

    elements: Array
    address: int = 0

    def read(self) -> Array:
        return self.elements

    def read_at(self, indices: Array) -> Array:
        return np.asarray(self.elements[indices])

    def is_intact(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is to be given back."""


def is_interpretable(kernel: ir.Kernel) -> bool:
    """Whether all of a Kernel is what the interpreter computes as a GPU does."""
    is_known = {*ir.dtypes_of(kernel)} <= WELL_INTERPRETED
    return is_known and all(param.role != "scalar" for param in kernel.params)


KERNELS = st.one_of(
    lowered_kernels(), kernels(), st.sampled_from(CORPUS), st.sampled_from(VIEWS)
).filter(is_interpretable)


def fits(kernel: ir.Kernel, sizes: Sizes) -> bool:
    """Whether so much may be run."""
    is_small = sizes.points <= POINTS and sizes.size_bytes(kernel) <= BYTES
    return is_small and not stores_overlap(kernel, sizes)


def drawn_variant(kernel: ir.Kernel, data: st.DataObject) -> Drawn:
    dims = {name: data.draw(SIZES, label=name) for name in kernel.symbols}
    others = {name: data.draw(HINTS, label=f"hint {name}") for name in kernel.symbols}
    try:
        sizes = sizes_at(kernel, dims)
        sizes_at(kernel, others)
    except InvalidExpression:
        reject()
    assume(fits(kernel, sizes))
    hint = data.draw(st.sampled_from((dims, others)))
    space = candidates(kernel, TARGET, hint, limit=MAX_LIMIT)
    generated = generate(kernel, data.draw(st.sampled_from(space), label="schedule"), TARGET)
    launch = generated.launch
    assert isinstance(launch, CudaLaunch)
    programs = math.prod(ex.evaluate(size, dims) for size in launch.grid) * launch.stages
    assume(size_facts_hold(generated.guard, dims) and programs <= PROGRAMS)
    draw: Draw = data.draw(st.sampled_from(("normal", "normal", "special", "far apart")))
    seed = data.draw(st.integers(0, 2**20), label="seed")
    reference = make_reference(kernel, sizes, seed=(seed,), draw=draw)
    return Drawn(kernel, generated, Case(sizes, "aligned", 1, draw), reference, seed)


def prepare(drawn: Drawn, name: str, folder: Path) -> None:
    """Writes the case as the interpreter's program takes it."""
    launch, sizes = drawn.generated.launch, drawn.case.sizes
    assert isinstance(launch, CudaLaunch)
    flags = read_flags(drawn.generated.flags)
    dtypes: dict[str, str] = {}
    stored: dict[str, Array] = {}
    for place, (param, count, content) in enumerate(
        zip(drawn.kernel.params, sizes.elements, drawn.reference.inputs, strict=True)
    ):
        known = f"{param.role[0]}{place}"
        size = count * np.dtype(STORAGE[param.dtype]).itemsize
        poison = np.full(size, poison_byte(param.dtype), np.uint8)
        stored[known] = poison if content is None else whole_of(content)
        dtypes[known] = param.dtype
    arguments: list[str | int] = []
    for (parameter, kind), argument in zip(flags.signature.items(), launch.arguments, strict=True):
        match argument:
            case PointerArgument(place):
                arguments.append(f"{drawn.kernel.params[place].role[0]}{place}")
            case SizeArgument(size, _):
                arguments.append(ex.evaluate(size, sizes.dims))
            case WorkspaceArgument():
                arguments.append(parameter)
                count = ex.evaluate(launch.workspace_bytes, sizes.dims)
                stored[parameter] = np.full(count, poison_byte("f32"), np.uint8)
                dtypes[parameter] = SIGNATURES[kind]
            case StageArgument():
                arguments.append("stage")
            case _:
                raise AssertionError(argument)
    described = {
        "entry": launch.entry,
        "grid": [ex.evaluate(size, sizes.dims) for size in launch.grid],
        "constants": dict(flags.constants),
        "arguments": arguments,
        "stages": launch.stages,
        "storages": dtypes,
    }
    (folder / f"{name}.py").write_text(drawn.generated.source)
    (folder / f"{name}.json").write_text(json.dumps(described))
    np.savez(
        folder / f"{name}.npz",
        allow_pickle=False,
        **{key: elements.view(np.uint8) for key, elements in stored.items()},
    )


def problem_of(drawn: Drawn, name: str, folder: Path) -> str:
    """What is wrong with what a case has written; empty if nothing is."""
    found = np.load(folder / f"{name}.out.npz")
    buffers = [
        Written(
            found[f"o{place}"].view(STORAGE[param.dtype]) if content is None else whole_of(content)
        )
        for place, (param, content) in enumerate(
            zip(drawn.kernel.params, drawn.reference.inputs, strict=True)
        )
    ]
    ran = Ran(drawn.case, drawn.reference, buffers=buffers)
    return judged(drawn.kernel, ran, seed=drawn.seed).problem


@pytest.mark.timeout(600)  # NEARHINT_EXPLORE draws many
def test_any_variant_for_a_gpu_is_right_by_the_interpreter(tmp_path: Path) -> None:
    found: list[Drawn] = []

    @unshrunk(40)
    @given(KERNELS, st.data())
    def draw(kernel: ir.Kernel, data: st.DataObject) -> None:
        found.append(drawn_variant(kernel, data))

    draw()
    for number, drawn in enumerate(found):
        prepare(drawn, f"case{number}", tmp_path)
    subprocess.run([sys.executable, RUNNER, tmp_path], check=True)
    for number, drawn in enumerate(found):
        problem = problem_of(drawn, f"case{number}", tmp_path)
        assert not problem, f"{problem}, {drawn.case}\n{print_kernel(drawn.kernel)}"
