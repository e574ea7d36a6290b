"""Fourier transforms: ``np.fft`` of trees, along axes, by NumPy's pocketfft.

A transform along several axes is one along each, which threads divide along the others. float32 stays complex64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, as_array, portable
from optree.autodiff.reverse import adjoints_of
from optree.dtypes import is_complex, is_inexact, real_dtype, wide_dtype
from optree.errors import DTypeError, OperandError, ShapeError, describe
from optree.op.examples import Examples
from optree.op.index_map import IndexMap
from optree.op.op import Op
from optree.op.traits import AxisOperator, BlockOperator, Blocks, UnaryOperator, blocks_along, one_axis
from optree.ops.shape import slice_along, strong
from optree.registry import NUMPY_FUNCTIONS, f
from optree.tree.types import Axis, Shape, TensorType, integer_of, normalise_axis, promote
from optree.tree.variable import Operand, Variable

#: The norm of a transform whose matrix is a multiple of the transposed one of another, by that other's norm.
ADJOINT_NORMS = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _complex_dtype(dtype: np.dtype | type) -> np.dtype:
    """The dtype of a transform: complex64 of float32 and narrower floats, complex128 of others."""
    found = promote(dtype)
    return np.result_type(wide_dtype(found) if is_inexact(found) else np.float64, np.complex64)


def _check_norm(norm: str, what: str | None) -> None:
    if norm not in ADJOINT_NORMS:
        raise OperandError(f"{what}: norm is 'backward', 'ortho' or 'forward', not {norm!r}")


class TransformOperator(AxisOperator, UnaryOperator, BlockOperator):
    """A Fourier transform along one axis.

    Attributes
    ----------
    norm : {'backward', 'ortho', 'forward'}
        The direction that divides by the size, or both by its root.
    """

    __props__: ClassVar[tuple[str, ...] | None] = ("axis", "norm")
    axis: Any = -1
    norm: str = "backward"
    raises = False
    transform: ClassVar[Callable[..., Any]]

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        x = types[0]
        _check_norm(self.norm, self.name)
        if x.ndim and x.shape[normalise_axis(self.axis, x.ndim, str(self.name))] == 0:
            raise ShapeError(f"axis {self.axis} is empty, and there is no transform of no numbers")
        return super().bind(types, backend)

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        found = _complex_dtype(dtypes[0])
        return found, found

    @property
    def options(self) -> dict[str, Any]:
        """NumPy's arguments."""
        return {"axis": self.axis, "norm": self.norm}

    @portable
    def numpy(self, x: Array) -> Any:
        x = as_array(x)
        *loop, dtype = self.resolve_dtypes(x.dtype)
        return type(self).transform(x.astype(loop[0], copy=False), **self.options).astype(dtype, copy=False)

    def blocks(self, *shapes: tuple[int, ...]) -> Blocks | None:
        return blocks_along(shapes[0], self.axis)


class Fft(TransformOperator):
    """The discrete Fourier transform along one axis: ``np.fft.fft`` of its size.

    Attributes
    ----------
    norm : {'backward', 'ortho', 'forward'}
        As of `numpy.fft`: the direction that divides by the size, or both by its root.

    Examples
    --------
    >>> be.dft(be.array([1.0, 0.0, 0.0])).get()
    array([1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """

    name = "dft"
    takes_complex = True
    transform = staticmethod(np.fft.fft)
    examples = Examples(((((3, 4),), {"axis": 0, "norm": "ortho"}), (((5,),), {})), random_props=one_axis)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [self(delta)]  # its matrix is symmetric


class InverseFft(Fft):
    """The inverse of `dft`.

    Attributes
    ----------
    norm : {'backward', 'ortho', 'forward'}
        As of `numpy.fft`: the direction that divides by the size, or both by its root.

    Examples
    --------
    >>> be.idft(be.array([1.0, 1.0, 1.0])).get()
    array([1.+0.j, 0.+0.j, 0.+0.j], dtype=complex64)
    """

    name = "idft"
    transform = staticmethod(np.fft.ifft)


class RealFft(TransformOperator):
    """The first half of the transform of real numbers along one axis, with the middle: ``np.fft.rfft`` of its size.

    Attributes
    ----------
    norm : {'backward', 'ortho', 'forward'}
        As of `numpy.fft`: the direction that divides by the size, or both by its root.

    Examples
    --------
    >>> be.rdft(be.array([1.0, 0.0, 0.0])).get()
    array([1.+0.j, 1.+0.j], dtype=complex64)
    """

    name = "rdft"
    takes_complex = False
    index_map = IndexMap()
    transform = staticmethod(np.fft.rfft)
    examples = Examples(((((3, 4),), {"axis": 0, "norm": "ortho"}), (((4, 3),), {"axis": 0})), random_props=one_axis)

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        found = _complex_dtype(dtypes[0])
        return real_dtype(found), found

    def output_shape(self, *shapes: Shape) -> Shape:
        ((*shape,),) = shapes
        size = shape[self.axis]
        shape[self.axis] = None if size is None else size // 2 + 1
        return tuple(shape)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        size = x.shape[self.axis]
        if size is None:
            longer = f.pad(x, tuple((0, int(i == self.axis)) for i in range(x.ndim)))
            index = f.flat_indices(longer, self.axis)
            first = f.slice(index, (*(slice(None),) * self.axis, slice(None, None, 2))) // 2
            half = f.take_along_axis(Fft.make(axis=self.axis, norm=self.norm)(x), first, self.axis)
            return adjoints_of({half: delta}, [x], delta.dtype)
        inverse = InverseRealFft.make(axis=self.axis, norm=ADJOINT_NORMS[self.norm], size=size)
        return [inverse(f.conjugate(delta) / _multiplicity(delta, self.axis, size))]


class InverseRealFft(TransformOperator):
    """The inverse of `rdft`.

    Attributes
    ----------
    norm : {'backward', 'ortho', 'forward'}
        As of `numpy.fft`: the direction that divides by the size, or both by its root.
    size : int, optional
        The value's size along the axis; by default twice the operand's less one, which is even.

    Examples
    --------
    >>> be.irdft(be.array([1.0, 1.0]), size=3).get()
    array([1., 0., 0.], dtype=float32)
    """

    name = "irdft"
    __props__ = ("axis", "norm", "size")
    size: int | None = None
    takes_complex = True
    index_map = IndexMap()
    transform = staticmethod(np.fft.irfft)
    examples = Examples(
        ((((3, 4),), {"axis": 0, "norm": "ortho", "size": 5}), (((4, 3),), {"axis": 1, "size": 4})), random_props=False
    )

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        found = _complex_dtype(dtypes[0])
        return found, real_dtype(found)

    def output_shape(self, *shapes: Shape) -> Shape:
        ((*shape,),) = shapes
        known = shape[self.axis]
        if self.size is None:
            shape[self.axis] = None if known is None else 2 * (known - 1)
            return tuple(shape)
        if known not in (None, self.size // 2 + 1):
            raise ShapeError(f"a transform of {self.size} real numbers has {self.size // 2 + 1}, not {known}")
        shape[self.axis] = self.size
        return tuple(shape)

    @property
    def options(self) -> dict[str, Any]:
        return {**super().options, "n": self.size}

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (x,), (delta,) = inputs, output_gradients
        found = RealFft.make(axis=self.axis, norm=ADJOINT_NORMS[self.norm])(delta)
        found = f.conjugate(found) * _multiplicity(found, self.axis, self.size)
        return [found if is_complex(x.dtype) else f.real(found)]


def _multiplicity(half: Variable, axis: int, size: int | None) -> Any:
    """How often each element of the first half of a transform is in the whole: twice, but for the ends.

    The whole has an even size where it is not known.
    """
    if size is None:
        index = f.flat_indices(half, axis)
        return f.where(f.logical_or(f.eq(index, 0), f.eq(index, f.count(half, axis) - 1)), 1, 2)
    counts = np.full(size // 2 + 1, 2, real_dtype(half.dtype))
    counts[0] = 1
    if size % 2 == 0:
        counts[-1] = 1
    return counts.reshape(*(1,) * axis, -1, *(1,) * (half.ndim - 1 - axis))


# NumPy's functions


def _sized(x: Variable, size: Any, axis: int, what: str) -> Variable:
    """An operand with an axis of this size: its first elements, or zeros after them; of None as it is."""
    if size is None:
        return x
    size, known = integer_of(size, f"{what}: n", 1), x.shape[axis]
    if known is None:  # the call tells whether it is longer
        padded = f.pad(x, tuple((0, size if i == axis else 0) for i in range(x.ndim)))
        return f.take(padded, np.arange(size), axis)  # type: ignore[no-any-return]
    if size <= known:
        return x if size == known else slice_along(x, axis, None, size)  # type: ignore[no-any-return]
    return f.pad(x, tuple((0, size - known if i == axis else 0) for i in range(x.ndim)))  # type: ignore[no-any-return]


def _axes_of(x: Variable, s: Any, axes: Any, what: str) -> list[tuple[int, Any]]:
    """The axes of a transform with their sizes, -1 the operand's; all without `axes`, or as many as there are sizes."""
    if axes is None:
        axes = range(x.ndim) if s is None else range(-len(s), 0)
    found = [normalise_axis(axis, x.ndim, what) for axis in axes]
    sizes = [None] * len(found) if s is None else list(s)
    if len(sizes) != len(found):
        raise ShapeError(f"{what}: s has {len(sizes)} sizes for {len(found)} axes")
    return [(axis, x.shape[axis] if size == -1 else size) for axis, size in zip(found, sizes, strict=True)]


def _along(op: type[TransformOperator], x: Variable, size: Any, axis: int, norm: str | None, what: str) -> Variable:
    """A transform of complex numbers along one axis."""
    axis = normalise_axis(axis, x.ndim, what)
    x = _sized(x, size, axis, what)
    if x.shape[axis] == 0:
        raise ShapeError(
            f"{what}: axis {axis} of {describe(x)} is empty, and has no transform; n or s pads it with zeros"
        )
    return op.make(axis=axis, norm=_norm_of(norm, what))(x)  # type: ignore[no-any-return]


def _norm_of(norm: str | None, what: str) -> str:
    if norm is None:
        return "backward"
    _check_norm(norm, what)
    return norm


def _real_along(x: Variable, size: Any, axis: int, norm: str | None, what: str) -> Variable:
    if is_complex(x.dtype):
        other = what.replace("rfft", "fft").replace("ihfft", "ifft")
        raise DTypeError(f"{what}: {describe(x)} is not real; np.fft.{other} takes complex numbers, and z.real is real")
    return _along(RealFft, x, size, axis, norm, what)


def _inverse_real_along(x: Variable, size: Any, axis: int, norm: str | None, what: str) -> Variable:
    axis = normalise_axis(axis, x.ndim, what)
    known = x.shape[axis]
    if size is not None or known is not None:
        size = 2 * (known - 1) if size is None else integer_of(size, f"{what}: n", 1)  # type: ignore[operator]
        if size < 1:
            raise ShapeError(f"{what}: {describe(x)} has one element along axis {axis}: give n, the size of the value")
        x = _sized(x, size // 2 + 1, axis, what)
    return InverseRealFft.make(axis=axis, norm=_norm_of(norm, what), size=size)(x)  # type: ignore[no-any-return]


def _register(name: str, along: Callable[..., Any]) -> None:
    """``np.fft``'s function along one axis."""

    def transform(a: Operand, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
        return along(strong(a, name), n, axis, norm, name)

    transform.__name__ = name
    transform.__doc__ = f"``np.fft.{name}``, as a tree."
    NUMPY_FUNCTIONS[getattr(np.fft, name)] = transform


def _register_many(name: str, transform_of: Callable[..., Any], count: int | None) -> None:
    """``np.fft``'s function along several axes, by default `count`, the last."""
    default = None if count is None else tuple(range(-count, 0))

    def transform(a: Operand, s: Sequence[int] | None = None, axes: Axis = default, norm: str | None = None) -> Any:
        x = strong(a, name)
        return transform_of(x, _axes_of(x, s, axes, name), norm, name)

    transform.__name__ = name
    transform.__doc__ = f"``np.fft.{name}``, as a tree."
    NUMPY_FUNCTIONS[getattr(np.fft, name)] = transform


def _each(op: type[TransformOperator]) -> Callable[..., Any]:
    def transform(x: Variable, axes: Sequence[tuple[int, Any]], norm: str | None, what: str) -> Any:
        # The last axis is last, as its value is contiguous; of equal axes the last one is first, as NumPy's.
        for axis, size in sorted(reversed(axes), key=itemgetter(0)):  # noqa: C414
            x = _along(op, x, size, axis, norm, what)
        return x if axes else f.cast(x, _complex_dtype(x.dtype))

    return transform


def _real_each(x: Variable, axes: Sequence[tuple[int, Any]], norm: str | None, what: str) -> Any:
    if not axes:
        raise ShapeError(f"{what}: there is no axis along which to transform {describe(x)}")
    *others, (last, size) = axes
    others = [(axis, x.shape[axis] if each is None else each) for axis, each in others]  # one may be the last again
    return _each(Fft)(_real_along(x, size, last, norm, what), others, norm, what)


def _inverse_real_each(x: Variable, axes: Sequence[tuple[int, Any]], norm: str | None, what: str) -> Any:
    if not axes:
        raise ShapeError(f"{what}: there is no axis along which to transform {describe(x)}")
    *others, (last, size) = axes
    x = _each(InverseFft)(x, others[::-1], norm, what) if others else x  # NumPy's order
    return _inverse_real_along(x, size, last, norm, what)


_register("fft", lambda x, n, axis, norm, what: _along(Fft, x, n, axis, norm, what))
_register("ifft", lambda x, n, axis, norm, what: _along(InverseFft, x, n, axis, norm, what))
_register("rfft", _real_along)
_register("irfft", _inverse_real_along)
_register(
    "hfft",
    lambda x, n, axis, norm, what: _inverse_real_along(
        f.conjugate(x), n, axis, ADJOINT_NORMS[_norm_of(norm, what)], what
    ),
)
_register(
    "ihfft",
    lambda x, n, axis, norm, what: f.conjugate(_real_along(x, n, axis, ADJOINT_NORMS[_norm_of(norm, what)], what)),
)
for _suffix, _count in (("n", None), ("2", 2)):
    _register_many(f"fft{_suffix}", _each(Fft), _count)
    _register_many(f"ifft{_suffix}", _each(InverseFft), _count)
    _register_many(f"rfft{_suffix}", _real_each, _count)
    _register_many(f"irfft{_suffix}", _inverse_real_each, _count)
