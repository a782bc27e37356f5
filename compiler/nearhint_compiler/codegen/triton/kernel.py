"""Triton source for a Kernel and a Schedule: what the worker compiles to a cubin ahead of time.

Families (options in order; every block size is a power of two):

    cuda.pointwise   x            a flat block of x points
    cuda.tiled       z y x cuts   a tile of two or three axes (z 1 with two), each a run of loops
    cuda.persistent  x r          x rows a program, whole in registers
    cuda.looped      x r          x rows a program, r elements a step
    cuda.split       x r splits   the same, `splits` programs sharing a row, in stages; scans too
    cuda.cooperative x r splits teams
                     the parts of r elements of x rows in registers, a team of `splits` programs
                     for them and `teams` teams at a time (`codegen.triton.cooperative`)
    cuda.chained     x r           scans of x columns in chunks of r runs in registers, each after
                     those before it (`codegen.triton.chained`); `unroll` rows are a run
    cuda.tiled_persistent, cuda.tiled_looped
                     z y x r cuts the rows in a tile as cuda.tiled has it

Bit i of `cuts` is set where an axis ends with loop p{i}. All have warps, index, aligned, divisible
and, as they may, spaced: 1 for the kernel as `analysis.respace` cuts its loops, under the Guard
that this needs. `index` is 32 or 64, the width of index arithmetic; 32 brings Guards. `aligned` 1
promises 16-byte pointers, and bit i of `divisible` promises that symbol i is a multiple of what
`multiple` says, without it of 16, or of as many as reductions need (`analysis.multiples`): both
bring Guards, and make Triton load vectors. As they may, too:

    pieces   rows in registers, and parts of them that teams hold: so many blocks of r elements hold
             one, one behind the other; walks that read rows once: so many are a step, all loaded
             before any of them is used
    runs     rows of several loops: by how many neighbours what the innermost loops share is read at
             once, which is at most as many as are in any of its runs
    polls    teams: how often a program looks for the others before it gives up
    apart    split columns: the totals of all chunks, or of those before each, are brought together
             in a stage between, by programs of so many columns
    back     chains: how many chunks before its own a program looks at at once
    together chains: so many chunks in a row leave what they come to together, too, and `back` is
             counted in as many
    registers
             a bound on those of a thread, so that a processor holds as many programs as wanted
    group    walks, and args in registers: by how many neighbours along the row an accumulator is
             stepped at once; those of a thread's vector for speed, and any for right
    unroll   walks: how many steps are written out, whose loads are under way together
    held     walks over flat rows that are walked twice: how many tiles, the last of the first
             walk, stay in registers for the second (`codegen.triton.held`)
    keep     walks: 1 where what all rows read alike is to stay in the first cache, from which the
             rows after read it again
    ahead    walks that store nothing, or go back over what was read: how many steps are under way
             at once, copied to shared memory without passing registers (`cp.async`). Teams that
             hold their rows, and turns: 2 where the next row is loaded, into registers, before the
             one at hand waits for its totals
    programs split rows: at most `splits` share one, fewer where rows are so many that all blocks of
             them together would be more than so many programs
    fold     split columns: so many rows are read, and stored, as one, and those that are no whole
             such row apart
    near     cuda.tiled of two axes: the order of programs, so that what neighbours share is in a
             cache. 1: first along the axis that has fewer of them, whatever the sizes; more: so
             many along the first axis, then along the second
    whole    1 for flat blocks without a mask where they are full, whose vectors need no promise
             about sizes
    unit     cuda.pointwise: so many neighbours are a unit, whose place is divided once
             (`analysis.units`); no row is shorter
    multiple what `divisible` promises sizes to be multiples of
    words    1 for rows in whole words, with their edges apart (`codegen.triton.edges`): vectors
             along rows of any length, no promise about sizes; with r1, along planes of any length.
             Of cuda.tiled, with near, the rows are those along its last axis: each begins in the
             tile where its words do
    turns    rows in words: how many a program has one after the other, each as far from the next
             as a word has lanes, so that all begin alike and what they share is read once
    early    1 for rows in registers whose loads all come before the first reduction
    stream   1 for rows in registers that are read once and take no place from others in a cache
    reuse    1 for rows in registers whose shares of a sum are made of its terms (`analysis.shares`)
    anew     1 for rows in registers whose places are computed again for what is stored, so that
             less is held beside the elements
    spread   rows in registers: 1 for blocks whose first axis is the reduction's, so that what comes
             behind it has threads first
    walks    1 for teams that walk their parts, in any number of steps, and once more when they met
    band     tiles: programs go along y, `band` blocks of x wide, before they go on along x
    r1       the r elements of a block are a tile of two axes, r1 of them along the innermost
             reduction loop (`codegen.triton_row`)
    block_pointers
             1 where some access can have one (`schedule.block_pointers`)

Programs are counted along the grid's first axis, x fastest, so that no axis overflows, and those of
`programs` that share rows along the second, of which there are few; tensor axes are z, y, x, r. Low
precision is computed in f32, as the IR says. Places are divided by what `codegen.triton.divisions`
adds to the arguments, named by_ and the sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nearhint_compiler.codegen.generated import Generated
from nearhint_compiler.codegen.spacing import spaced
from nearhint_compiler.codegen.triton.divisions import by_factors
from nearhint_compiler.codegen.triton.families import FAMILIES
from nearhint_compiler.codegen.triton.guard import index_facts, promised_facts
from nearhint_compiler.codegen.triton.layout import BLOCK_LIMIT, Layout
from nearhint_compiler.codegen.triton.ops import prelude
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
PERSISTENT, LOOPED = "cuda.persistent", "cuda.looped"
IN_PIECES = (PERSISTENT, LOOPED, "cuda.split", "cuda.cooperative")
BLOCKS = ("x", "y", "z", "r", "r1")
WARPS = (1, 2, 4, 8, 16, 32)
GROUPS = (1, 2, 4, 8, 16)
FOLDS = (1, 2, 4, 8, 16, 32)
BAND_LIMIT = 4096
EARLY_CAPABILITY = 90
"""The compute capability from which on a launch may begin before the one that it depends on has
ended (PTX ISA, griddepcontrol)."""
PIECES_LIMIT = HELD_LIMIT = 8
AHEAD_LIMIT = 16
"""Steps of a walk that are under way at once, at most."""


def generate(kernel: ir.Kernel, schedule: Schedule, target: Target) -> Generated:
    """Source, launch metadata and Guard; raises `InvalidSchedule` if the family does not fit."""
    if schedule.family not in FAMILIES or not isinstance(target.device, CudaDevice):
        raise InvalidSchedule(f"{schedule.family} is no CUDA family")
    _check(schedule)
    entry = f"nearhint_{kernel_id(kernel)[:12]}"
    laid_out, spaced_facts = spaced(kernel, schedule)
    layout = FAMILIES[schedule.family](laid_out, schedule)
    width = f"i{schedule['index']}"
    if width == "i32":
        lines, factors = by_factors(
            layout.lines,
            promised=[
                name
                for number, name in enumerate(kernel.symbols)
                if schedule["divisible"] >> number & 1 and not schedule.get("unit", 0)
            ],
            flats="r" if kernel.reduction else "xyz",
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


def _check(schedule: Schedule) -> None:
    for name, value in schedule.options:
        if name in BLOCKS and (value < 1 or value & (value - 1) or value > BLOCK_LIMIT):
            raise InvalidSchedule(f"{name}={value} is no block size")
    if schedule["index"] not in (32, 64) or schedule["warps"] not in WARPS:
        raise InvalidSchedule(f"index or warps of {schedule}")
    if schedule.get("group", 1) not in GROUPS:
        raise InvalidSchedule(f"group of {schedule}")
    if not 1 <= schedule.get("ahead", 1) <= AHEAD_LIMIT:
        raise InvalidSchedule(f"ahead of {schedule}")
    if abs(schedule.get("order", 0)) > BAND_LIMIT:
        raise InvalidSchedule(f"order of {schedule}")
    if schedule.get("fold", 1) not in FOLDS or (
        "fold" in dict(schedule.options) and schedule.family != "cuda.split"
    ):
        raise InvalidSchedule(f"fold of {schedule}")
    if schedule.get("runs", 1) not in GROUPS or schedule.get("runs", 1) > schedule.get("r", 1):
        raise InvalidSchedule(f"runs of {schedule}")
    is_whole = not (schedule.get("r1", 0) or schedule.get("turns", 0))
    if "pieces" in dict(schedule.options) and not (
        1 < schedule["pieces"] <= PIECES_LIMIT and schedule.family in IN_PIECES and is_whole
    ):
        raise InvalidSchedule(f"pieces of {schedule}")
    has_tiles = schedule.family == LOOPED and is_whole and schedule.get("ahead", 1) == 1
    if "held" in dict(schedule.options) and not (
        0 < schedule["held"] <= HELD_LIMIT and has_tiles and not schedule.get("words", 0)
    ):
        raise InvalidSchedule(f"tiles held of {schedule}")
    if schedule.get("keep", 0) and schedule.family != LOOPED:
        raise InvalidSchedule(f"what rows share is kept of what is not walked: {schedule}")
    if schedule.get("spread", 0) and not schedule.family.endswith("persistent"):
        raise InvalidSchedule(f"rows that are spread and not in registers: {schedule}")
    in_registers = schedule.family == PERSISTENT
    has_loads = any(schedule.get(name, 0) for name in ("early", "stream", "reuse", "anew"))
    if in_registers and schedule.get("ahead", 1) > min(2, schedule.get("turns", 1)):
        raise InvalidSchedule(f"a row ahead of one that comes alone: {schedule}")
    if not in_registers and (schedule.get("turns", 1) > 1 or has_loads):
        raise InvalidSchedule(
            f"turns, or a way of loading or keeping, of what is not in registers: {schedule}"
        )
    if schedule.get("group", 1) > schedule.get("r", 1):
        raise InvalidSchedule(f"a group longer than the block: {schedule}")


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
