"""NeonTensor, a tensor that indexes, views and copies as neon's do."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from backends.execution.memory import element_strides
from optree.dtypes import finfo, is_floating
from optree.errors import OperandError, ShapeError, SizeError
from optree.registry import f
from optree.tree.node import OpTreeNode, post_order
from optree.tree.substitution import inputs_of, replace
from optree.tree.tensor import Tensor, is_everything
from optree.tree.types import one_or_many
from optree.tree.variable import Input, Operand, Variable


class Deferred(Input):
    """A leaf that takes the shape of the tensor it is assigned to.

    `build`: a function from the destination to the operand that replaces the leaf.
    """

    def __init__(self, type: Any, build: Any) -> None:
        super().__init__(type, "deferred")
        self.build = build


#: The maximum mantissa bits after stochastic rounding.
MOST_BITS = 15


class NeonTensor(Tensor):
    """A tensor in neon's mode: it has at least two dimensions, is true if it has rows, and accepts user attributes.

    Attributes
    ----------
    rounding : int or bool
        The mantissa bits to which computed values are rounded stochastically when they are written here. True means
        10; as in neon, float16 has at most 10 and float32 at most 15. False or 0: rounding to nearest.
    persist_values : bool
        Whether values persist between passes: always.
    """

    rounding: Any = False
    persist_values: bool = True

    # By the number of rows, as neon's: programs ask whether they have a tensor.
    def __bool__(self) -> bool:
        return self.array.shape[0] != 0

    @property
    def _original_base(self) -> Tensor:
        return self.root

    @property
    def strides(self) -> tuple[int, ...]:
        """The step along each axis, in elements."""
        return element_strides(self.array)

    def raw(self) -> int:
        """The address of the first element."""
        on_device = hasattr(self.array, "__cuda_array_interface__")
        array = self.array.__cuda_array_interface__ if on_device else self.array.__array_interface__
        return int(array["data"][0])

    # Views

    @property
    def T(self) -> Any:
        """The view with the last two axes exchanged; of more than three, all reversed."""
        if self.array.ndim == 3:
            return self._view(f.transpose(self, (0, 2, 1)))
        return self._view(f.transpose(self))

    def transpose(self, *axes: Sequence[int], out: Tensor | None = None) -> Any:
        """`T`, or with axes those; with `out`, written there, which is returned."""
        if axes and isinstance(axes[0], Tensor):
            axes, out = axes[1:], axes[0]
        view = super().transpose(*axes) if axes and axes != (None,) else self.T
        return view if out is None else out._assign(view)

    def reshape(self, *shape: Any) -> Any:
        """A view of another shape; of this tensor's own shape, the tensor itself."""
        wanted = one_or_many(shape)
        wanted = (wanted, 1) if isinstance(wanted, int | np.integer) else tuple(wanted)
        wanted = (*wanted, 1) if len(wanted) == 1 else wanted
        return self if wanted == self.shape else super().reshape(wanted)

    def share(self, shape: Any, dtype: Any = None, name: str | None = None) -> Any:
        """A view of the first elements in another shape, of memory that need not be contiguous.

        Raises
        ------
        ShapeError
            If they are more than the tensor has.
        OperandError
            If the memory cannot be viewed so without a copy.
        """
        sizes = self.backend._shape(shape)
        if prod(sizes) > self.size:
            raise ShapeError(f"share: the shape {sizes} has more elements than {self.label} of shape {self.shape}")
        if sizes == self.shape:
            return self
        rows, rest = divmod(prod(sizes), max(prod(self.shape[1:]), 1))
        try:
            whole = self[: rows + (rest > 0)]  # of the rows alone: all of a part of a matrix are no vector
            view = whole.reshape(1, whole.size)[:, : prod(sizes)].reshape(sizes) if rest else whole.reshape(sizes)
        except ShapeError:
            raise OperandError(
                f"share: the memory of {self.label} of shape {self.shape} is not contiguous, and no view of its first "
                f"elements is of shape {sizes}; x.copy().share(shape) views a copy"
            ) from None
        if name is not None:
            view.name = name
        return view

    def dimension_reorder(self, order: Any) -> Any:
        """The elements, not permuted, in the shape whose sizes are these axes'."""
        return self.reshape([self.shape[axis] for axis in order])

    def __getitem__(self, index: Any) -> Any:
        """A view for integers and slices, of two dimensions at least; a tree of the gathered rows for indices."""
        if is_everything(index):
            return self
        return super().__getitem__(_flat_indices(index))

    def take(self, indices: Any, axis: int | None = None, out: Any = None, **options: Any) -> Any:
        """A tree of the elements at `indices`, whatever their shape; with `out`, written there at once."""
        if isinstance(indices, np.ndarray):
            indices = indices.reshape(-1)
        return super().take(indices, axis, out, **options)

    # Values

    def __setitem__(self, index: Any, value: Any) -> None:
        """Run an expression and write its value here."""
        if self.backend.has_deferred and isinstance(value, Variable):
            value = settled(value, self if is_everything(index) else self[index])
        super().__setitem__(_flat_indices(index), value)

    def rounded(self, value: Any) -> Any:
        """The value to write; a computed value is rounded stochastically to the bits of `rounding`."""
        is_computed = isinstance(value, OpTreeNode | Tensor) and is_floating(value.dtype)
        if not (self.rounding and is_computed and is_floating(self.dtype)):
            return super().rounded(value)
        most = min(finfo(self.dtype).nmant, MOST_BITS)
        bits = min(10 if self.rounding is True else int(self.rounding), most)
        value = value if value.shape == self.shape else f.broadcast_to(value, self.shape)
        return f.stochastic_cast(self.backend.rng_state, value, dtype=self.dtype, bits=bits)

    def _assign(self, source: Any) -> Any:
        self[...] = source
        return self

    def copy(self, source: Operand | None = None) -> Any:
        """Write a value here, and return the tensor; without one, a new tensor of the same values."""
        if source is None or isinstance(source, str):
            return super().copy(source)
        return self._assign(source)

    def copy_from(self, source: Any) -> Any:
        """Write a value or host array here; returns the tensor."""
        if isinstance(source, Tensor) and source.backend is not self.backend:
            source = source.get()
        return self._assign(source) if isinstance(source, Variable) else self.set(source)

    def set(self, values: Any) -> Any:
        """Write an array of as many elements, a vector in any shape; or a number.

        Raises
        ------
        SizeError
            If it has another number of elements.
        """
        if isinstance(values, np.ndarray):
            if values.size != self.size:
                raise SizeError(
                    f"set: an array of shape {values.shape} has not the {self.size} elements of {self.label}"
                )
            self[...] = values.reshape(self.shape) if values.ndim == 1 else values
            return self
        if isinstance(values, int | float | np.generic):
            return self.fill(values)
        return super().set(values)

    def hist(self, tag: object) -> Any:
        """The counts of the exponents of the values, in a row of the backend's histograms (`set_hist_buffers`)."""
        return self.backend.compute_hist(self, tag)


def _flat_indices(index: Any) -> Any:
    """An index whose arrays are 1-D: a column or a row of indices counts as one list."""
    if is_everything(index):
        return index
    entries = index if isinstance(index, tuple) and not isinstance(index, Variable) else (index,)
    if all(entry is None or isinstance(entry, int | slice) for entry in entries):
        return index
    return tuple([_flat(entry) for entry in entries])


def _flat(entry: Any) -> Any:
    if isinstance(entry, Tensor):
        entry = entry.get()
    if isinstance(entry, list | np.ndarray):
        array = np.asarray(entry)
        if array.ndim == 2 and 1 in array.shape and array.dtype.kind in "iu":
            return array.reshape(-1)
    return entry


def settled(tree: Variable, target: Tensor) -> Variable:
    """A tree whose deferred leaves have the shape of the tensor that it is assigned to."""
    leaves = [x for x in post_order([tree], inputs_of) if isinstance(x, Deferred)]
    (found,) = replace([tree], {leaf: leaf.build(target) for leaf in leaves})
    return found
