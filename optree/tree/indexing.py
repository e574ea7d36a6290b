"""Index expressions in a normal form that can be compared and hashed.

An index has two parts: a template, which is a parameter of an op, and the integer
arrays in it, which are operands and have values only at run time.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import NoneType
from typing import Any

import numpy as np

from optree.arrays import check_unmasked, is_any, is_foreign, on_host
from optree.cache import Cache
from optree.errors import AxisError, DTypeError, OperandError, brief
from optree.tree.types import Shape, broadcast
from optree.tree.variable import Variable

#: The entry of an integer array in a template.
ARRAY = "array"

#: For each axis an int, a slice as (start, stop, step), None for a new axis, or `ARRAY`.
Template = tuple[Any, ...]

#: All of an axis.
EVERYTHING = (None, None, None)

#: The classes of a slice's start, stop and step in a `plain_key`.
_ENDS = (int, NoneType)

#: Maximum entries of the cache from specs and indices to the ops of slices.
SLICES = 4096

_slices = Cache("slices by index", SLICES)

#: The classes of the entries of basic indices.
_BASIC = (int, slice, type(None), type(Ellipsis))


def parse(index: object, shape: Shape, what: str) -> tuple[Template, list[Any]]:
    """A NumPy-style index of an operand of this shape, as a template and the integer arrays in it.

    A boolean NumPy array becomes the integer arrays of ``nonzero``. An operand of
    integers stays an operand, also where it has no dimensions.

    Raises AxisError if there are more indices than axes, an integer is out of range, or a mask is not of its axes'
    size. The values of operands are checked at run time.
    Raises DTypeError if an index array is not of integers or bools.
    Raises OperandError if an index is of a type that cannot be one.
    """
    given = index if isinstance(index, tuple) and not isinstance(index, Variable) else (index,)
    entries = [as_array(entry, what) for entry in given]
    entries = _fill(entries, [_width(entry) for entry in entries], shape, what)
    template: list[Any] = []
    arrays: list[Any] = []
    axis = 0
    for entry in entries:
        if isinstance(entry, Variable) or (isinstance(entry, np.ndarray) and entry.ndim):
            parts = _integer_arrays(entry, shape, axis, what)
            arrays.extend(parts)
            template.extend([ARRAY] * len(parts))
        else:
            template.append(_plain(entry, what))
        axis += _width(entry)
    _check_integers(template, shape, what)
    return tuple(template), arrays


def plain_key(index: object) -> Any:
    """A key, for caches, of an index of integers, slices, None and an ellipsis; None of any other."""
    key = []
    for entry in index if index.__class__ is tuple else (index,):
        kind = entry.__class__
        if kind is slice:
            start, stop, step = entry.start, entry.stop, entry.step
            if not (start.__class__ in _ENDS and stop.__class__ in _ENDS and step.__class__ in _ENDS):
                return None
            key.append((start, stop, step))
        elif kind is int or entry is None or entry is Ellipsis:
            key.append(entry)
        else:
            return None
    return tuple(key)


def known_slice(spec: object, index: object) -> Any:
    """The op_dict of the part at an index that operands of this spec have had before; None if there is none."""
    key = plain_key(index)
    return None if key is None else _slices.get((spec, key))


def remember_slice(spec: object, index: object, op_dict: object) -> None:
    """Cache the op_dict of the part at an index of operands of this spec."""
    key = plain_key(index)
    if key is not None:
        _slices[spec, key] = op_dict


def as_template(index: object, shape: Shape, what: str) -> Template:
    """The template, one entry for each axis, of a template or of a NumPy-style index without arrays.

    It raises AxisError, OperandError, as `parse` does.
    """
    given = index if isinstance(index, tuple) else (index,)
    entries = _fill(list(given), [_width(entry) for entry in given], shape, what)
    template = tuple(entry if isinstance(entry, str) and entry == ARRAY else _plain(entry, what) for entry in entries)
    _check_integers(template, shape, what)
    return template


def as_array(entry: Any, what: str) -> Any:
    """A list or tuple of indices converted to an array, and an array of `optree.xp` to its operand; all else unchanged.

    It raises OperandError if its rows are not equally long, the index is a single bool, or it is masked.
    """
    if entry.__class__ not in _BASIC:
        if hasattr(type(entry), "__optree__") and entry.ndim:
            return entry.get() if entry.dtype.kind == "b" else entry.__optree__()
        entry = on_host(entry, what) if is_foreign(entry) else entry
    check_unmasked(entry, what)
    if isinstance(entry, list | tuple) and not isinstance(entry, Variable):
        try:
            array = np.asarray(entry)
        except ValueError:
            raise OperandError(f"{what}: {brief(entry)} is no array of integers") from None
        return array if array.size else array.astype(np.int64)
    if isinstance(entry, bool | np.bool_) or (
        isinstance(entry, np.ndarray) and entry.shape == () and entry.dtype == bool
    ):
        raise OperandError(f"{what}: a mask has a dimension at least; be.where(mask, value, x) takes a single bool")
    return entry


def _width(entry: object) -> int:
    """The number of axes that an index consumes."""
    if entry is None or entry is Ellipsis:
        return 0
    return entry.ndim if isinstance(entry, np.ndarray) and entry.dtype.kind == "b" else 1


def _fill(entries: list[Any], widths: Sequence[int], shape: Shape, what: str) -> list[Any]:
    """The entries with the ellipsis, or else the end, expanded to whole axes."""
    used = sum(widths)
    if used > len(shape):
        raise AxisError(f"{what}: {used} indices for {len(shape)} dimensions of shape {shape}")
    found = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if len(found) > 1:
        raise AxisError(f"{what}: an index has at most one ellipsis")
    at = found[0] if found else len(entries)
    return entries[:at] + [EVERYTHING] * (len(shape) - used) + entries[at + 1 :]


def _plain(entry: object, what: str) -> Any:
    """A basic index (an integer, slice or None) in normal form."""
    if entry is None:
        return entry
    if isinstance(entry, slice):
        entry = entry.start, entry.stop, entry.step
    if not isinstance(entry, tuple):
        return _integer(entry, what)
    if len(entry) != 3:
        raise OperandError(f"{what}: a slice is (start, stop, step), not {brief(entry)}")
    start, stop, step = (None if part is None else _integer(part, what) for part in entry)
    if step == 0:
        raise OperandError(f"{what}: a slice's step cannot be 0")
    return start, stop, step


def _integer(value: Any, what: str) -> int:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise OperandError(
            f"{what}: an index is an integer, a slice, None, ... or an array, not {brief(value)}"
        ) from None


def _integer_arrays(entry: Any, shape: Shape, axis: int, what: str) -> list[Any]:
    """The integer arrays of an index array: itself, range-checked, or a mask's ``nonzero``."""
    if entry.dtype.kind in "iu":
        if isinstance(entry, np.ndarray):
            check_range(entry, shape[axis], axis, what)
        return [entry]
    if entry.dtype.kind != "b":
        raise DTypeError(
            f"{what}: an index array holds integers or bools, not {entry.dtype}; x.astype('int64') makes integers of it"
        )
    if isinstance(entry, Variable):
        raise OperandError(
            f"{what}: how much a mask on a backend selects is known only when it has run; "
            "use be.where(mask, x, other), or mask.asnumpyarray()"
        )
    for i, (size, wanted) in enumerate(zip(entry.shape, shape[axis:], strict=False)):
        if wanted not in (size, None):
            raise AxisError(f"{what}: a mask of size {size} does not fit axis {axis + i} of size {wanted}")
    return list(np.nonzero(entry))


def check_range(values: Any, size: int | None, axis: int, what: str) -> None:
    """Refuse an integer, or an array of them, that is out of range for an axis of this size.

    It raises AxisError, naming the first that is.
    """
    if size is None:
        return
    if isinstance(values, int):
        wrong: Any = [] if -size <= values < size else [values]
    else:
        if isinstance(values, np.ndarray) and values.size and -size <= values.min() and values.max() < size:
            return  # two reductions, which write nothing
        values = values.reshape(-1)
        outside = (values < -size) | (values >= size)
        wrong = values[outside] if is_any(outside) else []
    if len(wrong):
        raise AxisError(f"{what}: index {wrong[0]} is out of range for axis {axis} of size {size}")


def _check_integers(template: Sequence[Any], shape: Shape, what: str) -> None:
    axis = 0
    for entry in template:
        if isinstance(entry, int):
            check_range(entry, shape[axis], axis, what)
        axis += entry is not None


def keep_axes(template: Template) -> Template:
    """The template with each integer replaced by a slice of length one, so that no axis is dropped."""
    return tuple((e, e + 1 or None, None) if isinstance(e, int) else e for e in template)


def keep_two_axes(template: Template) -> Template:
    """The template of an index without arrays, whose last integers keep their axes where fewer than two would stay."""
    missing = 2 - sum(not isinstance(entry, int) for entry in template)
    kept = [i for i, entry in enumerate(template) if isinstance(entry, int)]
    kept = kept[-missing:] if missing > 0 else []
    return tuple((e, e + 1 or None, None) if i in kept else e for i, e in enumerate(template))  # type: ignore[operator]


def to_numpy(template: Template, arrays: Any = ()) -> tuple[Any, ...]:
    """The template as an index of NumPy arrays."""
    rest = iter(arrays)
    return tuple(
        next(rest) if isinstance(entry, str) else slice(*entry) if isinstance(entry, tuple) else entry
        for entry in template
    )


def shape_of(template: Template, shape: Shape, array_shapes: Sequence[Shape] = ()) -> Shape:
    """The shape of an operand of this shape indexed by the template; ShapeError if the index arrays do not broadcast.

    As in NumPy, adjacent index arrays put their broadcast axes in their own position, others in
    front; integers count as index arrays.
    """
    sizes: list[int | None] = []
    axis = 0
    for entry in template:
        if entry is None:
            sizes.append(1)
            continue
        if isinstance(entry, tuple):
            size = shape[axis]
            sizes.append(None if size is None else len(range(*slice(*entry).indices(size))))
        axis += 1
    start = axis_of_arrays(template)
    return (*sizes[:start], *broadcast(*array_shapes), *sizes[start:])


def axis_of_arrays(template: Template) -> int:
    """The axis of the value at which the index arrays' broadcast axes begin."""
    advanced = [i for i, entry in enumerate(template) if isinstance(entry, int | str)]
    if not advanced or not are_adjacent(template):
        return 0
    return advanced[0]


def are_adjacent(template: Template) -> bool:
    """Whether index arrays, and integers, which count as such, are next to each other."""
    advanced = [i for i, entry in enumerate(template) if isinstance(entry, int | str)]
    return not advanced or advanced[-1] - advanced[0] == len(advanced) - 1
