"""Modes of functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optree.errors import OptreeError

#: A program is run by the backend; by `perform`, without rewrites; or by `perform` with every check.
KINDS = ("default", "reference", "debug")


class ModeError(OptreeError, ValueError):
    """An unknown mode."""


@dataclass(frozen=True)
class Mode:
    """The mode in which a function runs.

    Attributes
    ----------
    kind : {'default', 'reference', 'debug'}
    without : tuple of str
        The names of rewrites to leave out (`optree.compile.passes.PASSES`).
    """

    kind: str = "default"
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ModeError(f"there is no mode {self.kind!r}; there are {', '.join(KINDS)}")


def as_mode(mode: Any) -> Mode:
    """A mode from its kind; None is the default."""
    return mode if isinstance(mode, Mode) else Mode("default" if mode is None else mode)
