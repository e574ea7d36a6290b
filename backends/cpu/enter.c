/* The entry of compiled kernels: a builtin function that checks the layouts of arrays. See runtime.py, which generates
   records.h and api.h, and defines the macros in capitals. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* PyListObject (listobject.h) and PyArrayObject_fields (numpy/ndarraytypes.h), after the head of all objects. */
typedef struct {
    intptr_t length;
    char **items;
} list;

typedef struct {
    char *data;
    int rank;
    const intptr_t *sizes;
    const intptr_t *strides;
} array;

#include "records.h"
enum { FLOAT, SIGNED, UNSIGNED, BOOL }; /* `KINDS` */

/* PyMethodDef (methodobject.h). */
typedef struct {
    const char *name;
    void *(*function)(void *, const char *const *, intptr_t);
    int flags;
    const char *doc;
} definition;

/* The functions of Python's C API that are called. */
static struct {
#include "api.h"
} api;

/* Store a Python number in the 8 bytes in which the kernel takes it; whether it has none. */
static int convert(const void *number, int64_t kind, int64_t *word)
{
    if (kind == FLOAT) {
        const double value = api.PyFloat_AsDouble(number);
        memcpy(word, &value, sizeof value);
    } else if (kind == SIGNED)
        *word = api.PyLong_AsLongLong(number);
    else if (kind == UNSIGNED)
        *word = api.PyLong_AsUnsignedLongLong(number);
    else
        *word = api.PyObject_IsTrue(number);
    if (!api.PyErr_Occurred())
        return 0;
    api.PyErr_Clear();
    return 1;
}

/* 0 if the kernel has run, or the status of why it has not (`backends.execution.executor`). */
static long run(const call *record, const char *values, int64_t threads)
{
    const int64_t *next = (const int64_t *)(record + 1);
    char *const *items = ((const list *)(values + record->head))->items;
    const int64_t arrays = record->arrays, reads = record->reads, words = record->words;
    int64_t packed[arrays + record->without_memory + words + record->numbers + record->offsets + 3];
    int64_t start[arrays];
    uintptr_t low[arrays], high[arrays];
    for (int64_t i = 0; i < arrays; i++) {
        const array_record *known = (const array_record *)next;
        const char *object = items[known->number] + record->head;
        const array *x = (const array *)object;
        const int64_t rank = known->rank, *sizes = (const int64_t *)(known + 1), *strides = sizes + rank;
        if (((const intptr_t *)object)[-1] != record->type || x->rank != rank)
            return OTHER_LAYOUT;
        for (int64_t axis = 0; axis < rank; axis++)
            if (x->sizes[axis] != sizes[axis] || x->strides[axis] != strides[axis])
                return OTHER_LAYOUT;
        start[i] = (int64_t)x->data + known->offset; /* of a view, which is not among the values */
        if (start[i] % known->alignment)
            return OTHER_LAYOUT;
        low[i] = start[i] + known->low;
        high[i] = start[i] + known->high;
        next = strides + rank;
    }
    for (int64_t write = reads; write < arrays; write++)
        for (int64_t read = 0; read < reads; read++) {
            const int in_place = *next++ && start[read] == start[write];
            if (!in_place && low[read] < high[write] && low[write] < high[read])
                return OVERLAPS;
        }
    int64_t *end = packed;
    memcpy(end, start, reads * sizeof *end);
    end += reads;
    memset(end, 0, record->without_memory * sizeof *end);
    end += record->without_memory;
    memcpy(end, start + reads, (arrays - reads) * sizeof *end);
    end += arrays - reads;
    memcpy(end, next, words * sizeof *end);
    end += words;
    next += words;
    for (int64_t i = 0; i < record->numbers; i++, next += 2)
        if (convert(items[next[0]], next[1], end++))
            return OTHER_LAYOUT;
    char *scratch = NULL;
    if (record->offsets) {
        scratch = malloc(record->thread_stride * (record->is_shared ? 1 : threads) + LINE);
        if (!scratch)
            return NO_MEMORY;
        for (int64_t i = 0; i < record->offsets; i++)
            *end++ = (((uintptr_t)scratch + (LINE - 1)) & ~(uintptr_t)(LINE - 1)) + next[i];
    }
    *end++ = record->thread_stride;
    *end++ = threads;
    *end = record->share;
    void *thread = api.PyEval_SaveThread();
    ((void (*)(const int64_t *))record->kernel)(packed);
    api.PyEval_RestoreThread(thread);
    free(scratch);
    return 0;
}

static void *enter(void *self, const char *const *arguments, intptr_t count)
{
    (void)self;
    const int64_t threads = count > 2 ? api.PyLong_AsLong(arguments[2]) : 1;
    return api.PyLong_FromLong(run((const call *)(arguments[0] + BYTES), arguments[1], threads));
}

/* The builtin function of a record, the list of values, and the number of threads. Given is the API. */
void *builtin(const void *given)
{
    static definition entered = {"enter", enter, FASTCALL, 0};
    memcpy(&api, given, sizeof api);
    return api.PyCFunction_NewEx(&entered, 0, 0);
}
