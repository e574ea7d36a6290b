/* Products by a matrix that is packed once for all steps of a loop. */

#include "vectors.h"
#include "panels.h"
#include "column.h"

enum { DEPTH = 512, HEIGHT = 5 * TILE, PITCH = DEPTH + LANES };

/* Strides are in elements; y is packed and padded with columns of zeros. */
typedef struct {
    word x, y, out; /* addresses */
    word rows, inner, columns;
    strides by;
} problem;

/* The product with the last panel, which may have fewer columns. */
static void rest(const strides *p, const T *x, const T *y, T *out, word columns, word rows, word inner, int adds)
{
    T found[HEIGHT * WIDTH];
    strides by = *p;
    by.out_row = WIDTH;
    for (word r = 0; adds && r < rows; r++)
        memcpy(found + r * WIDTH, out + r * p->out_row, columns * sizeof(T));
    column(&by, x, y, found, rows, inner, adds);
    for (word r = 0; r < rows; r++)
        memcpy(out + r * p->out_row, found + r * WIDTH, columns * sizeof(T));
}

/* out = x y on this thread. Rows of x with a stride of a multiple of 512 bytes share cache sets, so they are first
   copied with another stride. */
int64_t multiply_alone(const void *state)
{
    problem p = *(const problem *)state;
    T spaced[HEIGHT * PITCH];
    const word x_row = p.by.x_row;
    const int copies = p.by.x_column == 1 && x_row * sizeof(T) % 512 == 0;
    if (copies)
        p.by.x_row = PITCH;
    for (word k = 0; k < p.inner; k += DEPTH)
        for (word i = 0; i < p.rows; i += HEIGHT) {
            const T *x = (const T *)p.x + i * x_row + k * p.by.x_column;
            const word rows = least(HEIGHT, p.rows - i), inner = least(DEPTH, p.inner - k);
            if (copies) {
                for (word r = 0; r < rows; r++)
                    memcpy(spaced + r * PITCH, x + r * x_row, inner * sizeof(T));
                x = spaced;
            }
            for (word j = 0; j < p.columns; j += WIDTH) {
                const T *y = (const T *)p.y + j * p.inner + k * WIDTH;
                T *out = (T *)p.out + i * p.by.out_row + j;
                if (p.columns - j < WIDTH)
                    rest(&p.by, x, y, out, p.columns - j, rows, inner, k > 0);
                else
                    column(&p.by, x, y, out, rows, inner, k > 0);
            }
        }
    return 0;
}

/* The number of columns of a panel. */
int64_t panel_width(const void *unused) { return WIDTH; }

typedef struct {
    word share, threads;
    word y, packed; /* addresses */
    word inner, columns, y_row, y_column;
} packing;

/* Pack y into panels of contiguous rows. */
static void pack_panels(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    const packing *p = state;
    for (word n = begin; n < end; n++) {
        const word columns = least(WIDTH, p->columns - n * WIDTH);
        const T *y = (const T *)p->y + n * WIDTH * p->y_column;
        T *to = (T *)p->packed + n * WIDTH * p->inner;
        if (columns < WIDTH)
            memset(to, 0, WIDTH * p->inner * sizeof(T));
        if (p->y_column == 1) {
            for (word k = 0; k < p->inner; k++)
                memcpy(to + k * WIDTH, y + k * p->y_row, columns * sizeof(T));
            continue;
        }
        for (word k = 0; k < p->inner; k += LANES) /* of a column, what may share a cache line */
            for (word j = 0; j < columns; j++)
                for (word i = k; i < least(k + LANES, p->inner); i++)
                    to[i * WIDTH + j] = y[i * p->y_row + j * p->y_column];
    }
}

int64_t pack_columns(const void *state)
{
    const packing *p = state;
    ((sharing *)p->share)(pack_panels, state, (p->columns + WIDTH - 1) / WIDTH, p->threads);
    return 0;
}
