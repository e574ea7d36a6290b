"""Derivatives as trees: `grad`, Nervana graph's `deriv` and neon's `Autodiff`.

The gradient of a real cost by complex numbers x + iy is d(cost)/dx + i d(cost)/dy, the direction of steepest ascent: as
torch's, and the conjugate of JAX's, which `grad` gives for ``convention="jax"``. So ``w - rate * gradient`` descends.
A vector that `Lop` or `known_grads` is given is such a gradient too, while the tangents of `Rop` are changes of the
operands.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.autodiff.reverse import adjoints_of, inputs_of
from optree.dtypes import floating, is_inexact, real_dtype
from optree.errors import (
    BackendError,
    DisconnectedError,
    DTypeError,
    GradientError,
    OperandError,
    ShapeError,
    SizeError,
    brief,
    describe,
)
from optree.registry import f
from optree.tree.gradient_types import is_disconnected, is_null, zero_gradient
from optree.tree.lazy import LazyValue
from optree.tree.node import post_order
from optree.tree.types import TensorType, may_equal
from optree.tree.variable import Variable, as_operand, as_variable, conjugated, in_dtype, is_neon

#: The values of `disconnected_inputs` and `return_disconnected`.
DISCONNECTED_INPUTS = ("raise", "warn", "ignore")
RETURN_DISCONNECTED = ("zero", "none", "disconnected")

#: Those of `convention`: from a gradient to the adjoint of the reverse pass, d/dx - i d/dy of x + iy, and back.
CONVENTIONS = {"torch": conjugated, "jax": lambda gradient: gradient}


def grad(
    cost: Any,
    wrt: Any = None,
    known_grads: dict[Variable, Any] | None = None,
    disconnected_inputs: str = "raise",
    consider_constant: Any = (),
    return_disconnected: str = "zero",
    convention: str = "torch",
) -> Any:
    """The derivative of a scalar with respect to one operand or several, as trees.

    Parameters
    ----------
    cost : Variable, array or None
        A tree of one element, or a lazy array of `optree.xp`. None where `known_grads` replaces it.
    wrt : Variable or array, or list or tuple of them
        Tensors, inputs or nodes in the cost, found by identity; a derivative by a tensor
        includes those by its views.
    known_grads : dict, optional
        From variables to the cost's derivative by them.
    disconnected_inputs : {'raise', 'warn', 'ignore'}
        The response to an operand whose elements the cost does not depend on.
    consider_constant : Variable, or list or tuple of them
        Variables through which no derivative propagates.
    return_disconnected : {'zero', 'none', 'disconnected'}
        The derivative by a disconnected operand: zeros, None, or a variable of `DisconnectedType`.
    convention : {'torch', 'jax'}
        By complex numbers x + iy the derivative is d/dx + i d/dy, or its conjugate; so are those in `known_grads`.

    Returns
    -------
    OpTreeNode or array, or list of them
        One for each operand, an array for an array, of its shape and dtype; by an operand of integers, which are
        treated as real numbers, of the cost's dtype. No derivative propagates through a value of integers: it is zero.

    Raises
    ------
    GradientError
        If the cost is no scalar, if a derivative does not exist, or if an op's derivative is of a wrong type.
    DisconnectedError
        If the cost does not depend on an operand's elements.

    Examples
    --------
    >>> x, y = be.array([1.0, 2.0, 3.0], name="x"), be.ones(3, name="y")
    >>> grad(be.sum(x * x), x).asnumpyarray()
    array([2., 4., 6.], dtype=float32)
    >>> square = x * x
    >>> grad(None, x, known_grads={square: y}).asnumpyarray()
    array([2., 4., 6.], dtype=float32)
    >>> grad(be.sum(square * x), x, consider_constant=square).asnumpyarray()
    array([1., 4., 9.], dtype=float32)
    """
    given = {(x := operand_of(key)): as_adjoint(x, value, "known_grads") for key, value in (known_grads or {}).items()}
    if cost is None and not given:
        raise GradientError("grad: without a cost, give known_grads")
    seeds = {} if cost is None else seeded(_of_array(cost), None)
    if wrt is None:
        raise GradientError("grad: by which operands? optree.grad(cost, [w, b]) has one derivative for each")
    return gradients(seeds, wrt, disconnected_inputs, return_disconnected, given, consider_constant, convention)


def _of_array(cost: object) -> Any:
    """A cost; of an array its tree."""
    if not isinstance(cost, LazyValue):
        return cost
    if not cost.is_lazy:
        raise GradientError(
            "grad: the cost has been computed, because its value was asked for or because it is of more operations "
            "than a lazy one may have, and does not tell what of; take the derivative of a lazy array"
        )
    return cost.tree


def value_and_grad(cost: object, wrt: object = None, **options: Any) -> tuple[Any, Any]:
    """A scalar and its derivative with respect to one operand or several, as a pair of trees.

    Evaluated together, as by ``be.evaluate`` or in one `optree.function`, what they share is computed once.

    Parameters
    ----------
    cost : Variable
        A tree of one element.
    wrt : Variable, or list or tuple of them
    **options
        As of `grad`.

    Returns
    -------
    tuple
        The cost, and what `grad` gives: a tree, or a list of them.

    Examples
    --------
    >>> w = be.array([1.0, 2.0, 3.0])
    >>> value, gradient = be.evaluate(value_and_grad(be.sum(w * w, keepdims=False), w))
    >>> value.item(), gradient.get()
    (14.0, array([2., 4., 6.], dtype=float32))
    """
    return cost, grad(cost, wrt, **options)


def deriv(dependent: Variable, independent: Variable, error: object = None) -> Any:
    """Nervana graph's derivative: a vector-Jacobian product of one operand by another.

    Parameters
    ----------
    dependent : Variable
        A scalar, unless an error is given.
    independent : Variable
        The derivative is zero if `dependent` does not contain it.
    error : Variable or number, optional
        The vector, of the shape of `dependent`.

    Examples
    --------
    >>> x, error = be.array([1.0, 2.0]), be.array([1.0, 10.0])
    >>> deriv(x * x, x, error).asnumpyarray()
    array([ 2., 40.], dtype=float32)
    """
    return gradients(seeded(dependent, error), independent, "ignore")


class Autodiff:
    """neon's interface to derivatives.

    Parameters
    ----------
    op_tree : Variable
        The tree to differentiate.
    be : Backend
        The backend that runs it.
    next_error : Variable or number, optional
        The derivative of the final cost by `op_tree`'s value, of its shape.
        Without it `op_tree` must be a scalar, except on a backend in neon's
        mode, where it is then ones, as in neon.

    Raises
    ------
    GradientError, ShapeError, BackendError
        If it is no scalar, `next_error` has another shape, or the tree is on another
        backend.

    Examples
    --------
    >>> x = be.array([[1.0, 2.0]], name="x")
    >>> ad = Autodiff(x * x, be, next_error=be.ones((1, 2)))
    >>> ad.get_grad_asnumpyarray([x])
    [array([[2., 4.]], dtype=float32)]
    """

    def __init__(self, op_tree: Variable, be: Any, next_error: Any = None) -> None:
        if getattr(op_tree, "backend", None) not in (None, be):
            raise BackendError(f"Autodiff: {describe(op_tree)} is of {op_tree.backend}, not {be}")
        self.op_tree: Any = op_tree
        self.be = be
        self.seeds = seeded(op_tree, next_error)

    def cleanup(self) -> None:
        """Drop the references to trees and tensors; the object has no derivatives then, and its tree has."""
        self.op_tree, self.seeds = None, {}

    def get_grad_op_tree(self, tensors: Any) -> Any:
        """The derivatives as trees: a list for a list or tuple, one for one tensor."""
        if self.op_tree is None:
            raise GradientError("Autodiff: cleanup() has dropped the tree; Autodiff(tree, be) differentiates it anew")
        # neon gives zeros for tensors that are not in the tree.
        return gradients(self.seeds, tensors, "ignore" if is_neon(self.be) else "raise")

    def get_grad_tensor(self, tensors: object) -> Any:
        """The derivatives as new tensors: a list for a list or tuple, one for one tensor."""
        trees = self.get_grad_op_tree(tensors)
        return self.be.evaluate(trees) if isinstance(trees, list) else self.be.evaluate([trees])[0]

    def get_grad_asnumpyarray(self, tensors: object) -> Any:
        """The derivatives as NumPy arrays: a list for a list or tuple, one for one tensor."""
        found = self.get_grad_tensor(tensors)
        return [x.get() for x in found] if isinstance(found, list) else found.get()

    def back_prop_grad(self, tensors: object, gradients: object) -> None:
        """Write the derivatives into buffers, which may be tensors that `op_tree` or `next_error` reads.

        All are computed before the first is written.

        Parameters
        ----------
        tensors, gradients : Tensor, or lists of equal length
            The tensors to differentiate by, and the buffers for their derivatives.

        Raises
        ------
        ShapeError, DTypeError
            If a buffer has another shape than its tensor, or is not floating; nothing
            has been written then.
        """
        tensors, buffers = as_list(tensors), as_list(gradients)
        if len(tensors) != len(buffers):
            raise ShapeError(f"back_prop_grad: {len(tensors)} tensors and {len(buffers)} gradients")
        for tensor, buffer in zip(tensors, buffers, strict=True):
            if buffer.shape != tensor.shape:
                raise ShapeError(f"back_prop_grad: {describe(buffer)} is not of the shape of {describe(tensor)}")
            if not is_inexact(buffer.dtype):
                raise DTypeError(f"back_prop_grad: a derivative does not go into {describe(buffer)}: it is floating")
        trees = self.get_grad_op_tree(tensors)
        for buffer, value in zip(buffers, self.be.evaluate(trees), strict=True):
            buffer[...] = value


def gradients(
    seeds: dict[Variable, Any],
    wrt: Variable | Sequence[Variable],
    disconnected_inputs: str = "raise",
    return_disconnected: str = "zero",
    known: dict[Variable, Any] | None = None,
    constants: Any = (),
    convention: str = "torch",
) -> Any:
    """The derivatives by one operand or several, given the adjoints of some variables; see `grad` and `adjoints_of`."""
    for name, given, known_words in (
        ("disconnected_inputs", disconnected_inputs, DISCONNECTED_INPUTS),
        ("return_disconnected", return_disconnected, RETURN_DISCONNECTED),
        ("convention", convention, tuple(CONVENTIONS)),
    ):
        if given not in known_words:
            raise GradientError(f"{name} is one of {', '.join(known_words)}, not {given!r}")
    operands = [operand_of(x) for x in as_list(wrt)]
    turned = CONVENTIONS[convention]
    seeds, known = ({x: turned(delta) for x, delta in given.items()} for given in (seeds, known or {}))
    adjoints = [*seeds.values(), *known.values()]
    dtype = floating(*(real_dtype(x.dtype) for x in adjoints if isinstance(x.type, TensorType)))
    found = adjoints_of(seeds, operands, dtype, known, [operand_of(x) for x in as_list(constants)])
    found = [*map(turned, found)]
    roots = [*seeds, *known]
    for i, (operand, gradient) in enumerate(zip(operands, found, strict=True)):
        if is_null(gradient):
            raise GradientError(
                f"there is no derivative of {_listed(roots)} by {describe(operand)}: {gradient.type.why_null}"
            )
        if is_disconnected(gradient):
            tell_disconnected(roots, operand, disconnected_inputs)
            if return_disconnected != "disconnected":
                found[i] = None if return_disconnected == "none" else zero_gradient(operand, dtype)
    found = _like(as_list(wrt), found)
    return found if isinstance(wrt, list | tuple) and not isinstance(wrt, Variable) else found[0]


def _like(wrt: Sequence[Any], gradients: list[Any]) -> list[Any]:
    """The derivatives, those by arrays as arrays."""
    absent = {i for i, gradient in enumerate(gradients) if gradient is None or is_disconnected(gradient)}
    chosen = [i for i, x in enumerate(wrt) if isinstance(x, LazyValue) and i not in absent]
    arrays = type(wrt[chosen[0]]).together([gradients[i] for i in chosen]) if chosen else []
    for i, array in zip(chosen, arrays, strict=True):
        gradients[i] = array
    return gradients


def _listed(variables: Sequence[Variable]) -> str:
    return ", ".join(x.label for x in variables)


def tell_disconnected(roots: Sequence[Variable], operand: Variable, how: str) -> None:
    """Raise or warn that the cost does not depend on an operand's elements."""
    if how == "ignore":
        return
    if any(x is operand for x in post_order(roots, inputs_of)):
        reason = (
            f"the cost {_listed(roots)} does not depend on the elements of {describe(operand)}, "
            "though it may on its shape"
        )
    else:
        reason = (
            f"the cost {_listed(roots)} does not contain {describe(operand)}; operands are compared by identity, "
            "so it must be the very object that the cost was built from"
        )
    reason += "; disconnected_inputs='ignore' gives zeros"
    if how == "raise":
        raise DisconnectedError(reason)
    warnings.warn(reason, stacklevel=4)


def operand_of(given: object) -> Any:
    """A variable of a derivative, checked; an Apply's output is replaced by its node."""
    if isinstance(given, LazyValue):
        given = given.tree
    if not isinstance(given, Variable):
        raise OperandError(f"a derivative is by a tensor, an input or a node, not {describe(given)}")
    return as_operand(given, "grad")


def seeded(cost: Any, next_error: Any) -> dict[Variable, Any]:
    """A cost with its seed, the adjoint that it starts from: 1 unless it is given.

    Raises
    ------
    GradientError, ShapeError
        If the cost is no tree, is no scalar where no seed is given, or has another shape than the seed.
    """
    if callable(cost) and not isinstance(cost, Variable):
        raise GradientError(
            f"the cost is a tree, and {brief(cost)} is a function: optree.grad(cost(x), x) is of what it returns, and "
            "optree.jit(lambda x: optree.grad(cost(x), x)) a function of values"
        )
    if not isinstance(cost, Variable) or not isinstance(cost.type, TensorType):
        raise GradientError(
            f"the cost is a tensor or a tree of a floating dtype, not {describe(cost)}; "
            "what is neither takes known_grads={cost: its own gradient}"
        )
    cost = operand_of(cost)
    starts = next_error is None
    if starts and cost.dtype.kind == "c":
        raise GradientError(
            f"the cost is real, not {describe(cost)}: be.real(cost), or be.abs(cost) ** 2, has a direction of steepest "
            "ascent; optree.Lop takes a vector for complex values"
        )
    if starts:
        neon = is_neon(cost.backend)
        if not neon and any(size != 1 for size in cost.shape):
            raise GradientError(
                f"the cost is a scalar, not {describe(cost)}: reduce it, as be.sum(cost) does, "
                "or give its own adjoint: Autodiff(cost, be, next_error=...)"
            )
        next_error = 1.0
    adjoint = as_adjoint(cost, next_error, "next_error")
    if starts:
        adjoint.starts_gradient = True
    return {cost: adjoint}


def as_adjoint(variable: Variable, given: Any, what: str) -> Any:
    """A user's adjoint for a variable, cast to its dtype; a number is broadcast to its shape.

    Raises
    ------
    ShapeError, GradientError
        If it has another shape or type; `what` names it.
    """
    error = as_variable(given) if not isinstance(given, Variable) else operand_of(given)
    if not isinstance(variable.type, TensorType):
        if not variable.type.holds(error.type):
            raise GradientError(f"{what}: {describe(error)} is not of the type of {describe(variable)}")
        return error
    dtype = variable.dtype if is_inexact(variable.dtype) else floating(error.dtype)
    if not isinstance(given, Variable | np.ndarray) and error.shape == ():
        return f.fill_like(in_dtype(variable, dtype), given)
    if not may_equal(error.shape, variable.shape):
        raise SizeError(
            f"{what} {describe(error)} is not of the shape {variable.shape} of {describe(variable)}, which it is for"
        )
    return in_dtype(error, dtype, what)


def as_list(given: object) -> list[Any]:
    """One operand, or a list or tuple of them, as a list."""
    return [given] if isinstance(given, Variable) or not isinstance(given, list | tuple) else list(given)
