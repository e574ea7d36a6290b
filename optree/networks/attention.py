"""Scaled dot-product attention, computed in tiles.

The matrix of scores is never whole in memory: it is computed in tiles, of some queries and some keys, with a running
maximum and sum (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018; T. Dao et al.,
"FlashAttention", 2022). The gradient computes each tile again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod, sqrt
from typing import Any

import numpy as np

from optree.arrays import Array, as_array, filled, portable
from optree.dtypes import is_floating, wide_dtype
from optree.errors import DTypeError, OperandError, ShapeError, describe
from optree.op.apply import Apply
from optree.op.batching import aligned, outputs_of, spread_all
from optree.op.op import Op
from optree.ops.indexing import rows_and_columns
from optree.records import NamedTuple
from optree.registry import f
from optree.tree.gradient_types import is_disconnected, or_zeros, sum_to
from optree.tree.types import Shape, TensorType, broadcast, promote
from optree.tree.variable import Operand, Variable, in_dtype, variable_of

#: The most queries and keys of a tile on the host, where tiles of several small heads are as large together. In causal
#: order it has half as many queries: the last of its keys are but for the last of these.
QUERIES, KEYS = 256, 512

#: On a device, where all heads are computed together, a tile has at most one score for so many elements of the queries,
#: or at most so many scores, whichever is more; and at most so many keys.
SHARE, LEAST, WIDTH = 4, 1 << 22, 1024


class Step(NamedTuple):
    """An elementwise step, of arrays or of trees, with what is reduced in it: what is a kernel where there are any."""

    #: Of the operands, to new values of some of them.
    function: Callable[..., tuple[Any, ...]]
    #: Which operands these are.
    writes: tuple[int, ...]
    #: The operands whose last axis has size 1.
    columns: tuple[int, ...]


def _masked(scores: Array, mask: Sequence[Any]) -> Any:
    """Scores where a mask of bools has them, -inf elsewhere; plus a mask of floats."""
    for x in mask:
        is_condition = x.dtype.kind == "b"
        scores = np.where(x, scores, np.asarray(-np.inf, scores.dtype)) if is_condition else scores + x
    return scores


def _soften(scores: Array, top: Array, total: Array, decay: Array, *mask: Array) -> tuple[Any, ...]:
    """The weights of a tile, the running maximum and sum after it, and the factor of the earlier sums.

    Where no score is above -inf yet, all weights are 0.
    """
    scores = _masked(scores, mask)
    highest = np.maximum(top, np.max(scores, axis=-1, keepdims=True))
    shift = np.where(np.equal(highest, -np.inf), np.zeros_like(highest), highest)
    weights, decay = np.exp(scores - shift), np.exp(top - shift)
    return weights, highest, total * decay + np.sum(weights, axis=-1, keepdims=True), decay


def _accumulate(found: Any, decay: Any, more: Any) -> tuple[Any, ...]:
    return (found * decay + more,)


def _finish(out: Array, sums: Array, found: Array, top: Array, total: Array) -> tuple[Any, ...]:
    """Weighted means, and the logarithms of sums of exponentials, by which a gradient finds no weights again: inf."""
    is_empty = np.equal(total, 0)
    total = np.where(is_empty, np.ones_like(total), total)
    value = found / total
    return value.astype(out.dtype), np.where(is_empty, np.full_like(top, np.inf), np.log(total) + top)


def _slope(scores: Array, products: Array, sums: Array, along: Array, *mask: Array) -> tuple[Any, ...]:
    """The weights of a tile, and the derivatives by its scores.

    `products` are those of deltas with values, `along` those of the queries' deltas with the attention's value.
    """
    weights = np.exp(_masked(scores, mask) - sums)
    return weights, weights * (products - along)


HIDE = Step(lambda scores, order: (_masked(scores, [order]),), (0,), ())
SOFTEN = Step(_soften, (0, 1, 2, 3), (1, 2, 3))
ACCUMULATE = Step(_accumulate, (0,), (1,))
FINISH = Step(_finish, (0, 1), (1, 3, 4))
SLOPE = Step(_slope, (0, 1), (2, 3))


class Tiles:
    """The computation of tiles; a backend has a subclass of its own."""

    product: Callable[..., Any] = staticmethod(np.matmul)

    def multiplied(self, dtype: np.dtype) -> np.dtype:
        """The dtype in which operands of a dtype are multiplied."""
        return wide_dtype(dtype)

    def multiply(self, x: Any, y: Any, out: Any = None, factor: float = 1.0) -> Any:
        """The product of matrices, or of stacks of them, times a factor, in float32 for halves."""
        return self.product(x if factor == 1 else x * x.dtype.type(factor), y, out=out)

    def update(self, step: Step, *arrays: Array) -> None:
        """Compute a step on arrays, and write its results into its outputs."""
        for i, value in zip(step.writes, step.function(*arrays), strict=True):
            arrays[i][...] = value

    def share(self, tasks: Sequence[Any], worker: Callable[[], Callable[[Any], None]]) -> None:
        """Run tasks by a function that `worker` gives for each thread."""
        do = worker()
        for task in tasks:
            do(task)


class AttentionOperator(Op):
    """An op of queries, keys and values; further operands of a gradient follow, and a mask, if any, is the last.

    `causal`: whether the query i has the keys up to i alone.
    `scale`: the factor of the scores; None is 1 over the root of the size of a query.
    `count`, `buffers`: the number of operands without a mask, and that of tiles in memory together.
    """

    operands = None
    raises = False
    __props__ = ("causal", "scale")
    causal: bool = False
    scale: Any = None
    count, buffers = 3, 1

    def factor(self, query: Any) -> float:
        """The factor of the scores of queries."""
        return 1 / sqrt(max(query.shape[-1], 1)) if self.scale is None else float(self.scale)

    def scores(self, factor: float, query: Variable, key: Variable, mask: Sequence[Variable]) -> Any:
        """The scores of all keys, as a tree."""
        scores = _masked(f.matmul(query, f.matrix_transpose(key)) * factor, mask)
        if self.causal:
            rows, columns = rows_and_columns(scores)
            scores = f.where(rows >= columns, scores, -np.inf)
        return scores

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        given = spread_all(inputs, batched)
        return outputs_of(self, aligned(given, [True] * len(given)))

    @portable
    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        for cell, value in zip(output_storage, self.run(Tiles(), *inputs), strict=True):
            cell[0] = value

    def run(self, tiles: Tiles, *inputs: Array) -> tuple[Any, ...]:
        """The outputs; NumPy computes as many heads together as tiles in a cache allow, other libraries all of them."""
        matrices, masks = self.broadcast([as_array(x, *inputs) for x in inputs])
        outputs = self.outputs(*matrices)
        like = matrices[0]
        (*lead, queries, _), keys = like.shape, matrices[1].shape[-2]
        size, stack = _tile(like, prod(lead), keys, self.causal)
        heads = _stacks(tuple(lead), stack)
        tasks = [
            ([x[head] for x in (*matrices, *masks)], [x[head] for x in outputs], part)
            for head, part in product(heads, self.parts(queries, size[0]))
        ]
        room = prod(size) * max((prod(task[0][0].shape[:-2]) for task in tasks), default=0)

        def worker() -> Callable[[Any], None]:
            memory: list[Any] = [np.empty(room, wide_dtype(like.dtype), like=like) for _ in range(self.buffers)]
            position = np.arange(size[0], dtype=np.int32, like=like)
            memory.append(position[:, None] >= position if self.causal else None)
            return lambda task: self.compute(tiles, size, memory, *task)

        tiles.share(tasks, worker)
        return tuple(outputs)

    def broadcast(self, arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The matrices and the mask, if any, with all leading axes, as views."""
        matrices, masks = arrays[: self.count], arrays[self.count :]
        lead = np.broadcast_shapes(*(x.shape[:-2] for x in matrices))
        scores = (*lead, matrices[0].shape[-2], matrices[1].shape[-2])
        return (
            [np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in matrices],
            [np.broadcast_to(x, scores) for x in masks],
        )

    def outputs(self, *matrices: Any) -> list[Any]:
        """New arrays for the outputs."""
        raise NotImplementedError

    def parts(self, queries: int, size: int) -> Sequence[slice]:
        """The queries that a task computes."""
        return [slice(0, queries)]

    def compute(
        self, tiles: Tiles, size: tuple[int, int], memory: list[Any], given: Array, outputs: Array, part: slice
    ) -> None:
        """Compute some queries of a head, or of a stack of them, in tiles of a size."""
        raise NotImplementedError

    def columns(self, rows: slice, columns: slice) -> slice:
        """The keys of a tile that its last query has."""
        return slice(columns.start, min(columns.stop, rows.stop)) if self.causal else columns

    def hide(self, tiles: Tiles, scores: Array, rows: slice, columns: slice, order: Array) -> None:
        """Take the scores of keys after each query out of a tile, whose keys are those of its last query at most."""
        first = max(rows.start, columns.start)
        if self.causal and columns.stop > rows.start + 1:
            begin = first - rows.start
            order = order[: rows.stop - rows.start, begin : begin + columns.stop - first]
            part = scores[..., first - columns.start :]
            tiles.update(HIDE, part, order if part.ndim == 2 else np.broadcast_to(order, part.shape))


class Attention(AttentionOperator):
    """For each query the values of all keys, weighted by the softmax of the scores, which are products of the two.

    Values and gradients are computed in tiles of the scores. The derivative by a mask of floats, and second
    derivatives, are as large as all scores.

    Parameters
    ----------
    query : operand
        Shape (..., queries, features). The axes before the last two, such as batch and heads, broadcast.
    key, value : operand
        Shapes (..., keys, features) and (..., keys, value features).
    mask : operand, optional
        Of a shape that broadcasts to that of the scores, (..., queries, keys). Bools say which scores count; floats are
        added to them, such as a bias of relative positions.
    causal : bool
        Whether the query i has the keys up to i alone.
    scale : float, optional
        The factor of the scores; by default 1 / sqrt(features).

    Returns
    -------
    tree
        Of shape (..., queries, value features); zeros for a query without keys.

    Examples
    --------
    >>> x = be.array(np.eye(3), "float32")
    >>> be.attention(x, x, x, causal=True, scale=10.0).get().round(2)
    array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.]], dtype=float32)
    """

    name = "attention"
    default_output = 0

    @classmethod
    def function(  # type: ignore[override]
        cls,
        query: Operand,
        key: Operand,
        value: Operand,
        mask: Operand | None = None,
        causal: bool = False,
        scale: object = None,
    ) -> Any:
        if scale is not None and (isinstance(scale, bool) or not isinstance(scale, int | float)):
            raise OperandError(f"attention: scale is a number or None, not {scale!r}")
        if not isinstance(causal, bool | np.bool_):
            raise OperandError(f"attention: causal is True or False, not {causal!r}")
        operands = (query, key, value) if mask is None else (query, key, value, mask)
        return cls.make(causal=bool(causal), scale=scale)(*operands)

    def make_node(self, *inputs: Array) -> Apply:
        if len(inputs) not in (3, 4):
            raise OperandError(f"attention takes query, key, value and, if any, a mask, not {len(inputs)} operands")
        query, key, value, *mask = (variable_of(x, "attention") for x in inputs)
        lead = _checked(query, key, value, mask)
        dtype = promote(query.dtype, key.dtype, value.dtype)
        if not is_floating(dtype):
            raise DTypeError(f"attention: {describe(query)}: queries are floats; query.astype('float32') makes them so")
        query, key, value = (in_dtype(x, dtype) for x in (query, key, value))
        mask = [in_dtype(x, dtype) if is_floating(x.dtype) else x for x in mask]
        out = TensorType(dtype, (*lead, query.shape[-2], value.shape[-1]))
        return Apply(self, [query, key, value, *mask], [out(), _sums(out)()])

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        query, key, value, *_ = shapes
        lead = broadcast(broadcast(query[:-2], key[:-2]), value[:-2])
        return [(*lead, query[-2], value[-1]), (*lead, query[-2], 1)]

    def flops(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
        """Two products of matrices of the size of the scores."""
        (_, size), (keys, _), out = inputs[0][-2:], inputs[1][-2:], outputs[0]
        return int(2 * prod(out[:-1]) * keys * (size + out[-1]))  # type: ignore[operator, arg-type]

    def outputs(self, *matrices: Any) -> list[Any]:
        query, _, value = matrices
        shape = query.shape[:-1]
        return [
            np.empty((*shape, value.shape[-1]), query.dtype, like=query),
            np.empty((*shape, 1), wide_dtype(query.dtype), like=query),
        ]

    def composed(self, factor: float, query: Variable, key: Variable, value: Variable, *mask: Variable) -> Any:
        """The value as a tree of products, in which the matrix of scores is whole in memory."""
        scores = self.scores(factor, query, key, mask)
        top = f.max(scores, axis=-1, keepdims=True)
        weights = f.exp(scores - f.where(f.eq(top, -np.inf), 0.0, top))
        total = f.sum(weights, axis=-1, keepdims=True)
        return f.matmul(weights, value) / f.where(f.eq(total, 0), 1.0, total)

    def parts(self, queries: int, size: int) -> Sequence[slice]:
        return [slice(i, min(i + size, queries)) for i in range(0, queries, max(size, 1))]

    def compute(
        self, tiles: Tiles, size: tuple[int, int], memory: list[Any], given: Array, outputs: Array, part: slice
    ) -> None:
        (query, key, value, *mask), (out, sums), (tile, order) = given, outputs, memory
        dtype, multiplied = tile.dtype, tiles.multiplied(query.dtype)
        queries = query[..., part, :].astype(multiplied, copy=False)
        top, total, decay = (filled((*queries.shape[:-1], 1), x, dtype, query) for x in (-np.inf, 0, 0))
        found = filled((*queries.shape[:-1], value.shape[-1]), 0, dtype, query)
        end = min(part.stop, key.shape[-2]) if self.causal else key.shape[-2]
        for columns in _blocks(0, end, size[1]):
            keys, values = (x[..., columns, :].astype(multiplied, copy=False) for x in (key, value))
            weights = _of_shape(tile, (*queries.shape[:-1], keys.shape[-2]))
            tiles.multiply(queries, keys.swapaxes(-1, -2), weights, self.factor(query))
            self.hide(tiles, weights, part, columns, order)
            tiles.update(SOFTEN, weights, top, total, decay, *(x[..., part, columns] for x in mask))
            tiles.update(ACCUMULATE, found, decay, tiles.multiply(weights.astype(multiplied, copy=False), values))
        tiles.update(FINISH, out[..., part, :], sums[..., part, :], found, top, total)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        query, key, value, *mask = inputs
        out, sums = self.make_node(*inputs).outputs
        delta, by_sums = (or_zeros(g, x) for g, x in zip(output_gradients, (out, sums), strict=True))
        along = f.sum(in_dtype(delta * out, sums.dtype), axis=-1, keepdims=True)
        along = along if is_disconnected(output_gradients[1]) else along - by_sums
        derivative = AttentionGradient.make(causal=self.causal, scale=self.scale)
        found = list(derivative(query, key, value, delta, along, sums, *mask))
        for x in mask:
            by_mask = None
            if is_floating(x.dtype):
                wide = [in_dtype(y, sums.dtype) for y in (query, key, delta, value)]
                by_mask = sum_to(derivative.by_scores(*wide, along, sums, *mask), x)
            found.append(None if by_mask is None else in_dtype(by_mask, x.dtype))
        return found


class AttentionGradient(AttentionOperator):
    """The derivatives of `attention` by queries, keys and values; without a name of its own, for trees here alone.

    Its further operands: the delta of the attention's value; for each query the sum of that delta's products with it,
    and the logarithms of sums of exponentials. Its own derivative is composed of products, and there the matrix of
    scores is whole in memory.
    """

    count, buffers = 6, 2

    def make_node(self, *inputs: Operand) -> Apply:
        query, key, value, delta, *others = (variable_of(x, str(self)) for x in inputs)
        types = [TensorType(query.dtype, (*delta.shape[:-2], *x.shape[-2:])) for x in (query, key, value)]
        return Apply(self, [query, key, value, delta, *others], [each() for each in types])

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        return [(*shapes[3][:-2], *shape[-2:]) for shape in shapes[:3]]

    def flops(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
        """Five products of matrices of the size of the scores."""
        query, key, value = outputs
        return int(2 * prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1]))  # type: ignore[operator, arg-type]

    def outputs(self, *matrices: Any) -> list[Any]:
        return [np.empty(x.shape, x.dtype, like=x) for x in matrices[:3]]

    def compute(
        self, tiles: Tiles, size: tuple[int, int], memory: list[Any], given: Array, outputs: Array, part: slice
    ) -> None:
        (query, key, value, delta, along, sums, *mask), (of_query, of_key, of_value) = given, outputs
        dtype, factor = memory[0].dtype, memory[0].dtype.type(self.factor(query))
        multiplied = tiles.multiplied(query.dtype)
        found = filled(query.shape, 0, dtype, query)
        for whole in _blocks(0, key.shape[-2], size[1]):
            keys, values = (x[..., whole, :].astype(multiplied, copy=False) for x in (key, value))
            keys_across, values_across = (_laid_across(x) for x in (keys, values))
            by_key, by_value = (filled(x.shape, 0, dtype, query) for x in (keys, values))
            first = whole.start // size[0] * size[0] if self.causal and size[0] else 0
            for rows in _blocks(first, part.stop, size[0]):
                columns = self.columns(rows, whole)
                count = columns.stop - columns.start
                if count < 1:
                    continue
                queries, deltas = (x[..., rows, :].astype(multiplied, copy=False) for x in (query, delta))
                weights, slopes = (_of_shape(x, (*queries.shape[:-1], count)) for x in memory[:2])
                tiles.multiply(queries, keys_across[..., :count], weights, self.factor(query))
                tiles.multiply(deltas, values_across[..., :count], out=slopes)
                self.hide(tiles, weights, rows, columns, memory[2])
                chosen = [x[..., rows, columns] for x in mask]
                tiles.update(SLOPE, weights, slopes, sums[..., rows, :], along[..., rows, :], *chosen)
                weights, slopes = (x.astype(multiplied, copy=False) for x in (weights, slopes))
                by_value[..., :count, :] += tiles.multiply(weights.swapaxes(-1, -2), deltas)
                by_key[..., :count, :] += tiles.multiply(slopes.swapaxes(-1, -2), queries)
                found[..., rows, :] += tiles.multiply(slopes, keys[..., :count, :])
            of_key[..., whole, :], of_value[..., whole, :] = by_key * factor, by_value
        of_query[...] = found * factor

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        query, key, value, delta, along, sums, *mask = inputs
        dq, dk, dv = (or_zeros(g, x) for g, x in zip(output_gradients, inputs[:3], strict=True))
        scale = self.factor(query)
        weights = self._weights(query, key, sums, mask)
        products = f.matmul(delta, f.matrix_transpose(value)) - along
        slopes = weights * products * scale
        met = (f.matmul(dq, f.matrix_transpose(key)) + f.matmul(query, f.matrix_transpose(dk))) * scale
        by_product = weights * met
        by_score = weights * (met * products + f.matmul(delta, f.matrix_transpose(dv)))
        scaled = by_score * scale
        return [
            f.matmul(scaled, key) + f.matmul(slopes, dk),
            f.matmul(f.matrix_transpose(scaled), query) + f.matmul(f.matrix_transpose(slopes), dq),
            f.matmul(f.matrix_transpose(by_product), delta),
            f.matmul(by_product, value) + f.matmul(weights, dv),
            -f.sum(by_product, axis=-1, keepdims=True),
            -f.sum(by_score, axis=-1, keepdims=True),
            *(sum_to(by_score, x) if is_floating(x.dtype) else None for x in mask),
        ]

    def by_scores(self, query: Any, key: Any, delta: Any, value: Any, along: Any, sums: Any, *mask: Any) -> Any:
        """The derivatives by the scores of all keys, as a tree: those by a mask of floats, which is as large."""
        return self._weights(query, key, sums, mask) * (f.matmul(delta, f.matrix_transpose(value)) - along)

    def _weights(self, query: Variable, key: Variable, sums: Variable, mask: Sequence[Variable]) -> Any:
        """The weights of all keys, as a tree."""
        return f.exp(self.scores(self.factor(query), query, key, mask) - sums)


def _sums(out: TensorType) -> TensorType:
    """The type of the logarithms of sums of exponentials."""
    return TensorType(wide_dtype(out.dtype), (*out.shape[:-1], 1))


def _tile(query: Array, heads: int, keys: int, causal: bool) -> tuple[tuple[int, int], int]:
    """The maximum numbers of queries and keys of a tile, and of heads computed together."""
    queries, features = query.shape[-2:]
    if isinstance(query, np.ndarray):
        most = max(1, QUERIES // 2) if causal else QUERIES
        size = min(most, queries), min(KEYS, keys)
        return size, max(1, most * KEYS // max(prod(size), 1))
    width = max(1, min(WIDTH, keys))
    rows = max(queries * features // (SHARE * width), LEAST // (width * max(heads, 1)), 1)
    return (min(rows, queries), width), max(heads, 1)


def _stacks(lead: tuple[int, ...], count: int) -> list[tuple[Any, ...]]:
    """Indices of leading axes, each of a stack of at most `count` matrices; integers alone for one of them."""
    axis, whole = len(lead), 1
    while axis and whole * lead[axis - 1] <= count:
        axis -= 1
        whole *= lead[axis]
    if not axis:
        return [()]
    size, others = count // max(whole, 1), list(np.ndindex(*lead[: axis - 1]))
    if count == 1:
        return [(*at, i) for at in others for i in range(lead[axis - 1])]
    return [(*at, part) for at in others for part in _blocks(0, lead[axis - 1], size)]


def _laid_across(x: Array) -> Any:
    """Matrices transposed, for several products; on the host a copy, by which BLAS multiplies a sixth faster."""
    across = x.swapaxes(-1, -2)
    return np.ascontiguousarray(across) if isinstance(x, np.ndarray) else across


def _of_shape(memory: Any, shape: tuple[int, ...]) -> Any:
    """An array of a shape, at the beginning of memory for larger ones."""
    return memory[: prod(shape)].reshape(shape)


def _blocks(start: int, stop: int, size: int) -> Iterator[slice]:
    """Slices of at most a size, from a start to a stop."""
    for i in range(start, stop, max(size, 1)):
        yield slice(i, min(i + size, stop))


def _checked(query: Variable, key: Variable, value: Variable, mask: Sequence[Variable]) -> Shape:
    """The leading axes of attention's value; OptreeError if the operands do not fit."""
    for name, x in (("queries", query), ("keys", key), ("values", value)):
        if not isinstance(x.type, TensorType) or x.ndim < 2:
            raise ShapeError(f"attention: {describe(x)} are no {name}, which have the shape (..., {name}, features)")
    for first, second, axis, what in ((query, key, -1, "features"), (key, value, -2, "keys")):
        sizes = first.shape[axis], second.shape[axis]
        if None not in sizes and sizes[0] != sizes[1]:
            raise ShapeError(
                f"attention: {describe(first)} and {describe(second)} have {sizes[0]} and {sizes[1]} {what}, "
                f"and axis {axis} of both counts these"
            )
    try:
        lead = broadcast(broadcast(query.shape[:-2], key.shape[:-2]), value.shape[:-2])
    except ShapeError:
        listed = ", ".join(describe(x) for x in (query, key, value))
        raise ShapeError(f"attention: the axes of {listed} before the last two do not broadcast") from None
    for chosen in mask:
        if chosen.dtype.kind != "b" and not is_floating(chosen.dtype):
            raise DTypeError(
                f"attention: the mask {describe(chosen)} is neither a condition, which `mask > 0` makes it, nor "
                "floats, which are added to the scores"
            )
        wanted = (*lead, query.shape[-2], key.shape[-2])
        try:
            fits = broadcast(chosen.shape, wanted) == wanted
        except ShapeError:
            fits = False
        if not fits:
            raise ShapeError(
                f"attention: the mask {describe(chosen)} does not broadcast to the scores, (..., queries, keys), which "
                f"have the shape {wanted}"
            )
    return lead
