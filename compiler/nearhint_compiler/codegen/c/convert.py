"""Casts of the C prelude: low precision by integer arithmetic or F16C, and the table of casts.

f32 to a shorter float rounds to nearest, ties to even, denormals too; a NaN stays a NaN. What
rounds beyond 448 becomes NaN in f8e4m3fn, which has no infinity. A cast between a low precision
float and anything but f32 goes through f32, as eager's does.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from nearhint_compiler.codegen.c.narrow import NARROW
from nearhint_compiler.codegen.c.primitive import AVX2, AVX512, AVX512_BF16, Prelude, Row, Shape
from nearhint_compiler.ir.nodes import FLOATS, LOW_PRECISION

_F32 = ("f32",)


@dataclass(frozen=True, slots=True)
class _Eight:
    """An 8-bit float: bits of its mantissa, and of f32 numbers what it takes to round to it.

    `first` is what becomes `beyond`, `normal` the least number that is no denormal, and adding
    `aligned` moves a denormal's last bit to the last bit of an f32.
    """

    mantissa: int
    bias: int
    first: int
    beyond: int
    normal: int
    aligned: int


_EIGHTS: Mapping[str, _Eight] = {
    "f8e4m3fn": _Eight(3, 7, 0x43E80001, 0x7F, 0x3C800000, 0x46800000),
    "f8e5m2": _Eight(2, 15, 0x47800000, 0x7C, 0x38800000, 0x43000000),
}


def _to_eight(dtype: str) -> tuple[Row, ...]:
    f8 = _EIGHTS[dtype]
    shift = 23 - f8.mantissa
    rebias = ((127 - f8.bias) << 23) - ((1 << (shift - 1)) - 1)
    head = (
        f"static inline v{dtype} to_{dtype}_f32(vf32 x)\n{{\n"
        "    const vi32 bits = (vi32)x & 0x7fffffff;\n"
        f"    vi32 r = (bits - {rebias:#x} + (bits >> {shift} & 1)) >> {shift};\n"
        f"    const vi32 tiny = (vi32)((vf32)bits + {_float_of(f8.aligned)}) - {f8.aligned:#x};\n"
    )
    masked = (
        "    r = (vi32)_mm512_mask_mov_epi32((__m512i)r, _mm512_cmplt_epi32_mask((__m512i)bits,"
        f" _mm512_set1_epi32({f8.normal:#x})), (__m512i)tiny);\n"
        "    const __mmask16 large = _mm512_cmpge_epi32_mask((__m512i)bits,"
        f" _mm512_set1_epi32({f8.first:#x}));\n"
        f"    r = (vi32)_mm512_mask_set1_epi32((__m512i)r, large, {f8.beyond:#x});\n"
    )
    plain = (
        f"    r = sel_i32(bits < {f8.normal:#x}, tiny, r);\n"
        f"    r = sel_i32(bits >= {f8.first:#x}, bits - bits + {f8.beyond:#x}, r);\n"
    )
    if f8.beyond != 0x7F:
        masked += (
            "    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);\n"
            "    r = (vi32)_mm512_mask_set1_epi32((__m512i)r, nan, 0x7f);\n"
        )
        plain += "    r = sel_i32(bits > 0x7f800000, bits - bits + 0x7f, r);\n"
    sign = "r | ((vi32)x >> 24 & 0x80)"
    return (
        Row(
            f"to_{dtype}",
            head + masked + f"    return (v{dtype})_mm512_cvtepi32_epi8((__m512i)({sign}));\n}}\n",
            _F32,
            AVX512,
            bits=(512,),
        ),
        Row(
            f"to_{dtype}",
            head + "".join(plain) + f"    return __builtin_convertvector({sign}, v{dtype});\n}}\n",
            _F32,
            needs=("sel i32",),
        ),
    )


def _float_of(bits: int) -> str:
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return f"{value:.0f}.0f"


_FROM_EIGHT = (
    Row(
        "from_f8e5m2",
        "/* The upper half of an f16. */\n"
        "static inline vf32 from_f8e5m2_f32(vf8e5m2 x)\n"
        "{\n    return from_f16_f32(__builtin_convertvector(x, vf16) << 8);\n}\n",
        _F32,
        needs=("from_f16 f32",),
    ),
    Row(
        "from_f8e4m3fn",
        "/* The bits of an f16 that is smaller by 2^8, but for NaN. */\n"
        "static inline vf32 from_f8e4m3fn_f32(vf8e4m3fn x)\n{\n"
        "    const __m256i wide = _mm256_cvtepi8_epi16((__m128i)x);\n"
        "    const __m256i all = _mm256_set1_epi16(0x3f80), no_copy = _mm256_set1_epi16(~0x4000);\n"
        "    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), no_copy);\n"
        "    const __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(half, all), all);\n"
        "    const vf32 y = (vf32)_mm512_cvtph_ps(half) * 256.0f;\n"
        "    return (vf32)_mm512_mask_set1_epi32((__m512i)y, nan, 0x7fc00000);\n}\n",
        _F32,
        AVX512,
        bits=(512,),
    ),
    Row(
        "from_f8e4m3fn",
        "static inline vf32 from_f8e4m3fn_f32(vf8e4m3fn x)\n{\n"
        "    const vi32 wide = __builtin_convertvector(x, vi32), rest = wide & 0x7f;\n"
        "    const vf32 tiny = __builtin_convertvector(rest, vf32) * 0x1p-9f;\n"
        "    vi32 bits = sel_i32(rest < 8, (vi32)tiny, (rest << 20) + (120 << 23));\n"
        "    bits = sel_i32(rest == 0x7f, rest - rest + 0x7fc00000, bits);\n"
        "    return (vf32)(bits | (wide & 0x80) << 24);\n}\n",
        _F32,
        needs=("sel i32",),
    ),
)


def _widened_bf16(shape: Shape) -> str:
    """One instruction puts each number into the upper half of its lane, and zeros below it."""
    bits, half = 32 * shape.lanes, 16 * shape.lanes
    upper = ", ".join(f"{place // 2}" for place in range(2 * shape.lanes))
    whole = f"${{M}}_castsi{half}_si{bits}(($H)x)"
    chosen = f"{'0xaaaaaaaa' if bits == 512 else '0xaaaa'}, (__m{bits}i)upper"
    return (
        "static inline vf32 from_bf16_f32(vbf16 x)\n{\n"
        f"    typedef int16_t places __attribute__((vector_size({bits // 8})));\n"
        f"    const places upper = {{{upper}}};\n"
        f"    return (vf32)${{M}}_maskz_permutexvar_epi16({chosen}, {whole});\n}}\n"
    )


CONVERSION_ROWS: tuple[Row, ...] = (
    Row("from_bf16", _widened_bf16, _F32, AVX512, bits=(256, 512)),
    Row(
        "from_bf16",
        "static inline vf32 from_bf16_f32(vbf16 x)\n{\n"
        "    const __m${R}i wide = ${M}_cvtepu16_epi32(($H)x);\n"
        "    return (vf32)${M}_slli_epi32(wide, 16);\n}\n",
        _F32,
        AVX2,
        bits=(256,),
    ),
    Row(
        "from_bf16",
        "static inline vf32 from_bf16_f32(vbf16 x)\n"
        "{\n    return (vf32)(__builtin_convertvector(x, vu32) << 16);\n}\n",
        _F32,
    ),
    Row(
        "to_bf16",
        "/* The instruction takes denormals for zeros: they are rare, and rounded without it. */\n"
        "static inline vbf16 to_bf16_f32(vf32 x)\n{\n"
        "    $H packed = ($H)${M}_cvtneps_pbh(($X)x);\n"
        "    const $K tiny = ${M}_fpclass_ps_mask(($X)x, 0x20);\n"
        "    if (__builtin_expect(tiny != 0, 0)) {\n"
        "        const vu32 bits = (vu32)x;\n"
        "        const vu32 rounded = (bits + (0x7fff + (bits >> 16 & 1))) >> 16;\n"
        "        packed = ${M}_mask_cvtepi32_epi16(packed, tiny, (__m${R}i)rounded);\n"
        "    }\n"
        "    return (vbf16)packed;\n}\n",
        _F32,
        AVX512_BF16,
        bits=(256, 512),
    ),
    Row(
        "to_bf16",
        "static inline vbf16 to_bf16_f32(vf32 x)\n{\n"
        "    vu32 bits = (vu32)x;\n"
        "    vu32 rounded = (bits + (0x7fff + (bits >> 16 & 1))) >> 16;\n"
        "    __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);\n"
        "    __m512i whole = _mm512_mask_set1_epi32((__m512i)rounded, nan, 0x7fc0);\n"
        "    return (vbf16)_mm512_cvtepi32_epi16(whole);\n"
        "}\n",
        _F32,
        AVX512,
        bits=(512,),
    ),
    Row(
        "to_bf16",
        "static inline vbf16 to_bf16_f32(vf32 x)\n{\n"
        "    const __m256i whole = upper_f32(x);\n"
        "    const __m128i upper = _mm256_extracti128_si256(whole, 1);\n"
        "    return (vbf16)_mm_packus_epi32(_mm256_castsi256_si128(whole), upper);\n"
        "}\n",
        _F32,
        AVX2,
        ("upper f32",),
        (256,),
    ),
    Row(
        "upper",
        "/* The bits of x as bf16, 32 a lane. */\n"
        "static inline __m256i upper_f32(vf32 x)\n{\n"
        "    const vu32 bits = (vu32)x;\n"
        "    const __m256i rounded = (__m256i)((bits + (0x7fff + (bits >> 16 & 1))) >> 16);\n"
        "    const __m256i nan = (__m256i)(x != x), quiet = _mm256_set1_epi32(0x7fc0);\n"
        "    return _mm256_blendv_epi8(rounded, quiet, nan);\n"
        "}\n",
        _F32,
        AVX2,
        bits=(256,),
    ),
    Row(
        "to_bf16",
        "static inline vbf16 to_bf16_f32(vf32 x)\n{\n"
        "    vu32 bits = (vu32)x, ordered = (vu32)(x == x);\n"
        "    vu32 rounded = (bits + (0x7fff + (bits >> 16 & 1))) >> 16;\n"
        "    return __builtin_convertvector((ordered & rounded) | (~ordered & 0x7fc0), vbf16);\n"
        "}\n",
        _F32,
    ),
    Row(
        "round_bf16",
        "/* x as bf16, in f32. */\n"
        "static inline vf32 round_bf16_f32(vf32 x)\n{\n"
        "    vu32 bits = (vu32)x;\n"
        "    bits = (bits + (0x7fff + (bits >> 16 & 1))) & 0xffff0000;\n"
        "    __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);\n"
        "    return (vf32)_mm512_mask_set1_epi32((__m512i)bits, nan, 0x7fc00000);\n"
        "}\n",
        _F32,
        AVX512,
        bits=(512,),
    ),
    Row(
        "round_bf16",
        "/* x as bf16, in f32. */\n"
        "static inline vf32 round_bf16_f32(vf32 x)\n{\n"
        "    const vu32 bits = (vu32)x;\n"
        "    const vu32 rounded = (bits + (0x7fff + (bits >> 16 & 1))) & 0xffff0000;\n"
        "    const __m256i nan = (__m256i)(x != x), quiet = _mm256_set1_epi32(0x7fc00000);\n"
        "    return (vf32)_mm256_blendv_epi8((__m256i)rounded, quiet, nan);\n"
        "}\n",
        _F32,
        AVX2,
        bits=(256,),
    ),
    Row(
        "round_bf16",
        "/* x as bf16, in f32. */\n"
        "static inline vf32 round_bf16_f32(vf32 x)\n{\n"
        "    vu32 bits = (vu32)x, ordered = (vu32)(x == x);\n"
        "    bits = (bits + (0x7fff + (bits >> 16 & 1))) & 0xffff0000;\n"
        "    return (vf32)((ordered & bits) | (~ordered & 0x7fc00000));\n"
        "}\n",
        _F32,
    ),
    Row(
        "from_f16",
        "static inline vf32 from_f16_f32(vf16 x)\n{\n    return ${M}_cvtph_ps(($H)x);\n}\n",
        _F32,
        AVX2,
        bits=(256, 512),
    ),
    Row(
        "from_f16",
        "static inline vf32 from_f16_f32(vf16 x)\n{\n"
        "    vi32 wide = __builtin_convertvector(x, vi32), rest = wide & 0x7fff;\n"
        "    vi32 bits = (rest << 13) + (112 << 23);\n"
        "    vf32 tiny = __builtin_convertvector(rest, vf32) * 0x1p-24f;\n"
        "    bits = sel_i32(rest < 0x0400, (vi32)tiny, bits);\n"
        "    bits = sel_i32(rest >= 0x7c00, (rest << 13) | 0x7f800000, bits);\n"
        "    return (vf32)(bits | (wide & 0x8000) << 16);\n}\n",
        _F32,
        needs=("sel i32",),
    ),
    Row(
        "to_f16",
        "static inline vf16 to_f16_f32(vf32 x)\n{\n    return (vf16)${M}_cvtps_ph(x, 0);\n}\n",
        _F32,
        AVX2,
        bits=(256, 512),
    ),
    Row(
        "to_f16",
        "static inline vf16 to_f16_f32(vf32 x)\n{\n"
        "    vi32 bits = (vi32)x & 0x7fffffff;\n"
        "    vi32 half = (bits - (112 << 23) + 0x0fff + (bits >> 13 & 1)) >> 13;\n"
        "    vi32 tiny = (vi32)((vf32)bits + 0.5f) - 0x3f000000;\n"
        "    half = sel_i32(bits < 0x38800000, tiny, half);\n"
        "    half = sel_i32(bits >= 0x47800000, bits - bits + 0x7c00, half);\n"
        "    half = sel_i32(bits > 0x7f800000, (bits >> 13 & 0x03ff) | 0x7e00, half);\n"
        "    return __builtin_convertvector(half | ((vi32)x >> 16 & 0x8000), vf16);\n}\n",
        _F32,
        needs=("sel i32",),
    ),
    *(row for dtype in _EIGHTS for row in _to_eight(dtype)),
    *_FROM_EIGHT,
)


def cast(value: str, source: str, target: str, prelude: Prelude) -> str:
    """`value` of dtype `source` as `target`, as a C expression over vectors."""
    if source == target:
        return value
    if source in LOW_PRECISION:
        return cast(f"{prelude.use(f'from_{source}', 'f32')}({value})", "f32", target, prelude)
    if target in LOW_PRECISION:
        return f"{prelude.use(f'to_{target}', 'f32')}({cast(value, source, 'f32', prelude)})"
    if target == "bool":
        return as_bool(f"{value} != 0", source)
    if source == "bool":
        return f"-{value}" if target == "i32" else f"__builtin_convertvector(-{value}, v{target})"
    if source in NARROW and target in (*FLOATS, "i32", "i64"):
        wide = f"{prelude.use('to_i32', source)}({value})"
        return cast(wide, "i32", target, prelude)
    if target in NARROW and source in (*FLOATS, "i32", "i64"):
        return f"{prelude.use('from_i32', target)}({cast(value, source, 'i32', prelude)})"
    return f"__builtin_convertvector({value}, v{target})"


def as_bool(comparison: str, dtype: str) -> str:
    """A comparison of vectors of `dtype` as a bool vector: 32 bits a lane."""
    if dtype in ("f32", "i32", "bool"):
        return f"({comparison})"
    return f"__builtin_convertvector({comparison}, vbool)"
