"""Elementary functions of the C prelude, as data.

f32 functions are vector polynomials; their coefficients were fitted to least maximum relative
error on the reduced interval and rounded to f32 one after another. NaN, infinities, signed zeros
and denormals come out as in C's library. Greatest error against the exact value, in ulp, over all
finite f32 arguments (the test of this module samples them):

    exp 1.1, exp2 0.9, expm1 1.6, log 0.9, log2 1.4, log10 1.1, log1p 1.0, tanh 1.4, erf 2.3,
    sigmoid 2.6 (but 0 where it is below 2^-126, as eager's), sin 1.6, cos 1.6, tan 1.3

The methods: Cody and Waite's two-part reduction (exp, log), one in three parts (sin, cos, tan,
which takes what that leaves beyond an f32, too), from 2^15 on in f64, with Payne and Hanek's for
the largest arguments, for erf 32 pieces looked up in registers where a vector has 16 lanes,
elsewhere the pair x + x P(x^2), 1 - exp(-Q(|x|)) (N. Juffa). A power in f32 is 2 to the power
y log2(x) in f64, rounded once (0.51 ulp).

Those of f64 are in `math_f64`.
"""

from __future__ import annotations

import math

from nearhint_compiler.codegen.c.polynomial import horner
from nearhint_compiler.codegen.c.primitive import AVX2, AVX512, Row
from nearhint_compiler.codegen.c.tables import ERF_OVER_X
from nearhint_compiler.ir.nodes import FLOATS

_F32 = ("f32",)


_EXP_TAIL = (0.49999994, 0.16666521, 0.041668274, 0.008368686, 0.0013820136)
_EXP2_TAIL = (0.6931472, 0.24022648, 0.055503596, 0.009618503, 0.0013390997, 0.00015327803)
_LOG_TAIL = (
    0.3333333, -0.2500082, 0.20001242, -0.16623409, 0.14201581, -0.13159613, 0.12762198,
    -0.07636395,
)  # fmt: skip
_TANH_SMALL = (-0.33333272, 0.13331144, -0.053713348, 0.02054932, -0.005601348)
_ERF_SMALL = (
    0.12837917, -0.376126, 0.1128322, -0.026837783, 0.005157802, -0.0007746901, 7.0097917e-05,
)  # fmt: skip
_ERF_LARGE = (
    0.0003415131, 1.1270893, 0.6381447, 0.10310692, -0.021838142, 0.0029476744, -0.00018638004,
)  # fmt: skip
_SIN = (-0.16666667, 0.00833338, -0.00019853498, 2.8372472e-06)
_TAN = (
    0.33333349, 0.13332674, 0.054059174, 0.021284554, 0.010832308, 9.1509108e-05, 0.0043762517,
)  # fmt: skip
_COS = (0.041666668, -0.001388898, 2.4822008e-05, -2.8878452e-07)

_POW_LOG2 = tuple(2 / math.log(2) / (2 * power + 1) for power in range(7))
"""log2((1 + s) / (1 - s)) over s by powers of s^2, to 2^-39 for |s| < 0.172."""
_POW_EXP = tuple(1 / math.factorial(power) for power in range(9))
"""To 2^-32."""

_SCALE = (
    Row(
        "scale",
        "/* y times 2 to the power n, |n| < 300, rounded once. */\n"
        "static inline vf32 scale_f32(vf32 y, vf32 n) { return ${M}_scalef_ps(y, n); }\n",
        _F32,
        AVX512,
    ),
    Row(
        "scale",
        "/* y times 2 to the power n, |n| < 250, rounded once for y in (0.5, 2). */\n"
        "static inline vf32 scale_f32(vf32 y, vf32 n)\n{\n"
        "    vi32 whole = __builtin_convertvector(n, vi32), half = whole >> 1;\n"
        "    return y * (vf32)((half + 127) << 23) * (vf32)((whole - half + 127) << 23);\n}\n",
        _F32,
    ),
    Row(
        "clamp",
        "/* x between low and high; NaN stays. */\n"
        "static inline vf32 clamp_f32(vf32 x, float low, float high)\n{\n"
        "    return ${M}_min_ps(splat_f32(high), ${M}_max_ps(splat_f32(low), x));\n}\n",
        _F32,
        AVX2,
        needs=("splat f32",),
    ),
    Row(
        "clamp",
        "/* x between low and high; NaN stays. */\n"
        "static inline vf32 clamp_f32(vf32 x, float low, float high)\n{\n"
        "    return sel_f32(x < low, splat_f32(low), sel_f32(x > high, splat_f32(high), x));\n}\n",
        _F32,
        needs=("splat f32", "sel f32"),
    ),
    Row(
        "nearest",
        "/* x rounded to an integer, |x| < 2 to the power 22. */\n"
        "static inline vf32 nearest_f32(vf32 x) { return (x + 12582912.0f) - 12582912.0f; }\n",
        _F32,
    ),
)

_EXPONENTIALS = (
    Row(
        "exp",
        "static inline vf32 exp_f32(vf32 x)\n{\n"
        "    x = clamp_f32(x, -104.0f, 89.0f);\n"
        "    vf32 n = nearest_f32(x * 1.442695041f);\n"
        "    vf32 r = mad_f32(n, splat_f32(-0.693359375f), x);\n"
        "    r = mad_f32(n, splat_f32(2.12194440e-4f), r);\n"
        "    vf32 p;\n"
        + horner("p", "r", _EXP_TAIL)
        + "    p = mad_f32(p * r, r, r) + 1.0f;\n    return scale_f32(p, n);\n}\n",
        _F32,
        needs=("splat f32", "mad f32", "clamp f32", "nearest f32", "scale f32"),
    ),
    Row(
        "exp2",
        "static inline vf32 exp2_f32(vf32 x)\n{\n"
        "    x = clamp_f32(x, -151.0f, 129.0f);\n"
        "    vf32 n = nearest_f32(x), r = x - n, p;\n"
        + horner("p", "r", _EXP2_TAIL)
        + "    return scale_f32(mad_f32(p, r, splat_f32(1.0f)), n);\n}\n",
        _F32,
        needs=("splat f32", "mad f32", "clamp f32", "nearest f32", "scale f32"),
    ),
    Row(
        "expm1",
        "static inline vf32 expm1_f32(vf32 x)\n{\n"
        "    vf32 c = clamp_f32(x, -20.0f, 89.0f);\n"
        "    vf32 n = nearest_f32(c * 1.442695041f);\n"
        "    vf32 r = mad_f32(n, splat_f32(-0.693359375f), c);\n"
        "    r = mad_f32(n, splat_f32(2.12194440e-4f), r);\n"
        "    vf32 p;\n" + horner("p", "r", _EXP_TAIL) + "    p = mad_f32(p * r, r, r);\n"
        "    vf32 half = (vf32)((__builtin_convertvector(n, vi32) + 126) << 23);\n"
        "    half = sel_f32(n == n, half, n);\n"
        "    p = mad_f32(p, half, half - 0.5f);\n"
        "    return sel_f32(x == 0.0f, x, p + p);\n}\n",
        _F32,
        needs=("splat f32", "mad f32", "clamp f32", "nearest f32", "sel f32"),
    ),
    Row(
        "sigmoid",
        "static inline $V sigmoid_$T($V x) { return 1 / (1 + exp_$T(-x)); }\n",
        FLOATS,
        needs=("exp $T",),
    ),
    Row(
        "tanh",
        "static inline vf32 tanh_f32(vf32 x)\n{\n"
        "    vf32 a = abs_f32(x), u = x * x, p;\n"
        + horner("p", "u", _TANH_SMALL)
        + "    p = mad_f32(p * u, x, x);\n"
        "    vf32 large = 1.0f - 2.0f / (exp_f32(a + a) + 1.0f);\n"
        "    p = sel_f32(a < 0.64f, p, large);\n"
        "    return (vf32)((vi32)p | ((vi32)x & (vi32) - (vf32){0}));\n}\n",
        _F32,
        needs=("splat f32", "mad f32", "abs f32", "exp f32", "sel f32"),
    ),
    Row(
        "erf",
        "".join(
            f"static const float erf_table_{power}[32] = {{\n    "
            + ", ".join(f"{value!r}f" for value in table)
            + "};\n"
            for power, table in enumerate(ERF_OVER_X)
        )
        + "static inline vf32 erf_f32(vf32 x)\n{\n"
        "    vf32 a = clamp_f32(abs_f32(x), 0.0f, 3.937f);\n"
        "    vf32 place = a + 1572864.0f, t = a - (place - 1572864.0f);\n"
        "    vf32 p = lookup_f32(erf_table_4, (vi32)place);\n"
        + "".join(
            f"    p = mad_f32(p, t, lookup_f32(erf_table_{power}, (vi32)place));\n"
            for power in (3, 2, 1, 0)
        )
        + "    return p * (vf32)((vi32)a | ((vi32)x & (vi32) - (vf32){0}));\n}\n",
        _F32,
        AVX512,
        needs=("mad f32", "abs f32", "clamp f32", "lookup f32"),
        bits=(512,),
    ),
    Row(
        "erf",
        "static inline vf32 erf_f32(vf32 x)\n{\n"
        "    vf32 a = abs_f32(x), u = x * x, p, q;\n"
        + horner("p", "u", _ERF_SMALL)
        + "    p = mad_f32(p, x, x);\n"
        "    a = clamp_f32(a, 0.0f, 4.0f);\n"
        + horner("q", "a", _ERF_LARGE)
        + "    vf32 large = 1.0f - exp_f32(-q);\n"
        "    large = (vf32)((vi32)large | ((vi32)x & (vi32) - (vf32){0}));\n"
        "    return sel_f32(a < 1.12f, p, large);\n}\n",
        _F32,
        needs=("splat f32", "mad f32", "abs f32", "exp f32", "sel f32", "clamp f32"),
    ),
)

_LOOKUP = (
    Row(
        "lookup",
        "/* table[index modulo 32] */\n"
        "static inline vf32 lookup_f32(const float *table, vi32 index)\n"
        "{\n    return _mm512_permutex2var_ps(*(const uf32 *)table, (__m512i)index,"
        " *(const uf32 *)(table + 16));\n}\n",
        _F32,
        AVX512,
        bits=(512,),
    ),
)

_LOGARITHMS = (
    Row(
        "log_parts",
        "/* x = 2 to the power e times (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), x positive and\n"
        "   finite; returns f. */\n"
        "static inline vf32 log_parts_f32(vf32 x, vf32 *e)\n{\n"
        "    vbool tiny = x < 1.17549435e-38f;\n"
        "    vi32 bits = (vi32)sel_f32(tiny, x * 8388608.0f, x);\n"
        "    vi32 shifted = bits - 0x3f3504f3;\n"
        "    *e = __builtin_convertvector((shifted >> 23) - (tiny & 23), vf32);\n"
        "    return (vf32)((shifted & 0x007fffff) + 0x3f3504f3) - 1.0f;\n}\n",
        _F32,
        needs=("sel f32",),
    ),
    Row(
        "log_tail",
        "/* log(1 + f) - f, for f of log_parts. */\n"
        "static inline vf32 log_tail_f32(vf32 f)\n{\n    vf32 p, u = f * f;\n"
        + horner("p", "f", _LOG_TAIL)
        + "    return mad_f32(p * f, u, u * -0.5f);\n}\n",
        _F32,
        needs=("splat f32", "mad f32"),
    ),
    Row(
        "log_ends",
        "/* y, but the logarithm of what is not positive and finite. */\n"
        "static inline vf32 log_ends_f32(vf32 x, vf32 y)\n{\n"
        "    y = sel_f32((x > 0.0f) & (x < __builtin_inff()), y, x + x);\n"
        "    y = sel_f32(x == 0.0f, splat_f32(-__builtin_inff()), y);\n"
        "    return sel_f32(x < 0.0f, splat_f32(__builtin_nanf(\"\")), y);\n}\n",
        _F32,
        needs=("splat f32", "sel f32"),
    ),
    Row(
        "log",
        "static inline vf32 log_f32(vf32 x)\n{\n"
        "    vf32 e, f = log_parts_f32(x, &e);\n"
        "    vf32 y = mad_f32(e, splat_f32(-2.12194440e-4f), log_tail_f32(f)) + f;\n"
        "    return log_ends_f32(x, mad_f32(e, splat_f32(0.693359375f), y));\n}\n",
        _F32,
        needs=("splat f32", "mad f32", "log_parts f32", "log_tail f32", "log_ends f32"),
    ),
    Row(
        "log2",
        "static inline vf32 log2_f32(vf32 x)\n{\n"
        "    vf32 e, f = log_parts_f32(x, &e), t = log_tail_f32(f);\n"
        "    vf32 y = mad_f32(t, splat_f32(1.44269504f), f * 0.44269504f);\n"
        "    return log_ends_f32(x, (y + f) + e);\n}\n",
        _F32,
        needs=("splat f32", "mad f32", "log_parts f32", "log_tail f32", "log_ends f32"),
    ),
    Row(
        "log10",
        "/* Half of f is exact, and so is e times the first part of log10(2). */\n"
        "static inline vf32 log10_f32(vf32 x)\n{\n"
        "    vf32 e, f = log_parts_f32(x, &e), t = log_tail_f32(f);\n"
        "    vf32 y = mad_f32(t, splat_f32(0.43429448f), f * -0.065705518f);\n"
        "    y = mad_f32(e, splat_f32(4.60503898e-06f), y) + f * 0.5f;\n"
        "    return log_ends_f32(x, mad_f32(e, splat_f32(0.301025390625f), y));\n}\n",
        _F32,
        needs=("splat f32", "mad f32", "log_parts f32", "log_tail f32", "log_ends f32"),
    ),
    Row(
        "log1p",
        "static inline vf32 log1p_f32(vf32 x)\n{\n"
        "    vf32 u = 1.0f + x, lost = sel_f32(x < 1.0f, x - (u - 1.0f), 1.0f - (u - x));\n"
        "    vf32 e, f = log_parts_f32(u, &e);\n"
        "    vf32 y = mad_f32(e, splat_f32(-2.12194440e-4f), log_tail_f32(f) + lost / u) + f;\n"
        "    y = log_ends_f32(u, mad_f32(e, splat_f32(0.693359375f), y));\n"
        "    return sel_f32(abs_f32(x) < 1e-10f, x, y);\n}\n",
        _F32,
        needs=(
            "splat f32", "mad f32", "abs f32", "sel f32", "log_parts f32", "log_tail f32",
            "log_ends f32",
        ),
    ),
)  # fmt: skip

_POWER = (
    Row(
        "pow",
        "/* Compared is in f32 alone: vectors of f64 may be two registers. */\n"
        "static inline vf32 pow_f32(vf32 x, vf32 y)\n{\n"
        "    vf32 size = abs_f32(x), half = y * 0.5f;\n"
        "    vi32 whole = trunc_f32(y) == y, odd = whole & (trunc_f32(half) != half);\n"
        "    vi64 shifted = (vi64)__builtin_convertvector(size, vf64) - 0x3fe6a09e667f3bcd;\n"
        "    vf64 e = (vf64)((shifted >> 52) + 0x4338000000000000) - 6755399441055744.0;\n"
        "    vf64 f = (vf64)((shifted & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd) - 1.0;\n"
        "    vf64 s = f / (f + 2.0), u = s * s, p;\n"
        + horner("p", "u", _POW_LOG2, dtype="f64")
        + "    vf64 t = mad_f64(p, s, e) * __builtin_convertvector(y, vf64);\n"
        "    vf64 n = (t + 6755399441055744.0) - 6755399441055744.0;\n"
        f"    vf64 r = (t - n) * {math.log(2)!r};\n"
        + horner("p", "r", _POW_EXP, dtype="f64")
        + "    vi64 power = (vi64)(n + 6755399441055744.0) - 0x4338000000000000 + 1023;\n"
        "    vf32 z = __builtin_convertvector(p * (vf64)(power << 52), vf32);\n"
        "    const vf32 none = splat_f32(0.0f), endless = splat_f32(__builtin_inff());\n"
        "    vf32 places = __builtin_convertvector(t, vf32);\n"
        "    vi32 ends = (size == 0.0f) | (size == __builtin_inff());\n"
        "    vi32 grows = sel_i32(ends, (size == 0.0f) ^ (y > 0.0f), places > 0.0f);\n"
        "    vf32 end = sel_f32(grows, endless, none);\n"
        "    z = sel_f32(ends | (abs_f32(places) > 300.0f), end, z);\n"
        "    z = sel_f32((x == x) & (y == y), z, x + y);\n"
        "    z = sel_f32((y == 0.0f) | (x == 1.0f) | ((size == 1.0f) & (y == y)),"
        " splat_f32(1.0f), z);\n"
        "    z = sel_f32((x < 0.0f) & ~whole & (size < __builtin_inff()),"
        ' splat_f32(__builtin_nanf("")), z);\n'
        "    return (vf32)((vi32)z ^ (odd & (vi32)x & (vi32) - (vf32){0}));\n}\n",
        _F32,
        needs=("splat f32", "abs f32", "trunc f32", "sel f32", "sel i32", "splat f64", "mad f64"),
    ),
)

_TRIGONOMETRY = (
    Row(
        "reduce_big",
        "/* x = quadrant * pi/2 + the result, for |x| > 2^20: x is m * 2^e, and only a window of\n"
        "   96 bits of 2/pi matters to the product modulo 4. */\n"
        "static double reduce_big_f32(float x, int32_t *quadrant)\n{\n"
        "    static const uint32_t two_over_pi[] = {\n"
        "        0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041,\n"
        "        0xfe5163ab, 0xdebbc561};\n"
        "    uint32_t bits;\n"
        "    memcpy(&bits, &x, sizeof bits);\n"
        "    int start = (int)(bits >> 23 & 255) - 150 - 2;\n"
        "    uint64_t m = (bits & 0x007fffff) | 0x00800000;\n"
        "    unsigned __int128 window = 0, product;\n"
        "    for (int word = 0; word < 4; word++) {\n"
        "        int place = (start >> 5) + word;\n"
        "        window = window << 32 | (place < 0 ? 0 : two_over_pi[place]);\n"
        "    }\n"
        "    window = window << (start & 31) >> 32;\n"
        "    product = window * m << 32;\n"
        "    int32_t whole = (int32_t)(product >> 126);\n"
        "    int64_t fraction = (int64_t)(product >> 62);\n"
        "    whole += fraction < 0;\n"
        "    double r = (double)fraction * 0x1p-64 * 1.5707963267948966;\n"
        "    *quadrant = (bits >> 31 ? -whole : whole) & 3;\n"
        "    return bits >> 31 ? -r : r;\n}\n",
        _F32,
    ),
    Row(
        "quarter_turns",
        "/* x = *quadrant * pi/2 + the result + *low. Up to 2^15 what the first of three parts of\n"
        "   pi/2 leaves is exact in f32. */\n"
        "static inline vf32 quarter_turns_f32(vf32 x, vi32 *quadrant, vf32 *low)\n{\n"
        "    if (__builtin_expect(any_lane_bool(~(abs_f32(x) <= 32768.0f)), 0))\n"
        "        return many_turns_f32(x, quadrant, low);\n"
        "    vf32 n = nearest_f32(x * 0.636619772f);\n"
        "    vf32 first = mad_f32(n, splat_f32(-0x1.921fb6p+0f), x), more = n * 0x1.777a5cp-25f;\n"
        "    vf32 r = mad_f32(n, splat_f32(0x1.777a5cp-25f), first);\n"
        "    vf32 result = mad_f32(n, splat_f32(0x1.ee59dap-50f), r);\n"
        "    vf32 sum = first + more, part = sum - first;\n"
        "    vf32 lost = (first - (sum - part)) + (more - part);\n"
        "    lost += mad_f32(n, splat_f32(0x1.777a5cp-25f), -more);\n"
        "    *low = (sum - result) + mad_f32(n, splat_f32(0x1.ee59dap-50f), lost);\n"
        "    *quadrant = __builtin_convertvector(n, vi32);\n"
        "    return result;\n}\n",
        _F32,
        AVX2,
        needs=(
            "splat f32",
            "mad f32",
            "abs f32",
            "nearest f32",
            "any_lane bool",
            "many_turns f32",
        ),
    ),
    Row(
        "quarter_turns",
        "static inline vf32 quarter_turns_f32(vf32 x, vi32 *quadrant, vf32 *low)\n"
        "{\n    return many_turns_f32(x, quadrant, low);\n}\n",
        _F32,
        needs=("many_turns f32",),
    ),
    Row(
        "many_turns",
        "/* x = *quadrant * pi/2 + the result + *low, for any x. */\n"
        "static inline vf32 many_turns_f32(vf32 x, vi32 *quadrant, vf32 *low)\n{\n"
        "    vf64 wide = __builtin_convertvector(x, vf64);\n"
        "    vf64 n = (wide * 0.6366197723675814 + 6755399441055744.0) - 6755399441055744.0;\n"
        "    vf64 r = wide - n * 1.5707963267341256 - n * 6.077100506506192e-11;\n"
        "    vbool big = abs_f32(x) > 1048576.0f;\n"
        "    *quadrant = __builtin_convertvector(n, vi32);\n"
        "    vf32 result = __builtin_convertvector(r, vf32);\n"
        "    *low = __builtin_convertvector(r - __builtin_convertvector(result, vf64), vf32);\n"
        "    if (__builtin_expect(any_lane_bool(big), 0))\n"
        "        for (int l = 0; l < $W; l++)\n"
        "            if (big[l]) {\n"
        "                int32_t q = 0;\n"
        "                double one = x[l] - x[l] == 0 ? reduce_big_f32(x[l], &q) : x[l] - x[l];\n"
        "                result[l] = (float)one, (*low)[l] = (float)(one - result[l]);\n"
        "                (*quadrant)[l] = q;\n"
        "            }\n"
        "    return result;\n}\n",
        _F32,
        needs=("abs f32", "any_lane bool", "reduce_big f32"),
    ),
    Row(
        "sin_or_cos",
        "/* The sine of r + quadrant * pi/2, |r| <= pi/4. */\n"
        "static inline vf32 sin_or_cos_f32(vf32 r, vi32 quadrant)\n{\n"
        "    vf32 u = r * r, s, c;\n"
        + horner("s", "u", _SIN)
        + "    s = mad_f32(s * u, r, r);\n"
        + horner("c", "u", _COS)
        + "    c = mad_f32(c * u, u, mad_f32(u, splat_f32(-0.5f), splat_f32(1.0f)));\n"
        "    s = sel_f32((quadrant & 1) != 0, c, s);\n"
        "    return (vf32)((vi32)s ^ (quadrant & 2) << 30);\n}\n",
        _F32,
        needs=("splat f32", "mad f32", "sel f32"),
    ),
    Row(
        "sin",
        "static inline vf32 sin_f32(vf32 x)\n{\n"
        "    vi32 quadrant;\n    vf32 low, r = quarter_turns_f32(x, &quadrant, &low);\n"
        "    return sel_f32(x == 0.0f, x, sin_or_cos_f32(r, quadrant));\n}\n",
        _F32,
        needs=("quarter_turns f32", "sin_or_cos f32", "sel f32"),
    ),
    Row(
        "cos",
        "static inline vf32 cos_f32(vf32 x)\n{\n"
        "    vi32 quadrant;\n    vf32 low, r = quarter_turns_f32(x, &quadrant, &low);\n"
        "    return sin_or_cos_f32(r, quadrant + 1);\n}\n",
        _F32,
        needs=("quarter_turns f32", "sin_or_cos f32"),
    ),
    Row(
        "tan",
        "/* t + rest is the tangent of what quarter turns leave; after odd ones -1 / that is. */\n"
        "static inline vf32 tan_f32(vf32 x)\n{\n"
        "    vi32 quadrant;\n    vf32 low, r = quarter_turns_f32(x, &quadrant, &low);\n"
        "    vf32 u = r * r, p;\n" + horner("p", "u", _TAN) + "    p = p * (r * u);\n"
        "    vf32 near = r + p;\n"
        "    p = mad_f32(low, mad_f32(near, near, splat_f32(1.0f)), p);\n"
        "    vf32 t = r + p, rest = (r - t) + p, y = -1.0f / t;\n"
        "    vf32 lack = mad_f32(y, rest, mad_f32(y, t, splat_f32(1.0f)));\n"
        "    t = sel_f32((quadrant & 1) != 0, mad_f32(y, lack, y), t);\n"
        "    return sel_f32(x == 0.0f, x, t);\n}\n",
        _F32,
        needs=("splat f32", "mad f32", "quarter_turns f32", "sel f32"),
    ),
)

_REMAINDER = """\
/* C's fmod, exactly: shift and subtract on the significands. */
static double fmod_one(double x, double y)
{
    uint64_t a, b, sign;
    memcpy(&a, &x, sizeof a);
    memcpy(&b, &y, sizeof b);
    sign = a & 1ull << 63;
    a ^= sign;
    b &= ~(1ull << 63);
    if (b == 0 || a >= 0x7ff0000000000000 || b > 0x7ff0000000000000)
        return (x * y) / (x * y);
    int ea = (int)(a >> 52), eb = (int)(b >> 52);
    if (a >= b) {
        uint64_t ma = a & 0x000fffffffffffff, mb = b & 0x000fffffffffffff;
        if (ea) ma |= 1ull << 52; else for (ea = 1; ma < 1ull << 52; ea--) ma <<= 1;
        if (eb) mb |= 1ull << 52; else for (eb = 1; mb < 1ull << 52; eb--) mb <<= 1;
        for (; ea > eb; ea--) {
            if (ma >= mb) ma -= mb;
            ma <<= 1;
        }
        if (ma >= mb) ma %= mb;
        for (; ma && ma < 1ull << 52 && ea > 1; ea--) ma <<= 1;
        for (; ea < 1; ea++) ma >>= 1;
        a = ma < 1ull << 52 ? ma : (ma ^ 1ull << 52) | (uint64_t)ea << 52;
    }
    a |= sign;
    memcpy(&x, &a, sizeof x);
    return x;
}
"""

_DIVISION = (
    Row("fmod_one", _REMAINDER, ("f64",)),
    Row(
        "fmod",
        "/* A quotient that was rounded up is one too many; but for that, what is left is exact\n"
        "   where the quotient is whole in few bits. */\n"
        "static inline $V fmod_$T($V x, $V y)\n{\n"
        "    const $V size = abs_$T(x), step = abs_$T(y), whole = trunc_$T(size / step);\n"
        "    $V r = mad_$T(-whole, step, size);\n"
        "    r = r + ($V)((r < 0) & ($I)step);\n"
        "    const $I none = whole == 0, sign = ($I)x & ($I) - ($V){0};\n"
        "    r = ($V)((none & ($I)size) | (~none & ($I)r) | sign);\n"
        "    if (__builtin_expect(any_lane_bool("
        "__builtin_convertvector(~(whole < 4194304), vbool)), 0))\n"
        "        for (int l = 0; l < $W; l++)\n"
        "            if (!(whole[l] < 4194304))\n"
        "                r[l] = ($E)fmod_one(x[l], y[l]);\n"
        "    return r;\n}\n",
        FLOATS,
        AVX2,
        needs=("fmod_one f64", "mad $T", "abs $T", "trunc $T", "any_lane bool"),
    ),
    Row(
        "fmod",
        "static inline $V fmod_$T($V x, $V y)\n"
        "{\n    for (int l = 0; l < $W; l++)\n"
        "        x[l] = ($E)fmod_one(x[l], y[l]);\n    return x;\n}\n",
        FLOATS,
        needs=("fmod_one f64",),
    ),
    Row(
        "mod",
        "static inline $V mod_$T($V x, $V y)\n"
        "{\n    $V r = fmod_$T(x, y);\n"
        "    return sel_$T(__builtin_convertvector((r != 0) & ((r < 0) != (y < 0)), vbool),"
        " r + y, r);\n}\n",
        FLOATS,
        needs=("fmod $T", "sel $T"),
    ),
)
MATH_ROWS: tuple[Row, ...] = (
    *_SCALE, *_LOOKUP, *_EXPONENTIALS, *_LOGARITHMS, *_POWER, *_TRIGONOMETRY,
    *_DIVISION,
)  # fmt: skip
