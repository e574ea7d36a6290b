"""Attention and its gradient on the CPU: NumPy arrays described to compiled C.

Compiled C handles float32 and float64 if the backend has a compiler, the queries fill a
vector and the work pays for the call. All other cases are computed in tiles by BLAS.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from backends.cpu.codegen.vector_math import EXP, MULTIPLY_ADD, VECTOR_MATH, WIDE_VECTORS
from backends.cpu.compiler import Source
from backends.cpu.openblas import share_products
from backends.cpu.routines.products import TYPES, is_in_elements
from backends.cpu.routines.vectors import struct, vector_source
from backends.cpu.runtime import share_address
from backends.execution.memory import HOST, LINE, element_strides, empty_array
from backends.execution.tiles import BackendTiles
from optree.networks.attention import AttentionGradient, AttentionOperator
from optree.settings import thread_count

#: Fewer multiplications and additions than this are NumPy's unless the backend compiles at once, and run on one thread.
SMALL, ALONE = 1 << 22, 1 << 20

#: The minimum number of queries: with fewer, most lanes of a vector would be empty.
FEW = 8

#: The most panels of queries that read a tile of keys one after the other; and forward, tasks for each thread.
PANELS, TASKS = 4, 8

NAMES = ("attend", "scratch_bytes", "panel_width")


#: The functions of vectors that the C calls, as one file.
_MATH = (
    ("vector_math.h", f"{WIDE_VECTORS}#include <stdint.h>\n{VECTOR_MATH}#include <tgmath.h>\n{MULTIPLY_ADD}{EXP}"),
)


def source(number: str, is_gradient: bool) -> str:
    """The C source for numbers of a type."""
    return vector_source("attention.c", number, _MATH, GRADIENT=int(is_gradient))


def _work(matrices: Sequence[np.ndarray]) -> int:
    """The multiplications and additions of two products."""
    query, key, value = matrices[:3]
    return 2 * prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])


class CompiledAttention:
    """Attention, or its gradient, on NumPy arrays.

    `backend`: a `CPUBackend`.
    """

    def __init__(self, backend: Any, op: AttentionOperator) -> None:
        self._backend, self._op = backend, op
        self._is_gradient = isinstance(op, AttentionGradient)
        self._tiles = BackendTiles(backend, share_products)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        matrices, masks = self._op.broadcast([np.asarray(x) for x in inputs])
        work = _work(matrices)
        functions = None
        if self._is_ours([*matrices, *masks], work):
            functions = self._backend.c_functions(source(TYPES[matrices[0].dtype], self._is_gradient), NAMES)
        if functions is None:
            return self._op.run(self._tiles, *inputs)
        outputs = self._op.outputs(*matrices)
        self._run(functions, matrices, masks, outputs, thread_count() if work >= ALONE else 1)
        return tuple(outputs)

    def sources(self, *inputs: Any) -> list[Source]:
        """The C functions that a call on arrays of these layouts surely needs, to be compiled before it."""
        matrices, masks = self._op.broadcast([*inputs])
        is_ours = self._is_ours([*matrices, *masks], _work(matrices))
        return [(source(TYPES[matrices[0].dtype], self._is_gradient), NAMES)] if is_ours else []

    def _is_ours(self, arrays: Sequence[np.ndarray], work: int) -> bool:
        """Whether compiled C handles these arrays."""
        query = arrays[0]
        return (
            query.dtype in TYPES
            and all(x.dtype == query.dtype for x in arrays[: self._op.count])
            and all(map(is_in_elements, arrays))
            and query.shape[-2] >= FEW
            and (self._backend.compiles_at_once or work >= SMALL)
        )

    def _run(
        self,
        functions: dict[str, Any],
        matrices: Sequence[np.ndarray],
        masks: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        threads: int,
    ) -> None:
        query, key, value = matrices[:3]
        *leading, queries, features = query.shape
        panels = -(-queries // functions["panel_width"](0))
        heads = prod(leading)
        if self._is_gradient:
            panels, threads = min(PANELS, panels), max(1, min(threads, heads))
        else:
            panels = max(1, min(PANELS, heads * panels // (TASKS * threads)))
        strides = [element_strides(x) for x in (*matrices, *masks)]
        strides += [(0,) * query.ndim] * (not masks)
        addresses = [*map(HOST.address, (*matrices, *masks)), *([] if masks else [0])]
        results = [*map(HOST.address, outputs), *([0] * (3 - len(outputs)))]
        description = struct("attention.c", "attention")
        words = description.words(
            share=share_address(),
            threads=threads,
            scratch=0,
            scratch_size=0,
            x=addresses,
            out=results,
            queries=queries,
            keys=key.shape[-2],
            features=features,
            width=value.shape[-1],
            panels=panels,
            causal=self._op.causal,
            mask_bytes=masks[0].itemsize if masks else 0,
            row=[each[-2] for each in strides],
            column=[each[-1] for each in strides],
            scale=int(np.float64(self._op.factor(query)).view(np.int64)),
            axes=len(leading),
            leading=[*leading, *(step for each in strides for step in each[:-2])],
        )
        problem, _ = words.buffer_info()
        size = functions["scratch_bytes"](problem)
        size += -size % LINE
        scratch = empty_array((size * threads,), np.uint8)
        description.set(words, scratch=HOST.address(scratch), scratch_size=size)
        functions["attend"](problem)
