"""Operations that run beside others, on an engine whose two ranks are alike: on the CPU, and between CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import optree
from backends import gen_backend
from optree import TensorType, train
from optree.distributed import Engine, Group


class Late(Engine):
    """One rank. Until an operation is awaited, its value is nan, or 0, and its operand must not change."""

    overlaps = True

    def begin(self, method: str, x: Any, *args: Any, out: Any = None) -> tuple[Any, Callable[[], None]]:
        x = np.array(x) if isinstance(x, np.generic) else x
        before = x.copy()
        made = getattr(self, method)(before, *args) if out is None else out
        made[...] = np.nan if made.dtype.kind == "f" else 0

        def finish() -> None:
            assert (x == before).all(), "the operand has been overwritten"
            made[...] = getattr(self, method)(before, *args)

        return made, finish


class Alike(Late):
    """Two ranks of one value."""

    size = 2

    def all_reduce(self, x: Any, kind: str) -> Any:
        return x * 2 if kind == "sum" else x.copy()


def trained(
    be: Any, group: Group | None, bucket: int | None = None, **options: Any
) -> tuple[Any, list[float], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    weights: Any = [be.array(rng.normal(size=size) / 3, name=f"w{size}") for size in ((6, 20), (20, 5), (5, 3))]
    x, y = TensorType("float32", (None, 6))("x"), TensorType("int64", (None,))("y")
    hidden = be.tanh(be.dot(be.tanh(be.dot(x, weights[0])), weights[1]))
    loss = train.losses.cross_entropy(be.dot(hidden, weights[2]), y)
    with ExitStack() as stack:
        if bucket is not None:
            small = {name: partial(getattr(group, name), bucket=bucket) for name in ("averaged_shards", "unsharded")}
            stack.enter_context(patch.multiple(group, **small))
        updates = train.AdamW(weights, 0.01, **options).updates(loss, over=group)
    step = optree.function([x, y], loss if group is None else group.mean(loss), updates=updates)
    data = be.array(rng.normal(size=(8, 6))), be.array(rng.integers(0, 3, 8))
    losses = [step(*data).item() for _ in range(6)]
    return step, losses, [w.get() for w in weights]


def backend_of(kind: str) -> Any:
    if kind == "graphs":
        return gen_backend("gpu")
    return gen_backend("cpu", jit="always" if kind == "always" else False)


@pytest.mark.matrix(least=2)
@pytest.mark.parametrize("kind", ["cpu", "always", pytest.param("graphs", marks=pytest.mark.on_the_rig)])
@pytest.mark.parametrize("options", [{}, {"clip_global_norm": 0.1, "average": 0.9}], ids=["plain", "clipped"])
def test_two_ranks_that_are_alike_train_as_one(kind: str, options: dict[str, Any]) -> None:
    be = gen_backend("cpu", jit=False)
    _, expected, weights = trained(be, None, **options)
    be = backend_of(kind)
    step, losses, found = trained(be, Group(be, Alike()), **options)
    check(be, kind, step, (losses, found), (expected, weights))


@pytest.mark.matrix(least=2)
@pytest.mark.parametrize("kind", ["cpu", "always", pytest.param("graphs", marks=pytest.mark.on_the_rig)])
@pytest.mark.parametrize("bucket", [None, 1], ids=["one bucket", "buckets"])
def test_parts_that_are_gathered_during_the_backward_pass_are_those_of_a_whole_optimizer(
    kind: str, bucket: int | None
) -> None:
    be = gen_backend("cpu", jit=False)
    _, expected, weights = trained(be, None)
    be = backend_of(kind)
    group = Group(be, Late())
    step, losses, found = trained(be, group, bucket, shard=group)
    check(be, kind, step, (losses, found), (expected, weights))


def check(be: Any, kind: str, step: Any, found: Any, expected: Any) -> None:
    """Losses and weights are the expected ones, and a GPU has captured all but the operations."""
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    text = optree.debugprint(step, file="str")
    if kind == "graphs":
        assert "CUDA graphs of" in text and "uncaptured between them: Begin, Await" in text
        assert be.stats()["graphs"]["replays"] > 0
        assert "changes its address" not in text, text
