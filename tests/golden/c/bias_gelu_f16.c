// cpu.pointwise axis=1 lanes=8 unroll=2 block=1024
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

static inline vf16 load_f16(const uint16_t *p) { return *(const uf16 *)p; }

static inline vf32 from_f16_f32(vf16 x)
{
    return _mm256_cvtph_ps((__m128i)x);
}

static inline vf32 mad_f32(vf32 a, vf32 b, vf32 c) { return _mm256_fmadd_ps(a, b, c); }

static inline vf32 abs_f32(vf32 x) { return (vf32)((vi32)x & ~(vi32) - (vf32){0}); }

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

static inline vf32 sel_f32(vbool m, vf32 a, vf32 b)
{
    return (vf32)((m & (vi32)a) | (~m & (vi32)b));
}

static inline vf32 erf_f32(vf32 x)
{
    vf32 a = abs_f32(x), u = x * x, p, q;
    p = splat_f32(7.0097917e-05f);
    p = mad_f32(p, u, splat_f32(-0.0007746901f));
    p = mad_f32(p, u, splat_f32(0.005157802f));
    p = mad_f32(p, u, splat_f32(-0.026837783f));
    p = mad_f32(p, u, splat_f32(0.1128322f));
    p = mad_f32(p, u, splat_f32(-0.376126f));
    p = mad_f32(p, u, splat_f32(0.12837917f));
    p = mad_f32(p, x, x);
    a = clamp_f32(a, 0.0f, 4.0f);
    q = splat_f32(-0.00018638004f);
    q = mad_f32(q, a, splat_f32(0.0029476744f));
    q = mad_f32(q, a, splat_f32(-0.021838142f));
    q = mad_f32(q, a, splat_f32(0.10310692f));
    q = mad_f32(q, a, splat_f32(0.6381447f));
    q = mad_f32(q, a, splat_f32(1.1270893f));
    q = mad_f32(q, a, splat_f32(0.0003415131f));
    vf32 large = 1.0f - exp_f32(-q);
    large = (vf32)((vi32)large | ((vi32)x & (vi32) - (vf32){0}));
    return sel_f32(a < 1.12f, p, large);
}

static inline vf16 to_f16_f32(vf32 x)
{
    return (vf16)_mm256_cvtps_ph(x, 0);
}

static inline void store_f16(uint16_t *p, vf16 v) { *(uf16 *)p = v; }

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

static inline vf16 load_n_f16(const uint16_t *p, int n)
{
    const unsigned __int128 x = load_few(p, n * (int)sizeof *p);
    vf16 v;
    memcpy(&v, &x, sizeof v);
    return v;
}

static inline void store_n_f16(uint16_t *p, vf16 v, int n)
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
    const uint16_t *const in1 = (const uint16_t *)parameters[1];
    uint16_t *const out2 = (uint16_t *)parameters[2];
    const int64_t k0 = dims[0];
    const int64_t np0 = k0;
    const int64_t np1 = 1536;
    const int64_t blocks = 2;
    const vf32 v5 = splat_f32(0.5f);
    const vf32 v7 = splat_f32(0.7071067690849304f);
    const vf32 v10 = splat_f32(1.0f);
    int64_t p0 = from / blocks;
    int64_t block = from % blocks;
    for (int64_t task = from; task < to; task++) {
        int64_t p1 = block * 1024;
        const int64_t end = least(np1, p1 + 1024);
        for (; p1 + 16 <= end; p1 += 16) {
            const vf16 v0_0 = load_f16(in0 + (1536 * p0) + p1);
            const vf16 v0_1 = load_f16(in0 + (1536 * p0) + p1 + 8);
            const vf32 v1_0 = from_f16_f32(v0_0);
            const vf32 v1_1 = from_f16_f32(v0_1);
            const vf16 v2_0 = load_f16(in1 + p1);
            const vf16 v2_1 = load_f16(in1 + p1 + 8);
            const vf32 v3_0 = from_f16_f32(v2_0);
            const vf32 v3_1 = from_f16_f32(v2_1);
            const vf32 v4_0 = v1_0 + v3_0;
            const vf32 v4_1 = v1_1 + v3_1;
            const vf32 v6_0 = v4_0 * v5;
            const vf32 v6_1 = v4_1 * v5;
            const vf32 v8_0 = v4_0 * v7;
            const vf32 v8_1 = v4_1 * v7;
            const vf32 v9_0 = erf_f32(v8_0);
            const vf32 v9_1 = erf_f32(v8_1);
            const vf32 v11_0 = v9_0 + v10;
            const vf32 v11_1 = v9_1 + v10;
            const vf32 v12_0 = v6_0 * v11_0;
            const vf32 v12_1 = v6_1 * v11_1;
            const vf16 v13_0 = to_f16_f32(v12_0);
            const vf16 v13_1 = to_f16_f32(v12_1);
            store_f16(out2 + (1536 * p0) + p1, v13_0);
            store_f16(out2 + (1536 * p0) + p1 + 8, v13_1);
        }
        for (; p1 + 8 <= end; p1 += 8) {
            const vf16 v0_0 = load_f16(in0 + (1536 * p0) + p1);
            const vf32 v1_0 = from_f16_f32(v0_0);
            const vf16 v2_0 = load_f16(in1 + p1);
            const vf32 v3_0 = from_f16_f32(v2_0);
            const vf32 v4_0 = v1_0 + v3_0;
            const vf32 v6_0 = v4_0 * v5;
            const vf32 v8_0 = v4_0 * v7;
            const vf32 v9_0 = erf_f32(v8_0);
            const vf32 v11_0 = v9_0 + v10;
            const vf32 v12_0 = v6_0 * v11_0;
            const vf16 v13_0 = to_f16_f32(v12_0);
            store_f16(out2 + (1536 * p0) + p1, v13_0);
        }
        for (; p1 < end; p1 += 8) {
            const int count = (int)least(8, end - p1);
            const vf16 v0_0 = load_n_f16(in0 + (1536 * p0) + p1, count);
            const vf32 v1_0 = from_f16_f32(v0_0);
            const vf16 v2_0 = load_n_f16(in1 + p1, count);
            const vf32 v3_0 = from_f16_f32(v2_0);
            const vf32 v4_0 = v1_0 + v3_0;
            const vf32 v6_0 = v4_0 * v5;
            const vf32 v8_0 = v4_0 * v7;
            const vf32 v9_0 = erf_f32(v8_0);
            const vf32 v11_0 = v9_0 + v10;
            const vf32 v12_0 = v6_0 * v11_0;
            const vf16 v13_0 = to_f16_f32(v12_0);
            store_n_f16(out2 + (1536 * p0) + p1, v13_0, count);
        }
        if (++block == blocks) {
            block = 0;
            p0++;
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
    struct call call = {parameters, dims, 2 * k0};
    if (threads > 1 && call.total > 1)
        GOMP_parallel(share, &call, (unsigned)threads, 0);
    else
        run(parameters, dims, 0, call.total);
}
