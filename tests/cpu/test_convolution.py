"""Convolutions and pools in compiled C: every path, against the op's own value; memory, determinism, what runs."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from backends import gen_backend
from backends.cpu.routines import convolution
from optree import debugprint, function, grad, settings
from optree.networks.convolution import Conv, ConvInput, ConvWeights
from optree.networks.pooling import ArgmaxPool, AvgPool, AvgUnpool, MaxPool, MaxUnpool, TakePool

LAYOUTS = {
    1: [("NCW", "OIW"), ("NWC", "WIO"), ("CWN", "IWO")],
    2: [("NCHW", "OIHW"), ("NHWC", "HWIO"), ("CHWN", "IHWO")],
    3: [("NCDHW", "OIDHW"), ("NDHWC", "DHWIO"), ("CDHWN", "IDHWO")],
}


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compiled() -> Any:
    if gen_backend("cpu").compiler is None:
        pytest.skip("there is no C compiler")
    return gen_backend("cpu", jit=True)


def _operands(rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Images and weights with more channels than a tile, or few, and parameters."""
    rank = rng.randint(1, 4)
    layout, weights_layout = LAYOUTS[rank][rng.randint(3)]
    groups = int(rng.choice([1, 1, 2, 5]))
    inputs, outputs = int(rng.choice([1, 3, 7, 33])), int(rng.choice([1, 9, 35, 64]))
    if groups > 1:
        inputs, outputs = min(inputs, 7), min(outputs, 16)
    window, dilation = rng.randint(1, (8, 4, 3)[rank - 1], rank), rng.randint(1, 3, rank)
    image = dilation * (window - 1) + 1 + rng.randint(0, (40, 16, 5)[rank - 1], rank)
    spatial = [x for x in layout if x not in "NC"]
    sizes = {"N": rng.randint(1, 9), "C": groups * inputs, "O": groups * outputs, "I": inputs}
    shape = [int({**sizes, **dict(zip(spatial, image, strict=True))}[a]) for a in layout]
    filters = [int({**sizes, **dict(zip(spatial, window, strict=True))}[a]) for a in weights_layout]
    props = {
        "stride": tuple(map(int, rng.randint(1, 4, rank))),
        "padding": ["same", "valid", 1][rng.randint(3)],
        "dilation": tuple(map(int, dilation)),
        "groups": groups,
        "layout": layout,
        "weights_layout": weights_layout,
    }
    dtype = [np.float64, np.float32][rng.randint(2)]
    return rng.normal(size=shape).astype(dtype), rng.normal(size=filters).astype(dtype), props


def _check(got: np.ndarray, wanted: np.ndarray, what: str) -> None:
    assert got.shape == wanted.shape
    error = np.abs(got - wanted).max(initial=0) / max(np.abs(wanted).max(initial=0), 1e-30)
    assert error < (1e-11 if got.dtype == np.float64 else 1e-4), f"{what}: {error}"


@pytest.mark.matrix(least=6)
@pytest.mark.parametrize("seed", range(28))
def test_a_convolution_and_its_derivatives(seed: int, compiled: Any, monkeypatch: Any) -> None:
    """In blocks of every size, by panels and directly, on one thread and on several, from any strides."""
    rng = np.random.RandomState(seed)
    x, w, props = _operands(rng)
    monkeypatch.setattr(convolution, "BLOCK", int(rng.choice([200, 2000, 1 << 16])))
    monkeypatch.setattr(convolution, "LONGEST", int(rng.choice([5, 512])))
    monkeypatch.setattr(convolution, "FEW", int(rng.choice([0, 8])))
    monkeypatch.setattr(convolution, "FEW_PAIRS", int(rng.choice([0, 16])))
    monkeypatch.setattr(convolution, "ALONE", int(rng.choice([1, 1 << 30])))
    tensors = [compiled.array(a, a.dtype) for a in (x, w)]
    if rng.randint(2):
        tensors[0] = compiled.array(np.ascontiguousarray(x.T), x.dtype).T
    with settings.override(num_threads=int(rng.choice([1, 3]))):
        node = compiled.conv(*tensors, **props)
        op, wide = node.op, [a.astype(np.float64) for a in (x, w)]
        wanted = op.value(*wide)
        _check(node.asnumpyarray(), wanted, "value")
        delta = rng.normal(size=wanted.shape).astype(x.dtype)
        d = compiled.array(delta, delta.dtype)
        by_input = op.other(ConvInput)(d, tensors[1], tensors[0]).asnumpyarray()
        _check(by_input, op.other(ConvInput).value(delta.astype(np.float64), wide[1], x), "by images")
        by_weights = op.other(ConvWeights)(tensors[0], d, tensors[1]).asnumpyarray()
        _check(by_weights, op.other(ConvWeights).value(wide[0], delta.astype(np.float64), w), "by weights")


@pytest.mark.parametrize("channels", [5, 16, 70])
@pytest.mark.parametrize("weights_layout", ["HWIO", "OIHW"])
def test_depthwise_convolutions_with_channels_last(channels: int, weights_layout: str, compiled: Any) -> None:
    rng = np.random.RandomState(0)
    filters = [{"H": 3, "W": 2, "I": 1, "O": channels}[a] for a in weights_layout]
    x, w = rng.normal(size=(2, 9, 11, channels)), rng.normal(size=filters)
    props: dict[str, Any] = {"layout": "NHWC", "weights_layout": weights_layout, "groups": channels, "padding": 1}
    for stride in (1, (2, 3)):
        op = compiled.conv(compiled.array(x, "float64"), compiled.array(w, "float64"), stride=stride, **props).op
        delta = rng.normal(size=op.value(x, w).shape)
        for made, arrays in (
            (op, (x, w)),
            (op.other(ConvInput), (delta, w, x)),
            (op.other(ConvWeights), (x, delta, w)),
        ):
            tree = made(*(compiled.array(a, "float64") for a in arrays))
            _check(tree.asnumpyarray(), made.value(*arrays), str(made))


def test_depthwise_convolutions_of_flipped_images_with_channels_last(compiled: Any) -> None:
    rng = np.random.RandomState(0)
    x, w, delta = (rng.normal(size=shape) for shape in ((2, 9, 11, 3), (3, 1, 3, 3), (2, 9, 11, 3)))
    images = compiled.array(np.ascontiguousarray(x[:, ::-1]), "float64")[:, ::-1]  # before its first element
    for dilation in (2, 1):
        props: dict[str, Any] = {"layout": "NHWC", "groups": 3, "padding": 1, "dilation": dilation}
        tree = compiled.conv(images, compiled.array(w, "float64"), **props)
        op = tree.op
        _check(tree.asnumpyarray(), op.value(x, w), f"forward, {dilation=}")
    tree = op.other(ConvWeights)(images, compiled.array(delta, "float64"), compiled.array(w, "float64"))
    _check(tree.asnumpyarray(), tree.op.value(x, delta, w), "by weights")


def test_the_number_of_threads_changes_no_bit(compiled: Any) -> None:
    rng = np.random.RandomState(0)
    x, w, d = (compiled.array(rng.normal(size=s)) for s in ((6, 20, 30, 30), (40, 20, 3, 3), (6, 40, 28, 28)))
    found = []
    for threads in (1, 2, 5):
        with settings.override(num_threads=threads):
            trees = compiled.conv(x, w), compiled.conv_input(d, w, x), compiled.conv_weights(x, d, w)
            found.append([tree.asnumpyarray() for tree in trees])
    for others in found[1:]:
        assert all((a == b).all() for a, b in zip(found[0], others, strict=True))


def test_half_precision_is_computed_in_float32(compiled: Any) -> None:
    rng = np.random.RandomState(0)
    x, w = (rng.normal(size=s).astype("float16") for s in ((2, 40, 9, 9), (12, 40, 3, 3)))
    got = compiled.conv(compiled.array(x, "float16"), compiled.array(w, "float16")).asnumpyarray()
    wanted = (
        Conv.make().bind([compiled.array(x).type, compiled.array(w).type], None).value(x.astype(float), w.astype(float))
    )
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(float), wanted, rtol=1e-3, atol=2e-2)


def test_infinities_stay_where_they_are(compiled: Any) -> None:
    """Values packed beside a row do not reach its sums."""
    for groups, channels in ((1, 20), (20, 20)):
        x = np.ones((1, channels, 5, 19), "float32")
        x[0, :, :, 18] = np.inf
        w = np.ones((channels, channels // groups, 3, 3), "float32")
        delta = np.ones((1, channels, 5, 19), "float32")
        props: dict[str, Any] = {"padding": 1, "groups": groups}
        t = [compiled.array(a) for a in (x, w, delta)]
        value = compiled.conv(*t[:2], **props).asnumpyarray()
        assert np.isfinite(value[..., :17]).all() and np.isinf(value[..., 17:]).all()
        by_weights = compiled.conv_weights(t[0], t[2], t[1], **props)
        assert not np.isnan(by_weights.asnumpyarray()).any()


def test_memory_is_that_of_operands_and_result(compiled: Any) -> None:
    """ResNet's first layer: the matrix of its windows would have 49 times the images."""
    x, w, y = compiled.ones((4, 3, 224, 224)), compiled.ones((64, 3, 7, 7)), compiled.empty((4, 64, 112, 112))
    tracemalloc.start()
    y[:] = compiled.conv(x, w, stride=2, padding=3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    held = sum(t.get().nbytes for t in (x, w, y))
    assert peak < 0.3 * held


def test_without_a_compiler_numpy_convolves() -> None:
    be = gen_backend("cpu", jit=False)
    tree = be.conv(be.ones((1, 2, 5, 5)), be.ones((3, 2, 3, 3)))
    assert (tree.asnumpyarray() == 18).all()
    assert "convolutions and attention by NumPy" in be.info()


@pytest.mark.parametrize(("jit", "by_numpy"), [("auto", 3), ("always", 0), (True, 0), (False, 6)])
def test_small_ones_are_compiled_where_they_recur(jit: Any, by_numpy: int, compiled: Any, monkeypatch: Any) -> None:
    """By the calls of each, as many in every run."""
    monkeypatch.setattr(convolution, "IN_ALL", 3 * convolution.LEAST)
    done: dict[type, int] = {Conv: 0}
    for cls in done:

        def counted(op: Any, *arrays: Any, by: Any = cls.numpy, cls: type = cls) -> Any:
            done[cls] += 1
            return by(op, *arrays)

        monkeypatch.setattr(cls, "numpy", counted)
    be = gen_backend("cpu", jit=jit)
    x, w, y = be.ones((1, 1, 4, 4)), be.ones((1, 1, 3, 3)), be.zeros((1, 1, 2, 2))
    for _ in range(6):
        y[:] = be.conv(x, w)
        assert (y.get() == 9).all()
    assert set(done.values()) == {by_numpy}


def test_what_runs_is_said(compiled: Any) -> None:
    assert "convolutions and attention by compiled C" in compiled.info()
    tree = compiled.conv(compiled.ones((1, 2, 5, 5)), compiled.ones((3, 2, 3, 3)))
    assert debugprint(tree, stage="plan", file="str").count("by compiled C") == 1


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(16))  # six kernels are compiled for each
def test_pools(seed: int, compiled: Any) -> None:
    rng = np.random.RandomState(seed)
    ndim = rng.randint(1, 6)
    shape = tuple(map(int, rng.randint(1, (40, 12, 9, 6, 5)[ndim - 1], ndim) + 2))
    axes = tuple(sorted(rng.permutation(ndim)[: rng.randint(1, min(ndim, 4) + 1)].tolist()))
    window = tuple(int(rng.randint(1, min(4, shape[a]) + 1)) for a in axes)
    padding = ["same", tuple((int(rng.randint(0, w)), int(rng.randint(0, w))) for w in window)][rng.randint(2)]
    props: dict[str, Any] = {
        "window": window,
        "stride": tuple(map(int, rng.randint(1, 4, len(axes)))),
        "padding": padding,
        "axes": axes,
        "ceil": bool(padding != "same" and rng.randint(2)),
    }
    dtype = [np.float32, np.float64][rng.randint(2)]
    x = rng.randint(-3, 4, shape).astype(dtype) if rng.randint(2) else rng.normal(size=shape).astype(dtype)
    if rng.randint(3) == 0:
        x.flat[rng.randint(x.size)] = np.nan
    t, counted = compiled.array(x, dtype), bool(rng.randint(2))
    pooled = compiled.max_pool(t, **props)
    indices = compiled.argmax_pool(t, **props).asnumpyarray()
    delta = rng.normal(size=pooled.shape).astype(dtype)
    operands = {MaxPool: [x], ArgmaxPool: [x], MaxUnpool: [delta, indices, x], TakePool: [x, indices]}
    means = {AvgPool: [x], AvgUnpool: [delta, x]}
    for op, arrays in [*operands.items(), *means.items()]:
        given = {**props, "count_padding": counted} if op in means else props
        tree = op.make(**given)(*(compiled.array(a, a.dtype) for a in arrays))
        got, wanted = tree.asnumpyarray(), tree.op.value(*arrays)
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5, err_msg=str(tree.op))


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_pools_of_long_rows_and_windows(stride: int, compiled: Any) -> None:
    """Rows of several vectors, of windows with more elements than are tabled."""
    x = np.random.RandomState(stride).randint(0, 4, (2, 3, 5, 211)).astype("float32")
    props: dict[str, Any] = {"window": (2, 70), "stride": (1, stride), "padding": ((0, 1), (30, 7)), "axes": (2, 3)}
    for op in (MaxPool, ArgmaxPool, AvgPool):
        tree = op.make(**props)(compiled.array(x))
        np.testing.assert_allclose(tree.asnumpyarray(), tree.op.value(x), rtol=1e-5, err_msg=str(tree.op))


def test_indices_of_no_element_are_passed_over(compiled: Any) -> None:
    """Whatever a caller gives as indices, nothing is read or written beyond the images."""
    x = compiled.ones((1, 1, 4, 4))
    indices = compiled.array(np.array([[[[-1, 99], [4, -(2**31)]]]], "int32"), "int32")
    assert not compiled.take_pool(x, indices, 2).asnumpyarray().any()
    assert not compiled.max_unpool(compiled.ones((1, 1, 2, 2)), indices, x, 2).asnumpyarray().any()


def test_a_function_of_convolutions_has_their_gradients(compiled: Any) -> None:
    rng = np.random.RandomState(0)
    values = [rng.normal(size=s) for s in ((3, 5, 12, 12), (20, 5, 3, 3), (20, 1, 1), (9, 20, 3, 3), (9, 1, 1))]
    found = []
    for be in (compiled, gen_backend("cpu", jit=False)):
        x, *weights = (be.array(v, "float64", name=f"v{i}") for i, v in enumerate(values))
        w, b, u, c = weights
        y = be.relu(be.conv(be.relu(be.conv(x, w, padding=1) + b), u, padding=1) + c)
        cost = be.sum(y * y)
        step = function([], [cost, *grad(cost, weights)])
        for _ in range(3):
            results = [r.asnumpyarray() for r in step()]
        found.append(results)
    for ours, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-9)


def test_a_kernel_that_uses_the_shape_of_a_convolution_alone(compiled: Any) -> None:
    rng = np.random.RandomState(0)
    x, w, z = (compiled.array(rng.normal(size=s), "float64") for s in ((1, 2, 5, 6), (4, 2, 2, 2), (1, 4, 4, 5)))
    value = compiled.conv(x * 2, w)
    spread = compiled.broadcast_like(compiled.array(np.arange(4.0).reshape(1, 4, 1, 1), "float64"), value) * z
    for outputs in ((value, spread), (spread, value), (spread, value * 2)):
        for found, tree in zip(compiled.evaluate(list(outputs)), outputs, strict=True):
            np.testing.assert_allclose(found.get(), tree.asnumpyarray(), rtol=1e-12)
