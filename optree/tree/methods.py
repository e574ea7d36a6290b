"""The methods that variables get from definitions: Python's operators, and those of NumPy's arrays."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodDescriptorType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from optree.tree.node import OpTreeNode

#: Methods of NumPy's arrays that work in place, as the functions of their names do not.
IN_PLACE = frozenset(("partition", "sort"))


class Methods:
    """What a variable inherits; here in full for type checkers alone.

    Each op that has an operator puts it on `Variable`. `offer_method` puts
    NumPy's array methods here: ``x.sum(axis=0)`` is ``np.sum(x, axis=0)``.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        all: Callable[..., Any]
        any: Callable[..., Any]
        argmax: Callable[..., Any]
        argmin: Callable[..., Any]
        argsort: Callable[..., Any]
        clip: Callable[..., Any]
        copy: Callable[..., Any]
        cumprod: Callable[..., Any]
        cumsum: Callable[..., Any]
        dot: Callable[..., Any]
        max: Callable[..., Any]
        mean: Callable[..., Any]
        min: Callable[..., Any]
        prod: Callable[..., Any]
        ravel: Callable[..., Any]
        repeat: Callable[..., Any]
        round: Callable[..., Any]
        squeeze: Callable[..., Any]
        std: Callable[..., Any]
        sum: Callable[..., Any]
        swapaxes: Callable[..., Any]
        take: Callable[..., Any]
        var: Callable[..., Any]

        def __add__(self, other: Any) -> OpTreeNode: ...
        def __radd__(self, other: Any) -> OpTreeNode: ...
        def __sub__(self, other: Any) -> OpTreeNode: ...
        def __rsub__(self, other: Any) -> OpTreeNode: ...
        def __mul__(self, other: Any) -> OpTreeNode: ...
        def __rmul__(self, other: Any) -> OpTreeNode: ...
        def __truediv__(self, other: Any) -> OpTreeNode: ...
        def __rtruediv__(self, other: Any) -> OpTreeNode: ...
        def __floordiv__(self, other: Any) -> OpTreeNode: ...
        def __rfloordiv__(self, other: Any) -> OpTreeNode: ...
        def __mod__(self, other: Any) -> OpTreeNode: ...
        def __rmod__(self, other: Any) -> OpTreeNode: ...
        def __pow__(self, other: Any) -> OpTreeNode: ...
        def __rpow__(self, other: Any) -> OpTreeNode: ...
        def __matmul__(self, other: Any) -> OpTreeNode: ...
        def __rmatmul__(self, other: Any) -> OpTreeNode: ...
        def __and__(self, other: Any) -> OpTreeNode: ...
        def __rand__(self, other: Any) -> OpTreeNode: ...
        def __or__(self, other: Any) -> OpTreeNode: ...
        def __ror__(self, other: Any) -> OpTreeNode: ...
        def __xor__(self, other: Any) -> OpTreeNode: ...
        def __rxor__(self, other: Any) -> OpTreeNode: ...
        def __invert__(self) -> OpTreeNode: ...
        def __neg__(self) -> OpTreeNode: ...
        def __abs__(self) -> OpTreeNode: ...
        def __lt__(self, other: Any) -> OpTreeNode: ...
        def __le__(self, other: Any) -> OpTreeNode: ...
        def __gt__(self, other: Any) -> OpTreeNode: ...
        def __ge__(self, other: Any) -> OpTreeNode: ...
        def __eq__(self, other: Any) -> OpTreeNode: ...  # type: ignore[override]
        def __ne__(self, other: Any) -> OpTreeNode: ...  # type: ignore[override]


def offer_method(numpy_function: Any) -> None:
    """Make a method of a NumPy function that stands for a tree, if NumPy's arrays have it as one."""
    name = numpy_function.__name__
    is_method = isinstance(getattr(np.ndarray, name, None), MethodDescriptorType) and name not in IN_PLACE
    if is_method and getattr(np, name, None) is numpy_function:
        setattr(Methods, name, _method(numpy_function))


def _method(numpy_function: Any) -> Callable[..., Any]:
    """NumPy's function as a method: NumPy's protocols bring it here."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return numpy_function(self, *args, **kwargs)

    name = method.__name__ = method.__qualname__ = numpy_function.__name__
    method.__doc__ = f"As ``np.{name}`` of this operand, with the arguments of NumPy's method."
    method.__wrapped__ = numpy_function  # type: ignore[attr-defined]
    return method
