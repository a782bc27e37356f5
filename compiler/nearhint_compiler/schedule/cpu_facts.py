"""What the space on a CPU looks at: lanes, loops, and how memory is read along them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from operator import and_
from statistics import fmean

from nearhint_compiler.analysis.accesses import access, clamped
from nearhint_compiler.analysis.apart import shuffled
from nearhint_compiler.analysis.beside import can_be_beside
from nearhint_compiler.analysis.loops import variables_of
from nearhint_compiler.analysis.narrow_places import places_alone
from nearhint_compiler.analysis.narrow_sums import widened_terms
from nearhint_compiler.analysis.parted import parted
from nearhint_compiler.analysis.passes import plan_passes
from nearhint_compiler.analysis.positions import light_along
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES
from nearhint_rules.target import CpuDevice, Target

_WIDE_DTYPES = ("f64", "i64")
_COSTLY = frozenset(
    (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "tanh", "erf", "sin"),
        *("cos", "tan", "pow"),
    )
)
_FUNCTION = 10
"""Operations that one of those is as much as: sums of sigmoids in rows that lie three and five
apart take 0.5 and 0.9 times as long as in columns, and 1.3 where they lie eight apart
(tests/benchmarks/cpu_schedules.py, on a Zen 4)."""
REMEMBERED = 1024
"""Indices whose strides are remembered."""
CONTIGUOUS, CLAMPED, UNIFORM, STRIDED, IRREGULAR = 2, 1, 0, -3, -5
"""How well lanes along a loop suit an access."""
_SINGLY, _LEAST_LANES = 128, 4
"""Elements that a step of cpu.pointwise moves one by one at most, where its lanes are apart in
memory, and the lanes that it has at least. Compilers take far more than in proportion to them."""
_EXTREMA = ("max", "min")
"""Reductions that compare their terms with what they have."""


def register_bits(target: Target) -> int:
    """The width of the widest register for vectors."""
    features = target.device.features if isinstance(target.device, CpuDevice) else ()
    return 512 if "avx512f" in features else 256 if "avx2" in features else 128


def lanes_of(kernel: ir.Kernel, target: Target, variable: str = "") -> int:
    """As many lanes as the widest dtype leaves of a register, of what varies along `variable`.

    Along any loop where that is "". What is one number for all lanes is in no register of theirs.
    """
    bits = register_bits(target)
    loops, light = variables_of(kernel), light_along(kernel, variable)
    typed = zip(kernel.body, ir.dtypes_of(kernel), _in_loops(kernel), strict=True)
    narrow, elements = widened_terms(kernel), ir.per_element(kernel)
    # Positions alone, which joins compare, do not make a kernel one of wide numbers; nor do sums of
    # narrow ones, which are added in 32 bits, and what is computed of them once a row.
    is_wide = any(
        varies
        and dtype in _WIDE_DTYPES
        and (not variable or variable in loops[place])
        and not isinstance(node, ir.Iota)
        and place not in light
        and place not in narrow
        and (elements[place] or not narrow)
        for place, (node, dtype, varies) in enumerate(typed)
    )
    return max(4, bits // (64 if is_wide else 32))


def _in_loops(kernel: ir.Kernel) -> list[bool]:
    """What varies along loops, but for the places of extremal elements: those are one a row.

    Nor places that rows are gathered from, where these are only read, or cast: that is done one by
    one anyhow. What is computed of them is computed in vectors.
    """
    places = [False] * len(kernel.body)
    for position, node in enumerate(kernel.body):
        operands = ir.operands_of(node)
        places[position] = isinstance(node, ir.Arg) or any(places[place] for place in operands)
    elements, named = ir.per_element(kernel), places_alone(kernel)
    read = {
        position
        for position in named
        if not isinstance(node := kernel.body[position], ir.Op) or node.name == "cast"
    }
    return [
        varies and (elements[position] or not places[position]) and position not in read
        for position, varies in enumerate(ir.varying(kernel))
    ]


def axes_of(kernel: ir.Kernel) -> list[str]:
    """Loop variables that lanes may run along, the likeliest of equals first."""
    reduction = [f"r{number}" for number in reversed(range(len(kernel.reduction)))]
    return reduction + [f"p{number}" for number in reversed(range(len(kernel.pointwise)))]


def is_wide_and_walked_once(kernel: ir.Kernel) -> bool:
    """Whether rows of 64-bit elements are read once, for a number each."""
    once = can_be_beside(kernel) and plan_passes(kernel, stash=True).count == 1
    return once and set(own_sizes(kernel)) == {8}


def own_sizes(kernel: ir.Kernel) -> list[int]:
    """Bytes of an element of each input that every row has elements of its own in."""
    last = f"p{len(kernel.pointwise) - 1}"
    own = {
        node
        for node in kernel.body
        if isinstance(node, ir.Load) and {"r0", last} <= set(ex.symbols_of(node.index))
    }
    return [DTYPES[kernel.params[node.param].dtype] for node in own]


def panels_across(kernel: ir.Kernel) -> str:
    """The loop along which inputs lie that stride along the row, as something else does not; ""."""
    if len(kernel.reduction) != 1:
        return ""
    elements = ir.per_element(kernel)
    accesses = [
        node
        for position, node in enumerate(kernel.body)
        if isinstance(node, ir.Load | ir.Store) and elements[position]
    ]
    for number in reversed(range(len(kernel.pointwise))):
        across = f"p{number}"
        has_turned = any(
            isinstance(node, ir.Load) and is_turned(node, across, "r0") for node in accesses
        )
        if has_turned and any(is_turned(node, "r0", across) for node in accesses):
            return across
    return ""


def is_turned(node: ir.Load | ir.Store, across: str, lane: str) -> bool:
    """Whether the access is contiguous along `across` and strides along `lane`."""
    strides = access_score(node.index, lane) in (STRIDED, IRREGULAR)
    return strides and access_score(node.index, across) == CONTIGUOUS


def stored_along(kernel: ir.Kernel, lane: str, others: list[str]) -> str:
    """The loop along which what strides along the lanes is stored; "" for none, or not to turn."""
    stores = [node.index for node in kernel.body if isinstance(node, ir.Store)]
    if all(access_score(index, lane) == CONTIGUOUS for index in stores):
        return ""
    for other in others:
        if all(access_score(index, other) == CONTIGUOUS for index in stores) and any(
            isinstance(node, ir.Load) and is_turned(node, lane, other) for node in kernel.body
        ):
            return other
    return ""


def is_single(kernel: ir.Kernel) -> bool:
    """Whether no float is narrower than single precision."""
    return all(dtype not in ir.LOW_PRECISION for dtype in ir.dtypes_of(kernel))


def has_narrow(kernel: ir.Kernel) -> bool:
    """Whether a number is narrower than single precision; vectors of bools are not."""
    return any(dtype != ir.BOOL and DTYPES[dtype] < 4 for dtype in ir.dtypes_of(kernel))


def is_costly(kernel: ir.Kernel) -> bool:
    """Whether a function takes longer than memory does."""
    return any(isinstance(node, ir.Op) and node.name in _COSTLY for node in kernel.body)


def walks_over_memory(kernel: ir.Kernel) -> bool:
    """Whether elements of rows are read from memory, rather than made of positions alone."""
    loads = (isinstance(node, ir.Load) for node in kernel.body)
    return any(map(and_, loads, ir.per_element(kernel)))


def moved_singly(kernel: ir.Kernel, variable: str) -> int:
    """How many accesses move lanes along a loop one by one: they are far apart in memory."""
    in_vectors = shuffled(kernel, variable)
    return sum(
        isinstance(node, ir.Load | ir.Store) and access_score(node.index, variable) < 0
        for position, node in enumerate(kernel.body)
        if position not in in_vectors
    )


def bounded(
    kernel: ir.Kernel, axis: str, dims: Mapping[str, int], *, lanes: int, unroll: int
) -> tuple[int, int]:
    """Lanes and vectors a step that leave few enough elements to be moved one by one.

    A step has no more vectors than the loop: shorter rows would have single ones alone. Nor has a
    vector lanes of which half are never used, where the capture says how long rows are.
    """
    single = moved_singly(kernel, axis)
    extent, known = extent_of(kernel, axis, dims), extent_of(kernel, axis, {})
    while lanes > _LEAST_LANES and known is not None and lanes // 2 >= known:
        lanes //= 2
    while unroll > 1 and extent is not None and unroll * lanes > extent:
        unroll //= 2
    while unroll > 1 and single * lanes * unroll > _SINGLY:
        unroll //= 2
    while lanes > _LEAST_LANES and single * lanes * unroll > _SINGLY:
        lanes //= 2
    return lanes, unroll


def wide_totals(kernel: ir.Kernel, *, lanes: int, bits: int) -> int:
    """How many totals a vector of columns compares that are wider than a register of `bits`.

    An `arg` has two: its places are of 64 bits, whatever it looks for.
    """
    dtypes = [
        dtype
        for node in kernel.body
        if isinstance(node, ir.Arg) or (isinstance(node, ir.Reduce) and node.kind in _EXTREMA)
        for dtype in ((node.dtype, "i64") if isinstance(node, ir.Arg) else (node.dtype,))
    ]
    return sum(8 * DTYPES[dtype] * lanes > bits for dtype in dtypes)


def turned_along(kernel: ir.Kernel, lane: str, others: list[str]) -> str:
    """The loop along which an input is contiguous that strides along the lanes; "" for none."""
    for other in others:
        for node in kernel.body:
            if isinstance(node, ir.Load) and is_turned(node, other, lane):
                return other
    return ""


def score(kernel: ir.Kernel, variable: str, lanes: int, dims: Mapping[str, int]) -> float:
    """How well lanes along `variable` would be used: accesses, and full vectors.

    Where a loop without a reduction is shorter than a vector, the whole body is computed so many
    times more: an operation a lane costs as much as an access that moves lanes one by one. So is
    what is reduced in as few columns, where the capture says how many: other sizes are served, too.
    Where loops are parted, each stretch has its own accesses alone.
    """
    stretches = [each for region in parted(kernel, variable) for each in region.along]
    if stretches:
        total = fmean(_accesses_score(each.kernel, variable, each.places) for each in stretches)
    else:
        total = _accesses_score(kernel, variable, range(len(kernel.body)))
    extent = extent_of(kernel, variable, dims)
    if extent is not None and total > 0:
        total *= extent / (lanes * -(-extent // lanes))
    work = len(kernel.body)
    if kernel.reduction:
        extent = extent_of(kernel, variable, {}) if variable[0] == "p" else None
        work = _reduced_work(kernel)
    if extent is not None and extent < lanes:
        total += STRIDED * work * (1 / extent - 1 / lanes)
    return total


def _reduced_work(kernel: ir.Kernel) -> int:
    """How many operations are done for each element of what is reduced."""
    return sum(
        _FUNCTION if node.name in _COSTLY else 1
        for node, is_element in zip(kernel.body, ir.per_element(kernel), strict=True)
        if is_element and isinstance(node, ir.Op)
    )


def _accesses_score(kernel: ir.Kernel, variable: str, places: Collection[int]) -> float:
    """How well lanes along a loop suit the accesses at some places of the body."""
    elements, variables = ir.per_element(kernel), variables_of(kernel)
    total = 0.0
    for position in places:
        node = kernel.body[position]
        if isinstance(node, ir.Access):
            value = access_score(node.index, variable)
            if isinstance(node, ir.Gather) and variable in variables[node.place]:
                value = IRREGULAR
            total += value if elements[position] or not kernel.reduction else value / 64
    return total


@lru_cache(maxsize=REMEMBERED)
def access_score(index: Expr, variable: str) -> int:
    """What the access is like along a loop: `CONTIGUOUS` and so on."""
    moves = access(index, variable)
    if moves.stride is None:
        return IRREGULAR if clamped(index, variable) is None else CLAMPED
    if moves.is_uniform:
        return UNIFORM
    return CONTIGUOUS if moves.is_contiguous else STRIDED


def extent_of(kernel: ir.Kernel, variable: str, dims: Mapping[str, int]) -> int | None:
    """The length of a loop, None where `dims` does not say it; a loop that is not there runs once.

    A Kernel of a single point has no loops.
    """
    space = kernel.reduction if variable[0] == "r" else kernel.pointwise
    number = int(variable[1:])
    extent = space[number] if number < len(space) else ex.ONE
    if all(name in dims for name in ex.symbols_of(extent)):
        return ex.evaluate(extent, dims)
    return None
