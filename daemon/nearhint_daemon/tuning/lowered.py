"""Lowered Programs as tuning needs them: ranges, and each launch step's sizes by the Program's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nearhint_daemon.errors import InvalidRequest
from nearhint_proto import convert
from nearhint_proto.v1 import program_pb2
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.plan import Launch
from nearhint_rules.program import Program, slice_program


@dataclass(frozen=True, slots=True)
class Step:
    """A launch step: its Kernel's symbols over the Program's, and whose symbols the Fallback has.

    `renamed` maps each symbol of the Fallback to the Program's.
    """

    kernel: str
    fallback: str
    dims: tuple[Expr, ...]
    renamed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Lowered:
    """What tuning needs of a Program: its ranges and its launch steps."""

    ranges: Mapping[str, tuple[int, int | None]]
    steps: tuple[Step, ...]


def decode(program: bytes, plan: bytes, fallbacks: Mapping[str, bytes]) -> Lowered:
    """Reads stored messages; `fallbacks` by identity. Slow for large Programs."""
    graph = convert.program_from_proto(program_pb2.Program.FromString(program))
    steps = convert.plan_from_proto(program_pb2.Plan.FromString(plan)).steps
    return Lowered(
        graph.ranges(),
        tuple(
            Step(step.kernel, step.fallback, step.dims, _renamed(graph, step, fallbacks))
            for step in steps
            if isinstance(step, Launch)
        ),
    )


def _renamed(program: Program, step: Launch, fallbacks: Mapping[str, bytes]) -> Mapping[str, str]:
    """The Program's symbols by the Fallback's; {} if it is not that slice of the Program."""
    part, _, names = slice_program(program, step.nodes, [out.slot for out in step.outputs])
    message = program_pb2.Fallback.FromString(fallbacks[step.fallback])
    if convert.fallback_from_proto(message).program.id != part.id:
        return {}
    return {new: old for old, new in names.items()}


def sizes_within(
    sizes: Mapping[str, int], ranges: Mapping[str, tuple[int, int | None]], *, field: str
) -> None:
    """Raises `InvalidRequest` where sizes leave a Program's ranges, or one is missing."""
    for name, (low, high) in ranges.items():
        size = sizes.get(name)
        if size is None:
            raise InvalidRequest(f"no size for symbol {name}", field=field)
        if size < low or (high is not None and size > high):
            last = "2^62" if high is None else high
            raise InvalidRequest(f"{name} = {size} is outside {low} .. {last}", field=field)


def dims_at(step: Step, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A launch step's Kernel sizes at the Program's sizes."""
    return tuple(ex.evaluate(expr, sizes) for expr in step.dims)
