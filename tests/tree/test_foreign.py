"""Other libraries' arrays are arguments and operands, by DLPack or ``__array__``; no other object hides an error."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from harness.foreign import (
    ATTRIBUTES,
    REFUSING,
    SPECIAL,
    UNREADABLE,
    ByArray,
    ByDLPack,
    Odd,
    Refusing,
    odd_object,
)
from harness.homes import home
from harness.messages import message_of

from optree import function, grad, jit, vmap
from optree.errors import BRIEF, DTypeError, OperandError, OptreeError, brief, describe
from optree.tree.types import TensorType


def by_torch(array: Any) -> Any:
    """The same in torch, where it is installed."""
    return pytest.importorskip("torch").from_numpy(np.array(array))


LIBRARIES = {"dlpack": ByDLPack, "__array__": ByArray, "torch": by_torch}

VALUES = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)

#: The lines that take an array, each with the value that they have of `VALUES` and a tensor of ones.
LINES = {
    "array": (lambda be, t, y: be.array(y), VALUES),
    "argument": (lambda be, t, y: function([t], t * 2)(y), VALUES * 2),
    "argument by name": (lambda be, t, y: function([t], t * 2)(t=y), VALUES * 2),
    "argument of open size": (
        lambda be, t, y: function([x := TensorType("float32", (None, None))("x")], be.exp(x))(y),
        np.exp(VALUES),
    ),
    "argument that is written": (lambda be, t, y: function([t], t + 1, mode="reference")(y), VALUES + 1),
    "argument of jit": (lambda be, t, y: jit(lambda x: x * 3)(y), VALUES * 3),
    "argument of jit in a list": (lambda be, t, y: jit(lambda xs: xs[0] + xs[1])([y, t]), VALUES + 1),
    "argument of vmap": (lambda be, t, y: vmap(lambda x, z: be.sum(x * z))(t, y), VALUES.sum(1).reshape(2, 1, 1)),
    "operand": (lambda be, t, y: t - y, 1 - VALUES),
    "first operand": (lambda be, t, y: y - t, VALUES - 1),
    "operand of a tree": (lambda be, t, y: t * 2 + y, VALUES + 2),
    "only operand": (lambda be, t, y: be.exp(y), np.exp(VALUES)),
    "operand of NumPy's": (lambda be, t, y: np.maximum(t, y), VALUES),
    "assigned": (lambda be, t, y: (t.__setitem__(slice(None), y), t)[1], VALUES),
    "assigned to a part": (lambda be, t, y: (t.__setitem__(slice(0, 2), y), t)[1], VALUES),
    "set": (lambda be, t, y: t.set(y), VALUES),
    "in place": (lambda be, t, y: t.__iadd__(y), VALUES + 1),
}


@pytest.fixture
def t(cpu: Any) -> Any:
    return cpu.ones((2, 2), name="t")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("line", LINES)
def test_an_array_of_another_library_is_an_argument(cpu: Any, t: Any, line: str, library: str) -> None:
    run, expected = LINES[line]
    y = LIBRARIES[library](VALUES)
    if line == "first operand" and not hasattr(type(y), "__sub__"):
        pytest.skip("it has no operators")
    found = run(cpu, t, y)
    np.testing.assert_allclose(np.asarray(found).reshape(expected.shape), expected, rtol=1e-6)
    assert (found if isinstance(found, np.ndarray) else found.dtype) is not None


@pytest.mark.parametrize("library", LIBRARIES)
def test_arrays_of_another_library_are_indices_and_masks(cpu: Any, library: str) -> None:
    x, make = cpu.array([5.0, 6.0, 7.0]), LIBRARIES[library]
    assert x[make(np.array([2, 0]))].get().tolist() == [7.0, 5.0]
    assert x[make(np.array([True, False, True]))].get().tolist() == [5.0, 7.0]
    x[make(np.array([1]))] = 0
    assert x.get().tolist() == [5.0, 0.0, 7.0]


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_argument_of_another_library_is_cast_as_numpys_are(cpu: Any, t: Any, library: str) -> None:
    make = LIBRARIES[library]
    double = function([t], t * 2, name="double")
    assert double(make(np.ones((2, 2), np.int8))).get().tolist() == [[2, 2], [2, 2]]
    said = message_of(DTypeError, lambda: double(make(np.ones((2, 2)))))
    assert "double: argument 0 (t)" in said and "float64 does not go into float32 without loss" in said
    function([t], t * 2, allow_input_downcast=True)(make(np.ones((2, 2))))
    with pytest.raises(DTypeError, match="an array of float32 is wanted"):
        TensorType("float32", (2, 2)).filter(make(VALUES), strict=True)


@pytest.mark.parametrize("line", LINES)
def test_an_array_that_its_library_does_not_give(cpu: Any, t: Any, line: str) -> None:
    if line == "first operand":
        return
    said = message_of(OperandError, lambda: LINES[line][0](cpu, t, Refusing(VALUES)))
    assert "call theirs.detach() first" in said and "x.detach().cpu().float()" in said
    assert t.get().tolist() == [[1, 1], [1, 1]]


def test_torchs_tensors_that_numpy_has_not(cpu: Any, t: Any) -> None:
    torch = pytest.importorskip("torch")
    wide, recorded = torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(2, 2, requires_grad=True)
    for y in (wide, recorded):
        for make in (cpu.array, cpu.from_dlpack, function([t], t * 2), lambda y: t + y, cpu.exp):
            said = message_of(OperandError, lambda make=make, y=y: make(y))
            assert "torch.Tensor" in said and ".detach().cpu().float()" in said
    assert "torch.Tensor" in message_of(OptreeError, lambda: grad(cpu.sum(t), recorded))
    assert cpu.array(wide.float(), "bfloat16").dtype == "bfloat16"
    assert "'float32' is one" in message_of(DTypeError, lambda: cpu.zeros(2, dtype=torch.float32))


def test_describe_loses_no_error() -> None:
    """Objects of any attributes, in lists too, are described in a line."""
    for seed in range(3000):
        draw = random.Random(seed)
        odd = odd_object(draw, (*ATTRIBUTES, *SPECIAL))
        for given in (odd, [odd], (odd, [odd, odd])):
            for text in (describe(given), brief(given), brief(given, str)):
                assert type(text) is str and len(text) < 5 * BRIEF, seed


def test_a_list_that_holds_itself_is_described() -> None:
    endless: list[Any] = [1]
    endless.append(endless)
    assert describe(endless).startswith("a list of 2: 1 (int), [1, [...]]")
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert describe(deep) and describe([]) == "an empty list"


@pytest.mark.parametrize("line", REFUSING)
def test_odd_objects_are_refused_by_op_trees_errors(home_kind: str, line: str) -> None:
    be = home(home_kind)
    t = be.ones((2, 2), name="t")
    for seed in range(60):
        odd = odd_object(random.Random(seed), bases=UNREADABLE)
        try:
            REFUSING[line](be, t, odd)
        except OptreeError as error:
            assert str(error)
        except Odd as error:
            pytest.fail(f"seed {seed}: the object's own error came instead: {error!r}")
        else:
            pytest.fail(f"seed {seed}: {odd!r} was taken")


def test_an_odd_operand_of_a_function_without_an_equal(t: Any) -> None:
    odd = type("Odd", (), {"__getattr__": lambda self, name: 1 / 0})()
    with pytest.raises(TypeError, match=r"np\.spacing has no equal here"):
        np.spacing(t, odd)
