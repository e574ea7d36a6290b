"""Random numbers: the generator against published values, the distributions, and the state that makes them repeat."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from backends import gen_backend
from backends.randomness import RandomMethods
from optree import grad, philox
from optree.errors import BackendError, DTypeError, OperandError, OptreeError, ShapeError
from optree.node import OpTreeNode
from optree.ops.random import RandomOperator, round_by_chance, take_blocks
from optree.registry import OPS, f
from optree.types import TensorType
from optree.variable import Input

ROOT = Path(__file__).resolve().parent.parent
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]
BITS = dict(zip(FLOATS, (11, 24, 53), strict=True))


@pytest.fixture
def be() -> Any:
    return gen_backend("cpu", rng_seed=7)


def counter(be: Any) -> int:
    return int(be.rng_state.get()[1])


# The generator


@pytest.mark.parametrize(
    "counters, key, words",
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_published_known_answers(counters: Any, key: Any, words: Any) -> None:
    columns = np.array(counters, np.uint64)[:, None].repeat(3, axis=1)
    np.testing.assert_array_equal(philox.philox4x32(columns, key), np.array(words)[:, None].repeat(3, axis=1))


def block(seed: int, at: int) -> list[int]:
    """The four words of a block, one by one."""
    at %= 2**64
    words = philox.philox4x32([[at % 2**32], [at >> 32], [0], [0]], (seed % 2**32, seed >> 32))
    return [int(word) for word in words[:, 0]]


def element(seed: int, at: int, i: int, dtype: np.dtype) -> float:
    """Element `i` of a uniform draw, as the table in `optree.philox` says."""
    if dtype == np.float64:
        words, first = block(seed, at + i // 2), 2 * (i % 2)
        return ((words[first] + (words[first + 1] << 32)) >> 11) / 2**53
    return (block(seed, at + i // 4)[i % 4] >> (32 - BITS[dtype])) / 2 ** BITS[dtype]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_an_element_depends_on_seed_counter_and_place_alone(dtype: np.dtype) -> None:
    seed, at = 0x123456789ABCDEF0, 2**32 - 1000
    longest = philox.uniform(seed, at, (4 * philox.CHUNK + 7,), dtype)
    for i in (0, 1, 2, 3, 4, 1001, 4007, philox.CHUNK * 2 + 1, 4 * philox.CHUNK + 6):
        assert longest[i] == element(seed, at, i, dtype)
    for size in (1, 2, 5, philox.CHUNK + 1):
        np.testing.assert_array_equal(philox.uniform(seed, at, (size,), dtype), longest[:size])
    np.testing.assert_array_equal(philox.uniform(seed, at, (3, 5), dtype).ravel(), longest[:15])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normals_are_box_and_muller_of_the_words(dtype: np.dtype) -> None:
    got = philox.normal(5, 9, (20_001,), dtype)
    if dtype == np.float64:
        pairs = philox.uniform(5, 9, (20_002,), dtype).reshape(-1, 2)
        radius, turn = pairs[:, 0] + 2.0**-53, pairs[:, 1] - 0.5
    else:
        words = np.array([block(5, 9 + i) for i in range(5001)], np.float64).reshape(-1, 2)
        radius, turn = (words[:, 0] + 0.5) * 2.0**-32, words[:, 1] * 2.0**-32
    length = np.sqrt(-2 * np.log(radius))
    wanted = np.stack([length * np.cos(2 * np.pi * turn), length * np.sin(2 * np.pi * turn)], 1).ravel()[: len(got)]
    # Near the origin, the radius shows that a number near 1 was rounded before its logarithm was taken.
    bound = 32 * np.finfo(dtype).eps + 2.0**-24 / length.repeat(2)[: len(got)] * (dtype != np.float64)
    assert (abs(got - wanted) < bound).all()


def test_the_counter_wraps_where_64_bits_end() -> None:
    at = 2**64 - 2
    got = philox.uniform(3, at, (16,), np.dtype("float32"))
    assert list(got) == [element(3, at, i, np.dtype("float32")) for i in range(16)]
    state = np.array([3, at], np.uint64)
    assert take_blocks(state, 5) == (3, at)
    assert list(state) == [3, 3]


def test_no_words_make_a_normal_infinite() -> None:
    corners = [0, 1, 2**31, 2**32 - 2, 2**32 - 1]
    words = np.array([[a, b, a, b] for a in corners for b in corners], np.uint64).T
    for fill, dtypes in ((philox._normal32, FLOATS[:2]), (philox._normal64, FLOATS[2:])):
        for dtype in dtypes:
            out = np.empty((philox.ELEMENTS_PER_BLOCK[dtype], words.shape[1]), dtype)
            fill(words.copy(), out)
            assert np.isfinite(out).all()
            assert abs(out).max() < 9


def test_draws_stay_the_same_from_version_to_version(be: Any) -> None:
    assert be.rand(3).asnumpyarray().tolist() == [0.9545971155166626, 0.7501521706581116, 0.11417734622955322]
    assert be.rand(2, np.float64).asnumpyarray().tolist() == [0.7952840373401903, 0.9578541904156558]
    np.testing.assert_allclose(be.normal(size=2).asnumpyarray(), [3.1903507709503174, 0.16960695385932922], rtol=1e-6)


def test_threads_get_different_blocks() -> None:
    state = np.array([1, 0], np.uint64)
    with ThreadPoolExecutor(8) as pool:
        begun = list(pool.map(lambda _: take_blocks(state, 3)[1], range(4000)))
    assert sorted(begun) == list(range(0, 12_000, 3))


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
    assert stats.kstest(centred, "uniform").pvalue > (0.01 if dtype != np.float16 else 1e-3)
    assert abs(centred.mean() - 0.5) < 4 * np.sqrt(1 / 12 / centred.size)
    assert abs(centred.var() - 1 / 12) < 4 * np.sqrt(1 / 180 / centred.size)
    assert abs(np.corrcoef(centred[:-1], centred[1:])[0, 1]) < 4 / np.sqrt(centred.size)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_float16_of_the_grid_is_drawn(be: Any, dtype: np.dtype) -> None:
    places = np.floor(be.rand(100_000, dtype).asnumpyarray().astype(np.float64) * 2048).astype(int)
    counts = np.bincount(places, minlength=2048)
    assert counts.shape == (2048,) and counts.min() > 0
    assert stats.chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normal_is_normal(be: Any, dtype: np.dtype) -> None:
    numbers = be.normal(size=(200, 1000), dtype=dtype).asnumpyarray()
    assert numbers.dtype == dtype and numbers.shape == (200, 1000)
    z = numbers.astype(np.float64).ravel()
    assert np.isfinite(z).all()
    assert stats.kstest(z, "norm").pvalue > 0.01
    n = z.size
    assert abs(z.mean()) < 4 / np.sqrt(n) and abs(z.var() - 1) < 4 * np.sqrt(2 / n)
    assert abs(stats.skew(z)) < 4 * np.sqrt(6 / n) and abs(stats.kurtosis(z)) < 4 * np.sqrt(24 / n)
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
    assert drawing == {"rand", "standard_normal", "stochastic_cast"}
    for name in drawing:
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
