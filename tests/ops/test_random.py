"""Random trees: their distributions, and the state that makes them repeat."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy

from backends import gen_backend
from backends.random import RandomMethods
from optree import grad
from optree.errors import BackendError, DTypeError, OperandError, OptreeError, ShapeError
from optree.ops.random import RandomOperator, round_by_chance
from optree.registry import OPS, f
from optree.tree.node import OpTreeNode
from optree.tree.types import TensorType
from optree.tree.variable import Input

ROOT = Path(__file__).resolve().parent.parent.parent
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]
BITS = dict(zip(FLOATS, (11, 24, 53), strict=True))


@pytest.fixture
def be() -> Any:
    return gen_backend("cpu", rng_seed=7)


def counter(be: Any) -> int:
    return int(be.rng_state.get()[1])


# The distributions


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rand_is_uniform(be: Any, dtype: np.dtype) -> None:
    numbers = be.rand((200, 1000), dtype).asnumpyarray()
    assert numbers.dtype == dtype and numbers.shape == (200, 1000)
    assert numbers.min() >= 0 and numbers.max() < 1
    scaled = numbers.astype(np.float64) * 2.0 ** BITS[dtype]
    np.testing.assert_array_equal(scaled, np.floor(scaled))
    # Multiples of 2**-11 lie half a step low on average.
    centred = numbers.astype(np.float64).ravel() + 0.5 ** (BITS[dtype] + 1)
    assert scipy.stats.kstest(centred, "uniform").pvalue > (0.01 if dtype != np.float16 else 1e-3)
    assert abs(centred.mean() - 0.5) < 4 * np.sqrt(1 / 12 / centred.size)
    assert abs(centred.var() - 1 / 12) < 4 * np.sqrt(1 / 180 / centred.size)
    assert abs(np.corrcoef(centred[:-1], centred[1:])[0, 1]) < 4 / np.sqrt(centred.size)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_float16_of_the_grid_is_drawn(be: Any, dtype: np.dtype) -> None:
    places = np.floor(be.rand(100_000, dtype).asnumpyarray().astype(np.float64) * 2048).astype(int)
    counts = np.bincount(places, minlength=2048)
    assert counts.shape == (2048,) and counts.min() > 0
    assert scipy.stats.chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normal_is_normal(be: Any, dtype: np.dtype) -> None:
    numbers = be.normal(size=(200, 1000), dtype=dtype).asnumpyarray()
    assert numbers.dtype == dtype and numbers.shape == (200, 1000)
    z = numbers.astype(np.float64).ravel()
    assert np.isfinite(z).all()
    assert scipy.stats.kstest(z, "norm").pvalue > 0.01
    n = z.size
    assert abs(z.mean()) < 4 / np.sqrt(n) and abs(z.var() - 1) < 4 * np.sqrt(2 / n)
    assert abs(scipy.stats.skew(z)) < 4 * np.sqrt(6 / n) and abs(scipy.stats.kurtosis(z)) < 4 * np.sqrt(24 / n)
    assert abs(np.corrcoef(z[0::2], z[1::2])[0, 1]) < 4 / np.sqrt(n / 2)
    assert abs(np.corrcoef(z[0::2] ** 2, z[1::2] ** 2)[0, 1]) < 4 / np.sqrt(n / 2)


def test_parameters_scale_and_move(be: Any) -> None:
    z = be.normal(size=1000)
    zs, moved = z.asnumpyarray(), be.normal(3.0, 2, 1000)
    be.rng_reset()
    np.testing.assert_allclose(moved.asnumpyarray(), zs * np.float32(2) + 3, rtol=1e-6)
    be.rng_reset()
    us, wide = be.rand(1000).asnumpyarray(), be.uniform(-1, 3, 1000)
    be.rng_reset()
    np.testing.assert_allclose(wide.asnumpyarray(), us * np.float32(4) - 1, atol=1e-6)
    assert be.normal(5.0, 0.0, 4).asnumpyarray().tolist() == [5.0] * 4


def test_parameters_may_be_operands(be: Any) -> None:
    loc = be.array([[0.0], [100.0]])
    scale = be.array([1.0, 2.0, 0.0])
    numbers = be.normal(loc, scale).asnumpyarray()
    assert numbers.shape == (2, 3) and numbers.dtype == np.float32
    assert numbers[0, 2] == 0 and numbers[1, 2] == 100
    assert len(np.unique(numbers)) == 6
    assert be.normal(loc, 1.0).shape == (2, 1) and be.normal(0.0, scale, (5, 3)).shape == (5, 3)
    assert be.uniform(np.array([0.0, 10.0]), 20, (4, 2)).dtype == np.float64
    assert be.uniform(0, be.array(np.arange(1, 4)), dtype=np.float16).dtype == np.float16
    assert be.normal(be.array(np.arange(3))).dtype == np.float32
    with pytest.raises(ShapeError, match=r"normal.*shape"):
        be.normal(loc, 1.0, (1, 3))


def test_derivatives_reach_the_parameters_and_not_the_numbers(be: Any) -> None:
    loc, scale = be.zeros(4), be.ones(4)
    drawn = be.normal(loc, scale)
    by_loc, by_scale = grad(be.sum(drawn, axis=None, keepdims=False), [loc, scale])
    assert by_loc.asnumpyarray().tolist() == [1.0] * 4
    be.rng_reset()
    z = drawn.asnumpyarray()
    be.rng_reset()
    np.testing.assert_array_equal(by_scale.asnumpyarray(), z)


# Dropout and binary values


@pytest.mark.parametrize("keep", [0.05, 0.5, 0.8, 1.0, 1])
def test_dropout_keeps_its_part_and_the_expected_value(be: Any, keep: float) -> None:
    mask = be.dropout_mask((100, 1000), keep).asnumpyarray()
    assert mask.dtype == np.float32
    assert set(np.unique(mask)) <= {0, np.float32(1 / keep)}
    sigma = np.sqrt(keep * (1 - keep) / mask.size)
    assert abs((mask > 0).mean() - keep) <= 4 * sigma
    x = be.ones((3, 4), dtype=np.float16)
    assert be.dropout_mask(x, keep).dtype == np.float16 and be.dropout_mask(x, keep).shape == (3, 4)
    assert be.dropout_mask(4, keep, np.float64).dtype == np.float64


def test_dropout_in_a_tree_is_one_draw_forward_and_backward(be: Any) -> None:
    x = be.array(np.arange(1.0, 65.0))
    dropped = x * be.dropout_mask(x, 0.5)
    both = be.concatenate([dropped, grad(be.sum(dropped, axis=None), x)], axis=0)
    values, slopes = np.split(both.asnumpyarray(), 2)
    np.testing.assert_array_equal(values, slopes * np.arange(1, 65))
    assert set(slopes) == {0.0, 2.0} and counter(be) == 16


def test_dropout_by_an_operand(be: Any) -> None:
    keep = be.array([1.0, 0.25])
    mask = be.dropout_mask((1000, 2), keep).asnumpyarray()
    assert set(mask[:, 0]) == {1.0} and set(mask[:, 1]) == {0.0, 4.0}


def test_a_mask_of_an_input_has_its_size(be: Any) -> None:
    x = Input(TensorType("float32", (None, 3)), "x")
    mask = be.dropout_mask(x)
    assert mask.shape == (None, 3) and mask.dtype == np.float32 and mask.backend is be


def test_make_binary_mask_fills_at_once(be: Any) -> None:
    for dtype in (np.float32, np.int8, np.bool_, np.float16):
        mask = be.empty((100, 100), dtype=dtype)
        assert be.make_binary_mask(mask, 0.3) is mask
        assert set(np.unique(mask.get())) == {0, 1}
        assert abs(mask.get().mean(dtype=np.float64) - 0.3) < 0.02
    assert counter(be) == 4 * 2500


def test_binarize(be: Any) -> None:
    x = be.array(np.repeat([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0], 4000).reshape(7, 4000))
    ones = be.binarize(x).asnumpyarray()
    assert ones.dtype == np.float32 and set(np.unique(ones)) == {-1, 1}
    np.testing.assert_allclose((ones > 0).mean(axis=1), [0, 0, 0.25, 0.5, 0.75, 1, 1], atol=0.04)
    assert set(ones[0]) == set(ones[1]) == {-1} and set(ones[5]) == set(ones[6]) == {1}
    signs = be.array([-2.0, -1e-30, -0.0, 0.0, 1e-30, 2.0, np.inf, -np.inf, np.nan])
    assert be.binarize(signs, stochastic=False).asnumpyarray().tolist() == [-1, -1, 1, 1, 1, 1, 1, -1, -1]
    assert be.binarize(be.array(np.array([-3, 0, 3])), stochastic=False).dtype == np.float32
    out = be.empty((7, 4000))
    assert be.binarize(x, out) is out and set(np.unique(out.get())) == {-1, 1}
    assert be.binarize(x.astype(np.float16)).dtype == np.float16
    assert be.binarize(np.array([5.0, -5.0])).asnumpyarray().tolist() == [1, -1]


def test_binarize_has_the_derivative_of_a_step(be: Any) -> None:
    x = be.array([-0.5, 0.5])
    assert grad(be.sum(be.binarize(x) * 3, axis=None), x).asnumpyarray().tolist() == [0.0, 0.0]


# Stochastic rounding


def test_stochastic_cast_rounds_to_a_neighbour_and_right_on_average(be: Any) -> None:
    exact = np.array([1 + 2**-12, 1 + 2**-10 * 0.9, -3.3, 1000.1, 2.0**-24 * 0.3, 65519.0, 0.1])
    x = be.array(np.repeat(exact[:, None], 40_000, axis=1), np.float64)
    got = be.stochastic_cast(x).asnumpyarray()
    assert got.dtype == np.float16
    for value, row in zip(exact, got, strict=True):
        near = np.float16(value)
        with np.errstate(over="ignore"):
            allowed = {near, np.nextafter(near, np.float16(np.inf)), np.nextafter(near, np.float16(-np.inf))}
        assert set(row) < allowed and len(set(row)) == 2
        if np.isfinite(row).all():
            low, high = float(row.min()), float(row.max())
            wanted = (value - low) / (high - low)
            assert abs((row == row.max()).mean() - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / row.size)
    assert abs(np.isinf(got[5]).mean() - 15 / 32) < 0.01


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_stochastic_cast_keeps_what_is_exact(be: Any, dtype: np.dtype) -> None:
    values = np.arange(65536, dtype=np.uint16).view(np.float16)
    got = be.stochastic_cast(be.array(values, np.float16), dtype).asnumpyarray()
    np.testing.assert_array_equal(got, values.astype(dtype))
    np.testing.assert_array_equal(np.signbit(got), np.signbit(values))
    wide = np.array([1e300, -1e300, 65536.0, 3.5e38])
    infinite = be.stochastic_cast(be.array(wide, np.float64), dtype).asnumpyarray()
    with np.errstate(over="ignore"):
        assert infinite[:2].tolist() == wide[:2].astype(dtype).tolist()


def test_stochastic_cast_of_double_to_single(be: Any) -> None:
    x = np.full(100_000, 1 + 2**-25)
    got = be.stochastic_cast(be.array(x, np.float64), np.float32).asnumpyarray()
    assert set(got) == {np.float32(1), np.nextafter(np.float32(1), np.float32(2))}
    assert abs((got > 1).mean() - 0.25) < 0.01
    assert round_by_chance(np.array(0.1), np.array(0.0), np.dtype("float32")).shape == ()


def test_stochastic_cast_to_fewer_bits(be: Any) -> None:
    exact = np.array([1.1, -2.9, 1000.1, 0.0, np.inf, -1e-40, 3.0])
    got = be.stochastic_cast(be.array(np.repeat(exact[:, None], 20_000, axis=1), np.float64), np.float32, bits=2)
    rows = got.asnumpyarray()
    neighbours = [{1.0, 1.25}, {-3.0, -2.5}, {896.0, 1024.0}, {0.0}, {np.inf}, None, {3.0}]
    for value, row, wanted in zip(exact, rows, neighbours, strict=True):
        assert wanted is None or set(row.tolist()) == wanted
        if np.isfinite(value):
            assert abs(row.mean(dtype=float) - value) < 6 * row.std(dtype=float) / 141 + 1e-44
    for wrong in (0, True, 24, 1.5):
        with pytest.raises(OperandError, match="bits are from 1 to the 23 of float32"):
            be.stochastic_cast(be.ones(2), np.float32, bits=wrong)


def test_stochastic_cast_differentiates_as_a_cast(be: Any) -> None:
    x = be.array([0.1, 0.2])
    slope = grad(be.sum(be.stochastic_cast(x).astype(np.float32) * 3, axis=None), x)
    assert slope.dtype == np.float32 and slope.asnumpyarray().tolist() == [3.0, 3.0]


# The state


def draws(be: Any) -> list[np.ndarray]:
    trees = [be.rand((3, 5)), be.normal(1, 2, 7), be.dropout_mask(9), be.binarize(be.zeros(6)), be.rand(3, np.float64)]
    return [*(tree.asnumpyarray() for tree in trees), be.rng.rand(4)]


def same(one: list[np.ndarray], two: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_the_same_seed_gives_the_same_numbers(be: Any) -> None:
    first = draws(be)
    assert same(first, draws(gen_backend("cpu", rng_seed=7)))
    assert not same(first, draws(gen_backend("cpu", rng_seed=8)))
    assert not same(first, draws(be))
    be.rng_reset()
    assert same(first, draws(be))
    rng = be.gen_rng(np.int64(7))
    assert rng is be.rng
    assert same(first, draws(be))
    np.testing.assert_array_equal(be.gen_rng(7).rand(3), np.random.RandomState(7).rand(3))


def test_no_seed_is_fresh_entropy() -> None:
    one, two = gen_backend("cpu"), gen_backend("cpu")
    first = draws(one)
    assert not any(np.array_equal(a, b) for a, b in zip(first[:2], draws(two)[:2], strict=True))
    one.rng_reset()
    assert same(first, draws(one))
    one.gen_rng()
    assert not same(first, draws(one))


def test_other_processes_draw_the_same_numbers(be: Any) -> None:
    program = (
        "from backends import gen_backend; be = gen_backend('cpu', rng_seed=7); "
        "print(be.rand(5).asnumpyarray().tolist(), be.normal(size=3).asnumpyarray().tolist(), be.rng.rand())"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    mine = f"{be.rand(5).asnumpyarray().tolist()} {be.normal(size=3).asnumpyarray().tolist()} {be.rng.rand()}"
    assert run.stdout.strip() == mine


def test_draws_stay_the_same_from_version_to_version(be: Any) -> None:
    assert be.rand(3).asnumpyarray().tolist() == [0.9545971155166626, 0.7501521706581116, 0.11417734622955322]
    assert be.rand(2, np.float64).asnumpyarray().tolist() == [0.7952840373401903, 0.9578541904156558]
    np.testing.assert_allclose(be.normal(size=2).asnumpyarray(), [3.1903507709503174, 0.16960695385932922], rtol=1e-6)


def test_a_state_is_saved_and_restored(be: Any) -> None:
    draws(be)
    state = be.rng_get_state()
    kept, wanted = pickle.dumps(state), draws(be)
    be.rng_set_state(state)
    assert same(wanted, draws(be))
    other = gen_backend("cpu")
    other.rng_set_state(pickle.loads(kept))
    assert same(wanted, draws(other))
    name, *rest = state["rng"]
    other.rng_set_state({"rng": [name, rest[0].tolist(), *rest[1:]], "rng_state": state["rng_state"].tolist()})
    assert same(wanted, draws(other))


@pytest.mark.parametrize(
    "change",
    [
        lambda state: None,
        lambda state: state["rng"],
        lambda state: {"rng": state["rng"]},
        lambda state: {**state, "rng_state": [1, 2, 3]},
        lambda state: {**state, "rng_state": [1, -2]},
        lambda state: {**state, "rng_state": [1.0, 2.0]},
        lambda state: {**state, "rng_state": "begin"},
        lambda state: {**state, "rng_state": [1, 2**64]},
        lambda state: {**state, "rng": ("MT19937", [1, 2])},
        lambda state: {**state, "rng": ("PCG64", *state["rng"][1:])},
        lambda state: {**state, "rng": 3},
        lambda state: {**state, "rng": ()},
    ],
)
def test_a_wrong_state_is_refused_and_changes_nothing(be: Any, change: Any) -> None:
    wanted = draws(be)
    be.rng_reset()
    with pytest.raises(OperandError, match="rng_set_state"):
        be.rng_set_state(change(copy.deepcopy(be.rng_get_state())))
    assert same(wanted, draws(be))


def test_a_kept_tree_draws_afresh_and_follows_its_backend(be: Any) -> None:
    tree = be.rand(10)
    first, second = tree.asnumpyarray(), tree.asnumpyarray()
    assert not np.intersect1d(first, second).size
    be.gen_rng(7)
    np.testing.assert_array_equal(tree.asnumpyarray(), first)
    be.rng_reset()
    np.testing.assert_array_equal(tree.asnumpyarray(), first)


def test_draws_of_one_tree_differ_and_come_in_post_order(be: Any) -> None:
    one, two = be.rand(6), be.rand(6)
    difference = (one - two).asnumpyarray()
    assert counter(be) == 4
    be.rng_reset()
    np.testing.assert_array_equal(difference, one.asnumpyarray() - two.asnumpyarray())
    be.rng_reset()
    nested = (two * 2 + (one - two)).asnumpyarray()
    be.rng_reset()
    second, first = two.asnumpyarray(), one.asnumpyarray()
    np.testing.assert_allclose(nested, second * 2 + (first - second))


def test_a_shared_draw_is_drawn_once(be: Any) -> None:
    one = be.rand(6)
    assert (one - one).asnumpyarray().tolist() == [0.0] * 6
    assert counter(be) == 2
    target = be.empty(6)
    target[:] = be.sqrt(one) * be.sqrt(one) / one
    np.testing.assert_allclose(target.get(), 1, rtol=1e-6)
    assert counter(be) == 4


def test_fusing_differently_changes_no_number(be: Any) -> None:
    x = be.ones((8, 8))
    together = (x + be.rand((8, 8)) * 2 + be.normal(size=(8, 8))).asnumpyarray()
    be.rng_reset()
    a, b = be.empty((8, 8)), be.empty((8, 8))
    a[:] = be.rand((8, 8))
    b[:] = be.normal(size=(8, 8))
    np.testing.assert_array_equal(together, (x + a * 2 + b).asnumpyarray())


def test_views_and_tensors_take_draws(be: Any) -> None:
    x = be.zeros((4, 6))
    x[1:3, ::2] = be.rand((2, 3))
    assert (x.get() > 0).sum() == 6
    x += be.rand((4, 6))
    assert (x.get() > 0).all()
    assert be.rand(out=x) is x and be.fill_normal(x, 10.0, 0.1) is x
    assert abs(x.get() - 10).max() < 1
    assert be.normal(0.0, 1.0, out=x) is x and be.uniform(2, 3, out=x) is x and x.get().min() >= 2


def test_another_size_or_rate_compiles_nothing(be: Any) -> None:
    def run(n: int, keep: float) -> None:
        x = be.ones((n, 3))
        x *= be.dropout_mask(x, keep)
        x[:] = be.normal(0.0, keep, (n, 3)) + be.rand((n, 3))

    run(5, 0.5)
    compiles = be.compiles
    run(9, 0.6)
    assert be.compiles == compiles


# Shapes, dtypes and what is refused


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1), (2, 3, 4, 5), 7, np.int64(3)])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_shapes(be: Any, shape: Any, dtype: np.dtype) -> None:
    sizes = shape if isinstance(shape, tuple) else (int(shape),)
    for tree in (be.rand(shape, dtype), be.normal(0, 2, shape, dtype), be.dropout_mask(shape, 0.5, dtype)):
        value = tree.asnumpyarray()
        assert tree.shape == value.shape == sizes and tree.dtype == value.dtype == dtype
    for tree in (be.binarize(be.zeros(shape, dtype)), be.stochastic_cast(be.ones(shape), dtype)):
        value = tree.asnumpyarray()
        assert tree.shape == value.shape == sizes and tree.dtype == value.dtype == dtype


def test_an_empty_draw_takes_nothing(be: Any) -> None:
    be.rand((0, 3)).asnumpyarray()
    assert counter(be) == 0


def test_a_shape_takes_no_memory_and_an_operand_stands_for_it(be: Any) -> None:
    tree = be.rand((1000, 1000))
    assert not any(tree.inputs[1].array.strides)
    assert be.rand(be.zeros((2, 3), np.float64)).type is TensorType("float64", (2, 3))
    assert be.rand(be.zeros((2, 3), np.int8)).type is TensorType("float32", (2, 3))
    assert be.normal(size=be.zeros((2, 3)) + 1).shape == (2, 3)
    assert (
        str(be.rand((2, 3))) == "({'shape': (2, 3), 'op': 'rand', 'dtype': dtype('float32')}, rng_state, shape(2, 3))"
    )
    assert gen_backend("cpu", datatype=np.float64).rand(2).dtype == np.float64


def test_neon_mode_has_two_dimensions() -> None:
    neon = gen_backend("cpu", compat_mode="neon", rng_seed=1)
    assert neon.rand(3).shape == (3, 1) and neon.normal(size=()).asnumpyarray().shape == (1, 1)
    x = neon.zeros((2, 3))
    assert neon.make_binary_mask(x, keepthresh=1.0).get().tolist() == [[1.0] * 3] * 2


def test_ops_that_draw_say_so(be: Any) -> None:
    drawing = {name for name, op in OPS.items() if issubclass(op, RandomOperator)}
    assert drawing == {"rand", "standard_gamma", "standard_normal", "stochastic_cast", "take_blocks"}
    for name in drawing - {"take_blocks"}:  # which is a part of others
        assert OPS[name].destroy_map and hasattr(RandomMethods, name)
    like = be.ones((2, 2), dtype=np.float64)
    assert OpTreeNode.build("rand", be.rng_state, like).dtype == np.float64
    tree = be.rand((2, 2)) + 1
    rebuilt = OpTreeNode.from_stack(tree.traverse())
    value = rebuilt.asnumpyarray()
    be.rng_reset()
    np.testing.assert_array_equal(tree.asnumpyarray(), value)


@pytest.mark.parametrize(
    "call, kind, message",
    [
        (lambda be: be.normal(0, -1.0, 3), ValueError, "standard deviation.*-1"),
        (lambda be: be.normal(np.nan, 1.0, 3), ValueError, "loc is finite"),
        (lambda be: be.normal(0, np.inf, 3), ValueError, "scale is finite"),
        (lambda be: be.normal("a", 1.0, 3), TypeError, "loc is a number"),
        (lambda be: be.normal([1.0, 2.0]), TypeError, "loc is a number"),
        (lambda be: be.uniform(2, 1, 3), ValueError, "low 2.0 is above high 1.0"),
        (lambda be: be.dropout_mask(3, 0), ValueError, "keep is a probability"),
        (lambda be: be.dropout_mask(3, 1.5), ValueError, "keep is a probability"),
        (lambda be: be.make_binary_mask(be.zeros(3), -0.1), ValueError, "keepthresh is a probability"),
        (lambda be: be.rand(), OperandError, "needs a shape"),
        (lambda be: be.normal(), OperandError, "needs a shape"),
        (lambda be: be.rand((2, -1)), OperandError, "shape"),
        (lambda be: be.rand(3, np.int32), DTypeError, "rand: random numbers are float16"),
        (lambda be: be.normal(size=3, dtype="complex64"), DTypeError, "complex64"),
        (lambda be: be.stochastic_cast(be.ones(3), np.int8), DTypeError, "stochastic_cast"),
        (
            lambda be: f.rand(be.ones(2), be.ones(3)),
            OperandError,
            "rand: the first operand is a backend's be.rng_state",
        ),
        (lambda be: f.rand(be.rng_state, gen_backend("cpu").ones(3)), BackendError, "rand"),
        (lambda be: be.rand(3, out=be.zeros(4)), ShapeError, "4"),
        (lambda be: be.rand(3, out=np.zeros(3)), OperandError, "written into a tensor"),
        (lambda be: be.make_binary_mask((3, 3)), OperandError, "written into a tensor"),
        (lambda be: be.gen_rng(-1), ValueError, "a seed is from 0"),
        (lambda be: be.gen_rng(2**32), ValueError, "a seed is from 0"),
        (lambda be: be.gen_rng(1.5), TypeError, "a seed is an integer"),
        (lambda be: gen_backend("cpu", rng_seed="7"), TypeError, "a seed is an integer"),
    ],
)
def test_what_cannot_be_drawn_is_refused(be: Any, call: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        call(be)
    assert isinstance(caught.value, OptreeError)
    assert counter(be) == 0


def test_stochastic_round_keeps_small_steps_that_float16_would_lose():
    step = 1e-4  # a tenth of the distance between float16 numbers at 1
    means = {}
    for stochastic in (False, True):
        be = gen_backend("cpu", rng_seed=0, stochastic_round=stochastic)
        x = be.ones(10_000, dtype=np.float16)
        for _ in range(100):
            x[:] = be.cast(x, np.float32) + step
        means[stochastic] = x.get().astype(np.float64).mean()
    assert means[False] == 1.0
    assert means[True] == pytest.approx(1.01, abs=2e-4)


def test_blocks_are_taken_past_what_is_drawn(be: Any) -> None:
    begin = f.take_blocks(be.rng_state, be.zeros((5, 3)), dtype=np.dtype("float32")).asnumpyarray()
    assert begin.tolist() == [7, 0] and counter(be) == 4
