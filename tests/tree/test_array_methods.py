"""NumPy's array methods on tensors and trees: each that the registry knows means what NumPy's does."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import MethodDescriptorType
from typing import Any

import numpy as np
import pytest

from backends import gen_backend
from optree import Constant, OpTreeNode, Tensor, TensorType, Variable
from optree.errors import AxisError, OptreeError, ShapeError
from optree.registry import NUMPY_FUNCTIONS
from optree.testing.comparison import compare

#: Methods of NumPy's arrays that work in place, as the functions of their names do not.
IN_PLACE = {"partition", "put", "resize", "sort"}

#: Those that variables have, of the functions of NumPy's that the registry knows.
METHODS = sorted(
    name
    for name in vars(Variable)
    if hasattr(Variable, name)
    and isinstance(getattr(np.ndarray, name, None), MethodDescriptorType)
    and getattr(np, name, None) in NUMPY_FUNCTIONS
)

#: Calls of each method, on arrays, tensors or trees of shape (2, 1, 3).
CALLS: dict[str, list[Callable[..., Any]]] = {
    **{
        name: [
            lambda x, name=name: getattr(x, name)(),
            lambda x, name=name: getattr(x, name)(0),
            lambda x, name=name: getattr(x, name)(axis=-1, keepdims=True),
        ]
        for name in ("all", "any", "argmax", "argmin", "max", "mean", "min", "prod", "sum", "std", "var")
    },
    "argpartition": [lambda x: x.argpartition(1), lambda x: x.argpartition(0, axis=1)],
    "diagonal": [lambda x: x.diagonal(), lambda x: x.diagonal(1, axis1=1, axis2=-1)],
    "searchsorted": [lambda x: x.ravel().searchsorted(2.5), lambda x: x.flatten().searchsorted(x, side="right")],
    "trace": [lambda x: x.trace(), lambda x: x.trace(1, 1, 2), lambda x: x.trace(dtype=np.float32)],
    "argsort": [lambda x: x.argsort(), lambda x: x.argsort(0), lambda x: x.argsort(axis=None)],
    "cumprod": [lambda x: x.cumprod(), lambda x: x.cumprod(2)],
    "cumsum": [lambda x: x.cumsum(), lambda x: x.cumsum(axis=0, dtype=np.float32)],
    "round": [lambda x: x.round(), lambda x: (x / 3).round(2)],
    "clip": [lambda x: x.clip(1, 3), lambda x: x.clip(max=2), lambda x: x.clip(None, 2.5)],
    "astype": [lambda x: x.astype("float32"), lambda x: x.astype(np.int8)],
    "copy": [lambda x: x.copy()],
    "conj": [lambda x: x.conj()],
    "conjugate": [lambda x: x.conjugate()],
    "dot": [lambda x: x.reshape(2, 3).dot(np.ones((3, 2))), lambda x: x.flatten().dot(x.flatten())],
    "ravel": [lambda x: x.ravel(), lambda x: x.T.ravel()],
    "repeat": [lambda x: x.repeat(2), lambda x: x.repeat(2, axis=0)],
    "reshape": [
        lambda x: x.reshape(3, 2),
        lambda x: x.reshape((6,)),
        lambda x: x.reshape(-1),
        lambda x: x.reshape(1, -1),
    ],
    "squeeze": [lambda x: x.squeeze(), lambda x: x.squeeze(axis=1), lambda x: x.squeeze(-2)],
    "swapaxes": [lambda x: x.swapaxes(0, 2), lambda x: x.swapaxes(-1, 1)],
    "take": [lambda x: x.take(np.array([5, 0])), lambda x: x.take(np.array([0, 0]), axis=1)],
    "transpose": [lambda x: x.transpose(), lambda x: x.transpose(2, 0, 1), lambda x: x.transpose((1, 0, 2))],
    "flatten": [lambda x: x.flatten(), lambda x: x.T.flatten()],
}


@pytest.fixture(scope="module")
def cpu() -> Any:
    """A backend of float64."""
    return gen_backend("cpu", datatype=np.float64)


@pytest.fixture
def values() -> Any:
    return np.array([[[3.0, 1.0, 2.0]], [[0.0, 5.0, 4.0]]])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_tested(name: str) -> None:
    assert name in CALLS, "say in CALLS how it is called"


@pytest.mark.parametrize("name", CALLS)
def test_a_method_means_what_numpys_does(name: str, cpu: Any, values: Any) -> None:
    x = cpu.array(values, name="x")
    for call in CALLS[name]:
        wanted, text = call(values), inspect.getsource(call).strip()
        for operand in (x, x * 1.0):
            found = call(operand)
            assert isinstance(found, Variable), text
            compare(found.asnumpyarray(), np.asarray(wanted), text, f"as a method of a {type(operand).__name__}")


def test_every_numpy_function_that_arrays_have_as_a_method_is_one_here() -> None:
    methods = {n for n in dir(np.ndarray) if isinstance(getattr(np.ndarray, n), MethodDescriptorType)} - IN_PLACE
    here = {f.__name__ for f in NUMPY_FUNCTIONS if getattr(np, f.__name__, None) is f}
    missing = [name for name in sorted(methods & here) if not hasattr(Variable, name)]
    assert not missing and "sum" in methods & here


def test_every_method_and_operator_is_written_out() -> None:
    """So that it is found where one looks for it, and type checkers read it: nothing is put on the class later."""
    (written,) = ast.parse(textwrap.dedent(inspect.getsource(Variable))).body
    assert isinstance(written, ast.ClassDef)
    assigned = [target for x in written.body if isinstance(x, ast.Assign) for target in x.targets]
    listed = [name for target in assigned for name in (target.elts if isinstance(target, ast.Tuple) else [target])]
    names = {x.name for x in written.body if isinstance(x, ast.FunctionDef)}
    names |= {name.id for name in listed if isinstance(name, ast.Name)}
    assert {"sum", "__add__", "__rmatmul__", "__eq__", "__invert__", "equals"} <= names
    assert {name for name, member in vars(Variable).items() if inspect.isfunction(member)} <= names


def test_a_method_builds_the_tree_of_the_function(cpu: Any, values: Any) -> None:
    x = cpu.array(values, name="x")
    assert str(x.sum(axis=0)) == str(np.sum(x, axis=0))
    assert x.sum(axis=0).shape == (1, 3), "NumPy's meaning: the axis is dropped"
    assert cpu.sum(x, axis=0).shape == (1, 1, 3), "neon's: it stays"
    v = TensorType("float64", (None,))("v")
    assert type(v.max()) is OpTreeNode


def test_methods_take_out_and_dtype_and_refuse_what_has_no_equal(cpu: Any, values: Any) -> None:
    x, out = cpu.array(values, name="x"), cpu.zeros((1, 3))
    assert x.sum(0, out=out) is out
    np.testing.assert_array_equal(out.get(), values.sum(0))
    assert x.mean(dtype="float32").dtype == np.float32
    np.testing.assert_array_equal(x.sum(where=x > 1).asnumpyarray(), values.sum(where=values > 1))
    with pytest.raises(TypeError, match=r"np\.argsort on op-tree operands does not take order"):
        x.argsort(order="f")
    with pytest.raises(AxisError, match="x"):
        x.sum(axis=7)
    with pytest.raises(ShapeError):
        (x + 1).reshape(4)


def test_what_numpy_gives_as_a_view_is_one_and_can_be_assigned_to(cpu: Any, values: Any) -> None:
    x = cpu.array(values, name="x")
    for view in (x.ravel(), x.squeeze(), x.swapaxes(0, 2), x.reshape(-1), x.transpose()):
        assert isinstance(view, Tensor) and view.base is x
    x.squeeze()[0, 1] = 7.0
    x.swapaxes(0, 2)[0, 0, 1] = 8.0
    x.ravel()[5] = 9.0
    np.testing.assert_array_equal(x.get(), [[[3.0, 7.0, 2.0]], [[8.0, 5.0, 9.0]]])
    assert isinstance(x.copy(), Tensor) and isinstance((x + 1).copy(), OpTreeNode)


def test_neons_own_methods_stay(cpu: Any, values: Any) -> None:
    x = cpu.array(values, name="x")
    assert isinstance(x.get(), np.ndarray) and x.fill(2.0) is x and x.set(values) is x
    assert str(x.take([0], axis=0).op) == "take{axis=0, flat=False}"
    tree = x + 1
    assert tree.index == 0 and tree.op.name == "add" and len(tree) == 3, "no method hides an attribute of nodes"


def test_a_tensor_is_sorted_in_place_as_numpys_arrays_are(cpu: Any, values: Any) -> None:
    x, y = cpu.array(values), cpu.array(values)
    assert x.sort() is None and y.sort(axis=0) is None
    np.testing.assert_array_equal(x.get(), np.sort(values))
    np.testing.assert_array_equal(y.get(), np.sort(values, axis=0))
    with pytest.raises(AttributeError):
        _ = (x + 1).sort


def test_attributes_of_numpys_arrays(cpu: Any, values: Any) -> None:
    x = cpu.array(values, name="x")
    for found in (x, x + 0.0):
        for name in ("T", "mT", "real", "imag"):
            np.testing.assert_array_equal(getattr(found, name).asnumpyarray(), getattr(values, name))
        assert found.real is found
    assert x.mT.base is x
    assert round(x[0, 0, 1] * 1.26, 1) == round(float(values[0, 0, 1]) * 1.26, 1) and isinstance(round(x[0, 0, 0]), int)
    x.mT[:] = 1.0
    assert set(x.get().ravel().tolist()) == {1.0}
    with pytest.raises(AxisError):
        _ = cpu.ones(2).mT


def test_astype_takes_numpys_copy(cpu: Any, values: Any) -> None:
    x = cpu.array(values, np.float64)
    for found in (x, x + 1):
        assert found.astype(np.float64, copy=False) is found
        assert found.astype(np.float64).op.name == "cast" and found.astype("f4", copy=False).dtype == np.float32


def test_a_tree_that_is_written_to_and_numpys_creation_say_what_to_do(cpu: Any) -> None:
    x = cpu.ones(3)
    with pytest.raises(TypeError, match=r"mul is a lazy expression without memory.* t = tree\.astensor\(\)"):
        (x * 2)[0] = 1
    with pytest.raises(TypeError, match=r"np\.zeros has no equal here.*; be\.zeros makes a tensor"):
        np.zeros(3, like=x)


def test_attributes_that_operands_do_not_have_say_what_to_do(cpu: Any, values: Any) -> None:
    x = cpu.array(values)
    names = {"_set_dtype", "_set_shape", "tostring"}  # NumPy 2.5's, and 2.2's
    names |= {name for name in dir(values) if hasattr(values, name) and not name.startswith("__")}
    for found in (x, x + 1, TensorType("float32", (2,))("i"), Constant(TensorType("int8", ()), 1)):
        for name in names - set(dir(found)):
            with pytest.raises(AttributeError, match=f"'{type(found).__name__}' .* no attribute '{name}': .*"):
                getattr(found, name)
            assert not hasattr(type(found), name)
    with pytest.raises(AttributeError, match=r"x\.get\(\)\.strides is that of its value"):
        _ = x.strides
    with pytest.raises(AttributeError, match=r"np\.sort\(x\) is a tree"):
        _ = (x + 1).sort
    assert (x + 1).get().strides == values.strides


def test_methods_of_numpys_arrays_on_tensors_and_lazy_arrays(cpu: Any, values: Any) -> None:
    for x in (cpu.array(values), cpu.xp.asarray(values), cpu.xp.asarray(values) * 1.0):
        assert x.item(4) == 5.0 and x.item(1, 0, 2) == 4.0 and x.item(-1) == 4.0
        with pytest.raises(OptreeError, match="view: the bytes of"):
            x.view("i8")
        assert np.array_equal(x.conj().get(), values)
    assert round(cpu.xp.asarray(2.456), 2) == 2.46
    for x in (cpu.array(values), cpu.xp.asarray(values)):
        assert x.nbytes == values.nbytes
        wanted, before = values.copy(), x * 1
        wanted.sort(axis=0)
        assert x.sort(axis=0) is None and x.tolist() == wanted.tolist()
        wanted.put([0, -1], [7.0, 8.0])
        assert x.put([0, -1], [7.0, 8.0]) is None and x.tolist() == wanted.tolist()
        x.fill(3.0)
        assert set(np.ravel(x.get())) == {3.0}
    assert before.tolist() == values.tolist(), "a lazy array keeps what was read"


def test_the_value_as_pythons_lists(cpu: Any, values: Any) -> None:
    x = cpu.array(values)
    assert x.tolist() == (x * 1.0).tolist() == values.tolist()
    assert x.sum().tolist() == 15.0
    np.testing.assert_array_equal((x + 1.0).get(), values + 1.0)


def test_help_on_a_method_tells_numpys_parameters(cpu: Any) -> None:
    assert list(inspect.signature(cpu.ones(2).sum).parameters)[:3] == ["axis", "dtype", "out"]
    assert "np.sum" in inspect.getdoc(Tensor.sum)
