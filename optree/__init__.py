"""Op-tree: lazy NumPy-like expressions as trees of operations."""

from optree import ops
from optree.node import OpTreeNode
from optree.op import Op
from optree.tensor import Tensor
from optree.types import TensorType
from optree.variable import Constant, Input, Variable

__all__ = ["Constant", "Input", "Op", "OpTreeNode", "Tensor", "TensorType", "Variable", "ops"]
