"""Launch steps: from a Choice to a closure that packs addresses and calls the binary.

Whatever goes wrong in a launch (a fact about addresses that does not hold, strides or a type that
capture did not foresee, an error of the launcher) is answered by running the step's Fallback, the
nodes that it replaces; these are pure, so that is always right. An input without memory is none of
these: on freed memory, the nodes would crash as the binary would.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any, TypeAlias

import torch

from nearhint.launchers.errors import PlaceOutside
from nearhint.session import Choice
from nearhint_rules.artifact import CudaLaunch, ScalarArgument
from nearhint_rules.program import GIVEN_NUMBERS, ValueType
from nearhint_torch.adapter import EmptyMaker, current_stream, empty_maker, on_device
from nearhint_torch.arguments import DTYPES_BY_NAME
from nearhint_torch.errors import NoMemory, NumberTooLarge, is_from_outside
from nearhint_torch.nodes import Slots, Step
from nearhint_torch.pages import large_empty

Call: TypeAlias = Callable[[Slots, list[int]], None]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor at resolved sizes; `is_number` if its slot holds a number of Python's instead."""

    slot: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    is_placed: bool
    is_number: bool = False


_CODES = {torch.int64: "q", torch.float64: "d"}
LARGEST: float = torch.finfo(torch.bfloat16).max
"""What finite numbers are larger than is for eager, which may refuse them beside tensors of f32."""


def given_number(slot: int, kind: ValueType) -> Tensor:
    """A number that no size determines, of a type that `GIVEN_NUMBERS` has."""
    dtype = DTYPES_BY_NAME[GIVEN_NUMBERS[kind]]
    return Tensor(slot, dtype, (), (), is_placed=False, is_number=True)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One launch step at resolved sizes.

    `dims` are the Kernel's symbols. `address_slot` holds the parameters' addresses as far as they
    are known before the call. `unsure` are inputs that ATen makes: how they lie, and of what type
    they are, is its choice. `fallback` are the steps of the nodes that the launch replaces.
    """

    dims: tuple[int, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    unsure: tuple[Tensor, ...]
    address_slot: int
    fallback: tuple[Step, ...]
    device: torch.device
    threads: int


def launch_step(plan: LaunchPlan, choice: Choice, *, count_fallback: Callable[[str], None]) -> Step:
    """The step that launches what `choice` names, which must not be the Fallback."""
    assert choice.kernel is not None
    first_facts, first_call = _facts_of(choice), _bound(plan, choice.kernel)
    others: list[list[tuple[_Facts, Call]]] = []
    # What each call looks at: worked out once.
    read, numbers, made, expected = _read(plan), _numbers(plan), _made(plan), _expected(plan)
    address_slot = plan.address_slot

    def other(addresses: Sequence[int]) -> Call | None:
        # Hardly ever asked for, so bound then. Two threads may both bind them: either's will do.
        if not others:
            others.append(_variants(plan, choice.otherwise))
        return _first_that_holds(others[0], addresses)

    def run(slots: Slots) -> None:
        for slot, dtype, count, stride, shape in expected:
            given = slots[slot]
            if given.dtype is dtype and given.numel() == count and given.stride() == stride:
                continue
            if not is_as_captured(given, dtype, shape, stride):
                count_fallback("strides_differ")
                _run_fallback(slots, plan)
                return
        try:
            addresses = [*slots[address_slot]]
            for position, slot in read:
                address = slots[slot].data_ptr()
                if not address and slots[slot].numel():
                    raise NoMemory(position=position)
                addresses[position] = address
            if numbers:
                held = [_held(slots[slot], code) for _, slot, code in numbers]
                for (position, *_), memory in zip(numbers, held, strict=True):
                    addresses[position], _ = memory.buffer_info()
            for position, slot, shape, stride, dtype, empty in made:
                tensor = empty(shape, stride, dtype)
                slots[slot] = tensor
                addresses[position] = tensor.data_ptr()
            call: Call | None = first_call
            if first_facts and not _hold(first_facts, addresses):
                call = other(addresses)
            if call is not None:
                call(slots, addresses)
                return
            reason = "unaligned"
        except NoMemory:
            raise
        except (PlaceOutside, NumberTooLarge) as error:
            reason = error.reason  # the ops say which index it is, and compute with any number
        except Exception as error:
            if is_from_outside(error):
                raise
            reason = "launch_failed"
        count_fallback(reason)
        _run_fallback(slots, plan)

    return on_device(plan.device, run) if plan.device.type == "cuda" else run


def _read(plan: LaunchPlan) -> list[tuple[int, int]]:
    """(position, slot) of the inputs whose addresses are known when the step runs."""
    return [
        (position, tensor.slot)
        for position, tensor in enumerate(plan.inputs)
        if not tensor.is_placed and not tensor.is_number
    ]


def _numbers(plan: LaunchPlan) -> list[tuple[int, int, str]]:
    """(position, slot, code of `array`) of the inputs that are numbers."""
    return [
        (position, tensor.slot, _CODES[tensor.dtype])
        for position, tensor in enumerate(plan.inputs)
        if tensor.is_number
    ]


_Layout: TypeAlias = tuple[int, ...]


def _made(plan: LaunchPlan) -> list[tuple[int, int, _Layout, _Layout, torch.dtype, EmptyMaker]]:
    """(position, slot, shape, stride, dtype, maker) of the outputs that the step makes."""
    return [
        (position, tensor.slot, tensor.shape, tensor.stride, tensor.dtype, _maker(tensor, plan))
        for position, tensor in enumerate(plan.outputs, len(plan.inputs))
        if not tensor.is_placed
    ]


def _expected(plan: LaunchPlan) -> list[tuple[int, torch.dtype, int, _Layout, _Layout]]:
    """(slot, dtype, elements, stride, shape) of what ATen has made."""
    return [
        (each.slot, each.dtype, prod(each.shape), each.stride, each.shape) for each in plan.unsure
    ]


def _held(number: float, code: str) -> array[Any]:
    """A number in memory that a binary may read; raises `NumberTooLarge`."""
    if LARGEST < abs(number) < inf:
        raise NumberTooLarge
    try:
        return array(code, (number,))
    except OverflowError:
        raise NumberTooLarge from None


def _maker(tensor: Tensor, plan: LaunchPlan) -> EmptyMaker:
    size_bytes = prod(tensor.shape) * tensor.dtype.itemsize
    return large_empty(empty_maker(plan.device), size_bytes, plan.device)


_Facts: TypeAlias = tuple[tuple[int, int], ...]


def _facts_of(choice: Choice) -> _Facts:
    return tuple((fact.parameter, fact.to_bytes) for fact in choice.facts)


def _variants(plan: LaunchPlan, current: Choice | None) -> list[tuple[_Facts, Call]]:
    """What may run, best first, with the (parameter, bytes) alignments that each needs."""
    variants: list[tuple[_Facts, Call]] = []
    while current is not None and current.kernel is not None:
        variants.append((_facts_of(current), _bound(plan, current.kernel)))
        current = current.otherwise
    return variants


def _hold(facts: _Facts, addresses: Sequence[int]) -> bool:
    for parameter, to_bytes in facts:  # noqa: SIM110 (a generator costs more than all its steps)
        if addresses[parameter] % to_bytes:
            return False
    return True


def _first_that_holds(
    variants: Sequence[tuple[_Facts, Call]], addresses: Sequence[int]
) -> Call | None:
    return next((call for facts, call in variants if _hold(facts, addresses)), None)


def _bound(plan: LaunchPlan, kernel: Any) -> Call:
    if isinstance(kernel.launch, CudaLaunch):
        return _bound_cuda(plan, kernel, kernel.launch)
    call: Callable[[Sequence[int]], None] = kernel.bind(plan.dims, threads=plan.threads)
    return lambda _, addresses: call(addresses)


def _bound_cuda(plan: LaunchPlan, kernel: Any, launch: CudaLaunch) -> Call:
    index = plan.device.index or 0
    call: Callable[[Sequence[int], Sequence[Any], int], None] = kernel.bind(plan.dims, threads=0)
    scalars = [
        plan.inputs[argument.parameter].slot
        for argument in launch.arguments
        if isinstance(argument, ScalarArgument)
    ]

    workspace_bytes = kernel.workspace_bytes(plan.dims)
    if not scalars and not workspace_bytes:
        return lambda _, addresses: call(addresses, (), current_stream(index))

    def run(slots: Slots, addresses: list[int]) -> None:
        # Numbers, and 0-d CPU tensors: reading them waits for no device.
        given = [slots[slot] for slot in scalars]
        values = [each if isinstance(each, int | float) else each.item() for each in given]
        if workspace_bytes:
            # The allocator gives memory back to later work of this stream alone.
            scratch = torch.empty(workspace_bytes, dtype=torch.uint8, device=plan.device)
            addresses.append(scratch.data_ptr())
        call(addresses, values, current_stream(index))

    return run


def is_as_captured(
    tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> bool:
    """Whether what ATen made is what capture foresaw; else its elements are not where we read."""
    return (
        tensor.dtype is dtype
        and tensor.shape == shape
        and (tensor.stride() == stride or is_laid_out(tensor, shape, stride))
    )


def is_laid_out(tensor: torch.Tensor, shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether strides agree wherever there is more than one element to step over."""
    return all(
        size <= 1 or real == expected
        for size, real, expected in zip(shape, tensor.stride(), stride, strict=True)
    )


def _run_fallback(slots: Slots, plan: LaunchPlan) -> None:
    placed = [(output, slots[output.slot]) for output in plan.outputs if output.is_placed]
    for step in plan.fallback:
        step(slots)
    for output, tensor in placed:
        result = slots[output.slot]
        if result.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            result = result.clone()
        tensor.copy_(result)
        slots[output.slot] = tensor
    for output in plan.outputs:
        result = slots[output.slot]
        if output.is_placed or is_as_captured(result, output.dtype, output.shape, output.stride):
            continue
        if result.shape == output.shape:
            tensor = torch.empty_strided(
                output.shape, output.stride, dtype=output.dtype, device=plan.device
            )
            slots[output.slot] = tensor.copy_(result)
