// cpu.tiles axis=1 lanes=8 unroll=2 across=0 tile=64 rows=32
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
    const float *const in1 = (const float *)parameters[1];
    float *const out2 = (float *)parameters[2];
    const int64_t k0 = dims[0];
    const int64_t k1 = dims[1];
    const int64_t np0 = k0;
    const int64_t np1 = k1;
    const int is_large = np0 * np1 * 12 > 16777216;
    const int64_t rows = ((k0 + 31) / 32);
    const int64_t blocks = ((k1 + 63) / 64);
    float tile0[2560] __attribute__((aligned(64)));
    int64_t row = from / blocks;
    int64_t block = from % blocks;
    for (int64_t task = from; task < to; task++) {
        const int64_t begin_p0 = row * 32;
        const int64_t end_p0 = least(np0, begin_p0 + 32);
        const int64_t begin_p1 = block * 64;
        const int64_t end_p1 = least(np1, begin_p1 + 64);
        const int64_t share = (31 + ((end_p1 - begin_p1 + 7) / 8)) / ((end_p1 - begin_p1 + 7) / 8);
        const int64_t is_last = block + 1 == blocks;
        const int64_t further = 64 * (is_last ? -block : 1);
        const int64_t below = is_last ? 32 : 0;
        for (int64_t i0 = 0; begin_p1 + i0 < end_p1; i0 += 8) {
            for (int64_t r = is_large ? i0 / 8 * share : least(i0 / 8 * share + share, end_p0 - begin_p0); r < least(i0 / 8 * share + share, end_p0 - begin_p0); r++)
                for (int64_t c = 15; c < 64; c += 16)
                    __builtin_prefetch(in1 + (begin_p0 * k1) + (k1 * r) + begin_p1 + c, 0, 2);
            for (int64_t r = is_large ? i0 / 8 * share : least(i0 / 8 * share + share, end_p0 - begin_p0); r < least(i0 / 8 * share + share, end_p0 - begin_p0); r++)
                for (int64_t c = 15; c < 64; c += 16)
                    __builtin_prefetch(out2 + (begin_p0 * k1) + (k1 * r) + begin_p1 + c, 1, 2);
            for (int64_t j = 0; begin_p0 + j < end_p0; j += 8) {
                const int n = (int)least(8, end_p0 - begin_p0 - j);
                vf32 square[8];
                const float *p = in0 + (begin_p1 * k0) + (i0 * k0) + begin_p0 + j;
                const int64_t pitch = k0, ahead = (further * k0) + below;
                if (begin_p1 + i0 + 8 <= end_p1 && n == 8) {
                    for (int l = 0; l < 8; l++) {
                        square[l] = load_f32(p);
                        if (is_large && j == 0) __builtin_prefetch(p + ahead, 0, 2);
                        if (is_large && j % 16 == 8) __builtin_prefetch(p + ahead + 7, 0, 2);
                        p += pitch;
                        __asm__("" : "+r"(p));
                    }
                }
                else {
                    for (int l = 0; l < 8; l++) {
                        square[l] = load_n_f32(p, n);
                        p += begin_p1 + i0 + l + 1 < end_p1 ? pitch : 0;
                        __asm__("" : "+r"(p));
                    }
                }
                turn_f32(square);
                for (int l = 0; l < 8; l++)
                    store_f32(tile0 + (j + l) * 80 + i0, square[l]);
            }
        }
        for (int64_t p0 = begin_p0; p0 < end_p0; p0++) {
            int64_t p1 = begin_p1;
            for (; p1 + 16 <= end_p1; p1 += 16) {
                const vf32 v0_0 = load_f32(tile0 + (p0 - begin_p0) * 80 + p1 - begin_p1);
                const vf32 v0_1 = load_f32(tile0 + (p0 - begin_p0) * 80 + p1 - begin_p1 + 8);
                const vf32 v1_0 = load_f32(in1 + (k1 * p0) + p1);
                const vf32 v1_1 = load_f32(in1 + (k1 * p0) + p1 + 8);
                const vf32 v2_0 = v0_0 + v1_0;
                const vf32 v2_1 = v0_1 + v1_1;
                store_f32(out2 + (k1 * p0) + p1, v2_0);
                store_f32(out2 + (k1 * p0) + p1 + 8, v2_1);
            }
            for (; p1 + 8 <= end_p1; p1 += 8) {
                const vf32 v0_0 = load_f32(tile0 + (p0 - begin_p0) * 80 + p1 - begin_p1);
                const vf32 v1_0 = load_f32(in1 + (k1 * p0) + p1);
                const vf32 v2_0 = v0_0 + v1_0;
                store_f32(out2 + (k1 * p0) + p1, v2_0);
            }
            for (; p1 < end_p1; p1 += 8) {
                const int count = (int)least(8, end_p1 - p1);
                const vf32 v0_0 = load_n_f32(tile0 + (p0 - begin_p0) * 80 + p1 - begin_p1, count);
                const vf32 v1_0 = load_n_f32(in1 + (k1 * p0) + p1, count);
                const vf32 v2_0 = v0_0 + v1_0;
                store_n_f32(out2 + (k1 * p0) + p1, v2_0, count);
            }
        }
        if (++block == blocks) {
            block = 0;
            row++;
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
    struct call call = {parameters, dims, ((k0 + 31) / 32) * ((k1 + 63) / 64)};
    if (threads > 1 && call.total > 1)
        GOMP_parallel(share, &call, (unsigned)threads, 0);
    else
        run(parameters, dims, 0, call.total);
}
