"""Products of matrices of floats on a GPU, by cuBLASLt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from backends.execution.memory import order_and_leading_dimension
from backends.gpu.cublaslt import ALIGNED, WORKSPACE, Algorithm, CuBLASLt, Matrix, Problem, installed
from optree.cache import Cache
from optree.errors import BackendError
from optree.locks import Locked, cached_property
from optree.tree.types import promote

#: The most algorithms of products that are remembered.
ALGORITHMS = 1024


class Workspace:
    """Memory that the products of one function work in, one after the other: all of its graphs have the same.

    Where a product needs more than there is, it is twice as much from then on, and what was captured keeps the old one.

    Parameters
    ----------
    empty : callable
        From a size and a dtype to a new array.
    """

    def __init__(self, empty: Callable[[int, Any], Any]) -> None:
        self._empty = empty
        self._memories: list[Any] = []

    def of(self, size: int) -> Any:
        """At least so many bytes."""
        held = self._memories[-1].nbytes if self._memories else 0
        if size > held:
            self._memories.append(self._empty(max(size, min(2 * held, WORKSPACE)), np.uint8))
        return self._memories[-1]

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Within it, products that this thread asks for work there."""
        token = _shared.set(self)
        try:
            yield
        finally:
            _shared.reset(token)


_shared: ContextVar[Workspace | None] = ContextVar("_shared", default=None)


class _Along(NamedTuple):
    """The epilogue of a product: its scale, an addend and a bias."""

    alpha: float = 1.0
    addend: Any = None
    beta: float = 1.0
    bias: Any = None

    @property
    def is_read(self) -> bool:
        """Whether the library reads all: what is multiplied by 0, and may be no number, it does not."""
        return bool(self.alpha) and (self.addend is None or bool(self.beta))


class Products(Locked):
    """np.matmul of a device's arrays of floats, and what BLAS computes along with it.

    Products of float16 and bfloat16 are summed in float32 and rounded once.

    Parameters
    ----------
    cupy : module
    tf32 : bool
        Whether float32 is multiplied in TensorFloat-32.
    """

    def __init__(self, cupy: Any, tf32: bool) -> None:
        super().__init__()
        self.cupy, self.tf32 = cupy, tf32
        self._algorithms = Cache("algorithms of products", ALGORITHMS)
        #: By how operands and target lie the way to compute them as they do, and whether it takes x as the library's a.
        self._known = Cache("layouts of products", ALGORITHMS)

    @cached_property
    def library(self) -> CuBLASLt:
        """The library, which is loaded for the first product."""
        return CuBLASLt(installed())

    def __call__(
        self,
        x: Any,
        y: Any,
        alpha: float = 1.0,
        addend: Any = None,
        beta: float = 1.0,
        bias: Any = None,
        out: Any = None,
    ) -> Any:
        """``alpha * (x @ y) + beta * addend + bias``.

        Parameters
        ----------
        x, y : cupy.ndarray
        alpha, beta : float
        addend : cupy.ndarray, optional
            Of the shape of the product; it may be `out` itself.
        bias : cupy.ndarray, optional
            Of the shape of the product's last axis, where that is y's.
        out : cupy.ndarray, optional
            Where the value is written, as if the operands had been read before.
        """
        along = _Along(alpha, addend, beta, bias)
        is_apart = out is not None and self._is_apart(out, x, y, addend, bias)
        alike = None
        if is_apart and along.is_read:
            given = (x, y, addend, bias, out)
            alike = tuple([z if z is None else (z.shape, z.strides, z.dtype, _alignment(z)) for z in given])
            known = self._known.get(alike)
            if known is not None:
                algorithm, swaps = known
                operands = (x, y) if swaps else (y, x)
                self._run(algorithm, (*operands, out if addend is None else addend, out), along)
                return out
        dtype, as_they_are = promote(x.dtype, y.dtype), x.dtype == y.dtype
        x, y = (z if z.dtype == dtype else z.astype(dtype) for z in (x, y))
        left, right, framed, shape = _framed(x, y)
        into_out = is_apart and out.dtype == dtype and _lies(framed(out), shape[: max(x.ndim, y.ndim) - 2]) is not None
        made = out if into_out else self.cupy.empty(shape, dtype)
        along = along._replace(addend=None if addend is None else framed(addend))
        known_as = alike if into_out and as_they_are else None
        if made.size and not self._at_once(left, right, framed(made), along, known_as):
            self._in_parts(left, right, framed(made), along)
        if out is None or into_out:
            return made
        out[...] = made
        return out

    def _is_apart(self, out: Any, x: Any, y: Any, addend: Any, bias: Any) -> bool:
        """Whether nothing that is read is written over, but the addend in its own place."""
        share = self.cupy.may_share_memory
        if share(x, out) or share(y, out) or (bias is not None and share(bias, out)):
            return False
        return addend is None or not share(addend, out) or _place(addend) == _place(out)

    def _at_once(self, x: Any, y: Any, target: Any, along: _Along, alike: Any = None) -> bool:
        """Let the library compute all; whether it can. Calls of which `alike` says the same are known from then on."""
        stack, addend, bias = target.shape[:-2], along.addend, along.bias
        if not x.shape[-1] or not along.is_read:
            return False
        if stack and y.ndim == 2 and all(z is None or z.flags.c_contiguous for z in (x, target, addend)):
            x, target, addend = (z if z is None else z.reshape(-1, z.shape[-1]) for z in (x, target, addend))
            stack = ()
        swaps = order_and_leading_dimension(target)[0] == "F"
        if bias is not None and (swaps or not bias.flags.c_contiguous):
            return False
        if swaps:
            x, y, target, addend = (z if z is None else z.swapaxes(-1, -2) for z in (y, x, target, addend))
        operands = [self._laid_out(z, stack) for z in (y, x)]
        arrays = (*operands, target if addend is None else addend, target)
        problem = self._problem(arrays, bias)
        algorithm = None if problem is None else self._algorithm(problem)
        if algorithm is None:
            return False
        if algorithm.choice is None and addend is None and bias is None:
            raise BackendError(f"cuBLASLt has no way to multiply {x.shape} by {y.shape} of {x.dtype}")
        if algorithm.choice is not None:
            self._run(algorithm, arrays, along)
            if alike is not None and operands[0] is y and operands[1] is x:
                with self.lock:
                    self._known[alike] = algorithm, swaps
        return algorithm.choice is not None

    def _problem(self, arrays: Sequence[Any], bias: Any) -> Problem | None:
        """The product as cuBLASLt's problem: its matrices are column-major, so the operands are swapped."""
        stack = arrays[3].shape[:-2]
        lies = [found for z in arrays if (found := _lies(z, stack)) is not None]
        if len(lies) < len(arrays) or lies[2][0]:
            return None
        (flip_a, a), (flip_b, b), (_, c), (_, d) = lies
        dtype = arrays[3].dtype
        tf32 = self.tf32 and dtype == np.float32
        aligned = tuple(_alignment(z) for z in arrays)
        of_bias = 0 if bias is None else _alignment(bias)
        return Problem(dtype, tf32, prod(stack), a, b, c, d, (flip_a, flip_b), of_bias, aligned)

    def _algorithm(self, problem: Problem) -> Algorithm:
        with self.lock:
            algorithm = self._algorithms.get(problem)
            if algorithm is None:
                algorithm = self._algorithms[problem] = Algorithm(self.library, problem)
            return algorithm

    def _run(self, algorithm: Algorithm, arrays: Sequence[Any], along: _Along) -> None:
        assert algorithm.choice is not None
        size, shared = algorithm.choice.workspace, _shared.get()
        memory = None
        if size:
            memory = self.cupy.empty(size, np.uint8) if shared is None else shared.of(size)
        addresses = [z.data.ptr for z in arrays]
        bias = None if along.bias is None else along.bias.data.ptr
        beta = 0.0 if along.addend is None else along.beta
        stream = self.cupy.cuda.get_current_stream().ptr
        with self.lock:
            algorithm.run(addresses, along.alpha, beta, bias, 0 if memory is None else memory.data.ptr, stream)

    def _in_parts(self, x: Any, y: Any, target: Any, along: _Along) -> None:
        """Compute the product, and then what goes along with it."""
        alpha, addend, beta, bias = along
        product = self.cupy.empty(target.shape, target.dtype)
        if x.shape[-1]:
            self._at_once(x, y, product, _Along())
        else:
            product[...] = 0
        product *= alpha
        if addend is not None:
            product += addend * beta
        if bias is not None:
            product += bias
        target[...] = product

    def _laid_out(self, x: Any, stack: tuple[int, ...]) -> Any:
        """An operand as the library takes it: as it lies, or else a copy."""
        if _lies(x, stack) is not None:
            return x
        return self.cupy.ascontiguousarray(self.cupy.broadcast_to(x, (*stack, *x.shape[-2:])))


def _framed(x: Any, y: Any) -> tuple[Any, Any, Callable[[Any], Any], tuple[int, ...]]:
    """Operands as matrices, what makes matrices of arrays of the product's shape, and that shape."""
    is_row, is_column = x.ndim == 1, y.ndim == 1
    left, right = x[None, :] if is_row else x, y[:, None] if is_column else y

    def framed(z: Any) -> Any:
        z = z[..., None] if is_column else z
        return z[..., None, :] if is_row else z

    stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    return left, right, framed, (*stack, *left.shape[-2:-1] * (not is_row), *right.shape[-1:] * (not is_column))


def _lies(x: Any, stack: tuple[int, ...]) -> tuple[bool, Matrix] | None:
    """Whether a matrix, or each of a stack, lies transposed, for one who goes column after column; and how.

    None if it lies in no such way.
    """
    order, lead = order_and_leading_dimension(x)
    apart = _apart(x, stack)
    if order is None or apart is None:
        return None
    rows, columns = x.shape[-2:]
    return (False, Matrix(columns, rows, lead, apart)) if order == "C" else (True, Matrix(rows, columns, lead, apart))


def _apart(x: Any, stack: tuple[int, ...]) -> int | None:
    """How many elements matrices are from each other; None if it is now so many, now so many."""
    shape, strides = x.shape[:-2], x.strides[:-2]
    missing = len(stack) - len(shape)
    apart, following = 0, None
    for size, own, step in zip(
        reversed(stack), reversed((*[1] * missing, *shape)), reversed((*[0] * missing, *strides)), strict=True
    ):
        if size > 1:
            step = step if own > 1 else 0
            if following is None:
                apart = step
            elif step != following:
                return None
            following = step * size
    return apart // x.itemsize if apart % x.itemsize == 0 and apart >= 0 else None


def _place(x: Any) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return x.data.ptr, x.shape, x.strides


def _alignment(x: Any) -> int:
    """To how many bytes an array's address is aligned, so far as that matters."""
    return gcd(x.data.ptr, ALIGNED)
