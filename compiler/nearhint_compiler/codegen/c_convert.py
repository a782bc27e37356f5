"""Casts of the C prelude: half floats by integer arithmetic or F16C, and the table of casts.

f32 to bf16 and f16 round to nearest, ties to even; a NaN stays a NaN. A cast between a half float
and anything but f32 goes through f32, as eager's does.
"""

from __future__ import annotations

from nearhint_compiler.codegen.c_primitive import AVX2, AVX512, Prelude, Row
from nearhint_compiler.ir.nodes import FLOATS, LOW_PRECISION

_F32 = ("f32",)
_NARROW = ("i16", "i8", "u8")

CONVERSION_ROWS: tuple[Row, ...] = (
    Row(
        "from_bf16",
        "static inline vf32 from_bf16_f32(vbf16 x)\n"
        "{\n    return (vf32)(__builtin_convertvector(x, vu32) << 16);\n}\n",
        _F32,
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
    if source in FLOATS and target in _NARROW:
        value = f"__builtin_convertvector({value}, vi32)"
    return f"__builtin_convertvector({value}, v{target})"


def as_bool(comparison: str, dtype: str) -> str:
    """A comparison of vectors of `dtype` as a bool vector: 32 bits a lane."""
    if dtype in ("f32", "i32", "bool"):
        return f"({comparison})"
    return f"__builtin_convertvector({comparison}, vbool)"
