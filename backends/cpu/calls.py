"""Instructions as functions of NumPy's arrays: the table of libraries' routines, NumPy's ufuncs, and ops' own code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backends import lazy
from backends.backend import Backend
from backends.cpu.in_blocks import InBlocks
from backends.cpu.routines.products import merging
from backends.execution.memory import Reused
from backends.execution.routines import (
    Implementation,
    Routine,
    contraction,
    is_a_ufuncs,
    product,
    routine_of,
    takes_floats,
)
from optree.compile.aliasing import given_away
from optree.compile.program import Program
from optree.compile.reference import checked, is_widened, performer
from optree.op.traits import BlockOperator, ElementwiseOperator, LoopOperator, UpdateOperator
from optree.ops.contraction import Dot, MatMul, TensorDot
from optree.ops.logic import CONTIGUOUS_ONLY
from optree.ops.structure import Output
from optree.tree.types import TensorType


def _stacked_product(backend: Any, op: Any) -> Callable[..., Any]:
    multiply: Any = merging(backend.product)
    multiply.sources = backend.product.sources
    return multiply  # type: ignore[no-any-return]


def _multiplies_floats(program: Program, index: int) -> bool:
    """Whether an instruction gives floats that BLAS has, of arrays alone."""
    return takes_floats(program, index) and not is_widened(program.instructions[index].node)


#: The routines by which libraries compute ops; `backends.cpu.libraries` has those for the ops of `FAMILIES`.
ROUTINES: dict[type, Routine] = {
    Dot: Routine(product, is_a_ufuncs, writes_out=True),
    MatMul: Routine(_stacked_product, is_a_ufuncs, writes_out=True),
    TensorDot: Routine(contraction, _multiplies_floats),
}
FAMILIES = frozenset(
    (
        "optree.ops.collectives",
        "optree.ops.fourier",
        *(f"optree.networks.{name}" for name in ("attention", "convolution", "recurrent")),
    )
)


def implementation(
    backend: Backend, program: Program, last: Sequence[int] | None, known: dict[int, Implementation], index: int
) -> Implementation:
    """The implementation of an instruction.

    `last`: the `last_uses` of the program's instructions, where ops may keep their outputs' memory from call to call.
    `known`: those of values so far, by node: applications of one type from one line share theirs.
    """
    node = program.instructions[index].node
    found = known.get(id(node)) or _of_its_own(backend, program, last, index)
    if found is None:
        found = known[id(node)] = _of_a_value(program, index)
    return found


def _of_its_own(backend: Backend, program: Program, last: Sequence[int] | None, index: int) -> Implementation | None:
    """An implementation that belongs to one instruction, such as one that keeps its outputs' memory; None if any does.

    A ufunc, or an op's `value`, serves every instruction of the same op and types.
    """
    instruction = program.instructions[index]
    op = instruction.op
    routine = routine_of(lazy.libraries.ROUTINES if type(op).__module__ in FAMILIES else ROUTINES, program, index)
    if routine is not None:
        return routine.implementation(backend, op)
    if isinstance(op, LoopOperator):
        is_returned = None if last is None else given_away(program, index, last)
        return lazy.loops.loop(backend, program, index, Reused(is_returned))  # type: ignore[no-any-return]
    if isinstance(op, Output):
        return Implementation(op.value)
    if op.defines("perform") or op.defines("make_thunk") or not isinstance(instruction.type, TensorType):
        return Implementation(performer(instruction, None if last is None else given_away(program, index, last)))
    return None


def _of_a_value(program: Program, index: int) -> Implementation:
    """An op's ufunc, or its `value`."""
    instruction = program.instructions[index]
    op = instruction.op
    if is_a_ufuncs(program, index) and not isinstance(op, BlockOperator):
        return Implementation(op.numpy, op.numpy, op.numpy not in CONTIGUOUS_ONLY, isinstance(op, ElementwiseOperator))
    call = checked(instruction)
    fill = None if is_widened(instruction.node) else op.fill
    update = op.update if isinstance(op, UpdateOperator) else None
    if fill is None and not isinstance(op, BlockOperator):
        return Implementation(call, update=update)
    call = InBlocks(op, call, fill, instruction.type.dtype)
    return Implementation(call, call, update=update, is_atomic=True)
