"""Fast calls of kernels: arrays of a layout that is known, handed over as they are.

A call hands over a list of Python objects. A few lines of C look into the arrays
among them, as every extension module does that is built with Python's and
NumPy's headers: whether each lies as it did when the layout was found. If so
they run the kernel on its memory. In Python, to ask one array for its address
takes longer than all that. The C is a builtin function, made here as an
extension module makes its own: a call takes a fifth of one through ctypes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from struct import Struct
from typing import Any

import numpy as np

from backends.cpu.compiler import compile_source
from backends.cpu.threads import thread_count
from backends.cpu.workers import share
from backends.execution.memory import LINE

#: Where the bytes of a `bytes` object begin.
BYTES = bytes.__basicsize__ - 1

#: METH_FASTCALL (methodobject.h): a builtin's arguments come as an array.
FASTCALL = 0x80

SOURCE = f"""#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* PyListObject (listobject.h) and PyArrayObject_fields (numpy/ndarraytypes.h), behind what all objects begin with. */
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

enum {{ KERNEL, SHARE, TYPE, HEAD, ARRAYS, READS, COUNTED, WORDS, NUMBERS, PLACES, APART, COMMON, FIRST }};
enum {{ INDEX, RANK, ALIGNMENT, LOW, HIGH, LAYOUT }};

/* PyMethodDef (methodobject.h). */
typedef struct {{
    const char *name;
    void *(*function)(void *, const char *const *, intptr_t);
    int flags;
    const char *doc;
}} definition;

/* What is called of Python's C API. */
static struct {{
    void *(*integer)(long);
    void *(*release)(void);
    void (*acquire)(void *);
    void *(*builtin)(definition *, void *, void *);
}} api;

/* 0 if the kernel has run, 1 if an array does not lie as the record says, 2 if it would overwrite what it
   has to read, 3 if there is no memory. Given are the record, how many threads to use, and the numbers. */
static long run(const int64_t *given, const char *values)
{{
    const int64_t *record = (const int64_t *)given[0], threads = given[1], *numbers = given + 2;
    const int64_t *next = record + FIRST;
    char *const *items = ((const list *)(values + record[HEAD]))->items;
    const int64_t arrays = record[ARRAYS], reads = record[READS], counted = record[COUNTED];
    int64_t packed[arrays + counted + record[WORDS] + record[NUMBERS] + record[PLACES] + 3];
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
        if ((uintptr_t)x->data % next[ALIGNMENT])
            return 1;
        start[i] = (int64_t)x->data;
        low[i] = (uintptr_t)x->data + next[LOW];
        high[i] = (uintptr_t)x->data + next[HIGH];
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
    memset(end, 0, counted * sizeof *end);
    end += counted;
    memcpy(end, start + reads, (arrays - reads) * sizeof *end);
    end += arrays - reads;
    memcpy(end, next, record[WORDS] * sizeof *end);
    end += record[WORDS];
    next += record[WORDS];
    memcpy(end, numbers, record[NUMBERS] * sizeof *end);
    end += record[NUMBERS];
    char *scratch = NULL;
    if (record[PLACES]) {{
        scratch = malloc(record[APART] * (record[COMMON] ? 1 : threads) + {LINE});
        if (!scratch)
            return 3;
        for (int64_t i = 0; i < record[PLACES]; i++)
            *end++ = (((uintptr_t)scratch + {LINE - 1}) & ~(uintptr_t){LINE - 1}) + next[i];
    }}
    *end++ = record[APART];
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
    (void)self, (void)count;
    return api.integer(run((const int64_t *)(arguments[0] + {BYTES}), arguments[1]));
}}

/* A builtin function of what `run` takes, packed, and the list. Given is what is called of the API. */
void *builtin(const void *given)
{{
    static definition entered = {{"enter", enter, {FASTCALL}, 0}};
    memcpy(&api, given, sizeof api);
    return api.builtin(&entered, 0, 0);
}}
"""

#: How Python numbers are packed, 8 bytes each, by the kind of the dtype that a kernel takes them in.
FORMATS = {"f": "d", "i": "q", "u": "Q", "b": "?7x"}

#: What the C calls of Python's, in its order.
API = ("PyLong_FromLong", "PyEval_SaveThread", "PyEval_RestoreThread", "PyCFunction_NewEx")


@cache
def _builtin() -> Any:
    """The function that makes the builtin, never let go: the builtin's code is in its library."""
    return compile_source(SOURCE, "builtin")


@cache
def enter() -> Callable[[bytes, list[Any]], int] | None:
    """The function that enters kernels; None where objects are not found to look as the headers say."""
    if sys.implementation.name != "cpython" or not _looks_right([np.zeros((2, 3))[:, ::2]]):
        return None
    api = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in API]
    address = ctypes.cast(_builtin(), ctypes.c_void_p).value or 0
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(address)((ctypes.c_void_p * len(api))(*api))


def _looks_right(values: list[np.ndarray]) -> bool:
    """Whether the fields of a list and of the array in it lie where the C takes them from."""
    (x,), word = values, ctypes.sizeof(ctypes.c_void_p)

    def at(place: int) -> int:
        return ctypes.c_ssize_t.from_address(place).value

    items, head = id(values) + object.__basicsize__, id(x) + object.__basicsize__
    if (at(items), at(at(items + word))) != (1, id(x)) or ctypes.string_at(id(b"op") + BYTES, 2) != b"op":
        return False
    if (at(head - word), at(head)) != (id(np.ndarray), x.ctypes.data):
        return False
    if ctypes.c_int.from_address(head + word).value != x.ndim:
        return False
    sizes, strides = (tuple(at(at(head + n * word) + axis * word) for axis in range(x.ndim)) for n in (2, 3))
    return (sizes, strides) == (x.shape, x.strides)


class Entry:
    """A kernel, with arrays of one layout among the values of a program.

    Parameters
    ----------
    kernel : ctypes function
        Of packed arguments (`backends.cpu.codegen.printer.source`); kept, so that it stays loaded.
    reads, writes : dict
        Arrays of the layout, each under its place in the list of values.
    in_place : sequence of bool
        For each write and, within it, each read, whether the write may be at exactly the read's place.
    counted : int
        How many zeros stand between the addresses of reads and writes.
    words : sequence of int
        What stands between the addresses and the numbers.
    numbers : sequence of (int, numpy.dtype)
        The places of the numbers, and the dtypes that they are taken in.
    scratch : sequence of int
        Where each scratch array begins, and at last how far those of two threads lie apart.
    shared : bool
        Whether threads share the scratch arrays.
    parallel : bool
        Whether the kernel uses threads.
    """

    def __init__(
        self,
        kernel: Any,
        reads: dict[int, np.ndarray],
        writes: dict[int, np.ndarray],
        in_place: Sequence[bool],
        counted: int,
        words: Sequence[int],
        numbers: Sequence[tuple[int, np.dtype]],
        scratch: Sequence[int],
        shared: bool,
        parallel: bool,
    ) -> None:
        *places, apart = scratch
        self._kernel = kernel
        record = [
            ctypes.cast(kernel, ctypes.c_void_p).value or 0,
            share() if parallel else 0,
            id(np.ndarray),
            object.__basicsize__,
            len(reads) + len(writes),
            len(reads),
            counted,
        ]
        record += [len(words), len(numbers), len(places), apart, shared]
        for i, x in (*reads.items(), *writes.items()):
            ends = [(size - 1) * step for size, step in zip(x.shape, x.strides, strict=True)]
            low, high = (sum(pick(end, 0) for end in ends) for pick in (min, max))
            record += [i, x.ndim, x.dtype.alignment, low, high + x.itemsize, *x.shape, *x.strides]
        self._record = np.array([*record, *in_place, *words, *places], np.int64)
        self._start, self._parallel, self._numbers = self._record.ctypes.data, parallel, [i for i, _ in numbers]
        self._pack = Struct("qq" + "".join(FORMATS[dtype.kind] for _, dtype in numbers)).pack
        self._enter: Callable[[bytes, list[Any]], int] = enter()  # type: ignore[assignment]  # asked for before
        #: 0 if the arrays among these values lie as they must, and the kernel has run on them.
        self.run: Callable[[list[Any]], int] = self._packed
        if not (numbers or parallel):
            self.run = partial(self._enter, self._pack(self._start, 1))

    def bind(self, values: list[Any]) -> Callable[[list[Any]], int]:
        if self._parallel:
            return self._packed
        call = partial(self._enter, self._pack(self._start, 1, *[values[i] for i in self._numbers]))
        call.entry = self  # type: ignore[attr-defined]  # which has the record that the packed bytes point to
        return call

    def _packed(self, values: list[Any]) -> int:
        threads = thread_count() if self._parallel else 1
        return self._enter(self._pack(self._start, threads, *[values[i] for i in self._numbers]), values)
