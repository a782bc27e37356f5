"""Elementary functions of f64 in the C prelude, as data.

All are in vectors, but for `pow` where no instruction rounds a product and a sum at once: that
calls the C library lane by lane. NaN, infinities, signed zeros and denormals come out as in C's
library. Greatest error against the exact value, in ulp, of what this module's test draws:

    exp 1.0, exp2 1.1, expm1 1.9, log 0.9, log2 0.7, log1p 0.8, tanh 2.2, erf 2.0, sin 0.8, cos 0.8,
    pow 1.0

The methods: exp, exp2 and expm1 are a Taylor series after Cody and Waite's two-part reduction;
tanh is a quotient of expm1; log, log2 and log1p are fdlibm's (e_log.c, e_log2.c, s_log1p.c), as
are sin and cos of what a reduction in three parts leaves (k_sin.c, k_cos.c), beyond 10^6 the C
library's; pow is the exponential of y log(x) in two parts, of which the second is what the first
lacks (Dekker, Numerische Mathematik 18, 1971), and log(x) a series in (x - 1) / (x + 1); erf has
13 pieces of degree 14, half apart and looked up in a table.
"""

from __future__ import annotations

import math

from nearhint_compiler.codegen.c.polynomial import horner
from nearhint_compiler.codegen.c.primitive import AVX2, AVX512, Row
from nearhint_compiler.codegen.c.tables_f64 import ERF

_F64 = ("f64",)

_EXP_TAIL = tuple(1 / math.factorial(power) for power in range(2, 14))
"""As far as what is left is below 2^-57 of the sum, for |r| <= log(2) / 2."""
_LOG_TAIL = (
    6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
    2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
    1.479819860511658591e-01,
)  # fmt: skip
_SIN_TAIL = (
    8.33333333332248946124e-03, -1.98412698298579493134e-04, 2.75573137070700676789e-06,
    -2.50507602534068634195e-08, 1.58969099521155010221e-10,
)  # fmt: skip
_COS_TAIL = (
    4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
    -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11,
)  # fmt: skip

_POW_TAIL = tuple(2 / (2 * power + 1) for power in range(2, 14))
"""log((1 + s) / (1 - s)) by powers of s^2 from s^5 on, to 2^-70 for |s| < 0.172."""

_SCALE = (
    Row(
        "scale",
        "/* y times 2 to the power n, rounded once. */\n"
        "static inline vf64 scale_f64(vf64 y, vf64 n) { return ${M}_scalef_pd(y, n); }\n",
        _F64,
        AVX512,
    ),
    Row(
        "scale",
        "/* y times 2 to the power n, |n| < 1100, rounded once for y in (0.5, 2). */\n"
        "static inline vf64 scale_f64(vf64 y, vf64 n)\n{\n"
        "    vi64 whole = (vi64)(n + 6755399441055744.0) - 0x4338000000000000, half = whole >> 1;\n"
        "    return y * (vf64)((half + 1023) << 52) * (vf64)((whole - half + 1023) << 52);\n}\n",
        _F64,
    ),
    Row(
        "choose",
        "/* a where all bits of m are set, b where none is. */\n"
        "static inline vf64 choose_f64(vi64 m, vf64 a, vf64 b)\n"
        "{\n    return (vf64)((m & (vi64)a) | (~m & (vi64)b));\n}\n",
        _F64,
    ),
    Row(
        "bounded",
        "/* x between low and high; NaN stays. */\n"
        "static inline vf64 bounded_f64(vf64 x, double low, double high)\n{\n"
        "    x = choose_f64(x < low, splat_f64(low), x);\n"
        "    return choose_f64(x > high, splat_f64(high), x);\n}\n",
        _F64,
        needs=("splat f64", "choose f64"),
    ),
)

_LOGARITHMS = (
    Row(
        "log_parts",
        "/* x = 2 to the power e times (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), x positive and\n"
        "   finite; log(1 + f) = f - (*half - the result). */\n"
        "static inline vf64 log_parts_f64(vf64 x, vf64 *e, vf64 *f, vf64 *half)\n{\n"
        "    vi64 tiny = x < 0x1p-1022;\n"
        "    vi64 shifted = (vi64)choose_f64(tiny, x * 0x1p54, x) - 0x3fe6a09e667f3bcd;\n"
        "    *e = __builtin_convertvector((shifted >> 52) - (tiny & 54), vf64);\n"
        "    *f = (vf64)((shifted & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd) - 1.0;\n"
        "    *half = 0.5 * *f * *f;\n"
        "    vf64 s = *f / (*f + 2.0), u = s * s, p;\n"
        + horner("p", "u", _LOG_TAIL, dtype="f64")
        + "    return s * (*half + p * u);\n}\n",
        _F64,
        needs=("splat f64", "mad f64", "choose f64"),
    ),
    Row(
        "log_ends",
        "/* y, but the logarithm of what is not positive and finite. */\n"
        "static inline vf64 log_ends_f64(vf64 x, vf64 y)\n{\n"
        "    y = choose_f64((x > 0.0) & (x < __builtin_inf()), y, x + x);\n"
        "    y = choose_f64(x == 0.0, splat_f64(-__builtin_inf()), y);\n"
        '    return choose_f64(x < 0.0, splat_f64(__builtin_nan("")), y);\n}\n',
        _F64,
        needs=("splat f64", "choose f64"),
    ),
    Row(
        "log",
        "static inline vf64 log_f64(vf64 x)\n{\n"
        "    vf64 e, f, half, y = log_parts_f64(x, &e, &f, &half);\n"
        "    y = y + e * 1.90821492927058770002e-10;\n"
        "    return log_ends_f64(x, e * 6.93147180369123816490e-01 - ((half - y) - f));\n}\n",
        _F64,
        needs=("log_parts f64", "log_ends f64"),
    ),
    Row(
        "log1p",
        "static inline vf64 log1p_f64(vf64 x)\n{\n"
        "    vf64 u = 1.0 + x, lost = choose_f64(x < 1.0, x - (u - 1.0), 1.0 - (u - x));\n"
        "    vf64 e, f, half, y = log_parts_f64(u, &e, &f, &half);\n"
        "    y = y + (e * 1.90821492927058770002e-10 + lost / u);\n"
        "    y = log_ends_f64(u, e * 6.93147180369123816490e-01 - ((half - y) - f));\n"
        "    return choose_f64(x == 0.0, x, y);\n}\n",
        _F64,
        needs=("choose f64", "log_parts f64", "log_ends f64"),
    ),
    Row(
        "log2",
        "static inline vf64 log2_f64(vf64 x)\n{\n"
        "    vf64 e, f, half, y = log_parts_f64(x, &e, &f, &half);\n"
        "    vf64 high = (vf64)((vi64)(f - half) & -0x100000000), low = (f - high) - half + y;\n"
        "    vf64 top = high * 1.44269504072144627571e+00;\n"
        "    low = (low + high) * 1.67517131648865118353e-10 + low * 1.44269504072144627571e+00;\n"
        "    vf64 sum = e + top;\n"
        "    return log_ends_f64(x, low + ((e - sum) + top) + sum);\n}\n",
        _F64,
        needs=("log_parts f64", "log_ends f64"),
    ),
    Row(
        "log10",
        f"static inline vf64 log10_f64(vf64 x) {{ return log2_f64(x) * {math.log10(2)!r}; }}\n",
        _F64,
        needs=("log2 f64",),
    ),
)

_EXPONENTIALS = (
    Row(
        "exp",
        "static inline vf64 exp_f64(vf64 x)\n{\n"
        "    x = bounded_f64(x, -746.0, 710.0);\n"
        "    vf64 n = (x * 1.4426950408889634 + 6755399441055744.0) - 6755399441055744.0;\n"
        "    vf64 r = mad_f64(n, splat_f64(-6.93147180369123816490e-01), x), p;\n"
        "    r = mad_f64(n, splat_f64(-1.90821492927058770002e-10), r);\n"
        + horner("p", "r", _EXP_TAIL, dtype="f64")
        + "    return scale_f64(mad_f64(p * r, r, r) + 1.0, n);\n}\n",
        _F64,
        needs=("splat f64", "mad f64", "bounded f64", "scale f64"),
    ),
    Row(
        "exp2",
        "static inline vf64 exp2_f64(vf64 x)\n{\n"
        "    x = bounded_f64(x, -1080.0, 1025.0);\n"
        "    vf64 n = (x + 6755399441055744.0) - 6755399441055744.0;\n"
        f"    vf64 r = (x - n) * {math.log(2)!r}, p;\n"
        + horner("p", "r", _EXP_TAIL, dtype="f64")
        + "    return scale_f64(mad_f64(p * r, r, r) + 1.0, n);\n}\n",
        _F64,
        needs=("splat f64", "mad f64", "bounded f64", "scale f64"),
    ),
    Row(
        "expm1",
        "static inline vf64 expm1_f64(vf64 x)\n{\n"
        "    vf64 c = bounded_f64(x, -40.0, 710.0);\n"
        "    vf64 n = (c * 1.4426950408889634 + 6755399441055744.0) - 6755399441055744.0;\n"
        "    vf64 r = mad_f64(n, splat_f64(-6.93147180369123816490e-01), c), p;\n"
        "    r = mad_f64(n, splat_f64(-1.90821492927058770002e-10), r);\n"
        + horner("p", "r", _EXP_TAIL, dtype="f64")
        + "    p = mad_f64(p * r, r, r);\n"
        "    vi64 whole = (vi64)(n + 6755399441055744.0) - 0x4338000000000000;\n"
        "    vf64 half = (vf64)((whole + 1022) << 52);\n"
        "    p = mad_f64(p, half, half - 0.5);\n"
        "    return choose_f64(x == 0.0, x, p + p);\n}\n",
        _F64,
        needs=("splat f64", "mad f64", "bounded f64", "choose f64"),
    ),
    Row(
        "tanh",
        "static inline vf64 tanh_f64(vf64 x)\n{\n"
        "    vf64 t = expm1_f64(2.0 * bounded_f64(abs_f64(x), 0.0, 22.0));\n"
        "    vi64 large = t > 2.0;\n"
        "    vf64 part = choose_f64(large, splat_f64(2.0), t) / (t + 2.0);\n"
        "    part = choose_f64(large, 1.0 - part, part);\n"
        "    return (vf64)((vi64)part | ((vi64)x & (vi64) - (vf64){0}));\n}\n",
        _F64,
        needs=("splat f64", "abs f64", "bounded f64", "choose f64", "expm1 f64"),
    ),
)

_ERROR_FUNCTION = (
    Row(
        "lookup",
        "/* table[index modulo 16] */\n"
        "static inline vf64 lookup_f64(const double *table, vi64 index)\n"
        "{\n    return _mm512_permutex2var_pd(*(const uf64 *)table, (__m512i)index,"
        " *(const uf64 *)(table + 8));\n}\n",
        _F64,
        AVX512,
        bits=(512,),
    ),
    Row(
        "lookup",
        "/* table[index modulo 16] */\n"
        "static inline vf64 lookup_f64(const double *table, vi64 index)\n"
        "{\n    vf64 found;\n    for (int l = 0; l < $W; l++)\n"
        "        found[l] = table[index[l] & 15];\n    return found;\n}\n",
        _F64,
    ),
    Row(
        "erf",
        "".join(
            f"static const double erf_table_{power}[16] = {{\n    "
            + ", ".join(map(repr, table))
            + "};\n"
            for power, table in enumerate(ERF)
        )
        + "static inline vf64 erf_f64(vf64 x)\n{\n"
        "    vf64 a = bounded_f64(abs_f64(x), 0.0, 6.0);\n"
        "    vf64 place = a + 3377699720527872.0, t = a - (place - 3377699720527872.0);\n"
        f"    vf64 p = lookup_f64(erf_table_{len(ERF) - 1}, (vi64)place);\n"
        + "".join(
            f"    p = mad_f64(p, t, lookup_f64(erf_table_{power}, (vi64)place));\n"
            for power in reversed(range(len(ERF) - 1))
        )
        + "    return (vf64)((vi64)p | ((vi64)x & (vi64) - (vf64){0}));\n}\n",
        _F64,
        needs=("mad f64", "abs f64", "bounded f64", "lookup f64"),
    ),
)


def _or_library(name: str, quadrants: str, at_zero: str) -> Row:
    """The sine or cosine, for large arguments the C library's, lane by lane."""
    return Row(
        name,
        f"static inline vf64 {name}_f64(vf64 x)\n{{\n"
        "    vi64 quadrant, is_large = ~(abs_f64(x) <= 1e6);\n"
        "    vf64 rest, r = quarter_turns_f64(x, &quadrant, &rest);\n"
        f"    vf64 y = sin_or_cos_f64(r, rest, quadrant{quadrants});\n"
        f"{at_zero}"
        "    if (__builtin_expect(any_lane_bool(__builtin_convertvector(is_large, vbool)), 0))\n"
        "        for (int l = 0; l < $W; l++)\n"
        f"            y[l] = is_large[l] ? __builtin_{name}(x[l]) : y[l];\n"
        "    return y;\n}\n",
        _F64,
        needs=("abs f64", "choose f64", "any_lane bool", "quarter_turns f64", "sin_or_cos f64"),
    )


_TRIGONOMETRY = (
    Row(
        "quarter_turns",
        "/* x = *quadrant * pi/2 + the result + *rest, for |x| <= 10^6: the first two of three\n"
        "   parts of pi/2 have 33 bits, so that their multiples are exact. */\n"
        "static inline vf64 quarter_turns_f64(vf64 x, vi64 *quadrant, vf64 *rest)\n{\n"
        "    vf64 n = x * 0.6366197723675814 + 6755399441055744.0;\n"
        "    *quadrant = (vi64)n;\n"
        "    n = n - 6755399441055744.0;\n"
        "    vf64 first = x - n * 1.57079632673412561417e+00;\n"
        "    vf64 second = n * 6.07710050630396597660e-11, r = first - second;\n"
        "    vf64 third = n * 2.02226624879595063154e-21 - ((first - r) - second), y = r - third;\n"
        "    *rest = (r - y) - third;\n    return y;\n}\n",
        _F64,
    ),
    Row(
        "sin_or_cos",
        "/* The sine of r + rest + quadrant * pi/2, |r| <= pi/4. */\n"
        "static inline vf64 sin_or_cos_f64(vf64 r, vf64 rest, vi64 quadrant)\n{\n"
        "    vf64 u = r * r, cube = u * r, s, c;\n"
        + horner("s", "u", _SIN_TAIL, dtype="f64")
        + "    s = u * (0.5 * rest - cube * s) - rest;\n"
        "    s = r - (s + cube * 1.66666666666666324348e-01);\n"
        + horner("c", "u", _COS_TAIL, dtype="f64")
        + "    vf64 half = 0.5 * u, w = 1.0 - half;\n"
        "    c = w + (((1.0 - w) - half) + (u * (u * c) - r * rest));\n"
        "    s = choose_f64((quadrant & 1) != 0, c, s);\n"
        "    return (vf64)((vi64)s ^ (quadrant & 2) << 62);\n}\n",
        _F64,
        needs=("splat f64", "mad f64", "choose f64"),
    ),
    _or_library("sin", "", "    y = choose_f64(x == 0.0, x, y);\n"),
    _or_library("cos", " + 1", ""),
    Row(
        "tan",
        "static inline vf64 tan_f64(vf64 x) { return sin_f64(x) / cos_f64(x); }\n",
        _F64,
        needs=("sin f64", "cos f64"),
    ),
)

_POWER_TEXT = (
    "/* The logarithm of x, positive and finite, and in *rest what the result lacks of it. */\n"
    "static inline vf64 log_pair_f64(vf64 x, vf64 *rest)\n{\n"
    "    vi64 tiny = x < 0x1p-1022;\n"
    "    vi64 shifted = (vi64)choose_f64(tiny, x * 0x1p54, x) - 0x3fe6a09e667f3bcd;\n"
    "    vf64 e = __builtin_convertvector((shifted >> 52) - (tiny & 54), vf64);\n"
    "    vf64 m = (vf64)((shifted & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd), f = m - 1.0;\n"
    "    vf64 g = m + 1.0, b = g - m, g_rest = (m - (g - b)) + (1.0 - b);\n"
    "    vf64 s = f / g, s_rest = (mad_f64(-s, g, f) - s * g_rest) / g;\n"
    "    vf64 u = s * s, u_rest = mad_f64(s, s, -u) + 2.0 * s * s_rest;\n"
    "    vf64 square = u * u, p, q;\n"
    + horner("p", "square", _POW_TAIL[::2], dtype="f64")
    + horner("q", "square", _POW_TAIL[1::2], dtype="f64")
    + "    p = mad_f64(q, u, p) * u;\n"
    "    vf64 t = p + 0x1.5555555555555p-1;\n"
    "    vf64 t_rest = (0x1.5555555555555p-1 - t) + p + 0x1.5555555555555p-55;\n"
    "    vf64 w = s * u, w_rest = mad_f64(s, u, -w) + (s * u_rest + s_rest * u);\n"
    "    vf64 v = w * t, v_rest = mad_f64(w, t, -v) + (w * t_rest + w_rest * t);\n"
    "    vf64 whole = e * 6.93147180369123816490e-01, first = whole + 2.0 * s;\n"
    "    vf64 first_rest = (whole - first) + 2.0 * s, sum = first + v;\n"
    "    *rest = (((first - sum) + v) + first_rest)\n"
    "        + (2.0 * s_rest + v_rest + e * 1.90821492927058770002e-10);\n"
    "    return sum;\n}\n"
    "static inline vf64 pow_f64(vf64 x, vf64 y)\n{\n"
    "    const vf64 a = abs_f64(x), infinite = splat_f64(__builtin_inf());\n"
    "    vf64 low, high = log_pair_f64(a, &low);\n"
    "    high = choose_f64((a > 0.0) & (a < infinite), high, a + a);\n"
    "    high = choose_f64(a == 0.0, -infinite, high);\n"
    "    vf64 product = y * high, rest = mad_f64(y, high, -product) + y * low;\n"
    "    rest = choose_f64(abs_f64(product) < 800.0, rest, splat_f64(0.0));\n"
    "    vf64 h = product + rest, l = choose_f64(rest == 0.0, rest, (product - h) + rest);\n"
    "    h = bounded_f64(h, -746.0, 710.0);\n"
    "    vf64 n = (h * 1.4426950408889634 + 6755399441055744.0) - 6755399441055744.0;\n"
    "    vf64 near = mad_f64(n, splat_f64(-6.93147180369123816490e-01), h), p;\n"
    "    vf64 r = mad_f64(n, splat_f64(-1.90821492927058770002e-10), near);\n"
    "    l = l + mad_f64(n, splat_f64(-1.90821492927058770002e-10), near - r);\n"
    "    vf64 square = r * r, q;\n"
    + horner("p", "square", _EXP_TAIL[::2], dtype="f64")
    + horner("q", "square", _EXP_TAIL[1::2], dtype="f64")
    + "    vf64 tail = mad_f64(q, r, p) * square, power = r + (tail + mad_f64(l, r + tail, l));\n"
    "    power = scale_f64(power + 1.0, n);\n"
    "    const vi64 is_whole = floor_f64(y) == y;\n"
    "    const vi64 is_odd = is_whole & (floor_f64(0.5 * y) != 0.5 * y);\n"
    "    power = choose_f64(a == 1.0, splat_f64(1.0), power);\n"
    "    power = (vf64)((vi64)power ^ (is_odd & (vi64)x & (vi64) - (vf64){0}));\n"
    "    const vi64 has_none = (x < 0.0) & (x > -infinite) & ~is_whole;\n"
    '    power = choose_f64(has_none, splat_f64(__builtin_nan("")), power);\n'
    "    return choose_f64(y == 0.0, splat_f64(1.0), power);\n}\n"
)
_POWER_NEEDS = tuple(
    f"{name} f64" for name in ("splat", "mad", "abs", "choose", "bounded", "scale", "floor")
)
_POWER = (
    Row("pow", _POWER_TEXT, _F64, AVX2, needs=_POWER_NEEDS),
    Row("pow", _POWER_TEXT, _F64, AVX512, needs=_POWER_NEEDS, bits=(1024,)),
    Row(
        "pow",
        "static inline vf64 pow_f64(vf64 x, vf64 y)\n"
        "{\n    for (int l = 0; l < $W; l++)\n"
        "        x[l] = __builtin_pow(x[l], y[l]);\n    return x;\n}\n",
        _F64,
    ),
)
MATH_F64_ROWS: tuple[Row, ...] = (
    *_SCALE, *_LOGARITHMS, *_EXPONENTIALS, *_ERROR_FUNCTION, *_TRIGONOMETRY, *_POWER,
)  # fmt: skip
