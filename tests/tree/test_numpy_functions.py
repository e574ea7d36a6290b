"""NumPy's own functions on tensors: each that the registry knows builds a tree that means what NumPy's does."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness.expected import MEANINGS

from backends import gen_backend
from optree import OpTreeNode, Variable, check_grad
from optree.errors import AxisError, DTypeError, OperandError, ShapeError
from optree.ops.traits import ReductionOperator
from optree.registry import NUMPY_FUNCTIONS, OPS
from optree.testing.comparison import compare
from optree.testing.examples import Example

UFUNCS = [
    function
    for function, ours in NUMPY_FUNCTIONS.items()
    if isinstance(function, np.ufunc)
    and function is not np.matmul
    and MEANINGS.get(ours.__name__) is function
    and OPS[ours.__name__].takes_floats
]
REDUCTIONS = {
    function: ours.__name__
    for function, ours in NUMPY_FUNCTIONS.items()
    if issubclass(OPS.get(ours.__name__, object), ReductionOperator)
}


def some_nans(x: Any) -> Any:
    """The operand, an element of it nan."""
    return np.where(np.array([[False, True, False]] + [[False] * 3] * (len(x) - 1)), np.nan, x)


#: Calls of the other functions, on arrays or on tensors.
CALLS: dict[Any, list[Callable[..., Any]]] = {
    np.clip: [
        lambda x: np.clip(x, 1.0, 3.0),
        lambda x: np.clip(x, None, 3.0),
        lambda x: np.clip(x, a_min=1.0, a_max=None),
        lambda x: np.clip(x, min=1.0, max=2.0),
    ],
    np.where: [lambda x: np.where(x > 2, x, 0.0), lambda x: np.where(x > 2, 1.0, x)],
    np.zeros_like: [lambda x: np.zeros_like(x), lambda x: np.zeros_like(x, dtype=np.float32)],
    np.ones_like: [lambda x: np.ones_like(x)],
    np.dot: [lambda x: np.dot(x, np.transpose(x))],
    np.matmul: [lambda x: np.matmul(x, np.transpose(x)), lambda x: x @ np.ones(3)],
    np.tensordot: [lambda x: np.tensordot(x, x), lambda x: np.tensordot(x, x, axes=((0,), (0,)))],
    np.outer: [lambda x: np.outer(x, x)],
    np.fabs: [lambda x: np.fabs(x - 2.0)],
    np.bitwise_and: [
        lambda x: np.bitwise_and(x > 1.0, x < 4.0),
        lambda x: (x > 1.0) & (x < 4.0),
        lambda x: np.bitwise_and(x.astype("int64"), 3),
        lambda x: x.astype("int32") & (x > 1.0),
    ],
    np.bitwise_or: [
        lambda x: np.bitwise_or(x < 1.0, x > 4.0),
        lambda x: (x < 1.0) | (x > 4.0),
        lambda x: 8 | x.astype("uint8"),
    ],
    np.bitwise_xor: [
        lambda x: np.bitwise_xor(x < 3.0, x > 1.0),
        lambda x: (x < 3.0) ^ (x > 1.0),
        lambda x: 5 ^ x.astype("int8"),
    ],
    np.invert: [lambda x: np.invert(x > 1.0), lambda x: ~(x > 1.0), lambda x: ~x.astype("int64")],
    np.gcd: [lambda x: np.gcd(x.astype("int64"), 6), lambda x: np.gcd.outer(x.astype("uint8"), x.astype("int32"))],
    np.lcm: [lambda x: np.lcm(x.astype("int64"), 6), lambda x: np.lcm(-x.astype("int16"), x.astype("int32"))],
    np.left_shift: [
        lambda x: np.left_shift(x.astype("int64"), 3),
        lambda x: x.astype("uint8") << 7,
        lambda x: 1 << x.astype("int64"),
    ],
    np.right_shift: [
        lambda x: np.right_shift(x.astype("int64"), 1),
        lambda x: -x.astype("int64") >> 1,
        lambda x: 100 >> x.astype("int16"),
    ],
    np.positive: [lambda x: np.positive(x), lambda x: +x],
    np.conjugate: [lambda x: np.conj(x), lambda x: np.conjugate(x > 1)],
    np.logaddexp2: [lambda x: np.logaddexp2(x, 2.0), lambda x: np.logaddexp2(x.astype("float32"), x[0])],
    np.heaviside: [lambda x: np.heaviside(x - 2.0, 0.5), lambda x: np.heaviside(x - 2.0, x)],
    np.nan_to_num: [
        lambda x: np.nan_to_num(x / np.array([0.0, 1.0, 1.0])),
        lambda x: np.nan_to_num(np.log(x - 1.0), nan=5.0, posinf=1.0, neginf=-2.0),
        lambda x: np.nan_to_num(x.astype("int64")),
    ],
    np.float_power: [lambda x: np.float_power(x, 3), lambda x: np.float_power(2, x.astype("float32"))],
    np.degrees: [lambda x: np.degrees(x), lambda x: np.degrees(x.astype("int64"))],
    np.radians: [lambda x: np.radians(x.astype("float32"))],
    np.rad2deg: [lambda x: np.rad2deg(x)],
    np.deg2rad: [lambda x: np.deg2rad(x)],
    np.sinc: [lambda x: np.sinc(x / 9), lambda x: np.sinc(x.astype("int64"))],
    np.fmax: [
        lambda x: np.fmax(x, 2.0),
        lambda x: np.fmax(np.log(x - 1.0), np.log(4.0 - x)),
        lambda x: np.fmax(np.nan, x),
    ],
    np.fmin: [lambda x: np.fmin(x, 2.0), lambda x: np.fmin(np.log(x - 1.0), np.log(4.0 - x))],
    np.add.outer: [
        lambda x: np.add.outer(x, x),
        lambda x: np.maximum.outer(x, np.arange(2.0)),
        lambda x: np.subtract.outer(1.0, x),
        lambda x: np.hypot.outer(x, 2.0),
    ],
    np.fix: [lambda x: np.fix(x - 2.5)],
    np.transpose: [
        lambda x: np.transpose(x),
        lambda x: np.transpose(x, (1, 0)),
        lambda x: np.transpose(x, axes=[0, 1]),
    ],
    np.reshape: [
        lambda x: np.reshape(x, (3, 2)),
        lambda x: np.reshape(x, -1),
        lambda x: np.reshape(x, shape=(1, 6)),
        lambda x: np.reshape(x, (3, 2), order="F"),
        lambda x: np.reshape(x, (3, -1), order="F"),
    ],
    np.broadcast_to: [lambda x: np.broadcast_to(x, (4, 2, 3))],
    np.expand_dims: [lambda x: np.expand_dims(x, 1), lambda x: np.expand_dims(x, axis=(0, -1))],
    np.squeeze: [lambda x: np.squeeze(np.expand_dims(x, 0)), lambda x: np.squeeze(np.expand_dims(x, 1), axis=1)],
    np.flip: [lambda x: np.flip(x, 0), lambda x: np.flip(x), lambda x: np.flip(x, axis=(0, 1))],
    np.matrix_transpose: [lambda x: np.matrix_transpose(x)],
    np.swapaxes: [lambda x: np.swapaxes(x, 0, 1)],
    np.moveaxis: [lambda x: np.moveaxis(x, 0, -1)],
    np.ravel: [lambda x: np.ravel(x), lambda x: np.ravel(x, order="F"), lambda x: np.ravel(x, "C")],
    np.take: [
        lambda x: np.take(x, np.array([2, 0]), axis=1),
        lambda x: np.take(x, np.array([5, 0])),
        lambda x: np.take(x, 1, axis=-1),
        lambda x: np.take(x, [-9, 7, 2], axis=1, mode="wrap"),
        lambda x: np.take(x, np.array([[-9], [300]], np.int16), mode="clip"),
        lambda x: x.take(6, mode="wrap"),
        lambda x: np.take(x, [], axis=0, mode="clip").astype("float64"),
    ],
    np.take_along_axis: [lambda x: np.take_along_axis(x, np.array([[1], [0]]), axis=1)],
    np.copy: [lambda x: np.copy(x)],
    np.trapezoid: [
        lambda x: np.trapezoid(x),
        lambda x: np.trapezoid(x, dx=0.5, axis=0),
        lambda x: np.trapezoid(x, np.array([0.0, 1.0, 4.0])),
        lambda x: np.trapezoid(x, np.array([0.0, 3.0]), axis=0),
        lambda x: np.trapezoid(x, x * x, axis=0),
    ],
    np.polyval: [lambda x: np.polyval([2.0, -1.0, 0.5], x), lambda x: np.polyval(np.ravel(x), x[0])],
    np.full_like: [lambda x: np.full_like(x, 2), lambda x: np.full_like(x + 1, 2, dtype=np.float32)],
    np.stack: [lambda x: np.stack([x, x], axis=-1), lambda x: np.stack((x, x)), lambda x: np.stack(x, axis=1)],
    np.vstack: [lambda x: np.vstack([x, x]), lambda x: np.vstack(x)],
    np.hstack: [lambda x: np.hstack([x, x]), lambda x: np.hstack(x)],
    np.concatenate: [
        lambda x: np.concatenate([x, x], axis=1),
        lambda x: np.concatenate([x, x]),
        lambda x: np.concatenate([x, np.ones((1, 3))]),
        lambda x: np.concatenate([x, x], axis=None),
        lambda x: np.concatenate(x),
    ],
    np.pad: [
        lambda x: np.pad(x, 1),
        lambda x: np.pad(x, ((0, 1), (2, 0)), constant_values=2.0),
        lambda x: np.pad(x, 1, mode="reflect"),
        lambda x: np.pad(x, 1, "mean", stat_length=2),
        lambda x: np.pad(x, {0: 2}, "linear_ramp", end_values=5.0),
    ],
    np.count_nonzero: [lambda x: np.count_nonzero(x, axis=0), lambda x: np.count_nonzero(x, axis=1, keepdims=True)],
    np.cross: [lambda x: np.cross(x, np.ones(3)), lambda x: np.cross(x[0], x[1], axis=0)],
    np.vecdot: [lambda x: np.vecdot(x, np.ones(3))],
    np.matvec: [lambda x: np.matvec(x, np.ones(3)), lambda x: np.matvec(np.ones((4, 2, 3)), x[0])],
    np.vecmat: [lambda x: np.vecmat(np.ones(2), x), lambda x: np.vecmat(x, np.ones((3, 2)))],
    np.inner: [lambda x: np.inner(x, x), lambda x: np.inner(2.0, x), lambda x: np.inner(np.ones(3), x)],
    np.vdot: [lambda x: np.vdot(x, x)],
    np.kron: [lambda x: np.kron(x, x), lambda x: np.kron(np.eye(2), x), lambda x: np.kron(x, np.ones((2, 1, 2)))],
    np.convolve: [
        lambda x: np.convolve(x[0], x[1]),
        lambda x: np.convolve(x[0].astype("float32"), [1, 2], "same"),
        lambda x: np.convolve(2.0, x[1], mode="valid"),
        lambda x: np.convolve(np.ones(5), x[1][::-1], "same"),
    ],
    np.correlate: [
        lambda x: np.correlate(x[0], x[1]),
        lambda x: np.correlate(x[0] > 1, x[1] > 3, "full"),
        lambda x: np.correlate(x[0], np.arange(4), "same"),
    ],
    np.select: [lambda x: np.select([x > 3, x > 1], [x, -x], 9.0), lambda x: np.select([x > 3], [1])],
    np.rollaxis: [lambda x: np.rollaxis(x, 1), lambda x: np.rollaxis(x, 0, 2)],
    np.real: [lambda x: np.real(x)],
    np.imag: [lambda x: np.imag(x)],
    np.angle: [lambda x: np.angle(x - 2), lambda x: np.angle(2 - x, deg=True), lambda x: np.angle(x > 1)],
    np.isposinf: [lambda x: np.isposinf(1 / (x - 1))],
    np.isneginf: [lambda x: np.isneginf(-1 / (x - 1))],
    np.ptp: [lambda x: np.ptp(x), lambda x: np.ptp(x, axis=0, keepdims=True)],
    np.average: [
        lambda x: np.average(x),
        lambda x: np.average(x, axis=1, weights=[1.0, 2.0, 0.5]),
        lambda x: np.average(x.astype("float32"), axis=0, weights=x + 1, keepdims=True),
    ],
    np.cov: [lambda x: np.cov(x), lambda x: np.cov(x, np.ones((1, 3)), bias=True), lambda x: np.cov(x, rowvar=False)],
    np.corrcoef: [
        lambda x: np.corrcoef(x * x),
        lambda x: np.corrcoef(x * x, rowvar=False),
        lambda x: np.corrcoef(x[0]),
    ],
    np.median: [lambda x: np.median(x), lambda x: np.median(x, axis=1), lambda x: np.median(x * 0 / 0)],
    np.nanmedian: [lambda x: np.nanmedian(some_nans(x)), lambda x: np.nanmedian(some_nans(x), 1, keepdims=True)],
    np.quantile: [
        lambda x: np.quantile(x, 0.3),
        lambda x: np.quantile(x, [0.1, 0.9], axis=1, method="hazen"),
        lambda x: np.quantile(x.astype("int64"), 0.3, 0, method="nearest", keepdims=True),
    ],
    np.nanquantile: [lambda x: np.nanquantile(some_nans(x), [0.1, 0.9], 1), lambda x: np.nanquantile(x, 0.3)],
    np.percentile: [lambda x: np.percentile(x, 30), lambda x: np.percentile(x, [20, 50.5], axis=0)],
    np.nanpercentile: [lambda x: np.nanpercentile(some_nans(x), 30, axis=(0, 1))],
    np.nansum: [lambda x: np.nansum(some_nans(x)), lambda x: np.nansum(some_nans(x), axis=1, keepdims=True)],
    np.nanprod: [lambda x: np.nanprod(some_nans(x)), lambda x: np.nanprod(some_nans(x), 0)],
    np.nancumsum: [lambda x: np.nancumsum(some_nans(x)), lambda x: np.nancumsum(some_nans(x), axis=1)],
    np.nancumprod: [lambda x: np.nancumprod(some_nans(x)), lambda x: np.nancumprod(some_nans(x), axis=0)],
    np.nanmax: [lambda x: np.nanmax(some_nans(x)), lambda x: np.nanmax(some_nans(x), axis=0)],
    np.nanmin: [lambda x: np.nanmin(some_nans(x)), lambda x: np.nanmin(some_nans(x), axis=1, keepdims=True)],
    np.nanargmax: [lambda x: np.nanargmax(some_nans(x)), lambda x: np.nanargmax(some_nans(x), axis=1)],
    np.nanargmin: [lambda x: np.nanargmin(some_nans(x)), lambda x: np.nanargmin(some_nans(x), axis=1, keepdims=True)],
    np.nanmean: [lambda x: np.nanmean(some_nans(x)), lambda x: np.nanmean(some_nans(x), axis=0)],
    np.nanvar: [lambda x: np.nanvar(some_nans(x), ddof=1), lambda x: np.nanvar(some_nans(x), axis=0)],
    np.nanstd: [lambda x: np.nanstd(some_nans(x)), lambda x: np.nanstd(some_nans(x), axis=0, keepdims=True)],
    np.searchsorted: [
        lambda x: np.searchsorted(x[1], 4.0),
        lambda x: np.searchsorted(np.arange(4.0), x, side="right"),
        lambda x: np.searchsorted(-x[1], x[0] - 4, sorter=np.array([2, 1, 0])),
    ],
    np.isin: [
        lambda x: np.isin(x, [1, 3.5, 4]),
        lambda x: np.isin(x.astype("int8"), np.arange(3, 300)),
        lambda x: np.isin(some_nans(x), x[0] * np.nan, invert=True),
        lambda x: np.isin(x, 2.0, assume_unique=True, kind="sort"),
        lambda x: np.isin([[3.0, 9.0]], x),
        lambda x: np.isin(x, []),
    ],
    np.digitize: [
        lambda x: np.digitize(x, [1.0, 2.0, 4.5]),
        lambda x: np.digitize(x, [4.0, 2.0], right=True),
        lambda x: np.digitize(x, x[0] * -1),
    ],
    np.histogram_bin_edges: [lambda x: np.histogram_bin_edges(x, 4)],
    np.partition: [lambda x: np.partition(-x, 1, axis=0)],
    np.argpartition: [lambda x: np.argpartition(-x, 1, 0)],
    np.interp: [
        lambda x: np.interp(x, [1.0, 3.0, 3.5], [2.0, 0.0, 9.0]),
        lambda x: np.interp(x, x[1] - 3, x[0], left=-1.0, right=7.0),
        lambda x: np.interp(x, [0.5, 2.0], [2.0, 0.0], period=2.5),
        lambda x: np.interp(some_nans(x), [1.0], [2.0]),
    ],
    np.tril: [lambda x: np.tril(x), lambda x: np.tril(x, k=1)],
    np.triu: [lambda x: np.triu(x), lambda x: np.triu(x, -1)],
    np.diagonal: [lambda x: np.diagonal(x), lambda x: np.diagonal(x, 1, axis1=1, axis2=0)],
    np.diag: [lambda x: np.diag(x, k=1), lambda x: np.diag(np.ravel(x))],
    np.diagflat: [lambda x: np.diagflat(x), lambda x: np.diagflat(x[0], -1)],
    np.block: [
        lambda x: np.block([[x, x[:, :1]], [np.zeros((1, 3)), 2.0]]),
        lambda x: np.block([x, x]),
        lambda x: np.block([[x[0]], [x[1]], [x]]),
    ],
    np.resize: [
        lambda x: np.resize(x, (2, 5)),
        lambda x: np.resize(x, 4),
        lambda x: np.resize(x[:, :0], (0, 2)),
        lambda x: np.resize(x, (13,)),
    ],
    np.trace: [lambda x: np.trace(x), lambda x: np.trace(x, 1, dtype=np.float32)],
    np.fliplr: [lambda x: np.fliplr(x)],
    np.flipud: [lambda x: np.flipud(x)],
    np.rot90: [lambda x: np.rot90(x), lambda x: np.rot90(x, k=3, axes=(1, 0))],
    np.append: [lambda x: np.append(x, 2.0), lambda x: np.append(x, np.ones((1, 3)), axis=0)],
    np.delete: [
        lambda x: np.delete(x, 1, axis=1),
        lambda x: np.delete(x, [0, -1]),
        lambda x: np.delete(x, slice(None, None, 2), 1),
        lambda x: np.delete(x, np.array([True, False]), axis=0),
        lambda x: np.delete(np.tile(x, 20), np.arange(1, 60, 2), axis=1),
        lambda x: np.delete(x, [0, 1], axis=0),
    ],
    np.insert: [
        lambda x: np.insert(x, 1, [7.5, 8.5], axis=1),
        lambda x: np.insert(x, [2, 0, 2], [1, 2, 3]),
        lambda x: np.insert(x.astype("int8"), -1, 2.7, 0),
        lambda x: np.insert(x, [1], [[7], [8]], axis=1),
        lambda x: np.insert(x, slice(0, 2), x[0] * 2, axis=0),
        lambda x: np.insert(np.ones((2, 2)), [0, 2], x[:, :1], axis=1),
        lambda x: np.insert(np.tile(x, 20), np.arange(1, 60, 2), x[:, :1], axis=1),
        lambda x: np.insert(x, [], 5.0),
    ],
    np.column_stack: [lambda x: np.column_stack([x, np.ones(2)]), lambda x: np.column_stack(x)],
    np.dstack: [lambda x: np.dstack([x, x]), lambda x: np.dstack(x)],
    np.repeat: [
        lambda x: np.repeat(x, 2, axis=0),
        lambda x: np.repeat(x, 2),
        lambda x: np.repeat(x, [2, 0, 3], axis=-1),
        lambda x: np.repeat(x, np.arange(6)),
        lambda x: x.repeat([3], axis=1),
        lambda x: np.repeat(x, (0, 0), 0),
        lambda x: np.repeat(x > 2, [True, False], 0),
    ],
    np.cumsum: [
        lambda x: np.cumsum(x),
        lambda x: np.cumsum(x, axis=1),
        lambda x: np.cumsum(x > 1, 0),
        lambda x: np.cumsum(x, axis=0, dtype=np.float32),
    ],
    np.cumprod: [lambda x: np.cumprod(x), lambda x: np.cumprod(x, axis=0)],
    np.cumulative_sum: [
        lambda x: np.cumulative_sum(x[0], include_initial=True),
        lambda x: np.cumulative_sum(x, axis=0, dtype=np.float32),
        lambda x: np.cumulative_sum(x > 1, axis=1),
    ],
    np.cumulative_prod: [lambda x: np.cumulative_prod(x, axis=1, include_initial=True)],
    np.ediff1d: [
        lambda x: np.ediff1d(x),
        lambda x: np.ediff1d(x, to_end=[1, 2], to_begin=x[:, :1]),
        lambda x: np.ediff1d(x.astype("int32"), 7),
    ],
    np.unwrap: [
        lambda x: np.unwrap(x * 3),
        lambda x: np.unwrap(x * np.pi, axis=0),
        lambda x: np.unwrap(x.astype("int64") * 3, period=6),
        lambda x: np.unwrap(x.astype("int64") * 5, period=7),
        lambda x: np.unwrap(x.astype("int64") * 3, discont=5, axis=0),
    ],
    np.diff: [
        lambda x: np.diff(x),
        lambda x: np.diff(x, 2, 1),
        lambda x: np.diff(x > 1, axis=0),
        lambda x: np.diff(x, prepend=0),
        lambda x: np.diff(x, axis=0, append=x),
    ],
    np.sort: [
        lambda x: np.sort(-x),
        lambda x: np.sort(x, axis=0, kind="stable"),
        lambda x: np.sort(-x, axis=None, stable=True),
    ],
    np.argsort: [lambda x: np.argsort(-x), lambda x: np.argsort(-x, 0), lambda x: np.argsort(-x, axis=None)],
    np.einsum: [
        lambda x: np.einsum("ij,kj->ik", x, x),
        lambda x: np.einsum("ij, ij", x, np.ones((2, 3)), optimize=True),
        lambda x: np.einsum("...j->...", x),
    ],
    np.round: [lambda x: np.round(x / 7, 2), lambda x: np.round(x * 5, decimals=-1), lambda x: np.round(x / 2)],
    np.around: [lambda x: np.around(x / 7, 1)],
    np.tile: [lambda x: np.tile(x, 2), lambda x: np.tile(x, (2, 1, 2)), lambda x: np.tile(x, reps=())],
    np.roll: [lambda x: np.roll(x, 2), lambda x: np.roll(x, 1, axis=1), lambda x: np.roll(x, 1, axis=(0, 1))],
    np.isclose: [
        lambda x: np.isclose(x, x + 1e-9),
        lambda x: np.isclose(x, 2, atol=1.0),
        lambda x: np.isclose(x + np.inf, np.inf),
        lambda x: np.isclose(x * np.nan, np.nan, equal_nan=True),
    ],
    np.var: [lambda x: np.var(x, axis=1), lambda x: np.var(x), lambda x: np.var(x, axis=0, ddof=1, keepdims=True)],
    np.std: [lambda x: np.std(x), lambda x: np.std(x, axis=0)],
    np.linalg.norm: [lambda x: np.linalg.norm(x), lambda x: np.linalg.norm(x, 1, axis=0)],
    np.add.reduce: [lambda x: np.add.reduce(x), lambda x: np.add.reduce(x, axis=None)],
    np.maximum.reduce: [lambda x: np.maximum.reduce(x, axis=1), lambda x: np.minimum.reduce(x, keepdims=True)],
    np.multiply.reduce: [lambda x: np.multiply.reduce(x, axis=(0, 1))],
    np.fmax.reduce: [lambda x: np.fmax.reduce(some_nans(x), axis=1), lambda x: np.fmax.reduce(x, keepdims=True)],
    np.fmin.reduce: [lambda x: np.fmin.reduce(some_nans(x), axis=None)],
    np.logaddexp.reduce: [lambda x: np.logaddexp.reduce(x), lambda x: np.logaddexp.reduce(x, 1, keepdims=True)],
    np.add.accumulate: [
        lambda x: np.add.accumulate(x),
        lambda x: np.add.accumulate(x > 1, axis=1),
        lambda x: np.add.accumulate(x, 1, np.float32),
    ],
    np.multiply.accumulate: [lambda x: np.multiply.accumulate(x, axis=-1, dtype="float32")],
    np.maximum.accumulate: [
        lambda x: np.maximum.accumulate(np.sin(x), axis=1),
        lambda x: np.maximum.accumulate(some_nans(x), 1),
    ],
    np.minimum.accumulate: [lambda x: np.minimum.accumulate(x), lambda x: np.minimum.accumulate(-x.astype("int8"), 1)],
    np.logical_or.accumulate: [lambda x: np.logical_or.accumulate(x - 1, axis=1)],
    np.logical_and.accumulate: [lambda x: np.logical_and.accumulate(x - 4 < 0, axis=1)],
    np.add.reduceat: [
        lambda x: np.add.reduceat(x, [0, 2], axis=1),
        lambda x: np.add.reduceat(np.ravel(x), [4, 1, 1, 3, 0, 5]),
        lambda x: np.add.reduceat(x > 1, [1, 0]),
        lambda x: np.add.reduceat(x, np.array([], np.int64), 1),
        lambda x: np.add.reduceat(x.astype("int8"), [0], 1, np.float32),
    ],
    np.multiply.reduceat: [lambda x: np.multiply.reduceat(x, [1, 0, 2], axis=-1)],
    np.maximum.reduceat: [lambda x: np.maximum.reduceat(x, [0, 1], axis=1), lambda x: np.maximum.reduceat(x, [1, 0])],
    np.minimum.reduceat: [lambda x: np.minimum.reduceat(np.ravel(-x), [4, 1, 1, 3, 0, 5])],
    np.logical_and.reduce: [lambda x: np.logical_and.reduce(x), lambda x: np.logical_or.reduce(x, axis=1)],
}


#: Calls of the NumPy functions that give several arrays.
SEVERAL: dict[Any, list[Callable[..., Any]]] = {
    np.split: [lambda x: np.split(x, 3, axis=1), lambda x: np.split(x, [1], axis=1)],
    np.unstack: [lambda x: np.unstack(x), lambda x: np.unstack(x, axis=-1)],
    np.array_split: [lambda x: np.array_split(x, 2, axis=1), lambda x: np.array_split(x, 5)],
    np.hsplit: [lambda x: np.hsplit(x, 3), lambda x: np.hsplit(x, [2])],
    np.vsplit: [lambda x: np.vsplit(x, 2)],
    np.modf: [
        lambda x: np.modf(x - 2.5),
        lambda x: np.modf((x - 1).astype("int8")),
        lambda x: tuple(map(np.signbit, np.modf(1.0 - x))),
        lambda x: np.modf(x - np.inf),
    ],
    np.divmod: [lambda x: np.divmod(x, 2.0), lambda x: divmod(7, x + 1.0), lambda x: divmod(x.astype("int64"), 3)],
    np.atleast_1d: [lambda x: np.atleast_1d(x, np.sum(x))],
    np.atleast_2d: [lambda x: np.atleast_2d(x[0], x, np.sum(x))],
    np.atleast_3d: [lambda x: np.atleast_3d(x, x[0], np.sum(x), np.expand_dims(x, 2))],
    np.broadcast_arrays: [lambda x: np.broadcast_arrays(x, np.expand_dims(x, (0, 1)), np.sum(x))],
    np.dsplit: [lambda x: np.dsplit(np.expand_dims(x, 0), 3)],
    np.histogram: [
        lambda x: np.histogram(x, 4),
        lambda x: np.histogram(x, bins=[0.0, 2.0, 5.0], weights=x, density=True),
        lambda x: np.histogram(x, 3, range=(1, 4)),
        lambda x: np.histogram(x * 0, range=(1, 2)),
        lambda x: np.histogram(x * 0, 3, density=True),
        lambda x: np.histogram(x.astype("int64"), 2),
    ],
    np.gradient: [
        lambda x: np.gradient(x),
        lambda x: np.gradient(x, 2.0, np.array([0.0, 1.0, 5.0])),
        lambda x: np.gradient(x * x, 0.5, axis=(1, 0)),
    ],
    np.meshgrid: [
        lambda x: np.meshgrid(x, x),
        lambda x: np.meshgrid(x, np.ravel(x), indexing="ij", sparse=True),
    ],
}


#: The NumPy functions that tell what is known without running: they give a value, not a tree.
FACTS = {
    np.result_type: [lambda x: np.result_type(x, np.float32), lambda x: np.result_type(x.astype("int8"), 1.0)],
    np.iscomplexobj: [lambda x: np.iscomplexobj(x)],
    np.isrealobj: [lambda x: np.isrealobj(x)],
    np.shape: [lambda x: np.shape(x)],
    np.ndim: [lambda x: np.ndim(x)],
    np.size: [lambda x: np.size(x), lambda x: np.size(x, 1), lambda x: np.size(x, axis=-2)],
}


#: The NumPy functions that give one bool of Python's, and so run at once.
ANSWERS = {
    np.allclose: [
        lambda x: np.allclose(x, 0.0),
        lambda x: np.allclose(x, 1e-9),
        lambda x: np.allclose(x, np.ones((2, 3)), atol=1),
    ],
    np.array_equal: [
        lambda x: np.array_equal(x, np.zeros((2, 3))),
        lambda x: np.array_equal(x, np.zeros(3)),
        lambda x: np.array_equal(np.ones((2, 3)), x),
    ],
}


@pytest.fixture(scope="module")
def cpu() -> Any:
    """A backend of float64."""
    return gen_backend("cpu", datatype=np.float64)


@pytest.mark.parametrize("function", NUMPY_FUNCTIONS, ids=lambda function: function.__name__)
def test_every_numpy_function_is_tested(function: Any) -> None:
    known = (UFUNCS, REDUCTIONS, CALLS, SEVERAL, FACTS, ANSWERS)
    elsewhere = function.__module__ == "numpy.linalg"  # tests/ops/test_linalg.py
    elsewhere = elsewhere or hasattr(NUMPY_FUNCTIONS[function], "writes")  # tests/tree/test_numpy_writers.py
    assert elsewhere or any(function in table for table in known), "say in CALLS how it is called"


@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda ufunc: ufunc.__name__)
def test_numpys_ufunc_builds_the_op(ufunc: np.ufunc, cpu: Any) -> None:
    name = NUMPY_FUNCTIONS[ufunc].__name__
    op = OPS[name].make()
    values = Example(op, ((2, 3),) * ufunc.nin, op.sample, name).draw()
    tensors = [cpu.array(x) for x in values]
    tree = ufunc(*tensors)
    assert isinstance(tree, OpTreeNode)
    assert tree.op == op, f"{ufunc} builds {tree.op}, not {name}"
    if ufunc.nin == 2:
        assert ufunc(values[0], tensors[1]).op == op
        assert ufunc(tensors[0], 1.25).op == op  # a power by 2 is a square
    out = cpu.zeros(tree.shape, tree.dtype)
    assert ufunc(*tensors, out=out) is out
    with np.errstate(all="ignore"):
        compare(out.get(), ufunc(*values), name, "by NumPy's ufunc with out=")


@pytest.mark.matrix
@pytest.mark.parametrize("ufunc", [*UFUNCS, np.left_shift, np.divmod, np.positive], ids=lambda ufunc: ufunc.__name__)
@pytest.mark.parametrize("given", ["bool", "int8", "int64", "float32", "float64"])
def test_a_ufuncs_dtype_chooses_its_loop_as_numpy_does(ufunc: np.ufunc, given: str) -> None:
    be = gen_backend("cpu", jit=False)
    arrays = [np.array([[1, 2, 1], [1, 0, 1]], given), np.array([1, 1, 0], given)][: ufunc.nin]
    tensors = [be.array(x, given) for x in arrays]
    calls = [(tensors, arrays)] + [((tensors[0], n), (arrays[0], n)) for n in (1, 0.5) if ufunc.nin == 2]
    for dtype in ("bool", "int32", "float32", "float64"):
        for casting in ("same_kind", "unsafe"):
            for mine, numpys in calls:
                note = f"{ufunc.__name__}({given}, dtype={dtype}, casting={casting})"
                with np.errstate(all="ignore"):
                    try:
                        wanted = ufunc(*numpys, dtype=dtype, casting=casting)
                    except TypeError:
                        with pytest.raises(TypeError):
                            ufunc(*mine, dtype=dtype, casting=casting)
                        continue
                    found = ufunc(*mine, dtype=dtype, casting=casting)
                    pairs = zip(found, wanted, strict=True) if ufunc.nout > 1 else [(found, wanted)]
                    for tree, value in pairs:
                        compare(tree.asnumpyarray(), value, note, "by NumPy", ulps=8)


@pytest.mark.parametrize("name", [n for n, m in MEANINGS.items() if isinstance(m, np.ufunc)])
def test_every_op_that_is_a_ufunc_is_had_by_it(name: str) -> None:
    assert NUMPY_FUNCTIONS[MEANINGS[name]].__name__ == name


@pytest.mark.parametrize("ufunc", [np.bitwise_and, np.bitwise_or, np.bitwise_xor])
def test_floats_have_no_bits_and_are_no_conditions(ufunc: np.ufunc, cpu: Any) -> None:
    with pytest.raises(DTypeError, match="float64.* is not bool"):
        ufunc(cpu.array(np.array([6.0, 5.0])), 3)


def test_a_ufunc_of_two_values_writes_both(cpu: Any) -> None:
    x, outs = cpu.array([7.5, -7.5]), (cpu.zeros(2), cpu.zeros(2))
    written = np.divmod(x, 2.0, out=outs)
    assert written[0] is outs[0] and written[1] is outs[1]
    for got, wanted in zip(outs, np.divmod(x.get(), 2.0), strict=True):
        assert got.get().tolist() == wanted.tolist()


@pytest.mark.parametrize("function", REDUCTIONS, ids=lambda function: function.__name__)
def test_numpys_reduction_drops_the_axis_as_numpy_does(function: Any, cpu: Any) -> None:
    values = np.linspace(0.5, 3.0, 24).reshape(2, 3, 4)
    x = cpu.array(values, name="x")
    several = REDUCTIONS[function] not in ("argmax", "argmin")
    for axis in (None, 0, -1, 1, *([(0, 2), (0, -1)] if several else [])):
        for keywords in ({}, {"keepdims": True}, {"keepdims": False}):
            tree = function(x, axis=axis, **keywords)
            assert isinstance(tree, OpTreeNode)
            note = f"axis={axis} {keywords}"
            compare(tree.asnumpyarray(), function(values, axis=axis, **keywords), function.__name__, note)
    assert getattr(cpu, REDUCTIONS[function])(x, axis=0).shape == (1, 3, 4), "a backend's reduction keeps its axis"
    if function is not np.linalg.norm:  # whose second argument is the norm's order
        assert function(x, 1).shape == (2, 4)


@pytest.mark.parametrize("function", CALLS, ids=lambda function: f"{function.__name__}")
def test_other_functions_build_trees(function: Any, cpu: Any) -> None:
    values = np.arange(6.0).reshape(2, 3)
    x = cpu.array(values, name="x")
    for call in CALLS[function]:
        tree = call(x)
        text = inspect.getsource(call).strip()
        assert isinstance(tree, OpTreeNode), text
        with np.errstate(all="ignore"):
            compare(tree.asnumpyarray(), call(values), text, "by NumPy's function", ulps=8)


@pytest.mark.parametrize("function", SEVERAL, ids=lambda function: f"{function.__name__}")
def test_functions_of_several_values_build_several_trees(function: Any, cpu: Any) -> None:
    values = np.arange(6.0).reshape(2, 3)
    x = cpu.array(values, name="x")
    for call in SEVERAL[function]:
        text = inspect.getsource(call).strip()
        got, wanted = call(x), call(values)
        assert len(got) == len(wanted), text
        for tree, value in zip(got, wanted, strict=True):
            assert isinstance(tree, Variable), text
            compare(tree.asnumpyarray(), value, text, "by NumPy's function")


@pytest.mark.parametrize("function", FACTS, ids=lambda function: f"{function.__name__}")
def test_facts_of_tensors_and_trees_are_numpys(function: Any, cpu: Any) -> None:
    values = np.zeros((2, 3))
    x = cpu.array(values)
    for call in FACTS[function]:
        assert call(x) == call(x + 1) == call(values)


@pytest.mark.parametrize("function", ANSWERS, ids=lambda function: f"{function.__name__}")
def test_answers_are_pythons_bools_as_numpys_are(function: Any, cpu: Any) -> None:
    said = []
    for values in (np.zeros((2, 3)), np.full((2, 3), 1e-9), np.ones((2, 3)), np.full((2, 3), np.nan)):
        x = cpu.array(values)
        for call in ANSWERS[function]:
            assert call(x) is call(x * 1.0) is call(values)
            said.append(call(x))
    assert set(said) == {True, False}


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (np.unique, "np.unique"),
        (np.linalg.eig, "np.linalg.eig"),
        (lambda x: np.ldexp(x, 1), "np.ldexp"),
        (np.subtract.accumulate, "np.subtract.accumulate"),
        (np.gcd.reduce, "np.gcd.reduce"),
        (lambda x: np.union1d(np.ones(2) * x, x), "np.union1d"),
    ],
)
def test_a_function_without_an_equal_says_how_to_run_it_on_the_host(call: Any, name: str, cpu: Any) -> None:
    with pytest.raises(TypeError) as caught:
        call(cpu.ones((2, 2)))
    assert f"{name} has no equal here; {name}(x.asnumpyarray(), ...)" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, i: np.delete(x, 3, axis=1), AxisError, "delete: index 3 is out of bounds.*x"),
        (
            lambda x, i: np.insert(x, [0, 7], 1.0, axis=1),
            AxisError,
            r"insert: \[0, 7\] is out of range for axis 1 of x",
        ),
        (lambda x, i: np.delete(x, [True], axis=1), OperandError, "delete: boolean array argument.*x"),
        (lambda x, i: np.delete(x, i, axis=0), OperandError, r"delete: the indices i .* give i\.get\(\)"),
        (lambda x, i: np.insert(x, i, 0, axis=0), OperandError, r"insert: the indices i .* give i\.get\(\)"),
        (
            lambda x, i: np.insert(x, [0, 1], [1, 2, 3], axis=1),
            ShapeError,
            r"insert: the values .* broadcast to \(2, 2\)",
        ),
        (lambda x, i: np.repeat(x, i, axis=0), OperandError, "repeat: the shape depends on i"),
        (lambda x, i: np.repeat(x, [1, 2], axis=1), ShapeError, r"repeat: \(2,\) repeats for axis 1 of x"),
        (lambda x, i: np.repeat(x, [1, -2], axis=0), OperandError, "repeat: repeats are integers of 0 or more"),
        (lambda x, i: np.take(x, [0.5], mode="wrap"), DTypeError, "take: indices are integers"),
        (lambda x, i: np.convolve(x, x), ShapeError, "convolve: vectors are wanted, and x"),
        (lambda x, i: np.convolve(i, []), ShapeError, "convolve: .* is empty"),
        (lambda x, i: np.correlate(i, i, "most"), OperandError, "correlate: mode is 'full', 'same' or 'valid'"),
    ],
)
def test_what_is_refused_names_the_operand(call: Any, error: Any, message: str, cpu: Any) -> None:
    with pytest.raises(error, match=message):
        call(cpu.array(np.ones((2, 3)), name="x"), cpu.array(np.array([0]), "int64", name="i"))


MASK = np.array([[True, False, True], [False, False, True]])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.sum(x, where=MASK),
        lambda x: np.sum(x, axis=1, where=MASK, initial=2.5),
        lambda x: x.sum(axis=0, where=MASK, keepdims=True),
        lambda x: np.sum(x, where=x > 2.0),
        lambda x: np.add.reduce(x, axis=1, initial=3),
        lambda x: np.sum(x > 1.0, where=MASK),
        lambda x: np.prod(x, where=MASK, axis=1, initial=2),
        lambda x: np.max(x, axis=0, initial=2.0, where=MASK),
        lambda x: np.min(x, axis=1, initial=7.0),
        lambda x: np.max(x[:, :0], axis=1, initial=-1.0),
        lambda x: np.mean(x, where=MASK, axis=1),
        lambda x: np.mean(x, where=MASK, axis=0),
        lambda x: np.var(x, where=MASK, ddof=1),
        lambda x: np.std(x, axis=1, where=MASK, keepdims=True),
        lambda x: np.std(x, axis=1, correction=1),
        lambda x: np.all(x > 1.0, axis=1, where=MASK),
        lambda x: np.any(x > 4.0, where=MASK),
        lambda x: np.sum(x, where=True),
    ],
)
def test_reductions_of_some_elements_are_numpys(call: Any, cpu: Any) -> None:
    values = np.arange(6.0).reshape(2, 3)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare(call(cpu.array(values)).asnumpyarray(), call(values), inspect.getsource(call).strip(), "by NumPy")


@pytest.mark.parametrize("ufunc", [np.add, np.multiply, np.maximum, np.minimum])
def test_reductions_of_segments_have_derivatives(ufunc: np.ufunc, cpu: Any) -> None:
    x = cpu.array([[3.0, 1.0, 2.5, -4.0], [0.5, 6.0, -2.0, 5.0]])
    check_grad(lambda x: ufunc.reduceat(x, [1, 0, 3, 2], axis=1) ** 2, [x])


def test_segments_are_of_known_indices_within_the_axis(cpu: Any) -> None:
    x = cpu.ones((2, 3), name="x")
    with pytest.raises(ShapeError, match=r"axis 1 of x .* not \[0, 3\]"):
        np.add.reduceat(x, [0, 3], axis=1)
    with pytest.raises(OperandError, match="i tells the segments only when it runs"):
        np.add.reduceat(x, cpu.array([0, 1], "int64", name="i"), axis=1)


def test_an_extreme_of_some_elements_needs_a_first_value(cpu: Any) -> None:
    with pytest.raises(OperandError, match="max: with where= give initial="):
        np.max(cpu.ones((2, 3)), where=MASK)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "float32"])
@pytest.mark.parametrize("value", [1, True, 2.7, np.float64(3.5), np.array([1.5])], ids=repr)
def test_full_like_casts_its_value_as_numpy_does(dtype: str, value: Any, cpu: Any) -> None:
    like = np.ones((2, 2), dtype)
    found, wanted = np.full_like(cpu.array(like, dtype), value), np.full_like(like, value)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.get(), wanted)


def test_full_like_refuses_an_integer_that_overflows_as_numpy_does(cpu: Any) -> None:
    with pytest.raises(OverflowError, match="out of bounds"):
        np.full_like(cpu.array(np.ones(2, np.int8), np.int8), 300)


def test_arguments_that_are_equal_and_not_the_same_are_told_apart(cpu: Any) -> None:
    x = cpu.ones((2, 3), name="x")
    assert cpu.sum(x, axis=1).shape == (2, 1)
    assert cpu.sum(x, axis=1, keepdims=False).shape == (2,)
    assert cpu.sum(x, axis=1, keepdims=0).shape == cpu.sum(x, keepdims=False, axis=1).shape == (2,)
    assert [cpu.sum(x, axis=1, keepdims=kept)[0]["keepdims"] for kept in (True, 1, False, 0)] == [True, 1, False, 0]
    assert cpu.sum(x, axis=(0, 1), keepdims=False).shape == ()


@pytest.mark.parametrize("name", ["unique", "nonzero", "bincount", "flatnonzero"])
def test_what_is_as_large_as_values_say_asks_for_its_size(name: str, cpu: Any) -> None:
    x = cpu.ones(3, "int64")
    with pytest.raises(OperandError, match=rf"{name}: give size=.*np\.{name}\(x\.asnumpyarray\(\)\)"):
        getattr(cpu, name)(x)
    with pytest.raises(TypeError, match=rf"np\.{name} has no equal here.*be\.{name}\(x, size=\.\.\.\)"):
        getattr(np, name)(x)


class _Other:
    """Another library's array, which knows what to do with ours."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> str:
        return ufunc.__name__

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> str:
        return func.__name__


def test_another_librarys_arrays_have_their_say(cpu: Any) -> None:
    x = cpu.ones(2)
    assert np.ldexp(x, _Other()) == "ldexp"
    assert np.setdiff1d(x, _Other()) == "setdiff1d"


def test_where_of_a_condition_alone_is_for_the_host(cpu: Any) -> None:
    with pytest.raises(OperandError, match=r"np\.where\(condition\.asnumpyarray\(\)\)"):
        np.where(cpu.ones(2) > 0)


@pytest.mark.parametrize(("call", "kept"), [(np.tanh, "int32"), (np.tanh, "bool"), (np.abs, "bool")])
def test_out_takes_no_value_of_another_kind(call: Any, kept: str) -> None:
    be = gen_backend("cpu")
    x, out = be.array([0.5, 2.5]), be.array(np.array([1, 0], kept), name="out")
    with pytest.raises(
        TypeError, match=rf"out is of {kept}, into which NumPy casts no float32; out\[:\] = \.\.\. does"
    ):
        call(x, out=out)
    assert out.get().tolist() == np.array([1, 0], kept).tolist()
    with pytest.raises(TypeError):
        call(x.get(), out=out.get())
