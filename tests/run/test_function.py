"""Functions: arguments, outputs, updates, sizes, errors."""

from __future__ import annotations

import gc
import io
import pickle
import sys
import threading
import warnings
import weakref
from itertools import count
from typing import Any

import numpy as np
import pytest
from harness.calls import calls_of
from harness.ops import Double, DoubleOp

from backends import gen_backend
from optree import Apply, Input, Mode, Op, OpTreeNode, TensorType, debugprint, function, grad
from optree.errors import BackendError, DTypeError, OperandError, OptreeError, ReentryError, ShapeError
from optree.run import function as functions
from optree.run.function import ModeError

VECTOR, MATRIX = TensorType("float64", (None,)), TensorType("float64", (None, None))


@pytest.fixture
def be() -> Any:
    return gen_backend("cpu", rng_seed=0, datatype=np.float64)


def message_of(kind: Any, call: Any) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


# Arguments and results


def test_positional_and_keyword_arguments(be):
    x, y = VECTOR("x"), VECTOR("y")
    f = function([x, y], x - 2 * y)
    for result in (f([1, 2], [3, 4]), f([1, 2], y=[3, 4]), f(y=[3, 4], x=[1, 2])):
        assert result.backend is be
        np.testing.assert_array_equal(result.get(), [-5.0, -6.0])


def test_arrays_of_a_dtype_and_shape_that_were_accepted_are_not_checked_again(be):
    x, y = TensorType("float64", (None, 3))("x"), VECTOR("y")
    f = function([x, y], x * y)
    given = np.ones((2, 3)), np.arange(3.0)
    assert f(*given).get().tolist() == [[0.0, 1.0, 2.0]] * 2
    assert not {"filter", "_filtered", "_check_sizes"} & set(calls_of(lambda: f(*given)))
    for wrong in (np.ones((2, 4)), np.ones(3), np.ones((2, 3), complex), np.ma.masked_array(np.ones((2, 3)), True)):
        f(*given)
        with pytest.raises(OptreeError, match="argument 0"):
            f(wrong, given[1])
    assert f(np.ones((2, 3), np.int32), given[1]).get().tolist() == [[0.0, 1.0, 2.0]] * 2
    with pytest.raises(OptreeError):
        f(np.ones((2, 3)), np.arange(4.0))  # each has a type that is accepted, and not both


def test_one_value_a_list_or_none(be):
    x = VECTOR("x")
    assert isinstance(function([x], [x + 1])([1.0]), list)
    assert function([x], x + 1)([1.0]).get() == [2.0]
    assert function([x], on_unused_input="ignore")([1.0]) is None
    first, second = function([x], [x, x * 2])([1.0])
    assert (first.item(), second.item()) == (1.0, 2.0)


def test_sizes_may_change_and_compile_nothing(be):
    x, w = MATRIX("x"), be.ones((3, 2), name="w")
    f = function([x], be.sum(be.dot(x, w)))
    compiled = be.stats()["compiles"]
    assert [f(np.ones((n, 3))).item() for n in (1, 5, 2)] == [6.0, 30.0, 12.0]
    assert be.stats()["compiles"] == compiled


def test_a_tensor_as_an_input(be):
    x, w = be.ones((2, 3), name="x"), be.ones((3,), name="w")
    f = function([x], be.sum(x.T * w.reshape(3, 1) + x[0, :].reshape(3, 1)))
    assert f(np.full((2, 3), 2.0)).item() == 24.0
    assert f(x=np.full((2, 3), 0.5)).item() == 6.0
    assert x.get().tolist() == np.ones((2, 3)).tolist()


def test_arguments_may_be_tensors_trees_arrays_and_lists(be):
    f = function([x := VECTOR("x")], x * 2)
    given = be.array([1.0, 2.0])
    for value in (given, given + 0, given.get(), [1, 2], (1.0, 2.0)):
        assert f(value).get().tolist() == [2.0, 4.0]


def test_tensors_are_looked_at_once_for_each_combination_of_shapes_and_dtypes(be, monkeypatch):
    x, y = MATRIX("x"), VECTOR("y")
    looked: list[Any] = []
    look = functions.Function._filtered
    monkeypatch.setattr(functions.Function, "_filtered", lambda *args: looked.append(args) or look(*args))
    f, other = function([x, y], x + y), gen_backend("cpu")
    ones, row = be.ones((2, 3)), be.ones(3)
    for n in range(4):
        assert f(ones * n, row).get().tolist() == f(ones * n, y=row).get().tolist() == [[n + 1.0] * 3] * 2
    before = len(looked)
    for _ in range(3):
        assert f(ones, row).get().tolist() == [[2.0] * 3] * 2
    assert len(looked) - before == 2
    for wrong, kind in ((be.ones((4, 5)), ShapeError), (be.ones(3), ShapeError), (other.ones((2, 3)), BackendError)):
        message_of(kind, lambda wrong=wrong: f(wrong, row))
        message_of(OperandError, lambda wrong=wrong: f(wrong))
    assert f(be.ones((2, 3), np.int32), row).get().tolist() == [[2.0] * 3] * 2


def test_results_are_apart_from_arguments_tensors_and_each_other(be):
    x, w = VECTOR("x"), be.zeros(2, name="w")
    array = np.ones(2)
    same, weights, flipped, again = function([x], [x, w, be.flip(w, 0), w])(array)
    for result in (same, weights, flipped, again):
        result[:] = 7
    assert array.tolist() == [1.0, 1.0] and w.get().tolist() == [0.0, 0.0]


def test_givens(be):
    x, y = VECTOR("x"), VECTOR("y")
    total = be.sum(x * x, keepdims=False)
    assert function([y], total, givens={x: y + 1})([1.0, 2.0]).item() == 13.0
    assert function([y], total, givens=[(x, be.ones(3)), (y, y)], on_unused_input="ignore")([0.0]).item() == 3.0


def test_users_types_without_a_backend(monkeypatch):
    monkeypatch.setattr(functions, "_backends", [])
    double = Double()
    x, y = double("x"), double("y")
    mul = DoubleOp("mul", lambda a, b: a * b, 2)
    f = function([x, y], mul(x, y))
    assert f(5, 6) == 30.0 and f(5.6, 6.7) == 37.519999999999996
    assert function([x], mul(x, 2))(10) == 20.0
    message = message_of(OperandError, lambda: f("a", 1))
    assert "argument 0 (x)" in message and "Double" in message
    z = VECTOR("z")
    result = function([z], z + 1)([1.0])
    assert isinstance(result, np.ndarray) and result.tolist() == [2.0]


def test_functions_without_tensors_run_on_the_last_backend():
    first, second = gen_backend("cpu"), gen_backend("cpu")
    x = VECTOR("x")
    assert function([x], x + 1)([1.0]).backend is second
    assert function([x], x + first.ones(1))([1.0]).backend is first
    gen_backend("cpu")  # gone at once
    gc.collect()
    assert function([x], x + 1)([1.0]).backend is second


# Updates


def test_updates_come_after_all_outputs_and_together(be):
    x, a, b = VECTOR("x"), be.array([1.0, 2.0], name="a"), be.array([10.0, 20.0], name="b")
    swap = function([x], a + b + x, updates={a: b, b: a + x})
    assert swap([0.5, 0.5]).get().tolist() == [11.5, 22.5]
    assert (a.get().tolist(), b.get().tolist()) == ([10.0, 20.0], [1.5, 2.5])
    rotate = function([], [a], updates=[(a, be.flip(a, 0)), (b[:1], a[1:])])
    (before,) = rotate()
    assert before.get().tolist() == [10.0, 20.0]
    assert (a.get().tolist(), b.get().tolist()) == ([20.0, 10.0], [20.0, 2.5])


def test_a_value_that_is_updated_and_used_again(be):
    m, w = be.zeros(3, name="m"), be.zeros(3, name="w")
    new = 0.5 * m + 1
    step = function([], updates=[(m, new), (w, w - 0.1 * new)])
    for _ in range(2):
        step()
    np.testing.assert_allclose(m.get(), 1.5)
    np.testing.assert_allclose(w.get(), -0.25)


def test_an_update_of_the_wrong_size_writes_nothing(be):
    x, a, b = VECTOR("x"), be.zeros(2, name="a"), be.zeros(2, name="b")
    f = function([x], updates=[(a, a + 1), (b, x)])
    assert "assign" in message_of(ShapeError, lambda: f([1.0, 2.0, 3.0]))
    assert a.get().tolist() == [0.0, 0.0]
    f([1.0, 2.0])
    assert b.get().tolist() == [1.0, 2.0]


def test_a_step_that_fails_writes_nothing(be):
    x, a = VECTOR("x"), be.zeros(2, name="a")
    places = TensorType("int64", (None,))("places")
    f = function([x, places], be.take(x, places), updates={a: a + 1})
    with pytest.raises(OptreeError):
        f([1.0, 2.0], [5])
    assert a.get().tolist() == [0.0, 0.0]


def test_random_numbers_are_drawn_once_a_call_and_anew_each_call(be):
    x = be.ones((50,), name="x")
    mask = be.dropout_mask(x, 0.5)
    f = function([], [mask, mask * 1, be.sum(x * mask)])
    first, same, total = f()
    assert first.get().tolist() == same.get().tolist() and total.item() == first.get().sum()
    assert first.get().tolist() != f()[0].get().tolist()


def test_gradients_of_a_dropout_agree(be):
    w1, w2 = be.ones((4, 6), name="w1"), be.ones((6, 2), name="w2")
    hidden = be.dot(be.ones((1, 4)), w1)
    loss = be.sum(be.dot(hidden * be.dropout_mask(hidden, 0.5), w2), keepdims=False)
    first, second = function([], grad(loss, [w1, w2]))()
    assert ((first.get()[0] != 0) == (second.get()[:, 0] != 0)).all()


# Destroyers


class AddInPlace(Op):
    """x + y, written over x."""

    __props__ = ()
    destroy_map = {0: [0]}

    def make_node(self, x: Any, y: Any) -> Apply:
        return Apply(self, [x, y], [x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        x, y = inputs
        x += y
        output_storage[0][0] = x


def test_a_destroyer_leaves_arguments_constants_and_other_readers_alone(be):
    add, x, y = AddInPlace(), VECTOR("x"), VECTOR("y")
    array = np.array([1.0, 2.0])
    for tree, expected in (
        (add(x, y), [11.0, 22.0]),
        (add(x, y) * x, [11.0, 44.0]),
        (x * add(x, y), [11.0, 44.0]),
        (add(x * 1, y) + add(x * 1, x), [13.0, 26.0]),
        (add(w := x * 2, y) + w, [14.0, 28.0]),
        (add(add(w := x * 2, y), w) + w, [16.0, 32.0]),
    ):
        for mode in ("default", "reference"):
            assert function([x, y], tree, mode=mode)(array, [10.0, 20.0]).get().tolist() == expected
        assert array.tolist() == [1.0, 2.0]


class GrowingBuffer(Op):
    """x + y, in a hidden buffer that grows and is kept."""

    __props__ = ()
    default_output = 0
    made = 0

    def make_node(self, x: Any, y: Any) -> Apply:
        return Apply(self, [x, y], [x.type.make_variable(), x.type.make_variable()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        x, y = inputs
        z, buffer = output_storage
        if buffer[0] is None or buffer[0].size < x.size:
            GrowingBuffer.made += 1
            buffer[0] = np.empty(x.size * 2)
        z[0] = buffer[0][: x.size]
        np.add(x, y, out=z[0])


def test_a_hidden_output_is_kept_between_calls_and_results_stay(be):
    x = VECTOR("x")
    f = function([x], GrowingBuffer()(x, x))
    GrowingBuffer.made = 0
    results = [f(np.full(n, float(n))) for n in (3, 5, 6, 2)]
    assert GrowingBuffer.made == 1
    assert [r.get().tolist() for r in results] == [[2.0 * n] * n for n in (3, 5, 6, 2)]


# What is refused


def test_arguments_that_are_refused_are_named(be):
    x, n = VECTOR("x"), TensorType("int64", ())("n")
    f = function([x, n], x * n, name="scale")
    for call, kind, parts in (
        (lambda: f([1.0]), OperandError, ("scale", "missing n")),
        (lambda: f([1.0], 2, 3), OperandError, ("scale", "2 arguments", "3")),
        (lambda: f([1.0], 2, n=2), OperandError, ("n", "given twice")),
        (lambda: f([1.0], 2, m=2), OperandError, ("'m'", "it has x, n")),
        (lambda: f([[1.0]], 2), ShapeError, ("argument 0 (x)", "(1, 1)", "(None,)")),
        (lambda: f([1.0], 2.5), DTypeError, ("argument 1 (n)", "float64", "int64")),
        (lambda: f(np.ones(1, np.complex128), 2), DTypeError, ("argument 0 (x)", "complex128")),
        (lambda: f(gen_backend("cpu").ones(1, np.float64), 2), BackendError, ("argument 0 (x)",)),
    ):
        message = message_of(kind, call)
        assert all(part in message for part in parts), message


def test_arguments_may_lose_something_where_the_function_allows_it(be):
    x, n = TensorType("float32", (None,))("x"), TensorType("int32", ())("n")
    wide = np.array([0.1, 2.0])
    refusing = function([x, n], x * n)
    for given in (wide, be.array(wide)):
        text = message_of(DTypeError, lambda given=given: refusing(given, 2))
        assert "float64 does not go into float32" in text
        assert "x.astype('float32') converts it" in text and "allow_input_downcast=True" in text
    allowing = function([x, n], x * n, allow_input_downcast=True)
    for given in (wide, be.array(wide), wide.tolist()):
        found = allowing(given, 2.9)
        assert found.dtype == np.float64 and found.tolist() == (wide.astype("float32") * 2.0).tolist()
    for wrong in ([1j, 2], ["1.5", "2"], np.array(["2026-01-01"], "M8[D]")):
        assert "allow_input_downcast" not in message_of(DTypeError, lambda wrong=wrong: allowing(wrong, 1))
    for wrong, kind in ((None, "NoneType"), ("1.5", "str"), ({"x": 1.0}, "dict"), (np.array([1.0, None]), "object")):
        text = message_of(DTypeError, lambda wrong=wrong: refusing(wrong, 1))
        assert "argument 0 (x)" in text and "numbers are wanted, not" in text and kind in text
        assert "converts it" not in text and "allow_input_downcast" not in text
    assert "its rows are not equally long" in message_of(ShapeError, lambda: refusing([[1.0], [1.0, 2.0]], 1))
    exact = function([x], x * 1, allow_input_downcast=False)
    assert exact(np.array([0.5, 2.0])).tolist() == [0.5, 2.0]
    assert "does not go into float32" in message_of(DTypeError, lambda: exact([0.1]))
    assert pickle.loads(pickle.dumps(allowing))(wide, 2).dtype == np.float64


def test_sizes_that_do_not_fit_are_found_before_anything_runs(be):
    x, y = VECTOR("x"), VECTOR("y")
    f = function([x, y], x * y)
    message = message_of(ShapeError, lambda: f([1.0, 2.0], [1.0, 2.0, 3.0]))
    assert all(part in message for part in ("mul", "(2,)", "(3,)", "test_function.py"))
    assert "must be known to have size 1" in message_of(ShapeError, lambda: f([1.0], [1.0, 2.0]))
    row = TensorType("float64", (1,))("row")
    assert function([row, y], row * y)([2.0], [1.0, 2.0]).get().tolist() == [2.0, 4.0]


def test_what_is_assigned_broadcasts_only_if_its_size_is_known_to_be_1(be):
    x, w = VECTOR("x"), be.ones(3)
    for f in (function([x], x * 4, updates={w: x * 2}), function([x], [be.broadcast_like(x, w), w * 3])):
        assert "must be known to have size 1" in message_of(ShapeError, lambda f=f: f([1.0]))
        assert w.get().tolist() == [1, 1, 1]
        f([1.0, 2.0, 3.0])
        w[:] = 1


def test_definitions_that_are_refused(be):
    x, y, w = VECTOR("x"), VECTOR("y"), be.zeros(2, name="w")
    for make, kind, part in (
        (lambda: function([x, x], x), OperandError, "given as an input twice"),
        (lambda: function([x], x + y), OperandError, "need y"),
        (lambda: function([x, y], x), OperandError, "nothing needs the input y"),
        (lambda: function(x, x), OperandError, "inputs are a list"),
        (lambda: function([x + 1], x), OperandError, "an Input or a Tensor"),
        (lambda: function([x], x, mode="quick"), ModeError, "'quick'"),
        (lambda: function([x], x, on_unused_input="no"), OperandError, "on_unused_input"),
        (lambda: function([x], x, updates={x: x}), OperandError, "an update is of a tensor"),
        (lambda: function([x], x, updates=[(w, x), (w, x)]), OperandError, "updated twice"),
        (lambda: function([w], w, updates={w: w}), OperandError, "no input"),
        (lambda: function([x], x, updates={be.zeros(2, np.int64): x}), DTypeError, "another kind of dtype"),
        (lambda: function([x], x, updates=[w]), OperandError, "list of pairs"),
        (lambda: function([x], gen_backend("cpu").ones(2) * w), BackendError, "be.array(x.get())"),
    ):
        assert part in message_of(kind, make)


def test_unused_inputs_may_be_warned_of_or_ignored(be):
    x, y = VECTOR("x"), VECTOR("y")
    with pytest.warns(UserWarning, match="nothing needs the input y"):
        f = function([x, y], x + 1, on_unused_input="warn")
    assert f([1.0], [5.0]).item() == 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function([x, y], x + 1, on_unused_input="ignore")


# Modes, profiles, printing, pickling


def test_modes_agree(be):
    x, w = MATRIX("x"), be.array(np.arange(6.0).reshape(3, 2), name="w")
    tree = be.softmax(be.dot(x, w), axis=1)
    values = np.linspace(-1, 1, 12).reshape(4, 3)
    results = [function([x], tree, mode=mode)(values).get() for mode in (None, "reference", Mode("default"))]
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-12)


@pytest.mark.parametrize("mode", ["default", "reference", "debug"])
def test_an_op_that_fails_is_named_with_its_line(be, mode):
    def fails(a):
        raise ZeroDivisionError("no")

    x = Double()("x")
    with pytest.raises(ZeroDivisionError) as caught:
        function([x], DoubleOp("inverse", fails, 1)(x), mode=mode)(1.0)
    assert "while running" in str(caught.value.__notes__) and "test_function.py" in str(caught.value.__notes__)


def test_a_profile_counts(be):
    x = VECTOR("x")
    f = function([x], be.sum(x * x), profile=True)
    for n in (10, 20):
        f(np.ones(n))
    profile = f.profile
    assert sum(part.flops for part in profile.parts) == 20 + 20
    assert all(part.seconds > 0 for part in profile.parts) and "test_function.py" in str(profile)
    assert f(np.full(3, 2.0)).item() == 12 and debugprint(f, file="str").endswith("and are timed")
    assert f.profile.parts[0].bytes < profile.parts[0].bytes  # of the latest call


@pytest.mark.parametrize("mode", ["reference", "debug"])
def test_the_default_mode_alone_has_kernels_to_time(be, mode):
    with pytest.raises(OperandError, match="in the default mode"):
        function([], be.ones(2) * 2, profile=True, mode=mode)


def test_debugprint_lists_the_steps(be):
    x, w = VECTOR("x"), be.zeros((), name="w")
    y = x + 1
    f = function([x], y, updates={w: be.sum(y, keepdims=False)})
    lines = debugprint(f, file="str").splitlines()
    assert lines[0] == "%0 = x" and lines[-1].startswith("return %")
    assert sum(" add(" in line for line in lines) == 1
    assert any("assign(" in line and "test_function.py" in line for line in lines)


def test_debugprint_prints_as_theanos_does(be, capsys):
    x = VECTOR("x")
    f = function([x], x + 1)
    text, file = debugprint(f, file="str"), io.StringIO()
    assert debugprint(f) is None and capsys.readouterr().out == f"{text}\n"
    assert debugprint(f, file) is file and file.getvalue() == f"{text}\n" and capsys.readouterr().out == ""


def test_a_function_pickles(monkeypatch):
    monkeypatch.setattr(functions, "_backends", [])
    x, y = VECTOR("x"), VECTOR("y")
    f = pickle.loads(pickle.dumps(function([x, y], [x * y, OpTreeNode.build("sum", x, axis=0)], name="both")))
    assert str(f) == "both"
    assert [r.tolist() for r in f([1.0, 2.0], y=[3.0, 4.0])] == [[3.0, 8.0], [3.0]]


def test_calls_leave_memory_flat(be):
    x, w = VECTOR("x"), be.zeros(100, name="w")
    f = function([x], be.sum(x * w), updates={w: w + x})
    for n in (100, 100):
        f(np.ones(n))
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(200):
        f(np.ones(100))
    gc.collect()
    assert len(gc.get_objects()) - before < 50


def test_an_input_stands_for_the_node_that_an_application_makes_of_it(be):
    out = VECTOR()
    assert isinstance(out, Input)
    Apply(AddInPlace(), [be.ones(2), be.ones(2)], [out])
    assert (out + 1).asnumpyarray().tolist() == [3.0, 3.0]


@pytest.mark.parametrize("mode", ["default", "reference", "debug"])
def test_a_function_that_an_op_of_its_own_calls_is_an_error_and_not_a_wait(be, mode):
    class Again(Op):
        """x, and at 0 what the function gives for it."""

        __props__ = ()
        itypes = otypes = (VECTOR,)

        def perform(self, node, inputs, output_storage):
            (x,) = inputs
            output_storage[0][0] = f(x).get() if x[0] == 0.0 else x.copy()

    x = VECTOR("x")
    f = function([x], Again()(x) + 1.0, mode=mode, name="itself")
    caught = []

    def call():
        with pytest.raises(ReentryError, match="itself is called by an op of its own") as error:
            f([0.0])
        caught.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    assert caught and f([1.0]).tolist() == [2.0]


def test_an_interrupt_at_any_place_leaves_the_function_callable(be):
    """As Ctrl-C in a loop of calls, which comes where functions begin, and after those of C: its lock is let go of."""
    x = be.zeros(3)
    step = function([], updates={x: x + 1})
    step()
    for place in count():
        left = iter(range(place))

        def interrupt(frame, event, argument):
            if event in ("call", "c_return") and next(left, None) is None:  # noqa: B023 runs in this round alone
                raise KeyboardInterrupt

        sys.setprofile(interrupt)
        try:
            step()
        except KeyboardInterrupt:
            assert not step.lock._is_owned()
        else:
            break
        finally:
            sys.setprofile(None)
    assert place > 3


def test_a_profile_counts_the_work_of_products_and_reductions(be):
    a, b = be.ones((3, 4), name="a"), be.ones((4, 5), name="b")
    stack = be.ones((2, 4, 5), name="stack")
    trees = {
        be.dot(a, b): 2 * 3 * 4 * 5,
        be.matmul(a, stack): 2 * 2 * 3 * 4 * 5,
        be.dot(a, b[:, 0]): 2 * 3 * 4,
        be.tensordot(a, stack, ((1,), (1,))): 2 * 3 * 4 * 2 * 5,
        be.sum(a): 12,
        be.max(a, axis=1): 12,
    }
    for tree, flops in trees.items():
        f = function([], tree, profile=True)
        f()
        assert sum(part.flops for part in f.profile.parts) == flops


@pytest.mark.parametrize(
    "number",
    [0.1, 1, True, np.float64(0.1), np.float32(0.1), np.float16(0.5), np.int64(3), np.uint8(3), np.bool_(True)],
    ids=lambda number: f"{type(number).__name__}",
)
def test_a_number_of_any_kind_goes_where_a_number_is_meant(be, number):
    rate, x = TensorType("float32", ())("rate"), TensorType("float32", (None,))("x")
    step = function([x, rate], x * rate)
    values = np.ones(2, np.float32)
    got = step(values, number).get()
    assert got.dtype == np.float32 and got.tolist() == [np.float32(number)] * 2


def test_numbers_go_no_further_than_python_numbers_do(be):
    count, rate = TensorType("int8", ())("count"), TensorType("float32", ())("rate")
    plus = function([count], count + count)
    assert plus(np.int64(3)).get() == 6
    for wrong in (np.int64(300), np.float64(1.5)):
        with pytest.raises(DTypeError, match="count"):
            plus(wrong)
    exact = function([rate], rate * 1, allow_input_downcast=False)
    assert exact(np.float64(0.5)).get() == 0.5
    with pytest.raises(DTypeError, match="rate"):
        exact(np.float64(0.1))
    vector = TensorType("float32", (None,))("v")
    with pytest.raises(DTypeError, match="float64 does not go into float32"):
        function([vector], vector * 1)(np.ones(2))


@pytest.mark.parametrize("jit", [True, False], ids=["compiled", "numpy"])
@pytest.mark.parametrize("is_tensor", [True, False], ids=["tensor", "array"])
def test_a_first_call_that_fails_keeps_no_argument_alive(jit, is_tensor):
    be = gen_backend("cpu", jit=jit)
    v = TensorType("float32", (None,))("v")
    for tree in (be.reshape(v * be.ones(1), (2, -1)), be.take(be.ones(3), be.cast(v * 9, "int64"))):
        f = function([v], tree + 1)
        given = be.ones(5) if is_tensor else np.ones(5, np.float32)
        alive = weakref.ref(given)
        try:
            f(given)
        except OptreeError:
            pass
        else:
            raise AssertionError("the call should fail")
        del given
        gc.collect()
        assert alive() is None


def test_a_float_beyond_a_dtype_is_infinite_as_in_numpy(be):
    """NumPy warns where it converts; kernels, which round every number to its dtype, do not."""
    scalar, vector = TensorType("float32", ())("s"), TensorType("float32", (None,))("v")
    x = be.ones(2, "float32")
    for given in (1e300, np.float64(1e300)):
        with pytest.warns(RuntimeWarning, match="overflow"):
            assert function([scalar], scalar * x)(given).get().tolist() == [np.inf] * 2
    with pytest.warns(RuntimeWarning, match="overflow"):
        assert function([vector], vector * 1)([-1e300, 1]).get().tolist() == [-np.inf, 1]
    assert (x * 1e300).asnumpyarray().tolist() == [np.inf] * 2
    x[:] = 1e300
    assert x.get().tolist() == [np.inf] * 2
    with warnings.catch_warnings(), pytest.raises(DTypeError, match="without loss"):
        warnings.simplefilter("ignore")
        function([scalar], scalar * x, allow_input_downcast=False)(1e300)
