"""Attention on the CPU: NumPy arrays described to compiled C.

The rule: float32 and float64, of a compiler's backend, where there are queries for
a vector and the work pays for the call; all else is computed in tiles by BLAS.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from backends.cpu.codegen.attention import source
from backends.cpu.openblas import share_products
from backends.cpu.products import TYPES, is_in_elements
from backends.cpu.thread_pool import thread_count
from backends.cpu.workers import share_address
from backends.execution.memory import HOST, LINE, empty_array
from backends.execution.tiles import BackendTiles
from optree.ops.attention import Attention

#: Fewer multiplications and additions than this are NumPy's unless `jit=True`, and run on one thread.
SMALL, ALONE = 1 << 22, 1 << 20

#: The fewest queries: with fewer, most of a vector would be empty.
FEW = 8

#: The most panels of queries of a task, which read a tile of keys one after the other; and tasks for each thread.
PANELS, TASKS = 4, 8

NAMES = ("attend", "scratch_bytes", "panel_width")


class CompiledAttention:
    """Attention on NumPy arrays.

    Parameters
    ----------
    backend : CPUBackend
    op : Attention
    """

    def __init__(self, backend: Any, op: Attention) -> None:
        self._backend, self._op = backend, op
        self._tiles = BackendTiles(backend, backend.product, share_products)
        self._functions: dict[np.dtype, dict[str, Any] | None] = {}

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        (query, key, value), masks = self._op.broadcast([np.asarray(x) for x in inputs])
        work = 2 * prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])
        arrays = [query, key, value, *masks]
        functions = self._of(query.dtype) if self._is_ours(arrays, work) else None
        if functions is None:
            return self._op.run(self._tiles, *inputs)
        outputs = self._op.outputs(query, key, value)
        self._run(functions, arrays, outputs, thread_count() if work >= ALONE else 1)
        return tuple(outputs)

    def _is_ours(self, arrays: Sequence[np.ndarray], work: int) -> bool:
        """Whether compiled C computes it."""
        query = arrays[0]
        return (
            query.dtype in TYPES
            and all(x.dtype == query.dtype for x in arrays[:3])
            and all(map(is_in_elements, arrays))
            and query.shape[-2] >= FEW
            and (self._backend.jit is True or work >= SMALL)
        )

    def _of(self, dtype: np.dtype) -> dict[str, Any] | None:
        """The C functions; None without a compiler."""
        if dtype not in self._functions:
            self._functions[dtype] = self._backend.c_functions(source(TYPES[dtype]), NAMES)
        return self._functions[dtype]

    def _run(
        self,
        functions: dict[str, Any],
        arrays: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        threads: int,
    ) -> None:
        query, key, value, *mask = arrays
        *leading, queries, features = query.shape
        panels = prod(leading) * -(-queries // functions["panel_width"](0))
        panels = max(1, min(PANELS, panels // (TASKS * threads)))
        strides = [[stride // x.itemsize for stride in x.strides] for x in arrays]
        strides += [[0] * query.ndim] * (4 - len(strides))
        addresses = [*map(HOST.address, arrays), *([] if mask else [0]), *map(HOST.address, outputs)]
        sizes = [queries, key.shape[-2], features, value.shape[-1], panels, self._op.causal]
        scale = np.float64(self._op.factor(query)).view(np.int64)
        words = array("q", [share_address(), threads, 0, 0, *addresses, *sizes, mask[0].itemsize if mask else 0])
        words.extend([*(each[-2] for each in strides), *(each[-1] for each in strides), int(scale), len(leading)])
        words.extend([*leading, *(step for each in strides for step in each[:-2])])
        problem, _ = words.buffer_info()
        size = functions["scratch_bytes"](problem)
        size += -size % LINE
        scratch = empty_array((size * threads,), np.uint8)
        words[2:4] = array("q", [HOST.address(scratch), size])
        functions["attend"](problem)
