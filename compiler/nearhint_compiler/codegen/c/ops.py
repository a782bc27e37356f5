"""The elementwise ops of the IR in C: one row an op, an expression for each kind of dtype.

In an expression `$a`, `$b`, `$c` are the operands, all of them vectors, and `@name` calls the
prelude's primitive `name` at the operands' dtype. A row for comparisons yields a vector of the
operands' width, which becomes a bool afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from nearhint_compiler.codegen.c.convert import as_bool, cast
from nearhint_compiler.codegen.c.primitive import Prelude, Row
from nearhint_compiler.ir import nodes as ir

_CALL = re.compile(r"@(\w+)")
_OPERAND = re.compile(r"\$([abc])")


def _both(text: str) -> dict[str, str]:
    return {"float": text, "integer": text}


def _all(text: str) -> dict[str, str]:
    return {"float": text, "integer": text, "bool": text}


def _float(text: str) -> dict[str, str]:
    return {"float": text}


_EXPRESSIONS: Mapping[str, Mapping[str, str]] = {
    "add": _both("$a + $b"),
    "sub": _both("$a - $b"),
    "mul": _both("$a * $b"),
    "div": _float("$a / $b"),
    "floordiv": _both("@floordiv($a, $b)"),
    "truncdiv": {"float": "@trunc($a / $b)", "integer": "@truncdiv($a, $b)"},
    "mod": _both("@mod($a, $b)"),
    "fmod": _both("@fmod($a, $b)"),
    "pow": _float("@pow($a, $b)"),
    "neg": _both("-$a"),
    "abs": _both("@abs($a)"),
    "sign": _both("@sign($a)"),
    "reciprocal": _float("1 / $a"),
    "fma": _float("@mad($a, $b, $c)"),
    "max": _all("@max($a, $b)"),
    "min": _all("@min($a, $b)"),
    **{
        name: _float(f"@{name}($a)")
        for name in (
            "floor", "ceil", "trunc", "round", "exp", "exp2", "expm1", "log", "log2", "log10",
            "log1p", "sqrt", "sin", "cos", "tan", "tanh", "erf", "sigmoid",
        )
    },
    "rsqrt": _float("1 / @sqrt($a)"),
    "eq": {**_both("$a == $b"), "bool": "~($a ^ $b)"},
    "ne": {**_both("$a != $b"), "bool": "$a ^ $b"},
    "lt": {**_both("$a < $b"), "bool": "~$a & $b"},
    "le": {**_both("$a <= $b"), "bool": "~$a | $b"},
    "gt": {**_both("$a > $b"), "bool": "$a & ~$b"},
    "ge": {**_both("$a >= $b"), "bool": "$a | ~$b"},
    "isnan": _float("$a != $a"),
    "isinf": _float("@abs($a) == __builtin_inff()"),
    "and": _all("$a & $b"),
    "or": _all("$a | $b"),
    "xor": _all("$a ^ $b"),
    "not": _all("~$a"),
    "shl": {"integer": "@shl($a, $b)"},
    "shr": {"integer": "@shr($a, $b)"},
}  # fmt: skip


def kind_of(dtype: str) -> str:
    """The column of the table that a dtype belongs to."""
    if dtype in ir.FLOATS:
        return "float"
    return "bool" if dtype == ir.BOOL else "integer"


def expression(
    node: ir.Op, operands: Sequence[str], dtypes: Sequence[str], prelude: Prelude
) -> str:
    """`node` over C vectors `operands` of dtypes `dtypes`, as a C expression."""
    if node.name == "cast":
        return cast(operands[0], dtypes[0], node.dtype, prelude)
    if node.name == "where":
        return f"{prelude.use('sel', node.dtype)}({', '.join(operands)})"
    dtype = dtypes[0]
    text = _EXPRESSIONS[node.name][kind_of(dtype)]
    called = _CALL.sub(lambda match: prelude.use(match[1], dtype), text)
    filled = _OPERAND.sub(lambda match: operands["abc".index(match[1])], called)
    return as_bool(filled, dtype) if ir.OPS[node.name].result == "bool" else filled


_LANES = "{\n    for (int l = 0; l < $W; l++)\n        x[l] = "

OP_ROWS: tuple[Row, ...] = (
    Row(
        "sign",
        "static inline $V sign_$T($V x)\n"
        "{\n    $I above = ($I)(x > 0), below = ($I)(x < 0);\n"
        "    return __builtin_convertvector(below - above, $V);\n}\n",
        (*ir.FLOATS, *ir.INTEGERS),
    ),
    Row(
        "truncdiv",
        "/* Division by 0 is undefined in the IR; here it is 0, and never a signal. */\n"
        "static inline $V truncdiv_$T($V x, $V y)\n"
        + _LANES
        + "y[l] == 0 ? 0 : y[l] == ($E)-1 && ($E)-1 < 0 ? 0 - x[l] : x[l] / y[l];\n"
        "    return x;\n}\n",
        ir.INTEGERS,
    ),
    Row(
        "floordiv",
        "static inline $V floordiv_$T($V x, $V y)\n"
        "{\n    $V q = truncdiv_$T(x, y), r = x - q * y;\n"
        "    return q + ($V)((r != 0) & ((x < 0) != (y < 0)) & (y != 0));\n}\n",
        ir.INTEGERS,
        needs=("truncdiv $T",),
    ),
    Row(
        "fmod",
        "static inline $V fmod_$T($V x, $V y) { return x - y * truncdiv_$T(x, y); }\n",
        ir.INTEGERS,
        needs=("truncdiv $T",),
    ),
    Row(
        "mod",
        "static inline $V mod_$T($V x, $V y) { return x - y * floordiv_$T(x, y); }\n",
        ir.INTEGERS,
        needs=("floordiv $T",),
    ),
    Row(
        "floordiv",
        "static inline $V floordiv_$T($V x, $V y)\n"
        "{\n    $V m = fmod_$T(x, y), whole = (x - m) / y, signed_zero = x / y;\n"
        "    whole = whole + __builtin_convertvector((m != 0) & ((y < 0) != (m < 0)), $V);\n"
        "    $V q = floor_$T(whole);\n"
        "    q = q - __builtin_convertvector(whole - q > 0.5f, $V);\n"
        "    $V zero = ($V)(($I)signed_zero & ($I) - ($V){0});\n"
        "    $I none = ($I)(whole == 0), by_zero = ($I)(y == 0);\n"
        "    q = ($V)((none & ($I)zero) | (~none & ($I)q));\n"
        "    return ($V)((by_zero & ($I)signed_zero) | (~by_zero & ($I)q));\n}\n",
        ir.FLOATS,
        needs=("fmod $T", "floor $T"),
    ),
    Row(
        "shl",
        "/* A shift by a negative number or by all bits and more gives 0. */\n"
        "static inline $V shl_$T($V x, $V y)\n"
        "{\n    $V bits = (y - y) + ($E)(8 * sizeof($E) - 1);\n"
        "    return ($V)((y >= 0) & (y <= bits)) & (x << (y & bits));\n}\n",
        ir.INTEGERS,
    ),
    Row(
        "shr",
        "/* A shift by a negative number or by all bits and more leaves the sign, or 0. */\n"
        "static inline $V shr_$T($V x, $V y)\n"
        "{\n    $V bits = (y - y) + ($E)(8 * sizeof($E) - 1);\n"
        "    $V inside = ($V)((y >= 0) & (y <= bits));\n"
        "    $V sign = ($V)(x < 0);\n"
        "    return (inside & (x >> (y & bits))) | (~inside & sign);\n}\n",
        ir.INTEGERS,
    ),
)
