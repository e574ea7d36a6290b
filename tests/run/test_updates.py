"""A function's updates: all of them or none, from values of before, however the function runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.homes import home

from backends import gen_backend
from backends.cpu.compiler import find_compiler
from backends.execution.executor import _is_readable
from optree import TensorType, debugprint, function, grad
from optree.compile.aliasing import Aliases, Region, overlapping
from optree.compile.program import flatten
from optree.errors import DTypeError, OperandError, OptreeError, ShapeError
from optree.ops.assignment import Assign
from optree.run.updates import assignments

WAYS = ("kernels", "NumPy", "reference", "debug")


@pytest.fixture(params=WAYS)
def way(request: Any) -> str:
    if request.param == "kernels" and find_compiler() is None:
        pytest.skip("no C compiler")
    return str(request.param)


@pytest.fixture
def be(way: str) -> Any:
    return gen_backend("cpu", jit=way == "kernels")


@pytest.fixture
def updating(way: str) -> Any:
    mode = way if way in ("reference", "debug") else None
    return lambda outputs, updates: function([], outputs, updates, mode=mode)


def test_they_are_made_together(be, updating):
    a, b = be.array([1.0, 2.0], name="a"), be.array([3.0, 5.0], name="b")
    step = updating(a + b, {a: b * 2, b: a * 3})
    np.testing.assert_array_equal(step().get(), [4, 7])
    np.testing.assert_array_equal(a.get(), [6, 10])
    np.testing.assert_array_equal(b.get(), [3, 6])


def test_integers_wrap_around_whatever_their_rank(be, updating):
    """NumPy's own scalars are refused where its arrays are not."""
    for shape in ((), (3,)):
        x = be.array(np.full(shape, 126), dtype="uint8", name="x")
        total, small = be.zeros(shape, name="total"), be.zeros(shape, dtype="int8", name="small")
        updating(None, {total: total + 1, small: x + x})()
        assert (small.get() == -4).all()
        assert (total.get() == 1).all()
        small[...] = x + x + 1
        assert (small.get() == -3).all()


def failing(be: Any, name: str) -> tuple[Any, Any]:
    """An update whose value refuses what it is given."""
    if name == "a negative power":
        counts = be.array(np.array([2, 3]), name="counts")
        return counts, counts ** be.array(np.array([1, -1]), name="powers")
    row = be.zeros(1, name="row")
    return row, be.take(be.exp(be.zeros(4, name="x")), be.array(np.array([9]), name="places"))


@pytest.mark.parametrize("name", ["a negative power", "an index outside"])
@pytest.mark.parametrize("last", [True, False])
def test_one_that_fails_leaves_the_others_undone(be, updating, name, last):
    x, total = be.zeros(4, name="x"), be.zeros(1, name="total")
    sure = [(x, be.exp(x)), (total, be.sum(be.exp(x)) + total)]
    step = updating(None, [*sure, failing(be, name)] if last else [failing(be, name), *sure])
    with pytest.raises((ValueError, IndexError, OptreeError)):
        step()
    assert not x.get().any()
    assert not total.get().any()


def test_an_output_that_fails_leaves_them_undone(be, updating):
    a = be.zeros(4, name="a")
    step = updating(be.take(a, be.array(np.array([9]), name="places")), {a: a + 1})
    with pytest.raises(OptreeError):
        step()
    assert not a.get().any()


def test_one_that_could_run_before_what_fails_waits_for_it(be, updating):
    x, w, product, logs = be.ones(4, name="x"), be.ones((2, 2), name="w"), be.zeros((2, 2)), be.zeros(4)
    fails = be.take(be.exp(x), be.array(np.array([9]), name="places"))
    step = updating(fails, {product: be.dot(w, w), logs: be.log(x) + 1})  # fused, exp and log come after the product
    with pytest.raises(OptreeError):
        step()
    assert not product.get().any()
    assert not logs.get().any()


# Types

#: Values that are no updates of a tensor w of shape (2, 3) and float32, with what the error says.
MISFITS = (
    ("a row", lambda be, w: be.ones(3, name="row"), "of another shape; be.broadcast_to(value, (2, 3))"),
    ("a tree of a row", lambda be, w: be.ones(3) * 2.0, "mul (3,) float32"),
    ("a sum with its axes", lambda be, w: be.sum(w), "sum (1, 1) float32"),
    ("no axes", lambda be, w: be.sum(w, keepdims=False), "sum () float32"),
    ("an axis more", lambda be, w: be.expand_dims(w, 0), "(1, 2, 3)"),
    ("an array", lambda be, w: np.ones((2, 1), np.float32), "(2, 1)"),
    ("integers", lambda be, w: be.argsort(w, axis=0), "another kind of dtype; value.astype('float32')"),
    ("bools", lambda be, w: w > 0, "another kind of dtype"),
)


@pytest.mark.parametrize(("make", "says"), [row[1:] for row in MISFITS], ids=[row[0] for row in MISFITS])
def test_values_of_another_type_are_refused_where_they_are_written(make, says):
    be = gen_backend("cpu")
    w = be.zeros((2, 3), name="w")
    for update in (lambda: function([], None, {w: make(be, w)}), lambda: be.update([(w, make(be, w))])):
        with pytest.raises((ShapeError, DTypeError), match="the update of w ") as caught:
            update()
        assert says in str(caught.value)
    assert not w.get().any()


def test_a_size_that_only_a_call_tells_is_checked_by_it():
    be, x = gen_backend("cpu"), VECTOR("x")
    w = be.zeros(3, name="w")
    step = function([x], None, {w: x * 2.0})
    step([1.0, 2.0, 3.0])
    for wrong in ([1.0], [1.0, 2.0]):
        with pytest.raises(ShapeError):
            step(wrong)
    assert w.get().tolist() == [2, 4, 6]


def test_numbers_broadcast_and_floats_and_integers_are_cast_within_their_kinds():
    be = gen_backend("cpu")
    w, n = be.zeros((2, 3), name="w"), be.zeros(3, dtype="int64", name="n")
    for value in (2, 2.0, True, np.float64(2.0), np.int32(2), np.array(2.0)):
        be.update({w: value})
        assert (w.get() == value).all()
    wide, narrow = be.array(np.full((2, 3), 0.1)), be.array(np.arange(3, dtype=np.uint8))
    function([], None, {w: wide * 2, n: narrow})()
    assert (w.get() == np.float32(0.2)).all()
    assert n.get().tolist() == [0, 1, 2]


# Arguments, and tensors over one memory

VECTOR = TensorType("float32", (None,))


@pytest.fixture(params=["cpu", "stand-in"])
def homely(request: Any) -> Any:
    return home(request.param)


def test_an_argument_that_is_a_target_is_read_before_it_is_written(be, way):
    mode = way if way in ("reference", "debug") else None
    x, t, u = VECTOR("x"), be.array([1.0, 2.0], name="t"), be.zeros(2, name="u")
    assert function([x], x, updates={t: t + 10.0}, mode=mode)(t).get().tolist() == [1, 2]
    assert t.get().tolist() == [11, 12]
    function([x], None, updates=[(t, t + 10.0), (u, x * 2.0)], mode=mode)(t)
    assert (t.get().tolist(), u.get().tolist()) == ([21, 22], [22, 24])


def test_so_are_views_and_tensors_over_one_array(homely):
    be, x = homely, VECTOR("x")
    t = be.array([1.0, 2.0, 3.0, 4.0], name="t")
    u = be.zeros(2, name="u")
    step = function([x], x * 1, updates=[(t, t + 10.0), (u, x * 2.0)])
    for argument in (t[1:3], t[::-1][1:3], t.reshape(2, 2)[1], be.adopt(t.array)[:2], be.from_dlpack(t.array)[:2]):
        before = argument.get()
        for _ in range(2):  # as well when the specs have been seen
            now = argument.get()
            assert step(argument).get().tolist() == now.tolist()
            assert u.get().tolist() == (now * 2).tolist()
        assert argument.get().tolist() == (before + 20).tolist()


def test_so_are_arrays_and_what_speaks_dlpack(cpu):
    x, array = VECTOR("x"), np.array([1.0, 2.0], np.float32)
    for target in (cpu.adopt(array), cpu.from_dlpack(array)):
        step = function([x], x * 1, updates={target: target + 10.0})
        for argument in (array, array[::-1], np.from_dlpack(array), memoryview(array)):
            before = np.array(argument)
            assert step(np.asarray(argument)).get().tolist() == before.tolist()
            assert np.array(argument).tolist() == (before + 10).tolist()


def test_an_argument_in_memory_of_its_own_is_not_copied(homely, monkeypatch):
    x, t = VECTOR("x"), homely.array([1.0, 2.0], name="t")
    step, argument = function([x], x * 1, updates={t: t + x}), homely.array([3.0, 4.0, 5.0])[1:]
    step(argument)
    looked_at, touches = [], Region.touches
    monkeypatch.setattr(Region, "touches", lambda self, x: looked_at.append(touches(self, x)))
    step(argument)
    assert t.get().tolist() == [9, 12]
    assert looked_at == [False]


def test_two_tensors_over_one_array_are_one_memory(homely):
    be = homely
    t, u = be.array([1.0, 2.0], name="t"), be.zeros(2, name="u")
    other = be.adopt(t.array, name="other")
    step = function([], other * 1, updates=[(t, t + 10.0), (u, other * 2.0)])
    assert step().get().tolist() == [1, 2]
    assert (t.get().tolist(), u.get().tolist()) == ([11, 12], [2, 4])
    be.update([(t, t + 10.0), (u, other * 2.0)])
    assert (t.get().tolist(), u.get().tolist()) == ([21, 22], [22, 24])


# Targets that overlap


def overlapping_targets(be: Any) -> dict[str, list[Any]]:
    w = be.zeros((4, 4), name="w")
    return {
        "parts": [w[:2], w[1:]],
        "the whole and a part": [w, w[1]],
        "a part of a transpose": [w.T[0], w[2]],
        "every second and every third": [w[0, ::2], w[0, ::3]],
        "two tensors over one array": [w, be.adopt(w.array)],
        "the last of three": [w[0], w[1], w[:, 0]],
    }


@pytest.mark.parametrize("name", overlapping_targets(gen_backend("cpu", jit=False)))
def test_targets_that_overlap_are_refused(homely, name):
    targets = overlapping_targets(homely)[name]
    updates = [(target, target + 1) for target in targets]
    for make in (lambda: function([], None, updates), lambda: homely.update(updates)):
        with pytest.raises(OperandError, match=r"write the same memory; update parts that share no element"):
            make()
    assert not targets[0].get().any()


def test_targets_between_each_other_are_not(homely):
    w = homely.zeros((4, 4), name="w")
    updates = [(w[::2, ::2], 1.0), (w[::2, 1::2], 2.0), (w[1::2, :1], 3.0), (w[1::2].T[1:], 4.0)]
    for run in (function([], None, updates), lambda: homely.update(updates)):
        w.fill(0)
        run()
        assert w.get().tolist() == [[1, 2, 1, 2], [3, 4, 4, 4]] * 2


def test_one_tensor_is_not_updated_twice(homely):
    w = homely.zeros(2, name="w")
    for make in (lambda: function([], None, [(w, w), (w, w)]), lambda: homely.update([(w, w), (w, w)])):
        with pytest.raises(OperandError, match="w .* is updated twice"):
            make()


def test_overlaps_of_random_layouts_are_those_of_their_elements():
    rng = np.random.default_rng(0)
    memory = np.zeros((6, 6, 4), np.int32)
    for _ in range(300):
        arrays = []
        for _ in range(4):
            steps = [int(rng.choice([-3, -2, -1, 1, 2, 3])) for _ in range(3)]
            starts = [slice(*sorted(rng.integers(0, 7, 2).tolist())) for _ in range(3)]
            array = memory[tuple(starts)][tuple(slice(None, None, step) for step in steps)]
            arrays.append(array.transpose(rng.permutation(3)))
        elements = []
        for array in arrays:
            memory[:] = 0
            array[...] = 1
            elements.append(memory.astype(bool).copy())
        expected = {(i, j) for j in range(4) for i in range(j) if (elements[i] & elements[j]).any()}
        assert set(overlapping(arrays, exactly=True)) == expected
        assert expected <= set(overlapping(arrays))
        for i in range(4):
            assert expected <= {(i, j) for i in range(4) for j in range(4) if Region([arrays[i]]).touches(arrays[j])}


@pytest.mark.parametrize("jit", [True, False])
def test_a_value_of_several_targets_is_computed_in_one_of_them(jit):
    """Later steps read it there, and nothing overwrites it."""
    be = gen_backend("cpu", jit=jit)
    x, y = be.array(np.arange(12).reshape(3, 4)), be.array(np.arange(16).reshape(4, 4) / 7)
    a, b, c, d = (be.zeros((3, 4)) for _ in "abcd")
    product, wave = be.dot(x, y), be.exp(x / 9)
    step = function(
        [], updates=[(a, wave), (b, wave), (c, product), (d, be.tanh(product) + be.sum(be.sqrt(wave), axis=0))]
    )
    for number in (1.0, 2.0):
        x[:] = np.arange(12).reshape(3, 4) * number
        step()
        values = x.get() @ y.get(), np.exp(x.get() / 9)
        wanted = values[1], values[1], values[0], np.tanh(values[0]) + np.sqrt(values[1]).sum(0)
        for tensor, value in zip((a, b, c, d), wanted, strict=True):
            np.testing.assert_allclose(tensor.get(), value, rtol=1e-5)


def test_an_output_is_no_view_of_a_target(be):
    x, a = be.array(np.arange(6).reshape(2, 3)), be.zeros((2, 3))
    value = be.exp(x)
    step = function([], value.T, updates={a: value})
    first = step()
    x[:] = 0
    second = step()
    np.testing.assert_allclose(first.get(), np.exp(np.arange(6).reshape(2, 3).T), rtol=1e-6)
    np.testing.assert_allclose(second.get(), 1)
    a[:] = 5
    np.testing.assert_allclose(second.get(), 1)


def test_a_value_is_read_from_a_target_that_is_its_alone(cpu):
    """Not where an output is a view of it, or something else writes to the target."""
    x, a = cpu.array(np.ones((2, 3))), cpu.zeros((2, 3))
    value = cpu.exp(x)
    cases = [([], [], True), ([], [cpu.sqrt(value)], True), ([], [value.T], False), ([(a[0], x[1])], [], False)]
    for pairs, outputs, is_readable in cases:
        roots = [*assignments([(a, value), *pairs]), *outputs]
        program = flatten(roots)
        index = next(n for n, each in enumerate(program.instructions) if each.op.name == "exp")
        assignment = next(
            n
            for n, each in enumerate(program.instructions)
            if len(program.leaves) + index in each.inputs and isinstance(each.op, Assign)
        )
        target = program.instructions[assignment].inputs[0]
        found = _is_readable(program, Aliases(program), len(program.leaves) + index, target, assignment)
        assert found is is_readable


def test_updates_after_attention_and_joins_are_written_in_place(cpu):
    """None of these ops can fail: assignments need not wait for the last of them, in memory of their own."""
    x, w, u = cpu.ones((2, 3, 8)), cpu.ones((8, 24), name="w"), cpu.ones((8, 8), name="u")
    heads = [cpu.slice(x @ w, np.s_[:, :, i : i + 8]) for i in (0, 8, 16)]
    cost = cpu.sum(cpu.square(np.concatenate([cpu.attention(*heads) @ u, x], axis=1)))
    step = function(
        [], cost, updates={each: each - 0.1 * d for each, d in zip((w, u), grad(cost, [w, u]), strict=True)}
    )
    assert "call assign" not in debugprint(step, stage="plan", file="str")


def test_updates_before_an_embeddings_gradient_follow_it_and_are_written_in_place(cpu):
    """That gradient may fail, and is the last: new values are not kept apart until then; those of equal sizes fuse."""
    table, *weights = (cpu.ones(shape, name=f"w{n}") for n, shape in enumerate(((9, 4), (4, 4), (4, 4), (4,))))
    x = cpu.embedding(table, cpu.array(np.array([2, 0, 2])))
    x = x + cpu.tanh(x @ weights[0] + weights[2])
    cost = cpu.sum(cpu.square(x + cpu.tanh(x @ weights[1])))
    averages = [cpu.zeros(w.shape, name=f"m{n}") for n, w in enumerate(weights)]
    updates = {table: table - 0.1 * grad(cost, [table])[0]}
    for w, m, d in zip(weights, averages, grad(cost, weights), strict=True):
        updates |= {m: 0.9 * m + d, w: w - 0.1 * (0.9 * m + d)}
    step = function([], cost, updates=updates)
    plan = debugprint(step, stage="plan", file="str").split("by kernels")[1]
    assert "call assign" not in plan
    assert plan.split("index_add")[1].count("kernel(") == 3, "of the table, the two matrices, and the vector"
    before = [w.get() for w in weights]
    step()
    assert all((w.get() != each).any() for w, each in zip(weights, before, strict=True))
