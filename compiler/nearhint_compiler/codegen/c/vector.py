"""The vector prelude as data: memory, selection, rounding, extrema and lane reductions.

Values are GCC vector extensions of `lanes` elements whatever the dtype, so arithmetic, shifts and
comparisons are plain C operators; the rows here are what those do not cover. Half floats are held
as their bits, and a bool as a 32-bit mask, 0 or -1. What a kernel computes never depends on the
compiler's auto-vectoriser.

`*_n` touch the first n lanes alone (0 < n <= lanes): see `parts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from nearhint_compiler.codegen.c.parts import PART_ROWS, PLAIN
from nearhint_compiler.codegen.c.primitive import AVX2, AVX512, Row, Shape
from nearhint_compiler.ir.nodes import FLOATS, INTEGERS

_NUMBERS = (*FLOATS, *INTEGERS)

_MEMORY = (
    Row("load", "static inline $V load_$T(const $E *p) { return *(const $U *)p; }\n", PLAIN),
    Row(
        "load",
        "static inline vbool load_bool(const uint8_t *p)\n"
        "{\n    return to_i32_u8(load_u8(p)) != 0;\n}\n",
        ("bool",),
        needs=("load u8", "to_i32 u8"),
    ),
    Row(
        "load_halves",
        "static inline $V load_halves_$T(const $E *p)\n"
        "{\n    const __m256i low = _mm256_loadu_si256((const __m256i *)p);\n"
        "    const __m256i high = _mm256_loadu_si256((const __m256i *)p + 1);\n"
        "    return ($V)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);\n}\n",
        PLAIN,
        AVX512,
        bits=(512,),
    ),
    Row("store", "static inline void store_$T($E *p, $V v) { *($U *)p = v; }\n", PLAIN),
    Row(
        "store",
        "static inline void store_bool(uint8_t *p, vbool v)\n"
        "{\n    store_u8(p, from_i32_u8(v & 1));\n}\n",
        ("bool",),
        needs=("store u8", "from_i32 u8"),
    ),
    *PART_ROWS,
    Row(
        "gather_n",
        "static inline $V gather_n_$T(const $E *p, int64_t stride, int n)\n"
        "{\n    $V v = {0};\n    for (int l = 0; l < n; l++)\n        v[l] = p[l * stride];\n"
        "    return v;\n}\n",
        PLAIN,
    ),
    Row(
        "load_within",
        "/* Lane l has element first + l, or the nearest in low .. high. */\n"
        "static inline $V load_within_$T(\n"
        "    const $E *p, int64_t first, int64_t low, int64_t high, int n)\n"
        "{\n    const int64_t last = first + n - 1;\n"
        "    if (first >= low && last <= high)\n"
        "        return n == $W ? load_$T(p + first) : load_n_$T(p + first, n);\n"
        "    if (first >= high || last <= low)\n"
        "        return splat_$T(p[first >= high ? high : low]);\n"
        "    if (first >= low) {\n"
        "        const int inside = (int)(high - first + 1);\n"
        "        const $V v = load_n_$T(p + first, inside);\n"
        "        return keep_n_$T(inside, v, splat_$T(p[high]));\n    }\n"
        "    if (last <= high) {\n"
        "        $E buffer[2 * $W];\n"
        "        const int before = (int)(low - first);\n"
        "        store_$T(buffer, splat_$T(p[low]));\n"
        "        store_$T(buffer + before, load_n_$T(p + low, n - before));\n"
        "        return load_$T(buffer);\n    }\n"
        "    $V v = {0};\n    for (int l = 0; l < n; l++) {\n"
        "        const int64_t at = first + l;\n"
        "        v[l] = p[at < low ? low : at > high ? high : at];\n    }\n"
        "    return v;\n}\n",
        PLAIN,
        needs=("load $T", "load_n $T", "splat $T", "keep_n $T", "store $T"),
    ),
    Row(
        "load_within",
        "static inline vbool load_within_bool(\n"
        "    const uint8_t *p, int64_t first, int64_t low, int64_t high, int n)\n"
        "{\n    return to_i32_u8(load_within_u8(p, first, low, high, n)) != 0;\n}\n",
        ("bool",),
        needs=("load_within u8", "to_i32 u8"),
    ),
    Row(
        "gather_n",
        "static inline vbool gather_n_bool(const uint8_t *p, int64_t stride, int n)\n"
        "{\n    return to_i32_u8(gather_n_u8(p, stride, n)) != 0;\n}\n",
        ("bool",),
        needs=("gather_n u8", "to_i32 u8"),
    ),
    Row(
        "scatter_n",
        "static inline void scatter_n_$T($E *p, int64_t stride, $V v, int n)\n"
        "{\n    for (int l = 0; l < n; l++)\n        p[l * stride] = v[l];\n}\n",
        PLAIN,
    ),
    Row(
        "scatter_n",
        "static inline void scatter_n_bool(uint8_t *p, int64_t stride, vbool v, int n)\n"
        "{\n    scatter_n_u8(p, stride, from_i32_u8(v & 1), n);\n}\n",
        ("bool",),
        needs=("scatter_n u8", "from_i32 u8"),
    ),
    Row("splat", "static inline $V splat_$T($E x) { return x - ($V){0}; }\n", PLAIN),
    Row(
        "splat",
        "static inline vbool splat_bool(uint8_t x)\n"
        "{\n    return (int32_t) - (x != 0) - (vbool){0};\n}\n",
        ("bool",),
    ),
    Row(
        "from_bits",
        "static inline $V from_bits_$T(uint${B}_t bits)\n"
        "{\n    $E x;\n    memcpy(&x, &bits, sizeof x);\n    return splat_$T(x);\n}\n",
        FLOATS,
        needs=("splat $T",),
    ),
    Row(
        "count_up",
        "static inline $V count_up_$T($E from, $E step)\n"
        "{\n    return from + step * ($V){$IOTA};\n}\n",
        ("i64",),
    ),
    Row(
        "position",
        "/* first + l * step, for a step of one or minus one. */\n"
        "static inline vf32 position_f32(int64_t first, int64_t step)\n"
        "{\n    if (first > INT32_MIN + $W && first < INT32_MAX - $W)\n"
        "        return __builtin_convertvector((int32_t)first + (int32_t)step * (vi32){$IOTA},"
        " vf32);\n"
        "    return __builtin_convertvector(count_up_i64(first, step), vf32);\n}\n",
        ("f32",),
        needs=("count_up i64",),
    ),
)

_CHOICE = (
    Row(
        "sel",
        "static inline $V sel_$T(vbool m, $V a, $V b)\n"
        "{\n    return ($V)((m & ($I)a) | (~m & ($I)b));\n}\n",
        ("f32", "i32", "bool"),
    ),
    Row(
        "sel",
        "static inline $V sel_$T(vbool m, $V a, $V b)\n"
        "{\n    $I wide = __builtin_convertvector(m, $I);\n"
        "    return ($V)((wide & ($I)a) | (~wide & ($I)b));\n}\n",
        PLAIN,
    ),
    Row(
        "keep_n",
        "/* The first n lanes of v, the rest of other. */\n"
        "static inline $V keep_n_$T(int n, $V v, $V other)\n"
        "{\n    return ($V)${M}_mask_mov_$S(($X)other, ($K)((1u << n) - 1), ($X)v);\n}\n",
        (*PLAIN, "bool"),
        AVX512,
    ),
    Row(
        "keep_n",
        "/* The first n lanes of v, the rest of other. */\n"
        "static inline $V keep_n_$T(int n, $V v, $V other)\n"
        "{\n    return sel_$T((vi32){$IOTA} < n, v, other);\n}\n",
        needs=("sel $T",),
    ),
    Row(
        "lanes_below",
        "/* True in the first n lanes. */\n"
        "static inline vbool lanes_below_bool(int64_t n)\n"
        "{\n    const int32_t count = n < 0 ? 0 : n > $W ? $W : (int32_t)n;\n"
        "    return (vbool)((vi32){$IOTA} < count);\n}\n",
        ("bool",),
    ),
    Row(
        "lane_at",
        "/* True in lane n, if there is one. */\n"
        "static inline vbool lane_at_bool(int64_t n)\n"
        "{\n    const int32_t lane = n < 0 ? -1 : n > $W ? $W : (int32_t)n;\n"
        "    return (vbool)((vi32){$IOTA} == lane);\n}\n",
        ("bool",),
    ),
    Row(
        "bounded",
        "/* As far from all positions as x, or so far that it makes no difference. */\n"
        "static inline int64_t bounded_i64(int64_t x)\n"
        "{\n    const int64_t most = INT64_MAX / 2;\n"
        "    return x > most ? most : x < -most ? -most : x;\n}\n",
        ("i64",),
    ),
    Row(
        "any_lane",
        "static inline int any_lane_bool(vbool m)\n"
        "{\n    return ${M}_movepi32_mask((__m${R}i)m) != 0;\n}\n",
        ("bool",),
        AVX512,
    ),
    Row(
        "any_lane",
        "static inline int any_lane_bool(vbool m)\n"
        "{\n    return _mm256_movemask_ps((__m256)m) != 0;\n}\n",
        ("bool",),
        AVX2,
        bits=(256,),
    ),
    Row(
        "any_lane",
        "static inline int any_lane_bool(vbool m)\n"
        "{\n    int32_t any = 0;\n    for (int l = 0; l < $W; l++)\n        any |= m[l];\n"
        "    return any != 0;\n}\n",
        ("bool",),
    ),
)


def _extremum(name: str, sign: str) -> tuple[Row, ...]:
    """NaN if an operand is NaN; the instruction alone returns its second operand then.

    That is `a`, an accumulator: what is asked of the other then waits for no step before.
    """
    head = f"static inline $V {name}_$T($V a, $V b)\n{{\n"
    instruction = head + f"    return ($V)${{M}}_{name}_$Y(($X)a, ($X)b);\n}}\n"
    return (
        Row(
            name,
            head + "    const $K there = ${M}_cmp_${S}_mask(b, b, _CMP_ORD_Q);\n"
            f"    return ${{M}}_mask_{name}_$S(b, there, b, a);\n}}\n",
            FLOATS,
            AVX512,
        ),
        Row(
            name,
            head + f"    return sel_$T(b != b, b, ($V)${{M}}_{name}_$S(b, a));\n}}\n",
            ("f32",),
            AVX2,
            needs=("sel $T",),
        ),
        Row(
            name,
            head + f"    $I m = (a {sign} b) | (a != a);\n"
            "    return ($V)((m & ($I)a) | (~m & ($I)b));\n}\n",
            FLOATS,
        ),
        Row(name, instruction, ("i64",), AVX512),
        Row(name, instruction, ("i32", "i16", "i8", "u8"), AVX2),
        Row(
            name,
            head + f"    $I m = ($I)(a {sign} b);\n"
            "    return ($V)((m & ($I)a) | (~m & ($I)b));\n}\n",
            INTEGERS,
        ),
        Row(name, head + f"    return a {'|' if sign == '>' else '&'} b;\n}}\n", ("bool",)),
    )


_ROUNDING_MODES = {"round": "0x08", "floor": "0x09", "ceil": "0x0a", "trunc": "0x0b"}
_PORTABLE_ROUNDING = {
    "trunc": "t",
    "floor": "sel_$T(__builtin_convertvector(t > x, vbool), t - 1, t)",
    "ceil": "sel_$T(__builtin_convertvector(t < x, vbool), t + 1, t)",
    "round": "(magnitude + LIMIT) - LIMIT",
}


def _rounding(name: str) -> tuple[Row, ...]:
    head = f"static inline $V {name}_$T($V x)\n{{\n"
    mode = _ROUNDING_MODES[name]

    def portable(limit: str) -> str:
        return (
            head
            + "    $I sign = ($I)x & ($I) - ($V){0};\n"
            + "    $V magnitude = ($V)(($I)x ^ sign);\n"
            + "    $V t = __builtin_convertvector(__builtin_convertvector(x, $I), $V);\n"
            + f"    $V r = {_PORTABLE_ROUNDING[name].replace('LIMIT', limit)};\n"
            + f"    $I small = ($I)(magnitude < {limit});\n"
            + "    r = ($V)((($I)r & ~($I) - ($V){0}) | sign);\n"
            + "    return ($V)((small & ($I)r) | (~small & ($I)x));\n}\n"
        )

    needs = ("sel $T",)
    return (
        Row(name, head + f"    return ${{M}}_roundscale_$S(x, {mode});\n}}\n", FLOATS, AVX512),
        Row(
            name,
            head + f"    return ${{M}}_round_$S(x, {mode});\n}}\n",
            FLOATS,
            AVX2,
            bits=(128, 256),
        ),
        Row(name, portable("8388608.0f"), ("f32",), needs=needs),
        Row(name, portable("4503599627370496.0"), ("f64",), needs=needs),
    )


_ARITHMETIC = (
    Row(
        "sqrt",
        "static inline $V sqrt_$T($V x) { return ${M}_sqrt_$S(x); }\n",
        FLOATS,
        AVX2,
    ),
    Row(
        "sqrt",
        "static inline $V sqrt_$T($V x)\n"
        "{\n    for (int l = 0; l < $W; l++)\n        x[l] = __builtin_sqrtf(x[l]);\n"
        "    return x;\n}\n",
        ("f32",),
    ),
    Row(
        "sqrt",
        "static inline $V sqrt_$T($V x)\n"
        "{\n    for (int l = 0; l < $W; l++)\n        x[l] = __builtin_sqrt(x[l]);\n"
        "    return x;\n}\n",
        ("f64",),
    ),
    Row(
        "mad",
        "static inline $V mad_$T($V a, $V b, $V c) { return ${M}_fmadd_$S(a, b, c); }\n",
        FLOATS,
        AVX2,
    ),
    Row(
        "mad",
        "/* Of two registers: no compiler parts such a call in halves by itself. */\n"
        "static inline vf64 mad_f64(vf64 a, vf64 b, vf64 c)\n"
        "{\n    __m512d x[2], y[2], z[2];\n"
        "    memcpy(x, &a, sizeof a), memcpy(y, &b, sizeof b), memcpy(z, &c, sizeof c);\n"
        "    z[0] = _mm512_fmadd_pd(x[0], y[0], z[0]), z[1] = _mm512_fmadd_pd(x[1], y[1], z[1]);\n"
        "    memcpy(&c, z, sizeof c);\n    return c;\n}\n",
        ("f64",),
        AVX512,
        bits=(1024,),
    ),
    Row("mad", "static inline $V mad_$T($V a, $V b, $V c) { return a * b + c; }\n", FLOATS),
    Row(
        "quotient",
        "/* x / d for a d that is the same in all lanes: within one more half ulp. */\n"
        "static inline vf32 quotient_f32(vf32 x, vf32 d)\n{\n"
        "    float size = d[0] < 0.0f ? -d[0] : d[0];\n"
        "    return size > 0x1p-100f && size < 0x1p100f ? x * (1.0f / d) : x / d;\n}\n",
        ("f32",),
    ),
    Row(
        "abs",
        "static inline $V abs_$T($V x) { return ($V)(($I)x & ~($I) - ($V){0}); }\n",
        FLOATS,
    ),
    Row(
        "abs",
        "static inline $V abs_$T($V x) { return sel_$T(__builtin_convertvector(x < 0, vbool),"
        " -x, x); }\n",
        INTEGERS,
        needs=("sel $T",),
    ),
)

_COMBINE = {
    "sum": "v + s",
    "prod": "v * s",
    "max": "max_$T(v, s)",
    "min": "min_$T(v, s)",
    "any": "v | s",
    "all": "v & s",
}


def _across(kind: str, dtypes: tuple[str, ...]) -> Row:
    """A reduction over lanes by butterflies: every lane ends with the result."""

    def text(shape: Shape) -> str:
        steps = "".join(
            f"    s = SHUFFLE($I, v, $XOR{bit});\n    v = {_COMBINE[kind]};\n"
            for bit in (8, 4, 2, 1)
            if bit < shape.lanes
        )
        body = f"    $V s;\n{steps}" if steps else ""
        return f"static inline $V across_{kind}_$T($V v)\n{{\n{body}    return v;\n}}\n"

    needs = (f"{kind} $T",) if kind in ("max", "min") else ()
    return Row(f"across_{kind}", text, dtypes, needs=needs)


def _totals(kind: str, dtypes: tuple[str, ...]) -> Row:
    """As many reductions over lanes as there are lanes: fewer steps than one after the other.

    Two vectors become one that has, of each pair of lanes, what is left of the one vector and of
    the other, until each lane is left with a vector of its own.
    """

    def text(shape: Shape) -> str:
        steps = "".join(
            f"    for (int i = 0; i < {shape.lanes}; i += {2 * bit}) {{\n"
            f"        v = SHUFFLE2($I, t[i], t[i + {bit}], {_blended(shape.lanes, bit, 0)});\n"
            f"        s = SHUFFLE2($I, t[i], t[i + {bit}], {_blended(shape.lanes, bit, bit)});\n"
            f"        s = SHUFFLE($I, s, $XOR{bit});\n"
            f"        t[i] = {_COMBINE[kind]};\n    }}\n"
            for bit in (1, 2, 4, 8)
            if bit < shape.lanes
        )
        body = f"    $V v, s;\n{steps}" if steps else ""
        return (
            "/* Lane l: the lanes of t[l] combined. */\n"
            f"static inline $V totals_{kind}_$T($V *t)\n{{\n{body}    return t[0];\n}}\n"
        )

    needs = (f"{kind} $T",) if kind in ("max", "min") else ()
    return Row(f"totals_{kind}", text, dtypes, needs=needs)


def _blended(lanes: int, bit: int, of_first: int) -> str:
    """The lanes of the first vector whose `bit` is `of_first`, the others of the second."""
    chosen = (lane if lane & bit == of_first else lanes + lane for lane in range(lanes))
    return ", ".join(map(str, chosen))


_REDUCED: Mapping[str, tuple[str, ...]] = {
    "sum": _NUMBERS,
    "prod": _NUMBERS,
    "max": (*_NUMBERS, "bool"),
    "min": (*_NUMBERS, "bool"),
    "any": ("bool",),
    "all": ("bool",),
}
_ACROSS = tuple(
    make(kind, dtypes) for make in (_across, _totals) for kind, dtypes in _REDUCED.items()
)


VECTOR_ROWS: tuple[Row, ...] = (
    *_MEMORY,
    *_CHOICE,
    *_extremum("max", ">"),
    *_extremum("min", "<"),
    *(row for name in _ROUNDING_MODES for row in _rounding(name)),
    *_ARITHMETIC,
    *_ACROSS,
)
