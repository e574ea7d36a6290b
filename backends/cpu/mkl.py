"""Matrix products by Intel's MKL, where its package is installed (extra ``mkl``).

MKL runs in the calling thread, and `thread_pool` shares a large product: so
OPTREE_NUM_THREADS applies, forked children work, and there is no second thread
pool. MKL's settings are changed for the time of a call alone, for other users of it
in the process.
"""

from __future__ import annotations

import ctypes
import os
import site
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np

from backends.cpu.thread_pool import share
from backends.execution.memory import HOST, order_and_leading_dimension
from optree import settings
from optree.arrays import stored
from optree.errors import BackendError
from optree.locks import cached_property
from optree.settings import thread_count

#: Products of fewer multiplications, or with a shorter side, are NumPy's, which has less overhead.
SMALL, MIN_SIDE = 1 << 24, 16

#: The least multiplications of a piece of a product, and the pieces of each thread.
PIECE, PIECES = 1 << 22, 2

#: The versions of the library that are looked for, by the number in its file name, the latest first.
VERSIONS = range(9, 0, -1)

#: MKL's enumerators: the interface layer of 32-bit integers (mkl_service.h), and CBLAS's (mkl_cblas.h).
_LP64 = 0
_ROWS, _PLAIN, _TRANSPOSED = 101, 111, 112

_FUNCTIONS: dict[np.dtype, tuple[str, Any]] = {
    np.dtype("float32"): ("cblas_sgemm", ctypes.c_float),
    np.dtype("float64"): ("cblas_dgemm", ctypes.c_double),
}


def matrix_product() -> Callable[..., Any] | None:
    """MKL's function of matrix products where it is installed, and None for NumPy's, by OPTREE_BLAS.

    It raises BackendError if MKL is asked for and not installed.
    """
    chosen = settings.value("blas")
    path = None if chosen == "numpy" else _installed()
    if path is not None:
        return _product(path)
    if chosen == "mkl":
        raise BackendError("OPTREE_BLAS=mkl needs the package mkl: pip install mkl")
    return None


def described(product: Callable[..., Any]) -> str:
    """A description of a function of matrix products."""
    path = getattr(product, "path", None)
    if path is not None:
        return f"large matrix products by MKL ({path})"
    blas = np.show_config(mode="dicts")["Build Dependencies"].get("blas", {})  # type: ignore[call-overload, index]
    return f"matrix products by NumPy's BLAS ({blas.get('name', 'none')} {blas.get('version', '')})"


def _installed() -> str | None:
    """The path of the library in its package, or None."""
    folders = [os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix, site.getuserbase())]
    files = (os.path.join(folder, f"libmkl_rt.so.{version}") for folder in folders for version in VERSIONS)
    return next(filter(os.path.exists, files), None)


class Product:
    """A drop-in for np.matmul, by MKL where `supports` is true.

    Attributes
    ----------
    path : str
        The path of the library, which is loaded at the first call.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, x: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> Any:
        if not self.supports(x, y):
            return np.matmul(x, y, out=out)
        stack = np.broadcast_shapes(x.shape[:-2], y.shape[:-2]) if max(x.ndim, y.ndim) > 2 else ()
        shape = (*stack, x.shape[-2], y.shape[-1])
        is_target = (
            out is not None and fits(out, shape, x.dtype) and not any(np.may_share_memory(out, z) for z in (x, y))
        )
        target = out if out is not None and is_target else np.empty(shape, x.dtype)
        self._multiply(_blas_operand(x), _blas_operand(y), target)
        return stored(target, out)

    @staticmethod
    def supports(x: Any, y: Any) -> bool:
        """Whether MKL computes a product: of large matrices, or stacks of them, both of float32 or both of float64."""
        if x.dtype not in _FUNCTIONS or x.dtype != y.dtype or min(x.ndim, y.ndim) < 2 or x.shape[-1] != y.shape[-2]:
            return False
        (rows, inner), columns = x.shape[-2:], y.shape[-1]
        return min(rows, inner, columns) >= MIN_SIDE and rows * inner * columns >= SMALL

    def _multiply(self, x: np.ndarray, y: np.ndarray, target: np.ndarray) -> None:
        """Write x @ y, in pieces that threads share."""
        if _order(target) == "F":
            x, y, target = (z.swapaxes(-1, -2) for z in (y, x, target))
        *stack, rows, columns = target.shape
        if stack:
            x, y = (np.broadcast_to(z, (*stack, *z.shape[-2:])) for z in (x, y))
        most = rows * x.shape[-1] * columns // PIECE
        count = max(1, min(thread_count() * PIECES, most)) if thread_count() > 1 else 1
        by_rows = rows >= columns
        bounds = [max(rows, columns) * i // count for i in range(count + 1)]
        parts = [slice(begin, end) for begin, end in pairwise(bounds)]

        def piece(task: tuple[Any, slice]) -> None:
            matrix, part = task
            if by_rows:
                self._gemm(x[matrix][part], y[matrix], target[matrix][part])
            else:
                self._gemm(x[matrix], y[matrix][:, part], target[matrix][:, part])

        share(list(product(np.ndindex(*stack), parts)), lambda: piece)

    def _gemm(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> None:
        """Write x @ y into z, in C order or a part of its columns, in this thread."""
        orders, leading = zip(*map(order_and_leading_dimension, (x, y, z)), strict=True)
        flags = [_PLAIN if order == "C" else _TRANSPOSED for order in orders[:2]]
        pointers = map(HOST.address, (x, y, z))
        (a, lda), (b, ldb), (c, ldc) = zip(pointers, leading, strict=True)
        set_threads, functions = self._functions
        before = set_threads(1)
        functions[z.dtype](_ROWS, *flags, *z.shape, x.shape[-1], 1.0, a, lda, b, ldb, 0.0, c, ldc)
        set_threads(before)

    @cached_property
    def _functions(self) -> tuple[Any, dict[np.dtype, Any]]:
        """MKL_Set_Num_Threads_Local, which returns the number before, and gemm by dtype."""
        try:
            library = ctypes.CDLL(self.path)
            layer, set_threads = library.MKL_Set_Interface_Layer(_LP64), library.MKL_Set_Num_Threads_Local
            found = {dtype: (getattr(library, name), number) for dtype, (name, number) in _FUNCTIONS.items()}
        except (OSError, AttributeError) as error:
            raise BackendError(f"MKL cannot be loaded: {error}; OPTREE_BLAS=numpy leaves it out") from None
        if layer != _LP64:
            raise BackendError(
                f"MKL counts in another kind of integers here (layer {layer}: MKL_INTERFACE_LAYER, or another "
                "library that uses it); OPTREE_BLAS=numpy leaves it out"
            )
        integer, pointer = ctypes.c_int, ctypes.c_void_p
        for function, number in found.values():
            function.restype = None
            function.argtypes = [integer] * 6 + [number, *(pointer, integer) * 2, number, pointer, integer]
        return set_threads, {dtype: function for dtype, (function, _) in found.items()}


_product = cache(Product)


def _order(x: np.ndarray) -> str | None:
    """A matrix's order; None too where its leading dimension exceeds 32 bits."""
    order, leading = order_and_leading_dimension(x)
    return order if leading < 1 << 31 else None


def _blas_operand(x: np.ndarray) -> np.ndarray:
    """An operand, copied where BLAS does not take its layout."""
    return x if _order(x) and x.flags.aligned and max(x.shape) < 1 << 31 else np.ascontiguousarray(x)


def fits(out: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether BLAS can write a product into an array."""
    return out.shape == shape and out.dtype == dtype and out.flags.aligned and _order(out) is not None
