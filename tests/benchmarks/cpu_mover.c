/* Moves elements of two bytes from a matrix that lies column by column to one that lies row by row:
   what `cpu_limits` times beside what is generated. Written by hand for AVX-512, for sides of 32
   and more; 32 x 32 elements at a time go through registers. -D says in which order:

   WHOLE     lines of what is read are read at once, not by halves
   TALL      blocks of a tile across the rows of the output
   WIDE      ... and along them
   ALONG     a tile is walked along the rows first, not across
   AHEAD     as many blocks later is what is asked for meanwhile; 0: nothing is
   ADDED     a straight matrix is read, too, and its bits change those that are moved */

#include <immintrin.h>
#include <stdint.h>

extern void GOMP_parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags);
extern int omp_get_thread_num(void);
extern int omp_get_num_threads(void);

typedef uint16_t element;

struct call {
    const element *straight, *turned;
    element *out;
    int64_t rows, columns;
};

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Transposes 8 x 8 elements in each of four pieces. */
static inline __attribute__((always_inline)) void interleave(__m512i *v)
{
#pragma GCC unroll 3
    for (int round = 0; round < 3; round++) {
        __m512i w[8];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            w[2 * i] = _mm512_unpacklo_epi16(v[i], v[i + 4]);
            w[2 * i + 1] = _mm512_unpackhi_epi16(v[i], v[i + 4]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            v[i] = w[i];
    }
}

static inline __attribute__((always_inline)) void put(
    const struct call *call, int64_t row, int64_t column, __m512i v)
{
    const int64_t place = row * call->columns + column;
#ifdef ADDED
    v = _mm512_xor_si512(v, _mm512_loadu_si512(call->straight + place));
#endif
    _mm512_storeu_si512(call->out + place, v);
}

#ifdef WHOLE
static inline __attribute__((always_inline)) void block(
    const struct call *call, int64_t row, int64_t column)
{
    const element *p = call->turned + column * call->rows + row;
    const int64_t pitch = call->rows;
    __m512i v[4][8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++, p += pitch) {
        const __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 8 * pitch);
        const __m512i c = _mm512_loadu_si512(p + 16 * pitch), d = _mm512_loadu_si512(p + 24 * pitch);
        const __m512i low = _mm512_shuffle_i32x4(a, b, 0x44), high = _mm512_shuffle_i32x4(a, b, 0xee);
        const __m512i low2 = _mm512_shuffle_i32x4(c, d, 0x44), high2 = _mm512_shuffle_i32x4(c, d, 0xee);
        v[0][i] = _mm512_shuffle_i32x4(low, low2, 0x88);
        v[1][i] = _mm512_shuffle_i32x4(low, low2, 0xdd);
        v[2][i] = _mm512_shuffle_i32x4(high, high2, 0x88);
        v[3][i] = _mm512_shuffle_i32x4(high, high2, 0xdd);
    }
#pragma GCC unroll 4
    for (int piece = 0; piece < 4; piece++) {
        interleave(v[piece]);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            put(call, row + 8 * piece + i, column, v[piece][i]);
    }
}
#else
static inline __m256i half(const element *p) { return _mm256_loadu_si256((const __m256i *)p); }

static inline __attribute__((always_inline)) void block(
    const struct call *call, int64_t row, int64_t column)
{
    const int64_t pitch = call->rows;
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    const __m512i second = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
#pragma GCC unroll 2
    for (int64_t side = row; side < row + 32; side += 16) {
        const element *p = call->turned + column * pitch + side;
        __m512i v[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++, p += pitch)
            v[i] = _mm512_inserti64x4(_mm512_castsi256_si512(half(p)), half(p + 16 * pitch), 1);
        interleave(v);
        interleave(v + 8);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            put(call, side + i, column, _mm512_permutex2var_epi64(v[i], first, v[i + 8]));
            put(call, side + i + 8, column, _mm512_permutex2var_epi64(v[i], second, v[i + 8]));
        }
    }
}
#endif

/* The place of a block: its tile, and where in it. */
struct place {
    int64_t tile_row, tile_column, row, column;
};

static inline void advance(struct place *at, int64_t rows, int64_t columns)
{
    const int64_t tall = least(rows - at->tile_row, TALL), wide = least(columns - at->tile_column, WIDE);
#ifdef ALONG
    if (++at->column < wide)
        return;
    at->column = 0;
    if (++at->row < tall)
        return;
#else
    if (++at->row < tall)
        return;
    at->row = 0;
    if (++at->column < wide)
        return;
#endif
    at->row = at->column = 0;
    if ((at->tile_column += WIDE) >= columns) {
        at->tile_column = 0;
        at->tile_row += TALL;
    }
}

static inline int64_t row_of(const struct call *call, int64_t from, const struct place *at)
{
    return least((from + at->tile_row + at->row) * 32, call->rows - 32);
}

static inline int64_t column_of(const struct call *call, const struct place *at)
{
    return least((at->tile_column + at->column) * 32, call->columns - 32);
}

/* Always inline: a function that only prefetches is taken for one that does nothing. */
static inline __attribute__((always_inline)) void ask(
    const struct call *call, int64_t row, int64_t column, int is_first)
{
    for (int i = 0; i < 32; i++) {
        const element *p = call->turned + (column + i) * call->rows + row;
        const int64_t place = (row + i) * call->columns + column + 31;
        if (is_first)
            __builtin_prefetch(p, 0, 2);
        __builtin_prefetch(p + 31, 0, 2);
        __builtin_prefetch(call->out + place, 1, 2);
#ifdef ADDED
        __builtin_prefetch(call->straight + place, 0, 2);
#endif
    }
}

static void share(void *data)
{
    const struct call *call = data;
    const int64_t me = omp_get_thread_num(), threads = omp_get_num_threads();
    const int64_t all = (call->rows + 31) / 32, columns = (call->columns + 31) / 32;
    const int64_t from = all * me / threads, rows = all * (me + 1) / threads - from;
    struct place at = {0, 0, 0, 0}, later = at;
    for (int i = 0; i < AHEAD; i++)
        advance(&later, rows, columns);
    for (int64_t number = 0; number < rows * columns; number++) {
        if (AHEAD && number + AHEAD < rows * columns)
            ask(call, row_of(call, from, &later), column_of(call, &later), later.row == 0);
        block(call, row_of(call, from, &at), column_of(call, &at));
        advance(&at, rows, columns);
        advance(&later, rows, columns);
    }
}

void move(void *const *parameters, const int64_t *dims, int32_t threads)
{
    struct call call = {parameters[0], parameters[1], parameters[2], dims[0], dims[1]};
    GOMP_parallel(share, &call, (unsigned)threads, 0);
}
