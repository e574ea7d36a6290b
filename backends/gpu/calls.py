"""Instructions as functions of a device's arrays: run there where the op is portable, and on the host where not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np

from backends.execution.epilogues import multiplies_floats
from backends.gpu.matmul import Products
from optree.arrays import is_array, is_portable, overlap
from optree.compile.program import Instruction, Program
from optree.compile.reference import checked, is_widened, performer, value_of_op
from optree.ops.assignment import Assign
from optree.tree.types import NUMBERS, TensorType, weak_dtype


class Device(Protocol):
    """What calls need of the backend whose arrays they take."""

    host_calls: int
    products: Products
    errstate: Callable[..., Any]

    def is_own(self, value: Any) -> bool:
        """Whether a value is an array of the device's."""

    def owned(self, value: Any, dtype: np.dtype | None = None) -> Any:
        """A value as an array of the device's."""

    def to_host(self, array: Any, blocking: bool = True) -> np.ndarray:
        """A copy of an array as a NumPy array."""


def call_of(device: Device, program: Program, place: int, keep: bool) -> Callable[..., Any]:
    """The function of arrays that computes an instruction."""
    instruction = program.instructions[place]
    if not is_portable(instruction.op):
        return _host_call(device, instruction, performer(instruction, program.given_away(place) if keep else None))
    if multiplies_floats(program, place):
        return device.products if instruction.op.numpy is np.matmul else _Contraction(device.products, instruction.op)
    run: Callable[..., Any]
    if not isinstance(instruction.type, TensorType) or instruction.op.defines("perform"):
        run = performer(instruction, program.given_away(place) if keep else None)
    else:
        run = checked(instruction, _device_value(device, program, place))
    return _raising(device, run) if instruction.op.calls_lapack else run


def _raising(device: Device, run: Callable[..., Any]) -> Callable[..., Any]:
    """A call of linear algebra that raises where there is no value; CuPy gives any numbers unless it is told to."""

    def call(*values: Any) -> Any:
        with device.errstate(linalg="raise"):
            return run(*values)

    return call


def writes_target(program: Program, place: int, last_uses: Sequence[int]) -> bool:
    """Whether an instruction assigns what the one before it, a ufunc, made for nobody else: in one call, no copy."""
    instruction, made = program.instructions[place], len(program.leaves) + place - 1
    if (
        not isinstance(instruction.op, Assign)
        or place == 0
        or instruction.inputs[1] != made
        or last_uses[made] != place
    ):
        return False
    producer = program.instructions[place - 1]
    return _is_plain_ufunc(producer) and producer.type is instruction.type


def into_target(device: Device, program: Program, place: int) -> Callable[..., Any]:
    """A ufunc's call that writes into the target, its first argument; by way of a copy where the two overlap."""
    run: Callable[..., Any] = device.products if multiplies_floats(program, place) else ufunc_call(program, place)

    def call(target: Any, *values: Any) -> Any:
        if any(overlap(target, x) for x in values):  # a kernel does not look out for that
            target[...] = run(*values)
        else:
            run(*values, out=target)
        return target

    return call


def _is_plain_ufunc(instruction: Instruction) -> bool:
    """Whether an instruction's value is that of a ufunc, called as it is."""
    op = instruction.op
    plain = isinstance(op.numpy, np.ufunc) and is_portable(op) and not op.defines("value") and not op.props
    return plain and not is_widened(instruction.node)


class _Contraction:
    """A tensordot as a product of matrices."""

    is_captured = True

    def __init__(self, product: Products, op: Any) -> None:
        self._product, self._axes = product, op.axes

    def __call__(self, x: Any, y: Any) -> Any:
        left, right = self._axes
        kept = [[i for i in range(z.ndim) if i not in axes] for z, axes in ((x, left), (y, right))]
        shape = (*(x.shape[i] for i in kept[0]), *(y.shape[i] for i in kept[1]))
        count = prod(x.shape[i] for i in left)
        rows = x.transpose(*kept[0], *left).reshape(prod(x.shape[i] for i in kept[0]), count)
        columns = y.transpose(*right, *kept[1]).reshape(count, prod(y.shape[i] for i in kept[1]))
        return self._product(rows, columns).reshape(shape)


def ufunc_call(program: Program, place: int) -> Callable[..., Any]:
    """An instruction's ufunc, on operands of the dtypes that NumPy computes in; other libraries choose others."""
    op, leaves = program.instructions[place].op, program.leaves
    given: list[Any] = []
    for i in program.instructions[place].inputs:
        is_weak = i < len(leaves) and type(leaves[i]) in NUMBERS
        given.append(weak_dtype(type(leaves[i])) if is_weak else program.type_of(i).dtype)
    pairs = enumerate(zip(given, op.resolve_dtypes(*given), strict=False))
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


def _device_value(device: Device, program: Program, place: int) -> Callable[..., Any]:
    """An op's value, an array of the device's whatever the operands are, and of the dtype that NumPy's would have."""
    instruction, dtype = program.instructions[place], program.instructions[place].type.dtype
    value = ufunc_call(program, place) if _is_plain_ufunc(instruction) else value_of_op(instruction)

    def run(*values: Any) -> Any:
        result = value(*values)
        if not device.is_own(result):  # of numbers alone
            return device.owned(result, dtype)
        return result if result.dtype == dtype else result.astype(dtype)  # other libraries' rules may be others

    return run


def _host_call(device: Device, instruction: Instruction, run: Callable[..., Any]) -> Callable[..., Any]:
    """What runs on copies of the operands, which come back where the op has overwritten them."""
    op = instruction.op
    destroyed, unread = op.destroyed_inputs(), op.shape_only
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


def _copied(device: Device, value: Any, is_read: bool) -> Any:
    """A value on the host; where only its shape counts, an array of that shape."""
    if isinstance(value, tuple):
        return tuple(_copied(device, x, is_read) for x in value)
    if not device.is_own(value):
        return value
    return device.to_host(value) if is_read else np.broadcast_to(np.zeros((), value.dtype), value.shape)


def _back(
    device: Device, result: Any, type: Any, values: Sequence[Any], copies: Sequence[Any], destroyed: Sequence[int]
) -> Any:
    """An output on the device: the very operand that it was written over, or a copy."""
    for i in destroyed:
        if result is copies[i]:
            return values[i]
    return device.owned(result, type.dtype) if isinstance(type, TensorType) else result
