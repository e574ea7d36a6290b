"""The rows of the table from ops to operators of ONNX's.

`operator_of` has the ops whose operator is that of the same function of NumPy's. `WRITERS` has a function that adds
nodes to a graph for each other op, and `COMPOSED` has compositions of ops that have operators. A function that
returns None leaves the op to the other tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optree.dtypes import is_floating
from optree.networks.attention import Attention
from optree.networks.convolution import Conv, ConvolutionOperator, ConvTranspose
from optree.networks.network import Erf, LogAddExp, Safelog, Sig, Sig2, Tanh2
from optree.networks.pooling import AvgPool, MaxPool
from optree.networks.recurrent import Parts
from optree.networks.window_elements import PoolOperator, WindowElement
from optree.onnx.expressions import AS_NUMPY
from optree.onnx.graph import Graph, Value
from optree.op.op import Op
from optree.op.traits import ReductionOperator
from optree.ops import (
    choice,
    contraction,
    elementwise,
    indexing,
    joining,
    linalg,
    logic,
    ordering,
    reduction,
    scan,
    shape,
    structure,
    transcendental,
)
from optree.ops.bits import LeftShift, RightShift
from optree.ops.scattering import IndexAdd, Scatter
from optree.ops.softmax import LogSoftmax, Softmax
from optree.registry import f
from optree.tree.indexing import ARRAY, axis_of_arrays
from optree.tree.types import TensorType
from optree.tree.variable import Variable

Writer = Callable[[Graph, Any, list[Value], Any], Any]

#: The ops whose operators are not those of functions of NumPy's.
OPERATORS: dict[type, str] = {
    Erf: "Erf",
    Sig: "Sigmoid",
    choice.Maximum: "Max",
    choice.Minimum: "Min",
    choice.Relu: "Relu",
    elementwise.Div: "Div",
    elementwise.Pow: "Pow",
    linalg.Determinant: "Det",
    structure.Copy: "Identity",
}

_BY_NUMPY = {function: name for name, function in AS_NUMPY.items()}


def operator_of(op: Op) -> str | None:
    """The operator of an op whose operands are in one dtype; None if there is none."""
    found = OPERATORS.get(op.__class__)
    if found is None and getattr(op.numpy, "__hash__", None) is not None:
        found = _BY_NUMPY.get(op.numpy)
    return found


# Elementwise


def _cast(graph: Graph, op: choice.Cast, inputs: list[Value], type: TensorType) -> Any:
    return (
        graph.name(inputs[0], type.dtype) if inputs[0].number is None else graph.constant(inputs[0].number, type.dtype)
    )


def _where(graph: Graph, op: choice.Where, inputs: list[Value], type: TensorType) -> Any:
    condition, *both = inputs
    return graph.add("Where", graph.name(condition, bool), *(graph.name(x, type.dtype) for x in both))


def _of_float(operator: str) -> Writer:
    """An operator on floats that gives bools."""

    def write(graph: Graph, op: Op, inputs: list[Value], type: TensorType) -> Any:
        (x,) = inputs
        return graph.add(operator, graph.name(x, x.type.dtype if is_floating(x.type.dtype) else np.float32))

    return write


def _alike(operator: str, attributes: Callable[[Any], dict[str, Any]] = lambda op: {}) -> Writer:
    """An operator on operands in the value's dtype, with attributes of the op."""

    def write(graph: Graph, op: Op, inputs: list[Value], type: TensorType) -> Any:
        return graph.add(operator, *(graph.name(x, type.dtype) for x in inputs), **attributes(op))

    return write


def _mod(graph: Graph, op: elementwise.Mod | elementwise.Fmod, inputs: list[Value], type: TensorType) -> Any:
    is_fmod = isinstance(op, elementwise.Fmod)
    if is_floating(type.dtype) and not is_fmod:
        return None
    return graph.add("Mod", *(graph.name(x, type.dtype) for x in inputs), fmod=int(is_fmod))


def _shift(graph: Graph, op: LeftShift | RightShift, inputs: list[Value], type: TensorType) -> Any:
    if type.dtype.kind != "u":
        return None
    direction = "LEFT" if isinstance(op, LeftShift) else "RIGHT"
    return graph.add("BitShift", *(graph.name(x, type.dtype) for x in inputs), direction=direction)


def _is_negative(op: Op, x: Variable) -> Any:
    return (x < 0) | ((x == 0) & (1 / x < 0))


def _arctan2(op: Op, y: Variable, x: Variable) -> Any:
    base = np.arctan(y / np.where(x == 0, 1, x))
    turn = np.where(y < 0, -math.pi, math.pi)
    return np.where(x > 0, base, np.where(x < 0, base + turn, np.where(y == 0, 0 * y, turn / 2)))


def _hypot(op: Op, x: Variable, y: Variable) -> Any:
    most = np.maximum(abs(x), abs(y))
    whole = np.where(most == 0, 1, most)
    return most * np.sqrt(np.square(x / whole) + np.square(y / whole))


def _log1p(op: Op, x: Variable) -> Any:
    # The error of 1 + x is that of the factor, too (W. Kahan).
    whole = 1 + x
    rest = np.where(whole == 1, 1, whole - 1)
    near = np.where(whole == 1, x, np.log(whole) * x / rest)
    return np.where(abs(x) < 0.5, near, np.log(whole))


def _expm1(op: Op, x: Variable) -> Any:
    whole = np.exp(x)
    near = np.where(whole == 1, x, (whole - 1) * x / np.where(whole == 1, 1, np.log(whole)))
    return np.where(abs(x) < 0.5, near, whole - 1)


def _floor_divide(op: Op, x: Variable, y: Variable) -> Any:
    return np.floor(x / y) if is_floating(np.result_type(*(getattr(z, "dtype", z) for z in (x, y)))) else None


# Shapes


def _reshape(graph: Graph, x: Value, sizes: str) -> Any:
    return graph.add("Reshape", graph.name(x), sizes, allowzero=1)


def _fill_like(graph: Graph, op: choice.FillLike, inputs: list[Value], type: TensorType) -> Any:
    like, value = inputs
    name = graph.name(value, type.dtype)
    name = name if value.shape == () else graph.add("Reshape", name, graph.integers())
    return graph.add("Expand", name, graph.shape(like))


def _expand_dims(graph: Graph, op: shape.ExpandDims, inputs: list[Value], type: TensorType) -> Any:
    axes = op.axis if isinstance(op.axis, tuple) else (op.axis,)
    return graph.add("Unsqueeze", graph.name(inputs[0]), graph.integers(*axes))


def _squeeze(graph: Graph, op: shape.Squeeze, inputs: list[Value], type: TensorType) -> Any:
    (x,) = inputs
    axes = [i for i, n in enumerate(x.shape) if n == 1] if op.axis is None else op.axis
    axes = axes if isinstance(axes, tuple | list) else (axes,)
    return graph.add("Squeeze", graph.name(x), graph.integers(*axes)) if axes else graph.name(x)


def _sliced(graph: Graph, name: str, parts: Sequence[tuple[int, slice]]) -> str:
    """The slices of some axes."""
    if not parts:
        return name
    starts, ends, steps = [], [], []
    for _, part in parts:
        step = 1 if part.step is None else part.step
        starts.append((0 if step > 0 else -1) if part.start is None else part.start)
        ends.append((1 if step > 0 else -1) << 62 if part.stop is None else part.stop)
        steps.append(step)
    axes = [axis for axis, _ in parts]
    found: str = graph.add("Slice", name, *(graph.integers(*each) for each in (starts, ends, axes, steps)))
    return found


def _flip(graph: Graph, op: shape.Flip, inputs: list[Value], type: TensorType) -> Any:
    (x,) = inputs
    axes = range(len(x.shape)) if op.axis is None else op.axis if isinstance(op.axis, tuple) else (op.axis,)
    return _sliced(graph, graph.name(x), [(axis, slice(None, None, -1)) for axis in axes])


def _template(template: Sequence[Any], ndim: int) -> list[Any]:
    """An index whose ellipsis is written out, and that has an entry for each axis."""
    taken = sum(entry is not None and entry is not Ellipsis for entry in template)
    rest = [(None, None, None)] * (ndim - taken)
    place = template.index(Ellipsis) if Ellipsis in template else len(template)
    return [*template[:place], *rest, *template[place + 1 :]]


def _at(graph: Graph, name: str, template: Sequence[Any]) -> tuple[str, list[int]]:
    """A basic index, whose arrays are whole slices here; and the axes of the value where arrays were."""
    axis, slices, integers, new, arrays, place = 0, [], [], [], [], 0
    for entry in template:
        if entry is None:
            new.append(place)
            place += 1
            continue
        if isinstance(entry, int):
            slices.append((axis, slice(entry, entry + 1 or None)))
            integers.append(axis)
        elif entry == ARRAY:
            arrays.append(place)
        elif entry != (None, None, None):
            slices.append((axis, slice(*entry)))
        place += not isinstance(entry, int)
        axis += 1
    name = _sliced(graph, name, slices)
    name = graph.add("Squeeze", name, graph.integers(*integers)) if integers else name
    return graph.add("Unsqueeze", name, graph.integers(*new)) if new else name, arrays


def _slice(graph: Graph, op: shape.Slice, inputs: list[Value], type: TensorType) -> Any:
    (x,) = inputs
    return _at(graph, graph.name(x), _template(op.index, len(x.shape)))[0]


def _unslice(graph: Graph, op: shape.Unslice, inputs: list[Value], type: TensorType) -> Any:
    x, like = inputs
    if None in like.shape or any(entry is None for entry in op.index):
        return None
    size = math.prod(like.shape)
    flat = np.arange(size).reshape(like.shape)[tuple(slice(*e) if isinstance(e, tuple) else e for e in op.index)]
    values = graph.add("Expand", graph.name(x), graph.integers(*flat.shape))
    values = graph.add("Reshape", values, graph.integers(flat.size), allowzero=1)
    zeros = graph.constant(np.zeros(size, type.dtype))
    found = graph.add("ScatterND", zeros, graph.constant(flat.reshape(-1, 1)), values) if flat.size else zeros
    return graph.add("Reshape", found, graph.integers(*like.shape), allowzero=1)


def _part_like(graph: Graph, op: joining.HeadLike, inputs: list[Value], type: TensorType) -> Any:
    x, like = inputs
    size, whole = graph.shape(like, op.axis), graph.shape(x, op.axis)
    is_tail = isinstance(op, joining.TailLike)
    ends = (size, whole) if is_tail else (graph.integers(0), size)
    return graph.add("Slice", graph.name(x), *ends, graph.integers(op.axis))


def _padded(graph: Graph, x: Value, widths: Sequence[tuple[int, int]], value: float) -> str:
    pads = [*(a for a, _ in widths), *(b for _, b in widths)]
    if not any(pads):
        return graph.name(x)  # type: ignore[no-any-return]
    return graph.add("Pad", graph.name(x), graph.integers(*pads), graph.constant(value, x.type.dtype))  # type: ignore[no-any-return]


def _repeat(graph: Graph, op: joining.Repeat, inputs: list[Value], type: TensorType) -> Any:
    (x,) = inputs
    if x.shape[op.axis] is None:
        return None
    index = np.repeat(np.arange(x.shape[op.axis]), op.repeats)
    return graph.add("Gather", graph.name(x), graph.constant(index), axis=op.axis)


def _flat_indices(graph: Graph, op: choice.FlatIndices, inputs: list[Value], type: TensorType) -> Any:
    (like,) = inputs
    ndim = len(like.shape)
    axes = [*range(ndim)] if op.axis is None else [op.axis] if isinstance(op.axis, int) else [*op.axis]
    sizes = graph.shape(like, *axes) if axes else graph.integers()
    count = graph.add("ReduceProd", sizes, keepdims=0)
    line = graph.add("Range", graph.constant(0), count, graph.constant(1))
    ones = [1] * ndim
    if len(axes) > 1 or op.axis is None:
        known = graph.add("Reshape", line, sizes, allowzero=1)
        if len(axes) == ndim:
            return graph.cast(known, type.dtype)
        others = [axis for axis in range(ndim) if axis not in axes]
        line = graph.add("Unsqueeze", known, graph.integers(*others))
    else:
        ones[axes[0]] = -1
        line = graph.add("Reshape", line, graph.integers(*ones))
    return graph.cast(graph.add("Expand", line, graph.shape(like)), type.dtype)


# Reductions, sorts and products


def _reduced(operator: str, over: type | None = None) -> Writer:
    """A reduction, of values in the dtype of the output or another."""

    def write(graph: Graph, op: ReductionOperator, inputs: list[Value], type: TensorType) -> Any:
        (x,) = inputs
        name = graph.name(x, type.dtype if over is None else bool)
        if over is not None or type.dtype == bool:
            name = graph.cast(name, np.int64)
        axes = () if op.axis is None else op.axis if isinstance(op.axis, tuple) else (op.axis,)
        given = (graph.integers(*axes),) if axes else ()
        if op.axis is None or axes:
            name = graph.add(operator, name, *given, keepdims=int(op.keepdims))
        return graph.cast(name, bool) if type.dtype == bool else name

    return write


def _argument(operator: str) -> Writer:
    def write(graph: Graph, op: reduction.ArgExtremeOperator, inputs: list[Value], type: TensorType) -> Any:
        (x,) = inputs
        if isinstance(op.axis, tuple) and len(op.axis) != 1:
            return None
        name = graph.name(x) if x.type.dtype != bool else graph.name(x, np.int32)
        if op.axis is None:
            name = graph.add("Reshape", name, graph.integers(-1))
        axis = 0 if op.axis is None else op.axis[0] if isinstance(op.axis, tuple) else op.axis
        name = graph.add(operator, name, axis=axis, keepdims=int(op.keepdims))
        if op.axis is None and op.keepdims:
            name = graph.add("Reshape", name, graph.integers(*[1] * len(type.shape)))
        return graph.cast(name, type.dtype)

    return write


def _count(graph: Graph, op: reduction.Count, inputs: list[Value], type: TensorType) -> Any:
    (x,) = inputs
    axes = range(len(x.shape)) if op.axis is None else op.axis
    count = graph.add("ReduceProd", graph.shape(x, *axes), keepdims=0) if axes else graph.constant(1)
    return graph.cast(graph.add("Reshape", count, graph.integers(*[1] * op.ndim)), type.dtype)


def _over(operator: str) -> Writer:
    """An operator over one axis."""

    def write(graph: Graph, op: Softmax | LogSoftmax, inputs: list[Value], type: TensorType) -> Any:
        axes = op.axis if isinstance(op.axis, tuple) else (op.axis,)
        if len(axes) != 1:
            return None
        return graph.add(operator, graph.name(inputs[0], type.dtype), axis=axes[0])

    return write


def _sorted(output: int, largest: bool) -> Writer:
    """The values (0) or indices (1) of a sort."""

    def write(graph: Graph, op: Any, inputs: list[Value], type: TensorType) -> Any:
        (x,) = inputs
        count = graph.integers(op.k) if largest else graph.shape(x, op.axis)
        name = graph.name(x) if x.type.dtype != bool else graph.name(x, np.int32)
        both = graph.add("TopK", name, count, outputs=2, axis=op.axis, largest=int(largest), sorted=1)
        return graph.cast(both[output], type.dtype)

    return write


def _tensordot(graph: Graph, op: contraction.TensorDot, inputs: list[Value], type: TensorType) -> Any:
    x, y = inputs
    count = op.axes if isinstance(op.axes, int) else None
    of_x, of_y = (range(-count, 0), range(count)) if count is not None else op.axes
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    first, second = ([next(letters) for _ in z.shape] for z in (x, y))
    for i, j in zip(of_x, of_y, strict=True):
        second[j] = first[i]
    kept = [letter for letter in (*first, *second) if (letter in first) != (letter in second)]
    equation = f"{''.join(first)},{''.join(second)}->{''.join(kept)}"
    return graph.add("Einsum", *(graph.name(z, type.dtype) for z in inputs), equation=equation)


def _parts(graph: Graph, op: Parts, inputs: list[Value], type: TensorType) -> Any:
    (x,) = inputs
    found = graph.add("Split", graph.name(x), outputs=op.count, axis=len(x.shape) - 1, num_outputs=op.count)
    return [found] if op.count == 1 else found


# Indices


def _take(graph: Graph, op: indexing.Take, inputs: list[Value], type: TensorType) -> Any:
    x, indices = inputs
    return graph.add("Gather", graph.name(x), graph.name(indices, np.int64), axis=op.axis or 0)


def _take_along_axis(graph: Graph, op: indexing.TakeAlongAxis, inputs: list[Value], type: TensorType) -> Any:
    x, indices = inputs
    axis = op.axis % len(x.shape)
    names = [graph.name(x), graph.name(indices, np.int64)]
    for n, operand in enumerate(inputs):
        wanted: list[Any] = [size if i != axis else operand.shape[i] for i, size in enumerate(type.shape)]
        if list(operand.shape) != wanted:
            if None in wanted:
                return None
            names[n] = graph.add("Expand", names[n], graph.integers(*wanted))
    return graph.add("GatherElements", *names, axis=axis)


def _gather(graph: Graph, op: indexing.Gather, inputs: list[Value], type: TensorType) -> Any:
    x, *arrays = inputs
    name, places = _at(graph, graph.name(x), _template(op.index, len(x.shape)))
    target = axis_of_arrays(op.index)
    if len(arrays) == 1:
        count, first = len(arrays[0].shape), places[0]
        name = graph.add("Gather", name, graph.name(arrays[0], np.int64), axis=first)
        rest = [axis for axis in range(len(type.shape)) if not first <= axis < first + count]
        return _permuted(graph, name, [*rest[:target], *range(first, first + count), *rest[target:]])
    index, count = _stacked(graph, arrays)
    if index is None:
        return None
    ndim = len(type.shape) - count + len(arrays)
    name = _permuted(graph, name, [*places, *(axis for axis in range(ndim) if axis not in places)])
    name, rest = graph.add("GatherND", name, index), [*range(count, len(type.shape))]
    return _permuted(graph, name, [*rest[:target], *range(count), *rest[target:]])


def _stacked(graph: Graph, arrays: Sequence[Value]) -> tuple[str | None, int]:
    """Index arrays, broadcast together, as tuples along a last axis, and their number of axes; None for open sizes."""
    shapes = [a.shape for a in arrays]
    if len(arrays) > 1 and any(None in each for each in shapes):
        return None, 0
    common = np.broadcast_shapes(*shapes) if len(arrays) > 1 else shapes[0]
    names = [graph.name(a, np.int64) for a in arrays]
    if len(arrays) > 1:
        names = [graph.add("Expand", name, graph.integers(*common)) for name in names]
    parts = [graph.add("Unsqueeze", name, graph.integers(-1)) for name in names]
    return graph.add("Concat", *parts, axis=-1), len(common)


def _scattered(graph: Graph, op: IndexAdd | Scatter, inputs: list[Value], type: TensorType) -> Any:
    is_sum = isinstance(op, IndexAdd)
    x, value, *arrays = (inputs[1], inputs[0], *inputs[2:]) if is_sum else inputs
    pick = op.indexing if isinstance(op, IndexAdd) else op
    template: Any = (ARRAY,) if isinstance(pick, indexing.Take) and pick.axis == 0 else getattr(pick, "index", None)
    full = (None, None, None)
    leads = template is not None and [*template[: len(arrays)]] == [ARRAY] * len(arrays)
    if not leads or any(entry != full for entry in template[len(arrays) :]) or not arrays:
        return None
    index, count = _stacked(graph, arrays)
    if index is None:
        return None
    rest = range(len(arrays), len(x.shape))
    sizes = graph.add("Shape", index, end=count)
    sizes = graph.add("Concat", sizes, graph.shape(x, *rest), axis=0) if len(rest) else sizes
    values = graph.add("Expand", graph.name(value, type.dtype), sizes)
    if not is_sum:
        return graph.add("ScatterND", graph.name(x), index, values)
    zeros = graph.add("Expand", graph.constant(0, type.dtype), graph.shape(x))
    return graph.add("ScatterND", zeros, index, values, reduction="add")


def _lookup(op: Op, x: Variable, indices: Variable) -> Any:
    size = x.shape[0]
    if not size:
        return None
    return np.where((indices >= 0) & (indices < size), f.take(x, np.clip(indices, 0, size - 1), 0), 0)


# Convolutions and pools


def _convolved(graph: Graph, op: ConvolutionOperator, inputs: list[Value], type: TensorType) -> Any:
    x, w = inputs
    options: dict[str, Any] = {"strides": op.stride, "dilations": op.dilation, "group": op.groups}
    is_transposed = isinstance(op, ConvTranspose)
    if op.padding == "same":
        if is_transposed and any(by > 1 for by in op.dilation):
            return None
        options["auto_pad"] = "SAME_UPPER"
    else:
        options["pads"] = [*(a for a, _ in op.padding), *(b for _, b in op.padding)]
    if isinstance(op, ConvTranspose):
        options["output_padding"] = op.output_padding
    order, weights = op.order, op.weights_order
    found = graph.add(
        "ConvTranspose" if is_transposed else "Conv",
        _permuted(graph, graph.name(x, type.dtype), order),
        _permuted(graph, graph.name(w, type.dtype), weights),
        **options,
    )
    return _permuted(graph, found, [order.index(axis) for axis in range(len(order))])


def _permuted(graph: Graph, name: str, order: Sequence[int]) -> str:
    return name if [*order] == [*range(len(order))] else graph.add("Transpose", name, perm=[*order])


def _pooled(operator: str) -> Writer:
    def write(graph: Graph, op: PoolOperator, inputs: list[Value], type: TensorType) -> Any:
        (x,) = inputs
        others = [axis for axis in range(len(x.shape)) if axis not in op.axes]
        counts_padding = getattr(op, "count_padding", False)  # ONNX leaves out what is beyond the padding
        if len(others) != 2 or not is_floating(type.dtype) or (op.ceil and counts_padding):
            return None
        order = [*others, *op.axes]
        options: dict[str, Any] = {"kernel_shape": op.window, "strides": op.stride, "ceil_mode": int(op.ceil)}
        if op.padding == "same":
            options["auto_pad"] = "SAME_UPPER"
        else:
            options["pads"] = [*(a for a, _ in op.padding), *(b for _, b in op.padding)]
        if isinstance(op, AvgPool):
            options["count_include_pad"] = int(counts_padding)
        found = graph.add(operator, _permuted(graph, graph.name(x, type.dtype), order), **options)
        return _permuted(graph, found, [order.index(axis) for axis in range(len(order))])

    return write


def _window_element(graph: Graph, op: WindowElement, inputs: list[Value], type: TensorType) -> Any:
    (x,) = inputs
    if any(x.shape[axis] is None for axis in op.axes):
        return None
    widths, parts = [(0, 0)] * len(x.shape), []
    for axis, sliding, element in zip(op.axes, op.slidings(x.shape), op.element, strict=True):
        first = element * sliding.dilation - sliding.before
        last = first + (sliding.positions - 1) * sliding.stride
        before, after = max(-first, 0), max(last + 1 - sliding.size, 0)
        widths[axis] = before, after
        parts.append((axis, slice(first + before, last + before + 1, sliding.stride)))
    return _sliced(graph, _padded(graph, x, widths, op.outside), parts)


WRITERS: dict[type, Writer] = {
    choice.BroadcastLike: lambda graph, op, inputs, type: graph.add(
        "Expand", graph.name(inputs[0]), graph.shape(inputs[1])
    ),
    choice.Cast: _cast,
    choice.FillLike: _fill_like,
    choice.FlatIndices: _flat_indices,
    choice.Where: _where,
    **dict.fromkeys((contraction.Dot, contraction.MatMul), _alike("MatMul")),
    contraction.TensorDot: _tensordot,
    elementwise.Fmod: _mod,
    elementwise.HalfPower: lambda graph, op, inputs, type: graph.add(
        "Pow", graph.name(inputs[0], type.dtype), graph.constant(op.numerator / 2, type.dtype)
    ),
    elementwise.Mod: _mod,
    elementwise.Square: lambda graph, op, inputs, type: graph.add("Mul", *[graph.name(inputs[0], type.dtype)] * 2),
    LeftShift: _shift,
    RightShift: _shift,
    logic.IsInf: _of_float("IsInf"),
    logic.IsNan: _of_float("IsNaN"),
    indexing.Gather: _gather,
    indexing.Take: _take,
    indexing.TakeAlongAxis: _take_along_axis,
    joining.Concatenate: _alike("Concat", lambda op: {"axis": op.axis}),
    joining.HeadLike: _part_like,
    joining.Pad: lambda graph, op, inputs, type: _padded(graph, inputs[0], op.pad_width, op.constant_values),
    joining.Repeat: _repeat,
    ordering.ArgSort: _sorted(1, False),
    ordering.Sort: _sorted(0, False),
    ordering.TopIndices: _sorted(1, True),
    reduction.AllTrue: _reduced("ReduceMin", bool),
    reduction.AnyTrue: _reduced("ReduceSum", bool),
    reduction.ArgMax: _argument("ArgMax"),
    reduction.ArgMin: _argument("ArgMin"),
    reduction.Count: _count,
    reduction.Max: _reduced("ReduceMax"),
    reduction.Mean: _reduced("ReduceMean"),
    reduction.Min: _reduced("ReduceMin"),
    reduction.Prod: _reduced("ReduceProd"),
    reduction.Sum: _reduced("ReduceSum"),
    scan.CumSum: lambda graph, op, inputs, type: graph.add(
        "CumSum", graph.name(inputs[0], type.dtype), graph.constant(op.axis)
    ),
    shape.BroadcastTo: lambda graph, op, inputs, type: graph.add(
        "Expand", graph.name(inputs[0]), graph.integers(*op.shape)
    ),
    shape.ExpandDims: _expand_dims,
    shape.Flip: _flip,
    shape.Reshape: lambda graph, op, inputs, type: _reshape(graph, inputs[0], graph.integers(*op.newshape)),
    shape.ReshapeLike: lambda graph, op, inputs, type: _reshape(graph, inputs[0], graph.shape(inputs[1])),
    shape.Slice: _slice,
    shape.Squeeze: _squeeze,
    shape.Transpose: lambda graph, op, inputs, type: _permuted(graph, graph.name(inputs[0]), op.axes),
    shape.Unslice: _unslice,
    LogSoftmax: _over("LogSoftmax"),
    Softmax: _over("Softmax"),
    Conv: _convolved,
    ConvTranspose: _convolved,
    AvgPool: _pooled("AveragePool"),
    MaxPool: _pooled("MaxPool"),
    WindowElement: _window_element,
    IndexAdd: _scattered,
    Scatter: _scattered,
    Parts: _parts,
}

#: Compositions, of the op and its operands.
COMPOSED: dict[type, Callable[..., Any]] = {
    Attention: lambda op, query, *others: op.composed(op.factor(query), query, *others),
    LogAddExp: lambda op, x, y: np.maximum(x, y) + np.log1p(np.exp(-abs(x - y))),
    Safelog: lambda op, x: np.log(np.maximum(x, math.exp(-50.0))),
    Sig2: lambda op, x: f.sig(x * math.log(2)),
    Tanh2: lambda op, x: np.tanh(x * math.log(2)),
    elementwise.CopySign: lambda op, x, y: np.where(_is_negative(op, y), -abs(x), abs(x)),
    elementwise.FloorDivide: _floor_divide,
    elementwise.Mod: lambda op, x, y: x - np.floor(x / y) * y,
    indexing.Lookup: _lookup,
    logic.Finite: lambda op, x: np.logical_not(np.isnan(x) | np.isinf(x)),
    logic.NotEqual: lambda op, x, y: np.logical_not(np.equal(x, y)),
    logic.SignBit: _is_negative,
    logic.Trunc: lambda op, x: np.sign(x) * np.floor(abs(x)) if is_floating(x.dtype) else x,
    ordering.IsIn: lambda op, x, values: np.any(np.equal(np.expand_dims(x, -1), np.reshape(values, -1)), axis=-1),
    ordering.SearchSorted: lambda op, x, v: f.cast(
        np.sum((np.less if op.side == "left" else np.less_equal)(x, np.expand_dims(v, -1)), axis=-1), "int64"
    ),
    transcendental.Arctan2: _arctan2,
    transcendental.Cbrt: lambda op, x: np.sign(x) * np.power(abs(x), 1 / 3),
    transcendental.Exp2: lambda op, x: np.power(2.0, x),
    transcendental.Expm1: _expm1,
    transcendental.Hypot: _hypot,
    transcendental.Log10: lambda op, x: np.log(x) / math.log(10),
    transcendental.Log1p: _log1p,
    transcendental.Log2: lambda op, x: np.log(x) / math.log(2),
    transcendental.Sech2: lambda op, x: 1 - np.square(np.tanh(x)),
}
