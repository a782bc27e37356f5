"""Programs: a captured ATen graph for inference, with named symbolic sizes.

Values are numbered from zero: first the inputs, in the order in which the captured graph takes
them, then each node's outputs, node by node. A node refers to earlier values only, so a Program
has no cycles by construction. Integer-valued inputs and outputs carry their size expression.

A node is *lowerable* (`op` names it and every argument fits the grammar below) or *opaque*
(`op` is empty: only its tensor inputs, outputs, alias and mutation facts are known).

    arg := Ref(value) | size expression | float | bool | None | str | DType | Keyword | (arg, ...)

Weights and constants are inputs; their bytes are no part of a Program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from nearhint_rules import expr as ex
from nearhint_rules.canonical import identity
from nearhint_rules.errors import InvalidProgram
from nearhint_rules.expr import Expr
from nearhint_rules.naming import number_symbols

OP_PATTERN = re.compile(r"[a-z_][a-z0-9_]{0,63}\.[A-Za-z0-9_]{1,96}\.[A-Za-z0-9_]{1,64}")
DTYPES: Mapping[str, int] = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8e4m3fn": 1, "f8e5m2": 1,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1,
}  # fmt: skip
"""Bytes per element of each dtype that kernels may touch; any other is `OTHER_DTYPE`."""
OTHER_DTYPE = "other"
SIZE_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbolic size with its assumed range, inclusive; `high` None means unbounded."""

    name: str
    low: int = 0
    high: int | None = None
    user_name: str = field(default="", metadata={"identity": False})


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor value: shape and strides in elements. `device` is "cpu" or "cuda"."""

    dtype: str
    shape: tuple[Expr, ...]
    stride: tuple[Expr, ...]
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class IntType:
    """An integer value equal to a size expression.

    `expr` None: no size determines it, as a number that each call gives, or one made of such.
    """

    expr: Expr | None


@dataclass(frozen=True, slots=True)
class FloatType:
    """A number with a fraction, of 64 bits, that each call gives or computes of its sizes."""


@dataclass(frozen=True, slots=True)
class OtherType:
    """A value that nothing is known about (None, a tensor of an unknown layout)."""


ValueType: TypeAlias = TensorType | IntType | FloatType | OtherType
GIVEN_NUMBERS: Mapping[ValueType, str] = {IntType(None): "i64", FloatType(): "f64"}
"""Numbers that no size determines, and the dtype of the 0-d tensor that a Kernel takes them as."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to a value by number."""

    value: int


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype argument; `name` is one of `DTYPES`."""

    name: str


@dataclass(frozen=True, slots=True)
class Keyword:
    """A device, layout or memory format argument, e.g. `Keyword("memory_format", "preserve")`."""

    kind: str
    name: str


Arg: TypeAlias = "Ref | Expr | float | bool | None | str | DType | Keyword | tuple[Arg, ...]"


@dataclass(frozen=True, slots=True)
class Node:
    """One call of the captured graph.

    `inputs` are all tensor and integer values it reads: every value that an argument refers to, or
    that it mutates, is among them. `aliases` pairs an output position with the value whose storage
    it may share; `mutates` are the values it writes in place; `has_randomness` marks a random or
    otherwise effectful step, which stays in order and runs once. `source` is where it came from
    (module path, file, line).
    """

    op: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    inputs: tuple[int, ...]
    outputs: tuple[ValueType, ...]
    aliases: tuple[tuple[int, int], ...] = ()
    mutates: tuple[int, ...] = ()
    has_randomness: bool = False
    source: str = field(default="", metadata={"identity": False})


@dataclass(frozen=True, slots=True)
class Program:
    """A captured graph. `outputs` are value numbers; None stands for a None output."""

    symbols: tuple[Symbol, ...]
    inputs: tuple[ValueType, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int | None, ...]
    label: str = field(default="", metadata={"identity": False})

    @property
    def id(self) -> str:
        """sha256 of the canonical form, ranges included."""
        return identity("nearhint.program.v1", canonicalise(self))

    def ranges(self) -> dict[str, tuple[int, int | None]]:
        """Each symbol's assumed range, inclusive, as `expr.bounds` takes it."""
        return {symbol.name: (symbol.low, symbol.high) for symbol in self.symbols}


def value_types(program: Program) -> tuple[ValueType, ...]:
    """The type of every value, by number."""
    return (*program.inputs, *(out for node in program.nodes for out in node.outputs))


def first_outputs(program: Program) -> tuple[int, ...]:
    """For each node, the number of its first output value."""
    starts: list[int] = []
    next_value = len(program.inputs)
    for node in program.nodes:
        starts.append(next_value)
        next_value += len(node.outputs)
    return tuple(starts)


def refs_in(arg: Arg) -> Iterator[int]:
    """The values that an argument refers to, in order."""
    if isinstance(arg, Ref):
        yield arg.value
    elif isinstance(arg, tuple):
        for inner in arg:
            yield from refs_in(inner)


def exprs_in(arg: Arg) -> Iterator[Expr]:
    """The size expressions in an argument, in order."""
    if isinstance(arg, Expr):
        yield arg
    elif isinstance(arg, tuple):
        for inner in arg:
            yield from exprs_in(inner)


def map_arg(arg: Arg, *, values: Mapping[int, int], symbols: Mapping[str, Expr]) -> Arg:
    """An argument with its values renumbered and its symbols replaced."""
    if isinstance(arg, Ref):
        return Ref(values[arg.value])
    if isinstance(arg, tuple):
        return tuple(map_arg(inner, values=values, symbols=symbols) for inner in arg)
    if isinstance(arg, Expr):
        return ex.substitute(arg, symbols)
    return arg


def map_type(value_type: ValueType, symbols: Mapping[str, Expr]) -> ValueType:
    """A value type with its symbols replaced."""
    match value_type:
        case TensorType(dtype, shape, stride, device):
            return TensorType(
                dtype,
                tuple(ex.substitute(size, symbols) for size in shape),
                tuple(ex.substitute(step, symbols) for step in stride),
                device,
            )
        case IntType(expr):
            return IntType(None if expr is None else ex.substitute(expr, symbols))
        case FloatType() | OtherType():
            return value_type


def _type_exprs(value_type: ValueType) -> Iterator[Expr]:
    match value_type:
        case TensorType(_, shape, stride, _):
            yield from shape
            yield from stride
        case IntType(expr) if expr is not None:
            yield expr
        case _:
            return


def program_exprs(program: Program) -> Iterator[Expr]:
    """Every size expression of a Program, in canonical order of appearance."""
    for value_type in program.inputs:
        yield from _type_exprs(value_type)
    for node in program.nodes:
        for arg in (*node.args, *(value for _, value in _by_name(node.kwargs))):
            yield from exprs_in(arg)
        for value_type in node.outputs:
            yield from _type_exprs(value_type)


def _by_name(kwargs: tuple[tuple[str, Arg], ...]) -> list[tuple[str, Arg]]:
    """Keyword arguments in the order that is canonical: that of their names."""
    return sorted(kwargs, key=lambda item: item[0])


def canonical_names(program: Program) -> dict[str, str]:
    """Old symbol name -> `s0`, `s1`, ... by first appearance; unused symbols are left out."""
    order = number_symbols(program_exprs(program), program.ranges())
    return {name: f"s{number}" for number, name in enumerate(order)}


def canonicalise(program: Program) -> Program:
    """The Program with symbols renumbered by first appearance: same graph, same value."""
    names = canonical_names(program)
    symbols = {old: ex.Sym(new) for old, new in names.items()}
    identical = {value: value for value in range(len(value_types(program)))}
    by_name = {symbol.name: symbol for symbol in program.symbols}
    nodes = tuple(
        replace(
            node,
            args=tuple(map_arg(arg, values=identical, symbols=symbols) for arg in node.args),
            kwargs=tuple(
                (key, map_arg(value, values=identical, symbols=symbols))
                for key, value in _by_name(node.kwargs)
            ),
            outputs=tuple(map_type(out, symbols) for out in node.outputs),
        )
        for node in program.nodes
    )
    return replace(
        program,
        symbols=tuple(replace(by_name[old], name=new) for old, new in names.items()),
        inputs=tuple(map_type(value_type, symbols) for value_type in program.inputs),
        nodes=nodes,
    )


class Slicer:
    """Takes Programs out of a larger one; what concerns all of that is worked out once."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._starts = first_outputs(program)
        self._types = value_types(program)

    def part(
        self, nodes: Iterable[int], outputs: Iterable[int]
    ) -> tuple[Program, tuple[int, ...], dict[str, str]]:
        """The part that computes `outputs` from `nodes`, as a Program of its own.

        Returns the canonical slice, the original value number of each of its inputs, and the map
        from original symbol names to the slice's. Every value that the nodes read and do not make
        becomes an input, in order of first use.
        """
        chosen = [(index, self._program.nodes[index]) for index in sorted(set(nodes))]
        made = [
            self._starts[index] + offset
            for index, node in chosen
            for offset in range(len(node.outputs))
        ]
        inside = set(made)
        read = dict.fromkeys(
            value for _, node in chosen for value in node.inputs if value not in inside
        )
        numbers = {value: number for number, value in enumerate((*read, *made))}
        part = Program(
            symbols=self._program.symbols,
            inputs=tuple(self._types[value] for value in read),
            nodes=tuple(_renumbered(node, numbers) for _, node in chosen),
            outputs=tuple(numbers[value] for value in outputs),
        )
        return canonicalise(part), tuple(read), canonical_names(part)


def slice_program(
    program: Program, nodes: Iterable[int], outputs: Iterable[int]
) -> tuple[Program, tuple[int, ...], dict[str, str]]:
    """One slice of a Program: see `Slicer.part`."""
    return Slicer(program).part(nodes, outputs)


def _renumbered(node: Node, numbers: Mapping[int, int]) -> Node:
    return replace(
        node,
        args=tuple(map_arg(arg, values=numbers, symbols={}) for arg in node.args),
        kwargs=tuple((key, map_arg(arg, values=numbers, symbols={})) for key, arg in node.kwargs),
        inputs=tuple(numbers[value] for value in node.inputs),
        aliases=tuple(
            (position, numbers[value]) for position, value in node.aliases if value in numbers
        ),
        mutates=tuple(numbers[value] for value in node.mutates),
    )


def check(program: Program) -> None:
    """Raises `InvalidProgram` naming the first field that breaks a structural rule."""
    _check_symbols(program)
    known = {symbol.name for symbol in program.symbols}
    for position, value_type in enumerate(program.inputs):
        _check_type(value_type, known, f"inputs[{position}]")
    available = len(program.inputs)
    for index, node in enumerate(program.nodes):
        _check_node(node, available, known, f"nodes[{index}]")
        available += len(node.outputs)
    for position, value in enumerate(program.outputs):
        if value is not None and not 0 <= value < available:
            raise InvalidProgram(f"outputs[{position}]", f"no value {value}")


def _check_symbols(program: Program) -> None:
    seen: set[str] = set()
    for position, symbol in enumerate(program.symbols):
        place = f"symbols[{position}]"
        if not ex.SYMBOL_PATTERN.fullmatch(symbol.name):
            raise InvalidProgram(f"{place}.name", "not an identifier")
        if symbol.name in seen:
            raise InvalidProgram(f"{place}.name", "declared twice")
        seen.add(symbol.name)
        if symbol.low < 0 or symbol.low >= SIZE_LIMIT:
            raise InvalidProgram(f"{place}.low", f"{symbol.low} is outside 0 .. 2^62")
        if symbol.high is not None and not symbol.low <= symbol.high < SIZE_LIMIT:
            raise InvalidProgram(f"{place}.high", f"{symbol.high} is outside low .. 2^62")


def _check_type(value_type: ValueType, known: set[str], place: str) -> None:
    for expr in _type_exprs(value_type):
        _check_expr(expr, known, place)
    if isinstance(value_type, TensorType):
        if value_type.dtype not in DTYPES and value_type.dtype != OTHER_DTYPE:
            raise InvalidProgram(f"{place}.dtype", "unknown dtype")
        if len(value_type.shape) != len(value_type.stride):
            raise InvalidProgram(f"{place}.stride", "rank differs from the shape's")
        for size in value_type.shape:
            if isinstance(size, ex.Int) and not 0 <= size.value < SIZE_LIMIT:
                raise InvalidProgram(f"{place}.shape", f"{size.value} is outside 0 .. 2^62")


def _check_expr(expr: Expr, known: set[str], place: str) -> None:
    for name in ex.symbols_of(expr):
        if name not in known:
            raise InvalidProgram(place, "uses a symbol that is not declared")


def _check_node(node: Node, available: int, known: set[str], place: str) -> None:
    if node.op and not OP_PATTERN.fullmatch(node.op):
        raise InvalidProgram(f"{place}.op", "not an operator name")
    if not node.op and (node.args or node.kwargs):
        raise InvalidProgram(f"{place}.args", "an opaque node has no arguments")
    arguments = (*node.args, *(value for _, value in node.kwargs))
    inputs = set(node.inputs)
    for value in node.inputs:
        if not 0 <= value < available:
            raise InvalidProgram(f"{place}.inputs", f"refers to value {value}, not made before it")
    for value in (value for arg in arguments for value in refs_in(arg)):
        if value not in inputs:
            raise InvalidProgram(f"{place}.args", f"value {value} is not among the inputs")
    for value in node.mutates:
        if value not in inputs:
            raise InvalidProgram(f"{place}.mutates", f"value {value} is not among the inputs")
    for arg in arguments:
        for expr in exprs_in(arg):
            _check_expr(expr, known, f"{place}.args")
    for key, _ in node.kwargs:
        if not ex.SYMBOL_PATTERN.fullmatch(key):
            raise InvalidProgram(f"{place}.kwargs", "not an identifier")
    if len({key for key, _ in node.kwargs}) != len(node.kwargs):
        raise InvalidProgram(f"{place}.kwargs", "named twice")
    for position, value in node.aliases:
        if not 0 <= position < len(node.outputs) or not 0 <= value < available:
            raise InvalidProgram(f"{place}.aliases", "refers to no output or no earlier value")
    for position, value_type in enumerate(node.outputs):
        _check_type(value_type, known, f"{place}.outputs[{position}]")
