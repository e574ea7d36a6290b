"""Errors that are assertions too, as neon's are."""

from __future__ import annotations

from optree.errors import DTypeError, ShapeError


class SizeError(ShapeError, AssertionError):
    """A tensor of a wrong shape or size."""


class KindError(DTypeError, AssertionError):
    """A tensor of a wrong dtype."""
