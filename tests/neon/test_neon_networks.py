"""neon's batch normalisation, word vectors, recurrent steps, hooks, histograms and times, against its formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

RNG = np.random.default_rng(0)


def near(found: Any, expected: Any, rtol: float = 2e-4) -> None:
    np.testing.assert_allclose(
        np.asarray(found.get(), np.float64), np.reshape(expected, found.shape), rtol=rtol, atol=2e-5
    )


def power_of_two(x: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.where(x == 0, 0, np.sign(x) * 2.0 ** np.rint(np.log2(np.abs(x))))


def shifted(x: Any, by: Any) -> Any:
    return x * power_of_two(by)


# Batch normalisation


class Statistics:
    """Buffers and values of one batch."""

    def __init__(self, be: Any, dtype: Any = np.float32) -> None:
        self.x = RNG.normal(1, 2, size=(3, 8)).astype(dtype).astype(float)
        self.old = RNG.normal(size=(3, 8)).astype(dtype).astype(float)
        self.gamma, self.beta, self.gmean = (RNG.normal(size=(3, 1)) for _ in range(3))
        self.gvar = RNG.random((3, 1)) + 0.5
        self.columns = [be.array(v) for v in (self.gmean, self.gvar, self.gamma, self.beta)]
        self.xsum, self.xvar = be.zeros((3, 1)), be.zeros((3, 1))
        self.X, self.Y = be.array(self.x, dtype), be.array(self.old.reshape(6, 4), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("computed", "accumulated", "relu"), [(True, 0.0, False), (False, 0.5, True), (True, 1, False)]
)
def test_batch_normalisation(ne: Any, computed: bool, accumulated: Any, relu: bool, binary: bool, dtype: Any) -> None:
    s, eps, rho = Statistics(ne, dtype), 1e-3, 0.9
    if not computed:
        s.xsum[:] = ne.sum(s.X, axis=1)
    gmean, gvar, gamma, beta = s.columns
    ne.compound_fprop_bn(
        s.X, s.xsum, s.xvar, gmean, gvar, gamma, beta, s.Y, eps, rho, computed, accumulated, relu, binary=binary
    )
    centred = s.x - s.x.mean(1, keepdims=True)
    product = shifted if binary else np.multiply
    variance = product(centred, centred).mean(1, keepdims=True)
    value = product(product(centred, 1 / np.sqrt(variance + eps)), s.gamma) + s.beta
    rtol = 2e-4 if dtype == np.float32 else 2e-2
    near(s.xvar, variance, rtol)
    near(gmean, rho * s.gmean + (1 - rho) * s.x.mean(1, keepdims=True), rtol)
    near(gvar, rho * s.gvar + (1 - rho) * variance, rtol)
    found = s.Y.get().reshape(3, 8).astype(float)
    expected = (np.maximum(value, 0) if relu else value) + accumulated * s.old
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-2 if dtype == np.float16 else 2e-5)
    assert np.array_equal(s.X.get(), s.x.astype(dtype))


def test_batch_normalisation_of_inference(ne: Any) -> None:
    s = Statistics(ne)
    gmean, gvar, gamma, beta = s.columns
    args = (s.X, s.xsum, s.xvar, gmean, gvar, gamma, beta, s.Y, 1e-3, 0.9, True)
    ne.compound_fprop_bn(*args, accumbeta=0.5, inference=True, outputs=None, layer=None)
    near(s.Y, (s.x - s.gmean) / np.sqrt(s.gvar + 1e-3) * s.gamma + s.beta + 0.5 * s.old)
    assert not s.xsum.get().any() and not s.xvar.get().any()
    near(gmean, s.gmean)


@pytest.mark.parametrize("binary", [False, True])
def test_derivatives_of_batch_normalisation(ne: Any, binary: bool) -> None:
    s, eps = Statistics(ne), 1e-3
    gmean, gvar, gamma, beta = s.columns
    ne.compound_fprop_bn(s.X, s.xsum, s.xvar, gmean, gvar, gamma, beta, s.Y, eps, 0.9, True, binary=binary)
    errors = RNG.normal(size=(3, 8))
    out, grad_gamma, grad_beta = ne.ones((3, 8)), ne.ones((3, 1)), ne.ones((3, 1))
    ne.compound_bprop_bn(
        out, grad_gamma, grad_beta, ne.array(errors), s.X, s.xsum, s.xvar, gamma, eps, binary=binary, layer=None
    )
    product = shifted if binary else np.multiply
    centred = s.x - s.x.mean(1, keepdims=True)
    inverse = 1 / np.sqrt(product(centred, centred).mean(1, keepdims=True) + eps)
    value = product(centred, inverse)
    g, b = (value * errors).sum(1, keepdims=True), errors.sum(1, keepdims=True)
    near(grad_gamma, g)
    near(grad_beta, b)
    near(out, product(product(errors - (product(value, g) + b) / 8, s.gamma), inverse))


@pytest.mark.parametrize("where", ["apart", "same", "view", "reversed"])
def test_batch_normalisation_is_one_plan_and_may_be_in_place(ne: Any, where: str) -> None:
    """Into the tensor it reads, or into other views of its memory, forwards and backwards."""
    s, eps = Statistics(ne), 1e-3
    gmean, gvar, gamma, beta = s.columns
    wide = ne.array(RNG.normal(size=(3, 8)))

    def to(x: Any) -> Any:
        if where == "apart":
            return ne.empty((3, 8))
        return {"same": x, "view": x.reshape((6, 4)), "reversed": x[:, ::-1]}[where]

    shown = s.X.get().astype(float)
    x = ne.array(shown)
    y = to(x)
    before = ne.stats()["executions"]
    ne.compound_fprop_bn(x, s.xsum, s.xvar, gmean, gvar, gamma, beta, y, eps, 0.9, True)
    assert ne.stats()["executions"] == before + 1
    centred = shown - shown.mean(1, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + eps)
    np.testing.assert_allclose(y.get().reshape(3, 8), centred * inverse * s.gamma + s.beta, rtol=2e-4, atol=2e-5)
    near(gmean, 0.9 * s.gmean + 0.1 * shown.mean(1, keepdims=True), 2e-4)
    errors, grads = wide.get(), [ne.empty((3, 1)), ne.empty((3, 1))]
    out = to(wide)
    ne.compound_bprop_bn(out, *grads, wide, s.X, s.xsum, s.xvar, gamma, eps)
    value = centred * inverse
    g, b = (value * errors).sum(1, keepdims=True), errors.sum(1, keepdims=True)
    expected = (errors - (value * g + b) / 8) * s.gamma * inverse
    np.testing.assert_allclose(out.get().reshape(3, 8), expected, rtol=2e-4, atol=2e-5)
    near(grads[0], g, 2e-4)


# Word vectors


@pytest.mark.parametrize("pad", [None, 2])
def test_word_vectors(ne: Any, pad: Any) -> None:
    ids, dim = np.array([[1, 2, 1, 4, 2, 1]]), 3
    inputs, W = ne.array(ids, np.int32), ne.array(RNG.normal(size=(6, dim)))
    outputs_t, outputs = ne.empty((6, dim)), ne.empty((dim, 6))
    outputs_t[:] = W.take(inputs, axis=0)
    outputs[:] = outputs_t.T
    near(outputs, W.get()[ids[0]].T)
    error = RNG.normal(size=(dim, 6))
    dW = ne.zeros((6, dim))
    ne.compound_bprop_lut(3, inputs, ne.array(error), outputs_t, dW, pad)
    expected = np.zeros((6, dim))
    np.add.at(expected, ids[0], error.T)
    if pad is not None:
        expected[pad] = 0
    near(dW, expected)


# Recurrent steps


class Tanh:
    """A transform as of neon's front end."""

    def __init__(self, be: Any) -> None:
        self.be, self.name = be, "Tanh_0"

    def __call__(self, x: Any) -> Any:
        return self.be.tanh(x)

    def bprop(self, x: Any) -> Any:
        return 1 - self.be.square(x)


class Identity:
    def __call__(self, x: Any) -> Any:
        return x

    def bprop(self, x: Any) -> Any:
        return 1


@pytest.mark.parametrize("used", [None, 2, 9])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_recurrent_steps(ne: Any, in_place: bool, reverse: bool, used: Any) -> None:
    nout, steps, batch = 3, 4, 2
    W, bias, ff = (
        RNG.normal(size=(nout, nout)),
        RNG.normal(size=(nout, 1)),
        RNG.normal(size=(nout, (steps + 2) * batch)),
    )
    buffer, inputs = ne.array(ff if in_place else np.zeros_like(ff)), ne.array(ff)
    views = [buffer[:, i * batch : (i + 1) * batch] for i in range(steps + 2)]
    h = views[1:-1]
    before = views[2:] if reverse else views[:-2]
    h_ff = h if in_place else [inputs[:, i * batch : (i + 1) * batch] for i in range(1, steps + 1)]
    expected = buffer.get().astype(float)
    count = min(steps, used or steps)
    blocks = [expected[:, i * batch : (i + 1) * batch] for i in range(steps + 2)]
    for i in reversed(range(1, count + 1)) if reverse else range(1, count + 1):
        previous = blocks[i + 1 if reverse else i - 1]
        blocks[i][:] = np.tanh(W @ previous + ff[:, i * batch : (i + 1) * batch] + bias)
    ne.compound_rnn_unroll_fprop(
        ne.array(W), before, h_ff, h, ne.array(bias), nout, steps, used, Tanh(ne), reverse=reverse
    )
    near(buffer, expected)


@pytest.mark.parametrize("transform", [Tanh, lambda be: Identity()])
@pytest.mark.parametrize("used", [None, 2])
@pytest.mark.parametrize("reverse", [True, False])
def test_derivatives_of_recurrent_steps(ne: Any, reverse: bool, used: Any, transform: Any) -> None:
    nout, steps, batch = 3, 4, 2
    W, h = RNG.normal(size=(nout, nout)), np.tanh(RNG.normal(size=(nout, steps * batch)))
    deltas = RNG.normal(size=(nout, (steps + 1) * batch))
    buffer, hidden, act = ne.array(deltas), ne.array(h), transform(ne)
    views = [buffer[:, i * batch : (i + 1) * batch] for i in range(steps + 1)]
    own, before = (views[1:], views[:-1]) if reverse else (views[:-1], views[1:])
    h_s = [hidden[:, i * batch : (i + 1) * batch] for i in range(steps)]
    expected = deltas.copy()
    blocks = [expected[:, i * batch : (i + 1) * batch] for i in range(steps + 1)]
    mine, previous = (blocks[1:], blocks[:-1]) if reverse else (blocks[:-1], blocks[1:])
    order = range(used or steps)
    for i in reversed(order) if reverse else order:
        slope = 1 if isinstance(act, Identity) else 1 - h[:, i * batch : (i + 1) * batch] ** 2
        mine[i][:] *= slope
        previous[i][:] += W.T @ mine[i]
    ne.compound_rnn_unroll_bprop(ne.array(W).T, before, own, h_s, nout, steps, used, act, reverse)
    near(buffer, expected)


def test_both_directions(ne: Any) -> None:
    nout, steps, batch = 2, 3, 2
    weights = [ne.array(RNG.normal(size=(nout, nout))) for _ in range(2)]
    biases = [ne.array(RNG.normal(size=(nout, 1))) for _ in range(2)]
    act, values = Tanh(ne), [RNG.normal(size=(nout, (steps + 2) * batch)) for _ in range(2)]

    def lists(buffer: Any) -> Any:
        views = [buffer[:, i * batch : (i + 1) * batch] for i in range(steps + 2)]
        return views[:-2], views[1:-1], views[2:]

    alone, both = [ne.array(v) for v in values], [ne.array(v) for v in values]
    for out, together in ((alone, False), (both, True)):
        (prev, h_f, _), (_, h_b, nxt) = map(lists, out)
        sizes = (nout, steps, steps)
        if together:
            ne.compound_rnn_unroll_fprop_bibnrnn(
                None,
                None,
                None,
                weights[0],
                prev,
                h_f,
                h_f,
                biases[0],
                weights[1],
                nxt,
                h_b,
                h_b,
                biases[1],
                *sizes,
                act,
            )
            ne.compound_rnn_unroll_bprop_bibnrnn(None, None, h_f, prev, h_b, nxt, *weights, h_f, h_b, *sizes, act, None)
        else:
            ne.compound_rnn_unroll_fprop(weights[0], prev, h_f, h_f, biases[0], *sizes, act)
            ne.compound_rnn_unroll_fprop(weights[1], nxt, h_b, h_b, biases[1], *sizes, act, True)
            ne.compound_rnn_unroll_bprop(weights[0].T, prev, h_f, h_f, *sizes, act, True)
            ne.compound_rnn_unroll_bprop(weights[1].T, nxt, h_b, h_b, *sizes, act, False)
    for a, b, value in zip(alone, both, values, strict=True):
        np.testing.assert_array_equal(a.get(), b.get())
        assert not np.allclose(a.get(), value)


# Hooks


def test_what_layers_are_given_is_none(ne: Any) -> None:
    assert ne.relu_layer() is ne.batchnorm_layer((3, 4)) is ne.mergesum_layer(2) is ne.mergebroadcast_layer(2) is None
    assert ne.bibnrnn_layer(None, None, None, None, 1, 1) is None
    assert ne.convert_data(None, None) is ne.clean_data([np.ones(2)], False) is ne.revert_tensor(None) is None
    assert ne.distribute_data(np.ones(2), "Data") is None
    x = ne.ones(2)
    assert ne.allocate_new_deltas(x, (2,), None) is x and ne.allocate_new_deltas(None, (2,), None) is None


def test_layers_allocate_their_outputs(ne: Any) -> None:
    given = []

    class Layer:
        def allocate(self, shared_outputs: Any = None) -> None:
            given.append(shared_outputs)

    ne.allocate_new_outputs(Layer(), 5)
    assert given == [5]


@pytest.mark.parametrize("slope", [0, 0.1])
def test_rectifiers(ne: Any, slope: Any) -> None:
    values = np.array([[-2.0, 0.0, 3.0]])
    x = ne.array(values)
    near(ne.fprop_relu(None, x, slope), np.maximum(values, 0) + slope * np.minimum(values, 0))
    near(ne.bprop_relu(None, x, None, None, slope), (values > 0) + slope * (values < 0))


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax(ne: Any, axis: int) -> None:
    values = RNG.normal(size=(3, 4)) * 50
    powers = np.exp(values - values.max(axis, keepdims=True))
    near(ne.fprop_softmax(ne.array(values), axis), powers / powers.sum(axis, keepdims=True))


@pytest.mark.parametrize("transform", [Tanh, lambda be: Identity()])
def test_transforms(ne: Any, transform: Any) -> None:
    values, errors = RNG.normal(size=(2, 3)), RNG.normal(size=(2, 3))
    act = transform(ne)
    x, y, delta = ne.array(values), ne.empty((2, 3)), ne.empty((2, 3))
    is_tanh = isinstance(act, Tanh)
    expected = np.tanh(values) if is_tanh else values
    for _ in range(2):
        ne.fprop_transform(None, act, x, y)
        near(y, expected)
        ne.bprop_transform(None, act, y, ne.array(errors), delta, False)
        near(delta, (1 - expected**2 if is_tanh else 1) * errors)
    ne.fprop_transform(None, act, x, x, relu=False)
    near(x, expected)


def test_transforms_of_other_parameters_are_told_apart(ne: Any) -> None:
    class Scaled:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __call__(self, x: Any) -> Any:
            return x * self.factor

    y = ne.empty((1, 1))
    act = Scaled(2.0)
    for factor in (2.0, 5.0, 3.0):
        act.factor = factor
        ne.fprop_transform(None, act, ne.ones((1, 1)), y)
        assert y.get().item() == factor


def test_skip_connections(ne: Any) -> None:
    a, b = RNG.normal(size=(2, 3)), RNG.normal(size=(2, 3))
    y = ne.array(b)
    ne.fprop_skipnode(ne.array(a), y, 0.5)
    near(y, b * 0.5 + a)
    ne.bprop_skipnode(ne.array(a), y, alpha=2.0, beta=0.0)
    near(y, 2 * a)


class Branch:
    """A branch that notes its calls."""

    calls: list[Any]

    def __init__(self, name: str, calls: list[Any]) -> None:
        self.name, self.calls = name, calls

    def fprop(self, inputs: Any, inference: bool, beta: float = -1) -> None:
        self.calls.append((self.name, inputs, inference, beta))

    def bprop(self, error: Any, alpha: float, beta: float) -> None:
        self.calls.append((self.name, error, alpha, beta))


def test_sums_of_branches(ne: Any) -> None:
    calls: list[Any] = []
    layers = [Branch("a", calls), Branch("b", calls), Branch("c", calls)]
    ne.fprop_mergesum(None, "x", True, layers, None, None)
    assert calls == [("a", "x", True, 0), ("b", "x", True, 1), ("c", "x", True, 1)]
    calls.clear()
    ne.bprop_mergesum(None, 0.5, 0.25, layers, "e", None)
    assert calls == [("c", "e", 0.5, 0.25), ("b", "e", 0.5, 1), ("a", "e", 0.5, 1)]


def test_broadcasts_to_branches(ne: Any) -> None:
    calls: list[Any] = []
    layers, betas = [Branch("a", calls), Branch("b", calls)], [1.0, 0.0]
    ne.fprop_mergebroadcast(None, "x", False, None, layers, None)
    assert calls == [("a", "x", False, -1), ("b", "x", False, -1)]
    calls.clear()
    ne.bprop_mergebroadcast(None, layers, ["e", "f"], None, None, None, 0.5, 0.25, [2.0, 4.0], betas)
    assert calls == [("b", "f", 2.0, 0.25), ("a", "e", 1.0, 1.0)] and betas == [1.0, 0.25]


# Histograms and times


def counted(values: Any, bins: int, offset: int) -> Any:
    counts = np.zeros(bins, int)
    for x in np.ravel(values):
        e = -np.inf if x == 0 else np.rint(np.log2(np.float32(abs(x))))
        if e < offset + 1:
            counts[0] += 1
        elif e <= offset + bins:
            counts[min(int(e) - offset, bins - 1)] += 1
    return counts


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint8])
@pytest.mark.parametrize(("bins", "offset"), [(64, -48), (6, -2)])
def test_histograms(ne: Any, bins: int, offset: int, dtype: Any) -> None:
    ne.set_hist_buffers(bins, offset)
    values = (RNG.normal(size=(20, 15)) * 8).astype(dtype)
    values[0, :3] = 0, 16, 17
    x = ne.array(values, dtype)
    row = x.hist("first")
    assert row.shape == (1, bins) and row.dtype == np.int32
    np.testing.assert_array_equal(row.get()[0], counted(values, bins, offset))
    x.T.hist("second")
    x.hist("second")
    assert ne.hist_map == {"first": 0, "second": 2} and ne.hist_idx == 3
    data, rows = ne.dump_hist_data()
    assert data.shape == (4096, bins) and rows == {"first": 0, "second": 2} and data[2].shape == (1, bins)
    np.testing.assert_array_equal(data.get()[2], data.get()[0])
    assert not data.get()[3:].any() and ne.hist_idx == 0 and ne.hist_map == {} and not ne.hist_buf.get().any()


def test_values_beyond_the_bins(ne: Any) -> None:
    ne.set_hist_buffers(4, 0)
    x = ne.array([[np.nan, np.inf, -np.inf, 2.0**4, 2.0**5, 2.0**-9, 0.0]])
    assert x.hist("x").get().tolist() == [[2, 0, 0, 1]]
    ne.set_hist_buffers(4, 0)
    assert ne.hist_map == {"x": 0}
    ne.set_hist_buffers(5, 0)
    assert ne.hist_map == {} and ne.hist_buf.shape[1] == 5


def test_times(ne: Any) -> None:
    start, end = ne.init_mark(), ne.init_mark()
    with pytest.raises(ValueError):
        ne.get_time(start, end)
    ne.record_mark(start)
    x = ne.ones((300, 300))
    x[:] = ne.dot(x, x)
    ne.record_mark(end)
    assert ne.synchronize_mark(end) is None and isinstance(ne.get_time(start, end), float)
    assert ne.get_time(start, end) > 0
