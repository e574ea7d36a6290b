"""neon's tensors, buffers and backends, against the rows of its specification."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import numpy as np
import pytest
from harness.messages import message_of

import backends
from backends import Block, NervanaObject, gen_backend
from backends.neon.backend import NervanaCPU
from optree import Autodiff
from optree.errors import OperandError, OptreeError


def test_a_tensor_is_true_where_it_has_rows(ne: Any) -> None:
    x = ne.zeros((2, 3))
    assert bool(x) is True and bool(ne.zeros((0, 3))) is False
    assert bool(x != 0) is True and bool(x == x) is True and bool(ne.sqrt(0.5)) is True
    assert (0 != 0) is False


def test_tensors_are_found_by_identity(ne: Any) -> None:
    x, y = ne.ones((2, 2)), ne.ones((2, 2))
    assert {x: 1}[x] == 1 and y not in {x: 1} and type(x == 0) is not bool


def test_the_same_shape_is_the_same_tensor(ne: Any) -> None:
    x = ne.zeros((2, 6))
    assert x.reshape((2, 6)) is x and x.reshape(2, 6) is x and x[:] is x and x[...] is x
    view = x.reshape((3, 4))
    assert view.base is x and view[1].base is view and x.base is None and view[1]._original_base is x


def test_contiguity_is_a_bool(ne: Any) -> None:
    x = ne.zeros((2, 3))
    assert x.is_contiguous is True and x.T.is_contiguous is False and x[:, 1:].is_contiguous is False


def test_attributes_of_the_users_are_kept(ne: Any) -> None:
    x = ne.zeros((2, 3))
    x.rounding, x.auto_reduce, x.lshape = 7, True, (1, 2)
    ne.batch_norm_note = 5
    assert (x.rounding, x.auto_reduce, x.lshape, ne.batch_norm_note) == (7, True, (1, 2), 5)
    assert ne.zeros(1).rounding is False and ne.zeros(1).persist_values is True


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rounding_leaves_bits_of_the_mantissa_by_chance(ne: Any, dtype: Any) -> None:
    x, target = ne.array(np.full((4, 5000), 1.1), dtype), ne.zeros((4, 5000), dtype)
    target.rounding = 1
    target[:] = x * 1.0
    found = target.get()
    assert set(found.ravel().tolist()) == {1.0, 1.5} and abs((found == 1).mean() - 0.8) < 0.02
    target[:] = x[:1] - 4.1  # -3 is between neighbours of one bit, and exact; each element has a draw of its own
    values = set(target.get().ravel().tolist())
    assert len(values) <= 2 and values <= {-2.0, -3.0, -4.0}
    target.rounding = 100  # as many as there are, at most
    target[:] = x * 1.0
    step = 2.0**-10 if dtype == np.float16 else 2.0**-15
    assert (np.abs(target.get() - 1.1) <= step).all() and (target.get().astype(float) % step == 0).all()
    target.rounding = False
    target[:] = x * 1.0
    assert (target.get() == dtype(1.1)).all()
    target.rounding = 1
    target[:] = np.full((4, 5000), 1.1)  # from the host
    assert (target.get() == dtype(1.1)).all()


def test_default_dtype_is_the_class(ne: Any) -> None:
    assert ne.default_dtype is np.float32 and isinstance(ne.zeros(2).dtype, np.dtype)
    assert gen_backend("cpu", datatype=np.float64).default_dtype is np.float64


def test_the_batch_size_is_read_and_set_by_both_names(ne: Any) -> None:
    x = ne.iobuf(3)
    ne.bsz = 7
    assert ne.batch_size == 7 and ne.iobuf(3).shape == (3, 7) and x.shape == (3, 4)
    ne.batch_size = 2
    assert ne.bsz == 2


@pytest.mark.parametrize("value", [np.arange(3), np.ones(2), [1, 2], 5, np.float64(3), [True, False]])
def test_arrays_are_cast(ne: Any, value: Any) -> None:
    made = ne.array(value)
    assert made.dtype == np.float32 and made.shape == (np.size(value), 1)
    assert ne.array(value, np.int32).dtype == np.int32 and ne.array(value, dtype=np.float16, name="a").name == "a"


def test_layers_with_impossible_sizes_are_made(ne: Any) -> None:
    layer = ne.conv_layer(np.float32, 2, 3, 4, H=2, W=2, R=5, S=5)
    assert layer.P == -2 and layer.nOut == 16
    with pytest.raises(OptreeError):
        ne.fprop_conv(layer, ne.zeros((12, 2)), ne.zeros((75, 4)), ne.zeros((4, 2)))


def test_scalars_make_trees(ne: Any) -> None:
    x = ne.array([[2.0, 4.0]])
    assert ne.sqrt(0.25).shape == (1, 1)
    np.testing.assert_allclose((x / ne.square(2.0) * 1.5).get(), [[0.75, 1.5]])
    np.testing.assert_allclose((1 / ne.square(2.0)).get(), [[0.25]])
    assert sum([x, x, x * 2]).get().tolist() == [[8.0, 16.0]]


def test_assignments_read_before_they_write(ne: Any) -> None:
    x = ne.array(np.arange(9).reshape(3, 3))
    values = x.get()
    x[:] = x.T * 2 + x
    np.testing.assert_array_equal(x.get(), values.T * 2 + values)
    assert ne.clip(x, -1, 1, x) is x and x.get().max() == 1


def test_no_garbage_is_read(ne: Any) -> None:
    assert not ne.empty((50, 50)).get().any()
    out = ne.array(np.full((2, 2), np.nan))
    ne.compound_dot(ne.ones((2, 3)), ne.ones((3, 2)), out, alpha=2.0, beta=0)
    assert out.get().tolist() == [[6, 6], [6, 6]]


@pytest.mark.parametrize("view", [lambda x: x[:, 1:3], lambda x: x.T[1:3].T, lambda x: x[::2, ::3]])
def test_writes_go_through_views(ne: Any, view: Any) -> None:
    x = ne.zeros((4, 4))
    ne.compound_dot(ne.ones((view(x).shape[0], 1)), ne.ones((1, 2)), view(x))
    expected = np.zeros((4, 4))
    view(expected)[...] = 1
    np.testing.assert_array_equal(x.get(), expected)


# Backends


def test_the_current_backend_is_an_attribute_of_objects() -> None:
    first, second = gen_backend("cpu", compat_mode="neon"), gen_backend("cpu")
    assert NervanaObject.be is second
    assert (first.ones(2) + 1).get().tolist() == [[2], [2]], "earlier ones stay usable"
    del second
    gc.collect()
    assert NervanaObject.be is None, "a backend that no program has a name for"
    gen_backend("cpu", compat_mode="neon", rng_seed=5)
    gc.collect()
    assert NervanaObject.be.rng_seed == 5, "neon's programs reach it here alone"


@pytest.mark.parametrize("options", [{"backend": "tpu"}, {"datatype": np.int32}, {"compat_mode": "torch"}])
def test_wrong_arguments_are_value_errors(options: Any) -> None:
    with pytest.raises(ValueError):
        gen_backend(**{"backend": "cpu", **options})


def test_neons_options_are_taken() -> None:
    be = gen_backend("cpu", compat_mode="caffe", max_devices=2, deterministic=True, deterministic_update=None)
    assert be.compat_mode == "caffe" and be.check_caffe_compat()
    be.compat_mode = None
    assert not be.check_caffe_compat() and be.zeros(3).shape == (3, 1), "the surface stays neon's"
    be.set_caffe_compat()
    assert be.check_caffe_compat() and not gen_backend("cpu", compat_mode="neon").check_caffe_compat()


def test_constructors_by_neons_names() -> None:
    be = NervanaCPU(rng_seed=3, default_dtype=np.float64, hist_bins=10, hist_offset=-4)
    assert (be.rng_seed, be.default_dtype, be.hist_bins, be.hist_offset) == (3, np.float64, 10, -4)
    assert be.backend_choices() == ["cpu", "gpu"] and be.allocate_backend("cpu", rng_seed=1).rng_seed == 1
    with pytest.raises(ValueError, match="there is no backend"):
        be.allocate_backend("mkl")


def test_attributes_of_the_backend(ne: Any) -> None:
    assert isinstance(ne.rng, np.random.RandomState) and ne.rng_seed == 1 and ne.deterministic is True
    assert ne.device_type == (ne.name == "gpu") == ne.use_pinned_mem and ne.device_id == 0
    assert isinstance(ne.zeros(1), ne.tensor_cls) and ne.is_mkl() is False and ne.hist_idx == 0
    assert not ne.compute_capability < (0, 0)
    assert ne.begin(Block.fprop, 1) is None and ne.end(Block.bprop, 1) is None and ne.cleanup_backend() is None
    assert (Block.epoch, Block.minibatch, Block.fprop, Block.bprop, Block.update) == (0, 1, 2, 3, 4)
    assert gen_backend("cpu", compat_mode="neon").rng_seed is None


# Allocation


@pytest.mark.parametrize(
    ("shape", "wanted"), [(3, (3, 1)), (np.int64(3), (3, 1)), ((2, 3), (2, 3)), ([2, 3, 4], (2, 3, 4))]
)
def test_shapes(ne: Any, shape: Any, wanted: Any) -> None:
    for make in (ne.empty, ne.zeros, ne.ones):
        made = make(shape, np.float16, name="m", persist_values=False, parallel=True, distributed=True)
        assert made.shape == wanted and made.dtype == np.float16 and made.name == "m"
    with pytest.raises(TypeError):
        ne.zeros(2.5)


@pytest.mark.parametrize("mode", [None, "neon"])
def test_keywords_of_placement_are_taken_in_every_mode(mode: Any) -> None:
    be = gen_backend("cpu", compat_mode=mode)
    assert be.array([1.0], persist_values=False, parallel=True).get().ravel().tolist() == [1]
    with pytest.raises(TypeError, match="there is no argument 'persist'"):
        be.zeros(2, persist=True)


def test_tensors_like_others(ne: Any) -> None:
    x = ne.ones((2, 3), np.int32)
    for made in (ne.zeros_like(x.T), ne.empty_like(x.T, persist_values=True), ne.zeros_like(np.ones((3, 2), np.int32))):
        assert made.shape == (3, 2) and made.dtype == np.int32 and made.is_contiguous
    assert ne.zeros_like(x, np.float16).dtype == np.float16


@pytest.mark.parametrize(
    ("given", "wanted"), [(3, (3, 4)), ((3,), (3, 4)), ((3, 2), (3, 8)), ((2, 3, 5), (30, 4)), (np.int64(2), (2, 4))]
)
def test_buffers(ne: Any, given: Any, wanted: Any) -> None:
    made = ne.iobuf(given, persist_values=False, parallelism="Data", dtype=np.float16, name="b")
    assert made.shape == wanted and made.dtype == np.float16 and not made.get().any()
    assert ne.iobuf(given, made) is made and ne.iobuf(given, x=made) is made


def test_buffers_share_memory(ne: Any) -> None:
    pool = ne.ones((ne.shared_iobuf_size((5, 4), "Data"), 1))
    a, b = ne.iobuf(5, shared=pool), ne.iobuf((2, 1), shared=pool)
    assert a.shape == (5, 4) and b.shape == (2, 4) and not pool.get().any()
    a[:] = 3.0
    assert (b.get() == 3).all() and ne.iobuf(5, shared=a) is a
    assert ne.shared_iobuf_size(7, None) == 7
    with pytest.raises(ValueError):
        ne.iobuf(6, shared=a)
    with pytest.raises(TypeError):
        ne.iobuf([5])


# Indexing


@pytest.mark.parametrize(
    ("index", "wanted"),
    [
        (1, (1, 5)),
        (-1, (1, 5)),
        ((slice(None), 1), (4, 1)),
        ((1, 2), (1, 1)),
        (slice(1, None, 2), (2, 5)),
        ((slice(None), slice(0, 1)), (4, 1)),
        (np.int64(2), (1, 5)),
        (..., (4, 5)),
    ],
)
def test_matrices_keep_their_axes(ne: Any, index: Any, wanted: Any) -> None:
    x = ne.array(np.arange(20).reshape(4, 5))
    assert x[index].shape == wanted
    np.testing.assert_array_equal(x[index].get().ravel(), np.ravel(x.get()[index]))


@pytest.mark.parametrize(
    ("index", "wanted"),
    [
        (0, (3, 4)),
        ((slice(None), 1), (2, 4)),
        ((slice(None), 1, slice(None)), (2, 4)),
        ((slice(None), slice(None), -1), (2, 3)),
        ((0, 1, 2), (1, 1)),
        ((0, 1), (1, 4)),
        (slice(0, 1), (1, 3, 4)),
    ],
)
def test_integers_drop_axes_down_to_two(ne: Any, index: Any, wanted: Any) -> None:
    x = ne.array(np.arange(24).reshape(2, 3, 4))
    assert x[index].shape == wanted
    np.testing.assert_array_equal(x[index].get().ravel(), np.ravel(x.get()[index]))
    x[index] = 7
    assert (x.get()[index] == 7).all()


@pytest.mark.parametrize("sizes", [(3, 2, 4), (1, 2, 4), (3, 1, 4), (3, 2, 1), (1, 1, 1)])
def test_steps_of_a_sequence(ne: Any, sizes: Any) -> None:
    features, steps, batch = sizes
    x = ne.zeros((features, steps * batch))
    for step in range(steps):
        view = x.reshape((features, steps, -1))[:, step, :]
        assert view.shape == (features, batch)
        view[:] = step + 1
    np.testing.assert_array_equal(x.get(), np.repeat(np.arange(1, steps + 1), batch)[None].repeat(features, 0))


def test_indices_out_of_range(ne: Any) -> None:
    with pytest.raises(IndexError):
        ne.zeros((2, 3))[2]


@pytest.mark.parametrize("make", [list, np.array, lambda i: np.array(i)[:, None], lambda i: np.array(i, "uint8")[None]])
def test_lists_of_rows(ne: Any, make: Any) -> None:
    x = ne.array(np.arange(12).reshape(4, 3))
    rows = make([2, 0])
    np.testing.assert_array_equal(x[rows, :].get(), x.get()[[2, 0]])
    x[rows, :] = ne.ones((2, 3)) * 9
    assert x.get()[[0, 2]].tolist() == [[9] * 3] * 2
    on_device = ne.array([1, 3], np.int32)
    np.testing.assert_array_equal(x[on_device, :].get(), x.get()[[1, 3]])


# Views


def test_transposes(ne: Any) -> None:
    x, y = ne.array(np.arange(6).reshape(2, 3)), ne.array(np.arange(24).reshape(2, 3, 4))
    np.testing.assert_array_equal(x.T.get(), x.get().T)
    np.testing.assert_array_equal(y.T.get(), y.get().swapaxes(1, 2))
    out = ne.empty((3, 2))
    assert x.transpose(out) is out and (out.get() == x.get().T).all() and x.transpose().shape == (3, 2)


def test_shared_views(ne: Any) -> None:
    x = ne.array(np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(x.share((2, 3), dtype=np.float16, name="s").get(), np.arange(6).reshape(2, 3))
    assert x.share(5).shape == (5, 1) and x.share((3, 4)) is x
    with pytest.raises(ValueError):
        x.share((4, 4))
    with pytest.raises(TypeError):
        x.T.share((2, 2))


def test_shared_views_of_memory_that_is_not_contiguous(ne: Any) -> None:
    """As neon's merge layers share the columns of their outputs with the layers that they concatenate."""
    whole = ne.zeros((4, 12))
    left, right = whole[:, :8], whole[:, 8:]
    for part in (left, right):
        assert part.share(part.shape) is part and ne.iobuf((4, part.shape[1] // 4), shared=part) is part
    left.share((2, 2, 8))[:] = 2.0
    right.share((2, 4), name="s")[:] = 1.0
    assert whole.get().tolist() == [[2.0] * 8 + [1.0] * 4] * 2 + [[2.0] * 8 + [0.0] * 4] * 2
    whole.T.share((1, 4))[:] = 7.0
    assert whole.get()[:, 0].tolist() == [7.0] * 4 and not whole.share((0, 12)).size
    assert whole.T[1:].share((1, 3)).shape == left.share((1, 3)).shape == (1, 3) and left.share(5).shape == (5, 1)
    for shape in ((8, 4), 9, (3, 3)):
        said = message_of(OperandError, lambda shape=shape: left.share(shape))
        assert "not contiguous" in said and "x.copy().share(shape)" in said and "(4, 8)" in said


def test_reshapes(ne: Any) -> None:
    x = ne.zeros((3, 4))
    assert x.reshape(-1, 6).shape == (2, 6) and x.reshape([np.int64(6), 2]).shape == (6, 2)
    assert x.reshape(12).shape == x.reshape((12,)).shape == x.reshape(-1).shape == (12, 1)
    assert x.dimension_reorder((1, 0)).shape == (4, 3)
    for wrong in (lambda: x.reshape(5, 2), lambda: x.T.reshape(2, 6)):
        with pytest.raises(ValueError):
            wrong()


def test_take(ne: Any) -> None:
    x = ne.array(np.arange(12).reshape(4, 3))
    for rows in (ne.array([3, 1], np.int32), ne.array([[3, 1]], np.int32), np.array([[3], [1]])):
        np.testing.assert_array_equal(x.take(rows, axis=0).get(), x.get()[[3, 1]])
        out = ne.empty((4, 2)) if rows is None else ne.empty((2, 3))
        assert ne.take(x, rows, 0, out) is out and (out.get() == x.get()[[3, 1]]).all()
    np.testing.assert_array_equal(x.take(ne.array([2, 0], np.int32), 1).get(), x.get()[:, [2, 0]])


# Values


def test_get_is_a_copy(ne: Any) -> None:
    x = ne.array(np.arange(6).reshape(2, 3))
    values = x.T.get()
    values[:] = 0
    assert values.flags.c_contiguous and x.get().any() and isinstance(x.raw(), int)
    assert x.T.strides == (1, 3) and x[1:].raw() == x.raw() + 12


def test_set(ne: Any) -> None:
    x = ne.zeros((2, 3))
    assert x.set(np.arange(6)) is x and x.get().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert x.set(np.ones((2, 3), np.int8)) is x and x.fill(2) is x and x.get().sum() == 12
    for wrong in (np.ones(5), np.ones((3, 1))):
        with pytest.raises(AssertionError):
            x.set(wrong)
    assert x.copy_from(np.arange(6.0)) is x and x.get()[1, 2] == 5


@pytest.mark.parametrize("value", [1, 2.5, True, np.float32(3), np.ones((1, 3)), np.arange(3.0)[None]])
def test_copy_writes_into_the_tensor(ne: Any, value: Any) -> None:
    for write in ("copy", "_assign"):
        x = ne.zeros((2, 3))
        assert getattr(x, write)(value) is x
        np.testing.assert_array_equal(x.get(), np.broadcast_to(np.asarray(value, np.float32), (2, 3)))
    assert x.copy(x + 1) is x and copy.copy(x) is not x


def test_values_that_cannot_be_assigned(ne: Any) -> None:
    with pytest.raises(TypeError):
        ne.zeros((2, 3))[:] = "1"


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "pow"])
def test_operators_with_numbers_on_both_sides(ne: Any, name: str) -> None:
    values = np.array([[0.5, 2.0]], np.float32)
    x = ne.array(values)
    for method in (f"__{name}__", f"__r{name}__"):
        np.testing.assert_allclose(getattr(x, method)(3).get(), getattr(values, method)(3), rtol=1e-6)
        np.testing.assert_allclose(getattr(x + 0, method)(3.0).get(), getattr(values, method)(3.0), rtol=1e-6)
    assert (-abs(-x)).get().tolist() == [[-0.5, -2]]


# Random numbers


def test_generators_are_seeded_and_reset(ne: Any) -> None:
    first = ne.rng.uniform(0, 1, (2, 2)), ne.make_binary_mask(ne.empty((20, 20)), 0.3).get()
    ne.rng_reset()
    second = ne.rng.uniform(0, 1, (2, 2)), ne.make_binary_mask(ne.empty((20, 20)), 0.3).get()
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    ne.rng = ne.gen_rng(ne.rng_seed)
    np.testing.assert_array_equal(ne.rng.uniform(0, 1, (2, 2)), first[0])
    np.testing.assert_array_equal(ne.init_rng_state[1], np.random.RandomState(1).get_state()[1])
    assert 0.2 < first[1].mean() < 0.4


def test_states_are_pickled(ne: Any) -> None:
    state = pickle.loads(pickle.dumps(ne.rng_get_state()))
    first = ne.rng.rand(3), ne.rand(out=ne.empty((3, 3))).get()
    ne.rng_set_state(state)
    np.testing.assert_array_equal(ne.rng.rand(3), first[0])
    np.testing.assert_array_equal(ne.rand(out=ne.empty((3, 3))).get(), first[1])
    with pytest.raises(ValueError):
        ne.rng_set_state(("junk", 1))


def test_fills_of_noise(ne: Any) -> None:
    x = ne.empty((50, 40))
    ne.fill_normal(x, mean=2, stdv=0.5)
    assert abs(x.get().mean() - 2) < 0.1 and abs(x.get().std() - 0.5) < 0.1
    x[:] = 2 * ne.rand() - 1.0
    values = x.get()
    assert values.min() < -0.9 and values.max() > 0.9 and len(np.unique(values)) > 1900
    view = x[:, 3:5]
    view[:] = ne.rand() + 5
    assert (view.get() >= 5).all() and len(np.unique(view.get())) > 90 and (x.get()[:, 5:] == values[:, 5:]).all()
    x[:] = ne.dropout(0.25)
    assert set(np.unique(x.get())) == {0, 1} and 0.2 < x.get().mean() < 0.3


def test_batches_are_consumed(ne: Any) -> None:
    host, device = [np.arange(6).reshape(2, 3), np.ones((2, 3))], [None, None]
    ne.consume(0, host, device)
    assert device[0].shape == (3, 2) and (device[0].get() == host[0].T).all() and device[1] is None
    with pytest.raises(AssertionError):
        ne.consume(2, host, device)


# Autodiff


def test_autodiff(ne: Any) -> None:
    assert backends.Autodiff is Autodiff
    x, y, z = ne.array([[1.0, 2.0]]), ne.array([[3.0]]), ne.array([[1.0]])
    tree = x * y + ne.square(x)
    ad = Autodiff(tree, ne)
    gradients = ad.get_grad_asnumpyarray([x, y, z])
    assert [g.tolist() for g in gradients] == [[[5, 7]], [[3]], [[0]]]
    error = ne.array([[1.0, 10.0]])
    buffer = ne.empty((1, 1))
    Autodiff(tree, ne, next_error=error).back_prop_grad([y, x], [buffer, error])
    assert error.get().tolist() == [[5, 70]] and buffer.get().tolist() == [[21]]
    ad.cleanup()
    with pytest.raises(OptreeError):
        ad.get_grad_tensor([x])
    assert Autodiff(tree, ne).get_grad_tensor([x])[0].get().tolist() == [[5, 7]]
    with pytest.raises(AssertionError):
        Autodiff(tree, ne, next_error=ne.ones((2, 2)))
    assert all(t.shape == (1, 2) and t.pp() for t in Autodiff(tree, ne).get_grad_op_tree([x]))


def test_ties_get_the_whole_gradient(ne: Any) -> None:
    x, y = ne.array([[1.0, 2.0]]), ne.array([[1.0, 1.0]])
    assert [g.tolist() for g in Autodiff(ne.maximum(x, y), ne).get_grad_asnumpyarray([x, y])] == [[[1, 1]], [[1, 0]]]
    assert Autodiff(ne.max(y), ne).get_grad_asnumpyarray([y])[0].tolist() == [[1, 1]]
