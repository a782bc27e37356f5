"""Programs built by hand, a call a line."""

from __future__ import annotations

from dataclasses import dataclass, field

from nearhint_compiler.ir.index import contiguous_strides
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Int, Sym
from nearhint_rules.program import (
    Arg,
    Node,
    Program,
    Ref,
    Symbol,
    TensorType,
    ValueType,
    refs_in,
)

S0, S1, S2 = Sym("s0"), Sym("s1"), Sym("s2")


def tensor(*shape: Expr | int, dtype: str = "f32", device: str = "cpu") -> TensorType:
    """A contiguous tensor."""
    sizes = tuple(map(ex.as_expr, shape))
    return TensorType(dtype, sizes, contiguous_strides(sizes), device)


def arg_of(value: object) -> Arg:
    """Python integers as size expressions, lists as tuples."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return Int(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(arg_of, value))
    return value  # type: ignore[return-value]  # an Arg already


@dataclass
class Builder:
    """Collects inputs, then calls; `program` closes it."""

    symbols: tuple[Symbol, ...] = (Symbol("s0", 2), Symbol("s1", 2), Symbol("s2", 2))
    types: list[ValueType] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    inputs: int = 0

    def input(self, *shape: Expr | int, dtype: str = "f32", device: str = "cpu") -> Ref:
        """A graph input."""
        return self.typed(tensor(*shape, dtype=dtype, device=device))

    def typed(self, kind: ValueType) -> Ref:
        """A graph input of any type."""
        assert not self.nodes
        self.types.append(kind)
        self.inputs += 1
        return Ref(len(self.types) - 1)

    def call(
        self,
        op: str,
        *args: object,
        out: ValueType | tuple[ValueType, ...],
        alias: Ref | None = None,
        mutates: tuple[Ref, ...] = (),
        is_random: bool = False,
        **kwargs: object,
    ) -> Ref:
        """A node; returns its first output."""
        outputs = out if isinstance(out, tuple) else (out,)
        given = tuple(map(arg_of, args))
        named = tuple((key, arg_of(value)) for key, value in kwargs.items())
        read = [value for arg in (*given, *(arg for _, arg in named)) for value in refs_in(arg)]
        first = len(self.types)
        self.nodes.append(
            Node(
                op=op,
                args=given,
                kwargs=named,
                inputs=tuple(dict.fromkeys(read)),
                outputs=outputs,
                aliases=() if alias is None else ((0, alias.value),),
                mutates=tuple(ref.value for ref in mutates),
                has_randomness=is_random,
            )
        )
        self.types.extend(outputs)
        return Ref(first)

    def opaque(self, *inputs: Ref, out: ValueType | tuple[ValueType, ...]) -> Ref:
        """A node that only its inputs and outputs are known of."""
        outputs = out if isinstance(out, tuple) else (out,)
        first = len(self.types)
        self.nodes.append(Node("", (), (), tuple(ref.value for ref in inputs), outputs))
        self.types.extend(outputs)
        return Ref(first)

    def program(self, *outputs: Ref | None) -> Program:
        """The Program that returns these values."""
        return Program(
            self.symbols,
            tuple(self.types[: self.inputs]),
            tuple(self.nodes),
            tuple(None if ref is None else ref.value for ref in outputs),
        )
