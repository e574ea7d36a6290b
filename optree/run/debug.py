"""Debug mode of functions: programs run op by op, and each op is checked against its contract.

Each step runs three times: twice on copies of its inputs, the second time with the
first run's output cells, and then on the inputs themselves.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from optree.compile.aliasing import byte_bounds
from optree.compile.pipeline import PASSES, each_pass, lower
from optree.compile.program import Instruction, Program
from optree.compile.reference import is_widened, performer, run_each, taken, value_of
from optree.dtypes import finfo, is_complex, is_floating, is_inexact
from optree.errors import ContractError, NotFiniteError, describe, line_of
from optree.tree.types import TensorType, Type
from optree.tree.variable import Variable

#: The passes whose rules may change lost digits and values that are not finite, and the relative error allowed to the
#: unstable form of an expression.
UNSTABLE, LOST_DIGITS = ("stabilise", "complex"), 0.1

#: Copies start at the original's address modulo this many bytes, a cache line and the widest vector register.
ALIGNMENT = 64

#: Units in the last place, of the largest element, by which two runs of one op on equal inputs may differ:
#: libraries order their sums by the alignment of the output, too.
LAST_BITS = 16

#: Mutable containers, which two values may not share; immutable objects they may.
_CONTAINERS = (list, dict, set, bytearray)


def evaluate(program: Program, values: Sequence[Any]) -> list[Any]:
    """The outputs of a program for these values of its leaves.

    Raises ContractError if an op leaves a cell empty, resizes it, or stores a value that its type refuses; changes an
    input without a destroy_map; returns an output aliased with an input without a view_map, or with an output of an
    earlier call; returns other outputs for equal inputs, or with reused cells; or contradicts its infer_shape.
    Raises NotFiniteError if an op computes a nan or an infinity from finite inputs.
    """
    return run_each(program, values, _checked)


def check_rewrites(program: Program, values: Sequence[Any], without: Sequence[str] = ()) -> None:
    """Refuse a rewrite that changes a program's outputs for these values, which are not modified.

    It raises ContractError, naming the rule.
    """
    before = _outputs(program, values)
    for name, rewritten, _ in each_pass(program, True, without):
        after = _outputs(rewritten, values)
        wrong = _changed(name, program, before, after)
        if wrong is not None:
            guilty = _guilty_rule(name, program, values, without)
            raise ContractError(
                f"the rewrite {guilty} changes output {wrong}: {before[wrong]!r:.80} becomes {after[wrong]!r:.80}; "
                f"Mode(without=({guilty!r},)) leaves it out"
            )
        before = after


def _outputs(program: Program, values: Sequence[Any]) -> list[Any]:
    """A program's outputs, computed on copies of the values and of the constants added by rules."""
    ordered = lower(program, first="copies")
    return run_each(ordered, _copies([*values, *map(value_of, program.leaves[len(values) :])]), _computed)


def _changed(name: str, program: Program, before: Sequence[Any], after: Sequence[Any]) -> int | None:
    """The index of the first output that has changed; `UNSTABLE` passes may change lost digits."""
    for i, (number, x, y) in enumerate(zip(program.outputs, before, after, strict=True)):
        type = program.type_of(number)
        if name in UNSTABLE and isinstance(type, TensorType) and is_inexact(type.dtype):
            near = float(finfo(type.dtype).eps) ** 0.5
            finite = np.isfinite(x)
            if np.allclose(np.where(finite, y, 0), np.where(finite, x, 0), rtol=LOST_DIGITS, atol=near):
                continue
        elif _equal(type, x, y):
            continue
        return i
    return None


def _equal(type: Type, x: object, y: object) -> bool:
    """Whether two values are equal, floating and complex ones up to `LAST_BITS`."""
    if type.values_eq(x, y):
        return True
    if not isinstance(type, TensorType) or not is_inexact(type.dtype):
        return False
    x, y = np.asarray(x), np.asarray(y)
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    largest = np.max(np.abs(x), initial=0, where=np.isfinite(x))
    near = LAST_BITS * float(finfo(type.dtype).eps) * float(largest)
    wide = np.complex128 if is_complex(type.dtype) else np.float64
    return bool(np.allclose(y.astype(wide), x.astype(wide), rtol=0, atol=near, equal_nan=True))


def _copies(values: Sequence[Any]) -> list[Any]:
    """Deep copies; arrays keep their strides and alignment, by which NumPy chooses its loops."""
    shared = {id(x): _copy_of_array(x) for x in values if type(x) is np.ndarray and x.size and not x.dtype.hasobject}
    return deepcopy(list(values), shared)


def _copy_of_array(array: np.ndarray) -> np.ndarray:
    """A copy with the original's strides and alignment."""
    address = array.ctypes.data
    low, high = byte_bounds(array)
    room = np.empty(high - low + ALIGNMENT, np.uint8)
    start = (low - room.ctypes.data) % ALIGNMENT
    room[start : start + high - low] = np.frombuffer((ctypes.c_char * (high - low)).from_address(low), np.uint8)  # type: ignore[call-overload]
    return np.ndarray(array.shape, array.dtype, room, start + address - low, array.strides)


def _guilty_rule(name: str, program: Program, values: Sequence[Any], without: Sequence[str]) -> str:
    """The first rule whose omission makes a pass correct; the pass itself if there is none."""
    for rule in next(each.rules for each in PASSES if each.name == name):
        spared = (*without, rule.__name__)
        before = _outputs(program, values)
        for stage, rewritten, _ in each_pass(program, True, spared):
            after = _outputs(rewritten, values)
            if stage == name and _changed(name, program, before, after) is None:
                return rule.__name__
            before = after
    return name


def _computed(instruction: Instruction, *inputs: object) -> Any:
    """The value of an instruction."""
    return _run(instruction, list(inputs), [[None] for _ in instruction.node.owner.outputs])


def _checked(instruction: Instruction, *operands: Variable) -> Any:
    """The value of an instruction whose op is held to its contract."""
    inputs, before = list(operands), _copies(operands)
    cells: list[list[Any]] = [[None] for _ in instruction.node.owner.outputs]
    first = deepcopy(_run(instruction, _copies(before), cells))
    second = _run(instruction, _copies(before), cells)
    _check_equal(instruction, first, second, "in cells that held the values of the call before")
    value = _run(instruction, inputs, [[None] for _ in cells])
    _check_equal(instruction, first, value, "for equal inputs")
    _check_inputs(instruction, before, inputs)
    _check_memory(instruction, inputs, _as_tuple(instruction, value))
    _check_new(instruction, _as_tuple(instruction, second), _as_tuple(instruction, value))
    _check_shapes(instruction, before, _as_tuple(instruction, value))
    _check_finite(instruction, before, _as_tuple(instruction, value))
    return value


def _run(instruction: Instruction, inputs: list[Any], cells: list[list[Any]]) -> Any:
    op, apply = instruction.op, instruction.node.owner
    if not op.defines("perform") and (op.defines("make_thunk") or is_widened(instruction.node)):
        return performer(instruction)(*inputs)
    perform = getattr(op, "debug_perform", None) or op.perform
    perform(apply, inputs, cells)
    return taken(instruction, inputs, cells)


def _check_equal(instruction: Instruction, first: object, second: object, when: str) -> None:
    types = [x.type for x in instruction.node.owner.outputs]
    pairs = zip(_as_tuple(instruction, first), _as_tuple(instruction, second), strict=True)
    if not all(_equal(type, x, y) for type, (x, y) in zip(types, pairs, strict=True)):
        raise ContractError(
            f"{_guilty(instruction)}: perform gives other outputs {when}: {first!r:.80}, {second!r:.80}"
        )


def _check_inputs(instruction: Instruction, before: list[Any], after: list[Any]) -> None:
    """Refuse a change to an input that is not in destroy_map."""
    destroyed = instruction.op.destroyed_inputs()
    for i, variable in enumerate(instruction.node.owner.inputs):
        if i not in destroyed and not variable.type.values_eq(before[i], after[i]):
            raise ContractError(
                f"{_guilty(instruction)}: perform changed input {i}; declare it, as in destroy_map = {{0: [{i}]}}, "
                "or work on a copy"
            )


def _check_memory(instruction: Instruction, inputs: list[Any], outputs: Sequence[Any]) -> None:
    """Refuse an output aliased with an input that is in neither view_map nor destroy_map."""
    op = instruction.op
    for index, output in enumerate(outputs):
        allowed = {*op.view_map.get(index, ()), *op.destroy_map.get(index, ())}
        for i, value in enumerate(inputs):
            if any(_share(inputs[j], value) for j in allowed if j < len(inputs)):  # one tensor may be several operands
                continue
            if _share(output, value):
                raise ContractError(
                    f"{_guilty(instruction)}: output {index} aliases input {i}; declare it, as in "
                    f"view_map = {{{index}: [{i}]}}, or return a copy"
                )


def _check_new(instruction: Instruction, earlier: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Refuse an output aliased with one that an earlier call returned."""
    for index, output in enumerate(outputs):
        if any(_share(output, other) for other in earlier):
            raise ContractError(
                f"{_guilty(instruction)}: output {index} is the same memory in each call; return new memory, "
                "or leave a buffer in its cell, from which the caller takes it"
            )


def _share(x: object, y: object) -> bool:
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return np.may_share_memory(x, y)
    return x is y and isinstance(x, _CONTAINERS)


def _check_shapes(instruction: Instruction, inputs: list[Any], outputs: Sequence[Any]) -> None:
    """Refuse an output whose shape is not that of infer_shape."""
    op = instruction.op
    if op.defines("infer_shape"):
        shapes = [[*map(np.shape, x)] if isinstance(x, tuple) else np.shape(x) for x in inputs]
        said = op.infer_shape(instruction.node.owner, shapes)
        for index, (shape, output) in enumerate(zip(said, outputs, strict=True)):
            if tuple(shape) != np.shape(output):
                raise ContractError(
                    f"{_guilty(instruction)}: infer_shape says {tuple(shape)} for output {index}, "
                    f"and perform gave {np.shape(output)}"
                )


def _check_finite(instruction: Instruction, inputs: list[Any], outputs: Sequence[Any]) -> None:
    """Refuse a nan or an infinity computed from finite inputs."""
    if not all(map(_is_finite, inputs)):
        return
    for index, output in enumerate(outputs):
        if not _is_finite(output):
            array = np.asarray(output)
            where = tuple(map(int, np.argwhere(~np.isfinite(array))[0]))
            raise NotFiniteError(
                f"{_guilty(instruction)}: output {index} is {array[where]} at {where}, of finite inputs"
            )


def _is_finite(value: object) -> bool:
    if isinstance(value, float | np.ndarray | np.generic) and is_floating(np.asarray(value).dtype):
        return bool(np.isfinite(value).all())
    return True


def _as_tuple(instruction: Instruction, value: Any) -> tuple[Any, ...]:
    return value if len(instruction.node.owner.outputs) > 1 else (value,)


def _guilty(instruction: Instruction) -> str:
    """The op, and the line that built its node."""
    line = line_of(instruction.node.origin)
    return f"{instruction.op}{f' (built at {line})' if line else ''} of {describe(instruction.node)}"
