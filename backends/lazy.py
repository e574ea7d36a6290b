"""Lazy imports: modules that few programs need, each loaded when it is first asked for, as in ``lazy.tempfile``.

It is the `__getattr__` of a module (PEP 562) by which NumPy and SciPy load their subpackages. To type checkers
an attribute is of type `Any`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: name here -> module: what starts programs, reports, or serves GPUs. `tests/test_startup.py` says what must not load.
MODULES = {
    **{name: name for name in ("difflib", "logging", "shutil", "signal", "subprocess", "tempfile")},
    "numpy_blocks": "backends.cpu.numpy_blocks",
    "gpu": "backends.gpu",
    "inspection": "backends.inspection",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = globals()[name] = import_module(MODULES[name])
    return module
