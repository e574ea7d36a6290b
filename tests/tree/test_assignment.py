"""Assignment of every kind: whole, partial, in place, overlapping, from threads, and failed."""

from __future__ import annotations

import itertools
from itertools import product

import numpy as np
import pytest
from harness.each import for_each
from harness.threads import in_threads, switching_often
from hypothesis import given
from hypothesis import strategies as st

import optree
from backends import gen_backend
from optree import OpTreeNode, Tensor
from optree.errors import DTypeError, OperandError, OptreeError, ShapeError


def of(be, value, name=None, dtype="float64"):
    return be.array(np.asarray(value), dtype=dtype, name=name)


def grid(*shape, dtype="float64"):
    return np.arange(1, 1 + int(np.prod(shape)), dtype=dtype).reshape(shape)


# Whole and partial assignment


VALUES = [
    lambda be: 2,
    lambda be: 2.5,
    lambda be: True,
    lambda be: np.float32(1.5),
    lambda be: np.int8(-3),
    lambda be: np.array(4.5),
    lambda be: grid(3),
    lambda be: grid(2, 3),
    lambda be: grid(1, 1, 2, 3),
    lambda be: grid(2, 1, dtype="int32"),
    lambda be: [[1, 2, 3], [4.5, 5, 6]],
    lambda be: (7, 8, 9),
    lambda be: of(be, grid(3)),
    lambda be: of(be, grid(2, 3)) * 2 + 1,
    lambda be: of(be, grid(3, 2)).T,
    lambda be: be.array(7.0),
]


@for_each(("value", "dtype"), product(VALUES, ["float64", "float32", "float16", "int32", "int8", "bool"]))
def test_assignment_from_anything_casts_and_broadcasts_as_numpys_does(be, value, dtype):
    value = value(be)
    x, expected = be.zeros((2, 3), dtype=dtype), np.zeros((2, 3), dtype)
    x[:] = value
    expected[:] = value.asnumpyarray() if isinstance(value, Tensor | OpTreeNode) else value
    np.testing.assert_array_equal(x.get(), expected, strict=True)


def test_unsigned_and_wide_integers_keep_every_bit(be):
    for dtype in ("int64", "uint64"):
        x = be.zeros((1,), dtype=dtype)
        x[:] = np.iinfo(dtype).max
        assert x.item() == np.iinfo(dtype).max
        x.set(np.array([np.iinfo(dtype).max - 1], dtype=dtype))
        assert x.item() == np.iinfo(dtype).max - 1


PLACES = [
    np.s_[2:5],
    np.s_[:, 3],
    np.s_[0],
    np.s_[-1, -1],
    np.s_[::-2, 1:],
    np.s_[..., 2],
    np.s_[None, 1],
    np.s_[6:],
    [0, 2],
    np.array([0, -1, 2]),
    (np.array([0, 1]), np.array([3, 2])),
    (slice(1, 3), np.array([3, 0])),
    (np.array([[0], [2]]), np.array([1, 3])),
    np.arange(24).reshape(6, 4) % 3 == 0,
    np.array([True, False, True, False, False, True]),
    (slice(None), np.array([True, False, False, True])),
    np.zeros((6, 4), bool),
]


@for_each(("kind", "place"), product(["number", "scalar", "array", "tensor", "tree"], PLACES))
def test_partial_assignment_is_numpys(be, place, kind):
    a = grid(6, 4)
    x = of(be, a, "x")
    value = {"number": 1.5, "scalar": np.float64(1.5)}.get(kind)
    if value is None:
        value = grid(*a[place].shape) * -1
    x[place] = {
        "number": lambda: value,
        "scalar": lambda: value,
        "array": lambda: value,
        "tensor": lambda: of(be, value),
        "tree": lambda: of(be, value / 2) * 2,
    }[kind]()
    a[place] = value
    np.testing.assert_array_equal(x.get(), a)


@pytest.mark.parametrize("place", PLACES, ids=range(len(PLACES)))
def test_augmented_assignment_of_a_part_is_numpys(be, place):
    a, w = grid(6, 4), of(be, grid(6, 4), "w")
    a[place] += 2
    w[place] += 2
    a[place] *= a[place]
    w[place] *= w[place]
    np.testing.assert_array_equal(w.get(), a)


def test_a_mask_on_the_backend_chooses_what_is_written(be):
    a = grid(3, 4)
    x = of(be, a)
    x[x > 6] = 0.5
    a[a > 6] = 0.5
    np.testing.assert_array_equal(x.get(), a)
    mask = of(be, a < 3, dtype="bool")
    x[mask] = np.arange((a < 3).sum())
    a[a < 3] = np.arange((a < 3).sum())
    np.testing.assert_array_equal(x.get(), a)
    rows = of(be, [True, False, True], dtype="bool")
    x[rows] = 7
    a[[True, False, True]] = 7
    np.testing.assert_array_equal(x.get(), a)


def test_an_index_on_the_backend_is_read_when_the_assignment_runs(be):
    x, at = be.zeros((4,)), be.array(np.array([0, 2]))
    x[at] = 5
    at[:] = [1, 1]
    x[at] = 6
    assert x.get().tolist() == [5, 6, 5, 0]


def test_a_place_named_twice_gets_the_last_value_and_is_added_to_once(be):
    x = be.zeros((3,))
    x[[0, 0, 1]] = np.array([1.0, 2.0, 3.0])
    assert x.get().tolist() == [2, 3, 0]
    x[[0, 0]] += 1
    assert x.get().tolist() == [3, 3, 0]


def test_elements_that_lie_apart_get_what_each_is(be):
    """Some of NumPy 2.4's own functions write wrong values there."""
    values = np.where(np.arange(256) % 5, 1.5, np.nan).reshape(4, 64)
    for name, numpy in (("isnan", np.isnan), ("isinf", np.isinf), ("finite", np.isfinite), ("neg", np.negative)):
        x, wanted = of(be, np.repeat(values, 8, axis=1))[:, ::8], numpy(values)
        for step in (2, 8):
            target = be.zeros((4, 64 * step), wanted.dtype)
            target[:, ::step] = getattr(be, name)(x)
            np.testing.assert_array_equal(target.get()[:, ::step], wanted, err_msg=name)


def test_views_of_views_are_written_through(be):
    a, x = grid(4, 6), of(be, grid(4, 6))
    x[1:].T[2:4][...] = 0
    a[1:].T[2:4] = 0
    x[::2][1][::-1][:2] = [8, 9]
    a[::2][1][::-1][:2] = [8, 9]
    x.reshape(2, 12)[1, 3:5] += 100
    a.reshape(2, 12)[1, 3:5] += 100
    np.testing.assert_array_equal(x.get(), a)


# In place


@pytest.mark.parametrize("operator", ["iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"])
@pytest.mark.parametrize("other", [2, 0.5, np.float32(3), grid(4), "self", "tree"], ids=str)
def test_augmented_assignment_runs_in_place(be, operator, other):
    a = grid(3, 4)
    x = of(be, a)
    memory, before = x.raw(), x
    name = f"__{operator}__"
    ours = {"self": x, "tree": x + 1}.get(other, other) if isinstance(other, str) else other
    theirs = {"self": a.copy(), "tree": a + 1}.get(other, other) if isinstance(other, str) else other
    x = getattr(x, name)(ours)
    getattr(a, name)(theirs)
    assert x is before and x.raw() is memory
    np.testing.assert_allclose(x.get(), a, rtol=1e-15)


def test_matmul_in_place_and_updates_of_a_training_step(be):
    a = grid(2, 2)
    x, w, g = of(be, a), of(be, a, "w"), of(be, a * 2, "g")
    x @= x.T
    np.testing.assert_array_equal(x.get(), a @ a.T)
    lr = 0.1
    w -= lr * g
    np.testing.assert_allclose(w.get(), a - 0.1 * a * 2, rtol=1e-15)
    row = w[0]
    row *= 0
    assert not w.get()[0].any()


@pytest.mark.parametrize("place", [np.s_[:], np.s_[...], np.s_[1:], np.s_[0], np.s_[:, 1]], ids=str)
def test_augmented_assignment_of_a_view_runs_once(be, place):
    x = of(be, grid(3, 4))
    before = be.stats()["executions"]
    x[place] -= 1
    assert be.stats()["executions"] == before + 1
    a = grid(3, 4)
    a[place] -= 1
    np.testing.assert_array_equal(x.get(), a)


@pytest.mark.parametrize(("shape", "other"), [((), (1,)), ((3,), (1, 3)), ((2, 3), (1, 2, 3))])
def test_in_place_keeps_the_number_of_axes_as_numpy_does(be, shape, other):
    """An assignment drops leading axes of size 1; an operator in place and `out` do not."""
    x, y = np.ones(shape), np.ones(other)
    t, u = of(be, x, "t"), of(be, y)
    for write in (
        lambda x, y: x.__iadd__(y),
        lambda x, y: np.add(x, y, out=x),
        lambda x, y: np.sum(y, axis=0, keepdims=True, out=x),
    ):
        with pytest.raises(ValueError):
            write(x, y)
        with pytest.raises(ShapeError, match=r"in place|no place for a value of shape"):
            write(t, u)
    with pytest.raises(ShapeError, match=r"shape \(.*\) is not the \(.*\) of t in place"):
        t += y
    assert t.get().tolist() == x.tolist()
    t[...] = u
    np.add(of(be, np.ones(())), 1, out=t)
    assert set(t.get().ravel().tolist()) == {2.0}


def test_in_place_keeps_the_dtype_or_refuses_as_numpy_does(be):
    x = be.ones((2,), dtype="float32")
    x += np.ones(2)
    assert x.dtype == np.float32 and x.get().tolist() == [2.0, 2.0]
    n = be.ones((2,), dtype="int32", name="n")
    n += True
    for update in (lambda: n.__iadd__(0.5), lambda: n.__itruediv__(2)):
        with pytest.raises(TypeError, match=r"float64.*n of int32"):
            update()
    assert n.get().tolist() == [2, 2]


# The right side is read before the left is written

ALIASES = [
    lambda x: (x, x.T + x),
    lambda x: (x, x.T),
    lambda x: (x, x[::-1]),
    lambda x: (x, x[::-1] * 2 + x[:, ::-1]),
    lambda x: (x[1:], x[:-1]),
    lambda x: (x[:-1], x[1:]),
    lambda x: (x[1:], x[:-1] + x[1:]),
    lambda x: (x[:, 1:], x[:, :-1] * 3 - x[0, 0]),
    lambda x: (x[0], x[:, 0]),
    lambda x: (x[0], x[1] + x[:, 0] * x[0, 1]),
    lambda x: (x, x - x[0]),
    lambda x: (x, x / x[1, 1]),
    lambda x: (x, x @ x),
    lambda x: (x, x + x.sum(axis=0) if isinstance(x, np.ndarray) else x + np.sum(x, axis=0)),
    lambda x: (x, x[[3, 2, 1, 0]]),
    lambda x: (x[::2], x[[3, 2]] + x[:2]),
]


@pytest.mark.parametrize("alias", ALIASES)
def test_an_assignment_to_what_it_reads_means_what_numpy_means(be, alias):
    a = grid(4, 4) ** 1.5
    x = of(be, a)
    for _ in range(2):  # the second time by a plan that is known
        target, value = alias(x)
        target[...] = value
        target, value = alias(a)
        target[...] = value.copy()
        np.testing.assert_allclose(x.get(), a, rtol=1e-12)


def test_a_known_plan_serves_operands_that_overlap_too(be):
    """The plan is made for tensors apart, and then run on ones that share memory."""
    x, y = of(be, grid(6)), of(be, grid(5) * 3)
    z = be.empty((5,), dtype="float64")
    z[:] = be.sin(x[1:]) + y
    compiles = be.stats()["compiles"]
    a = x.get()
    x[1:][...] = be.sin(x[:-1]) + x[1:]
    a[1:] = np.sin(a[:-1]) + a[1:]
    assert be.stats()["compiles"] == compiles
    np.testing.assert_allclose(x.get(), a, rtol=1e-14)


INDEXED = [
    lambda x: (x[0], x[::-1]),
    lambda x: (x[1], x.T),
    lambda x: ([2, 0, 1, 3], x[2]),
    lambda x: ([3, 3, 0, 1], x),
    lambda x: ((x[0], x[1]), x[2]),
    lambda x: ((x[2], slice(1, None)), x[:, :-1]),
    lambda x: ((slice(None), x[:, 1]), x.T),
]


@pytest.mark.parametrize("alias", INDEXED)
def test_what_an_assignment_by_index_reads_may_overlap_its_target(be, alias):
    for seed in range(20):
        a = np.random.default_rng(seed).integers(-4, 4, (4, 4))
        x = be.array(a)
        place, value = alias(x)
        x[place] = value
        place, value = alias(a.copy())
        a[place] = value
        np.testing.assert_array_equal(x.get(), a)


FORWARD = st.integers(0, 4).map(lambda start: slice(start, start + 4))
BACKWARD = st.integers(3, 7).map(lambda start: slice(start, start - 4 if start > 3 else None, -1))
FOUR = FORWARD | BACKWARD


@given(
    target=st.tuples(FOUR, FOUR),
    sources=st.tuples(*[st.tuples(FOUR, FOUR, st.booleans())] * 3),
    form=st.sampled_from(
        [
            lambda a, b, c: a,
            lambda a, b, c: a + b,
            lambda a, b, c: a * b - c,
            lambda a, b, c: (a + b) * (b + c) - a,
            lambda a, b, c: np.maximum(a, b) / 2 + np.sum(c, axis=0),
            lambda a, b, c: a @ b,
        ]
    ),
)
def test_overlapping_parts_of_one_tensor_mean_what_numpy_means(target, sources, form):
    be = gen_backend("cpu", datatype=np.float64)
    a = np.sin(np.arange(64.0)).reshape(8, 8)
    x = be.array(a)

    def parts(of):
        return [part.T if transposed else part for part, transposed in ((of[i, j], t) for i, j, t in sources)]

    x[target] = form(*parts(x))
    a[target] = form(*[part.copy() for part in parts(a)])
    np.testing.assert_allclose(x.get(), a, rtol=1e-13, atol=1e-13)


def test_parts_of_one_axis_with_other_steps_are_read_first():
    """NumPy's own copy along one axis reads what it has written, where the steps differ."""
    parts = [
        slice(6),
        slice(None, None, 2),
        slice(1, None, 2),
        slice(6, None),
        slice(None, None, -2),
        slice(5, None, -1),
    ]
    for jit in (False, "auto"):
        be = gen_backend("cpu", jit=jit)
        for target, source in itertools.product(parts, parts):
            a = np.arange(12.0, dtype=np.float32)
            one, other = be.array(a), be.array(a)
            a[target] = a[source].copy()
            one[target] = one[source]
            np.testing.assert_array_equal(one.get(), a)
            be.update([(other[target], other[source])])
            np.testing.assert_array_equal(other.get(), a)


# An assignment stands at the root


def test_the_value_of_an_assignment_is_its_target(be):
    x = of(be, [1.0, 2.0])
    assert be.assign(x, x + 1).asnumpyarray().tolist() == [2.0, 3.0]
    assert be.assign(x, x + 1).astensor() is x and x.get().tolist() == [3.0, 4.0]
    assert be.evaluate([be.assign(x, x + 1), x * 2])[1].get().tolist() == [8.0, 10.0]


@pytest.mark.parametrize(
    "use",
    [
        lambda be, x, a: a + 1,
        lambda be, x, a: 1 + a,
        lambda be, x, a: x * a,
        lambda be, x, a: -a,
        lambda be, x, a: be.sum(a),
        lambda be, x, a: be.where(a, x, x),
        lambda be, x, a: be.stack([x, a]),
        lambda be, x, a: be.assign(x, a),
        lambda be, x, a: x.__setitem__(slice(None), a),
        lambda be, x, a: OpTreeNode.build("mul", a, 2),
        lambda be, x, a: OpTreeNode({"op": "mul", "shape": (2,)}, a, 2),
        lambda be, x, a: OpTreeNode.from_stack([*a.traverse(), 1, {"op": "add"}]),
    ],
)
def test_an_assignment_is_no_operand(be, use):
    x = of(be, [1.0, 2.0], "x")
    (x + 1, 1 + x, x * x, -x, be.sum(x), be.where(x, x, x), be.stack([x, x]))  # known, of a tensor's type
    with pytest.raises(OperandError, match="an assignment is no operand.*use its target"):
        use(be, x, OpTreeNode.build("assign", x, x * 2))
    assert x.get().tolist() == [1.0, 2.0]


def test_an_assignment_has_no_derivative(be):
    x = of(be, [[1.0]], "x")
    with pytest.raises(OperandError, match="an assignment is no operand"):
        optree.grad(be.assign(x, x * 2), x)
    with pytest.raises(OperandError, match="an assignment is no operand"):
        optree.Autodiff(be.assign(x, x * 2), be, next_error=x).get_grad_op_tree(x)


@pytest.mark.parametrize("host", [False, True])
def test_a_value_that_does_not_fill_a_mask_is_counted(be, host):
    x = of(be, grid(4, 5), "x")
    mask = (x > 8).asnumpyarray() if host else x > 8
    with pytest.raises(ShapeError, match=r"x \(4, 5\).*mask or index selects 12 elements.*the value has 3 elements"):
        x[mask] = np.arange(3)
    np.testing.assert_array_equal(x.get(), grid(4, 5))


# Threads


@pytest.fixture
def crowded(monkeypatch, be):
    """Threads take turns all the time, and the caches that they share overflow."""
    monkeypatch.setattr(be.plans, "size", 4)
    monkeypatch.setattr(optree.tree.variable, "INFERENCES", 8)
    for caches in (optree.cache._caches["types of ops' values"], optree.cache._caches["ops by parameters"]):
        for cache in list(caches):
            monkeypatch.setattr(cache, "size", 8)
    with switching_often():
        yield


@pytest.mark.usefixtures("crowded")
def test_threads_may_assign_on_one_backend(be):
    def work(seed):
        rng = np.random.default_rng(seed)
        for i in range(100):
            a, b = rng.random((2, 1 + i % 7, 3))
            x, y = of(be, a), of(be, b)
            z = be.empty(x.shape, dtype="float64")
            z[:] = be.sin(x * y) + x * float(i)
            np.testing.assert_allclose(z.get(), np.sin(a * b) + a * i, rtol=1e-14)
            np.testing.assert_array_equal(be.slice(x + 1, np.s_[:, i % 3 :]).asnumpyarray(), a[:, i % 3 :] + 1)
            assert z.type is x.type
            z[0] = y[0] + x[0]
            np.testing.assert_array_equal(z.get()[0], b[0] + a[0])

    in_threads(work, 4)


# A failure changes nothing


@pytest.mark.parametrize(
    "fail",
    [
        lambda be, x: x.__setitem__(slice(None), grid(3)),
        lambda be, x: x.__setitem__(slice(None), of(be, grid(3)) + 1),
        lambda be, x: x.__setitem__(0, grid(3, 4)),
        lambda be, x: x.__setitem__(slice(None), 1 << 2000),
        lambda be, x: x.__setitem__(slice(None), "text"),
        lambda be, x: x.__setitem__(slice(None), None),
        lambda be, x: x.__setitem__(slice(None), 1j),
        lambda be, x: x.__setitem__(7, 1),
        lambda be, x: x.__setitem__((0, 0, 0), 1),
        lambda be, x: x.__setitem__("a", 1),
        lambda be, x: x.__setitem__([5], 1),
        lambda be, x: x.__setitem__([0, 1], grid(3, 4)),
        lambda be, x: x.__setitem__(np.array([True, False, True]), 1),
        lambda be, x: x.__setitem__(slice(None), be.take(x, np.array([0, 9]), axis=0)),
        lambda be, x: x.__setitem__(be.array(np.array([0, 9])), 1),
        lambda be, x: x.__setitem__(slice(None), x.astype("int32") ** be.array(np.array([1, 2, -1, 0]))),
        lambda be, x: x.__setitem__(slice(None), gen_backend("cpu").ones((2, 4))),
    ],
)
def test_a_failed_assignment_leaves_its_target_as_it_was(be, fail):
    x = of(be, grid(2, 4), "x")
    with pytest.raises((OptreeError, ValueError, IndexError, OverflowError)):
        fail(be, x)
    np.testing.assert_array_equal(x.get(), grid(2, 4))


@pytest.mark.parametrize("method", ["__iand__", "__ior__", "__ixor__"])
def test_conditions_are_joined_in_place(be, method):
    left, right = np.array([True, True, False, False]), np.array([True, False, True, False])
    b, m = be.array(left), be.array(right)
    memory, part = b.raw(), b[1:]
    assert getattr(b, method)(m) is b
    wanted = getattr(left, method)(right)
    np.testing.assert_array_equal(b.get(), wanted)
    assert b.raw() is memory
    part &= m[1:]
    np.testing.assert_array_equal(b.get()[1:], wanted[1:] & right[1:])
    with pytest.raises(DTypeError, match="not bool"):
        b |= be.ones(4)


@pytest.mark.parametrize(
    "write",
    [
        lambda h, value: h.__setitem__(slice(None), value),
        lambda h, value: h.__setitem__(slice(0, len(h)), value),
        lambda h, value: h.__setitem__(np.arange(len(h)), value),
        lambda h, value: h.__setitem__(h.backend.arange(len(h), dtype=int), value),
        lambda h, value: h.__setitem__(h < 5, value),
        lambda h, value: h.__setitem__(h.get() < 5, value),
    ],
)
def test_stochastic_rounding_is_for_every_target(write):
    be = gen_backend("cpu", rng_seed=0, stochastic_round=True)
    h = be.ones(4000, dtype=np.float16)
    write(h, be.full(4000, 1 + 2.0**-12))  # a quarter of the way to the next float16
    assert set(h.get().tolist()) == {1.0, 1 + 2.0**-10}
    assert h.get().astype(np.float64).mean() == pytest.approx(1 + 2.0**-12, abs=5e-5)


def test_one_element_into_a_mask_is_rounded_by_chance_too():
    be = gen_backend("cpu", rng_seed=0, stochastic_round=True)
    h, value = be.ones(2, dtype=np.float16), be.array([1 + 2.0**-11], name="value")
    found = set()
    for _ in range(50):
        h[h < 5] = value
        found |= set(h.get().tolist())
    assert found == {1.0, 1 + 2.0**-10}
