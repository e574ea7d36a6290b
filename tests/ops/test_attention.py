"""Attention in tiles: values and derivatives against whole matrices of scores, memory, bad operands, CUDA graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.compiling import needs_compiler
from harness.counting import allocated
from harness.homes import home

import optree
from backends import gen_backend
from backends.cpu.openblas import share_products, threads
from optree import TensorType
from optree.errors import DTypeError, OperandError, ShapeError
from optree.networks import (
    attention,
)
from optree.networks.attention import Attention, AttentionGradient
from optree.registry import f
from optree.testing import check_op

#: Shapes of queries, keys and values, and of a mask.
SHAPES = (
    ((5, 4), (7, 4), (7, 3), (5, 7)),
    ((2, 5, 4), (2, 7, 4), (2, 7, 3), (5, 7)),
    ((2, 3, 6, 2), (2, 1, 6, 2), (2, 1, 6, 2), (2, 1, 1, 6)),
    ((3, 1, 2), (5, 2), (3, 5, 4), (1, 5)),
    ((2, 9, 3), (2, 4, 3), (2, 4, 3), (2, 9, 4)),
)


@pytest.fixture
def be(home_kind: str) -> Any:
    return home(home_kind, datatype=np.float64)


#: Sizes of tiles: small operands have several of the first two.
TILES = [(2, 3), (4, 2), (128, 512)]


def tile(monkeypatch: Any, number: int) -> None:
    """Set one of the sizes of tiles."""
    queries, keys = TILES[number % len(TILES)]
    for name, size in (("QUERIES", queries), ("KEYS", keys), ("WIDTH", keys), ("LEAST", queries * keys)):
        monkeypatch.setattr(attention, name, size)


def drawn(shapes: Any, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.RandomState(seed)
    return [rng.normal(size=shape) for shape in shapes[:3]] + [rng.uniform(size=shapes[3]) > 0.4]


def scored(query: Any, key: Any, value: Any, mask: Any = None, causal: bool = False, scale: Any = None) -> Any:
    """Attention by a whole matrix of scores, one query after the other, in float64."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    lead = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    query, key, value = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (query, key, value))
    count = query.shape[-2], key.shape[-2]
    chosen = np.broadcast_to(True if mask is None else mask, (*lead, *count))
    out = np.zeros((*lead, count[0], value.shape[-1]))
    for at in np.ndindex(*lead, count[0]):
        keys = [j for j in range(count[1]) if chosen[(*at, j)] and (not causal or j <= at[-1])]
        if keys:
            scores = key[at[:-1]][keys] @ query[at] * (query.shape[-1] ** -0.5 if scale is None else scale)
            weights = np.exp(scores - scores.max())
            out[at] = weights / weights.sum() @ value[at[:-1]][keys]
    return out


def composed(query: Any, key: Any, value: Any, mask: Any = None, causal: bool = False) -> Any:
    """The same as a tree of products and a softmax."""
    scores = f.matmul(query, f.matrix_transpose(key)) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = f.where(mask, scores, -np.inf) if mask.dtype.kind == "b" else scores + mask
    if causal:
        order = np.arange(query.shape[-2])[:, None] >= np.arange(key.shape[-2])
        scores = f.where(order, scores, -np.inf)
    return f.matmul(f.softmax(scores, axis=-1), value)


@pytest.mark.matrix
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_value_and_derivatives(be: Any, monkeypatch: Any, number: int, masked: bool) -> None:
    """Of each shape in each size of tiles, with and without a mask; half of them are causal."""
    shapes, turn = SHAPES[number], masked + 2 * (be.name == "cpu")
    tile(monkeypatch, number + turn)
    causal = bool((number + turn // 2) % 2)
    *values, mask = drawn(shapes)
    operands, chosen = [be.array(x) for x in values], be.array(mask) if masked else None
    tree, whole = be.attention(*operands, chosen, causal), composed(*operands, chosen, causal)
    expected = scored(*values, mask if masked else None, causal)
    np.testing.assert_allclose(tree.asnumpyarray(), expected, rtol=1e-10, atol=1e-12)
    weights = np.random.RandomState(1).normal(size=tree.shape)
    ours, theirs = (optree.grad(f.sum(x * weights), operands) for x in (tree, whole))
    for got, wanted in zip(be.evaluate(ours), be.evaluate(theirs), strict=True):
        np.testing.assert_allclose(got.get(), wanted.get(), rtol=1e-9, atol=1e-11)
    seconds = [optree.grad(sum(f.sum(f.square(x)) for x in first), operands) for first in (ours, theirs)]
    for got, wanted in zip(*map(be.evaluate, seconds), strict=True):
        np.testing.assert_allclose(got.get(), wanted.get(), rtol=1e-8, atol=1e-10)


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_floats_as_a_mask_are_added_to_the_scores(be: Any, monkeypatch: Any, number: int) -> None:
    """And have derivatives of their own."""
    tile(monkeypatch, number + (be.name == "cpu"))
    shapes = SHAPES[number]
    values = [*drawn(shapes)[:3], np.random.RandomState(3).normal(size=shapes[3])]
    operands = [be.array(x) for x in values]
    trees = [attend(*operands, causal=True) for attend in (be.attention, composed)]
    weights = np.random.RandomState(1).normal(size=trees[0].shape)
    for tree in (trees, *zip(*(optree.grad(f.sum(x * weights), operands) for x in trees), strict=True)):
        np.testing.assert_allclose(*(x.asnumpyarray() for x in tree), rtol=1e-9, atol=1e-11)
    firsts = [optree.grad(f.sum(f.square(x) * weights), operands) for x in trees]
    seconds = [optree.grad(sum(f.sum(f.square(x)) for x in first), operands) for first in firsts]
    for got, wanted in zip(*map(be.evaluate, seconds), strict=True):
        np.testing.assert_allclose(got.get(), wanted.get(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_infinite_and_narrow_floats_as_a_mask(be: Any, dtype: str) -> None:
    *values, chosen = drawn(SHAPES[1])
    chosen[2] = False
    operands = [be.array(x, dtype) for x in values]
    mask = be.array(np.where(chosen, 0, -np.inf), dtype)
    found, by_mask = be.attention(*operands, mask), optree.grad(f.sum(be.attention(*operands, mask)), mask)
    assert found.dtype == by_mask.dtype == dtype and np.isfinite(by_mask.asnumpyarray()).all()
    np.testing.assert_allclose(found.asnumpyarray(), scored(*values, chosen), rtol=2e-2, atol=5e-3)


@pytest.mark.matrix(least=0)
def test_promises() -> None:
    home("cpu", datatype=np.float64)
    *values, mask = drawn(SHAPES[1])
    check_op(Attention.make(), values)
    check_op(Attention.make(causal=True, scale=0.3), [*values, mask])
    check_op(Attention.make(causal=True), [*values, np.random.RandomState(2).normal(size=mask.shape)])


@pytest.mark.matrix(least=0)
def test_central_differences() -> None:
    values = [*drawn(SHAPES[0])[:3], np.random.RandomState(3).normal(size=(5, 1))]
    be = home("cpu", datatype=np.float64)
    operands = [be.array(x) for x in values]

    def cost(*operands: Any) -> Any:
        return f.sum(f.square(f.attention(*operands, causal=True, scale=0.7)), keepdims=False)

    optree.check_grad(cost, operands)
    optree.check_grad(lambda *xs: sum(f.sum(f.square(g)) for g in optree.grad(cost(*xs), list(xs))), operands)


def test_a_query_without_keys_is_zero_and_so_is_its_gradient(be: Any) -> None:
    query, key, value, _ = (be.array(x) for x in drawn(SHAPES[0]))
    mask = np.zeros((5, 7), bool)
    mask[1:, 2:4] = True
    tree = be.attention(query, key, value, mask)
    assert not tree.asnumpyarray()[0].any() and np.isfinite(tree.asnumpyarray()).all()
    gradients = [g.asnumpyarray() for g in optree.grad(f.sum(tree * tree), [query, key, value])]
    assert not gradients[0][0].any() and not gradients[2][4:].any() and all(np.isfinite(g).all() for g in gradients)
    assert be.attention(query, be.zeros((0, 4)), be.zeros((0, 3))).asnumpyarray().tolist() == [[0.0] * 3] * 5
    assert be.attention(be.zeros((2, 0, 4)), key, value).asnumpyarray().shape == (2, 0, 3)


@pytest.mark.parametrize("causal", [False, True])
def test_without_queries_or_keys_derivatives_are_zero(be: Any, causal: bool) -> None:
    for queries, keys in ((0, 5), (3, 0), (0, 0)):
        operands = be.array(np.ones((queries, 4))), be.array(np.ones((keys, 4))), be.array(np.ones((keys, 2)))
        value = be.attention(*operands, causal=causal)
        for x, found in zip(operands, optree.grad(f.sum(value), operands), strict=True):
            np.testing.assert_array_equal(found.asnumpyarray(), np.zeros(x.shape))


def test_large_scores_do_not_overflow(be: Any) -> None:
    query, key, value, _ = drawn(SHAPES[0])
    query[0] *= 1e4
    got = be.attention(be.array(query), be.array(key), be.array(value)).asnumpyarray()
    np.testing.assert_allclose(got, scored(query, key, value), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_narrow_operands_are_summed_in_float32(be: Any, dtype: str) -> None:
    shapes = (2, 300, 8), (2, 700, 8), (2, 700, 4), (300, 700)
    *values, mask = drawn(shapes)
    values = [x.astype(dtype) for x in values]
    operands = [be.array(x, dtype) for x in values]
    tree = be.attention(*operands, mask)
    assert tree.dtype == dtype
    unit = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(tree.asnumpyarray(), scored(*values, mask), rtol=8 * unit, atol=8 * unit)
    for got, x in zip(optree.grad(f.sum(tree * tree), operands), values, strict=True):
        assert got.dtype == dtype and got.shape == x.shape
    mixed = be.attention(operands[0], operands[1].astype("float64"), operands[2])
    assert mixed.dtype == "float64" and optree.grad(f.sum(mixed), operands[0]).dtype == dtype


def test_sizes_may_be_open(be: Any) -> None:
    query, key, value = (TensorType("float64", (2, None, n))(name) for n, name in ((4, "q"), (4, "k"), (3, "v")))
    tree = be.attention(query, key, value, causal=True)
    run = optree.function([query, key, value], [tree, *optree.grad(f.sum(tree * tree), [query, key, value])])
    compiles = []
    for size in (3, 5, 8):
        values = drawn(((2, size, 4), (2, size, 4), (2, size, 3), ()))[:3]
        got = run(*values)
        np.testing.assert_allclose(got[0].get(), scored(*values, causal=True), rtol=1e-10, atol=1e-12)
        compiles.append(len(be.plans))
    assert len(set(compiles)) == 1, "another size compiles nothing"


@needs_compiler
def test_kernels_compute_the_same() -> None:
    plain, compiled = (gen_backend("cpu", datatype=np.float64, jit=jit) for jit in (False, True))
    *values, mask = drawn(((2, 2, 150, 8), (2, 2, 600, 8), (2, 2, 600, 4), (150, 600)))
    found = []
    for be in (plain, compiled):
        operands = [be.array(x) for x in values]
        tree = be.attention(*operands, mask, True)
        found.append(be.evaluate([tree, *optree.grad(f.sum(tree * tree), operands)]))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one.get(), other.get(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("heads", "tokens", "size", "jit"),
    [
        pytest.param(1, 4096, 128, False, marks=pytest.mark.matrix(least=0)),
        pytest.param(4, 2048, 64, True, marks=needs_compiler),
    ],
)
def test_of_many_tokens_memory_is_that_of_operands_and_result(heads: int, tokens: int, size: int, jit: bool) -> None:
    be = gen_backend("cpu", jit=jit)
    operands = [
        be.array(np.random.RandomState(i).normal(size=(heads, tokens, size)), name=n) for i, n in enumerate("qkv")
    ]
    tree = be.attention(*operands, causal=True)
    one = heads * tokens * size * 4
    forward = optree.function([], tree)
    assert allocated(forward, before=1) <= 1.3 * 4 * one - 3 * one, "three operands and a result, and nothing like them"
    if heads == 1:
        backward = optree.function([], optree.grad(f.sum(tree), operands))
        # The delta and the value are computed on the way: eight arrays in all, of which three are the operands.
        assert allocated(backward, before=1) <= 1.3 * 8 * one - 3 * one


@pytest.mark.skipif(threads() is None, reason="NumPy has another BLAS")
def test_openblas_is_in_one_thread_while_tasks_are_shared() -> None:
    found: Any = threads()
    before, seen = found.get(), []
    share_products(range(3), lambda: lambda task: seen.append(found.get()))
    assert seen == [1, 1, 1] and found.get() == before

    def failing(task: Any) -> None:
        raise ValueError(task)

    with pytest.raises(ValueError, match="0"):
        share_products([0], lambda: failing)
    assert found.get() == before


def test_what_does_not_fit_is_named(be: Any) -> None:
    query, key, value = (
        be.ones(shape, name=name) for shape, name in (((2, 5, 4), "q"), ((2, 7, 4), "k"), ((2, 7, 3), "v"))
    )
    with pytest.raises(ShapeError, match=r"attention: q \(2, 5, 4\).*v \(2, 7, 3\).*4 and 3 features"):
        be.attention(query, value, value)
    with pytest.raises(ShapeError, match=r"attention: k \(2, 7, 4\).*q \(2, 5, 4\).*7 and 5 keys"):
        be.attention(query, key, query)
    with pytest.raises(ShapeError, match=r"axes of q .* k .* v .*before the last two"):
        be.attention(be.ones((3, 5, 4), name="q"), key, value)
    with pytest.raises(ShapeError, match=r"attention: row \(4,\).*no queries.*\(\.\.\., queries, features\)"):
        be.attention(be.ones(4, name="row"), key, value)
    with pytest.raises(ShapeError, match=r"mask chosen \(7, 5\).*\(2, 5, 7\)"):
        be.attention(query, key, value, be.array(np.ones((7, 5), bool), name="chosen"))
    with pytest.raises(ShapeError, match=r"mask chosen \(3, 2, 5, 7\)"):
        be.attention(query, key, value, be.array(np.ones((3, 2, 5, 7), bool), name="chosen"))
    with pytest.raises(DTypeError, match=r"the mask chosen .* is neither a condition.*nor floats"):
        be.attention(query, key, value, be.array(np.ones((5, 7), int), name="chosen"))
    with pytest.raises(DTypeError, match="queries are floats"):
        be.attention(*(be.array(np.ones((2, 2), int)) for _ in range(3)))
    with pytest.raises(OperandError, match="scale is a number or None, not 'large'"):
        be.attention(query, key, value, scale="large")
    with pytest.raises(OperandError, match="causal is True or False, not 'yes'"):
        be.attention(query, key, value, causal="yes")
    with pytest.raises(OperandError, match="not 2 operands"):
        Attention.make()(query, key)


@pytest.mark.usefixtures("folder")
def test_a_training_step_is_one_cuda_graph(gpu: Any) -> None:
    *values, mask = drawn(((2, 40, 8), (2, 40, 8), (2, 40, 4), (40, 40)))
    kind = TensorType("float32", (2, 40, 8))
    query, weight = kind("query"), gpu.array(np.eye(8), name="weight")
    key, value = gpu.array(values[1]), gpu.array(values[2])
    tree = gpu.attention(gpu.matmul(query, weight), key, value, mask, causal=True)
    step = optree.function([query], tree, updates={weight: weight - 0.1 * optree.grad(f.sum(tree * tree), weight)})
    given = gpu.array(values[0], "float32")
    first = step(given).get()
    np.testing.assert_allclose(first, scored(*values, mask, causal=True), rtol=1e-4, atol=1e-5)
    for _ in range(3):
        step(given)
    assert gpu.stats()["graphs"]["captures"] == 1 and gpu.stats()["host_calls"] == 0
    assert step(given).get().shape == first.shape and np.isfinite(weight.get()).all()


def test_torch_agrees() -> None:
    torch: Any = pytest.importorskip("torch")
    be = home("cpu", datatype=np.float64)
    *values, mask = drawn(((2, 3, 150, 8), (2, 3, 600, 8), (2, 3, 600, 4), (150, 600)))
    for masked, causal in ((False, False), (True, False), (False, True)):
        theirs = [torch.tensor(x, requires_grad=True) for x in values]
        ours = [be.array(x) for x in values]
        their = torch.nn.functional.scaled_dot_product_attention(
            *theirs, torch.tensor(mask) if masked else None, is_causal=causal
        )
        our = be.attention(*ours, mask if masked else None, causal)
        np.testing.assert_allclose(our.asnumpyarray(), their.detach().numpy(), rtol=1e-9, atol=1e-11)
        weights = np.random.RandomState(2).normal(size=our.shape)
        wanted = torch.autograd.grad((their * torch.tensor(weights)).sum(), theirs)
        for got, want in zip(optree.grad(f.sum(our * weights), ours), wanted, strict=True):
            np.testing.assert_allclose(got.asnumpyarray(), want.numpy(), rtol=1e-8, atol=1e-10)


def test_flops_are_those_of_the_products(be: Any) -> None:
    shapes = [(2, 5, 4), (2, 7, 4), (2, 7, 3)]
    assert Attention.make().flops(shapes, [(2, 5, 3), (2, 5, 1)]) == 2 * 2 * 5 * 7 * (4 + 3)
    assert AttentionGradient.make().flops(shapes, shapes) == 2 * 2 * 5 * 7 * (3 * 4 + 2 * 3)
