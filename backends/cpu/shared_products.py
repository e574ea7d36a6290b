"""Products by NumPy's OpenBLAS in parts, which the threads of kernels share.

Threads of OpenBLAS's own would spin for milliseconds after each product, on the
processors where the next kernel's should begin.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from backends.cpu.mkl import Product, fits
from backends.cpu.openblas import one_thread, products, threads
from backends.cpu.products import TYPES
from backends.cpu.thread_pool import thread_count
from backends.cpu.workers import share_address
from backends.execution.memory import HOST, order_and_leading_dimension

#: Products of fewer multiplications, for which OpenBLAS too has one thread, or with a shorter side, are np.matmul's.
SMALL, MIN_SIDE = 1 << 18, 8

#: The least multiplications of a part of a product.
PART = 1 << 21

#: CBLAS's enumerators.
_PLAIN, _TRANSPOSED = 111, 112

_SOURCE = """#include <stdint.h>

typedef int64_t word;
typedef void part(const void *state, int64_t begin, int64_t end, int64_t thread);
typedef void sharing(part *run, const void *state, int64_t count, int64_t threads);
typedef void gemm(int order, int transposes_x, int transposes_y, word rows, word columns, word inner, T alpha,
                  const T *x, word x_leading, const T *y, word y_leading, T beta, T *out, word out_leading);

/* Strides are in elements. */
typedef struct {
    word share, threads, gemm, parts, divides_rows;
    word x, y, out; /* addresses */
    word rows, inner, columns;
    word orders[2], leading[3], x_row, y_column;
} problem;

static void multiply_parts(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    const problem *p = state;
    const word whole = p->divides_rows ? p->rows : p->columns;
    const word from = whole * begin / p->parts, count = whole * end / p->parts - from;
    const T *x = (const T *)p->x + (p->divides_rows ? from * p->x_row : 0);
    const T *y = (const T *)p->y + (p->divides_rows ? 0 : from * p->y_column);
    T *out = (T *)p->out + from * (p->divides_rows ? p->leading[2] : 1);
    ((gemm *)p->gemm)(101, (int)p->orders[0], (int)p->orders[1], p->divides_rows ? count : p->rows,
                      p->divides_rows ? p->columns : count, p->inner, 1, x, p->leading[0], y, p->leading[1], 0, out,
                      p->leading[2]);
}

int64_t multiply(const void *state)
{
    const problem *p = state;
    ((sharing *)p->share)(multiply_parts, state, p->parts, p->threads);
    return 0;
}
"""


def numpy_product(backend: Any) -> Callable[..., Any]:
    """The function of matrix products by NumPy's BLAS, for a backend with a compiler in parts."""
    return SharedProduct(backend) if backend.compiler is not None and products() else np.matmul


class SharedProduct(Product):
    """A drop-in for np.matmul, by NumPy's OpenBLAS in parts where `supports` is true.

    Parameters
    ----------
    backend : CPUBackend
        It compiles.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._compiled: dict[np.dtype, Any] = {}

    def __call__(self, x: Any, y: Any, out: Any = None) -> Any:
        is_ours = self.supports(x, y) and (out is None or fits(out, (len(x), y.shape[1]), x.dtype)) and _threads() > 1
        if not is_ours or self._function(x.dtype) is None:
            return np.matmul(x, y, out=out)
        return super().__call__(x, y, out=out)

    @staticmethod
    def supports(x: Any, y: Any) -> bool:
        """Whether a product is shared: of two matrices that are not small."""
        if x.ndim != 2 or y.ndim != 2 or x.dtype not in TYPES or x.dtype != y.dtype or x.shape[1] != y.shape[0]:
            return False
        (rows, inner), columns = x.shape, y.shape[1]
        return min(rows, inner, columns) >= MIN_SIDE and rows * inner * columns >= SMALL

    def _function(self, dtype: np.dtype) -> Any:
        """The C function; None without a compiler."""
        if dtype not in self._compiled:
            source = f"typedef {TYPES[dtype]} T;\n{_SOURCE}"
            found = self._backend.c_functions(source, ("multiply",))
            self._compiled[dtype] = None if found is None else found["multiply"]
        return self._compiled[dtype]

    def _multiply(self, x: np.ndarray, y: np.ndarray, target: np.ndarray) -> None:
        if order_and_leading_dimension(target)[0] == "F":
            x, y, target = y.T, x.T, target.T
        orders, leading = zip(*map(order_and_leading_dimension, (x, y, target)), strict=True)
        (rows, inner), columns, size = x.shape, y.shape[1], x.itemsize
        parts = max(1, min(_threads(), rows * inner * columns // PART))
        flags = [_PLAIN if order == "C" else _TRANSPOSED for order in orders[:2]]
        words = array("q", [share_address(), parts, products()[x.dtype], parts, rows >= columns])
        words.extend([*map(HOST.address, (x, y, target)), rows, inner, columns, *flags, *leading])
        words.extend([x.strides[0] // size, y.strides[1] // size])
        with one_thread():
            self._compiled[x.dtype](words.buffer_info()[0])


def _threads() -> int:
    """The threads that share a product: those of a kernel, and no more than OpenBLAS may use."""
    found = threads()
    return 1 if found is None else min(thread_count(), found.get())
