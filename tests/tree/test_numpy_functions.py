"""NumPy's own functions on tensors: each that the registry knows builds a tree that means what NumPy's does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness.expected import MEANINGS

from backends import gen_backend
from optree import OpTreeNode
from optree.errors import DTypeError, OperandError
from optree.ops.traits import ReductionOperator
from optree.registry import NUMPY_FUNCTIONS, OPS
from optree.testing.examples import Example
from optree.testing.promises import compare

UFUNCS = [
    function
    for function, ours in NUMPY_FUNCTIONS.items()
    if isinstance(function, np.ufunc) and function is not np.matmul and MEANINGS.get(ours.__name__) is function
]
REDUCTIONS = {
    function: ours.__name__
    for function, ours in NUMPY_FUNCTIONS.items()
    if issubclass(OPS.get(ours.__name__, object), ReductionOperator)
}

#: Calls of the other functions, on arrays or on tensors.
CALLS: dict[Any, list[Callable[..., Any]]] = {
    np.clip: [
        lambda x: np.clip(x, 1.0, 3.0),
        lambda x: np.clip(x, None, 3.0),
        lambda x: np.clip(x, a_min=1.0, a_max=None),
        lambda x: np.clip(x, min=1.0, max=2.0),
    ],
    np.where: [lambda x: np.where(x > 2, x, 0.0), lambda x: np.where(x > 2, 1.0, x)],
    np.zeros_like: [lambda x: np.zeros_like(x), lambda x: np.zeros_like(x, dtype=np.float32)],
    np.ones_like: [lambda x: np.ones_like(x)],
    np.dot: [lambda x: np.dot(x, np.transpose(x))],
    np.matmul: [lambda x: np.matmul(x, np.transpose(x)), lambda x: x @ np.ones(3)],
    np.tensordot: [lambda x: np.tensordot(x, x), lambda x: np.tensordot(x, x, axes=((0,), (0,)))],
    np.outer: [lambda x: np.outer(x, x)],
    np.fabs: [lambda x: np.fabs(x - 2.0)],
    np.bitwise_and: [lambda x: np.bitwise_and(x > 1.0, x < 4.0), lambda x: (x > 1.0) & (x < 4.0)],
    np.bitwise_or: [lambda x: np.bitwise_or(x < 1.0, x > 4.0), lambda x: (x < 1.0) | (x > 4.0)],
    np.bitwise_xor: [lambda x: np.bitwise_xor(x < 3.0, x > 1.0), lambda x: (x < 3.0) ^ (x > 1.0)],
    np.invert: [lambda x: np.invert(x > 1.0), lambda x: ~(x > 1.0)],
    np.fix: [lambda x: np.fix(x - 2.5)],
    np.transpose: [
        lambda x: np.transpose(x),
        lambda x: np.transpose(x, (1, 0)),
        lambda x: np.transpose(x, axes=[0, 1]),
    ],
    np.reshape: [lambda x: np.reshape(x, (3, 2)), lambda x: np.reshape(x, -1), lambda x: np.reshape(x, shape=(1, 6))],
    np.broadcast_to: [lambda x: np.broadcast_to(x, (4, 2, 3))],
    np.expand_dims: [lambda x: np.expand_dims(x, 1), lambda x: np.expand_dims(x, axis=(0, -1))],
    np.squeeze: [lambda x: np.squeeze(np.expand_dims(x, 0)), lambda x: np.squeeze(np.expand_dims(x, 1), axis=1)],
    np.flip: [lambda x: np.flip(x, 0), lambda x: np.flip(x), lambda x: np.flip(x, axis=(0, 1))],
    np.matrix_transpose: [lambda x: np.matrix_transpose(x)],
    np.swapaxes: [lambda x: np.swapaxes(x, 0, 1)],
    np.moveaxis: [lambda x: np.moveaxis(x, 0, -1)],
    np.ravel: [lambda x: np.ravel(x)],
    np.take: [
        lambda x: np.take(x, np.array([2, 0]), axis=1),
        lambda x: np.take(x, np.array([5, 0])),
        lambda x: np.take(x, 1, axis=-1),
    ],
    np.take_along_axis: [lambda x: np.take_along_axis(x, np.array([[1], [0]]), axis=1)],
    np.copy: [lambda x: np.copy(x)],
    np.full_like: [lambda x: np.full_like(x, 2), lambda x: np.full_like(x + 1, 2, dtype=np.float32)],
    np.stack: [lambda x: np.stack([x, x], axis=-1), lambda x: np.stack((x, x))],
    np.vstack: [lambda x: np.vstack([x, x])],
    np.hstack: [lambda x: np.hstack([x, x])],
    np.concatenate: [
        lambda x: np.concatenate([x, x], axis=1),
        lambda x: np.concatenate([x, x]),
        lambda x: np.concatenate([x, np.ones((1, 3))]),
        lambda x: np.concatenate([x, x], axis=None),
    ],
    np.pad: [lambda x: np.pad(x, 1), lambda x: np.pad(x, ((0, 1), (2, 0)), constant_values=2.0)],
    np.repeat: [lambda x: np.repeat(x, 2, axis=0), lambda x: np.repeat(x, 2)],
    np.cumsum: [
        lambda x: np.cumsum(x),
        lambda x: np.cumsum(x, axis=1),
        lambda x: np.cumsum(x > 1, 0),
        lambda x: np.cumsum(x, axis=0, dtype=np.float32),
    ],
    np.cumprod: [lambda x: np.cumprod(x), lambda x: np.cumprod(x, axis=0)],
    np.diff: [lambda x: np.diff(x), lambda x: np.diff(x, 2, 1), lambda x: np.diff(x > 1, axis=0)],
    np.sort: [
        lambda x: np.sort(-x),
        lambda x: np.sort(x, axis=0, kind="stable"),
        lambda x: np.sort(-x, axis=None, stable=True),
    ],
    np.argsort: [lambda x: np.argsort(-x), lambda x: np.argsort(-x, 0), lambda x: np.argsort(-x, axis=None)],
    np.einsum: [
        lambda x: np.einsum("ij,kj->ik", x, x),
        lambda x: np.einsum("ij, ij", x, np.ones((2, 3)), optimize=True),
        lambda x: np.einsum("...j->...", x),
    ],
    np.round: [lambda x: np.round(x / 7, 2), lambda x: np.round(x * 5, decimals=-1), lambda x: np.round(x / 2)],
    np.around: [lambda x: np.around(x / 7, 1)],
    np.tile: [lambda x: np.tile(x, 2), lambda x: np.tile(x, (2, 1, 2)), lambda x: np.tile(x, reps=())],
    np.roll: [lambda x: np.roll(x, 2), lambda x: np.roll(x, 1, axis=1), lambda x: np.roll(x, 1, axis=(0, 1))],
    np.isclose: [
        lambda x: np.isclose(x, x + 1e-9),
        lambda x: np.isclose(x, 2, atol=1.0),
        lambda x: np.isclose(x + np.inf, np.inf),
        lambda x: np.isclose(x * np.nan, np.nan, equal_nan=True),
    ],
    np.var: [lambda x: np.var(x, axis=1), lambda x: np.var(x), lambda x: np.var(x, axis=0, ddof=1, keepdims=True)],
    np.std: [lambda x: np.std(x), lambda x: np.std(x, axis=0)],
    np.linalg.norm: [lambda x: np.linalg.norm(x), lambda x: np.linalg.norm(x, 1, axis=0)],
    np.add.reduce: [lambda x: np.add.reduce(x), lambda x: np.add.reduce(x, axis=None)],
    np.maximum.reduce: [lambda x: np.maximum.reduce(x, axis=1), lambda x: np.minimum.reduce(x, keepdims=True)],
    np.multiply.reduce: [lambda x: np.multiply.reduce(x, axis=(0, 1))],
    np.logical_and.reduce: [lambda x: np.logical_and.reduce(x), lambda x: np.logical_or.reduce(x, axis=1)],
}


#: The NumPy functions that tell what is known without running: they give a value, not a tree.
FACTS = {
    np.shape: [lambda x: np.shape(x)],
    np.ndim: [lambda x: np.ndim(x)],
    np.size: [lambda x: np.size(x), lambda x: np.size(x, 1), lambda x: np.size(x, axis=-2)],
}


#: The NumPy functions that give one bool of Python's, and so run at once.
ANSWERS = {
    np.allclose: [
        lambda x: np.allclose(x, 0.0),
        lambda x: np.allclose(x, 1e-9),
        lambda x: np.allclose(x, np.ones((2, 3)), atol=1),
    ],
    np.array_equal: [
        lambda x: np.array_equal(x, np.zeros((2, 3))),
        lambda x: np.array_equal(x, np.zeros(3)),
        lambda x: np.array_equal(np.ones((2, 3)), x),
    ],
}


@pytest.fixture(scope="module")
def cpu() -> Any:
    """A backend of float64."""
    return gen_backend("cpu", datatype=np.float64)


@pytest.mark.parametrize("function", NUMPY_FUNCTIONS, ids=lambda function: function.__name__)
def test_every_numpy_function_is_tested(function: Any) -> None:
    known = (UFUNCS, REDUCTIONS, CALLS, FACTS, ANSWERS)
    elsewhere = function.__module__ == "numpy.linalg"  # tests/ops/test_linalg.py
    assert elsewhere or any(function in table for table in known), "say in CALLS how it is called"


@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda ufunc: ufunc.__name__)
def test_numpys_ufunc_builds_the_op(ufunc: np.ufunc, cpu: Any) -> None:
    name = NUMPY_FUNCTIONS[ufunc].__name__
    op = OPS[name].make()
    values = Example(op, ((2, 3),) * ufunc.nin, op.sample, name).draw()
    tensors = [cpu.array(x) for x in values]
    tree = ufunc(*tensors)
    assert isinstance(tree, OpTreeNode)
    assert tree.op == op, f"{ufunc} builds {tree.op}, not {name}"
    if ufunc.nin == 2:
        assert ufunc(values[0], tensors[1]).op == op
        assert ufunc(tensors[0], 2.0).op == op
    out = cpu.zeros(tree.shape, tree.dtype)
    assert ufunc(*tensors, out=out) is out
    with np.errstate(all="ignore"):
        compare(out.get(), ufunc(*values), name, "by NumPy's ufunc with out=")


@pytest.mark.parametrize("name", [n for n, m in MEANINGS.items() if isinstance(m, np.ufunc)])
def test_every_op_that_is_a_ufunc_is_had_by_it(name: str) -> None:
    assert NUMPY_FUNCTIONS[MEANINGS[name]].__name__ == name


@pytest.mark.parametrize("ufunc", [np.bitwise_and, np.bitwise_or, np.bitwise_xor])
def test_bits_of_integers_are_not_conditions(ufunc: np.ufunc, cpu: Any) -> None:
    with pytest.raises(DTypeError, match="int64.* is not bool"):
        ufunc(cpu.array(np.array([6, 5])), 3)


@pytest.mark.parametrize("function", REDUCTIONS, ids=lambda function: function.__name__)
def test_numpys_reduction_drops_the_axis_as_numpy_does(function: Any, cpu: Any) -> None:
    values = np.linspace(0.5, 3.0, 24).reshape(2, 3, 4)
    x = cpu.array(values, name="x")
    several = REDUCTIONS[function] not in ("argmax", "argmin")
    for axis in (None, 0, -1, 1, *([(0, 2), (0, -1)] if several else [])):
        for keywords in ({}, {"keepdims": True}, {"keepdims": False}):
            tree = function(x, axis=axis, **keywords)
            assert isinstance(tree, OpTreeNode)
            note = f"axis={axis} {keywords}"
            compare(tree.asnumpyarray(), function(values, axis=axis, **keywords), function.__name__, note)
    assert getattr(cpu, REDUCTIONS[function])(x, axis=0).shape == (1, 3, 4), "a backend's reduction keeps its axis"
    if function is not np.linalg.norm:  # whose second argument is the norm's order
        assert function(x, 1).shape == (2, 4)


@pytest.mark.parametrize("function", CALLS, ids=lambda function: f"{function.__name__}")
def test_other_functions_build_trees(function: Any, cpu: Any) -> None:
    values = np.arange(6.0).reshape(2, 3)
    x = cpu.array(values, name="x")
    for call in CALLS[function]:
        tree = call(x)
        text = inspect.getsource(call).strip()
        assert isinstance(tree, OpTreeNode), text
        compare(tree.asnumpyarray(), call(values), text, "by NumPy's function")


@pytest.mark.parametrize("function", FACTS, ids=lambda function: f"{function.__name__}")
def test_facts_of_tensors_and_trees_are_numpys(function: Any, cpu: Any) -> None:
    values = np.zeros((2, 3))
    x = cpu.array(values)
    for call in FACTS[function]:
        assert call(x) == call(x + 1) == call(values)


@pytest.mark.parametrize("function", ANSWERS, ids=lambda function: f"{function.__name__}")
def test_answers_are_pythons_bools_as_numpys_are(function: Any, cpu: Any) -> None:
    said = []
    for values in (np.zeros((2, 3)), np.full((2, 3), 1e-9), np.ones((2, 3)), np.full((2, 3), np.nan)):
        x = cpu.array(values)
        for call in ANSWERS[function]:
            assert call(x) is call(x * 1.0) is call(values)
            said.append(call(x))
    assert set(said) == {True, False}


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (np.unique, "np.unique"),
        (np.linalg.eig, "np.linalg.eig"),
        (lambda x: np.left_shift(x, 1), "np.left_shift"),
        (np.add.accumulate, "np.add.accumulate"),
        (lambda x: np.trapezoid(np.ones(2) * x), "np.trapezoid"),
    ],
)
def test_a_function_without_an_equal_says_how_to_run_it_on_the_host(call: Any, name: str, cpu: Any) -> None:
    with pytest.raises(TypeError) as caught:
        call(cpu.ones((2, 2)))
    assert f"{name} has no equal here; {name}(x.asnumpyarray(), ...)" in str(caught.value)


class _Other:
    """Another library's array, which knows what to do with ours."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> str:
        return ufunc.__name__

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> str:
        return func.__name__


def test_another_librarys_arrays_have_their_say(cpu: Any) -> None:
    x = cpu.ones(2)
    assert np.left_shift(x, _Other()) == "left_shift"
    assert np.cross(x, _Other()) == "cross"


def test_where_of_a_condition_alone_is_for_the_host(cpu: Any) -> None:
    with pytest.raises(OperandError, match=r"np\.where\(condition\.asnumpyarray\(\)\)"):
        np.where(cpu.ones(2) > 0)


@pytest.mark.parametrize(("call", "kept"), [(np.tanh, "int32"), (np.tanh, "bool"), (np.abs, "bool")])
def test_out_takes_no_value_of_another_kind(call: Any, kept: str) -> None:
    be = gen_backend("cpu")
    x, out = be.array([0.5, 2.5]), be.array(np.array([1, 0], kept), name="out")
    with pytest.raises(
        TypeError, match=rf"out is of {kept}, into which NumPy casts no float32; out\[:\] = \.\.\. does"
    ):
        call(x, out=out)
    assert out.get().tolist() == np.array([1, 0], kept).tolist()
    with pytest.raises(TypeError):
        call(x.get(), out=out.get())
