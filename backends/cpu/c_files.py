"""The text of C files that stand beside their drivers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)


def c_text(path: Path, defined: Mapping[str, object], generated: Mapping[str, str] | None = None) -> str:
    """A C file with macros defined, and with the files that it includes from its own folder.

    It is one text because the cache of compiled libraries is keyed by it.

    Parameters
    ----------
    path : Path
    defined : mapping
        From macros, with their parameters, to their texts.
    generated : mapping, optional
        The texts of included files that are generated.

    Examples
    --------
    >>> from backends.cpu.routines.vectors import FOLDER
    >>> print(c_text(FOLDER / "column.h", {"DOUBLE": 1}).splitlines()[0])
    #define DOUBLE 1
    """
    head = "".join(f"#define {name} {value}\n" for name, value in defined.items())
    texts = generated or {}

    def included(match: re.Match[str]) -> str:
        name = match[1]
        return texts[name] if name in texts else _INCLUDE.sub(included, _read(path.with_name(name)))

    return head + _INCLUDE.sub(included, _read(path))


@cache
def _read(path: Path) -> str:
    return path.read_text()
