"""Which nodes each walk over the reduction space computes.

Walk number i (from 1) completes the reduces of level i. Stores of elements happen in the last
walk, after all loads of the same element: so an output may share its storage with an input that is
read at the same index. What a later walk needs again is computed again, or taken from a stash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nearhint_compiler.analysis.loops import variables_of
from nearhint_compiler.ir import nodes as ir

_CHEAP = frozenset({"add", "sub", "mul", "neg", "abs", "cast", "max", "min", "where", "fma"})
_FREE_COST = 3


@dataclass(frozen=True, slots=True)
class Passes:
    """The walks of a kernel: `reduces[i]` and `elements[i]` of walk i + 1, `rows[i]` before it.

    `elements` are the nodes to compute in order, stores included. `rows[i]` are the nodes once a
    row that become known after i walks; the last entry comes after all of them. `kept[i]` are the
    values that walk i + 1 puts into the stash, and `taken[i]` those that it takes from there.
    """

    reduces: tuple[tuple[int, ...], ...]
    elements: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, ...], ...]
    kept: tuple[tuple[int, ...], ...]
    taken: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """The number of walks."""
        return len(self.reduces)

    @property
    def stashed(self) -> tuple[int, ...]:
        """All values that go through the stash."""
        return tuple(sorted({position for walk in self.kept for position in walk}))


def plan_passes(kernel: ir.Kernel, *, stash: bool) -> Passes:
    """The walks of `kernel`, with what is costly and used twice stashed if `stash`."""
    elements, levels = ir.per_element(kernel), ir.levels(kernel)
    stores = [p for p, n in enumerate(kernel.body) if isinstance(n, ir.Store) and elements[p]]
    reduces = [p for p, n in enumerate(kernel.body) if isinstance(n, ir.Reducing)]
    count = max([*(levels[p] for p in reduces), *(levels[p] + 1 for p in stores)], default=0)
    invariant = [not elements[p] and levels[p] == 0 for p in range(len(kernel.body))]
    roots: list[list[int]] = []
    for walk in range(1, count + 1):
        wanted = [p for p in reduces if levels[p] == walk]
        found = [node.operand for p in wanted if isinstance(node := kernel.body[p], ir.Reducing)]
        roots.append(found + (stores if walk == count else []))
    plain = [_closure(kernel, elements, walk_roots, frozenset()) for walk_roots in roots]
    shared = _worth_stashing(kernel, elements, roots, plain) if stash else frozenset[int]()
    computed: set[int] = set()
    walks: list[tuple[int, ...]] = []
    kept: list[tuple[int, ...]] = []
    taken: list[tuple[int, ...]] = []
    for walk_roots in roots:
        found_walk = _closure(kernel, elements, walk_roots, frozenset(computed & shared))
        taken.append(tuple(sorted(found_walk & computed & shared)))
        walks.append(tuple(sorted(found_walk - (computed & shared))))
        kept.append(tuple(sorted((found_walk & shared) - computed)))
        computed |= found_walk
    last_use = {position for walk in taken for position in walk}
    rows: list[tuple[int, ...]] = [
        tuple(
            p
            for p in range(len(kernel.body))
            if not elements[p]
            and not isinstance(kernel.body[p], ir.Reducing)
            and (levels[p] == walk or (walk == count and levels[p] > count))
            and not isinstance(kernel.body[p], ir.Store)
            and (levels[p] > 0 or not invariant[p] or walk == 0)
        )
        for walk in range(count + 1)
    ]
    row_stores = tuple(
        p for p, n in enumerate(kernel.body) if isinstance(n, ir.Store) and not elements[p]
    )
    rows[count] = (*rows[count], *row_stores)
    return Passes(
        reduces=tuple(
            tuple(p for p in reduces if levels[p] == walk) for walk in range(1, count + 1)
        ),
        elements=tuple(walks),
        rows=tuple(rows),
        kept=tuple(tuple(p for p in walk if p in last_use) for walk in kept),
        taken=tuple(taken),
    )


def _closure(
    kernel: ir.Kernel,
    elements: tuple[bool, ...],
    roots: Iterable[int],
    known: frozenset[int],
) -> frozenset[int]:
    found: set[int] = set()
    waiting = [root for root in roots if elements[root]]
    while waiting:
        position = waiting.pop()
        if position in found:
            continue
        found.add(position)
        if position not in known:
            operands = ir.operands_of(kernel.body[position])
            waiting += [operand for operand in operands if elements[operand]]
    return frozenset(found)


def _worth_stashing(
    kernel: ir.Kernel,
    elements: tuple[bool, ...],
    roots: list[list[int]],
    walks: list[frozenset[int]],
) -> frozenset[int]:
    """Values of one walk that a later one uses for something new and that are dear to repeat.

    Not those that are the same along one of the reduction's loops: they are repeated seldom.
    """
    found: set[int] = set()
    variables = variables_of(kernel)
    loops = {f"r{number}" for number in range(len(kernel.reduction))}
    for later in range(1, len(walks)):
        before = frozenset[int]().union(*walks[:later])
        uses = {
            operand
            for position in walks[later] - before
            for operand in ir.operands_of(kernel.body[position])
        }
        edge = (uses | set(roots[later])) & before
        found |= {
            place
            for place in edge
            if loops <= variables[place] and _cost(kernel, elements, place) > _FREE_COST
        }
    return frozenset(found)


def _cost(kernel: ir.Kernel, elements: tuple[bool, ...], position: int) -> int:
    total = 0
    for place in _closure(kernel, elements, [position], frozenset()):
        match kernel.body[place]:
            case ir.Load() | ir.Gather():
                total += 1
            case ir.Op(name, _, _):
                total += 1 if name in _CHEAP else 6
            case ir.Scan():
                total += 6
            case _:
                continue
    return total
