"""C of pools: each row of windows meets the rows of elements that are in them, one after the other, in vectors."""

from __future__ import annotations

from backends.execution.pooling import Kind

_HEAD = """#include <math.h>
#include <stdint.h>
#include <string.h>

enum { AXES = 4 };
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

/* The elements of a window of this number that are inside. */
static word inside(const pool *p, int axis, word window, word *first)
{
    const word begin = window * p->stride[axis] - p->before[axis];
    *first = most(0, -begin);
    return least(p->window[axis], p->size[axis] - begin) - *first;
}

/* The windows that have an element inside. */
static word windows(const pool *p, int axis, word element, word *first)
{
    const word offset = element - p->before[axis];
    *first = offset < 0 ? (-offset + p->stride[axis] - 1) / p->stride[axis] : 0;
    const word after = offset >= p->size[axis] ? 0 : (p->size[axis] - 1 - offset) / p->stride[axis] + 1;
    return least(p->count[axis], after) - *first;
}
"""

_MET = """
static void meet(T *restrict x, word step, T *restrict y, int32_t *restrict z, T *restrict t, word count,
                 int32_t number)
{
    if (step == 1)
        for (word i = 0; i < count; i++)
            MEET(x[i], y[i], z[i], t[i])
    else if (step == 2)
        for (word i = 0; i < count; i++)
            MEET(x[2 * i], y[i], z[i], t[i])
    else
        for (word i = 0; i < count; i++)
            MEET(x[step * i], y[i], z[i], t[i])
}

/* The windows of a row: those at places of the first three pooled axes. */
static void row(const pool *p, const word *at, T *x, T *y, int32_t *z, T *t)
{
    word first[3], count[3], lines = 1, unused;
    for (int axis = 0; axis < 3; axis++) {
        count[axis] = inside(p, axis, at[axis], first + axis);
        lines *= count[axis];
    }
    const word inner = p->inner;
    for (word j = 0; j < p->count[3]; j++) {
        const T cells = p->divides ? p->divides : lines * inside(p, 3, j, &unused);
        for (word i = j * inner; i < (j + 1) * inner; i++) {
            BEGIN(y[i], z[i], t[i])
        }
        (void)cells;
    }
    for (word line = 0; line < lines; line++) {
        word rest = line, number = 0, offset = 0, element[3];
        for (int axis = 2; axis >= 0; axis--)
            element[axis] = first[axis] + rest % count[axis], rest /= count[axis];
        for (int axis = 0; axis < 3; axis++) {
            number = number * p->window[axis] + element[axis];
            offset += (at[axis] * p->stride[axis] + element[axis] - p->before[axis]) * p->x_stride[axis];
        }
        for (word e = 0; e < p->window[3]; e++) {
            word begin, windows_there = windows(p, 3, e, &begin);
            T *from = x + offset + (begin * p->stride[3] + e - p->before[3]) * p->x_stride[3];
            const int32_t here = (int32_t)(number * p->window[3] + e);
            if (inner == 1)
                meet(from, p->stride[3] * p->x_stride[3], y + begin, z + begin, t + begin, windows_there, here);
            else
                for (word j = 0; j < windows_there; j++)
                    meet(from + j * p->stride[3] * p->x_stride[3], 1, y + (begin + j) * inner, z + (begin + j) * inner,
                         t + (begin + j) * inner, inner, here);
        }
    }
    for (word j = 0; j < p->count[3]; j++) {
        const T cells = p->divides ? p->divides : lines * inside(p, 3, j, &unused);
        for (word i = j * inner; i < (j + 1) * inner; i++) {
            END(y[i])
        }
        (void)cells;
    }
}

"""

_INDEXED = """
/* The windows of a row: those at places of the first three pooled axes. */
static void row(const pool *p, const word *at, T *x, T *y, int32_t *z, T *t)
{
    enum { TABLE = 64 };
    word full = 1, unused, offsets[TABLE];
    int is_inside = 1;
    for (int axis = 0; axis < AXES; axis++)
        full *= p->window[axis];
    for (word number = 0; number < full && full <= TABLE; number++) {
        word rest = number;
        offsets[number] = 0;
        for (int axis = AXES - 1; axis >= 0; axis--)
            offsets[number] += rest % p->window[axis] * p->x_stride[axis], rest /= p->window[axis];
    }
    for (int axis = 0; axis < 3; axis++) {
        is_inside = is_inside && inside(p, axis, at[axis], &unused) == p->window[axis];
        x += (at[axis] * p->stride[axis] - p->before[axis]) * p->x_stride[axis];
    }
    for (word j = 0; j < p->count[3]; j++) {
        const int is_whole = is_inside && inside(p, 3, j, &unused) == p->window[3];
        T *from = x + (j * p->stride[3] - p->before[3]) * p->x_stride[3];
        for (word i = 0; i < p->inner; i++, y++, z++) {
            BEGIN(*y)
            if (*z < 0 || *z >= full)
                continue;
            if (is_whole && full <= TABLE) {
                MEET(from[offsets[*z] + i], *y);
                continue;
            }
            word rest = *z, there = 0;
            int is_there = 1;
            for (int axis = AXES - 1; axis >= 0; axis--) {
                const word element = rest % p->window[axis];
                const word place = (axis < 3 ? at[axis] : j) * p->stride[axis] - p->before[axis] + element;
                is_there = is_there && (is_whole || (place >= 0 && place < p->size[axis]));
                there += element * p->x_stride[axis];
                rest /= p->window[axis];
            }
            if (is_there)
                MEET(from[there + i], *y);
        }
    }
    (void)t;
}
"""

_TASKS = """
static void tasks(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    const pool *p = state;
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
            row(p, at, x, y + to, z + index, t);
        }
    }
}

int64_t pooled(const pool *p)
{
    ((sharing *)p->share)(tasks, p, p->outer[0] * p->outer[1] * p->outer[2] * p->outer[3], p->threads);
    return 0;
}
"""


def source(kind: Kind, number: str) -> str:
    """The C source for an op, and numbers of a type, ``"float"`` or ``"double"``."""
    if kind.is_by_index:
        indexed = f"#define MEET(x, y) {kind.meet}\n#define BEGIN(y) {kind.begin}\n"
        return f"typedef {number} T;\n{indexed}{_HEAD}{_INDEXED}{_TASKS}"
    macros = (
        f"#define MEET(x, y, z, t) {{ {kind.meet} }}",
        f"#define BEGIN(y, z, t) {{ {kind.begin} }}",
        f"#define END(y) {{ {kind.end} }}",
    )
    return "\n".join((f"typedef {number} T;", *macros, _HEAD)) + _MET + _TASKS
