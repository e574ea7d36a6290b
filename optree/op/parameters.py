"""The meaning of parameters that many functions have, from which `help(be.tril)` has its section of parameters.

A function whose docstring has a section of parameters describes those that are its own there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Parameter, or function and parameter as ``pad.options`` -> its type and meaning.
PARAMETERS: dict[str, tuple[str, str]] = {}
for _line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
    _name, _type, *_meaning = _line.split(" : ")
    PARAMETERS[_name] = _type, "".join(_meaning)


def complete(of: str, module: str, namespace: Mapping[str, Any]) -> None:
    """Add to the docstrings of a module's public functions and classes the parameters in `PARAMETERS`, as ``of.name``.

    A function's own section of parameters follows them.
    """
    for name, thing in namespace.items():
        if not (callable(thing) and thing.__doc__ and name[0] != "_" and thing.__module__ == module):
            continue
        text = inspect.cleandoc(thing.__doc__)
        own = re.search(r"^Parameters\n-+\n(.*?)(?=\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
        told = re.findall(r"\w+", " ".join(line for line in (own[1] if own else "").split("\n") if line[:1] != " "))
        shared = []
        for parameter in inspect.signature(thing).parameters:
            if (found := PARAMETERS.get(f"{of}.{parameter}")) and parameter not in told:
                shared += [f"{parameter} : {found[0]}", *([f"    {found[1]}"] if found[1] else [])]
        start = own.start(1) if own else next((x.start() for x in re.finditer(r"\n\n\w+\n---", text)), len(text))
        listed = "\n".join(shared)
        if shared:
            listed = f"{listed}\n" if own else f"\n\nParameters\n----------\n{listed}"
        thing.__doc__ = text[:start] + listed + text[start:]
