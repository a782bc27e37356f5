// cpu.rows axis=0 lanes=8 unroll=2 short=1 stash=0 split=0 beside=64
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

static inline vf32 from_bits_f32(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return splat_f32(x);
}

static inline vf32 load_n_f32(const float *p, int n)
{
    return _mm256_maskload_ps(p, (__m256i)((vi32){0, 1, 2, 3, 4, 5, 6, 7} < n));
}

static inline vf32 sel_f32(vbool m, vf32 a, vf32 b)
{
    return (vf32)((m & (vi32)a) | (~m & (vi32)b));
}

/* The first n lanes of v, the rest of other. */
static inline vf32 keep_n_f32(int n, vf32 v, vf32 other)
{
    return sel_f32((vi32){0, 1, 2, 3, 4, 5, 6, 7} < n, v, other);
}

static inline vf32 max_f32(vf32 a, vf32 b)
{
    return sel_f32(b != b, b, (vf32)_mm256_max_ps(b, a));
}

/* Lane l: the lanes of t[l] combined. */
static inline vf32 totals_max_f32(vf32 *t)
{
    vf32 v, s;
    for (int i = 0; i < 8; i += 2) {
        v = SHUFFLE2(vi32, t[i], t[i + 1], 0, 9, 2, 11, 4, 13, 6, 15);
        s = SHUFFLE2(vi32, t[i], t[i + 1], 8, 1, 10, 3, 12, 5, 14, 7);
        s = SHUFFLE(vi32, s, 1, 0, 3, 2, 5, 4, 7, 6);
        t[i] = max_f32(v, s);
    }
    for (int i = 0; i < 8; i += 4) {
        v = SHUFFLE2(vi32, t[i], t[i + 2], 0, 1, 10, 11, 4, 5, 14, 15);
        s = SHUFFLE2(vi32, t[i], t[i + 2], 8, 9, 2, 3, 12, 13, 6, 7);
        s = SHUFFLE(vi32, s, 2, 3, 0, 1, 6, 7, 4, 5);
        t[i] = max_f32(v, s);
    }
    for (int i = 0; i < 8; i += 8) {
        v = SHUFFLE2(vi32, t[i], t[i + 4], 0, 1, 2, 3, 12, 13, 14, 15);
        s = SHUFFLE2(vi32, t[i], t[i + 4], 8, 9, 10, 11, 4, 5, 6, 7);
        s = SHUFFLE(vi32, s, 4, 5, 6, 7, 0, 1, 2, 3);
        t[i] = max_f32(v, s);
    }
    return t[0];
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

/* Lane l: the lanes of t[l] combined. */
static inline vf32 totals_sum_f32(vf32 *t)
{
    vf32 v, s;
    for (int i = 0; i < 8; i += 2) {
        v = SHUFFLE2(vi32, t[i], t[i + 1], 0, 9, 2, 11, 4, 13, 6, 15);
        s = SHUFFLE2(vi32, t[i], t[i + 1], 8, 1, 10, 3, 12, 5, 14, 7);
        s = SHUFFLE(vi32, s, 1, 0, 3, 2, 5, 4, 7, 6);
        t[i] = v + s;
    }
    for (int i = 0; i < 8; i += 4) {
        v = SHUFFLE2(vi32, t[i], t[i + 2], 0, 1, 10, 11, 4, 5, 14, 15);
        s = SHUFFLE2(vi32, t[i], t[i + 2], 8, 9, 2, 3, 12, 13, 6, 7);
        s = SHUFFLE(vi32, s, 2, 3, 0, 1, 6, 7, 4, 5);
        t[i] = v + s;
    }
    for (int i = 0; i < 8; i += 8) {
        v = SHUFFLE2(vi32, t[i], t[i + 4], 0, 1, 2, 3, 12, 13, 14, 15);
        s = SHUFFLE2(vi32, t[i], t[i + 4], 8, 9, 10, 11, 4, 5, 6, 7);
        s = SHUFFLE(vi32, s, 4, 5, 6, 7, 0, 1, 2, 3);
        t[i] = v + s;
    }
    return t[0];
}

/* x = 2 to the power e times (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), x positive and
   finite; returns f. */
static inline vf32 log_parts_f32(vf32 x, vf32 *e)
{
    vbool tiny = x < 1.17549435e-38f;
    vi32 bits = (vi32)sel_f32(tiny, x * 8388608.0f, x);
    vi32 shifted = bits - 0x3f3504f3;
    *e = __builtin_convertvector((shifted >> 23) - (tiny & 23), vf32);
    return (vf32)((shifted & 0x007fffff) + 0x3f3504f3) - 1.0f;
}

/* log(1 + f) - f, for f of log_parts. */
static inline vf32 log_tail_f32(vf32 f)
{
    vf32 p, u = f * f;
    p = splat_f32(-0.07636395f);
    p = mad_f32(p, f, splat_f32(0.12762198f));
    p = mad_f32(p, f, splat_f32(-0.13159613f));
    p = mad_f32(p, f, splat_f32(0.14201581f));
    p = mad_f32(p, f, splat_f32(-0.16623409f));
    p = mad_f32(p, f, splat_f32(0.20001242f));
    p = mad_f32(p, f, splat_f32(-0.2500082f));
    p = mad_f32(p, f, splat_f32(0.3333333f));
    return mad_f32(p * f, u, u * -0.5f);
}

/* y, but the logarithm of what is not positive and finite. */
static inline vf32 log_ends_f32(vf32 x, vf32 y)
{
    y = sel_f32((x > 0.0f) & (x < __builtin_inff()), y, x + x);
    y = sel_f32(x == 0.0f, splat_f32(-__builtin_inff()), y);
    return sel_f32(x < 0.0f, splat_f32(__builtin_nanf("")), y);
}

static inline vf32 log_f32(vf32 x)
{
    vf32 e, f = log_parts_f32(x, &e);
    vf32 y = mad_f32(e, splat_f32(-2.12194440e-4f), log_tail_f32(f)) + f;
    return log_ends_f32(x, mad_f32(e, splat_f32(0.693359375f), y));
}

static inline void store_n_f32(float *p, vf32 v, int n)
{
    _mm256_maskstore_ps(p, (__m256i)((vi32){0, 1, 2, 3, 4, 5, 6, 7} < n), v);
}

static inline vf32 load_f32(const float *p) { return *(const uf32 *)p; }

static inline void store_f32(float *p, vf32 v) { *(uf32 *)p = v; }

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

static void rows_of_1(void *const *parameters, const int64_t *dims, int64_t from, int64_t to)
{
    const float *const in0 = (const float *)parameters[0];
    float *const out1 = (float *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k0;
    const int64_t nr0 = k1;
    float row1[8] __attribute__((aligned(64)));
    float row5[8] __attribute__((aligned(64)));
    vf32 totals1[8];
    for (int l = 0; l < 8; l++)
        totals1[l] = from_bits_f32(0xff800000);
    vf32 totals4[8];
    for (int l = 0; l < 8; l++)
        totals4[l] = splat_f32(0);
    const int64_t r0 = 0;
    const int count = (int)nr0 - 0;
    int64_t rows;
    int64_t first = from;
    for (int64_t task = from; task < to; task += rows) {
        rows = least(8, least(to - task, np0 - first));
        const int64_t p0 = first;
        for (int64_t p0 = first; p0 < first + rows; p0++) {
            vf32 t1_0 = from_bits_f32(0xff800000);
            const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
            t1_0 = max_f32(t1_0, keep_n_f32(count, v0_0, from_bits_f32(0xff800000)));
            totals1[p0 - first] = t1_0;
        }
        const vf32 v1_0 = totals_max_f32(totals1);
        *(uf32 *)row1 = v1_0;
        for (int64_t p0 = first; p0 < first + rows; p0++) {
            const vf32 v1 = splat_f32(row1[p0 - first]);
            vf32 t4_0 = splat_f32(0);
            const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
            const vf32 v2_0 = v0_0 - v1;
            const vf32 v3_0 = exp_f32(v2_0);
            t4_0 = t4_0 + keep_n_f32(count, v3_0, splat_f32(0));
            totals4[p0 - first] = t4_0;
        }
        const vf32 v4_0 = totals_sum_f32(totals4);
        const vf32 v5_0 = log_f32(v4_0);
        *(uf32 *)row5 = v5_0;
        for (int64_t p0 = first; p0 < first + rows; p0++) {
            const vf32 v1 = splat_f32(row1[p0 - first]);
            const vf32 v5 = splat_f32(row5[p0 - first]);
            const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
            const vf32 v2_0 = v0_0 - v1;
            const vf32 v6_0 = v2_0 - v5;
            store_n_f32(out1 + (k1 * p0) + r0, v6_0, count);
        }
        first += rows;
    }
}

static void far_rows_beside_up_to_64(void *const *parameters, const int64_t *dims, int64_t from, int64_t to)
{
    const float *const in0 = (const float *)parameters[0];
    float *const out1 = (float *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k0;
    const int64_t nr0 = k1;
    float row1[8] __attribute__((aligned(64)));
    float row5[8] __attribute__((aligned(64)));
    vf32 totals1[8];
    for (int l = 0; l < 8; l++)
        totals1[l] = from_bits_f32(0xff800000);
    vf32 totals4[8];
    for (int l = 0; l < 8; l++)
        totals4[l] = splat_f32(0);
    const int64_t next_rows = 8 * (1 + 8192 / (64 * k1 + 1));
    int64_t rows;
    int64_t first = from;
    for (int64_t task = from; task < to; task += rows) {
        rows = least(8, least(to - task, np0 - first));
        const int64_t p0 = first;
        for (int64_t p0 = first; p0 < first + rows; p0++) {
            vf32 t1_0 = from_bits_f32(0xff800000), t1_1 = from_bits_f32(0xff800000);
            int64_t r0 = 0;
            for (; r0 + 16 <= nr0; r0 += 16) {
                const vf32 v0_0 = load_f32(in0 + (k1 * p0) + r0);
                const vf32 v0_1 = load_f32(in0 + (k1 * p0) + r0 + 8);
                t1_0 = max_f32(t1_0, v0_0);
                t1_1 = max_f32(t1_1, v0_1);
            }
            for (; r0 < nr0; r0 += 8) {
                const int count = (int)least(8, nr0 - r0);
                const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
                t1_0 = max_f32(t1_0, keep_n_f32(count, v0_0, from_bits_f32(0xff800000)));
            }
            totals1[p0 - first] = (max_f32(t1_0, t1_1));
        }
        const vf32 v1_0 = totals_max_f32(totals1);
        *(uf32 *)row1 = v1_0;
        for (int64_t p0 = first; p0 < first + rows; p0++) {
            const vf32 v1 = splat_f32(row1[p0 - first]);
            vf32 t4_0 = splat_f32(0), t4_1 = splat_f32(0);
            int64_t r0 = 0;
            for (; r0 + 16 <= nr0; r0 += 16) {
                __builtin_prefetch(out1 + (k1 * p0) + r0 + 0);
                const vf32 v0_0 = load_f32(in0 + (k1 * p0) + r0);
                const vf32 v0_1 = load_f32(in0 + (k1 * p0) + r0 + 8);
                const vf32 v2_0 = v0_0 - v1;
                const vf32 v2_1 = v0_1 - v1;
                const vf32 v3_0 = exp_f32(v2_0);
                const vf32 v3_1 = exp_f32(v2_1);
                t4_0 = t4_0 + v3_0;
                t4_1 = t4_1 + v3_1;
            }
            for (; r0 < nr0; r0 += 8) {
                const int count = (int)least(8, nr0 - r0);
                const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
                const vf32 v2_0 = v0_0 - v1;
                const vf32 v3_0 = exp_f32(v2_0);
                t4_0 = t4_0 + keep_n_f32(count, v3_0, splat_f32(0));
            }
            totals4[p0 - first] = (t4_0 + t4_1);
        }
        const vf32 v4_0 = totals_sum_f32(totals4);
        const vf32 v5_0 = log_f32(v4_0);
        *(uf32 *)row5 = v5_0;
        for (int64_t p0 = first; p0 < first + rows; p0++) {
            const vf32 v1 = splat_f32(row1[p0 - first]);
            const vf32 v5 = splat_f32(row5[p0 - first]);
            int64_t r0 = 0;
            for (; r0 + 16 <= nr0; r0 += 16) {
                __builtin_prefetch(in0 + (k1 * next_rows) + (k1 * p0) + r0 + 0);
                const vf32 v0_0 = load_f32(in0 + (k1 * p0) + r0);
                const vf32 v0_1 = load_f32(in0 + (k1 * p0) + r0 + 8);
                const vf32 v2_0 = v0_0 - v1;
                const vf32 v2_1 = v0_1 - v1;
                const vf32 v6_0 = v2_0 - v5;
                const vf32 v6_1 = v2_1 - v5;
                store_f32(out1 + (k1 * p0) + r0, v6_0);
                store_f32(out1 + (k1 * p0) + r0 + 8, v6_1);
            }
            for (; r0 < nr0; r0 += 8) {
                const int count = (int)least(8, nr0 - r0);
                const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
                const vf32 v2_0 = v0_0 - v1;
                const vf32 v6_0 = v2_0 - v5;
                store_n_f32(out1 + (k1 * p0) + r0, v6_0, count);
            }
        }
        first += rows;
    }
}

static void rows_beside_up_to_64(void *const *parameters, const int64_t *dims, int64_t from, int64_t to)
{
    const float *const in0 = (const float *)parameters[0];
    float *const out1 = (float *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k0;
    const int64_t nr0 = k1;
    float row1[8] __attribute__((aligned(64)));
    float row5[8] __attribute__((aligned(64)));
    vf32 totals1[8];
    for (int l = 0; l < 8; l++)
        totals1[l] = from_bits_f32(0xff800000);
    vf32 totals4[8];
    for (int l = 0; l < 8; l++)
        totals4[l] = splat_f32(0);
    int64_t rows;
    int64_t first = from;
    for (int64_t task = from; task < to; task += rows) {
        rows = least(8, least(to - task, np0 - first));
        const int64_t p0 = first;
        for (int64_t p0 = first; p0 < first + rows; p0++) {
            vf32 t1_0 = from_bits_f32(0xff800000), t1_1 = from_bits_f32(0xff800000);
            int64_t r0 = 0;
            for (; r0 + 16 <= nr0; r0 += 16) {
                const vf32 v0_0 = load_f32(in0 + (k1 * p0) + r0);
                const vf32 v0_1 = load_f32(in0 + (k1 * p0) + r0 + 8);
                t1_0 = max_f32(t1_0, v0_0);
                t1_1 = max_f32(t1_1, v0_1);
            }
            for (; r0 < nr0; r0 += 8) {
                const int count = (int)least(8, nr0 - r0);
                const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
                t1_0 = max_f32(t1_0, keep_n_f32(count, v0_0, from_bits_f32(0xff800000)));
            }
            totals1[p0 - first] = (max_f32(t1_0, t1_1));
        }
        const vf32 v1_0 = totals_max_f32(totals1);
        *(uf32 *)row1 = v1_0;
        for (int64_t p0 = first; p0 < first + rows; p0++) {
            const vf32 v1 = splat_f32(row1[p0 - first]);
            vf32 t4_0 = splat_f32(0), t4_1 = splat_f32(0);
            int64_t r0 = 0;
            for (; r0 + 16 <= nr0; r0 += 16) {
                const vf32 v0_0 = load_f32(in0 + (k1 * p0) + r0);
                const vf32 v0_1 = load_f32(in0 + (k1 * p0) + r0 + 8);
                const vf32 v2_0 = v0_0 - v1;
                const vf32 v2_1 = v0_1 - v1;
                const vf32 v3_0 = exp_f32(v2_0);
                const vf32 v3_1 = exp_f32(v2_1);
                t4_0 = t4_0 + v3_0;
                t4_1 = t4_1 + v3_1;
            }
            for (; r0 < nr0; r0 += 8) {
                const int count = (int)least(8, nr0 - r0);
                const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
                const vf32 v2_0 = v0_0 - v1;
                const vf32 v3_0 = exp_f32(v2_0);
                t4_0 = t4_0 + keep_n_f32(count, v3_0, splat_f32(0));
            }
            totals4[p0 - first] = (t4_0 + t4_1);
        }
        const vf32 v4_0 = totals_sum_f32(totals4);
        const vf32 v5_0 = log_f32(v4_0);
        *(uf32 *)row5 = v5_0;
        for (int64_t p0 = first; p0 < first + rows; p0++) {
            const vf32 v1 = splat_f32(row1[p0 - first]);
            const vf32 v5 = splat_f32(row5[p0 - first]);
            int64_t r0 = 0;
            for (; r0 + 16 <= nr0; r0 += 16) {
                const vf32 v0_0 = load_f32(in0 + (k1 * p0) + r0);
                const vf32 v0_1 = load_f32(in0 + (k1 * p0) + r0 + 8);
                const vf32 v2_0 = v0_0 - v1;
                const vf32 v2_1 = v0_1 - v1;
                const vf32 v6_0 = v2_0 - v5;
                const vf32 v6_1 = v2_1 - v5;
                store_f32(out1 + (k1 * p0) + r0, v6_0);
                store_f32(out1 + (k1 * p0) + r0 + 8, v6_1);
            }
            for (; r0 < nr0; r0 += 8) {
                const int count = (int)least(8, nr0 - r0);
                const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
                const vf32 v2_0 = v0_0 - v1;
                const vf32 v6_0 = v2_0 - v5;
                store_n_f32(out1 + (k1 * p0) + r0, v6_0, count);
            }
        }
        first += rows;
    }
}

static void far_rows(void *const *parameters, const int64_t *dims, int64_t from, int64_t to)
{
    const float *const in0 = (const float *)parameters[0];
    float *const out1 = (float *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k0;
    const int64_t nr0 = k1;
    const int64_t next_rows = 1 + 8192 / (8 * k1 + 1);
    int64_t p0 = from;
    for (int64_t task = from; task < to; task++) {
        vf32 t1_0 = from_bits_f32(0xff800000), t1_1 = from_bits_f32(0xff800000);
        {
            int64_t r0 = 0;
            for (; r0 + 16 <= nr0; r0 += 16) {
                const vf32 v0_0 = load_f32(in0 + (k1 * p0) + r0);
                const vf32 v0_1 = load_f32(in0 + (k1 * p0) + r0 + 8);
                t1_0 = max_f32(t1_0, v0_0);
                t1_1 = max_f32(t1_1, v0_1);
            }
            for (; r0 < nr0; r0 += 8) {
                const int count = (int)least(8, nr0 - r0);
                const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
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
                    __builtin_prefetch(out1 + (k1 * p0) + r0 + 0);
                    const vf32 v0_0 = load_f32(in0 + (k1 * p0) + r0);
                    const vf32 v0_1 = load_f32(in0 + (k1 * p0) + r0 + 8);
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
                const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
                const vf32 v2_0 = v0_0 - v1;
                const vf32 v3_0 = exp_f32(v2_0);
                t4_0 = t4_0 + keep_n_f32(count, v3_0, splat_f32(0));
            }
        }
        const vf32 v4 = across_sum_f32((t4_0 + t4_1));
        const vf32 v5 = log_f32(v4);
        {
            int64_t r0 = 0;
            for (; r0 + 16 <= nr0; r0 += 16) {
                __builtin_prefetch(in0 + (k1 * next_rows) + (k1 * p0) + r0 + 0);
                const vf32 v0_0 = load_f32(in0 + (k1 * p0) + r0);
                const vf32 v0_1 = load_f32(in0 + (k1 * p0) + r0 + 8);
                const vf32 v2_0 = v0_0 - v1;
                const vf32 v2_1 = v0_1 - v1;
                const vf32 v6_0 = v2_0 - v5;
                const vf32 v6_1 = v2_1 - v5;
                store_f32(out1 + (k1 * p0) + r0, v6_0);
                store_f32(out1 + (k1 * p0) + r0 + 8, v6_1);
            }
            for (; r0 < nr0; r0 += 8) {
                const int count = (int)least(8, nr0 - r0);
                const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
                const vf32 v2_0 = v0_0 - v1;
                const vf32 v6_0 = v2_0 - v5;
                store_n_f32(out1 + (k1 * p0) + r0, v6_0, count);
            }
        }
        p0++;
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
    int64_t p0 = from;
    for (int64_t task = from; task < to; task++) {
        vf32 t1_0 = from_bits_f32(0xff800000), t1_1 = from_bits_f32(0xff800000);
        {
            int64_t r0 = 0;
            for (; r0 + 16 <= nr0; r0 += 16) {
                const vf32 v0_0 = load_f32(in0 + (k1 * p0) + r0);
                const vf32 v0_1 = load_f32(in0 + (k1 * p0) + r0 + 8);
                t1_0 = max_f32(t1_0, v0_0);
                t1_1 = max_f32(t1_1, v0_1);
            }
            for (; r0 < nr0; r0 += 8) {
                const int count = (int)least(8, nr0 - r0);
                const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
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
                    const vf32 v0_0 = load_f32(in0 + (k1 * p0) + r0);
                    const vf32 v0_1 = load_f32(in0 + (k1 * p0) + r0 + 8);
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
                const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
                const vf32 v2_0 = v0_0 - v1;
                const vf32 v3_0 = exp_f32(v2_0);
                t4_0 = t4_0 + keep_n_f32(count, v3_0, splat_f32(0));
            }
        }
        const vf32 v4 = across_sum_f32((t4_0 + t4_1));
        const vf32 v5 = log_f32(v4);
        {
            int64_t r0 = 0;
            for (; r0 + 16 <= nr0; r0 += 16) {
                const vf32 v0_0 = load_f32(in0 + (k1 * p0) + r0);
                const vf32 v0_1 = load_f32(in0 + (k1 * p0) + r0 + 8);
                const vf32 v2_0 = v0_0 - v1;
                const vf32 v2_1 = v0_1 - v1;
                const vf32 v6_0 = v2_0 - v5;
                const vf32 v6_1 = v2_1 - v5;
                store_f32(out1 + (k1 * p0) + r0, v6_0);
                store_f32(out1 + (k1 * p0) + r0 + 8, v6_1);
            }
            for (; r0 < nr0; r0 += 8) {
                const int count = (int)least(8, nr0 - r0);
                const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
                const vf32 v2_0 = v0_0 - v1;
                const vf32 v6_0 = v2_0 - v5;
                store_n_f32(out1 + (k1 * p0) + r0, v6_0, count);
            }
        }
        p0++;
    }
}

static void run(void *const *parameters, const int64_t *dims, int64_t from, int64_t to)
{
    const int64_t k1 = dims[1];
    const int64_t length = k1;
    if (length <= 8) {
        rows_of_1(parameters, dims, from, to);
        return;
    }
    if (length <= 64 && (to - from) * length > 170000 && 8 * length <= 524288 && 8 * 8 * length > 12288) {
        far_rows_beside_up_to_64(parameters, dims, from, to);
        return;
    }
    if (length <= 64) {
        rows_beside_up_to_64(parameters, dims, from, to);
        return;
    }
    if ((to - from) * length > 170000 && 8 * length <= 524288) {
        far_rows(parameters, dims, from, to);
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
    struct call call = {parameters, dims, k0};
    if (threads > 1 && call.total > 1)
        GOMP_parallel(share, &call, (unsigned)threads, 0);
    else
        run(parameters, dims, 0, call.total);
}
