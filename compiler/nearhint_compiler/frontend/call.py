"""A node's arguments, as the lowering tables read them.

Whatever does not fit raises `Unlowerable`: a tensor of an unknown dtype, an operand on another
device, a shape that does not broadcast, an argument of the wrong kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend import dtypes
from nearhint_compiler.frontend.emitter import Value
from nearhint_compiler.frontend.loops import BROADCAST, Build, Loops, Point, Read
from nearhint_compiler.ir import index as ix
from nearhint_compiler.ir.index import Ranges
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import (
    DTYPES,
    GIVEN_NUMBERS,
    Arg,
    DType,
    FloatType,
    IntType,
    Node,
    Ref,
    TensorType,
    ValueType,
)

Number: TypeAlias = bool | int | float


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of an elementwise op; `at` gives its value at a point in a wanted dtype."""

    dtype: str
    kind: str
    at: Callable[[Point, str], Value]


def type_read(kind: ValueType) -> TensorType:
    """The type of a value that a loop reads: a tensor, or a number that no size determines, which
    is handed over as a 0-d tensor is.
    """
    if isinstance(kind, TensorType):
        return kind
    return TensorType(GIVEN_NUMBERS[kind], (), ())


def as_number(arg: Arg) -> Number:
    """A Python number among the arguments."""
    if isinstance(arg, ex.Int):
        return arg.value
    if isinstance(arg, bool | float):
        return arg
    raise Unlowerable("a number is wanted")


@dataclass(slots=True)
class Call:
    """One node with its arguments bound to names; collects what the node's loop reads."""

    node: Node
    index: int
    types: Sequence[ValueType]
    outputs: Sequence[ValueType]
    ranges: Ranges
    device: str
    reads: list[Read] = field(default_factory=list)
    arguments: dict[str, Arg] = field(default_factory=dict)

    def bind(self, names: Sequence[str], defaults: Mapping[str, Arg]) -> None:
        """Binds positional and keyword arguments; `defaults` fills in what is absent."""
        if len(self.node.args) > len(names):
            raise Unlowerable("too many arguments")
        bound = dict(defaults)
        bound.update(zip(names, self.node.args, strict=False))
        for key, value in self.node.kwargs:
            if key not in names:
                if value is None or value is False or key in IGNORED_KEYWORDS:
                    continue
                raise Unlowerable(f"argument {key}")
            bound[key] = value
        if missing := [name for name in names if name not in bound]:
            raise Unlowerable(f"no argument {missing[0]}")
        self.arguments = bound

    def __getitem__(self, name: str) -> Arg:
        return self.arguments[name]

    @property
    def out(self) -> TensorType:
        """The type of the first output."""
        return self.output(0)

    def output(self, position: int) -> TensorType:
        """The type of an output; it must be a tensor that a Kernel can write."""
        if position >= len(self.outputs):
            raise Unlowerable("no such output")
        found = self.outputs[position]
        if not isinstance(found, TensorType) or found.dtype not in DTYPES:
            raise Unlowerable("an output that is no tensor of a known dtype")
        if found.device != self.device and not is_host_scalar(found):
            raise Unlowerable("an output on another device")
        return found

    def tensor(self, name: str) -> TensorType:
        """The type of a tensor argument."""
        return self.tensor_at(self.arguments[name])[1]

    def value(self, name: str) -> int:
        """The number of a tensor argument."""
        return self.tensor_at(self.arguments[name])[0]

    def tensor_at(self, arg: Arg) -> tuple[int, TensorType]:
        """The number and the type of a tensor among the arguments."""
        if not isinstance(arg, Ref):
            raise Unlowerable("a tensor is wanted")
        found = self.types[arg.value]
        if not isinstance(found, TensorType) or found.dtype not in DTYPES:
            raise Unlowerable("a tensor of an unknown dtype")
        if found.device != self.device and not is_host_scalar(found):
            raise Unlowerable("an operand on another device")
        if is_host_scalar(found) and found.dtype in dtypes.STORED_FLOATS:
            raise Unlowerable("an 8-bit float handed over by value")
        return arg.value, found

    def size(self, arg: Arg) -> Expr:
        """A size argument."""
        if isinstance(arg, Ref):
            found = self.types[arg.value]
            if isinstance(found, IntType) and found.expr is not None:
                return ix.simplify(found.expr, self.ranges)
        if isinstance(arg, Expr):
            return ix.simplify(arg, self.ranges)
        raise Unlowerable("a size is wanted")

    def sizes(self, name: str) -> tuple[Expr, ...]:
        """A list of sizes; a single one stands for a list of one."""
        arg = self.arguments[name]
        return tuple(map(self.size, arg)) if isinstance(arg, tuple) else (self.size(arg),)

    def integer(self, name: str) -> int:
        """An integer that is a constant."""
        size = self.size(self.arguments[name])
        if not isinstance(size, ex.Int):
            raise Unlowerable("a constant is wanted")
        return size.value

    def number(self, name: str) -> Number:
        """A number that is a constant."""
        return as_number(self.arguments[name])

    def is_given_number(self, arg: Arg) -> bool:
        """Whether an argument is a number that each call gives, and no size determines."""
        return isinstance(arg, Ref) and self.types[arg.value] in GIVEN_NUMBERS

    def flag(self, name: str) -> bool:
        """A boolean argument."""
        arg = self.arguments[name]
        if not isinstance(arg, bool):
            raise Unlowerable("a boolean is wanted")
        return arg

    def dtype(self, name: str) -> str | None:
        """A dtype argument, None if absent."""
        arg = self.arguments[name]
        if arg is None:
            return None
        if isinstance(arg, DType) and arg.name in DTYPES:
            return arg.name
        raise Unlowerable("a dtype is wanted")

    def axis(self, arg: Arg, rank: int) -> int:
        """A dim argument, counted from the front; 0 of a tensor without dims."""
        size = self.size(arg)
        if not isinstance(size, ex.Int) or not -max(rank, 1) <= size.value < max(rank, 1):
            raise Unlowerable("a dim out of range")
        return size.value % max(rank, 1)

    def dim(self, arg: Arg, rank: int) -> int:
        """As `axis`, of a tensor that has dims."""
        if not rank:
            raise Unlowerable("a dim of a tensor without any")
        return self.axis(arg, rank)

    def axes(self, name: str, rank: int) -> frozenset[int]:
        """A list of dims; None or an empty list stands for all."""
        arg = self.arguments[name]
        if arg is None or arg == ():
            return frozenset(range(rank))
        found = [self.axis(item, rank) for item in (arg if isinstance(arg, tuple) else (arg,))]
        if len(set(found)) != len(found):
            raise Unlowerable("a dim given twice")
        return frozenset(found) if rank else frozenset()

    def read(self, name: str, dims: tuple[int, ...]) -> int:
        """Reads a tensor argument with its dims at the given dims of the loop."""
        self.reads.append(Read(self.value(name), dims))
        return len(self.reads) - 1

    def reshaped(self, name: str, shape: tuple[Expr, ...], first: int = 0) -> int:
        """Reads a tensor argument reshaped to `shape`: the dims of the loop from `first` on."""
        value, found = self.tensor_at(self.arguments[name])
        if ix.segments(shape, found.shape) is None:
            raise Unlowerable("a tensor of another number of elements than its loop's dims")
        dims = tuple(range(first, first + len(shape)))
        self.reads.append(Read(value, dims, shape=shape))
        return len(self.reads) - 1

    def operand(self, name: str, shape: tuple[Expr, ...]) -> Operand:
        """An argument as an operand of a loop over `shape`: a tensor, a number or a size.

        What takes part in promotion as a number does so whether it is known here or not.
        """
        arg = self.arguments[name]
        if isinstance(arg, Ref) and isinstance(self.types[arg.value], TensorType):
            return self._tensor_operand(arg, shape)
        if isinstance(arg, Ref) and self.is_given_number(arg):
            return self._number_operand(arg)
        if isinstance(arg, bool | float | ex.Int):
            number = as_number(arg)
            return Operand(dtypes.number_dtype(number), "number", _constant(number))
        size = self.size(arg)
        return Operand(
            "i64", "number", lambda point, dtype: point.emit.cast(point.emit.iota(size), dtype)
        )

    def _tensor_operand(self, arg: Arg, shape: tuple[Expr, ...]) -> Operand:
        value, found = self.tensor_at(arg)
        kind = "tensor" if found.shape else "zero_dim"
        return self._read_operand(value, broadcast_dims(found.shape, shape), found.dtype, kind)

    def _number_operand(self, arg: Ref) -> Operand:
        is_float = self.types[arg.value] == FloatType()
        dtype = dtypes.DEFAULT_FLOAT if is_float else "i64"
        read = self._read_operand(arg.value, (), dtype, "number")

        def at(point: Point, to: str) -> Value:
            if is_float and dtypes.CATEGORY[to] < 2:
                raise Unlowerable("a float where the result is an integer")
            return read.at(point, to)

        return replace(read, at=at)

    def _read_operand(self, value: int, dims: tuple[int, ...], dtype: str, kind: str) -> Operand:
        self.reads.append(Read(value, dims))
        place = len(self.reads) - 1
        return Operand(dtype, kind, lambda point, to: point.emit.cast(point.read(place), to))

    def pointwise(self, build: Build) -> Loops:
        """A loop over the output's shape that reads what was collected."""
        loops = self.loops(self.out.shape, frozenset(), build)
        if loops.reads:
            for dim, size in enumerate(self.out.shape):
                if size != ex.ONE and not any(dim in read.dims for read in loops.reads):
                    raise Unlowerable("an output larger than its operands")
        return loops

    def loops(self, shape: tuple[Expr, ...], axes: frozenset[int], build: Build) -> Loops:
        """A loop over `shape` that reads what was collected."""
        return Loops(self.index, shape, axes, tuple(self.reads), build)


def _constant(number: Number) -> Callable[[Point, str], Value]:
    def at(point: Point, dtype: str) -> Value:
        if isinstance(number, float) and dtypes.CATEGORY[dtype] < 2:
            raise Unlowerable("a float where the result is an integer")
        return point.emit.const(dtype, number)

    return at


def is_host_scalar(tensor: TensorType) -> bool:
    """Whether a tensor is handed over by value: 0-d and on the CPU."""
    return not tensor.shape and tensor.device == "cpu"


def broadcast_dims(shape: Sequence[Expr], target: Sequence[Expr]) -> tuple[int, ...]:
    """For each dim of `shape` the dim of `target` that indexes it; raises `Unlowerable`."""
    shift = len(target) - len(shape)
    if shift < 0:
        raise Unlowerable("an operand of a higher rank than the result")
    dims: list[int] = []
    for place, size in enumerate(shape):
        if size == target[place + shift]:
            dims.append(place + shift if size != ex.ONE else BROADCAST)
        elif size == ex.ONE:
            dims.append(BROADCAST)
        else:
            raise Unlowerable("shapes that do not broadcast")
    return tuple(dims)


def per_row(loops: Loops, *positions: int, outputs: int = 1) -> Loops:
    """`loops` with the outputs at `positions` varying along the kept dims alone."""
    return replace(loops, per_row=frozenset(positions), outputs=outputs)


IGNORED_KEYWORDS = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking"})
"""What says where or how an output lies: its type says it already."""
