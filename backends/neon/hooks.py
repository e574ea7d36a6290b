"""The hooks of neon's front end: what layers ask of a backend, with the values that mean no acceleration of a layer."""

from __future__ import annotations

from typing import Any

from backends.neon.convolution import blended
from backends.neon.networks import Networks, Transform
from optree.registry import f
from optree.tree.variable import Variable


class Hooks(Networks):
    """Hooks of layers on a backend in neon's mode."""

    # Objects of layers for accelerated calls: none

    def relu_layer(self) -> None:
        """None."""

    def batchnorm_layer(self, in_shape: Any) -> None:
        """None."""

    def mergesum_layer(self, layer_num: int) -> None:
        """None."""

    def mergebroadcast_layer(self, layer_num: int) -> None:
        """None."""

    def bibnrnn_layer(
        self, h_buffer_all: Any, h_ff_buffer: Any, W_recur_f: Any, W_recur_b: Any, nsteps: int, nout: int
    ) -> None:
        """None."""

    # Data in other layouts or on several devices: nothing

    def convert_data(self, tensor: Any, layer_mkl: Any) -> None:
        """Nothing."""

    def clean_data(self, tensor: Any, layer_mkl: Any) -> None:
        """Nothing."""

    def distribute_data(self, tensor: Any, layer_parallelism: Any) -> None:
        """Nothing."""

    def revert_tensor(self, tensor: Any) -> None:
        """Nothing."""

    def allocate_new_deltas(self, delta: Any, in_shape: Any, parallelism: Any) -> Any:
        """The buffer itself."""
        return delta

    def allocate_new_outputs(self, layer: Any, share_output: Any) -> None:
        """Have the layer allocate its outputs."""
        layer.allocate(shared_outputs=share_output)

    # Activations

    def fprop_relu(self, layer: Any, x: Any, slope: Any) -> Any:
        """A tree of ``max(x, 0) + slope * min(x, 0)``."""
        positive = f.maximum(x, 0)
        return positive if slope == 0 else positive + slope * f.minimum(0, x)

    def bprop_relu(self, layer: Any, x: Any, error: Any, deltas: Any, slope: Any) -> Any:
        """A tree of the derivative of `fprop_relu`."""
        positive = f.cast(f.gt(x, 0), x.dtype)
        return positive if slope == 0 else positive + slope * f.cast(f.lt(x, 0), x.dtype)

    def fprop_softmax(self, x: Any, axis: int) -> Any:
        """A tree of the softmax along an axis."""
        return f.softmax(x, axis=axis)

    def fprop_transform(self, ngLayer: Any, transform: Any, inputs: Any, outputs: Any, relu: bool = False) -> None:
        """Write ``transform(inputs)`` into `outputs`."""
        self.replay("fprop_transform", _transformed, Transform(transform), outputs, inputs)

    def bprop_transform(
        self, ngLayer: Any, transform: Any, outputs: Any, error: Any, deltas: Any, relu: bool = False
    ) -> None:
        """Write ``transform.bprop(outputs) * error`` into `deltas`."""
        self.replay("bprop_transform", _transform_delta, Transform(transform), deltas, outputs, error)

    # Skip connections and branches

    def fprop_skipnode(self, x: Any, y: Any, beta: float) -> None:
        """Write ``y * beta + x`` into y."""
        self.replay("fprop_skipnode", _blended, None, y, x, 1.0, beta)

    def bprop_skipnode(self, error: Any, deltas: Any, alpha: float, beta: float) -> None:
        """Write ``deltas * beta + alpha * error`` into `deltas`."""
        self.replay("bprop_skipnode", _blended, None, deltas, error, alpha, beta)

    def fprop_mergesum(
        self, ngLayer: Any, inputs: Any, inference: bool, layers: Any, outputs: Any, out_shape: Any
    ) -> None:
        """Run the branches forwards, the first writing its outputs, the others adding to them."""
        for i, layer in enumerate(layers):
            layer.fprop(inputs, inference, beta=float(i > 0))

    def bprop_mergesum(self, ngLayer: Any, alpha: float, beta: float, layers: Any, error: Any, deltas: Any) -> None:
        """Run the branches backwards, the last first with `beta`, the others adding to its deltas."""
        for i, layer in enumerate(reversed(layers)):
            layer.bprop(error, alpha=alpha, beta=1.0 if i else beta)

    def fprop_mergebroadcast(
        self, ngLayer: Any, inputs: Any, inference: bool, outputs: Any, layers: Any, out_shape: Any
    ) -> None:
        """Run the branches forwards."""
        for layer in layers:
            layer.fprop(inputs, inference)

    def bprop_mergebroadcast(
        self,
        ngLayer: Any,
        layers: Any,
        error_views: Any,
        error: Any,
        delta: Any,
        out_shape: Any,
        alpha: float,
        beta: float,
        alphas: Any,
        betas: Any,
    ) -> None:
        """Run the branches backwards, the last first, each by its own error, factor and share of the old deltas."""
        betas[-1] = beta
        for layer, view, own, share in reversed(list(zip(layers, error_views, alphas, betas, strict=False))):
            layer.bprop(view, alpha=own * alpha, beta=share)


# The trees, from a key and operands to pairs of a target and a value


def _transformed(transform: Transform, outputs: Any, inputs: Any) -> list[tuple[Any, Any]]:
    value = transform.call(inputs)
    return [] if value is outputs else [(outputs, value)]


def _transform_delta(transform: Transform, deltas: Any, outputs: Any, error: Any) -> list[tuple[Any, Any]]:
    factor = transform.call.bprop(outputs)
    return [(deltas, factor * error if isinstance(factor, Variable) or factor != 1 else error)]


def _blended(key: None, out: Any, x: Any, alpha: Any, beta: Any) -> list[tuple[Any, Any]]:
    return [(out, blended(x, out, alpha, beta))]
