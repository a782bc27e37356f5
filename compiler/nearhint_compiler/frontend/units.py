"""Units of fusion: groups of loops, and nodes that stay opaque, in an order."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from nearhint_compiler.frontend.lower import Graph


class Units:
    """Which unit a node is in, and the units in an order that their dependencies agree with.

    A join looks at the units between the two in that order and at no others, so that fusing a long
    Program takes time in proportion to its length.
    """

    def __init__(self, graph: Graph) -> None:
        count = len(graph.before)
        self.unit_of = list(range(count))
        self.members: dict[int, list[int]] = {}
        self._order = list(range(count))
        self._place = list(range(count))
        self._direct: dict[int, set[int]] = {}
        # Transitive dependencies of the members as the graph has them, as bit sets of nodes.
        self._own: dict[int, int] = {}
        self._above: dict[int, int] = {}
        for node, before in enumerate(graph.before):
            if node in graph.views:
                continue
            self.members[node] = [node]
            self._direct[node] = set(before)
            self._own[node] = 1 << node
            above = 0
            for earlier in before:
                above |= self._own[earlier] | self._above[earlier]
            self._above[node] = above

    def direct(self, unit: int) -> set[int]:
        """The units that `unit` depends on directly."""
        return {self.unit_of[node] for node in self._direct[unit]} - {unit}

    def in_order(self, units: Iterable[int]) -> list[int]:
        """`units` so that each comes after all that it depends on."""
        return sorted(units, key=self._place.__getitem__)

    def can_join(self, left: int, right: int, *, through: Collection[int] = ()) -> bool:
        """Whether no third unit lies between the two.

        Those of `through` exist only where they are read: what they depend on counts instead.
        """
        first, last = self.in_order((left, right))
        between, passed = self.direct(last) - {first}, set[int]()
        while seen := between.intersection(through):
            passed |= seen
            between = between.union(*map(self.direct, seen)) - passed - {first}
        if any(self._above[unit] & self._own[first] for unit in between):
            return False  # the graph alone says so: nothing needs to be searched
        return between.isdisjoint(self._dependents(first, last))

    def join(self, left: int, right: int) -> None:
        """Makes `right` part of `left`; they can be joined."""
        first, last = self.in_order((left, right))
        behind = self._dependents(first, last)
        window = range(self._place[first], self._place[last] + 1)
        others = [unit for unit in (self._order[place] for place in window) if unit != first]
        before = [unit for unit in others if unit != last and unit not in behind]
        after = [unit for unit in others if unit in behind]
        for node in self.members[right]:
            self.unit_of[node] = left
        self.members[left] = sorted(self.members[left] + self.members.pop(right))
        self._own[left] |= self._own.pop(right)
        self._above[left] |= self._above.pop(right)
        self._direct[left] |= self._direct.pop(right)
        for place, unit in zip(window, (*before, right, left, *after), strict=True):
            self._order[place] = unit
            self._place[unit] = place

    def _dependents(self, first: int, last: int) -> set[int]:
        """The units between two in the order that depend on the first."""
        found = {first}
        for unit in self._order[self._place[first] + 1 : self._place[last]]:
            if unit in self.members and not found.isdisjoint(self.direct(unit)):
                found.add(unit)
        return found - {first}
