"""The linear algebra of cuSOLVER and cuBLAS that CuPy calls, of float32 and float64: work on streams, by NumPy.

Matrices are in columns. What has no value is told in `info`, and memory is as LAPACK leaves it, or NaN.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from harness.rig.entry import TYPES, put
from harness.rig.machine import Machine

#: `CUSOLVER_STATUS_INVALID_VALUE`.
_INVALID = 3

#: `CUBLAS_STATUS_NOT_SUPPORTED`.
_NOT_SUPPORTED = 15

#: `gesvdjBatched` takes matrices of at most so many rows and columns.
_MOST = 32

_KINDS = {"S": np.dtype(np.float32), "D": np.dtype(np.float64)}

#: The version that it says it is.
VERSION = 12, 0, 0

#: CUDA's numbers of dtypes.
_TYPES = {0: _KINDS["S"], 1: _KINDS["D"], 4: np.dtype(np.complex64), 5: np.dtype(np.complex128)}

#: What LAPACK's functions take, after a handle: a letter of `TYPES` for each parameter.
_TAKES = {
    "cusolverDn{}getrf_bufferSize": "PIIPIP",
    "cusolverDn{}getrf": "PIIPIPPP",
    "cusolverDn{}getrs": "PIIIPIPPIP",
    "cusolverDn{}potrf_bufferSize": "PIIPIP",
    "cusolverDn{}potrf": "PIIPIPIP",
    "cusolverDn{}potrfBatched": "PIIPIPI",
    "cusolverDn{}geqrf_bufferSize": "PIIPIP",
    "cusolverDn{}geqrf": "PIIPIPPIP",
    "cusolverDn{}orgqr_bufferSize": "PIIIPIPP",
    "cusolverDn{}orgqr": "PIIIPIPPIP",
    "cusolverDn{}gesvd_bufferSize": "PIIP",
    "cusolverDn{}gesvd": "PIIIIPIPPIPIPIPP",
    "cusolverDn{}gesvdjBatched_bufferSize": "PIIIPIPPIPIPPI",
    "cusolverDn{}gesvdjBatched": "PIIIPIPPIPIPIPPI",
    "cusolverDn{}syevjBatched_bufferSize": "PIIIPIPPPI",
    "cusolverDn{}syevjBatched": "PIIIPIPPIPPI",
    "cublas{}getrfBatched": "PIPIPPI",
    "cublas{}getriBatched": "PIPIPPIPI",
    "cublas{}getrsBatched": "PIIIPIPPIPI",
}

#: The same, of functions of all dtypes.
_OTHERS = {
    "cusolverGetProperty": "IP",
    "cusolverDnSetStream": "PP",
    "cusolverDnXsyevd_bufferSize": "PPIIZIPZIPIPP",
    "cusolverDnXsyevd": "PPIIZIPZIPIPZPZP",
    "cublasSetStream_v2": "PP",
    "cublasGemmEx": "PIIIIIPPIIPIIPPIIII",
    "cublasGemmStridedBatchedEx": "PIIIIIPPIIZPIIZPPIIZIII",
}

#: What handles are made of.
_HANDLES = ("", "Params", "GesvdjInfo", "SyevjInfo")


class Solver:
    """The functions, by their names.

    Parameters
    ----------
    machine : Machine
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._streams: dict[int, int] = {}

    def entries(self, library: str) -> dict[str, Any]:
        """The functions of a library, ``cusolver`` or ``cublas``, as C's."""
        found: dict[str, tuple[str, Callable[..., Any]]] = {}
        for name, takes in _TAKES.items():
            for letter, dtype in _KINDS.items():
                found[name.format(letter)] = takes, partial(self._of(name.format("")), dtype)
        for name, takes in _OTHERS.items():
            found[name] = takes, self._of(name)
        for what in _HANDLES:
            found[f"cusolverDnCreate{what}"] = "P", _create
            found[f"cusolverDnDestroy{what}"] = "P", lambda handle: None
        return {
            name: ctypes.CFUNCTYPE(ctypes.c_int, *(TYPES[each] for each in takes))(_answering(call))
            for name, (takes, call) in found.items()
            if name.startswith(library)
        }

    def _of(self, name: str) -> Callable[..., Any]:
        method = getattr(self, name.removeprefix("cusolverDn").removeprefix("cublas"), None)
        return method or partial(_size, -3 if "Batched" in name else -1)

    def SetStream(self, handle: int, stream: int) -> None:
        self._streams[handle] = stream

    SetStream_v2 = SetStream

    def cusolverGetProperty(self, number: int, to: int) -> None:
        put(ctypes.c_int, to, VERSION[number])

    def _do(self, handle: int, work: Callable[[], None], what: str) -> None:
        with self._machine.lock:
            self._machine.submit(self._machine.stream(self._streams.get(handle, 0)), work, what)

    # Products

    def GemmEx(self, handle: int, *given: int) -> int | None:
        *sizes, alpha, a, kind, lda, b, kind_b, ldb, beta, c, kind_c, ldc, _, _ = given
        return self._gemm(handle, sizes, alpha, (a, lda, 0), (b, ldb, 0), beta, (c, ldc, 0), {kind, kind_b, kind_c}, 1)

    def GemmStridedBatchedEx(self, handle: int, *given: int) -> int | None:
        *sizes, alpha, a, kind, lda, by, b, kind_b, ldb, by_b, beta, c, kind_c, ldc, by_c, count, _, _ = given
        kinds = {kind, kind_b, kind_c}
        return self._gemm(handle, sizes, alpha, (a, lda, by), (b, ldb, by_b), beta, (c, ldc, by_c), kinds, count)

    def _gemm(
        self, handle: int, sizes: Any, alpha: int, a: Any, b: Any, beta: int, c: Any, kinds: set[int], count: int
    ) -> int | None:
        """Products of `count` matrices: of each the address, the leading dimension and the step to the next."""
        if len(kinds) > 1 or not kinds <= _TYPES.keys():
            return _NOT_SUPPORTED
        dtype, (turned, turned_b, m, n, k) = _TYPES[kinds.pop()], sizes
        (factor,), (kept,) = _vector(alpha, dtype, 1).tolist(), _vector(beta, dtype, 1).tolist()  # on the host

        def at(i: int, matrix: Any, rows: int, columns: int, is_turned: int) -> np.ndarray:
            address, leading, step = matrix
            shape = (columns, rows) if is_turned else (rows, columns)
            found = _matrix(address + i * step * dtype.itemsize, dtype, *shape, leading)
            return found.T if is_turned else found

        def work() -> None:
            for i in range(count):
                found = at(i, c, m, n, 0)
                product = factor * (at(i, a, m, k, turned) @ at(i, b, k, n, turned_b))
                found[...] = product + kept * found if kept else product

        self._do(handle, work, "gemm")
        return None

    # LU

    def getrf(self, dtype: Any, handle: int, m: int, n: int, a: int, lda: int, _: int, pivots: int, info: int) -> None:
        self._do(handle, lambda: _put(info, _lu(_matrix(a, dtype, m, n, lda), _ints(pivots, min(m, n)))), "getrf")

    def getrfBatched(
        self, dtype: Any, handle: int, n: int, a: int, lda: int, pivots: int, info: int, count: int
    ) -> None:
        def work() -> None:
            for i, each in enumerate(_addresses(a, count)):
                _put(info + 4 * i, _lu(_matrix(each, dtype, n, n, lda), _ints(pivots + 4 * n * i, n)))

        self._do(handle, work, "getrfBatched")

    def getrs(
        self, dtype: Any, handle: int, trans: int, n: int, right: int, a: int, lda: int, pivots: int, b: int, ldb: int,
        info: int,
    ) -> None:  # fmt: skip
        def work() -> None:
            found = _matrix(b, dtype, n, right, ldb)
            found[...] = _solved(_matrix(a, dtype, n, n, lda), _ints(pivots, n), found, bool(trans))
            _put(info, 0)

        self._do(handle, work, "getrs")

    def getrsBatched(
        self, dtype: Any, handle: int, trans: int, n: int, right: int, a: int, lda: int, pivots: int, b: int, ldb: int,
        info: int, count: int,
    ) -> None:  # fmt: skip
        def work() -> None:
            for i, (x, y) in enumerate(zip(_addresses(a, count), _addresses(b, count), strict=True)):
                found = _matrix(y, dtype, n, right, ldb)
                found[...] = _solved(_matrix(x, dtype, n, n, lda), _ints(pivots + 4 * n * i, n), found, bool(trans))

        _put(info, 0)  # on the host
        self._do(handle, work, "getrsBatched")

    def getriBatched(
        self, dtype: Any, handle: int, n: int, a: int, lda: int, pivots: int, c: int, ldc: int, info: int, count: int
    ) -> None:
        def work() -> None:
            for i, (x, y) in enumerate(zip(_addresses(a, count), _addresses(c, count), strict=True)):
                factors = _matrix(x, dtype, n, n, lda)
                found = _solved(factors, _ints(pivots + 4 * n * i, n), np.eye(n, dtype=dtype), False)
                _matrix(y, dtype, n, n, ldc)[...] = found
                _put(info + 4 * i, _singular(factors))

        self._do(handle, work, "getriBatched")

    # Cholesky

    def potrf(self, dtype: Any, handle: int, uplo: int, n: int, a: int, lda: int, _: int, size: int, info: int) -> None:
        self._do(handle, lambda: _put(info, _cholesky(_matrix(a, dtype, n, n, lda), bool(uplo))), "potrf")

    def potrfBatched(self, dtype: Any, handle: int, uplo: int, n: int, a: int, lda: int, info: int, count: int) -> None:
        def work() -> None:
            for i, each in enumerate(_addresses(a, count)):
                _put(info + 4 * i, _cholesky(_matrix(each, dtype, n, n, lda), bool(uplo)))

        self._do(handle, work, "potrfBatched")

    # QR

    def geqrf(
        self, dtype: Any, handle: int, m: int, n: int, a: int, lda: int, tau: int, _: int, size: int, info: int
    ) -> None:
        def work() -> None:
            found = _matrix(a, dtype, m, n, lda)
            reflectors, factors = np.linalg.qr(found, mode="raw")
            found[...] = reflectors.T
            _vector(tau, dtype, min(m, n))[...] = factors
            _put(info, 0)

        self._do(handle, work, "geqrf")

    def orgqr(
        self, dtype: Any, handle: int, m: int, n: int, k: int, a: int, lda: int, tau: int, _: int, size: int, info: int
    ) -> int | None:
        if not m >= n >= k:
            return _INVALID

        def work() -> None:
            found, factors = _matrix(a, dtype, m, n, lda), _vector(tau, dtype, k)
            q = np.eye(m, n, dtype=dtype)
            for i in reversed(range(k)):
                v = np.concatenate([np.zeros(i, dtype), np.ones(1, dtype), found[i + 1 :, i]])
                q -= factors[i] * np.outer(v, v @ q)
            found[...] = q
            _put(info, 0)

        self._do(handle, work, "orgqr")
        return None

    # Singular values

    def gesvd(
        self, dtype: Any, handle: int, job_u: int, job_v: int, m: int, n: int, a: int, lda: int, s: int, u: int,
        ldu: int, v: int, ldv: int, _: int, size: int, rwork: int, info: int,
    ) -> int | None:  # fmt: skip
        if m < n:  # which cuSOLVER does not take
            return _INVALID

        def work() -> None:
            found = _matrix(a, dtype, m, n, lda)
            (left, values, right), failed = _svd(found)
            _vector(s, dtype, n)[...] = values
            for job, made, to, ld in ((job_u, left, u, ldu), (job_v, right, v, ldv)):
                part = made if chr(job) == "A" else made[:n] if made is right else made[:, :n]
                if chr(job) == "O":
                    found[: part.shape[0], : part.shape[1]] = part
                elif chr(job) != "N":
                    _matrix(to, dtype, *part.shape, ld)[...] = part
            _put(info, failed)

        self._do(handle, work, "gesvd")
        return None

    def gesvdjBatched(
        self, dtype: Any, handle: int, job: int, m: int, n: int, a: int, lda: int, s: int, u: int, ldu: int, v: int,
        ldv: int, _: int, size: int, info: int, params: int, count: int,
    ) -> int | None:  # fmt: skip
        if max(m, n) > _MOST:
            return _INVALID

        def work() -> None:
            for i in range(count):
                item = i * dtype.itemsize
                (left, values, right), failed = _svd(_matrix(a + item * lda * n, dtype, m, n, lda))
                _vector(s + item * min(m, n), dtype, min(m, n))[...] = values
                if job:
                    _matrix(u + item * ldu * m, dtype, m, m, ldu)[...] = left
                    _matrix(v + item * ldv * n, dtype, n, n, ldv)[...] = right.T
                _put(info + 4 * i, failed)

        self._do(handle, work, "gesvdjBatched")
        return None

    # Eigenvalues

    def Xsyevd_bufferSize(self, *given: Any) -> None:
        for to in given[-2:]:
            put(ctypes.c_size_t, to, 8)

    def Xsyevd(
        self, handle: int, params: int, job: int, uplo: int, n: int, kind: int, a: int, lda: int, kind_w: int, w: int,
        computed: int, on_device: int, size: int, on_host: int, size_there: int, info: int,
    ) -> None:  # fmt: skip
        dtype = _TYPES[kind]
        self._do(handle, lambda: _put(info, _eigen(_matrix(a, dtype, n, n, lda), w, job, uplo)), "Xsyevd")

    def syevjBatched(
        self, dtype: Any, handle: int, job: int, uplo: int, n: int, a: int, lda: int, w: int, _: int, size: int,
        info: int, params: int, count: int,
    ) -> None:  # fmt: skip
        def work() -> None:
            for i in range(count):
                item = i * n * dtype.itemsize
                _put(info + 4 * i, _eigen(_matrix(a + item * lda, dtype, n, n, lda), w + item, job, uplo))

        self._do(handle, work, "syevjBatched")


def _answering(call: Callable[..., Any]) -> Callable[..., int]:
    return lambda *given: call(*given) or 0


def _create(to: int) -> None:
    put(ctypes.c_size_t, to, 0x501_0000 + to % 0x10000)


def _size(number: int, *given: Any) -> None:
    """Answer, where one of the parameters points, that a workspace has 8 elements."""
    put(ctypes.c_int, given[number], 8)


def _put(to: int, info: int) -> None:
    put(ctypes.c_int, to, info)


def _vector(address: int, dtype: np.dtype, size: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_char * (size * dtype.itemsize)).from_address(address), dtype)


def _ints(address: int, size: int) -> np.ndarray:
    return _vector(address, np.dtype(np.int32), size)


def _addresses(address: int, count: int) -> list[int]:
    return list((ctypes.c_size_t * count).from_address(address))


def _matrix(address: int, dtype: np.dtype, rows: int, columns: int, leading: int) -> np.ndarray:
    """A matrix in columns, `leading` elements from one to the next."""
    flat = _vector(address, dtype, leading * (columns - 1) + rows)
    return np.ndarray((rows, columns), dtype, flat, strides=(dtype.itemsize, leading * dtype.itemsize))


def _lu(a: np.ndarray, pivots: np.ndarray) -> int:
    """Factorise in place, by pivots counted from 1; the column of the first pivot that is 0, or 0."""
    for j in range(min(a.shape)):
        p = j + int(np.argmax(np.abs(a[j:, j])))
        pivots[j] = p + 1
        a[[j, p]] = a[[p, j]]
        if a[j, j] != 0:
            a[j + 1 :, j] /= a[j, j]
            a[j + 1 :, j + 1 :] -= np.outer(a[j + 1 :, j], a[j, j + 1 :])
    return _singular(a)


def _singular(a: np.ndarray) -> int:
    zero = np.flatnonzero(np.diagonal(a) == 0)
    return int(zero[0]) + 1 if zero.size else 0


def _solved(a: np.ndarray, pivots: np.ndarray, b: np.ndarray, is_transposed: bool) -> np.ndarray:
    """The solution by factors; NaN where they have none."""
    order = np.arange(len(a))
    for j, p in enumerate(pivots):
        order[[j, p - 1]] = order[[p - 1, j]]
    lower, upper = np.tril(a, -1) + np.eye(len(a), dtype=a.dtype), np.triu(a)
    try:
        if is_transposed:
            return np.linalg.solve(lower.T, np.linalg.solve(upper.T, b))[np.argsort(order)]
        return np.linalg.solve(upper, np.linalg.solve(lower, b[order]))
    except np.linalg.LinAlgError:
        return np.full_like(b, np.nan)


def _cholesky(a: np.ndarray, is_upper: bool) -> int:
    """Factorise a triangle in place; the size of the first minor that is not positive, or 0."""
    part = np.triu(a) if is_upper else np.tril(a).T
    whole = part + np.triu(part, 1).T
    for size in range(1, len(a) + 1):
        try:
            found = np.linalg.cholesky(whole[:size, :size])
        except np.linalg.LinAlgError:
            return size
    own = np.triu_indices(len(a)) if is_upper else np.tril_indices(len(a))
    a[own] = (found.T if is_upper else found)[own]
    return 0


def _svd(a: np.ndarray) -> tuple[Any, int]:
    """The factors, whole, and 0; NaNs, and 1, where there are none."""
    (m, n), k = a.shape, min(a.shape)
    try:
        return np.linalg.svd(a), 0
    except np.linalg.LinAlgError:
        return [np.full(shape, np.nan, a.dtype) for shape in ((m, m), (k,), (n, n))], 1


def _eigen(a: np.ndarray, to: int, job: int, uplo: int) -> int:
    """Write eigenvalues, and if asked for, eigenvectors over the matrix; 1 where there are none."""
    try:
        values, vectors = np.linalg.eigh(a, "U" if uplo else "L")
    except np.linalg.LinAlgError:
        return 1
    _vector(to, values.dtype, len(a))[...] = values
    if job:
        a[...] = vectors
    return 0
