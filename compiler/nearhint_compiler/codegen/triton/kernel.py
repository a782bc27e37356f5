"""Triton source for a Kernel and a Schedule: what the worker compiles to a cubin ahead of time.

Families and options are in `codegen.triton.options`.

Programs are counted along the grid's first axis, x fastest, so that no axis overflows, and those of
`programs` that share rows along the second, of which there are few; tensor axes are z, y, x, r. Low
precision is computed in f32, as the IR says. Places are divided by what `codegen.triton.divisions`
adds to the arguments, named by_ and the sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nearhint_compiler.analysis.narrow_places import with_narrow_places
from nearhint_compiler.analysis.narrow_positions import with_narrow_positions
from nearhint_compiler.analysis.narrow_sums import with_narrow_sums
from nearhint_compiler.codegen.generated import Generated
from nearhint_compiler.codegen.spacing import spaced
from nearhint_compiler.codegen.triton.divisions import by_factors
from nearhint_compiler.codegen.triton.families import FAMILIES
from nearhint_compiler.codegen.triton.guard import index_facts, promised_facts
from nearhint_compiler.codegen.triton.layout import Layout
from nearhint_compiler.codegen.triton.ops import prelude
from nearhint_compiler.codegen.triton.options import check
from nearhint_compiler.codegen.triton.row import ceil_div
from nearhint_compiler.codegen.triton.text import TRITON_TYPES
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.text import kernel_id
from nearhint_compiler.schedule.schedule import Schedule
from nearhint_rules import expr as ex
from nearhint_rules.artifact import (
    Argument,
    CudaLaunch,
    PointerArgument,
    ScalarArgument,
    SizeArgument,
    StageArgument,
    WorkspaceArgument,
)
from nearhint_rules.guard import Guard
from nearhint_rules.program import DTYPES
from nearhint_rules.target import CudaDevice, Target

ARRAY_ELEMENTS = 16
"""The arrays of a workspace are whole multiples of so many, so that each is aligned."""
SCATTERED = "cuda.scattered"
EARLY_CAPABILITY = 90
"""The compute capability from which on a launch may begin before the one that it depends on has
ended (PTX ISA, griddepcontrol)."""


def generate(kernel: ir.Kernel, schedule: Schedule, target: Target) -> Generated:
    """Source, launch metadata and Guard; raises `InvalidSchedule` if the family does not fit."""
    if schedule.family not in FAMILIES or not isinstance(target.device, CudaDevice):
        raise InvalidSchedule(f"{schedule.family} is no CUDA family")
    check(schedule)
    if (ir.scatter_of(kernel) is not None) != (schedule.family == SCATTERED):
        raise InvalidSchedule(f"{schedule.family} and a scatter")
    entry = f"nearhint_{kernel_id(kernel)[:12]}"
    laid_out, spaced_facts = spaced(kernel, schedule)
    width = f"i{schedule['index']}"
    if width == "i32":
        laid_out = with_narrow_sums(with_narrow_positions(with_narrow_places(laid_out)))
    layout = FAMILIES[schedule.family](laid_out, schedule)
    if width == "i32":
        lines, factors = by_factors(
            layout.lines,
            promised=[
                name
                for number, name in enumerate(kernel.symbols)
                if schedule["divisible"] >> number & 1 and not schedule.get("unit", 0)
            ],
            flats="r" if kernel.reduction and schedule.family != SCATTERED else "xyz",
        )
        layout = replace(layout, lines=lines, sizes=(*layout.sizes, *factors))
    is_early = layout.stages > 1 and target.device.capability >= EARLY_CAPABILITY
    workspace, workspace_bytes = _workspace(layout)
    sizes = {name: (SizeArgument(size, width), width) for name, size in layout.sizes}
    parameters = {**_parameters(kernel, width), **sizes, **workspace}
    promised, divisible = promised_facts(
        kernel,
        aligned=schedule["aligned"] == 1,
        divisible=schedule["divisible"],
        multiple=schedule.get("multiple", 0),
    )
    facts = (
        *spaced_facts,
        *layout.facts,
        *(index_facts(kernel) if width == "i32" else ()),
        *promised,
    )
    constants = dict(layout.constants)
    names = [*parameters, *(f"{name}: tl.constexpr" for name in constants)]
    source = [*prelude(layout.lines), "@triton.jit", f"def {entry}({', '.join(names)}):"]
    launch = CudaLaunch(
        entry=entry,
        arguments=tuple(argument for argument, _ in parameters.values()),
        grid=(layout.programs, layout.shares, ex.ONE),
        warps=schedule["warps"],
        shared_bytes=0,
        capability=target.device.capability,
        stages=layout.stages,
        workspace_bytes=workspace_bytes,
        begin_early=is_early,
        inner=kernel.reduction[-1] if schedule.get("r1", 0) else ex.ZERO,
    )
    flags = (
        *(f"signature:{name}={kind}" for name, (_, kind) in parameters.items()),
        *(f"constexpr:{name}={value}" for name, value in constants.items()),
        *(f"divisible:{place}={multiple}" for place, multiple in divisible.items()),
        f"num_warps={schedule['warps']}",
        *([f"maxnreg={registers}"] if (registers := schedule.get("registers", 0)) else []),
    )
    waiting = _waiting(layout.stages) if is_early else ()
    text = "\n".join((*source, *(f"    {line}" for line in (*waiting, *layout.lines)), ""))
    return Generated("triton", text, launch, Guard(facts), flags)


def _waiting(stages: int) -> tuple[str, ...]:
    """All of a stage waits for the one before, memory and all, and lets the next one begin."""
    return (
        "if stage > 0:",
        "    tl.extra.cuda.gdc_wait()",
        f"if stage < {stages - 1}:",
        "    tl.extra.cuda.gdc_launch_dependents()",
    )


def _workspace(layout: Layout) -> tuple[dict[str, tuple[Argument, str]], ex.Expr]:
    """The arguments of a kernel in stages, and the bytes that it leaves between them."""
    found: dict[str, tuple[Argument, str]] = {}
    offset: ex.Expr = ex.ZERO
    for number, dtype in enumerate(layout.arrays):
        found[f"w{number}"] = WorkspaceArgument(offset), f"*{TRITON_TYPES[dtype].signature}"
        elements = ex.mul(ceil_div(layout.array_length, ARRAY_ELEMENTS), ARRAY_ELEMENTS)
        offset = ex.add(offset, ex.mul(DTYPES[dtype], elements))
    if layout.stages > 1:
        found["stage"] = StageArgument(), "i32"
    return found, offset


def _parameters(kernel: ir.Kernel, width: str) -> Mapping[str, tuple[Argument, str]]:
    """The parameters of the source: name -> how it is passed, and its type in the signature."""
    found: dict[str, tuple[Argument, str]] = {}
    for place, param in enumerate(kernel.params):
        kind = TRITON_TYPES[param.dtype]
        if param.role == "scalar":
            argument = ScalarArgument(place, kind.scalar)
            found[f"a{place}"] = argument, TRITON_TYPES[kind.scalar].signature
        else:
            found[f"a{place}"] = PointerArgument(place), f"*{kind.signature}"
    for name in kernel.symbols:
        found[name] = SizeArgument(ex.symbol(name), width), width
    return found
