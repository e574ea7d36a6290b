"""What the Op contract says about derivatives, with its defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from optree.errors import DefinitionError, describe
from optree.tree.gradient_types import grad_undefined
from optree.tree.variable import Constant, Variable


class Differentiable:
    """The part of `Op` that derivatives ask.

    `grad`, `connection_pattern` and `R_op` are Theano's and Aesara's,
    `generate_adjoints` is Nervana graph's.
    """

    shape_only: ClassVar[tuple[int, ...]] = ()

    def grad(self, inputs: Sequence[Variable], output_gradients: Sequence[Any]) -> Sequence[Any]:
        """The gradient of the cost for each input, from that for each output.

        A gradient is a tree of a floating dtype and of its input's shape, or of
        one that the input is broadcast to, which is then summed back. Where there
        is none, `grad_undefined` or `grad_not_implemented` says why, None says
        that there is none, and a variable of `DisconnectedType` that the outputs'
        elements do not depend on the input's.

        Parameters
        ----------
        inputs : list of Variable
        output_gradients : list of Variable
            One of `DisconnectedType` for an output that the cost does not use.
            That for an output of integers is zero.
        """
        raise DefinitionError(
            f"{type(self).__name__}: grad was forgotten: write grad(self, inputs, output_gradients), "
            "or be a NonDifferentiableOperator"
        )

    def grad_inputs(self, inputs: Sequence[Variable]) -> list[Variable]:
        """The inputs as `grad` is given them."""
        return list(inputs)

    def generate_adjoints(self, adjoints: dict[Variable, Any], delta: Any, *args: Variable) -> None:
        """Send each operand its delta; by default what `grad` returns.

        What is sent no delta has a derivative of zero. The delta of an op of
        several outputs is the list that `grad` takes.
        """
        gradients = self.grad(self.grad_inputs(args), delta if isinstance(delta, list) else [delta])
        if not isinstance(gradients, list | tuple) or len(gradients) != len(args):
            raise DefinitionError(f"{self}.grad returns a list of {len(args)} gradients, not {describe(gradients)}")
        for i, (operand, gradient) in enumerate(zip(args, gradients, strict=True)):
            if gradient is None and i in self.shape_only:
                continue
            if type(operand) is Constant and operand.is_weak:  # a number: nothing is derived by one
                continue
            if gradient is None:
                gradient = grad_undefined(self, i, operand)
            operand.generate_add_delta(adjoints, gradient)

    def connection_pattern(self, node: Any) -> list[list[bool]]:
        """For each input and each output, whether the output's elements depend on the input's.

        By default they do, except on the inputs in `shape_only`.

        Parameters
        ----------
        node : Apply
        """
        return [[i not in self.shape_only] * len(node.outputs) for i in range(len(node.inputs))]

    def R_op(self, inputs: Sequence[Variable], eval_points: Sequence[Any]) -> Sequence[Any]:
        """The outputs' directional derivatives: the Jacobian times a vector.

        An op need not write it: `Rop` differentiates its `grad` again instead.

        Parameters
        ----------
        inputs : list of Variable
        eval_points : list of Variable or None
            The direction in each input, of its shape; None where it is zero.

        Returns
        -------
        list
            One for each output, of its shape or of one that is broadcast to it;
            None where it is zero.
        """
        raise DefinitionError(f"{self}: it has no R_op of its own; optree.Rop differentiates its grad instead")
