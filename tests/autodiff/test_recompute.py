"""Checkpoints in trees: the same derivatives, from values that are computed again and not kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import optree
from backends import gen_backend
from optree import TensorType, checkpoint
from optree.errors import OperandError

be = gen_backend("cpu", rng_seed=0)
rng = np.random.default_rng(0)
W, X = rng.normal(size=(4, 4)), rng.normal(size=(3, 4))


def network(be: Any, recomputes: bool, layers: int = 3, w: Any = None, x: Any = None) -> Any:
    """A loss of weights that every layer shares, its operand, and both."""
    w = be.array(W, dtype="float64", name="w") if w is None else w
    x = be.array(X, dtype="float64", name="x") if x is None else x

    def layer(x: Any) -> Any:
        return be.tanh(be.dot(x, w) + be.sum(be.square(w))) * 2 + x

    y = x
    for _ in range(layers):
        y = (checkpoint(layer) if recomputes else layer)(y)
    return be.sum(be.square(y)), w, x


def test_values_and_derivatives_are_the_same() -> None:
    found = []
    for recomputes in (False, True):
        loss, w, x = network(be, recomputes)
        slopes = optree.grad(loss, [w, x])
        second = optree.grad(be.sum(slopes[0] * slopes[0]), [w, x])
        found.append([v.get() for v in be.evaluate([loss, *slopes, *second])])
    for plain, again in zip(*found, strict=True):
        np.testing.assert_allclose(again, plain, rtol=1e-12)


@pytest.mark.parametrize("mode", ["default", "reference", "debug"])
def test_functions_of_open_sizes_run_it_in_every_mode(mode: str) -> None:
    x = TensorType("float64", (None, 4))("x")
    found = []
    for recomputes in (False, True):
        loss, w, _ = network(be, recomputes, x=x)
        found.append(optree.function([x], [loss, *optree.grad(loss, [w, x])], mode=mode)(X))
    for plain, again in zip(*found, strict=True):
        np.testing.assert_allclose(again.get(), plain.get(), rtol=1e-12)


def count(tree: Any, op: str) -> int:
    return optree.debugprint(optree.function([], tree), file="str").count(f"{op}(")


def test_the_function_is_computed_again_and_only_for_derivatives() -> None:
    found = []
    for recomputes in (False, True):
        loss, w, _ = network(be, recomputes)
        assert count([loss], "dot") == 3
        found.append(count([loss, optree.grad(loss, w)], "dot"))
    assert found[1] == found[0] + 3


def test_random_draws_are_not_drawn_again() -> None:
    x = be.ones((1000,), dtype="float64", name="x")

    def dropped(x: Any) -> Any:
        return be.exp(x * (be.uniform(np.zeros_like(x), 1.0) < 0.5))

    y = checkpoint(dropped)(x)
    value, slope = be.evaluate([y, optree.grad(be.sum(y), x)])
    np.testing.assert_allclose(value.get() == np.e, slope.get() == np.e)
    assert 400 < (value.get() == 1).sum() < 600
    assert ((slope.get() == 0) == (value.get() == 1)).all()


def test_arguments_by_name_and_plain_values_pass_through() -> None:
    x = be.array([1.0, 2.0], name="x")
    y = checkpoint(lambda x, power, *, scale: x**power * scale)(x, 3, scale=x)
    np.testing.assert_allclose(optree.grad(be.sum(y), x).get(), 4 * np.array([1.0, 2.0]) ** 3, rtol=1e-6)


@pytest.mark.parametrize("returned", [1.0, None, (1, 2)])
def test_what_returns_no_tree_is_refused(returned: Any) -> None:
    with pytest.raises(OperandError, match="checkpoint: .* to return a tree"):
        checkpoint(lambda x: returned)(be.ones(2))


def test_it_is_captured_on_a_gpu(folder: Any, gpu: Any) -> None:
    found = []
    for home in (be, gpu):
        x = TensorType("float32", (None, 4))("x")
        loss, w, _ = network(home, True, x=x, w=home.array(W, name="w"))
        run = optree.function([x], [loss, optree.grad(loss, w)])
        found.append([v.get() for _ in range(3) for v in run(X.astype("f"))])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
    assert "captured as a CUDA graph" in optree.debugprint(run, file="str")
