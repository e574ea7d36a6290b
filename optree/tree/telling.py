"""Warnings about a user's line: once for each line, or an error, or nothing, as a setting says."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import CodeType, FrameType

from optree import settings
from optree.errors import OptreeError

#: Maximum entries of the table of lines that have been warned.
LINES = 4096

_told: dict[tuple[type, CodeType, int], None] = {}


def tell(
    setting: str, warning: type[Warning], error: type[OptreeError], frame: FrameType, message: Callable[[], str]
) -> None:
    """Warn at a frame's line, once for each line; raise, or say nothing, where the setting says so.

    `setting`: the name of a setting of ``warn``, ``error`` or ``ignore``.
    `message`: called where something is said.
    """
    answer = settings.value(setting)
    line = warning, frame.f_code, frame.f_lineno
    if answer == "ignore" or (answer == "warn" and line in _told):
        return
    if answer == "error":
        raise error(message())
    warn_at(frame, message(), warning)
    if len(_told) >= LINES:
        _told.clear()
    _told[line] = None


def warn_at(frame: FrameType, message: str, warning: type[Warning]) -> None:
    """Warn at a frame's line."""
    module = frame.f_globals.get("__name__", "<unknown>")
    warnings.warn_explicit(message, warning, frame.f_code.co_filename, frame.f_lineno, module)
