"""Linear algebra at work: each function on operands that are well-conditioned in every dtype, and what NumPy says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.cases import Case
from optree.errors import ShapeError
from optree.registry import f
from optree.testing.examples import Example
from optree.tree.variable import constant


def regular(x: Any, size: int = 7) -> Any:
    """Matrices, square or not, with so much more on the diagonal that they are of full rank; in their own dtype.

    Each place of the diagonal gets another number, so that singular values are apart.
    """
    *_, m, n = x.shape
    if m is None or n is None:
        raise ShapeError(f"the diagonal of a matrix of {m} x {n} is not known")
    return _plus(x, np.eye(m, n) * (size + 3 * np.arange(n)))


def _plus(x: Any, numbers: np.ndarray) -> Any:
    more = numbers.astype(np.int8)
    return x + (more if isinstance(x, np.ndarray) else constant(more))


def symmetric(x: Any) -> Any:
    """The same for symmetric or Hermitian positive definite matrices."""
    turned = np.matrix_transpose(x) if isinstance(x, np.ndarray) else f.matrix_transpose(x)
    return regular(x + (np.conj(turned) if x.dtype.kind == "c" else turned), 9)


def turning(x: Any) -> Any:
    """The same for matrices that have complex eigenvalues."""
    m = x.shape[-1]
    return _plus(regular(x), 9 * (np.eye(m, k=1) - np.eye(m, k=-1)))


def parts(x: Any) -> Any:
    """A function of complex numbers that is not complex differentiable."""
    return np.real(x) + 2 * np.imag(x) * np.real(x)


def squared(x: Any) -> Any:
    """The squares of absolute values, which are invariant to signs and to phases."""
    return np.real(x) ** 2 + np.imag(x) ** 2 if x.dtype.kind == "c" else x**2


def _one(name: str, prepare: Callable[..., Any], *shapes: Any, pick: Any = None, **keywords: Any) -> Case:
    """A function of one operand; of several values those that `pick` makes of them."""
    theirs = getattr(np.linalg, name)

    def build(x: Any) -> Any:
        found = getattr(f, name)(prepare(x), **keywords)
        return found if pick is None else pick(*found)

    def meaning(x: Any) -> Any:
        found = theirs(wide(prepare(x)), **keywords)
        return np.asarray(found if pick is None else pick(*found))

    return Case(shapes, build, meaning)


def wide(x: Any) -> Any:
    """An array in a dtype that NumPy's linear algebra takes."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _solve(a: Any, b: Any) -> Case:
    return Case((a, b), lambda a, b: f.solve(regular(a), b), lambda a, b: np.linalg.solve(wide(regular(a)), wide(b)))


def _cofactors(x: Any) -> Any:
    return np.linalg.det(x)[..., None, None] * np.matrix_transpose(np.linalg.inv(x))


def _products(q: Any, r: Any) -> Any:
    """A function of a QR factorisation that is invariant to the signs or phases of columns of q."""
    return squared(q) @ squared(r)


LINALG: dict[str, list[Case]] = {
    "solve": [
        _solve((3, 3), (3, 2)),
        _solve((3, 3), (3,)),
        _solve((2, 3, 3), (3,)),
        _solve((2, 2, 2), (2, 1)),
        _solve((2, 2), (3, 2, 1)),
        _solve((2, 1, 2, 2), (3, 2, 2)),
        _solve((1, 1), (1, 1)),
        _solve((0, 2, 2), (2, 3)),
        _solve((2, 2), (2, 0)),
    ],
    "inv": [_one("inv", regular, shape) for shape in ((3, 3), (2, 2, 2), (1, 1), (0, 2, 2), (0, 0))],
    "det": [_one("det", regular, shape) for shape in ((3, 3), (2, 2, 2), (1, 1), (0, 2, 2), (0, 0))],
    "cofactors": [
        Case((shape,), lambda x: f.cofactors(regular(x)), lambda x: _cofactors(wide(regular(x))))
        for shape in ((3, 3), (2, 2, 2), (0, 2, 2))
    ],
    "slogdet": [
        _one("slogdet", regular, shape, pick=lambda sign, log: sign * log) for shape in ((3, 3), (2, 2, 2), (0, 0))
    ],
    "cholesky": [
        *(_one("cholesky", symmetric, shape) for shape in ((3, 3), (2, 2, 2), (1, 1), (0, 2, 2))),
        _one("cholesky", symmetric, (3, 3), upper=True),
    ],
    "qr": [
        *(_one("qr", regular, shape, pick=_products) for shape in ((4, 2), (3, 3), (2, 3), (2, 3, 2))),
        _one("qr", regular, (3, 3), pick=_products, mode="complete"),
        Case(
            ((3, 2),),
            lambda x: squared(f.qr(regular(x), "r")),
            lambda x: squared(np.linalg.qr(wide(regular(x)), "r")),
        ),
    ],
    "eigvalsh": [_one("eigvalsh", symmetric, shape) for shape in ((3, 3), (2, 2, 2), (1, 1))],
    "eigh": [
        *(
            _one(
                "eigh", symmetric, shape, pick=lambda w, v: w * squared(v).sum(axis=-1) + (squared(v) ** 2).sum(axis=-2)
            )
            for shape in ((3, 3), (2, 2, 2), (1, 1))
        ),
        _one("eigh", symmetric, (3, 3), pick=lambda w, v: squared(v), UPLO="U"),
    ],
    "eigvals": [
        Case((shape,), lambda x: parts(f.eigvals(turning(x))), lambda x: parts(np.linalg.eigvals(wide(turning(x)))))
        for shape in ((3, 3), (2, 2, 2), (1, 1))
    ],
    "eig": [
        _one("eig", turning, shape, pick=lambda w, v: parts(w) + (squared(v) ** 2).sum(axis=-2))
        for shape in ((3, 3), (2, 2, 2), (1, 1))
    ],
    "svdvals": [_one("svdvals", regular, shape) for shape in ((3, 3), (4, 2), (2, 3), (2, 3, 2), (0, 2))],
    "svd": [
        *(
            _one("svd", regular, shape, pick=lambda u, s, v: squared(u) @ squared(v) + s.sum(), full_matrices=False)
            for shape in ((3, 3), (4, 2), (2, 3), (2, 3, 2))
        ),
        _one("svd", regular, (2, 2), pick=lambda u, s, v: squared(u) @ squared(v)),
        _one("svd", regular, (3, 2), compute_uv=False),
    ],
    "pinv": [
        *(_one("pinv", regular, shape) for shape in ((3, 3), (4, 2), (2, 3), (2, 3, 2), (0, 2))),
        _one("pinv", regular, (3, 2), rtol=0.2),
    ],
    "pinv_by_tolerances": [_one("pinv", regular, (2, 3, 2), rtol=np.array([0.02, 0.01]))],
    "matrix_rank": [_one("matrix_rank", regular, shape) for shape in ((3, 3), (4, 2), (2, 3, 2))],
    "matrix_power": [
        *(_one("matrix_power", regular, (3, 3), n=n) for n in (1, 2, -1, -2)),
        _one("matrix_power", regular, (2, 2, 2), n=3),
        _one("matrix_power", regular, (2, 2), n=0),
    ],
    "cond": [
        *(_one("cond", regular, shape) for shape in ((3, 3), (4, 2), (2, 2, 2))),
        *(_one("cond", regular, (3, 3), p=p) for p in (-2, "fro", 1, np.inf)),
        _one("cond", regular, (2, 2, 2), p="nuc"),
    ],
    "lstsq": [
        Case(shapes, build, meaning)
        for shapes in (((4, 2), (4, 3)), ((4, 2), (4,)), ((3, 3), (3, 1)), ((2, 4), (2, 1)))
        for build, meaning in (
            (
                lambda a, b: f.lstsq(regular(a), b)[0],
                lambda a, b: np.linalg.lstsq(wide(regular(a)), wide(b))[0],
            ),
            (
                lambda a, b: f.lstsq(regular(a), b)[1],
                lambda a, b: np.linalg.lstsq(wide(regular(a)), wide(b))[1],
            ),
        )
    ],
}


def linalg_examples(name: str) -> list[tuple[Example, Callable[..., Any]]]:
    """A function's cases as examples, each with its meaning."""
    return [
        (Example(case.build, case.operands, (-2.0, 2.0), f"{name}#{i}"), case.meaning)
        for i, case in enumerate(LINALG[name])
    ]
