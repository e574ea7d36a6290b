"""Graphs that are being written: their nodes, initializers and names."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from onnx import helper, numpy_helper

from optree.errors import ExportError, describe
from optree.records import NamedTuple
from optree.tree.tensor import Tensor
from optree.tree.variable import Constant, as_variable


class Value(NamedTuple):
    """A value of a graph: a name, or a Python number, which takes the dtype of what it meets."""

    name: Any
    type: Any
    number: bool | int | float | None = None

    @property
    def kind(self) -> Any:
        """The dtype for promotion; `int` or `float` for a number."""
        return self.type.dtype if self.number is None or isinstance(self.number, bool) else type(self.number)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes, None for one that is open."""
        found: tuple[int, ...] = self.type.shape
        return found


class Graph:
    """The nodes and initializers of a graph that is being written.

    `nodes`, `initializers`: list.
    """

    def __init__(self, outer: Graph | None = None) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = [] if outer is None else outer.initializers
        self._names: set[str] = set() if outer is None else outer._names
        self._constants: dict[Any, str] = {} if outer is None else outer._constants

    def unique(self, name: str) -> str:
        """A name that no other value has."""
        found, count = name, 1
        while found in self._names:
            found, count = f"{name}_{count}", count + 1
        self._names.add(found)
        return found

    def leaf(self, leaf: object) -> Value:
        """A number, or an initializer of a tensor or constant."""
        number = leaf.value if isinstance(leaf, Constant) and leaf.is_weak else leaf
        if isinstance(number, bool | int | float):
            return Value(None, as_variable(number).type, number)
        if isinstance(leaf, Constant):
            return Value(self.constant(leaf.value), leaf.type)
        if not isinstance(leaf, Tensor):
            raise ExportError(f"onnx.save: {describe(leaf)} is no tensor")
        name = self.unique(leaf.name or "tensor")
        self.initializers.append(numpy_helper.from_array(np.asarray(leaf.get(), order="C"), name))
        return Value(name, leaf.type)

    def constant(self, value: object, dtype: DTypeLike | None = None) -> str:
        """The name of an initializer."""
        array = np.asarray(value, dtype, order="C")
        key = array.tobytes(), array.shape, array.dtype
        if key not in self._constants:
            self._constants[key] = self.unique(f"constant{len(self._constants)}")
            self.initializers.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def integers(self, *values: int) -> str:
        """The name of a vector of integers."""
        return self.constant(values, np.int64)

    def name(self, value: Value, dtype: DTypeLike | None = None) -> str:
        """The name of a value, in a dtype."""
        wanted = value.type.dtype if dtype is None else np.dtype(dtype)
        if value.number is not None:
            return self.constant(value.number, wanted)
        found: str = value.name
        return found if wanted == value.type.dtype else self.cast(found, wanted)

    def cast(self, name: str, dtype: DTypeLike) -> str:
        """A value in another dtype."""
        return self.add("Cast", name, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def shape(self, value: Value, *axes: int) -> str:
        """The sizes of a value, or of some axes, as a vector."""
        sizes = [value.shape[axis] for axis in axes] if axes else value.shape
        if None not in sizes:
            return self.integers(*sizes)
        whole = self.add("Shape", self.name(value))
        return self.add("Gather", whole, self.integers(*axes), axis=0) if axes else whole

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """The name of the output of a new node; a list of names for several."""
        names = [self.unique(operator.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, name=names[0], **attributes))
        return names[0] if outputs == 1 else names
