"""Derivatives of pools on the CPU: NumPy arrays described to compiled C."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from backends.cpu.compiler import Source, Work, c_text, call_packed
from backends.cpu.routines.products import TYPES
from backends.cpu.routines.vectors import FOLDER, struct
from backends.cpu.runtime import share_address
from backends.execution.memory import LINE, element_strides, empty_array
from backends.execution.pooling import KINDS, Kind
from optree.arrays import overlap, stored
from optree.networks.pooling import INT32, MeanOperator, PoolOperator
from optree.settings import thread_count

#: Fewer elements times windows' elements than this are NumPy's until it has done `IN_ALL` in all calls, each of which
#: counts as some at least; or run on one thread.
SMALL, IN_ALL, LEAST, ALONE = 1 << 18, 1 << 22, 1 << 13, 1 << 18

#: The maximum axes of a kind.
AXES = 4

NAMES = ("pooled",)


@cache
def source(kind: Kind, number: str) -> str:
    """The C source for a kind of pooling and a number type, ``"float"`` or ``"double"``."""
    defined: dict[str, object] = {"T": number, "BY_INDEX": int(kind.is_by_index)}
    if kind.is_by_index:
        defined |= {"MEET(x, y)": kind.meet}
    else:
        defined |= {"MEET(x, t)": f"{{ {kind.meet} }}", "BEGIN(y, t)": f"{{ {kind.begin} }}"}
    return c_text(FOLDER / "pooling.c", defined)


class Pool:
    """A derivative of a pool on NumPy arrays.

    Parameters
    ----------
    backend : CPUBackend
    op : PoolOperator
    """

    def __init__(self, backend: Any, op: PoolOperator) -> None:
        self.backend, self.op = backend, op
        self.work = Work(backend, SMALL, IN_ALL, LEAST)

    def __call__(self, *arrays: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        op = self.op
        shape: Any = op.output_shape(*(x.shape for x in arrays))
        dtype = op.resolve_dtypes(*(x.dtype for x in arrays))[-1]
        functions = self._functions(arrays[0].dtype, [x.shape for x in arrays], shape)
        if functions is None:
            return stored(op.value(*arrays), out)  # type: ignore[no-any-return]
        fits = out is not None and not any(overlap(out, x) for x in arrays) and out.flags.c_contiguous
        target = out if out is not None and fits else empty_array(shape, dtype)
        self._run(functions["pooled"], arrays, target)
        return stored(target, out)  # type: ignore[no-any-return]

    def _functions(self, dtype: np.dtype, operands: Sequence[Any], shape: Any) -> Any:
        """The C functions; None if NumPy computes the value."""
        if not self._fits(dtype, operands, shape) or not self.work.pays(self._work(operands)):
            return None
        return self.backend.c_functions(*self._source(dtype))

    def sources(self, *arrays: Any) -> list[Source]:
        """The C functions that a call on arrays of these layouts surely needs, to be compiled before it."""
        shapes, dtype = [x.shape for x in arrays], arrays[0].dtype
        fits = self._fits(dtype, shapes, self.op.output_shape(*shapes))
        return [self._source(dtype)] if fits and self.work.pays_alone(self._work(shapes)) else []

    def _source(self, dtype: np.dtype) -> Source:
        return source(KINDS[type(self.op)], TYPES[dtype]), NAMES

    def _work(self, operands: Sequence[Any]) -> int:
        return prod(operands[self.op.images]) * prod(self.op.window)

    def _fits(self, dtype: np.dtype, operands: Sequence[Any], shape: Any) -> bool:
        """Whether compiled C handles arrays of these shapes."""
        images = operands[self.op.images]
        if dtype not in TYPES or not prod(shape) or not all(map(prod, operands)):
            return False
        axes, last = self.op.axes, len(images) - 1
        is_inner = last not in axes and axes[-1] != last - 1
        return len(axes) + is_inner <= AXES and last - len(axes) < AXES and list(axes) == sorted(axes)

    def _run(self, function: Any, arrays: Sequence[np.ndarray], target: np.ndarray) -> None:
        op, (delta, *others) = self.op, arrays
        indices = np.asarray(others[0], INT32) if KINDS[type(op)].is_by_index else None
        given: list[Any] = [target, delta, indices]
        target[...] = 0
        given = [x if x is None or x is target else np.ascontiguousarray(x) for x in given]
        x = target
        whole = [axis for axis in range(x.ndim) if axis not in op.axes]
        # The last axis in memory is that of vectors: the inner one if no windows slide along it.
        inner = whole.pop() if whole and whole[-1] == x.ndim - 1 else None
        # Windows of a row are next to each other: along an axis of one, where the last pooled axis is further out.
        axes = (*op.axes, None) if inner is not None and op.axes[-1] != x.ndim - 2 else op.axes
        slidings = [(s.size, s.window, s.stride, s.before, s.positions) for s in op.slidings(x.shape)]
        slidings += [(1, 1, 1, 0, 1)] * (len(axes) - len(op.axes))
        slidings = [(1, 1, 1, 0, 1)] * (AXES - len(axes)) + slidings
        outer = [1] * (AXES - len(whole)) + [x.shape[axis] for axis in whole]
        scratch_bytes = slidings[-1][-1] * (1 if inner is None else x.shape[inner]) * x.itemsize
        scratch_bytes += -scratch_bytes % LINE
        threads = thread_count() if x.size * prod(op.window) >= ALONE else 1
        scratch = empty_array((threads * scratch_bytes + LINE,), np.uint8)
        divides = prod(op.window) if isinstance(op, MeanOperator) and op.count_padding else 0
        addresses = [target.ctypes.data if y is None else y.ctypes.data for y in given]
        strides = [() if y is None else element_strides(y) for y in given]
        words = struct("pooling.c", "pool").words(
            share=share_address(),
            threads=threads,
            divides=divides,
            scratch=scratch.ctypes.data,
            scratch_bytes=scratch_bytes,
            outer=outer,
            **dict(zip("xyz", addresses, strict=True)),
            **{f"{y}_outer": _placed(steps, whole) for y, steps in zip("xyz", strides, strict=True)},
            **dict(zip(("size", "window", "stride", "before", "count"), zip(*slidings, strict=True), strict=True)),
            **{f"{y}_stride": _placed(steps, axes) for y, steps in zip("xyz", strides, strict=True)},
            inner=1 if inner is None else x.shape[inner],
        )
        call_packed(function, words)


def _placed(strides: Sequence[int], axes: Sequence[int | None]) -> list[int]:
    """The strides along the given axes: 0 for each None, for missing leading axes and for an absent operand."""
    return [0] * (AXES - len(axes)) + [0 if axis is None or not strides else strides[axis] for axis in axes]
