"""The fast path into kernels on the CPU: a builtin function that checks the layout of arrays, and runs the kernel.

A call passes a list of Python objects. C code reads the arrays and numbers among
them by the layouts of Python's and NumPy's headers, as an extension module does, and
compares the arrays' layouts with those of the entry; if they are equal, the kernel
runs. In Python, the address of an array alone takes longer. The C code is a builtin
function, created as in an extension module: a call takes a fifth of one through ctypes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from backends.cpu.compiler import compile_source
from backends.execution.memory import LINE
from optree.arrays import address, byte_span
from optree.settings import thread_count

#: The offset of the bytes in a `bytes` object.
BYTES = bytes.__basicsize__ - 1

#: METH_FASTCALL (methodobject.h): a builtin's arguments come as an array.
FASTCALL = 0x80

SOURCE = f"""#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* PyListObject (listobject.h) and PyArrayObject_fields (numpy/ndarraytypes.h), after the head of all objects. */
typedef struct {{
    intptr_t length;
    char **items;
}} list;

typedef struct {{
    char *data;
    int rank;
    const intptr_t *sizes;
    const intptr_t *strides;
}} array;

enum {{ KERNEL, SHARE, TYPE, HEAD, ARRAYS, READS, INDICES, WORDS, NUMBERS, OFFSETS, THREAD_STRIDE, SHARED, FIRST }};
enum {{ INDEX, RANK, ALIGNMENT, OFFSET, LOW, HIGH, LAYOUT }};
enum {{ FLOAT, SIGNED, UNSIGNED, BOOL }};

/* PyMethodDef (methodobject.h). */
typedef struct {{
    const char *name;
    void *(*function)(void *, const char *const *, intptr_t);
    int flags;
    const char *doc;
}} definition;

/* The functions of Python's C API that are called. */
static struct {{
    void *(*integer)(long);
    long (*value)(const void *);
    double (*as_float)(const void *);
    long long (*as_signed)(const void *);
    unsigned long long (*as_unsigned)(const void *);
    int (*as_bool)(const void *);
    void *(*error)(void);
    void (*forget_error)(void);
    void *(*release)(void);
    void (*acquire)(void *);
    void *(*builtin)(definition *, void *, void *);
}} api;

/* Store a Python number in the 8 bytes in which the kernel takes it; whether it has none. */
static int convert(const void *number, int64_t kind, int64_t *word)
{{
    if (kind == FLOAT) {{
        const double value = api.as_float(number);
        memcpy(word, &value, sizeof value);
    }} else if (kind == SIGNED)
        *word = api.as_signed(number);
    else if (kind == UNSIGNED)
        *word = api.as_unsigned(number);
    else
        *word = api.as_bool(number);
    if (!api.error())
        return 0;
    api.forget_error();
    return 1;
}}

/* 0 if the kernel has run, 1 if an array has another layout than the record, or a number does not fit, 2 if a write
   overlaps a read, 3 if there is no memory. */
static long run(const int64_t *record, const char *values, int64_t threads)
{{
    const int64_t *next = record + FIRST;
    char *const *items = ((const list *)(values + record[HEAD]))->items;
    const int64_t arrays = record[ARRAYS], reads = record[READS], flat_indices = record[INDICES];
    int64_t packed[arrays + flat_indices + record[WORDS] + record[NUMBERS] + record[OFFSETS] + 3];
    int64_t start[arrays];
    uintptr_t low[arrays], high[arrays];
    for (int64_t i = 0; i < arrays; i++) {{
        const char *object = items[next[INDEX]] + record[HEAD];
        const array *x = (const array *)object;
        const int64_t rank = next[RANK], *sizes = next + LAYOUT, *strides = sizes + rank;
        if (((const intptr_t *)object)[-1] != record[TYPE] || x->rank != rank)
            return 1;
        for (int64_t axis = 0; axis < rank; axis++)
            if (x->sizes[axis] != sizes[axis] || x->strides[axis] != strides[axis])
                return 1;
        start[i] = (int64_t)x->data + next[OFFSET]; /* of a view, which is not among the values */
        if (start[i] % next[ALIGNMENT])
            return 1;
        low[i] = start[i] + next[LOW];
        high[i] = start[i] + next[HIGH];
        next = strides + rank;
    }}
    for (int64_t write = reads; write < arrays; write++)
        for (int64_t read = 0; read < reads; read++) {{
            const int in_place = *next++ && start[read] == start[write];
            if (!in_place && low[read] < high[write] && low[write] < high[read])
                return 2;
        }}
    int64_t *end = packed;
    memcpy(end, start, reads * sizeof *end);
    end += reads;
    memset(end, 0, flat_indices * sizeof *end);
    end += flat_indices;
    memcpy(end, start + reads, (arrays - reads) * sizeof *end);
    end += arrays - reads;
    memcpy(end, next, record[WORDS] * sizeof *end);
    end += record[WORDS];
    next += record[WORDS];
    for (int64_t i = 0; i < record[NUMBERS]; i++, next += 2)
        if (convert(items[next[0]], next[1], end++))
            return 1;
    char *scratch = NULL;
    if (record[OFFSETS]) {{
        scratch = malloc(record[THREAD_STRIDE] * (record[SHARED] ? 1 : threads) + {LINE});
        if (!scratch)
            return 3;
        for (int64_t i = 0; i < record[OFFSETS]; i++)
            *end++ = (((uintptr_t)scratch + {LINE - 1}) & ~(uintptr_t){LINE - 1}) + next[i];
    }}
    *end++ = record[THREAD_STRIDE];
    *end++ = threads;
    *end = record[SHARE];
    void *thread = api.release();
    ((void (*)(const int64_t *))record[KERNEL])(packed);
    api.acquire(thread);
    free(scratch);
    return 0;
}}

static void *enter(void *self, const char *const *arguments, intptr_t count)
{{
    (void)self;
    const int64_t threads = count > 2 ? api.value(arguments[2]) : 1;
    return api.integer(run((const int64_t *)(arguments[0] + {BYTES}), arguments[1], threads));
}}

/* The builtin function of a record, the list of values, and the number of threads. Given is the API. */
void *builtin(const void *given)
{{
    static definition entered = {{"enter", enter, {FASTCALL}, 0}};
    memcpy(&api, given, sizeof api);
    return api.builtin(&entered, 0, 0);
}}
"""

#: The kinds of dtypes in which kernels take Python numbers, as the C numbers them.
KINDS = "fiub"

#: The functions of Python's C API that the C calls, in order.
API = (
    *("PyLong_FromLong", "PyLong_AsLong", "PyFloat_AsDouble", "PyLong_AsLongLong", "PyLong_AsUnsignedLongLong"),
    *("PyObject_IsTrue", "PyErr_Occurred", "PyErr_Clear"),
    *("PyEval_SaveThread", "PyEval_RestoreThread", "PyCFunction_NewEx"),
)


@cache
def _builtin() -> Any:
    """The function that creates the builtin, never freed, as its library has the builtin's code."""
    return compile_source(SOURCE, "builtin")


@cache
def enter() -> Callable[..., int] | None:
    """The builtin that enters kernels; None where objects do not have the layout of the headers."""
    if sys.implementation.name != "cpython" or not _has_layout([np.zeros((2, 3))[:, ::2]]):
        return None
    api = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in API]
    address = ctypes.cast(_builtin(), ctypes.c_void_p).value or 0
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(address)((ctypes.c_void_p * len(api))(*api))


def _has_layout(values: list[np.ndarray]) -> bool:
    """Whether a list and the array in it have the layout that the C reads."""
    (x,), word = values, ctypes.sizeof(ctypes.c_void_p)

    def at(address: int) -> int:
        return ctypes.c_ssize_t.from_address(address).value

    items, head = id(values) + object.__basicsize__, id(x) + object.__basicsize__
    if (at(items), at(at(items + word))) != (1, id(x)) or ctypes.string_at(id(b"op") + BYTES, 2) != b"op":
        return False
    if (at(head - word), at(head)) != (id(np.ndarray), x.ctypes.data):
        return False
    if ctypes.c_int.from_address(head + word).value != x.ndim:
        return False
    sizes, strides = (tuple(at(at(head + n * word) + axis * word) for axis in range(x.ndim)) for n in (2, 3))
    return (sizes, strides) == (x.shape, x.strides)


class KernelEntry:
    """The fast call of a C kernel, for arrays of one layout (`backends.execution.executor.FastCall`).

    Parameters
    ----------
    kernel : ctypes function
        Of packed arguments (`backends.cpu.codegen.printer.source`); the entry holds its library.
    reads, writes, in_place, numbers, bases
        As of `backends.execution.specialize.Runner.entry`.
    flat_indices : int
        The number of null pointers between the addresses of reads and writes.
    words : sequence of int
        The arguments between the addresses and the numbers.
    scratch : sequence of int
        The offset of each scratch array, and last the stride between those of two threads.
    shared : bool
        Whether threads share the scratch arrays.
    sharing : int
        The address of the function that shares work among threads; 0 for a kernel that uses none.
    """

    def __init__(
        self,
        kernel: Any,
        reads: dict[int, np.ndarray],
        writes: dict[int, np.ndarray],
        in_place: Sequence[bool],
        flat_indices: int,
        words: Sequence[int],
        numbers: Sequence[tuple[int, np.dtype]],
        scratch: Sequence[int],
        shared: bool,
        sharing: int,
        bases: Mapping[int, tuple[int, np.ndarray]],
    ) -> None:
        *offsets, thread_stride = scratch
        record = [
            ctypes.cast(kernel, ctypes.c_void_p).value or 0,
            sharing,
            id(np.ndarray),
            object.__basicsize__,
            len(reads) + len(writes),
            len(reads),
            flat_indices,
        ]
        record += [len(words), len(numbers), len(offsets), thread_stride, shared]
        for i, x in (*reads.items(), *writes.items()):
            index, base = bases.get(i, (i, x))
            offset = address(x) - address(base)
            record += [index, base.ndim, x.dtype.alignment, offset, *byte_span(x), *base.shape, *base.strides]
        passed = [word for i, dtype in numbers for word in (i, KINDS.index(dtype.kind))]
        packed = np.array([*record, *in_place, *words, *passed, *offsets], np.int64).tobytes()
        known = enter()
        assert known is not None  # asked for before
        call: Any = partial(known, packed)
        call.kernel = kernel  # a reference, as the record has its address alone
        self.run: Callable[[list[Any]], int] = partial(_shared, call) if sharing else call


def _shared(call: Callable[[list[Any], int], int], values: list[Any]) -> int:
    """Call a kernel that shares its work among threads."""
    return call(values, thread_count())
