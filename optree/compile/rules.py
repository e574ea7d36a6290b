"""The rewriting rules, each a function of a value; `optree.compile.pipeline` has their order.

Rules may depend on dtypes, ranks, ops and their parameters, but not on sizes or, unless they
are fixed, on numbers: a plan serves trees with others too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from optree.compile.reference import performer, value_of
from optree.compile.rewriter import Having, Value, on
from optree.dtypes import can_cast, finfo, is_complex, is_floating, real_dtype
from optree.ops.structure import Output
from optree.registry import f
from optree.tree.types import TensorType
from optree.tree.variable import Constant, as_variable, in_dtype

# Merge equal work. Equal ops on the same values have been merged by `flatten`.


@on(fixed=True)
def equal_constants(value: Value) -> Any:
    """Constants that are equal bit by bit are merged, and then the ops on them."""
    first = [x.first_equal for x in value.inputs]
    return value.on(first) if any(a.number != b.number for a, b in zip(first, value.inputs, strict=True)) else None


# Shapes: a value of which only the shape is read need not be computed.


#: Ops that read only the shape of an operand.
_READ_SHAPES = Having(lambda op: bool(op.index_map.shape_only and not op.destroy_map))


@on(having=_READ_SHAPES)
def shapes_of_operands(value: Value) -> Any:
    """A shape is read from an earlier value of the same shape: the gradient of a cost does not compute the cost."""
    unread = value.op.index_map.shape_only
    inputs = [_of_same_shape(x) if i in unread else x for i, x in enumerate(value.inputs)]
    if all(getattr(a, "number", None) == b.number for a, b in zip(inputs, value.inputs, strict=True)):
        return None
    return value.op(*(x.operand if isinstance(x, Value) else x for x in inputs))


def _of_same_shape(value: Value) -> Any:
    """An earlier value whose type is equal in every call; a constant if all sizes are known to be 1; or itself."""
    dtype, found = value.dtype, value
    while not value.is_leaf and isinstance(value.type, TensorType):
        if all(size == 1 for size in value.type.shape):
            return Constant(TensorType(dtype, value.type.shape), np.zeros(value.type.shape, dtype))
        following = next((x for x in _inputs_of_same_shape(value) if not x.is_weak), None)
        if following is None:
            break
        value = following
        if value.dtype == dtype:
            found = value
    return found


def _inputs_of_same_shape(value: Value) -> list[Value]:
    """The inputs that always have a value's shape, leaves first."""
    inputs, reads = value.inputs, value.op.index_map
    if reads.shape_of is not None:
        return [inputs[reads.shape_of]]
    if reads.broadcasts:
        pattern = [size == 1 for size in value.type.shape]
        alike = [x for x in inputs if [size == 1 for size in x.type.shape] == pattern]
        return sorted(alike, key=lambda x: not x.is_leaf)
    return []


# Stabilise: the same function without intermediate overflow or cancellation.


@on("log", of=("softmax",))
def log_of_softmax(value: Value) -> Any:
    """log(softmax(x)) is log_softmax(x), which is not -inf where a probability underflows."""
    (inner,) = value.inputs
    return f.log_softmax(inner.inputs[0].operand, inner.op.axis)


@on("log", of=("sum",))
def log_of_sum_of_exp(value: Value) -> Any:
    """log(sum(exp(x))) is logsumexp(x), which does not overflow."""
    (total,) = value.inputs
    if not total.inputs[0].is_a("exp"):
        return None
    x = total.inputs[0].inputs[0]
    if x.dtype.kind == "c":
        return None
    return f.logsumexp(x.operand, axis=total.op.axis, keepdims=total.op.keepdims)


@on("log", fixed=True, of=("add", "sub"))
def log_of_one_plus(value: Value) -> Any:
    """log(1 + x) is log1p(x), and log(1 - x) is log1p(-x), which keep the digits of a small x."""
    (inner,) = value.inputs
    x, y = inner.inputs
    if inner.is_a("add") and y.literal == 1:
        x, y = y, x
    if x.literal != 1 or not y.is_float:  # an integer's sum may wrap
        return None
    return f.log1p(y.operand if inner.is_a("add") else f.neg(y.operand))


@on("exp", fixed=True, of=("mul", "neg"))
def exponential_of_imaginary(value: Value) -> Any:
    """exp(iy) is cos(y) + i sin(y), for an imaginary number times real values."""
    y = _over_i(value.inputs[0])
    return y if y is None else f.complex(f.cos(y), f.sin(y))


def _over_i(x: Value) -> Any:
    """The real values y of iy, a product of real values and one imaginary number; None for others."""
    if x.is_leaf:
        return x.constant.imag if isinstance(x.constant, complex) and x.constant.real == 0 else None
    if x.is_a("neg"):
        y = _over_i(x.inputs[0])
        return y if y is None else -y
    if not x.is_a("mul") or sum(is_complex(each.dtype) for each in x.inputs) != 1:
        return None
    real, imaginary = sorted(x.inputs, key=lambda each: is_complex(each.dtype))
    y = _over_i(imaginary)
    factor = real.constant if real.is_weak else in_dtype(real.operand, real_dtype(x.dtype))
    return y if y is None else factor * y


@on("square", of=("abs",))
def square_of_magnitude(value: Value) -> Any:
    """abs(z) ** 2 is re ** 2 + im ** 2, without a root."""
    z = value.inputs[0].inputs[0]
    return f.square(f.real(z.operand)) + f.square(f.imag(z.operand)) if is_complex(z.dtype) else None


@on("eq", fixed=True, of=("abs",))
def zero_magnitude(value: Value) -> Any:
    """abs(z) is 0 where both parts of z are."""
    size, zero = value.inputs
    if zero.literal != 0 or not size.is_a("abs") or not is_complex(size.inputs[0].dtype):
        return None
    z = size.inputs[0].operand
    return f.logical_and(f.eq(f.real(z), 0), f.eq(f.imag(z), 0))


@on("div", fixed=True, of=("mul",))
def magnitude_over_itself(value: Value) -> Any:
    """The product x * abs(z) / abs(z) is x, and 0 for a z of 0, in the derivative of abs(z) ** 2."""
    product, divisor = value.inputs
    if not (product.is_a("mul") and divisor.is_a("where") and divisor.inputs[2].is_a("abs")):
        return None
    is_zero, one, size = divisor.inputs
    factors = [x for x in product.inputs if x.number != size.number]
    is_known = is_zero.is_a("eq") and is_zero.inputs[0].number == size.number and is_zero.inputs[1].literal == 0
    if len(factors) != 1 or factors[0].is_weak or not is_known or one.literal != 1:
        return None
    return f.where(is_zero.operand, 0, factors[0].operand)


@on("log1p", of=("exp",))
def log1p_of_exp(value: Value) -> Any:
    """log1p(exp(x)) is softplus(x), which does not overflow."""
    (inner,) = value.inputs
    return f.softplus(inner.inputs[0].operand) if inner.inputs[0].is_float else None


@on("log", of=("sig",))
def log_of_sigmoid(value: Value) -> Any:
    """log(sig(x)) is log_sigmoid(x), which is not -inf for an x far below 0."""
    (inner,) = value.inputs
    return f.log_sigmoid(inner.inputs[0].operand) if inner.inputs[0].is_float else None


@on("log1p", of=("neg",))
def log_of_one_minus_sigmoid(value: Value) -> Any:
    """log1p(-sig(x)) is log_sigmoid(-x), which is not -inf for an x far above 0."""
    (inner,) = value.inputs
    if not inner.inputs[0].is_a("sig"):
        return None
    (x,) = inner.inputs[0].inputs
    return -f.softplus(x.operand) if x.is_float else None


@on("sub", fixed=True, of=("square", "pow", "mul"))
def one_minus_tanh_squared(value: Value) -> Any:
    """1 - tanh(x) ** 2 is sech2(x), which keeps its digits where tanh rounds to 1."""
    one, squared = value.inputs
    if one.literal != 1:
        return None
    is_square = (
        squared.is_a("square")
        or (squared.is_a("pow") and squared.inputs[1].literal == 2)
        or (squared.is_a("mul") and squared.inputs[0].number == squared.inputs[1].number)
    )
    if not is_square or not squared.inputs[0].is_a("tanh"):
        return None
    (x,) = squared.inputs[0].inputs
    return f.sech2(x.operand) if x.is_float else None


# Move casts, signs and scalars outward, where they can merge or cancel. Only if the result is bitwise equal:
# sum(x * c) is not sum(x) * c, nor (x * a) * y (x * y) * a, which round and overflow elsewhere.

#: Ops that permute or select elements of one array, each at most once.
_REARRANGING = Having(lambda op: op.index_map.rearranges)


@on(having=_REARRANGING, of=("cast", "neg"))
def casts_outward(value: Value) -> Any:
    """Elements are moved before a cast or a negation."""
    return _moved_first(value) if value.inputs[0].is_a("cast", "neg") else None


@on("sort", of=("cast",))
def sort_of_integers(value: Value) -> Any:
    """Integers are sorted before they become floats, of which the order is the same."""
    (x,) = value.inputs[0].inputs
    return f.cast(value.op(x.operand), value.dtype) if value.is_float and not (x.is_float or x.is_weak) else None


@on("max_pool", of=("relu",))
def pool_of_relu(value: Value) -> Any:
    """max_pool(relu(x)) is relu(max_pool(x)), one kernel, also with padding: no window is empty."""
    (inner,) = value.inputs
    return f.relu(value.op(inner.inputs[0].operand)) if inner.used_once else None


@on(having=_REARRANGING, fixed=True, of=("mul", "add", "sub", "div"))
def scalars_outward(value: Value) -> Any:
    """Elements are moved before arithmetic with a number."""
    return _moved_first(value) if value.inputs[0].is_a("mul", "add", "sub", "div") else None


def _moved_first(value: Value) -> Any:
    inner, *like = value.inputs
    arrays = [x for x in inner.inputs if x.literal is None]
    if not inner.used_once or len(arrays) != 1 or arrays[0].is_weak:
        return None
    moved = value.op(arrays[0].operand, *(x.operand for x in like))
    return inner.op(*(moved if x.literal is None else x.literal for x in inner.inputs))


@on("mul", "div", of=("neg",))
def sign_of_product(value: Value) -> Any:
    """``-x * y`` is -(x * y), and -x * -y is x * y: rounding is symmetric."""
    inputs = value.inputs
    negated = [x for x in inputs if x.is_a("neg") and _keeps_negation(value, x)]
    if not negated or (len(negated) == 1 and not negated[0].used_once):
        return None
    product = value.op(*((x.inputs[0] if x in negated else x).operand for x in inputs))
    return product if len(negated) == 2 else -product


def _keeps_negation(value: Value, negated: Value) -> bool:
    """Whether the product with a negated value is exactly the negated product; integers wrap."""
    is_whole = value.is_integral and value.is_a("mul") and negated.dtype == value.dtype
    return is_whole or (value.is_float and negated.is_float)


@on("mul", "add", fixed=True, of=("mul", "add"))
def scalars_together(value: Value) -> Any:
    """(x * a) * b is x * (a * b), for integers, and for floats if a and b are powers of two not below 1."""
    inner, b = _array_and_number(value)
    if inner is None or not inner.is_a(value.op.name) or inner.dtype != value.dtype:
        return None
    x, a = _array_and_number(inner)
    if x is None or x.dtype != value.dtype or x.dtype.kind == "b":
        return None
    if value.is_a("add"):
        return value.op(x.operand, a + b) if value.is_integral else None
    exact = value.is_integral or (_only_scales(a) and _only_scales(b) and np.isfinite(value.dtype.type(a * b)))
    return value.op(x.operand, a * b) if exact else None


def _array_and_number(value: Value) -> tuple[Any, Any]:
    """The operands of a binary op with a fixed number, which comes second; (None, None) without one."""
    x, y = value.inputs
    if y.literal is None:
        x, y = y, x
    return (x, y.literal) if y.literal is not None and x.literal is None else (None, None)


def _only_scales(number: Any) -> bool:
    """Whether a number is a power of two not below 1: no rounding, and an overflow persists in the final product."""
    return math.isfinite(number) and abs(number) >= 1 and math.frexp(number)[0] in (0.5, -0.5)


@on("neg", fixed=True, of=("mul",))
def sign_into_number(value: Value) -> Any:
    """-(x * c) is x * -c."""
    (product,) = value.inputs
    if not product.is_float or not product.used_once:
        return None
    x, number = _array_and_number(product)
    if x is None or x.dtype != value.dtype:
        return None
    return product.op(x.operand, -0.0 if number == 0 and type(number) is not float else -number)


# Cancel. Not exp(log(x)) or log(exp(x)), which are not bitwise x.


@on("neg", of=("neg",))
def double_negation(value: Value) -> Any:
    """``-(-x)`` is x."""
    (inner,) = value.inputs
    return inner.inputs[0].operand


@on("add", "sub", of=("neg",))
def negated_terms(value: Value) -> Any:
    """``x + -y`` is x - y, -x + y is y - x, and x - -y is x + y."""
    x, y = value.inputs
    if y.is_a("neg") and _same_dtype(value, y):
        return (f.sub if value.is_a("add") else f.add)(x.operand, y.inputs[0].operand)
    if value.is_a("add") and x.is_a("neg") and _same_dtype(value, x):
        return f.sub(y.operand, x.inputs[0].operand)
    return None


def _same_dtype(value: Value, negated: Value) -> bool:
    # The negation of a narrow integer wraps before it is promoted.
    return negated.dtype == value.dtype


@on("transpose", of=("transpose",))
def transposes(value: Value) -> Any:
    """Two transposes are one, or none if they are inverse."""
    (inner,) = value.inputs
    axes, (x,) = tuple(inner.op.axes[axis] for axis in value.op.axes), inner.inputs
    return x.operand if axes == tuple(range(len(axes))) else f.transpose(x.operand, axes)


#: Ops that keep the elements in C order.
_RESHAPES = Having(lambda op: op.index_map.keeps_order)


@on("reshape", "reshape_like", of=_RESHAPES)
def reshape_of_reshape(value: Value) -> Any:
    """A reshape of a reshape is the outer one."""
    inner, *like = value.inputs
    return value.op(inner.inputs[0].operand, *(x.operand for x in like)) if inner.is_among(_RESHAPES) else None


@on("cast")
def cast_to_own_dtype(value: Value) -> Any:
    """A cast to its operand's dtype is the operand."""
    (x,) = value.inputs
    return x.operand if x.dtype == value.dtype else None


@on("cast", of=("cast",))
def cast_of_cast(value: Value) -> Any:
    """An intermediate cast to a wider dtype is dropped."""
    (inner,) = value.inputs
    (x,) = inner.inputs
    # The integer that a float out of range is cast to may depend on the width of the float.
    alike = value.is_float or value.dtype.kind == "b" or (x.dtype.kind in "biu" and inner.dtype.kind in "biu")
    return f.cast(x.operand, value.dtype) if alike and _holds_all(inner.dtype, x.dtype) else None


def _holds_all(wide: np.dtype, narrow: np.dtype) -> bool:
    """Whether a dtype represents every value of another."""
    if is_floating(wide) and narrow.kind in "iu":  # NumPy says so of float64 and int64
        return narrow.itemsize * 8 <= finfo(wide).nmant + 1
    return bool(can_cast(narrow, wide, "safe"))


@on("copy")
def copies(value: Value) -> Any:
    """A copy is its operand: the scheduler adds the copies that are needed."""
    (x,) = value.inputs
    return x.operand


@on("mul", "div", fixed=True)
def times_one(value: Value) -> Any:
    """``x * 1``, 1 * x and x / 1 are x."""
    x, y = value.inputs
    if y.literal == 1:
        return x.operand
    return y.operand if x.literal == 1 and value.is_a("mul") else None


@on("add", "sub", fixed=True)
def plus_zero(value: Value) -> Any:
    """``x - 0`` is x; so is x + 0 for integers, and x + -0.0, but not x + 0.0 where x is -0.0."""
    x, y = value.inputs
    if value.is_a("add") and x.literal == 0:
        x, y = y, x
    if y.literal != 0:
        return None
    adds_minus_zero = math.copysign(1.0, y.literal) == (-1.0 if value.is_a("add") else 1.0)
    return x.operand if adds_minus_zero or x.is_integral else None


# Fold.


@on(fixed=True)
def fold_constants(value: Value) -> Any:
    """Constant folding, if the op allows it and the result is no larger than its operands."""
    leaves, op = [x.constant for x in value.inputs], value.op
    if not leaves or any(leaf is None for leaf in leaves) or isinstance(op, Output):
        return None
    if isinstance(value.type, TensorType):
        if None in value.type.shape or value.node.size > max(1, *(_elements(leaf) for leaf in leaves)):
            return None
    elif len(value.node.owner.outputs) > 1:
        return None
    try:
        if not op.do_constant_folding(value.node.owner):
            return None
        with np.errstate(all="ignore"):
            found = performer(value.instruction)(*map(value_of, leaves))
        return Constant(value.type, found)
    except Exception:  # it is raised when the program runs, with the origin
        return None


def _elements(leaf: object) -> int:
    return int(np.size(as_variable(leaf).value))  # type: ignore[attr-defined]
