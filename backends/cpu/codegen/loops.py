"""C of loops: the steps of each part of the rows, one after the other, on one of the threads that share the parts."""

from __future__ import annotations

from functools import cache

from backends.cpu.codegen.products import COLUMN, PANELS
from backends.cpu.codegen.vectors import vectors

SOURCE = """#include <stdint.h>
#include <string.h>

typedef int64_t word;
typedef void part(const void *state, int64_t begin, int64_t end, int64_t thread);
typedef void sharing(part *run, const void *state, int64_t count, int64_t threads);

typedef struct { word function, arguments; } call; /* the arguments' index among the words */
typedef struct { word index, column, offset; } address; /* a word: an address of the table, and an offset */
typedef struct { word first_call, last_call, first_address, last_address; } rows;

/* The table has a row for each step: the address of each array. */
typedef struct {
    word share, threads;
    word table, columns, first, last;
    word parts, rows, calls, addresses, words;
} loop;

static void run_parts(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    const loop *p = state;
    word *words = (word *)p->words;
    const call *calls = (const call *)p->calls;
    const address *addresses = (const address *)p->addresses;
    for (const rows *own = (const rows *)p->rows + begin; own < (const rows *)p->rows + end; own++)
        for (word step = p->first; step < p->last; step++) {
            const word *table = (const word *)p->table + step * p->columns;
            for (word i = own->first_address; i < own->last_address; i++)
                words[addresses[i].index] = table[addresses[i].column] + addresses[i].offset;
            for (word i = own->first_call; i < own->last_call; i++)
                ((void (*)(const word *))calls[i].function)(words + calls[i].arguments);
        }
}

int64_t run(const void *state)
{
    const loop *p = state;
    if (p->parts == 1) /* its kernels may wake threads */
        run_parts(state, 0, 1, 0);
    else
        ((sharing *)p->share)(run_parts, state, p->parts, p->threads);
    return 0;
}

enum { TARGET, SOURCE, ITEM, RANK, SIZES };

/* Copy an array to another of its sizes, of any strides in bytes; 0 strides repeat an element. */
int64_t copy(const void *state)
{
    const word *given = state;
    const word rank = given[RANK], *const sizes = given + SIZES, item = given[ITEM], last = rank - 1;
    const word *const to = sizes + rank, *const from = to + rank, count = sizes[last];
    char *target = (char *)given[TARGET];
    const char *source = (const char *)given[SOURCE];
    word index[rank];
    memset(index, 0, sizeof index);
    for (;;) {
        if (to[last] == item && from[last] == item)
            memcpy(target, source, count * item);
        else
#define COPY(type) \\
            for (word i = 0; i < count; i++) \\
                *(type *)(target + i * to[last]) = *(const type *)(source + i * from[last])
            switch (item) {
            case 1: COPY(uint8_t); break;
            case 2: COPY(uint16_t); break;
            case 4: COPY(uint32_t); break;
            default: COPY(uint64_t);
            }
        word axis = last - 1;
        for (; axis >= 0; axis--) {
            target += to[axis], source += from[axis];
            if (++index[axis] < sizes[axis])
                break;
            target -= to[axis] * sizes[axis], source -= from[axis] * sizes[axis], index[axis] = 0;
        }
        if (axis < 0)
            return 0;
    }
}
"""

#: The C functions of `products`.
PRODUCTS = ("multiply_alone", "pack_columns", "panel_width")

_PRODUCTS = """
enum { DEPTH = 512, HEIGHT = 5 * TILE, PITCH = DEPTH + LANES };

/* Strides are in elements; y is packed, with columns of zeros after the last. */
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

/* out = x y on this thread. Rows of x at a stride of a multiple of 512 bytes share sets of the cache: they are copied
   with another pitch. */
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

/* The columns of a panel. */
int64_t panel_width(const void *unused) { return WIDTH; }

typedef struct {
    word share, threads;
    word y, packed; /* addresses */
    word inner, columns, y_row, y_column;
} packing;

/* Panels of y, each with its rows one after the other. */
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
"""


@cache
def products(number: str) -> str:
    """The C source of products by packed matrices of a type, ``"float"`` or ``"double"``."""
    return f"{vectors(number)}{PANELS}{COLUMN}{_PRODUCTS}"
