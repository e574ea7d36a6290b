"""Apply, an op applied to inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

from optree.arrays import is_array, is_value
from optree.dtypes import is_complex
from optree.errors import DTypeError, OperandError, UntypedOperandError, describe
from optree.registry import OPS
from optree.tree.lazy import LazyValue
from optree.tree.node import OpTreeNode, applied
from optree.tree.types import Spec, TensorType, TupleType, weak_dtype
from optree.tree.variable import Input, Variable, as_operand, as_variable, check_same_backend


class Apply:
    """An application of an op to inputs, with its outputs (Theano's and Aesara's Apply).

    Parameters
    ----------
    op : Op
    outputs : sequence of Variable
        Variables that `Op.make_node` has made of the outputs' types, as by ``double()``. They
        then represent the nodes that compute them.

    Attributes
    ----------
    outputs : list of OpTreeNode
        Each has this as its `owner`, and its index here as its `index`.
    node : OpTreeNode
        The only output, or the tuple of the outputs.

    Raises
    ------
    OperandError
        If an input or output is no variable.
    """

    def __init__(self, op: Any, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        for kind, variables in (("input", inputs), ("output", outputs)):
            for x in variables:
                if not isinstance(x, Variable):
                    remedy = "; optree.constant(x) makes one of a number or an array" if is_value(x) else ""
                    raise OperandError(f"{op}: an {kind} of an Apply is a variable, not {describe(x)}{remedy}")
        self.op, self.inputs = op, list(inputs)
        backend = check_same_backend(op, inputs)
        types = [x.type for x in outputs]
        operands = [as_operand(x, str(op)) for x in inputs]
        shapes = [getattr(x.type, "shape", ()) for x in inputs]
        value_type = types[0] if len(types) == 1 else TupleType(types)
        self.node = node = applied(op.op_dict(value_type, backend, min(len(operands), 2), shapes), operands)
        node.known_owner = self
        self.outputs = _outputs_of(node)
        for i, x in enumerate(outputs):
            if type(x) is Input:
                x.owner, x.index = self, i
                x.spec = Spec.own(x.type)  # not cached by any op, so that each looks at the owner

    @classmethod
    def of_node(cls, node: OpTreeNode) -> Apply:
        """The application that a node represents."""
        apply = cls.__new__(cls)
        apply.op, apply.inputs = node.op, [as_variable(x) for x in node.inputs]
        apply.node, apply.outputs = node, _outputs_of(node)
        return apply

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(x.label for x in self.inputs)})"


def _outputs_of(node: OpTreeNode) -> list[OpTreeNode]:
    """The outputs of a node's application: the node, or one `output` node for each value of its tuple."""
    if not isinstance(node.type, TupleType):
        return [node]
    return [OPS["output"].make(index=i)(node) for i in range(len(node.type.types))]


def check_complex(op: Any, operands: Sequence[Any]) -> None:
    """Raise DTypeError for complex operands of an op that does not take them, as `Op.takes_complex` says."""
    types = [x if type(x) is complex else as_variable(x).type for x in operands]
    given = any(x.__class__ is complex or (isinstance(x, TensorType) and is_complex(x.dtype)) for x in types)
    if given and not _takes_complex(op):
        name = op.name or type(op).__name__
        own = "" if type(op).__module__.startswith("optree.") else "; an op that does says takes_complex = True"
        raise DTypeError(
            f"{name}: it does not take complex numbers, and was given {', '.join(map(describe, operands))}; "
            f"z.real, z.imag, be.abs(z) and be.angle(z) are real{own}"
        )


def _takes_complex(op: Any) -> bool:
    if op.takes_complex is not None:
        return bool(op.takes_complex)
    if isinstance(op.numpy, np.ufunc):
        return any("D" in types.partition("->")[0] for types in op.numpy.types)
    reads = type(op).index_map
    return bool(reads.view_map) or 0 < len(reads.reads) == len(reads.shape_only)


def written(op: Any, arrays: Sequence[Any]) -> Any:
    """An op's value on arrays and Python numbers, by its `fill`."""
    dtypes = [x.dtype if hasattr(x, "dtype") else weak_dtype(type(x)) for x in arrays]
    shape = op.output_shape(*map(np.shape, arrays))
    out = np.empty(shape, op.resolve_dtypes(*dtypes)[-1], like=next(filter(is_array, arrays), None))
    op.fill(out, *arrays)
    return out


def applied_by(op: Any, make_node: Callable[..., Any], inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The application from `make_node`; an AttributeError of an input that is no variable is explained."""
    try:
        return make_node(*inputs, **kwargs)
    except UntypedOperandError:
        raise
    except AttributeError as error:
        x = error.obj
        i = next((i for i, given in enumerate(inputs) if given is x), None)
        if isinstance(x, Variable) or (i is None and not (error.name == "type" and is_value(x))):
            raise
        asked = "an array or number of its own" if i is None else f"input {i}"
        remedy = "x.tensor is that of an array of optree.xp" if isinstance(x, LazyValue) else "be.array makes one"
        raise UntypedOperandError(
            f"{op}: make_node asks {asked}, {describe(x)}, for its {error.name}, which a variable has: give a "
            f"tensor, {remedy}; optree.constant(x) makes a variable of a number or an array, in make_node too "
            f"({error})"
        ) from error


def explained(make_node: Callable[..., Any]) -> Callable[..., Any]:
    """A class's `make_node`, called directly or by the op, with its errors explained."""

    @wraps(make_node)
    def call(self: object, *inputs: object, **kwargs: object) -> Any:
        return applied_by(self, partial(make_node, self), inputs, kwargs)

    return call
