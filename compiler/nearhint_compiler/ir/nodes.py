"""The loop IR. A Kernel is one fused loop nest over a pointwise and a reduction space.

Grammar, as `ir.text` prints and parses it:

    kernel := (kernel (symbols k0 k1 ...)
                      (pointwise extent ...)          extents of p0, p1, ...; the last is innermost
                      (reduction extent ...)          extents of r0, r1, ...; may be empty
                      (params (in DTYPE) ... (scalar DTYPE) ... (out DTYPE) ...)
                      (body node ...))
    node   := (load PARAM index)                      element `index` of an input, its dtype
            | (gather PARAM index stride size operand)  a row that a value names, see below
            | (scalar PARAM)                          the value of a 0-d parameter
            | (const DTYPE BITS)                      a constant, by its bits in hex
            | (iota index)                            an i64 equal to an index expression
            | (OP DTYPE operand ...)                  elementwise, OP from `OPS`
            | (reduce KIND DTYPE operand)             over the whole reduction space
            | (arg KIND DTYPE operand index)          i64: `index` where `operand` is extremal
            | (scan KIND DTYPE operand)               over the reduction loop up to this point
            | (former PARAM)                          what a scatter's output is to begin with
            | (scatter KIND DTYPE PARAM index stride size place base operand)
                                                      into what a value names of an output
            | (store PARAM index operand)             into an output
    extent, index := size expressions; extents over k*, indices over k*, p*, r*
    stride, size  := size expressions over k*
    operand := the position of an earlier body node

Loops: for every point of the pointwise space, and within it of the reduction space. A node lives
*per row* if it depends on no reduction variable other than through a `reduce`, else *per element*.
A store whose index mentions no r* must store a per-row value and runs once a row. Nodes after a
`reduce` may use its result per element again (softmax: max, exp, sum, divide), so an emitter
walks the reduction space once for each level of nested reduces. An `arg` reduces like a `reduce`
does: NaN is more extreme than any number, and of equals the one with the least index counts. A
`scan` varies per element, is known in the walk that computes its operand, and wants a single
reduction loop, walked in order.

A `gather` reads element `index + stride * place` of an input, where place is its operand, an i64: a
row of an embedding, a block of a paged cache. There are `size` places, and one outside of
0 .. size - 1 stands for one inside, so that no value leads out of the parameter's storage: for the
nearest, where 32 bits hold it.

A `scatter` reduces, too, but to `size` values a row: element `index + stride * place` of its output
is the base and all operands of the row that name that place; one outside of 0 .. size - 1 names
none. Index is over p* and sizes, and rows and places together are all of the output. The base is
the same everywhere, or a `former`, which is the element of an input at the same position, and it
is added to first. The order of sums is anyone's, and a half float is rounded once, at the end. A
Kernel with a scatter has no other reduction, and writes nothing else.

Every symbol k_i is at least 1, and nothing else is known about it: the same Kernel serves every
Program whose loops it fits. Index expressions are in elements, from the first element of the
parameter as the launch hands it over; they never leave the parameter's storage.

Low precision floats are computed in f32: a load is cast up before its first use and cast down
before a store, explicitly, as `cast` nodes; elementwise ops and reduces never see them. What is
too large for f8e4m3fn becomes NaN; torch's casts saturate from 2.12 on, so a lowered one comes
after a clamp.
Constants are keyed by dtype and bits, since in Python 1 == True == 1.0 and 0.0 == -0.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from nearhint_rules.expr import Expr, Int, mul, symbols_of

FLOATS = ("f64", "f32")
LOW_PRECISION = ("f16", "bf16", "f8e4m3fn", "f8e5m2")
INTEGERS = ("i64", "i32", "i16", "i8", "u8")
BOOL = "bool"


@dataclass(frozen=True, slots=True)
class OpRule:
    """An elementwise op: number of operands, dtypes that it computes in, and its result.

    `result` is "same" (as the operands), "bool", or "any" (cast: the node's own dtype).
    """

    arity: int
    operands: tuple[str, ...]
    result: str = "same"


_FLOAT = FLOATS
_NUMBER = (*FLOATS, *INTEGERS)
_ANY = (*FLOATS, *INTEGERS, BOOL)
_BITS = (*INTEGERS, BOOL)

OPS: Mapping[str, OpRule] = {
    # arithmetic
    "add": OpRule(2, _NUMBER),
    "sub": OpRule(2, _NUMBER),
    "mul": OpRule(2, _NUMBER),
    "div": OpRule(2, _FLOAT),
    "floordiv": OpRule(2, _NUMBER),  # torch's floor rounding; integers: divisor 0 is undefined
    "truncdiv": OpRule(2, _NUMBER),
    "mod": OpRule(2, _NUMBER),  # torch.remainder: the sign of the divisor
    "fmod": OpRule(2, _NUMBER),  # C's fmod: the sign of the dividend
    "pow": OpRule(2, _FLOAT),
    "neg": OpRule(1, _NUMBER),
    "abs": OpRule(1, _NUMBER),
    "sign": OpRule(1, _NUMBER),
    "reciprocal": OpRule(1, _FLOAT),
    "fma": OpRule(3, _FLOAT),
    # extrema: NaN if an operand is NaN
    "max": OpRule(2, _ANY),
    "min": OpRule(2, _ANY),
    # rounding
    "floor": OpRule(1, _FLOAT),
    "ceil": OpRule(1, _FLOAT),
    "trunc": OpRule(1, _FLOAT),
    "round": OpRule(1, _FLOAT),  # half to even
    # transcendental
    "exp": OpRule(1, _FLOAT),
    "exp2": OpRule(1, _FLOAT),
    "expm1": OpRule(1, _FLOAT),
    "log": OpRule(1, _FLOAT),
    "log2": OpRule(1, _FLOAT),
    "log10": OpRule(1, _FLOAT),
    "log1p": OpRule(1, _FLOAT),
    "sqrt": OpRule(1, _FLOAT),
    "rsqrt": OpRule(1, _FLOAT),
    "sin": OpRule(1, _FLOAT),
    "cos": OpRule(1, _FLOAT),
    "tan": OpRule(1, _FLOAT),
    "tanh": OpRule(1, _FLOAT),
    "erf": OpRule(1, _FLOAT),
    "sigmoid": OpRule(1, _FLOAT),
    # comparison; NaN compares as in IEEE 754
    "eq": OpRule(2, _ANY, "bool"),
    "ne": OpRule(2, _ANY, "bool"),
    "lt": OpRule(2, _ANY, "bool"),
    "le": OpRule(2, _ANY, "bool"),
    "gt": OpRule(2, _ANY, "bool"),
    "ge": OpRule(2, _ANY, "bool"),
    "isnan": OpRule(1, _FLOAT, "bool"),
    "isinf": OpRule(1, _FLOAT, "bool"),
    # logic and bits
    "and": OpRule(2, _BITS),
    "or": OpRule(2, _BITS),
    "xor": OpRule(2, _BITS),
    "not": OpRule(1, _BITS),
    "shl": OpRule(2, INTEGERS),
    "shr": OpRule(2, INTEGERS),
    # (where DTYPE condition then else): the condition is bool, the rest the node's dtype
    "where": OpRule(3, _ANY),
    # (cast DTYPE x): the only op that low precision takes part in
    "cast": OpRule(1, (*_ANY, *LOW_PRECISION), "any"),
}

REDUCTIONS: Mapping[str, tuple[str, ...]] = {
    "sum": _NUMBER,
    "prod": _NUMBER,
    "max": _ANY,  # NaN if any element is NaN
    "min": _ANY,
    "any": (BOOL,),
    "all": (BOOL,),
}
"""Reductions and the dtypes that they accumulate in. Integer sums wrap."""

ARGS = ("max", "min")
"""Kinds of `arg`; they compare in the dtypes of the reduction of that name."""
SCANS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("sum", "prod", "max", "min"), _NUMBER),
    "logaddexp": _FLOAT,
}
"""Kinds of `scan` and the dtypes that they accumulate in."""
SCATTERS: Mapping[str, tuple[str, ...]] = dict.fromkeys(("sum", "max", "min"), _NUMBER)
"""Kinds of `scatter` and the dtypes that they accumulate in. Integer sums wrap."""


@dataclass(frozen=True, slots=True)
class Param:
    """A Kernel parameter; `role` is "in", "scalar" or "out". Inputs come first, outputs last."""

    role: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Load:
    """Element `index` of input `param`."""

    param: int
    index: Expr


@dataclass(frozen=True, slots=True)
class Gather:
    """Element `index + stride * place` of input `param`; `place` is a node, an i64.

    It is clamped into 0 .. `size` - 1.
    """

    param: int
    index: Expr
    stride: Expr
    size: Expr
    place: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """The value of 0-d parameter `param`."""

    param: int


@dataclass(frozen=True, slots=True)
class Const:
    """A constant: `bits` is its value's bit pattern, zero-extended to 64 bits."""

    dtype: str
    bits: int


@dataclass(frozen=True, slots=True)
class Iota:
    """An index expression as an i64 value."""

    index: Expr


@dataclass(frozen=True, slots=True)
class Op:
    """An elementwise op of `OPS` on earlier nodes."""

    name: str
    dtype: str
    operands: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction of `REDUCTIONS` over the whole reduction space."""

    kind: str
    dtype: str
    operand: int


@dataclass(frozen=True, slots=True)
class Arg:
    """`index` (over r* and sizes) where `operand` is the largest or smallest, as an i64."""

    kind: str
    dtype: str
    operand: int
    index: Expr


@dataclass(frozen=True, slots=True)
class Scan:
    """What a kind of `SCANS` makes of the elements up to this one along the reduction loop."""

    kind: str
    dtype: str
    operand: int


@dataclass(frozen=True, slots=True)
class Former:
    """The element of input `param` at the position that a scatter writes to."""

    param: int


@dataclass(frozen=True, slots=True)
class Scatter:
    """Brings `value` together with `base` in element `index + stride * place` of output `param`.

    What no place of a row names is `base`. `place` is a node, an i64, of `size` that there are.
    """

    kind: str
    dtype: str
    param: int
    index: Expr
    stride: Expr
    size: Expr
    place: int
    base: int
    value: int


@dataclass(frozen=True, slots=True)
class Store:
    """Writes node `value` to element `index` of output `param`."""

    param: int
    index: Expr
    value: int


BodyNode: TypeAlias = (
    Load | Gather | Scalar | Const | Iota | Op | Reduce | Arg | Scan | Former | Scatter | Store
)
Indexed: TypeAlias = Load | Gather | Iota | Arg | Scatter | Store
"""Nodes with an index expression."""
Access: TypeAlias = Load | Gather | Scatter | Store
"""Nodes that read or write elements of a parameter, at an index."""
Placed: TypeAlias = Gather | Scatter
"""Those at a place that data names."""
Reading: TypeAlias = Load | Gather | Scalar | Former
"""Nodes that read a parameter."""
Writing: TypeAlias = Scatter | Store
"""Nodes that write one, and that nothing uses."""
Reducing: TypeAlias = Reduce | Arg
"""Nodes that have one value a row, made of all its elements."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One fused loop nest; see the grammar at the top. Canonical: equal loops, equal values."""

    symbols: tuple[str, ...]
    pointwise: tuple[Expr, ...]
    reduction: tuple[Expr, ...]
    params: tuple[Param, ...]
    body: tuple[BodyNode, ...]


def operands_of(node: BodyNode) -> tuple[int, ...]:
    """The positions of the nodes that `node` uses."""
    match node:
        case Op(_, _, operands):
            return operands
        case Reduce(_, _, operand) | Arg(_, _, operand, _) | Scan(_, _, operand):
            return (operand,)
        case Store(_, _, value):
            return (value,)
        case Gather():
            return (node.place,)
        case Scatter():
            return (node.place, node.base, node.value)
        case _:
            return ()


def with_operands(node: BodyNode, places: Mapping[int, int]) -> BodyNode:
    """The node with its operands replaced."""
    match node:
        case Op(name, dtype, operands):
            return Op(name, dtype, tuple(places[operand] for operand in operands))
        case Reduce(kind, dtype, operand):
            return Reduce(kind, dtype, places[operand])
        case Arg(kind, dtype, operand, index):
            return Arg(kind, dtype, places[operand], index)
        case Scan(kind, dtype, operand):
            return Scan(kind, dtype, places[operand])
        case Store(param, index, value):
            return Store(param, index, places[value])
        case Gather():
            return replace(node, place=places[node.place])
        case Scatter():
            place, base, value = (places[operand] for operand in operands_of(node))
            return replace(node, place=place, base=base, value=value)
        case _:
            return node


def dtypes_of(kernel: Kernel) -> tuple[str, ...]:
    """The dtype of each body node; what writes has its parameter's."""
    found: list[str] = []
    for node in kernel.body:
        match node:
            case (
                Load(param) | Gather(param) | Scalar(param) | Former(param) | Store(param)
            ) | Scatter(_, _, param):
                found.append(kernel.params[param].dtype)
            case Const(dtype, _) | Op(_, dtype, _) | Reduce(_, dtype, _) | Scan(_, dtype, _):
                found.append(dtype)
            case Iota() | Arg():
                found.append("i64")
    return tuple(found)


def scatter_of(kernel: Kernel) -> Scatter | None:
    """The scatter of a kernel that has one."""
    last = kernel.body[-1] if kernel.body else None
    return last if isinstance(last, Scatter) else None


def scattered(kernel: Kernel, scatter: Scatter) -> Expr:
    """How many elements the output of a scatter has: one for each row and place."""
    return mul(scatter.size, *kernel.pointwise)


def place_of(node: BodyNode) -> Expr | None:
    """The index expression that a node's value is: that of a place, or an integer."""
    match node:
        case Iota(index):
            return index
        case Const("i64", bits):
            return Int(bits - (bits >> 63 << 64))
        case _:
            return None


def is_reduction_variable(name: str) -> bool:
    """Whether a symbol in an index expression is r0, r1, ..."""
    return name[0] == "r"


def per_element(kernel: Kernel) -> tuple[bool, ...]:
    """For each body node, whether it varies along the reduction space."""
    return _varying(kernel, is_reduction_variable)


def varying(kernel: Kernel) -> tuple[bool, ...]:
    """For each body node, whether it varies along any loop; a reduce does if its operand does."""
    symbols = frozenset(kernel.symbols)
    return _varying(kernel, lambda name: name not in symbols, through_reduces=True)


def varying_along(kernel: Kernel, variable: str) -> tuple[bool, ...]:
    """For each body node, whether it varies along one loop; a reduce does if its operand does."""
    return _varying(kernel, lambda name: name == variable, through_reduces=True)


def _varying(
    kernel: Kernel, is_loop: Callable[[str], bool], *, through_reduces: bool = False
) -> tuple[bool, ...]:
    found: list[bool] = []
    for node in kernel.body:
        match node:
            case Load(_, index) | Iota(index):
                found.append(any(map(is_loop, symbols_of(index))))
            case Store(_, index, operand) | Gather(_, index, _, _, operand):
                found.append(any(map(is_loop, symbols_of(index))) or found[operand])
            case Scatter(_, _, _, index):
                own = any(map(is_loop, symbols_of(index)))
                found.append(own or any(found[operand] for operand in operands_of(node)))
            case Op(_, _, operands):
                found.append(any(found[operand] for operand in operands))
            case Reduce(_, _, operand) | Arg(_, _, operand, _):
                found.append(through_reduces and found[operand])
            case Scan():
                found.append(True)
            case _:
                found.append(False)
    return tuple(found)


def levels(kernel: Kernel) -> tuple[int, ...]:
    """For each body node, how many nested reduces must be complete before it can be computed."""
    found: list[int] = []
    for node in kernel.body:
        below = max((found[operand] for operand in operands_of(node)), default=0)
        found.append(below + 1 if isinstance(node, Reducing) else below)
    return tuple(found)
