"""The error of processes that work together."""

from __future__ import annotations

from optree.errors import BackendError


class DistributedError(BackendError):
    """Ranks that disagree on an operation, or one that does not come to it, or is gone."""
