"""Matrix products of NumPy arrays: by compiled C or BLAS, with a stack times one matrix merged into one product.

Compiled C multiplies large float32 and float64 matrices instead of the OpenBLAS in NumPy's wheels, for two reasons.
OpenBLAS threads spin after a product on the cores that the next kernel needs. And OpenBLAS packs the second matrix even
for few rows, where reading it as stored is as fast. With another BLAS, compiled C multiplies only those products of few
rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from math import prod
from typing import Any

import numpy as np

from backends.cpu import openblas
from backends.cpu.compiler import Source
from backends.cpu.routines.vectors import struct, vector_source
from backends.cpu.runtime import share_address
from backends.execution.memory import HOST, LINE, Scratch, element_strides, empty_array
from backends.execution.specialize import MAX_STATED, MIN_STACK
from optree.arrays import stored
from optree.compile.fusion import loop_dtypes
from optree.compile.loopnest import FUNCTION
from optree.compile.program import Instruction, Program
from optree.dtypes import is_floating
from optree.op.traits import ElementwiseOperator, kernel_of
from optree.ops.contraction import ProductOperator, TensorDot
from optree.settings import thread_count

TYPES = {np.dtype("float32"): "float", np.dtype("float64"): "double"}

NAMES = ("divide", "multiply")

#: Minima for compiled C: multiplications on several threads (OpenBLAS divides there too), multiplications on one
#: thread (fewer do not pay for the call), rows, and the other two sizes.
SHARED, SMALL, MIN_ROWS, MIN_SIDE = 1 << 18, 1 << 20, 4, 8

#: The multiplications, times the item size, below which a sleeping thread wakes too late to help.
SHORT = 1 << 25

#: A product of fewer columns than this and than rows is computed transposed, because a panel is two vectors wide.
NARROW = 32

#: Maxima for compiled C with a BLAS other than OpenBLAS: rows of x, bytes of a row of y, and bytes of y.
ROWS, ROW_BYTES, BYTES = 512, 1 << 12, 1 << 22

#: The maximum multiplications of a product that is a loop nest, which takes 0.4 to 1.1 of a call's time, and the
#: maximum rows of one of fewer columns than a vector has lanes.
FEW_MULTIPLICATIONS, FEW_ROWS, LANES = 1 << 15, 32, 8

#: The maximum multiplications of each product of a stack that is a loop nest, which takes 0.2 to 0.95 of the time of
#: calls: `MAX_STATED`, or this where columns are not whole vectors; and the maximum sum of one with a single column.
IN_PART_OF_A_VECTOR, IN_A_COLUMN = 1 << 7, 16

#: Whether np.matmul copies a target that BLAS cannot write. NumPy 2.2 multiplies element by element, 80 times slower.
COPIES = np.lib.NumpyVersion(np.__version__) >= "2.3.0"


def matmul_by_copy(x: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> Any:
    """np.matmul, through a temporary if the target has no contiguous axis for BLAS to write."""
    is_written = out is None or min(out.strides[-2:]) == out.itemsize
    return np.matmul(x, y, out=out) if is_written else stored(np.matmul(x, y), out)


def small_products(program: Program, shapes: Sequence[Any], stacks_alone: bool = False) -> frozenset[int]:
    """The products, by their indices among the instructions, for which a loop nest takes less time than a call."""
    return frozenset(
        i
        for i, each in enumerate(program.instructions)
        if _is_small_stack(program, i, each, shapes) or (not stacks_alone and _is_small(each, shapes))
    )


def _is_small(instruction: Instruction, shapes: Sequence[Any]) -> bool:
    op, given = instruction.op, [shapes[i] for i in instruction.inputs]
    is_known = isinstance(op, ProductOperator | TensorDot) and None not in given and all(map(all, given))
    if not is_known or not is_floating(instruction.type.dtype):
        return False
    shape = op.output_shape(*given)
    *rows, columns = shape if shape and len(given[1]) > 1 else (*shape, LANES)
    is_wide = columns >= LANES or prod(rows) <= FEW_ROWS
    return is_wide and bool(op.flops(given, [shape]) <= 2 * FEW_MULTIPLICATIONS)


def _is_small_stack(program: Program, index: int, instruction: Instruction, shapes: Sequence[Any]) -> bool:
    """Whether a product is of many matrices with few elements each.

    A nest would compute functions of a few columns on vectors with few lanes in use, so these are calls. Single columns
    mostly take 0.3 to 0.9 of a call's time up to IN_A_COLUMN, under functions too, and up to 2.7 times as long above.
    """
    op, given = instruction.op, [shapes[i] for i in instruction.inputs]
    if not isinstance(op, ProductOperator) or None in given or min(map(len, given)) < 3:
        return False
    shape: Any = op.output_shape(*given)
    stack, most = prod(shape[:-2]), MAX_STATED if shape[-1] % LANES == 0 else IN_PART_OF_A_VECTOR
    is_small = stack >= MIN_STACK and 0 < op.flops(given, [shape]) <= 2 * most * stack
    is_small = is_small and is_floating(instruction.type.dtype)
    if shape[-1] == 1:
        return is_small and given[0][-1] <= IN_A_COLUMN
    return is_small and not _is_read_by_functions(program, index)


def _is_read_by_functions(program: Program, index: int) -> bool:
    """Whether a kernel of an instruction's value would compute a function of the C library of it."""
    reached = {len(program.leaves) + index}
    for value, each in enumerate(program.instructions[index + 1 :], len(program.leaves) + index + 1):
        if isinstance(each.op, ElementwiseOperator) and reached.intersection(each.inputs):
            if FUNCTION.search(kernel_of(each.op, loop_dtypes(program, each)) or ""):
                return True
            reached.add(value)
    return False


class Products:
    """A replacement of np.matmul: compiled C where `supports` is true, else BLAS.

    `backend` (CPUBackend): the backend that compiles the C source.
    """

    def __init__(self, backend: Any) -> None:
        #: NumPy's function, for all other products.
        self.blas: Callable[..., Any] = np.matmul if COPIES else matmul_by_copy
        self._backend, self._scratch, self._is_openblas = backend, Scratch(), openblas.threads() is not None

    def __call__(self, x: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> Any:
        is_small = x.size * y.size <= SHARED  # an upper bound of the multiplications
        is_ours = not is_small and self.supports(x, y)
        functions = self._backend.c_functions(*_source(x.dtype)) if is_ours else None
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

    def sources(self, x: Any, y: Any) -> list[Source]:
        """The C functions that a call on arrays of these layouts surely needs, to be compiled before it."""
        is_ours = x.size * y.size > SHARED and self.supports(x, y)
        return [_source(x.dtype)] if is_ours else []

    def info(self) -> str:
        """The names of the libraries that compute products, for printing."""
        by_c = ", large ones by compiled C" if self._is_openblas and self._backend.has_compiler else ""
        blas = np.show_config(mode="dicts")["Build Dependencies"].get("blas", {})  # type: ignore[call-overload, index]
        return f"matrix products by NumPy's BLAS ({blas.get('name', 'none')} {blas.get('version', '')}){by_c}"

    def supports(self, x: Any, y: Any) -> bool:
        """Whether compiled C multiplies these two arrays."""
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
        """Write x @ y into the target."""
        *stack, rows, columns = target.shape
        matrices = _addresses(stack, (x, y, target))
        (x_row, x_column), (y_row, y_column), (out_row, out_column) = (element_strides(z)[-2:] for z in (x, y, target))
        threads, count = thread_count(), len(matrices) // 3
        short = prod(target.shape) * x.shape[-1] * x.itemsize < SHORT
        description = struct("products.c", "problem")
        words = description.words(
            share=share_address("short" if short else "long"),
            threads=threads,
            matrices=matrices.buffer_info()[0],
            count=count,
            rows=rows,
            inner=x.shape[-1],
            columns=columns,
            x_row=x_row,
            x_column=x_column,
            y_row=y_row,
            y_column=y_column,
            out_row=out_row,
            out_column=out_column,
            scratch=0,
            scratch_size=0,
            down=0,
            along=0,  # set below, and by `divide`
        )
        problem, _ = words.buffer_info()
        size = functions["divide"](problem)
        size += -size % LINE
        *_, down, along = words
        with self._scratch.of(size * min(threads, count * down * along)) as scratch:
            description.set(words, scratch=scratch, scratch_size=size)
            functions["multiply"](problem)


def _source(dtype: np.dtype) -> Source:
    return vector_source("products.c", TYPES[dtype]), NAMES


def _is_by_columns(target: np.ndarray) -> bool:
    """Whether the transposed product is faster: the target has contiguous columns, or few columns and many rows."""
    rows, columns = target.shape[-2:]
    if target.strides[-1] == target.itemsize:
        return columns < min(NARROW, rows)
    return target.strides[-2] == target.itemsize


def _addresses(stack: Sequence[int], arrays: Sequence[np.ndarray]) -> array[int]:
    """The addresses of the matrices of broadcast stacks: one of each array, then the next of each."""
    if not stack:
        return array("q", map(HOST.address, arrays))
    found = [[HOST.address(x)] for x in arrays]
    for axis, size in enumerate(stack, -2 - len(stack)):
        for n, x in enumerate(arrays):
            step = x.strides[axis] if -axis <= x.ndim and x.shape[axis] > 1 else 0
            found[n] = [begin + i * step for begin in found[n] for i in range(size)]
    return array("q", chain.from_iterable(zip(*found, strict=True)))


def _is_by_few_rows(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether x has few rows, and y fits the cache and has contiguous rows that can be read as stored."""
    return (
        max(x.ndim, y.ndim) == 2
        and len(x) <= ROWS
        and y.strides[1] == y.itemsize <= y.strides[0] <= ROW_BYTES
        and y.nbytes <= BYTES
    )


def is_in_elements(x: np.ndarray) -> bool:
    """Whether an array is aligned and its strides are multiples of the item size."""
    flags = x.flags
    return flags.aligned and (flags.forc or not any(stride % x.itemsize for stride in x.strides))


def _is_target(out: np.ndarray, shape: tuple[int, ...], x: np.ndarray, y: np.ndarray) -> bool:
    """Whether a product of this shape can be written into `out` directly."""
    fits = out.dtype == x.dtype and out.shape == shape and is_in_elements(out)
    return fits and not np.may_share_memory(out, x) and not np.may_share_memory(out, y)


def merging(product: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a matrix product so that a stack times one matrix is a single product.

    BLAS packs its operands in each call, and is fast only for many rows: 64 products of 32 rows take 1.5 times as
    long as one product of 2,048 rows.

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
    """Whether a stack can be viewed as one matrix: all its rows are equally spaced in memory."""
    if x.flags.c_contiguous:
        return True
    rows = [(size, stride) for size, stride in zip(x.shape[:-1], x.strides, strict=False) if size != 1]
    return all(outer == size * inner for (_, outer), (size, inner) in pairwise(rows))
