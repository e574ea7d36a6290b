"""Fourier transforms on a GPU, by cuFFT's plans as CuPy makes them.

CuPy's own cache of plans knows no streams, though a plan's work area is that of one call at a time. So plans are cached
here: a function's plans share its workspace, and others are of one stream and thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from threading import get_ident
from types import ModuleType
from typing import Any

from backends.gpu.workspace import PLANS, shared_workspace
from optree.arrays import stored
from optree.cache import Cache
from optree.dtypes import real_dtype
from optree.ops.fourier import TransformOperator

#: cuFFT's letters of dtypes.
LETTERS = {"float32": "R", "complex64": "C", "float64": "D", "complex128": "Z"}


class Transforms:
    """The values of transforms of device arrays."""

    def __init__(self, cupy: ModuleType) -> None:
        self.cupy, self._plans = cupy, Cache("plans of transforms", PLANS)

    def __call__(self, op: TransformOperator, x: Any, out: Any = None) -> Any:
        """`out`: the array for the value; it may overlap the operand."""
        cupy, (loop, dtype) = self.cupy, op.resolve_dtypes(x.dtype)
        axis, is_inverse = op.axis % x.ndim, type(op).transform.__name__.startswith("i")
        rows = cupy.ascontiguousarray(x.astype(loop, copy=False).swapaxes(axis, -1))
        if loop != dtype and is_inverse and cupy.may_share_memory(rows, x):
            rows = rows.copy()  # cuFFT writes over the operand of a transform to real numbers
        shape: list[Any] = list(op.output_shape(x.shape))
        size = shape[axis] if loop != dtype and is_inverse else x.shape[axis]
        shape[axis], shape[-1] = shape[-1], shape[axis]
        is_direct = out is not None and axis == x.ndim - 1 and out.dtype == dtype and out.flags.c_contiguous
        is_direct = is_direct and not cupy.may_share_memory(out, rows)
        made = out if is_direct else cupy.empty(tuple(shape), dtype)
        if made.size:
            kind = getattr(cupy.cuda.cufft, f"CUFFT_{LETTERS[str(loop)]}2{LETTERS[str(dtype)]}")
            self._plan(size, kind, made.size // shape[-1]).fft(rows, made, 1 if is_inverse else -1)
            divisor = size if op.norm == ("backward" if is_inverse else "forward") else 1
            if op.norm == "ortho" or divisor > 1:
                parts = made.view(real_dtype(dtype))
                parts /= size**0.5 if op.norm == "ortho" else divisor
        return made if is_direct else stored(made.swapaxes(axis, -1), out)

    def _plan(self, *key: int) -> Any:
        """The plan of transforms of a size, a kind and a number; a captured one is held by its graph."""
        cuda, shared = self.cupy.cuda, shared_workspace()
        place: tuple[int, ...] = ()
        if shared is None:
            plans, place = self._plans, (cuda.Device().id, cuda.get_current_stream().ptr, get_ident())
            allocating: Any = nullcontext()
        else:
            plans = shared.plans
            allocating = cuda.using_allocator(lambda size: shared.of(max(size, 1)).data)
        plan = plans.get((*key, *place))
        if plan is None:
            with allocating:
                plan = plans[(*key, *place)] = cuda.cufft.Plan1d(*key)
        if shared is not None and shared.held is not None:
            shared.held.append(plan)
        return plan


def transform(device: Any, op: TransformOperator) -> Callable[..., Any]:
    """`Routine.bind` of a transform."""
    return partial(device.transform, op)
