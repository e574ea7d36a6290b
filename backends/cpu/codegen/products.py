"""C of products of matrices: tiles in registers, of rows of x and panels of columns of y that are packed.

A panel's columns are two vectors. Sums over the inner axis are in parts of equal lengths that the sizes alone choose,
so neither the number of threads nor the layouts of operands change a bit of a product.
"""

from __future__ import annotations

from functools import cache

from backends.cpu.codegen.vectors import transpose, vectors

#: Tiles of products, after `vectors`: `column` multiplies any rows with a panel of WIDTH contiguous columns.
PANELS = """
/* GCC keeps sums in registers where all loops over them are unrolled. */
#define UNROLLED _Pragma("GCC unroll 16")

/* Steps of a loop, by which its own instructions weigh less, and the rows of y that are prefetched. */
enum { WIDTH = 2 * LANES, STEPS = TILE < 12 ? 2 : 1, AHEAD = 8 };

/* In elements; columns of y and out are contiguous. */
typedef struct { word x_row, x_column, y_row, out_row; } strides;

#define STEP(at) \\
    { \\
        const T *row = y + (at) * y_row, *later = row + AHEAD * y_row; \\
        __builtin_prefetch(later); \\
        if (BYTES > 32) \\
            __builtin_prefetch(later + LANES); \\
        const vector left = load(row), right = load(row + LANES); \\
        UNROLLED for (int r = 0; r < R; r++) { \\
            const T factor = x[r * x_row + (at) * x_column]; \\
            sum[r][0] += left * factor, sum[r][1] += right * factor; \\
        } \\
    }

/* out[r, j] (+)= sum over k of x[r, k] * y[k, j], of R rows and WIDTH columns, in registers. */
static inline __attribute__((always_inline)) void product(word x_row, word x_column, word y_row, word out_row,
                                                          const T *x, const T *y, T *out, word inner, int adds,
                                                          const int R)
{
    vector sum[TILE][2]; /* of a constant size: others are not kept in registers */
    UNROLLED for (int r = 0; r < R; r++)
        sum[r][0] = sum[r][1] = (vector){0};
    word k = 0;
    for (; k + STEPS <= inner; k += STEPS, x += STEPS * x_column, y += STEPS * y_row)
        UNROLLED for (int i = 0; i < STEPS; i++)
            STEP(i)
    if (k < inner)
        STEP(0)
    if (adds)
        UNROLLED for (int r = 0; r < R; r++)
            sum[r][0] += load(out + r * out_row), sum[r][1] += load(out + r * out_row + LANES);
    UNROLLED for (int r = 0; r < R; r++)
        save(out + r * out_row, sum[r][0]), save(out + r * out_row + LANES, sum[r][1]);
}

#define ROWS(R, X_ROW, X_COLUMN) \\
    case R: \\
        if (R <= TILE) \\
            product(X_ROW, X_COLUMN, p->y_row, p->out_row, x, y, out, inner, adds, R <= TILE ? R : 1); \\
        return;

/* The product of up to TILE rows with a panel. Strides of x that are constants are the quickest. */
#define TILES(name, X_ROW, X_COLUMN) \\
    static void name(const strides *p, const T *x, const T *y, T *out, word inner, int adds, int rows) \\
    { \\
        switch (rows) { \\
            ROWS(1, X_ROW, X_COLUMN) ROWS(2, X_ROW, X_COLUMN) ROWS(3, X_ROW, X_COLUMN) ROWS(4, X_ROW, X_COLUMN) \\
            ROWS(5, X_ROW, X_COLUMN) ROWS(6, X_ROW, X_COLUMN) ROWS(7, X_ROW, X_COLUMN) ROWS(8, X_ROW, X_COLUMN) \\
            ROWS(9, X_ROW, X_COLUMN) ROWS(10, X_ROW, X_COLUMN) ROWS(11, X_ROW, X_COLUMN) \\
            ROWS(12, X_ROW, X_COLUMN) ROWS(13, X_ROW, X_COLUMN) ROWS(14, X_ROW, X_COLUMN) \\
        } \\
    }
"""

#: The products of any rows with a panel, in tiles of about equally many rows, after PANELS.
COLUMN = """
TILES(tile, p->x_row, p->x_column)

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
/* Numbers of a row of x, and columns of y, that are packed: y for a second-level cache. With this pitch, packed rows of
   x share no sets of the first. */
enum { DEPTH = 1536 / sizeof(T), HELD = 768, PITCH = DEPTH + LANES };

/* The most rows for which y is read as it is stored, and the most bytes from one of its rows to the next; and the least
   multiplications of a part of a product. */
enum { FEW = 64, NEXT = 8192, PART = 1 << 18 };

TILES(packed_tile, PITCH, 1)

/* Strides are in elements. */
typedef struct {
    word share, threads, scratch, scratch_size;
    word matrices, count; /* the addresses of x, y and out of each product, and the number of products */
    word rows, inner, columns;
    word x_row, x_column, y_row, y_column, out_row, out_column;
    word down, along; /* the parts of the rows and of the columns of each product */
} problem;

static word upwards(word count, word by) { return (count + by - 1) / by; }

/* Whether whole panels of y are read as they are stored. */
static int reads(const problem *p)
{
    return p->rows <= FEW && p->y_column == 1 && p->y_row > 0 && p->y_row * sizeof(T) <= NEXT;
}

/* Copy: to[i * stride + j] = from[i * row + j * column]. */
static void pack(const T *from, word row, word column, T *to, word stride, word rows, word columns)
{
    if (column == 1 && columns == WIDTH)
        for (word i = 0; i < rows; i++)
            save(to + i * stride, load(from + i * row)), save(to + i * stride + LANES, load(from + i * row + LANES));
    else if (column == 1)
        for (word i = 0; i < rows; i++)
            memcpy(to + i * stride, from + i * row, columns * sizeof(T));
    else if (row == 1)
        transpose(from, column, to, stride, columns, rows);
    else
        for (word i = 0; i < rows; i++)
            for (word j = 0; j < columns; j++)
                to[i * stride + j] = from[i * row + j * column];
}

/* Multiply a part of the inner axis; of y, whole panels as they are stored, and those that are packed. */
static void multiply_depth(const problem *p, const T *x, const T *y, T *out, word rows, word inner, word columns,
                           int adds, T *packed_y)
{
    const word stored = reads(p) ? columns - columns % WIDTH : 0, tiles = upwards(rows, TILE);
    T packed_x[(TILE + LANES) * PITCH], few[TILE * WIDTH];
    for (word j = stored; j < columns; j += WIDTH) {
        T *panel = packed_y + (j - stored) * inner;
        if (columns - j < WIDTH)
            memset(panel, 0, WIDTH * inner * sizeof(T));
        pack(y + j * p->y_column, p->y_row, p->y_column, panel, WIDTH, inner, least(WIDTH, columns - j));
    }
    for (word t = 0; t < tiles; t++) {
        const word from = rows * t / tiles, count = rows * (t + 1) / tiles - from;
        const word whole = upwards(count, LANES) * LANES; /* transposes of whole vectors are the quickest */
        T *to = out + from * p->out_row;
        pack(x + from * p->x_row, p->x_row, p->x_column, packed_x, PITCH,
             p->x_row == 1 && from + whole <= rows ? whole : count, inner);
        for (word j = 0; j < columns; j += WIDTH) {
            const T *panel = j < stored ? y + j : packed_y + (j - stored) * inner;
            const int is_whole = p->out_column == 1 && columns - j >= WIDTH;
            const strides by = {PITCH, 1, j < stored ? p->y_row : WIDTH, is_whole ? p->out_row : WIDTH};
            packed_tile(&by, packed_x, panel, is_whole ? to + j : few, inner, adds && is_whole, (int)count);
            for (word r = 0; r < count && !is_whole; r++)
                for (word i = 0; i < least(WIDTH, columns - j); i++) {
                    T *sum = to + r * p->out_row + (j + i) * p->out_column;
                    *sum = adds ? *sum + few[r * WIDTH + i] : few[r * WIDTH + i];
                }
        }
    }
}

static void tasks(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    const problem *p = state;
    const word tiles = upwards(p->rows, TILE), panels = upwards(p->columns, WIDTH), depths = upwards(p->inner, DEPTH);
    for (word task = begin; task < end; task++) {
        const word *matrices = (const word *)p->matrices + task / (p->down * p->along) * 3;
        const word i = task / p->along % p->down, j = task % p->along;
        const word first = tiles * i / p->down * TILE, last = least(tiles * (i + 1) / p->down * TILE, p->rows);
        const word stop = least(panels * (j + 1) / p->along * WIDTH, p->columns);
        for (word column = panels * j / p->along * WIDTH; column < stop; column += HELD)
            for (word d = 0; d < depths; d++) {
                const word k = p->inner * d / depths, inner = p->inner * (d + 1) / depths - k;
                multiply_depth(p, (const T *)matrices[0] + first * p->x_row + k * p->x_column,
                               (const T *)matrices[1] + k * p->y_row + column * p->y_column,
                               (T *)matrices[2] + first * p->out_row + column * p->out_column, last - first, inner,
                               least(HELD, stop - column), d > 0,
                               (T *)(p->scratch + thread * p->scratch_size));
            }
    }
}

/* Divide products into parts for the threads, by rows and columns so that the least is packed more than once; the bytes
   of memory that each thread needs. */
int64_t divide(void *state)
{
    problem *p = state;
    const word tiles = upwards(p->rows, TILE), panels = upwards(p->columns, WIDTH);
    word parts = upwards(least(p->threads, p->count * p->rows * p->inner * p->columns / PART), p->count);
    for (p->down = 0; !p->down; parts--)
        for (word down = 1, cost = INT64_MAX; down <= most(parts, 1); down++) {
            const word along = most(parts, 1) / down, packed = down * p->columns + along * p->rows;
            if (down * along == most(parts, 1) && down <= tiles && along <= panels && packed < cost)
                p->down = down, p->along = along, cost = packed;
        }
    return least(reads(p) ? WIDTH : HELD, upwards(panels, p->along) * WIDTH) * least(DEPTH, p->inner) * sizeof(T);
}

int64_t multiply(const void *state)
{
    const problem *p = state;
    ((sharing *)p->share)(tasks, state, p->count * p->down * p->along, p->threads);
    return 0;
}
"""


@cache
def source(number: str) -> str:
    """The C source for numbers of a type, ``"float"`` or ``"double"``."""
    return f"{vectors(number)}{transpose(number)}{PANELS}{_MULTIPLY}"
