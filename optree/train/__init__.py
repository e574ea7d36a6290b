"""Training loops: optimizers, schedules, losses, initial weights, data, checkpoints, and watching.

They map trees to trees, or to the updates of an `optree.function`. A module that needs a package beyond NumPy is
imported at its first use; the extra ``train`` installs all of these packages.
"""

from typing import TYPE_CHECKING, Any

from optree.instead import instead
from optree.locks import import_later
from optree.train import initializers, losses, schedules
from optree.train.data import Batches, arrays
from optree.train.mixed import autocast
from optree.train.optimizer import LossScale, NonFiniteError, Optimizer
from optree.train.optimizers import LAMB, LARS, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, Lion, RMSProp
from optree.train.packing import packed
from optree.train.parameters import Phase, parameters
from optree.train.profiles import profile

if TYPE_CHECKING:
    from optree.train.checkpoints import CheckpointError, load, load_weights, read, save, saved
    from optree.train.images import ImageFolder
    from optree.train.pictures import roofline
    from optree.train.watching import Bar, Log, WatchError

#: Modules that need packages of the extras ``train`` and ``examples``, imported at the first access to their names.
LATER = {
    "checkpoints": ("CheckpointError", "load", "load_weights", "read", "save", "saved"),
    "images": ("ImageFolder",),
    "pictures": ("roofline",),
    "watching": ("Bar", "Log", "WatchError"),
}

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Bar",
    "Batches",
    "CheckpointError",
    "ImageFolder",
    "Lion",
    "Log",
    "LossScale",
    "NonFiniteError",
    "Optimizer",
    "Phase",
    "RMSProp",
    "WatchError",
    "arrays",
    "autocast",
    "initializers",
    "load",
    "load_weights",
    "losses",
    "packed",
    "parameters",
    "profile",
    "read",
    "roofline",
    "save",
    "saved",
    "schedules",
]


def __getattr__(name: str) -> Any:
    for module, known in LATER.items():
        if name in known:
            globals()[name] = found = getattr(import_later(f"optree.train.{module}"), name)
            return found
    raise AttributeError(f"module 'optree.train' has no attribute {name!r}{instead('train', name)}")


def __dir__() -> list[str]:
    return sorted(__all__)
