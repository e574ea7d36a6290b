"""`argsort` is stable, by sorts of keys with indices that need not be; top k and counts in bins have quick ways too."""

from __future__ import annotations

import numpy as np
import pytest

from backends import gen_backend
from optree.errors import OperandError
from optree.ops.ordering import FEW_MEMBERS, LEAST


@pytest.mark.parametrize("seed", range(4))
def test_repeated_negative_halves_are_sorted(seed: int) -> None:
    """NumPy's sort of float16 is wrong for some of these, where the processor has AVX-512."""
    x = np.where(np.random.default_rng(seed).random(5000) < 0.99, -51, -36).astype(np.float16)
    be = gen_backend("cpu")
    expected = np.sort(x.astype(np.float64))
    np.testing.assert_array_equal(np.sort(be.array(x, np.float16)).asnumpyarray(), expected)
    np.testing.assert_array_equal(be.xp.unique_values(be.xp.asarray(x)), np.unique(expected))


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int16", "int32", "uint32", "int64", "uint64", "bool"]
)
@pytest.mark.parametrize("shape", [(8, 200), (2 * LEAST,), (16, LEAST // 8)], ids=str)
def test_argsort_is_numpys_stable_one(dtype: str, shape: tuple[int, ...]) -> None:
    """With ties, nans of both signs, infinities, both zeros and the largest numbers."""
    rng, be = np.random.default_rng(0), gen_backend("cpu", jit=False)
    for few in (True, False):
        if dtype[0] == "f":
            x = (rng.integers(-9, 9, shape) / 4 if few else rng.standard_normal(shape)).astype(dtype)
            flat = x.reshape(-1)
            for value, step in ((np.nan, 7), (-np.nan, 11), (np.inf, 13), (-np.inf, 17), (-0.0, 5), (0.0, 19)):
                flat[::step] = value
        elif dtype == "bool":
            x = rng.random(shape) < 0.5
        else:
            limits = np.iinfo(dtype)
            low, high = (0, 5) if few else (limits.min, limits.max)
            x = rng.integers(low, high, shape, dtype, endpoint=True)
            x.reshape(-1)[::50], x.reshape(-1)[::70] = limits.max, limits.min
        for array, axis in ((x, -1), (x[..., ::2], -1), (x.T, 0)):
            ours = be.argsort(be.array(array, dtype), axis=axis).asnumpyarray()
            np.testing.assert_array_equal(ours, np.argsort(array, axis=axis, kind="stable"))


def _with_ties(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Few values, of floats with nans and infinities."""
    rng = np.random.default_rng(0)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    x = rng.integers(0, 40, shape).astype(dtype)
    if dtype[0] == "f":
        flat = x.reshape(-1)
        flat[::97], flat[::61], flat[::31] = np.nan, np.inf, -np.inf
        x[0] = np.nan
    return x


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16", "float32", "float64"])
@pytest.mark.parametrize("k", [1, 8, 100])
def test_of_the_largest_the_first_are_taken_and_nan_is_larger_than_any_number(dtype: str, k: int) -> None:
    be, x = gen_backend("cpu", jit=False), _with_ties(dtype, (9, 200))
    descending = np.where(np.isnan(x), 0, -x.astype(float))
    wanted = np.lexsort((descending, ~np.isnan(x)), axis=1)
    values, indices = be.evaluate(list(be.topk(be.array(x, dtype), k, axis=1)))
    np.testing.assert_array_equal(indices.get(), wanted[:, :k])
    np.testing.assert_array_equal(values.get(), np.take_along_axis(x, wanted[:, :k], 1))
    down = be.evaluate([be.topk(be.array(x.T.copy(), dtype), k, axis=0)[1]])[0]
    np.testing.assert_array_equal(down.get(), wanted[:, :k].T)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "uint16", "float16", "int32", "float32", "float64"])
@pytest.mark.parametrize("size", [50, 1 << 17])
def test_elements_are_counted_in_bins_as_numpy_does(dtype: str, size: int) -> None:
    be, x = gen_backend("cpu", jit=False), _with_ties(dtype, (2, size))
    finite = np.where(np.isfinite(x), x, 3) if dtype[0] == "f" else x.astype("uint8") if dtype == "bool" else x
    tensor = be.array(x, dtype)
    for bins, given in (([-1, 0, 1, 5.5, 30], x), ([0.5], x), (7, finite)):
        tensor = be.array(given, given.dtype)
        wanted, edges = np.histogram(given.astype("uint8") if given.dtype == bool else given, bins)
        found = be.evaluate(list(be.histogram(tensor, bins)))
        np.testing.assert_array_equal(found[0].get(), wanted)
        np.testing.assert_array_equal(found[1].get(), edges)
    with pytest.raises(OperandError, match="ascend"):
        be.histogram(tensor, [2, 1])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize("count", [1, FEW_MEMBERS, FEW_MEMBERS + 1])
def test_members_are_found_among_few_and_many_as_numpy_finds_them(dtype: str, count: int) -> None:
    be, x = gen_backend("cpu", jit=False), _with_ties(dtype, (3, 40))[:, ::2]
    for among in ("int8", "uint8", "float32", dtype):
        members = _with_ties(among, (2 * count,))[::2]
        found = np.isin(be.array(x, dtype), be.array(members, among))
        np.testing.assert_array_equal(found.asnumpyarray(), np.isin(x, members), f"{dtype} among {among}")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64"])
def test_indices_of_a_partition_are_not_sorted(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    be = gen_backend("cpu", jit=False)
    values = np.random.default_rng(0).permutation(6 * 500).reshape(6, 500).astype(dtype)
    x = be.array(values, dtype=dtype)
    for sorting in ("sort", "argsort"):
        monkeypatch.setattr(np, sorting, None)
    found = np.argpartition(x, (7, -3), axis=1).get()
    monkeypatch.undo()
    picked = np.take_along_axis(values, found, axis=1)
    in_order = np.sort(values, axis=1)
    assert found.dtype == np.int64 and (np.sort(found, axis=1) == np.arange(500)).all()
    assert (picked[:, [7, -3]] == in_order[:, [7, -3]]).all()
    assert (picked[:, :7].max(axis=1) <= picked[:, 7]).all() and (picked[:, -2:].min(axis=1) >= picked[:, -3]).all()
