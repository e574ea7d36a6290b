"""NumPy's own functions on tensors: each that the registry knows builds a tree that means what NumPy's does."""

from __future__ import annotations

import inspect
import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
from harness.each import for_each
from harness.expected import MEANINGS
from harness.numpy_calls import ANSWERS, CALLS, FACTS, SEVERAL
from numpy.lib.stride_tricks import sliding_window_view

from backends import gen_backend
from optree import OpTreeNode, Variable, check_grad, grad
from optree.errors import AxisError, DTypeError, OperandError, ShapeError
from optree.op.examples import examples_in
from optree.op.traits import ReductionOperator
from optree.registry import NUMPY_FUNCTIONS, OPS
from optree.testing.comparison import compare, nodes_of
from optree.testing.examples import Example

UFUNCS = [
    function
    for function, ours in NUMPY_FUNCTIONS.items()
    if isinstance(function, np.ufunc)
    and function is not np.matmul
    and MEANINGS.get(ours.__name__) is function
    and examples_in(OPS[ours.__name__]).takes_floats
]
REDUCTIONS = {
    function: ours.__name__
    for function, ours in NUMPY_FUNCTIONS.items()
    if issubclass(OPS.get(ours.__name__, object), ReductionOperator)
}


@pytest.fixture(scope="module")
def cpu() -> Any:
    """A backend of float64."""
    return gen_backend("cpu", datatype=np.float64)


@for_each("function", NUMPY_FUNCTIONS)
def test_every_numpy_function_is_tested(function: Any) -> None:
    known = (UFUNCS, REDUCTIONS, CALLS, SEVERAL, FACTS, ANSWERS)
    elsewhere = function.__module__ in ("numpy.linalg", "numpy.fft")  # tests/ops/test_linalg.py, test_fourier.py
    elsewhere = elsewhere or hasattr(NUMPY_FUNCTIONS[function], "writes")  # tests/tree/test_numpy_writers.py
    assert elsewhere or any(function in table for table in known), "say in CALLS how it is called"


@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda ufunc: ufunc.__name__)
def test_numpys_ufunc_builds_the_op(ufunc: np.ufunc, cpu: Any) -> None:
    name = NUMPY_FUNCTIONS[ufunc].__name__
    op = OPS[name].make()
    values = Example(op, ((2, 3),) * ufunc.nin, examples_in(OPS[name]).sample, name).draw()
    tensors = [cpu.array(x) for x in values]
    tree = ufunc(*tensors)
    assert isinstance(tree, OpTreeNode)
    assert tree.op == op, f"{ufunc} builds {tree.op}, not {name}"
    if ufunc.nin == 2:
        assert ufunc(values[0], tensors[1]).op == op
        assert ufunc(tensors[0], 1.25).op == op  # a power by 2 is a square
    out = cpu.zeros(tree.shape, tree.dtype)
    assert ufunc(*tensors, out=out) is out
    with np.errstate(all="ignore"):
        compare(out.get(), ufunc(*values), name, "by NumPy's ufunc with out=")


@for_each(
    ("given", "ufunc"),
    product(["bool", "int8", "int64", "float32", "float64"], [*UFUNCS, np.left_shift, np.divmod, np.positive]),
    sampled=True,
)
def test_a_ufuncs_dtype_chooses_its_loop_as_numpy_does(ufunc: np.ufunc, given: str) -> None:
    be = gen_backend("cpu", jit=False)
    arrays = [np.array([[1, 2, 1], [1, 0, 1]], given), np.array([1, 1, 0], given)][: ufunc.nin]
    tensors = [be.array(x, given) for x in arrays]
    calls = [(tensors, arrays)] + [((tensors[0], n), (arrays[0], n)) for n in (1, 0.5) if ufunc.nin == 2]
    for dtype in ("bool", "int32", "float32", "float64"):
        for casting in ("same_kind", "unsafe"):
            for mine, numpys in calls:
                note = f"{ufunc.__name__}({given}, dtype={dtype}, casting={casting})"
                with np.errstate(all="ignore"):
                    try:
                        wanted = ufunc(*numpys, dtype=dtype, casting=casting)
                    except TypeError:
                        with pytest.raises(TypeError):
                            ufunc(*mine, dtype=dtype, casting=casting)
                        continue
                    found = ufunc(*mine, dtype=dtype, casting=casting)
                    pairs = zip(found, wanted, strict=True) if ufunc.nout > 1 else [(found, wanted)]
                    for tree, value in pairs:
                        compare(tree.asnumpyarray(), value, note, "by NumPy", ulps=8)


@for_each("name", [n for n, m in MEANINGS.items() if isinstance(m, np.ufunc)])
def test_every_op_that_is_a_ufunc_is_had_by_it(name: str) -> None:
    assert NUMPY_FUNCTIONS[MEANINGS[name]].__name__ == name


@pytest.mark.parametrize("ufunc", [np.bitwise_and, np.bitwise_or, np.bitwise_xor])
def test_floats_have_no_bits_and_are_no_conditions(ufunc: np.ufunc, cpu: Any) -> None:
    with pytest.raises(DTypeError, match="float64.* is not bool"):
        ufunc(cpu.array(np.array([6.0, 5.0])), 3)


def test_a_ufunc_of_two_values_writes_both(cpu: Any) -> None:
    x, outs = cpu.array([7.5, -7.5]), (cpu.zeros(2), cpu.zeros(2))
    written = np.divmod(x, 2.0, out=outs)
    assert written[0] is outs[0] and written[1] is outs[1]
    for got, wanted in zip(outs, np.divmod(x.get(), 2.0), strict=True):
        assert got.get().tolist() == wanted.tolist()


def test_out_may_be_an_operand_of_a_function_of_several_values(cpu: Any) -> None:
    for divmod_ in (cpu.divmod, np.divmod):
        x, rest = cpu.array([7.0, 8.0]), cpu.zeros(2)
        divmod_(x, 3.0, out=(x, rest))
        assert (x.get().tolist(), rest.get().tolist()) == ([2.0, 2.0], [1.0, 2.0])
    with pytest.raises(TypeError, match="into which NumPy casts no"):
        np.divmod(x, 3.0, out=(x, cpu.zeros(2, "int32")))
    assert x.get().tolist() == [2.0, 2.0], "nothing is written if one of them cannot be"


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


@for_each("function", CALLS)
def test_other_functions_build_trees(function: Any, cpu: Any) -> None:
    values = np.arange(6.0).reshape(2, 3)
    x = cpu.array(values, name="x")
    for call in CALLS[function]:
        tree = call(x)
        text = inspect.getsource(call).strip()
        assert isinstance(tree, OpTreeNode), text
        with np.errstate(all="ignore"):
            compare(tree.asnumpyarray(), call(values), text, "by NumPy's function", ulps=8)


@pytest.mark.parametrize("function", SEVERAL, ids=lambda function: f"{function.__name__}")
def test_functions_of_several_values_build_several_trees(function: Any, cpu: Any) -> None:
    values = np.arange(6.0).reshape(2, 3)
    x = cpu.array(values, name="x")
    for call in SEVERAL[function]:
        text = inspect.getsource(call).strip()
        got, wanted = call(x), call(values)
        assert len(got) == len(wanted), text
        for tree, value in zip(got, wanted, strict=True):
            assert isinstance(tree, Variable), text
            compare(tree.asnumpyarray(), value, text, "by NumPy's function")


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
        (np.spacing, "np.spacing"),
        (np.subtract.accumulate, "np.subtract.accumulate"),
        (np.gcd.reduce, "np.gcd.reduce"),
        (lambda x: np.union1d(np.ones(2) * x, x), "np.union1d"),
    ],
)
def test_a_function_without_an_equal_says_how_to_run_it_on_the_host(call: Any, name: str, cpu: Any) -> None:
    with pytest.raises(TypeError) as caught:
        call(cpu.ones((2, 2)))
    assert str(caught.value).startswith(f"{name} has no equal here")
    assert f"; {name}(x.asnumpyarray(), ...) runs it on the host" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (np.argwhere, "np.argwhere has no equal here: how many elements it gives is known only when it has run"),
        (lambda x: np.extract(x > 0, x), r"how many .*be\.where\(condition, x, other\) is a tree"),
        (lambda x: np.intersect1d(x, x), "how many elements"),
        (lambda x: np.piecewise(x, [x > 0], [1.0]), r"np\.select\(conditions, choices\) is a tree"),
        (lambda x: np.polymul(x, x), "np.convolve is a tree"),
    ],
)
def test_a_function_without_an_equal_says_why_and_what_does_the_same(call: Any, message: str, cpu: Any) -> None:
    with pytest.raises(TypeError, match=message):
        call(cpu.ones((2, 2)))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, i: np.delete(x, 3, axis=1), AxisError, "delete: index 3 is out of bounds.*x"),
        (
            lambda x, i: np.insert(x, [0, 7], 1.0, axis=1),
            AxisError,
            r"insert: \[0, 7\] is out of range for axis 1 of x",
        ),
        (lambda x, i: np.delete(x, [True], axis=1), OperandError, "delete: boolean array argument.*x"),
        (lambda x, i: np.delete(x, i, axis=0), OperandError, r"delete: the indices i .* give i\.get\(\)"),
        (lambda x, i: np.insert(x, i, 0, axis=0), OperandError, r"insert: the indices i .* give i\.get\(\)"),
        (
            lambda x, i: np.insert(x, [0, 1], [1, 2, 3], axis=1),
            ShapeError,
            r"insert: the values .* broadcast to \(2, 2\)",
        ),
        (lambda x, i: np.repeat(x, i, axis=0), OperandError, "repeat: the shape depends on i"),
        (lambda x, i: np.repeat(x, [1, 2], axis=1), ShapeError, r"repeat: \(2,\) repeats for axis 1 of x"),
        (lambda x, i: np.repeat(x, [1, -2], axis=0), OperandError, "repeat: repeats are integers of 0 or more"),
        (lambda x, i: np.take(x, [0.5], mode="wrap"), DTypeError, "take: indices are integers"),
        (lambda x, i: np.convolve(x, x), ShapeError, "convolve: vectors are wanted, and x"),
        (lambda x, i: np.convolve(i, []), ShapeError, "convolve: .* is empty"),
        (lambda x, i: np.correlate(i, i, "most"), OperandError, "correlate: mode is 'full', 'same' or 'valid'"),
    ],
)
def test_what_is_refused_names_the_operand(call: Any, error: Any, message: str, cpu: Any) -> None:
    with pytest.raises(error, match=message):
        call(cpu.array(np.ones((2, 3)), name="x"), cpu.array(np.array([0]), "int64", name="i"))


MASK = np.array([[True, False, True], [False, False, True]])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.sum(x, where=MASK),
        lambda x: np.sum(x, axis=1, where=MASK, initial=2.5),
        lambda x: x.sum(axis=0, where=MASK, keepdims=True),
        lambda x: np.sum(x, where=x > 2.0),
        lambda x: np.add.reduce(x, axis=1, initial=3),
        lambda x: np.sum(x > 1.0, where=MASK),
        lambda x: np.prod(x, where=MASK, axis=1, initial=2),
        lambda x: np.max(x, axis=0, initial=2.0, where=MASK),
        lambda x: np.min(x, axis=1, initial=7.0),
        lambda x: np.max(x[:, :0], axis=1, initial=-1.0),
        lambda x: np.mean(x, where=MASK, axis=1),
        lambda x: np.mean(x, where=MASK, axis=0),
        lambda x: np.var(x, where=MASK, ddof=1),
        lambda x: np.std(x, axis=1, where=MASK, keepdims=True),
        lambda x: np.std(x, axis=1, correction=1),
        lambda x: np.var(x, mean=np.mean(x, keepdims=True)),
        lambda x: np.std(x, axis=1, mean=np.mean(x, axis=1, keepdims=True) + 1, ddof=1),
        lambda x: np.var(x.astype("float32"), axis=0, mean=2.0, where=MASK),
        lambda x: np.all(x > 1.0, axis=1, where=MASK),
        lambda x: np.any(x > 4.0, where=MASK),
        lambda x: np.sum(x, where=True),
    ],
)
def test_reductions_of_some_elements_are_numpys(call: Any, cpu: Any) -> None:
    values = np.arange(6.0).reshape(2, 3)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare(call(cpu.array(values)).asnumpyarray(), call(values), inspect.getsource(call).strip(), "by NumPy")


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.linspace(x, x * 3.0, 4) ** 2,
        lambda x: np.logspace(x[0], 1.0, 3, axis=1),
        lambda x: (
            np.quantile(x, [0.2, 0.9], axis=1, weights=np.array([1.0, 2.0, 1.0, 3.0]), method="inverted_cdf") ** 2
        ),
        lambda x: sliding_window_view(x, 2, axis=1) ** 3,
        lambda x: np.apply_along_axis(lambda row: np.sum(row * row) * row, 1, x),
        lambda x: np.fft.fftshift(x) ** 2,
        lambda x: np.resize(x, (3, 5)) ** 2,
        lambda x: np.logaddexp.reduce(x, axis=1),
        lambda x: np.fmax.reduce(x, axis=1),
        lambda x: np.var(x, axis=1, mean=np.mean(x * x, axis=1, keepdims=True)),
    ],
)
def test_functions_that_have_numpys_name_alone_have_derivatives(call: Any, cpu: Any) -> None:
    x = cpu.array([[3.0, 1.0, 2.5, -4.0], [0.5, 6.0, -2.0, 5.0]], name="x")
    check_grad(call, [x])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.pad(x, 1, mode="edge"),
        lambda x: np.pad(x, ((0, 0), (9, 4)), mode="reflect"),
        lambda x: np.pad(x, 3, mode="reflect", reflect_type="odd"),
        lambda x: np.insert(x, [0, 2], 7.0, axis=1),
        lambda x: sliding_window_view(x, (2, 3)),
        lambda x: np.median(x, axis=1),
        lambda x: np.quantile(x, 0.3, axis=1),
    ],
    ids=lambda call: inspect.getsource(call).strip(),
)
def test_known_indices_are_slices_which_fuse(call: Any, cpu: Any) -> None:
    x = cpu.array([[3.0, 1.0, 2.5, -4.0], [0.5, 6.0, -2.0, 5.0]], name="x")
    tree = call(x)
    assert not {"take", "gather"} & {node.op.name for node in nodes_of([tree])}
    np.testing.assert_allclose(tree.asnumpyarray(), call(x.get()), rtol=1e-6)


def test_a_function_of_vectors_is_called_once_and_draws_for_each(cpu: Any) -> None:
    called = []

    def noisy(row: Any) -> Any:
        called.append(row.shape)
        return row + cpu.rand(3)

    found = np.apply_along_axis(noisy, 1, cpu.zeros((4, 3))).get()
    assert called == [(3,)] and len(set(found.ravel())) == 12


@pytest.mark.parametrize("ufunc", [np.add, np.multiply, np.maximum, np.minimum])
def test_reductions_of_segments_have_derivatives(ufunc: np.ufunc, cpu: Any) -> None:
    x = cpu.array([[3.0, 1.0, 2.5, -4.0], [0.5, 6.0, -2.0, 5.0]])
    check_grad(lambda x: ufunc.reduceat(x, [1, 0, 3, 2], axis=1) ** 2, [x])


@pytest.mark.parametrize("reduce", ["sum", "max", "min"])
@pytest.mark.parametrize("starts", [[0, 2], [1, 1, 1, 3], [3, 1, 1, 0], [3, 3], [2, 0, 2]], ids=str)
def test_segments_of_indices_in_any_order_have_derivatives(starts: list[int], reduce: str, cpu: Any) -> None:
    """Segments overlap where the indices do not ascend."""
    x, i = cpu.array([[3.0, 1.0], [0.5, 6.0], [-2.0, 5.0], [2.5, -4.0]]), cpu.array(starts, "int64")
    for given in (i, np.array(starts)):
        check_grad(lambda x, given=given: cpu.segment_reduce(x, given, reduce) ** 2, [x])


def test_segments_are_of_known_indices_within_the_axis(cpu: Any) -> None:
    x = cpu.ones((2, 3), name="x")
    with pytest.raises(ShapeError, match=r"axis 1 of x .* not \[0, 3\]"):
        np.add.reduceat(x, [0, 3], axis=1)
    i = cpu.array([0, 2], "int64", name="i")
    assert cpu.segment_reduce(x, i, "sum", 1).tolist() == [[2.0, 1.0], [2.0, 1.0]]
    with pytest.raises(TypeError, match="np.add.reduceat has no equal here"):
        np.add.reduceat(x, i, axis=1)
    assert np.add.reduceat(cpu.xp.asarray(x), cpu.xp.asarray(i), axis=1).tolist() == [[2.0, 1.0], [2.0, 1.0]]
    i[:] = [0, 3]
    with pytest.raises(AxisError, match="segment_reduce: starts are beyond axis 1"):
        cpu.segment_reduce(x, i, "sum", 1).get()


def test_equal_extremes_of_a_segment_share_the_gradient(cpu: Any) -> None:
    x = cpu.array([2.0, 5.0, 5.0, 1.0, 1.0])
    y = np.maximum.reduceat(x, [1, 3]) * np.array([6.0, 8.0])
    assert grad(cpu.sum(y), x).tolist() == [0.0, 3.0, 3.0, 4.0, 4.0]
    overlapping = cpu.segment_reduce(x, cpu.array([1, 3, 2], "int64"), "max") * np.array([6.0, 8.0, 2.0])
    assert grad(cpu.sum(overlapping), x).tolist() == [0.0, 3.0, 3.0 + 2.0, 8.0, 0.0]


def test_an_extreme_of_some_elements_needs_a_first_value(cpu: Any) -> None:
    with pytest.raises(OperandError, match="max: with where= give initial="):
        np.max(cpu.ones((2, 3)), where=MASK)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "float32"])
@pytest.mark.parametrize("value", [1, True, 2.7, np.float64(3.5), np.array([1.5])], ids=repr)
def test_full_like_casts_its_value_as_numpy_does(dtype: str, value: Any, cpu: Any) -> None:
    like = np.ones((2, 2), dtype)
    found, wanted = np.full_like(cpu.array(like, dtype), value), np.full_like(like, value)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.get(), wanted)


def test_full_like_refuses_an_integer_that_overflows_as_numpy_does(cpu: Any) -> None:
    with pytest.raises(OverflowError, match="out of bounds"):
        np.full_like(cpu.array(np.ones(2, np.int8), np.int8), 300)


def test_arguments_that_are_equal_and_not_the_same_are_told_apart(cpu: Any) -> None:
    x = cpu.ones((2, 3), name="x")
    assert cpu.sum(x, axis=1).shape == (2, 1)
    assert cpu.sum(x, axis=1, keepdims=False).shape == (2,)
    assert cpu.sum(x, axis=1, keepdims=0).shape == cpu.sum(x, keepdims=False, axis=1).shape == (2,)
    assert [cpu.sum(x, axis=1, keepdims=kept)[0]["keepdims"] for kept in (True, 1, False, 0)] == [True, 1, False, 0]
    assert cpu.sum(x, axis=(0, 1), keepdims=False).shape == ()


@pytest.mark.parametrize("name", ["unique", "nonzero", "bincount", "flatnonzero"])
def test_what_is_as_large_as_values_say_asks_for_its_size(name: str, cpu: Any) -> None:
    x = cpu.ones(3, "int64")
    with pytest.raises(OperandError, match=rf"{name}: give size=.*np\.{name}\(x\.asnumpyarray\(\)\)"):
        getattr(cpu, name)(x)
    with pytest.raises(TypeError, match=rf"np\.{name} has no equal here.*be\.{name}\(x, size=\.\.\.\)"):
        getattr(np, name)(x)


class _Other:
    """Another library's array, which knows what to do with ours."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> str:
        return ufunc.__name__

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> str:
        return func.__name__


def test_another_librarys_arrays_have_their_say(cpu: Any) -> None:
    x = cpu.ones(2)
    assert np.hypot.at(x, 0, _Other()) == "hypot"
    assert np.setdiff1d(x, _Other()) == "setdiff1d"


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


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.unravel_index(x, (3, 4))[0],
        lambda x: np.unravel_index(x, (3, 4), order="F")[1],
        lambda x: np.ravel_multi_index((x, 0), (3, 4)),
    ],
)
def test_indices_out_of_range_are_refused(call: Any, cpu: Any) -> None:
    with pytest.raises(AxisError, match="out of range"):
        call(cpu.array([12], dtype="int64")).get()


def test_dot_multiplies_by_what_has_no_dimensions(cpu: Any) -> None:
    """As NumPy's does; the backend's own refuses it."""
    x, v, m = np.array(6.0), np.array([1.0, 2.0]), np.array([[1.0, 2.0], [3.0, 4.0]])
    for a, b in product((x, v, m, 2.5, 3), (x, 2)):
        for one, other in ((a, b), (b, a)):
            ours = [cpu.array(y, y.dtype) if isinstance(y, np.ndarray) else y for y in (one, other)]
            if any(isinstance(y, Variable) for y in ours):
                found = np.dot(*ours)
                np.testing.assert_array_equal(found.asnumpyarray(), np.dot(one, other))
                assert found.dtype == np.dot(one, other).dtype
    assert cpu.array(v).dot(cpu.array(x)).tolist() == [6.0, 12.0]
    check_grad(lambda a, b: np.dot(a, b) ** 2, [cpu.array(x), cpu.array(m)])
    with pytest.raises(ShapeError, match="a number has no axis to contract"):
        cpu.dot(cpu.array(x), cpu.array(v))
