"""Whether another index than the reference's is right: an `arg` of values that were rounded.

Two elements that a rounding error may exchange are as good as one another. So an index passes if
the operand there is, in the reference, as good as the best within twice the operand's tolerance. An
operand without any rounding allows no other index than the first of the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers.elements import Array, Stored
from nearhint_daemon.workers.interpreter import candidates
from nearhint_daemon.workers.tolerance import (
    Arithmetic,
    Precision,
    errors_in_tolerances,
    tolerances,
)
from nearhint_rules import expr as ex

TOLERANCES = 2.0
"""Both elements may be wrong by one."""
_EXACT_OPS = frozenset(
    {"neg", "abs", "sign", "max", "min", "floor", "ceil", "trunc", "round", "fmod", "where"}
)
_EXACT_REDUCTIONS = frozenset({"max", "min", "any", "all"})
_NARROW = (*ir.LOW_PRECISION, "f32", "i16", "i8", "u8", "bool")
_EXACT_CASTS = frozenset(
    {(source, target) for source in _NARROW for target in ir.FLOATS} | {("i32", "f64")}
)


def rounded_arg(kernel: ir.Kernel, param: int) -> ir.Arg | None:
    """The `arg` that output `param` holds once a row, if its operand is subject to rounding."""
    stores = [node for node in kernel.body if isinstance(node, ir.Store) and node.param == param]
    if len(stores) != 1 or any(map(ir.is_reduction_variable, ex.symbols_of(stores[0].index))):
        return None
    node = kernel.body[stores[0].value]
    if not isinstance(node, ir.Arg) or node.dtype not in ir.FLOATS:
        return None
    return None if is_exact(kernel)[node.operand] else node


def is_exact(kernel: ir.Kernel) -> tuple[bool, ...]:
    """For each body node, whether every right implementation gets the same value."""
    dtypes = ir.dtypes_of(kernel)
    found: list[bool] = []
    for position, node in enumerate(kernel.body):
        given = all(found[operand] for operand in ir.operands_of(node))
        found.append(given and _keeps(node, dtypes[position], dtypes))
    return tuple(found)


def _keeps(node: ir.BodyNode, dtype: str, dtypes: Sequence[str]) -> bool:
    """Whether exact operands give an exact result."""
    if dtype not in (*ir.FLOATS, *ir.LOW_PRECISION):
        return True
    match node:
        case ir.Op("cast", _, (operand,)):
            return (dtypes[operand], dtype) in _EXACT_CASTS
        case ir.Op(name, _, _):
            return name in _EXACT_OPS
        case ir.Reduce(kind, _, _) | ir.Scan(kind, _, _):
            return kind in _EXACT_REDUCTIONS
        case _:
            return True


def is_as_good(
    kernel: ir.Kernel,
    dims: Mapping[str, int],
    inputs: Sequence[Stored | Array],
    arg: ir.Arg,
    found: Array,
    *,
    output: Precision,
    arithmetic: Arithmetic,
) -> Array:
    """For each row whether index `found` is one that `arg`, a node of `kernel`, may give.

    `output` is the operand's precision; `inputs` are as `interpret` takes them.
    """
    choice = candidates(kernel, dims, inputs, arg, arithmetic=arithmetic)
    rows = np.arange(len(choice.values))
    is_found = choice.indices == found[:, np.newaxis]
    best = (choice.values if arg.kind == "max" else -choice.values).argmax(axis=1)
    place = is_found.argmax(axis=1)
    there, wanted = (
        np.where(np.abs(values) > output.largest, np.copysign(np.inf, values), values)
        for values in (choice.values[rows, place], choice.values[rows, best])
    )
    magnitudes = np.maximum(choice.magnitudes[rows, place], choice.magnitudes[rows, best])
    allowed = tolerances(wanted, magnitudes, output=output, arithmetic=arithmetic)
    errors = errors_in_tolerances(there, wanted, allowed, largest=output.largest)
    is_number = ~np.isnan(wanted)
    return np.asarray(is_found.any(axis=1) & is_number & (errors <= TOLERANCES))
