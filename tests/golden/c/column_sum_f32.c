// cpu.columns axis=0 lanes=8 unroll=4 split=1
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

static inline vf32 load_f32(const float *p) { return *(const uf32 *)p; }

static inline void store_f32(float *p, vf32 v) { *(uf32 *)p = v; }

static inline vf32 load_n_f32(const float *p, int n)
{
    return _mm256_maskload_ps(p, (__m256i)((vi32){0, 1, 2, 3, 4, 5, 6, 7} < n));
}

static inline void store_n_f32(float *p, vf32 v, int n)
{
    _mm256_maskstore_ps(p, (__m256i)((vi32){0, 1, 2, 3, 4, 5, 6, 7} < n), v);
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
    const float *const in0 = (const float *)parameters[0];
    float *const out1 = (float *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k1;
    const int64_t nr0 = k0;
    const int64_t vectors = ((k1 + 7) / 8);
    int64_t step;
    int64_t vector = from;
    for (int64_t task = from; task < to; task += step) {
        step = least(4, least(vectors - vector, to - task));
        const int64_t p0 = vector * 8;
        const int64_t left = least(np0 - p0, 8 * step);
        if (left >= 32) {
            vf32 t1_0 = splat_f32(0), t1_1 = splat_f32(0), t1_2 = splat_f32(0), t1_3 = splat_f32(0);
            for (int64_t begin = 0; begin < nr0; begin += 64) {
                const int64_t stop = least(nr0, begin + 64);
                vf32 s1_0 = splat_f32(0), s1_1 = splat_f32(0), s1_2 = splat_f32(0), s1_3 = splat_f32(0);
                for (int64_t r0 = begin; r0 < stop; r0++) {
                    const vf32 v0_0 = load_f32(in0 + (k1 * r0) + p0);
                    const vf32 v0_1 = load_f32(in0 + (k1 * r0) + p0 + 8);
                    const vf32 v0_2 = load_f32(in0 + (k1 * r0) + p0 + 16);
                    const vf32 v0_3 = load_f32(in0 + (k1 * r0) + p0 + 24);
                    s1_0 = s1_0 + v0_0;
                    s1_1 = s1_1 + v0_1;
                    s1_2 = s1_2 + v0_2;
                    s1_3 = s1_3 + v0_3;
                }
                t1_0 = t1_0 + s1_0;
                t1_1 = t1_1 + s1_1;
                t1_2 = t1_2 + s1_2;
                t1_3 = t1_3 + s1_3;
            }
            const vf32 v1_0 = t1_0;
            const vf32 v1_1 = t1_1;
            const vf32 v1_2 = t1_2;
            const vf32 v1_3 = t1_3;
            store_f32(out1 + p0, v1_0);
            store_f32(out1 + p0 + 8, v1_1);
            store_f32(out1 + p0 + 16, v1_2);
            store_f32(out1 + p0 + 24, v1_3);
        }
        else if (left <= 8) {
            const int count0 = (int)greatest(0, least(8, left - 0));
            vf32 t1_0 = splat_f32(0);
            for (int64_t begin = 0; begin < nr0; begin += 64) {
                const int64_t stop = least(nr0, begin + 64);
                vf32 s1_0 = splat_f32(0);
                for (int64_t r0 = begin; r0 < stop; r0++) {
                    const vf32 v0_0 = load_n_f32(in0 + (k1 * r0) + p0, count0);
                    s1_0 = s1_0 + v0_0;
                }
                t1_0 = t1_0 + s1_0;
            }
            const vf32 v1_0 = t1_0;
            store_n_f32(out1 + p0, v1_0, count0);
        }
        else if (left <= 16) {
            const int count1 = (int)greatest(0, least(8, left - 8));
            vf32 t1_0 = splat_f32(0), t1_1 = splat_f32(0);
            for (int64_t begin = 0; begin < nr0; begin += 64) {
                const int64_t stop = least(nr0, begin + 64);
                vf32 s1_0 = splat_f32(0), s1_1 = splat_f32(0);
                for (int64_t r0 = begin; r0 < stop; r0++) {
                    const vf32 v0_0 = load_f32(in0 + (k1 * r0) + p0);
                    const vf32 v0_1 = load_n_f32(in0 + (k1 * r0) + p0 + 8, count1);
                    s1_0 = s1_0 + v0_0;
                    s1_1 = s1_1 + v0_1;
                }
                t1_0 = t1_0 + s1_0;
                t1_1 = t1_1 + s1_1;
            }
            const vf32 v1_0 = t1_0;
            const vf32 v1_1 = t1_1;
            store_f32(out1 + p0, v1_0);
            store_n_f32(out1 + p0 + 8, v1_1, count1);
        }
        else if (left <= 24) {
            const int count2 = (int)greatest(0, least(8, left - 16));
            vf32 t1_0 = splat_f32(0), t1_1 = splat_f32(0), t1_2 = splat_f32(0);
            for (int64_t begin = 0; begin < nr0; begin += 64) {
                const int64_t stop = least(nr0, begin + 64);
                vf32 s1_0 = splat_f32(0), s1_1 = splat_f32(0), s1_2 = splat_f32(0);
                for (int64_t r0 = begin; r0 < stop; r0++) {
                    const vf32 v0_0 = load_f32(in0 + (k1 * r0) + p0);
                    const vf32 v0_1 = load_f32(in0 + (k1 * r0) + p0 + 8);
                    const vf32 v0_2 = load_n_f32(in0 + (k1 * r0) + p0 + 16, count2);
                    s1_0 = s1_0 + v0_0;
                    s1_1 = s1_1 + v0_1;
                    s1_2 = s1_2 + v0_2;
                }
                t1_0 = t1_0 + s1_0;
                t1_1 = t1_1 + s1_1;
                t1_2 = t1_2 + s1_2;
            }
            const vf32 v1_0 = t1_0;
            const vf32 v1_1 = t1_1;
            const vf32 v1_2 = t1_2;
            store_f32(out1 + p0, v1_0);
            store_f32(out1 + p0 + 8, v1_1);
            store_n_f32(out1 + p0 + 16, v1_2, count2);
        }
        else {
            const int count3 = (int)greatest(0, least(8, left - 24));
            vf32 t1_0 = splat_f32(0), t1_1 = splat_f32(0), t1_2 = splat_f32(0), t1_3 = splat_f32(0);
            for (int64_t begin = 0; begin < nr0; begin += 64) {
                const int64_t stop = least(nr0, begin + 64);
                vf32 s1_0 = splat_f32(0), s1_1 = splat_f32(0), s1_2 = splat_f32(0), s1_3 = splat_f32(0);
                for (int64_t r0 = begin; r0 < stop; r0++) {
                    const vf32 v0_0 = load_f32(in0 + (k1 * r0) + p0);
                    const vf32 v0_1 = load_f32(in0 + (k1 * r0) + p0 + 8);
                    const vf32 v0_2 = load_f32(in0 + (k1 * r0) + p0 + 16);
                    const vf32 v0_3 = load_n_f32(in0 + (k1 * r0) + p0 + 24, count3);
                    s1_0 = s1_0 + v0_0;
                    s1_1 = s1_1 + v0_1;
                    s1_2 = s1_2 + v0_2;
                    s1_3 = s1_3 + v0_3;
                }
                t1_0 = t1_0 + s1_0;
                t1_1 = t1_1 + s1_1;
                t1_2 = t1_2 + s1_2;
                t1_3 = t1_3 + s1_3;
            }
            const vf32 v1_0 = t1_0;
            const vf32 v1_1 = t1_1;
            const vf32 v1_2 = t1_2;
            const vf32 v1_3 = t1_3;
            store_f32(out1 + p0, v1_0);
            store_f32(out1 + p0 + 8, v1_1);
            store_f32(out1 + p0 + 16, v1_2);
            store_n_f32(out1 + p0 + 24, v1_3, count3);
        }
        vector += step;
    }
}

struct work {
    void *const *parameters;
    const int64_t *dims;
    int64_t chunks;
    int64_t p0;
    vf32 v1_0;
    vf32 v1_1;
    vf32 v1_2;
    vf32 v1_3;
    vf32 t1_0[64];
    vf32 t1_1[64];
    vf32 t1_2[64];
    vf32 t1_3[64];
};

static void walk_0(void *data)
{
    struct work *const work = data;
    void *const *const parameters = work->parameters;
    const int64_t *const dims = work->dims;
    const float *const in0 = (const float *)parameters[0];
    float *const out1 = (float *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k1;
    const int64_t nr0 = k0;
    const int64_t p0 = work->p0;
    const int64_t left = np0 - p0;
    const int count0 = (int)greatest(0, least(8, left - 0));
    const int count1 = (int)greatest(0, least(8, left - 8));
    const int count2 = (int)greatest(0, least(8, left - 16));
    const int count3 = (int)greatest(0, least(8, left - 24));
    for (int64_t chunk = omp_get_thread_num(); chunk < work->chunks; chunk += omp_get_num_threads()) {
        const int64_t start = nr0 * chunk / work->chunks;
        const int64_t finish = nr0 * (chunk + 1) / work->chunks;
        {
            vf32 t1_0 = splat_f32(0), t1_1 = splat_f32(0), t1_2 = splat_f32(0), t1_3 = splat_f32(0);
            work->t1_0[chunk] = t1_0;
            work->t1_1[chunk] = t1_1;
            work->t1_2[chunk] = t1_2;
            work->t1_3[chunk] = t1_3;
        }
        if (left >= 32) {
            vf32 t1_0 = splat_f32(0), t1_1 = splat_f32(0), t1_2 = splat_f32(0), t1_3 = splat_f32(0);
            for (int64_t begin = start; begin < finish; begin += 64) {
                const int64_t stop = least(finish, begin + 64);
                vf32 s1_0 = splat_f32(0), s1_1 = splat_f32(0), s1_2 = splat_f32(0), s1_3 = splat_f32(0);
                for (int64_t r0 = begin; r0 < stop; r0++) {
                    const vf32 v0_0 = load_f32(in0 + (k1 * r0) + p0);
                    const vf32 v0_1 = load_f32(in0 + (k1 * r0) + p0 + 8);
                    const vf32 v0_2 = load_f32(in0 + (k1 * r0) + p0 + 16);
                    const vf32 v0_3 = load_f32(in0 + (k1 * r0) + p0 + 24);
                    s1_0 = s1_0 + v0_0;
                    s1_1 = s1_1 + v0_1;
                    s1_2 = s1_2 + v0_2;
                    s1_3 = s1_3 + v0_3;
                }
                t1_0 = t1_0 + s1_0;
                t1_1 = t1_1 + s1_1;
                t1_2 = t1_2 + s1_2;
                t1_3 = t1_3 + s1_3;
            }
            work->t1_0[chunk] = t1_0;
            work->t1_1[chunk] = t1_1;
            work->t1_2[chunk] = t1_2;
            work->t1_3[chunk] = t1_3;
        }
        else if (left <= 16) {
            vf32 t1_0 = splat_f32(0), t1_1 = splat_f32(0);
            for (int64_t begin = start; begin < finish; begin += 64) {
                const int64_t stop = least(finish, begin + 64);
                vf32 s1_0 = splat_f32(0), s1_1 = splat_f32(0);
                for (int64_t r0 = begin; r0 < stop; r0++) {
                    const vf32 v0_0 = load_n_f32(in0 + (k1 * r0) + p0, count0);
                    const vf32 v0_1 = load_n_f32(in0 + (k1 * r0) + p0 + 8, count1);
                    s1_0 = s1_0 + v0_0;
                    s1_1 = s1_1 + v0_1;
                }
                t1_0 = t1_0 + s1_0;
                t1_1 = t1_1 + s1_1;
            }
            work->t1_0[chunk] = t1_0;
            work->t1_1[chunk] = t1_1;
        }
        else {
            vf32 t1_0 = splat_f32(0), t1_1 = splat_f32(0), t1_2 = splat_f32(0), t1_3 = splat_f32(0);
            for (int64_t begin = start; begin < finish; begin += 64) {
                const int64_t stop = least(finish, begin + 64);
                vf32 s1_0 = splat_f32(0), s1_1 = splat_f32(0), s1_2 = splat_f32(0), s1_3 = splat_f32(0);
                for (int64_t r0 = begin; r0 < stop; r0++) {
                    const vf32 v0_0 = load_f32(in0 + (k1 * r0) + p0);
                    const vf32 v0_1 = load_f32(in0 + (k1 * r0) + p0 + 8);
                    const vf32 v0_2 = load_n_f32(in0 + (k1 * r0) + p0 + 16, count2);
                    const vf32 v0_3 = load_n_f32(in0 + (k1 * r0) + p0 + 24, count3);
                    s1_0 = s1_0 + v0_0;
                    s1_1 = s1_1 + v0_1;
                    s1_2 = s1_2 + v0_2;
                    s1_3 = s1_3 + v0_3;
                }
                t1_0 = t1_0 + s1_0;
                t1_1 = t1_1 + s1_1;
                t1_2 = t1_2 + s1_2;
                t1_3 = t1_3 + s1_3;
            }
            work->t1_0[chunk] = t1_0;
            work->t1_1[chunk] = t1_1;
            work->t1_2[chunk] = t1_2;
            work->t1_3[chunk] = t1_3;
        }
    }
}

static void cooperate(void *const *parameters, const int64_t *dims, int32_t threads)
{
    const float *const in0 = (const float *)parameters[0];
    float *const out1 = (float *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k1;
    const int64_t nr0 = k0;
    struct work work;
    work.parameters = parameters;
    work.dims = dims;
    work.chunks = least(threads, 64);
    const int64_t from = 0, to = ((k1 + 31) / 32);
    const int64_t blocks = ((k1 + 31) / 32);
    int64_t block = from;
    for (int64_t task = from; task < to; task++) {
        const int64_t p0 = block * 32;
        const int64_t left = np0 - p0;
        const int count0 = (int)greatest(0, least(8, left - 0));
        const int count1 = (int)greatest(0, least(8, left - 8));
        const int count2 = (int)greatest(0, least(8, left - 16));
        const int count3 = (int)greatest(0, least(8, left - 24));
        work.p0 = p0;
        GOMP_parallel(walk_0, &work, (unsigned)threads, 0);
        vf32 t1_0 = work.t1_0[0];
        vf32 t1_1 = work.t1_1[0];
        vf32 t1_2 = work.t1_2[0];
        vf32 t1_3 = work.t1_3[0];
        for (int64_t chunk = 1; chunk < work.chunks; chunk++) {
            t1_0 = t1_0 + work.t1_0[chunk];
            t1_1 = t1_1 + work.t1_1[chunk];
            t1_2 = t1_2 + work.t1_2[chunk];
            t1_3 = t1_3 + work.t1_3[chunk];
        }
        const vf32 v1_0 = t1_0;
        const vf32 v1_1 = t1_1;
        const vf32 v1_2 = t1_2;
        const vf32 v1_3 = t1_3;
        work.v1_0 = v1_0;
        work.v1_1 = v1_1;
        work.v1_2 = v1_2;
        work.v1_3 = v1_3;
        store_n_f32(out1 + p0, v1_0, count0);
        store_n_f32(out1 + p0 + 8, v1_1, count1);
        store_n_f32(out1 + p0 + 16, v1_2, count2);
        store_n_f32(out1 + p0 + 24, v1_3, count3);
        block++;
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
    const int64_t k1 = dims[1];
    struct call call = {parameters, dims, ((k1 + 7) / 8)};
    if (threads > 1 && ((k1 + 31) / 32) < threads)
        cooperate(parameters, dims, threads);
    else if (threads > 1 && call.total > 1)
        GOMP_parallel(share, &call, (unsigned)threads, 0);
    else
        run(parameters, dims, 0, call.total);
}
