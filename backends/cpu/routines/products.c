/* Matrix products: tiles in registers, of rows of x and packed panels of columns of y.

   A panel is two vectors wide. Sums over the inner axis are divided into parts of equal length, which depends on the
   sizes alone. So neither the number of threads nor the layouts of operands change a bit of a product. */

#include "vectors.h"
#include "transpose.h"
#include "panels.h"

/* The elements of a row of x and the columns of y that are packed at once; packed y fits a second-level cache. With
   this pitch, packed rows of x share no sets of the first-level cache. */
enum { DEPTH = 1536 / sizeof(T), HELD = 768, PITCH = DEPTH + LANES };

/* The maximum rows of x and row stride of y in bytes for which y is read as stored; and the minimum multiplications of
   a part of a product. */
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

/* Whether whole panels of y are read as stored, without packing. */
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

/* Multiply a part of the inner axis, by the panels of y read as stored and by the packed panels. */
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
        const word whole = upwards(count, LANES) * LANES; /* transposes of whole vectors are the fastest */
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

/* Divide products by rows and columns into parts for the threads, so that as little as possible is packed more than
   once. Returns the bytes of scratch memory that each thread needs. */
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
