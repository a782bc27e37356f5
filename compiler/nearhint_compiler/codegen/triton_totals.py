"""Accumulators of Triton kernels: what a walk over a row carries for each reduction.

A `Total` has one or more `Part`s, blocks with one accumulator a lane. A walk starts them at their
neutral values and steps them with each block of elements; afterwards `across` brings the lanes
together, and `results` makes the reductions' values of them. Parts that several programs left in
memory are brought together in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nearhint_compiler.analysis.online import SHIFTED_SOFTMAX, VARIANCE, Online
from nearhint_compiler.codegen.triton_ops import arg_name, combine_name
from nearhint_compiler.codegen.triton_text import index_text, neutral_text
from nearhint_compiler.ir import nodes as ir

LAST_PLACE = str(2**63 - 1)
"""The place that lanes without an element have: of equals the least counts."""


@dataclass(frozen=True, slots=True)
class Part:
    """One accumulator: its variable, dtype, and the text of its neutral value."""

    name: str
    dtype: str
    neutral: str


@dataclass(frozen=True, slots=True)
class Total:
    """How one reduction, or a pair that one walk computes, is accumulated.

    `step(element)` is a call that gives the parts after one more block of elements, `across(axis)`
    one that brings lanes together; both name the parts as they are. `results` are the lines that
    make `v*` of parts with one lane. `operand` is the node that is reduced.
    """

    operand: int
    parts: tuple[Part, ...]
    step: Callable[[str], str]
    across: Callable[[str], Sequence[str]]
    results: Sequence[str]


def total_of(kernel: ir.Kernel, position: int) -> Total:
    """The total of the reduce or arg at `position`."""
    node = kernel.body[position]
    match node:
        case ir.Reduce(kind, dtype, operand):
            combine, name = combine_name(kind, dtype), f"acc{position}"
            return Total(
                operand,
                (Part(name, dtype, neutral_text(kind, dtype)),),
                lambda element: f"{combine}({name}, {element})",
                lambda axis: [f"{name} = tl.reduce({name}, {axis}, {combine}, keep_dims=True)"],
                (f"v{position} = {name}",),
            )
        case ir.Arg(kind, dtype, operand, index):
            combine, value, place = arg_name(kind, dtype), f"acc{position}", f"at{position}"
            here = f"{index_text(index)}"
            both = f"{value}, {place}"
            return Total(
                operand,
                (
                    Part(value, dtype, neutral_text(kind, dtype)),
                    Part(place, "i64", LAST_PLACE),
                ),
                lambda element: f"{combine}({both}, {element}, {here})",
                lambda axis: [f"{both} = tl.reduce(({both}), {axis}, {combine}, keep_dims=True)"],
                (f"v{position} = {place}",),
            )
        case _:
            raise AssertionError(node)


def online_total(kernel: ir.Kernel, pair: Online) -> Total:
    """The total of a pair of reduces."""
    return (_variance if pair.kind == VARIANCE else _softmax)(kernel, pair)


def _softmax(kernel: ir.Kernel, pair: Online) -> Total:
    dtype = _dtype(kernel, pair)
    largest, total = f"acc{pair.first}", f"acc{pair.second}"
    infinite = 'float("nan")'
    if pair.kind == SHIFTED_SOFTMAX:
        infinite = f'tl.where(v{pair.first} > 0, float("inf"), 0.0)'
    return Total(
        pair.operand,
        (Part(largest, dtype, neutral_text("max", dtype)), Part(total, dtype, "0.0")),
        lambda element: f"_online_softmax({largest}, {total}, {element})",
        lambda axis: [
            f"best{pair.first} = tl.reduce({largest}, {axis}, _combine_max_nan, keep_dims=True)",
            f"{total} = {total} * _exp_below({largest}, best{pair.first})",
            f"{total} = tl.reduce({total}, {axis}, _combine_sum, keep_dims=True)",
            f"{largest} = best{pair.first}",
        ],
        (
            f"v{pair.first} = {largest}",
            f'v{pair.second} = tl.where(tl.abs({largest}) == float("inf"), {infinite}, {total})',
        ),
    )


def _variance(kernel: ir.Kernel, pair: Online) -> Total:
    dtype = _dtype(kernel, pair)
    kinds = ("total", "mean", "square", "count")
    names = tuple(f"{kind}{pair.first}" for kind in kinds)
    all_names = ", ".join(names)
    return Total(
        pair.operand,
        tuple(Part(name, dtype, "0.0") for name in names),
        lambda element: f"_welford_step({all_names}, {element})",
        lambda axis: [
            f"{all_names} = tl.reduce(({all_names}), {axis}, _welford, keep_dims=True)",
        ],
        # A running mean cannot leave an infinity again; a sum with one may still be an infinity.
        (f"v{pair.first} = {names[0]}", f"v{pair.second} = {names[2]}"),
    )


def _dtype(kernel: ir.Kernel, pair: Online) -> str:
    node = kernel.body[pair.second]
    assert isinstance(node, ir.Reduce)
    return node.dtype
