"""Names and lines that users of torch, JAX, NumPy and Theano write: each error says what to write instead."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness.messages import message_of

import optree
from optree import function, grad, hessian, train, value_and_grad
from optree.errors import (
    DeviceMemoryError,
    DisconnectedError,
    GradientError,
    OperandError,
    OptreeError,
    ParameterError,
    ShapeError,
)
from optree.instead import INSTEAD
from optree.tree.types import TensorType


def holders(be: Any) -> dict[str, list[Any]]:
    """The objects that have no attributes of the table's names."""
    x = be.ones((2, 3), name="x")
    return {
        "operand": [x, x + 1, TensorType("float32", (None, 3))("i"), optree.constant(np.ones(2)), be.xp.ones(3)],
        "backend": [be],
        "optimizer": [train.Adam([x], 0.1), train.SGD([x], 0.1)],
        "optree": [optree],
        "train": [train],
        "losses": [train.losses],
    }


#: Names of an operand that some kinds of operands have.
OWN = {"base", "fill", "put", "sort", "nbytes", "device", "to_device", "itemsize"}


@pytest.mark.parametrize("holder", sorted(INSTEAD.keys() - {"option", "parameter"}))
def test_a_name_of_another_library_is_told_with_what_to_write_instead(cpu: Any, holder: str) -> None:
    for thing in holders(cpu)[holder]:
        for name, remedy in INSTEAD[holder].items():
            if name in OWN and name in dir(type(thing)) and hasattr(thing, name):
                continue
            with pytest.raises(AttributeError) as caught:
                getattr(thing, name)
            assert remedy in str(caught.value) and name in str(caught.value)
            assert not hasattr(thing, name)


@pytest.mark.parametrize("name", INSTEAD["option"])
def test_an_option_of_another_librarys_optimizer(cpu: Any, name: str) -> None:
    said = message_of(ParameterError, lambda: train.Adam([cpu.ones(2)], **{"rate": 0.1, name: 1}))
    assert f"no option {name!r}; instead: {INSTEAD['option'][name]}" in said


@pytest.mark.parametrize("holder", INSTEAD)
def test_what_to_write_instead_is_there(cpu: Any, holder: str) -> None:
    """Each dotted name in the table is one that its object has."""
    x = cpu.ones((2, 3))
    known = {"be": cpu, "optree": optree, "train": train, "x": x, "np": np, "losses": train.losses}
    known["opt"] = train.Adam([x], 0.1)
    for name, remedy in INSTEAD[holder].items():
        for path in re.findall(
            r"(?<![\w.])(?:be|optree|train|x|np|opt|losses)(?:\.[a-z]\w*)+", remedy.replace("x.get().", "np.")
        ):
            first, *rest = path.split(".")
            if first == "np" and hasattr(np.ndarray, rest[0]):
                continue  # an attribute of x.get()
            assert reduce(getattr, rest, known[first]) is not None, (name, path)
        for word in re.findall(r"\b(\w+)=(?=$| |,)", remedy) if holder == "option" else ():
            kinds = train.Adam, train.RMSProp
            assert any(accepted(kind, word) for kind in kinds), (name, word)


def accepted(kind: Any, option: str) -> bool:
    try:
        kind.__new__(kind, **{option: 1})
    except ParameterError:
        return False
    return True


def dot_step(be: Any) -> Any:
    """Weights that `packed` has moved, and the loss of the old ones."""
    old = [be.ones(3, name="w"), be.ones(2, name="b")]
    return train.SGD(train.packed(old), 0.1), be.sum(old[0]) + be.sum(old[1])


#: Lines that mean something in other libraries, with the kind of error and parts of what it says.
LINES = {
    "opt.step()": (lambda be, x: train.Adam([x], 0.1).step(), OperandError, "updates=opt.updates(loss)"),
    "grad of a function": (lambda be, x: grad(lambda x: be.sum(x)), GradientError, "optree.grad(cost(x), x)"),
    "grad of a function by": (lambda be, x: grad(be.sum, x), GradientError, "optree.grad(cost(x), x)"),
    "grad of a Function": (lambda be, x: grad(function([x], x), x), GradientError, "optree.grad(cost(x), x)"),
    "value_and_grad": (lambda be, x: value_and_grad(be.sum), GradientError, "optree.grad(cost(x), x)"),
    "hessian": (lambda be, x: hessian(be.sum, x), GradientError, "cost(x), x)"),
    "grad by nothing": (lambda be, x: grad(be.sum(x)), GradientError, "optree.grad(cost, [w, b])"),
    "a schedule's maker": (lambda be, x: train.SGD([x], train.schedules.cosine), ParameterError, "cosine(0.1, 1000)"),
    "no weights": (lambda be, x: train.SGD([], 0.1), OperandError, "a list of tensors or of groups, not an empty list"),
    "one weight": (lambda be, x: train.SGD(x, 0.1), OperandError, "SGD([x], ...)"),
    "old weights": (
        lambda be, x: (lambda opt, loss: opt.updates(loss))(*dot_step(be)),
        DisconnectedError,
        "train.packed",
    ),
    "too much memory": (
        lambda be, x: be.zeros((1 << 20, 1 << 20)),
        DeviceMemoryError,
        "(1048576, 1048576) and float32",
    ),
    "even more": (lambda be, x: be.ones((1 << 40, 1 << 40), "int8"), DeviceMemoryError, "int8 needs"),
    "step of one": (lambda be, x: be.scan(lambda s: s, x[0], x), OperandError, "lambda state, x: (new_state, output)"),
    "step of three": (lambda be, x: be.scan(lambda s, x, y: s, x[0], x), OperandError, "takes (s, x, y)"),
    "scan of too few": (lambda be, x: be.scan(lambda s, x: s), OperandError, "missing a required argument: 'initial'"),
    "scan as JAX's": (lambda be, x: be.scan(lambda s, x: s, init=x[0], xs=x), OperandError, "initial, sequences=None"),
    "empty batch": (
        lambda be, x: train.losses.mean_squared_error(be.zeros((0, 3)), be.zeros((0, 3))),
        ShapeError,
        "leave empty batches out",
    ),
    "dim of a method": (
        lambda be, x: x.sum(dim=1),
        OperandError,
        "sum() got an unexpected keyword argument 'dim'; instead: axis=",
    ),
    "keepdim": (
        lambda be, x: be.max(x, axis=1, keepdim=False),
        OperandError,
        "no parameter 'keepdim'; instead: keepdims=",
    ),
    "dim of a general function": (lambda be, x: be.concatenate([x, x], dim=0), OperandError, "instead: axis="),
    "division by an open size": (
        lambda be, x: be.sum(x) / TensorType("float32", (None,))("n").shape[0],
        OperandError,
        "be.count(x, axis) is the size",
    ),
    "bars of a tree": (lambda be, x: np.broadcast_arrays(x + 1, None), OperandError, "x.get()"),
    "bars of a tensor": (lambda be, x: np.broadcast_arrays(x, [x[0], x[1]]), OperandError, "x.get()"),
    "normal of an open size": (
        lambda be, x: be.standard_normal((TensorType("float32", (None,))("n").shape[0], 3)),
        OperandError,
        "be.standard_normal(x)",
    ),
    "reshape to an open size": (
        lambda be, x: be.reshape(x, (TensorType("float32", (None,))("n").shape[0], 3)),
        ShapeError,
        "-1 is a size",
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_another_library_is_told_what_to_write_instead(cpu: Any, line: str) -> None:
    run, kind, part = LINES[line]
    assert part in message_of(kind, lambda: run(cpu, cpu.ones((2, 3), name="x")))


def test_a_scheduled_rate_may_be_any_function_of_the_step(cpu: Any) -> None:
    w = cpu.ones(2)
    for rate in (lambda step: 0.1, lambda step, scale=2: step * scale, train.schedules.cosine(0.1, 10), np.exp):
        assert train.SGD([w], rate).updates(cpu.sum(w * w))
    assert train.SGD([w], 0.1).step.get() == 0


class Series:
    """A pandas series, as far as its operators ask their other operand whose turn it is."""

    def __init__(self, values: Any) -> None:
        self._values = np.array(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._values

    def __mul__(self, other: Any) -> Any:
        return NotImplemented if getattr(other, "__pandas_priority__", 0) > 3000 else self._values * other


def test_a_series_of_pandas_times_a_tensor_is_a_tree(cpu: Any) -> None:
    x = cpu.array([1.0, 2.0, 3.0])
    frames = [SimpleNamespace(a=Series([2.0, 3.0, 4.0]))]
    if find_spec("pandas") is not None:
        frames.append(import_module("pandas").DataFrame({"a": [2.0, 3.0, 4.0]}))
    for df in frames:
        for operand in (x, x + 0):
            for tree in (df.a * operand, operand * df.a):
                assert tree.get().tolist() == [2.0, 6.0, 12.0]


def test_no_error_of_the_table_is_raised_by_what_there_is(cpu: Any) -> None:
    for holder, things in holders(cpu).items():
        for thing in things if holder != "operand" else ():
            assert not INSTEAD[holder].keys() & set(dir(thing))
    assert issubclass(DeviceMemoryError, MemoryError) and issubclass(DeviceMemoryError, OptreeError)
