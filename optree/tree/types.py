"""Types and specs: what is known of an operand before it has a value.

Promotion is NumPy's own (NEP 50, https://numpy.org/neps/nep-0050-scalar-promotion.html):
a Python number is weak and takes the dtype of what it meets, a NumPy scalar is not.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any, ClassVar
from weakref import WeakValueDictionary, ref

import numpy as np
from numpy.typing import DTypeLike

from optree.arrays import check_unmasked, is_array, is_foreign, on_host
from optree.dtypes import bfloat16, by_float16, can_cast, finfo, is_bfloat16, is_floating, is_inexact, rounded
from optree.errors import (
    AxisError,
    DefinitionError,
    DTypeError,
    NumberOverflowError,
    OperandError,
    ShapeError,
    brief,
    class_of,
    describe,
)
from optree.locks import Locked

Shape = tuple[int | None, ...]

#: A shape as users give it.
ShapeLike = int | Sequence[int]

#: One axis, several, or all.
Axis = int | Sequence[int] | None

#: A dtype of a new value; None for the default.
DType = DTypeLike | None

DTYPES = tuple(
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)

_SUPPORTED = frozenset(DTYPES)

#: Maximum entries of the cache of promoted dtypes.
PROMOTIONS = 1024

#: Held while an interned object is made.
_making = Locked()

#: The classes of Python numbers that are operands. A bool is a NumPy bool; the others are weak.
NUMBERS = (bool, int, float, complex)

#: Those of them that take the dtype of what they meet.
WEAK = (int, float, complex)

#: Integers of this size or more overflow float64.
HUGE = 2**1024 - 2**970


def as_dtype(dtype: Any) -> np.dtype:
    """A NumPy dtype, one of `DTYPES` or bfloat16, in the machine's byte order.

    It raises DTypeError if it is no dtype, or one that is not supported.
    """
    if isinstance(dtype, str) and dtype == "bfloat16":
        return bfloat16()
    try:
        found = np.dtype(dtype)
    except Exception as error:  # of a foreign object's `dtype`, too
        hint = "; a shape of several sizes is one tuple, as in (2, 3)" if isinstance(dtype, int) else ""
        own = brief(dtype, str).rpartition(".")[2]
        if own in map(str, (*DTYPES, "bfloat16")):  # torch.float32
            hint = f"; {own!r} is one"
        raise DTypeError(f"{brief(dtype)} is not a dtype{hint}") from error
    if not found.isnative:
        found = found.newbyteorder("=")
    if found not in _SUPPORTED and not is_bfloat16(found):
        raise DTypeError(f"dtype {found} is not supported; there are {', '.join(map(str, DTYPES))}, bfloat16")
    return found


def check_fits(values: object, dtype: np.dtype, what: object) -> None:
    """Refuse numbers that overflow a dtype; a float's fraction is dropped in an integer dtype.

    It raises NumberOverflowError, naming the first that does.
    """
    if type(values) in (bool, int, float) and dtype.kind in "bfc" and not is_huge(values):
        return
    array = np.asarray(values)
    if array.dtype.kind == "c" and dtype.kind != "c":
        raise DTypeError(f"{what}: {brief(values, str)} is complex, and {dtype} is not; z.real is its real part")
    if array.dtype.kind == "O" and not all(isinstance(value, int | float) for value in array.flat):
        return  # they are refused as no numbers
    if is_inexact(dtype):
        wrong: Any = [value for value in array.flat if is_huge(value)] if array.dtype.kind == "O" else []
        bounds = "it is beyond every float"
    elif dtype.kind in "iu" and array.dtype.kind in "iuOf":
        limits = np.iinfo(dtype)
        bounds = f"{limits.min} to {limits.max}"
        if is_floating(array.dtype):  # in float64, where limits.max + 1 is exact
            whole = np.trunc(array.astype(np.float64))
            wrong = array[~((whole >= float(limits.min)) & (whole < float(limits.max + 1)))]  # a nan is wrong too
        else:
            wrong = array[(array < limits.min) | (array > limits.max)]
    else:
        return
    for value in wrong:
        raise NumberOverflowError(f"{what}: {brief(value, str)} does not fit {dtype} ({bounds})")


def array_of(values: object, what: str) -> np.ndarray:
    """A user's values as a NumPy array.

    Raises
    ------
    ShapeError
        If they are lists of different lengths.
    OperandError
        If they are masked, or of a library that does not give them to NumPy.
    """
    check_unmasked(values, what)
    if is_foreign(values):
        return on_host(values, what)
    try:
        return np.asarray(values)
    except ValueError:
        raise ShapeError(f"{what}: {brief(values)} is no array, its rows are not equally long") from None
    except MemoryError:
        raise
    except Exception as error:  # of an object that NumPy asks for its elements
        raise OperandError(
            f"{what}: {describe(values)} is no array ({class_of(error)}: {brief(error, str)})"
        ) from error


def is_huge(value: object) -> bool:
    """Whether a value is a Python integer that no float can hold."""
    return type(value) is int and not -HUGE < value < HUGE


class Type:
    """A set of values that a variable may have (Theano's and Aesara's Type).

    A subclass writes `filter`, and `values_eq` where ``==`` does not tell.

    Examples
    --------
    >>> class Double(Type):
    ...     def filter(self, value, strict=False, allow_downcast=None):
    ...         return float(value)
    >>> double = Double()
    >>> x = double("x")
    >>> x, x.type is double
    (Input(Double, 'x'), True)
    """

    __slots__ = ("__weakref__",)

    #: `Input`, which `make_variable` makes. `optree.tree.variable` sets it, which would be a circular import here.
    Variable: ClassVar[Any]

    def filter(self, value: object, strict: bool = False, allow_downcast: bool | None = None) -> Any:
        """The value converted to the type.

        Parameters
        ----------
        value : object
        strict : bool
            Accept only values of the type, and return them unchanged.
        allow_downcast : bool, optional
            Whether a conversion may lose precision. None leaves that to the type.

        Raises
        ------
        TypeError
            If the value cannot be converted.
        """
        raise DefinitionError(f"{type(self).__name__}: write filter(self, value, strict=False, allow_downcast=None)")

    def values_eq(self, x: object, y: object) -> bool:
        """Whether two values of the type are equal."""
        return bool(x == y)

    def values_eq_approx(self, x: object, y: object, tolerance: float | None = None) -> bool:
        """Whether two values are equal but for rounding; here, whether they are equal."""
        return self.values_eq(x, y)

    def holds(self, other: object) -> bool:
        """Whether a variable of another type is accepted where one of this type is expected."""
        return bool(self == other)

    def make_variable(self, name: str | None = None) -> Any:
        """A new variable of the type, without a value."""
        return Type.Variable(self, name)

    def __call__(self, name: str | None = None) -> Any:
        """A new variable of the type: ``x = double("x")``."""
        return self.make_variable(name)

    @property
    def plan_key(self) -> Any:
        """The part of the type that plans depend on."""
        return self

    @property
    def any_size(self) -> Any:
        """The type with its sizes left open: that of all values that one plan accepts."""
        return self

    def __repr__(self) -> str:
        return type(self).__name__


class TensorType(Type):
    """A dtype and a shape; a size of None is known only when a function is called.

    Types are interned: there is one object for each pair, and they compare by identity.

    Examples
    --------
    >>> TensorType("float32", (2, 3))
    TensorType(float32, (2, 3))
    >>> TensorType("float32", (2, 3)) is TensorType(np.float32, [2, 3])
    True
    >>> TensorType("float32", (None,)).filter([1, 2])
    array([1., 2.], dtype=float32)
    """

    __slots__ = ("dtype", "shape")

    dtype: np.dtype
    shape: Shape

    _made: WeakValueDictionary[tuple[np.dtype, Shape], TensorType] = WeakValueDictionary()

    def __new__(cls, dtype: DTypeLike, shape: int | Iterable[int | None]) -> TensorType:
        key = as_dtype(dtype), (shape,) if isinstance(shape, int) else tuple(shape)
        found = cls._made.get(key)
        if found is None:
            if any(size is not None and size < 0 for size in key[1]):
                raise ShapeError(f"a size is 0 or more, or None where it is not known: {key[1]}")
            new = super().__new__(cls)
            new.dtype, new.shape = key
            with _making.lock:
                found = cls._made.setdefault(key, new)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorType, (self.dtype, self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def plan_key(self) -> Any:
        return self.dtype, tuple(size == 1 for size in self.shape)

    @property
    def any_size(self) -> TensorType:
        return TensorType(self.dtype, tuple(1 if size == 1 else None for size in self.shape))

    def holds(self, other: object) -> bool:
        """Whether the other is a tensor type of this dtype and rank, and has the sizes that are known here."""
        return (
            isinstance(other, TensorType)
            and other.dtype == self.dtype
            and len(other.shape) == len(self.shape)
            and all(mine in (None, size) for mine, size in zip(self.shape, other.shape, strict=True))
        )

    def filter(self, value: Any, strict: bool = False, allow_downcast: bool | None = None) -> Any:
        """The value as an array of this dtype and shape; a tensor or array that has both, unchanged.

        A float beyond the dtype's range becomes infinite, with NumPy's warning.

        Parameters
        ----------
        value : Tensor, array_like or number
        strict : bool
            Accept only arrays and tensors of exactly this dtype.
        allow_downcast : bool, optional
            True: convert any real numbers. False: only where every value is preserved.
            None: only NumPy's safe casts, and weak Python numbers by their kind; for a
            0-dimensional type NumPy's scalars too.

        Raises
        ------
        DTypeError, ShapeError
        """
        is_plain = value.__class__ is float and allow_downcast is not False and not strict
        if is_plain and self.shape == () and is_floating(self.dtype):
            return np.array(value, self.dtype)  # a fast path: the same as below in a tenth of the time
        if value.__class__ is np.ndarray and value.dtype == self.dtype and value.shape == self.shape:
            return value  # another
        if isinstance(value, np.generic) and self.shape == () and allow_downcast is None and not strict:
            value = value.item()  # a learning rate computed by NumPy counts as a number
        array = value if isinstance(value, np.generic) or is_array(value) else None
        check_unmasked(value, "an argument")
        if strict and array is None:
            raise DTypeError(f"an array of {self.dtype} is wanted, not {class_of(value)} {brief(value)}")
        if is_foreign(value):
            value = array = on_host(value, "an argument")
        if array is None:
            array = array_of(value, "an argument")
        if array.dtype.kind not in "biu" and not is_inexact(array.dtype):
            raise DTypeError(f"numbers are wanted, not {array.dtype}: {describe(value)}")
        if array.dtype != self.dtype:
            if strict or not self._converts(value, array, allow_downcast):
                remedy = f"x.astype('{self.dtype}') converts it"
                raise DTypeError(f"{array.dtype} does not go into {self.dtype} without loss; {remedy}")
            array = rounded(np.asarray(array), self.dtype)
        wanted = self.shape
        if len(array.shape) != len(wanted):
            raise ShapeError(f"{len(wanted)} dimensions are wanted, {wanted}, not {len(array.shape)}, {array.shape}")
        for size, found in zip(wanted, array.shape, strict=True):
            if size is not None and size != found:
                raise ShapeError(f"the shape {wanted} is wanted, not {array.shape}")
        return array

    def _converts(self, value: Any, array: Any, allow_downcast: bool | None) -> bool:
        if allow_downcast:
            return array.dtype.kind != "c" or self.dtype.kind == "c"
        if allow_downcast is False:
            with np.errstate(all="ignore"):
                host = np.asarray(array)
                return bool(
                    np.array_equal(rounded(host, self.dtype).astype(host.dtype), host, equal_nan=is_inexact(host.dtype))
                )
        if array is value or isinstance(value, np.ndarray | np.generic):
            return bool(can_cast(array.dtype, self.dtype, "safe"))
        if array.dtype.kind in "iu" and self.dtype.kind in "iu" and array.size:
            limits = np.iinfo(self.dtype)
            return bool(limits.min <= array.min() and array.max() <= limits.max)
        return bool(can_cast(array.dtype, self.dtype, "same_kind"))

    def values_eq(self, x: object, y: object) -> bool:
        """Whether two arrays are of one dtype and shape and equal in every element, nan to nan."""
        x, y = np.asarray(x), np.asarray(y)
        return x.dtype == y.dtype and np.array_equal(x, y, equal_nan=is_inexact(x.dtype))

    def values_eq_approx(self, x: object, y: object, tolerance: float | None = None) -> bool:
        """Whether two arrays differ by no more than rounding.

        Parameters
        ----------
        tolerance : float, optional
            Relative and absolute; by default the square root of the dtype's epsilon.
        """
        x, y = np.asarray(x), np.asarray(y)
        if x.dtype != y.dtype or x.shape != y.shape:
            return False
        if not is_inexact(x.dtype):
            return bool(np.array_equal(x, y))
        near = float(finfo(x.dtype).eps) ** 0.5 if tolerance is None else tolerance
        return bool(np.allclose(x, y, rtol=near, atol=near, equal_nan=True))

    def __repr__(self) -> str:
        return f"TensorType({self.dtype}, {self.shape})"

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}"


class TupleType(Type):
    """The type of the value of an op with several outputs: a tuple.

    Attributes
    ----------
    types : tuple of Type
    """

    __slots__ = ("types",)

    types: tuple[Type, ...]

    _made: WeakValueDictionary[tuple[Type, ...], TupleType] = WeakValueDictionary()

    def __new__(cls, types: Iterable[Type]) -> TupleType:
        key = tuple(types)
        found = cls._made.get(key)
        if found is None:
            found = super().__new__(cls)
            found.types = key
            cls._made[key] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return TupleType, (self.types,)

    @property
    def plan_key(self) -> Any:
        return tuple(type.plan_key for type in self.types)

    @property
    def any_size(self) -> TupleType:
        return TupleType(type.any_size for type in self.types)

    def filter(self, value: object, strict: bool = False, allow_downcast: bool | None = None) -> Any:
        """The tuple of values, each converted to its type."""
        if not isinstance(value, tuple) or len(value) != len(self.types):
            raise DTypeError(f"a tuple of {len(self.types)} values is wanted, not {brief(value)}")
        return tuple(t.filter(v, strict, allow_downcast) for t, v in zip(self.types, value, strict=True))

    def values_eq(self, x: Any, y: Any) -> bool:
        return all(t.values_eq(a, b) for t, a, b in zip(self.types, x, y, strict=True))

    def values_eq_approx(self, x: Any, y: Any, tolerance: float | None = None) -> bool:
        return all(t.values_eq_approx(a, b, tolerance) for t, a, b in zip(self.types, x, y, strict=True))

    def __repr__(self) -> str:
        return f"TupleType({', '.join(map(repr, self.types))})"


class Spec:
    """An operand's type and backend, the key of ops' inference caches.

    Specs are interned, so that an op finds its cached application by one dictionary
    look-up. A Python number's spec is its class.

    `type`: TensorType.
    `backend`: None for constants and inputs, which fit every backend. A weak reference: ops cache specs, and must not
    keep backends alive.
    `home`: the reference to the backend; one object for each backend.
    `token`: one object for each `Type.plan_key`: dtype and broadcast pattern, not sizes.
    """

    __slots__ = ("__weakref__", "home", "token", "type")

    type: Any
    token: object
    home: Any

    _tokens: dict[Any, object] = {}
    _made: WeakValueDictionary[tuple[Type, Any], Spec] = WeakValueDictionary()

    def __new__(cls, type: Type, backend: object = None) -> Spec:
        key = type, None if backend is None else ref(backend)
        found = cls._made.get(key)
        if found is None:
            with _making.lock:
                found = cls._made.setdefault(key, cls._new(*key))
        return found

    @property
    def backend(self) -> Any:
        return None if self.home is None else self.home()

    @classmethod
    def own(cls, type: Type, backend: object = None) -> Spec:
        """A spec that is not interned, and so differs from that of other operands of the type."""
        return cls._new(type, None if backend is None else ref(backend))

    @classmethod
    def _new(cls, type: Type, backend: object) -> Spec:
        spec = super().__new__(cls)
        spec.type, spec.home = type, backend
        spec.token = cls._tokens.setdefault(type.plan_key, object())
        return spec


def weak_dtype(spec: Any) -> Any:
    """An operand's dtype for promotion; `int`, `float` or `complex` for a weak number."""
    if spec is bool:
        return np.dtype(bool)
    return spec if spec in WEAK else spec.type.dtype


def promote(*dtypes: object) -> np.dtype:
    """The promoted dtype of operands, by NEP 50; weak numbers are `int`, `float` or `complex`.

    Examples
    --------
    >>> promote(np.dtype("float32"), float), promote(np.dtype("int8"), float)
    (dtype('float32'), dtype('float64'))
    """
    return _promoted(dtypes)


@lru_cache(PROMOTIONS)
def _promoted(dtypes: tuple[Any, ...]) -> np.dtype:
    weak = {int: 0, float: 0.0, complex: 0j}
    (found,) = by_float16(lambda known: [np.result_type(*(weak.get(d, d) for d in known))], dtypes)
    return found


def broadcast(*shapes: Shape) -> Shape:
    """The shape that shapes broadcast to; an unknown size is assumed equal to the known one.

    It raises ShapeError if two sizes differ and neither is 1.
    """
    if shapes and shapes.count(shapes[0]) == len(shapes):  # nearly always
        return tuple(shapes[0])
    aligned = [*zip_longest(*map(reversed, shapes), fillvalue=1)]
    return tuple(map(_broadcast_sizes, reversed(aligned)))


def _broadcast_sizes(sizes: Sequence[int | None]) -> int | None:
    known = {size for size in sizes if size not in (1, None)}
    if len(known) > 1:
        raise ShapeError(f"sizes {sizes} do not broadcast")
    return min(known, default=None if None in sizes else 1)


def without_lead(value: Shape, target: Shape) -> Shape:
    """A value's shape without extra leading axes of size 1, which NumPy drops in assignments."""
    extra = len(value) - len(target)
    return value[extra:] if extra > 0 and set(value[:extra]) == {1} else value


def integer_of(value: Any, what: str, least: int | None = None) -> int:
    """A user's integer as an int; OperandError, which names `what`, if it is none, or below the least."""
    if type(value) is int and (least is None or value >= least):
        return value  # a fast path
    is_integer = not isinstance(value, bool) and hasattr(value, "__index__") and not np.ndim(value)
    if not is_integer or (least is not None and value < least):
        bound = "" if least is None else f" of {least} or more"
        raise OperandError(f"{what} is an integer{bound}, not {brief(value)}")
    return int(value.__index__())


def may_equal(shape: Shape, wanted: Shape) -> bool:
    """Whether shapes are equal as far as their sizes are known."""
    return len(shape) == len(wanted) and all(m == n for m, n in zip(shape, wanted, strict=True) if None not in (m, n))


def normalise_axis(axis: Any, ndim: int, what: str) -> int:
    """An axis counted from the front; AxisError if there is no such axis; `what` names the op and its operand."""
    try:
        index = operator.index(axis)
    except TypeError:  # non-integer tensors have the method too
        raise AxisError(f"{what}: an axis is an integer, not {brief(axis)}") from None
    if not -ndim <= index < ndim:
        raise AxisError(f"{what}: axis {index} is out of range for {ndim} dimensions")
    return index % ndim


def normalise_axes(axis: object, ndim: int, what: str) -> tuple[int, ...]:
    """Axes counted from the front, in order; None means all of them.

    It raises AxisError if there is no such axis, or one is named twice.
    """
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple | list) else (axis,)
    axes = [normalise_axis(a, ndim, what) for a in given]
    if len(set(axes)) < len(axes):
        raise AxisError(f"{what}: axis {axis} names an axis twice")
    return tuple(sorted(axes))


def one_or_many(arguments: tuple[Any, ...]) -> Any:
    """Normalise ``f(a, b)``, ``f((a, b))`` and ``f()`` to a tuple of integers, or None."""
    if len(arguments) == 1 and not hasattr(arguments[0], "__index__"):
        return arguments[0]
    return arguments or None


def check_name(name: object) -> str | None:
    """The name that a leaf is given; OperandError if it is neither a string nor None."""
    if name is not None and not isinstance(name, str):
        raise OperandError(f"a name is a string or None, not {brief(name)}; a shape is one tuple, as in (2, 3)")
    return name
