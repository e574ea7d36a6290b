"""NeonBackend, neon's backend API with the hooks of its front end, and its constructors.

Hooks by which layers request accelerated objects return the value that means none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np

from backends import lazy
from backends.cpu import CPUBackend
from backends.neon.convolution import blended
from backends.neon.networks import Networks, Transform
from backends.neon.objects import make_current
from optree.errors import BackendArgumentError, ParameterError, brief, names
from optree.registry import f
from optree.run.function import use_backend
from optree.tree.tensor import Tensor
from optree.tree.variable import Operand, Variable, constant

#: The rows of the buffer of histograms.
ROWS = 4096


class Mark:
    """A time marker, set by `record_mark`."""

    time: float | None = None


def _nothing(backend: object, *args: object, **options: object) -> None:
    """Nothing: a hook of neon's for accelerated layers, other layouts of data, or several devices."""


class NeonBackend(Networks):
    """A backend in neon's mode, with all methods of neon's backends.

    Where neon's CPU and GPU backends differ, this class behaves the same on every device.
    """

    hist_bins: int = 64
    hist_offset: int = -48
    hist_idx: int = 0
    hist_max: int = ROWS

    @staticmethod
    def backend_choices() -> list[str]:
        """The names of the backends."""
        return sorted(CONSTRUCTORS)

    @staticmethod
    def allocate_backend(name: str, **options: Any) -> Any:
        """A new backend, by name and its constructor's arguments."""
        if name not in CONSTRUCTORS:
            raise BackendArgumentError(f"there is no backend {name!r}; there are {names(CONSTRUCTORS)}")
        return CONSTRUCTORS[name](**options)

    relu_layer = batchnorm_layer = mergesum_layer = mergebroadcast_layer = bibnrnn_layer = _nothing
    convert_data = clean_data = distribute_data = revert_tensor = _nothing

    def allocate_new_deltas(self, delta: Operand, in_shape: object, parallelism: object) -> Any:
        """The buffer itself."""
        return delta

    def allocate_new_outputs(self, layer: Any, share_output: Any) -> None:
        """Have the layer allocate its outputs."""
        layer.allocate(shared_outputs=share_output)

    # Activations

    def fprop_relu(self, layer: object, x: Operand, slope: Operand) -> Any:
        """A tree of ``max(x, 0) + slope * min(x, 0)``."""
        positive = f.maximum(x, 0)
        return positive if slope == 0 else positive + slope * f.minimum(0, x)

    def bprop_relu(self, layer: object, x: Any, error: Any, deltas: Operand, slope: Any) -> Any:
        """A tree of the derivative of `fprop_relu`."""
        positive = f.cast(f.gt(x, 0), x.dtype)
        return positive if slope == 0 else positive + slope * f.cast(f.lt(x, 0), x.dtype)

    def fprop_softmax(self, x: Operand, axis: int) -> Any:
        """A tree of the softmax along an axis."""
        return f.softmax(x, axis=axis)

    def fprop_transform(
        self, ngLayer: object, transform: object, inputs: Operand, outputs: Operand, relu: bool = False
    ) -> None:
        """Write ``transform(inputs)`` into `outputs`."""
        self.replay("fprop_transform", _transformed, Transform(transform), outputs, inputs)

    def bprop_transform(
        self, ngLayer: object, transform: object, outputs: Operand, error: Any, deltas: Operand, relu: bool = False
    ) -> None:
        """Write ``transform.bprop(outputs) * error`` into `deltas`."""
        self.replay("bprop_transform", _transform_delta, Transform(transform), deltas, outputs, error)

    # Skip connections and branches

    def fprop_skipnode(self, x: Operand, y: Operand, beta: float) -> None:
        """Write ``y * beta + x`` into y."""
        self.replay("fprop_skipnode", _blended, None, y, x, 1.0, beta)

    def bprop_skipnode(self, error: Any, deltas: Operand, alpha: float, beta: float) -> None:
        """Write ``deltas * beta + alpha * error`` into `deltas`."""
        self.replay("bprop_skipnode", _blended, None, deltas, error, alpha, beta)

    def fprop_mergesum(
        self, ngLayer: object, inputs: Any, inference: bool, layers: Any, outputs: object, out_shape: object
    ) -> None:
        """Run the branches forwards, the first writing its outputs, the others adding to them."""
        for i, layer in enumerate(layers):
            layer.fprop(inputs, inference, beta=float(i > 0))

    def bprop_mergesum(
        self, ngLayer: object, alpha: float, beta: float, layers: Any, error: Any, deltas: Operand
    ) -> None:
        """Run the branches backwards, the last first with `beta`, the others adding to its deltas."""
        for i, layer in enumerate(reversed(layers)):
            layer.bprop(error, alpha=alpha, beta=1.0 if i else beta)

    def fprop_mergebroadcast(
        self, ngLayer: object, inputs: Any, inference: bool, outputs: object, layers: Any, out_shape: object
    ) -> None:
        """Run the branches forwards."""
        for layer in layers:
            layer.fprop(inputs, inference)

    def bprop_mergebroadcast(
        self,
        ngLayer: object,
        layers: Any,
        error_views: Any,
        error: Any,
        delta: object,
        out_shape: object,
        alpha: float,
        beta: float,
        alphas: Any,
        betas: Any,
    ) -> None:
        """Run the branches backwards, the last first, each by its own error, factor and share of the old deltas."""
        betas[-1] = beta
        for layer, view, own, share in reversed(list(zip(layers, error_views, alphas, betas, strict=False))):
            layer.bprop(view, alpha=own * alpha, beta=share)

    # Histograms of exponents

    @property
    def hist_buf(self) -> Any:
        """The histograms, one in each row."""
        return self._hist_state()[0]

    @property
    def hist_map(self) -> dict[Any, int]:
        """The row of each tag."""
        return self._hist_state()[1]  # type: ignore[no-any-return]

    def _hist_state(self) -> tuple[Any, dict[Any, int]]:
        state = self.__dict__.get("_hist")
        if state is None:
            state = self.__dict__["_hist"] = self.empty((ROWS, self.hist_bins), "int32"), {}
        return state

    def set_hist_buffers(self, hist_bins: int, hist_offset: int) -> None:
        """Set the number of bins and the exponent of the first; histograms start anew where either changes."""
        if (hist_bins, hist_offset) != (self.hist_bins, self.hist_offset):
            self.hist_bins, self.hist_offset = hist_bins, hist_offset
            self._forget_histograms()

    def _forget_histograms(self) -> None:
        self.__dict__.pop("_hist", None)
        self.hist_idx = 0

    def compute_hist(self, tensor: Tensor, tag: object) -> Any:
        """Count the exponents of the values of a tensor in the next row of the histograms, and return the row.

        The exponent is log2 of the absolute value, rounded. The first bin takes smaller ones too, zeros among them,
        and larger ones than the last bin's second are not counted.

        Raises
        ------
        ParameterError
            If all rows are used; `dump_hist_data` starts anew.
        """
        buffer, rows = self._hist_state()
        if self.hist_idx >= ROWS:
            raise ParameterError(f"hist: all {ROWS} rows are used, before {brief(tag)}; dump_hist_data starts anew")
        row, rows[tag] = self.hist_idx, self.hist_idx
        self.hist_idx += 1
        counts = buffer[row]
        self.replay("hist", _counted, (self.hist_bins, self.hist_offset), counts, tensor)
        return counts

    def dump_hist_data(self) -> tuple[Any, dict[Any, int]]:
        """The histograms and the row of each tag; they then start anew."""
        state = self._hist_state()
        self._forget_histograms()
        return state

    # Times

    def init_mark(self) -> Mark:
        """A new mark, not yet recorded."""
        return Mark()

    def record_mark(self, marker: Mark) -> None:
        """Wait for all started work, and set a mark to the time."""
        self.synchronize()
        marker.time = perf_counter()

    def synchronize_mark(self, marker: Mark) -> None:
        """Do nothing: `record_mark` has waited already."""

    def get_time(self, start: Mark, end: Mark) -> float:
        """The milliseconds from mark to mark.

        Raises
        ------
        ParameterError
            If one is not recorded.
        """
        if start.time is None or end.time is None:
            raise ParameterError("get_time: record_mark has not set both marks")
        return (end.time - start.time) * 1e3


# The trees, from a key and operands to pairs of a target and a value


def _transformed(transform: Transform, outputs: Any, inputs: Any) -> list[tuple[Any, Any]]:
    value = transform.call(inputs)
    return [] if value is outputs else [(outputs, value)]


def _transform_delta(transform: Transform, deltas: Any, outputs: Any, error: Any) -> list[tuple[Any, Any]]:
    factor = transform.call.bprop(outputs)
    return [(deltas, factor * error if isinstance(factor, Variable) or factor != 1 else error)]


def _blended(key: None, out: Any, x: Any, alpha: Any, beta: Any) -> list[tuple[Any, Any]]:
    return [(out, blended(x, out, alpha, beta))]


def _counted(key: tuple[int, int], counts: Any, x: Any) -> list[tuple[Any, Any]]:
    bins, offset = key
    values = f.absolute(f.cast(f.reshape(x, (-1, 1)), "float32"))
    index = f.rint(f.log2(values)) - offset
    index = f.where(f.eq(values, 0), f.fill_like(index, 0), f.maximum(index, 0))  # log2 of 0 is -inf, or raises
    # One bin more for what is not counted; the last bin takes one exponent more than the others.
    kept = f.where(index <= bins, f.minimum(index, bins - 1), f.fill_like(index, bins))
    picked = f.take(constant(np.zeros((bins + 1, 1), np.int32)), f.cast(kept, "int32"), axis=0)
    found = picked.op.grad(picked.inputs, [f.fill_like(picked, 1)])[0]  # ones added where they would be taken from
    return [(counts, f.transpose(f.slice(found, slice(0, bins))))]


@cache
def neon_class(base: Any) -> type[Any]:
    """A backend's class in neon's mode."""
    return type(base.__name__, (NeonBackend, base), {"__doc__": base.__doc__, "__module__": base.__module__})


def NervanaCPU(
    rng_seed: int | None = None,
    default_dtype: Any = "float32",
    hist_bins: int = 64,
    hist_offset: int = -48,
    compat_mode: str | None = None,
    num_devices: int | None = None,
    stochastic_round: bool | int = False,
    device_id: int = 0,
    deterministic: object = None,
) -> Any:
    """A CPU backend in neon's mode, by the arguments of neon's class of this name.

    Examples
    --------
    >>> NervanaCPU(default_dtype="float64").zeros(2).shape
    (2, 1)
    """
    return _made(CPUBackend, rng_seed, default_dtype, stochastic_round, device_id, compat_mode, hist_bins, hist_offset)


def NervanaGPU(
    rng_seed: int | None = None,
    default_dtype: Any = "float32",
    stochastic_round: bool | int = False,
    device_id: int = 0,
    bench: bool = False,
    scratch_size: int = 0,
    hist_bins: int = 64,
    hist_offset: int = -48,
    compat_mode: str | None = None,
    enable_winograd: object = True,
    num_devices: int | None = None,
    deterministic: object = None,
) -> Any:
    """A GPU backend in neon's mode, by the arguments of neon's class of this name."""
    kind = lazy.gpu.GPUBackend
    made = _made(kind, rng_seed, default_dtype, stochastic_round, device_id, compat_mode, hist_bins, hist_offset)
    made.bench, made.enable_winograd = bench, enable_winograd
    return made


def _made(
    kind: Any,
    seed: int | None,
    dtype: Any,
    stochastic_round: Any,
    device_id: int,
    mode: str | None,
    bins: int,
    offset: int,
) -> Any:
    made = neon_class(kind)(seed, dtype, 0, stochastic_round, device_id, mode)
    made.set_hist_buffers(bins, offset)
    use_backend(made)
    make_current(made)
    return made


#: Backend name -> the function that makes one.
CONSTRUCTORS: dict[str, Callable[..., Any]] = {"cpu": NervanaCPU, "gpu": NervanaGPU}
