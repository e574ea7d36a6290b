"""Calls on device arrays: a table of library routines, CuPy's functions, or the op's own code.

Ops that are not portable run on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from backends.execution.loops import loop
from backends.execution.routines import (
    BEGINNING,
    Implementation,
    Routine,
    always,
    contraction,
    is_a_ufuncs,
    product,
    routine_of,
    takes_floats,
    takes_floats_first,
    takes_inexact,
    views,
)
from backends.gpu.attention import FusedAttention
from backends.gpu.capture import LAPACK, is_among, is_captured
from backends.gpu.convolution import Convolution
from backends.gpu.fourier import transform
from backends.gpu.vision import Regions
from optree.arrays import defers_checks, is_array, is_portable, overlap
from optree.compile.aliasing import given_away
from optree.compile.program import Instruction, Program
from optree.compile.reference import checked, performer, value_of_op
from optree.dtypes import is_complex
from optree.errors import BackendError
from optree.networks.attention import Attention, AttentionGradient
from optree.networks.convolution import Conv, ConvInput, ConvTranspose, ConvWeights
from optree.networks.recurrent import Parts
from optree.networks.vision import ArgmaxRoi
from optree.op.traits import CopyOperator, LoopOperator
from optree.ops.bits import CommonFactor
from optree.ops.collectives import Begin
from optree.ops.contraction import Dot, MatMul, TensorDot
from optree.ops.fourier import Fft, InverseFft, InverseRealFft, RealFft
from optree.ops.structure import Output
from optree.tree.types import NUMBERS, TensorType, weak_dtype

BOOL = np.dtype(bool)

#: CuPy's error for eigenvalues of general matrices where cuSOLVER is older than they are.
NO_GEEV = "geev is not available"

_PRODUCT = Routine(product, takes_inexact, writes_out=True, takes_epilogue=True, is_captured=True)
_ATTENTION = Routine(FusedAttention, always, is_captured=True)


def convolutions_by(device: Any) -> str:
    """The names of the libraries that compute convolutions on a device, for printing."""
    own = "cuBLASLt, a product for each element of a filter"
    return own if device.cudnn is None else f"cuDNN {device.cudnn.version}, and where it has no plan by {own}"


def _direct_by(device: Any) -> str:
    """The kernels of ops that have kernels of their own, or CuPy, for printouts."""
    return "CuPy" if device.kernels is None else "CUDA kernels"


_REGIONS = Routine(Regions, takes_floats_first, writes_out=True, is_captured=True, label=_direct_by)
_TRANSFORM = Routine(transform, always, writes_out=True, is_captured=True, label=lambda device: "cuFFT")
_CONVOLUTION = Routine(Convolution, takes_floats, writes_out=True, is_captured=True, label=convolutions_by)

#: The routines of ops: cuBLASLt multiplies matrices, those of attention's tiles among them; cuDNN or cuBLASLt
#: convolves; cuFFT transforms; kernels of ours take regions.
ROUTINES: dict[type, Routine] = {
    Dot: _PRODUCT,
    MatMul: _PRODUCT,
    TensorDot: Routine(contraction, takes_inexact, is_captured=True),
    Attention: _ATTENTION,
    AttentionGradient: _ATTENTION,
    Parts: Routine(views, always, is_captured=True, computes=False),
    Begin: BEGINNING,
    **dict.fromkeys((Conv, ConvInput, ConvTranspose, ConvWeights), _CONVOLUTION),
    ArgmaxRoi: _REGIONS,
    **dict.fromkeys((Fft, InverseFft, RealFft, InverseRealFft), _TRANSFORM),
}


def implementation_of(device: Any, program: Program, last: Sequence[int] | None, index: int) -> Implementation:
    """The implementation of an instruction.

    `device`: a `GPUBackend`.
    `last`: the `last_uses` of the program's instructions, where ops may keep their outputs' memory from call to call.
    """
    if program.instructions[index].op.draws:
        found = _implementation(device, program, last, index)
        return found._replace(call=_in_order(device, found.call))
    return _implementation(device, program, last, index)


def _in_order(device: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """A draw after all earlier ones, on whatever streams, as they share a random state; of graphs, their call is."""

    def drawn(*values: Any) -> Any:
        if defers_checks():
            return call(*values)
        with device.draws:
            return call(*values)

    return drawn


def _implementation(device: Any, program: Program, last: Sequence[int] | None, index: int) -> Implementation:
    """The implementation of an instruction, draws in no order."""
    instruction = program.instructions[index]
    op = instruction.op
    given = None if last is None else given_away(program, index, last)
    routine = routine_of(ROUTINES, program, index)
    if routine is not None and (is_portable(op) or device.kernels is not None):
        return routine.implementation(device, op)
    if not is_portable(op):
        return Implementation(_host_call(device, instruction, performer(instruction, given)))
    if isinstance(op, LoopOperator):
        return loop(device, program, index)
    if isinstance(op, Output):  # a graph has a tuple's parts if it makes the tuple
        made = instruction.inputs[0] - len(program.leaves)
        captured = made >= 0 and implementation_of(device, program, last, made).is_captured
        return Implementation(op.value, is_captured=captured)
    if is_among(op, LAPACK):
        return Implementation(_raising(device, _portable_call(device, instruction, given)))
    if not isinstance(instruction.type, TensorType) or op.defines("perform"):
        return Implementation(performer(instruction, given), is_captured=is_captured(op))
    ufunc = _ufunc_call(program, index) if is_a_ufuncs(program, index) else None
    call = checked(instruction, _device_value(device, instruction, ufunc or value_of_op(instruction)))
    write = op.fill if isinstance(op, CopyOperator) else None if ufunc is None else partial(_write, ufunc)
    into = None if write is None else partial(_into, write, call)
    return Implementation(call, into, is_captured=is_captured(op))


def _portable_call(device: Any, instruction: Instruction, given: Sequence[bool] | None) -> Callable[..., Any]:
    """An op's own code, on the device's arrays."""
    if not isinstance(instruction.type, TensorType) or instruction.op.defines("perform"):
        return performer(instruction, given)
    return checked(instruction, _device_value(device, instruction, value_of_op(instruction)))


def _raising(device: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """A call of linear algebra that raises on failure; by default CuPy returns arbitrary numbers."""

    def call(*values: Any) -> Any:
        with device.errstate(linalg="raise"):
            try:
                return run(*values)
            except RuntimeError as error:
                if str(error) != NO_GEEV:
                    raise
                raise BackendError(
                    f"{error} in this cuSOLVER: CUDA has it from 12.6.2 on, and a CPU backend has it"
                ) from error

    return call


def _into(write: Callable[..., Any], call: Callable[..., Any], *values: Any, out: Any) -> Any:
    """Write a value into an array, through a copy if the array overlaps the operands."""
    if any(overlap(out, x) for x in values):  # CuPy's kernels do not check this
        out[...] = call(*values)
    else:
        write(out, *values)
    return out


def _write(ufunc: Callable[..., Any], out: Any, *values: Any) -> None:
    ufunc(*values, out=out)


def _ufunc_call(program: Program, index: int) -> Callable[..., Any]:
    """An instruction's ufunc, on operands of the dtypes that NumPy computes in; other libraries choose others."""
    op, leaves = program.instructions[index].op, program.leaves
    given: list[Any] = []
    for i in program.instructions[index].inputs:
        is_weak = i < len(leaves) and type(leaves[i]) in NUMBERS
        given.append(weak_dtype(type(leaves[i])) if is_weak else program.type_of(i).dtype)
    loop = op.resolve_dtypes(*given)
    if op.numpy.__name__.startswith("logical"):  # CuPy's take no complex numbers
        loop = tuple(BOOL if is_complex(dtype) else dtype for dtype in loop)
    if isinstance(op, CommonFactor) and loop[0].kind == "i":
        return partial(_of_sizes, op.numpy, loop[0])
    pairs = enumerate(zip(given, loop, strict=False))
    casts = [(position, wanted) for position, (dtype, wanted) in pairs if dtype not in (int, float, wanted)]
    if not casts:
        return op.numpy

    def call(*values: Any, **out: Any) -> Any:
        operands = list(values)
        for position, dtype in casts:
            x = operands[position]
            operands[position] = x.astype(dtype) if is_array(x) else dtype.type(x)
        return op.numpy(*operands, **out)

    return call


def _of_sizes(ufunc: Callable[..., Any], dtype: np.dtype, *values: Any, **out: Any) -> Any:
    """A ufunc of signed integers by their sizes: of others, CuPy's `lcm` differs from NumPy's where it overflows."""
    unsigned = np.dtype(f"u{dtype.itemsize}")
    sizes = (abs(x.astype(dtype)).astype(unsigned) if is_array(x) else unsigned.type(abs(x)) for x in values)
    return ufunc(*sizes, **out)


def _device_value(device: Any, instruction: Instruction, value: Callable[..., Any]) -> Callable[..., Any]:
    """An op's value, an array of the device's whatever the operands are, and of the dtype that NumPy's would have."""
    dtype = instruction.type.dtype

    def run(*values: Any) -> Any:
        result = value(*values)
        if not device.is_own(result):  # of numbers alone
            return device.owned(result, dtype)
        return result if result.dtype == dtype else result.astype(dtype)  # other libraries' rules may be others

    return run


def _host_call(device: Any, instruction: Instruction, run: Callable[..., Any]) -> Callable[..., Any]:
    """A call on the host: operands are copied there, and back where the op has overwritten them."""
    op = instruction.op
    destroyed, unread = op.destroyed_inputs(), op.index_map.shape_only
    types = [output.type for output in instruction.node.owner.outputs]

    def call(*values: Any) -> Any:
        device.host_calls += 1
        copies = [_copied(device, value, i not in unread) for i, value in enumerate(values)]
        result = run(*copies)
        for i in destroyed:
            if device.is_own(values[i]):
                values[i][...] = device.owned(copies[i])
        results = result if len(types) > 1 else (result,)
        back = tuple(_back(device, x, t, values, copies, destroyed) for x, t in zip(results, types, strict=True))
        return back if len(types) > 1 else back[0]

    return call


def _copied(device: Any, value: Any, is_read: bool) -> Any:
    """A value on the host; where only its shape counts, an array of that shape."""
    if isinstance(value, tuple):
        return tuple(_copied(device, x, is_read) for x in value)
    if not device.is_own(value):
        return value
    return device.to_host(value) if is_read else np.broadcast_to(np.zeros((), value.dtype), value.shape)


def _back(
    device: Any, result: Any, type: Any, values: Sequence[Any], copies: Sequence[Any], destroyed: Sequence[int]
) -> Any:
    """An output on the device: the very operand that it was written over, or a copy."""
    for i in destroyed:
        if result is copies[i]:
            return values[i]
    return device.owned(result, type.dtype) if isinstance(type, TensorType) else result
