"""Op-tree: lazy NumPy-like expressions as trees of operations."""

from optree import metadiff, ops
from optree.apply import Apply
from optree.autodiff import Autodiff, deriv, grad
from optree.computation import ComputationOp
from optree.derivatives import Lop, Rop, hessian, hessian_vector_product, jacobian
from optree.errors import OptreeError
from optree.function import Function, debugprint, function
from optree.missing import DisconnectedType, NullType, grad_not_implemented, grad_undefined
from optree.mode import Mode
from optree.node import OpTreeNode
from optree.op import Op
from optree.tensor import Tensor
from optree.testing import check_grad
from optree.types import TensorType, Type
from optree.variable import Constant, Input, Variable, constant

__all__ = [
    "Apply",
    "Autodiff",
    "ComputationOp",
    "Constant",
    "DisconnectedType",
    "Function",
    "Input",
    "Lop",
    "Mode",
    "NullType",
    "Op",
    "OpTreeNode",
    "OptreeError",
    "Rop",
    "Tensor",
    "TensorType",
    "Type",
    "Variable",
    "check_grad",
    "constant",
    "debugprint",
    "deriv",
    "function",
    "grad",
    "grad_not_implemented",
    "grad_undefined",
    "hessian",
    "hessian_vector_product",
    "jacobian",
    "metadiff",
    "ops",
]
