"""bfloat16 tensors: what they are made of and give, on each kind of backend; `test_halves.py` has their values."""

from __future__ import annotations

import pickle
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy
from harness.compiling import needs_compiler
from harness.homes import home

import optree
from backends import gen_backend
from optree import constant, function, grad, settings
from optree.dtypes import bfloat16, rounded
from optree.errors import DTypeError
from optree.op.traits import ElementwiseOperator, UnaryOperator
from optree.ops import philox
from optree.tree.types import DTYPES, TensorType, promote

B = bfloat16()


@pytest.fixture
def be(home_kind: str) -> Any:
    return home(home_kind)


def near(values: Any) -> np.ndarray:
    """Values as bfloat16."""
    return rounded(np.asarray(values, np.float64), B)


# The dtype


def test_without_ml_dtypes_the_error_says_what_to_install(be: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    bfloat16.cache_clear()
    try:
        with pytest.raises(DTypeError, match=r"pip install ml_dtypes"):
            be.array([1.0], dtype="bfloat16")
    finally:
        monkeypatch.undo()
    assert be.array([1.0], dtype="bfloat16").dtype == B


def test_names_of_the_dtype(be: Any) -> None:
    for dtype in ("bfloat16", B, B.type):
        assert be.zeros(3, dtype).dtype == B
    assert TensorType("bfloat16", (2,)) is TensorType(B, (2,))
    assert str(TensorType("bfloat16", (2,))) == "(2,) bfloat16"
    assert pickle.loads(pickle.dumps(TensorType(B, (2,)))) is TensorType(B, (2,))
    assert be.array([1.5], "bfloat16").nbytes == 2
    with pytest.raises(DTypeError, match="bfloat16"):
        be.zeros(3, "longdouble")


def test_promotion_is_that_of_float16_and_beside_float16_float32() -> None:
    for other in DTYPES:
        wanted = np.result_type(np.float16, other)
        wanted = np.dtype("float32") if other == np.float16 else B if wanted == np.float16 else wanted
        assert promote(B, other) == promote(other, B) == wanted, other
    assert promote(B) == promote(B, B) == promote(B, int) == promote(B, float) == promote(B, np.dtype(bool)) == B
    assert promote(B, np.dtype("int8")) == B and promote(B, np.dtype("int16")) == np.float32
    assert promote(B, np.dtype("float16"), np.dtype("float64")) == np.float64


def test_operators_promote(be: Any) -> None:
    real = [dtype for dtype in DTYPES if dtype.kind != "c"]
    x, ones = be.ones((2, 3), "bfloat16"), {dtype: be.ones(3, dtype) for dtype in real}
    for dtype, (left, right) in product(real, ((0, 1), (1, 0))):
        pair = x, ones[dtype]
        tree = pair[left] * pair[right]
        assert tree.dtype == tree.asnumpyarray().dtype == promote(B, dtype)
    for tree in (x + 1, 1.5 - x, x * True, x / 3, x**2, -x, be.sqrt(x), be.where(x > 0, x, 0.5), be.maximum(x, 2)):
        assert tree.dtype == tree.asnumpyarray().dtype == B
    assert (x > 0.5).dtype == np.bool_ and be.argmax(x).dtype == np.int64
    assert (x + np.float32(1)).dtype == np.float32  # a NumPy scalar is not weak


# Into tensors, and out


def test_values_go_in_rounded_once_and_come_out(be: Any) -> None:
    middle = 1 + 2.0**-8
    x = be.array([middle + 2.0**-40, middle, 3.4e38, 1e39, -0.0, np.nan], "bfloat16", "x")
    assert x.get().dtype == B
    np.testing.assert_array_equal(x.get().astype(float), [1 + 2.0**-7, 1.0, np.inf, np.inf, -0.0, np.nan])
    for write in (lambda: x.fill(middle + 2.0**-40), lambda: x.set(np.full(6, middle + 2.0**-40))):
        x[...] = 0
        write()
        assert set(x.get().tolist()) == {1 + 2.0**-7}
    x[1:3] = be.array([0.1, 0.2], "float64")
    assert x.get()[1:3].tolist() == near([0.1, 0.2]).tolist()
    assert "bfloat16" in repr(x)
    assert pickle.loads(pickle.dumps(x.get())).dtype == B
    taken = be.array(x.get(), "bfloat16")
    assert taken.get().view(np.uint16).tolist() == x.get().view(np.uint16).tolist()
    assert be.array(x.get()).dtype == be.datatype  # as all floating arrays
    assert float(x[1].item()) == float(near(0.1))


def test_constants_and_inputs(be: Any) -> None:
    x = be.ones(3, "bfloat16")
    assert (x + constant(near([1, 2, 3]))).dtype == B
    argument = TensorType("bfloat16", (None,))("argument")
    double = function([argument], argument * 2 + x)
    for _ in range(3):
        assert double(near([1, 2, 3.5]))[...].asnumpyarray().tolist() == [3.0, 5.0, 8.0]
    with pytest.raises(DTypeError):
        double(np.ones(3, np.float16))


def test_in_place(be: Any) -> None:
    x = be.array([1.0, 2.0], "bfloat16")
    x += be.ones(2, "float32") * 0.25
    x *= 2
    assert x.get().tolist() == [2.5, 4.5]
    with pytest.raises(optree.errors.OptreeError, match="int32 in place"):
        be.zeros(2, "int32").__iadd__(x)


def test_numpy_does_not_export_it() -> None:
    x = gen_backend("cpu").ones(3, "bfloat16", "x")
    with pytest.raises(BufferError, match="x is bfloat16.*float32"):
        np.from_dlpack(x)


def test_the_array_interface_of_cuda_does_not_lie() -> None:
    be = home("stand-in")
    x = be.array([1.0, 2.5], "bfloat16")
    assert not hasattr(x, "__cuda_array_interface__") and hasattr(be.ones(3), "__cuda_array_interface__")
    assert be.array(x, "bfloat16").get().tolist() == be.array(x).get().tolist() == [1.0, 2.5]
    assert be.adopt(x.raw()).dtype == B


# What is computed


def test_sums_and_products_accumulate_in_float32(be: Any) -> None:
    x = be.ones((3, 4096), "bfloat16")
    for tree in (be.dot(x, x.T), be.sum(x, axis=1), be.matmul(be.ones((2, 3, 4096), "bfloat16"), x.T)):
        assert tree.dtype == B and set(tree.asnumpyarray().ravel().tolist()) == {4096.0}
    assert be.mean(be.full(70_000, 3, "bfloat16")).asnumpyarray().item() == 3
    assert be.norm(be.full(16, 300, "bfloat16")).asnumpyarray().item() == 1200


def test_a_product_is_rounded_once(be: Any) -> None:
    x, y = (near(np.random.RandomState(i).randn(33, 70)) for i in range(2))
    exact = x.astype(np.float64) @ y.astype(np.float64).T
    z = be.zeros((33, 33), "bfloat16")
    z[:] = be.dot(be.array(x, B), be.array(y, B).T)
    unit = 2.0 ** (np.floor(np.log2(np.abs(exact))) - 7)
    assert (np.abs(z.get().astype(np.float64) - exact) <= 0.5001 * unit + 1e-5).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nextafter_is_the_neighbour_in_16_bits(be: Any, dtype: str) -> None:
    """It is no float32, which would round back to x."""
    numbers = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    numbers = numbers[numbers.view(np.uint16) << 1 <= near([np.inf]).astype(dtype).view(np.uint16) << 1]  # no nans
    ranks = np.where(np.signbit(numbers), -(numbers.view(np.int16) & 0x7FFF), numbers.view(np.int16))
    x = be.array(numbers, dtype)
    for goal, way in ((np.inf, 1), (-np.inf, -1)):
        found = (np.nextafter(x, goal) * 1).asnumpyarray()  # fused, where there are kernels
        assert found.dtype == dtype
        after = np.where(np.signbit(found), -(found.view(np.int16) & 0x7FFF), found.view(np.int16))
        np.testing.assert_array_equal(after[numbers != goal], ranks[numbers != goal] + way)
        assert set(found[numbers == goal].tolist()) == {goal}
    ones = be.nextafter(be.ones(3, dtype), be.array([1.0, 9.0, np.nan], "float64" if dtype == "float16" else dtype))
    assert ones.dtype == ("float64" if dtype == "float16" else dtype)
    assert ones.asnumpyarray()[0] == 1 < ones.asnumpyarray()[1] and np.isnan(float(ones.asnumpyarray()[2]))
    assert np.nextafter(be.ones(1, dtype), be.full(1, 3, "int8")).dtype == dtype


def test_gradients_keep_the_dtype(be: Any) -> None:
    x, w = be.array(np.random.RandomState(0).randn(5, 4), B), be.array(np.random.RandomState(1).randn(4, 3), B)
    cost = be.mean(be.logsumexp(be.dot(be.tanh(x), w), axis=1))
    wide = [be.array(t.get().astype(np.float64), "float64") for t in (x, w)]
    exact = grad(be.mean(be.logsumexp(be.dot(be.tanh(wide[0]), wide[1]), axis=1)), wide)
    for ours, wanted in zip(grad(cost, [x, w]), exact, strict=True):
        assert ours.dtype == ours.asnumpyarray().dtype == B
        np.testing.assert_allclose(ours.asnumpyarray().astype(float), wanted.asnumpyarray(), rtol=0.06, atol=2e-3)


def test_a_backend_of_bfloat16(home_kind: str) -> None:
    be = home(home_kind, datatype="bfloat16", rng_seed=0)
    x, w = be.array(np.random.RandomState(0).randn(64, 3)), be.zeros((3, 1))
    assert x.dtype == be.arange(3).dtype == be.rand(3).dtype == B
    truth = x.get().astype(np.float64) @ [[1.0], [-2.0], [0.5]]
    error = be.mean(be.square(be.dot(x, w) - be.array(truth)))
    step = function([], [error], updates={w: w - 0.1 * grad(error, w)})
    losses = [step()[0].get().item() for _ in range(60)]
    assert losses[-1] < 1e-2 * losses[0]


def test_ops_of_ones_own(be: Any) -> None:
    seen = []

    class Twice(UnaryOperator, ElementwiseOperator):
        """2 x, by a value that is written for NumPy's dtypes."""

        def numpy(self, *arrays: Any) -> Any:
            seen.append(arrays[0].dtype)
            return arrays[0] + arrays[0]

        def grad(self, inputs: Any, output_gradients: Any) -> Any:
            return [output_gradients[0] * 2]

    x = be.array([1.0, 2.5], "bfloat16")
    tree = Twice()(x)
    assert tree.dtype == B and tree.asnumpyarray().tolist() == [2.0, 5.0]
    assert seen == [np.float32]


# Random numbers


def test_uniform_numbers_are_the_upper_bits_of_the_words(be: Any) -> None:
    be.rng_reset()
    fine = be.rand((200, 100), np.float32).asnumpyarray()
    be.rng_reset()
    coarse = be.rand((200, 100), "bfloat16").asnumpyarray()
    np.testing.assert_array_equal(coarse.astype(np.float32), np.floor(fine * 256) / 256)
    assert len(np.unique(coarse.view(np.uint16))) == 256
    assert philox.count_blocks(9, B) == 3


def test_normal_numbers_are_rounded(be: Any) -> None:
    be.rng_reset()
    fine = be.standard_normal((99,), np.float32).asnumpyarray()
    be.rng_reset()
    np.testing.assert_array_equal(be.standard_normal((99,), "bfloat16").asnumpyarray(), near(fine))


def test_dropout_and_stochastic_rounding(be: Any) -> None:
    x = be.ones((200, 500), "bfloat16")
    mask = (x * be.dropout_mask(x, 0.7)).asnumpyarray()
    assert mask.dtype == B and scipy.stats.binomtest(int((mask > 0).sum()), mask.size, 0.7).pvalue > 1e-3
    value = 1 + 2.0**-7 * 0.3
    cast = be.stochastic_cast(be.full((40_000,), value, "float64"), "bfloat16").asnumpyarray().astype(float)
    assert set(cast) == {1.0, 1 + 2.0**-7} and abs(cast.mean() - value) < 1e-4
    by_chance = gen_backend("cpu", rng_seed=0, stochastic_round=True)
    small = by_chance.ones(10_000, "bfloat16")
    small[:] = by_chance.full(10_000, value)
    assert abs(small.get().astype(float).mean() - value) < 2e-4


@needs_compiler
@pytest.mark.usefixtures("folder")
def test_the_compiled_and_the_interpreted_are_the_same_bits_where_each_op_rounds() -> None:
    found = []
    for jit in (True, False):
        be = gen_backend("cpu", rng_seed=3, jit=jit)
        x = be.array(np.random.RandomState(0).randn(40, 30), B)
        trees = (be.exp(x) * 0.1 + x / 3, be.softmax(x, axis=1), x * be.rand(x), be.sum(x, axis=0))
        with settings.override(rounding="each"):
            found.append([tree.asnumpyarray().view(np.uint16) for tree in trees])
    for exact, (ours, numpys) in zip((False, False, True, True), zip(*found, strict=True), strict=True):
        assert (np.abs(ours.astype(int) - numpys.astype(int)) <= (0 if exact else 1)).all()
