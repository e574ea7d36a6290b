"""What is known of an operand before it has a value: dtype, shape, backend.

Promotion is NumPy's own (NEP 50, https://numpy.org/neps/nep-0050-scalar-promotion.html):
a Python number is weak and takes the dtype of what it meets, a NumPy scalar is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary, ref

import numpy as np

from optree.errors import AxisError, DTypeError, NumberOverflowError, ShapeError

Shape = tuple[int | None, ...]

DTYPES = tuple(
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
)

_SUPPORTED = frozenset(DTYPES)

#: Held while an object that there is one of is made.
_making = Lock()

#: The Python numbers an operand may be. A bool is a NumPy bool; the others are weak.
NUMBERS = (bool, int, float)


def as_dtype(dtype: Any) -> np.dtype:
    """A NumPy dtype, one of `DTYPES`, in the machine's byte order.

    Raises
    ------
    DTypeError
        If it is no dtype, or one that tensors do not have.
    """
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise DTypeError(f"{dtype!r} is not a dtype") from error
    if not found.isnative:
        found = found.newbyteorder("=")
    if found not in _SUPPORTED:
        raise DTypeError(f"dtype {found} is not supported; there are {', '.join(map(str, DTYPES))}")
    return found


def check_fits(values: Any, dtype: np.dtype, what: str) -> None:
    """Refuse integers that an integer dtype cannot hold.

    Raises
    ------
    NumberOverflowError
        Naming the first of them.
    """
    if dtype.kind not in "iu":
        return
    limits, array = np.iinfo(dtype), np.asarray(values)
    if array.dtype.kind in "iuO":
        for value in array[(array < limits.min) | (array > limits.max)].flat:
            raise NumberOverflowError(f"{what}: {value} does not fit {dtype} ({limits.min} to {limits.max})")


class TensorType:
    """A dtype and a shape; None stands for a size known only when a function is called.

    There is one object for each pair, so types compare by identity.

    Examples
    --------
    >>> TensorType("float32", (2, 3))
    TensorType(float32, (2, 3))
    >>> TensorType("float32", (2, 3)) is TensorType(np.float32, [2, 3])
    True
    """

    __slots__ = ("__weakref__", "dtype", "shape")

    dtype: np.dtype
    shape: Shape

    _made: WeakValueDictionary[tuple[np.dtype, Shape], TensorType] = WeakValueDictionary()

    def __new__(cls, dtype: Any, shape: Iterable[int | None]) -> TensorType:
        key = as_dtype(dtype), tuple(shape)
        found = cls._made.get(key)
        if found is None:
            new = super().__new__(cls)
            new.dtype, new.shape = key
            with _making:
                found = cls._made.setdefault(key, new)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorType, (self.dtype, self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"TensorType({self.dtype}, {self.shape})"

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}"


class Spec:
    """What building a node needs to know of an operand: its type and its backend.

    There is one object for each pair, so that a table from specs to what an op
    makes of them is one dictionary look-up. A Python number's spec is its class.

    Attributes
    ----------
    type : TensorType
    backend : Backend or None
        None for constants and inputs, which are at home everywhere. The tensors
        keep it alive, not the spec, which ops remember.
    token : object
        One object for each dtype and broadcast pattern: what a plan depends on,
        which sizes are not.
    """

    __slots__ = ("__weakref__", "_backend", "token", "type")

    type: TensorType
    token: object
    _backend: Any

    _tokens: dict[tuple[np.dtype, tuple[bool, ...]], object] = {}
    _made: WeakValueDictionary[tuple[TensorType, Any], Spec] = WeakValueDictionary()

    def __new__(cls, type: TensorType, backend: Any = None) -> Spec:
        key = type, None if backend is None else ref(backend)
        found = cls._made.get(key)
        if found is None:
            with _making:
                found = cls._made.setdefault(key, cls._new(*key))
        return found

    @property
    def backend(self) -> Any:
        return None if self._backend is None else self._backend()

    @classmethod
    def weak(cls, type: TensorType) -> Spec:
        """A spec of its own, not that of the operands of this type."""
        return cls._new(type, None)

    @classmethod
    def _new(cls, type: TensorType, backend: Any) -> Spec:
        spec = super().__new__(cls)
        spec.type, spec._backend = type, backend
        pattern = type.dtype, tuple(size == 1 for size in type.shape)
        spec.token = cls._tokens.setdefault(pattern, object())
        return spec


def weak_dtype(spec: Any) -> Any:
    """What promotion takes for an operand: a dtype, or `int` or `float` for a weak number."""
    if spec is bool:
        return np.dtype(bool)
    return spec if spec in (int, float) else spec.type.dtype


def promote(*dtypes: Any) -> np.dtype:
    """The dtype that operands have in common, by NEP 50; weak numbers are `int` or `float`.

    Examples
    --------
    >>> promote(np.dtype("float32"), float), promote(np.dtype("int8"), float)
    (dtype('float32'), dtype('float64'))
    """
    weak = {int: 0, float: 0.0}
    return np.result_type(*(weak.get(d, d) for d in dtypes))


def broadcast(*shapes: Shape) -> Shape:
    """The shape that shapes broadcast to; an unknown size takes the size it meets.

    Raises
    ------
    ShapeError
        If two sizes differ and neither is 1.
    """
    ndim = max(map(len, shapes), default=0)
    padded = [(1,) * (ndim - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(_broadcast_sizes(sizes) for sizes in zip(*padded, strict=True))


def _broadcast_sizes(sizes: Sequence[int | None]) -> int | None:
    known = {size for size in sizes if size not in (1, None)}
    if len(known) > 1:
        raise ShapeError(f"sizes {sizes} do not broadcast")
    if known:
        return known.pop()
    return None if None in sizes else 1


def normalise_axis(axis: Any, ndim: int, what: str) -> int:
    """An axis counted from the front.

    Raises
    ------
    AxisError
        If there is no such axis; `what` names the op and its operand.
    """
    try:
        index = axis.__index__()
    except AttributeError:
        raise AxisError(f"{what}: an axis is an integer, not {axis!r}") from None
    if not -ndim <= index < ndim:
        raise AxisError(f"{what}: axis {index} is out of range for {ndim} dimensions")
    return index % ndim


def normalise_axes(axis: Any, ndim: int, what: str) -> tuple[int, ...]:
    """Axes counted from the front, in order; None means all of them.

    Raises
    ------
    AxisError
        If there is no such axis, or one is named twice.
    """
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple | list) else (axis,)
    axes = [normalise_axis(a, ndim, what) for a in given]
    if len(set(axes)) < len(axes):
        raise AxisError(f"{what}: axis {axis} names an axis twice")
    return tuple(sorted(axes))
