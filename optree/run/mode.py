"""How a function runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optree.errors import OptreeError

#: What runs a program: the backend; `perform` alone; `perform`, each step checked.
KINDS = ("default", "reference", "debug")


class ModeError(OptreeError, ValueError):
    """A mode that there is not."""


@dataclass(frozen=True)
class Mode:
    """How a function runs.

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
