// cpu.columns axis=0 lanes=8 unroll=2 split=0
// -O3 -std=gnu11 -fno-math-errno -fno-trapping-math -ffp-contract=off -fwrapv -Wno-psabi -mavx2 -mf16c -mfma
#include <stdint.h>
#include <string.h>

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

static inline vi64 splat_i64(int64_t x) { return x - (vi64){0}; }

static inline vi64 load_i64(const int64_t *p) { return *(const ui64 *)p; }

static inline vi64 step_prod_i64(vi64 v, vi64 *carry)
{
    return *carry = *carry * v;
}

static inline void store_i64(int64_t *p, vi64 v) { *(ui64 *)p = v; }

static inline vi64 load_n_i64(const int64_t *p, int n)
{
    vi64 v = {0};
    memcpy(&v, p, (size_t)n * sizeof(*p));
    return v;
}

static inline void store_n_i64(int64_t *p, vi64 v, int n)
{
    memcpy(p, &v, (size_t)n * sizeof(*p));
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
    const int64_t *const in0 = (const int64_t *)parameters[0];
    int64_t *const out1 = (int64_t *)parameters[1];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k0;
    const int64_t nr0 = k1;
    const int64_t vectors = ((k0 + 7) / 8);
    int64_t step;
    int64_t vector = from;
    for (int64_t task = from; task < to; task += step) {
        step = least(2, least(vectors - vector, to - task));
        const int64_t p0 = vector * 8;
        const int64_t left = least(np0 - p0, 8 * step);
        if (left >= 16) {
            {
                vi64 carry1_0 = splat_i64(1);
                vi64 carry1_1 = splat_i64(1);
                for (int64_t r0 = 0; r0 < nr0; r0++) {
                    const vi64 v0_0 = load_i64(in0 + (k0 * r0) + p0);
                    const vi64 v0_1 = load_i64(in0 + (k0 * r0) + p0 + 8);
                    const vi64 v1_0 = step_prod_i64(v0_0, &carry1_0);
                    const vi64 v1_1 = step_prod_i64(v0_1, &carry1_1);
                    store_i64(out1 + (k0 * r0) + p0, v1_0);
                    store_i64(out1 + (k0 * r0) + p0 + 8, v1_1);
                }
            }
        }
        else if (left <= 8) {
            const int count0 = (int)greatest(0, least(8, left - 0));
            {
                vi64 carry1_0 = splat_i64(1);
                for (int64_t r0 = 0; r0 < nr0; r0++) {
                    const vi64 v0_0 = load_n_i64(in0 + (k0 * r0) + p0, count0);
                    const vi64 v1_0 = step_prod_i64(v0_0, &carry1_0);
                    store_n_i64(out1 + (k0 * r0) + p0, v1_0, count0);
                }
            }
        }
        else {
            const int count1 = (int)greatest(0, least(8, left - 8));
            {
                vi64 carry1_0 = splat_i64(1);
                vi64 carry1_1 = splat_i64(1);
                for (int64_t r0 = 0; r0 < nr0; r0++) {
                    const vi64 v0_0 = load_i64(in0 + (k0 * r0) + p0);
                    const vi64 v0_1 = load_n_i64(in0 + (k0 * r0) + p0 + 8, count1);
                    const vi64 v1_0 = step_prod_i64(v0_0, &carry1_0);
                    const vi64 v1_1 = step_prod_i64(v0_1, &carry1_1);
                    store_i64(out1 + (k0 * r0) + p0, v1_0);
                    store_n_i64(out1 + (k0 * r0) + p0 + 8, v1_1, count1);
                }
            }
        }
        vector += step;
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
    struct call call = {parameters, dims, ((k0 + 7) / 8)};
    if (threads > 1 && call.total > 1)
        GOMP_parallel(share, &call, (unsigned)threads, 0);
    else
        run(parameters, dims, 0, call.total);
}
