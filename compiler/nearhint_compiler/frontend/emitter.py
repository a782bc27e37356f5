"""Building a Kernel's body: hash-consed nodes behind an arithmetic that knows dtypes.

A `Value` is a body node with the dtype that the Program gives it. Low precision lives in f32 in
the body; only loads, stores and the Program's own casts round to it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nearhint_compiler.errors import Unlowerable
from nearhint_compiler.frontend.dtypes import (
    CATEGORY,
    INFINITE_FROM,
    INTEGERS,
    STORED_FLOATS,
    compute_dtype,
)
from nearhint_compiler.frontend.positions import COMPARISONS, compared
from nearhint_compiler.ir import index as ix
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr
from nearhint_rules.program import DTYPES

_PACK: Mapping[str, tuple[str, str]] = {
    "f64": ("<d", "<Q"), "f32": ("<f", "<I"), "f16": ("<e", "<H"),
    "i64": ("<q", "<Q"), "i32": ("<i", "<I"), "i16": ("<h", "<H"), "i8": ("<b", "<B"),
    "u8": ("<B", "<B"), "bool": ("<?", "<B"),
}  # fmt: skip
SATURATED: Mapping[str, float] = {"f8e4m3fn": 448.0}
"""Dtypes without infinity, and what torch's casts make of all that is larger (from 2.12 on)."""
_INTEGER_DIVISIONS = frozenset({"floordiv", "truncdiv", "mod", "fmod"})


@dataclass(frozen=True, slots=True)
class Value:
    """Body node `node`, of logical dtype `dtype`."""

    node: int
    dtype: str


def constant_bits(dtype: str, value: float) -> int:
    """The bit pattern of a number in `dtype`; raises `Unlowerable` if it is out of range."""
    pattern, unsigned = _PACK[dtype]
    try:
        if dtype == "bool":
            return int(bool(value))
        number = float(value) if CATEGORY[dtype] == 2 else int(value)
        if isinstance(number, float) and number != number:
            number = float("nan")
        packed = struct.pack(pattern, number)
    except OverflowError:
        if CATEGORY[dtype] == 2 and not isinstance(value, int):
            packed = struct.pack(pattern, float("inf") if value > 0 else float("-inf"))
        else:
            raise Unlowerable("a constant out of its dtype's range") from None
    except (struct.error, ValueError):
        raise Unlowerable("a constant out of its dtype's range") from None
    return int(struct.unpack(unsigned, packed)[0])


def constant_value(constant: ir.Const) -> float:
    """The number that the bits of an f32 constant stand for."""
    return float(struct.unpack("<f", struct.pack("<I", constant.bits))[0])


def _integer(dtype: str, bits: int) -> int:
    """The integer that the bits of a constant stand for."""
    pattern, unsigned = _PACK[dtype]
    return int(struct.unpack(pattern, struct.pack(unsigned, bits))[0])


def nearest(dtype: str, value: float) -> float:
    """The number of a low precision that is nearest to an f32; ties to even.

    >>> nearest("f16", 0.1), nearest("bf16", 0.1), nearest("f16", 1e6)
    (0.0999755859375, 0.10009765625, inf)
    """
    if dtype == "f16":
        try:
            return float(struct.unpack("<e", struct.pack("<e", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    if dtype != "bf16" or not math.isfinite(value):
        return value
    bits = int(struct.unpack("<I", struct.pack("<f", value))[0])
    upper = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", upper))[0])


@dataclass(slots=True)
class Emitter:
    """Collects body nodes; equal nodes are one node.

    What follows from `ranges`, which positions lie in, is not computed.
    """

    body: list[ir.BodyNode] = field(default_factory=list)
    params: list[ir.Param] = field(default_factory=list)
    ranges: ix.Ranges = field(default_factory=ix.Ranges)
    _numbers: dict[ir.BodyNode, int] = field(default_factory=dict)

    def emit(self, node: ir.BodyNode, dtype: str) -> Value:
        """`node`, or the equal node that is there already, as a value of logical `dtype`."""
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = len(self.body)
            self.body.append(node)
        return Value(number, dtype)

    def param(self, role: str, dtype: str) -> int:
        """Adds a parameter; returns its position."""
        self.params.append(ir.Param(role, dtype))
        return len(self.params) - 1

    def load(self, param: int, index: Expr) -> Value:
        """Element `index` of an input, raised to the dtype that it is computed in."""
        dtype = self.params[param].dtype
        return self._raised(self.emit(ir.Load(param, index), dtype))

    def gather(self, param: int, index: Expr, stride: Expr, size: Expr, place: Value) -> Value:
        """Element `index + stride * place` of an input, raised; `place` is clamped below `size`."""
        dtype = self.params[param].dtype
        wide = self.cast(place, "i64")
        return self._raised(self.emit(ir.Gather(param, index, stride, size, wide.node), dtype))

    def scalar(self, param: int) -> Value:
        """The value of a 0-d parameter."""
        return self._raised(self.emit(ir.Scalar(param), self.params[param].dtype))

    def _raised(self, value: Value) -> Value:
        wide = compute_dtype(value.dtype)
        if wide == value.dtype:
            return value
        return Value(self.emit(ir.Op("cast", wide, (value.node,)), wide).node, value.dtype)

    def store(self, param: int, index: Expr, value: Value) -> None:
        """Writes `value` to element `index` of an output, in the output's dtype."""
        narrow = self.params[param].dtype
        node = self.cast(value, narrow).node
        if compute_dtype(narrow) != narrow:
            node = self.emit(ir.Op("cast", narrow, (node,)), narrow).node
        self.emit(ir.Store(param, index, node), narrow)

    def former(self, param: int) -> Value:
        """The element of an input at the position that a scatter writes to, raised."""
        return self._raised(self.emit(ir.Former(param), self.params[param].dtype))

    def scatter(
        self,
        kind: str,
        param: int,
        where: tuple[Expr, Expr, Expr, Value],
        base: Value,
        value: Value,
    ) -> None:
        """Brings `value` together in `where` (index, stride, size, place) of an output."""
        narrow = self.params[param].dtype
        index, stride, size, place = where
        nodes = [
            self.cast(each, dtype).node
            for each, dtype in ((place, "i64"), (base, narrow), (value, narrow))
        ]
        wide = compute_dtype(narrow)
        if wide not in ir.SCATTERS[kind] or narrow in STORED_FLOATS:
            raise Unlowerable(f"{kind} of {narrow} at places")
        self.emit(ir.Scatter(kind, wide, param, index, stride, size, *nodes), narrow)

    def const(self, dtype: str, value: float) -> Value:
        """A number in the dtype that `dtype` is computed in."""
        wide = compute_dtype(dtype)
        return self.emit(ir.Const(wide, constant_bits(wide, value)), dtype)

    def nearest(self, value: Value) -> Value:
        """`value` as its own low precision has it, where it may have been more precise."""
        if compute_dtype(value.dtype) == value.dtype:
            return value
        node = self.body[value.node]
        if isinstance(node, ir.Const):
            return self.const(value.dtype, nearest(value.dtype, constant_value(node)))
        return self._raised(self.emit(ir.Op("cast", value.dtype, (value.node,)), value.dtype))

    def overflowed(self, value: Value) -> Value:
        """`value`, infinite where its own low precision has no number for it: rounded, it is."""
        least = INFINITE_FROM.get(value.dtype, math.inf)
        if math.isinf(least):
            return value
        for name, sign in (("ge", 1), ("le", -1)):
            is_beyond = self.op(name, value, self.const(value.dtype, sign * least))
            value = self.op("where", is_beyond, self.const(value.dtype, sign * math.inf), value)
        return value

    def is_infinity(self, value: Value) -> bool:
        """Whether it is a constant, plus or minus infinity."""
        match self.body[value.node]:
            case ir.Const("f32") as node:
                return math.isinf(constant_value(node))
            case _:
                return False

    def iota(self, index: Expr) -> Value:
        """An integer expression as an i64 value."""
        if isinstance(index, ex.Int):
            return self.const("i64", index.value)
        return self.emit(ir.Iota(index), "i64")

    def cast(self, value: Value, dtype: str) -> Value:
        """`value` in another dtype, without rounding to a low precision."""
        source, wide = compute_dtype(value.dtype), compute_dtype(dtype)
        if source == wide:
            return Value(value.node, dtype)
        return Value(self.emit(ir.Op("cast", wide, (value.node,)), wide).node, dtype)

    def promoted(self, value: Value, dtype: str) -> Value:
        """`value`, as its own dtype has it, in the one that several operands are brought to."""
        return self.cast(value if value.dtype == dtype else self.nearest(value), dtype)

    def rounded(self, value: Value, dtype: str, *, saturates: bool = True) -> Value:
        """`value` in another dtype, rounded to it as a cast in the Program is.

        What is too large for `SATURATED` dtypes is their largest number, or NaN.
        """
        cast = self.cast(value, dtype)
        if compute_dtype(dtype) == dtype or value.dtype == dtype:
            return cast
        if saturates and dtype in SATURATED:
            cast = self._saturated(cast.node, SATURATED[dtype])
        narrow = self.emit(ir.Op("cast", dtype, (cast.node,)), dtype)
        return self._raised(narrow)

    def _saturated(self, node: int, largest: float) -> Value:
        """An f32 node moved into -largest .. largest, unless it is clamped to no more already."""
        low, high = self.const("f32", -largest), self.const("f32", largest)
        match self.body[node]:
            case ir.Op("min", "f32", (inner, above)) if above == high.node:
                match self.body[inner]:
                    case ir.Op("max", "f32", (_, below)) if below == low.node:
                        return Value(node, "f32")
                    case _:
                        pass
            case _:
                pass
        return self.op("min", self.op("max", Value(node, "f32"), low), high)

    def op(self, name: str, *operands: Value) -> Value:
        """An elementwise op; raises `Unlowerable` if `ir.OPS` does not allow its dtypes."""
        rule = ir.OPS[name]
        dtype = operands[-1].dtype
        if any(operand.dtype in STORED_FLOATS for operand in operands):
            raise Unlowerable(f"{name} of 8-bit floats")
        kinds = [compute_dtype(operand.dtype) for operand in operands]
        checked = kinds[1:] if name == "where" else kinds
        if len(operands) != rule.arity or any(
            kind != checked[0] or kind not in rule.operands for kind in checked
        ):
            raise Unlowerable(f"{name} of {kinds}")
        if name in _INTEGER_DIVISIONS and kinds[0] in INTEGERS:
            self._check_divisor(operands[1])
            name, operands = self._without_division(name, operands)
        result = "bool" if rule.result == "bool" else dtype
        known = self._known(name, operands)
        if known is not None:
            return Value(known.node, result)
        node = ir.Op(name, compute_dtype(result), tuple(operand.node for operand in operands))
        return self.emit(node, result)

    def position(self, value: Value) -> Expr | None:
        """The expression that an integer is, if it is one of positions and sizes alone.

        One of less than 64 bits is so where these hold it.
        """
        match self.body[value.node]:
            case ir.Op("cast", dtype, (inner,)) if dtype in INTEGERS:
                found, values = ir.place_of(self.body[inner]), 1 << 8 * DTYPES[dtype]
                least = 0 if dtype == "u8" else -(values >> 1)
                is_held = found is not None and ix.is_within(
                    ex.sub(found, least), ex.Int(values), self.ranges
                )
                return found if is_held else None
            case ir.Const(dtype, bits) if dtype in INTEGERS:
                return ex.Int(_integer(dtype, bits))
            case node:
                return ir.place_of(node)

    def _known(self, name: str, operands: Sequence[Value]) -> Value | None:
        """What an op is without being computed: one of its operands, or what a comparison says."""
        match name, [self.body[operand.node] for operand in operands]:
            case "where", [ir.Const(_, bits), _, _]:
                return operands[1 if bits else 2]
            case "where", [_, ir.Const("bool", 1), ir.Const("bool", 0)]:
                return operands[0]
            case "and", [ir.Const("bool", bits), _]:
                return operands[1 if bits else 0]
            case "and", [_, ir.Const("bool", bits)]:
                return operands[0 if bits else 1]
            case "or", [ir.Const("bool", bits), _]:
                return operands[0 if bits else 1]
            case "or", [_, ir.Const("bool", bits)]:
                return operands[1 if bits else 0]
            case "and", [_, ir.Const(dtype, bits)] if dtype in INTEGERS:
                place = self.position(operands[0])
                is_within = place is not None and ix.is_within(place, ex.Int(bits + 1), self.ranges)
                return operands[0] if is_within and bits & bits + 1 == 0 else None
            case "add", [ir.Const("i64", 0), _]:
                return operands[1]
            case "add" | "sub", [_, ir.Const("i64", 0)]:
                return operands[0]
            case _ if name in COMPARISONS:
                left, right = (self.position(operand) for operand in operands)
                if left is None or right is None:
                    return None
                holds = compared(name, left, right, self.ranges)
                return None if holds is None else self.const("bool", holds)
            case _:
                return None

    def _without_division(
        self, name: str, operands: tuple[Value, ...]
    ) -> tuple[str, tuple[Value, ...]]:
        """Of integers what is left by a power of two, and the quotient rounded down, are some of
        their bits.
        """
        divisor = self.body[operands[1].node]
        bits = divisor.bits if isinstance(divisor, ir.Const) else 0
        dtype = operands[1].dtype
        if bits & (bits - 1) or _integer(dtype, bits) <= 0:
            return name, operands
        if name == "mod":
            return "and", (operands[0], self.const(dtype, bits - 1))
        if name == "floordiv":
            return "shr", (operands[0], self.const(dtype, bits.bit_length() - 1))
        return name, operands

    def _check_divisor(self, divisor: Value) -> None:
        """An integer division by 0 or -1 may trap: a constant or a size is known not to."""
        node = self.body[divisor.node]
        allones = (1 << 8 * DTYPES[divisor.dtype]) - 1
        if isinstance(node, ir.Iota):
            is_known = self._is_size(node.index)
        else:
            is_known = isinstance(node, ir.Const) and node.bits not in (0, allones)
        if not is_known:
            raise Unlowerable("an integer division by a divisor that is not known")

    def _is_size(self, index: Expr) -> bool:
        """Whether an integer is a sum of products of sizes of which there cannot be none.

        Such a one is so in a Kernel as well; what else is positive is not always, as one less than
        a size of at least 2, which a Kernel does not know.
        """
        known, terms = self.ranges.symbols, [ix.factors_of(term) for term in ix.terms_of(index)]
        return bool(terms) and all(
            number > 0
            and all(
                isinstance(atom, ex.Sym) and atom.name in known and (known[atom.name][0] or 0) >= 1
                for atom in powers
            )
            for number, powers in terms
        )

    def reduce(self, kind: str, operand: Value) -> Value:
        """A reduction over the whole reduction space."""
        dtype = compute_dtype(operand.dtype)
        if dtype not in ir.REDUCTIONS[kind] or operand.dtype in STORED_FLOATS:
            raise Unlowerable(f"{kind} of {operand.dtype}")
        return self.emit(ir.Reduce(kind, dtype, operand.node), operand.dtype)

    def single_sum(self, term: Value) -> Value:
        """The sum of one term, which begins at 0 as every sum does: -0.0 becomes 0."""
        is_float = CATEGORY[term.dtype] == 2
        return self.op("add", term, self.const(term.dtype, 0.0)) if is_float else term

    def arg(self, kind: str, operand: Value, index: Expr) -> Value:
        """`index` of the extremal element over the reduction space, an i64."""
        dtype = compute_dtype(operand.dtype)
        if dtype not in ir.REDUCTIONS[kind] or operand.dtype in STORED_FLOATS:
            raise Unlowerable(f"arg{kind} of {operand.dtype}")
        return self.emit(ir.Arg(kind, dtype, operand.node, index), "i64")

    def scan(self, kind: str, operand: Value) -> Value:
        """A running reduction along the one reduction loop."""
        dtype = compute_dtype(operand.dtype)
        if dtype not in ir.SCANS[kind] or operand.dtype in STORED_FLOATS:
            raise Unlowerable(f"scan {kind} of {operand.dtype}")
        return self.emit(ir.Scan(kind, dtype, operand.node), operand.dtype)

    def value_of(self, number: int) -> Value:
        """A node as a value of the dtype that it has in the body."""
        node = self.body[number]
        if isinstance(node, ir.Reading | ir.Writing):
            return Value(number, self.params[node.param].dtype)
        return Value(number, "i64" if isinstance(node, ir.Iota | ir.Arg) else node.dtype)

    def is_integer(self, value: Value) -> bool:
        """Whether a value is an integer other than a bool."""
        return value.dtype in INTEGERS


class SingleElements(Emitter):
    """Writes to another emitter's body; a reduction, over one element, is that element."""

    @staticmethod
    def beside(emit: Emitter) -> SingleElements:
        """One that collects nodes where `emit` does."""
        return SingleElements(emit.body, emit.params, emit.ranges, emit._numbers)

    def reduce(self, kind: str, operand: Value) -> Value:
        """`operand`, where the reduction is one that there is; a sum is 0 of -0.0."""
        dtype = compute_dtype(operand.dtype)
        if dtype not in ir.REDUCTIONS[kind] or operand.dtype in STORED_FLOATS:
            raise Unlowerable(f"{kind} of {operand.dtype}")
        return self.single_sum(operand) if kind == "sum" else operand

    def arg(self, kind: str, operand: Value, index: Expr) -> Value:
        """The only index there is: 0, which every index is here."""
        return self.iota(ex.ZERO)
