"""The linear algebra of the stand-in for CuPy: NumPy's, of what CuPy's takes, and silent about what has no value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np


class Linalg:
    """`cupy.linalg`, and as an attribute the `cupyx` that has its `errstate`.

    Parameters
    ----------
    call : callable
        Of a name, a function of NumPy's, its arguments, keywords, and the arrays among them: its value on the device.
    array : type
        CuPy's arrays.
    """

    def __init__(self, call: Callable[..., Any], array: type) -> None:
        self._call, self._array, self._raises = call, array, False
        self.cupyx = SimpleNamespace(errstate=self._errstate)

    @contextmanager
    def _errstate(self, *, linalg: str) -> Iterator[None]:
        before, self._raises = self._raises, linalg == "raise"
        try:
            yield
        finally:
            self._raises = before

    def _run(self, name: str, *operands: Any, empty: bool = True, **kwargs: Any) -> Any:
        for x in operands:
            if not isinstance(x, self._array):
                raise TypeError(f"{name}: cupy.ndarray expected, not {type(x)}")
            if x.dtype.char not in "fdFD":
                raise TypeError(f"{name}: dtype {x.dtype} is not supported")
            if not empty and 0 in x.shape:
                raise ValueError(f"{name}: CUSOLVER_STATUS_INVALID_VALUE")
        theirs = getattr(np.linalg, name)

        def silent(*hosts: Any, **rest: Any) -> Any:
            try:
                return theirs(*hosts, **rest)
            except np.linalg.LinAlgError:
                if self._raises:
                    raise
                return np.full_like(hosts[-1], 7.0)

        return self._call(name, silent, operands, kwargs, list(operands))

    def solve(self, a: Any, b: Any) -> Any:
        if a.ndim != b.ndim or a.shape[:-1] != b.shape[:-1]:
            raise ValueError("a must have (..., M, M) shape and b must have (..., M) or (..., M, K)")
        return self._run("solve", a, b, empty=False)

    def inv(self, a: Any) -> Any:
        return self._run("inv", a, empty=False)

    def det(self, a: Any) -> Any:
        return self._run("det", a)

    def slogdet(self, a: Any) -> Any:
        return self._run("slogdet", a)

    def cholesky(self, a: Any) -> Any:
        return self._run("cholesky", a, empty=False)

    def qr(self, a: Any, mode: str = "reduced") -> Any:
        return self._run("qr", a, mode=mode)

    def eigh(self, a: Any, UPLO: str = "L") -> Any:
        return self._run("eigh", a, UPLO=UPLO)

    def eigvalsh(self, a: Any, UPLO: str = "L") -> Any:
        return self._run("eigvalsh", a, UPLO=UPLO)

    def svd(self, a: Any, full_matrices: bool = True, compute_uv: bool = True) -> Any:
        return self._run("svd", a, full_matrices=full_matrices, compute_uv=compute_uv)

    def eig(self, a: Any) -> Any:
        return tuple(x.astype(a.dtype.char.upper()) for x in self._run("eig", a))

    def eigvals(self, a: Any) -> Any:
        return self._run("eigvals", a).astype(a.dtype.char.upper())
