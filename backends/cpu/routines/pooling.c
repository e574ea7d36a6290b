/* Derivatives of pools: each row of windows is added to the rows of elements in its windows, in order.

   A driver defines T (the type of elements), BY_INDEX, and the statements MEET and BEGIN of a kind
   (backends/execution/pooling.py). */

#include <stdint.h>

enum { AXES = 4, TABLE = 64 };
typedef int64_t word;
typedef void part(const void *state, int64_t begin, int64_t end, int64_t thread);
typedef void sharing(part *run, const void *state, int64_t count, int64_t threads);

/* Elements x, windows y and indices z along outer axes, along four pooled ones, and along an inner one. */
typedef struct {
    word share, threads, scratch, scratch_bytes, x, y, z, divides; /* divides: 0 by elements inside, or by a number */
    word outer[AXES], x_outer[AXES], y_outer[AXES], z_outer[AXES];
    word size[AXES], window[AXES], stride[AXES], before[AXES], count[AXES];
    word x_stride[AXES], y_stride[AXES], z_stride[AXES];
    word inner;
} pool;

static word least(word a, word b) { return a < b ? a : b; }
static word most(word a, word b) { return a > b ? a : b; }

/* The range of a window's elements that are inside the array. */
static word inside(const pool *p, int axis, word window, word *first)
{
    const word begin = window * p->stride[axis] - p->before[axis];
    *first = most(0, -begin);
    return least(p->window[axis], p->size[axis] - begin) - *first;
}

/* The range of windows that contain an element. */
static word windows(const pool *p, int axis, word element, word *first)
{
    const word offset = element - p->before[axis];
    *first = offset < 0 ? (-offset + p->stride[axis] - 1) / p->stride[axis] : 0;
    const word after = offset >= p->size[axis] ? 0 : (p->size[axis] - 1 - offset) / p->stride[axis] + 1;
    return least(p->count[axis], after) - *first;
}

#if BY_INDEX
/* The offset of each element of a window that has few. */
typedef struct { word offsets[TABLE], full; } table;

static table prepared(const pool *p)
{
    table all = {.full = p->window[0] * p->window[1] * p->window[2] * p->window[3]};
    for (word number = 0; number < all.full && all.full <= TABLE; number++) {
        word rest = number;
        for (int axis = AXES - 1; axis >= 0; axis--)
            all.offsets[number] += rest % p->window[axis] * p->x_stride[axis], rest /= p->window[axis];
    }
    return all;
}

/* The windows of a row: those at positions of the first three pooled axes. */
static void some(const pool *p, const table *all, const word *at, T *x, T *y, int32_t *z, T *t)
{
    const word full = all->full;
    int is_inside = 1;
    word unused;
    for (int axis = 0; axis < 3; axis++) {
        is_inside = is_inside && inside(p, axis, at[axis], &unused) == p->window[axis];
        x += (at[axis] * p->stride[axis] - p->before[axis]) * p->x_stride[axis];
    }
    for (word j = 0; j < p->count[3]; j++) {
        const int is_whole = is_inside && inside(p, 3, j, &unused) == p->window[3];
        T *from = x + (j * p->stride[3] - p->before[3]) * p->x_stride[3];
        for (word i = 0; i < p->inner; i++, y++, z++) {
            if (*z < 0 || *z >= full)
                continue;
            if (is_whole && full <= TABLE) {
                MEET(from[all->offsets[*z] + i], *y);
                continue;
            }
            word rest = *z, there = 0;
            int is_there = 1;
            for (int axis = AXES - 1; axis >= 0; axis--) {
                const word element = rest % p->window[axis];
                const word position = (axis < 3 ? at[axis] : j) * p->stride[axis] - p->before[axis] + element;
                is_there = is_there && (is_whole || (position >= 0 && position < p->size[axis]));
                there += element * p->x_stride[axis];
                rest /= p->window[axis];
            }
            if (is_there)
                MEET(from[there + i], *y);
        }
    }
    (void)t;
}
#else
/* For positions e of a window along axis 3, the first window that has it inside and how many have; those beyond the
   table are computed when they are needed. */
typedef struct { word first[TABLE], count[TABLE]; } table;

static table prepared(const pool *p)
{
    table all;
    for (word e = 0; e < least(p->window[3], TABLE); e++)
        all.count[e] = windows(p, 3, e, all.first + e);
    return all;
}

static void meet(T *restrict x, T *restrict t, word count)
{
    for (word i = 0; i < count; i++) {
        MEET(x[i], t[i])
    }
}

/* Process a row of windows (fixed positions along the first three axes of windows) and a line of elements. */
static void line(const pool *p, const table *all, T *x, T *t)
{
    const word inner = p->inner, step = p->x_stride[3], stride = p->stride[3];
    for (word e = 0; e < p->window[3]; e++) {
        word first, count;
        if (e < TABLE)
            first = all->first[e], count = all->count[e];
        else
            count = windows(p, 3, e, &first);
        for (word j = first; j < first + count; j++)
            meet(x + (j * stride + e - p->before[3]) * step, t + j * inner, inner);
    }
}

/* The windows of a row: those at positions of the first three pooled axes. */
static void some(const pool *p, const table *all, const word *at, T *x, T *y, int32_t *z, T *t)
{
    word first[3], count[3], unused;
    for (int axis = 0; axis < 3; axis++) {
        count[axis] = inside(p, axis, at[axis], first + axis);
        x += (at[axis] * p->stride[axis] + first[axis] - p->before[axis]) * p->x_stride[axis];
    }
    const word inner = p->inner, lines = count[0] * count[1] * count[2];
    for (word j = 0; j < p->count[3]; j++) {
        const T cells = p->divides ? p->divides : lines * inside(p, 3, j, &unused);
        for (word i = j * inner; i < (j + 1) * inner; i++) {
            BEGIN(y[i], t[i])
        }
    }
    for (word i = 0; i < count[0]; i++)
        for (word j = 0; j < count[1]; j++)
            for (word k = 0; k < count[2]; k++)
                line(p, all, x + i * p->x_stride[0] + j * p->x_stride[1] + k * p->x_stride[2], t);
    (void)z;
}
#endif

static void tasks(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    const pool *p = state;
    const table all = prepared(p);
    T *t = (T *)(p->scratch + thread * p->scratch_bytes);
    for (word task = begin; task < end; task++) {
        word rest = task;
        T *x = (T *)p->x, *y = (T *)p->y;
        int32_t *z = (int32_t *)p->z;
        for (int axis = AXES - 1; axis >= 0; axis--) {
            const word at = rest % p->outer[axis];
            x += at * p->x_outer[axis], y += at * p->y_outer[axis], z += at * p->z_outer[axis];
            rest /= p->outer[axis];
        }
        const word rows = p->count[0] * p->count[1] * p->count[2];
        for (word i = 0; i < rows; i++) {
            const word at[3] = {i / p->count[2] / p->count[1], i / p->count[2] % p->count[1], i % p->count[2]};
            word to = 0, index = 0;
            for (int axis = 0; axis < 3; axis++)
                to += at[axis] * p->y_stride[axis], index += at[axis] * p->z_stride[axis];
            some(p, &all, at, x, y + to, z + index, t);
        }
    }
}

int64_t pooled(const pool *p)
{
    ((sharing *)p->share)(tasks, p, p->outer[0] * p->outer[1] * p->outer[2] * p->outer[3], p->threads);
    return 0;
}
