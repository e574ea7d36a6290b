"""Ops and types in the style of the documents, that several tests use."""

from __future__ import annotations

from typing import Any

from optree import Apply, Constant, Op, Type


class Double(Type):
    """Python floats."""

    def filter(self, value: Any, strict: bool = False, allow_downcast: bool | None = None) -> Any:
        if strict and not isinstance(value, float):
            raise TypeError(f"a float is wanted, not {value!r}")
        if not allow_downcast and float(value) != value:
            raise TypeError(f"{value!r} is no double without loss")
        return float(value)

    def __str__(self) -> str:
        return "double"


double = Double()


class DoubleOp(Op):
    """A function of any number of doubles."""

    __props__ = ("name", "fn", "count")

    def __init__(self, name: str, fn: Any, count: int) -> None:
        self.name, self.fn, self.count = name, fn, count

    def make_node(self, *inputs: Any) -> Apply:
        if len(inputs) != self.count:
            raise TypeError(f"{self.name} takes {self.count} doubles")
        return Apply(self, [Constant(double, x) if isinstance(x, int | float) else x for x in inputs], [double()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = self.fn(*inputs)

    def __str__(self) -> str:
        return self.name
