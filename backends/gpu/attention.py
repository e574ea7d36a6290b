"""Attention of halves on a GPU: one kernel, whose gradient is two; other operands in tiles of products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from backends.execution.specialize import collapsed_axes
from backends.execution.tiles import BackendTiles
from backends.gpu.arrays import DeviceArray
from backends.gpu.codegen.attention import WARPS, Attention, Kernel
from backends.gpu.launch_config import Launch
from optree.cache import Cache
from optree.dtypes import is_bfloat16, is_narrow
from optree.networks.attention import AttentionGradient, AttentionOperator

#: The most features, the elements that are copied together, and the features of a tile.
MOST_FEATURES, VECTOR, TILE = 128, 8, 16

#: Maximum entries of an op's cache of sources.
SOURCES = 64

#: The operands of kernels, and their results.
NAMES = ("query", "key", "value", "delta", "along", "sums")
OUTPUTS, GRADIENTS = ("out", "sums"), ("of_query", "of_key", "of_value")


class DeviceTiles(BackendTiles):
    """Tiles that cuBLASLt multiplies, halves as they are with sums in float32; kernels compute the steps between."""

    def multiplied(self, dtype: np.dtype) -> np.dtype:
        return dtype

    def multiply(self, x: DeviceArray, y: DeviceArray, out: DeviceArray | None = None, factor: float = 1.0) -> Any:
        return self._backend.product(x, y, factor, out=out, is_wide=True)


class FusedAttention:
    """Attention, or its gradient, on device arrays.

    `device`: a `GPUBackend`.
    """

    def __init__(self, device: Any, op: AttentionOperator) -> None:
        self._device, self._op = device, op
        self._tiles = DeviceTiles(device)
        self._is_gradient = isinstance(op, AttentionGradient)
        #: Sources with their kernels.
        self._sources = Cache("kernels of attention", SOURCES)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if not self._is_fused(inputs):
            return self._op.run(self._tiles, *inputs)
        halves = 4 if self._is_gradient else 3
        matrices, masks = self._op.broadcast([*map(self._aligned, inputs[:halves]), *inputs[halves:]])
        outputs = self._op.outputs(*matrices)
        self._run(matrices, masks, outputs)
        return tuple(outputs)

    def sources(self, *inputs: Any) -> list[str]:
        """The sources that a call with these operands compiles; none if one is unknown."""
        if any(x is None for x in inputs) or not self._is_fused(inputs):
            return []
        matrices, masks = self._op.broadcast(inputs)
        sizes, _ = _collapsed([*matrices, *masks])
        return [self._kernels(matrices, masks, len(sizes))[0]]

    def _is_fused(self, inputs: Sequence[Any]) -> bool:
        """Whether the kernels support these operands."""
        host, (query, key, value) = self._device.kernels, inputs[:3]
        sizes = *np.broadcast_shapes(*(x.shape[:-2] for x in (query, key, value))), query.shape[-2], key.shape[-2]
        features = query.shape[-1], value.shape[-1]
        return (
            host is not None
            and is_narrow(query.dtype)
            and host.capability >= (80 if is_bfloat16(query.dtype) else 75)
            and all(0 < n <= MOST_FEATURES and n % VECTOR == 0 for n in features)
            and all(sizes)
        )

    def _aligned(self, x: DeviceArray) -> DeviceArray:
        """Matrices whose rows are contiguous and aligned to 16 bytes: themselves, or a copy."""
        steps = [step for step, size in zip(x.strides[:-1], x.shape[:-1], strict=True) if size > 1]
        is_aligned = not any(n % (VECTOR * x.itemsize) for n in (x.data.ptr, *steps))
        return x if is_aligned and x.strides[-1] == x.itemsize else self._device.cupy.ascontiguousarray(x)

    def _kernels(self, matrices: Sequence[Any], masks: Sequence[Any], axes: int) -> tuple[str, list[Kernel]]:
        """The source for operands of these types, and its kernels."""
        query, _, value = matrices[:3]
        features, values = (-(-x.shape[-1] // TILE) * TILE for x in (query, value))
        mask = masks[0].dtype if masks else None
        shared = self._device.kernels.device.shared
        key = Attention(query.dtype, features, values, self._op.causal, mask, axes, self._is_gradient, shared)
        found = self._sources.get(key)
        if found is None:
            found = self._sources[key] = key.source(), key.kernels()
        return found  # type: ignore[no-any-return]

    def _run(self, matrices: Sequence[Any], masks: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Launch the kernels, which write the outputs."""
        given = NAMES[: self._op.count], ["mask"] * len(masks), GRADIENTS if self._is_gradient else OUTPUTS
        names, arrays = [name for part in given for name in part], [*matrices, *masks, *outputs]
        lead, strides = _collapsed(arrays)
        words = {name: x.data.ptr for name, x in zip(names, arrays, strict=True)}
        for name, x, steps in zip(names, arrays, strides, strict=True):
            words |= {f"{name}_{axis}": step for axis, step in enumerate(steps)}
            words |= {f"{name}_rows": x.strides[-2] // x.itemsize, f"{name}_columns": x.strides[-1] // x.itemsize}
        query, key, value = matrices[:3]
        sizes = query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1]
        words |= {f"n{axis}": size for axis, size in enumerate(lead)}
        words |= zip(("queries", "keys", "features", "values"), sizes, strict=True)
        words["factor"] = int(np.float32(self._op.factor(query)).view(np.uint32))
        host, (source, kernels) = self._device.kernels, self._kernels(matrices, masks, len(lead))
        for kernel, made in zip(host.load(source, [each.name for each in kernels]), kernels, strict=True):
            blocks = -(-words[made.held[0].rows] // made.block_rows) * prod(lead)
            launch = Launch(made.name, (blocks, 1), 32 * WARPS, made.shared(made.tiling))
            host.bound(kernel, launch, [words[name] for name in made.parameter_names()])()


def _collapsed(arrays: Sequence[Any]) -> tuple[list[int], list[list[int]]]:
    """The sizes of the leading axes, those that are contiguous together as one, and each array's strides."""
    strides = [[step // x.itemsize for step in x.strides[:-2]] for x in arrays]
    return collapsed_axes(arrays[0].shape[:-2], strides)
