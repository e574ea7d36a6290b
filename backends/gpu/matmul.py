"""Matrix products of floats and complex numbers on a GPU, by cuBLASLt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod
from types import ModuleType
from typing import Any

import numpy as np

from backends.execution.memory import order_and_leading_dimension
from backends.gpu.arrays import DeviceArray
from backends.gpu.cublaslt import ALIGNED, Algorithm, CuBLASLt, Matrix, Problem, installed
from backends.gpu.workspace import shared_workspace
from optree.cache import Cache
from optree.dtypes import wide_dtype
from optree.errors import BackendError
from optree.locks import Locked, cached_property
from optree.records import NamedTuple
from optree.tree.types import promote

#: Maximum entries of the caches of algorithms.
ALGORITHMS = 1024


class _Epilogue(NamedTuple):
    """The operands of a product's epilogue."""

    alpha: float = 1.0
    addend: DeviceArray | None = None
    beta: float = 1.0
    bias: DeviceArray | None = None

    @property
    def is_read(self) -> bool:
        """Whether the library reads all operands; it does not read operands multiplied by 0, which may be nan."""
        return bool(self.alpha) and (self.addend is None or bool(self.beta))


class Products(Locked):
    """np.matmul of floating and complex device arrays, with the epilogues of BLAS.

    Products of float16 and bfloat16 are summed in float32 and rounded once.

    `tf32`: whether float32 is multiplied in TensorFloat-32.
    """

    def __init__(self, cupy: ModuleType, tf32: bool) -> None:
        super().__init__()
        self.cupy, self.tf32 = cupy, tf32
        self._algorithms = Cache("algorithms of products", ALGORITHMS)
        #: By the layouts of operands and target: the algorithm for them as they are, and whether x is the library's a.
        self._known = Cache("layouts of products", ALGORITHMS)

    @cached_property
    def library(self) -> CuBLASLt:
        """The library, loaded by the first product."""
        return CuBLASLt(installed())

    def __call__(
        self,
        x: DeviceArray,
        y: DeviceArray,
        alpha: float = 1.0,
        addend: DeviceArray | None = None,
        beta: float = 1.0,
        bias: DeviceArray | None = None,
        out: DeviceArray | None = None,
        is_wide: bool = False,
    ) -> Any:
        """``alpha * (x @ y) + beta * addend + bias``.

        `addend`: it has the shape of the product, and may be `out` itself.
        `bias`: it has the shape of the product's last axis, if that is y's.
        `out`: the array for the value; it may overlap the operands.
        `is_wide`: whether the value is in float32 for halves, as the sums are; not with an addend or a bias.
        """
        epilogue = _Epilogue(alpha, addend, beta, bias)
        is_unaliased = out is not None and self._is_unaliased(out, x, y, addend, bias)
        layouts = None
        if out is not None and is_unaliased and epilogue.is_read:
            arrays = (x, y, addend, bias, out)
            layouts = tuple([z if z is None else (z.shape, z.strides, z.dtype, _alignment(z)) for z in arrays]), is_wide
            known = self._known.get(layouts)
            if known is not None:
                algorithm, swaps = known
                operands = (x, y) if swaps else (y, x)
                self._run(algorithm, (*operands, out if addend is None else addend, out), epilogue)
                return out
        dtype, is_unconverted = promote(x.dtype, y.dtype), x.dtype == y.dtype
        made_in = wide_dtype(dtype) if is_wide else dtype
        x, y = (z if z.dtype == dtype else z.astype(dtype) for z in (x, y))
        left, right, as_matrices, shape = _as_matrices(x, y)
        stack = shape[: max(x.ndim, y.ndim) - 2]
        made: DeviceArray | None = None
        if out is not None and is_unaliased and out.dtype == made_in and _layout(as_matrices(out), stack) is not None:
            made = out
        is_direct = made is not None
        made = self.cupy.empty(shape, made_in) if made is None else made
        epilogue = epilogue._replace(addend=None if addend is None else as_matrices(addend))
        key = layouts if is_direct and is_unconverted else None
        if made.size and not self._by_library(left, right, as_matrices(made), epilogue, key):
            self._in_parts(left, right, as_matrices(made), epilogue)
        if out is None or is_direct:
            return made
        out[...] = made
        return out

    def _is_unaliased(
        self, out: DeviceArray, x: DeviceArray, y: DeviceArray, addend: DeviceArray | None, bias: DeviceArray | None
    ) -> bool:
        """Whether `out` overlaps no operand, except an addend that is the same array."""
        share = self.cupy.may_share_memory
        if share(x, out) or share(y, out) or (bias is not None and share(bias, out)):
            return False
        return addend is None or not share(addend, out) or _location(addend) == _location(out)

    def _by_library(
        self, x: DeviceArray, y: DeviceArray, target: DeviceArray, epilogue: _Epilogue, key: object = None
    ) -> bool:
        """Compute a product with its epilogue by one library call; False if the library does not support it.

        `key` (tuple, optional): the key under which the algorithm is cached, if the operands are used as they are.
        """
        stack, addend, bias = target.shape[:-2], epilogue.addend, epilogue.bias
        if not x.shape[-1] or not epilogue.is_read:
            return False
        if stack and y.ndim == 2 and all(z is None or z.flags.c_contiguous for z in (x, target, addend)):
            x, target = (z.reshape(-1, z.shape[-1]) for z in (x, target))
            addend = None if addend is None else addend.reshape(-1, addend.shape[-1])
            stack = ()
        swaps = order_and_leading_dimension(target)[0] == "F"
        if bias is not None and (swaps or not bias.flags.c_contiguous):
            return False
        if swaps:
            x, y, target = (z.swapaxes(-1, -2) for z in (y, x, target))
            addend = None if addend is None else addend.swapaxes(-1, -2)
        operands = [self._operand(z, stack) for z in (y, x)]
        arrays = (*operands, target if addend is None else addend, target)
        problem = self._problem(arrays, bias)
        algorithm = None if problem is None else self._algorithm(problem)
        if algorithm is None:
            return False
        if algorithm.choice is None and addend is None and bias is None:
            raise BackendError(f"cuBLASLt has no algorithm to multiply {x.shape} by {y.shape} of {x.dtype}")
        if algorithm.choice is not None:
            self._run(algorithm, arrays, epilogue)
            if key is not None and operands[0] is y and operands[1] is x:
                with self.lock:
                    self._known[key] = algorithm, swaps
        return algorithm.choice is not None

    def _problem(self, arrays: Sequence[DeviceArray], bias: DeviceArray | None) -> Problem | None:
        """The product as cuBLASLt's problem; operands are swapped, as its matrices are column-major.

        None if an operand has no such layout.
        """
        stack = arrays[3].shape[:-2]
        layouts = [layout for z in arrays if (layout := _layout(z, stack)) is not None]
        if len(layouts) < len(arrays) or layouts[2][0]:
            return None
        (transposes_a, a), (transposes_b, b), (_, c), (_, d) = layouts
        dtype, target = arrays[0].dtype, arrays[3].dtype
        tf32 = self.tf32 and dtype == np.float32
        aligned = tuple(_alignment(z) for z in arrays)
        bias_alignment = 0 if bias is None else _alignment(bias)
        return Problem(
            dtype, target, tf32, prod(stack), a, b, c, d, (transposes_a, transposes_b), bias_alignment, aligned
        )

    def _algorithm(self, problem: Problem) -> Algorithm:
        with self.lock:
            algorithm = self._algorithms.get(problem)
            if algorithm is None:
                algorithm = self._algorithms[problem] = Algorithm(self.library, problem)
            return algorithm

    def _run(self, algorithm: Algorithm, arrays: Sequence[DeviceArray], epilogue: _Epilogue) -> None:
        assert algorithm.choice is not None
        memory = self.workspace(algorithm.choice.workspace)
        addresses = [z.data.ptr for z in arrays]
        bias = None if epilogue.bias is None else epilogue.bias.data.ptr
        beta = 0.0 if epilogue.addend is None else epilogue.beta
        stream = self.cupy.cuda.get_current_stream().ptr
        with self.lock:
            algorithm.run(addresses, epilogue.alpha, beta, bias, 0 if memory is None else memory.data.ptr, stream)

    def workspace(self, size: int) -> Any:
        """Scratch memory of at least a size in bytes for a library's call; None if the size is 0."""
        if not size:
            return None
        shared = shared_workspace()
        return self.cupy.empty(size, np.uint8) if shared is None else shared.of(size)

    def _in_parts(self, x: DeviceArray, y: DeviceArray, target: DeviceArray, epilogue: _Epilogue) -> None:
        """Compute a product, and then its epilogue."""
        alpha, addend, beta, bias = epilogue
        product = self.cupy.empty(target.shape, target.dtype)
        if x.shape[-1]:
            self._by_library(x, y, product, _Epilogue())
        else:
            product[...] = 0
        product *= alpha
        if addend is not None:
            product += addend * beta
        if bias is not None:
            product += bias
        target[...] = product

    def _operand(self, x: DeviceArray, stack: tuple[int, ...]) -> DeviceArray:
        """An operand of a layout that the library supports: itself, or a copy."""
        if _layout(x, stack) is not None:
            return x
        return self.cupy.ascontiguousarray(self.cupy.broadcast_to(x, (*stack, *x.shape[-2:])))


def _as_matrices(
    x: DeviceArray, y: DeviceArray
) -> tuple[DeviceArray, DeviceArray, Callable[[DeviceArray], DeviceArray], tuple[int, ...]]:
    """Operands as matrices, a function that views an array of the product's shape so, and that shape."""
    is_row, is_column = x.ndim == 1, y.ndim == 1
    left, right = x[None, :] if is_row else x, y[:, None] if is_column else y

    def as_matrices(z: DeviceArray) -> DeviceArray:
        z = z[..., None] if is_column else z
        return z[..., None, :] if is_row else z

    stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    return left, right, as_matrices, (*stack, *left.shape[-2:-1] * (not is_row), *right.shape[-1:] * (not is_column))


def _layout(x: DeviceArray, stack: tuple[int, ...]) -> tuple[bool, Matrix] | None:
    """Whether a matrix, or each of a stack, is transposed in column-major order, and its layout.

    None if it is strided along both axes, or the stack has no single stride.
    """
    order, lead = order_and_leading_dimension(x)
    batch = _batch_stride(x, stack)
    if order is None or batch is None:
        return None
    rows, columns = x.shape[-2:]
    return (False, Matrix(columns, rows, lead, batch)) if order == "C" else (True, Matrix(rows, columns, lead, batch))


def _batch_stride(x: DeviceArray, stack: tuple[int, ...]) -> int | None:
    """The stride between the matrices of a stack in elements; None if there is no single one."""
    shape, strides = x.shape[:-2], x.strides[:-2]
    missing = len(stack) - len(shape)
    stride, following = 0, None
    for size, own, step in zip(
        reversed(stack), reversed((*[1] * missing, *shape)), reversed((*[0] * missing, *strides)), strict=True
    ):
        if size > 1:
            step = step if own > 1 else 0
            if following is None:
                stride = step
            elif step != following:
                return None
            following = step * size
    return stride // x.itemsize if stride % x.itemsize == 0 and stride >= 0 else None


def _location(x: DeviceArray) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return x.data.ptr, x.shape, x.strides


def _alignment(x: DeviceArray) -> int:
    """The alignment of an array's address in bytes, at most `ALIGNED`."""
    return gcd(x.data.ptr, ALIGNED)
