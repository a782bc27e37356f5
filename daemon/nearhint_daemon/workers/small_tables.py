"""A Kernel and what it replaces with fewer places in their tables.

The table of a vocabulary is the same at all sizes of a Program, and too much in f64. How many
places it has says a Kernel where it looks something up, and nowhere else: that number is another
one in both, so that what is left is compared as it is.
"""

from __future__ import annotations

from dataclasses import replace

from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers.looked_up import places_of
from nearhint_rules import expr as ex
from nearhint_rules import program as pr
from nearhint_rules.plan import Fallback

PLACES = 61
"""A prime, and more than there are rows in the sizes that are checked."""


def with_small_tables(kernel: ir.Kernel, fallback: Fallback) -> tuple[ir.Kernel, Fallback]:
    """Both with `PLACES` in each table that is only looked up, along its first dim.

    The same where the Kernel's number is not the table's, or where negative places count from its
    end, which takes that number, too.
    """
    program = fallback.program
    inputs = {
        number: _with_places(kind, ex.Int(PLACES))
        for number, kind in enumerate(program.inputs)
        if isinstance(kind, pr.TensorType) and _is_table(kernel, fallback, number, kind)
    }
    params = {place for place, value in enumerate(fallback.inputs) if value in inputs}
    body = tuple(
        replace(node, size=ex.Int(PLACES))
        if isinstance(node, ir.Gather) and node.param in params
        else node
        for node in kernel.body
    )
    types = tuple(inputs.get(number, kind) for number, kind in enumerate(program.inputs))
    return (
        replace(kernel, body=body),
        replace(fallback, program=replace(program, inputs=types)),
    )


def _is_table(kernel: ir.Kernel, fallback: Fallback, number: int, kind: pr.TensorType) -> bool:
    """Whether an input has many places along its first dim, and all that reads it looks one up."""
    size = kind.shape[0] if kind.shape else ex.ONE
    if not isinstance(size, ex.Int) or size.value <= PLACES or number in fallback.program.outputs:
        return False
    types = pr.value_types(fallback.program)
    reading = [node for node in fallback.program.nodes if number in node.inputs]
    if not all(_looks_up(node, number, types) for node in reading):
        return False
    params = {place for place, value in enumerate(fallback.inputs) if value == number}
    reads = [node for node in kernel.body if isinstance(node, ir.Load | ir.Gather | ir.Former)]
    return all(
        isinstance(node, ir.Gather) and node.size == size for node in reads if node.param in params
    )


def _looks_up(node: pr.Node, table: int, types: tuple[pr.ValueType, ...]) -> bool:
    """Whether all that a node does with a value is to look up places along its first dim."""
    places = list(places_of(node, types))
    return (
        [(place.table, place.dim, place.wraps) for place in places] == [(table, 0, False)]
        and places[0].value != table
        and table not in node.mutates
    )


def _with_places(kind: pr.TensorType, size: ex.Int) -> pr.TensorType:
    return replace(kind, shape=(size, *kind.shape[1:]))
