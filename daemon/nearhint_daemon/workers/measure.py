"""Measuring at one hint: a Kernel's binaries and the ops that it replaces, on the same tensors.

Both sides allocate their outputs in every call, as they do where they are used.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch

from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers.aten import AtenProgram, Value, torch_dtype
from nearhint_daemon.workers.clock import Clock
from nearhint_daemon.workers.contest import THOROUGH, Contestant, Enough, run_contest
from nearhint_daemon.workers.errors import FallbackInvalid
from nearhint_daemon.workers.inputs import (
    TensorSpec,
    as_tensor,
    check_memory,
    random_values,
    size_bytes,
    tensor_spec,
)
from nearhint_daemon.workers.lowering_check import kernel_dims
from nearhint_rules.guard import Guard, pointer_facts, pointer_facts_hold, size_facts_hold
from nearhint_rules.plan import Fallback
from nearhint_rules.program import TensorType, value_types
from nearhint_rules.table import Timing

PLACES, PLACED_BYTES = 5, 32 << 20
"""Times that a CPU's inputs are there, at most, and the bytes of all of them: large ones lie on so
many pages that one place is as good as another."""
UNTIMED = "not timed: calls take so long here that there was no time for it"

Allocate = Callable[[], torch.Tensor]


class Measurable(Protocol):
    """A loaded binary that can be called on tensors."""

    def caller(
        self,
        dims: Sequence[int],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[Allocate],
        *,
        threads: int,
    ) -> Callable[[], object]:
        """A callable that allocates the outputs and runs the binary on fixed inputs."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """What is to be timed. `subject` None: the original ops."""

    id: str
    subject: Measurable | None
    guard: Guard
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """One entry's timing, or why it has none; `is_eliminated`: it left early, clearly slower."""

    id: str
    timing: Timing | None
    discarded: int
    problem: str
    is_eliminated: bool = False


def measure(
    kernel: ir.Kernel,
    fallback: Fallback,
    sizes: Mapping[str, int],
    entries: Sequence[Entry],
    clock: Clock,
    *,
    threads: int,
    device: str,
    budget_s: float,
    memory_limit_bytes: int,
    seed: int,
    enough: Enough = THOROUGH,
    before_each: Callable[[], None] = lambda: None,
) -> tuple[Result, ...]:
    """Times all entries, interleaved. The first binary is the default and stays to the end.

    `before_each` sample may raise, which ends it. Raises `MemoryLimitExceeded` before anything is
    allocated, `OpNotAllowed`, `FallbackInvalid`.
    """
    check_memory(
        fallback.program, sizes, limit_bytes=memory_limit_bytes, frees=_takes_arguments(fallback)
    )
    dims = kernel_dims(kernel, fallback, sizes)
    program = AtenProgram(fallback.program, sizes, precision="native", device=device)
    places = [_placed(program, fallback, sizes, device=device, seed=seed)]
    if device == "cpu":
        room = min(memory_limit_bytes, PLACED_BYTES)
        count = min(PLACES, room // max(1, size_bytes(fallback.program, sizes)))
        while len(places) < count:
            places.append(_placed(program, fallback, sizes, device=device, seed=seed))
    allocators = output_allocators(fallback, sizes, device=device)
    contestants: dict[str, Contestant] = {}
    problems = {entry.id: entry.problem for entry in entries if entry.problem}
    default = next((entry.id for entry in entries if entry.subject is not None), "")
    for entry in entries:
        if entry.id in problems:
            continue
        if entry.subject is None:
            calls = [program.caller(values) for values, _ in places]
        elif not all(guard_holds(entry.guard, dims, inputs, allocators) for _, inputs in places):
            problems[entry.id] = "its Guard does not hold here"
            continue
        else:
            calls = [
                entry.subject.caller(tuple(dims.values()), inputs, allocators, threads=threads)
                for _, inputs in places
            ]
        call, *elsewhere = calls
        contestants[entry.id] = Contestant(
            entry.id, call, entry.subject is None or entry.id == default, elsewhere
        )
    with torch.no_grad(), without_collector():
        run_contest(
            tuple(contestants.values()),
            clock,
            now=time.monotonic,
            budget_s=budget_s,
            enough=enough,
            before_each=before_each,
        )
    return tuple(
        _result(entry.id, contestants.get(entry.id), problems.get(entry.id, ""))
        for entry in entries
    )


def _placed(
    program: AtenProgram,
    fallback: Fallback,
    sizes: Mapping[str, int],
    *,
    device: str,
    seed: int,
) -> tuple[list[Value], list[torch.Tensor]]:
    """The Fallback's values and the Kernel's inputs, the same ones each time, in fresh memory."""
    values = random_values(
        fallback.program,
        sizes,
        precision="native",
        device=device,
        # Nothing is compared here, so the device draws: the host takes longer than the contest.
        generator=torch.Generator(device).manual_seed(seed),
    )
    computed = values if _takes_arguments(fallback) else program.values(values)
    return values, [as_tensor(computed[number]) for number in fallback.inputs]


def _takes_arguments(fallback: Fallback) -> bool:
    """Whether the Kernel reads what the Fallback is given, and nothing that it computes."""
    return all(number < len(fallback.program.inputs) for number in fallback.inputs)


def _result(name: str, contestant: Contestant | None, problem: str) -> Result:
    if contestant is None:
        return Result(name, None, 0, problem)
    if not contestant.samples:
        return Result(name, None, contestant.discarded, UNTIMED)
    return Result(name, contestant.timing, contestant.discarded, "", contestant.is_out)


def output_allocators(
    fallback: Fallback, sizes: Mapping[str, int], *, device: str
) -> tuple[Allocate, ...]:
    """What makes each tensor that the Kernel writes, laid out as the Plan declares it."""
    types = value_types(fallback.program)
    made: list[Allocate] = []
    for number in fallback.outputs:
        value_type = types[number]
        if not isinstance(value_type, TensorType):
            raise FallbackInvalid(f"value {number} is no tensor")
        made.append(_allocator(tensor_spec(value_type, sizes), device))
    return tuple(made)


def _allocator(spec: TensorSpec, device: str) -> Allocate:
    empty, shape, stride = torch.empty_strided, spec.shape, spec.stride
    dtype = torch_dtype(spec.dtype, "native")

    def allocate() -> torch.Tensor:
        return empty(shape, stride, dtype=dtype, device=device)

    return allocate


def guard_holds(
    guard: Guard,
    dims: Mapping[str, int],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[Allocate],
) -> bool:
    """Whether a binary may run on these sizes and tensors."""
    tensors = (*inputs, *(allocate() for allocate in outputs))
    addresses = [tensor.data_ptr() for tensor in tensors]
    return size_facts_hold(guard, dims) and pointer_facts_hold(pointer_facts(guard), addresses)


@contextmanager
def without_collector() -> Generator[None, None, None]:
    """Keeps the garbage collector out of the samples."""
    _leave_imports_alone()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@cache
def _leave_imports_alone() -> None:
    """Spares the collector what imports made, which is no garbage and takes it 0.1 s to look at.

    So it looks at what is young alone: what is old by the first contest stays.
    """
    gc.collect(1)
    gc.freeze()
