"""The rows of the CPU's table of routines for convolutions, pools, attention and recurrent networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

from backends.cpu.convolution import Convolution
from backends.cpu.openblas import share_products
from backends.cpu.pooling import Pool
from backends.execution.routines import BEGINNING, Routine, always, takes_floats, views
from backends.execution.tiles import BackendTiles
from optree.compile.program import Program
from optree.dtypes import is_floating
from optree.ops.attention import Attention, AttentionGradient
from optree.ops.collectives import Begin
from optree.ops.convolution import Conv, ConvInput, ConvTranspose, ConvWeights
from optree.ops.pooling import ArgmaxPool, AvgPool, AvgUnpool, MaxPool, MaxUnpool, TakePool
from optree.ops.recurrent import Parts
from optree.tree.types import NUMBERS


def _in_tiles(backend: Any, op: Any) -> Callable[..., Any]:
    """Attention, in tiles that BLAS multiplies; threads share the heads."""
    return partial(op.run, BackendTiles(backend, backend.product, share_products))


def _floats_first(program: Program, index: int) -> bool:
    """Whether an instruction's first operand is an array of floats, and none is a number."""
    inputs, leaves = program.instructions[index].inputs, program.leaves
    has_numbers = any(i < len(leaves) and isinstance(leaves[i], NUMBERS) for i in inputs)
    return not has_numbers and is_floating(program.type_of(inputs[0]).dtype)


_WINDOWS_BY = methodcaller("windows_by")
_ATTENTION = Routine(_in_tiles, always)
_POOL = Routine(Pool, _floats_first, writes_out=True, label=_WINDOWS_BY)
_CONVOLUTION = Routine(Convolution, takes_floats, writes_out=True, label=_WINDOWS_BY)

ROUTINES: dict[type, Routine] = {Parts: Routine(views, always, computes=False), Begin: BEGINNING}
ROUTINES.update(dict.fromkeys((Conv, ConvInput, ConvTranspose, ConvWeights), _CONVOLUTION))
ROUTINES.update(dict.fromkeys((MaxPool, ArgmaxPool, MaxUnpool, TakePool, AvgPool, AvgUnpool), _POOL))
ROUTINES.update(dict.fromkeys((Attention, AttentionGradient), _ATTENTION))
