"""A convolutional network in the style of neon's layers, against the derivatives of the same network as one tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends import NervanaObject
from optree import Autodiff

BATCH, CLASSES = 8, 3


class Layer(NervanaObject):
    """Base of layers: weights `W` with derivatives `dW`, and a momentum."""

    W: Any = None

    def update(self, rate: float) -> None:
        if self.W is not None:
            self.velocity[:] = self.velocity * 0.9 - rate * self.dW / self.be.bsz
            self.W[:] = self.W + self.velocity

    def made(self, shape: Any, scale: float = 0.3) -> None:
        self.W = self.be.array(self.be.rng.normal(0, scale, shape))
        self.dW, self.velocity = self.be.zeros_like(self.W), self.be.zeros_like(self.W)


class Convolution(Layer):
    def __init__(self, **sizes: int) -> None:
        self.layer = self.be.conv_layer(self.be.default_dtype, self.be.bsz, **sizes)
        self.made(self.layer.dimF2)
        self.outputs, self.sums = self.be.iobuf(self.layer.nOut), self.be.empty(self.layer.dimS)
        self.deltas = self.be.iobuf(self.layer.dimI2[0])

    def fprop(self, inputs: Any) -> Any:
        self.inputs = inputs
        self.be.fprop_conv(self.layer, inputs, self.W, self.outputs, bsum=self.sums)
        return self.outputs

    def bprop(self, error: Any) -> Any:
        self.be.bprop_conv(self.layer, self.W, error, self.deltas)
        self.be.update_conv(self.layer, self.inputs, error, self.dW)
        return self.deltas

    def tree(self, x: Any) -> Any:
        be, sizes = self.be, self.layer
        images, weights = be.reshape(x, sizes.dimI), be.reshape(self.W, sizes.dimF)
        parameters = {"padding": sizes.padding, "layout": "CDHWN", "weights_layout": "IDHWO"}
        return be.reshape(be.conv(images, weights, **parameters), sizes.dimO2)


class Normalised(Layer):
    """Batch normalisation after a convolution, whose sums it takes."""

    def __init__(self, before: Convolution) -> None:
        be, self.before = self.be, before
        maps = before.layer.K
        self.made((maps, 1))
        self.beta, self.grad_beta = be.zeros((maps, 1)), be.zeros((maps, 1))
        self.mean, self.variance, self.xvar = be.zeros((maps, 1)), be.ones((maps, 1)), be.zeros((maps, 1))
        self.outputs, self.deltas = be.iobuf(before.layer.nOut), be.iobuf(before.layer.nOut)

    def fprop(self, inputs: Any) -> Any:
        self.x = inputs.reshape((self.W.shape[0], -1))
        columns = self.mean, self.variance, self.W, self.beta
        self.be.compound_fprop_bn(
            self.x, self.before.sums, self.xvar, *columns, self.outputs, 1e-3, 0.9, compute_batch_sum=False
        )
        return self.outputs

    def bprop(self, error: Any) -> Any:
        grads = self.dW, self.grad_beta
        error = error.reshape(self.x.shape)
        self.be.compound_bprop_bn(
            self.deltas, *grads, error, self.x, self.before.sums, self.xvar, self.W, 1e-3, binary=False
        )
        return self.deltas

    def tree(self, x: Any) -> Any:
        be, rows = self.be, be_rows(self.be, x, self.W.shape[0])
        centred = rows - be.mean(rows, axis=1)
        value = centred / be.sqrt(be.var(rows, axis=1) + 1e-3) * self.W + self.beta
        return be.reshape(value, self.outputs.shape)


def be_rows(be: Any, x: Any, rows: int) -> Any:
    return be.reshape(x, (rows, -1))


class Activation(Layer):
    def __init__(self, size: int) -> None:
        self.outputs, self.deltas = self.be.iobuf(size), self.be.iobuf(size)

    def __call__(self, x: Any) -> Any:
        return self.be.tanh(x)

    def derivative(self, y: Any) -> Any:
        return 1 - self.be.square(y)

    def fprop(self, inputs: Any) -> Any:
        self.be.fprop_transform(None, self, inputs, self.outputs)
        return self.outputs

    def bprop(self, error: Any) -> Any:
        self.deltas[:] = self.derivative(self.outputs) * error
        return self.deltas

    tree = __call__


class Pooling(Layer):
    def __init__(self, op: str, **sizes: int) -> None:
        self.layer = self.be.pool_layer(self.be.default_dtype, op, self.be.bsz, **sizes)
        self.outputs, self.deltas = self.be.iobuf(self.layer.nOut), self.be.iobuf(self.layer.dimI2[0])
        self.argmax = self.be.empty(self.outputs.shape, np.uint8)

    def fprop(self, inputs: Any) -> Any:
        self.be.fprop_pool(self.layer, inputs, self.outputs, self.argmax)
        return self.outputs

    def bprop(self, error: Any) -> Any:
        self.be.bprop_pool(self.layer, error, self.deltas, self.argmax)
        return self.deltas

    def tree(self, x: Any) -> Any:
        be, sizes = self.be, self.layer
        pool = be.max_pool if sizes.op == "max" else be.avg_pool
        value = pool(be.reshape(x, sizes.dimI), sizes.JTRS[1:], axes=(1, 2, 3))
        return be.reshape(value, sizes.dimO2)


class Affine(Layer):
    def __init__(self, inputs: int, outputs: int) -> None:
        self.made((outputs, inputs))
        self.outputs, self.deltas = self.be.iobuf(outputs), self.be.iobuf(inputs)

    def fprop(self, inputs: Any) -> Any:
        self.inputs = inputs
        return self.be.compound_dot(self.W, inputs, self.outputs)

    def bprop(self, error: Any) -> Any:
        self.be.compound_dot(self.W.T, error, self.deltas)
        self.be.compound_dot(error, self.inputs.T, self.dW)
        return self.deltas

    def tree(self, x: Any) -> Any:
        return self.be.dot(self.W, x)


def network(op: str) -> list[Layer]:
    first = Convolution(C=1, K=4, H=8, W=8, R=3, S=3, pad_h=1, pad_w=1)
    middle = [Normalised(first), Activation(256), Pooling(op, C=4, H=8, W=8, R=2, S=2)]
    return [first, *middle, Affine(64, CLASSES)]


def samples(be: Any, rng: Any) -> Any:
    """Images of bars in one of three directions."""
    labels = rng.integers(0, CLASSES, BATCH)
    images = rng.normal(0, 0.2, (8, 8, BATCH))
    for n, label in enumerate(labels):
        at = rng.integers(1, 7)
        images[(at, slice(None), n) if label == 0 else (slice(None), at, n) if label == 1 else (slice(2), 0, n)] += 2
    targets = be.empty((CLASSES, BATCH))
    targets[:] = be.onehot(be.array(labels, np.int32), axis=0)
    return be.array(images.reshape(64, BATCH)), targets


@pytest.mark.matrix(least=2)
@pytest.mark.parametrize("op", ["max", "avg"])
def test_a_network_trains_and_its_derivatives_are_those_of_its_tree(ne: Any, op: str) -> None:
    ne.bsz = BATCH
    NervanaObject.be = ne
    rng, layers = np.random.default_rng(0), network(op)
    probabilities, losses = ne.iobuf(CLASSES), []
    for step in range(30):
        x, targets = samples(ne, rng)
        value = x
        for layer in layers:
            value = layer.fprop(value)
        probabilities[:] = ne.fprop_softmax(value, axis=0)
        losses.append(-ne.sum(targets * ne.safelog(probabilities)).get().item() / BATCH)
        error = ne.empty_like(probabilities)
        error[:] = probabilities - targets
        first = error.get()
        for layer in reversed(layers):
            error = layer.bprop(error)
        if step in (0, 29):
            tree = x
            for layer in layers:
                tree = layer.tree(tree)
            learnt = [layer for layer in layers if layer.W is not None]
            ad = Autodiff(tree, ne, next_error=ne.array(first))
            for layer, expected in zip(learnt, ad.get_grad_asnumpyarray([layer.W for layer in learnt]), strict=True):
                np.testing.assert_allclose(layer.dW.get(), expected, rtol=2e-3, atol=2e-4)
        for layer in layers:
            layer.update(0.1)
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:3])
