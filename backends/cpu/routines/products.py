"""Products of NumPy's arrays: by compiled C, by BLAS, and a stack of matrices times one matrix as one product.

The rule: compiled C multiplies large matrices of float32 or float64 in place of the
OpenBLAS in NumPy's wheels, whose threads spin after a product on the processors
where the next kernel's should begin, and which packs for few rows what is as quick
to read as it is stored. Other BLAS libraries, as Intel's MKL, keep all but the latter.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from math import prod
from typing import Any

import numpy as np

from backends.cpu import openblas
from backends.cpu.mkl import described
from backends.cpu.routines.vectors import vector_source
from backends.cpu.scratch import Scratch
from backends.cpu.workers import share_address
from backends.execution.memory import HOST, LINE, empty_array
from optree.arrays import stored
from optree.settings import thread_count

TYPES = {np.dtype("float32"): "float", np.dtype("float64"): "double"}

NAMES = ("divide", "multiply")

#: The multiplications above which products are compiled C: by several threads, where OpenBLAS too divides; by one, the
#: least that take as long as a call. And the fewest rows, and the shortest other side.
SHARED, SMALL, MIN_ROWS, MIN_SIDE = 1 << 18, 1 << 20, 4, 8

#: The multiplications, times the bytes of a number, below which a thread that sleeps comes too late.
SHORT = 1 << 25

#: Fewer columns than a panel's, which is as wide as two vectors: where there are more rows, these are its columns.
NARROW = 32

#: Beside another BLAS than OpenBLAS: the most rows of x, and the most bytes of a row and of the whole of y.
ROWS, ROW_BYTES, BYTES = 512, 1 << 12, 1 << 22

#: Whether np.matmul copies where BLAS cannot write. NumPy 2.2's multiplies element by element, in 80 times the time.
COPIES = np.lib.NumpyVersion(np.__version__) >= "2.3.0"


def matmul_by_copy(x: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> Any:
    """np.matmul; a target whose rows and columns have gaps, or run backwards, gets a copy."""
    is_written = out is None or min(out.strides[-2:]) == out.itemsize
    return np.matmul(x, y, out=out) if is_written else stored(np.matmul(x, y), out)


class Products:
    """A drop-in for np.matmul, by compiled C where `supports` is true, and else by BLAS.

    Parameters
    ----------
    backend : CPUBackend
        It compiles.
    blas : callable or None
        The function of other products; None for NumPy's.
    """

    def __init__(self, backend: Any, blas: Callable[..., Any] | None = None) -> None:
        self.blas, self._backend, self._scratch = blas or (np.matmul if COPIES else matmul_by_copy), backend, Scratch()
        self._is_openblas = blas is None and openblas.threads() is not None

    def __call__(self, x: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> Any:
        is_small = x.size * y.size <= SHARED  # no less than the multiplications
        is_ours = not is_small and self.supports(x, y)
        functions = self._backend.c_functions(vector_source("products.c", TYPES[x.dtype]), NAMES) if is_ours else None
        if functions is None:
            return self.blas(x, y, out=out)
        stacks = x.shape[:-2], y.shape[:-2]
        shape = (*(stacks[0] if stacks[0] == stacks[1] else np.broadcast_shapes(*stacks)), x.shape[-2], y.shape[-1])
        target = out if out is not None and _is_target(out, shape, x, y) else empty_array(shape, x.dtype)
        if _is_by_columns(target):
            x, y, product = y.swapaxes(-1, -2), x.swapaxes(-1, -2), target.swapaxes(-1, -2)
            self._multiply(functions, x, y, product)
        else:
            self._multiply(functions, x, y, target)
        return stored(target, out)

    def info(self) -> str:
        """The libraries of products, for printouts."""
        by_c = ", large ones by compiled C" if self._is_openblas and self._backend.has_compiler else ""
        return f"{described(self.blas)}{by_c}"

    def supports(self, x: Any, y: Any) -> bool:
        """Whether compiled C multiplies two arrays."""
        if min(x.ndim, y.ndim) < 2 or x.dtype not in TYPES or x.dtype != y.dtype or x.shape[-1] != y.shape[-2]:
            return False
        (rows, inner), columns = x.shape[-2:], y.shape[-1]
        work = rows * inner * columns
        return (
            work > SHARED
            and (work >= SMALL or thread_count() > 1)
            and rows >= MIN_ROWS
            and min(inner, columns) >= MIN_SIDE
            and min(x.size, y.size) > 0
            and is_in_elements(x)
            and is_in_elements(y)
            and (self._is_openblas or _is_by_few_rows(x, y))
        )

    def _multiply(self, functions: dict[str, Any], x: np.ndarray, y: np.ndarray, target: np.ndarray) -> None:
        """Write x @ y."""
        *stack, rows, columns = target.shape
        matrices = _addresses(stack, (x, y, target))
        strides = [stride // x.itemsize for z in (x, y, target) for stride in z.strides[-2:]]
        threads, count = thread_count(), len(matrices) // 3
        short = prod(target.shape) * x.shape[-1] * x.itemsize < SHORT
        head = share_address("short" if short else "long"), threads, 0, 0, matrices.buffer_info()[0], count
        words = array("q", [*head, rows, x.shape[-1], columns, *strides, 0, 0])
        problem, _ = words.buffer_info()
        size = functions["divide"](problem)
        size += -size % LINE
        *_, down, along = words
        with self._scratch.of(size * min(threads, count * down * along)) as scratch:
            words[2], words[3] = scratch, size
            functions["multiply"](problem)


def _is_by_columns(target: np.ndarray) -> bool:
    """Whether the product of the transposes is the quicker: of contiguous columns, or a few of many rows."""
    rows, columns = target.shape[-2:]
    if target.strides[-1] == target.itemsize:
        return columns < min(NARROW, rows)
    return target.strides[-2] == target.itemsize


def _addresses(stack: Sequence[int], arrays: Sequence[np.ndarray]) -> array[int]:
    """The addresses of the matrices of stacks, one after another from each array, broadcast."""
    if not stack:
        return array("q", map(HOST.address, arrays))
    found = [[HOST.address(x)] for x in arrays]
    for axis, size in enumerate(stack, -2 - len(stack)):
        for n, x in enumerate(arrays):
            step = x.strides[axis] if -axis <= x.ndim and x.shape[axis] > 1 else 0
            found[n] = [begin + i * step for begin in found[n] for i in range(size)]
    return array("q", chain.from_iterable(zip(*found, strict=True)))


def _is_by_few_rows(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether the first matrix has few rows, and the second is read from the cache as it is stored."""
    return (
        max(x.ndim, y.ndim) == 2
        and len(x) <= ROWS
        and y.strides[1] == y.itemsize <= y.strides[0] <= ROW_BYTES
        and y.nbytes <= BYTES
    )


def is_in_elements(x: np.ndarray) -> bool:
    """Whether an array is aligned, and its strides are whole elements."""
    flags = x.flags
    return flags.aligned and (flags.forc or not any(stride % x.itemsize for stride in x.strides))


def _is_target(out: np.ndarray, shape: tuple[int, ...], x: np.ndarray, y: np.ndarray) -> bool:
    """Whether a product of a shape can be written into an array."""
    fits = out.dtype == x.dtype and out.shape == shape and is_in_elements(out)
    return fits and not np.may_share_memory(out, x) and not np.may_share_memory(out, y)


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
