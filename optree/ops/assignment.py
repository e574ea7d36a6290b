"""Assignment, the root of a tree that runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import as_strided

from optree.arrays import Array, overlap, portable
from optree.dtypes import is_bfloat16, rounded
from optree.errors import OperandError, ShapeError, describe
from optree.op.apply import Apply
from optree.op.index_map import BROADCAST, IndexMap
from optree.op.traits import NonDifferentiableOperator
from optree.tree.node import OpDict
from optree.tree.tensor import Tensor
from optree.tree.types import Shape, Spec, TensorType, Type, broadcast, without_lead
from optree.tree.variable import Operand, Variable, for_dtype


class Assign(NonDifferentiableOperator):
    """Writes the second operand's value into the first, a tensor.

    Its node is no operand: it is the root of a tree, and other trees contain its target.

    Examples
    --------
    >>> x = be.zeros(2)
    >>> be.execute(be.assign(x, be.ones(2) * 3)).get()
    array([3., 3.], dtype=float32)
    """

    name: ClassVar[str | None] = "assign"
    operands = ("target", "value")
    __props__ = ()
    destroy_map = {0: [0]}
    takes_complex = True
    raises = False
    index_map = IndexMap(BROADCAST)

    #: Whether nothing reads the target but through the assignment's own value.
    owns_target: ClassVar[bool] = False

    def __call__(self, *inputs: Operand) -> Any:
        if not inputs or not isinstance(inputs[0], Tensor):
            got = describe(inputs[0]) if inputs else "nothing"
            raise OperandError(f"assign: only a tensor can be assigned to, not {got}")
        if len(inputs) == 2:
            inputs = inputs[0], inputs[0].rounded(for_dtype(inputs[1], inputs[0].dtype, "assign"))
        return super().__call__(*inputs)

    def op_dict_of(
        self, entries: dict[str, Any], type: Type, backend: Any, children: int | None, shapes: Sequence[Shape]
    ) -> OpDict:
        op_dict = super().op_dict_of(entries, type, backend, children, shapes)
        op_dict.value_spec = Spec.own(
            type, backend
        )  # differs from the target's, so that no cached application takes the node for an operand
        return op_dict

    def output_shape(self, *shapes: Shape) -> Shape:
        target, value = shapes
        if broadcast(target, without_lead(value, target)) != target:
            raise ShapeError(f"{value} does not broadcast to {target}")
        return target

    def resolve_dtypes(self, *dtypes: Any) -> tuple[np.dtype, ...]:
        target, _ = dtypes
        return target, target, target

    @portable
    def numpy(self, target: Array, value: Array) -> Any:
        """Write the value, which is copied first if it overlaps the target."""
        if value is target:  # it has been computed there
            return target
        # NumPy handles overlap itself, except along a single axis with different strides.
        if not (isinstance(target, np.ndarray) and _copies_in_order(target, value)) and overlap(target, value):
            value = value.copy()
        if isinstance(value, np.generic):  # NumPy refuses scalars out of range, and wraps arrays
            value = np.asarray(value)
        target[...] = rounded(value, target.dtype, copy=False) if is_bfloat16(target.dtype) else value
        return target


class Store(Assign):
    """An assignment as an operand: its value is its target, after the write.

    Its target is a buffer that nothing reads but through this value.
    """

    name = None
    owns_target = True


class Joined(NonDifferentiableOperator):
    """Tensors that are adjacent in memory, as one vector, gaps included: a view of them.

    Its operands are the `Store` of each, so that it is read after all have been written.
    """

    __props__ = ("size", "count")
    takes_complex = True
    size: int = 0
    count: int = 0
    raises = False

    @property
    def view_map(self) -> dict[int | None, list[int]]:  # type: ignore[override]
        return {0: list(range(self.count))}

    def make_node(self, *inputs: Variable) -> Apply:
        return Apply(self, inputs, [TensorType(inputs[0].dtype, (self.size,))()])

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Shape]:
        return [(self.size,)]

    @portable
    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        first = inputs[0]
        if isinstance(first, np.ndarray):
            output_storage[0][0] = as_strided(first, (self.size,), (first.itemsize,), subok=True)
        else:
            output_storage[0][0] = type(first)((self.size,), first.dtype, first.data)


def _copies_in_order(target: np.ndarray, value: Operand) -> bool:
    """Whether NumPy's assignment is right for overlapping arrays."""
    return target.ndim != 1 or not isinstance(value, np.ndarray) or target.strides == value.strides[-1:]
