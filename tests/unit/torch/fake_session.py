"""A session without a daemon: hands out Snapshots that a test makes, and records what is asked."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nearhint.session import Choice, Snapshot
from nearhint_daemon.metrics import FALLBACK_REASONS
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CpuLaunch
from nearhint_rules.choice import Selection
from nearhint_rules.expr import Sym
from nearhint_rules.plan import Launch, Output, Plan, RunNodes, Step
from nearhint_rules.program import Program, TensorType, value_types

MakeSnapshot = Callable[[Program], Snapshot | None]


@dataclass
class FakeHandle:
    program: Program
    snapshot: Snapshot | None
    wanted: list[dict[str, int]] = field(default_factory=list)
    named: list[dict[str, int]] = field(default_factory=list)
    counted: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    def want(self, sizes: Mapping[str, int]) -> None:
        self.wanted.append(dict(sizes))

    def want_exactly(self, sizes: Mapping[str, int]) -> None:
        self.named.append(dict(sizes))

    def count(self, sizes_key: tuple[int, ...], tiers: tuple[int, ...]) -> None:
        self.counted.append((sizes_key, tiers))

    def wait_ready(self, timeout_s: float) -> bool:
        self.waits_s.append(timeout_s)
        return self.snapshot is not None


@dataclass
class FakeSession:
    make_snapshot: MakeSnapshot
    handles: list[FakeHandle] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)

    def register(self, program: Program, *, threads: int = 0) -> FakeHandle:
        handle = FakeHandle(program, self.make_snapshot(program))
        self.handles.append(handle)
        return handle

    def count_fallback(self, reason: str) -> None:
        assert reason in FALLBACK_REASONS, "the daemon's metrics would count it as other"
        self.fallbacks.append(reason)


def plan_of(program: Program, *steps: Step, storages: int = 0) -> Plan:
    return Plan(program.id, "cpu", "test", steps, storages)


def all_nodes(program: Program) -> Plan:
    """A Plan that runs every node of the client's graph, one step each."""
    return plan_of(program, *(RunNodes((index,)) for index in range(len(program.nodes))))


def twice_plus_one(x: torch.Tensor) -> torch.Tensor:
    """What a FakeKernel computes."""
    return x * 2 + 1


def one_launch(program: Program) -> Launch:
    """The launch of a FakeKernel in place of all nodes of `twice_plus_one`."""
    mul, _ = program.nodes
    (slot,) = program.outputs
    assert slot is not None
    kind = value_types(program)[slot]
    assert isinstance(kind, TensorType)
    output = Output(slot, kind.dtype, kind.shape, kind.stride, "cpu")
    return Launch("k", "f", (ex.product(kind.shape),), (mul.inputs[0],), (output,), (0, 1))


class FakeSnapshot:
    """Serves `plan`; `choices` gives what a launch step runs (missing: the Fallback)."""

    def __init__(self, plan: Plan, choices: Mapping[int, Any] | None = None) -> None:
        self.plan = plan
        self.generation = 1
        self.choices = choices or {}
        self.asked: list[tuple[int, tuple[int, ...]]] = []

    def choose(self, step: int, dims: tuple[int, ...]) -> Choice:
        self.asked.append((step, dims))
        choice = self.choices.get(step)
        return choice(dims) if choice is not None else chosen(None, dims, tier=0)


def chosen(
    kernel: Any, dims: tuple[int, ...], *, tier: int = 2, is_covered: bool = True, **more: Any
) -> Choice:
    """A Choice of `kernel` (None: the Fallback) at the hint that the sizes are themselves."""
    selection = Selection(
        variant=-1 if kernel is None else 0,
        hint=dims,
        distance=0.0,
        expected_regret=None,
        reason="winner",
        generation=1,
        tier=tier,
    )
    return Choice(kernel, selection, is_covered, **more)


class FakeKernel:
    """Computes `2 * x + 1` over k0 floats with NumPy, on the addresses that it is given."""

    def __init__(self, *, fails: bool = False) -> None:
        self.launch = CpuLaunch(entry="twice_plus_one", work=Sym("k0"), grain=1)
        self.fails = fails
        self.calls: list[tuple[int, ...]] = []
        self.bound: list[tuple[tuple[int, ...], int]] = []

    def bind(self, dims: tuple[int, ...], *, threads: int) -> Callable[[Sequence[int]], None]:
        self.bound.append((dims, threads))

        def call(addresses: Sequence[int]) -> None:
            self.calls.append(tuple(addresses))
            if self.fails:
                raise RuntimeError("the launcher failed")
            source, target = (_floats(address, dims[0]) for address in addresses)
            target[:] = source * 2 + 1

        return call


def _floats(address: int, count: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
