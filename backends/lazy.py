"""Lazy imports: modules that few programs need, each imported at its first use, as in ``lazy.tempfile``.

It uses a module's `__getattr__` (PEP 562), as NumPy and SciPy do for subpackages. To type checkers an attribute is
of type `Any`.
"""

from __future__ import annotations

from typing import Any

from optree.locks import import_later

#: name here -> module. `tests/test_startup.py` lists the modules that starting must not import.
MODULES = {
    **{name: name for name in ("difflib", "logging", "shlex", "shutil", "signal", "subprocess", "tempfile")},
    "ahead": "backends.cpu.ahead",
    "export": "backends.export.trace",
    "libraries": "backends.cpu.libraries",
    "loops": "backends.execution.loops",
    "loops_in_c": "backends.cpu.routines.loops",
    "gpu": "backends.gpu",
    "neon": "backends.neon.backend",
    "inspection": "backends.inspection",
    "namespace": "optree.xp.namespace",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = globals()[name] = import_later(MODULES[name])
    return module
