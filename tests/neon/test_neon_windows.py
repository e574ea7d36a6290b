"""neon's convolutions, pools, normalisation across maps, regions and boxes, against loops from its formulas."""

from __future__ import annotations

from itertools import product
from math import ceil, floor
from typing import Any

import numpy as np
import pytest

RNG = np.random.default_rng(0)


def near(found: Any, expected: Any, rtol: float = 2e-4) -> None:
    expected = np.reshape(expected, found.shape)
    np.testing.assert_allclose(np.asarray(found.get(), np.float64), expected, rtol=rtol, atol=1e-5)


#: The keywords of `conv_layer`, without the batch.
CONVOLUTIONS = {
    "plain": {"C": 3, "K": 4, "H": 5, "W": 6, "R": 3, "S": 2},
    "padded": {"C": 2, "K": 3, "H": 4, "W": 4, "R": 3, "S": 3, "pad_h": 1, "pad_w": 2},
    "strided": {"C": 2, "K": 3, "H": 7, "W": 6, "R": 3, "S": 2, "str_h": 2, "str_w": 3, "pad_h": 1},
    "dilated": {"C": 2, "K": 2, "H": 7, "W": 6, "R": 2, "S": 3, "dil_h": 3, "dil_w": 2, "pad_w": 1},
    "of one": {"C": 5, "K": 3, "H": 3, "W": 2},
    "of three": {"C": 2, "K": 3, "D": 4, "H": 3, "W": 3, "T": 2, "R": 2, "S": 2, "pad_d": 1, "str_d": 2, "dil_h": 2},
}


def elements(layer: Any) -> Any:
    """Each (window, element of it, cell of the image) of a convolution."""
    for window in product(*map(range, layer.MPQ)):
        for element in product(*map(range, layer.TRS)):
            cell = tuple(
                m * s - p + t * d
                for m, s, p, t, d in zip(window, layer.strides, layer.padding, element, layer.dilation, strict=True)
            )
            if all(0 <= x < size for x, size in zip(cell, layer.DHW, strict=True)):
                yield (slice(None), *window), (slice(None), *element), (slice(None), *cell)


def convolved(layer: Any, images: Any, filters: Any) -> Any:
    out = np.zeros(layer.dimO)
    for window, element, cell in elements(layer):
        out[window] += filters[element].T @ images[cell]
    return out


def spread(layer: Any, filters: Any, errors: Any) -> Any:
    out = np.zeros(layer.dimI)
    for window, element, cell in elements(layer):
        out[cell] += filters[element] @ errors[window]
    return out


def updated(layer: Any, images: Any, errors: Any) -> Any:
    out = np.zeros(layer.dimF)
    for window, element, cell in elements(layer):
        out[element] += images[cell] @ errors[window].T
    return out


def operands(layer: Any) -> Any:
    return RNG.normal(size=layer.dimI), RNG.normal(size=layer.dimF), RNG.normal(size=layer.dimO)


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(ne: Any, case: str) -> None:
    layer = ne.conv_layer(np.float32, N=2, **CONVOLUTIONS[case])
    images, filters, errors = operands(layer)
    I, F = ne.array(images.reshape(layer.dimI2)), ne.array(filters.reshape(layer.dimF2))
    O, E = ne.empty(layer.dimO2), ne.array(errors.reshape(layer.dimO2))
    grad_I, U = ne.empty(layer.dimI2), ne.empty(layer.dimF2)
    for _ in range(2):
        ne.fprop_conv(layer, I, F, O)
        ne.bprop_conv(layer, F, E, grad_I)
        ne.update_conv(layer, I, E, U)
        near(O, convolved(layer, images, filters))
        near(grad_I, spread(layer, filters, errors))
        near(U, updated(layer, images, errors))


def test_attributes_of_a_convolution(ne: Any) -> None:
    layer = ne.conv_layer(np.float16, 2, 3, 4, 5, 6, 7, 2, 3, 2, 1, 0, 1, 2, 1, 3, 1, 2, 1)
    assert (layer.M, layer.P, layer.Q) == layer.MPQ == (3, 2, 3) and layer.NCK == (2, 3, 4)
    assert layer.TRS == (2, 3, 2) and layer.DHW == (5, 6, 7)
    assert (layer.padding, layer.strides, layer.dilation) == ((1, 0, 1), (2, 1, 3), (1, 2, 1))
    assert layer.dimI == (3, 5, 6, 7, 2) and layer.dimF == (3, 2, 3, 2, 4) and layer.dimO == (4, 3, 2, 3, 2)
    assert (layer.dimI2, layer.dimF2, layer.dimO2, layer.dimS) == ((630, 2), (36, 4), (72, 2), (4, 1))
    assert (layer.sizeI, layer.sizeF, layer.sizeO, layer.nOut) == (1260, 144, 144, 72)
    assert (layer.C, layer.K, layer.N, layer.dtype) == (3, 4, 2, np.float16)
    assert not layer.get_is_mklop()
    layer.set_is_mklop()
    assert layer.is_mklop and layer.get_is_mklop() and layer.set_not_mklop() is None and not layer.is_mklop


@pytest.mark.parametrize("of", ["fprop", "bprop"])
@pytest.mark.parametrize(
    "options",
    [
        {"beta": 1.0},
        {"alpha": 0.5, "beta": 0.25},
        {"bias": True},
        {"bsum": True},
        {"relu": True, "bias": True},
        {"relu": True, "slope": 0.1, "alpha": 2},
        {"brelu": True, "X": True},
        {"brelu": True, "X": True, "slope": 0.5, "bsum": True},
        {"alpha": 3, "beta": 2, "X": True, "bias": True, "relu": True, "bsum": True},
    ],
    ids=str,
)
def test_what_follows_a_convolution(ne: Any, of: str, options: Any) -> None:
    layer = ne.conv_layer(np.float32, N=2, **CONVOLUTIONS["padded"])
    images, filters, errors = operands(layer)
    shape = layer.dimO if of == "fprop" else layer.dimI
    old, other, bias = RNG.normal(size=shape), RNG.normal(size=shape), RNG.normal(size=(shape[0], 1, 1, 1, 1))
    alpha, beta, slope = options.get("alpha", 1), options.get("beta", 0), options.get("slope", 0)
    value = alpha * (convolved(layer, images, filters) if of == "fprop" else spread(layer, filters, errors))
    value = value + bias * ("bias" in options)
    beside = other if "X" in options else old
    if "relu" in options:
        value = np.maximum(value, 0) + slope * np.minimum(value, 0)
    if "brelu" in options:
        value = value * ((beside > 0) + slope * (beside < 0))
    value = value + beta * beside
    flat = (-1, 2)
    out, sums = ne.array(old.reshape(flat)), ne.empty((shape[0], 1))
    given = {
        "bias": ne.array(bias.reshape(-1, 1)) if "bias" in options else None,
        "bsum": sums if "bsum" in options else None,
        "X": ne.array(other.reshape(flat)) if "X" in options else None,
    }
    call = {**{k: v for k, v in options.items() if k not in given}, **given}
    I, F, E = ne.array(images.reshape(flat)), ne.array(filters.reshape(layer.dimF2)), ne.array(errors.reshape(flat))
    if of == "fprop":
        ne.fprop_conv(layer, I, F, out, **call)
    else:
        ne.bprop_conv(layer, F, E, out, **call)
    near(out, value)
    if "bsum" in options:
        near(sums, value.reshape(shape[0], -1).sum(1))


def test_updates_of_filters(ne: Any) -> None:
    layer = ne.conv_layer(np.float32, N=2, **CONVOLUTIONS["strided"])
    images, _, errors = operands(layer)
    old = RNG.normal(size=layer.dimF)
    I, E, U = ne.array(images), ne.array(errors), ne.array(old.reshape(layer.dimF2))
    bias = ne.ones((layer.K, 1))
    ne.update_conv(layer, I, E, U, alpha=0.5, beta=2, grad_bias=bias)
    near(U, 0.5 * updated(layer, images, errors) + 2 * old)
    near(bias, errors.reshape(layer.K, -1).sum(1))
    assert np.array_equal(E.get(), errors.astype(np.float32))


@pytest.mark.parametrize("wrong", ["I", "F", "O"])
def test_convolutions_refuse_other_sizes(ne: Any, wrong: str) -> None:
    layer = ne.conv_layer(np.float32, N=2, **CONVOLUTIONS["plain"])
    sizes = {"I": layer.dimI2, "F": layer.dimF2, "O": layer.dimO2}
    sizes[wrong] = (sizes[wrong][0] + 1, sizes[wrong][1])
    with pytest.raises(AssertionError, match=wrong):
        ne.fprop_conv(layer, *(ne.zeros(sizes[name]) for name in "IFO"))


@pytest.mark.parametrize("options", [{}, {"pad_h": 1, "str_h": 2, "dil_w": 2}, {"str_w": 3, "pad_w": 1}])
def test_transposed_convolutions(ne: Any, options: Any) -> None:
    layer = ne.deconv_layer(np.float32, N=2, C=3, K=2, M=1, P=3, Q=2, R=3, S=2, **options)
    given = {"pad_h": 0, "str_h": 1, "dil_w": 1, "str_w": 1, "pad_w": 0, **options}
    height = 2 * given["str_h"] - 2 * given["pad_h"] + 3
    width = given["str_w"] - 2 * given["pad_w"] + given["dil_w"] + 1
    sizes = layer.H, layer.W
    assert sizes == (height, width)
    assert layer.dimI == (3, 1, height, width, 2) and layer.dimO == (2, 1, 3, 2, 2)
    assert layer.nOut == 3 * layer.H * layer.W
    _, filters, inputs = operands(layer)
    errors = RNG.normal(size=layer.dimI)
    W, outputs, deltas = ne.array(filters.reshape(layer.dimF2)), ne.empty(layer.dimI2), ne.empty(layer.dimO2)
    ne.bprop_conv(layer, W, ne.array(inputs), outputs)
    ne.fprop_conv(layer, ne.array(errors), W, deltas, alpha=0.5, beta=0.0)
    dW = ne.empty(layer.dimF2)
    ne.update_conv(layer, ne.array(errors), ne.array(inputs), dW)
    near(outputs, spread(layer, filters, inputs))
    near(deltas, 0.5 * convolved(layer, errors, filters))
    near(dW, updated(layer, errors, inputs))


@pytest.mark.parametrize(
    ("arguments", "size", "caffe"),
    [
        ((6, 3, 0, 2), 2, 3),
        ((4, 3, 1, 2), 2, 3),
        ((2, 5, 0, 1), -2, -2),
        ((2, 5, 0, 2), -1, 0),
        ((7, 2, 1, 3), 3, 3),
        ((8, 2, 0, 2), 4, 4),
    ],
)
def test_output_sizes(ne: Any, arguments: Any, size: int, caffe: int) -> None:
    assert ne.output_dim(*arguments) == ne.output_dim(*arguments, pooling=True) == size
    ne.set_caffe_compat()
    assert ne.output_dim(*arguments) == size and ne.output_dim(*arguments, pooling=True) == caffe
    assert ne.output_dim(7, 2, 0, 1, dilation=3) == 4
    with pytest.raises(ValueError):
        ne.output_dim(6, 2, 2, 1, pooling=True)


# Pools

POOLS = {
    "plain": {"H": 4, "W": 6, "R": 2, "S": 3},
    "overlapping": {"H": 5, "W": 5, "R": 3, "S": 3, "str_h": 1, "str_w": 2},
    "padded": {"H": 5, "W": 4, "R": 3, "S": 2, "str_h": 2, "str_w": 2, "pad_h": 1, "pad_w": 1},
    "over maps": {"C": 5, "J": 3, "str_c": 2, "pad_c": 1, "H": 2, "W": 2},
    "of all": {"D": 3, "H": 3, "W": 3, "T": 2, "R": 2, "S": 2, "J": 2, "str_d": 1, "str_c": 1, "str_h": 1, "str_w": 1},
    "of one": {"H": 2, "W": 3},
}


def pooled(layer: Any) -> Any:
    """Each window, the slices of the image that it is clipped to, and the first cell of the whole window."""
    for window in product(*map(range, layer.dimO[:4])):
        starts = [k * s - p for k, s, p in zip(window, layer.strides, layer.padding, strict=True)]
        parts = [
            range(max(a, 0), min(a + w, size)) for a, w, size in zip(starts, layer.JTRS, layer.dimI[:4], strict=True)
        ]
        yield window, list(product(*parts))


def forward(layer: Any, images: Any) -> Any:
    out, best = np.zeros(layer.dimO), {}
    for window, cells in pooled(layer):
        values = np.array([images[cell] for cell in cells])
        best[window] = [cells[i] for i in values.argmax(0)]
        if layer.op == "l2":
            out[window] = np.sqrt((values**2).sum(0))
        else:
            out[window] = values.max(0) if layer.op == "max" else values.mean(0)
    return out, best


@pytest.mark.parametrize("case", POOLS)
@pytest.mark.parametrize("op", ["max", "avg", "l2"])
def test_pools(ne: Any, op: str, case: str) -> None:
    layer = ne.pool_layer(np.float32, op, N=2, **{"C": 2, **POOLS[case]})
    images = RNG.integers(-3, 4, layer.dimI).astype(float)
    old = RNG.normal(size=layer.dimO)
    argmax = ne.empty(layer.dimO2, np.uint8) if op == "max" else None
    I, O = ne.array(images.reshape(layer.dimI2)), ne.array(old.reshape(layer.dimO2))
    expected, best = forward(layer, images)
    ne.fprop_pool(layer, I, O, argmax)
    near(O, expected)
    ne.fprop_pool(layer, I, O, argmax, beta=0.5)
    near(O, 1.5 * expected)
    errors, deltas = RNG.normal(size=layer.dimO), RNG.normal(size=layer.dimI)
    E, delta = ne.array(errors.reshape(layer.dimO2)), ne.array(deltas.reshape(layer.dimI2))
    if op == "l2":
        with pytest.raises(NotImplementedError):
            ne.bprop_pool(layer, E, delta)
        return
    wanted = 0.25 * deltas
    for window, cells in pooled(layer):
        for n in range(2):
            for cell in [best[window][n]] if op == "max" else cells:
                wanted[cell][n] += 2 * errors[window][n] / (1 if op == "max" else len(cells))
    ne.bprop_pool(layer, E, delta, argmax, alpha=2.0, beta=0.25)
    near(delta, wanted)
    assert np.array_equal(E.get(), errors.reshape(layer.dimO2).astype(np.float32)), "neon's CPU scales it"


def test_attributes_of_a_pool(ne: Any) -> None:
    layer = ne.pool_layer(np.float32, "max", 2, 4, 1, 6, 5, 2, 1, 3, 2, str_w=1)
    assert layer.op == "max" and layer.strides == (2, 1, 3, 1) and layer.JTRS == (2, 1, 3, 2)
    assert (layer.K, layer.M, layer.P, layer.Q) == (2, 1, 2, 4) and layer.MPQ == (1, 2, 4) and layer.DHW == (1, 6, 5)
    assert layer.padding == (0, 0, 0, 0) and layer.dimI == (4, 1, 6, 5, 2) and layer.dimO == (2, 1, 2, 4, 2)
    assert (layer.dimI2, layer.dimO2, layer.dimF2) == ((120, 2), (16, 2), None) and layer.overlap
    assert (layer.sizeI, layer.sizeO, layer.nOut, layer.N, layer.C) == (240, 32, 16, 2, 4)
    assert not ne.pool_layer(np.float32, "avg", 2, 4, 1, 6, 5, R=2).overlap


def test_pools_of_caffes_sizes(ne: Any) -> None:
    ne.set_caffe_compat()
    layer = ne.pool_layer(np.float32, "avg", N=2, C=1, H=6, W=6, R=3, S=3, str_h=2, str_w=2)
    assert layer.MPQ == (1, 3, 3)
    images = RNG.normal(size=layer.dimI)
    O = ne.empty(layer.dimO2)
    ne.fprop_pool(layer, ne.array(images), O)
    near(O, forward(layer, images)[0])


def test_indices_that_do_not_fit_are_refused(ne: Any) -> None:
    layer = ne.pool_layer(np.float32, "max", N=1, C=1, H=17, W=17, R=17, S=17)
    images = RNG.normal(size=layer.dimI)
    with pytest.raises(ValueError, match="uint8"):
        ne.fprop_pool(layer, ne.array(images), ne.empty(layer.dimO2), ne.empty(layer.dimO2, np.uint8))
    argmax, O = ne.empty(layer.dimO2, np.int32), ne.empty(layer.dimO2)
    ne.fprop_pool(layer, ne.array(images), O, argmax)
    assert argmax.get().item() == images.argmax() and O.get().item() == np.float32(images.max())
    for wrong in (None, ne.empty((2, 2), np.int32)):
        with pytest.raises(AssertionError, match="argmax"):
            ne.fprop_pool(layer, ne.array(images), O, wrong)
    with pytest.raises(AssertionError):
        ne.fprop_pool(layer, ne.empty((3, 3)), O, argmax)


# Normalisation across maps


@pytest.mark.parametrize(("J", "power"), [(1, 1), (3, 1), (5, 0.75)])
@pytest.mark.parametrize("blend", [(None, None), (1.0, 0.0), (2.0, 0.5)])
def test_normalisation_across_maps(ne: Any, J: int, power: Any, blend: Any) -> None:
    layer = ne.lrn_layer(np.float32, 2, 4, H=2, W=3, J=J)
    assert layer.op == "lrn" and layer.dimI == layer.dimO and layer.JTRS == (J, 1, 1, 1)
    alpha, beta = blend[0] or 1, blend[1] or 0
    x, errors, old = (RNG.normal(size=layer.dimI) for _ in range(3))
    ascale = 0.3

    def around(values: Any) -> Any:
        rows = [values[max(c - J // 2, 0) : c + J // 2 + 1].sum(0) for c in range(4)]
        return np.array(rows)

    denom = 1 + ascale / J * around(x**2)
    y = x * denom**-power
    O, D, delta = ne.array(old.reshape(layer.dimO2)), ne.empty(layer.dimI2), ne.array(old.reshape(layer.dimI2))
    ne.fprop_lrn(layer, ne.array(x), O, D, *blend, ascale, power)
    near(D, denom)
    near(O, alpha * y + beta * old)
    expected = errors * denom**-power - 2 * power * ascale / J * x * around(y * errors / denom)
    ne.bprop_lrn(layer, ne.array(x), ne.array(y), ne.array(errors), delta, D, *blend, ascale, power)
    near(delta, alpha * expected + beta * old)


def test_normalisation_refuses_even_windows(ne: Any) -> None:
    with pytest.raises(AssertionError):
        ne.lrn_layer(np.float32, 2, 4, J=2)
    with pytest.raises(AssertionError):
        ne.fprop_lrn(ne.lrn_layer(np.float32, 2, 4, J=3), *(ne.ones((3, 2)) for _ in range(3)))


# Regions and boxes


def test_regions(ne: Any) -> None:
    C, H, W, ph, pw, scale = 2, 5, 6, 2, 3, 0.5
    ne.bsz = 2
    images = RNG.normal(size=(C, H, W, 2))
    rois = np.array([[0, 0, 0, 8, 7], [1, 2, 3, 6, 9], [1, 3, 1, 30, 20], [0, 20, 18, 24, 22], [0, 4, 4, 4, 4]])
    count = len(rois)
    expected, where = np.zeros((C, ph, pw, count)), np.full((C, ph, pw, count), -1)
    errors = RNG.normal(size=expected.shape)
    deltas = np.zeros_like(images)
    for r, (image, *box) in enumerate(rois):
        x0, y0, x1, y1 = (int(np.rint(v * scale)) for v in box)
        w, h = max(x1 - x0 + 1, 1), max(y1 - y0 + 1, 1)
        for c, i, j in product(range(C), range(ph), range(pw)):
            rows = range(*np.clip([y0 + floor(i * h / ph), y0 + ceil((i + 1) * h / ph)], 0, H))
            columns = range(*np.clip([x0 + floor(j * w / pw), x0 + ceil((j + 1) * w / pw)], 0, W))
            cells = [(images[c, a, b, image], (a, b)) for a, b in product(rows, columns)]
            if cells:
                value, (a, b) = max(cells, key=lambda found: found[0])
                expected[c, i, j, r], where[c, i, j, r] = value, a * W + b
                deltas[c, a, b, image] += errors[c, i, j, r]
    boxes = ne.array(rois.T).T
    O, argmax = ne.ones((C * ph * pw, count)), ne.ones((C * ph * pw, count), np.int32)
    call = (count, C, H, W, ph, pw, scale)
    ne.roipooling_fprop(ne.array(images), boxes, O, argmax, *call)
    near(O, expected)
    assert ((argmax.get() < 0) == (where.reshape(argmax.shape) < 0)).all()
    delta = ne.ones((C * H * W, 2))
    ne.roipooling_bprop(ne.array(errors), boxes, delta, argmax, *call)
    near(delta, deltas)
    with pytest.raises(AssertionError):
        ne.roipooling_fprop(ne.array(images), boxes, O, argmax, count + 1, *call[1:])


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("threshold", [0.3, 0.7])
def test_boxes_that_remain(ne: Any, threshold: float, normalized: bool) -> None:
    corners = RNG.integers(0, 40, (60, 2))
    boxes = np.hstack([corners, corners + RNG.integers(1, 30, (60, 2)), -np.sort(-RNG.random((60, 1)), axis=0)])
    boxes[50:, 4] = 0
    boxes = boxes.astype(np.float32).astype(float)
    o = 0 if normalized else 1
    rest, kept = list(range(50)), []
    while rest:
        best, *rest = rest
        kept.append(best)

        def covers(i: int, best: int = best) -> bool:
            a, b = boxes[best], boxes[i]
            w, h = min(a[2], b[2]) - max(a[0], b[0]) + o, min(a[3], b[3]) - max(a[1], b[1]) + o
            both = max(w, 0) * max(h, 0)
            areas = sum((x[2] - x[0] + o) * (x[3] - x[1] + o) for x in (a, b))
            return bool(both / (areas - both) > threshold)

        rest = [i for i in rest if not covers(i)]
    assert ne.nms(ne.array(boxes), threshold, normalized) == kept
    assert ne.nms(ne.array(boxes[50:]), threshold) == []
