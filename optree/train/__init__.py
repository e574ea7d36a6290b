"""Training loops: optimizers, schedules, losses, initial weights, data, checkpoints, and watching.

They are functions from trees to trees, and to the updates of an `optree.function`. What needs a package beyond NumPy is
imported at its first use; the extra ``train`` brings all of them.
"""

from optree.train import initializers, losses, schedules
from optree.train.optimizer import LossScale, NonFiniteError, Optimizer
from optree.train.optimizers import (
    LAMB,
    LARS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Lion,
    RMSProp,
)
from optree.train.packing import packed

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lion",
    "LossScale",
    "NonFiniteError",
    "Optimizer",
    "RMSProp",
    "initializers",
    "losses",
    "packed",
    "schedules",
]
