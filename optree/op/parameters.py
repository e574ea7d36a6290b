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


def sections_of(text: str) -> tuple[str, dict[str, str]]:
    """A docstring's text before its sections, and these by name."""
    introduction, *sections = re.split(r"\n\n(?=\w+\n---)", inspect.cleandoc(text))
    return introduction, {section.partition("\n")[0]: section for section in sections}


def listed(of: str, described: str, signature: inspect.Signature) -> str:
    """The section of parameters, in order: those that a function's own section describes, and those of `PARAMETERS`."""
    items = re.split(r"\n(?=\S)", described.partition("---\n")[2]) if described else []
    own = {name: item for item in items for name in re.findall(r"\w+", item.partition("\n")[0].partition(" : ")[0])}
    lines = ["Parameters", "----------"]
    for name, parameter in signature.parameters.items():
        found = PARAMETERS.get(f"{of}.{name}") or (None if name == "out" else PARAMETERS.get(name))
        kind, meaning = found or ("", "")
        if name in own and own[name] not in lines:
            lines.append(own[name])
        elif kind and name not in own:
            default = "" if parameter.default is parameter.empty else f", default {parameter.default!r}"
            if parameter.default is None:
                default = "" if "optional" in kind or "None" in kind else ", optional"
            lines += [f"{name} : {kind}{default}", *([f"    {meaning}"] if meaning else [])]
    return "\n".join([*lines, *(item for item in items if item not in lines)])


def complete(of: str, module: str, namespace: Mapping[str, Any]) -> None:
    """Add to the docstrings of a module's, or a class's, public functions and classes the parameters in `PARAMETERS`.

    `of`: the name before the point in the keys of `PARAMETERS`.
    """
    for name, thing in namespace.items():
        if callable(thing) and thing.__doc__ and name[0] != "_" and thing.__module__ == module:
            text, sections = sections_of(thing.__doc__)
            parameters = listed(of, sections.pop("Parameters", ""), inspect.signature(thing))
            if parameters.count("\n") > 1:
                thing.__doc__ = "\n\n".join([text, parameters, *sections.values()])
