"""Pools on a GPU by kernels of our own, one for a pool and one for each of its derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from backends.execution.pooling import ROLES
from backends.gpu.codegen.pooling import THREADS, Axes, Pooled, parameter_names, source
from backends.gpu.kernel import divisor
from backends.gpu.launch_config import MAX_GRID, Launch
from optree.arrays import overlap
from optree.compile.program import Program
from optree.dtypes import is_bfloat16, is_floating
from optree.ops.pooling import INT32, MeanOperator, PoolOperator
from optree.tree.types import NUMBERS

#: Numbers of elements from here on do not fit the kernels' indices.
HUGE = 1 << 31

_TYPES = {np.dtype("float32"): "float", np.dtype("float64"): "double", np.dtype("float16"): "__half"}


def type_of(dtype: np.dtype) -> str:
    """A floating dtype in CUDA."""
    return "__nv_bfloat16" if is_bfloat16(dtype) else _TYPES[dtype]


def takes_images(program: Program, index: int) -> bool:
    """Whether an instruction is on floats, and of arrays alone."""
    inputs = program.instructions[index].inputs
    has_numbers = any(i < len(program.leaves) and isinstance(program.leaves[i], NUMBERS) for i in inputs)
    return not has_numbers and is_floating(program.type_of(inputs[0]).dtype)


class DirectKernels:
    """An op by kernels of its own, of arrays of a device, into a new array or a given one.

    Parameters
    ----------
    device : GPUBackend
    op : Op
    """

    def __init__(self, device: Any, op: Any) -> None:
        self.device, self.op = device, op

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        op, cupy = self.op, self.device.cupy
        shape: Any = op.output_shape(*(x.shape for x in arrays))
        dtype = op.resolve_dtypes(*(x.dtype for x in arrays))[-1]
        if self.device.kernels is None or max(prod(shape), *(x.size for x in arrays)) >= HUGE:
            value = op.value(*arrays).astype(dtype, copy=False)
            if out is None:
                return value
            out[...] = value
            return out
        fits = out is not None and out.dtype == dtype and out.flags.c_contiguous
        is_apart = fits and not any(overlap(out, x) for x in arrays)
        target = out if is_apart else cupy.empty(shape, dtype)
        if target.size:
            self.run(arrays, target)
        if out is None or target is out:
            return target
        out[...] = target
        return out

    def run(self, arrays: Sequence[Any], target: Any) -> None:
        """Launch the kernels that fill in an array."""
        raise NotImplementedError

    def launch(self, source: str, name: str, count: int, words: Sequence[int]) -> None:
        """Launch a kernel with a thread for each of some numbers."""
        kernels = self.device.kernels
        (kernel,) = kernels.load(source, (name,))
        kernels.bound(kernel, Launch(name, (min(MAX_GRID, -(-count // THREADS)), 1), THREADS), words)()


class Pool(DirectKernels):
    """A pool, or a derivative of one."""

    op: PoolOperator

    def run(self, arrays: Sequence[Any], target: Any) -> None:
        op, cupy = self.op, self.device.cupy
        kind, roles = ROLES[type(op)]
        images = arrays[op.images].shape
        windows = {axis: along for axis, along in zip(op.axes, op.slidings(images), strict=True)}
        axes: list[Pooled | None] = []
        sizes: list[list[int]] = []
        for axis, size in enumerate(images):
            along = windows.get(axis)
            if along is not None:
                axes.append(Pooled(along.window, along.stride))
                sizes.append([size, along.positions, along.before])
            elif axes and axes[-1] is None:  # axes without windows, side by side, are one
                sizes[-1] = [sizes[-1][0] * size, sizes[-1][1] * size, 0]
            else:
                axes.append(None)
                sizes.append([size, size, 0])
        given = [None if role is None else target if role < 0 else arrays[role] for role in roles]
        if given[2] is not None:
            given[2] = given[2].astype(INT32, copy=False)
        given = [None if x is None else cupy.ascontiguousarray(x) for x in given]
        dtype = next(x.dtype for x in (given[0], given[1]) if x is not None)
        written = [size if kind.writes == "x" else count for size, count, _ in sizes]
        divides = prod(op.window) if isinstance(op, MeanOperator) and op.count_padding else 0
        divisors = [divisor(size) for size in written[1:]]
        words = [target.size, divides, *(number for each in sizes for number in each), *divisors]
        assert len(words) == len(parameter_names(axes))
        addresses = [x.data.ptr for x in given if x is not None]
        self.launch(_source(kind, dtype, axes), "pooled", target.size, [*addresses, *words])


def _source(kind: Any, dtype: np.dtype, axes: Axes) -> str:
    return source(kind, type_of(dtype), axes)
