"""vmap: a function of one example as a function of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

from optree.errors import BatchingError, OperandError, ShapeError, clock, describe
from optree.op.batching import batched_trees, spread
from optree.records import NamedTuple
from optree.registry import f
from optree.run.jit import is_argument, mapped
from optree.tree.lazy import LazyValue
from optree.tree.types import Spec, TensorType, normalise_axis
from optree.tree.variable import Input, Variable, is_neon, variable_of


def vmap(function: Callable[..., Any], in_axes: object = 0, out_axes: object = 0) -> Vmapped:
    """A function of one example as a function of a batch: of trees, to trees.

    The function is called once, on operands that stand for one example; each op of the trees that it returns is then
    applied to all examples together. So products of matrices become products of stacks of them, or a single larger
    one, and nothing loops over examples, but for the ops named in Notes.

    Parameters
    ----------
    function : callable
        Of trees, tensors or arrays, or lists, tuples and dicts of them, to the same. What it reads beside its arguments
        is the same for all examples.
    in_axes : int, None, or tuple or list of them
        The axis of each positional argument that counts examples; None for an argument that is the same for all.
        One number or None serves all arguments. An argument of nested lists, tuples and dicts takes one number
        or None for all that is in it, or nested ones alike. Keyword arguments have axis 0. Python numbers,
        strings and None are the same for all.
    out_axes : int, None, or nested as what the function returns
        The axis of examples in each value; None for a value that is the same for all examples.

    Returns
    -------
    Vmapped

    Raises
    ------
    ShapeError
        By its call, if arguments have no such axis, or have not the same number of examples.
    BatchingError
        By its call, if an op has no batching rule; a value is different for each example, where `out_axes` is None.

    Notes
    -----
    Random numbers that the function draws are drawn anew for each example; numbers that were drawn before are the same
    for all. A value that depends on no example is repeated.

    These apply to one example after another, in a loop (`scan`): convolutions by weights that differ between examples,
    the gradients of convolutions by their weights, tables of `embedding`, `interp`, `isin` and `searchsorted` that
    differ between examples, histograms, regions of interest, `nms`, and reductions of segments that differ.

    Examples
    --------
    >>> from optree.autodiff.api import grad
    >>> x, w = be.array([[1.0, 2.0], [3.0, 4.0]]), be.array([1.0, -1.0])
    >>> vmap(lambda row: be.sum(row * w, keepdims=False))(x).asnumpyarray()
    array([-1., -1.], dtype=float32)
    >>> def slope(row, w):  # the gradient of each example's loss
    ...     return grad(be.sum(be.square(row * w)), w)
    >>> vmap(slope, in_axes=(0, None))(x, w).asnumpyarray()
    array([[  2.,  -8.],
           [ 18., -32.]], dtype=float32)
    """
    return Vmapped(function, in_axes, out_axes)


class _Argument(NamedTuple):
    """An array among the arguments, by its name; `axis` counts its examples."""

    name: str
    value: Any
    axis: Any


class Vmapped:
    """A function of `vmap`."""

    def __init__(self, function: Callable[..., Any], in_axes: object = 0, out_axes: object = 0) -> None:
        if not callable(function):
            raise OperandError(f"vmap: a function is wanted, not {describe(function)}")
        update_wrapper(self, function)
        self._function, self._in_axes, self._out_axes = function, in_axes, out_axes
        self._name = f"vmap of {getattr(function, '__name__', type(function).__name__)}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The trees of a batch."""
        arguments: list[_Argument] = []
        axes = self._in_axes
        if not isinstance(axes, list | tuple):
            axes = [axes] * len(args)
        elif len(axes) != len(args):
            raise OperandError(f"{self._name}: in_axes has {len(axes)} axes for {len(args)} positional arguments")
        given = [(f"argument {i}", x, axis) for i, (x, axis) in enumerate(zip(args, axes, strict=True))]
        given += [(name, x, 0) for name, x in kwargs.items()]
        for name, x, axis in given:
            self._collect(name, x, axis, arguments)
        examples, batches = self._examples(arguments)
        clock[0] += 1  # what is built from here on is the function's
        since = clock[0]
        rest = iter(examples)
        traced = [mapped(lambda x: next(rest) if is_argument(x) else x, x) for _, x, _ in given]
        returned = self._function(*traced[: len(args)], **dict(zip(kwargs, traced[len(args) :], strict=True)))
        return self._returned(returned, dict(batches), since)

    def __repr__(self) -> str:
        return f"<{self._name}>"

    def _collect(self, name: str, value: Any, axis: Any, found: list[_Argument]) -> None:
        """Append the arrays of an argument, each with its axis of examples."""

        def leaf(x: object, axis: object) -> None:
            if not is_argument(x):
                return
            if not (axis is None or (hasattr(axis, "__index__") and not isinstance(axis, bool))):
                raise OperandError(f"{self._name}: in_axes has {axis!r} for {name}, and an axis is an integer or None")
            operand = variable_of(x.tree if isinstance(x, LazyValue) else x, self._name)
            if is_neon(operand.backend):
                raise BatchingError(
                    f"{self._name}: {describe(operand)} is of a backend in neon's mode, which has no vmap"
                )
            if axis is not None:
                if not operand.ndim:
                    raise ShapeError(
                        f"{self._name}: {name}, {describe(operand)}, has no axis of examples; in_axes=None is for an "
                        "argument that is the same for all"
                    )
                axis = normalise_axis(axis, operand.ndim, f"{self._name}: {name}")
            found.append(_Argument(name, operand, axis))

        _paired(leaf, value, axis, f"{self._name}: in_axes of {name}")

    def _examples(self, arguments: Sequence[_Argument]) -> tuple[list[Variable], list[tuple[Any, Variable]]]:
        """The operands that the function is called on, and pairs of those for one example with those of a batch."""
        moving = [x for x in arguments if x.axis is not None]
        if not moving:
            raise OperandError(
                f"{self._name}: no argument has an axis of examples; in_axes gives one of an array at least"
            )
        first = next((x for x in moving if x.value.shape[x.axis] is not None), moving[0])
        examples, pairs = [], []
        for x in arguments:
            if x.axis is None:
                examples.append(x.value)
                continue
            size, wanted = x.value.shape[x.axis], first.value.shape[first.axis]
            if None not in (size, wanted) and size != wanted:
                raise ShapeError(
                    f"{self._name}: {x.name}, {describe(x.value)}, has {size} examples along axis {x.axis}, and "
                    f"{first.name}, {describe(first.value)}, has {wanted} along axis {first.axis}"
                )
            batch = f.moveaxis(x.value, x.axis, 0) if x.axis else x.value
            example = Input(TensorType(x.value.dtype, batch.shape[1:]), x.name)
            example.spec = Spec(example.type, x.value.backend)
            examples.append(example)
            pairs.append((example, batch))
        return examples, pairs

    def _returned(self, returned: object, batches: dict[Any, Variable], since: int) -> Any:
        """The value that the function returned for an example, for the batch."""
        roots: list[Variable] = []
        axes: list[Any] = []

        def leaf(x: object, axis: object) -> None:
            if x is None:
                return
            try:
                roots.append(variable_of(x, self._name))
            except OperandError as error:
                raise OperandError(
                    f"{self._name}: it returns {describe(x)}, and vmap takes trees, arrays and numbers, lists, tuples "
                    "and dicts of them, and None"
                ) from error
            axes.append(axis)

        _paired(leaf, returned, self._out_axes, f"{self._name}: out_axes")
        batch = next(iter(batches.values()))
        found = iter(
            [
                self._placed(x, is_batched, axis, batch)
                for (x, is_batched), axis in zip(batched_trees(roots, batches, since), axes, strict=True)
            ]
        )
        return mapped(lambda x: x if x is None else next(found), returned)

    def _placed(self, x: Variable, is_batched: bool, axis: object, batch: Variable) -> Variable:
        """A value with its axis of examples in place."""
        if axis is None:
            if is_batched:
                raise BatchingError(f"{self._name}: out_axes is None for a value that is different for each example")
            return x
        x = x if is_batched else spread(x, batch)
        to = normalise_axis(axis, x.ndim, f"{self._name}: out_axes")
        return f.moveaxis(x, 0, to) if to else x


def _paired(leaf: Callable[[Any, Any], None], value: object, axes: object, what: str) -> None:
    """Call a function on all that is in nested lists, tuples and dicts, and the axis of each.

    It raises OperandError if the axes are nested otherwise than the value.
    """
    if isinstance(value, Variable) or not isinstance(value, list | tuple | dict):
        leaf(value, axes)
        return
    parts = value if isinstance(value, dict) else dict(enumerate(value))
    if isinstance(axes, list | tuple | dict):
        own = axes if isinstance(axes, dict) else dict(enumerate(axes))
        if own.keys() != parts.keys():
            raise OperandError(f"{what}: {axes!r} is not nested as the value is")
    else:
        own = dict.fromkeys(parts, axes)
    for key, part in parts.items():
        _paired(leaf, part, own[key], what)
