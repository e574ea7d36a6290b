"""The functions that are composed of ops: how to call each, and what NumPy says to the same arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness import windowed
from harness.activations import ACTIVATIONS
from harness.cases import Case, floating, in_double, in_double_of_all, wide
from harness.networks import NORMALISATION, RECURRENT
from optree.dtypes import is_floating
from optree.registry import f
from optree.testing.examples import Example


def _rounded_power(x: Any, y: Any) -> Any:
    """x times y taken to a power of two, with its sign."""
    return x * (np.exp2(np.rint(np.log2(np.abs(y)))) * np.sign(y))


def _added(x: Any, value: Any, rows: Any) -> Any:
    result = np.array(x)
    np.add.at(result, rows, value)
    return result


def _einsum(subscripts: str, *shapes: tuple[int, ...]) -> Case:
    return Case(shapes, lambda *xs: f.einsum(subscripts, *xs), lambda *xs: np.asarray(np.einsum(subscripts, *xs)))


def _windowed(name: str, operands: tuple[Any, ...], **options: Any) -> Case:
    """A function of op-tree's, with loops for its meaning."""
    meaning = getattr(windowed, name)
    return Case(operands, lambda *xs: getattr(f, name)(*xs, **options), lambda *xs: meaning(*xs, **options))


def _same(name: str, *operands: Any, pick: Any = None, **options: Any) -> Case:
    """A function of NumPy's name and parameters; of a list of values, the one at `pick`."""

    def by(library: Any) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            found = getattr(library, name)(*values, **options)
            return found if pick is None else found[pick]

        return call

    return Case(operands, by(f), lambda *values: np.asarray(by(np)(*values)))


def _cumulative(name: str, x: Any, axis: Any, first: bool) -> Any:
    """NumPy's, accumulated in float64."""
    wide = np.float64 if x.dtype.kind == "f" else None
    found = getattr(np, name)(x, axis=axis, dtype=wide, include_initial=first)
    return found.astype(getattr(np, name)(x[:0], axis=0).dtype)


ELEMENTWISE = {
    "cross": [_same("cross", (2, 3), (3,)), _same("cross", (3, 2), (3, 2), axis=0)],
    "multi_dot": [
        Case(shapes, lambda *operands: f.multi_dot(operands), lambda *arrays: np.linalg.multi_dot(arrays))
        for shapes in (
            ((2, 3), (3, 4), (4, 2)),
            ((3,), (3, 2), (2, 4), (4,)),
            ((2, 3), (3, 2)),
            ((1, 5), (5, 1), (1, 5)),
        )
    ],
    "outer": [_same("outer", *shapes) for shapes in (((3,), (4,)), ((2, 2), (3,)), ((), (3,)), ((0,), (3,)))],
    "vecdot": [_same("vecdot", (2, 3), (3,)), _same("vecdot", (3, 2), (3, 1), axis=0)],
    "matvec": [_same("matvec", (2, 3), (3,)), _same("matvec", (2, 2, 3), (2, 3)), _same("matvec", (2, 1), (3, 1))],
    "vecmat": [_same("vecmat", (3,), (3, 2)), _same("vecmat", (2, 3), (2, 3, 2)), _same("vecmat", (3, 1), (1, 2))],
    "divmod": [_same("divmod", (2, 3), 0.7, pick=0), _same("divmod", (2, 2), (2,), pick=1)],
    "delete": [_same("delete", (2, 3), obj=1, axis=1), _same("delete", (5,), obj=[0, -1])],
    "insert": [
        Case(((2, 3), (2,)), lambda x, y: f.insert(x, 1, y, 1), lambda x, y: np.insert(x, 1, y, 1)),
        Case(((4,), (2,)), lambda x, y: f.insert(x, [0, 4], y), lambda x, y: np.insert(x, [0, 4], y)),
        Case(((40,), ()), lambda x, y: f.insert(x, range(20), y), lambda x, y: np.insert(x, range(20), y)),
    ],
    "modf": [
        Case(((2, 3),), lambda x: f.modf(x)[0] * x, lambda x: np.modf(x)[0] * x),
        _same("modf", (3,), pick=1),
    ],
    "frexp": [Case(((2, 3),), lambda x: f.frexp(x)[0] * x, lambda x: np.frexp(x)[0] * x), _same("frexp", (3,), pick=1)],
    "ldexp": [Case(((2, 3),), lambda x: f.ldexp(x, 3), lambda x: np.ldexp(x, 3))],
    **{name: [_same(name, (2, 3))] for name in ("positive", "conjugate", "real", "imag")},
    "angle": [_same("angle", (2, 3)), _same("angle", (3,), deg=True)],
    **{
        name: [
            _same(name, (2, 3)),
            Case(
                ((3,),),
                lambda x, name=name: getattr(f, name)(x / 0.0),
                lambda x, name=name: getattr(np, name)(x / 0.0),
            ),
        ]
        for name in ("isposinf", "isneginf")
    },
    "logaddexp2": [
        _same("logaddexp2", (2, 3), (3,)),
        _same("logaddexp2", (3,), 0.5),
        Case(((3,),), lambda x: f.logaddexp2(x * 2000.0, x), lambda x: np.logaddexp2(x * 2000.0, x)),
    ],
    "select": [
        Case(
            ((2, 3), (3,), ()),
            lambda x, y, z: f.select([x > 1, x < 0], [x, y], z),
            lambda x, y, z: np.select([x > 1, x < 0], [x, y], z),
        ),
        Case(((2, 3),), lambda x: f.select([x > 0], [x]), lambda x: np.select([x > 0], [x])),
    ],
    "inner": [_same("inner", (2, 3), (4, 3)), _same("inner", (3,), (3,)), _same("inner", (2, 3), ())],
    "vdot": [_same("vdot", (2, 3), (2, 3)), _same("vdot", (2, 3), (6,)), _same("vdot", (), ())],
    **{
        name: [
            _same(name, *shapes, mode=mode)
            for shapes in (((5,), (4,)), ((2,), (5,)), ((3,), (3,)), ((3,), (1,)))
            for mode in ("full", "same", "valid")
        ]
        for name in ("convolve", "correlate")
    },
    "kron": [
        _same("kron", (2, 3), (3, 2)),
        _same("kron", (2,), (2, 3)),
        _same("kron", (2, 1, 2), (3,)),
        _same("kron", (), ()),
        _same("kron", (2, 2), 3.0),
    ],
    "heaviside": [_same("heaviside", (2, 3), (3,)), _same("heaviside", (2, 3), 0.5)],
    "nan_to_num": [
        Case(((2, 3),), lambda x: f.nan_to_num(x) * x, lambda x: np.nan_to_num(x) * x),
        Case(
            ((2, 3),),
            lambda x: f.nan_to_num(f.log(x), 0.5, 1.0, -1.0),
            lambda x: np.nan_to_num(np.log(x), True, 0.5, 1.0, -1.0),
        ),
    ],
    "float_power": [
        _same("float_power", (), 2),
        Case(((3,),), lambda x: f.float_power(2, x), lambda x: np.float_power(2, x)),
    ],
    "degrees": [_same("degrees", (2, 3))],
    "radians": [_same("radians", (2, 3))],
    "sinc": [
        _same("sinc", (2, 3)),
        Case(((5,),), lambda x: f.sinc(x * 0.01), lambda x: np.sinc(x * 0.01)),
        Case(((),), lambda x: f.sinc(x * 1e-9), lambda x: np.sinc(x * 1e-9)),
    ],
    "fmax": [_same("fmax", (2, 3), (3,)), _same("fmax", (2, 3), 0.5), _same("fmax", (), ())],
    "fmin": [_same("fmin", (2, 3), (3,)), _same("fmin", (2, 3), 0.5)],
}

ARRANGEMENT = {
    "tril": [
        _same("tril", (3, 4)),
        _same("tril", (2, 4, 3), k=-1),
        _same("tril", (3,), k=1),
        _same("tril", (0, 2, 2)),
    ],
    "triu": [
        _same("triu", (3, 4)),
        _same("triu", (2, 4, 3), k=1),
        _same("triu", (3,)),
        _same("triu", (2, 0), k=2),
    ],
    "diagonal": [
        _same("diagonal", (3, 4)),
        _same("diagonal", (2, 4, 3), offset=1, axis1=2, axis2=0),
        _same("diagonal", (4, 2, 3), offset=-2, axis1=0, axis2=-1),
        _same("diagonal", (2, 3), offset=5),
        _same("diagonal", (0, 3)),
    ],
    "diag": [
        _same("diag", (3, 4)),
        _same("diag", (3, 3), k=-1),
        _same("diag", (3,)),
        _same("diag", (2,), k=2),
        _same("diag", (2,), k=-1),
    ],
    "diagflat": [_same("diagflat", (2, 2)), _same("diagflat", (3,), k=-1), _same("diagflat", (), k=1)],
    "unstack": [
        Case(((3, 2),), lambda x: f.unstack(x)[1], lambda x: np.unstack(x)[1]),
        Case(((2, 3),), lambda x: f.unstack(x, -1)[2], lambda x: np.unstack(x, axis=-1)[2]),
        Case(((2,),), lambda x: f.unstack(x)[0], lambda x: np.asarray(np.unstack(x)[0])),
    ],
    "block": [
        Case(
            ((2, 2), (2, 1), (1, 3)),
            lambda x, y, z: f.block([[x, y], [z]]),
            lambda x, y, z: np.block([[x, y], [z]]),
        ),
        Case(((2, 3), (2,)), lambda x, y: f.block([x, x]), lambda x, y: np.block([x, x])),
        Case(
            ((2, 2), (2, 2), (2, 4)),
            lambda x, y, z: f.block([[[x, y]], [[z]]]),
            lambda x, y, z: np.block([[[x, y]], [[z]]]),
        ),
        Case(((2,), ()), lambda x, y: f.block([[y, x], [x, 0.5]]), lambda x, y: np.block([[y, x], [x, 0.5]])),
        Case(((2,),), lambda x: f.block(x), lambda x: np.block(x)),
    ],
    "trace": [_same("trace", (3, 4)), _same("trace", (2, 4, 3), offset=1, axis1=1, axis2=2)],
    "fliplr": [_same("fliplr", (2, 3))],
    "rollaxis": [_same("rollaxis", (2, 3, 4), *axes) for axes in ((2,), (0, 2), (-2, 3))],
    "broadcast_arrays": [
        _same("broadcast_arrays", (2, 1), (3,), pick=0),
        _same("broadcast_arrays", (2, 1), (3,), (), pick=2),
    ],
    "atleast_1d": [*(_same("atleast_1d", x) for x in ((), (3,), (2, 3))), _same("atleast_1d", (), (2,), pick=0)],
    "atleast_2d": [_same("atleast_2d", shape) for shape in ((), (3,), (2, 3))],
    "atleast_3d": [_same("atleast_3d", shape) for shape in ((), (3,), (2, 3), (2, 3, 1))],
    "flipud": [_same("flipud", (2, 3)), _same("flipud", (3,))],
    "rot90": [_same("rot90", (2, 3), k=k) for k in range(-1, 4)] + [_same("rot90", (2, 3, 2), axes=(2, 0))],
    "array_split": [
        _same("array_split", (5, 2), 3, pick=1),
        _same("array_split", (2, 5), 3, axis=-1, pick=2),
        _same("array_split", (2, 2), 3, pick=-1),
    ],
    "split": [
        _same("split", (4, 2), 2, pick=1),
        Case(((2, 5),), lambda x: f.split(x, [1, 3], 1)[1], lambda x: np.split(x, [1, 3], 1)[1]),
        Case(((5,),), lambda x: f.split(x, [3, 2, 9])[1], lambda x: np.split(x, [3, 2, 9])[1]),
        Case(((5,),), lambda x: f.split(x, (-2,))[1], lambda x: np.split(x, (-2,))[1]),
    ],
    "hsplit": [_same("hsplit", (2, 4), 2, pick=1), _same("hsplit", (4,), 2, pick=0)],
    "vsplit": [_same("vsplit", (4, 2), 2, pick=1)],
    "dsplit": [_same("dsplit", (2, 1, 4), 2, pick=1)],
    "meshgrid": [
        _same("meshgrid", (2,), (3,), pick=1),
        _same("meshgrid", (2,), (3,), (2,), pick=0, indexing="ij"),
        _same("meshgrid", (2,), (3,), (2,), pick=2, sparse=True),
        _same("meshgrid", (3,), pick=0),
        _same("meshgrid", (), (2, 2), pick=1),
    ],
    "dstack": [
        Case(((2, 3), (2, 3)), lambda *xs: f.dstack(xs), lambda *xs: np.dstack(xs)),
        Case(((3,), (3,)), lambda *xs: f.dstack(xs), lambda *xs: np.dstack(xs)),
        Case(((2, 3, 2),), lambda x: f.dstack(x), lambda x: np.dstack(x)),
        Case(((2, 3),), lambda x: f.dstack(x), lambda x: np.dstack(x)),
    ],
    "column_stack": [
        Case(((2,), (2, 3)), lambda *xs: f.column_stack(xs), lambda *xs: np.column_stack(xs)),
        Case(((2, 3),), lambda x: f.column_stack(x), lambda x: np.column_stack(x)),
        Case(((2, 3, 2),), lambda x: f.column_stack(x), lambda x: np.column_stack(x)),
    ],
    "append": [_same("append", (2, 3), (4,)), _same("append", (2, 3), (1, 3), axis=0), _same("append", (3,), 2.5)],
    "pad_by": [
        Case(
            ((3, 4),),
            lambda x, mode=mode: f.pad_by(x, ((2, 1), (3, 5)), mode),
            lambda x, mode=mode: _padded(x, ((2, 1), (3, 5)), mode),
        )
        for mode in "constant edge linear_ramp maximum mean median minimum reflect symmetric wrap".split()
    ]
    + [
        Case(
            ((2, 3),),
            lambda x: f.pad_by(x, 1, constant_values=((1, 2), (3, 4))),
            lambda x: np.pad(x, 1, constant_values=((1, 2), (3, 4))),
        ),
        *(
            Case(
                (shape,),
                lambda x, mode=mode, width=width: f.pad_by(x, width, mode, reflect_type="odd"),
                lambda x, mode=mode, width=width: np.pad(x, width, mode, reflect_type="odd"),
            )
            for mode in ("reflect", "symmetric")
            for shape, width in (((3, 4), 1), ((3, 4), ((2, 1), (3, 5))), ((2, 3), ((5, 0), (0, 4))), ((1, 2), 2))
        ),
        Case(((2, 3),), lambda x: f.pad(x, 2, mode="edge"), lambda x: np.pad(x, 2, mode="edge")),
        Case(((2, 3),), lambda x: f.pad_by(x, {-1: (1, 2)}), lambda x: np.pad(x, ((0, 0), (1, 2)))),
        Case(
            ((4,),),
            lambda x: f.pad_by(x, 2, "mean", stat_length=((2, 3),)),
            lambda x: np.pad(x, 2, "mean", stat_length=((2, 3),)),
        ),
        Case(
            ((4,),),
            lambda x: f.pad_by(x, 3, "linear_ramp", end_values=2),
            lambda x: np.pad(x, 3, "linear_ramp", end_values=2),
        ),
    ],
}


def _in_float64(name: str, *shapes: Any, pick: Any = None, **options: Any) -> Case:
    """A statistic by NumPy in float64, rounded; a reduction keeps its axes here unless it is told not to."""

    def meaning(*values: Any) -> Any:
        floats = [x.dtype for x in values if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
        found = getattr(np, name)(*(x.astype(np.float64) for x in values), **options)
        found = np.asarray(found if pick is None else found[pick])
        return found.astype(np.result_type(*floats)) if floats and found.dtype.kind == "f" else found

    def build(*values: Any) -> Any:
        found = getattr(f, name)(*values, **options)
        return found if pick is None else found[pick]

    return Case(shapes, build, meaning)


def _kept(name: str, *shapes: Any, **options: Any) -> Case:
    case = _in_float64(name, *shapes, **{"keepdims": True, **options})
    if not isinstance(q := options.get("q"), np.ndarray):
        return case

    def build(x: Any) -> Any:
        found = case.build(x)
        return f.cast(found, x.dtype) if is_floating(x.dtype) else found

    def meaning(x: Any) -> Any:
        found = case.meaning(x)
        return found if is_floating(x.dtype) else found.astype(np.result_type(x, q))

    return Case(case.operands, build, meaning)


def _with_nans(name: str, shape: tuple[int, ...], **options: Any) -> Case:
    """The same, some elements made nan."""
    inner = _kept(name, shape, **options) if not name.startswith("nancum") else _in_float64(name, shape, **options)
    lost = np.arange(np.prod(shape)).reshape(shape) % 3 == 1

    def build(x: Any) -> Any:
        return inner.build(f.where(lost, np.nan, x * (x * 1.0)))

    def meaning(x: Any) -> Any:
        return inner.meaning(np.where(lost, np.nan, x * (x * 1.0)))

    return Case((shape,), build, meaning)


def _unique(x: Any) -> Any:
    found = np.unique(x)
    return np.concatenate([found, np.full(7 - len(found), found[0])])


def _places(x: Any, size: int, fill: int) -> Any:
    return tuple(np.concatenate([p, np.full(size, fill, p.dtype)])[:size] for p in (np.flatnonzero(x),))


def _integers_keep(case: Case) -> Case:
    """A case of a function that leaves integers what they are."""
    return Case(case.operands, case.build, lambda x: case.meaning(x).astype(x.dtype))


#: Parts for quantiles, which promote float16.
PARTS = np.array([0.0, 0.2, 0.55, 1.0], np.float32)

QUANTILES = (
    "linear",
    "midpoint",
    "hazen",
    "weibull",
    "median_unbiased",
    "normal_unbiased",
    "interpolated_inverted_cdf",
    "averaged_inverted_cdf",
)

STATISTICS = {
    "count_nonzero": [
        _same("count_nonzero", (3, 4), axis=1, keepdims=True),
        _same("count_nonzero", (2, 3), axis=(0, 1), keepdims=False),
    ],
    "ptp": [_integers_keep(_kept("ptp", (3, 4))), _integers_keep(_kept("ptp", (3, 4), axis=1, keepdims=False))],
    **{
        name: [_with_nans(name, (3, 4)), _with_nans(name, (3, 5), axis=1, keepdims=False)]
        for name in ("nanmean", "nanvar", "nanstd", "nanmedian")
    },
    "nansum": [Case(((3, 4),), lambda x: f.nansum(x * x, axis=0), lambda x: np.nansum(x * x, axis=0, keepdims=True))],
    "nanprod": [Case(((3, 4),), lambda x: f.nanprod(x, axis=0), lambda x: np.nanprod(x, axis=0, keepdims=True))],
    "nancumsum": [Case(((3, 4),), lambda x: f.nancumsum(x * x, 1), lambda x: np.nancumsum(x * x, 1))],
    "nancumprod": [Case(((3, 4),), lambda x: f.nancumprod(x, 1), lambda x: np.nancumprod(x, 1))],
    **{
        name: [_with_nans(name, (3, 4)), _with_nans(name, (3, 5), axis=1, keepdims=False)]
        for name in ("nanmax", "nanmin")
    },
    **{
        name: [
            Case(
                ((3, 4),),
                lambda x, name=name: getattr(f, name)(x, axis=1),
                lambda x, name=name: getattr(np, name)(x, axis=1, keepdims=True),
            )
        ]
        for name in ("nanargmax", "nanargmin")
    },
    "median": [
        _kept("median", (3, 4)),
        _kept("median", (3, 4), axis=0, keepdims=False),
        _kept("median", (2, 3, 5), axis=(0, 2)),
    ],
    "quantile": [
        *(_kept("quantile", (3, 5), q=PARTS, axis=1, method=method) for method in QUANTILES),
        *(
            _integers_keep(_kept("quantile", (3, 5), q=0.3, axis=0, keepdims=False, method=method))
            for method in ("lower", "higher", "nearest", "inverted_cdf", "closest_observation")
        ),
        _kept("quantile", (3, 4), q=0.3),
    ],
    "nanquantile": [
        _with_nans("nanquantile", (3, 5), q=0.3, axis=1),
        _with_nans("nanquantile", (3, 5), q=PARTS, axis=0, method="hazen"),
    ],
    "percentile": [_kept("percentile", (3, 4), q=30.0), _kept("percentile", (3, 4), q=PARTS * 100, axis=0)],
    "nanpercentile": [_with_nans("nanpercentile", (3, 4), q=PARTS * 100)],
    "average": [
        _kept("average", (3, 4)),
        Case(
            ((3, 4), (4,)),
            lambda x, w: f.average(x, 1, f.square(w * 1.0) + 1, keepdims=False),
            in_double_of_all(lambda x, w: np.average(x, 1, w * w + 1)),
        ),
        Case(
            ((3, 4), (3, 4)),
            lambda x, w: f.average(x, None, f.square(w * 1.0) + 1, True)[1],
            in_double_of_all(lambda x, w: np.average(x, None, w * w + 1, True, keepdims=True)[1]),
        ),
    ],
    "cov": [
        Case(((3, 4),), lambda x: f.cov(x), lambda x: np.cov(x)),
        Case(((4,), (4,)), lambda x, y: f.cov(x, y, ddof=0), lambda x, y: np.cov(x, y, ddof=0)),
        Case(((4, 2),), lambda x: f.cov(x, rowvar=False, bias=True), lambda x: np.cov(x, rowvar=False, bias=True)),
        Case(
            ((2, 4), (4,)),
            lambda x, w: f.cov(x, aweights=abs(w * 1.0), fweights=np.array([1, 2, 1, 3])),
            lambda x, w: np.cov(x, aweights=abs(w * 1.0), fweights=np.array([1, 2, 1, 3])),
        ),
        Case(((5,),), lambda x: f.cov(x), lambda x: np.cov(x)),
    ],
    "corrcoef": [
        Case(((2, 5),), lambda x: f.slice(f.corrcoef(x), (0, 1)), lambda x: np.corrcoef(x)[0, 1]),
    ],
}


ORDERING = {
    "digitize": [
        Case(((2, 3),), lambda x: f.digitize(x, [-1.0, 0.0, 1.0]), lambda x: np.digitize(x, [-1.0, 0.0, 1.0])),
        Case(((2, 3),), lambda x: f.digitize(x, [1.0, 0.0], True), lambda x: np.digitize(x, [1.0, 0.0], True)),
    ],
    "bincount": [
        Case(([3, 1, 3, 0],), lambda i: f.bincount(i, size=5), lambda i: np.bincount(i, minlength=5)),
        Case(
            ([[3, 1], [3, 0]], (2, 2)),
            lambda i, w: f.bincount(i, w, size=4),
            lambda i, w: np.bincount(i.ravel(), w.ravel(), minlength=4),
        ),
    ],
    "histogram_bin_edges": [
        Case(
            ((2, 5),),
            lambda x: f.histogram_bin_edges(x, 4),
            lambda x: np.histogram_bin_edges(wide(x), 4).astype(floating(x)),
        ),
    ],
    "histogram": [
        Case(((20,),), lambda x: f.histogram(x, 4, (-1.5, 1.0))[0], lambda x: np.histogram(x, 4, (-1.5, 1.0))[0]),
        Case(
            ((20,), (20,)),
            lambda x, w: f.histogram(x, 3, (-1, 2), weights=w)[0],
            lambda x, w: np.histogram(x, 3, (-1, 2), weights=wide(w))[0].astype(
                floating(w) if w.dtype.kind not in "iu" else w.dtype
            ),
        ),
    ],
    "topk": [
        Case(((3, 5),), lambda x: f.topk(x, 2)[0], lambda x: np.sort(x)[:, :-3:-1]),
        Case(((3, 5),), lambda x: f.topk(x, 3, axis=0)[1], lambda x: np.argsort(-x.astype(float), 0, kind="stable")),
    ],
    "flatnonzero": [Case(((3, 4),), lambda x: f.flatnonzero(x > 0, 7, -1), lambda x: _places(x > 0, 7, -1)[0])],
    "nonzero": [
        Case(((3, 4),), lambda x: f.nonzero(x > 0, 3)[0], lambda x: np.nonzero(x > 0)[0][:3]),
        Case(([[0, 2, 0], [1, 0, 0]],), lambda x: f.nonzero(x, 5, 9)[1], lambda x: np.array([1, 0, 9, 9, 9])),
    ],
    "unique": [
        Case(([3, 1, 3, 0],), lambda x: f.unique(x, 5), lambda x: np.array([0, 1, 3, 0, 0])),
        Case(((2, 3),), lambda x: f.unique(x, 7), _unique),
    ],
}

#: Points about 0, whose fits are well-conditioned.
EVEN = np.arange(-2, 3) * 4.0

INTERPOLATION = {
    "polyfit": [
        Case(
            ((5,), (5,)),
            lambda x, y: f.polyfit(x + EVEN, y + EVEN * 2.0 + 30.0, 1),
            lambda x, y: np.polyfit(wide(x) + EVEN, wide(y) + EVEN * 2.0 + 30.0, 1),
        ),
        Case(
            ((5,), (5, 2), (5,)),
            lambda x, y, w: f.polyfit(x + EVEN, y + EVEN[:, None] * 2.0 + 30.0, 1, weights=w + 3.0),
            lambda x, y, w: np.polyfit(wide(x) + EVEN, wide(y) + EVEN[:, None] * 2.0 + 30.0, 1, w=wide(w + 3.0)),
        ),
    ],
    "polyval": [
        Case(((3,), (2, 2)), lambda p, x: f.polyval(p, x), lambda p, x: np.polyval(p, x)),
        Case(((4,),), lambda x: f.polyval([2, -1, 0.5], x), lambda x: np.polyval([2, -1, 0.5], x)),
    ],
    "polyder": [_same("polyder", (4,)), _same("polyder", (4,), m=2), _same("polyder", (2,), m=3)],
    "polyint": [_same("polyint", (3,)), _same("polyint", (2,), m=2, k=[1.0, 2.0])],
    "polyadd": [_same("polyadd", (3,), (2,)), _same("polyadd", (2,), (2,))],
    "polysub": [_same("polysub", (2,), (3,))],
    "vander": [_same("vander", (3,)), _same("vander", (2,), N=4, increasing=True), _same("vander", (3,), N=1)],
    "gradient": [
        _in_float64("gradient", (5,)),
        _in_float64("gradient", (3, 4), pick=1),
        _in_float64("gradient", (3, 4), axis=0, edge_order=2),
        Case(
            ((2, 5), (5,)),
            lambda x, y: f.gradient(x, f.cumsum(f.square(y * 1.0) + 1), axis=1, edge_order=2),
            in_double_of_all(lambda x, y: np.gradient(x, np.cumsum(y * y + 1), axis=1, edge_order=2)),
        ),
        Case(((3, 3),), lambda x: f.gradient(x, 2.0, 0.5)[1], in_double_of_all(lambda x: np.gradient(x, 2.0, 0.5)[1])),
    ],
    "interp": [
        Case(
            ((2, 3), (4,), (4,)),
            lambda x, p, q: f.interp(x, f.sort(p * 1.0), q),
            lambda x, p, q: np.interp(x, np.sort(p), q),
        ),
        Case(
            ((5,),),
            lambda x: f.interp(x, [-1.0, 0.5], [2.0, 3.0], -5.0, 7.0),
            lambda x: np.interp(x, [-1.0, 0.5], [2.0, 3.0], -5.0, 7.0),
        ),
        Case(
            ((5,),),
            lambda x: f.interp(x, [0.1, 0.6, 0.9], [2.0, 3.0, 1.0], period=1.0),
            lambda x: np.interp(x, [0.1, 0.6, 0.9], [2.0, 3.0, 1.0], period=1.0),
        ),
    ],
}


def _padded(x: Any, widths: Any, mode: str) -> Any:
    """In float64 where the numbers are floats, for NumPy rounds on the way; of bools, there is no ramp nor mean."""
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x.astype(np.int64) if x.dtype.kind == "b" else x
    return np.pad(wide, widths, mode).astype(x.dtype)


COMPOSED: dict[str, list[Case]] = {
    **ELEMENTWISE,
    **ARRANGEMENT,
    **STATISTICS,
    **ACTIVATIONS,
    **NORMALISATION,
    **RECURRENT,
    **ORDERING,
    **INTERPOLATION,
    "fabs": [Case(((2, 3),), lambda x: f.fabs(x), np.fabs), Case(((),), lambda x: f.fabs(x), np.fabs)],
    "clip": [
        Case(((2, 3),), lambda x: f.clip(x, -0.5, 0.7), lambda x: np.clip(x, -0.5, 0.7)),
        Case(((2, 3),), lambda x: f.clip(x, lo=-0.5), lambda x: np.maximum(x, -0.5)),
        Case(((2, 3),), lambda x: f.clip(x, hi=0.7), lambda x: np.minimum(x, 0.7)),
        Case(((2, 3), (3,), ()), lambda x, lo, hi: f.clip(x, lo, hi), lambda *xs: np.clip(*xs)),
        Case(((), (2, 1), (1, 3)), lambda x, lo, hi: f.clip(x, lo, hi), lambda *xs: np.clip(*xs)),
    ],
    "shift": [
        Case(((2, 3), (3,)), lambda x, y: f.shift(x, y), _rounded_power),
        Case(((2, 3),), lambda x: f.shift(x, -3.1), lambda x: x * -4.0),
        Case(((2, 3),), lambda x: f.shift(x, 3, value=False), lambda x: x * 8.0),
        Case(((2, 3), ()), lambda x, y: f.shift(x, y, value=False), lambda x, y: x * np.exp2(y)),
    ],
    "var": [
        Case(((3, 4),), lambda x: f.var(x), in_double(lambda x: np.var(x, keepdims=True))),
        Case(((3, 4),), lambda x: f.var(x, axis=0), in_double(lambda x: np.var(x, axis=0, keepdims=True))),
        Case(
            ((3, 4),),
            lambda x: f.var(x, axis=-1, ddof=1, keepdims=False),
            in_double(lambda x: np.var(x, axis=-1, ddof=1)),
        ),
        Case(((2, 3, 2),), lambda x: f.var(x, axis=(0, 2)), in_double(lambda x: np.var(x, axis=(0, 2), keepdims=True))),
    ],
    "std": [
        Case(((3, 4),), lambda x: f.std(x), in_double(lambda x: np.std(x, keepdims=True))),
        Case(((3, 4),), lambda x: f.std(x, axis=0), in_double(lambda x: np.std(x, axis=0, keepdims=True))),
        Case(
            ((3, 4),),
            lambda x: f.std(x, axis=-1, ddof=1, keepdims=False),
            in_double(lambda x: np.std(x, axis=-1, ddof=1)),
        ),
    ],
    "batched_dot": [
        Case(
            ((2, 3, 4), (2, 4, 2)),
            lambda x, y: f.batched_dot(x, y),
            lambda x, y: np.stack([np.dot(a, b) for a, b in zip(x, y, strict=True)]),
        ),
    ],
    "stack": [
        Case(((2, 3), (2, 3)), lambda *xs: f.stack(xs), lambda *xs: np.stack(xs)),
        Case(((2, 3), (2, 3), (2, 3)), lambda *xs: f.stack(xs, axis=-1), lambda *xs: np.stack(xs, axis=-1)),
        Case(((), ()), lambda *xs: f.stack(xs), lambda *xs: np.stack(xs)),
        Case(((2, 3, 4),), lambda x: f.stack(x, axis=-1), lambda x: np.stack(x, axis=-1)),
    ],
    "vstack": [
        Case(((2, 3), (1, 3)), lambda *xs: f.vstack(xs), lambda *xs: np.vstack(xs)),
        Case(((3,), (3,)), lambda *xs: f.vstack(xs), lambda *xs: np.vstack(xs)),
        Case(((2, 3, 4),), lambda x: f.vstack(x), lambda x: np.vstack(x)),
        Case(((3,),), lambda x: f.vstack(x), lambda x: np.vstack(x)),
    ],
    "hstack": [
        Case(((2, 3), (2, 1)), lambda *xs: f.hstack(xs), lambda *xs: np.hstack(xs)),
        Case(((3,), (2,)), lambda *xs: f.hstack(xs), lambda *xs: np.hstack(xs)),
        Case(((), ()), lambda *xs: f.hstack(xs), lambda *xs: np.hstack(xs)),
        Case(((2, 3, 4),), lambda x: f.hstack(x), lambda x: np.hstack(x)),
        Case(((2, 3),), lambda x: f.hstack(x), lambda x: np.hstack(x)),
    ],
    "matrix_transpose": [
        Case(((2, 3),), lambda x: f.matrix_transpose(x), lambda x: x.T),
        Case(((2, 3, 4),), lambda x: f.matrix_transpose(x), np.matrix_transpose),
    ],
    "swapaxes": [Case(((2, 3, 4),), lambda x: f.swapaxes(x, 0, -1), lambda x: np.swapaxes(x, 0, -1))],
    "onehot": [Case(([2, 0],), lambda x: f.onehot(x, 3, 0, "i1"), lambda x: np.int8(x == np.arange(3)[:, None]))],
    "moveaxis": [
        Case(((2, 3, 4),), lambda x: f.moveaxis(x, 0, -1), lambda x: np.moveaxis(x, 0, -1)),
        Case(((2, 3, 4),), lambda x: f.moveaxis(x, (2, 0), (0, 1)), lambda x: np.moveaxis(x, (2, 0), (0, 1))),
    ],
    "ravel": [
        Case(((2, 3),), lambda x: f.ravel(x), np.ravel),
        Case(((),), lambda x: f.ravel(x), np.ravel),
        _same("ravel", (2, 3), order="F"),
    ],
    "round": [
        Case(((2, 3),), lambda x: f.round(x), np.round),
        Case(((2, 3),), lambda x: f.round(x, 1), lambda x: np.round(x, 1)),
        Case(((2, 3),), lambda x: f.round(x * 97, -1), lambda x: np.round(x * 97, -1)),
    ],
    "tile": [
        Case(((2, 3),), lambda x: f.tile(x, 2), lambda x: np.tile(x, 2)),
        Case(((2, 3),), lambda x: f.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))),
        Case(((3,),), lambda x: f.tile(x, (0, 2)), lambda x: np.tile(x, (0, 2))),
        Case(((),), lambda x: f.tile(x, 1), lambda x: np.tile(x, 1)),
    ],
    "roll": [
        Case(((2, 3),), lambda x: f.roll(x, 1), lambda x: np.roll(x, 1)),
        Case(((2, 3),), lambda x: f.roll(x, -5, axis=1), lambda x: np.roll(x, -5, axis=1)),
        Case(((4, 3),), lambda x: f.roll(x, (3, 2), axis=(0, -1)), lambda x: np.roll(x, (3, 2), axis=(0, -1))),
        Case(((0, 3),), lambda x: f.roll(x, 2, axis=0), lambda x: np.roll(x, 2, axis=0)),
    ],
    **{
        name: [
            Case(
                (shape,),
                lambda x, name=name, axis=axis, first=first: getattr(f, name)(x, axis, first),
                lambda x, name=name, axis=axis, first=first: _cumulative(name, x, axis, first),
            )
            for shape, axis, first in (((5,), None, False), ((2, 3), 1, True), ((3, 2), 0, True), ((0, 2), 0, True))
        ]
        for name in ("cumulative_sum", "cumulative_prod")
    },
    "ediff1d": [
        _same("ediff1d", (2, 3)),
        Case(((4,), (2,)), lambda x, y: f.ediff1d(x, y, 0), lambda x, y: np.ediff1d(x, y, 0)),
        _same("ediff1d", (1,), to_begin=[1, 0]),
    ],
    "unwrap": [
        Case(((8,),), lambda x: f.unwrap(x * 9.0), lambda x: np.unwrap(x * 9.0)),
        Case(((3, 4),), lambda x: f.unwrap(x * 9.0, 4.0, 0, 5), lambda x: np.unwrap(x * 9.0, 4.0, 0, period=5)),
    ],
    "diff": [
        Case(((2, 5),), lambda x: f.diff(x), lambda x: np.diff(x)),
        Case(((5, 2),), lambda x: f.diff(x, n=2, axis=0), lambda x: np.diff(x, n=2, axis=0)),
        Case(((3,),), lambda x: f.diff(x, n=0), lambda x: np.diff(x, n=0)),
        _same("diff", (2, 3), axis=0, prepend=0, append=1.5),
        Case(((2, 3), (2, 1)), lambda x, y: f.diff(x, append=y), lambda x, y: np.diff(x, append=y)),
        Case(((2, 1),), lambda x: f.diff(x), lambda x: np.diff(x)),
    ],
    "isclose": [
        Case(((2, 3), (3,)), lambda x, y: f.isclose(x, y, 0.3, 0.1), lambda x, y: np.isclose(x, y, 0.3, 0.1)),
        Case(((2, 3), ()), lambda x, y: f.isclose(x, y), lambda x, y: np.isclose(x, y)),
        Case(((3,),), lambda x: f.isclose(x, x * 1.5, 0.4), lambda x: np.isclose(x, x * 1.5, 0.4)),
        Case(((3,),), lambda x: f.isclose(x, x, equal_nan=True), lambda x: np.isclose(x, x)),
    ],
    "allclose": [
        Case(((2, 3), (2, 3)), lambda x, y: f.allclose(x, y), lambda x, y: np.asarray(np.allclose(x, y))),
        Case(
            ((2, 3), (2, 3)),
            lambda x, y: f.allclose(x, y, atol=9.0),
            lambda x, y: np.asarray(np.allclose(x, y, atol=9)),
        ),
    ],
    "array_equal": [
        Case(((2, 3), (2, 3)), lambda x, y: f.array_equal(x, y), lambda x, y: np.asarray(np.array_equal(x, y))),
        Case(((2, 3), (3,)), lambda x, y: f.array_equal(x, y), lambda x, y: np.asarray(np.array_equal(x, y))),
        Case(((2, 3),), lambda x: f.array_equal(x, x), lambda x: np.asarray(np.array_equal(x, x))),
    ],
    "einsum": [
        *(
            _einsum(subscripts, *shapes)
            for subscripts, *shapes in (
                ("ij,jk", (2, 3), (3, 4)),
                ("ji->", (2, 3)),
                ("ii->i", (3, 3)),
                ("iji", (2, 3, 2)),
                ("i,j->ji", (3,), (4,)),
                ("ij,ij->i", (2, 3), (2, 3)),
                ("ab,ba->b", (2, 3), (3, 2)),
                ("bhqd,bhkd->bhqk", (2, 2, 2, 3), (2, 2, 4, 3)),
                ("abcd,bdef->baecf", (2, 2, 3, 2), (2, 2, 2, 3)),
                ("...ij,...j->...i", (2, 1, 2, 3), (3, 3)),
                ("ij,jk,kl->li", (2, 3), (3, 2), (2, 3)),
                ("zij,zkj->zik", (0, 2, 3), (0, 4, 3)),
                (",i->i", (), (3,)),
            )
        ),
    ],
    "lp_pool": [
        _windowed("lp_pool", ((1, 2, 5),), window=2, p=2.0),
        _windowed("lp_pool", ((1, 4, 3, 2),), window=(2, 3), p=3, stride=1, padding=((0, 1), (1, 1)), layout="NHWC"),
        _windowed("lp_pool", ((1, 1, 5),), window=3, p=1.5, stride=2, ceil=True),
    ],
    "lrn": [
        _windowed("lrn", ((2, 5, 3),), size=3, alpha=0.5, beta=0.75, k=1.0),
        _windowed("lrn", ((4, 2, 2, 1),), size=4, alpha=2.0, beta=0.5, k=2.0, layout="CHWN"),
    ],
    "roi_pool": [
        _windowed("roi_pool", ((2, 2, 4, 5), [[0, 0, 0, 4, 3], [1, 1, 1, 2, 2], [1, 3, 2, 9, 9]]), size=2),
        _windowed(
            "roi_pool", ((1, 5, 4, 2), [[0, 2, 2, 8, 6], [0, 7, 1, 3, 5]]), size=(3, 2), scale=0.5, layout="NHWC"
        ),
    ],
    "unfold": [
        _windowed("unfold", ((2, 2, 4),), window=2),
        _windowed("unfold", ((1, 2, 4, 5),), window=(2, 3), stride=(2, 1), padding=((0, 1), (1, 0))),
        _windowed("unfold", ((1, 5, 4, 2),), window=2, layout="NHWC", dilation=2, padding="same"),
        _windowed("unfold", ((0, 1, 2, 3, 2),), window=(1, 2, 2)),
    ],
    "fold": [
        _windowed("fold", ((2, 4, 3),), size=(4,), window=2),
        _windowed("fold", ((1, 12, 10),), size=(4, 5), window=(2, 3), stride=(2, 1), padding=((0, 1), (1, 1))),
        _windowed("fold", ((1, 8, 20),), size=(5, 4), window=2, layout="NHWC", dilation=2, padding="same"),
        _windowed("fold", ((0, 4, 3),), size=(4,), window=2),
    ],
    "scatter_add": [
        Case(((5, 3), (2, 3), [3, 3]), lambda x, y, i: f.scatter_add(x, i, y), _added),
        Case(((5, 3), (2, 1)), lambda x, y: f.scatter_add(x, np.s_[1:3], y), lambda x, y: _added(x, y, np.s_[1:3])),
        Case(((5, 3), (), [3, 3, 0]), lambda x, y, i: f.scatter_add(x, i, y), _added),
    ],
}


def composed_examples(name: str) -> list[tuple[Example, Callable[..., Any]]]:
    """A composed function's cases as examples, each with its meaning."""
    return [
        (Example(case.build, case.operands, (-2.0, 2.0), f"{name}#{i}"), case.meaning)
        for i, case in enumerate(COMPOSED[name])
    ]
