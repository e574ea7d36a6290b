"""The error of distributed operations."""

from __future__ import annotations

from optree.errors import BackendError


class DistributedError(BackendError):
    """Raised if ranks disagree on an operation, or a rank does not reach it or has ended."""
