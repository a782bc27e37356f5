"""Triton's spelling of the ops and reductions of the loop IR: tables, and the helpers they call.

Accuracy: `/` on f32 is div.full.f32, 2 ulp, as in Triton's own kernels; what comes from libdevice
is within 2 ulp (CUDA C Programming Guide, mathematical functions). `exp` is ex2.approx of
x * log2(e), whose error grows with |x|, by half an ulp to one for each unit. Where a kernel writes
f32, and so would show it, `exp` is libdevice's, sqrt is rounded to nearest, and rsqrt.approx, which
is 2 ulp off, is corrected; terms of sums alone are exp2 of a product that loses nothing but its
last rounding, which has no bias, and 0 where they would be denormal: fewer instructions than `exp`
takes. There quotients of what is known once a row are rounded to nearest: their error is in every
element of the row (tests/gpu/test_cuda_launch.py). Terms below a maximum that may grow are such
terms of sums, too: what `exp` is off by has one sign, and stays in the sum of a long row. Quotients
that lead to a jump, as 8-bit numbers do, are rounded as eager's are: the largest of a row is its
127, and half of that lies just where it is rounded to another number.

Where nobody sees whether an exponential is denormal, for it is added to one or lies in a row that
has a one and is not written in f32, it is 0 instead: of the five instructions of `exp` three are
for what is denormal, and softmaxes of short rows and of very long ones wait for instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from nearhint_compiler.codegen.triton.phases import IN_PHASE
from nearhint_compiler.codegen.triton.text import TRITON_TYPES
from nearhint_compiler.ir import nodes as ir

PARTS = 8
"""So many chains a thread makes of the elements that it adds."""
KEEPS_NAN = "propagate_nan=tl.PropagateNan.ALL"
"""The argument with which a maximum or minimum is NaN where an operand is."""

OP_TEXT: Mapping[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "pow": "libdevice.pow({0}, {1})",
    "abs": "tl.abs({0})",
    "reciprocal": "1.0 / {0}",
    "fma": "tl.fma({0}, {1}, {2})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "trunc": "libdevice.trunc({0})",
    "round": "libdevice.nearbyint({0})",
    "exp": "tl.exp({0})",
    "exp2": "tl.exp2({0})",
    "expm1": "libdevice.expm1({0})",
    "log": "tl.log({0})",
    "log2": "tl.log2({0})",
    "log10": "libdevice.log10({0})",
    "log1p": "libdevice.log1p({0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "tan": "libdevice.tan({0})",
    "tanh": "libdevice.tanh({0})",
    "erf": "tl.erf({0})",
    "sigmoid": "1.0 / (1.0 + _exp_flushed({0} * -1.0))",
    "sign": "({0} > 0).to({type}) - ({0} < 0).to({type})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "shl": "{0} << {1}",
    "shr": "{0} >> {1}",
    "where": "tl.where({0}, {1}, {2})",
}
"""Ops whose spelling does not depend on the dtype; `{n}` is operand n, `{type}` the dtype."""

_FLOAT_OPS: Mapping[str, str] = {
    "neg": "{0} * -1.0",  # Triton negates by subtracting from +0.0, which loses -0.0
    "max": f"tl.maximum({{0}}, {{1}}, {KEEPS_NAN})",
    "min": f"tl.minimum({{0}}, {{1}}, {KEEPS_NAN})",
    "floordiv": "_float_floordiv({0}, {1})",
    "truncdiv": "libdevice.trunc({0} / {1})",
    "mod": "_float_mod({0}, {1})",
    "fmod": "libdevice.fmod({0}, {1})",
}
_F32_OPS: Mapping[str, str] = {
    **_FLOAT_OPS,
    "tanh": "_tanh({0})",
    "truncdiv": "libdevice.trunc(tl.div_rn({0}, {1}))",
}
_INTEGER_OPS: Mapping[str, str] = {
    "neg": "-{0}",
    "max": "tl.maximum({0}, {1})",
    "min": "tl.minimum({0}, {1})",
    "floordiv": "_floordiv({0}, {1})",
    "truncdiv": "{0} // {1}",
    "mod": "_mod({0}, {1})",
    "fmod": "{0} % {1}",
    "not": "~{0}",
}
_BOOL_OPS: Mapping[str, str] = {
    "max": "{0} | {1}",
    "min": "{0} & {1}",
    "not": "{0} == 0",
}
_OPS_BY_DTYPE: Mapping[str, Mapping[str, str]] = {
    "f64": _FLOAT_OPS,
    "f32": _F32_OPS,
    **dict.fromkeys(ir.INTEGERS, _INTEGER_OPS),
    "bool": _BOOL_OPS,
}


_EXACT: Mapping[tuple[str, str], str] = {
    ("exp", "f32"): "libdevice.exp({0})",
    ("rsqrt", "f32"): "_rsqrt({0})",
    ("sqrt", "f32"): "tl.sqrt_rn({0})",
}
_EXACT_ONCE: Mapping[tuple[str, str], str] = {**_EXACT, ("div", "f32"): "tl.div_rn({0}, {1})"}
"""Of what is there once a row, where digits cost little and go into all of the row's elements."""
_TERMS: Mapping[tuple[str, str], str] = {("exp", "f32"): "_exp_term({0})"}
"""Of what is nothing but terms of sums, in which errors without a bias are lost."""
_BELOW_MOST: Mapping[tuple[str, str], str] = {("exp", "f32"): "_exp_flushed({0})"}
"""Of what has a one in each row: beside that nothing is seen of what is denormal."""
EXACT = "_exact"
"""What the names of helpers end with that have as many digits."""


def shows_f32(kernel: ir.Kernel) -> bool:
    """Whether a kernel writes f32, and so would show each digit that is wrong."""
    return any(each.role == "out" and each.dtype == "f32" for each in kernel.params)


def op_text(
    name: str,
    dtype: str,
    operands: Sequence[str],
    *,
    is_exact: bool = False,
    is_once: bool = False,
    is_term: bool = False,
    is_below_most: bool = False,
) -> str:
    """An elementwise op on `operands`, all of `dtype` (of the operands, not of the result).

    `is_exact` asks for all of the dtype's digits where the usual spelling has less; `is_once` says
    that the op is there once a row, `is_term` that it goes into sums along the row alone, and
    `is_below_most` that it is of what is no more than zero, and zero once in its row.
    """
    table = _EXACT_ONCE if is_once else _TERMS if is_term else _EXACT
    if not is_exact:
        table = _BELOW_MOST if is_below_most else {}
    template = table.get((name, dtype)) or _OPS_BY_DTYPE[dtype].get(name) or OP_TEXT[name]
    return template.format(*operands, type=TRITON_TYPES[dtype].name)


COMBINE: Mapping[str, str] = {
    "sum": "_combine_sum",
    "prod": "_combine_prod",
    "max": "_combine_max",
    "min": "_combine_min",
    "any": "_combine_any",
    "all": "_combine_all",
    "logaddexp": "_combine_logaddexp",
}
"""The two-argument function of each reduction and scan."""


def combine_name(kind: str, dtype: str) -> str:
    """The combine function of a reduction; on booleans max is any and min is all."""
    if dtype == "bool":
        return COMBINE[{"max": "any", "min": "all"}.get(kind, kind)]
    if kind in ("max", "min") and dtype in ir.FLOATS:
        return f"{COMBINE[kind]}_nan"
    if (kind, dtype) == ("logaddexp", "f32"):
        return f"{COMBINE[kind]}_f32"
    return COMBINE[kind]


def arg_name(kind: str, dtype: str) -> str:
    """The combine function of an arg: (value, place) pairs, of equals the least place."""
    return f"_arg_{kind}{'_nan' if dtype in ir.FLOATS else ''}"


def later_arg_name(kind: str, dtype: str) -> str:
    """The same where the second place is behind the first."""
    return f"_later{arg_name(kind, dtype)}"


def at_best_name(dtype: str) -> str:
    """The function that leaves the places of what is the best, the last place elsewhere."""
    return f"_at_best{'_nan' if dtype in ir.FLOATS else ''}"


def _arg_helper(kind: str, *, has_nan: bool) -> tuple[str, ...]:
    comparison = {"max": ">=", "min": "<="}[kind]
    at_least, at_most = f"a {comparison} b", f"b {comparison} a"
    if has_nan:
        at_least, at_most = f"({at_least}) | (a != a)", f"({at_most}) | (b != b)"
    return (
        f"def _arg_{kind}{'_nan' if has_nan else ''}(a, i, b, j):",
        f"    first = ({at_least}) & ((({at_most}) == 0) | (i < j))",
        "    return tl.where(first, a, b), tl.where(first, i, j)",
    )


def _later_arg_helper(kind: str, *, has_nan: bool) -> tuple[str, ...]:
    better = {"max": "b > a", "min": "b < a"}[kind]
    if has_nan:
        better = f"({better}) | ((b != b) & (a == a))"
    return (
        f"def _later_arg_{kind}{'_nan' if has_nan else ''}(a, i, b, j):",
        f"    better = {better}",
        "    return tl.where(better, b, a), tl.where(better, j, i)",
    )


LOG1P = (
    0.005232691299170256, -0.029505226761102676, 0.07822593301534653, -0.13663244247436523,
    0.19106006622314453, -0.2484298199415207, 0.3331909775733948, -0.4999949336051941,
    0.9999999403953552,
)  # fmt: skip
"""Of log(1 + t) / t from 0 to 1, the last power first: an error of an ulp of f32, at most."""
_SCANNED = [(kind, dtype) for kind, dtypes in ir.SCANS.items() for dtype in dtypes]
_BEFORE: Mapping[str, tuple[str, ...]] = {
    f"_before{name}": (
        f"def _before{name}(a, b, a_2, b_2):",
        "    # All but the last of what is combined, and the last.",
        f"    return {name}({name}(a, b), a_2), b_2",
    )
    for name in dict.fromkeys(combine_name(*each) for each in _SCANNED)
}


def _softmax_helpers(suffix: str, *, term: str, factor: str) -> dict[str, tuple[str, ...]]:
    """What sums exponentials below a maximum that may grow: one for each term and each factor."""
    return {
        f"_exp_below{suffix}": (
            f"def _exp_below{suffix}(a, b):",
            "    # exp(a - b) for a <= b, 1 where both are the same infinity.",
            f"    return tl.where(a == b, 1.0, {factor}(a - b))",
        ),
        f"_online_softmax{suffix}": (
            f"def _online_softmax{suffix}(m, s, x):",
            "    # One exponential: either the sum or the new term keeps its scale.",
            f"    e = tl.where(m == x, 1.0, {term}(tl.abs(x - m) * -1.0))",
            f"    return tl.maximum(m, x, {KEEPS_NAN}), tl.where(x > m, s * e + 1.0, s + e)",
        ),
        f"_online_softmax_group{suffix}": (
            f"def _online_softmax_group{suffix}(m, s, x):",
            "    # One exponential an element, and one a group; an infinite maximum comes later.",
            "    last: tl.constexpr = len(x.shape) - 1",
            f"    top = tl.maximum(m, tl.reduce(x, last, _combine_max_nan), {KEEPS_NAN})",
            '    base = tl.where(tl.abs(top) == float("inf"), 0.0, top)',
            f"    terms = {term}(x - tl.expand_dims(base, last))",
            f"    return top, s * {term}(m - base) + tl.reduce(terms, last, _combine_sum)",
        ),
    }


HELPERS: Mapping[str, tuple[str, ...]] = {
    "_tanh": (
        "def _tanh(x):",
        "    # Odd polynomial near zero (Cephes tanhf), 1 - 2 / (exp(2|x|) + 1) elsewhere.",
        "    a = tl.abs(x)",
        "    s = x * x",
        "    p = -5.70498872745e-3 * s + 2.06390887954e-2",
        "    p = p * s - 5.37397155531e-2",
        "    p = p * s + 1.33314422036e-1",
        "    p = p * s - 3.33332819422e-1",
        "    near = p * s * x + x",
        "    far = 1.0 - 2.0 / (_exp_flushed(2.0 * a) + 1.0)",
        "    return tl.where(a < 0.625, near, tl.where(x < 0, far * -1.0, far))",
    ),
    "_rsqrt": (
        "def _rsqrt(x):",
        "    # One of Newton's steps beyond the approximation, where there is a number to correct.",
        "    y = tl.rsqrt(x)",
        "    rest = tl.fma(x * y, y * -1.0, tl.full(x.shape, 1.0, tl.float32))",
        "    return tl.where(tl.abs(rest) < 1.0, tl.fma(y * 0.5, rest, y), y)",
    ),
    "_row_quotient": (
        "def _row_quotient(x, y):",
        "    # As x / y is rounded: what x * (1 / y) misses of it is put right (Markstein, 1990).",
        "    # A denormal y is scaled up first, as x is: its reciprocal may be infinite.",
        "    scale = tl.where(tl.abs(y) < 1.1754943508222875e-38, 16777216.0, 1.0)",
        "    x, y = x * scale, y * scale",
        "    once = tl.div_rn(tl.full(y.shape, 1.0, tl.float32), y)",
        "    near = x * once",
        "    x = tl.broadcast_to(x, near.shape)",
        "    rest = tl.fma(near * -1.0, tl.broadcast_to(y, near.shape), x)",
        "    right = tl.fma(rest, tl.broadcast_to(once, near.shape), near)",
        '    return tl.where(tl.abs(rest) < float("inf"), right, near)',
    ),
    "_row_share": (
        "def _row_share(x, total):",
        "    # Within 1.5 ulp, and x / total is an approximation within 2; the total is 1 or more.",
        "    return x * tl.div_rn(tl.full(total.shape, 1.0, tl.float32), total)",
    ),
    "_wide": ("def _wide(x):", "    return x.to(tl.float64)"),
    "_floordiv": (
        "def _floordiv(a, b):",
        "    q = a // b",
        "    return tl.where((a % b != 0) & ((a < 0) ^ (b < 0)), q - 1, q)",
    ),
    "_mod": (
        "def _mod(a, b):",
        "    m = a % b",
        "    return tl.where((m != 0) & ((m < 0) ^ (b < 0)), m + b, m)",
    ),
    "_quotient": (
        "def _quotient(place, size, factor):",
        "    twice = (place + place).to(tl.uint32)",
        "    near = tl.umulhi(twice, factor.to(tl.uint32)).to(tl.int32)",
        "    return near + (place - near * size >= size).to(tl.int32)",
    ),
    "_remainder": (
        "def _remainder(place, size, factor):",
        "    twice = (place + place).to(tl.uint32)",
        "    rest = place - tl.umulhi(twice, factor.to(tl.uint32)).to(tl.int32) * size",
        "    return tl.minimum(rest.to(tl.uint32), (rest - size).to(tl.uint32)).to(tl.int32)",
    ),
    "_float_mod": (
        "def _float_mod(a, b):",
        "    m = libdevice.fmod(a, b)",
        "    return tl.where((m != 0) & ((m < 0) ^ (b < 0)), m + b, m)",
    ),
    "_float_floordiv": (
        "def _float_floordiv(a, b):",
        "    m = libdevice.fmod(a, b)",
        "    q = (a - m) / b",
        "    q = tl.where((m != 0) & ((m < 0) ^ (b < 0)), q - 1.0, q)",
        "    f = tl.floor(q)",
        "    f = tl.where(q - f > 0.5, f + 1.0, f)",
        "    return tl.where(b == 0, a / b, f)",
    ),
    "_combine_sum": ("def _combine_sum(a, b):", "    return a + b"),
    "_sum_of_parts": (
        "def _sum_of_parts(x):",
        "    # A thread adds its elements one by one: in two steps the sums lose fewer digits.",
        "    rows: tl.constexpr = x.shape[0]",
        "    columns: tl.constexpr = x.shape[1]",
        f"    parts = tl.reshape(x, [rows, {PARTS}, columns // {PARTS}])",
        "    return tl.reduce(tl.reduce(parts, 1, _combine_sum), 1, _combine_sum, keep_dims=True)",
    ),
    "_combine_prod": ("def _combine_prod(a, b):", "    return a * b"),
    "_combine_max": ("def _combine_max(a, b):", "    return tl.maximum(a, b)"),
    "_combine_min": ("def _combine_min(a, b):", "    return tl.minimum(a, b)"),
    "_combine_max_nan": (
        "def _combine_max_nan(a, b):",
        f"    return tl.maximum(a, b, {KEEPS_NAN})",
    ),
    "_combine_min_nan": (
        "def _combine_min_nan(a, b):",
        f"    return tl.minimum(a, b, {KEEPS_NAN})",
    ),
    "_combine_any": ("def _combine_any(a, b):", "    return a | b"),
    "_combine_all": ("def _combine_all(a, b):", "    return a & b"),
    "_combine_logaddexp": (
        "def _combine_logaddexp(a, b):",
        "    more = tl.where(a == b, 1.0, tl.exp(tl.abs(a - b) * -1.0))",
        f"    return tl.maximum(a, b, {KEEPS_NAN}) + libdevice.log1p(more)",
    ),
    "_combine_logaddexp_f32": (
        "def _combine_logaddexp_f32(a, b):",
        "    # log(1 + t) of t from 0 to 1: scans take it ten times an element;",
        "    # libdevice.log1p has more instructions than all the rest.",
        "    t = tl.where(a == b, 1.0, tl.exp(tl.abs(a - b) * -1.0))",
        f"    log = t * {LOG1P[0]} + {LOG1P[1]}",
        *(f"    log = log * t + {each}" for each in LOG1P[2:]),
        f"    return tl.maximum(a, b, {KEEPS_NAN}) + log * t",
    ),
    **_BEFORE,
    "_to_f8e4m3fn": (
        "def _to_f8e4m3fn(x):",
        "    # The hardware's cast saturates; beyond 464 the nearest number would not be finite.",
        '    return tl.where(tl.abs(x) > 464.0, float("nan"), x).to(tl.float8e4nv)',
    ),
    "_to_f8e5m2": (
        "def _to_f8e5m2(x):",
        "    # The hardware's cast saturates; from 61440 on the nearest number is infinite.",
        "    bits = x.to(tl.float8e5).to(tl.uint8, bitcast=True)",
        "    infinite = tl.where(x < 0, 0xFC, 0x7C).to(tl.uint8)",
        "    bits = tl.where(tl.abs(x) >= 61440.0, infinite, bits)",
        "    return bits.to(tl.float8e5, bitcast=True)",
    ),
    "_arg_max": _arg_helper("max", has_nan=False),
    "_arg_min": _arg_helper("min", has_nan=False),
    "_arg_max_nan": _arg_helper("max", has_nan=True),
    "_arg_min_nan": _arg_helper("min", has_nan=True),
    "_later_arg_max": _later_arg_helper("max", has_nan=False),
    "_later_arg_min": _later_arg_helper("min", has_nan=False),
    "_later_arg_max_nan": _later_arg_helper("max", has_nan=True),
    "_later_arg_min_nan": _later_arg_helper("min", has_nan=True),
    "_at_best": (
        "def _at_best(v, best, at, last: tl.constexpr):",
        "    return tl.where(v == best, at, last)",
    ),
    "_at_best_nan": (
        "def _at_best_nan(v, best, at, last: tl.constexpr):",
        "    return tl.where((v == best) | ((v != v) & (best != best)), at, last)",
    ),
    "_exp_term": (
        "def _exp_term(x):",
        "    # 2 ** (x * log2(e)), with what the constant's nearest f32 is less than it.",
        "    y = tl.fma(x, 1.925963033500992e-08, x * 1.4426950216293335)",
        "    return tl.inline_asm_elementwise(",
        '        "ex2.approx.ftz.f32 $0, $1;", "=r,r", [y], tl.float32, is_pure=True, pack=1',
        "    )",
    ),
    "_exp_flushed": (
        "def _exp_flushed(x):",
        "    y = x * 1.4426950408889634",
        "    return tl.inline_asm_elementwise(",
        '        "ex2.approx.ftz.f32 $0, $1;", "=r,r", [y], tl.float32, is_pure=True, pack=1',
        "    )",
    ),
    "_anew_i32": (
        "def _anew_i32(place):",
        "    return tl.inline_asm_elementwise(",
        '        "mov.b32 $0, $1;", "=r,r", [place], tl.int32, is_pure=False, pack=1',
        "    )",
    ),
    "_wide_bf16": (
        "def _wide_bf16(pairs, nothing):",
        "    bits = tl.inline_asm_elementwise(",
        '        "shl.b32 $0, $2, $3; and.b32 $1, $2, $5;", "=r,=r,r,r,r,r,r",',
        "        [pairs, nothing + 16, nothing - 0x10000], tl.int32, is_pure=True, pack=2,",
        "    )",
        "    return bits.to(tl.float32, bitcast=True)",
    ),
    "_wide_f16": (
        "def _wide_f16(pairs, nothing):",
        "    found = tl.inline_asm_elementwise(",
        '        "xor.b32 $0, $1, $2;", "=r,r,r,r", [pairs, nothing], pairs.dtype, is_pure=True,',
        "        pack=2,",
        "    )",
        "    return found.to(tl.float32)",
    ),
    "_anew_i64": (
        "def _anew_i64(place):",
        "    return tl.inline_asm_elementwise(",
        '        "mov.b64 $0, $1;", "=l,l", [place], tl.int64, is_pure=False, pack=1',
        "    )",
    ),
    **_softmax_helpers("", term="_exp_flushed", factor="_exp_flushed"),
    **_softmax_helpers(EXACT, term="_exp_term", factor="libdevice.exp"),
    "_tile_elements": (
        "def _tile_elements(tiles, across, n0, n1, R0, R1):",
        "    # Elements of an n0 by n1 row in its first tiles.",
        "    top = tiles // across * R0",
        "    height = tl.maximum(tl.minimum(n0 - top, R0), 0)",
        "    return tl.minimum(top, n0) * n1 + height * tl.minimum(tiles % across * R1, n1)",
    ),
    "_shifted_step": (
        "def _shifted_step(shifted, square, pivot, x):",
        "    delta = x - pivot",
        "    return shifted + delta, square + delta * delta",
    ),
    "_two_sums": ("def _two_sums(a, b, a_2, b_2):", "    return a + a_2, b + b_2"),
    "_shifted_group": (
        "def _shifted_group(shifted, square, pivot, x):",
        "    last: tl.constexpr = len(x.shape) - 1",
        "    delta = x - tl.expand_dims(pivot, last)",
        "    some, squares = tl.reduce((delta, delta * delta), last, _two_sums)",
        "    return shifted + some, square + squares",
    ),
    "_own_pivot": (
        "def _own_pivot(x, there):",
        "    last: tl.constexpr = len(x.shape) - 1",
        "    some, many = tl.reduce((x, there), last, _two_sums)",
        "    pivot = some / tl.maximum(many, 1.0)",
        "    return tl.where(tl.abs(pivot) < 1e30, pivot, 0.0)",
    ),
    "_own_group": (
        "def _own_group(shifted, square, count, pivot, x, there):",
        "    last: tl.constexpr = len(x.shape) - 1",
        "    delta = tl.where(there > 0.0, x - tl.expand_dims(pivot, last), 0.0)",
        "    some, squares = tl.reduce((delta, delta * delta), last, _two_sums)",
        "    return shifted + some, square + squares, count + tl.sum(there, last)",
    ),
    **IN_PHASE,
    "_of_thread": (
        "def _of_thread(x, there):",
        "    # Of elements that are not there, which are 0, nothing is counted.",
        "    last: tl.constexpr = len(x.shape) - 1",
        "    total, count = tl.reduce((x, there), last, _two_sums)",
        "    mean = total / tl.maximum(count, 1.0)",
        "    away = x - tl.expand_dims(mean, last) * there",
        "    return mean, tl.reduce(away * away, last, _combine_sum), count",
    ),
    "_met": (
        "def _met(mean, square, count, mean_2, square_2, count_2):",
        "    # Chan, Golub and LeVeque, Updating formulae, STAN-CS-79-773; an infinity stays one.",
        "    many = count + count_2",
        "    part = count_2 / tl.maximum(many, 1.0)",
        "    away = mean_2 - mean",
        '    met = tl.where(tl.abs(mean) == float("inf"), mean + mean_2, mean + away * part)',
        "    return met, square + square_2 + away * away * (count * part), many",
    ),
}
"""Functions that a kernel may call, without their decorator."""


def prelude(lines: Iterable[str]) -> list[str]:
    """Imports and helper functions that a kernel's lines need."""
    words = set(re.findall(r"\w+", "\n".join(lines)))
    for name in [each for each in HELPERS if each in words]:
        words.update(re.findall(r"\w+", "\n".join(HELPERS[name])))
    helpers = [body for name, body in HELPERS.items() if name in words]
    found = ["import triton", "import triton.language as tl"]
    if any("libdevice." in line for body in (*helpers, tuple(lines)) for line in body):
        found.append("from triton.language.extra import libdevice")
    for body in helpers:
        found += ["", "", "@triton.jit", *body]
    return [*found, "", ""]
