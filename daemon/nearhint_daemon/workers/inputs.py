"""Random inputs for a Fallback at given sizes, with exactly its shapes, strides and dtypes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from nearhint_daemon.workers.aten import Value, torch_dtype
from nearhint_daemon.workers.elements import DRAWN_ELEMENTS, FLOATS
from nearhint_daemon.workers.errors import FallbackInvalid, MemoryLimitExceeded
from nearhint_daemon.workers.looked_up import places_of, source_of
from nearhint_rules import expr as ex
from nearhint_rules import program as pr

WHOLE_LIMIT = 6
"""Integers are drawn from 1 to this: harmless as divisors, shifts and steps. Places in a table are
drawn from those that it has."""

EIGHTHS = (1, 48)
"""Numbers with fractions that are no tensor's are so many eighths, which all dtypes hold."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor at fixed sizes; `elements` is the extent of its storage."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str

    @property
    def elements(self) -> int:
        """From the first element to the last, inclusive; 0 for an empty tensor."""
        if 0 in self.shape:
            return 0
        spans = zip(self.shape, self.stride, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in spans)

    @property
    def size_bytes(self) -> int:
        """Bytes of its storage."""
        return self.elements * pr.DTYPES[self.dtype]


def tensor_spec(value_type: pr.TensorType, sizes: Mapping[str, int]) -> TensorSpec:
    """A tensor type at `sizes`; raises `FallbackInvalid` for what no tensor can be."""
    shape = tuple(ex.evaluate(size, sizes) for size in value_type.shape)
    stride = tuple(ex.evaluate(step, sizes) for step in value_type.stride)
    if min((*shape, *stride, 0)) < 0:
        raise FallbackInvalid(f"shape {shape}, stride {stride}")
    if value_type.dtype not in pr.DTYPES:
        raise FallbackInvalid(f"a tensor of dtype {value_type.dtype}")
    return TensorSpec(value_type.dtype, shape, stride, value_type.device)


def size_bytes(program: pr.Program, sizes: Mapping[str, int]) -> int:
    """Bytes of all values of a Program together, views counted as if they were copies."""
    return sum(
        tensor_spec(value_type, sizes).size_bytes
        for value_type in pr.value_types(program)
        if isinstance(value_type, pr.TensorType)
    )


def peak_bytes(
    program: pr.Program,
    sizes: Mapping[str, int],
    *,
    precision: str = "",
    beside: Iterable[int] = (),
) -> int:
    """Bytes that are alive at once while a Program runs that keeps its inputs and the values
    `beside` them, and frees what else was read for the last time; a view keeps what it is of.

    In "f64" precision every float takes eight bytes.
    """
    owner = list(range(len(program.inputs)))
    for node in program.nodes:
        aliased = dict(node.aliases)
        count = len(owner)
        for position in range(len(node.outputs)):
            of = aliased.get(position)
            owner.append(count + position if of is None else owner[of])
    last = dict.fromkeys(owner, -1)
    for index, node in enumerate(program.nodes):
        last.update((owner[value], index) for value in node.inputs)
    kept = [value for value in program.outputs if value is not None]
    kept += (*range(len(program.inputs)), *beside)
    last.update((owner[value], len(program.nodes)) for value in kept)
    weights = [
        tensor_spec(_in_precision(kind, precision), sizes).size_bytes
        if isinstance(kind, pr.TensorType) and owner[value] == value
        else 0
        for value, kind in enumerate(pr.value_types(program))
    ]
    alive = most = sum(weights[: len(program.inputs)])
    value = len(program.inputs)
    for index, node in enumerate(program.nodes):
        made = range(value, value + len(node.outputs))
        value = made.stop
        alive += sum(weights[made.start : made.stop])
        most = max(most, alive)
        read = {owner[each] for each in (*node.inputs, *made)}
        alive -= sum(weights[each] for each in read if last[each] <= index)
    return most


def _in_precision(kind: pr.TensorType, precision: str) -> pr.TensorType:
    is_wider = precision == "f64" and kind.dtype in FLOATS
    return replace(kind, dtype="f64") if is_wider else kind


def check_memory(
    program: pr.Program, sizes: Mapping[str, int], *, limit_bytes: int, frees: bool = False
) -> None:
    """Raises `MemoryLimitExceeded` before anything is allocated, if all values are kept or, where a
    run `frees` what it has read, if those are too much that are alive at once.
    """
    needed = (peak_bytes if frees else size_bytes)(program, sizes)
    if needed > limit_bytes:
        raise MemoryLimitExceeded(
            f"{needed} bytes at {dict(sizes)}, at most {limit_bytes}",
        )


def random_values(
    program: pr.Program,
    sizes: Mapping[str, int],
    *,
    precision: str,
    device: str,
    generator: torch.Generator,
    scale: float = 1.0,
) -> list[Value]:
    """A value for each input. 0-d tensors that were captured on the CPU stay there.

    Integers that no size determines are drawn, as those in tensors are.
    """
    made: list[Value] = []
    whole = _whole_numbers(program, sizes)
    for place, value_type in enumerate(program.inputs):
        match value_type:
            case pr.TensorType():
                spec = tensor_spec(value_type, sizes)
                where = device if value_type.device != "cpu" else "cpu"
                drawn = whole.get(place, (1, WHOLE_LIMIT))
                made.append(
                    random_tensor(spec, precision, where, generator, scale=scale, whole=drawn)
                )
            case pr.IntType(expr) if expr is not None:
                made.append(ex.evaluate(expr, sizes))
            case pr.IntType():
                low, high = whole.get(place, (1, WHOLE_LIMIT))
                drawn_on = generator.device
                one = torch.randint(low, high + 1, (), generator=generator, device=drawn_on)
                made.append(int(one))
            case pr.FloatType():
                low, high = EIGHTHS
                one = torch.randint(low, high + 1, (), generator=generator, device=generator.device)
                made.append(int(one) / 8)
            case _:
                raise FallbackInvalid(f"inputs[{place}]: nothing is known about it")
    return made


def _whole_numbers(program: pr.Program, sizes: Mapping[str, int]) -> Mapping[int, tuple[int, int]]:
    """By input the least and the greatest integer to draw, of inputs that are places in a table."""
    found: dict[int, tuple[int, int]] = {}
    types = pr.value_types(program)
    for node in program.nodes:
        for place in places_of(node, types):
            source = source_of(program, place.value)
            if source is None:
                continue
            size = max(1, ex.evaluate(place.size, sizes))
            low, high = found.get(source, (-size, size - 1))
            found[source] = (max(low, -size if place.wraps else 0), min(high, size - 1))
    return found


def random_tensor(
    spec: TensorSpec,
    precision: str,
    device: str,
    generator: torch.Generator,
    *,
    scale: float,
    whole: tuple[int, int] = (1, WHOLE_LIMIT),
) -> torch.Tensor:
    """A tensor with exactly these strides over a random storage.

    What is drawn is drawn where the generator is: by the host, so that all devices see the same, or
    by the device, in no time. More than `DRAWN_ELEMENTS` repeat these.
    """
    dtype = torch_dtype(spec.dtype, precision)
    count = max(1, spec.elements)
    drawn = (min(count, DRAWN_ELEMENTS),)
    if spec.dtype in FLOATS:
        storage = torch.randn(
            drawn, generator=generator, dtype=torch.float32, device=generator.device
        )
        storage *= scale
        # Rounded to its own dtype first, so that f64 and native runs see the same numbers.
        storage = storage.to(torch_dtype(spec.dtype, "native"))
    elif spec.dtype == "bool":
        storage = torch.randint(0, 2, drawn, generator=generator, device=generator.device)
    else:
        low, high = whole
        storage = torch.randint(low, high + 1, drawn, generator=generator, device=generator.device)
    return repeated(storage.to(dtype).to(device), count).as_strided(spec.shape, spec.stride)


def repeated(drawn: torch.Tensor, count: int) -> torch.Tensor:
    """`count` elements, `drawn` over and over; 1-d, on its device, in a storage of their size."""
    if count <= drawn.numel():
        return drawn
    made = drawn.new_empty(count)
    repeat_into(made, drawn)
    return made


def repeat_into(destination: torch.Tensor, drawn: torch.Tensor) -> None:
    """Fills `destination` with `drawn` over and over; both 1-d, on one device."""
    block, count = drawn.numel(), destination.numel()
    whole = count - count % block
    destination[:whole].view(-1, block).copy_(drawn)
    destination[whole:].copy_(drawn[: count - whole])


def repeats(tensor: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """Whether `tensor` is still what `repeat_into` made of it, in each bit; of integers: a bool.

    Every element is compared with the one a repetition before it: no second copy is made.
    """
    block = drawn.numel()
    return (tensor[:block] == drawn).all() & (tensor[block:] == tensor[:-block]).all()


def as_tensor(value: Value) -> torch.Tensor:
    """A value as a Kernel takes it: a number as a 0-d tensor of the host."""
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)


def flat_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The storage of a tensor from its first element on, as a 1-d view."""
    whole = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((whole - tensor.storage_offset(),), (1,), tensor.storage_offset())


def within_ranges(
    program: pr.Program, wanted: Sequence[int], *, steps: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Sizes for a Program's symbols: symbol i gets entry i, moved into its assumed range.

    `steps` are numbers that sizes are multiples of, where the range allows: entry i times that.
    """
    sizes: dict[str, int] = {}
    for number, symbol in enumerate(program.symbols):
        step = (steps or {}).get(symbol.name, 1)
        size = max(-(-symbol.low // step), wanted[number % len(wanted)]) * step
        sizes[symbol.name] = size if symbol.high is None else min(size, symbol.high)
    return sizes
