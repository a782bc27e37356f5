"""Fusion: which loops share a Kernel.

A *unit* is a group of loops, or a node that stays opaque. Two groups are joined if

    one space fits both                                     (`space.unify`)
    a scan's space has its one reduced dim                  (`Fusion._fits`)
    whatever one reads of the other, it reads at the very   (`Fusion._fits`)
    point at which it is computed, so it stays in a register
    no unit outside depends on one and feeds the other      (`Units.can_join`)
    one that scatters is all that needs the other           (`Fusion._is_scattered_alone`)

First producers join their consumers, then siblings that share an input join each other, but for
what is computed again where a join takes its parts. Then pointwise groups that nothing needs in
memory are inlined where they are read, if recomputing is cheap; what reduces rows joins a reader
that takes elements elsewhere in the same rows, or leaves what is computed of the rows and of their
totals to all that take it, if they read no more for it than they would of the results; what then
reduces the same tensors alike is one group; joins whose parts are in memory for them alone are
stored where these are made (`pieces`); and groups that are not worth a launch go back to being
opaque. `attempts` fuses a graph with some of its loops otherwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from nearhint_compiler.frontend.again import Again, Rows, computed_again, left_to_all
from nearhint_compiler.frontend.groups import Fused, Group
from nearhint_compiler.frontend.indices import output_index, read_index
from nearhint_compiler.frontend.joins import JOINS
from nearhint_compiler.frontend.loops import Read
from nearhint_compiler.frontend.lower import Graph
from nearhint_compiler.frontend.pieces import join_of, places_of
from nearhint_compiler.frontend.pointwise import POINTWISE
from nearhint_compiler.frontend.readers import (
    makers_of,
    needed_in_memory,
    producers_of,
    readers_of_units,
    reading_nodes,
    takers_of,
)
from nearhint_compiler.frontend.scattering import bases_of, is_at_hand, is_made_for, scatters
from nearhint_compiler.frontend.space import Space, loop_index, space_of, unify
from nearhint_compiler.frontend.units import Units
from nearhint_compiler.frontend.worth import (
    WORK_LIMIT,
    Work,
    are_parts,
    is_cheap,
    is_light,
    is_turned_for_rows,
    is_worth_a_launch,
)
from nearhint_compiler.ir import index as ix
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

MEMBER_LIMIT = 64
INPUT_LIMIT = 24
READER_LIMIT = 4


@dataclass
class Fusion:
    """The state of fusing one graph."""

    graph: Graph
    units: Units = field(init=False)
    spaces: dict[int, Space] = field(init=False)
    _tables: frozenset[int] = field(init=False)
    _turned: frozenset[int] = field(init=False)
    _places: dict[tuple[int, Space], tuple[Expr, ...] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.units = Units(self.graph)
        self.spaces = {node: space_of(loops) for node, loops in self.graph.loops.items()}
        self._tables = frozenset(
            self.graph.producers[self.graph.root(read.value)]
            for loops in self.graph.loops.values()
            for read in loops.reads
            if read.looks_up and loops.scattering is None
        )
        self._turned = frozenset(
            node
            for node, readers in reading_nodes(self.graph).items()
            if is_turned_for_rows(self.graph, node, readers)
        )

    def run(self) -> Fused:
        """Joins, inlines and drops, in this order."""
        self._join_producers()
        self._join_siblings()
        return self._finished()

    def _join_producers(self) -> None:
        """Once more where it failed: what broadcasts a value may have become part of its rows."""
        apart: list[tuple[int, int]] = []
        for node in sorted(self.graph.loops):
            for producer in producers_of(self.graph, node):
                if producer in self._turned and self.graph.loops[node].axes:
                    continue
                if not self._try_join(self.units.unit_of[producer], self.units.unit_of[node]):
                    apart.append((producer, node))
        for producer, node in apart:
            self._try_join(self.units.unit_of[producer], self.units.unit_of[node])

    def _join_siblings(self) -> None:
        readers: dict[int, list[int]] = {}
        for node, loops in sorted(self.graph.loops.items()):
            for read in loops.reads:
                root = self.graph.root(read.value)
                if self.graph.producers[root] not in self.graph.loops:
                    readers.setdefault(root, []).append(node)
        parts = self._parts()
        for root, nodes in readers.items():
            if not self.graph.tensor(root).shape:
                continue
            others = [node for node in nodes if self.units.unit_of[node] not in parts]
            for left, right in itertools.pairwise(others):
                units = self.units.unit_of[left], self.units.unit_of[right]
                if self.spaces[units[0]].numel == self.spaces[units[1]].numel:
                    self._try_join(*units)

    def _parts(self) -> set[int]:
        """The groups that one join alone reads, and computes again: in memory they are no use."""
        graph, members = self.graph, self.units.members
        needed, reading, readers = (
            needed_in_memory(self.graph),
            reading_nodes(self.graph),
            readers_of_units(self.graph, self.units),
        )
        found: set[int] = set()
        for unit in self.spaces:
            nodes = members[unit]
            into = {node for member in nodes for node in reading.get(member, ())} - {*nodes}
            if (
                needed.isdisjoint(nodes)
                and len(readers.get(unit, ())) == 1
                and all(graph.program.nodes[node].op in JOINS for node in into)
                and is_cheap(
                    graph,
                    nodes,
                    copies=1,
                    broadcast=True,
                    into=into,
                    parted=self._are_parted(nodes, into),
                )
            ):
                found.add(unit)
        return found

    def _try_join(self, left: int, right: int) -> bool:
        if left == right or not self.graph.on_host.isdisjoint((left, right)):
            return False
        members = self.units.members
        if len(members[left]) + len(members[right]) > MEMBER_LIMIT:
            return False
        space = unify(self.spaces[left], self.spaces[right])
        if space is None or not self.units.can_join(left, right):
            return False
        if not self._fits(left, right, space) or not self._is_scattered_alone(left, right):
            return False
        self.units.join(left, right)
        del self.spaces[right]
        self.spaces[left] = space
        return True

    def _fits(self, left: int, right: int, space: Space) -> bool:
        """Whether all that the members read of each other is at hand at the same point."""
        left_nodes, right_nodes = self.units.members[left], self.units.members[right]
        nodes = {*left_nodes, *right_nodes}
        if not self._is_possible(nodes, space):
            return False
        same = self.spaces[left] == self.spaces[right] == space
        for node in sorted(nodes):
            if self.place(node, space) is None:
                return False
            for read in self.graph.loops[node].reads:
                producer = self.graph.producers[self.graph.root(read.value)]
                inside = producer in nodes
                if inside and read.looks_up:
                    return False
                crossing = (producer in left_nodes) != (node in left_nodes)
                if inside and (crossing or not same) and not self._reads_here(node, read, space):
                    return False
        return True

    def _is_scattered_alone(self, left: int, right: int) -> bool:
        """Whether neither group scatters, or one does and the other is there for that alone."""
        graph, members = self.graph, self.units.members
        for one, other in ((left, right), (right, left)):
            if scatters(graph, members[one]):
                known = reading_nodes(self.graph), needed_in_memory(self.graph)
                return is_made_for(graph, members[one], members[other], *known)
        return True

    def _is_possible(self, nodes: set[int], space: Space) -> bool:
        """Whether a space, and the inputs that there may be, are enough for these nodes."""
        if len(space.reduced_dims) != 1 and any(self.graph.loops[n].has_scan for n in nodes):
            return False
        return len(self._inputs(nodes)) <= INPUT_LIMIT

    def _inputs(self, nodes: set[int]) -> set[int]:
        roots = {
            self.graph.root(read.value) for node in nodes for read in self.graph.loops[node].reads
        }
        return {root for root in roots if self.graph.producers[root] not in nodes}

    def place(self, node: int, space: Space) -> tuple[Expr, ...] | None:
        """`space.loop_index` of a node, remembered."""
        key = (node, space)
        if key not in self._places:
            self._places[key] = loop_index(self.graph.loops[node], space, self.graph.ranges)
        return self._places[key]

    def _reads_here(self, node: int, read: Read, space: Space) -> bool:
        """Whether a member reads another member at the point at which that is computed."""
        graph, ranges = self.graph, space.ranges(self.graph.ranges)
        index = read_index(graph, read, self.place(node, space) or (), ranges)
        root, found = graph.root_index(read.value, index, ranges)
        wanted = output_index(graph, root, space, self.place(graph.producers[root], space))
        return found == wanted

    def _finished(self) -> Fused:
        """Inlines, drops what is not worth a launch, and freezes the rest."""
        graph, units, needed = self.graph, self.units, needed_in_memory(self.graph)
        inlined, gone = self._inlined(needed)
        while missing := self._gone_but_taken(inlined, gone) - needed:
            needed |= missing
            inlined, gone = self._inlined(needed)
        needed |= self._taken_unread(inlined, gone)
        left = self._left_to_readers(inlined, gone, needed)
        pieces = self._stored_in_pieces(inlined, gone)
        groups = tuple(
            Group(
                tuple(units.members[unit]),
                self.spaces[unit],
                frozenset(inlined[unit]),
                pieces.get(unit, {}),
            )
            for unit in sorted(self.spaces, key=lambda unit: units.members[unit][0])
            if unit not in gone and is_worth_a_launch(graph, units.members[unit], inlined[unit])
        )
        again = frozenset(node for unit in gone for node in units.members[unit])
        return Fused(graph, groups, again | left)

    def _inlined(self, needed: set[int]) -> tuple[dict[int, set[int]], set[int]]:
        """What each group computes again, and the groups that are there only where they are read.

        `needed` are nodes whose results have to be in memory.
        """
        graph, units = self.graph, self.units
        readers, reading, bases = (
            readers_of_units(self.graph, self.units),
            reading_nodes(self.graph),
            bases_of(graph),
        )
        inlined: dict[int, set[int]] = {unit: set() for unit in self.spaces}
        gone: set[int] = set()
        work = Work({unit: len(units.members[unit]) for unit in self.spaces})
        for unit in units.in_order(self.spaces):
            into = readers.get(unit, set())
            nodes = [*units.members[unit], *sorted(inlined[unit])]
            limit = len(self.spaces) if unit in graph.on_host else READER_LIMIT
            if needed.intersection(units.members[unit]) or not 0 < len(into) <= limit:
                continue
            if not into <= self.spaces.keys() or unit in into:
                continue
            if self._is_table(unit) and not all(map(self._is_elementwise, nodes)):
                continue
            if not (bases.isdisjoint(nodes) or is_at_hand(graph, nodes)):
                continue
            if not self._turned.isdisjoint(units.members[unit]):
                continue
            larger = any(self.spaces[reader].numel != self.spaces[unit].numel for reader in into)
            last = {node for member in units.members[unit] for node in reading.get(member, ())}
            last -= {*units.members[unit]}
            places = {reader: self._places_in(unit, reader) for reader in into}
            copies = len(into)
            if self._is_read_once(unit, places):
                copies, larger = 1, False
            is_again = is_cheap(
                graph,
                nodes,
                copies=copies,
                broadcast=larger,
                into=last,
                parted=copies == 1 and self._are_parted(nodes, last),
            )
            if is_again and work.takes(unit, places):
                gone.add(unit)
                for reader in into:
                    inlined[reader].update(nodes)
        return inlined, gone

    def _gone_but_taken(self, inlined: dict[int, set[int]], gone: Collection[int]) -> set[int]:
        """What is gone, but is an argument of a node that runs as it is.

        Such a node takes more than its loop reads: a copy into a tensor takes that, too.
        """
        again = {node for unit in gone for node in self.units.members[unit]}
        return again & set[int]().union(
            *(makers_of(self.graph, node) for node in self._alone(inlined, gone))
        )

    def _taken_unread(self, inlined: dict[int, set[int]], gone: Collection[int]) -> set[int]:
        """What makes arguments of nodes that run as they are, of which their loops read nothing."""
        taken = (
            makers_of(self.graph, node) - {*producers_of(self.graph, node)}
            for node in self._alone(inlined, gone)
        )
        return set[int]().union(*taken)

    def _alone(self, inlined: dict[int, set[int]], gone: Collection[int]) -> list[int]:
        """Loops that are not worth a launch, and run as they are."""
        graph, members = self.graph, self.units.members
        return [
            node
            for unit in self.spaces.keys() - gone
            if not is_worth_a_launch(graph, members[unit], inlined[unit])
            for node in members[unit]
        ]

    def _places_in(self, unit: int, reader: int) -> int:
        """At how many places, at most, a point of `reader` reads what `unit` computes."""
        graph, members = self.graph, self.units.members
        return len(
            {
                (read.value, read.dims, read.windows, read.shape)
                for node in members[reader]
                for read in graph.loops[node].reads
                if graph.producers[graph.root(read.value)] in members[unit]
            }
        )

    def _is_read_once(self, unit: int, places: Mapping[int, int]) -> bool:
        """Whether readers on a GPU take no more elements of a unit than it has, as slices do."""
        if self.graph.tensor(self.graph.starts[unit]).device != "cuda":
            return False
        taken = ex.add(*(ex.mul(n, self.spaces[reader].numel) for reader, n in places.items()))
        return ix.is_nonnegative(ex.sub(self.spaces[unit].numel, taken), self.graph.ranges)

    def _are_parted(self, nodes: Collection[int], into: Collection[int]) -> bool:
        """Whether each element of `nodes` is computed once at most where `into` join them.

        Loops are parted that walk the dims of a join themselves, and reduce nothing.
        """
        if not are_parts(self.graph, nodes, into):
            return False
        spaces = {node: self.spaces[self.units.unit_of[node]] for node in into}
        places = [self.place(node, space) for node, space in spaces.items()]
        return not any(space.reduced_dims for space in spaces.values()) and all(
            isinstance(each, ex.Sym) or each == ex.ZERO
            for place in places
            for each in place or (ex.ONE,)
        )

    def _is_table(self, unit: int) -> bool:
        """Whether some loop looks up elements of what a unit computes."""
        return not self._tables.isdisjoint(self.units.members[unit])

    def _is_elementwise(self, node: int) -> bool:
        """Whether a node computes the same of its operands' elements wherever they are."""
        return self.graph.program.nodes[node].op in POINTWISE

    def _left_to_readers(
        self, inlined: dict[int, set[int]], gone: Collection[int], needed: set[int]
    ) -> frozenset[int]:
        """What reduces rows leaves to its readers what is computed of them and of the totals.

        They take it elsewhere, in another order or after other totals, and so from memory: there
        are the rows already, and they are no wider. Returns the nodes that are computed where they
        are read.
        """
        found: set[int] = set()
        readers = readers_of_units(self.graph, self.units)
        for unit in self.units.in_order(self.spaces.keys() - gone):
            if unit not in self.spaces:
                continue  # it was joined with what it reads
            if not self.spaces[unit].reduced_dims:
                continue
            members = self.units.members[unit]
            if scatters(self.graph, members) or not bases_of(self.graph).isdisjoint(members):
                continue
            again = self._taken_again(unit, takers_of(unit, readers, gone), inlined)
            if len(again) == 1:
                ((reader, only),) = again.items()
                is_again = only.is_light and only.nodes
                if is_again and self._try_rejoin(unit, reader, only.nodes, inlined, gone):
                    found |= only.nodes - needed
                    readers = readers_of_units(self.graph, self.units)
                    continue
            again = self._taken_again(unit, again, inlined, stored=needed)
            left = left_to_all(self.graph, again.values())
            if self._is_table(unit) and not all(map(self._is_elementwise, left)):
                continue
            kept = self._without(unit, left)
            if not self._is_moved(unit, again, left - {*kept}):
                continue
            if not is_worth_a_launch(self.graph, kept, inlined[unit]):
                continue  # what runs as it is takes its arguments from memory
            found |= left
            for reader, each in again.items():
                inlined[reader] |= each.nodes & left
            self.units.members[unit] = kept
        self._join_reductions(inlined, gone)
        return frozenset(found)

    def _is_moved(self, unit: int, again: Mapping[int, Again], leaving: Collection[int]) -> bool:
        """Whether what is not light is computed once for each element, where it is read now.

        What reduces may walk its rows several times.
        """
        if all(each.is_light for each in again.values()):
            return True
        if len(again) > 1:
            return False
        ((reader, only),) = again.items()
        if self.spaces[reader].reduced_dims:
            return False
        is_rest_light = is_light(self.graph, only.nodes - {*leaving})
        points = len(only.nodes) * self._places_in(unit, reader)
        return only.is_once and is_rest_light and points <= WORK_LIMIT

    def _join_reductions(self, inlined: dict[int, set[int]], gone: Collection[int]) -> None:
        """Joins what reduces the same tensors alike, through what is computed again of them, too.

        A bias gets the sum of what the norm's weight gets the sum of a product with.
        """
        reading: dict[int, list[int]] = {}
        for unit in self.units.in_order(self.spaces.keys() - gone):
            nodes = {*self.units.members[unit], *inlined[unit]}
            if not self.spaces[unit].reduced_dims or scatters(self.graph, nodes):
                continue
            for root in self._inputs(nodes):
                if self.graph.tensor(root).shape:
                    reading.setdefault(root, []).append(unit)
        for units in reading.values():
            for left, right in itertools.combinations(units, 2):
                if left in self.spaces and right in self.spaces:
                    self._try_rejoin(left, right, frozenset(), inlined, gone)

    def _try_rejoin(
        self,
        unit: int,
        reader: int,
        left: frozenset[int],
        inlined: dict[int, set[int]],
        gone: Collection[int],
    ) -> bool:
        """Joins what reduces rows with the reader that takes elements elsewhere in the same rows.

        What is `left` is computed again there, as heads are that are normed and then rotated.
        """
        again = {*inlined[unit], *inlined[reader], *left}
        reads = self.units.members[reader]
        if scatters(self.graph, reads) or not self.units.can_join(unit, reader, through=gone):
            return False
        nodes = {*self.units.members[unit], *reads}
        space = unify(self.spaces[unit], self.spaces[reader])
        if space is None or len(nodes | again) > MEMBER_LIMIT:
            return False
        if not self._is_possible(nodes | again, space) or not self._finds_all(nodes, again, space):
            return False
        self.units.join(unit, reader)
        self.spaces[unit] = space
        del self.spaces[reader]
        inlined[unit] = again
        return True

    def _stored_in_pieces(
        self, inlined: dict[int, set[int]], gone: Collection[int]
    ) -> dict[int, dict[int, int]]:
        """Joins groups with what takes their elements as parts of a join, from memory so far.

        Returns, by group, what is stored in pieces, and the join that these are of.
        """
        graph, members = self.graph, self.units.members
        found: dict[int, dict[int, int]] = {}
        for reader in self.units.in_order(self.spaces.keys() - gone):
            nodes = members[reader]
            join = join_of(graph, nodes)
            if join is None or not graph.on_host.isdisjoint(nodes):
                continue
            reads = {
                each
                for node in (*nodes, *inlined[reader])
                for each in producers_of(self.graph, node)
            }
            sources = {self.units.unit_of[each] for each in reads} & self.spaces.keys() - gone
            for unit in self.units.in_order(sources - {reader}):
                if self._try_in_pieces(unit, reader, join, inlined, gone):
                    found.setdefault(unit, {}).update(dict.fromkeys(nodes, join))
                    break
        return found

    def _try_in_pieces(
        self,
        unit: int,
        reader: int,
        join: int,
        inlined: dict[int, set[int]],
        gone: Collection[int],
    ) -> bool:
        """Joins a group with the reader whose parts it makes, which finds all of them at hand."""
        nodes, own = self.units.members[reader], self.units.members[unit]
        space = self.spaces[unit]
        places = places_of(self.graph.loops[join], space, self.graph.ranges)
        again = {*inlined[unit], *inlined[reader], *nodes}
        if not places or scatters(self.graph, own) or len({*own, *again}) > MEMBER_LIMIT:
            return False
        if not self.units.can_join(unit, reader, through=gone):
            return False
        pieces = dict.fromkeys(nodes, places)
        if not self._is_possible({*own, *again}, space) or not self._finds_all(
            own, again, space, pieces=pieces
        ):
            return False
        self.units.join(unit, reader)
        del self.spaces[reader]
        inlined[unit] = again
        return True

    def _finds_all(
        self,
        nodes: Collection[int],
        again: Collection[int],
        space: Space,
        *,
        pieces: Mapping[int, Sequence[tuple[Expr, ...]]] | None = None,
    ) -> bool:
        """Whether `nodes`, and what is computed `again` for them, find the others at hand.

        Those that are computed once are, at the point at which they are. `pieces` are nodes that
        are computed again at several places.
        """
        graph, ranges = self.graph, space.ranges(self.graph.ranges)
        places = {node: self.place(node, space) for node in nodes}
        stack = [*places.items()]
        stack += [(node, place) for node, found in (pieces or {}).items() for place in found]
        seen = set(stack)
        while stack:
            node, place = stack.pop()
            if place is None or len(seen) > len(nodes) + WORK_LIMIT:
                return False
            for read in graph.loops[node].reads_at(place, ranges):
                producer = graph.producers[graph.root(read.value)]
                if producer not in again and producer not in nodes:
                    continue
                if read.looks_up:
                    return False
                root, index = graph.root_index(
                    read.value, read_index(graph, read, place, ranges), ranges
                )
                if producer not in again:
                    if index != output_index(graph, root, space, places[producer]):
                        return False
                elif (producer, index) not in seen:
                    seen.add((producer, index))
                    stack.append((producer, index))
        return True

    def _taken_again(
        self,
        unit: int,
        readers: Collection[int],
        inlined: Mapping[int, Collection[int]],
        *,
        stored: Collection[int] = (),
    ) -> dict[int, Again]:
        """What of `unit` each of its readers takes whole, of those that take any; what is `stored`
        anyhow they read from memory.
        """
        members = self.units.members
        rows = Rows(self.graph, frozenset(members[unit]), self.spaces[unit].numel)
        taken = {
            reader: computed_again(
                rows, (*members.get(reader, ()), *inlined[reader]), inlined[unit], stored
            )
            for reader in sorted(readers)
        }
        return {reader: each for reader, each in taken.items() if each.wanted}

    def _without(self, unit: int, left: frozenset[int]) -> list[int]:
        """A unit's members, less those of `left` that its others do not need."""
        members = self.units.members[unit]
        kept = [node for node in members if node not in left]
        leaving = left & {*members}
        stack = [*kept]
        while stack:
            for producer in producers_of(self.graph, stack.pop()):
                if producer in leaving and producer not in kept:
                    kept.append(producer)
                    stack.append(producer)
        return sorted(kept)
