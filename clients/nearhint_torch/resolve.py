"""Resolving: a Snapshot's Plan at given sizes becomes a list of closures.

Everything that sizes determine is worked out here, once: which binary each launch runs, shapes,
strides, where in the arena each tensor lies. What is left for a call is in the closures.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import fx

from nearhint.session import Session, Snapshot
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.plan import Free, Launch, MakeView, Output, RunNodes
from nearhint_rules.program import GIVEN_NUMBERS, IntType, TensorType, ValueType, value_types
from nearhint_torch.adapter import viewer
from nearhint_torch.arena import Arena, Layout, Placed
from nearhint_torch.arguments import DTYPES_BY_NAME
from nearhint_torch.capture import Captured
from nearhint_torch.errors import InvalidPlan
from nearhint_torch.launching import (
    LaunchPlan,
    Tensor,
    given_number,
    is_laid_out,
    launch_step,
)
from nearhint_torch.nodes import NodeCalls, Slots, Step
from nearhint_torch.parts import Launched, Parts
from nearhint_torch.report import TIERS, Report, Served


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """A Plan at given sizes, on one Snapshot."""

    steps: tuple[Step, ...]
    layout: Layout
    results: Callable[[Slots], tuple[Any, ...]]
    arguments: int
    sizes: tuple[int, ...]
    tiers: tuple[int, ...]
    """Launches by tier, T0 to T3."""
    report: Report
    is_covered: bool
    """Whether every launch's bucket is tuned; where not, the daemon is asked."""

    def run(self, args: Sequence[Any], arena: Arena) -> tuple[Any, ...]:
        """One call. What the model's own nodes raise passes through."""
        slots = arena.slots(self.layout)
        slots[: self.arguments] = args
        for step in self.steps:
            step(slots)
        return self.results(slots)


class Resolver:
    """Resolves Plans of one captured graph."""

    def __init__(self, captured: Captured, session: Session) -> None:
        self.captured = captured
        self.calls = NodeCalls(captured)
        self.session = session
        self.types = value_types(captured.program)
        self.results = _result_reader(captured)
        self.weights: dict[int, WeightView] = {}
        """By slot, for all sizes: weights that are replaced are kept by none of them."""

    def sizes(self, bound: Sequence[int]) -> dict[str, int]:
        """The Program's symbols, from the values of the capture's bindings."""
        return self.captured.sizes(bound)

    def resolve(
        self, snapshot: Snapshot, bound: Sequence[int], *, threads: int, parts: Parts
    ) -> Resolved:
        """The Plan of `snapshot` at the bound sizes; `parts` are those of this Snapshot."""
        sizes = self.sizes(bound)
        return _Resolution(self, snapshot, sizes, threads=threads, parts=parts).run()


class _Resolution:
    """One pass over the steps of a Plan."""

    def __init__(
        self,
        resolver: Resolver,
        snapshot: Snapshot,
        sizes: Mapping[str, int],
        *,
        threads: int,
        parts: Parts,
    ) -> None:
        self._resolver = resolver
        self._captured = resolver.captured
        self._snapshot = snapshot
        self._sizes = sizes
        self._threads = threads
        self._parts = parts
        self._views = {step.slot for step in snapshot.plan.steps if isinstance(step, MakeView)}
        self._template = resolver.calls.template(sizes)
        self._first_address = len(self._template)
        self._template += [None] * len(parts.addresses)
        self._steps: list[Step] = []
        self._placed: dict[int, Placed] = {}
        self._storage_bytes: dict[int, int] = {}
        self._unsure: set[int] = set()
        self._made: set[int] = set()  # by the steps so far, and not freed since
        self._addresses: list[tuple[int, ...]] = []
        self._address_slots: list[int] = []
        self._served: list[Served] = []
        self._values: dict[Expr, int] = {}
        self._is_covered = True

    def run(self) -> Resolved:
        for number, step in enumerate(self._snapshot.plan.steps):
            match step:
                case Launch():
                    self._launch(number, step)
                case RunNodes(nodes, outputs):
                    self._run_nodes(nodes, outputs)
                case MakeView():
                    self._view(number, step)
                case Free(slots):
                    self._free(slots)
        served = [min(each.tier, TIERS - 1) for each in self._served]
        t0, t1, t2, t3 = tiers = tuple(served.count(tier) for tier in range(TIERS))
        return Resolved(
            steps=tuple(self._steps),
            layout=Layout(
                storage_bytes=self._storage_bytes,
                placed=tuple(self._placed.values()),
                template=tuple(self._template),
                addresses=tuple(self._addresses),
                address_slots=tuple(self._address_slots),
            ),
            results=self._resolver.results,
            arguments=self._captured.arguments,
            sizes=tuple(self._sizes.values()),
            tiers=tiers,
            report=Report(
                sizes=self._sizes,
                tiers=(t0, t1, t2 + t3),
                launches=tuple(self._served),
            ),
            is_covered=self._is_covered,
        )

    def _value(self, expr: Expr) -> int:
        if isinstance(expr, ex.Int):
            return expr.value
        known = self._values.get(expr)
        if known is None:
            known = self._values[expr] = ex.evaluate(expr, self._sizes)
        return known

    def _evaluate(self, exprs: Iterable[Expr]) -> tuple[int, ...]:
        return tuple([self._value(expr) for expr in exprs])

    def _launch(self, number: int, launch: Launch) -> None:
        outputs = {output.slot for output in launch.outputs}
        known = self._launched(number, launch)
        self._made |= outputs
        if known.served is not None:
            self._served.append(known.served)
        self._is_covered = self._is_covered and known.is_covered
        if known.step is None:
            own = frozenset(chain.from_iterable(map(self._made_by, launch.nodes))) - self._made
            self._run_nodes(launch.nodes, launch.outputs)
            # A view that the Plan makes as well is needed after the step, and may be laid out
            # already. What was there before the step is not its own: the Plan frees it.
            self._free(sorted(own - self._views - outputs))
            return
        for placed, size_bytes in known.placed:
            self._place(placed, size_bytes)
        if known.parameters:
            self._addresses.append(known.parameters)
            self._address_slots.append(self._address_slot(number))
        self._steps.append(known.step)

    def _launched(self, number: int, launch: Launch) -> Launched:
        """What other sizes that agree in all that it depends on have made of the step, or anew."""
        sizes = self._parts.key(number, lambda: self._exprs_of(launch), self._sizes)
        lies = [(slot in self._placed) + 2 * (slot in self._unsure) for slot in launch.inputs]
        key = (*sizes, self._threads, *lies)
        known = self._parts.launches.get(key)
        if known is None:
            known = self._parts.launches[key] = self._decided(number, launch)
        return known

    def _exprs_of(self, launch: Launch) -> Iterator[Expr]:
        yield from launch.dims
        for output in launch.outputs:
            yield from (*output.shape, *output.stride)
        for slot in launch.inputs:
            yield from _sizes_of(self._resolver.types[slot])

    def _decided(self, number: int, launch: Launch) -> Launched:
        dims = self._evaluate(launch.dims)
        outputs = [self._output(output) for output in launch.outputs]
        if all(0 in output.shape for output in outputs):
            return Launched(self._allocating(outputs), (), (), None, is_covered=True)
        # An empty reduction has outputs all the same: ATen makes them. Of an input without elements
        # there is no memory to read, as of a table that has no rows: ATen says what is wrong.
        inputs = () if 0 in dims else tuple(self._input(slot) for slot in launch.inputs)
        if 0 in dims or any(0 in each.shape for each in inputs):
            served = Served(launch.kernel, 0, (), "zero_size")
            return Launched(None, (), (), served, is_covered=True)
        choice = self._snapshot.choose(number, dims)
        selection = choice.selection
        served = Served(launch.kernel, choice.tier, selection.hint or (), selection.reason)
        if choice.kernel is None:
            return Launched(None, (), (), served, choice.is_covered)
        planned = tuple(_tensor(output) for output in outputs)
        step = launch_step(
            LaunchPlan(
                dims=dims,
                inputs=inputs,
                outputs=planned,
                unsure=tuple(
                    each for each in inputs if each.slot in self._unsure and not each.is_number
                ),
                address_slot=self._address_slot(number),
                fallback=self._node_steps(launch.nodes),
                device=self._captured.device,
                threads=self._threads,
            ),
            choice,
            count_fallback=self._resolver.session.count_fallback,
        )
        return Launched(
            step,
            tuple((output, _size_bytes(output)) for output in outputs if output.storage >= 0),
            tuple(parameter.slot for parameter in (*inputs, *planned)),
            served,
            choice.is_covered,
        )

    def _output(self, output: Output) -> Placed:
        shape, stride = self._evaluate(output.shape), self._evaluate(output.stride)
        return Placed(output.slot, output.storage, DTYPES_BY_NAME[output.dtype], shape, stride)

    def _allocating(self, outputs: Sequence[Placed]) -> Step:
        """Zero elements: nothing is launched, the tensors are there all the same."""
        device = self._captured.device

        def run(slots: Slots) -> None:
            for output in outputs:
                slots[output.slot] = torch.empty_strided(
                    output.shape, output.stride, dtype=output.dtype, device=device
                )

        return run

    def _place(self, placed: Placed, size_bytes: int) -> None:
        self._placed[placed.slot] = placed
        held = self._storage_bytes.get(placed.storage, 0)
        self._storage_bytes[placed.storage] = max(size_bytes, held)

    def _offered(self, offer: Output) -> None:
        """Places what a node writes."""
        key = self._parts.key(-1 - offer.slot, lambda: (*offer.shape, *offer.stride), self._sizes)
        known = self._parts.placed.get(key)
        if known is None:
            placed = self._output(offer)
            known = self._parts.placed[key] = (placed, _size_bytes(placed))
        self._place(*known)

    def _input(self, slot: int) -> Tensor:
        kind = self._resolver.types[slot]
        if kind in GIVEN_NUMBERS:
            return given_number(slot, kind)
        if not isinstance(kind, TensorType):
            raise InvalidPlan(step="launch", problem=f"slot {slot} is no tensor of a known layout")
        return Tensor(
            slot,
            DTYPES_BY_NAME[kind.dtype],
            self._evaluate(kind.shape),
            self._evaluate(kind.stride),
            is_placed=slot in self._placed,
        )

    def _address_slot(self, number: int) -> int:
        return self._first_address + self._parts.addresses[number]

    def _node_steps(self, nodes: Iterable[int]) -> tuple[Step, ...]:
        steps = self._resolver.calls.steps
        return tuple(step for index in nodes if (step := steps[index]) is not None)

    def _run_nodes(self, nodes: Sequence[int], offers: Sequence[Output]) -> None:
        """Runs nodes; those that can write into memory that the Plan offers do."""
        offered = {output.slot: output for output in offers if output.storage >= 0}
        for index in nodes:
            made = self._made_by(index)
            writing = self._resolver.calls.writing[index]
            offer = offered.get(made.start) if writing is not None else None
            if writing is not None and offer is not None:
                self._offered(offer)
                self._steps.append(writing)
            else:
                self._steps.extend(self._node_steps([index]))
                self._unsure.update(made)
                self._made.update(made)

    def _made_by(self, index: int) -> range:
        first = self._captured.first[index]
        return range(first, first + len(self._captured.program.nodes[index].outputs))

    def _view(self, number: int, view: MakeView) -> None:
        key = self._parts.key(number, lambda: self._exprs_of_view(view), self._sizes)
        base = self._placed.get(view.base)
        if base is not None:
            inner = self._parts.inner.get(key)
            if inner is None or inner[0] != base:
                inner = self._parts.inner[key] = (base, self._view_of_placed(view, base))
            self._check_place(inner[1])
            self._placed[view.slot] = inner[1]
            return
        is_unsure = view.base in self._unsure
        if is_unsure:
            self._unsure.add(view.slot)
        step = self._parts.views.get((*key, is_unsure))
        if step is None:
            step = self._parts.views[*key, is_unsure] = self._viewing(view)
        self._steps.append(step)

    def _exprs_of_view(self, view: MakeView) -> Iterator[Expr]:
        yield from (*view.shape, *view.stride, view.offset)
        yield from _sizes_of(self._resolver.types[view.base])

    def _viewing(self, view: MakeView) -> Step:
        kind = self._resolver.types[view.base]
        if not isinstance(kind, TensorType):
            raise InvalidPlan(step="view", problem=f"slot {view.base} is no tensor")
        shape, stride = self._evaluate(view.shape), self._evaluate(view.stride)
        offset = self._value(view.offset)
        make = view_step(view.base, view.slot, shape, stride, offset)
        if view.base in self._captured.static:
            known = self._resolver.weights.setdefault(view.slot, WeightView())
            place = known.same((shape, stride, offset))
            return remembered_view(view.base, view.slot, make, place=place, known=known)
        if view.base in self._unsure:
            (otherwise,) = self._node_steps([view.node])
            expected = (self._evaluate(kind.shape), self._evaluate(kind.stride))
            return checked_view(view.base, expected, make, otherwise)
        return make

    def _view_of_placed(self, view: MakeView, base: Placed) -> Placed:
        shape, stride = self._evaluate(view.shape), self._evaluate(view.stride)
        offset = 0 if 0 in shape else self._value(view.offset)  # of no elements, it has no place
        start = base.offset + offset
        return Placed(view.slot, base.storage, base.dtype, shape, stride, start)

    def _check_place(self, placed: Placed) -> None:
        end = placed.offset * placed.dtype.itemsize + _size_bytes(placed)
        is_within = placed.offset >= 0 and min(placed.stride, default=0) >= 0
        if not is_within or end > self._storage_bytes[placed.storage]:
            raise InvalidPlan(step="view", problem=f"slot {placed.slot} leaves its base's storage")

    def _free(self, slots: Sequence[int]) -> None:
        # What lies in the arena stays there: its slots are laid out once for many calls.
        dropped = [
            slot
            for slot in slots
            if slot not in self._placed and not isinstance(self._resolver.types[slot], IntType)
        ]
        self._made.difference_update(dropped)
        if not dropped:
            return
        key = tuple(dropped)
        step = self._parts.frees.get(key)
        if step is None:
            step = self._parts.frees[key] = _dropping(key)
        self._steps.append(step)


def _sizes_of(kind: ValueType) -> tuple[Expr, ...]:
    return (*kind.shape, *kind.stride) if isinstance(kind, TensorType) else ()


def _dropping(dropped: Sequence[int]) -> Step:
    def run(slots: Slots) -> None:
        for slot in dropped:
            slots[slot] = None

    return run


def _tensor(output: Placed) -> Tensor:
    is_placed = output.storage >= 0
    return Tensor(output.slot, output.dtype, output.shape, output.stride, is_placed=is_placed)


def _size_bytes(placed: Placed) -> int:
    return extent(placed.shape, placed.stride) * placed.dtype.itemsize


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """How many elements a strided tensor spans; 0 if it has none.

    >>> extent((2, 3), (8, 1))
    11
    """
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def view_step(
    base: int, slot: int, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> Step:
    """Makes a strided view; `offset` counts from the first element of the base."""

    view = viewer()

    def run(slots: Slots) -> None:
        slots[slot] = view(slots[base], shape, stride, offset)

    return run


def checked_view(
    base: int, expected: tuple[tuple[int, ...], tuple[int, ...]], make: Step, otherwise: Step
) -> Step:
    """Makes a view of a tensor whose strides ATen chose; runs the node if they are others."""
    shape, stride = expected

    def run(slots: Slots) -> None:
        tensor = slots[base]
        if tensor.shape == shape and (
            tensor.stride() == stride or is_laid_out(tensor, shape, stride)
        ):
            make(slots)
        else:
            otherwise(slots)

    return run


Place: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]
"""Where a view lies: shape, strides, and the offset from its base."""


class WeightView:
    """A parameter, by a weak reference, its address, and the last view of it."""

    __slots__ = ("__weakref__", "_place", "last")

    def __init__(self) -> None:
        self.last: tuple[Callable[[], Any], int, Place | None, Any] = (_nobody, 0, None, None)
        self._place: Place | None = None

    def same(self, place: Place) -> Place:
        """The place, as the object that was given for an equal one before: hardly any varies."""
        known = self._place
        if known is None or known != place:
            known = self._place = place
        return known

    def keep(self, tensor: Any, place: Place, view: Any) -> None:
        """Remembers one view, in place of the one before."""
        itself = weakref.ref(self)

        def forget(_: object) -> None:
            known = itself()
            if known is not None:
                known.last = (_nobody, 0, None, None)

        self.last = (weakref.ref(tensor, forget), tensor.data_ptr(), place, view)


def remembered_view(base: int, slot: int, make: Step, *, place: Place, known: WeightView) -> Step:
    """Makes a view of a parameter, once for as long as the parameter lives and stays where it is.

    The view goes when the parameter does: a compiled graph may outlive the model, but must not
    keep its weights.
    """

    def run(slots: Slots) -> None:
        tensor = slots[base]
        seen, address, where, view = known.last
        is_there = where is place or where == place
        if is_there and seen() is tensor and address == tensor.data_ptr():
            slots[slot] = view
            return
        make(slots)
        known.keep(tensor, place, slots[slot])

    return run


def _nobody() -> None:
    return None


def _result_reader(captured: Captured) -> Callable[[Slots], tuple[Any, ...]]:
    """Reads what the graph returns: slots, or constants such as None."""
    positions = [captured.numbers[node] for node in captured.results if isinstance(node, fx.Node)]
    if len(positions) == len(captured.results) == 1:
        return lambda slots: (slots[positions[0]],)
    if len(positions) == len(captured.results) > 1:
        return itemgetter(*positions)
    readers = [_result(result, captured) for result in captured.results]
    return lambda slots: tuple([read(slots) for read in readers])


def _result(result: object, captured: Captured) -> Callable[[Slots], Any]:
    if isinstance(result, fx.Node):
        return itemgetter(captured.numbers[result])
    return lambda _: result
