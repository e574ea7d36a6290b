"""A line means what it meant when it was written, while its value is lazy: writes and views are as in NumPy."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from harness.array_programs import assert_alike
from harness.homes import home
from harness.threads import in_threads

import optree
from backends import gen_backend
from optree.errors import DTypeError, OperandError, ShapeError
from optree.tree import lazy


@pytest.fixture(scope="module")
def be(home_kind):
    return home(home_kind, datatype=np.float64)


@pytest.fixture(scope="module")
def xp(be):
    return be.xp


def verlet(p, v, dt=0.1):
    """A step of velocity Verlet, as one writes it in NumPy."""
    a = -p
    p += dt * v + 0.5 * dt * dt * a
    v += 0.5 * dt * (a - p)
    return p, v


def test_velocity_verlet_is_right_as_it_is_written(xp):
    ours, numpys = (xp.asarray([1.0]), xp.asarray([0.0])), (np.array([1.0]), np.array([0.0]))
    for _ in range(100):
        ours, numpys = verlet(*ours), verlet(*numpys)
    assert float(ours[0]) == pytest.approx(float(numpys[0][0]), rel=1e-12)
    assert float(ours[0]) == pytest.approx(-0.837, abs=1e-3)


def test_an_old_value_stays(xp):
    x = xp.asarray([1.0, 2.0, 3.0])
    old = x * 1
    x[...] = x + 1
    assert float(xp.max(xp.abs(x - old))) == 1.0


def test_a_training_loop_writes_each_weight_by_the_old_ones(xp):
    weights = [xp.asarray(2.0), xp.asarray(2.0)]
    a, b = weights
    for w, g in zip(weights, optree.grad((a * b - 1) ** 2, weights), strict=True):
        w -= 0.1 * g
    assert [round(float(w), 3) for w in weights] == [0.8, 0.8]


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(60))
def test_random_programs_mean_what_they_mean_in_numpy(xp, seed):
    assert_alike(xp, seed)


def test_a_slice_is_a_view_of_a_lazy_array(xp):
    x = xp.asarray([1.0, 2.0, 3.0]) * 2
    part = x[1:]
    after = part + 1
    part[0] = 0
    x += 10
    assert x.is_lazy is False
    assert (x.tolist(), part.tolist(), after.tolist()) == ([12.0, 10.0, 16.0], [10.0, 16.0], [5.0, 7.0])


@pytest.mark.parametrize("scale", [None, 2.0], ids=["stored", "lazy"])
def test_an_element_is_a_value_and_no_view(xp, scale):
    def ported(array):
        x = array if scale is None else array * scale
        first = x[0]
        x[0], x[1] = x[1], x[0]
        total = x[0]
        for each in x[1:]:
            total += each
        seen = []
        for each in x:
            x[-1] += 1
            each += 100
            seen.append(float(each))
        last = x[-1, ...]
        last += 1000
        return [first.item(), total.item(), *seen, *x.tolist()]

    assert ported(xp.asarray([1.0, 2.0, 4.0])) == ported(np.array([1.0, 2.0, 4.0]))


def test_flatten_is_a_copy(xp):
    x = xp.asarray([[1.0, 2.0]])
    x.flatten()[0] = 9.0
    (x * 1).flatten()[0] = 9.0
    x.ravel()[1] = 5.0
    assert x.tolist() == [[1.0, 5.0]]


@pytest.mark.parametrize("scale", [None, 2.0], ids=["stored", "lazy"])
def test_numpy_writes_into_an_array_or_is_refused(xp, scale):
    x, values = xp.ones((3, 3)), np.ones((3, 3))
    x, values = (x, values) if scale is None else (x * scale, values * scale)
    for write in (
        lambda x: np.put(x, [1, 2], 7.0),
        lambda x: np.fill_diagonal(x, 5.0),
        lambda x: np.putmask(x, np.eye(3) > 0, x * 2),
        lambda x: np.put_along_axis(x, np.zeros((1, 3), int), 4.0, 0),
        lambda x: np.add.at(x, [0, 0], 1.0),
        lambda x: np.copyto(x[1], x[0]),
    ):
        assert write(x) is None is write(values)
        assert x.tolist() == values.tolist()
    for write in (np.multiply, np.maximum):
        with pytest.raises(OperandError, match="writes into an array"):
            write.at(x, [0, 0], 2.0)
    assert x.tolist() == values.tolist()


def test_ufuncs_of_numpys_alone_write_into_arrays(xp):
    """They run on the host; an `out` that is passed to them again would call us for ever."""
    x, host = xp.asarray([1.0, 6.0]), np.zeros(2)
    gaps = np.spacing([1.0, 6.0]).tolist()
    assert np.spacing(x, out=host) is host and host.tolist() == gaps
    assert np.spacing(x, out=x) is x and x.tolist() == gaps
    with pytest.raises(TypeError, match="same_kind"):
        np.spacing(x, out=xp.zeros(2, dtype="int32"))


def test_ufuncs_of_several_values_write_into_arrays(xp):
    x, n = xp.asarray([1.0, 6.0]), xp.zeros(2, dtype="int32")
    assert np.ldexp(x, 1, out=x) is x and x.tolist() == [2.0, 12.0]
    assert np.ldexp(np.ones(2, np.float32), 3, out=x) is x and x.tolist() == [8.0, 8.0]
    mantissa, exponent = np.frexp(x, out=(x, n))
    assert mantissa is x and exponent is n and (x.tolist(), n.tolist()) == ([0.5, 0.5], [4, 4])
    mantissa, exponent = np.frexp(x * 4, out=(x, None))
    assert mantissa is x and (x.tolist(), exponent.tolist()) == ([0.5, 0.5], [2, 2])
    x[...] = [3.0, 5.0]
    mantissa, exponent = np.frexp(x, out=(x, None))
    assert (x.tolist(), exponent.tolist()) == ([0.75, 0.625], [2, 3])
    x[...] = [0.5, 0.5]
    assert np.add.accumulate(x, out=x) is x and x.tolist() == [0.5, 1.0]
    with pytest.raises(TypeError, match="out is of int32, into which NumPy casts no float64"):
        np.sqrt(x, out=n)
    with pytest.raises(TypeError, match="out is of int32"):
        np.ldexp(x, 1, out=n)
    total = xp.asarray(0.0)
    assert np.sum(x, out=total) is total and float(total) == 1.5


def test_the_square_of_bools_is_numpys(xp):
    x = xp.asarray([True, False])
    assert (x**2).dtype == (np.array([True]) ** 2).dtype == np.int8 and (x**2).tolist() == [1, 0]
    assert (x**3).dtype == (np.array([True]) ** 3).dtype and (x**2.0).dtype == (np.array([True]) ** 2.0).dtype


def test_what_numpy_tells_of_arrays(xp):
    x = xp.asarray([[3.0, 1.0], [2.0, 4.0]])
    assert np.shares_memory(x, x[1:]) and np.may_share_memory(x, x.T) and not np.shares_memory(x, x * 1)
    assert np.result_type(x, np.float16) == x.dtype and np.result_type(x, np.complex64).kind == "c"
    assert x.real is x and x.imag.tolist() == [[0.0, 0.0], [0.0, 0.0]] and x.conj().tolist() == x.tolist()
    assert (x.itemsize, x.nbytes) == (x.dtype.itemsize, 4 * x.dtype.itemsize)
    assert round(x[0, 1] * 1.26, 1) == 1.3 and isinstance(round(x[0, 0]), int)
    with pytest.raises(OperandError, match="round takes an array of one element"):
        round(x)
    lazy = x * 2
    lazy.sort(axis=0)
    assert lazy.tolist() == [[4.0, 2.0], [6.0, 8.0]]
    x.fill(7)
    assert x.tolist() == [[7.0, 7.0], [7.0, 7.0]]
    with pytest.raises(AttributeError, match=r"'Array' object has no attribute 'flags': x\.get\(\)\.flags"):
        _ = x.flags


def test_the_derivative_by_an_array_goes_through_its_elements(xp):
    x = xp.asarray([1.0, 2.0, 3.0])
    assert optree.grad(x[0] * x[1], x).tolist() == [2.0, 1.0, 0.0]


def test_in_place_of_a_lazy_array_is_lazy(xp):
    x = xp.asarray([1.0, 2.0]) * 2
    x += 1
    x *= x
    assert x.is_lazy
    assert x.tolist() == [9.0, 25.0]


def test_a_value_goes_straight_into_what_it_is_assigned_to(be, xp):
    x = xp.asarray(np.arange(6.0))
    before = be.executions
    x[1:-1] = 0.5 * (x[2:] + x[:-2])
    assert be.executions == before + 1
    y = x * 2
    before = be.executions
    x[...] = y  # and y, of which the tensor takes the value, is had from there
    assert be.executions == before + 1
    x += 1
    assert (y.tolist(), x.tolist()) == ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 3.0, 5.0, 7.0, 9.0, 11.0])


def test_everything_that_is_named_is_computed_once(be, xp):
    x = xp.asarray([1.0, 2.0])
    y = xp.sin(x)
    z = y * 2
    assert float(z[0]) == 2 * np.sin(1.0)
    assert not y.is_lazy
    before = be.executions
    assert (y.tolist(), z.tolist()) == ([np.sin(1.0), np.sin(2.0)], [2 * np.sin(1.0), 2 * np.sin(2.0)])
    assert be.executions == before


def test_what_is_not_named_is_fused_away(be, xp):
    x = xp.asarray([1.0, 2.0])
    before = be.executions
    assert float(xp.sum(xp.sin(x) * 2 + x)) == pytest.approx(float(np.sum(np.sin([1.0, 2.0]) * 2 + [1.0, 2.0])))
    assert be.executions == before + 1


def test_a_write_by_the_tensors_own_ways_is_seen(be, xp):
    t = be.array([1.0, 2.0])
    writes = (
        lambda: t.__setitem__(0, 7.0),
        lambda: t.fill(3.0),
        lambda: be.update([(t, t * 2)]),
        lambda: optree.function([], None, updates=[(t, t + 1)])(),
        lambda: t[:1].set([5.0]),
        lambda: be.copy(t + 1, out=t),
        lambda: be.execute(optree.OpTreeNode.build("assign", t, t * 3)),
    )
    for write in writes:
        before = t.get()
        x, y = xp.asarray(t) * 1, xp.asarray(t)[1:] + 0
        write()
        np.testing.assert_array_equal(x.get(), before)
        np.testing.assert_array_equal(y.get(), before[1:])
    assert xp.asarray(t).tensor is t


def test_shared_memory_is_not_read_lazily():
    xp = gen_backend("cpu", datatype=np.float64).xp
    theirs = np.array([1.0, 2.0])
    x = xp.from_dlpack(theirs)
    y = x + 1
    theirs[0] = 5
    assert (y.tolist(), x.tolist()) == ([2.0, 3.0], [5.0, 2.0])


@pytest.mark.parametrize("given", [lambda x: x, lambda x: x.tensor], ids=["array", "tensor"])
def test_memory_that_is_given_away_is_not_read_lazily(given):
    xp = gen_backend("cpu", datatype=np.float64).xp
    mine = xp.asarray([1.0, 2.0])
    before = mine * 3
    seen = np.from_dlpack(given(mine))
    z = mine * 2
    seen[1] = 9
    assert (before.tolist(), z.tolist(), mine.tolist()) == ([3.0, 6.0], [2.0, 4.0], [1.0, 9.0])


def test_lazy_arrays_are_bounded_in_operations(xp):
    x = xp.asarray([1.0])
    for _ in range(3 * lazy.OPERATIONS):
        x = x + 1
        assert x.operations <= lazy.OPERATIONS
    assert float(x) == 1.0 + 3 * lazy.OPERATIONS
    y = xp.asarray([0.5])
    for _ in range(64):  # 2 ** 64 paths, and 64 operations
        y = y * y + 0.25
    assert float(y) == pytest.approx(0.5, abs=1e-2)


def test_operations_are_bounded_without_a_traversal_of_what_operands_share(xp, monkeypatch):
    traversals = []
    monkeypatch.setattr(lazy, "post_order", lambda *args: traversals.append(args))
    y = xp.asarray([0.5])
    for _ in range(lazy.OPERATIONS // 4):  # each has twice the paths
        y = y * y + 0.25 * y
    assert y.is_lazy and not traversals


def test_lazy_arrays_are_bounded_in_number(xp):
    x = xp.asarray([1.0, 2.0])
    many = [x * float(i) for i in range(3 * lazy.TREES)]
    assert sum(y.is_lazy for y in many) <= lazy.TREES
    assert [float(y[1]) for y in many] == [2.0 * i for i in range(3 * lazy.TREES)]


def test_too_many_lazy_arrays_run_by_halves_and_the_trees_of_the_others_are_rebuilt_as_often(xp, monkeypatch):
    rebuilt, substitute = [], lazy._substitute
    monkeypatch.setattr(lazy, "_substitute", lambda computed: rebuilt.append(substitute(computed)))
    runs = xp.asarray([0.0]).device.stats()["executions"]
    state, steps = xp.asarray([1.0, 2.0]), []
    for i in range(3 * lazy.TREES):  # a recurrence whose steps are kept, as a dynamic programme's are
        state = state * 0.5 + float(i)
        steps.append(state * 2.0)
    assert len(rebuilt) <= 12 and xp.asarray([0.0]).device.stats()["executions"] - runs <= 12
    assert float(steps[1][1]) == 3.0 and float(steps[-1][0]) == pytest.approx(760.0, abs=1e-3)


def test_lazy_arrays_are_bounded_in_memory(xp, monkeypatch):
    monkeypatch.setattr(lazy, "BYTES", 1 << 16)
    size = 1 << 11  # 16 KiB
    sums = []
    for i in range(40):
        sums.append(xp.sum(xp.asarray(np.full(size, float(i)))))
        gc.collect()
        lost = {
            id(entry.root)
            for each in lazy._alive()
            for entry in lazy.post_order([each._tree], lazy.children_of)
            if isinstance(entry, optree.Tensor) and not lazy._is_held(entry)
        }
        assert len(lost) * size * 8 <= 2 * lazy.BYTES + 5 * size * 8
    assert [float(x) for x in sums] == [float(i * size) for i in range(40)]


def test_nothing_is_left_of_what_is_gone(xp):
    gc.collect()
    before = len(lazy.lazy_values)
    x = xp.asarray([1.0, 2.0])
    for i in range(100):
        y = x * i
        z = y[:1] + 1
    del y, z
    gc.collect()
    assert len(lazy.lazy_values) == before
    assert len(x._views) <= 1
    assert x.tensor.holder() is x


def test_an_error_in_a_write_leaves_all_as_it_was(xp):
    x = xp.asarray([1.0, 2.0])
    y = x + 1
    with pytest.raises(ShapeError):
        x[...] = xp.asarray([1.0, 2.0, 3.0]) * 2
    with pytest.raises(ShapeError, match="in place"):
        x += xp.ones((2, 2))
    with pytest.raises(DTypeError, match="in place"):
        z = xp.asarray([1, 2])
        z += 0.5
    assert (x.tolist(), y.tolist(), z.tolist()) == ([1.0, 2.0], [2.0, 3.0], [1, 2])


def test_an_error_of_a_value_comes_each_time_it_is_asked_for(xp):
    singular = xp.asarray([[1.0, 2.0], [2.0, 4.0]])
    found = xp.linalg.inv(singular)
    for _ in range(2):
        with pytest.raises(np.linalg.LinAlgError):
            found.tolist()
    assert xp.sum(singular).item() == 9.0


def test_an_error_of_a_value_that_nobody_asks_for_stops_nothing(xp):
    singular = xp.asarray([[1.0, 2.0], [2.0, 4.0]])
    found, double = xp.linalg.inv(singular), singular * 2
    above = found + double
    singular += xp.eye(2)  # would give found another value
    assert double.tolist() == [[2.0, 4.0], [4.0, 8.0]]
    for use in (lambda: found.tolist(), lambda: found + 1, lambda: above[0], lambda: float(above[0, 0])):
        with pytest.raises(np.linalg.LinAlgError):
            use()
    assert xp.linalg.inv(singular).shape == (2, 2)
    again = xp.linalg.inv(xp.zeros((2, 2)))
    many = [singular * float(i) for i in range(2 * lazy.TREES)]
    assert many[3][0, 0].item() == 6.0
    with pytest.raises(np.linalg.LinAlgError):
        again.tolist()


def test_an_error_names_the_line_that_wrote_a_value_and_not_the_one_that_ran_it(xp):
    doubled = xp.asarray([1.0, 2.0]) * 2
    written = test_an_error_names_the_line_that_wrote_a_value_and_not_the_one_that_ran_it.__code__.co_firstlineno + 1
    assert doubled.tolist() == [2.0, 4.0]
    with pytest.raises(ShapeError, match=rf"made at test_lazy\.py:{written}"):
        doubled + xp.ones(3)


def test_an_error_names_its_own_line_when_another_value_within_has_run(xp):
    doubled = xp.asarray([[1.0, 2.0], [2.0, 4.0]]) * 2
    inverse = xp.linalg.inv(doubled)
    written = test_an_error_names_its_own_line_when_another_value_within_has_run.__code__.co_firstlineno + 2
    assert float(doubled[0, 0]) == 2.0 and inverse.is_lazy
    with pytest.raises(np.linalg.LinAlgError) as caught:
        inverse.tolist()
    assert f"test_lazy.py:{written}" in "".join(caught.value.__notes__)


def test_threads_may_have_arrays_of_their_own_and_share_some(xp):
    shared = xp.asarray(np.arange(8.0)) * 2

    def work(seed):
        for i in range(100):
            x = xp.asarray(np.full(8, float(seed)))
            y = x + shared
            x += i
            np.testing.assert_array_equal(y.get(), np.arange(8.0) * 2 + seed)
            np.testing.assert_array_equal(x.get(), np.full(8, float(seed + i)))

    in_threads(work, 4)


def test_stale_trees_are_not_warned_of(be, xp):
    with optree.settings.override(stale_trees="error"):
        x = xp.asarray([1.0, 2.0])
        for _ in range(3):
            y = x * 2
            x += y
            x[0] = 1.0
            z = xp.sum(x - y)
            x *= 2
            assert z.item() == pytest.approx(float((x[0] / 2 - y[0] + x[1] / 2 - y[1]).item()))


def test_the_way_in_and_out(be, xp):
    t = be.array([1.0, 2.0])
    x = xp.asarray(t)
    y = x * 2
    assert x.tensor is t and x.tree is t
    assert isinstance(y.tree, optree.OpTreeNode) and y.tree[1] is t
    assert be.sum(y).item() == 6.0 and (t + y).asnumpyarray().tolist() == [3.0, 6.0]
    again = xp.asarray(y.tree)
    assert again is not y and again.tolist() == y.tolist() and again.tensor is not y.tensor
    u = optree.TensorType("float64", (2,))("u")
    assert optree.function([u], u * 3 + t)(y).get().tolist() == [7.0, 14.0]
    assert optree.jit(lambda z: z + 1)(y).get().tolist() == [3.0, 5.0]
    drawn = xp.asarray(be.rand((3,)))
    assert not drawn.is_lazy and drawn.tolist() == (drawn * 1).tolist()


def test_gradients_of_arrays_are_arrays(be, xp):
    w, x = xp.asarray([1.0, 2.0]), xp.asarray([3.0, 4.0])
    hidden = w * x
    loss = xp.sum(hidden * hidden)
    by_w, by_hidden = optree.grad(loss, [w, hidden])
    assert by_w.is_lazy and by_w.tolist() == [18.0, 64.0] and by_hidden.tolist() == [6.0, 16.0]
    value, slope = optree.value_and_grad(xp.sum(w * w), w)
    assert (value.item(), slope.tolist()) == (5.0, [2.0, 4.0])
    assert optree.grad(be.sum(w.tensor * w.tensor), w).tolist() == [2.0, 4.0]
    # What has been computed under a cost counts as what it is.
    double = w * 2
    cost = xp.sum(double * double)
    assert double.tolist() == [2.0, 4.0]
    assert optree.grad(cost, double).tolist() == [4.0, 8.0]
    float(loss)
    with pytest.raises(optree.errors.GradientError, match="has been computed"):
        optree.grad(loss, w)


def test_long_gradients_run_together(be, xp):
    weights = [xp.asarray([0.1 * i, 0.2]) for i in range(4)]
    x = xp.asarray([1.0, 2.0])
    hidden = x
    for i in range(60):
        hidden = xp.tanh(hidden * weights[i % 4]) + 0.5
    before = be.executions
    slopes = optree.grad(xp.sum(hidden), weights)
    assert be.executions == before + 1 and not any(slope.is_lazy for slope in slopes)
    trees = [x.tensor]
    for i in range(60):
        trees.append(be.tanh(trees[-1] * weights[i % 4].tensor) + 0.5)
    for slope, tree in zip(slopes, optree.grad(be.sum(trees[-1]), [w.tensor for w in weights]), strict=True):
        np.testing.assert_allclose(slope.get(), tree.get(), rtol=1e-12)


def test_values_of_broadcasts_can_be_written():
    be = gen_backend("cpu")
    xp = be.xp
    x = xp.broadcast_to(xp.ones(3) * 2, (3,))
    (tensor,) = be.evaluate([be.broadcast_to(be.ones(1) * 2, (1,))])
    x[0] = 5.0
    tensor[...] = 7.0
    assert (x.tolist(), tensor.tolist()) == ([5.0, 2.0, 2.0], [7.0])


def test_what_has_no_backend_is_refused(xp):
    with pytest.raises(TypeError, match="no backend"):
        xp.asarray(optree.TensorType("float64", (2,))("x") + 1)


def test_what_two_values_have_in_common_is_computed_once(xp):
    """The first value that is asked for computes it, though no name refers to it."""
    calls = []

    class Counted(optree.Op):
        __props__ = ()

        def make_node(self, x):
            return optree.Apply(self, [x], [x.type()])

        def perform(self, node, inputs, output_storage):
            calls.append(1)
            output_storage[0][0] = np.asarray(inputs[0]) * 2

        def grad(self, inputs, output_gradients):
            return [2 * output_gradients[0]]

    x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])

    def both():
        common = xp.asarray(Counted()(x.tree)) + 1.0
        return common @ x, xp.sum(common, axis=0)

    product, total = both()
    expected = np.asarray(x) * 2 + 1
    np.testing.assert_array_equal(product.get(), expected @ np.asarray(x))
    np.testing.assert_array_equal(total.get(), expected.sum(0))
    assert len(calls) == 1


def test_arrays_are_indices_of_tensors_and_trees(xp):
    be = xp.asarray([0.0]).device
    table = be.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], name="table")
    rows, mask = xp.asarray(np.array([2, 0])), xp.asarray(np.array([True, False, True]))
    assert table[rows].get().tolist() == (table * 1).at[rows].get().tolist() == [[5.0, 6.0], [1.0, 2.0]]
    assert be.gather(table, (rows, 1)).get().tolist() == [6.0, 2.0]
    assert table[mask].get().tolist() == [[1.0, 2.0], [5.0, 6.0]]
    assert be.scatter_add(be.zeros(3), rows, xp.asarray([1.0, 2.0])).get().tolist() == [2.0, 0.0, 1.0]
    table[rows] = 0.0
    assert table.get().tolist() == [[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]
    assert table[xp.asarray(np.array(1))].get().tolist() == [3.0, 4.0]
