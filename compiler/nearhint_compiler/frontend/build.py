"""From a fusion group to a Kernel: bodies in one nest, then the canonical form of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nearhint_compiler.errors import InvalidKernel
from nearhint_compiler.frontend.call import is_host_scalar
from nearhint_compiler.frontend.canon import Nest, canonical_nest
from nearhint_compiler.frontend.emitter import Emitter, Value
from nearhint_compiler.frontend.groups import Fused, Group
from nearhint_compiler.frontend.indices import output_index, read_index
from nearhint_compiler.frontend.lookups import Place, one_place
from nearhint_compiler.frontend.loops import LOOKED_UP, Loops, Scattering
from nearhint_compiler.frontend.lower import Graph
from nearhint_compiler.frontend.pieces import places_of
from nearhint_compiler.frontend.space import loop_index, written_out
from nearhint_compiler.ir import index as ix
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.legality import check_kernel
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

INLINE_DEPTH = 64


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A Kernel with its parameters' slots and its symbols over the Program's."""

    kernel: ir.Kernel
    dims: tuple[Expr, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(slots=True)
class _Here:
    """A point at which one member's body is built."""

    builder: _Builder
    loops: Loops
    index: tuple[Expr, ...]
    depth: int

    @property
    def emit(self) -> Emitter:
        return self.builder.emit

    def read(self, operand: int) -> Value:
        read = self.loops.reads[operand]
        index = read_index(self.builder.graph, read, self.index, self.builder.ranges)
        return self.builder.element(read.value, index, self.depth)

    def look_up(self, operand: int, places: Sequence[Value]) -> Value:
        read = self.loops.reads[operand]
        shape = self.builder.graph.tensor(read.value).shape
        sizes = (size for size, dim in zip(shape, read.dims, strict=True) if dim == LOOKED_UP)
        named = [self.builder.name(Place(*each)) for each in zip(places, sizes, strict=True)]
        index = read_index(self.builder.graph, read, self.index, self.builder.ranges, named)
        return self.builder.element(read.value, index, self.depth)

    def former(self, operand: int) -> Value:
        (output,) = self.builder.graph.values_of(self.loops.node)
        return self.builder.former(self.loops.reads[operand].value, output, self.depth)


@dataclass(slots=True)
class _Builder:
    graph: Graph
    group: Group
    inlined: frozenset[int]
    emit: Emitter = field(init=False)
    slots: list[int] = field(default_factory=list)
    _places: dict[Place, ex.Sym] = field(default_factory=dict)
    _read: set[Place] = field(default_factory=set)
    _wholes: dict[Place, Place] = field(default_factory=dict)
    _results: dict[tuple[int, tuple[Expr, ...]], Sequence[Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.emit = Emitter(ranges=self.group.space.ranges(self.graph.ranges))

    def element(self, value: int, index: tuple[Expr, ...], depth: int) -> Value:
        """The element `index` of `value`: computed here, or loaded."""
        root, index = self.graph.root_index(value, index, self.ranges)
        node = self.graph.producers[root]
        if node in self.group.nodes and node not in self.group.inlined:
            return self.result(root)
        if node in self.inlined:
            return self.compute(node, index, depth + 1)[root - self.graph.starts[node]]
        return self._loaded(root, ix.linear(index, self.graph.tensor(root).stride))

    def former(self, value: int, output: int, depth: int) -> Value:
        """The element of `value` at the position in `output` that is written to.

        Raises `InvalidKernel` unless both lie in memory alike, or it is the same everywhere.
        """
        found = self.graph.tensor(output)
        names = tuple(ex.Sym(f"d{place}") for place in range(len(found.shape)))
        extents = {name.name: size for name, size in zip(names, found.shape, strict=True)}
        ranges = self.graph.ranges.over(extents)
        root, index = self.graph.root_index(value, names, ranges)
        node = self.graph.producers[root]
        if node in self.inlined:
            return self.compute(node, index, depth + 1)[root - self.graph.starts[node]]
        own, stride = ix.linear(index, self.graph.tensor(root).stride), found.stride
        if ix.simplify(ex.sub(own, ix.linear(names, stride)), ranges) != ex.ZERO:
            raise InvalidKernel("a base that does not lie as what it becomes")
        return self.emit.former(self._param(root))

    def scatter(self, value: int, param: int, scattering: Scattering) -> None:
        """Brings what a member makes at each point together where its places say.

        Raises `InvalidKernel` where rows and places are not all of the output.
        """
        node, found = self.graph.producers[value], self.graph.tensor(value)
        index = loop_index(self.graph.loops[node], self.group.space, self.graph.ranges)
        if index is None:
            raise InvalidKernel("a scatter that does not fit its group's space")
        base, term, *named = self.compute(node, index, 0)
        dims = [*zip(scattering.dims, found.shape, found.stride, strict=True)]
        at = [(size, step) for dim, size, step in dims if dim == LOOKED_UP]
        places = [Place(each, size) for each, (size, _) in zip(named, at, strict=True)]
        stride, size, place = one_place(self.emit, places, [step for _, step in at])
        if size != ex.product(size for size, _ in at):
            raise InvalidKernel("places that are not all of the output's")
        rows = [(ex.ZERO if dim == LOOKED_UP else index[dim], step) for dim, _, step in dims]
        where = ix.linear([each for each, _ in rows], [step for _, step in rows])
        self.emit.scatter(scattering.kind, param, (where, stride, size, place), base, term)

    def name(self, place: Place) -> Expr:
        """What stands for a place that data names, in indices; itself where no data does.

        A mask is read at places that are positions, each of which there is.
        """
        position = self.emit.position(place.value)
        if position is not None and ix.is_within(position, place.size, self.ranges):
            return position
        if place not in self._places:
            self._places[place] = ex.Sym(f"at{len(self._places)}")
        return self._places[place]

    @property
    def ranges(self) -> ix.Ranges:
        """What may be assumed of the loops and of places that data names."""
        found = self.group.space.ranges(self.graph.ranges)
        extents = {name.name: place.size for place, name in self._places.items()}
        return found.over({**found.extents, **extents})

    def _gathered(self, param: int, index: Expr) -> Value:
        """The element of an input in memory at `index`, which mentions places."""
        index = self._with_parts_named(ix.simplify(index, self.ranges))
        rest, places, strides = ix.simplify(index, self.ranges), list[Place](), list[Expr]()
        for place, name in self._places.items():
            found = ix.coefficient_of(rest, name.name)
            if found is None:
                raise InvalidKernel("a table that is cut where data says")
            stride, rest = found
            if stride != ex.ZERO:
                places.append(place)
                strides.append(stride)
        self._read.update(places)
        for place in places:
            while place in self._wholes:
                place = self._wholes[place]
                self._read.add(place)
        if not places:
            return self.emit.load(param, rest)
        return self.emit.gather(param, rest, *one_place(self.emit, places, strides))

    def _with_parts_named(self, index: Expr) -> Expr:
        """`index` with names for the quotients and remainders of places in it, which are places.

        So elements of rows, as experts' shares of tokens are, are looked up beside their rows.
        """
        match index:
            case ex.Add(items):
                return ex.add(*map(self._with_parts_named, items))
            case ex.Mul(items):
                return ex.mul(*map(self._with_parts_named, items))
            case ex.FloorDiv(top, count) | ex.Mod(top, count):
                named: dict[Expr, Place] = {name: place for place, name in self._places.items()}
                whole = named.get(self._with_parts_named(top))
                return index if whole is None else self._part(index, whole, count)
            case _:
                return index

    def _part(self, index: ex.FloorDiv | ex.Mod, whole: Place, count: Expr) -> Expr:
        """What stands for a place divided by `count`, or what is left; `index`, if neither fits."""
        if isinstance(index, ex.Mod):
            rest = self.emit.op("mod", whole.value, self.emit.iota(count))
            return self.name(Place(rest, count))
        size = ix.exact_quotient(whole.size, count)
        if size is None:
            return index
        part = Place(self.emit.op("floordiv", whole.value, self.emit.iota(count)), size)
        self._wholes[part] = whole  # what is outside of one is outside of the other
        return self.name(part)

    @property
    def is_checked(self) -> bool:
        """Whether something is read at each place that data names, which tells of one outside."""
        return self._read >= self._places.keys()

    def result(self, value: int) -> Value:
        """A member's output at the current point."""
        ((_, found),) = self.stored(value)
        return found

    def stored(self, value: int) -> tuple[tuple[tuple[Expr, ...], Value], ...]:
        """Where a member stands at the current point, and its output there; of each of its pieces.

        Raises `InvalidKernel` where it does not fit its group's space.
        """
        graph, group = self.graph, self.group
        node = graph.producers[value]
        if node in group.pieces:
            join = graph.loops[group.pieces[node]]
            places = places_of(join, group.space, graph.ranges)
        else:
            place = loop_index(graph.loops[node], group.space, graph.ranges)
            places = () if place is None else written_out(graph.loops[node], place)
        if not places:
            raise InvalidKernel("a member that does not fit its group's space")
        output = value - graph.starts[node]
        return tuple((place, self.compute(node, place, 0)[output]) for place in places)

    def compute(self, node: int, index: tuple[Expr, ...], depth: int) -> Sequence[Value]:
        """The outputs of a loop at `index` into its shape."""
        if depth > INLINE_DEPTH:
            raise InvalidKernel("too deep")
        if (node, index) not in self._results:
            loops = self.graph.loops[node]
            self._results[node, index] = loops.build(_Here(self, loops, index, depth))
        return self._results[node, index]

    def _loaded(self, slot: int, index: Expr) -> Value:
        place = self._param(slot)
        is_scalar = self.emit.params[place].role == "scalar"
        if is_scalar:
            return self.emit.scalar(place)
        is_named = any(ix.mentions(index, name.name) for name in self._places.values())
        return self._gathered(place, index) if is_named else self.emit.load(place, index)

    def _param(self, slot: int) -> int:
        """The parameter that a slot is read by."""
        found = self.graph.tensor(slot)
        if slot not in self.slots:
            self.slots.append(slot)
            self.emit.param("scalar" if is_host_scalar(found) else "in", found.dtype)
        return self.slots.index(slot)


def build_kernel(graph: Graph, fused: Fused, group: Group, *, stored: Sequence[int]) -> BuiltKernel:
    """The Kernel of `group` that writes the values `stored`.

    Raises `InvalidKernel` or `Unlowerable` where the group cannot be one after all.
    """
    builder = _Builder(graph, group, fused.inlined | group.inlined)
    for node in group.nodes:
        place = loop_index(graph.loops[node], group.space, graph.ranges)
        for point in () if place is None else written_out(graph.loops[node], place):
            builder.compute(node, point, 0)
    scattering = {
        value: each
        for value in stored
        if (each := graph.loops[graph.producers[value]].scattering) is not None
    }
    results = [() if value in scattering else builder.stored(value) for value in stored]
    is_cpu = any(graph.tensor(value).device == "cpu" for value in stored)
    if is_cpu and not builder.is_checked:
        raise InvalidKernel("a place at which nothing is read, which eager refuses outside")
    for value, results_of in zip(stored, results, strict=True):
        found = graph.tensor(value)
        param = builder.emit.param("out", found.dtype)
        if value in scattering:
            builder.scatter(value, param, scattering[value])
        for place, result in results_of:
            index = output_index(graph, value, group.space, place)
            if index is None:
                raise InvalidKernel("an output that does not fit its group's space")
            builder.emit.store(param, ix.linear(index, found.stride), result)
    slots = (*builder.slots, *stored)
    nest = Nest(
        tuple(builder.emit.body), tuple(builder.emit.params), slots, group.space, graph.ranges
    )
    canonical = canonical_nest(nest)
    inputs = sum(param.role != "out" for param in canonical.kernel.params)
    return BuiltKernel(
        check_kernel(canonical.kernel),
        canonical.dims,
        canonical.slots[:inputs],
        canonical.slots[inputs:],
    )
