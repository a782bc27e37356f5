"""Random Kernels, written down as such: loops, layouts and dtypes that few calls hardly come by.

Each input lies anyhow: along some of the loops, in any order, with gaps between rows or without,
and perhaps backwards. What is stored lies densely, as a Plan has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.ir.legality import check_kernel
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr, Int

STORED = ("f32", "f32", "f16", "bf16", "f64", "i64", "i32", "i16", "i8", "u8", "bool", "f8e5m2")
UNARY = ("abs", "neg", "sign")
BINARY = ("add", "sub", "mul", "max", "min")
RANK = 3


@dataclass
class Writer:
    """A Kernel as far as it is written."""

    draw: st.DrawFn
    extents: Mapping[str, Expr]
    symbols: int
    inputs: list[ir.Param] = field(default_factory=list)
    body: list[ir.BodyNode] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    elements: list[bool] = field(default_factory=list)
    """For each node, whether it varies along the reduction."""

    def add(self, node: ir.BodyNode, dtype: str, *, is_element: bool) -> int:
        self.body.append(node)
        self.dtypes.append(dtype)
        self.elements.append(is_element)
        return len(self.body) - 1

    def op(self, name: str, dtype: str, *operands: int) -> int:
        is_element = any(self.elements[operand] for operand in operands)
        return self.add(ir.Op(name, dtype, operands), dtype, is_element=is_element)

    def cast(self, value: int, dtype: str) -> int:
        return value if self.dtypes[value] == dtype else self.op("cast", dtype, value)

    def symbol(self) -> Expr:
        self.symbols += 1
        return ex.symbol(f"k{self.symbols - 1}")

    def placed(self, loops: Sequence[str], *, is_dense: bool) -> Expr:
        """The place of a point, where these loops go from the innermost outwards."""
        index: Expr = ex.ZERO
        step: Expr = ex.ONE
        for name in loops:
            variable: Expr = ex.symbol(name)
            if not is_dense and self.draw(st.sampled_from((False,) * 7 + (True,))):
                variable = ex.sub(ex.sub(self.extents[name], 1), variable)
            index = ex.add(index, ex.mul(variable, step))
            has_gap = not is_dense and self.draw(st.sampled_from((False, False, False, True)))
            # A gap is a whole multiple, so that no row begins within another one.
            rows = ex.mul(self.extents[name], self.symbol()) if has_gap else self.extents[name]
            step = ex.mul(step, rows)
        return index

    def load(self) -> int:
        dtype = self.draw(st.sampled_from(STORED))
        loops = [name for name in self.extents if self.draw(st.sampled_from((True, True, False)))]
        order = self.draw(st.one_of(st.just(loops[::-1]), st.permutations(loops)))
        self.inputs.append(ir.Param("in", dtype))
        index = self.placed(order, is_dense=False)
        is_element = any(map(ir.is_reduction_variable, loops))
        value = self.add(ir.Load(len(self.inputs) - 1, index), dtype, is_element=is_element)
        if dtype in ir.LOW_PRECISION or dtype == ir.BOOL:
            return self.cast(value, "f32")
        return value

    def step(self, values: list[int]) -> None:
        left, right = (self.draw(st.sampled_from(values[-5:])) for _ in range(2))
        dtype = self.dtypes[left]
        match self.draw(st.sampled_from(("unary", "binary", "binary", "choice", "cast"))):
            case "unary":
                values.append(self.op(self.draw(st.sampled_from(UNARY)), dtype, left))
            case "binary":
                name = self.draw(st.sampled_from(BINARY))
                values.append(self.op(name, dtype, left, self.cast(right, dtype)))
            case "choice":
                right = self.cast(right, dtype)
                values.append(
                    self.op("where", dtype, self.op("lt", ir.BOOL, left, right), right, left)
                )
            case _:
                values.append(self.cast(left, self.draw(st.sampled_from(("f32", "f64", "i32")))))

    def reduce(self, values: list[int]) -> None:
        operand = self.draw(st.sampled_from(values[-4:]))
        dtype = self.dtypes[operand]
        loops = [name for name in self.extents if ir.is_reduction_variable(name)]
        match self.draw(st.sampled_from(("sum", "sum", "max", "min", "arg", "scan"))):
            case "arg":
                kind = self.draw(st.sampled_from(ir.ARGS))
                index = self.placed(loops[::-1], is_dense=True)
                place = self.add(ir.Arg(kind, dtype, operand, index), "i64", is_element=False)
                values.append(place)
            case "scan" if len(loops) == 1:
                values.append(self.add(ir.Scan("sum", dtype, operand), dtype, is_element=True))
            case kind:
                kind = "sum" if kind == "scan" else kind
                values.append(self.add(ir.Reduce(kind, dtype, operand), dtype, is_element=False))

    def store(self, value: int, param: int) -> ir.Param:
        dtype = self.draw(st.sampled_from((self.dtypes[value], *STORED[:3])))
        loops = [
            name
            for name in self.extents
            if self.elements[value] or not ir.is_reduction_variable(name)
        ]
        order = self.draw(st.one_of(st.just(loops[::-1]), st.permutations(loops)))
        value = self.cast(value, dtype)
        self.add(ir.Store(param, self.placed(order, is_dense=True), value), dtype, is_element=False)
        return ir.Param("out", dtype)


@st.composite
def kernels(draw: st.DrawFn) -> ir.Kernel:
    """A legal Kernel of up to three loops that are kept and two that are reduced."""
    kept = draw(st.integers(0, RANK))
    reduced = draw(st.integers(0 if kept else 1, 2))
    names = [
        *(f"p{number}" for number in range(kept)),
        *(f"r{number}" for number in range(reduced)),
    ]
    extents: dict[str, Expr] = {}
    symbols = 0
    for name in names:
        fixed = draw(st.sampled_from((0, 0, 0, 2, 3, 8)))
        extents[name] = Int(fixed) if fixed else ex.symbol(f"k{symbols}")
        symbols += not fixed
    writer = Writer(draw, extents, symbols)
    values = [writer.load() for _ in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(0, 2))):
        writer.step(values)
    for _ in range(draw(st.integers(1, 3)) if reduced else 0):
        writer.reduce(values)
        for _ in range(draw(st.integers(0, 2))):
            writer.step(values)
    stored = draw(st.lists(st.sampled_from(values), max_size=2, unique=True))
    outputs = [
        writer.store(value, len(writer.inputs) + number)
        for number, value in enumerate(dict.fromkeys((*stored, values[-1])))
    ]
    return check_kernel(
        ir.Kernel(
            tuple(f"k{number}" for number in range(writer.symbols)),
            tuple(extents[name] for name in names[:kept]),
            tuple(extents[name] for name in names[kept:]),
            (*writer.inputs, *outputs),
            tuple(writer.body),
        )
    )
