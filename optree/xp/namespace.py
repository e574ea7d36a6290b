"""Namespace, the array API of one backend, with the standard's inspection."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from types import SimpleNamespace
from typing import Any

import numpy as np

from optree.dtypes import complex_dtype
from optree.errors import OperandError, names
from optree.run.function import backends
from optree.xp import creation, dtypes, elementwise, fft, linalg, manipulation, reductions
from optree.xp.array import Array
from optree.xp.devices import backend_of
from optree.xp.dtypes import DTYPES, isdtype

__array_api_version__ = "2025.12"

#: The versions of the standard whose functions are all there.
VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")


def _functions(module: Any) -> dict[str, Any]:
    """The functions that a module defines for users."""
    return {
        name: thing
        for name, thing in vars(module).items()
        if not name.startswith("_") and inspect.isfunction(thing) and thing.__module__ == module.__name__
    }


#: The functions that make arrays, and so take a device.
CREATION = "arange asarray empty eye from_dlpack full linspace ones zeros".split()

#: Name -> function or constant.
FUNCTIONS: dict[str, Any] = {
    **_functions(creation),
    **DTYPES,
    "float16": np.dtype("float16"),
    **{name: getattr(dtypes, name) for name in ("e", "inf", "nan", "newaxis", "pi")},
    **_functions(dtypes),
    **_functions(elementwise),
    **_functions(manipulation),
    **_functions(reductions),
    **{name: getattr(linalg, name) for name in ("matmul", "tensordot", "vecdot")},
    "Array": Array,
    "linalg": linalg,
    "fft": fft,
    "__array_api_version__": __array_api_version__,
}


class Info:
    """The standard's inspection API of a namespace.

    Parameters
    ----------
    backend : Backend or None
        None for the current one at each call.
    """

    def __init__(self, backend: Any = None) -> None:
        self._backend = backend

    def capabilities(self) -> dict[str, Any]:
        """Whether there are indices by masks, and shapes that depend on values; and how many dimensions at most."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Any:
        """The default device: the namespace's backend."""
        return backend_of(self._backend)

    def devices(self) -> tuple[Any, ...]:
        """The available devices: the backends that there are."""
        default = self.default_device()
        return (default, *(other for other in backends() if other is not default))

    def default_dtypes(self, *, device: object = None) -> dict[str, Any]:
        """The dtypes of numbers that tell none."""
        floating = backend_of(device or self._backend).datatype
        return {
            "real floating": floating,
            "complex floating": complex_dtype(floating),
            "integral": DTYPES["int64"],
            "indexing": DTYPES["int64"],
        }

    def dtypes(self, *, device: object = None, kind: object = None) -> dict[str, Any]:
        """The standard's dtypes by name, those of a kind."""
        return {name: dtype for name, dtype in DTYPES.items() if kind is None or isdtype(dtype, kind)}


class Namespace:
    """The array API standard's functions, dtypes and constants, which make arrays on one backend: `Backend.xp`.

    Examples
    --------
    >>> x = be.xp.linspace(0, 1, 5)
    >>> be.xp.sum(x * x), x.__array_namespace__() is be.xp
    (Array(1.875, dtype=float32), True)
    """

    __name__ = "optree.xp"

    def __init__(self, backend: Any) -> None:
        self._backend = backend_of(backend)
        transforms = _functions(fft)
        transforms |= {name: _on(self._backend, transforms[name]) for name in ("fftfreq", "rfftfreq")}
        made = {name: _on(self._backend, FUNCTIONS[name]) for name in CREATION}
        self.__dict__ |= {**FUNCTIONS, **made, "fft": SimpleNamespace(**transforms)}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the array API standard has no {name!r} here; there are {names(FUNCTIONS)}")

    def __dir__(self) -> list[str]:
        return sorted([*FUNCTIONS, "__array_namespace_info__"])

    def __array_namespace_info__(self) -> Info:
        return Info(self._backend)

    def backend_of(self, device: object) -> Any:
        """The backend that a device is, or has the name of; this namespace's own for None."""
        return self._backend if device is None or device == self._backend.name else backend_of(device)

    @staticmethod
    def check_version(version: str | None) -> None:
        """Raise ValueError for a version of the standard that is not there."""
        if version is not None and version not in VERSIONS:
            raise ValueError(f"the array API standard is here in {names(VERSIONS)}, not {version!r}")

    def __repr__(self) -> str:
        return f"array namespace of {self._backend}"

    def __reduce__(self) -> Any:
        raise OperandError(f"{self} is of this process and does not pickle")


def _on(backend: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with a backend as its device, unless another is given."""

    def made(*args: Any, device: object = None, **options: Any) -> Any:
        if device == backend.name or (device is None and not isinstance(args[0] if args else None, Array)):
            device = backend  # an array stays where it is
        return function(*args, device=device, **options)

    return update_wrapper(made, function)
