"""Small integers in C vectors: to i32 and from it.

GCC 12 does both lane by lane for `__builtin_convertvector`, which is slower than what the
instructions of AVX2 and AVX-512 take for all of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nearhint_compiler.codegen.c.primitive import AVX2, AVX512, Row, Shape
from nearhint_rules.program import DTYPES

NARROW = ("i16", "i8", "u8")
_SUFFIX: Mapping[str, str] = {"i16": "epi16", "i8": "epi8", "u8": "epu8"}
FROM_BITS: Mapping[int, str] = {
    32: "_mm_cvtsi32_si128((int)x)",
    64: "_mm_cvtsi64_si128((long long)x)",
    128: "(__m128i)x",
    256: "(__m256i)x",
}
TO_BITS: Mapping[int, str] = {
    32: "_mm_cvtsi128_si32({})",
    64: "_mm_cvtsi128_si64({})",
    128: "{}",
    256: "{}",
}
"""By the bits of a vector of small integers: how it gets into a register, and out of one."""


def _bits(dtype: str, *, lanes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(8 * DTYPES[dtype] * count for count in lanes)


def _widened(dtype: str) -> Callable[[Shape], str]:
    def text(shape: Shape) -> str:
        register = FROM_BITS[shape.bits(dtype)]
        return (
            "static inline vi32 to_i32_$T($V x)\n"
            f"{{\n    return (vi32)${{N}}_cvt{_SUFFIX[dtype]}_epi32({register});\n}}\n"
        )

    return text


def _narrowed(dtype: str) -> Callable[[Shape], str]:
    def text(shape: Shape) -> str:
        wide = f"${{N}}_cvtepi32_epi{8 * DTYPES[dtype]}((__m${{C}}i)x)"
        return (
            "static inline $V from_i32_$T(vi32 x)\n"
            f"{{\n    return ($V){TO_BITS[shape.bits(dtype)].format(wide)};\n}}\n"
        )

    return text


def _packed(shape: Shape) -> str:
    """The lowest byte of each lane, gathered within halves of a register; AVX2 has no more."""
    within = "${N}_shuffle_epi8((__m${C}i)x, ${N}_set1_epi32(0x0c080400))"
    if shape.lanes == 4:
        return (
            "static inline $V from_i32_$T(vi32 x)\n"
            f"{{\n    return ($V){TO_BITS[32].format(within)};\n}}\n"
        )
    halves = "_mm256_castsi256_si128(within), _mm256_extracti128_si256(within, 1)"
    return (
        "static inline $V from_i32_$T(vi32 x)\n{\n"
        f"    const __m256i within = {within};\n"
        f"    return ($V){TO_BITS[64].format(f'_mm_unpacklo_epi32({halves})')};\n}}\n"
    )


def _rows() -> tuple[Row, ...]:
    found: list[Row] = []
    for dtype in NARROW:
        few, all_lanes = _bits(dtype, lanes=(4, 8)), _bits(dtype, lanes=(4, 8, 16))
        found += [
            Row("to_i32", _widened(dtype), (dtype,), AVX512, bits=all_lanes),
            Row("to_i32", _widened(dtype), (dtype,), AVX2, bits=few),
            Row("from_i32", _narrowed(dtype), (dtype,), AVX512, bits=all_lanes),
        ]
    return (
        *found,
        Row("from_i32", _packed, ("i8", "u8"), AVX2, bits=(32, 64)),
        Row(
            "to_i32",
            "static inline vi32 to_i32_$T($V x) { return __builtin_convertvector(x, vi32); }\n",
            NARROW,
        ),
        Row(
            "from_i32",
            "static inline $V from_i32_$T(vi32 x) { return __builtin_convertvector(x, $V); }\n",
            NARROW,
        ),
    )


NARROW_ROWS = _rows()
