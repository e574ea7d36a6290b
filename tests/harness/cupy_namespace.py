"""CuPy's namespace as data: its functions with their parameters, its ufuncs with their loops, its arrays' attributes.

``PYTHONPATH=tests python -m harness.cupy_namespace`` writes the data anew from
the CuPy that is installed; no GPU is needed for that.
"""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "cupy_namespace.json"


def namespace() -> dict[str, Any]:
    """The installed CuPy's namespace, the same beside any NumPy."""
    cupy = import_module("cupy")
    functions: dict[str, Any] = {}
    ufuncs: dict[str, Any] = {}
    for name in dir(cupy):
        entry = getattr(cupy, name)
        if name.startswith("_"):
            continue
        if isinstance(entry, cupy.ufunc):
            types = [loop for loop in entry.types if "E" not in loop]  # of bfloat16, where ml_dtypes is installed
            ufuncs[name] = {"nin": entry.nin, "nout": entry.nout, "types": types}
        elif callable(entry) and not isinstance(entry, type):
            functions[name] = parameters(entry)
    return {
        "version": cupy.__version__,
        "functions": functions,
        "ufuncs": ufuncs,
        "ndarray": sorted(name for name in dir(cupy.ndarray) if not name.startswith("_")),
    }


def parameters(function: Any) -> Any:
    """A function's parameters, each with its kind and whether it may be left out; None if unknown, or NumPy's own."""
    if function.__module__ == "numpy" or function.__name__ == "clear_memo":  # Python 3.14 knows those of the latter
        return None
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError:
        return None
    return [[p.name, int(p.kind), p.default is not p.empty] for p in found]


if __name__ == "__main__":
    data = namespace()
    parts = [
        f' "{part}": {{\n' + ",\n".join(f'  "{k}": {json.dumps(v)}' for k, v in sorted(data[part].items())) + "\n }"
        for part in ("functions", "ufuncs")
    ]
    rest = f' "version": "{data["version"]}",\n "ndarray": {json.dumps(data["ndarray"])}'
    FILE.write_text("{\n" + ",\n".join([rest, *parts]) + "\n}\n")
