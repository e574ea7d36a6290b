"""C of attention and its gradient: tiles of scores in a cache, whose columns are queries, in vectors.

So keys and values are read as they are stored, maxima and sums over keys are elementwise, and what is transposed are
panels of queries and what belongs to them, once for all keys.
"""

from __future__ import annotations

from functools import cache

from backends.cpu.codegen.products import COLUMN, PANELS
from backends.cpu.codegen.vector_math import EXP, VECTOR_MATH, WIDE_VECTORS
from backends.cpu.codegen.vectors import vectors

#: What follows a declaration of OPERANDS: queries, keys, values, what else there is, and the mask as the last.
_COMMON = """
/* Keys of a tile. */
enum { KEYS = 128, MASK = OPERANDS - 1 };

/* Strides are in elements, of the rows and columns of each operand. */
typedef struct {
    word share, threads, scratch, scratch_size;
    word x[OPERANDS], out[3]; /* addresses */
    word queries, keys, features, width, panels, causal, mask_bytes; /* bytes of an element: 0 without a mask */
    word row[OPERANDS], column[OPERANDS];
    double scale;
    word axes, leading[]; /* the sizes of the leading axes, then each operand's strides along them */
} attention;

static word heads(const attention *p)
{
    word count = 1;
    for (word axis = 0; axis < p->axes; axis++)
        count *= p->leading[axis];
    return count;
}

/* The addresses of a head's operands. */
static void find(const attention *p, word head, const T **x)
{
    word at[OPERANDS] = {0};
    for (word axis = p->axes; axis--; head /= p->leading[axis])
        for (int i = 0; i < OPERANDS; i++)
            at[i] += head % p->leading[axis] * p->leading[(i + 1) * p->axes + axis];
    for (int i = 0; i < OPERANDS; i++)
        x[i] = (const T *)(p->x[i] + at[i] * (i == MASK ? p->mask_bytes : (word)sizeof(T)));
}

/* Transpose a panel of queries, or of what belongs to them: 0 beyond the last. */
static void across(const attention *p, int operand, const T *from, word features, word lanes, T factor, T *to)
{
    for (word i = 0; i < WIDTH; i++)
        for (word f = 0; f < features; f++)
            to[f * WIDTH + i] = i < lanes ? from[i * p->row[operand] + f * p->column[operand]] * factor : 0;
}

/* Element r, i of a tile of scores is that of key first + r and query i of a panel. */
static void hide(const attention *p, const T *mask, T *scores, word pitch, word rows, word first, word query)
{
    const word size = p->mask_bytes, step = p->row[MASK] * size, lanes = least(p->queries - query, WIDTH);
    for (word r = 0; size && r < rows; r++) {
        const char *at = (const char *)mask + query * step + (first + r) * p->column[MASK] * size;
        T *to = scores + r * pitch, added[WIDTH] = {0};
        int32_t chosen[WIDTH] = {0};
        if (size == 1) {
            for (word i = 0; i < lanes; i++)
                chosen[i] = at[i * step];
            for (int i = 0; i < WIDTH; i++)
                to[i] = chosen[i] ? to[i] : -INFINITY;
        } else {
            for (word i = 0; i < lanes; i++)
                added[i] = *(const T *)(at + i * step);
            for (int i = 0; i < WIDTH; i++)
                to[i] += added[i];
        }
    }
    for (word r = 0; p->causal && r < rows; r++)
        for (word i = 0; i < least(first + r - query, WIDTH); i++)
            scores[r * pitch + i] = -INFINITY;
    for (word r = 0; r < rows; r++) /* beyond the last query, 0 times an infinite key is no number */
        for (word i = lanes; i < WIDTH; i++)
            scores[r * pitch + i] = -INFINITY;
}

/* The columns of a panel. */
int64_t panel_width(const void *unused) { return WIDTH; }
"""

_FORWARD = """
/* The running maxima and sums of a panel of queries. */
typedef struct { T top[WIDTH], total[WIDTH]; } state;

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
static void compute(const attention *p, const T *const *x, T *out, T *sums, word query, T *scratch)
{
    const word lanes = least(p->queries - query, p->panels * WIDTH), panels = (lanes + WIDTH - 1) / WIDTH;
    T(*scores)[WIDTH] = (T(*)[WIDTH])scratch, (*scaled)[WIDTH] = scores + KEYS;
    T(*found)[WIDTH] = scaled + panels * p->features;
    state *states = (state *)(found + panels * p->width);
    const strides by_keys = {p->row[1], p->column[1], WIDTH, WIDTH};
    const strides by_values = {p->column[2], p->row[2], WIDTH, WIDTH};
    const word last = p->causal ? least(p->keys, query + lanes) : p->keys;
    memset(found, 0, panels * p->width * sizeof *found);
    for (word k = 0; k < panels; k++) {
        const T *from = x[0] + (query + k * WIDTH) * p->row[0];
        across(p, 0, from, p->features, lanes - k * WIDTH, p->scale, *(scaled + k * p->features));
        for (int i = 0; i < WIDTH; i++)
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
            hide(p, x[MASK], *scores, WIDTH, rows, first, begin);
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
    for (word task = begin; task < end; task++) {
        const word head = task / count;
        const T *x[OPERANDS];
        find(p, head, x);
        T *out = (T *)p->out[0] + head * p->queries * p->width, *sums = (T *)p->out[1] + head * p->queries;
        compute(p, x, out, sums, task % count * size, (T *)(p->scratch + thread * p->scratch_size));
    }
}

/* The bytes of a thread's memory. */
int64_t scratch_bytes(const void *problem)
{
    const attention *p = problem;
    return (KEYS + p->panels * (p->features + p->width)) * WIDTH * sizeof(T) + p->panels * sizeof(state);
}

int64_t attend(const void *problem)
{
    const attention *p = problem;
    const word size = p->panels * WIDTH;
    ((sharing *)p->share)(tasks, p, heads(p) * ((p->queries + size - 1) / size), p->threads);
    return 0;
}
"""

_GRADIENT = """
/* A thread's memory. Rows of weights and slopes are keys, and their columns the queries of all panels; "across" are
   transposed panels, one after the other; the others are rows of whole panels. */
typedef struct {
    T *weights, *slopes, *scaled_across, *deltas_across, *of_query_across, *scaled, *deltas, *sums, *along, *of_key,
        *of_value, *end;
} memory;

static word whole(word columns) { return (columns + WIDTH - 1) / WIDTH * WIDTH; }

/* Not a power of two: elements of a column would have few sets of the cache. */
static word pitch_of(const attention *p) { return p->panels * WIDTH + LANES; }

static memory laid_out(const attention *p, T *begin)
{
    const word queries = p->panels * WIDTH, features = whole(p->features), width = whole(p->width);
    memory m = {.weights = begin};
    m.slopes = m.weights + KEYS * pitch_of(p);
    m.scaled_across = m.slopes + KEYS * pitch_of(p);
    m.deltas_across = m.scaled_across + queries * p->features;
    m.of_query_across = m.deltas_across + queries * p->width;
    m.scaled = m.of_query_across + queries * p->features;
    m.deltas = m.scaled + queries * features;
    m.sums = m.deltas + queries * width;
    m.along = m.sums + queries;
    m.of_key = m.along + queries;
    m.of_value = m.of_key + p->keys * features;
    m.end = m.of_value + p->keys * width;
    return m;
}

/* Scores become weights, and products of deltas with values the derivatives by scores. */
static void slope(T *weights, T *slopes, word pitch, word rows, const T *sums, const T *along)
{
    for (word r = 0; r < rows; r++, weights += pitch, slopes += pitch)
        for (int i = 0; i < WIDTH; i++) {
            const T weight = exp(weights[i] - sums[i]);
            weights[i] = weight;
            slopes[i] = weight * (slopes[i] - along[i]);
        }
}

/* Copy what belongs to some queries: across, in rows, and for each query; 0 beyond the last. */
static void fetch(const attention *p, const T *const *x, const memory *m, word query, word lanes)
{
    const word features = whole(p->features), width = whole(p->width), all = whole(lanes);
    for (word i = 0; i < all; i += WIDTH) {
        const T *queries = x[0] + (query + i) * p->row[0], *deltas = x[3] + (query + i) * p->row[3];
        across(p, 0, queries, p->features, lanes - i, p->scale, m->scaled_across + i * p->features);
        across(p, 3, deltas, p->width, lanes - i, 1, m->deltas_across + i * p->width);
    }
    memset(m->of_query_across, 0, all * p->features * sizeof(T));
    memset(m->scaled, 0, all * features * sizeof(T));
    memset(m->deltas, 0, all * width * sizeof(T));
    for (word i = 0; i < all; i++) {
        m->along[i] = i < lanes ? x[4][(query + i) * p->row[4]] : 0;
        m->sums[i] = i < lanes ? x[5][(query + i) * p->row[5]] : 0;
    }
    for (word i = 0; i < lanes; i++) {
        for (word f = 0; f < p->features; f++)
            m->scaled[i * features + f] = x[0][(query + i) * p->row[0] + f * p->column[0]] * (T)p->scale;
        for (word f = 0; f < p->width; f++)
            m->deltas[i * width + f] = x[3][(query + i) * p->row[3] + f * p->column[3]];
    }
}

/* The tile of some keys and the queries that have been fetched. */
static void meet(const attention *p, const T *const *x, const memory *m, word query, word lanes, word first, word rows)
{
    const word pitch = pitch_of(p), features = whole(p->features), width = whole(p->width), all = whole(lanes);
    const strides by_keys = {p->row[1], p->column[1], WIDTH, pitch};
    const strides by_values = {p->row[2], p->column[2], WIDTH, pitch};
    const strides of_queries = {p->column[1], p->row[1], pitch, WIDTH};
    const strides of_keys = {pitch, 1, features, features}, of_values = {pitch, 1, width, width};
    const T *keys = x[1] + first * p->row[1], *values = x[2] + first * p->row[2];
    for (word i = 0; i < all; i += WIDTH) {
        T *weights = m->weights + i, *slopes = m->slopes + i;
        const word seen = p->causal ? least(query + i + WIDTH - first, rows) : rows, count = seen > 0 ? seen : 0;
        column(&by_keys, keys, m->scaled_across + i * p->features, weights, count, p->features, 0);
        column(&by_values, values, m->deltas_across + i * p->width, slopes, count, p->width, 0);
        hide(p, x[MASK], weights, pitch, count, first, query + i);
        slope(weights, slopes, pitch, count, m->sums + i, m->along + i);
        for (word r = count; r < rows; r++)
            for (int lane = 0; lane < WIDTH; lane++)
                weights[r * pitch + lane] = slopes[r * pitch + lane] = 0;
        column(&of_queries, keys, slopes, m->of_query_across + i * p->features, p->features, count, 1);
    }
    for (word f = 0; f < features; f += WIDTH)
        column(&of_keys, m->slopes, m->scaled + f, m->of_key + first * features + f, rows, all, 1);
    for (word f = 0; f < width; f += WIDTH)
        column(&of_values, m->weights, m->deltas + f, m->of_value + first * width + f, rows, all, 1);
}

static void tasks(const void *problem, int64_t begin, int64_t end, int64_t thread)
{
    const attention *p = problem;
    const memory m = laid_out(p, (T *)(p->scratch + thread * p->scratch_size));
    const word features = whole(p->features), width = whole(p->width);
    for (word head = begin; head < end; head++) {
        const T *x[OPERANDS];
        find(p, head, x);
        T *of_query = (T *)p->out[0] + head * p->queries * p->features;
        T *of_key = (T *)p->out[1] + head * p->keys * p->features;
        T *of_value = (T *)p->out[2] + head * p->keys * p->width;
        memset(m.of_key, 0, p->keys * (features + width) * sizeof(T));
        for (word query = 0; query < p->queries; query += p->panels * WIDTH) {
            const word lanes = least(p->queries - query, p->panels * WIDTH);
            const word last = p->causal ? least(p->keys, query + lanes) : p->keys;
            fetch(p, x, &m, query, lanes);
            for (word first = 0; first < last; first += KEYS)
                meet(p, x, &m, query, lanes, first, least(last - first, KEYS));
            for (word i = 0; i < lanes; i++)
                for (word f = 0; f < p->features; f++)
                    of_query[(query + i) * p->features + f] =
                        m.of_query_across[(i / WIDTH * p->features + f) * WIDTH + i % WIDTH] * (T)p->scale;
        }
        for (word j = 0; j < p->keys; j++) {
            memcpy(of_key + j * p->features, m.of_key + j * features, p->features * sizeof(T));
            memcpy(of_value + j * p->width, m.of_value + j * width, p->width * sizeof(T));
        }
    }
}

/* The bytes of a thread's memory. */
int64_t scratch_bytes(const void *problem) { return (int64_t)laid_out(problem, NULL).end; }

int64_t attend(const void *problem)
{
    const attention *p = problem;
    ((sharing *)p->share)(tasks, p, heads(p), p->threads);
    return 0;
}
"""


@cache
def source(number: str, is_gradient: bool = False) -> str:
    """The C source for numbers of a type, ``"float"`` or ``"double"``."""
    head = f"{WIDE_VECTORS}#include <stdint.h>\n{VECTOR_MATH}#include <tgmath.h>\n{EXP}{vectors(number)}"
    operands = f"\nenum {{ OPERANDS = {7 if is_gradient else 4} }};"
    return f"{head}{PANELS}{COLUMN}{operands}{_COMMON}{_GRADIENT if is_gradient else _FORWARD}"
