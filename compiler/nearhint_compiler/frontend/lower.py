"""Reading a Program: which nodes are loops, which are views, and what must come before what.

Dependencies are those of the data, and of the storage: a node that writes a value in place comes
after everything that read its storage before, and before everything that reads it later. Random
and other effectful steps keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nearhint_compiler.errors import CompilerError, Unlowerable
from nearhint_compiler.frontend.activations import ACTIVATIONS
from nearhint_compiler.frontend.angles import ANGLES
from nearhint_compiler.frontend.call import Call, is_host_scalar, type_read
from nearhint_compiler.frontend.comparisons import COMPARISONS
from nearhint_compiler.frontend.creation import CREATION
from nearhint_compiler.frontend.crosses import CROSSES
from nearhint_compiler.frontend.duplicates import duplicates
from nearhint_compiler.frontend.emitter import Emitter, Value
from nearhint_compiler.frontend.joins import GATES, JOINS
from nearhint_compiler.frontend.lookups import LOOKUPS
from nearhint_compiler.frontend.loops import Loops, Lowered, View
from nearhint_compiler.frontend.losses import LOSSES
from nearhint_compiler.frontend.normalisation import NORMALISATION
from nearhint_compiler.frontend.placed_sums import PLACED_SUMS
from nearhint_compiler.frontend.pointwise import POINTWISE
from nearhint_compiler.frontend.pools import POOLS
from nearhint_compiler.frontend.reductions import REDUCTIONS
from nearhint_compiler.frontend.scans import SCANS
from nearhint_compiler.frontend.scatters import SCATTERS
from nearhint_compiler.frontend.special import SPECIAL
from nearhint_compiler.frontend.views import VIEWS
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression, InvalidProgram
from nearhint_rules.expr import Expr
from nearhint_rules.program import (
    FloatType,
    IntType,
    Program,
    TensorType,
    ValueType,
    first_outputs,
    refs_in,
    value_types,
)

Rule = Callable[[Call], Lowered]
TABLE: Mapping[str, Rule] = {
    **POINTWISE, **ACTIVATIONS, **SPECIAL, **ANGLES, **CREATION, **JOINS, **GATES, **POOLS,
    **REDUCTIONS, **LOSSES, **SCANS, **NORMALISATION, **VIEWS, **LOOKUPS,
    **SCATTERS, **PLACED_SUMS, **CROSSES, **COMPARISONS,
}  # fmt: skip
"""Every op that is lowered; any other is opaque. Attention and matrix products are never here."""
POINT_BYTES = 1 << 12
"""More than a Kernel moves at one point of its loops."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A Program with its loops, views and order.

    `producers[v]` is the node that makes value v, -1 for an input. `before[n]` are the nodes that
    must run before node n. `storage[v]` names the set of values that may share v's storage.
    `unmovable` are the loops that read storage which some node writes in place. `shared` are the
    storages that leave the Program, or that some node writes in place. `repeats` are the nodes that
    compute what an earlier one has, and are views of its value. `on_host` are the loops that make a
    number on the host of others there, beside a device: they exist only where they are read.
    """

    program: Program
    types: tuple[ValueType, ...]
    original: tuple[ValueType, ...]
    starts: tuple[int, ...]
    producers: tuple[int, ...]
    loops: Mapping[int, Loops]
    views: Mapping[int, View]
    before: tuple[frozenset[int], ...]
    storage: tuple[int, ...]
    unmovable: frozenset[int]
    shared: frozenset[int]
    ranges: ix.Ranges
    repeats: frozenset[int]
    on_host: frozenset[int] = frozenset()

    def tensor(self, value: int) -> TensorType:
        """The type of a value that is known to be a tensor, or is read by a loop."""
        return type_read(self.types[value])

    def program_type(self, value: int) -> TensorType:
        """The type of a tensor as the Program gives it, with its traced strides."""
        found = self.original[value]
        assert isinstance(found, TensorType)
        return found

    def values_of(self, node: int) -> range:
        """The values that a node makes."""
        start = self.starts[node]
        return range(start, start + len(self.program.nodes[node].outputs))

    def makes_numbers(self, node: int) -> bool:
        """Whether a node makes nothing but numbers, which may be sizes that are known anyhow."""
        found = self.program.nodes[node]
        has_effects = found.mutates or found.has_randomness
        return not has_effects and all(
            isinstance(kind, IntType | FloatType) for kind in found.outputs
        )

    def root(self, value: int) -> int:
        """The value that `value` is a view of, through all views; itself if it is none."""
        while self.producers[value] in self.views:
            value = self.views[self.producers[value]].base
        return value

    def root_index(
        self, value: int, index: tuple[Expr, ...], ranges: ix.Ranges
    ) -> tuple[int, tuple[Expr, ...]]:
        """The root of `value` and the indices into it of the element that `index` names."""
        while (view := self.views.get(self.producers[value])) is not None:
            position = value - self.starts[view.node]
            index = view.remaps[position](index, ranges)
            value = view.base
        return value, index


def read_program(
    program: Program, *, target_kind: str, apart: Collection[int] = frozenset()
) -> Graph:
    """Lowers every node that the table knows; what does not fit stays opaque.

    A node that repeats an earlier one becomes a view of its value, unless it is in `apart`.
    Raises `InvalidProgram` if an argument refers to a value that the node does not list.
    """
    original = value_types(program)
    _check_inputs(program)
    ranges = ix.Ranges(program.ranges())
    types = tuple(_simplified(found, ranges) for found in original)
    starts = first_outputs(program)
    producers = [-1] * len(program.inputs)
    for index, node in enumerate(program.nodes):
        producers.extend([index] * len(node.outputs))
    storage = _storages(program, starts, len(types))
    written = {storage[value] for node in program.nodes for value in node.mutates}
    loops: dict[int, Loops] = {}
    views: dict[int, View] = {}
    for index in range(len(program.nodes)):
        lowered = _lower_node(program, index, types, starts[index], target_kind, ranges)
        if isinstance(lowered, View):
            views[index] = lowered
        elif isinstance(lowered, Loops):
            outputs = range(starts[index], starts[index] + len(program.nodes[index].outputs))
            if not any(storage[value] in written for value in outputs):
                loops[index] = lowered
    _drop_partial(program, starts, loops)
    same = duplicates(program, starts, producers, {*loops, *views}, storage, written)
    repeats = {index for index in same if index in loops and index not in apart}
    for index, earlier in same.items():
        if index not in repeats:
            continue
        del loops[index]
        views[index] = View(index, starts[earlier], (_unchanged,))
        storage = _merged(storage, storage[starts[index]], storage[starts[earlier]])
    before = _order(program, producers, storage, views)
    unmovable = frozenset(
        index
        for index in loops
        if any(storage[value] in written for value in program.nodes[index].inputs)
    )
    return Graph(
        program,
        types,
        original,
        starts,
        tuple(producers),
        loops,
        views,
        before,
        tuple(storage),
        unmovable,
        frozenset(written) | {storage[value] for value in program.outputs if value is not None},
        ranges,
        frozenset(repeats),
        frozenset(index for index in loops if _is_beside(types[starts[index]], target_kind)),
    )


def repeats_of(graph: Graph, nodes: Collection[int]) -> frozenset[int]:
    """The repeats of `nodes`."""
    return frozenset(
        repeat
        for repeat in graph.repeats
        if graph.producers[graph.root(graph.starts[repeat])] in nodes
    )


def without(graph: Graph, nodes: Iterable[int]) -> Graph:
    """`graph` with some loops opaque after all."""
    gone = set(nodes)
    return replace(graph, loops={k: v for k, v in graph.loops.items() if k not in gone})


def without_walks(graph: Graph, nodes: Iterable[int]) -> Graph:
    """`graph` with some loops as they are otherwise, or opaque."""
    others = {node: graph.loops[node].otherwise for node in nodes}
    found = {k: others.get(k, v) for k, v in graph.loops.items()}
    return replace(graph, loops={k: v for k, v in found.items() if v is not None})


def choices_among(graph: Graph, nodes: Iterable[int]) -> frozenset[int]:
    """What chooses elements of rows that are walked, and may look them up in a loop of its own."""
    return frozenset(
        node
        for node in nodes
        if graph.program.nodes[node].op == "aten.gather.default"
        and graph.loops[node].otherwise is not None
    )


def _check_inputs(program: Program) -> None:
    for index, node in enumerate(program.nodes):
        given = (*node.args, *(value for _, value in node.kwargs))
        if not {value for arg in given for value in refs_in(arg)} <= {*node.inputs}:
            raise InvalidProgram(f"nodes[{index}].inputs", "an argument is not among them")


def _unchanged(index: tuple[Expr, ...], ranges: ix.Ranges) -> tuple[Expr, ...]:
    return index


def _merged(storage: Sequence[int], left: int, right: int) -> list[int]:
    low, high = min(left, right), max(left, right)
    return [low if name == high else name for name in storage]


def _simplified(found: ValueType, ranges: ix.Ranges) -> ValueType:
    """A type whose sizes are as simple as can be proved, and whose strides are plain products.

    The 1 in a stride `max(1, size)` only serves tensors without elements.
    """
    if not isinstance(found, TensorType):
        return found
    shape = tuple(ix.simplify(size, ranges) for size in found.shape)
    stride = tuple(ix.simplify(_without_max_one(step), ranges) for step in found.stride)
    return TensorType(found.dtype, shape, stride, found.device)


def _without_max_one(expr: Expr) -> Expr:
    match expr:
        case ex.Max((ex.Int(1), other)):
            return other
        case ex.Mul(factors):
            return ex.mul(*map(_without_max_one, factors))
        case _:
            return expr


def _storages(program: Program, starts: Sequence[int], count: int) -> list[int]:
    """For each value the first value that it may share storage with."""
    parent = list(range(count))

    def find(value: int) -> int:
        while parent[value] != value:
            parent[value] = parent[parent[value]]
            value = parent[value]
        return value

    for index, node in enumerate(program.nodes):
        for position, value in node.aliases:
            left, right = find(starts[index] + position), find(value)
            parent[max(left, right)] = min(left, right)
        if node.op in VIEWS and node.inputs:
            for position in range(len(node.outputs)):
                left, right = find(starts[index] + position), find(node.inputs[0])
                parent[max(left, right)] = min(left, right)
    return [find(value) for value in range(count)]


def _lower_node(
    program: Program,
    index: int,
    types: Sequence[ValueType],
    start: int,
    target_kind: str,
    ranges: ix.Ranges,
) -> Lowered | None:
    node = program.nodes[index]
    rule = TABLE.get(node.op)
    if rule is None or node.mutates or node.has_randomness:
        return None
    if node.aliases and node.op not in VIEWS:
        return None
    outputs = types[start : start + len(node.outputs)]
    try:
        lowered = rule(Call(node, index, types, outputs, ranges, target_kind))
        if isinstance(lowered, Loops):
            _check_loops(lowered, outputs, types, ranges)
            _check_host(lowered, outputs, types, target_kind)
    except (CompilerError, InvalidExpression, OverflowError):
        return None
    return lowered


@dataclass(slots=True)
class _Trial:
    """A point of no kernel, at which a body is built once to see whether its dtypes fit."""

    emit: Emitter
    index: tuple[Expr, ...]
    params: tuple[int, ...]

    def read(self, operand: int) -> Value:
        return self.emit.load(self.params[operand], ex.add(ex.ZERO, *self.index))

    def look_up(self, operand: int, places: Sequence[Value]) -> Value:
        return self.emit.gather(self.params[operand], ex.ZERO, ex.ONE, ex.ONE, places[0])

    def former(self, operand: int) -> Value:
        return self.emit.former(self.params[operand])


def _check_loops(
    loops: Loops, outputs: Sequence[ValueType], types: Sequence[ValueType], ranges: ix.Ranges
) -> None:
    """Raises `Unlowerable` unless the body can be built and its outputs can be written.

    A Kernel's sizes are at least 1, so a loop over no elements is none; nor is one over so many
    that the bytes it moves are no size, which raises `InvalidExpression`.
    """
    emit = Emitter(ranges=ranges)
    params = [emit.param("in", type_read(types[read.value]).dtype) for read in loops.reads]
    index = tuple(ex.Sym(f"d{place}") for place in range(len(loops.shape)))
    if ex.ZERO in loops.shape:
        raise Unlowerable("a loop over no elements")
    ex.mul(POINT_BYTES, *loops.shape)
    made = loops.build(_Trial(emit, index, tuple(params)))
    if loops.scattering is not None:
        base, value, place, *_ = made
        target = emit.param("out", type_read(outputs[0]).dtype)
        where = (ex.ZERO, ex.ONE, ex.ONE, place)
        emit.scatter(loops.scattering.kind, target, where, base, value)
    elif len(made) != loops.outputs:
        raise Unlowerable("a body with another number of outputs")
    for position in range(loops.outputs):
        found = outputs[position]
        if not isinstance(found, TensorType) or not is_dense(found.shape, found.stride):
            raise Unlowerable("an output whose elements do not lie densely")
        if position in loops.per_row or found.shape == loops.shape or loops.scattering:
            continue
        if loops.is_pointwise or ix.segments(loops.shape, found.shape) is None:
            raise Unlowerable("an output of another shape than its loop")


def _check_host(
    loops: Loops, outputs: Sequence[ValueType], types: Sequence[ValueType], target_kind: str
) -> None:
    """Raises `Unlowerable` where something of a device becomes a number on the host."""
    if any(_is_beside(found, target_kind) for found in outputs):
        read = [types[each.value] for each in loops.reads]
        if len(outputs) > 1 or not all(_is_beside(found, target_kind) for found in read):
            raise Unlowerable("a number on the host that is made elsewhere")


def _is_beside(found: ValueType, target_kind: str) -> bool:
    """Whether a tensor is a number on the host, beside a device."""
    return isinstance(found, TensorType) and target_kind != "cpu" and is_host_scalar(found)


def is_dense(shape: Sequence[Expr], stride: Sequence[Expr]) -> bool:
    """Whether the strides provably are those of a permuted contiguous tensor."""
    left = {(size, step): 0 for size, step in zip(shape, stride, strict=True) if size != ex.ONE}
    dims = [(size, step) for size, step in zip(shape, stride, strict=True) if size != ex.ONE]
    if len(left) != len(dims):
        return False
    step: Expr = ex.ONE
    while dims:
        for dim in reversed(dims):
            if dim[1] == step:
                dims.remove(dim)
                step = ex.mul(step, dim[0])
                break
        else:
            return False
    return True


def _order(
    program: Program,
    producers: Sequence[int],
    storage: Sequence[int],
    views: Mapping[int, View],
) -> tuple[frozenset[int], ...]:
    """For each node those that must run before it. A view is no step: its base's producer is."""

    def producer(value: int) -> int:
        while (node := producers[value]) in views:
            value = views[node].base
        return node

    written = {storage[value] for node in program.nodes for value in node.mutates}
    writers: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    last_effect = -1
    found: list[frozenset[int]] = []
    for index, node in enumerate(program.nodes):
        before = {producer(value) for value in (*node.inputs, *node.mutates)}
        if index not in views:
            touched = {storage[value] for value in node.inputs} & written
            mutated = {storage[value] for value in node.mutates}
            for name in touched | mutated:
                before.add(writers.get(name, -1))
            for name in mutated:
                before.update(readers.pop(name, ()))
                writers[name] = index
            for name in touched - mutated:
                readers.setdefault(name, []).append(index)
            if node.has_randomness:
                before.add(last_effect)
                last_effect = index
        found.append(frozenset(before - {-1, index}))
    return tuple(found)


def _drop_partial(program: Program, starts: Sequence[int], loops: dict[int, Loops]) -> None:
    """Nodes with an output that is read and that no loop makes stay opaque."""
    read = {value for node in program.nodes for value in node.inputs}
    read.update(value for value in program.outputs if value is not None)
    for index in list(loops):
        end = starts[index] + len(program.nodes[index].outputs)
        if read.intersection(range(starts[index] + loops[index].outputs, end)):
            del loops[index]
