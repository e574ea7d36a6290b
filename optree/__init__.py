"""Op-tree: lazy NumPy-like expressions as trees of operations."""

from optree import ops
from optree.apply import Apply
from optree.autodiff import Autodiff, grad
from optree.errors import OptreeError
from optree.function import Function, debugprint, function
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
    "Constant",
    "Function",
    "Input",
    "Mode",
    "Op",
    "OpTreeNode",
    "OptreeError",
    "Tensor",
    "TensorType",
    "Type",
    "Variable",
    "check_grad",
    "constant",
    "debugprint",
    "function",
    "grad",
    "ops",
]
