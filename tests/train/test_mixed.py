"""Mixed precision by `autocast`: which values are halves, and that weights and gradients are not."""

import numpy as np
import pytest

import optree
from backends import gen_backend
from optree import TensorType, train
from optree.errors import DTypeError, OperandError
from optree.tree.node import OpTreeNode, post_order

pytest.importorskip("ml_dtypes")


def dtypes(tree):
    """The dtypes of the nodes of each op."""
    found = {}
    for node in post_order([tree], lambda x: [y for y in getattr(x, "inputs", ()) if isinstance(y, OpTreeNode)]):
        if hasattr(node.type, "dtype"):
            found.setdefault(node.op.name, set()).add(str(node.dtype))
    return found


@pytest.mark.parametrize(("dtype", "scale"), [("bfloat16", None), ("float16", "dynamic")])
def test_products_are_halves_and_all_else_is_float32(dtype, scale):
    be = gen_backend("cpu", rng_seed=0)
    p, weights = train.parameters(be, {"w": (8, 16), "v": (16, 4), "b": 16})
    x, y = TensorType("float32", (None, 8))("x"), TensorType("int64", (None,))("y")
    h = be.tanh(be.dot(x, p["w"]) + p["b"])
    loss = train.losses.cross_entropy(be.dot(h, p["v"]), y)
    mixed = train.autocast(loss, dtype)
    gradients = optree.grad(mixed, list(weights))
    for tree in (mixed, *gradients[:2]):
        found = dtypes(tree)
        assert found.pop("dot") == {dtype}
        assert found.pop("cast") >= {dtype}
        assert all(dtype not in each for name, each in found.items() if name not in ("transpose", "matrix_transpose"))
        assert tree.dtype == np.float32
    data, labels = np.random.default_rng(0).normal(size=(64, 8)).astype("f"), np.arange(64) % 4
    labels = (data[:, :4]).argmax(1)
    exact, halves = (optree.function([x, y], [t, *optree.grad(t, list(weights))])(data, labels) for t in (loss, mixed))
    for a, b in zip(exact, halves, strict=True):
        np.testing.assert_allclose(a.get(), b.get(), rtol=0.02, atol=0.02)
        assert not (a.get() == b.get()).all()
    opt = train.Adam(weights, 0.05, loss_scale=scale)
    assert not [name for name in opt.state if name.startswith("master")]
    step = optree.function([x, y], mixed, updates=opt.updates(mixed))
    for _ in range(60):
        last = step(data, labels)
    assert last.item() < 0.3 and p["w"].dtype == np.float32


def test_trees_together_share_draws_and_products():
    be = gen_backend("cpu", rng_seed=0)
    x, w = be.ones((4, 64)), be.ones((64, 64), name="w")
    mean, variance = be.zeros(64, name="mean"), be.ones(64, name="variance")
    phase = train.Phase(be, training=True)
    dropped = phase.dropout(be.dot(x, w))
    phase.batch_norm(dropped, mean=mean, variance=variance)
    assert train.autocast(be.batch_norm(dropped)).value.dtype == np.float32
    given = [dropped, dropped * 1, phase.updates]
    first, second, updates = train.autocast(given)
    found, again, running = optree.function([], [first, second, updates[mean]])()
    assert (found.get() == again.get()).all() and 0 < (found.get() == 0).sum() < found.size
    np.testing.assert_allclose(running.get(), 0.1 * found.get().mean(0), rtol=1e-5)
    assert list(updates) == [mean, variance] and dtypes(first)["dot"] == {"bfloat16"}
    with pytest.raises(OperandError, match="a list, tuple or dict of these, not 3"):
        train.autocast([first, 3])


def test_convolutions_and_attention_are_cast():
    be = gen_backend("cpu", rng_seed=0)
    images, filters = be.rand((2, 3, 6, 6)), be.rand((4, 3, 3, 3))
    q, k, v = (be.rand((2, 5, 4), dtype="float32").astensor() for _ in range(3))
    for tree in (be.conv(images, filters), be.attention(q, k, v, causal=True), be.einsum("abc,adc->bd", q, k)):
        mixed = train.autocast(be.sum(tree), "bfloat16")
        assert "bfloat16" in str(dtypes(mixed)) and mixed.dtype == np.float32
    a, b = be.attention(q, k, v), train.autocast(be.attention(q, k, v))
    np.testing.assert_allclose(a.get(), b.get(), rtol=0.03)
    assert not (a.get() == b.get()).all()


def test_what_has_no_product_is_the_same_tree_and_deep_trees_are_walked():
    be = gen_backend("cpu")
    x = be.ones((2, 2), name="x")
    tree = be.exp(x) + 1
    assert train.autocast(tree) is tree and train.autocast(x) is x
    wide = be.dot(be.ones((2, 2), dtype="float64"), be.ones((2, 2), dtype="float64"))
    assert train.autocast(wide) is wide
    deep = be.dot(x, x)
    for _ in range(20_000):
        deep = deep + 1
    assert train.autocast(deep).shape == (2, 2)


def test_wrong_arguments_are_refused():
    be = gen_backend("cpu")
    with pytest.raises(DTypeError, match="bfloat16 or float16, not float32"):
        train.autocast(be.ones(2) + 1, "float32")
    with pytest.raises(OperandError, match="an op-tree is wanted"):
        train.autocast(3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_in_loops_are_halves(dtype):
    be = gen_backend("cpu", rng_seed=0)
    rng = np.random.default_rng(0)
    x, w, u = (be.array(rng.normal(size=s).astype("f") / 2) for s in ((5, 3, 4), (4, 24), (6, 24)))
    c = be.array(rng.normal(size=(3, 3)).astype("f") / 4)
    nested = be.scan(
        lambda s, _: (be.scan(lambda t, _: (be.dot(c, t) + t, None), s, length=2)[0], None), x[0], length=2
    )
    stopped = be.while_loop(lambda t: be.sum(t * t) < 100, lambda t: be.dot(c, t) * 2 + t, x[1], 9)
    for tree, weight in ((be.lstm(x, w, u)[0], u), (nested[0], c), (stopped, c)):
        mixed = train.autocast(be.sum(tree * tree), dtype)
        gradients = [optree.grad(each, [weight])[0] for each in (mixed, be.sum(tree * tree))]
        assert _products_in_loops(mixed) == _products_in_loops(gradients[0]) == {dtype}
        assert gradients[0].dtype == mixed.dtype == "float32"
        half, single = (each.get() for each in gradients)
        assert 0 < np.abs(half - single).max() < 0.03 * np.abs(single).max()


def _products_in_loops(tree):
    """The dtypes of the products in steps of loops, and of loops in these."""
    found = set()
    for node in post_order([tree], lambda x: [y for y in getattr(x, "inputs", ()) if isinstance(y, OpTreeNode)]):
        for result in node.op.body.results if node.op.name == "scan" else ():
            found |= dtypes(result).get("dot", set()) | _products_in_loops(result)
    return found
