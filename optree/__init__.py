"""Op-tree: lazy NumPy-like expressions as trees of operations."""

from typing import TYPE_CHECKING, Any

from optree import errors, installation, ops, settings
from optree.compat import metadiff  # metadiff, for the methods that it gives variables
from optree.errors import OptreeError
from optree.instead import instead
from optree.locks import import_later
from optree.numpy import statistics  # noqa: F401, imported to be registered
from optree.op.apply import Apply
from optree.op.op import Op
from optree.registry import FUNCTIONS
from optree.run.function import Function, Mode, debugprint, function
from optree.tree.gradient_types import DisconnectedType, NullType, grad_not_implemented, grad_undefined
from optree.tree.node import OpTreeNode
from optree.tree.tensor import Tensor
from optree.tree.types import TensorType, Type
from optree.tree.variable import Constant, Input, Variable, constant

if TYPE_CHECKING:
    from optree.autodiff.api import Autodiff, deriv, grad, value_and_grad
    from optree.autodiff.jacobians import Lop, Rop, hessian, hessian_vector_product, jacobian
    from optree.autodiff.recompute import checkpoint
    from optree.compat.nervana_graph import ComputationOp
    from optree.run.export import export
    from optree.run.jit import jit
    from optree.run.vmap import vmap
    from optree.testing import check_grad

__version__ = "0.1.0"

#: Modules imported lazily, at the first access to one of their names.
LATER = (
    "autodiff.api",
    "autodiff.recompute",
    "compat.nervana_graph",
    "autodiff.jacobians",
    "run.export",
    "run.jit",
    "run.vmap",
    "testing",
    "train",
    "networks",
    "onnx",
    "xp",
    "distributed",
    "pictures",
)

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
    "checkpoint",
    "constant",
    "debugprint",
    "deriv",
    "distributed",
    "errors",
    "export",
    "function",
    "grad",
    "grad_not_implemented",
    "grad_undefined",
    "hessian",
    "hessian_vector_product",
    "jacobian",
    "jit",
    "metadiff",
    "ops",
    "settings",
    "testing",
    "train",
    "value_and_grad",
    "vmap",
    "xp",
]

installation.warn_of_others()


def __getattr__(name: str) -> Any:
    if name in LATER:
        try:
            return import_later(f"optree.{name}")
        except ModuleNotFoundError as error:  # hasattr and star imports know an AttributeError only
            raise AttributeError(f"optree.{name} needs packages that are not installed: {error}") from error
    for module in LATER if name in __all__ else ():
        found = vars(import_later(f"optree.{module}")).get(name)
        if found is not None:
            globals()[name] = found
            return found
    remedy = instead("optree", name)
    if not remedy and not name.startswith("_") and name in FUNCTIONS:
        remedy = f"; instead: be.{name}, of a backend that gen_backend makes"
    raise AttributeError(f"module 'optree' has no attribute {name!r}{remedy}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "pictures"])  # which a star import leaves: it needs more than NumPy
