// cpu.tiles axis=2 lanes=8 unroll=1 across=1 tile=128 rows=256 squares=1 ahead=8
// -O3 -std=gnu11 -fno-math-errno -fno-trapping-math -ffp-contract=off -fwrapv -Wno-psabi -mavx2 -mf16c -mfma
#include <stdint.h>
#include <string.h>
#include <immintrin.h>

typedef double vf64 __attribute__((vector_size(64)));
typedef double uf64 __attribute__((vector_size(64), aligned(8), may_alias));
typedef float vf32 __attribute__((vector_size(32)));
typedef float uf32 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint16_t vf16 __attribute__((vector_size(16)));
typedef uint16_t uf16 __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint16_t vbf16 __attribute__((vector_size(16)));
typedef uint16_t ubf16 __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint8_t vf8e4m3fn __attribute__((vector_size(8)));
typedef uint8_t uf8e4m3fn __attribute__((vector_size(8), aligned(1), may_alias));
typedef uint8_t vf8e5m2 __attribute__((vector_size(8)));
typedef uint8_t uf8e5m2 __attribute__((vector_size(8), aligned(1), may_alias));
typedef int64_t vi64 __attribute__((vector_size(64)));
typedef int64_t ui64 __attribute__((vector_size(64), aligned(8), may_alias));
typedef uint64_t vu64 __attribute__((vector_size(64)));
typedef int32_t vi32 __attribute__((vector_size(32)));
typedef int32_t ui32 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t vu32 __attribute__((vector_size(32)));
typedef int16_t vi16 __attribute__((vector_size(16)));
typedef int16_t ui16 __attribute__((vector_size(16), aligned(2), may_alias));
typedef int8_t vi8 __attribute__((vector_size(8)));
typedef int8_t ui8 __attribute__((vector_size(8), aligned(1), may_alias));
typedef uint8_t vu8 __attribute__((vector_size(8)));
typedef uint8_t uu8 __attribute__((vector_size(8), aligned(1), may_alias));
typedef vi32 vbool;

#ifdef __clang__
#define SHUFFLE(type, v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#define SHUFFLE2(type, v, w, ...) __builtin_shufflevector(v, w, __VA_ARGS__)
#else
#define SHUFFLE(type, v, ...) __builtin_shuffle(v, (type){__VA_ARGS__})
#define SHUFFLE2(type, v, w, ...) __builtin_shuffle(v, w, (type){__VA_ARGS__})
#endif

static inline vf32 splat_f32(float x) { return x - (vf32){0}; }

typedef int16_t pair __attribute__((vector_size(32)));
typedef uint16_t pair_bf16 __attribute__((vector_size(32)));

static inline void store_pair_bf16(uint16_t *p, pair_bf16 v) { _mm256_storeu_si256((__m256i *)p, (__m256i)v); }
static inline vbf16 half0_bf16(pair_bf16 v) { return (vbf16)_mm256_castsi256_si128((__m256i)v); }
static inline vbf16 half1_bf16(pair_bf16 v) { return (vbf16)_mm256_extracti128_si256((__m256i)v, 1); }

static inline pair_bf16 pieces_of_pair_bf16(const uint16_t *p, int64_t apart)
{
    const __m128i first = _mm_loadu_si128((const __m128i *)p);
    __m256i v = _mm256_castsi128_si256(first);
    v = _mm256_inserti128_si256(v, _mm_loadu_si128((const __m128i *)(p + 1 * apart)), 1);
    return (pair_bf16)v;
}

/* Loads 8 columns of twice 8 rows, `pitch` apart: two vectors in each of v. */
static inline void load_pair_strip_bf16(const uint16_t *p, int64_t pitch, pair_bf16 *v)
{
    const int64_t apart = 8 * pitch;
    const pair_bf16 a0 = pieces_of_pair_bf16(p, apart);
    p += pitch;
    __asm__("" : "+r"(p));
    const pair_bf16 a1 = pieces_of_pair_bf16(p, apart);
    p += pitch;
    __asm__("" : "+r"(p));
    const pair_bf16 a2 = pieces_of_pair_bf16(p, apart);
    p += pitch;
    __asm__("" : "+r"(p));
    const pair_bf16 a3 = pieces_of_pair_bf16(p, apart);
    p += pitch;
    __asm__("" : "+r"(p));
    const pair_bf16 a4 = pieces_of_pair_bf16(p, apart);
    p += pitch;
    __asm__("" : "+r"(p));
    const pair_bf16 a5 = pieces_of_pair_bf16(p, apart);
    p += pitch;
    __asm__("" : "+r"(p));
    const pair_bf16 a6 = pieces_of_pair_bf16(p, apart);
    p += pitch;
    __asm__("" : "+r"(p));
    const pair_bf16 a7 = pieces_of_pair_bf16(p, apart);
    const pair_bf16 b0_0 = SHUFFLE2(pair, a0, a4, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
    const pair_bf16 b0_1 = SHUFFLE2(pair, a0, a4, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
    const pair_bf16 b0_2 = SHUFFLE2(pair, a1, a5, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
    const pair_bf16 b0_3 = SHUFFLE2(pair, a1, a5, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
    const pair_bf16 b0_4 = SHUFFLE2(pair, a2, a6, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
    const pair_bf16 b0_5 = SHUFFLE2(pair, a2, a6, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
    const pair_bf16 b0_6 = SHUFFLE2(pair, a3, a7, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
    const pair_bf16 b0_7 = SHUFFLE2(pair, a3, a7, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
    const pair_bf16 b1_0 = SHUFFLE2(pair, b0_0, b0_4, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
    const pair_bf16 b1_1 = SHUFFLE2(pair, b0_0, b0_4, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
    const pair_bf16 b1_2 = SHUFFLE2(pair, b0_1, b0_5, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
    const pair_bf16 b1_3 = SHUFFLE2(pair, b0_1, b0_5, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
    const pair_bf16 b1_4 = SHUFFLE2(pair, b0_2, b0_6, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
    const pair_bf16 b1_5 = SHUFFLE2(pair, b0_2, b0_6, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
    const pair_bf16 b1_6 = SHUFFLE2(pair, b0_3, b0_7, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
    const pair_bf16 b1_7 = SHUFFLE2(pair, b0_3, b0_7, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
    const pair_bf16 b2_0 = SHUFFLE2(pair, b1_0, b1_4, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
    const pair_bf16 b2_1 = SHUFFLE2(pair, b1_0, b1_4, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
    const pair_bf16 b2_2 = SHUFFLE2(pair, b1_1, b1_5, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
    const pair_bf16 b2_3 = SHUFFLE2(pair, b1_1, b1_5, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
    const pair_bf16 b2_4 = SHUFFLE2(pair, b1_2, b1_6, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
    const pair_bf16 b2_5 = SHUFFLE2(pair, b1_2, b1_6, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
    const pair_bf16 b2_6 = SHUFFLE2(pair, b1_3, b1_7, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
    const pair_bf16 b2_7 = SHUFFLE2(pair, b1_3, b1_7, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
    v[0] = b2_0;
    v[1] = b2_1;
    v[2] = b2_2;
    v[3] = b2_3;
    v[4] = b2_4;
    v[5] = b2_5;
    v[6] = b2_6;
    v[7] = b2_7;
}

static inline vf32 low_bf16(pair_bf16 v) { return (vf32)_mm256_unpacklo_epi16(_mm256_setzero_si256(), (__m256i)v); }

static inline vf32 high_bf16(pair_bf16 v) { return (vf32)_mm256_unpackhi_epi16(_mm256_setzero_si256(), (__m256i)v); }

/* The bits of x as bf16, 32 a lane. */
static inline __m256i upper_f32(vf32 x)
{
    const vu32 bits = (vu32)x;
    const __m256i rounded = (__m256i)((bits + (0x7fff + (bits >> 16 & 1))) >> 16);
    const __m256i nan = (__m256i)(x != x), quiet = _mm256_set1_epi32(0x7fc0);
    return _mm256_blendv_epi8(rounded, quiet, nan);
}

static inline pair_bf16 packed_bf16(vf32 low, vf32 high)
{
    return (pair_bf16)_mm256_packus_epi32(upper_f32(low), upper_f32(high));
}

static inline vbf16 pieces_bf16(const uint16_t *p, int64_t apart)
{
    vbf16 v;
    for (int k = 0; k < 1; k++)
        memcpy((uint16_t *)&v + k * 8, p + k * apart, 8 * sizeof *p);
    return v;
}

/* Loads 8 columns of 8 rows, each `pitch` elements after the one before. */
static inline void load_strip_bf16(const uint16_t *p, int64_t pitch, vbf16 *v)
{
    const int64_t apart = 8 * pitch;
    const vbf16 a0 = pieces_bf16(p, apart);
    p += pitch;
    __asm__("" : "+r"(p));
    const vbf16 a1 = pieces_bf16(p, apart);
    p += pitch;
    __asm__("" : "+r"(p));
    const vbf16 a2 = pieces_bf16(p, apart);
    p += pitch;
    __asm__("" : "+r"(p));
    const vbf16 a3 = pieces_bf16(p, apart);
    p += pitch;
    __asm__("" : "+r"(p));
    const vbf16 a4 = pieces_bf16(p, apart);
    p += pitch;
    __asm__("" : "+r"(p));
    const vbf16 a5 = pieces_bf16(p, apart);
    p += pitch;
    __asm__("" : "+r"(p));
    const vbf16 a6 = pieces_bf16(p, apart);
    p += pitch;
    __asm__("" : "+r"(p));
    const vbf16 a7 = pieces_bf16(p, apart);
    const vbf16 b0_0 = SHUFFLE2(vi16, a0, a4, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b0_1 = SHUFFLE2(vi16, a0, a4, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b0_2 = SHUFFLE2(vi16, a1, a5, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b0_3 = SHUFFLE2(vi16, a1, a5, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b0_4 = SHUFFLE2(vi16, a2, a6, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b0_5 = SHUFFLE2(vi16, a2, a6, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b0_6 = SHUFFLE2(vi16, a3, a7, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b0_7 = SHUFFLE2(vi16, a3, a7, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b1_0 = SHUFFLE2(vi16, b0_0, b0_4, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b1_1 = SHUFFLE2(vi16, b0_0, b0_4, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b1_2 = SHUFFLE2(vi16, b0_1, b0_5, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b1_3 = SHUFFLE2(vi16, b0_1, b0_5, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b1_4 = SHUFFLE2(vi16, b0_2, b0_6, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b1_5 = SHUFFLE2(vi16, b0_2, b0_6, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b1_6 = SHUFFLE2(vi16, b0_3, b0_7, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b1_7 = SHUFFLE2(vi16, b0_3, b0_7, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b2_0 = SHUFFLE2(vi16, b1_0, b1_4, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b2_1 = SHUFFLE2(vi16, b1_0, b1_4, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b2_2 = SHUFFLE2(vi16, b1_1, b1_5, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b2_3 = SHUFFLE2(vi16, b1_1, b1_5, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b2_4 = SHUFFLE2(vi16, b1_2, b1_6, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b2_5 = SHUFFLE2(vi16, b1_2, b1_6, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b2_6 = SHUFFLE2(vi16, b1_3, b1_7, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b2_7 = SHUFFLE2(vi16, b1_3, b1_7, 4, 12, 5, 13, 6, 14, 7, 15);
    v[0] = b2_0;
    v[1] = b2_1;
    v[2] = b2_2;
    v[3] = b2_3;
    v[4] = b2_4;
    v[5] = b2_5;
    v[6] = b2_6;
    v[7] = b2_7;
}

static inline vf32 from_bf16_f32(vbf16 x)
{
    const __m256i wide = _mm256_cvtepu16_epi32((__m128i)x);
    return (vf32)_mm256_slli_epi32(wide, 16);
}

static inline vbf16 to_bf16_f32(vf32 x)
{
    const __m256i whole = upper_f32(x);
    const __m128i upper = _mm256_extracti128_si256(whole, 1);
    return (vbf16)_mm_packus_epi32(_mm256_castsi256_si128(whole), upper);
}

static inline void store_bf16(uint16_t *p, vbf16 v) { *(ubf16 *)p = v; }

/* As load_strip, of the first `rows` rows and `columns` columns alone. */
static inline void load_strip_n_bf16(
    const uint16_t *p, int64_t pitch, vbf16 *v, int rows, int columns)
{
    uint16_t some[72] = {0};
    for (int l = 0; l < rows; l++) {
        memcpy(some + l * 8, p, (size_t)columns * sizeof *p);
        p += pitch;
    }
    load_strip_bf16(some, 8, v);
}

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

static inline vbf16 load_n_bf16(const uint16_t *p, int n)
{
    const unsigned __int128 x = load_few(p, n * (int)sizeof *p);
    vbf16 v;
    memcpy(&v, &x, sizeof v);
    return v;
}

/* Transposes 8 vectors of 8 lanes. */
static inline void turn_bf16(vbf16 *v)
{
    const vbf16 a0 = v[0];
    const vbf16 a1 = v[1];
    const vbf16 a2 = v[2];
    const vbf16 a3 = v[3];
    const vbf16 a4 = v[4];
    const vbf16 a5 = v[5];
    const vbf16 a6 = v[6];
    const vbf16 a7 = v[7];
    const vbf16 b0_0 = SHUFFLE2(vi16, a0, a4, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b0_1 = SHUFFLE2(vi16, a0, a4, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b0_2 = SHUFFLE2(vi16, a1, a5, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b0_3 = SHUFFLE2(vi16, a1, a5, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b0_4 = SHUFFLE2(vi16, a2, a6, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b0_5 = SHUFFLE2(vi16, a2, a6, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b0_6 = SHUFFLE2(vi16, a3, a7, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b0_7 = SHUFFLE2(vi16, a3, a7, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b1_0 = SHUFFLE2(vi16, b0_0, b0_4, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b1_1 = SHUFFLE2(vi16, b0_0, b0_4, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b1_2 = SHUFFLE2(vi16, b0_1, b0_5, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b1_3 = SHUFFLE2(vi16, b0_1, b0_5, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b1_4 = SHUFFLE2(vi16, b0_2, b0_6, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b1_5 = SHUFFLE2(vi16, b0_2, b0_6, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b1_6 = SHUFFLE2(vi16, b0_3, b0_7, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b1_7 = SHUFFLE2(vi16, b0_3, b0_7, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b2_0 = SHUFFLE2(vi16, b1_0, b1_4, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b2_1 = SHUFFLE2(vi16, b1_0, b1_4, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b2_2 = SHUFFLE2(vi16, b1_1, b1_5, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b2_3 = SHUFFLE2(vi16, b1_1, b1_5, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b2_4 = SHUFFLE2(vi16, b1_2, b1_6, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b2_5 = SHUFFLE2(vi16, b1_2, b1_6, 4, 12, 5, 13, 6, 14, 7, 15);
    const vbf16 b2_6 = SHUFFLE2(vi16, b1_3, b1_7, 0, 8, 1, 9, 2, 10, 3, 11);
    const vbf16 b2_7 = SHUFFLE2(vi16, b1_3, b1_7, 4, 12, 5, 13, 6, 14, 7, 15);
    v[0] = b2_0;
    v[1] = b2_1;
    v[2] = b2_2;
    v[3] = b2_3;
    v[4] = b2_4;
    v[5] = b2_5;
    v[6] = b2_6;
    v[7] = b2_7;
}

static inline void store_n_bf16(uint16_t *p, vbf16 v, int n)
{
    unsigned __int128 x = 0;
    memcpy(&x, &v, sizeof v);
    store_few(p, x, n * (int)sizeof *p);
}

static inline int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static inline int64_t floor_mod(int64_t a, int64_t b)
{
    return a - b * floor_div(a, b);
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

extern void GOMP_parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags);
extern int omp_get_thread_num(void);
extern int omp_get_num_threads(void);

static void run(void *const *parameters, const int64_t *dims, int64_t from, int64_t to)
{
    const uint16_t *const in0 = (const uint16_t *)parameters[0];
    uint16_t *const out1 = (uint16_t *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t k2 = dims[2];
    const int64_t np0 = k0;
    const int64_t np1 = k1;
    const int64_t np2 = k2;
    const int is_large = np0 * np1 * np2 * 4 > (2 * k1 % 512 == 0 || 2 * k2 % 512 == 0 ? 12582912 : 2097152);
    const int64_t rows = ((k1 + 255) / 256);
    const int64_t blocks = ((k2 + 127) / 128);
    const vf32 v2 = splat_f32(2.0f);
    int64_t p0 = (from / blocks) / rows;
    int64_t row = from / blocks % rows;
    int64_t block = from % blocks;
    for (int64_t task = from; task < to; task++) {
        const int64_t begin_p1 = row * 256;
        const int64_t end_p1 = least(np1, begin_p1 + 256);
        const int64_t begin_p2 = block * 128;
        const int64_t end_p2 = least(np2, begin_p2 + 128);
        if (np1 >= 8 && np2 >= 32) {
            const int64_t rounds = (end_p1 - begin_p1 + 31) / 32 * 32;
            const int is_crowded = 2 * k1 % 512 == 0 || 2 * k2 % 512 == 0;
            uint16_t lines0[1024] __attribute__((aligned(64)));
            const int64_t skip = least(is_crowded ? 64 : 256, rounds);
            const int64_t left_p1 = (end_p1 - begin_p1) % 8, last_p1 = end_p1 - 8;
            const int64_t from_p1[2] = {begin_p1, last_p1};
            const int64_t to_p1[2] = {end_p1 - left_p1, last_p1 + (left_p1 > 0)};
            const int64_t left_p2 = (end_p2 - begin_p2) % 32, last_p2 = end_p2 - 32;
            const int64_t from_p2[2] = {begin_p2, last_p2};
            const int64_t to_p2[2] = {end_p2 - left_p2, last_p2 + (left_p2 > 0)};
            #pragma GCC unroll 1
            for (int n = 0; n < 4; n++) {
                for (int64_t p2 = from_p2[n / 2]; p2 < to_p2[n / 2]; p2 += 32) {
                    for (int64_t at = from_p1[n % 2]; at < to_p1[n % 2]; at += 8) {
                        const int64_t strip = (at - begin_p1) % 32;
                        int64_t later_at = at - strip + skip, later_lane = p2;
                        if (later_at - begin_p1 >= rounds) {
                            later_at -= rounds;
                            later_lane += 32;
                        }
                        if (is_large && later_lane + 32 <= np2) {
                            const int64_t later_column = later_lane + strip / 8 * 8;
                            if (is_large && later_at == begin_p1) {
                                const uint16_t *next = in0 + (k1 * k2 * p0) + (k1 * later_column) + later_at;
                                #pragma GCC unroll 8
                                for (int l = 0; l < 8; l++) {
                                    __builtin_prefetch(next, 0, 2);
                                    next += k1;
                                    __asm__ volatile("" : "+r"(next));
                                }
                            }
                            if (is_large) {
                                const uint16_t *next = in0 + (k1 * k2 * p0) + (k1 * later_column) + later_at + 31;
                                #pragma GCC unroll 8
                                for (int l = 0; l < 8; l++) {
                                    __builtin_prefetch(next, 0, 2);
                                    next += k1;
                                    __asm__ volatile("" : "+r"(next));
                                }
                            }
                            if (is_large) {
                                const uint16_t *next = out1 + (k1 * k2 * p0) + (k2 * later_at) + (k2 * strip) + later_lane + 31;
                                #pragma GCC unroll 8
                                for (int l = 0; l < 8; l++) {
                                    __builtin_prefetch(next, 1, 2);
                                    next += k2;
                                    __asm__ volatile("" : "+r"(next));
                                }
                            }
                        }
                        const int is_copied = is_large && is_crowded && n % 2 == 0 && at - strip + 32 <= end_p1;
                        const uint16_t *first0 = in0 + (k1 * k2 * p0) + (k1 * p2) + at;
                        const int64_t pitch0 = k1;
                        int64_t apart0 = pitch0;
                        if (is_copied) {
                            if (strip == 0) {
                                #pragma GCC unroll 8
                                for (int l = 0; l < 32; l++) {
                                    memcpy(lines0 + l * 32, first0, 64);
                                    first0 += pitch0;
                                    __asm__ volatile("" : "+r"(first0));
                                }
                            }
                            first0 = lines0 + strip;
                            apart0 = 32;
                        }
                        pair_bf16 square0_0[8];
                        load_pair_strip_bf16(first0, apart0, square0_0 + 0);
                        first0 += 16 * apart0;
                        pair_bf16 square0_1[8];
                        load_pair_strip_bf16(first0, apart0, square0_1 + 0);
                        first0 += 16 * apart0;
                        int64_t p1 = at;
                        uint16_t *row5 = out1 + (k1 * k2 * p0) + (k2 * p1) + p2;
                        #pragma GCC unroll 8
                        for (int l = 0; l < 8; l++) {
                            const pair_bf16 pair0_0 = square0_0[l];
                            const pair_bf16 pair0_1 = square0_1[l];
                            const vf32 v1_0 = low_bf16(pair0_0);
                            const vf32 v1_1 = high_bf16(pair0_0);
                            const vf32 v1_2 = low_bf16(pair0_1);
                            const vf32 v1_3 = high_bf16(pair0_1);
                            const vf32 v3_0 = v1_0 * v2;
                            const vf32 v3_1 = v1_1 * v2;
                            const vf32 v3_2 = v1_2 * v2;
                            const vf32 v3_3 = v1_3 * v2;
                            store_pair_bf16(row5, packed_bf16(v3_0, v3_1));
                            store_pair_bf16(row5 + 16, packed_bf16(v3_2, v3_3));
                            row5 += k2;
                            __asm__ volatile("" : "+r"(row5));
                        }
                    }
                }
            }
        }
        else {
            const int has_squares = 0;
            const int repeats_p1 = np1 >= 8;
            const int repeats_p2 = np2 >= 8;
            const int64_t width = 128;
            const int64_t down = np2 < 8 ? 8 : 8;
            for (int64_t left = begin_p2; left < end_p2; left += width) {
                const int64_t right = least(end_p2, left + width);
                int64_t at = begin_p1;
                while (at < end_p1) {
                    int64_t p2 = left, bottom = least(at + down, end_p1);
                    if (down == 8 && (bottom == at + 8 || repeats_p1)) {
                        at = bottom - 8;
                        for (; p2 <= right - 8 || (p2 < right && repeats_p2); p2 += 8) {
                            p2 = least(p2, right - 8);
                            const uint16_t *first0 = in0 + (k1 * k2 * p0) + (k1 * p2) + at;
                            const int64_t pitch0 = k1;
                            vbf16 square0[8];
                            load_strip_bf16(first0, pitch0, square0 + 0);
                            int64_t p1 = at;
                            uint16_t *row5 = out1 + (k1 * k2 * p0) + (k2 * p1) + p2;
                            #pragma GCC unroll 8
                            for (int l = 0; l < 8; l++) {
                                const vbf16 v0_0 = square0[l];
                                const vf32 v1_0 = from_bf16_f32(v0_0);
                                const vf32 v3_0 = v1_0 * v2;
                                const vbf16 v4_0 = to_bf16_f32(v3_0);
                                store_bf16(row5, v4_0);
                                row5 += k2;
                                __asm__ volatile("" : "+r"(row5));
                            }
                        }
                    }
                    for (; p2 < right; p2 += 8) {
                        const int count = (int)least(8, right - p2);
                        for (int64_t p1 = at; p1 < bottom;) {
                            const int height = (int)least(down, bottom - p1);
                            const uint16_t *first0 = in0 + (k1 * k2 * p0) + (k1 * p2) + p1;
                            const int64_t pitch0 = k1;
                            vbf16 square0[8];
                            {
                                load_strip_n_bf16(first0 + 0, pitch0, square0 + 0, count, height);
                            }
                            #pragma GCC unroll 1
                            for (int l = 0; l < height; l++) {
                                const vbf16 v0_0 = square0[l];
                                const vf32 v1_0 = from_bf16_f32(v0_0);
                                const vf32 v3_0 = v1_0 * v2;
                                const vbf16 v4_0 = to_bf16_f32(v3_0);
                                store_n_bf16(out1 + (k1 * k2 * p0) + (k2 * p1) + p2, v4_0, count);
                                p1++;
                                __asm__ volatile("" : "+r"(p1));
                            }
                        }
                    }
                    at = bottom;
                }
            }
        }
        if (++block == blocks) {
            block = 0;
            if (++row == rows) {
                row = 0;
                p0++;
            }
        }
    }
}

struct call {
    void *const *parameters;
    const int64_t *dims;
    int64_t total;
};

static void share(void *data)
{
    const struct call *call = data;
    const int64_t me = omp_get_thread_num(), threads = omp_get_num_threads();
    run(call->parameters, call->dims, call->total * me / threads, call->total * (me + 1) / threads);
}

void nearhint_kernel(void *const *parameters, const int64_t *dims, int32_t threads)
{
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t k2 = dims[2];
    struct call call = {parameters, dims, k0 * ((k1 + 255) / 256) * ((k2 + 127) / 128)};
    if (threads > 1 && call.total > 1)
        GOMP_parallel(share, &call, (unsigned)threads, 0);
    else
        run(parameters, dims, 0, call.total);
}
