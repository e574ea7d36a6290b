"""Every op, one class each, in a file a family; importing this registers those of the families that most programs need.

`optree.rest` imports the others when one of them is first asked for (`optree.registry`).
"""

from optree.locks import modules_of
from optree.ops import (  # noqa: F401, imported to be registered
    assignment,
    choice,
    complex,
    contraction,
    elementwise,
    indexing,
    logic,
    reduction,
    shape,
    structure,
    transcendental,
)

__getattr__ = modules_of(__name__)
