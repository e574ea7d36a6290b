"""Convolutions and pools of random geometry against loops, derivatives against differences, errors, open sizes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import scipy
from harness import windowed
from harness.compiling import needs_compiler

from backends import gen_backend, source
from backends.cpu.compiler import find_compiler
from optree import OpTreeNode, TensorType, debugprint, function, grad
from optree.errors import OperandError, ShapeError
from optree.networks.convolution import Conv
from optree.registry import f
from optree.testing.conformance import check_gradient, check_second_gradient
from optree.testing.examples import Example

LAYOUTS = {
    1: [("NCW", "OIW"), ("NWC", "WIO"), ("CWN", "IWO")],
    2: [("NCHW", "OIHW"), ("NHWC", "HWIO"), ("CHWN", "IHWO"), ("HNWC", "WOHI")],
    3: [("NCDHW", "OIDHW"), ("NDHWC", "DHWIO"), ("CDHWN", "IDHWO")],
}


def _case(rng: np.random.RandomState) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of images and weights, and parameters, that fit."""
    rank = rng.randint(1, 4)
    layout, weights_layout = LAYOUTS[rank][rng.randint(len(LAYOUTS[rank]))]
    groups = rng.choice([1, 1, 2, 3])
    channels, outputs = groups * rng.randint(1, 4), groups * rng.randint(1, 4)
    window = rng.randint(1, 4 if rank < 3 else 3, rank)
    dilation = rng.randint(1, 3, rank)
    extent = dilation * (window - 1) + 1
    image = extent + rng.randint(0, 5 if rank < 3 else 2, rank)
    padding: Any = [
        "same",
        "valid",
        int(rng.randint(0, 3)),
        tuple((int(a), int(b)) for a, b in rng.randint(0, 3, (rank, 2))),
    ][rng.randint(4)]
    letters = [x for x in layout if x not in "NC"]
    sizes = {"N": rng.randint(1, 4), "C": channels, "O": outputs, "I": channels // groups}
    x = tuple(int({**sizes, **dict(zip(letters, image, strict=True))}[a]) for a in layout)
    w = tuple(int({**sizes, **dict(zip(letters, window, strict=True))}[a]) for a in weights_layout)
    props = {
        "stride": tuple(map(int, rng.randint(1, 4, rank))),
        "padding": padding,
        "dilation": tuple(map(int, dilation)),
        "groups": int(groups),
        "layout": layout,
        "weights_layout": weights_layout,
    }
    return x, w, props


@pytest.mark.parametrize("seed", range(24))
def test_convolutions_of_random_geometry_are_loops(seed: int) -> None:
    rng = np.random.RandomState(seed)
    be = gen_backend("cpu", datatype="float64")
    shape, filters, props = _case(rng)
    x, w = rng.normal(size=shape), rng.normal(size=filters)
    wanted = windowed.conv(x, w, **props)
    value = be.conv(be.array(x), be.array(w), **props)
    assert value.shape == wanted.shape
    np.testing.assert_allclose(value.asnumpyarray(), wanted, rtol=1e-9, atol=1e-9)
    delta = rng.normal(size=wanted.shape)
    tensors = [be.array(a) for a in (x, w, delta)]
    by_x, by_w = grad(be.sum(be.conv(*tensors[:2], **props) * tensors[2]), tensors[:2])
    np.testing.assert_allclose(by_x.asnumpyarray(), windowed.conv_input(delta, w, x, **props), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(by_w.asnumpyarray(), windowed.conv_weights(x, delta, w, **props), rtol=1e-9, atol=1e-9)


@needs_compiler
@pytest.mark.parametrize("stride, padding", [(1, 1), (2, ((0, 2), (1, 0)))])
@pytest.mark.parametrize("layout, kernels", [("NCHW", 1), ("NHWC", 2)])  # with channels last one orders the weights
def test_a_depthwise_convolution_is_one_kernel_with_what_follows(
    stride: int, padding: Any, layout: str, kernels: int, capsys: Any
) -> None:
    be = gen_backend("cpu", datatype="float64", jit=True)
    rng = np.random.RandomState(0)
    x, w = rng.normal(size=(2, 5, 7, 6) if layout == "NCHW" else (2, 7, 6, 5)), rng.normal(size=(5, 1, 3, 3))
    props: dict[str, Any] = {"groups": 5, "stride": stride, "padding": padding, "layout": layout}
    images, weights = be.array(x), be.array(w)
    value = be.relu(be.conv(images, weights, **props) + 1)
    by_images = grad(be.sum(value), images)
    wanted = windowed.conv(x, w, **props) + 1
    np.testing.assert_allclose(value.asnumpyarray(), np.maximum(wanted, 0), rtol=1e-9, atol=1e-9)
    slope = windowed.conv_input((wanted > 0).astype(float), w, x, **props)
    np.testing.assert_allclose(by_images.asnumpyarray(), slope, rtol=1e-9, atol=1e-9)
    debugprint(value, stage="fusion")
    steps = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert sum(line.startswith("kernel") for line in steps) == kernels
    assert not any("conv" in line for line in steps)


@needs_compiler
@pytest.mark.matrix(least=2)
@pytest.mark.parametrize("seed", range(6))
def test_rows_of_windows_that_share_loads_are_loops(seed: int) -> None:
    rng = np.random.RandomState(seed)
    be = gen_backend("cpu", datatype="float64", jit=True)
    window, stride = rng.randint(2, 6, 2), rng.randint(1, 3, 2)
    before, after = rng.randint(0, window, (2, 2))
    shape = (2, 3, *map(int, window + rng.randint(0, 9, 2) + (0, rng.choice([0, 9, 30]))))
    x, w = rng.normal(size=shape), rng.normal(size=(3, 1, *window))
    padding = tuple((int(a), int(b)) for a, b in zip(before, after, strict=True))
    props: dict[str, Any] = {"groups": 3, "stride": tuple(map(int, stride)), "padding": padding}
    wanted = windowed.conv(x, w, **props)
    images, delta = be.array(x), rng.normal(size=wanted.shape)
    value = be.conv(images, be.array(w), **props)
    added = be.array(delta)
    added[:] = added + value * 2
    np.testing.assert_allclose(added.asnumpyarray(), delta + 2 * wanted, rtol=1e-9, atol=1e-9)
    divided = be.array(delta) / (value * value + 1)
    np.testing.assert_allclose(divided.asnumpyarray(), delta / (wanted**2 + 1), rtol=1e-9, atol=1e-9)
    by_images = grad(be.sum(value * be.array(delta)), images)
    slope = windowed.conv_input(delta, w, x, **props)
    np.testing.assert_allclose(by_images.asnumpyarray(), slope, rtol=1e-9, atol=1e-9)


@needs_compiler
def test_rows_of_windows_on_several_arrays_load_from_each() -> None:
    be = gen_backend("cpu", datatype="float64", jit=True)
    rng = np.random.RandomState(0)
    x, weights = be.zeros((20, 42)), rng.normal(size=(2, 18, 40))
    operands, whole, terms, wanted = [be.array(w) for w in weights], x + 0, [], np.zeros((20, 42))
    for number, which in enumerate((1, 1, 0, 1, 1, 0, 1, 0, 1)):
        row, column = divmod(number, 3)
        terms.append(whole.at[row : row + 18, column : column + 40] * operands[which])
        wanted[row : row + 18, column : column + 40] += weights[which]
    slope = function([], grad(be.sum(sum(terms[1:], terms[0])), x))()
    np.testing.assert_allclose(slope.get(), wanted, rtol=1e-12, atol=1e-12)


@needs_compiler
def test_windows_are_read_in_kernels_of_several_stages() -> None:
    images, found = np.random.default_rng(0).normal(size=(3, 1, 6, 14)), []
    for jit in (True, False):
        be = gen_backend("cpu", datatype="float64", jit=jit)
        x = be.array(images)
        p = be.max_pool(x, 1, 3)
        y = be.softmax(p / (p * 0.1 + 3), axis=3)
        found.append([each.get() for each in function([], [y, grad(np.sum(np.sin(y) * y), x)])()])
    for compiled, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(compiled, wanted, rtol=1e-12, atol=1e-14)


@needs_compiler
def test_rows_of_windows_load_what_they_share_once() -> None:
    be = gen_backend("cpu", jit=True)
    (text,) = source(be.conv(be.ones((2, 3, 20, 40)), be.ones((3, 1, 3, 3)), groups=3, padding=1))
    whole = text[text.index("for (int64_t c = from") : text.index("for (int side")]
    assert len(re.findall(r"= y\w+\[i\];", whole)) == 18  # six rows and three columns for four rows
    assert len(re.findall(r"x\w+\[i\] = ", whole)) == 4


@pytest.mark.parametrize("seed", range(6))
def test_derivatives_of_random_geometry_are_differences(seed: int) -> None:
    while True:
        rng = np.random.RandomState(seed)
        x, w, props = _case(rng)
        if np.prod(x) * np.prod(w) < 5000:
            break
        seed += 100
    example = Example(Conv.make(**props), (x, w), (-2.0, 2.0), f"conv{seed}")
    check_gradient(example)
    check_second_gradient(example)


@pytest.mark.parametrize("mode", ["valid", "same", "full"])
def test_a_convolution_is_scipys_correlation(mode: str) -> None:
    rng = np.random.RandomState(0)
    be = gen_backend("cpu", datatype="float64")
    x, w = rng.normal(size=(7, 8)), rng.normal(size=(3, 5))
    padding: Any = {"valid": "valid", "same": "same", "full": (2, 4)}[mode]
    got = be.conv(be.array(x[None, None]), be.array(w[None, None]), padding=padding).asnumpyarray()[0, 0]
    np.testing.assert_allclose(got, scipy.signal.correlate(x, w, mode), rtol=1e-12)


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("seed", range(12))
def test_pools_of_random_geometry_are_loops(seed: int) -> None:
    rng = np.random.RandomState(seed)
    be = gen_backend("cpu", jit=find_compiler() is not None, datatype="float64")
    rank = rng.randint(1, 4)
    layout = LAYOUTS[rank][rng.randint(len(LAYOUTS[rank]))][0]
    window = rng.randint(1, 4, rank)
    sizes = window + rng.randint(0, 4, rank)
    if seed % 3 == 0:  # rows of several vectors, and strides that have schedules of their own
        window[-1], sizes[-1] = rng.randint(1, 12), rng.randint(12, 200)
    letters = [x for x in layout if x not in "NC"]
    named = {"N": 2, "C": 2, **dict(zip(letters, sizes, strict=True))}
    x = rng.randint(0, 4, [int(named[a]) for a in layout]).astype(float)  # of many ties
    props: dict[str, Any] = {
        "window": tuple(map(int, window)),
        "stride": tuple(map(int, [*rng.randint(1, 4, rank - 1), rng.randint(1, window[-1] + 3)])),
        "padding": ["same", "valid", tuple((int(a), int(b)) for a, b in rng.randint(0, window[:, None], (rank, 2)))][
            rng.randint(3)
        ],
        "layout": layout,
        "ceil": bool(rng.randint(2)),
    }
    if props["padding"] == "same":
        props["ceil"] = False
    if seed % 4 == 0:
        x.flat[:: x.size // 3] = np.nan
    t = be.array(x)
    np.testing.assert_array_equal(be.max_pool(t, **props).asnumpyarray(), windowed.max_pool(x, **props))
    counted = bool(rng.randint(2))
    np.testing.assert_allclose(
        be.avg_pool(t, count_padding=counted, **props).asnumpyarray(), windowed.avg_pool(x, counted, **props)
    )
    delta = rng.normal(size=be.max_pool(t, **props).shape)
    wanted = windowed.max_unpool(delta, windowed.argmax_pool(x, **props), x, **props)
    got = grad(be.sum(be.max_pool(t, **props) * be.array(delta)), t).asnumpyarray()
    np.testing.assert_allclose(got, wanted, atol=1e-12)
    got = grad(be.sum(be.avg_pool(t, count_padding=counted, **props) * be.array(delta)), t).asnumpyarray()
    np.testing.assert_allclose(got, windowed.avg_unpool(delta, x, counted, **props), atol=1e-12)


@needs_compiler
@pytest.mark.parametrize("seed", range(4))
def test_long_windows_are_reduced_by_kernels(seed: int, capsys: Any) -> None:
    rng = np.random.RandomState(seed)
    be = gen_backend("cpu", datatype="float64", jit=True)
    rank = 1 + seed % 2
    window = [int(size) for size in rng.choice([1, 33, 40], rank)]
    window[0] = 35
    x = rng.randint(-2, 3, (2, 2, *(size + rng.randint(9) for size in window))).astype(float)  # of many ties
    x.flat[rng.randint(x.size)] = np.nan
    stride, padding = (tuple(map(int, rng.randint(low, 4, rank))) for low in (1, 0))
    padding = tuple(min(pad, size - 1) for pad, size in zip(padding, window, strict=True))
    props: dict[str, Any] = {"window": tuple(window), "stride": stride, "padding": padding, "ceil": bool(seed // 2)}
    t, indices = be.array(x), windowed.argmax_pool(x, **props)
    for name, operands in (("max_pool", []), ("argmax_pool", []), ("avg_pool", []), ("take_pool", [indices])):
        tree = getattr(be, name)(t, *map(be.array, operands), **props)
        wanted = getattr(windowed, name)(x, *operands, **props)
        np.testing.assert_allclose(tree.asnumpyarray(), wanted, rtol=1e-12, atol=1e-12)
        debugprint(tree, stage="fusion")
        calls = {line.split()[3].split("{")[0] for line in capsys.readouterr().out.splitlines() if line[:4] == "call"}
        assert calls <= {"windows", "window_element", "window_facts", "expand_dims"}, calls  # no reductions


def test_the_first_of_equal_maxima_gets_the_gradient() -> None:
    be = gen_backend("cpu")
    x = be.array(np.array([[[2, 2, 1, 2, 2]]], "float32"))
    assert grad(be.sum(be.max_pool(x, 3, stride=1)), x).asnumpyarray().tolist() == [[[1, 1, 0, 1, 0]]]
    nan = be.array(np.array([[[1, np.nan, np.nan]]], "float32"))
    assert np.isnan(be.max_pool(nan, 3).asnumpyarray()).all()
    assert grad(be.sum(be.max_pool(nan, 3)), nan).asnumpyarray().tolist() == [[[0, 1, 0]]]


def test_an_lp_pool_of_zeros_has_a_gradient_of_zeros() -> None:
    be = gen_backend("cpu")
    x = be.zeros((1, 1, 4))
    for p in (1.5, 2.0, 3.0):
        assert not grad(be.sum(be.lp_pool(x, 2, p)), x).asnumpyarray().any()


def test_sizes_may_be_open() -> None:
    be = gen_backend("cpu", datatype="float64")
    rng = np.random.RandomState(0)
    x = TensorType("float64", (None, 2, None, None))("x")
    w = be.array(rng.normal(size=(4, 2, 3, 3)), name="w")
    y = be.max_pool(be.conv(x, w, padding="same", stride=2), 2)
    run = function([x], [y, grad(be.sum(be.square(y)), w)])
    for shape in ((1, 2, 8, 9), (3, 2, 7, 16)):
        value = rng.normal(size=shape)
        wanted = windowed.max_pool(windowed.conv(value, w.get(), padding="same", stride=2), window=2)
        got, slope = run(value)
        np.testing.assert_allclose(got.get(), wanted, rtol=1e-9, atol=1e-9)
        assert slope.shape == w.shape
    with pytest.raises(ShapeError, match="window of 2"):
        run(rng.normal(size=(1, 2, 2, 2)))


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "channels": (
        lambda x, w: f.conv(x, w),
        ShapeError,
        r"conv: x \(2, 4, 8, 8\).* w \(6, 2, 3, 3\).*4 channels.*groups=2",
    ),
    "groups": (lambda x, w: f.conv(x, w, groups=4), ShapeError, r"6 outputs .* multiple of 4"),
    "stride": (lambda x, w: f.conv(x, w, groups=2, stride=0), OperandError, "conv: stride .* 1 or more.* not 0"),
    "dilation": (lambda x, w: f.conv(x, w, groups=2, dilation=(1, 2, 3)), OperandError, "conv: dilation .* 2 of them"),
    "window": (lambda x, w: f.conv(x, w, groups=2, dilation=9), ShapeError, "a window of 3 that spans 19.*axis of 8"),
    "padding": (
        lambda x, w: f.conv(x, w, groups=2, padding="sane"),
        OperandError,
        "'same', 'valid' or numbers.*'sane'",
    ),
    "negative": (lambda x, w: f.conv(x, w, groups=2, padding=-1), OperandError, "0 or more"),
    "layout": (lambda x, w: f.conv(x, w, layout="NHCC"), OperandError, "conv: layout .*'NHCC'"),
    "weights": (lambda x, w: f.conv(x, w, weights_layout="OIAB"), OperandError, "weights_layout 'OIAB'"),
    "rank": (lambda x, w: f.conv(x, f.reshape(w, (6, -1))), ShapeError, "conv: .*dimensions"),
    "delta": (lambda x, w: f.conv_input(x, w, x, groups=2), ShapeError, r"the shape \(2, 6, 6, 6\), and the delta"),
    "output_padding": (lambda x, w: f.conv_transpose(x, w, output_padding=1), OperandError, "not below the stride"),
    "pool": (lambda x, w: f.max_pool(x, 9), ShapeError, r"max_pool: x \(2, 4, 8, 8\).*a window of 9.*axis of 8"),
    "empty window": (lambda x, w: f.max_pool(x, 2, padding=2), OperandError, "padding of 2 leaves a window of 2"),
    "pool stride": (lambda x, w: f.avg_pool(x, 2, 0), OperandError, "avg_pool: stride"),
    "both": (lambda x, w: f.avg_pool(x, 2, axes=0, layout="NCHW"), OperandError, "not both"),
    "p": (lambda x, w: f.lp_pool(x, 2, 0), OperandError, "p is a number above 0"),
    "norms' window": (
        lambda x, w: f.lp_pool(x, 9),
        ShapeError,
        r"^lp_pool: x \(2, 4, 8, 8\).*a window of 9.*axis of 8",
    ),
    "the window of columns": (lambda x, w: f.unfold(x, stride=2), OperandError, "^unfold: window is missing"),
    "the size of images": (lambda x, w: f.fold(x, window=2), OperandError, "^fold: size is missing"),
    "its window": (lambda x, w: f.max_pool(x, stride=2), OperandError, "^max_pool: window is missing"),
    "norms' stride": (lambda x, w: f.lp_pool(x, 2, stride=0), OperandError, "^lp_pool: stride"),
    "no window": (lambda x, w: f.conv(x, f.slice(w, (..., slice(0))), groups=2), ShapeError, "^conv: .*a window of 0"),
    "no window transposed": (
        lambda x, w: f.conv_transpose(x, f.slice(w, (slice(4), ..., slice(0)))),
        ShapeError,
        "^conv_transpose: .*a window of 0",
    ),
    "same and more": (
        lambda x, w: f.conv_transpose(x, f.slice(w, slice(4)), 2, "same", output_padding=1),
        OperandError,
        "output_padding .*'same' fixes",
    ),
    "one number": (
        lambda x, w: f.conv(x, w, groups=0),
        OperandError,
        "^conv: groups is an integer of 1 or more, not 0",
    ),
    "lrn": (lambda x, w: f.lrn(x, alpha="x"), OperandError, "^lrn: alpha: .*not str"),
    "indices": (lambda x, w: f.take_pool(x, f.argmax_pool(x, 4), 2), ShapeError, r"\(2, 4, 4, 4\), and an operand"),
    "boxes": (
        lambda x, w: f.roi_pool(x, f.reshape(w, (27, 4)), 2),
        ShapeError,
        r"^roi_pool: x .*\(count, 5\).*image, x0.*\(27, 4\)",
    ),
    "bins": (lambda x, w: f.roi_pool(x, np.ones((1, 5)), 0), OperandError, "^roi_pool: size .* not 0"),
    "threshold": (lambda x, w: f.nms(np.ones((1, 5)), float("nan")), OperandError, "^nms: threshold .* not nan"),
    "nms": (lambda x, w: f.nms(f.reshape(w, (27, 4))), ShapeError, r"\(count, 5\).*score"),
    "size": (lambda x, w: f.resize(x), OperandError, "a size or a scale"),
    "method": (lambda x, w: f.resize(x, 2, method="cubic"), OperandError, "'nearest' or 'bilinear'"),
    "fold": (lambda x, w: f.fold(f.reshape(w, (1, 9, 12)), (4, 4), 2), ShapeError, "9 rows are no multiple of the 4"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str) -> None:
    be = gen_backend("cpu")
    x, w = be.ones((2, 4, 8, 8), name="x"), be.ones((6, 2, 3, 3), name="w")
    build, error, match = BAD[case]
    with pytest.raises(error, match=match):
        build(x, w)


@pytest.mark.parametrize(
    "box, match",
    [
        ([2, 0, 0, 1, 1], "of image 2, and there are 2"),
        ([0.5, 0, 0, 1, 1], "of image 0.5, and there are 2"),
        ([1, 0, np.nan, 1, 1], r"\[1.0, 0.0, nan, 1.0, 1.0\], which is not finite"),
        ([1, 0, 0, np.inf, 1], r"\[1.0, 0.0, 0.0, inf, 1.0\], which is not finite"),
    ],
)
@pytest.mark.parametrize("name", ["roi_pool", "roi_align"])
def test_a_box_of_no_image_is_named_when_it_runs(name: str, box: Any, match: str) -> None:
    be = gen_backend("cpu")
    x, out = be.ones((2, 1, 4, 4)), be.zeros((2, 1, 2, 2))
    with pytest.raises(OperandError, match=f"^{name}: box 1 is {match}"):
        out[:] = getattr(be, name)(x, be.array([[0, 0, 0, 1, 1], box]), 2)
    assert not out.get().any()


@pytest.mark.parametrize("few", [0, 1 << 16])
@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float16", "float32", "float64"])
def test_a_vector_is_convolved_with_another_as_numpy_does(dtype: str, few: int, monkeypatch: Any) -> None:
    """By sums of products, and by NumPy's function, on strided views."""
    monkeypatch.setattr("optree.networks.convolution.FEW_POSITIONS", few)
    be, rng = gen_backend("cpu", jit=False), np.random.default_rng(0)
    for size, window in ((1, 1), (9, 4), (4, 9), (7, 7)):
        a, v = (rng.integers(0, 4, 2 * n).astype(dtype) for n in (size, window))
        x, weights = be.array(a, dtype)[::2], be.array(v, dtype)[::-2]
        for mode in ("full", "same", "valid"):
            for by in (np.convolve, np.correlate):
                found, wanted = by(x, weights, mode).asnumpyarray(), by(a[::2], v[::-2], mode)
                assert found.dtype == wanted.dtype
                np.testing.assert_array_equal(found, wanted, f"{by.__name__} {size} {window} {mode}")


def test_trees_of_one_form_with_other_windows_have_plans_of_their_own() -> None:
    """A depthwise convolution is lowered by the sizes of its filters, and a derivative of resize by its taps."""
    be, rng = gen_backend("cpu", jit="always", datatype=np.float64), np.random.default_rng(0)
    for window in ((2, 2), (3, 3), (3, 2), (2, 2)):
        x, w = rng.normal(size=(2, 3, 6, 7)), rng.normal(size=(3, 1, *window))
        images, weights = be.array(x), be.array(w)
        views = np.lib.stride_tricks.sliding_window_view(x, window, (2, 3))
        wanted = np.einsum("nchwij,cij->nchw", views, w[:, 0])
        written = OpTreeNode({"op": "conv", "groups": 3}, images, weights)  # by hand
        for tree in (be.conv(images, weights, groups=3), written, be.conv(images, weights, groups=3) * 1.0):
            np.testing.assert_allclose(tree.asnumpyarray(), wanted, rtol=1e-12)
        along = rng.normal(size=x.shape)
        slope = grad(be.sum(be.conv(images, weights, groups=3) ** 2), images)
        change = np.einsum("nchwij,cij->nchw", np.lib.stride_tricks.sliding_window_view(along, window, (2, 3)), w[:, 0])
        np.testing.assert_allclose((slope.asnumpyarray() * along).sum(), (2 * wanted * change).sum(), rtol=1e-10)
    for size in (5, 2, 7, 4):
        x, delta = be.array(rng.normal(size=(1, 2, size))), rng.normal(size=(1, 2, 3))
        slope = grad(be.sum(be.resize(x, 3, method="nearest") * be.array(delta)), x)
        np.testing.assert_allclose(slope.asnumpyarray().sum(axis=2), delta.sum(axis=2), rtol=1e-12)
