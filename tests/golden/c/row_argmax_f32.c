// cpu.rows axis=0 lanes=8 unroll=2 short=1 stash=0 split=1
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

static inline vi64 splat_i64(int64_t x) { return x - (vi64){0}; }

static inline vi32 splat_i32(int32_t x) { return x - (vi32){0}; }

static inline vf32 sel_f32(vbool m, vf32 a, vf32 b)
{
    return (vf32)((m & (vi32)a) | (~m & (vi32)b));
}

/* The first n lanes of v, the rest of other. */
static inline vf32 keep_n_f32(int n, vf32 v, vf32 other)
{
    return sel_f32((vi32){0, 1, 2, 3, 4, 5, 6, 7} < n, v, other);
}

static inline vi32 sel_i32(vbool m, vi32 a, vi32 b)
{
    return (vi32)((m & (vi32)a) | (~m & (vi32)b));
}

/* Where v is more extreme than s: v and its offset. */
static inline void seek_max_f32(vf32 *s, vi32 *o, vf32 v, vi32 here)
{
    const vbool more = (~(v <= *s) & (*s == *s));
    *s = sel_f32(more, v, *s);
    *o = sel_i32(more, here, *o);
}

/* The more extreme of two, or of equals the one with the lesser index. */
static inline void settle_max_f32(vf32 *a, vi32 *i, vf32 b, vi32 j)
{
    const vbool more = (~(b <= *a) & (*a == *a));
    const vbool same = ((*a == b) | ((*a != *a) & (b != b)));
    const vbool take = more | (same & (j < *i));
    *a = sel_f32(take, b, *a);
    *i = sel_i32(take, j, *i);
}

static inline void place_max_f32(vf32 *a, vi32 *i)
{
    vf32 b;
    vi32 j;
    b = SHUFFLE(vi32, *a, 4, 5, 6, 7, 0, 1, 2, 3);
    j = SHUFFLE(vi32, *i, 4, 5, 6, 7, 0, 1, 2, 3);
    settle_max_f32(a, i, b, j);
    b = SHUFFLE(vi32, *a, 2, 3, 0, 1, 6, 7, 4, 5);
    j = SHUFFLE(vi32, *i, 2, 3, 0, 1, 6, 7, 4, 5);
    settle_max_f32(a, i, b, j);
    b = SHUFFLE(vi32, *a, 1, 0, 3, 2, 5, 4, 7, 6);
    j = SHUFFLE(vi32, *i, 1, 0, 3, 2, 5, 4, 7, 6);
    settle_max_f32(a, i, b, j);
}

/* The more extreme of two, or of equals the one with the lesser index. */
static inline void decide_one_max_f32(float *a, int64_t *i, float b, int64_t j)
{
    const int take = b > *a || (b != b && *a == *a) || ((b == *a || (b != b && *a != *a)) && j < *i);
    *a = take ? b : *a;
    *i = take ? j : *i;
}

static inline vf32 load_f32(const float *p) { return *(const uf32 *)p; }

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
    int64_t *const out1 = (int64_t *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k0;
    const int64_t nr0 = k1;
    const int64_t r0 = 0;
    const int count = (int)nr0 - 0;
    int64_t p0 = from;
    for (int64_t task = from; task < to; task++) {
        const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
        float t1_0 = (from_bits_f32(0xff800000))[0];
        int64_t at_t1_0 = INT64_MAX;
        {
            const int64_t begin = 0;
            vf32 s1_0 = from_bits_f32(0xff800000);
            vi32 at_s1_0 = {0};
            const vi32 here = splat_i32((int32_t)(r0 - begin));
            seek_max_f32(&s1_0, &at_s1_0, keep_n_f32(count, v0_0, from_bits_f32(0xff800000)), here);
            at_s1_0 = at_s1_0 + (vi32){0, 1, 2, 3, 4, 5, 6, 7} + 0;
            place_max_f32(&s1_0, &at_s1_0);
            const int64_t offset1 = at_s1_0[0];
            decide_one_max_f32(&t1_0, &at_t1_0, s1_0[0], begin + offset1);
        }
        const vi64 v1 = splat_i64(at_t1_0);
        out1[p0] = v1[0];
        p0++;
    }
}

static void rows(void *const *parameters, const int64_t *dims, int64_t from, int64_t to)
{
    const float *const in0 = (const float *)parameters[0];
    int64_t *const out1 = (int64_t *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k0;
    const int64_t nr0 = k1;
    int64_t p0 = from;
    for (int64_t task = from; task < to; task++) {
        float t1_0 = (from_bits_f32(0xff800000))[0];
        int64_t at_t1_0 = INT64_MAX;
        {
            int64_t r0 = 0;
            while (r0 < nr0) {
                const int64_t begin = r0;
                const int64_t stop = least(nr0, begin + 67108864);
                vf32 s1_0 = from_bits_f32(0xff800000), s1_1 = from_bits_f32(0xff800000);
                vi32 at_s1_0 = {0}, at_s1_1 = {0};
                for (; r0 + 16 <= stop; r0 += 16) {
                    const vi32 here = splat_i32((int32_t)(r0 - begin));
                    const vf32 v0_0 = load_f32(in0 + (k1 * p0) + r0);
                    const vf32 v0_1 = load_f32(in0 + (k1 * p0) + r0 + 8);
                    seek_max_f32(&s1_0, &at_s1_0, v0_0, here);
                    seek_max_f32(&s1_1, &at_s1_1, v0_1, here);
                }
                for (; r0 < stop; r0 += 8) {
                    const int count = (int)least(8, stop - r0);
                    const vi32 here = splat_i32((int32_t)(r0 - begin));
                    const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
                    seek_max_f32(&s1_0, &at_s1_0, keep_n_f32(count, v0_0, from_bits_f32(0xff800000)), here);
                }
                at_s1_0 = at_s1_0 + (vi32){0, 1, 2, 3, 4, 5, 6, 7} + 0;
                at_s1_1 = at_s1_1 + (vi32){0, 1, 2, 3, 4, 5, 6, 7} + 8;
                settle_max_f32(&s1_0, &at_s1_0, s1_1, at_s1_1);
                place_max_f32(&s1_0, &at_s1_0);
                const int64_t offset1 = at_s1_0[0];
                decide_one_max_f32(&t1_0, &at_t1_0, s1_0[0], begin + offset1);
            }
        }
        const vi64 v1 = splat_i64(at_t1_0);
        out1[p0] = v1[0];
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
    rows(parameters, dims, from, to);
}

struct work {
    void *const *parameters;
    const int64_t *dims;
    int64_t chunks;
    int64_t p0;
    vi64 v1;
    float t1_0[64];
    int64_t at_t1_0[64];
};

static void walk_0(void *data)
{
    struct work *const work = data;
    void *const *const parameters = work->parameters;
    const int64_t *const dims = work->dims;
    const float *const in0 = (const float *)parameters[0];
    int64_t *const out1 = (int64_t *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k0;
    const int64_t nr0 = k1;
    const int64_t p0 = work->p0;
    for (int64_t chunk = omp_get_thread_num(); chunk < work->chunks; chunk += omp_get_num_threads()) {
        const int64_t start = nr0 * chunk / work->chunks;
        const int64_t finish = nr0 * (chunk + 1) / work->chunks;
        float t1_0 = (from_bits_f32(0xff800000))[0];
        int64_t at_t1_0 = INT64_MAX;
        {
            int64_t r0 = start;
            while (r0 < finish) {
                const int64_t begin = r0;
                const int64_t stop = least(finish, begin + 67108864);
                vf32 s1_0 = from_bits_f32(0xff800000), s1_1 = from_bits_f32(0xff800000);
                vi32 at_s1_0 = {0}, at_s1_1 = {0};
                for (; r0 + 16 <= stop; r0 += 16) {
                    const vi32 here = splat_i32((int32_t)(r0 - begin));
                    const vf32 v0_0 = load_f32(in0 + (k1 * p0) + r0);
                    const vf32 v0_1 = load_f32(in0 + (k1 * p0) + r0 + 8);
                    seek_max_f32(&s1_0, &at_s1_0, v0_0, here);
                    seek_max_f32(&s1_1, &at_s1_1, v0_1, here);
                }
                for (; r0 < stop; r0 += 8) {
                    const int count = (int)least(8, stop - r0);
                    const vi32 here = splat_i32((int32_t)(r0 - begin));
                    const vf32 v0_0 = load_n_f32(in0 + (k1 * p0) + r0, count);
                    seek_max_f32(&s1_0, &at_s1_0, keep_n_f32(count, v0_0, from_bits_f32(0xff800000)), here);
                }
                at_s1_0 = at_s1_0 + (vi32){0, 1, 2, 3, 4, 5, 6, 7} + 0;
                at_s1_1 = at_s1_1 + (vi32){0, 1, 2, 3, 4, 5, 6, 7} + 8;
                settle_max_f32(&s1_0, &at_s1_0, s1_1, at_s1_1);
                place_max_f32(&s1_0, &at_s1_0);
                const int64_t offset1 = at_s1_0[0];
                decide_one_max_f32(&t1_0, &at_t1_0, s1_0[0], begin + offset1);
            }
        }
        work->t1_0[chunk] = t1_0;
        work->at_t1_0[chunk] = at_t1_0;
    }
}

static void cooperate(void *const *parameters, const int64_t *dims, int32_t threads)
{
    const float *const in0 = (const float *)parameters[0];
    int64_t *const out1 = (int64_t *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k0;
    const int64_t nr0 = k1;
    struct work work;
    work.parameters = parameters;
    work.dims = dims;
    work.chunks = least(threads, 64);
    const int64_t from = 0, to = k0;
    int64_t p0 = from;
    for (int64_t task = from; task < to; task++) {
        work.p0 = p0;
        GOMP_parallel(walk_0, &work, (unsigned)threads, 0);
        float t1_0 = work.t1_0[0];
        int64_t at_t1_0 = work.at_t1_0[0];
        for (int64_t chunk = 1; chunk < work.chunks; chunk++) {
            decide_one_max_f32(&t1_0, &at_t1_0, work.t1_0[chunk], work.at_t1_0[chunk]);
        }
        const vi64 v1 = splat_i64(at_t1_0);
        work.v1 = v1;
        out1[p0] = v1[0];
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
