"""Backends from a user's view: `gen_backend`, new tensors, modes, several at once, plans and memory."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from itertools import pairwise

import numpy as np
import pytest

from backends import gen_backend
from optree import Autodiff, Op, OpTreeNode, Tensor, grad
from optree.cache import _caches
from optree.errors import OperandError
from optree.op.traits import ElementwiseOperator, FloatOperator, NonDifferentiableOperator, UnaryOperator
from optree.registry import FUNCTIONS, OPS
from optree.tree.types import DTYPES


def grid(*shape, dtype="float64"):
    return np.arange(1, 1 + int(np.prod(shape)), dtype=dtype).reshape(shape)


# gen_backend


def test_the_arguments_of_gen_backend_are_neons():
    be = gen_backend("cpu", 3, np.float16, 128, False, 0, None)
    assert (be.datatype, be.batch_size, be.compat_mode, be.stochastic_round) == (np.float16, 128, None, False)
    be = gen_backend(
        backend="cpu",
        rng_seed=None,
        datatype=np.float64,
        batch_size=0,
        stochastic_round=False,
        device_id=0,
        compat_mode="neon",
    )
    assert be.datatype == np.float64 and be.zeros(3).dtype == np.float64 and be.compat_mode == "neon"
    assert gen_backend().datatype == np.float32


def test_rng_is_numpys_random_state_of_the_seed():
    a, b = gen_backend("cpu", rng_seed=5), gen_backend("cpu", rng_seed=5)
    assert isinstance(a.rng, np.random.RandomState)
    expected = np.random.RandomState(5).normal(size=4)
    np.testing.assert_array_equal(a.rng.normal(size=4), expected)
    np.testing.assert_array_equal(b.rng.normal(size=4), expected)


def test_backends_stay_usable_side_by_side():
    first = gen_backend("cpu", datatype=np.float64)
    x = first.array([1.0, 2.0], name="x")
    second = gen_backend("cpu", compat_mode="neon")
    y = second.array([1.0, 2.0], name="y")
    third = gen_backend("cpu", datatype=np.float16)
    out = first.empty((2,))
    out[:] = x * 2
    assert out.get().tolist() == [2, 4] and (x + 1).asnumpyarray().dtype == np.float64
    assert (y + 1).shape == (2, 1) and first.zeros(2).shape == (2,) and third.zeros(2).dtype == np.float16
    assert first.array(y.get()).shape == (2, 1)


def test_a_backend_lists_its_functions_and_documents_them(be):
    assert {"tanh", "sum", "zeros", "iobuf", "gen_rng"} <= set(dir(be))
    for name in FUNCTIONS:
        assert callable(getattr(be, name)) and getattr(be, name).__doc__


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("subtract", np.subtract),
        ("multiply", np.multiply),
        ("divide", np.divide),
        ("true_divide", np.true_divide),
        ("power", np.power),
        ("negative", np.negative),
        ("sgn", np.sign),
        ("absolute", np.absolute),
        ("fabs", np.fabs),
        ("equal", np.equal),
        ("not_equal", np.not_equal),
        ("less", np.less),
        ("less_equal", np.less_equal),
        ("greater", np.greater),
        ("greater_equal", np.greater_equal),
    ],
)
def test_neons_names_are_methods_too(be64, name, operator):
    a, b = np.array([[1.5, -2.0]]), np.array([[1.5], [0.5]])
    operands = (a, b)[: operator.nin]
    x = [be64.array(o) for o in operands]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(getattr(be64, name)(*x).asnumpyarray(), operator(*operands))


def test_methods_take_out_and_make_tensors_of_numbers(be64):
    out = be64.empty((2,))
    assert be64.exp(be64.array([0.0, 1.0]), out=out) is out
    np.testing.assert_allclose(out.get(), np.exp([0, 1]))
    assert be64.exp(2.0).asnumpyarray() == be64.exp(np.float64(2.0)).asnumpyarray() == np.exp(2.0)
    np.testing.assert_array_equal(be64.maximum(np.array([1.0, 3.0]), 2.0).asnumpyarray(), [2, 3])


# New tensors


@pytest.mark.parametrize("dtype", [str(d) for d in DTYPES])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (2, 3, 4)], ids=str)
def test_creation_in_every_dtype_and_shape(be, dtype, shape):
    for make, expected in [
        (be.zeros(shape, dtype=dtype), np.zeros(shape, dtype)),
        (be.ones(shape, dtype=np.dtype(dtype), name="t"), np.ones(shape, dtype)),
        (be.full(shape, 1, dtype=dtype), np.full(shape, 1, dtype)),
        (be.array(np.ones(shape), dtype=dtype), np.ones(shape, dtype)),
        (be.zeros_like(be.empty(shape, dtype=dtype)), np.zeros(shape, dtype)),
        (be.ones_like(be.empty(shape), dtype=dtype), np.ones(shape, dtype)),
    ]:
        assert type(make) is Tensor and make.is_contiguous
        np.testing.assert_array_equal(make.get(), expected, strict=True)
    assert be.empty(shape, dtype=dtype).shape == be.empty_like(be.empty(shape, dtype=dtype)).shape == shape


def test_a_shape_may_be_a_number_a_list_or_numpys_integers(be):
    assert be.zeros(3).shape == be.zeros(np.int64(3)).shape == be.zeros([3]).shape == (3,)
    assert be.zeros((np.int32(2), 3)).shape == (2, 3)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, 2], None, "float32"),
        ([True], None, "bool"),
        ([[True], [False]], None, "bool"),
        ([True, 2], None, "float32"),
        ([], None, "float32"),
        ([True], "float32", "float32"),
        (3, None, "float32"),
        (np.ones(2), None, "float32"),
        (np.float64(2), None, "float32"),
        (np.ones(2, "float16"), None, "float32"),
        (np.ones(2, "int8"), None, "int8"),
        (np.uint16(7), None, "uint16"),
        (np.ones(2, bool), None, "bool"),
        ([1, 2], "int32", "int32"),
        (np.ones(2, "int64"), "float16", "float16"),
    ],
)
def test_the_dtype_of_an_array(be, values, dtype, expected):
    x = be.array(values, dtype=dtype)
    np.testing.assert_array_equal(x.get(), np.asarray(values).astype(expected), strict=True)


def test_an_array_is_a_copy_and_its_order_does_not_matter(be):
    for a in (grid(2, 3, dtype="float32"), grid(3, 2, dtype="float32").T, grid(4, 3, dtype="float32")[::-2]):
        x = be.array(a, name="a")
        expected = a.copy()
        a[:] = 0
        np.testing.assert_array_equal(x.get(), expected)
        assert x.is_contiguous and x.name == "a"


def test_an_array_of_another_byte_order(be):
    for dtype in (">i4", ">f4", ">u2"):
        a = np.array([1, 2], dtype)
        assert be.array(a).get().tolist() == [1, 2] and be.array(a).dtype.isnative
        assert (be.zeros((2,), dtype="int8") + a).asnumpyarray().tolist() == [1, 2]
        x = be.zeros((2,))
        x[:] = a
        assert x.get().tolist() == [1, 2]


def test_an_array_of_integers_of_any_size(be):
    assert be.array([2**70, -(2**70)], dtype="float64").get().tolist() == [2.0**70, -(2.0**70)]


def test_an_array_of_a_tensor_or_tree_even_another_backends(be):
    x = gen_backend("cpu").array([1.0, 2.0])
    assert be.array(x).backend is be and be.array(x * 2).get().tolist() == [2, 4]
    assert be.array(be.array([1, 2], dtype="int8")).dtype == np.int8


def test_ranges_and_eyes(be):
    for ours, expected in [
        (be.arange(5), np.arange(5)),
        (be.arange(2, 5), np.arange(2, 5)),
        (be.arange(5, 0, -2), np.arange(5, 0, -2)),
        (be.arange(0, 1, 0.25), np.arange(0, 1, 0.25)),
        (be.linspace(0, 1, 5), np.linspace(0, 1, 5)),
        (be.linspace(1, -1, num=3), np.linspace(1, -1, 3)),
        (be.eye(3), np.eye(3)),
        (be.eye(2, 3, 1), np.eye(2, 3, 1)),
    ]:
        np.testing.assert_array_equal(ours.get(), expected.astype("float32"), strict=True)
    assert be.arange(128, dtype="int8").get()[-1] == 127
    assert be.arange(3, dtype="int32").dtype == np.int32 and be.eye(2, dtype=bool).dtype == bool
    assert be.arange(3, name="r").name == be.linspace(0, 1, name="r").name == be.eye(2, name="r").name == "r"
    big = be.arange(2**53, 2**53 + 3, dtype="int64")
    assert big.get().tolist() == [2**53, 2**53 + 1, 2**53 + 2]


def test_iobuf_is_a_buffer_for_a_batch():
    be = gen_backend("cpu", batch_size=32)
    assert be.iobuf(10).shape == (10, 32) and not be.iobuf(10).get().any()
    assert be.iobuf((3, 4, 5), dtype="float16", name="b").shape == (60, 32)
    x = be.zeros((2, 2))
    assert be.iobuf(10, x=x) is x
    be.batch_size = 8
    assert be.iobuf(10).shape == (10, 8)


# Shapes: NumPy's by default, neon's when asked for


def test_shapes_and_broadcasting_are_numpys_in_any_number_of_dimensions(be):
    for left, right in [((), (3,)), ((2, 3), (3,)), ((4, 1, 3), (2, 1)), ((1,) * 6, (2, 1, 3)), ((0, 3), (1, 3))]:
        a, b = np.ones(left), np.full(right, 2.0)
        tree = be.array(a) * be.array(b)
        np.testing.assert_array_equal(tree.asnumpyarray(), (a * b).astype("float32"), strict=True)


@pytest.fixture
def neon():
    return gen_backend("cpu", compat_mode="neon", datatype=np.float64)


def test_neons_tensors_have_two_dimensions_and_an_array_is_a_column(neon):
    assert neon.zeros(3).shape == neon.empty((3,)).shape == neon.array([1, 2, 3]).shape == (3, 1)
    assert neon.array(5).shape == neon.ones(()).shape == (1, 1)
    assert neon.arange(4).shape == neon.linspace(0, 1, 4).shape == (4, 1)
    assert neon.zeros((2, 3, 4)).shape == (2, 3, 4)
    x = neon.zeros(3)
    x[:] = np.array([1.0, 2.0, 3.0])
    assert x.get().tolist() == [[1], [2], [3]]
    x.set([4, 5, 6])
    assert x.get().tolist() == [[4], [5], [6]]
    x[:] = [7, 8, 9]
    assert x.get().tolist() == [[7], [8], [9]]


def test_neons_mode_takes_an_array_in_an_expression_for_a_column(neon):
    x, column = neon.array([1, 2, 3]), np.array([[10.0], [20.0], [30.0]])
    for tree, expected in [
        (x + column[:, 0], x.get() + column),
        (column[:, 0].astype(int) - x, column - x.get()),
        (np.maximum(column[:, 0], x * 15), np.maximum(column, x.get() * 15)),
        (neon.where(x > 1, column[:, 0], x), np.where(x.get() > 1, column, x.get())),
        (neon.dot(x.T, column[:, 0]), x.get().T @ column),
        (x.T @ column[:, 0], x.get().T @ column),
        (neon.concatenate([x, column[:, 0]]), np.concatenate([x.get(), column])),
    ]:
        np.testing.assert_array_equal(tree.asnumpyarray(), expected, strict=True)
    assert neon.from_dlpack(np.ones(3)).shape == neon.from_dlpack(np.ones(6)[::2]).shape == (3, 1)
    assert neon.take(x, [0, 2], axis=0).asnumpyarray().tolist() == [[1], [3]]
    x[[0, 2]] = np.array([7.0, 8.0])
    assert x.get().tolist() == [[7], [2], [8]]


def test_neons_reductions_keep_their_axis_always(neon):
    x = neon.array(grid(2, 3))
    for tree in (neon.sum(x, axis=0), neon.sum(x, axis=0, keepdims=False), np.sum(x, axis=0)):
        assert tree.shape == (1, 3)
        np.testing.assert_array_equal(tree.asnumpyarray(), grid(2, 3).sum(0, keepdims=True))
    for name in ("sum", "mean", "max", "min", "prod", "argmax", "argmin", "var", "std", "all", "any", "logsumexp"):
        assert getattr(neon, name)(x, axis=None).shape == (1, 1)
        assert getattr(neon, name)(x, axis=1, keepdims=False).shape == (2, 1)


def test_neons_results_have_two_dimensions(neon):
    x = neon.array(grid(3, 4))
    assert x[1].shape == (1, 4) and x[:, 2].shape == (3, 1) and x[1, 2].shape == (1, 1)
    assert neon.slice(x + 0, np.s_[1]).shape == (1, 4)
    assert x.reshape(12).shape == (12, 1) and neon.reshape(x, (12,)).shape == (12, 1)
    assert neon.squeeze(x[1]).ndim == 2 and np.ravel(x).ndim == 2
    assert [row.shape for row in x] == [(1, 4)] * 3
    assert neon.norm(x).ndim == 2 and neon.take(x, np.array([0, 1]), axis=0).ndim == 2
    assert neon.dot(x, x.T).shape == (3, 3) and neon.outer(x[0], x[0]).ndim == 2
    x[1] = 5
    x[:, 2] = neon.array([7.0, 8.0, 9.0])
    x[0, 0] = -1
    expected = grid(3, 4)
    expected[1] = 5
    expected[:, 2] = [7, 8, 9]
    expected[0, 0] = -1
    np.testing.assert_array_equal(x.get(), expected)


def test_neons_ties_get_the_gradient_in_full(neon, be64):
    def gradients(be):
        x, y = be.array([[2.0, 2.0, 1.0]]), be.array([[2.0, 1.0, 1.0]])
        tied = grad(be.sum(be.max(x, axis=1)), x).asnumpyarray().tolist()
        both = [g.asnumpyarray().tolist() for g in grad(be.sum(be.maximum(x, y)), [x, y])]
        return tied, both

    assert gradients(neon) == ([[1, 1, 0]], [[[1, 1, 1]], [[1, 0, 1]]])
    assert gradients(be64) == ([[0.5, 0.5, 0]], [[[0.5, 1, 0.5]], [[0.5, 0, 0.5]]])
    x = neon.array([[2.0, 2.0]])
    assert Autodiff(neon.sum(neon.max(x, axis=1)), neon).get_grad_asnumpyarray([x])[0].tolist() == [[1, 1]]


# Plans


def test_a_plan_serves_every_size_and_number(be):
    def step(n, k):
        x, w, out = be.ones((n, 3)), be.ones((3,)), be.empty((n, 1))
        out[:] = be.sum(be.tanh(x * w + k), axis=1) * (k + 1)
        x[1:3] = x[0] * k
        return out.get()

    step(10, 0.5)
    compiles = be.stats()["compiles"]
    for n, k in [(7, 0.5), (128, 2.5), (10, -1.0)]:
        np.testing.assert_allclose(step(n, k), np.full((n, 1), 3 * np.tanh(1 + k) * (k + 1)), rtol=1e-5)
    assert be.stats()["compiles"] == compiles


def test_a_plan_of_an_op_that_only_performs_serves_every_size_too(be64):
    class Doubled(Op):
        operands = ("x",)
        __props__ = ()

        def output_shape(self, *shapes):
            return shapes[0]

        def perform(self, node, inputs, output_storage):
            output_storage[0][0] = inputs[0] * 2

        def grad(self, inputs, output_gradients):
            return [output_gradients[0] * 2]

    op = Doubled()
    for n in (2, 5, 3):
        out = be64.empty((n,))
        out[:] = op(be64.ones((n,)) + 1) + 1
        assert out.get().tolist() == [5] * n


def test_stats_count_what_ran(be):
    before = be.stats()
    x = be.empty((2,))
    x[:] = 1
    x[:] = x + 1
    after = be.stats()
    assert after["executions"] - before["executions"] == 2
    assert set(after) >= {"compiles", "plans", "executions"}


def test_stats_have_the_entries_and_the_bound_of_each_cache(be):
    x = be.ones((2,))
    (x * 3 + 1).asnumpyarray()
    caches = be.stats()["caches"]
    assert caches["plans"][0] >= 1 and all(0 <= entries <= bound for entries, bound in caches.values())


def test_plans_are_bounded(be, monkeypatch):
    monkeypatch.setattr(be.plans, "size", 8)
    x = be.ones((2,))
    for depth in range(20):
        tree = x + 1
        for _ in range(depth):
            tree = tree * x
        assert tree.asnumpyarray().tolist() == [2, 2]
    assert be.stats()["plans"] <= 8


# Memory


@pytest.mark.parametrize(
    "make",
    [
        lambda be, x, c: be.sin(x) * c + x,
        lambda be, x, c: be.sum(x * c, axis=0),
        lambda be, x, c: be.where(x > 0, x, c),
        lambda be, x, c: be.dot(be.reshape(x, (10, 10)), c.reshape(10, 10)),
        lambda be, x, c: x[2:5] * c[2:5] + be.slice(x * 2, np.s_[2::-1]),
        lambda be, x, c: x[[3, 1]] + c[:2],
        lambda be, x, c: grad(be.sum(be.exp(x) * c), x),
        lambda be, x, c: x.T.reshape(100) + c,
        lambda be, x, c: np.concatenate([x, c]),
        lambda be, x, c: OpTreeNode.from_stack((be.sin(x) * c).traverse()),
    ],
)
def test_nothing_keeps_a_trees_tensors_and_arrays_once_it_is_released(be, make):
    """Neither a plan that ran it, nor a cache of what its ops inferred, nor a cycle."""
    gc.collect()
    gc.disable()
    try:
        x, c = be.ones((100,), name="x"), np.ones(100)
        references = [weakref.ref(x), weakref.ref(x.raw())]
        tree = make(be, x, c)
        references += [weakref.ref(e.value) for e in tree.traverse() if hasattr(e, "value")]
        value = tree.astensor()
        del tree, x
        assert value.size and [r() for r in references] == [None] * len(references)
    finally:
        gc.enable()


@pytest.mark.parametrize("rounds", [800, pytest.param(2500, marks=pytest.mark.matrix(least=0))])
def test_thousands_of_assignments_leave_memory_flat(be, rounds):
    x, w, out = be.ones((64, 4), name="x"), be.ones((4,), name="w"), be.empty((64, 1))

    def run(n):
        for i in range(n):
            out[:] = be.sum(be.tanh(x * w) * float(i), axis=1)
            w[:] = w - 0.1 * np.full(4, i * 1.0)
            x[i % 50 : i % 50 + 4] = x[:4] + i * 0.5
            w[[0, 2]] = 1.0

    tracemalloc.start()
    run(300)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    run(rounds)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 30_000


@pytest.mark.matrix(least=0)
def test_new_sizes_and_slices_leave_memory_bounded(be):
    def run(sizes):
        for n in sizes:
            x = be.ones((n, 2))
            (be.slice(x + 1, np.s_[n // 2 :, 0]) * 2).asnumpyarray()

    run(range(2, 100))
    gc.collect()
    tracemalloc.start()
    run([*range(100, 400)] * 3)  # what is remembered of the last few arrays is there by then
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    run(range(100, 400))
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 30_000


@pytest.mark.matrix(least=0)
def test_slices_that_are_always_new_leave_memory_bounded(be, monkeypatch):
    tree = be.ones((10_000,)) + 1
    for known in (known for caches in list(_caches.values()) for known in caches):
        monkeypatch.setattr(known, "size", min(known.size, 256))  # of thousands, which take long to fill

    sizes = []
    tracemalloc.start()
    for begin in (0, 5000) * 3:  # an op evicts the oldest types of operands when it meets others
        for i in range(begin, begin + 1000):
            be.slice(tree, np.s_[i:])
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # Tables also hold what other tests have made, and double or halve when that goes; a leak is seen in every round.
    assert min(after - before for before, after in pairwise(sizes)) < 25_000


def test_a_backend_that_is_released_dies():
    be = gen_backend("cpu")
    x = be.ones((3,))
    x[:] = be.sin(x) + 1
    released = weakref.ref(be)
    del be, x
    gen_backend("cpu")  # the last one made may be kept
    gc.collect()
    assert released() is None


def test_an_op_that_is_defined_anew_is_the_one_that_is_called(be):
    def define(factor):
        class Scaled(UnaryOperator, ElementwiseOperator, FloatOperator, NonDifferentiableOperator):
            """x times a factor."""

            name = "scaled_for_this_test"
            numpy = staticmethod(lambda x: np.multiply(x, factor))

    try:
        for factor in (2.0, 3.0):  # as a notebook's cell that is run again
            define(factor)
            assert be.scaled_for_this_test(be.ones((2,))).asnumpyarray().tolist() == [factor] * 2
    finally:
        for table in (OPS, FUNCTIONS):
            table.pop("scaled_for_this_test", None)


@pytest.mark.parametrize(
    "run, message",
    [
        (lambda be, x: be.execute(x), r"execute: a tree is wanted, not x \(2, 3\) float32"),
        (lambda be, x: be.execute([x * 2]), r"execute: a tree is wanted, not a list of 1.*; be.evaluate runs a list"),
        (lambda be, x: be.execute(None), "execute: a tree is wanted, not None"),
        (lambda be, x: be.evaluate(x * 2), r"evaluate: a list .* not mul.*; put it into a list: be.evaluate\(\[x\]\)"),
        (lambda be, x: be.evaluate(x), r"evaluate: a list .* not x \(2, 3\) float32.*; put it into a list"),
        (lambda be, x: be.evaluate(3), r"evaluate: a list of trees is wanted, not 3 \(int\)$"),
        (lambda be, x: be.evaluate(t for t in [x]), "evaluate: a list of trees is wanted, not <generator"),
        (lambda be, x: be.evaluate({"a": x}), "evaluate: a list of trees is wanted, not .*dict"),
        (lambda be, x: be.evaluate([x, [x]]), "evaluate: a tree, tensor or number is wanted in the list, not a list"),
        (
            lambda be, x: be.evaluate([x * 2, None]),
            "evaluate: a tree, tensor or number is wanted in the list, not None",
        ),
    ],
)
def test_what_is_no_tree_to_run(be, run, message):
    x = be.ones((2, 3), name="x")
    with pytest.raises(OperandError, match=message):
        run(be, x)
    assert [y.get().sum() for y in be.evaluate((x * 2, x, 3))] == [12, 6, 3]


def test_a_list_of_bools_is_of_bools_and_in_neons_mode_of_neons_dtype(be):
    mask = be.array([True, False])
    assert mask.dtype == bool and np.where(mask, be.ones(2), 0).asnumpyarray().tolist() == [1.0, 0.0]
    assert gen_backend("cpu", compat_mode="neon").array([True, False]).dtype == np.float32


def test_bsz_is_neons_name_of_the_batch_size(be):
    be.bsz = 32
    assert (be.batch_size, be.bsz, be.iobuf(10).shape) == (32, 32, (10, 32))
    be.batch_size = 16
    assert be.bsz == 16
