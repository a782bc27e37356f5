"""Triton's spelling of dtypes, sizes, constants and casts."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from nearhint_compiler.analysis.index_width import variable_ranges
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.program import DTYPES

LARGEST_EXPONENT = 100
"""Of a power of two whose reciprocal is as far from what has no digits left, in f32 too."""
_FLOATS: Mapping[str, str] = {"f64": "d", "f32": "f", "f16": "e", "bf16": "f"}
"""By floating dtype that constants have how `struct` calls it, or what it begins."""


@dataclass(frozen=True, slots=True)
class TritonType:
    """A dtype in a signature, in the source, and as a scalar argument.

    Scalars travel as f32, f64, i32 or i64 and are narrowed in the kernel.
    """

    signature: str
    name: str
    scalar: str


TRITON_TYPES: Mapping[str, TritonType] = {
    "f64": TritonType("fp64", "tl.float64", "f64"),
    "f32": TritonType("fp32", "tl.float32", "f32"),
    "f16": TritonType("fp16", "tl.float16", "f32"),
    "bf16": TritonType("bf16", "tl.bfloat16", "f32"),
    "f8e4m3fn": TritonType("fp8e4nv", "tl.float8e4nv", "f32"),
    "f8e5m2": TritonType("fp8e5", "tl.float8e5", "f32"),
    "i64": TritonType("i64", "tl.int64", "i64"),
    "i32": TritonType("i32", "tl.int32", "i32"),
    "i16": TritonType("i16", "tl.int16", "i32"),
    "i8": TritonType("i8", "tl.int8", "i32"),
    "u8": TritonType("u8", "tl.uint8", "i32"),
    "bool": TritonType("i1", "tl.int1", "i32"),
}


F8 = frozenset({"f8e4m3fn", "f8e5m2"})


def index_text(index: ex.Expr) -> str:
    """An index expression as Triton source; its symbols are variables of the same names.

    Triton's integer division truncates; helpers that floor are called where it would matter.
    """
    match index:
        case ex.Int(value):
            return str(value) if value >= 0 else f"({value})"
        case ex.Sym(name):
            return name
        case ex.Add(terms):
            return f"({' + '.join(map(index_text, terms))})"
        case ex.Mul(factors):
            return f"({' * '.join(map(index_text, factors))})"
        case ex.Pow(base, exponent):
            return f"({' * '.join([index_text(base)] * exponent)})"
        case ex.FloorDiv(numerator, denominator):
            top, bottom = index_text(numerator), index_text(denominator)
            return f"_floordiv({top}, {bottom})" if needs_floor(index) else f"({top} // {bottom})"
        case ex.Mod(numerator, denominator):
            top, bottom = index_text(numerator), index_text(denominator)
            return f"_mod({top}, {bottom})" if needs_floor(index) else f"({top} % {bottom})"
        case ex.Min(args):
            return _nested("tl.minimum", args)
        case ex.Max(args):
            return _nested("tl.maximum", args)


def needs_floor(division: ex.FloorDiv | ex.Mod) -> bool:
    """Whether a division of sizes may meet a negative operand."""
    top = ex.bounds(division.numerator, variable_ranges(division))[0]
    bottom = ex.bounds(division.denominator, variable_ranges(division))[0]
    return top is None or top < 0 or bottom is None or bottom < 1


def _nested(function: str, args: tuple[ex.Expr, ...]) -> str:
    text = index_text(args[0])
    for arg in args[1:]:
        text = f"{function}({text}, {index_text(arg)})"
    return text


def constant_text(dtype: str, bits: int) -> str:
    """A constant as a Python literal that Triton rounds to exactly these bits, zeros' sign aside.

    >>> constant_text("f32", 0x3DCCCCCD), constant_text("bf16", 0xFF80), constant_text("i8", 0xFF)
    ('0.10000000149011612', 'float("-inf")', '-1')
    """
    if dtype == "bool":
        return "True" if bits else "False"
    if dtype not in _FLOATS:
        width = 8 * DTYPES[dtype]
        return str(bits - (1 << width) if dtype != "u8" and bits >> (width - 1) else bits)
    value = _float(dtype, bits)
    if math.isnan(value):
        return 'float("nan")'
    if math.isinf(value):
        return 'float("inf")' if value > 0 else 'float("-inf")'
    return repr(value)


def exact_reciprocal(node: ir.BodyNode) -> str:
    """Of a power of two the text of what a quotient by it is a product with, bit for bit; else "".

    >>> exact_reciprocal(ir.Const("f32", 0x43800000)), exact_reciprocal(ir.Const("f32", 0x43000001))
    ('0.00390625', '')
    """
    if not isinstance(node, ir.Const) or node.dtype not in _FLOATS:
        return ""
    divisor = _float(node.dtype, node.bits)
    fraction, exponent = math.frexp(divisor)
    is_exact = abs(fraction) == 0.5 and abs(exponent) <= LARGEST_EXPONENT
    return repr(1.0 / divisor) if is_exact else ""


def _float(dtype: str, bits: int) -> float:
    """The number that a constant's bits stand for."""
    if dtype == "bf16":
        dtype, bits = "f32", bits << 16
    (value,) = struct.unpack(f"<{_FLOATS[dtype]}", bits.to_bytes(DTYPES[dtype], "little"))
    return float(value)


def zero_text(dtype: str) -> str:
    """The zero that masked lanes of a load are; Triton casts no integer to a float of 8 bits.

    >>> zero_text("f8e4m3fn"), zero_text("bf16")
    ('0.0', '0')
    """
    return "0.0" if dtype in F8 else "0"


def full_text(shape: str, dtype: str, bits: int) -> str:
    """A constant as a block. `tl.full` loses the sign of -0.0, a product does not."""
    is_float = dtype in (*ir.FLOATS, *ir.LOW_PRECISION)
    if is_float and bits == 1 << (8 * DTYPES[dtype] - 1):
        return f"tl.full({shape}, 0.0, {TRITON_TYPES[dtype].name}) * -1.0"
    return f"tl.full({shape}, {constant_text(dtype, bits)}, {TRITON_TYPES[dtype].name})"


def cast_text(value: str, source: str, target: str) -> str:
    """A cast as torch does it: to bool it compares with zero, to integers it truncates.

    Narrow integers are reached through i32, so that what does not fit wraps instead of being
    undefined.
    """
    if target == "bool":
        return f"({value} != 0)"
    if target in F8:
        single = value if source == "f32" else f"{value}.to(tl.float32)"
        return f"_to_{target}({single})"
    is_float = source in (*ir.FLOATS, *ir.LOW_PRECISION)
    through = ".to(tl.int32)" if is_float and target in ("i16", "i8", "u8") else ""
    return f"{value}{through}.to({TRITON_TYPES[target].name})"


NEUTRAL: Mapping[tuple[str, bool], str] = {
    ("sum", True): "0.0",
    ("sum", False): "0",
    ("prod", True): "1.0",
    ("prod", False): "1",
    ("max", True): 'float("-inf")',
    ("min", True): 'float("inf")',
    ("logaddexp", True): 'float("-inf")',
}
"""(reduction, is float) -> the value that masked lanes and accumulators start from."""


def neutral_text(kind: str, dtype: str) -> str:
    """The neutral element of a reduction in `dtype`."""
    if dtype == "bool":
        return "True" if kind in ("all", "min") else "False"
    is_float = dtype in ir.FLOATS
    if (kind, is_float) in NEUTRAL:
        return NEUTRAL[kind, is_float]
    width = 8 * DTYPES[dtype]
    low, high = (0, 2**width - 1) if dtype == "u8" else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
    return str(low if kind == "max" else high)
