"""Lifetimes: which slots are dropped after which step, and which outputs may share storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nearhint_compiler.frontend.lower import Graph
from nearhint_compiler.frontend.offers import takes_offer
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr
from nearhint_rules.plan import Free, Launch, MakeView, Output, RunNodes, Step
from nearhint_rules.program import DTYPES, TensorType

SEARCH_LIMIT = 16


@dataclass(frozen=True, slots=True)
class _Free:
    number: int
    size_bytes: Expr
    device: str


def made_by(graph: Graph, step: Step) -> tuple[int, ...]:
    """The slots that a step fills."""
    match step:
        case Launch():
            return tuple(output.slot for output in step.outputs)
        case RunNodes(nodes):
            return tuple(value for node in nodes for value in graph.values_of(node))
        case MakeView(slot=slot):
            return (slot,)
        case Free():
            return ()


def read_by(graph: Graph, step: Step, fallback_reads: Mapping[int, Sequence[int]]) -> set[int]:
    """The slots that a step, or the Fallback of a launch, reads."""
    match step:
        case Launch():
            return {*step.inputs, *fallback_reads[step.outputs[0].slot]}
        case RunNodes(nodes):
            return {value for node in nodes for value in graph.program.nodes[node].inputs}
        case MakeView(base=base):
            return {base}
        case Free():
            return set()


def last_uses(
    graph: Graph, steps: Sequence[Step], fallback_reads: Mapping[int, Sequence[int]]
) -> dict[int, int]:
    """For each slot that a step fills, the last step that needs it."""
    last: dict[int, int] = {}
    for place, step in enumerate(steps):
        for slot in made_by(graph, step):
            last[slot] = place
        for slot in read_by(graph, step, fallback_reads):
            if slot in last:
                last[slot] = place
    return last


def share_storage(
    graph: Graph, steps: Sequence[Step], last: Mapping[int, int]
) -> tuple[tuple[Step, ...], int]:
    """Numbers storages so that outputs whose lifetimes do not overlap may share one.

    An output that may share memory with something that leaves the Plan keeps a tensor of its own,
    and so does one of more bytes than there can be.
    """
    ends: dict[int, int] = {}
    for slot, place in last.items():
        name = graph.storage[slot]
        ends[name] = max(ends.get(name, place), place)
    free: list[_Free] = []
    ending: dict[int, list[_Free]] = {}
    count = 0
    numbered: list[Step] = []
    for place, step in enumerate(steps):
        outputs: list[Output] = []
        for output in _asked(graph, step):
            name = graph.storage[output.slot]
            size = size_bytes(output)
            if name in graph.shared or size is None:
                outputs.append(output)
                continue
            chosen = _fitting(free, size, output.device, graph.ranges)
            if chosen is None:
                chosen = _Free(count, size, output.device)
                count += 1
            else:
                free.remove(chosen)
            ending.setdefault(ends[name], []).append(chosen)
            outputs.append(replace(output, storage=chosen.number))
        if isinstance(step, Launch | RunNodes):
            step = replace(step, outputs=tuple(outputs))
        free.extend(ending.pop(place, ()))
        numbered.append(step)
    return tuple(numbered), count


def _asked(graph: Graph, step: Step) -> tuple[Output, ...]:
    """The outputs of a step that want memory: all of a launch, of nodes those that can take it."""
    match step:
        case Launch():
            return step.outputs
        case RunNodes(nodes):
            return tuple(
                output_of(graph, graph.starts[node]) for node in nodes if takes_offer(graph, node)
            )
        case _:
            return ()


def output_of(graph: Graph, slot: int) -> Output:
    """A slot as an output with its traced sizes and strides, and no storage yet."""
    found = graph.program_type(slot)
    return Output(slot, found.dtype, found.shape, found.stride, found.device)


def _fitting(free: Sequence[_Free], size: Expr, device: str, ranges: ix.Ranges) -> _Free | None:
    """A free storage of this size, else one that is provably no smaller."""
    same = [storage for storage in free if storage.device == device]
    for storage in reversed(same):
        if storage.size_bytes == size:
            return storage
    for storage in list(reversed(same))[:SEARCH_LIMIT]:
        if ix.is_nonnegative(ex.sub(storage.size_bytes, size), ranges):
            return storage
    return None


def size_bytes(output: Output) -> Expr | None:
    """The bytes of an output, whose elements lie densely; None where no size is as large."""
    try:
        return ex.mul(DTYPES[output.dtype], ex.product(output.shape))
    except InvalidExpression:
        return None


def with_frees(graph: Graph, steps: Sequence[Step], last: Mapping[int, int]) -> tuple[Step, ...]:
    """The steps with slots dropped after their last use, before the next step that computes.

    Outputs and inputs are never dropped, nor what only the end of the run follows.
    """
    kept = {value for value in graph.program.outputs if value is not None}
    dying: dict[int, list[int]] = {}
    for slot, place in last.items():
        if slot not in kept and isinstance(graph.types[slot], TensorType):
            dying.setdefault(place, []).append(slot)
    result: list[Step] = []
    dead: list[int] = []
    for place, step in enumerate(steps):
        if dead and not isinstance(step, MakeView):
            result.append(Free(tuple(sorted(dead))))
            dead = []
        result.append(step)
        dead.extend(dying.get(place, ()))
    return tuple(result)
