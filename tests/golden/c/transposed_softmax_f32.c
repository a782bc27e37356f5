// cpu.panels axis=0 lanes=8 unroll=2 short=0 stash=0 across=0 rows=16 length=64 split=0
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

/* Transposes 8 vectors of 8 lanes. */
static inline void turn_f32(vf32 *v)
{
    const vf32 a0 = v[0];
    const vf32 a1 = v[1];
    const vf32 a2 = v[2];
    const vf32 a3 = v[3];
    const vf32 a4 = v[4];
    const vf32 a5 = v[5];
    const vf32 a6 = v[6];
    const vf32 a7 = v[7];
    const vf32 c1_0 = SHUFFLE2(vi32, a0, a1, 0, 8, 2, 10, 4, 12, 6, 14);
    const vf32 c1_1 = SHUFFLE2(vi32, a0, a1, 1, 9, 3, 11, 5, 13, 7, 15);
    const vf32 c1_2 = SHUFFLE2(vi32, a2, a3, 0, 8, 2, 10, 4, 12, 6, 14);
    const vf32 c1_3 = SHUFFLE2(vi32, a2, a3, 1, 9, 3, 11, 5, 13, 7, 15);
    const vf32 c1_4 = SHUFFLE2(vi32, a4, a5, 0, 8, 2, 10, 4, 12, 6, 14);
    const vf32 c1_5 = SHUFFLE2(vi32, a4, a5, 1, 9, 3, 11, 5, 13, 7, 15);
    const vf32 c1_6 = SHUFFLE2(vi32, a6, a7, 0, 8, 2, 10, 4, 12, 6, 14);
    const vf32 c1_7 = SHUFFLE2(vi32, a6, a7, 1, 9, 3, 11, 5, 13, 7, 15);
    const vf32 c2_0 = SHUFFLE2(vi32, c1_0, c1_2, 0, 1, 8, 9, 4, 5, 12, 13);
    const vf32 c2_2 = SHUFFLE2(vi32, c1_0, c1_2, 2, 3, 10, 11, 6, 7, 14, 15);
    const vf32 c2_1 = SHUFFLE2(vi32, c1_1, c1_3, 0, 1, 8, 9, 4, 5, 12, 13);
    const vf32 c2_3 = SHUFFLE2(vi32, c1_1, c1_3, 2, 3, 10, 11, 6, 7, 14, 15);
    const vf32 c2_4 = SHUFFLE2(vi32, c1_4, c1_6, 0, 1, 8, 9, 4, 5, 12, 13);
    const vf32 c2_6 = SHUFFLE2(vi32, c1_4, c1_6, 2, 3, 10, 11, 6, 7, 14, 15);
    const vf32 c2_5 = SHUFFLE2(vi32, c1_5, c1_7, 0, 1, 8, 9, 4, 5, 12, 13);
    const vf32 c2_7 = SHUFFLE2(vi32, c1_5, c1_7, 2, 3, 10, 11, 6, 7, 14, 15);
    const vf32 c4_0 = SHUFFLE2(vi32, c2_0, c2_4, 0, 1, 2, 3, 8, 9, 10, 11);
    const vf32 c4_4 = SHUFFLE2(vi32, c2_0, c2_4, 4, 5, 6, 7, 12, 13, 14, 15);
    const vf32 c4_1 = SHUFFLE2(vi32, c2_1, c2_5, 0, 1, 2, 3, 8, 9, 10, 11);
    const vf32 c4_5 = SHUFFLE2(vi32, c2_1, c2_5, 4, 5, 6, 7, 12, 13, 14, 15);
    const vf32 c4_2 = SHUFFLE2(vi32, c2_2, c2_6, 0, 1, 2, 3, 8, 9, 10, 11);
    const vf32 c4_6 = SHUFFLE2(vi32, c2_2, c2_6, 4, 5, 6, 7, 12, 13, 14, 15);
    const vf32 c4_3 = SHUFFLE2(vi32, c2_3, c2_7, 0, 1, 2, 3, 8, 9, 10, 11);
    const vf32 c4_7 = SHUFFLE2(vi32, c2_3, c2_7, 4, 5, 6, 7, 12, 13, 14, 15);
    v[0] = c4_0;
    v[1] = c4_1;
    v[2] = c4_2;
    v[3] = c4_3;
    v[4] = c4_4;
    v[5] = c4_5;
    v[6] = c4_6;
    v[7] = c4_7;
}

static inline void store_f32(float *p, vf32 v) { *(uf32 *)p = v; }

static inline vf32 load_f32(const float *p) { return *(const uf32 *)p; }

static inline vf32 load_n_f32(const float *p, int n)
{
    return _mm256_maskload_ps(p, (__m256i)((vi32){0, 1, 2, 3, 4, 5, 6, 7} < n));
}

static inline vf32 splat_f32(float x) { return x - (vf32){0}; }

static inline vf32 from_bits_f32(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return splat_f32(x);
}

static inline vf32 sel_f32(vbool m, vf32 a, vf32 b)
{
    return (vf32)((m & (vi32)a) | (~m & (vi32)b));
}

static inline vf32 max_f32(vf32 a, vf32 b)
{
    return sel_f32(b != b, b, (vf32)_mm256_max_ps(b, a));
}

/* The first n lanes of v, the rest of other. */
static inline vf32 keep_n_f32(int n, vf32 v, vf32 other)
{
    return sel_f32((vi32){0, 1, 2, 3, 4, 5, 6, 7} < n, v, other);
}

static inline vf32 across_max_f32(vf32 v)
{
    vf32 s;
    s = SHUFFLE(vi32, v, 4, 5, 6, 7, 0, 1, 2, 3);
    v = max_f32(v, s);
    s = SHUFFLE(vi32, v, 2, 3, 0, 1, 6, 7, 4, 5);
    v = max_f32(v, s);
    s = SHUFFLE(vi32, v, 1, 0, 3, 2, 5, 4, 7, 6);
    v = max_f32(v, s);
    return v;
}

static inline vf32 mad_f32(vf32 a, vf32 b, vf32 c) { return _mm256_fmadd_ps(a, b, c); }

/* x between low and high; NaN stays. */
static inline vf32 clamp_f32(vf32 x, float low, float high)
{
    return _mm256_min_ps(splat_f32(high), _mm256_max_ps(splat_f32(low), x));
}

/* x rounded to an integer, |x| < 2 to the power 22. */
static inline vf32 nearest_f32(vf32 x) { return (x + 12582912.0f) - 12582912.0f; }

/* y times 2 to the power n, |n| < 250, rounded once for y in (0.5, 2). */
static inline vf32 scale_f32(vf32 y, vf32 n)
{
    vi32 whole = __builtin_convertvector(n, vi32), half = whole >> 1;
    return y * (vf32)((half + 127) << 23) * (vf32)((whole - half + 127) << 23);
}

static inline vf32 exp_f32(vf32 x)
{
    x = clamp_f32(x, -104.0f, 89.0f);
    vf32 n = nearest_f32(x * 1.442695041f);
    vf32 r = mad_f32(n, splat_f32(-0.693359375f), x);
    r = mad_f32(n, splat_f32(2.12194440e-4f), r);
    vf32 p;
    p = splat_f32(0.0013820136f);
    p = mad_f32(p, r, splat_f32(0.008368686f));
    p = mad_f32(p, r, splat_f32(0.041668274f));
    p = mad_f32(p, r, splat_f32(0.16666521f));
    p = mad_f32(p, r, splat_f32(0.49999994f));
    p = mad_f32(p * r, r, r) + 1.0f;
    return scale_f32(p, n);
}

static inline vf32 across_sum_f32(vf32 v)
{
    vf32 s;
    s = SHUFFLE(vi32, v, 4, 5, 6, 7, 0, 1, 2, 3);
    v = v + s;
    s = SHUFFLE(vi32, v, 2, 3, 0, 1, 6, 7, 4, 5);
    v = v + s;
    s = SHUFFLE(vi32, v, 1, 0, 3, 2, 5, 4, 7, 6);
    v = v + s;
    return v;
}

/* x / d for a d that is the same in all lanes: within one more half ulp. */
static inline vf32 quotient_f32(vf32 x, vf32 d)
{
    float size = d[0] < 0.0f ? -d[0] : d[0];
    return size > 0x1p-100f && size < 0x1p100f ? x * (1.0f / d) : x / d;
}

static inline void store_n_f32(float *p, vf32 v, int n)
{
    _mm256_maskstore_ps(p, (__m256i)((vi32){0, 1, 2, 3, 4, 5, 6, 7} < n), v);
}

static inline vf32 gather_n_f32(const float *p, int64_t stride, int n)
{
    vf32 v = {0};
    for (int l = 0; l < n; l++)
        v[l] = p[l * stride];
    return v;
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

static __attribute__((noinline)) void turn_panel0(
    void *const *parameters, const int64_t *dims, int64_t begin_p0, int64_t end_p0, 
    float *panel, int64_t stride)
{
    const float *const in0 = (const float *)parameters[0];
    float *const out1 = (float *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k0;
    const int64_t nr0 = k1;
    const int64_t begin_r0 = 0, end_r0 = nr0;
    for (int64_t i0 = 0; begin_r0 + i0 < end_r0; i0 += 8) {
        for (int64_t j = 0; begin_p0 + j < end_p0; j += 8) {
            const int n = (int)least(8, end_p0 - begin_p0 - j);
            vf32 square[8];
            const float *p = in0 + (begin_r0 * k0) + (i0 * k0) + begin_p0 + j;
            const int64_t pitch = k0, ahead = 48 * k0;
            if (begin_r0 + i0 + 8 <= end_r0 && n == 8) {
                for (int l = 0; l < 8; l++) {
                    square[l] = load_f32(p);
                    if (j == 0) __builtin_prefetch(p + ahead, 0, 2);
                    if (j % 16 == 8) __builtin_prefetch(p + ahead + 7, 0, 2);
                    p += pitch;
                    __asm__("" : "+r"(p));
                }
            }
            else {
                for (int l = 0; l < 8; l++) {
                    square[l] = load_n_f32(p, n);
                    p += begin_r0 + i0 + l + 1 < end_r0 ? pitch : 0;
                    __asm__("" : "+r"(p));
                }
            }
            turn_f32(square);
            for (int l = 0; l < 8; l++)
                store_f32(panel + (j + l) * stride + i0, square[l]);
        }
    }
}

static void rows_up_to_64(void *const *parameters, const int64_t *dims, int64_t from, int64_t to)
{
    const float *const in0 = (const float *)parameters[0];
    float *const out1 = (float *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k0;
    const int64_t nr0 = k1;
    float panel0[1280] __attribute__((aligned(64)));
    const int64_t stride0 = ((nr0 + 15) / 16 | 1) * 16;
    const int64_t blocks = ((k0 + 15) / 16);
    int64_t block = from;
    for (int64_t task = from; task < to; task++) {
        const int64_t begin_p0 = block * 16;
        const int64_t end_p0 = least(np0, begin_p0 + 16);
        turn_panel0(parameters, dims, begin_p0, end_p0, panel0, stride0);
        for (int64_t p0 = begin_p0; p0 < end_p0; p0++) {
            vf32 t1_0 = from_bits_f32(0xff800000), t1_1 = from_bits_f32(0xff800000);
            {
                int64_t r0 = 0;
                for (; r0 + 16 <= nr0; r0 += 16) {
                    const vf32 v0_0 = load_f32(panel0 + (p0 - begin_p0) * stride0 + r0);
                    const vf32 v0_1 = load_f32(panel0 + (p0 - begin_p0) * stride0 + r0 + 8);
                    t1_0 = max_f32(t1_0, v0_0);
                    t1_1 = max_f32(t1_1, v0_1);
                }
                for (; r0 < nr0; r0 += 8) {
                    const int count = (int)least(8, nr0 - r0);
                    const vf32 v0_0 = load_n_f32(panel0 + (p0 - begin_p0) * stride0 + r0, count);
                    t1_0 = max_f32(t1_0, keep_n_f32(count, v0_0, from_bits_f32(0xff800000)));
                }
            }
            const vf32 v1 = across_max_f32((max_f32(t1_0, t1_1)));
            vf32 t4_0 = splat_f32(0), t4_1 = splat_f32(0);
            {
                int64_t r0 = 0;
                while (r0 + 16 <= nr0) {
                    const int64_t stop = least(nr0, r0 + 1024);
                    vf32 s4_0 = splat_f32(0), s4_1 = splat_f32(0);
                    for (; r0 + 16 <= stop; r0 += 16) {
                        const vf32 v0_0 = load_f32(panel0 + (p0 - begin_p0) * stride0 + r0);
                        const vf32 v0_1 = load_f32(panel0 + (p0 - begin_p0) * stride0 + r0 + 8);
                        const vf32 v2_0 = v0_0 - v1;
                        const vf32 v2_1 = v0_1 - v1;
                        const vf32 v3_0 = exp_f32(v2_0);
                        const vf32 v3_1 = exp_f32(v2_1);
                        s4_0 = s4_0 + v3_0;
                        s4_1 = s4_1 + v3_1;
                    }
                    t4_0 = t4_0 + s4_0;
                    t4_1 = t4_1 + s4_1;
                }
                for (; r0 < nr0; r0 += 8) {
                    const int count = (int)least(8, nr0 - r0);
                    const vf32 v0_0 = load_n_f32(panel0 + (p0 - begin_p0) * stride0 + r0, count);
                    const vf32 v2_0 = v0_0 - v1;
                    const vf32 v3_0 = exp_f32(v2_0);
                    t4_0 = t4_0 + keep_n_f32(count, v3_0, splat_f32(0));
                }
            }
            const vf32 v4 = across_sum_f32((t4_0 + t4_1));
            {
                int64_t r0 = 0;
                for (; r0 + 16 <= nr0; r0 += 16) {
                    const vf32 v0_0 = load_f32(panel0 + (p0 - begin_p0) * stride0 + r0);
                    const vf32 v0_1 = load_f32(panel0 + (p0 - begin_p0) * stride0 + r0 + 8);
                    const vf32 v2_0 = v0_0 - v1;
                    const vf32 v2_1 = v0_1 - v1;
                    const vf32 v3_0 = exp_f32(v2_0);
                    const vf32 v3_1 = exp_f32(v2_1);
                    const vf32 v5_0 = quotient_f32(v3_0, v4);
                    const vf32 v5_1 = quotient_f32(v3_1, v4);
                    store_f32(out1 + (k1 * p0) + r0, v5_0);
                    store_f32(out1 + (k1 * p0) + r0 + 8, v5_1);
                }
                for (; r0 < nr0; r0 += 8) {
                    const int count = (int)least(8, nr0 - r0);
                    const vf32 v0_0 = load_n_f32(panel0 + (p0 - begin_p0) * stride0 + r0, count);
                    const vf32 v2_0 = v0_0 - v1;
                    const vf32 v3_0 = exp_f32(v2_0);
                    const vf32 v5_0 = quotient_f32(v3_0, v4);
                    store_n_f32(out1 + (k1 * p0) + r0, v5_0, count);
                }
            }
        }
        block++;
    }
}

static void rows(void *const *parameters, const int64_t *dims, int64_t from, int64_t to)
{
    const float *const in0 = (const float *)parameters[0];
    float *const out1 = (float *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k0;
    const int64_t nr0 = k1;
    const int64_t blocks = ((k0 + 15) / 16);
    int64_t block = from;
    for (int64_t task = from; task < to; task++) {
        const int64_t begin_p0 = block * 16;
        const int64_t end_p0 = least(np0, begin_p0 + 16);
        for (int64_t p0 = begin_p0; p0 < end_p0; p0++) {
            vf32 t1_0 = from_bits_f32(0xff800000), t1_1 = from_bits_f32(0xff800000);
            {
                int64_t r0 = 0;
                for (; r0 + 16 <= nr0; r0 += 16) {
                    const vf32 v0_0 = gather_n_f32(in0 + (k0 * r0) + p0, k0, 8);
                    const vf32 v0_1 = gather_n_f32(in0 + (k0 * r0) + (8 * k0) + p0, k0, 8);
                    t1_0 = max_f32(t1_0, v0_0);
                    t1_1 = max_f32(t1_1, v0_1);
                }
                for (; r0 < nr0; r0 += 8) {
                    const int count = (int)least(8, nr0 - r0);
                    const vf32 v0_0 = gather_n_f32(in0 + (k0 * r0) + p0, k0, count);
                    t1_0 = max_f32(t1_0, keep_n_f32(count, v0_0, from_bits_f32(0xff800000)));
                }
            }
            const vf32 v1 = across_max_f32((max_f32(t1_0, t1_1)));
            vf32 t4_0 = splat_f32(0), t4_1 = splat_f32(0);
            {
                int64_t r0 = 0;
                while (r0 + 16 <= nr0) {
                    const int64_t stop = least(nr0, r0 + 1024);
                    vf32 s4_0 = splat_f32(0), s4_1 = splat_f32(0);
                    for (; r0 + 16 <= stop; r0 += 16) {
                        const vf32 v0_0 = gather_n_f32(in0 + (k0 * r0) + p0, k0, 8);
                        const vf32 v0_1 = gather_n_f32(in0 + (k0 * r0) + (8 * k0) + p0, k0, 8);
                        const vf32 v2_0 = v0_0 - v1;
                        const vf32 v2_1 = v0_1 - v1;
                        const vf32 v3_0 = exp_f32(v2_0);
                        const vf32 v3_1 = exp_f32(v2_1);
                        s4_0 = s4_0 + v3_0;
                        s4_1 = s4_1 + v3_1;
                    }
                    t4_0 = t4_0 + s4_0;
                    t4_1 = t4_1 + s4_1;
                }
                for (; r0 < nr0; r0 += 8) {
                    const int count = (int)least(8, nr0 - r0);
                    const vf32 v0_0 = gather_n_f32(in0 + (k0 * r0) + p0, k0, count);
                    const vf32 v2_0 = v0_0 - v1;
                    const vf32 v3_0 = exp_f32(v2_0);
                    t4_0 = t4_0 + keep_n_f32(count, v3_0, splat_f32(0));
                }
            }
            const vf32 v4 = across_sum_f32((t4_0 + t4_1));
            {
                int64_t r0 = 0;
                for (; r0 + 16 <= nr0; r0 += 16) {
                    const vf32 v0_0 = gather_n_f32(in0 + (k0 * r0) + p0, k0, 8);
                    const vf32 v0_1 = gather_n_f32(in0 + (k0 * r0) + (8 * k0) + p0, k0, 8);
                    const vf32 v2_0 = v0_0 - v1;
                    const vf32 v2_1 = v0_1 - v1;
                    const vf32 v3_0 = exp_f32(v2_0);
                    const vf32 v3_1 = exp_f32(v2_1);
                    const vf32 v5_0 = quotient_f32(v3_0, v4);
                    const vf32 v5_1 = quotient_f32(v3_1, v4);
                    store_f32(out1 + (k1 * p0) + r0, v5_0);
                    store_f32(out1 + (k1 * p0) + r0 + 8, v5_1);
                }
                for (; r0 < nr0; r0 += 8) {
                    const int count = (int)least(8, nr0 - r0);
                    const vf32 v0_0 = gather_n_f32(in0 + (k0 * r0) + p0, k0, count);
                    const vf32 v2_0 = v0_0 - v1;
                    const vf32 v3_0 = exp_f32(v2_0);
                    const vf32 v5_0 = quotient_f32(v3_0, v4);
                    store_n_f32(out1 + (k1 * p0) + r0, v5_0, count);
                }
            }
        }
        block++;
    }
}

static void run(void *const *parameters, const int64_t *dims, int64_t from, int64_t to)
{
    const int64_t k1 = dims[1];
    const int64_t length = k1;
    if (length <= 64) {
        rows_up_to_64(parameters, dims, from, to);
        return;
    }
    rows(parameters, dims, from, to);
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
    struct call call = {parameters, dims, ((k0 + 15) / 16)};
    if (threads > 1 && call.total > 1)
        GOMP_parallel(share, &call, (unsigned)threads, 0);
    else
        run(parameters, dims, 0, call.total);
}
