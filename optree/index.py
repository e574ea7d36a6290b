"""Index expressions in a normal form that can be compared and hashed."""

from __future__ import annotations

from typing import Any

import numpy as np

from optree.errors import AxisError, OperandError
from optree.types import Shape
from optree.variable import Variable

#: Stands in a template where an integer array goes.
ARRAY = "array"

#: For each axis an int, a slice as (start, stop, step), None for a new axis, or `ARRAY`.
Template = tuple[Any, ...]


def parse(index: Any, shape: Shape, what: str) -> tuple[Template, list[Any]]:
    """An index of an operand of this shape as a template and the integer arrays that go into it.

    A boolean NumPy array becomes the integer arrays of its true places.

    Raises
    ------
    AxisError
        If there are more indices than axes, or an integer is out of range.
    OperandError
        If an index is of a type that cannot be one.
    """
    given = list(index) if isinstance(index, tuple) and not isinstance(index, Variable) else [index]
    entries: list[Any] = []
    arrays: list[Any] = []
    for entry in given:
        if isinstance(entry, list):
            entry = np.asarray(entry) if entry else np.zeros(0, np.int64)
        if isinstance(entry, Variable | np.ndarray) and entry.ndim > 0:
            parts = _integer_arrays(entry, what)
            arrays.extend(parts)
            entries.extend([ARRAY] * len(parts))
        else:
            entries.append(_plain(entry, what))
    return _complete(entries, shape, what), arrays


def _plain(entry: Any, what: str) -> Any:
    if entry is None or entry is Ellipsis:
        return entry
    if isinstance(entry, slice):
        return tuple(None if part is None else _integer(part, what) for part in (entry.start, entry.stop, entry.step))
    return _integer(entry, what)


def _integer(value: Any, what: str) -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise OperandError(f"{what}: an index is an integer, a slice, None, ... or an array, not {value!r}")
    return int(value.__index__())


def _integer_arrays(entry: Any, what: str) -> list[Any]:
    if entry.dtype.kind in "iu":
        return [entry]
    if entry.dtype.kind != "b":
        raise OperandError(f"{what}: an index array holds integers or bools, not {entry.dtype}")
    if isinstance(entry, Variable):
        raise OperandError(
            f"{what}: how much a mask on a backend selects is known only when it has run; "
            "use be.where(mask, x, other), or mask.asnumpyarray()"
        )
    return list(np.nonzero(entry))


def _complete(entries: list[Any], shape: Shape, what: str) -> Template:
    """The entries, one for each axis, an ellipsis written out; integers checked."""
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if used > len(shape):
        raise AxisError(f"{what}: {used} indices for {len(shape)} dimensions of shape {shape}")
    if sum(entry is Ellipsis for entry in entries) > 1:
        raise AxisError(f"{what}: an index has at most one ellipsis")
    place = next((i for i, entry in enumerate(entries) if entry is Ellipsis), len(entries))
    everything = [(None, None, None)] * (len(shape) - used)
    template = tuple(entries[:place] + everything + entries[place + 1 :])
    axis = 0
    for entry in template:
        size = shape[axis] if entry is not None else None
        if isinstance(entry, int) and size is not None and not -size <= entry < size:
            raise AxisError(f"{what}: index {entry} is out of range for axis {axis} of size {size}")
        axis += entry is not None
    return template


def is_everything(index: Any) -> bool:
    """Whether an index is ``[:]`` or ``[...]``."""
    if index is Ellipsis:
        return True
    return type(index) is slice and index.start is None and index.stop is None and index.step is None


def keep_axes(template: Template) -> Template:
    """The template with each integer as a slice of one, so that no axis is dropped."""
    return tuple((e, e + 1 or None, None) if isinstance(e, int) else e for e in template)


def to_numpy(template: Template, arrays: Any = ()) -> tuple[Any, ...]:
    """The template as an index of NumPy arrays."""
    rest = iter(arrays)
    return tuple(
        next(rest) if entry == ARRAY else slice(*entry) if isinstance(entry, tuple) else entry for entry in template
    )


def shape_of(template: Template, shape: Shape, array_shapes: Any = ()) -> Shape:
    """The shape of an operand of this shape indexed by the template."""
    probe = np.broadcast_to(np.empty((), bool), shape)  # type: ignore[arg-type]
    arrays = [np.broadcast_to(np.zeros((), np.int64), s) for s in array_shapes]
    if not any(entry == ARRAY for entry in template):
        return probe[to_numpy(template)].shape
    # An array index is checked when it runs, and index 0 may not exist here.
    sized = np.broadcast_to(np.empty((), bool), tuple(max(n, 1) for n in shape))  # type: ignore[type-var]
    return sized[to_numpy(template, arrays)].shape
