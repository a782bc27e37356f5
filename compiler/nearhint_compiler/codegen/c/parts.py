"""The first elements of a vector, read from memory and written to it.

`load_n` and `store_n` touch the first n lanes alone (0 < n <= lanes): lanes beyond are not read
from memory nor written to it, and hold zero after a load. AVX2 has masks for words alone. Of short
elements two pieces of a power of two bytes, which overlap, are read or written: a `memcpy` of as
many bytes as there are is a call, and longer than all else that is done for a short row.
"""

from __future__ import annotations

from nearhint_compiler.codegen.c.narrow import FROM_BITS, TO_BITS
from nearhint_compiler.codegen.c.primitive import ALL, AVX2, AVX512, Row
from nearhint_compiler.ir.nodes import FLOATS

PLAIN = tuple(dtype for dtype in ALL if dtype != "bool")
_WORDS = ("f64", "f32", "i64", "i32")
_INTEGER_WORDS = ("i64", "i32")
_SHORT = tuple(dtype for dtype in PLAIN if dtype not in _WORDS)
_PART_BITS = (32, 64)
"""Vectors that are part of a register."""

_FEW = """\
/* The first `bytes` of p, at most 16; zeros follow them. */
static inline unsigned __int128 load_few(const void *p, int bytes)
{
    const char *from = p;
    if (bytes >= 8) {
        uint64_t first, last;
        memcpy(&first, from, 8);
        memcpy(&last, from + bytes - 8, 8);
        return first | (unsigned __int128)last << 8 * (bytes - 8);
    }
    if (bytes >= 4) {
        uint32_t first, last;
        memcpy(&first, from, 4);
        memcpy(&last, from + bytes - 4, 4);
        return first | (uint64_t)last << 8 * (bytes - 4);
    }
    if (bytes >= 2) {
        uint16_t first, last;
        memcpy(&first, from, 2);
        memcpy(&last, from + bytes - 2, 2);
        return first | (uint32_t)last << 8 * (bytes - 2);
    }
    return bytes ? *(const uint8_t *)p : 0;
}

static inline void store_few(void *p, unsigned __int128 x, int bytes)
{
    char *to = p;
    if (bytes >= 8) {
        const uint64_t first = (uint64_t)x, last = (uint64_t)(x >> 8 * (bytes - 8));
        memcpy(to, &first, 8);
        memcpy(to + bytes - 8, &last, 8);
    } else if (bytes >= 4) {
        const uint32_t first = (uint32_t)x, last = (uint32_t)((uint64_t)x >> 8 * (bytes - 4));
        memcpy(to, &first, 4);
        memcpy(to + bytes - 4, &last, 4);
    } else if (bytes >= 2) {
        const uint16_t first = (uint16_t)x, last = (uint16_t)((uint32_t)x >> 8 * (bytes - 2));
        memcpy(to, &first, 2);
        memcpy(to + bytes - 2, &last, 2);
    } else if (bytes) {
        *to = (char)x;
    }
}
"""

PART_ROWS: tuple[Row, ...] = (
    Row("few", _FEW, ("u8",)),
    Row(
        "load_n",
        "static inline $V load_n_$T(const $E *p, int n)\n"
        "{\n    return ($V)${M}_maskz_loadu_$S(($K)((1u << n) - 1), p);\n}\n",
        PLAIN,
        AVX512,
    ),
    *(
        Row(
            "load_n",
            "static inline $V load_n_$T(const $E *p, int n)\n{\n"
            "    const __m128i x = _mm_maskz_loadu_$S((__mmask8)((1u << n) - 1), p);\n"
            f"    return ($V){TO_BITS[bits].format('x')};\n}}\n",
            _SHORT,
            AVX512,
            bits=(bits,),
        )
        for bits in _PART_BITS
    ),
    Row(
        "load_n",
        "static inline $V load_n_$T(const $E *p, int n)\n"
        "{\n    return ${M}_maskload_$S(p, (__m${R}i)(($I){$IOTA} < n));\n}\n",
        FLOATS,
        AVX2,
        bits=(128, 256),
    ),
    Row(
        "load_n",
        "static inline $V load_n_$T(const $E *p, int n)\n"
        "{\n    const __m${R}i mask = (__m${R}i)(($I){$IOTA} < n);\n"
        "    return ($V)${M}_maskload_$S((const void *)p, mask);\n}\n",
        _INTEGER_WORDS,
        AVX2,
        bits=(128, 256),
    ),
    Row(
        "load_n",
        "static inline $V load_n_$T(const $E *p, int n)\n"
        "{\n    const unsigned __int128 x = load_few(p, n * (int)sizeof *p);\n"
        "    $V v;\n    memcpy(&v, &x, sizeof v);\n    return v;\n}\n",
        _SHORT,
        AVX2,
        ("few u8",),
        (*_PART_BITS, 128),
    ),
    Row(
        "load_n",
        "static inline $V load_n_$T(const $E *p, int n)\n"
        "{\n    $V v = {0};\n    memcpy(&v, p, (size_t)n * sizeof(*p));\n    return v;\n}\n",
        PLAIN,
    ),
    Row(
        "load_n",
        "static inline vbool load_n_bool(const uint8_t *p, int n)\n"
        "{\n    return to_i32_u8(load_n_u8(p, n)) != 0;\n}\n",
        ("bool",),
        needs=("load_n u8", "to_i32 u8"),
    ),
    Row(
        # Of half a register gcc makes a masked `vextract`, which faults where its mask leaves out.
        "store_n",
        "static inline void store_n_$T($E *p, $V v, int n)\n"
        '{\n    __asm__("" : "+v"(v));\n'
        "    ${M}_mask_storeu_$S(p, ($K)((1u << n) - 1), ($X)v);\n}\n",
        PLAIN,
        AVX512,
    ),
    *(
        Row(
            "store_n",
            "static inline void store_n_$T($E *p, $V x, int n)\n{\n"
            f"    _mm_mask_storeu_$S(p, (__mmask8)((1u << n) - 1), {FROM_BITS[bits]});\n}}\n",
            _SHORT,
            AVX512,
            bits=(bits,),
        )
        for bits in _PART_BITS
    ),
    Row(
        "store_n",
        "static inline void store_n_$T($E *p, $V v, int n)\n"
        "{\n    ${M}_maskstore_$S(p, (__m${R}i)(($I){$IOTA} < n), v);\n}\n",
        FLOATS,
        AVX2,
        bits=(128, 256),
    ),
    Row(
        "store_n",
        "static inline void store_n_$T($E *p, $V v, int n)\n"
        "{\n    const __m${R}i mask = (__m${R}i)(($I){$IOTA} < n);\n"
        "    ${M}_maskstore_$S((void *)p, mask, (__m${R}i)v);\n}\n",
        _INTEGER_WORDS,
        AVX2,
        bits=(128, 256),
    ),
    Row(
        "store_n",
        "static inline void store_n_$T($E *p, $V v, int n)\n"
        "{\n    unsigned __int128 x = 0;\n    memcpy(&x, &v, sizeof v);\n"
        "    store_few(p, x, n * (int)sizeof *p);\n}\n",
        _SHORT,
        AVX2,
        ("few u8",),
        (*_PART_BITS, 128),
    ),
    Row(
        "store_n",
        "static inline void store_n_$T($E *p, $V v, int n)\n"
        "{\n    memcpy(p, &v, (size_t)n * sizeof(*p));\n}\n",
        PLAIN,
    ),
    Row(
        "store_n",
        "static inline void store_n_bool(uint8_t *p, vbool v, int n)\n"
        "{\n    store_n_u8(p, from_i32_u8(v & 1), n);\n}\n",
        ("bool",),
        needs=("store_n u8", "from_i32 u8"),
    ),
)
