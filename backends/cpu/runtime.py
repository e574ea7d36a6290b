"""Loop nests compiled as C; their calls, by a builtin function that checks the layout of arrays; and their threads.

A call passes a list of Python objects. C code reads the arrays and numbers among them by the layouts of Python's and
NumPy's headers, as an extension module does, and compares the arrays' layouts with those of the call; if they are
equal, the kernel runs. In Python, the address of an array alone takes longer. The C code is a builtin function, created
as in an extension module: a call takes a fifth of one through ctypes.

The threads of a kernel share its work in C (workers.c). The calling thread works too, and steals ranges that others
have not started, so it does not wait for threads that sleep or are descheduled. OpenMP's regions wait for all of their
threads: on a busy machine, a kernel of 0.1 milliseconds took 8.

To wake a thread takes tens of microseconds, and one that spins where its caller needs the processor takes as long as it
spins: so threads yield while they spin, a job that may be short (`share_short`) wakes none before it has measured how
long the rest takes, and one that is known to be (`share_known_short`) none before such jobs follow one another. Threads
that spin join both at once. And they run on other processors than their caller: Linux's scheduler often wakes them on
its own, where they wait for the end of its time slice.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from backends.cpu.codegen import printer as c
from backends.cpu.compiler import c_text, compile_source
from backends.execution.memory import LINE, Memory
from backends.execution.specialize import NO_MEMORY, OTHER_LAYOUT, OVERLAPS, Layout, Operands, Run
from optree.compile.aliasing import address, byte_span
from optree.compile.loopnest import LoopNest
from optree.compile.pipeline import Options
from optree.errors import CompilerError
from optree.records import NamedTuple
from optree.settings import MAX_THREADS, thread_count

#: The offset of the bytes in a `bytes` object.
BYTES = bytes.__basicsize__ - 1

#: METH_FASTCALL (methodobject.h): a builtin's arguments come as an array.
FASTCALL = 0x80

#: The functions of Python's C API that the C calls: the type of each, of a pointer that begins with (*.
API = {
    "PyLong_FromLong": "void *(*{})(long)",
    "PyLong_AsLong": "long (*{})(const void *)",
    "PyFloat_AsDouble": "double (*{})(const void *)",
    "PyLong_AsLongLong": "long long (*{})(const void *)",
    "PyLong_AsUnsignedLongLong": "unsigned long long (*{})(const void *)",
    "PyObject_IsTrue": "int (*{})(const void *)",
    "PyErr_Occurred": "void *(*{})(void)",
    "PyErr_Clear": "void (*{})(void)",
    "PyEval_SaveThread": "void *(*{})(void)",
    "PyEval_RestoreThread": "void (*{})(void *)",
    "PyCFunction_NewEx": "void *(*{})(definition *, void *, void *)",
}


#: Lowering for kernels compiled as C.
C = Options(indices=True, windows=True)


class Record(NamedTuple):
    """The beginning of a call as C takes it, in words."""

    #: The addresses of the kernel, and of the function that shares work among threads; 0 if it uses none.
    kernel: int
    share: int
    #: The address of NumPy's type of arrays, and the bytes of the head of an object.
    type: int
    head: int
    #: The number of arrays, the first of which it reads.
    arrays: int
    reads: int
    #: The number of null pointers between the addresses of reads and writes.
    without_memory: int
    #: The number of sizes and strides, of Python numbers, and of scratch arrays.
    words: int
    numbers: int
    offsets: int
    #: The bytes between the scratch arrays of two threads.
    thread_stride: int
    #: Whether threads share them.
    is_shared: int


class ArrayRecord(NamedTuple):
    """An array, followed by the sizes and strides of the one among the values."""

    #: The number and the rank of that one.
    number: int
    rank: int
    #: In bytes.
    alignment: int
    #: The bytes from that one's first element to the array's own.
    offset: int
    #: The bounds of its memory, from its first element.
    low: int
    high: int


def struct(name: str, fields: Any) -> str:
    """The C struct of words with the fields of a NamedTuple."""
    return f"typedef struct {{ int64_t {', '.join(fields._fields)}; }} {name};"


#: A call as C takes it is a `Record`, its arrays and words; the files that enter.c includes.
INCLUDED = {
    "records.h": f"{struct('call', Record)}\n{struct('array_record', ArrayRecord)}\n",
    "api.h": "".join(f"{type.format(name)};\n" for name, type in API.items()),
}

#: What enter.c calls by name.
DEFINED = {
    "OTHER_LAYOUT": OTHER_LAYOUT,
    "OVERLAPS": OVERLAPS,
    "NO_MEMORY": NO_MEMORY,
    "BYTES": BYTES,
    "FASTCALL": FASTCALL,
    "LINE": LINE,
}


def entry_source() -> str:
    """The C source of the builtin that enters kernels."""
    return c_text(Path(__file__).with_name("enter.c"), DEFINED, INCLUDED)


#: The kinds of dtypes in which kernels take Python numbers, as the C numbers them.
KINDS = "fiub"


@cache
def _creator() -> Any:
    """The function that creates the builtin, never freed, as its library has the builtin's code."""
    return compile_source(entry_source(), "builtin")


@cache
def builtin() -> Callable[..., int]:
    """The builtin that enters kernels; CompilerError where objects do not have the layout of the headers."""
    if sys.implementation.name != "cpython" or not _has_layout([np.zeros((2, 3))[:, ::2]]):
        raise CompilerError("kernels read objects as CPython and NumPy lay them out; here they have another layout")
    api = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in API]
    address = ctypes.cast(_creator(), ctypes.c_void_p).value or 0
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


def data_address(array: np.ndarray, offset: int = object.__basicsize__) -> int:
    """The address of an array's first element, read where `builtin` has checked that it is: in a tenth of the time."""
    return ctypes.c_ssize_t.from_address(id(array) + offset).value


@lru_cache(64)
def _source(nest: LoopNest) -> str:
    """The source of a nest, printed once for the kernels of a network that have equal ones."""
    return c.source(nest)


class CompiledNest:
    """A loop nest, compiled as C; CompilerError if there is no compiler, it fails, or this Python is not CPython."""

    def __init__(self, nest: LoopNest) -> None:
        self._enter, self._function = builtin(), compile_source(_source(nest), c.NAME)
        self._nest, self._needs_scratch = nest, bool(c.scratch_arrays(nest))

    def call(self, operands: Operands, memory: Memory) -> Run:
        """See `backends.execution.specialize.CompiledNest`."""
        call: Any = partial(self._enter, self._record(operands))
        call.kernel = self._function  # a reference, as the record has its address alone
        return partial(_shared, call) if is_parallel(self._nest, operands.layout[0]) else call

    def _record(self, operands: Operands) -> bytes:
        """A call as C takes it: what `run` in enter.c reads, in order."""
        reads, writes, in_place, numbers, (sizes, strides), bases = operands
        *offsets, thread_stride = self.scratch(operands.layout)
        sharing = share_address(length_of(self._nest, sizes)) if is_parallel(self._nest, sizes) else 0
        record: list[int] = [
            *Record(
                ctypes.cast(self._function, ctypes.c_void_p).value or 0,
                sharing,
                id(np.ndarray),
                object.__basicsize__,
                len(reads) + len(writes),
                len(reads),
                self._nest.without_memory,
                len(sizes) + len(strides),
                len(numbers),
                len(offsets),
                thread_stride,
                self._nest.split,
            )
        ]
        for i, x in (*reads.items(), *writes.items()):
            number, base = bases.get(i, (i, x))
            offset = address(x) - address(base)
            array = ArrayRecord(number, base.ndim, x.dtype.alignment, offset, *byte_span(x))
            record += [*array, *base.shape, *base.strides]
        passed = [word for i, dtype in numbers for word in (i, KINDS.index(dtype.kind))]
        return np.array([*record, *in_place, *sizes, *strides, *passed, *offsets], np.int64).tobytes()

    def threads(self, layout: Layout) -> int:
        """The number of threads for arrays of a layout."""
        return thread_count() if is_parallel(self._nest, layout[0]) else 1

    def scratch(self, layout: Layout) -> list[int]:
        """The offset of each scratch array of a thread, and the stride between those of two threads, in bytes."""
        sizes = c.scratch(self._nest, layout[0]) if self._needs_scratch else ()
        return list(accumulate(sizes, lambda offset, size: offset + size + -size % LINE, initial=0))

    def scratch_bytes(self, stride: int, threads: int) -> int:
        """The bytes of the scratch arrays of all threads."""
        return stride * (1 if self._nest.split else threads)

    def words(
        self,
        addresses: Sequence[Any],
        numbers: Sequence[int],
        layout: Layout,
        threads: int = 1,
        scratch: Sequence[Any] = (0,),
    ) -> list[int]:
        """The function's address and its arguments.

        `scratch` (sequence of int): the addresses of the first thread's scratch arrays, and the stride between those of
        two threads.
        """
        sizes, strides = layout
        function = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        sharing = share_address(length_of(self._nest, sizes)) if threads > 1 else 0
        return [function, *addresses, *sizes, *strides, *numbers, *scratch, threads, sharing]

    def work(self, layout: Layout) -> int:
        """An estimate of the number of instructions."""
        return prod(layout[0]) * self._nest.cost


def is_parallel(nest: LoopNest, sizes: Sequence[int]) -> bool:
    """Whether loops of these sizes are worth waking threads for.

    A vector has four times as many bytes as other numbers. Elementwise loops are limited by memory, and gain nothing.
    """
    values = (*nest.reads, *(statement.dtype for statement in nest.statements))
    of_bytes = bool(nest.reductions) and all(dtype.itemsize == 1 for dtype in values)
    return prod(sizes) * nest.cost >= c.PARALLEL_WORK << 2 * of_bytes


def length_of(nest: LoopNest, sizes: Sequence[int]) -> Length:
    """Whether loops of these sizes surely take longer than to wake threads."""
    return "long" if prod(sizes) * nest.cost >= c.LONG_WORK else "unknown"


def _shared(call: Callable[[list[Any], int], int], values: list[Any]) -> int:
    """Call a kernel that shares its work among threads."""
    return call(values, thread_count())


# Work sharing among threads

#: What is known of a job's time, beside that to wake a thread.
Length = Literal["long", "unknown", "short"]

_SHARING: dict[Length, str] = {"long": "share", "unknown": "share_short", "short": "share_known_short"}


def sharing_source() -> str:
    """The C source of the work-sharing functions."""
    return c_text(Path(__file__).with_name("workers.c"), {"MOST": MAX_THREADS})


@cache
def _sharing() -> dict[Length, tuple[Any, int]]:
    """The work-sharing functions of one library, and their addresses; never freed, as its threads run in it."""
    functions = {length: compile_source(sharing_source(), name) for length, name in _SHARING.items()}
    return {length: (each, ctypes.cast(each, ctypes.c_void_p).value or 0) for length, each in functions.items()}


def share_address(length: Length = "long") -> int:
    """The address of the work-sharing function, an argument of kernels; that of jobs not known to be long wakes few."""
    return _sharing()[length][1]
