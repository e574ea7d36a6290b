"""Products of NumPy's arrays: of few rows by compiled C, and a stack of matrices times one matrix as one product."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from backends.cpu.codegen.products import source
from backends.cpu.workers import share_address
from backends.execution.memory import HOST
from optree.arrays import overlap
from optree.settings import thread_count

TYPES = {np.dtype("float32"): "float", np.dtype("float64"): "double"}

#: Rows of products by compiled C; and their least multiplications, below which a call takes longer than the work.
ROWS, SMALL = range(4, 513), 1 << 19

#: The most bytes of a row and of the whole of what is multiplied by: a page, and what the caches hold.
ROW_BYTES, BYTES = 1 << 12, 1 << 22


class FewRows:
    """A drop-in for np.matmul, by compiled C for a matrix of few rows times one that the cache holds.

    BLAS packs the second operand in each call, which takes half of its time for 16 rows and a third for 32. Here it is
    read with its strides.

    Parameters
    ----------
    backend : CPUBackend
        It compiles, and has the function of all other products.
    threads : callable
        The number of threads that share a product.
    """

    def __init__(self, backend: Any, threads: Callable[[], int] = thread_count) -> None:
        self._backend, self._threads = backend, threads
        self._functions: dict[np.dtype, dict[str, Any] | None] = {}

    def __call__(self, x: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> Any:
        is_ours = _is_by_few_rows(x, y) and (out is None or _is_target(out, x, y))
        functions = self._of(x.dtype) if is_ours else None
        if functions is None:
            return self._backend.product(x, y, out=out)
        (rows, inner), columns, size = x.shape, y.shape[1], x.itemsize
        target = np.empty((rows, columns), x.dtype) if out is None else out
        whole = columns - columns % functions["panel_width"](0)
        strides = (*x.strides, y.strides[0], target.strides[0])
        words = [share_address(), self._threads(), *map(HOST.address, (x, y, target))]
        packed = array("q", [*words, rows, inner, whole, *(stride // size for stride in strides)])
        functions["multiply"](packed.buffer_info()[0])
        if whole < columns:
            self._backend.product(x, y[:, whole:], out=target[:, whole:])
        return target

    def _of(self, dtype: np.dtype) -> dict[str, Any] | None:
        """The C functions; None without a compiler."""
        if dtype not in self._functions:
            self._functions[dtype] = self._backend.c_functions(source(TYPES[dtype]), ("multiply", "panel_width"))
        return self._functions[dtype]


def _is_by_few_rows(x: Any, y: Any) -> bool:
    """Whether compiled C multiplies two arrays."""
    if x.ndim != 2 or y.ndim != 2 or x.dtype != y.dtype or x.dtype not in TYPES or x.shape[1] != y.shape[0]:
        return False
    (rows, inner), columns = x.shape, y.shape[1]
    return (
        rows in ROWS
        and rows * inner * columns >= SMALL
        and y.strides[1] == y.itemsize <= y.strides[0] <= ROW_BYTES
        and y.nbytes <= BYTES
        and is_in_elements(x)
        and is_in_elements(y)
    )


def is_in_elements(x: np.ndarray) -> bool:
    """Whether an array is aligned, and its strides are whole elements."""
    return x.flags.aligned and not any(stride % x.itemsize for stride in x.strides)


def _is_target(out: np.ndarray, x: np.ndarray, y: np.ndarray) -> bool:
    """Whether the product can be written into an array, row by row."""
    fits = out.dtype == x.dtype and out.shape == (len(x), y.shape[1]) and out.strides[1] == out.itemsize
    return fits and is_in_elements(out) and not overlap(out, x) and not overlap(out, y)


def merging(product: Callable[..., Any]) -> Callable[..., Any]:
    """A function of matrix products, from one that multiplies stacks matrix by matrix.

    BLAS packs its operands in each call, and reaches its speed with many rows alone: 64 products of 32 rows take
    half as long again as one of 2,048.

    Examples
    --------
    >>> x, y = np.arange(12.0).reshape(2, 3, 2), np.ones((2, 4))
    >>> bool((merging(np.matmul)(x, y) == x @ y).all())
    True
    """

    def multiply(x: Any, y: Any, out: Any = None) -> Any:
        if y.ndim != 2 or x.ndim < 3 or not _is_one_matrix(x) or not (out is None or _is_one_matrix(out)):
            return product(x, y, out=out)
        rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])
        if out is None:
            return product(rows, y).reshape(*x.shape[:-1], y.shape[1])
        product(rows, y, out=out.reshape(len(rows), out.shape[-1]))
        return out

    return multiply


def _is_one_matrix(x: np.ndarray) -> bool:
    """Whether the rows of a stack of matrices are those of one matrix: equal steps lead through all of them."""
    if x.flags.c_contiguous:
        return True
    rows = [(size, stride) for size, stride in zip(x.shape[:-1], x.strides, strict=False) if size != 1]
    return all(outer == size * inner for (_, outer), (size, inner) in pairwise(rows))
