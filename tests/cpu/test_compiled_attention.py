"""Attention and its gradient in compiled C: all sizes, layouts and masks against whole matrices of scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.compiling import needs_compiler

from backends import gen_backend
from backends.cpu.routines.attention import FEW, SMALL, CompiledAttention
from optree import debugprint, settings
from optree.networks.attention import Attention, AttentionGradient, AttentionOperator

pytestmark = needs_compiler

#: Leading axes of queries, keys and values; their numbers, and the features of keys and values.
SHAPES = (
    ((), (), (), 8, 1, 1, 1),
    ((3,), (3,), (3,), 13, 127, 5, 3),
    ((2, 3), (2, 1), (1, 3), 31, 128, 4, 16),
    ((2,), (), (2,), 32, 129, 16, 17),
    ((1,), (2, 1), (), 33, 300, 64, 64),
    ((2, 2), (2, 2), (2, 2), 300, 257, 20, 1),
)
LAYOUTS: dict[str, Any] = {
    "in C order": lambda x: x,
    "transposed": lambda x: x.swapaxes(-1, -2).copy().swapaxes(-1, -2),
    "heads after tokens": lambda x: np.moveaxis(np.moveaxis(x, 0, -2).copy(), -2, 0) if x.ndim > 2 else x,
    "reversed": lambda x: x[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
}


@pytest.fixture(scope="module")
def be() -> Any:
    return gen_backend("cpu", jit=True)


@pytest.fixture
def in_tiles(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The operands of what is computed in tiles by BLAS."""
    found: list[Any] = []
    run = AttentionOperator.run

    def recorded(self: Any, tiles: Any, *inputs: Any) -> Any:
        found.append(inputs)
        return run(self, tiles, *inputs)

    monkeypatch.setattr(AttentionOperator, "run", recorded)
    return found


def drawn(shape: Any, dtype: str = "float32") -> list[np.ndarray]:
    """Queries, keys and values, and a mask, in which the first query has no keys."""
    *lead, queries, keys, features, width = shape
    rng = np.random.default_rng(keys)
    sizes = (queries, features), (keys, features), (keys, width)
    arrays = [rng.normal(size=(*axes, *size)).astype(dtype) for axes, size in zip(lead, sizes, strict=True)]
    mask = rng.uniform(size=(queries, keys)) > 0.4
    mask[0] = False
    return [*arrays, mask]


def whole(query: Any, key: Any, value: Any, delta: Any, mask: Any, causal: bool, scale: float | None) -> list[Any]:
    """Attention, logarithms of sums of exponentials, and derivatives, by whole matrices of scores in float64."""
    query, key, value, delta = (np.asarray(x, np.float64) for x in (query, key, value, delta))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.swapaxes(-1, -2) * scale
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        sums = np.where(total == 0, np.inf, np.log(total) + top)
    weights /= np.where(total == 0, 1, total)
    found = weights @ value
    slopes = weights * (delta @ value.swapaxes(-1, -2) - np.sum(delta * found, -1, keepdims=True)) * scale
    sums = np.broadcast_to(sums, (*found.shape[:-1], 1))
    return [found, sums, slopes @ key, slopes.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ delta]


def computed(be: Any, arrays: Any, delta: Any, mask: Any = None, **options: Any) -> list[Any]:
    """The same by compiled C."""
    masks = [] if mask is None else [mask]
    value, sums = CompiledAttention(be, Attention.make(**options))(*arrays, *masks)
    along = np.sum(delta * value, -1, keepdims=True)
    gradient = CompiledAttention(be, AttentionGradient.make(**options))
    return [value, sums, *gradient(*arrays, delta, along, sums, *masks)]


def check(be: Any, arrays: Any, mask: Any = None, causal: bool = False, scale: float | None = None) -> None:
    query, _, value = arrays
    shape = (*np.broadcast_shapes(*(x.shape[:-2] for x in arrays)), query.shape[-2], value.shape[-1])
    delta = np.random.default_rng(2).normal(size=shape).astype(query.dtype)
    found = computed(be, arrays, delta, mask, causal=causal, scale=scale)
    bound = 100 * np.finfo(query.dtype).eps
    for got, wanted in zip(found, whole(*arrays, delta, mask, causal, scale), strict=True):
        assert got.dtype == query.dtype and got.shape == wanted.shape
        np.testing.assert_allclose(
            got, wanted, rtol=bound, atol=bound * max(1, np.abs(wanted[np.isfinite(wanted)]).max())
        )


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values(be: Any, in_tiles: Any, shape: Any, causal: bool, dtype: str) -> None:
    *arrays, mask = drawn(shape, dtype)
    added = np.where(mask, np.random.default_rng(1).normal(size=mask.shape), -np.inf).astype(dtype)
    for each in (None, mask, mask[:, :1], mask[1:2], added, added[1:2]):
        check(be, arrays, each, causal)
    check(be, arrays, None, causal, scale=0.3)
    assert not in_tiles


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(be: Any, in_tiles: Any, layout: str) -> None:
    *arrays, mask = drawn(SHAPES[-1])
    laid = [LAYOUTS[layout](x) for x in arrays]
    check(be, laid, LAYOUTS[layout](mask), causal=True)
    assert not in_tiles


def test_hidden_keys_count_for_nothing(be: Any) -> None:
    """Even where they are no numbers; and a score that is none gives none."""
    *arrays, mask = drawn(SHAPES[3])
    arrays[1][..., 5, :] = np.nan
    mask[:, 5] = False
    mask[7, 5] = True
    value, sums = CompiledAttention(be, Attention.make())(*arrays, mask)
    for x in (value, sums):
        assert np.isnan(x[:, 7]).all() and not np.isnan(np.delete(x, 7, 1)).any()


def test_an_infinite_key_that_no_query_has_adds_nothing(be: Any) -> None:
    """The queries fill no vector, and what fills it is 0 times infinity."""
    query, key, value, _ = drawn(((), (), (), FEW + 1, 20, 4, 3))
    query[:] = np.abs(query)
    key[5] = -np.inf
    delta = np.ones((len(query), value.shape[-1]), np.float32)
    *_, of_key, of_value = computed(be, [query, key, value], delta)
    assert np.isfinite(of_key).all() and np.isfinite(of_value).all()
    assert not of_key[5].any() and not of_value[5].any()


def test_the_number_of_threads_changes_no_bit(be: Any) -> None:
    *arrays, _ = drawn(((2, 5), (2, 5), (2, 5), 300, 700, 32, 32))
    found = []
    for threads in (1, 2, 5):
        with settings.override(num_threads=threads):
            found.append(computed(be, arrays, arrays[0], causal=True))
    assert all((x == y).all() for each in found for x, y in zip(each, found[0], strict=True))


@pytest.mark.parametrize(
    "arrays",
    [
        drawn(((), (), (), FEW - 1, 200, 8, 8)),
        drawn(((), (), (), 20, 200, 8, 8), "float16"),
        [np.frombuffer(b"." + x.tobytes(), x.dtype, offset=1).reshape(x.shape) for x in drawn(SHAPES[0])[:3]],
    ],
    ids=["few queries", "float16", "unaligned"],
)
def test_blas_computes_the_rest(be: Any, in_tiles: Any, arrays: Any) -> None:
    CompiledAttention(be, Attention.make())(*arrays[:3])
    assert len(in_tiles) == 1


def test_where_it_pays(in_tiles: Any) -> None:
    """Small ones are NumPy's, unless kernels are asked for."""
    be = gen_backend("cpu")
    tokens = int((SMALL / (4 * 64)) ** 0.5)
    for count, by_blas in ((tokens - 1, 1), (tokens + 1, 1)):
        CompiledAttention(be, Attention.make())(*drawn(((), (), (), count, count, 64, 64))[:3])
        assert len(in_tiles) == by_blas


def test_what_runs_is_said(be: Any) -> None:
    assert "attention by compiled C" in be.info()
    tree = be.attention(*(be.array(x) for x in drawn(SHAPES[0])[:3]))
    assert "by compiled C" in debugprint(tree, stage="plan", file="str")
