"""Devices of the array API standard, which are backends here."""

from __future__ import annotations

from typing import Any

from optree.errors import BackendError, brief
from optree.run.function import last_backend
from optree.tree.variable import is_neon


def backend_of(device: object = None) -> Any:
    """The backend of a device, given as a backend or its name; the current one for None.

    Raises BackendError if there is none, or it is in neon's mode.
    """
    current = last_backend()
    found = current if device is None or (current is not None and device == current.name) else device
    if found is None:
        raise BackendError("an array needs a backend: backends.gen_backend('cpu') makes one, which is the current one")
    if not hasattr(type(found), "gen_rng"):
        raise BackendError(f"a device is a backend, as x.device is, not {brief(device)}")
    if is_neon(found):
        raise BackendError(f"{found} is in neon's mode, whose tensors have two dimensions at least; xp's may have none")
    return found
