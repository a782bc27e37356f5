// cpu.rows axis=0 lanes=8 unroll=2 short=4 stash=8192 split=1
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

static inline vbf16 load_bf16(const uint16_t *p) { return *(const ubf16 *)p; }

static inline vf32 from_bf16_f32(vbf16 x)
{
    const __m256i wide = _mm256_cvtepu16_epi32((__m128i)x);
    return (vf32)_mm256_slli_epi32(wide, 16);
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

static inline vf32 sel_f32(vbool m, vf32 a, vf32 b)
{
    return (vf32)((m & (vi32)a) | (~m & (vi32)b));
}

/* The first n lanes of v, the rest of other. */
static inline vf32 keep_n_f32(int n, vf32 v, vf32 other)
{
    return sel_f32((vi32){0, 1, 2, 3, 4, 5, 6, 7} < n, v, other);
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

static inline vf32 sqrt_f32(vf32 x) { return _mm256_sqrt_ps(x); }

/* The bits of x as bf16, 32 a lane. */
static inline __m256i upper_f32(vf32 x)
{
    const vu32 bits = (vu32)x;
    const __m256i rounded = (__m256i)((bits + (0x7fff + (bits >> 16 & 1))) >> 16);
    const __m256i nan = (__m256i)(x != x), quiet = _mm256_set1_epi32(0x7fc0);
    return _mm256_blendv_epi8(rounded, quiet, nan);
}

static inline vbf16 to_bf16_f32(vf32 x)
{
    const __m256i whole = upper_f32(x);
    const __m128i upper = _mm256_extracti128_si256(whole, 1);
    return (vbf16)_mm_packus_epi32(_mm256_castsi256_si128(whole), upper);
}

static inline void store_bf16(uint16_t *p, vbf16 v) { *(ubf16 *)p = v; }

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

static void rows_with_stash(void *const *parameters, const int64_t *dims, int64_t from, int64_t to)
{
    const uint16_t *const in0 = (const uint16_t *)parameters[0];
    const uint16_t *const in1 = (const uint16_t *)parameters[1];
    const uint16_t *const in2 = (const uint16_t *)parameters[2];
    uint16_t *const out3 = (uint16_t *)parameters[3];
    uint16_t *const out4 = (uint16_t *)parameters[4];
    const int64_t k0 = dims[0];
    const int64_t np0 = k0;
    const int64_t nr0 = 4096;
    float stash4[8208] __attribute__((aligned(64)));
    const vf32 v8 = splat_f32(4096.0f);
    const vf32 v11 = splat_f32(9.999999974752427e-07f);
    int64_t p0 = from;
    for (int64_t task = from; task < to; task++) {
        vf32 t9_0 = splat_f32(0), t9_1 = splat_f32(0);
        {
            int64_t r0 = 0;
            while (r0 + 16 <= nr0) {
                const int64_t stop = least(nr0, r0 + 1024);
                vf32 s9_0 = splat_f32(0), s9_1 = splat_f32(0);
                for (; r0 + 16 <= stop; r0 += 16) {
                    const vbf16 v0_0 = load_bf16(in0 + (4096 * p0) + r0);
                    const vbf16 v0_1 = load_bf16(in0 + (4096 * p0) + r0 + 8);
                    const vf32 v1_0 = from_bf16_f32(v0_0);
                    const vf32 v1_1 = from_bf16_f32(v0_1);
                    const vbf16 v2_0 = load_bf16(in1 + (4096 * p0) + r0);
                    const vbf16 v2_1 = load_bf16(in1 + (4096 * p0) + r0 + 8);
                    const vf32 v3_0 = from_bf16_f32(v2_0);
                    const vf32 v3_1 = from_bf16_f32(v2_1);
                    const vf32 v4_0 = v1_0 + v3_0;
                    const vf32 v4_1 = v1_1 + v3_1;
                    const vf32 v7_0 = v4_0 * v4_0;
                    const vf32 v7_1 = v4_1 * v4_1;
                    s9_0 = s9_0 + v7_0;
                    s9_1 = s9_1 + v7_1;
                    *(uf32 *)(stash4 + r0 + 0) = v4_0;
                    *(uf32 *)(stash4 + r0 + 8) = v4_1;
                }
                t9_0 = t9_0 + s9_0;
                t9_1 = t9_1 + s9_1;
            }
            for (; r0 < nr0; r0 += 8) {
                const int count = (int)least(8, nr0 - r0);
                const vbf16 v0_0 = load_n_bf16(in0 + (4096 * p0) + r0, count);
                const vf32 v1_0 = from_bf16_f32(v0_0);
                const vbf16 v2_0 = load_n_bf16(in1 + (4096 * p0) + r0, count);
                const vf32 v3_0 = from_bf16_f32(v2_0);
                const vf32 v4_0 = v1_0 + v3_0;
                const vf32 v7_0 = v4_0 * v4_0;
                t9_0 = t9_0 + keep_n_f32(count, v7_0, splat_f32(0));
                *(uf32 *)(stash4 + r0 + 0) = v4_0;
            }
        }
        const vf32 v9 = across_sum_f32((t9_0 + t9_1));
        const vf32 v10 = v9 / v8;
        const vf32 v12 = v10 + v11;
        const vf32 v13 = 1 / sqrt_f32(v12);
        {
            int64_t r0 = 0;
            for (; r0 + 16 <= nr0; r0 += 16) {
                const vf32 v4_0 = *(const uf32 *)(stash4 + r0 + 0);
                const vf32 v4_1 = *(const uf32 *)(stash4 + r0 + 8);
                const vbf16 v5_0 = to_bf16_f32(v4_0);
                const vbf16 v5_1 = to_bf16_f32(v4_1);
                const vf32 v14_0 = v4_0 * v13;
                const vf32 v14_1 = v4_1 * v13;
                const vbf16 v15_0 = load_bf16(in2 + r0);
                const vbf16 v15_1 = load_bf16(in2 + r0 + 8);
                const vf32 v16_0 = from_bf16_f32(v15_0);
                const vf32 v16_1 = from_bf16_f32(v15_1);
                const vf32 v17_0 = v14_0 * v16_0;
                const vf32 v17_1 = v14_1 * v16_1;
                const vbf16 v18_0 = to_bf16_f32(v17_0);
                const vbf16 v18_1 = to_bf16_f32(v17_1);
                store_bf16(out3 + (4096 * p0) + r0, v5_0);
                store_bf16(out3 + (4096 * p0) + r0 + 8, v5_1);
                store_bf16(out4 + (4096 * p0) + r0, v18_0);
                store_bf16(out4 + (4096 * p0) + r0 + 8, v18_1);
            }
            for (; r0 < nr0; r0 += 8) {
                const int count = (int)least(8, nr0 - r0);
                const vf32 v4_0 = *(const uf32 *)(stash4 + r0 + 0);
                const vbf16 v5_0 = to_bf16_f32(v4_0);
                const vf32 v14_0 = v4_0 * v13;
                const vbf16 v15_0 = load_n_bf16(in2 + r0, count);
                const vf32 v16_0 = from_bf16_f32(v15_0);
                const vf32 v17_0 = v14_0 * v16_0;
                const vbf16 v18_0 = to_bf16_f32(v17_0);
                store_n_bf16(out3 + (4096 * p0) + r0, v5_0, count);
                store_n_bf16(out4 + (4096 * p0) + r0, v18_0, count);
            }
        }
        p0++;
    }
}

static void run(void *const *parameters, const int64_t *dims, int64_t from, int64_t to)
{
    rows_with_stash(parameters, dims, from, to);
}

struct work {
    void *const *parameters;
    const int64_t *dims;
    int64_t chunks;
    int64_t p0;
    vf32 v9;
    vf32 t9_0[64];
    vf32 t9_1[64];
};

static void walk_0(void *data)
{
    struct work *const work = data;
    void *const *const parameters = work->parameters;
    const int64_t *const dims = work->dims;
    const uint16_t *const in0 = (const uint16_t *)parameters[0];
    const uint16_t *const in1 = (const uint16_t *)parameters[1];
    const uint16_t *const in2 = (const uint16_t *)parameters[2];
    uint16_t *const out3 = (uint16_t *)parameters[3];
    uint16_t *const out4 = (uint16_t *)parameters[4];
    const int64_t k0 = dims[0];
    const int64_t np0 = k0;
    const int64_t nr0 = 4096;
    const vf32 v8 = splat_f32(4096.0f);
    const vf32 v11 = splat_f32(9.999999974752427e-07f);
    const int64_t p0 = work->p0;
    for (int64_t chunk = omp_get_thread_num(); chunk < work->chunks; chunk += omp_get_num_threads()) {
        const int64_t start = nr0 * chunk / work->chunks;
        const int64_t finish = nr0 * (chunk + 1) / work->chunks;
        vf32 t9_0 = splat_f32(0), t9_1 = splat_f32(0);
        {
            int64_t r0 = start;
            while (r0 + 16 <= finish) {
                const int64_t stop = least(finish, r0 + 1024);
                vf32 s9_0 = splat_f32(0), s9_1 = splat_f32(0);
                for (; r0 + 16 <= stop; r0 += 16) {
                    const vbf16 v0_0 = load_bf16(in0 + (4096 * p0) + r0);
                    const vbf16 v0_1 = load_bf16(in0 + (4096 * p0) + r0 + 8);
                    const vf32 v1_0 = from_bf16_f32(v0_0);
                    const vf32 v1_1 = from_bf16_f32(v0_1);
                    const vbf16 v2_0 = load_bf16(in1 + (4096 * p0) + r0);
                    const vbf16 v2_1 = load_bf16(in1 + (4096 * p0) + r0 + 8);
                    const vf32 v3_0 = from_bf16_f32(v2_0);
                    const vf32 v3_1 = from_bf16_f32(v2_1);
                    const vf32 v4_0 = v1_0 + v3_0;
                    const vf32 v4_1 = v1_1 + v3_1;
                    const vf32 v7_0 = v4_0 * v4_0;
                    const vf32 v7_1 = v4_1 * v4_1;
                    s9_0 = s9_0 + v7_0;
                    s9_1 = s9_1 + v7_1;
                }
                t9_0 = t9_0 + s9_0;
                t9_1 = t9_1 + s9_1;
            }
            for (; r0 < finish; r0 += 8) {
                const int count = (int)least(8, finish - r0);
                const vbf16 v0_0 = load_n_bf16(in0 + (4096 * p0) + r0, count);
                const vf32 v1_0 = from_bf16_f32(v0_0);
                const vbf16 v2_0 = load_n_bf16(in1 + (4096 * p0) + r0, count);
                const vf32 v3_0 = from_bf16_f32(v2_0);
                const vf32 v4_0 = v1_0 + v3_0;
                const vf32 v7_0 = v4_0 * v4_0;
                t9_0 = t9_0 + keep_n_f32(count, v7_0, splat_f32(0));
            }
        }
        work->t9_0[chunk] = t9_0;
        work->t9_1[chunk] = t9_1;
    }
}

static void walk_1(void *data)
{
    struct work *const work = data;
    void *const *const parameters = work->parameters;
    const int64_t *const dims = work->dims;
    const uint16_t *const in0 = (const uint16_t *)parameters[0];
    const uint16_t *const in1 = (const uint16_t *)parameters[1];
    const uint16_t *const in2 = (const uint16_t *)parameters[2];
    uint16_t *const out3 = (uint16_t *)parameters[3];
    uint16_t *const out4 = (uint16_t *)parameters[4];
    const int64_t k0 = dims[0];
    const int64_t np0 = k0;
    const int64_t nr0 = 4096;
    const vf32 v8 = splat_f32(4096.0f);
    const vf32 v11 = splat_f32(9.999999974752427e-07f);
    const int64_t p0 = work->p0;
    const vf32 v9 = work->v9;
    const vf32 v10 = v9 / v8;
    const vf32 v12 = v10 + v11;
    const vf32 v13 = 1 / sqrt_f32(v12);
    for (int64_t chunk = omp_get_thread_num(); chunk < work->chunks; chunk += omp_get_num_threads()) {
        const int64_t start = nr0 * chunk / work->chunks;
        const int64_t finish = nr0 * (chunk + 1) / work->chunks;
        {
            int64_t r0 = start;
            for (; r0 + 16 <= finish; r0 += 16) {
                const vbf16 v0_0 = load_bf16(in0 + (4096 * p0) + r0);
                const vbf16 v0_1 = load_bf16(in0 + (4096 * p0) + r0 + 8);
                const vf32 v1_0 = from_bf16_f32(v0_0);
                const vf32 v1_1 = from_bf16_f32(v0_1);
                const vbf16 v2_0 = load_bf16(in1 + (4096 * p0) + r0);
                const vbf16 v2_1 = load_bf16(in1 + (4096 * p0) + r0 + 8);
                const vf32 v3_0 = from_bf16_f32(v2_0);
                const vf32 v3_1 = from_bf16_f32(v2_1);
                const vf32 v4_0 = v1_0 + v3_0;
                const vf32 v4_1 = v1_1 + v3_1;
                const vbf16 v5_0 = to_bf16_f32(v4_0);
                const vbf16 v5_1 = to_bf16_f32(v4_1);
                const vf32 v14_0 = v4_0 * v13;
                const vf32 v14_1 = v4_1 * v13;
                const vbf16 v15_0 = load_bf16(in2 + r0);
                const vbf16 v15_1 = load_bf16(in2 + r0 + 8);
                const vf32 v16_0 = from_bf16_f32(v15_0);
                const vf32 v16_1 = from_bf16_f32(v15_1);
                const vf32 v17_0 = v14_0 * v16_0;
                const vf32 v17_1 = v14_1 * v16_1;
                const vbf16 v18_0 = to_bf16_f32(v17_0);
                const vbf16 v18_1 = to_bf16_f32(v17_1);
                store_bf16(out3 + (4096 * p0) + r0, v5_0);
                store_bf16(out3 + (4096 * p0) + r0 + 8, v5_1);
                store_bf16(out4 + (4096 * p0) + r0, v18_0);
                store_bf16(out4 + (4096 * p0) + r0 + 8, v18_1);
            }
            for (; r0 < finish; r0 += 8) {
                const int count = (int)least(8, finish - r0);
                const vbf16 v0_0 = load_n_bf16(in0 + (4096 * p0) + r0, count);
                const vf32 v1_0 = from_bf16_f32(v0_0);
                const vbf16 v2_0 = load_n_bf16(in1 + (4096 * p0) + r0, count);
                const vf32 v3_0 = from_bf16_f32(v2_0);
                const vf32 v4_0 = v1_0 + v3_0;
                const vbf16 v5_0 = to_bf16_f32(v4_0);
                const vf32 v14_0 = v4_0 * v13;
                const vbf16 v15_0 = load_n_bf16(in2 + r0, count);
                const vf32 v16_0 = from_bf16_f32(v15_0);
                const vf32 v17_0 = v14_0 * v16_0;
                const vbf16 v18_0 = to_bf16_f32(v17_0);
                store_n_bf16(out3 + (4096 * p0) + r0, v5_0, count);
                store_n_bf16(out4 + (4096 * p0) + r0, v18_0, count);
            }
        }
    }
}

static void cooperate(void *const *parameters, const int64_t *dims, int32_t threads)
{
    const uint16_t *const in0 = (const uint16_t *)parameters[0];
    const uint16_t *const in1 = (const uint16_t *)parameters[1];
    const uint16_t *const in2 = (const uint16_t *)parameters[2];
    uint16_t *const out3 = (uint16_t *)parameters[3];
    uint16_t *const out4 = (uint16_t *)parameters[4];
    const int64_t k0 = dims[0];
    const int64_t np0 = k0;
    const int64_t nr0 = 4096;
    struct work work;
    work.parameters = parameters;
    work.dims = dims;
    work.chunks = least(threads, 64);
    const int64_t from = 0, to = k0;
    const vf32 v8 = splat_f32(4096.0f);
    const vf32 v11 = splat_f32(9.999999974752427e-07f);
    int64_t p0 = from;
    for (int64_t task = from; task < to; task++) {
        work.p0 = p0;
        GOMP_parallel(walk_0, &work, (unsigned)threads, 0);
        vf32 t9_0 = work.t9_0[0];
        vf32 t9_1 = work.t9_1[0];
        for (int64_t chunk = 1; chunk < work.chunks; chunk++) {
            t9_0 = t9_0 + work.t9_0[chunk];
            t9_1 = t9_1 + work.t9_1[chunk];
        }
        const vf32 v9 = across_sum_f32((t9_0 + t9_1));
        work.v9 = v9;
        const vf32 v10 = v9 / v8;
        const vf32 v12 = v10 + v11;
        const vf32 v13 = 1 / sqrt_f32(v12);
        GOMP_parallel(walk_1, &work, (unsigned)threads, 0);
        p0++;
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
    struct call call = {parameters, dims, k0};
    if (threads > 1 && call.total < threads)
        cooperate(parameters, dims, threads);
    else if (threads > 1 && call.total > 1)
        GOMP_parallel(share, &call, (unsigned)threads, 0);
    else
        run(parameters, dims, 0, call.total);
}
