"""Instructions as functions of NumPy's arrays: the table of libraries' routines, NumPy's ufuncs, and ops' own code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from backends.cpu.convolution import Convolution
from backends.cpu.openblas import share_products
from backends.cpu.pooling import Pool
from backends.cpu.products import merging
from backends.execution.loops import loop
from backends.execution.routines import (
    BEGINNING,
    Implementation,
    ImplementationOf,
    Routine,
    always,
    routine_of,
    takes_floats,
    views,
)
from backends.execution.tiles import BackendTiles
from optree.arrays import overlap
from optree.compile.aliasing import given_away
from optree.compile.program import Program
from optree.compile.reference import checked, is_widened, performer
from optree.dtypes import is_floating
from optree.ops.attention import Attention, AttentionGradient
from optree.ops.collectives import Begin
from optree.ops.contraction import Dot, MatMul
from optree.ops.convolution import Conv, ConvInput, ConvTranspose, ConvWeights
from optree.ops.loops import Scan
from optree.ops.pooling import ArgmaxPool, AvgPool, AvgUnpool, MaxPool, MaxUnpool, TakePool
from optree.ops.recurrent import Parts
from optree.ops.structure import Output
from optree.ops.traits import ElementwiseOperator
from optree.tree.types import NUMBERS, TensorType


def _is_a_ufuncs(program: Program, index: int) -> bool:
    """Whether an instruction's value is that of a ufunc, called as it is."""
    node = program.instructions[index].node
    op = node.op
    is_plain = isinstance(op.numpy, np.ufunc) and not op.defines("value") and not op.props
    return is_plain and not is_widened(node)


def _product(backend: Any, op: Any) -> Callable[..., Any]:
    return backend.product  # type: ignore[no-any-return]


def _stacked_product(backend: Any, op: Any) -> Callable[..., Any]:
    return merging(backend.product)


def _in_tiles(backend: Any, op: Any) -> Callable[..., Any]:
    """Attention, in tiles that BLAS multiplies; threads share the heads."""
    return partial(op.run, BackendTiles(backend, backend.product, share_products))


def _filled(fill: Callable[..., None], call: Callable[..., Any], *arrays: Any, out: Any) -> Any:
    """An op's value, written into an array that may overlap the operands."""
    if any(overlap(out, x) for x in arrays):
        out[...] = call(*arrays)
    else:
        fill(out, *arrays)
    return out


_PRODUCT = Routine(_product, _is_a_ufuncs, writes_out=True)
_ATTENTION = Routine(_in_tiles, always)


def _floats_first(program: Program, index: int) -> bool:
    """Whether an instruction's first operand is an array of floats, and none is a number."""
    inputs, leaves = program.instructions[index].inputs, program.leaves
    has_numbers = any(i < len(leaves) and isinstance(leaves[i], NUMBERS) for i in inputs)
    return not has_numbers and is_floating(program.type_of(inputs[0]).dtype)


def windows_by(backend: Any) -> str:
    """Implementations of convolutions and pools on a CPU backend."""
    if backend.compiler is None:
        return "NumPy"
    return "compiled C" if backend.jit is True else "compiled C where it pays"


_POOL = Routine(Pool, _floats_first, writes_out=True, label=windows_by)
_CONVOLUTION = Routine(Convolution, takes_floats, writes_out=True, label=windows_by)

#: The routines by which libraries compute ops, and compiled C of ours.
ROUTINES: dict[type, Routine] = {
    Dot: _PRODUCT,
    MatMul: Routine(_stacked_product, _is_a_ufuncs, writes_out=True),
    **dict.fromkeys((Conv, ConvInput, ConvTranspose, ConvWeights), _CONVOLUTION),
    **dict.fromkeys((MaxPool, ArgmaxPool, MaxUnpool, TakePool, AvgPool, AvgUnpool), _POOL),
    Attention: _ATTENTION,
    AttentionGradient: _ATTENTION,
    Parts: Routine(views, always, computes=False),
    Begin: BEGINNING,
}


def implementations_of(backend: Any, program: Program, last: Sequence[int] | None) -> ImplementationOf:
    """The implementations of a program's instructions.

    Parameters
    ----------
    last : sequence of int or None
        The `last_uses` of the program's instructions, where ops may keep their outputs' memory from call to call.
    """
    known: dict[int, Implementation] = {}  # of ufuncs, by node: applications of one type from one line share theirs

    def implementation_of(index: int) -> Implementation:
        node = id(program.instructions[index].node)
        found = known.get(node)
        if found is None:
            found = _implementation(backend, program, last, index)
            if isinstance(found.call, np.ufunc):
                known[node] = found
        return found

    return implementation_of


def _implementation(backend: Any, program: Program, last: Sequence[int] | None, index: int) -> Implementation:
    instruction = program.instructions[index]
    op = instruction.op
    routine = routine_of(ROUTINES, program, index)
    if routine is not None:
        return routine.implementation(backend, op)
    if isinstance(op, Scan):
        return loop(backend, program, index)
    if isinstance(op, Output):
        return Implementation(op.value)
    if op.defines("perform") or op.defines("make_thunk") or not isinstance(instruction.type, TensorType):
        return Implementation(performer(instruction, None if last is None else given_away(program, index, last)))
    if not _is_a_ufuncs(program, index):
        call = checked(instruction)
        into = None if op.fill is None or is_widened(instruction.node) else partial(_filled, op.fill, call)
        return Implementation(call, into, update=op.update, is_atomic=into is not None)
    return Implementation(op.numpy, op.numpy, op.writes_strided, isinstance(op, ElementwiseOperator))
