"""Batching rules: trees of one example as trees of a batch of them, for `optree.vmap`.

Each op has its rule, `Op.batch`, which is given the op's operands, some of them with an axis of examples
in front, and returns the value with that axis in front. This module has the parts of such rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optree.errors import BatchingError, DefinitionError, describe
from optree.op.index_map import IndexMap
from optree.registry import f
from optree.tree.node import OpTreeNode, post_order
from optree.tree.substitution import inputs_of
from optree.tree.types import TensorType, TupleType
from optree.tree.variable import Operand, Variable, as_variable


def example_rank(x: Operand, is_batched: bool) -> int:
    """The number of dimensions of an operand's examples."""
    return as_variable(x).ndim - is_batched


def numbers_of(x: Variable) -> Variable:
    """The number of each example of a batch: a vector, of whose operand only the shape is used."""
    return f.flat_indices(x if x.ndim == 1 else f.sum(x, axis=tuple(range(1, x.ndim)), keepdims=False))


def example_of(x: Variable) -> Variable:
    """An operand of the shape of one example of a batch, for ops that use its shape alone."""
    return f.sum(x, axis=0, keepdims=False)


def of_batch_shape(batch: Variable, example: Variable) -> Variable:
    """An operand of the shape of a batch of such examples, for ops that use its shape alone."""
    rows = numbers_of(batch)
    column = f.expand_dims(rows, tuple(range(1, example.ndim + 1))) if example.ndim else rows
    return column + f.expand_dims(f.flat_indices(example), 0)


def spread(x: Operand, batch: Variable) -> Variable:
    """An operand that is the same for all examples, repeated for each of a batch."""
    x = as_variable(x)
    return f.broadcast_like(f.expand_dims(x, 0), of_batch_shape(batch, x))


def first_batch(inputs: Sequence[Any], batched: Sequence[bool]) -> Variable:
    """An operand that has an axis of examples."""
    return next(x for x, is_batched in zip(inputs, batched, strict=True) if is_batched)


def spread_all(inputs: Sequence[Any], batched: Sequence[bool], count: int | None = None) -> list[Any]:
    """Operands, or the first `count` of them, with an axis of examples each."""
    batch = first_batch(inputs, batched)
    pairs = list(zip(inputs, batched, strict=True))[:count]
    return [x if is_batched else spread(x, batch) for x, is_batched in pairs]


def aligned(inputs: Sequence[Any], batched: Sequence[bool], ndim: int = 0) -> list[Any]:
    """Operands whose examples broadcast together, as examples of `ndim` dimensions at least: new axes follow the first.

    Without an axis of examples, one broadcasts as it is.
    """
    ranks = [example_rank(x, is_batched) for x, is_batched in zip(inputs, batched, strict=True)]
    most = max([*ranks, ndim])
    return [
        f.expand_dims(x, tuple(range(1, 1 + most - rank))) if is_batched and rank < most else x
        for x, rank, is_batched in zip(inputs, ranks, batched, strict=True)
    ]


def shifted(axis: Any) -> Any:
    """Non-negative axes of an example as those of a batch."""
    return tuple(i + 1 for i in axis) if isinstance(axis, tuple) else axis + 1


def outputs_of(op: Any, inputs: Sequence[Any]) -> Any:
    """The value of an op, or the list of all its values."""
    if not op.makes_nodes():
        return op(*inputs)
    outputs = op.make_node(*map(as_variable, inputs)).outputs
    return outputs[0] if len(outputs) == 1 else outputs


def by_index_map(op: Any, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
    """The batching rule that follows from an op's index map.

    Raises BatchingError if none does.
    """
    reads = op.index_map if not op.destroy_map else IndexMap()
    if reads.broadcasts and not reads.shape_only:
        return op(*aligned(inputs, batched))
    if reads.is_stacked:
        return outputs_of(op, spread_all(inputs, batched))
    if reads.is_of_each:  # all examples' elements together, where the other operands are the same for all
        others = [each for n, each in enumerate(batched) if n != reads.shape_of]
        return in_loop(op, inputs, batched) if any(others) else op(*inputs)
    if all(n in reads.shape_only or not is_batched for n, is_batched in enumerate(batched)):  # one for all examples
        examples = [example_of(x) if is_batched else x for x, is_batched in zip(inputs, batched, strict=True)]
        return spread(op(*examples), first_batch(inputs, batched))
    raise BatchingError(
        f"vmap: {op} has no batching rule; write batch(self, inputs, batched) in {type(op).__name__}, or "
        "batch = Op.batch_in_loop, which applies it to one example after another"
    )


def by_axis(op: Any, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
    """A batching rule of ops along `axis`, non-negative or None for all, whose operands' axes are aligned."""
    given = spread_all(inputs, batched)
    given = aligned(given, [True] * len(given))
    axis = tuple(range(given[0].ndim - 1)) if op.axis is None else op.axis
    return op.with_props(axis=shifted(axis))(*given)


def in_loop(op: object, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
    """An op applied to one example after another, by `scan`: right for any op that overwrites nothing."""

    def step(_: object, examples: Sequence[Variable]) -> Any:
        rest = iter(examples)
        pairs = zip(inputs, batched, strict=True)
        return (), outputs_of(op, [next(rest) if is_batched else x for x, is_batched in pairs])

    moving = tuple(x for x, is_batched in zip(inputs, batched, strict=True) if is_batched)
    return f.scan(step, (), moving)[1]


def with_images(
    op: Any, inputs: Sequence[Any], batched: Sequence[bool], axes: Sequence[int | None], axis: int | None
) -> Any:
    """An op on images, applied to the images of all examples together.

    `axes`: the axis that counts images in each operand's examples; None of an operand for all images.
    `axis`: that of the value's examples. Where it is None, or an operand for all images differs between examples, one
    example follows another.
    """
    if axis is None or any(at is None and is_batched for at, is_batched in zip(axes, batched, strict=True)):
        return in_loop(op, inputs, batched)
    batch = first_batch(inputs, batched)
    given: list[Any] = []
    numbers: Any = None  # of the shape (examples, images)
    for x, at, is_batched in zip(inputs, axes, batched, strict=True):
        if at is None:
            given.append(x)
            continue
        moved = f.moveaxis(x if is_batched else spread(x, batch), 0, at)
        others = tuple(i for i in range(moved.ndim) if i not in (at, at + 1))
        numbers = f.flat_indices(f.sum(moved, axis=others, keepdims=False))
        given.append(_with_axes(moved, (at, at + 1), f.reshape(numbers, (-1,)), at))
    return f.moveaxis(_with_axes(op(*given), (axis,), numbers, axis), axis, 0)


def _with_axes(x: Variable, axes: tuple[int, ...], rows: Variable, at: int) -> Variable:
    """An operand reshaped: `axes` are replaced by those of `rows`, at `at`; any sizes may be unknown."""
    rest = f.flat_indices(f.sum(x, axis=axes, keepdims=False))
    own = range(at, at + rows.ndim)
    others = tuple(i for i in range(rest.ndim + rows.ndim) if i not in own)
    return f.reshape_like(x, f.expand_dims(rows, others) + f.expand_dims(rest, tuple(own)))


def batched_trees(
    roots: Sequence[Any], given: Mapping[Any, Variable], since: int | None = None
) -> list[tuple[Any, bool]]:
    """Trees of one example as trees of a batch, each with whether it has an axis of examples, in front.

    `given`: from operands of the trees, found by identity, to those that have an axis of examples in front.
    `since`: the time of `errors.clock` from which on a draw of random numbers is part of the example, so that each has
    its own. Earlier ones are drawn once, for all examples.

    Raises BatchingError if an op has no batching rule.
    Raises DefinitionError if an op's rule gives a value of another type.
    """
    found: dict[int, Any] = {id(x): y for x, y in given.items()}
    batch = next(iter(given.values()))
    for entry in post_order(list(roots), inputs_of):
        if id(entry) in found or not isinstance(entry, OpTreeNode):
            continue
        operands = inputs_of(entry)
        batched = [id(x) in found for x in operands]
        draws = entry.op.draws and since is not None and entry.origin[2] >= since
        if not (draws or any(batched)):
            continue
        inputs = [found.get(id(x), x) for x in operands]
        if draws and not any(batched):
            inputs[1:], batched[1:] = [spread(x, batch) for x in inputs[1:]], [True] * (len(inputs) - 1)
        found[id(entry)] = _checked(entry, entry.op.batch(inputs, batched))
    return [(found.get(id(x), x), id(x) in found) for x in roots]


def _checked(entry: OpTreeNode, value: object) -> Any:
    """The value of a rule, for a node or for the tuple of several outputs."""
    several = isinstance(entry.type, TupleType)
    types, values = (list(entry.type.types), value) if several else ([entry.type], [value])
    if not isinstance(values, list) or len(values) != len(types):
        raise DefinitionError(f"{entry.op}.batch returns a list of {len(types)} trees, not {describe(value)}")
    for kind, x in zip(types, values, strict=True):
        fits = isinstance(x, Variable) and isinstance(x.type, TensorType) and x.dtype == kind.dtype
        if not fits or x.ndim != kind.ndim + 1:
            raise DefinitionError(
                f"{entry.op}.batch: for an example's {kind} the value is of its dtype, with the axis of examples in "
                f"front, not {describe(x)}"
            )
    return value
