"""Creation, the base class of backends that makes tensors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from optree.arrays import Array, overlaps_itself
from optree.dtypes import complex_dtype, is_inexact, rounded
from optree.errors import BackendError, DeviceMemoryError, DTypeError, OperandError, Origin, brief
from optree.tree.tensor import Tensor
from optree.tree.types import ShapeLike, array_of, as_dtype, check_fits
from optree.tree.variable import Variable, check_real, is_complex_operand

_ALWAYS_ACTIVE = nullcontext()


class Creation:
    """Functions that make tensors, in memory that a subclass allocates."""

    datatype: np.dtype
    batch_size: int
    compat_mode: str | None

    #: Whether it has neon's shapes, ties and methods.
    is_neon: ClassVar[bool] = False
    #: The class of its tensors.
    tensor_cls: ClassVar[type[Tensor]] = Tensor

    # Memory: a subclass defines these

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """An uninitialised array of this backend."""
        raise NotImplementedError

    def from_host(self, array: np.ndarray) -> Any:
        """A copy of a NumPy array, in C order, as an array of this backend."""
        raise NotImplementedError

    def active(self) -> AbstractContextManager[Any]:
        """Make the backend's device the current one, so that NumPy's functions run on its arrays."""
        return _ALWAYS_ACTIVE

    # New tensors

    def adopt(self, array: Array, name: str | None = None) -> Tensor:
        """A tensor over an array of this backend, without a copy.

        Raises
        ------
        OperandError
            If it is no such array, or is read-only, unaligned, or has several elements at one address.
        DTypeError
            If its dtype or byte order is not supported.
        """
        self.check_adopted(array)
        return self.over(array, name)

    def check_adopted(self, array: Array) -> None:
        """Refuse an array that cannot be a tensor's memory, on any backend."""
        copies = "be.array(...) copies it"
        if not array.dtype.isnative:
            raise DTypeError(f"adopt: {array.dtype} is not in this machine's byte order; {copies} into that")
        try:
            self._dtype(array.dtype)
        except DTypeError as error:
            raise DTypeError(f"adopt: {error}") from None
        if overlaps_itself(array):
            raise OperandError(
                f"adopt: several elements of the array of shape {array.shape} and strides {array.strides} share an "
                f"address, as in a broadcast array, so that a write to one changes the others; {copies}"
            )

    def over(self, array: Array, name: str | None = None, origin: Origin | None = None) -> Any:
        """A tensor over an array, without the checks of `adopt`, made at an origin or at the caller's line."""
        if self.is_neon and array.ndim < 2:
            array = array.reshape(-1, 1)
        return self.tensor_cls(self, array, name, origin=origin)

    def _shape(self, shape: ShapeLike) -> tuple[int, ...]:
        sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
        if any(not isinstance(n, int | np.integer) or n < 0 for n in sizes):
            unknown = (
                "; only a call tells a size of None: np.zeros_like(x), be.rand(x) and be.standard_normal(x) take x's"
                * any(n is None for n in sizes)
            )
            raise OperandError(f"a shape is of sizes of 0 or more, not {brief(shape)}{unknown}")
        if self.is_neon and len(sizes) < 2:
            sizes = (*sizes, 1, 1)[:2]
        return tuple(int(n) for n in sizes)

    def empty(
        self, shape: ShapeLike, dtype: DTypeLike | None = None, name: str | None = None, **placement: bool
    ) -> Tensor:
        """A new, uninitialised tensor.

        Examples
        --------
        >>> be.empty((2, 3)).shape
        (2, 3)
        """
        check_placement(placement)
        tensor = self.over(self._allocated(self._shape(shape), self._dtype(dtype)), name)
        tensor.written = -1
        return tensor

    def _allocated(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        try:
            return self.allocate(shape, dtype)
        except DeviceMemoryError:
            raise
        except (MemoryError, ValueError) as error:
            size = prod(shape) * dtype.itemsize / (1 << 30)
            raise DeviceMemoryError(
                f"a tensor of shape {shape} and {dtype} needs {size:,.1f} GiB, more than there is free; a smaller "
                "batch, a narrower dtype, or a tree, which needs no memory before it runs, may do"
            ) from error

    def zeros(
        self, shape: ShapeLike, dtype: DTypeLike | None = None, name: str | None = None, **placement: bool
    ) -> Tensor:
        """A new tensor of zeros.

        Examples
        --------
        >>> be.zeros(2).get()
        array([0., 0.], dtype=float32)
        """
        check_placement(placement)
        return self.full(shape, 0, dtype, name)

    def ones(
        self, shape: ShapeLike, dtype: DTypeLike | None = None, name: str | None = None, **placement: bool
    ) -> Tensor:
        """A new tensor of ones.

        Examples
        --------
        >>> be.ones(2).get()
        array([1., 1.], dtype=float32)
        """
        check_placement(placement)
        return self.full(shape, 1, dtype, name)

    def full(self, shape: ShapeLike, value: object, dtype: DTypeLike | None = None, name: str | None = None) -> Tensor:
        """A new tensor with every element `value`; without `dtype`, a complex number is complex, as in `array`.

        Examples
        --------
        >>> be.full(2, 0.5).get()
        array([0.5, 0.5], dtype=float32)
        """
        return self.empty(shape, self._dtype(dtype, is_complex_operand(value)), name).fill(value)

    def array(
        self, values: object, dtype: DTypeLike | None = None, name: str | None = None, **placement: bool
    ) -> Tensor:
        """A new tensor with the values of an array, list, number, tensor or tree.

        Without `dtype`, a NumPy array or tensor of integers or bools keeps its dtype, bools are bool, and everything
        else takes the backend's `datatype`, complex numbers the complex dtype of that precision; in neon's mode that
        goes for lists of bools, too.

        Parameters
        ----------
        values : array_like, Tensor or tree
            Copied; `adopt` shares the memory of a NumPy array.
        dtype : dtype, optional
            The default for floats is float32, not NumPy's float64, unless the backend was made with another.
        name : str, optional
            Its name in errors, listings and checkpoints.

        Examples
        --------
        >>> be.array([[1, 2], [3, 4]], name="w")
        Tensor([[1., 2.],
                [3., 4.]], name='w', shape=(2, 2), dtype=float32, backend=cpu)
        """
        check_placement(placement)
        if isinstance(values, Variable):
            values = values.asnumpyarray()
        array = array_of(values, "array")
        known = array.dtype.kind in "biu" or is_inexact(array.dtype)
        if not known and not all(isinstance(value, int) for value in array.flat):
            raise DTypeError(f"array: {array.dtype} values are no numbers that a tensor can hold: {brief(values)}")
        keeps = dtype is None and isinstance(values, np.ndarray | np.generic) and array.dtype.kind in "biu"
        keeps = keeps or (dtype is None and array.dtype.kind == "b" and not self.is_neon)
        wanted = as_dtype(array.dtype) if keeps else self._dtype(dtype, array.dtype.kind == "c")
        if not isinstance(values, np.ndarray) or array.dtype.kind == "c":  # integers wrap around, as in NumPy
            check_fits(array, wanted, "array")
        return self.over(self.from_host(rounded(array, wanted, copy=False)), name)

    def from_dlpack(self, source: object, name: str | None = None) -> Tensor:
        """A tensor over the memory of another library's array, by DLPack, without a copy.

        Parameters
        ----------
        source : object
            With `__dlpack__`.

        Examples
        --------
        >>> be.from_dlpack(np.ones(2, np.float32)).get()
        array([1., 1.], dtype=float32)
        """
        raise NotImplementedError

    def arange(
        self, start: Any, stop: Any = None, step: Any = 1, dtype: DTypeLike | None = None, name: str | None = None
    ) -> Tensor:
        """A new tensor of evenly spaced numbers, as `numpy.arange`, of the backend's `datatype`.

        Parameters
        ----------
        start, stop, step : number

        Examples
        --------
        >>> be.arange(1, 4).get()
        array([1., 2., 3.], dtype=float32)
        """
        first, last = (0, start) if stop is None else (start, stop)
        if first is None or last is None:
            raise OperandError("arange: it takes numbers, not None, a size that is known only at a call")
        first, last, step = (check_real(x, "arange") for x in (first, last, step))
        values, wanted = np.arange(first, last, step), self._dtype(dtype)
        check_fits(values, wanted, "arange")
        return self.array(values, wanted, name)

    def linspace(
        self,
        start: Any,
        stop: Any,
        num: int = 50,
        dtype: DTypeLike | None = None,
        name: str | None = None,
        endpoint: bool = True,
    ) -> Tensor:
        """A new tensor of `num` numbers from `start` to `stop`, which is among them unless `endpoint` is False.

        Parameters
        ----------
        start, stop : number
        num : int
            How many.
        endpoint : bool

        Examples
        --------
        >>> be.linspace(0, 1, 3).get()
        array([0. , 0.5, 1. ], dtype=float32)
        """
        return self.array(np.linspace(start, stop, num, endpoint), dtype, name)

    def eye(
        self, n: int, m: int | None = None, k: int = 0, dtype: DTypeLike | None = None, name: str | None = None
    ) -> Tensor:
        """A new matrix with ones on the `k`-th diagonal.

        Parameters
        ----------
        n, m : int
            Rows and columns; as many by default.
        k : int
            The diagonal.

        Examples
        --------
        >>> be.eye(2).get()
        array([[1., 0.],
               [0., 1.]], dtype=float32)
        """
        return self.array(np.eye(n, m, k), self._dtype(dtype), name)

    def identity(self, n: int, dtype: DTypeLike | None = None, name: str | None = None) -> Tensor:
        """A new square matrix with ones on the diagonal.

        Parameters
        ----------
        n : int

        Examples
        --------
        >>> be.identity(2).get()
        array([[1., 0.],
               [0., 1.]], dtype=float32)
        """
        return self.eye(n, dtype=dtype, name=name)

    def empty_like(self, x: Any, dtype: DTypeLike | None = None, name: str | None = None, **placement: bool) -> Tensor:
        """A new, uninitialised tensor of an operand's shape and dtype.

        Examples
        --------
        >>> be.empty_like(be.ones((2, 3))).shape
        (2, 3)
        """
        check_placement(placement)
        return self.empty(x.shape, x.dtype if dtype is None else dtype, name)

    def zeros_like(
        self, x: object, dtype: DTypeLike | None = None, name: str | None = None, **placement: bool
    ) -> Tensor:
        """A new tensor of zeros of an operand's shape and dtype.

        Examples
        --------
        >>> be.zeros_like(be.ones(2)).get()
        array([0., 0.], dtype=float32)
        """
        check_placement(placement)
        return self.empty_like(x, dtype, name).fill(0)

    def ones_like(
        self, x: object, dtype: DTypeLike | None = None, name: str | None = None, **placement: bool
    ) -> Tensor:
        """A new tensor of ones of an operand's shape and dtype.

        Examples
        --------
        >>> be.ones_like(be.zeros(2)).get()
        array([1., 1.], dtype=float32)
        """
        check_placement(placement)
        return self.empty_like(x, dtype, name).fill(1)

    def full_like(self, x: object, value: object, dtype: DTypeLike | None = None, name: str | None = None) -> Tensor:
        """A new tensor of an operand's shape and dtype, filled with a number.

        Examples
        --------
        >>> be.full_like(be.ones(2), 0.5).get()
        array([0.5, 0.5], dtype=float32)
        """
        return self.empty_like(x, dtype, name).fill(value)

    def iobuf(
        self, dim0: ShapeLike, x: Tensor | None = None, dtype: DTypeLike | None = None, name: str | None = None
    ) -> Tensor:
        """A buffer of zeros for a batch, of shape ``(dim0, batch_size)``; `x` itself if it is given.

        Parameters
        ----------
        dim0 : int or tuple of int
            The size of one sample; several sizes ``(channels, height, width)``
            are flattened to their product, as neon's buffers are.
        x : Tensor, optional
            The buffer, if there is one.

        Raises
        ------
        BackendError
            If the backend has no batch size.

        Examples
        --------
        >>> import backends
        >>> backends.gen_backend("cpu", batch_size=4).iobuf((3, 2)).shape
        (6, 4)
        """
        if x is not None:
            return x
        if not self.batch_size:
            raise BackendError("iobuf needs a batch size: gen_backend(..., batch_size=n)")
        rows: Any = int(np.prod(dim0)) if isinstance(dim0, tuple | list) else dim0
        buffer = self.zeros((rows, self.batch_size), dtype, name)
        buffer.written = -1  # counts as uninitialised: trees on it mean batches to come
        return buffer

    def _dtype(self, dtype: DTypeLike | None, holds_complex: bool = False) -> np.dtype:
        found = self.datatype if dtype is None else as_dtype(dtype)
        if dtype is None and holds_complex:
            found = complex_dtype(found)
        return found


#: neon's keywords of where and how long a tensor is there: of no effect on one device.
_PLACEMENT = frozenset(("persist_values", "parallel", "distributed"))


def check_placement(given: dict[str, bool]) -> None:
    """Raise TypeError for keywords that are not neon's, which have no effect on one device."""
    if given and not given.keys() <= _PLACEMENT:
        raise TypeError(f"there is no argument {min(given.keys() - _PLACEMENT)!r}")
