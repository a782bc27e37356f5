"""The compiled callable of one captured graph: T0, or a Plan when there is one.

Per call: one attribute read for the Snapshot, one look-up of what was resolved for these sizes,
and the steps. Nothing here waits, locks or talks to the daemon, and no state is shared between
calls but memories that a race can only fill twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import fx

from nearhint.session import ProgramHandle, Session, Snapshot
from nearhint_torch.adapter import is_watched
from nearhint_torch.arena import arena_pool
from nearhint_torch.capture import Binding, Captured
from nearhint_torch.errors import is_from_outside
from nearhint_torch.parts import Parts
from nearhint_torch.report import Report
from nearhint_torch.resolve import Resolved, Resolver

RESOLVED_LIMIT = 512
"""Sizes that a graph remembers for its Snapshot; past it, they are resolved again."""

Key: TypeAlias = tuple[int, ...]
_watchers: dict[int, list[Report]] = {}
"""By identity: two lists of equal reports, or of none yet, are two watchers."""


@contextlib.contextmanager
def watch() -> Generator[list[Report]]:
    """Collects a `Report` of every call of every compiled graph in the process meanwhile."""
    reports: list[Report] = []
    _watchers[id(reports)] = reports
    try:
        yield reports
    finally:
        del _watchers[id(reports)]


class CompiledGraph:
    """Takes the list of a call's arguments, in the graph's order; returns its results."""

    def __init__(
        self,
        module: fx.GraphModule,
        captured: Captured,
        *,
        session: Session,
        handle: ProgramHandle,
    ) -> None:
        self._forward: Callable[..., Any] = module.forward
        self._handle = handle
        self._session = session
        self._resolver = Resolver(captured, session)
        self._pool = arena_pool(captured.device)
        self._read_sizes = size_reader(captured.bindings)
        self._memory: tuple[Snapshot | None, dict[Key, Resolved], Parts] = (None, {}, Parts())
        self._threads: Callable[[], int] = (
            torch.get_num_threads if captured.device.type == "cpu" else lambda: 0
        )

    def __call__(self, *args: Any) -> Any:
        """One call of the graph."""
        if is_watched():
            return self._run_watched(args)
        snapshot = self._handle.snapshot
        if snapshot is None:
            return self._run_original(args, "no_plan")
        key = (self._threads(), *self._read_sizes(args))
        known_for, memory, _ = self._memory
        resolved = memory.get(key) if known_for is snapshot else None
        if resolved is None:
            resolved = self._resolve(snapshot, key)
            if resolved is None:
                return self._run_original(args, "plan_unusable")
        if _watchers:
            self._tell(resolved.report)
        self._handle.count(resolved.sizes, resolved.tiers)
        arena = self._pool.take()
        try:
            return resolved.run(args, arena)
        finally:
            self._pool.give(arena)

    def _run_original(self, args: Sequence[Any], reason: str) -> Any:
        """T0 for the whole graph, exactly as captured."""
        self._session.count_fallback(reason)
        sizes = self._resolver.sizes(self._read_sizes(args))
        self._handle.want(sizes)
        if _watchers:
            self._tell(Report(sizes=sizes, tiers=(0, 0, 0), launches=(), reason=reason))
        return self._forward(*args)

    def _run_watched(self, args: Sequence[Any]) -> Any:
        """The ops as captured, for whoever looks at them; sizes may be symbols of a tracer's."""
        self._session.count_fallback("watched")
        if _watchers:
            self._tell(Report(sizes={}, tiers=(0, 0, 0), launches=(), reason="watched"))
        return self._forward(*args)

    def _resolve(self, snapshot: Snapshot, key: Key) -> Resolved | None:
        # Kept here and not in the Snapshot, which outlives the model: views of weights are in it.
        known_for, memory, parts = self._memory
        if known_for is not snapshot:
            memory, parts = {}, Parts(snapshot.plan.steps)
            self._memory = (snapshot, memory, parts)
        try:
            resolved = self._resolver.resolve(snapshot, key[1:], threads=key[0], parts=parts)
        except Exception as error:
            parts.forget()
            if is_from_outside(error):
                raise
            # Whatever is wrong with a Plan from outside, the model runs as captured.
            return None
        if len(memory) >= RESOLVED_LIMIT:
            memory.clear()
            parts.forget()
        memory[key] = resolved
        if not resolved.is_covered:
            self._handle.want(resolved.report.sizes)
        return resolved

    def _tell(self, report: Report) -> None:
        for reports in tuple(_watchers.values()):
            reports.append(report)


def size_reader(bindings: Sequence[Binding]) -> Callable[[Sequence[Any]], Key]:
    """Reads the values of the bound symbols from a call's arguments."""
    if all(binding.kind == "int" for binding in bindings):
        positions = [binding.position for binding in bindings]
        if not positions:
            return lambda _: ()
        if len(positions) == 1:
            (only,) = positions
            return lambda args: (args[only],)
        getter: Callable[[Sequence[Any]], Key] = itemgetter(*positions)
        return getter
    readers = [_reader(binding) for binding in bindings]
    return lambda args: tuple([read(args) for read in readers])


def _reader(binding: Binding) -> Callable[[Sequence[Any]], int]:
    position, dimension = binding.position, binding.dimension
    match binding.kind:
        case "int":
            return lambda args: int(args[position])
        case "size":
            return lambda args: int(args[position].shape[dimension])
        case _:
            return lambda args: int(args[position].stride(dimension))
