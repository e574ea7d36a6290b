"""Vector-Jacobian and Jacobian-vector products (`Lop`, `Rop`), Jacobians and Hessians.

`Lop` is reverse mode, seeded by a given vector. `Rop` is forward mode: it traverses
the tree from the leaves up and applies each op's `R_op`. An op without one is
differentiated twice: its vjp is linear in the output's gradient, so the derivative of
the vjp by that gradient, seeded by the directions in the inputs, is the jvp.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from optree.autodiff.api import as_adjoint, as_list, gradients, operand_of, seeded, tell_disconnected
from optree.autodiff.reverse import adjoints_of, application_of, deltas_of, inputs_of, target_of
from optree.dtypes import floating, is_complex, is_floating, is_inexact, real_dtype
from optree.errors import DefinitionError, GradientError, ShapeError, describe
from optree.op.op import Op
from optree.registry import OPS
from optree.registry import f as functions
from optree.tree.gradient_types import is_disconnected, is_discrete, is_null, sum_of_deltas, zero_gradient
from optree.tree.node import post_order
from optree.tree.tensor import Tensor
from optree.tree.types import TensorType, TupleType
from optree.tree.variable import Variable, conjugated, constant, in_dtype


def Lop(
    f: object,
    wrt: Variable | Sequence[Variable],
    eval_points: object,
    consider_constant: object = (),
    disconnected_inputs: str = "raise",
) -> Any:
    """The vector-Jacobian product: the derivative of ``sum(eval_points * f)``.

    Parameters
    ----------
    f : Variable, or list or tuple of them
        The differentiated variables.
    wrt : Variable, or list or tuple of them
        The variables to differentiate by.
    eval_points : Variable or number, or list or tuple of them
        The vector: one part for each f, of its shape.
    consider_constant, disconnected_inputs
        As in `grad`.

    Returns
    -------
    OpTreeNode, or list of them
        One for each operand in `wrt`, of its shape.

    Examples
    --------
    >>> x, v = be.array([1.0, 2.0], name="x"), be.array([1.0, 10.0], name="v")
    >>> Lop(x * x, x, v).asnumpyarray()
    array([ 2., 40.], dtype=float32)
    """
    seeds: dict[Variable, Any] = {}
    for output, point in _pairs("Lop", "f", f, eval_points):
        _add(seeds, output, point)
    return gradients(seeds, wrt, disconnected_inputs, constants=consider_constant)


def Rop(f: object, wrt: Variable | Sequence[Variable], eval_points: object) -> Any:
    """The Jacobian-vector product: the directional derivative of f along `eval_points`.

    Parameters
    ----------
    f : Variable, or list or tuple of them
        The differentiated variables.
    wrt : Variable, or list or tuple of them
        The variables to differentiate by.
    eval_points : Variable, number or None, or list or tuple of them
        The vector: one part for each operand in `wrt`, of its shape, None for zero.

    Returns
    -------
    OpTreeNode, or list of them
        One for each f, of its shape.

    Raises
    ------
    DisconnectedError
        If no f contains an operand.
    GradientError
        If there is no derivative by it.

    Examples
    --------
    >>> w, x = be.array([[1.0, 2.0], [3.0, 4.0]]), be.array([1.0, 1.0])
    >>> Rop(be.tanh(be.dot(w, x) * 0.0), x, be.array([1.0, 0.0])).asnumpyarray()
    array([0., 0.], dtype=float32)
    >>> Rop(be.dot(w, x), x, be.array([1.0, 0.0])).asnumpyarray()
    array([1., 3.], dtype=float32)
    """
    outputs = [operand_of(x) for x in as_list(f)]
    order = post_order(outputs, inputs_of)
    reached = {id(x) for x in order}
    directions: dict[Variable, Any] = {}
    for operand, point in _pairs("Rop", "wrt", wrt, eval_points):
        target = target_of(operand, order)
        if id(target) not in reached:
            tell_disconnected(outputs, operand, "raise")
        if point is not None:
            _add(directions, target, _lifted(point, operand, target))
    dtype = floating(*(real_dtype(x.dtype) for x in outputs if isinstance(x.type, TensorType)))
    for variable in order:
        pushed = _push(variable, directions, dtype)
        if pushed is not None:
            _add(directions, variable, pushed)
    found = [directions.get(x) for x in outputs]
    found = [zero_gradient(x, dtype) if d is None else d for x, d in zip(outputs, found, strict=True)]
    return found[0] if isinstance(f, Variable) else found


def jacobian(
    expression: Variable,
    wrt: Variable | Sequence[Variable],
    consider_constant: object = (),
    disconnected_inputs: str = "raise",
    holomorphic: bool = False,
) -> Any:
    """The Jacobian of an expression.

    It has one backward pass for each element of the expression, all in one tree, whose size and compile time grow with
    their number. `Lop` and `Rop` give products with the Jacobian in one pass.

    Parameters
    ----------
    expression : Variable
        All its sizes must be known.
    wrt : Variable, or list or tuple of them
        The variables to differentiate by.
    consider_constant, disconnected_inputs
        As in `grad`.
    holomorphic : bool
        Whether it is the complex derivative of an expression that is a holomorphic function of complex operands.

    Returns
    -------
    Variable, or list of them
        One for each operand, of the expression's shape followed by the operand's: a
        matrix where both are vectors.

    Examples
    --------
    >>> x = be.array([1.0, 2.0], name="x")
    >>> jacobian(x * be.sum(x, keepdims=False), x).asnumpyarray()
    array([[4., 1.],
           [2., 5.]], dtype=float32)
    >>> z = be.array([1j, 2.0], name="z")
    >>> jacobian(z * z, z, holomorphic=True).asnumpyarray()
    array([[0.+2.j, 0.+0.j],
           [0.+0.j, 4.+0.j]], dtype=complex64)
    """
    _check_complex("jacobian", expression, wrt, holomorphic)
    return _jacobian(expression, wrt, consider_constant, disconnected_inputs, holomorphic)


def _jacobian(expression: Any, wrt: Any, constants: Any, disconnected_inputs: str, holomorphic: bool) -> Any:
    expression = operand_of(expression)
    operands = [operand_of(x) for x in as_list(wrt)]
    for x in (expression, *operands):
        if None in x.shape:
            raise ShapeError(f"jacobian: the sizes of {describe(x)} must be known; Lop and Rop need not know them")
    dtype = floating(expression.dtype)
    has_parts = is_complex(dtype) and not holomorphic  # of real operands: the derivatives of both parts
    rows = []
    for seed, i in product((1, -1j) if has_parts else (1,), range(expression.size)):
        unit = np.zeros(expression.size, dtype)
        unit[i] = seed
        seeds = {expression: constant(unit.reshape(expression.shape))}
        rows.append(gradients(seeds, operands, disconnected_inputs, constants=constants, convention="jax"))
    found = []
    for x, parts in zip(operands, zip(*rows, strict=True) if rows else [()] * len(operands), strict=True):
        shape = (*(2,) * has_parts, *expression.shape, *x.shape)
        each = _stacked(list(parts), shape, x.dtype if is_inexact(x.dtype) else real_dtype(dtype))
        found.append(functions.complex(each.at[0], each.at[1]) if has_parts else each)
    return found[0] if isinstance(wrt, Variable) else found


def _check_complex(what: str, expression: Any, wrt: Any, holomorphic: bool) -> None:
    """Raise GradientError for complex numbers by which, or of which, there is no such derivative."""
    expression = operand_of(expression)
    operands = [operand_of(x) for x in as_list(wrt)]
    for x in operands:
        if is_complex(x.dtype) and not holomorphic:
            raise GradientError(
                f"{what}: {describe(x)} is complex: derivatives by its parts are real, as by [z.real, z.imag] of a "
                "tensor z, and that of a holomorphic function is complex, with holomorphic=True"
            )
    if not holomorphic:
        return
    for x in (expression, *operands):
        if not is_complex(x.dtype):
            raise GradientError(f"{what}: holomorphic=True is of complex numbers, and {describe(x)} is real")
    order = post_order([expression], lambda x: [] if is_discrete(x) else inputs_of(x))
    moved = {id(target_of(x, order)) for x in operands}
    for node in order:
        if is_discrete(node) or moved.isdisjoint(map(id, inputs_of(node))):
            continue
        moved.add(id(node))
        is_real = isinstance(node.type, TensorType) and is_floating(node.dtype)
        if is_real or isinstance(application_of(node)[0], OPS["conjugate"]):
            raise GradientError(
                f"{what}: {describe(node)} is no holomorphic function; derivatives by the parts of its operand are "
                "real, as by [z.real, z.imag] of a tensor z"
            )


def hessian(
    cost: Variable,
    wrt: Variable | Sequence[Variable],
    consider_constant: object = (),
    disconnected_inputs: str = "raise",
    holomorphic: bool = False,
) -> Any:
    """The Hessian of a scalar by each operand: the Jacobian of its gradient.

    As in `jacobian`, there is one backward pass for each element of the operand.

    Parameters
    ----------
    cost, wrt, consider_constant, disconnected_inputs
        As in `grad`.
    holomorphic : bool
        As in `jacobian`, of a complex scalar.

    Returns
    -------
    Variable, or list of them
        One for each operand, of its shape twice: a matrix for a vector.

    Examples
    --------
    >>> x = be.array([1.0, 2.0], name="x")
    >>> hessian(be.sum(x * x * x), x).asnumpyarray()
    array([[ 6.,  0.],
           [ 0., 12.]], dtype=float32)
    """
    operands = [operand_of(x) for x in as_list(wrt)]
    seeds = seeded(functions.real(cost) if holomorphic else cost, None)  # of f = u + iv it is d/dz = du/dx - i du/dy
    _check_complex("hessian", cost, operands, holomorphic)
    first = gradients(seeds, operands, disconnected_inputs, constants=consider_constant, convention="jax")
    # Where the cost is linear, its gradient does not contain the operand, and the Hessian is zero.
    found = [_jacobian(g, x, consider_constant, "ignore", holomorphic) for g, x in zip(first, operands, strict=True)]
    return found[0] if isinstance(wrt, Variable) else found


def hessian_vector_product(cost: Variable, wrt: Variable | Sequence[Variable], p: object) -> Any:
    """The Hessian-vector product of a scalar, in two passes, without the Hessian.

    Parameters
    ----------
    cost, wrt
        As in `grad`.
    p : Variable or number, or list or tuple of them
        The vector: one part for each operand in `wrt`, of its shape.

    Returns
    -------
    OpTreeNode, or list of them
        One for each operand in `wrt`, of its shape.

    Examples
    --------
    >>> x, p = be.array([1.0, 2.0], name="x"), be.array([1.0, 10.0], name="p")
    >>> hessian_vector_product(be.sum(x * x * x), x, p).asnumpyarray()
    array([  6., 120.], dtype=float32)
    """
    return Lop(gradients(seeded(cost, None), wrt), wrt, p, disconnected_inputs="ignore")


def _pairs(what: str, name: str, variables: object, points: object) -> list[tuple[Any, Any]]:
    """Each variable with its part of a vector, in its dtype."""
    operands, given = [operand_of(x) for x in as_list(variables)], as_list(points)
    if len(operands) != len(given):
        raise ShapeError(f"{what}: {len(given)} eval_points for {len(operands)} of {name}")
    return [
        (x, point if point is None else as_adjoint(x, point, "eval_points"))
        for x, point in zip(operands, given, strict=True)
    ]


def _add(directions: dict[Variable, Any], variable: Variable, direction: object) -> None:
    directions[variable] = sum_of_deltas(directions.get(variable), direction)


def _stacked(rows: list[Any], shape: tuple[int, ...], dtype: DTypeLike) -> Any:
    if not rows:
        return constant(np.zeros(shape, dtype))
    return functions.reshape(functions.stack(rows), shape)


def _lifted(direction: Any, operand: Any, target: Variable) -> Any:
    """A direction in a view, as a direction in its base."""
    while operand is not target:
        adjoints: dict[Variable, Any] = {}
        operand.view_op.generate_adjoints(adjoints, conjugated(direction), operand.base)
        operand, direction = operand.base, conjugated(adjoints[operand.base])
    return direction


def _push(variable: Variable, directions: dict[Variable, Any], dtype: DTypeLike) -> Any:
    """The jvp of a node or view from its operands' directions; None where it is zero, a list for several outputs."""
    if not inputs_of(variable):
        return None
    op, operands = application_of(variable)
    if isinstance(operands[0].type, TupleType):
        pushed = directions.get(operands[0])
        return pushed[op.index] if pushed else None
    points = [directions.get(x) for x in operands]
    if all(point is None for point in points):
        return None
    outputs = [variable] if isinstance(variable, Tensor) else variable.owner.outputs
    try:
        if op.defines("R_op"):
            found = _checked(op, op.R_op(operands, points), outputs)
        else:
            found = _differentiated_twice(variable, dict(zip(operands, points, strict=True)), outputs, dtype)
    except GradientError as error:
        raise GradientError(f"{op}: no directional derivative at {describe(variable)}: {error}") from error
    except Exception as error:
        error.add_note(f"in the directional derivative of {describe(variable)}")
        raise
    found = [None if is_discrete(x) else r for r, x in zip(found, outputs, strict=True)]
    return found if isinstance(variable.type, TupleType) else found[0]


def _checked(op: Op, found: object, outputs: Sequence[Any]) -> list[Any]:
    """The values of an op's R_op, checked, each broadcast and cast to its output's type."""
    if not isinstance(found, list | tuple) or len(found) != len(outputs):
        raise DefinitionError(f"{op}.R_op returns a list of {len(outputs)} derivatives, not {describe(found)}")
    checked: list[Any] = []
    for r, out in zip(found, outputs, strict=True):
        if r is not None and not isinstance(r, Variable):
            raise GradientError(f"a directional derivative is a tree of a floating dtype, not {describe(r)}")
        if r is None or is_disconnected(r):
            checked.append(None)
        elif is_null(r):
            raise GradientError(r.type.why_null)
        elif not isinstance(out.type, TensorType):
            checked.append(r)
        else:
            if not is_inexact(r.dtype):
                raise GradientError(f"a directional derivative is a tree of a floating dtype, not {describe(r)}")
            r = r if r.shape == out.shape else functions.broadcast_like(r, out)
            checked.append(r.astype(out.dtype) if is_inexact(out.dtype) and r.dtype != out.dtype else r)
    return checked


def _differentiated_twice(
    variable: Variable, points: dict[Variable, Any], outputs: Sequence[Any], dtype: Any
) -> list[Any]:
    """The jvp of an op's outputs, by differentiating its vjp."""
    # The value does not matter; each is a new node, by which the vjp can be differentiated.
    units = [zero_gradient(out, dtype) for out in outputs]
    sent = deltas_of(variable, units if isinstance(variable.type, TupleType) else units[0], dtype)
    seeds: dict[Variable, Any] = {}
    for x, point in points.items():
        gradient = sent.get(x)
        if point is None or gradient is None:
            continue
        if is_null(gradient):
            raise GradientError(gradient.type.why_null)
        _add(seeds, gradient, in_dtype(point, gradient.dtype))
    constants = [variable, *outputs, *application_of(variable)[1]]
    found = adjoints_of(seeds, units, dtype, constants=constants)
    return [None if is_disconnected(r) else r for r in found]
