"""C of attention: tiles of scores, in a first-level cache, whose columns are queries, in vectors.

So keys and values are read as they are stored, maxima and sums over keys are elementwise, and what is transposed is a
panel of queries and its result, once for all keys.
"""

from __future__ import annotations

from backends.cpu.codegen.products import PANELS
from backends.cpu.codegen.vector_math import EXP, VECTOR_MATH, WIDE_VECTORS

_ATTENTION = """
/* Keys of a tile. */
enum { KEYS = 128, OPERANDS = 4 };

/* Strides are in elements: of the rows and columns of each operand, queries, keys, values and the mask. */
typedef struct {
    word share, threads, scratch, scratch_size;
    word x[OPERANDS], out, sums; /* addresses */
    word queries, keys, features, width, panels, causal, mask_bytes; /* bytes of an element: 0 without a mask */
    word row[OPERANDS], column[OPERANDS];
    double scale;
    word axes, leading[]; /* the sizes of the leading axes, then each operand's strides along them */
} attention;

typedef struct { T top[WIDTH], total[WIDTH]; } state;

/* Element r, i of a tile of scores is that of key first + r and query i. */
static void hide(const attention *p, const char *mask, T (*scores)[WIDTH], word rows, word first, word query,
                 word lanes)
{
    const word size = p->mask_bytes;
    for (word r = 0; size && r < rows; r++) {
        const char *at = mask + (query * p->row[3] + (first + r) * p->column[3]) * size;
        T added[WIDTH] = {0};
        int32_t chosen[WIDTH] = {0};
        if (size == 1) {
            for (word i = 0; i < lanes; i++, at += p->row[3])
                chosen[i] = *(const uint8_t *)at;
            for (int i = 0; i < WIDTH; i++)
                scores[r][i] = chosen[i] ? scores[r][i] : -INFINITY;
        } else {
            for (word i = 0; i < lanes; i++, at += p->row[3] * size)
                added[i] = *(const T *)at;
            for (int i = 0; i < WIDTH; i++)
                scores[r][i] += added[i];
        }
    }
    for (word r = 0; p->causal && r < rows; r++)
        for (word i = 0; i < least(first + r - query, WIDTH); i++)
            scores[r][i] = -INFINITY;
}

/* Scores become weights; the running maximum and sum are those after the tile, and what was summed before decays. */
static void soften(T (*scores)[WIDTH], word rows, state *s, T (*found)[WIDTH], word width)
{
    T top[WIDTH], shift[WIDTH], decay[WIDTH], total[WIDTH];
    for (int i = 0; i < WIDTH; i++)
        top[i] = s->top[i];
    for (word r = 0; r < rows; r++)
        for (int i = 0; i < WIDTH; i++)
            top[i] = top[i] > scores[r][i] ? top[i] : scores[r][i];
    for (int i = 0; i < WIDTH; i++) {
        shift[i] = top[i] == -INFINITY ? 0 : top[i];
        decay[i] = exp(s->top[i] - shift[i]);
        total[i] = s->total[i] * decay[i];
        s->top[i] = top[i];
    }
    for (word r = 0; r < rows; r++)
        for (int i = 0; i < WIDTH; i++) {
            const T weight = exp(scores[r][i] - shift[i]);
            scores[r][i] = weight;
            total[i] += weight;
        }
    for (int i = 0; i < WIDTH; i++)
        s->total[i] = total[i];
    for (word f = 0; f < width; f++)
        for (int i = 0; i < WIDTH; i++)
            found[f][i] *= decay[i];
}

/* The panels of some queries of a head. */
static void compute(const attention *p, const T *const *x, const char *mask, T *out, T *sums, word query, T *scratch)
{
    const word lanes = least(p->queries - query, p->panels * WIDTH), panels = (lanes + WIDTH - 1) / WIDTH;
    T(*scores)[WIDTH] = (T(*)[WIDTH])scratch, (*scaled)[WIDTH] = scores + KEYS;
    T(*found)[WIDTH] = scaled + panels * p->features;
    state *states = (state *)(found + panels * p->width);
    const strides by_keys = {p->row[1], p->column[1], WIDTH, WIDTH};
    const strides by_values = {p->column[2], p->row[2], WIDTH, WIDTH};
    const word last = p->causal ? least(p->keys, query + lanes) : p->keys;
    memset(found, 0, panels * p->width * sizeof *found);
    for (word k = 0; k < panels; k++)
        for (word i = 0; i < WIDTH; i++) {
            const word lane = k * WIDTH + i;
            const T *at = x[0] + (query + lane) * p->row[0];
            for (word f = 0; f < p->features; f++)
                scaled[k * p->features + f][i] = lane < lanes ? at[f * p->column[0]] * (T)p->scale : 0;
            states[k].top[i] = -INFINITY, states[k].total[i] = 0;
        }
    for (word first = 0; first < last; first += KEYS)
        for (word k = 0; k < panels; k++) {
            const word begin = query + k * WIDTH, stop = p->causal ? least(last, begin + WIDTH) : last;
            const word rows = least(stop - first, KEYS);
            if (rows < 1)
                continue;
            const T *keys = x[1] + first * p->row[1], *values = x[2] + first * p->row[2];
            column(&by_keys, keys, *(scaled + k * p->features), *scores, rows, p->features, 0);
            hide(p, mask, scores, rows, first, begin, least(lanes - k * WIDTH, WIDTH));
            soften(scores, rows, states + k, found + k * p->width, p->width);
            column(&by_values, values, *scores, *(found + k * p->width), p->width, rows, 1);
        }
    for (word lane = 0; lane < lanes; lane++) {
        const state *s = states + lane / WIDTH;
        const T top = s->top[lane % WIDTH], total = s->total[lane % WIDTH];
        const T *from = *(found + lane / WIDTH * p->width) + lane % WIDTH;
        T *to = out + (query + lane) * p->width;
        for (word f = 0; f < p->width; f++)
            to[f] = from[f * WIDTH] / (total == 0 ? 1 : total);
        sums[query + lane] = total == 0 ? INFINITY : log(total) + top;
    }
}

static void tasks(const void *problem, int64_t begin, int64_t end, int64_t thread)
{
    const attention *p = problem;
    const word size = p->panels * WIDTH, count = (p->queries + size - 1) / size;
    T *scratch = (T *)(p->scratch + thread * p->scratch_size);
    for (word task = begin; task < end; task++) {
        const word head = task / count;
        word at[OPERANDS] = {0};
        for (word axis = p->axes, rest = head; axis--; rest /= p->leading[axis])
            for (int i = 0; i < OPERANDS; i++)
                at[i] += rest % p->leading[axis] * p->leading[(i + 1) * p->axes + axis];
        const T *x[3];
        for (int i = 0; i < 3; i++)
            x[i] = (const T *)p->x[i] + at[i];
        const char *mask = (const char *)p->x[3] + at[3] * p->mask_bytes;
        T *out = (T *)p->out + head * p->queries * p->width, *sums = (T *)p->sums + head * p->queries;
        compute(p, x, mask, out, sums, task % count * size, scratch);
    }
}

/* The bytes of a thread's memory. */
int64_t scratch_bytes(const void *problem)
{
    const attention *p = problem;
    return (KEYS + p->panels * (p->features + p->width)) * WIDTH * sizeof(T) + p->panels * sizeof(state);
}

int64_t panel_width(const void *unused) { return WIDTH; }

int64_t attend(const void *problem)
{
    const attention *p = problem;
    word count = (p->queries + p->panels * WIDTH - 1) / (p->panels * WIDTH);
    for (word axis = 0; axis < p->axes; axis++)
        count *= p->leading[axis];
    ((sharing *)p->share)(tasks, p, count, p->threads);
    return 0;
}
"""


def source(number: str) -> str:
    """The C source for numbers of a type, ``"float"`` or ``"double"``."""
    head = f"{WIDE_VECTORS}#include <stdint.h>\n{VECTOR_MATH}#include <tgmath.h>\n{EXP}typedef {number} T;\n"
    return f"{head}{PANELS}{_ATTENTION}"
