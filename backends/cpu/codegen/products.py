"""C of products of matrices whose operands are read as they lie: BLAS packs them anew in each call."""

from __future__ import annotations

#: Tiles of products, after a declaration of T: `column` multiplies any rows with a panel of WIDTH contiguous columns.
PANELS = """#include <stdint.h>
#include <string.h>

/* One rounding for a * b + c, as in every matrix product. */
#if defined __clang__
#pragma clang fp contract(fast)
#elif defined __GNUC__
#pragma GCC optimize("fp-contract=fast")
#endif

#if defined __AVX512F__
enum { BYTES = 64, TILE = 14 };
#elif defined __AVX__
enum { BYTES = 32, TILE = 6 };
#elif defined __aarch64__
enum { BYTES = 16, TILE = 14 };
#else
enum { BYTES = 16, TILE = 6 };
#endif
/* A panel is two vectors of columns. So many rows of y's panel, and x's rows before them, stay in the cache. */
enum { LANES = BYTES / sizeof(T), WIDTH = 2 * LANES, DEPTH = 512, HEIGHT = 5 * TILE, APART = DEPTH + LANES, AHEAD = 8 };

typedef T vector __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
typedef int64_t word;
typedef void part(const void *state, int64_t begin, int64_t end, int64_t thread);
typedef void sharing(part *run, const void *state, int64_t count, int64_t threads);

/* In elements; columns of y and out are contiguous. */
typedef struct { word x_row, x_column, y_row, out_row; } strides;

static vector load(const T *from) { return *(const vector *)from; }
static void save(T *to, vector value) { *(vector *)to = value; }
static word least(word a, word b) { return a < b ? a : b; }

/* out[r, j] (+)= sum over k of x[r, k] * y[k, j], of R rows and WIDTH columns, in registers. */
static inline __attribute__((always_inline)) void product(const strides *p, const T *x, const T *y, T *out, word inner,
                                                          int adds, const int R)
{
    vector sum[TILE][2]; /* of a constant size: others are not kept in registers */
    for (int r = 0; r < R; r++)
        sum[r][0] = sum[r][1] = (vector){0};
    for (word k = 0; k < inner; k++, x += p->x_column, y += p->y_row) {
        const T *later = y + AHEAD * p->y_row; /* a row is far from the next one: the processor does not foresee it */
        __builtin_prefetch(later), __builtin_prefetch(later + LANES);
        const vector left = load(y), right = load(y + LANES);
        for (int r = 0; r < R; r++) {
            const T factor = x[r * p->x_row];
            sum[r][0] += left * factor, sum[r][1] += right * factor;
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < 2; v++) {
            T *to = out + r * p->out_row + v * LANES;
            if (adds)
                sum[r][v] += load(to);
            save(to, sum[r][v]);
        }
}

#define ROWS(R) \\
    case R: \\
        if (R <= TILE) \\
            product(p, x, y, out, inner, adds, R <= TILE ? R : 1); \\
        return;

static void tile(const strides *p, const T *x, const T *y, T *out, word inner, int adds, int rows)
{
    switch (rows) {
        ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7)
        ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12) ROWS(13) ROWS(14)
    }
}

/* The products of some rows with a panel, in tiles of about equally many rows. */
static void column(const strides *p, const T *x, const T *y, T *out, word rows, word inner, int adds)
{
    const word tiles = (rows + TILE - 1) / TILE;
    for (word t = 0; t < tiles; t++) {
        const word from = rows * t / tiles, to = rows * (t + 1) / tiles;
        tile(p, x + from * p->x_row, y, out + from * p->out_row, inner, adds, (int)(to - from));
    }
}

"""

_MULTIPLY = """
typedef struct {
    word share, threads;
    word x, y, out; /* addresses */
    word rows, inner, columns;
    strides by;
} problem;

/* Panels of out. Rows of x that are a multiple of 512 bytes apart share cache lines' places: they are copied apart. */
static void panels(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    problem p = *(const problem *)state;
    T packed[HEIGHT * APART];
    const word x_row = p.by.x_row;
    const int packs = p.by.x_column == 1 && x_row * sizeof(T) % 512 == 0 && end - begin > 1;
    if (packs)
        p.by.x_row = APART;
    for (word k = 0; k < p.inner; k += DEPTH)
        for (word i = 0; i < p.rows; i += HEIGHT) {
            const T *x = (const T *)p.x + i * x_row + k * p.by.x_column;
            const word rows = least(HEIGHT, p.rows - i), inner = least(DEPTH, p.inner - k);
            if (packs) {
                for (word r = 0; r < rows; r++)
                    memcpy(packed + r * APART, x + r * x_row, inner * sizeof(T));
                x = packed;
            }
            for (word j = begin * WIDTH; j < end * WIDTH; j += WIDTH)
                column(&p.by, x, (const T *)p.y + k * p.by.y_row + j, (T *)p.out + i * p.by.out_row + j, rows, inner,
                       k > 0);
        }
}

/* The columns of a panel. */
int64_t panel_width(const void *unused) { return WIDTH; }

/* out = x y, whose columns are a multiple of WIDTH. */
int64_t multiply(const void *state)
{
    const problem *p = state;
    ((sharing *)p->share)(panels, state, p->columns / WIDTH, p->threads);
    return 0;
}
"""


def source(number: str) -> str:
    """The C source for numbers of a type, ``"float"`` or ``"double"``."""
    return f"typedef {number} T;\n{PANELS}{_MULTIPLY}"
