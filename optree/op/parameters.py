"""The meaning of parameters that many functions have, from which `help(be.tril)` has its section of parameters.

A function whose docstring has a section of parameters does without.
"""

from __future__ import annotations

from pathlib import Path

#: Parameter, or function and parameter as ``pad.options`` -> its type and meaning.
PARAMETERS: dict[str, tuple[str, str]] = {}
for _line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
    _name, _type, *_meaning = _line.split(" : ")
    PARAMETERS[_name] = _type, "".join(_meaning)
