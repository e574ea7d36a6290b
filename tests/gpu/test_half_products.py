"""Products of halves on a GPU: all of a transformer's training step are of halves, with sums in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.fake_cupy import fake_cupy
from harness.homes import stand_in

from backends import gen_backend
from optree import function, grad
from optree.dtypes import is_bfloat16
from optree.tree.types import as_dtype

TOKENS, HEADS, FEATURES = 6, 2, 4
WIDTH = HEADS * FEATURES
SHAPES = [(11, WIDTH), (WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 11)]


def step_of(be: Any, dtype: str) -> Any:
    """A step of a transformer of one block: the loss, and the weights after it."""
    random = np.random.RandomState(0)
    drawn = [random.standard_normal(shape).astype(np.float32) * 0.3 for shape in SHAPES]
    table, joined, out, up, down, last = weights = [be.array(x, dtype) for x in drawn]
    tokens, wanted = (be.array(random.randint(0, 11, (2, TOKENS))) for _ in range(2))
    x = be.take(table, tokens, axis=0)
    heads = be.transpose(be.reshape(x @ joined, (2, TOKENS, 3, HEADS, FEATURES)), (2, 0, 3, 1, 4))
    found = be.attention(*(be.slice(heads, i) for i in range(3)), causal=True)
    x = x + be.reshape(be.transpose(found, (0, 2, 1, 3)), (2, TOKENS, WIDTH)) @ out
    x = x + be.maximum(x @ up, 0) @ down
    scores = be.softmax((x @ last).astype("float32"), axis=-1)
    cost = -be.mean(be.log(scores) * be.onehot(wanted, 11))
    gradients = grad(cost, weights)
    return function([], cost, updates={w: w - 0.5 * g for w, g in zip(weights, gradients, strict=True)}), weights


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_no_product_of_a_half_precision_step_has_operands_in_float32(dtype: str) -> None:
    cupy = fake_cupy()
    gpu = stand_in(cupy)
    step, weights = step_of(gpu, dtype)
    cost = step().get()
    products = cupy.machine.products
    assert len(products) >= 3 * 5 + 2 + 5, "three of each layer, two of attention and five of its gradient"
    assert {each["operands"] for each in products} == {as_dtype(dtype)}
    assert {each["value"] for each in products} == {as_dtype(dtype), np.dtype("float32")}
    wide, wanted = step_of(gen_backend("cpu", jit=False), "float32")
    rtol = 3e-2 if is_bfloat16(as_dtype(dtype)) else 4e-3
    np.testing.assert_allclose(cost, wide().get(), rtol=rtol)
    for w, expected in zip(weights, wanted, strict=True):
        np.testing.assert_allclose(w.get().astype(np.float32), expected.get(), rtol=rtol, atol=2 * rtol)


def test_a_product_of_halves_may_be_in_float32() -> None:
    be = stand_in(fake_cupy())
    x, y = (np.random.RandomState(seed).standard_normal((3, 4, 4)).astype(np.float16) for seed in range(2))
    found = be.product(be.array(x, "float16").raw(), be.array(y, "float16").raw(), 0.5, is_wide=True)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.get(), 0.5 * (x.astype(np.float32) @ y.astype(np.float32)), rtol=1e-6, atol=1e-6)
    out = be.array(x, "float16").raw()
    assert be.product(out, out, out=be.zeros((3, 4, 4), "float16").raw()).dtype == np.float16
