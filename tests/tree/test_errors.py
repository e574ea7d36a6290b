"""Bad input raises an error at the line that is wrong, for the person who wrote it, and changes nothing."""

from __future__ import annotations

import traceback

import numpy as np
import pytest
from harness.messages import message_of

from backends import gen_backend
from optree import Autodiff, Input, Op, OpTreeNode, TensorType, grad
from optree.errors import (
    AxisError,
    BackendError,
    DefinitionError,
    DisconnectedError,
    DTypeError,
    GradientError,
    OperandError,
    OptreeError,
    ShapeError,
    UnknownOpError,
    describe,
)


@pytest.fixture
def x(be):
    return be.ones((2, 3), name="x")


@pytest.fixture
def y(be):
    return be.ones((4, 3), name="y")


def case(value):
    """An id that each process gives a value: an object's repr has its address, and test processes compare ids."""
    return None if type(value) is object else repr(value)


# Shapes


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "maximum", "eq", "logical_and", "arctan2"])
def test_shapes_that_do_not_broadcast(be, x, y, name):
    message = message_of(ShapeError, lambda: getattr(be, name)(x, y))
    for part in (f"{name}: ", "x (2, 3) float32", "y (4, 3) float32", "test_errors.py:"):
        assert part in message
    assert issubclass(ShapeError, ValueError)


def test_a_node_and_an_array_are_named_too(be, x):
    message = message_of(ShapeError, lambda: be.sin(x) * np.ones(5))
    for part in ("mul: ", "sin (2, 3) float32", "constant(5,) (5,) float64"):
        assert part in message


def test_an_error_names_the_lines_that_made_the_operands(be, x):
    first = x.origin[0].co_firstlineno
    wrong = be.ones((5,), name="wrong")
    line = test_an_error_names_the_lines_that_made_the_operands.__code__.co_firstlineno + 2
    message = message_of(ShapeError, lambda: x + wrong)
    assert f"made at test_errors.py:{line}" in message
    assert f"made at test_errors.py:{first + 2}" in message


@pytest.mark.parametrize(
    "make",
    [
        lambda be, x, y: x + y,
        lambda be, x, y: y - x,
        lambda be, x, y: np.add(x, y),
        lambda be, x, y: be.add(x, y),
        lambda be, x, y: OpTreeNode.build("add", x, y),
        lambda be, x, y: be.where(x > 0, x, y),
        lambda be, x, y: be.dot(x, y),
        lambda be, x, y: x @ y,
        lambda be, x, y: be.reshape(x, (4, 2)),
        lambda be, x, y: be.broadcast_to(x, (3, 3)),
        lambda be, x, y: be.concatenate([x, y], axis=1),
        lambda be, x, y: be.stack([x, y]),
        lambda be, x, y: be.squeeze(x, 0),
        lambda be, x, y: x.__setitem__(slice(None), y),
        lambda be, x, y: x.__iadd__(y),
        lambda be, x, y: be.sin(y, out=x),
    ],
)
def test_a_wrong_shape_fails_at_the_line_that_wrote_it(be, x, y, make):
    """And names both shapes and names, where there are two."""
    with pytest.raises(ShapeError) as caught:
        make(be, x, y)
    assert "(2, 3)" in str(caught.value) and "x" in str(caught.value)
    assert len(traceback.extract_tb(caught.value.__traceback__)) < 16
    np.testing.assert_array_equal(x.get(), np.ones((2, 3)))


def test_an_assignment_to_a_part_names_the_whole(be, x, y):
    message = message_of(ShapeError, lambda: x.__setitem__(slice(0, 1), y))
    for part in ("assign: ", "(1, 3)", "a view of x", "y (4, 3)"):
        assert part in message


def test_an_assignment_names_target_and_value(be, x, y):
    message = message_of(ShapeError, lambda: x.__setitem__(slice(None), y * 2))
    for part in ("assign: ", "x (2, 3)", "mul (4, 3)", "not broadcast"):
        assert part in message


# Axes


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda be, x: be.sum(x, axis=2), ("sum", "axis 2", "2 dimensions")),
        (lambda be, x: be.mean(x, axis=-3), ("axis -3", "2 dimensions")),
        (lambda be, x: be.max(x, axis=(0, 0)), ("max", "twice")),
        (lambda be, x: be.argmax(x, axis=5), ("argmax", "axis 5")),
        (lambda be, x: be.sum(x, axis=0.5), ("sum", "0.5")),
        (lambda be, x: be.softmax(x, axis=7), ("axis 7",)),
        (lambda be, x: x.transpose(0, 2), ("transpose",)),
        (lambda be, x: x.transpose(0, 0), ("transpose",)),
        (lambda be, x: (x + 1).transpose(0), ("transpose",)),
        (lambda be, x: be.expand_dims(x, 9), ("expand_dims", "9")),
        (lambda be, x: be.flip(x, 2), ("flip", "2")),
        (lambda be, x: be.take(x, [0], axis=2), ("take", "2")),
        (lambda be, x: be.concatenate([x, x], axis=2), ("concatenate", "2")),
        (lambda be, x: x[2], ("index 2", "axis 0", "size 2", "x")),
        (lambda be, x: x[0, -4], ("index -4", "axis 1", "size 3", "x")),
        (lambda be, x: x[0, 0, 0], ("3 indices", "(2, 3)", "x")),
        (lambda be, x: x[..., ...], ("ellipsis", "x")),
        (lambda be, x: x[[0, 2]], ("index 2", "axis 0", "x")),
    ],
)
def test_an_axis_or_index_out_of_range(be, x, make, parts):
    message = message_of(AxisError, lambda: make(be, x))
    for part in parts:
        assert part in message
    assert issubclass(AxisError, ValueError) and issubclass(AxisError, IndexError)


# Names and operands


def test_an_unknown_op_lists_those_there_are(be, x):
    message = message_of(UnknownOpError, lambda: OpTreeNode.build("hadd", x, x))
    assert "'hadd'" in message and "add" in message and "tanh" in message
    assert "'hadd'" in message_of(UnknownOpError, lambda: OpTreeNode({"op": "hadd", "shape": (2, 3)}, x, x))
    assert "None" in message_of(UnknownOpError, lambda: OpTreeNode({}, x, x))
    with pytest.raises(AttributeError, match=r"'hadd'; did you mean .*\badd\b"):
        be.hadd(x, x)


@pytest.mark.parametrize("foreign", ["text", None, [1, 2], (1, 2), {1: 2}, object(), b"x", np.array("a")], ids=case)
def test_an_operand_of_a_foreign_type(be, x, foreign):
    for make in (lambda: x + foreign, lambda: foreign * x, lambda: be.maximum(x, foreign), lambda: x == foreign):
        with pytest.raises((OperandError, DTypeError)) as caught:
            make()
        assert type(foreign).__name__ in str(caught.value) or str(np.asarray(foreign).dtype) in str(caught.value)


def test_a_list_as_an_operand_says_what_to_do(x):
    values = [1, 2, 3]
    message = message_of(OperandError, lambda: x + values)
    assert "add: " in message and "np.asarray" in message


def test_too_few_and_too_many_operands(be, x):
    for make in (
        lambda: OpTreeNode.build("add", x),
        lambda: OpTreeNode.build("sin", x, x),
        lambda: be.add(x),
        lambda: be.sin(x, x, x),
    ):
        with pytest.raises(TypeError, match=r"add|sin"):
            make()


def test_an_unknown_parameter(be, x):
    for make in (lambda: be.sum(x, axes=0), lambda: OpTreeNode.build("sum", x, None, axes=0)):
        with pytest.raises(TypeError, match="axes"):
            make()


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda be, x: be.dot(x, x, x), ("dot(x, y)", "3 arguments")),
        (lambda be, x: be.reshape(x, 3, 2), ("reshape(x, newshape=(-1,))", "3 arguments")),
        (lambda be, x: be.sum(x, 0, axis=1), ("sum(x, axis=None, keepdims=True)", "axis twice")),
        (lambda be, x: be.add(x), ("add(x, y)", "y is missing")),
        (lambda be, x: be.normal((2, 3)), ("loc", "(2, 3)", "size=")),
        (lambda be, x: be.rand(2, 3), ("3 is not a dtype", "one tuple, as in (2, 3)")),
        (lambda be, x: be.zeros(2, 3), ("3 is not a dtype", "one tuple, as in (2, 3)")),
        (lambda be, x: be.ones(2, name=5), ("a name is a string or None, not 5",)),
        (lambda be, x: x.copy(name=5), ("a name is a string or None, not 5",)),
        (lambda be, x: Input(x.type, 5), ("a name is a string or None, not 5",)),
        (lambda be, x: be.onehot([0, 1], 3), ("onehot", "list [0, 1]", "np.asarray")),
        (lambda be, x: be.array([[1], [1, 2]]), ("array: [[1], [1, 2]]", "equally long")),
        (lambda be, x: x.set([[1], [1, 2]]), ("set: x: [[1], [1, 2]]", "equally long")),
        (lambda be, x: be.sum(x, x), ("sum: an axis is an integer",)),
    ],
)
def test_a_call_that_means_something_else(be, x, make, parts):
    message = message_of((OperandError, DTypeError, ShapeError, AxisError), lambda: make(be, x))
    for part in parts:
        assert part in message


def test_an_error_shows_a_large_value_or_tree_in_brief(be, x):
    class Wild(Op):
        operands = ("x",)
        __props__ = ()
        numpy = np.sin

        def output_shape(self, *shapes):
            return shapes[0]

        def grad(self, inputs, output_gradients):
            return output_gradients[0] + long

    long = x
    for _ in range(500):
        long = long + x
    for kind, make in (
        (DefinitionError, lambda: grad(be.sum(Wild()(x)), x)),
        (OperandError, lambda: be.add(x, [long, long])),
        (OperandError, lambda: be.normal([long] * 50)),
        (AxisError, lambda: be.sum(x, long)),
        (DTypeError, lambda: be.zeros(2, dtype=long)),
        (BackendError, lambda: (Input(TensorType("float32", ()), "i") + 1).execute()),
    ):
        assert len(message_of(kind, make)) < 700


def test_a_line_of_op_trees_own_is_not_the_line_that_made_an_operand(be, x):
    inner = be.var(x)
    while isinstance(inner, OpTreeNode):
        assert not any(part in describe(inner) for part in ("reduction.py", "elementwise.py", "op.py"))
        inner = inner[1]
    assert "made at test_errors.py" in describe(x + 1)


def test_an_input_has_no_value_outside_a_function(be):
    i = Input(TensorType("float32", (2,)), "i")
    assert "i " in message_of(OperandError, lambda: i.asnumpyarray())
    out = be.zeros((2,))
    with pytest.raises(OptreeError, match="i is an input"):
        out[:] = i + 1
    assert out.get().tolist() == [0, 0]
    assert "be.array" in message_of(BackendError, lambda: (i + 1).execute())


def test_only_a_tensor_can_be_assigned_to(be, x):
    for target in (x + 1, 3, None, np.ones((2, 3))):
        assert "assign" in message_of(OperandError, lambda target=target: OpTreeNode.build("assign", target, x))
    with pytest.raises(TypeError, match="out"):
        OpTreeNode.build("sin", x, None, out=np.ones((2, 3)))
    with pytest.raises(TypeError, match="out"):
        be.sin(x, out=np.ones((2, 3)))


# dtypes


@pytest.mark.parametrize("dtype", ["datetime64[s]", "U3", "object", "longdouble"])
def test_a_dtype_that_tensors_do_not_have(be, x, dtype):
    array = np.zeros(2, dtype)
    for make in (lambda: be.zeros((2,), dtype=dtype), lambda: x + array[0:1], lambda: x.astype(dtype)):
        message = message_of(DTypeError, make)
        assert "float32" in message and str(np.dtype(dtype)) in message


@pytest.mark.parametrize("values", [np.zeros(2, "m8[s]"), None, "a", [1, None], object(), {1: 2}], ids=case)
def test_values_that_no_tensor_can_hold(be, values):
    assert "array: " in message_of(DTypeError, lambda: be.array(values))


def test_an_array_of_another_dtype_names_the_op_or_the_target(x):
    array = np.zeros(3, "m8[s]")
    assert "add: " in message_of(DTypeError, lambda: x + array)
    assert "assignment to x: " in message_of(DTypeError, lambda: x.__setitem__(slice(None), array))


def test_something_that_is_no_dtype(be):
    assert "'floot'" in message_of(DTypeError, lambda: be.zeros((2,), dtype="floot"))


def test_an_op_that_a_dtype_does_not_have(be):
    mask = be.ones((2,), dtype="bool", name="mask")
    for name, make in [("sub", lambda: mask - mask), ("neg", lambda: -mask)]:
        message = message_of(DTypeError, make)
        assert name in message and "mask (2,) bool" in message


# Reductions of nothing


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_an_empty_reduction_without_identity(be, name):
    x = be.zeros((0, 3), name="x")
    message = message_of(ShapeError, lambda: getattr(be, name)(x, axis=0))
    for part in (name, "x (0, 3)", "empty"):
        assert part in message
    assert be.sum(x, axis=0).asnumpyarray().tolist() == [[0, 0, 0]]
    assert be.prod(x).asnumpyarray().tolist() == [[1]]


# Backends


def test_an_unknown_backend_lists_those_there_are():
    message = message_of(BackendError, lambda: gen_backend("tpu"))
    for part in ("'tpu'", "cpu", "gpu"):
        assert part in message


def test_a_gpu_that_is_missing_is_named():
    try:
        gen_backend("gpu")
    except BackendError as error:
        assert any(word in str(error) for word in ("driver", "CuPy", "device"))


def test_wrong_arguments_of_gen_backend():
    assert "'tensorflow'" in message_of(BackendError, lambda: gen_backend("cpu", compat_mode="tensorflow"))
    for name, value in [
        ("device_id", 3),
        ("device_id", -1),
        ("device_id", "x"),
        ("device_id", True),
        ("batch_size", True),
        ("batch_size", -1),
        ("batch_size", 1.5),
        ("stochastic_round", "no"),
        ("stochastic_round", None),
    ]:
        message = message_of(BackendError, lambda name=name, value=value: gen_backend("cpu", **{name: value}))
        assert name in message and str(value) in message
    with pytest.raises(OptreeError, match="int32"):
        gen_backend("cpu", datatype=np.int32)
    with pytest.raises(OptreeError, match="'floot'"):
        gen_backend("cpu", datatype="floot")


def test_a_tensor_of_another_backend(be, x):
    other = gen_backend("cpu").ones((2, 3), name="other")
    for make in (
        lambda: x + other,
        lambda: (x + 1) * (other * 2),
        lambda: be.where(x > 0, x, other),
        lambda: x.__setitem__(slice(None), other),
        lambda: x.__setitem__(0, other[0] + 1),
        lambda: x.__iadd__(other),
        lambda: be.sin(other, out=x),
    ):
        message = message_of(BackendError, make)
        assert "be.array(x.get())" in message and str(be) in message and str(other.backend) in message
    assert str(be) in message_of(BackendError, lambda: be.execute(OpTreeNode.build("assign", other, 1)))
    np.testing.assert_array_equal(x.get(), np.ones((2, 3)))


def test_iobuf_without_a_batch_size(be):
    assert "batch_size" in message_of(BackendError, lambda: be.iobuf(5))


@pytest.mark.parametrize("shape", [(-1, 2), 2.5, (2, "a"), None, "ab"])
def test_a_shape_that_is_none(be, shape):
    for make in (lambda: be.zeros(shape), lambda: be.empty(shape)):
        with pytest.raises(OptreeError, match="shape"):
            make()


# Derivatives


def test_a_derivative_of_something_not_in_the_tree(be, x, y):
    message = message_of(DisconnectedError, lambda: grad(be.sum(x * 2), y))
    assert "y" in message
    assert issubclass(DisconnectedError, GradientError)


def test_a_cost_that_is_no_scalar(be, x):
    assert "(2, 3)" in message_of(GradientError, lambda: grad(x * 2, x))
    assert "next_error" in message_of(GradientError, lambda: Autodiff(x * 2, be).get_grad_op_tree([x]))


# Errors when it runs


def failures(be):
    """A tree that fails when it runs, the words its error says, and a target."""
    x, n = be.array([1.0, 2.0, 3.0], name="x"), be.array(np.array([2, 3, -1]), name="n")
    at = be.array(np.array([0, 9]), name="at")
    return [
        (be.take(x, at, axis=0), ("9", "take"), be.full((2,), 7)),
        (x[at], ("9", "gather"), be.full((2,), 7)),
        (be.array(np.array([2, 3, 4])) ** n + 1, ("negative", "pow"), be.full((3,), 7, dtype="int64")),
    ]


@pytest.mark.parametrize("which", range(3))
def test_a_failure_at_run_time_names_its_op_and_leaves_the_target(be, which):
    tree, words, target = failures(be)[which]
    before = target.get()
    with pytest.raises((ValueError, IndexError)) as caught:
        target[:] = tree
    text = "".join(traceback.format_exception_only(caught.value))
    for word in (*words, "test_errors.py:"):
        assert word in text
    np.testing.assert_array_equal(target.get(), before)
    target[:] = 1  # and the backend goes on
    assert target.get().tolist() == [1] * target.size


def test_a_failure_names_the_line_and_sizes_of_the_tree_that_failed(be):
    def assign(n, last):
        x, at, out = be.ones((n,)), be.array(np.array([0, last])), be.empty((2,))
        out[:] = be.take(x, at, axis=0) * 2

    assign(3, 1)
    compiles = be.stats()["compiles"]
    x, at, out = be.ones((7,)), be.array(np.array([0, 7])), be.empty((2,))
    line = test_a_failure_names_the_line_and_sizes_of_the_tree_that_failed.__code__.co_firstlineno + 9
    tree = be.take(x, at, axis=0)
    with pytest.raises(IndexError) as caught:
        out[:] = tree * 2
    assert be.stats()["compiles"] == compiles
    assert f"test_errors.py:{line}" in "".join(caught.value.__notes__)


def test_an_op_that_breaks_its_promise_is_convicted(be):
    class Liar(Op):
        operands = ("x",)
        __props__ = ()

        def output_shape(self, *shapes):
            return shapes[0]

        def perform(self, node, inputs, output_storage):
            output_storage[0][0] = inputs[0][:1]

        def grad(self, inputs, output_gradients):
            return [None]

    x, out = be.ones((2, 3)), be.zeros((2, 3))
    with pytest.raises(OptreeError, match=r"Liar.*\(2, 3\) is wanted, not \(1, 3\)"):
        out[:] = Liar()(x)
    assert not out.get().any()


def test_sizes_that_cannot_be():
    assert "0 or more" in message_of(ShapeError, lambda: TensorType("float32", (-1, 8)))
    assert TensorType("float32", 8) is TensorType("float32", (8,))
    assert "only a call tells" in message_of(OperandError, lambda: gen_backend("cpu").zeros((None, 3)))


@pytest.mark.parametrize(
    "name, meant", [("arry", "array"), ("zeross", "zeros"), ("tanhh", "tanh"), ("evalute", "evaluate")]
)
def test_a_function_that_a_backend_has_not_is_told_with_those_of_like_names(name, meant):
    with pytest.raises(AttributeError, match=rf"no function '{name}'; did you mean .*\b{meant}\b.*dir\(be\)") as caught:
        getattr(gen_backend("cpu"), name)
    assert len(str(caught.value)) < 200


def test_suggestions_are_no_private_names():
    with pytest.raises(AttributeError) as caught:
        getattr(gen_backend("cpu"), "shapes")  # noqa: B009
    assert "_shape" not in str(caught.value)


@pytest.mark.parametrize("ask", [lambda x: x.size, lambda x: x.T.size, lambda x: (x + 1).item()])
def test_how_many_elements_there_are_is_not_known_of_an_open_axis(ask):
    x = TensorType("float32", (None, 3))("x")
    with pytest.raises(ShapeError, match=r"size: .*known when the function is called; f\.count\(x\)"):
        ask(x)
