"""The array API standard (2025.12) on the current backend: lazy, fused arrays with NumPy's semantics.

``from optree import xp`` has the standard's functions, dtypes and constants; `Backend.xp` has them for one backend.
An array holds a tensor, or a tree that runs when a value is needed.
This package only builds trees: ``x.tensor`` and ``x.tree`` are op-tree's own, and ``asarray`` accepts both.

Examples
--------
>>> from backends import gen_backend
>>> be = gen_backend("cpu")
>>> from optree import xp
>>> x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
>>> row = x[0]
>>> x += 10.0
>>> row, float(xp.mean(x))
(Array([11., 12.], dtype=float32), 12.5)
"""

from typing import Any

from optree.xp.namespace import FUNCTIONS, Info

globals().update(FUNCTIONS)


def __array_namespace_info__() -> Info:
    """The namespace's inspection API: capabilities, dtypes, and devices, which are backends."""
    return Info()


def __dir__() -> list[str]:
    return sorted([*FUNCTIONS, "__array_namespace_info__"])


def __getattr__(name: str) -> Any:
    raise AttributeError(f"the array API standard has no {name!r} here; dir(xp) lists what it has")
